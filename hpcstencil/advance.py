"""The compiled step loop in its two forms, made from one one-step body.

fused   one device per process: the whole loop, mpi4jax exchange included, is one `jit`
phased  several devices per process: `pmap` with `ppermute` inside; where processes have to exchange as well, the loop
        leaves the compiled code for that: edge strips go to one device, mpi4jax exchanges them there, and they return

mpi4jax cannot be called in code mapped over several devices, hence the second form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.evaluate import RightHandSide
from hpcstencil.frame import Frame, Value
from hpcstencil.halo import Fields
from hpcstencil.integrators import Method, Stage
from hpcstencil.machine import Body, Machine
from hpcstencil.stepping import fields_of, repeated, take, uniform

Advance = Callable[[Fields, Mapping[str, Any], Any, Any, Any, Any], Fields]
# Fields after n steps, of (fields, ghost cells per axis, their widths, frame, parameters, (t0, first, dt, n), in place)
NativeSteps = Callable[[Fields, Any, tuple[int, ...], Frame, Any, tuple[Any, Any, Any, Any], bool], Fields]
# Fields after a step, of (fields, t, dt, windows that are wanted at the least, or None for those of the fields)
Step = Callable[[Mapping[str, Value], Any, Any, Any], dict[str, Value]]
Attempt = Callable[[Fields, Mapping[str, float], float, float], tuple[Fields, Fields]]


@dataclass(frozen=True)
class Stepper:
    """A right-hand side and a method on a machine. ``groups`` tells the fields of a partitioned method apart; ``every``
    steps are taken between two halo exchanges, 0 meaning an exchange for each evaluation. ``apart`` is the right-hand side of
    the second stage, where the method takes parts of it apart. In its place ``native`` code takes many steps, any number of
    them where it ``exchanges`` by itself, or a ``kernel`` (of parameters and frame) single ones. ``together`` as
    `stepping.repeated` has it; ``members`` counts those of an ensemble."""

    machine: Machine
    rhs: RightHandSide
    method: Method
    groups: Mapping[str, int]
    every: int
    apart: RightHandSide | None = None
    native: NativeSteps | None = None
    exchanges: bool = False
    members: int = 0
    kernel: Callable[[Any, Frame], Step] | None = None
    together: int = 1

    def rhs_of(self, j: int) -> RightHandSide:
        """The right-hand side whose slopes at the j-th value the method uses."""
        return self.rhs if j == 0 or self.apart is None else self.apart

    @property
    def interior(self) -> tuple[tuple[int, int], ...]:
        return tuple((0, n) for n in self.machine.topology.capacity())

    @property
    def widths(self) -> tuple[int, ...]:
        """Ghost cells per axis of one exchange."""
        return self.machine.widths(self.every * self.method.evaluations or 1)

    def one_step(self, u: dict[str, Value], parameters: Any, t: Any, dt: Any, frame: Frame) -> tuple[Any, Any]:
        """(fields after a step, estimate of their error) on the windows that are left of those of ``u``."""

        def slope(j: int, y: Any) -> Any:
            return self.rhs_of(j)(y, parameters, t + self.method.nodes[j] * dt, frame)

        def combine(i: int, stage: Stage, y: Any, k: Any) -> Any:
            return fields_of(stage, i - 1, y, k, self.groups, dt)

        def loop(u: dict[str, Value], before: Any, last: dict[str, Value], k0: Any) -> dict[str, Value]:
            """Stages on arrays of constant shape, of which each leaves a rim that is not valid any more."""
            kept: dict[str, Any] = {}

            def body(n: Any, carry: Any) -> Any:
                y = {0: u, -1: carry[0], -2: carry[1]}
                k = {0: k0, -1: self.rhs(y[-1], parameters, t + nodes[n] * dt, frame)}
                new = fields_of(uniform(self.method, weights[n]), 0, y, k, {}, dt)
                kept.update({name: value.windows for name, value in new.items()})
                return {name: padded(new[name], u[name].windows) for name in u}, carry[0]

            weights, nodes = self.uniform_stages()
            whole = [{name: padded(y[name], u[name].windows) for name in u} for y in (last, before)]
            result, _ = lax.fori_loop(0, len(weights), body, (whole[0], whole[1]))
            return {
                name: value.crop(shrunk(last[name].windows, value.windows, kept[name], len(weights)))
                for name, value in result.items()
            }

        return take(self.method, u, slope, combine, loop)

    def single_step(self, parameters: Any, frame: Frame) -> Step:
        """What takes one step."""
        if self.kernel is not None:
            return self.kernel(parameters, frame)

        def step(u: Mapping[str, Value], t: Any, dt: Any, ends: Any) -> dict[str, Value]:
            new, _ = self.one_step(dict(u), parameters, t, dt, frame)
            return new if ends else {name: padded(new[name], u[name].windows) for name in u}

        return step

    def uniform_stages(self) -> tuple[Any, Any]:
        """Weights of the stages that are taken in a loop, and the nodes of the values that their slopes are taken at."""
        nodes = np.array(self.method.nodes[self.method.uniform_from : -1])
        return jnp.asarray(self.method.uniform_weights), jnp.asarray(nodes)

    def cropped(self, fields: Mapping[str, Value]) -> Fields:
        """The block's own cells."""
        return {name: value.crop(self.interior).array for name, value in fields.items()}

    # ---- many steps ----

    def advance(self) -> Advance:
        """The function advance(fields, parameters, base_time, first, dt, n) that takes n steps.

        Step i = 0 .. n - 1 of them goes from t = base_time + (first + i) dt to t + dt. The fields given are used up
        (their memory is reused). Where members of an ensemble take steps of their own, base_time, first, dt and n are arrays.
        """
        if self.native is not None:
            return self._by_native_code(self.native)
        if self.machine.leaves_compiled_code:
            return self._phased()
        machine, every, widths = self.machine, self.every, self.widths

        def loop(fields: Fields, places: Any, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
            frame = machine.frame(places)
            step = self.single_step(parameters, frame)

            def one(i: Any, u: Fields) -> Fields:
                return going_on(i < n, self._exchanging_step(u, parameters, t0 + (first + i) * dt, dt, frame)[0], u)

            def block(b: Any, u: Fields) -> Fields:
                framed = machine.surrounded(u, widths, frame, {})
                start, count = first + b * every, jnp.minimum(every, n - b * every)
                if every == 1:  # the loop over exchanges is around this
                    return going_on(count > 0, self.cropped(step(framed, t0 + start * dt, dt, self.interior)), u)
                return self._steps(framed, frame, parameters, t0, start, dt, count)

            if every == 1:
                return repeated(most(n), block, fields, self.together)
            if every:
                return lax.fori_loop(0, (most(n) + every - 1) // every, block, fields)
            return lax.fori_loop(0, most(n), one, fields)

        compiled = machine.compiled(loop, 5, donate=True)
        return lambda fields, *arguments: compiled(fields, machine.places, *arguments)

    def _steps(
        self, framed: dict[str, Value], frame: Frame, parameters: Any, t0: Any, first: Any, dt: Any, n: Any
    ) -> Fields:
        """Steps first .. first + n - 1 on a block with halo, cropped to the block."""

        step = self.single_step(parameters, frame)

        def body(i: Any, u: dict[str, Value]) -> dict[str, Value]:
            after = step(u, t0 + (first + i) * dt, dt, None)
            new, old = ({name: values[name].array for name in u} for values in (after, u))
            return {name: replace(u[name], array=array) for name, array in going_on(i < n, new, old).items()}

        return self.cropped(repeated(most(n), body, framed, self.together))

    def _exchanging_step(self, u: Fields, parameters: Any, t: Any, dt: Any, frame: Frame) -> tuple[Fields, Any]:
        """One step with an exchange for every evaluation, inside compiled code."""

        def slope(j: int, y: Fields) -> Fields:
            framed = self.machine.surrounded(y, self.widths, frame, {})
            return self.cropped(self.rhs_of(j)(framed, parameters, t + self.method.nodes[j] * dt, frame))

        def loop(u: Fields, before: Fields, last: Fields, k0: Fields) -> Fields:
            def body(n: Any, carry: Any) -> Any:
                framed = self.machine.surrounded(carry[0], self.widths, frame, {})
                k = self.cropped(self.rhs(framed, parameters, t + nodes[n] * dt, frame))
                y = {0: u, -1: carry[0], -2: carry[1]}
                return self._whole(0, uniform(self.method, weights[n]), y, {0: k0, -1: k}, dt), carry[0]

            weights, nodes = self.uniform_stages()
            return lax.fori_loop(0, len(weights), body, (last, before))[0]

        return take(self.method, u, slope, lambda i, stage, y, k: self._whole(i, stage, y, k, dt), loop)

    def _whole(self, i: int, stage: Stage, y: Mapping[int, Fields], k: Mapping[int, Fields], dt: Any) -> Fields:
        """A stage's combination on the block's own cells."""
        values, slopes = (
            {j: {name: Value(array, self.interior) for name, array in fields.items()} for j, fields in x.items()}
            for x in (y, k)
        )
        return {name: v.array for name, v in fields_of(stage, i - 1, values, slopes, self.groups, dt).items()}

    def _by_native_code(self, native: NativeSteps) -> Advance:
        """`advance` by native code: as many steps as there are in one call, or as many as the ghost cells last for."""
        machine, every, widths = self.machine, self.every, self.widths
        alone = self.exchanges or not any(widths)

        def block(
            u: Fields, ghosts: Any, frame: Frame, parameters: Any, t0: Any, first: Any, dt: Any, n: Any
        ) -> Fields:
            def of_one(u: Fields, ghosts: Any, parameters: Any, clock: Any) -> Fields:
                return native(u, ghosts, widths, frame, parameters, clock, alone)

            if self.members:
                return one_by_one(of_one, self.members, u, ghosts, parameters, (t0, first, dt, n))
            return of_one(u, ghosts, parameters, (t0, first, dt, n))

        if machine.leaves_compiled_code:
            return self._in_blocks(machine.beside_received(block, widths))

        def loop(fields: Fields, places: Any, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
            frame = machine.frame(places)

            def one(u: Fields, done: Any) -> Fields:
                ghosts = machine.received(u, widths, frame, {})
                return block(u, ghosts, frame, parameters, t0, first + done, dt, jnp.clip(n - done, 0, every))

            def two(b: Any, u: Fields) -> Fields:  # XLA copies what goes around a loop, unless it goes back and forth
                return one(one(u, 2 * b * every), (2 * b + 1) * every)

            if alone:
                return block(fields, {}, frame, parameters, t0, first, dt, n)
            return lax.fori_loop(0, (most(n) + 2 * every - 1) // (2 * every), two, fields)

        compiled = machine.compiled(loop, 5, donate=True)
        return lambda fields, *arguments: compiled(fields, machine.places, *arguments)

    # ---- the form that leaves compiled code ----

    def _phased(self) -> Advance:
        """`advance` where exchanges happen outside of compiled code."""
        if self.every == 0:
            step = self._step_in_pieces()

            def chosen(new: Fields, old: Fields, active: Any) -> Fields:
                return going_on(active, new, old)

            choose = self.machine.compiled(chosen, 1)

            def stepwise(fields: Fields, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
                for i in range(int(most(n)) or 1):  # no step at all still compiles
                    after, _ = step(fields, parameters, t0 + (first + i) * dt, dt)
                    fields = choose(after, fields, i < n) if np.ndim(n) else after if n else fields
                return fields

            return stepwise
        return self._in_blocks(self.machine.exchanged(self._steps, self.widths, has_loop=True, donate=True))

    def _in_blocks(self, block: Body) -> Advance:
        """`advance` made of calls that take as many steps as one exchange allows."""
        every = self.every

        def advance(fields: Fields, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
            for done in range(0, int(most(n)) or 1, every):
                count = np.minimum(every, n - done)
                fields = jax.block_until_ready(block(fields, parameters, t0, first + done, dt, count))
            return fields

        return advance

    def slopes(self, j: int) -> Body:
        """The function slopes(fields, parameters, t) of the j-th value, after an exchange of its own."""

        def body(y: dict[str, Value], frame: Frame, parameters: Any, t: Any) -> Fields:
            return self.cropped(self.rhs_of(j)(y, parameters, t, frame))

        return self.machine.exchanged(body, self.machine.widths(1))

    def _step_in_pieces(self) -> Attempt:
        """One step, each evaluation and each combination a compiled call of its own."""
        evaluate = self.slopes(0)
        evaluate_later = evaluate if self.apart is None else self.slopes(1)
        combinations: dict[int, Body] = {}

        def combination(i: int, stage: Stage) -> Body:
            def body(y: Any, k: Any, dt: Any) -> Fields:
                return self._whole(i, stage, y, k, dt)

            return combinations.setdefault(i, self.machine.compiled(body, 1))

        def uniform_body(y: Any, k: Any, weights: Any, dt: Any) -> Fields:
            return self._whole(0, uniform(self.method, weights), y, k, dt)

        combine_uniform = self.machine.compiled(uniform_body, 2)

        def step(fields: Fields, parameters: Any, t: float, dt: float) -> tuple[Fields, Any]:
            def slope(j: int, y: Fields, node: float) -> Fields:
                return jax.block_until_ready((evaluate_later if j else evaluate)(y, parameters, t + node * dt))

            def loop(u: Fields, before: Fields, last: Fields, k0: Fields) -> Fields:
                for weights, node in zip(
                    self.method.uniform_weights, self.method.nodes[self.method.uniform_from :], strict=False
                ):
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

    # ---- one step with an estimate of its error ----

    def attempt(self) -> Attempt:
        """The function attempt(fields, parameters, t, dt) -> (fields after one step, estimate of their error), of a method
        that has one; the fields given are kept."""
        if self.every == 0:
            return self._step_in_pieces()

        def body(u: dict[str, Value], frame: Frame, parameters: Any, t: Any, dt: Any) -> tuple[Fields, Fields]:
            new, error = self.one_step(u, parameters, t, dt, frame)
            return self.cropped(new), self.cropped(error)

        return self.machine.exchanged(body, self.widths)


def one_by_one(body: Body, members: int, u: Fields, ghosts: Any, parameters: Mapping[str, Any], clock: Any) -> Fields:
    """``body(u, ghosts, parameters, clock)`` of each member of an ensemble in turn. Arrays have a last axis of members;
    parameters and clocks have values for each, or one for all."""
    front, back = (
        lambda tree, ends=ends: jax.tree.map(lambda a: jnp.moveaxis(a, *ends), tree) for ends in ((-1, 0), (0, -1))
    )
    own = jax.tree.map(lambda x: jnp.broadcast_to(x, (members,)), (dict(parameters), clock))
    return back(lax.map(lambda member: body(*member), (front(u), front(ghosts), *own)))


def most(n: Any) -> Any:
    """The most steps that any member takes."""
    return jnp.max(n) if jnp.ndim(n) else n


def going_on(active: Any, new: Fields, old: Fields) -> Fields:
    """The new fields of the members that are ``active``, all of them where they go together, and the old ones of the rest."""
    return {name: jnp.where(active, new[name], old[name]) for name in old} if jnp.ndim(active) else new


def shrunk(windows: Any, before: Any, after: Any, times: int) -> Any:
    """Windows from which so many times is taken what one time takes from ``before``, leaving ``after``."""
    return tuple(
        (w[0] + times * (b[0] - a[0]), w[1] + times * (b[1] - a[1]))
        for w, a, b in zip(windows, before, after, strict=True)
    )


def padded(value: Value, windows: Any) -> Value:
    """The value on larger windows, zeros (never read as valid) in the rim."""
    padding = []
    for have, want in zip(value.windows, windows, strict=True):
        assert have is not None  # fields have a window on every axis
        padding.append((have[0] - want[0], want[1] - have[1], 0))
    padding += [(0, 0, 0)] * (value.array.ndim - len(padding))  # of members
    return Value(lax.pad(value.array, value.array.dtype.type(0), padding), windows)
