"""The sums over receivers in an objective, from what the receivers record while the run is taken forwards.

Native code records within its calls, other kernels between them. At the end of the run rank 0 computes the sums, with the
receivers in the order of their numbers. So nothing depends on the decomposition.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np

from hpcstencil.adjoint.run_steps import RunSteps
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.misfit import ReceiverSum
from hpcstencil.simulation.receiver_recorder import ReceiverRecorder, gathered
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field, Node, Time, data_field, samples_field
from hpcstencil.validation.errors import NumericsError


class Samples:
    """The receivers of an objective on this process, of all tables of [probes] that it sums over.

    ``forward`` is the simulation that takes the run, and ``observed`` are the data on rank 0, float64 of shape (samples,
    receivers) by name.
    """

    def __init__(self, forward: ComposedSimulation, observed: Mapping[str, np.ndarray]) -> None:
        misfit = forward.problem.misfit
        assert misfit is not None
        self.forward, self.misfit, self.observed = forward, misfit, observed
        self.receivers = forward.problem.summed_receivers
        for table, tree in misfit.recorded.items():
            if isinstance(tree, Field):  # also an expression that is one
                self.receivers[table] = replace(self.receivers[table], field=tree.name)
        assert forward.problem.adds_every is not None
        self.every = forward.problem.adds_every
        self.recorder = ReceiverRecorder(forward, self.receivers, self.every)
        self.parameters: Mapping[str, Any] = {}
        self.rows: list[dict[str, np.ndarray]] = []  # the values of the records before those in the buffer
        self.drained = 0  # how many of these have been drained
        self.values: dict[str, np.ndarray] = {}  # of a whole run, on rank 0

    def of_member(self, forward: ComposedSimulation, observed: Mapping[str, np.ndarray]) -> Self:
        """The same receivers for another member of an ensemble, with its data. No values may have been taken yet."""
        other = copy.copy(self)
        other.forward, other.observed, other.recorder = forward, observed, self.recorder.of_member(forward)
        return other

    def begin(
        self, fields: Fields, parameters: Mapping[str, Any], recorded: Sequence[Mapping[str, np.ndarray]] = ()
    ) -> None:
        """Begin to record a run with these ``parameters``: its ``fields`` at t = 0, or what follows the results of earlier
        calls of `drain`, if there are any. Collective."""
        self.recorder.begin(fields)
        self.parameters, self.rows, self.drained, self.values = parameters, [*map(dict, recorded)], len(recorded), {}
        if not recorded:
            self._record(fields, 0.0)

    def drain(self) -> dict[str, np.ndarray]:
        """Return what has been recorded since the last call, by table: float64 of shape (records, receivers) on rank 0, zeros
        on the others. Collective."""
        self._interpolate_if(self.recorder.count > 0)
        new, self.drained = self.rows[self.drained :], len(self.rows)
        return self._joined(new)

    def _joined(self, rows: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {
            table: np.concatenate([np.zeros((0, len(each.places))), *(row[table] for row in rows)])
            for table, each in self.receivers.items()
        }

    def most(self, step: int) -> int:
        """The largest number of steps of the next call, which begins with the step of this number."""
        return self.recorder.steps_left(step)

    @contextmanager
    def recording(self, step: int, steps: StepRange) -> Iterator[None]:
        """A context in which a call takes ``steps``, the first of which has the number ``step``."""
        due = range((step // self.every + 1) * self.every, step + int(steps.count) + 1, self.every)
        self.recorder.expect(step, steps.first, due, lambda each: float(steps.part(each - step, 0).start))
        try:
            yield
        finally:
            self.recorder.expect_nothing()

    def after(self, fields: Fields, first: int, last: int, time: float) -> None:
        """Note that a call has taken the steps from ``first`` to ``last``, to ``fields`` at a ``time``. Collective."""
        due = last // self.every - first // self.every
        if due and not self.recorder.while_stepping:
            return self._record(fields, time)
        self.recorder.after_call(due, last % self.every == 0, fields, self.parameters, time)
        self._interpolate_if(self.recorder.is_full)

    def times(self, run: RunSteps) -> list[float]:
        """The times at which the receivers record, in a run of these steps."""
        return [*map(float, run.times[:: self.every])]

    def sums(self, times: Sequence[float]) -> dict[str, float]:
        """Return the sums of `Misfit`, by the names of their nodes. Collective.

        A run has been recorded, with records at these ``times``. The results are equal on all processes. Raises NumericsError,
        on all processes, if a term is not finite.
        """
        self._interpolate_if(self.recorder.count > 0)
        communicator, found, broken = self.forward.communicator, dict[str, float](), None
        if communicator.rank == 0:
            self.values = self._joined(self.rows)
            for each in self.misfit.sums:
                terms = self._at_samples(each, each.term, times)
                if not np.isfinite(terms).all():
                    when = np.flatnonzero(~np.isfinite(terms).all(axis=1))[0] * self._stride(each)
                    broken = min(times[when], math.inf if broken is None else broken)
                found[each.node.name] = summed(terms)
        found, broken = communicator.broadcast((found, broken))
        self.rows = []
        if broken is not None:
            raise NumericsError(
                f"objective: expected finite terms of sum(), but at t = {broken:g} there is one that is not; take shorter "
                "steps, or change it"
            )
        return found

    def _at_samples(self, of: ReceiverSum, tree: Node, times: Sequence[float]) -> np.ndarray:
        """Evaluate a tree of samples on rank 0, for each: float64 of shape (samples, receivers)."""
        stride = self._stride(of)
        known = numpy_evaluate.by_node(self.parameters)
        known |= {samples_field(table): self.values[table][::stride] for table in of.tables}
        shape = known[samples_field(of.tables[0])].shape
        known |= {data_field(name): array for name, array in self.observed.items()}
        known[Time()] = np.array(times)[::stride, None]
        return np.broadcast_to(numpy_evaluate.evaluate(tree, values=known), shape)

    def _stride(self, of: ReceiverSum) -> int:
        """The number of records between two samples of a sum."""
        return self.receivers[of.tables[0]].every // self.every

    def _record(self, fields: Fields, time: float) -> None:
        self.recorder.record(fields, self.parameters, time)
        self._interpolate_if(self.recorder.is_full)

    def _interpolate_if(self, wanted: bool) -> None:
        if wanted:
            own = self.recorder.interpolate()
            self.rows.append(
                {
                    table: gathered(self.forward, each, values).astype(np.float64)
                    for (table, each), values in zip(self.receivers.items(), own, strict=True)
                }
            )


def summed(terms: np.ndarray) -> float:
    """The correctly rounded sum of float64 values; NaN if one of them is not finite, infinite if the sum is too large."""
    if not np.isfinite(terms).all():
        return math.nan
    try:
        return math.fsum(terms.ravel().tolist())
    except OverflowError:
        return math.inf
