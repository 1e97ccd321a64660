"""tests/long_rows.txt names rows that exist."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "tests/long_rows.txt").read_text().splitlines() if not line.startswith("#")]


def test_the_functions_exist():
    for row in ROWS:
        path, _, name = row.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), row


@pytest.mark.long
def test_the_rows_exist():
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "--with-mpi", *ROWS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
