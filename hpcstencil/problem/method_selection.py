"""Adapt the integrator to a problem: field groups of a partitioned method, number of stages of super time stepping."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpcstencil.numerics.integrators import FEWEST_STAGES, MOST_STAGES, SUPER_STEPPING, Method
from hpcstencil.symbolic.expressions import Field, Node, walk
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown

MARGIN = 0.9  # a given step may be at most this fraction of the stable step of the chosen number of stages


def groups_of(trees: Mapping[str, Node], method: Method, name: str) -> dict[str, int]:
    """Divide the fields into two groups for a partitioned method: the group, 0 or 1, by field.

    The time derivative of a field may depend only on fields of the other group. Empty for other methods. ``trees`` are
    the time derivatives by field, and ``name`` is the integrator. Raises InputError if there are no such
    groups.
    """
    if not method.partitioned:
        return {}
    drivers = {
        field: {part.name for part in walk(tree) if isinstance(part, Field) and part.name in trees}
        for field, tree in trees.items()
    }
    groups: dict[str, int] = {}
    for first in trees:
        pending = [] if first in groups else [(first, 0)]
        while pending:
            field, group = pending.pop()
            if groups.setdefault(field, group) != group:
                raise InputError(
                    f"numerics.integrator: {shown(name)} needs two groups of fields that depend only on each other, as in "
                    f'wave equations without absorbing layers, but here {shown(field)} depends on its own group; use "rk4"'
                )
            linked = drivers[field] | {other for other, its in drivers.items() if field in its}
            pending += [(other, 1 - group) for other in linked if groups.get(other) != 1 - group]
    return groups


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
