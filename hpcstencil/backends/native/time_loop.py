"""The compiled loop over many steps of native code, in the two forms of `xla.time_loop`.

A call of native code takes as many steps as one exchange allows. If blocks are too thin for a whole step, the step is taken
section by section, with an exchange before each section.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.backends.backend import Advance, Attempt, Into
from hpcstencil.backends.native.ffi_call import Native, Strips
from hpcstencil.backends.native.thin_blocks import Section
from hpcstencil.backends.xla.reductions import Norm
from hpcstencil.backends.xla.time_loop import chosen_by, fused, going_on, in_blocks, most
from hpcstencil.distributed.device_blocks import Placed
from hpcstencil.distributed.device_grid import NO_OUTER, Body, DeviceGrid, among
from hpcstencil.distributed.exchange import Outer
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Frame, Parameters
from hpcstencil.numerics.schedule import StepRange

SUMS = "error sums"  # the name of the sums among the results of an attempt


def in_calls(native: Native, device_grid: DeviceGrid, every: int, widths: tuple[int, ...], alone: bool) -> Advance:
    """Return the function that advances the fields by calls of native code.

    If ``alone``, one call takes all steps, because no exchange is needed or native code exchanges inside its passes.
    Otherwise a call takes up to ``every`` steps with ghost cells of these ``widths`` (cells per axis).
    """

    def block(u: Fields, ghosts: Strips, frame: Frame, parameters: Parameters, these: StepRange) -> Fields:
        def called(u: Fields, ghosts: Strips, parameters: Parameters, these: StepRange) -> Fields:
            return native.steps(u, ghosts, widths, frame, parameters, these, alone)

        return members_first(called, native.members, u, ghosts, parameters, these)

    def loop(fields: Fields, places: Placed, parameters: Parameters, these: StepRange) -> Fields:
        frame, n = device_grid.frame(places), these.count

        def one(u: Fields, done: int | jax.Array) -> Fields:
            ghosts = device_grid.received(u, widths, frame)
            return block(u, ghosts, frame, parameters, these.part(done, jnp.clip(n - done, 0, every)))

        def two(
            b: jax.Array, u: Fields
        ) -> Fields:  # XLA copies the loop's carry, unless it alternates between two arrays
            return one(one(u, 2 * b * every), (2 * b + 1) * every)

        return lax.fori_loop(0, (most(n) + 2 * every - 1) // (2 * every), two, fields)

    def alone_in_a_call(fields: Fields, places: Placed, parameters: Parameters, these: StepRange) -> Fields:
        return block(fields, {}, device_grid.frame(places), parameters, these)

    if alone:
        compiled = device_grid.compiled_in_place(alone_in_a_call)

        def advance(fields: Fields, parameters: Parameters, these: StepRange) -> Fields:
            after = compiled(fields, device_grid.places, parameters, these)
            # Devices that wait for each other must not starve in a queue of calls (docs/design/forms.md).
            return jax.block_until_ready(after) if device_grid.devices.several else after

        return advance
    if not device_grid.exchange.fused:
        return in_blocks(device_grid.beside_received(block, widths, donate=True), every)
    return fused(device_grid, loop)


def into_room(native: Native, device_grid: DeviceGrid, widths: tuple[int, ...]) -> Into:
    """Return the function that advances the fields in one call, and stores those that change in other memory.

    Native code must need no exchange, or exchange inside its passes.
    """
    kept = native.program.kept

    def body(
        constant: Fields, room: Fields, fields: Fields, places: Placed, parameters: Parameters, these: StepRange
    ) -> tuple[Fields, Fields]:
        frame = device_grid.frame(places)
        after = native.steps({**constant, **fields}, {}, widths, frame, parameters, these, False, room)
        # JAX gives the results the memory of ``constant`` and ``room`` in this order.
        return among(after, constant), among(after, fields)

    compiled = device_grid.compiled(body, 2, donated=(0, 1))

    def into(fields: Fields, room: Fields, parameters: Parameters, these: StepRange) -> Fields:
        constant = among(fields, kept)
        changing = {name: array for name, array in fields.items() if name not in constant}
        taken = {name: array for name, array in room.items() if name in changing}
        same, after = compiled(constant, taken, changing, device_grid.places, parameters, these)
        return {**same, **after}

    return into


def by_sections(native: Native, device_grid: DeviceGrid) -> Advance:
    """Return the function that advances the fields section by section, with an exchange before each section."""
    if not device_grid.exchange.fused:
        return in_blocks(one_by_sections(native, device_grid), 1)

    def loop(fields: Fields, places: Placed, parameters: Parameters, these: StepRange) -> Fields:
        frame, n = device_grid.frame(places), these.count

        def one(i: jax.Array, u: Fields) -> Fields:
            arrays = native.arrays(u)
            for section in native.program.sections:
                widths = device_grid.widths_of(section.reach)
                ghosts = device_grid.received(among(arrays, section.sent), widths, frame)
                this = these.part(i, jnp.ones_like(n))
                arrays |= section_made(native, section, device_grid, arrays, ghosts, frame, parameters, this)
            return going_on(i < n, native.ended(arrays)[0], u)

        return lax.fori_loop(0, most(n), one, fields)

    return fused(device_grid, loop)


def one_by_sections(native: Native, device_grid: DeviceGrid) -> Advance:
    """Return the function that takes at most one step per call, with a separate compiled call for each section."""
    step, chosen = in_sections(native, device_grid), chosen_by(device_grid)

    def block(fields: Fields, parameters: Parameters, these: StepRange) -> Fields:
        arrays = step(native.arrays(fields), parameters, these._replace(count=np.ones_like(these.count)))
        return chosen(native.ended(arrays)[0], fields, these.count)

    return block


def in_sections(
    native: Native, device_grid: DeviceGrid
) -> Callable[[Mapping[int, jax.Array], Parameters, StepRange], dict[int, jax.Array]]:
    """Return the function (`Native.arrays`, parameters, one step) -> these arrays, and those that its sections made.

    All are by number, without ghost cells. Each section is a separate compiled call.
    """

    def compiled(section: Section) -> Body:
        def body(
            arrays: Mapping[int, jax.Array], ghosts: Strips, frame: Frame, parameters: Parameters, this: StepRange
        ) -> dict[int, jax.Array]:
            return section_made(native, section, device_grid, arrays, ghosts, frame, parameters, this)

        return device_grid.beside_received(body, device_grid.widths_of(section.reach), donate=False, names=section.sent)

    programs = [(section, compiled(section)) for section in native.program.sections]

    def step(given: Mapping[int, jax.Array], parameters: Parameters, this: StepRange) -> dict[int, jax.Array]:
        arrays = dict(given)
        for section, program in programs:
            arrays |= jax.block_until_ready(program(among(arrays, section.given), parameters, this))
        return arrays

    return step


def section_made(
    native: Native,
    section: Section,
    device_grid: DeviceGrid,
    arrays: Mapping[int, jax.Array],
    ghosts: Strips,
    frame: Frame,
    parameters: Parameters,
    this: StepRange,
) -> dict[int, jax.Array]:
    """Return the arrays that a section of ``this`` step computes, by number, for use inside compiled code.

    ``arrays`` hold at least the section's inputs. Neither they nor the results have ghost cells; ``ghosts`` are the ghost
    cells, by axis, of the inputs that were exchanged.
    """
    widths = device_grid.widths_of(section.reach)

    def called(
        arrays: Mapping[int, jax.Array], ghosts: Strips, parameters: Parameters, this: StepRange
    ) -> dict[int, jax.Array]:
        return native.section(section, arrays, ghosts, widths, frame, parameters, this)

    return members_first(called, native.members, among(arrays, section.given), ghosts, parameters, this)


def attempt_in_a_call(
    native: Native, device_grid: DeviceGrid, widths: tuple[int, ...], norm: Norm, alone: bool
) -> Attempt:
    """Return the `Attempt` that takes a step in one call of native code, which also sums the errors.

    ``widths`` and ``alone`` are as in `in_calls`. ``norm`` turns the sums of all devices into the error.
    """

    def whole(
        fields: Fields, room: Fields, places: Placed, outer: Outer, shared: tuple[Any, ...]
    ) -> tuple[Fields, Any]:
        frame, (parameters, these) = device_grid.frame(places), shared
        ghosts = {} if alone else device_grid.received(fields, widths, frame, outer)

        def called(u: Fields, ghosts: Strips, parameters: Parameters, these: StepRange) -> dict[Any, jax.Array]:
            after, sums = native.attempt(u, room, ghosts, widths, frame, parameters, these)
            return {**after, SUMS: sums}

        found = members_first(called, native.members, fields, ghosts, parameters, these)
        return found, device_grid.device_sum(found.pop(SUMS))

    run = device_grid.compiled(whole, 1, donated=(1,))
    outside = (lambda _: NO_OUTER) if alone else device_grid.outside(widths)
    make_room = device_grid.compiled(lambda fields: jax.tree.map(jnp.empty_like, fields), 0)

    def attempt(fields: Fields, parameters: Parameters, this: StepRange, room: Fields) -> tuple[Fields, np.ndarray]:
        spare = {} if native.members else room or make_room(fields)
        after, sums = run(fields, spare, device_grid.places, outside(fields), (parameters, this))
        return after, norm(sums)

    return attempt


def by_attempts(attempt: Attempt) -> Advance:
    """Return the function that advances the fields by attempted steps, none of which is rejected.

    A program that estimates errors has no other steps. Of the fields, each step overwrites those of the step before.
    """

    def advance(fields: Fields, parameters: Parameters, these: StepRange) -> Fields:
        room = Fields()
        for i in range(int(most(these.count))):
            this = these.part(i, np.where(i < np.asarray(these.count), 1, 0))
            after, _ = attempt(fields, parameters, this, room)
            fields, room = after, fields
        return fields

    return advance


def attempt_by_sections(native: Native, device_grid: DeviceGrid, sums: Body, norm: Norm) -> Attempt:
    """Return the `Attempt` that takes a step section by section, with an exchange before each section.

    ``sums`` computes those of `error_norm` from the errors by field. ``norm`` is as in `attempt_in_a_call`.
    """
    step = in_sections(native, device_grid)

    def attempt(fields: Fields, parameters: Parameters, this: StepRange, room: Fields) -> tuple[Fields, np.ndarray]:
        arrays = step(native.arrays(fields), parameters, this._replace(count=np.ones_like(this.count)))
        after, errors = native.ended(arrays)
        return after, norm(sums(errors, parameters, 0.0))

    return attempt


def members_first(
    body: Body, members: int, u: Mapping[Any, jax.Array], ghosts: Strips, parameters: Parameters, these: StepRange
) -> dict[Any, jax.Array]:
    """Return ``body(u, ghosts, parameters, these)``, which is called with the members of an ensemble along the first axis.

    The last axis of each input and output array is the member. Without ``members`` (0) arrays are passed as they are.
    """
    if not members:
        return body(u, ghosts, parameters, these)
    front, back = (
        lambda tree, ends=ends: jax.tree.map(lambda a: jnp.moveaxis(a, *ends), tree) for ends in ((-1, 0), (0, -1))
    )
    return back(body(front(u), front(ghosts), parameters, these))
