"""Expression trees: parsing, differentiation, and analysis of the ghost cells that they need."""
