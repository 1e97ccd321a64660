"""The receivers of [probes.NAME]: the cells around each, and their interpolation weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcstencil.config.probes import probe_key
from hpcstencil.config.settings import Config
from hpcstencil.symbolic import interpolation, numpy_evaluate
from hpcstencil.symbolic.expressions import Node, Parameter
from hpcstencil.symbolic.staggering import Positions, home, position_of
from hpcstencil.validation.errors import InputError

PROBED = "probes"  # the key of `Problem.derived` that has the expressions of all tables of [probes]
LEAST_FLUID = 1e-6  # a receiver with less of its weight in the fluid is among solid cells
PLACE = Parameter("place of a receiver")  # names of parameters contain no spaces


@dataclass(frozen=True)
class Receivers:
    """The receivers of one table of [probes], which record ``field`` at steps that are multiples of ``every``.

    ``field`` is the name of a field or, for an expression, the dotted key of the first table with this expression, under
    which `Problem.probed` has it. The value at receiver r is the sum over m, in order, of weights[m, r] times the field in
    cell cells[m, r], the interpolation of the operator at().

    ``places`` are the positions in the length unit of the input: float64, shape (receivers, axes). ``cells`` are global
    cell indices: int64, shape (points, receivers, axes). ``weights`` are float64 of shape (points, receivers).
    """

    field: str
    every: int
    places: np.ndarray
    cells: np.ndarray
    weights: np.ndarray


def receivers_of(config: Config, positions: Positions, expressions: Mapping[str, Node]) -> dict[str, Receivers]:
    """The receivers of each table of [probes], by name.

    ``positions`` are as in `Problem`, and ``expressions`` are those of tables, by dotted key. Tables with equal expressions
    record the same.
    """
    found, key_of = {}, dict[Node, str]()
    for key, tree in expressions.items():
        key_of.setdefault(tree, key)
    for name, probe in config.probes.items():
        places = np.array(probe.places(config.grid.ndim)).T
        ndim, field = config.grid.ndim, probe.field or key_of[expressions[probe_key(name)]]
        position = home(field, positions, ndim)
        if not probe.field:
            position = position_of(expressions[field], positions, ndim) or position
        along = [_along(config, axis, places[:, axis], position[axis]) for axis in range(ndim)]
        numbers = itertools.product(*(range(len(weights)) for _, weights in along))
        chosen = [[(cells[n], weights[n]) for (cells, weights), n in zip(along, each, strict=True)] for each in numbers]
        cells = np.array([np.stack([cell for cell, _ in point], axis=-1) for point in chosen])
        weights = np.array([math.prod([weight for _, weight in point[1:]], start=point[0][1]) for point in chosen])
        found[name] = Receivers(field, probe.every_steps, places, cells, weights)
    return found


def among_solids(name: str, receivers: Receivers, number: int) -> InputError:
    """Make the error for the receiver with a ``number`` in the table ``name`` of [probes] that lies among solid cells."""
    place = ", ".join(f"{x:g}" for x in receivers.places[number])
    return InputError(
        f"probes.{name}: expected receivers in the fluid, but number {number} at {place} is among solid cells; move it"
    )


def _along(config: Config, axis: int, places: np.ndarray, on_faces: int) -> tuple[np.ndarray, np.ndarray]:
    """The cell indices (int64) and weights (float64) along one axis of receivers with these coordinates.

    ``places`` has the shape (receivers,), and both results have the shape (points, receivers). ``on_faces`` is 1 if the
    values lie on the faces of the axis, else 0. The weights follow from `interpolation.weight`.
    """
    grid, order, periodic = config.grid, config.numerics.order, config.boundary.periodic[axis]
    n, points = grid.shape[axis], min(order, grid.shape[axis])
    tree = interpolation.weight(grid, axis, PLACE, order, periodic, masked=config.mask is not None)
    first = np.floor((places - grid.lower[axis]) / grid.spacing[axis]).astype(np.int64) - order
    count = min(n, 2 * order + 2)
    if not periodic:
        first = np.clip(first, 0, n - count)
    cells = (first[:, None] + np.arange(count)) % n
    coordinates = (grid.faces(axis, n) if on_faces else grid.centres(axis))[cells]
    known = {PLACE: places[:, None]}
    weights = numpy_evaluate.evaluate(tree, [coordinates] * grid.ndim, known)  # the tree uses this axis only
    weights = np.broadcast_to(weights, cells.shape)
    # The cells with the largest weights, in order. For a receiver at the centre of a cell, rounding may leave tiny weights in
    # other cells, even in one too many.
    nearest = np.sort(np.argsort(-np.abs(weights), axis=1, kind="stable")[:, :points], axis=1)
    return np.take_along_axis(cells, nearest, 1).T, np.take_along_axis(weights, nearest, 1).T
