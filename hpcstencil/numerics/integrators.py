"""Explicit time integrators as tables of coefficients, and their stability limits.

A method for ∂u/∂t = f(t, u) is a list of stages. With y_0 = u(t), stage i computes
  y_i = Σ_j a_ij y_j + dt Σ_j b_ij f(t + c_j dt, y_j),   Σ_j a_ij = 1,  c_i = Σ_j (a_ij c_j + b_ij),
and the last y is u(t + dt). This is the Shu-Osher form (S. Gottlieb, D. Ketcheson & C.-W. Shu, "Strong Stability Preserving
Runge-Kutta and Multistep Time Discretizations" (2011), eq. (2.10)). It covers Butcher tables, low-storage methods and
super time stepping. A multistep method also uses the slopes f from the beginning of the previous step. To add a method, add an
entry to INTEGRATORS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

Terms = tuple[tuple[int, float], ...]  # (index j of a stage, its weight)
LOOPED = 3  # least number of uniform stages that are run in a loop, which compiles one stage instead of all


class LaterNode(float):
    """The node c of a step that begins ``steps`` steps after the first one of a method that takes several.

    Its value is steps + c. The two parts are kept because a time is rounded otherwise if it is computed from their sum.
    """

    steps: int
    within: float

    @classmethod
    def of(cls, steps: int, within: float) -> float:
        """The node; a plain number in the first step."""
        if not steps:
            return within
        made = cls(steps + within)
        made.steps, made.within = steps, within
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaterNode) and (self.steps, self.within) == (other.steps, other.within)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.steps, self.within))


@dataclass(frozen=True)
class Stage:
    """One stage of a method: a weighted sum of earlier values y_j and of dt times their slopes f(y_j).

    ``values`` and ``slopes`` are pairs (j, weight), the a_ij and b_ij of the module docstring. In a partitioned method
    the stage changes only the fields of one ``group``: 0 or 1, or a later even or odd number for fields beside those of
    group 0 or 1 (`leapfrog`). ``remembered`` is the weight of dt times the slopes from the beginning of the previous step,
    for multistep methods. If the stage ``evaluates``, its only term is a slope, which is not multiplied by dt.
    """

    values: Terms
    slopes: Terms
    group: int | None = None
    remembered: float = 0.0
    evaluates: bool = False


@dataclass(frozen=True)
class Method:
    """An explicit time integrator.

    Attributes
    ----------
    stages, order
        The stages of a step, and the order of convergence.
    error, error_order
        Pairs (j, weight): dt times this weighted sum of the slopes f(y_j) estimates the local error, with an error of
        O(dt^(error_order + 1)). Empty if the method has no estimate.
    limits
        The stability limits of partitioned and multistep methods, which `stability_limits` cannot compute.
    damping
        For a method that treats linear damping - r u implicitly, the weight w of each of the two groups: the slope of a field
        is f / (1 + w dt r).
    times
        The nodes c_j, if the stages do not determine them.
    rounded
        The numbers j of the slopes that are rounded before a stage adds them, like slopes that several stages use
        (`adjoint.stages`).
    injected
        The numbers j of the values y_j in which native code adds something to the fields `Problem.injected`.
    """

    stages: tuple[Stage, ...]
    order: int
    error: Terms = ()
    error_order: int = 0
    limits: tuple[float, float] | None = None
    damping: tuple[float, ...] = ()
    times: tuple[float, ...] = ()
    rounded: frozenset[int] = frozenset()
    injected: tuple[int, ...] = ()

    @property
    def partitioned(self) -> bool:
        """Whether each stage changes only one group of the fields, as in "leapfrog"."""
        return any(stage.group is not None for stage in self.stages)

    @property
    def multistep(self) -> bool:
        """Whether the method uses the slopes of the previous step, which the state must then store (`memory_of`)."""
        return any(stage.remembered for stage in self.stages)

    @cached_property
    def evaluations(self) -> int:
        """The number of evaluations of the right-hand side per step, including those for the error estimate."""
        return len({j for stage in self.stages for j, _ in stage.slopes} | {j for j, _ in self.error})

    @cached_property
    def nodes(self) -> tuple[float, ...]:
        """The nodes c_0 .. c_s: the times of y_0 .. y_s as fractions of the step. The last one is exactly 1.

        In a partitioned method, each refers to the group of fields that the stage changes. The fields beside a group have its
        time only after all stages that move the group, so stages that change these keep the node.
        """
        if self.times:
            return self.times
        c, nodes = [(0.0, 0.0)], [0.0]
        for stage in self.stages:
            if stage.group is not None and stage.group > 1:
                c.append(c[-1])
                nodes.append(nodes[-1])
                continue
            moved = [
                c[-1][group]
                if stage.group not in (None, group)
                else sum(a * c[j][group] for j, a in stage.values) + sum(b for _, b in stage.slopes) + stage.remembered
                for group in (0, 1)
            ]
            c.append((moved[0], moved[1]))
            nodes.append(moved[stage.group or 0])
        return (*nodes[:-1], 1.0)  # the sum may miss 1 by a rounding

    @cached_property
    def uniform_from(self) -> int:
        """The number of stages before the uniform ones, which are run in a loop.

        The uniform stages are the last ones, and combine the same terms with different weights: u, the last two values,
        and the slopes at u and at the last value. If fewer than LOOPED stages are uniform, the result is the number of
        all stages, so there is no loop.
        """
        start = len(self.stages)
        while start > 1 and self.stages[start - 1].group is None:
            keys = self.relative(start - 1)
            if keys != self.relative(len(self.stages) - 1) or not (
                set(keys[0]) <= {0, -1, -2} and set(keys[1]) <= {0, -1}
            ):
                break
            start -= 1
        return start if len(self.stages) - start >= LOOPED else len(self.stages)

    def relative(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(indices of values, indices of slopes) that stage ``number``, counted from 0, combines.

        The indices are relative to the stage: 0 is u, -1 the result of the previous stage, -2 the one before, and so
        on. A slope has the index of the value at which it is evaluated.
        """
        stage = self.stages[number]
        values, slopes = ([j and j - number - 1 for j, _ in terms] for terms in (stage.values, stage.slopes))
        return tuple(values), tuple(slopes)

    @cached_property
    def uniform_weights(self) -> np.ndarray:
        """The weights of the uniform stages: float64 of shape (uniform stages, terms). In each row, the weights of the
        values precede those of the slopes."""
        return np.array([[w for _, w in (*s.values, *s.slopes)] for s in self.stages[self.uniform_from :]])

    @property
    def uniform_nodes(self) -> tuple[float, ...]:
        """The times at which the uniform stages evaluate the right-hand side, as fractions of the step."""
        return self.nodes[self.uniform_from : -1]


# ---- constructors ----------------------------------------------------------------------------------------------------


def _terms(weights: Sequence[float]) -> Terms:
    """The non-zero entries of a list of weights, as pairs (index, weight)."""
    return tuple((j, w) for j, w in enumerate(weights) if w)


def tableau(
    a: Sequence[Sequence[float]], b: Sequence[float], order: int, error: Sequence[float] = (), error_order: int = 0
) -> Method:
    """The method of an explicit Butcher table.

    ``a`` has the rows of the table without the first, which is empty; ``b`` has the weights. ``error`` has the weights
    of the error estimate, with one more entry than ``b`` if it uses the slope at the end of the step. ``order`` and
    ``error_order`` are as in `Method`.
    """
    stages = tuple(Stage(((0, 1.0),), _terms(row)) for row in (*a, b))
    return Method(stages, order, _terms(error), error_order)


def low_storage(a: Sequence[float], b: Sequence[float], order: int) -> Method:
    """A low-storage method in 2N form: d_i = a_i d_(i-1) + dt f(y_(i-1)), y_i = y_(i-1) + b_i d_i.

    d_(i-1) is computed from the last two values, so three arrays suffice (J. Williamson, J. Comput. Phys. 35 (1980)
    48-56, eq. (6)).
    """
    stages = [Stage(((0, 1.0),), ((0, b[0]),))]
    for i in range(1, len(b)):
        q = b[i] * a[i] / b[i - 1]
        stages.append(Stage(((i, 1.0 + q), (i - 1, -q)), ((i, b[i]),)))
    return Method(tuple(stages), order)


@cache
def rkl2(stages: int) -> Method:
    """Second-order Runge-Kutta-Legendre super time stepping, for diffusion.

    A step with s stages may be as long as (s² + s - 2) / 4 stable steps of forward Euler. C. Meyer, D. Balsara & T.
    Aslam, J. Comput. Phys. 257 (2014) 594-626, eq. (15)-(18).
    """
    s = stages
    w = 4.0 / (s * s + s - 2)
    b = [1 / 3] * 3 + [(j * j + j - 2) / (2 * j * (j + 1)) for j in range(3, s + 1)]
    lines = [Stage(((0, 1.0),), ((0, b[1] * w),))]
    for j in range(2, s + 1):
        mu = (2 * j - 1) / j * b[j] / b[j - 1]
        nu = -(j - 1) / j * b[j] / b[j - 2]
        own = mu * w
        values = ((j - 1, mu), (0, 1.0 - mu)) if j == 2 else ((j - 1, mu), (j - 2, nu), (0, 1.0 - mu - nu))
        lines.append(Stage(values, ((j - 1, own), (0, -(1.0 - b[j - 1]) * own))))
    return Method(tuple(lines), order=2)


@cache
def ab2(epsilon: float, split: bool = False) -> Method:
    """Two-step Adams-Bashforth: u(t + dt) = u(t) + dt ((3/2 + ε) f(u(t)) - (1/2 + ε) f(u(t - dt))).

    With ε = 0 it is second-order, but unstable for undamped waves. A small ε damps them (J. Marshall et al., J.
    Geophys. Res. 102 (1997) 5753-5766, eq. (33), ε = 0.1), and reduces the order to 1. If the equation is ``split``, a
    forward Euler step with its damping part follows. The first step of a run is forward Euler. The weights assume equal
    steps, so a shortened step adds the error of one Euler step.
    """
    stages = [Stage(((0, 1.0),), ((0, 1.5 + epsilon),), remembered=-(0.5 + epsilon))]
    if split:
        stages.append(Stage(((1, 1.0),), ((1, 1.0),)))

    def stable(z: np.ndarray) -> np.ndarray:
        """Whether both roots ζ of ζ² - (1 + (3/2 + ε) z) ζ + (1/2 + ε) z lie in the unit circle: bool, in the shape of
        the complex array ``z``."""
        b, c = 1 + (1.5 + epsilon) * z, (0.5 + epsilon) * z
        root = np.sqrt(b * b - 4 * c)
        return np.maximum(np.abs(b + root), np.abs(b - root)) <= 2 * (1 + 1e-9)

    r = np.arange(1, 201) * 1e-2
    limits = [float(np.argmin(stable(direction * r)) * 1e-2) for direction in (-1 + 0j, 1j)]
    return Method(tuple(stages), order=1 if epsilon else 2, limits=(limits[0], limits[1]))


@cache
def leapfrog(beside: tuple[int, int] = (0, 0)) -> Method:
    """Störmer-Verlet, drift-kick-drift, with linear damping by the implicit midpoint rule.

    A step moves group 0 by dt/2, group 1 by dt, and group 0 by dt/2 again, while the other group is at rest (E. Hairer, C.
    Lubich & G. Wanner, "Geometric Numerical Integration", 2nd ed. (2006), eq. (I.1.17)). Each move of length h is an implicit
    midpoint step, y_mid = y + h/2 F(y_mid), y_new = 2 y_mid - y. It is explicit if each field of the group depends on itself
    only by linear damping, and the others can be put in an order in which each depends on earlier ones: those on which others
    depend come first, in ``beside`` levels for group 0 and 1, as the memory fields of a cpml do. Level l has the group number
    2 l + 2 or 2 l + 3. The method is symmetric, and so of order 2. It is stable for oscillations up to dt ω = 2, whatever the
    damping (docs/design/damped_leapfrog.md).
    """
    stages: list[Stage] = []
    for group, length in ((0, 0.5), (1, 1.0), (0, 0.5)):
        start, numbers = len(stages), [2 * level + 2 + group for level in range(beside[group])]
        for number in numbers:
            stages.append(Stage(((len(stages), 1.0),), ((len(stages), length / 2),), number))
        middle = len(stages)
        stages.append(Stage(((middle, 1.0),), ((middle, length),), group))
        stages += [Stage(((middle, 2.0), (start, -1.0)), (), number) for number in numbers]
    return Method(tuple(stages), order=2, limits=(math.inf, 2.0), damping=(0.25, 0.5))


INTEGRATORS: dict[str, Method] = {
    # Euler (1768)
    "euler": tableau((), (1.0,), order=1),
    # Shu & Osher, J. Comput. Phys. 77 (1988) 439-471, eq. (2.16) and (2.18), in Butcher form
    "ssprk2": tableau(((1.0,),), (0.5, 0.5), order=2),
    "ssprk3": tableau(((1.0,), (0.25, 0.25)), (1 / 6, 1 / 6, 2 / 3), order=3),
    # Kutta (1901)
    "rk4": tableau(((0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6), order=4),
    # Bogacki & Shampine, Appl. Math. Lett. 2 (1989) 321-325
    "bs3": tableau(
        ((1 / 2,), (0.0, 3 / 4)),
        (2 / 9, 1 / 3, 4 / 9),
        order=3,
        error=(2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8),
        error_order=2,
    ),
    # Dormand & Prince, J. Comput. Appl. Math. 6 (1980) 19-26, table 2
    "dopri5": tableau(
        (
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        ),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
        order=5,
        error=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
        error_order=4,
    ),
    # Carpenter & Kennedy, NASA TM 109112 (1994), solution 3
    "lsrk4": low_storage(
        (0.0, -567301805773 / 1357537059087, -2404267990393 / 2016746695238, -3550918686646 / 2091501179385,
         -1275806237668 / 842570457699),
        (1432997174477 / 9575080441755, 5161836677717 / 13612068292357, 1720146321549 / 2090206949498,
         3134564353537 / 4481467310338, 2277821191437 / 14882151754819),
        order=4,
    ),
    "leapfrog": leapfrog(),
    "rkl2": rkl2(9),
    "ab2": ab2(0.0),
}  # fmt: skip
SUPER_STEPPING = {"rkl2": rkl2}  # families of methods with an adjustable number of stages
FEWEST_STAGES, MOST_STAGES = 3, 99


MEMORY = ".before"  # suffix of the names of arrays that store slopes of the previous step
NEW, ERROR = "new ", "error "  # prefixes of the names of a field after a step and of its estimated error


def memory_of(method: Method, fields: Sequence[str]) -> tuple[str, ...]:
    """The names of the arrays that a multistep method stores besides the fields, one per field: the slopes at the
    beginning of the previous step. Empty for other methods."""
    return tuple(name + MEMORY for name in fields) if method.multistep else ()


def method(name: str, stages: int | None = None, epsilon: float | None = None, split: bool = False) -> Method:
    """The method called ``name`` in INTEGRATORS.

    ``stages`` is the number of stages of "rkl2", and ``epsilon`` the damping of "ab2". ``split`` says whether the
    equation has a damping part, which "ab2" handles in a separate stage. Raises KeyError for an unknown name.
    """
    if name == "ab2":
        return ab2(epsilon or 0.0, split)
    return SUPER_STEPPING[name](stages) if stages is not None else INTEGRATORS[name]


# ---- stability -------------------------------------------------------------------------------------------------------


def amplification(method: Method, z: np.ndarray) -> np.ndarray:
    """The amplification factor R(z) of one step for ∂u/∂t = λ u, with z = λ dt.

    ``z`` and the result are complex arrays of the same shape. The method must be neither partitioned nor multistep.
    """
    y = [np.ones_like(z)]
    for stage in method.stages:
        y.append(sum(a * y[j] for j, a in stage.values) + z * sum(b * y[j] for j, b in stage.slopes))
    return y[-1]


def _reach(method: Method, direction: Callable[[np.ndarray], np.ndarray]) -> float:
    """The largest r such that |R| <= 1 along direction(0 .. r). The search ends at 2 s² for s evaluations, beyond which
    no explicit method is stable."""
    step = max(1e-3, 1e-5 * method.evaluations**2)
    steps = np.arange(1, int((2 * method.evaluations**2 + 1) / step) + 1) * step
    stable = np.abs(amplification(method, direction(steps))) <= 1 + 1e-9
    return float(steps[-1] if stable.all() else steps[np.argmin(stable)] - step)


@cache
def stability_limits(method: Method) -> tuple[float, float]:
    """The extent of the stability region along (the negative real axis, the imaginary axis).

    Both are dimensionless bounds of dt times a rate, of decay and of oscillation respectively.
    """
    if method.limits is not None:
        return method.limits
    return _reach(method, lambda r: -r + 0j), _reach(method, lambda r: 1j * r)
