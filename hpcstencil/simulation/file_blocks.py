"""Conversion between a run's blocks and those in its files.

In files, the member axis comes first, and staggered fields include their values on an upper boundary. Blocks are numpy arrays
of this process's cells (local, without ghost cells), in the run's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from hpcstencil.distributed.halo import Fields
from hpcstencil.problem.problem import Problem
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field, at_time, on_plane
from hpcstencil.validation.errors import InputError


def output_blocks(
    simulation: ComposedSimulation, fields: Fields, names: Sequence[str], time: float
) -> dict[str, np.ndarray]:
    """Return this process's blocks of the fields ``names`` for the output file, with a leading member axis in an ensemble.

    On processes next to an upper boundary, blocks of staggered fields include the values on it. No device array holds these
    values, so they are computed from the boundary condition at ``time``.
    """
    blocks = simulation.get(fields, names)
    if not simulation.problem.members:
        return {name: _with_upper_wall(simulation, simulation.problem, name, blocks[name], time) for name in names}
    return {
        name: np.stack([
            _with_upper_wall(simulation, member, name, blocks[name][..., i], time)
            for i, member in enumerate(simulation.problem.members)
        ])
        for name in names
    }  # fmt: skip


def _with_upper_wall(
    simulation: ComposedSimulation, problem: Problem, name: str, block: np.ndarray, time: float
) -> np.ndarray:
    grid, parameters, ranges = problem.config.grid, problem.parameters, list(simulation.ranges)
    for axis, more in enumerate(problem.layout.extra(name)):
        if more and ranges[axis][1] == grid.shape[axis]:
            (value,) = problem.faces[Field(name), axis, 1].values
            value = at_time(on_plane(value, axis, grid.upper[axis]), time)
            beyond = [(grid.shape[axis], grid.shape[axis] + 1) if a == axis else r for a, r in enumerate(ranges)]
            block = np.concatenate(
                [block, numpy_evaluate.block_values(value, grid, beyond, parameters, simulation.dtype)], axis
            )
            ranges[axis] = (ranges[axis][0], grid.shape[axis] + 1)
    return block


def checkpoint_block(simulation: ComposedSimulation, array: jax.Array) -> np.ndarray:
    """Return this process's block of one device array for a checkpoint, with a leading member axis in an ensemble."""
    block = simulation.block(array)
    return np.ascontiguousarray(np.moveaxis(block, -1, 0)) if simulation.problem.members else block


def from_checkpoint(simulation: ComposedSimulation, block: np.ndarray) -> np.ndarray:
    """Return a block of a checkpoint in the run's dtype, with a trailing member axis: the inverse of `checkpoint_block`.

    Raises InputError, on this process alone, if the checkpoint has another number of members.
    """
    count = len(simulation.problem.members)
    if block.shape[: block.ndim - simulation.device_grid.grid.ndim] != ((count,) if count else ()):
        raise InputError(
            "the checkpoint was written by a run with other members of an ensemble, or none; start a new run"
        )
    block = block.astype(simulation.dtype, copy=False)
    return np.moveaxis(block, 0, -1) if count else block
