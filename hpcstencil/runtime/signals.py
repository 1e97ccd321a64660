"""Signals that ask a run to stop. They are noted, and the run checks the note between two compiled calls.

Python runs its own handlers only when the main thread returns from compiled code or from MPI. Python's C handler,
however, writes each signal into a pipe immediately, and a separate thread reads the pipe. So a second interrupt ends
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
_noted: list[int] = []  # signals that came before `watched`


@dataclass
class Request:
    """The signal that asked this process to stop, by its ``number``; 0 if none has. A second interrupt calls
    ``at_once``, from another thread; by default it ends this process."""

    number: int = 0
    at_once: Callable[[], None] = lambda: os._exit(128 + signal.SIGINT)


def note() -> None:
    """Take note of stopping signals from now on instead of obeying them, until `watched` takes over. The processes of a
    run must first connect, so that they can end together."""
    for number in STOPPING:
        signal.signal(number, lambda number, _: _noted.append(number))


def check_not_stopped(request: Request, communicator: Communicator) -> None:
    """Raise StoppedEarly on all processes if any has received a signal. For a run that has not written anything yet.
    All processes call this together."""
    number = max(communicator.allgather(request.number))
    if number:
        raise StoppedEarly(
            f"stopped by {signal.Signals(number).name} before the first step: nothing was computed or written; run the same "
            "command again"
        )


@contextmanager
def watched() -> Iterator[Request]:
    """A context in which stopping signals are noted in the `Request` that it yields, instead of obeyed. A second
    interrupt calls the request's ``at_once`` from another thread. For the main thread only."""
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


class HeldInterrupts:
    """A context that defers an interrupt (SIGINT): KeyboardInterrupt is raised at its end, when the state computed
    inside it is consistent. Outside the main thread, where Python delivers no signals, it does nothing."""

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
        """A context inside this one in which interrupts act immediately, for example while a user's callback runs. It
        does nothing if interrupts are not held."""
        if not self.holds:
            yield
            return
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()
