"""The tangent of a problem: the problem together with the derivative of its fields along a direction.

For ∂u/∂t = f(u, p), the field tangent.u follows
  ∂u̇/∂t = (∂f/∂u) u̇ + (∂f/∂p) ṗ,   u̇(0) = the direction of u(0), plus (∂u(0)/∂p) ṗ where u(0) is an expression.
All methods take linear combinations of fields and slopes, so a step of both is the exact derivative of a step of u. A multistep
method remembers the slopes of u̇ as well. The direction ṗ of a number is the parameter tangent.p, that of a time series the
samples tangent.p, and that of an array the constant field tangent.parameter.p. The objective of the tangent problem is the
derivative J̇ of the objective J along the direction. If J is a function of sums over receivers S = Σ m(r), so is J̇: it also
contains Ṡ = Σ m'(r) ṙ, where the table tangent.TABLE records ṙ at the receivers of TABLE. The gradient of J̇ with respect to
the unknowns, for a fixed direction v, is the product of the Hessian of J and v. The derivative of an extremum of e(u) over the
grid is the mean of ė over the cells that have this value. A field CELLS is 1 there and 0 elsewhere; it counts as constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcstencil.adjoint.differentiate import tangent
from hpcstencil.adjoint.members import single_runs
from hpcstencil.adjoint.names import CELLS, EXTREMA, OBJECTIVE, OF_APART, SAMPLES_SEED, TANGENT
from hpcstencil.adjoint.problem import largest_at, operands_of, plain_trees, refuse_unavailable
from hpcstencil.adjoint.unknowns import (
    ArrayParameter,
    CellValues,
    NumberParameter,
    SeriesParameter,
    Unknown,
    unknowns_of,
)
from hpcstencil.config.settings import DiagnosticsConfig
from hpcstencil.numerics.integrators import memory_of
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.misfit import Misfit, ReceiverSum
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.receivers import PROBED, Receivers
from hpcstencil.symbolic.differentiate import ZERO
from hpcstencil.symbolic.expressions import (
    Field,
    Node,
    Parameter,
    Pointwise,
    Reduction,
    Samples,
    samples_field,
    shared,
    walk,
)
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS


@dataclass(frozen=True)
class Tangent:
    """The tangent ``problem`` along directions of the ``unknowns``.

    Its parameters tangent.p are 0, and samples of 0. Its ``initial`` has the trees of (∂u(0)/∂p) ṗ by the name of their field,
    with the numbers and arrays of the direction as above. Its `Problem.derived` has, by the key EXTREMA, a tree for each field
    CELLS, which is largest in the cells where the field is 1.
    """

    unknowns: tuple[Unknown, ...]
    problem: Problem

    def along(self, one: Unknown) -> str:
        """The name of the field or parameter that holds the direction of an unknown."""
        return TANGENT + (one.values_field if isinstance(one, CellValues) else one.name)

    def on(self, topology: Topology) -> Tangent:
        """The same on the blocks of the problem."""
        config = self.problem.config
        blocks = replace(config.decomposition, processes=topology.processes, devices=topology.devices)
        return replace(self, problem=replace(self.problem, config=replace(config, decomposition=blocks)))


def tangents_of(problem: Problem, expressed: Iterable[str], keys: Sequence[str]) -> tuple[Tangent, ...]:
    """The tangents of the members of an ensemble, or of a single run, along directions of ``keys``, names as in gradient.of.

    ``expressed`` are the fields whose initial values come from the expressions of the problem. Raises InputError for unknown
    names, and for what has no derivative yet.
    """
    expressed = frozenset(expressed)
    first, *others = single_runs(problem)
    found = [tangent_of(first, expressed, keys)]
    for member in others:
        if any(member.initial.get(name) != first.initial.get(name) for name in expressed):
            found.append(tangent_of(member, expressed, keys))
        else:
            shared_trees = found[0].problem
            parameters = {**shared_trees.parameters, **member.parameters}
            own = replace(shared_trees, parameters=parameters, bounds=member.bounds)
            found.append(replace(found[0], problem=own))
    return tuple(found)


def tangent_of(problem: Problem, expressed: Iterable[str], keys: Sequence[str]) -> Tangent:
    """The tangent of a single run or a member. The arguments and errors are those of `tangents_of`."""
    refuse_unavailable(problem)
    unknowns = unknowns_of(problem, keys, "direction")
    derivatives = _Derivatives(problem, unknowns)
    slopes, at_start = derivatives.of_rates("", problem.trees), derivatives.at_start(expressed)
    of_reductions, extrema = derivatives.of_reductions()
    misfit, of_sums = derivatives.of_receivers()
    objective = derivatives.of_objective({**of_reductions, **of_sums})
    receivers = _receivers(problem)
    expressions = {} if misfit is None else misfit.expressions
    probed = {receivers[table].field: tree for table, tree in expressions.items()}
    added = (*slopes, *memory_of(problem.method, tuple(slopes)), *derivatives.constant)
    apart = derivatives.of_rates(OF_APART, problem.multistep_damping)
    wanted = replace(problem.config.gradient, of=tuple(keys), tape_precision="full")
    extended = replace(
        problem,
        config=replace(problem.config, diagnostics=DiagnosticsConfig(), gradient=wanted),
        fields=(*problem.fields, *added),
        memory=(*problem.memory, *added),
        trees=shared({**problem.slopes, **slopes}),
        multistep_damping={**problem.multistep_damping, **apart},
        damped={},
        parameters={**problem.parameters, **derivatives.zeros},
        initial={**problem.initial, **at_start},
        faces={**problem.faces, **derivatives.places.added},
        diagnostics=dict.fromkeys((OBJECTIVE,), *objective.values()) if objective else {},
        objective=objective,
        derived={key: trees for key, trees in ((PROBED, probed), (EXTREMA, extrema)) if trees},
        receivers=receivers,
        misfit=misfit,
        measured={},
        groups={**problem.groups, **{TANGENT + name: group for name, group in problem.groups.items()}},
        positions={**problem.positions, **{TANGENT + name: place for name, place in problem.positions.items()}},
    )
    return Tangent(unknowns, extended)


def _directions(problem: Problem, unknowns: Iterable[Unknown]) -> tuple[dict[Node, Node], dict[str, Any]]:
    """The directions of the unknowns that are parameters, by their nodes, and values of 0 of those that are parameters
    themselves, by name."""
    given, zeros = dict[Node, Node](), dict[str, Any]()
    for one in unknowns:
        match one:
            case NumberParameter():
                given[one.node], zeros[TANGENT + one.name] = Parameter(TANGENT + one.name), 0.0
            case ArrayParameter():
                given[one.node] = Field(TANGENT + one.values_field)
            case SeriesParameter():
                series = one.node_in(problem)
                samples = Samples(TANGENT + one.name, len(series.values))
                given[series], zeros[samples.name] = replace(series, values=samples), np.zeros(len(samples))
    return given, zeros


class _Derivatives:
    """The derivatives of the trees of a problem along directions of the ``unknowns`` and of all fields.

    ``given`` and ``zeros`` are as in `_directions`. ``places`` collects the conditions of new operands. The methods raise the
    InputError of `tangent`.
    """

    def __init__(self, problem: Problem, unknowns: Iterable[Unknown]) -> None:
        self.problem, self.space = problem, problem.discretization
        parts = (part for tree in problem.objective.values() for part in walk(tree))
        self.reductions = [part for part in parts if isinstance(part, Reduction)]
        operands = {f"operand {n}": part.operand for n, part in enumerate(self.reductions)}
        apart = {OF_APART + name: tree for name, tree in problem.multistep_damping.items()}
        recorded = {} if problem.misfit is None else problem.misfit.recorded
        at_receivers = {SAMPLES_SEED + table: tree for table, tree in recorded.items()}
        self.plain = plain_trees(problem, {**problem.slopes, **apart, **operands, **at_receivers})
        self.places = operands_of(problem, self.plain.values())
        self.given, self.zeros = _directions(problem, unknowns)
        self.along: dict[Node, Node] = {**self.given, **{Field(name): Field(TANGENT + name) for name in problem.trees}}
        self.any_field = next(iter(problem.trees))

    @property
    def constant(self) -> list[str]:
        """The names of the fields that hold directions of arrays."""
        return [node.name for node in self.given.values() if isinstance(node, Field)]

    def of(self, name: str, field: str) -> Node:
        """The derivative of the tree with this ``name`` in ``plain``. ``field`` is known where it is evaluated."""
        return tangent(self.plain[name], self.along, self.places, self.space, Field(TANGENT + field))

    def of_rates(self, prefix: str, names: Iterable[str]) -> dict[str, Node]:
        """The derivatives of right-hand sides of the fields with these names."""
        return {TANGENT + name: self.of(prefix + name, name) for name in names}

    def at_start(self, expressed: Iterable[str]) -> dict[str, Node]:
        """The derivatives of the initial expressions of the ``expressed`` fields, where they are not 0."""
        problem = self.problem
        found = {
            TANGENT + name: tangent(problem.initial[name], self.given, self.places, self.space)
            for name in expressed
            if name in problem.initial and name in problem.trees
        }
        return {name: tree for name, tree in found.items() if tree != ZERO}

    def of_reductions(self) -> tuple[dict[Node, Node], dict[str, Node]]:
        """The derivatives of the reductions in the objective, and the trees by the key EXTREMA of the tangent problem."""
        found, extrema = dict[Node, Node](), dict[str, Node]()
        for n, part in enumerate(self.reductions):
            slope = self.of(f"operand {n}", self.any_field)
            if REDUCTIONS[part.kind].extreme:
                cells = Field(CELLS + str(n))
                extrema[cells.name] = largest_at(part.kind, self.plain[f"operand {n}"])
                found[part] = _mean_over(cells, slope)
            else:
                found[part] = replace(part, operand=slope)
        return found, extrema

    def of_receivers(self) -> tuple[Misfit | None, dict[Node, Node]]:
        """The misfit of the tangent problem, and the derivatives of the sums over receivers in the objective."""
        misfit = self.problem.misfit
        if misfit is None:
            return None, {}
        recorded = {table: self.of(SAMPLES_SEED + table, self.any_field) for table in misfit.recorded}
        return _of_receivers(misfit, recorded, self.of_numbers)

    def of_numbers(self, tree: Node, others: Mapping[Node, Node]) -> Node:
        """The derivative of a tree of numbers, given those of its leaves that are not unknowns."""
        return tangent(tree, {**self.given, **others}, self.places, self.space)

    def of_objective(self, others: Mapping[Node, Node]) -> dict[str, Node]:
        """The derivative of the objective by its name, given those of its reductions and sums."""
        return {name: self.of_numbers(tree, others) for name, tree in self.problem.objective.items()}


def _receivers(problem: Problem) -> dict[str, Receivers]:
    """The receivers that the objective sums over, and those that record the derivatives at the same places, by table."""
    return {
        prefix + table: replace(each, field=prefix + each.field)
        for table, each in problem.summed_receivers.items()
        for prefix in ("", TANGENT)
    }


def _of_receivers(
    misfit: Misfit, recorded: Mapping[str, Node], differentiate: Callable[[Node, Mapping[Node, Node]], Node]
) -> tuple[Misfit, dict[Node, Node]]:
    """Return (a misfit together with the derivatives of its sums, these by the node of the sum).

    ``recorded`` are the derivatives of what the receivers record, by table. ``differentiate`` returns the derivative of a tree,
    given those of its leaves.
    """
    sums, of_sums = list[ReceiverSum](), dict[Node, Node]()
    for each in misfit.sums:
        along: dict[Node, Node] = {samples_field(table): samples_field(TANGENT + table) for table in each.tables}
        tables = (*each.tables, *(TANGENT + table for table in each.tables))
        of_sums[each.node] = node = Parameter(TANGENT + each.node.name)
        sums.append(ReceiverSum(node, tables, differentiate(each.term, along)))
    also = {TANGENT + table: tree for table, tree in recorded.items()}
    return Misfit((*misfit.sums, *sums), misfit.data, {**misfit.recorded, **also}), of_sums


def _mean_over(cells: Field, tree: Node) -> Node:
    """The mean of a tree over the cells in which the field ``cells`` is 1, whatever its values are in others."""
    return Reduction("mean", Pointwise("where", (cells > 0.0, tree, ZERO))) / Reduction("mean", cells)
