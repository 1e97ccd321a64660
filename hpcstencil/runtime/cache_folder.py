"""The user's cache folder, for compiled programs, measurements, and the wheels that quickstart.sh installs.

Later runs execute the cached programs, so anybody who can write to the folder could make a run execute other code; checksums
cannot prevent that. The folder is therefore used only if nobody except the user and root can change it or a folder above it.
Otherwise runs print a warning and do without a cache.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

from hpcstencil.runtime.progress import say

OTHERS = stat.S_IWGRP | stat.S_IWOTH


def place() -> Path | None:
    """Return the path of the cache folder by the XDG specification, whether it exists or not; None without a home folder."""
    try:
        path = user_cache_path("hpcstencil")
    except RuntimeError:  # of an unknown home; older platformdirs return a path that begins with ~
        return None
    return path if path.is_absolute() else None


def folder(*names: str) -> Path | None:
    """Return the cache folder, or the folder ``names`` inside it, and create it if it is missing.

    The result is None if the user has no home folder, if the folder cannot be created, or if other users could change it. In
    the last case one warning is printed.
    """
    path = place()
    return None if path is None else _made(path.joinpath(*names))


@cache
def _made(place: Path) -> Path | None:
    """Return the folder, created if missing; None if it cannot be created, or, with a warning, if it is unsafe."""
    try:
        reason = unsafe(place)
        if not reason:
            for part in reversed([place, *place.parents]):
                if not part.exists():
                    part.mkdir(0o700, exist_ok=True)
            reason = unsafe(place)
    except OSError:
        return None  # a run works without its cache
    if not reason:
        return place
    say(
        f"warning: the cache {place} is not used, because {reason}; every run compiles and measures again. Correct "
        "that, or set XDG_CACHE_HOME to a folder of your own"
    )
    return None


def unsafe(place: Path) -> str:
    """Return why other users could change the file or folder at ``place``; "" if they cannot.

    ``place`` need not exist yet. The check covers every folder on the path, both before and after resolving links. A sticky
    folder such as /tmp, where only the owner can rename an entry, may be on the path.
    """
    there = place.resolve()
    for part in sorted({place, *place.parents, there, *there.parents}):
        try:
            status = os.lstat(part)
        except FileNotFoundError:
            continue
        if status.st_uid not in (0, os.geteuid()):
            return f"{part} belongs to another user (number {status.st_uid})"
        others = stat.S_IMODE(status.st_mode) & OTHERS
        shared = status.st_mode & stat.S_ISVTX and part not in (place, there)
        if others and not shared and not stat.S_ISLNK(status.st_mode):
            return f"{part} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def is_own(path: Path) -> bool:
    """Return whether ``path`` is a regular file or a folder that belongs to this user and nobody else can write to.

    Links are not followed and do not count.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return False
    kind = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return kind and status.st_uid == os.geteuid() and not status.st_mode & OTHERS
