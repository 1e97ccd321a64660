"""The entries of gradient.of: what an objective is differentiated with respect to. Each kind is a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hpcstencil.adjoint.names import ADJOINT, GRADIENT
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import PARAMETER_FIELD, Node, Parameter, Series, parameter_field
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, unknown


@dataclass(frozen=True)
class Unknown:
    """An entry of gradient.of, with the ``key`` TABLE.NAME of the input."""

    key: str
    name: str


@dataclass(frozen=True)
class CellValues(Unknown):
    """An unknown with one value per cell."""

    prefix_of_values: ClassVar[str]
    prefix_of_gradient: ClassVar[str]

    @property
    def values_field(self) -> str:
        """The field of the run that holds its values."""
        return self.prefix_of_values + self.name

    @property
    def gradient_field(self) -> str:
        """The field of the adjoint problem that holds its gradient at the end of the reverse sweep."""
        return self.prefix_of_gradient + self.name


@dataclass(frozen=True)
class InitialValues(CellValues):
    """The initial values of the field ``name``."""

    prefix_of_values = ""
    prefix_of_gradient = ADJOINT


@dataclass(frozen=True)
class ArrayParameter(CellValues):
    """The parameter ``name`` of the equation, which has one value per cell."""

    prefix_of_values = PARAMETER_FIELD
    prefix_of_gradient = GRADIENT

    @property
    def node(self) -> Node:
        """The parameter in trees."""
        return parameter_field(self.name)


@dataclass(frozen=True)
class NumberParameter(Unknown):
    """The parameter ``name`` of the equation, which is a number."""

    @property
    def node(self) -> Node:
        """The parameter in trees."""
        return Parameter(self.name)

    @property
    def gradient_field(self) -> str:
        """The field of the adjoint problem whose sum over all cells is the gradient at the end of the reverse sweep."""
        return GRADIENT + self.name


@dataclass(frozen=True)
class SeriesParameter(Unknown):
    """The parameter ``name`` of the equation, a time series with a sample every ``dt``. Its gradient is in the fields of
    `HatFunctions`."""

    dt: float

    def node_in(self, problem: Problem) -> Series:
        """The parameter in the trees of a problem."""
        series = problem.symbols[self.name]
        assert isinstance(series, Series)
        return series


def unknowns_of(
    problem: Problem, keys: Sequence[str] | None = None, given_as: str = "gradient.of"
) -> tuple[Unknown, ...]:
    """The unknowns with these ``keys``, or the entries of gradient.of.

    Raises InputError for names that the problem does not have or that have no gradient yet; its message says that the keys are
    ``given_as``.
    """
    found = tuple(_unknown(problem, key, given_as) for key in (problem.config.gradient.of if keys is None else keys))
    if not found:
        raise InputError(
            f'{given_as}: expected names such as "initial.u" or "equation.D", but got none; list the quantities to '
            "differentiate with respect to"
        )
    return found


def _unknown(problem: Problem, key: str, given_as: str) -> Unknown:
    table, _, name = key.partition(".")
    if table == "initial" and name in problem.shown:
        return InitialValues(key, name)
    if table == "equation" and name in problem.symbols:
        found = _parameter(problem, key, name)
        if found is None:
            raise InputError(
                f"{given_as}: expected a number, an array with one value per cell or a time series, but {key} is an "
                "expression; give one of those"
            )
        _refuse_strength_of_cpml(problem, key, given_as)
        return found
    known = [at("initial", field) for field in problem.shown]
    known += [at("equation", each) for each in problem.symbols if _parameter(problem, at("equation", each), each)]
    raise unknown(given_as, "name", key, known)


def _parameter(problem: Problem, key: str, name: str) -> Unknown | None:
    """The parameter ``name`` as an unknown; None for an expression."""
    node = problem.symbols[name]
    if isinstance(node, Series):
        return SeriesParameter(key, name, problem.config.equation.series[name].dt)
    kinds = {Parameter(name): NumberParameter, parameter_field(name): ArrayParameter}
    return kinds[node](key, name) if node in kinds else None


def _refuse_strength_of_cpml(problem: Problem, key: str, given_as: str) -> None:
    boundary = problem.config.boundary
    kinds = [
        boundary.condition(field, axis, side)
        for field in problem.shown
        for axis in range(problem.config.grid.ndim)
        for side in (0, 1)
    ]
    if any(condition.kind == "cpml" and condition.values[1] is None for condition in kinds):
        raise InputError(
            f"{given_as}: not available yet for {key}, because the strength of a cpml layer follows from the parameters; give "
            "the layer a speed"
        )
