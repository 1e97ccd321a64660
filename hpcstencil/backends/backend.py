"""Interfaces between a problem and the backends that compute its time steps.

    Backend   one way to compute steps, selected by numerics.kernel
    Lowered   a problem prepared for a backend: its cost and memory, known before any device is
    Steps     the functions that step the fields on this process's devices

`registry` lists the backends.

``Fields`` map field names to arrays on this process's devices. The arrays are local: they hold the process's own cells,
without ghost cells, in the run's dtype. A process with several devices adds a leading device axis, and an ensemble adds a
trailing member axis. Parameters, times and step sizes are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
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

# (fields, parameters, range of steps) -> fields after these steps. The input fields are overwritten.
Advance = Callable[["Fields", "Parameters", "StepRange"], "Fields"]
# (fields, parameters, one step, room) -> (fields after the step, its estimated error: `error_norm.error_norm`). Collective.
# The input fields are kept. In an ensemble the step and the error have one entry per member; a member whose count is 0 may
# keep its fields. ``room`` are fields that nobody needs any more: the results may take their memory. It may be empty.
Attempt = Callable[["Fields", "Parameters", "StepRange", "Fields"], "tuple[Fields, np.ndarray]"]

# (fields, room, parameters, range of steps) -> fields after these steps. Those that the steps do not change are overwritten.
# The others are kept; ``room`` is memory for their results, by name, or empty.
Into = Callable[["Fields", "Fields", "Parameters", "StepRange"], "Fields"]

# () -> the steps that follow those which a compiled call has just taken; None if the call must end.
NextSteps = Callable[[], "StepRange | None"]
# (error of the step that a compiled call has just attempted) -> (whether it is accepted, the next one to attempt; None if the
# call must end).
NextAttempt = Callable[[float], "tuple[bool, StepRange | None]"]

# (fields, parameters, t) -> one array per tree with its value in every cell, laid out like a field. Collective.
Cellwise = Callable[["Fields", "Parameters", "Number"], "list[jax.Array]"]

# arrays with the shape of a field, by the number of a step and by name
ArraysByStep = Mapping[int, Mapping[str, "jax.Array | np.ndarray"]]


BY_FFT = 'equation.stencils.{} has method = "fft", which rounds differently on each decomposition'


class Unsupported(Exception):
    """Raised when a backend cannot compute the steps of a problem.

    The message is the reason, phrased as a clause of a longer sentence.
    """


@dataclass(frozen=True)
class Reduced:
    """The reductions of n trees: each minimum, maximum, number of non-finite cells, and sum over all cells, which is NaN if
    there are any of these. All are equal on all processes; of shape (n,), or (n, members) in an ensemble."""

    low: np.ndarray
    high: np.ndarray
    broken: np.ndarray
    sums: np.ndarray


class Recorder(Protocol):
    """A recorder of the reductions of states after some of the steps of a compiled call."""

    @property
    def with_last(self) -> bool:
        """Whether it records the state after the last step of a call too."""

    def expect(self, every: int, first: int, origin: int, times: Sequence[float]) -> None:
        """Announce a compiled call whose steps are to be recorded; the call must follow at once.

        The state after step n of the run becomes record n / ``every`` - ``first``, if ``every`` divides n. Step 0 of the
        call's `StepRange` is step ``origin`` of the run. ``times`` are those of the records.
        """

    def expect_nothing(self) -> None:
        """Announce that the next compiled call is not to be recorded."""

    def taken(self, count: int) -> Iterator[Reduced]:
        """Yield the first ``count`` records, in an ensemble with the members as last axis. Collective."""


class Reductions(Protocol):
    """Extrema and sums over the whole grid of a fixed list of expression trees.

    The results are bitwise equal on all processes and for every decomposition.
    """

    @property
    def trees(self) -> Sequence[Node]:
        """The n trees to reduce, in the order of the results."""

    @property
    def device_grid(self) -> DeviceGrid:
        """The device grid on which the reduced fields live."""

    @property
    def cells(self) -> int:
        """The number of cells of the whole grid; an ensemble counts them once, not per member."""

    def expect(self, wanted: bool) -> None:
        """Announce that the next call takes steps, and whether reductions of the fields after it are ``wanted``.

        Native code then reduces them while it stores them.
        """

    def recorder(self, most: int, with_sums: bool = True) -> Recorder | None:
        """Return a recorder of up to ``most`` reductions of all trees; None if compiled calls cannot record them.

        Without ``with_sums``, those in its results mean nothing.
        """

    def extremes(
        self, fields: Fields, parameters: Parameters, time: float | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the minimum, the maximum and the number of non-finite cells of each tree at ``time``. Collective.

        In an ensemble, ``time`` may be an array of shape (members,).

        All three are taken over the whole grid. Each is an array of shape (n,), or (n, members) in an ensemble; the
        dtypes are float64, float64 and int64. If a tree has non-finite cells, its extrema are unreliable because NaN may
        be skipped.
        """

    def sums(self, fields: Fields, parameters: Parameters, time: float, largest: np.ndarray) -> np.ndarray:
        """Return the sum of each tree over all cells of the grid at ``time``. Collective.

        The fields must be those of the last call of `extremes`, since some sums are taken together with the extrema.

        The result is float64 of shape (n,), or (n, members) in an ensemble. ``largest`` has the same shape and holds the
        largest magnitude of each tree, which sets the scale of the exact summation. Where ``largest`` is NaN or
        infinite, the sum is that value.
        """


class Injection(Protocol):
    """Values that are added to single cells of the fields `Problem.injected` while compiled code takes steps, on this
    process's device."""

    @property
    def beyond(self) -> tuple[int, ...]:
        """How many cells outside the block a call may compute, and so adds to, per axis."""

    @property
    def index(self) -> np.ndarray | None:
        """The cells that were chosen last."""

    def at(self, index: np.ndarray) -> None:
        """Choose the cells: different ones, int64 of shape (cells, axes), relative to the first cell of the block.

        Cells of neighbouring blocks, and images of cells of periodic axes, are included if they lie up to ``beyond`` cells
        outside.
        """

    def adding(self, first: int, rows: Sequence[int], values: np.ndarray) -> AbstractContextManager[None]:
        """A context in which calls add ``values``, of shape (rows, cells) in the run's dtype.

        Addition r, counted from the beginning of the step with the number ``first`` of the call's `StepRange`, adds the row
        rows[r], or nothing if that is -1. There is one for each field of `Problem.injected`, in order, at the end of each step
        of the run that is reversed.
        """


class RegionRecords(Protocol):
    """Records of regions of fields or expressions within compiled calls: copies of their cells, or sums over steps."""

    @property
    def with_last(self) -> bool:
        """Whether the state after the last step of a call is recorded too."""

    def expect(
        self, every: int, first: int, origin: int, times: Sequence[float], weights: Sequence[float] = ()
    ) -> None:
        """Announce a compiled call; it must follow at once. ``times`` are those of its records.

        The state after step n of the run is record n / ``every`` - ``first``, if ``every`` divides n. Step 0 of the call's
        `StepRange` is step ``origin`` of the run. Sums need ``weights``, one per record, by which its values are multiplied.
        """

    def expect_nothing(self) -> None:
        """Announce that the next compiled call records nothing."""


def never_known() -> bool:
    """Return False: the `Steps.stayed_finite` of backends that do not check the values they store."""
    return False


@dataclass(frozen=True)
class Steps:
    """The functions that step a problem's fields on this process's devices.

    Attributes
    ----------
    advance
        Takes steps of a given size.
    attempt
        Returns the function that takes one step and estimates its error, for adaptive step sizes.
    attempt_of_member
        Returns the function that does the same for one member of an ensemble, whose fields have no member axis. None if all
        members are attempted together, because they share the exchanges.
    slopes
        Returns the function (fields, parameters, t) -> time derivatives of the fields by name. A multistep method needs
        them at its start.
    reductions
        ``reductions(needs, trees)`` returns the `Reductions` of ``trees``. ``needs`` maps the operands in them to the
        ghost cells that they require.
    cellwise
        Takes the same arguments and returns the function that computes the value of each tree in every cell.
    snapshot_buffers
        Makes the buffers for asynchronous output from this process's `Pieces` by field.
    cell_samples
        Makes the recorder of single cells, for probes; its arguments are those of `CellSamples`. Collective.
    stayed_finite
        Returns True if all measured quantities of this process are known to have been finite since its last call.
    first_cells
        Upper limit on (cells of a device) x (steps) for the first call of ``advance``. A single step is always allowed.
    inside
        Makes a form of ``advance`` for use inside other compiled code, which may call it several times at once. If it is
        None, ``advance`` itself serves. Neither works there unless the exchange is `Exchange.fused`.
    into
        The form of ``advance`` that stores results in other memory. None if the backend has no use for it.
    choosing
        ``choosing(next_steps)`` returns a context in which calls of ``into`` go on: after its steps, a call takes those that
        ``next_steps()`` returns, as long as it returns any. The call overwrites the fields that it is given, and recorders
        record anew what they expect at that time. It must end in the context. None if the backend cannot. Handlers of signals
        must not run in ``next_steps`` (`signals.undisturbed`).
    choosing_attempts
        ``choosing_attempts(next_attempt)`` is the same for calls of ``attempt``. After a rejected step, the next one begins at
        the state before it. None if the backend cannot.
    storing
        ``storing(rooms)`` returns a context in which one call of ``advance`` or ``into`` also stores the states after some of
        its steps. ``rooms`` maps numbers of steps, in the clock of the call's `StepRange`, to arrays of the fields that change.
        Nobody else may use their memory, which is overwritten. The call must end in the context. None if the backend cannot.
    replaying
        ``replaying(arrays)`` returns a context in which the steps of calls read `Problem.replayed` from ``arrays``. These map
        numbers of steps, in the clock of the call's `StepRange`, to arrays by name. Around them there are the values in the
        `Plan.halo` of other blocks, and room for 8 planes before and behind these. None if the problem has none.
    injection
        Makes the object that adds values to single cells of `Problem.injected` while steps are taken, from the largest number
        of steps in a call. None if the backend cannot.
    region_records
        ``region_records(chosen, arrays, trees, every, summed)`` returns what records the ``chosen`` cells of this process's
        block in ``arrays``, by name: of fields; or of the values of ``trees``, if there are any, in this order. If they are
        ``summed``, each record is added to float64 arrays of the shape of the cells. Otherwise it is copied to arrays in the
        run's dtype, whose first axis is the record; ``every`` is the number of steps between two records. The axis of members
        comes before those of the grid. The result is None for what compiled calls cannot record. None if the backend cannot.
    """

    advance: Advance
    attempt: Callable[[], Attempt]
    slopes: Callable[[], Body]
    reductions: Callable[[Needs, Sequence[Node]], Reductions]
    cellwise: Callable[[Needs, Sequence[Node]], Cellwise]
    snapshot_buffers: Callable[[Mapping[str, Pieces]], Copies]
    cell_samples: Callable[[Mapping[str, Cells], np.ndarray, int, Devices, int], CellSamples]
    stayed_finite: Callable[[], bool] = never_known
    first_cells: int = 1
    inside: Callable[[], Advance] | None = None
    into: Into | None = None
    choosing: Callable[[NextSteps], AbstractContextManager[None]] | None = None
    choosing_attempts: Callable[[NextAttempt], AbstractContextManager[None]] | None = None
    storing: Callable[[ArraysByStep], AbstractContextManager[None]] | None = None
    replaying: Callable[[ArraysByStep], AbstractContextManager[None]] | None = None
    injection: Callable[[int], Injection] | None = None
    attempt_of_member: Callable[[], Attempt] | None = None
    region_records: (
        Callable[[Sequence[slice], Mapping[str, np.ndarray], Sequence[Node], int, bool], RegionRecords | None] | None
    ) = None


class Lowered(Protocol):
    """A problem prepared for one backend: its cost, its memory, and its steps."""

    @property
    def halo_wraps(self) -> bool:
        """Whether the exchange also fills the ghost cells of periodic axes that are not decomposed.

        It does so only if the right-hand side is evaluated once between two exchanges.
        """

    @property
    def ghosts_apart(self) -> bool:
        """Whether the compiled code receives ghost cells as separate arrays instead of padded fields."""

    def begin(self) -> None:
        """Start compiling in the background, if there is anything to compile, and return at once."""

    def lack(self, topology: Topology) -> str:
        """Return why this process cannot compute the steps, as a clause; "" if it can.

        The call compiles the code that the steps need and waits for it. ``topology`` must hold this process's rank.
        """

    def seconds_per_work(self, topology: Topology) -> float | None:
        """Measure the seconds per unit of work of this backend's cost model (`Costs.seconds_per_work`).

        The measurement is made on this process and takes a fraction of a second. The result is None if the backend has
        no such cost model.
        """

    def steps_per_exchange(self, topology: Topology, costs: Costs) -> tuple[int, float | None]:
        """Return (cheapest number of steps between two exchanges, predicted seconds per step).

        The number is 0 if one step needs several exchanges. The prediction is None if ``costs`` are not measured or the
        backend makes none.
        """

    def reach(self, topology: Topology, every: int) -> tuple[int, ...] | None:
        """Return how many cells beyond a block ``every`` steps read at most, per axis.

        None means the stencil's radius times the number of evaluations. ``every`` is as in
        `Plan`. Raises Unsupported if the backend's cost model does not compile.
        """

    def cells_held(self, plan: Plan) -> tuple[int, int]:
        """Return (values held between steps, values held while stepping) on each device.

        Both are numbers of array elements, for all fields. In an ensemble they count one member. Multiply by the item
        size of the dtype for bytes. Raises Unsupported if the backend's cost model does not compile.
        """

    def exchange(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Exchange:
        """Return the halo exchange that the steps use. Collective.

        It is either the exchange of ``device_grid`` or one that this backend provides.
        """

    def steps(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Steps:
        """Return the functions that step the fields on ``device_grid``. Collective."""


class Backend(Protocol):
    """One way to compute the steps, selected by numerics.kernel.

    With "auto", a continued run keeps its kernel. A new run takes the first ``preferred`` backend that every process can
    use. If there is none, it takes the first other backend that fits, unless another one was clearly faster when rank 0
    measured them.
    """

    @property
    def name(self) -> str:
        """The value of numerics.kernel that selects this backend."""

    @property
    def preferred(self) -> bool:
        """Whether "auto" takes this backend without measuring it against others, if every process can use it."""

    def lower(self, problem: Problem, topology: Topology) -> Lowered:
        """Prepare the problem for this backend, without compiling anything.

        Raises Unsupported if the backend cannot compute the problem's steps.
        """

    def unsuited(self, device: jax.Device) -> str:
        """Return why "auto" does not take this backend on ``device``, as a clause; "" if it may.

        If the backend is ``preferred``, it cannot be requested explicitly on that device either.
        """

    def remark(self, device: jax.Device) -> str:
        """Return a remark for users who request this backend on ``device``, as a clause; "" if there is none."""
