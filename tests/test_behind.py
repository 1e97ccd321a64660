"""Snapshots written behind the computation: what is written is the state as it was, and a failure is told."""

from threading import Event, get_ident

import numpy as np
import pytest

from hpcstencil.io.async_writer import Writer
from hpcstencil.io.direct_write import Pieces, cuts
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.validation.errors import EnvironmentProblem

NO_ROWS = ((), (), {})
WITHIN = 60  # seconds


class File:
    """An output file that writes when it is told to."""

    can_write_behind = True

    def __init__(self, error=None):
        self.go, self.begun, self.written, self.error = Event(), Event(), [], error

    def write_diagnostics(self, steps, times, values):
        if len(steps):
            self.written.append(("rows", steps))

    def write_snapshot(self, step, time, blocks, ranges):
        self.begun.set()
        assert self.go.wait(WITHIN)
        if self.error:
            raise self.error
        kept = {name: block.joined() if isinstance(block, Pieces) else block for name, block in blocks.items()}
        self.written.append((step, {name: block.copy() for name, block in kept.items()}, get_ident()))

    def begin_snapshot(self, step, time, blocks, ranges, rows):
        self.write_diagnostics(*rows)
        return lambda: self.write_snapshot(step, time, blocks, ranges), lambda: None

    def close(self, complete, failure=""):
        self.written.append(("closed", complete))


def view_of(array):
    view = array[:]
    view.flags.writeable = False
    return view


def written_behind(file, u, step=0, writer=None):
    """A snapshot of ``u`` is being written."""
    copies = Copies({"u": Pieces(u.dtype, u.shape, cuts((0,), u.shape, (2,), u.shape))})
    writer = writer or Writer(file, True, OneProcess(), copies)
    writer.write_snapshot(step, 0.0, {"u": view_of(u)}, [(0, 3)], NO_ROWS, last=False)
    assert file.begun.wait(WITHIN)
    return writer


def test_what_is_written_is_the_state_as_it_was():
    file, u = File(), np.arange(3.0)
    writer = written_behind(file, u)
    u += 10  # the next steps
    file.go.set()
    written_behind(file, u, 1, writer)
    u += 10
    writer.close(True)
    steps = [entry[0] for entry in file.written]
    assert steps == [0, 1, "closed"]
    assert np.array_equal(file.written[0][1]["u"], [0, 1, 2]) and np.array_equal(file.written[1][1]["u"], [10, 11, 12])
    assert get_ident() not in (file.written[0][2], file.written[1][2])


def test_everything_is_written_in_order():
    file = File()
    writer = written_behind(file, np.zeros(3))
    file.go.set()
    writer.write_rows(([7], [0.7], {}))
    writer.write_snapshot(9, 0.9, {"u": np.zeros(3)}, [(0, 3)], ([8], [0.8], {}), last=True)
    assert [entry[0] for entry in file.written] == [0, "rows", "rows", 9]
    assert file.written[3][2] == get_ident()  # after the last one there is nothing to do meanwhile


@pytest.mark.parametrize("then", ["look", "wait", "write_rows", "write_snapshot", "close"])
def test_a_failure_is_told_once(then):
    file = File(EnvironmentProblem("No space left"))
    writer = written_behind(file, np.zeros(3))
    writer.look()  # nothing has failed yet
    file.go.set()
    if then == "look":
        writer.thread.shutdown()
    calls = {
        "write_rows": lambda: writer.write_rows(([1], [1.0], {})),
        "write_snapshot": lambda: writer.write_snapshot(1, 1.0, {}, [], NO_ROWS, last=False),
        "close": lambda: writer.close(True),
    }
    with pytest.raises(EnvironmentProblem, match="No space left"):
        calls.get(then, getattr(writer, then))()
    assert file.written == []
    writer.look()
