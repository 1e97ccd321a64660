"""Composition, choice of the kernel, and the loop of a run."""
