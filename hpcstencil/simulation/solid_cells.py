"""The solid cells of a run: this process's block of the mask, and the check that some cells are fluid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcstencil.distributed.halo import Fields
from hpcstencil.problem.solid_mask import ALL_SOLID, SOLID
from hpcstencil.simulation.initial_state import solid_in_expression
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.validation.errors import InputError


def solid_block(simulation: ComposedSimulation, fields: Fields, chosen: Sequence[slice] | None = None) -> np.ndarray:
    """Return this process's block of the mask: int8, 1 in solid cells and 0 in the fluid; local, without ghost cells.

    It has a leading member axis only if the masks of an ensemble's members differ. ``chosen`` selects cells of the block, by a
    slice per axis. The problem must have a mask.
    """
    problem, mask = simulation.problem, simulation.problem.mask
    assert mask is not None
    cells = tuple(chosen or (slice(0, stop - start, 1) for start, stop in simulation.ranges))
    if mask.is_read:
        block = simulation.block(fields[SOLID])
        return np.ascontiguousarray((block[..., 0] if problem.members else block)[cells], np.int8)
    within = zip(simulation.ranges, cells, strict=True)
    ranges = [(start + s.start, min(start + s.stop, stop)) for (start, stop), s in within]
    steps = tuple(slice(None, None, s.step) for s in cells)
    blocks = [block[steps].astype(np.int8) for block in solid_in_expression(problem, ranges)]
    return np.stack(blocks) if len(blocks) > 1 else blocks[0]


def check_fluid_left(simulation: ComposedSimulation, fields: Fields) -> None:
    """Raise InputError, on all processes, if the solid cells of any member cover the whole grid. Collective."""
    if simulation.problem.mask is None:
        return
    solid = solid_block(simulation, fields)
    fluid = np.sum(solid == 0, axis=tuple(range(-simulation.device_grid.grid.ndim, 0)))
    if (simulation.communicator.total(np.atleast_1d(fluid)) == 0).any():
        raise InputError(ALL_SOLID)
