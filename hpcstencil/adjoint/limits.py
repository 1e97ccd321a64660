"""The limits of the unknowns of a fit: bounds, scales, smoothing lengths and frozen cells, from the table [fit]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcstencil.adjoint.unknowns import CellValues, NumberParameter, SeriesParameter, Unknown
from hpcstencil.config.settings import FitConfig
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.build import expression_of_field
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Node, Parameter, walk
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, wrong
from hpcstencil.validation.schema import expression_text


@dataclass(frozen=True)
class Limits:
    """The limits of one unknown of a fit.

    ``lower``, ``upper`` and ``frozen`` are trees of coordinates and parameters; None if they are not given. A cell is frozen
    where ``frozen`` is not 0. ``scale`` is the typical size of the unknown; None for that of its start. ``smoothing`` is a
    length in the unit of the input, for a time series a time; 0 for none.
    """

    lower: Node | None
    upper: Node | None
    scale: float | None
    smoothing: float
    frozen: Node | None


def limits_of(problem: Problem, unknowns: tuple[Unknown, ...], fit: FitConfig) -> dict[str, Limits]:
    """The limits of each unknown, by its key.

    Raises InputError for malformed expressions, for frozen cells and bounds that depend on the place if the unknown is a number
    or a time series, for smoothing of a number, and for a number that does not begin within its bounds.
    """
    return {one.key: _limits(problem, one, fit) for one in unknowns}


def _limits(problem: Problem, one: Unknown, fit: FitConfig) -> Limits:
    is_number = isinstance(one, NumberParameter)
    if not isinstance(one, CellValues):
        kind, refused = ("number", ("smoothing", "frozen")) if is_number else ("time series", ("frozen",))
        for table in refused:
            if one.key in fit.by_name[table]:
                raise InputError(f"{at('fit', table, one.key)}: expected a field, but {one.key} is a {kind}; remove it")
        for table in ("lower", "upper"):
            value = fit.by_name[table].get(one.key, 0.0)
            if isinstance(value, str):
                raise wrong(at("fit", table, one.key), f"a number, as {one.key} is a {kind}", value, "write a number")
    lower, upper = fit.lower.get(one.key), fit.upper.get(one.key)
    if isinstance(lower, float) and isinstance(upper, float) and lower > upper:
        raise wrong(at("fit", "lower", one.key), f"at most the upper bound, {upper:g}", lower, "swap the two")
    for start in np.atleast_1d(problem.parameters[one.name]) if is_number else ():  # of each member
        if lower is not None and start < float(lower):
            raise outside("lower", one.key, f"its value {start:g}", f"{lower:g}")
        if upper is not None and start > float(upper):
            raise outside("upper", one.key, f"its value {start:g}", f"{upper:g}")

    def tree(table: str, given: Mapping[str, float | str]) -> Node | None:
        if one.key not in given:
            return None
        key = at("fit", table, one.key)
        found = expression_of_field(problem, one.name, expression_text(given[one.key]), key)
        for part in walk(found) if problem.members else ():
            if isinstance(part, Parameter) and np.ndim(problem.parameters[part.name]):
                raise InputError(
                    f"{key}: expected no parameter in which the members of the ensemble differ, but got {part.name}; write a "
                    "number"
                )
        return found

    return Limits(
        lower=tree("lower", fit.lower),
        upper=tree("upper", fit.upper),
        scale=fit.scale.get(one.key),
        smoothing=fit.smoothing.get(one.key, 0.0),
        frozen=tree("frozen", fit.frozen),
    )


def outside(table: str, key: str, start: str, bound: str) -> InputError:
    """Make the error for the unknown ``key`` whose ``start`` is outside a ``bound`` of the table; both in words."""
    side = "at most" if table == "lower" else "at least"
    return InputError(
        f"{at('fit', table, key)}: expected a bound of {side} {start} where the fit begins, but got {bound}; "
        "change the bound or the start"
    )


def plan_of_fit(problem: Problem, unknowns: tuple[Unknown, ...], fit: FitConfig, topology: Topology) -> tuple[str, int]:
    """Return (description of a fit in words, bytes of its vectors on the largest block). Raises the InputError of
    `limits_of`."""
    limits = limits_of(problem, unknowns, fit)
    kinds = NumberParameter, CellValues, SeriesParameter
    numbers, fields, series = (sum(isinstance(one, kind) for one in unknowns) for kind in kinds)
    counted = [
        f"{count} {kind}{'s' * (count > 1)}" for count, kind in ((numbers, "number"), (fields, "field")) if count
    ]
    found = listing([*counted, *([f"{series} time series"] if series else [])])
    bounded = any(one.lower is not None or one.upper is not None for one in limits.values())
    words = f"{found} by {fit.method}{' with bounds' * bounded}, at most {fit.steps} iterations with a history of {fit.history}"
    vectors = 2 * fit.history + 4  # the history has pairs; unknowns and gradients before and after a step
    cells = math.prod(stop - start for start, stop in topology.block(0))
    return words, vectors * fields * cells * np.dtype(problem.config.numerics.precision).itemsize
