"""Verdicts: each function takes the facts about all ranks and returns lines of the doctor's report.

Facts are dicts, one per rank in order of rank, so that a verdict can be tested without the machine that it describes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from hpcstencil.validation.messages import bytes_text

Facts = dict[str, Any]
T = TypeVar("T")

README = "README.md, 'Requirements'"
INSTALL = f"build it against this MPI ({README}; ./quickstart.sh does)"
LAUNCH = "start with the launcher of this MPI library: 'srun --mpi=pmix' under Slurm, else its own mpirun"


@dataclass(frozen=True)
class Check:
    """One line of the report: the ``name`` of what was checked, the finding, and a remedy if the status is not "ok"."""

    status: Literal["ok", "warning", "failed"]
    name: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.status:<8} {self.name:<16} {self.found}" + (f"; {self.remedy}" if self.remedy else "")


def ranks_text(ranks: Sequence[int], every: Sequence[Facts]) -> str:
    """Describe ``ranks`` by the first one and the number of others, such as " on rank 3 (n2) and 4 others".

    The result is "" if there is only one process.
    """
    if len(every) == 1:
        return ""
    others = f" and {len(ranks) - 1} other{'s' * (len(ranks) > 2)}" if len(ranks) > 1 else ""
    return f" on rank {ranks[0]} ({every[ranks[0]]['host']}){others}"


def failing(every: Sequence[Facts], look: Callable[[Facts], T]) -> list[tuple[int, T]]:
    """Return (rank, result) for each rank for whose facts ``look`` returns a non-empty result."""
    return [(rank, said) for rank, facts in enumerate(every) if (said := look(facts))]


def of_hosts(every: Sequence[Facts]) -> dict[str, list[int]]:
    """Return the ranks of each host, by host name."""
    hosts: dict[str, list[int]] = {}
    for rank, facts in enumerate(every):
        hosts.setdefault(facts["host"], []).append(rank)
    return hosts


# ---- the installation and the launch ------------------------------------------------------------------------------------


def installation(every: Sequence[Facts]) -> Check:
    """Check that versions are equal on all ranks and satisfy the requirements in the facts, such as ``h5py>=3.12``."""
    first = every[0]
    for rank, facts in enumerate(every):
        for name in {**first["versions"], **facts["versions"]}:
            here, there = first["versions"].get(name, "missing"), facts["versions"].get(name, "missing")
            if here != there:
                found = f"{name} is {here} on rank 0 ({first['host']}), {there}{ranks_text([rank], every)}"
                return Check("failed", "installation", found, "let all hosts use one environment, in a shared folder")
        if facts["source"] != first["source"]:
            found = f"hpcstencil's code{ranks_text([rank], every)} differs from that on rank 0 ({first['host']})"
            return Check("failed", "installation", found, "let all hosts use one environment, in a shared folder")
    for requirement in first["required"]:
        match = re.match(r"([\w-]+)>=([\d.]+)$", requirement)
        have = match and first["versions"].get(match[1])
        if match and have and numbers(have) < numbers(match[2]):
            found = f"{match[1]} is {have}, expected {match[2]} or newer"
            return Check("failed", "installation", found, f"pip install '{requirement}'")
    text = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    return Check("ok", "installation", text + (f"; the same on {len(every)} processes" if len(every) > 1 else ""))


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; "3.12rc1" gives (3, 12)."""
    leading = re.match(r"[\d.]*", version)
    assert leading is not None  # it also matches an empty text
    return tuple(int(part) for part in leading[0].split(".") if part)


def launch(every: Sequence[Facts], mpi: Facts) -> Check:
    """Check that MPI sees as many processes as the launcher started."""
    expected, by = every[0]["expected"], every[0]["launcher"]
    if "error" in mpi:
        if expected == 1:
            return Check("ok", "launch", "one process, without MPI")
        return Check("failed", "launch", f"{by} started {expected} processes, which need mpi4py", INSTALL)
    size = mpi["size"]
    if size == 1 < expected:
        found = f"{by} started {expected} copies that cannot see each other (MPI sees 1 process)"
        return Check("failed", "launch", found, f"{LAUNCH} (here: {mpi['library']})")
    if size != expected:
        found = f"MPI sees {size} processes, but the launcher's variables say {expected}"
        return Check(
            "failed", "launch", found, "use a launcher whose variables are known: srun, or mpirun of Open MPI or MPICH"
        )
    if size == 1:
        tasks = every[0]["tasks"]
        if tasks > 1 and by != "srun":
            found = f"one process, in a Slurm job of {tasks} tasks"
            return Check("warning", "launch", found, "start all with 'srun --mpi=pmix hpcstencil ...'")
        return Check("ok", "launch", "one process" + (f", by {by}" if by else ""))
    hosts = of_hosts(every)
    counts = sorted({len(ranks) for ranks in hosts.values()})
    each = "" if len(hosts) == 1 else f" ({' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} each)"
    where = next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} hosts"
    return Check("ok", "launch", f"{size} processes on {where}{each}, by {by}")


def mpi_library(every: Sequence[Facts], mpi: Facts) -> Check:
    """Check that mpi4py works, and report the MPI library that it loaded."""
    if "error" in mpi:
        several = every[0]["expected"] > 1
        found = f"mpi4py cannot be used: {mpi['error']}" + ("" if several else "; one process works without it")
        remedy = f"install mpi4py: {INSTALL}" if several else f"for several processes install mpi4py ({README})"
        return Check("failed" if several else "warning", "MPI", found, remedy)
    return Check("ok", "MPI", f"{mpi['library']} {' '.join(mpi['files'])}".rstrip())


# ---- the machine --------------------------------------------------------------------------------------------------------


def cores(every: Sequence[Facts]) -> Check:
    """Check that the ranks of each host have enough cores, and that binding leaves none idle."""
    for host, ranks in of_hosts(every).items():
        for rank in ranks:
            bound = set(every[rank]["cores"])
            sharing = [other for other in ranks if set(every[other]["cores"]) <= bound]
            if len(sharing) > len(bound):
                names = ", ".join(map(str, sharing[:4])) + (", ..." if len(sharing) > 4 else "")
                found = f"ranks {names} of {host} share {len(bound)} core{'s' * (len(bound) > 1)}"
                remedy = (
                    "start fewer processes per host or give each its own cores: srun --cpus-per-task, mpirun --bind-to"
                )
                return Check("warning", "cores", found, remedy)
        used = len(set().union(*(every[rank]["cores"] for rank in ranks)))
        offered = max(every[rank]["launcher_cores"] or 0 for rank in ranks)
        on_cpus = all(every[rank].get("devices", {}).get("platform", "cpu") == "cpu" for rank in ranks)
        if on_cpus and used < offered:
            found = f"mpirun has bound the processes of {host} to {used} of {offered} cores, the others stay idle"
            return Check("warning", "cores", found, "mpirun --bind-to none, or --map-by slot:PE=N for N cores each")
    counts = [len(facts["cores"]) for facts in every]
    few, many = min(counts), max(counts)
    each = f"{few}" if few == many else f"{few} to {many}"
    return Check("ok", "cores", f"{each} for {'each' if len(every) > 1 else 'this'} process")


def compiler(every: Sequence[Facts]) -> Check:
    """Check that every process that computes on CPUs has a C++ compiler, which native code needs."""
    wanting = [rank for rank, facts in enumerate(every) if facts.get("devices", {}).get("platform", "cpu") == "cpu"]
    without = [rank for rank in wanting if not every[rank]["compiler"]]
    if without:
        remedy = "native code needs one, without it runs are slower: apt-get install g++, or set CXX"
        return Check("warning", "compiler", f"no C++ compiler{ranks_text(without, every)}", remedy)
    return Check("ok", "compiler", ", ".join(sorted({every[rank]["compiler"] for rank in wanting})) or "not needed")


def limits(every: Sequence[Facts]) -> Iterable[Check]:
    """Check the limits of the shell that a run may reach."""

    def below(name: str, least: float) -> list[tuple[int, int]]:
        values = [(rank, facts["limits"][name]) for rank, facts in enumerate(every)]
        return [(rank, value) for rank, value in values if 0 <= value < least]

    least_files = 256 + len(every)  # there may be a socket to each other process
    unlimited = float("inf")
    rules = (
        ("open files", least_files, f"raise it: ulimit -n {max(4096, least_files)}"),
        ("file size", unlimited, "lift it: ulimit -f unlimited"),
        ("address space", unlimited, "lift it, because JAX reserves much: ulimit -v unlimited"),
    )
    quiet = True
    for name, least, remedy in rules:
        for rank, value in below(name, least)[:1]:
            quiet = False
            shown = f"{value}" if name == "open files" else bytes_text(value)
            yield Check("warning", "limits", f"{name}: at most {shown}{ranks_text([rank], every)}", remedy)
    for rank, value in below("locked memory", 2**30)[:1]:
        if every[rank]["infiniband"]:
            quiet = False
            found = f"locked memory: at most {bytes_text(value)}{ranks_text([rank], every)}, which has InfiniBand"
            remedy = "lift it, because MPI registers buffers: ulimit -l unlimited, in Slurm PropagateResourceLimits"
            yield Check("warning", "limits", found, remedy)
    if quiet:
        files = min(facts["limits"]["open files"] % 2**63 for facts in every)
        core = "no core files" if every[0]["limits"]["core file"] == 0 else "core files"
        yield Check("ok", "limits", f"open files {files if files < 2**62 else 'unlimited'}, {core} after a crash")


def devices(every: Sequence[Facts]) -> Iterable[Check]:
    """Check that devices start and compute, that JAX finds all GPUs of the host, and that no two ranks share a GPU."""
    hung = failing(every, lambda facts: facts["gpus"].get("error"))
    if hung:
        rank, said = hung[0]
        remedy = "the driver does not answer: use another host and tell its administrator, or set JAX_PLATFORMS=cpu"
        yield Check("failed", "devices", said + ranks_text([r for r, _ in hung], every), remedy)
        return
    found = [facts["devices"] for facts in every]
    broken = [(rank, one["error"]) for rank, one in enumerate(found) if "error" in one]
    if broken:
        rank, said = broken[0]
        text = f"jax cannot use its devices{ranks_text([r for r, _ in broken], every)}: {said}"
        remedy = (
            "check the driver, CUDA_VISIBLE_DEVICES, JAX_PLATFORMS and XLA_FLAGS; jax[cuda12] or jax[cuda13] for GPUs"
        )
        yield Check("failed", "devices", text, remedy)
        return
    idle = [rank for rank, one in enumerate(found) if one["platform"] == "cpu" and every[rank]["gpus"]["listed"]]
    if idle:
        text = f"nvidia-smi lists {every[idle[0]]['gpus']['listed']} GPU(s){ranks_text(idle, every)}, but jax has the CPU only"
        yield Check(
            "warning",
            "devices",
            text,
            "pip install 'jax[cuda12]' (or cuda13), or set JAX_PLATFORMS=cpu if this is intended",
        )
    else:
        kinds = sorted({f"{one['count']} {one['platform']} ({one['kind']})" for one in found})
        yield Check("ok", "devices", ", ".join(kinds) + (" for each process" if len(every) > 1 else ""))
    users: dict[tuple[str, str], list[int]] = {}
    for rank, one in enumerate(found):
        for gpu in one["gpus"]:
            users.setdefault((every[rank]["host"], gpu), []).append(rank)
    for (host, gpu), ranks in users.items():
        if len(ranks) > 1:
            text = f"ranks {', '.join(map(str, ranks))} share GPU {gpu} of {host}"
            yield Check(
                "warning", "devices", text, "start one process per GPU: srun --gpus-per-task=1, fewer tasks per node"
            )
            break
