"""Wave equations of second order in time, each written as two equations of first order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.symbolic.expressions import Node, Parameter, Pointwise, Series, Time
from hpcstencil.symbolic.operators import Space


class Wave:
    """∂²u/∂t² = c² ∇²u, as ∂u/∂t = v, ∂v/∂t = c² ∇²u.

    Courant & Hilbert, "Methods of Mathematical Physics" II (1962), ch. III §3.
    """

    parameters: ClassVar[Mapping[str, float]] = {"c": 1.0}
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("u", "v")

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        return {"u": f.v, "v": p.c * p.c * space.laplacian(f.u)}

    def radiation(self, f: SimpleNamespace, p: SimpleNamespace) -> dict[str, Node]:
        return {"u": -f.v / p.c}  # ∂u/∂t + c ∂u/∂n = 0 (Engquist & Majda, Math. Comp. 31 (1977) 629-651, eq. (1.11))

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(wave=p.c)


class Acoustic:
    """∂²p/∂t² = ρ c² (∇·(ρ⁻¹ ∇p) + S), as ∂p/∂t = q, ∂q/∂t = ρ c² (∇·(ρ⁻¹ ∇p) + S), S = ``source`` δ(x - x_s) ricker(t).

    Pressure waves in a medium at rest with variable speed of sound c and density ρ: Morse & Ingard, "Theoretical Acoustics"
    (1968), eq. (6.2.8). The source signal is the Ricker wavelet of exploration seismics, ricker(t) = (1 - 2 a) exp(-a) with
    a = (π f0 (t - t0))². It peaks at t0, and its spectrum at the frequency f0 (N. Ricker, Geophysics 18 (1953)
    10-40, eq. (1)).
    """

    parameters: ClassVar[Mapping[str, float]] = {
        "c": 1.0, "rho": 1.0, "source": 0.0, "f0": 1.0, "t0": 1.2, "xs": 0.0, "ys": 0.0, "zs": 0.0,
    }  # fmt: skip
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("p", "q")

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        place = (p.xs, p.ys, p.zs)[: space.ndim]
        if isinstance(p.rho, Parameter):  # uniform: ρ cancels in front of p, and stays in front of S
            forced = p.c * p.c * (space.laplacian(f.p) + p.rho * self.source(p, space.point(*place)))
        else:
            forced = p.rho * p.c * p.c * (space.div_grad(1.0 / p.rho, f.p) + self.source(p, space.point(*place)))
        return {"p": f.q, "q": forced}

    def radiation(self, f: SimpleNamespace, p: SimpleNamespace) -> dict[str, Node]:
        return {"p": -f.q / p.c}

    @staticmethod
    def source(p: SimpleNamespace, delta: Node) -> Node:
        """The source term S as a tree: ``source`` δ ricker(t), or ``source``(t) δ if that parameter is a time series.

        ``delta`` is the tree of δ.
        """
        if isinstance(p.source, Series):
            return p.source * delta
        phase = math.pi * p.f0 * (Time() - p.t0)
        a = phase * phase
        return p.source * (1.0 - 2.0 * a) * Pointwise("exp", (-a,)) * delta

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(wave=p.c)


EQUATIONS: Family = {"wave": Wave, "acoustic": Acoustic}
