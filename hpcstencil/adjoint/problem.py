"""The adjoint problem: one step of forward Euler with dt = 1 adds (∂f/∂u)ᵀ λ to a field, and (∂f/∂p)ᵀ λ to another.

Its fields, for a field u and a parameter p of the equation:
  u              the stage value at which the derivatives are taken, constant in the step
  adjoint.u      λ, the derivative of the objective with respect to dt times the slopes there; constant too
  transposed.u   the result; the step adds (∂f/∂u)ᵀ λ to it
  gradient.p     the derivative with respect to p, per cell; the step adds (∂f/∂p)ᵀ λ to it

`Adjoint.reversing` makes a problem of it whose step reverses steps of the equation, by a method of its own (`stages`). Its
fields are u before these steps, adjoint.u, which it takes from the end of the steps to their beginning, and gradient.p. So any
backend computes a reverse step as it computes a step of an equation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from hpcstencil.adjoint.hat_functions import HatFunctions
from hpcstencil.adjoint.names import (
    ADJOINT,
    GRADIENT,
    SAMPLED,
    SAMPLES_SEED,
    TRANSPOSED,
)
from hpcstencil.adjoint.operands import Faces, Operands
from hpcstencil.adjoint.stages import (
    OPERANDS,
    SUMS,
    TwoStepPart,
    by_stage,
    cotangent,
    reversed_steps,
    reversed_two_step,
    separate,
    sums,
)
from hpcstencil.adjoint.unknowns import Unknown
from hpcstencil.numerics.integrators import MEMORY
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import most_steps
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.differentiate import ZERO
from hpcstencil.symbolic.expressions import (
    Convolution,
    Field,
    Node,
    Parameter,
    Pointwise,
    Reduction,
    Series,
    StepSize,
    Time,
    bottom_up,
    rebuilt,
    shared,
    varies,
    walk,
)
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS
from hpcstencil.symbolic.zero_regions import vanishes
from hpcstencil.validation.errors import InputError

VARYING = (Field, Time, StepSize, Series)  # nodes whose values may differ from step to step


@dataclass(frozen=True)
class Tape:
    """For each step, the values that its reverse reads of the fields of the equation; `adjoint.tape` finds them.

    Attributes
    ----------
    values
        The values as trees of the equation's fields, by the name of their field tape.j.n, by the number j of the stage value
        of the equation's method at which they are taken.
    trees
        The trees of the adjoint problem as the reverse of stage j evaluates them, by j: with the values of that stage.
    operands
        What operators of a reverse step read, by the name of its field operand.n.
    with_operands
        The numbers of the stage values of the equation's method at which the reverse step needs the operands.
    """

    values: Mapping[int, Mapping[str, Node]]
    trees: Mapping[int, Mapping[str, Node]]
    operands: Mapping[str, Node]
    with_operands: tuple[int, ...]


@dataclass(frozen=True)
class Adjoint:
    """The adjoint of a problem with an objective.

    Attributes
    ----------
    unknowns
        The entries of gradient.of.
    problem
        The adjoint problem. Its diagnostics are the objective and each of the ``reductions``, by number. Its `Problem.derived`
        has these trees by key, each by the name of a field adjoint.u or gradient.p:

        END: the values at the end of the run that are not 0, from the state and the fields SEED.
        START: what the initial expressions add to gradient.p.
        REMEMBERED: what the slopes that a two-step method remembers first add.
        SAMPLED: what samples add to the fields on which they depend, from the state and the fields SAMPLES_SEED.
        EXTREMA: for minima and maxima, a tree that is largest in the cells that have their value, by their fields SEED.
        PRODUCTS: if it is verified, the terms of λ·(∂f/∂u v) and (transposed field)·v, with v in the fields tangent.u.
    reductions, slopes
        The reductions of the objective, and its derivatives with respect to each of them, as trees of all.
    direct
        The derivatives of the objective with respect to numbers outside reductions, by name.
    direct_series
        Those with respect to the values of time series, by key.
    forward
        The problem itself.
    sum_slopes, sample_slopes
        For each sum in `Problem.misfit`, the derivative of the objective with respect to it, and those of its term with respect
        to the samples, by table.
    number_slopes
        The derivatives of the terms of these sums with respect to a number, in their order, by the name of the number; only for
        numbers on which a term depends.
    group_parts
        If the method moves one group of fields at a time: by group, the part of `reverse_rhs` that comes from its adjoint.u.
    two_step_parts
        For a two-step method, the parts of `stages.reversed_two_step`.
    hats
        The hat functions of the time series among the unknowns, by key.
    layered
        The fields adjoint.u that are 0 outside absorbing layers, because they have no effect there.
    tape
        The tape that reverse steps read in place of the fields of the equation, if there is one. Its fields are in the trees
        then.
    """

    unknowns: tuple[Unknown, ...]
    problem: Problem
    reductions: tuple[Reduction, ...]
    slopes: tuple[Node, ...]
    direct: Mapping[str, Node]
    forward: Problem
    sum_slopes: tuple[Node, ...] = ()
    sample_slopes: tuple[Mapping[str, Node], ...] = ()
    number_slopes: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)
    group_parts: Mapping[int, Mapping[str, Node]] = field(default_factory=dict)
    two_step_parts: Mapping[TwoStepPart, Mapping[str, Node]] = field(default_factory=dict)
    hats: Mapping[str, HatFunctions] = field(default_factory=dict)
    direct_series: Mapping[str, Node] = field(default_factory=dict)
    layered: tuple[str, ...] = ()
    tape: Tape | None = None

    @cached_property
    def series_rhs(self) -> dict[str, Node]:
        """The derivatives with respect to the values of time series, by `HatFunctions.prefix`."""
        return {hats.prefix: self.problem.trees[hats.prefix] for hats in self.hats.values()}

    @cached_property
    def reverse_rhs(self) -> dict[str, Node]:
        """What a reverse step adds up, by the fields adjoint.u and gradient.p: the transposed right-hand sides."""
        trees = self.problem.trees
        fields = {ADJOINT + name: trees[TRANSPOSED + name] for name in self.forward.trees}
        memory = {name: ZERO for name in self.two_step_parts.get(TwoStepPart.WHOLE, {}) if name.endswith(MEMORY)}
        summed = {name: tree for name, tree in trees.items() if name.startswith(GRADIENT)}
        return fields | memory | {name: tree for name, tree in summed.items() if name not in self.series_rhs}

    @property
    def any_field(self) -> str:
        """The name of a field of the reverse steps."""
        return next(iter(self.reverse_rhs))

    @cached_property
    def read(self) -> set[Node]:
        """The nodes on whose values a reverse step depends, boundary conditions included."""
        of_two_steps = (trees for part, trees in self.two_step_parts.items() if part != TwoStepPart.STEP)
        of_parts = (*self.group_parts.values(), *of_two_steps)
        trees = [tree for each in (self.reverse_rhs, self.series_rhs, *of_parts) for tree in each.values()]
        return set[Node]().union(*(parts_of(tree, self.problem.faces) for tree in trees))

    @cached_property
    def operations(self) -> int:
        """The number of different operations in the time derivatives and their transposes, at least 1.

        Those without fields do not count, nor those whose results are 0 outside absorbing layers.
        """
        trees = (*self.forward.slopes.values(), *self.reverse_rhs.values())
        parts = {part for tree in trees for part in walk(tree) if part.children and varies(part)}
        memory = {*self.forward.begin_at_zero, *self.layered}
        return max(1, sum(not (memory and vanishes(part, memory)) for part in parts))

    @cached_property
    def injected(self) -> dict[str, tuple[str, ...]]:
        """The fields adjoint.u to which the derivatives with respect to samples are added with constant weights, each with the
        tables of these receivers. They are all that samples add to; else this is empty, as without receivers.

        The weights are constant if what receivers record is linear in fields with time derivatives and depends neither on the
        time nor on parameters that are fields.
        """
        trees = self.problem.derived.get(SAMPLED, {})
        tables = () if self.forward.misfit is None else self.forward.misfit.tables
        seeds: dict[Node, str] = {Field(SAMPLES_SEED + table): table for table in tables}
        parts = {name: parts_of(tree, self.problem.faces) for name, tree in trees.items()}
        others = set().union(*parts.values()) - seeds.keys()
        varying = any(isinstance(part, VARYING) for part in others)
        by_fft = any(isinstance(part, Convolution) and part.stencil.by_fft for part in others)  # reads all cells
        if varying or by_fft or not all(name.startswith(ADJOINT) for name in trees):
            return {}
        return {name: tuple(table for seed, table in seeds.items() if seed in each) for name, each in parts.items()}

    @cached_property
    def transposed(self) -> tuple[str, ...]:
        """The tables among the `injected` ones whose receivers do not only record a field."""
        trees = self.problem.derived.get(SAMPLED, {})
        tables = (table for name, each in self.injected.items() if not seeds_in(trees[name]) for table in each)
        return tuple(dict.fromkeys(tables))

    @cached_property
    def numbers_of_samples(self) -> tuple[str, ...]:
        """The parameters on which the constant weights of `injected` depend, by name."""
        trees = self.problem.derived.get(SAMPLED, {}).values() if self.transposed else ()
        parts = (part for tree in trees for part in parts_of(tree, self.problem.faces))
        return tuple(sorted({part.name for part in parts if isinstance(part, Parameter)}))

    @cached_property
    def needs_states(self) -> bool:
        """Whether reverse steps, or what is added between them, need the fields before the steps.

        They do not if the equation is linear, only initial values and time series that no field multiplies are asked for, and
        the objective is taken at the end or at receivers that record a linear expression; or if there is a ``tape``.
        """
        added = self.forward.adds_every is not None and not self.injected
        return added or any(isinstance(part, Field) and part.name in self.forward.trees for part in self.read)

    @property
    def begins_with_states(self) -> bool:
        """Whether the reverse of some steps begins with the state before them: to take the steps again, or to record a tape."""
        return self.needs_states or self.tape is not None

    def stage_fields(self, steps: int = 1) -> dict[str, tuple[int, int]]:
        """The fields of all `HatFunctions` for some steps that are reversed together, step by step, each with (step k, stage
        value j)."""
        each = ((k, hats) for k in range(steps) for hats in self.hats.values())
        return {name: (k, j) for k, hats in each for name, j in hats.fields(k).items()}

    def spread(self, found: Mapping[str, Node], steps: int = 1) -> dict[str, Node]:
        """Derivatives by name, where those with respect to the values of time series are given to all `stage_fields`."""
        made = dict(found)
        for hats in self.hats.values():
            if hats.prefix in made:
                tree = made.pop(hats.prefix)
                made |= {name: tree for k in range(steps) for name in hats.fields(k)}
        return made

    @property
    def operands(self) -> Mapping[str, Node]:
        """What operators of a reverse step with a tape read, by field."""
        return {} if self.tape is None else self.tape.operands

    @property
    def trees_by_stage(self) -> Mapping[int, Mapping[str, Node]]:
        """The trees of the adjoint problem by stage, if the reverse of each stage reads values of its own from the tape."""
        return {} if self.tape is None or len(self.tape.trees) < 2 else self.tape.trees

    @property
    def follows_time(self) -> bool:
        """Whether reverse steps depend on the time."""
        return any(isinstance(part, Time | Series) for part in self.read)

    @property
    def conditions_follow_time(self) -> bool:
        """Whether boundary conditions of the equation, or of reverse steps, depend on the time."""
        faces = (*self.forward.faces.values(), *self.problem.faces.values())
        parts = (part for face in faces for value in face.values for part in walk(value))
        return any(isinstance(part, Time | Series) for part in parts)

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups of the fields, (0,) if the method is not partitioned."""
        return tuple(sorted(set(self.forward.groups.values()))) or (0,)

    @cached_property
    def movers(self) -> dict[str, set[int]]:
        """By field of a reverse step: the groups of the fields u whose adjoint.u is in its right-hand side."""
        groups = self.forward.groups
        owners = {ADJOINT + name: groups.get(name, 0) for name in self.forward.trees}
        inside = {name: tree.field_names for name, tree in self.operands.items()}
        read = {
            name: tree.field_names.union(*(inside[part] for part in tree.field_names & inside.keys()))
            for name, tree in {**self.reverse_rhs, **self.series_rhs}.items()
        }
        return {name: {owners[part] for part in parts if part in owners} for name, parts in read.items()}

    def reversing(self, topology: Topology, steps: int = 1) -> Problem:
        """The problem on these blocks whose step reverses ``steps`` steps of the equation, with their size as dt.

        With one step, it has the diagnostics and the derived values of ``problem``. If `needs_states` is false, it has no
        fields of the equation that change.
        """
        forward, problem, method = self.forward, self.problem, self.forward.method
        states = forward.slopes if self.needs_states else {}
        if method.multistep:
            return self.on(topology, self.reversing_two_step(states), bool(states))
        apart = separate(method) and all(len(found) <= 1 for found in self.movers.values())
        by_part = bool(self.group_parts) and not apart
        groups = {name: forward.groups.get(name, 0) for name in states}
        in_stage, rhs = self.stage_fields(steps), {**self.reverse_rhs, **self.spread(self.series_rhs, steps)}
        for name in rhs:
            if name in in_stage:
                groups[name] = by_stage(*in_stage[name])
            elif apart:
                groups[name] = cotangent(next(iter(self.movers[name]), 0))
            elif name.startswith(GRADIENT):
                groups[name] = sums(method)
            else:
                groups[name] = cotangent(forward.groups.get(name.removeprefix(ADJOINT), 0))
        found = {group: self.spread(part, steps) for group, part in self.group_parts.items()} if by_part else {}
        moved_by = {group: {groups[name] for name in part} for group, part in found.items()} if by_part else None
        timed = {j for _, j in in_stage.values()}
        groups |= dict.fromkeys(self.operands, OPERANDS)
        with_operands = () if self.tape is None else self.tape.with_operands
        reverse = reversed_steps(method, self.groups, steps, bool(states), apart, moved_by, timed, with_operands)
        parts = {
            group: {name: found[group].get(name, ZERO) for name in rhs if groups[name] in moving}
            for group, moving in (moved_by or {}).items()
        }
        of_stage = {j: replace(self, problem=replace(problem, trees=trees)) for j, trees in self.trees_by_stage.items()}
        evaluated = {j: {**one.reverse_rhs, **one.spread(one.series_rhs, steps)} for j, one in of_stage.items()}
        kept = [name for name in forward.fields if name not in forward.trees]
        fields = (*states, *rhs, *self.operands, *kept)
        made = replace(
            problem,
            fields=fields,
            memory=fields,
            trees={**states, **rhs, **self.operands},
            method=reverse.method,
            groups=groups,
            parts={number: parts[group] for number, group in reverse.part_of.items()}
            | {number: evaluated[j] for number, j in reverse.stage_of.items() if j in evaluated},
            begin_at_zero=tuple(name for name in (*forward.begin_at_zero, *self.layered) if name in fields),
            injected=tuple(self.injected),
        )
        if steps > 1:
            made = replace(made, diagnostics={}, derived={})
        return self.on(topology, made, bool(states))

    def reversing_two_step(self, states: Mapping[str, Node]) -> Problem:
        """The problem whose step reverses a step of a two-step method, with the time derivatives ``states``, or without any."""
        forward = self.forward
        memory = [name for name in forward.changing if name not in forward.trees]
        groups = dict.fromkeys(states, 0)
        in_stage, rhs = self.stage_fields(), {**self.reverse_rhs, **self.spread(self.series_rhs)}
        for name in rhs:
            if name in in_stage:
                groups[name] = by_stage(*in_stage[name])
            else:
                groups[name] = SUMS if name.startswith(GRADIENT) else cotangent(1 if name.endswith(MEMORY) else 0)
        method, part_of = reversed_two_step(forward.method, bool(states), {j for _, j in in_stage.values()})
        without_memory = [name for name in rhs if not name.endswith(MEMORY)]
        moved = {TwoStepPart.WHOLE: [*rhs], TwoStepPart.APART: without_memory}
        found = {part: self.spread(trees) for part, trees in self.two_step_parts.items()}
        parts = {part: {name: found[part].get(name, ZERO) for name in names} for part, names in moved.items()}
        parts[TwoStepPart.STEP] = dict(found[TwoStepPart.STEP])
        kept = [name for name in forward.fields if name in forward.constant]
        fields = (*states, *(memory if states else ()), *rhs, *kept)
        return replace(
            self.problem,
            fields=fields,
            memory=fields,
            trees={**states, **rhs},
            method=method,
            groups=groups,
            parts={number: parts[part] for number, part in part_of.items()},
            injected=tuple(self.injected),
        )

    def on(self, topology: Topology, made: Problem, with_states: bool) -> Problem:
        """A problem that reverses steps on these blocks."""
        given = made.config.decomposition
        single = most_steps(made, topology) > 0 and (with_states or given.steps_per_exchange == 1)
        blocks = replace(
            given,
            processes=topology.processes,
            devices=topology.devices,
            steps_per_exchange=1 if single else "auto",
        )
        return replace(made, config=replace(made.config, decomposition=blocks))


def largest_at(kind: str, operand: Node) -> Node:
    """A tree that is largest in the cells that have the value of a reduction of the operand to an extreme."""
    return operand if REDUCTIONS[kind].extreme > 0 else -operand


def seeds_in(tree: Node) -> tuple[str, ...]:
    """The tables whose fields SAMPLES_SEED a tree is the sum of; empty if it is anything else."""
    match tree:
        case Field(name) if name.startswith(SAMPLES_SEED):
            return (name.removeprefix(SAMPLES_SEED),)
        case Pointwise("add", (a, b)) if (first := seeds_in(a)) and (second := seeds_in(b)):
            return first + second
    return ()


def parts_of(tree: Node, faces: Faces) -> set[Node]:
    """The nodes of a tree, and those of the boundary values of its operands."""
    parts = {*walk(tree)}
    values = [value for (operand, _, _), face in faces.items() if operand in parts for value in face.values]
    return parts | {part for value in values for part in walk(value)}


def refuse_unavailable(problem: Problem) -> None:
    """Raise InputError for problems that have no gradient yet."""
    config = problem.config
    if problem.misfit is not None and problem.step_follows_solution:
        raise InputError(
            f"time.{config.time.given}: sums over receivers are not available yet with steps that follow the solution; write "
            "time.dt"
        )


def operands_of(problem: Problem, trees: Iterable[Node], unknowns: tuple[Node, ...] = ()) -> Operands:
    """The boundary conditions of all operands in ``trees`` of a problem, and of its tangent, or its adjoint with derivatives by
    these ``unknowns``."""
    grid = problem.config.grid
    domain = tuple(zip(grid.lower, grid.upper, strict=True))
    trees = list(trees)
    rows = problem.discretization.radius(trees)
    return Operands(problem.faces, trees, problem.config.boundary.periodic, grid.spacing, domain, rows, unknowns)


def plain_trees(problem: Problem, trees: Mapping[str, Node]) -> dict[str, Node]:
    """The trees; on a grid without boundaries, with ghost cells of all operands of their own, which gives the same values."""
    if not all(problem.config.boundary.periodic):
        return shared(trees)
    made: dict[Node, Node] = {}
    for tree in shared(trees).values():
        for part in bottom_up(tree):
            new = rebuilt(part, lambda child: made[child])
            made[part] = replace(new, beyond=False) if getattr(part, "beyond", False) else new
    return {name: made[tree] for name, tree in shared(trees).items()}
