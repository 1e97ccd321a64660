"""The schedule of a reverse sweep with a limited number of stored states.

A reverse step needs the state before the step. States that are not stored are computed again from the nearest stored one. With
s stored states, of which the first is the initial one, and each step taken at most r times before it is reversed, C(s + r, s)
steps can be reversed, and the least number of steps taken for l of them is r l - C(s + r, s + 1) for the least such r
(A. Griewank & A. Walther, "Algorithm 799: revolve", ACM Trans. Math. Softw. 26 (2000) 19-45, sect. 3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Advance:
    """Take the steps from ``first``, whose state is stored, to ``last``, and store the result unless ``last`` is the end."""

    first: int
    last: int


@dataclass(frozen=True)
class Reverse:
    """Reverse the step that begins at the stored state ``step``, and drop this state."""

    step: int


def actions(
    steps: int, states: int, stored: Sequence[int] = (0,), reached: bool = False
) -> Iterator[Advance | Reverse]:
    """The actions that reverse ``steps`` steps with ``states`` stored states besides the one that is worked on.

    ``states`` is at least 1. The ascending numbers ``stored`` are those of the states that are stored when the actions begin:
    0 and at most ``states`` - 1 others, as in a sweep that continues. The end, state ``steps``, is reached once, just before
    the first `Reverse`, unless it has been ``reached`` before.
    """
    parts = enumerate(itertools.pairwise((*stored, steps)))
    pending = [(first, end, states - n) for n, (first, end) in parts]  # (first, end, states), with state `first` stored
    while pending:
        first, end, room = pending.pop()
        if room > 1 and end - first > 1:
            middle = first + _first_part(end - first, room)
            yield Advance(first, middle)
            pending += [(first, middle, room), (middle, end, room - 1)]
            continue
        for step in reversed(range(first, end)):
            if step > first:
                yield Advance(first, step)
            if not reached:
                yield Advance(step, steps)
                reached = True
            yield Reverse(step)


def steps_taken(steps: int, states: int) -> int:
    """The number of steps that `actions` takes, those that are taken again included, without the reverse steps."""
    repeats = _repeats(steps, states)
    return repeats * steps - math.comb(states + repeats, states + 1) + 1


def _repeats(steps: int, states: int) -> int:
    """The least r with C(states + r, states) >= steps."""
    repeats = 0
    while math.comb(states + repeats, states) < steps:
        repeats += 1
    return repeats


def _first_part(steps: int, states: int) -> int:
    """The number of steps before the next stored state, so that the fewest steps are taken in all."""
    repeats = _repeats(steps, states)
    least = math.comb(states + repeats - 2, states) if repeats > 1 else 1
    return max(1, least, steps - math.comb(states + repeats - 1, states - 1))
