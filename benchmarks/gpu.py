"""Measure kernels on one GPU: T_eff relative to the copy bandwidth, for `pallas`, `shift`, `conv`, and hand-written CUDA.

  .venv/bin/python benchmarks/gpu.py [--strips] [--problems] [--inputs] [--tune] [--interpret]

The problems are 3-D heat on 512^3 and 2-D Gray-Scott on 8192^2 cells, with euler in float32 and float64. Each kernel's result
is compared with that of `shift` before it is timed. The CUDA stencils need CuPy (`pip install cupy-cuda12x`). --strips times
3-D heat on a block that exchanges strips with itself along some axes, as a block among others does with its neighbours, but
without messages. --problems times other equations. --inputs compares the fields of the shipped inputs after a few steps by
`pallas` and `shift`. --tune times other sizes of boxes. --interpret runs tiny problems on a CPU, only to test the script.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import hpcstencil as hs
from hpcstencil.backends.pallas import launch
from hpcstencil.backends.pallas.cost_model import Links, Work, parts
from hpcstencil.benchmark.report import result
from hpcstencil.benchmark.timing import copy_bandwidth, in_place, slowest, timings
from hpcstencil.config.reader import from_mapping
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.build import build
from hpcstencil.problem.decomposition import Plan
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.devices import bind_devices, gpus, start_jax
from hpcstencil.simulation.compose import compose
from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.validation.errors import InputError

STEPS_COMPARED = 5
KERNELS = ("shift", "pallas", "conv")
HEAT = {"equation": {"name": "heat", "D": 0.1}, "time": {"end": 1.0, "dt": 1.0}}
GRAY_SCOTT = {"equation": {"name": "gray_scott", "D_u": 0.16, "D_v": 0.08}, "time": {"end": 1.0, "dt": 1.0}}
STEPS_PER_ROUND = 8  # of a timing
BOXES = {
    2: ((16, 128), (8, 128), (4, 128), (4, 256), (2, 256), (8, 64)),
    3: ((4, 8, 64), (2, 8, 64), (4, 4, 64), (2, 4, 128), (1, 8, 128), (2, 2, 256)),
}
CPML = {"cpml": {"width": 4.0, "speed": 1.0}}
SMALL_STEP = {"end": 1.0, "dt": 1e-4}
PROBLEMS = {  # tables of the input, and the number of axes
    "wave, order 4, leapfrog": (
        {"equation": {"name": "wave"}, "time": SMALL_STEP, "numerics": {"order": 4, "integrator": "leapfrog"}}, 3),
    "wave, order 8, leapfrog": (
        {"equation": {"name": "wave"}, "time": SMALL_STEP, "numerics": {"order": 8, "integrator": "leapfrog"}}, 3),
    "heat, rk4": ({**HEAT, "numerics": {"integrator": "rk4"}}, 3),
    "Gray-Scott, rk4": ({**GRAY_SCOTT, "numerics": {"integrator": "rk4"}}, 2),
    "Maxwell, CPML, leapfrog": (
        {"equation": {"name": "maxwell"}, "time": SMALL_STEP, "boundary": dict.fromkeys("xyz", CPML),
         "numerics": {"integrator": "leapfrog"}}, 3),
    "acoustic, CPML, order 8": (
        {"equation": {"name": "acoustic"}, "time": SMALL_STEP, "boundary": dict.fromkeys("xy", CPML),
         "numerics": {"order": 8, "integrator": "leapfrog"}}, 2),
    "Euler": ({"equation": {"name": "euler"}, "time": SMALL_STEP}, 2),
}  # fmt: skip
SOURCE = Path(__file__).with_name("gpu_stencils.cu")
TWO_STEPS = {"TZ": 64, "TY": 16, "CHUNK": 128}


def problem_of(tables: dict[str, Any], shape: tuple[int, ...], precision: str) -> Decomposed:
    """Build a problem for one device."""
    numerics = {"integrator": "euler", "precision": precision, **tables.get("numerics", {})}
    problem = build(from_mapping({**tables, "grid": {"shape": list(shape)}, "numerics": numerics}, Path.cwd()))
    return Decomposed.of(problem, 1, 1)


def simulation_of(decomposed: Decomposed, kernel: str, device: Any, strips: bool = False) -> ComposedSimulation:
    """Compose a simulation; with ``strips`` its block exchanges them with itself along its periodic axes."""
    prepared = prepared_with(decomposed, Choice(kernel), OneProcess(), 1)
    if strips:
        prepared = replace(prepared, lowered=replace(prepared.lowered, halo_wraps=True))
    return compose(prepared, OneProcess(), (device,))


def begun(simulation: ComposedSimulation) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return random fields after a few steps: on the device, and as numpy arrays by name."""
    rng, names = np.random.default_rng(1), simulation.problem.fields
    shape, dtype = simulation.problem.config.grid.shape, simulation.dtype
    fields = {name: 0.5 + dtype.type(0.1) * rng.random(shape, dtype) for name in names}
    after = simulation.advance(simulation.put(fields), steps_of(simulation, STEPS_COMPARED))
    return after, simulation.get(after, names)


def steps_of(simulation: ComposedSimulation, count: int) -> StepRange:
    """Return a range of steps of the input's size."""
    return StepRange(0.0, 0, simulation.problem.config.time.dt, count)


def microseconds(simulations: Sequence[ComposedSimulation], fields: Sequence[dict[str, Any]]) -> list[float]:
    """Time the simulations in turns, and return the best time of a step of each."""

    def stepping(simulation: ComposedSimulation) -> Callable[[Any, int], Any]:
        return lambda u, rounds: simulation.advance(u, steps_of(simulation, STEPS_PER_ROUND * rounds))

    actions = [in_place(stepping(one), [u]) for one, u in zip(simulations, fields, strict=True)]
    return [1e6 * slowest(times) / STEPS_PER_ROUND for times in timings(actions, OneProcess())]


def roundings(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return the largest difference, in units of the rounding error of the largest value."""
    return max(
        float(np.abs(found[name] - x).max() / np.finfo(x.dtype).eps / np.abs(x).max()) for name, x in expected.items()
    )


def rows(
    tables: dict[str, Any], shape: tuple[int, ...], precision: str, device: Any, bandwidth: float
) -> Iterator[str]:
    """Time the kernels in turns, and return a line for each."""
    decomposed = problem_of(tables, shape, precision)
    simulations = [simulation_of(decomposed, kernel, device) for kernel in KERNELS]
    fields, found = zip(*(begun(simulation) for simulation in simulations), strict=True)
    arrays = 2 * len(decomposed.problem.fields)
    for kernel, values, time in zip(KERNELS, found, microseconds(simulations, fields), strict=True):
        told = speeds(prod(shape) / time * 1e6, arrays, precision, bandwidth)
        yield line(tables, shape, precision, kernel, told, f"{roundings(values, found[0]):8.1f} roundings from shift")


def by_hand(tables: dict[str, Any], n: int, precision: str, bandwidth: float) -> Iterator[str]:
    """Time the stencils in hand-written CUDA, and return a line for each; the best of 10 rounds of 100 launches counts."""
    import cupy as cp

    count, dtype = (2 if tables is GRAY_SCOTT else 1), cp.dtype(precision)
    shape, block = ((n, n), (128, 4)) if count == 2 else ((n, n, n), (64, 4, 2))
    numbers = [dtype.type(c) for c in ((0.16, 0.08, 0.037, 0.097) if count == 2 else (0.1,))]
    defined = {"real": "float" if precision == "float32" else "double"}
    old, new = ([cp.random.random(shape, dtype=dtype) for _ in range(count)] for _ in range(2))

    def timed(name: str, grid: tuple[int, ...], block: tuple[int, ...], defined: dict[str, Any]) -> float:
        options = tuple(f"-D{key}={value}" for key, value in defined.items())
        kernel = cp.RawKernel(SOURCE.read_text(), name, options=options)
        best, start, end = float("inf"), cp.cuda.Event(), cp.cuda.Event()
        for _ in range(10):
            start.record()
            for _ in range(50):
                kernel(grid, block, (*old, *new, cp.int32(n), *numbers))
                kernel(grid, block, (*new, *old, cp.int32(n), *numbers))
            end.record()
            end.synchronize()
            best = min(best, cp.cuda.get_elapsed_time(start, end) / 1e3 / 100)
        return best

    name = "gray_scott" if count == 2 else "heat"
    seconds = timed(name, tuple(-(-n // b) for b in block), block, defined)
    yield line(tables, shape, precision, "CUDA", speeds(n ** len(shape) / seconds, 2 * count, precision, bandwidth))
    if count == 1:
        tz, ty, chunk = TWO_STEPS.values()
        grid = (-(-n // (tz - 4)), -(-n // (ty - 4)), n // chunk)
        seconds = timed("heat_two_steps", grid, (tz, ty), {**defined, **TWO_STEPS}) / 2
        told = speeds(n**3 / seconds, 2, precision, bandwidth)
        yield line(tables, shape, precision, "CUDA x 2", told, "two steps per launch")


def speeds(cells: float, arrays: int, precision: str, bandwidth: float) -> str:
    """Return cells per second and T_eff, if a step reads and writes ``arrays`` arrays, as text."""
    t_eff = cells * arrays * (4 if precision == "float32" else 8)
    return f"{cells / 1e9:9.2f} Gcell/s {t_eff / 1e9:9.1f} GB/s {t_eff / bandwidth:7.2f} of copy"


def line(tables: dict[str, Any], shape: tuple[int, ...], precision: str, kernel: str, *told: str) -> str:
    return f"{tables['equation']['name']:<12}{'x'.join(map(str, shape)):<14}{precision:<9}{kernel:<9}{'  '.join(told)}"


def strips(n: int, axes: str, precision: str, device: Any) -> str:
    """Time 3-D heat with strips along some axes against the same without, in turns, and compare the bits."""
    walls = {axis: {"neumann": 0.0} for axis in "xyz" if axis not in axes}
    decomposed = problem_of({**HEAT, "boundary": walls}, (n,) * 3, precision)
    simulations = [simulation_of(decomposed, "pallas", device, strips) for strips in (False, True)]
    fields, found = zip(*(begun(simulation) for simulation in simulations), strict=True)
    without, beside = microseconds(simulations, fields)
    same = "same bits" if np.array_equal(found[0]["u"], found[1]["u"]) else "OTHER BITS"
    times = f"{beside:9.1f} us a step ({predicted(n, axes, precision):.1f} predicted), {without:9.1f} without"
    return f"strips along {axes:<4}{n}^3 {precision:<9}{times}, ratio {beside / without:.3f}, {same}"


def predicted(n: int, axes: str, precision: str) -> float:
    """Return the microseconds of a step by the model of docs/scaling.md, if messages take no time."""
    cut = tuple(2 if axis in axes else 1 for axis in "xyz")
    decomposed = problem_of(HEAT, tuple(n * parts for parts in cut), precision)
    topology = replace(decomposed.topology, processes=cut)
    plan = Plan.of(decomposed.problem, topology, 1)
    return 1e6 * sum(parts(plan, Work.of(decomposed.problem, None), Links(0.0, float("inf"), collective=True)).values())


def others(large: dict[int, int], device: Any) -> Iterator[str]:
    """Time `shift` and `pallas` in turns for other equations, on cubes of ``large[3]`` or squares of ``large[2]`` cells."""
    for name, (tables, axes) in PROBLEMS.items():
        shape = (large[axes] // (2 if name.startswith("Maxwell") else 1),) * axes
        decomposed = problem_of(tables, shape, "float32")
        simulations = [simulation_of(decomposed, kernel, device) for kernel in KERNELS[:2]]
        fields = [begun(simulation)[0] for simulation in simulations]
        by_shift, by_pallas = microseconds(simulations, fields)
        yield f"{name:<28}{'x'.join(map(str, shape)):<14}shift {by_shift:9.0f} us a step, pallas {by_pallas:9.0f}"


def shipped(path: Path, steps: int = 20) -> str:
    """Take steps of an input by `shift` and by `pallas`, and return whether all fields have the same bits."""

    def after(kernel: str) -> xr.Dataset:
        with hs.Simulation.from_toml(path, **{"numerics.kernel": kernel}) as simulation:
            simulation.step(steps)
            return simulation.state

    try:
        found, expected = after("pallas"), after("shift")
    except InputError as refusal:
        return f"{path.name:<28}{refusal}"
    same = all(np.array_equal(found[name], expected[name]) for name in expected)
    return f"{path.name:<28}{'same bits' if same else 'OTHER BITS'}"


def tune(tables: dict[str, Any], shape: tuple[int, ...], precision: str, device: Any) -> Iterator[str]:
    """Time other sizes of boxes, with 8 and 4 cells per thread."""
    itemsize, axes = (4 if precision == "float32" else 8), len(shape)
    usual = launch.TILES[itemsize][axes], launch.WARPS[itemsize]
    for tile in BOXES[axes]:
        for warps in sorted({max(1, min(16, prod(tile) // 32 // each)) for each in (4, 8)}):
            launch.TILES[itemsize][axes], launch.WARPS[itemsize] = tile, warps
            simulation = simulation_of(problem_of(tables, shape, precision), "pallas", device)
            (time,) = microseconds([simulation], [begun(simulation)[0]])
            name = f"{tables['equation']['name']:<12}{precision:<9}"
            yield f"{name}box {'x'.join(map(str, tile)):<10} warps {warps:<3}{prod(shape) / time / 1e3:9.2f} Gcell/s"
    launch.TILES[itemsize][axes], launch.WARPS[itemsize] = usual


def main() -> None:
    parser = argparse.ArgumentParser(description="Kernels on one GPU against its copy bandwidth.")
    parser.add_argument("--strips", action="store_true", help="time the exchange of strips, without messages")
    parser.add_argument("--problems", action="store_true", help="time other equations")
    parser.add_argument("--inputs", action="store_true", help="compare the fields of the shipped inputs")
    parser.add_argument("--tune", action="store_true", help="time other sizes of tiles")
    parser.add_argument("--interpret", action="store_true", help="tiny problems on a processor, to try this script")
    options = parser.parse_args()
    if not gpus() and not options.interpret:
        sys.exit("No GPU was found here: nothing is measured. With --interpret tiny problems run on a processor.")
    bind_devices(1)
    device: Any = start_jax(1)[0]

    bandwidth = copy_bandwidth(OneProcess(), (device,))
    told = result(bandwidth, [])
    print(told["machine"], told["versions"])
    print(f"copy bandwidth {bandwidth / 1e9:.1f} GB/s, read + written", flush=True)
    n, m = (16, 64) if options.interpret else (512, 8192)
    cases = [(t, shape, p) for t, shape in ((HEAT, (n, n, n)), (GRAY_SCOTT, (m, m))) for p in ("float32", "float64")]
    for tables, shape, precision in cases:
        for row in rows(tables, shape, precision, device, bandwidth):
            print(row, flush=True)
        try:
            for row in by_hand(tables, shape[0], precision, bandwidth):
                print(row, flush=True)
        except ImportError:
            print(line(tables, shape, precision, "CUDA", "not measured: CuPy is not installed"), flush=True)
    if options.strips:
        large = [(n, axes, precision) for precision in ("float32", "float64") for axes in ("x", "y", "z", "xyz")]
        for case in (*large, (n * 3 // 16, "xyz", "float32"), (n // 8, "xyz", "float32")):
            print(strips(*case, device), flush=True)
    if options.problems:
        for row in others({2: m // 2, 3: n}, device):
            print(row, flush=True)
    if options.inputs:
        for path in sorted(Path(__file__).parents[1].glob("inputs/*.toml")):
            print(shipped(path), flush=True)
    if options.tune:
        for tables, shape, precision in cases:
            for row in tune(tables, shape, precision, device):
                print(row, flush=True)


if __name__ == "__main__":
    main()
