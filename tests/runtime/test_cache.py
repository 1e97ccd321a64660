"""The cache folder: what others could have put there is neither executed nor believed, and nothing is written through links."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import problem_of

from hpcstencil.backends.native import compiler
from hpcstencil.runtime import cache_folder
from hpcstencil.simulation import dry_run, measurement_cache
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.step_speed import remember_speed_of, step_speed
from hpcstencil.simulation.summary import Summary

ANOTHER = 65534
PROGRAM = 'extern "C" int answer() { return 42; }'
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="not run: only root can give files to another user")


@pytest.fixture
def base(monkeypatch, tmp_path):
    folder = tmp_path / "above" / "base"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """A library that does something else, in a folder of the name under which the right one would be kept."""
    place = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place))
        assert compiler.library(PROGRAM).answer() == 42
    (kept,) = (place / "hpcstencil" / "native").iterdir()
    made = compiler._compile(PROGRAM.replace("42", "666"), place / compiler.LIBRARY, [])
    (kept / compiler.CHECKSUM).write_text(hashlib.sha256(made.read_bytes()).hexdigest())
    made.replace(kept / compiler.LIBRARY)  # the loaded one must stay what it is until this process ends
    return kept


def planted(base, wrong):
    """The wrong library, with its checksum, where the right one would be looked for."""
    for place in (base.parent, base, base / "hpcstencil", base / "hpcstencil" / "native"):
        place.mkdir(0o700)
    return Path(shutil.copytree(wrong, base / "hpcstencil" / "native" / wrong.name))


def given_away(*paths):
    for path in paths:
        os.chown(path, ANOTHER, ANOTHER)


CHANGES = {
    "the base is another user's": (lambda base, kept: given_away(base), "belongs to another user"),
    "a folder above is another user's": (lambda base, kept: given_away(base.parent), "belongs to another user"),
    "others can write the base": (lambda base, kept: base.chmod(0o777), "can be written by others"),
    "a group can write above": (lambda base, kept: base.parent.chmod(0o775), "can be written by others"),
    "others can write the folder": (lambda base, kept: (base / "hpcstencil").chmod(0o1777), "can be written by others"),
    "the kept folder is another user's": (lambda base, kept: given_away(kept), ""),
    "the library is another user's": (lambda base, kept: given_away(kept / compiler.LIBRARY), ""),
    "others can write the library": (lambda base, kept: (kept / compiler.LIBRARY).chmod(0o666), ""),
}


@pytest.mark.parametrize("damage", [b"", b"\x9c\xff", b"0" * 64])
def test_a_damaged_checksum_counts_as_no_program(base, wrong, damage):
    (planted(base, wrong) / compiler.CHECKSUM).write_bytes(damage)
    assert compiler.library(PROGRAM).answer() == 42


@pytest.mark.parametrize(
    "change, word",
    [pytest.param(*case, id=name, marks=as_root if "another" in name else ()) for name, case in CHANGES.items()],
)
def test_a_planted_program_is_not_executed(base, wrong, capsys, change, word):
    kept = planted(base, wrong)
    change(base, kept)
    assert compiler.library(PROGRAM).answer() == 42
    assert word in capsys.readouterr().err


def test_what_the_user_alone_can_write_is_used_again(base, wrong):
    planted(base, wrong)  # by the user: what the other tests would execute, were it not for their change
    assert compiler.library(PROGRAM).answer() == 666


def test_folders_are_private(base):
    assert compiler.library(PROGRAM).answer() == 42
    places = [base, *base.rglob("*")]
    assert len(places) == 6 and not any(path.stat().st_mode & 0o077 for path in places)


@as_root
def test_a_link_of_another_user_leads_nowhere(base, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    os.chown(link, ANOTHER, ANOTHER, follow_symlinks=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(link / "base"))
    assert cache_folder.folder() is None


def test_a_lock_that_is_a_link_empties_nothing(base, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    kept = base / "kept"
    base.mkdir(parents=True)
    (base / ".kept.lock").symlink_to(victim)
    with compiler._locked(kept):
        assert victim.read_text() == "precious"
    assert victim.read_text() == "precious"


def test_measurements_are_kept_and_those_of_others_are_not_believed(base):
    measurement_cache.remember("speed", 1.0)
    measurement_cache.remember("other", 2.0)
    assert measurement_cache.recall("speed") == 1.0 and measurement_cache.recall("other") == 2.0
    measurement_cache.store().chmod(0o666)
    assert measurement_cache.recall("speed") is None
    assert [path.name for path in measurement_cache.store().parent.iterdir()] == [measurement_cache.store().name]


def test_check_predicts_the_time_from_a_run_that_was_long_enough(base):
    problem = problem_of(grid={"shape": [50, 40]}, equation={"name": "heat"})
    summary = Summary(Path("run.h5"), steps=1000, seconds={"computing": 0.9}, cells=2000)
    one, two = (Decomposed.of(problem, processes, 1).topology for processes in (1, 2))
    remember_speed_of(summary, problem, "native", two)
    assert step_speed(problem, "native", two) is None
    remember_speed_of(replace(summary, seconds={"computing": 1.6}), problem, "native", two)
    assert step_speed(problem, "native", two) == 1.25e6
    assert step_speed(problem, "native", one) is None and step_speed(problem, "shift", two) is None
    assert dry_run._predicted(problem, "native", two) == "1.6 s of computing, at 1.25 Mcell/s measured here"


def test_without_a_home_there_is_no_cache_and_no_failure(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user that the system does not know
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder.folder() is None and measurement_cache.recall("speed") is None
    assert compiler.library(PROGRAM).answer() == 42


QUICKSTART = Path(__file__).parents[2] / "quickstart.sh"


def wheel_folder(folder):
    """Where quickstart.sh in ``folder`` keeps the wheels that it installs, relative to it if in .venv."""
    text = QUICKSTART.read_text()
    functions = [
        re.search(rf"^{name}\(\) {{.*?}}$", text, re.DOTALL | re.MULTILINE)[0] for name in ("sha", "wheel_folder")
    ]
    stubs = f'machine=1 PYTHONPATH=; version_of() {{ echo 1; }}; venv_python() {{ {sys.executable} "$@"; }}'
    (folder / "hpcstencil").symlink_to(QUICKSTART.parent / "hpcstencil")
    done = subprocess.run(
        ["bash", "-euc", "\n".join([stubs, *functions, "wheel_folder"])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("unsafe, mode", [("", 0), ("base", 0o775), ("above", 0o777)])
def test_quickstart_installs_from_a_private_folder_alone(base, tmp_path, unsafe, mode):
    base.mkdir(parents=True, mode=0o700)
    if unsafe:
        {"base": base, "above": base.parent}[unsafe].chmod(mode)
    found = wheel_folder(tmp_path)
    if unsafe:
        assert found == ".venv/wheels" and not any(base.iterdir())
    else:
        assert Path(found).parent == base / "hpcstencil" / "wheels" and Path(found).stat().st_mode & 0o777 == 0o700
