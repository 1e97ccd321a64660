"""Every template of jobs/ as it stands, submitted and finished; array.sbatch has a file of its own."""

import pytest
from submission import ROOT

TEMPLATES = {  # what a cluster without GPUs, on a machine of few cores, must say beside the template's own lines
    "one_node_gpus": ["--gres=none"],
    "several_nodes": ["--gres=none", "--ntasks-per-node=2"],
    "cpu_nodes": [],
    "restart_chain": [],
}


USED_BY_OTHER_TESTS = ("cpu_nodes", "restart_chain")  # whose jobs finish in test_interruptions.py


@pytest.mark.slurm
@pytest.mark.parametrize("template", [
    pytest.param(template, marks=pytest.mark.long if template in USED_BY_OTHER_TESTS else ()) for template in TEMPLATES
])  # fmt: skip
def test_a_template_runs_as_it_stands(cluster, submission, template):
    script = f"jobs/{template}.sbatch"
    job = cluster.submit(*TEMPLATES[template], script, "input.toml", folder=submission.folder)
    submission.assert_ends(cluster, job, 90, JobState="COMPLETED", ExitCode="0:0")
    assert submission.log().count("T_eff") == 1, submission.log()
    submission.assert_same_as_uninterrupted()


def test_every_template_is_tested():
    assert {path.stem for path in (ROOT / "jobs").glob("*.sbatch")} == {*TEMPLATES, "array"}
