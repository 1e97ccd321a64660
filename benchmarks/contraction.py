"""Count how often XLA's fused multiply-add changes x*y - z, by instruction set, for docs/design/reproducible.md.

.venv/bin/python benchmarks/contraction.py
"""

from __future__ import annotations

import sys

from common import machine, output_of

NUMBERS = 100_003


def count() -> int:
    """Count the results of float32 x*y - z that differ from multiplying, rounding, and then subtracting."""
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    x, y, z = (rng.random(NUMBERS).astype(np.float32) for _ in range(3))
    return int((np.asarray(jax.jit(lambda x, y, z: x * y - z)(x, y, z)) != x * y - z).sum())


def main() -> None:
    print(f"{machine()}; of {NUMBERS} results of x*y - z in float32 differ from two roundings:")
    for name in ("XLA's own", "SSE4_2", "AVX", "AVX2"):
        flags = {} if "own" in name else {"XLA_FLAGS": f"--xla_cpu_max_isa={name}"}
        print(f"{name:<12}{output_of([sys.executable, __file__, '--count'], **flags).strip():>8}")


if __name__ == "__main__":
    if "--count" in sys.argv:
        print(count())
    else:
        main()
