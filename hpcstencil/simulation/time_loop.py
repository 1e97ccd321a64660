"""The compiled loop over many steps, in two forms.

fused   one device per process: the whole loop, mpi4jax exchange included, is one `jit`
phased  several devices per process: `pmap` with `ppermute` inside. If processes exchange too, the loop leaves the
        compiled code for that: edge strips go to one device, mpi4jax exchanges them there, and they return

mpi4jax cannot be called in code mapped over several devices, hence the second form. A `Stepper` takes single steps.
Native code takes as many steps as one exchange allows, or takes a step section by section, with an exchange for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.backends.native.ffi_call import Native
from hpcstencil.backends.native.thin_blocks import Section
from hpcstencil.backends.xla.time_step import Attempt, Stepper
from hpcstencil.distributed.device_grid import Body, Machine, among
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Frame, Value

# A function (fields, parameters, base_time, first, dt, n) -> fields after n steps. Step i = 0 .. n - 1 goes from
# t = base_time + (first + i) dt to t + dt. The memory of the given fields is reused. If members of an ensemble take
# their own steps, base_time, first, dt and n are arrays.
Advance = Callable[[Fields, Mapping[str, Any], Any, Any, Any, Any], Fields]
# A function of (fields, ghost cells per axis, their widths, frame, parameters, (t0, first, dt, n), in place) that returns
# (fields after n steps, `Problem.errors` of the last one).
NativeSteps = Callable[
    [Fields, Any, tuple[int, ...], Frame, Any, tuple[Any, Any, Any, Any], bool], tuple[Fields, Fields]
]


def by_stepper(stepper: Stepper, together: int = 1) -> Advance:
    """Steps taken one by one by XLA's kernels; ``together`` as in `repeated`."""
    machine, every = stepper.machine, stepper.every

    def steps(framed: dict[str, Value], frame: Frame, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        """Steps first .. first + n - 1 on a block with halo, cropped to the block."""
        step = stepper.step(parameters, frame)

        def body(i: Any, u: dict[str, Value]) -> dict[str, Value]:
            after = step(u, t0 + (first + i) * dt, dt, None)
            new, old = ({name: values[name].array for name in u} for values in (after, u))
            return {name: replace(u[name], array=array) for name, array in going_on(i < n, new, old).items()}

        return machine.cropped(repeated(most(n), body, framed, together))

    def loop(fields: Fields, places: Any, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        frame = machine.frame(places)

        def one(i: Any, u: Fields) -> Fields:
            after = step(stepper.framed(u, frame), t0 + (first + i) * dt, dt, machine.interior)
            return going_on(i < n, machine.cropped(after), u)

        def block(b: Any, u: Fields) -> Fields:
            done = b * every
            count = jnp.minimum(every, n - done)
            return steps(stepper.framed(u, frame), frame, parameters, t0, first + done, dt, count)

        if every > 1:
            return lax.fori_loop(0, (most(n) + every - 1) // every, block, fields)
        step = stepper.step(parameters, frame)
        return repeated(most(n), one, fields, together if every else 1)

    if not machine.leaves_compiled_code:
        return fused(machine, loop)
    if every:
        return in_blocks(machine.exchanged(steps, stepper.widths, has_loop=True, donate=True), every)
    return in_blocks(one_in_pieces(stepper), 1)


def by_native_code(
    native: NativeSteps, machine: Machine, every: int, widths: tuple[int, ...], alone: bool, members: int
) -> Advance:
    """Steps taken by native code. One call takes all steps if no exchange is needed, or if native code exchanges
    ``alone`` through shared memory; otherwise ``every`` steps, with ghost cells of these ``widths``. The ``members`` of
    an ensemble follow each other."""

    def block(u: Fields, ghosts: Any, frame: Frame, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        def of_one(u: Fields, ghosts: Any, parameters: Any, clock: Any) -> Fields:
            return native(u, ghosts, widths, frame, parameters, clock, alone)[0]

        if members:
            return one_by_one(of_one, members, u, ghosts, parameters, (t0, first, dt, n))
        return of_one(u, ghosts, parameters, (t0, first, dt, n))

    def loop(fields: Fields, places: Any, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        frame = machine.frame(places)

        def one(u: Fields, done: Any) -> Fields:
            ghosts = machine.received(u, widths, frame, {})
            return block(u, ghosts, frame, parameters, t0, first + done, dt, jnp.clip(n - done, 0, every))

        def two(b: Any, u: Fields) -> Fields:  # XLA copies the loop's carry, unless it alternates between two arrays
            return one(one(u, 2 * b * every), (2 * b + 1) * every)

        if alone:
            return block(fields, {}, frame, parameters, t0, first, dt, n)
        return lax.fori_loop(0, (most(n) + 2 * every - 1) // (2 * every), two, fields)

    if machine.leaves_compiled_code:
        return in_blocks(machine.beside_received(block, widths, donate=True), every)
    return fused(machine, loop)


def by_sections(native: Native, machine: Machine, members: int) -> Advance:
    """Steps taken by native code section by section, with an exchange before each section. The ``members`` of an
    ensemble follow each other."""
    if machine.leaves_compiled_code:
        return in_blocks(one_by_sections(native, machine, members), 1)

    def loop(fields: Fields, places: Any, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        frame = machine.frame(places)

        def one(i: Any, u: Fields) -> Fields:
            arrays = native.arrays(u)
            for section in native.program.sections:
                widths = machine.widths_of(section.reach)
                ghosts = machine.received(among(arrays, section.sent), widths, frame, {})
                clock = t0, first + i, dt, jnp.ones_like(n)
                arrays |= section_made(native, section, machine, members, arrays, ghosts, frame, parameters, clock)
            return going_on(i < n, native.ended(arrays)[0], u)

        return lax.fori_loop(0, most(n), one, fields)

    return fused(machine, loop)


def one_by_sections(native: Native, machine: Machine, members: int) -> Advance:
    """At most one step per call, with a compiled call for each section."""
    step = in_sections(native, machine, members)

    def chosen(new: Fields, old: Fields, active: Any) -> Fields:
        return going_on(active, new, old)

    choose = machine.compiled(chosen, 1)

    def block(fields: Fields, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        after = step(fields, parameters, (t0, first, dt, np.ones_like(n)))[0]
        return choose(after, fields, n > 0) if np.ndim(n) else after if n else fields

    return block


def in_sections(native: Native, machine: Machine, members: int) -> Callable[[Fields, Any, Any], tuple[Fields, Fields]]:
    """The function step(fields, parameters, clock) -> (fields, their `Problem.errors`), with a compiled call for each
    section."""

    def compiled(section: Section) -> Body:
        def body(arrays: Any, ghosts: Any, frame: Frame, parameters: Any, clock: Any) -> Any:
            return section_made(native, section, machine, members, arrays, ghosts, frame, parameters, clock)

        return machine.beside_received(body, machine.widths_of(section.reach), donate=False, names=section.sent)

    programs = [(section, compiled(section)) for section in native.program.sections]

    def step(fields: Fields, parameters: Any, clock: Any) -> tuple[Fields, Fields]:
        arrays = native.arrays(fields)
        for section, program in programs:
            arrays |= jax.block_until_ready(program(among(arrays, section.given), parameters, clock))
        return native.ended(arrays)

    return step


def section_made(
    native: Native,
    section: Section,
    machine: Machine,
    members: int,
    arrays: Mapping[int, Any],
    ghosts: Any,
    frame: Frame,
    parameters: Any,
    clock: Any,
) -> dict[int, Any]:
    """The arrays that a section computes from its given arrays and from the ghost cells of those that are exchanged."""
    widths = machine.widths_of(section.reach)

    def of_one(arrays: Any, ghosts: Any, parameters: Any, clock: Any) -> Any:
        return native.section(section, arrays, ghosts, widths, frame, parameters, clock)

    given = among(arrays, section.given)
    if members:
        return one_by_one(of_one, members, given, ghosts, parameters, clock)
    return of_one(given, ghosts, parameters, clock)


def native_attempt(native: NativeSteps, machine: Machine, widths: tuple[int, ...]) -> Attempt:
    """Like `Stepper.attempt`, by native code with ghost cells of these ``widths``."""

    def body(fields: Fields, ghosts: Any, frame: Frame, parameters: Any, t: Any, dt: Any) -> tuple[Fields, Fields]:
        return native(fields, ghosts, widths, frame, parameters, (t, 0, dt, 1), False)

    return machine.beside_received(body, widths, donate=False)


def attempt_by_sections(native: Native, machine: Machine) -> Attempt:
    """Like `native_attempt`, section by section."""
    step = in_sections(native, machine, 0)
    return lambda fields, parameters, t, dt: step(fields, parameters, (t, 0, dt, 1))


# ---- the two forms ----


def fused(machine: Machine, loop: Body) -> Advance:
    """The ``loop``, a function of (fields, places, the other arguments of `Advance`), as one compiled call."""
    compiled = machine.compiled(loop, 5, donate=True)
    return lambda fields, *arguments: compiled(fields, machine.places, *arguments)


def in_blocks(block: Advance, every: int) -> Advance:
    """Repeated calls of ``block``, each with at most ``every`` steps."""

    def advance(fields: Fields, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        for done in range(0, int(most(n)) or 1, every):  # zero steps still compile
            count = np.minimum(every, n - done)
            fields = jax.block_until_ready(block(fields, parameters, t0, first + done, dt, count))
        return fields

    return advance


def one_in_pieces(stepper: Stepper) -> Advance:
    """At most one step per call, with an exchange outside compiled code for each evaluation."""
    step = stepper.in_pieces()

    def chosen(new: Fields, old: Fields, active: Any) -> Fields:
        return going_on(active, new, old)

    choose = stepper.machine.compiled(chosen, 1)

    def block(fields: Fields, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        after, _ = step(fields, parameters, t0 + first * dt, dt)
        return choose(after, fields, n > 0) if np.ndim(n) else after if n else fields

    return block


# ---- loops, and the members of an ensemble in them ----


def repeated(n: Any, step: Callable[[Any, Any], Any], u: Any, together: int) -> Any:
    """step(i, u) for i = 0 .. n - 1, with ``together`` of them in each round of a loop.

    On GPUs two or more save a copy: a step writes its result elsewhere, and the next one may write where the first
    began. They also save waiting, since the host waits after each round to know whether another one follows. Each of
    them is compiled.
    """
    if together == 1:
        return lax.fori_loop(0, n, step, u)
    one, rounds = jax.jit(step), n // together

    def several(r: Any, u: Any) -> Any:
        for j in range(together):
            u = one(r * together + j, u)
        return u

    return lax.fori_loop(rounds * together, n, one, lax.fori_loop(0, rounds, several, u))


def most(n: Any) -> Any:
    """The largest number of steps of any member."""
    return jnp.max(n) if jnp.ndim(n) else n


def going_on(active: Any, new: Fields, old: Fields) -> Fields:
    """The new fields of the members that are ``active`` and the old ones of the rest; all new fields if the members
    step together."""
    return {name: jnp.where(active, new[name], old[name]) for name in old} if jnp.ndim(active) else new


def one_by_one(
    body: Body, members: int, u: Any, ghosts: Any, parameters: Mapping[str, Any], clock: Any
) -> dict[Any, Any]:
    """``body(u, ghosts, parameters, clock)`` for one member of an ensemble after the other. Arrays have a last axis of
    members; parameters and clocks have a value per member, or one for all."""
    front, back = (
        lambda tree, ends=ends: jax.tree.map(lambda a: jnp.moveaxis(a, *ends), tree) for ends in ((-1, 0), (0, -1))
    )
    own = jax.tree.map(lambda x: jnp.broadcast_to(x, (members,)), (dict(parameters), clock))
    return back(lax.map(lambda member: body(*member), (front(u), front(ghosts), *own)))
