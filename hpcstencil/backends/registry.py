"""The backends by name, in the order in which "auto" considers them."""

from __future__ import annotations

from hpcstencil.backends.backend import Backend
from hpcstencil.backends.native.backend import NativeBackend
from hpcstencil.backends.pallas.backend import PallasBackend
from hpcstencil.backends.xla.backend import XlaBackend

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (NativeBackend(), XlaBackend("shift"), XlaBackend("conv"), PallasBackend())
}
