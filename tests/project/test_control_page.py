"""The benchmark of the control part: what it reads from Open MPI's counts, and how it extrapolates."""

import math
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from control import FAR, SENT, fits

SIZES = [4, 8, 16, 32, 64]


@pytest.mark.parametrize(
    "growth, name, far",
    [
        (lambda n: 3 + 2 * math.log2(n), "log2(n)", 3 + 2 * math.log2(FAR)),
        (lambda n: 1 + 0.5 * n, "n", 1 + 0.5 * FAR),
    ],
)
def test_the_better_fit_is_continued(growth, name, far):
    fit, error, there = fits(SIZES, [growth(n) for n in SIZES]).split(" | ")
    assert fit.endswith(f" {name}") and error == "0 %" and float(there) == pytest.approx(far, rel=1e-2)


def test_what_open_mpi_counts():
    """Lines of its monitoring component, of which only those between two processes count."""
    lines = [
        "E\t0\t1\t127 bytes\t14 msgs sent\t0,0,3",
        "I\t0\t4\t8 bytes\t2 msgs sent\t2",
        "C\t0\t1\t92 bytes\t13 msgs sent",
    ]
    assert re.findall(SENT, "\n".join(lines), re.MULTILINE) == [("0", "127", "14"), ("0", "8", "2")]
