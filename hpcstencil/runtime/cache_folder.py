"""The user's cache folder: compiled programs, which later runs execute, wheels, which quickstart.sh installs, and
measurements.

Anybody who can write there can make a run execute a program; checksums cannot prevent that. So the folder is used only
if nobody except the user and root can change it or a folder above it. Otherwise runs do without a cache and say so.
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
    """Where this program's cache belongs by the XDG specification, whether the folder exists or not; None if the user
    has no home."""
    try:
        path = user_cache_path("hpcstencil")
    except RuntimeError:  # of an unknown home; older platformdirs return a path that begins with ~
        return None
    return path if path.is_absolute() else None


def folder(*names: str) -> Path | None:
    """This program's cache folder, or with ``names`` a folder within it, created if missing. None if there is no place
    for it, if it cannot be created, or, with one warning, if other users could change it."""
    path = place()
    return None if path is None else _made(path.joinpath(*names))


@cache
def _made(place: Path) -> Path | None:
    """The folder, created if missing; None if it is unsafe, with a warning, or cannot be created."""
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
        f"warning: the cache {place} is not used, since {reason}; compiling and measuring are done anew in every run. Correct "
        "that, or set XDG_CACHE_HOME to a folder of your own"
    )
    return None


def unsafe(place: Path) -> str:
    """Why other users could change the file or folder at ``place``, which need not exist yet; "" if they cannot.

    This checks the names that lead there and, behind links, the folders themselves. A folder like /tmp, where names
    belong to their creators, may be above it.
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
    """Whether ``path`` is a regular file or a folder (not a link) that belongs to this user and that nobody else can
    write."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    kind = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return kind and status.st_uid == os.geteuid() and not status.st_mode & OTHERS
