"""Warnings before a run: a step that is too long, rates that are too small, a negative diffusion coefficient, short waves
that grow without bound, a mask or a mean without content."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hpcstencil.equations import SupportsCfl
from hpcstencil.equations.user import Names, rates_of
from hpcstencil.numerics.schedule import ROUND
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.stability import stable_dt
from hpcstencil.problem.von_neumann import GROWTH, estimated_step, unbounded_growth
from hpcstencil.symbolic.expressions import (
    Constant,
    Field,
    Node,
    Parameter,
    Pointwise,
    Series,
    Time,
    bottom_up,
    walk,
)
from hpcstencil.symbolic.numpy_evaluate import SAMPLED, at_start, by_node, evaluate

MOMENTS = 2**16  # times at which functions of time are evaluated
SUDDEN = 0.05  # a function of time that changes in a smaller part of the run has a pulse or jump
DOUBTFUL = 3.0  # ratio of a stable step to the estimated one from which it is doubted


def warnings_of(problem: Problem) -> list[str]:
    """The warnings about a problem, one sentence each; empty if there is nothing to warn about."""
    return [
        *_without_solid_cells(problem),
        *_without_means(problem),
        *_passed_over(problem),
        *(_running_backwards(problem) or _ill_posed(problem)),
        *_doubtful_rates(problem),
        *unstable(problem),
    ]


def _without_solid_cells(problem: Problem) -> list[str]:
    """A warning if a mask marks no cell. The expression of a mask is not evaluated on a grid of more than `SAMPLED` cells."""
    found, mask = problem.contents.get("mask.solid"), problem.mask
    if mask is None:
        return []
    if found is not None:
        marks = found.magnitude > 0
    else:
        runs = problem.members or (problem,)
        marks = problem.cells > SAMPLED or any(
            np.any(at_start(run.config.grid, run.parameters)(mask.solid)) for run in runs
        )
    return (
        [] if marks else ["mask.solid: no cell is solid, since all its values are 0: expect a domain without obstacles"]
    )


def _without_means(problem: Problem) -> list[str]:
    """A warning for each stream of means whose first record comes after the end of the run."""
    time = problem.config.time
    first = {
        name: stream.every if stream.every is not None else (stream.every_steps or 0) * (time.dt or 0.0)
        for name, stream in problem.config.output.streams.items()
        if stream.average
    }
    return [
        f"output.streams.{name}: its first mean is due at t = {due:g}, after time.end = {time.end:g}: expect a file without "
        "records"
        for name, due in first.items()
        if due > time.end * (1 + ROUND)
    ]


def _passed_over(problem: Problem) -> list[str]:
    """A warning if steps may pass over changes of the equation in time: samples of a series, or a pulse or jump."""
    time = problem.config.time
    trees = [*problem.right_hand_sides(), *(value for face in problem.faces.values() for value in face.values)]
    sampled = sorted({part.dt for tree in trees for part in walk(tree) if isinstance(part, Series)})
    found = [
        f"time.dt = {time.dt:g} is longer than dt = {dt:g} between the samples of a time series: expect changes between the "
        "steps to be lost"
        for dt in sampled
        if time.dt is not None and time.dt > dt * (1 + ROUND)
    ]
    if time.tolerance is not None and time.dt_max is None and _changes_suddenly(problem, trees):
        found.append(
            "time.tolerance: the equation has a pulse or jump in time, which steps may pass over; set time.dt_max to a "
            "fraction of its duration"
        )
    return found


def _changes_suddenly(problem: Problem, trees: Sequence[Node]) -> bool:
    """Whether a function of time in the ``trees`` changes in a small part of the run only, less than SUDDEN of it."""
    times, functions = np.linspace(0.0, problem.config.time.end, MOMENTS), functions_of_time(trees)
    for run in problem.members or (problem,):
        for function in functions:
            values = evaluate(function, values={**by_node(run.parameters), Time(): times})
            changes = np.sort(np.abs(np.diff(np.asarray(values, np.float64))))[::-1]
            if np.isfinite(changes).all() and changes.sum() > 0.0:
                needed = np.searchsorted(np.cumsum(changes), 0.99 * changes.sum())
                if needed < SUDDEN * len(changes):
                    return True
    return False


def functions_of_time(trees: Sequence[Node]) -> list[Node]:
    """The largest parts of the ``trees`` that depend on time, and on nothing else but numbers.

    Comparisons with 0 are left out: upwind() makes them of a velocity, which itself need not jump.
    """
    kinds, found = dict[Node, str](), dict[Node, None]()
    for tree in trees:
        for part in bottom_up(tree):
            below = {kinds[child] for child in part.children}
            match part:
                case Constant() | Parameter():
                    kinds[part] = "number"
                case Time():
                    kinds[part] = "time"
                case Pointwise() | Series():
                    kinds[part] = next((kind for kind in ("other", "time") if kind in below), "number")
                case _:
                    kinds[part] = "other"
            if kinds[part] == "other":
                found |= {child: None for child in part.children if kinds[child] == "time"}
        if kinds[tree] == "time":
            found[tree] = None
    return [part for part in found if not (isinstance(part, Pointwise) and part.children[1:] == (Constant(0.0),))]


def _running_backwards(problem: Problem) -> list[str]:
    """A warning for each number or array with negative values on which the diffusion coefficient depends."""
    equation, config = problem.equation, problem.config
    if not isinstance(equation, SupportsCfl):
        return []

    def diffusion(bounds: Mapping[str, float]) -> tuple[float, float]:
        largest = dict.fromkeys(problem.measured, 1.0)
        rates = rates_of(equation, config.equation.in_file, Names(**bounds), largest, config.grid.ndim)
        return rates.diffusion, rates.biharmonic

    lowest = {name: float(np.min(value)) for name, value in problem.parameters.items()}
    lowest |= {name: found.lowest for name in problem.bounds if (found := problem.contents.get(f"equation.{name}"))}
    negative = {name: least for name, least in lowest.items() if least < 0}
    return [
        f"equation.{name} = {least:g} is negative, and so is a diffusion coefficient that depends on it: expect the solution "
        "to blow up for any step"
        for name, least in negative.items()
        if diffusion({**problem.bounds, name: 2 * problem.bounds[name]}) != diffusion(problem.bounds)
    ]


def _ill_posed(problem: Problem) -> list[str]:
    """A warning if short waves grow without bound, as with a negative diffusion coefficient."""
    growth = max(unbounded_growth(run) for run in problem.members or (problem,))
    if growth * problem.config.time.end <= math.log(GROWTH):
        return []
    return [
        f"equation: short waves grow, on this grid by a factor of e in t = {1 / growth:.3g} and faster on finer ones, as with "
        "a negative diffusion coefficient: expect the solution to blow up for any step"
    ]


def _doubtful_rates(problem: Problem) -> list[str]:
    """A warning if the rates of a user's class give a stable step that is much longer than the estimated one."""
    config = problem.config
    if config.equation.in_file is None or not isinstance(problem.equation, SupportsCfl):
        return []
    for run in problem.members or (problem,):
        largest = _largest_at_start(run) if problem.rates_follow_solution else {}
        stable = 0.0 if largest is None else min(stable_dt(run, largest), config.time.end)
        if stable and (estimated := estimated_step(run, stable)) < stable / DOUBTFUL:
            return [
                f"equation.name: with the rates of {config.equation.in_file[1]}, steps up to {stable:.3g} are stable, but the "
                f"right-hand sides allow only about {estimated:.3g}: check rates()"
            ]
    return []


def unstable(problem: Problem) -> list[str]:
    """A warning if the step is longer than the stable step, which is estimated if the equation has no rates."""
    dt, cfl = problem.config.time.dt, problem.config.time.cfl
    if cfl is not None and cfl > 1.0:
        return [f"time.cfl = {cfl:g} is more than the whole stable step: the solution may blow up"]
    if dt is None:
        return []
    runs, what = problem.members or (problem,), "this equation and grid"
    if not isinstance(problem.equation, SupportsCfl):
        stable, found = min(estimated_step(run, dt) for run in runs), "about "
    elif problem.rates_follow_solution:
        steps = [stable_dt(run, largest) for run in runs if (largest := _largest_at_start(run)) is not None]
        stable, found, what = min(steps, default=math.inf), "about ", "the initial state"
    else:
        stable, found = stable_dt(problem, {}), ""
    if dt <= stable:
        return []
    return [
        f"time.dt = {dt:g} is beyond the stable step of {problem.config.numerics.integrator} for {what}, "
        f"{found}{stable:.{3 if found else 6}g}: the solution may blow up"
    ]


def _largest_at_start(problem: Problem) -> dict[str, float] | None:
    """The largest magnitudes of the measured quantities at t = 0 by name, in a sample of cells.

    None if the initial values of the fields are not expressions, if a quantity depends on the array of a parameter, or if one
    is not finite.
    """
    config, initial = problem.config, {Field(name): tree for name, tree in problem.initial.items()}
    measured = {name: tree for name, tree in problem.measured.items() if name not in problem.given}
    read = {name for tree in measured.values() for name in tree.field_names}
    if config.initial.file is not None or problem.held or not read.isdisjoint(problem.given):
        return None
    value = at_start(config.grid, problem.parameters)
    fields = dict.fromkeys(map(Field, problem.fields), 0.0) | {field: value(tree) for field, tree in initial.items()}
    found = {name: float(np.abs(value(tree, fields)).max()) for name, tree in measured.items()}
    return found if all(map(math.isfinite, found.values())) else None
