"""Kinds of boundary conditions: their input values, their ghost cells, and the values that match a known solution.

The grid is cell-centred. The face lies half-way between the first cell and its mirror image, so the ghost cell u_{-j} at
distance (j - 1/2) dx beyond it and its mirror image u_{j-1} are h = (2 j - 1) dx apart:
  dirichlet  u = g:                u_{-j} = 2 g - u_{j-1}
  neumann    ∂u/∂n = q:            u_{-j} = u_{j-1} + h q
  robin      a u + b ∂u/∂n = r:    u_{-j} = (h r - (h a/2 - b) u_{j-1}) / (h a/2 + b)
(LeVeque, "Finite Difference Methods" (2007), sect. 2.12, for cell centres). The closure is of second order in dx. It
keeps the order of a wider stencil if the solution continues beyond the face with that symmetry.
A field that lives on the faces across the boundary (`staggering`) has a value on the boundary itself, and is mirrored
about that value: kind `wall`, which replaces dirichlet there.

To add a kind, add an entry to KINDS. Every backend and `verify` read that table, and an unknown kind raises KeyError
everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hpcstencil.symbolic.expressions import Constant, Node


class Arithmetic(Protocol):
    """A number of a backend: a float, an array, or a piece of a kernel's text."""

    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...


N = TypeVar("N", bound=Arithmetic)


@dataclass(frozen=True)
class Face:
    """The boundary condition at one face: its kind (a key of KINDS) and its values as expressions of coordinates and
    time."""

    kind: str
    values: tuple[Node, ...]


@dataclass(frozen=True)
class Kind:
    """One kind of boundary condition.

    ``values`` are the names of its values in the input; a single value is written without its name. ``example`` is such
    a value or table. If ``values`` is empty, the input cannot ask for this kind.

    ``ghost(number, mirror, height, *values)`` returns the ghost cell, given its mirror image, the distance between the
    two, and the values. Array code, Pallas kernels and generated C++ all call it, each with its own kind of number. It
    therefore uses only + - * and 1 / x, and makes constants with ``number``, so that every backend rounds alike.

    ``matching(values, u, slope)`` returns the values for which u, with the outward slope ∂u/∂n, satisfies the
    condition. ``on_face`` says that the mirror is on the face instead of half a cell before it, because the field has
    values on the face. ``refuse(*values)`` returns what is wrong with the values and what to do, or "" if they are
    right; it is called only if all of them are numbers.
    """

    ghost: Callable[..., Any]
    matching: Callable[[tuple[Node, ...], Node, Node], tuple[Node, ...]]
    values: tuple[str, ...] = ("value",)
    example: str = "0.0"
    on_face: bool = False
    refuse: Callable[..., str] = lambda *values: ""


def _dirichlet(number: Callable[[float], N], mirror: N, height: N, value: N) -> N:
    return number(2.0) * value - mirror


def _neumann(number: Callable[[float], N], mirror: N, height: N, value: N) -> N:
    return mirror + height * value


def _robin(number: Callable[[float], N], mirror: N, height: N, a: N, b: N, value: N) -> N:
    half = height * number(0.5) * a
    # XLA turns division by a constant into multiplication, and the decomposition decides whether this is a constant.
    inverse = number(1.0) / (half + b)
    return (height * value - (half - b) * mirror) * inverse


WALL = "wall"
KINDS = {
    "dirichlet": Kind(_dirichlet, lambda values, u, slope: (u,)),
    "neumann": Kind(_neumann, lambda values, u, slope: (slope,)),
    "robin": Kind(
        _robin,
        lambda values, u, slope: (values[0], values[1], values[0] * u + values[1] * slope),
        values=("a", "b", "value"),
        example="{ a = 1.0, b = 0.5, value = 0.0 }",
        refuse=lambda a, b, value: (
            "" if a or b else "expected a or b other than 0, but got 0 for both; give one of them"
        ),
    ),
    WALL: Kind(_dirichlet, lambda values, u, slope: (u,), values=(), on_face=True),
}
NO_FLUX = Face("neumann", (Constant(0.0),))
