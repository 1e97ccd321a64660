"""Checks of the paths that an input names."""

from __future__ import annotations

import os
from pathlib import Path

from hpcstencil.config.limits import LONGEST_PATH
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import printable


def check_path(key: str, path: Path) -> None:
    """Raise InputError, whose message begins with ``key``, if a path is too long for the system or is not valid UTF-8,
    which files that record it require."""
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise InputError(
            f"{key}: expected a path of at most {LONGEST_PATH} bytes, but got one of {length}; choose a shorter one"
        )
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{key}: expected a path in UTF-8, but got {printable(path)}; rename the part that is not"
        ) from None


def check_is_file(key: str, path: Path, expected: str) -> None:
    """Raise InputError, whose message begins with ``key``, if ``path`` is not a file that can be read again and again, such
    as a pipe or a folder. ``expected`` says what the file holds."""
    check_path(key, path)
    if not os.path.isfile(path):  # False also for a name that the system refuses
        found = "is not a file" if os.path.lexists(path) else "does not exist"
        raise InputError(f"{key}: expected {expected}, but {printable(path)} {found}; check the path")
