"""Rank, size and position on the host, from the environment variables of the launcher (mpirun, srun). Needs no MPI."""

from __future__ import annotations

import os

# Variables of the launchers, most specific first: (rank, size, local rank, local size).
# SLURM_STEP_NUM_TASKS counts the tasks of an srun step; SLURM_NTASKS would also be set in the batch shell.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def _launcher_values() -> tuple[int, int, int, int]:
    """Return (rank, size, local rank, local size) from the environment variables; (0, 1, 0, 1) without a launcher.

    Variables that are no numbers were not set by a launcher.
    """
    for names in LAUNCHERS:
        rank, size, local_rank, local_size = (_number(os.environ.get(name, "")) for name in names)
        if rank is not None and size:
            return rank, size, local_rank or 0, local_size or 1
    return 0, 1, 0, 1


def _number(text: str) -> int | None:
    """Return the first whole number in a variable; None without. Slurm writes tasks per node as "4(x2),3", of which the first
    count is near enough for dividing devices."""
    first = text.split("(")[0].split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() else None


def environment_rank() -> int:
    """Return this process's rank by the launcher's environment variables; 0 without a launcher. Needs no MPI."""
    return _launcher_values()[0]


def environment_size() -> int:
    """Return the number of processes by the launcher's environment variables; 1 without a launcher. Needs no MPI."""
    return _launcher_values()[1]


def local_place() -> tuple[int, int]:
    """Return (local rank, local size): this process's number on its host, and the number of processes there.

    The result is (0, 1) without a launcher.
    """
    return _launcher_values()[2:]


def job_tasks() -> int:
    """Return the number of tasks of this Slurm job; 1 outside of a job, or if its variable holds no number."""
    return _number(os.environ.get("SLURM_NTASKS", "")) or 1 if "SLURM_JOB_ID" in os.environ else 1
