"""A run taken forwards for its objective, by calls of compiled code that end where receivers must record."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import numpy as np

from hpcstencil.adjoint.run_steps import RunSteps, added_at
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.samples import Samples, summed
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.simulation.simulation import ComposedSimulation


def to_end(
    simulation: ComposedSimulation,
    run: RunSteps,
    fields: Fields,
    samples: Samples | None,
    term: Callable[[Fields, int, Mapping[str, float]], float],
) -> tuple[Fields, float]:
    """Take the run that begins with ``fields``, which are overwritten. Collective.

    Returns (the fields at its end, its objective, 0 without one). ``term(fields, step, sums)`` is what the fields after a
    number of steps add to the objective; ``sums`` are those over the receivers of ``samples``, by the names of their nodes.
    """
    problem, terms, done = simulation.problem, list[float](), 0
    adding = added_at(problem, run) if problem.objective else ()
    if samples is not None:
        samples.begin(fields, problem.parameters)

    def advanced(steps: StepRange) -> Fields:
        return jax.block_until_ready(simulation.advance(fields, steps))

    for step in sorted({*adding, run.total}):
        while done < step:
            fields, done = call_recorded(advanced, run, done, step, samples)
        if step in adding:
            sums = {} if samples is None else samples.sums(samples.times(run))
            terms.append(term(fields, step, sums))
    return fields, summed(np.array(terms))


def call_recorded(
    call: Callable[[StepRange], Fields], run: RunSteps, first: int, last: int, recorder: Samples | None
) -> tuple[Fields, int]:
    """Take steps of a run from number ``first`` on, up to ``last`` at most, by one ``call`` of compiled code.

    Returns the fields after them, and the number of the next step. If there is a ``recorder``, the call ends where that must
    see the fields.
    """
    if recorder is None:
        steps = next(run.between(first, last))
        return call(steps), first + int(steps.count)
    steps = next(run.between(first, min(last, first + recorder.most(first))))
    with recorder.recording(first, steps):
        fields = call(steps)
    after = first + int(steps.count)
    recorder.after(fields, first, after, run.time_of(after))
    return fields, after
