"""One time step on a block, in array code.

If the halo is wide enough, all evaluations of the right-hand side in a step share one halo exchange, and the step is a
single compiled function. Otherwise each evaluation has its own exchange; the step may then be split into several compiled
calls. Either form can also return an error estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from hpcstencil.backends.xla.evaluate import RightHandSide
from hpcstencil.backends.xla.stage_walk import Values, fields_of, take, uniform
from hpcstencil.distributed.device_blocks import values
from hpcstencil.distributed.device_grid import Body, DeviceGrid
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import STEP_SIZE, Frame, Number, Parameters, Value, Windows
from hpcstencil.numerics.integrators import ERROR, NEW, Method, Stage

V = TypeVar("V")
# (fields, t, dt, windows) -> fields after a step. ``windows`` is the smallest range of cells that the caller needs; with
# None the results keep the windows of the input fields.
Step = Callable[[Mapping[str, Value], Number, Number, Windows | None], dict[str, Value]]
# (fields, parameters, t, dt) -> (fields after a step, measure of their estimated error)
Attempt = Callable[[Fields, Parameters, Number, Number], tuple[Fields, Any]]


@dataclass(frozen=True)
class Stepper:
    """A right-hand side (``rhs``) and an integration method on a grid of blocks.

    Attributes
    ----------
    groups
        The group of each field, for a partitioned method.
    steps_per_exchange
        The number of steps between two halo exchanges; 0 if each evaluation of ``rhs`` has its own exchange.
    others
        The right-hand sides at those stage values, by number, where it is not ``rhs``.
    """

    device_grid: DeviceGrid
    rhs: RightHandSide
    method: Method
    groups: Mapping[str, int]
    steps_per_exchange: int
    others: Mapping[int, RightHandSide] = field(default_factory=dict)

    def rhs_of(self, j: int) -> RightHandSide:
        """Return the right-hand side evaluated at the j-th stage value."""
        return self.others.get(j, self.rhs)

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of ghost cells per axis and side that one exchange fills."""
        return self.device_grid.widths(self.steps_per_exchange * self.method.evaluations or 1)

    def framed(self, fields: Fields, frame: Frame) -> dict[str, Value]:
        """Return the fields of a device's block as the input of a step, for use inside compiled code.

        They are padded with ghost cells, unless each evaluation has its own exchange.
        """
        if self.steps_per_exchange == 0:
            return values(fields, self.device_grid.interior)
        return self.device_grid.surrounded(fields, self.widths, frame)

    # ---- inside compiled code ----

    def step(self, parameters: Parameters, frame: Frame) -> Step:
        """Return the `Step` function for these parameters, for use inside compiled code."""

        def step(u: Mapping[str, Value], t: Number, dt: Number, ends: Windows | None) -> dict[str, Value]:
            new, _ = self.one_step(dict(u), parameters, t, dt, frame)
            return new if ends else {name: padded(new[name], u[name].windows) for name in u}

        return step

    def one_step(
        self, u: dict[str, Value], parameters: Parameters, t: Number, dt: Number, frame: Frame
    ) -> tuple[Any, Any]:
        """Return (fields after a step, estimate of their error or None), for use inside compiled code.

        Both cover the part of the windows of ``u`` that is still valid after all evaluations.
        """

        known = {**parameters, STEP_SIZE: dt}

        def evaluate(rhs: RightHandSide, y: Mapping[str, Value], time: Number) -> dict[str, Value]:
            if self.steps_per_exchange:
                return rhs(y, known, time, frame)
            own = {name: value.array for name, value in y.items()}
            slopes = rhs(self.device_grid.surrounded(own, self.widths, frame), known, time, frame)
            return {name: value.crop(self.device_grid.interior) for name, value in slopes.items()}

        def slope(j: int, y: Mapping[str, Value]) -> dict[str, Value]:
            return evaluate(self.rhs_of(j), y, t + self.method.nodes[j] * dt)

        def combine(i: int, stage: Stage, y: Mapping[int, Values], k: Mapping[int, Values]) -> dict[str, Value]:
            return fields_of(stage, i - 1, y, k, self.groups, dt)

        def loop(
            u: dict[str, Value], before: dict[str, Value], last: dict[str, Value], k0: dict[str, Value]
        ) -> dict[str, Value]:
            """Take the uniform stages on arrays of constant shape; each may invalidate an outer rim of cells."""
            kept: dict[str, Any] = {}

            def body(n: jax.Array, carry: tuple[dict[str, Value], dict[str, Value]]) -> Any:
                y = {0: u, -1: carry[0], -2: carry[1]}
                k = {0: k0, -1: evaluate(self.rhs, y[-1], t + nodes[n] * dt)}
                new = fields_of(uniform(self.method, weights[n]), 0, y, k, {}, dt)
                kept.update({name: value.windows for name, value in new.items()})
                return {name: padded(new[name], u[name].windows) for name in u}, carry[0]

            weights, nodes = jnp.asarray(self.method.uniform_weights), jnp.asarray(self.method.uniform_nodes)
            whole = [{name: padded(y[name], u[name].windows) for name in u} for y in (last, before)]
            result, _ = lax.fori_loop(0, len(weights), body, (whole[0], whole[1]))
            return {
                name: value.crop(shrunk(last[name].windows, value.windows, kept[name], len(weights)))
                for name, value in result.items()
            }

        return take(self.method, u, slope, combine, loop)

    # ---- functions of fields ----

    def attempt(self, weigh: RightHandSide) -> Attempt:
        """Return the function (fields, parameters, t, dt) -> (fields after one step, measure of their error).

        ``weigh`` computes the measure from the fields before and after the step and the estimated error. The input
        fields are not overwritten. The method must have an error estimate.
        """

        def weighed(state: dict[str, Value], frame: Frame, parameters: Parameters, t: Number) -> Fields:
            return self.device_grid.cropped(weigh(state, parameters, t, frame))

        def body(
            u: dict[str, Value], frame: Frame, parameters: Parameters, t: Number, dt: Number
        ) -> tuple[Fields, Fields]:
            new, error = self.one_step(u, parameters, t, dt, frame)
            return self.device_grid.cropped(new), weighed(with_error(u, new, error), frame, parameters, t)

        if self.steps_per_exchange:
            return self.device_grid.exchanged(body, self.widths)
        step, measure = self.in_pieces(), self.device_grid.exchanged(weighed, (0,) * self.device_grid.grid.ndim)

        def attempt(fields: Fields, parameters: Parameters, t: Number, dt: Number) -> tuple[Fields, Any]:
            new, error = step(fields, parameters, t, dt)
            return new, measure(with_error(fields, new, error), parameters, t)

        return attempt

    def slopes(self, rhs: RightHandSide) -> Body:
        """Return the function (fields, parameters, t) -> time derivatives by field, according to ``rhs``.

        The function exchanges halos first. Its fields and time derivatives have no ghost cells. The parameters must hold
        `STEP_SIZE` if the method takes damping implicitly.
        """

        def body(y: dict[str, Value], frame: Frame, parameters: Parameters, t: Number) -> Fields:
            return self.device_grid.cropped(rhs(y, parameters, t, frame))

        return self.device_grid.exchanged(body, self.device_grid.widths(1))

    def in_pieces(self) -> Attempt:
        """Return the function (fields, parameters, t, dt) -> (fields after one step, estimate of their error or None).

        All fields are without ghost cells. Each evaluation of the right-hand side and each linear combination is a
        separate compiled call, so that halos can be exchanged between them.
        """
        evaluate = cache(self.slopes)

        def combined(i: int, stage: Stage, y: Mapping[int, Fields], k: Mapping[int, Fields], dt: Number) -> Fields:
            at, rates = ({j: values(fields, self.device_grid.interior) for j, fields in x.items()} for x in (y, k))
            return self.device_grid.cropped(fields_of(stage, i - 1, at, rates, self.groups, dt))

        @cache
        def combination(i: int, stage: Stage) -> Body:
            def body(y: Mapping[int, Fields], k: Mapping[int, Fields], dt: Number) -> Fields:
                return combined(i, stage, y, k, dt)

            return self.device_grid.compiled(body, 1)

        def uniform_body(y: Mapping[int, Fields], k: Mapping[int, Fields], weights: jax.Array, dt: Number) -> Fields:
            return combined(0, uniform(self.method, weights), y, k, dt)

        combine_uniform = self.device_grid.compiled(uniform_body, 2)

        def step(fields: Fields, parameters: Parameters, t: Number, dt: Number) -> tuple[Fields, Any]:
            known = {**parameters, STEP_SIZE: dt}

            def slope(j: int, y: Fields, node: float) -> Fields:
                return jax.block_until_ready(evaluate(self.rhs_of(j))(y, known, t + node * dt))

            def loop(u: Fields, before: Fields, last: Fields, k0: Fields) -> Fields:
                for weights, node in zip(self.method.uniform_weights, self.method.uniform_nodes, strict=True):
                    y = {0: u, -1: last, -2: before}
                    before, last = last, combine_uniform(y, {0: k0, -1: slope(0, last, node)}, weights, dt)
                return last

            return take(
                self.method,
                fields,
                lambda j, y: slope(j, y, self.method.nodes[j]),
                lambda i, stage, y, k: combination(i, stage)(y, k, dt),
                loop,
            )

        return step


def with_error(u: Mapping[str, V], new: Mapping[str, V], error: Mapping[str, V]) -> dict[str, V]:
    """Return the fields before (``u``) and after (``new``) a step and their errors, named as `Problem.errors` expects."""
    return {**u, **{NEW + name: y for name, y in new.items()}, **{ERROR + name: e for name, e in error.items()}}


def shrunk(windows: Any, before: Any, after: Any, times: int) -> Windows:
    """Return ``windows`` shrunk ``times`` times, each time by the difference between ``before`` and ``after``."""
    return tuple(
        (w[0] + times * (b[0] - a[0]), w[1] + times * (b[1] - a[1]))
        for w, a, b in zip(windows, before, after, strict=True)
    )


def padded(value: Value, windows: Windows) -> Value:
    """Return the value padded with zeros to larger ``windows``. No valid result depends on the added cells."""
    padding = []
    for have, want in zip(value.windows, windows, strict=True):
        assert have is not None and want is not None  # fields have a window on every axis
        padding.append((have[0] - want[0], want[1] - have[1], 0))
    padding += [(0, 0, 0)] * (value.array.ndim - len(padding))  # for the axis of members
    return Value(lax.pad(value.array, value.array.dtype.type(0), padding), windows)
