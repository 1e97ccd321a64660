"""Derivatives along a direction for Python programs: of the last fields, and of the gradient."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.members import data_of_member, differing, single_runs
from hpcstencil.adjoint.names import TANGENT
from hpcstencil.adjoint.run_steps import RunSteps, steps_of
from hpcstencil.adjoint.tangent import Tangent, tangents_of
from hpcstencil.adjoint.unknowns import CellValues, NumberParameter, SeriesParameter
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.compose import data_of, observed_of
from hpcstencil.gradient.derivative_sums import ADVICE, refuse_broken
from hpcstencil.gradient.members import Members, members_of
from hpcstencil.gradient.recording import record_steps
from hpcstencil.gradient.reverse_sweep import Result, ReverseSweep
from hpcstencil.gradient.samples import Samples, summed
from hpcstencil.gradient.tangent import Direction, TangentRun
from hpcstencil.io.array_file import ArrayInMemory
from hpcstencil.problem.problem import Problem
from hpcstencil.python.assignment import as_array, block_of
from hpcstencil.python.gradient import collected, fields_of_member, gathered_blocks, member_alone
from hpcstencil.python.shared_programs import ProgramUser
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.state import State
from hpcstencil.validation.errors import InputError, NumericsError


def refuse_not_finite(
    simulation: ComposedSimulation, blocks: Mapping[str, np.ndarray], objective: Mapping[str, float]
) -> None:
    """Raise NumericsError, on all processes, if a derivative of a field or of the objective is not finite. Collective.

    ``blocks`` are this process's blocks of the derivatives of fields, by name.
    """
    broken = simulation.communicator.total(np.array([np.count_nonzero(~np.isfinite(each)) for each in blocks.values()]))
    refuse_broken(blocks, broken, "tangent: expected finite derivatives of")
    for name, value in objective.items():
        if not math.isfinite(value):
            raise NumericsError(f"tangent: expected a finite derivative of {name}, but got {value}; {ADVICE}")


class TangentLinear(ProgramUser):
    """The tangent of a simulation along directions with the same keys, composed once; in an ensemble, of each member.

    The arguments are as in `Gradient`, and the ``keys`` of the direction. All processes create it together. Raises InputError
    for what has no derivative yet.
    """

    def __init__(
        self,
        simulation: ComposedSimulation,
        assigned: Mapping[str, bool],
        held: Mapping[str, ArrayInMemory],
        keys: Collection[str],
    ) -> None:
        super().__init__(simulation)
        problem, communicator = simulation.problem, simulation.communicator
        self.held = held
        expressed = frozenset(problem.initial) - frozenset(assigned)
        topology = simulation.plan.topology
        found = agree(communicator, lambda: tangents_of(problem, expressed, tuple(keys)))
        tangents = [one.on(topology) for one in found]
        self.expressed = {*expressed, *(name for name in tangents[0].problem.initial if name.startswith(TANGENT))}
        self.own = differing(problem, tangents[0].unknowns, assigned)
        first = self.composed(agree(communicator, lambda: self._decomposed(tangents[0].problem)))
        first_slopes = first.steps.slopes() if problem.method.multistep else None

        receivers = None if tangents[0].problem.misfit is None else Samples(first, {})

        def run(number: int, member: Problem, tangent: Tangent) -> TangentRun:
            alone, data, samples = first.with_problem(tangent.problem), Fields(), receivers
            if problem.objective:
                given = data_of_member(problem, held, number)
                data = alone.put(agree(communicator, lambda: data_of(alone, given)))
                if samples is not None:
                    samples = samples.of_member(alone, observed_of(member, communicator, given))
            return TangentRun(tangent, alone, steps_of(member), data, samples, first_slopes)

        # of a member, to record steps that follow the solution; None for other steps
        self.alone = member_alone(simulation, self.composed) if problem.step_follows_solution else None
        pairs = zip(single_runs(problem), tangents, strict=True)
        self.runs = [run(number, *pair) for number, pair in enumerate(pairs)]

    def _decomposed(self, problem: Problem) -> Decomposed:
        devices = self.simulation.device_grid.devices.devices
        return Decomposed.of(problem, self.simulation.communicator.size, len(devices))

    def at(self, state: State, direction: Mapping[str, Any]) -> dict[str, Any]:
        """The derivatives at the end of a run that begins with ``state``; see `Simulation.tangent`."""
        simulation, objectives, blocks = self.simulation, list[float](), list[dict[str, np.ndarray]]()
        for number, (run, given) in enumerate(self._along(state, direction)):
            fields, objective = run.to_end(run.start(fields_of_member(simulation, state, number), given))
            objectives.append(objective)
            blocks.append(
                {name: np.array(simulation.block(fields[TANGENT + name])) for name in simulation.problem.shown}
            )
        whole = {
            name: np.stack([each[name] for each in blocks]) if simulation.problem.members else blocks[0][name]
            for name in blocks[0]
        }
        of_objective = dict.fromkeys(simulation.problem.objective, summed(np.array(objectives)))
        refuse_not_finite(simulation, whole, of_objective)
        return gathered_blocks(simulation, whole) | of_objective

    def _along(self, state: State, direction: Mapping[str, Any]) -> list[tuple[TangentRun, Direction]]:
        """The runs of all members that begin with ``state``, with the numbers of a direction, and their directions.
        Collective."""
        found = agree(self.simulation.communicator, lambda: self._directions(direction))
        steps = [self._steps(state, number) for number in range(len(self.runs))]
        return [
            (replace(run.along(given), steps=own), given)
            for run, given, own in zip(self.runs, found, steps, strict=True)
        ]

    def _steps(self, state: State, number: int) -> RunSteps:
        """The steps of a member that begins with ``state``. If they follow the solution, its run is taken once. Collective."""
        if self.alone is None:
            return self.runs[number].steps
        member = self.alone.with_problem(single_runs(self.simulation.problem)[number])
        fields = jax.tree.map(jnp.copy, fields_of_member(self.simulation, state, number))
        return record_steps(member, fields, lambda: None)

    def _directions(self, direction: Mapping[str, Any]) -> list[Direction]:
        """The numbers and blocks of a direction, by member. Raises InputError, on this process alone, for wrong values."""
        found: list[dict[str, Any]] = [{} for _ in self.runs]
        for one in self.runs[0].tangent.unknowns:
            key, value = f'direction["{one.key}"]', direction[one.key]
            match one:
                case NumberParameter():
                    each = self._numbers(one, value, key)
                case SeriesParameter():
                    each = self._samples(one, value, key)
                case CellValues():
                    each = self._blocks(one, value, key)
            for given, own in zip(found, each, strict=True):
                given[one.key] = own
        return [*found]

    def _numbers(self, one: NumberParameter, value: Any, key: str) -> list[Any]:
        """The direction of a number, by member. Raises InputError."""
        members, values = self.simulation.problem.layout.members, as_array(value, None, key)
        shapes = {(), *([members] if one.key in self.own else [])}
        if values.shape not in shapes or not np.isfinite(values).all():
            per_member = " or one per member" if members in shapes and members else ""
            raise InputError(f"{key}: expected a finite number{per_member}, but got {value!r}; give one")
        return [float(number) for number in np.broadcast_to(values, len(self.runs))]

    def _samples(self, one: SeriesParameter, value: Any, key: str) -> list[Any]:
        """The direction of a time series, by member. Raises InputError."""
        samples, count = as_array(value, None, key), len(one.node_in(self.simulation.problem).values)
        fits = samples.shape in ((), (count,))
        if not fits or not np.isfinite(samples).all():
            what = "values that are not" if fits else f"shape {samples.shape}"
            raise InputError(
                f"{key}: expected {count} finite numbers, one per sample, or one for all, but got {what}; give these"
            )
        return [np.broadcast_to(samples, (count,)).astype(np.float64)] * len(self.runs)

    def _blocks(self, one: CellValues, value: Any, key: str) -> list[Any]:
        """This process's blocks of the direction of an array, by member. Raises InputError."""
        members, block = self.simulation.problem.layout.members, block_of(self.simulation, one.values_field, value, key)
        if members and one.key not in self.own and (block != block[..., :1]).any():
            raise InputError(
                f"{key}: expected one value for all members of the ensemble, which share {one.key}, but got different "
                "ones; give the same to all"
            )
        return [np.ascontiguousarray(block[..., n]) for n in range(len(self.runs))] if members else [block]

    def hessian_product(self, state: State, direction: Mapping[str, Any]) -> dict[str, Any]:
        """The product of the Hessian and a direction; see `Simulation.hessian_product`."""
        along = self._along(state, direction)
        reverse = self._reverse
        sweeps = [replace(sweep, run=run.steps) for sweep, (run, _) in zip(reverse.sweeps, along, strict=True)]
        members, plans = replace(reverse, sweeps=tuple(sweeps)).planned(lambda _: {})

        def of(number: int, sweep: ReverseSweep) -> Result:
            run, given = along[number]
            fields = run.start(fields_of_member(self.simulation, state, number), given)
            return sweep.with_values(run.numbers(given), {})(fields, plans[number].states)

        return collected(members, members.total(of))

    @cached_property
    def _reverse(self) -> Members:
        """The reverse sweeps of the tangent problems of all members. Collective."""
        problems = [run.tangent.problem for run in self.runs]
        problem = replace(problems[0], members=tuple(problems)) if self.simulation.problem.members else problems[0]
        adjoint = agree(self.simulation.communicator, lambda: adjoint_of(problems[0], self.expressed))
        return members_of(
            problem,
            self.runs[0].simulation,
            adjoint,
            self.composed,
            self.held,
            self.own,
            tuple(self.expressed),
        )
