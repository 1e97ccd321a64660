"""Text from outside reaches a terminal as text: nothing that a terminal would obey, nothing that cannot be printed."""

import json

import h5py
import pytest
from malformed import GOOD
from output_files import write_output
from support import hpcstencil

from hpcstencil.validation.printable import printable, printable_lines

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eabc\x9b31m\nsound          yes\udcff"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_terminal_would_obey_becomes_visible():
    assert printable(HOSTILE).isprintable() and "\\x1b[2J" in printable(HOSTILE) and "\\u202e" in printable(HOSTILE)
    assert printable("an ordinary, öffentlicher title \N{GREEK SMALL LETTER NU}") == "an ordinary, öffentlicher title ν"
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"


def test_commands_print_texts_of_files_and_arguments_as_texts(folder, monkeypatch, capsys):
    told = HOSTILE.replace("\udcff", "")
    with h5py.File(write_output(folder / "run.h5", (6, 4)), "r+") as file:
        file.attrs.update(title=told, input=f"[equation]\nname = {json.dumps(told)}\n", hpcstencil_version=told)
        file.attrs.update(decomposition=json.dumps({told: told}), complete=0, failure=told)
        file["v"].attrs.update(units=told, long_name=told)
    (folder / "input.toml").write_text(GOOD)
    commands = [
        (("info", "run.h5"), 0),
        (("plot", "run.h5", "-o", "a.png"), 0),
        (("plot", f"{HOSTILE}.h5"), 2),
        (("plot", "run.h5", "--field", HOSTILE), 2),
        (("check", f"{HOSTILE}.toml"), 2),
        (("run", "input.toml", "--restart", HOSTILE, "--overwrite", "--set", f"equation.name={HOSTILE}"), 2),
        (("sweep", "status", HOSTILE), 2),
    ]
    for command, expected in commands:
        status, out, err = hpcstencil(monkeypatch, capsys, *command)
        assert status == expected, err
        assert all(line.isprintable() for line in (out + err).split("\n")), (command, out, err)
        assert sum(line.startswith("sound") for line in out.split("\n")) == (command[0] == "info"), out
