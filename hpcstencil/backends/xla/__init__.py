"""Kernels compiled by XLA."""
