"""Runs that do not end in one go: walltime, requeue, scancel. Each ends as if nothing had happened.

A job that computes takes the cores of other tests, so jobs have few processes where this makes no difference.

However fast the machine, the first job must not finish: its input asks for an end that is far away. Once it has been
stopped, the input asks for an end a little after the last checkpoint, which a run that goes on is allowed to.
"""

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


def test_scancel_leaves_a_sound_checkpoint(cluster, submission):
    job = submission.begin(cluster, "--ntasks-per-node=1", "jobs/cpu_nodes.sbatch")
    cluster.run("scancel", job)
    assert cluster.wait(job, 60)["JobState"] == "CANCELLED"
    newest = submission.shorten()
    assert f"stopped by SIGTERM at step {newest}" in submission.log()
    submission.here("info", f"run.checkpoint.{newest:012d}.h5")
    submission.here("info", "run.h5")
    submission.here("run", "input.toml", "--resume", "--quiet")
    submission.assert_same_as_uninterrupted()


def test_a_requeued_job_goes_on_from_its_checkpoint(cluster, submission):
    job = submission.begin(cluster, "jobs/cpu_nodes.sbatch")
    with cluster.no_new_jobs():
        cluster.run("scontrol", "requeue", job)
        cluster.until(lambda: cluster.job(job)["JobState"] == "PENDING", 60, "the job back in the queue")
        newest = submission.shorten()
    submission.assert_ends(cluster, job, 120, JobState="COMPLETED", Restarts="1")
    assert submission.checkpoints()[0] >= newest, "the second course went on from the first one's checkpoint"
    assert f"stopped by SIGTERM at step {newest}" in submission.log() and "T_eff" in submission.log(), "one log of both"
    assert cluster.steps(job) == ["0", "1"], "each course has a step, and so PMIx files, of its own"
    submission.assert_same_as_uninterrupted()


def test_a_chain_of_jobs_finishes_a_run_longer_than_the_time_limit(cluster, submission, other_submission):
    # Slurm looks at time limits every 30 s, so a warning a minute before a limit of two comes after 30 to 60 s, and leaves
    # time to write a checkpoint on a machine that does much else.
    # Beside the chain goes a job that nobody warns: the run asks Slurm for its limit and stops before it.
    unwarned = other_submission.begin(cluster, "--time=1", "--nodes=1", "--ntasks-per-node=1", "jobs/cpu_nodes.sbatch")
    job = submission.begin(
        cluster, "--time=2", "--signal=USR1@60", "--nodes=2", "--ntasks-per-node=1", "jobs/restart_chain.sbatch"
    )
    with cluster.no_new_jobs():
        submission.assert_ends(cluster, job, 120, JobState="FAILED", ExitCode="75:0")
        newest = submission.shorten()
        assert f"stopped by SIGUSR1 at step {newest}" in submission.log()
        following = cluster.queue().split()[-1]
        assert int(following) > int(job)
    assert cluster.wait(following, 90)["ExitCode"] == "0:0", submission.log()
    assert "job 2 of at most 100" in submission.log()
    submission.assert_same_as_uninterrupted()

    other_submission.assert_ends(cluster, unwarned, 60, JobState="FAILED", ExitCode="75:0")
    assert f"stopped by the walltime at step {other_submission.shorten()}" in other_submission.log()
    other_submission.here("run", "input.toml", "--resume", "--quiet")
    other_submission.assert_same_as_uninterrupted()
