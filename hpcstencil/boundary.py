"""Ghost cells at the physical boundary of a cell-centred grid.

The face lies half-way between the first cell and its mirror image, so the ghost cell at distance (j - 1/2) dx beyond it is
  dirichlet  u = g:      u_{-j} = 2 g - u_{j-1}
  neumann    ∂u/∂n = q:  u_{-j} = u_{j-1} + (2 j - 1) dx q
(LeVeque, "Finite Difference Methods" (2007), sect. 2.12, for cell centres). The closure is of second order in dx; it
keeps the order of a wider stencil where the solution continues with that symmetry.
A new kind is a function here, listed in GHOSTS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcstencil.expressions import Constant, Node


@dataclass(frozen=True)
class Face:
    """What holds at one face: the kind (a key of GHOSTS) and its value as an expression of coordinates and time."""

    kind: str
    value: Node


NO_FLUX = Face("neumann", Constant(0.0))


def dirichlet(mirror: Any, value: Any, height: np.ndarray) -> Any:
    """Ghost cells of u = value; ``mirror`` holds the mirror images of the cells."""
    return mirror.dtype.type(2) * value - mirror


def neumann(mirror: Any, value: Any, height: np.ndarray) -> Any:
    """Ghost cells of ∂u/∂n = value, n pointing outwards; ``height`` (2 j - 1) dx the distance to the mirror image."""
    return mirror + height * value


GHOSTS: dict[str, Callable[[Any, Any, np.ndarray], Any]] = {"dirichlet": dirichlet, "neumann": neumann}
