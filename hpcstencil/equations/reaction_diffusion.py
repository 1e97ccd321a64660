"""Two reacting and diffusing species."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.operators import Space


class GrayScott:
    """∂u/∂t = D_u ∇²u - u v² + F (1 - u), ∂v/∂t = D_v ∇²v + u v² - (F + k) v.

    J. E. Pearson, "Complex patterns in a simple system", Science 261 (1993) 189-192, eq. (2).
    """

    parameters: ClassVar[Mapping[str, float]] = {"F": 0.037, "k": 0.06, "D_u": 2e-5, "D_v": 1e-5}
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("u", "v")

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        reaction = f.u * f.v * f.v
        return {
            "u": p.D_u * space.laplacian(f.u) - reaction + p.F * (1.0 - f.u),
            "v": p.D_v * space.laplacian(f.v) + reaction - (p.F + p.k) * f.v,
        }

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        # The reaction damps u at the rate v² + F and v at F + k; in patterns v stays below 1/2 (Pearson's fig. 2).
        return Rates(diffusion=max(p.D_u, p.D_v), reaction=0.25 + p.F + p.k)


class FitzHughNagumo:
    """∂u/∂t = D_u ∇²u + u - u³/3 - v + I, ∂v/∂t = D_v ∇²v + ε (u + a - b v): an excitable medium.

    R. FitzHugh, "Impulses and physiological states in theoretical models of nerve membrane", Biophys. J. 1 (1961) 445-466,
    eq. (1)-(2), in the time of u and with diffusion (J. Nagumo et al., Proc. IRE 50 (1962) 2061-2070).
    """

    parameters: ClassVar[Mapping[str, float]] = {
        "epsilon": 0.08, "a": 0.7, "b": 0.8, "I": 0.0, "D_u": 1.0, "D_v": 0.0,
    }  # fmt: skip
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("u", "v")

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        return {
            "u": space.diffusion(p.D_u, f.u) + f.u - f.u**3 / 3.0 - f.v + p.I,
            "v": space.diffusion(p.D_v, f.v) + p.epsilon * (f.u + p.a - p.b * f.v),
        }

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        # Pulses have |u| < 2.1, so the decay rate u² - 1 stays below 3.5; u and v oscillate at the frequency sqrt(ε).
        return Rates(diffusion=max(p.D_u, p.D_v), reaction=3.5 + p.epsilon * p.b, rotation=math.sqrt(p.epsilon))


EQUATIONS: Family = {"gray_scott": GrayScott, "fitzhugh_nagumo": FitzHughNagumo}
