"""Methods and indices as data: no JAX, no MPI."""
