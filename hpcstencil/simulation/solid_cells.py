"""The solid cells of a run: this process's block of the mask, and the check that it leaves fluid."""

from __future__ import annotations

import numpy as np

from hpcstencil.distributed.halo import Fields
from hpcstencil.problem.solid_mask import ALL_SOLID, SOLID
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.validation.errors import InputError


def solid_block(simulation: Simulation, fields: Fields) -> np.ndarray:
    """This process's block of the mask as int8: 1 in solid cells, 0 in the fluid; local, without ghost cells. It has a
    first axis of members only if the members of an ensemble differ in it. The problem must have a mask."""
    problem, mask = simulation.problem, simulation.problem.mask
    assert mask is not None
    if mask.is_read:
        block = simulation.block(fields[SOLID])
        return np.ascontiguousarray(block[..., 0] if problem.members else block, np.int8)
    listed = {name for name, value in problem.parameters.items() if np.ndim(value)} if problem.members else set()
    each = problem.members if mask.differs(listed) else (problem.members or (problem,))[:1]
    blocks = [
        numpy_evaluate.block_values(
            mask.solid, member.config.grid, simulation.ranges, member.parameters, np.dtype(np.int8)
        )
        for member in each
    ]
    return np.stack(blocks) if len(each) > 1 else blocks[0]


def check_fluid_left(simulation: Simulation, fields: Fields) -> None:
    """Raise InputError, on all processes, if the solid cells (of any member) cover the whole grid. All processes call
    this together."""
    if simulation.problem.mask is None:
        return
    solid = solid_block(simulation, fields)
    fluid = np.sum(solid == 0, axis=tuple(range(-simulation.device_grid.grid.ndim, 0)))
    if (simulation.communicator.total(np.atleast_1d(fluid)) == 0).any():
        raise InputError(ALL_SOLID)
