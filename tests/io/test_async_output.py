"""Snapshots written behind the computation: the file holds the state as it was, and a failure is told."""

from threading import Event, get_ident

import h5py
import numpy as np
import pytest

from hpcstencil.io.direct_write import Pieces, cuts
from hpcstencil.io.file_layout import Description
from hpcstencil.io.output_file import OutputFile
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.numerics.grid import Grid
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.symbolic.staggering import Layout
from hpcstencil.validation.errors import EnvironmentProblem

WITHIN = 60  # seconds


class Gate:
    """A transport that writes snapshots when it is told to, and notes what it has written and in which thread."""

    def __init__(self, transport, error=None):
        self.transport, self.error = transport, error
        self.go, self.begun, self.written = Event(), Event(), []

    def apply(self, action):
        self.transport.apply(action)

    def write(self, name, start, block):
        self.transport.write(name, start, block)
        if name == "diagnostics/step":
            self.written.append(("rows", block.tolist()))

    def independent_write(self, start, blocks):
        write = self.transport.independent_write(start, blocks)

        def when_told():
            self.begun.set()
            assert self.go.wait(WITHIN)
            if self.error:
                raise self.error
            write()
            self.written.append((start[0], get_ident()))

        return when_told

    def close(self):
        self.transport.close()


@pytest.fixture
def opened(tmp_path):
    """A file of three cells behind a gate, and its path."""

    def open_file(error=None):
        grid, path = Grid((3,), (0.0,), (1.0,)), tmp_path / "run.h5"
        buffers = Copies({"u": Pieces(float, (1, 3), cuts((0, 0), (1, 3), (1, 2), (1, 3)))})
        file = OutputFile.create(path, OneProcess(), Description(Layout(grid), ["u"], float), buffers=buffers)
        file.shared = file.series.file = gate = Gate(file.shared, error)
        return file, gate, path

    return open_file


def view_of(array):
    view = array[:]
    view.flags.writeable = False
    return view


def written_behind(file, gate, u, step=0):
    """A snapshot of ``u`` is being written."""
    file.write_snapshot(step, 0.1 * step, {"u": view_of(u)}, [(0, 3)], behind=True)
    assert gate.begun.wait(WITHIN)


def test_what_is_written_is_the_state_as_it_was(opened):
    (file, gate, path), u = opened(), np.arange(3.0)
    written_behind(file, gate, u)
    u += 10  # the next steps
    gate.go.set()
    written_behind(file, gate, u, 1)
    u += 10
    file.close(True)
    assert [number for number, _ in gate.written] == [0, 1]
    assert get_ident() not in [thread for _, thread in gate.written]
    with h5py.File(path) as h5:
        assert h5["u"][()].tolist() == [[0, 1, 2], [10, 11, 12]] and h5["step"][()].tolist() == [0, 1]


def test_everything_is_written_in_order(opened):
    file, gate, path = opened()
    written_behind(file, gate, np.zeros(3))
    gate.go.set()
    file.write_rows({"diagnostics": ([7], [0.7], {})})
    file.write_snapshot(9, 0.9, {"u": np.zeros(3)}, [(0, 3)], {"diagnostics": ([8], [0.8], {})})
    assert [entry[0] for entry in gate.written] == [0, "rows", 1, "rows"]  # `step` declares the rows, after the values
    assert gate.written[2][1] == get_ident()  # after the last one there is nothing to do meanwhile
    file.close(True)
    with h5py.File(path) as h5:
        assert h5["diagnostics/step"][()].tolist() == [7, 8] and h5["step"][()].tolist() == [0, 9]


def test_without_buffers_a_snapshot_is_written_at_once(opened):
    file, gate, _ = opened()
    file.buffers = None
    gate.go.set()
    written_behind(file, gate, np.zeros(3))
    assert gate.written == [(0, get_ident())]


@pytest.mark.parametrize("then", ["poll", "wait", "write_rows", "write_snapshot", "close"])
def test_a_failure_is_told_once(then, opened):
    file, gate, _ = opened(EnvironmentProblem("No space left"))
    written_behind(file, gate, np.zeros(3))
    file.poll()  # nothing has failed yet
    gate.go.set()
    if then == "poll":
        file.thread.thread.shutdown()
    calls = {
        "write_rows": lambda: file.write_rows({"diagnostics": ([1], [1.0], {})}),
        "write_snapshot": lambda: file.write_snapshot(1, 1.0, {}, [], behind=True),
        "close": lambda: file.close(True),
    }
    with pytest.raises(EnvironmentProblem, match="No space left"):
        calls.get(then, getattr(file, then))()
    assert gate.written == []
    file.poll()
