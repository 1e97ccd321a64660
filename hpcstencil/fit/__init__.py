"""Fits: the unknowns for which the objective of a run is least, by L-BFGS with bounds on vectors spread over the processes."""
