"""Explicit Runge-Kutta methods as Butcher tables, and the stability limits that follow from them.

y_i = u + dt sum_j a_ij k_j,  k_i = f(t + c_i dt, y_i),  u(t + dt) = u + dt sum_i b_i k_i
(Hairer, Nørsett & Wanner, "Solving Ordinary Differential Equations I", 2nd ed. (1993), sect. II.1, eq. (1.8)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True)
class Tableau:
    """Coefficients of an explicit method: ``a`` strictly lower triangular, ``b`` weights, ``c`` nodes."""

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    order: int

    @property
    def stages(self) -> int:
        return len(self.b)


INTEGRATORS = {
    # Euler (1768)
    "euler": Tableau(((),), (1.0,), (0.0,), order=1),
    # Shu & Osher, J. Comput. Phys. 77 (1988) 439-471, eq. (2.18), in Butcher form
    "ssprk3": Tableau(((), (1.0,), (0.25, 0.25)), (1 / 6, 1 / 6, 2 / 3), (0.0, 1.0, 0.5), order=3),
    # Kutta (1901)
    "rk4": Tableau(
        ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6), (0.0, 0.5, 0.5, 1.0), order=4
    ),
}


def stability_polynomial(tableau: Tableau) -> np.ndarray:
    """Coefficients p_0, p_1, ... of R(z) = 1 + z bᵀ (I - z A)⁻¹ 1, by which one step multiplies a mode of rate z / dt."""
    s = tableau.stages
    a = np.array([row + (0.0,) * (s - len(row)) for row in tableau.a])
    vector, coefficients = np.ones(s), [1.0]
    for _ in range(s):
        coefficients.append(float(np.dot(tableau.b, vector)))
        vector = a @ vector
    return np.array(coefficients)


def _reach(tableau: Tableau, direction: Callable[[float], complex]) -> float:
    """Largest r such that |R| <= 1 all along direction(0 .. r)."""
    polynomial = stability_polynomial(tableau)[::-1]
    steps = np.arange(1, 20001) * 1e-3
    stable = np.abs(np.polyval(polynomial, np.array([direction(r) for r in steps]))) <= 1 + 1e-9
    return float(steps[-1] if stable.all() else steps[np.argmin(stable)] - 1e-3)


@cache
def stability_limits(tableau: Tableau) -> tuple[float, float]:
    """Extent of the stability region along the negative real and along the imaginary axis (dimensionless dt * rate)."""
    return _reach(tableau, lambda r: complex(-r, 0.0)), _reach(tableau, lambda r: complex(0.0, r))
