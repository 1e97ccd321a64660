"""The code that takes the steps: array code (xla), generated C++ (native), GPU kernels (pallas)."""
