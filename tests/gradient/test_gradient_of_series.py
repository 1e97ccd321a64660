"""Gradients with respect to the samples of time series: jax.grad of the same steps, Taylor remainders, stored states, members,
interruptions, the hat functions, refusals."""

import math
from dataclasses import replace

import h5py
import numpy as np
import pytest
from gradients import attempt, bytes_of, in_memory, members_from, several_at_once, sweep_of
from support import hpcstencil, problem_of
from test_reverse_sweep import LEAPFROG, METHODS, by_jax
from test_reverse_sweep import tables as reaction

import hpcstencil as hs
from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.hat_functions import HatFunctions
from hpcstencil.gradient.verify import measured
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.symbolic.expressions import Series, Time
from hpcstencil.symbolic.numpy_evaluate import evaluate
from hpcstencil.validation.errors import InputError, NumericsError

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


def test_hat_functions_are_the_transpose_of_interpolation():
    """Σ_t d(t) s(t) = Σ_k s_k (∂J/∂s_k), for times beside, between and on the samples."""
    steps, derivatives, found = StepRange(-0.05, 0, 0.03, 8), np.random.default_rng(3).normal(size=(8, 2)), np.zeros(6)
    hats = HatFunctions("gradient.s", Series(Time(), tuple(SAMPLES.tolist()), 0.03), {0: 0.0, 2: 0.5})
    times = hats.times(steps)
    assert times.shape == (8, 2) and np.allclose(times[-1], [-0.05, -0.035]) and np.allclose(times[0, 0], 0.16)
    hats.add(found, times, derivatives)
    values = evaluate(hats.series, values={Time(): times})
    assert found @ SAMPLES == pytest.approx((derivatives * values).sum(), rel=1e-13)
    on_sample = np.zeros(6)
    hats.add(on_sample, np.array([0.15, 0.16]), np.array([2.0, 1.0]))
    assert on_sample == pytest.approx([0, 0, 0, 0, 0, 2])


@pytest.mark.parametrize("integrator, stages", [("euler", [0]), ("rk4", [0, 1, 2, 3]), ("leapfrog", [1])])
def test_fields_are_those_of_the_stages_that_evaluate_the_series(samples, integrator, stages):
    equation = {"name": "acoustic", "source": {"series": samples, "dt": 0.03}}
    given = plate(samples, equation=equation, initial={}, boundary={}, objective={"J": "integral(p**2)"})
    given |= {"numerics": {"integrator": integrator}, "gradient": {"of": ["equation.source"]}}
    problem = problem_of(**given)
    adjoint = adjoint_of(problem, problem.initial)
    assert adjoint.stage_fields() == {f"gradient.source.{j}": (0, j) for j in stages}
    assert len(adjoint.stage_fields(3)) == 3 * len(stages)


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_one_call_reverses_all_steps_of_a_linear_equation(samples, kernel):
    given = plate(samples, objective={"J": "integral(u**3)"}, gradient={"of": ["equation.s"]}, boundary={})
    given["equation"] |= {"A": 0.7, "rhs": {"u": "D*laplacian(u) + A*s*x"}}
    sweep = sweep_of(given, kernel=kernel)
    assert [group.count for group in sweep.groups] == [5, 1]
    calls, advance = [], sweep.backward.steps.advance
    counted = replace(sweep.backward.steps, advance=lambda *a: calls.append(a[-1].count) or advance(*a))
    sweep = replace(sweep, backward=replace(sweep.backward, steps=counted))
    found = sweep(sweep.forward.initial_fields(), 1).series["equation.s"]
    assert calls == ([1, 5] if kernel == "native" else [1] * 6)
    rate = sweep_of({**given, "gradient": {"of": ["equation.A"]}})
    by_rate = rate(rate.forward.initial_fields(), 1).numbers["equation.A"]
    assert found @ SAMPLES == pytest.approx(0.7 * by_rate, rel=1e-12)  # both are factors of the same term


@pytest.mark.parametrize("integrator", ["rk4", pytest.param("euler", marks=pytest.mark.long)])
def test_steps_that_are_reversed_together_give_the_same_bits(samples, integrator):
    numerics = {"precision": "float64", "integrator": integrator}
    given = plate(samples, boundary={"x": {"dirichlet": 0.3}}, numerics=numerics, objective={"J": "integral(u**3)"})
    sweep = sweep_of(given, kernel="native")
    alone = sweep(sweep.forward.initial_fields(), 6)
    for steps in (2, 3):
        together = several_at_once(sweep, steps)
        assert {group.count for group in together.groups} >= {steps}
        found = together(together.forward.initial_fields(), 2)
        assert found.series["equation.s"].tobytes() == alone.series["equation.s"].tobytes()
        assert found.numbers == alone.numbers


def test_steps_of_leapfrog_that_are_reversed_together_give_the_same_bits(samples):
    """With the speed of sound in each cell, whose gradient needs states, and receivers, whose derivatives calls add."""
    equation = {
        "name": "acoustic",
        "c": np.linspace(0.8, 1.2, 42).reshape(7, 6),
        "source": {"series": samples, "dt": 0.03},
    }
    given = plate(samples, equation=equation, initial={"p": "x*y"}, boundary={"x": {"dirichlet": 0.0}})
    given |= {"probes": {"cable": {"field": "p", "x": [0.2, 0.5], "y": [0.3, 0.3]}}}
    given |= {"objective": {"J": "sum((cable - 0.4)**2)"}, "gradient": {"of": ["equation.source", "equation.c"]}}
    given |= {"numerics": {"integrator": "leapfrog"}}
    with hs.Simulation({**given, "numerics": {"integrator": "leapfrog", "kernel": "shift"}}) as sim:
        _, expected = sim.value_and_gradient()
    with hs.Simulation(given) as sim:
        _, found = sim.value_and_gradient()
    for key in expected:
        assert np.abs(found[key] - expected[key]).max() <= 1e-5 * np.abs(expected[key]).max()


def test_values_at_walls_beside_absorbing_layers(samples):
    """The derivative of a boundary value is an operator of 0, whose ghost cells are not 0, also outside layers."""
    given = {
        "grid": {"shape": [16, 9], "upper": [1.6, 0.9]},
        "equation": {"name": "custom", "A": 0.3, "s": {"series": samples, "dt": 0.01}, "rhs": {"p": "q", "q": "laplacian(p)"}},
        "initial": {"p": "exp(-9*(x - 0.7)**2)"},
        "boundary": {
            "x": {"cpml": {"width": 0.2, "speed": 1.0}},
            "y": {"lower": {"neumann": "s"}, "upper": {"dirichlet": "A"}},
        },
        "numerics": {"precision": "float64", "integrator": "leapfrog"},
        "time": {"end": 0.05, "dt": 0.005},
        "objective": {"J": "integral(p**2)"},
        "gradient": {"of": ["equation.s", "equation.A"]},
    }  # fmt: skip
    expected, found = (sweep_of(given, kernel=kernel) for kernel in ("shift", "native"))
    expected, found = (sweep(sweep.forward.initial_fields(), 10) for sweep in (expected, found))
    assert found.numbers["equation.A"] == pytest.approx(expected.numbers["equation.A"], rel=1e-12)
    assert np.allclose(found.series["equation.s"], expected.series["equation.s"], rtol=1e-12)


OBJECTIVES = {
    "inside": "integral((u - s)**2)",
    "outside": "s*integral(u)",
    "alone": {"sum": "integral(u**2) + 0.1*s**2", "every_steps": 2},
    "by the walls": "integral(dx(u)**2)",
    "at receivers": "sum((cable - 0.4)**2)",
}


@pytest.mark.parametrize("kernel", ["shift", pytest.param("native", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_objective_may_depend_on_the_series(samples, name, kernel):
    given = plate(samples, objective={"J": OBJECTIVES[name]}, numerics={"precision": "float64", "integrator": "ssprk2"})
    if name == "at receivers":
        given["probes"] = {
            "cable": {"expression": "s*u + 0.1*dx(u)", "x": [0.2, 0.5], "y": [0.3, 0.3], "every_steps": 2}
        }
    members, plans = members_from(given, kernel=kernel, verified=True).planned(lambda _: {})
    found = measured(members, plans)
    assert found.transposed and max(found.remainders) > 1e-9
    assert all(abs(slope - 2) < 0.05 for slope in found.slopes), found.slopes


def test_steps_from_a_tolerance(samples):
    """s only has an effect as A s, so that A ∂J/∂A = Σ s_k ∂J/∂s_k, whatever the steps are."""
    numerics = {"precision": "float64", "integrator": "bs3"}
    time = {"end": 0.11, "tolerance": 1e-4}
    given = plate(samples, time=time, numerics=numerics, boundary={}, objective={"J": "integral(u**3)"})
    with hs.Simulation(given) as sim:
        _, found = sim.value_and_gradient()
    assert found["equation.s"] @ SAMPLES == pytest.approx(0.7 * found["equation.A"], rel=1e-12)


def test_members_may_take_steps_of_their_own(samples):
    given = {
        "grid": {"shape": [12], "upper": [1.2]},
        "equation": {"name": "acoustic", "c": 1.0, "source": {"series": samples, "dt": 0.1}, "xs": 0.6},
        "numerics": {"precision": "float64"},
        "time": {"end": 0.3, "cfl": 0.4},
        "objective": {"J": "integral(p**2)"},
        "gradient": {"of": ["equation.source"]},
    }
    total = in_memory(members_from({**given, "ensemble": {"equation.c": [1.0, 1.5]}}))
    found = []
    for speed in (1.0, 1.5):
        sweep = sweep_of({**given, "equation": {**given["equation"], "c": speed}})
        found.append(sweep(sweep.forward.initial_fields(), sweep.steps).series["equation.source"])
    assert total.series["equation.source"].tolist() == [math.fsum(each) for each in zip(*found, strict=True)]


ALONG = np.array([0.3, -0.2, 0.5, 1.0, -0.7, 0.4])


def test_an_objective_without_a_derivative_is_an_error():
    given = plate(np.abs(SAMPLES) * (np.arange(6) > 0), objective={"J": {"sum": "sqrt(s) + mean(u)", "every_steps": 2}})
    with (
        hs.Simulation(given) as sim,
        pytest.raises(NumericsError, match="objective with respect to equation.s, but got inf"),
    ):
        sim.value_and_gradient()


@pytest.mark.parametrize("kernel, integrator", [
    ("native", "euler"), ("shift", "ab2"), pytest.param("native", "rk4", marks=pytest.mark.long)
])  # fmt: skip
def test_the_tangent_is_the_product_of_gradient_and_direction(kernel, integrator):
    numerics = {"precision": "float64", "integrator": integrator, "kernel": kernel}
    given = plate(SAMPLES, numerics=numerics, objective={"J": "integral(u**3) + s*mean(u)"})
    direction = {"equation.s": ALONG, "equation.A": 0.4}
    with hs.Simulation(given) as sim:
        slope, (_, gradient) = sim.tangent(direction)["J"], sim.value_and_gradient()
    assert slope == pytest.approx(gradient["equation.s"] @ ALONG + 0.4 * gradient["equation.A"], rel=1e-12)


def test_the_product_of_the_hessian_is_the_difference_of_gradients():
    numerics = {"precision": "float64", "integrator": "ssprk2", "kernel": "native"}
    given = plate(SAMPLES, numerics=numerics, objective={"J": "integral(u**3)"}, gradient={"of": ["equation.s"]})

    def gradient(size):
        equation = {**given["equation"], "s": {"series": SAMPLES + size * ALONG, "dt": 0.03}}
        with hs.Simulation({**given, "equation": equation}) as sim:
            return sim.value_and_gradient()[1]["equation.s"]

    with hs.Simulation(given) as sim:
        found = sim.hessian_product({"equation.s": ALONG})["equation.s"]
    expected = (gradient(1e-5) - gradient(-1e-5)) / 2e-5
    assert np.abs(found - expected).max() <= 1e-8 * np.abs(expected).max()


def test_directions_of_other_lengths_and_functions_are_refused(samples):
    with (
        hs.Simulation(plate(SAMPLES)) as sim,
        pytest.raises(
            InputError, match=r'direction\["equation.s"\]: expected 6 finite numbers, one per sample, or one for'
        ),
    ):
        sim.tangent({"equation.s": ALONG[:5]})
    with hs.Simulation(plate(SAMPLES)) as sim:
        assert sim.tangent({"equation.s": 0})["J"] == 0.0
    with (
        hs.Simulation(plate(samples)) as sim,
        pytest.raises(InputError, match="but the input has an expression or a time series"),
    ):
        sim.function(2)(sim.state, {"s": 1.0})
