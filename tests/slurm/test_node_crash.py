"""A node loses its power in mid-run: nobody on the network is told, its processes are simply gone."""

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


def test_a_node_crash_ends_the_job_and_the_run_goes_on_elsewhere(cluster, submission):
    job = submission.begin(cluster, "--no-requeue", "--ntasks-per-node=1", "jobs/cpu_nodes.sbatch")
    assert cluster.job(job)["BatchHost"] == "n1", "rank 0 and the script of the job are on the node that stays"
    cluster.crash_node("n2")
    cluster.until(lambda: "has not been heard from" in submission.log(), 90, "the report of the loss")
    cluster.boot_node("n2")  # otherwise Slurm waits until it believes the node to be lost
    told = cluster.wait(job, 120)
    assert told["JobState"] in ("NODE_FAIL", "FAILED"), submission.log()
    newest = submission.shorten()
    report = [line for line in submission.log().splitlines() if line.startswith("hpcstencil: ")]
    assert len(report) == 1 and " on n2 has not been heard from" in report[0], submission.log()
    assert f"run.checkpoint.{newest:012d}.h5" in report[0], "the report names the newest checkpoint"

    command = ("srun", "-N1", "-n2", "hpcstencil", "run", "input.toml", "--resume")
    cluster.run(*command, folder=submission.folder)
    submission.assert_same_as_uninterrupted()


@pytest.mark.long
def test_a_job_that_loses_its_first_node_is_requeued_and_finishes(cluster, submission):
    job = submission.begin(cluster, "--requeue", "jobs/cpu_nodes.sbatch")
    with cluster.no_new_jobs():
        cluster.crash_node("n1")
        cluster.until(lambda: cluster.job(job)["JobState"] == "PENDING", 120, "the job back in the queue")
        cluster.until(lambda: cluster.nodes()["n2"] == "idle", 60, "the end of the ranks on the other node")
        newest = submission.shorten()
    cluster.boot_node("n1")
    submission.assert_ends(cluster, job, 120, JobState="COMPLETED", Restarts="1")
    assert submission.checkpoints()[0] >= newest
    submission.assert_same_as_uninterrupted()
