"""Checkpoints of a reverse sweep: the place that it has reached, from which it continues with the same bits.

They are files like the checkpoints of a run (`checkpoint.checkpoint`), with the number of reversed steps for the step. They
hold the derivatives so far by field of the adjoint problem, the terms of the objective, and the sizes of the steps if these
follow the solution. Stored states have files of their own (`stored_states`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcstencil.adjoint.run_steps import RunSteps
from hpcstencil.checkpoint.checkpoint import Part, read_checkpoint, write_checkpoint
from hpcstencil.config.settings import Config
from hpcstencil.gradient import origin
from hpcstencil.gradient.course import Reached
from hpcstencil.gradient.sweep import Sweep
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.simulation.file_blocks import checkpoint_block, from_checkpoint
from hpcstencil.validation.errors import InputError

WHAT = "gradient"
FREE = (*origin.FREE, "fit.")  # keys in which a gradient that continues may differ from the one before
TABLES = ("terms", "steps")  # names of arrays that are not over the grid


def attributes_of(sweep: Sweep, digests: Mapping[str, str], what: str = WHAT) -> dict[str, str]:
    """The attributes of the files of a sweep, see `origin.attributes_of`."""
    kernels = (sweep.forward.kernel, sweep.backward.kernel)
    return origin.attributes_of(what, sweep.forward.problem.config, kernels, digests)


def write(output: Path, sweep: Sweep, reached: Reached, digests: Mapping[str, str]) -> Path:
    """Write the checkpoint of a sweep that writes ``output``, and return its path. Collective. See `write_checkpoint`."""
    simulation, names = sweep.forward, list(sweep.adjoint.direct)
    config = simulation.problem.config
    rows = [[value, *(direct.get(name, 0.0) for name in names)] for value, direct in reached.parts]
    tables = {"terms": np.array(rows, np.float64)} if rows else {}
    if simulation.problem.step_follows_solution:
        tables["steps"] = np.array([tuple(steps) for steps in sweep.run.ranges], np.float64)
    shapes = {f"{name} {axis}": n for name, table in tables.items() for axis, n in enumerate(table.shape)}
    return write_checkpoint(
        output,
        simulation.communicator,
        config.grid,
        step=sweep.steps - reached.step,
        time=sweep.run.time_of(reached.step),
        arrays={name: checkpoint_block(simulation, array) for name, array in reached.cotangents.items()},
        ranges=simulation.ranges,
        scalars={"step": reached.step, **shapes},
        attributes=attributes_of(sweep, digests),
        keep=config.checkpoint.keep,
        method=config.output.method,
        apart={name: _part(table, simulation.communicator, config.grid.ndim) for name, table in tables.items()},
    )


def _part(table: np.ndarray, communicator: Communicator, ndim: int) -> Part:
    """A table of numbers, which rank 0 writes, along the first of ``ndim`` axes."""
    ranges = _ranges(table.size, communicator, ndim)
    block = table.reshape(-1, *[1] * (ndim - 1))
    return Part(block[tuple(slice(*pair) for pair in ranges)], ranges, block.shape)


def _ranges(size: int, communicator: Communicator, ndim: int) -> list[tuple[int, int]]:
    """The index ranges of a table of ``size`` numbers: all of it on rank 0, and none on other processes."""
    return [(0, n if communicator.rank == 0 else 0) for n in (size, *[1] * (ndim - 1))]


def newest(output: Path, communicator: Communicator) -> Path | None:
    """The newest valid checkpoint of the sweep that writes ``output``; see `origin.newest`. Collective."""
    return origin.newest(output, WHAT, communicator)


def read(path: Path, sweep: Sweep, digests: Mapping[str, str]) -> tuple[Reached, RunSteps]:
    """Read the place of a sweep, and the steps of its run, from a checkpoint. Collective.

    Raises InputError, on all processes, if the input or its data have changed.
    """
    simulation, names = sweep.forward, list(sweep.adjoint.direct)
    communicator, config, rates = simulation.communicator, simulation.problem.config, list(sweep.adjoint.rates)
    _, scalars, attributes = read_checkpoint(path, simulation.ranges, communicator, ())
    from_rank_0(communicator, lambda: origin.refuse_changed(path, attributes, config, digests, FREE))
    tables = {name: _table(path, name, scalars, communicator, config) for name in TABLES if f"{name} 0" in scalars}
    run = sweep.run
    if "steps" in tables:
        ranges = [StepRange(time, int(first), dt, int(count)) for time, first, dt, count in tables["steps"].tolist()]
        run = RunSteps(tuple(ranges), run.end)
    reached, done = int(scalars.get("step", -1)), attributes["step"]
    if reached < 0 or (run.ranges and reached + done != run.total):
        raise InputError(
            f"{path}: expected a place among the {run.total} steps, but got {reached}; take another checkpoint"
        )
    cotangents = {}
    if done:
        blocks, _, _ = read_checkpoint(path, simulation.ranges, communicator, rates)
        cotangents = simulation.put({name: from_checkpoint(simulation, blocks[name]) for name in rates})
    rows = tables.get("terms", np.zeros((0, 1 + len(names)))).tolist()
    return Reached(reached, cotangents, [(row[0], dict(zip(names, row[1:], strict=True))) for row in rows]), run


def _table(
    path: Path, name: str, scalars: Mapping[str, object], communicator: Communicator, config: Config
) -> np.ndarray:
    """A table of numbers from a checkpoint, equal on all processes. Collective."""
    shape = list[int]()
    while isinstance(n := scalars.get(f"{name} {len(shape)}"), int):
        shape.append(n)
    ranges = _ranges(int(np.prod(shape)), communicator, config.grid.ndim)
    blocks, _, _ = read_checkpoint(path, ranges, communicator, (name,))
    return communicator.broadcast(blocks[name].reshape(shape) if communicator.rank == 0 else np.zeros(0))
