"""Nonlinear advection with viscosity."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.symbolic.expressions import Node, total
from hpcstencil.symbolic.operators import Space

COMPONENTS = ("u", "v", "w")


class Burgers:
    """∂u/∂t = -(u·∇)u + ν ∇²u, one component per axis: u, (u, v) or (u, v, w).

    J. M. Burgers, "A mathematical model illustrating the theory of turbulence", Adv. Appl. Mech. 1 (1948) 171-199,
    eq. (14), in advective form with central differences. The cell Péclet number |u| dx / ν should not exceed about 2.
    """

    parameters: ClassVar[Mapping[str, float]] = {"nu": 0.01}
    solution_dependent: ClassVar[bool] = True

    def fields(self, ndim: int) -> tuple[str, ...]:
        return COMPONENTS[:ndim]

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        velocity = [getattr(f, name) for name in COMPONENTS[: space.ndim]]
        return {
            name: p.nu * space.laplacian(a) - total([v * d for v, d in zip(velocity, space.gradient(a), strict=True)])
            for name, a in zip(COMPONENTS, velocity, strict=False)
        }

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(diffusion=p.nu, velocity=[largest[name] for name in COMPONENTS[:ndim]])


EQUATIONS: Family = {"burgers": Burgers}
