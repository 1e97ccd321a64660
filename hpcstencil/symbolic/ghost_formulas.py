"""Ghost cells at the physical boundary of a cell-centred grid.

The face lies half-way between the first cell and its mirror image, so the ghost cell u_{-j} at distance (j - 1/2) dx beyond
it and its mirror image u_{j-1} are h = (2 j - 1) dx apart:
  dirichlet  u = g:                u_{-j} = 2 g - u_{j-1}
  neumann    ∂u/∂n = q:            u_{-j} = u_{j-1} + h q
  robin      a u + b ∂u/∂n = r:    u_{-j} = (h r - (h a/2 - b) u_{j-1}) / (h a/2 + b)
(LeVeque, "Finite Difference Methods" (2007), sect. 2.12, for cell centres). The closure is of second order in dx; it
keeps the order of a wider stencil where the solution continues with that symmetry.
A field that lives on the faces across the boundary (`positions`) has its value there, and beyond it images in that: kind
WALL, of which `ghost_cells` makes the ghost cells.
A new kind is a function here, listed in GHOSTS, and an entry of `boundary_conditions.KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcstencil.symbolic.expressions import Constant, Node


@dataclass(frozen=True)
class Face:
    """What holds at one face: the kind (a key of GHOSTS) and its values as expressions of coordinates and time."""

    kind: str
    values: tuple[Node, ...]


WALL = "wall"
NO_FLUX = Face("neumann", (Constant(0.0),))


def dirichlet(mirror: Any, height: np.ndarray, value: Any) -> Any:
    """Ghost cells of u = value; ``mirror`` holds the mirror images of the cells."""
    return mirror.dtype.type(2) * value - mirror


def neumann(mirror: Any, height: np.ndarray, value: Any) -> Any:
    """Ghost cells of ∂u/∂n = value, n pointing outwards; ``height`` (2 j - 1) dx the distance to the mirror image."""
    return mirror + height * value


def robin(mirror: Any, height: np.ndarray, a: Any, b: Any, value: Any) -> Any:
    """Ghost cells of a u + b ∂u/∂n = value."""
    half = height * mirror.dtype.type(0.5) * a
    # XLA makes a multiplication of a division by what it knows when it compiles, and knows more in some decompositions.
    inverse = mirror.dtype.type(1) / (half + b)
    return (height * value - (half - b) * mirror) * inverse


GHOSTS: dict[str, Callable[..., Any]] = {"dirichlet": dirichlet, "neumann": neumann, "robin": robin}
