"""Values of fields on faces that lie on a boundary: they are the given ones, at both ends."""

import numpy as np
import pytest

import hpcstencil as hs

BASIN = {
    "grid": {"shape": [9, 8]},
    "equation": {"name": "shallow_water", "g": 1.0, "nu": 0.1, "f": 0.3},
    "initial": {"h": "10"},
    "boundary": {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": "0.1*(1 + t)"}}},
    "numerics": {"precision": "float64", "integrator": "rk4"},
    "time": {"end": 0.4, "dt": 0.04},
}
CAVITY = {
    "grid": {"shape": [9]},
    "equation": {"name": "maxwell"},
    "boundary": {"x": {"dirichlet": "0.1*(1 + t)"}},
    "numerics": {"precision": "float64", "integrator": "leapfrog"},
    "time": {"end": 0.4, "dt": 0.04},
}


def on_walls(field):
    return np.ravel(field.values)[0], np.ravel(field.values)[-1]


@pytest.mark.parametrize("kernel", ["native", "shift"])
@pytest.mark.parametrize("integrator", ["euler", "ssprk3", "rk4", "ab2"])
def test_a_value_that_changes_in_time(integrator, kernel):
    with hs.Simulation(
        {**BASIN, "numerics": {"precision": "float64", "integrator": integrator, "kernel": kernel}}
    ) as sim:
        sim.run()
        assert on_walls(sim["u"]) == pytest.approx((0.14, 0.14), rel=1e-12)


def test_a_value_for_all_fields_applies_to_those_that_lie_on_the_wall():
    """The depth, which does not, has zero normal derivative there; with the value 0 it would divide by 0."""
    results = []
    for boundary in ({"x": {"dirichlet": 0.0}}, {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": 0.0}}}):
        with hs.Simulation({**BASIN, "initial": {"h": "1 + 0.1*exp(-(x - 3)**2)"}, "boundary": boundary}) as sim:
            sim.run()
            results.append({name: sim[name].values.copy() for name in "huv"})
    for name in "huv":
        assert np.isfinite(results[0][name]).all()
        assert np.array_equal(*(result[name] for result in results))


JUMPS = ["where(t < 0.2, 0, 0.1)", "0.1*(t > 0.2)", "sign(t - 0.3)", "0.1*x + 0.1*(t > 1e-9)"]
RAMPS = [
    "minimum(t, 0.2)",
    "abs(t - 0.2)",
    "tanh((t - 0.2)/1e-9)",
    "exp(-t/1e-6)",
    "where(t < 0.2, 0.5*t, 0.1)",
    "sin(1e5*t)",
]


@pytest.mark.parametrize("value", JUMPS)
def test_a_value_that_jumps_is_refused(value):
    with pytest.raises(
        hs.InputError, match=r"boundary: the value of Ez on the lower wall across x jumps from .* at t = "
    ):
        hs.Simulation({**CAVITY, "boundary": {"x": {"dirichlet": value}}})


@pytest.mark.parametrize("value", RAMPS)
def test_a_steep_ramp_is_no_jump(value):
    hs.Simulation({**CAVITY, "boundary": {"x": {"dirichlet": value}}}).close()


ASSIGNED = {
    "array": np.ones((9, 8)),
    "array with the upper wall": np.ones((10, 8)),
    "number": 1.0,
    "function": lambda x, y: np.cos(x) + 0 * y,
    "expression": "cos(x)",
}


@pytest.mark.parametrize("value", ASSIGNED.values(), ids=ASSIGNED)
def test_assigned_values_do_not_reach_the_walls(value):
    with hs.Simulation(BASIN) as sim:
        sim["u"] = value
        assert on_walls(sim["u"]) == pytest.approx((0.1, 0.1))
        inside = sim["u"].values[1:-1].copy()
        sim.step(5)
        sim["u"] = value  # at another time
        assert on_walls(sim["u"]) == pytest.approx((0.12, 0.12)) and np.array_equal(sim["u"].values[1:-1], inside)
        if not isinstance(value, str) and not callable(value):
            sim.local["u"] = value
            assert on_walls(sim["u"]) == pytest.approx((0.12, 0.12))


def test_a_closed_basin_keeps_its_water():
    closed = {**BASIN, "boundary": {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": 0.0}}}}
    with hs.Simulation({**closed, "initial": {"h": "10", "u": np.ones((9, 8))}}) as sim:
        sim.run()
        assert sim["h"].values.sum() == pytest.approx(720.0, rel=1e-13)


def test_members_have_their_own_walls():
    boundary = {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": "f*(1 + t)"}}}
    with hs.Simulation({**BASIN, "boundary": boundary, "ensemble": {"equation.f": [0.2, 0.3]}}) as sim:
        sim.step(5)
        sim["u"] = np.ones((9, 8))
        assert sim["u"].values[:, 0, 0] == pytest.approx([0.24, 0.36])


@pytest.mark.parametrize("integrator", ["rk4", "ab2"])
def test_a_gradient_knows_that_walls_are_given(integrator):
    rng = np.random.default_rng(1)
    start, along, h = rng.standard_normal((9, 8)), rng.standard_normal((9, 8)), 1e-6

    def at(values, f=0.3):
        tables = {
            **BASIN,
            "equation": {**BASIN["equation"], "f": f},
            "boundary": {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": "f*(1 + t)"}}},
            "numerics": {"precision": "float64", "integrator": integrator},
            "objective": {"J": "integral(u**2) + at(h, 2.3, 4.1)"},
            "gradient": {"of": ["initial.u", "equation.f"]},
        }
        with hs.Simulation(tables) as sim:
            sim["u"] = values
            return *sim.value_and_gradient(), sim.tangent({"initial.u": along, "equation.f": 0.0})["J"]

    _, gradient, slope = at(start)
    by_start = (at(start + h * along)[0] - at(start - h * along)[0]) / (2 * h)
    by_f = (at(start, 0.3 + h)[0] - at(start, 0.3 - h)[0]) / (2 * h)
    assert not gradient["initial.u"][0].any()
    assert (gradient["initial.u"] * along).sum() == pytest.approx(by_start, rel=1e-6) == slope
    assert gradient["equation.f"] == pytest.approx(by_f, rel=1e-6)


@pytest.mark.parametrize(
    "upper", [{"dirichlet": "0.1*(1 + t)"}, {"cpml": {"width": 3.0, "speed": 1.0}}], ids=["wall", "cpml"]
)
def test_a_gradient_beside_a_conductor(upper):
    """With the leapfrog method. The walls do not follow what a program assigns, and the derivative with respect to it is 0."""
    rng = np.random.default_rng(1)
    start, along, h = rng.standard_normal((2, 9)), rng.standard_normal((2, 9)), 1e-3
    boundary = {"x": {"lower": {"dirichlet": "0.1*(1 + t)"}, "upper": upper}}
    objective = {"J": "integral(Ez**2*(1.5 + sin(x))) + integral(By**2)"}
    with hs.Simulation(
        {**CAVITY, "boundary": boundary, "objective": objective, "gradient": {"of": ["initial.Ez", "initial.By"]}}
    ) as sim:

        def at(values):
            sim["Ez"], sim["By"] = values
            return sim.value_and_gradient()

        gradient = np.stack([*at(start)[1].values()])
        difference = (at(start + h * along)[0] - at(start - h * along)[0]) / (2 * h)
    assert gradient[0, 0] == 0.0 and gradient[0, 1:].all() and gradient[1].all()
    assert (gradient * along).sum() == pytest.approx(difference, rel=1e-9)
