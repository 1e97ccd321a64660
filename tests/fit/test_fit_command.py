"""`hpcstencil fit`: what it finds, its checkpoints and its file, its errors, and its picture."""

import glob
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from support import hpcstencil

import hpcstencil as hs
from hpcstencil.checkpoint.paths import list_checkpoints
from hpcstencil.fit import run
from hpcstencil.simulation.event_loop import StopRequests

STATE = Path(__file__).parents[2] / "inputs" / "gradients" / "initial_state.toml"
# Fields, a number and a time series that the last state determines, with all settings of [fit].
INPUT = """
title = "growth"
[grid]
shape = [18, 15]
upper = [1.8, 1.5]
[equation]
name = "custom"
A = 0.5
D = 0.01
k = "k.npy"
s = { series = "s.npy", dt = 0.06 }
rhs = { u = "div_grad(k, u) + D*laplacian(u) + A*u*(1 - u) + 0.1*s*x" }
[initial]
u = "exp(-4*((x - 1)**2 + (y - 1)**2))"
[numerics]
integrator = "euler"
[time]
end = 0.2
dt = 0.02
[objective]
misfit = "integral((u - 0.3*(1 + x*y/4))**2) + 1e-3*integral((k - 0.05)**2)"
[gradient]
of = ["equation.k", "equation.A", "initial.u", "equation.s"]
checkpoints = 4
[fit]
steps = 7
history = 4
lower = { "equation.k" = "0.01 + 0.001*x", "initial.u" = 0.0 }
upper = { "equation.A" = 0.6, "initial.u" = 1.0, "equation.s" = 0.4 }
scale = { "equation.A" = 0.2 }
smoothing = { "equation.k" = 0.2, "equation.s" = 0.05 }
frozen = { "initial.u" = "x < 0.5" }
"""
BY_CONDITION = """
grid.shape = [9]
equation = { name = "custom", on = 0.5, rhs = { u = "laplacian(u) + (t >= on)" } }
time = { end = 1.0, dt = 0.1 }
objective.misfit = "integral((u - 0.3)**2)"
gradient.of = ["equation.on"]
fit.steps = 3
"""
HISTORY = ("objective", "gradient_norm", "step", "evaluations")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    Path("input.toml").write_text(INPUT)
    np.save("k.npy", np.full((18, 15), 0.03))
    np.save("s.npy", np.zeros(4))
    return lambda *arguments: hpcstencil(monkeypatch, capsys, *arguments)


def contents(path):
    with h5py.File(path) as file:
        names = [*json.loads(file.attrs["unknowns"]), *(f"history/{name}" for name in HISTORY)]
        return {name: np.asarray(file[name]).tobytes() for name in names}


def test_it_finds_the_initial_state(command):
    status, out, err = command("fit", STATE)
    assert status == 0, err
    assert "converged: the gradient norm is at most 1e-06" in out and "initial_state.fit.h5" in out
    assert "iteration 0  objective 0.16845" in err and "evaluation" in err
    with h5py.File("initial_state.fit.h5") as file:
        x = (np.arange(32) + 0.5) / 32
        exact = np.sin(np.pi * x)[:, None] * np.sin(np.pi * x)
        assert np.abs(file["initial.u"][:] - exact).max() < 2e-3
        assert file["initial.u"].dims[0].keys() == ["x"] and np.array_equal(file["x"][:], x)
        assert file.attrs["kind"] == "fit" and file.attrs["objective"] == file["history/objective"][-1] < 1e-10
        assert file["history/evaluations"][:].sum() < 15 and (np.diff(file["history/objective"][:]) < 0).all()


def test_bounds_scales_smoothing_and_frozen_cells(command):
    assert command("fit", "input.toml")[0] == 0
    x, y = np.meshgrid(0.05 + 0.1 * np.arange(18), 0.05 + 0.1 * np.arange(15), indexing="ij")
    with h5py.File("input.fit.h5") as file:
        k, u, a = file["equation.k"][:], file["initial.u"][:], file["equation.A"][()]
        s, times = file["equation.s"][:], file["equation.s.time"][:]
        assert s.max() == 0.4 and 0.1 < s.min() < 0.4 and times == pytest.approx([0.0, 0.06, 0.12, 0.18])
        assert (k >= np.float32(0.01 + 0.001 * x)).all() and a == 0.6
        assert u.min() == 0.0 and u.max() == 1.0
        start = np.exp(-4 * ((x - 1) ** 2 + (y - 1) ** 2)).astype(np.float32)
        assert np.array_equal(u[x < 0.5], start[x < 0.5]) and not np.allclose(u[x > 0.5], start[x > 0.5])
        rough = np.abs(np.diff(k, axis=0)).max() / np.ptp(k)
    set_off = ("--set", "fit.smoothing={}", "-o", "rough.h5")
    assert command("fit", "input.toml", *set_off)[0] == 0
    with h5py.File("rough.h5") as file:
        assert np.abs(np.diff(file["equation.k"][:], axis=0)).max() / np.ptp(file["equation.k"][:]) > 1.5 * rough


def test_a_continued_fit_has_the_same_bits(command, monkeypatch):
    assert command("fit", "input.toml", "-o", "whole.h5", "--quiet") == (0, "", "")
    status, out, _ = command("fit", "input.toml", "-o", "parts.h5", "--set", "fit.steps=3")
    assert status == 0 and "not converged after 3 iterations; set a larger fit.steps" in out
    status, _, err = command("fit", "input.toml", "-o", "parts.h5")
    assert status == 2 and "use --resume to continue this fit" in err
    status, _, err = command("fit", "input.toml", "-o", "parts.h5", "--resume", "--set", "fit.steps=4")
    assert status == 0 and "continuing from parts.checkpoint.000000000003.h5" in err

    def killed(state, seconds):
        if len(state.rows) == 7:  # the sixth iteration has been stored
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(run, "_tell", killed)
        assert command("fit", "input.toml", "-o", "parts.h5", "--resume")[0] != 0
    Path("parts.h5").unlink()
    status, _, err = command("fit", "input.toml", "-o", "parts.h5")
    assert status == 2 and "parts.checkpoint.000000000006.h5: exists already" in err
    assert command("fit", "input.toml", "-o", "parts.h5", "--resume")[0] == 0
    assert contents("parts.h5") == contents("whole.h5")
    before = contents("whole.h5")
    assert command("fit", "input.toml", "-o", "whole.h5", "--overwrite", "--quiet")[0] == 0
    assert contents("whole.h5") == before


def test_states_on_disk_give_the_same_bits(command):
    """A killed fit leaves states behind; the fit that continues removes them."""
    few = ("--quiet", "--set", "fit.steps=2")
    assert command("fit", "input.toml", "-o", "memory.h5", *few)[0] == 0
    disk = ("fit", "input.toml", "-o", "disk.h5", *few, "--set", 'gradient.storage="disk"')
    left = Path("disk.state.checkpoint.000000000004.h5")
    left.touch()
    status, _, err = command(*disk)
    assert status == 2 and f"{left}: exists already; use --resume to continue this fit" in err
    status, _, err = command(*disk, "--resume")
    assert status == 0 and contents("disk.h5") == contents("memory.h5"), err
    assert not list(Path().glob("*.state.*"))


def test_a_signal_stops_it_between_evaluations(command, monkeypatch):
    told = []
    monkeypatch.setattr(
        "hpcstencil.runtime.communicator.Unwatched.checkpoints", lambda self, pattern: told.append(pattern)
    )
    reasons = iter(["", "", "", "SIGTERM"])
    monkeypatch.setattr(StopRequests, "reason", lambda self: next(reasons))
    status, _, err = command("fit", "input.toml")
    assert status == 75 and "stopped by SIGTERM after 2 iterations; run the same command with --resume" in err
    # a monitor that reports a lost rank names them
    assert told and sorted(map(Path, glob.glob(told[-1])), reverse=True) == list_checkpoints(
        Path("input.fit.h5").absolute()
    )


def test_steps_that_follow_the_solution_are_those_of_the_start(command, monkeypatch):
    given = INPUT.replace('integrator = "euler"', 'integrator = "bs3"').replace(
        "dt = 0.02\n", "tolerance = 1e-4\ndt_max = 0.06\n"
    )
    Path("adaptive.toml").write_text(given)
    status, out, _ = command("check", "adaptive.toml")
    assert (
        status == 0
        and "a run records them" in out
        and "fit                   1 number, 2 fields and 1 time series" in out
    )
    assert command("fit", "adaptive.toml", "-o", "whole.h5", "--quiet") == (0, "", "")
    with h5py.File("whole.h5") as file:
        found = file["history/objective"][:]
        assert len(found) == 8 and (np.diff(found) < 0).all() and found[-1] < 0.5 * found[0]
    assert command("fit", "adaptive.toml", "-o", "parts.h5", "--set", "fit.steps=3")[0] == 0
    status, _, err = command("fit", "adaptive.toml", "-o", "parts.h5", "--resume")
    assert status == 0 and contents("parts.h5") == contents("whole.h5"), err
    monkeypatch.setattr(StopRequests, "reason", lambda self: "SIGTERM")
    status, _, err = command("fit", "adaptive.toml", "-o", "late.h5")
    assert status == 75 and "stopped by SIGTERM while the steps of the run were recorded" in err


def test_a_viscosity_is_found_with_steps_of_a_cfl_number(command):
    model = """
        grid = { shape = [40], upper = [4.0] }
        equation = { name = "burgers", nu = 0.02 }
        initial = { u = "1 + sin(pi*x/2)" }
        numerics = { precision = "float64" }
        time = { end = 0.5, cfl = 0.4, dt_every = 2 }
    """
    fit = """
        objective = { J = "integral((u - seen)**2)", data = { seen = "seen.h5:u" } }
        gradient = { of = ["equation.nu"] }
        fit = { tolerance = 1e-6 }
    """
    Path("model.toml").write_text(model)
    Path("burgers.toml").write_text(model + fit)
    assert command("run", "model.toml", "--set", "equation.nu=0.08", "-o", "seen.h5", "--quiet")[0] == 0
    status, _, err = command("fit", "burgers.toml")
    assert status == 0, err
    with h5py.File("burgers.fit.h5") as file:
        assert file["equation.nu"][()] == pytest.approx(0.08, rel=0.02)


def test_another_input_is_not_continued(command):
    assert command("fit", "input.toml", "--quiet", "--set", "fit.steps=1")[0] == 0
    status, _, err = command("fit", "input.toml", "--resume", "--set", "fit.history=9")
    assert status == 2 and "fit.history: input.fit.checkpoint.000000000001.h5 was made with another value" in err
    np.save("k.npy", np.full((18, 15), 0.04))
    status, _, err = command("fit", "input.toml", "--resume")
    assert status == 2 and "equation.k: input.fit.checkpoint.000000000001.h5 was made with another value" in err
    status, _, err = command("fit", "input.toml", "--resume", "--overwrite")
    assert status == 2 and "--resume: cannot be combined with --overwrite" in err


@pytest.mark.parametrize(("setting", "sentence"), [
    ('fit.lower."equation.A"=0.6', "expected a bound of at most its value 0.5 where the fit begins, but got 0.6"),
    ('fit.upper."equation.k"="0.02 + 0.01*(x > 1)"', 'fit.upper."equation.k": expected a bound of at least its values'),
    ('fit.lower."equation.A"="x"', 'fit.lower."equation.A": expected a number'),
    ('fit.smoothing."equation.A"=1.0', "expected a field, but equation.A is a number"),
    ('fit.frozen."initial.u"="x <"', 'fit.frozen."initial.u"'),
    ('fit.frozen."initial.u"="k > 1"', 'fit.frozen."initial.u": expected no parameter that is read from a file'),
    ('fit.frozen."equation.s"="x"', 'fit.frozen."equation.s": expected a field, but equation.s is a time series'),
    ('fit.upper."equation.s"="y"', 'fit.upper."equation.s": expected a number, as equation.s is a time series'),
    ('fit.lower."equation.s"=0.1', "expected a bound of at most its values where the fit begins, but got 4 samples"),
    ('fit.scale."initial.v"=1.0', 'fit.scale."initial.v": expected a name in gradient.of, "equation.k", '),
    ('objective.misfit="log(mean(u) - 9)"', "objective: expected a finite value"),
])  # fmt: skip
def test_errors(command, setting, sentence):
    status, _, err = command("fit", "input.toml", "--set", setting)
    assert status == (3 if "finite" in sentence else 2) and sentence in err, err
    assert not Path("input.fit.h5").exists()


@pytest.mark.parametrize("name", ["check", "fit"])
@pytest.mark.parametrize(("setting", "sentence"), [
    ("fit.lower.equation.A=0.6", "fit.lower.\"equation.A\": expected a bound of at most its value 0.5 where the fit begins"),
    ('fit.upper."equation.A"=0.4', "expected a bound of at least its value 0.5 where the fit begins, but got 0.4"),
    ('fit={ lower={equation={A=0.6}}, upper={"equation.A"=0.4} }', "expected at most the upper bound, 0.4, but got 0.6"),
])  # fmt: skip
def test_bounds_of_a_number_are_checked(command, name, setting, sentence):
    status, _, err = command(name, "input.toml", "--set", setting)
    assert status == 2 and sentence in err, err


def test_a_run_that_blows_up_shortens_the_step(command):
    """u' = A u grows beyond float32 within the first trial steps."""
    Path("growth.toml").write_text("""
        grid = { shape = [4] }
        equation = { name = "custom", A = 1.0, rhs = { u = "A*u" } }
        initial = { u = 1.0 }
        numerics = { integrator = "euler" }
        time = { end = 40.0, dt = 1.0 }
        objective = { J = "(log(mean(u)) - 60)**2" }
        gradient = { of = ["equation.A"] }
        fit = { scale = { "equation.A" = 400.0 } }
    """)
    status, out, err = command("fit", "growth.toml")
    assert status == 0, err
    with h5py.File("growth.fit.h5") as file:
        assert file["equation.A"][()] == pytest.approx(np.exp(1.5) - 1, rel=1e-4)
        assert file["history/evaluations"][1] > 1


def test_check_prints_the_plan(command):
    status, out, err = command("check", "input.toml")
    assert status == 0, err
    line = "1 number, 2 fields and 1 time series by lbfgs with bounds, at most 7 iterations with a history of 4"
    assert f"{line}; its vectors take 25.9 KB" in out
    assert command("check", "input.toml", "--set", 'fit.lower."equation.A"="x"')[0] == 2


def test_a_picture_of_a_gradient(command):
    assert command("gradient", "input.toml")[0] == 0
    with h5py.File("input.gradient.h5") as file:
        assert file.attrs["kind"] == "gradient"
    status, out, err = command("plot", "input.gradient.h5")
    assert (status, out) == (0, "input.gradient.png\n"), err
    assert Path("input.gradient.png").read_bytes()[1:4] == b"PNG"
    status, _, err = command("plot", "input.gradient.h5", "--field", "u")
    assert status == 2 and "is the result of `hpcstencil gradient`, without fields to choose from" in err
    assert command("gradient", STATE, "--set", 'gradient.of=["equation.D"]')[0] == 0
    status, _, err = command("plot", "initial_state.gradient.h5")
    assert status == 2 and "nothing to draw but numbers: d misfit / d equation.D = " in err


def test_a_picture_of_the_fit(command):
    assert command("fit", "input.toml", "--quiet", "--set", "fit.steps=2")[0] == 0
    status, out, err = command("plot", "input.fit.h5")
    assert (status, out) == (0, "input.fit.png\n"), err
    assert Path("input.fit.png").read_bytes()[1:4] == b"PNG"
    with h5py.File("input.fit.h5", "a") as file:
        del file["history/objective"]
    status, _, err = command("plot", "input.fit.h5")
    assert status == 2 and "lacks 'history/objective'" in err
    status, out, _ = command("info", "input.fit.checkpoint.000000000002.h5")
    assert status == 0 and "every byte is as it was written" in out


def test_info_and_open_read_results(command):
    assert command("fit", "input.toml", "--quiet", "--set", "fit.steps=2")[0] == 0
    status, out, err = command("info", "input.fit.h5")
    assert status == 0, err
    with h5py.File("input.fit.h5") as file:
        names = ("equation.k", "initial.u", "equation.A", "history/objective")
        k, u, a, objective = (file[name][()] for name in names)
    assert f"found          equation.k  18 x 15 values, {k.min():.6g} to {k.max():.6g}" in out
    assert f"initial.u  18 x 15 values, {u.min():.6g} to {u.max():.6g}" in out and f"equation.A = {a:.10g}" in out
    assert f" = {objective[2]:.10g}, {objective[0]:.10g} at the start" in out and "iterations     2; " in out
    with hs.open("input.fit.h5") as found:
        assert found["equation.k"].dims == ("x", "y") and np.array_equal(found["equation.k"], k)
        assert found["equation.s"].dims == ("equation.s.time",) and found["equation.A"].dims == ()
        assert found["objective"].dims == ("iteration",) and np.array_equal(found["objective"], objective)
    assert command("gradient", "input.toml")[0] == 0
    status, out, err = command("info", "input.gradient.h5")
    assert status == 0 and "derivatives    d " in out and "sound          yes" in out, err
    with hs.open("input.gradient.h5") as found:
        assert found["initial.u"].shape == (18, 15) and found.attrs["kind"] == "gradient"
    with h5py.File("input.gradient.h5", "a") as file:
        file["initial.u"][0, 0] = np.nan
    assert "sound          no: values of initial.u are not finite" in command("info", "input.gradient.h5")[1]


def test_a_gradient_of_0_at_the_start_is_not_called_converged(command):
    Path("input.toml").write_text(BY_CONDITION)
    status, out, _ = command("fit", "input.toml")
    assert status == 0 and "the gradient is 0 at the start, so the fit cannot go on" in out and "converged:" not in out
