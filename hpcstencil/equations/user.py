"""User-defined equations: load a class with the interface of `base.Equation` from a Python file, and check its results."""

from __future__ import annotations

import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from functools import partial
from numbers import Real
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

from hpcstencil.equations.base import Equation, Rates, SupportsCfl
from hpcstencil.symbolic.expressions import Node, node
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import listing, nearest, shown

T = TypeVar("T")
KEY = "equation.name"
FORM = "fields(self, ndim) and rhs(self, f, p, space)"
NOT_OF_NODES = ("ufunc", "cannot convert a symbolic expression")  # in errors of NumPy and math about expressions
FUNCTIONS = (
    "take functions of expressions from hpcstencil.functions, as in: from hpcstencil.functions import sin, where"
)


class Names(SimpleNamespace):
    """Fields or parameters as attributes, which user code reads."""

    def __getattr__(self, name: str) -> Any:
        known = list(vars(self))
        near = nearest(name, known)
        hint = f"did you mean '{near}'?" if near else f"the known names are: {listing(known) or 'none'}"
        raise AttributeError(f"there is no '{name}' here; {hint}")


class Largest(dict[str, float]):
    """The largest magnitudes of the measured quantities, which the `rates` of user code reads by name."""

    def __missing__(self, name: str) -> float:
        known = f"measured are {listing(list(self))}" if self else "nothing is measured, as solution_dependent = False"
        raise LookupError(f"largest has no {shown(name)}; {known}")


def load(path: Path, name: str) -> tuple[Equation, str]:
    """Load the class ``name`` from the Python file at ``path``. Returns (an instance, the text of the file).

    The file is executed. Raises InputError if there is no such file or class, if the class lacks the interface of an
    equation, or if the code raises an exception.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{KEY}: expected a Python file at {path}, but it cannot be read ({error}); check the path"
        ) from None
    module = call_user_code(path, lambda: _module(path))
    found = vars(module).get(name)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        near = nearest(name, classes)
        hint = f"did you mean '{near}'?" if near else f"it has {listing(classes) or 'none'}"
        raise InputError(f"{KEY}: expected a class {shown(name)} in {path}, but there is none; {hint}")
    equation = call_user_code(path, found)
    missing = [method for method in ("fields", "rhs") if not callable(getattr(equation, method, None))]
    if missing:
        raise InputError(
            f"{KEY}: expected the methods {FORM} in class {name} of {path}, but {listing(missing)} is missing"
        )
    for attribute, default in (("parameters", {}), ("solution_dependent", True)):
        if not hasattr(found, attribute):
            setattr(found, attribute, default)
    if not isinstance(equation.parameters, Mapping):
        raise InputError(f"{KEY}: expected {name}.parameters in {path} to map names to defaults, but it is no mapping")
    return equation, source


def _module(path: Path) -> ModuleType:
    """Execute the Python file at ``path`` and return its module."""
    name = f"hpcstencil_equation_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def call_user_code(path: Path, action: Callable[[], T]) -> T:
    """Call ``action``, which runs user code from the file at ``path``, and return its result.

    An exception of the user code is raised as an InputError that names the line.
    """
    try:
        return action()
    except InputError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        place = f"{path}" if line is None else f"{path}, line {line}"
        advice = f"; {FUNCTIONS}" if any(words in str(error) for words in NOT_OF_NODES) else ""
        raise InputError(f"{KEY}: {place}: {type(error).__name__}: {error}{advice}") from error


def expressions_of(
    equation: Equation, in_file: tuple[Path, str] | None, method: str, fields: Collection[str] | None, *arguments: Any
) -> dict[str, Node]:
    """Call a ``method`` of the equation that returns trees by name, such as "rhs", and check what it returns.

    ``in_file`` is (path, class name) of a user-defined equation, and None for a built-in one, which is not checked. The
    names must be among ``fields``, unless that is None. Raises InputError if user code raises an exception or returns
    anything else.
    """
    action: Callable[[], Any] = partial(getattr(equation, method), *arguments)
    if in_file is None:
        return dict(action())
    path, name = in_file
    returned = call_user_code(path, action)
    wanted = f"{KEY}: expected {name}.{method} in {path} to return a dict of expressions"
    if not isinstance(returned, Mapping) or not all(isinstance(v, Node | int | float) for v in returned.values()):
        raise InputError(f"{wanted}, but got {_returned(returned)}; correct it")
    for key in returned:
        if fields is not None and key not in fields:
            raise InputError(f"{wanted} by fields, {listing(fields)}, but got {shown(key)}; correct it")
    return {key: node(value) for key, value in returned.items()}


def rates_of(
    equation: SupportsCfl, in_file: tuple[Path, str] | None, p: SimpleNamespace, largest: Mapping[str, float], ndim: int
) -> Rates:
    """Call `SupportsCfl.rates` of the equation and check what it returns.

    ``p``, ``largest`` and ``ndim`` are its arguments. ``in_file`` is (path, class name) of a user-defined equation, and
    None for a built-in one, which is not checked. Raises InputError if user code raises an exception or does not return
    Rates, if a number is not finite or, except for ``velocity``, negative, or if ``velocity`` or ``upwind`` has more
    than ``ndim`` entries.
    """
    if in_file is None:
        return equation.rates(p, largest, ndim)
    path, name = in_file
    rates = call_user_code(path, lambda: equation.rates(p, Largest(largest), ndim))
    wanted = f"{KEY}: expected {name}.rates(self, p, largest, ndim) in {path} to return"
    if not isinstance(rates, Rates):
        raise InputError(f"{wanted} Rates(...) of hpcstencil.equations, but got {_returned(rates)}; correct it")
    for key, value in vars(rates).items():
        if key in ("velocity", "upwind"):
            fits = _entries(value, ndim, signed=key == "velocity")
            expected = f"at most {ndim} finite numbers, one per axis"
        else:
            fits, expected = _is_rate(value), "a finite number"
        if not fits:
            sign = "" if key == "velocity" else ", not negative"
            raise InputError(f"{wanted} Rates with {expected}{sign}, but got {key} = {value!r}; correct it")
    return rates


def _entries(values: Any, ndim: int, signed: bool) -> bool:
    """Whether ``values`` is iterable and has at most ``ndim`` finite numbers, which must be non-negative unless
    ``signed``."""
    try:
        each = list(values)
    except TypeError:
        return False
    return len(each) <= ndim and all(_is_rate(abs(v) if signed and isinstance(v, Real) else v) for v in each)


def _is_rate(value: Any) -> bool:
    """Whether a value is a finite, non-negative number."""
    return isinstance(value, Real) and math.isfinite(value) and float(value) >= 0.0


def _returned(value: Any) -> str:
    """What user code returned, in words for a message."""
    return "nothing" if value is None else type(value).__name__
