"""A problem on this process's devices: equation, stencils, boundaries, integrator and exchange composed to `advance`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hpcstencil import host
from hpcstencil.advance import Advance, Stepper
from hpcstencil.blocks import Devices
from hpcstencil.control import Control
from hpcstencil.decomposition import Plan
from hpcstencil.errors import InputError
from hpcstencil.evaluate import Rules, right_hand_side
from hpcstencil.expressions import Field, Parameter, at_time, on_plane
from hpcstencil.halo import Fields
from hpcstencil.hdf5_read import read_block
from hpcstencil.integrators import MEMORY
from hpcstencil.kernels import KERNELS, tiled
from hpcstencil.machine import Body, Machine
from hpcstencil.mask import SOLID
from hpcstencil.parallel import Communicator, agree
from hpcstencil.problem import Problem
from hpcstencil.reductions import Reductions


@dataclass(frozen=True)
class Simulation:
    """A problem ready to run. ``slopes`` gives the time derivatives that a multistep method begins with, ``extremes`` reduces
    the fields and what else is measured, ``diagnosed`` what the diagnostics ask for."""

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

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.problem.config.numerics.precision)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Global index range per axis of this process's block."""
        return self.machine.topology.block()

    def initial_fields(self) -> Fields:
        """The state at t = 0 on the devices; all processes take part."""
        fields = agree(self.communicator, self._own_initial_fields)
        if self.slopes is not None:
            first = self.slopes(fields, self.problem.parameters, 0.0)
            fields = {**fields, **{name + MEMORY: slope for name, slope in first.items()}}
        return fields

    def _own_initial_fields(self) -> Fields:
        """The fields, each process making or reading its own block only."""
        config, mask = self.problem.config, self.problem.mask
        fields: Fields = {}
        solid = self._solid_cells(mask.dataset) if mask is not None and mask.dataset is not None else None
        for name in self.problem.fields:
            if name == SOLID and solid is not None:
                block = solid.astype(self.dtype)
            elif name in self.problem.initial:
                values = {Parameter(p): v for p, v in self.problem.parameters.items()}
                tree = self.problem.initial[name]
                block = host.block_values(tree, config.grid, self.ranges, values, self.dtype)
            elif config.initial.file is not None and name in self.problem.shown:
                shape = self.problem.layout.shape(name)
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
            fields[name] = self.machine.devices.put(block)
        return fields

    def _solid_cells(self, dataset: tuple[Path, str]) -> np.ndarray:
        """Which cells of this process's block a dataset says to be solid."""
        try:
            block = read_block(*dataset, self.ranges, shape=self.problem.config.grid.shape)
        except InputError as error:
            raise InputError(f"mask.solid: {error}") from None
        return block != 0

    def check_mask(self, fields: Fields) -> None:
        """Raise InputError, on all processes, where solid cells leave no fluid."""
        mask = self.problem.mask
        if mask is None:
            return
        parameters = {Parameter(name): value for name, value in self.problem.parameters.items()}
        if SOLID in fields:
            solid = self.block(fields[SOLID]) != 0
        else:
            solid = host.block_values(mask.solid, self.problem.config.grid, self.ranges, parameters, np.dtype(bool))
        if int(self.communicator.total(np.array([np.count_nonzero(~solid)]))[0]) == 0:
            raise InputError(
                "mask.solid: expected some cells that are not solid, but it covers the whole grid; change it"
            )

    def written(self, fields: Fields, names: Sequence[str], time: float) -> dict[str, np.ndarray]:
        """As `get`, for a file: with the values that are given on an upper boundary, which are in no array, on the processes
        beside it."""
        problem, result = self.problem, self.get(fields, names)
        grid = problem.config.grid
        parameters = {Parameter(name): value for name, value in problem.parameters.items()}
        for name in names:
            ranges = list(self.ranges)
            for axis, more in enumerate(problem.layout.extra(name)):
                if more and ranges[axis][1] == grid.shape[axis]:
                    (value,) = problem.faces[Field(name), axis, 1].values
                    value = at_time(on_plane(value, axis, grid.upper[axis]), time)
                    beyond = [
                        (grid.shape[axis], grid.shape[axis] + 1) if a == axis else r for a, r in enumerate(ranges)
                    ]
                    given = host.block_values(value, grid, beyond, parameters, self.dtype)
                    result[name] = np.concatenate([result[name], given], axis)
                    ranges[axis] = (ranges[axis][0], grid.shape[axis] + 1)
        return result

    def put(self, blocks: Mapping[str, np.ndarray]) -> Fields:
        """This process's blocks on its devices."""
        return {name: self.machine.devices.put(block) for name, block in blocks.items()}

    def get(self, fields: Fields, names: Sequence[str]) -> dict[str, np.ndarray]:
        """This process's blocks of some fields, C-contiguous numpy arrays."""
        return {name: self.block(fields[name]) for name in names}

    def block(self, array: jax.Array) -> np.ndarray:
        """This process's block of one array on the devices, C-contiguous."""
        return np.ascontiguousarray(self.machine.devices.get(array))

    def first_not_finite(self, array: jax.Array) -> str:
        """Where the first cell (in index order) is whose value is not finite, in words; all processes together."""
        grid = self.problem.config.grid
        here = np.argwhere(~np.isfinite(self.block(array)))
        mine = tuple(int(i) + start for i, (start, _) in zip(here[0], self.ranges, strict=True)) if len(here) else None
        cell = min(cell for cell in self.communicator.allgather(mine) if cell is not None)
        place = ", ".join(
            f"{name} = {grid.centres(a, i, i + 1)[0]:.6g}"
            for a, (name, i) in enumerate(zip(grid.axes, cell, strict=True))
        )
        return f"cell {list(cell)} ({place})"

    def compile(self, fields: Fields) -> Fields:
        """Compile the step loop by running it for no step at all; returns the fields, which it may have moved."""
        for _ in range(2):  # pmap compiles again for what it returned itself
            if self.control is None:
                fields = self.advance(fields, self.problem.parameters, 0.0, 0, 0.0, 0)
            else:
                self.control.error(fields, *self.control.attempt(fields, self.problem.parameters, 0.0, 0.0))
        return jax.block_until_ready(fields)


def simulate(
    problem: Problem, plan: Plan, communicator: Communicator, devices: Sequence[Any], kernel: str
) -> Simulation:
    """Compose everything for this process; nothing is compiled yet."""
    config = problem.config
    topology = plan.topology_of(communicator.rank)
    dtype = np.dtype(config.numerics.precision)
    rules = Rules(
        discretization=problem.discretization,
        kernel=tiled(KERNELS[kernel], topology.tiles),
        faces=problem.faces,
        domain=tuple(zip(config.grid.lower, config.grid.upper, strict=True)),
        dtype=dtype,
        mask=problem.mask,
        ghosts=problem.radius if problem.staggered else None,
    )
    rounds = plan.every * plan.stages or 1
    places = problem.discretization.radius(problem.differentiated(), coordinates=True)
    machine = Machine(
        topology=topology,
        grid=config.grid,
        devices=Devices(topology, tuple(devices)),
        communicator=None if communicator.mpi is None else communicator.mpi.Clone(),
        radius=plan.radius,
        margin=tuple((rounds + 1) * r + p + 1 for r, p in zip(plan.radius, places, strict=True)),
        halo_wraps=rounds == 1,
        constants=problem.constants(),
    )
    needs = problem.needs()
    rhs = right_hand_side(problem.trees, rules, needs)
    apart = right_hand_side(problem.apart, rules, needs) if problem.apart else None
    stepper = Stepper(machine, rhs, problem.method, problem.groups, plan.every, apart)
    return Simulation(
        problem=problem,
        plan=plan,
        kernel=kernel,
        communicator=communicator,
        machine=machine,
        advance=stepper.advance(),
        slopes=stepper.slopes(0) if problem.method.multistep else None,
        control=Control.of(problem, stepper, communicator, rules),
        extremes=Reductions(machine, communicator, rules, needs, tuple(problem.measured.values())),
        diagnosed=Reductions(machine, communicator, rules, needs, problem.reduced()),
    )
