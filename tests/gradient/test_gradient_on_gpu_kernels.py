"""Gradients by the kernels for GPUs, interpreted, against those of `shift`."""

import numpy as np
import pytest

import hpcstencil as hs

HEAT = {"equation": {"name": "heat", "D": 0.3}, "boundary": {"x": {"neumann": 0.0}}}
SOUND = {"equation": {"name": "acoustic", "c": 0.9}}
SPONGE = {"boundary": {"x": {"sponge": {"width": 2.0, "strength": 1.0}}}}
CPML = {"boundary": {"x": {"cpml": {"width": 2.0, "speed": 1.0}}}}
CASES = {
    "two-step": (HEAT, "u", "ab2", "equation.D"),
    "damped leapfrog": ({**SOUND, **SPONGE}, "p", "leapfrog", "equation.c"),
    "cpml": ({**SOUND, **CPML}, "p", "leapfrog", "initial.p"),
    "rk4": (HEAT, "u", "rk4", "initial.u"),
}


@pytest.mark.parametrize("tables, field, integrator, of", CASES.values(), ids=CASES)
def test_a_gradient_equals_that_of_shift(tables, field, integrator, of):
    def by(kernel):
        numerics = {"precision": "float64", "integrator": integrator, "kernel": kernel}
        objective = {"J": f"integral({field}**2)"}
        given = {"grid": {"shape": [8]}, "initial": {field: "sin(x)"}, "time": {"end": 0.2, "dt": 0.1}, **tables}
        with hs.Simulation({**given, "numerics": numerics, "objective": objective, "gradient": {"of": [of]}}) as sim:
            value, gradient = sim.value_and_gradient()
            return value, np.asarray(gradient[of])

    (value, found), (expected, exact) = by("pallas"), by("shift")
    assert value == pytest.approx(expected, rel=1e-13) and np.allclose(found, exact, rtol=1e-12, atol=1e-13)
