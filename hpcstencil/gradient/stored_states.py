"""The states of a run that a reverse sweep stores: in memory, or in files beside its output.

States are known by the number of steps before them. Each has the fields that the steps change, laid out on the devices.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from hpcstencil.checkpoint.checkpoint import read_checkpoint, write_checkpoint
from hpcstencil.checkpoint.paths import checkpoint_path, list_checkpoints, remove_locks, remove_stale, step_of
from hpcstencil.checkpoint.seal import Damaged
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient import tables
from hpcstencil.gradient.tables import TABLES, part_of, shapes_of
from hpcstencil.io.file_names import base_name
from hpcstencil.runtime.communicator import Communicator, agree, from_rank_0
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.simulation.file_blocks import checkpoint_block, from_checkpoint
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.validation.errors import EnvironmentProblem, InputError
from hpcstencil.validation.messages import bytes_text

ALL = 2**31  # more than the files of any sweep
WHAT = "stored state of a gradient"
SAMPLES = "samples of "  # and a table of [probes]: the table of what its receivers recorded before a state

Recorded = Mapping[str, np.ndarray]  # samples of receivers by table of [probes]
NO_SAMPLES: Recorded = {}


class Room(Protocol):
    """Memory of fields that nobody needs any more."""

    def add(self, fields: Fields) -> None:
        """Add fields that nobody needs any more."""

    def copied(self, fields: Fields) -> Fields:
        """Return copies of the fields in this memory, if there is any."""


class States(Protocol):
    """The stored states of a sweep. All methods are collective. State 0 is always stored."""

    @property
    def steps(self) -> list[int]:
        """The numbers of the stored states, ascending."""

    def kept(self, step: int) -> Fields:
        """Return a state that stays stored; it must not be overwritten."""

    def add(self, step: int, state: Fields, time: float, recorded: Recorded = NO_SAMPLES) -> None:
        """Store the state at a ``time``. It must not be overwritten any more.

        ``recorded`` are the samples of receivers since the last state, by table of [probes]: float64 of shape (samples,
        receivers) on rank 0, and of the same shape elsewhere.
        """

    def recorded(self, step: int) -> Recorded:
        """Return what was recorded before a state, equal on all processes; empty if nothing was."""

    def removed(self, step: int) -> Fields:
        """Return a state other than state 0, which is not stored any more."""

    def drop(self, first: int) -> None:
        """Drop the states from step ``first`` on, which is more than 0."""

    def clear(self) -> None:
        """Drop all states but state 0."""


class InMemory:
    """States in memory, of which ``first`` is state 0."""

    def __init__(self, first: Fields) -> None:
        self.held = {0: first}

    @property
    def steps(self) -> list[int]:
        return sorted(self.held)

    def kept(self, step: int) -> Fields:
        return self.held[step]

    def add(self, step: int, state: Fields, time: float, recorded: Recorded = NO_SAMPLES) -> None:
        self.held[step] = state

    def recorded(self, step: int) -> Recorded:
        return NO_SAMPLES

    def removed(self, step: int) -> Fields:
        return self.held.pop(step)

    def drop(self, first: int) -> None:
        self.held = {step: state for step, state in self.held.items() if step < first}

    def clear(self) -> None:
        self.drop(1)


class OnDisk:
    """States in files ``NAME.state.checkpoint.STEP.h5``, where ``output`` is the path NAME.state.h5 (`beside`).

    They are written and sealed like checkpoints of a run, so any number of processes can read them. Three states are in memory:
    state 0, the state from which steps begin, and the one that was added last. The last one is written only when steps begin
    from another state. A state that is reversed at once is therefore never written.

    The files have these ``attributes`` (`checkpoint_identity.attributes_of`). Methods raise EnvironmentProblem, on all
    processes, if the file system fails, and InputError if a file is damaged when it is read.
    """

    room: Room  # since the sweep has begun

    def __init__(self, output: Path, simulation: ComposedSimulation, attributes: Mapping[str, str]) -> None:
        self.output, self.simulation, self.attributes = output, simulation, attributes
        self.held: dict[int, Fields] = {}
        self.times: dict[int, float] = {}
        self.samples: dict[int, Recorded] = {}  # recorded before each state
        self.written: set[int] = set()

    def begun(self, first: Fields, room: Room) -> OnDisk:
        """Return these states for a sweep that begins with ``first`` as state 0. Collective.

        States that are read take the memory in ``room``, and those that are written leave theirs there.
        Raises InputError, on all processes, if a file has the name of a state that is not one of this sweep.
        """
        self.held, self.samples, self.room = {0: first}, {}, room

        def refuse() -> None:
            for path in list_checkpoints(self.output):
                if step_of(path) not in self.written:
                    raise InputError(
                        f"{path}: exists already, another gradient may have left it; remove "
                        f"{base_name(self.output)}.checkpoint.*.h5, or choose another output"
                    )

        from_rank_0(self.simulation.communicator, refuse)
        return self

    def adopt(self, before: int, most: int, refuse: Callable[[Path], None]) -> None:
        """Take over the files of an interrupted sweep: at most ``most``, of states before step ``before``. Collective.

        The other files are removed. ``refuse`` raises InputError for a file that is damaged or not one of this sweep; all
        processes raise it.
        """
        communicator = self.simulation.communicator

        def adopted() -> list[int]:
            for path in list_checkpoints(self.output):
                refuse(path)
            return sorted(step for step in map(step_of, list_checkpoints(self.output)) if 0 < step < before)[:most]

        self.written = set(from_rank_0(communicator, adopted))
        remove_stale(self.output, communicator, after=max(self.written, default=0))
        remove_locks(self.output, communicator)

    def refuse_full_disk(self, size: int) -> None:
        """Raise EnvironmentProblem, on all processes, if the file system has no room for states of ``size`` bytes in all,
        those that have been written included. Collective."""

        def check() -> None:
            folder = self.output.parent
            there = sum(checkpoint_path(self.output, step).stat().st_size for step in self.written)
            free = shutil.disk_usage(folder).free
            if size - there > free:
                raise EnvironmentProblem(
                    f"gradient.storage: expected {bytes_text(size - there)} of free space in {folder} for stored states, "
                    f"but got {bytes_text(free)}; free some, choose another --output, or set fewer gradient.checkpoints"
                )

        from_rank_0(self.simulation.communicator, check)

    @property
    def steps(self) -> list[int]:
        return sorted({*self.held, *self.written})

    def kept(self, step: int) -> Fields:
        for other in [other for other in self.held if other not in (0, step)]:
            self._write(other)
            self.room.add(self.held.pop(other))
        if step not in self.held:
            self.held[step] = self._read(step)
        return self.held[step]

    def add(self, step: int, state: Fields, time: float, recorded: Recorded = NO_SAMPLES) -> None:
        self.held[step], self.times[step] = state, time
        if any(map(len, recorded.values())):
            self.samples[step] = recorded

    def recorded(self, step: int) -> Recorded:
        path, communicator, ranges = (
            checkpoint_path(self.output, step),
            self.simulation.communicator,
            self.simulation.ranges,
        )
        with self._whole(path):
            _, scalars, _ = read_checkpoint(path, ranges, communicator, ())
            summed = self.simulation.problem.summed_receivers
            return tables.read_each(path, SAMPLES, summed, scalars, communicator, len(ranges))

    def removed(self, step: int) -> Fields:
        state = self.held.pop(step, None) or self._read(step)
        if step in self.written:
            self.written.remove(step)
            path = checkpoint_path(self.output, step)

            def unlink() -> None:
                if self.simulation.communicator.rank == 0:
                    with file_errors(path, "remove"):
                        path.unlink(missing_ok=True)

            agree(self.simulation.communicator, unlink)
        return state

    def flush(self) -> None:
        """Write the states that are in memory only, for a sweep that continues later. Collective."""
        for step in sorted(self.held):
            if step:
                self._write(step)

    def drop(self, first: int) -> None:
        self.held = {step: state for step, state in self.held.items() if step < first}
        self.written = {step for step in self.written if step < first}
        remove_stale(self.output, self.simulation.communicator, after=first - 1)

    def clear(self) -> None:
        self.drop(1)

    def _write(self, step: int) -> None:
        if step in self.written:
            return
        simulation, config = self.simulation, self.simulation.problem.config
        recorded = {SAMPLES + table: each for table, each in self.samples.pop(step, NO_SAMPLES).items()}
        write_checkpoint(
            self.output,
            simulation.communicator,
            config.grid,
            step=step,
            time=self.times[step],
            arrays={name: checkpoint_block(simulation, array) for name, array in self.held[step].items()},
            ranges=simulation.ranges,
            attributes=self.attributes,
            keep=ALL,
            method=config.output.method,
            scalars=shapes_of(recorded),
            partial_arrays={
                TABLES + name: part_of(table, simulation.communicator, config.grid.ndim)
                for name, table in recorded.items()
            },
        )
        self.written.add(step)

    def _read(self, step: int) -> Fields:
        simulation = self.simulation
        names, path = list(self.held[0]), checkpoint_path(self.output, step)
        with self._whole(path):
            blocks, _, _ = read_checkpoint(path, simulation.ranges, simulation.communicator, names)
        return self.room.copied(simulation.put({name: from_checkpoint(simulation, blocks[name]) for name in names}))

    @contextmanager
    def _whole(self, path: Path) -> Iterator[None]:
        """A context that reads a file. Raises InputError if that is damaged."""
        try:
            yield
        except Damaged:
            raise InputError(
                f"{path}: expected a {WHAT} as it was written, but it is damaged; remove it, and continue with --resume"
            ) from None


def beside(output: Path, member: int | None = None) -> Path:
    """The path to which the states of a sweep belong, as checkpoints belong to that of a run: NAME.state.h5 beside the output
    NAME.h5 of the sweep, or NAME.memberN.state.h5 for a member of an ensemble."""
    return output.with_name(f"{base_name(output)}{'' if member is None else f'.member{member}'}.state.h5")


def list_states(output: Path) -> list[Path]:
    """The files of states beside ``output``, of all members, those of the last member and state first."""
    pattern = re.compile(rf"{re.escape(base_name(output))}(\.member\d+)?\.state\.checkpoint\.(\d{{12,}})\.h5(\.tmp)?")
    folder = output.parent
    found = [match for path in (folder.iterdir() if folder.is_dir() else ()) if (match := pattern.fullmatch(path.name))]
    ordered = sorted(found, key=lambda match: (int((match[1] or ".member0")[7:]), int(match[2])), reverse=True)
    return [folder / match[0] for match in ordered]


def remove_states(output: Path, communicator: Communicator) -> None:
    """Remove the files of `list_states`. Collective. Raises EnvironmentProblem if one cannot be removed."""

    def remove() -> None:
        if communicator.rank == 0:
            for path in list_states(output):
                with file_errors(path, "remove"):
                    path.unlink(missing_ok=True)

    agree(communicator, remove)
