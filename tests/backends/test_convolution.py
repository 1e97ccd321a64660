"""Stencils of the input's own, against sums in NumPy."""

import tomllib

import jax
import numpy as np
import pytest
from scipy import ndimage
from support import problem_of, simulation_of, stepped

from hpcstencil.backends.registry import BACKENDS
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.reader import from_mapping
from hpcstencil.numerics.finite_differences import UNROLLED, Stencil, centred
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.simulation.backend_choice import foreseen
from hpcstencil.simulation.dry_run import report
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.validation.errors import InputError
from hpcstencil.verify import studies

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


def one_step(w, rhs, kernel, ends=("periodic", "wall"), shape=SHAPE, method="direct", devices=1, **numerics):
    """(the fields before, u after one step of Euler's method with dt = 1)"""
    axes = "xyz"[: len(shape)]
    given = {
        "grid": {"shape": list(shape)},
        "equation": {
            "name": "custom",
            "rhs": {"u": rhs},
            "stencils": {"blur": {"weights": w.tolist(), "method": method}},
        },
        "initial": {"u": "noise(1)"},
        "boundary": {
            a: "periodic" if end == "periodic" else {"neumann": 0.0} for a, end in zip(axes, ends, strict=True)
        },
        "numerics": {"integrator": "euler", "precision": "float64", **numerics},
    }
    problem = problem_of(**given)
    simulation = simulation_of(problem, devices=devices, kernel=kernel)
    before = simulation.get(simulation.initial_fields(), problem.fields)["u"]
    after = simulation.advance(simulation.initial_fields(), StepRange(0.0, 0, 1.0, 1))
    return before, simulation.get(after, problem.fields)["u"]


@pytest.mark.parametrize("kernel", BACKENDS)
@pytest.mark.parametrize("counts", [
    (1, 3), (5, 3), (7, 1), pytest.param((9, 11), marks=pytest.mark.long)
], ids=str)  # fmt: skip
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


@pytest.mark.parametrize("kernel", ["shift", "conv"])
@pytest.mark.parametrize("counts, shape, ends", [
    ((65, 33), (70, 66), ("periodic", "wall")), ((3, 3), (13, 17), ("wall", "wall")), ((31,), (97,), ("periodic",)),
    ((9, 9), (4, 11), ("periodic", "periodic")), ((5, 7, 9), (11, 13, 12), ("wall", "periodic", "wall")),
], ids=str)  # fmt: skip
def test_fourier_transforms_give_the_sum(kernel, counts, shape, ends):
    w = weights(*counts)
    u, after = one_step(w, "blur(u) + 0.5*blur(u*u) - u", kernel, ends, shape, "fft")
    expected = convolved(w, u, ends) + 0.5 * convolved(w, u * u, ends)
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-14)
    modes = [{"periodic": "wrap", "wall": "reflect"}[end] for end in ends]  # in SciPy's words
    if len(set(modes)) == 1:
        by_scipy = ndimage.correlate(u, w, mode=modes[0]) + 0.5 * ndimage.correlate(u * u, w, mode=modes[0])
        np.testing.assert_allclose(after, by_scipy, rtol=0, atol=1e-12)


def test_fourier_transforms_in_single_precision():
    w = weights(31, 21)
    u, after = one_step(w, "blur(u) - u", "shift", method="fft", precision="float32")
    np.testing.assert_allclose(after, convolved(w, u, ("periodic", "wall")), rtol=0, atol=1e-6)


@pytest.mark.parametrize("integrator, ends", [
    ("rk4", ("periodic", "wall")),
    ("rkl2", ("wall", "periodic")),
    ("ab2", ("periodic", "wall")),
    *(pytest.param(integrator, ends, marks=pytest.mark.long) for integrator, ends in [
        ("rk4", ("wall", "periodic")), ("rkl2", ("periodic", "wall")), ("ab2", ("wall", "periodic")),
    ]),
], ids=str)  # fmt: skip
def test_fourier_transforms_on_uneven_blocks(integrator, ends):
    """Cells that no device owns, and those of a halo that is used up, would spread: 1/u is infinite where they are 0."""
    w, axes = np.abs(weights(5, 5)), dict(zip("xy", ends, strict=True))
    given_stages = {"stages": 4} if integrator == "rkl2" else {}
    given = {
        "grid": {"shape": [43, 31]},
        "equation": {
            "name": "custom",
            "rhs": {"u": "blur(1/u) - 1 + 0.1*blur(blur(u))"},
            "stencils": {"blur": {"weights": w.tolist(), "method": "fft"}},
        },
        "initial": {"u": "2 + noise(1)"},
        "boundary": {a: "periodic" if end == "periodic" else {"neumann": 0.0} for a, end in axes.items()},
        "numerics": {"integrator": integrator, "precision": "float64", **given_stages},
    }
    one, direct = problem_of(**given), {"blur": {"weights": w.tolist(), "method": "direct"}}
    summed = problem_of(**{**given, "equation": {**given["equation"], "stencils": direct}})
    expected = stepped(summed, simulation_of(summed), 5, 0.01)["u"]
    for cut in ([2, 1], [1, 2]):
        two = problem_of(**given, decomposition={"devices": cut})
        found = stepped(two, simulation_of(two, devices=2), 5, 0.01)["u"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(stepped(one, simulation_of(one), 5, 0.01)["u"], expected, rtol=0, atol=1e-13)


def test_members_have_the_bits_of_single_runs_by_fourier_transforms():
    w, scales = weights(9, 9), [0.5, 1.5]
    given = {
        "grid": {"shape": [20, 24]}, "initial": {"u": "noise(1)"}, "numerics": {"integrator": "rk4"},
        "equation": {"name": "custom", "a": 1.0, "rhs": {"u": "a*blur(u) - u"},
                     "stencils": {"blur": {"weights": w.tolist(), "method": "fft"}}},
    }  # fmt: skip
    several = problem_of(**given, ensemble={"equation.a": scales})
    together = stepped(several, simulation_of(several), 7, 0.1)["u"]
    for n, scale in enumerate(scales):
        one = problem_of(**{**given, "equation": {**given["equation"], "a": scale}})
        alone = stepped(one, simulation_of(one), 7, 0.1)["u"]
        assert np.ascontiguousarray(together[..., n]).tobytes() == alone.tobytes()


@pytest.mark.parametrize("kernel", ["native", "pallas"])
def test_generated_code_has_no_fourier_transforms(kernel):
    words = r'numerics\.kernel: .*equation\.stencils\.blur has method = "fft", which rounds differently'
    with pytest.raises(InputError, match=words):
        one_step(weights(3, 3), "blur(u)", kernel, method="fft")


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


def test_fourier_transforms_are_recorded_and_reported(tmp_path):
    w = weights(5, 3)
    blur = {"weights": w, "method": "fft"}
    problem = problem_of(
        grid={"shape": [20, 20]}, initial={"u": "noise(1)"}, numerics={"precision": "float64"},
        equation={"name": "custom", "rhs": {"u": "blur(u) - u"}, "stencils": {"blur": blur}},
    )  # fmt: skip
    recorded = from_mapping(tomllib.loads(to_toml(problem.config)), tmp_path)
    assert recorded.equation == problem.config.equation and recorded.equation.stencils["blur"].method == "fft"
    said = report(foreseen(Decomposed.of(problem, 1, 1)))
    assert "applied by Fourier transforms: the last digits depend on the decomposition" in said
    assert 'no native code: equation.stencils.blur has method = "fft"' in said
    findings = studies.decompositions(problem, OneProcess(), jax.local_devices()[:2])
    assert all(finding.met for finding in findings), findings


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
