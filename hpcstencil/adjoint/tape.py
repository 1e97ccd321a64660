"""The tape of a run: for each step, the values that its reverse reads of the fields of the equation.

With it a reverse step needs no states, and takes no steps forwards again. The forward problem gets a field for each value, and
its method a stage that evaluates it where the reverse step would: at one stage value of the step, or at several. The reverse
problem reads the values of each step from memory (`Problem.replayed`).

Example: acoustic waves, ∂q/∂t = c² (∇²p + s), and the derivative with respect to c. The reverse step adds
2 c q̄ (∇²p + s) to it, so the tape is ∇²p + s, one value per cell and step. A state has two: p and q.

If one stage of a step needs values, an expression that an operator of the reverse step reads, such as c² q̄ in ∇²(c² q̄), becomes
a field too, which a stage evaluates just before. Then a reverse step stores nothing but fields, and native code takes many of
them in place. If there are more operands than `MOST_OPERANDS`, as with a CPML, or one has no boundary condition of its own, as
beside solid cells, they all stay expressions, and native code reverses steps in tiles, as it does with several stages.

`with_tape` says which problems have a tape. All values are the same, to the last bit, as those of `Adjoint.reversing`, unless
the tape is in half precision (`gradient.tape_precision`), which rounds them. Gradients then have a tape on all decompositions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcstencil.adjoint.names import ADJOINT, GRADIENT
from hpcstencil.adjoint.problem import Adjoint, Tape, parts_of
from hpcstencil.adjoint.stages import by_stage, one_by_one
from hpcstencil.numerics.integrators import Method, Stage, stability_limits
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.differentiate import PIECEWISE_CONSTANT
from hpcstencil.symbolic.expressions import OPERATORS, Field, Node, Pointwise, has_own_ghosts, rebuilt

TAPE, OPERAND = "tape.", "operand."  # prefixes of names of fields; numbers follow
MOST_VALUES = 2  # per cell and step, if only one stage needs values: loading more takes longer than computing
MOST_OF_STAGE = 1  # values per cell and stage, if several stages need values
MOST_OPERANDS = 2  # most operands that become fields


def recording(adjoint: Adjoint, forward: Problem) -> Problem:
    """A problem whose steps also compute the tape of an ``adjoint``: ``forward`` is its equation, or that of a member.

    The values of a step are in the fields tape.j.n after it. All other fields have the same bits as without.
    """
    tape, names = adjoint.tape, adjoint.problem.replayed
    assert tape is not None
    method = forward.method
    trees, groups = dict(forward.trees), dict(forward.groups) or dict.fromkeys(forward.trees, 0)
    for number in sorted(tape.values, reverse=True):  # so that stages before keep their numbers
        group, values = by_stage(0, number), tape.values[number]
        method = with_evaluation(method, number, group)
        trees.update(values), groups.update(dict.fromkeys(values, group))
    return replace(
        forward,
        fields=(*forward.changing, *names, *forward.constant),
        memory=(*forward.memory, *names),
        begin_at_zero=(*forward.begin_at_zero, *names),
        trees=trees,
        method=method,
        groups=groups,
        faces={**adjoint.problem.faces, **forward.faces},
    )


def with_evaluation(method: Method, number: int, group: int) -> Method:
    """The method with one more stage, which evaluates the right-hand sides of a ``group`` at the stage value with this
    ``number``, after the stage that uses the slopes there. Its stable step is that of the ``method``."""
    after = number + 1

    def moved(stage: Stage) -> Stage:
        values, slopes = ([(j + (j > after), weight) for j, weight in terms] for terms in (stage.values, stage.slopes))
        return replace(stage, values=tuple(values), slopes=tuple(slopes), group=stage.group or 0)

    stages, nodes = [*map(moved, method.stages)], method.nodes
    stages.insert(after, Stage((), ((number, 1.0),), group, evaluates=True))
    times = (*nodes[: after + 1], nodes[after], *nodes[after + 1 :])
    return replace(method, stages=tuple(stages), times=times, limits=stability_limits(method))


def with_tape(adjoint: Adjoint) -> Adjoint | None:
    """The adjoint with a tape; None if there is none.

    There is one if
    - reverse steps need states, but nothing that is added between them does, and they do not depend on the time;
    - each stage starts from the step before it, or moves one group of fields at a time, and then only one stage needs states;
    - stages read states in their own cell, or in operands with boundary conditions of their own;
    - there are few values (`MOST_VALUES`, `MOST_OF_STAGE`);
    - in three dimensions, reverse steps run in place, or steps have several stages or absorbing layers.
    """
    forward, method = adjoint.forward, adjoint.forward.method
    added = forward.adds_every is not None and not adjoint.injected
    if not adjoint.needs_states or added or method.multistep or (method.partitioned and not one_by_one(method)):
        return None
    states = frozenset(forward.trees)
    evaluated = [
        j for j, stage in enumerate(method.stages) if stage.slopes and reads(read_at(stage, adjoint).values(), states)
    ]
    several = len(evaluated) > 1
    if not evaluated or (several and method.partitioned):
        return None
    most = MOST_OF_STAGE * len(evaluated) if several else MOST_VALUES
    # In tiles, it takes as long to load the values of a short step in three dimensions as to compute them again.
    in_tiles = several or bool(adjoint.layered) or forward.config.grid.ndim < 3
    for in_fields in ([] if several else [True]) + ([False] if in_tiles else []):
        found = [made for whole in (False, True) if (made := _made(adjoint, states, evaluated, whole, in_fields))]
        few = [one for one in found if 0 < len(one.problem.replayed) <= most and len(one.operands) <= MOST_OPERANDS]
        if few:
            return min(few, key=lambda one: len(one.problem.replayed))
    return None


def read_at(stage: Stage, adjoint: Adjoint) -> Mapping[str, Node]:
    """What the reverse of a ``stage`` evaluates, by field."""
    rhs = adjoint.reverse_rhs
    return rhs if stage.group is None else adjoint.group_parts.get(stage.group, rhs)


def reads(trees: Iterable[Node], names: Collection[str]) -> bool:
    """Whether one of the trees reads a field with one of these names."""
    return any(not tree.field_names.isdisjoint(names) for tree in trees)


def _made(
    adjoint: Adjoint, states: frozenset[str], evaluated: Sequence[int], whole: bool, in_fields: bool
) -> Adjoint | None:
    """The adjoint with a tape at the stage values with the numbers in ``evaluated``; None if a tree needs more than that."""
    stages = {j: _StageTape(states, adjoint.forward, j, whole, in_fields) for j in evaluated}
    trees = {
        j: {name: stage.converted(tree) for name, tree in adjoint.problem.trees.items()} for j, stage in stages.items()
    }
    first = stages[evaluated[0]]
    parts = {
        group: {name: first.converted(tree) for name, tree in part.items()}
        for group, part in adjoint.group_parts.items()
    }
    faces = dict(adjoint.problem.faces)
    for stage in stages.values():
        for operand, tree in stage.conditions.items():
            same = [(axis, side, face) for (of, axis, side), face in adjoint.problem.faces.items() if of == tree]
            faces |= {(operand, axis, side): face for axis, side, face in same}
    values = {j: {name: tree for tree, name in stage.values.items()} for j, stage in stages.items()}
    operands = {name: tree for tree, name in first.operands.items()}
    names = tuple(name for found in values.values() for name in found)
    in_half = adjoint.forward.config.gradient.tape_precision == "half"
    problem = replace(adjoint.problem, trees=trees[evaluated[0]], faces=faces, replayed=names, replayed_in_half=in_half)
    tape = Tape(values, trees, operands, ())
    taped = replace(adjoint, problem=problem, group_parts=parts, tape=tape)
    read = {*taped.read, *(part for tree in operands.values() for part in parts_of(tree, faces))}
    left = any(isinstance(part, Field) and part.name in states for part in read)
    if left or not all(stage.readable for stage in stages.values()) or taped.follows_time:
        return None
    used = tuple(
        j
        for j, stage in enumerate(taped.forward.method.stages)
        if stage.slopes and reads(read_at(stage, taped).values(), operands)
    )
    return replace(taped, tape=replace(tape, with_operands=used))


@dataclass
class _StageTape:
    """The tape so far at the stage value with a ``number``.

    With ``whole``, its values are the largest trees of ``states`` and of nothing that the reverse steps change; else they are
    the states themselves. With ``in_fields``, operands become fields.
    """

    states: frozenset[str]
    forward: Problem
    number: int
    whole: bool
    in_fields: bool
    values: dict[Node, str] = field(default_factory=dict)
    operands: dict[Node, str] = field(default_factory=dict)
    conditions: dict[Node, Node] = field(default_factory=dict)  # the tree with the same boundary condition, by operand
    known: dict[Node, Node] = field(default_factory=dict)
    readable: bool = True  # whether native code can apply all operators so far

    def converted(self, tree: Node) -> Node:
        """The tree with fields in place of values and of operands."""
        if tree not in self.known:
            self.known[tree] = self._converted(tree)
        return self.known[tree]

    def _converted(self, tree: Node) -> Node:
        if not tree.field_names:
            return tree
        if self.is_value(tree):
            return Field(self.values.setdefault(tree, f"{TAPE}{self.number}.{len(self.values)}"))
        change = self.operand if isinstance(tree, OPERATORS) else self.converted
        return rebuilt(tree, change)

    def is_value(self, tree: Node) -> bool:
        """Whether the tape has the value of this tree.

        Comparisons are never stored. Nor is a complete right-hand side, because native code multiplies it by dt before it
        rounds.
        """
        if not self.whole or (isinstance(tree, Pointwise) and tree.function in PIECEWISE_CONSTANT):
            return isinstance(tree, Field) and tree.name in self.states
        names = tree.field_names
        changed = any(name.startswith((ADJOINT, GRADIENT)) for name in names)
        return bool(names & self.states) and not changed and tree not in self.forward.slopes.values()

    def operand(self, tree: Node) -> Node:
        """The tree that an operator reads in place of this one, with the same boundary condition.

        It is a field if operands become fields. Else it is the tree itself with fields for values.
        """
        changed, own = self.converted(tree), has_own_ghosts(tree)
        if isinstance(changed, Field) or not tree.field_names:
            self.readable &= changed == tree  # a value is read in its own cell only
            return changed
        if self.in_fields:
            self.readable &= own and tree.kinds.isdisjoint(OPERATORS)
            changed = Field(self.operands.setdefault(changed, f"{OPERAND}{len(self.operands)}"))
        else:
            self.readable &= own or changed == tree  # else it is evaluated in other cells, where a value is not read
        self.conditions[changed] = tree
        return changed
