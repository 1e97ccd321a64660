"""A folder to submit jobs from, what they see, and whether what they wrote is what it should be."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster import Cluster
from commands import assert_same

ROOT = Path(__file__).parents[2]
DT = 0.1
FAR = 1e9  # an end that no test waits for
UNINTERRUPTED: dict[str, Path] = {}  # the outputs of inputs, of one process each; several tests have the same input
INPUT = f"""
title = "on a cluster"
[grid]
shape = [45, 38]
upper = [4.5, 3.8]
[equation]
name = "gray_scott"
D_u = 0.02
D_v = 0.01
[initial]
u = "1 - 0.5*exp(-4*(x - 3)**2 - 4*(y - 2)**2)"
v = "0.25*exp(-4*(x - 3)**2 - 4*(y - 2)**2) + 0.01*noise(3)"
[boundary]
y = {{ lower = {{ dirichlet = "0.1*sin(t)" }}, upper = {{ neumann = 0.0 }} }}
[time]
end = 12.0
dt = {DT}
[output]
path = "run.h5"
every_steps = 40
[diagnostics]
every_steps = 7
mass = "integral(u + v)"
[checkpoint]
every_steps = 50
"""


@dataclass
class Submission:
    """A folder that jobs are submitted from, with an input file in it."""

    folder: Path

    @property
    def output(self) -> Path:
        return self.folder / "run.h5"

    def write_input(self, end: float = 12.0, long: bool = False) -> None:
        """The input, up to a time; ``long``: with fewer outputs, for a run that is to be interrupted."""
        text = INPUT.replace("end = 12.0", f"end = {end!r}")
        if long:
            text = re.sub(r"every_steps = (40|7|50)\n", "every_steps = 500\n", text)
        (self.folder / "input.toml").write_text(text)

    def begin(self, cluster: Cluster, *arguments: str) -> str:
        """Submit a run that would never end, and wait until it has written two checkpoints; returns the job."""
        self.write_input(FAR, long=True)
        job = cluster.submit(*arguments, "input.toml", folder=self.folder)

        def under_way() -> bool:
            assert not cluster.ended(job), self.log()
            return len(self.checkpoints()) == 2

        cluster.until(under_way, 90, "two checkpoints")
        return job

    def shorten(self) -> int:
        """Let the run end soon after its newest checkpoint; returns the step of that checkpoint."""
        newest = self.checkpoints()[-1]
        self.write_input((newest + 777) * DT, long=True)
        return newest

    def checkpoints(self) -> list[int]:
        """The steps of the checkpoints beside the output."""
        return sorted(int(path.name.split(".")[2]) for path in self.folder.glob("run.checkpoint.*.h5"))

    def log(self) -> str:
        """What the jobs wrote for their user."""
        return "\n".join(f"---- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    def assert_ends(self, cluster: Cluster, job: str, seconds: float, **expected: str) -> None:
        """Wait until a job has ended, and fail unless scontrol shows these values of it.

        The message ends with the job's own log, since a report of many suites may show no more than the end of a message.
        """
        shown = cluster.wait(job, seconds)
        found = {name: shown[name] for name in expected}
        if found != expected:
            raise AssertionError(f"expected {expected}, but got {found}\n{cluster.logs()}\n{self.log()[-4000:]}")

    def here(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """hpcstencil in one process of this machine, outside the cluster. Other tests may slow it down to a third."""
        command = [sys.executable, "-m", "hpcstencil", *arguments]
        result = subprocess.run(
            command, cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=400
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    def assert_same_as_uninterrupted(self) -> None:
        """The output holds, bit for bit, what one process writes that runs the input without being disturbed."""
        text = (self.folder / "input.toml").read_text()
        if text not in UNINTERRUPTED:
            self.here("run", "input.toml", "--output", "alone.h5", "--quiet")
            UNINTERRUPTED[text] = self.folder / "alone.h5"
        assert_same(self.output, UNINTERRUPTED[text])


def environment() -> dict[str, str]:
    """What commands and jobs see: this Python first, this source tree, waiting processes that leave the core to others, stacks
    of a process that crashes."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI_COMM", "PMIX_", "XLA_FLAGS"))}
    return {
        **clean,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONFAULTHANDLER": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }


def submission_folder(folder: Path) -> Submission:
    """Make a folder look like the repository's root after ./quickstart.sh, with the Python that runs the tests."""
    (folder / "jobs").symlink_to(ROOT / "jobs")
    (folder / "inputs").symlink_to(ROOT / "inputs")
    if (Path(sys.prefix) / "bin" / "activate").exists():
        (folder / ".venv").symlink_to(sys.prefix)
    else:
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "activate").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    made = Submission(folder)
    made.write_input()
    return made
