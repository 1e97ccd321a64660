"""The derivatives with respect to time series that reversed steps add.

A step of the reverse sweep computes fields with the derivatives with respect to the values of each series at each stage
(`adjoint.hat_functions`). Native code records their sums over the grid after every step of a call. Where it cannot, and for
other kernels, each call takes one step, and the fields are summed after it. The fields are not kept from one call to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.backends.backend import Recorder, Reductions
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.gradient.derivative_sums import reductions_of, refuse_broken, sums_of
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.stepping import STEPS_PER_CALL


@dataclass(frozen=True)
class StageSums:
    """The sums of the fields `Adjoint.stage_fields` of a ``simulation``, each step of which reverses ``at_once`` steps."""

    adjoint: Adjoint
    simulation: ComposedSimulation
    at_once: int = 1

    @cached_property
    def fields(self) -> list[str]:
        """The names of the fields, step by step."""
        return [*self.adjoint.stage_fields(self.at_once)]

    @cached_property
    def keys(self) -> list[str]:
        """The entry of gradient.of to which each field of a step belongs."""
        return [key for key, hats in self.adjoint.hats.items() for _ in hats.nodes]

    @cached_property
    def reductions(self) -> Reductions:
        """The sums of all fields."""
        return reductions_of(self.simulation, self.fields)

    @cached_property
    def recorder(self) -> Recorder | None:
        """The recorder of these sums after each step of a call; None if calls cannot record them."""
        return self.reductions.recorder(self.records)

    @property
    def records(self) -> int:
        """The records that a recorder has room for. If steps need states or follow the time, a call takes one."""
        return 1 if self.adjoint.needs_states or self.adjoint.follows_time else STEPS_PER_CALL

    @property
    def most(self) -> int:
        """The largest number of steps of a call."""
        return self.records if self.recorder else 1

    @contextmanager
    def recording(self, steps: StepRange) -> Iterator[None]:
        """A context in which a call of the simulation takes ``steps``."""
        if self.recorder is None:
            yield
            return
        self.recorder.expect(1, 1, -steps.first, [0.0] * steps.count)
        try:
            yield
        finally:
            self.recorder.expect_nothing()

    def add(
        self, series: Mapping[str, np.ndarray], reversed_steps: StepRange, fields: Fields, parameters: Parameters
    ) -> None:
        """Add what the last call has found to the derivatives with respect to samples, ``series`` by key. Collective.

        ``fields`` are those after the call, which has reversed these steps. Raises NumericsError, on all processes, if a
        derivative is not finite.
        """
        if self.recorder is None:
            rows = [sums_of(self.keys * self.at_once, self.reductions, fields, parameters)]
        else:
            rows = []
            for reduced in self.recorder.taken(reversed_steps.count // self.at_once):
                refuse_broken(self.keys * self.at_once, reduced.broken)
                rows.append(reduced.sums)
        # Rows begin with the last step, but the fields of steps that are reversed together with the first of these.
        values = np.array(rows).reshape(len(rows), self.at_once, len(self.keys))[:, ::-1].reshape(-1, len(self.keys))
        for key, hats in self.adjoint.hats.items():
            own = [each == key for each in self.keys]
            hats.add(series[key], hats.times(reversed_steps), values[:, own])
