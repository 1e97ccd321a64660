"""The system's C++ compiler: programs are compiled once, kept by their content, and loaded into this process."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hpcstencil.native.writer import Unsupported

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O2", "-march=native", "-fno-math-errno", "-fPIC", "-shared", "-pthread", "-w")
VECTORS = (
    platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"
)  # functions of whole vectors, see cells.hpp
LIBRARIES = ("-lmvec", "-lm") if VECTORS else ("-lm",)


def folder() -> Path:
    """Where compiled programs are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hpcstencil" / "native"


@cache
def compiler() -> str:
    """The compiler's command: that of CXX, or the system's. Raises Unsupported where there is none."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise Unsupported("no C++ compiler was found; install one (on Debian: apt-get install g++) or set CXX")


@cache
def identity() -> str:
    """What compiled code depends on beside its text: the compiler and the processor."""
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout
    return "\n".join([version, *FLAGS, *LIBRARIES, _processor()])


def _processor() -> str:
    """The instructions that this processor has."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def library(text: str, includes: Sequence[str] = ()) -> ctypes.CDLL:
    """C++ text as a library of this process, compiled unless a run before did so.

    Raises Unsupported, with what the compiler says, where it does not compile.
    """
    parts = [text, identity(), *(str(p) for p in includes), *(p.read_text() for p in sorted(SOURCES.glob("*.hpp")))]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    target = folder() / f"{name}.so"
    if not target.exists():
        target = _compile(text, target, includes)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise Unsupported(f"compiled code cannot be loaded: {error}") from None


def _compile(text: str, target: Path, includes: Sequence[str]) -> Path:
    """The library at its place, or in a folder of this process where that cannot be written."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=target.parent, prefix=".making-"))
    except OSError:
        place = Path(tempfile.mkdtemp(prefix="hpcstencil-"))
        target = place / target.name
    source, made = place / "program.cpp", place / "program.so"
    source.write_text(text)
    command = [
        compiler(),
        *FLAGS,
        *(f"-I{path}" for path in (SOURCES, *includes)),
        str(source),
        "-o",
        str(made),
        *LIBRARIES,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
        shutil.rmtree(place, ignore_errors=True)
        raise Unsupported(f"{compiler()} does not compile the program: {first}")
    os.replace(made, target)
    if target.parent != place:
        shutil.rmtree(place, ignore_errors=True)
    return target


def cache_bytes() -> int:
    """Bytes of the second-level cache of a core; 512 KiB where it is not told."""
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "level").read_text().strip() == "2":
                told = (index / "size").read_text().strip()
                return int(told.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[told[-1]]
        except (OSError, ValueError, KeyError):
            continue
    try:
        size = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (OSError, ValueError):
        size = 0
    return size if size > 0 else 512 << 10
