"""Calls of native programs from compiled XLA code, through XLA's foreign function interface."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.backends.native import compiler
from hpcstencil.backends.native.compiler import (
    SOURCES,
    cache_bytes,
    cache_is_far,
    cache_share,
    compile_in_background,
    library,
)
from hpcstencil.backends.native.edge_exchange import EdgeExchange
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import Program
from hpcstencil.backends.native.snapshot_copies import NativeCopies
from hpcstencil.backends.native.thin_blocks import Section
from hpcstencil.distributed.device_blocks import device_number
from hpcstencil.distributed.exchange import Ghosts
from hpcstencil.distributed.windows import Frame, Parameters
from hpcstencil.io.direct_write import Pieces
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.numerics.error_norm import WORDS
from hpcstencil.numerics.schedule import StepRange

TARGET = "hpcstencil_native"
Strips = Mapping[int, Ghosts]  # axis -> ghost cells (lower, upper) of all fields

# Blocks whose edges native code exchanges. The bridge refers to them by their position in this list, counted from 1, so the
# list only grows.
all_edges: list[EdgeExchange] = []


@cache
def xla_bridge() -> ctypes.CDLL:
    """Load the library through which XLA calls native programs, and register it with XLA, once per process."""
    bridge = library((SOURCES / "xla_bridge.cpp").read_text(encoding="utf-8"), includes=(jax.ffi.include_dir(),))
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(bridge.run_program), platform="cpu")
    return bridge


@dataclass(frozen=True)
class Native:
    """A compiled program, ready to be called from XLA code.

    Attributes
    ----------
    program, library
        The program and the library that was compiled from it.
    number
        The number by which the bridge identifies the program.
    threads
        The largest number of threads that a call uses.
    steps_per_exchange
        The number of steps for which the edges hold ghost cells, if the program exchanges them.
    blocks, first_block
        The number of this process's device blocks whose edges the program exchanges (0 if it exchanges none), and the
        bridge's number of the first of them.
    members
        The number of members of an ensemble, which one call steps; 0 for a single run. With members, the first axis of every
        array, parameter and entry of a step range is the member.
    records
        Whether the recorders of samples, sums, states and snapshots that are set at the time of a call are for this call.
    """

    program: Program
    library: ctypes.CDLL
    number: int
    threads: int
    steps_per_exchange: int = 1
    blocks: int = 0
    first_block: int = 0
    members: int = 0
    records: bool = True

    def all_finite(self) -> bool:
        """Return whether all values that this program has stored in this process since the last call are finite.

        Problems that use the same program share the answer.
        """
        return not self.library.stored_not_finite()

    def copies(self, pieces: Mapping[str, Pieces]) -> Copies:
        """Return snapshot buffers for the ``pieces`` by field.

        If steps are taken in place, the program fills the buffers in the last step of a call. Otherwise the copies are made
        after the call (`NativeCopies.copied`).
        """
        return NativeCopies(pieces, self.library, self.program.fields)

    def steps(
        self,
        fields: Mapping[str, jax.Array],
        strips: Strips,
        widths: Sequence[int],
        frame: Frame,
        parameters: Parameters,
        these: StepRange,
        in_place: bool,
        room: Mapping[str, jax.Array] | None = None,
    ) -> dict[str, jax.Array]:
        """Return the fields after ``these`` steps, by name.

        For use inside compiled code. ``fields`` are the device's own cells, without ghost cells, of shape `Frame.cells` in
        the run's dtype. ``strips`` are the received ghost cells, ``widths`` cells wide per axis; unless the program
        exchanges edges itself, they limit the number of steps. With ``in_place``, the results overwrite the input fields. With
        ``room`` for those that change, by field, only constant fields stay where they are, and the others take that memory, or
        new memory if it is empty.
        The program must not estimate errors; see `attempt`.
        """
        names, aliases = self.program.fields, None
        given, spare = [fields[name] for name in names], list[jax.Array]()
        if in_place:
            aliases = {n: n for n in range(len(names))}
        elif room is not None:
            kept = self.program.kept
            spare = [room[name] for name in names if name in room]
            aliases = {n: n for n, name in enumerate(names) if name in kept}
            changed = [n for n, name in enumerate(names) if name not in kept]
            aliases |= {len(names) + n: changed[n] for n in range(len(spare))}
        results = self._call_program(given, len(given), strips, widths, frame, parameters, these, aliases, spare=spare)
        return dict(zip(names, results, strict=True))

    def attempt(
        self,
        fields: Mapping[str, jax.Array],
        room: Mapping[str, jax.Array],
        strips: Strips,
        widths: Sequence[int],
        frame: Frame,
        parameters: Parameters,
        these: StepRange,
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """Return (fields after one step, by name; the device's part of the sums of `error_norm`).

        For use inside compiled code; the arguments are those of `steps`. Of ``these``, the count is 1, or 0 to keep the fields,
        without errors. The sums are int64 of shape (fields with errors, WORDS). The new fields take the memory of ``room``,
        which has the shape of the fields; if it is empty, they take new memory.
        """
        names, errors = self.program.fields, len(self.program.errors)
        given, spare = [fields[name] for name in names], [room[name] for name in names if room]
        aliases = {len(names) + n: n for n in range(len(spare))}
        *after, sums = self._call_program(
            given, len(given), strips, widths, frame, parameters, these, aliases, spare=spare, errors=errors
        )
        return dict(zip(names, after, strict=True)), sums

    def arrays(self, fields: Mapping[str, jax.Array]) -> dict[int, jax.Array]:
        """Return the arrays from which a step starts, the fields, by their numbers in the program."""
        return {n: fields[name] for n, name in enumerate(self.program.fields)}

    def section(
        self,
        section: Section,
        arrays: Mapping[int, jax.Array],
        strips: Strips,
        widths: Sequence[int],
        frame: Frame,
        parameters: Parameters,
        these: StepRange,
    ) -> dict[int, jax.Array]:
        """Return the arrays that a section of one step fills, by number, for use inside compiled code.

        They have the shape and dtype of the input ``arrays``, without ghost cells. ``strips`` are the ghost cells of the
        arrays `Section.sent`, ``widths`` cells wide per axis.
        """
        # The bridge expects strips for all input arrays. Those of arrays that are not exchanged are never read.
        unsent, arrays_axis = len(section.given) - section.exchanged, int(self.members > 0)

        def filled(strip: jax.Array | None) -> jax.Array | None:
            if strip is None:
                return None
            return jnp.pad(strip, [(0, unsent if axis == arrays_axis else 0) for axis in range(strip.ndim)])

        whole = {axis: (filled(lower), filled(upper)) for axis, (lower, upper) in strips.items()}
        given = [arrays[n] for n in section.given]
        results = self._call_program(
            given, len(section.made), whole, widths, frame, parameters, these, None, section.numbers
        )
        return dict(zip(section.made, results, strict=True))

    def ended(self, arrays: Mapping[int, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Return (fields, `Problem.errors`) after all sections of a step, both by field, like `steps`."""
        names, errors = self.program.fields, self.program.errors
        ends = [arrays[n] for n in self.program.ends]
        first = len(names)
        return dict(zip(names, ends[:first], strict=True)), dict(zip(errors, ends[first:], strict=True))

    def _edges(self) -> jax.Array:
        """Return the bridge's number of the device block on which the code runs; 0 if the program exchanges no edges."""
        return jnp.asarray(self.first_block + (device_number() if self.blocks > 1 else 0), jnp.int64)

    def _numbers(self, values: Iterable[Any]) -> jax.Array:
        """Return numbers as float64 values side by side, in a row for each member."""
        each = [jnp.asarray(value, jnp.float64) for value in values]
        return jnp.stack([jnp.broadcast_to(x, (self.members,)) for x in each] if self.members else each, -1)

    def _parameters(self, parameters: Parameters) -> jax.Array:
        """Return the values of p[]: the parameters, one number more, and the samples of time series."""
        numbers = self._numbers([*(parameters[name] for name in self.program.parameters), 0.0])
        samples = [jnp.asarray(parameters[name], jnp.float64) for name in self.program.sampled]
        rows = [jnp.broadcast_to(x, (self.members, *x.shape)) for x in samples] if self.members else samples
        return jnp.concatenate([numbers, *rows], -1) if rows else numbers

    def _call_program(
        self,
        given: Sequence[jax.Array],
        made: int,
        strips: Strips,
        widths: Sequence[int],
        frame: Frame,
        parameters: Parameters,
        these: StepRange,
        aliases: dict[int, int] | None,
        section: Sequence[int] = (0,),
        spare: Sequence[jax.Array] = (),
        errors: int = 0,
    ) -> Sequence[jax.Array]:
        """Call the program: return the ``made`` arrays that it computes from the ``given`` ones.

        With ``errors`` estimated errors, their sums follow (`attempt`). ``spare`` arrays are never read; ``aliases`` may name
        them.
        """
        ndim = len(frame.cells)
        received = [strips.get(a, (None, None))[side] for a in range(ndim) for side in (0, 1)]
        kinds = [[side.kind for side in sides] for sides in frame.sides]
        touching = jnp.stack([jnp.stack([jnp.asarray(t, jnp.int32) for t in pair]) for pair in frame.touches])
        on_boundary = jnp.array([[s.boundary for s in sides] for sides in frame.sides], jnp.int32)
        arguments = [
            *given,
            *spare,
            *(strip for strip in received if strip is not None),
            self._parameters(parameters),
            np.array([*self.program.constants, 0.0]),
            jnp.stack([jnp.asarray(n, jnp.int64) for n in frame.counts]),
            touching * on_boundary,
            self._numbers(these),
            *frame.coordinates,
            self._edges(),
        ]
        results = [jax.ShapeDtypeStruct(given[0].shape, given[0].dtype)] * made
        if errors:
            each = (errors, len(WORDS))
            results.append(jax.ShapeDtypeStruct((self.members, *each) if self.members else each, jnp.int64))
        call = jax.ffi.ffi_call(TARGET, results, input_output_aliases=aliases)
        return call(
            *arguments,
            number=np.int64(self.number),
            axes=np.array(AXIS_OF[ndim], np.int64),
            margin=np.array(frame.margin, np.int64),
            width=np.array(widths, np.int64),
            received=np.array([strip is not None for strip in received], np.int64),
            wraps=np.array([pair[0] == "wrap" for pair in kinds], np.int64),
            boundary=np.array([kind == "face" for pair in kinds for kind in pair], np.int64),
            threads=np.int64(self.threads),
            l2_bytes=np.int64(cache_bytes()),
            l3_is_far=np.int64(cache_is_far()),
            l3_bytes=np.int64(cache_share()),
            every=np.int64(self.steps_per_exchange),
            members=np.int64(self.members),
            itemsize=np.int64(given[0].dtype.itemsize),
            section=np.array(section, np.int64),
            records=np.int64(self.records),
            room=np.int64(len(spare)),
            errors=np.int64(errors),
        )


def native(
    program: Program, threads: int, steps_per_exchange: int = 1, blocks: Sequence[EdgeExchange] = (), members: int = 0
) -> Native:
    """Compile a program and register it with the bridge.

    With ``blocks``, the program itself exchanges the edges of this process's device blocks. ``members`` is as in `Native`.
    Raises Unsupported, with the compiler's message, if the program does not compile.
    """
    loaded = compile_in_background(program.text, program.driver)
    bridge = xla_bridge()  # if neither is cached, both compile at the same time
    compiled = loaded.result()
    address = ctypes.cast(compiled.advance, ctypes.c_void_p).value
    number = hash_of(compiler.LEVEL + repr(program.driver) + program.text)  # a library has recorders of its own
    bridge.register_program(ctypes.c_int64(number), ctypes.c_void_p(address))
    first = len(all_edges) + 1 if blocks else 0
    for edges in blocks:
        all_edges.append(edges)
        bridge.register_edges(ctypes.c_int64(len(all_edges)), ctypes.byref(edges))
    return Native(program, compiled, number, threads, steps_per_exchange, len(blocks), first, members)


def hash_of(text: str) -> int:
    """Return a 56-bit hash of the text of a program, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
