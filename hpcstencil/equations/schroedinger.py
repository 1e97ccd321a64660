"""A quantum particle in a potential, with the real and imaginary parts of the wave function as fields."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.operators import Space


class Schroedinger:
    """i ∂ψ/∂t = -½ ∇²ψ + V ψ, ħ = mass = 1, ψ = re + i im: ∂re/∂t = H im, ∂im/∂t = -H re, H = -½ ∇² + V.

    E. Schrödinger, Ann. Phys. 386 (1926) 109-139, eq. (4''). The derivative of each field depends only on the other, as the
    integrator "leapfrog" requires.
    """

    parameters: ClassVar[Mapping[str, float]] = {"V": 0.0}
    solution_dependent: ClassVar[bool] = False

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("re", "im")

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        def hamiltonian(a: Node) -> Node:
            return p.V * a - 0.5 * space.laplacian(a)

        return {"re": hamiltonian(f.im), "im": -hamiltonian(f.re)}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(dispersion=0.5, rotation=p.V)


EQUATIONS: Family = {"schroedinger": Schroedinger}
