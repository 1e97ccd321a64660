"""A reverse sweep for other values of numbers and arrays than those of the input, without compiling anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.reverse_sweep import Result, ReverseSweep
from hpcstencil.problem.parameter_files import Blocks
from hpcstencil.simulation.simulation import ComposedSimulation


@dataclass(frozen=True)
class SweepFor:
    """The reverse sweep as a function of numbers, time series and arrays.

    ``compiled`` has the cached properties of the sweep, which are handed from one evaluation to the next: compiled code takes
    the values as arguments.
    """

    sweep: ReverseSweep
    compiled: dict[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        numbers: Mapping[str, Any],
        held: Mapping[str, Blocks],
        begin: Callable[[ComposedSimulation], Fields],
        states: int,
    ) -> Result:
        """Return the objective and its gradient for these parameters, and arrays by dotted key. Collective.

        ``numbers`` has the samples of time series too. ``begin`` returns the fields at t = 0 for the simulation with these
        values. ``states`` and the errors are those of `ReverseSweep`.
        """
        sweep = self.sweep
        several = None if sweep.several is None else _with(sweep.several, numbers, held)
        other = replace(
            sweep,
            forward=_with(sweep.forward, numbers, held),
            backward=_with(sweep.backward, numbers, held),
            several=several,
        )
        vars(other).update(self.compiled)
        result = other(begin(other.forward), states)
        own = {each.name for each in fields(other)}
        self.compiled.update({name: kept for name, kept in vars(other).items() if name not in own})
        return result


def _with(simulation: ComposedSimulation, numbers: Mapping[str, Any], held: Mapping[str, Blocks]) -> ComposedSimulation:
    problem = simulation.problem
    problem = replace(problem, parameters={**problem.parameters, **numbers}, held={**problem.held, **held})
    return simulation.with_problem(problem)
