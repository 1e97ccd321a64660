"""The interface of an equation: fields, parameters, right-hand side, and optional methods for particular features.

An equation has the form ∂u/∂t = rhs(u) for each field u. `Equation` is required; the other protocols are recognized by
their methods and attributes: for example, a class with the method `positions` is `Staggered`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar, Protocol, runtime_checkable

from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.operators import Space


@dataclass(frozen=True)
class Rates:
    """Bounds on the coefficients of the linearized equation, from which `stability` derives the stable step.

    All are in the units of the input, and all but ``velocity`` are non-negative.

    - ``diffusion``: D of D ∇², in length²/time
    - ``biharmonic``: K of -K ∇⁴, in length⁴/time
    - ``velocity``: advection velocity per axis, in length/time
    - ``wave``: wave speed, in length/time
    - ``upwind``: fastest signal speed per axis of an upwind scheme, in length/time
    - ``dispersion``: B of i B ∇², in length²/time
    - ``reaction``: rate of local decay, in 1/time
    - ``rotation``: angular frequency of local oscillation, in 1/time
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
    """The interface that built-in and user-defined equations must have.

    ``parameters`` maps the name of each parameter to its default.
    """

    parameters: ClassVar[Mapping[str, float]]

    def fields(self, ndim: int) -> tuple[str, ...]:
        """The names of the unknowns on a grid with ``ndim`` axes."""
        ...

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        """The time derivative of each field, as a tree, by the name of the field.

        ``f`` and ``p`` have the fields and the parameters as attributes, which are nodes of a tree, not arrays.
        ``space`` has the operators, such as ``space.laplacian``. The method is called once, before the first step.
        """
        ...


Family = Mapping[str, type[Equation]]  # classes by the value of equation.name in the input


@runtime_checkable
class SupportsCfl(Equation, Protocol):
    """An equation with bounds on its rates, which `time.cfl` requires.

    ``solution_dependent`` says whether `rates` uses ``largest``, so that the stable step changes with the solution.
    """

    solution_dependent: ClassVar[bool]

    def rates(self, p: SimpleNamespace, largest: Mapping[str, float], ndim: int) -> Rates:
        """Bounds on the rates, on a grid with ``ndim`` axes.

        ``p`` has the largest magnitude of each parameter as an attribute. ``largest`` maps the name of each field and
        signal to its largest magnitude on the global grid. All are floats.
        """
        ...


@runtime_checkable
class SupportsCflSignals(SupportsCfl, Protocol):
    """An equation whose `rates` needs largest magnitudes of functions of the fields, such as the speed of sound."""

    def signals(self, f: SimpleNamespace, p: SimpleNamespace, ndim: int) -> dict[str, Node]:
        """Trees of the fields, without derivatives, by name.

        `rates` receives their largest magnitudes in ``largest`` under these names. ``f`` and ``p`` are as in `rhs`.
        """
        ...


@runtime_checkable
class Staggered(Equation, Protocol):
    """An equation on a staggered grid, with fields that do not live at cell centres."""

    def positions(self, ndim: int) -> Mapping[str, tuple[int, ...]]:
        """The position of each field that does not live at cell centres, by name.

        A position has one entry per axis: 1 if the field lives on the lower faces of cells along that axis, else 0.
        """
        ...


@runtime_checkable
class ValuesLiveOnWalls(Equation, Protocol):
    """An equation in which only the fields that live on a boundary have prescribed values there.

    A boundary value given for all fields applies to those fields, and means no flux for the others, as for the
    tangential B at a conductor. ``values_live_on_walls`` is True.
    """

    values_live_on_walls: ClassVar[bool]


@runtime_checkable
class HasPositiveFields(Equation, Protocol):
    """An equation that is singular where one of the fields named in ``positive`` is 0, such as a density."""

    positive: ClassVar[tuple[str, ...]]


@runtime_checkable
class HasReflectedFields(Equation, Protocol):
    """An equation with fields that change sign on reflection at a wall, such as the momentum normal to the wall."""

    def reflected(self, axis: int) -> Collection[str]:
        """The names of the fields that change sign on reflection at a wall normal to ``axis``."""
        ...


@runtime_checkable
class HasDamping(Equation, Protocol):
    """An equation whose right-hand side is split into `rhs` and a damping part.

    The multistep method "ab2", which handles damping poorly, advances the damping part by a forward Euler step after its
    own step. All other methods add both parts.
    """

    def damping(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        """The damping part of the time derivative, by field, for the fields that have one. `rhs` must not include it.

        The arguments are the same as in `rhs`.
        """
        ...


@runtime_checkable
class SupportsOpenBoundary(Equation, Protocol):
    """An equation that supports the boundary condition `open`, through which waves leave the domain."""

    def radiation(self, f: SimpleNamespace, p: SimpleNamespace) -> dict[str, Node]:
        """The outward normal derivative ∂/∂n that each field has in a purely outgoing wave, by name.

        It is a tree of the fields in the cell next to the boundary. Fields of which the equation takes no spatial
        derivative may be left out. ``f`` and ``p`` are as in `rhs`.
        """
        ...
