"""Gradients with respect to the samples of time series: jax.grad of the same steps, Taylor remainders, stored states, members,
interruptions, the hat functions, refusals."""

import math
from dataclasses import replace

import h5py
import numpy as np
import pytest
from gradients import attempt, bytes_of, in_memory, members_from, sweep_of
from support import hpcstencil, problem_of
from test_reverse_sweep import LEAPFROG, METHODS, by_jax
from test_reverse_sweep import tables as reaction

import hpcstencil as hs
from hpcstencil.adjoint.hat_functions import HatFunctions
from hpcstencil.adjoint.problem import adjoint_of
from hpcstencil.adjoint.run_steps import steps_of
from hpcstencil.adjoint.tangent import tangent_of
from hpcstencil.gradient.verify import measured
from hpcstencil.numerics.integrators import INTEGRATORS
from hpcstencil.symbolic.expressions import Series, Time
from hpcstencil.validation.errors import InputError

SAMPLES = np.array([1.0, 3.0, -2.0, 0.5, 0.7, -0.3])
SHORT = {"ssprk2", "ab2"}


@pytest.fixture
def samples(tmp_path):
    """The samples in a NumPy file; the text that an input gives."""
    np.save(tmp_path / "samples.npy", SAMPLES)
    return str(tmp_path / "samples.npy")


def plate(samples, dt=0.03, **others):
    """A series as source and at a boundary, with steps of 0.02 of which the last is shorter."""
    return {
        "grid": {"shape": [7, 6], "upper": [0.7, 0.6]},
        "equation": {"name": "custom", "D": 0.02, "A": 0.7, "s": {"series": samples, "dt": dt},
                     "rhs": {"u": "D*laplacian(u) + A*s*u*x"}},
        "initial": {"u": "1 + sin(7*x)*cos(6*y)"},
        "boundary": {"x": {"lower": {"dirichlet": "0.3*s*y"}, "upper": {"neumann": "s**2"}}},
        "numerics": {"precision": "float64", "integrator": "euler"},
        "time": {"end": 0.11, "dt": 0.02},
        "objective": {"J": {"sum": "integral(u**3)", "every_steps": 2}},
        "gradient": {"of": ["equation.s", "equation.A"]},
        **others,
    }  # fmt: skip


def test_numbers_and_series_that_are_a_whole_right_hand_side():
    """J = ∫ u + v + k dx with u = A + k t and v = ∫ s dt, on a line of length 1."""
    given = {
        "grid": {"shape": [8], "upper": [1.0]},
        "equation": {"name": "custom", "A": 0.4, "k": 0.3, "s": {"series": SAMPLES, "dt": 0.1}, "rhs": {"u": "k", "v": "s"}},
        "initial": {"u": "A", "v": 0.0},
        "numerics": {"precision": "float64", "integrator": "rk4"},
        "time": {"end": 0.5, "dt": 0.05},
        "objective": {"J": "integral(u + v) + integral(k)"},
        "gradient": {"of": ["equation.A", "equation.k", "equation.s"]},
    }  # fmt: skip
    with hs.Simulation(given) as sim:
        value, found = sim.value_and_gradient()
    integrals = 0.1 * np.array([0.5, 1, 1, 1, 1, 0.5])  # of the hat functions
    assert value == pytest.approx(0.4 + 0.3 * 0.5 + 0.3 + integrals @ SAMPLES, rel=1e-13)
    assert found["equation.A"] == pytest.approx(1.0, rel=1e-13)
    assert found["equation.k"] == pytest.approx(1.5, rel=1e-13)
    assert np.allclose(found["equation.s"], integrals, rtol=1e-13)


@pytest.mark.parametrize(
    "dt", [0.02, pytest.param(0.07, marks=pytest.mark.long), pytest.param(0.006, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("integrator", [
    pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in METHODS
])  # fmt: skip
def test_the_gradient_is_that_of_jax(samples, integrator, dt):
    given = reaction(integrator)
    rhs = {name: f"{tree} + {n + 1}*s*(x + u)" for n, (name, tree) in enumerate(given["equation"]["rhs"].items())}
    if integrator in LEAPFROG:
        rhs = {**given["equation"]["rhs"], "v": given["equation"]["rhs"]["v"] + " + s*x"}
    equation = {**given["equation"], "rhs": rhs, "s": {"series": samples, "dt": dt}}
    sweep = sweep_of({**given, "equation": equation, "gradient": {"of": ["equation.s", "equation.D"]}})
    value, (_, by_parameter) = by_jax(sweep)
    result, expected = sweep(sweep.forward.initial_fields(), sweep.steps), np.asarray(by_parameter["s"])
    assert result.value == pytest.approx(float(value), rel=1e-13)
    assert np.abs(result.series["equation.s"] - expected).max() <= 1e-12 * np.abs(expected).max()
    assert result.numbers["equation.D"] == pytest.approx(float(by_parameter["D"]), rel=1e-12)


ROBIN = {"boundary": {"x": {"robin": {"a": "2 + s", "b": 1.0, "value": "s"}}}}


@pytest.mark.parametrize("kernel, others", [
    ("shift", {}), *(pytest.param(*row, marks=pytest.mark.long) for row in (("native", {}), ("shift", ROBIN)))
])  # fmt: skip
def test_remainders_are_of_second_order(samples, kernel, others):
    members, plans = members_from(plate(samples, **others), kernel=kernel, verified=True).planned(lambda _: {})
    found = measured(members, plans)
    assert found.transposed and max(found.remainders) > 1e-9
    assert all(abs(slope - 2) < 0.05 for slope in found.slopes), found.slopes


@pytest.mark.parametrize("integrator, dt", [
    ("euler", 0.03), *(pytest.param(*row, marks=pytest.mark.long) for row in (("rk4", 0.006), ("rkl2", 0.03), ("rk4", 0.02)))
])  # fmt: skip
def test_native_code_gives_the_same_with_any_stored_states(samples, integrator, dt):
    numerics = {"precision": "float64", "integrator": integrator, **({"stages": 4} if integrator == "rkl2" else {})}
    given = plate(samples, dt, boundary={"x": {"dirichlet": 0.3}}, numerics=numerics)
    reference, native = sweep_of(given), sweep_of(given, kernel="native")
    expected = reference(reference.forward.initial_fields(), 9).series["equation.s"]
    found = [native(native.forward.initial_fields(), states).series["equation.s"] for states in (9, 1, 3)]
    assert np.abs(found[0] - expected).max() <= 1e-12 * np.abs(expected).max()
    assert len({each.tobytes() for each in found}) == 1


def test_a_linear_equation_needs_no_states(samples):
    given = plate(samples, objective={"J": "integral(u**3)"}, gradient={"of": ["equation.s"]})
    given["equation"] |= {"A": 0.0, "rhs": {"u": "D*laplacian(u) + A*u + s*x"}}
    sweep = sweep_of(given)
    assert not sweep.adjoint.needs_states and [group.count for group in sweep.groups] == [1] * 6
    linear = sweep(sweep.forward.initial_fields(), 1).series["equation.s"]
    given["equation"] |= {"rhs": {"u": "D*laplacian(u) + A*u + s*x + 0*A*u**2"}}
    given["gradient"] = {"of": ["equation.s", "equation.A"]}
    sweep = sweep_of(given)
    assert sweep.adjoint.needs_states
    found = sweep(sweep.forward.initial_fields(), 2).series["equation.s"]
    assert np.abs(found - linear).max() <= 1e-13 * np.abs(linear).max()


def test_the_gradients_of_members_are_added_up(samples):
    given = plate(samples, ensemble={"equation.A": [0.5, 0.8, -0.6]})
    total = in_memory(members_from(given))
    found = []
    for rate in (0.5, 0.8, -0.6):
        sweep = sweep_of({**given, "equation": {**given["equation"], "A": rate}, "ensemble": {}})
        found.append(sweep(sweep.forward.initial_fields(), 9).series["equation.s"])
    assert total.series["equation.s"].tolist() == [math.fsum(each) for each in zip(*found, strict=True)]
    assert total.numbers["equation.A"].shape == (3,)


@pytest.mark.parametrize("members", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_interrupted_sweep_has_the_same_bits(samples, tmp_path, members):
    gradient = {"of": ["equation.s", "equation.A"], "checkpoints": 4, "storage": "disk"}
    given = plate(samples, time={"end": 0.19, "dt": 0.01}, checkpoint={"every_steps": 2}, gradient=gradient)
    if members:
        given |= {"ensemble": {"equation.A": [0.7, 0.6]}}
    sweeps = members_from(given)
    expected, result, attempts = in_memory(sweeps), None, 0
    while result is None:
        result, attempts = attempt(sweeps, tmp_path / "g.h5", 12), attempts + 1
        assert attempts < 50
    assert attempts > 1 and bytes_of(result) == bytes_of(expected) and len(bytes_of(result)[1]) == 2


def test_from_python_and_by_the_command_it_is_the_same(samples, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    held = plate(SAMPLES, numerics={"precision": "float64", "integrator": "euler", "kernel": "shift"})
    with hs.Simulation(held) as sim:
        value, gradient = sim.value_and_gradient()
    with hs.Simulation(plate(samples, numerics=held["numerics"])) as sim:
        (tmp_path / "input.toml").write_text(sim.to_toml())
    assert gradient["equation.s"].shape == SAMPLES.shape and list(gradient) == ["equation.s", "equation.A"]
    status, out, err = hpcstencil(monkeypatch, capsys, "gradient", "input.toml")
    assert status == 0 and "equation.s " not in out, err
    with h5py.File("input.gradient.h5") as file:
        assert file.attrs["objective"] == value and np.array_equal(file["equation.s"][:], gradient["equation.s"])


def test_fields_take_turns():
    method, series = INTEGRATORS["euler"], Series(Time(), tuple(np.ones(7)), 0.3)

    def hats(dt, samples=0.3, method=method):
        problem = problem_of(grid={"shape": [4]}, equation={"name": "heat", "D": 1e-3}, time={"end": 1.2, "dt": dt})
        return HatFunctions.of("gradient.s", replace(series, dt=samples), method, steps_of(problem))

    assert hats(0.3).count == 1 and hats(0.3).reached.tolist() == [0, 1, 2, 3]  # one stage, at the samples
    assert hats(0.1).count == 2 and hats(0.3, method=INTEGRATORS["rk4"]).count == 2
    dense = hats(0.4, samples=0.03)  # most samples lie between stages; the last ones are before the second step
    assert dense.reached.tolist() == [0] and dense.complete(0) == range(1, 1) and dense.complete(-1) == range(1)
    for found in (hats(0.3), hats(0.1), hats(0.45, 0.11)):
        numbers = [n for step in range(len(found.last) - 1, -2, -1) for n in found.complete(step)]
        assert sorted(numbers) == list(range(len(found.reached)))


@pytest.mark.parametrize("change, words", [
    ({"objective": {"J": "integral((u - s)**2)"}}, "gradient.of: not available yet for equation.s, a time series on which the"),
    ({"objective": {"J": "s*integral(u)"}}, "gradient.of: not available yet for equation.s, a time series on which the"),
    ({"objective": {"J": "integral(dx(u)**2)"}}, "gradient.of: not available yet for equation.s, .* or by boundary values"),
    ({"time": {"end": 0.1, "tolerance": 1e-4}}, "time.tolerance: the gradient with respect to equation.s is not available yet"),
])  # fmt: skip
def test_what_is_not_available_is_refused(samples, change, words):
    if "tolerance" in change.get("time", {}):
        change = {**change, "numerics": {"precision": "float64", "integrator": "bs3"}}
    problem = problem_of(**plate(samples, **change))
    with pytest.raises(InputError, match=words):
        adjoint_of(problem, problem.initial)


def test_directions_functions_and_steps_of_members_are_refused(samples):
    problem = problem_of(**plate(samples, numerics={"integrator": "rk4"}))
    with pytest.raises(InputError, match="direction: not available yet for equation.s, a time series"):
        tangent_of(problem, problem.initial, ["equation.s"])
    with (
        hs.Simulation(plate(samples)) as sim,
        pytest.raises(InputError, match="but the input has an expression or a time series"),
    ):
        sim.function(2)(sim.state, {"s": 1.0})
    given = {
        "grid": {"shape": [12], "upper": [1.2]},
        "equation": {"name": "acoustic", "c": 1.0, "source": {"series": samples, "dt": 0.1}, "xs": 0.6},
        "time": {"end": 0.3, "cfl": 0.4},
        "objective": {"J": "integral(p**2)"},
        "gradient": {"of": ["equation.source"]},
        "ensemble": {"equation.c": [1.0, 1.5]},
    }
    with pytest.raises(
        InputError, match="time.cfl: the gradient with respect to equation.source is not available yet if each"
    ):
        members_from(given)
