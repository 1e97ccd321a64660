"""Asynchronous output: a thread of each process writes while the process continues to compute."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from hpcstencil.runtime.communicator import Communicator, agree


class AsyncWriter:
    """A thread on each process that performs one write at a time. All methods are collective.

    If a write fails on any process, the next `wait`, `poll` or `close` raises the error on all processes.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.under_way: tuple[Future[None], Callable[[], None]] | None = None

    def begin(self, own: Callable[[], None], together: Callable[[], None]) -> Future[None]:
        """Call ``own`` in the thread, and return its future.

        When ``own`` has returned on all processes, the next `wait` or `poll` calls ``together`` on all of them. Any earlier
        write must have been waited for.
        """
        written = self.thread.submit(own)
        self.under_way = written, together
        return written

    def wait(self) -> None:
        """Wait until the write is finished on all processes. Returns at once if there is none."""
        if self.under_way is not None:
            (own, together), self.under_way = self.under_way, None
            agree(self.communicator, own.result)
            together()

    def poll(self) -> None:
        """Finish the write if the threads of all processes have returned by now; raise its error if it failed.

        Does not wait for threads.
        """
        if self.under_way is None:
            return
        busy = int(not self.under_way[0].done())
        if not self.communicator.total(np.array([busy]))[0]:
            self.wait()

    def close(self) -> None:
        """Wait until the write is finished, and end the thread."""
        self.wait()
        self.thread.shutdown()
