"""Bad input: one sentence that names the key, what was expected, what came and what to do; the status; nothing written.

The tables are in `malformed.py`. What they hold runs in this process, some of it as a user would start it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from malformed import CUSTOM, CUSTOM_INPUTS, FILES, FILES_THAT_WORK, FOLDER, GOOD, INPUTS, LINES, PROCESSES
from support import hpcstencil

from hpcstencil.config.names import RESERVED
from hpcstencil.config.settings import TABLES, TOP
from hpcstencil.validation.schema import keys_of
from hpcstencil.validation.toml_text import LONG_KEY

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("error")  # of Python and numpy: they would stand on standard error too


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listing(folder):
    """Every file in a folder, with what it holds."""
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def is_one_sentence(err, words):
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("hpcstencil: ") and len(lines[0]) < 500, err
    for word in words:
        assert word in lines[0], err


def short(value):
    return ascii(value)[:70]


@pytest.mark.parametrize("base, row", [*((GOOD, r) for r in INPUTS), *((CUSTOM, r) for r in CUSTOM_INPUTS)], ids=short)
def test_malformed_inputs(folder, monkeypatch, capsys, base, row):
    given, *words = row
    path = folder / "input.toml"
    path.write_text(base)
    before = listing(folder)
    settings = [part for text in ([given] if isinstance(given, str) else given) for part in ("--set", text)]
    for command in ("check", "run"):
        status, out, err = hpcstencil(monkeypatch, capsys, command, "input.toml", *settings)
        assert (status, out) == (2, ""), err
        is_one_sentence(err, words)
        assert words[0].startswith(("--set", "expected", "at most")) or err.startswith(f"hpcstencil: {words[0]}"), err
        assert listing(folder) == before


@pytest.mark.parametrize("row", FILES, ids=lambda row: short(row[0][-40:]))
def test_malformed_files(folder, monkeypatch, capsys, row):
    content, *words = row
    (folder / "input.toml").write_bytes(content)
    before = listing(folder)
    for command in ("check", "run", "bench"):
        status, out, err = hpcstencil(monkeypatch, capsys, command, "input.toml")
        assert (status, out) == (2, ""), err
        is_one_sentence(err, words)
        assert listing(folder) == before


@pytest.mark.parametrize("content", FILES_THAT_WORK, ids=lambda content: short(content[:20]))
def test_files_that_work(folder, monkeypatch, capsys, content):
    (folder / "input.toml").write_bytes(content)
    status, out, err = hpcstencil(monkeypatch, capsys, "check", "input.toml")
    assert status == 0 and "predicted time" in out and err == ""


def filled(folder):
    for name, content in FOLDER.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe")
    return listing(folder)


@pytest.mark.parametrize("row", LINES, ids=lambda row: short(row[0]))
def test_malformed_command_lines(folder, monkeypatch, capsys, row):
    line, expected, *words = row
    before = filled(folder)
    status, out, err = hpcstencil(monkeypatch, capsys, *line.split())
    assert (status, out) == (expected, ""), err
    if line:  # no command at all is answered with the help
        is_one_sentence(err, words)
    assert listing(folder) == before


@pytest.mark.e2e
@pytest.mark.parametrize("row", PROCESSES, ids=lambda row: short(row[0]))
def test_malformed_command_lines_as_processes(folder, row):
    line, expected, *words = row
    before = filled(folder)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-m", "hpcstencil", *line.split()],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (expected, ""), ended.stderr
    is_one_sentence(ended.stderr, words)
    assert listing(folder) == before


# ---- the tables leave nothing out ------------------------------------------------------------------------------------


def keys_refused():
    """The key with which each row's sentence begins."""
    return {row[1].split(":")[0] for row in (*INPUTS, *CUSTOM_INPUTS)}


def test_every_key_has_a_row():
    rows = keys_refused()
    missing = [f"{table}.{key}" for table in TABLES for key in keys_of(TABLES[table]) if f"{table}.{key}" not in rows]
    assert missing in ([], ["checkpoint.walltime"])  # any text is taken for a walltime
    assert set(TOP) <= rows


def test_every_table_has_an_unknown_key():
    unknown = {row[1].split(".")[0] for row in INPUTS if ": unknown" in row[1] and "." in row[1].split(":")[0]}
    assert set(TABLES) <= unknown


def test_the_table_is_large():
    assert len(INPUTS) + len(CUSTOM_INPUTS) + len(FILES) + len(LINES) + len(PROCESSES) >= 120


@pytest.mark.parametrize("name", sorted(RESERVED - {"name", "rhs", "seed", "every_steps"}))
def test_reserved_words_name_nothing(folder, monkeypatch, capsys, name):
    (folder / "input.toml").write_text(CUSTOM)
    for key, value in ((f"equation.rhs.{name}", "1"), (f"equation.{name}", "1"), (f"diagnostics.{name}", "mean(u)")):
        status, _, err = hpcstencil(monkeypatch, capsys, "check", "input.toml", "--set", f"{key}={value}")
        assert status == 2 and err.startswith(f"hpcstencil: {key}: "), err
        is_one_sentence(err, [])


def test_a_mistyped_command_is_answered_with_the_nearest(monkeypatch, capsys):
    status, _, err = hpcstencil(monkeypatch, capsys, "rnu", "input.toml")
    assert status == 2 and "No such command 'rnu'. Did you mean 'run'?" in err
    status, _, err = hpcstencil(monkeypatch, capsys, "xyz")
    assert status == 2 and err.strip().endswith("No such command 'xyz'.")


# ---- extremes that are no mistakes -----------------------------------------------------------------------------------

EXTREMES = {
    "grid.shape=[1,1]": ("memory per process    72 B of field arrays", ""),
    "grid.shape=[1,1,1]": ("largest block 1 x 1 x 1 cells", ""),
    "grid.shape=[1000000000,1000000000]": (
        "memory per process    8e+06 TB of field arrays, beside the program's own 0.3 GB; this machine has ",
        "",
    ),
    "time.dt=1e-15": ("steps                 1000000000000000", ""),
    "equation.D=-1": ("time step", "equation.D = -1 is negative, and so is a diffusion coefficient that depends on it"),
    "time.dt=5": ("steps                 1", "beyond the stable step"),
    "time.cfl=2": ("(cfl = 2)", "time.cfl = 2 is more than the whole stable step"),
    "time.cfl=1e300": ("steps                 about 1", "time.cfl = 1e+300"),
    "output.every=0.01": ("every = 0.01", ""),
    "output.every=1e300": ("every = 1e+300", ""),
    "time.dt=0.01": ("time step             0.01, fixed: ", ""),
    "equation.D=1/x": ('D = "1/x"', ""),
    "equation.D=" + "+".join(["x"] * 2000): ("predicted time", "beyond the stable step"),
    "checkpoint.every_minutes=1e300": ("every_minutes = 1e+300", ""),
    "checkpoint.every_steps=9223372036854775807": ("every_steps = 9223372036854775807", ""),
    "decomposition.processes=[2, 2]": ("processes             2 x 2", "blocks are thin"),  # as for a launch of so many
}


@pytest.mark.parametrize("setting", EXTREMES, ids=lambda setting: setting[:40])
def test_extremes_are_weighed(folder, monkeypatch, capsys, setting):
    (folder / "input.toml").write_text(GOOD)
    status, out, err = hpcstencil(monkeypatch, capsys, "check", "input.toml", "--set", setting)
    expected, warning = EXTREMES[setting]
    assert status == 0 and expected in out and (warning in err if warning else err == ""), (out, err)
    assert listing(folder).keys() == {folder / "input.toml"}


def test_a_step_beyond_stability_warns_with_the_limit(folder, monkeypatch, capsys):
    (folder / "input.toml").write_text(GOOD)
    line = ("check", "input.toml", "--set", "numerics.integrator=euler", "--set", "time.dt=3.0")
    status, _, err = hpcstencil(monkeypatch, capsys, *line)
    # Forward Euler: dt <= dx² / (2 ndim D) = 1 / (4 * 0.1)
    assert status == 0 and "warning: time.dt = 3 is beyond the stable step of euler" in err and " 2.5:" in err


def test_words_and_lines_of_any_length_are_read_in_one_pass():
    """A search that began anew within a word would take time with the square of its length: minutes for these."""
    for text in ("w" * 2**19, "-" * 2**19, '"' + "w" * 2**19, "1_" * 2**18, "a." * 99 + "w" * 2**19):
        assert LONG_KEY.search(text) is None
    assert LONG_KEY.search("a.\"b\" . 'c'." * 40 + "d")
    assert LONG_KEY.search("x = 1\n" + "a." * 100 + "b = 1")
