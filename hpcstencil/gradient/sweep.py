"""The reverse sweep: the objective at the end of a run, and its derivatives with respect to the unknowns.

The run is taken forwards by the backend of the problem. Its steps are reversed one after the other, the last first
(`adjoint.stages`). Each stage of a reverse step is one step of the adjoint problem, which a backend computes with the same
halos and the same bits for every decomposition as any other step. States come from a schedule (`adjoint.checkpointing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from hpcstencil.adjoint.checkpointing import Advance, actions
from hpcstencil.adjoint.problem import ADJOINT, END, GRADIENT, OBJECTIVE, SEED, START, TRANSPOSED, Adjoint
from hpcstencil.adjoint.stages import TransposedStage, transposed_stages
from hpcstencil.backends.backend import Reductions
from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.schedule import Clock, Schedule, StepRange
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field, Node, Time
from hpcstencil.validation.errors import NumericsError

Terms = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Result:
    """The objective and its gradient.

    ``numbers`` are the derivatives with respect to numbers, equal on all processes, and ``arrays`` those with respect to the
    value in each cell, laid out on the devices like a field, both by the entry of gradient.of.
    """

    value: float
    numbers: Mapping[str, float]
    arrays: Mapping[str, jax.Array]


@dataclass(frozen=True)
class Sweep:
    """A problem and its adjoint on this process: ``forward`` takes the steps, ``backward`` those of the adjoint problem.

    Both have the same blocks. ``data`` are the fields of the objective's data on the devices.
    """

    forward: Simulation
    adjoint: Adjoint
    backward: Simulation
    data: Fields

    @cached_property
    def schedule(self) -> Schedule:
        """The steps of the run, without other events."""
        time = self.forward.problem.config.time
        return Schedule(time.end, time.dt)

    @cached_property
    def steps(self) -> int:
        """The number of steps of the run."""
        total = self.schedule.total_steps
        assert total is not None  # `adjoint_of` refuses steps of other sizes
        return total

    @cached_property
    def changing(self) -> tuple[str, ...]:
        """The names of the fields that the steps change."""
        return tuple(self.forward.problem.trees)

    @cached_property
    def stages(self) -> list[TransposedStage]:
        """The stages of a reverse step."""
        problem = self.forward.problem
        return transposed_stages(problem.method, problem.groups, self.changing)

    @cached_property
    def slopes(self) -> Body:
        """The function (fields, parameters, t) -> time derivatives by field."""
        return self.forward.steps.slopes()

    @cached_property
    def combined(self) -> Body:
        """The function (arrays, weights) -> weighted sums of arrays, all by name: each a new array."""

        def body(arrays: Mapping[str, Sequence[jax.Array]], weights: Mapping[str, jax.Array]) -> Fields:
            result = {}
            for name, terms in arrays.items():
                scaled = [weights[name][n].astype(array.dtype) * array for n, array in enumerate(terms)]
                result[name] = scaled[0]
                for term in scaled[1:]:
                    result[name] = result[name] + term
            return result

        return self.forward.device_grid.compiled(body, 1)

    @cached_property
    def sums(self) -> Reductions:
        """The reductions of the gradients per cell, whose sums are the gradients with respect to numbers."""
        return self.backward.steps.reductions({}, [Field(one.field) for one in self.adjoint.unknowns])

    # ---- the sweep ---------------------------------------------------------------------------------------------------

    def __call__(self, fields: Fields, states: int) -> Result:
        """Return the objective and its gradient for a run that begins with ``fields`` at t = 0. Collective.

        ``states`` is the number of stored states. The fields are kept. Raises NumericsError, on all processes, if the
        objective or its gradient is not finite.
        """
        constant = {name: array for name, array in fields.items() if name not in self.changing}
        stored = {0: {name: fields[name] for name in self.changing}}
        value, cotangents = math.nan, dict[str, Any]()
        direct: Mapping[str, float] = {}
        for action in actions(self.steps, states):
            if isinstance(action, Advance):
                found = self.advanced({**stored[action.first], **constant}, action.first, action.last)
                if action.last < self.steps:
                    stored[action.last] = {name: found[name] for name in self.changing}
                else:
                    value, cotangents, direct = self.at_end(found)
                continue
            cotangents = self.reversed_step(stored[action.step], constant, cotangents, action.step)
            if action.step:
                del stored[action.step]
        return self.result(value, self.at_start(cotangents, constant), direct)

    def ranges(self, first: int, last: int) -> Iterator[StepRange]:
        """Yield the steps from number ``first`` to ``last``, in ranges of equal size."""
        clock = Clock(first, self.schedule.time_of(first))
        while clock.step < last:
            leap = self.schedule.leap(clock, 0.0, last - clock.step)
            yield leap.steps
            clock = leap.after

    def advanced(self, fields: Fields, first: int, last: int) -> Fields:
        """Return the fields after the steps from ``first`` to ``last``. The given fields are kept."""
        fields = self.sums_of(
            {name: [(1.0, array)] for name, array in fields.items()}
        )  # copies, which the steps overwrite
        for steps in self.ranges(first, last):
            fields = jax.block_until_ready(self.forward.advance(fields, steps))
        return fields

    def reduced(self, fields: Fields) -> dict[str, Any]:
        """Return the objective for these fields at the end of the run, and each of its reductions, by name. Collective."""
        trees, parameters = self.backward.problem.diagnostics, self.forward.problem.parameters
        return Diagnostics(trees, self.backward.diagnosed, parameters).evaluate(
            {**fields, **self.data}, self.schedule.end
        )

    def at_end(self, fields: Fields) -> tuple[float, Fields, Mapping[str, float]]:
        """Return (objective, its derivatives at the end of the run by field of the adjoint problem, those with respect to
        numbers outside of reductions)."""
        parameters, time = self.forward.problem.parameters, self.schedule.end
        problem, given = self.backward.problem, {**fields, **self.data}
        found = self.reduced(fields)
        value = float(found[OBJECTIVE])
        if not math.isfinite(value):
            raise NumericsError(
                f"objective: expected a finite value, but got {value} at t = {time:g}; take shorter steps, or change it"
            )
        known: dict[Node, Any] = {**numpy_evaluate.by_node(parameters), Time(): time}
        known |= {part: found[f"{OBJECTIVE} {n}"] for n, part in enumerate(self.adjoint.reductions)}
        seeds, cells = {}, [stop - start for start, stop in self.forward.ranges]
        grid = problem.config.grid
        for n, (part, slope) in enumerate(zip(self.adjoint.reductions, self.adjoint.slopes, strict=True)):
            weight = float(numpy_evaluate.evaluate(slope, values=known))
            weight *= grid.cell_volume if part.kind == "integral" else 1.0 / grid.cells
            seeds[SEED + str(n)] = np.full(cells, weight, self.forward.dtype)
        of_cells = self.backward.derived[END]({**given, **self.forward.put(seeds)}, parameters, time)
        direct = {
            name: float(numpy_evaluate.evaluate(tree, values=known)) for name, tree in self.adjoint.direct.items()
        }
        return value, dict(zip(problem.derived[END], of_cells, strict=True)), direct

    def at_start(self, cotangents: Fields, constant: Fields) -> Fields:
        """Return the derivatives at t = 0, to which the parameters in initial expressions have contributed."""
        problem = self.backward.problem
        if START not in problem.derived:
            return cotangents
        of_cells = self.backward.derived[START]({**cotangents, **constant}, problem.parameters, 0.0)
        return {**cotangents, **dict(zip(problem.derived[START], of_cells, strict=True))}

    def result(self, value: float, cotangents: Fields, direct: Mapping[str, float]) -> Result:
        """Return the result of a sweep with these derivatives at t = 0, by field of the adjoint problem."""
        parameters, unknowns = self.forward.problem.parameters, self.adjoint.unknowns
        fields = {one.field: cotangents[one.field] for one in unknowns}
        low, high, broken = self.sums.extremes(fields, parameters, 0.0)
        for one, count in zip(unknowns, broken, strict=True):
            if count:
                raise NumericsError(
                    f"gradient: expected finite derivatives with respect to {one.key}, but {count} cells have none; see "
                    "whether the equation has a square root, a power or a quotient at 0, and whether dt is stable"
                )
        totals = self.sums.sums(fields, parameters, 0.0, np.maximum(np.abs(low), np.abs(high)))
        numbers = {
            one.key: float(total) + direct[one.name]
            for one, total in zip(unknowns, totals, strict=True)
            if one.kind == "number"
        }
        return Result(value, numbers, {one.key: fields[one.field] for one in unknowns if one.kind != "number"})

    # ---- one step in reverse -----------------------------------------------------------------------------------------

    def reversed_step(self, state: Fields, constant: Fields, cotangents: Fields, step: int) -> Fields:
        """Return the derivatives before a step, by field of the adjoint problem, from those after it.

        ``state`` are the changing fields before the step; ``constant`` the others. All fields are kept.
        """
        parameters = self.forward.problem.parameters
        (steps,) = self.ranges(step, step + 1)
        nodes = self.forward.problem.method.nodes
        values = self.stage_values(state, constant, steps)
        bars = {len(self.stages): {name: cotangents[ADJOINT + name] for name in self.changing}}
        gradients = {name: array for name, array in cotangents.items() if name.startswith(GRADIENT)}
        for stage in self.stages:
            j = stage.number
            terms = {TRANSPOSED + name: self.terms(stage.values[name], bars, name) for name in self.changing}
            if not stage.evaluates:
                found = self.sums_of(terms)
            else:
                for name in self.changing:
                    terms[ADJOINT + name] = self.terms(stage.slopes[name], bars, name, steps.dt)
                # The step overwrites what it is given, so these are copies.
                for name, array in {**values[j], **constant, **gradients}.items():
                    terms[name] = [(1.0, array)]
                time = StepRange(steps.start + nodes[j] * steps.dt, 0, 1.0, 1)
                found = jax.block_until_ready(self.backward.steps.advance(self.sums_of(terms), parameters, time))
                gradients = {name: found[name] for name in gradients}
            bars[j] = {name: found[TRANSPOSED + name] for name in self.changing}
        return {**{ADJOINT + name: array for name, array in bars[0].items()}, **gradients}

    def stage_values(self, state: Fields, constant: Fields, steps: StepRange) -> list[Fields]:
        """Return the fields y_0 .. y_(s-1) of a step that begins with ``state``."""
        problem = self.forward.problem
        y: dict[int, Fields] = {0: state}
        k: dict[int, Fields] = {}
        for i, stage in enumerate(problem.method.stages[:-1], start=1):
            for j, _ in stage.slopes:
                if j not in k:
                    time = steps.start + problem.method.nodes[j] * steps.dt
                    k[j] = jax.block_until_ready(self.slopes({**y[j], **constant}, problem.parameters, time))
            terms = {}
            for name in self.changing:
                if stage.group is None or problem.groups[name] == stage.group:
                    terms[name] = [(a, y[j][name]) for j, a in stage.values]
                    terms[name] += [(steps.dt * b, k[j][name]) for j, b in stage.slopes]
            y[i] = {**y[i - 1], **self.sums_of(terms)}
        return [y[i] for i in range(len(problem.method.stages))]

    def terms(
        self, weights: Terms, bars: Mapping[int, Fields], name: str, factor: float = 1.0
    ) -> list[tuple[float, jax.Array]]:
        """Return the terms of ``factor`` times the sum of the derivatives of stages, of one field, with these (stage,
        weight)."""
        last = bars[len(self.stages)][name]
        return [(factor * weight, bars[i][name]) for i, weight in weights] or [(0.0, last)]

    def sums_of(self, terms: Mapping[str, Sequence[tuple[float, jax.Array]]]) -> Fields:
        """Return the sums of arrays times weights, by name, as new arrays."""
        arrays = {name: tuple(array for _, array in each) for name, each in terms.items()}
        weights = {name: np.array([weight for weight, _ in each]) for name, each in terms.items()}
        return dict(self.combined(arrays, weights))
