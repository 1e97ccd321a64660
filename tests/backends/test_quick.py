"""One run per kernel, for `pytest -m quick`: the heat equation against the same steps written with numpy."""

import numpy as np
import pytest
from support import integrated, problem_of, random_block, simulation_of, stepped


@pytest.mark.parametrize(
    "kernel, devices", [("shift", 1), ("shift", 2), ("conv", 1), ("native", 1), ("native", 2), ("pallas", 1)]
)
def test_heat_steps_as_numpy_does(kernel, devices):
    """∂u/∂t = D ∇²u by forward Euler, periodic along x, with walls where ∂u/∂n = 0 along y."""
    problem = problem_of(
        grid={"shape": [14, 11], "upper": [2.8, 1.1]},
        equation={"name": "heat", "D": 0.3},
        boundary={"x": "periodic", "y": {"neumann": 0.0}},
        numerics={"integrator": "euler", "precision": "float64"},
    )
    simulation = simulation_of(problem, devices=devices, kernel=kernel)
    u = random_block(problem, simulation)["u"]
    for _ in range(5):
        beyond = np.pad(u, ((0, 0), (1, 1)), "edge")
        along_x = (np.roll(u, 1, 0) - 2 * u + np.roll(u, -1, 0)) / 0.2**2
        along_y = (beyond[:, 2:] - 2 * u + beyond[:, :-2]) / 0.1**2
        u = u + 0.01 * 0.3 * (along_x + along_y)
    np.testing.assert_allclose(stepped(problem, simulation, 5, 0.01)["u"], u, rtol=1e-12)


def test_a_run_from_its_initial_state_to_its_end():
    """cos(x) decays as exp(-t), with steps that follow from a tolerance."""
    problem = problem_of(
        grid={"shape": [32], "upper": [2 * np.pi]},
        equation={"name": "heat"},
        initial={"u": "cos(x)"},
        numerics={"integrator": "bs3", "order": 6, "precision": "float64"},
        time={"end": 0.2, "tolerance": 1e-6},
    )
    fields, clock = integrated(problem, simulation_of(problem))
    x = 2 * np.pi * (np.arange(32) + 0.5) / 32
    assert clock.time == 0.2
    np.testing.assert_allclose(fields["u"], np.exp(-0.2) * np.cos(x), atol=1e-5)
