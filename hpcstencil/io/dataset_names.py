"""Reserved names in the output file. This module imports nothing, so that the checks of the input can use it."""

MASK_DATASET = "solid"
DIAGNOSTICS = "diagnostics"
PROBES = "probes"  # has a group for each table of [probes]
VALUES = "values"  # of the receivers, in each of these groups
