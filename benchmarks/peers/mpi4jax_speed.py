"""Speed against the shallow-water demo of mpi4jax: what `all.py` asks for, and, run on the ranks of a problem, the demo's side.

The demo runs as it stands but for the number of cells and the friction of v, whose gradients it forms between v and u
(`mpi4jax_demo.py`, which also compares the results). Its own clock starts while the call before may still be running, so it
is timed here.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import NotInstalled
from mpi4jax_demo import DX, NX, NY, VERSION, channel, corrected, demo_source
from peer import Peer


@dataclass(frozen=True)
class Channel:
    """The demo's jet in a channel on more cells; hpcstencil starts from a jet that is not balanced by h."""

    processes: int
    shape: tuple[int, int] = (3600, 1800)
    steps: int = 100
    field = "u"

    @property
    def dt(self) -> float:
        return 0.125 * DX / math.sqrt(9.81 * 100.0)

    def method(self) -> str:
        ranks = f"{self.processes} rank{'s'[: self.processes - 1]}"
        return f"{self.shape[0]} x {self.shape[1]}, C grid, ab2, float32, {self.steps} steps, {ranks}"

    def input(self) -> str:
        length, width = (n * DX for n in self.shape)
        initial = (
            f'h = "100 + 0.2*sin(10*pi*x/{length})*cos(8*pi*y/{width})"\n'
            f'u = "10*exp(-((y - {width / 2})/{0.02 * length})**2)"'
        )
        return channel(
            *self.shape,
            self.dt,
            self.steps,
            equation="shallow_water",
            initial=initial,
            precision="float32",
            kernel="auto",
        )


PROBLEMS = {f"shallow-water-{n}-rank{'s'[: n - 1]}": Channel(n) for n in (1, 2)}


def measure(problem: Channel) -> tuple[float, None] | None:
    """Seconds of all steps after the first one, of the slowest rank; told by the first rank."""
    source = corrected(demo_source(), ("friction",))
    for small, large in zip((f"nx_global = {NX} ", f"ny_global = {NY} "), problem.shape, strict=True):
        assert small in source, "the demo is not the one that is known"
        source = source.replace(small, f"{small.split('=')[0]}= {large} ")
    demo: dict[str, Any] = {"__name__": "demo"}
    exec(compile(source, "shallow_water.py", "exec"), demo)
    import jax
    import jax.numpy as jnp

    zeros = [jnp.zeros((demo["ny_local"], demo["nx_local"])) for _ in range(3)]
    initial = demo["get_initial_conditions"].__wrapped__  # compiled, it is constants that XLA folds for minutes
    state = demo["ModelState"](*initial(), *zeros)
    state = jax.block_until_ready(demo["shallow_water_step"](state, True))
    steps = demo["do_multistep"].lower(state, problem.steps).compile()
    ranks = demo["mpi_comm"]
    ranks.barrier()
    began = time.perf_counter()
    jax.block_until_ready(steps(state))
    seconds = max(ranks.allgather(time.perf_counter() - began))
    return (seconds, None) if ranks.rank == 0 else None


def interpreter() -> Path:
    """This interpreter, if it has mpi4jax and the demo's source can be had. Raises NotInstalled."""
    if not importlib.util.find_spec("mpi4jax"):
        raise NotInstalled("mpi4jax is not installed beside hpcstencil")
    if not shutil.which("mpirun"):
        raise NotInstalled("there is no mpirun")
    demo_source()
    return Path(sys.executable)


PEER = Peer(
    name="mpi4jax demo",
    package="mpi4jax",
    script=__file__,
    about=f"The demo of mpi4jax's source package {VERSION}, with its friction of v corrected, on the same ranks.",
    problems=PROBLEMS,
    install=interpreter,
)

if __name__ == "__main__":
    PEER.answer(measure)
