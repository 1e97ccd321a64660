"""Measure kernels on one GPU: T_eff relative to the copy bandwidth, for `pallas`, `shift`, `conv`, and hand-written CUDA.

  .venv/bin/python benchmarks/gpu.py [--strips] [--tune] [--interpret]

The problems are 3-D heat on 512^3 and 2-D Gray-Scott on 8192^2 cells, with euler in float32 and float64. Each kernel's result
is compared with that of `shift` before it is timed. The CUDA stencils need CuPy (`pip install cupy-cuda12x`). --strips times
3-D heat on a block that exchanges strips with itself along some axes, as a block among others does with its neighbours, but
without messages. --tune times 3-D heat with other tile sizes. --interpret runs tiny problems on a CPU, only to test the script.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcstencil.runtime.devices import bind_devices, gpus, start_jax

STEPS_COMPARED = 5
KERNELS = ("shift", "pallas", "conv")
HEAT = {"equation": {"name": "heat", "D": 0.1}, "time": {"end": 1.0, "dt": 1.0}}
GRAY_SCOTT = {"equation": {"name": "gray_scott", "D_u": 0.16, "D_v": 0.08}, "time": {"end": 1.0, "dt": 1.0}}
NOISE = {"u": "0.5 + 0.1*noise(1)", "v": "0.25 + 0.1*noise(2)"}
TILES = ((4, 8, 64), (2, 8, 64), (4, 4, 64), (8, 8, 32), (8, 8, 64), (4, 4, 128), (2, 4, 256), (1, 8, 128), (16, 4, 64))
CUDA = r"""
typedef long long index;
extern "C" __global__ void heat(const real* u, real* out, int n, real c) {
    int k = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    int i = blockIdx.z * blockDim.z + threadIdx.z;
    if (i >= n || j >= n || k >= n) return;
    index plane = (index)n * n, p = i * plane + (index)j * n + k;
    real around = u[i ? p - plane : p + (n - 1) * plane] + u[i < n - 1 ? p + plane : p - (n - 1) * plane]
                + u[j ? p - n : p + plane - n] + u[j < n - 1 ? p + n : p - plane + n]
                + u[k ? p - 1 : p + n - 1] + u[k < n - 1 ? p + 1 : p - n + 1];
    out[p] = u[p] + c * (around - 6 * u[p]);
}
__device__ real laplacian(const real* u, int n, int j, int k, index p) {
    return u[j ? p - n : p + (index)(n - 1) * n] + u[j < n - 1 ? p + n : p - (index)(n - 1) * n]
         + u[k ? p - 1 : p + n - 1] + u[k < n - 1 ? p + 1 : p - n + 1] - 4 * u[p];
}
extern "C" __global__ void gray_scott(const real* u, const real* v, real* out_u, real* out_v, int n,
                                      real a, real b, real F, real d) {
    int k = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (j >= n || k >= n) return;
    index p = (index)j * n + k;
    real x = u[p], y = v[p], r = x * y * y;
    out_u[p] = x + a * laplacian(u, n, j, k, p) - r + F * (1 - x);
    out_v[p] = y + b * laplacian(v, n, j, k, p) + r - d * y;
}
"""


def case_of(tables: dict[str, Any], shape: tuple[int, ...], precision: str, kernel: str) -> Any:
    """Build a problem to be measured by one process."""
    from hpcstencil.benchmark.rows import Case
    from hpcstencil.config.reader import from_mapping
    from hpcstencil.problem.build import build
    from hpcstencil.simulation.prepared import Decomposed

    fields = ("u", "v") if tables is GRAY_SCOTT else ("u",)
    numerics = {"integrator": "euler", "precision": precision, "kernel": kernel}
    given = {**tables, "grid": {"shape": list(shape)}, "numerics": numerics, "initial": {f: NOISE[f] for f in fields}}
    problem = build(from_mapping(given, Path.cwd()))
    return Case(Decomposed.of(problem, 1, 1))


def after_some_steps(case: Any, device: Any) -> dict[str, Any]:
    """Take a few steps with a kernel and return the fields."""
    from hpcstencil.numerics.schedule import StepRange
    from hpcstencil.runtime.communicator import OneProcess
    from hpcstencil.simulation.backend_choice import prepare
    from hpcstencil.simulation.compose import compose

    problem = case.problem
    alone = OneProcess()
    simulation = compose(prepare(case.decomposed, (device,), alone), alone, (device,))
    fields = simulation.advance(simulation.initial_fields(), StepRange(0.0, 0, 1.0, STEPS_COMPARED))
    return simulation.get(fields, problem.fields)


def roundings(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return the largest difference, in units of the rounding error of the largest value."""
    import numpy as np

    return max(
        float(np.abs(found[name] - x).max() / np.finfo(x.dtype).eps / np.abs(x).max()) for name, x in expected.items()
    )


def rows(tables: dict[str, Any], shape: tuple[int, ...], precision: str, device: Any) -> Iterator[str]:
    """Measure each kernel and the copy bandwidth, and return a line for each kernel."""
    import jax

    from hpcstencil.benchmark.rows import measure
    from hpcstencil.runtime.communicator import OneProcess

    expected: dict[str, Any] = {}
    for kernel in KERNELS:
        case = case_of(tables, shape, precision, kernel)
        try:
            found = after_some_steps(case, device)
            expected = expected or found
            bandwidth, (row,) = measure([case], OneProcess(), (device,))
        except jax.errors.JaxRuntimeError as failure:  # running out of memory is a result too
            yield line(tables, shape, precision, kernel, f"failed: {str(failure).splitlines()[0][:80]}")
            continue
        told = speeds(row["cells_per_second"], row["t_eff"], bandwidth)
        yield line(tables, shape, precision, kernel, told, f"{roundings(found, expected):8.1f} roundings from shift")


def by_hand(tables: dict[str, Any], n: int, precision: str, bandwidth: float) -> str:
    """Measure the stencil in hand-written CUDA and return its line; the best of 10 rounds of 100 steps counts."""
    import cupy as cp

    count, dtype = (2 if tables is GRAY_SCOTT else 1), cp.dtype(precision)
    shape, block = ((n, n), (128, 4)) if count == 2 else ((n, n, n), (64, 4, 2))
    grid = tuple(-(-n // b) for b in block)
    options = (f"-Dreal={'float' if precision == 'float32' else 'double'}",)
    kernel = cp.RawKernel(CUDA, "gray_scott" if count == 2 else "heat", options=options)
    numbers = [dtype.type(c) for c in ((0.16, 0.08, 0.037, 0.097) if count == 2 else (0.1,))]
    old, new = ([cp.random.random(shape, dtype=dtype) for _ in range(count)] for _ in range(2))
    best, start, end = float("inf"), cp.cuda.Event(), cp.cuda.Event()
    for _ in range(10):
        start.record()
        for _ in range(50):
            kernel(grid, block, (*old, *new, cp.int32(n), *numbers))
            kernel(grid, block, (*new, *old, cp.int32(n), *numbers))
        end.record()
        end.synchronize()
        best = min(best, cp.cuda.get_elapsed_time(start, end) / 1e3 / 100)
    speed = old[0].size / best
    told = speeds(speed, speed * 2 * count * dtype.itemsize, bandwidth)
    return line(tables, shape, precision, "CUDA", told)


def speeds(cells: float, t_eff: float, bandwidth: float) -> str:
    return f"{cells / 1e9:9.2f} Gcell/s {t_eff / 1e9:9.1f} GB/s {t_eff / bandwidth:7.2f} of copy"


def line(tables: dict[str, Any], shape: tuple[int, ...], precision: str, kernel: str, *told: str) -> str:
    return f"{tables['equation']['name']:<12}{'x'.join(map(str, shape)):<14}{precision:<9}{kernel:<8}{'  '.join(told)}"


def strips(n: int, precision: str, device: Any) -> Iterator[str]:
    """Time 3-D heat with strips along some axes against the same without, in turns, and compare the bits."""
    from dataclasses import replace

    import numpy as np

    from hpcstencil.benchmark.timing import in_place, slowest, timings
    from hpcstencil.numerics.schedule import StepRange
    from hpcstencil.runtime.communicator import OneProcess
    from hpcstencil.simulation.compose import compose
    from hpcstencil.simulation.prepared import Choice, prepared_with

    for axes in ("x", "y", "z", "xyz"):
        walls = {axis: {"neumann": 0.0} for axis in "xyz" if axis not in axes}
        prepared = prepared_with(
            case_of({**HEAT, "boundary": walls}, (n,) * 3, precision, "pallas").decomposed,
            Choice("pallas"),
            OneProcess(),
            1,
        )
        wrapping = replace(prepared, lowered=replace(prepared.lowered, halo_wraps=True))
        actions, found = [], []
        for one in (prepared, wrapping):
            simulation = compose(one, OneProcess(), (device,))
            fields = simulation.advance(simulation.initial_fields(), StepRange(0.0, 0, 1.0, STEPS_COMPARED))
            found.append(simulation.get(fields, ("u",))["u"])

            def run(fields: Any, rounds: int, simulation: Any = simulation) -> Any:
                return simulation.advance(fields, StepRange(0.0, 0, 1.0, 8 * rounds))

            actions.append(in_place(run, [fields]))
        alone, beside = (slowest(times) / 8 for times in timings(actions, OneProcess()))
        same = "same bits" if np.array_equal(*found) else "OTHER BITS"
        yield (
            f"strips along {axes:<4}{precision:<9}{1e6 * beside:9.1f} us a step, {1e6 * alone:9.1f} without, "
            f"ratio {beside / alone:.3f}, {same}"
        )


def tune(n: int, device: Any) -> Iterator[str]:
    """Time 3-D heat in float32 with several tile sizes, and numbers of threads with 4, 8 or 16 cells per thread."""
    from math import prod

    from hpcstencil.backends.pallas import launch, tiles
    from hpcstencil.benchmark.rows import measure
    from hpcstencil.runtime.communicator import OneProcess

    for tile in TILES:
        for warps in sorted({max(1, min(16, prod(tile) // 32 // each)) for each in (4, 8, 16)}):
            launch.TILES[3], tiles.WARPS = tile, warps
            bandwidth, (row,) = measure([case_of(HEAT, (n,) * 3, "float32", "pallas")], OneProcess(), (device,))
            told = speeds(row["cells_per_second"], row["t_eff"], bandwidth)
            yield f"tile {'x'.join(map(str, tile)):<10} warps {warps:<3} {told}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Kernels on one GPU against its copy bandwidth.")
    parser.add_argument("--strips", action="store_true", help="time the exchange of strips, without messages")
    parser.add_argument("--tune", action="store_true", help="time other sizes of tiles")
    parser.add_argument("--interpret", action="store_true", help="tiny problems on a processor, to try this script")
    options = parser.parse_args()
    if not gpus() and not options.interpret:
        sys.exit("No GPU was found here: nothing is measured. With --interpret tiny problems run on a processor.")
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # so that these speeds are not stored for other runs
    bind_devices(1)
    device: Any = start_jax(1)[0]

    from hpcstencil.benchmark.report import result
    from hpcstencil.benchmark.timing import copy_bandwidth
    from hpcstencil.runtime.communicator import OneProcess

    bandwidth = copy_bandwidth(OneProcess(), (device,))
    told = result(bandwidth, [])
    print(told["machine"], told["versions"])
    print(f"copy bandwidth {bandwidth / 1e9:.1f} GB/s, read + written", flush=True)
    n, m = (16, 64) if options.interpret else (512, 8192)
    for tables, shape in ((HEAT, (n, n, n)), (GRAY_SCOTT, (m, m))):
        for precision in ("float32", "float64"):
            for row in rows(tables, shape, precision, device):
                print(row, flush=True)
            try:
                print(by_hand(tables, shape[0], precision, bandwidth), flush=True)
            except ImportError:
                print(line(tables, shape, precision, "CUDA", "not measured: CuPy is not installed"), flush=True)
    if options.strips:
        for precision in ("float32", "float64"):
            for row in strips(n, precision, device):
                print(row, flush=True)
    if options.tune:
        for row in tune(n, device):
            print(row, flush=True)


if __name__ == "__main__":
    main()
