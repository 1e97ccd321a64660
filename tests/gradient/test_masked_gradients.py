"""Gradients beside solid cells: the objective covers the fluid, and solid cells have no derivatives."""

import numpy as np
import pytest

import hpcstencil as hs

HEAT = {
    "grid": {"shape": [12]},
    "equation": {"name": "heat", "D": 0.2},
    "initial": {"u": "1 + 0.1*x"},
    "mask": {"solid": "abs(x - 6) < 1.2"},
    "numerics": {"precision": "float64", "integrator": "euler"},
    "time": {"end": 0.3, "dt": 0.1},
}
GAS = {
    "grid": {"shape": [16]},
    "equation": {"name": "euler", "gamma": 1.4},
    "initial": {"rho": "1 + 0.1*sin(x)", "mx": "0.1", "E": "2.5 + 0.2*cos(x)"},
    "mask": {"solid": "abs(x - 4) < 2"},
    "numerics": {"precision": "float64", "integrator": "ssprk2"},
    "time": {"end": 0.2, "dt": 0.1},
    "objective": {"J": "integral(mx**2)"},
    "gradient": {"of": ["equation.gamma", "initial.rho"]},
}


@pytest.mark.parametrize(
    "text", ["integral((u - 0.1)**2)", "mean(u)", "integral(1 + 0*u)", "integral(D)", "at(u, 3.9)"]
)
def test_an_objective_covers_the_fluid_like_a_diagnostic(text, tmp_path):
    tables = {**HEAT, "objective": {"J": text}, "diagnostics": {"J": text}, "gradient": {"of": ["initial.u"]}}
    with hs.Simulation(tables) as sim:
        value, gradient = sim.value_and_gradient()
        sim.run(output=tmp_path / "run.h5")
    assert value == pytest.approx(float(hs.diagnostics(tmp_path / "run.h5")["J"][-1]), rel=1e-14)
    x = np.arange(12) + 0.5
    assert not gradient["initial.u"][abs(x - 6) < 1.2].any()


def test_the_gradient_of_a_gas_around_a_solid():
    def value(gamma=1.4, rho=None):
        with hs.Simulation({**GAS, "equation": {"name": "euler", "gamma": gamma}}) as sim:
            start = sim["rho"].values.copy()
            if rho is not None:
                sim["rho"] = start + rho
            return start, *sim.value_and_gradient()

    start, _, gradient = value()
    x = np.arange(16) + 0.5
    solid = abs(x - 4) < 2
    assert not gradient["initial.rho"][solid].any() and (gradient["initial.rho"][~solid] != 0).all()
    h, along = 1e-5, np.where(solid, 0.0, np.random.default_rng(3).standard_normal(16))
    by_gamma = (value(gamma=1.4 + h)[1] - value(gamma=1.4 - h)[1]) / (2 * h)
    assert gradient["equation.gamma"] == pytest.approx(by_gamma, rel=1e-7)
    by_rho = (value(rho=h * along)[1] - value(rho=-h * along)[1]) / (2 * h)
    assert (gradient["initial.rho"] * along).sum() == pytest.approx(by_rho, rel=1e-7)


def test_a_power_of_0_in_solid_cells():
    tables = {
        **HEAT,
        "equation": {"name": "nonlinear_diffusion", "D": 0.2, "m": np.full(12, 2.0)},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["equation.m"]},
    }
    with hs.Simulation(tables) as sim:
        _, gradient = sim.value_and_gradient()
    with hs.Simulation({**tables, "equation": {"name": "nonlinear_diffusion", "D": 0.2, "m": 2.0}}) as sim:
        _, single = sim.value_and_gradient()
    assert gradient["equation.m"].sum() == pytest.approx(single["equation.m"], rel=1e-12)


@pytest.mark.parametrize("surface", ["no_flux", {"value": "0.5 + 0.1*t"}], ids=["no flux", "value"])
def test_a_coefficient_on_both_sides_of_a_surface(surface):
    """A flux through a surface with a value takes the mean of the coefficients on both sides."""
    rng, h = np.random.default_rng(2), 1e-6
    k, along = 0.1 + 0.2 * rng.random(12), rng.standard_normal(12)
    solid = abs(np.arange(12) + 0.5 - 6) < 1.2

    def at(coefficient):
        equation = {
            "name": "custom",
            "k": coefficient,
            "rhs": {"u": "div_grad(k, u) + div_grad(k*(1 + 0.1*x), u) - u**k"},
        }
        tables = {**HEAT, "equation": equation, "mask": {**HEAT["mask"], "surface": surface}}
        with hs.Simulation({**tables, "objective": {"J": "integral(u**2)"}, "gradient": {"of": ["equation.k"]}}) as sim:
            value, gradient = sim.value_and_gradient()
            return value, gradient["equation.k"]

    _, gradient = at(k)
    assert (gradient[~solid] != 0).all() and gradient[solid].any() == (surface != "no_flux")
    by_difference = (at(k + h * along)[0] - at(k - h * along)[0]) / (2 * h)
    assert (gradient * along).sum() == pytest.approx(by_difference, rel=1e-7)
