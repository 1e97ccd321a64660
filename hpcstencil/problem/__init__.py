"""The initial value problem: trees, parameters, boundary conditions, stable step size."""
