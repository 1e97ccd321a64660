"""The parts of the wall time add up, and each has its name; on clocks that stand still where nothing is done."""

import jax
import pytest
import support  # noqa: F401  (sets jax up)

from hpcstencil.config.reader import from_mapping
from hpcstencil.io.async_writer import AsyncWriter
from hpcstencil.io.output_file import OutputFile
from hpcstencil.problem.build import build
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.signals import Request
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.simulation import run, simulation, start
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.finite_check import FiniteCheck
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.restart import Options
from hpcstencil.simulation.streams import checkpoints
from hpcstencil.simulation.summary import report


class Clock:
    """Stands still but for `cost`."""

    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time

    def cost(self, seconds, function):
        """The function, which takes these seconds more each time."""

        def slow(*arguments, **named):
            self.time += seconds
            return function(*arguments, **named)

        return slow


def test_an_activity_inside_another_takes_its_time_from_that():
    clock = Clock()
    watch = Stopwatch(began=90.0, now=clock)
    watch.lap("starting up")
    with watch.during("computing"):
        clock.time += 1.0
        with watch.during("checkpoints"):
            clock.time += 2.0
        clock.time += 4.0
    clock.time += 8.0
    watch.lap()
    told = {name: value for name, value in watch.seconds.items() if value}
    assert told == {"starting up": 10.0, "computing": 5.0, "checkpoints": 2.0, "other": 8.0}
    assert watch.wall == clock.time - 90.0


def test_every_second_of_a_run_has_its_name(tmp_path, monkeypatch):
    """Each thing that a run does takes a time of its own. Measurements for `cfl` are no diagnostics."""
    clock = Clock()
    tables = {
        "grid": {"shape": [16]}, "equation": {"name": "burgers", "nu": 0.1}, "initial": {"u": "sin(x)"},
        "numerics": {"kernel": "shift"}, "time": {"end": 2.0, "cfl": 0.4}, "output": {"every": 0.5},
        "checkpoint": {"every_steps": 2},
    }  # fmt: skip
    config = from_mapping(tables, tmp_path)
    problem = build(config)
    watch = Stopwatch
    monkeypatch.setattr(run, "Stopwatch", lambda began: watch(began, clock))
    for owner, name, seconds in (
        (start, "prepare", 1.0),
        (simulation.ComposedSimulation, "compile", 1.0),
        (simulation.ComposedSimulation, "initial_fields", 10.0),
        (FiniteCheck, "extremes", 100.0),
        (OutputFile, "write_snapshot", 1e4),
        (AsyncWriter, "wait", 1e5),
        (checkpoints, "write_checkpoint", 1e6),
        (Diagnostics, "take", 1e7),
        (jax, "block_until_ready", 1e9),
    ):
        monkeypatch.setattr(owner, name, clock.cost(seconds, getattr(owner, name)))
    options = Options(tmp_path / "run.h5", quiet=True, started=40.0)
    summary = run.run(Decomposed.of(problem, 1, 1), options, OneProcess(), jax.local_devices()[:1], Request())
    spent = summary.seconds
    assert sum(spent.values()) == clock.time - 40.0 and spent["other"] == 0
    assert spent["starting up"] == 60.0 and spent["setting up"] == 10.0 and spent["compiling"] % 1e9 == 2.0
    assert spent["checks"] + spent["step size"] > 200.0 and spent["step size"] >= 100.0 * summary.steps
    assert spent["output"] % 1e5 == 5e4 and spent["checkpoints"] == 1e6 * (summary.steps // 2)
    assert spent["waiting for the disk"] > 0 and spent["diagnostics"] % 1e9 == 5e7
    line = report(summary).splitlines()[1]
    assert (
        line.startswith("wall time    ") and "starting up 60.00 s, setting up 10.00 s" in line and "other" not in line
    )


def test_an_unknown_activity_is_refused():
    with pytest.raises(KeyError), Stopwatch().during("knitting"):
        pass
