"""Rank and size by the launcher's environment variables, which may hold anything."""

import pytest

from hpcstencil.runtime.launcher import LAUNCHERS, environment_rank, environment_size, local_place

SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}
ALONE = (0, 1, (0, 1))
CASES = {
    "nothing": ({}, ALONE),
    "srun": (SLURM, (3, 8, (1, 4))),
    "mpirun within a job": ({**SLURM, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2, (0, 1))),
    "no numbers": ({"PMI_RANK": "zz", "PMI_SIZE": "2"}, ALONE),
    "no number of processes": ({**SLURM, "SLURM_STEP_NUM_TASKS": "abc"}, ALONE),
    "nothing per node": ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": ""}, (3, 8, (1, 1))),
    "none per node": ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "0"}, (3, 8, (1, 1))),
    "another alphabet": ({"PMI_RANK": "\N{ARABIC-INDIC DIGIT ONE}", "PMI_SIZE": "2"}, ALONE),
}


@pytest.mark.parametrize("given, expected", CASES.values(), ids=CASES)
def test_places_in_a_launch(monkeypatch, given, expected):
    for name in {name for names in LAUNCHERS for name in names}:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert (environment_rank(), environment_size(), local_place()) == expected
