"""The output file. This module imports nothing, since postprocess uses parts of the folder."""
