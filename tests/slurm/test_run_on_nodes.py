"""One run on two nodes, started as a user starts it."""

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


def test_a_run_on_two_nodes_equals_the_run_on_one_process(cluster, submission):
    result = cluster.run("srun", "-N2", "-n4", "hpcstencil", "run", "input.toml", folder=submission.folder)
    assert result.stdout.count("T_eff") == 1, "one summary, not one per process"
    assert submission.log() == "" and submission.checkpoints()
    submission.assert_same_as_uninterrupted()
    told = cluster.run("srun", "-N2", "-n4", "hpcstencil", "info", "run.h5", folder=submission.folder)
    assert told.stdout.count("on a cluster") == 1, told.stdout


def test_processes_that_cannot_see_each_other_are_refused(cluster, submission):
    command = ("srun", "--mpi=none", "-N2", "-n4", "hpcstencil", "run", "input.toml")
    result = cluster.run(*command, folder=submission.folder, check=False)
    assert result.returncode == 4, result.stderr
    assert "the launcher started 4 processes" in result.stderr and "srun --mpi=pmix" in result.stderr
    assert result.stderr.count("hpcstencil: ") == 1, result.stderr
    assert sorted(path.name for path in submission.folder.glob("*.h5*")) == []
