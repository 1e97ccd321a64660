"""The examination on one process: it starts children, gathers facts, and on rank 0 prints verdicts.

This process starts neither MPI nor JAX, so it can report on both even if they hang, crash or end the whole launch.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hpcstencil.doctor import checks, local, places
from hpcstencil.doctor.checks import Check, Facts
from hpcstencil.doctor.guard import Child, Ended, how, last_words, own_environment, probe_command
from hpcstencil.runtime.hosts import host
from hpcstencil.runtime.launcher import environment_rank, environment_size
from hpcstencil.validation.errors import EnvironmentProblem

MARGIN = 3.0  # seconds that other ranks wait longer than rank 0, which must report before a launcher ends all processes
TAIL = 20  # last lines of a failed child's output that are shown
FAILED = EnvironmentProblem.status


class Stopped(Exception):
    """Raised when a signal arrives, because the launcher or the user ends all processes."""


@contextmanager
def stopping() -> Iterator[None]:
    """Make SIGTERM and SIGINT raise Stopped inside the context.

    After it, SIGTERM is ignored, so that the report can be completed.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class Report:
    """The verdicts, which rank 0 prints one by one. ``all`` counts them, and ``failed`` those that failed."""

    def __init__(self) -> None:
        self.prints = environment_rank() == 0
        self.several = environment_size() > 1
        self.all = self.failed = 0

    def add(self, verdicts: Iterable[Check | None]) -> None:
        """Count the verdicts and print them; None entries are skipped."""
        for check in verdicts:
            if check is not None:
                self.all += 1
                self.failed += check.status == "failed"
                if self.prints:
                    print(check, flush=True)


class Examination:
    """The facts known so far, and the report.

    ``own`` are the facts about this rank. ``every`` are those about all ranks, empty until MPI has gathered them. ``probe``
    is the name of the probe that is running.
    """

    def __init__(self, folder: Path, patience: float) -> None:
        self.folder = folder
        self.patience = patience
        self.report = Report()
        self.probe = "MPI"
        self.mpi: Facts = {}
        self.every: list[Facts] = []
        self.own: Facts = {}
        self.own_error = ""
        self.late = ""  # ranks that rank 0 waits for after its own part
        self.complete = False

    def follow(self, child: Child) -> None:
        """Read the reports of the MPI child until it ends, and add a verdict after each of its probes."""
        if not self.own:
            self.own = {**local.facts(), "folder": str(self.folder), **local.guarded_facts(self.folder, self.patience)}
        child.send({"facts": self.own, "folder": str(self.folder)})
        for line in child.lines(self.patience + (0 if environment_rank() == 0 else MARGIN)):
            if "begin" in line:
                self.probe, self.own_error, self.late = line["begin"], "", ""
            elif "missing" in line:
                some = ", ".join(map(str, line["missing"])) + (" ..." if line["of"] > len(line["missing"]) else "")
                self.late = f"rank{'s' * (line['of'] > 1)} {some}"
            elif "local" in line:
                self.own_error = line["facts"].get("error", "")
            elif line["probe"] == "end":
                self.complete = True
                child.send({})
            else:
                self.judge(line["probe"], line["all"])

    def judge(self, probe: str, found: list[Facts]) -> None:
        """Add the verdicts that follow from a ``probe``. ``found`` holds its facts for each rank, in order of rank."""
        report = self.report
        if probe == "MPI":
            self.mpi = found[0]
            if not report.several and "error" not in self.mpi:
                # an unknown launcher does not set the rank
                report.prints, report.several = self.mpi["rank"] == 0, self.mpi["size"] > 1
        elif probe == "messages":
            self.every = found
            report.add(self.alone())
        elif probe == "folder":
            report.add([places.same_folder(self.every, found)])
        elif probe == "h5py":
            report.add([places.h5py_build(self.every, found, report.several)])
        elif probe == "write":
            report.add([places.write(self.every, found)])
        elif probe == "mpi4jax":
            report.add([places.jax_messages(self.every, found, report.several)])

    def alone(self) -> Iterator[Check | None]:
        """Yield the verdicts on the facts that each process finds without the others."""
        every = self.every or [self.own]
        yield checks.installation(every)
        if self.mpi:
            yield checks.launch(every, self.mpi)
            yield checks.mpi_library(every, self.mpi)
        yield checks.cores(every)
        yield checks.compiler(every)
        yield from checks.limits(every)
        yield from checks.devices(every)
        yield places.shared_memory(every)
        yield places.output_folder(every)
        yield from places.small_folders(every)
        yield from places.slurm(every[0], self.mpi.get("library", ""))

    def tell_failure(self, what: str, ended: Ended | None) -> None:
        """Report that the MPI child did not finish.

        ``what`` is the predicate of the sentence, and ``ended`` says how the child ended (None if it was still running). Rank
        0 reports all that it knows, another rank only what rank 0 cannot know.
        """
        report, output = self.report, ended.output if ended else ""
        said = self.own_error or last_words(output)
        if report.prints:
            if not self.every and self.own:
                report.add(self.alone())
            if self.late:
                what = f"{what}, {self.late} did not finish"
            report.add([places.interrupted(self.probe, what, said, report.several)])
            for line in output.splitlines()[-TAIL:]:
                print(f"  | {line}", file=sys.stderr, flush=True)
            return
        report.failed += 1
        if self.own_error or (ended and "answer" not in what):
            text = f"hpcstencil: rank {environment_rank()} ({host()}): {self.probe}: {what}"
            print(text + (f": {said}" if said else ""), file=sys.stderr, flush=True)


def examine(folder: Path, patience: float) -> int:
    """Examine this environment, print the report, and return the exit status of this process.

    ``folder`` is the folder for output. Each probe may take ``patience`` seconds.
    """
    examination = Examination(folder.absolute(), patience)
    child = Child(probe_command("mpi"), os.environ)
    try:
        ended = attended(examination, child)
        if ended.failure and examination.probe == "MPI" and not examination.report.several:
            # one process works without MPI: continue with the other probes
            examination.mpi = {"error": f"MPI {how(ended)}"}
            child = Child(probe_command("mpi", "--alone"), own_environment())
            ended = attended(examination, child)
    except Stopped as stopped:
        examination.tell_failure(
            f"was being tried when {stopped} came to end all processes (standard error may give the reason)", None
        )
        child.kill()
        finish(examination.report)
        os._exit(FAILED)  # threads may still wait for hanging probes
    finally:
        child.kill()
    if ended.failure:
        examination.tell_failure(ended.failure, ended)
    elif not examination.complete:
        examination.tell_failure("ended too early", ended)
    return finish(examination.report)


def attended(examination: Examination, child: Child) -> Ended:
    """Follow a child until it ends or exceeds its time, and return how it ended. Raises Stopped if a signal arrives."""
    with stopping():
        examination.follow(child)
    return child.end(examination.patience)


def finish(report: Report) -> int:
    """Return the exit status; if a check failed, print a closing sentence on standard error."""
    if report.failed and report.prints:
        sys.stdout.flush()
        text = f"hpcstencil: {report.failed} of {report.all} checks failed; see the remedies above"
        print(text, file=sys.stderr, flush=True)
    return FAILED if report.failed else 0
