"""Errors of files that h5py would only print, in several threads, and the type of a file system."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcstencil.runtime import filesystem
from hpcstencil.runtime.filesystem import file_errors, file_system
from hpcstencil.validation.errors import EnvironmentProblem


def ignore(error):
    """What h5py does with an error in a destructor."""
    sys.excepthook(type(error), error, None)


@pytest.fixture
def printed(monkeypatch):
    """The errors that reach the hook of the program."""
    found = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: found.append(error))
    return found


def test_contexts_of_threads_that_overlap_leave_the_hooks_as_they_were(printed):
    before = sys.excepthook, sys.unraisablehook
    inside, left = threading.Event(), threading.Event()

    def second():
        with file_errors(Path("b"), "write"):
            inside.set()
            left.wait(30)

    with ThreadPoolExecutor() as pool:
        with file_errors(Path("a"), "write"):
            thread = pool.submit(second)
            assert inside.wait(30)
        left.set()
        thread.result()
    assert (sys.excepthook, sys.unraisablehook) == before
    error = RuntimeError("not of a file")
    ignore(error)
    assert printed == [error]


def test_an_error_is_raised_in_its_own_thread(printed):
    lost, other = OSError(28, "No space left on device"), RuntimeError("of a thread that uses no file")

    def write():
        with file_errors(Path("b"), "write"):
            ignore(lost)

    with file_errors(Path("a"), "write"), ThreadPoolExecutor() as pool:
        with pytest.raises(EnvironmentProblem, match="cannot write b: No space left on device"):
            pool.submit(write).result()
        pool.submit(ignore, other).result()
    assert printed == [other]


def test_a_hook_that_is_installed_within_a_context_stays(printed):
    def hook(kind, error, trace):
        raise AssertionError

    with file_errors(Path("a"), "write"):
        sys.excepthook = hook
    assert sys.excepthook is hook


@pytest.mark.parametrize("folder", ["ü", "two words", "back\\slash", os.fsdecode(b"latin-\xfc")])
def test_a_mounted_folder_is_found_by_any_name(folder, tmp_path, monkeypatch):
    """The table of mounts has octal numbers for some bytes, and the others as they are."""
    mounted = tmp_path / folder
    written = os.fsencode(mounted).replace(b"\\", rb"\134").replace(b" ", rb"\040")
    table = tmp_path / "mountinfo"
    table.write_bytes(
        b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n36 22 0:45 / %b rw shared:9 - nfs4 server:/x rw\n"
        % written
    )
    monkeypatch.setattr(filesystem, "MOUNTS", table)
    assert file_system(mounted / "runs") == "nfs4" and file_system(tmp_path) == "ext4"
