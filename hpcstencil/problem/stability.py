"""The largest stable step of an explicit method.

Every mode exp(i θ·x/dx) of the linearized, discretized equation grows with a rate
  λ(θ) = -D Σ κ₂ - K (Σ κ₂)² - 2 Σ s/dx - r ± i(Σ |v| κ₁ + c sqrt(Σ κ₂) + B Σ κ₂ + ω).
Here 2 s/dx is the reach of a first-order upwind scheme whose fastest signal is s, and κ₁ and κ₂ are the largest symbols
of the first and second difference. The step keeps dt λ inside the triangle between the real and the imaginary extent of the
method's stability region (von Neumann's analysis; Hundsdorfer & Verwer (2003), sect. I.3 and II.1).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from hpcstencil.equations.base import Rates
from hpcstencil.numerics.finite_differences import central
from hpcstencil.numerics.integrators import Method, stability_limits


@cache
def largest_symbol(derivative: int, order: int, axis: int, spacing: tuple[float, ...]) -> float:
    """max over θ of |Σ w_j exp(i j θ)| for a central difference along one axis, in 1/length^derivative."""
    stencil = central(derivative, order, axis, spacing)
    theta = np.linspace(0.0, np.pi, 2001)
    offsets = np.array([o[axis] for o in stencil.offsets])
    return float(np.abs(np.exp(1j * np.outer(theta, offsets)) @ np.array(stencil.weights)).max())


def stable_step(rates: Rates, method: Method, order: int, spacing: tuple[float, ...]) -> float:
    """Largest stable dt, in the unit of time: infinite if nothing limits it, 0 if no step is stable."""
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
        # Forward Euler: diffusion also stabilizes transport if dt <= 2 D / |v|².
        speed = sum(v * v for v in rates.velocity)
        return min(real / damping, 2.0 * rates.diffusion / speed)
    inverse = (damping / real if damping else 0.0) + (oscillation / imaginary if oscillation else 0.0)
    return 1.0 / inverse if inverse else math.inf
