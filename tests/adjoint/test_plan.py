"""The plan of a reverse sweep: how many steps are reversed together, and how many states are stored."""

import pytest
from support import problem_of

from hpcstencil.adjoint import plan
from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.run_steps import steps_of
from hpcstencil.problem.decomposition import decompose

BASIN = {
    "equation": {"name": "shallow_water"},
    "initial": {"h": "10 + sin(x)"},
    "objective": {"J": "integral(h**2)"},
    "gradient": {"of": ["initial.h"]},
}
SPOTS = {
    "equation": {"name": "gray_scott"},
    "objective": {"J": "integral(u**2)"},
    "gradient": {"of": ["initial.u"]},
}


def planned(tables, integrator, steps=40, **gradient):
    problem = problem_of(
        **tables | {"gradient": {**tables["gradient"], **gradient}},
        grid={"shape": [20, 20]},
        numerics={"integrator": integrator},
        time={"dt": 0.01, "end": 0.01 * steps},
    )
    adjoint, topology = adjoint_of(problem, ()), decompose(problem, 1, 1)
    at_once = plan.steps_at_once(adjoint, topology, "native", injected=False)
    return at_once, plan.plan_of(adjoint, topology, at_once, False, steps_of(problem)).states


@pytest.mark.parametrize("integrator, small, large", [("rk4", 1, 4), ("ssprk3", 1, 5), ("euler", 5, 10)])
def test_steps_with_many_operations_are_reversed_in_smaller_groups(integrator, small, large):
    assert planned(BASIN, integrator)[0] == small
    assert planned(SPOTS, integrator)[0] == large


def test_states_of_small_groups_take_no_more_memory_than_those_of_large_ones(monkeypatch):
    """Where they would take more than MOST_TAPE, unless the input gives a limit."""
    assert planned(BASIN, "rk4") == (1, 40)
    monkeypatch.setattr(plan, "MOST_TAPE", 0)
    assert planned(BASIN, "rk4") == (1, 10)
    assert planned(BASIN, "rk4", checkpoints=30) == (1, 30)
    assert planned(SPOTS, "rk4") == (4, 10)
