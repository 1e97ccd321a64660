"""`hpcstencil gradient`, its file, `--verify`, and the plan that `check` prints."""

import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest
from support import hpcstencil

from hpcstencil.adjoint import operators
from hpcstencil.config.reader import from_mapping, load

EXAMPLE = Path(__file__).parents[2] / "inputs" / "gradients" / "initial_state.toml"
INPUT = Path("initial_state.toml")  # the example; with D among the unknowns, states are stored
OF = 'of = ["initial.u"]'
FACTOR = np.exp(-(np.pi**2) * 0.02)  # by which the mode decays


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = EXAMPLE.read_text()
    assert OF in text
    INPUT.write_text(text.replace(OF, 'of = ["initial.u", "equation.D"]\ncheckpoints = 3'))
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    return lambda *arguments: hpcstencil(monkeypatch, capsys, *arguments)


def test_it_shows_its_progress(command, monkeypatch):
    monkeypatch.setattr("hpcstencil.runtime.progress.FIRST_WAIT", 0.0)
    status, _, err = command("gradient", INPUT)
    assert status == 0 and "0 of 50 steps reversed" in err and "40 of 50 steps reversed" in err and "0 s left" in err


def test_the_file_holds_the_objective_and_a_dataset_per_name(command):
    status, out, err = command("gradient", INPUT)
    assert status == 0, err
    with h5py.File("initial_state.gradient.h5") as file:
        assert file.attrs["objective"] == pytest.approx(FACTOR**2 / 4, rel=1e-3)  # u stays 0, so J = ∫ target²
        assert set(file) == {"initial.u", "equation.D", "x", "y"} and file["equation.D"][()] == 0.0
        again = from_mapping(tomllib.loads(file.attrs["input"]), Path("/"))
        assert (again.objective, again.gradient) == (load(INPUT).objective, load(INPUT).gradient)
        x = (np.arange(32) + 0.5) / 32
        mode = np.sin(np.pi * x)[:, None] * np.sin(np.pi * x)
        # dJ/du0 = -2 dx² (decay of the mode) target
        assert np.abs(file["initial.u"][:] / (-2 / 32**2 * FACTOR**2 * mode) - 1).max() < 2e-3
    assert "objective" in out and "50 steps, 3 stored states, 60 steps" in err
    status, _, err = command("gradient", INPUT)
    assert status == 2 and "exists already" in err
    assert command("gradient", INPUT, "--overwrite", "-o", "initial_state.gradient.h5", "--quiet") == (0, "", "")


def test_check_prints_the_plan(command):
    status, out, _ = command("check", INPUT)
    assert status == 0 and "3 stored states of 8.19 KB, about " in out
    assert "60 steps taken to reverse 50" in out
    status, out, _ = command("check", INPUT, "--set", 'gradient={of=["equation.D"], memory="20kB"}')
    assert status == 0 and "2 stored states of 8.19 KB" in out
    status, out, _ = command(
        "check", INPUT, "--set", 'gradient={of=["initial.u"], memory="8kB"}'
    )  # the equation is linear
    assert status == 0 and "no stored states, about " in out and "50 steps taken to reverse 50" in out
    status, _, err = command("check", INPUT, "--set", 'gradient={of=["equation.D"], memory="8kB"}')
    assert status == 2 and "gradient.memory: expected room for at least one state of 8192 bytes" in err
    status, out, _ = command(
        "check", INPUT, "--set", "time={end=0.5, tolerance=1e-4}", "--set", "numerics.integrator=bs3"
    )
    assert status == 0 and "a run records them" in out


def test_verify_finds_a_wrong_transpose(command, monkeypatch):
    arguments = ("gradient", INPUT, "--verify", "--set", "grid.shape=[8, 6]", "--set", "time={end=0.05, dt=0.001}")
    arguments = (*arguments, "--set", 'equation={name="custom", nu=0.1, rhs={u="nu*dx(u*u)"}}')
    arguments = (*arguments, "--set", "initial.u='sin(3*x)'", "--set", 'gradient.of=["initial.u", "equation.nu"]')
    status, out, err = command(*arguments)
    assert status == 0 and out.count(": ok") == 3, err + out
    assert "one stored state      the same bits: ok" in out
    wrong = operators._derivative

    def without_sign(part, orders, bias, c, operands, space):
        made = wrong(part, orders, bias, c, operands, space)
        return -made if sum(orders) == 1 else made

    monkeypatch.setattr(operators, "_derivative", without_sign)
    status, out, err = command(*arguments)
    assert (
        status == 3 and out.count("NOT MET") == 2 and "fails the test of the Taylor slopes and the dot product" in err
    )


def test_check_refuses_data_of_another_grid(command):
    np.save("target.npy", np.zeros((32, 31)))
    target = f'objective.data.target="{Path.cwd() / "target.npy"}"'
    given = ("--set", 'objective.misfit="integral((u - target)**2)"', "--set", target)
    for name in ("check", "gradient"):
        status, _, err = command(name, INPUT, *given)
        assert status == 2 and "objective.data.target: " in err and "shape (32, 31), expected (32, 32)" in err
