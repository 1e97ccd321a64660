"""Measurements that check an input: orders of convergence, conservation, and equality of decompositions."""
