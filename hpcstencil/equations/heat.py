"""Diffusion: linear, nonlinear and with advection."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.numerics.grid import AXES
from hpcstencil.symbolic.expressions import Node, Pointwise, total
from hpcstencil.symbolic.operators import Space


class Heat:
    """∂u/∂t = ∇·(D ∇u).

    If D is a number, this is D ∇²u. If D varies in space, the flux D ∇u is evaluated at cell faces, which conserves the
    integral of u. Crank, "The Mathematics of Diffusion", 2nd ed. (1975), eq. (1.4).
    """

    parameters: ClassVar[Mapping[str, float]] = {"D": 1.0}
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("u",)

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        return {"u": space.diffusion(p.D, f.u)}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(diffusion=p.D)


class NonlinearDiffusion:
    """∂u/∂t = ∇·(D |u|^m ∇u): the porous medium equation, whose fronts move at a finite speed.

    J. L. Vázquez, "The Porous Medium Equation" (2007), eq. (1.1), whose exponent m - 1 is our m and whose factor m is our D.
    """

    parameters: ClassVar[Mapping[str, float]] = {"D": 1.0, "m": 1.0}
    solution_dependent: ClassVar[bool] = True

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("u",)

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        return {"u": space.div_grad(p.D * Pointwise("abs", (f.u,)) ** p.m, f.u)}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(diffusion=p.D * largest["u"] ** p.m)


class AdvectionDiffusion:
    """∂u/∂t = -v·∇u + D ∇²u, with v = (vx, vy, vz).

    Hundsdorfer & Verwer, "Numerical Solution of Time-Dependent Advection-Diffusion-Reaction Equations" (2003),
    eq. (I.1.1), in advective form with central differences.
    """

    parameters: ClassVar[Mapping[str, float]] = {"D": 0.0, "vx": 0.0, "vy": 0.0, "vz": 0.0}
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("u",)

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        velocity = [getattr(p, "v" + AXES[axis]) for axis in range(space.ndim)]
        transport = total([v * d for v, d in zip(velocity, space.gradient(f.u), strict=True)])
        return {"u": p.D * space.laplacian(f.u) - transport}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(diffusion=p.D, velocity=[getattr(p, "v" + AXES[axis]) for axis in range(ndim)])


EQUATIONS: Family = {
    "heat": Heat,
    "nonlinear_diffusion": NonlinearDiffusion,
    "advection_diffusion": AdvectionDiffusion,
}
