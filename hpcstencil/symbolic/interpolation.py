"""Interpolation between cells: a(x_s) = Σ_i W_i(x_s) a_i, and with the same weights the point source δ(x - x_s) = W_i / dx.

Along one axis the weights are those of the Lagrange polynomial through the p cells nearest to the position x_s (J.-P. Berrut &
L. N. Trefethen, SIAM Rev. 46 (2004) 501-517, eq. (2.1)). With s = (x_s - x_i) / dx, and r = 0 .. p - 1 the index of the cell in
this window of p cells,
  W_i = Π_(d = 1 .. p - 1) (1 + s/d if r ≥ d, else 1 - s/(p - d)).
They reproduce polynomials of degree p - 1. The interpolation error of a smooth function is O(dx^p), and a source has the same
moments as δ up to that degree. Since a source and a receiver have the same weights, exchanging them does not change the signal
(reciprocity; for windowed sinc functions, G. J. Hicks, Geophysics 67 (2002) 156-165). If x_s is the position of a grid value,
that value has weight 1 and all others 0.

    walls     |   o   o   o   o   o   o      a window that would extend past a wall is moved inside. Weights next to the wall
              |x  [-----------]              are one-sided and of the same order, for any boundary condition
"""

from __future__ import annotations

from hpcstencil.numerics.grid import Grid
from hpcstencil.symbolic.expressions import Constant, Coordinate, Node, Pointwise, node, product


def weight(grid: Grid, axis: int, place: Node, order: int, periodic: bool, masked: bool) -> Node:
    """The weight of a grid value in the interpolation at ``place``, along one axis.

    The result is a tree of the coordinate of the grid value, valid at cell centres and on lower faces. ``place`` is a
    coordinate as a tree. ``order`` is the number of points, and the order of the error. ``periodic`` says whether the
    axis is periodic. On a grid with solid cells (``masked``), a place beside a wall counts as the nearest cell centre.
    """
    lower, upper, dx = grid.lower[axis], grid.upper[axis], grid.spacing[axis]
    points = min(order, grid.shape[axis])
    if periodic:
        points -= points % 2  # a window that is symmetric about x_s
        distance = _to_nearest_image(place - Coordinate(axis), upper - lower) / dx
        return _lagrange(distance, distance, points)
    if masked:
        place = _between_centres(grid, axis, place)
    # The clipped centre stays a quarter of a cell away from any switch of the window, at centres and on faces alike.
    first, last = lower + (points / 2 - 0.25) * dx, upper - (points / 2 + 0.25) * dx
    centre = Pointwise("minimum", (Pointwise("maximum", (place, node(first))), node(last)))
    return _lagrange((place - Coordinate(axis)) / dx, (centre - Coordinate(axis)) / dx, points)


def _between_centres(grid: Grid, axis: int, place: Node) -> Node:
    """Clip a coordinate along ``axis`` to the range from the first to the last cell centre."""
    half = grid.spacing[axis] / 2
    above = Pointwise("maximum", (place, node(grid.lower[axis] + half)))
    return Pointwise("minimum", (above, node(grid.upper[axis] - half)))


def _lagrange(s: Node, centre: Node, points: int) -> Node:
    """The Lagrange weight of a cell in a window of ``points`` cells, 0 outside the window.

    ``s`` and ``centre`` are the distances, in cells, from the cell to the position and to the centre of the window.
    """
    if points < 2:
        return Constant(1.0)
    factors = []
    for d in range(1, points):
        slope = Pointwise("where", (centre < points / 2 - d, Constant(1.0 / d), Constant(-1.0 / (points - d))))
        factors.append(1.0 + s * slope)
    return Pointwise("where", (Pointwise("abs", (centre,)) < points / 2, product(factors), Constant(0.0)))


def _to_nearest_image(way: Node, period: float) -> Node:
    """The absolute distance to the nearest periodic image, given the distance ``way`` to one of them.

    It is also right for ghost cells up to one period outside the grid.
    """
    from_image = Pointwise("abs", (Pointwise("abs", (way,)) - period,))
    return Pointwise("minimum", (from_image, period - from_image))
