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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hpcstencil.adjoint.differentiate import Sum, tangent, transposed
from hpcstencil.adjoint.operands import Operands
from hpcstencil.adjoint.operators import STAGGERED
from hpcstencil.adjoint.stages import cotangent, reversed_steps, separate, sums
from hpcstencil.config.settings import DiagnosticsConfig
from hpcstencil.numerics.integrators import INTEGRATORS
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import most_steps
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.differentiate import ONE, ZERO, times
from hpcstencil.symbolic.expressions import (
    Field,
    Halfway,
    Node,
    Noise,
    Parameter,
    Reduction,
    Series,
    Time,
    bottom_up,
    parameter_field,
    rebuilt,
    shared,
    total,
    walk,
)
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, shown, unknown

ADJOINT, TRANSPOSED, GRADIENT, TANGENT = "adjoint.", "transposed.", "gradient.", "tangent."
SEED = "objective seed "  # and the number of a reduction: the derivative of the objective with respect to its terms
END, START, PRODUCTS = "end", "start", "products"  # keys of `Problem.derived`
RECORDED, SAMPLED = "recorded", "sampled"  # two more
SAMPLES_SEED = "objective seed of samples"  # the derivative of the objective with respect to what receivers record
OBJECTIVE = "objective"


@dataclass(frozen=True)
class Unknown:
    """One entry of gradient.of: the initial values of the field ``name``, or the parameter ``name`` of the equation.

    ``key`` is the entry. ``kind`` is "initial", "number" or "array".
    """

    key: str
    kind: str
    name: str

    @property
    def node(self) -> Node:
        """The parameter as a node of trees."""
        return Parameter(self.name) if self.kind == "number" else parameter_field(self.name)

    @property
    def field(self) -> str:
        """The field of the adjoint problem that holds the gradient per cell at the end of the reverse sweep."""
        return (ADJOINT if self.kind == "initial" else GRADIENT) + self.name


@dataclass(frozen=True)
class Adjoint:
    """The adjoint of a problem with an objective.

    ``problem`` is the adjoint problem. Its diagnostics are the objective, and each of the ``reductions`` by number. Under END,
    its `Problem.derived` has the values of those fields adjoint.u and gradient.p that are not 0 at the end of the run, from the
    state and the fields SEED; under START, what gradient.p gains from the initial expressions; under PRODUCTS, if it is
    verified, the terms of λ·(∂f/∂u v) and (transposed field)·v, with v in the fields tangent.u. If the objective has sums over
    receivers, it has what they record under RECORDED, unless that is a field, and under SAMPLED what a sample adds to those
    fields on which it depends, from the state and the field SAMPLES_SEED.

    ``forward`` is the problem itself. ``reductions`` are the reductions of the objective, and ``slopes`` its derivatives with
    respect to each of them, as trees of all. ``direct`` are the derivatives of the objective with respect to parameters that
    stand outside reductions, by name. ``sample_slope`` is the derivative of `Misfit.term` with respect to the sample, if there
    is a misfit.
    """

    unknowns: tuple[Unknown, ...]
    problem: Problem
    reductions: tuple[Reduction, ...]
    slopes: tuple[Node, ...]
    direct: Mapping[str, Node]
    forward: Problem
    sample_slope: Node = ZERO

    @cached_property
    def rates(self) -> dict[str, Node]:
        """What a reverse step adds up, by the fields adjoint.u and gradient.p: the transposed right-hand sides."""
        trees = self.problem.trees
        fields = {ADJOINT + name: trees[TRANSPOSED + name] for name in self.forward.trees}
        return fields | {name: tree for name, tree in trees.items() if name.startswith(GRADIENT)}

    @cached_property
    def read(self) -> set[Node]:
        """The nodes on whose values a reverse step depends, boundary conditions included."""
        parts = {part for tree in self.rates.values() for part in walk(tree)}
        values = [v for (operand, _, _), face in self.problem.faces.items() if operand in parts for v in face.values]
        return parts | {part for value in values for part in walk(value)}

    @property
    def needs_states(self) -> bool:
        """Whether reverse steps need the fields before the steps: not if the equation is linear, only initial values are
        asked for, and the objective is taken at the end."""
        return self.forward.adds_every is not None or any(Field(name) in self.read for name in self.forward.trees)

    @property
    def follows_time(self) -> bool:
        """Whether reverse steps depend on the time."""
        forward = self.forward
        values = [value for face in forward.faces.values() for value in face.values]
        of_states = (part for tree in (*forward.trees.values(), *values) for part in walk(tree))
        parts = (*self.read, *of_states) if self.needs_states else self.read
        return any(isinstance(part, Time | Series) for part in parts)

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups of the fields, (0,) if the method is not partitioned."""
        return tuple(sorted(set(self.forward.groups.values()))) or (0,)

    @cached_property
    def movers(self) -> dict[str, set[int]]:
        """The groups of those fields u whose adjoint.u moves a field of a reverse step, by that field."""
        groups = self.forward.groups
        owners = {Field(ADJOINT + name): groups.get(name, 0) for name in self.forward.trees}
        return {name: {owners[part] for part in walk(tree) if part in owners} for name, tree in self.rates.items()}

    def reversing(self, topology: Topology, steps: int = 1) -> Problem:
        """The problem on these blocks whose step reverses ``steps`` steps of the equation, with their size as dt.

        With one step, it has the diagnostics and the derived values of ``problem``. If `needs_states` is false, it has no
        fields of the equation that change.
        """
        forward, problem, method = self.forward, self.problem, self.forward.method
        states = forward.trees if self.needs_states else {}
        apart = separate(method) and all(len(found) <= 1 for found in self.movers.values())
        groups = {name: forward.groups.get(name, 0) for name in states}
        for name in self.rates:
            if apart:
                groups[name] = cotangent(next(iter(self.movers[name]), 0))
            elif name.startswith(GRADIENT):
                groups[name] = sums(method)
            else:
                groups[name] = cotangent(forward.groups.get(name.removeprefix(ADJOINT), 0))
        kept = [name for name in forward.fields if name not in forward.trees]
        fields = (*states, *self.rates, *kept)
        made = replace(
            problem,
            fields=fields,
            memory=fields,
            trees={**states, **self.rates},
            method=reversed_steps(method, self.groups, steps, bool(states), apart),
            groups=groups,
        )
        if steps > 1:
            made = replace(made, diagnostics={}, derived={})
        blocks = replace(
            made.config.decomposition,
            processes=topology.processes,
            devices=topology.devices,
            steps_per_exchange="auto" if not states or not most_steps(made, topology) else 1,
        )
        return replace(made, config=replace(made.config, decomposition=blocks))


def adjoint_of(problem: Problem, expressed: Iterable[str], verified: bool = False) -> Adjoint:
    """Derive the adjoint of a problem, for the unknowns in [gradient].

    ``expressed`` are the fields whose initial values come from the expressions of the problem. If the adjoint is to be
    ``verified``, the products of the dot-product test are derived too. Raises InputError for what
    has no gradient yet, see `refuse_unavailable`, and without an objective.
    """
    if not problem.objective:
        raise InputError(
            "objective: expected an expression of which to take the gradient, but the table is missing; write for example "
            '[objective] misfit = "integral(u**2)"'
        )
    refuse_unavailable(problem)
    unknowns = unknowns_of(problem)
    parameters = [one for one in unknowns if one.kind != "initial"]
    fields = tuple(problem.trees)
    ((_, objective),) = problem.objective.items()
    reductions = tuple(dict.fromkeys(part for part in walk(objective) if isinstance(part, Reduction)))
    refuse_extrema(problem, reductions)
    initial = {name: problem.initial[name] for name in fields if name in problem.initial and name in set(expressed)}
    misfit = problem.misfit
    plain = without_beyond({
        **problem.trees,
        **{SEED + str(n): r.operand for n, r in enumerate(reductions)},
        **({} if misfit is None else {SAMPLES_SEED: misfit.recorded}),
    })  # fmt: skip
    rates = {name: plain[name] for name in fields}
    recorded = {name: plain[name] for name in plain if name == SAMPLES_SEED}
    operands = {name: tree for name, tree in plain.items() if name not in rates and name not in recorded}
    space, grid = problem.discretization, problem.config.grid
    places = Operands(problem.faces, list(plain.values()), problem.config.boundary.periodic, grid.spacing)
    leaves = [*(Field(name) for name in fields), *(one.node for one in parameters if one.kind == "array")]

    def derivatives(trees: Mapping[str, Node], seeds: Mapping[str, Node], prefix: str) -> dict[str, Node]:
        """The derivatives of Σ seeds·trees: of fields, named with this prefix, and of parameters."""
        by_leaf = transposed(trees, seeds, leaves, places, space)
        found = {prefix + name: by_leaf.get(Field(name), ZERO) for name in fields}
        for one in parameters:
            if one.kind == "array":
                found[one.field] = by_leaf.get(one.node, ZERO)
                continue
            terms = Sum()
            for name, tree in trees.items():
                terms.add(times(seeds[name], tangent(tree, {one.node: ONE}, places, space)))
            found[one.field] = terms.tree
        return found

    adjoints = {name: Field(ADJOINT + name) for name in fields}
    trees = derivatives(rates, adjoints, TRANSPOSED)
    end, sampled = (
        derivatives(given, {name: Field(name) for name in given}, ADJOINT) for given in (operands, recorded)
    )
    end, sampled = ({name: tree for name, tree in found.items() if tree != ZERO} for found in (end, sampled))
    start = derivatives(initial, adjoints, "") if initial else {}
    start = {one.field: Field(one.field) + start[one.field] for one in parameters if start.get(one.field, ZERO) != ZERO}
    _refuse_noise(start)
    products: dict[str, Node] = {}
    if verified:
        along: dict[Node, Node] = {Field(name): Field(TANGENT + name) for name in fields}
        products["tangent"] = total([adjoints[name] * tangent(rates[name], along, places, space) for name in fields])
        products["adjoint"] = total([Field(TRANSPOSED + name) * Field(TANGENT + name) for name in fields])
    everything = shared({**trees, **{END + name: tree for name, tree in end.items()}})
    positions = {prefix + name: place for name, place in problem.positions.items() for prefix in (ADJOINT, TRANSPOSED)}
    constant = (*problem.fields, *(ADJOINT + name for name in fields))
    time = problem.config.time
    if time.dt is None:  # a reverse step gets the size of the step that it reverses
        time = replace(time, dt=1.0, cfl=None, tolerance=None)
    adjoint = replace(
        problem,
        config=replace(problem.config, diagnostics=DiagnosticsConfig(), time=time),
        fields=(*trees, *constant),
        memory=(*trees, *constant),
        begin_at_zero=(),
        trees={name: everything[name] for name in trees},
        initial={},
        faces={**problem.faces, **places.added},
        diagnostics={OBJECTIVE: objective, **{f"{OBJECTIVE} {n}": part for n, part in enumerate(reductions)}},
        derived={
            END: {name: everything[END + name] for name in end},
            **({START: start} if start else {}),
            **({SAMPLED: sampled} if sampled else {}),
            **({RECORDED: recorded} if any(not isinstance(tree, Field) for tree in recorded.values()) else {}),
            **({PRODUCTS: products} if products else {}),
        },
        method=INTEGRATORS["euler"],
        groups={},
        measured={},
        positions={**problem.positions, **positions},
        receivers={},
        misfit=None,
    )
    outer = {one.name: tangent(objective, {one.node: ONE}, places, space) for one in parameters if one.kind == "number"}
    slopes = tuple(tangent(objective, {part: ONE}, places, space) for part in reductions)
    of_sample = ZERO if misfit is None else tangent(misfit.term, {misfit.sample: ONE}, places, space)
    return Adjoint(unknowns, adjoint, reductions, slopes, outer, problem, of_sample)


def unknowns_of(problem: Problem) -> tuple[Unknown, ...]:
    """The entries of gradient.of. Raises InputError for names that the problem does not have or that have no gradient yet."""
    found = []
    for key in problem.config.gradient.of:
        table, _, name = key.partition(".")
        if table == "initial" and name in problem.shown:
            found.append(Unknown(key, "initial", name))
        elif table == "equation" and name in problem.symbols:
            found.append(Unknown(key, _kind(problem, key, name), name))
        else:
            known = [at("initial", field) for field in problem.shown] + [
                at("equation", name) for name in problem.symbols
            ]
            raise unknown("gradient.of", "name", key, known)
    if not found:
        raise InputError(
            'gradient.of: expected names such as "initial.u" or "equation.D", but got none; list what to differentiate by'
        )
    return tuple(found)


def _kind(problem: Problem, key: str, name: str) -> str:
    """The kind of the parameter ``name``. Raises InputError if there is no gradient with respect to it yet."""
    node = problem.symbols[name]
    kind = {Parameter(name): "number", parameter_field(name): "array"}.get(node)
    if kind is None:
        raise InputError(
            f"gradient.of: expected a number or an array with one value per cell, but {key} is an expression or a time series; "
            "give one of those"
        )
    if any(part == node for face in problem.faces.values() for value in face.values for part in walk(value)):
        raise InputError(
            f"gradient.of: not available yet for {key}, because a boundary condition depends on it; write a number there"
        )
    boundary = problem.config.boundary
    kinds = [
        boundary.condition(field, axis, side)
        for field in problem.shown
        for axis in range(problem.config.grid.ndim)
        for side in (0, 1)
    ]
    if any(condition.kind == "cpml" and condition.values[1] is None for condition in kinds):
        raise InputError(
            f"gradient.of: not available yet for {key}, because the strength of a cpml layer follows from the parameters; give "
            "the layer a speed"
        )
    return kind


def refuse_unavailable(problem: Problem) -> None:
    """Raise InputError for problems that have no gradient yet."""
    config = problem.config
    if config.gradient.storage == "disk":
        raise InputError("gradient.storage: storage = 'disk' is not available yet; remove it")
    if problem.members:
        raise InputError("ensemble: gradients are not available yet for ensembles; remove the table")
    if problem.misfit is not None and config.time.dt is None:
        raise InputError(
            f"time.{config.time.given}: sums over receivers are not available yet with steps of several sizes; write time.dt"
        )
    if problem.method.multistep:
        raise InputError(
            f"numerics.integrator: gradients are not available yet with {shown(config.numerics.integrator)}; use "
            '"rk4" or another one-step method'
        )
    if problem.damped:
        raise InputError(
            f"numerics.integrator: gradients are not available yet with {shown(config.numerics.integrator)} and damping, as in "
            'absorbing layers; use "rk4"'
        )
    if not all(config.boundary.periodic) and (
        problem.positions or any(isinstance(part, Halfway) for tree in problem.rates() for part in walk(tree))
    ):
        raise InputError(STAGGERED)
    beside = {
        part.name
        for face in problem.faces.values()
        for value in face.values
        for part in walk(value)
        if isinstance(part, Field) and part.name not in problem.constant
    }
    if beside:
        raise InputError(
            "boundary: gradients are not available yet with open ends, whose values follow from the fields; use a sponge, or "
            "{ neumann = 0.0 }"
        )


def refuse_extrema(problem: Problem, reductions: Sequence[Reduction]) -> None:
    """Raise InputError if the objective contains a minimum or maximum over the grid."""
    kinds = [part.kind for part in reductions if part.kind in ("min", "max")]
    if kinds:
        raise InputError(
            f"{at('objective', *problem.objective)}: gradients are not available yet of {listing(dict.fromkeys(kinds))}(); use "
            "integral() or mean()"
        )


def _refuse_noise(trees: Mapping[str, Node]) -> None:
    """Raise InputError if a derivative of an initial expression contains noise, which only the initial state has."""
    if any(isinstance(part, Noise) for tree in trees.values() for part in walk(tree)):
        raise InputError(
            "gradient.of: not available yet for a parameter that multiplies noise() in [initial]; write a number there"
        )


def without_beyond(trees: Mapping[str, Node]) -> dict[str, Node]:
    """The trees with the ghost cells of all operands filled by their own conditions.

    On periodic axes this gives the same values. Trees beside boundaries contain no values that are evaluated beyond them.
    """
    made: dict[Node, Node] = {}
    for tree in shared(trees).values():
        for part in bottom_up(tree):
            new = rebuilt(part, lambda child: made[child])
            made[part] = replace(new, beyond=False) if getattr(part, "beyond", False) else new
    return {name: made[tree] for name, tree in shared(trees).items()}
