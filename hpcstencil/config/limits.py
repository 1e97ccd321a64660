"""Limits on the values of an input, and on combinations of them."""

from __future__ import annotations

LEAST_TOLERANCE = {"float32": 1.2e-7, "float64": 2.3e-16}  # the spacing of numbers near 1
MOST_STEPS = 2.0**53  # float64 counts exactly up to here
MOST_EPSILON = 1.0
MOST_CELLS = 2**63
MOST_OUTPUTS = 2**31
LONGEST_NAME = 100  # characters of a field, parameter or diagnostic
LONGEST_PATH = 4000  # bytes of the output's full path: systems allow 4095, and files beside it have longer names
LONGEST_PART = 255  # bytes of a name in a path that file systems allow
LONGEST_FILE_NAME = 220  # bytes of the output's name, of the 255 that file systems allow
WIDTHS = {"float32": (1e-18, 1e18), "float64": (1e-100, 1e100)}  # of a cell: squares and volumes stay in range
