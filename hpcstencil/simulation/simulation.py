"""A problem on this process's devices: the steps of its backend, its reductions, and the transfer of blocks.

Fields are dicts of device arrays: this process's cells without ghost cells, in the run's dtype, with the axes described in
`device_blocks` and, in an ensemble, a trailing member axis. Blocks are numpy arrays of this process's cells (local, without
ghost cells).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hpcstencil.backends.backend import Cellwise, Reductions, Steps
from hpcstencil.distributed.device_grid import Body, DeviceGrid
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
class ComposedSimulation:
    """A prepared problem on this process.

    Attributes
    ----------
    steps
        The functions of the backend that step the fields.
    control
        The control of adaptive steps, if `time.tolerance` is given, else None.
    extremes, diagnosed
        The reductions of the measured quantities (fields and others), and of the operands of diagnostics.
    derived
        For each stream with expressions, the function that evaluates them, in the order of `Problem.derived`.
    exchange_mpi
        The mpi4py communicator that only the exchange uses; None with a single process.
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

    def free(self) -> None:
        """Free the communicators of the exchange. Collective; no steps can be taken afterwards."""
        self.device_grid.exchange.free()
        if self.exchange_mpi is not None:
            self.exchange_mpi.Free()

    @property
    def problem(self) -> Problem:
        """The problem that is solved."""
        return self.prepared.problem

    @property
    def plan(self) -> Plan:
        """The decomposition, with the number of steps between two exchanges."""
        return self.prepared.plan

    @property
    def kernel(self) -> str:
        """The name of the backend."""
        return self.prepared.kernel

    @property
    def exchange(self) -> str:
        """The means by which processes exchange halos, such as "shared memory"; "" with a single process."""
        return self.device_grid.exchange.name

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the fields: float32 or float64."""
        return np.dtype(self.problem.config.numerics.precision)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The global index range (half-open) per axis of this process's block."""
        return self.device_grid.topology.block()

    def with_problem(self, problem: Problem) -> ComposedSimulation:
        """Return the same simulation with another ``problem``, which must be able to share its program."""
        control = self.control
        return replace(
            self,
            prepared=replace(self.prepared, problem=problem),
            control=None if control is None else replace(control, problem=problem, schedule=problem.schedule()),
        )

    def advance(self, fields: Fields, steps: StepRange) -> Fields:
        """Return the fields after ``steps``. Collective. The input fields are overwritten and must not be used again."""
        return self.steps.advance(fields, self.problem.parameters, steps)

    def initial_fields(self) -> Fields:
        """Return the fields at t = 0 on the devices, with the memory of a multistep method. Collective.

        Raises InputError, on all processes, if a file of the input cannot be read.
        """
        return self.begun(self.put(agree(self.communicator, lambda: initial_blocks(self.problem, self.ranges))))

    def begun(self, fields: Fields, slopes: Body | None = None) -> Fields:
        """Return fields at t = 0 with the memory of a multistep method that belongs to them. Collective.

        ``slopes`` is the function from `Steps.slopes`, if it is at hand.
        """
        if not self.problem.method.multistep:
            return fields
        own = {name: array for name, array in fields.items() if not name.endswith(MEMORY)}
        first = (slopes or self.steps.slopes())(own, self.problem.parameters, self.per_member(0.0))
        return {**own, **{name + MEMORY: slope for name, slope in first.items()}}

    def put(self, blocks: Mapping[str, np.ndarray]) -> Fields:
        """Transfer ``blocks`` to this process's devices, and return them as fields."""
        return {name: self.device_grid.devices.put(block) for name, block in blocks.items()}

    def get(self, fields: Fields, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return this process's blocks of the fields ``names`` as C-contiguous numpy arrays."""
        return {name: self.block(fields[name]) for name in names}

    def block(self, array: jax.Array) -> np.ndarray:
        """Return this process's block of one device array as a C-contiguous numpy array.

        It has a trailing member axis in an ensemble. It may be a read-only view of the device's memory.
        """
        return np.ascontiguousarray(self.device_grid.devices.get(array))

    def cells(self, array: jax.Array, chosen: Sequence[slice]) -> np.ndarray:
        """Return a C-contiguous copy of the ``chosen`` cells of this process's block of one array, one slice per axis of the
        grid. In an ensemble the member axis comes first."""
        devices = self.device_grid.devices
        if devices.on_gpu and not devices.several:  # transfers only these cells from the GPU
            cells = np.asarray(array[tuple(chosen)])
        else:
            cells = devices.get(array)[tuple(chosen)]
        return np.array(np.moveaxis(cells, -1, 0) if self.problem.members else cells, order="C")

    def per_member(self, value: float | np.integer) -> Any:
        """Return ``value`` as an entry of a `StepRange`.

        It is an array of shape (members,) if members take their own steps, else the number itself.
        """
        return np.full(self.problem.copies, value) if self.problem.own_steps else value

    def compile(self, fields: Fields) -> Fields:
        """Compile the step loop by running it for zero steps. Collective.

        Returns the fields with unchanged values, which replace the input fields.
        """
        one = self.per_member
        if self.control is not None:
            control, these, tried = self.control, StepRange(one(0.0), one(0), one(0.0), one(1)), fields
            if control.attempt_of_member is not None:
                control, these = control.of_members()[0], StepRange(0.0, 0, 0.0, 1)
                tried = self.put({name: np.ascontiguousarray(self.block(u)[..., 0]) for name, u in fields.items()})
            control.room.update(control.attempt(tried, control.problem.parameters, these, {})[0])
            return fields
        for _ in range(2):  # pmap compiles again for its own results
            fields = self.advance(fields, StepRange(one(0.0), one(0), one(0.0), one(0)))
        return jax.block_until_ready(fields)
