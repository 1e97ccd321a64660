"""Errors of files that h5py would only print, in several threads."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcstencil.runtime.filesystem import file_errors
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
