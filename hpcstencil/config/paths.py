"""File paths in an input: the data files that a run reads, and the output files, which must not overwrite them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from hpcstencil.config.limits import LONGEST_FILE_NAME, LONGEST_PART
from hpcstencil.config.path_checks import check_path
from hpcstencil.config.settings import Config
from hpcstencil.io.array_file import ArrayFile, ArrayInMemory
from hpcstencil.io.file_names import base_name, xdmf_path
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at

# The names of the files that a run keeps beside its outputs.
BESIDE = re.compile(r"\.(xdmf|lock|journal|tmp|checkpoint\.\d{12,}\.h5)$")


def sources(config: Config) -> dict[str, Path]:
    """The absolute paths of the data files that the input names, by dotted key, such as "initial.file".

    Arrays in memory and the Python file of an equation are not among them.
    """
    arrays = {key: file.path for key, file in all_arrays(config).items() if isinstance(file, ArrayFile)}
    return arrays if config.initial.file is None else {"initial.file": config.initial.file, **arrays}


def files_read(config: Config) -> dict[str, Path]:
    """All files that the input names for reading, as absolute paths by key: `sources`, the Python file of an equation, and
    those that were read with the input."""
    equation = config.equation
    with_input = {
        "equation.name": equation.in_file and equation.in_file[0],
        **{at("equation", "stencils", name): stencil.file for name, stencil in equation.stencils.items()},
        **{at("probes", name, "file"): probe.file for name, probe in config.probes.items()},
    }
    return {**{key: path for key, path in with_input.items() if path is not None}, **sources(config)}


def all_arrays(config: Config) -> dict[str, ArrayFile | ArrayInMemory]:
    """All arrays that the input refers to, by dotted key."""
    return {**array_files(config), **initial_files(config), **series_files(config), **objective_files(config)}


def array_files(config: Config) -> dict[str, ArrayFile | ArrayInMemory]:
    """The arrays with one value per grid cell, by dotted key: "mask.solid" and parameters such as "equation.D"."""
    found = {f"equation.{name}": array for name, array in config.equation.arrays.items()}
    mask = None if config.mask is None else config.mask.array
    return found if mask is None else {"mask.solid": mask, **found}


def initial_files(config: Config) -> dict[str, ArrayFile]:
    """The files with the initial values of fields, by dotted key, such as "initial.u"."""
    return {f"initial.{name}": file for name, file in config.initial.arrays.items()}


def objective_files(config: Config) -> dict[str, ArrayFile | ArrayInMemory]:
    """The data of the objective, by dotted key, such as "objective.data.target"."""
    return {at("objective", "data", name): array for name, array in config.objective.arrays.items()}


def series_files(config: Config) -> dict[str, ArrayFile | ArrayInMemory]:
    """The samples of time-dependent parameters, by dotted key, such as "equation.source"."""
    return {f"equation.{name}": series.array for name, series in config.equation.series.items()}


def check_output_path(config: Config, path: Path | None, output: Path, key: str) -> None:
    """Check that a run can write the file ``output`` and the files of its streams.

    ``path`` is the input file, or None if there is none. Raises InputError, whose message begins with ``key``, if the
    output is a folder or device, has a name that is too long or one of `BESIDE`, or is a file that the run reads. The
    files of streams obey the same rules, and no two outputs may share a name.
    """
    length = len(os.fsencode(output.name))
    if length > LONGEST_FILE_NAME:
        raise InputError(
            f"{key}: expected a file name of at most {LONGEST_FILE_NAME} bytes, since those of its checkpoints are longer, but "
            f"got one of {length}; choose a shorter one"
        )
    check_path(key, output.absolute())
    longest = max(len(os.fsencode(part)) for part in output.absolute().parts)
    if longest > LONGEST_PART:
        raise InputError(
            f"{key}: expected names of at most {LONGEST_PART} bytes in a path, but got one of {longest}; choose a shorter one"
        )
    if output.exists() and not output.is_file():
        what = "a folder" if output.is_dir() else "a device or pipe"
        raise InputError(f"{key}: expected the name of the output file, but {output} is {what}; choose another path")
    if BESIDE.search(output.name):
        raise InputError(
            f"{key}: expected a name like 'run.h5', but got '{output.name}', which is that of a file beside an output: its "
            "XDMF file, lock, journal or checkpoint; choose another name"
        )
    own = {} if path is None else {"the input file itself": path}
    for what, source in {**own, **{f"the file of {name}": file for name, file in files_read(config).items()}}.items():
        if os.path.realpath(output) == os.path.realpath(source):
            raise InputError(
                f"{key}: expected a file that the run does not read, but got {output}, {what}; choose another path"
            )
    _check_stream_paths(config, path, output)


def stream_paths(config: Config, output: Path) -> dict[str, Path]:
    """The output file of each stream, by name, for a run whose main output is ``output``: the path in the input, or
    NAME.STREAM.h5 beside NAME.h5."""
    return {
        name: output.with_name(f"{base_name(output)}.{name}.h5") if stream.path is None else stream.path.absolute()
        for name, stream in config.output.streams.items()
    }


def _check_stream_paths(config: Config, path: Path | None, output: Path) -> None:
    """Raise InputError if two streams, or a stream and the main output, would write the same HDF5 or XDMF file."""
    alone = replace(config, output=replace(config.output, streams={}))

    def beside(file: Path) -> Path:
        return xdmf_path(Path(os.path.realpath(file)))

    taken = {beside(output): "the output"}
    for name, file in stream_paths(config, output).items():
        given = config.output.streams[name].path is not None
        here = at("output", "streams", name, *(["path"] if given else []))
        check_output_path(alone, path, file, here)
        described = beside(file)
        if described in taken:
            raise InputError(
                f"{here}: expected a file of its own, but got {file}, whose name is taken by {taken[described]}; choose "
                "another path"
            )
        taken[described] = f"the stream {name}"
