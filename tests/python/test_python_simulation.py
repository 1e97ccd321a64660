"""hs.Simulation on one process: it equals the command bit for bit; its views, assignments and refusals."""

import copy
import math
import signal
import threading
import tomllib

import h5py
import jax
import numpy as np
import pytest
import xarray as xr
from commands import contents
from support import hpcstencil

import hpcstencil as hs
from hpcstencil.python.shared_programs import PROGRAMS

HEAT = {
    "grid": {"shape": [12, 9], "upper": [1.2, 0.9]}, "equation": {"name": "heat", "D": 0.1},
    "initial": {"u": "sin(5*x)*cos(3*y) + 1"}, "boundary": {"y": {"dirichlet": "sin(t)"}},
    "numerics": {"kernel": "shift"}, "time": {"end": 0.3, "dt": 0.01},
    "output": {"every": 0.1, "units": {"u": "K"}}, "diagnostics": {"every_steps": 4, "mass": "integral(u)"},
}  # fmt: skip
BURGERS = {
    **HEAT, "equation": {"name": "burgers", "nu": 0.05}, "initial": {"u": "sin(5*x)", "v": "0.3*cos(6*y)"},
    "boundary": {}, "time": {"end": 0.5, "cfl": 0.5, "dt_every": 3}, "output": {"every": 0.2},
}  # fmt: skip
MAXWELL = {
    **HEAT, "equation": {"name": "maxwell"}, "initial": {"Ez": "exp(-20*((x - 0.6)**2 + (y - 0.4)**2))"},
    "boundary": {"x": {"cpml": {"width": 0.3}}, "y": {"dirichlet": 0.0}}, "time": {"end": 0.3, "cfl": 0.5},
    "output": {}, "diagnostics": {},
}  # fmt: skip
SEA = {
    "grid": {"shape": [8, 8]}, "equation": {"name": "shallow_water"}, "initial": {"h": "-1.0"},
    "time": {"end": 1.0, "dt": 0.01},
}  # fmt: skip
LOOP: dict[str, object] = {}
LOOP["grid"] = LOOP
# Every way to take steps, and every kind of state.
KINDS = {
    "fixed steps": HEAT,
    "native": {**HEAT, "numerics": {"kernel": "native", "precision": "float64"}},
    "a fraction of the stable step": {**HEAT, "time": {"end": 0.3, "cfl": 0.4}, "output": {"every": 0.07}},
    "steps that follow the solution": BURGERS,
    "a tolerance": {**HEAT, "time": {"end": 0.3, "tolerance": 1e-4}, "output": {"every": 0.11}},
    "a multistep method": {**HEAT, "numerics": {"kernel": "shift", "integrator": "ab2"}},
    "solid cells": {**HEAT, "mask": {"solid": "(x - 0.6)**2 + (y - 0.4)**2 < 0.02"}},
    "fields on faces": MAXWELL,
    "members with steps of their own": {
        **BURGERS, "output": {}, "diagnostics": {}, "ensemble": {"equation.nu": [0.05, 0.1], "initial.u": ["sin(5*x)", "x"]},
    },
}  # fmt: skip


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run an input by the command, in this process; returns its file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already

    def run(toml, *options, output="by_command.h5"):
        (tmp_path / "input.toml").write_text(toml)
        status, _, err = hpcstencil(monkeypatch, capsys, "run", "input.toml", "--output", output, *options)
        assert status == 0, err
        return tmp_path / output

    return run


def assert_same_file(one, other):
    (a, complete), (b, also) = contents(one), contents(other)
    assert complete == also == 1 and a.keys() == b.keys()
    for name in a:
        texts = a[name].dtype == object  # whose bytes are addresses
        assert a[name].dtype == b[name].dtype, name
        assert a[name].tolist() == b[name].tolist() if texts else a[name].tobytes() == b[name].tobytes(), name


def assert_same(one, other):
    """Two datasets have the same fields, bit for bit."""
    assert one.sizes == other.sizes and list(one.data_vars)
    for name in one.data_vars:
        assert one[name].values.tobytes() == other[name].values.tobytes(), name


@pytest.mark.parametrize("kind", KINDS)
def test_state_and_file_are_those_of_the_command(kind, command, tmp_path):
    with hs.Simulation(KINDS[kind]) as sim, hs.Simulation(KINDS[kind]) as whole:
        path = command(sim.to_toml())
        if kind != "members with steps of their own":
            sim.step(3)
            sim.step()
            assert sim.steps == 4
        sim.run()
        whole.run(output=tmp_path / "by_python.h5")
        with hs.open(path) as file:
            last = file.isel(time=-1)
            assert sim.time == whole.time == float(last.time) and sim.steps == int(last.step)
            for state in (sim.state, whole.state):
                assert_same(state, last[list(state.data_vars)])
            for name in set(last.coords) - {"time"}:
                assert sim.state[name].values.tolist() == last[name].values.tolist()
            assert all(state[name].attrs == last[name].attrs for name in state.data_vars)
    assert_same_file(path, tmp_path / "by_python.h5")
    with h5py.File(path) as one, h5py.File(tmp_path / "by_python.h5") as other:
        assert {name for name in one.attrs if not np.array_equal(one.attrs[name], other.attrs[name])} <= {"history"}


def test_from_toml_takes_what_set_takes(tmp_path, command):
    with hs.Simulation(HEAT) as sim:
        text = sim.to_toml()
    path = command(text, "--set", "time.end=0.2", "--set", "numerics.order=4")
    overrides = {"time.end": 0.2, "numerics.order": np.int64(4)}
    with hs.Simulation.from_toml(tmp_path / "input.toml", **overrides) as sim, hs.open(path) as file:
        sim.run()
        assert_same(sim.state, file[["u"]].isel(time=-1))
        assert "order = 4" in sim.to_toml()


def test_simulations_may_take_turns(command):
    """Of other grids, precisions and parameters; those that differ in numbers alone share a program."""
    others = [
        HEAT, {**HEAT, "numerics": {"kernel": "shift", "precision": "float64"}},
        {**HEAT, "equation": {"name": "heat", "D": 0.2}},
        {**HEAT, "grid": {"shape": [7], "upper": [0.7]}, "boundary": {}, "initial": {"u": "x"}},
    ]  # fmt: skip
    before = {id(program) for program in PROGRAMS.programs}
    sims = [hs.Simulation(tables) for tables in others]
    assert len({id(program) for program in PROGRAMS.programs} - before) <= 3
    for _ in range(6):
        for sim in sims:
            sim.step(5)
    for sim in sims:
        with hs.open(command(sim.to_toml(), "--overwrite")) as file:
            assert_same(sim.state, file[["u"]].isel(time=-1))
        sim.close()


def test_simulations_in_threads_take_turns(tmp_path):
    """Each with the records of its own, also if a callback waits for another thread's run."""
    recorded = {
        **KINDS["native"], "time": {"end": 0.3, "dt": 0.001}, "probes": {"p": {"field": "u", "x": [0.3, 0.8], "y": 0.4}},
    }  # fmt: skip

    def run(name):
        with hs.Simulation({**recorded, "equation": {"name": "heat", "D": 0.1 if name == "alone" else 0.11}}) as sim:
            sim.run(output=tmp_path / f"{name}.h5")

    def run_with_another():
        with hs.Simulation({**recorded, "equation": {"name": "heat", "D": 0.11}}) as sim:

            @sim.on(every_steps=100)
            def wait(sim):
                other = threading.Thread(target=run, args=[f"inner {sim.steps}"])
                other.start()
                other.join()

            sim.run(output=tmp_path / "outer.h5")

    threads = [threading.Thread(target=run, args=[name]) for name in ("first", "second", "alone")]
    threads.append(threading.Thread(target=run_with_another))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {path.stem: hs.open(path).load() for path in tmp_path.glob("*.h5")}
    assert set(found) == {"first", "second", "alone", "outer", "inner 100", "inner 200", "inner 300"}
    values = {path.stem: hs.probes(path, "p")["values"].values for path in tmp_path.glob("*.h5")}
    for name in set(found) - {"alone"}:
        assert found[name].equals(found["first"]) and values[name].tobytes() == values["first"].tobytes(), name
    assert (values["alone"] != values["first"]).any()


def test_run_until_lands_on_a_time():
    with hs.Simulation(HEAT) as sim, hs.Simulation(HEAT) as plain, hs.Simulation(BURGERS) as free:
        sim.run_until(0.1)
        plain.step(10)
        assert sim.steps == 10 and math.isclose(sim.time, 0.1)
        assert_same(sim.state, plain.state)  # the time is that of a step: nothing was shortened
        sim.run_until(0.125)
        assert (sim.steps, sim.time) == (13, 0.125)
        sim.step(2)
        assert math.isclose(sim.time, 0.145)
        sim.run()
        assert sim.time == 0.3
        free.run_until(0.123)
        assert free.time == 0.123
        for wrong in (0.05, 0.4, float("nan")):
            with pytest.raises(hs.InputError, match="run_until: expected a time from 0.3"):
                sim.run_until(wrong)


@pytest.mark.parametrize("tables, exact", [(HEAT, True), (BURGERS, False), (KINDS["a tolerance"], False)])
def test_callbacks_and_pauses_come_at_their_times_and_change_no_step(tables, exact):
    with hs.Simulation(tables) as sim, hs.Simulation(tables) as plain:
        told, interval = {"steps": [], "times": [], "pauses": []}, sim._open.problem.config.time.end / 4

        @sim.on(every_steps=3)
        def by_steps(here):
            told["steps"].append(here.steps)

        @sim.on(every=interval)
        def by_time(here):
            told["times"].append(here.time)

        for here in sim.every(interval):
            told["pauses"].append(here.time)
        plain.run()
        assert_same(sim.state, plain.state)
        assert told["steps"] == list(range(3, sim.steps + 1, 3))
        assert told["times"] == told["pauses"] and len(told["times"]) == 4 and told["times"][-1] == sim.time
        dt = 0.01 if exact else 0.1
        late = [time - (k + 1) * interval for k, time in enumerate(told["times"])]
        assert all(abs(x) <= dt / 2 + 1e-9 if exact else -1e-9 <= x < dt for x in late)


def test_what_is_assigned_at_the_start_is_the_initial_state(command):
    """As an expression, a function, and arrays of several libraries; also where a method remembers the slope."""
    expression = "cos(4*x) + y"
    tables = KINDS["a multistep method"]
    with hs.Simulation({**tables, "initial": {"u": expression}}) as expected:
        array = expected.state["u"]
        text = expected.to_toml()
        expected.run()
    values = {
        "expression": expression,
        "function": lambda x, y: np.cos(4 * x) + y,
        "numpy": array.values,
        "jax": jax.numpy.asarray(array.values),
        "xarray": array.transpose("y", "x"),
    }
    for way, value in values.items():
        with hs.Simulation(tables) as sim:
            sim["u"] = value
            if way == "expression":
                assert sim.to_toml() == text
            else:
                with pytest.raises(hs.InputError, match="u was assigned as values, which no input can say"):
                    sim.to_toml()
            sim.run()
            assert_same(sim.state, expected_state(command, text))


def expected_state(command, text):
    with hs.open(command(text, "--overwrite")) as file:
        return file[["u"]].isel(time=-1).load()


def test_a_program_that_couples_is_independent_of_its_arrays():
    with hs.Simulation(HEAT) as sim:
        u = np.zeros((12, 9), np.float32)
        sim["u"] = u
        u[:] = 5.0
        assert not sim.state["u"].values.any()
        sim.local["u"] = np.ones((12, 9))
        kept, local = sim.state["u"], sim.local
        sim.step(2)
        assert (kept == 1.0).all() and (local["u"] == 1.0).all()
        sim["u"] = 2.5
        assert (sim["u"] == 2.5).all() and sim.steps == 2
        local = sim.local
        local["u"] = np.full((12, 9), 3.0)
        assert (local["u"] == 3.0).all() and (sim["u"] == 3.0).all()
        shifted = local + 1.0
        shifted["u"] = ("x", "y"), np.zeros((12, 9))  # an ordinary dataset
        assert (sim["u"] == 3.0).all()


def test_solid_cells_stay_zero():
    with hs.Simulation(KINDS["solid cells"]) as sim:
        sim["u"] = 1.0
        x, y = np.meshgrid(sim.state.x, sim.state.y, indexing="ij")
        solid = (x - 0.6) ** 2 + (y - 0.4) ** 2 < 0.02
        assert solid.any() and np.array_equal(sim.state["u"] == 0.0, solid)


def test_members_are_assigned_together_or_one_by_one():
    with hs.Simulation(KINDS["members with steps of their own"]) as sim:
        assert sim.state["u"].dims == ("member", "x", "y") and sim.state.nu.values.tolist() == [0.05, 0.1]
        each = np.stack([np.full((12, 9), 1.0), np.full((12, 9), 2.0)])
        sim["u"] = each
        assert np.array_equal(sim["u"], each)
        sim["u"] = each[1]
        assert (sim["u"] == 2.0).all()


def test_a_file_may_begin_with_a_state_of_the_program(tmp_path, command):
    """It then holds its first state, and a checkpoint from which --resume can begin if the run is killed."""
    with hs.Simulation(HEAT) as sim:
        sim.step(7)
        sim["u"] = sim.state["u"].values * 2
        first = sim.state
        sim.run(output=tmp_path / "late.h5")
        with hs.open(tmp_path / "late.h5") as file:
            assert file.step.values.tolist() == [7, 10, 20, 30]
            assert_same(first, file[["u"]].isel(time=0))
            assert_same(sim.state, file[["u"]].isel(time=-1))
        assert (tmp_path / "late.checkpoint.000000000007.h5").exists()
        with pytest.raises(
            hs.InputError, match="expected steps to take for .*late.h5, but the simulation is at time.end"
        ):
            sim.run(output=tmp_path / "late.h5")
    with hs.Simulation(HEAT) as sim, pytest.raises(hs.InputError, match="late.h5: exists already; use overwrite=True"):
        sim.run(output=tmp_path / "late.h5")


def test_a_state_in_a_file_replaces_expressions_and_their_seed(tmp_path):
    noisy = {**HEAT, "equation": {"name": "heat", "D": 0.1, "seed": 7}, "initial": {"u": "noise(seed)"}}
    with hs.Simulation(noisy) as sim:
        sim.run()
        sim.state.to_netcdf(tmp_path / "state.nc")
        with hs.Simulation({**noisy, "initial": {"file": tmp_path / "state.nc"}}) as again:
            assert_same(sim.state, again.state)
            again["u"] = "x"
            assert "file" not in tomllib.loads(again.to_toml())["initial"]
        with pytest.raises(hs.InputError, match="initial.file: nothing is read from it, because every field has an"):
            hs.Simulation({**noisy, "initial": {"file": tmp_path / "state.nc", "u": "noise(seed)"}})


def test_a_file_has_its_streams(tmp_path, command):
    """Those of the command; in memory there are none."""
    streams = {"row": {"every": 0.03, "region": {"y": 0.4}}, "mean": {"every_steps": 7, "average": True}}
    with hs.Simulation({**HEAT, "output": {**HEAT["output"], "streams": streams}}) as sim:
        path = command(sim.to_toml())
        sim.step(2)
        assert len(list(tmp_path.glob("*.row.h5"))) == 1
        with hs.Simulation({**HEAT, "output": {**HEAT["output"], "streams": streams}}) as whole:
            whole.run(output=tmp_path / "by_python.h5")
        for name in streams:
            assert_same_file(tmp_path / f"by_command.{name}.h5", tmp_path / f"by_python.{name}.h5")
        with hs.open(tmp_path / "by_python.row.h5") as row, hs.open(path) as file:
            assert row["u"].dims == ("time", "x", "y") and row["y"].values.tolist() == [file["y"].values[3]]
            assert hs.plot(row["u"].isel(time=-1)).get_xlabel() == "x"
        with pytest.raises(
            hs.InputError, match="row.h5: expected the main output of a run.* its stream .row., which has no"
        ):
            hs.diagnostics(tmp_path / "by_python.row.h5")
        path.with_name("late.row.h5").touch()
        with pytest.raises(hs.InputError, match="late.row.h5: exists already; use overwrite=True"):
            sim.run(output=tmp_path / "late.h5")


def test_a_stopped_run_goes_on_from_the_state_that_the_program_had_set(tmp_path, command):
    """Not from that of the input, which its file names."""
    with hs.Simulation(HEAT) as sim, hs.Simulation(HEAT) as whole:
        for here in (sim, whole):
            here["u"] = lambda x, y: x * y
        whole.run(output=tmp_path / "whole.h5")
        sim.on(every_steps=1)(lambda here: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(hs.StoppedEarly):
            sim.run(output=tmp_path / "stopped.h5")
        for path in tmp_path.glob("stopped.checkpoint.*.h5"):
            if not path.stem.endswith("0" * 12):
                path.unlink()  # as if it had been killed instead
    with h5py.File(tmp_path / "whole.h5") as file:
        text = file.attrs["input"]
    assert_same_file(command(text, "--resume", output="stopped.h5"), tmp_path / "whole.h5")


def test_a_signal_stops_a_run_with_a_file(tmp_path, command):
    with hs.Simulation(HEAT) as sim:

        @sim.on(every_steps=10)
        def stop(here):
            signal.raise_signal(signal.SIGTERM)

        with pytest.raises(
            hs.StoppedEarly, match="stopped by SIGTERM at step 1.* run INPUT.toml --output .*stopped.h5 --resume"
        ):
            sim.run(output=tmp_path / "stopped.h5")
        assert 10 <= sim.steps < 30 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        text = sim.to_toml()
    assert_same_file(command(text, "--resume", output="stopped.h5"), command(text))


def test_an_interrupt_leaves_a_whole_state():
    with hs.Simulation(HEAT) as sim, hs.Simulation(HEAT) as plain:

        @sim.on(every_steps=6)
        def interrupt(here):
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            sim.run()
        plain.step(6)
        assert sim.steps == 6
        assert_same(sim.state, plain.state)


def test_an_exception_of_a_callback_reaches_the_caller():
    with hs.Simulation(HEAT) as sim:

        @sim.on(every_steps=4)
        def fail(here):
            with pytest.raises(hs.InputError, match="step: cannot be called while steps are taken"):
                here.step()
            with pytest.raises(hs.InputError, match="close: cannot be called while steps are taken"):
                here.close()
            raise LookupError("enough")

        with pytest.raises(LookupError, match="enough"):
            sim.run()
        assert sim.steps == 4
        sim.step(2)
        assert sim.steps == 6


def test_a_run_that_a_callback_ends_can_be_continued(command, tmp_path):
    """Its files are closed, with a checkpoint of the last state, as if it had been stopped."""
    with hs.Simulation(HEAT) as sim:

        @sim.on(every_steps=4)
        def fail(here):
            raise StopIteration("enough")

        with pytest.raises(StopIteration, match="enough") as raised:
            sim.run(output=tmp_path / "ended.h5")
        text = sim.to_toml()
    assert raised.value.__context__ is None
    with h5py.File(tmp_path / "ended.h5") as file:
        assert file.attrs["failure"] == "a callback raised StopIteration: enough"
    assert_same_file(command(text, "--resume", output="ended.h5"), command(text))


def test_a_solution_that_blows_up_is_an_error():
    with (
        pytest.warns(UserWarning, match="beyond the stable step"),
        hs.Simulation({**HEAT, "time": {"end": 1e4, "dt": 10.0}}) as sim,
        pytest.raises(
            hs.NumericsError,
            match=r"field 'u' is not finite .* the run is unstable, or .*; try a smaller time.dt, or correct it$",
        ),
    ):
        sim.run()


GRID = r"expected the shape \(12, 9\) of the whole grid, but got \(3,\)"
REFUSED = {
    "no field": (lambda sim: sim.__setitem__("w", 1.0), r"""sim\['w'\]: unknown field "w"; use u"""),
    "a field to read": (lambda sim: sim["w"], "unknown field"),
    "another shape": (lambda sim: sim.__setitem__("u", np.zeros(3)), rf'sim\["u"\]: {GRID}'),
    "another block": (lambda sim: sim.local.__setitem__("u", np.zeros(3)), r'sim.local\["u"\]: expected the shape \(12, 9\)'),
    "no numbers": (lambda sim: sim.__setitem__("u", {"a": 1}), "expected real numbers, but got dict of object"),
    "not finite": (lambda sim: sim.__setitem__("u", lambda x, y: 0 * x + np.inf), r"got inf in cell \[0, 0\]"),
    "a logarithm": (lambda sim: sim.__setitem__("u", "log(-x - 1)"), r"expected finite .* got nan in cell \[0, 0\]"),
    "a large product": (lambda sim: sim.__setitem__("u", "1e30*1e30*(x + 1)"), "expected finite numbers that float32 can hold"),
    "too large": (lambda sim: sim.__setitem__("u", 1e60), "expected finite numbers that float32 can hold"),
    "an unknown name": (lambda sim: sim.__setitem__("u", "q*x"), r"""sim\["u"\]: unknown name 'q'"""),
    "a function": (lambda sim: sim.__setitem__("u", lambda x, y: np.zeros(5)), r"whose values broadcast to \(12, 9\)"),
    "dimensions": (lambda sim: sim.__setitem__("u", xr.DataArray(np.zeros((12, 9)), dims=("x", "z"))), "dimensions x, y, but"),
    "a dataset": (lambda sim: sim.__setitem__("u", sim.state), "expected one array, but got Dataset; give one of its"),
    "nothing": (lambda sim: sim.__setitem__("u", None), "got None; give every process the whole array"),
    "masked": (lambda sim: sim.__setitem__("u", np.ma.masked_less(np.eye(12, 9), 1)), "got a masked array; fill it"),
    "a function for a block": (lambda sim: sim.local.__setitem__("u", np.sin), r'a number, .* whole field, sim\["u"\]'),
    "a text for a block": (lambda sim: sim.local.__setitem__("u", "x"), "expected an array or a number, but got str"),
    "an attribute": (lambda sim: setattr(sim, "u", 1.0), r'not set as an attribute; write sim\["u"\] = '),
    "a parameter": (lambda sim: setattr(sim, "D", 1.0), "sim.D: a simulation keeps its parameters"),
    "a key of the input": (lambda sim: setattr(sim, "dt", 1.0), "sim.dt: a simulation keeps its input; make another"),
    "the state": (lambda sim: setattr(sim, "state", sim.state), "sim.state: this cannot be replaced; .* write sim"),
    "the other order": (lambda sim: sim.__setitem__("u", np.zeros((9, 12))), "give its transpose, indexed"),
    "a function of one": (lambda sim: sim.__setitem__("u", lambda x: x), r"expected a function of \(x, y\), one array each"),
    "a copy": (copy.copy, "cannot be copied or pickled"),
    "steps": (lambda sim: sim.step(31), "step: expected at most 30 steps up to time.end = 0.3, but got 31"),
    "no steps": (lambda sim: sim.step(-1), "step: expected a number of steps, but got -1"),
    "no interval": (lambda sim: sim.every(0.0), "every: expected a positive, finite time"),
    "both": (lambda sim: sim.on(every=1.0, every_steps=2), "on: expected either every_steps or every"),
    "a key": (lambda sim: hs.Simulation({"gird": {}}), 'unknown table or key "gird"; did you mean "grid"'),
    "a dotted key": (lambda sim: hs.Simulation({**HEAT, "time.end": 2.0}), r'a key with a dot; write {"time": {"end": ...}}'),
    "no dict": (lambda sim: hs.Simulation("input.toml"), r"expected a dict .* use Simulation.from_toml"),
    "no path": (lambda sim: hs.Simulation.from_toml(HEAT), r"from_toml: expected the path .* use Simulation\(tables\)"),
    "a depth below 0": (lambda sim: hs.Simulation(SEA).step(1), "initial.h: expected values above 0 in all cells"),
    "a table in itself": (lambda sim: hs.Simulation(LOOP), "input: a table or a list contains itself"),
    "nothing for a key": (lambda sim: hs.Simulation({**HEAT, "title": None}), "title: expected a number, a text"),
    "a complex number": (lambda sim: hs.Simulation({**HEAT, "time": {"end": np.array(1j)}}), "time.end: expected a number"),
    "a time as a text": (lambda sim: sim.run_until("0.1"), "run_until: expected a time from 0, .* but got '0.1'"),
    "a time for a file": (lambda sim: sim.run(0.1), "run: expected the path of a file for output, but got 0.1"),
    "no callback": (lambda sim: sim.on(every=0.1)(3), "on: expected a function, but got int"),
    "a picture of all": (lambda sim: hs.plot(sim.state), "plot: expected an array, but got Dataset; give one field"),
    "a picture of a simulation": (hs.plot, "plot: expected an array, but got Simulation"),
    "no file": (lambda sim: hs.Simulation({**HEAT, "initial": {"file": "nowhere.h5"}}), "initial.file: expected an HDF5 file"),
    "an override": (lambda sim: hs.Simulation.from_toml("x.toml", **{"time.end": {1}}), "time.end: expected a number, a text"),
    "a list of another shape": (lambda sim: hs.Simulation({**HEAT, "initial": {"u": [1, 2, 3]}}), f"initial.u: {GRID}"),
    "no output": (lambda sim: hs.open("nowhere.h5"), "nowhere.h5: no such file"),
    "devices": (lambda sim: hs.configure(devices=0), "devices: expected a positive integer, but got 0"),
    "a platform": (lambda sim: hs.configure(platform="abacus"), 'platform: expected "cpu" or "gpu", but got'),
}  # fmt: skip


def test_what_is_wrong_is_one_sentence_and_changes_nothing():
    with hs.Simulation(HEAT) as sim:
        before = sim.state
        for action, sentence in REFUSED.values():
            with pytest.raises(hs.InputError, match=sentence) as told:
                action(sim)
            assert "\n" not in str(told.value)
        assert_same(before, sim.state)
    sim.close()
    for action in (sim.step, sim.run, lambda: sim.state, lambda: sim.local, lambda: sim.function(1), sim.to_toml):
        with pytest.raises(hs.InputError, match="the simulation is closed; make a new one"):
            action()
    assert repr(sim) == "<hpcstencil.Simulation, closed>"


def test_a_simulation_names_its_fields():
    with hs.Simulation(BURGERS) as sim:
        assert list(sim) == ["u", "v"] and "v" in sim and "w" not in sim
        sim.note = "an attribute of the program"
        assert sim.note and not hasattr(sim, "__array__")
        with pytest.raises(AttributeError, match=r'sim.v: a field is not an attribute; write sim\["v"\]'):
            _ = sim.v
        with pytest.raises(AttributeError, match="has no attribute 'solve'; it has close, .* run, run_until, "):
            sim.solve(t_range=10)
    with pytest.raises(AttributeError, match="no attribute 'movie'; it has .* plot, probes"):
        _ = hs.movie


def test_a_run_shows_its_progress_if_asked(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr("hpcstencil.runtime.progress.FIRST_WAIT", 0.0)
    for output in (None, tmp_path / "run.h5"):
        for progress in (False, True):
            with hs.Simulation(HEAT) as sim:
                sim.run(output=output, overwrite=True, progress=progress)
            assert ("t = 0.3 of 0.3" in capfd.readouterr().err) is progress


def test_more_devices_than_jax_has_are_a_problem_of_the_environment():
    with pytest.raises(hs.EnvironmentProblem, match=r"expected at most 2, .* got 3; call hs.configure\(devices=3\)"):
        hs.Simulation({**HEAT, "decomposition": {"devices": 3}})
    with pytest.raises(hs.EnvironmentProblem, match="jax has started in this process with 2 devices on cpu"):
        hs.configure(devices=4)


def test_time_series_and_pictures(tmp_path, command):
    with hs.Simulation(HEAT) as sim:
        path = command(sim.to_toml())
        series = hs.diagnostics(path)
        assert series["mass"].dims == ("time",) and series.step.values.tolist() == [0, 4, 8, 12, 16, 20, 24, 28, 30]
        import matplotlib

        matplotlib.use("agg")
        axes = hs.plot(sim.state["u"])
        assert axes.get_xlabel().startswith("x") and axes.get_aspect() == 1.0
        assert len(hs.plot(series["mass"]).lines) == 1
        assert len(hs.plot(sim.state["u"].values[0]).lines) == 1
        assert hs.plot(jax.numpy.ones((4, 3))).get_xlabel() == "x"
        with (
            hs.open(path) as file,
            pytest.raises(hs.InputError, match="plot: expected an array with one or two dimensions"),
        ):
            hs.plot(file["u"])


def test_solid_cells_are_a_coordinate_and_grey(tmp_path):
    import matplotlib

    matplotlib.use("agg")
    with hs.Simulation(KINDS["solid cells"]) as sim:
        solid = (sim.state.x - 0.6) ** 2 + (sim.state.y - 0.4) ** 2 < 0.02
        sim.run(output=tmp_path / "run.h5")
        with hs.open(tmp_path / "run.h5") as file:
            for field in (sim["u"], sim.local["u"], file["u"][-1]):
                assert np.array_equal(field.solid, solid)
                axes = hs.plot(field)
                assert axes.get_facecolor() == matplotlib.colors.to_rgba("0.72")
                assert np.array_equal(np.ma.getmaskarray(axes.images[0].get_array()), solid.T)
            assert hs.plot(file["u"][:, 6]).get_xlabel() == "time"
            (line,) = hs.plot(sim["u"][6]).lines
            assert np.array_equal(np.isnan(line.get_ydata()), solid[6])


def test_pictures_beside_each_other():
    import matplotlib

    matplotlib.use("agg")
    values = np.arange(24.0).reshape(2, 3, 4)
    solid = xr.DataArray(np.eye(3, 4, dtype=int), dims=("x", "y"))
    array = xr.DataArray(values, dims=("member", "x", "y"), coords={"solid": solid}, name="u")
    axes = hs.plot(array, col="member").ravel()
    assert [each.get_title() for each in axes] == ["member = 0", "member = 1"]
    assert all(each.get_aspect() == 1.0 and each.get_facecolor()[:3] == (0.72,) * 3 for each in axes)
    scales = {each.images[0].get_clim() for each in axes}
    assert scales == {(1.0, 23.0)}, "those of all cells that are not solid"
    lines = hs.plot(array.isel(x=0), col="member").ravel()
    assert [each.get_xlabel() for each in lines] == ["y", "y"]
    with pytest.raises(hs.InputError, match="expected an array with one or two dimensions, but got member, x, y"):
        hs.plot(array)
    with pytest.raises(hs.InputError, match="expected one of member, x or y for row and col, but got 'time'"):
        hs.plot(array, col="time")
    assert len(hs.plot(array[:1], col="member").ravel()) == 1
