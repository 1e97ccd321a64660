"""A real Slurm cluster on this one machine, without systemd: munged, slurmctld and two slurmd that are two nodes.

The cluster has a network, a process table, a host name and mounts of its own (namespaces), and inside it each node has
again its own of each, and its own /dev/shm, joined to the others by a bridge. So nothing here has a name, port or address
that a second cluster, or what a killed one left, could collide with; processes of one node reach those of another only
through the network; and a node can crash.

Every namespace is held by one process that ends when the pipe from this Python does, and with it the kernel kills
everything inside. So nothing outlives the tests, however they end.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PACKAGES = "slurmctld slurmd slurm-client munge iproute2"  # what quickstart.sh installs for these tests
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged", "ip", "nsenter", "unshare", "mount")
HEAD, NODES = "10.99.0.1", {"n1": "10.99.0.11", "n2": "10.99.0.12"}
NAMESPACES = ("--net", "--uts", "--ipc", "--mount")
# The states a job stays in. Of those that pass some are short and rarely seen, SIGNALING for one.
ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
)  # fmt: skip

# The first process of the whole cluster. The tmpfs stands in for cgroups, which Slurm looks for and is told not to use.
START_HEAD = """
set -e
hostname head
mount -t tmpfs cgroup /sys/fs/cgroup
mount --bind "$1/hosts" /etc/hosts
ip link set lo up
ip link add br0 type bridge
ip address add "$2/24" dev br0
ip link set br0 up
echo up
read -r _
"""
# The first process of a node, NAME ADDRESS. `netns 1` is the network of the cluster's first process.
START_NODE = """
set -e
hostname "$1"
mount -t tmpfs shm /dev/shm
ip link set lo up
ip link add eth0 type veth peer name "$1" netns 1
ip address add "$2/24" dev eth0
ip link set eth0 up
nsenter --net=/proc/1/ns/net ip link set "$1" master br0 up
exec unshare --pid --fork --kill-child --mount-proc bash -c 'slurmd -D -N "$0" & read -r _' "$1"
"""
# A launch that takes longer than cred_expire seconds fails, so it is long enough for a machine that does much else. A requeued
# job waits for as long before it starts.
SLURM_CONF = """
ClusterName=test
SlurmctldHost=head({head})
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=20
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=pmix
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.txt
MailProg=/bin/true
ReturnToService=2
KillWait=20
SlurmdTimeout=30
SlurmctldTimeout=30
MinJobAge=3600
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Unavailable(Exception):
    """This machine cannot have such a cluster; the sentence says why and what to do."""


def require_capabilities() -> None:
    """Raises Unavailable where this machine lacks what a cluster is made of."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        raise Unavailable(
            f"{', '.join(lacking)} not found; install with: apt-get install --no-install-recommends {PACKAGES}"
        )
    if os.geteuid() != 0:
        raise Unavailable("a cluster on one machine needs root, for its network and host names")
    script = "mount -t tmpfs x /sys/fs/cgroup && ip link add br0 type bridge && ip link add n1 type veth peer name n2"
    trial = subprocess.run(
        ["unshare", *NAMESPACES, "--pid", "--fork", "--mount-proc", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if trial.returncode:
        raise Unavailable(f"no namespaces with a network bridge can be made here ({trial.stderr.strip()})")
    library = "from mpi4py import MPI; print(MPI.Get_library_version())"
    mpi = subprocess.run([sys.executable, "-c", library], capture_output=True, text=True, timeout=60).stdout
    if "Open MPI" not in mpi:
        raise Unavailable("mpi4py was not built with an Open MPI, which Slurm's PMIx could start")


class Cluster:
    """The cluster, while the context is entered. ``environment`` is added to that of every command and job."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, cpus: int = 16) -> None:
        self.folder = folder
        self.cpus = cpus  # that each node claims to have
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI_COMM", "PMIX_"))}
        self.environment = {**clean, **(environment or {}), "SLURM_CONF": str(folder / "slurm.conf")}
        self._head: subprocess.Popen | None = None
        self._nodes: dict[str, subprocess.Popen] = {}
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- the cluster -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring everything up; raises RuntimeError with the logs where it does not come up."""
        self._write_configuration()
        self._head = self._hold(
            ["unshare", *NAMESPACES, "--pid", "--fork", "--kill-child", "--mount-proc"],
            ["bash", "-c", START_HEAD, "bash", str(self.folder), HEAD],
        )
        assert self._head.stdout is not None
        if self._head.stdout.readline().strip() != "up":
            raise RuntimeError(f"the cluster's network did not come up: {self.logs()}")
        run = self.folder / "run"
        self._daemon("munged", "--foreground", "--force", f"--key-file={run}/munge.key", f"--socket={run}/munge.sock",
                     f"--pid-file={run}/munge.pid", f"--seed-file={run}/munge.seed", f"--log-file={run}/munge.log")  # fmt: skip
        self.until(lambda: (run / "munge.sock").exists(), 30, "munged")
        self._daemon("slurmctld", "-D", "-c")
        for name in NODES:
            self.boot_node(name)
        self.until(lambda: all(s == "idle" for s in self.nodes().values()), 60, "idle nodes")
        if "pmix" not in self.run("srun", "--mpi=list").stderr + self.run("srun", "--mpi=list").stdout:
            raise Unavailable("this Slurm has no PMIx ('srun --mpi=list' does not name it)")

    def stop(self) -> None:
        """End every process of the cluster; its namespaces go with them."""
        for process in (*self._nodes.values(), *([self._head] if self._head else [])):
            _let_go(process)
        for daemon in self._daemons:
            daemon.wait(timeout=20)
        self._nodes, self._daemons, self._head = {}, [], None

    def _write_configuration(self) -> None:
        for name in ("run", "state", "log", *(f"{kind}.{node}" for node in NODES for kind in ("spool", "tmp"))):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        key = self.folder / "run" / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        lines = [f"NodeName={name} NodeAddr={address} CPUs={self.cpus}" for name, address in NODES.items()]
        conf = SLURM_CONF.format(folder=self.folder, head=HEAD) + "\n".join(lines) + "\n"
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        hosts = {"localhost": "127.0.0.1", "head": HEAD, **NODES}
        (self.folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))

    def _hold(self, unshare: Sequence[str], command: Sequence[str]) -> subprocess.Popen:
        """Start the first process of a namespace: it and everything in it ends when its standard input does."""
        log = (self.folder / "log" / "namespaces.log").open("a")
        with log:
            return subprocess.Popen(
                [*unshare, *command],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    @property
    def _enter(self) -> list[str]:
        """What a command begins with to run on the cluster's own host."""
        assert self._head is not None
        pid = self._head.pid  # of `unshare`, whose children are in the new process table and which itself is not
        return ["nsenter", f"--target={pid}", *NAMESPACES, f"--pid=/proc/{pid}/ns/pid_for_children"]

    def _daemon(self, *command: str) -> None:
        with (self.folder / "log" / f"{command[0]}.out").open("w") as log:
            self._daemons.append(
                subprocess.Popen(
                    [*self._enter, *command],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def boot_node(self, name: str) -> None:
        """Start a node afresh; it is known to Slurm a moment later."""
        for kind in ("spool", "tmp"):
            shutil.rmtree(self.folder / f"{kind}.{name}")
            (self.folder / f"{kind}.{name}").mkdir()
        command = [*self._enter, "unshare", *NAMESPACES]
        self._nodes[name] = self._hold(command, ["bash", "-c", START_NODE, "bash", name, NODES[name]])

    def crash_node(self, name: str) -> None:
        """A power cut: the network is gone first, so that nobody is told, then every process of the node is killed."""
        self.run("ip", "link", "delete", name)
        _let_go(self._nodes.pop(name))

    def nodes(self) -> dict[str, str]:
        """The state of each node, as sinfo calls it."""
        told = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", check=False).stdout.split()
        return dict(zip(told[::2], told[1::2], strict=True))

    def make_idle(self) -> None:
        """End all jobs, and start what nodes are not running."""
        self.run("scancel", "--quiet", "--signal=KILL", "--full", "--user=root", check=False)
        self.run("scancel", "--quiet", "--user=root", check=False)
        for name in NODES:
            if name not in self._nodes:
                self.boot_node(name)
        self.until(lambda: set(self.nodes().values()) == {"idle"} and not self.queue(), 90, "an idle cluster")

    def queue(self) -> str:
        """Numbers of the jobs that have not ended, a line each, the newest last."""
        return self.run("squeue", "--noheader", "--sort=i", "--format=%A").stdout

    @contextmanager
    def no_new_jobs(self) -> Iterator[None]:
        """While entered, jobs can be submitted but none begins."""
        self.run("scontrol", "update", "PartitionName=all", "State=DOWN")
        try:
            yield
        finally:
            self.run("scontrol", "update", "PartitionName=all", "State=UP")

    # ---- commands and jobs -----------------------------------------------------------------------------------------

    def run(
        self, *command: str, folder: Path | None = None, seconds: int = 120, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the cluster's own host, where a user would log in."""
        result = subprocess.run(
            [
                *self._enter,
                "env",
                f"--chdir={folder or self.folder}",
                "timeout",
                "--kill-after=5",
                str(seconds),
                *command,
            ],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if check and result.returncode:
            raise RuntimeError(f"{' '.join(command)}: status {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    def submit(self, *arguments: str, folder: Path, **environment: str) -> str:
        """sbatch; returns the number of the job."""
        return self.run("sbatch", "--parsable", *arguments, folder=folder, **environment).stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What scontrol tells of a job."""
        return self.members(number)[0]

    def members(self, number: str) -> list[dict[str, str]]:
        """What scontrol tells of each member of a job array."""
        told = self.run("scontrol", "show", "job", "--oneliner", number).stdout
        return [dict(re.findall(r"([\w:/]+)=(\S*)", line)) for line in told.splitlines() if line]

    def steps(self, number: str, node: str = "n2") -> list[str]:
        """The numbers of the steps of a job that a node started, in their order."""
        log = (self.folder / "log" / f"slurmd.{node}.log").read_text()
        return re.findall(rf"launch task StepId={number}\.(\d+) ", log)

    def wait(self, number: str, seconds: float) -> dict[str, str]:
        """Wait until a job, or every member of a job array, has ended, and return what scontrol tells of it."""
        self.until(lambda: self.ended(number), seconds, f"the end of job {number}")
        return self.job(number)

    def ended(self, number: str) -> bool:
        """Whether a job, and every member of a job array, is over."""
        return all(member["JobState"] in ENDED for member in self.members(number))

    def until(self, condition: Callable[[], T], seconds: float, what: str) -> T:
        """Wait until a condition holds; raises TimeoutError with what the cluster says of itself where it never does."""
        deadline = time.monotonic() + seconds
        while True:
            result = condition()
            if result:
                return result
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:g} s for {what}\n{self.logs()}")
            time.sleep(0.2)

    def logs(self) -> str:
        """The queue and the last lines of every log."""
        texts: list[Any] = [self.run("squeue", "--all", check=False, seconds=10).stdout] if self._head else []
        for path in sorted((self.folder / "log").glob("*")):
            texts.append("\n".join([f"---- {path.name}", *path.read_text(errors="replace").splitlines()[-25:]]))
        return "\n".join(texts)


def _let_go(process: subprocess.Popen) -> None:
    """Close the pipe that holds a namespace, and wait until the kernel has ended what was in it."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.wait(timeout=20)
    process.stdout.close()
