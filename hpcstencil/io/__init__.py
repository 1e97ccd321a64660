"""Input and output files. This module imports nothing, because postprocess uses parts of the package."""
