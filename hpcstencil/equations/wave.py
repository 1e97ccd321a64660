"""Waves of second order in time, as two fields of first order."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.derivatives import Space
from hpcstencil.equations.base import Rates
from hpcstencil.expressions import Node


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

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(wave=p.c)
