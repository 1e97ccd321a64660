"""The control part of a run alone: MPI, the watchdog, agreements, and a small output file, on 1 to 128 processes.

It computes nothing, so that what grows with the number of processes shows. Messages of MPI are counted by Open MPI's monitoring
component, connections and memory of the monitors by /proc. One rank is killed, and in another launch stopped, to see how soon
the others end. Tables and fits are printed; `docs/control.md` collects them.

    .venv/bin/python benchmarks/control.py [--most N] [--without-lost]

With PYTHONPATH set to another version of hpcstencil, that one is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import MPI_ENVIRONMENT, ROOT, machine

if TYPE_CHECKING:  # PYTHONPATH chooses the version that ranks import
    from hpcstencil.runtime.communicator import Communicator

AGREEMENTS, SNAPSHOTS, LISTENED = 20, 3, 4.0
LOST_AT_MOST = 64  # processes; on more, two cores are busy with starting them
FAR = 10_000
COUNTED = ("--mca", "pml_monitoring_enable", "1", "--mca", "pml_monitoring_enable_output", "3")
SENT = r"^[EI]\t(\d+)\t\d+\t(\d+) bytes\t(\d+) msgs"  # source, target, bytes and messages, in the component's output
Row = dict[str, float]


# ---- a rank --------------------------------------------------------------------------------------------------------------


def rank(folder: Path, phases: list[str]) -> None:
    """Do the phases of the control part on one process, and write what was measured to ``folder``."""
    from hpcstencil.runtime import watchdog
    from hpcstencil.runtime.communicator import agree, connect

    communicator, found = connect(), dict[str, float]()
    communicator.barrier()
    found["watchdog"] = seconds(lambda: watchdog.start(communicator))
    communicator.barrier()
    found["agreement"] = seconds(lambda: [agree(communicator, lambda: None) for _ in range(AGREEMENTS)]) / AGREEMENTS
    if "file" in phases:
        found |= output_file(folder, communicator)
    monitor = getattr(communicator.watch, "process", None)
    if "monitor" in phases and monitor is not None:
        found |= of_monitor(monitor.pid)
    (folder / f"{communicator.rank}.json").write_text(json.dumps(found | {"process": os.getpid()}))
    communicator.barrier()
    if "wait" in phases:
        if communicator.rank == 0:
            (folder / "ready").touch()
        time.sleep(600)
    communicator.watch.close()


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def of_monitor(process: int) -> Row:
    """Return the connections of a monitor, its messages per second, and the memory that it has for itself, in MB."""
    place = Path(f"/proc/{process}")
    sockets = sum(os.readlink(one).startswith("socket:") for one in (place / "fd").iterdir())

    def writes() -> int:
        return int((place / "io").read_text().split("syscw:")[1].split()[0])

    before, start = writes(), time.monotonic()
    time.sleep(LISTENED)
    per_second = (writes() - before) / (time.monotonic() - start)
    memory = dict(re.findall(r"(\w+): +(\d+) kB", (place / "smaps_rollup").read_text()))
    private = int(memory["Private_Dirty"]) + int(memory["Private_Clean"])
    return {"connections": sockets, "messages per second": per_second, "memory": private / 1000}


def output_file(folder: Path, communicator: Communicator) -> Row:
    """Create a file, write snapshots of one cell per process, and close it; the seconds of each."""
    from hpcstencil.io.file_layout import Description
    from hpcstencil.io.output_file import OutputFile
    from hpcstencil.numerics.grid import Grid
    from hpcstencil.symbolic.staggering import Layout

    size, own = communicator.size, communicator.rank
    description = Description(Layout(Grid((size, 4), (0.0, 0.0), (1.0, 1.0))), ["u"], np.float32)
    start = time.perf_counter()
    file = OutputFile.create(folder / "run.h5", communicator, description)
    opened = time.perf_counter() - start
    block, ranges = np.full((1, 4), own, np.float32), [(own, own + 1), (0, 4)]
    each = [seconds(partial(file.write_snapshot, n, float(n), {"u": block}, ranges)) for n in range(SNAPSHOTS)]
    return {"open": opened, "snapshot": min(each), "close": seconds(lambda: file.close(complete=True))}


# ---- launches ------------------------------------------------------------------------------------------------------------


def launch(processes: int, folder: Path, *phases: str, settings: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start the ranks."""
    environment = {"PYTHONPATH": str(ROOT), **os.environ, **MPI_ENVIRONMENT}
    command = ["mpirun", "--oversubscribe", *settings, "-n", str(processes)]
    line = [*command, sys.executable, __file__, "--rank", str(folder), *phases]
    return subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)


def finished(run: subprocess.Popen[str], processes: int) -> None:
    """Wait for a launch, and end the benchmark if it fails."""
    _, told = run.communicate()
    if run.returncode:
        sys.exit(f"{processes} processes ended with {run.returncode}:\n{told}")


def measured(processes: int, folder: Path) -> Row:
    """Return the largest value over the ranks of everything that they measure, and the means of some."""
    run = launch(processes, folder, "file", "monitor")
    finished(run, processes)
    each = [json.loads((folder / f"{n}.json").read_text()) for n in range(processes)]
    row = {name: max(one[name] for one in each) for name in each[0]}
    means = {f"mean {name}": float(np.mean([one[name] for one in each])) for name in ("connections", "messages per second")
             if name in each[0]}  # fmt: skip
    return row | means


def messages(processes: int, folder: Path, *phases: str) -> Row:
    """Count the messages that MPI sends, their bytes, and the processes to which one process sends: largest and mean."""
    run = launch(
        processes, folder, *phases, settings=(*COUNTED, "--mca", "pml_monitoring_filename", str(folder / "sent"))
    )
    finished(run, processes)
    found = {name: np.zeros(processes) for name in ("sent", "bytes", "partners")}
    for path in folder.glob("sent.*.prof"):
        for source, size, count in re.findall(SENT, path.read_text(), re.MULTILINE):
            for name, value in (("sent", int(count)), ("bytes", int(size)), ("partners", 1)):
                found[name][int(source)] += value
    largest = {name: float(values.max()) for name, values in found.items()}
    return largest | {f"mean {name}": float(values.mean()) for name, values in found.items()}


def lost(processes: int, folder: Path, number: signal.Signals) -> Row:
    """Lose the last rank; the seconds until a report is printed (NaN: none was), and until all have ended."""
    run = launch(processes, folder, "wait")
    while not (folder / "ready").exists():
        time.sleep(0.01)
    time.sleep(2.0)
    os.kill(json.loads((folder / f"{processes - 1}.json").read_text())["process"], number)
    start, reported = time.monotonic(), math.nan
    assert run.stderr is not None
    for line in run.stderr:
        if "hpcstencil: rank" in line and math.isnan(reported):
            reported = time.monotonic() - start
    run.wait()
    return {"reported": reported, "ended": time.monotonic() - start}


# ---- tables --------------------------------------------------------------------------------------------------------------


def fits(sizes: list[int], values: list[float]) -> str:
    """Fit a + b log2(n) and a + b n, and return the better one, its relative error and its value for ``FAR`` processes."""
    n, y = np.array(sizes, float), np.array(values)
    found = []
    for name, x, far in (("log2(n)", np.log2(n), math.log2(FAR)), ("n", n, float(FAR))):
        matrix = np.stack([np.ones_like(x), x], axis=1)
        (a, b), *_ = np.linalg.lstsq(matrix, y, rcond=None)
        error = float(np.sqrt(np.mean((matrix @ (a, b) - y) ** 2)) / max(np.abs(y).max(), 1e-30))
        found.append((error, f"{a:.3g} + {b:.3g} {name} | {100 * error:.0f} % | {a + b * far:.3g}"))
    return min(found)[1]


def main(most: int, with_lost: bool) -> None:
    """Measure on 1, 2, 4, ... processes and print the tables."""
    sizes = [1 << n for n in range(most.bit_length()) if 1 << n <= most]
    rows: dict[int, Row] = {}
    for size in sizes:
        rows[size] = {}
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            rows[size] |= measured(size, folder)
        for name, phases in (("", ()), ("file: ", ("file",))):
            with tempfile.TemporaryDirectory() as place:
                rows[size] |= {name + key: value for key, value in messages(size, Path(place), *phases).items()}
        for number in (signal.SIGKILL, signal.SIGSTOP) if with_lost and 1 < size <= LOST_AT_MOST else ():
            with tempfile.TemporaryDirectory() as place:
                rows[size] |= {f"{number.name}: {key}": value for key, value in lost(size, Path(place), number).items()}
        print(size, {name: round(value, 4) for name, value in rows[size].items()}, file=sys.stderr, flush=True)
    print(f"{machine()}; {os.cpu_count()} cores, on which all processes run\n")
    names = list(dict.fromkeys(name for row in rows.values() for name in row if name != "process"))
    print(
        "| | " + " | ".join(map(str, sizes)) + " | fit from 4 on | error | 10 000 |\n" + "|---" * (len(sizes) + 4) + "|"
    )
    for name in names:
        there = [size for size in sizes if size >= 4 and name in rows[size] and not math.isnan(rows[size][name])]
        fit = fits(there, [rows[size][name] for size in there]) if len(there) > 2 else " | | "
        print(
            f"| {name} | "
            + " | ".join(f"{rows[s][name]:.3g}" if name in rows[s] else "" for s in sizes)
            + f" | {fit} |"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(Path(sys.argv[2]), sys.argv[3:])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--most", type=int, default=128)
        parser.add_argument("--without-lost", action="store_true")
        given = parser.parse_args()
        main(given.most, not given.without_lost)
