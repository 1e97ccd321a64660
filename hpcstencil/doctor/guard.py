"""Child processes that may hang or crash: each reports what it finds, and is killed when its time is up.

A probe talks to its parent over a pipe of its own, one JSON object per line, because the libraries that it tries print on
standard output and standard error as they like. It runs in a session of its own, so that whatever it starts dies with it.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpcstencil.runtime.launcher import LAUNCHERS

Line = dict[str, Any]

KEPT = 2**16  # bytes of a child's last words that are kept
PAUSE = 0.05  # seconds between two looks at a child that has closed its pipes or lost its own children
REAPED = 2.0  # seconds that a killed child may take to go; in a hanging file system it cannot


@dataclass(frozen=True)
class Ended:
    """How a child went. ``failure`` is None where it did what it should; ``output`` is the end of what it printed."""

    failure: str | None
    output: str


def own_environment() -> dict[str, str]:
    """The environment for a child that is not to join the launch: an MPI library that finds the launcher's variables
    would take the rank's place. What merely says which process this is stays, since devices are divided by it."""
    telling = {name for names in LAUNCHERS for name in names}
    return {
        name: value
        for name, value in os.environ.items()
        if name in telling or not name.startswith(("OMPI_", "PMIX_", "PMI_"))
    }


def probe_command(module: str, *arguments: str) -> list[str]:
    """The command line of a probe, a module of this package that ends in ``reporting``."""
    return [sys.executable, "-P", "-m", f"hpcstencil.doctor.{module}", *arguments]


class Child:
    """A started child. ``lines`` yields what it reports; then ``end`` says how it went and makes sure that it is gone."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``command``; OSError where it cannot be."""
        reports, for_child = os.pipe()
        # a probe imports what this process would, whatever folder it was started in
        paths = os.pathsep.join(path for path in sys.path if path)
        known = {**environment, "PYTHONPATH": paths, "HPCSTENCIL_DOCTOR_PIPE": str(for_child)}
        try:
            self.process = subprocess.Popen(
                command,
                env=known if command[0] == sys.executable else dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[for_child],
                start_new_session=True,
            )
        except OSError:
            os.close(reports)
            raise
        finally:
            os.close(for_child)
        assert self.process.stdout is not None
        self._reports, self._output = reports, self.process.stdout.fileno()
        self._partial, self._said = b"", b""
        self._late = False

    def tell(self, request: Line) -> None:
        """Send the child one line; a child that has gone does not hear it."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def lines(self, patience: float) -> Iterator[Line]:
        """What the child reports, until it ends or a probe, announced by a line with ``begin``, takes longer than
        ``patience`` seconds."""
        until = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            for pipe in (self._reports, self._output):
                os.set_blocking(pipe, False)
                selector.register(pipe, selectors.EVENT_READ)
            while True:
                gone = self.process.poll() is not None  # asked before reading: then nothing can be missed
                ready = selector.select(0 if gone else min(PAUSE, max(0.0, until - time.monotonic())))
                for key, _ in ready:
                    for line in self._read(key.fd, selector):
                        yield line
                        until = time.monotonic() + patience if "begin" in line else until
                if gone and not ready:
                    return
                if time.monotonic() > until:
                    self._late = True
                    return
                if not selector.get_map():
                    time.sleep(PAUSE)

    def _read(self, pipe: int, selector: selectors.BaseSelector) -> list[Line]:
        """The whole lines that a pipe now gives; of the child's prints none, they are kept."""
        data = os.read(pipe, KEPT)
        if not data:
            selector.unregister(pipe)
        if pipe == self._output:
            self._said = (self._said + data)[-KEPT:]
            return []
        *whole, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def end(self, patience: float) -> Ended:
        """How the child went, at most ``patience`` seconds from now or at once if it was late; kills what is left."""
        for _ in () if self._late else self.lines(patience):
            pass
        status = self.process.poll()
        self.kill()
        output = self._said.decode(errors="replace")
        if self._late:
            return Ended(f"did not answer within {patience:g} s", output)
        assert status is not None
        if status < 0:
            return Ended(f"was ended by {signal.Signals(-status).name}", output)
        return Ended(f"ended with status {status}" if status else None, output)

    def kill(self) -> None:
        """End the child and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(REAPED)


def guarded(command: Sequence[str], environment: Mapping[str, str], patience: float) -> tuple[list[Line], Ended]:
    """Run a child to its end: what it reported, and how it went."""
    try:
        child = Child(command, environment)
    except OSError as error:
        return [], Ended(f"cannot be started: {error.strerror}", "")
    try:
        lines = list(child.lines(patience))
        return lines, child.end(patience)
    finally:
        child.kill()


def last_words(output: str) -> str:
    """The line of a child's prints that most likely says what went wrong: the first sentence inside the rules that
    Open MPI draws, else the last line that is not one of its traces."""
    banner = re.search(r"^-{40,}\n(.+?)\n(?:\s*\n|-{40,})", output, re.MULTILINE | re.DOTALL)
    if banner:
        return " ".join(banner[1].split()).split(". ")[0].rstrip(".:")
    lines = [line.strip() for line in output.splitlines()]
    telling = [line for line in lines if any(c.isalpha() for c in line) and not line.startswith(("[", "*", "File "))]
    return telling[-1] if telling else ""


def how(ended: Ended) -> str:
    """How a failed child went, with its last words."""
    words = last_words(ended.output)
    return f"{ended.failure}: {words}" if words else f"{ended.failure}"
