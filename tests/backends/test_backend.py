"""The seam between problems and backends: one registry, one lowering per backend, and a backend that a test adds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest
from support import problem_of, simulation_of, stepped

from hpcstencil.backends.backend import Unsupported
from hpcstencil.backends.native import backend as native_backend
from hpcstencil.backends.registry import BACKENDS
from hpcstencil.backends.xla.backend import XlaBackend
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.simulation.backend_choice import foreseen, prepare
from hpcstencil.simulation.compose import compose
from hpcstencil.simulation.dry_run import report
from hpcstencil.simulation.memory_estimate import memory
from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with
from hpcstencil.validation.errors import InputError

HEAT = {
    "grid": {"shape": [12, 10]},
    "equation": {"name": "heat"},
    "initial": {"u": "sin(x)*cos(y)"},
    "boundary": {"x": {"dirichlet": "t"}},
    "numerics": {"precision": "float64"},
}


def test_the_input_knows_every_backend():
    for name in BACKENDS:
        assert problem_of(**{**HEAT, "numerics": {"kernel": name}}).config.numerics.kernel == name
    with pytest.raises(InputError, match="numerics.kernel") as refusal:
        problem_of(**{**HEAT, "numerics": {"kernel": "none of them"}})
    assert all(f'"{name}"' in str(refusal.value) for name in BACKENDS)


def test_a_problem_is_lowered_to_native_code_once(monkeypatch):
    """By everything that `check` and a run do with it."""
    made, program = [], native_backend.program
    monkeypatch.setattr(native_backend, "program", lambda problem: made.append(problem) or program(problem))
    decomposed, alone = Decomposed.of(problem_of(**HEAT), 1, 1), OneProcess()
    decomposed.begin()
    assert "kernel                native" in report(foreseen(decomposed))
    prepared = prepare(decomposed, jax.local_devices()[:1], alone)
    assert memory(prepared) >= 8 * 12 * 10 + 8 * (12 + 10)  # the field and the coordinates
    simulation = compose(prepared, alone, jax.local_devices()[:1])
    simulation.advance(simulation.initial_fields(), StepRange(0.0, 0, 1e-3, 3))
    assert prepared.kernel == "native" and len(made) == 1


def test_native_code_is_not_taken_where_it_reads_beyond_a_thin_neighbour():
    """Beside solid cells a section of an Euler step reads 5 cells; three blocks of 13 cells have 4 or 5."""
    problem = problem_of(
        grid={"shape": [13, 11]},
        equation={"name": "euler"},
        boundary={"x": {"neumann": 0.0}},
        mask={"solid": "(x - 6)**2 + (y - 5)**2 < 3"},
        decomposition={"processes": [3, 1]},
    )
    with pytest.raises(Unsupported, match="blocks have 4 cells along x, but native code reads 5 cells of a neighbour"):
        Decomposed.of(problem, 3, 1).lowered("native")
    whole = replace(problem, config=replace(problem.config, decomposition=problem_of(**HEAT).config.decomposition))
    assert foreseen(Decomposed.of(whole, 1, 1)).kernel == foreseen(Decomposed.of(whole, 2, 1)).kernel == "native"


@dataclass(frozen=True)
class HalfSteps:
    """A backend of its own: each step is taken as two of half the size, by array code. It does not take ensembles."""

    name: str = "half steps"
    preferred: bool = False

    def lower(self, problem, topology):
        if problem.members:
            raise Unsupported("ensembles are not for half steps")
        return Halved(XlaBackend("shift").lower(problem, topology))

    def unsuited(self, device):
        return ""

    def remark(self, device):
        return ""


class Halved:
    """A lowered problem that hands all but its steps on."""

    def __init__(self, whole):
        self.whole = whole

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def steps(self, plan, device_grid, communicator):
        steps = self.whole.steps(plan, device_grid, communicator)

        def advance(fields, parameters, these):
            twice = StepRange(these.base_time, 2 * these.first, these.dt / 2, 2 * these.count)
            return steps.advance(fields, parameters, twice)

        return replace(steps, advance=advance)


def test_a_backend_is_a_class_and_a_line_of_the_registry(monkeypatch):
    monkeypatch.setitem(BACKENDS, "half steps", HalfSteps())
    problem, alone = problem_of(**HEAT), OneProcess()
    prepared = prepared_with(Decomposed.of(problem, 1, 1), Choice("half steps"), alone)
    found = compose(prepared, alone, jax.local_devices()[:1])
    assert found.kernel == "half steps" and memory(prepared) > 0
    expected = stepped(problem, simulation_of(problem), 6, 5e-4)["u"]
    assert np.array_equal(stepped(problem, found, 3, 1e-3)["u"], expected)
    ensemble = problem_of(**HEAT, ensemble={"equation.D": [0.1, 0.2]})
    with pytest.raises(
        InputError, match='a kernel that supports this run, but "half steps" does not: ensembles are not for half steps'
    ):
        simulation_of(ensemble, kernel="half steps")
