"""What a state of a run adds to the objective, and the derivatives of this with respect to the state and the unknowns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from hpcstencil.adjoint.names import END, OBJECTIVE, SAMPLED, SEED
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.run_steps import RunSteps, added_at
from hpcstencil.adjoint.unknowns import NumberParameter
from hpcstencil.backends.backend import Reductions
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.derivative_sums import IN_OBJECTIVE, sums_of
from hpcstencil.gradient.extreme_cells import extreme_cells, objective_fields
from hpcstencil.gradient.sample_derivatives import SampleDerivatives
from hpcstencil.gradient.spare_arrays import SpareArrays
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Node, Time
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS
from hpcstencil.validation.errors import NumericsError

NO_SUMS: Mapping[str, float] = {}


@dataclass(frozen=True)
class Term:
    """What a state adds to the objective and its derivatives.

    ``cotangents`` are the derivatives per cell, by the fields adjoint.u and gradient.p. ``direct`` are those with respect to
    numbers outside of reductions, by name, and ``series`` those with respect to the values of time series, by key.
    """

    value: float
    cotangents: Fields
    direct: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ObjectiveTerms:
    """The terms of the objective of a reverse sweep.

    ``sum_of_array`` is the sum of an array that is laid out like a field, and ``spare`` the memory for new fields. The others
    are those of `ReverseSweep`.
    """

    forward: ComposedSimulation
    adjoint: Adjoint
    backward: ComposedSimulation
    run: RunSteps
    data: Fields
    samples: SampleDerivatives | None
    sum_of_array: Reductions
    spare: SpareArrays

    @cached_property
    def reduced_at(self) -> range:
        """The numbers of steps after which reductions over the grid add to the objective."""
        return added_at(self.forward.problem, self.run)

    @cached_property
    def sampled_at(self) -> range:
        """The numbers of steps after which samples of receivers add to the objective."""
        return range(0, self.run.total + 1 if self.samples else 0, self.forward.problem.adds_every or 1)

    @cached_property
    def record_times(self) -> list[float]:
        """The times at which receivers record samples that add to the objective."""
        return [] if self.samples is None else self.samples.times(self.run)

    def value(self, fields: Fields, step: int, sums: Mapping[str, float]) -> float:
        """Return what the fields after a number of steps add to the objective. Collective. ``sums`` are as in `reduced`."""
        return float(self.reduced(self.objective_fields(fields, step), step, sums)[OBJECTIVE])

    def reduced(self, fields: Fields, step: int, sums: Mapping[str, float]) -> dict[str, Any]:
        """Return the objective for these fields after a number of steps, and each of its reductions, by name. Collective.

        The fields are those of `objective_fields`. ``sums`` are its sums over receivers, by the names of their nodes.
        """
        trees, parameters = self.backward.problem.diagnostics, {**self.forward.problem.parameters, **sums}
        return Diagnostics(trees, self.backward.diagnosed, parameters).evaluate(fields, self.run.time_of(step))

    def objective_fields(self, fields: Fields, step: int) -> Fields:
        """The fields after a number of steps with all others that the objective reads. Collective."""
        return objective_fields(self.forward, fields, self.data, self.run.time_of(step))

    def at(self, fields: Fields, step: int, sums: Mapping[str, float] = NO_SUMS) -> list[Term]:
        """Return what the fields after a number of steps add to the objective and its derivatives. Collective.

        The fields are kept. What samples add with constant weights is left to `ReverseSweep.with_sample`. Raises NumericsError,
        on all processes, if a value is not finite.
        """
        found = [self.reduced_term(fields, step, sums)] if step in self.reduced_at else []
        if step in self.sampled_at and not self.adjoint.injected:
            found.append(self.sampled_term(fields, step))
        return found

    def finite(self, value: float, time: float) -> float:
        """Return a term of the objective. Raises NumericsError unless it is finite."""
        if not math.isfinite(value):
            raise NumericsError(
                f"objective: expected a finite value, but got {value} at t = {time:g}; take shorter steps, or change it"
            )
        return value

    def sampled_term(self, fields: Fields, step: int) -> Term:
        """The derivatives of the samples of receivers in `at`."""
        assert self.samples is not None
        parameters, time = self.forward.problem.parameters, self.run.time_of(step)
        trees, given = self.backward.problem.derived.get(SAMPLED, {}), {**fields, **self.samples.seeds(step)}
        of_cells = self.backward.derived[SAMPLED](given, parameters, time) if trees else ()
        found, series = self.without_series(dict(zip(trees, of_cells, strict=True)))
        return Term(0.0, found, series=series)

    def reduced_term(self, fields: Fields, step: int, sums: Mapping[str, float]) -> Term:
        """The term of reductions over the grid in `at`, and of ``sums`` over receivers, by the names of their nodes."""
        parameters, time = {**self.forward.problem.parameters, **sums}, self.run.time_of(step)
        problem, given = self.backward.problem, self.objective_fields(fields, step)
        found = self.reduced(given, step, sums)
        value = self.finite(float(found[OBJECTIVE]), time)
        known: dict[Node, Any] = {**numpy_evaluate.by_node(parameters), Time(): time}
        known |= {part: found[f"{OBJECTIVE} {n}"] for n, part in enumerate(self.adjoint.reductions)}
        grid, extreme = problem.config.grid, dict[str, float]()
        seeds = dict[str, float]()
        for n, (part, slope) in enumerate(zip(self.adjoint.reductions, self.adjoint.slopes, strict=True)):
            kind = REDUCTIONS[part.kind]
            slopes, of_cell = extreme if kind.extreme else seeds, kind.slope(grid.cells, grid.cell_volume)
            slopes[SEED + str(n)] = float(numpy_evaluate.evaluate(slope, values=known)) * of_cell
        direct = {
            name: float(numpy_evaluate.evaluate(tree, values=known)) for name, tree in self.adjoint.direct.items()
        }
        if self.samples is not None:
            weights = [float(numpy_evaluate.evaluate(slope, values=known)) for slope in self.adjoint.sum_slopes]
            for name, inside in self.samples.weigh(weights, self.record_times).items():
                direct[name] += inside
        trees, of_cells = problem.derived[END], list[jax.Array]()
        if trees:
            filled = self.spare.filled(seeds, fields[self.adjoint.forward.changing[0]])
            if extreme:
                filled |= self.at_extrema(extreme, given, time)
            of_cells = self.backward.derived[END]({**given, **filled}, parameters, time)
            self.spare.add(filled)
        cotangents, series = self.without_series(dict(zip(trees, of_cells, strict=True)))
        of_series = {
            key: float(numpy_evaluate.evaluate(tree, values=known)) for key, tree in self.adjoint.direct_series.items()
        }
        own = {
            one.key: direct[one.name] for one in self.adjoint.unknowns if isinstance(one, NumberParameter)
        } | of_series
        for key, derivative in own.items():
            if not math.isfinite(derivative):
                raise NumericsError(
                    f"gradient: expected a finite derivative of the objective with respect to {key}, but got {derivative} at "
                    f"t = {time:g}; {IN_OBJECTIVE}"
                )
        series |= {key: series.get(key, 0.0) + derivative for key, derivative in of_series.items()}
        return Term(value, cotangents, direct, series)

    def at_extrema(self, slopes: Mapping[str, float], fields: Fields, time: float) -> Fields:
        """Return the derivatives with respect to the cells of minima and maxima, by the names of their fields SEED. Collective.

        They are those with respect to the extrema, ``slopes``, in the cells that have this value, divided equally among these.
        """
        found = extreme_cells(self.backward, fields, self.forward.problem.parameters, time)
        counts = self.forward.communicator.total(np.array([here.sum() for here in found.values()]))
        shares = {name: slopes[name] / max(int(count), 1) for name, count in zip(found, counts, strict=True)}
        return self.forward.put(
            {name: (here * shares[name]).astype(self.forward.dtype) for name, here in found.items()}
        )

    def without_series(self, found: Fields) -> tuple[Fields, dict[str, float]]:
        """Return the derivatives per cell by field, and the sums of those with respect to the values of series, by key.

        Collective. Raises NumericsError, on all processes, if one of the latter is not finite.
        """
        key_of = {hats.prefix: key for key, hats in self.adjoint.hats.items()}
        of_series = {key_of[name]: array for name, array in found.items() if name in key_of}
        parameters = self.forward.problem.parameters
        sums = {
            key: float(sums_of([key], self.sum_of_array, {self.adjoint.any_field: array}, parameters)[0])
            for key, array in of_series.items()
        }
        return {name: array for name, array in found.items() if name not in key_of}, sums
