"""Compare `hpcstencil run` with bare `jit` loops over the same slices: 3-D heat, euler, float32, 256^3, interleaved.

There are two bare loops: the obvious one with `jnp.pad(mode="wrap")`, and the fastest that we could write by hand, which pads
with zeros and then writes the six faces. Both run under XLA's default settings, which use fused multiply-add. The second also
runs under ours, which do not (docs/design/reproducible.md).

    .venv/bin/python benchmarks/bare_loop.py [rounds] [cells per axis]
"""

from __future__ import annotations

import sys
import time

from common import HEAT, machine, output_of, ratio_line, run_speed

STEPS = 200


def bare(form: str, n: int) -> float:
    """Measure the cell updates per second of a bare loop, with n cells per axis."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def wrap(u):
        return jnp.pad(u, 1, mode="wrap")

    def faces(u):
        p = jnp.pad(u, 1)
        for axis in range(3):
            for place, source in ((0, n - 1), (n + 1, 0)):
                start = [1, 1, 1]
                start[axis] = place
                p = lax.dynamic_update_slice(p, lax.slice_in_dim(u, source, source + 1, axis=axis), start)
        return p

    def step(i, u):
        p, second = (wrap if form == "wrap" else faces)(u), []
        for axis in range(3):
            below, above = ([offset if a == axis else 1 for a in range(3)] for offset in (0, 2))
            pair = lax.slice(p, above, [s + n for s in above]) + lax.slice(p, below, [s + n for s in below])
            second.append(pair - 2 * u)  # as in hpcstencil's kernel: one second difference per axis
        return u + jnp.float32(0.1) * (second[0] + second[1] + second[2])

    loop = jax.jit(lambda u, steps: lax.fori_loop(0, steps, step, u))
    x = jnp.sin(jnp.arange(n, dtype=jnp.float32) / 20)
    u = jax.block_until_ready(loop(x[:, None, None] * x[:, None] * x, 1))
    start = time.perf_counter()
    jax.block_until_ready(loop(u, STEPS))
    return STEPS * n**3 / (time.perf_counter() - start)


def main(rounds: int = 5, n: int = 256) -> None:
    from hpcstencil.runtime.devices import NO_CONTRACTION

    rows = {
        "bare loop, jnp.pad(mode='wrap')": lambda: child("wrap", n),
        "bare loop, faces written, XLA's settings": lambda: child("faces", n),
        "bare loop, faces written, no contraction": lambda: child("faces", n, XLA_FLAGS=NO_CONTRACTION),
        "hpcstencil run, XLA's settings": lambda: run_speed(
            HEAT.format(n=n, steps=STEPS), XLA_FLAGS="--xla_cpu_max_isa=AVX512"
        ),
        "hpcstencil run": lambda: run_speed(HEAT.format(n=n, steps=STEPS)),
    }
    found: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, measure in rows.items():
            found[name].append(measure())
    print(f"{machine()}; 3-D heat, euler, float32, {n}^3, {rounds} interleaved rounds")
    for reference in ("bare loop, jnp.pad(mode='wrap')", "bare loop, faces written, XLA's settings",
                      "bare loop, faces written, no contraction"):  # fmt: skip
        print(f"\n{'medians, and ratio to: ' + reference}")
        for name, values in found.items():
            print(ratio_line(name, values, found[reference]))


def child(form: str, n: int, **environment: str) -> float:
    """Measure the bare loop in a separate process; return cell updates per second."""
    return float(output_of([sys.executable, __file__, "--bare", form, str(n)], **environment))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        print(bare(sys.argv[2], int(sys.argv[3])))
    else:
        main(*map(int, sys.argv[1:]))
