"""Phase-field models: two phases with a diffuse interface between them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.operators import Space


class AllenCahn:
    """∂u/∂t = M (ε² ∇²u + u - u³): an interface of width √2 ε that moves by mean curvature, at the speed M ε² / radius.

    S. Allen & J. Cahn, "A microscopic theory for antiphase boundary motion", Acta Metall. 27 (1979) 1085-1095, eq. (11).
    """

    parameters: ClassVar[Mapping[str, float]] = {"M": 1.0, "epsilon": 1.0}
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("u",)

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        return {"u": p.M * (p.epsilon * p.epsilon * space.laplacian(f.u) + f.u - f.u**3)}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(diffusion=p.M * p.epsilon**2, reaction=2.0 * p.M)  # |u| stays within 1


class CahnHilliard:
    """∂c/∂t = ∇·(M ∇(c³ - c - κ ∇²c)): two phases separate and coarsen, and the integral of c is conserved.

    J. Cahn & J. Hilliard, J. Chem. Phys. 28 (1958) 258-267; J. Cahn, Acta Metall. 9 (1961) 795-801, eq. (9).
    """

    parameters: ClassVar[Mapping[str, float]] = {"M": 1.0, "kappa": 1.0}
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("c",)

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        potential = f.c**3 - f.c - p.kappa * space.laplacian(f.c)
        return {"c": space.diffusion(p.M, potential)}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(diffusion=2.0 * p.M, biharmonic=p.M * p.kappa)  # 3 c² - 1 <= 2 in the phases c = ±1


EQUATIONS: Family = {"allen_cahn": AllenCahn, "cahn_hilliard": CahnHilliard}
