"""What an input file asks for, made whole: every expression parsed, every name known, the stable step worked out.

Neither jax nor MPI is needed here, so `hpcstencil check` sees all that a run would refuse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from hpcstencil import host
from hpcstencil.boundary import Face
from hpcstencil.conditions import Dirichlet, Neumann
from hpcstencil.config import Config, check_fields
from hpcstencil.derivatives import Space
from hpcstencil.equations import EQUATIONS, Custom, Equation
from hpcstencil.equations.custom import parameters_used
from hpcstencil.errors import InputError
from hpcstencil.expressions import Coordinate, Field, Node, Parameter, Reduction, children, node, walk
from hpcstencil.integrators import INTEGRATORS, Tableau, stability_limits
from hpcstencil.keys import MOST_STEPS
from hpcstencil.parser import Scope, parse
from hpcstencil.radius import Discretization, Needs
from hpcstencil.schedule import Schedule
from hpcstencil.schema import at, nearest, shown, wrong
from hpcstencil.stability import stable_step


@dataclass(frozen=True)
class Problem:
    """An initial value problem, ready to be discretized.

    ``trees`` are the time derivatives per field, ``initial`` the initial expressions of those fields that have one,
    ``faces`` the boundary conditions of non-periodic axes per (field, axis, side), ``diagnostics`` trees over reductions.
    ``parameters`` are the numbers handed to the compiled code; those given as expressions are part of the trees.
    """

    config: Config
    equation: Equation
    fields: tuple[str, ...]
    trees: Mapping[str, Node]
    parameters: Mapping[str, float]
    bounds: Mapping[str, float]
    initial: Mapping[str, Node]
    faces: Mapping[tuple[str, int, int], Face]
    diagnostics: Mapping[str, Node]
    tableau: Tableau
    discretization: Discretization

    @property
    def radius(self) -> tuple[int, ...]:
        """Ghost cells per axis that one evaluation of the right-hand side uses up."""
        return self.discretization.radius([*self.trees.values(), *self.reduced()])

    def needs(self) -> Needs:
        """Ghost cells that the derivatives ask of their operands."""
        return self.discretization.needs([*self.trees.values(), *self.reduced()])

    def reduced(self) -> tuple[Node, ...]:
        """Operands of all reductions in the diagnostics."""
        return tuple(
            dict.fromkeys(
                part.operand for tree in self.diagnostics.values() for part in walk(tree) if isinstance(part, Reduction)
            )
        )

    def stable_dt(self, largest: Mapping[str, float]) -> float:
        """Largest stable step, ``largest`` being the greatest magnitude of each field (used by nonlinear transport)."""
        rates = self.equation.rates(SimpleNamespace(**self.bounds), largest, self.config.grid.ndim)
        return stable_step(rates, self.tableau, self.config.numerics.order, self.config.grid.spacing)

    def dt(self, largest: Mapping[str, float]) -> float:
        """The step that `cfl` asks for.

        Raises InputError where no step is stable, or none is limited.
        """
        time, integrator = self.config.time, self.config.numerics.integrator
        stable = self.stable_dt(largest)
        if stable == 0.0 and not stability_limits(self.tableau)[1]:
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
        if dt is None or isinstance(self.equation, Custom) or self.equation.solution_dependent:
            return []
        stable = self.stable_dt({})
        if dt <= stable:
            return []
        return [
            f"time.dt = {dt:g} is beyond the stable step of {self.config.numerics.integrator} for this equation and "
            f"grid, {stable:.6g}: expect the solution to blow up"
        ]


def build(config: Config) -> Problem:
    """The problem of an input. Raises InputError for unknown names, malformed expressions and unfit parameters."""
    ndim = config.grid.ndim
    custom = config.equation.name == "custom"
    equation: Equation = Custom(config.equation.rhs) if custom else EQUATIONS[config.equation.name]()
    fields = equation.fields(ndim)
    check_fields(config, fields)
    given = _parameters(equation, config, custom)
    numbers = {name: value for name, value in given.items() if not isinstance(value, str)}
    symbols: dict[str, Node] = {name: Parameter(name) for name in numbers}
    scope = Scope(ndim, dict(symbols), time=False)
    for name, text in given.items():
        if isinstance(text, str):
            symbols[name] = parse(text, scope, f"equation.{name}")
    unknowns = {name: Field(name) for name in fields}
    trees = equation.rhs(SimpleNamespace(**unknowns), SimpleNamespace(**symbols), Space(ndim))
    _refuse_unused(config, custom, trees, symbols)
    values = {Parameter(name): value for name, value in numbers.items()}
    bounds = {name: host.largest(symbols[name], config.grid, values) for name in symbols}
    precision = config.numerics.precision
    for name, bound in bounds.items():
        if not bound <= float(np.finfo(precision).max):
            expected = f"values that {precision} can hold on the whole grid"
            raise wrong(f"equation.{name}", expected, given[name], f"it is {bound:g} somewhere; change it")
    problem = Problem(
        config=config,
        equation=equation,
        fields=fields,
        trees=trees,
        parameters=numbers,
        bounds=bounds,
        initial={
            name: parse(text, Scope(ndim, symbols, time=False, noise=True), f"initial.{name}")
            for name, text in config.initial.expressions.items()
        },
        faces=_faces(config, fields, symbols),
        diagnostics=_diagnostics(config, {**symbols, **unknowns}),
        tableau=INTEGRATORS[config.numerics.integrator],
        discretization=Discretization(config.numerics.order, config.grid.spacing),
    )
    if config.time.cfl is not None:
        _check_step(problem, config.time.cfl)
    return problem


def _check_step(problem: Problem, cfl: float) -> None:
    """Refuse now what would be found out only when the first step is taken: none is stable, or they are too small."""
    if problem.equation.solution_dependent:
        ones = dict.fromkeys(problem.fields, 1.0)
        if problem.stable_dt(ones) == 0.0:
            problem.dt(ones)  # says why
        return
    if problem.config.time.end > MOST_STEPS * problem.dt({}):
        raise wrong("time.cfl", "at most 2**53 steps up to time.end", cfl, "take longer steps, or end earlier")


def _parameters(equation: Equation, config: Config, custom: bool) -> dict[str, float | str]:
    """The equation's parameters, defaults filled in."""
    given = dict(config.equation.parameters)
    if custom:
        return given
    for name in given:
        if name not in equation.parameters:
            near = nearest(name, equation.parameters)
            hint = f"did you mean '{near}'?" if near else f"it has {', '.join(equation.parameters)}"
            raise InputError(f"{at('equation', name)}: '{config.equation.name}' has no such parameter; {hint}")
    return {**equation.parameters, **given}


def _refuse_unused(config: Config, custom: bool, trees: Mapping[str, Node], symbols: Mapping[str, Node]) -> None:
    """A parameter that was given but does nothing is a mistake."""
    if custom:
        texts = [*config.equation.rhs.values(), *config.initial.expressions.values()]
        texts += [*config.diagnostics.expressions.values(), *config.boundary.texts()]
        texts += [v for v in config.equation.parameters.values() if isinstance(v, str)]
        used = parameters_used(texts)
    else:
        used = {part.name for tree in trees.values() for part in walk(tree) if isinstance(part, Parameter)}
        used |= {name for name, tree in symbols.items() if not isinstance(tree, Parameter)}
    for name in config.equation.parameters:
        if name not in used:
            why = "no expression uses it" if custom else f"it has no effect on a grid with {config.grid.ndim} axes"
            raise InputError(f"equation.{name}: {why}; remove it")


def _faces(config: Config, fields: tuple[str, ...], symbols: Mapping[str, Node]) -> dict[tuple[str, int, int], Face]:
    """The boundary conditions of the axes that are not periodic."""
    ndim = config.grid.ndim
    faces = {}
    for field in fields:
        for axis in range(ndim):
            for side in (0, 1):
                condition = config.boundary.condition(field, axis, side)
                if not isinstance(condition, Dirichlet | Neumann):
                    continue
                kind = type(condition).__name__.lower()
                own = config.boundary.fields.get(field, (None,) * ndim)[axis] is not None
                where = f"boundary.{field}" if own else "boundary"
                key = f"{where}.{config.grid.axes[axis]}.{('lower', 'upper')[side]}.{kind}"
                value = condition.value
                tree = parse(value, Scope(ndim, symbols), key) if isinstance(value, str) else node(value)
                faces[field, axis, side] = Face(kind, tree)
    return faces


def _diagnostics(config: Config, names: Mapping[str, Node]) -> dict[str, Node]:
    """The diagnostics; each must be a number, made of reductions."""
    scope = Scope(config.grid.ndim, names, operators=True, reductions=True)
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
