"""The receivers of [probes.NAME] on the grid: the cells around each, and their weights."""

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

PLACE = Parameter("place of a receiver")  # no parameter of an equation has spaces


@dataclass(frozen=True)
class Receivers:
    """The receivers of a table of [probes], which record the ``field`` at steps that are multiples of ``every``. It has
    the name of a field, or for a derived quantity the key of the table, under which `Problem.derived` has its expression.

    The value at receiver r is the sum over m of weights[m, r] times the field in cell ``cells[m, r]``, in this order:
    the interpolation of `at`. ``places`` are float64 (receivers, axes) in the input's unit of length, ``cells`` global
    indices, int64 (points, receivers, axes), and ``weights`` float64 (points, receivers).
    """

    field: str
    every: int
    places: np.ndarray
    cells: np.ndarray
    weights: np.ndarray


def receivers_of(
    config: Config, positions: Positions, derived: Mapping[str, Mapping[str, Node]]
) -> dict[str, Receivers]:
    """The receivers of each table of [probes]; ``derived`` as in `Problem`."""
    found = {}
    for name, probe in config.probes.items():
        places = np.array(probe.places(config.grid.ndim)).T
        ndim, field = config.grid.ndim, probe.field or probe_key(name)
        position = home(field, positions, ndim)
        if not probe.field:
            position = position_of(derived[field]["expression"], positions, ndim) or position
        along = [_along(config, axis, places[:, axis], position[axis]) for axis in range(ndim)]
        numbers = itertools.product(*(range(len(weights)) for _, weights in along))
        chosen = [[(cells[n], weights[n]) for (cells, weights), n in zip(along, each, strict=True)] for each in numbers]
        cells = np.array([np.stack([cell for cell, _ in point], axis=-1) for point in chosen])
        weights = np.array([math.prod([weight for _, weight in point[1:]], start=point[0][1]) for point in chosen])
        found[name] = Receivers(field, probe.every_steps, places, cells, weights)
    return found


def _along(config: Config, axis: int, places: np.ndarray, on_faces: int) -> tuple[np.ndarray, np.ndarray]:
    """(cells, weights) along one axis of all ``places`` on it, each of shape (points, receivers): those of
    `interpolation.weight`."""
    grid, order, periodic = config.grid, config.numerics.order, config.boundary.periodic[axis]
    n, points = grid.shape[axis], min(order, grid.shape[axis])
    place: Node = PLACE if config.mask is None else interpolation.inside(grid, axis, PLACE)
    tree = interpolation.weight(grid, axis, place, order, periodic)
    first = np.floor((places - grid.lower[axis]) / grid.spacing[axis]).astype(np.int64) - order
    count = min(n, 2 * order + 2)
    if not periodic:
        first = np.clip(first, 0, n - count)
    cells = (first[:, None] + np.arange(count)) % n
    coordinates = (grid.faces(axis, n) if on_faces else grid.centres(axis))[cells]
    known = {PLACE: places[:, None]}
    weights = numpy_evaluate.evaluate(tree, [coordinates] * grid.ndim, known)  # it has this axis alone
    weights = np.broadcast_to(weights, cells.shape)
    nearest = np.argsort(weights == 0, axis=1, kind="stable")[:, :points]  # all with a weight, and some without
    return np.take_along_axis(cells, nearest, 1).T, np.take_along_axis(weights, nearest, 1).T
