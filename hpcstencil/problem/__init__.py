"""From an input to an initial value problem: trees, parameters, boundary conditions, decomposition, stable step size."""
