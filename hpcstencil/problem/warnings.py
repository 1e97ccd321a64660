"""Warnings before a run: a step that is too long, a negative diffusion coefficient, a mask or a mean without content."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np

from hpcstencil.equations import SupportsCfl
from hpcstencil.equations.user import rates_of
from hpcstencil.numerics.schedule import ROUND
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.stability import stable_dt
from hpcstencil.problem.von_neumann import estimated_step


def warnings_of(problem: Problem) -> list[str]:
    """The warnings about a problem, one sentence each; empty if there is nothing to warn about."""
    return [*_without_solid_cells(problem), *_without_means(problem), *_running_backwards(problem), *_unstable(problem)]


def _without_solid_cells(problem: Problem) -> list[str]:
    """A warning if the array of a mask marks no cell."""
    found = problem.contents.get("mask.solid")
    if found is None or found.magnitude > 0:
        return []
    return ["mask.solid: no cell is solid, since all its values are 0: expect a domain without obstacles"]


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


def _running_backwards(problem: Problem) -> list[str]:
    """A warning for each negative parameter on which the diffusion coefficient depends."""
    equation, config = problem.equation, problem.config
    if not isinstance(equation, SupportsCfl):
        return []

    def diffusion(bounds: Mapping[str, float]) -> tuple[float, float]:
        largest = dict.fromkeys(problem.measured, 1.0)
        rates = rates_of(equation, config.equation.in_file, SimpleNamespace(**bounds), largest, config.grid.ndim)
        return rates.diffusion, rates.biharmonic

    negative = {name: least for name, value in problem.parameters.items() if (least := np.min(value)) < 0}
    return [
        f"equation.{name} = {least:g} is negative, and so is a diffusion coefficient that depends on it: expect the solution "
        "to blow up for any step"
        for name, least in negative.items()
        if diffusion({**problem.bounds, name: 2 * problem.bounds[name]}) != diffusion(problem.bounds)
    ]


def _unstable(problem: Problem) -> list[str]:
    """A warning if the step is longer than the stable step, which is estimated if the equation has no rates."""
    dt, cfl = problem.config.time.dt, problem.config.time.cfl
    if cfl is not None and cfl > 1.0:
        return [f"time.cfl = {cfl:g} is more than the whole stable step: expect the solution to blow up"]
    if dt is None or problem.rates_follow_solution:
        return []
    if isinstance(problem.equation, SupportsCfl):
        stable, found = stable_dt(problem, {}), ""
    else:
        stable, found = min(estimated_step(run, dt) for run in problem.members or (problem,)), "about "
    if dt <= stable:
        return []
    return [
        f"time.dt = {dt:g} is beyond the stable step of {problem.config.numerics.integrator} for this equation and "
        f"grid, {found}{stable:.{3 if found else 6}g}: {'the solution may' if found else 'expect the solution to'} blow up"
    ]
