"""Reserved names of datasets and groups in the output file. This module imports nothing, so that `check` can use it."""

MASK_DATASET = "solid"
DIAGNOSTICS = "diagnostics"
PROBES = "probes"  # contains one group per table of [probes]
VALUES = "values"  # the values at the receivers, in each of these groups
