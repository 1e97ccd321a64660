"""Checksums of a checkpoint, and the seal that carries them: some lines of text after the end of the HDF5 data.

Arrays are summed as they are written and read, by all processes at once, with one sum for every decomposition:

    s = sum over cells (i, j, k) of  b[i, j, k] w0[i] w1[j] w2[k]  mod 2^64,

b being the bits of a value as an integer and w odd pseudo-random weights (multilinear hashing: Carter & Wegman,
"Universal classes of hash functions", J. Comput. Syst. Sci. 18, 1979, 143-154). Odd numbers have an inverse modulo
2^64, so a change within one value always changes s. Any other change remains undetected with a probability near 2^-64.
All other bytes of the file, and the seal itself, are covered by SHA-256. HDF5 ignores bytes after its data. It does
not open a file before the seal has shown that the file is sound, because damaged metadata may crash it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcstencil.numerics.cell_noise import GOLDEN, mixed
from hpcstencil.validation.errors import InputError

END = b"hpcstencil seal"
PIECE = 2**20  # number of values summed, or bytes read, at a time


class Damaged(InputError):
    """A checkpoint differs from what was written."""


@dataclass(frozen=True)
class Array:
    """The place of an array's bytes in the file, and their checksum."""

    offset: int
    size: int
    checksum: int


def checksum(block: np.ndarray, start: Sequence[int]) -> int:
    """The contribution of ``block`` to its array's checksum, as an int64. The block is C-contiguous, of any shape and
    dtype, without ghost cells; ``start`` is its global index.

    The contributions of all blocks add up, modulo 2^64, to the checksum of the array.
    """
    if block.size == 0:
        return 0
    bits = block.view(f"u{block.itemsize}")
    rows, length = bits.reshape(-1, bits.shape[-1]), bits.shape[-1]
    sums = np.zeros(len(rows), np.uint64)
    for j in range(0, length, PIECE):
        last = _weights(bits.ndim - 1, start[-1] + j, min(PIECE, length - j))
        at_once = max(1, PIECE // len(last))
        for i in range(0, len(rows), at_once):
            sums[i : i + at_once] += np.einsum("ij,j->i", rows[i : i + at_once, j : j + PIECE], last)
    total = sums.reshape(bits.shape[:-1])
    for axis in reversed(range(bits.ndim - 1)):
        total = np.einsum("...j,j->...", total, _weights(axis, start[axis], bits.shape[axis]))
    return int(np.uint64(total).astype(np.int64))


def _weights(axis: int, start: int, count: int) -> np.ndarray:
    """The odd weights of ``count`` indices from ``start`` on along an axis, uint64."""
    index = np.arange(start, start + count, dtype=np.uint64)
    return mixed(index * GOLDEN + np.uint64(axis)) | np.uint64(1)


def seal(path: Path, arrays: Mapping[str, Array]) -> None:
    """Append the seal to the closed file at ``path``."""
    end = path.stat().st_size
    text = json.dumps(
        {
            "end": end,
            "arrays": {name: vars(array) for name, array in arrays.items()},
            "rest": _digest_of_rest(path, end, arrays),
        }
    ).encode()
    with path.open("ab") as file:
        file.write(text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"%12d" % len(text) + END)


def read_seal(path: Path) -> dict[str, Array]:
    """The places and checksums of the arrays in the sealed file at ``path``. Raises Damaged if any byte other than the
    arrays' values has changed.
    """
    tail = 64 + 12 + len(END)
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - tail))
        ending = file.read()
        length = ending[64:76].strip()
        if not ending.endswith(END) or not length.isdigit() or int(length) > size - tail - 1:
            raise Damaged(f"{path}: is cut short or damaged at its end; take an older checkpoint")
        file.seek(size - tail - 1 - int(length))
        text = file.read(int(length))
    if hashlib.sha256(text).hexdigest().encode() != ending[:64]:
        raise Damaged(f"{path}: its checksums are damaged; take an older checkpoint")
    end = size - tail - 1 - len(text)
    try:
        said = json.loads(text)
        arrays = {name: Array(**values) for name, values in said["arrays"].items()}
        fits = said["end"] == end and all(_inside(array, end) for array in arrays.values())
        rest = said["rest"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path}: its checksums are damaged; take an older checkpoint") from error
    if not fits or rest != _digest_of_rest(path, end, arrays):
        raise Damaged(f"{path}: its description is damaged; take an older checkpoint")
    return arrays


def _inside(array: Array, end: int) -> bool:
    """Whether the array lies within the first ``end`` bytes and its checksum is a number."""
    numbers = (array.offset, array.size, array.checksum)
    return all(type(n) is int for n in numbers) and 0 <= array.offset <= array.offset + array.size <= end


def _digest_of_rest(path: Path, end: int, arrays: Mapping[str, Array]) -> str:
    """SHA-256 of the file's first ``end`` bytes without those of the arrays."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for array in [*sorted(arrays.values(), key=lambda array: array.offset), Array(end, 0, 0)]:
            while (left := array.offset - file.tell()) > 0 and (piece := file.read(min(left, PIECE))):
                digest.update(piece)
            file.seek(array.offset + array.size)
    return digest.hexdigest()
