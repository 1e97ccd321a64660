"""The choice of the kernel, and measurements of this machine: which kernel is faster for a problem, and its speed.

The measurements are in the user's cache folder, so that a machine measures once. A missing or unwritable folder only
means measuring again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.simulation.measurement_cache import key, recall, remember
from hpcstencil.validation.errors import EnvironmentProblem, InputError

PROBE_CELLS, PROBE_CELLS_ON_GPU = 2**16, 2**24  # on a GPU, fewer would measure the launch of a kernel
PROBE_SECONDS = 0.05
CLEARLY = 1.5  # how many times faster than the first kernel another one must be to replace it
WRITING = "checkpoint:bytes per second"
WRITING_UNMEASURED = 1e8  # bytes/s, assumed where no checkpoint has been written yet
WRITING_OVERHEAD = 0.1  # seconds of an empty checkpoint
WRITING_SHOWS = 10**7  # bytes from which on a checkpoint measures the speed


@dataclass(frozen=True)
class Choice:
    """The kernel and the reason for it in a few words. ``cannot_be``: native code was wanted, but is not possible."""

    kernel: str
    why: str
    cannot_be: bool = False


def unfit(kernel: str, reason: str) -> InputError:
    """The refusal of an input that requests a kernel that is not available."""
    return InputError(f'numerics.kernel: expected a run that "{kernel}" fits, but {reason}; give "auto"')


def lacks_native(problem: Problem, device: Any, weighed: bool = False) -> str:
    """Why native code cannot take the steps of this problem on this process, or cannot be ``weighed`` here; "" if it
    can."""
    from hpcstencil.backends.native.cost_model import account
    from hpcstencil.backends.native.expression_writer import Unsupported
    from hpcstencil.backends.native.ffi_call import native
    from hpcstencil.backends.native.program import lack

    if device.platform != "cpu":
        return f"native code is for processors, and this is a {device.platform}"
    known = lack(problem)
    if known:
        return known
    try:
        native(problem, 1)
        if weighed:
            account(problem)
    except Unsupported as reason:
        return str(reason)
    return ""


def native_lacks(problem: Problem, devices: Sequence[Any], communicator: Communicator) -> list[str]:
    """The answer of `lacks_native` on each process; "" if native code can be used. One process per host compiles, and
    the others wait for it."""
    weighed = (
        communicator.rank == 0 and communicator.size * len(devices) > 1
    )  # how many steps are between two exchanges
    return communicator.allgather(lacks_native(problem, devices[0], weighed))


def missing(lacks: Sequence[str]) -> str:
    """The answers of `native_lacks` in words, with the first rank concerned if the processes differ; "" if all have
    native code."""
    if len(set(lacks)) == 1:
        return lacks[0]
    rank, lack = next((rank, lack) for rank, lack in enumerate(lacks) if lack)
    return f"rank {rank} lacks it: {lack}"


def lacks_pallas(problem: Problem, thin: bool) -> str:
    """Why the GPU kernels cannot take the steps of this problem, on blocks that are ``thin`` or not; "" if they can."""
    from hpcstencil.backends.pallas.passes import lack

    try:
        import jax.experimental.pallas.triton
    except ImportError:
        return f"this jax ({jax.__version__}) has no Triton for Pallas"
    return lack(problem, thin)


def measured(problem: Problem, device: Any, thin: bool) -> tuple[str, ...]:
    """The kernels that are measured against each other if there is no native code; those for GPUs only on GPUs."""
    from hpcstencil.backends.xla.stencil_kernels import KERNELS

    on_gpu = device.platform == "gpu" and not lacks_pallas(problem, thin)
    return (*KERNELS, *(["pallas"] if on_gpu else []))


def fastest_kernel(problem: Problem, device: Any, thin: bool) -> str:
    """The kernel for this problem if there is no native code: the first one, unless another is clearly faster. Measured
    on one device with a small periodic block.

    The block does not depend on the decomposition, so every decomposition of a problem gets the same kernel. The margin
    keeps noise, and small differences between machines of a kind, from deciding.
    """
    candidates = measured(problem, device, thin)
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


def probe(problem: Problem, device: Any, kernel: str) -> Callable[[], float]:
    """A function that returns, once, the seconds of one step of the probe block with a kernel, which is compiled
    beforehand."""
    import jax
    import numpy as np

    from hpcstencil.numerics.topology import Topology
    from hpcstencil.runtime.communicator import OneProcess
    from hpcstencil.simulation.compose import simulate
    from hpcstencil.simulation.decomposition import Plan

    problem = problem.members[0] if problem.members else problem
    grid = problem.config.grid
    cells = PROBE_CELLS_ON_GPU if device.platform == "gpu" else PROBE_CELLS
    side = round(cells ** (1 / grid.ndim))
    shape = tuple(min(n, side) for n in grid.shape)
    ones = (1,) * grid.ndim
    plan = Plan(Topology(shape, (True,) * grid.ndim, ones, ones, ones), 1, problem.radius, problem.method.evaluations)
    simulation = simulate(replace(problem, diagnostics={}), plan, OneProcess(), [device], kernel)
    simulation = replace(simulation, control=None)  # measure the plain step loop, without adaptive steps
    compiled = simulation.compile(simulation.put({f: np.zeros(shape, simulation.dtype) for f in problem.fields}))

    def seconds_per_step() -> float:
        fields, steps, elapsed, best = compiled, 1, 0.0, float("inf")
        while elapsed < PROBE_SECONDS:
            steps *= 2
            start = time.perf_counter()
            fields = jax.block_until_ready(simulation.advance(fields, problem.parameters, 0.0, 0, 0.0, steps))
            elapsed = time.perf_counter() - start
            best = min(best, elapsed / steps)
        return best

    return seconds_per_step


def kernel_for(
    problem: Problem, devices: Sequence[Any], communicator: Communicator, thin: bool, before: str = ""
) -> Choice:
    """The kernel that the input requests, the same on all processes. For "auto" it is that of the continued run
    (``before``), so that its bits stay the same; else native code; else, if a process has none, the faster of the
    others as rank 0 measures them.

    Raises InputError, on all processes, if the requested kernel is not available or a run cannot continue with its
    kernel; EnvironmentProblem if the input requests native code and only some processes lack it.
    """
    wanted, device = problem.config.numerics.kernel, devices[0]
    from hpcstencil.backends.xla.stencil_kernels import KERNELS

    if wanted in KERNELS:
        return Choice(wanted, "as the input says")
    if wanted == "pallas":
        lack = from_rank_0(communicator, lambda: lacks_pallas(problem, thin))
        if lack:
            raise unfit(wanted, lack)
        slow = ", interpreted, for tests: this is no GPU" if device.platform != "gpu" else ""
        return Choice(wanted, f"as the input says{slow}")
    if wanted == "auto" and before in KERNELS:
        return Choice(before, "as before")
    if wanted == "auto" and before == "pallas":
        if not from_rank_0(communicator, lambda: before in measured(problem, device, thin)):
            raise other_kernel(before, lacks_pallas(problem, thin) or "there is no GPU")
        return Choice(before, "as before")
    lacks = native_lacks(problem, devices, communicator)
    lack = missing(lacks)
    if wanted == "native" and lack:
        if all(lacks):
            raise unfit(wanted, lack)
        raise EnvironmentProblem(
            f'numerics.kernel: expected "native" on all ranks, but {lack}; mend that, or give "auto"'
        )
    if wanted == "native":
        return Choice(wanted, "as the input says")
    if not lack:
        return Choice("native", "as before" if before == "native" else "made for this equation")
    if before:
        raise other_kernel(before, lack)
    kernel = from_rank_0(communicator, lambda: fastest_kernel(problem, device, thin))
    return Choice(kernel, f"no native code: {lack}", cannot_be=device.platform == "cpu")


def other_kernel(before: str, lack: str) -> InputError:
    """The refusal to continue a run with another kernel than ``before``."""
    return InputError(
        f'numerics.kernel: expected "{before}", with which the run was computed so far, but it cannot be had here ({lack}); go '
        "on where it can, or take another one, which rounds differently, with --set numerics.kernel=shift"
    )


def seconds_to_checkpoint(problem: Problem) -> float:
    """The expected seconds of a checkpoint, from the speed of the last one on this machine."""
    speed = recall(WRITING)
    return WRITING_OVERHEAD + state_bytes(problem) / (speed if isinstance(speed, float) else WRITING_UNMEASURED)


def remember_checkpoint(problem: Problem, elapsed: float) -> None:
    """Store the speed of a checkpoint that took ``elapsed`` seconds, if it was large enough to measure one."""
    size = state_bytes(problem)
    if size >= WRITING_SHOWS and elapsed > WRITING_OVERHEAD:
        remember(WRITING, size / (elapsed - WRITING_OVERHEAD))


def state_bytes(problem: Problem) -> int:
    """Bytes of all fields over the whole grid."""
    itemsize = 4 if problem.config.numerics.precision == "float32" else 8
    return len(problem.fields) * problem.cells * itemsize
