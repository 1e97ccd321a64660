"""Measure the cost of gradients: the time of the forward and the reverse sweep, against one forward run, interleaved.

The rows are those of docs/gradients.md. Each row runs in a process of its own, which also tells its peak memory, and the memory
by plan. The memory of the compilers is left out; it is estimated as the amount by which the same row on SMALL cells per axis
exceeds its plan. With `jax` the gradient by jax.grad of array code with the same number of stored states is measured too:
segments of equal length, each of which is computed again from its first state. With `ranks` the gradient on two MPI ranks is
measured against that of one process with two threads instead; the processes are started in turn.

.venv/bin/python benchmarks/gradient.py [cells per axis] [steps] [stored states] [rounds] [jax | ranks] [case ...]
"""

from __future__ import annotations

import datetime
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import launched, machine, output_of, software

SPOT = "exp(-((x - {m})**2 + (y - {m})**2 + (z - {m})**2)/30)"
GRAY_SCOTT = {
    "equation": {"name": "gray_scott", "D_u": 0.2, "D_v": 0.1},
    "initial": {"u": "1 - 0.5*" + SPOT, "v": "0.25*" + SPOT},
    "objective": {"J": "integral((v - 0.1)**2)"},
    "gradient": {"of": ["initial.u", "initial.v", "equation.F", "equation.k"]},
}
CASES: dict[str, dict[str, Any]] = {
    "euler": {**GRAY_SCOTT, "numerics": {"integrator": "euler"}, "dt": 0.5},
    "rk4": {**GRAY_SCOTT, "numerics": {"integrator": "rk4"}, "dt": 0.5},
    "wave": {
        "equation": {"name": "wave"},
        "initial": {"u": SPOT},
        "numerics": {"integrator": "leapfrog"},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["equation.c"]},
        "dt": 0.3,
    },
    "heat": {
        "equation": {"name": "heat", "D": 0.1},
        "initial": {"u": SPOT},
        "numerics": {"integrator": "euler"},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["initial.u"]},
        "dt": 1.0,
    },
    "source": {
        "equation": {"name": "acoustic"},
        "initial": {"p": SPOT},
        "numerics": {"integrator": "leapfrog"},
        "objective": {"J": "integral(p**2)"},
        "gradient": {"of": ["equation.source"]},
        "dt": 0.3,
    },
}
CASES["disk"] = CASES["rk4"]
CASES["model"] = {**CASES["source"], "gradient": {"of": ["equation.c"]}}
CASES["joint"] = {**CASES["source"], "gradient": {"of": ["equation.c", "equation.source"]}}
CASES["receivers"] = {
    **CASES["model"], "objective": {"J": "sum(of_p**2)"}, "probes": {"of_p": {"field": "p"}},
}  # fmt: skip
CASES["tables"] = {
    **CASES["model"],
    "objective": {"J": "sum(of_p**2)/(1 + sum(of_q**2))"},
    "probes": {"of_p": {"field": "p"}, "of_q": {"field": "q"}},
}
CASES["slope"] = {
    **CASES["model"], "objective": {"J": "sum(of_p**2)"}, "probes": {"of_p": {"expression": "dx(p)"}},
}  # fmt: skip
CASES["solid"] = {
    **CASES["receivers"], "mask": {"solid": "(x - {m})**2 + (y - {m})**2 + (z - {m})**2 < ({m}/4)**2"},
}  # fmt: skip
CASES["stages"] = {
    **CASES["receivers"],
    "numerics": {"integrator": "rk4"},
    "boundary": {axis: {"cpml": {"width": 10.0, "speed": 1.0}} for axis in "xyz"},
}
RECEIVERS = 100
SMALL = 48
CASES["initial"] = {**CASES["wave"], "gradient": {"of": ["initial.u"]}}
SAID = {
    "euler": "Gray-Scott, euler",
    "rk4": "Gray-Scott, rk4",
    "disk": "Gray-Scott, rk4, states on disk",
    "wave": "wave, gradient of c",
    "heat": "heat, initial state, euler",
    "initial": "wave, initial state, leapfrog",
    "source": "acoustic, time series of the source, a sample per step",
    "model": "acoustic, gradient of c",
    "joint": "acoustic, c and the time series",
    "receivers": f"acoustic, c, {RECEIVERS} receivers of p",
    "tables": f"acoustic, c, {RECEIVERS} receivers of p and of q",
    "slope": f"acoustic, c, {RECEIVERS} receivers of dx(p)",
    "stages": f"acoustic, rk4, CPML, c, {RECEIVERS} receivers of p",
    "solid": f"acoustic beside a solid sphere, c, {RECEIVERS} receivers of p",
}


def tables(case: str, cells: int, steps: int, states: int) -> dict[str, Any]:
    """Return the input of a row as a dict."""
    import numpy as np

    given = CASES[case]
    made = {key: dict(value) for key, value in given.items() if key != "dt"}
    made["grid"] = {"shape": [cells] * 3}
    for table in ("initial", "mask"):
        if table in made:
            made[table] = {name: text.format(m=cells / 2) for name, text in made[table].items()}
    made["time"] = {"dt": given["dt"], "end": given["dt"] * steps}
    if "equation.c" in made["gradient"]["of"]:
        made["equation"]["c"] = np.linspace(0.8, 1.0, cells)[:, None, None] * np.ones((cells, cells, cells))
    if "equation.source" in made["gradient"]["of"]:
        place = dict.fromkeys(("xs", "ys", "zs"), cells / 2)
        made["equation"] |= {**place, "source": {"series": np.zeros(steps + 1), "dt": given["dt"]}}
    line = {"x": np.linspace(1.0, cells - 1.0, RECEIVERS).tolist(), "y": cells / 3, "z": cells / 2}
    made["probes"] = {name: {**probe, **line} for name, probe in made.get("probes", {}).items()}
    if case in ("euler", "rk4", "disk"):
        made["gradient"]["checkpoints"] = states
    if case == "disk":
        made["gradient"]["storage"] = "disk"
    return made


def seconds(function: Callable[[], object]) -> float:
    """Return the time of a call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def memory(name: str) -> int:
    """Return an entry of this process's status in bytes: VmRSS is its memory, VmHWM the largest since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def measured(case: str, cells: int, steps: int, states: int, rounds: int, with_jax: bool) -> None:
    """Print the times of a row, its peak memory and that of its plan, as JSON."""
    import jax

    from hpcstencil.gradient.compose import planned
    from hpcstencil.python.gradient import Gradient
    from hpcstencil.python.simulation import Simulation
    from hpcstencil.runtime.launcher import environment_rank

    with Simulation(tables(case, 16, 20, states)) as small:
        small.value_and_gradient()
    before = memory("VmRSS")
    with Simulation(tables(case, cells, steps, states)) as sim:
        made = Gradient(sim._open, {}, {})
        fields = dict(sim._stepping.state.fields)
        sweep, plan = planned(made.members.sweeps[0], fields)

        def forward() -> None:
            after = sweep.compiled.copied(fields)
            for steps in sweep.run.between(0, sweep.steps):
                after = made.simulation.advance(after, steps)
            jax.block_until_ready(after)

        def gradient() -> None:
            sweep(fields, plan.states)

        device = jax.local_devices()[0]
        Path("/proc/self/clear_refs").write_text("5")  # the initial state took memory too
        gradient()
        on_card = device.memory_stats()  # None on CPUs
        most = on_card["peak_bytes_in_use"] if on_card else memory("VmHWM") - before
        times = [(seconds(forward), seconds(gradient)) for _ in range(rounds)]
        by_jax = math.nan
        if with_jax and case != "disk":
            by_jax = seconds_of_jax(case, tables(case, cells, steps, states), fields, states)
        made.close()
    told = {"times": times, "peak": most, "plan": plan.bytes, "taken": plan.taken / plan.steps, "jax": by_jax}
    if environment_rank() == 0:
        print(json.dumps({**told, "device": device.device_kind}))


def laplacian(u: Any) -> Any:
    """Return the Laplacian of an array on periodic cells of width 1, of second order."""
    import jax.numpy as jnp

    return sum(jnp.roll(u, 1, axis) + jnp.roll(u, -1, axis) for axis in range(3)) - 6 * u


def seconds_of_jax(case: str, given: dict[str, Any], fields: dict[str, Any], states: int) -> float:
    """Return the time of `jax.grad` of array code for a row, with about as many stored states, without compiling."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    steps, dt, equation = round(given["time"]["end"] / given["time"]["dt"]), given["time"]["dt"], given["equation"]

    def gray_scott(u: Any, p: Any) -> Any:
        reaction = u["u"] * u["v"] ** 2
        return {
            "u": 0.2 * laplacian(u["u"]) - reaction + p["F"] * (1 - u["u"]),
            "v": 0.1 * laplacian(u["v"]) + reaction - (p["F"] + p["k"]) * u["v"],
        }

    def moved(u: Any, h: float, k: Any) -> Any:
        return jax.tree.map(lambda a, b: a + h * b, u, k)

    def step(u: Any, p: Any) -> Any:
        if case == "heat":
            return {"u": u["u"] + dt * 0.1 * laplacian(u["u"])}
        if case in ("wave", "initial"):
            half = u["u"] + dt / 2 * u["v"]
            v = u["v"] + dt * p["c"] ** 2 * laplacian(half)
            return {"u": half + dt / 2 * v, "v": v}
        k1 = gray_scott(u, p)
        if case == "euler":
            return moved(u, dt, k1)
        k2 = gray_scott(moved(u, dt / 2, k1), p)
        k3 = gray_scott(moved(u, dt / 2, k2), p)
        k4 = gray_scott(moved(u, dt, k3), p)
        return jax.tree.map(lambda a, b, c, d, e: a + dt / 6 * (b + 2 * c + 2 * d + e), u, k1, k2, k3, k4)

    segment = steps // min(states, steps) if case in ("euler", "rk4") else 1

    def objective(u: Any, p: Any) -> Any:
        def several(u: Any, _: Any) -> Any:
            return lax.scan(lambda u, _: (step(u, p), None), u, None, length=segment)[0], None

        u = lax.scan(jax.checkpoint(several) if segment > 1 else several, u, None, length=steps // segment)[0]
        return jnp.sum((u["v"] - 0.1) ** 2) if case in ("euler", "rk4") else jnp.sum(u["u"] ** 2)

    numbers = (
        {"F": 0.04, "k": 0.06} if case in ("euler", "rk4") else {"c": jnp.asarray(equation.get("c", 1.0), jnp.float32)}
    )
    gradient = jax.jit(jax.grad(objective, 0 if case in ("heat", "initial") else 1 if case == "wave" else (0, 1)))
    state = {name: jnp.asarray(fields[name]) for name in ("u", "v") if name in fields}
    jax.block_until_ready(gradient(state, numbers))
    return seconds(lambda: jax.block_until_ready(gradient(state, numbers)))


def row(processes: int, *arguments: object) -> dict[str, Any]:
    """Return the JSON of a row."""
    line = launched(processes, sys.executable, __file__, "row", *map(str, arguments))
    found: dict[str, Any] = json.loads(output_of(line).splitlines()[-1])
    return found


def compare_ranks(cells: int, steps: int, states: int, rounds: int, cases: list[str]) -> None:
    """Print the times on one process and on two MPI ranks. The first forward run and gradient of a process do not count."""
    print(f"{cells}^3 cells, float32, {steps} steps, {states} stored states; medians of {rounds} launches in turn.\n")
    print("| case | forward, 1 process, s | 2 ranks | gradient, 1 process, s | 2 ranks |\n|---|---|---|---|---|")
    for case in cases or list(CASES):
        times: dict[int, list[list[float]]] = {1: [], 2: []}
        for _ in range(rounds):
            for processes, launches in times.items():
                found = row(processes, case, cells, steps, states, 5)["times"][1:]
                launches.append([statistics.median(column) for column in zip(*found, strict=True)])
        cells_of_row = []
        for one, two in zip(zip(*times[1], strict=True), zip(*times[2], strict=True), strict=True):
            ratio = statistics.median(b / a for a, b in zip(one, two, strict=True))
            cells_of_row += [f"{statistics.median(one):.3g}", f"{ratio:.2f} x"]
        print(f"| {SAID[case]} | {' | '.join(cells_of_row)} |", flush=True)


def main(cells: int, steps: int, states: int, rounds: int, with_jax: bool, cases: list[str]) -> None:
    print(f"{cells}^3 cells, float32, {steps} steps, {states} stored states; least of {rounds} interleaved rounds.\n")
    print(
        "| case | forward, s | gradient | steps taken | jax.grad | peak memory | by plan |\n|---|---|---|---|---|---|---|"
    )

    for case in cases or list(CASES):
        found = row(1, case, cells, steps, states, rounds, *(["jax"] if with_jax else []))
        small = row(1, case, SMALL, steps, states, 0)
        found["peak"] -= small["peak"] - small["plan"]
        forward = min(a for a, _ in found["times"])
        ratio = statistics.median(b / a for a, b in found["times"])
        jax = "" if math.isnan(found["jax"]) else f"{found['jax'] / forward:.0f} x"
        sizes = " | ".join(f"{found[key] / 1e6:.0f} MB" for key in ("peak", "plan"))
        print(
            f"| {SAID[case]} | {forward:.3g} | {ratio:.2f} x | {found['taken']:.2f} x | {jax} | {sizes} |", flush=True
        )
    print(f"\nDevice: {found['device']}.")


if __name__ == "__main__":
    words = sys.argv[1:]
    numbers = [int(word) for word in words if word.isdigit()]
    names = [word for word in words if word in CASES]
    cells, steps, states, rounds = (*numbers, *(96, 120, 8, 3)[len(numbers) :])
    if words[:1] == ["row"]:
        measured(names[0], cells, steps, states, rounds, "jax" in words)
        sys.exit()
    print(f"{machine()}; {software()}; {datetime.date.today()}.")
    if "ranks" in words:
        compare_ranks(cells, steps, states, rounds, names)
    else:
        main(cells, steps, states, rounds, "jax" in words, names)
