"""Validation of HDF5 files that come from outside.

HDF5 lets a file refer to others: by links, by external storage, which takes values from the bytes of any file, and by virtual
datasets. Users who read a file from somebody else could then expose the contents of their own files without noticing. Such
files are refused before anything in them is opened. The functions for reading datasets and attributes check that these have
the expected types, and refuse anything else with a message.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil.io.dataset_names import PROBES, VALUES
from hpcstencil.validation.errors import InputError

REAL = "fiub"  # kinds of numpy types: real numbers and truth values
WHOLE = "iu"
SIGNATURE = b"\x89HDF\r\n\x1a\n"  # of every HDF5 file
RESULTS = ("fit", "gradient")  # kinds of files that are neither outputs nor checkpoints of a run
LONGEST_TEXT = 4 * 2**20  # characters of an attribute: an input file has at most 2**20 bytes
LONGEST_SERIES = 2**26  # most values of a series that is read as a whole, such as times
LEAST_CHECKED = 2**26  # bytes that a dataset may declare without having been written
MOST_PACKED = 1100  # limit on the compression ratio; that of deflate is at most 1032
DEEPEST = 16  # most levels of nested groups
EXAMINED = 4 * 2**20  # bytes at the beginning of a file in which heaps of texts are checked
HEAP, HEADER = b"GCOL\x01", 16  # the beginning of a heap, and the size of its header and of those of its entries
KINDS = {"S": "texts", "U": "texts", "c": "complex numbers", "V": "compound values", "O": "texts or references"}
TEXT_ATTRIBUTES = ("kind", "title", "input", "input_sha256", "hpcstencil_version", "decomposition", "history",
                   "equation_source", "fields", "clock", "failure", "units", "long_name")  # fmt: skip
WHOLE_ATTRIBUTES = ("format_version", "complete", "step")
NUMBER_ATTRIBUTES = ("time",)
EXPECTED: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(TEXT_ATTRIBUTES, ("a text", str)),
    **dict.fromkeys(WHOLE_ATTRIBUTES, ("a whole number", int)),
    **dict.fromkeys(NUMBER_ATTRIBUTES, ("a number", int | float)),
}


def refuse_other_files(file: h5py.File, path: Path, view: io.RawIOBase | None = None) -> None:
    """Raise InputError if anything in the file would make HDF5 read another file, OSError if it would read without end.

    ``file`` was opened from ``view``, or from the file at ``path`` if there is none.
    """
    if view is None:
        with path.open("rb", buffering=0) as raw:
            _refuse_endless_heaps(raw)
    else:
        _refuse_endless_heaps(view)
    remedy = "copy the values into the file itself (h5repack does)"
    for name, link, identity in _links(file, path):
        if link not in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT):
            raise InputError(f"{path}: '{name}' is a link to another file, and none is followed; {remedy}")
        if isinstance(identity, h5py.h5d.DatasetID):
            properties = identity.get_create_plist()
            if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count() > 0:
                raise InputError(f"{path}: '{name}' takes its values from other files, which are not read; {remedy}")


def _refuse_endless_heaps(file: io.RawIOBase) -> None:
    """Raise OSError if the entries of a global heap, which holds the texts of attributes, do not fill it.

    HDF5 would read such a heap without end if the size of an entry is 0. Only heaps in the first `EXAMINED` bytes are checked:
    the attributes with which a file is created are there, those that a run changes later may not be. Reference: HDF5 File
    Format Specification 3.0, sect. III.E.
    """
    file.seek(0)
    found = file.read(EXAMINED) or b""
    start = found.find(HEAP)
    while start >= 0:
        size = int.from_bytes(found[start + 8 : start + 16], "little")
        place, end = start + HEADER, start + size
        whole = start % 8 == 0 and end <= len(found)
        while whole and place + HEADER <= end:
            index, length = (int.from_bytes(found[place + a : place + b], "little") for a, b in ((0, 2), (8, 16)))
            place += HEADER + -(-length // 8) * 8 if index else length  # entry 0 is free space, with its header
            if place > end or (not index and length < HEADER):
                raise OSError("its heap of texts is damaged")
        start = found.find(HEAP, start + 1)


def _links(file: h5py.File, path: Path) -> Iterator[tuple[str, int, Any]]:
    """Yield (name, kind of link, the object if it is a hard link) of everything in the file, entering each group once.

    Raises InputError if groups are nested too deeply. HDF5's own traversal is recursive, so deeply nested groups could crash
    it.
    """
    seen, waiting = {h5py.h5o.get_info(file.id).addr}, [("", file.id, 0)]
    while waiting:
        above, group, depth = waiting.pop()
        if depth > DEEPEST:
            raise InputError(f"{path}: expected groups at most {DEEPEST} deep, but got more; choose another file")
        found: list[tuple[bytes, int]] = []
        group.links.iterate(lambda name, info, found=found: found.append((name, info.type)), info=True)
        for raw, link in found:
            name = above + raw.decode(errors="backslashreplace")
            try:
                identity = h5py.h5o.open(group, raw) if link == h5py.h5l.TYPE_HARD else None
            except KeyError as error:  # a damaged object
                raise OSError(error.args[0]) from error
            yield name, link, identity
            if isinstance(identity, h5py.h5g.GroupID) and (address := h5py.h5o.get_info(identity).addr) not in seen:
                seen.add(address)
                waiting.append((f"{name}/", identity, depth + 1))


def kind_of(dataset: h5py.Dataset) -> str:
    """Return the `numpy.dtype.kind` of a dataset; "" if it has no values or a type that numpy lacks."""
    try:
        return "" if dataset.shape is None else dataset.dtype.kind
    except TypeError:  # times, opaque and other types of HDF5's
        return ""


def groups_in(file: h5py.File, name: str) -> list[str]:
    """Return the names of the groups in the group ``name``; an empty list if there is no such group."""
    parent = file.get(name)
    found = parent.items() if isinstance(parent, h5py.Group) else ()
    return [own for own, item in found if isinstance(item, h5py.Group)]


def numbers(path: Path, group: h5py.Group, name: str, *axes: int, kinds: str = REAL) -> h5py.Dataset:
    """Return the dataset ``name`` of a group, which must hold numbers.

    Raises InputError, with ``path`` in its message, unless the dataset exists, its numpy kind is one of ``kinds``, and its
    number of axes is one of ``axes`` (any number if none are given).
    """
    item = group.get(name)
    place = f"{group.name}/{name}".lstrip("/")
    if item is None:
        raise InputError(f"{path}: no dataset '{place}'; it holds {_contents(group)}")
    kind = kind_of(item) if isinstance(item, h5py.Dataset) else ""
    if not kind or kind not in kinds:
        wanted = "whole numbers" if kinds == WHOLE else "real numbers"
        got = KINDS.get(kind, "values of another type, or none") if isinstance(item, h5py.Dataset) else "a group"
        raise InputError(f"{path}: expected {wanted} in '{place}', but got {got}; write such a dataset")
    if axes and item.ndim not in axes:
        counts = " or ".join(map(str, axes))
        raise InputError(f"{path}: expected '{place}' with {counts} axes, but got the shape {item.shape}; correct it")
    return item


def series(path: Path, group: h5py.Group, name: str, kinds: str = REAL) -> np.ndarray:
    """Read the dataset ``name``, which must have one axis.

    Raises InputError if there is no such dataset, or if it is longer than any that a run writes.
    """
    dataset = numbers(path, group, name, 1, kinds=kinds)
    if dataset.size > LONGEST_SERIES:
        raise InputError(
            f"{path}: expected at most 2**26 values in '{name}', but got {dataset.size}; choose an undamaged file"
        )
    return np.asarray(dataset[()])


def probe_datasets(path: Path, file: h5py.File, name: str) -> tuple[h5py.Dataset, dict[str, h5py.Dataset]]:
    """Return (values, places) of a table of probes: the samples (times, receivers), in an ensemble (members, times, receivers),
    and the coordinates by axis.

    Raises InputError if a dataset is missing or malformed, or if the coordinates do not fit the samples.
    """
    group = file[f"{PROBES}/{name}"]
    values = numbers(path, group, VALUES, 3 if "member" in file else 2)
    places = {axis: numbers(path, group, axis, 1) for axis in "xyz" if axis in group}
    if {len(along) for along in places.values()} != {values.shape[-1]}:
        raise InputError(f"{path}: expected a place for each receiver of {PROBES}/{name}; run its input again")
    return values, places


def refuse_unwritten(path: Path, dataset: h5py.Dataset) -> None:
    """Raise InputError if a dataset declares more values than the file can hold even with the best compression.

    Reading such a dataset would practically never end.
    """
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > LEAST_CHECKED + MOST_PACKED * stored:
        raise InputError(
            f"{path}: '{dataset.name}' declares {dataset.nbytes} bytes, but the file holds {stored} of it; choose an "
            "undamaged file"
        )


def _contents(group: h5py.Group) -> str:
    names = list(group)
    return (", ".join(names[:20]) + (" ..." if len(names) > 20 else "")) or "nothing"


# ---- attributes ------------------------------------------------------------------------------------------------------


def attributes(path: Path, item: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """Return the attributes of ``item`` that are a text or a real number, as Python values by name; omit others.

    Raises InputError if an attribute that a run writes has the wrong type, or if a text is too long.
    """
    found: dict[str, Any] = {}
    for name in item.attrs:
        value = _attribute(item, name)
        what, wanted = EXPECTED.get(name, ("", object))
        if not isinstance(value, wanted):
            raise InputError(f"{path}: expected {what} in the attribute '{name}', but got something else; correct it")
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise InputError(
                f"{path}: expected an attribute '{name}' of at most 4 MiB, but got {len(value)} characters; correct it"
            )
        if value is not None:
            found[name] = value
    return found


def _attribute(item: h5py.Group | h5py.Dataset, name: str) -> Any:
    """Return the attribute ``name`` as a Python value if it is a text or a real number; else None."""
    identity = item.attrs.get_id(name)
    try:
        kind = identity.dtype.kind
    except TypeError:  # a type that numpy does not have
        return None
    if identity.shape != () or (kind not in REAL and kind not in "SO"):
        return None
    if kind == "O" and h5py.check_string_dtype(identity.dtype) is None:
        return None  # references, and values of any length
    value = item.attrs[name]
    if isinstance(value, str):  # bytes that are not UTF-8 become lone surrogates, which cannot be encoded
        return value.encode(errors="surrogateescape").decode(errors="replace")
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.item() if isinstance(value, np.generic) else None


def json_attribute(path: Path, found: dict[str, Any], name: str, empty: Any) -> Any:
    """Parse the attribute ``name`` among those ``found`` as JSON; return ``empty`` if it is missing.

    Raises InputError if the text is not JSON or the value does not have the type of ``empty``.
    """
    try:
        value = json.loads(found.get(name) or json.dumps(empty))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, type(empty)):
        raise InputError(
            f"{path}: its attribute '{name}' is damaged: not the JSON that a run writes; take another file"
        )
    return value
