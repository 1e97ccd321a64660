"""The seal of a checkpoint: text after the end of the HDF5 data, by which readers detect that the file has changed.

The seal holds the checksum of each array (`numerics.checksum`) and the SHA-256 of all other bytes of the file, and ends with
its own SHA-256. HDF5 ignores bytes after its data. Readers check the seal before HDF5 opens the file, because damaged
metadata can crash HDF5.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError

END = b"hpcstencil seal"
PIECE = 2**20  # bytes read at a time


class Damaged(InputError):
    """Raised for a checkpoint that has changed since it was written."""


@dataclass(frozen=True)
class Array:
    """The position of an array in the file (``offset`` and ``size`` in bytes), and the checksum of the global array."""

    offset: int
    size: int
    checksum: int


def seal(path: Path, arrays: Mapping[str, Array]) -> None:
    """Append the seal, with the positions and checksums of ``arrays``, to the closed file at ``path``. Raises OSError."""
    with path.open("r+b") as file:
        end = path.stat().st_size
        rest = _digest_of_rest(file, end, arrays)
        said = {"end": end, "arrays": {name: vars(array) for name, array in arrays.items()}, "rest": rest}
        text = json.dumps(said).encode()
        file.seek(end)
        file.write(text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"%12d" % len(text) + END)


def read_seal(path: Path) -> dict[str, Array]:
    """Check the seal of the file at ``path``, and return the positions and checksums of its arrays.

    The values of the arrays are not read. Raises Damaged if any other byte has changed, InputError if there is no such file,
    EnvironmentProblem if it cannot be read.
    """
    tail = 64 + 12 + len(END)
    with file_errors(path, "read"):
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - tail))
            ending = file.read()
            length = ending[64:76].strip()
            if not ending.endswith(END) or not length.isdigit() or int(length) > size - tail - 1:
                raise Damaged(f"{path}: is cut short or damaged at its end; take an older checkpoint")
            end = size - tail - 1 - int(length)
            file.seek(end)
            text = file.read(int(length))
            if hashlib.sha256(text).hexdigest().encode() != ending[:64]:
                raise Damaged(f"{path}: its checksums are damaged; take an older checkpoint")
            try:
                said = json.loads(text)
                arrays = {name: Array(**values) for name, values in said["arrays"].items()}
                fits = said["end"] == end and all(_inside(array, end) for array in arrays.values())
                rest = said["rest"]
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise Damaged(f"{path}: its checksums are damaged; take an older checkpoint") from error
            if not fits or rest != _digest_of_rest(file, end, arrays):
                raise Damaged(f"{path}: its description is damaged; take an older checkpoint")
    return arrays


def _inside(array: Array, end: int) -> bool:
    """Return whether the array lies within the first ``end`` bytes and all its numbers are integers."""
    numbers = (array.offset, array.size, array.checksum)
    return all(type(n) is int for n in numbers) and 0 <= array.offset <= array.offset + array.size <= end


def _digest_of_rest(file: BinaryIO, end: int, arrays: Mapping[str, Array]) -> str:
    """Return the SHA-256 of the file's first ``end`` bytes without those of the arrays."""
    digest = hashlib.sha256()
    file.seek(0)
    for array in [*sorted(arrays.values(), key=lambda array: array.offset), Array(end, 0, 0)]:
        while (left := array.offset - file.tell()) > 0 and (piece := file.read(min(left, PIECE))):
            digest.update(piece)
        file.seek(array.offset + array.size)
    return digest.hexdigest()
