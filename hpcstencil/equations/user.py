"""An equation from a Python file of the user's: a class of the form of `base.Equation`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from hpcstencil.equations.base import Equation
from hpcstencil.errors import InputError
from hpcstencil.schema import listing, nearest, shown

T = TypeVar("T")
KEY = "equation.name"
FORM = "fields(self, ndim) and rhs(self, f, p, space)"


def load(path: Path, name: str) -> tuple[Equation, str]:
    """An instance of class ``name`` in the file at ``path``, and the file's text.

    Raises InputError where there is no such file or class, it is not of the form of an equation, or its code fails.
    """
    try:
        source = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{KEY}: expected a Python file at {path}, but it cannot be read ({error}); check the path"
        ) from None
    module = guarded(path, lambda: _module(path))
    found = vars(module).get(name)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        near = nearest(name, classes)
        hint = f"did you mean '{near}'?" if near else f"it has {listing(classes) or 'none'}"
        raise InputError(f"{KEY}: expected a class {shown(name)} in {path}, but there is none; {hint}")
    equation = guarded(path, found)
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
    name = f"hpcstencil_equation_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def guarded(path: Path, action: Callable[[], T]) -> T:
    """What the user's code returns; whatever it raises becomes an InputError with its line."""
    try:
        return action()
    except InputError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 0
        raise InputError(f"{KEY}: {path}, line {line}: {type(error).__name__}: {error}") from error
