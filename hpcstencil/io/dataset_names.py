"""Names in the output file that belong to this program; imports nothing, so that the input's checks may ask."""

MASK_DATASET = "solid"
