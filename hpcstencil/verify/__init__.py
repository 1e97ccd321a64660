"""What a careful user would want measured of an input: orders of convergence, conservation, and equal decompositions."""
