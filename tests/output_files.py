"""Output files for tests: written by the program's own writer, and made by hand as the contract describes them."""

import json
from pathlib import Path

import h5py
import numpy as np

from hpcstencil.io.file_layout import Description
from hpcstencil.io.output_file import OutputFile
from hpcstencil.numerics.grid import Grid
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.symbolic.staggering import Layout

AXES = "xyz"
TIMES = (0.0, 0.5, 1.25)  # of the snapshots of write_output
ATTRIBUTES = {
    "title": "a test",
    "input": "title = 'a test'",
    "input_sha256": "00ff",
    "hpcstencil_version": "0.1",
    "decomposition": json.dumps({"processes": [1]}),
}


def grid_of(shape: tuple[int, ...]) -> Grid:
    return Grid(
        shape, tuple(1.0 + axis for axis in range(len(shape))), tuple(3.0 + 2 * axis for axis in range(len(shape)))
    )


def field(grid: Grid, index: int) -> np.ndarray:
    """Different in every cell and snapshot, and different along every axis."""
    return (np.arange(grid.cells, dtype=np.float32) * 0.37 + 1000 * index).reshape(grid.shape)


def everything(grid: Grid) -> tuple[tuple[int, int], ...]:
    return tuple((0, n) for n in grid.shape)


def described(grid: Grid, **changes) -> Description:
    settings = {"fields": ["u", "v"], "dtype": np.float32, "diagnostics": ["mass"], "attributes": ATTRIBUTES}
    return Description(Layout(grid), **{**settings, **changes})


def create(path: Path, grid: Grid, **changes) -> OutputFile:
    return OutputFile.create(path, OneProcess(), described(grid, **changes))


def append(path: Path, grid: Grid, step: int | None, **changes) -> OutputFile:
    """Continue a file of `create`."""
    return OutputFile.append(path, OneProcess(), described(grid, attributes={}, **changes), step=step)


def write_snapshots(output: OutputFile, grid: Grid, indices) -> None:
    for index in indices:
        output.write_rows(
            {"diagnostics": ([10 * index, 10 * index + 5], [index, index + 0.5], {"mass": [index, -index]})}
        )
        output.write_snapshot(
            10 * index, 1.0 * index, {"u": field(grid, index), "v": -field(grid, index)}, everything(grid)
        )


def written(path: Path, grid: Grid, snapshots: int = 3, complete: bool = True, **changes) -> Path:
    output = create(path, grid, **changes)
    write_snapshots(output, grid, range(snapshots))
    output.close(complete)
    return path


# ---- made by hand ----


def centres(n: int, lower: float = 0.0, dx: float = 0.25) -> np.ndarray:
    return lower + (np.arange(n) + 0.5) * dx


def truth(shape: tuple[int, ...], time: float) -> np.ndarray:
    """Values that tell every axis and the time apart: 100 i + 10 j + k + time."""
    weights = (100.0, 10.0, 1.0)
    return sum(w * i for w, i in zip(weights, np.indices(shape), strict=False)) + time


def write_output(path: Path, shape, times=TIMES, *, extra=0, complete=1, diagnostics=True, values=truth) -> Path:
    """An output file of one field v; `extra` snapshots stand in /v that /time does not have."""
    n = len(times)
    with h5py.File(path, "w") as file:
        file.attrs.update(
            kind="output", format_version=1, title="A test", complete=complete, hpcstencil_version="0.1.0",
            input='[equation]\nname = "heat"\nD = 0.5\n', decomposition=json.dumps({"processes": [2, 1], "devices": 3}),
        )  # fmt: skip
        time = file.create_dataset("time", data=np.array(times, float), maxshape=(None,))
        time.make_scale("time")
        file.create_dataset("step", data=np.arange(n) * 10, maxshape=(None,)).dims[0].attach_scale(time)
        data = file.create_dataset("v", (n + extra, *shape), np.float32, maxshape=(None, *shape))
        for k, t in enumerate(times):
            data[k] = values(shape, t)
        data.attrs.update(units="K", long_name="temperature")
        data.dims[0].attach_scale(time)
        for i, length in enumerate(shape):
            file.create_dataset(AXES[i], data=centres(length)).make_scale(AXES[i])
            data.dims[i + 1].attach_scale(file[AXES[i]])
        group = file.create_group("diagnostics")
        if diagnostics:
            group.update({"time": [0.0, 1.0, 2.0], "step": [0, 1, 2], "mass": [1.0, 2.0, 4.0, 8.0]})
    return path
