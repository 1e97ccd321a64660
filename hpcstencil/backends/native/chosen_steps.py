"""Steps that are chosen while a call of native code runs, because their size depends on the solution.

The call records extrema of the state, or sums the errors of an attempt, from which Python chooses the next steps. So a run
returns to JAX and to its event loop once per many steps, not after each. The C++ side is chosen_steps.hpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from hpcstencil.backends.backend import NextAttempt, NextSteps
from hpcstencil.numerics.error_norm import WORDS
from hpcstencil.numerics.schedule import StepRange

GO_ON, BACK = 1, 2  # as in chosen_steps.hpp
ChooseSteps = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_int64))


class StepsInCalls:
    """See `backend.Steps.choosing`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def __call__(self, next_steps: NextSteps) -> AbstractContextManager[None]:
        return choosing(self.library, lambda _: (True, next_steps()))


class AttemptsInCalls:
    """See `backend.Steps.choosing_attempts`. ``norm`` turns the sums of ``errors`` fields into the error of a step."""

    def __init__(self, library: ctypes.CDLL, errors: int, norm: Callable[[np.ndarray], np.ndarray]) -> None:
        self.library, self.shape, self.norm = library, (errors, len(WORDS)), norm

    def __call__(self, next_attempt: NextAttempt) -> AbstractContextManager[None]:
        def choose(sums: Any) -> tuple[bool, StepRange | None]:
            return next_attempt(float(self.norm(np.ctypeslib.as_array(sums, self.shape))))

        return choosing(self.library, choose)


@contextmanager
def choosing(library: ctypes.CDLL, choose: Callable[[Any], tuple[bool, StepRange | None]]) -> Iterator[None]:
    """A context in which calls of a library go on with the steps that ``choose`` returns.

    Its argument is a pointer to the sums of errors. It returns (whether the steps before are accepted, the next ones if any).
    What it raises ends the call with the state before these steps, and is raised at the end of the context.
    """
    raised: list[BaseException] = []

    def chosen(clock: Any, sums: Any) -> int:
        try:
            accepted, steps = choose(sums)
        except BaseException as error:  # it cannot pass through compiled code
            raised.append(error)
            return BACK
        for n, number in enumerate(steps or ()):
            clock[n] = number
        return (steps is not None) * GO_ON | (not accepted) * BACK

    called_back = ChooseSteps(chosen)
    library.set_choose_steps(called_back)
    try:
        yield
    finally:
        library.set_choose_steps(None)
    if raised:
        raise raised[0]
