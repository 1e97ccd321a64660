"""The stages of one step: the order of right-hand side evaluations, and the combination of values and slopes.

The walk over the stages is written once, here. Three callers use it: the step inside a compiled loop, the step that
leaves it for every exchange, and the kernels for GPUs. Each passes in functions that evaluate a right-hand side, form a
combination, and loop over uniform stages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax.numpy as jnp

from hpcstencil.distributed.windows import Value, common
from hpcstencil.numerics.integrators import MEMORY, Method, Stage, Terms

Values = Mapping[str, Value]


def combined(
    stage: Stage, dt: Any, values: Mapping[int, Value], slopes: Mapping[int, Value], before: Value | None = None
) -> Value:
    """Σ_j a_ij y_j + dt Σ_j b_ij k_j of one field, summed from left to right, on the windows that all terms have.
    ``values`` and ``slopes`` are the y_j and k_j by number. ``before`` is the slope from the beginning of the previous
    step; ``dt`` is a (traced) float64."""
    used = [*((a, values[j], None) for j, a in stage.values), *((b, slopes[j], dt) for j, b in stage.slopes)]
    if before is not None:
        used.append((stage.remembered, before, dt))
    windows = common([value for _, value, _ in used])
    result: Any = None
    for weight, value, scale in used:
        array = value.crop(windows).array
        if scale is not None:
            array = (scale * weight).astype(array.dtype) * array
        elif not isinstance(weight, float) or weight != 1.0:
            array = jnp.asarray(weight, array.dtype) * array
        result = array if result is None else result + array
    return Value(result, windows)


def take(
    method: Method,
    u: Any,
    slope: Callable[[int, Any], Any],
    combine: Callable[[int, Stage, Mapping[int, Any], Mapping[int, Any]], Any],
    loop: Callable[[Any, Any, Any, Any], Any],
) -> tuple[Any, Any]:
    """(u after one step, estimate of its error or None). ``slope(j, y)`` returns the slopes at y, the j-th value.
    ``combine(i, stage, values, slopes)`` returns the i-th value, given all earlier ones by number; i is 0 for the
    estimate of the error. ``loop(u, before, last, slope at u)`` takes the uniform stages, from the last two values, and
    returns the final value."""
    values, slopes, end = {0: u}, {}, len(method.stages)

    def evaluate(terms: Terms) -> None:
        for j, _ in terms:
            if j not in slopes:
                slopes[j] = slope(j, values[j])

    for i, stage in enumerate(method.stages[: method.uniform_from], start=1):
        evaluate(stage.slopes)
        values[i] = combine(i, stage, values, slopes)
    if method.uniform_from < end:
        evaluate(((0, 1.0),))
        return loop(u, values[method.uniform_from - 1], values[method.uniform_from], slopes[0]), None
    if not method.error:
        return values[end], None
    evaluate(method.error)
    return values[end], combine(0, Stage((), method.error), values, slopes)


def uniform(method: Method, weights: Any) -> Stage:
    """The stage with the given ``weights``, a row of `Method.uniform_weights`, and with relative indices
    (`Method.relative`)."""
    values, slopes = method.relative(len(method.stages) - 1)
    return Stage(
        tuple((j, weights[n]) for n, j in enumerate(values)),
        tuple((j, weights[len(values) + n]) for n, j in enumerate(slopes)),
    )


def moving(
    stage: Stage, names: Iterable[str], slopes: Mapping[int, Collection[str]], groups: Mapping[str, int]
) -> list[str]:
    """The names of the fields that a stage changes: those of its group that have all the slopes it uses. ``slopes`` has
    the names of the fields with a slope, by number."""
    return [
        name
        for name in names
        if all(name in slopes[j] for j, _ in stage.slopes) and (stage.group is None or groups[name] == stage.group)
    ]


def fields_of(
    stage: Stage,
    last: int,
    values: Mapping[int, Values],
    slopes: Mapping[int, Values],
    groups: Mapping[str, int],
    dt: Any,
) -> dict[str, Value]:
    """The fields after a stage, by name: `combined` for each field that the stage changes, and the value number
    ``last`` of the others. ``values`` and ``slopes`` are those of earlier stages by number. A stage with a remembered
    slope stores its own slopes in place of those of the previous step."""
    moved = dict(values.get(last, {}))
    for name in moving(stage, values[0], slopes, groups):
        own = {j: y[name] for j, y in values.items()}, {j: k[name] for j, k in slopes.items() if name in k}
        if stage.remembered:
            moved[name] = combined(stage, dt, *own, values[0][name + MEMORY])
            moved[name + MEMORY] = slopes[0][name]
        else:
            moved[name] = combined(stage, dt, *own)
    return moved
