"""Preparation of an output file by rank 0, before all processes open it.

A new file is laid out under a temporary name and then renamed. An old file that a run continues is truncated in
transactions. At every moment, the file at ``path`` is therefore a complete old output or a complete new one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from hpcstencil.io import xdmf
from hpcstencil.io.dataset_names import DIAGNOSTICS, PROBES, VALUES
from hpcstencil.io.file_layout import Description, lay_out, write_attributes
from hpcstencil.io.file_read import SCALES, fields_in
from hpcstencil.io.file_spans import UNUSED, sound_unused
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.io.hdf5_validation import WHOLE, attributes, groups_in, numbers, refuse_other_files
from hpcstencil.io.rollback_journal import journal_path, living_writer, roll_back
from hpcstencil.io.truncate import Prepared, cut_back
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError

FORMAT_VERSION = 1
RESERVED = (DIAGNOSTICS, PROBES, *SCALES)  # names at the root of the file that no field may have


def refuse_existing(
    path: Path, key: str, overwrite: str = "--overwrite to replace it, --resume to continue its run"
) -> None:
    """Raise InputError if an output ``path`` exists, because it is replaced only at the user's request.

    ``key`` is the name of the setting that gives the path, and ``overwrite`` tells how to replace the file.
    """
    if path.exists():
        raise InputError(f"{path}: exists already; use {overwrite}, or choose another {key}")


def refuse_reserved(fields: Sequence[str]) -> None:
    """Raise InputError if a field has a name that the file uses itself."""
    clash = [name for name in fields if name in RESERVED]
    if clash:
        raise InputError(f"field '{clash[0]}': the output file uses this name itself; choose another")


def lay_out_anew(path: Path, description: Description) -> Prepared:
    """Lay out a new file at ``path``, which replaces an existing one, with ``complete`` = 0 and no snapshot.

    For rank 0 only. Raises EnvironmentProblem if the file system fails.
    """
    target, journal = Path(os.path.realpath(path)), journal_path(path)  # a link, to a larger disk perhaps, stays one
    temporary = target.with_name(target.name + ".tmp")
    with file_errors(path, "create"):
        temporary.unlink(missing_ok=True)
        with open_alone(temporary, "w") as file:
            about = {**description.attributes, "kind": "output", "format_version": FORMAT_VERSION}
            write_attributes(file, {**about, "complete": 0})
            lay_out(file, description)
            xdmf.write_mesh(file, description.layout.grid)
        journal.unlink(missing_ok=True)
        os.replace(temporary, target)  # a process that is reading the old file keeps it
    itemsize, compressed = np.dtype(description.dtype).itemsize, description.compression != "none"
    groups = [DIAGNOSTICS, *(f"{PROBES}/{name}" for name in description.receivers)]
    return Prepared((), (), dict.fromkeys(groups, ()), itemsize, compressed, description.solid_axes)


def cut_to_continue(path: Path, description: Description, step: int | None) -> Prepared:
    """Undo a change that a killed run left unfinished, and truncate the file after ``step`` (see `truncate.cut_back`).

    For rank 0 only. Raises InputError if the file is not an output with these fields in this layout, or if a run on this
    host is writing it; EnvironmentProblem if the file system fails.
    """
    if alive := living_writer(path):
        raise InputError(f"{path}: process {alive} of this host is writing it; continue when that run has ended")
    with file_errors(path, "append to"):
        roll_back(path)
        with open_alone(path, "r") as file:
            refuse_other_files(file, path)
            _check_same(file, path, description)
        return cut_back(path, description.fields, step, description.attributes)


def _check_same(file: h5py.File, path: Path, description: Description) -> None:
    """Raise InputError unless ``file`` is an output with these fields, layout and probes whose series can grow."""
    layout, fields = description.layout, description.fields
    if attributes(path, file).get("kind") != "output":
        raise InputError(f"{path}: not an output file of hpcstencil; choose another --output")
    there = fields_in(file)
    if set(there) != set(fields):
        raise InputError(
            f"{path}: holds the fields {sorted(there)}, this run has {sorted(fields)}; choose another --output"
        )
    for name in fields:
        shape, members = there[name].shape, len(layout.members)
        found, expected = (*shape[:members], *shape[members + 1 :]), (*layout.members, *layout.shape(name))
        if found != expected:
            raise InputError(f"{path}: its grid has shape {found}, this run's {expected}")
    probes = {f"{PROBES}/{name}/": places for name, places in description.receivers.items()}
    recorded = sorted(f"{PROBES}/{name}/" for name in groups_in(file, PROBES))
    if recorded != sorted(probes):
        raise InputError(f"{path}: holds the probes {recorded}, this run has {sorted(probes)}; choose another --output")
    counted = [numbers(path, file, f"{group}{name}", 1, kinds=kinds) for group in ("", f"{DIAGNOSTICS}/", *probes)
               for name, kinds in (("time", "f"), ("step", WHOLE))]  # fmt: skip
    measured = [numbers(path, file[DIAGNOSTICS], name, 1, 2) for name in file[DIAGNOSTICS]]
    for group, places in probes.items():
        measured.append(numbers(path, file, group + VALUES, 2 + len(layout.members)))
        if measured[-1].shape[-1] != len(places):
            raise InputError(
                f"{path}: '{group}' has {measured[-1].shape[-1]} receivers, this run {len(places)}; choose another --output"
            )
    for dataset in (*counted, *measured, *(there[name] for name in fields)):
        if dataset.maxshape.count(None) != 1 or dataset.dtype.kind not in "fi" or dataset.dtype.itemsize not in (4, 8):
            raise InputError(
                f"{path}: expected a series that can grow in '{dataset.name}', as a run lays it out; choose another --output"
            )
    if not sound_unused(file):
        raise InputError(f"{path}: its attribute '{UNUSED}' is damaged; choose another --output")
