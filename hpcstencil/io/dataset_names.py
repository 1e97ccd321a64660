"""Reserved dataset names of the output file. This module imports nothing, so that the checks of the input can use it."""

MASK_DATASET = "solid"
