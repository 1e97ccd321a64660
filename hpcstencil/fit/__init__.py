"""Fits: the unknowns that minimize the objective of a run, by L-BFGS with bounds on vectors spread over the processes."""
