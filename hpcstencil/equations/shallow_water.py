"""A layer of rotating fluid under gravity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.operators import Space
from hpcstencil.validation.errors import InputError


class ShallowWater:
    """∂h/∂t = -∇·(h u), ∂u/∂t = -q ẑ×(h u) - ∇(g h + ½|u|²) + ν ∇²u, q = (f + ζ) / h, ζ = ∂v/∂x - ∂u/∂y.

    The shallow water equations for the total depth h > 0 on a flat bottom, in terms of the potential vorticity q (A. Gill,
    "Atmosphere-Ocean Dynamics" (1982), sect. 7.10). ``g`` is the acceleration of gravity, ``f`` the Coriolis parameter and
    ``nu`` the viscosity. They are discretized on the C grid of A. Arakawa & V. Lamb, Methods Comput. Phys. 17 (1977) 173-265: h
    at cell centres, u on x faces, v on y faces, q at corners (R. Sadourny, J. Atmos. Sci. 32 (1975) 680-689).
    """

    parameters: ClassVar[Mapping[str, float]] = {"g": 9.81, "f": 0.0, "nu": 0.0}
    solution_dependent: ClassVar[bool] = True
    positive: ClassVar[tuple[str, ...]] = ("h",)
    values_live_on_walls: ClassVar[bool] = True

    def fields(self, ndim: int) -> tuple[str, ...]:
        if ndim != 2:
            raise InputError(
                f"equation.name: shallow_water needs a grid with two axes, but got {ndim}; change grid.shape"
            )
        return ("h", "u", "v")

    def positions(self, ndim: int) -> Mapping[str, tuple[int, ...]]:
        return {"u": (1, 0), "v": (0, 1)}

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        difference, mean = space.difference, space.mean
        flux_x, flux_y = mean(f.h, 0) * f.u, mean(f.h, 1) * f.v
        vorticity = p.f + (difference(f.v, 0) - difference(f.u, 1))
        q = vorticity / mean(mean(f.h, 0), 1)
        head = p.g * f.h + 0.5 * (mean(f.u * f.u, 0) + mean(f.v * f.v, 1))
        return {
            "h": -(difference(flux_x, 0) + difference(flux_y, 1)),
            "u": mean(q * mean(flux_y, 0), 1) - difference(head, 0),
            "v": -mean(q * mean(flux_x, 1), 0) - difference(head, 1),
        }

    def damping(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        return {name: p.nu * space.laplacian(getattr(f, name)) for name in ("u", "v")}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        speeds = (largest["u"], largest["v"])
        return Rates(wave=math.sqrt(p.g * largest["h"]), velocity=speeds, diffusion=p.nu, rotation=p.f)


EQUATIONS: Family = {"shallow_water": ShallowWater}
