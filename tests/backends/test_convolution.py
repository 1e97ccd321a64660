"""Stencils of the input's own, against sums in NumPy."""

import numpy as np
import pytest
from support import problem_of, simulation_of, stepped

from hpcstencil.backends.registry import BACKENDS
from hpcstencil.numerics.finite_differences import UNROLLED, Stencil, centred
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.validation.errors import InputError

SHAPE = (43, 37)
PADDED = {"periodic": "wrap", "wall": "symmetric"}  # numpy's words for the ghost cells


def weights(*counts):
    """Random weights without symmetry, of which some are 0."""
    drawn = np.random.default_rng(sum(counts)).normal(size=counts)
    drawn[np.abs(drawn) < 0.2] = 0.0
    return drawn / np.abs(drawn).sum()


def convolved(w, u, ends):
    """Σ_j w_j u(x + o_j), with ghost cells as ``ends`` (per axis) gives them."""
    for axis, (end, count) in enumerate(zip(ends, w.shape, strict=True)):
        u = np.pad(u, [(count // 2,) * 2 if a == axis else (0, 0) for a in range(u.ndim)], mode=PADDED[end])
    windows = np.lib.stride_tricks.sliding_window_view(u, w.shape)
    return np.einsum(windows, [*range(2 * w.ndim)], w, [*range(w.ndim, 2 * w.ndim)])


def one_step(w, rhs, kernel, ends=("periodic", "wall"), shape=SHAPE, **numerics):
    """(the fields before, u after one step of Euler's method with dt = 1)"""
    axes = "xyz"[: len(shape)]
    given = {
        "grid": {"shape": list(shape)},
        "equation": {"name": "custom", "rhs": {"u": rhs}, "stencils": {"blur": w.tolist()}},
        "initial": {"u": "noise(1)"},
        "boundary": {
            a: "periodic" if end == "periodic" else {"neumann": 0.0} for a, end in zip(axes, ends, strict=True)
        },
        "numerics": {"integrator": "euler", "precision": "float64", **numerics},
    }
    problem = problem_of(**given)
    simulation = simulation_of(problem, kernel=kernel)
    before = simulation.get(simulation.initial_fields(), problem.fields)["u"]
    after = simulation.advance(simulation.initial_fields(), StepRange(0.0, 0, 1.0, 1))
    return before, simulation.get(after, problem.fields)["u"]


@pytest.mark.parametrize("kernel", BACKENDS)
@pytest.mark.parametrize("counts", [(1, 3), (5, 3), (7, 1), (9, 11)], ids=str)
def test_it_is_the_sum_of_weights_times_values(kernel, counts):
    w = weights(*counts)
    if kernel == "pallas" and np.count_nonzero(w) > UNROLLED:
        with pytest.raises(InputError, match=r"numerics\.kernel: .*more than 64 weights"):
            one_step(w, "blur(u)", kernel)
        return
    u, after = one_step(w, "blur(u) + 0.5*blur(u*u) - u", kernel)
    expected = convolved(w, u, ("periodic", "wall")) + 0.5 * convolved(w, u * u, ("periodic", "wall"))
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kernel", ["native", "shift", "conv"])
def test_the_widest_stencil(kernel):
    w = weights(65, 65)
    u, after = one_step(w, "blur(u) - u", kernel, shape=(70, 66))
    np.testing.assert_allclose(after, convolved(w, u, ("periodic", "wall")), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kernel", ["native", "shift", "conv", "pallas"])
@pytest.mark.parametrize("counts, shape", [((5,), (31,)), ((3, 5, 3), (11, 9, 13))], ids=str)
def test_in_one_and_three_dimensions(kernel, counts, shape):
    w, ends = weights(*counts), ("wall",) * len(shape)
    u, after = one_step(w, "blur(u) - u", kernel, ends, shape)
    np.testing.assert_allclose(after, convolved(w, u, ends), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "kernel, counts",
    [*((kernel, (3, 5)) for kernel in ("native", "shift", "conv", "pallas")), ("native", (9, 11)), ("shift", (9, 11))],
)
def test_coordinates_and_numbers_go_on_beyond_a_boundary(kernel, counts):
    """Also a value that is the same along an axis."""
    w = weights(*counts)
    u, after = one_step(w, "blur(x) + blur(2) + blur(x*y) - u", kernel, ("wall", "wall"))
    places = (np.arange(-(c // 2), n + c // 2) + 0.5 for c, n in zip(counts, SHAPE, strict=True))
    x, y = np.meshgrid(*places, indexing="ij")
    windows = np.lib.stride_tricks.sliding_window_view(x + 2 + x * y, w.shape)
    np.testing.assert_allclose(after, np.einsum("ijkl,kl->ij", windows, w), rtol=0, atol=1e-11)


@pytest.mark.parametrize("counts", [(3, 3), (9, 9)], ids=str)
def test_it_is_a_class_s_too(counts, tmp_path):
    (tmp_path / "own.py").write_text(
        "class Own:\n    parameters = {}\n    def fields(self, ndim):\n        return ('u',)\n"
        "    def rhs(self, f, p, space):\n        return {'u': space.stencil('blur', f.u) - f.u}\n"
    )
    w = weights(*counts)
    equation = {"name": f"{tmp_path}/own.py:Own", "stencils": {"blur": w.tolist()}}
    tables = {"grid": {"shape": list(SHAPE)}, "initial": {"u": "noise(1)"}, "numerics": {"integrator": "euler"}}
    problem = problem_of(equation=equation, **tables)
    assert np.isfinite(stepped(problem, simulation_of(problem), 3, 0.1)["u"]).all()
    with pytest.raises(InputError, match=r"equation\.stencils\.blur: expected its weights, but it is missing"):
        problem_of(equation={"name": equation["name"]}, **tables)


def test_a_file_and_an_array_give_the_same_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    w = weights(5, 3)
    np.save("kernel.npy", w.astype(np.float32))
    given = {"grid": {"shape": [20, 20]}, "initial": {"u": "x"}}
    made = [
        problem_of(equation={"name": "custom", "rhs": {"u": "blur(u)"}, "stencils": {"blur": blur}}, **given)
        for blur in ("kernel.npy", w.astype(np.float32), w.astype(np.float32).astype(float).tolist())
    ]
    assert all(problem.config == made[0].config and problem.trees == made[0].trees for problem in made)


@pytest.mark.parametrize("array, words", [
    (np.ones((3, 3), complex), "real numbers"), (np.full((3, 3), np.nan), "finite"), (np.array("text"), "real numbers"),
    (np.ones((3, 4)), "odd count"), (np.array([[None]]), "real numbers"),
])  # fmt: skip
def test_other_files_are_refused(array, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("kernel.npy", array)
    with pytest.raises(InputError, match=rf"equation\.stencils\.blur: .*{words}"):
        problem_of(
            grid={"shape": [20, 20]}, initial={"u": "x"},
            equation={"name": "custom", "rhs": {"u": "blur(u)"}, "stencils": {"blur": "kernel.npy"}},
        )  # fmt: skip


def test_weights_are_indexed_as_the_grid_is():
    assert centred(((1.0, 2.0, 0.0),), 2) == Stencil(((0, -1), (0, 0)), (1.0, 2.0))
    assert centred((1.0, 0.0, 3.0), 1) == Stencil(((-1,), (1,)), (1.0, 3.0))
    assert centred(((1.0, 2.0, 4.0),), 2).collapsed([1]) == Stencil(((0, 0),), (7.0,))
