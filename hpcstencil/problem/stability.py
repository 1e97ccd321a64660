"""The largest stable step of an explicit method, from the `Rates` of an equation.

A mode exp(i θ·x/dx) of the linearized, discretized equation grows at the rate λ(θ), which is bounded by
  λ = -D Σ κ₂ - K (Σ κ₂)² - 2 Σ s/dx - r ± i(Σ |v| κ₁ + c sqrt(Σ κ₂) + B Σ κ₂ + ω).
The coefficients are those of `Rates`: diffusion D, biharmonic K, upwind s, reaction r, velocity v, wave c, dispersion B and
rotation ω. κ₁ and κ₂ are the largest symbols of the first and second difference, and the sums are over axes. The step keeps
dt λ inside the triangle between the real and the imaginary extent of the stability region of the method (von Neumann
analysis; Hundsdorfer & Verwer (2003), sect. I.3 and II.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import cast

import numpy as np

from hpcstencil.equations import SupportsCfl
from hpcstencil.equations.base import Rates
from hpcstencil.equations.user import Names, rates_of
from hpcstencil.numerics.finite_differences import central
from hpcstencil.numerics.integrators import Method, stability_limits
from hpcstencil.problem.problem import Problem
from hpcstencil.validation.errors import InputError


@cache
def largest_symbol(derivative: int, order: int, axis: int, spacing: tuple[float, ...]) -> float:
    """The largest symbol of a central difference: the maximum over θ of |Σ w_j exp(i j θ)|, in 1/length^derivative.

    ``derivative`` is 1 or 2, ``order`` the order of accuracy, and ``spacing`` the cell width per axis.
    """
    stencil = central(derivative, order, axis, spacing)
    theta = np.linspace(0.0, np.pi, 2001)
    offsets = np.array([o[axis] for o in stencil.offsets])
    return float(np.abs(np.exp(1j * np.outer(theta, offsets)) @ np.array(stencil.weights)).max())


def stable_step(rates: Rates, method: Method, order: int, spacing: tuple[float, ...]) -> float:
    """The largest stable dt of ``method``, in the time unit of the input: infinite if nothing limits it, 0 if no step is
    stable.

    ``order`` is the order of accuracy in space, and ``spacing`` the cell width per axis.
    """
    real, imaginary = stability_limits(method)
    axes = range(len(spacing))
    second = sum(largest_symbol(2, order, axis, spacing) for axis in axes)
    transport = sum(abs(v) * largest_symbol(1, order, axis, spacing) for axis, v in enumerate(rates.velocity))
    upwind = sum(2.0 * s / dx for s, dx in zip(rates.upwind, spacing, strict=False))
    damping = upwind + rates.diffusion * second + rates.biharmonic * second**2 + rates.reaction
    waves = rates.wave * math.sqrt(second) + rates.dispersion * second + rates.rotation
    oscillation = transport + waves
    if damping and not real:
        return 0.0
    if oscillation and not imaginary:
        if not rates.diffusion or waves:
            return 0.0
        # Forward Euler: diffusion stabilizes advection if dt <= 2 D / |v|².
        speed = sum(v * v for v in rates.velocity)
        return min(real / damping, 2.0 * rates.diffusion / speed)
    inverse = (damping / real if damping else 0.0) + (oscillation / imaginary if oscillation else 0.0)
    return 1.0 / inverse if inverse else math.inf


def stable_dt(problem: Problem, largest: Mapping[str, float]) -> float:
    """The largest stable dt of a problem, in the time unit of the input: infinite if nothing limits it, 0 if no step is
    stable.

    The equation must be `SupportsCfl`. ``largest`` maps each name in ``problem.measured`` to its largest magnitude on the
    global grid; it may be empty if the rates do not depend on the solution.
    """
    config, bounds, equation = problem.config, Names(**problem.bounds), cast(SupportsCfl, problem.equation)
    rates = rates_of(equation, config.equation.in_file, bounds, largest, config.grid.ndim)
    if problem.damping:
        rates = replace(rates, reaction=rates.reaction + problem.damping)
    return stable_step(rates, problem.method, config.numerics.order, config.grid.spacing)


def cfl_step(problem: Problem, largest: Mapping[str, float]) -> float:
    """The step size for `time.cfl`: this fraction of the stable step, at most `time.longest_step`, in the unit of time.end.

    ``largest`` is as in `stable_dt`. Raises InputError if no step is stable, or if nothing limits the step.
    """
    time, integrator = problem.config.time, problem.config.numerics.integrator
    stable = stable_dt(problem, largest)
    if stable == 0.0 and 0.0 in stability_limits(problem.method):
        raise InputError(
            f"numerics.integrator: '{integrator}' is unstable for this equation at any step; use 'rk4' or 'ssprk3'"
        )
    if stable == 0.0:
        raise InputError("time.cfl: the equation's rates are so large that no step is stable; use smaller parameters")
    if math.isinf(stable) and time.dt_max is None:
        raise InputError("time.cfl: nothing in this equation limits the step (all its rates are 0); give time.dt")
    assert time.cfl is not None
    return min(time.cfl * stable, time.longest_step)


def cfl_steps(problem: Problem, low: np.ndarray, high: np.ndarray) -> list[float]:
    """The step sizes for `time.cfl`, as of `cfl_step`: a list with one entry, or one per member with its own steps.

    ``low`` and ``high`` are the extremes of ``problem.measured``, of shape (quantities,) or (quantities, members). Raises
    InputError as `cfl_step` does.
    """
    each = problem.members or (problem,)
    largest = np.maximum(np.abs(low), np.abs(high)).reshape(len(problem.measured), len(each))
    return [
        cfl_step(own, dict(zip(problem.measured, of_own, strict=True)))
        for own, of_own in zip(each, largest.T.tolist(), strict=True)
    ]
