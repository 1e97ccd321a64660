"""The seam between a problem and the code that takes its steps.

    Backend   a value of numerics.kernel
    Lowered   a problem in the form of a backend: its cost and memory, before any device is known
    Steps     the functions that step the fields on this process's devices

`registry` lists the backends. Fields are dicts of device arrays as in `simulation`: this process's cells without ghost
cells, in the run's dtype.
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


class Unsupported(Exception):
    """A backend cannot take the steps of a problem; the message says why, as half a sentence."""


class Reductions(Protocol):
    """Numbers over the whole grid, equal on all processes and for every decomposition."""

    @property
    def trees(self) -> Sequence[Node]:
        """The trees that are reduced."""

    @property
    def device_grid(self) -> DeviceGrid:
        """The device grid."""

    @property
    def cells(self) -> int:
        """The number of cells of the grid."""

    def extremes(
        self, fields: Fields, parameters: Parameters, time: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(minimum, maximum, number of non-finite cells) of each tree, in an ensemble with a last axis of members."""

    def sums(self, fields: Fields, parameters: Parameters, time: float, largest: np.ndarray) -> np.ndarray:
        """The sum of each tree over all cells; ``largest`` has the greatest magnitude of each."""


def never_known() -> bool:
    """The answer of a backend that does not watch the values that it stores."""
    return False


@dataclass(frozen=True)
class Steps:
    """The functions of a problem on this process's devices.

    ``attempt`` makes the function that takes one step and estimates its error. ``slopes`` makes the function of
    (fields, parameters, t) that computes the time derivatives which a multistep method needs at its start.
    ``reductions`` makes the reductions of trees; its first argument are the trees that these are computed from.
    ``stayed_finite`` says whether all measured quantities of this process are known to have been finite since the last
    call. ``snapshot_buffers`` makes the buffers for asynchronous output. ``first_cells`` limits the first call of
    ``advance``: it takes at least one step, and more only while they update no more cells than that.
    """

    advance: Advance
    attempt: Callable[[], Attempt]
    slopes: Callable[[], Body]
    reductions: Callable[[Needs, Sequence[Node]], Reductions]
    snapshot_buffers: Callable[[Mapping[str, Pieces]], Copies]
    stayed_finite: Callable[[], bool] = never_known
    first_cells: int = 1


class Lowered(Protocol):
    """A problem in the form of a backend."""

    @property
    def halo_wraps(self) -> bool:
        """Whether the exchange fills the ghost cells of whole periodic axes, with one evaluation between two."""

    @property
    def ghosts_apart(self) -> bool:
        """Whether the code takes ghost cells as arrays of their own."""

    def begin(self) -> None:
        """Start to compile in the background, if there is anything to compile."""

    def lack(self, device: jax.Device, topology: Topology) -> str:
        """Why this process, with ``topology`` as it sees it, cannot take the steps on ``device``; "" if it can. This
        compiles what the steps need."""

    def seconds_per_work(self, topology: Topology) -> float | None:
        """`Costs.seconds_per_work` of this process, measured now in a fraction of a second; None for a backend that does not
        use it."""

    def steps_per_exchange(self, topology: Topology, costs: Costs) -> tuple[int, float | None]:
        """The number of steps between two exchanges with the least estimated cost, 0 for several exchanges per step; and the
        seconds of a step that this predicts, None if the costs are not measured."""

    def cells_held(self, plan: Plan) -> tuple[int, int]:
        """The values per device that are held between steps and while stepping, ghost cells included."""

    def exchange(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Exchange:
        """The exchange of this backend between the blocks of ``device_grid``: that of the grid, or a kind of its own.
        All processes call this together."""

    def steps(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Steps:
        """The steps on ``device_grid``. All processes call this together."""


class Backend(Protocol):
    """A value of numerics.kernel. "auto" takes the first of the backends that is ``preferred``, and else the fastest."""

    @property
    def name(self) -> str:
        """The value of numerics.kernel."""

    @property
    def preferred(self) -> bool:
        """Whether "auto" takes this backend without measuring it against others."""

    def lower(self, problem: Problem, topology: Topology) -> Lowered:
        """The problem in the form of this backend. Raises Unsupported if it does not fit. Nothing is compiled."""

    def unsuited(self, device: jax.Device) -> str:
        """Why "auto" does not take this backend on ``device``; "" if it may. A preferred backend cannot be requested
        there either."""

    def remark(self, device: jax.Device) -> str:
        """A remark for the user who requests this backend on ``device``; "" if there is none."""
