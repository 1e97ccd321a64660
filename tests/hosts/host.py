"""One host of a pretended network: the process that keeps its namespaces, and ends all that runs in them.

Started as `unshare --net --uts --ipc --mount python host.py NAME TABLE`, it gives the host its name, a `/dev/shm` of its
own (Open MPI's shared memory and session folders go there) and the table as `/etc/hosts`, says `ready`, and waits until its
standard input ends. That also happens when whoever started it is killed. Then every process of the host is killed, and
with the last of them the kernel removes the namespaces and the network devices in them: nothing can be left over.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path


def processes_of(keeper: int) -> dict[int, str]:
    """The processes of the host that ``keeper`` keeps, itself left out: command lines by process id."""
    namespace = os.readlink(f"/proc/{keeper}/ns/net")
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == keeper:
            continue
        try:
            if os.readlink(entry / "ns" / "net") == namespace:
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:
            continue  # it has ended meanwhile
    return found


def become(name: str, table: str) -> None:
    """Give the namespaces of this process what makes them a host."""
    socket.sethostname(name)
    subprocess.run(["mount", "-t", "tmpfs", "shm", "/dev/shm"], check=True)
    Path("/dev/shm/hosts").write_text(table)
    subprocess.run(["mount", "--bind", "/dev/shm/hosts", "/etc/hosts"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def main(name: str, table: str) -> None:
    become(name, table)
    print("ready", flush=True)
    sys.stdin.read()
    while left := processes_of(os.getpid()):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
