"""Streams: a further one is a class and a line in the list of a run."""

import json

import h5py
import jax
import numpy as np
import pytest
import support  # noqa: F401  (sets jax up)

from hpcstencil.checkpoint.paths import list_checkpoints
from hpcstencil.config.reader import from_mapping
from hpcstencil.problem.build import build
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.signals import Request
from hpcstencil.simulation import run
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.restart import Options
from hpcstencil.simulation.streams.stream import Stream
from hpcstencil.validation.errors import StoppedEarly

TABLES = {
    "grid": {"shape": [16]}, "equation": {"name": "heat", "D": 0.1}, "initial": {"u": "1 + x"},
    "boundary": {"x": {"dirichlet": 0.0}}, "numerics": {"kernel": "shift"}, "time": {"end": 2.5, "dt": 0.1},
    "output": {"every": 0.5}, "checkpoint": {"every_steps": 10},
}  # fmt: skip


class Probe(Stream):
    """The mean of u every 4 steps, in lines of a file beside the output, which are written when they are asked for."""

    every_steps = 4

    def __init__(self, output, schedule):
        self.simulation, self.path, self.lines = output.simulation, output.path.with_suffix(".mean"), []

    def write(self, state):
        self.lines.append([state.clock.step, float(self.simulation.block(state.fields["u"]).mean())])

    def flush(self):
        with self.path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in self.lines)
        self.lines = []


@pytest.fixture
def with_probe(monkeypatch):
    """The line in the list of a run."""
    monkeypatch.setattr(run, "WRITTEN", (*run.WRITTEN, Probe))


@pytest.fixture
def started(tmp_path):
    """Run the input in this process."""

    def started(name, request=None, **changes):
        decomposed = Decomposed.of(build(from_mapping({**TABLES, **changes}, tmp_path)), 1, 1)
        options = Options(tmp_path / name, quiet=True)
        run.run(decomposed, options, OneProcess(), jax.local_devices()[:1], request or Request())
        return tmp_path / name

    return started


def means(path):
    return [json.loads(line) for line in path.with_suffix(".mean").read_text().splitlines()]


def test_a_further_stream_gets_the_state_at_its_steps(with_probe, started):
    found = means(started("run.h5"))
    assert [step for step, _ in found] == list(range(0, 25, 4))
    every = started("every.h5", output={"every_steps": 4})
    with h5py.File(every) as file:
        expected = {int(step): u.mean() for step, u in zip(file["step"], file["u"], strict=True)}
    assert all(np.isclose(mean, expected[step], rtol=1e-6) for step, mean in found)


def test_a_further_stream_changes_no_other_file(started, monkeypatch):
    plain = started("plain.h5")
    monkeypatch.setattr(run, "WRITTEN", (*run.WRITTEN, Probe))
    probed = started("probed.h5")
    with h5py.File(plain) as one, h5py.File(probed) as other:
        for name in ("u", "time", "step"):
            assert one[name][()].tobytes() == other[name][()].tobytes()
    assert [path.name[5:] for path in list_checkpoints(plain)] == [path.name[6:] for path in list_checkpoints(probed)]


class StopAt(Probe):
    """Asks the run to stop, from step 8 on."""

    def __init__(self, output, schedule):
        super().__init__(output, schedule)
        self.request = None

    def write(self, state):
        super().write(state)
        if state.clock.step >= 8:
            StopAt.asked.number = 10  # SIGUSR1


def test_what_a_stream_holds_is_written_when_the_run_stops(started, monkeypatch, tmp_path):
    StopAt.asked = Request()
    monkeypatch.setattr(run, "WRITTEN", (*run.WRITTEN, StopAt))
    with pytest.raises(StoppedEarly, match="stopped by SIGUSR1 at step 8"):
        started("run.h5", StopAt.asked)
    assert [step for step, _ in means(tmp_path / "run.h5")] == [0, 4, 8]
    assert len(list_checkpoints(tmp_path / "run.h5")) == 1


def test_streams_act_in_their_order_at_a_step(started, monkeypatch):
    """Rows of diagnostics, snapshot, what is further, and then the checkpoint, for which all have flushed."""
    told = []
    streams_of = run.streams_of

    def noted(*arguments):
        streams = streams_of(*arguments)
        for stream in streams:
            for name in ("write", "flush"):
                monkeypatch.setattr(stream, name, noting(stream, name))
        return streams

    def noting(stream, name, step=None):
        act = getattr(stream, name)

        def acted(*state):
            told.append((type(stream).__name__, name, *(each.clock.step for each in state)))
            act(*state)

        return acted

    monkeypatch.setattr(run, "streams_of", noted)
    monkeypatch.setattr(run, "WRITTEN", (*run.WRITTEN, Probe))
    started("run.h5", checkpoint={"every_steps": 20}, time={"end": 2.0, "dt": 0.1})
    at_20 = told[told.index(("DiagnosticRows", "write", 20)) :]
    assert [name for name, act, *_ in at_20 if act == "write"] == [
        "DiagnosticRows",
        "Snapshots",
        "Probe",
        "Checkpoints",
    ]
    flushed = [name for name, act, *_ in at_20[at_20.index(("Checkpoints", "write", 20)) :] if act == "flush"]
    assert flushed[:3] == ["DiagnosticRows", "Snapshots", "Probe"]
