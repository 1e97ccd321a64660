"""Environments for peers: each is installed on demand into a folder of its own, and is no dependency of hpcstencil."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / ".environments"


def python_with(name: str, *packages: str) -> Path:
    """The interpreter of an environment that has the packages, made when it is asked for the first time."""
    folder = FOLDER / name
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.touch()
    return python
