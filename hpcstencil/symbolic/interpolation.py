"""Interpolation between cells: a(x_s) = Σ_i W_i(x_s) a_i, and with the same weights the point source δ(x - x_s) = W_i / dx.

Along one axis the weights are those of Lagrange's polynomial through the p cells next to the place x_s (J.-P. Berrut & L. N.
Trefethen, SIAM Rev. 46 (2004) 501-517, eq. (2.1)). With s = (x_s - x_i) / dx and r = 0 .. p - 1 the number of the cell in this
window of p cells,
  W_i = Π_(d = 1 .. p - 1) (1 + s/d if r ≥ d, else 1 - s/(p - d)).
They reproduce polynomials of degree p - 1: the error of a smooth function is O(dx^p), and a source has the moments of δ up to
that degree. Since a source and a receiver have the same weights, exchanging them does not change the signal
(reciprocity; for
windowed sinc functions, G. J. Hicks, Geophysics 67 (2002) 156-165). On a place where a value lives it has the whole weight.

    walls     |   o   o   o   o   o   o      a window that would begin beyond the wall begins beside it: next to the wall the
              |x  [-----------]              weights are one-sided, of the same order, whatever holds on the wall
"""

from __future__ import annotations

from hpcstencil.numerics.grid import Grid
from hpcstencil.symbolic.expressions import Constant, Coordinate, Node, Pointwise, node, product


def weight(grid: Grid, axis: int, place: Node, order: int, periodic: bool) -> Node:
    """The weight that interpolation of formal ``order`` at ``place`` along an axis gives to a value: a tree of the
    value's coordinate, valid at cell centres and on the lower faces of cells. ``periodic`` says whether the axis is."""
    lower, upper, dx = grid.lower[axis], grid.upper[axis], grid.spacing[axis]
    points = min(order, grid.shape[axis])
    if periodic:
        points -= points % 2  # a window that is symmetric about the place
        distance = _to_nearest_image(place - Coordinate(axis), upper - lower) / dx
        return _lagrange(distance, distance, points)
    # A quarter of a cell away from where the window changes, for values at centres and on faces alike.
    first, last = lower + (points / 2 - 0.25) * dx, upper - (points / 2 + 0.25) * dx
    centre = Pointwise("minimum", (Pointwise("maximum", (place, node(first))), node(last)))
    return _lagrange((place - Coordinate(axis)) / dx, (centre - Coordinate(axis)) / dx, points)


def inside(grid: Grid, axis: int, place: Node) -> Node:
    """The place along an axis, or the outermost cell centre if the place lies between that centre and the boundary."""
    half = grid.spacing[axis] / 2
    above = Pointwise("maximum", (place, node(grid.lower[axis] + half)))
    return Pointwise("minimum", (above, node(grid.upper[axis] - half)))


def _lagrange(s: Node, centre: Node, points: int) -> Node:
    """The weight of a cell. ``s`` and ``centre`` are its distances, in cells, to the place and to the centre of the
    window."""
    if points < 2:
        return Constant(1.0)
    factors = []
    for d in range(1, points):
        slope = Pointwise("where", (centre < points / 2 - d, Constant(1.0 / d), Constant(-1.0 / (points - d))))
        factors.append(1.0 + s * slope)
    return Pointwise("where", (Pointwise("abs", (centre,)) < points / 2, product(factors), Constant(0.0)))


def _to_nearest_image(way: Node, period: float) -> Node:
    """The distance to the nearest image on a periodic axis; also valid for ghost cells up to one period outside the
    grid."""
    from_image = Pointwise("abs", (Pointwise("abs", (way,)) - period,))
    return Pointwise("minimum", (from_image, period - from_image))
