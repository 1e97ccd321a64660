"""The output file. Imports nothing here: postprocess reads with parts of it."""
