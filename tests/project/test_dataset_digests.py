"""`benchmarks/dataset_digests.py` digests every shipped input."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_shipped_input_has_an_end():
    script = runpy.run_path(str(ROOT / "benchmarks" / "dataset_digests.py"))
    assert set(script["ENDS"]) == {path.stem for path in (ROOT / "inputs").glob("*.toml")}
