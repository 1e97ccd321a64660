"""Hostile HDF5 files against every command that reads one: a sentence and its status, never a traceback, nothing followed.

The tables are in `hostile_files.py`. Commands run in this process; a traceback there is an exception that no command catches.
"""

import shutil

import h5py
import numpy as np
import pytest
from hostile_files import CHECKPOINTS, DATASETS, OTHER, OUTPUTS
from malformed import GOOD
from support import hpcstencil

from hpcstencil.checkpoint.seal import Array, read_seal, seal
from hpcstencil.numerics.checksum import checksum

pytestmark = pytest.mark.filterwarnings("error")
INPUT = (
    GOOD
    + '[numerics]\nkernel = "shift"\n[output]\nevery = 0.5\n'
    + '[diagnostics]\nmass = "integral(u)"\n[checkpoint]\nevery_steps = 5\n'
    + '[probes.p]\nfield = "u"\nx = [1.0, 3.0]\ny = [2.0, 2.5]\n'
)
CHECKPOINT = "input.checkpoint.000000000005.h5"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run that was stopped at half its way, and a file of ordinary numbers."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
        (folder / "input.toml").write_text(INPUT)
        capture = type("Capture", (), {"readouterr": lambda self: type("Texts", (), {"out": "", "err": ""})})()
        assert hpcstencil(patch, capture, "run", "input.toml", "--quiet")[0] == 0
    with h5py.File(folder / "input.h5", "r+") as file:
        file.attrs["complete"] = 0
    for path in folder.glob("*.checkpoint.*"):
        if path.name != CHECKPOINT:
            path.unlink()
    for name, shape in ((OTHER, (8, 6)), ("start.h5", (8, 6))):
        with h5py.File(folder / name, "w") as file:
            file["u"] = np.ones(shape, "f4")
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    for path in made.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))
    monkeypatch.setattr("postprocess.plot.DPI", 40)  # pictures that nobody looks at
    return tmp_path


def refused(answer, words, statuses=(2, 4)):
    status, out, err = answer
    assert status in statuses and out == "", (status, out[:500], err[:500])
    assert len(err.splitlines()) == 1 and len(err) < 800 and err.startswith("hpcstencil: "), err[:800]
    assert words in err, err


def sealed_again(path, change):
    """Change a checkpoint as somebody would who knows how it is sealed."""
    names = list(read_seal(path))
    with h5py.File(path, "r+") as file:
        change(file)
    arrays = {}
    with h5py.File(path) as file:
        for name in names:
            item = file.get(name) if not isinstance(file.get(name, getlink=True), h5py.ExternalLink) else None
            contiguous = isinstance(item, h5py.Dataset) and item.chunks is None and item.id.get_offset()
            if contiguous and item.dtype.kind == "f":
                arrays[name] = Array(
                    item.id.get_offset(), item.id.get_storage_size(), checksum(item[()], [0] * item.ndim)
                )
            else:
                arrays[name] = Array(0, 0, 0)
    seal(path, arrays)


@pytest.mark.parametrize("row", OUTPUTS.values(), ids=OUTPUTS)
def test_hostile_outputs(folder, monkeypatch, capsys, row):
    change, words = row
    with h5py.File(folder / "input.h5", "r+") as file:
        change(file)
    status, out, err = hpcstencil(monkeypatch, capsys, "info", "input.h5")
    if words is None:
        assert status == 0, err
        assert all(line.isprintable() for line in out.splitlines())
    else:
        refused((status, out, err), words)
    for command in (("plot", "input.h5"), ("plot", "input.h5", "--diagnostics"), ("plot", "input.h5", "--time", "0.5")):
        status, out, err = hpcstencil(monkeypatch, capsys, *command)
        assert status in (0, 2), err
        if words is not None:
            refused((status, out, err), words)
    before = (folder / "input.h5").read_bytes()
    status, out, err = hpcstencil(monkeypatch, capsys, "run", "input.toml", "--resume", "--quiet")
    if status != 0:
        refused((status, out, err), "")
        assert (folder / "input.h5").read_bytes() == before


def damaged(path, name):
    """Change the first byte of the header of an object in a file."""
    with h5py.File(path) as file:
        address = h5py.h5o.get_info(file[name].id).addr
    content = bytearray(path.read_bytes())
    content[address] ^= 0xFF
    path.write_bytes(content)


def test_a_heap_of_texts_without_end(folder, monkeypatch, capsys):
    """HDF5 would read an entry of size 0 again and again."""
    path = folder / "input.h5"
    whole = path.read_bytes()
    heap = whole.index(b"GCOL\x01")
    second = heap + 32 + -(-int.from_bytes(whole[heap + 24 : heap + 32], "little") // 8) * 8
    path.write_bytes(whole[:second] + bytes(16) + whole[second + 16 :])
    for command in (("info", "input.h5"), ("plot", "input.h5"), ("run", "input.toml", "--resume", "--quiet")):
        refused(hpcstencil(monkeypatch, capsys, *command), "its heap of texts is damaged", statuses=(2, 4))


def test_a_damaged_object(folder, monkeypatch, capsys):
    for name in ("input.h5", "start.h5"):
        damaged(folder / name, "u")
    commands = {"input.h5": ("--resume",), "start.h5": ("--overwrite", "--set", 'initial={file="start.h5"}')}
    for name, options in commands.items():
        answer = hpcstencil(monkeypatch, capsys, "run", "input.toml", "--quiet", *options)
        refused(answer, f"cannot read {folder / name}: ")
        assert "the file is damaged or not readable" in answer[2]


@pytest.mark.parametrize("row", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_hostile_checkpoints(folder, monkeypatch, capsys, row):
    change, words = row
    sealed_again(folder / CHECKPOINT, change)
    command = ("run", "input.toml", "--restart", CHECKPOINT, "--output", "new.h5", "--quiet")
    refused(hpcstencil(monkeypatch, capsys, *command), words)
    assert not (folder / "new.h5").exists()
    assert hpcstencil(monkeypatch, capsys, "info", CHECKPOINT)[0] in (0, 2)
    assert hpcstencil(monkeypatch, capsys, "plot", CHECKPOINT)[0] in (0, 2)


@pytest.mark.parametrize("row", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize(
    "key, setting", [("initial.file", "initial={file='start.h5'}"), ("mask.solid", "mask.solid='start.h5:u'")]
)
def test_hostile_initial_states_and_masks(folder, monkeypatch, capsys, key, setting, row):
    make, words = row
    with h5py.File(folder / "start.h5", "r+") as file:
        del file["u"]
        make(file, "u")
    command = ("run", "input.toml", "--set", setting, "--output", "new.h5", "--quiet")
    answer = hpcstencil(monkeypatch, capsys, *command)
    refused(answer, words)
    assert answer[0] == 4 or answer[2].startswith(f"hpcstencil: {key}: "), answer[2]
    assert not (folder / "new.h5").exists()
