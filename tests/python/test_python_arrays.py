"""Arrays of a Python program as parameters, solid cells, time series, stencils and initial values: the same bits as files."""

import gc
import tomllib
import weakref

import jax
import numpy as np
import pytest
import xarray as xr
from support import hpcstencil

import hpcstencil as hs

SHAPE = (12, 9)
X, Y = np.meshgrid((np.arange(12) + 0.5) / 10, (np.arange(9) + 0.5) / 10, indexing="ij")
SPEED = 1 + 0.3 * np.sin(5 * X) * Y
SOLID = (X - 0.6) ** 2 + (Y - 0.4) ** 2 < 0.02
PULSE = np.exp(-20 * ((X - 0.3) ** 2 + (Y - 0.4) ** 2))
SAMPLES = np.array([1.0, 3.0, -2.0, 0.5])
KERNEL = np.array([[0.0, 1.0, 0.0], [1.0, -4.0, 2.0], [0.0, 1.0, 0.0]])
WAVE = {
    "grid": {"shape": [12, 9], "upper": [1.2, 0.9]}, "equation": {"name": "acoustic", "c": "c.npy"},
    "initial": {"p": "exp(-20*((x - 0.3)**2 + (y - 0.4)**2))"}, "boundary": {"x": {"dirichlet": 0.0}},
    "numerics": {"kernel": "shift"}, "time": {"end": 0.2, "cfl": 0.5}, "output": {"every": 0.1},
}  # fmt: skip
CUSTOM = {
    **WAVE, "equation": {"name": "custom", "k": "k.npy", "g": {"series": "g.npy", "dt": 0.05},
                         "stencils": {"around": "around.npy"}, "rhs": {"u": "0.01*div_grad(k, u) + g*k + 0.1*around(u)"}},
    "initial": {"u": "k + x"}, "time": {"end": 0.1, "dt": 0.01}, "numerics": {"precision": "float64", "kernel": "native"},
}  # fmt: skip
MASKED = {
    **WAVE, "equation": {"name": "heat", "D": "c.npy"}, "initial": {"u": "x"}, "mask": {"solid": "solid.npy"},
}  # fmt: skip
FILES = {"c.npy": SPEED, "k.npy": SPEED.astype(np.float32), "g.npy": SAMPLES, "around.npy": KERNEL, "solid.npy": SOLID}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """The arrays in files of the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, array in FILES.items():
        np.save(name, array)
    return tmp_path


def with_arrays(tables, convert=np.asarray):
    """The tables with arrays in place of the names of files."""
    if isinstance(tables, dict):
        return {key: with_arrays(value, convert) for key, value in tables.items()}
    return convert(FILES[tables]) if isinstance(tables, str) and tables in FILES else tables


class OnlyDlpack:
    """An array that numpy can read by DLPack alone."""

    def __init__(self, array):
        self.array, self.shape = np.array(array), np.shape(array)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def in_xarray(array):
    """A DataArray, transposed where it has the grid's shape."""
    dims = ("x", "y") if array.shape == SHAPE else tuple(f"axis{n}" for n in range(array.ndim))
    return xr.DataArray(array, dims=dims).transpose(*reversed(dims)) if array.shape == SHAPE else xr.DataArray(array)


@pytest.mark.parametrize("tables", [WAVE, CUSTOM, MASKED], ids=["wave", "custom", "masked"])
def test_an_array_gives_the_bits_of_its_file(tables):
    with hs.Simulation(tables) as file, hs.Simulation(with_arrays(tables)) as array:
        first = list(array)[0]
        file.run(output="file.h5")
        array.run(output="array.h5")
        assert array.steps == file.steps  # the largest value rules the step
    with hs.open("file.h5") as one, hs.open("array.h5") as other:
        assert one.attrs["arrays_sha256"] == other.attrs["arrays_sha256"] != "{}"
        assert len(np.unique(one[first].values[-1])) > 20
        for name in one.data_vars:
            assert one[name].values.tobytes() == other[name].values.tobytes(), name


@pytest.mark.parametrize("convert", [jax.numpy.asarray, in_xarray, OnlyDlpack], ids=["jax", "xarray", "dlpack"])
def test_arrays_of_other_libraries_are_taken(convert):
    tables = {**CUSTOM, "mask": {"solid": "solid.npy"}} if convert is OnlyDlpack else CUSTOM
    tables = tables if convert is not OnlyDlpack else MASKED
    with hs.Simulation(tables) as file, hs.Simulation(with_arrays(tables, convert)) as array:
        file.step(5)
        array.step(5)
        assert array.state["u"].values.tobytes() == file.state["u"].values.tobytes()


def test_weights_are_transposed_by_the_names_of_their_dimensions():
    weights = np.arange(9.0).reshape(3, 3)
    found = []
    for given in (weights, xr.DataArray(weights.T, dims=("y", "x")), xr.DataArray(weights)):
        with hs.Simulation({**CUSTOM, "equation": {**CUSTOM["equation"], "stencils": {"around": given}}}) as sim:
            sim.step(3)
            found.append(sim.state["u"].values.tobytes())
    assert found[0] == found[1] == found[2]


def test_an_array_may_replace_what_an_input_names(files):
    with hs.Simulation(WAVE) as sim:
        (files / "input.toml").write_text(sim.to_toml())
        sim.step(5)
        with hs.Simulation.from_toml("input.toml", **{"equation.c": 2 * SPEED, "initial.p": PULSE}) as fast:
            fast.step(5)
            assert fast.time < 0.6 * sim.time
        with hs.Simulation.from_toml("input.toml", **{"equation.c": SPEED}) as same:
            same.step(5)
            assert same.state.identical(sim.state)


def test_the_function_of_a_simulation_has_its_arrays():
    tables = {**MASKED, "time": {"end": 0.1, "dt": 1e-3}}
    with hs.Simulation(with_arrays(tables)) as sim:
        start = sim.state
        end = sim.function(4)(start)
        sim.step(4)
        assert np.asarray(end["u"]).tobytes() == sim.state["u"].values.tobytes()


def test_arrays_and_functions_are_initial_values():
    """An equation that refuses a state of zeros shows that they are there from the beginning."""
    gas = {
        **WAVE, "equation": {"name": "euler"}, "boundary": {}, "mask": {"solid": "(x - 0.6)**2 + (y - 0.4)**2 < 0.02"},
        "initial": {"rho": "1 + x", "E": "2.5 + y"},
    }  # fmt: skip
    with hs.Simulation(gas) as text:
        dataset = text.state
        text.run()
        end = text.state
    ways = {
        "arrays": {"rho": dataset["rho"].values, "E": jax.numpy.asarray(dataset["E"].values)},
        "functions": {"rho": lambda x, y: 1 + x, "E": lambda x, y: 2.5 + y},
        "an array and an expression": {"rho": dataset["rho"].T, "E": "2.5 + y"},
        "a dataset": dataset,
    }
    for way, initial in ways.items():
        with hs.Simulation({**gas, "initial": initial}) as sim:
            with pytest.raises(hs.InputError, match="to_toml: rho was assigned as values"):
                sim.to_toml()
            assert sim.state["rho"].values[6, 4] == 0  # solid
            sim.run()
            assert sim.state.identical(end), way


def test_initial_values_of_members_and_of_methods_with_a_memory():
    several = {**MASKED, "ensemble": {"equation.seed": [1, 2]}, "mask": {"solid": "x > 0.9"}}
    several["equation"] = {"name": "heat", "D": 0.1, "seed": 1}
    both = np.stack([X, Y])
    tables = {**several, "ensemble": {"equation.D": [0.1, 0.2]}, "equation": {"name": "heat"}}
    with hs.Simulation({**tables, "initial": {"u": both}}) as sim:
        shown = sim.state["u"].values
        assert np.array_equal(shown[1], np.where(X > 0.9, 0, Y).astype(np.float32))
    remembering = {**WAVE, "equation": {"name": "heat", "D": 0.1}, "numerics": {"kernel": "shift", "integrator": "ab2"}}
    with (
        hs.Simulation({**remembering, "initial": {"u": "x"}}) as text,
        hs.Simulation({**remembering, "initial": {"u": X}}) as array,
    ):
        text.step(6)
        array.step(6)
        assert array.state.identical(text.state)


def test_the_rest_of_the_fields_may_come_from_a_file():
    tables = {**WAVE, "equation": {"name": "acoustic"}}
    with hs.Simulation(tables) as sim:
        sim.run(output="start.h5")
        end = sim.state
    with hs.Simulation({**tables, "initial": {"file": "start.h5", "p": PULSE}}) as sim:
        assert np.array_equal(sim.state["p"], PULSE.astype(np.float32))
        assert np.array_equal(sim.state["q"], end["q"])


def test_the_array_is_not_kept_and_programs_are_shared():
    array = SPEED.copy()
    gone = weakref.ref(array)
    sim = hs.Simulation({**WAVE, "equation": {"name": "acoustic", "c": array}, "initial": {"p": PULSE}})
    sim.step()
    array[:] = 0  # the simulation has read it
    del array
    gc.collect()
    assert gone() is None
    with hs.Simulation({**WAVE, "equation": {"name": "acoustic", "c": 2 * SPEED}}) as other:
        assert other._program is sim._program
    sim.close()


def test_a_run_of_arrays_is_continued_from_files_of_the_same_values(files, monkeypatch, capsys):
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    with hs.Simulation(with_arrays(CUSTOM)) as sim:
        sim.run(output="run.h5")
    with hs.Simulation({**CUSTOM, "time": {"end": 0.2, "dt": 0.01}}) as sim:
        sim.run(output="whole.h5")
    with hs.open("run.h5") as file:
        text = file.attrs["input"]
    assert tomllib.loads(text)["equation"]["k"] == "array in memory"
    (files / "input.toml").write_text(text)
    command = ("run", "input.toml", "--output", "run.h5", "--resume", "--set", "time.end=0.2", "--quiet")
    status, _, err = hpcstencil(monkeypatch, capsys, *command)
    assert (
        status == 2 and 'equation.k: expected a file with numbers, but got "array in memory", which stands for' in err
    )
    np.save("moved.npy", FILES["k.npy"])
    text = text.replace('k = "array in memory"', 'k = "moved.npy"')
    (files / "input.toml").write_text(text.replace('series = "array in memory"', 'series = "g.npy"'))
    np.save("moved.npy", 2 * FILES["k.npy"])
    status, _, err = hpcstencil(monkeypatch, capsys, *command)
    assert status == 2 and "equation.k: " in err and "if that is intended, use --set equation.k=..." in err
    np.save("moved.npy", FILES["k.npy"])
    status, _, err = hpcstencil(monkeypatch, capsys, *command)
    assert status == 0, err
    with hs.open("run.h5") as one, hs.open("whole.h5") as other:
        assert one["u"].values.tobytes() == other["u"].values.tobytes()


def spoiled(value):
    array = SPEED.copy()
    array[3, 4] = value
    return array


def given(table, **entries):
    return {**WAVE, table: {**WAVE.get(table, {}), **entries}}


REFUSED = {
    "a shape": (given("equation", c=SPEED.T), r"equation.c: .* shape \(12, 9\), but got \(9, 12\)"),
    "a lost value": (given("equation", c=spoiled(np.nan)), r"equation.c: expected finite .* nan in cell \[3, 4\]"),
    "complex numbers": (given("equation", c=SPEED * 1j), "equation.c: expected real numbers, but got ndarray of complex128"),
    "texts": (given("equation", c=np.array([["a"]])), "equation.c: expected real numbers"),
    "nothing": (given("equation", c=None), "equation.c: expected an array, but got None; give every process the whole array"),
    "a dataset": (given("equation", c=xr.Dataset({"c": ("x", [1.0])})), "equation.c: expected one array, but got Dataset"),
    "other dimensions": (
        given("equation", c=xr.DataArray(SPEED, dims=("x", "depth"))), "equation.c: expected the dimensions x, y, z, but"
    ),
    "an unknown parameter": (given("equation", speed=SPEED), "equation.speed: 'acoustic' has no such parameter"),
    "samples": (given("equation", source={"series": SPEED, "dt": 1.0}), r"equation.source: it has shape \(12, 9\), ex"),
    "a lost sample": (
        given("equation", source={"series": [1, 2] * np.array(np.inf), "dt": 1.0}), "equation.source: .* got inf in sample 0"
    ),
    "a mask": (given("mask", solid=SOLID[:, 1:]), r"mask.solid: .* shape \(12, 9\), but got \(12, 8\)"),
    "a mask in the other order": (given("mask", solid=SOLID.T), r"but got \(9, 12\); give its transpose"),
    "all solid": (given("mask", solid=np.ones(SHAPE, bool)), "mask.solid: expected some cells that are not solid"),
    "an initial shape": (given("initial", p=np.zeros((3, 3))), r"initial.p: expected the shape \(12, 9\) of the whole grid"),
    "a lost initial value": (given("initial", p=spoiled(np.nan)), r"initial.p: expected finite numbers .* in cell \[3, 4\]"),
    "an unknown field": (given("initial", h=PULSE), 'initial.h: unknown field "h"'),
    "a function": (given("initial", p=lambda x, y: np.zeros(3)), "initial.p: expected a function of .* whose values broadcast"),
    "masked weights": (
        {**CUSTOM, "equation": {**CUSTOM["equation"], "stencils": {"around": np.ma.masked_array(np.ones((3, 3)), np.eye(3))}}},
        "equation.stencils.around: expected a value in every cell, but got a masked array",
    ),
    "an array elsewhere": (given("time", end=SPEED), "time.end: expected a positive, finite number"),
    "members": (given("ensemble", **{"equation.c": [SPEED, SPEED]}), "ensemble.equation.c: expected a finite number"),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_what_does_not_fit_is_one_sentence(why):
    tables, sentence = REFUSED[why]
    with pytest.raises(hs.InputError, match=sentence) as told:
        hs.Simulation(tables)
    assert "\n" not in str(told.value)


def test_no_toml_holds_an_array():
    with (
        hs.Simulation(with_arrays(WAVE)) as sim,
        pytest.raises(hs.InputError, match="to_toml: equation.c is an array") as told,
    ):
        sim.to_toml()
    assert "save it with numpy.save" in str(told.value)
