"""Times as the input and Slurm write them."""

import pytest

from hpcstencil.runtime.walltime import seconds


@pytest.mark.parametrize(
    "text, expected",
    [
        ("1-02:03:30\n", 93810), ("12:00:00", 43200), ("2:00:00", 7200), ("4:30", 270), ("0:00", 0),
        ("UNLIMITED", None), ("INVALID", None), ("-", None), ("1-", None), ("", None),
    ],
)  # fmt: skip
def test_seconds(text, expected):
    assert seconds(text) == expected
