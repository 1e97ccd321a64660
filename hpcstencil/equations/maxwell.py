"""Electromagnetic waves."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.equations.wave import Acoustic
from hpcstencil.symbolic.expressions import Node, total
from hpcstencil.symbolic.operators import Space

AXES = "xyz"


class Maxwell:
    """∂B/∂t = -∇×E, ∂E/∂t = c² ∇×B - J, J = ``source`` δ(x - x_s) ricker(t) along z, c the speed of light in the medium.

    The equations of J. C. Maxwell (1865) in a non-magnetic, non-conducting medium, on the grid of K. Yee, IEEE Trans. Antennas
    Propag. 14 (1966) 302-307: E_x lives on the edges of cells along x, and B_x on the faces normal to x. A boundary with E = 0
    is a perfect conductor, at which the tangential B has no normal derivative. numerics.integrator = "leapfrog" is Yee's scheme
    in time. In two dimensions E points along z and B lies in the plane. In one dimension E points along z and B along y.
    """

    parameters: ClassVar[Mapping[str, float]] = {
        "c": 1.0, "source": 0.0, "f0": 1.0, "t0": 1.2, "xs": 0.0, "ys": 0.0, "zs": 0.0,
    }  # fmt: skip
    solution_dependent: ClassVar[bool] = False
    values_live_on_walls: ClassVar[bool] = True

    def fields(self, ndim: int) -> tuple[str, ...]:
        return {1: ("Ez", "By"), 2: ("Ez", "Bx", "By"), 3: ("Ex", "Ey", "Ez", "Bx", "By", "Bz")}[ndim]

    def positions(self, ndim: int) -> Mapping[str, tuple[int, ...]]:
        along = {"E": lambda axis, own: int(axis != own), "B": lambda axis, own: int(axis == own)}
        places = {
            name: tuple(along[name[0]](axis, AXES.index(name[1])) for axis in range(ndim)) for name in self.fields(ndim)
        }
        return {name: place for name, place in places.items() if any(place)}

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        place = (p.xs, p.ys, p.zs)[: space.ndim]
        rates = {}
        for name in self.fields(space.ndim):
            kind, own = name[0], AXES.index(name[1])
            curl = self.curl(f, "B" if kind == "E" else "E", own, space)
            rates[name] = p.c * p.c * curl if kind == "E" else -curl
        rates["Ez"] = rates["Ez"] - Acoustic.source(p, space.point(*place))
        return rates

    @staticmethod
    def curl(f: SimpleNamespace, kind: str, axis: int, space: Space) -> Node:
        """The component along ``axis`` of ∇×E or ∇×B (``kind`` "E" or "B").

        Components and axes that the grid lacks are left out.
        """
        before, after = (axis + 1) % 3, (axis + 2) % 3
        terms = []
        for along, component in ((before, after), (after, before)):
            if along < space.ndim and kind + AXES[component] in vars(f):
                slope = space.difference(vars(f)[kind + AXES[component]], along)
                terms.append(slope if along == before else -slope)
        return total(terms)

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(wave=p.c)


EQUATIONS: Family = {"maxwell": Maxwell}
