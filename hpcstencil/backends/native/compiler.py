"""Compilation of C++ text by the system's compiler, with a cache of compiled libraries keyed by their content."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache as once
from pathlib import Path
from typing import NamedTuple

from hpcstencil.backends.backend import Unsupported
from hpcstencil.runtime import cache_folder

SOURCES = Path(__file__).parent / "cpp"
LIBRARY, OBJECT, CHECKSUM = "program.so", "driver.o", "checksum"
LEVEL = "-O2"  # of optimization
# The compiler fuses no products with sums itself, because its choice depends on the surrounding code. The text says where.
FLAGS = (
    "-std=c++17", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-pthread", "-w",
)  # fmt: skip
# glibc's libmvec has vector versions of the elementary functions, see vector.hpp.
VECTORS = platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"
LIBRARIES = ("-lmvec", "-lm") if VECTORS else ("-lm",)


def folder() -> Path | None:
    """Return the folder of cached programs; None if there is no safe folder."""
    place = cache_folder.folder()
    return None if place is None else place / "native"


@once
def compiler() -> tuple[str, ...]:
    """Return the command of the C++ compiler: that in the environment variable CXX, or else the system's.

    Raises Unsupported if there is no compiler.
    """
    wanted = shlex.split(os.environ.get("CXX", ""))
    if wanted:
        if shutil.which(wanted[0]) is None:
            raise Unsupported(f"CXX is '{wanted[0]}', which is not a program; correct or unset it")
        return tuple(wanted)
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return (found,)
    raise Unsupported("no C++ compiler was found; install one (on Debian: apt-get install g++) or set CXX")


@once
def identity() -> str:
    """Return a text that identifies the compiler, its options and the processor.

    Compiled code depends on these and on its source.
    """
    return "\n".join([*compiler(), _output_of([*compiler(), "--version"])[1], *FLAGS, *LIBRARIES, _processor()])


def _output_of(command: Sequence[str], tries: int = 3) -> tuple[int, str, str]:
    """Run a command and return (exit status, stdout, stderr). Raises Unsupported if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        # EFAULT was seen once in a few thousand starts, under load, while another thread imported jax (docs/robustness.md).
        # Without the compiler, the run would use another kernel, which rounds differently.
        if error.errno == errno.EFAULT and tries > 1:
            return _output_of(command, tries - 1)
        raise Unsupported(f"{command[0]} cannot be run: {error.strerror}") from None
    return done.returncode, done.stdout, done.stderr


def _processor() -> str:
    """Return the line of /proc/cpuinfo that lists this processor's instruction sets; without it, the machine type."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


class DriverPart(NamedTuple):
    """A text that is compiled apart, for many libraries, and the compiler's option for the level of optimization."""

    text: str
    level: str = LEVEL


def library(
    text: str, driver: tuple[DriverPart, ...] = (), includes: Sequence[str] = (), quickly: bool = False
) -> ctypes.CDLL:
    """Compile the C++ ``text`` to a library and load it into this process.

    An intact copy in the cache is used instead of compiling. The library also contains the parts of a ``driver``, which the
    cache holds apart, because they take longer to compile and belong to many libraries. Text and parts are compiled at the
    same time. ``includes`` are additional header folders. ``quickly`` compiles the text without optimization, for code that
    runs only briefly. Raises Unsupported, with the compiler's message, if one of them does not compile.
    """
    options = ["-O0" if quickly else LEVEL, *(f"-I{path}" for path in includes)]
    try:
        kept = _place(text, *itertools.chain(*driver), *options)
        if kept is not None and _is_intact(kept / LIBRARY):
            return ctypes.CDLL(str(kept / LIBRARY))
        with tempfile.TemporaryDirectory(prefix="hpcstencil-") as private:

            def compiled() -> Path:
                made = Path(private) / LIBRARY
                if not driver:
                    return _compile(text, made, options)
                with ThreadPoolExecutor(len(driver)) as threads:
                    parts = [threads.submit(_object, part) for part in driver]
                    objects = [_compile(text, made.with_suffix(".o"), ["-c", *options])]
                for n, part in enumerate(parts):
                    objects.append(Path(private) / f"{n}-{OBJECT}")
                    objects[-1].write_bytes(part.result())
                return _run([str(path) for path in objects], made)

            return ctypes.CDLL(str(_cached_or_compiled(compiled, kept and kept / LIBRARY)))
    except OSError as error:
        raise Unsupported(f"native code cannot be made or loaded: {error}") from None


@once
def _object(part: DriverPart) -> bytes:
    """Return the object file of a part, compiled at most once per process."""
    options = (part.level, "-c")
    kept = _place(part.text, *options)
    with tempfile.TemporaryDirectory(prefix="hpcstencil-") as private:
        made = _cached_or_compiled(lambda: _compile(part.text, Path(private) / OBJECT, options), kept and kept / OBJECT)
        return made.read_bytes()


def _place(*texts: str) -> Path | None:
    """Return the cache folder of what is compiled of these texts and options; None if there is no safe folder."""
    headers = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.hpp"))]
    key, place = "\0".join([*texts, identity(), *headers]), folder()
    return None if place is None else place / hashlib.sha256(key.encode()).hexdigest()[:24]


def _cached_or_compiled(compiled: Callable[[], Path], kept: Path | None) -> Path:
    """Return the path of a compiled file: ``kept`` in the cache if possible, else that which ``compiled`` returns."""
    if kept is None:
        return compiled()
    with _locked(kept.parent):
        if _is_intact(kept):
            return kept
        made = compiled()
        with suppress(OSError):
            _store(made, kept)
        return kept if _is_intact(kept) else made


@once
def compile_in_background(text: str, driver: tuple[DriverPart, ...] = ()) -> Future[ctypes.CDLL]:
    """Start compiling ``text`` in a thread, once per process and text, and return the future of its `library`.

    The future's ``result()`` raises the errors of `library`.
    """
    thread = ThreadPoolExecutor(1)
    made = thread.submit(library, text, driver)
    thread.shutdown(wait=False)
    return made


@contextmanager
def _locked(kept: Path) -> Iterator[None]:
    """Hold a file lock, so that one process of a host compiles a file while the others wait.

    Where file locks do not work, each process compiles its own copy.
    """
    lock, name = None, kept.parent / f".{kept.name}.lock"
    with suppress(OSError):
        kept.parent.mkdir(0o700, exist_ok=True)
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                name.unlink()
                kept.parent.rmdir()  # if nothing was stored
            os.close(lock)


def _is_intact(kept: Path) -> bool:
    """Return whether a compiled file in the cache is intact and belongs to this user.

    Loading a damaged library would crash the process. Files of other users are not trusted, because others may have had
    write access to the folder.
    """
    checksum = kept.with_name(CHECKSUM)
    if not all(map(cache_folder.is_own, (kept.parent.parent, kept.parent, kept, checksum))):
        return False
    try:
        return checksum.read_bytes() == hashlib.sha256(kept.read_bytes()).hexdigest().encode()
    except OSError:
        return False


def _store(made: Path, kept: Path) -> None:
    """Store a compiled file and its checksum for later runs. Their folder appears complete or not at all."""
    folder = kept.parent
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as place:
        whole = Path(place) / folder.name
        whole.mkdir(0o700)
        content = made.read_bytes()
        copy = whole / kept.name
        copy.write_bytes(content)
        copy.with_name(CHECKSUM).write_text(hashlib.sha256(content).hexdigest(), encoding="utf-8")
        for path in whole.iterdir():
            path.chmod(0o600)
        if folder.exists() and not _is_intact(kept):
            folder.rename(Path(place) / "damaged")
        whole.rename(folder)  # fails if another process was faster; its file is the same


def _compile(text: str, made: Path, options: Sequence[str]) -> Path:
    """Compile the text to the file ``made`` and return its path."""
    source = made.with_suffix(".cpp")
    source.write_text(text, encoding="utf-8")
    return _run([f"-I{SOURCES}", *options, str(source)], made)


def _run(arguments: Sequence[str], made: Path) -> Path:
    """Run the compiler so that it makes the file ``made``, and return its path."""
    command = [*compiler(), *FLAGS, *arguments, "-o", str(made), *LIBRARIES]
    status, _, said = _output_of(command)
    if status or not made.exists():
        error = next(
            (line for line in said.splitlines() if "error" in line.lower() or "No space" in line), said.strip()[:300]
        )
        name = compiler()[0]
        error = error or f"it printed no error; if {name} cannot compile any C++, set CXX to another compiler"
        raise Unsupported(f"{name} does not compile the program (status {status}): {error}")
    return made


MESH = 64 << 20  # bytes; a third-level cache of this size or more belongs to many cores and is slow to reach


def cache_bytes() -> int:
    """Return the size of a core's L2 cache in bytes; 512 KiB if unknown."""
    return _cache_size(2) or 512 << 10


def cache_is_far() -> bool:
    """Return whether the L3 cache is so large (`MESH`) that it is probably spread over a server's mesh and slow to reach."""
    return _cache_size(3) >= MESH


@once
def cache_share() -> int:
    """Return a core's share of the L3 cache in bytes; 0 if unknown."""
    return _cache_size(3, shared=True)


def _cache_size(level: int, shared: bool = False) -> int:
    """Return the size in bytes of a core's cache of this level; 0 if unknown.

    If it is ``shared``, divide it by the number of processors that share it.
    """
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "level").read_text(encoding="utf-8").strip() == str(level):
                text = (index / "size").read_text(encoding="utf-8").strip()
                size = int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]]
                mask = (index / "shared_cpu_map").read_text(encoding="utf-8") if shared else "1"
                return size // max(1, int(mask.replace(",", ""), 16).bit_count())
        except (OSError, ValueError, KeyError):
            continue
    if shared:
        return 0
    try:
        return max(0, os.sysconf(f"SC_LEVEL{level}_CACHE_SIZE"))
    except (OSError, ValueError):
        return 0
