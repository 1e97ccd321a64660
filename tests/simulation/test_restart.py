"""What a checkpoint stores is all that a run continues from: a run that is put together again from its state, on another
decomposition, has the bits of one that was never interrupted."""

from dataclasses import replace

import h5py
import jax
import numpy as np
import pytest
from probed import file_of
from support import problem_of, random_block, simulation_of

from hpcstencil.checkpoint.checkpoint import write_checkpoint
from hpcstencil.checkpoint.paths import list_checkpoints
from hpcstencil.numerics.schedule import Clock
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.simulation.restart import Options, source_of
from hpcstencil.simulation.state import State, join, split
from hpcstencil.validation.errors import InputError

GRID = {"shape": [29, 23], "upper": [2.9, 2.3]}
CUSTOM = {"name": "custom", "rhs": {"u": "laplacian(u) - x*dx(u)"}}
PARTS = {
    "super time stepping": {"equation": CUSTOM, "numerics": {"integrator": "rkl2", "stages": 5}},
    "leapfrog": {"equation": {"name": "schroedinger"}, "numerics": {"integrator": "leapfrog"}},
    "low storage": {"equation": {"name": "fitzhugh_nagumo"}, "numerics": {"integrator": "lsrk4"}},
    "layers": {
        "equation": {"name": "acoustic", "source": 1.0, "xs": 1.0, "ys": 1.1},
        "boundary": {"x": {"cpml": {"width": 0.5}}, "y": {"sponge": {"width": 0.5, "strength": 3.0}}},
    },
    "damped leapfrog": {
        "equation": {"name": "acoustic", "source": 1.0, "xs": 1.0, "ys": 1.1}, "numerics": {"integrator": "leapfrog"},
        "boundary": {"x": {"cpml": {"width": 0.5}}, "y": {"sponge": {"width": 0.5, "strength": 3.0}}},
    },
    "a multistep method": {
        "equation": {"name": "shallow_water", "g": 1.0, "nu": 0.1}, "numerics": {"integrator": "ab2", "epsilon": 0.1},
        "boundary": {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": "t"}}},
    },
    "staggered layers": {"equation": {"name": "maxwell", "source": 1.0}, "boundary": {"x": {"cpml": {"width": 0.5}}}},
    "an ensemble": {"equation": {"name": "gray_scott"}, "ensemble": {"equation.F": [0.03, 0.04]},
                    "numerics": {"integrator": "ssprk2"}},
    "solid cells": {
        "equation": CUSTOM, "mask": {"solid": "(x - 1.4)**2 + (y - 1)**2 < 0.3", "surface": {"value": "t"}},
        "numerics": {"integrator": "euler"},
    },
    "a tolerance": {
        "equation": {"name": "gray_scott", "D_u": 0.2, "D_v": 0.1}, "numerics": {"integrator": "bs3"},
        "time": {"end": 5.0, "tolerance": 1e-4},
    },
}  # fmt: skip


def on(simulation, state, steps):
    """The state some steps later."""
    fields, clock = dict(state.fields), state.clock
    for _ in range(steps):
        if simulation.control is not None:
            fields, clock = simulation.control.step(fields, clock)
        else:
            leap = simulation.problem.schedule().leap(clock, 1e-4, 1)
            fields = simulation.advance(fields, leap.steps)
            clock = leap.after
    return replace(state, clock=clock, fields=fields)


@pytest.mark.parametrize("part", PARTS)
def test_the_state_is_all_there_is(part):
    tables = {"grid": GRID, "time": {"end": 1.0, "dt": 1e-4}, **PARTS[part]}
    problem = problem_of(**tables)
    whole, other = simulation_of(problem), simulation_of(problem_of(**tables), devices=2)
    start = random_block(problem, whole)
    expected = on(whole, State(Clock(), whole.put(start)), 7)
    arrays, scalars = split(on(whole, State(Clock(), whole.put(start)), 3), whole.block)
    template = State(Clock(), dict.fromkeys(problem.fields, 0))
    found = on(other, join(template, other.put(arrays), scalars), 4)
    assert replace(found, fields={}) == replace(expected, fields={})
    for name in problem.fields:
        assert np.array_equal(other.block(found.fields[name]), whole.block(expected.fields[name])), name
    assert all(isinstance(field, jax.Array) for field in found.fields.values())


@pytest.mark.parametrize(
    "checkpoints, example", [(["000000000010"], "000000000010"), ([], "STEP")], ids=["with", "without"]
)
def test_an_output_given_as_a_checkpoint_is_refused_with_an_example(tmp_path, checkpoints, example):
    config = problem_of(grid=GRID, equation=CUSTOM, time={"end": 1.0, "dt": 1e-4}).config
    for step in checkpoints:
        (tmp_path / f"other.checkpoint.{step}.h5").touch()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.attrs["kind"] = "output"
        file["time"], file["step"] = np.zeros(1), np.zeros(1, int)
    given = Options(tmp_path / "run.h5", restart=tmp_path / "other.h5")
    expected = f"expected a checkpoint, such as other.checkpoint.{example}.h5, but got an output file; give"
    with pytest.raises(InputError, match=expected):
        source_of(config, {}, given, OneProcess())


def test_checkpoints_without_their_output_are_kept(tmp_path):
    config = problem_of(grid=GRID, equation=CUSTOM, time={"end": 1.0, "dt": 1e-4}).config
    kept = tmp_path / "run.checkpoint.000000000010.h5"
    kept.touch()
    with pytest.raises(
        InputError, match="000000000010.h5: exists already, but its output run.h5 is gone; continue from it"
    ):
        source_of(config, {}, Options(tmp_path / "run.h5"), OneProcess())
    fresh = source_of(config, {}, Options(tmp_path / "run.h5", overwrite=True), OneProcess())
    assert kept.exists() and fresh.checkpoint is None


def test_a_file_that_is_no_checkpoint_is_told(tmp_path):
    config = problem_of(grid=GRID, equation=CUSTOM, time={"end": 1.0, "dt": 1e-4}).config
    (tmp_path / "text.h5").write_text("some text")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["u"] = np.zeros(3)
    renamed = write_checkpoint(
        tmp_path / "run.h5", OneProcess(), config.grid, step=1, time=0.1, arrays={"u": np.zeros(config.grid.shape)},
        ranges=[(0, n) for n in config.grid.shape], attributes={}, keep=1,
    ).rename(tmp_path / "renamed.h5")  # fmt: skip
    with renamed.open("r+b") as file:
        file.seek(8)
        file.write(bytes(1000))
    for name, words in (
        ("none.h5", "no such file"), ("text.h5", "not an HDF5 file"), ("other.h5", "neither an output nor a checkpoint"),
        ("renamed.h5", "its description is damaged; take an older checkpoint"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"{name}: {words}"):
            source_of(config, {}, Options(tmp_path / "new.h5", restart=tmp_path / name), OneProcess())


def test_the_memory_of_a_wider_layer_goes_on(tmp_path):
    """Native code must not take memory fields as 0 outside the layers of a run that continues one with wider layers."""
    given = {
        "grid": {"shape": [96, 24]},
        "equation": {"name": "wave"},
        "initial": {"u": "exp(-(x - 20)**2/20)"},
        "boundary": {"x": {"cpml": {"width": 32.0}}},
        "numerics": {"precision": "float64", "integrator": "rk4"},
        "time": {"end": 12.0, "dt": 0.2},
    }
    ends = {}
    for kernel in ("shift", "native"):
        here = {**given, "numerics": {**given["numerics"], "kernel": kernel}}
        begun = file_of(tmp_path / f"{kernel}.h5", {**here, "checkpoint": {"every_steps": 30}})
        checkpoint = list_checkpoints(begun)[0]
        later = {**here, "time": {"end": 16.0, "dt": 0.2}, "boundary": {"x": {"cpml": {"width": 4.0}}}}
        changed = ("boundary.x={cpml={width=4.0}}", "time.end=16.0")
        path = file_of(tmp_path / f"{kernel} later.h5", later, restart=checkpoint, overrides=changed)
        with h5py.File(path) as file:
            ends[kernel] = file["u"][-1]
    assert np.allclose(ends["native"], ends["shift"], rtol=0, atol=1e-12)


def test_the_advice_about_a_changed_boundary_works(tmp_path):
    given = {"grid": {"shape": [16, 12]}, "equation": {"name": "heat"}, "time": {"end": 1.0, "dt": 0.1}}
    given |= {"initial": {"u": "x"}, "boundary": {"x": {"neumann": 0.0}}}
    begun = file_of(tmp_path / "run.h5", {**given, "checkpoint": {"every_steps": 4}})
    later = {**given, "boundary": {"x": {"neumann": 0.5}}}
    restart = {"restart": list_checkpoints(begun)[0]}
    with pytest.raises(InputError, match=r"use --set 'boundary\.x=\{\.\.\.\}' with all its conditions"):
        file_of(tmp_path / "later.h5", later, **restart)
    file_of(tmp_path / "later.h5", later, overrides=("boundary.x={neumann=0.5}",), **restart)
