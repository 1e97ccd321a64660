"""Manufactured solutions: add a source and boundary values to a problem so that a chosen solution is exact.

For any u_m, the equation ∂u/∂t = N(u) + S with S = ∂u_m/∂t - N(u_m) has the solution u_m, provided that the boundary
conditions are satisfied by u_m (P. Roache, J. Fluids Eng. 124 (2002) 4-10). The kinds of the conditions stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.boundary_kinds import KINDS, NO_FLUX, Face
from hpcstencil.symbolic.differentiate import derivative, exact, mode, residual
from hpcstencil.symbolic.expressions import Coordinate, Field, Node, Time, at_time, node
from hpcstencil.symbolic.parser import Scope, parse
from hpcstencil.symbolic.staggering import home, located, located_on_boundary

SAMPLES = 5  # number of times at which the source is sampled
ROUNDING = 1e-9  # a source below this fraction of the rates of change of the solution is due to rounding
MEAN, AMPLITUDE = 1.0, 0.2  # the default solution stays away from 0, where powers and logarithms are not smooth


@dataclass(frozen=True)
class Manufactured:
    """A ``problem`` whose time derivatives include the ``source`` for which ``solution`` is exact.

    ``solution`` and ``source`` map each field to a tree of coordinates, time and parameters.
    """

    problem: Problem
    solution: Mapping[str, Node]
    source: Mapping[str, Node]

    def at(self, time: float) -> dict[str, np.ndarray]:
        """The exact solution at ``time``, by field: float64 arrays on the global grid, without ghost cells."""
        return self._values(self.solution, time)

    def largest_source(self, duration: float) -> tuple[float, str]:
        """The (largest magnitude, field) of the source from t = 0 to ``duration``, sampled at SAMPLES times on the grid.

        The magnitude is 0 if the source is due to rounding only.
        """
        rates = {name: derivative(tree, Time()) for name, tree in self.solution.items()}
        found, scale = dict.fromkeys(self.source, 0.0), 0.0
        for time in np.linspace(0.0, duration, SAMPLES):
            for trees, unit in ((rates, 1.0), (self.solution, duration)):
                scale = max(scale, *(float(np.abs(v).max()) / unit for v in self._values(trees, time).values()))
            for name, values in self._values(self.source, time).items():
                found[name] = max(found[name], float(np.abs(values).max()))
        name = max(found, key=lambda name: found[name])
        return (found[name] if found[name] > ROUNDING * scale else 0.0), name

    def _values(self, trees: Mapping[str, Node], time: float) -> dict[str, np.ndarray]:
        """The values of trees at ``time``: float64 arrays on the global grid, without ghost cells."""
        problem = self.problem
        grid = problem.config.grid
        ranges = [(0, n) for n in grid.shape]
        return {
            name: numpy_evaluate.block_values(
                at_time(tree, time), grid, ranges, problem.parameters, np.dtype("float64")
            )
            for name, tree in trees.items()
        }


def given_solution(problem: Problem) -> dict[str, Node]:
    """The solution in the table [verify.exact] of the input, as a tree per field; empty if there is none.

    Raises InputError for malformed expressions.
    """
    config = problem.config
    scope = Scope(config.grid.ndim, problem.symbols)
    return {name: parse(text, scope, f"verify.exact.{name}") for name, text in config.verify.exact.items()}


def default_solution(problem: Problem, duration: float) -> dict[str, Node]:
    """The default solution, as a tree per field: one wave along each axis, with a phase shift that differs between
    fields.

    Its period in time is longer than ``duration``, because errors in space would cancel over a full period.
    """
    grid, periodic = problem.config.grid, problem.config.boundary.periodic
    solution = {}
    for i, name in enumerate(problem.trees):
        phases: list[Node] = []
        for axis in range(grid.ndim):
            waves = 1.0 if periodic[axis] else 0.8  # at a wall the solution must not happen to be symmetric
            k = 2 * math.pi * waves / (grid.upper[axis] - grid.lower[axis])
            phases.append(k * (Coordinate(axis) - grid.lower[axis]) + (0.4 + 0.7 * i + 0.3 * axis))
        phases.append(2 * math.pi * 0.8 / duration * Time() + 0.9 * i)
        solution[name] = node(MEAN) + mode(AMPLITUDE, phases)
    return solution


def manufactured(problem: Problem, solution: Mapping[str, Node]) -> Manufactured:
    """Add the source to a problem, and take boundary values and the initial state from ``solution``, so that it is exact.

    ``solution`` maps each field to a tree of coordinates and time. The kinds of boundary conditions stay the same.
    Raises the errors of `differentiate.exact`.
    """
    grid = problem.config.grid
    spacing = grid.spacing
    places = {name: home(name, problem.positions, grid.ndim) for name in solution}
    at_home = {name: located(tree, places[name], {}, spacing, "verify") for name, tree in solution.items()}
    whole = {
        name: tree + problem.multistep_damping[name] if name in problem.multistep_damping else tree
        for name, tree in problem.trees.items()
    }
    source = {name: residual(whole[name], at_home[name], at_home, spacing) for name in problem.trees}
    trees = {name: tree + source[name] for name, tree in problem.trees.items()}
    initial = {name: at_time(tree, 0.0) for name, tree in at_home.items()}
    faces = {}
    for operand in problem.needs(problem.differentiated()):
        known = solution[operand.name] if isinstance(operand, Field) else exact(operand, at_home, spacing)
        for axis, periodic in enumerate(problem.config.boundary.periodic):
            if periodic:
                continue
            value = known
            if isinstance(operand, Field) and operand.name in places:
                value = located_on_boundary(known, places[operand.name], axis, spacing, "verify")
            for side in (0, 1):
                outward = derivative(value, Coordinate(axis)) * (2.0 * side - 1.0)
                given = problem.faces.get((operand, axis, side), NO_FLUX)
                faces[operand, axis, side] = Face(given.kind, KINDS[given.kind].matching(given.values, value, outward))
    return Manufactured(replace(problem, trees=trees, initial=initial, faces=faces), at_home, source)
