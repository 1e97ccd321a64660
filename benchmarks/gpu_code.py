"""Count the kernels and copies per 8 steps in the code that XLA generates for an H100, on a machine without a GPU.

  python -m venv --system-site-packages gpu && gpu/bin/pip install jax-cuda12-plugin==JAX jax-cuda12-pjrt==JAX \\
      nvidia-cuda-nvcc-cu12        (JAX: the version of jax that is installed)
  gpu/bin/python benchmarks/gpu_code.py

Nothing is run, so the counts say nothing about speed.
"""

from __future__ import annotations

import os
import re
from collections import Counter
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


def compiled(name: str, shape: tuple[int, ...], integrator: str, precision: str, device: Any) -> Any:
    """Compile the loop over the steps of a problem, and return it."""
    import jax
    import numpy as np
    from jax.sharding import SingleDeviceSharding

    from hpcstencil.backends.pallas.step import kernels
    from hpcstencil.backends.xla.array_code import rules_of
    from hpcstencil.backends.xla.stencil_kernels import KERNELS
    from hpcstencil.backends.xla.time_loop import repeated
    from hpcstencil.config.reader import from_mapping
    from hpcstencil.distributed.windows import Value
    from hpcstencil.problem.build import build
    from hpcstencil.runtime.communicator import OneProcess
    from hpcstencil.simulation.compose import compose
    from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with

    numerics = {"integrator": integrator, "precision": precision}
    given = {"grid": {"shape": list(shape)}, "equation": {"name": name}, "numerics": numerics}
    problem = build(from_mapping({**given, "time": {"end": 1.0, "dt": 1e-3}}, Path.cwd()))
    alone = OneProcess()
    prepared = prepared_with(Decomposed.of(problem, 1, 1), Choice("pallas"), alone)
    device_grid = compose(prepared, alone, jax.devices("cpu")[:1]).device_grid
    made = kernels(problem, rules_of(problem, KERNELS["shift"]), interpret=False)
    windows = tuple((0, n) for n in shape)

    def steps(fields: Any, places: Any, parameters: Any, dt: Any, n: Any) -> Any:
        values = {field: Value(array, windows) for field, array in fields.items()}
        step = made.on(parameters, device_grid.frame(places))
        return repeated(n, lambda i, u: step(u, i * dt, dt, None), values, TOGETHER)

    fields = {field: jax.ShapeDtypeStruct(shape, np.dtype(precision)) for field in problem.fields}
    places, parameters = jax.tree.map(jax.numpy.asarray, (device_grid.places, dict(problem.parameters)))
    there = SingleDeviceSharding(device)
    program = jax.jit(steps, donate_argnums=0, in_shardings=there, out_shardings=there)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (places, parameters))
    return program.lower(fields, *shapes, 1e-3, 100).compile()


def body_of(text: str) -> Counter[str]:
    """Count the instructions of each kind in the body of the first loop."""
    found = re.search(r"while\(.*body=%?([\w.\-]+)", text)
    assert found, "no loop"
    start = text.index(f"\n%{found.group(1)} ")
    lines = text[start : text.index("\n}", start)].splitlines()
    kinds = [re.match(r"\s+(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([\w\-]+)\(", line) for line in lines]
    return Counter(kind.group(1) for kind in kinds if kind)


def main() -> None:
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # no CUDA libraries are installed
    import jax
    from jax.experimental.topologies import get_topology_desc

    jax.config.update("jax_enable_x64", True)
    jax.devices()
    device = get_topology_desc("one", "cuda", target_config=H100, topology="1x1x1").devices[0]
    print(f"jax {jax.__version__}, {device.device_kind}, {TOGETHER} steps in a row")
    for name, n, ndim in PROBLEMS:
        for integrator in ("euler", "rk4"):
            for precision in ("float32", "float64"):
                code = compiled(name, (n,) * ndim, integrator, precision, device)
                body, memory = body_of(code.as_text()), code.memory_analysis()
                print(
                    f"{name:<15}{integrator:<7}{precision:<9}{body['custom-call']:>4} kernels, {body['copy']} copies, "
                    f"{body['fusion']} small ones of XLA's; arrays beside the fields: "
                    f"{memory.temp_size_in_bytes / memory.output_size_in_bytes:.1f} times theirs",
                    flush=True,
                )


if __name__ == "__main__":
    main()
