"""Numerical methods as plain data, and index arithmetic of grids and decompositions. Uses neither JAX nor MPI."""
