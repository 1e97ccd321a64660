"""Count the kernels, copies and bytes of steps in the code that XLA generates for an H100, on a machine without a GPU.

  python benchmarks/gpu_code.py --bytes      counts the bytes that a step of heat moves, and needs nothing else

  python -m venv --system-site-packages gpu && gpu/bin/pip install jax-cuda12-plugin==JAX jax-cuda12-pjrt==JAX \\
      nvidia-cuda-nvcc-cu12        (JAX: the version of jax that is installed)
  gpu/bin/python benchmarks/gpu_code.py      also compiles loops over steps, for one GPU and for two that exchange strips

Nothing is run, so the counts say nothing about speed.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84978434048
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
PROBLEMS = (("heat", 512, 3), ("gray_scott", 8192, 2), ("wave", 512, 3), ("cahn_hilliard", 4096, 2))
TOGETHER = 8
OVERLAP_LIMIT = (
    "xla_gpu_experimental_parallel_collective_overlap_limit"  # collectives that XLA keeps in flight; 1 by default
)


SECTOR = 32  # bytes that memory moves at once


def problem_of(name: str, shape: tuple[int, ...], integrator: str, precision: str, devices: tuple[int, ...]) -> Any:
    """Return a problem with ``shape`` cells on each of the ``devices`` per axis."""
    from hpcstencil.config.reader import from_mapping
    from hpcstencil.problem.build import build

    given = {
        "grid": {"shape": [n * d for n, d in zip(shape, devices, strict=True)]},
        "equation": {"name": name},
        "numerics": {"integrator": integrator, "precision": precision},
        "time": {"end": 1.0, "dt": 1e-3},
        "decomposition": {"devices": list(devices)},
    }
    return build(from_mapping(given, Path.cwd()))


def device_grid_of(problem: Any, count: int) -> tuple[Any, Any]:
    """Return the device grid of ``count`` devices, and the places of the first one."""
    import jax

    from hpcstencil.runtime.communicator import OneProcess
    from hpcstencil.simulation.compose import compose
    from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with

    alone = OneProcess()
    prepared = prepared_with(Decomposed.of(problem, 1, count), Choice("pallas"), alone, 0)
    grid = compose(prepared, alone, jax.devices("cpu")[:1] * count).device_grid
    first = replace(grid.devices, devices=grid.devices.devices[:1])
    return grid, replace(grid, devices=first).places


def traced(problem: Any, gpus: list[Any]) -> Any:
    """Trace the loop over the steps of a problem on one GPU or on several that exchange strips, and return it."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from hpcstencil.backends.pallas.step import kernels
    from hpcstencil.backends.pallas.strips import Exchanging
    from hpcstencil.backends.xla.array_code import rules_of
    from hpcstencil.backends.xla.stencil_kernels import KERNELS
    from hpcstencil.backends.xla.time_loop import repeated
    from hpcstencil.distributed.device_blocks import DEVICE_AXIS

    grid, first = device_grid_of(problem, len(gpus))
    made = kernels(problem, rules_of(problem, KERNELS["shift"]), interpret=False)

    def steps(fields: Any, places: Any, parameters: Any, dt: Any, n: Any) -> Any:
        frame = grid.frame(jax.tree.map(lambda a: a[0], places))
        stepping = made.on(parameters, frame, Exchanging(grid, frame, False))
        own = {name: array[0] for name, array in fields.items()}
        after = repeated(n, lambda i, u: stepping.exchanging_in_stages(u, i * dt, dt), stepping.begun(own), TOGETHER)
        return {name: value.array[None] for name, value in after.items()}

    mesh = Mesh(np.array(gpus), (DEVICE_AXIS,))
    each, same = PartitionSpec(DEVICE_AXIS), PartitionSpec()
    mapped = jax.shard_map(steps, mesh=mesh, in_specs=(each, each, same, same, same), out_specs=each, check_vma=False)

    def abstract(array: Any, spec: Any) -> Any:
        shape = (len(gpus), *np.shape(array)) if spec == each else np.shape(array)
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=NamedSharding(mesh, spec))

    block = {f: np.empty(grid.topology.capacity(), problem.config.numerics.precision) for f in problem.fields}
    arguments = (
        jax.tree.map(lambda a: abstract(a, each), (block, first)),
        jax.tree.map(lambda a: abstract(np.asarray(a), same), (dict(problem.parameters), 1e-3, 100)),
    )
    return jax.jit(mapped, donate_argnums=0).trace(*arguments[0], *arguments[1])


# ---- bytes ----


def bytes_of_step(shape: tuple[int, ...], cut: tuple[int, ...]) -> tuple[float, float]:
    """Return the bytes that a step of heat by Euler in float32 moves in a block, and those that it moves at best.

    The block of ``shape`` cells is cut along the axes ``cut``. Each launch reads its cells and their neighbours once and
    writes its cells once, in whole sectors of memory.
    """
    import jax
    import numpy as np

    from hpcstencil.backends.pallas.launch import Launch
    from hpcstencil.backends.pallas.strips import Beside
    from hpcstencil.backends.pallas.tiles import around
    from hpcstencil.backends.xla.array_code import rules_of
    from hpcstencil.backends.xla.stencil_kernels import KERNELS

    devices = tuple(2 if axis in cut else 1 for axis in range(len(shape)))
    problem = problem_of("heat", shape, "euler", "float32", devices)
    grid, places = device_grid_of(problem, math.prod(devices))
    launch = Launch(rules_of(problem, KERNELS["shift"]), grid.frame(places), (), {}, False)
    strips = {axis: tuple((0, 1) if a == axis else (0, n) for a, n in enumerate(shape)) for axis in cut}
    array = jax.ShapeDtypeStruct(shape, np.float32)
    ghosts = {
        axis: (jax.ShapeDtypeStruct((1, *(stop for _, stop in windows)), np.float32),) * 2
        for axis, windows in strips.items()
    }
    inner = launch.without_strips(
        {"u": Beside(array, grid.interior, ghosts, 0, False)}, list(problem.trees.values()), grid.interior
    )

    def sectors(windows: Any) -> int:
        *others, (start, stop) = windows
        rows = math.prod(b - a for a, b in others)
        return rows * ((stop - 1) * 4 // SECTOR - start * 4 // SECTOR + 1) * SECTOR

    def with_neighbours(windows: Any) -> Any:
        return [(max(0, a - 1), min(n, b + 1)) for (a, b), n in zip(windows, shape, strict=True)]

    moved = sum(sectors(with_neighbours(box)) + sectors(box) for box in (inner, *around(grid.interior, inner)) if cut)
    for windows in strips.values():
        contiguous = math.prod(b - a for a, b in windows) * 4
        moved += 2 * contiguous + 2 * contiguous  # both strips are stored to be sent; those received are read
    ideal = 2 * math.prod(shape) * 4
    return (moved or ideal), ideal


def print_bytes() -> None:
    """Print the bytes of a step in a block of 512³ cells, for every set of axes that are cut."""
    n = 512
    for cut in ((), (0,), (1,), (2,), (0, 1), (0, 1, 2)):
        moved, ideal = bytes_of_step((n,) * 3, cut)
        axes = " and ".join("xyz"[axis] for axis in cut) or "nothing"
        print(
            f"heat, euler, float32, {n}³, {axes} cut: {moved / 1e6:.0f} MB per step, {moved / ideal - 1:+.1%} of the ideal"
        )


# ---- compiled code ----


def body_of(text: str) -> Counter[str]:
    """Count the instructions of each kind in the body of the first loop."""
    found = re.search(r"while\(.*body=%?([\w.\-]+)", text)
    assert found, "no loop"
    start = text.index(f"\n%{found.group(1)} ")
    lines = text[start : text.index("\n}", start)].splitlines()
    kinds = [re.match(r"\s+(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([\w\-]+)\(", line) for line in lines]
    return Counter(kind.group(1) for kind in kinds if kind)


def schedule_of(text: str) -> list[str]:
    """Return the kernels, starts and dones of messages, and other work in the body of the first loop, in their order."""
    found = re.search(r"while\(.*body=%?([\w.\-]+)", text)
    assert found, "no loop"
    start = text.index(f"\n%{found.group(1)} ")
    kinds = re.findall(r"\n\s+(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([\w\-]+)\(", text[start : text.index("\n}", start)])
    wanted = ("custom-call", "collective-permute-start", "collective-permute-done", "fusion", "copy")
    return [kind for kind in kinds if kind in wanted]


def instructions(ptx: str) -> list[int]:
    """Return the number of PTX instructions between two labels of a kernel's code, in their order."""
    stretches = re.split(r"\n\$L\S+:", ptx)
    return [len(re.findall(r"\n\t(?:@\S+ )?[a-z][\w.]*[ ;]", part)) for part in stretches]


def print_rows(eight: list[Any], folder: Path) -> None:
    """Print the instructions of the kernel of the cells that read strips, with neighbours along three axes.

    XLA writes its code to ``folder``.
    """
    problem = problem_of("heat", (512,) * 3, "euler", "float32", (2, 2, 2))
    traced(problem, eight).lower().compile(compiler_options={"xla_dump_to": str(folder)})
    kernels = {path: path.read_text() for path in folder.glob("*.ptx") if ".entry kernel" in path.read_text()}
    rows = max(kernels.values(), key=lambda text: sum(instructions(text)))
    print(f"instructions for 2 cells that read strips, by stretches of code: {instructions(rows)}")


def main() -> None:
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # no CUDA libraries are installed
    import jax

    jax.config.update("jax_enable_x64", True)
    print_bytes()
    if sys.argv[1:] == ["--bytes"]:
        return
    from jax.experimental.topologies import get_topology_desc

    jax.devices()
    one, two = (get_topology_desc(f"{n}", "cuda", target_config=H100, topology=f"1x1x{n}").devices for n in (1, 2))
    print(f"jax {jax.__version__}, {one[0].device_kind}, {TOGETHER} steps in a row")
    for name, n, ndim in PROBLEMS:
        for integrator in ("euler", "rk4"):
            for precision in ("float32", "float64"):
                problem = problem_of(name, (n,) * ndim, integrator, precision, (1,) * ndim)
                code = traced(problem, list(one)).lower().compile()
                body, memory = body_of(code.as_text()), code.memory_analysis()
                print(
                    f"{name:<15}{integrator:<7}{precision:<9}{body['custom-call']:>4} kernels, {body['copy']} copies, "
                    f"{body['fusion']} small ones of XLA's; arrays beside the fields: "
                    f"{memory.temp_size_in_bytes / memory.output_size_in_bytes:.1f} times theirs",
                    flush=True,
                )
    problem = problem_of("heat", (512,) * 3, "euler", "float32", (2, 1, 1))
    lowered = traced(problem, list(two)).lower()
    for limit in (1, 2):
        code = lowered.compile(compiler_options={OVERLAP_LIMIT: limit}).as_text()
        steps = ", ".join(schedule_of(code)).removeprefix("fusion, ")
        print(f"two GPUs, messages in flight: {limit}, {TOGETHER} steps: {steps}")
    eight = get_topology_desc("8", "cuda", target_config=H100, topology="1x1x8").devices
    with tempfile.TemporaryDirectory() as folder:
        print_rows(list(eight), Path(folder))


if __name__ == "__main__":
    main()
