"""The unknowns of a fit on this process: their start, the box that bounds them, and the objective as a function of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcstencil.adjoint.limits import Limits
from hpcstencil.adjoint.problem import Unknown
from hpcstencil.fit.lbfgs import Box, Point, Vector
from hpcstencil.gradient.other_values import SweepFor
from hpcstencil.numerics.topology import Range
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import PARAMETER_FIELD, Node
from hpcstencil.validation.errors import InputError, NumericsError
from hpcstencil.validation.messages import at


@dataclass(frozen=True)
class OwnBlock:
    """This process's block of an array on the grid, as a `parameter_files.Blocks`."""

    block: np.ndarray

    def read(self, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
        """Return a copy of the block, of which ``ranges`` must be the place."""
        return self.block.copy()


def start_of(forward: Simulation, unknowns: Sequence[Unknown]) -> dict[str, Any]:
    """The values with which the run of the input begins: numbers, and this process's blocks. Collective."""
    fields = forward.initial_fields()
    numbers, found = forward.problem.parameters, dict[str, Any]()
    for one in unknowns:
        if one.kind == "number":
            found[one.key] = np.float64(numbers[one.name])
        else:
            name = one.name if one.kind == "initial" else PARAMETER_FIELD + one.name
            found[one.key] = np.array(forward.block(fields[name]))
    return found


def box_of(forward: Simulation, start: Vector, limits: Mapping[str, Limits]) -> Box:
    """The box of a fit. The scale of an unknown is by default the largest magnitude of its start, or 1. Collective.

    Raises InputError, on all processes, if the start is not inside the bounds.
    """
    problem = forward.problem

    def block(tree: Node | None, like: Any, default: Any) -> Any:
        if tree is None:
            return default
        if not np.ndim(like):
            return np.float64(numpy_evaluate.evaluate(tree, values=numpy_evaluate.by_node(problem.parameters)))
        values = numpy_evaluate.block_values(
            tree, problem.config.grid, forward.ranges, problem.parameters, np.dtype(np.float64)
        )
        return values.astype(like.dtype)

    lower, upper, frozen = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for key, one in limits.items():
        lower[key] = block(one.lower, start[key], -np.inf)
        upper[key] = block(one.upper, start[key], np.inf)
        frozen[key] = np.asarray(block(one.frozen, start[key], 0.0)) != 0
    for key, x in start.items():
        for table, outside in (("lower", ~(x >= lower[key])), ("upper", ~(x <= upper[key]))):
            count = int(forward.communicator.total(np.array([np.count_nonzero(outside & ~frozen[key])]))[0])
            if count:
                bound = {"lower": lower, "upper": upper}[table][key]
                side = "at most" if table == "lower" else "at least"
                found = f"{count} cells in which it is not" if np.ndim(x) else f"{bound:g}"
                value = "its values" if np.ndim(x) else f"its value {x:g}"
                raise InputError(
                    f"{at('fit', table, key)}: expected a bound of {side} {value} where the fit begins, but got {found}; "
                    "change the bound or the start"
                )
    scale = {key: one.scale or _size(forward, start[key]) or 1.0 for key, one in limits.items()}
    return Box(lower, upper, scale, frozen)


def _size(forward: Simulation, values: Any) -> float:
    return float(forward.communicator.maximum(np.array([np.abs(values).max()]))[0])


@dataclass(frozen=True)
class Evaluation:
    """The objective of a run as a function of the unknowns: each call takes a run forwards and in reverse.

    ``states`` is the number of stored states.
    """

    sweep: SweepFor
    box: Box
    states: int

    def __call__(self, unknowns: Vector) -> Point | None:
        """The point with these unknowns; None if the objective or its gradient is not finite there. Collective."""
        try:
            return self.at(unknowns)
        except NumericsError:
            return None

    def at(self, unknowns: Vector) -> Point:
        """The point with these unknowns. Collective. Raises the NumericsError of the sweep."""
        numbers = {key.partition(".")[2]: float(x) for key, x in unknowns.items() if not np.ndim(x)}
        arrays = {key: OwnBlock(x) for key, x in unknowns.items() if np.ndim(x)}
        result = self.sweep(numbers, arrays, lambda forward: forward.initial_fields(), self.states)
        gradient = dict[str, Any]()
        for key, x in unknowns.items():
            values = np.array(self.sweep.sweep.forward.block(result.arrays[key])) if np.ndim(x) else result.numbers[key]
            scaled = np.where(self.box.frozen[key], 0.0, values * np.float64(self.box.scale[key]))
            gradient[key] = scaled.astype(x.dtype)[()]
        return Point(unknowns, result.value, gradient)
