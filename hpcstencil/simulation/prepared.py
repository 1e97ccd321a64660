"""The choices that are made once, before a run is composed.

Decomposed   a problem on its blocks, known before JAX is imported
Prepared     the same with its backend and the number of steps between two exchanges
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from hpcstencil.backends.backend import Lowered, Unsupported
from hpcstencil.backends.registry import BACKENDS
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import UNMEASURED, Costs, Plan, decompose, exchanges, most_steps
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, from_rank_0


@dataclass(frozen=True)
class Decomposed:
    """A problem on the blocks of ``topology``, which is that of rank 0.

    It is lowered to a backend on first demand; ``known`` caches the result, or the Unsupported error, by backend name.
    """

    problem: Problem
    topology: Topology
    known: dict[str, Lowered | Unsupported] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, processes: int, devices: int) -> Decomposed:
        """Decompose the problem over ``processes`` processes with ``devices`` devices each.

        Raises the InputError of `decompose`.
        """
        return cls(problem, decompose(problem, processes, devices))

    @property
    def thin(self) -> bool:
        """Whether blocks are too thin for a whole step between two exchanges, so that each stage needs an exchange."""
        return not most_steps(self.problem, self.topology)

    @property
    def given_steps(self) -> int | None:
        """The number of steps between two exchanges, if it is fixed; None if it is still to be chosen.

        It is fixed by the input, or 1 if blocks exchange nothing.
        """
        given = self.problem.config.decomposition.steps_per_exchange
        if not isinstance(given, str):
            return given
        return None if exchanges(self.problem, self.topology) else 1

    def begin(self) -> None:
        """Start compiling in the background for the preferred backends that the input allows."""
        wanted = self.problem.config.numerics.kernel
        for name, one in BACKENDS.items():
            if one.preferred and wanted in ("auto", name):
                with suppress(Unsupported):
                    self.lowered(name).begin()

    def lowered(self, kernel: str) -> Lowered:
        """Lower the problem to the backend ``kernel``, once. Raises Unsupported if the backend does not support it."""
        if kernel not in self.known:
            try:
                self.known[kernel] = BACKENDS[kernel].lower(self.problem, self.topology)
            except Unsupported as reason:
                self.known[kernel] = reason
        found = self.known[kernel]
        if isinstance(found, Unsupported):
            raise found
        return found


@dataclass(frozen=True)
class Choice:
    """The kernel of a run, and the reason for the choice in a few words.

    ``cannot_be`` says that a preferred backend would have been chosen but cannot be used.
    """

    kernel: str
    why: str = "as asked"
    cannot_be: bool = False


@dataclass(frozen=True)
class Prepared:
    """A problem with its decomposition and backend: all that `compose` needs besides devices and communicator."""

    problem: Problem
    plan: Plan
    choice: Choice
    lowered: Lowered

    @property
    def kernel(self) -> str:
        """The name of the backend."""
        return self.choice.kernel


def prepared_with(
    decomposed: Decomposed,
    choice: Choice,
    communicator: Communicator,
    steps_per_exchange: int | None = None,
    costs: Costs = UNMEASURED,
) -> Prepared:
    """Prepare the problem for the chosen backend, equally on all processes. Collective.

    If ``steps_per_exchange`` is None, `Decomposed.given_steps` is used. If that is None too, the number is the best by the
    backend's cost model with these ``costs``. Raises Unsupported if the backend does not support
    the problem.
    """
    problem, topology, lowered = decomposed.problem, decomposed.topology, decomposed.lowered(choice.kernel)
    given = decomposed.given_steps if steps_per_exchange is None else steps_per_exchange

    def chosen() -> tuple[int, float | None, tuple[int, ...] | None]:
        """The number of steps between two exchanges, the seconds per step, and the reach of the steps."""
        k, seconds = lowered.steps_per_exchange(topology, costs) if given is None else (given, None)
        return k, seconds, lowered.reach(topology, k)

    alone = given is not None and not exchanges(problem, topology)
    plan = Plan.of(problem, topology, *((given, None, None) if alone else from_rank_0(communicator, chosen)))
    return Prepared(problem, plan, choice, lowered)
