"""Division of a time step into passes over the grid. `step_of` calls these functions in order:

    planned       turns the stages and their inner results into parts, each of which computes some arrays in all cells; parts
                  share results (`shared_results`)
    joined        groups parts that can share a pass
    check_...     raise Unsupported for what native code cannot compute
    joined_ends   joins the last pass to the first pass of the next step
    written       writes the C++ text of all passes

If a derivative has an operand that is not a field, an earlier part computes that operand into an array. The last part of a
stage evaluates the right-hand sides and forms the stage values together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcstencil.backends.backend import Unsupported
from hpcstencil.backends.native.expression_writer import changes
from hpcstencil.backends.native.pass_statements import Cells, Scope, flattened
from hpcstencil.backends.native.passes import (
    MOST_AT_ONCE,
    Array,
    Part,
    Parts,
    Pass,
    StepPlan,
    Text,
    Trials,
    Write,
    adds_too_early,
    fields_of,
    group_into_passes,
    joined_ends,
    value_of,
    write_passes,
)
from hpcstencil.backends.native.shared_results import with_shared_results, without_unread
from hpcstencil.backends.native.zero_regions import layers_of
from hpcstencil.numerics.integrators import ERROR, MEMORY, NEW, Stage
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import (
    OPERATORS,
    Field,
    Halfway,
    Neighbour,
    Node,
    Pointwise,
    bottom_up,
    has_own_ghosts,
    varies,
)

# An operand, the time within the step, the arrays of its fields, and which of these arrays had values injected.
OperandKey = tuple[Node, float, tuple[tuple[Node, int], ...], tuple[int, ...]]

SHORT = 400  # inner results are not stored if a pass stays within this many statements per cell


def levels(trees: Mapping[str, Node], held: Collection[Node], stored: Collection[Node]) -> dict[Node, int]:
    """Return the trees of ``stored`` that operators in ``trees`` read, each with the first pass (from 1) that can compute it.

    Trees that are ``held`` in an array already are left out.
    """
    level: dict[Node, int] = dict.fromkeys(held, 0)
    wanted: dict[Node, int] = {}
    depth: dict[Node, int] = {}
    for part in (part for tree in trees.values() for part in bottom_up(tree)):
        if part in depth:
            continue
        depth[part] = max((depth[child] for child in part.children), default=0)
        for operand in read_by(part, stored):
            if operand not in level:
                level[operand] = wanted[operand] = depth[operand] + 1
            depth[part] = max(depth[part], level[operand])
    return wanted


def read_by(part: Node, stored: Collection[Node]) -> Iterator[Node]:
    """Yield the trees that an operator reads from arrays if those of ``stored`` are in arrays: operands, or terms of one."""
    for operand in part.children if isinstance(part, OPERATORS) else ():
        if operand in stored:
            yield operand
        else:
            yield from (term for _, _, term in flattened(operand, stored) if term in stored)


def operands(trees: Mapping[str, Node]) -> dict[Node, bool]:
    """Return the operands of operators in ``trees``, and for each whether all these operators are shifts (`is_shift`)."""
    found: dict[Node, bool] = {}
    for part in dict.fromkeys(part for tree in trees.values() for part in bottom_up(tree)):
        for operand in part.children if isinstance(part, OPERATORS) else ():
            found[operand] = found.get(operand, True) and is_shift(part)
    return found


def is_shift(part: Node) -> bool:
    """Return whether a node is the value of its operand in another cell."""
    return isinstance(part, Neighbour) or (isinstance(part, Halfway) and part.kind in ("below", "above"))


def all_stored(trees: Mapping[str, Node], held: Collection[Node]) -> set[Node]:
    """Return the trees to store in addition to the ``held`` ones, so that operators in ``trees`` read arrays only.

    They are the operands of operators. A sum that only shifts read is not stored if each of its terms is in an array anyway
    or is a shift itself, because adding the terms costs no more than loading the sum. It may have one other term if another
    such sum shares it: then the term is stored instead of both sums.
    """
    shifted = {operand: alone for operand, alone in operands(trees).items() if varies(operand) and operand not in held}
    known = {*held, *shifted}
    others = {
        tree: {
            term for _, _, term in flattened(tree, known) if varies(term) and term not in known and not is_shift(term)
        }
        for tree, alone in shifted.items()
        if alone and isinstance(tree, Pointwise) and tree.function in ("add", "subtract")
    }
    uses = Counter(term for terms in others.values() for term in terms)
    split = {tree for tree, terms in others.items() if len(terms) <= 1 and all(uses[term] > 1 for term in terms)}
    return {*shifted} - split | {term for tree in split for term in others[tree]}


@dataclass(frozen=True)
class Step:
    """One time step of a problem, divided into passes.

    Attributes
    ----------
    plan, parts
        The plan of the step, and the parts that each pass computes.
    passes, text
        The passes, and the C++ text that they share.
    joins_steps
        Whether the last entry of ``passes`` joins the last pass of a step to the first pass of the next.
    statements
        The average number of statements per cell in a pass, outside absorbing layers.
    """

    plan: StepPlan
    parts: tuple[Parts, ...]
    passes: tuple[Pass, ...]
    joins_steps: bool
    statements: float
    text: Text


def step_of(problem: Problem, most_at_once: int = MOST_AT_ONCE) -> Step:
    """Return the time step of a problem as passes, which compute ``most_at_once`` planes together at most.

    Raises Unsupported, with the reason, if native code cannot compute it.
    """
    trials = Trials(problem)
    plan = plan_step(problem, trials)
    parts = group_into_passes(plan, trials)
    if adds_too_early(plan, trials, parts):
        plan = plan_step(problem, trials, copied=True)
        parts = group_into_passes(plan, trials)
        assert not adds_too_early(plan, trials, parts)
    check_times(plan, trials)
    check_corners(plan, parts, trials)
    plan = replace(plan, most_at_once=most_at_once)
    ends = joined_ends(plan, trials, parts)
    text = Text(problem)
    passes = write_passes(plan, trials, parts, ends, text)
    statements = sum(len(trials.of(p, plan.absent(frozenset())).lines) for p in parts) / len(parts)
    return Step(plan, tuple(parts), tuple(passes), bool(ends), statements, text)


def plan_step(problem: Problem, trials: Trials, copied: bool = False) -> StepPlan:
    """Return the plan of a step: its parts, stage by stage, and the arrays that they fill.

    If ``copied``, values are added to copies of `Problem.injected`, so that earlier parts can read the fields without them.
    """
    planner = Planner(problem, trials, copied)
    ends = planner.take()
    plan = StepPlan(
        problem, tuple(planner.arrays), tuple(planner.parts), tuple(ends), layers_of(problem), planner.injected
    )
    return with_shared_results(without_unread(plan, trials), trials)


class Planner:
    """Builder of the plan of a step; holds the arrays and parts added so far."""

    def __init__(self, problem: Problem, trials: Trials, copied: bool) -> None:
        self.problem, self.trials, self.copied = problem, trials, copied
        self.fields, self.errors = fields_of(problem), tuple(problem.errors())
        self.arrays = [*(Array(Field(name)) for name in self.fields), *(Array(None) for _ in self.errors)]
        self.parts: list[Part] = []
        self.injected: dict[int, int] = {}  # as in `StepPlan`
        self.operands: dict[OperandKey, int] = {}  # the arrays that hold operands

    def take(self) -> list[int]:
        """Plan all stages and the error estimate.

        Returns the numbers of the arrays that hold the fields, then the errors, after the step.
        """
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
            for name in self.problem.injected if i + 1 in method.injected else ():
                self.inject(name, moved, method.nodes[i + 1])
        return [*(end[name] for name in self.fields), *self.error(values, slopes, end)]

    def error(
        self, values: Mapping[int, Mapping[str, int]], slopes: dict[int, dict[str, int]], end: Mapping[str, int]
    ) -> list[int]:
        """Plan the passes that compute the estimated errors of the step.

        Returns the numbers of their arrays; an empty list if the problem needs no error estimate.
        """
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
        numbers = range(len(self.fields), len(self.fields) + len(names))
        self.add(
            {n: value_of(tree) for n, tree in zip(numbers, self.problem.errors().values(), strict=True)}, held, last
        )
        return list(numbers)

    def inject(self, name: str, moved: dict[str, int], node: float) -> None:
        """Plan that values are added to a field of `Problem.injected`, whose array is in ``moved``, at the time ``node``."""
        array = moved[name]
        if self.copied:
            moved[name] = self.array(Field(name), node)
            self.arrays[moved[name]] = replace(self.arrays[moved[name]], beside={f: moved[f] for f in self.fields})
            self.add({moved[name]: lambda code, at: code.loaded(array, at)}, {}, node)
        assert moved[name] >= len(self.fields) and moved[name] not in self.injected  # it is computed in this step
        self.injected[moved[name]] = len(self.parts)

    def trees(self, j: int) -> Mapping[str, Node]:
        """Return the right-hand sides, by field, that the method evaluates at the j-th stage value."""
        return self.problem.slopes_at(j)

    def slopes(self, j: int, values: Mapping[str, int], trees: Mapping[str, Node]) -> dict[str, int]:
        """Plan a pass that computes only the slopes at the j-th stage value, and return their arrays by field.

        ``values`` maps fields to the numbers of the arrays that hold the j-th stage value; ``trees`` are the right-hand
        sides.
        """
        node = self.problem.method.nodes[j]
        held = self.inner(values, trees, node)
        made = {name: self.array(None, node, rate_of=name) for name in trees}
        evaluated = {made[name]: tree for name, tree in trees.items()}
        self.add({array: value_of(tree) for array, tree in evaluated.items()}, held, node, trees=evaluated)
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
        """Plan the part of one stage.

        ``values`` maps the numbers of stage values, 0 for the start of the step, and ``slopes`` those of earlier stages to the
        numbers of their arrays by field. The stage's results are added
        to ``moved``. ``new`` is the number of the stage value whose slopes are computed here, or None. With ``keep``, these
        slopes are added to ``slopes``, because later stages use them.
        """
        problem, groups = self.problem, self.problem.groups
        trees = {} if new is None else self.trees(new)
        moving = [
            name
            for name in values[0]
            if all(name in (trees if j == new else slopes[j]) for j, _ in stage.slopes)
            and (stage.group is None or groups.get(name) == stage.group)
        ]
        if not stage.slopes and not stage.remembered and [a for _, a in stage.values] == [1.0]:  # nothing to compute
            moved |= {name: values[stage.values[0][0]][name] for name in moving}
            return
        later = self.later_users(new, len(values)) if keep else set()
        # the same order in all stages, so that their inner passes are the same functions
        wanted = {name: tree for name, tree in trees.items() if name in later or name in moving}
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
                kept[name] = self.array(None, node, rate_of=name)
                moved[name + MEMORY] = kept[name]
        for name in moving:
            beside = {field: moved[field] for field in self.fields}
            self.arrays[moved[name]] = replace(self.arrays[moved[name]], beside=beside)
        if keep:
            for name in wanted:
                if name in later:
                    kept.setdefault(name, self.array(None, node, rate_of=name))
            assert new is not None
            slopes[new] = kept
        for name, array in kept.items():
            outputs[array] = value_of(trees[name])
        rounded = moving if new in problem.method.rounded else []
        evaluated = {array: trees[name] for name, array in kept.items()}
        evaluated |= {moved[name]: trees[name] for name in moving if name in trees}
        self.add(outputs, held, node, {trees[name] for name in (*kept, *rounded)}, evaluated)

    def later_users(self, number: int | None, first: int) -> set[str]:
        """Return the fields that stages from number ``first``, counted from 0, move by the slopes at stage value ``number``.

        With an error estimate, these are all fields that have slopes.
        """
        problem = self.problem
        users = [stage for stage in problem.method.stages[first:] if any(j == number for j, _ in stage.slopes)]
        if any(stage.group is None for stage in users) or any(j == number for j, _ in problem.method.error):
            return set(self.fields)
        return {name for name, group in problem.groups.items() if any(stage.group == group for stage in users)}

    def combination(
        self,
        stage: Stage,
        name: str,
        values: Mapping[int, Mapping[str, int]],
        slopes: Mapping[int, Mapping[str, int]],
        new: int | None,
        trees: Mapping[str, Node],
    ) -> Write:
        """Return the function that writes the statements for Σ_j a_j y_j + dt Σ_j b_j k_j of the field ``name``."""

        def evaluated(code: Cells, at: tuple[int, int, int]) -> str:
            ((j, _),) = stage.slopes
            return code.value(trees[name], at) if j == new else code.loaded(slopes[j][name], at)

        def write(code: Cells, at: tuple[int, int, int]) -> str:
            result = ""
            for j, a in stage.values:
                value = code.loaded(values[j][name], at)
                if a == 1.0:
                    result = code.let(f"{result} + {value}" if result else value)
                else:
                    result = code.plus_product(result, code.scalar((), a), value)
            for j, b in stage.slopes:
                scale = f"dt * {b!r}"
                if j == new:
                    if trees[name] in code.scope.shared:
                        result = code.plus_product(result, code.scalar((), 1.0, scale), code.value(trees[name], at))
                    else:
                        result = code.added(result, code.terms(trees[name], at), scale)
                else:
                    result = code.plus_product(result, code.scalar((), 1.0, scale), code.loaded(slopes[j][name], at))
            if stage.remembered:
                before = code.loaded(values[0][name + MEMORY], at)
                result = code.plus_product(result, code.scalar((), 1.0, f"dt * {stage.remembered!r}"), before)
            return result

        return evaluated if stage.evaluates else write

    # ---- arrays and parts ----

    def add(
        self,
        outputs: Mapping[int, Write],
        held: Mapping[Node, int],
        node: float,
        shared: Collection[Node] = (),
        trees: Mapping[int, Node] | None = None,
    ) -> None:
        """Add a part to the step, unless it has no outputs. ``shared`` is as in `Scope`, and ``trees`` as in `Part`."""
        if outputs:
            deep = {tree for tree, array in held.items() if self.arrays[array].deep}
            self.parts.append(Part(outputs, Scope(dict(held), node, shared, deep), trees or {}))

    def array(self, operand: Node | None, node: float, deep: bool = False, rate_of: str = "") -> int:
        """Add an `Array` with these attributes to the step, and return its number."""
        self.arrays.append(Array(operand, node, deep, rate_of=rate_of))
        return len(self.arrays) - 1

    def inner(self, values: Mapping[str, int], trees: Mapping[str, Node], node: float) -> dict[Node, int]:
        """Plan the passes for operands that are not fields, and return the arrays that hold fields and operands, by tree.

        An operand that an earlier stage has computed from the same arrays is taken from there. Operands without ghost cells of
        their own are recomputed at each use, unless that takes many statements.
        """
        held: dict[Node, int] = {Field(name, b): number for name, number in values.items() for b in (False, True)}
        read = operands(trees)

        def operand_key(operand: Node) -> OperandKey:
            arrays = {part: held[part] for part in operand.field_nodes if part in held}
            return operand, node, tuple(arrays.items()), tuple(n for n in arrays.values() if n in self.injected)

        held |= {tree: self.operands[key] for tree in read if (key := operand_key(tree)) in self.operands}
        wanted = levels(trees, held, {operand for operand in read if has_own_ghosts(operand)})
        every = {operand for operand in read if varies(operand) and operand not in held}
        if len(every) > len(wanted) and self.is_long(trees, held, wanted, node):
            wanted = levels(trees, held, all_stored(trees, held))
        for number in sorted(set(wanted.values())):
            group = [operand for operand, n in wanted.items() if n == number]
            made = {operand: self.array(operand, node, deep=not has_own_ghosts(operand)) for operand in group}
            for deep in (False, True):
                outputs = {n: value_of(operand) for operand, n in made.items() if self.arrays[n].deep == deep}
                self.add(outputs, held, node)
            self.operands |= {operand_key(operand): n for operand, n in made.items()}
            held.update(made)
        return held

    def is_long(
        self, trees: Mapping[str, Node], held: Mapping[Node, int], inner: Collection[Node], node: float
    ) -> bool:
        """Return whether a pass would exceed `SHORT` statements if only ``held`` and ``inner`` trees are in arrays."""
        arrays = {operand: len(self.arrays) + n for n, operand in enumerate(inner)}
        parts = [(list(trees.values()), {**held, **arrays})]
        for operand in inner:
            others = dict(arrays)
            del others[operand]
            parts.append(([operand], {**held, **others}))
        return any(len(self.trials.of([part_of(made, known, node)]).lines) > SHORT for made, known in parts)


def part_of(trees: Sequence[Node], held: Mapping[Node, int], node: float) -> Part:
    """Return the part that computes ``trees``, numbered in order, from the arrays in ``held``.

    `Planner.is_long` counts the statements of its pass.
    """
    return Part({n: value_of(tree) for n, tree in enumerate(trees)}, Scope(held, node))


def check_times(plan: StepPlan, trials: Trials) -> None:
    """Raise Unsupported if an array would need ghost cells at two times, since they are computed once per array."""
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


def check_corners(plan: StepPlan, passes: Sequence[Parts], trials: Trials) -> None:
    """Raise Unsupported if corner ghost cells depend on boundary values that read fields.

    Such boundary values would need fields in ghost cells, but fields are known only inside the block.
    """
    arrays = plan.arrays
    across = {arrays[n].operand for parts in passes for n in trials.of(parts).reads.corners if n < len(arrays)}
    for (operand, _, _), face in plan.problem.faces.items():
        if operand in across and any(value.field_names for value in face.values):
            raise Unsupported("the equation reads corners of the domain, where boundary values depend on fields")
