"""Child processes for probes that may hang or crash; each is killed when its time is up.

A probe reports to its parent over a separate pipe, one JSON object per line, because the libraries under test print to
standard output and standard error. It runs in its own session, so that all processes that it starts can be killed with it.
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

KEPT = 2**16  # number of bytes at the end of a child's output that are kept
PAUSE = 0.05  # seconds between polls of a child that has closed its pipes or lost its own children
REAPED = 2.0  # seconds to wait for a killed child, which cannot end while a file system hangs


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    ``failure`` is a predicate such as "ended with status 1", or None if nothing failed. ``output`` is the end of its output.
    """

    failure: str | None
    output: str


def own_environment() -> dict[str, str]:
    """Return the environment for a child that must not join the launch.

    An MPI library that finds the launcher's variables would take the rank's place. Variables that only identify this process
    are kept, because the choice of devices uses them.
    """
    telling = {name for names in LAUNCHERS for name in names}
    return {
        name: value
        for name, value in os.environ.items()
        if name in telling or not name.startswith(("OMPI_", "PMIX_", "PMI_"))
    }


def probe_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a probe, which is a module of this package, with its arguments."""
    return [sys.executable, "-P", "-m", f"hpcstencil.doctor.{module}", *arguments]


class Child:
    """A running child process.

    Iterate over `lines` for its reports. Then `end` returns how it ended, and kills it if it is still running.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``command``. Raises OSError if that fails."""
        reports, for_child = os.pipe()
        # a probe imports the same modules as this process, whatever the current folder is
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

    def send(self, request: Line) -> None:
        """Send one line of JSON to the child. It is lost if the child has gone."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def lines(self, patience: float) -> Iterator[Line]:
        """Yield the child's reports until it ends, or until a probe has taken longer than ``patience`` seconds.

        A report with the key ``begin`` marks the start of a probe.
        """
        until = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            for pipe in (self._reports, self._output):
                os.set_blocking(pipe, False)
                selector.register(pipe, selectors.EVENT_READ)
            while True:
                gone = self.process.poll() is not None  # polled before reading, so that nothing is missed
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
        """Return the complete lines that a pipe has now; an empty list for printed output, which is only stored."""
        data = os.read(pipe, KEPT)
        if not data:
            selector.unregister(pipe)
        if pipe == self._output:
            self._said = (self._said + data)[-KEPT:]
            return []
        *whole, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def end(self, patience: float) -> Ended:
        """Wait until the child ends, kill its remaining processes, and return how it ended.

        The wait is at most ``patience`` seconds, and is skipped if a probe has already exceeded its time.
        """
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
        """Kill the child and all processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(REAPED)


def run_guarded(command: Sequence[str], environment: Mapping[str, str], patience: float) -> tuple[list[Line], Ended]:
    """Run a child until it ends or a probe takes longer than ``patience`` seconds; return (its reports, how it ended).

    A command that cannot be started counts as a failed child.
    """
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
    """Return the part of a child's output that most likely names the error.

    It is the first sentence of a message that Open MPI prints between rules of dashes, or else the last line that is not part
    of a stack trace.
    """
    banner = re.search(r"^-{40,}\n(.+?)\n(?:\s*\n|-{40,})", output, re.MULTILINE | re.DOTALL)
    if banner:
        return " ".join(banner[1].split()).split(". ")[0].rstrip(".:")
    lines = [line.strip() for line in output.splitlines()]
    telling = [line for line in lines if any(c.isalpha() for c in line) and not line.startswith(("[", "*", "File "))]
    return telling[-1] if telling else ""


def how(ended: Ended) -> str:
    """Describe how a failed child ended, with the most informative line of its output."""
    words = last_words(ended.output)
    return f"{ended.failure}: {words}" if words else f"{ended.failure}"
