"""Names that identify this host."""

from __future__ import annotations

import platform
import socket
from pathlib import Path


def host() -> str:
    """Return the network name of this host."""
    return socket.gethostname()


def boot() -> str:
    """Return the host's boot id, which distinguishes hosts of the same name; without /proc, the host's name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    except OSError:
        return platform.node()
