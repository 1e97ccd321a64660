"""The reverse sweep: jax.grad of the same steps, every integrator, schedules of stored states, closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradients import in_memory, members_from, several_at_once, sweep_of, taylor_slopes
from jax import lax
from support import integrated

import hpcstencil as hs
from hpcstencil.adjoint.revolve import Advance, actions, steps_taken
from hpcstencil.backends.xla.array_code import array_code
from hpcstencil.gradient.compose import planned
from hpcstencil.numerics.integrators import INTEGRATORS, MEMORY
from hpcstencil.validation.errors import NumericsError

REACTION = {"u": "D*laplacian(u) - u*dx(u) + A*u**2 + sin(3*t)*x", "v": "u - D*v + 0.1*dy(u*v)"}
OSCILLATION = {"u": "A*v", "v": "D*laplacian(u) - u**3"}  # two groups of fields, for leapfrog
LEAPFROG = {
    "leapfrog": OSCILLATION,
    "leapfrog-damped": {"u": "A*v - 0.3*u", "v": "D*laplacian(u) - u**3 - (1 + x)*A*v"},
    "leapfrog-memories": {  # w and q are beside v, one after the other
        "u": "A*v - 0.3*u",
        "w": "dx(u) - A*w",
        "q": "dx(w) + laplacian(u) - x*q",
        "v": "D*laplacian(u) - u**3 - (1 + x)*A*v + 0.1*dx(w) + A*q",
    },
}
METHODS = [*INTEGRATORS, *(name for name in LEAPFROG if name != "leapfrog")]


def tables(integrator, **others):
    rhs = LEAPFROG.get(integrator, REACTION)
    return {
        "grid": {"shape": [7, 6], "upper": [0.7, 0.6]},
        "equation": {"name": "custom", "D": 0.02, "A": 0.7, "B": 0.1, "rhs": rhs},
        "initial": {**dict.fromkeys(rhs, "0.2*cos(9*x)"), "u": "A*sin(2*pi*x/0.7)", "v": "cos(6*y)"},
        "boundary": {"y": {"dirichlet": "B*t"}},
        "numerics": {
            "precision": "float64",
            "integrator": integrator.partition("-")[0],
            **({"stages": 5} if integrator == "rkl2" else {}),
        },
        "time": {"end": 0.11, "dt": 0.02},  # the last step is shorter
        "objective": {"J": "integral(u**2*v) + A*mean(gradient_squared(u))**2"},
        "gradient": {"of": ["initial.u", "initial.v", "equation.D", "equation.A", "equation.B"]},
        **others,
    }


def by_jax(sweep):
    """(objective, derivatives by fields and parameters) by jax.grad of a scan over the steps of `shift`."""
    forward, problem = sweep.forward, sweep.forward.problem
    device_grid, grid = forward.device_grid, problem.config.grid
    stepper = array_code(problem, forward.plan, device_grid, forward.communicator).stepper
    frame = device_grid.frame(device_grid.places)
    sizes = list(sweep.run.ranges)
    each = jnp.array([(s.base_time + (s.first + i) * s.dt, s.dt) for s in sizes for i in range(s.count)])

    def begun(fields, parameters):
        if not problem.method.multistep:
            return fields
        own = {name: fields[name] for name in problem.trees}
        padded = device_grid.surrounded(own, device_grid.widths(1), frame)
        slopes = device_grid.cropped(stepper.rhs(padded, parameters, 0.0, frame))
        return {**own, **{name + MEMORY: slope for name, slope in slopes.items()}}

    def run(fields, parameters):
        step = stepper.step(parameters, frame)

        def body(u, now):
            return device_grid.cropped(step(stepper.framed(u, frame), *now, device_grid.interior)), None

        end = lax.scan(body, begun(fields, parameters), each)[0]
        u, dx, dy = end["u"], *grid.spacing
        ghost = 2 * parameters["B"] * 0.11  # minus the mirror cell: u = B t on the boundary
        wide = jnp.concatenate([ghost - u[:, :1], u, ghost - u[:, -1:]], 1)
        slope_x = (jnp.roll(u, -1, 0) - jnp.roll(u, 1, 0)) / (2 * dx)
        slope_y = (wide[:, 2:] - wide[:, :-2]) / (2 * dy)
        mean = jnp.mean(slope_x**2 + slope_y**2)
        return grid.cell_volume * jnp.sum(u**2 * end["v"]) + parameters["A"] * mean**2

    parameters = {name: jnp.asarray(value) for name, value in problem.parameters.items()}
    return jax.jit(jax.value_and_grad(run, (0, 1)))(forward.initial_fields(), parameters)


@pytest.mark.parametrize("integrator", [
    pytest.param(name, marks=() if name in ("ssprk3", "leapfrog-memories", "ab2") else pytest.mark.long) for name in METHODS
])  # fmt: skip
def test_the_gradient_is_that_of_jax(integrator):
    sweep = sweep_of(tables(integrator))
    value, (by_field, by_parameter) = by_jax(sweep)
    result = sweep(sweep.forward.initial_fields(), sweep.steps)
    assert result.value == pytest.approx(float(value), rel=1e-13)
    for name in ("u", "v"):
        expected, found = np.asarray(by_field[name]), np.asarray(result.arrays[f"initial.{name}"])
        assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()
    x = (np.arange(7) + 0.5)[:, None] * 0.1
    of_initial = float((np.asarray(by_field["u"]) * np.sin(2 * np.pi * x / 0.7)).sum())
    expected = {name: float(by_parameter[name]) for name in ("D", "A", "B")}
    expected["A"] += of_initial  # A is in [initial] too
    for name, derivative in expected.items():
        assert result.numbers[f"equation.{name}"] == pytest.approx(derivative, rel=1e-12)


@pytest.mark.parametrize(
    "integrator",
    [
        pytest.param(name, marks=() if name in ("euler", "leapfrog-memories") else pytest.mark.long)
        for name in METHODS
        if name not in ("ab2", "dopri5")
    ],
)
def test_native_code_reverses_one_or_several_steps_with_the_same_bits(integrator):
    given = tables(integrator, boundary={"y": {"dirichlet": "B"}})
    if integrator not in LEAPFROG:
        given["equation"]["rhs"] = {**REACTION, "u": "D*laplacian(u) - u*dx(u) + A*u**2"}
    reference = sweep_of(given)
    expected = reference(reference.forward.initial_fields(), reference.steps)
    one = sweep_of(given, kernel="native")
    first = one(one.forward.initial_fields(), one.steps)
    for name in expected.numbers:
        assert first.numbers[name] == pytest.approx(expected.numbers[name], rel=1e-12)
    for key, array in expected.arrays.items():
        assert np.allclose(first.arrays[key], array, rtol=0, atol=1e-12 * np.abs(array).max())
    for steps, states in ((2, 9), (2, 1), (4, 2)):
        several = several_at_once(one, steps)
        assert [group.count for group in several.groups] == [*[steps] * (5 // steps), 1, 1][
            : 5 // steps + 1 + 5 % steps
        ]
        other = several(several.forward.initial_fields(), states)
        assert (other.value, other.numbers) == (first.value, first.numbers)
        assert all(np.array_equal(other.arrays[key], array) for key, array in first.arrays.items())


def test_steps_of_a_cfl_number_are_those_of_the_run():
    """They end at output times. Derivatives take their sizes as constant, although D determines them."""
    given = tables(
        "euler", equation={"name": "heat", "D": 0.02}, initial={"u": "sin(9*x)"}, time={"end": 0.3, "cfl": 0.9}
    )
    given |= {"boundary": {}, "objective": {"J": "integral(u**2)"}, "output": {"every": 0.11}}
    sweep = sweep_of({**given, "gradient": {"of": ["initial.u", "equation.D"]}})
    fields = sweep.forward.initial_fields()
    times = [float(steps.start) for steps in sweep.run.ranges]
    assert 0.11 in times and 0.22 in times and sweep.run.time_of(sweep.steps) == 0.3
    expected, clock = integrated(sweep.forward.problem, sweep.forward)
    assert clock.step == sweep.steps
    (u,) = (block for name, block in expected.items() if name == "u")
    result = sweep(fields, 3)
    assert result.value == pytest.approx(0.01 * float((u**2).sum()), rel=1e-14)
    slopes = taylor_slopes(sweep, sweep.forward.get(fields, ("u",)))
    assert all(abs(slope - 2.0) <= 0.05 for slope in slopes), slopes


FOLLOWING = {
    "tolerance": {"numerics": {"integrator": "bs3", "precision": "float64"}, "time": {"end": 3.0, "tolerance": 1e-3}},
    "rates": {"equation": {"name": "burgers", "nu": 0.01}, "time": {"end": 0.3, "cfl": 0.5, "dt_every": 2}},
}


@pytest.mark.parametrize("name, kernel", [
    ("tolerance", "shift"), ("tolerance", "native"), ("rates", "native"), pytest.param("rates", "shift", marks=pytest.mark.long)
])  # fmt: skip
def test_steps_that_follow_the_solution_are_recorded(name, kernel):
    given = tables(
        "rk4", equation={"name": "gray_scott", "D_u": 0.02, "D_v": 0.01}, boundary={}, output={"every": 0.13}
    )
    given |= {"initial": {"u": "1 + 0.3*sin(9*x)", "v": "0.3 + 0.1*cos(10*y)"}}
    given |= {"objective": {"J": {"sum": "integral(u**2*v)", "every_steps": 3}}, **FOLLOWING[name]}
    sweep = sweep_of({**given, "gradient": {"of": ["initial.u", "initial.v"]}}, kernel=kernel)
    fields = sweep.forward.initial_fields()
    sweep, plan = planned(sweep, fields)
    _, clock = integrated(sweep.forward.problem, sweep.forward) if name == "tolerance" else (None, None)
    sizes = {float(steps.dt) for steps in sweep.run.ranges}
    assert len(sizes) > 2 and (clock is None or clock.step == sweep.steps == plan.steps)
    results = [sweep(fields, states) for states in (1, plan.states)]
    assert results[0].value == results[1].value == sweep.value(fields)
    assert all(np.array_equal(results[0].arrays[key], array) for key, array in results[1].arrays.items())
    slopes = taylor_slopes(sweep, sweep.forward.get(fields, ("u", "v")))
    assert all(abs(slope - 2.0) <= 0.05 for slope in slopes), slopes


@pytest.mark.parametrize("integrator, kernel", [
    ("leapfrog", "shift"), ("rk4", "native"), pytest.param("rk4", "shift", marks=pytest.mark.long),
    pytest.param("leapfrog", "native", marks=pytest.mark.long),
])  # fmt: skip
def test_the_gradient_of_a_sum_over_steps_is_the_sum_of_gradients(integrator, kernel):
    """Of runs that end at each of the steps. The initial state adds to the sum too."""

    def found(objective, end):
        given = tables(integrator, objective={"J": objective}, time={"end": end, "dt": 0.02})
        sweep = sweep_of(given, kernel=kernel)
        fields = sweep.forward.initial_fields()
        results = [sweep(fields, states) for states in (1, len(sweep.groups))]
        assert sweep.value(fields) == pytest.approx(results[0].value, rel=1e-14)
        assert all(np.array_equal(results[0].arrays[key], array) for key, array in results[1].arrays.items())
        return results[0], sweep.forward.get(fields, ("u", "v"))

    term = "integral(u**2*v) + A*integral(v)"
    whole, state = found({"sum": term, "every_steps": 2}, 0.1)  # the states after 0, 2 and 4 of 5 steps
    parts = [found(term, end)[0] for end in (0.04, 0.08)]
    u, v = state["u"], state["v"]
    at_once = {"initial.u": 2 * u * v * 0.01, "initial.v": (u**2 + 0.7) * 0.01}
    assert whole.value == pytest.approx(
        sum(part.value for part in parts) + 0.01 * float((u**2 * v + 0.7 * v).sum()), rel=1e-13
    )
    for key, array in at_once.items():
        expected = array + sum(np.asarray(part.arrays[key]) for part in parts)
        assert np.abs(np.asarray(whole.arrays[key]) - expected).max() <= 1e-13 * np.abs(expected).max()
    expected = sum(part.numbers["equation.D"] for part in parts)
    assert whole.numbers["equation.D"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("integrator, kernel", [
    ("leapfrog", "shift"), ("rkl2", "native"), *(pytest.param(*row, marks=pytest.mark.long) for row in (
        ("rk4", "shift"), ("rkl2", "shift"), ("rk4", "native"), ("leapfrog", "native")))
])  # fmt: skip
def test_a_linear_equation_needs_no_states_for_initial_values(integrator, kernel):
    """The derivatives are those of the same equation with a tiny term that is not linear."""
    rhs = {"u": "c*v", "v": "0.01*laplacian(u)"} if integrator == "leapfrog" else {"u": "c*laplacian(u)", "v": "u - v"}
    given = tables(integrator, boundary={"y": {"dirichlet": 0.1}}, initial={"u": "sin(9*x)", "v": "cos(6*y)"})
    given["equation"] = {"name": "custom", "c": 0.02, "rhs": rhs}
    given["objective"] = {"J": "integral(u**2)"}
    given["gradient"] = {"of": ["initial.u"]}
    sweep = sweep_of(given, kernel=kernel)
    assert not sweep.adjoint.needs_states and [group.count for group in sweep.groups] == [5, 1]
    found = sweep(sweep.forward.initial_fields(), 0).arrays["initial.u"]
    linear = rhs["v"]
    rhs["v"] = f"{linear} + 1e-300*v**2" if integrator != "leapfrog" else f"{linear} + 1e-300*u**2"
    given["equation"] = {"name": "custom", "c": 0.02, "rhs": rhs}
    sweep = sweep_of(given, kernel=kernel)
    assert sweep.adjoint.needs_states
    expected = np.asarray(sweep(sweep.forward.initial_fields(), 3).arrays["initial.u"])
    assert np.allclose(found, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_states_are_needed_where_only_differences_beyond_walls_read_them(kernel):
    given = {
        "grid": {"shape": [12, 9], "upper": [1.2, 0.9]},
        "equation": {"name": "maxwell"},
        "boundary": {"x": {"dirichlet": 0.0}},
        "initial": {"Ez": "sin(x)*cos(4*y)", "By": "0.1*y"},
        "numerics": {"integrator": "leapfrog", "precision": "float64"},
        "time": {"end": 0.1, "dt": 0.02},
        "objective": {"J": "integral(Ez**2)"},
        "gradient": {"of": ["equation.c"]},
    }
    sweep = sweep_of(given, kernel=kernel)
    assert sweep.adjoint.needs_states
    start = {name: np.asarray(array) for name, array in sweep.forward.initial_fields().items()}
    assert all(abs(slope - 2) < 0.05 for slope in taylor_slopes(sweep, start))


def test_a_parameter_of_both_groups_of_leapfrog():
    """A is in the rates of both, so that the reversed steps are not leapfrog themselves."""
    given = tables("leapfrog", boundary={"y": {"dirichlet": "B"}}, initial={"u": "sin(9*x)", "v": "cos(6*y)"})
    given["equation"]["rhs"] = {"u": "A*v", "v": "D*laplacian(u) - A*u**3"}
    given["objective"] = {"J": "integral(u**2*v)"}
    for kernel in ("shift", "native"):
        sweep = sweep_of(given, kernel=kernel)
        fields = {name: np.array(array) for name, array in sweep.forward.initial_fields().items()}
        found = taylor_slopes(sweep, fields)
        assert max(abs(slope - 2) for slope in found) < 0.05, found


@pytest.mark.parametrize("u", ["v", "0"])
def test_a_number_in_no_right_hand_side_with_damped_leapfrog(u):
    """Native code then keeps the derivative, and a field, where they are."""
    tables = {
        "grid": {"shape": [24], "upper": [1.0]},
        "equation": {"name": "custom", "p": 1.3, "rhs": {"u": u, "v": "laplacian(u) - u**2 - 0.5*v"}},
        "initial": {"u": "p*sin(3*x)", "v": "cos(x)"},
        "boundary": {"x": {"neumann": 0.0}},
        "numerics": {"integrator": "leapfrog", "precision": "float64"},
        "time": {"end": 0.1, "dt": 0.01},
        "objective": {"J": {"sum": "integral(v**2)"}},
        "gradient": {"of": ["initial.v", "equation.p"], "checkpoints": 3},
    }
    expected = in_memory(members_from(tables))
    members = members_from(tables, kernel="native")
    for _ in range(3):
        found = in_memory(members)
        assert found.numbers["equation.p"] == pytest.approx(expected.numbers["equation.p"], rel=1e-13)
        assert np.allclose(found.blocks["initial.v"], expected.blocks["initial.v"], rtol=1e-12, atol=1e-15)


def test_stored_states_do_not_change_the_bits():
    sweep = sweep_of(tables("ssprk2"))
    first = sweep(sweep.forward.initial_fields(), sweep.steps)
    for states in (1, 2, 3):
        other = sweep(sweep.forward.initial_fields(), states)
        assert (other.value, other.numbers) == (first.value, first.numbers)
        assert all(np.array_equal(other.arrays[key], array) for key, array in first.arrays.items())


def test_a_sweep_takes_the_memory_of_the_one_before():
    sweep = sweep_of(tables("ssprk2"))
    first = sweep(sweep.forward.initial_fields(), 3)
    held = len(sweep.compiled.spare.held)
    for _ in range(3):
        other = sweep(sweep.forward.initial_fields(), 3)
        assert other.numbers == first.numbers
        assert all(np.array_equal(other.arrays[key], array) for key, array in first.arrays.items())
        assert len(sweep.compiled.spare.held) <= held
    sweep(sweep.forward.initial_fields(), 1)
    sweep(sweep.forward.initial_fields(), 1)
    assert len(sweep.compiled.spare.held) < held  # the memory of two stored states is not needed any more


@functools.cache
def fewest(steps, states):
    """The least number of steps that reverses a range, by trying every place for the next stored state."""
    if steps == 1:
        return 0
    if states == 1:
        return steps * (steps - 1) // 2
    return min(m + fewest(m, states) + fewest(steps - m, states - 1) for m in range(1, steps))


@pytest.mark.parametrize("states", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 20, 56])
def test_the_schedule_reverses_all_steps_with_the_fewest(steps, states):
    stored, reversed_, taken, most = {0}, [], 0, 1
    for action in actions(steps, states):
        if isinstance(action, Advance):
            assert action.first in stored
            taken += action.last - action.first
            stored |= {action.last} - {steps}
        else:
            stored.remove(action.step)
            reversed_.append(action.step)
        most = max(most, len(stored))
    assert reversed_ == [*reversed(range(steps))]
    assert taken == steps_taken(steps, states) == fewest(steps, states) + 1  # the last step is taken once
    assert most <= states + 1  # the state that is worked on


def test_the_published_counts():
    """Griewank & Walther: 1000 steps with 20 checkpoints, and 10 000 with 100."""
    assert steps_taken(1000, 20) / 1000 == pytest.approx(2.75, abs=0.01)
    assert steps_taken(10_000, 100) / 10_000 == pytest.approx(2.47, abs=0.01)


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_a_decaying_mode(kernel):
    """u = A exp(-λ D t) cos x, J = ∫ u² over a period: dJ/dD = -2 λ t J, dJ/dA = 2 J / A, dJ/du0 = 2 dx exp(-λ D t) u."""
    n, steps, dt, diffusivity = 12, 40, 0.01, 0.7
    sweep = sweep_of({
        "grid": {"shape": [n], "upper": [2 * np.pi]},
        "equation": {"name": "custom", "D": diffusivity, "A": 1.5, "rhs": {"u": "D*laplacian(u)"}},
        "initial": {"u": "A*cos(x)"},
        "numerics": {"precision": "float64", "integrator": "euler"},
        "time": {"end": steps * dt, "dt": dt},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["initial.u", "equation.D", "equation.A"]},
    }, kernel=kernel)  # fmt: skip
    dx = 2 * np.pi / n
    eigenvalue = (2 - 2 * np.cos(dx)) / dx**2
    growth = 1 - dt * diffusivity * eigenvalue  # of a step of forward Euler
    x = (np.arange(n) + 0.5) * dx
    end = 1.5 * growth**steps * np.cos(x)
    result = sweep(sweep.forward.initial_fields(), 5)
    assert result.value == pytest.approx(dx * (end**2).sum(), rel=1e-13)
    assert result.numbers["equation.D"] == pytest.approx(
        -2 * steps * dt * eigenvalue / growth * result.value, rel=1e-12
    )
    assert result.numbers["equation.A"] == pytest.approx(2 * result.value / 1.5, rel=1e-12)
    assert np.allclose(result.arrays["initial.u"], 2 * dx * growth**steps * end, rtol=0, atol=1e-13)


def test_derivatives_that_are_not_finite_are_reported():
    sweep = sweep_of({
        "grid": {"shape": [6]},
        "equation": {"name": "custom", "rhs": {"u": "sqrt(abs(u))"}},
        "initial": {"u": "x - 2.5"},  # 0 in one cell
        "time": {"end": 0.1, "dt": 0.1},
        "numerics": {"integrator": "euler"},
        "objective": {"J": "integral(u)"},
        "gradient": {"of": ["initial.u"]},
    })  # fmt: skip
    with pytest.raises(NumericsError, match="finite derivatives with respect to initial.u, but 1 cells have none"):
        sweep(sweep.forward.initial_fields(), 1)
    for objective, sentence in (
        ("sqrt(sum((r - r)**2))", "its sums, but got inf"),
        ("sum(sqrt((r - r)**2))", "2 of 2 have none"),
    ):
        of_samples = sweep_of({
            "grid": {"shape": [6]},
            "equation": {"name": "custom", "rhs": {"u": "dxx(u)"}},
            "initial": {"u": "x"},
            "time": {"end": 0.1, "dt": 0.1},
            "probes": {"r": {"field": "u", "x": 3.0}},
            "objective": {"J": objective},
            "gradient": {"of": ["initial.u"]},
        })  # fmt: skip
        with pytest.raises(NumericsError, match=f"finite derivatives of the objective with respect to .*{sentence}"):
            of_samples(of_samples.forward.initial_fields(), 1)
    blown = sweep.forward.put({"u": np.full(6, np.inf, np.float32)})
    with pytest.raises(NumericsError, match="objective: expected a finite value"):
        sweep(blown, 1)


def test_a_power_that_is_0_does_not_change_with_its_exponent():
    def objective_at(p):
        tables = {
            "grid": {"shape": [20], "upper": [1.0]},
            "equation": {"name": "custom", "p": p, "rhs": {"u": "-abs(u)**p"}},
            "initial": {"u": "maximum(x - 0.5, 0)"},  # 0 in half of the cells
            "numerics": {"precision": "float64"},
            "time": {"end": 0.2, "dt": 0.02},
            "objective": {"J": "integral(u**2)"},
            "gradient": {"of": ["equation.p"]},
        }
        with hs.Simulation(tables) as sim:
            return sim.value_and_gradient()

    (below, _), (_, found), (above, _) = map(objective_at, (1.7 - 1e-5, 1.7, 1.7 + 1e-5))
    assert found["equation.p"] == pytest.approx((above - below) / 2e-5, rel=1e-8)


def test_a_rate_that_is_0_in_many_cells_does_not_make_the_gradient_0_there():
    """Native code skips cells where the memory of a layer stays 0. The derivative by u is not 0 where the rate of u is."""
    given = {
        "grid": {"shape": [200, 40]},
        "equation": {"name": "custom", "rhs": {"u": "1e-3*maximum(0, x - 100)*u"}},
        "initial": {"u": "1 + 0.1*sin(x)"},
        "numerics": {"precision": "float64", "integrator": "euler"},
        "time": {"end": 1.0, "dt": 0.1},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["initial.u"]},
    }
    sweep = sweep_of(given, kernel="native")
    u = np.array(sweep.forward.initial_fields()["u"])
    x = np.arange(200)[:, None] + 0.5
    growth = (1 + 1e-4 * np.maximum(0, x - 100)) ** 10
    found = sweep(sweep.forward.initial_fields(), 10).arrays["initial.u"]
    assert np.allclose(found, 2 * growth**2 * u, rtol=1e-13)


def test_an_objective_may_consist_of_parameters_alone():
    sweep = sweep_of({
        "grid": {"shape": [6]},
        "equation": {"name": "heat", "D": 0.3},
        "initial": {"u": "x"},
        "time": {"end": 0.1, "dt": 0.1},
        "objective": {"J": "D**2"},
        "gradient": {"of": ["initial.u", "equation.D"]},
    })  # fmt: skip
    result = sweep(sweep.forward.initial_fields(), 1)
    assert (result.value, result.numbers["equation.D"]) == (0.3**2, 0.6)
    assert not np.asarray(result.arrays["initial.u"]).any()


UNEVEN = {"u": "0.3*sin(9*x + 2*y) + 0.7*y", "v": "cos(6*y + x)"}  # without equal extrema


@pytest.mark.parametrize("kernel", ["shift", "native"])
@pytest.mark.parametrize("solid", [{}, {"mask": {"solid": "x > 0.5"}}])
def test_the_derivative_of_an_extremum_is_that_of_its_cell(kernel, solid):
    def found(text):
        sweep = sweep_of(tables("rk4", objective={"J": text}, initial=UNEVEN, **solid), kernel=kernel)
        return sweep, sweep(sweep.forward.initial_fields(), 3)

    sweep, largest = found("3*max(u) - A*min(u*v)")
    end = sweep.forward.get(sweep.forward_steps.taken(sweep.forward.initial_fields(), 0, 6), ("u", "v"))
    cells = np.s_[:5] if solid else np.s_[:]
    u, both = end["u"][cells], (end["u"] * end["v"])[cells]
    places = [", ".join(f"{0.1 * n + 0.05}" for n in np.unravel_index(k, u.shape)) for k in (u.argmax(), both.argmin())]
    _, there = found(f"3*at(u, {places[0]}) - A*at(u*v, {places[1]})")
    assert largest.value == pytest.approx(3 * u.max() - 0.7 * both.min(), rel=1e-14)
    for name, number in there.numbers.items():
        assert largest.numbers[name] == pytest.approx(number, rel=1e-12)
    for name, array in there.arrays.items():
        assert np.abs(np.asarray(largest.arrays[name]) - array).max() < 1e-13 * np.abs(array).max()


def test_equal_extrema_have_equal_shares_of_the_derivative():
    given = tables("euler", initial={"u": "where(x > 0.4, 1, 0.2*y)", "v": "0"}, objective={"J": "max(u)"}, boundary={})
    given |= {"equation": {"name": "custom", "rhs": {"u": "-u", "v": "0"}}, "gradient": {"of": ["initial.u"]}}
    sweep = sweep_of(given)
    found = np.asarray(sweep(sweep.forward.initial_fields(), 3).arrays["initial.u"])
    factor = 0.98**5 * 0.99
    assert np.allclose(found[4:].sum(), factor, rtol=1e-13) and not found[:4].any() and np.ptp(found[4:]) == 0


def test_extrema_of_several_states_have_remainders_of_second_order():
    text = "log(2 + max(u + dx(v)))*mean(v) + A*min(u*v)"
    sweep = sweep_of(tables("ssprk2", initial=UNEVEN, objective={"J": {"sum": text, "every_steps": 2}}))
    start = {name: sweep.forward.block(array) for name, array in sweep.forward.initial_fields().items()}
    slopes = taylor_slopes(sweep, start, size=1e-4)
    assert all(abs(slope - 2) < 0.05 for slope in slopes), slopes


def test_without_states_beside_open_ends():
    """Reverse steps have no fields of the equation then, on which the boundary values of u depend."""
    given = {
        "grid": {"shape": [9], "upper": [0.9]},
        "equation": {"name": "wave"},
        "initial": {"u": "1 + sin(5*x)"},
        "boundary": {"x": "open"},
        "numerics": {"precision": "float64", "integrator": "leapfrog"},
        "time": {"end": 0.04, "dt": 0.01},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["initial.u", "initial.v"]},
    }
    found = []
    for kernel in ("shift", "native"):
        sweep = sweep_of(given, kernel=kernel)
        assert not sweep.adjoint.needs_states
        result = sweep(sweep.forward.initial_fields(), 1)
        found.append([np.asarray(result.arrays[key]) for key in given["gradient"]["of"]])
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, rtol=0, atol=1e-14) and np.abs(one).max() > 0


@pytest.mark.parametrize("kernel", ("native", "shift"))
def test_an_objective_may_apply_operators_that_read_nothing(kernel):
    """∇·(u ∇k) of a number k is 0, whatever u is: its program reads no field."""
    given = {
        "grid": {"shape": [32]},
        "equation": {"name": "custom", "k": 1.0, "rhs": {"u": "k*dxx(u)"}},
        "initial": {"u": "sin(x)"},
        "time": {"end": 0.3, "dt": 0.1},
        "objective": {"m": "integral(div_grad(u, k))"},
        "gradient": {"of": ["equation.k"]},
    }
    sweep = sweep_of(given, kernel=kernel)
    result = sweep(sweep.forward.initial_fields(), 3)
    assert (result.value, result.numbers) == (0.0, {"equation.k": 0.0})
