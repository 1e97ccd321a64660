"""The loop over the stages of one step of an integration method.

The loop is written once, here, and has three callers: the step inside compiled code, the step that leaves compiled code for
every exchange, and the GPU kernels. Each caller passes in the functions that evaluate a right-hand side, form a linear
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
    """Return Σ_j a_ij y_j + dt Σ_j b_ij k_j of one field, summed from left to right; k_j alone if the stage ``evaluates``.

    ``values`` and ``slopes`` are the y_j and k_j by stage number. ``before`` is the slope at the beginning of the previous
    step, for a stage that remembers it. ``dt`` is a (traced) float64. The result covers the windows that all terms share,
    in their dtype.
    """
    step = None if stage.evaluates else dt
    used = [*((a, values[j], None) for j, a in stage.values), *((b, slopes[j], step) for j, b in stage.slopes)]
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
    """Return (u after one step, estimate of its error or None).

    ``slope(j, y)`` returns the time derivatives at the j-th stage value y. ``combine(i, stage, values, slopes)`` returns
    the i-th stage value, given all earlier values and slopes by number; i = 0 stands for the error estimate.
    ``loop(u, before, last, slope at u)`` takes the uniform stages, starting from the last two values, and returns the
    final value.
    """
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
    """Return the stage whose ``weights`` are a row of `Method.uniform_weights`.

    Its values and slopes have relative indices (`Method.relative`).
    """
    values, slopes = method.relative(len(method.stages) - 1)
    return Stage(
        tuple((j, weights[n]) for n, j in enumerate(values)),
        tuple((j, weights[len(values) + n]) for n, j in enumerate(slopes)),
    )


def moving(
    stage: Stage, names: Iterable[str], slopes: Mapping[int, Collection[str]], groups: Mapping[str, int]
) -> list[str]:
    """Return the names of the fields that a stage changes: those of its group that have all slopes it uses.

    ``slopes`` maps the number of each slope to the names of the fields that have it.
    """
    return [
        name
        for name in names
        if all(name in slopes[j] for j, _ in stage.slopes) and (stage.group is None or groups.get(name) == stage.group)
    ]


def fields_of(
    stage: Stage,
    last: int,
    values: Mapping[int, Values],
    slopes: Mapping[int, Values],
    groups: Mapping[str, int],
    dt: Any,
) -> dict[str, Value]:
    """Return the fields after a stage, by name.

    Fields that the stage changes are `combined`; the others keep stage value number ``last``. ``values`` and ``slopes``
    are those of earlier stages, by number. A stage that remembers the previous step's slopes replaces them by its own.
    """
    moved = dict(values.get(last, {}))
    for name in moving(stage, values[0], slopes, groups):
        own = {j: y[name] for j, y in values.items()}, {j: k[name] for j, k in slopes.items() if name in k}
        if stage.remembered:
            moved[name] = combined(stage, dt, *own, values[0][name + MEMORY])
            moved[name + MEMORY] = slopes[0][name]
        else:
            moved[name] = combined(stage, dt, *own)
    return moved
