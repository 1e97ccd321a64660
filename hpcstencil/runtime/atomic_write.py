"""Atomic writes of small files: readers see them complete or not at all, and they survive a crash of the machine."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

from hpcstencil.runtime.filesystem import file_errors, sync


def write_atomically(path: Path, content: str) -> None:
    """Write a text in UTF-8 to ``path`` atomically, replacing an existing file.

    Raises EnvironmentProblem if that fails. ``path`` then holds the complete old file or the complete new one.
    """
    publish(path, lambda temporary: temporary.write_text(content, encoding="utf-8"))


def publish(path: Path, make: Callable[[Path], object]) -> None:
    """Create the file ``path`` atomically, replacing an existing one.

    ``make`` writes the file under a temporary name with the same suffix, which is then renamed. Raises EnvironmentProblem if
    that fails. ``path`` then holds the complete old file or the complete new one.
    """
    temporary = hidden(path)
    with file_errors(path, "write"):
        try:
            make(temporary)
            sync(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(path.parent)


def hidden(path: Path) -> Path:
    """Return a unique path in the folder of ``path``: its name with a random prefix that begins with a dot."""
    return path.with_name(f".{uuid.uuid4().hex}.{path.name}")
