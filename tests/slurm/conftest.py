"""One cluster for all tests of this folder, and a folder per test to submit jobs from."""

import pytest
from cluster import Cluster, Unavailable, require_capabilities
from submission import environment, submission_folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """A test that fails shows what its jobs wrote, however it failed."""
    report = yield
    if report.failed:
        folders = {name: item.funcargs.get(name) for name in ("submission", "other_submission")}
        report.sections += [(f"jobs of {name}", folder.log()) for name, folder in folders.items() if folder is not None]
    return report


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory):
    try:
        require_capabilities()
        with Cluster(tmp_path_factory.mktemp("slurm") / "cluster", environment()) as cluster:
            yield cluster
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def cluster(running_cluster):
    """The cluster, with nothing running at the beginning and the end of the test."""
    yield running_cluster
    running_cluster.make_idle()


@pytest.fixture
def submission(tmp_path):
    """A folder that looks like the repository's root to a job, with an input in it."""
    return submission_folder(tmp_path)


@pytest.fixture
def other_submission(tmp_path):
    """A second folder, for a job beside the first."""
    (tmp_path / "other").mkdir()
    return submission_folder(tmp_path / "other")
