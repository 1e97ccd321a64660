"""The reports of the monitors: stack traces of many ranks, and the sentence about a lost rank.

This module uses only the standard library.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Mapping

FRAMES = 8  # most lines of a stack trace in a report
DISTINCT = 16  # most stack traces in a report; the others are counted
NAMED = 16  # most spans of ranks that are named for one stack trace
LONGEST = 2000  # characters of a stack trace


class Stacks:
    """Stack traces of many ranks: each distinct one with the ranks that have it.

    Beyond ``DISTINCT`` of them, the rarest are forgotten, and their ranks counted under "".
    """

    def __init__(self) -> None:
        self.ranks: dict[str, set[int]] = {}

    def add(self, text: str, ranks: Iterable[int]) -> None:
        """Add a stack trace of some ranks."""
        self.ranks.setdefault(text[:LONGEST], set()).update(ranks)
        while len(self.ranks) - ("" in self.ranks) > DISTINCT:
            rarest = min(filter(None, self.ranks), key=lambda text: (len(self.ranks[text]), -min(self.ranks[text])))
            self.ranks.setdefault("", set()).update(self.ranks.pop(rarest))

    def message(self) -> dict[str, list[int]]:
        """Return the stack traces as a message to the parent: for each one first and last rank of its spans, in a row."""
        return {text: [end for span in spans(ranks) for end in span] for text, ranks in self.ranks.items()}

    def merge(self, message: Mapping[str, list[int]]) -> None:
        """Add the stack traces of a child's `message`."""
        for text, ends in message.items():
            self.add(text, (rank for a, b in zip(ends[::2], ends[1::2], strict=False) for rank in range(a, b + 1)))

    def rows(self) -> list[str]:
        """Return the lines of a report, the stack of the lowest rank first."""
        rows = []
        for text, ranks in sorted(self.ranks.items(), key=lambda item: (not item[0], min(item[1]))):
            if text:
                rows.append(f"  {named(ranks)}, newest call first:")
                rows += [f"    {row}" for row in text.splitlines()[:FRAMES]]
            else:
                rows.append(f"  {named(ranks)}: other stacks")
        return rows


def spans(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ranks as spans (first, last), in order and as few as possible."""
    found: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return found


def named(ranks: Iterable[int]) -> str:
    """Return the ranks in words, such as "ranks 0-3, 7"."""
    found = spans(ranks)
    words = [str(first) if first == last else f"{first}-{last}" for first, last in found[:NAMED]]
    more = sum(last - first + 1 for first, last in found[NAMED:])
    several = len(found) > 1 or found[0][0] < found[0][1]
    return f"rank{'s' * several} {', '.join(words)}{f' and {more} more' if more else ''}"


def print_report(sentence: str, stacks: Stacks | None = None) -> None:
    """Print the sentence, and the stack traces with their ranks, to standard error in a single write."""
    rows = [sentence, *(stacks.rows() if stacks is not None else [])]
    with contextlib.suppress(OSError):
        os.write(2, ("\n".join(rows) + "\n").encode())


def lost_report(lost: str, step: int, stacks: Stacks, checkpoints: str) -> None:
    """Print which rank is lost, and why (``lost``), with the stack traces of the others.

    The report also names the last ``step``, and the newest of the run's ``checkpoints`` (a glob pattern, "" if unknown), from
    which the run can continue.
    """
    place = f"at step {step}" if step >= 0 else "before the first step"
    there = sorted(glob.glob(checkpoints))
    state = (
        f"The last good state is {there[-1]}: run the same command with --resume to continue"
        if there
        else "There is no checkpoint yet"
    )
    print_report(f"hpcstencil: {lost}, {place}; all ranks are ended. {state}", stacks)
