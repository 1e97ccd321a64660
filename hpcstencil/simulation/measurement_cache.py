"""Measurements of this machine, stored in the user's cache folder. Without the folder they are repeated."""

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


def store() -> Path | None:
    """The path of the file with this machine's measurements, which may not exist yet; None if there is no folder for it."""
    place = cache_folder.folder()
    return None if place is None else place / f"calibration-{platform.node()}.json"


def key(problem: Problem, what: str) -> str:
    """The name under which the measurement ``what`` of a problem is stored. It depends on everything that the compiled
    code depends on."""
    numerics = problem.config.numerics
    text = repr(
        (__version__, what, sorted(problem.trees.items()), numerics.order, numerics.precision, numerics.integrator)
    )
    return f"{what}:{problem.config.equation.name}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def recall(name: str) -> Any | None:
    """The stored measurement of this name; None if there is none."""
    return _known(store()).get(name)


def _known(path: Path | None) -> dict[str, Any]:
    """All stored measurements."""
    if path is None or not cache_folder.is_own(path):
        return {}
    try:
        known = json.loads(path.read_text(), parse_constant=_refused)
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _refused(text: str) -> None:
    """Refuse NaN and Infinity, which no measurement gives."""
    raise ValueError(text)


def remember(name: str, value: Any) -> None:
    """Store the measurement ``value``, which JSON can represent, if there is a folder for it and it is writable."""
    path = store()
    if path is None:
        return
    with suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump({**_known(path), name: value}, file, indent=1)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
