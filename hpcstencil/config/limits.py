"""Limits on the values of an input, and on combinations of them."""

from __future__ import annotations

LEAST_TOLERANCE = {"float32": 1.2e-7, "float64": 2.3e-16}  # machine epsilon, rounded up
MOST_STEPS = 2.0**53  # float64 holds every integer up to this one exactly
MOST_EPSILON = 1.0
MOST_CELLS = 2**63
MOST_OUTPUTS = 2**31
LONGEST_NAME = 100  # characters of a field, parameter or diagnostic
LONGEST_PATH = 4000  # bytes of the full path of the output; systems allow 4095, and files beside it have longer names
LONGEST_PART = 255  # bytes of one name in a path; the limit of file systems
LONGEST_FILE_NAME = 220  # bytes of the file name of the output; file systems allow 255, and checkpoints add a suffix
WIDTHS = {"float32": (1e-18, 1e18), "float64": (1e-100, 1e100)}  # (least, largest) cell width: no overflow when squared
