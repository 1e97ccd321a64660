"""A sweep as a job array: eight members at once, of which two fail and only those run again."""

import csv

import h5py
import numpy as np
import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
MEMBERS, FAILING = 8, (2, 5)
STEPS = [5.0 if member in FAILING else 0.1 for member in range(MEMBERS)]  # 5.0 is far beyond what is stable
FEEDS = [0.03 + 0.001 * member for member in range(MEMBERS)]


@pytest.fixture
def plan(cluster, submission):
    """A planned sweep in the folder `runs`."""
    submission.write_input(end=60.0)
    lines = ['base = "input.toml"', 'mode = "list"', "[parameters]", f'"time.dt" = {STEPS}', f'"equation.F" = {FEEDS}']
    (submission.folder / "sweep.toml").write_text("\n".join(lines) + "\n")
    submission.here("sweep", "plan", "sweep.toml", "--dir", "runs")
    return submission.folder / "runs"


def outputs(plan):
    """The modification times of the members' output files, by member."""
    return {
        int(path.parent.name): path.stat().st_mtime_ns for path in plan.glob("*/*.h5") if "checkpoint" not in path.name
    }


def test_only_the_failed_members_of_an_array_run_again(cluster, submission, plan):
    first = cluster.submit(f"--array=0-{MEMBERS - 1}", "jobs/array.sbatch", "runs", folder=submission.folder)
    cluster.wait(first, 200)
    codes = {int(m["ArrayTaskId"]): m["ExitCode"] for m in cluster.members(first)}
    assert codes == {m: "3:0" if m in FAILING else "0:0" for m in range(MEMBERS)}, submission.log()
    failed = submission.here("sweep", "status", "runs", "--failed").stdout.strip()
    assert failed == ",".join(map(str, FAILING))
    before = outputs(plan)

    again = cluster.submit(
        f"--array={failed}", "jobs/array.sbatch", "runs", "--set", "time.dt=0.1", folder=submission.folder
    )
    cluster.wait(again, 120)
    codes = {int(m["ArrayTaskId"]): m["ExitCode"] for m in cluster.members(again)}
    assert codes == dict.fromkeys(FAILING, "0:0"), submission.log()
    after = outputs(plan)
    assert {m for m in range(MEMBERS) if after[m] != before.get(m)} == set(FAILING), "the others were left alone"
    assert submission.here("sweep", "status", "runs", "--failed").stdout.strip() == ""

    submission.here("sweep", "collect", "runs")
    with (plan / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["equation.F"]) for row in rows] == pytest.approx(FEEDS)
    for member, row in enumerate(rows):
        (path,) = (p for p in (plan / f"{member:04d}").glob("*.h5") if "checkpoint" not in p.name)
        with h5py.File(path) as file:
            assert file.attrs["complete"] == 1
            np.testing.assert_allclose(float(row["mass"]), file["diagnostics/mass"][-1], rtol=1e-12)
