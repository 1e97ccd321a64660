"""Compressible gas dynamics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.equations.base import Family, Rates
from hpcstencil.numerics.grid import AXES
from hpcstencil.symbolic.expressions import Constant, Node, Pointwise, total
from hpcstencil.symbolic.operators import Space


@dataclass(frozen=True)
class Gas:
    """The primitive variables of a gas, as nodes: density ``rho``, ``velocity`` (one per axis) and pressure ``p``.

    The argument ``gamma`` of the methods is the ratio of specific heats.
    """

    rho: Node
    velocity: tuple[Node, ...]
    p: Node

    def energy(self, gamma: Node) -> Node:
        """The total energy per volume, internal plus kinetic."""
        return self.p / (gamma - 1.0) + 0.5 * self.rho * total([u * u for u in self.velocity])

    def sound(self, gamma: Node) -> Node:
        """The speed of sound."""
        return Pointwise("sqrt", (gamma * self.p / self.rho,))

    def conserved(self, gamma: Node) -> tuple[Node, ...]:
        """The conserved quantities: density, momentum per axis, energy per volume."""
        return (self.rho, *(self.rho * u for u in self.velocity), self.energy(gamma))

    def flux(self, axis: int, gamma: Node) -> tuple[Node, ...]:
        """The flux of each quantity of `conserved` along ``axis``."""
        normal = self.velocity[axis]
        mass = self.rho * normal
        momentum = [mass * u + self.p if a == axis else mass * u for a, u in enumerate(self.velocity)]
        return (mass, *momentum, (self.energy(gamma) + self.p) * normal)


class Euler:
    """∂ρ/∂t = -∇·m, ∂m/∂t = -∇·(m m/ρ) - ∇p, ∂E/∂t = -∇·((E + p) m/ρ), p = (γ - 1) (E - ½ |m|²/ρ).

    The equations of Euler (1757) for an ideal gas, with momentum m = ρ u and energy E per volume. The scheme is a second-order
    finite-volume method. Primitive variables are reconstructed linearly in each cell with the limiter of B. van Leer,
    J. Comput. Phys. 14 (1974) 361-370, eq. (66). The flux is HLLC, of E. Toro, M. Spruce & W. Speares, Shock Waves 4 (1994)
    25-34, with the wave speeds of S. Davis, SIAM J. Sci. Stat. Comput. 9 (1988) 445-473, eq. (4.5). Mass, momentum and energy
    are conserved, so shocks have the right speed.
    """

    parameters: ClassVar[Mapping[str, float]] = {"gamma": 1.4}
    solution_dependent: ClassVar[bool] = True
    positive: ClassVar[tuple[str, ...]] = ("rho", "E")
    orders: ClassVar[tuple[int, ...]] = (2,)

    def fields(self, ndim: int) -> tuple[str, ...]:
        return ("rho", *(f"m{axis}" for axis in AXES[:ndim]), "E")

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        gas, names = self.gas(f, p, space.ndim), self.fields(space.ndim)
        slopes: dict[str, list[Node]] = {name: [] for name in names}
        for axis in range(space.ndim):
            below, above = reconstructed(gas, axis, space)
            for name, flux in zip(names, hllc(below, above, axis, p.gamma), strict=True):
                slopes[name].append(space.difference(flux, axis))
        return {name: -total(terms) for name, terms in slopes.items()}

    def reflected(self, axis: int) -> tuple[str, ...]:
        return (f"m{AXES[axis]}",)

    def gas(self, f: SimpleNamespace, p: SimpleNamespace, ndim: int) -> Gas:
        """Convert the conserved fields ``f`` to primitive variables; ``p`` has the parameters."""
        momentum = [vars(f)[f"m{axis}"] for axis in AXES[:ndim]]
        velocity = tuple(m / f.rho for m in momentum)
        kinetic = 0.5 * total([m * u for m, u in zip(momentum, velocity, strict=True)])
        return Gas(f.rho, velocity, (p.gamma - 1.0) * (f.E - kinetic))

    def signals(self, f: SimpleNamespace, p: SimpleNamespace, ndim: int) -> dict[str, Node]:
        gas = self.gas(f, p, ndim)
        sound = gas.sound(p.gamma)
        return {f"speed along {AXES[a]}": Pointwise("abs", (u,)) + sound for a, u in enumerate(gas.velocity)}

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        return Rates(upwind=[largest[f"speed along {axis}"] for axis in AXES[:ndim]])


def reconstructed(gas: Gas, axis: int, space: Space) -> tuple[Gas, Gas]:
    """The states on the (lower, upper) side of the faces normal to ``axis``, as nodes that live on these faces.

    Each is reconstructed linearly in the cell on its side.
    """

    def sides(value: Node) -> tuple[Node, Node]:
        jump = space.above(value, axis) - space.below(value, axis)
        half = 0.5 * van_leer(space.below(jump, axis), space.above(jump, axis))
        return space.below(value + half, axis), space.above(value - half, axis)

    rho, p, velocity = sides(gas.rho), sides(gas.p), [sides(u) for u in gas.velocity]
    below, above = (Gas(rho[side], tuple(u[side] for u in velocity), p[side]) for side in (0, 1))
    return below, above


def van_leer(a: Node, b: Node) -> Node:
    """The van Leer limiter: the harmonic mean of two slopes of the same sign, 0 if the signs differ."""
    return Pointwise("where", (a * b > 0.0, 2.0 * a * b / (a + b), Constant(0.0)))


def hllc(below: Gas, above: Gas, axis: int, gamma: Node) -> tuple[Node, ...]:
    """The HLLC flux of each quantity of `Gas.conserved` through the faces normal to ``axis``.

    ``below`` and ``above`` are the states on either side of a face. E. Toro, "Riemann Solvers and Numerical Methods for
    Fluid Dynamics", 3rd ed. (2009), eq. (10.37), (10.39) and (10.71).
    """
    u, v = below.velocity[axis], above.velocity[axis]
    a, b = below.sound(gamma), above.sound(gamma)
    slowest, fastest = Pointwise("minimum", (u - a, v - b)), Pointwise("maximum", (u + a, v + b))
    mass_below, mass_above = below.rho * (slowest - u), above.rho * (fastest - v)
    contact = (above.p - below.p + mass_below * u - mass_above * v) / (mass_below - mass_above)

    def upwind(x: Node, y: Node) -> Node:
        """The one of ``x`` (below) and ``y`` (above) on whose side of the contact wave the face lies."""
        return Pointwise("where", (contact > 0.0, x, y))

    gas = Gas(
        upwind(below.rho, above.rho),
        tuple(upwind(*pair) for pair in zip(below.velocity, above.velocity, strict=True)),
        upwind(below.p, above.p),
    )
    mass, speed = upwind(mass_below, mass_above), upwind(slowest, fastest)
    outwards = upwind(Pointwise("minimum", (slowest, Constant(0.0))), Pointwise("maximum", (fastest, Constant(0.0))))
    density = mass / (speed - contact)
    energy = gas.energy(gamma) / gas.rho + (contact - gas.velocity[axis]) * (contact + gas.p / mass)
    velocity = [contact if other == axis else w for other, w in enumerate(gas.velocity)]
    star = (density, *(density * w for w in velocity), density * energy)
    pairs = zip(gas.flux(axis, gamma), star, gas.conserved(gamma), strict=True)
    return tuple(flux + outwards * (inner - outer) for flux, inner, outer in pairs)


EQUATIONS: Family = {"euler": Euler}
