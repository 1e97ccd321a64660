"""Sums over the whole grid."""

import math

import numpy as np
import pytest
from support import problem_of, simulation_of


@pytest.mark.parametrize("shape", ([5], [401, 400]))
@pytest.mark.parametrize("precision", ("float32", "float64"))
@pytest.mark.parametrize("devices", (1, 2))
def test_sums_are_exact_whoever_adds_up(shape, precision, devices):
    """numpy adds up fields, compiled code everything else."""
    problem = problem_of(
        grid={"shape": shape},
        equation={"name": "heat"},
        numerics={"precision": precision},
        diagnostics={"field": "mean(u)", "expression": "mean(2*u)"},
    )
    rng = np.random.default_rng(1)
    block = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, shape)).astype(precision)
    simulation = simulation_of(problem, devices=devices)
    fields = simulation.put({"u": block})
    by_numpy, compiled = simulation.extremes, simulation.diagnosed
    expected = math.fsum(block.ravel().tolist())
    for reductions, operand, factor in ((by_numpy, 0, 1), (compiled, 1, 2)):
        low, high, _ = reductions.extremes(fields, problem.parameters, 0.0)
        found = reductions.sums(fields, problem.parameters, 0.0, np.maximum(np.abs(low), np.abs(high)))
        assert found[operand] == factor * expected
