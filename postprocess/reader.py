"""A read-only view of an output or checkpoint file. A run may still be writing the file, or may have died.

The length of `/time` is the number of snapshots. The writer extends and flushes the fields first and `/time` last, so fields
may have one more snapshot than `/time`. That snapshot is ignored.
"""

from __future__ import annotations

import difflib
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcstencil.io.dataset_names import PROBES, VALUES
from hpcstencil.io.file_names import base_name
from hpcstencil.io.hdf5_validation import (
    RESULTS,
    SIGNATURE,
    WHOLE,
    attributes,
    groups_in,
    json_attribute,
    kind_of,
    numbers,
    probe_datasets,
    refuse_other_files,
    refuse_unwritten,
    series,
)
from hpcstencil.io.rollback_journal import Before, pending
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import printable
from hpcstencil.validation.toml_text import flatten, parse

AXES = ("x", "y", "z")
_COORDINATES = ("member", *AXES, *(f"{axis}_face" for axis in AXES))
MASK = "solid"
UNFINISHED = (
    "A change to the file is unfinished; the contents shown are those before it: wait if a run is writing it; if that "
    "was killed, `hpcstencil info --repair` or `run --resume` undoes the change for good, and every snapshot is kept."
)


class FileProblem(Exception):
    """Raised if a file cannot be read or lacks required data. The message is one sentence for the user."""


class RequestProblem(Exception):
    """Raised if a request (a field, a slice, a name) does not fit the file. The message is one sentence for the user."""


@dataclass(frozen=True)
class Field:
    """A field without its values.

    `dims` and `shape` have an entry per grid axis (`x`, or `x_face`, ...), preceded in an ensemble by that of the members.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    units: str
    long_name: str


@dataclass(frozen=True)
class Probes:
    """The receivers of one table of [probes].

    It has the name and unit of the recorded quantity, the coordinates of the receivers by axis (float64 of shape (n,)), and
    the times of the committed samples (float64 of shape (m,)).
    """

    long_name: str
    units: str
    places: Mapping[str, NDArray[np.float64]]
    times: NDArray[np.float64]

    @property
    def count(self) -> int:
        """The number of receivers."""
        return len(next(iter(self.places.values())))


@dataclass(frozen=True)
class FileView:
    """The contents of a file, without the values of fields, which `read` fetches on request.

    Attributes
    ----------
    kind
        "output", or "checkpoint" with a single snapshot.
    coordinates
        The coordinates by dimension, in the order x, y, z: float64 of shape (n,).
    times, steps
        The times (float64) and steps (int64) of the committed snapshots, of shape (snapshots,).
    attributes
        The attributes of the file's root.
    diagnostics
        The time series by name, including `time` and `step`, of shape (m,), or (m, members) in an ensemble.
    problems
        Sentences about defects of the file.
    solid
        The dimensions of the mask; empty without a mask.
    probes
        The receivers of each table of [probes].
    """

    path: Path
    kind: str
    coordinates: Mapping[str, NDArray[np.float64]]
    fields: Mapping[str, Field]
    times: NDArray[np.float64]
    steps: NDArray[np.int64]
    attributes: Mapping[str, Any]
    diagnostics: Mapping[str, NDArray[Any]]
    problems: tuple[str, ...]
    solid: tuple[str, ...] = ()
    probes: Mapping[str, Probes] = dataclass_field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether the run that wrote the file finished; for a checkpoint, whether it was written completely."""
        return bool(self.attributes.get("complete", 0) == 1)

    @property
    def is_stream(self) -> bool:
        """Whether this is the file of a stream of [output.streams]."""
        return "stream" in self.attributes

    def missing_series(self, table: str) -> str:
        """Say what to do if the file has no time series of ``table``, such as "[diagnostics]"."""
        if self.is_stream or self.kind == "checkpoint":
            kind = "the file of a stream" if self.is_stream else "a checkpoint"
            return f"it is {kind}, so plot the run's own output instead"
        return f"add a table {table} to the input and run it"

    @property
    def ensemble(self) -> dict[str, list[Any]]:
        """The values in which the members of an ensemble differ, one per member, by dotted key; empty for a single run."""
        try:
            table = self.input.get("ensemble", {})
        except FileProblem:
            return {}
        listed = flatten(table, join=".".join) if isinstance(table, dict) else ()
        return {key: values for key, values in listed if isinstance(values, list)}

    @property
    def input(self) -> dict[str, Any]:
        """The tables of the input that the file was made from. Raises FileProblem if they cannot be parsed."""
        try:
            return parse(self.attributes.get("input", ""), f"{self.path}, its attribute 'input'")
        except InputError as error:
            raise FileProblem(str(error)) from error

    @property
    def title(self) -> str:
        """The run's title, or the file's name if there is no title."""
        return printable(self.attributes.get("title", "").strip() or self.path.stem)

    def field(self, name: str | None = None) -> Field:
        """Return the field of that name (default: the first in the file).

        Raises RequestProblem, with the nearest name as a suggestion, if there is no such field.
        """
        if not self.fields:
            of = self.attributes.get("of")
            state = f", since it is a checkpoint of a {of}, from which --resume continues" if of else ""
            raise FileProblem(f"{self.path} holds no fields{state}.")
        if name is None:
            return next(iter(self.fields.values()))
        if name in self.fields:
            return self.fields[name]
        if name in self.diagnostics:
            raise RequestProblem(f"'{name}' is a diagnostic of {self.path}, not a field: plot it with --diagnostics.")
        near = difflib.get_close_matches(name, self.fields, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise RequestProblem(f"{self.path} has no field '{name}', only {', '.join(self.fields)}.{hint}")

    def check_has_snapshots(self) -> None:
        """Raise FileProblem if the file holds no snapshot."""
        if len(self.times) == 0:
            advice = "shorten its interval (every), and run again" if self.complete else "wait for the run"
            raise FileProblem(f"{self.path} holds no finished snapshot: {advice}.")

    def read(
        self, name: str, snapshot: int = -1, fixed: Mapping[str, int | slice] | None = None
    ) -> NDArray[np.floating]:
        """Read the values of a field at one snapshot, in the file's dtype. Only the requested part is read.

        `fixed` maps dimensions to an index, which drops the dimension, or to a slice. Other dimensions are complete, in the
        file's order (x, y, z). Raises FileProblem if there is no snapshot or the file cannot be read.
        """
        field, fixed = self.field(name), fixed or {}
        self.check_has_snapshots()
        index: tuple[int | slice, ...] = tuple(fixed.get(dim, slice(None)) for dim in field.dims)
        if self.kind == "output":
            members = int(field.dims[0] == "member")
            index = (*index[:members], range(len(self.times))[snapshot], *index[members:])
        with opened(self.path) as file:
            return np.asarray(file[name][index])

    def solid_cells(self, fixed: Mapping[str, int | slice], dims: tuple[str, ...]) -> NDArray[np.bool_] | None:
        """Return a mask of the solid cells among those selected by `fixed`, in the order of `dims`.

        The result is None if the file has no mask for them.
        """
        if not self.solid or any(dim not in self.solid for dim in dims):
            return None
        index = tuple(fixed.get(dim, slice(None)) for dim in self.solid)
        with opened(self.path) as file:
            return np.asarray(file[MASK][index]) != 0


def is_result(path: str | Path) -> bool:
    """Whether the file is the result of a fit or a gradient. Raises FileProblem if it cannot be read."""
    with opened(Path(path)) as file:
        return attributes(Path(path), file).get("kind") in RESULTS


def result_dataset(path: Path, file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset of numbers in the file of a fit or a gradient. Raises FileProblem if it is not there."""
    if name not in file:
        raise FileProblem(f"{path} lacks '{name}': take the file that `hpcstencil fit` or `gradient` wrote.")
    dataset = numbers(path, file, name)
    refuse_unwritten(path, dataset)
    return dataset


def read_view(path: str | Path) -> FileView:
    """Read the contents of the file at `path`. Raises FileProblem if it is not a readable output or checkpoint file."""
    path = Path(path)
    with opened(path) as file:
        found = attributes(path, file)
        kind = found.get("kind", "output" if "time" in file else "")
        if kind in RESULTS:
            raise FileProblem(
                f"{path} is the result of `hpcstencil {kind}`, without fields to choose from: `hpcstencil plot {path}` draws "
                "all of it, and hs.open reads it."
            )
        if kind == "sweep":
            raise FileProblem(
                f"{path} is a table of `hpcstencil sweep collect`, without fields: open table.csv or table.png beside it."
            )
        if kind not in ("output", "checkpoint"):
            raise FileProblem(
                f"{path} is an HDF5 file, but not one that hpcstencil wrote: it has neither an attribute 'kind' of "
                "'output' or 'checkpoint' nor a dataset '/time'."
            )
        coordinates = _coordinates(path, file)
        fields = _fields(path, file, kind, coordinates)
        times, steps, problems = _snapshots(path, file, kind, found, tuple(fields))
        if pending(path):
            problems = (*problems, UNFINISHED)
        return FileView(
            path, kind, coordinates, fields, times, steps, found, _diagnostics(path, file), problems,
            _solid(path, file, coordinates), _probes(path, file),
        )  # fmt: skip


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open the HDF5 file for reading, as a context manager; an unfinished change is not visible.

    No lock is taken, so that a run can continue to write the file. Raises FileProblem if the file cannot be opened, if it
    refers to other files, or if reading fails inside the `with` block.
    """
    _require_file(path)
    unfinished = pending(path)
    if unfinished is None:
        _require_hdf5(path)
    try:
        with ExitStack() as stack:
            before = stack.enter_context(Before(path, unfinished)) if unfinished else None
            file = stack.enter_context(h5py.File(before, "r") if before else _open_without_lock(path))
            opened_all = stack.pop_all()
    except OSError as error:
        raise FileProblem(_why_unopened(path, error)) from error
    with opened_all:
        try:
            refuse_other_files(file, path, before)
            yield file
        except InputError as error:
            raise FileProblem(str(error)) from error
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            raise FileProblem(
                f"{path} is damaged, or was changed while it was read ({_first_line(error)}): try again if a run is "
                f"writing it, else {_remedy(path)}."
            ) from error


def _open_without_lock(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r", locking=False)
    except ValueError:  # this HDF5 library is too old to be told about locks
        return h5py.File(path, "r")


def _require_file(path: Path) -> None:
    wanted = "expected an output or checkpoint file (.h5) of hpcstencil"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FileProblem(f"{path} does not exist: {wanted}.") from None
    except OSError as error:
        raise FileProblem(f"{path} cannot be read: {error.strerror}; {wanted}.") from error
    if stat.S_ISDIR(mode):
        is_sweep = (path / "plan.json").exists()
        use = f"for a sweep, use hpcstencil sweep collect {path}" if is_sweep else "choose a file in it"
        raise FileProblem(f"{path} is a directory: {wanted}; {use}.")
    if not stat.S_ISREG(mode):  # to open a pipe could take for ever
        raise FileProblem(f"{path} is a device or pipe: {wanted}.")


def _require_hdf5(path: Path) -> None:
    """Raise FileProblem for a file that is clearly not HDF5, before HDF5 opens it."""
    try:
        with path.open("rb") as file:
            head = file.read(len(SIGNATURE))
    except OSError as error:
        raise FileProblem(f"{path} cannot be read: {error.strerror}.") from error
    if head == SIGNATURE:
        return
    if not head.strip(b"\0"):
        raise FileProblem(f"{path} is empty: its writer died before the first flush; {_remedy(path)}.")
    hints = {
        ".toml": "it looks like an input file, for `hpcstencil run` or `check`",
        ".xdmf": f"give the {path.stem}.h5 that it describes",
    }
    hint = hints.get(path.suffix.lower(), "give an output or checkpoint file (.h5) of hpcstencil")
    raise FileProblem(f"{path} is not an HDF5 file: {hint}.")


def _why_unopened(path: Path, error: OSError) -> str:
    text = str(error)
    if "truncated" in text:
        return f"{path} is torn: it is shorter than its own header says, as its writer died; {_remedy(path)}."
    if "h5clear" in text or "consistency flags" in text:
        return f"{path} was not closed by its writer: if no run is writing it, `h5clear -s {path}` makes it readable."
    return f"{path} cannot be opened as HDF5 ({_first_line(error)}): {_remedy(path)}."


def _remedy(path: Path) -> str:
    """Return the advice for a lost file: use the newest checkpoint beside it, or run again if there is none."""
    if ".checkpoint." not in path.name:
        checkpoints = sorted(path.parent.glob(f"{base_name(path)}.checkpoint.*.h5"))
        if checkpoints:
            return f"continue from {checkpoints[-1]} with `hpcstencil run INPUT.toml --restart` and that file"
        return "run its input again"
    return "use an older checkpoint, or run its input again"


def _first_line(error: Exception) -> str:
    return (str(error).strip("'\"").splitlines() or [type(error).__name__])[0]


def _coordinates(path: Path, file: h5py.File) -> dict[str, NDArray[np.float64]]:
    found = {name: series(path, file, name).astype(np.float64) for name in _COORDINATES if name in file}
    for name, places in found.items():
        if not len(places) or not np.isfinite(places).all() or not (np.diff(places) > 0).all():
            raise InputError(f"{path}: expected finite numbers that increase in '{name}'; run its input again")
    return found


def _fields(path: Path, file: h5py.File, kind: str, coordinates: Mapping[str, NDArray[np.float64]]) -> dict[str, Field]:
    """Return the fields: all floating-point datasets at the root with the grid's number of dimensions."""
    axes = sum(axis in coordinates for axis in AXES)
    members = ("member",) if "member" in file else ()
    leading = len(members) + (1 if kind == "output" else 0)
    fields = {}
    for name, data in file.items():
        known = name in ("time", "step", *_COORDINATES)
        if known or not isinstance(data, h5py.Dataset) or kind_of(data) != "f" or data.ndim != axes + leading:
            continue
        dims = (*members, *(_dimension(data, leading + axis, AXES[axis]) for axis in range(axes)))
        found = attributes(path, data)
        shape = (*data.shape[: len(members)], *data.shape[leading:])
        for dim, n in zip(dims, shape, strict=True):
            if dim in coordinates and len(coordinates[dim]) != n:
                raise InputError(
                    f"{path}: '{name}' has {n} values along {dim}, where there are {len(coordinates[dim])}"
                )
        refuse_unwritten(path, data)
        fields[name] = Field(name, dims, shape, data.dtype, found.get("units", "1"), found.get("long_name", name))
    order = _order(path, file)
    return {name: fields[name] for name in sorted(fields, key=lambda name: order.get(name, len(order)))}


def _solid(path: Path, file: h5py.File, coordinates: Mapping[str, NDArray[np.float64]]) -> tuple[str, ...]:
    """Return the dimensions of the mask, an array of small integers; empty if there is none."""
    data = file.get(MASK)
    if not isinstance(data, h5py.Dataset) or kind_of(data) not in ("i", "u"):
        return ()
    dims = tuple(dim for dim in ("member", *AXES) if dim in coordinates)[-data.ndim :]
    if data.shape != tuple(len(coordinates[dim]) for dim in dims):
        raise InputError(
            f"{path}: '{MASK}' has the shape {data.shape}, which is not that of the grid; run its input again"
        )
    refuse_unwritten(path, data)
    return dims


def _order(path: Path, file: h5py.File) -> dict[str, int]:
    """Return the position of each field in the equation's order, because HDF5 lists fields by name.

    The result is empty if the file does not record the order.
    """
    return {str(name): i for i, name in enumerate(json_attribute(path, attributes(path, file), "fields", []))}


def _dimension(data: h5py.Dataset, axis: int, default: str) -> str:
    """Return the name of the dimension scale attached to an axis: that of the axis, or of its faces."""
    scales = data.dims[axis]
    name = (scales[0].name or "").rpartition("/")[2] if len(scales) else default
    return name if name == f"{default}_face" else default


def _snapshots(
    path: Path, file: h5py.File, kind: str, attributes: Mapping[str, Any], fields: tuple[str, ...]
) -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[str, ...]]:
    """Return the times and steps of the committed snapshots, and sentences about inconsistencies."""
    if kind == "checkpoint":
        missing = [key for key in ("time", "step") if key not in attributes]
        problems = tuple(f"The attribute '{key}' is missing." for key in missing)
        time, step = float(attributes.get("time", np.nan)), int(attributes.get("step", -1))
        return np.array([time]), np.array([step], np.int64), problems
    times, steps = series(path, file, "time").astype(np.float64), series(path, file, "step", WHOLE).astype(np.int64)
    n = min(len(times), len(steps))  # committed together; a kill may leave one of them longer
    axis = int("member" in file)  # the axis of snapshots
    short = {name: file[name].shape[axis] for name in fields if file[name].shape[axis] < n}
    found = [f"/{name} has {count} snapshots where /time has {n}." for name, count in short.items()]
    n = min([n, *short.values()])
    times, steps = times[:n], steps[:n]
    if not np.all(np.diff(times) > 0):
        found.append("The times of the snapshots do not increase.")
    return times, steps, tuple(found)


def _diagnostics(path: Path, file: h5py.File) -> dict[str, NDArray[Any]]:
    """Return the time series of diagnostics, truncated to their common length."""
    group = file.get("diagnostics")
    if not isinstance(group, h5py.Group) or "time" not in group:
        return {}
    found = {name: numbers(path, group, name, 1, *([] if name in ("time", "step") else [2])) for name in group}
    for data in found.values():
        refuse_unwritten(path, data)
    m = min(data.shape[-1] for data in found.values())
    return {name: data[..., :m].T for name, data in found.items()}


def _probes(path: Path, file: h5py.File) -> dict[str, Probes]:
    """Return the receivers of each table of [probes], without their samples."""
    found = {}
    for name in groups_in(file, PROBES):
        values, along = probe_datasets(path, file, name)
        places = {axis: place[()].astype(np.float64) for axis, place in along.items()}
        own = values.parent
        times, steps = series(path, own, "time").astype(np.float64), series(path, own, "step", WHOLE)
        rows = min(len(times), len(steps), values.shape[-2])
        about = attributes(path, values)
        found[name] = Probes(about.get("long_name", name), about.get("units", "1"), places, times[:rows])
    return found


def read_samples(view: FileView, name: str, member: int | None) -> NDArray[np.floating]:
    """Read the committed samples of a table of [probes], of shape (times, receivers), for one member of an ensemble.

    Raises RequestProblem if the file has no table of this name, or no such member.
    """
    if name not in view.probes:
        known = ", ".join(view.probes)
        advice = f"choose from {known}" if known else view.missing_series("[probes.NAME]")
        raise RequestProblem(f"{view.path} has no probes '{name}': {advice}.")
    with opened(view.path) as file:
        values, rows = file[f"{PROBES}/{name}/{VALUES}"], slice(len(view.probes[name].times))
        if values.ndim < 3 and member is None:
            return np.asarray(values[rows])
        count = len(values) if values.ndim == 3 else 0
        if not 0 <= (member or 0) < count:
            raise RequestProblem(f"{view.path} has no member {member}; its members are 0 to {count - 1}." if count else
                                 f"{view.path} has no members: leave out the slice.")  # fmt: skip
        return np.asarray(values[member or 0, rows])
