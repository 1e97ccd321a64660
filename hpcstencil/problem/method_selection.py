"""The method that fits a problem: how a partitioned one groups the fields, how many stages super time stepping takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpcstencil.numerics.integrators import FEWEST_STAGES, MOST_STAGES, SUPER_STEPPING, Method
from hpcstencil.symbolic.expressions import Field, Node, walk
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown

MARGIN = 0.9  # of the stable step, when stages are counted for a given one


def groups_of(trees: Mapping[str, Node], method: Method, name: str) -> dict[str, int]:
    """The fields in two groups each of which drives only the other, as a partitioned method needs them.

    Raises InputError where there are no such groups.
    """
    if not method.partitioned:
        return {}
    drivers = {field: {part.name for part in walk(tree) if isinstance(part, Field)} for field, tree in trees.items()}
    groups: dict[str, int] = {}
    for first in trees:
        pending = [] if first in groups else [(first, 0)]
        while pending:
            field, group = pending.pop()
            if groups.setdefault(field, group) != group:
                raise InputError(
                    f"numerics.integrator: {shown(name)} needs fields in two groups each of which drives only the other, as in "
                    f'wave equations without absorbing layers, but here {shown(field)} depends on its own group; use "rk4"'
                )
            linked = drivers[field] | {other for other, its in drivers.items() if field in its}
            pending += [(other, 1 - group) for other in linked if groups.get(other) != 1 - group]
    return groups


def with_enough_stages(name: str, dt: float, stable_step: Callable[[Method], float] | None) -> Method:
    """The shortest method of the family ``name`` that is stable with ``dt``, where the stable step of each is known.

    Raises InputError where it is not, or none is long enough.
    """
    if stable_step is None:
        why = "whose stable step is not known beforehand"
    else:
        for stages in range(FEWEST_STAGES, MOST_STAGES + 1):
            method = SUPER_STEPPING[name](stages)
            if dt <= MARGIN * stable_step(method):
                return method
        why = f"for which {MOST_STAGES} are too few with time.dt = {dt:g}"
    raise InputError(
        f"numerics.stages: expected how many stages to take for this equation, {why}; write for example stages = 9, of which s "
        "reach as far as (s² + s - 2) / 4 steps of forward Euler, or a shorter time.dt"
    )
