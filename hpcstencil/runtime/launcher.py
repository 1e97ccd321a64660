"""What the launcher (mpirun, srun) says of this process in its environment; needs no MPI."""

from __future__ import annotations

import os

# What launchers tell a process about itself, most specific first: (rank, size, local rank, local size).
# SLURM_STEP_NUM_TASKS counts the tasks of an srun step; SLURM_NTASKS would also be set in the batch shell.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def _launcher_values() -> tuple[int, int, int, int]:
    """(rank, size, local rank, local size) as the launcher's environment variables say; (0, 1, 0, 1) without one."""
    for rank, size, local_rank, local_size in LAUNCHERS:
        if rank in os.environ and size in os.environ:
            local = os.environ.get(local_rank, "0")
            # Slurm writes tasks per node as "4(x2),3": the first count is near enough for dividing devices.
            locals_ = os.environ.get(local_size, "1").split("(")[0].split(",")[0]
            return int(os.environ[rank]), int(os.environ[size]), int(local), int(locals_)
    return 0, 1, 0, 1


def environment_rank() -> int:
    """This process's rank as the launcher's environment says, 0 without a launcher; needs no MPI."""
    return _launcher_values()[0]


def environment_size() -> int:
    """How many processes the launcher's environment says it started, 1 without a launcher; needs no MPI."""
    return _launcher_values()[1]


def local_place() -> tuple[int, int]:
    """(local rank, local size): this process's place among the processes of its host."""
    return _launcher_values()[2:]
