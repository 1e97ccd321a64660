"""The input file."""
