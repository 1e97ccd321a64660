"""Measurements of this machine, stored in the user's cache folder. Without that folder, each run measures again."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcstencil import __version__
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime import cache_folder
from hpcstencil.symbolic.expressions import as_text


def store() -> Path | None:
    """Return the path of the file with this machine's measurements, which may not exist; None without a cache folder."""
    place = cache_folder.folder()
    return None if place is None else place / f"calibration-{platform.node()}.json"


def key(problem: Problem, what: str) -> str:
    """Return the name under which the measurement ``what`` of a problem is stored.

    ``what`` names the kernel too if the measurement depends on it. The name contains a hash of everything in the problem on
    which the compiled code depends.
    """
    numerics, names = problem.config.numerics, sorted(problem.trees)
    trees = as_text(problem.trees[name] for name in names)
    text = repr((__version__, what, names, trees, numerics.order, numerics.precision, numerics.integrator))
    return f"{what}:{problem.config.equation.name}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def recall(name: str) -> Any | None:
    """Return the stored measurement of this name; None if there is none."""
    return _known(store()).get(name)


def _known(path: Path | None) -> dict[str, Any]:
    """Return all stored measurements; an empty dict if the file is missing, damaged or not this user's own."""
    if path is None or not cache_folder.is_own(path):
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refused)
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _refused(text: str) -> None:
    """Raise ValueError for NaN and Infinity, which no measurement yields."""
    raise ValueError(text)


def remember(name: str, value: Any) -> None:
    """Store the measurement ``value``, a JSON value; do nothing without a writable cache folder."""
    path = store()
    if path is None:
        return
    with suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({**_known(path), name: value}, file, indent=1)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
