"""Every block of docs/python.md, docs/how_to.md and the README runs, one after the other; the script under mpirun."""

import re
from pathlib import Path

import pytest
from commands import python

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / name).read_text() for name in ("docs/python.md", "docs/how_to.md", "README.md"))
BLOCKS = re.findall(r"(`script.py`:\n\n)?```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.e2e
def test_every_block_of_the_page_runs(tmp_path):
    pages = [text for is_script, text in BLOCKS if not is_script]
    (script,) = (text for is_script, text in BLOCKS if is_script)
    assert len(pages) > 8
    told = python(tmp_path, "\n".join(["import matplotlib", "matplotlib.use('agg')", *pages]))
    assert told.stdout.split()[:2] == ["10.0", "100"] and len(told.stdout.splitlines()) == 6
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "fisher.png",
        *(f"fisher_{t}.png" for t in (10, 20, 30, 40)),
    ]
    assert (tmp_path / "fisher.gif").stat().st_size > 10_000
    assert 0.0 < float(python(tmp_path, script, 2).stdout) <= 0.9
