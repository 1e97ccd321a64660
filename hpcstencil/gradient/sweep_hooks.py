"""The position of a reverse sweep, and the hooks that the sweep calls between calls of compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from hpcstencil.distributed.halo import Fields

UNLIMITED = 2**62  # more steps than any run has

Parts = Sequence[tuple[float, Mapping[str, float]]]


@dataclass(frozen=True)
class SweepPosition:
    """The position of a reverse sweep: all steps from number ``step`` on have been reversed.

    ``cotangents`` are the derivatives of the objective with respect to the state before that step, and those with respect to
    parameters so far, by field of the adjoint problem; there are none before the first reverse step. ``parts`` are the terms
    of the objective so far, each with its direct derivatives with respect to numbers. ``series`` are the derivatives with
    respect to samples of time series so far, by key. ``slopes`` are the derivatives with respect to what receivers record, by
    table: float64 of shape (samples, receivers); None before the end of the run, and without receivers.
    """

    step: int
    cotangents: Fields = field(default_factory=dict)
    parts: Parts = ()
    series: Mapping[str, np.ndarray] = field(default_factory=dict)
    slopes: Mapping[str, np.ndarray] | None = None


class SweepHooks:
    """The hooks that a reverse sweep calls; these do nothing. All methods are collective."""

    @property
    def start(self) -> SweepPosition | None:
        """The position where the sweep begins; None for the end of the run."""
        return None

    @property
    def most(self) -> int:
        """The largest number of steps of the next call of compiled code."""
        return UNLIMITED

    @contextmanager
    def call(self, steps: int) -> Iterator[None]:
        """A context in which compiled code takes or reverses some ``steps``."""
        yield

    def check(self) -> None:
        """Raise StoppedEarly, on all processes, if the sweep must stop. It is between two calls."""

    def moved(self, position: SweepPosition) -> None:
        """Note the position that the sweep has reached. Raises StoppedEarly as `check`."""


NO_HOOKS = SweepHooks()
