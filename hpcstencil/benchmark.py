"""Speed in hardware terms: cells per second, effective memory throughput, and its ratio to the copy bandwidth.

T_eff counts the fewest bytes a step can move, each field read once and written once (Räss, Utkin, Duretz, Omlin &
Podladchikov, Geosci. Model Dev. 15 (2022) 5757-5786, eq. (3)); the copy bandwidth is measured in the same run, on all
processes at once, and counts bytes read plus bytes written.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil import __version__
from hpcstencil.calibration import key, remember
from hpcstencil.native.call import NATIVE
from hpcstencil.parallel import Communicator
from hpcstencil.simulation import Simulation

COPY_CELLS, COPY_CELLS_ON_GPU = (
    2**26,
    2**28,
)  # 256 MB, beyond the caches; 1 GB, beside which starting a copy takes no time
REPEATS = 10
SECONDS_PER_TIMING = 0.3
TINY_STEP = 1e-9  # of the end time, where a tolerance governs the steps: short enough to be stable


def seconds(
    action: Callable[[int], Any], communicator: Communicator, repeats: int = REPEATS, least_rounds: int = 8
) -> float:
    """Seconds per round of ``action(rounds)``: best of ``repeats`` timings, of the slowest process.

    Each call sets up its buffers once; enough rounds make that small.
    """
    rounds, best = least_rounds, float("inf")
    while True:
        elapsed = _once(action, rounds, communicator)
        if elapsed > SECONDS_PER_TIMING / 3 or rounds > 2**20:
            break
        rounds *= 2
    for _ in range(repeats):
        best = min(best, _once(action, rounds, communicator) / rounds)
    return best


def _once(action: Callable[[int], Any], rounds: int, communicator: Communicator) -> float:
    communicator.barrier()
    start = time.perf_counter()
    jax.block_until_ready(action(rounds))
    return float(communicator.maximum(np.array([time.perf_counter() - start]))[0])


def copy_bandwidth(communicator: Communicator, devices: tuple[Any, ...]) -> float:
    """Bytes per second, read plus written, that all processes together reach when each copies an array on its devices."""
    cells = COPY_CELLS_ON_GPU if devices[0].platform == "gpu" else COPY_CELLS
    length = cells // communicator.size // len(devices)

    def body(x: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, a: a + jnp.float32(1), x)

    if len(devices) == 1:
        array, run = jax.device_put(np.zeros(length, np.float32), devices[0]), jax.jit(body)
    else:
        array = np.zeros((len(devices), length), np.float32)
        run = jax.pmap(body, in_axes=(0, None), devices=devices)
    jax.block_until_ready(run(array, 1))
    each = seconds(lambda rounds: run(array, rounds), communicator, least_rounds=64)
    return 8 * length * len(devices) * communicator.size / each


def exchange_seconds(simulation: Simulation, fields: Any, communicator: Communicator) -> float:
    """Seconds that one halo exchange takes by itself; 0 where nothing is exchanged with others."""
    machine = simulation.machine
    topology = machine.topology
    if topology.size == 1 and topology.device_count == 1:
        return 0.0
    widths = machine.widths(simulation.plan.every * simulation.plan.stages or 1)
    interior = tuple((0, n) for n in topology.capacity())

    if machine.leaves_compiled_code:
        exchange = machine.outer_exchange(widths)

        def outside(rounds: int) -> Any:
            for _ in range(rounds):
                result = jax.block_until_ready(exchange(fields))
            return result

        return seconds(outside, communicator, 3)

    def loop(u: Any, places: Any, n: Any) -> Any:
        frame = machine.frame(places)

        def body(i: Any, u: Any) -> Any:
            if simulation.kernel == NATIVE:  # which takes ghost cells as they come
                return _touched(u, machine.received(u, widths, frame, {}))
            framed = machine.surrounded(u, widths, frame, {})
            return {name: value.crop(interior).array for name, value in framed.items()}

        return lax.fori_loop(0, n, body, u)

    run = machine.compiled(loop, 1)
    jax.block_until_ready(run(fields, machine.places, 1))
    return seconds(lambda rounds: run(fields, machine.places, rounds), communicator, 3)


def _touched(fields: Any, ghosts: Any) -> Any:
    """The fields with one cell of each received array written into them, so that none is left out by the compiler."""
    for strips in ghosts.values():
        for strip in strips:
            if strip is not None:
                fields = {
                    name: lax.dynamic_update_slice(array, strip[(n, *(slice(0, 1),) * array.ndim)], (0,) * array.ndim)
                    for n, (name, array) in enumerate(fields.items())
                }
    return fields


def measure(simulation: Simulation, communicator: Communicator, bandwidth: float) -> dict[str, Any]:
    """One row of the table: the speed of a simulation's step loop."""
    simulation = replace(simulation, control=None)  # the step loop is measured, whatever governs the steps
    problem, plan = simulation.problem, simulation.plan
    start = time.perf_counter()
    fields = simulation.initial_fields()
    time_ = problem.config.time
    dt = time_.dt or (TINY_STEP * time_.end if time_.tolerance else problem.dt(dict.fromkeys(problem.measured, 1.0)))
    fields = simulation.compile(fields)
    compile_seconds = time.perf_counter() - start
    state = {"fields": fields}

    def steps(count: int) -> Any:
        state["fields"] = simulation.advance(state["fields"], problem.parameters, 0.0, 0, dt, count)
        return state["fields"]

    each = seconds(steps, communicator)
    exchange = exchange_seconds(simulation, state["fields"], communicator)
    exchanges = 1 / plan.every if plan.every else plan.stages
    cells = problem.cells_per_step
    t_eff = cells / each * 2 * len(problem.fields) * simulation.dtype.itemsize
    if communicator.rank == 0:
        remember(key(problem, f"speed:{communicator.size}"), cells / each)
    return {
        "equation": problem.config.equation.name,
        "order": problem.config.numerics.order,
        "precision": problem.config.numerics.precision,
        "grid": list(problem.config.grid.shape),
        "processes": list(plan.topology.processes),
        "devices": list(plan.topology.devices),
        "kernel": simulation.kernel,
        "steps_per_exchange": plan.every or "stage",
        "stages": plan.stages,
        "cells_per_second": cells / each,
        "t_eff": t_eff,
        "ratio": t_eff / bandwidth,
        "ratio_stages": t_eff / bandwidth * plan.stages,
        "exchange_fraction": min(1.0, exchange * exchanges / each),
        "compile_seconds": compile_seconds,
    }


def machine_description() -> dict[str, Any]:
    """Processor, cores and accelerator of this host."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next(
            (line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line), model
        )
    device = jax.local_devices()[0]
    return {"processor": model, "cores": os.cpu_count(), "device": f"{device.platform} {device.device_kind}"}


def versions() -> dict[str, str]:
    """Versions of what the speed depends on."""
    found = {"hpcstencil": __version__, "python": platform.python_version()}
    for name in ("jax", "numpy", "mpi4jax", "mpi4py"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def table(result: dict[str, Any]) -> str:
    """The measurements as text."""
    lines = [
        f"machine         {result['machine']['processor']}, {result['machine']['cores']} cores, {result['machine']['device']}",
        f"copy bandwidth  {result['copy_bandwidth'] / 1e9:.1f} GB/s (read + written, measured in this run)",
        "",
        f"{'equation':<20}{'grid':<14}{'processes':<11}{'devices':<9}{'kernel':<8}{'Mcell/s':>9}{'T_eff GB/s':>12}"
        f"{'ratio':>7}{'x stages':>10}{'exchange':>10}{'compile':>9}",
    ]
    for row in result["rows"]:
        grid, processes, devices = ("x".join(map(str, row[k])) for k in ("grid", "processes", "devices"))
        lines.append(
            f"{row['equation']:<20}{grid:<14}{processes:<11}{devices:<9}{row['kernel']:<8}"
            f"{row['cells_per_second'] / 1e6:>9.1f}{row['t_eff'] / 1e9:>12.2f}{row['ratio']:>7.2f}"
            f"{row['ratio_stages']:>10.2f}{100 * row['exchange_fraction']:>9.1f}%{row['compile_seconds']:>8.2f}s"
        )
    return "\n".join(lines)
