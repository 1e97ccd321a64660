"""Signals that come when all is done."""

import signal
import subprocess
import sys

import pytest

COMMAND = """
import atexit, os, sys
from hpcstencil.__main__ import start
atexit.register(os.kill, os.getpid(), {number})
sys.argv[1:] = ["equations"]
start()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_after_the_end_does_not_change_the_status(number):
    command = [sys.executable, "-c", COMMAND.format(number=int(number))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "") and "heat" in result.stdout
