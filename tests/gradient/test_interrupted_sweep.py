"""Sweeps with states on disk, and interrupted sweeps that continue: they give the same bits as other sweeps; refusals."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from gradients import attempt, bytes_of, in_memory, members_from, several_at_once, sweep_of
from support import hpcstencil

from hpcstencil.adjoint.plan import BESIDE_ARRAYS
from hpcstencil.adjoint.revolve import Advance, actions
from hpcstencil.checkpoint.paths import list_checkpoints
from hpcstencil.gradient import resumable
from hpcstencil.gradient.reverse_sweep import ReverseSweep
from hpcstencil.gradient.stored_states import WHAT, OnDisk, beside, list_states
from hpcstencil.simulation.event_loop import StopRequests
from hpcstencil.validation.errors import InputError, NumericsError

OBJECTIVE = "integral(u**2*v) + A*mean(u)"
GIVEN = {
    "grid": {"shape": [7, 6], "upper": [0.7, 0.6]},
    "equation": {
        "name": "custom",
        "D": 0.02,
        "A": 0.7,
        "rhs": {"u": "D*laplacian(u) - u*dx(u) + A*u**2", "v": "u - D*v + 0.1*dy(u*v)"},
    },
    "initial": {"u": "A*sin(2*pi*x/0.7)", "v": "cos(6*y)"},
    "numerics": {"precision": "float64", "integrator": "ssprk2"},
    "time": {"end": 0.19, "dt": 0.01},
    "objective": {"J": {"sum": OBJECTIVE, "every_steps": 3}},
    "gradient": {"of": ["initial.u", "equation.D", "equation.A"], "checkpoints": 4},
    "checkpoint": {"every_steps": 2},
}
WITHOUT_A = {key: value for key, value in GIVEN["equation"].items() if key != "A"}
PROBLEMS = {
    "sum": GIVEN,
    "end": {**GIVEN, "objective": {"J": OBJECTIVE}},
    "linear": {  # needs no states
        **GIVEN,
        "equation": {"name": "custom", "D": 0.02, "rhs": {"u": "D*laplacian(u)"}},
        "initial": {"u": "sin(9*x)"},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["initial.u"]},
    },
    "receivers": {
        **GIVEN,
        "probes": {"cable": {"field": "v", "x": [0.3, 0.42], "y": [0.1, 0.4], "every_steps": 2}},
        "objective": {"J": "sum((cable - 0.2)**2) + integral(u**2)"},
    },
    "tables": {
        **GIVEN,
        "probes": {
            "cable": {"field": "v", "x": [0.3, 0.42], "y": [0.1, 0.4], "every_steps": 4},
            "spots": {"expression": "u*v", "x": [0.2, 0.3, 0.5], "y": 0.2, "every_steps": 6},
        },
        "objective": {"J": "sum((cable - 0.2)**2)/(1 + sum(spots**2)) + integral(u**2)"},
    },
    "members": {**GIVEN, "equation": WITHOUT_A, "ensemble": {"equation.A": [0.7, 0.6]}},
    "recorded": {
        **GIVEN,
        "numerics": {"precision": "float64", "integrator": "bs3"},
        "time": {"end": 0.5, "tolerance": 1e-4},
    },
}
COMMON = {
    ("members", "disk", "shift"),
    ("tables", "disk", "shift"),
    ("linear", "memory", "shift"),
    ("receivers", "disk", "native"),
}
ROWS = [
    (name, storage, kernel) for name in PROBLEMS for storage in ("memory", "disk") for kernel in ("shift", "native")
]


@pytest.mark.parametrize("name, storage, kernel", [
    pytest.param(*row, marks=() if row in COMMON else pytest.mark.long) for row in ROWS
])  # fmt: skip
def test_an_interrupted_sweep_has_the_same_bits(tmp_path, name, storage, kernel):
    tables = PROBLEMS[name]
    members = members_from({**tables, "gradient": {**tables["gradient"], "storage": storage}}, kernel=kernel)
    expected = bytes_of(in_memory(members))
    together = members
    if kernel == "native":  # the places of stored states then lie inside of groups
        together = replace(members, sweeps=tuple(several_at_once(sweep, 2) for sweep in members.sweeps))
    path, result, attempts = tmp_path / "g.h5", None, 0
    while result is None:  # the run forwards takes 10 calls
        calls, attempts = (
            12 if storage == "disk" or name == "linear" else 30 if name == "recorded" else 16,
            attempts + 1,
        )
        result = attempt(together if attempts % 2 else members, path, calls)
        assert attempts < 50
    assert attempts > 1
    assert bytes_of(result) == expected
    assert not list_states(path) and list_checkpoints(path)
    resumable.remove(path, members.forward.communicator)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("calls", [15, 17, 19, 21, 25])
def test_a_sweep_that_is_killed_continues_from_its_stored_states(tmp_path, calls):
    """Without a checkpoint, and also where states were stored again in reverse, without what was recorded before them."""
    tables, path = PROBLEMS["receivers"], tmp_path / "g.h5"
    members = members_from({**tables, "gradient": {**tables["gradient"], "storage": "disk"}, "checkpoint": {}})
    expected = bytes_of(in_memory(members))
    assert attempt(members, path, calls) is None
    for checkpoint in list_checkpoints(path):
        checkpoint.unlink()
    assert list_states(path)
    assert bytes_of(attempt(members, path, 1000)) == expected
    assert not list_states(path)


@pytest.mark.parametrize("states", [2, 3, 5])
def test_the_schedule_continues_from_any_place(states):
    """It uses the states that are stored there, and never stores too many."""
    steps = 20
    for interrupted in range(1, len([*actions(steps, states)])):
        stored, end = {0}, steps
        for action in [*actions(steps, states)][:interrupted]:
            if isinstance(action, Advance):
                stored |= {action.last} - {steps}
            else:
                stored.remove(action.step)
                end = action.step
        kept = sorted(stored | {0})[:states]
        stored, left, reached = set(kept), [], 0
        for action in actions(end, states, kept, reached=end < steps):
            if isinstance(action, Advance):
                assert action.first in stored
                reached += action.last == steps
                stored |= {action.last} - {end}
            else:
                stored.remove(action.step)
                left.append(action.step)
            assert len(stored) <= states + 1
        assert left == [*reversed(range(end))] and reached == (end == steps)


def interrupted(*_):
    raise KeyboardInterrupt


def test_states_on_disk_are_removed_after_a_sweep_and_after_one_that_fails(tmp_path, monkeypatch):
    given = {**GIVEN, "gradient": {**GIVEN["gradient"], "storage": "disk"}}
    sweep = sweep_of(given)
    fields, path = sweep.forward.initial_fields(), tmp_path / "g.h5"
    stored = OnDisk(beside(path), sweep.forward, {"of": WHAT})
    most, add, sizes = [], type(stored).add, set()

    class Watched(type(stored)):
        def add(self, *arguments):
            add(self, *arguments)
            most.append((len(self.held), len(list_checkpoints(self.output))))
            sizes.update(path.stat().st_size for path in list_checkpoints(self.output))

    stored.__class__ = Watched
    expected = sweep(fields, 4)
    sweep = replace(sweep, stored=stored)
    found = sweep(fields, 4)
    assert (found.value, found.numbers) == (expected.value, expected.numbers) and list(tmp_path.iterdir()) == []
    assert all(np.array_equal(found.arrays[key], array) for key, array in expected.arrays.items())
    assert max(held for held, _ in most) == 3  # state 0, the one that steps began with, and the newest
    assert max(files for _, files in most) == 3
    arrays = sum(fields[name].nbytes for name in sweep.changing)
    assert arrays < max(sizes) <= arrays + BESIDE_ARRAYS
    with monkeypatch.context() as context:
        context.setattr(ReverseSweep, "reversed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sweep(fields, 4)
    assert list(tmp_path.iterdir()) == []
    blown = {**fields, "u": fields["u"] * 1e200}
    with pytest.raises(NumericsError):
        sweep(blown, 4)
    assert list(tmp_path.iterdir()) == []
    beside(path).with_name("g.state.checkpoint.000000000003.h5").write_text("somebody else's")
    with pytest.raises(InputError, match=r"0003.h5: exists already, .*; remove g.state.checkpoint.\*.h5"):
        sweep(fields, 4)


# ---- the command -------------------------------------------------------------------------------------------------------

INPUT = """
grid = { shape = [16, 12] }
equation = { name = "custom", A = 0.1, k = "k.npy", rhs = { u = "A*laplacian(u) - k*u**3" } }
initial = { u = "sin(0.3*x)" }
numerics = { kernel = "shift", integrator = "euler" }
time = { end = 2.0, dt = 0.1 }
objective = { J = "mean((u - cos(0.2*y))**2)" }
gradient = { of = ["initial.u", "equation.A"], checkpoints = 4, storage = "disk" }
checkpoint = { every_steps = 3 }
"""
STATE = "input.gradient.state.checkpoint.000000000007.h5"


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    Path("input.toml").write_text(INPUT)
    np.save("k.npy", np.ones((16, 12)))
    return lambda *arguments: hpcstencil(monkeypatch, capsys, *arguments)


def stopped(command, monkeypatch, calls, *more):
    """The message of a gradient that a signal stops after some calls."""
    with monkeypatch.context() as context:
        reasons = iter([""] * calls)
        context.setattr(StopRequests, "reason", lambda self: next(reasons, "SIGTERM"))
        status, _, err = command("gradient", "input.toml", *more)
    assert status == 75, err
    return err


def contents(path):
    with h5py.File(path) as file:
        return {name: np.asarray(file[name]).tobytes() for name in file} | {"objective": file.attrs["objective"]}


def test_the_command_continues_a_gradient(command, monkeypatch):
    assert command("gradient", "input.toml", "-o", "whole.h5", "--set", 'gradient.storage="memory"')[0] == 0
    err = stopped(command, monkeypatch, 8)
    assert re.search(
        r"stopped by SIGTERM after \d+ of 20 steps in reverse, with a checkpoint; run the same command", err
    )
    for path in Path().glob("input.gradient.*.h5"):
        assert "every byte is as it was written" in command("info", path)[1], path
    status, _, err = command("gradient", "input.toml")
    assert status == 2 and ".h5: exists already; use --resume to continue this gradient" in err
    err = stopped(
        command, monkeypatch, 5, "--resume", "--set", 'gradient.storage="memory"', "--set", "gradient.checkpoints=2"
    )
    assert "continuing from input.gradient.checkpoint." in err and not list(Path().glob("*state*"))
    assert command("gradient", "input.toml", "--resume")[0] == 0
    assert contents("input.gradient.h5") == contents("whole.h5")
    assert sorted(os.listdir()) == ["input.gradient.h5", "input.toml", "k.npy", "whole.h5"]
    status, out, err = command("gradient", "input.toml", "--resume")
    assert (status, out) == (0, "") and "input.gradient.h5 is complete" in err
    np.save("k.npy", np.full((16, 12), 2.0))
    status, _, err = command("gradient", "input.toml", "--resume")
    assert status == 2 and "equation.k: input.gradient.h5 was made with another value" in err


def test_files_of_others_are_not_overwritten(command, monkeypatch):
    Path(STATE).write_text("somebody else's")
    status, _, err = command("gradient", "input.toml")
    assert status == 2 and f"{STATE}: exists already; use --resume" in err
    status, _, err = command("gradient", "input.toml", "--resume")
    assert (
        status == 2
        and f"{STATE}: expected a stored state of a gradient, but it is damaged or something else; remove it" in err
    )
    assert Path(STATE).read_text() == "somebody else's"
    assert command("gradient", "input.toml", "--overwrite")[0] == 0 and not Path(STATE).exists()
    Path("input.gradient.h5").unlink()
    damaged = Path("input.gradient.checkpoint.000000000003.h5")
    damaged.write_text("somebody else's")
    status, _, err = command("gradient", "input.toml", "--resume")
    assert status == 2 and "expected a checkpoint of a gradient, but it is damaged; begin again with --overwrite" in err
    assert damaged.read_text() == "somebody else's"
    damaged.unlink()
    assert command("run", "input.toml", "--output", "input.gradient.h5")[0] == 0
    status, _, err = command("gradient", "input.toml", "--resume")
    assert status == 2 and "expected" in err
    for path in Path().glob("input.gradient.checkpoint.*"):
        path.unlink()
    status, _, err = command("gradient", "input.toml", "--resume")
    assert status == 2 and "input.gradient.h5: expected a gradient file, but got a file of another kind" in err


def test_a_continued_gradient_does_not_replace_the_file_of_something_else(command, monkeypatch):
    stopped(command, monkeypatch, 14)
    with h5py.File("input.gradient.h5", "w") as file:
        file.attrs["title"] = "somebody else's"
    before = Path("input.gradient.h5").read_bytes()
    status, _, err = command("gradient", "input.toml", "--resume")
    assert status == 2 and "input.gradient.h5: expected a gradient file, but got a file of another kind" in err
    assert Path("input.gradient.h5").read_bytes() == before


def test_another_gradient_is_not_continued(command, monkeypatch):
    stopped(command, monkeypatch, 14)
    before = sorted(os.listdir())
    for setting in (
        "time.dt=0.05", "objective.J='mean(u)'", "equation.A=0.2", 'gradient.of=["initial.u"]', "output.every=0.3"
    ):  # fmt: skip
        status, _, err = command("gradient", "input.toml", "--resume", "--set", setting)
        key = setting.partition("=")[0]
        assert status == 2 and f"{key}: input.gradient.checkpoint." in err and "was made with another value" in err
        assert sorted(os.listdir()) == before


def test_a_disk_without_room_is_refused_before_the_run(command, monkeypatch):
    status, out, err = command("check", "input.toml")
    assert status == 0, err
    assert "4 stored states of 768 B on disk, about" in out and "states on disk        51.5 KB in all\n" in out
    usage = shutil.disk_usage(".")._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    status, out, _ = command("check", "input.toml")
    assert status == 0 and f"states on disk        51.5 KB in all; 2 KB are free in {os.getcwd()}" in out
    status, _, err = command("gradient", "input.toml")
    assert (
        status == 4
        and "gradient.storage: expected 51.5 KB of free space in" in err
        and "fewer gradient.checkpoints" in err
    )
    assert sorted(os.listdir()) == ["input.toml", "k.npy"]


def test_options_that_exclude_each_other(command):
    for other in ("--overwrite", "--verify"):
        status, _, err = command("gradient", "input.toml", "--resume", other)
        assert status == 2 and f"--resume: cannot be combined with {other}" in err


def test_a_blown_up_gradient_leaves_nothing(command):
    status, _, err = command("gradient", "input.toml", "--set", "time={end=2000.0, dt=100.0}")
    assert status == 3 and "objective: expected a finite value" in err
    assert sorted(os.listdir()) == ["input.toml", "k.npy"]
