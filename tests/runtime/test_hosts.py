"""The identity of processes on this host."""

import os
import subprocess
import sys

from hpcstencil.runtime.hosts import born, stat_fields

RENAMED = r"""
open("/proc/self/comm", "wb").write(b"\xff) Z 1")
print(flush=True)
input()
"""


def test_a_process_is_known_until_it_ends():
    """Its name may hold anything: brackets, and bytes of no encoding."""
    child = subprocess.Popen([sys.executable, "-c", RENAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        begun = born(child.pid)
        assert begun is not None and begun >= born(os.getpid()) and begun == born(child.pid)
        assert stat_fields(child.pid)[1] == str(os.getpid())
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert stat_fields(child.pid)[0] == "Z" and born(child.pid) is None
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert stat_fields(child.pid) == [] and born(child.pid) is None
