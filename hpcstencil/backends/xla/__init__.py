"""The backends `shift` and `conv`: steps written as JAX array code and compiled by XLA."""
