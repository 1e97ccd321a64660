"""Errors, and the sentences for bad input. Imports nothing of the project."""
