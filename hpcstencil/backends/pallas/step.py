"""One time step by GPU kernels, written with Pallas and compiled by Triton.

Each stage is one kernel, which evaluates the right-hand sides and forms the stage values together, so that each array is
read and written once. If a derivative has an operand that is not a field, an earlier kernel computes that operand into an
array.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hpcstencil.backends.pallas.cells import Cells
from hpcstencil.backends.pallas.launch import Launch, See
from hpcstencil.backends.pallas.neighbours import read_beyond, reads_corners
from hpcstencil.backends.pallas.passes import Passes, passes
from hpcstencil.backends.pallas.strips import (
    Beside,
    Exchanging,
    Outgoing,
    Sending,
    Values,
    covered,
    replaced,
    stored,
)
from hpcstencil.backends.pallas.tiles import Windows
from hpcstencil.backends.xla.evaluate import Rules
from hpcstencil.backends.xla.stage_walk import combined, moving, take, uniform
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Frame, Value
from hpcstencil.numerics.integrators import MEMORY, Method, Stage
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Field, Node, Time


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
    others
        The right-hand sides at those stage values, by number, where they are not ``trees``.
    method, groups
        The integration method, and the group of each field if the method is partitioned.
    timed
        Whether a right-hand side or a boundary value depends on time.
    radius
        The distance, in cells per axis, at which one evaluation of the right-hand side reads.
    interpret
        Whether to interpret the kernels on a CPU, which is slow.
    """

    rules: Rules
    trees: Mapping[str, Node]
    others: Mapping[int, Mapping[str, Node]]
    method: Method
    groups: Mapping[str, int]
    timed: bool
    radius: tuple[int, ...]
    interpret: bool

    def on(self, parameters: Mapping[str, ArrayLike], frame: Frame, exchanging: Exchanging) -> Stepping:
        """Return the steps on a device's block, for the equation's ``parameters`` by name."""
        return Stepping(self, Launch.on(self.rules, frame, parameters, self.interpret), exchanging)

    @cached_property
    def all_trees(self) -> list[Node]:
        """The right-hand sides of all stages."""
        return [*self.trees.values(), *(tree for trees in self.others.values() for tree in trees.values())]

    @cached_property
    def read_beyond(self) -> set[str]:
        """The names of the fields that right-hand sides read in other cells than their own."""
        return read_beyond(self.all_trees, self.rules)

    def corners(self, rounds: int) -> bool:
        """Return whether ``rounds`` evaluations after an exchange read corners of the halo."""
        return rounds > 1 or reads_corners(self.all_trees, self.rules)


@dataclass(frozen=True)
class Stepping:
    """The steps of a problem on a device's block, in compiled code.

    Strips are exchanged once for several evaluations of the right-hand side, which then compute cells beyond the block too,
    fewer from evaluation to evaluation; or before each evaluation.
    """

    kernels: Kernels
    launch: Launch
    exchanging: Exchanging

    def after_exchange(self, u: Fields, times: Sequence[jax.Array], dt: jax.Array) -> Fields:
        """Exchange strips, and return the fields after one step from each of the ``times``."""
        rounds = len(times) * self.kernels.method.evaluations
        return self.steps(self.exchanging(u, rounds, self.kernels.corners(rounds)), times, dt)

    def steps(self, values: Values, times: Sequence[jax.Array], dt: jax.Array) -> Fields:
        """Return the fields after one step from each of the ``times``, whose strips are wide enough for all of them."""
        evaluations = self.kernels.method.evaluations
        for n, t in enumerate(times):
            values = self.step(values, t, dt, (len(times) - n) * evaluations)
        return self.exchanging.device_grid.cropped(values)

    def begun(self, u: Fields) -> Values:
        """Return the fields with the strips to be sent, in the form that `exchanging_in_stages` takes and returns."""
        grid, zero = self.exchanging.device_grid, jnp.zeros(())
        values: dict[str, Value] = {name: Value(array, grid.interior) for name, array in u.items()}
        if self.sending(list(u)) is None:
            return values
        for name, after in jax.eval_shape(self.exchanging_in_stages, values, zero, zero).items():
            if isinstance(after, Outgoing):
                strips = self.exchanging.strips_of([u[other] for other in after.names])
                values[name] = Outgoing(u[name], grid.interior, strips, after.names)
        return values

    def exchanging_in_stages(self, u: Values, t: jax.Array, dt: jax.Array) -> dict[str, Value]:
        """Return the fields after one step, with an exchange before each evaluation of the right-hand side."""
        return self.step(u, t, dt, 0)

    def step(self, u: Values, t: jax.Array, dt: jax.Array, rounds: int) -> dict[str, Value]:
        """Return the fields after one step from ``t`` to t + dt.

        ``rounds`` is the number of evaluations for which the strips of ``u`` suffice; 0 if each has its own exchange.
        """
        method, timed = self.kernels.method, self.kernels.timed
        stages, nodes = method.stages, method.nodes

        def time_at(node: float) -> ArrayLike:
            """Return the time of a stage; 0 if nothing depends on it, because computing it launches a small kernel."""
            return t + node * dt if timed else 0.0

        def slope(j: int, y: Values) -> Slopes:
            return Slopes(self.kernels.others.get(j, self.kernels.trees), y, time_at(nodes[j]))

        done: set[int] = set()

        def combine(i: int, stage: Stage, y: Mapping[int, Values], k: Mapping[int, Slopes]) -> Values:
            later = {j for other in stages[i:] for j, _ in other.slopes}
            done.update(j for j, _ in stage.slopes)
            moved = self.stage(stage, y, k, dt, later, max(0, rounds - len(done)), sends=not rounds)
            return replaced(y[i - 1], moved)

        def loop(u: Values, before: Values, last: Values, k0: Slopes) -> Values:
            """Take the uniform stages, whose kernels receive their weights, so that stages on equal windows share one."""

            @partial(jax.jit, static_argnums=0)
            def next_stage(
                left: int, before: Values, last: Values, kept: Values, weights: jax.Array, time: ArrayLike
            ) -> Values:
                y, k = (
                    {0: u, -1: last, -2: before},
                    {0: Slopes({}, u, t, kept), -1: Slopes(self.kernels.trees, last, time)},
                )
                return self.stage(uniform(method, weights), y, k, dt, (), left, weights, sends=not rounds)

            rows = zip(method.uniform_weights, method.uniform_nodes, strict=True)
            for n, (weights, node) in enumerate(rows, start=len(done) + 1):
                before, last = last, next_stage(max(0, rounds - n), before, last, k0.kept, weights, time_at(node))
            return last

        return dict(take(method, u, slope, combine, loop)[0])

    def stage(
        self,
        stage: Stage,
        y: Mapping[int, Values],
        k: Mapping[int, Slopes],
        dt: jax.Array,
        later: Collection[int],
        left: int,
        weights: jax.Array | None = None,
        sends: bool = False,
    ) -> dict[str, Value]:
        """Run one stage and return the fields that it changes, with strips to be sent if it ``sends`` and can store them.

        ``y`` and ``k`` are the values and slopes of earlier stages, by number. Slopes that ``later`` stages use are stored
        in ``k``. ``left`` is the number of evaluations that follow it before the next exchange; ``weights`` are those of a
        uniform stage.
        """
        used = [j for j, _ in stage.slopes]
        names = moving(stage, y[0], {j: k[j].trees or k[j].kept for j in used}, self.kernels.groups)
        fresh = {j: k[j] for j in used if not k[j].kept}
        trees = {
            j: slopes.trees if j in later else {name: slopes.trees[name] for name in names}
            for j, slopes in fresh.items()
        }
        plans = {j: passes(each) for j, each in trees.items()}
        read = {j: self.with_strips(slopes.y, list(trees[j].values())) for j, slopes in fresh.items()}
        at_hand = {j: {name: y[j][name] for name in names} for j, _ in stage.values if j not in fresh}
        before = {name: y[0][name + MEMORY] for name in names} if stage.remembered else {}
        kept = {j: k[j].kept for j in used if j not in fresh}
        beside = [value for values in (*at_hand.values(), *kept.values(), before) for value in values.values()]
        evaluable = [w for j, values in read.items() for w in self.evaluable(list(trees[j].values()), values)]
        region = shared([self.needed(left), *evaluable, *(covered(value) for value in beside)])
        given: dict[str, Any] = {
            "dt": one(dt),
            "times": {j: one(slopes.time) for j, slopes in fresh.items()},
            "arrays": at_hand | {j: self.with_inner(plans[j], read[j], slopes.time, dt) for j, slopes in fresh.items()},
            "kept": kept,
            "before": before,
            "weights": weights,
        }
        made = {
            "moved": dict.fromkeys((*names, *(name + MEMORY for name in before)), self.launch.blank(region)),
            "kept": {
                j: dict.fromkeys(plan.trees, self.launch.blank(region)) for j, plan in plans.items() if j in later
            },
        }
        evaluated_trees = [tree for plan in plans.values() for tree in plan.trees.values()]
        own = (
            (lambda given: stage) if weights is None else (lambda given: uniform(self.kernels.method, given["weights"]))
        )
        sending = self.sending(names) if sends else None
        results, strips = self.launch(Fused(names, plans, later, own), given, made, evaluated_trees, region, sending)
        for j, values in results["kept"].items():
            k[j].kept = values
        moved = dict(results["moved"])
        if sending is not None and strips:
            first = sending.names[0]
            moved[first] = Outgoing(moved[first].array, moved[first].windows, strips, sending.names)
        return moved

    def sending(self, moved: Sequence[str]) -> Sending | None:
        """Return the strips that a stage which changes the fields ``moved`` stores for the next exchange; None if none."""
        widths, beyond = self.exchanging.device_grid.widths(1), self.kernels.read_beyond
        names = tuple(name for name in moved if name in beyond)
        if not names or not any(widths) or self.kernels.corners(1):
            return None
        return Sending(names, widths, self.launch.least)

    def with_strips(self, y: Values, trees: Sequence[Node]) -> Values:
        """Return the fields with the strips that ``trees`` read, exchanged if the fields have none yet."""
        if any(
            isinstance(value, Beside) or covered(value) != self.exchanging.device_grid.interior for value in y.values()
        ):
            return y
        rules = self.launch.rules
        beyond = read_beyond(trees, rules)
        names = [name for name in y if name in beyond]
        if not names:
            return y
        fields, corners = {name: y[name].array for name in names}, reads_corners(trees, rules)
        return {**y, **self.exchanging(fields, 1, corners, stored(y, names))}

    def evaluable(self, trees: Sequence[Node], y: Values) -> list[Windows]:
        """Return the windows in which ``trees`` can be evaluated as far as each field in ``y`` and its strips reach."""
        fields = {name for tree in trees for name in tree.field_names}
        beyond = read_beyond(trees, self.launch.rules)
        inside = [self.launch.inside(covered(y[name]), trees) for name in y if name in beyond]
        return inside + [covered(y[name]) for name in fields - beyond]

    def needed(self, left: int) -> Windows:
        """Return the windows in which fields are needed if ``left`` evaluations follow before the next exchange."""
        grid = self.exchanging.device_grid
        return tuple(
            (start - w * (low.kind == "halo"), stop + w * (high.kind == "halo"))
            for (start, stop), w, (low, high) in zip(grid.interior, grid.widths(left), grid.sides, strict=True)
        )

    def with_inner(self, plan: Passes, y: Values, time: ArrayLike, dt: ArrayLike) -> dict[str, Value]:
        """Return the fields ``y`` and the inner results that a plan needs, by name.

        Inner results are computed level by level of nesting. At each level, one kernel computes all those that cover the
        same cells. The cells can differ within a level: an operand that takes derivatives itself covers fewer ghost cells
        than one that does not.
        """
        arrays = dict(y)
        for level in plan.inner:
            together: dict[Windows, dict[str, Node]] = {}
            for name, tree in level.items():
                together.setdefault(shared(self.evaluable([plan.operands[name]], y)), {})[name] = tree
            given = {"arrays": dict(arrays), "time": one(time), "dt": one(dt)}
            for region, trees in together.items():

                def body(given: Any, see: See, trees: Mapping[str, Node] = trees) -> Any:
                    cells = see(given["arrays"], plan.operands, given["time"][0], given["dt"][0])
                    return {name: cells(tree) for name, tree in trees.items()}

                made = dict.fromkeys(trees, self.launch.blank(region))
                arrays |= self.launch(body, given, made, list(trees.values()), region)[0]
        return arrays


def kernels(problem: Problem, rules: Rules, interpret: bool) -> Kernels:
    """Return the GPU kernels for the steps of a problem. ``interpret`` runs them on a CPU, slowly, for tests."""
    given = [value for face in problem.faces.values() for value in face.values]
    trees = [*problem.right_hand_sides(), *given]
    timed = any(Time in tree.kinds for tree in trees)
    others = problem.slopes_elsewhere
    return Kernels(rules, problem.slopes, others, problem.method, problem.groups, timed, problem.radius, interpret)


def shared(windows: Sequence[Windows]) -> Windows:
    """Return the largest windows inside all of ``windows``."""
    return tuple((max(w[0] for w in each), min(w[1] for w in each)) for each in zip(*windows, strict=True))


def one(number: ArrayLike) -> jax.Array:
    """Return a number as a kernel argument: a float64 array of shape (1,)."""
    return jnp.asarray(number, jnp.float64).reshape(1)
