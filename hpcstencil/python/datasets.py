"""The fields of a simulation as xarray datasets: this process's block, or the global grid on rank 0.

A dataset has the layout of one snapshot of the output file. The dimensions are x, y, z (x_face for a field on faces), after
member in an ensemble. Coordinates are float64, and time and step are scalar coordinates. With a mask, the coordinate
``solid`` (int8) is 1 in solid cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from hpcstencil.io.dataset_names import MASK_DATASET
from hpcstencil.io.file_layout import coordinate_name
from hpcstencil.io.transports.serial import messages
from hpcstencil.numerics.topology import Range
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.simulation.file_blocks import output_blocks
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.solid_cells import solid_block
from hpcstencil.simulation.state import State
from hpcstencil.symbolic.staggering import FACE, Layout


class Block(xr.Dataset):
    """A dataset of this process's block of the fields, in which assigning to a field also changes the simulation.

    Copies of the dataset do not change the simulation.
    """

    __slots__ = ("_assign",)

    def __setitem__(self, name: Any, value: Any) -> None:
        """Set a field of the block and of the simulation.

        ``value`` is a number, or a local array in the shape of the field in this block. All processes call this
        together. Raises InputError for an unknown field, another shape, and values that are not finite.
        """
        assign = getattr(self, "_assign", None)
        if assign is None:
            super().__setitem__(name, value)
        else:
            block = assign(name, value)  # refuses other names
            super().__setitem__(name, self[name].variable.copy(deep=False, data=block))


def block_dataset(simulation: ComposedSimulation, state: State, assign: Callable[[str, Any], np.ndarray]) -> Block:
    """Copy this process's block of all fields to a dataset, without ghost cells, in the dtype of the run.

    ``assign(name, value)`` is called for assignments; it sets a field in the simulation and returns the new block.
    """
    layout, names = simulation.problem.layout, simulation.problem.shown
    blocks = _blocks(simulation, state, names)
    ranges = {name: _ranges(simulation, layout, name) for name in blocks}
    coordinates = _coordinates(simulation, state, ranges) | _solid(simulation, _solid_block(simulation, state))
    dataset = Block(_variables(simulation, blocks), coordinates, _attributes(simulation))
    object.__setattr__(dataset, "_assign", assign)
    return dataset


def grid_dataset(simulation: ComposedSimulation, state: State, names: Sequence[str]) -> xr.Dataset | None:
    """Copy the fields in ``names`` on the global grid to a dataset on rank 0; None on other processes.

    All processes call this together.
    """
    layout, whole = simulation.problem.layout, {}
    starts = [start for start, _ in simulation.ranges]
    for name, block in _blocks(simulation, state, names).items():
        shape = (*layout.members, *layout.shape(name))
        whole[name] = gathered(simulation.communicator, block, starts, shape)
    solid = _solid_block(simulation, state)
    if solid is not None:
        first = solid.shape[: -layout.grid.ndim]
        solid = gathered(simulation.communicator, solid, starts, (*first, *layout.grid.shape))
    ranges: dict[str, Sequence[Range]] = {name: [(0, n) for n in layout.shape(name)] for name in whole}
    arrays = {name: array for name, array in whole.items() if array is not None}
    if not arrays:
        return None
    coordinates = _coordinates(simulation, state, ranges) | _solid(simulation, solid)
    return xr.Dataset(_variables(simulation, arrays), coordinates, _attributes(simulation))


def gathered(
    communicator: Communicator, block: np.ndarray, starts: Sequence[int], shape: Sequence[int]
) -> np.ndarray | None:
    """Gather the blocks of all processes into one array of the global ``shape`` on rank 0; None on other processes.

    ``block`` is the local block: C-contiguous, without ghost cells, of any dtype. ``starts`` is the global index of its
    first cell along the last ``len(starts)`` axes; earlier axes are not decomposed. All processes call this together.
    On one process the block itself is returned.
    """
    places = communicator.gather((tuple(starts), block.shape))
    if communicator.size == 1:
        return block
    if places is None:
        for piece in messages(block):
            communicator.mpi.Send(piece, dest=0)
        return None
    whole = np.empty(shape, block.dtype)
    for rank, (first, cells) in enumerate(places):
        part = block if rank == 0 else np.empty(cells, block.dtype)
        if rank:
            for piece in messages(part):
                communicator.mpi.Recv(piece, source=rank)
        ends = [start + n for start, n in zip(first, cells[-len(first) :], strict=True)]
        index: tuple[Any, ...] = (..., *map(slice, first, ends))
        whole[index] = part
    return whole


def _blocks(simulation: ComposedSimulation, state: State, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Copies of this process's blocks of the fields, by name, in the layout of the output file (members first)."""
    blocks = output_blocks(simulation, dict(state.fields), names, state.clock.time)
    return {name: np.array(block) for name, block in blocks.items()}


def _ranges(simulation: ComposedSimulation, layout: Layout, name: str) -> list[Range]:
    """The global index range per axis of this process's block of a field. The last block along an axis includes faces on
    the upper boundary."""
    ends = zip(simulation.ranges, layout.grid.shape, layout.shape(name), strict=True)
    return [(start, whole if stop == cells else stop) for (start, stop), cells, whole in ends]


def _variables(simulation: ComposedSimulation, arrays: Mapping[str, np.ndarray]) -> dict[str, xr.Variable]:
    """The fields as xarray variables, with dimensions and the attributes units and long_name."""
    layout, output = simulation.problem.layout, simulation.problem.config.output
    first = ("member",) if layout.members else ()
    return {
        name: xr.Variable(
            (*first, *layout.dimensions(name)),
            array,
            {"units": output.units.get(name, "1"), "long_name": output.long_name.get(name, name)},
        )
        for name, array in arrays.items()
    }


def _coordinates(
    simulation: ComposedSimulation, state: State, ranges: Mapping[str, Sequence[Range]]
) -> dict[str, xr.Variable]:
    """The coordinates of a dataset: positions for these global index ranges by field, members, time and step."""
    layout = simulation.problem.layout
    grid, found = simulation.problem.config.grid, {}
    for name, of_field in ranges.items():
        for axis, (scale, (start, stop)) in enumerate(zip(layout.dimensions(name), of_field, strict=True)):
            on_faces = scale.endswith(FACE)
            places = grid.faces(axis, stop)[start:] if on_faces else grid.centres(axis, start, stop)
            label = f"faces across {grid.axes[axis]}" if on_faces else scale
            found[scale] = xr.Variable((scale,), places, {"long_name": label})
    if layout.members:
        found["member"] = xr.Variable(("member",), np.arange(*layout.members))
    for key, values in layout.ensemble.items():
        found[coordinate_name(key)] = xr.Variable(("member",), list(values), {"long_name": key})
    return {**found, "time": xr.Variable((), state.clock.time), "step": xr.Variable((), state.clock.step)}


def _solid_block(simulation: ComposedSimulation, state: State) -> np.ndarray | None:
    """This process's block of the mask, see `solid_block`; None without a mask."""
    return None if simulation.problem.mask is None else solid_block(simulation, dict(state.fields))


def _solid(simulation: ComposedSimulation, solid: np.ndarray | None) -> dict[str, xr.Variable]:
    """The coordinate ``solid`` by its name; no entry without a mask."""
    if solid is None:
        return {}
    axes = simulation.problem.config.grid.axes
    return {MASK_DATASET: xr.Variable((*("member",) * (solid.ndim - len(axes)), *axes), solid)}


def _attributes(simulation: ComposedSimulation) -> dict[str, str]:
    """The attributes of a dataset: the title of the input."""
    return {"title": simulation.problem.config.title}
