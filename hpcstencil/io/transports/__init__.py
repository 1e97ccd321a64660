"""Output transports: the ways in which several processes write one HDF5 file. `registry` lists them."""
