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


class Unsupported(Exception):
    """A backend cannot take the steps of a problem. The message gives the reason, as a clause for a longer sentence."""


class Reductions(Protocol):
    """Extrema and sums over the whole grid. They have the same bits on all processes and for every decomposition."""

    @property
    def trees(self) -> Sequence[Node]:
        """The n trees that are reduced."""

    @property
    def device_grid(self) -> DeviceGrid:
        """The device grid that holds the fields which are reduced."""

    @property
    def cells(self) -> int:
        """The number of cells of the grid."""

    def extremes(
        self, fields: Fields, parameters: Parameters, time: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(minimum, maximum, number of non-finite cells) of each tree over the whole grid, at ``time``. Each is an
        array of shape (n,), in an ensemble (n, members): float64, float64 and int64. All processes call this together."""

    def sums(self, fields: Fields, parameters: Parameters, time: float, largest: np.ndarray) -> np.ndarray:
        """The sum of each tree over all cells of the grid, float64, of shape (n,), in an ensemble (n, members).
        ``largest`` is the greatest magnitude of each tree, in the same shape. All processes call this together."""


def never_known() -> bool:
    """`Steps.stayed_finite` of a backend that does not check the values that it stores."""
    return False


@dataclass(frozen=True)
class Steps:
    """The functions of a problem on this process's devices.

    ``advance`` takes steps of known size. ``attempt`` makes the function that takes one step and estimates its error.
    ``slopes`` makes the function of (fields, parameters, t) that computes the time derivatives of the fields, which a
    multistep method needs at its start. ``reductions(needs, trees)`` makes the reductions of ``trees``; ``needs`` are
    the ghost cells of their operands. ``cellwise``, with the same arguments, makes the function that computes the values of
    trees in every cell. ``snapshot_buffers`` makes the buffers for asynchronous output.
    ``stayed_finite`` says whether all measured quantities of this process are known to have been finite since its last
    call. ``first_cells`` limits the first call of ``advance``, in cells times steps: it takes at least one step, and
    more only within this limit.
    """

    advance: Advance
    attempt: Callable[[], Attempt]
    slopes: Callable[[], Body]
    reductions: Callable[[Needs, Sequence[Node]], Reductions]
    cellwise: Callable[[Needs, Sequence[Node]], Cellwise]
    snapshot_buffers: Callable[[Mapping[str, Pieces]], Copies]
    stayed_finite: Callable[[], bool] = never_known
    first_cells: int = 1


class Lowered(Protocol):
    """A problem lowered to a backend: its cost, its memory, and its steps."""

    @property
    def halo_wraps(self) -> bool:
        """Whether the exchange also fills the ghost cells of periodic axes that are not cut, if one evaluation is made
        between two exchanges."""

    @property
    def ghosts_apart(self) -> bool:
        """Whether the code takes ghost cells as separate arrays, instead of fields padded with them."""

    def begin(self) -> None:
        """Start to compile in the background, if there is anything to compile. Returns at once."""

    def lack(self, device: jax.Device, topology: Topology) -> str:
        """Why this process cannot take the steps on ``device``; "" if it can. ``topology`` has this process's rank.
        This call compiles the code that the steps need, and waits for it."""

    def seconds_per_work(self, topology: Topology) -> float | None:
        """`Costs.seconds_per_work` of this process, measured now in a fraction of a second; None for a backend that
        does not use it."""

    def steps_per_exchange(self, topology: Topology, costs: Costs) -> tuple[int, float | None]:
        """(steps between two exchanges with the least estimated cost, predicted seconds per step). The number is 0 for
        several exchanges per step. The prediction is None if the ``costs`` are not measured."""

    def cells_held(self, plan: Plan) -> tuple[int, int]:
        """(values held between steps, values held while stepping) on each device, all fields and ghost cells included.
        Multiply by the size of the dtype for bytes."""

    def exchange(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Exchange:
        """The exchange between the blocks of ``device_grid`` that the steps use: the grid's own, or one that this
        backend provides. All processes call this together."""

    def steps(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Steps:
        """The functions that step the fields on ``device_grid``. All processes call this together."""


class Backend(Protocol):
    """A value of numerics.kernel. "auto" takes the first backend that is ``preferred`` and fits, otherwise the
    fastest."""

    @property
    def name(self) -> str:
        """The value of numerics.kernel."""

    @property
    def preferred(self) -> bool:
        """Whether "auto" takes this backend without measuring it against others."""

    def lower(self, problem: Problem, topology: Topology) -> Lowered:
        """Lower the problem to this backend. Nothing is compiled. Raises Unsupported if the problem does not fit."""

    def unsuited(self, device: jax.Device) -> str:
        """Why "auto" does not take this backend on ``device``; "" if it may. A preferred backend cannot be requested
        there either."""

    def remark(self, device: jax.Device) -> str:
        """A remark for the user who requests this backend on ``device``; "" if there is none."""
