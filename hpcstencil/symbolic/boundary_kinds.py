"""Kinds of boundary conditions: the formula of their ghost cells, their parameters, and values for a known solution.

The boundary is a face of the first cell, half-way between cell centres. The ghost cell u_{-j}, j = 1, 2, ..., lies
(j - 1/2) dx outside the boundary, and its mirror image u_{j-1} as far inside, so they are h = (2 j - 1) dx apart:
  dirichlet  u = g:                u_{-j} = 2 g - u_{j-1}
  neumann    ∂u/∂n = q:            u_{-j} = u_{j-1} + h q
  robin      a u + b ∂u/∂n = r:    u_{-j} = (h r - (h a/2 - b) u_{j-1}) / (h a/2 + b)
(LeVeque, "Finite Difference Methods" (2007), sect. 2.12, for cell centres). The closure is second-order in dx. A wider
stencil keeps its higher order only if the solution continues across the boundary with this symmetry.
A field on the faces normal to the axis (`staggering`) has a value on the boundary itself and is mirrored about it. Its
kind is `wall`, which replaces dirichlet.

To add a kind, add an entry to KINDS. Every backend and `verify` read this table, and an unknown kind raises KeyError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hpcstencil.symbolic.expressions import Constant, Node


class Arithmetic(Protocol):
    """What a ghost-cell formula computes with: a float, an array, or an expression in generated code."""

    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...


N = TypeVar("N", bound=Arithmetic)


@dataclass(frozen=True)
class Face:
    """The boundary condition on one face of the grid.

    ``kind`` is a key of KINDS. ``values`` are its parameters, as trees of coordinates and time.
    """

    kind: str
    values: tuple[Node, ...]


@dataclass(frozen=True)
class Kind:
    """One kind of boundary condition.

    ``values`` are the names of its parameters in the input; a single one is written without its name. They are empty
    for a kind that the input cannot request. ``example`` shows the parameters as the input writes them.

    ``ghost(number, mirror, height, *values)`` returns the value of a ghost cell, given the value of its mirror image,
    the distance between the two, and the parameters. It is called with arrays, with Pallas values, and with expressions
    of generated C++. So that all backends round alike, it uses only + - * and 1 / x, and makes constants with
    ``number``.

    ``matching(values, u, slope)`` returns the parameters for which the solution u with outward slope ∂u/∂n satisfies
    the condition. ``on_face`` is true for fields with values on the boundary, which are mirrored about that value.
    ``refuse(*values)`` returns an error message if the parameters, all numbers, are not valid, else "".

    A ghost cell is factor * mirror + offset. ``mirrored(parity, dx, values)`` returns the face whose factor is ``parity``
    (1 or -1) times this one's, and whose offset is 0; the adjoint needs it (`adjoint.operators`). It returns None if there is
    no such face. ``factor_varies`` says whether the factor depends on the distance from the boundary; then ``mirrored`` with
    parity -1 is right for the first ghost cell only.
    """

    ghost: Callable[..., Any]
    matching: Callable[[tuple[Node, ...], Node, Node], tuple[Node, ...]]
    values: tuple[str, ...] = ("value",)
    example: str = "0.0"
    on_face: bool = False
    refuse: Callable[..., str] = lambda *values: ""
    mirrored: Callable[[int, float, tuple[Node, ...]], Face | None] = lambda parity, dx, values: None
    factor_varies: bool = False


def _dirichlet(number: Callable[[float], N], mirror: N, height: N, value: N) -> N:
    """The ghost cell for u = value on the boundary."""
    return number(2.0) * value - mirror


def _neumann(number: Callable[[float], N], mirror: N, height: N, value: N) -> N:
    """The ghost cell for the outward normal derivative ∂u/∂n = value."""
    return mirror + height * value


def _robin(number: Callable[[float], N], mirror: N, height: N, a: N, b: N, value: N) -> N:
    """The ghost cell for a u + b ∂u/∂n = value."""
    half = height * number(0.5) * a
    # XLA turns division by a constant into multiplication, and the decomposition decides whether this is a constant.
    inverse = number(1.0) / (half + b)
    return (height * value - (half - b) * mirror) * inverse


def _mirrored_robin(parity: int, dx: float, values: tuple[Node, ...]) -> Face:
    """The face with ``parity`` times the factor of a robin condition.

    The factor of the first ghost cell is (b - a dx/2) / (b + a dx/2). It changes sign if a dx/2 and b change places.
    """
    a, b, _ = values
    if parity < 0:
        a, b = b * (2.0 / dx), a * (dx / 2.0)
    return Face("robin", (a, b, ZERO))


WALL = "wall"
OUTSIDE = "outside"  # zeros beyond the boundary, for the adjoint
ZERO = Constant(0.0)
NO_FLUX, FIXED, NO_CONDITION = Face("neumann", (ZERO,)), Face("dirichlet", (ZERO,)), Face(OUTSIDE, ())
KINDS = {
    "dirichlet": Kind(
        _dirichlet,
        lambda values, u, slope: (u,),
        mirrored=lambda parity, dx, values: FIXED if parity > 0 else NO_FLUX,
    ),
    "neumann": Kind(
        _neumann,
        lambda values, u, slope: (slope,),
        mirrored=lambda parity, dx, values: NO_FLUX if parity > 0 else FIXED,
    ),
    "robin": Kind(
        _robin,
        lambda values, u, slope: (values[0], values[1], values[0] * u + values[1] * slope),
        values=("a", "b", "value"),
        example="{ a = 1.0, b = 0.5, value = 0.0 }",
        refuse=lambda a, b, value: (
            "" if a or b else "expected a or b other than 0, but got 0 for both; give one of them"
        ),
        mirrored=_mirrored_robin,
        factor_varies=True,
    ),
    WALL: Kind(
        _dirichlet,
        lambda values, u, slope: (u,),
        values=(),
        on_face=True,
        mirrored=lambda parity, dx, values: Face(WALL, (ZERO,)) if parity > 0 else None,
    ),
    OUTSIDE: Kind(
        lambda number, mirror, height: number(0.0) * mirror,
        lambda values, u, slope: (),
        values=(),
        mirrored=lambda parity, dx, values: NO_CONDITION,
    ),
}
