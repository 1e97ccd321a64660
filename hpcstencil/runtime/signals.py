"""Signals that ask a run to stop. They are recorded, and the run checks the record between two compiled calls.

Python-level handlers run only when the main thread returns from compiled code or from MPI. Python's C handler, however,
writes each signal number into a pipe immediately, and a separate thread reads the pipe. A second interrupt can therefore end
the run even if the main thread hangs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from hpcstencil.validation.errors import StoppedEarly

if TYPE_CHECKING:
    from hpcstencil.runtime.communicator import Communicator

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_noted: list[int] = []  # signals received before `watched`


@dataclass
class Request:
    """A request to stop this process: the ``number`` of the signal that was received, or 0.

    A second interrupt calls ``at_once`` from another thread; by default it ends this process.
    """

    number: int = 0
    at_once: Callable[[], None] = lambda: os._exit(128 + signal.SIGINT)


def note() -> None:
    """Record stopping signals from now on instead of obeying them, until `watched` takes over.

    Until the processes of a run are connected, they could not end together.
    """
    for number in STOPPING:
        signal.signal(number, lambda number, _: _noted.append(number))


def ignore() -> None:
    """Ignore stopping signals from now on, until the process has ended."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def check_not_stopped(request: Request, communicator: Communicator) -> None:
    """Raise StoppedEarly on all processes if any has received a signal. Collective.

    For a run that has not written anything yet.
    """
    import numpy as np  # slow; this module is imported first, to note signals from the start

    number = int(communicator.maximum(np.array([request.number]))[0])
    if number:
        raise StoppedEarly(
            f"stopped by {signal.Signals(number).name} before the first step: nothing was computed or written",
            "run the same command again",
        )


@contextmanager
def watched() -> Iterator[Request]:
    """Record stopping signals inside the context, in the `Request` that it yields, instead of obeying them.

    A second interrupt calls the request's ``at_once`` from another thread. For the main thread only.
    """
    request = Request()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def serve() -> None:
        while numbers := os.read(reading, 64):
            for number in numbers:
                if number == signal.SIGINT and request.number == signal.SIGINT:
                    request.at_once()
                if number in STOPPING:
                    request.number = number

    # Python writes to the pipe only if there is a handler; the thread does the work.
    before: dict[int, Any] = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    pipe_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    if _noted:
        request.number = request.number or _noted[-1]
    try:
        yield request
    finally:
        signal.set_wakeup_fd(pipe_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)
        thread.join()
        os.close(reading)


class _Undisturbed(threading.Thread):
    """A thread that makes one call, unless it is refused before it begins."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.call, self.lock, self.done = call, threading.Lock(), threading.Event()
        self.refused = self.begun = False
        self.error: BaseException | None = None

    def run(self) -> None:
        with self.lock:
            if self.refused:
                return
            self.begun = True
        try:
            self.call()
        except BaseException as error:
            self.error = error
        self.done.set()

    def refuse(self) -> None:
        """Return when the call has ended or will not be made."""
        with self.lock:
            self.refused = True
        if self.begun:
            self.done.wait()


def undisturbed(call: Callable[[], None]) -> None:
    """Make a call in which no handler of a signal runs: another thread makes it, while the main thread waits.

    A handler may raise anything anywhere in the main thread, also in a function that compiled code calls, which would lose it.
    What it raises meanwhile is raised after the call. In another thread than the main one, the call stays there.
    """
    if threading.current_thread() is not threading.main_thread():
        call()
        return
    thread = _Undisturbed(call)
    try:
        thread.start()
        thread.done.wait()
    except BaseException:
        thread.refuse()
        raise
    if thread.error is not None:
        raise thread.error


class HeldInterrupts:
    """A context that defers an interrupt (SIGINT), so that the state computed inside it is consistent.

    KeyboardInterrupt is raised at the end of the context. Outside the main thread, where Python delivers no signals, the
    context does nothing.
    """

    def __init__(self) -> None:
        self.noted = self.holds = False
        self.before: Any = None  # the handler that this one replaces

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.before, self.holds = signal.signal(signal.SIGINT, self._note), True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.holds:
            signal.signal(signal.SIGINT, self.before)
            self.holds = False
        if self.noted and kind is None:
            self.noted = False
            raise KeyboardInterrupt

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Let interrupts act immediately inside this nested context, for example while a user's callback runs.

        Does nothing if interrupts are not held.
        """
        if not self.holds:
            yield
            return
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()
