"""What computes the steps: array code (xla), generated C++ (native), GPU kernels (pallas)."""
