"""The cells that have the value of a minimum or maximum over the grid; its derivatives are those of these cells."""

from __future__ import annotations

import math

import numpy as np

from hpcstencil.adjoint.names import EXTREMA
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.simulation.simulation import ComposedSimulation


def extreme_cells(
    simulation: ComposedSimulation, fields: Fields, parameters: Parameters, time: float
) -> dict[str, np.ndarray]:
    """Return where each tree EXTREMA of a problem has its largest value over the grid, by name. Collective.

    The results are bool, of the shape of this process's block. If a value is NaN, no finite one is the largest.
    """
    trees = simulation.problem.derived.get(EXTREMA, {})
    if not trees:
        return {}
    arrays = simulation.derived[EXTREMA](fields, parameters, time)
    blocks = [simulation.block(array) for array in arrays]
    own = np.array([block.max(initial=-math.inf) for block in blocks])
    largest = simulation.communicator.maximum(np.where(np.isnan(own), math.inf, own))
    return {name: block == high for name, block, high in zip(trees, blocks, largest, strict=True)}


def objective_fields(simulation: ComposedSimulation, fields: Fields, data: Fields, time: float) -> Fields:
    """Return all fields that the objective of a problem reads: ``fields``, its data, for a tangent the cells of extrema.

    Collective.
    """
    given = {**fields, **data}
    cells = extreme_cells(simulation, given, simulation.problem.parameters, time)
    return given | simulation.put({name: here.astype(simulation.dtype) for name, here in cells.items()})
