"""The facts that a process finds without the others: its installation, cores, limits, devices, folders, and Slurm.

Queries that may hang or crash run in child processes: external commands, or this module as a probe (``devices``,
``folders``).
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import hpcstencil
from hpcstencil.backends.backend import Unsupported
from hpcstencil.backends.native.compiler import compiler
from hpcstencil.doctor import report
from hpcstencil.doctor.guard import how, own_environment, probe_command, run_guarded
from hpcstencil.runtime.filesystem import file_system
from hpcstencil.runtime.launcher import environment_rank, environment_size, job_tasks
from hpcstencil.runtime.versions import sources_digest

Facts = dict[str, Any]

PACKAGES = ("jax", "jaxlib", "numpy", "h5py", "mpi4py", "mpi4jax")
LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "file size": resource.RLIMIT_FSIZE,
    "address space": resource.RLIMIT_AS,
    "core file": resource.RLIMIT_CORE,
}
TRIAL = 2**20  # bytes that are written to a folder as a test


def facts() -> Facts:
    """Return the facts that this process finds without any query that may hang, as JSON values."""
    return {
        "rank": environment_rank(),
        "expected": environment_size(),
        "host": socket.gethostname(),
        "launcher": launcher(),
        "prefix": sys.prefix,
        "versions": {"Python": platform.python_version(), "hpcstencil": hpcstencil.__version__, **versions()},
        "required": required(),
        "source": sources_digest()[:12],
        "compiler": found_compiler(),
        "cores": sorted(os.sched_getaffinity(0)),
        "launcher_cores": launcher_cores(),
        "limits": {name: resource.getrlimit(limit)[0] for name, limit in LIMITS.items()},
        "infiniband": Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir()),
        "tasks": job_tasks(),
    }


def found_compiler() -> str:
    """Return the command of the C++ compiler for native code; "" if there is none."""
    try:
        return " ".join(compiler())
    except Unsupported:
        return ""


def launcher() -> str:
    """Return the launcher of this process by its environment variables: "mpirun" or "srun"; "" if unknown."""
    names = {"OMPI_COMM_WORLD_SIZE": "mpirun", "SLURM_STEP_NUM_TASKS": "srun", "PMI_SIZE": "mpirun"}
    return next((program for name, program in names.items() if name in os.environ), "")


def versions() -> dict[str, str]:
    """Return the versions of the installed packages by name, without importing them."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def required() -> list[str]:
    """Return the requirements of the installed hpcstencil, such as ``h5py>=3.12``; empty if it is not installed."""
    try:
        return [text for text in metadata.requires("hpcstencil") or [] if ";" not in text]
    except metadata.PackageNotFoundError:
        return []


def launcher_cores() -> int | None:
    """Return the number of cores that Open MPI's launcher, the parent of this process, may use on this host.

    The result is None if it is unknown, or with another launcher.
    """
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return None
    try:
        return len(os.sched_getaffinity(os.getppid()))
    except OSError:
        return None


def guarded_facts(folder: Path, patience: float) -> Facts:
    """Run all child processes at the same time, and return their facts: ``gpus``, ``devices``, ``folders`` and ``slurm``.

    Each probe may take ``patience`` seconds.
    """
    pool = ThreadPoolExecutor()
    try:
        devices = pool.submit(device_facts, patience)
        folders = pool.submit(probe_facts, "folders", patience, str(folder))
        slurm = pool.submit(slurm_facts, patience)
        return {**devices.result(), "folders": folders.result(), "slurm": slurm.result()}
    finally:
        pool.shutdown(wait=False)  # a signal must not wait for a hanging probe


def device_facts(patience: float) -> Facts:
    """Return the facts ``gpus`` (the number that `nvidia-smi` lists, 0 without it) and ``devices`` (those JAX starts)."""
    listed = 0
    if shutil.which("nvidia-smi") is not None and os.environ.get("JAX_PLATFORMS", "").lower() != "cpu":
        _, ended = run_guarded(["nvidia-smi", "-L"], own_environment(), patience)
        if ended.failure:
            return {"gpus": {"error": f"nvidia-smi {how(ended)}"}}
        listed = sum(line.startswith("GPU ") for line in ended.output.splitlines())
    return {"gpus": {"listed": listed}, **probe_facts("devices", patience)}


def probe_facts(name: str, patience: float, *arguments: str) -> Facts:
    """Run a probe of this module as a child, and return the facts that it reports.

    If the child fails, the fact that it was determining has an ``error``.
    """
    lines, ended = run_guarded(probe_command("local", name, *arguments), own_environment(), patience)
    found: Facts = {}
    trying = name
    for line in lines:
        trying = line.get("begin", trying)
        found.update(line.get("facts", {}))
    if ended.failure:
        found[trying] = {"error": how(ended)}
    return found


def slurm_facts(patience: float) -> Facts:
    """Ask Slurm for the kinds of MPI that srun supports (``kinds``) and the time that the job has left (``left``).

    Each command may take ``patience`` seconds. The result is empty outside a Slurm job and on ranks other than 0.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or environment_rank() != 0:
        return {}
    commands = {"kinds": ["srun", "--mpi=list"], "left": ["squeue", "--noheader", "--jobs", job, "--format=%L"]}
    found = {}
    for name, command in commands.items():
        _, ended = run_guarded(command, own_environment(), patience)
        failed = ended.failure is not None
        found[name] = {"error": f"{' '.join(command[:2])} {how(ended)}"} if failed else {"said": ended.output}
    return found


# ---- in a child -------------------------------------------------------------------------------------------------------


def devices() -> Facts:
    """Start the devices that a run of this process would use, check a sum on each, and return facts about them."""
    from hpcstencil.runtime.devices import bind_devices, identities, start_jax

    count, ids = bind_devices(None)
    names = identities(ids)
    local: tuple[Any, ...] = start_jax(count)
    import jax
    import numpy as np

    for device in local:
        total = jax.jit(lambda u: (u * u).sum())(jax.device_put(np.arange(100.0), device))
        if float(total) != 328350.0:
            return {"error": f"{device} computes wrongly: the sum of squares up to 99 came out as {float(total):g}"}
    platform = local[0].platform
    return {"platform": platform, "kind": local[0].device_kind, "count": len(local), "gpus": names}


def folders(folder: str) -> None:
    """Report the facts about each folder that a run needs to the parent, one by one.

    The output folder comes last, because it is the most likely to hang.
    """
    from hpcstencil.runtime.cache_folder import place, unsafe

    cache = place() or Path("/")
    tries: dict[str, Callable[[], Facts]] = {
        "temporary": lambda: writable(Path(os.environ.get("TMPDIR", "/tmp"))),
        "cache": lambda: {**writable(existing(cache)), **refused(unsafe(cache))},
        "shared memory": lambda: space(Path("/dev/shm")),
        "output": lambda: {**space(Path(folder)), **writable(Path(folder))},
    }
    for name, probe in tries.items():
        report.send(begin=name)
        report.send(facts={name: report.outcome(probe)})


def refused(why: str) -> Facts:
    """Return the fact that a run does not use a folder, and ``why``; nothing if that is empty."""
    return {"error": why} if why else {}


def existing(path: Path) -> Path:
    """Return the path if it exists, else the nearest existing folder above it."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def writable(path: Path) -> Facts:
    """Write a file in a folder, sync it to disk, read it back and remove it; return the folder's path.

    The result is an ``error`` if other data came back. Raises OSError if the file system fails.
    """
    with tempfile.TemporaryFile(dir=path, prefix=".hpcstencil-doctor-") as file:
        data = os.urandom(TRIAL)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        if file.read() != data:
            return {"error": f"{path} gives back other data than was written"}
    return {"path": str(path)}


def space(path: Path) -> Facts:
    """Return the path of a folder, the type of its file system, and the free space in bytes (None if not reported)."""
    system = os.statvfs(path)
    free = system.f_bavail * system.f_frsize if system.f_blocks else None
    return {"path": str(path.resolve()), "kind": file_system(path.resolve()), "free": free}


def main() -> None:
    """Run the probe named on the command line."""
    report.start()
    name, *arguments = sys.argv[1:]
    if name == "folders":
        folders(*arguments)
    else:
        report.send(begin="devices")
        report.send(facts={"devices": report.outcome(devices)})


if __name__ == "__main__":
    main()
