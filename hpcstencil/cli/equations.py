"""`hpcstencil equations`: list and describe the built-in equations."""

from __future__ import annotations

import inspect

import click

from hpcstencil.equations import EQUATIONS, Custom, Equation
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown, unknown
from hpcstencil.validation.printable import echo

KNOWN: dict[str, type[Equation]] = {**EQUATIONS, "custom": Custom}


@click.command()
@click.argument("name", required=False)
def equations(name: str | None) -> None:
    """List the equations that an input may name. With NAME, describe that equation, its fields and its parameters."""
    if name is not None and name not in KNOWN:
        raise unknown("equations", "equation", name, tuple(KNOWN))
    if environment_rank() == 0:
        echo("\n".join(overview() if name is None else description(name)))


def overview() -> list[str]:
    """The list of equations, one line each: the name and the first line of the docstring."""
    width = max(map(len, KNOWN))
    return [f"{name:{width}}  {_documentation(name).splitlines()[0]}" for name in KNOWN]


def description(name: str) -> list[str]:
    """The description of the equation called ``name``, as lines: its docstring, fields, and parameters with defaults."""
    lines = [_documentation(name), ""]
    if name == "custom":
        return [*lines, "fields      the keys of [equation.rhs]", "parameters  the other keys of [equation]"]
    fields = _fields(EQUATIONS[name]())
    if len(set(fields.values())) == 1 and len(fields) == 3:
        lines.append(f"fields      {', '.join(fields[1])}")
    else:
        lines += [f"fields      {', '.join(names)} on {ndim} {'axis' if ndim == 1 else 'axes'}"
                  for ndim, names in fields.items()]  # fmt: skip
    defaults = [f"{key} = {shown(value)}" for key, value in EQUATIONS[name].parameters.items()]
    return [*lines, f"parameters  {', '.join(defaults) or 'none'}"]


def _documentation(name: str) -> str:
    """The docstring of the class of an equation, without markup."""
    return (inspect.getdoc(KNOWN[name]) or "").replace("``", "")


def _fields(equation: Equation) -> dict[int, tuple[str, ...]]:
    """The names of the fields, by number of axes from 1 to 3. Numbers that the equation does not support are missing."""
    found = {}
    for ndim in (1, 2, 3):
        try:
            found[ndim] = equation.fields(ndim)
        except InputError:
            continue
    return found
