"""`mpirun` across two hosts: the same file as on one, and what becomes of a run whose network fails."""

import os
import re
import subprocess
import sys
import time

import commands
import pytest
from commands import ENVIRONMENT, assert_same
from network import TwoHosts, unavailable

# Beside other suites on two cores, four ranks need a minute or two until they take steps, and a step needs all of them in turn.
PATIENCE = 400  # seconds
pytestmark = [pytest.mark.hosts, pytest.mark.timeout(1000)]
INPUT = commands.INPUT + '[numerics]\nkernel = "shift"\n'
# Long enough to be cut in its midst: it is some seconds of computing, and the first checkpoints come early.
LONG = ("--set", "time.end=100.0", "--set", "output.every=20.0", "--set", "diagnostics.every_steps=100",
        "--set", "checkpoint.every_steps=100")  # fmt: skip
HPCSTENCIL = (sys.executable, "-m", "hpcstencil", "run", "input.toml")


@pytest.fixture(scope="module", autouse=True)
def _possible():
    if reason := unavailable():
        pytest.skip(f"not run: {reason}")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The run on one process, short and long, and the folder it is in."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "input.toml").write_text(INPUT)
    finished([*HPCSTENCIL], folder)
    finished([*HPCSTENCIL, *LONG, "--output", "long.h5"], folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    return tmp_path


def finished(line, folder):
    """Run a command to its good end."""
    result = subprocess.run(line, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stdout + result.stderr


def started(hosts, folder, *arguments):
    """A run on two processes of each host which has written its second checkpoint, so all ranks know of the first."""
    run = subprocess.Popen(hosts.mpirun(4, *HPCSTENCIL, *arguments, folder=folder), env=ENVIRONMENT,
                           stderr=subprocess.PIPE, text=True)  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while len(checkpoints := list(folder.glob("run.checkpoint.*.h5"))) < 2:
        if run.poll() is not None or time.monotonic() > deadline:
            run.kill()
            raise AssertionError(f"ended or late (status {run.poll()}): {checkpoints}\n{run.communicate()[1]}")
        time.sleep(0.01)
    return run


@pytest.mark.parametrize(
    "link",
    # The test of a link that is down compares with a run over a link without flaws.
    [pytest.param({}, marks=pytest.mark.long), {"delay": 2e-3, "loss": 0.01}, {"rate": 1e8}],
    ids=str,
)
def test_two_hosts_write_the_same_file_as_one_process(reference, folder, link):
    with TwoHosts(**link) as hosts:
        finished(hosts.mpirun(4, "sh", "-c", 'hostname >> names; exec "$@"', "sh", *HPCSTENCIL, folder=folder), folder)
        names = (folder / "names").read_text().split()
        assert sorted(names) == sorted(2 * hosts.names), "two ranks should have run on each host"
    assert_same(reference / "run.h5", folder / "run.h5")


def test_a_link_that_is_down_for_four_seconds_is_survived(reference, folder):
    with TwoHosts() as hosts:
        run = started(hosts, folder, *LONG)
        hosts.cut()
        before = newest_step(folder)
        time.sleep(4)
        assert run.poll() is None and newest_step(folder) <= before + 100, "the run should wait for the link"
        hosts.mend()
        _, told = run.communicate(timeout=PATIENCE)
        assert run.returncode == 0, told
    assert_same(reference / "long.h5", folder / "run.h5")


def newest_step(folder):
    return max(int(path.name.split(".")[2]) for path in folder.glob("run.checkpoint.*.h5"))


def test_a_cut_link_ends_every_rank_and_the_run_goes_on_when_it_is_mended(reference, folder):
    with TwoHosts(switched=True) as hosts:
        run = started(hosts, folder, *LONG)
        hosts.cut()
        assert not left_after(60, hosts)
        _, told = run.communicate(timeout=10)
        assert run.returncode not in (0, 75), told
        assert len(re.findall(rf"hpcstencil: rank [23] on {hosts.names[1]} .*, at step \d+;.*--resume", told)) == 1, (
            told
        )
        assert "Traceback" not in told
        hosts.mend()
        finished(hosts.mpirun(4, *HPCSTENCIL, *LONG, "--resume", folder=folder), folder)
    assert_same(reference / "long.h5", folder / "run.h5")


def left_after(seconds, hosts):
    """The processes that are left on the hosts; waits for the last of them no longer than so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(hosts.processes(host) for host in (0, 1)):
        time.sleep(0.1)
    return [hosts.processes(host) for host in (0, 1) if hosts.processes(host)]


def test_nothing_is_left_of_hosts_whose_maker_is_killed():
    script = (
        "from network import TwoHosts; import time, subprocess\nwith TwoHosts(delay=1e-3) as hosts:\n"
        "    ours = [*hosts.keepers, hosts.switch, subprocess.Popen(hosts.command(1, 'sleep', '1000'))]\n"
        "    while 'sleep 1000' not in hosts.processes(1).values():\n        time.sleep(0.01)\n"
        "    print(*(process.pid for process in ours), flush=True)\n    time.sleep(1000)\n"
    )
    maker = subprocess.Popen([sys.executable, "-c", script], cwd=os.path.dirname(__file__), stdout=subprocess.PIPE,
                             text=True)  # fmt: skip
    pids = [int(word) for word in maker.stdout.readline().split()]
    assert len(pids) == 4 and all(map(alive, pids))
    maker.kill()
    maker.communicate()
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def alive(pid):
    """Whether a process runs, and not only waits to be noticed dead."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
