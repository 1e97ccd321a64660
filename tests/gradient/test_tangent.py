"""sim.tangent and sim.hessian_product: against the gradient, finite differences and closed forms."""

import numpy as np
import pytest
from test_taylor import BESIDE, tables

import hpcstencil as hs
from hpcstencil.equations import EQUATIONS
from hpcstencil.numerics.integrators import INTEGRATORS

N = 12
GIVEN = {
    "grid": {"shape": [N], "upper": [1.2]},
    "equation": {
        "name": "custom",
        "D": np.linspace(0.01, 0.02, N),
        "A": 0.5,
        "rhs": {"u": "div_grad(D, u) + A*u - u**3 + where(v > 0, u*dx(v), 0)", "v": "laplacian(u) - abs(v)*v"},
    },
    "initial": {"u": "A*sin(2*pi*x/1.2)", "v": "cos(5*x) + A**2"},
    "boundary": {"x": {"dirichlet": "0.1*t"}},
    "numerics": {"kernel": "shift", "precision": "float64", "integrator": "ssprk2"},
    "time": {"end": 0.02, "dt": 0.001},
    "objective": {"misfit": "integral((u - target)**2) + A*mean(v)**3", "data": {"target": np.linspace(0, 1, N)}},
    "gradient": {"of": ["initial.u", "equation.D", "equation.A"], "checkpoints": 3},
}


def random_direction(sim, names, seed=0):
    """A direction of the size of the unknowns."""
    rng = np.random.default_rng(seed)
    numbers = sim._open.problem.parameters
    direction = {}
    for name in names:
        table, _, own = name.partition(".")
        if table == "equation" and own in numbers:
            direction[name] = float(rng.standard_normal()) * max(0.1, abs(numbers[own]))
        else:
            direction[name] = rng.standard_normal(sim._open.problem.config.grid.shape) * 0.1
    return direction


def product(a, b):
    return sum(float(np.sum(np.asarray(a[key]) * b[key])) for key in b)


pytestmark = pytest.mark.filterwarnings("ignore:time.dt")  # a few steps do not blow up


def along_the_gradient(given):
    """(derivative of the objective along a direction by sim.tangent, by sim.value_and_gradient)."""
    with hs.Simulation(given) as sim:
        direction = random_direction(sim, given["gradient"]["of"])
        slope = sim.tangent(direction)[next(iter(given["objective"]))]
        return slope, product(sim.value_and_gradient()[1], direction)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "heat" else pytest.mark.long) for name in EQUATIONS
])  # fmt: skip
def test_every_equation(name):
    slope, expected = along_the_gradient(tables(name, None))
    assert slope == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=() if kind == "cpml-leapfrog" else pytest.mark.long) for kind in BESIDE
])  # fmt: skip
def test_beside_boundaries(kind):
    slope, expected = along_the_gradient(tables(*BESIDE[kind]))
    assert slope == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("integrator", [
    pytest.param(name, marks=() if name in ("ab2", "leapfrog") else pytest.mark.long) for name in INTEGRATORS
])  # fmt: skip
@pytest.mark.parametrize("kernel", ["native", pytest.param("shift", marks=pytest.mark.long)])
def test_every_integrator(integrator, kernel):
    numerics = {**GIVEN["numerics"], "integrator": integrator, "kernel": kernel}
    numerics |= {"stages": 4} if integrator == "rkl2" else {}
    given = {**GIVEN, "numerics": numerics}
    if integrator == "leapfrog":
        rhs = {"u": "A*v", "v": "div_grad(D, u) - u**3"}
        given["equation"] = {**GIVEN["equation"], "rhs": rhs}
    slope, expected = along_the_gradient(given)
    assert slope == pytest.approx(expected, rel=1e-11)


def test_the_fields_are_those_of_finite_differences():
    """Parameters also through the initial values, until these are assigned."""
    h = 1e-6

    def end(a, start=None):
        with hs.Simulation({**GIVEN, "equation": {**GIVEN["equation"], "A": a}}) as sim:
            if start is not None:
                sim["u"] = start
            sim.run()
            return np.array(sim["u"]), np.array(sim["v"])

    with hs.Simulation(GIVEN) as sim:
        found = sim.tangent({"equation.A": 1.0})
        for name, above, below in zip(("u", "v"), end(0.5 + h), end(0.5 - h), strict=True):
            assert np.allclose(found[name], (above - below) / (2 * h), rtol=1e-6, atol=1e-7)
        start = np.linspace(0, 1, N)
        sim["u"] = start
        assert sim.steps == 0
        found = sim.tangent({"equation.A": 2.0})
        for name, above, below in zip(("u", "v"), end(0.5 + h, start), end(0.5 - h, start), strict=True):
            assert np.allclose(found[name], (above - below) / h, rtol=1e-6, atol=1e-7)
        assert np.array_equal(sim["u"], start)
        both = sim.tangent({"equation.A": 2.0, "initial.u": "0*x"})
        assert all(np.array_equal(both[name], found[name]) for name in found)


@pytest.mark.parametrize(("integrator", "kernel"), [
    ("ssprk2", "shift"), ("ssprk2", "native"), pytest.param("ab2", "shift", marks=pytest.mark.long)
])  # fmt: skip
def test_a_product_of_the_hessian_is_the_derivative_of_the_gradient(integrator, kernel):
    names, h = ["equation.D", "equation.A", "initial.v"], 1e-5
    given = {**GIVEN, "numerics": {**GIVEN["numerics"], "integrator": integrator, "kernel": kernel}}
    with hs.Simulation(given) as sim:
        v, w = random_direction(sim, names, 1), random_direction(sim, names, 2)
        of_v, of_w = sim.hessian_product(v), sim.hessian_product(w)
        start = np.array(sim["v"])
    assert list(of_v) == names
    assert product(of_v, w) == pytest.approx(product(of_w, v), rel=1e-10)

    def gradient(step):
        equation = {**GIVEN["equation"], "A": 0.5 + step * v["equation.A"]}
        equation["D"] = GIVEN["equation"]["D"] + step * v["equation.D"]
        with hs.Simulation({**given, "equation": equation, "gradient": {"of": names}}) as sim:
            # v(0) depends on A, and moves along its own direction besides.
            moved = start + (equation["A"] ** 2 - 0.25) + step * v["initial.v"]
            sim["v"] = moved
            found = sim.value_and_gradient()[1]
            found["equation.A"] += 2 * equation["A"] * found["initial.v"].sum()  # dv(0)/dA, which the assignment hides
            return found

    above, below = gradient(h), gradient(-h)
    for name in names:
        expected = (np.asarray(above[name]) - np.asarray(below[name])) / (2 * h)
        assert np.allclose(of_v[name], expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max()), name


@pytest.mark.parametrize("integrator", ["euler", pytest.param("ab2", marks=pytest.mark.long)])
def test_each_member_of_an_ensemble_has_the_bits_of_a_single_run(integrator):
    """Members differ in A, and so in u(0); D and v(0) are shared."""
    objective = {**GIVEN["objective"], "misfit": "integral((u - target)**2) + A*mean(v)**3 + max(u*v)**2"}
    given = {**GIVEN, "objective": objective}
    given |= {"numerics": {**GIVEN["numerics"], "integrator": integrator}, "time": {"end": 0.003, "dt": 0.001}}
    rates, names = [0.5, 0.3], ["equation.A", "equation.D", "initial.u"]
    with hs.Simulation({**given, "ensemble": {"equation.A": rates}}) as sim:
        shared, each = random_direction(sim, ["equation.D"]), random_direction(sim, ["initial.u"])["initial.u"]
        direction = {"equation.A": [0.2, -0.1], **shared, "initial.u": np.stack([each, 2 * each])}
        tangents, products = sim.tangent(direction), sim.hessian_product(direction)
    assert list(products) == list(direction)
    objectives, of_d = [], []
    for member, rate in enumerate(rates):
        own = {key: value if key == "equation.D" else value[member] for key, value in direction.items()}
        with hs.Simulation({**given, "equation": {**given["equation"], "A": rate}}) as sim:
            expected, product_ = sim.tangent(own), sim.hessian_product(own)
        assert all(np.array_equal(tangents[name][member], expected[name]) for name in ("u", "v"))
        assert all(np.array_equal(products[name][member], product_[name]) for name in names if name != "equation.D")
        objectives.append(expected["misfit"])
        of_d.append(product_["equation.D"])
    assert tangents["misfit"] == sum(objectives)
    assert np.array_equal(products["equation.D"], of_d[0] + of_d[1])


def test_directions_of_ensembles_are_refused():
    given = {"grid": GIVEN["grid"], "time": GIVEN["time"], "ensemble": {"equation.A": [0.5, 0.3]}}
    given["equation"] = {"name": "custom", "A": 0.1, "B": 0.2, "rhs": {"u": "A*u + B"}}
    given["numerics"] = {"kernel": "shift"}
    right = {"equation.A": 1.0, "equation.B": 1.0, "initial.u": 1.0}
    with hs.Simulation(given) as sim:
        for wrong, sentence in (
            ({"equation.A": [1.0, 2.0, 3.0]}, "expected a finite number or one per member"),
            ({"equation.B": [1.0, 2.0]}, "expected a finite number, but"),
            ({"initial.u": "A*x"}, "expected one value for all members of the ensemble, which share initial.u"),
        ):
            with pytest.raises(hs.InputError, match=sentence):
                sim.tangent({**right, **wrong})


def test_the_hessian_of_a_decaying_mode():
    """u = A exp(-λ t) cos x and J = ∫ u² = π A² exp(-2 λ t): d²J/dA² = 2 J / A², in single precision and native code."""
    given = {
        "grid": {"shape": [16, 4], "upper": [2 * np.pi, 1.0]},
        "equation": {"name": "custom", "D": 0.3, "A": 1.5, "rhs": {"u": "D*laplacian(u)"}},
        "initial": {"u": "A*cos(x)"},
        "time": {"end": 0.5, "dt": 0.02},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["equation.A"], "checkpoints": 4},
    }
    with hs.Simulation(given) as sim:
        value, _ = sim.value_and_gradient()
        assert sim.hessian_product({"equation.A": 3.0})["equation.A"] == pytest.approx(6 * value / 1.5**2, rel=1e-5)
        assert sim.tangent({"equation.A": 3.0})["J"] == pytest.approx(6 * value / 1.5, rel=1e-5)


# Steps that follow the solution
FOLLOWING = {
    "tolerance": {**GIVEN, "numerics": {**GIVEN["numerics"], "integrator": "bs3"}, "time": {"end": 0.02, "tolerance": 1e-4}},
    "cfl": {
        **GIVEN,
        "equation": {"name": "burgers", "nu": 0.05},
        "initial": {"u": "sin(5*x)"},
        "objective": {"J": {"sum": "integral(u**4)", "every_steps": 2}},
        "time": {"end": 0.3, "cfl": 0.5, "dt_every": 2},
        "gradient": {"of": ["initial.u", "equation.nu"]},
    },
}  # fmt: skip


@pytest.mark.parametrize("kernel", ["shift", "native"])
@pytest.mark.parametrize("name", FOLLOWING)
def test_steps_that_follow_the_solution_are_recorded(name, kernel):
    given = {**FOLLOWING[name], "numerics": {**FOLLOWING[name]["numerics"], "kernel": kernel}}
    slope, expected = along_the_gradient(given)
    assert slope == pytest.approx(expected, rel=1e-11) != 0
    with hs.Simulation(given) as sim:
        v, w = (random_direction(sim, given["gradient"]["of"], seed) for seed in (1, 2))
        of_v, of_w = sim.hessian_product(v), sim.hessian_product(w)
    assert product(of_v, w) == pytest.approx(product(of_w, v), rel=1e-10) != 0


@pytest.mark.parametrize("name", FOLLOWING)
def test_members_record_their_own_steps(name):
    given, key = FOLLOWING[name], "equation.nu" if name == "cfl" else "equation.A"
    values = [0.05, 0.08]
    with hs.Simulation({**given, "ensemble": {key: values}}) as sim:
        direction = {key: [0.2, -0.1], **random_direction(sim, ["initial.u"])}
        tangents, products = sim.tangent(direction), sim.hessian_product(direction)
    for member, value in enumerate(values):
        own = {name: each[member] if name == key else each for name, each in direction.items()}
        with hs.Simulation({**given, "equation": {**given["equation"], key.removeprefix("equation."): value}}) as sim:
            expected, product_ = sim.tangent(own), sim.hessian_product(own)
        assert np.array_equal(tangents["u"][member], expected["u"])
        assert products[key][member] == product_[key]


@pytest.mark.parametrize(("direction", "sentence"), [
    ({"equation.B": 1.0}, 'direction: unknown name "equation.B"; did you mean'),
    ({"equation.A": "x"}, r'direction\["equation.A"\]: expected real numbers'),
    ({"equation.A": np.nan}, r'direction\["equation.A"\]: expected a finite number, but got nan'),
    ({"equation.A": np.ones(2)}, r'direction\["equation.A"\]: expected a finite number'),
    ({"initial.u": np.ones(3)}, r'direction\["initial.u"\]: expected the shape \(12,\)'),
    ({}, "expected a dict of directions"),
    (3.0, "expected a dict of directions"),
])  # fmt: skip
def test_errors(direction, sentence):
    with hs.Simulation(GIVEN) as sim:
        for method in (sim.tangent, sim.hessian_product):
            with pytest.raises(hs.InputError, match=sentence):
                method(direction)


# Sums over receivers: native code adds their derivatives if they record fields, not if one records an expression.
OF_FIELDS = {
    **GIVEN,
    "probes": {
        "p": {"field": "u", "x": [0.31, 0.7], "every_steps": 2},
        "q": {"field": "u", "x": [0.5], "every_steps": 5},
        "r": {"field": "v", "x": [0.5], "every_steps": 5},
    },
    "objective": {
        "J": "sqrt(1 + sum((A*p - observed)**2*cos(t)))*(1 + A*mean(v)) + sum(q*r**2) + A*integral(u**3)",
        "data": {"observed": np.linspace(-0.5, 0.5, 22).reshape(11, 2)},
    },
}
OF_EXPRESSIONS = {
    **OF_FIELDS,
    "probes": {**OF_FIELDS["probes"], "q": {**OF_FIELDS["probes"]["r"], "expression": "A*D*dx(v)"}},
}
del OF_EXPRESSIONS["probes"]["q"]["field"]
SHOT = {  # with the recorded data of another model
    "grid": {"shape": [24, 20], "upper": [1.2, 1.0]},
    "equation": {
        "name": "acoustic", "c": 1.0 + 0.2 * np.add.outer(np.sin(np.arange(24) / 4), np.zeros(20)), "xs": 0.3, "ys": 0.5,
        "source": {"series": np.sin(np.arange(41) / 6.0), "dt": 0.02},
    },
    "numerics": {"precision": "float64", "integrator": "leapfrog", "order": 4},
    "boundary": {"x": {"cpml": {"width": 0.2, "speed": 1.0}}, "y": {"cpml": {"width": 0.2, "speed": 1.0}}},
    "time": {"end": 0.8, "dt": 0.02},
    "probes": {"of_p": {"field": "p", "x": [0.3, 0.5, 0.7, 0.9], "y": 0.8, "every_steps": 2}},
    "objective": {"J": "sum((of_p - observed)**2)", "data": {"observed": np.zeros((21, 4))}},
    "gradient": {"of": ["equation.c", "equation.source"]},
}  # fmt: skip


def directions_of_shot(seed):
    rng = np.random.default_rng(seed)
    return {"equation.c": 0.1 * rng.standard_normal((24, 20)), "equation.source": rng.standard_normal(41)}


@pytest.mark.parametrize("kernel", ["shift", "native"])
@pytest.mark.parametrize("given", [OF_FIELDS, OF_EXPRESSIONS], ids=["fields", "expressions"])
def test_sums_over_receivers(given, kernel):
    given = {**given, "numerics": {**given["numerics"], "kernel": kernel}}
    slope, expected = along_the_gradient(given)
    assert slope == pytest.approx(expected, rel=1e-11) != 0
    names, h = given["gradient"]["of"], 1e-5
    with hs.Simulation(given) as sim:
        v, w = (random_direction(sim, names, seed) for seed in (1, 2))
        of_v, of_w = sim.hessian_product(v), sim.hessian_product(w)
    assert product(of_v, w) == pytest.approx(product(of_w, v), rel=1e-10) != 0

    def slope_along_w(step):
        equation = {**given["equation"], "A": 0.5 + step * v["equation.A"]}
        equation["D"] = given["equation"]["D"] + step * v["equation.D"]
        with hs.Simulation({**given, "equation": equation}) as sim:
            sim["u"] = np.array(sim["u"]) + step * v["initial.u"]
            # u(0) = A sin(..), which the assignment hides
            along_a = w["equation.A"] * np.sin(2 * np.pi * (np.arange(N) + 0.5) / N)
            return sim.tangent({**w, "initial.u": w["initial.u"] + along_a})["J"]

    difference = (slope_along_w(h) - slope_along_w(-h)) / (2 * h)
    assert product(of_v, w) == pytest.approx(difference, rel=1e-6)


def test_the_hessian_of_a_shot():
    """Along the source the samples are linear: for J = Σ r², vᵀHv = 2 Σ ṙ² = 2 J(ṙ)."""
    with hs.Simulation(SHOT) as sim:
        v, w = directions_of_shot(1), directions_of_shot(2)
        of_v, of_w = sim.hessian_product(v), sim.hessian_product(w)
        along = {"equation.source": v["equation.source"]}
        own = product(sim.hessian_product(along), along)
        slope, gradient = sim.tangent(v)["J"], sim.value_and_gradient()[1]
        recorders = [run.samples.recorder.samples for run in sim._tangent[1].runs]
    assert all(cells.while_stepping for cells in recorders)  # native code records them
    assert slope == pytest.approx(product(gradient, v), rel=1e-11) != 0
    assert product(of_v, w) == pytest.approx(product(of_w, v), rel=1e-10) != 0
    source = {**SHOT["equation"]["source"], "series": v["equation.source"]}
    with hs.Simulation({**SHOT, "equation": {**SHOT["equation"], "source": source}}) as sim:
        assert own == pytest.approx(2 * sim.value_and_gradient()[0], rel=1e-11) != 0


def test_members_have_receivers_with_data_of_their_own():
    places, data = [0.3, 0.6], np.random.default_rng(4).standard_normal((2, 21, 4))
    given = {
        **SHOT,
        "ensemble": {"equation.xs": places},
        "objective": {**SHOT["objective"], "data": {"observed": data}},
    }
    direction = {"equation.c": directions_of_shot(1)["equation.c"]}
    with hs.Simulation(given) as sim:
        slope, found = sim.tangent(direction)["J"], sim.hessian_product(direction)["equation.c"]
    slopes, products = [], []
    for place, observed in zip(places, data, strict=True):
        own = {**SHOT, "equation": {**SHOT["equation"], "xs": place}}
        with hs.Simulation({**own, "objective": {**SHOT["objective"], "data": {"observed": observed}}}) as sim:
            slopes.append(sim.tangent(direction)["J"])
            products.append(sim.hessian_product(direction)["equation.c"])
    assert slope == sum(slopes) and slopes[0] != slopes[1]
    assert np.array_equal(found, products[0] + products[1])


def test_receivers_beside_solid_cells():
    mask = {"solid": "(x - 0.6)**2 + (y - 0.5)**2 < 0.04"}
    given = {
        **SHOT,
        "mask": mask,
        "equation": {"name": "wave", "c": 1.1},
        "boundary": {},
        "initial": {"u": "sin(4*x)*y"},
    }
    given |= {"numerics": {"precision": "float64", "order": 2}, "gradient": {"of": ["initial.u", "equation.c"]}}
    given["probes"] = {"p": {"field": "u", "x": [0.3, 0.5, 0.62], "y": [0.8, 0.72, 0.74]}}
    given["objective"] = {"J": "sum(p**4)"}
    slope, expected = along_the_gradient(given)
    assert slope == pytest.approx(expected, rel=1e-11) != 0
    with hs.Simulation(given) as sim:
        v, w = (random_direction(sim, given["gradient"]["of"], seed) for seed in (1, 2))
        assert product(sim.hessian_product(v), w) == pytest.approx(product(sim.hessian_product(w), v), rel=1e-10)


@pytest.mark.parametrize(("kernel", "solid"), [("shift", {}), ("native", {"mask": {"solid": "x > 0.9"}})])
def test_extrema_of_several_states(kernel, solid):
    given = {
        **GIVEN,
        **solid,
        "equation": {"name": "custom", "A": 0.5, "rhs": {"u": "0.02*laplacian(u) + A*u*v", "v": "dx(u) - v**3"}},
        "initial": {"u": "0.3*sin(9*x) + 0.7*x", "v": "cos(5*x)"},
        "boundary": {"x": {"neumann": 0.1}},
        "numerics": {**GIVEN["numerics"], "kernel": kernel},
        "objective": {"J": {"sum": "log(2 + max(u**2 + dx(v)))*mean(v) + A*min(u*v)**2", "every_steps": 4}},
        "gradient": {"of": ["initial.u", "equation.A"]},
    }
    slope, expected = along_the_gradient(given)
    assert slope == pytest.approx(expected, rel=1e-11) != 0
    with hs.Simulation(given) as sim:
        v, w = (random_direction(sim, given["gradient"]["of"], seed) for seed in (1, 2))
        of_v, of_w, start = sim.hessian_product(v), sim.hessian_product(w), np.array(sim["u"])
    assert product(of_v, w) == pytest.approx(product(of_w, v), rel=1e-10) != 0

    def slope_along_w(step):
        with hs.Simulation({**given, "equation": {**given["equation"], "A": 0.5 + step * v["equation.A"]}}) as sim:
            sim["u"] = start + step * v["initial.u"]
            return sim.tangent(w)["J"]

    h = 1e-5
    assert product(of_v, w) == pytest.approx((slope_along_w(h) - slope_along_w(-h)) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_equal_extrema_have_equal_shares(kernel):
    """u decays by a factor f, and is 1 in n cells at t = 0. In others sqrt(u) has no finite derivative."""
    given = {
        "grid": GIVEN["grid"],
        "equation": {"name": "custom", "rhs": {"u": "-u"}},
        "initial": {"u": "where(x > 0.5, 1, 0)"},
        "numerics": {"kernel": kernel, "precision": "float64", "integrator": "euler"},
        "time": {"end": 0.05, "dt": 0.01},
        "objective": {"J": "max(sqrt(u))"},
    }
    n, f, direction = 7, 0.99**5, np.random.default_rng(3).standard_normal(N)
    with hs.Simulation(given) as sim:
        slope, found = (method({"initial.u": direction}) for method in (sim.tangent, sim.hessian_product))
    assert slope["J"] == pytest.approx(np.sqrt(f) / 2 * direction[-n:].mean(), rel=1e-13)
    assert np.allclose(found["initial.u"][-n:], -np.sqrt(f) / (4 * n) * direction[-n:], rtol=1e-13)
    assert not found["initial.u"][:-n].any()


@pytest.mark.parametrize(
    ("root", "sentence"),
    [
        ("sqrt(abs(u))", "expected finite derivatives of u, but 1 cells have none"),
        ("0*u", "expected a finite derivative of J, but got nan"),
    ],
)
def test_derivatives_that_are_not_finite_are_reported(root, sentence):
    tables = {
        "grid": {"shape": [6]},
        "equation": {"name": "custom", "rhs": {"u": root}},
        "initial": {"u": "x - 2.5"},  # 0 in one cell
        "time": {"end": 0.1, "dt": 0.1},
        "numerics": {"integrator": "euler"},
        "objective": {"J": "integral(sqrt(abs(u)))"},
    }
    with hs.Simulation(tables) as sim, pytest.raises(hs.NumericsError, match=f"tangent: {sentence}"):
        sim.tangent({"initial.u": 1.0})


def test_an_objective_is_needed_for_the_hessian_alone():
    with hs.Simulation({key: GIVEN[key] for key in GIVEN if key not in ("objective", "gradient")}) as sim:
        assert set(sim.tangent({"equation.A": 1.0})) == {"u", "v"}
        with pytest.raises(hs.InputError, match="objective: expected an expression"):
            sim.hessian_product({"equation.A": 1.0})
        sim.step(1)
        with pytest.raises(hs.InputError, match="tangent: expected a simulation at t = 0"):
            sim.tangent({"equation.A": 1.0})


def test_wide_stencils_are_refused_along_the_coefficients_of_a_robin_condition():
    boundary = {"x": {"robin": {"a": "A", "b": 1.0, "value": 0.0}}}
    equation = {"name": "custom", "A": 0.5, "rhs": {"u": "laplacian(u)"}}
    given = {**GIVEN, "equation": equation, "boundary": boundary, "initial": {}, "numerics": {"order": 4}}
    sim = hs.Simulation({key: given[key] for key in given if key not in ("objective", "gradient")})
    with sim, pytest.raises(hs.InputError, match="in the coefficients of robin are not available yet"):
        sim.tangent({"equation.A": 1.0})
