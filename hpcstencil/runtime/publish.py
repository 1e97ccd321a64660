"""Atomic writes of small files: readers see them complete or not at all, and they survive a crash of the machine."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

from hpcstencil.runtime.filesystem import file_errors, sync


def write_atomically(path: Path, content: str) -> None:
    """Write a text in UTF-8 to ``path`` atomically, replacing an existing file. Raises EnvironmentProblem if that
    fails; an old file is then whole, or was replaced by the whole new one."""
    publish(path, lambda temporary: temporary.write_text(content, encoding="utf-8"))


def publish(path: Path, make: Callable[[Path], object]) -> None:
    """Make the file ``path`` atomically, replacing an existing one: ``make`` writes it under a temporary name with the
    same ending, which is then renamed. Raises EnvironmentProblem if writing fails; an old file is then whole, or was
    replaced by the whole new one."""
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
    """A new path beside ``path`` that no other process uses: the same name with a random prefix that begins with a dot."""
    return path.with_name(f".{uuid.uuid4().hex}.{path.name}")
