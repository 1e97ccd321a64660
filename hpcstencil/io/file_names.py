"""Names of the files that a run keeps beside an output."""

from __future__ import annotations

from pathlib import Path


def base_name(output: Path) -> str:
    """Return the name with which those of all files beside ``output`` begin: NAME for NAME.h5.

    For other names it is the whole name and ``.output``: runs that write NAME, NAME.nc and NAME.h5 share no checkpoints.
    """
    return output.stem if output.suffix == ".h5" else f"{output.name}.output"


def xdmf_path(output: Path) -> Path:
    """Return the path of the file that describes ``output`` for ParaView: NAME.xdmf beside NAME.h5."""
    return output.with_name(f"{base_name(output)}.xdmf")
