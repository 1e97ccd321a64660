"""The protocols between a problem and the code that takes its steps.

    Backend   a value of numerics.kernel
    Lowered   a problem in the form of a backend: its cost and memory, before any device is known
    Steps     the functions that step the fields on this process's devices

`registry` lists the backends. ``Fields`` map names to arrays on this process's devices: its own cells without ghost
cells, in the run's dtype. With several devices the arrays have a leading device axis; in an ensemble the members are
the last axis. Parameters, times and step sizes are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.stencil_reach import Needs

if TYPE_CHECKING:
    import jax
    import numpy as np

    from hpcstencil.distributed.cell_samples import Cells, CellSamples
    from hpcstencil.distributed.device_blocks import Devices
    from hpcstencil.distributed.device_grid import Body, DeviceGrid
    from hpcstencil.distributed.exchange import Exchange
    from hpcstencil.distributed.halo import Fields
    from hpcstencil.distributed.windows import Number, Parameters
    from hpcstencil.io.direct_write import Pieces
    from hpcstencil.io.snapshot_buffers import Copies
    from hpcstencil.numerics.schedule import StepRange
    from hpcstencil.problem.decomposition import Costs, Plan

# (fields, parameters, which steps) -> fields after these steps. The memory of the given fields is reused.
Advance = Callable[["Fields", "Parameters", "StepRange"], "Fields"]
# (fields, parameters, t, dt) -> (fields after one step, `Problem.errors` of it by field). The given fields are kept.
Attempt = Callable[["Fields", "Parameters", "Number", "Number"], "tuple[Fields, Fields]"]

# (fields, parameters, t) -> the values of given trees in every cell, arrays like the fields. All processes call this together.
Cellwise = Callable[["Fields", "Parameters", "Number"], "list[jax.Array]"]


BY_FFT = 'equation.stencils.{} has method = "fft", which rounds differently on each decomposition'


class Unsupported(Exception):
    """A backend cannot take the steps of a problem. The message gives the reason, as a clause for a longer sentence."""


class Reductions(Protocol):
    """Extrema and sums of a fixed list of trees over the whole grid. The results are bitwise equal on all processes and
    for every decomposition."""

    @property
    def trees(self) -> Sequence[Node]:
        """The n trees to reduce, in the order of the results."""

    @property
    def device_grid(self) -> DeviceGrid:
        """The device grid on which the reduced fields live."""

    @property
    def cells(self) -> int:
        """The number of cells of the whole grid, not counted once per member of an ensemble."""

    def extremes(
        self, fields: Fields, parameters: Parameters, time: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The minimum, the maximum and the number of non-finite cells of each tree over the whole grid at ``time``.
        Each is an array of shape (n,), or (n, members) in an ensemble; the dtypes are float64, float64 and int64.

        Extrema of a tree with non-finite cells are not reliable, since NaN may be skipped. All processes call this
        together.
        """

    def sums(self, fields: Fields, parameters: Parameters, time: float, largest: np.ndarray) -> np.ndarray:
        """The sum of each tree over all cells of the grid at ``time``: float64 of shape (n,), or (n, members) in an
        ensemble.

        ``largest`` is the greatest magnitude of each tree, in the same shape. Where it is NaN or infinite, so is the
        sum. All processes call this together.
        """


def never_known() -> bool:
    """Always False: the `Steps.stayed_finite` of a backend that does not check the values it stores."""
    return False


@dataclass(frozen=True)
class Steps:
    """The functions that step a problem's fields on this process's devices.

    ``advance`` takes steps of known size. ``attempt()`` returns the function that takes one step and estimates its
    error. ``slopes()`` returns the function (fields, parameters, t) -> time derivatives of the fields by name, which a
    multistep method needs at its start. ``reductions(needs, trees)`` returns the reductions of ``trees``; ``needs`` has
    the ghost cells of the operands in them. ``cellwise``, with the same arguments, returns the function that
    computes the values of trees in every cell. ``snapshot_buffers`` makes the buffers for asynchronous output from this
    process's `Pieces` by field, and ``cell_samples`` the recorder of single cells, with the arguments of `CellSamples`.

    ``stayed_finite()`` returns whether all measured quantities of this process are known to have been finite since its
    last call. ``first_cells`` limits the first call of ``advance``: cells of a device times steps may not exceed it,
    unless the call takes a single step.

    ``inside`` makes a form of ``advance`` for use inside other compiled code, which may call it several times at once;
    without it that is ``advance`` itself. If the exchange is not `Exchange.fused`, neither form can be used there.
    """

    advance: Advance
    attempt: Callable[[], Attempt]
    slopes: Callable[[], Body]
    reductions: Callable[[Needs, Sequence[Node]], Reductions]
    cellwise: Callable[[Needs, Sequence[Node]], Cellwise]
    snapshot_buffers: Callable[[Mapping[str, Pieces]], Copies]
    cell_samples: Callable[[Mapping[str, Cells], np.ndarray, int, Devices], CellSamples]
    stayed_finite: Callable[[], bool] = never_known
    first_cells: int = 1
    inside: Callable[[], Advance] | None = None


class Lowered(Protocol):
    """A problem in the form of a backend: its cost, its memory, and its steps."""

    @property
    def halo_wraps(self) -> bool:
        """Whether the exchange also fills the ghost cells of periodic axes that are not cut. This applies only if the
        right-hand side is evaluated once between two exchanges."""

    @property
    def ghosts_apart(self) -> bool:
        """Whether the code takes ghost cells as separate arrays. Otherwise it takes fields padded with them."""

    def begin(self) -> None:
        """Start to compile in the background if there is anything to compile, and return at once."""

    def lack(self, device: jax.Device, topology: Topology) -> str:
        """Why this process cannot take the steps on ``device``, as a clause for a longer sentence; "" if it can.
        ``topology`` has this process's rank. The call compiles the code that the steps need, and waits for it."""

    def seconds_per_work(self, topology: Topology) -> float | None:
        """The seconds that one unit of work of this backend's cost model takes on this process
        (`Costs.seconds_per_work`), measured now in a fraction of a second. None for a backend that does not use it."""

    def steps_per_exchange(self, topology: Topology, costs: Costs) -> tuple[int, float | None]:
        """(number of steps between two exchanges with the least estimated cost, predicted seconds per step). The number
        is 0 if one step needs several exchanges. The prediction is None if ``costs`` are not measured or the backend
        predicts nothing."""

    def cells_held(self, plan: Plan) -> tuple[int, int]:
        """(values held between steps, values held while stepping) on each device. They count all fields with their
        ghost cells, and in an ensemble only one member. Multiply by the size of the dtype for bytes."""

    def exchange(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Exchange:
        """The exchange between the blocks of ``device_grid`` that the steps use: the grid's own, or one that this
        backend provides. All processes call this together."""

    def steps(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Steps:
        """The functions that step the fields on ``device_grid``. All processes call this together."""


class Backend(Protocol):
    """A way to take the steps, selected by numerics.kernel.

    With "auto", a continued run keeps its kernel. Otherwise the run takes the first ``preferred`` backend that every
    process can use. If there is none, it takes the first of the others that fits, unless another was clearly faster
    when rank 0 measured them.
    """

    @property
    def name(self) -> str:
        """The value of numerics.kernel that selects this backend."""

    @property
    def preferred(self) -> bool:
        """Whether "auto" takes this backend, if every process can use it, without measuring it against others."""

    def lower(self, problem: Problem, topology: Topology) -> Lowered:
        """The problem in the form of this backend. Nothing is compiled. Raises Unsupported if the problem does not
        fit."""

    def unsuited(self, device: jax.Device) -> str:
        """Why "auto" does not take this backend on ``device``, as a clause for a longer sentence; "" if it may. A
        preferred backend cannot be requested there either."""

    def remark(self, device: jax.Device) -> str:
        """A remark for the user who requests this backend on ``device``, as a clause; "" if there is none."""
