"""Conversion of the values that a program assigns to a field: arrays, functions and expressions.

The result is a block: a NumPy array of the cells of this process in the dtype of the run, local, without ghost cells. In an
ensemble its last axis is the member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from hpcstencil.numerics.topology import Range
from hpcstencil.problem.build import initial_expression
from hpcstencil.problem.problem import Problem
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.staggering import home
from hpcstencil.validation.errors import InputError


def block_of(simulation: ComposedSimulation, name: str, value: Any, key: str) -> np.ndarray:
    """Convert a ``value`` for the whole grid to this process's block of the field ``name``.

    ``value`` is a global array indexed [x, y, z], a number, a function of the coordinates, or an expression as in
    [initial]. In an ensemble, an array may have the members as its first axis. Raises InputError, whose message begins
    with ``key``, on this process only.
    """
    problem = simulation.problem
    if isinstance(value, str):
        return from_expression(simulation, name, value, key)
    if is_function(value):
        return from_function(simulation, name, value, key)
    array = as_array(value, (*problem.layout.dimensions(name),), key)
    whole, cells = problem.layout.shape(name), problem.config.grid.shape
    index: tuple[Any, ...] = (..., *(slice(*r) for r in simulation.ranges))
    return _cast(simulation, _of_shape(problem, array, (cells, whole), "the whole grid", key)[index], key)


def is_function(value: Any) -> bool:
    """Whether a value is a function. Callable arrays, which some libraries have, do not count."""
    return callable(value) and not hasattr(value, "__array__")


@dataclass(frozen=True)
class InitialValue:
    """The initial value of a field from a Python program, with the interface of `parameter_files.Blocks`.

    ``value`` is as in `block_of`. It is converted when the initial state is built.
    """

    simulation: ComposedSimulation
    name: str
    value: Any

    def read(self, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
        """This process's block, as `block_of` returns it. The arguments are not
        used."""
        return block_of(self.simulation, self.name, self.value, f"initial.{self.name}")


def local_block(simulation: ComposedSimulation, name: str, value: Any, key: str) -> np.ndarray:
    """Convert a ``value`` for this process's block only: a local array in the shape of the block, or a number.

    It returns and raises the same as `block_of`.
    """
    problem = simulation.problem
    if isinstance(value, str) or is_function(value):
        raise InputError(
            f"{key}: expected an array or a number, but got {type(value).__name__}; assign it to the whole field, "
            f"{key.replace('.local', '')}"
        )
    array = as_array(value, problem.layout.dimensions(name), key)
    cells = tuple(stop - start for start, stop in simulation.ranges)
    upper = [stop == n for (_, stop), n in zip(simulation.ranges, problem.config.grid.shape, strict=True)]
    whole = tuple(
        n + more * last for n, more, last in zip(cells, problem.layout.extra(name), upper, strict=True)
    )  # the shape in `sim.local`
    index: tuple[Any, ...] = (..., *(slice(0, n) for n in cells))
    return _cast(simulation, _of_shape(problem, array, (cells, whole), "this process's block", key)[index], key)


def as_array(value: Any, dims: Sequence[str] | None, key: str) -> np.ndarray:
    """Convert a number or an array of any library to a NumPy array, keeping its dtype.

    Arrays may come from NumPy, JAX, xarray or a library with DLPack. Those of xarray are transposed to the dimensions
    ``dims``, unless that is None. The result may share memory with ``value``. Raises InputError, whose message begins
    with ``key``, for masked arrays, other dimensions, and anything but real numbers.
    """
    if value is None:
        raise InputError(
            f"{key}: expected an array, but got None; give every process the whole array, or assign blocks to sim.local"
        )
    if hasattr(value, "data_vars"):
        raise InputError(f"{key}: expected one array, but got {type(value).__name__}; give one of its variables")
    if np.ma.is_masked(value):
        raise InputError(
            f"{key}: expected a value in every cell, but got a masked array; fill it, for example .filled(0)"
        )
    if dims is not None and hasattr(value, "dims") and hasattr(value, "transpose"):
        unknown = [dim for dim in value.dims if dim not in ("member", *dims)]
        if unknown:
            raise InputError(
                f"{key}: expected the dimensions {', '.join(dims)}, but got {', '.join(map(str, value.dims))}; select or rename"
            )
        order: list[Any] = [..., *(dim for dim in dims if dim in value.dims)]
        value = value.transpose(*order).values
    try:
        foreign = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
        array = np.from_dlpack(value) if foreign else np.asarray(value)
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(
            f"{key}: expected an array of numbers, a function or an expression, but got {type(value).__name__} ({error}); "
            "give an array"
        ) from None
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{key}: expected real numbers, but got {type(value).__name__} of {array.dtype}; convert it to float"
        )
    return array


def from_expression(simulation: ComposedSimulation, name: str, text: str, key: str) -> np.ndarray:
    """The block of an expression in x, y, z and the parameters. Raises InputError for a malformed expression, and for values
    that are not finite."""
    problem = simulation.problem
    tree = initial_expression(problem, name, text, key)
    blocks = [
        numpy_evaluate.block_values(tree, problem.config.grid, simulation.ranges, member.parameters, simulation.dtype)
        for member in problem.members or (problem,)
    ]
    return _finite(simulation, np.stack(blocks, -1) if problem.members else blocks[0], key)


def from_function(simulation: ComposedSimulation, name: str, function: Callable[..., Any], key: str) -> np.ndarray:
    """The block of a function of the coordinates.

    The function is called with one float64 array per axis, the coordinates of this process's cells at the position of
    the field, shaped to broadcast. It returns values that broadcast to the shape of the block. Raises InputError for
    other shapes.
    """
    problem = simulation.problem
    position = home(name, problem.positions, problem.config.grid.ndim)
    places = numpy_evaluate.block_coordinates(problem.config.grid, simulation.ranges)
    shifts = [half * dx / 2 for half, dx in zip(position, problem.config.grid.spacing, strict=True)]
    coordinates = [x - s for x, s in zip(places, shifts, strict=True)]
    axes = ", ".join(problem.config.grid.axes)
    try:
        signature(function).bind(*coordinates)
    except TypeError as error:
        raise InputError(f"{key}: expected a function of ({axes}), one array each, but {error}; change it") from None
    except ValueError:
        pass  # a function without a signature, such as one of numpy
    values = as_array(function(*coordinates), problem.layout.dimensions(name), key)
    cells = tuple(stop - start for start, stop in simulation.ranges)
    try:
        values = np.broadcast_to(values, cells)
    except ValueError:
        raise InputError(
            f"{key}: expected a function of ({axes}) whose values broadcast to {cells}, but got the shape {values.shape}; "
            "compute with the arrays it is given"
        ) from None
    return _cast(simulation, _of_shape(problem, values, (cells,), "the block", key), key)


def _of_shape(
    problem: Problem, array: np.ndarray, shapes: Sequence[tuple[int, ...]], what: str, key: str
) -> np.ndarray:
    """Broadcast an array to have the members of an ensemble as its first axis.

    Without that axis it must have one of the ``shapes``; a number is broadcast to the first of them. ``what`` describes
    the shape in the InputError for other arrays.
    """
    members = problem.layout.members
    if array.ndim == 0:
        array = np.broadcast_to(array, shapes[0])
    if array.shape in shapes:
        return np.broadcast_to(array, (*members, *array.shape))
    if members and array.shape in [(*members, *shape) for shape in shapes]:
        return array
    expected = " or ".join(dict.fromkeys(str((*members, *shape)) for shape in reversed(shapes)))
    raise InputError(f"{key}: expected the shape {expected} of {what}, but got {array.shape}; {_advice(array, shapes)}")


def _advice(array: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> str:
    """The advice for an array that has none of these shapes."""
    return "give its transpose, indexed [x, y, z]" if array.shape[::-1] in shapes else "change the array"


def _cast(simulation: ComposedSimulation, array: np.ndarray, key: str) -> np.ndarray:
    """Copy a block to the dtype of the run, with the member axis moved from first to last. Raises the error of `_finite`."""
    if simulation.problem.members:
        array = np.moveaxis(array, 0, -1)
    with np.errstate(over="ignore"):
        block = np.array(array, simulation.dtype, order="C")
    return _finite(simulation, block, key)


def _finite(simulation: ComposedSimulation, block: np.ndarray, key: str) -> np.ndarray:
    """Return a block in the dtype of the run. Raises InputError if a value is not finite."""
    lost = ~np.isfinite(block)
    if lost.any():
        cell = [int(i) + start for i, (start, _) in zip(np.argwhere(lost)[0], simulation.ranges, strict=False)]
        raise InputError(
            f"{key}: expected finite numbers that {simulation.dtype} can hold, but got {block[tuple(np.argwhere(lost)[0])]} "
            f"in cell {cell}; correct the values"
        )
    return block
