"""Files of others in places where a run would write: they are never replaced, not even with --overwrite."""

from __future__ import annotations

from pathlib import Path

from hpcstencil.io import xdmf
from hpcstencil.io.file_names import xdmf_path
from hpcstencil.io.hdf5_validation import SIGNATURE
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError


def refuse_foreign(output: Path) -> None:
    """Raise InputError if the file ``output`` is not HDF5, or if the file in place of its XDMF file is something else.

    An empty file, or one that begins with zeros, is that of a run which was killed before it wrote. Raises EnvironmentProblem
    if a file cannot be read.
    """
    if output.is_file() and (found := _beginning(output, len(SIGNATURE))) != SIGNATURE and found.strip(b"\0"):
        raise InputError(f"{output}: exists already, and is not an HDF5 file; remove it, or choose another path")
    beside = xdmf_path(output)
    if beside.is_file() and _beginning(beside, len(xdmf.HEAD)) != xdmf.HEAD.encode():
        raise InputError(
            f"{beside}: exists already, and is not the XDMF file of a run; remove it, or choose another path for {output.name}"
        )


def _beginning(path: Path, count: int) -> bytes:
    """The first ``count`` bytes of a file."""
    with file_errors(path, "read"), path.open("rb") as file:
        return file.read(count)
