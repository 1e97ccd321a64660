"""Pattern formation by an instability with an intrinsic wavelength."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.operators import Space


class SwiftHohenberg:
    """∂u/∂t = r u - (q² + ∇²)² u + g u² - u³: stripes (g = 0) or hexagons of wavelength 2π/q, for r > 0.

    J. Swift & P. Hohenberg, "Hydrodynamic fluctuations at the convective instability", Phys. Rev. A 15 (1977) 319-328,
    eq. (17); with the quadratic term, Cross & Hohenberg, Rev. Mod. Phys. 65 (1993) 851-1112, eq. (4.12).
    """

    parameters: ClassVar[Mapping[str, float]] = {"r": 0.2, "q": 1.0, "g": 0.0}
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("u",)

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        def operator(a: Node) -> Node:
            return p.q * p.q * a + space.laplacian(a)

        return {"u": p.r * f.u - operator(operator(f.u)) + p.g * f.u**2 - f.u**3}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        amplitude = p.g + 2.0 * p.r**0.5  # upper bound of |u| in the patterns
        return Rates(biharmonic=1.0, reaction=p.q**4 + 3.0 * amplitude**2)


class KuramotoSivashinsky:
    """∂u/∂t = -∇²u - ν ∇⁴u - ½ |∇u|²: a front with growing long waves, decaying short waves, and spatio-temporal chaos.

    Y. Kuramoto & T. Tsuzuki, Prog. Theor. Phys. 55 (1976) 356-369; G. Sivashinsky, Acta Astronaut. 4 (1977) 1177-1206,
    eq. (37). The mean of u decreases steadily; only differences of u are meaningful.
    """

    parameters: ClassVar[Mapping[str, float]] = {"nu": 1.0}
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("u",)

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        bending = space.laplacian(f.u)
        return {"u": -bending - p.nu * space.laplacian(bending) - 0.5 * space.gradient_squared(f.u)}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(
            biharmonic=p.nu
        )  # the bound from advection, whose speed is |∇u|, is weaker on any grid that resolves the solution


EQUATIONS: Family = {"swift_hohenberg": SwiftHohenberg, "kuramoto_sivashinsky": KuramotoSivashinsky}
