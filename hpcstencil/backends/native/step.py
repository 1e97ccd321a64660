"""A step of a method as parts, each of which computes some arrays in all cells.

What a derivative is taken of, other than a field, is an array of its own, which a part before computes. The last part of a
stage evaluates the right-hand sides and forms the stage's values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from hpcstencil.backends.native.expression_writer import Unsupported, changes
from hpcstencil.backends.native.pass_statements import Cells
from hpcstencil.backends.native.passes import Array, Part, Passes, Write
from hpcstencil.numerics.integrators import ERROR, MEMORY, NEW, Stage
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import OPERATORS, Field, Node, bottom_up, has_own_ghosts, varies, walk

SHORT = 400  # statements for a cell up to which inner results are not kept


def levels(trees: Mapping[str, Node], held: Collection[Node], chosen: Callable[[Node], bool]) -> dict[Node, int]:
    """The operands in trees that are ``chosen`` and not ``held``, with the number of the first pass that can compute each."""
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
    """What writes the value of a tree."""
    return lambda code, at: code.value(tree, at)


class Step(Passes):
    """One step of a problem: its method's stages as parts."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.ends = self.take()
        self.check_times()
        self.check_corners()
        self.write()

    def take(self) -> list[int]:
        """Makes the passes; the arrays that hold the fields at the end."""
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
        """Makes the passes that tell the error of the step; the arrays that hold it."""
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
        """The right-hand sides whose slopes at the j-th value the method uses."""
        return self.problem.apart if j and self.problem.apart else self.problem.trees

    def slopes(self, j: int, values: Mapping[str, int], trees: Mapping[str, Node]) -> dict[str, int]:
        """A pass for slopes alone."""
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
        """The passes of one stage: ``new`` is the value whose slopes are taken here, to ``keep`` for later stages."""
        problem, groups = self.problem, self.problem.groups
        trees = {} if new is None else self.trees(new)
        moving = [
            name
            for name in values[0]
            if all(name in (trees if j == new else slopes[j]) for j, _ in stage.slopes)
            and (stage.group is None or groups[name] == stage.group)
        ]
        # in one order in all stages, whose inner passes are then the same functions
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
            self.arrays[moved[name]].beside = {field: moved[field] for field in self.fields}
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
        """What writes Σ_j a_j y_j + dt Σ_j b_j k_j of a field."""

        def write(code: Cells, at: tuple[int, int, int]) -> str:
            result = ""
            for j, a in stage.values:
                value = code.loaded(values[j][name], at)
                text = value if a == 1.0 else f"{code.scalar((), a)} * {value}"
                result = code.let(f"{result} + {text}" if result else text)
            for j, b in stage.slopes:
                scale = f"dt * {b!r}"
                if j == new:
                    if trees[name] in code.shared:
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

    # ---- arrays and passes ----

    def array(self, operand: Node | None, node: float, deep: bool = False) -> int:
        self.arrays.append(Array(operand, node, deep))
        return len(self.arrays) - 1

    def inner(self, values: Mapping[str, int], trees: Mapping[str, Node], node: float) -> dict[Node, int]:
        """Passes for what operators are applied to; the arrays that hold a tree. Operands without ghost cells of their own, to
        which stencils of few cells are applied, are computed where they are looked at, unless that takes many statements."""
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
        """Whether a pass takes many statements if none but ``inner`` results are arrays."""
        arrays = {operand: len(self.arrays) + n for n, operand in enumerate(inner)}
        parts = [(list(trees.values()), {**held, **arrays})]
        for operand in inner:
            parts.append(([operand], {**held, **{other: n for other, n in arrays.items() if other != operand}}))
        return any(
            len(self.tried([Part({n: value_of(tree) for n, tree in enumerate(made)}, known, node)]).lines) > SHORT
            for made, known in parts
        )

    def check_corners(self) -> None:
        """Fields beside a boundary are known in the block alone: not in ghost cells, where corners would need them."""
        across = {
            self.arrays[n].operand for parts in self.parts for n in self.tried(parts).corners if n < len(self.arrays)
        }
        for (operand, _, _), face in self.problem.faces.items():
            if operand in across and any(isinstance(part, Field) for value in face.values for part in walk(value)):
                raise Unsupported("the equation looks at corners of the domain, at whose ends waves leave")

    def check_times(self) -> None:
        """Ghost cells are made once per array: at one time."""
        for array in self.arrays:
            if array.operand is None or array.deep:
                continue
            given = [
                v
                for (operand, _, _), face in self.problem.faces.items()
                if operand == array.operand
                for v in face.values
            ]
            if any(changes(value) for value in given) and array.used_at - {array.node}:
                raise Unsupported("boundary values change in time within a step of this integrator")
