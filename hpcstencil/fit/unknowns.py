"""The unknowns of a fit on this process: their start, the box that bounds them, and the objective as a function of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from hpcstencil.adjoint.limits import Limits, outside
from hpcstencil.adjoint.unknowns import CellValues, InitialValues, NumberParameter, SeriesParameter, Unknown
from hpcstencil.distributed.halo import Fields
from hpcstencil.fit.lbfgs import Box, Point, Vector
from hpcstencil.gradient.members import Members
from hpcstencil.gradient.reverse_sweep import Result, ReverseSweep
from hpcstencil.numerics.topology import Range
from hpcstencil.simulation.initial_state import lower_walls
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.solid_cells import solid_block
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Node
from hpcstencil.validation.errors import NumericsError

T = TypeVar("T")


@dataclass(frozen=True)
class OwnBlock:
    """This process's block of an array on the grid, as a `parameter_files.Blocks`."""

    block: np.ndarray

    def read(self, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
        """Return a copy of the block, of which ``ranges`` must be the place."""
        return self.block.copy()


def components(members: Members) -> dict[str, tuple[Unknown, int]]:
    """The components of the vectors of a fit, by a name of their own: (unknown, number of its member).

    An unknown in which the members of an ensemble differ has a component for each, named KEY[MEMBER]. Any other has one, which
    belongs to the first member and is shared by all.
    """
    found = dict[str, tuple[Unknown, int]]()
    for one in members.unknowns:
        if one.key in members.own:
            found |= {f"{one.key}[{number}]": (one, number) for number in range(members.count)}
        else:
            found[one.key] = one, 0
    return found


def of_components(given: Mapping[str, T], members: Members) -> dict[str, T]:
    """The values given for unknowns, by key, for the components of each."""
    return {name: given[one.key] for name, (one, _) in components(members).items() if one.key in given}


def start_of(members: Members) -> dict[str, Any]:
    """The values with which the runs of the input begin: numbers, time series, and this process's blocks. Collective."""
    found, fields, last = dict[str, Any](), Fields(), -1
    for name, (one, number) in sorted(components(members).items(), key=lambda item: item[1][1]):
        forward = members.sweeps[number].forward
        if number != last:
            fields, last = forward.initial_fields(), number
        match one:
            case CellValues():
                found[name] = np.array(forward.block(fields[one.values_field]))
            case SeriesParameter():
                found[name] = np.array(forward.problem.parameters[one.name])
            case NumberParameter():
                found[name] = np.float64(forward.problem.parameters[one.name])
    return {name: found[name] for name in components(members)}


def by_unknown(found: Mapping[str, Any], members: Members) -> dict[str, Any]:
    """The unknowns by key, from the components. Those in which the members differ have the members as first axis.

    ``found`` has numbers, time series, and arrays or None.
    """
    gathered: dict[str, Any] = {}
    for name, (one, _) in components(members).items():
        if one.key in members.own:
            gathered.setdefault(one.key, []).append(found[name])
        else:
            gathered[one.key] = found[name]
    return {
        key: (None if value[0] is None else np.stack(value)) if key in members.own else value
        for key, value in gathered.items()
    }


def box_of(members: Members, start: Vector, limits: Mapping[str, Limits]) -> Box:
    """The box of a fit, with ``limits`` by component. The scale of an unknown is by default the largest magnitude of its start,
    or 1. Collective.

    Raises InputError, on all processes, if the start is not inside the bounds.
    """
    forward, unknowns, series = members.forward, components(members), members.series

    def block(name: str, tree: Node | None, default: Any) -> Any:
        like, problem = start[name], members.sweeps[unknowns[name][1]].forward.problem
        if tree is None:
            return default
        if not np.ndim(like) or name in series:
            return np.float64(numpy_evaluate.evaluate(tree, values=numpy_evaluate.by_node(problem.parameters)))
        values = numpy_evaluate.block_values(
            tree, problem.config.grid, forward.ranges, problem.parameters, np.dtype(np.float64)
        )
        return values.astype(like.dtype)

    @cache
    def solid(number: int) -> np.ndarray:
        run = members.sweeps[number].forward
        return solid_block(run, run.initial_fields()) != 0

    def without_effect(one: Unknown, number: int) -> np.ndarray | None:
        """In which cells the value of an unknown has no effect, and so no bounds; None in none.

        These are solid cells, unless a flux through their surface depends on an array there, and faces on a boundary, whose
        condition gives the value.
        """
        problem = members.sweeps[number].forward.problem
        if not isinstance(one, CellValues):
            return None
        if problem.mask is not None:
            return solid(number) if isinstance(one, InitialValues) or problem.mask.value is None else None
        return lower_walls(problem, one.name, forward.ranges) if one.name in problem.positions else None

    lower, upper, frozen = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for key, one in limits.items():
        lower[key] = block(key, one.lower, -np.inf)
        upper[key] = block(key, one.upper, np.inf)
        frozen[key] = np.asarray(block(key, one.frozen, 0.0)) != 0
    for key, x in start.items():
        free = without_effect(*unknowns[key])
        if free is not None:
            lower[key], upper[key] = np.where(free, -np.inf, lower[key]), np.where(free, np.inf, upper[key])
        for table, violated in (("lower", ~(x >= lower[key])), ("upper", ~(x <= upper[key]))):
            count = int(np.count_nonzero(violated & ~frozen[key]))
            if key not in series:
                count = int(forward.communicator.total(np.array([count]))[0])
            if count:
                what = "samples" if key in series else "cells"
                raise outside(table, unknowns[key][0].key, "its values", f"{count} {what} in which it is not")
    scale = {key: one.scale or _size(forward, start[key]) or 1.0 for key, one in limits.items()}
    return Box(lower, upper, scale, frozen)


def _size(forward: ComposedSimulation, values: Any) -> float:
    return float(forward.communicator.maximum(np.array([np.abs(values).max()]))[0])


@dataclass(frozen=True)
class Evaluation:
    """The objective as a function of the unknowns: each call takes the run of each member forwards and in reverse.

    ``states`` are the numbers of stored states of the members.
    """

    members: Members
    box: Box
    states: Sequence[int]

    def __call__(self, unknowns: Vector) -> Point | None:
        """The point with these unknowns; None if the objective or its gradient is not finite there. Collective."""
        try:
            return self.at(unknowns)
        except NumericsError:
            return None

    def at(self, unknowns: Vector) -> Point:
        """The point with these unknowns. Collective. Raises the NumericsError of the sweep."""
        parts = components(self.members)

        def result(number: int, sweep: ReverseSweep) -> Result:
            numbers, arrays = dict[str, Any](), dict[str, OwnBlock]()
            for name, (one, member) in parts.items():
                if one.key in self.members.own and member != number:
                    continue
                match one:
                    case CellValues():
                        arrays[one.key] = OwnBlock(unknowns[name])
                    case SeriesParameter():
                        numbers[one.name] = unknowns[name]
                    case NumberParameter():
                        numbers[one.name] = float(unknowns[name])
            moved = sweep.with_values(numbers, arrays)
            return moved(moved.forward.initial_fields(), self.states[number])

        total = self.members.total(result)
        gradient = dict[str, Any]()
        for name, (one, number) in parts.items():
            found = total.of(one)
            values = found[number] if one.key in self.members.own else found
            scaled = np.where(self.box.frozen[name], 0.0, values * np.float64(self.box.scale[name]))
            gradient[name] = scaled.astype(unknowns[name].dtype)[()]
        return Point(unknowns, total.value, gradient)
