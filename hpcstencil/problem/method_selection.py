"""Adapt the integrator to a problem: field groups of a partitioned method, number of stages of super time stepping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpcstencil.numerics.integrators import FEWEST_STAGES, MOST_STAGES, SUPER_STEPPING, Method, leapfrog
from hpcstencil.problem.linear_damping import damping_rate
from hpcstencil.symbolic.expressions import Node
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown

MARGIN = 0.9  # a given step may be at most this fraction of the stable step of the chosen number of stages


def partition(trees: Mapping[str, Node], method: Method, name: str) -> tuple[dict[str, int], Method]:
    """Divide the fields into two groups for a partitioned method: (group of each field as `Stage` numbers them, the method
    with the stages that these groups need).

    The time derivative of a field may depend on the fields of the other group, on the field itself by linear damping, and on
    fields of its own group that do not depend on it in turn: they get groups of their own beside it. ``trees`` are the time
    derivatives by field, and ``name`` is the integrator. Other methods have no groups. Raises InputError if there are no such
    groups.
    """
    if not method.partitioned:
        return {}, method
    drivers = {field: _drivers(field, trees) for field in trees}
    linked = {field: its | {other for other in trees if field in drivers[other]} for field, its in drivers.items()}
    sides, alone = _two_coloured(linked)
    if alone:  # fields beside the groups: only those that drive each other must be in different groups
        mutual = {field: {other for other in its if field in drivers[other]} for field, its in drivers.items()}
        sides, alone = _two_coloured(mutual)
        _join(sides, drivers, [field for field, its in mutual.items() if not its])
    own = {field: {other for other in its if sides[other] == sides[field]} for field, its in drivers.items()}
    levels, circular = _levels(own)
    if wrong := [*alone, *circular]:
        raise InputError(
            f"numerics.integrator: {shown(name)} needs two groups of fields that depend only on each other, besides linear "
            f'damping like - r*u, as in wave equations, but here {shown(wrong[0])} depends on its own group; use "rk4"'
        )
    read = set().union(*own.values())
    groups = {field: 2 * levels[field] + 2 + side if field in read else side for field, side in sides.items()}
    beside = [max((levels[field] + 1 for field in read if sides[field] == side), default=0) for side in (0, 1)]
    return groups, leapfrog((beside[0], beside[1]))


def _drivers(field: str, trees: Mapping[str, Node]) -> set[str]:
    """The fields on which the time derivative of a ``field`` depends, without the field itself if it is only damped."""
    found = set(trees[field].field_names & trees.keys())
    return found if damping_rate(trees[field], field, trees) is None else found - {field}


def _two_coloured(linked: Mapping[str, set[str]]) -> tuple[dict[str, int], list[str]]:
    """Give each field the colour 0 or 1, different from those ``linked`` to it; the first one of a component gets 0.

    The second result is the first field for which this fails, or empty.
    """
    colours: dict[str, int] = {}
    for first in linked:
        pending = [] if first in colours else [(first, 0)]
        while pending:
            field, colour = pending.pop()
            if colours.setdefault(field, colour) != colour:
                return dict.fromkeys(linked, 0), [field]
            pending += [(other, 1 - colour) for other in linked[field] if colours.get(other) != 1 - colour]
    return colours, []


def _join(sides: dict[str, int], drivers: Mapping[str, set[str]], unpaired: Sequence[str]) -> None:
    """Choose the group of each of the ``unpaired`` fields. A field is unpaired if no field both drives it and is driven by it.

    Such a field joins the group opposite to the paired fields that drive it, or to most of them if they are in both groups.
    So it moves as often as the field that it belongs to. If no paired field drives it, it joins the unpaired fields that do.
    """
    waiting = list(unpaired)
    while waiting:
        ready = [field for field in waiting if not drivers[field] & set(waiting) - {field}] or waiting[:1]
        for field in ready:
            paired = [sides[other] for other in sorted(drivers[field]) if other not in unpaired]
            beside = [sides[other] for other in sorted(drivers[field]) if other in unpaired and other not in waiting]
            sides[field] = int(2 * sum(paired) < len(paired)) if paired else beside[0] if beside else 0
        waiting = [field for field in waiting if field not in ready]


def _levels(drivers: Mapping[str, set[str]]) -> tuple[dict[str, int], list[str]]:
    """The number of fields in the longest chain of ``drivers`` before each field, and the fields that are in a circle."""
    levels: dict[str, int] = {}
    waiting = list(drivers)
    while ready := [field for field in waiting if not drivers[field] & set(waiting)]:
        for field in ready:
            levels[field] = max((levels[other] + 1 for other in drivers[field]), default=0)
        waiting = [field for field in waiting if field not in ready]
    return levels, waiting


def with_enough_stages(name: str, dt: float, stable_step: Callable[[Method], float] | None) -> Method:
    """The super time stepping method with the fewest stages that is stable with the step ``dt``.

    ``name`` is a key of SUPER_STEPPING. ``stable_step`` returns the stable step of a method, or is None if that is
    unknown. Raises InputError if ``stable_step`` is None, or if no allowed number of stages is stable.
    """
    if stable_step is None:
        why = "its stable step is not known beforehand"
    else:
        for stages in range(FEWEST_STAGES, MOST_STAGES + 1):
            method = SUPER_STEPPING[name](stages)
            if dt <= MARGIN * stable_step(method):
                return method
        why = f"even {MOST_STAGES} stages are too few with time.dt = {dt:g}"
    raise InputError(
        f"numerics.stages: expected a number of stages for this equation, because {why}; write for example stages = 9 (s "
        "stages reach as far as (s² + s - 2) / 4 steps of forward Euler), or a shorter time.dt"
    )
