"""Errors, and messages for bad input. Imports nothing of the project."""
