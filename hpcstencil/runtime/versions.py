"""The versions on which results depend besides the input: this package's source, and the libraries that it uses."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata

import hpcstencil

LIBRARIES = ("jax", "jaxlib", "numpy", "mpi4jax", "mpi4py", "h5py")
SOURCES = (".py", ".hpp", ".cpp")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries by name; "not installed" for a missing library."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def sources_digest() -> str:
    """Return the SHA-256, in hexadecimal, of the names and contents of this package's source files."""
    digest, package = hashlib.sha256(), os.path.dirname(hpcstencil.__file__)
    for folder, inner, names in os.walk(package):
        inner.sort()
        digest.update(folder.removeprefix(package).encode())
        for name in sorted(name for name in names if name.endswith(SOURCES)):
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
