"""Runs that several tests start from; a test copies what it changes."""

import pytest
from commands import INPUT, hpcstencil


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """The folder of a complete run on one process."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "input.toml").write_text(INPUT)
    result = hpcstencil(0, "run", "input.toml", folder=folder)
    assert "Mcell/s" in result.stdout and "T_eff" in result.stdout and "compiling" in result.stdout
    return folder


@pytest.fixture(scope="session")
def begun(tmp_path_factory):
    """The folder of a run on three processes that ended at t = 9: step 90, and a checkpoint at step 80."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "input.toml").write_text(INPUT)
    hpcstencil(3, "run", "input.toml", "--set", "time.end=9.0", folder=folder)
    assert (folder / "run.checkpoint.000000000080.h5").exists()
    return folder
