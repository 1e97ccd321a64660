"""Backends, the code that advances the solution in time: array code (xla), generated C++ (native), GPU kernels (pallas)."""
