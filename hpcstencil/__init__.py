"""A distributed stencil PDE toolkit: one TOML file, any number of processes and devices, one HDF5 file.

In a Python program, `import hpcstencil as hs` has no side effects. The names in ``__all__`` are loaded on first use.
"""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcstencil.python.files import diagnostics, open, plot, probes
    from hpcstencil.python.process_state import configure
    from hpcstencil.python.simulation import Simulation
    from hpcstencil.validation.errors import EnvironmentProblem, InputError, NumericsError, StoppedEarly

__version__ = "0.1.0"
STARTED = time.monotonic()  # approximate start of a command, because this module is imported first

HOMES = {
    "Simulation": "python.simulation",
    "configure": "python.process_state",
    "open": "python.files",
    "diagnostics": "python.files",
    "plot": "python.files",
    "probes": "python.files",
    "InputError": "validation.errors",
    "NumericsError": "validation.errors",
    "StoppedEarly": "validation.errors",
    "EnvironmentProblem": "validation.errors",
}  # the names of the Python interface, and the modules that define them

__all__ = [
    "EnvironmentProblem", "InputError", "NumericsError", "Simulation", "StoppedEarly", "configure", "diagnostics", "open",
    "plot", "probes",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'hpcstencil' has no attribute '{name}'; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"hpcstencil.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__doc__", "__version__"})
