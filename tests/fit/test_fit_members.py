"""Fits of ensembles: unknowns of each member and shared ones, from data per member."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from support import hpcstencil

TRUE, SOURCE, STEPS, DT = np.array([0.3, 0.9]), 0.2, 10, 0.1
INPUT = """
grid = { shape = [6] }
equation = { name = "custom", A = 0.5, S = 0.0, rhs = { u = "S - A*u" } }
initial = { u = "x" }
numerics = { integrator = "euler", precision = "float64", kernel = "shift" }
time = { end = 1.0, dt = 0.1 }
objective = { J = "mean((u - target)**2)", data = { target = "target.npy" } }
gradient = { of = ["equation.A", "equation.S"] }
fit = { tolerance = 1e-9, upper = { "equation.A" = 2.0 } }
[ensemble]
"equation.A" = [0.5, 0.6]
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    u = np.tile(np.arange(6) + 0.5, (2, 1))
    for _ in range(STEPS):
        u = u + DT * (SOURCE - TRUE[:, None] * u)
    np.save("target.npy", u)
    Path("input.toml").write_text(INPUT)
    return lambda *arguments: hpcstencil(monkeypatch, capsys, *arguments)


def contents(path):
    with h5py.File(path) as file:
        return {name: file[name][()].tobytes() for name in ("equation.A", "equation.S", "history/objective")}


def test_rates_of_the_members_and_a_shared_source_are_found(command):
    status, out, err = command("fit", "input.toml")
    assert status == 0 and "converged" in out, err
    with h5py.File("input.fit.h5") as file:
        assert np.allclose(file["equation.A"][:], TRUE, rtol=0, atol=1e-5)
        assert file["equation.S"][()] == pytest.approx(SOURCE, abs=1e-5)
        assert file["equation.A"].dims[0].keys() == ["member"] and file.attrs["objective"] < 1e-10
    assert "equation.A            0.3, 0.9" in out
    assert command("plot", "input.fit.h5")[0] == 0


@pytest.mark.long
def test_a_continued_fit_has_the_same_bits(command):
    assert command("fit", "input.toml", "--quiet")[0] == 0
    before = contents("input.fit.h5")
    assert command("fit", "input.toml", "--quiet", "-o", "parts.h5", "--set", "fit.steps=2")[0] == 0
    status, _, err = command("fit", "input.toml", "-o", "parts.h5", "--resume")
    assert status == 0 and "continuing from parts.checkpoint.000000000002.h5" in err
    assert contents("parts.h5") == before
    np.save("target.npy", np.load("target.npy")[:, ::-1])
    status, _, err = command("fit", "input.toml", "-o", "parts.h5", "--resume")
    assert status == 2 and "objective.data.target: parts.checkpoint" in err


def test_the_plan_and_limits_of_members(command):
    status, out, err = command("check", "input.toml")
    assert status == 0 and "2 members one after the other, " in out and "20 steps taken to reverse 20" in out, err
    assert "3 numbers by lbfgs with bounds" in out
    status, _, err = command("fit", "input.toml", "--set", 'fit.upper."equation.A"=0.55')
    assert status == 2 and 'fit.upper."equation.A": expected a bound of at least its value 0.6' in err
    smooth = ("--set", 'gradient.of=["initial.u"]', "--set", 'fit={ upper = { "initial.u" = "9*A" } }')
    status, _, err = command("fit", "input.toml", *smooth)
    assert status == 2 and "expected no parameter in which the members of the ensemble differ, but got A" in err
