"""`hpcstencil new`: every example can be written, and what is written is an input that fits."""

import pytest
from support import hpcstencil

from hpcstencil.cli.new import example_files

NAMES = [file.stem for file in example_files() if file.suffix == ".toml"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_written_with_the_files_that_it_needs(name, folder, monkeypatch, capsys):
    status, out, _ = hpcstencil(monkeypatch, capsys, "new", name)
    assert status == 0 and f"next   hpcstencil run {name}.toml" in out
    status, _, err = hpcstencil(monkeypatch, capsys, "check", f"{name}.toml")
    assert status == 0, err
    status, _, err = hpcstencil(monkeypatch, capsys, "new", name)
    assert status == 2 and "exists already" in err and "-o" in err


def test_it_may_have_another_name_and_place(folder, monkeypatch, capsys):
    (folder / "sub").mkdir()
    status, _, _ = hpcstencil(monkeypatch, capsys, "new", "brusselator.toml", "-o", "sub/mine.toml")
    assert status == 0 and sorted(path.name for path in (folder / "sub").iterdir()) == ["brusselator.py", "mine.toml"]
    status, _, err = hpcstencil(monkeypatch, capsys, "new", "heat", "-o", "nowhere/mine.toml")
    assert status == 4 and "nowhere/mine.toml: cannot be written" in err


def test_examples_are_listed_and_misspelt_names_are_corrected(folder, monkeypatch, capsys):
    status, out, _ = hpcstencil(monkeypatch, capsys, "new")
    assert status == 0 and [line.split()[0] for line in out.splitlines()] == NAMES
    status, _, err = hpcstencil(monkeypatch, capsys, "new", "haet")
    assert status == 2 and 'did you mean "heat"' in err and not list(folder.iterdir())
