"""Asynchronous writing: a thread of each process writes while the process goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from hpcstencil.runtime.communicator import Communicator, agree


class AsyncWriter:
    """One write at a time, in a thread of each process. All processes call each method together. If a write fails on any
    process, the next call raises the error on all."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.under_way: tuple[Future[None], Callable[[], None]] | None = None

    def begin(self, own: Callable[[], None], together: Callable[[], None]) -> Future[None]:
        """Call ``own`` in the thread. When it has returned on all processes, a later `wait` or `poll` calls
        ``together`` on all."""
        written = self.thread.submit(own)
        self.under_way = written, together
        return written

    def wait(self) -> None:
        """Wait until everything is written."""
        if self.under_way is not None:
            (own, together), self.under_way = self.under_way, None
            agree(self.communicator, own.result)
            together()

    def poll(self) -> None:
        """Finish a write whose threads have all returned by now, and raise its failure. Does not wait."""
        if self.under_way is None:
            return
        busy = int(not self.under_way[0].done())
        if not self.communicator.total(np.array([busy]))[0]:
            self.wait()

    def close(self) -> None:
        """Wait until everything is written, and end the thread."""
        self.wait()
        self.thread.shutdown()
