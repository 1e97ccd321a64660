"""Sections of a step, between which blocks exchange edges where they are too thin for a whole step between two exchanges.

A section is a pass, or several where an array between them is worked out beyond the boundary, which no exchange could bring.
It looks no further beyond a block than one evaluation of the right-hand sides does. Its passes are those of whole steps, so
the bits are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcstencil.backends.native.passes import Array, Pass


@dataclass(frozen=True)
class Section:
    """Passes ``first`` to ``last - 1``: the arrays that they are ``given``, the first ``exchanged`` of them with ghost cells,
    those ``made`` for later, and how many cells beyond the block they look at, ``reach`` per axis."""

    first: int
    last: int
    exchanged: int
    given: tuple[int, ...]
    made: tuple[int, ...]
    reach: tuple[int, ...]

    @property
    def sent(self) -> tuple[int, ...]:
        """The arrays that are exchanged."""
        return self.given[: self.exchanged]

    @property
    def numbers(self) -> tuple[int, ...]:
        """As `Call::section` in pipeline.hpp."""
        return (self.first, self.last, len(self.given), len(self.made), *self.given, *self.made)


def sections(
    passes: Sequence[Pass],
    arrays: Sequence[Array],
    beside: Mapping[int, set[int]],
    ends: Sequence[int],
    axis_of: Sequence[int],
) -> tuple[Section, ...]:
    """The sections of a step of ``passes``, after which ``ends`` hold the fields. ``beside`` are the arrays that conditions at
    the boundary of an array look at."""
    cuts = [0, *(n for n in range(1, len(passes)) if not _deep_across(passes, arrays, n)), len(passes)]
    return tuple(
        _section(passes, beside, ends, axis_of, first, last) for first, last in zip(cuts, cuts[1:], strict=False)
    )


def _read(passes: Sequence[Pass]) -> set[int]:
    return {array for one in passes for array, _, _ in one.inputs}


def _made(passes: Sequence[Pass]) -> set[int]:
    return {array for one in passes for array in one.outputs}


def _deep_across(passes: Sequence[Pass], arrays: Sequence[Array], cut: int) -> bool:
    """Whether an array that is worked out beyond the boundary is made before a cut and looked at after it."""
    return any(arrays[array].deep for array in _made(passes[:cut]) & _read(passes[cut:]))


def _section(
    passes: Sequence[Pass],
    beside: Mapping[int, set[int]],
    ends: Sequence[int],
    axis_of: Sequence[int],
    first: int,
    last: int,
) -> Section:
    inside, made = passes[first:last], _made(passes[first:last])
    needed = {array: [0, 0, 0] for array in made}  # cells beyond the block, per axis of the driver
    for one in reversed(inside):
        furthest = [max(needed[array][b] for array in one.outputs) for b in range(3)]
        for array, reach, _ in one.inputs:
            so_far = needed.setdefault(array, [0, 0, 0])
            needed[array] = [max(n, f + r) for n, f, r in zip(so_far, furthest, reach, strict=True)]
    at_faces = {other for array in needed for other in beside.get(array, ())} - made
    given = {*needed, *at_faces} - made
    exchanged = {array for array in given if array in at_faces or any(needed[array])}
    later = {*ends, *_read(passes[last:])}
    later |= {other for array in [*later, *_made(passes[last:])] for other in beside.get(array, ())}
    furthest_of_all = tuple(max((n[b] for n in needed.values()), default=0) for b in axis_of)
    return Section(
        first=first,
        last=last,
        exchanged=len(exchanged),
        given=(*sorted(exchanged), *sorted(given - exchanged)),
        made=tuple(sorted(made & later)),
        reach=furthest_of_all,
    )
