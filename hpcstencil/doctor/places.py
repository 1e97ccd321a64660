"""Verdicts on folders, on Slurm, and on the probes that all ranks run together. See ``checks`` for the arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpcstencil.doctor.checks import INSTALL, LAUNCH, README, Check, Facts, failing, of_hosts, ranks_text
from hpcstencil.runtime.filesystem import NOT_FOR_MPIO
from hpcstencil.runtime.walltime import seconds
from hpcstencil.validation.messages import bytes_text

IN_MEMORY = ("tmpfs", "ramfs")
LITTLE = 10**9  # bytes; a folder for output with less free space gets a warning
SHARED_MEMORY = 32 * 2**20  # bytes of /dev/shm that Open MPI may use per process
SECONDS_LEFT = 300.0  # a job with less gets a warning


def output_folder(every: Sequence[Facts]) -> Check:
    """Check that the output folder is writable, has enough space, and is on a file system suited to parallel writes."""
    every_folder = [facts["folders"].get("output") for facts in every]
    for rank, folder in enumerate(every_folder):
        if folder is None or "error" in folder:
            said = folder["error"] if folder else "not tried, because another folder failed"
            found = f"cannot write to {every[0]['folder']}{ranks_text([rank], every)}: {said}"
            return Check(
                "failed", "folder", found, "choose a folder that exists and is writable on all hosts (--folder)"
            )
    folder = every_folder[0]
    about = f"{folder['path']} ({folder['kind']}"
    about += ")" if folder["free"] is None else f", {bytes_text(folder['free'])} free)"
    if folder["free"] is not None and folder["free"] < LITTLE:
        return Check("warning", "folder", f"{about} has little space", "remove old output, or write to another folder")
    if folder["kind"] in NOT_FOR_MPIO:
        found = f"{about} is slow and late when many processes write one file"
        return Check("warning", "folder", found, "write to the cluster's parallel file system (Lustre, GPFS, BeeGFS)")
    if folder["kind"] in IN_MEMORY:
        found = f"{about} is in this host's memory and is lost when it restarts"
        return Check("warning", "folder", found, "write to a disk")
    return Check("ok", "folder", about)


def same_folder(every: Sequence[Facts], seen: Sequence[Facts]) -> Check | None:
    """Check that all hosts see the file that rank 0 created."""
    blind = [rank for rank, facts in enumerate(seen) if not facts.get("seen")]
    if blind:
        found = f"a file of rank 0 ({every[0]['host']}) is not seen{ranks_text(blind, every)}"
        return Check("failed", "same folder", found, "write to a folder that all hosts share")
    return Check("ok", "same folder", f"a file of rank 0 is seen by all {len(every)} processes")


def small_folders(every: Sequence[Facts]) -> Iterable[Check]:
    """Check that the other folders that a run uses are writable: the cache and the temporary folder."""
    remedies = {
        "cache": "every run compiles and measures again; set XDG_CACHE_HOME to a folder that only you can write",
        "temporary": "set TMPDIR to a folder that is writable",
    }
    for name, remedy in remedies.items():
        folders = [facts["folders"].get(name, {}) for facts in every]
        broken = failing(folders, lambda folder: folder.get("error"))
        if broken:
            rank, said = broken[0]
            text = f"cannot be used{ranks_text([r for r, _ in broken], every)}: {said}"
            yield Check("warning", f"{name} folder", text, remedy)
        elif all(name in facts["folders"] for facts in every):
            yield Check("ok", f"{name} folder", f"{every[0]['folders'][name]['path']} is writable")


def shared_memory(every: Sequence[Facts]) -> Check | None:
    """Return a warning if /dev/shm, through which processes of a host communicate, has little free space; else None."""
    for host, ranks in of_hosts(every).items():
        free = every[ranks[0]]["folders"].get("shared memory", {}).get("free")
        if free is not None and free < SHARED_MEMORY * len(ranks):
            found = (
                f"{bytes_text(free)} free in /dev/shm of {host}, {bytes_text(SHARED_MEMORY * len(ranks))} may be needed"
            )
            return Check("warning", "shared memory", found, "enlarge it; in a container: docker run --shm-size=1g")
    return None


def slurm(facts: Facts, library: str) -> Iterable[Check]:
    """Check in a Slurm job that srun can start this MPI library, and that the job has time left.

    ``facts`` are those of rank 0, and ``library`` is the name of the MPI library.
    """
    kinds, left = facts["slurm"].get("kinds"), facts["slurm"].get("left")
    if kinds is not None:
        if "error" in kinds:
            yield Check(
                "warning", "Slurm", kinds["error"], "start with mpirun inside the job, or ask the administrator"
            )
        elif "pmix" not in kinds["said"] and not ("MPICH" in library or "Intel" in library):
            known = ", ".join(dict.fromkeys(re.findall(r"\b(pmi2|none|cray_shasta|openmpi)\b", kinds["said"])))
            found = f"srun has no pmix, only {known or 'unknown kinds of MPI'}"
            yield Check("warning", "Slurm", found, "start with mpirun inside the job instead of srun")
        else:
            yield Check(
                "ok", "Slurm", "srun --mpi=pmix is available" if "pmix" in kinds["said"] else "srun is available"
            )
    if left is not None and "said" in left:
        there = seconds(left["said"])
        if there is not None and there < SECONDS_LEFT:
            yield Check(
                "warning", "time left", f"{left['said'].strip()} of the job", "submit a job with a longer --time"
            )
        elif there is not None:
            yield Check("ok", "time left", f"{left['said'].strip()} of the job")


# ---- together ----------------------------------------------------------------------------------------------------------


def h5py_build(every: Sequence[Facts], builds: Sequence[Facts], several: bool) -> Check:
    """Check that h5py can be imported and was built with the same MPI library as mpi4py."""
    broken = failing(builds, lambda build: build.get("error"))
    if broken:
        rank, said = broken[0]
        return Check("failed", "h5py", f"cannot be imported{ranks_text([rank], every)}: {said}", "pip install h5py")
    first = builds[0]
    strangers = failing(builds, lambda build: ", ".join(build["other_mpi"]))
    if strangers:
        rank, said = strangers[0]
        found = f"built against another MPI library than mpi4py{ranks_text([rank], every)}: {said}"
        return Check("failed", "h5py", found, f"{INSTALL}, with the same modules loaded as for mpi4py")
    if not all(build["parallel"] for build in builds):
        found = f"serial, HDF5 {first['hdf5']}"
        if several:
            found += ": rank 0 will write for all, more slowly"
            return Check("warning", "h5py", found, f"for parallel output {INSTALL}")
        return Check("ok", "h5py", f"{found}, which is right for one process")
    return Check("ok", "h5py", f"parallel, HDF5 {first['hdf5']}, of the same MPI as mpi4py")


def write(every: Sequence[Facts], writes: Sequence[Facts]) -> Check:
    """Check that all ranks read back from a file what was written."""
    broken = failing(writes, lambda one: one.get("error"))
    if broken:
        rank, said = broken[0]
        remedy = "try another folder (--folder); if that fails too, another I/O layer of Open MPI: OMPI_MCA_io=^ompio"
        return Check("failed", "write", f"{ranks_text([rank], every).strip()} {said}".strip(), remedy)
    first = writes[0]
    if first["way"] == "serial":
        return Check("ok", "write", f"a small file written by one process and read back in {first['seconds']:.2g} s")
    found = f"a small file written by {len(every)} processes through MPI-IO and read back in {first['seconds']:.2g} s"
    return Check("ok", "write", found)


def jax_messages(every: Sequence[Facts], results: Sequence[Facts], several: bool) -> Check:
    """Check that mpi4jax can be loaded, supports this version of JAX, and delivers messages."""
    broken = failing(results, lambda one: one.get("error"))
    if broken:
        rank, said = broken[0]
        found = f"does not work{ranks_text([rank], every)}: {said}"
        remedy = (
            f"build it against this MPI and jax: pip install --no-build-isolation --no-cache-dir mpi4jax ({README})"
        )
        return Check("failed" if several else "warning", "mpi4jax", found, remedy)
    warning = next((one["warning"] for one in results if one["warning"]), "")
    if warning:
        return Check("warning", "mpi4jax", warning.split(". ")[0], "install the jax that it knows, or a newer mpi4jax")
    about = "to itself" if len(results) == 1 else f"between {len(results)} processes"
    return Check("ok", "mpi4jax", f"a message {about} and a sum arrived, on {results[0]['platform']}")


def interrupted(probe: str, how: str, words: str, several: bool) -> Check:
    """Return the verdict on a probe in which the MPI child hung or crashed.

    ``how`` is a predicate such as "did not answer within 60 s", and ``words`` is the most informative line of its output.
    """
    remedy = {
        "MPI": LAUNCH,
        "messages": "where hosts do not reach each other, choose their network: OMPI_MCA_btl_tcp_if_include=ib0, say",
        "write": "try another folder (--folder), or another I/O layer of Open MPI: OMPI_MCA_io=^ompio",
        "h5py": f"install h5py anew: {INSTALL}",
        "mpi4jax": f"install mpi4jax anew: {INSTALL}",
    }.get(probe, "look for messages of another process on standard error")
    found = f"{how}" + (f": {words}" if words else "")
    needed = several or probe not in ("MPI", "mpi4jax")
    return Check("failed" if needed else "warning", probe, found, remedy)
