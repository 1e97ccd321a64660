"""What identifies this host and its processes.

This module uses only the standard library, since the monitors import it.
"""

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
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()


def stat_fields(process: int) -> list[str]:
    """Return the fields of a process's /proc/PID/stat from its state on; an empty list if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it may hold anything


def born(process: int) -> int | None:
    """Return the start time of a process on this host, in clock ticks since boot; None if it has ended, or without /proc."""
    fields = stat_fields(process)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None
