"""Imports run one way: each module knows only those of earlier layers."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "hpcstencil"
LAYERS = [
    {"errors", "grid", "topology", "stencil", "expressions", "monitor_parts", "handshake", "streams", "journal", "printable",
     "versions"},
    {"interpolation"},
    {"parallel", "toml_text", "derivatives", "calculus", "boundary", "noise", "pointwise", "integrators", "schedule", "signals",
     "monitor"},
    {"progress", "state", "seal", "hdf5_plain"},
    {"schema"},
    {"parser", "positions", "radius", "files", "hdf5_direct", "kernels", "halo", "host", "watchdog"},
    {"checkpoint_names", "walltime", "claim", "cache"},
    {"conditions", "equations", "frame", "hyperslabs", "launch", "publish", "functions", "method_choice"},
    {"keys"},
    {"settings", "stability", "von_neumann", "xdmf", "hdf5_layout", "hdf5_read", "hdf5_spans", "blocks", "stages"},
    {"ensemble", "names", "paths", "stopwatch"},
    {"config", "hdf5_cut", "change", "machine", "provenance", "mask", "ghosts", "copies"},
    {"evaluate"},
    {"hdf5", "checkpoint", "model", "stepper", "layers", "placed"},
    {"walls", "problem"},
    {"formulation", "decomposition", "calibration", "reductions", "continuation", "native", "pallas"},
    {"advance", "control", "memory", "behind"},
    {"diagnostics", "simulation", "report", "summary", "repair"},
    {"loop", "benchmark", "verify"},
    {"run", "doctor", "sweep"},
    {"cli"},
]  # fmt: skip
HEAVY = {"jax", "mpi4jax", "mpi4py", "h5py", "matplotlib"}
# What `hpcstencil check` loads: must not import jax or MPI at module level.
LIGHT = set().union(*LAYERS[:3]) | {
    "schema", "keys", "parser", "settings", "config", "model", "method_choice", "walls", "layers", "mask", "conditions",
    "radius", "host", "positions", "placed", "ensemble", "names", "paths",
    "equations", "stability", "von_neumann", "problem", "formulation", "decomposition", "memory", "calibration", "report",
    "cli", "doctor", "sweep", "publish",
}  # fmt: skip


def modules():
    return sorted(p for p in ROOT.rglob("*.py") if p.name != "__main__.py")


def unit(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path, everywhere: bool):
    tree = ast.parse(path.read_text())
    for part in ast.walk(tree) if everywhere else tree.body:
        if isinstance(part, ast.ImportFrom) and part.module:
            yield part.module
            if part.module == "hpcstencil":
                yield from (f"hpcstencil.{a.name}" for a in part.names)
        elif isinstance(part, ast.Import):
            yield from (a.name for a in part.names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_earlier_layers(path):
    here = unit(path)
    if here == "__init__":
        return
    level = next((i for i, layer in enumerate(LAYERS) if here in layer), None)
    assert level is not None, f"{here} is in no layer: add it to LAYERS"
    allowed = set().union(*LAYERS[:level]) | {here, "__version__", "STARTED"}
    for name in imports(path, everywhere=False):
        parts = name.split(".")
        if parts[0] == "hpcstencil" and len(parts) > 1:
            assert parts[1] in allowed, f"{path.name} imports {name} of the same or a later layer"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_light_modules_import_nothing_heavy(path):
    if unit(path) in LIGHT - {"__init__"} and path.relative_to(ROOT).as_posix() != "sweep/table.py":
        assert not {name.split(".")[0] for name in imports(path, everywhere=False)} & HEAVY


def test_only_halo_and_machine_know_collectives():
    for path in modules():
        text = path.read_text()
        if unit(path) not in ("halo", "machine", "parallel", "benchmark", "blocks", "doctor"):
            assert "mpi4jax." not in text and "lax.p" not in text.replace("lax.pad", ""), path
