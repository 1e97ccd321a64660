"""A step of a method as passes over the grid, made in this order by functions of these names (`step_of`):

    planned       stages and their inner results as parts, each of which computes some arrays in all cells
    joined        parts that share a pass
    check_...     what native code cannot do
    joined_ends   the last pass joined to the first one of the next step
    written       the C++ text of all passes

An operand of a derivative that is not a field is an array, which an earlier part computes. The last part of a stage
evaluates the right-hand sides and forms the stage's values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcstencil.backends.backend import Unsupported
from hpcstencil.backends.native.expression_writer import changes
from hpcstencil.backends.native.pass_statements import Cells, Scope
from hpcstencil.backends.native.passes import (
    Array,
    Part,
    Parts,
    Pass,
    Plan,
    Text,
    Trials,
    Write,
    fields_of,
    joined,
    joined_ends,
    written,
)
from hpcstencil.numerics.integrators import ERROR, MEMORY, NEW, Stage
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import OPERATORS, Field, Node, bottom_up, has_own_ghosts, varies, walk

SHORT = 400  # up to this many statements per cell, inner results are not stored


def levels(trees: Mapping[str, Node], held: Collection[Node], chosen: Callable[[Node], bool]) -> dict[Node, int]:
    """The operands of operators in the ``trees`` that are ``chosen`` and not ``held``, each with the number (from 1) of
    the first pass that can compute it."""
    level: dict[Node, int] = dict.fromkeys(held, 0)
    wanted: dict[Node, int] = {}
    depth: dict[Node, int] = {}
    for part in (part for tree in trees.values() for part in bottom_up(tree)):
        if part in depth:
            continue
        depth[part] = max((depth[child] for child in part.children), default=0)
        if isinstance(part, OPERATORS):
            for operand in part.children:
                if chosen(operand) and operand not in level:
                    level[operand] = wanted[operand] = depth[operand] + 1
            depth[part] = max([depth[part], *(level.get(operand, 0) for operand in part.children)])
    return wanted


def value_of(tree: Node) -> Write:
    """The function that writes the statements for the value of a tree."""
    return lambda code, at: code.value(tree, at)


@dataclass(frozen=True)
class Step:
    """One step of a problem: its ``plan``, the ``parts`` of each pass, and the ``passes`` with their ``text``. If it
    ``joins_steps``, the last entry of ``passes`` joins the last pass of a step to the first one of the next.
    ``statements`` is the average number of statements per cell in a pass."""

    plan: Plan
    parts: tuple[Parts, ...]
    passes: tuple[Pass, ...]
    joins_steps: bool
    statements: float
    text: Text


def step_of(problem: Problem) -> Step:
    """The step of a problem. Raises Unsupported, with the reason, if native code cannot take it."""
    trials = Trials(problem)
    plan = planned(problem, trials)
    parts = joined(plan, trials)
    check_times(plan, trials)
    check_corners(plan, parts, trials)
    ends = joined_ends(plan, trials, parts)
    text = Text(problem)
    passes = written(plan, trials, parts, ends, text)
    statements = sum(len(trials.of(p).lines) for p in parts) / len(parts)
    return Step(plan, tuple(parts), tuple(passes), bool(ends), statements, text)


def planned(problem: Problem, trials: Trials) -> Plan:
    """The plan of a step: its parts over arrays, stage by stage."""
    planner = Planner(problem, trials)
    ends = planner.take()
    return Plan(problem, tuple(planner.arrays), tuple(planner.parts), tuple(ends))


class Planner:
    """The plan of a step in the making: its arrays and parts so far."""

    def __init__(self, problem: Problem, trials: Trials) -> None:
        self.problem, self.trials = problem, trials
        self.fields, self.errors = fields_of(problem), tuple(problem.errors())
        self.arrays = [*(Array(Field(name)) for name in self.fields), *(Array(None) for _ in self.errors)]
        self.parts: list[Part] = []

    def take(self) -> list[int]:
        """Plan all stages and the error estimate. Returns the numbers of the arrays that hold the fields and the errors
        at the end."""
        method = self.problem.method
        start = {name: n for n, name in enumerate(self.fields)}
        values: dict[int, dict[str, int]] = {0: start}  # of each stage: field -> array
        slopes: dict[int, dict[str, int]] = {}
        last_use = {j: i for i, stage in enumerate(method.stages) for j, _ in stage.slopes}
        if self.errors:
            last_use |= {j: len(method.stages) for j, _ in method.error}
        end = dict(start)
        for i, stage in enumerate(method.stages):
            fresh = [j for j, _ in stage.slopes if j not in slopes]
            for j in fresh[:-1]:
                slopes[j] = self.slopes(j, values[j], self.trees(j))
            moved = dict(values[i])
            new = fresh[-1] if fresh else None
            self.stage(stage, values, slopes, moved, new, keep=new is not None and last_use[new] > i)
            values[i + 1] = end = moved
        return [*(end[name] for name in self.fields), *self.error(values, slopes, end)]

    def error(
        self, values: Mapping[int, Mapping[str, int]], slopes: dict[int, dict[str, int]], end: Mapping[str, int]
    ) -> list[int]:
        """Plan the passes that compute the estimated errors of the step. Returns the numbers of the arrays that hold
        them; empty if the problem asks for no estimate."""
        method, names = self.problem.method, self.errors
        if not names:
            return []
        for j, _ in method.error:
            if j not in slopes:
                slopes[j] = self.slopes(j, values[j], self.trees(j))
        stage, last = Stage((), method.error), method.nodes[-1]
        estimates = {name: self.array(None, last) for name in names}
        self.add(
            {n: self.combination(stage, name, values, slopes, None, {}) for name, n in estimates.items()}, {}, last
        )
        held: dict[Node, int] = {}
        for name in names:
            held |= {Field(name): values[0][name], Field(NEW + name): end[name], Field(ERROR + name): estimates[name]}
        told = range(len(self.fields), len(self.fields) + len(names))
        self.add({n: value_of(tree) for n, tree in zip(told, self.problem.errors().values(), strict=True)}, held, last)
        return list(told)

    def trees(self, j: int) -> Mapping[str, Node]:
        """The right-hand sides, by field, whose slopes at the j-th value the method uses."""
        return self.problem.apart if j and self.problem.apart else self.problem.trees

    def slopes(self, j: int, values: Mapping[str, int], trees: Mapping[str, Node]) -> dict[str, int]:
        """Plan a pass that computes only the slopes at the j-th value, with the right-hand sides ``trees``. Returns the
        numbers of their arrays by field. ``values`` are the arrays of the j-th value by field."""
        node = self.problem.method.nodes[j]
        held = self.inner(values, trees, node)
        made = {name: self.array(None, node) for name in trees}
        self.add({made[name]: value_of(tree) for name, tree in trees.items()}, held, node)
        return made

    def stage(
        self,
        stage: Stage,
        values: Mapping[int, Mapping[str, int]],
        slopes: dict[int, dict[str, int]],
        moved: dict[str, int],
        new: int | None,
        keep: bool,
    ) -> None:
        """Plan the passes of one stage. ``values`` and ``slopes`` hold the arrays of earlier stages by field; the
        results go into ``moved``, and into ``slopes`` if ``keep`` says that later stages use them. ``new`` is the
        number of the value whose slopes are computed here; None if there is none."""
        problem, groups = self.problem, self.problem.groups
        trees = {} if new is None else self.trees(new)
        moving = [
            name
            for name in values[0]
            if all(name in (trees if j == new else slopes[j]) for j, _ in stage.slopes)
            and (stage.group is None or groups[name] == stage.group)
        ]
        # the same order in all stages, so that their inner passes are the same functions
        wanted = {name: tree for name, tree in trees.items() if keep or name in moving}
        node = 0.0 if new is None else problem.method.nodes[new]
        held = self.inner(values[new or 0], wanted, node)
        at_node = problem.method.nodes[len(values)]
        outputs: dict[int, Write] = {}
        kept: dict[str, int] = {}
        for name in moving:
            target = self.array(Field(name), at_node)
            outputs[target] = self.combination(stage, name, values, slopes, new, trees)
            moved[name] = target
            if stage.remembered:
                kept[name] = self.array(None, node)
                moved[name + MEMORY] = kept[name]
        for name in moving:
            beside = {field: moved[field] for field in self.fields}
            self.arrays[moved[name]] = replace(self.arrays[moved[name]], beside=beside)
        if keep:
            for name in wanted:
                kept.setdefault(name, self.array(None, node))
            assert new is not None
            slopes[new] = kept
        for name, array in kept.items():
            outputs[array] = value_of(trees[name])
        self.add(outputs, held, node, {trees[name] for name in kept})

    def combination(
        self,
        stage: Stage,
        name: str,
        values: Mapping[int, Mapping[str, int]],
        slopes: Mapping[int, Mapping[str, int]],
        new: int | None,
        trees: Mapping[str, Node],
    ) -> Write:
        """The function that writes Σ_j a_j y_j + dt Σ_j b_j k_j of the field ``name``."""

        def write(code: Cells, at: tuple[int, int, int]) -> str:
            result = ""
            for j, a in stage.values:
                value = code.loaded(values[j][name], at)
                text = value if a == 1.0 else f"{code.scalar((), a)} * {value}"
                result = code.let(f"{result} + {text}" if result else text)
            for j, b in stage.slopes:
                scale = f"dt * {b!r}"
                if j == new:
                    if trees[name] in code.scope.shared:
                        result = code.let(f"{result} + {code.scalar((), 1.0, scale)} * {code.value(trees[name], at)}")
                    else:
                        result = code.added(result, code.terms(trees[name], at), scale)
                else:
                    result = code.let(f"{result} + {code.scalar((), 1.0, scale)} * {code.loaded(slopes[j][name], at)}")
            if stage.remembered:
                before = code.loaded(values[0][name + MEMORY], at)
                result = code.let(f"{result} + {code.scalar((), 1.0, f'dt * {stage.remembered!r}')} * {before}")
            return result

        return write

    # ---- arrays and parts ----

    def add(
        self, outputs: Mapping[int, Write], held: Mapping[Node, int], node: float, shared: Collection[Node] = ()
    ) -> None:
        """Add a part to the step, unless it has no outputs."""
        if outputs:
            self.parts.append(Part(outputs, Scope(dict(held), node, shared)))

    def array(self, operand: Node | None, node: float, deep: bool = False) -> int:
        """Add an array to the step, with these values as in `Array`, and return its number."""
        self.arrays.append(Array(operand, node, deep))
        return len(self.arrays) - 1

    def inner(self, values: Mapping[str, int], trees: Mapping[str, Node], node: float) -> dict[Node, int]:
        """Plan the passes for operands that are not fields. Returns the arrays that hold fields and operands, by tree.
        Operands without their own ghost cells are computed at each use, unless that takes many statements."""
        held: dict[Node, int] = {Field(name, b): number for name, number in values.items() for b in (False, True)}
        wanted, every = (levels(trees, held, chosen) for chosen in (has_own_ghosts, varies))
        if len(every) > len(wanted) and self.is_long(trees, held, wanted, node):
            wanted = every
        for number in sorted(set(wanted.values())):
            group = [operand for operand, n in wanted.items() if n == number]
            made = {operand: self.array(operand, node, deep=not has_own_ghosts(operand)) for operand in group}
            for deep in (False, True):
                outputs = {n: value_of(operand) for operand, n in made.items() if self.arrays[n].deep == deep}
                self.add(outputs, held, node)
            held.update(made)
        return held

    def is_long(
        self, trees: Mapping[str, Node], held: Mapping[Node, int], inner: Collection[Node], node: float
    ) -> bool:
        """Whether a pass takes many statements if, besides the arrays in ``held``, only the ``inner`` results are
        stored."""
        arrays = {operand: len(self.arrays) + n for n, operand in enumerate(inner)}
        parts = [(list(trees.values()), {**held, **arrays})]
        for operand in inner:
            parts.append(([operand], {**held, **{other: n for other, n in arrays.items() if other != operand}}))
        return any(len(self.trials.of([part_of(made, known, node)]).lines) > SHORT for made, known in parts)


def part_of(trees: Sequence[Node], held: Mapping[Node, int], node: float) -> Part:
    """The part that computes ``trees``, numbered in order, from the arrays in ``held``. `is_long` counts the statements
    of its pass."""
    return Part({n: value_of(tree) for n, tree in enumerate(trees)}, Scope(held, node))


def check_times(plan: Plan, trials: Trials) -> None:
    """Raise Unsupported if the ghost cells of an array would be needed at two times. They are computed once per
    array."""
    used_at: dict[int, set[float]] = {}
    for part in plan.parts:
        for number, reach in trials.of([part]).reads.reach.items():
            if any(reach):
                used_at.setdefault(number, set()).add(part.scope.node)
    for number, array in enumerate(plan.arrays):
        if array.operand is None or array.deep:
            continue
        faces = plan.problem.faces.items()
        given = [v for (operand, _, _), face in faces if operand == array.operand for v in face.values]
        if any(changes(value) for value in given) and used_at.get(number, set()) - {array.node}:
            raise Unsupported("boundary values change in time within a step of this integrator")


def check_corners(plan: Plan, passes: Sequence[Parts], trials: Trials) -> None:
    """Raise Unsupported if corners need fields in ghost cells next to a boundary, where fields are known only inside
    the block."""
    arrays = plan.arrays
    across = {arrays[n].operand for parts in passes for n in trials.of(parts).reads.corners if n < len(arrays)}
    for (operand, _, _), face in plan.problem.faces.items():
        if operand in across and any(isinstance(part, Field) for value in face.values for part in walk(value)):
            raise Unsupported("the equation looks at corners of the domain, at whose ends waves leave")
