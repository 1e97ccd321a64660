"""Compute the SHA-256 of every dataset that the shipped inputs write, to show that a change of the program keeps every bit.

Each input of inputs/ runs about ten steps with orders 2, 4, 6, 8 in float32 and float64. If it is refused, the error message is
stored instead. A launch uses one number of processes for all runs:

    mpirun -n 2 .venv/bin/python benchmarks/dataset_digests.py before.json
    mpirun -n 2 .venv/bin/python benchmarks/dataset_digests.py after.json --kernel native
    .venv/bin/python benchmarks/dataset_digests.py --compare before.json after.json

`--compare` prints the rows that differ and exits with 1 if there are any. Rows of different numbers of processes must be equal
too. `--kernel` overrides the inputs' numerics.kernel, and `--only` selects the inputs whose names contain a text. To test an
older commit, copy this script into a checkout of it and set PYTHONPATH to that checkout.

About 160 programs are compiled, each in a few seconds. The cache of compiled programs makes a second launch short.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path

INPUTS = Path(__file__).parent.parent / "inputs"
ORDERS = (2, 4, 6, 8)
PRECISIONS = ("float32", "float64")
# End times after about ten steps of order 2, and changes of the input so that more happens until then, such as an early source.
ENDS = {
    "acoustic": 0.015,
    "advection_diffusion": 0.05,
    "allen_cahn": 0.4,
    "brusselator": 0.3,
    "burgers": 0.05,
    "cahn_hilliard": 5.0,
    "custom": 1.0,
    "euler": 0.004,
    "fitzhugh_nagumo": 1.0,
    "gray_scott": 8.0,
    "heat": 0.0015,
    "kuramoto_sivashinsky": 0.2,
    "layered_ground": 0.01,
    "maxwell": 0.05,
    "neural_field": 1.0,
    "nonlinear_diffusion": 0.0001,
    "scattering": 0.05,
    "schroedinger": 0.05,
    "shallow_water": 400.0,
    "swift_hohenberg": 1.0,
    "wave": 0.04,
}
SOURCES = {"acoustic": "equation.t0=0.01", "maxwell": "equation.t0=0.02"}


def digests(path: Path) -> dict[str, str]:
    """Return the number of steps, and the type, shape and SHA-256 of every dataset, of a file."""
    import h5py

    found: dict[str, str] = {}

    def note(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            value = item[()]
            found[name] = f"{item.dtype} {item.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"

    with h5py.File(path) as file:
        found["steps"] = str(file["step"][-1])
        file.visititems(note)
    return found


def row(path: Path, order: int, precision: str, folder: Path, kernel: str | None) -> dict[str, str]:
    """Return the digests of one run, or the error message with which its input is refused. Collective."""
    from hpcstencil.cli import cli
    from hpcstencil.runtime.launcher import environment_rank
    from hpcstencil.validation.errors import InputError

    end = ENDS.get(path.stem)
    assert end is not None, f"{path.name}: add to ENDS the time of about ten steps"
    output = folder / f"{path.stem}-{order}-{precision}.h5"
    settings = [f"time.end={end}", f"output.every={end / 2}", f"numerics.order={order}"]
    settings += [f'numerics.precision="{precision}"', *([SOURCES[path.stem]] if path.stem in SOURCES else [])]
    settings += [f'numerics.kernel="{kernel}"'] if kernel else []
    line = ["run", str(path), "--output", str(output), "--overwrite", "--quiet", "--devices", "1"]
    for setting in settings:
        line += ["--set", setting]
    try:
        cli.main(line, prog_name="hpcstencil", standalone_mode=False)
    except InputError as refusal:
        return {"refused": str(refusal)}
    finally:
        if jax := sys.modules.get("jax"):
            jax.clear_caches()
    if environment_rank() != 0:
        return {}
    try:
        return digests(output)
    finally:
        output.unlink()


def measure(result: Path, only: str, kernel: str | None) -> None:
    """Run all cases on the processes of this launch, and write the rows."""
    from hpcstencil.runtime import devices
    from hpcstencil.runtime.launcher import environment_rank, environment_size

    # Devices are chosen before JAX is imported, hence by the first run; all other runs have the same.
    devices.bind_devices = functools.cache(devices.bind_devices)
    folder = result.absolute().with_suffix(".runs")
    rows: dict[str, dict[str, str]] = {}
    for path in sorted(path for path in INPUTS.glob("*.toml") if only in path.stem):
        start = time.monotonic()
        for order in ORDERS:
            for precision in PRECISIONS:
                rows[f"{path.stem} order {order} {precision}"] = row(path, order, precision, folder, kernel)
        if environment_rank() == 0:
            steps = [rows[f"{path.stem} order {order} {PRECISIONS[0]}"].get("steps", "refused") for order in ORDERS]
            print(f"{path.stem:<24}{time.monotonic() - start:6.1f} s, steps: {', '.join(steps)}", flush=True)
    if environment_rank() == 0:
        result.write_text(json.dumps({"processes": environment_size(), "rows": rows}, indent=1) + "\n")
        shutil.rmtree(folder)


def compare(before: Path, after: Path) -> int:
    """Print the rows of two results that differ, and return the exit status."""
    first, second = (json.loads(path.read_text())["rows"] for path in (before, after))
    differ = [name for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]
    for name in differ:
        one, other = first.get(name, {}), second.get(name, {})
        for dataset in sorted(one.keys() | other.keys()):
            if one.get(dataset) != other.get(dataset):
                print(f"{name}: {dataset}: {one.get(dataset)} -> {other.get(dataset)}")
    print(f"{len(first)} and {len(second)} rows, {len(differ)} differ")
    return 1 if differ else 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--compare", action="store_true", help="compare two results instead of running")
    parser.add_argument("--only", default="", help="the inputs whose names contain this")
    parser.add_argument("--kernel", help="instead of the inputs' own")
    given = parser.parse_args()
    if len(given.files) != (2 if given.compare else 1):
        parser.error("expected one result to write, or --compare and two")
    if given.compare:
        return compare(*given.files)
    measure(given.files[0], given.only, given.kernel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
