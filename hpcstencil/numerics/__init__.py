"""Numerical methods and index arithmetic as plain data, without JAX and MPI."""
