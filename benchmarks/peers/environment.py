"""Environments for peers: each is installed on demand into a folder of its own, and is no dependency of hpcstencil."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / ".environments"


class NotInstalled(Exception):
    """A peer cannot be installed here; the message is the reason, in one line."""


def install(python: str | Path, *arguments: str, **environment: str) -> None:
    """Run an interpreter with arguments that install something, in FOLDER. Raises NotInstalled if it fails."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    result = subprocess.run(
        [python, *arguments], cwd=FOLDER, env={**os.environ, **environment}, capture_output=True, text=True
    )
    if result.returncode:
        said = f"{result.stdout}\n{result.stderr}".strip().splitlines() or ["it said nothing"]
        reason = next((text for text in reversed(said) if "error" in text.lower()), said[-1])
        raise NotInstalled(f"`python {' '.join(arguments)}` failed: {reason.strip()}")


def python_with(name: str, *packages: str) -> Path:
    """The interpreter of an environment that has the packages, made when it is asked for the first time.

    Raises NotInstalled.
    """
    folder = FOLDER / name
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr, flush=True)
        install(sys.executable, "-m", "venv", "--clear", name)
        install(python, "-m", "pip", "install", "--quiet", *packages)
        done.touch()
    return python
