"""The state with which a run begins: this process's blocks, from expressions and files.

Blocks are numpy arrays of the cells in ``ranges``, the global index range (half-open) per axis: local, without ghost
cells, in the run's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hpcstencil.io.file_read import read_block
from hpcstencil.numerics.topology import Range
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.solid_mask import SOLID, solid_in_file
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.validation.errors import InputError


def initial_blocks(problem: Problem, ranges: Sequence[Range]) -> dict[str, np.ndarray]:
    """The initial blocks of all fields, with a last axis of members in an ensemble.

    Raises InputError, on this process alone, if a file of the input cannot be read.
    """
    each = [_of_one(run, ranges) for run in problem.members or (problem,)]
    if not problem.members:
        return each[0]
    return {name: np.stack([blocks[name] for blocks in each], -1) for name in each[0]}


def last_snapshot(problem: Problem, ranges: Sequence[Range], output: Path) -> dict[str, np.ndarray]:
    """The blocks of the last snapshot of an output that holds all fields.

    Raises InputError, on this process alone, if the file cannot be read.
    """
    return _read(problem, ranges, output, problem.fields)


def _of_one(problem: Problem, ranges: Sequence[Range]) -> dict[str, np.ndarray]:
    """The initial blocks of one run: read from files, then evaluated where there is an expression, and 0 elsewhere."""
    grid, dtype = problem.config.grid, np.dtype(problem.config.numerics.precision)
    file = None if problem.mask is None else problem.mask.file
    solid = None if file is None else solid_in_file(file, ranges, grid.shape)
    read = _from_initial_file(problem, ranges)
    blocks: dict[str, np.ndarray] = {}
    for name in problem.fields:
        if name == SOLID and solid is not None:
            block = solid.astype(dtype)
        elif name in problem.initial:
            block = numpy_evaluate.block_values(problem.initial[name], grid, ranges, problem.parameters, dtype)
        elif name in read:
            block = read[name]
        else:
            block = np.zeros([stop - start for start, stop in ranges], dtype)
        if solid is not None and name != SOLID:
            block[solid] = 0
        blocks[name] = block
    return blocks


def _from_initial_file(problem: Problem, ranges: Sequence[Range]) -> dict[str, np.ndarray]:
    """The blocks of the fields without an expression, if the input names a file to read them from."""
    file = problem.config.initial.file
    if file is None:
        return {}
    try:
        return _read(problem, ranges, file, [name for name in problem.shown if name not in problem.initial])
    except InputError as error:
        raise InputError(f"initial.file: {error}; every field without an expression is read from it") from None


def _read(problem: Problem, ranges: Sequence[Range], path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The blocks of ``names`` in the last snapshot of a file."""
    dtype = np.dtype(problem.config.numerics.precision)
    return {name: read_block(path, name, ranges, shape=problem.layout.shape(name), dtype=dtype) for name in names}


def refuse_other_solid_cells(problem: Problem, ranges: Sequence[Range], blocks: Mapping[str, np.ndarray]) -> None:
    """Raise InputError, on this process alone, if the mask's file gives other solid cells than the ``blocks`` of a run that is
    continued."""
    file = None if problem.mask is None else problem.mask.file
    if file is None:
        return
    block = blocks[SOLID][..., 0] if problem.members else blocks[SOLID]
    if (solid_in_file(file, ranges, problem.config.grid.shape) != (block != 0)).any():
        raise InputError(
            f"mask.solid: {file} gives other solid cells than those with which the run began; bring the file back, or begin "
            "anew without --resume"
        )
