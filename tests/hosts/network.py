"""Two hosts on one machine, joined by a link with a rate, a delay and losses, for `mpirun` across them.

    with TwoHosts(delay=2e-3, loss=0.01) as hosts:
        subprocess.run(hosts.mpirun(4, "hpcstencil", "run", "input.toml", folder=folder), check=True)

Each host has network, name, shared memory and `/etc/hosts` of its own (Linux namespaces, see `host.py`), so that MPI takes them
for two machines and talks over TCP; the file system is shared, as on a cluster. The plain link is a veth pair; one with
delay or losses goes through `switch.py`. Needs root. Any number of pairs may exist side by side: nothing of a pair has a
name outside of its own namespaces, and nothing of it outlives the process that made it.
"""

from __future__ import annotations

import os
import random
import shutil
import string
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from host import processes_of

from hpcstencil.simulation.measurement_cache import store

HERE = Path(__file__).parent
DEVICE = "link0"
ADDRESSES = ("10.99.0.1", "10.99.0.2")
JUMBO = 9000  # bytes per frame through the switch: its cost is per frame
TOOLS = ("unshare", "nsenter", "ip", "tc", "mpirun")
# The session folder in the host's own memory, so that it goes with the host; `rsh` also where a Slurm job surrounds us.
MPI_SETTINGS = {"plm": "rsh", "plm_rsh_agent": "/dev/shm/agent", "orte_tmpdir_base": "/dev/shm"}
AGENT = """#!/bin/sh
# agent HOST COMMAND...: what ssh is elsewhere
shift
exec nsenter --target {pid} --net --uts --ipc --mount sh -c "$*"
"""


def unavailable() -> str:
    """Why two hosts cannot be had here; empty where they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"the commands {', '.join(missing)} are missing (Debian: util-linux, iproute2, openmpi-bin)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "the device /dev/net/tun is missing"
    tried = subprocess.run(["unshare", "--net", "--uts", "--ipc", "--mount", "true"], capture_output=True, text=True)
    return f"namespaces are refused: {tried.stderr.strip()}" if tried.returncode else ""


def _started(command: list[str]) -> subprocess.Popen[str]:
    """A helper process that has said `ready`; it leaves when its standard input is closed.

    In a session of its own, so that what ends our process group leaves it the time to clear up.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        process.kill()
        raise OSError(f"{' '.join(command[:6])} ... did not start (its own words stand above)")
    return process


def _left(process: subprocess.Popen[str]) -> None:
    """Let a helper process leave, and wait for it."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()


class TwoHosts:
    """Two hosts and the link between them, for the time of a `with` block.

    ``delay``: seconds that each frame takes one way; ``loss``: fraction of the frames lost each way; ``rate``: bits per second
    each way (None: as fast as the machine can); ``switched``: through the user-space switch even without delay and
    losses, to compare like with like. ``names``: the hosts' names; the launcher runs on the first.
    """

    def __init__(
        self, delay: float = 0.0, loss: float = 0.0, rate: float | None = None, *, switched: bool = False, seed: int = 1
    ) -> None:
        self.delay, self.loss, self.rate, self.seed = delay, loss, rate, seed
        self.switched = switched or delay > 0 or loss > 0
        mark = "".join(random.choices(string.ascii_lowercase, k=6))  # no digits: Open MPI takes them for numbered nodes
        self.names = (f"near-{mark}", f"far-{mark}")
        self.keepers: list[subprocess.Popen[str]] = []
        self.switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> TwoHosts:
        try:
            self._boot()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def _boot(self) -> None:
        table = "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in zip(ADDRESSES, self.names, strict=True))
        for name in self.names:
            keep = ["unshare", "--net", "--uts", "--ipc", "--mount", sys.executable, str(HERE / "host.py"), name, table]
            self.keepers.append(_started(keep))
        near, far = (keeper.pid for keeper in self.keepers)
        if self.switched:
            settings = (near, far, DEVICE, JUMBO, self.delay, self.loss, self.seed)
            self.switch = _started([sys.executable, str(HERE / "switch.py"), *map(str, settings)])
        else:
            ends = (DEVICE, "netns", near, "type", "veth", "peer", "name", DEVICE, "netns", far)
            subprocess.run(["ip", "link", "add", *map(str, ends)], check=True)
        for host, address in enumerate(ADDRESSES):
            self._on(host, "ip", "address", "add", f"{address}/24", "dev", DEVICE)
            self._on(host, "ip", "link", "set", DEVICE, "up")
            if self.rate is not None:
                limit = ("rate", f"{self.rate:.0f}bit", "burst", "256kb", "latency", "100ms")
                self._on(host, "tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", *limit)
        for host in (near, far):  # the far daemon looks for it too, though it has nobody to start
            agent = Path(f"/proc/{host}/root/dev/shm/agent")
            agent.write_text(AGENT.format(pid=far))
            agent.chmod(0o755)

    def _clear(self) -> None:
        for keeper in self.keepers:
            _left(keeper)
        if self.switch is not None:
            _left(self.switch)
        if path := store():  # nobody else measures on these hosts
            for name in self.names:
                path.with_name(f"calibration-{name}.json").unlink(missing_ok=True)

    def _on(self, host: int, *arguments: str) -> None:
        subprocess.run(self.command(host, *arguments), check=True)

    def command(self, host: int, *arguments: object, folder: Path | str = ".") -> list[str]:
        """The command line that runs a command on a host (0: near, 1: far) in a folder of the shared file system."""
        enter = ["nsenter", "--target", str(self.keepers[host].pid), "--net", "--uts", "--ipc", "--mount"]
        return [*enter, "--", "env", f"--chdir={Path(folder).absolute()}", *map(str, arguments)]

    def mpirun(self, processes: int, *arguments: object, folder: Path | str = ".") -> list[str]:
        """The command line that starts a program on so many processes, half of them on each host."""
        hosts = ",".join(f"{name}:{processes // 2}" for name in self.names)
        settings = [word for key, value in MPI_SETTINGS.items() for word in ("--mca", key, value)]
        return self.command(0, "mpirun", *settings, "--host", hosts, "-n", processes, *arguments, folder=folder)

    def cut(self) -> None:
        """Cut the link: silently where there is a switch, else by taking both ends down."""
        self._link("cut", "down")

    def mend(self) -> None:
        """Join the hosts again."""
        self._link("mend", "up")

    def _link(self, order: str, state: str) -> None:
        if self.switch is None:
            for host in (0, 1):
                self._on(host, "ip", "link", "set", DEVICE, state)
            return
        assert self.switch.stdin is not None and self.switch.stdout is not None
        self.switch.stdin.write(order + "\n")
        self.switch.stdin.flush()
        assert self.switch.stdout.readline() == order + "\n"

    def processes(self, host: int) -> dict[int, str]:
        """The processes of a host: command lines by process id."""
        return processes_of(self.keepers[host].pid)
