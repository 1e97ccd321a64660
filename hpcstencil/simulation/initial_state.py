"""The state with which a run begins: this process's blocks, from expressions and files.

Blocks are numpy arrays of the cells in ``ranges``, the global index range (half-open) per axis: local, without ghost
cells, in the run's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcstencil.io.file_read import read_blocks
from hpcstencil.numerics.topology import Range
from hpcstencil.problem.parameter_files import array_blocks, key_of
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.solid_mask import SOLID
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field
from hpcstencil.validation.errors import InputError


def initial_blocks(
    problem: Problem, ranges: Sequence[Range], names: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """The initial blocks of the fields ``names`` (default: all), with a last axis of members in an ensemble. Parameters
    and solid cells come from their files. A field with an expression gets the values of it; any other is read from the
    file that the input names, or is 0. Solid cells are 0.

    Raises InputError, on this process alone, if a file of the input cannot be read.
    """
    names = problem.fields if names is None else names
    grid, dtype = problem.config.grid, np.dtype(problem.config.numerics.precision)
    arrays, read = _from_files(problem, ranges, names)
    given = {name: arrays[key_of(name)] for name in problem.given}
    solid = arrays[SOLID] != 0 if SOLID in arrays else None
    known = {Field(name): block for name, block in given.items()}
    blocks: dict[str, np.ndarray] = {}
    for name in names:
        if name in given:
            each = [given[name].astype(dtype)]
        elif name == SOLID and solid is not None:
            each = [solid.astype(dtype)]
        elif name in problem.initial:
            each = [
                numpy_evaluate.block_values(run.initial[name], grid, ranges, run.parameters, dtype, known)
                for run in problem.members or (problem,)
            ]
        elif name in read:
            each = [read[name]]
        else:
            each = [np.zeros([stop - start for start, stop in ranges], dtype)]
        if solid is not None and name not in problem.constant:
            for block in each:
                block[solid] = 0
        shared = problem.copies // len(each)  # members among which a block is shared
        blocks[name] = np.stack(each * shared, -1) if problem.members else each[0]
    return blocks


def _from_files(
    problem: Problem, ranges: Sequence[Range], names: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The blocks that files give, the same for all members: those of parameters and solid cells by key of the input,
    and those of the fields among ``names`` that have no expression by name, empty if the input names no file for
    them."""
    arrays = array_blocks(problem.config, ranges)
    file = problem.config.initial.file
    wanted = [name for name in names if name in problem.shown and name not in problem.initial]
    if file is None or not wanted:
        return arrays, {}
    try:
        return arrays, read_blocks(file, wanted, ranges, problem.layout, problem.config.numerics.precision)
    except InputError as error:
        raise InputError(f"initial.file: {error}; every field without an expression is read from it") from None


def last_snapshot(problem: Problem, ranges: Sequence[Range], output: Path) -> dict[str, np.ndarray]:
    """The blocks, by field, of the last snapshot of an ``output`` that holds all fields that change.

    Raises InputError, on this process alone, if the file cannot be read.
    """
    return read_blocks(output, problem.changing, ranges, problem.layout, problem.config.numerics.precision)
