"""Initial fields from files, one file for each field."""

from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcstencil as hs
from hpcstencil.config.reader import from_mapping, load
from hpcstencil.problem.build import build
from hpcstencil.simulation.initial_state import initial_blocks
from hpcstencil.validation.errors import InputError

VALUES = np.random.default_rng(4).random((12, 9))
GRAY_SCOTT = {
    "grid": {"shape": [12, 9]},
    "equation": {"name": "gray_scott", "D_u": 0.1, "D_v": 0.05, "F": 0.03, "k": 0.06},
    "initial": {"u": "u.npy", "v": "0.2"},
    "time": {"end": 1.0, "dt": 0.1},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("u.npy", VALUES)
    with h5py.File("u.h5", "w") as file:
        file["of/u"] = VALUES.astype(np.float32)
    return tmp_path


def blocks(ranges=((0, 12), (0, 9)), **changes):
    return initial_blocks(build(from_mapping({**GRAY_SCOTT, **changes}, Path.cwd())), ranges)


@pytest.mark.parametrize("file", ["u.npy", "u.h5:of/u"])
def test_a_field_has_the_values_of_its_file(folder, file):
    found = blocks(initial={"u": file, "v": "0.2"})
    assert (found["u"] == VALUES.astype(np.float32)).all()
    assert (found["v"] == np.float32(0.2)).all()
    part = blocks(((3, 8), (2, 9)), initial={"u": file})
    assert (part["u"] == VALUES.astype(np.float32)[3:8, 2:9]).all() and (part["v"] == 0).all()


def test_solid_cells_are_0_and_members_share_a_file(folder):
    found = blocks(mask={"solid": "x < 4"})
    assert (found["u"][:4] == 0).all() and (found["u"][4:] == VALUES.astype(np.float32)[4:]).all()
    found = blocks(ensemble={"equation.F": [0.03, 0.04]})
    assert (found["u"] == VALUES.astype(np.float32)[..., None]).all() and found["u"].shape == (12, 9, 2)


def test_values_on_walls_are_those_of_the_conditions(folder):
    """Also those of a field on faces whose initial values come from a file."""
    channel = {
        "equation": {"name": "shallow_water", "g": 9.81},
        "boundary": {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": 0.25}}},
        "initial": {"h": "1.0", "u": "u.npy"},
    }
    found = blocks(**channel)
    assert (found["u"][0] == 0.25).all()
    assert (found["u"][1:] == VALUES.astype(np.float32)[1:]).all()


def test_the_gradient_is_that_of_an_array_from_python(folder):
    wanted = {
        **GRAY_SCOTT,
        "numerics": {"precision": "float64"},
        "objective": {"J": "integral(u*v)"},
        "gradient": {"of": ["initial.u"]},
    }
    with (
        hs.Simulation(wanted) as from_file,
        hs.Simulation({**wanted, "initial": {"u": VALUES, "v": "0.2"}}) as from_array,
    ):
        (value, gradient), (expected, other) = from_file.value_and_gradient(), from_array.value_and_gradient()
    assert value == expected
    assert (gradient["initial.u"] == other["initial.u"]).all()


def test_an_expression_replaces_a_file(folder):
    with hs.Simulation(GRAY_SCOTT) as sim:
        assert (sim["u"].values == VALUES.astype(np.float32)).all()
        sim["u"] = "x"
        assert 'u = "x"' in sim.to_toml()
        assert (sim["u"].values[:, 0] == np.arange(12) + 0.5).all()


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"grid": {"shape": [9, 12]}}, r"^initial.u: .*u.npy: it has shape \(12, 9\), expected \(9, 12\)"),
        ({"initial": {"u": "u.h5:v"}}, "^initial.u: .*u.h5: no dataset 'v'; it holds of"),
        ({"initial": {"u": "u.png"}}, "^initial.u: expected an expression, or a file with numbers"),
        ({"ensemble": {"initial.u": ["u.npy", "1"]}}, '^ensemble.initial.u: expected expressions, but got "u.npy"'),
        ({"initial": {"u": "u.npy + 1"}}, "^initial.u: this is the name of a file, not an expression"),
    ],
)
def test_files_that_do_not_fit_are_refused(folder, changes, told):
    with pytest.raises(InputError, match=told):
        blocks(**changes)


def test_values_that_are_not_finite_are_refused(folder):
    np.save("u.npy", np.where(VALUES > 0.9, np.nan, VALUES))
    with pytest.raises(InputError, match="^initial.u: .*u.npy: expected finite numbers, but got nan in cell"):
        blocks()


def test_files_are_relative_to_the_input(folder):
    (folder / "inputs").mkdir()
    Path("inputs/i.toml").write_text(
        'grid.shape = [12, 9]\ntime = { end = 1.0, dt = 0.1 }\ninitial.u = "../u.npy"\nequation = { name = "heat", D = 1.0 }\n'
    )
    config = load(Path("inputs/i.toml"), [])
    assert config.initial.arrays["u"].path == folder / "u.npy"
