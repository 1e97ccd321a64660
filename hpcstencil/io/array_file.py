"""Arrays that an input refers to: on the grid or as a time series, in a file or in the memory of a Python program.

A file is an HDF5 file with the name of a dataset, a NumPy file, or a PNG image.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from hpcstencil.io.dataset_names import PROBES, VALUES
from hpcstencil.numerics.topology import Range
from hpcstencil.validation.errors import InputError

HDF5_SUFFIXES = (".h5", ".hdf5", ".nc")
IMAGE = "an image"
KINDS = {".npy": "a NumPy file", ".png": IMAGE}  # files that hold a single array, by suffix
VALUES_AT_ONCE = 2**22  # values that `scanned` reads at a time
IN_MEMORY = "array in memory"  # represents an array of a Python program in the text of an input
MOST_SAMPLES = 2**20  # largest length of a time series, which every process holds
DARK = 128  # grey levels (of 0 to 255) below this are dark


@dataclass(frozen=True)
class ArrayContents:
    """A summary of an array: the SHA-256 of its values, the smallest and the largest value.

    ``samples`` are the values of a time series, and empty for other arrays.
    """

    sha256: str
    lowest: float
    largest: float
    samples: tuple[float, ...] = ()

    @property
    def magnitude(self) -> float:
        """The largest absolute value in the array."""
        return max(abs(self.lowest), abs(self.largest))


@dataclass(frozen=True)
class ArrayFile:
    """An array in the file at ``path``. ``name`` is the dataset in an HDF5 file, and "" for other files."""

    path: Path
    name: str = ""

    @classmethod
    def of(cls, text: str) -> ArrayFile | None:
        """Parse a text of the input, such as "FILE.h5:DATASET", "FILE.npy" or "FILE.png"; return None for other texts."""
        if Path(text).suffix.lower() in KINDS:
            return cls(Path(text))
        file, _, name = text.rpartition(":")
        return cls(Path(file), name) if Path(file).suffix.lower() in HDF5_SUFFIXES and name else None

    @property
    def kind(self) -> str:
        """The kind of file in words, for messages: "an HDF5 file", "a NumPy file" or "an image"."""
        return KINDS.get(self.path.suffix.lower(), "an HDF5 file")

    def __str__(self) -> str:
        return f"{self.path}:{self.name}" if self.name else str(self.path)

    @property
    def prefix(self) -> str:
        """The beginning of messages about the values, after the key."""
        return f"{self}: "

    def samples(self) -> np.ndarray:
        """Read the array of a time series, in the dtype of the file.

        Raises InputError if the file or dataset is missing or does not fit, EnvironmentProblem if reading fails.
        """
        if not self.name:
            return mapped(self.path)
        from hpcstencil.io.file_read import read_series

        return read_series(self.path, self.name, MOST_SAMPLES)

    def whole(self) -> np.ndarray:
        """Read the whole array, in its shape and the dtype of the file.

        Raises InputError if the file or dataset is missing, EnvironmentProblem if reading fails.
        """
        if not self.name:
            return mapped(self.path)
        from hpcstencil.io.file_read import read_whole

        return read_whole(self.path, self.name)

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the whole array, without reading an HDF5 or NumPy file from end to end. Raises as `whole`."""
        if not self.name:
            return (dark_pixels(self.path) if self.kind == IMAGE else mapped(self.path)).shape
        from hpcstencil.io.file_read import read_shape

        return read_shape(self.path, self.name)

    def recorded(self, axes: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the times ("time") of samples that a run recorded, and the places of its receivers along the ``axes``.

        Other arrays have none. Raises InputError if the file is missing, EnvironmentProblem if reading fails.
        """
        match self.name.strip("/").split("/"):
            case [group, table, dataset] if (group, dataset) == (PROBES, VALUES):
                from hpcstencil.io.file_read import read_recorded

                return read_recorded(self.path, table, axes)
        return {}

    def read(self, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
        """Read the block ``ranges`` (global, half-open, per axis) of an array of the grid's ``shape``.

        The result is C-contiguous, without ghost cells, in the dtype of the file. The block of an image is int8: 1 for dark
        pixels, else 0, with x to the right and y upwards, as in plots. Raises InputError if the file or dataset is missing
        or does not fit, EnvironmentProblem if reading fails.
        """
        if self.name:
            from hpcstencil.io.file_read import read_block

            return read_block(self.path, self.name, ranges, shape=shape)
        if self.kind == IMAGE and len(shape) != 2:
            raise InputError(f"{self.path}: an image fits grids with two axes, not {len(shape)}; use a NumPy file")
        whole = dark_pixels(self.path) if self.kind == IMAGE else mapped(self.path)
        if whole.shape != tuple(shape):
            raise InputError(
                f"{self.path}: it has shape {whole.shape}, expected {tuple(shape)}: it must be on the same grid"
                f"{_series_hint(whole.shape, shape)}"
            )
        return np.ascontiguousarray(whole[tuple(slice(start, stop) for start, stop in ranges)])


@dataclass(frozen=True)
class ArrayInMemory:
    """An array that a Python program passes: on the whole grid, or a time series, in any real dtype.

    ``values`` is None if the array is not available, as in the input that an output stores. Reading it then raises
    InputError.
    """

    values: np.ndarray | None = field(default=None, compare=False, repr=False)
    kind: ClassVar[str] = IN_MEMORY
    prefix: ClassVar[str] = ""

    def __str__(self) -> str:
        return IN_MEMORY

    def samples(self) -> np.ndarray:
        """Return the array itself, as `whole`."""
        return self.whole()

    def whole(self) -> np.ndarray:
        """Return the array itself. Raises InputError if it is not available."""
        if self.values is None:
            raise InputError(
                f'expected a file with numbers, but got "{IN_MEMORY}", which stands for an array of a Python program; save it '
                "with numpy.save and name that file"
            )
        return self.values

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array. Raises InputError if it is not available."""
        return self.whole().shape

    def recorded(self, axes: Sequence[str]) -> dict[str, np.ndarray]:
        """Return nothing, see `ArrayFile.recorded`."""
        return {}

    def read(self, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
        """Return the block ``ranges`` (global, half-open, per axis), without ghost cells.

        Raises InputError if the array is not available or does not have the grid's ``shape``.
        """
        whole = self.samples()
        if whole.shape != tuple(shape):
            advice = "give its transpose" if whole.shape[::-1] == tuple(shape) else "change it"
            raise InputError(
                f"expected an array of the grid's shape {tuple(shape)}, but got {whole.shape}; {advice}"
                f"{_series_hint(whole.shape, shape)}"
            )
        return np.ascontiguousarray(whole[tuple(slice(start, stop) for start, stop in ranges)])


@dataclass(frozen=True)
class ArrayOfMember:
    """The part of an ``array`` for the member number ``member`` of an ensemble, with the methods of `ArrayFile`.

    That is the whole array, or its part at this index if its first axis is that of the ``members``. In an HDF5 file only arrays
    of receivers and the fields of an ensemble's output have such an axis: other datasets with an axis more than the grid are
    series of snapshots.
    """

    array: ArrayFile | ArrayInMemory
    member: int
    members: int

    def whole(self) -> np.ndarray:
        """Read the samples of receivers, an array with two axes or, with that of the members, three. See `ArrayFile.whole`."""
        values = self.array.whole()
        return values[self.member] if values.ndim == 3 and len(values) == self.members else values

    def recorded(self, axes: Sequence[str]) -> dict[str, np.ndarray]:
        """See `ArrayFile.recorded`."""
        return self.array.recorded(axes)

    def read(self, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
        """Read a block of an array on the grid. See `ArrayFile.read`."""
        array, own = self.array, (self.members, *shape)
        if isinstance(array, ArrayFile) and array.name:
            from hpcstencil.io.file_read import read_block

            return read_block(array.path, array.name, ranges, shape=shape, member=(self.member, self.members))
        if isinstance(array, ArrayFile) and array.kind == IMAGE:
            return array.read(ranges, shape)
        if array.whole().shape == own:
            return array.read([(self.member, self.member + 1), *ranges], own)[0]
        return array.read(ranges, shape)


def _series_hint(found: Sequence[int], shape: Sequence[int]) -> str:
    """The end of a message about an array of the wrong shape that may be a time series."""
    return ", or write { series = ..., dt = ... } for samples in time" if len(found) == 1 < len(shape) else ""


def array_of(text: str) -> ArrayFile | ArrayInMemory | None:
    """Return the array to which a text of the input refers; None for other texts."""
    return ArrayInMemory() if text == IN_MEMORY else ArrayFile.of(text)


def scanned(array: ArrayFile | ArrayInMemory | ArrayOfMember, shape: Sequence[int]) -> ArrayContents:
    """Summarize an array of the grid's ``shape``, which is read once, a few planes at a time.

    Raises InputError if the array is missing, does not fit, or holds non-finite values; EnvironmentProblem if reading a file
    fails.
    """
    digest, lowest, largest = hashlib.sha256(), math.inf, -math.inf
    prefix = array.array.prefix if isinstance(array, ArrayOfMember) else array.prefix
    planes = max(1, VALUES_AT_ONCE // math.prod(shape[1:]))
    for start in range(0, shape[0], planes):
        ranges = [(start, min(start + planes, shape[0])), *((0, n) for n in shape[1:])]
        block = array.read(ranges, shape)
        finite = np.isfinite(block)
        if not finite.all():
            index = np.argwhere(~finite)[0]
            cell = ", ".join(map(str, (index + [start, *[0] * (len(shape) - 1)]).tolist()))
            raise InputError(
                f"{prefix}expected finite numbers, but got {block[tuple(index)]} in cell [{cell}]; correct it"
            )
        digest.update(block.data)
        lowest, largest = min(lowest, float(block.min())), max(largest, float(block.max()))
    return ArrayContents(digest.hexdigest(), lowest, largest)


def series_in(array: ArrayFile | ArrayInMemory) -> ArrayContents:
    """Summarize a time series, an array with one axis and 2 to MOST_SAMPLES values. Raises the same errors as `scanned`."""
    values = array.samples()
    if values.ndim != 1 or not 2 <= values.size <= MOST_SAMPLES:
        raise InputError(
            f"{array.prefix}it has shape {values.shape}, expected one axis with 2 to {MOST_SAMPLES} samples; "
            "write such an array"
        )
    with np.errstate(over="ignore"):
        samples = values.astype(np.float64)
    if not np.isfinite(samples).all():
        n = int(np.argmin(np.isfinite(samples)))
        raise InputError(f"{array.prefix}expected finite numbers, but got {samples[n]} in sample {n}; correct it")
    digest = hashlib.sha256(samples.data).hexdigest()
    return ArrayContents(digest, float(samples.min()), float(samples.max()), tuple(samples.tolist()))


def mapped(path: Path) -> np.ndarray:
    """Map the array in a NumPy file into memory, so that only the parts used are read.

    Raises InputError if the file does not hold an array of real numbers.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (
        Exception
    ):  # no narrower: a damaged header makes numpy raise SyntaxError, EOFError, tokenize.TokenError and others
        array = None
    if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
        return array
    found = (
        f"it holds {array.dtype}" if isinstance(array, np.ndarray) else "it is another kind of file, or holds objects"
    )
    raise InputError(
        f"{path}: expected a file of numpy.save with an array of real numbers, but {found}; write it again with numpy.save"
    )


def dark_pixels(path: Path) -> np.ndarray:
    """Read the dark pixels of a PNG image: an int8 array of 1 (dark) and 0, indexed [x, y] with y upwards.

    Transparent pixels count as white. Raises InputError if the file is not a PNG image.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as image:
            coloured = image.convert("RGBA")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: expected a PNG image, but got: {error}; write it again") from None
    white = Image.new("RGBA", coloured.size, "white")
    grey = np.asarray(Image.alpha_composite(white, coloured).convert("L"))
    return (grey[::-1].T < DARK).astype(np.int8)
