"""The backends by name."""

from __future__ import annotations

from hpcstencil.backends.backend import Backend
from hpcstencil.backends.native.backend import NativeBackend
from hpcstencil.backends.pallas.backend import PallasBackend
from hpcstencil.backends.xla.backend import XlaBackend

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (NativeBackend(), XlaBackend("shift"), XlaBackend("conv"), PallasBackend())
}


def backend(name: str) -> Backend:
    """The backend of this name. Raises ValueError if there is none."""
    if name not in BACKENDS:
        raise ValueError(f"expected one of the backends {', '.join(BACKENDS)}, but got {name!r}")
    return BACKENDS[name]
