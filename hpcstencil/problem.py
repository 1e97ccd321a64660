"""What an input file asks for, made whole: every expression parsed, every name known, the stable step worked out.

Neither jax nor MPI is needed here, so `hpcstencil check` sees all that a run would refuse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from hpcstencil import host
from hpcstencil.boundary import Face
from hpcstencil.ensemble import members
from hpcstencil.equations import Equation, Limited
from hpcstencil.equations.custom import parameters_used
from hpcstencil.errors import InputError
from hpcstencil.expressions import (
    Constant,
    Coordinate,
    Field,
    Node,
    Parameter,
    Reduction,
    children,
    walk,
)
from hpcstencil.integrators import SUPER_STEPPING, Method, memory_of, method, stability_limits
from hpcstencil.keys import MOST_STEPS
from hpcstencil.layers import layered
from hpcstencil.mask import SOLID, Mask, mask_of, masked_diagnostics, masked_initial, masked_rates
from hpcstencil.method_choice import groups_of, with_enough_stages
from hpcstencil.model import Model, model_of, space_of
from hpcstencil.parser import Scope, parse
from hpcstencil.placed import Placed
from hpcstencil.positions import Layout, Positions, is_staggered
from hpcstencil.radius import Discretization, Needs
from hpcstencil.schedule import Schedule
from hpcstencil.schema import shown, wrong
from hpcstencil.settings import Config
from hpcstencil.stability import stable_step
from hpcstencil.walls import faces_of


@dataclass(frozen=True)
class Problem:
    """An initial value problem, ready to be discretized.

    ``trees`` are the time derivatives per field, ``initial`` the initial expressions of those fields that have one,
    ``faces`` the boundary conditions of non-periodic axes per (field or inner result, axis, side), ``diagnostics`` trees
    over reductions.
    ``parameters`` are the numbers handed to the compiled code, arrays where the ``members`` of an ensemble differ; those
    given as expressions are part of the trees, and ``symbols`` has both kinds as nodes.
    ``groups`` tells the fields of a partitioned ``method`` apart; ``memory`` names the fields that absorbing layers, a
    multistep method or a mask added, ``damping`` is the fastest rate of the layers; ``apart`` are the parts of the time
    derivatives that a multistep method takes apart; ``measured`` are the fields, and expressions of them that the stable
    step depends on. ``positions`` tells where fields live that do not live at cell centres, and ``staggered`` whether
    anything does; ``mask`` has the solid cells, ``source`` the text of the equation's Python file.
    """

    config: Config
    equation: Equation
    fields: tuple[str, ...]
    trees: Mapping[str, Node]
    parameters: Mapping[str, Any]
    symbols: Mapping[str, Node]
    bounds: Mapping[str, float]
    initial: Mapping[str, Node]
    faces: Mapping[tuple[Node, int, int], Face]
    diagnostics: Mapping[str, Node]
    method: Method
    groups: Mapping[str, int]
    discretization: Discretization
    memory: tuple[str, ...] = ()
    damping: float = 0.0
    apart: Mapping[str, Node] = field(default_factory=dict)
    measured: Mapping[str, Node] = field(default_factory=dict)
    positions: Positions = field(default_factory=dict)
    members: tuple[Problem, ...] = ()
    staggered: bool = False
    mask: Mask | None = None
    source: str = ""

    @property
    def layout(self) -> Layout:
        """Where the fields live in files."""
        config = self.config
        return Layout(config.grid, self.positions, config.boundary.periodic, config.ensemble)

    @property
    def copies(self) -> int:
        """How many runs are side by side: the members of an ensemble, else 1."""
        return max(1, len(self.members))

    @property
    def own_steps(self) -> bool:
        """Whether the members of an ensemble take steps of their own, each as long as it may."""
        return bool(self.members) and self.config.time.dt is None

    @property
    def cells(self) -> int:
        """Cells of all runs that are side by side."""
        return self.copies * self.config.grid.cells

    @property
    def cells_per_step(self) -> int:
        """Cells that a step changes: members with steps of their own are counted one by one."""
        return self.config.grid.cells if self.own_steps else self.cells

    @property
    def shown(self) -> tuple[str, ...]:
        """The fields that the equation has: all but the memories of absorbing layers."""
        return tuple(name for name in self.fields if name not in self.memory)

    @property
    def step_follows_solution(self) -> bool:
        """Whether the size of the steps is found out as the run goes."""
        return self.config.time.dt is None and (self.config.time.tolerance is not None or self.rates_follow_solution)

    @property
    def rates_follow_solution(self) -> bool:
        """Whether the stable step depends on the fields."""
        return isinstance(self.equation, Limited) and self.equation.solution_dependent

    @property
    def radius(self) -> tuple[int, ...]:
        """Ghost cells per axis that one evaluation of the right-hand side uses up."""
        return self.discretization.radius(self.differentiated())

    def needs(self) -> Needs:
        """Ghost cells that the derivatives ask of their operands."""
        needs = self.discretization.needs(self.differentiated())
        if self.mask is not None and self.mask.dataset is not None:
            needs[self.mask.solid] = ((1, 1),) * self.config.grid.ndim, False
        return needs

    def differentiated(self) -> list[Node]:
        """All trees that are evaluated with ghost cells."""
        return [*self.trees.values(), *self.apart.values(), *self.reduced()]

    def constants(self) -> tuple[float, ...]:
        """All numbers that the expressions evaluated on the grid hold, weights of stencils included."""
        values = (value for face in self.faces.values() for value in face.values)
        surface = [self.mask.value] if self.mask is not None and self.mask.value is not None else []
        trees = [*self.differentiated(), *values, *surface]
        parts = [part for tree in trees for part in walk(tree)]
        numbers = [part.value for part in parts if isinstance(part, Constant)]
        for part in parts:
            numbers += [w for stencil in self.discretization.stencils(part) for w in stencil.weights]
        if self.mask is not None:
            numbers += [2.0 / dx for dx in self.discretization.spacing]
        return tuple(dict.fromkeys(numbers))

    def reduced(self) -> tuple[Node, ...]:
        """Operands of all reductions in the diagnostics."""
        return tuple(
            dict.fromkeys(
                part.operand for tree in self.diagnostics.values() for part in walk(tree) if isinstance(part, Reduction)
            )
        )

    def stable_dt(self, largest: Mapping[str, float]) -> float:
        """Largest stable step, ``largest`` being the greatest magnitude of all that is ``measured``."""
        assert isinstance(self.equation, Limited)
        rates = self.equation.rates(SimpleNamespace(**self.bounds), largest, self.config.grid.ndim)
        rates = replace(rates, reaction=rates.reaction + self.damping)
        return stable_step(rates, self.method, self.config.numerics.order, self.config.grid.spacing)

    def dt(self, largest: Mapping[str, float]) -> float:
        """The step that `cfl` asks for.

        Raises InputError where no step is stable, or none is limited.
        """
        time, integrator = self.config.time, self.config.numerics.integrator
        stable = self.stable_dt(largest)
        if stable == 0.0 and 0.0 in stability_limits(self.method):
            raise InputError(
                f"numerics.integrator: '{integrator}' is unstable for this equation at any step; use 'rk4' or 'ssprk3'"
            )
        if stable == 0.0:
            raise InputError(
                "time.cfl: the equation's rates are so large that no step is stable; use smaller parameters"
            )
        if math.isinf(stable):
            raise InputError("time.cfl: nothing in this equation limits the step (all its rates are 0); give time.dt")
        assert time.cfl is not None
        return min(time.cfl * stable, time.end)

    def schedule(self) -> Schedule:
        """When steps, outputs, diagnostics and checkpoints are due."""
        config = self.config
        return Schedule(
            end=config.time.end,
            fixed_dt=config.time.dt,
            output_time=config.output.every,
            output_steps=config.output.every_steps,
            diagnostic_steps=config.diagnostics.every_steps,
            checkpoint_steps=config.checkpoint.every_steps,
        )

    def warnings(self) -> list[str]:
        """What a careful user would want to be told before the run."""
        dt, cfl = self.config.time.dt, self.config.time.cfl
        if cfl is not None and cfl > 1.0:
            return [f"time.cfl = {cfl:g} is more than the whole stable step: expect the solution to blow up"]
        if dt is None or not isinstance(self.equation, Limited) or self.equation.solution_dependent:
            return []
        stable = self.stable_dt({})
        if dt <= stable:
            return []
        return [
            f"time.dt = {dt:g} is beyond the stable step of {self.config.numerics.integrator} for this equation and "
            f"grid, {stable:.6g}: expect the solution to blow up"
        ]


def build(config: Config) -> Problem:
    """The problem of an input, of an ensemble with those of its members.

    Raises InputError for unknown names, malformed expressions and unfit parameters, and where members of an ensemble
    differ in more than numbers and initial states.
    """
    if not config.ensemble:
        return _alone(config)
    each = tuple(_alone(member) for member in members(config))
    first, known = each[0], {f"equation.{name}" for name in each[0].parameters}
    for key in config.ensemble:
        if key.startswith("equation.") and key not in (*known, "equation.seed"):
            raise InputError(f"ensemble.{key}: expected a number of the equation, but got an expression; list numbers")
    for member, problem in enumerate(each):
        if (problem.trees, problem.faces, problem.method) != (first.trees, first.faces, first.method):
            raise InputError(
                f"ensemble: member {member} differs from the first in more than numbers, as where an absorbing layer follows "
                "the speed of the waves; give each its own run, with hpcstencil sweep"
            )
    listed = {key.partition(".")[2] for key in config.ensemble if key.startswith("equation.")}
    parameters = {
        name: np.array([problem.parameters[name] for problem in each]) if name in listed else value
        for name, value in first.parameters.items()
    }
    bounds = {name: max(problem.bounds[name] for problem in each) for name in first.bounds}
    return replace(first, config=config, parameters=parameters, bounds=bounds, members=each)


def _alone(config: Config) -> Problem:
    """The problem of one run. Raises InputError for unknown names, malformed expressions and unfit parameters."""
    model = model_of(config)
    numbers, symbols, equation = model.numbers, model.symbols, model.equation
    values = {Parameter(name): value for name, value in numbers.items()}
    bounds = {name: host.largest(symbols[name], config.grid, values) for name in symbols}
    precision = config.numerics.precision
    for name, bound in bounds.items():
        if not bound <= float(np.finfo(precision).max):
            expected = f"values that {precision} can hold on the whole grid"
            raise wrong(f"equation.{name}", expected, model.given[name], f"it is {bound:g} somewhere; change it")
    seed = config.equation.seed
    if seed is not None and "seed" not in parameters_used(config.initial.expressions.values()):
        raise InputError("equation.seed: no initial expression uses it; write noise(seed) in [initial], or remove it")
    scope = Scope(
        config.grid.ndim, {**symbols, **({} if seed is None else {"seed": Constant(seed)})}, time=False, noise=True
    )
    initial = {name: parse(text, scope, f"initial.{name}") for name, text in config.initial.expressions.items()}
    mask = mask_of(config, symbols)
    chosen = _method(config, model)
    apart = model.damping if chosen.multistep else {}
    trees = {
        name: tree + model.damping[name] if name in model.damping and not apart else tree
        for name, tree in model.trees.items()
    }
    layers = layered(trees, config, _fastest_wave(model, bounds, config.grid.ndim), model.positions)
    reduced = _diagnostics(config, {**symbols, **model.unknowns})
    placed = Placed(
        config, layers.positions, is_staggered([*layers.trees.values(), *reduced.values()], layers.positions)
    )
    faces = faces_of(config, model, layers.trees, placed.staggered)
    remembered = memory_of(chosen, tuple(layers.trees))
    if mask is not None and mask.dataset is not None:
        remembered = (*remembered, SOLID)
    problem = Problem(
        config=config,
        equation=equation,
        fields=(*layers.trees, *remembered),
        trees=masked_rates(mask, placed.rates(layers.trees, faces)),
        parameters=numbers,
        symbols=symbols,
        bounds=bounds,
        initial=masked_initial(mask, placed.initial(initial, faces)),
        faces=faces,
        diagnostics=masked_diagnostics(mask, placed.diagnostics(reduced), config.numerics.precision),
        method=chosen,
        groups=groups_of(layers.trees, chosen, config.numerics.integrator),
        discretization=Discretization(config.numerics.order, config.grid.spacing),
        memory=(*layers.memory, *remembered),
        damping=layers.rate,
        apart=placed.rates(apart, faces),
        measured={**{name: Field(name) for name in (*layers.trees, *remembered)}, **model.signals},
        positions=layers.positions,
        staggered=placed.staggered,
        mask=mask,
        source=model.source,
    )
    if config.time.cfl is not None:
        if not isinstance(equation, Limited):
            raise InputError(
                "time.cfl: this equation does not know its stable step; write for example time.dt = 0.1, or "
                "time.tolerance = 1e-4"
            )
        _check_step(problem, config.time.cfl)
    if config.numerics.stages is None and config.numerics.integrator in SUPER_STEPPING and config.time.dt is not None:
        known = isinstance(equation, Limited) and not problem.rates_follow_solution
        stable_step = (lambda m: replace(problem, method=m).stable_dt({})) if known else None
        return replace(problem, method=with_enough_stages(config.numerics.integrator, config.time.dt, stable_step))
    return problem


def _method(config: Config, model: Model) -> Method:
    numerics = config.numerics
    return method(numerics.integrator, numerics.stages, numerics.epsilon, split=bool(model.damping))


def _fastest_wave(model: Model, bounds: Mapping[str, float], ndim: int) -> float:
    """Speed of the fastest wave, as the equation knows it; 0 where it does not."""
    if not isinstance(model.equation, Limited):
        return 0.0
    rates = model.equation.rates(SimpleNamespace(**bounds), dict.fromkeys([*model.fields, *model.signals], 1.0), ndim)
    return max([rates.wave, *rates.velocity])


def _check_step(problem: Problem, cfl: float) -> None:
    """Refuse now what would be found out only when the first step is taken: none is stable, or they are too small."""
    if problem.rates_follow_solution:
        ones = dict.fromkeys(problem.measured, 1.0)
        if problem.stable_dt(ones) == 0.0:
            problem.dt(ones)  # says why
        return
    if problem.config.time.end > MOST_STEPS * problem.dt({}):
        raise wrong("time.cfl", "at most 2**53 steps up to time.end", cfl, "take longer steps, or end earlier")


def _diagnostics(config: Config, names: Mapping[str, Node]) -> dict[str, Node]:
    """The diagnostics; each must be a number, made of reductions."""
    scope = Scope(config.grid.ndim, names, operators=True, reductions=True, space=space_of(config))
    trees = {}
    for name, text in config.diagnostics.expressions.items():
        trees[name] = parse(text, scope, f"diagnostics.{name}")
        _check_number(trees[name], f"diagnostics.{name}", text, inside=False)
    return trees


def _check_number(tree: Node, key: str, text: str, inside: bool) -> None:
    """Fields and coordinates stand inside a reduction, and reductions do not nest."""
    if isinstance(tree, Reduction):
        if inside:
            raise InputError(f"{key}: {shown(text)} nests one reduction in another; take them apart")
        inside = True
    elif isinstance(tree, Field | Coordinate) and not inside:
        raise InputError(f"{key}: {shown(text)} is not one number; put it inside integral(), mean(), min() or max()")
    for child in children(tree):
        _check_number(child, key, text, inside)
