"""Build the `Problem` of an input: parse every expression, resolve every name, and combine the members of an ensemble.

This needs neither JAX nor MPI, so `hpcstencil check` finds every error in the input before a run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hpcstencil.config.ensemble import members
from hpcstencil.config.limits import MOST_STEPS
from hpcstencil.config.paths import initial_files
from hpcstencil.config.probes import probe_key
from hpcstencil.config.settings import Config
from hpcstencil.config.streams import expressions_key
from hpcstencil.equations import HasPositiveFields, SupportsCfl
from hpcstencil.equations.custom import parameters_used
from hpcstencil.equations.user import Names, rates_of
from hpcstencil.io.array_file import ArrayContents
from hpcstencil.numerics.integrators import SUPER_STEPPING, Method, memory_of, method
from hpcstencil.problem.absorbing_layers import Layered, add_absorbing_layers
from hpcstencil.problem.boundary_faces import faces_of
from hpcstencil.problem.linear_damping import damping_rates
from hpcstencil.problem.method_selection import partition, with_enough_stages
from hpcstencil.problem.misfit import Misfit, misfit_of
from hpcstencil.problem.model import Model, model_of, refuse_unused
from hpcstencil.problem.parameter_files import contents_of, key_of, refuse_files, refuse_series
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.receivers import PROBED, Receivers, receivers_of
from hpcstencil.problem.solid_mask import (
    SOLID,
    Mask,
    in_fluid,
    mask_of,
    masked_derived,
    masked_diagnostics,
    masked_faces,
    masked_initial,
    masked_rates,
    refuse_name,
)
from hpcstencil.problem.stability import cfl_step, stable_dt
from hpcstencil.problem.staggered_terms import Faces, Placed, positions_of_data, refuse_jumps
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import (
    Constant,
    Convolution,
    Coordinate,
    Field,
    Node,
    Reduction,
    Series,
    data_field,
    is_parameter_field,
    parameter_field,
    samples_field,
    shared,
    walk,
)
from hpcstencil.symbolic.parser import Scope, parse
from hpcstencil.symbolic.staggering import Positions
from hpcstencil.symbolic.stencil_reach import Discretization
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, shown, wrong


def build(config: Config, contents: Mapping[str, ArrayContents] | None = None, all_used: bool = True) -> Problem:
    """Build the problem of an input; for an ensemble, one problem for all members.

    ``contents`` summarizes the data files by key, as `contents_of` returns it; if it is None, the files are read here.
    There is no communication, and the result is the same on all processes.

    Raises InputError for unknown names, malformed expressions and invalid parameters, and if members of an ensemble
    differ in more than parameter values and initial states; if ``all_used`` also for parameters and stencils of the user that
    nothing uses. Studies that drop tables of an input may leave some unused.
    """
    contents = contents_of(config) if contents is None else contents
    return (
        _ensemble_problem(config, contents, all_used)
        if config.ensemble
        else _single_problem(config, contents, all_used)
    )


def _ensemble_problem(config: Config, contents: Mapping[str, ArrayContents], all_used: bool) -> Problem:
    """The problem of an ensemble: the problem of the first member, with an array of shape (members,) for each parameter in
    which the members differ. Raises the errors of `build`."""
    listed = {key.partition(".")[2] for key in config.ensemble if key.startswith("equation.")}
    each = tuple(_single_problem(member, contents, all_used, listed) for member in members(config))
    first, known = each[0], {f"equation.{name}" for name in each[0].parameters}
    for key in config.ensemble:
        if key.startswith("equation.") and key not in (*known, "equation.seed"):
            raise InputError(f"ensemble.{key}: expected a number of the equation, but got an expression; list numbers")
    for member, problem in enumerate(each):
        if (problem.trees, problem.faces, problem.method) != (first.trees, first.faces, first.method):
            raise InputError(
                f"ensemble: member {member} differs from the first in more than numbers, as if the strength of an absorbing "
                "layer depends on the wave speed; use hpcstencil sweep, with a separate run for each"
            )
    parameters = {
        name: np.array([problem.parameters[name] for problem in each]) if name in listed else value
        for name, value in first.parameters.items()
    }
    bounds = {name: max(problem.bounds[name] for problem in each) for name in first.bounds}
    return replace(first, config=config, parameters=parameters, bounds=bounds, members=each)


@dataclass(frozen=True)
class _Parsed:
    """An input as trees, before the positions of the fields, the boundary conditions and the mask are applied.

    ``fixed`` are the values of the parameters in which members do not differ. ``layers`` has the time derivatives together with
    absorbing layers, and ``damping`` their parts that a multistep method treats separately. ``derived`` are the expressions of
    streams and probes, by the dotted key of their table, then by name. The others are as in `Problem`.
    """

    model: Model
    fixed: Mapping[str, float]
    bounds: Mapping[str, float]
    initial: Mapping[str, Node]
    method: Method
    layers: Layered
    damping: Mapping[str, Node]
    diagnostics: Mapping[str, Node]
    derived: Mapping[str, Mapping[str, Node]]
    objective: Mapping[str, Node]
    misfit: Misfit | None

    def taken(self, trees: Mapping[str, Node]) -> dict[str, Node]:
        """The trees by name, with the branches of where() that depend on ``fixed`` parameters resolved."""
        return shared({name: numpy_evaluate.taken(tree, self.fixed) for name, tree in trees.items()})


@dataclass(frozen=True)
class _Located:
    """The trees of an input at the positions of their fields, as ``placed`` evaluates them, before the mask is applied.

    ``rates`` are the time derivatives by field. The others are as in `_Parsed` and `Problem`.
    """

    placed: Placed
    faces: Faces
    rates: Mapping[str, Node]
    damping: Mapping[str, Node]
    diagnostics: Mapping[str, Node]
    derived: Mapping[str, Mapping[str, Node]]


def _single_problem(
    config: Config, contents: Mapping[str, ArrayContents], all_used: bool, listed: Collection[str] = ()
) -> Problem:
    """The problem of a single run or of one member of an ensemble. Raises the errors of `build`.

    ``listed`` are the parameters in which members differ. Branches of where() that depend on other parameters are
    resolved here. Branches that depend on listed parameters stay, so that members share code.
    """
    parsed = _parsed(config, contents, all_used, listed)
    model, layers = parsed.model, parsed.layers
    located = _located(config, parsed)
    placed, faces = located.placed, located.faces
    mask = _mask(config, model, located)
    expressions = {key: masked_derived(mask, each, key) for key, each in located.derived.items()}
    receivers, derived, misfit = _receivers(config, layers.positions, expressions, parsed.misfit)
    groups, chosen = partition(layers.trees, parsed.method, config.numerics.integrator)
    trees = masked_rates(mask, located.rates)
    given = {parameter_field(name).name: file for name, file in config.equation.arrays.items()}
    solid = (SOLID,) if mask is not None and mask.kept else ()
    remembered = (*memory_of(chosen, tuple(layers.trees)), *solid, *given)
    precision = config.numerics.precision
    problem = Problem(
        config=config,
        equation=model.equation,
        fields=(*layers.trees, *remembered),
        trees=trees,
        parameters={**model.numbers, **model.samples},
        symbols=model.symbols,
        bounds=parsed.bounds,
        initial=masked_initial(mask, placed.initial(parsed.initial, faces)),
        faces=masked_faces(mask, faces),
        diagnostics=masked_diagnostics(mask, located.diagnostics, precision),
        derived=derived,
        method=chosen,
        groups=groups,
        discretization=Discretization(config.numerics.order, config.grid.spacing),
        damped=damping_rates(trees) if chosen.damping else {},
        memory=(*layers.memory, *remembered),
        begin_at_zero=layers.memory,
        given=given,
        contents=contents,
        held=initial_files(config),
        damping=layers.rate,
        multistep_damping=masked_rates(mask, located.damping),
        measured={
            **{name: Field(name) for name in (*layers.trees, *remembered)},
            **{name: in_fluid(mask, tree) for name, tree in model.signals.items()},
        },
        positions=placed.positions,
        mask=mask,
        receivers=receivers,
        source=model.source,
        objective=masked_diagnostics(mask, placed.diagnostics(parsed.taken(parsed.objective), "objective"), precision),
        misfit=misfit,
    )
    _check_step(problem)
    return _with_stages(problem)


def _parsed(config: Config, contents: Mapping[str, ArrayContents], all_used: bool, listed: Collection[str]) -> _Parsed:
    """Parse an input. The arguments are those of `_single_problem`.

    Raises InputError for malformed expressions and invalid parameters, and if ``all_used`` for what nothing uses.
    """
    model = model_of(config, contents)
    if all_used:
        refuse_unused(config, model)
    bounds = _bounds(config, model, contents)
    initial = _initial(config, model, needs_seed=config.initial.file is None or "seed" in listed)
    chosen = _method(config, model)
    rates, damping = _divided(model, chosen)
    positive = model.equation.positive if isinstance(model.equation, HasPositiveFields) else ()
    layers = add_absorbing_layers(rates, config, _fastest_wave(config, model, bounds), model.positions, positive)
    diagnostics, derived = _diagnostics(config, model), _derived(config, model)
    objective, misfit = _objective(config, model)
    if all_used:
        quantities = [tree for each in (diagnostics, objective, *derived.values()) for tree in each.values()]
        _refuse_unused_stencils(model, [*rates.values(), *model.damping.values(), *quantities])
    fixed = {name: value for name, value in model.numbers.items() if name not in listed}
    return _Parsed(model, fixed, bounds, initial, chosen, layers, damping, diagnostics, derived, objective, misfit)


def _divided(model: Model, chosen: Method) -> tuple[dict[str, Node], Mapping[str, Node]]:
    """The time derivatives by field, and the parts of them that the ``chosen`` method treats separately.

    A multistep method treats the damping separately. For other methods it is part of the time derivatives.
    """
    if chosen.multistep:
        return dict(model.trees), model.damping
    whole = {name: tree + model.damping[name] if name in model.damping else tree for name, tree in model.trees.items()}
    return whole, {}


def _located(config: Config, parsed: _Parsed) -> _Located:
    """Bring the trees of an input to the positions of their fields, and find the boundary conditions.

    Raises InputError for values at positions that do not fit, for conditions that do not suit a field, for numbers that are not
    finite, and for boundary values that jump.
    """
    model, layers, misfit = parsed.model, parsed.layers, parsed.misfit
    data = {name: data_field(name) for name in config.objective.data if misfit is None or name not in misfit.data}
    of_data = positions_of_data(parsed.objective, data, layers.positions, config.grid.ndim)
    placed = Placed(config, {**layers.positions, **of_data})
    conditions = faces_of(config, model, placed.at_home(layers.trees, "equation"), layers.positions)
    faces = {  # by the operands as they appear in the trees of `taken`
        (numpy_evaluate.taken(operand, parsed.fixed), axis, side): face
        for (operand, axis, side), face in conditions.items()
    }
    rates = placed.rates(parsed.taken(layers.trees), faces)
    damping = placed.damping(parsed.taken(parsed.damping), faces)
    _check_numbers(config, model, rates, parsed.taken(parsed.initial))
    refuse_jumps(config, faces, model.numbers)
    diagnostics = placed.diagnostics(parsed.taken(parsed.diagnostics))
    derived = {key: placed.derived(parsed.taken(each), key) for key, each in parsed.derived.items()}
    return _Located(placed, faces, rates, damping, diagnostics, derived)


def _mask(config: Config, model: Model, located: _Located) -> Mask | None:
    """The mask of the input, or None. Raises the errors of `mask_of` and `refuse_name`."""
    tables = (located.rates, located.damping, located.diagnostics, *located.derived.values())
    mask = mask_of(config, model.symbols, model.reflected, [tree for each in tables for tree in each.values()])
    if mask is not None:
        refuse_name((*model.trees, *model.numbers, *model.symbols))
    return mask


def _receivers(
    config: Config, positions: Positions, derived: Mapping[str, Mapping[str, Node]], misfit: Misfit | None
) -> tuple[dict[str, Receivers], dict[str, Mapping[str, Node]], Misfit | None]:
    """The receivers by table, and ``derived`` and ``misfit`` as in `Problem`.

    ``derived`` are the expressions of streams and probes, with the mask, and ``positions`` those of the fields.
    """
    keys = [key for key in map(probe_key, config.probes) if key in derived]
    expressions = {key: derived[key]["expression"] for key in keys}
    receivers = receivers_of(config, positions, expressions)
    found = {key: trees for key, trees in derived.items() if key not in expressions}
    if probed := {each.field: expressions[each.field] for each in receivers.values() if each.field in expressions}:
        found[PROBED] = probed
    if misfit is not None:
        misfit = replace(misfit, recorded=_recorded(config, misfit, expressions))
    return receivers, found, misfit


def _bounds(config: Config, model: Model, contents: Mapping[str, ArrayContents]) -> dict[str, float]:
    """The largest magnitude of each parameter, by name, over the grid and all times. On very large grids, that of an expression
    is estimated (`numpy_evaluate.largest`).

    Raises InputError if it overflows the precision of the run.
    """
    bounds = {
        name: contents[key_of(name)].magnitude
        if is_parameter_field(tree) or isinstance(tree, Series)
        else numpy_evaluate.largest(tree, config.grid, model.numbers)
        for name, tree in model.symbols.items()
    }
    precision = config.numerics.precision
    for name, bound in bounds.items():
        if not bound <= float(np.finfo(precision).max):
            expected = f"values that {precision} can hold on the whole grid"
            given = model.given.get(name, "a time series")
            raise wrong(f"equation.{name}", expected, given, f"it is {bound:g} somewhere; change it")
    return bounds


def _initial(config: Config, model: Model, needs_seed: bool) -> dict[str, Node]:
    """The initial expressions by field, as trees.

    Raises InputError for malformed ones, for a file from which nothing is read, and, if the input ``needs_seed``, for a seed
    that no expression uses.
    """
    seed, texts = config.equation.seed, config.initial.formulas
    if config.initial.file is not None and set(config.initial.expressions) >= set(model.fields):
        raise InputError(
            "initial.file: nothing is read from it, because every field has an entry of its own; remove some, or the file"
        )
    if needs_seed and seed is not None and "seed" not in parameters_used(texts.values()):
        raise InputError("equation.seed: no initial expression uses it; write noise(seed) in [initial], or remove it")
    scope = _initial_scope(config, model.symbols)
    trees = {name: parse(text, scope, f"initial.{name}") for name, text in texts.items()}
    for name, tree in trees.items():
        refuse_series(tree, f"initial.{name}", "give a number")
    return trees


def _initial_scope(config: Config, symbols: Mapping[str, Node]) -> Scope:
    """The names that are allowed in initial expressions."""
    seed = config.equation.seed
    names = {**symbols, **({} if seed is None else {"seed": Constant(seed)})}
    return Scope(config.grid.ndim, names, time=False, noise=True)


def initial_expression(problem: Problem, name: str, text: str, key: str) -> Node:
    """Parse an expression for the initial values of the field ``name``, as if it stood in [initial].

    Returns the tree at the position of the field, with 0 in solid cells. Raises InputError, whose message begins with
    ``key``, if the text is malformed or uses a parameter that is an array or a time series.
    """
    tree = _expression_of_cells(problem, text, key)
    placed = Placed(problem.config, problem.positions).initial({name: tree}, problem.faces)
    return masked_initial(problem.mask, placed)[name]


def expression_of_field(problem: Problem, name: str, text: str, key: str) -> Node:
    """Parse an expression with a value for each cell of the field or array ``name``, such as a bound.

    Unlike `initial_expression`, it also holds in solid cells and on boundaries. Raises the same errors.
    """
    tree = _expression_of_cells(problem, text, key)
    return Placed(problem.config, problem.positions).at_home({name: tree}, key)[name]


def _expression_of_cells(problem: Problem, text: str, key: str) -> Node:
    tree = parse(text, _initial_scope(problem.config, problem.symbols), key)
    refuse_files(tree, key, "give an array")
    refuse_series(tree, key, "give a number")
    return tree


def _method(config: Config, model: Model) -> Method:
    """The time integrator. Without time.tolerance its error estimate is dropped, since it may cost an evaluation of the
    right-hand side."""
    numerics = config.numerics
    chosen = method(numerics.integrator, numerics.stages, numerics.epsilon, split=bool(model.damping))
    return chosen if config.time.tolerance is not None else replace(chosen, error=())


def _fastest_wave(config: Config, model: Model, bounds: Mapping[str, float]) -> float:
    """The speed of the fastest wave according to `SupportsCfl.rates`; 0 if the equation has no rates."""
    if not isinstance(model.equation, SupportsCfl):
        return 0.0
    ones = dict.fromkeys([*model.fields, *model.signals], 1.0) if model.equation.solution_dependent else {}
    rates = rates_of(model.equation, config.equation.in_file, Names(**bounds), ones, config.grid.ndim)
    return max([rates.wave, *rates.velocity])


def _refuse_unused_stencils(model: Model, trees: Collection[Node]) -> None:
    """Raise InputError for a user-defined stencil that no expression uses, which must be a mistake."""
    used = {part.name for tree in trees for part in walk(tree) if isinstance(part, Convolution)}
    for name in model.space.stencils:
        if name not in used:
            raise InputError(f"equation.stencils.{name}: no expression uses it; write {name}(u) in one, or remove it")


def _diagnostics(config: Config, model: Model) -> dict[str, Node]:
    """The diagnostics by name, as trees. Raises InputError unless each is one number, computed from reductions."""
    names = {**model.symbols, **model.unknowns}
    scope = Scope(config.grid.ndim, names, operators=True, reductions=True, space=model.space)
    trees = {}
    for name, text in config.diagnostics.expressions.items():
        trees[name] = parse(text, scope, f"diagnostics.{name}")
        _check_number(trees[name], f"diagnostics.{name}", text, inside=False)
    return trees


def _objective(config: Config, model: Model) -> tuple[dict[str, Node], Misfit | None]:
    """The objective by its name, and its sums over receivers, as in `misfit_of`. The dict is empty if there is no objective.

    Raises InputError unless it is one number, computed from reductions, and the errors of `misfit_of`.
    """
    unknowns = {**model.symbols, **model.unknowns}
    data = {name: data_field(name) for name in config.objective.data}
    samples = {name: samples_field(name) for name in config.probes if name not in unknowns}
    scope = Scope(
        config.grid.ndim, {**unknowns, **samples, **data}, operators=True, reductions=True, sums=True, space=model.space
    )
    trees, misfit = dict[str, Node](), None
    for name, text in config.objective.expressions.items():
        key, tree = at("objective", name), parse(text, scope, at("objective", name))
        trees[name], misfit = misfit_of(config, tree, key, text)
        _check_number(trees[name], key, text, inside=False)
    return trees, misfit


def _recorded(config: Config, misfit: Misfit, expressions: Mapping[str, Node]) -> dict[str, Node]:
    """What the receivers of a misfit record, by table. ``expressions`` are those of tables, by dotted key."""
    found = {}
    for table in misfit.tables:
        key, field = probe_key(table), config.probes[table].field
        found[table] = expressions[key] if field is None else Field(field)
    return found


def _derived(config: Config, model: Model) -> dict[str, dict[str, Node]]:
    """The expressions of streams and probes, as trees: by the dotted key of their table, then by name."""
    given = {expressions_key(name): stream.expressions for name, stream in config.output.streams.items()}
    given |= {
        probe_key(name): {"expression": probe.expression} for name, probe in config.probes.items() if probe.expression
    }
    scope = Scope(config.grid.ndim, {**model.symbols, **model.unknowns}, operators=True, space=model.space)
    return {
        key: {name: parse(text, scope, f"{key}.{name}") for name, text in texts.items()}
        for key, texts in given.items()
        if texts
    }


def _check_number(tree: Node, key: str, text: str, inside: bool) -> None:
    """Raise InputError if a field or coordinate occurs outside a reduction, or a reduction inside another.

    ``inside`` says whether ``tree`` is part of the operand of a reduction.
    """
    if isinstance(tree, Reduction):
        if inside:
            raise InputError(f"{key}: {shown(text)} contains a reduction inside another; separate them")
        inside = True
    elif isinstance(tree, Field | Coordinate) and not inside:
        raise InputError(
            f"{key}: {shown(text)} is not one number; put it inside integral(), mean(), min(), max() or at()"
        )
    for child in tree.children:
        _check_number(child, key, text, inside)


def _check_numbers(config: Config, model: Model, rates: Mapping[str, Node], initial: Mapping[str, Node]) -> None:
    """Raise InputError if a part of a right-hand side or an initial expression that is one number, such as 1/0, is not
    finite."""
    known = numpy_evaluate.by_node(model.numbers)
    custom = config.equation.name == "custom"
    trees = [(at("equation", "rhs", name) if custom else "equation", tree) for name, tree in rates.items()]
    trees += [(at("initial", name), tree) for name, tree in initial.items()]
    for key, tree in trees:
        pending, seen = [tree], set[int]()
        while pending:
            part = pending.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            if not numpy_evaluate.is_number(part, known):
                pending += part.children
                continue
            with np.errstate(all="ignore"):
                value = numpy_evaluate.evaluate(part, values=known)
            if not np.isfinite(value):
                raise InputError(
                    f"{key}: expected finite numbers, but a part of the expression is {value:g}; correct it"
                )


def _check_step(problem: Problem) -> None:
    """Raise InputError if `time.cfl` cannot work, before a run would fail at its first step.

    That is so if the equation has no rates, if no step is stable, or if steps would be too small.
    """
    cfl = problem.config.time.cfl
    if cfl is None:
        return
    if not isinstance(problem.equation, SupportsCfl):
        raise InputError(
            "time.cfl: the stable step of this equation is not known; write for example time.dt = 0.1, or "
            "time.tolerance = 1e-4"
        )
    if problem.rates_follow_solution:
        ones = dict.fromkeys(problem.measured, 1.0)
        if stable_dt(problem, ones) == 0.0:
            cfl_step(problem, ones)  # explains the reason
    elif problem.config.time.end > MOST_STEPS * cfl_step(problem, {}):
        raise wrong("time.cfl", "at most 2**53 steps up to time.end", cfl, "take longer steps, or end earlier")


def _with_stages(problem: Problem) -> Problem:
    """The problem with enough stages of super time stepping for the given `time.dt`, unless the input sets the number."""
    numerics, dt = problem.config.numerics, problem.config.time.dt
    if numerics.stages is not None or numerics.integrator not in SUPER_STEPPING or dt is None:
        return problem
    known = isinstance(problem.equation, SupportsCfl) and not problem.rates_follow_solution
    stable_step = (lambda m: stable_dt(replace(problem, method=m), {})) if known else None
    return replace(problem, method=with_enough_stages(numerics.integrator, dt, stable_step))
