"""A distributed stencil PDE toolkit: one TOML file, any number of processes and devices, one HDF5 file."""

__version__ = "0.1.0"
