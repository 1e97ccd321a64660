"""The solid cells of a run: this process's block of the mask, and the check that some cells are fluid."""

from __future__ import annotations

import numpy as np

from hpcstencil.distributed.halo import Fields
from hpcstencil.problem.solid_mask import ALL_SOLID, SOLID
from hpcstencil.simulation.initial_state import solid_in_expression
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.validation.errors import InputError


def solid_block(simulation: ComposedSimulation, fields: Fields) -> np.ndarray:
    """Return this process's block of the mask: int8, 1 in solid cells and 0 in the fluid; local, without ghost cells.

    It has a leading member axis only if the masks of an ensemble's members differ. The problem must have a mask.
    """
    problem, mask = simulation.problem, simulation.problem.mask
    assert mask is not None
    if mask.is_read:
        block = simulation.block(fields[SOLID])
        return np.ascontiguousarray(block[..., 0] if problem.members else block, np.int8)
    blocks = [block.astype(np.int8) for block in solid_in_expression(problem, simulation.ranges)]
    return np.stack(blocks) if len(blocks) > 1 else blocks[0]


def check_fluid_left(simulation: ComposedSimulation, fields: Fields) -> None:
    """Raise InputError, on all processes, if the solid cells of any member cover the whole grid. Collective."""
    if simulation.problem.mask is None:
        return
    solid = solid_block(simulation, fields)
    fluid = np.sum(solid == 0, axis=tuple(range(-simulation.device_grid.grid.ndim, 0)))
    if (simulation.communicator.total(np.atleast_1d(fluid)) == 0).any():
        raise InputError(ALL_SOLID)
