"""[ensemble]: members side by side, each as if it ran alone."""

from dataclasses import replace

import h5py
import jax
import numpy as np
import pytest
from support import integrated, problem_of, simulation_of

from hpcstencil.config.ensemble import members
from hpcstencil.config.provenance import to_toml
from hpcstencil.io import file_read
from hpcstencil.io.file_layout import Description
from hpcstencil.io.file_read import inspect
from hpcstencil.io.file_spans import SettledSpans
from hpcstencil.io.output_file import OutputFile
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.schedule import Clock, StepRange, together
from hpcstencil.problem.build import build
from hpcstencil.problem.stability import cfl_step
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.simulation import backend_choice
from hpcstencil.simulation.backend_choice import probe
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.finite_check import first_not_finite
from hpcstencil.simulation.initial_state import initial_blocks
from hpcstencil.simulation.prepared import prepared_with
from hpcstencil.simulation.restart import Source
from hpcstencil.simulation.start import at_start
from hpcstencil.symbolic.staggering import Layout
from hpcstencil.validation.errors import InputError

PATTERN = {
    "grid": {"shape": [19, 16], "upper": [1.9, 1.6]},
    "equation": {"name": "gray_scott", "D_u": 0.02, "D_v": 0.01, "seed": 1},
    "initial": {"u": "1 - 0.5*exp(-4*(x - 1)**2)", "v": "0.25 + 0.1*noise(seed)"},
    "boundary": {"x": "periodic", "y": {"lower": {"dirichlet": "F*t"}, "upper": {"neumann": "k"}}},
    "diagnostics": {"every_steps": 3, "mass": "integral(u + k*v)", "largest": "max(v)"},
    "time": {"end": 2.0, "dt": 0.1},
    "ensemble": {"equation.F": [0.03, 0.04, 0.05], "equation": {"seed": [4, 5, 6]}},
}
CHANNEL = {
    "grid": {"shape": [16, 12], "upper": [16.0, 12.0]},
    "equation": {"name": "shallow_water", "g": 1.0},
    "initial": {"u": "0.1*sin(x)"},
    "boundary": {"x": {"neumann": 0.0}, "y": "periodic", "u": {"x": {"dirichlet": 0.0}}},
    "numerics": {"integrator": "ab2", "epsilon": 0.1},
    "diagnostics": {"volume": "integral(h)"},
    "time": {"end": 1.0, "dt": 0.05},
    "ensemble": {"equation.nu": [0.0, 0.3], "initial.h": ["10", "10 + 0.1*cos(x)"]},
}
DAMPED = {
    "grid": {"shape": [18, 14], "upper": [1.8, 1.4]},
    "equation": {"name": "acoustic"},
    "initial": {"p": "exp(-20*(x - 0.9)**2 - 20*(y - 0.7)**2)"},
    "boundary": {"x": {"cpml": {"width": 0.5, "speed": 1.0}}, "y": {"sponge": {"width": 0.5, "strength": 5.0}}},
    "numerics": {"integrator": "leapfrog"},
    "time": {"end": 0.5, "dt": 0.01},
    "ensemble": {"equation.c": [1.0, 0.8]},
}
OBSTACLE = {
    "grid": {"shape": [20, 20], "upper": [2.0, 2.0]},
    "equation": {"name": "custom", "rhs": {"u": "D*laplacian(u)"}, "r": 0.3, "D": 0.1},
    "initial": {"u": "x"},
    "mask": {"solid": "(x - 1)**2 + (y - 1)**2 < r*r"},
    "time": {"end": 0.5, "dt": 0.01},
    "ensemble": {"equation.r": [0.2, 0.5]},
}


@pytest.mark.optimized
@pytest.mark.parametrize("kernel", ("shift", "native"))
@pytest.mark.parametrize("tables", (PATTERN, CHANNEL, OBSTACLE, DAMPED))
def test_each_member_is_as_if_it_ran_alone(tables, kernel):
    problem = problem_of(**tables)
    simulation = simulation_of(problem, devices=2, kernel=kernel)
    found, _ = integrated(problem, simulation)
    measured = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters).evaluate(
        simulation.put(found), 1.0
    )
    for number, config in enumerate(members(problem.config)):
        alone = build(config)
        own = simulation_of(alone, kernel=kernel)
        expected, _ = integrated(alone, own)
        for name in alone.fields:
            assert np.array_equal(found[name][..., number], expected[name]), (number, name)
        values = Diagnostics(alone.diagnostics, own.diagnosed, alone.parameters).evaluate(own.put(expected), 1.0)
        assert {name: value[number] for name, value in measured.items()} == values
    assert len(np.unique(found[problem.fields[0]].sum((0, 1)))) == number + 1


def test_the_input_survives_being_written_out():
    import tomllib

    problem = problem_of(**PATTERN)
    again = problem_of(**tomllib.loads(to_toml(problem.config)))
    assert again.config.ensemble == problem.config.ensemble == {
        "equation.F": (0.03, 0.04, 0.05), "equation.seed": (4, 5, 6),
    }  # fmt: skip


@pytest.mark.optimized
@pytest.mark.parametrize("steps_per_exchange, kernel", (("auto", "shift"), (1, "shift"), ("auto", "native")))
@pytest.mark.parametrize("tables", (
    {"equation": {"name": "heat"}, "boundary": {"x": {"dirichlet": "t"}}, "ensemble": {"equation.D": [0.1, 0.5, 0.2]}},
    {"equation": {"name": "wave"}, "boundary": {"x": {"sponge": {"width": 1.0, "strength": 5.0}}},
     "numerics": {"integrator": "leapfrog"}, "ensemble": {"equation.c": [1.0, 1.5, 1.2]}},
), ids=("heat", "damped"))  # fmt: skip
def test_steps_of_each_members_own(tables, steps_per_exchange, kernel):
    """Members with other stable steps, through the compiled loop itself: who takes fewer keeps what it has."""
    problem = problem_of(
        **tables,
        grid={"shape": [23, 18], "upper": [2.3, 1.8]},
        initial={"u": "sin(3*x)*cos(2*y)"},
        time={"end": 1.0, "cfl": 0.5},
        decomposition={"steps_per_exchange": steps_per_exchange},
    )
    simulation = simulation_of(problem, devices=2, kernel=kernel)
    dt, counts = np.array([cfl_step(member, {}) for member in problem.members]), np.array([2, 7, 0])
    starts, firsts = np.array([0.3, 0.0, 0.1]), np.array([1, 0, 5])
    fields = simulation.advance(simulation.initial_fields(), StepRange(starts, firsts, dt, counts))
    found = simulation.get(fields, ["u"])["u"]
    for number, alone in enumerate(problem.members):
        own = simulation_of(alone, kernel=kernel)
        given = own.initial_fields(), StepRange(starts[number], firsts[number], dt[number], counts[number])
        assert np.array_equal(found[..., number], own.get(own.advance(*given), ["u"])["u"]), number


ADAPTIVE = {
    "grid": {"shape": [19, 16], "upper": [1.9, 1.6]},
    "equation": {"name": "gray_scott", "D_u": 0.02, "D_v": 0.01, "seed": 1},
    "initial": {"u": "1 - 0.5*exp(-4*(x - 1)**2)", "v": "0.25 + 0.1*noise(seed)"},
    "boundary": {
        "x": "periodic",
        "y": {"lower": {"dirichlet": "0.1*exp(-(20*(t - 0.7))**2)"}, "upper": {"neumann": "k"}},
    },
    "time": {"end": 2.0, "tolerance": 1e-5},
    "output": {"every": 0.9},
    "ensemble": {"equation.F": [0.03, 0.04, 0.5], "equation.D_u": [0.02, 0.1, 0.01]},
}


@pytest.mark.optimized
@pytest.mark.parametrize(
    "kernel, devices, steps", (("shift", 2, "auto"), ("native", 2, "auto"), ("native", 1, "auto"), ("native", 1, 7))
)
def test_each_member_follows_the_tolerance_as_if_it_ran_alone(kernel, devices, steps):
    """Its steps, those it has tried and its bits, also where the steps of a call end before an output."""
    problem = problem_of(**ADAPTIVE, numerics={"integrator": "bs3", "precision": "float64"})
    simulation = simulation_of(problem, devices=devices, kernel=kernel)
    assert (simulation.control.attempt_of_member is None) == (kernel == "shift" or devices == 2)
    stepping = at_start(simulation, Source(), None, Stopwatch())
    landed = []
    while not stepping.finished:
        stepping.advance(lambda state, leap: None, None if steps == "auto" else steps)
        if stepping.schedule.is_output(stepping.clock):
            landed.append(stepping.clock.time)
    assert landed == [0.9, 1.8, 2.0]
    found, clocks = simulation.get(dict(stepping.state.fields), problem.fields), stepping.state.members
    for number, alone in enumerate(problem.members):
        own = simulation_of(alone, kernel=kernel)
        expected, clock = integrated(alone, own)
        assert clocks[number] == clock
        for name in alone.fields:
            assert np.array_equal(found[name][..., number], expected[name]), (number, name)
    assert len({clock.step for clock in clocks}) == 3 and all(clock.rejected for clock in clocks)
    assert stepping.clock.step == sum(clock.step for clock in clocks)
    assert stepping.clock.rejected == sum(clock.rejected for clock in clocks)


def test_clocks_together():
    clocks = [Clock(3, 0.5, 3, 0.5), Clock(7, 0.5, 7, 0.5)]
    assert together(clocks) == Clock(10, 0.5, 10, 0.5)
    assert together([clocks[0], Clock(6, 0.45, 0, 0.0)]) == Clock(9, 0.45, -1, 0.45)


REFUSED = {
    "unequal": (
        {"equation.F": [0.1, 0.2], "equation.k": [0.1]},
        "ensemble.equation.k: expected 2 values, .* but got 1",
    ),
    "no list": ({"equation.F": 0.1}, "ensemble.equation.F: expected a list"),
    "empty": ({"equation.F": []}, "ensemble.equation.F: expected a list"),
    "a text": ({"equation.F": ["x", "y"]}, "ensemble.equation.F: expected a finite number"),
    "another table": ({"grid.shape": [[8], [9]]}, "ensemble.grid.shape: expected a number of the equation"),
    "the equation": ({"equation.name": ["heat", "wave"]}, "ensemble.equation.name: expected a number"),
    "unknown": ({"equation.G": [0.1]}, "equation.G: 'gray_scott' has no such parameter"),
    "a field": ({"initial.w": ["1", "2"]}, "initial.w: unknown field"),
    "a broken text": ({"initial.u": ["1", "2*"]}, "initial.u: the expression cannot be read"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    ensemble, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence):
        problem_of(**{**PATTERN, "ensemble": ensemble})


def test_what_members_must_share():
    for key in ("cfl", "tolerance"):
        with pytest.raises(
            InputError, match=f"diagnostics.every_steps: expected none in an ensemble with time.{key}, .* got 3"
        ):
            problem_of(**{**PATTERN, "time": {"end": 1.0, key: 0.5}, "numerics": {"integrator": "bs3"}})
    waves = {
        "grid": {"shape": [40]}, "equation": {"name": "wave"}, "boundary": {"x": {"cpml": {"width": 8.0}}},
        "ensemble": {"equation.c": [1.0, 2.0]},
    }  # fmt: skip
    with pytest.raises(
        InputError, match="member 1 differs from the first in more than numbers, as if the strength of an absorbing"
    ):
        problem_of(**waves)


def test_a_field_that_is_not_finite_is_told_with_its_member():
    problem = problem_of(**{**OBSTACLE, "ensemble": {"initial.u": ["x", "log(x - 0.2)"]}})
    simulation = simulation_of(problem)
    fields = simulation.initial_fields()
    _, _, broken = simulation.extremes.extremes(fields, problem.parameters, 0.0)
    assert broken.tolist() == [[0, 40]]
    assert first_not_finite(simulation, fields["u"]) == "cell [0, 0] (x = 0.05, y = 0.05) of member 1"


# ---- files -------------------------------------------------------------------------------------------------------------


def write(output, layout, numbers):
    """Snapshots and rows that follow from their numbers."""
    shape = (*layout.members, *layout.grid.shape)
    for n in numbers:
        block = (np.arange(np.prod(shape)).reshape(shape) + 1000 * n).astype(np.float32)
        output.write_snapshot(10 * n, 0.5 * n, {"u": block}, [(0, size) for size in layout.grid.shape])
        rows = [10 * n, 10 * n + 5]
        output.write_rows(
            {"diagnostics": (rows, [0.05 * r for r in rows], {"mass": [np.array([r, -r, 2.0 * r]) for r in rows]})}
        )


@pytest.mark.parametrize("compression", ("none", "gzip"))
def test_a_file_of_an_ensemble_is_cut_and_continued(tmp_path, compression):

    layout = Layout(
        Grid((7, 5), (0.0, 0.0), (7.0, 5.0)), ensemble={"equation.F": (1.0, 2.0, 3.0), "initial.u": ("a", "b", "c")}
    )
    described = Description(layout, ["u"], np.float32, diagnostics=["mass"], compression=compression)
    paths = [tmp_path / "whole.h5", tmp_path / "cut.h5"]
    for path in paths:
        output = OutputFile.create(path, OneProcess(), described)
        write(output, layout, range(4))
        output.close(True)
    output = OutputFile.append(paths[1], OneProcess(), described, step=15)
    write(output, layout, range(2, 4))
    output.close(True)
    with h5py.File(paths[0]) as whole, h5py.File(paths[1]) as cut:
        assert whole["u"].shape == (3, 4, 7, 5) and whole["diagnostics/mass"].shape == (3, 8)
        assert [dim[0].name for dim in whole["u"].dims] == ["/member", "/time", "/x", "/y"]
        assert whole["u"].attrs["coordinates"] == "F initial.u" and whole["F"][()].tolist() == [1.0, 2.0, 3.0]
        for name in ("u", "time", "step", "diagnostics/mass", "diagnostics/step"):
            assert np.array_equal(whole[name][()], cut[name][()]), name
    assert inspect(paths[1]).fields == {"u": np.float32} and inspect(paths[1]).steps == (0, 10, 20, 30)
    if compression == "none":  # what no change touches: every value of every snapshot
        settled = SettledSpans()
        with h5py.File(paths[0]) as file:
            settled.find(file)
        assert sum(stop - start for start, stop in settled.spans) >= 3 * 4 * 7 * 5 * 4
    other = Layout(layout.grid, ensemble={"equation.F": (1.0, 2.0)})
    with pytest.raises(InputError, match=r"has shape \(3, 7, 5\), this run's \(2, 7, 5\)"):
        OutputFile.append(paths[1], OneProcess(), replace(described, layout=other), step=15)


def test_a_kernel_is_timed_on_one_member(monkeypatch):
    timed, problem = [], problem_of(**PATTERN)

    def prepared(block, *arguments, **others):
        timed.append(block.problem)
        return prepared_with(block, *arguments, **others)

    monkeypatch.setattr(backend_choice, "prepared_with", prepared)
    probe(problem, jax.local_devices()[0], "shift")()
    assert len(problem.members) == 3
    assert [(one.members, one.parameters) for one in timed] == [((), problem.members[0].parameters)]


def test_members_share_what_files_give_which_are_opened_once(tmp_path, monkeypatch):
    u, solid = np.random.default_rng(0).random((48, 10)), np.zeros((48, 10), bool)
    solid[5, 3] = True
    np.save(tmp_path / "solid.npy", solid)
    with h5py.File(tmp_path / "start.h5", "w") as file:
        file["u"], file["v"] = u, np.stack([u, 2 * u])  # the last snapshot counts
    problem = problem_of(
        grid={"shape": [48, 10]},
        equation={"name": "gray_scott"},
        initial={"file": str(tmp_path / "start.h5")},
        mask={"solid": str(tmp_path / "solid.npy")},
        ensemble={"equation.F": [0.03, 0.04, 0.05]},
    )
    opened, open_for_reading = [], file_read.open_for_reading
    monkeypatch.setattr(file_read, "open_for_reading", lambda path: opened.append(path) or open_for_reading(path))
    blocks = initial_blocks(problem, [(4, 48), (0, 7)])
    assert opened == [tmp_path / "start.h5"]
    expected = {"u": np.where(solid, 0, u), "v": np.where(solid, 0, 2 * u), "mask.solid": solid}
    for name, field in expected.items():
        here = field[4:, :7].astype(blocks[name].dtype)
        assert np.array_equal(blocks[name], np.stack([here] * 3, -1)), name
