"""Output transports: listed once, chosen by name, and added from outside."""

import fcntl
import pkgutil

import h5py
import numpy as np
import pytest

from hpcstencil.config.reader import from_mapping
from hpcstencil.io.file_layout import Description
from hpcstencil.io.hdf5_access import open_alone, write_hyperslab
from hpcstencil.io.output_file import OutputFile
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.io.transports import registry
from hpcstencil.io.transports.choice import chosen_transport, open_transport
from hpcstencil.numerics.grid import Grid
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.symbolic.staggering import Layout
from hpcstencil.validation.errors import InputError


class Two(OneProcess):
    """The first of two processes; the other one has nothing to write and agrees with everything."""

    size = 2


class Locked:
    """A transport for the tests: a process writes its block while it holds a lock on a file beside the output."""

    def __init__(self, path, communicator, placing):
        self.path, self.rank = path, communicator.rank

    def _file(self):
        self.lock = self.path.with_suffix(".turn").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        return open_alone(self.path, "r+")

    def apply(self, action):
        if self.rank == 0:
            with self._file() as file:
                action(file)

    def write(self, name, start, block):
        with self._file() as file:
            write_hyperslab(file[name], start, block)

    def independent_write(self, start, blocks):
        return None

    def close(self):
        self.lock.close()


@pytest.fixture
def locked(monkeypatch):
    """The line of the registry."""
    monkeypatch.setitem(registry.TRANSPORTS, "locked", registry.Entry(f"{__name__}:Locked"))


def test_a_further_transport_is_a_class_and_a_line(tmp_path, locked):
    grid, path = Grid((7, 5), (0.0, 0.0), (1.0, 1.0)), tmp_path / "run.h5"
    u = np.arange(35, dtype=np.float32).reshape(7, 5)
    description = Description(Layout(grid), ["u"], np.float32, diagnostics=["m"])
    output = OutputFile.create(path, Two(), description, method="locked", buffers=Copies({}))
    assert isinstance(output.shared, Locked) and output.buffers is None  # nothing is written behind
    for index in range(3):
        output.write_rows({"diagnostics": ([index], [0.5 * index], {"m": [index]})})
        output.write_snapshot(index, 0.5 * index, {"u": u + index}, [(0, 7), (0, 5)])
    output.close(True)
    with h5py.File(path) as file:
        assert file.attrs["complete"] == 1 and file["diagnostics/m"][()].tolist() == [0, 1, 2]
        assert all(np.array_equal(file["u"][index], u + index) for index in range(3))
    assert (tmp_path / "run.turn").exists()


@pytest.mark.parametrize("name", registry.TRANSPORTS)
def test_every_transport_is_there_and_the_input_takes_its_name(name, tmp_path):
    driver = registry.entry(name).driver
    assert driver.startswith(f"hpcstencil.io.transports.{name}:") and callable(pkgutil.resolve_name(driver))
    tables = {
        "grid": {"shape": [8]},
        "equation": {"name": "heat"},
        "initial": {"u": "1"},
        "time": {"end": 1.0, "dt": 0.1},
    }
    assert from_mapping({**tables, "output": {"method": name}}, tmp_path).output.method == name


def test_an_unknown_transport_is_an_error(tmp_path):
    for choose in (
        lambda: chosen_transport("mpi", Two(), tmp_path / "run.h5"),
        lambda: open_transport(tmp_path / "run.h5", OneProcess(), "mpi"),
        lambda: registry.may_write_behind("mpi"),
    ):
        with pytest.raises(InputError, match='output.method: unknown transport "mpi"; did you mean "mpio"'):
            choose()
