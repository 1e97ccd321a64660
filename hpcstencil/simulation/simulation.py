"""A problem on this process's devices: the steps of its backend, its measurements, and its blocks on the devices.

Fields are dicts of device arrays: this process's cells without ghost cells, in the run's dtype, with the axes of
`device_blocks` and, in an ensemble, a last axis of members. Blocks are numpy arrays of this process's cells (local,
without ghost cells).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hpcstencil.backends.backend import Cellwise, Reductions, Steps
from hpcstencil.distributed.device_grid import DeviceGrid
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.integrators import MEMORY
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.decomposition import Plan
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.simulation.adaptive_step import Control
from hpcstencil.simulation.initial_state import initial_blocks
from hpcstencil.simulation.prepared import Prepared


@dataclass(frozen=True)
class Simulation:
    """A prepared problem on this process.

    ``control`` takes the steps if they are adaptive (`time.tolerance`), else it is None. ``extremes`` reduces the
    fields and the other measured quantities, ``diagnosed`` the operands of the diagnostics. ``derived`` computes the
    expressions of each stream, in the order of `Problem.derived`. ``exchange_mpi`` is the mpi4py communicator that only
    the exchange uses, None on one process.
    """

    prepared: Prepared
    communicator: Communicator
    device_grid: DeviceGrid
    steps: Steps
    control: Control | None
    extremes: Reductions
    diagnosed: Reductions
    derived: Mapping[str, Cellwise]
    exchange_mpi: Any = None

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.prepared.problem

    @property
    def plan(self) -> Plan:
        """The decomposition."""
        return self.prepared.plan

    @property
    def kernel(self) -> str:
        """The name of the backend."""
        return self.prepared.kernel

    @property
    def exchange(self) -> str:
        """How the processes exchange the edges of their blocks, such as "shared memory"; "" on one process."""
        return self.device_grid.exchange.name

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the fields: float32 or float64."""
        return np.dtype(self.problem.config.numerics.precision)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Global index range (half-open) per axis of this process's block."""
        return self.device_grid.topology.block()

    def advance(self, fields: Fields, steps: StepRange) -> Fields:
        """The fields after ``steps``. The memory of the given fields is reused, so they must not be read afterwards.
        All processes call this together."""
        return self.steps.advance(fields, self.problem.parameters, steps)

    def initial_fields(self) -> Fields:
        """The fields at t = 0 on the devices, with the memory of a multistep method. All processes call this together.
        Raises InputError on all of them."""
        fields = self.put(agree(self.communicator, lambda: initial_blocks(self.problem, self.ranges)))
        if self.problem.method.multistep:
            first = self.steps.slopes()(fields, self.problem.parameters, self.per_member(0.0))
            fields = {**fields, **{name + MEMORY: slope for name, slope in first.items()}}
        return fields

    def put(self, blocks: Mapping[str, np.ndarray]) -> Fields:
        """The fields with the values of ``blocks``, put on this process's devices."""
        return {name: self.device_grid.devices.put(block) for name, block in blocks.items()}

    def get(self, fields: Fields, names: Sequence[str]) -> dict[str, np.ndarray]:
        """This process's blocks of the fields ``names``, copied from the devices, C-contiguous."""
        return {name: self.block(fields[name]) for name in names}

    def block(self, array: jax.Array) -> np.ndarray:
        """This process's block of one device array as a C-contiguous numpy array, with a last axis of members in an
        ensemble."""
        return np.ascontiguousarray(self.device_grid.devices.get(array))

    def cells(self, array: jax.Array, chosen: Sequence[slice]) -> np.ndarray:
        """The ``chosen`` cells of this process's block of one device array, one slice per axis: a copy, C-contiguous."""
        devices = self.device_grid.devices
        if devices.on_gpu and not devices.several:  # only these cells leave the card
            return np.array(array[tuple(chosen)], order="C")
        return np.array(devices.get(array)[tuple(chosen)], order="C")

    def per_member(self, value: float | np.integer) -> Any:
        """``value`` as a member of a `StepRange`: an array (members,) if members take their own steps, else the number
        itself."""
        return np.full(self.problem.copies, value) if self.problem.own_steps else value

    def compile(self, fields: Fields) -> Fields:
        """Compile the step loop by running it for zero steps; returns the fields with their values unchanged, which
        then replace the given ones. All processes call this together."""
        if self.control is not None:
            self.control.error(self.control.attempt(fields, self.problem.parameters, 0.0, 0.0)[1])
            return fields
        one = self.per_member
        for _ in range(2):  # pmap compiles again for its own results
            fields = self.advance(fields, StepRange(one(0.0), one(0), one(0.0), one(0)))
        return jax.block_until_ready(fields)
