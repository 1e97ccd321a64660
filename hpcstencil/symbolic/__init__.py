"""The expression tree, and what follows from it without arrays."""
