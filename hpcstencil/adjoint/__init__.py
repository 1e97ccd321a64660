"""The adjoint of a problem, derived as trees: the same backends compute it, with the same halos and boundary conditions."""
