"""This process's blocks of the initial state, from expressions, files, and arrays of a Python program.

Blocks are numpy arrays of the cells in ``ranges``, the global index range (half-open) per axis: local, without ghost
cells, in the run's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hpcstencil.io.array_file import ArrayFile
from hpcstencil.io.file_read import read_blocks
from hpcstencil.numerics.topology import Range
from hpcstencil.problem.parameter_files import Blocks, array_blocks, key_of
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.solid_mask import SOLID
from hpcstencil.problem.staggered_terms import with_lower_walls
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Constant, Field, at_time
from hpcstencil.validation.errors import InputError


def initial_blocks(
    problem: Problem, ranges: Sequence[Range], names: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the initial blocks of the fields ``names`` (default: all), with a trailing member axis in an ensemble.

    The values of a field come from an array of its own, in a file or a Python program, from its expression, or from the file
    for all fields; otherwise they are 0. Values beyond the run's precision become infinite. Values on boundaries are those that
    the boundary conditions give. Parameters and masks that are read come from their arrays. Solid cells are 0. Raises
    InputError, on this process alone, if a file of the input cannot be read.
    """
    names = problem.fields if names is None else names
    grid, dtype = problem.config.grid, np.dtype(problem.config.numerics.precision)
    arrays, read = _from_arrays(problem, ranges, names)
    given = {name: arrays[key_of(name)] for name in problem.given}
    solid = arrays[SOLID] != 0 if SOLID in arrays else None
    known = {Field(name): block for name, block in given.items()}
    held = {name: array for name in names if (array := problem.held.get(f"initial.{name}")) is not None}
    dry = [solid] if solid is not None else solid_in_expression(problem, ranges) if held else []
    blocks: dict[str, np.ndarray] = {}
    for name in names:
        if name in given:
            each = [_cast(given[name], dtype)]
        elif name == SOLID and solid is not None:
            each = [solid.astype(dtype)]
        elif name in held:
            values = _cast(_read(held[name], f"initial.{name}", ranges, grid.shape), dtype)
            each = list(np.moveaxis(values, -1, 0)) if values.ndim > grid.ndim else [values]
            for member, cells in zip(each, dry * len(each), strict=False):
                member[cells] = 0
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
        if name in problem.positions and (name in held or name in read):
            blocks[name] = at_walls(problem, name, blocks[name], ranges, [0.0] * problem.copies)
    return blocks


def _read(array: Blocks, key: str, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
    """Read this process's block of an array. Raises InputError, whose message begins with the key of a file."""
    try:
        return array.read(ranges, shape)
    except InputError as error:
        raise InputError(f"{key}: {error}" if isinstance(array, ArrayFile) else str(error)) from None


def _cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def at_walls(
    problem: Problem,
    name: str,
    block: np.ndarray,
    ranges: Sequence[Range],
    times: Sequence[float],
) -> np.ndarray:
    """Return the block of a field with the boundary values in place of its values on lower boundaries.

    ``block`` has a trailing member axis in an ensemble. ``times`` are those of the members, or the one of a single run. A
    field without values on boundaries is returned as it is.
    """
    runs, grid = problem.members or (problem,), problem.config.grid
    found = []
    for number, (run, time) in enumerate(zip(runs, times, strict=True)):
        values = block[..., number] if problem.members else block
        tree = with_lower_walls(run, name, Field(name), partial(at_time, time=time))
        if tree == Field(name):
            return block
        own = {Field(name): values}
        found.append(numpy_evaluate.block_values(tree, grid, ranges, run.parameters, block.dtype, own))
    return np.stack(found, -1) if problem.members else found[0]


def lower_walls(problem: Problem, name: str, ranges: Sequence[Range]) -> np.ndarray:
    """Return whether the values of a field in a block lie on lower boundaries: bool, in the shape of the block."""
    tree = with_lower_walls(problem, name, Constant(0.0), lambda value: Constant(1.0))
    return numpy_evaluate.block_values(tree, problem.config.grid, ranges, {}, np.dtype(bool))


def solid_in_expression(problem: Problem, ranges: Sequence[Range]) -> list[np.ndarray]:
    """Evaluate the expression of a mask in the block ``ranges``: a list of bool arrays, True in solid cells.

    The list has one array, or one per member if the masks of an ensemble's members differ. It is empty if the mask is not
    given by an expression.
    """
    mask = problem.mask
    if mask is None or mask.is_read:
        return []
    each = problem.members if mask.differs(problem.listed) else (problem.members or (problem,))[:1]
    dtype = np.dtype(bool)
    return [numpy_evaluate.block_values(mask.solid, one.config.grid, ranges, one.parameters, dtype) for one in each]


def _from_arrays(
    problem: Problem, ranges: Sequence[Range], names: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Read the blocks that come from arrays, the same for all members: (by key of the input, by field).

    The first are parameters and the mask. The second are the fields among ``names`` that have no expression; they are empty
    if the input names no file of initial values.
    """
    arrays = array_blocks(problem.config, ranges, problem.held)
    file = problem.config.initial.file
    wanted = [
        name
        for name in names
        if name in problem.shown and name not in problem.initial and f"initial.{name}" not in problem.held
    ]
    if file is None or not wanted:
        return arrays, {}
    try:
        return arrays, read_blocks(file, wanted, ranges, problem.layout, problem.config.numerics.precision)
    except InputError as error:
        raise InputError(f"initial.file: {error}; every field without an expression is read from it") from None


def last_snapshot(problem: Problem, ranges: Sequence[Range], output: Path) -> dict[str, np.ndarray]:
    """Read the blocks of all changing fields from the last snapshot of ``output``, which must hold these fields.

    Raises InputError, on this process alone, if the file cannot be read.
    """
    return read_blocks(output, problem.changing, ranges, problem.layout, problem.config.numerics.precision)
