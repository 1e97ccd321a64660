"""A run that has ended goes on to a later end, or under other steps: the file is that of one that was never interrupted."""

import json

import h5py
import jax
import numpy as np
import pytest
import support  # noqa: F401  (sets jax up)
from commands import contents

from hpcstencil.checkpoint.paths import list_checkpoints, step_of
from hpcstencil.config.reader import load
from hpcstencil.numerics.schedule import Clock, Schedule
from hpcstencil.problem.build import build
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.signals import Request
from hpcstencil.simulation.event_loop import Run
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.restart import Options
from hpcstencil.simulation.run import run as run_problem
from hpcstencil.simulation.stepping import Stepping
from hpcstencil.simulation.summary import report
from hpcstencil.validation.errors import StoppedEarly
from hpcstencil.validation.toml_text import dumps

HEAT = {"name": "heat", "D": 0.1}
BUMP = {"u": "exp(-x**2)"}
# The first end, the checkpoints there are then, and the input.
RUNS = {
    "a snapshot is all": (2.0, [], {"equation": HEAT, "initial": BUMP, "time": {"end": 3.0, "dt": 0.1}}),
    "no output is due at the first end": (1.7, [], {"equation": HEAT, "initial": BUMP, "time": {"end": 3.0, "dt": 0.1}}),
    "the last step was shortened": (1.73, [17], {"equation": HEAT, "initial": BUMP, "time": {"end": 3.0, "dt": 0.1}}),
    "steps that follow from a fraction of the stable one": (
        1.7, [9], {"equation": HEAT, "initial": BUMP, "time": {"end": 3.0, "cfl": 0.5}},
    ),
    "a tolerance": (
        1.7, [20], {
            "equation": {"name": "burgers", "nu": 0.1}, "initial": {"u": "sin(x)"}, "numerics": {"integrator": "bs3"},
            "time": {"end": 3.0, "tolerance": 1e-4},
        },
    ),
    "a tolerance, and the first end is an output": (
        1.5, [], {
            "equation": {"name": "burgers", "nu": 0.1}, "initial": {"u": "sin(x)"}, "numerics": {"integrator": "bs3"},
            "time": {"end": 3.0, "tolerance": 1e-4},
        },
    ),
    "a method with a memory": (
        2.0, [20], {
            "equation": {"name": "burgers", "nu": 0.1}, "initial": {"u": "sin(x)"}, "numerics": {"integrator": "ab2"},
            "time": {"end": 3.0, "dt": 0.1},
        },
    ),
    "fields on faces, with values on the walls": (
        2.0, [], {
            "grid": {"shape": [12, 8], "lower": [-3.0, -2.0], "upper": [3.0, 2.0]},
            "equation": {"name": "shallow_water", "g": 1.0}, "initial": {"h": "1 + 0.1*exp(-x**2)"},
            "boundary": {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": "0.1*sin(t)"}}}, "time": {"end": 3.0, "dt": 0.1},
        },
    ),
    "not all fields are written": (
        2.0, [20], {
            "equation": {"name": "gray_scott"}, "initial": {"u": "1", "v": "0.2*exp(-x**2)"}, "output": {"fields": ["v"]},
            "time": {"end": 3.0, "dt": 0.1},
        },
    ),
    "an ensemble": (
        2.0, [20], {
            "equation": HEAT, "initial": BUMP, "ensemble": {"equation.D": [0.1, 0.2]}, "time": {"end": 3.0, "dt": 0.1},
        },
    ),
}  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the input.toml of a folder, in this process, with some --set; returns the summary."""
    monkeypatch.chdir(tmp_path)

    def run(*overrides, output="run.h5", resume=False):
        config = load(tmp_path / "input.toml", overrides)
        problem, processes = build(config), OneProcess()
        options = Options(tmp_path / output, resume=resume, quiet=True, overrides=overrides)
        decomposed = Decomposed.of(problem, 1, 1)
        return report(run_problem(decomposed, options, processes, jax.local_devices()[:1], Request()))

    return run


def write(folder, tables):
    whole = {
        "grid": {"shape": [24], "lower": [-3.0], "upper": [3.0]},
        **tables,
        "numerics": {"kernel": "shift", **tables.get("numerics", {})},
        "output": {"path": "run.h5", "every": 0.5, **tables.get("output", {})},
        "diagnostics": {"every_steps": 3, "most": f"max({next(iter(tables['initial']))})"},
    }
    (folder / "input.toml").write_text(dumps(whole))


def assert_equal(one, other):
    (a, done), (b, _) = contents(one), contents(other)
    assert done == 1 and a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name


@pytest.mark.parametrize("case", RUNS)
def test_an_extended_run_has_the_bits_of_an_uninterrupted_one(case, run, tmp_path):
    end, kept, tables = RUNS[case]
    write(tmp_path, tables)
    run(f"time.end={end}")
    assert [step_of(path) for path in list_checkpoints(tmp_path / "run.h5")] == kept
    told = run("time.end=1.0", resume=True)
    assert f"complete up to t = {end:g}, beyond the time.end = 1 asked for; nothing to do" in told
    run(resume=True)
    run(output="whole.h5")
    assert_equal("run.h5", "whole.h5")


def stop(stepping, announce, limit, until, is_quiet):
    raise StoppedEarly("stopped")


def test_an_end_while_a_run_is_extended_costs_nothing(run, tmp_path, monkeypatch):
    """The state that the output held is in a checkpoint before the output changes."""
    write(tmp_path, RUNS["a snapshot is all"][2])
    run("time.end=2.0")
    with monkeypatch.context() as patch:
        patch.setattr(Stepping, "advance", stop)
        with pytest.raises(StoppedEarly):
            run(resume=True)
    assert [step_of(path) for path in list_checkpoints(tmp_path / "run.h5")] == [20]
    with h5py.File("run.h5") as file:
        assert file.attrs["complete"] == 0 and "clock" not in file.attrs and file["step"][-1] == 20
    run(resume=True)
    run(output="whole.h5")
    assert_equal("run.h5", "whole.h5")


def killed_at(step):
    """In place of Run.write_due: what a run writes, until it has come to this step and is ended without a word."""
    write_due = Run.write_due

    def write(run):
        write_due(run)
        if run.stepping.clock.step >= step:
            raise StoppedEarly("killed")

    return write


CHECKPOINTS = ("checkpoint.every_steps=10", "checkpoint.keep=9")


@pytest.fixture
def killed(run, tmp_path, monkeypatch):
    """A run that has got to step 27 and whose only sound checkpoint is that of step 10."""
    write(tmp_path, RUNS["a snapshot is all"][2])

    def kill(step, *settings, **options):
        with monkeypatch.context() as patch:
            patch.setattr(Run, "write_due", killed_at(step))
            with pytest.raises(StoppedEarly):
                run(*settings, **options)
        for path in list_checkpoints(tmp_path / "run.h5"):
            if step_of(path) > 10:
                path.unlink()
        return contents("run.h5")[0]

    kill(27, *CHECKPOINTS)
    return kill


def test_snapshots_beyond_the_checkpoint_stay_through_two_kills(killed, run):
    """The second kill comes before the resumed run has passed them."""
    found = killed(12, *CHECKPOINTS, resume=True)
    assert found["step"].tolist() == [0, 5, 10, 15, 20, 25]
    assert found["diagnostics/step"].tolist() == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]
    run(resume=True)
    run(output="whole.h5")
    assert_equal("run.h5", "whole.h5")


@pytest.mark.parametrize("change", ["output.every=1.0", "numerics.kernel='conv'", "equation.D=0.2"])
def test_snapshots_that_would_not_be_the_same_are_cut(change, killed):
    found = killed(12, change, resume=True)
    assert found["step"].tolist() == [0, 5, 10] and found["diagnostics/step"].tolist()[:4] == [0, 3, 6, 9]


def test_snapshots_that_turn_out_not_to_be_the_same_are_cut(killed, run):
    with h5py.File("run.h5", "r+") as file:
        file["time"][4] += 1e-9
    run(resume=True)
    run(output="whole.h5")
    assert_equal("run.h5", "whole.h5")


@pytest.mark.parametrize("steps", ["time.dt=0.05", "time.cfl=0.2"])
def test_other_steps_are_counted_from_where_they_begin(steps, run, tmp_path):
    """Fixed steps of another length begin at the time that the run has reached, not at their number times their length."""
    write(tmp_path, RUNS["a snapshot is all"][2])
    run("time.end=2.0", "checkpoint.every_steps=10")
    run(steps, resume=True)
    found, _ = contents("run.h5")
    np.testing.assert_allclose(found["time"], np.arange(7) * 0.5, rtol=0, atol=1e-12)
    if steps == "time.dt=0.05":
        assert found["step"].tolist() == [0, 5, 10, 15, 20, 30, 40]
    with h5py.File("run.h5") as file:
        assert steps.split("=")[0] in json.loads(file.attrs["history"])[0]["changed"]
    run(steps, output="fine.h5")
    fine, _ = contents("fine.h5")
    np.testing.assert_allclose(found["u"][-1], fine["u"][-1], rtol=0, atol=1e-5)


def test_a_shortened_last_step_moves_the_origin_of_those_that_follow():
    schedule, clock = Schedule(end=2.0, fixed_dt=0.3).going_on(Clock(step=4, time=1.0), anew=False)
    assert (schedule.total_steps, schedule.time_of(5)) == (8, 1.3) and clock.base_time == 1.0
