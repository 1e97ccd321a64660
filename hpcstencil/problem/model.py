"""The equation of an input: its class, fields, parameters and right-hand sides, each checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcstencil.config.names import allowed_name, check_fields
from hpcstencil.config.settings import Config
from hpcstencil.equations import (
    EQUATIONS,
    Custom,
    Equation,
    HasDamping,
    HasReflectedFields,
    Staggered,
    SupportsCflSignals,
)
from hpcstencil.equations.custom import parameters_used
from hpcstencil.equations.user import Names, call_user_code, expressions_of, load
from hpcstencil.io.array_file import ArrayContents
from hpcstencil.numerics.finite_differences import centred
from hpcstencil.problem.parameter_files import key_of
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import (
    Coordinate,
    Field,
    Node,
    Parameter,
    Samples,
    Series,
    Time,
    node,
    parameter_field,
    shared,
    walk,
)
from hpcstencil.symbolic.operators import Space
from hpcstencil.symbolic.parser import Scope, parse
from hpcstencil.symbolic.staggering import Positions
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, nearest, shown, wrong


@dataclass(frozen=True)
class Model:
    """An equation with its parameters, before boundary conditions, absorbing layers and mask are applied.

    - ``given``: parameters as numbers or text, with defaults filled in, without time series
    - ``samples``: samples of the time series in gradient.of, which are passed to compiled code at run time, by name
    - ``symbols``: all parameters as nodes
    - ``trees``: time derivatives by field, without ``damping``
    - ``damping``: parts of time derivatives that a multistep method treats separately, by field
    - ``signals``: trees of the fields on whose largest magnitudes the stable step depends, by name
    - ``positions``: positions of the fields that do not live at cell centres
    - ``reflected``: per axis, the fields that change sign on reflection at a wall normal to it
    - ``space``: the operators on the grid of the input
    - ``source``: text of the Python file of the equation, "" if it has none
    """

    equation: Equation
    fields: tuple[str, ...]
    given: Mapping[str, float | str]
    samples: Mapping[str, np.ndarray]
    symbols: Mapping[str, Node]
    trees: Mapping[str, Node]
    damping: Mapping[str, Node]
    signals: Mapping[str, Node]
    positions: Positions
    reflected: tuple[Collection[str], ...]
    space: Space
    source: str

    @property
    def numbers(self) -> dict[str, float]:
        """The parameters given as numbers, by name. They are passed to compiled code at run time."""
        return {name: value for name, value in self.given.items() if not isinstance(value, str)}

    @property
    def unknowns(self) -> dict[str, Node]:
        """The fields as nodes, by name."""
        return {name: Field(name) for name in self.fields}


def model_of(config: Config, contents: Mapping[str, ArrayContents]) -> Model:
    """Build the model of an input.

    ``contents`` summarizes the data files by key, as in `Problem`, and holds the samples of time series. Raises
    InputError for unknown names, invalid parameters and an order that the equation does not support, and if a
    user-defined class cannot be loaded or raises an exception.
    """
    ndim = config.grid.ndim
    equation, source = _equation(config)
    fields = _fields(equation, config)
    check_fields(config, fields)
    given = given_parameters(equation, config)
    symbols: dict[str, Node] = {name: Parameter(name) for name, value in given.items() if not isinstance(value, str)}
    scope = Scope(ndim, dict(symbols), time=False)
    files = config.equation.arrays
    for name, text in given.items():
        if name in files:
            symbols[name] = parameter_field(name)
        elif isinstance(text, str):
            _refuse_others(config, name, text, given)
            symbols[name] = parse(text, scope, f"equation.{name}")
    samples = {}
    for name, series in config.equation.series.items():
        values = contents[key_of(name)].samples
        if key_of(name) in config.gradient.of:
            samples[name] = np.array(values, np.float64)
        symbols[name] = Series(Time(), Samples(name, len(values)) if name in samples else values, series.dt)
    unknowns = {name: Field(name) for name in fields}
    numbers, masked = _numbers(config, given, symbols), config.mask is not None
    stencils = {
        name: centred(stencil.weights, ndim, stencil.method == "fft")
        for name, stencil in config.equation.stencils.items()
    }
    _refuse_taken(stencils, (*fields, *given))
    space = Space(ndim, config.grid, config.boundary.periodic, numbers, config.numerics.order, masked, stencils)
    trees = shared(_right_hand_sides(equation, config, unknowns, symbols, space))
    f, p = Names(**unknowns), Names(**symbols)
    in_file = config.equation.in_file
    damping = (
        expressions_of(equation, in_file, "damping", fields, f, p, space) if isinstance(equation, HasDamping) else {}
    )
    signals = (
        expressions_of(equation, in_file, "signals", None, f, p, ndim)
        if isinstance(equation, SupportsCflSignals)
        else {}
    )
    orders = getattr(equation, "orders", (config.numerics.order,))
    if config.numerics.order not in orders:
        expected = f"{listing(map(str, orders), 'or')} with {shown(config.equation.name)}"
        raise wrong("numerics.order", expected, config.numerics.order, "change it")
    positions = _positions(equation, config, fields)
    reflected = _reflected(equation, config, fields)
    return Model(
        equation, fields, given, samples, symbols, trees, damping, signals, positions, reflected, space, source
    )


def _equation(config: Config) -> tuple[Equation, str]:
    """(equation that the input names, text of its Python file); the text is "" for a built-in or custom equation."""
    if config.equation.in_file is not None:
        return load(*config.equation.in_file)
    if config.equation.name == "custom":
        return Custom(config.equation.rhs), ""
    return EQUATIONS[config.equation.name](), ""


def _fields(equation: Equation, config: Config) -> tuple[str, ...]:
    """The names of the fields. Those of a user-defined class are checked like names in the input; so are its parameters."""
    ndim = config.grid.ndim
    if config.equation.in_file is None:
        return equation.fields(ndim)
    path, name = config.equation.in_file
    names: Any = call_user_code(path, lambda: equation.fields(ndim))
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(
            f'equation.name: expected {name}.fields in {path} to return a tuple of names, such as ("u",), but got '
            f"{'nothing' if names is None else repr(names)}; correct it"
        )
    fields = tuple(names)
    for kind, names in (("field", fields), ("parameter", tuple(equation.parameters))):
        for given in names:
            if not isinstance(given, str) or names.count(given) > 1 or (kind == "parameter" and given in fields):
                raise InputError(
                    f"equation.name: {name} in {path}: expected each {kind} to have a name of its own, but got {names}"
                )
            allowed_name(f"equation.name: {kind} {shown(given)} of {name} in {path}", given)
    if not fields:
        raise InputError(f"equation.name: expected {name}.fields in {path} to return at least one name, but got none")
    return fields


def _positions(equation: Equation, config: Config, fields: tuple[str, ...]) -> Positions:
    """The positions of the fields that do not live at cell centres; checked for a user-defined class."""
    ndim = config.grid.ndim
    if not isinstance(equation, Staggered):
        return {}
    if config.equation.in_file is None:
        return equation.positions(ndim)
    positions = call_user_code(
        config.equation.in_file[0], lambda: {name: tuple(p) for name, p in equation.positions(ndim).items()}
    )
    for name, position in positions.items():
        if name not in fields or len(position) != ndim or not set(position) <= {0, 1}:
            raise InputError(
                f"equation.name: expected positions() to give some of {listing(fields)} {ndim} entries of 0 or 1, but got "
                f"{shown(name)}: {position}; correct it"
            )
    return positions


def _reflected(equation: Equation, config: Config, fields: tuple[str, ...]) -> tuple[Collection[str], ...]:
    """Per axis, the fields that change sign on reflection at a wall normal to it; checked for a user-defined class."""
    axes = range(config.grid.ndim)
    if not isinstance(equation, HasReflectedFields):
        return tuple(() for _ in axes)
    if config.equation.in_file is None:
        return tuple(equation.reflected(axis) for axis in axes)
    reflected = call_user_code(
        config.equation.in_file[0], lambda: tuple(tuple(equation.reflected(axis)) for axis in axes)
    )
    for axis, names in enumerate(reflected):
        if not set(names) <= set(fields):
            raise InputError(
                f"equation.name: expected reflected({axis}) to give some of {listing(fields)}, but got "
                f"{listing(map(str, names))}; correct it"
            )
    return reflected


def _right_hand_sides(
    equation: Equation, config: Config, unknowns: Mapping[str, Node], symbols: Mapping[str, Node], space: Space
) -> dict[str, Node]:
    """The time derivative of each field, by name. Raises InputError if a user-defined class returns anything else."""
    f, p = Names(**unknowns), Names(**symbols)
    if config.equation.in_file is None:
        return equation.rhs(f, p, space)
    path, name = config.equation.in_file
    returned: Any = call_user_code(path, lambda: equation.rhs(f, p, space))
    if not isinstance(returned, Mapping):
        got = "it returned nothing" if returned is None else f"got {type(returned).__name__}"
        raise InputError(
            f"equation.name: expected {name}.rhs in {path} to return a time derivative for each of {listing(unknowns)}, but "
            f'{got}; write for example return {{"{next(iter(unknowns))}": ...}}'
        )
    trees = dict(returned)
    fits = all(isinstance(tree, Node | int | float) for tree in trees.values())
    if set(trees) != set(unknowns) or not fits:
        raise InputError(
            f"equation.name: expected {name}.rhs in {path} to return a time derivative for each of {listing(unknowns)}, but "
            f"got {listing(f'{key} ({type(tree).__name__})' for key, tree in trees.items())}; make them agree"
        )
    return {field: node(trees[field]) for field in unknowns}


def given_parameters(equation: Equation, config: Config) -> dict[str, float | str]:
    """The parameters of the equation by name, with defaults filled in and without time series.

    Raises InputError for a parameter that the equation does not have.
    """
    given = dict(config.equation.parameters)
    if isinstance(equation, Custom):
        return given
    for name in (*given, *config.equation.series):
        if name not in equation.parameters:
            near = nearest(name, equation.parameters)
            hint = f"did you mean '{near}'?" if near else f"it has {', '.join(equation.parameters)}"
            raise InputError(f"{at('equation', name)}: '{config.equation.name}' has no such parameter; {hint}")
    defaults = {name: value for name, value in equation.parameters.items() if name not in config.equation.series}
    return {**defaults, **given}


def _numbers(
    config: Config, given: Mapping[str, float | str], symbols: Mapping[str, Node]
) -> dict[Node, tuple[str, float]]:
    """(name, value) of each parameter that is one number on the whole grid, by its node.

    If the strength of the source is 0, parameters that the input does not give are left out, because the default
    position of a source may lie outside the grid.
    """
    known = numpy_evaluate.by_node({name: value for name, value in given.items() if not isinstance(value, str)})
    found = {}
    for name, tree in symbols.items():
        off = name not in config.equation.parameters and given.get("source") == 0.0
        if not off and tree.kinds.isdisjoint((Coordinate, Field, Series)):
            found[tree] = name, float(numpy_evaluate.evaluate(tree, values=known))
    return found


def _refuse_others(config: Config, name: str, text: str, given: Mapping[str, float | str]) -> None:
    """Raise InputError if the expression ``text`` of the parameter ``name`` uses a parameter that is not a number."""
    used = parameters_used([text])
    for other in (*given, *config.equation.series):
        if other in used and other != name and isinstance(given.get(other, ""), str):
            array = other in config.equation.arrays
            kind = "an array" if array else "a time series" if other in config.equation.series else "an expression"
            raise InputError(
                f"{at('equation', name)}: expected no other parameters than numbers in {shown(text)}, but {other} is {kind}; "
                + ("compute the values with NumPy, and give them as an array too" if array else "write it into rhs")
            )


def _refuse_taken(stencils: Iterable[str], names: Collection[str]) -> None:
    """Raise InputError for a stencil with the name of a field or parameter."""
    for name in stencils:
        if name in names:
            raise InputError(
                f"{at('equation', 'stencils', name)}: '{name}' is a field or parameter already; rename the stencil"
            )


def refuse_unused(config: Config, model: Model) -> None:
    """Raise InputError for a parameter in the input that has no effect, which must be a mistake."""
    custom = isinstance(model.equation, Custom)
    texts = [*config.equation.rhs.values(), *config.initial.formulas.values()]
    texts += [*config.diagnostics.expressions.values(), *config.objective.expressions.values()]
    texts += config.boundary.texts()
    texts += [text for stream in config.output.streams.values() for text in stream.expressions.values()]
    texts += [probe.expression for probe in config.probes.values() if probe.expression]
    texts += [] if config.mask is None else [config.mask.solid, str(config.mask.surface)]
    files = config.equation.arrays
    texts += [v for name, v in config.equation.parameters.items() if isinstance(v, str) and name not in files]
    used = parameters_used(texts)
    if not custom:
        trees = (*model.trees.values(), *model.damping.values())
        used = {*used, *(part.name for tree in trees for part in walk(tree) if isinstance(part, Parameter))}
        used |= {name for name, tree in model.symbols.items() if not isinstance(tree, Parameter)}
    axes = f"{config.grid.ndim} axes ({' x '.join(map(str, config.grid.shape))} cells)"
    for name in (*config.equation.parameters, *config.equation.series):
        if name not in used:
            why = "no expression uses it" if custom else f"it has no effect on a grid with {axes}"
            raise InputError(f"equation.{name}: {why}; remove it")
