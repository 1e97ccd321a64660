"""Names in an input: which are reserved, whether a new name is allowed, and whether the names in use exist."""

from __future__ import annotations

import keyword
from collections.abc import Collection

from hpcstencil.config.limits import LONGEST_NAME
from hpcstencil.config.settings import Config, DiagnosticsConfig, EquationConfig, InitialConfig
from hpcstencil.numerics.grid import AXES
from hpcstencil.symbolic.expressions import FUNCTIONS, HALFWAY
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, unknown, wrong
from hpcstencil.validation.schema import names_of

OPERATORS = (
    "laplacian", "dx", "dy", "dz", "dxx", "dxy", "dxz", "dyy", "dyz", "dzz", "divergence", "gradient_squared",
    "div_grad", "upwind", "point", "at", "noise", *(f"{kind}_{axis}" for kind in HALFWAY for axis in AXES),
)  # fmt: skip
BESIDE = {name for table in (EquationConfig, InitialConfig, DiagnosticsConfig) for name in names_of(table)}
RESERVED = frozenset((
    *FUNCTIONS, *REDUCTIONS, *OPERATORS, *AXES, *BESIDE, "pi", "t", "time", "step", "member", "every", "diagnostics", "mesh",
    "operators", "streams",
))  # fmt: skip


def allowed_name(key: str, name: str) -> None:
    """Check that a user-defined ``name`` can be used in expressions and is not reserved.

    Reserved are the words of the expression language and of Python, keys of the input, and names in the output file.
    Raises InputError, whose message begins with ``key``.
    """
    if not name.isidentifier() or not name.isascii() or len(name) > LONGEST_NAME:
        expected = f"a name of letters, digits and '_', at most {LONGEST_NAME} of them"
        raise wrong(key, expected, name, "rename it")
    if name in RESERVED or keyword.iskeyword(name):
        language = "Python" if keyword.iskeyword(name) else "expressions, or of the input or output file"
        raise InputError(f"{key}: '{name}' is a word of {language}; rename it")


def check_fields(config: Config, fields: tuple[str, ...]) -> None:
    """Check every name of a field or diagnostic in the input against ``fields``, the fields of the equation.

    Raises InputError for an unknown field or diagnostic, if verify.exact leaves out a field, if a diagnostic, data of the
    objective or an expression of a stream has the name of a field or parameter, and for a reserved name of such an expression.
    """
    _check_known(config, fields)
    _check_exact(config, fields)
    _check_conserved(config)
    used = {*fields, *config.equation.parameters}
    for name in config.diagnostics.expressions:
        _refuse_used(f"diagnostics.{name}", name, used, "diagnostic")
    _check_data(config, used)
    _check_expressions(config, used)


def _check_known(config: Config, fields: tuple[str, ...]) -> None:
    """Check that tables with a key per field, and lists of fields, name fields of the equation."""
    output = config.output
    named = [(at("initial", name), name) for name in config.initial.expressions]
    named += [(at("boundary", name), name) for name in config.boundary.fields]
    named += [(at("verify", "exact", name), name) for name in config.verify.exact]
    named += [("output.fields", name) for name in output.fields or ()]
    named += [(at("output", "units", name), name) for name in output.units]
    named += [(at("output", "long_name", name), name) for name in output.long_name]
    for stream, given in output.streams.items():
        named += [(at("output", "streams", stream, "fields"), name) for name in given.fields or ()]
    named += [(at("probes", name, "field"), probe.field) for name, probe in config.probes.items() if probe.field]
    for key, name in named:
        if name not in fields:
            raise unknown(key, "field", name, fields)


def _check_exact(config: Config, fields: tuple[str, ...]) -> None:
    """Check that verify.exact, if given, has a solution for every field."""
    exact = config.verify.exact
    for name in fields if exact else ():
        if name not in exact:
            raise InputError(
                f"{at('verify', 'exact', name)}: expected a solution for every field, but it is missing; add it"
            )


def _check_conserved(config: Config) -> None:
    """Check that verify.conserved lists diagnostics."""
    diagnostics = config.diagnostics.expressions
    for name in config.verify.conserved:
        if name not in diagnostics:
            raise unknown("verify.conserved", "diagnostic", name, tuple(diagnostics))


def _check_data(config: Config, used: Collection[str]) -> None:
    """Check that no data of the objective have a name in ``used``, or that of a table of probes."""
    for name in config.objective.data:
        key = f"objective.data.{name}"
        _refuse_used(key, name, used, "data")
        if name in config.probes:
            raise InputError(f"{key}: '{name}' is a table of [probes] already; rename the data")


def _check_expressions(config: Config, used: Collection[str]) -> None:
    """Check that the expressions of streams have allowed names, which are not in ``used``."""
    for stream, given in config.output.streams.items():
        for name in given.expressions:
            key = at("output", "streams", stream, "expressions", name)
            allowed_name(key, name)
            _refuse_used(key, name, used, "expression")


def _refuse_used(key: str, name: str, used: Collection[str], what: str) -> None:
    """Raise InputError if the name of a ``what``, such as "diagnostic", is a field or parameter, which are ``used``."""
    if name in used:
        raise InputError(f"{key}: '{name}' is a field or parameter already; rename the {what}")
