"""Which kernel computes a run: the same for every number of processes, from begin to end, and on all ranks."""

import os
import subprocess

import h5py
import pytest
from commands import ENVIRONMENT, hpcstencil, line

pytestmark = pytest.mark.e2e
THIN = """
[grid]
shape = [26, 21]
[equation]
name = "heat"
D = 0.3
[initial]
u = "noise(1)"
[boundary]
x = { dirichlet = "0.1*y" }
[numerics]
precision = "float64"
integrator = "dopri5"
[time]
end = 4.0
tolerance = 1e-6
[output]
every = 1.0
[checkpoint]
every_steps = 5
"""
NO_COMPILER = {"CXX": "/no/such/compiler", "XDG_CACHE_HOME": "/no/such/cache"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input.toml").write_text(THIN)
    return tmp_path


def with_the_other_rank_lacking(folder, *arguments):
    """Two ranks, the second of which finds no compiler."""
    one = line(0, "run", "input.toml", *arguments)
    variables = [f"{name}={value}" for name, value in NO_COMPILER.items()]
    command = [*line(1)[:3], *one, ":", "-n", "1", "env", *variables, *one]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def test_a_run_goes_on_with_its_kernel_on_thin_blocks_and_without_it_not_at_all(folder):
    hpcstencil(0, "run", "input.toml", "--output", "whole.h5", folder=folder)
    hpcstencil(0, "run", "input.toml", "--output", "run.h5", "--set", "time.end=2.0", folder=folder)
    before = (folder / "run.h5").read_bytes()
    resume = ("run", "input.toml", "--output", "run.h5", "--resume")
    refused = hpcstencil(0, *resume, folder=folder, status=2, **NO_COMPILER)
    assert 'numerics.kernel: expected "native", with which the run was computed so far' in refused.stderr
    assert (folder / "run.h5").read_bytes() == before
    hpcstencil(4, *resume, folder=folder)
    with h5py.File(folder / "whole.h5") as whole, h5py.File(folder / "run.h5") as resumed:
        assert '"steps_per_exchange": "stage"' in resumed.attrs["decomposition"]
        assert '"kernel": "native"' in resumed.attrs["decomposition"]
        assert whole["u"][:].tobytes() == resumed["u"][:].tobytes()


def test_a_rank_without_a_compiler(folder):
    refused = with_the_other_rank_lacking(folder, "--set", "numerics.kernel=native")
    assert refused.returncode == 4 and "rank 1 lacks it: CXX is" in refused.stderr, refused.stderr
    assert refused.stderr.count("hpcstencil: ") == 1 and os.listdir(folder) == ["input.toml"]
    result = with_the_other_rank_lacking(folder, "--set", "time.end=0.1")
    assert result.returncode == 0 and "warning: no native code: rank 1 lacks it: CXX is" in result.stderr, result.stderr
