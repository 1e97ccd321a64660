"""Composition, choice of kernel, the loop of a run."""
