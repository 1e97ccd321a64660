"""Errors, error messages, and the schema of the input. It imports no other package of the project."""
