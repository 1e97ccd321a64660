"""Sections of a step, for blocks that are too thin for a whole step between two halo exchanges.

Blocks exchange halos before each section. A section is one pass, or several passes if an array between them is computed
beyond the boundary, where an exchange could not provide its values. It reads no further beyond a block than one evaluation
of the right-hand sides does. The passes are those of whole steps, so the results are bitwise equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcstencil.backends.native.passes import Array, Pass


@dataclass(frozen=True)
class Section:
    """The passes ``first`` to ``last - 1`` of a step.

    They read the arrays numbered ``given``, of which the first ``exchanged`` need ghost cells, and fill the arrays ``made``
    for later sections. ``reach`` is the distance at which they read beyond the block, in cells per axis of the grid.
    """

    first: int
    last: int
    exchanged: int
    given: tuple[int, ...]
    made: tuple[int, ...]
    reach: tuple[int, ...]

    @property
    def sent(self) -> tuple[int, ...]:
        """The numbers of the arrays that are exchanged before this section."""
        return self.given[: self.exchanged]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The section as integers, in the form that `Call::section` of pipeline.hpp expects."""
        return (self.first, self.last, len(self.given), len(self.made), *self.given, *self.made)


def sections(
    passes: Sequence[Pass],
    arrays: Sequence[Array],
    beside: Mapping[int, set[int]],
    ends: Sequence[int],
    axis_of: Sequence[int],
) -> tuple[Section, ...]:
    """Divide a step of ``passes`` into sections.

    The arrays ``ends`` hold the fields after the step. ``beside`` maps an array to those that its boundary conditions read.
    ``axis_of`` maps axes of the grid to those of the driver.
    """
    cuts = [0, *(n for n in range(1, len(passes)) if not _deep_across(passes, arrays, n)), len(passes)]
    return tuple(
        _section(passes, beside, ends, axis_of, first, last) for first, last in zip(cuts, cuts[1:], strict=False)
    )


def _read(passes: Sequence[Pass]) -> set[int]:
    """Return the numbers of the arrays that passes read."""
    return {array for one in passes for array, _, _ in one.inputs}


def _made(passes: Sequence[Pass]) -> set[int]:
    """Return the numbers of the arrays that passes fill."""
    return {array for one in passes for array in one.outputs}


def _deep_across(passes: Sequence[Pass], arrays: Sequence[Array], cut: int) -> bool:
    """Return whether an array computed beyond the boundary is filled before the pass ``cut`` and read from it on."""
    return any(arrays[array].deep for array in _made(passes[:cut]) & _read(passes[cut:]))


def _section(
    passes: Sequence[Pass],
    beside: Mapping[int, set[int]],
    ends: Sequence[int],
    axis_of: Sequence[int],
    first: int,
    last: int,
) -> Section:
    """Return the section of the passes ``first`` to ``last - 1``; the other arguments are those of `sections`."""
    inside, made = passes[first:last], _made(passes[first:last])
    needed = {array: [0, 0, 0] for array in made}  # cells beyond the block, per axis of the driver
    for one in reversed(inside):
        furthest = [max(needed[array][b] for array in one.outputs) for b in range(3)]
        for array, reach, _ in one.inputs:
            so_far = needed.setdefault(array, [0, 0, 0])
            needed[array] = [max(n, f + r) for n, f, r in zip(so_far, furthest, reach, strict=True)]
    at_faces = {other for array in needed for other in beside.get(array, ())} - made
    given = {*needed, *at_faces} - made or {0}  # a call takes the shape of the block from an array
    exchanged = {array for array in given if array in at_faces or any(needed.get(array, ()))}
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
