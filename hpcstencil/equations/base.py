"""The interface of an equation: its fields, its parameters, its right-hand side as a tree, and bounds on its rates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar, Protocol, runtime_checkable

from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.operators import Space


@dataclass(frozen=True)
class Rates:
    """Bounds on the coefficients of the linearized equation, from which the stable step follows (`stability`). All but
    ``velocity`` are non-negative.

    ``diffusion`` D of D ∇² in length²/time, ``biharmonic`` K of -K ∇⁴ in length⁴/time, ``velocity`` per axis and
    ``wave`` speed in length/time, ``upwind`` the fastest signal per axis of an upwind scheme in length/time,
    ``dispersion`` B of i B ∇² in length²/time, ``reaction`` and ``rotation`` (decay and oscillation in one cell) in
    1/time.
    """

    diffusion: float = 0.0
    biharmonic: float = 0.0
    velocity: Sequence[float] = ()
    wave: float = 0.0
    upwind: Sequence[float] = ()
    dispersion: float = 0.0
    reaction: float = 0.0
    rotation: float = 0.0


class Equation(Protocol):
    """The interface of built-in equations and users' classes.

    ``parameters`` maps the name of each parameter to its default.
    """

    parameters: ClassVar[Mapping[str, float]]

    def fields(self, ndim: int) -> tuple[str, ...]:
        """The names of the unknowns on a grid with ``ndim`` axes."""
        ...

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        """The time derivative of each field, by name. ``f`` and ``p`` hold the fields and parameters as nodes, by name;
        ``space`` has the operators. The method is called before the first step, and sees no arrays."""
        ...


Family = Mapping[str, type[Equation]]  # equations by the names that inputs give them


@runtime_checkable
class Limited(Equation, Protocol):
    """An equation that knows its rates, from which `time.cfl` derives the step. ``solution_dependent`` says that
    `rates` uses ``largest``, so that the step must be derived again as the solution changes."""

    solution_dependent: ClassVar[bool]

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        """Bounds for the stable step on a grid with ``ndim`` axes. ``p`` holds the largest magnitude of each parameter,
        and ``largest`` that of each field and signal, by name."""
        ...


@runtime_checkable
class Signalling(Limited, Protocol):
    """An equation whose `rates` needs more than the largest magnitudes of the fields."""

    def signals(self, f: SimpleNamespace, p: SimpleNamespace, ndim: int) -> dict[str, Node]:
        """Expressions of the fields, without derivatives, by name. `rates` receives their largest magnitudes in
        ``largest`` under these names."""
        ...


@runtime_checkable
class Staggered(Equation, Protocol):
    """An equation with fields that do not live at cell centres."""

    def positions(self, ndim: int) -> Mapping[str, tuple[int, ...]]:
        """The position of each field that does not live at cell centres: for each axis, 1 if the field lives on the
        lower faces of cells, else 0."""
        ...


@runtime_checkable
class Walled(Equation, Protocol):
    """An equation in which only fields that live on a boundary take values there. A boundary value given for all fields
    applies to those fields, and means no flux for the others. ``values_live_on_walls`` is true."""

    values_live_on_walls: ClassVar[bool]


@runtime_checkable
class Positive(Equation, Protocol):
    """An equation that is meaningless where one of the ``positive`` fields is 0, such as a density."""

    positive: ClassVar[tuple[str, ...]]


@runtime_checkable
class Reflecting(Equation, Protocol):
    """An equation with fields that change sign when mirrored at a wall, such as the momentum normal to the wall."""

    def reflected(self, axis: int) -> Collection[str]:
        """The names of the fields that change sign when mirrored at a wall across ``axis``."""
        ...


@runtime_checkable
class Split(Equation, Protocol):
    """An equation with a damping part that the multistep method "ab2" leaves to a step of forward Euler after its own
    step, because multistep methods handle damping poorly. Every other method takes both parts together."""

    def damping(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        """The damping part of the time derivative, by name, for the fields that have one; `rhs` does not include it.
        The arguments are those of `rhs`."""
        ...


@runtime_checkable
class Radiating(Equation, Protocol):
    """An equation that knows how its waves leave the domain through an open end."""

    def radiation(self, f: SimpleNamespace, p: SimpleNamespace) -> dict[str, Node]:
        """For purely outgoing waves, the outward normal derivative of each field of which the equation takes
        derivatives, by name. The derivatives are expressions of the fields next to the face."""
        ...
