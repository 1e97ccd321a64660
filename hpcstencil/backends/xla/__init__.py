"""Array code."""
