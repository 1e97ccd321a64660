"""The choice of the backend that computes the steps of a run.

"auto" takes the preferred backend, native code. If a process cannot use it, rank 0 measures the other backends. Measurements
are stored in the user's cache folder, so that a machine measures only once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from hpcstencil.backends.backend import BY_FFT, Unsupported
from hpcstencil.backends.registry import BACKENDS
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.decomposition import UNMEASURED
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, OneProcess, from_rank_0
from hpcstencil.simulation.cost_measurement import ByStepping, measured_costs
from hpcstencil.simulation.measurement_cache import key, recall, remember
from hpcstencil.simulation.prepared import Choice, Decomposed, Prepared, prepared_with
from hpcstencil.validation.errors import EnvironmentProblem, InputError

PROBE_CELLS, PROBE_CELLS_ON_GPU = 2**16, 2**24  # on a GPU, a smaller block would measure only launch overhead
PROBE_SECONDS = 0.05
CLEARLY = 1.5  # how many times faster than the first kernel another one must be to replace it


def prepare(decomposed: Decomposed, devices: Sequence[Any], communicator: Communicator, before: str = "") -> Prepared:
    """Choose the backend and the number of steps between two exchanges, equally on all processes. Collective.

    ``devices`` are those of this process. ``before`` is the kernel of the run that is continued, "" if there is none. Raises
    the same errors as `chosen`.
    """
    choice = chosen(decomposed, devices, communicator, before)
    costs = UNMEASURED
    if decomposed.given_steps is None:
        lowered, by_stepping = decomposed.lowered(choice.kernel), None
        if devices[0].platform == "gpu":
            measure = partial(seconds_per_cell, decomposed.problem, devices[0], choice.kernel)
            by_stepping = ByStepping(f"{choice.kernel}:{devices[0].device_kind}", measure)
        costs = measured_costs(lowered, decomposed.problem, decomposed.topology, communicator, by_stepping)
    return prepared_with(decomposed, choice, communicator, costs=costs)


def foreseen(decomposed: Decomposed) -> Prepared:
    """Predict how a run on CPUs would prepare the problem, as far as possible without compiling, measuring or JAX.

    Raises InputError if the requested kernel does not support the problem.
    """
    wanted = decomposed.problem.config.numerics.kernel
    names = [name for name, one in BACKENDS.items() if one.preferred] if wanted == "auto" else [wanted]
    reason, alone = "", OneProcess()
    for name in names:
        try:
            prepared = prepared_with(decomposed, Choice(name, name), alone)
            prepared.lowered.cells_held(prepared.plan)  # native code compiles its cost model, which may fail
            return prepared
        except Unsupported as unsupported:
            reason = str(unsupported)
    if wanted != "auto":
        raise unfit(wanted, reason)
    why = f"shift or conv, whichever is faster when a run begins (no native code: {reason})"
    return prepared_with(decomposed, Choice("shift", why, cannot_be=True), alone)


def chosen(decomposed: Decomposed, devices: Sequence[Any], communicator: Communicator, before: str = "") -> Choice:
    """Choose the kernel of the run, equally on all processes. Collective.

    It is the one that the input requests. With "auto", a continued run keeps its kernel (``before``), so that its rounding
    does not change. Otherwise the preferred kernel is taken, or, if a process cannot use it, the fastest of the others by
    rank 0's measurement.

    Raises, on all processes, InputError if no process can use the requested kernel, or if a run cannot continue with its
    kernel; EnvironmentProblem if only some processes lack the requested kernel.
    """
    wanted, device = decomposed.problem.config.numerics.kernel, devices[0]
    if wanted != "auto":
        lack, everywhere = lack_anywhere(decomposed, wanted, device, communicator, requested=True)
        if everywhere:
            raise unfit(wanted, lack)
        if lack:
            raise EnvironmentProblem(
                f'numerics.kernel: expected "{wanted}" on all ranks, but {lack}; correct that, or use "auto"'
            )
        fourier = decomposed.problem.by_fft
        remarks = [BACKENDS[wanted].remark(device), BY_FFT.format(fourier) if fourier else ""]
        return Choice(wanted, ", ".join(["as the input says", *filter(None, remarks)]))
    if before in BACKENDS:
        lack, _ = lack_anywhere(decomposed, before, device, communicator)
        if lack:
            raise other_kernel(before, lack)
        return Choice(before, "as before")
    lack = ""
    for name in (name for name, one in BACKENDS.items() if one.preferred):
        lack, _ = lack_anywhere(decomposed, name, device, communicator)
        if not lack:
            return Choice(name, "made for this equation")
    kernel = from_rank_0(communicator, lambda: fastest_kernel(decomposed, device))
    cannot_be = device.platform == "cpu" and not decomposed.problem.by_fft  # which the input itself asks for
    return Choice(kernel, f"no native code: {lack}", cannot_be=cannot_be)


def lack_anywhere(
    decomposed: Decomposed, kernel: str, device: Any, communicator: Communicator, requested: bool = False
) -> tuple[str, bool]:
    """Return (why a process cannot use the kernel, whether that is so on all), the same everywhere. Collective.

    The clause (see `lack_of`) is "" if all can. If the processes differ, it names the first rank that cannot.
    """
    lack = lack_of(decomposed, kernel, device, communicator.rank, requested)
    if not communicator.any(bool(lack)):
        return "", False
    lacks = communicator.gather(lack)
    return communicator.broadcast(("", False) if lacks is None else (missing(lacks), all(lacks)))


def lack_of(decomposed: Decomposed, kernel: str, device: Any, rank: int, requested: bool = False) -> str:
    """Return why process ``rank`` cannot compute the steps with a kernel, as a clause; "" if it can.

    A kernel that is ``requested`` need not be suited to the device, unless it is one that "auto" prefers. The call may
    compile native code.
    """
    unsuited = BACKENDS[kernel].unsuited(device)
    if unsuited and (BACKENDS[kernel].preferred or not requested):
        return unsuited  # before the problem is lowered, which takes time
    try:
        return decomposed.lowered(kernel).lack(replace(decomposed.topology, rank=rank))
    except Unsupported as reason:
        return str(reason)


def missing(lacks: Sequence[str]) -> str:
    """Combine the results of `lack_of` on all processes, by rank, into one clause."""
    if len(set(lacks)) == 1:
        return lacks[0]
    rank, lack = next((rank, lack) for rank, lack in enumerate(lacks) if lack)
    return f"rank {rank} lacks it: {lack}"


def unfit(kernel: str, reason: str) -> InputError:
    """Return the error for an input whose requested kernel is not available, with the ``reason``."""
    return InputError(
        f'numerics.kernel: expected a kernel that supports this run, but "{kernel}" does not: {reason}; use "auto"'
    )


def other_kernel(before: str, lack: str) -> InputError:
    """Return the error for continuing a run where its kernel ``before`` is not available, with the reason (``lack``)."""
    return InputError(
        f'numerics.kernel: expected "{before}", with which the run was computed so far, but it is not available '
        f"here ({lack}); continue where it is, or with another kernel, which rounds differently: --set numerics.kernel=shift"
    )


def measured(decomposed: Decomposed, device: Any) -> tuple[str, ...]:
    """Return the kernels that are compared by measurement on ``device`` if the preferred one is not available."""
    others = (name for name, one in BACKENDS.items() if not one.preferred)
    return tuple(name for name in others if not lack_of(decomposed, name, device, rank=0))


def fastest_kernel(decomposed: Decomposed, device: Any) -> str:
    """Return the kernel for a problem if the preferred one is not available.

    It is the first candidate, unless another one is clearly faster. Candidates are measured with a small periodic block on
    one device of this process, or the result is recalled from the cache. The block does not depend on the decomposition, so
    every decomposition of a problem gets the same kernel. The margin prevents noise, and small differences between similar
    machines, from deciding.
    """
    problem, candidates = decomposed.problem, measured(decomposed, device)
    name = key(problem, f"kernel:{CLEARLY}:{','.join(candidates)}:{device.platform}:{device.device_kind}")
    known = recall(name)
    if known not in candidates:
        with ThreadPoolExecutor() as side_by_side:
            probes = list(side_by_side.map(partial(probe, problem, device), candidates))
        seconds = {kernel: seconds_per_step() for kernel, seconds_per_step in zip(candidates, probes, strict=True)}
        first, fastest = candidates[0], min(seconds, key=seconds.__getitem__)
        known = fastest if CLEARLY * seconds[fastest] < seconds[first] else first
        remember(name, known)
    return str(known)


def seconds_per_cell(problem: Problem, device: Any, kernel: str) -> float:
    """Measure the seconds that one evaluation of the right-hand side takes per cell on a GPU, by stepping a block."""
    cells = math.prod(probe_shape(problem, device))
    return probe(problem, device, kernel)() / (cells * problem.method.evaluations)


def probe_shape(problem: Problem, device: Any) -> tuple[int, ...]:
    """Return the shape of the block with which kernels are measured on ``device``."""
    grid = problem.config.grid
    cells = PROBE_CELLS_ON_GPU if device.platform == "gpu" else PROBE_CELLS
    return tuple(min(n, round(cells ** (1 / grid.ndim))) for n in grid.shape)


def probe(problem: Problem, device: Any, kernel: str) -> Callable[[], float]:
    """Compile the steps of a small block with a kernel, and return a function that measures the seconds per step.

    The function can be called only once.
    """
    import jax
    import numpy as np

    from hpcstencil.numerics.topology import Topology
    from hpcstencil.simulation.compose import compose

    problem = replace(problem.members[0] if problem.members else problem, diagnostics={}, derived={})
    shape = probe_shape(problem, device)
    ones = (1,) * len(shape)
    block = Decomposed(problem, Topology(shape, (True,) * len(shape), ones, ones, ones))
    alone = OneProcess()
    prepared = prepared_with(block, Choice(kernel, "measured"), alone, 1)
    simulation = replace(compose(prepared, alone, [device]), control=None)  # measures the loop without adaptive steps
    compiled = simulation.compile(simulation.put({f: np.zeros(shape, simulation.dtype) for f in problem.fields}))

    def seconds_per_step() -> float:
        fields, steps, elapsed, best = compiled, 1, 0.0, float("inf")
        while elapsed < PROBE_SECONDS:
            steps *= 2
            start = time.perf_counter()
            fields = jax.block_until_ready(simulation.advance(fields, StepRange(0.0, 0, 0.0, steps)))
            elapsed = time.perf_counter() - start
            best = min(best, elapsed / steps)
        return best

    return seconds_per_step
