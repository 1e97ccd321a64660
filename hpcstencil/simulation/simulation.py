"""A problem on this process's devices: equation, stencils, boundaries, integrator and exchange, composed to `advance`.

Fields are dicts of device arrays: this process's cells without ghost cells, in the run's dtype, with the axes of
`device_blocks` and, in an ensemble, a last axis of members. Blocks are numpy arrays of this process's cells (local,
without ghost cells).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hpcstencil.backends.native.shared_memory import SharedEdges
from hpcstencil.backends.xla.reductions import Reductions
from hpcstencil.distributed.device_grid import Body, Machine
from hpcstencil.distributed.halo import Fields
from hpcstencil.io.direct_write import Pieces
from hpcstencil.io.file_read import read_block
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.numerics.integrators import MEMORY
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.solid_mask import SOLID
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.simulation.adaptive_step import Control
from hpcstencil.simulation.decomposition import Plan
from hpcstencil.simulation.time_loop import (
    Advance,
)
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field, at_time, on_plane
from hpcstencil.validation.errors import InputError


@dataclass(frozen=True)
class Simulation:
    """A problem ready to run on this process.

    ``slopes`` computes the time derivatives with which a multistep method begins. ``extremes`` reduces the fields and
    the other measured quantities, ``diagnosed`` the quantities of the diagnostics. ``shared_edges`` is the
    memory shared between the processes of a host for the edges of blocks, if there is any. ``stayed_finite`` says whether all
    measured quantities of this process were finite since the last call; it is None if only a look at the fields can
    tell. ``copies`` makes snapshot buffers.
    """

    problem: Problem
    plan: Plan
    kernel: str
    communicator: Communicator
    machine: Machine
    advance: Advance
    slopes: Body | None
    control: Control | None
    extremes: Reductions
    diagnosed: Reductions
    shared_edges: SharedEdges | None = None
    stayed_finite: Callable[[], bool] | None = None
    copies: Callable[[Mapping[str, Pieces]], Copies] = Copies

    @property
    def exchange(self) -> str:
        """The means by which the processes exchange the edges of blocks: "mpi4jax" or "shared memory"; "" on one
        process."""
        if self.plan.topology.size == 1:
            return ""
        return "mpi4jax" if self.shared_edges is None else "shared memory"

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the fields."""
        return np.dtype(self.problem.config.numerics.precision)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Global index range (half-open) per axis of this process's block."""
        return self.machine.topology.block()

    def initial_fields(self) -> Fields:
        """The state at t = 0 on the devices. All processes call this together."""
        blocks = agree(self.communicator, self._own_initial_blocks)
        fields = self.put(blocks)
        if self.slopes is not None:
            first = self.slopes(fields, self.problem.parameters, self.per_member(0.0))
            fields = {**fields, **{name + MEMORY: slope for name, slope in first.items()}}
        return fields

    def _own_initial_blocks(self) -> dict[str, np.ndarray]:
        """This process's initial blocks of the fields, computed or read by itself, with a last axis of members in an
        ensemble."""
        if not self.problem.members:
            return self._initial_blocks_of(self.problem)
        each = [self._initial_blocks_of(member) for member in self.problem.members]
        return {name: np.stack([blocks[name] for blocks in each], -1) for name in each[0]}

    def _initial_blocks_of(self, problem: Problem) -> dict[str, np.ndarray]:
        config = problem.config
        blocks: dict[str, np.ndarray] = {}
        dataset = None if problem.mask is None else problem.mask.dataset
        solid = None if dataset is None else self._solid_cells(dataset)
        for name in problem.fields:
            if name == SOLID and solid is not None:
                block = solid.astype(self.dtype)
            elif name in problem.initial:
                tree = problem.initial[name]
                block = numpy_evaluate.block_values(tree, config.grid, self.ranges, problem.parameters, self.dtype)
            elif config.initial.file is not None and name in problem.shown:
                shape = problem.layout.shape(name)
                try:
                    block = read_block(config.initial.file, name, self.ranges, shape=shape, dtype=self.dtype)
                except InputError as error:
                    raise InputError(
                        f"initial.file: {error}; every field without an expression is read from it"
                    ) from None
            else:
                block = np.zeros([stop - start for start, stop in self.ranges], self.dtype)
            if solid is not None and name != SOLID:
                block[solid] = 0
            blocks[name] = block
        return blocks

    def snapshot(self, output: Path) -> dict[str, np.ndarray]:
        """This process's blocks of the last snapshot of an output that holds all fields."""
        return {
            name: read_block(output, name, self.ranges, shape=self.problem.layout.shape(name), dtype=self.dtype)
            for name in self.problem.fields
        }

    def _solid_cells(self, dataset: tuple[Path, str]) -> np.ndarray:
        """Which cells of this process's block are solid in a dataset, bool."""
        try:
            block = read_block(*dataset, self.ranges, shape=self.problem.config.grid.shape)
        except InputError as error:
            raise InputError(f"mask.solid: {error}") from None
        path, name = dataset
        lost = ~np.isfinite(block)
        if lost.any():
            index, first = np.argwhere(lost)[0], [start for start, _ in self.ranges]
            cell = ", ".join(str(i + start) for i, start in zip(index.tolist(), first, strict=True))
            raise InputError(
                f"mask.solid: expected finite numbers in '{name}' of {path}, 0 in fluid cells, but got "
                f"{block[tuple(index)]} in cell [{cell}]; correct it"
            )
        return block != 0

    def check_mask(self, fields: Fields) -> None:
        """Raise InputError, on all processes, if solid cells leave no fluid."""
        mask = self.problem.mask
        if mask is None:
            return
        solid = self.solid(fields)
        fluid = np.sum(solid == 0, axis=tuple(range(-self.machine.grid.ndim, 0)))
        if (self.communicator.total(np.atleast_1d(fluid)) == 0).any():
            raise InputError(
                "mask.solid: expected some cells that are not solid, but it covers the whole grid; change it"
            )

    def solid(self, fields: Fields) -> np.ndarray:
        """This process's block of the mask, int8: 1 in solid cells, 0 in the fluid. If the members of an ensemble
        differ in it, with a first axis of members."""
        problem, mask = self.problem, self.problem.mask
        assert mask is not None
        if mask.is_read:
            block = self.block(fields[SOLID])
            return np.ascontiguousarray(block[..., 0] if problem.members else block, np.int8)
        listed = {name for name, value in problem.parameters.items() if np.ndim(value)} if problem.members else set()
        each = problem.members if mask.differs(listed) else (problem.members or (problem,))[:1]
        blocks = [
            numpy_evaluate.block_values(
                mask.solid, member.config.grid, self.ranges, member.parameters, np.dtype(np.int8)
            )
            for member in each
        ]
        return np.stack(blocks) if len(each) > 1 else blocks[0]

    def written(self, fields: Fields, names: Sequence[str], time: float) -> dict[str, np.ndarray]:
        """This process's blocks of ``names`` for the output file, with a first axis of members in an ensemble. On
        processes beside an upper boundary they include the boundary values of fields on faces, which no device array
        holds."""
        blocks = self.get(fields, names)
        if not self.problem.members:
            return {name: self._with_upper_wall(self.problem, name, blocks[name], time) for name in names}
        return {
            name: np.stack([
                self._with_upper_wall(member, name, blocks[name][..., i], time)
                for i, member in enumerate(self.problem.members)
            ])
            for name in names
        }  # fmt: skip

    def _with_upper_wall(self, problem: Problem, name: str, block: np.ndarray, time: float) -> np.ndarray:
        grid, parameters, ranges = problem.config.grid, problem.parameters, list(self.ranges)
        for axis, more in enumerate(problem.layout.extra(name)):
            if more and ranges[axis][1] == grid.shape[axis]:
                (value,) = problem.faces[Field(name), axis, 1].values
                value = at_time(on_plane(value, axis, grid.upper[axis]), time)
                beyond = [(grid.shape[axis], grid.shape[axis] + 1) if a == axis else r for a, r in enumerate(ranges)]
                block = np.concatenate(
                    [block, numpy_evaluate.block_values(value, grid, beyond, parameters, self.dtype)], axis
                )
                ranges[axis] = (ranges[axis][0], grid.shape[axis] + 1)
        return block

    def put(self, blocks: Mapping[str, np.ndarray]) -> Fields:
        """Put this process's blocks on its devices."""
        return {name: self.machine.devices.put(block) for name, block in blocks.items()}

    def get(self, fields: Fields, names: Sequence[str]) -> dict[str, np.ndarray]:
        """This process's blocks of the fields in ``names``, C-contiguous."""
        return {name: self.block(fields[name]) for name in names}

    def block(self, array: jax.Array) -> np.ndarray:
        """This process's block of one device array, C-contiguous."""
        return np.ascontiguousarray(self.machine.devices.get(array))

    def per_member(self, value: float) -> Any:
        """The value once per member that takes its own steps, or one value for all."""
        return np.full(self.problem.copies, value) if self.problem.own_steps else value

    def stored(self, array: jax.Array) -> np.ndarray:
        """This process's block of one device array for a checkpoint, with a first axis of members in an ensemble."""
        block = self.block(array)
        return np.ascontiguousarray(np.moveaxis(block, -1, 0)) if self.problem.members else block

    def restored(self, block: np.ndarray) -> np.ndarray:
        """The inverse of `stored`, in the run's dtype. Raises InputError if the checkpoint has other members."""
        count = len(self.problem.members)
        if block.shape[: block.ndim - self.machine.grid.ndim] != ((count,) if count else ()):
            raise InputError(
                "the checkpoint was written by a run with other members of an ensemble, or none; begin anew"
            )
        return np.moveaxis(block.astype(self.dtype), 0, -1) if count else block.astype(self.dtype)

    def first_not_finite(self, array: jax.Array) -> str:
        """The first cell (in index order) with a value that is not finite, in words. All processes call this together."""
        problem, grid = self.problem, self.problem.config.grid
        starts = [start for start, _ in self.ranges]
        here = np.argwhere(~np.isfinite(self.block(array)))
        mine = None
        if len(here):
            mine = tuple(int(i) + start for i, start in zip(here[0], [*starts, 0], strict=False))
        cell = min(cell for cell in self.communicator.allgather(mine) if cell is not None)
        place = ", ".join(
            f"{name} = {grid.centres(a, i, i + 1)[0]:.6g}"
            for a, (name, i) in enumerate(zip(grid.axes, cell, strict=False))
        )
        *inner, member = cell if problem.members else (*cell, None)
        return f"cell {inner} ({place})" + ("" if member is None else f" of member {member}")

    def compile(self, fields: Fields) -> Fields:
        """Compile the step loop by running it for zero steps; returns the fields, which it may have moved."""
        if self.control is not None:
            self.control.error(self.control.attempt(fields, self.problem.parameters, 0.0, 0.0)[1])
            return fields
        one = self.per_member
        for _ in range(2):  # pmap compiles again for its own results
            fields = self.advance(fields, self.problem.parameters, one(0.0), one(0), one(0.0), one(0))
        return jax.block_until_ready(fields)
