"""Parameters read from files: the steps are those of the same parameter as an expression."""

import h5py
import numpy as np
import pytest
from support import hpcstencil, integrate, problem_of, simulation_of

from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.warnings import warnings_of
from hpcstencil.simulation.initial_state import initial_blocks
from hpcstencil.symbolic.numpy_evaluate import block_values
from hpcstencil.validation.errors import InputError

GRID = {"shape": [14, 11], "lower": [0.0, 0.0], "upper": [1.0, 1.0]}
PULSE = "exp(-30*((x - 0.4)**2 + (y - 0.5)**2))"
SPEED = "1 + 0.2*cos(2*pi*x)*cos(2*pi*y)"  # its mirror image in every wall is itself
WALLS = {"x": {"dirichlet": 0.5}, "y": {"neumann": 0.0}}
WAVE = {"name": "acoustic", "c": SPEED, "rho": "2 + cos(2*pi*x)"}
LAYERS = {"name": "acoustic", "c": "1 + 0.2*(x > 0.5)", "rho": "2 - (x > 0.5)"}
CPML = {"x": {"cpml": {"width": 0.3}}, "y": {"cpml": {"width": 0.3}}}
CUSTOM = {
    "name": "custom", "k": SPEED, "g": "x*y",
    "rhs": {"u": "div_grad(k, u) + 0.1*dx(k)*dx(u) - g*u*v", "v": "laplacian(k*v) + g"},
}  # fmt: skip
ROWS = {
    "heat": ({"name": "heat", "D": SPEED}, "u", {"boundary": WALLS}),
    "heat-4": ({"name": "heat", "D": SPEED}, "u", {"numerics": {"order": 4}}),
    "acoustic": (WAVE, "p", {"boundary": WALLS}),
    "acoustic-open": (WAVE | {"c": "1 + 0.2*y"}, "p", {"boundary": {"x": "open", "y": {"dirichlet": 0.0}}}),
    "acoustic-8": (WAVE, "p", {"numerics": {"order": 8}, "boundary": {"x": "periodic", "y": "periodic"}}),
    "acoustic-cpml": (LAYERS, "p", {"boundary": CPML}),
    "acoustic-cpml-leapfrog": (LAYERS, "p", {"boundary": CPML, "numerics": {"integrator": "leapfrog"}}),
    "wave-leapfrog": ({"name": "wave", "c": SPEED}, "u", {"numerics": {"integrator": "leapfrog"}, "boundary": WALLS}),
    "custom": (CUSTOM, "u", {"boundary": WALLS}),
    "custom-ab2": (CUSTOM, "u", {"numerics": {"integrator": "ab2"}}),
    "custom-tolerance": (CUSTOM, "u", {"numerics": {"integrator": "dopri5"}, "time": {"end": 0.01, "tolerance": 1e-6}}),
    "mask": (
        {"name": "heat", "D": SPEED}, "u",
        {"mask": {"solid": "(x - 0.5)**2 + (y - 0.5)**2 < 0.04", "surface": {"value": 2.0}}, "boundary": WALLS},
    ),
    "wall-value": (
        {"name": "custom", "g": "1 + y", "rhs": {"u": "laplacian(u)"}}, "u",
        {"boundary": {"x": {"dirichlet": "g"}, "y": "periodic"}},
    ),
}  # fmt: skip


def tables(row, folder=None, **more):
    """The input of a row; with a ``folder``, its expressions become files there."""
    equation, field, rest = ROWS[row]
    given = {
        "grid": GRID, "equation": equation, "initial": {field: PULSE},
        "time": {"end": 0.004, "dt": 4e-4}, "boundary": {"x": "periodic", "y": "periodic"}, **rest, **more,
    }  # fmt: skip
    given["numerics"] = {"precision": "float64", **given.get("numerics", {})}
    if folder is not None:
        texts = {name: text for name, text in equation.items() if isinstance(text, str) and name != "name"}
        given["equation"] = equation | {name: in_file(folder, name, text) for name, text in texts.items()}
    return given


def in_file(folder, name, text):
    """The values of an expression in a file: the name of the file and, in HDF5, of the dataset."""
    problem = problem_of(grid=GRID, equation={"name": "heat"}, initial={"u": text})
    grid = problem.config.grid
    values = block_values(problem.initial["u"], grid, [(0, n) for n in grid.shape], {}, np.dtype(np.float64))
    if name == "rho":
        with h5py.File(folder / "model.h5", "w") as file:
            file["medium/rho"] = values
        return f"{folder / 'model.h5'}:medium/rho"
    np.save(folder / f"{name}.npy", values)
    return str(folder / f"{name}.npy")


# How a kernel reads a parameter depends on the operators, the boundaries and the method. CI runs every row with slices, and of
# the other kernels one row of each kind.
KERNELS = {
    "shift": {*ROWS},
    "native": {"heat-4", "acoustic-open", "acoustic-cpml-leapfrog", "custom", "custom-tolerance", "mask", "wall-value"},
    "conv": {"acoustic-8", "custom", "mask"},
}


@pytest.mark.parametrize("row, kernel", [
    pytest.param(row, kernel, marks=() if row in rows else pytest.mark.long)
    for kernel, rows in KERNELS.items() for row in ROWS
])  # fmt: skip
def test_a_file_gives_the_steps_of_its_expression(row, kernel, tmp_path):
    expected = integrate(problem_of(**tables(row)), kernel)
    problem = problem_of(**tables(row, tmp_path))
    found = integrate(problem, kernel)
    assert problem.given
    for name in problem.shown:
        assert np.abs(found[name]).max() > 1e-4
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=2e-13 * np.abs(expected[name]).max())


def test_numbers_of_the_grid_give_the_same_bits(tmp_path):
    row = tables("heat") | {"boundary": {"x": "periodic", "y": "periodic"}}
    file = tables("heat", tmp_path) | {"boundary": {"x": "periodic", "y": "periodic"}}
    for kernel in ("shift", "native"):
        expected, found = (integrate(problem_of(**given), kernel)["u"] for given in (row, file))
        assert np.array_equal(expected, found)


def test_on_faces_the_mean_is_taken(tmp_path):
    """A field on faces meets the mean of the values at the two centres beside it."""
    equation = {"name": "custom", "k": str(tmp_path / "k.npy"), "rhs": {"u": "mean_x(k*mean_x(u))"}}
    k = np.arange(1.0, 9.0)
    np.save(tmp_path / "k.npy", k)
    problem = problem_of(
        grid={"shape": [8]}, equation=equation, initial={"u": "x"},
        numerics={"precision": "float64", "integrator": "euler"}, boundary={"x": "periodic"},
    )  # fmt: skip
    simulation = simulation_of(problem)
    u = simulation.get(simulation.initial_fields(), ["u"])["u"]
    after = simulation.get(simulation.advance(simulation.initial_fields(), StepRange(0.0, 0, 1.0, 1)), ["u"])["u"]
    face = (k + np.roll(k, 1)) / 2 * (u + np.roll(u, 1)) / 2  # at the lower face of each cell
    np.testing.assert_allclose(after - u, (face + np.roll(face, -1)) / 2, rtol=1e-13)


def test_an_initial_state_may_use_it(tmp_path):
    given = tables("heat", tmp_path, initial={"u": "2*D + x"})
    problem = problem_of(**given)
    block = [(3, 9), (0, 11)]
    blocks = initial_blocks(problem, block)
    x = problem.config.grid.centres(0, 3, 9)[:, None]
    np.testing.assert_allclose(blocks["u"], 2 * np.load(tmp_path / "D.npy")[3:9] + x, rtol=1e-15)


def test_check_judges_a_step_whose_initial_state_uses_it(tmp_path):
    custom = {"name": "custom", "D": str(tmp_path / "D.npy"), "rhs": {"u": "u*laplacian(u) + 0*D"}}
    in_file(tmp_path, "D", SPEED)
    given = tables("heat", initial={"u": "D"}) | {"equation": custom, "time": {"end": 1.0, "dt": 0.1}}
    assert "blow up" in warnings_of(problem_of(**given))[0]


def test_a_condition_of_its_own(tmp_path):
    """A parameter from a file is an inner result, which [boundary.operators] may give a condition."""
    np.save(tmp_path / "k.npy", np.ones(8))
    equation = {"name": "custom", "k": str(tmp_path / "k.npy"), "rhs": {"u": "laplacian(k)"}}
    walls = {"x": {"neumann": 0.0}, "operators": {"k": {"dirichlet": 3.0}}}
    for kernel in ("shift", "native"):
        problem = problem_of(
            grid={"shape": [8]}, equation=equation, boundary=walls, time={"end": 1.0, "dt": 1.0},
            numerics={"precision": "float64", "integrator": "euler"},
        )  # fmt: skip
        assert integrate(problem, kernel)["u"].tolist() == [4.0, *[0.0] * 6, 4.0]  # (2*3 - 1) - 2 + 1


def test_the_stable_step_follows_the_largest_value(tmp_path):
    given = tables("heat", tmp_path, time={"end": 0.1, "dt": 0.002})
    (warning,) = warnings_of(problem_of(**given))
    assert "beyond the stable step" in warning
    custom = tables("custom", tmp_path, time={"end": 0.1, "dt": 0.01})
    assert "blow up" in warnings_of(problem_of(**custom))[0]


def broken(values, folder):
    np.save(folder / "D.npy", values)
    return str(folder / "D.npy")


NOT_FINITE = np.ones(GRID["shape"])
NOT_FINITE[3, 7] = np.nan


@pytest.mark.parametrize("value, words", [
    (lambda folder: broken(np.ones((11, 14)), folder), r"equation.D: .*D.npy: it has shape \(11, 14\), expected \(14, 11\)"),
    (lambda folder: broken(NOT_FINITE, folder), r"equation.D: .*expected finite numbers, but got nan in cell \[3, 7\]"),
    (lambda folder: broken(np.full(GRID["shape"], 1e39), folder), "equation.D: expected values that float32 can hold"),
    (lambda folder: "D.h5", 'equation.D: expected an expression, or a file with numbers, "FILE.npy" or "FILE.h5:DATASET"'),
    (lambda folder: "D.png", 'equation.D: expected an expression, or a file with numbers'),
    (lambda folder: f"{folder}/none.h5:D", "equation.D: .*none.h5: no such file"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(value, words, tmp_path):
    given = tables("heat", numerics={"precision": "float32"})
    given["equation"] = {"name": "heat", "D": value(tmp_path)}
    given["numerics"]["precision"] = "float32"
    with pytest.raises(InputError, match=words):
        problem_of(**given)


def test_another_parameter_cannot_use_it(tmp_path):
    given = tables("heat", tmp_path)
    equation = {"name": "custom", "D": given["equation"]["D"], "k": "2*D", "rhs": {"u": "k*D*laplacian(u)"}}
    words = 'equation.k: expected no other parameters than numbers in "2\\*D", but D is an array; compute the values with NumPy'
    with pytest.raises(InputError, match=words):
        problem_of(**given | {"equation": equation})
    with pytest.raises(InputError, match="but D is an expression; write it into rhs"):
        problem_of(**given | {"equation": equation | {"D": "1 + x"}})


def test_the_suffix_may_be_in_capitals(tmp_path):
    with h5py.File(tmp_path / "MODEL.H5", "w") as file:
        file["D"] = np.full(GRID["shape"], 0.25)
    given = tables("heat") | {"equation": {"name": "heat", "D": f"{tmp_path}/MODEL.H5:D"}}
    assert problem_of(**given).bounds == {"D": 0.25}


def test_a_mask_cannot_use_it(tmp_path):
    with pytest.raises(InputError, match="mask.solid: expected no parameter that is read from a file, but got D"):
        problem_of(**tables("heat", tmp_path, mask={"solid": "D > 1"}))


def test_check_names_the_file_and_its_values(tmp_path, monkeypatch, capsys):
    problem_of(**tables("heat", tmp_path))
    text = (
        f'[grid]\nshape = [14, 11]\nupper = [1.0, 1.0]\n[equation]\nname = "heat"\nD = "{tmp_path / "D.npy"}"\n'
        "[time]\nend = 1e-3\ndt = 1e-4\n"
    )
    (tmp_path / "input.toml").write_text(text)
    status, out, _ = hpcstencil(monkeypatch, capsys, "check", tmp_path / "input.toml")
    assert status == 0
    assert f"parameter D           14 x 11 values of {tmp_path / 'D.npy'}, from 0.8" in out
