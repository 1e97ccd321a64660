"""The MPI child of a rank, which runs all probes that need the other processes.

It takes the rank's place in the launch: its parent has the launcher's environment but never starts MPI. The probes run in the
same order on all ranks. After each probe, a rank first reports its own facts to its parent, then those of all ranks when
these have been gathered. If a single rank fails, its parent therefore knows of the failure, and no rank waits longer than its
parent allows.
"""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hpcstencil.doctor import report
from hpcstencil.doctor.report import Facts

LIBRARY = re.compile(r"/libmpi(ch)?([_-](cray|intel|gnu|[0-9a-f]{8})[^/]*)?\.so[.\d]*$")
T = TypeVar("T")
VALUES = 1000  # float64 values that each rank writes
HURRIED = 1.0  # seconds after which a missing rank counts as late
NAMED = 8  # late ranks that are listed by number
SEEN_LATE = 5.0  # seconds after which a file must be visible on the other hosts


class Ranks:
    """The processes of the mpi4py communicator ``mpi``; with None, only this process."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.rank: int = mpi.Get_rank() if mpi else 0
        self.size: int = mpi.Get_size() if mpi else 1

    def everywhere(self, value: T) -> list[T]:
        """Return the values of all ranks, in order of rank, on all ranks. Collective.

        While rank 0 waits, it reports to its parent which ranks are missing.
        """
        if self.rank != 0:
            self.mpi.send((self.rank, value), 0)
            return self.mpi.bcast(None)
        values = {0: value}
        reported = 0  # the number of values in the last report
        asked = time.monotonic()
        while len(values) < self.size:
            if self.mpi.iprobe():
                rank, theirs = self.mpi.recv()
                values[rank] = theirs
            elif reported != len(values) and time.monotonic() - asked > HURRIED:
                missing = [rank for rank in range(self.size) if rank not in values]
                report.send(missing=missing[:NAMED], of=len(missing))
                reported = len(values)
            else:
                time.sleep(0.001)
        every = [values[rank] for rank in range(self.size)]
        return self.mpi.bcast(every) if self.mpi else every

    def wait(self) -> None:
        """Return once all ranks have called this."""
        if self.mpi:
            self.mpi.Barrier()


def mpi_libraries() -> set[str]:
    """Return the files of the MPI libraries that this process has loaded."""
    mapped = {line.split()[-1] for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines()}
    return {os.path.realpath(path) for path in mapped if LIBRARY.search(path)}


def start_mpi() -> tuple[Ranks, Facts]:
    """Start MPI through mpi4py; return the ranks and the facts about the library. Raises ImportError without mpi4py."""
    from mpi4py import MPI

    ranks = Ranks(MPI.COMM_WORLD.Clone())
    library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
    return ranks, {"rank": ranks.rank, "size": ranks.size, "library": library, "files": sorted(mpi_libraries())}


def same_folder(ranks: Ranks, folder: Path) -> Facts:
    """Test whether this rank sees a file that rank 0 creates in the folder; return it as ``seen``. Collective."""
    path = folder / ranks.everywhere(f".hpcstencil-doctor-{os.uname().nodename}-{os.getpid()}")[0]
    if ranks.rank == 0:
        path.touch()
    ranks.wait()
    until = time.monotonic() + SEEN_LATE
    seen = path.exists()
    while not seen and time.monotonic() < until:
        time.sleep(0.1)
        os.listdir(folder)  # makes a network file system refresh its names
        seen = path.exists()
    ranks.wait()
    if ranks.rank == 0:
        path.unlink(missing_ok=True)
    return {"seen": seen}


def h5py_build() -> Facts:
    """Import h5py and return how it was built.

    The facts are ``parallel``, the version ``hdf5``, the ``file`` of h5py, and in ``other_mpi`` any MPI libraries that it has
    loaded in addition to mpi4py's.
    """
    before = mpi_libraries()
    import h5py

    return {
        "parallel": bool(h5py.get_config().mpi),
        "hdf5": h5py.version.hdf5_version,
        "other_mpi": sorted(mpi_libraries() - before) if before else [],
        "file": h5py.__file__,
    }


def write(ranks: Ranks, folder: Path, parallel: bool) -> Facts:
    """Write a small HDF5 file as a run would, read it back, and remove it. Collective.

    Returns the ``way`` in which it was written and the ``seconds`` that this took, or an ``error`` if the values differ.
    """
    path = folder / ranks.everywhere(f".hpcstencil-doctor-{os.uname().nodename}-{os.getpid()}.h5")[0]
    start = time.perf_counter()
    try:
        good = written_and_read(path, ranks, parallel and ranks.size > 1)
        ranks.wait()
    finally:
        if ranks.rank == 0:
            path.unlink(missing_ok=True)
    if not good:
        return {"error": "what was read back is not what was written"}
    return {"way": "mpio" if parallel and ranks.size > 1 else "serial", "seconds": time.perf_counter() - start}


def written_and_read(path: Path, ranks: Ranks, together: bool) -> bool:
    """Write values to a file, read them back, and return whether they are equal. Collective.

    All ranks write ``together`` through MPI-IO. Otherwise only rank 0 writes, and the other ranks return True.
    """
    import h5py
    import numpy as np

    values = np.repeat(np.arange(ranks.size, dtype=float), VALUES)
    own = slice(ranks.rank * VALUES, (ranks.rank + 1) * VALUES)
    next_one = (ranks.rank + 1) % ranks.size
    theirs = slice(next_one * VALUES, (next_one + 1) * VALUES)
    if not together:
        if ranks.rank != 0:
            return True
        with h5py.File(path, "w") as file:
            file["u"] = values
        with h5py.File(path, "r") as file:
            return bool(np.array_equal(file["u"][...], values))
    with h5py.File(path, "w", driver="mpio", comm=ranks.mpi) as file:
        dataset = file.create_dataset("u", shape=values.shape, dtype=values.dtype)
        with dataset.collective:
            dataset[own] = values[own]
    with h5py.File(path, "r", driver="mpio", comm=ranks.mpi) as file:
        dataset = file["u"]
        with dataset.collective:
            return bool(np.array_equal(dataset[theirs], values[theirs]))


def jax_messages(ranks: Ranks) -> Facts:
    """Test mpi4jax in compiled code. Collective.

    Each rank sends its number to the next one, and all add up their numbers. Returns the ``platform`` and a ``warning`` of
    mpi4jax ("" if there is none), or an ``error``.
    """
    from hpcstencil.runtime.devices import bind_devices, start_jax

    count, _ = bind_devices(None)
    before = mpi_libraries()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import mpi4jax
    other = mpi_libraries() - before
    if other:
        return {"error": f"it was built against another MPI library than mpi4py ({', '.join(sorted(other))})"}
    device: Any = start_jax(count)[0]
    import jax
    import numpy as np
    from mpi4py import MPI

    own = ranks.mpi.Clone()  # mpi4py and mpi4jax must not share a communicator
    before_me, after_me = (ranks.rank - 1) % ranks.size, (ranks.rank + 1) % ranks.size

    def exchange(u: Any) -> Any:
        got = mpi4jax.sendrecv(u, u, source=before_me, dest=after_me, comm=own)
        return got, mpi4jax.allreduce(u, op=MPI.SUM, comm=own)

    got, total = jax.jit(exchange)(jax.device_put(np.full(4, float(ranks.rank)), device))
    expected = ranks.size * (ranks.size - 1) / 2
    if not (np.all(np.asarray(got) == before_me) and np.all(np.asarray(total) == expected)):
        return {"error": f"messages arrive wrongly: expected {before_me} and {expected:g}, got {got[0]} and {total[0]}"}
    about_jax = [" ".join(str(each.message).split()) for each in caught if "JAX" in str(each.message)]
    return {"platform": device.platform, "warning": about_jax[0] if about_jax else ""}


def main() -> None:
    """Run all probes in order. With ``--alone``, MPI is not started."""
    report.start()
    ranks = Ranks(None)
    report.send(begin="MPI")
    if "--alone" not in sys.argv:
        found: list[Facts] = []

        def start() -> Facts:
            nonlocal ranks
            ranks, started = start_mpi()
            return started

        found.append(report.outcome(start))
        report.send(probe="MPI", all=found)

    def probe(name: str, look: Callable[[], Facts]) -> list[Facts]:
        report.send(begin=name)
        mine = report.outcome(look)
        report.send(local=name, facts=mine)
        every = ranks.everywhere(mine)
        report.send(probe=name, all=every)
        return every

    report.send(begin="messages")
    asked = report.listen()
    every = probe("messages", lambda: asked["facts"])
    if any("error" in one.get("devices", {"error": ""}) for one in every):
        os.environ["JAX_PLATFORMS"] = "cpu"  # a broken device must not hide other findings
    folder = Path(asked["folder"])
    good = all("error" not in one["folders"].get("output", {"error": ""}) for one in every)
    if good and ranks.size > 1:
        good = all(one.get("seen") for one in probe("folder", lambda: same_folder(ranks, folder)))
    builds = probe("h5py", h5py_build)
    if good and not any(one.get("error") or one["other_mpi"] for one in builds):
        parallel = all(one["parallel"] for one in builds)
        probe("write", lambda: write(ranks, folder, parallel))
    if ranks.mpi:
        probe("mpi4jax", lambda: jax_messages(ranks))
    report.send(begin="the end of MPI")
    report.send(probe="end", all=[])
    report.listen()  # rank 0's parent answers after it has printed: a launcher may end all processes when one leaves
    ranks.wait()


if __name__ == "__main__":
    main()
