"""A distributed stencil PDE toolkit: one TOML file, any number of processes and devices, one HDF5 file."""

import time

__version__ = "0.1.0"
STARTED = time.monotonic()  # of a command, near enough: nothing of it is imported before
