"""What goes wrong around a run, made to happen: disks that fill up, calls that fail, clocks that jump."""

import errno
import os
import shutil
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("faults.c")


def mount(*arguments):
    return subprocess.run(["mount", *arguments], capture_output=True, text=True)


@contextmanager
def small_disk(place, megabytes):
    """``place`` is a file system of its own that holds so much; skips the test where none can be mounted."""
    place.mkdir()
    done = mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place))
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        while place.is_mount():  # a test may have mounted more there
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def remount(place, options):
    done = mount("-o", f"remount,{options}", str(place))
    assert done.returncode == 0, done.stderr


def fill(place, name="somebody else's"):
    """Take all the space that is left on a file system."""
    with suppress(OSError), (place / name).open("ab", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def library(folder):
    """The library to be preloaded, compiled; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the library that makes calls fail")
    built = folder / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(SOURCE), "-ldl"], check=True)
    return built


def failing(folder, name, calls="write fsync truncate", error=errno.EIO, spare=0, rank=None):
    """Environment of a run in which calls on files with ``name`` in their path fail once ``folder``/broken exists."""
    environment = {
        "LD_PRELOAD": str(library(folder)),
        "FAULT_FLAG": str(folder / "broken"),
        "FAULT_NAME": name,
        "FAULT_CALLS": calls,
        "FAULT_ERROR": str(error),
        "FAULT_SPARE": str(spare),
    }
    return environment if rank is None else {**environment, "FAULT_RANK": str(rank)}


def family(process):
    """Numbers of a process and all that descend from it."""
    found = [process]
    for parent in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                found += map(int, Path(f"/proc/{parent}/task/{task}/children").read_text().split())
    return found
