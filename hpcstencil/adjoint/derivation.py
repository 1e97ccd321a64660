"""The derivation of the adjoint of a problem (`Adjoint`) from its trees.

`adjoint_of` takes the derivatives of the right-hand sides, of the objective and of what receivers record, with respect to
fields, parameters and time series, and puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from hpcstencil.adjoint.differentiate import Sum, tangent, transposed
from hpcstencil.adjoint.hat_functions import HatFunctions
from hpcstencil.adjoint.names import (
    ADJOINT,
    END,
    EXTREMA,
    GRADIENT,
    OBJECTIVE,
    OF_APART,
    PRODUCTS,
    REMEMBERED,
    SAMPLED,
    SAMPLES_SEED,
    SEED,
    START,
    TANGENT,
    TRANSPOSED,
)
from hpcstencil.adjoint.operands import Faces, Operands
from hpcstencil.adjoint.problem import (
    Adjoint,
    largest_at,
    operands_of,
    plain_trees,
    refuse_unavailable,
    seeds_in,
)
from hpcstencil.adjoint.stages import TwoStepPart, one_by_one
from hpcstencil.adjoint.unknowns import (
    ArrayParameter,
    InitialValues,
    NumberParameter,
    SeriesParameter,
    Unknown,
    unknowns_of,
)
from hpcstencil.config.settings import DiagnosticsConfig
from hpcstencil.numerics.integrators import INTEGRATORS, MEMORY, Method
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.solid_mask import in_fluid
from hpcstencil.problem.staggered_terms import with_lower_walls
from hpcstencil.symbolic.differentiate import ONE, ZERO, times
from hpcstencil.symbolic.expressions import (
    Field,
    Node,
    Noise,
    Pointwise,
    Reduction,
    StepSize,
    at_time,
    samples_field,
    shared,
    total,
    walk,
)
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS
from hpcstencil.symbolic.stencil_reach import Discretization
from hpcstencil.symbolic.zero_regions import where_adjoint_matters
from hpcstencil.validation.errors import InputError

# (trees, seeds, prefix of names) -> the derivatives of Σ seeds·trees by name
Derivatives = Callable[[Mapping[str, Node], Mapping[str, Node], str], dict[str, Node]]


def adjoint_of(problem: Problem, expressed: Iterable[str], verified: bool = False) -> Adjoint:
    """Derive the adjoint of a problem, for the unknowns in [gradient].

    ``expressed`` are the fields whose initial values come from the expressions of the problem. If the adjoint is to be
    ``verified``, the products of the dot-product test are derived too. Raises InputError for features without gradients, see
    `refuse_unavailable`, and without an objective.
    """
    if not problem.objective:
        raise InputError(
            "objective: expected an expression of which to take the gradient, but the table is missing; write for example "
            '[objective] misfit = "integral(u**2)"'
        )
    refuse_unavailable(problem)
    derivation = Derivation(problem, unknowns_of(problem))
    trees, by_group, two_step, remembered = derivation.reverse_steps()
    hats = derivation.hats(trees, by_group, two_step)
    end, sampled = derivation.at_end(), derivation.of_samples()
    trees, end, *parts = with_shared_parts(trees, end, *by_group.values(), *two_step.values())
    by_group = dict(zip(by_group, parts, strict=False))
    two_step = dict(zip(two_step, parts[len(by_group) :], strict=True))
    derived = {
        REMEMBERED: remembered,
        START: derivation.at_start({*expressed}),
        SAMPLED: sampled,
        EXTREMA: derivation.extrema(),
        PRODUCTS: derivation.products() if verified else {},
    }
    adjoint = adjoint_problem(
        problem,
        trees,
        {**problem.faces, **derivation.places.added},
        {OBJECTIVE: derivation.objective, **{f"{OBJECTIVE} {n}": r for n, r in enumerate(derivation.reductions)}},
        {END: end, **{key: found for key, found in derived.items() if found}},
    )
    sum_slopes, sample_slopes, number_slopes = derivation.of_receiver_sums()
    return Adjoint(
        unknowns=derivation.unknowns,
        problem=adjoint,
        reductions=derivation.reductions,
        slopes=tuple(derivation.of_objective(part) for part in derivation.reductions),
        direct={one.name: derivation.of_objective(one.node) for one in derivation.numbers},
        forward=problem,
        sum_slopes=sum_slopes,
        sample_slopes=sample_slopes,
        number_slopes=number_slopes,
        group_parts=by_group,
        two_step_parts=two_step,
        hats=hats,
        direct_series=not_zero({key: derivation.of_objective(node) for key, node in derivation.series.items()}),
        layered=tuple(ADJOINT + name for name in derivation.layers),
    )


class Derivation:
    """The trees of a problem, and their derivatives with respect to its fields and the ``unknowns``.

    ``rates`` are the right-hand sides, ``apart`` the part of them that a two-step method treats apart, ``recorded`` what
    receivers record, and ``operands`` those of the ``reductions`` of the objective. ``layers`` are absorbing layers, outside
    which memories have no effect.
    """

    def __init__(self, problem: Problem, unknowns: tuple[Unknown, ...]) -> None:
        self.problem, self.unknowns, self.space = problem, unknowns, problem.discretization
        self.parameters = [one for one in unknowns if isinstance(one, NumberParameter | ArrayParameter)]
        self.numbers = [one for one in self.parameters if isinstance(one, NumberParameter)]
        self.series = {one.key: one.node_in(problem) for one in unknowns if isinstance(one, SeriesParameter)}
        # The derivatives with respect to the values of time series, by name.
        self.prefixes = {GRADIENT + one.name: self.series[one.key] for one in unknowns if one.key in self.series}
        self.fields = tuple(problem.trees)
        self.adjoints = {name: Field(ADJOINT + name) for name in self.fields}
        ((_, self.objective),) = problem.objective.items()
        self.reductions = tuple(dict.fromkeys(part for part in walk(self.objective) if isinstance(part, Reduction)))
        misfit = problem.misfit
        plain = plain_trees(problem, {
            **problem.slopes,
            **{OF_APART + name: tree for name, tree in problem.multistep_damping.items()},
            **{SEED + str(n): r.operand for n, r in enumerate(self.reductions)},
            **({} if misfit is None else {SAMPLES_SEED + table: tree for table, tree in misfit.recorded.items()}),
        })  # fmt: skip
        self.rates = {name: plain[name] for name in self.fields}
        self.apart = {name: plain[OF_APART + name] for name in problem.multistep_damping}
        self.recorded = {name: tree for name, tree in plain.items() if name.startswith(SAMPLES_SEED)}
        self.operands = {name: tree for name, tree in plain.items() if name.startswith(SEED)}
        leaves = (*map(Field, self.fields), *(one.node for one in self.parameters), *self.series.values())
        self.places = operands_of(problem, plain.values(), leaves)
        self.layers = layers_of(problem, self.rates)

    def derivatives(self, trees: Mapping[str, Node], seeds: Mapping[str, Node], prefix: str) -> dict[str, Node]:
        """Return the derivatives of Σ seeds·trees by name: of fields (with this prefix), parameters, and values of time series.

        They are 0 in solid cells, where the trees may have no derivatives. Derivatives with respect to arrays are the
        exception: a flux through the surface depends on the values of an array on both sides.
        """
        by_leaf = transposed(trees, seeds, self.places, self.space)

        def of_number(leaf: Node) -> Node:
            terms = Sum()
            terms.add(by_leaf.get(leaf, ZERO))
            for name, tree in trees.items():
                field = next(part for part in walk(seeds[name]) if isinstance(part, Field))
                terms.add(times(seeds[name], tangent(tree, {leaf: ONE}, self.places, self.space, field)))
            return terms.tree

        found = {prefix + name: by_leaf.get(Field(name), ZERO) for name in self.fields}
        for one in self.parameters:
            is_number = isinstance(one, NumberParameter)
            found[one.gradient_field] = of_number(one.node) if is_number else by_leaf.get(one.node, ZERO)
        for name, node in self.prefixes.items():
            found[name] = of_number(node)
        return {name: tree if tree == ZERO else self._beside_solids(name, tree) for name, tree in found.items()}

    def _beside_solids(self, name: str, tree: Node) -> Node:
        if seeds_in(tree):  # 0 in solid cells, where receivers have the weight 0
            return tree
        if any(isinstance(one, ArrayParameter) and one.gradient_field == name for one in self.parameters):
            return finite_in_solid(self.problem, tree)
        return in_fluid(self.problem.mask, tree)

    def _added(self, found: Mapping[str, Node]) -> dict[str, Node]:
        """Return the sums of fields and what is added to them at t = 0.

        There are no fields for the values of time series.
        """
        return {name: tree if name in self.prefixes else Field(name) + tree for name, tree in not_zero(found).items()}

    # ---- steps -------------------------------------------------------------------------------------------------------

    def reverse_steps(
        self,
    ) -> tuple[dict[str, Node], dict[int, dict[str, Node]], dict[TwoStepPart, dict[str, Node]], dict[str, Node]]:
        """Return the trees of the adjoint problem, `Adjoint.group_parts`, `Adjoint.two_step_parts`, and REMEMBERED."""
        trees = cut(self.derivatives(self.rates, self.adjoints, TRANSPOSED), self.layers, TRANSPOSED)
        groups = parts_of_groups(self.problem, self.rates, self.derivatives)
        by_group = {group: cut(part, self.layers, ADJOINT) for group, part in groups.items()}
        if not self.problem.method.multistep:
            return trees, by_group, {}, {}
        two_step, first = parts_of_two_steps(self.problem.method, self.rates, self.apart, self.derivatives)
        return trees, by_group, two_step, self._added(first)

    def hats(
        self,
        trees: Mapping[str, Node],
        by_group: Mapping[int, Mapping[str, Node]],
        two_step: Mapping[TwoStepPart, Mapping[str, Node]],
    ) -> dict[str, HatFunctions]:
        """Return the hat functions of the time series, by key. The arguments are results of `reverse_steps`."""
        made = {}
        for one in self.unknowns:
            if one.key in self.series:
                prefix = GRADIENT + one.name
                nodes = nodes_of(self.problem.method, prefix, trees, by_group, two_step)
                made[one.key] = HatFunctions(prefix, self.series[one.key], nodes)
        return made

    def products(self) -> dict[str, Node]:
        """Return the terms of the dot-product test."""
        found = products_of(self.rates, self.places, self.space, self.layers)
        return {name: in_fluid(self.problem.mask, tree) for name, tree in found.items()}

    # ---- what is added before, between and after steps ---------------------------------------------------------------

    def at_end(self) -> dict[str, Node]:
        """Return the values of the adjoint fields at the end of the run that are not 0."""
        return not_zero(self.derivatives(self.operands, {name: Field(name) for name in self.operands}, ADJOINT))

    def of_samples(self) -> dict[str, Node]:
        """Return what samples add to the fields on which they depend."""
        return not_zero(self.derivatives(self.recorded, {name: Field(name) for name in self.recorded}, ADJOINT))

    def at_start(self, expressed: set[str]) -> dict[str, Node]:
        """Return what the initial expressions, those of the fields ``expressed``, add to the derivatives at t = 0.

        Raises InputError if a derivative contains noise.
        """
        problem, given = self.problem, self.problem.initial
        initial = {name: given[name] for name in self.fields if name in given and name in expressed}
        walls = {name: with_lower_walls(problem, name, ZERO, lambda value: at_time(value, 0.0)) for name in self.fields}
        initial |= {name: tree for name, tree in not_zero(walls).items() if name not in expressed}
        found = self.derivatives(initial, self.adjoints, "") if initial else {}
        wanted = [one.gradient_field for one in self.parameters]
        start = self._added({name: found[name] for name in wanted if name in found})
        refuse_noise(start)
        for one in self.unknowns:  # boundary conditions give the values on walls, whatever the initial values are
            if isinstance(one, InitialValues) and walls[one.name] != ZERO:
                gradient = Field(one.gradient_field)
                start[gradient.name] = with_lower_walls(problem, one.name, gradient, lambda value: ZERO)
        return start

    def extrema(self) -> dict[str, Node]:
        """Return EXTREMA: for minima and maxima, a tree that is largest in the cells that have their value."""
        names = {SEED + str(n): part.kind for n, part in enumerate(self.reductions) if REDUCTIONS[part.kind].extreme}
        return {name: largest_at(kind, self.operands[name]) for name, kind in names.items()}

    # ---- the objective -----------------------------------------------------------------------------------------------

    def of_objective(self, leaf: Node) -> Node:
        """Return the derivative of the objective with respect to a node outside reductions."""
        return self._outside(self.objective, leaf)

    def _outside(self, tree: Node, leaf: Node) -> Node:
        """Return the derivative of a tree without operators outside reductions."""
        return tangent(tree, {leaf: ONE}, self.places, self.space)

    def of_receiver_sums(
        self,
    ) -> tuple[tuple[Node, ...], tuple[Mapping[str, Node], ...], dict[str, tuple[Node, ...]]]:
        """Return `Adjoint.sum_slopes`, `Adjoint.sample_slopes` and `Adjoint.number_slopes`."""
        sums = () if self.problem.misfit is None else self.problem.misfit.sums
        of_sums = tuple(self.of_objective(each.node) for each in sums)
        of_terms = tuple(
            {table: self._outside(each.term, samples_field(table)) for table in each.tables} for each in sums
        )
        of_numbers = {one.name: tuple(self._outside(each.term, one.node) for each in sums) for one in self.numbers}
        of_numbers = {name: trees for name, trees in of_numbers.items() if any(tree != ZERO for tree in trees)}
        return of_sums, of_terms, of_numbers


def not_zero(trees: Mapping[str, Node]) -> dict[str, Node]:
    """The trees that are not 0."""
    return {name: tree for name, tree in trees.items() if tree != ZERO}


def finite_in_solid(problem: Problem, tree: Node) -> Node:
    """A tree that is 0 in those solid cells in which it would be NaN."""
    if problem.mask is None:
        return tree
    is_number = Pointwise("where", (problem.mask.cells(), Pointwise("equal", (tree, tree)), ONE))
    return Pointwise("where", (is_number, tree, ZERO))


def with_shared_parts(*tables: Mapping[str, Node]) -> list[dict[str, Node]]:
    """The tables of trees, in which equal parts of all trees are the same node."""
    found = shared({f"{number} {name}": tree for number, table in enumerate(tables) for name, tree in table.items()})
    return [{name: found[f"{number} {name}"] for name in table} for number, table in enumerate(tables)]


def layers_of(problem: Problem, rates: Mapping[str, Node]) -> dict[str, Node]:
    """For memories of absorbing layers, a function that is 1 where their adjoints have an effect, and 0 elsewhere."""
    found = {name: where_adjoint_matters(name, rates[name]) for name in problem.begin_at_zero if name in rates}
    if problem.method.multistep:  # remembers slopes in other fields
        return {}
    return {name: inside for name, inside in found.items() if inside is not None}


def cut(trees: Mapping[str, Node], layers: Mapping[str, Node], prefix: str) -> dict[str, Node]:
    """The trees, those of memories of ``layers`` cut to these. ``prefix`` begins the names of the trees."""
    of_layers = {prefix + field: inside for field, inside in layers.items()}
    return {name: times(of_layers.get(name, ONE), tree) for name, tree in trees.items()}


def products_of(
    rates: Mapping[str, Node], places: Operands, space: Discretization, layers: Mapping[str, Node]
) -> dict[str, Node]:
    """The terms of the dot-product test for the right-hand sides ``rates``: of λ·(∂f/∂u v) and of (transposed field)·v, with v
    cut to ``layers``."""
    along: dict[Node, Node] = {Field(name): times(layers.get(name, ONE), Field(TANGENT + name)) for name in rates}
    adjoints = {name: Field(ADJOINT + name) for name in rates}
    return {
        "tangent": total(
            [adjoints[name] * tangent(rate, along, places, space, adjoints[name]) for name, rate in rates.items()]
        ),
        "adjoint": total([Field(TRANSPOSED + name) * Field(TANGENT + name) for name in rates]),
    }


def adjoint_problem(
    problem: Problem,
    trees: Mapping[str, Node],
    faces: Faces,
    diagnostics: Mapping[str, Node],
    derived: Mapping[str, Mapping[str, Node]],
) -> Problem:
    """The problem that adds these ``trees`` to its fields; those of ``problem`` and their adjoint.u are constant."""
    positions = {prefix + name: place for name, place in problem.positions.items() for prefix in (ADJOINT, TRANSPOSED)}
    fields = (*trees, *problem.fields, *(ADJOINT + name for name in problem.trees))
    time = problem.config.time
    if time.dt is None:  # a reverse step gets the size of the step that it reverses
        time = replace(time, dt=1.0, cfl=None, tolerance=None)
    return replace(
        problem,
        config=replace(problem.config, diagnostics=DiagnosticsConfig(), time=time),
        fields=fields,
        memory=fields,
        begin_at_zero=(),
        trees=trees,
        initial={},
        faces=faces,
        diagnostics=diagnostics,
        derived=derived,
        method=INTEGRATORS["euler"],
        groups={},
        damped={},
        multistep_damping={},
        measured={},
        positions={**problem.positions, **positions},
        receivers={},
        misfit=None,
    )


def parts_of_groups(
    problem: Problem, rates: Mapping[str, Node], derivatives: Derivatives
) -> dict[int, dict[str, Node]]:
    """The parts of the transposed right-hand sides that come from the adjoint.u of each group, if the method moves one group
    at a time; otherwise empty. ``derivatives`` returns those of Σ seeds·trees."""
    parts = dict[int, dict[str, Node]]()
    for group in sorted(set(problem.groups.values())) if one_by_one(problem.method) else ():
        own = {name: tree for name, tree in rates.items() if problem.groups[name] == group}
        found = derivatives(own, {name: Field(ADJOINT + name) for name in own}, ADJOINT)
        parts[group] = not_zero(found)
    return parts


def parts_of_two_steps(
    method: Method, rates: Mapping[str, Node], apart: Mapping[str, Node], derivatives: Derivatives
) -> tuple[dict[TwoStepPart, dict[str, Node]], dict[str, Node]]:
    """The parts of `stages.reversed_two_step`, and what the slopes remembered first add to the derivatives at t = 0.

    ``rates`` and ``apart`` are the right-hand sides f and g, and ``derivatives`` returns those of Σ seeds·trees.
    """
    adjoints = {name: Field(ADJOINT + name) for name in rates}
    before = {name: Field(ADJOINT + name + MEMORY) for name in rates}
    ((_, b),), r = method.stages[0].slopes, method.stages[0].remembered
    seeds = {name: b * adjoints[name] + before[name] * (ONE / StepSize()) for name in rates}  # k̄ / dt
    memory = {each.name: r * adjoints[name] for name, each in before.items()}
    parts = {
        TwoStepPart.WHOLE: derivatives(rates, seeds, ADJOINT) | memory,
        TwoStepPart.APART: derivatives(apart, adjoints, ADJOINT),
        TwoStepPart.STEP: {name: b * tree + r * Field(name + MEMORY) for name, tree in rates.items()},
    }
    return parts, derivatives(rates, before, ADJOINT)


def nodes_of(
    method: Method,
    prefix: str,
    trees: Mapping[str, Node],
    by_group: Mapping[int, Mapping[str, Node]],
    two_step: Mapping[TwoStepPart, Mapping[str, Node]],
) -> dict[int, float]:
    """The stage values at which the time derivatives depend on the time series of this name: their nodes by number.

    ``trees`` are those of the adjoint problem, and the others its parts as in `Adjoint`.
    """
    used = sorted({j for stage in method.stages for j, _ in stage.slopes})
    if method.multistep:
        parts = {j: two_step[TwoStepPart.APART if j else TwoStepPart.WHOLE] for j in used}
    elif by_group:
        parts = {j: by_group.get(method.stages[j].group or 0, {}) for j in used}
    else:
        parts = dict.fromkeys(used, trees)
    return {j: method.nodes[j] for j in used if parts[j].get(prefix, ZERO) != ZERO}


def refuse_noise(trees: Mapping[str, Node]) -> None:
    """Raise InputError if a derivative of an initial expression contains noise, which only the initial state has."""
    if any(Noise in tree.kinds for tree in trees.values()):
        raise InputError(
            "gradient.of: not available yet for a parameter that multiplies noise() in [initial]; write a number there"
        )
