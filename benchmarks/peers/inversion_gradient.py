"""The gradient of full-waveform inversion against Devito and deepwave: seconds, and how far the gradients are from each other.

  .venv/bin/python benchmarks/peers/inversion_gradient.py [ROUNDS] [CASE ...]

The misfit is half the sum of squares of (p - observed) over receivers and steps, and the gradient is that with respect to the
speed of sound in each cell. Devito computes it with the solver of its tutorials (`devito_inversion.py`), deepwave with
PyTorch's autograd (`deepwave_inversion.py`), hpcstencil with `sim.value_and_gradient()`. Both sides have the same cells,
differences of the same order, leapfrog steps, float32, source and receivers on grid points, record p after every step, and
store in memory what the gradient needs of all steps. Each makes the data itself, by a run in the true model.

`walls` have no absorbing layers: the waves do not come back from the walls within the run. `layers` have cells more at each
end, in which Devito has its damping, and hpcstencil a `sponge` of about the same strength. `cpml` have a CPML there, on both
sides.

All programs run in turn on all cores, ROUNDS (5) times, after `WARM` rounds that do not count: programs compile, and ours
searches for its fastest blocking, as it does in the first iterations of an inversion. Devito has a row with its default
settings and one with those that its autotuner chooses. Forward runs begin again in the same process, record the receivers, and
store neither states nor files. "Half" is our gradient with a tape in half precision (`gradient.tape_precision`). The last table
has relative 2-norms of differences, from the peer's results and of our gradient with such a tape from that without.

deepwave needs PyTorch, which comes with the libraries of GPUs unless pip's settings (PIP_EXTRA_INDEX_URL) name an index with
packages for CPUs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from environment import NotInstalled, python_with
from peer import common

SPACING, SLOW, FAST, F0, ORDER = 10.0, 2.0, 2.4, 0.025, 4  # m, m/ms, m/ms, kHz
T0 = 1.4 / F0  # ms; the wavelet begins with values below 1e-6
WARM = 10  # rounds that do not count
DEVITO, TUNED, DEEPWAVE = "Devito", "Devito, autotuned", "deepwave"
PROGRAMS = {DEVITO: "devito_inversion.py", TUNED: "devito_inversion.py", DEEPWAVE: "deepwave_inversion.py"}
ENVIRONMENTS = {
    DEVITO: ("devito-examples", "devito", "scipy", "pytest"),  # the last two for Devito's examples
    TUNED: ("devito-examples", "devito", "scipy", "pytest"),
    DEEPWAVE: ("deepwave", "torch", "deepwave", "numpy"),
}


@dataclass(frozen=True)
class Case:
    """A model with a round inclusion between source and receivers, which the first guess does not have.

    ``cells`` are along each axis, ``layer`` of them in addition at each end. ``receivers`` are along each axis but the first.
    ``absorbing`` is the kind of the layers, and ``peers`` are the programs to compare with.
    """

    cells: int
    ndim: int
    steps: int
    receivers: int
    layer: int = 0
    absorbing: str = "sponge"
    peers: tuple[str, ...] = (DEVITO, TUNED)

    @property
    def dt(self) -> float:
        """The step in ms, 0.9 of the largest stable one of order 4."""
        return 0.9 * SPACING / FAST * float(np.sqrt(3 / (4 * self.ndim)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The cells that both sides compute."""
        return (self.cells + 2 * self.layer,) * self.ndim

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """The source (1, axes) and the receivers (number, axes), in m; the first cell without layers is at 0."""
        middle, apart = self.cells // 2, self.cells // 12
        across = np.linspace(middle - 2 * apart, middle + 2 * apart, self.receivers).round()
        plane = np.stack(np.meshgrid(*[across] * (self.ndim - 1), indexing="ij"), axis=-1).reshape(-1, self.ndim - 1)
        receivers = np.insert(plane, 0, middle + apart, axis=1)
        source = np.array([[middle - apart, *[middle] * (self.ndim - 1)]])
        return source * SPACING, receivers * SPACING

    def models(self) -> tuple[np.ndarray, np.ndarray]:
        """The true speeds and the first guess, float32, without layers."""
        along = np.arange(self.cells) - self.cells // 2
        distance = np.sqrt(sum(axis.astype(float) ** 2 for axis in np.ix_(*[along] * self.ndim)))
        guess = np.full(distance.shape, SLOW, np.float32)
        return np.where(distance < self.cells / 25, np.float32(FAST), guess), guess

    def tables(
        self, speeds: np.ndarray | str | float, observed: np.ndarray | None = None, precision: str = "full"
    ) -> dict[str, Any]:
        """The input of hpcstencil for these speeds (an array with layers, its file, or a number), for data of shape (samples,
        receivers), and for the ``precision`` of the tape."""
        (source,), receivers = self.places()
        axes, below = "xyz"[: self.ndim], -(self.layer + 0.5) * SPACING
        width = self.layer * SPACING
        # Devito's damping is 1.5 log(1000)/width at the wall, in 1/c² ∂²p/∂t² + damping ∂p/∂t. A wave decays at half that rate.
        strength = 0.75 * np.log(1000.0) / width * SLOW**2 if self.layer else 0.0
        layers = {"sponge": {"width": width, "strength": strength}, "cpml": {"width": width, "speed": FAST}}
        condition = {self.absorbing: layers[self.absorbing]} if self.layer else {"dirichlet": 0.0}
        tables = {
            "grid": {
                "shape": list(self.shape),
                "lower": [below] * self.ndim,
                "upper": [below + n * SPACING for n in self.shape],
            },
            "equation": {
                "name": "acoustic",
                "c": speeds,
                "source": SPACING**self.ndim,
                "f0": F0,
                "t0": T0,
                **{f"{axis}s": float(place) for axis, place in zip(axes, source, strict=True)},
            },
            "boundary": dict.fromkeys(axes, condition),
            "numerics": {"order": ORDER, "integrator": "leapfrog"},
            "time": {"end": self.steps * self.dt, "dt": self.dt},
            "probes": {"receivers": {"field": "p", **dict(zip(axes, receivers.T.tolist(), strict=True))}},
            "output": {"fields": ["p"]},
        }
        if observed is not None:
            tables["objective"] = {"misfit": "0.5*sum((receivers - observed)**2)", "data": {"observed": observed}}
            tables["gradient"] = {"of": ["equation.c"], "tape_precision": precision}
        return tables


CASES = {
    "walls-2d": Case(501, 2, 500, 101),
    "walls-3d": Case(128, 3, 100, 15),
    "layers-2d": Case(421, 2, 500, 101, 40),
    "layers-3d": Case(88, 3, 100, 15, 20),
    "cpml-2d": Case(461, 2, 500, 101, 20, "cpml", (DEEPWAVE,)),
}


class Ours:
    """Our side of a case: runs and gradients in this process."""

    def __init__(self, case: Case, folder: Path) -> None:
        import hpcstencil as hs

        true, guess = (np.pad(model, case.layer, "edge") for model in case.models())
        with hs.Simulation(case.tables(true)) as sim:
            sim.run(output=folder / "run.h5")
        observed = np.array(hs.probes(folder / "run.h5", "receivers")["values"])
        with hs.Simulation(case.tables(guess)) as sim:
            sim.run(output=folder / "guess.h5")
        self.gather = np.array(hs.probes(folder / "guess.h5", "receivers")["values"])[1:]
        self.inner = (slice(case.layer, case.layer + case.cells),) * case.ndim
        self.sim, self.half = (hs.Simulation(case.tables(guess, observed, each)) for each in ("full", "half"))
        self.sim.value_and_gradient()
        self.times()

    def times(self) -> list[float]:
        """Seconds of a forward run, with the objective, of a gradient, and of one with a tape in half precision."""
        (sweep,), fields = self.sim._gradient[1].members.sweeps, self.sim._stepping.state.fields
        times = [time.perf_counter()]
        sweep.value(fields)
        times.append(time.perf_counter())
        self.objective, gradient = self.sim.value_and_gradient()
        times.append(time.perf_counter())
        _, in_half = self.half.value_and_gradient()
        times.append(time.perf_counter())
        self.gradient, self.gradient_in_half = gradient["equation.c"], in_half["equation.c"]
        return [*np.diff(times)]

    def results(self) -> dict[str, Any]:
        """The gather (samples, receivers) without the initial state, the objective, and its gradient without layers."""
        return {"gather": self.gather, "objective": np.array(self.objective), "gradient": self.gradient[self.inner]}


class Theirs:
    """A peer's side of a case, in a process that waits between two computations. Raises NotInstalled."""

    def __init__(self, case: Case, folder: Path, peer: str) -> None:
        python = python_with(*ENVIRONMENTS[peer])
        model, guess = case.models()
        source, receivers = case.places()
        np.savez(folder / "model.npz", model=model, guess=guess, source=source, receivers=receivers)
        self.peer, self.saved = peer, folder / f"results {peer}.npz"
        task = {
            "model": str(folder / "model.npz"), "results": str(self.saved), "order": ORDER, "spacing": SPACING,
            "autotuning": "aggressive" if peer == TUNED else "off", "fastest": FAST, "layer": case.layer,
            "steps": case.steps, "dt": case.dt, "f0": F0, "t0": T0,
        }  # fmt: skip
        path = folder / f"task {peer}.json"
        path.write_text(json.dumps(task))
        self.process = subprocess.Popen(
            [python, Path(__file__).parent / PROGRAMS[peer], path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))},
        )  # fmt: skip
        self.version = str(self.reply()["version"])

    def reply(self) -> Any:
        """The next line that the process prints, which is JSON. Ends the benchmark if the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{PROGRAMS[self.peer]} ended with {self.process.wait()}")
        return json.loads(line)

    def times(self) -> list[float]:
        """Seconds of a forward run and of a gradient."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        found: list[float] = self.reply()
        return found

    def results(self) -> dict[str, Any]:
        """As those of `Ours`. The process ends."""
        self.process.communicate()
        with np.load(self.saved) as saved:
            return dict(saved)


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The 2-norm of the difference of two arrays, relative to that of ``expected``."""
    return float(np.linalg.norm(found.astype(float) - expected) / np.linalg.norm(expected.astype(float)))


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """The scalar product of two arrays divided by their 2-norms."""
    a, b = a.astype(float).ravel(), b.astype(float).ravel()
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def measure(name: str, rounds: int, folder: Path) -> list[tuple[str, str]]:
    """For each peer of a case, the row with the times, and that with the differences of the results."""
    case = CASES[name]
    peers = {peer: Theirs(case, folder, peer) for peer in case.peers}
    ours = Ours(case, folder)
    sides: dict[str, Ours | Theirs] = {"": ours, **peers}
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    for n in range(WARM + rounds):
        for side, each in sides.items():
            times = each.times()
            if n >= WARM:
                found[side].append(times)
    size = f"{' x '.join(map(str, case.shape))} cells, {case.steps} steps, {len(case.places()[1])} receivers"
    mine, rows = ours.results(), []
    half = difference(ours.gradient_in_half, ours.gradient)
    for peer, each in peers.items():
        theirs = each.results()
        (forward, gradient, in_half), (their_forward, their_gradient) = (np.array(found[side]).T for side in ("", peer))
        times = [forward, their_forward, gradient, in_half, their_gradient]
        ratios = [their_gradient / gradient, their_gradient / in_half]
        differences = [difference(mine[key], theirs[key]) for key in ("gather", "objective", "gradient")] + [half]
        alike = correlation(mine["gradient"], theirs["gradient"])
        program = f"{peer} {each.version}"
        rows.append((
            _line([name, size, program, *(f"{statistics.median(each):.2f}" for each in [*times, *ratios])]),
            _line([name, program, *(f"{value:.1e}" for value in differences), f"{alike:.6f}"]),
        ))  # fmt: skip
    return rows


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


TIMES = [
    "case", "size", "peer", "forward, s", "peer", "gradient, s", "half", "peer", "peer / ours", "peer / half"
]  # fmt: skip
RESULTS = ["case", "peer", "gathers", "objectives", "gradients", "gradient, half", "correlation of the gradients"]


def main(rounds: int, names: Sequence[str]) -> None:
    for name in names:
        if name not in CASES:
            sys.exit(f"'{name}' is no case; there are {', '.join(CASES)}")
    rows = list[tuple[str, str]]()
    print(f"{common.machine()}; {common.software()}; median of {rounds} rounds", flush=True)
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows += measure(name, rounds, Path(folder))
            except NotInstalled as error:
                print(f"{name} not measured: {error}", file=sys.stderr)
                continue
        print(rows[-1][0], file=sys.stderr, flush=True)
    for head, lines in zip((TIMES, RESULTS), zip(*rows, strict=True), strict=True):
        print("\n".join(["", _line(head), f"|{'---|' * len(head)}", *lines]))


if __name__ == "__main__":
    words = sys.argv[1:]
    main(int(words.pop(0)) if words and words[0].isdigit() else 5, words)
