"""Runs: composition from problem and backend, choice of the kernel, and the time loop."""
