"""Absorbing layers at the ends of an axis, implemented as terms of the right-hand sides.

sponge  Damping, ∂u/∂t = ... - σ u, where σ grows with the square of the depth in the layer (M. Israeli & S. Orszag, J. Comput.
        Phys. 41 (1981) 115-135).
cpml    Convolutional perfectly matched layer. Each derivative along the axis is stretched, ∂_x -> ∂_x / s with s = 1 + σ / (α +
        i ω), which absorbs waves at any angle without reflection. In the time domain 1/s becomes an auxiliary field ψ, the
        memory, for each derivative: ∂_x u -> ∂_x u + ψ with ∂ψ/∂t = -(α + σ) ψ - σ ∂_x u. Second derivatives have a second one
        (D. Komatitsch & R. Martin, Geophysics 72 (2007) SM155-SM167, eq. (7)-(13); as a differential equation, R. Martin et
        al., CMES 56 (2010) 17-41).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from hpcstencil.config.boundary_conditions import SIDES, Condition
from hpcstencil.config.settings import Config
from hpcstencil.symbolic.expressions import (
    Constant,
    Coordinate,
    Derivative,
    DivGrad,
    Field,
    Halfway,
    Node,
    Pointwise,
    is_parameter_field,
    substitute,
    total,
    walk,
)
from hpcstencil.symbolic.staggering import Position, Positions, flipped, home
from hpcstencil.validation.errors import InputError

REFLECTED = 1e-4  # amplitude ratio of the reflection at normal incidence for which a cpml is designed
SHIFT = 0.3  # α width / speed of a cpml; α > 0 improves the absorption of waves at grazing incidence


@dataclass(frozen=True)
class Layered:
    """The right-hand sides with absorbing layers.

    ``trees`` are the time derivatives by field, including the added memory fields, which ``memory`` lists. ``rate`` is
    the fastest damping rate, in 1/time. ``positions`` holds all fields, including memory, that do not live at
    cell centres.
    """

    trees: Mapping[str, Node]
    memory: tuple[str, ...]
    rate: float
    positions: Positions


def add_absorbing_layers(
    trees: Mapping[str, Node], config: Config, speed: float, positions: Positions, positive: Collection[str] = ()
) -> Layered:
    """Add the absorbing layers that the boundary conditions request to the right-hand sides ``trees``.

    ``speed`` is the fastest wave speed, or 0 if unknown. The ``positive`` fields must not become 0, so they cannot
    have a sponge. Raises InputError if a layer is wider than the domain, if a cpml is thinner than a cell, if the wave
    speed is unknown, or if a layer does not suit the equation.
    """
    fields, rate = tuple(trees), 0.0
    result, memory = dict(trees), dict[str, Node]()
    sponges: dict[str, dict[int, Node]] = {}  # σ by field and axis
    places = dict(positions)
    for axis in range(config.grid.ndim):
        strongest = dict.fromkeys(fields, 0.0)
        for name, side, condition in _layers(config, fields, axis, "sponge"):
            if name in positive:
                letter = config.grid.axes[axis]
                raise InputError(
                    f"{_key(config, name, axis, side)}.sponge: damps fields to 0, but '{name}' must stay positive; give it a "
                    f"separate condition, boundary.{name} = {{ {letter} = {{ neumann = 0.0 }} }}"
                )
            width, strength = (float(value) for value in condition.values if value is not None)
            depth = _depth(config, f"{_key(config, name, axis, side)}.sponge", axis, side, width)
            sigmas, sigma = sponges.setdefault(name, {}), strength * depth**2
            sigmas[axis] = sigmas[axis] + sigma if axis in sigmas else sigma
            strongest[name] = max(strongest[name], strength)
        stretched: dict[str, tuple[Node, Node]] = {}
        inner_edges: dict[str, float] = {}  # of the layers at the lower end
        for name, side, condition in _layers(config, fields, axis, "cpml"):
            width = float(condition.values[0] or 0.0)
            if width < config.grid.spacing[axis]:
                raise InputError(
                    f"{_key(config, name, axis, side)}.cpml.width: expected at least a cell, {config.grid.spacing[axis]:g}, "
                    f"but got {width:g}; ten cells or more absorb well"
                )
            fastest = float(condition.values[1] or speed)
            if not fastest:
                key = f"{_key(config, name, axis, side)}.cpml.speed"
                raise InputError(f"{key}: expected the wave speed, which is not known for this equation; add it")
            strength, alpha = -1.5 * fastest * math.log(REFLECTED) / width, SHIFT * fastest / width
            sigma = strength * _depth(config, f"{_key(config, name, axis, side)}.cpml", axis, side, width) ** 2
            edge = config.grid.upper[axis] - width if side else config.grid.lower[axis] + width
            profile: tuple[Node, Node] = sigma, Constant(alpha)
            if name in stretched:
                profile = _joined(stretched[name], profile, Coordinate(axis) < (inner_edges[name] + edge) / 2)
            stretched[name], inner_edges[name] = profile, edge
            strongest[name] = max(strongest[name], strength + alpha)
        if stretched:
            stretching = Stretching(axis, config.grid.axes, stretched, positions)
            result = {name: substitute(tree, stretching.change) for name, tree in result.items()}
            memory.update(stretching.memory)
            places.update(stretching.places)
        rate += max(strongest.values())
    for name, sigmas in sponges.items():
        result[name] = result[name] - total([*sigmas.values()]) * Field(name)
    return Layered({**result, **memory}, tuple(memory), rate, places)


class Stretching:
    """The coordinate stretching of a cpml along one axis.

    `change` replaces derivatives by stretched ones and collects ``memory``, the time derivative of each memory field by
    name, and ``places``, the positions of those that do not live at cell centres. ``profiles`` maps each field with a
    layer to the trees (σ, α), both in 1/time.
    """

    def __init__(
        self, axis: int, axes: tuple[str, ...], profiles: Mapping[str, tuple[Node, Node]], positions: Positions
    ) -> None:
        self.axis, self.letter, self.profiles, self.positions = axis, axes[axis], profiles, positions
        self.places: dict[str, Position] = {}
        self.once = tuple(int(other == axis) for other in range(len(axes)))
        self.memory: dict[str, Node] = {}
        self.known: dict[Node, Node] = {}

    def change(self, part: Node) -> Node | None:
        """The replacement of a derivative along the axis, or None for other nodes. Pass it to `substitute`."""
        if not isinstance(part, Derivative | DivGrad | Halfway) or not self.concerned(part):
            return None
        if part not in self.known:
            self.known[part] = self.stretched(part)
        return self.known[part]

    def concerned(self, part: Derivative | DivGrad | Halfway) -> bool:
        """Whether ``part`` is a derivative along the axis, of an operand that contains a field with a layer."""
        along = part.orders[self.axis] > 0 if isinstance(part, Derivative) else part.axis == self.axis
        along = along and (not isinstance(part, Halfway) or part.kind == "difference")
        return along and not part.field_names.isdisjoint(self.profiles)

    def stretched(self, part: Derivative | DivGrad | Halfway) -> Node:
        """The stretched form of a derivative, whose memory fields are added.

        Raises InputError for mixed or biased derivatives, orders above 2, and operands other than a field.
        """
        operand = part.operand
        plain = not isinstance(part, Derivative) or (sum(part.orders) == part.orders[self.axis] <= 2 and part.bias == 0)
        coefficients = [child for child in part.children if child != operand]
        if (
            not plain
            or not isinstance(operand, Field)
            or any(isinstance(p, Field) and not is_parameter_field(p) for c in coefficients for p in walk(c))
        ):
            raise InputError(
                f"boundary.{self.letter}: cpml requires that each derivative is a first or second derivative of a field "
                "along one axis, as in wave equations; use a sponge here"
            )
        name = operand.name
        if isinstance(part, Halfway):
            key = f"{name}.psi_{self.letter}"
            self.places[key] = flipped(home(name, self.positions, len(self.once)), self.axis)
            return part + self.remember(key, name, part)
        first = Derivative(operand, self.once)
        psi = self.remember(f"{name}.psi_{self.letter}", name, first)
        if part == first:
            return part + psi
        if isinstance(part, DivGrad):
            flux = part + Derivative(part.coefficient * psi, self.once)
        else:
            flux = part + Derivative(psi, self.once)
        count = sum(key.startswith(f"{name}.zeta_{self.letter}") for key in self.memory)
        return flux + self.remember(f"{name}.zeta_{self.letter}{count or ''}", name, flux)

    def remember(self, key: str, name: str, rate: Node) -> Node:
        """The memory field called ``key`` for ``rate``, a derivative of the field ``name``. Its equation is added to
        ``memory``."""
        sigma, alpha = self.profiles[name]
        self.memory.setdefault(
            key, total([Constant(-1.0) * (sigma + alpha) * Field(key), Constant(-1.0) * sigma * rate])
        )
        return Field(key)


def _joined(lower: tuple[Node, Node], upper: tuple[Node, Node], is_lower: Node) -> tuple[Node, Node]:
    """(σ, α) of an axis with a layer at each end. σ is 0 outside of its layer, and α is that of the nearer layer."""
    alpha = lower[1] if lower[1] == upper[1] else Pointwise("where", (is_lower, lower[1], upper[1]))
    return lower[0] + upper[0], alpha


def _depth(config: Config, key: str, axis: int, side: int, width: float) -> Node:
    """The relative depth in a layer, as a tree: 1 at the boundary, 0 at the inner edge of the layer and further inside.

    Raises InputError, which names the ``key`` of the layer, if it is wider than the domain.
    """
    lower, upper = config.grid.lower[axis], config.grid.upper[axis]
    if width > upper - lower:
        raise InputError(
            f"{key}.width: expected at most the extent of the axis, {upper - lower:g}, but got {width:g}; make it smaller"
        )
    distance = Coordinate(axis) - lower if side == 0 else upper - Coordinate(axis)
    return Pointwise("maximum", (Constant(0.0), 1.0 - distance / width))


def _key(config: Config, name: str, axis: int, side: int) -> str:
    """The dotted key of the condition of a field on one side of an axis, for messages."""
    own = config.boundary.fields.get(name, (None,) * config.grid.ndim)[axis]
    return f"boundary.{f'{name}.' if own else ''}{config.grid.axes[axis]}.{SIDES[side]}"


def _layers(config: Config, fields: tuple[str, ...], axis: int, kind: str) -> Iterator[tuple[str, int, Condition]]:
    """Yield (field, side, condition) for each layer of one ``kind`` at the ends of an axis."""
    for name in fields:
        for side in (0, 1):
            condition = config.boundary.condition(name, axis, side)
            if condition.kind == kind:
                yield name, side, condition
