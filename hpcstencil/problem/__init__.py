"""The initial value problem: trees, parameters, boundaries, stable step."""
