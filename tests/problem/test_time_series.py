"""Parameters that follow time: samples in a file, linear in between, 0 before and after."""

import h5py
import numpy as np
import pytest
from support import integrate, problem_of

from hpcstencil.config.provenance import to_tables
from hpcstencil.config.reader import from_mapping
from hpcstencil.problem.build import build
from hpcstencil.symbolic.differentiate import derivative
from hpcstencil.symbolic.expressions import Constant, Series, Time, at_time
from hpcstencil.symbolic.numpy_evaluate import evaluate
from hpcstencil.validation.errors import InputError

SAMPLES = np.array([1.0, 3.0, -2.0, 0.5])
DT = 0.25
TRIANGLES = "where(t < 0.25, 1 + 8*t, where(t < 0.5, 8 - 20*t, where(t < 0.76, 10*t - 7, 0)))"  # the same in words


@pytest.fixture
def samples(tmp_path):
    """The samples in a NumPy file; the text that an input gives."""
    np.save(tmp_path / "samples.npy", SAMPLES)
    return str(tmp_path / "samples.npy")


def problem(value, kernel="shift", **more):
    equation = {"name": "custom", "g": value, "rhs": {"u": "0.1*laplacian(u) + g*point(0.9, 1.1)"}}
    return problem_of(**{
        "grid": {"shape": [12, 10], "upper": [2.4, 2.0]}, "equation": equation, "time": {"end": 1.0, "dt": 0.05},
        "boundary": {"x": {"dirichlet": "0.1*g"}}, "numerics": {"precision": "float64", "kernel": kernel}, **more,
    })  # fmt: skip


@pytest.mark.parametrize("kernel", ["shift", "native", "conv"])
@pytest.mark.parametrize("integrator", ["rk4", "ab2"])
def test_a_series_gives_the_steps_of_its_expression(samples, kernel, integrator):
    numerics = {"precision": "float64", "integrator": integrator}
    given = problem({"series": samples, "dt": DT}, numerics=numerics)
    expression = problem_of(
        grid={"shape": [12, 10], "upper": [2.4, 2.0]}, time={"end": 1.0, "dt": 0.05}, numerics=numerics,
        equation={"name": "custom", "rhs": {"u": f"0.1*laplacian(u) + ({TRIANGLES})*point(0.9, 1.1)"}},
        boundary={"x": {"dirichlet": f"0.1*({TRIANGLES})"}},
    )  # fmt: skip
    found, expected = (integrate(each, kernel)["u"] for each in (given, expression))
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_the_last_sample_counts_though_its_time_is_rounded(tmp_path, kernel):
    np.save(tmp_path / "ones.npy", np.ones(8))
    assert 0.07 * (1 / 0.01) > 7  # in floating point
    tables = {"grid": {"shape": [8]}, "numerics": {"integrator": "ssprk2", "precision": "float64"}}
    equation = {"name": "custom", "g": {"series": str(tmp_path / "ones.npy"), "dt": 0.01}, "rhs": {"u": "g"}}
    u = integrate(problem_of(**tables, equation=equation, time={"end": 0.07, "dt": 0.01}), kernel)["u"]
    np.testing.assert_allclose(u, 0.07, rtol=1e-14)  # its last stage is at the end


@pytest.mark.parametrize("time", [-0.1, 0.0, 0.1, 0.25, 0.6, 0.75, 0.76, 9.0])
def test_values_and_slopes(time):
    series = Series(Time(), tuple(SAMPLES), DT)
    inside = 0.0 <= time <= 0.75
    expected = np.interp(time, np.arange(4) * DT, SAMPLES) if inside else 0.0
    assert evaluate(at_time(series, time)) == pytest.approx(expected, abs=1e-15)
    slope = derivative(series * Constant(2.0), Time())
    number = min(int(time / DT), 2)
    expected = 2 * (SAMPLES[number + 1] - SAMPLES[number]) / DT if inside else 0.0
    assert evaluate(at_time(slope, time)) == pytest.approx(expected, rel=1e-14)


def test_the_source_of_an_equation_takes_the_place_of_its_wavelet(tmp_path):
    with h5py.File(tmp_path / "wavelet.h5", "w") as file:
        file["trace"] = np.ones(11)
    with_series = {"source": {"series": f"{tmp_path / 'wavelet.h5'}:trace", "dt": 0.1}, "xs": 0.7}
    tables = {
        "grid": {"shape": [20], "upper": [2.0]},
        "time": {"end": 0.3, "dt": 0.01},
        "numerics": {"precision": "float64"},
    }
    found = integrate(problem_of(**tables, equation={"name": "acoustic", **with_series}))["p"]
    rhs = {"p": "q", "q": "laplacian(p) + point(0.7)"}
    expected = integrate(problem_of(**tables, equation={"name": "custom", "rhs": rhs}))["p"]
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_an_input_says_it_again(samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = {"grid": {"shape": [8]}, "time": {"end": 1.0, "dt": 0.1}, "equation": {
        "name": "custom", "g": {"series": "samples.npy", "dt": DT}, "rhs": {"u": "g"},
    }}  # fmt: skip
    config = from_mapping(tables, tmp_path)
    assert to_tables(config)["equation"]["g"] == {"series": samples, "dt": DT}
    again = from_mapping(to_tables(config), tmp_path / "elsewhere")
    assert again.equation == config.equation and build(again).trees == build(config).trees


def saved(folder, values):
    np.save(folder / "other.npy", values)
    return str(folder / "other.npy")


@pytest.mark.parametrize("value, words", [
    (lambda f: {"series": saved(f, np.ones(3)), "dt": 1e-320}, r"equation.g.dt: expected a number of at least 2.22507e-308"),
    (lambda f: {"series": saved(f, np.ones((3, 3))), "dt": 1.0}, r"equation.g: .*shape \(3, 3\), expected one axis with 2 to"),
    (lambda f: {"series": saved(f, np.ones(1)), "dt": 1.0}, r"equation.g: .*has shape \(1,\), expected one axis with 2 to"),
    (lambda f: {"series": saved(f, np.array([0.0, np.inf])), "dt": 1.0}, "equation.g: .*finite numbers, .* inf in sample 1"),
    (lambda f: {"series": saved(f, np.array([1.0, 1e39])), "dt": 1.0}, "equation.g: expected values that float32 can hold"),
    (lambda f: {"series": "x", "dt": 1.0}, 'equation.g.series: expected a file with samples, "FILE.npy"'),
    (lambda f: {"series": "x.png", "dt": 1.0}, "equation.g.series: expected a file with samples"),
    (lambda f: {"series": "x.npy"}, "equation.g.dt: .*missing"),
    (lambda f: {"series": "x.npy", "dt": 0}, "equation.g.dt: expected a positive"),
    (lambda f: {"series": "x.npy", "dt": 1, "t0": 1}, "equation.g.t0: unknown key"),
    (lambda f: {"series": str(f / "none.npy"), "dt": 1}, "equation.g: .*none.npy"),
])  # fmt: skip
def test_what_is_no_series_is_refused(tmp_path, value, words):
    with pytest.raises(InputError, match=words):
        problem(value(tmp_path), numerics={"precision": "float32"})


def test_where_nothing_may_follow_time(samples):
    series = {"series": samples, "dt": DT}
    with pytest.raises(InputError, match="initial.u: expected no parameter that follows time"):
        problem(series, initial={"u": "g"})
    with pytest.raises(InputError, match="mask.solid: expected no parameter that follows time"):
        problem(series, mask={"solid": "g > 1"})
    tables = {
        "grid": {"shape": [8, 6]},
        "initial": {"h": "1"},
        "boundary": {"u": {"x": {"dirichlet": "f"}}, "x": {"neumann": 0.0}},
    }
    with pytest.raises(InputError, match="boundary.u: expected no parameter that follows time"):
        problem_of(**tables, equation={"name": "shallow_water", "f": series})
