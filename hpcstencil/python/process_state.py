"""State that all simulations of a Python process share: the devices of JAX, and the communicator of the launch.

JAX and MPI start once per process, so they belong to no single simulation. The first `Simulation`, or `configure`,
starts them; importing hpcstencil does not.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from hpcstencil.config.settings import Config
from hpcstencil.runtime import watchdog
from hpcstencil.runtime.communicator import (
    Communicator,
    MpiProcesses,
    OneProcess,
    agree,
    connect,
    count_failed,
    place_of,
    raise_first,
)
from hpcstencil.runtime.devices import bind_devices, check_started_jax, jax_has_started, start_jax
from hpcstencil.runtime.failure import abort_all
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError, InputError
from hpcstencil.validation.messages import shown

PLATFORMS = ("cpu", "gpu")
WAIT = 20.0  # seconds after which a process says that it waits for the others
PATIENCE = 5.0  # seconds that a rank with a failed callback waits for the others to fail too
REMEDY = (
    "make the first hs.Simulation, or call hs.configure(), before the first computation with jax; in a notebook, restart the "
    "kernel first"
)


class ThisProcess:
    """The devices of JAX and the communicator of the launch, both None until they are needed.

    ``default`` is the number of devices of a simulation whose input does not set it.
    """

    def __init__(self) -> None:
        self.devices: tuple[Any, ...] | None = None
        self.default = 1
        self._communicator: Communicator | None = None
        self._meeting: Communicator = OneProcess()

    def start(self, wanted: int | None) -> None:
        """Start JAX with the settings of hpcstencil and ``wanted`` devices.

        None means all GPUs of this process, or one device on CPUs. Raises EnvironmentProblem if JAX was started before
        with other settings.
        """
        if jax_has_started():
            self.devices = check_started_jax(wanted or 1, REMEDY)
        else:
            count, _ = bind_devices(wanted)
            self.devices = start_jax(count)
        self.default = wanted or (len(self.devices) if self.devices[0].platform != "cpu" else 1)

    def devices_for(self, config: Config) -> tuple[Any, ...]:
        """The devices for a simulation of this input. It starts JAX if necessary.

        Raises EnvironmentProblem if the input requests more devices than there are.
        """
        given = config.decomposition.devices
        wanted = None if isinstance(given, str) else given if isinstance(given, int) else math.prod(given)
        if self.devices is None:
            self.start(wanted)
            self.default = self.default if wanted is None or self.on_gpus else 1
        assert self.devices is not None
        count = wanted or self.default
        if count > len(self.devices):
            raise EnvironmentProblem(
                f"decomposition.devices: expected at most {len(self.devices)}, the number with which JAX was started in this "
                f"process, but got {count}; call hs.configure(devices={count}) before the first Simulation"
            )
        return self.devices[:count]

    @property
    def on_gpus(self) -> bool:
        """Whether JAX was started on GPUs."""
        return self.devices is not None and self.devices[0].platform != "cpu"

    @property
    def communicator(self) -> Communicator:
        """The communicator of the processes of this launch.

        The first access connects the processes, so all make it together. It raises EnvironmentProblem if that fails.
        """
        if self._communicator is None:
            found = connect()
            if found.size > 1:
                watchdog.start(found)
                found.watch.outside(True)
                self._meeting = MpiProcesses(found.mpi.Clone())
                sys.excepthook = self._end_all
                atexit.register(found.watch.close)
            self._communicator = found
        return self._communicator

    @contextmanager
    def together(self, name: str) -> Iterator[None]:
        """A context for a collective call, named ``name``, that all processes make together.

        If it takes longer than WAIT seconds, this process says on standard error that it waits for the others. A call
        inside ``if rank == 0`` waits forever.
        """
        if self.communicator.size == 1:
            yield
            return
        line = (
            f"hpcstencil: rank {self.communicator.rank} has waited {WAIT:g} s in {name} for other ranks; all ranks must "
            "call it, so take it out of an if on the rank"
        )
        watch, waited = self.communicator.watch, threading.Event()

        def warn() -> None:
            waited.set()
            print(line, file=sys.stderr, flush=True)
            watch.outside(False)  # so that the wait for a rank whose program has ended is ended too

        timer = threading.Timer(WAIT, warn)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if waited.is_set():
                watch.outside(True)

    def refuse_different_calls(
        self, method: str, value: float = 0.0, arguments: bytes = b"", check: Callable[[], object] = lambda: None
    ) -> None:
        """Raise InputError, on all processes, unless all of them call the same ``method`` with the same ``value`` and the same
        other ``arguments``. Collective.

        Different calls would wait for each other, or mix their results. ``check`` examines the arguments first. If it raises
        one of our errors on any process, that of the lowest such rank is raised on all.
        """
        communicator, failure = self.communicator, None
        try:
            check()
        except HpcstencilError as error:
            failure = error
        if communicator.size == 1:
            return raise_first(communicator, failure, place_of(communicator, failure))
        own = np.array([zlib.crc32(method.encode()), 0.0 if failure else value, zlib.crc32(arguments)], np.float64)
        place = place_of(communicator, failure)
        *found, highest = communicator.maximum(np.array([*own, *-own, place], np.float64))
        high, low = np.array(found[:3]), -np.array(found[3:])
        if high[0] != low[0]:
            raise InputError(
                f"{method}: expected the same call on all processes, but another one calls another method; make the same calls"
            )
        raise_first(communicator, failure, highest)
        if high[1] != low[1]:
            raise InputError(
                f"{method}: expected the same value on all processes, but got {low[1]:g} to {high[1]:g}; make the same calls"
            )
        if high[2] != low[2]:
            raise InputError(
                f"{method}: expected the same arguments on all processes, but they differ; make the same calls"
            )

    def _end_all(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Abort all processes of the launch after an uncaught exception on this one. It replaces sys.excepthook."""
        why = "" if issubclass(kind, HpcstencilError) else "".join(traceback.format_exception(error)).rstrip()
        abort_all(self.communicator, error, why)

    def call(self, function: Callable[[], None], name: str) -> None:
        """Call a user function, such as a callback, on all processes together; ``name`` is for messages.

        If it raises an exception on all processes, the caller gets the exception. If it raises on some only, all
        processes are aborted with a message, since the others may be waiting for those.
        """
        communicator, failure = self.communicator, None
        if communicator.size == 1:
            function()
            return
        communicator.watch.outside(True)
        try:
            function()
        except BaseException as error:  # of any kind, since other processes must not wait for this one
            failure = error
        communicator.watch.outside(False)
        failed = count_failed(self._meeting, failure is not None, PATIENCE)
        if failed == communicator.size and failure is not None:
            raise failure
        if failure is not None:
            last = traceback.extract_tb(failure.__traceback__)[-1]
            place = f"{os.path.basename(last.filename)}, line {last.lineno}"
            said = " ".join(str(failure).split())
            abort_all(communicator, failure, f"{name} raised {type(failure).__name__}: {said} ({place})")
        if failed:
            time.sleep(2 * PATIENCE)  # a failed process is about to end this one
            raise EnvironmentProblem(f"{name} failed on another process, which did not end this one; start again")


THIS_PROCESS = ThisProcess()


def configure(*, devices: int | None = None, platform: str | None = None) -> None:
    """Choose the devices of this process and start JAX on them. Call it before the first `Simulation`.

    ``devices`` is the number of devices per process for inputs with `devices = "auto"`; by default, all GPUs of the
    process, or one device on CPUs. ``platform`` is "cpu" or "gpu"; by default, JAX chooses. XLA options and 64-bit types
    are set for the whole process, so they also apply to other JAX computations of the program.

    All processes call this together. Raises InputError for invalid values, and EnvironmentProblem if JAX was started
    before with other settings.
    """
    if devices is not None and (isinstance(devices, bool) or not isinstance(devices, int) or devices < 1):
        raise InputError(f"devices: expected a positive integer, but got {devices!r}; write for example devices=2")
    if platform is not None and platform not in PLATFORMS:
        names = " or ".join(map(shown, PLATFORMS))
        raise InputError(f"platform: expected {names}, but got {platform!r}; choose one of them")
    here = THIS_PROCESS
    agree(here.communicator, lambda: _start(here, devices, platform))


def _start(here: ThisProcess, devices: int | None, platform: str | None) -> None:
    """Do the work of `configure` on this process, without communication."""
    if here.devices is None and not jax_has_started() and platform is not None:
        os.environ["JAX_PLATFORMS"] = platform  # read when jax is imported
        if "jax" in sys.modules:
            sys.modules["jax"].config.update("jax_platforms", platform)
    if here.devices is None:
        here.start(devices)
    assert here.devices is not None
    got = "gpu" if here.on_gpus else "cpu"
    if (devices or 1) > len(here.devices) or platform not in (None, got):
        raise EnvironmentProblem(
            f"jax has started in this process with {len(here.devices)} device{'s' * (len(here.devices) > 1)} on {got}, not as "
            f"asked for; {REMEDY}"
        )
    here.default = devices or here.default
