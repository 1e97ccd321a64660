"""The convergence studies and other checks of `hpcstencil verify`, each with the expected result and whether it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hpcstencil.config.paths import sources
from hpcstencil.config.settings import Config, Decomposition, DiagnosticsConfig, InitialConfig, OutputConfig, TimeConfig
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.integrators import SUPER_STEPPING, stability_limits
from hpcstencil.numerics.schedule import Clock, StepRange
from hpcstencil.problem.build import build
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.stability import cfl_step
from hpcstencil.problem.von_neumann import matrices
from hpcstencil.runtime.communicator import Communicator, OneProcess
from hpcstencil.simulation.compose import with_kernel
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic.expressions import Derivative, Node, Pointwise, Reduction, at_time, substitute, walk
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.findings import Finding
from hpcstencil.validation.messages import at
from hpcstencil.verify.manufactured import Manufactured, default_solution, given_solution, manufactured

COARSEST = {1: 24, 2: 16, 3: 12}  # cells per axis of the coarsest grid, by number of axes, before `Orders` adds some
REFINED = (1.0, 1.5, 2.0)  # refinement factors of the study in space
# With walls, the studies last at least this many time scales of the fastest mode on the coarsest grid. In a shorter time the
# errors of the cells at walls, which are of lower order, would stay in these cells.
REACTIONS = 10.0
FIRST_STEPS = 60  # number of adaptive steps on the coarsest grid that sets the duration of the studies
STEPS = (100, 200, 400)  # numbers of steps of the study in time, or more for methods with a smaller stability region
TINY = 1e-10  # an error this small, for fields of size 1, may be due to rounding and the tolerance of the reference
MISSED = 0.4  # largest accepted difference between the promised and the observed order
WALL_ORDER = 2  # order of the closure at boundaries, see `boundary_kinds`
LARGEST = {1: 4096, 2: 192, 3: 48}  # largest number of cells per axis in runs with the initial state of the input
OWN_STEPS = 100  # number of steps of the check of conservation
ROUND_OFF = 1e3  # accepted difference between decompositions with a stencil by FFT, in epsilons of the largest value
COMPARED_STEPS = 10
AUTO = Decomposition()


@dataclass(frozen=True)
class Study:
    """A convergence study: errors under refinement, from coarse to fine.

    ``name`` is "space" or "time". ``sizes`` are cells per axis or numbers of steps, ``errors`` are computed by
    `differences`, and ``promised`` is the expected order.
    """

    name: str
    sizes: tuple[int, ...]
    errors: tuple[float, ...]
    promised: float

    @property
    def observed(self) -> float:
        """The observed order between the two finest sizes: -inf if one of their errors is not finite, inf if one is 0."""
        (a, b), (n, m) = self.errors[-2:], self.sizes[-2:]
        if not (math.isfinite(a) and math.isfinite(b)):
            return -math.inf
        return math.log(a / b) / math.log(m / n) if a > 0 and b > 0 else math.inf

    @property
    def too_small(self) -> bool:
        """Whether all errors are below TINY, so that rounding hides the order."""
        return max(self.errors) < TINY

    @property
    def met(self) -> bool:
        """Whether the observed order is at least the promised one minus MISSED, or the errors are `too_small`."""
        return self.too_small or self.observed >= self.promised - MISSED


def of_one_grid(config: Config) -> list[str]:
    """The keys of parameters with which convergence is not studied: an array fits only one grid, and an interpolated time
    series is not smooth."""
    return [at("equation", name) for name in (*config.equation.arrays, *config.equation.series)]


def adapted(config: Config, cells: Sequence[int], **changes: Any) -> Config:
    """The input on another grid of the same extent, prepared for convergence studies.

    The new grid has ``cells`` cells per axis. Fields are float64, the kernel is `shift`, and nothing is decomposed.
    Output streams, diagnostics, mask and initial state are removed. ``changes`` replace further tables.
    """
    grid = Grid(tuple(cells), config.grid.lower, config.grid.upper)
    numerics = replace(config.numerics, precision="float64", kernel="shift")
    output = replace(config.output, every=None, every_steps=None, fields=None, streams={})
    return replace(
        config, grid=grid, numerics=numerics, output=output, decomposition=AUTO,
        initial=InitialConfig(), diagnostics=DiagnosticsConfig(), verify=replace(config.verify, conserved=()),
        mask=None, equation=replace(config.equation, seed=None), **changes,
    )  # fmt: skip


def alone(problem: Problem, devices: int = 1) -> ComposedSimulation:
    """Compose the simulation of a problem for this process only, on ``devices`` of its devices, with the kernel
    `shift`."""
    return with_kernel("shift", Decomposed.of(problem, 1, devices), OneProcess(), jax.local_devices()[:devices])


def differences(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The root mean square difference over all cells, for the field in which it is largest.

    Both arguments map fields to arrays on the global grid, without ghost cells.
    """
    return max(float(np.sqrt(np.mean((found[name] - expected[name]) ** 2))) for name in expected)


# ---- order ----


class Orders:
    """The convergence studies of one input, in space and in time, against a manufactured solution.

    They run on small grids, on one device of this process, without communication. ``announce`` is called with a sentence before
    each run. Raises the errors of `build`. No parameter may be one of `of_one_grid`.
    """

    def __init__(self, problem: Problem, announce: Callable[[str], None] = lambda sentence: None) -> None:
        self.config, self.method, self.announce = problem.config, problem.method, announce
        config = self.config
        ndim = config.grid.ndim
        self.coarsest = min(COARSEST[ndim] + 2 * config.numerics.order, 4 * COARSEST[ndim])
        self.end = config.time.end
        coarse = build(adapted(config, [self.coarsest] * ndim, time=self.adaptive(1e-6)), all_used=False)
        self.exact = given_solution(coarse)
        if not all(config.boundary.periodic):
            self.end = max(self.end, self._time_to_react(coarse))
        self.duration = self._duration()

    def adaptive(self, tolerance: float) -> TimeConfig:
        """A table [time] for adaptive steps with this tolerance, up to ``self.end``."""
        return TimeConfig(self.end, tolerance=tolerance)

    def problem(self, cells: int, time: TimeConfig, integrator: str = "dopri5") -> Manufactured:
        """The manufactured problem on a grid with ``cells`` cells per axis, with the given table [time] and integrator."""
        config = adapted(self.config, [cells] * self.config.grid.ndim, time=time)
        stages = self.method.evaluations if integrator in SUPER_STEPPING else None
        problem = build(
            replace(config, numerics=replace(config.numerics, integrator=integrator, stages=stages)), all_used=False
        )
        return manufactured(problem, self.exact or default_solution(problem, self.duration))

    def _time_to_react(self, problem: Problem) -> float:
        """REACTIONS time scales of the fastest mode, in the time unit of the input; 0 if no mode changes.

        The problem is linearized at the manufactured solution at t = 0.
        """
        solution = self.exact or default_solution(problem, self.end)
        start = {name: at_time(tree, 0.0) for name, tree in solution.items()}
        grid, periodic = problem.config.grid, problem.config.boundary.periodic
        found, _ = matrices(problem.trees, start, problem.parameters, grid, periodic, problem.discretization)
        fastest = float(np.abs(np.linalg.eigvals(found)).max(initial=0.0))
        return REACTIONS / fastest if fastest > 0.0 else 0.0

    def _duration(self) -> float:
        """The time that FIRST_STEPS adaptive steps take on the coarsest grid, at most ``self.end``. It is the duration of
        all studies."""
        self.duration = self.end
        run = self.problem(self.coarsest, self.adaptive(1e-6))
        simulation = alone(run.problem)
        fields, clock = simulation.initial_fields(), Clock()
        assert simulation.control is not None
        while clock.step < FIRST_STEPS and clock.time < self.end:
            fields, clock = simulation.control.step(fields, clock)
        return clock.time

    def source(self) -> tuple[float, str] | None:
        """(largest magnitude, field) of the source for the solution in [verify.exact]; None if the input has none."""
        if not self.exact:
            return None
        return self.problem(self.coarsest, self.adaptive(1e-6)).largest_source(self.duration)

    def in_space(self) -> Study:
        """The study on refined grids, with a tolerance so small that the error in space dominates."""
        order = self.config.numerics.order
        sizes, errors = tuple(round(self.coarsest * factor) for factor in REFINED), []
        for cells in sizes:
            self.announce(f"measuring the order in space: {cells} cells per axis ...")
            time = replace(self.adaptive(1e-12), end=self.duration)
            run = self.problem(cells, time)
            errors.append(differences(_adaptively(run.problem), run.at(self.duration)))
        biased = any(isinstance(p, Derivative) and p.bias for tree in run.problem.trees.values() for p in walk(tree))
        promised = order - 1 if biased else order
        walls = not all(self.config.boundary.periodic)
        return Study("space", sizes, tuple(errors), min(promised, WALL_ORDER) if walls else promised)

    def in_time(self) -> Study:
        """The study with refined steps of the integrator of the input, on the coarsest grid.

        The reference is a solution on the same grid with a tolerance of 1e-13, so the error in space cancels.
        """
        name = self.config.numerics.integrator
        reach = max(1.0, 2.0 / max(stability_limits(self.method)))  # shorter steps for a smaller stability region
        counts = tuple(math.ceil(reach * count) for count in STEPS)
        self.announce("measuring the order in time: the reference ...")
        exact = self.problem(self.coarsest, replace(self.adaptive(1e-13), end=self.duration))
        expected, errors = _adaptively(exact.problem), []
        for count in counts:
            self.announce(f"measuring the order in time: {count} steps ...")
            time = TimeConfig(self.duration, dt=self.duration / count)
            problem = self.problem(self.coarsest, time, name).problem
            simulation = alone(problem)
            steps = StepRange(0.0, 0, self.duration / count, count)
            fields = simulation.advance(simulation.initial_fields(), steps)
            errors.append(differences(simulation.get(fields, problem.fields), expected))
        return Study("time", counts, tuple(errors), self.method.order)


def _adaptively(problem: Problem) -> dict[str, np.ndarray]:
    """Run a problem with a tolerance to its end. Returns all fields by name, on the global grid without ghost cells."""
    simulation, schedule = alone(problem), problem.schedule()
    fields, clock = simulation.initial_fields(), Clock()
    assert simulation.control is not None
    while not schedule.finished(clock):
        fields, clock = simulation.control.step(fields, clock)
    return simulation.get(fields, problem.fields)


# ---- runs with the initial state of the input ----


def reduced(config: Config) -> Problem:
    """The problem of an input on a grid of at most LARGEST cells per axis, for quick checks.

    Initial state, precision and method are not changed. The grid is not reduced if the input reads data files.
    Raises the errors of `build`.
    """
    most = LARGEST[config.grid.ndim]
    from_file = bool(sources(config))
    cells = config.grid.shape if from_file else [min(n, most) for n in config.grid.shape]
    output = OutputConfig(path=config.output.path)
    grid = Grid(tuple(cells), config.grid.lower, config.grid.upper)
    return build(replace(config, grid=grid, output=output), all_used=False)


def step_of(problem: Problem, simulation: ComposedSimulation) -> float:
    """A fixed step size for a problem, in the time unit of the input: `time.dt`, or the first step that `cfl` or the
    tolerance gives."""
    time = problem.config.time
    if time.dt is not None:
        return time.dt
    fields = simulation.initial_fields()
    if simulation.control is not None:
        return simulation.control.step(fields, Clock())[1].time
    low, high, _ = simulation.extremes.extremes(fields, problem.parameters, 0.0)
    return cfl_step(problem, dict(zip(problem.measured, np.maximum(np.abs(low), np.abs(high)).tolist(), strict=True)))


def conservation(problem: Problem) -> list[Finding]:
    """Check that each diagnostic in verify.conserved is constant: one finding for each.

    The drift over OWN_STEPS steps of a `reduced` problem is measured relative to the same diagnostic of absolute
    values. The run uses one device of this process, without communication.
    """
    names = problem.config.verify.conserved
    if not names:
        return []
    sizes = {f"size of {name}": substitute(problem.diagnostics[name], _magnitude) for name in names}
    problem = replace(problem, diagnostics={**{name: problem.diagnostics[name] for name in names}, **sizes})
    simulation = alone(problem)
    dt, fields = step_of(problem, simulation), simulation.initial_fields()
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    before = diagnostics.evaluate(fields, 0.0)
    after = diagnostics.evaluate(simulation.advance(fields, StepRange(0.0, 0, dt, OWN_STEPS)), OWN_STEPS * dt)
    precision = problem.config.numerics.precision
    bound = float(np.finfo(precision).eps) * (10 + OWN_STEPS)
    findings = []
    for name in names:
        drift = abs(after[name] - before[name]) / (before[f"size of {name}"] or 1.0)
        words = f"drifts by {drift:.1e} of its size in {OWN_STEPS} steps, promised {bound:.1e} in {precision}"
        findings.append(Finding(name, words, drift <= bound))
    return findings


def _magnitude(part: Node) -> Node | None:
    """The same reduction of the absolute value of its operand; None for nodes that are not reductions."""
    return Reduction(part.kind, Pointwise("abs", (part.operand,))) if isinstance(part, Reduction) else None


def decompositions(problem: Problem, communicator: Communicator, devices: Sequence[jax.Device]) -> list[Finding]:
    """Check that decompositions give bitwise the same result as one process with one device: one finding for each.

    ``problem`` is a `reduced` one. The decompositions use these processes and ``devices``; one that does not fit the
    grid counts as met. With a stencil by FFT, differences of rounding are accepted. All processes call this together.
    """
    simulation = alone(problem)
    dt = communicator.broadcast(step_of(problem, simulation))

    def blocks(simulation: ComposedSimulation) -> dict[str, np.ndarray]:
        problem = simulation.problem
        fields = simulation.advance(simulation.initial_fields(), StepRange(0.0, 0, dt, COMPARED_STEPS))
        return simulation.get(fields, problem.fields)

    expected, findings = blocks(simulation), []
    if not all(np.isfinite(block).all() for block in expected.values()):
        words = f"the solution blows up within {COMPARED_STEPS} steps of {dt:g}"
        return [Finding("decompositions", f"{words}: take a smaller time.{problem.config.time.given}", False)]
    size = max(float(np.abs(block).max()) for block in expected.values())
    for name, wishes, count in _ways(problem.config.grid.ndim, len(devices)):
        given = replace(problem.config, decomposition=replace(AUTO, **wishes))
        try:
            way = replace(problem, config=given)
            chosen = Decomposed.of(way, communicator.size, count)
        except InputError as refusal:
            findings.append(Finding(name, f"does not fit: {refusal}", True))
            continue
        found = with_kernel("shift", chosen, communicator, devices[:count])
        index = tuple(slice(*r) for r in found.ranges)
        own = blocks(found)
        worst = max(float(np.abs(own[field] - expected[field][index]).max()) for field in own)
        largest = float(communicator.maximum(np.array([worst]))[0])
        words = "the same bits" if largest == 0.0 else f"differs by up to {largest:.1e}"
        allowed = ROUND_OFF * np.finfo(simulation.dtype).eps * size if problem.by_fft else 0.0
        words += f" on {communicator.size} process{'es' * (communicator.size > 1)} x {count} device(s), {COMPARED_STEPS} steps"
        findings.append(Finding(name, words, largest <= allowed))
    return findings


def _ways(ndim: int, devices: int) -> list[tuple[str, dict[str, Any], int]]:
    """(name, keys of [decomposition], devices per process) of each decomposition that is checked."""
    ways: list[tuple[str, dict[str, Any], int]] = [("as planned", {}, devices)]
    ways.append(("tiles", {"tiles": (2,) * ndim}, devices))
    ways.append(("an exchange per step", {"steps_per_exchange": 1}, devices))
    if devices > 1:
        ways.append(("one device", {}, 1))
    return ways
