"""What the tests share: an input as a mapping, a simulation of it on any decomposition, and the command, in this process."""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from random_problems import Way
from reference import Reference

from hpcstencil.backends.backend import Unsupported
from hpcstencil.backends.native.cost_model import cells_beside
from hpcstencil.backends.native.program import program
from hpcstencil.backends.xla.array_code import rules_of
from hpcstencil.backends.xla.evaluate import right_hand_side
from hpcstencil.backends.xla.stencil_kernels import KERNELS
from hpcstencil.cli import main
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.reader import from_mapping
from hpcstencil.numerics.schedule import Clock, StepRange
from hpcstencil.problem.build import build
from hpcstencil.problem.decomposition import steps_between_exchanges
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.stability import cfl_step
from hpcstencil.runtime.communicator import Communicator, OneProcess
from hpcstencil.runtime.launcher import environment_size
from hpcstencil.simulation.backend_choice import unfit
from hpcstencil.simulation.compose import compose
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.differentiate import exact
from hpcstencil.symbolic.parser import Scope, parse
from hpcstencil.symbolic.staggering import home

jax.config.update("jax_enable_x64", True)
# What a process has compiled once it need not compile again for the next simulation of the same code.
COMPILED = tempfile.TemporaryDirectory(prefix="hpcstencil-tests-")
jax.config.update("jax_compilation_cache_dir", COMPILED.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
# JAX begins with the devices of conftest.py. A simulation from Python would ask for one alone, if it were the first.
jax.local_devices()


def dealt(*factors: Iterable[Any], hands: int = 3) -> list[Any]:
    """The rows of a table, the product of its factors, as parameters, each for one number of processes: 2, 3 or 4.

    On the other numbers a row tells little that is new, and is left to the long tests. One process has the rows of four. With
    more than 3 ``hands``, the other hands are left to the long tests too.
    """
    hand = environment_size() % 3
    return [
        pytest.param(*row, marks=() if index % hands == hand else pytest.mark.long, id="-".join(map(str, row)))
        for index, row in enumerate(itertools.product(*factors))
    ]


def on(*processes: int) -> pytest.MarkDecorator:
    """The mark of a test on several processes that CI runs on these numbers of them only."""
    return pytest.mark.mpi if environment_size() in processes else pytest.mark.long


def problem_of(**tables: Any) -> Problem:
    """The problem of an input given as tables."""
    return build(from_mapping({"time": {"end": 1.0, "dt": 1e-3}, **tables}, Path(".")))


def simulation_of(
    problem: Problem, communicator: Communicator | None = None, devices: int = 1, kernel: str = "shift"
) -> ComposedSimulation:
    """The problem on ``devices`` local devices of each process (default: this process alone)."""
    communicator = communicator or OneProcess()
    assert len(jax.local_devices()) >= devices, "this process has fewer devices, and would compute something else"
    decomposed = Decomposed.of(problem, communicator.size, devices)
    given = problem.config.decomposition.steps_per_exchange
    every = steps_between_exchanges(problem, decomposed.topology) if isinstance(given, str) else given
    try:
        prepared = prepared_with(decomposed, Choice(kernel), communicator, every)
    except Unsupported as reason:
        raise unfit(kernel, str(reason)) from None
    return compose(prepared, communicator, jax.local_devices()[:devices])


def steps_in_place(simulation: ComposedSimulation, threads: int = 1) -> bool:
    """Whether native code steps where the fields are: tiles have room for just another copy of them."""
    problem, topology = simulation.problem, simulation.plan.topology
    cells = len(problem.fields) * math.prod(topology.capacity())
    return cells_beside(program(problem), topology, simulation.plan.steps_per_exchange, threads) != cells


def random_block(problem: Problem, simulation: ComposedSimulation, seed: int = 1) -> dict[str, np.ndarray]:
    """This process's block of random global fields; memory fields of absorbing layers, which always begin at 0, are 0."""
    rng = np.random.default_rng(seed)
    index = tuple(slice(*r) for r in simulation.ranges)
    members = (len(problem.members),) if problem.members else ()
    shape, dtype = (*problem.config.grid.shape, *members), simulation.dtype
    blocks = {name: np.ascontiguousarray(rng.random(shape).astype(dtype)[index]) for name in problem.fields}
    return {name: block * (name not in problem.memory or name not in problem.trees) for name, block in blocks.items()}


def stepped(
    problem: Problem, simulation: ComposedSimulation, steps: int, dt: float, seed: int = 1
) -> dict[str, np.ndarray]:
    """This process's blocks after ``steps`` steps from random fields, or from those that the input gives."""
    given = problem.config.initial.expressions
    fields = simulation.initial_fields() if given else simulation.put(random_block(problem, simulation, seed))
    fields = simulation.advance(fields, StepRange(0.0, 0, dt, steps))
    return simulation.get(fields, problem.fields)


def traced_slopes(problem: Problem) -> Callable[..., dict[str, jax.Array]]:
    """The function (fields, parameters, t) -> time derivatives by field, on one device: array code outside of any loop, which
    jax.jvp and jax.vjp differentiate."""
    device_grid = simulation_of(problem).device_grid
    rates = {**problem.slopes}
    rhs = right_hand_side(rates, rules_of(problem, KERNELS["shift"]), problem.needs(rates.values()))
    frame = device_grid.frame(device_grid.places)

    def slopes(fields: Mapping[str, Any], parameters: Mapping[str, Any], t: Any) -> dict[str, jax.Array]:
        padded = device_grid.surrounded(fields, device_grid.widths(1), frame)
        return device_grid.cropped(rhs(padded, parameters, t, frame))

    return slopes


def integrate(problem: Problem, kernel: str = "shift") -> dict[str, np.ndarray]:
    """The fields at the end of a problem, from its initial state, on one device."""
    return integrated(problem, simulation_of(problem, kernel=kernel))[0]


def integrated(problem: Problem, simulation: ComposedSimulation) -> tuple[dict[str, np.ndarray], Clock]:
    """This process's blocks and the clock at the end of a problem."""
    schedule, clock, fields = problem.schedule(), Clock(), simulation.initial_fields()
    while not schedule.finished(clock):
        if simulation.control is not None:
            fields, clock = simulation.control.step(fields, clock)
            continue
        leap = schedule.leap(clock, problem.config.time.dt or cfl_step(problem, {}), 10**9)
        fields = simulation.advance(fields, leap.steps)
        clock = leap.after
    return simulation.get(fields, problem.fields), clock


def against_reference(
    tables: Mapping[str, Any], reference: Reference, way: Way, communicator: Communicator | None = None
) -> None:
    """Assert that fields and diagnostics at the end of an input are those of its reference, which has run. Raises InputError
    where the input is refused for this way."""
    problem = problem_of(
        **with_table(tables, "numerics", kernel=way.kernel),
        decomposition={**way.decomposition, "devices": way.devices},
    )
    simulation = simulation_of(problem, communicator, way.devices, way.kernel)
    found, _ = integrated(problem, simulation)
    index = tuple(slice(*r) for r in simulation.ranges)
    largest = max(np.abs(expected).max() for expected in reference.fields.values())
    wrong = {
        name: f"{name} differs by {difference / largest:.1e} of the largest value"
        for name, expected in reference.fields.items()
        if not (difference := np.abs(found[name] - expected[index]).max()) <= 1e-12 * largest
    }
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    values = diagnostics.evaluate(simulation.put(found), reference.end) if problem.diagnostics else {}
    wrong |= {
        name: f"{name} is {values[name]}, expected {expected}"
        for name, expected in reference.diagnosed().items()
        if values[name] != pytest.approx(expected, rel=1e-12, abs=1e-12)
    }
    assert not wrong, "; ".join(wrong.values()) + ", of\n" + to_toml(problem.config)


def coordinates(problem: Problem, name: str = "") -> list[np.ndarray]:
    """Where a field lives, cell centres for any, per axis and shaped to broadcast."""
    grid = problem.config.grid
    position = home(name, problem.positions, grid.ndim)
    places = [grid.centres(a) - half * grid.spacing[a] / 2 for a, half in enumerate(position)]
    return np.meshgrid(*places, indexing="ij", sparse=True)


def observed_orders(operators: Mapping[str, str], order: int) -> dict[str, float]:
    """The order with which each of these right-hand sides, of a smooth and periodic u(x, y), converges to its closed form.

    One step of forward Euler with dt = 1 adds the right-hand side itself.
    """
    smooth = "exp(0.5*sin(x))*cos(y + 0.3)"
    solution = {"u": parse(smooth, Scope(2), "test")}
    coarse, fine = {}, {}
    for n, errors in ((24, coarse), (36, fine)):
        problem = problem_of(
            grid={"shape": [n, n], "lower": [0.3, 0.0], "upper": [0.3 + 2 * np.pi, 2 * np.pi]},
            equation={"name": "custom", "rhs": {"u": "0", **operators}},
            initial={"u": smooth},
            numerics={"order": order, "precision": "float64", "integrator": "euler"},
        )
        simulation = simulation_of(problem)
        fields = simulation.advance(simulation.initial_fields(), StepRange(0.0, 0, 1.0, 1))
        found = simulation.get(fields, problem.fields)
        for name in operators:
            tree = exact(problem.trees[name], solution, problem.config.grid.spacing)
            errors[name] = np.sqrt(np.mean((found[name] - numpy_evaluate.evaluate(tree, coordinates(problem))) ** 2))
    return {name: math.log(coarse[name] / fine[name]) / math.log(1.5) for name in operators}


def hpcstencil(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Any
) -> tuple[int, str, str]:
    """(status, standard output, standard error) of the command line, run in this process."""
    monkeypatch.setattr(sys, "argv", ["hpcstencil", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def with_table(tables: Mapping[str, Any], name: str, **values: Any) -> dict[str, Any]:
    """The tables with some keys of one table replaced."""
    return {**tables, name: {**tables.get(name, {}), **values}}
