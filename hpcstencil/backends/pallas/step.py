"""One time step by GPU kernels, written with Pallas and compiled by Triton.

Each stage is one kernel, which evaluates the right-hand sides and forms the stage values together, so that each array is
read and written once. If a derivative has an operand that is not a field, an earlier kernel computes that operand into an
array.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hpcstencil.backends.pallas.cells import Cells
from hpcstencil.backends.pallas.launch import Launch, See, Windows
from hpcstencil.backends.pallas.passes import Passes, passes
from hpcstencil.backends.xla.evaluate import Rules
from hpcstencil.backends.xla.stage_walk import combined, moving, take, uniform
from hpcstencil.backends.xla.time_step import Step
from hpcstencil.distributed.windows import Frame, Value
from hpcstencil.numerics.integrators import MEMORY, Method, Stage
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Field, Node, Time, walk

Values = Mapping[str, Value]


@dataclass
class Slopes:
    """Time derivatives (``trees``) of the fields ``y`` at a ``time``, evaluated on demand.

    The first stage that uses them computes them. It stores them in ``kept`` if later stages use them too.
    """

    trees: Mapping[str, Node]
    y: Values
    time: ArrayLike
    kept: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Fused:
    """The body of a stage's kernel.

    In each cell it computes slopes according to ``plans``, keeps those that ``later`` stages use, and forms the values of
    the fields ``names`` after the stage. ``stage`` builds the `Stage` from the kernel's arguments, which may hold its
    weights.
    """

    names: Sequence[str]
    plans: Mapping[int, Passes]
    later: Collection[int]
    stage: Callable[[Any], Stage]

    def __call__(self, given: Any, see: See) -> Any:
        """Return the new values of the fields ("moved") and the slopes to keep ("kept"), in the cells of a tile."""

        def loaded(values: Values) -> Values:
            return evaluated(see(values, {}, None, None), {name: Field(name) for name in values})

        stage, fields = self.stage(given), {name: Field(name) for name in self.names}
        dt = given["dt"][0]
        cells = {j: see(given["arrays"][j], plan.operands, given["times"][j][0], dt) for j, plan in self.plans.items()}
        slopes = {j: evaluated(cells[j], plan.trees) for j, plan in self.plans.items()}
        slopes |= {j: loaded(kept) for j, kept in given["kept"].items()}
        values = {j: evaluated(cells[j], fields) if j in cells else loaded(given["arrays"][j]) for j, _ in stage.values}
        before, moved = loaded(given["before"]), {}
        for name in self.names:
            at, rates = ({j: part[name] for j, part in parts.items()} for parts in (values, slopes))
            moved[name] = combined(stage, dt, at, rates, before.get(name)).array
            if stage.remembered:
                moved[name + MEMORY] = slopes[0][name].array
        kept = {j: {name: value.array for name, value in slopes[j].items()} for j in self.plans if j in self.later}
        return {"moved": moved, "kept": kept}


def evaluated(cells: Cells, trees: Mapping[str, Node]) -> dict[str, Value]:
    """Return the values of ``trees`` in the cells of a tile, by name, as `Value` objects without windows."""
    return {name: Value(cells(tree), ()) for name, tree in trees.items()}


@dataclass(frozen=True)
class Kernels:
    """The step of a problem as GPU kernels.

    Attributes
    ----------
    rules, trees
        The right-hand sides by field, and the rules for evaluating them.
    apart
        The right-hand sides after the first stage, if the method treats parts of the equation separately; else empty.
    method, groups
        The integration method, and the group of each field if the method is partitioned.
    timed
        Whether a right-hand side or a boundary value depends on time.
    interpret
        Whether to interpret the kernels on a CPU, which is slow.
    """

    rules: Rules
    trees: Mapping[str, Node]
    apart: Mapping[str, Node]
    method: Method
    groups: Mapping[str, int]
    timed: bool
    interpret: bool

    def on(self, parameters: Mapping[str, ArrayLike], frame: Frame) -> Step:
        """Return the `Step` function for a device's block and the equation's ``parameters`` by name."""
        return partial(self.step, Launch.on(self.rules, frame, parameters, self.interpret))

    def step(self, launch: Launch, u: Values, t: jax.Array, dt: jax.Array, ends: Windows | None) -> dict[str, Value]:
        """Return the fields after one step from ``t`` to t + dt, on the windows of ``u``.

        Cells in the outer rim of these windows are invalid. If ``ends`` is given, the fields that the last stage changes
        cover those windows instead.
        """
        stages, nodes = self.method.stages, self.method.nodes

        def time_at(node: float) -> ArrayLike:
            """Return the time of a stage; 0 if nothing depends on it, because computing it launches a small kernel."""
            return t + node * dt if self.timed else 0.0

        def slope(j: int, y: Values) -> Slopes:
            return Slopes(self.apart if j and self.apart else self.trees, y, time_at(nodes[j]))

        def combine(i: int, stage: Stage, y: Mapping[int, Values], k: Mapping[int, Slopes]) -> Values:
            later = {j for other in stages[i:] for j, _ in other.slopes}
            moved = self.stage(launch, stage, y, k, dt, later, ends if i == len(stages) else None)
            return {**y[i - 1], **moved}

        def loop(u: Values, before: Values, last: Values, k0: Slopes) -> Values:
            """Take the uniform stages with one compiled kernel, whose arguments are their weights."""

            @jax.jit
            def next_stage(before: Values, last: Values, kept: Values, weights: jax.Array, time: ArrayLike) -> Values:
                y, k = {0: u, -1: last, -2: before}, {0: Slopes({}, u, t, kept), -1: Slopes(self.trees, last, time)}
                return self.stage(launch, uniform(self.method, weights), y, k, dt, (), None, weights)

            for weights, node in zip(self.method.uniform_weights, self.method.uniform_nodes, strict=True):
                before, last = last, next_stage(before, last, k0.kept, weights, time_at(node))
            return last

        return dict(take(self.method, u, slope, combine, loop)[0])

    def stage(
        self,
        launch: Launch,
        stage: Stage,
        y: Mapping[int, Values],
        k: Mapping[int, Slopes],
        dt: jax.Array,
        later: Collection[int],
        ends: Windows | None,
        weights: jax.Array | None = None,
    ) -> dict[str, Value]:
        """Run one stage and return the fields that it changes.

        ``y`` and ``k`` are the values and slopes of earlier stages, by number. Slopes that ``later`` stages use are stored
        in ``k``. ``ends`` is as in `step`; ``weights`` are those of a uniform stage.
        """
        used = [j for j, _ in stage.slopes]
        names = moving(stage, y[0], {j: k[j].trees or k[j].kept for j in used}, self.groups)
        fresh = {j: k[j] for j in used if not k[j].kept}
        plans = {
            j: passes(slopes.trees if j in later else {name: slopes.trees[name] for name in names})
            for j, slopes in fresh.items()
        }
        at_hand = {j: {name: y[j][name] for name in names} for j, _ in stage.values if j not in fresh}
        given: dict[str, Any] = {
            "dt": one(dt),
            "times": {j: one(slopes.time) for j, slopes in fresh.items()},
            "arrays": at_hand | {j: self.with_inner(launch, plans[j], slopes) for j, slopes in fresh.items()},
            "kept": {j: k[j].kept for j in used if j not in fresh},
            "before": {name: y[0][name + MEMORY] for name in names} if stage.remembered else {},
            "weights": weights,
        }
        windows, memory = windows_of(y[0]), [name + MEMORY for name in given["before"]]
        made = {
            "moved": dict.fromkeys((*names, *memory), launch.blank(ends or windows)),
            "kept": {j: dict.fromkeys(plan.trees, launch.blank(windows)) for j, plan in plans.items() if j in later},
        }
        trees = [tree for plan in plans.values() for tree in plan.trees.values()]
        own = (lambda given: stage) if weights is None else (lambda given: uniform(self.method, given["weights"]))
        body = Fused(names, plans, later, own)
        results = launch(body, given, made, trees, ends or launch.inside(windows, trees))
        for j, kept in results["kept"].items():
            k[j].kept = kept
        return dict(results["moved"])

    def with_inner(self, launch: Launch, plan: Passes, slopes: Slopes) -> dict[str, Value]:
        """Return the fields and the inner results that the slopes need, by name.

        Inner results are computed level by level of nesting. At each level, one kernel computes all those that cover the
        same cells. The cells can differ within a level: an operand that takes derivatives itself covers fewer ghost cells
        than one that does not.
        """
        arrays, windows = dict(slopes.y), windows_of(slopes.y)
        for level in plan.inner:
            together: dict[Windows, dict[str, Node]] = {}
            for name, tree in level.items():
                together.setdefault(launch.inside(windows, [tree]), {})[name] = tree
            given = {"arrays": dict(arrays), "time": one(slopes.time)}
            for region, trees in together.items():

                def body(given: Any, see: See, trees: Mapping[str, Node] = trees) -> Any:
                    cells = see(given["arrays"], plan.operands, given["time"][0], None)
                    return {name: cells(tree) for name, tree in trees.items()}

                made = dict.fromkeys(trees, launch.blank(windows))
                arrays |= launch(body, given, made, list(trees.values()), region)
        return arrays


def kernels(problem: Problem, rules: Rules, interpret: bool) -> Kernels:
    """Return the GPU kernels for the steps of a problem. ``interpret`` runs them on a CPU, slowly, for tests."""
    given = [value for face in problem.faces.values() for value in face.values]
    trees = [*problem.rates(), *given]
    timed = any(isinstance(part, Time) for tree in trees for part in walk(tree))
    return Kernels(rules, problem.slopes, problem.apart, problem.method, problem.groups, timed, interpret)


def windows_of(values: Values) -> Windows:
    """Return the windows, one per axis, that the fields of a step share."""
    return tuple(window for window in next(iter(values.values())).windows if window is not None)


def one(number: ArrayLike) -> jax.Array:
    """Return a number as a kernel argument: a float64 array of shape (1,)."""
    return jnp.asarray(number, jnp.float64).reshape(1)
