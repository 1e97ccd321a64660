"""The state with which a run begins: this process's blocks, from expressions and files.

Blocks are numpy arrays of the cells in ``ranges``, the global index range (half-open) per axis: local, without ghost
cells, in the run's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcstencil.io.file_read import read_block
from hpcstencil.numerics.topology import Range
from hpcstencil.problem.parameter_files import key_of
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.solid_mask import SOLID, solid_in_file
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field
from hpcstencil.validation.errors import InputError


def initial_blocks(
    problem: Problem, ranges: Sequence[Range], names: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """The initial blocks of the fields ``names`` (default: all), with a last axis of members in an ensemble.

    Raises InputError, on this process alone, if a file of the input cannot be read.
    """
    names = problem.fields if names is None else names
    each = [_of_one(run, ranges, names) for run in problem.members or (problem,)]
    if not problem.members:
        return each[0]
    return {name: np.stack([blocks[name] for blocks in each], -1) for name in names}


def last_snapshot(problem: Problem, ranges: Sequence[Range], output: Path) -> dict[str, np.ndarray]:
    """The blocks of the last snapshot of an output that holds all fields that change.

    Raises InputError, on this process alone, if the file cannot be read.
    """
    return _read(problem, ranges, output, problem.changing)


def _of_one(problem: Problem, ranges: Sequence[Range], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The initial blocks of one run: read from files, then evaluated where there is an expression, and 0 elsewhere."""
    grid, dtype = problem.config.grid, np.dtype(problem.config.numerics.precision)
    given = {name: _given(problem, name, ranges) for name in problem.given}
    known = {Field(name): block for name, block in given.items()}
    file = None if problem.mask is None else problem.mask.file
    solid = None if file is None else solid_in_file(file, ranges, grid.shape)
    read = _from_initial_file(problem, ranges, names)
    blocks: dict[str, np.ndarray] = {}
    for name in names:
        if name in given:
            blocks[name] = given[name].astype(dtype)
            continue
        if name == SOLID and solid is not None:
            block = solid.astype(dtype)
        elif name in problem.initial:
            block = numpy_evaluate.block_values(problem.initial[name], grid, ranges, problem.parameters, dtype, known)
        elif name in read:
            block = read[name]
        else:
            block = np.zeros([stop - start for start, stop in ranges], dtype)
        if solid is not None and name != SOLID:
            block[solid] = 0
        blocks[name] = block
    return blocks


def _given(problem: Problem, name: str, ranges: Sequence[Range]) -> np.ndarray:
    """The block of a parameter that is read from a file, in the file's dtype."""
    try:
        return problem.given[name].read(ranges, problem.config.grid.shape)
    except InputError as error:
        raise InputError(f"{key_of(name)}: {error}") from None


def _from_initial_file(problem: Problem, ranges: Sequence[Range], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The blocks of those of the fields ``names`` without an expression, if the input has a file to read them from."""
    file = problem.config.initial.file
    if file is None:
        return {}
    try:
        return _read(
            problem, ranges, file, [name for name in names if name in problem.shown and name not in problem.initial]
        )
    except InputError as error:
        raise InputError(f"initial.file: {error}; every field without an expression is read from it") from None


def _read(problem: Problem, ranges: Sequence[Range], path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The blocks of ``names`` in the last snapshot of a file."""
    dtype = np.dtype(problem.config.numerics.precision)
    return {name: read_block(path, name, ranges, shape=problem.layout.shape(name), dtype=dtype) for name in names}
