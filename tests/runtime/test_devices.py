"""The devices of a process are settled before jax is imported, and so are the limits that jax cannot report."""

import os
import resource
import subprocess
import sys

import pytest

from hpcstencil.runtime.devices import LEAST_ADDRESS_SPACE

INPUT = '[grid]\nshape = [8]\n[equation]\nname = "heat"\n[time]\nend = 1.0\n'


@pytest.mark.parametrize("space", [700_000_000, LEAST_ADDRESS_SPACE - 1])
def test_too_little_address_space_is_a_sentence(tmp_path, space):
    """jax would abort or hang: it does not raise."""
    (tmp_path / "input.toml").write_text(INPUT)
    run = subprocess.run(
        [sys.executable, "-m", "hpcstencil", "run", "input.toml"],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (space, space)),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 4
    assert "ulimit -v unlimited" in run.stderr and len(run.stderr.splitlines()) == 1
    assert not (tmp_path / "input.h5").exists()


def test_a_platform_that_cannot_start_is_a_sentence(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    run = subprocess.run(
        [sys.executable, "-m", "hpcstencil", "run", "input.toml"],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 4, run.stderr
    assert "jax cannot start its devices" in run.stderr and "Traceback" not in run.stderr
