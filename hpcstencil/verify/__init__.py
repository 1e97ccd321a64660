"""The checks of `hpcstencil verify`: orders of convergence, conservation, and bitwise equality of decompositions."""
