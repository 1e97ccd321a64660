"""Whatever happens to one process, no other waits for it; it is told once, and nothing that was computed is lost."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import (
    ENVIRONMENT,
    INPUT,
    assert_same,
    assert_same_so_far,
    ended,
    here,
    hpcstencil,
    line,
    python,
    ranks,
    started,
    uninterrupted,
    wait_until,
)

import hpcstencil as package

pytestmark = pytest.mark.e2e
# Snapshots and diagnostics fall together: a longer run is the same until then.
OUTPUTS = ("--set", "output.every=50.0", "--set", "diagnostics.every_steps=50")
LONG = (*OUTPUTS, "--set", "time.end=1e5", "--set", "checkpoint.every_steps=500")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    return tmp_path


def computing(processes, folder, **environment):
    """A long run that has written a checkpoint."""
    run = started(processes, "run", "input.toml", *LONG, folder=folder, **environment)
    wait_until(lambda: list(folder.glob("run.checkpoint.*.h5")), run)
    return run


@pytest.fixture(scope="module")
def resumes(tmp_path_factory):
    """Go on for a while from what a run has left; the result must equal that of an uninterrupted run."""
    whole = uninterrupted(tmp_path_factory.mktemp("uninterrupted"), OUTPUTS, 400.0)

    def of(folder, processes=2):
        newest = max(folder.glob("run.checkpoint.*.h5"))
        end = (int(newest.name.split(".")[2]) // 500 + 1) * 50.0
        hpcstencil(processes, "run", "input.toml", "--resume", *LONG, "--set", f"time.end={end}", folder=folder)
        assert_same_so_far(folder / "run.h5", whole(end))

    return of


@pytest.mark.parametrize("processes, number", [(0, signal.SIGTERM), (2, signal.SIGUSR1)])  # mpirun forwards USR1
def test_a_signal_ends_with_75_and_resume_goes_on_bitwise(folder, resumes, processes, number):
    run = computing(processes, folder)
    run.send_signal(number)
    status, told = ended(run, folder, within=60)
    assert status == 75, told
    assert number.name in told and "--resume" in told
    resumes(folder, 3 - max(processes, 1))


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.long), 2])
def test_a_killed_rank_is_told_and_ends_the_others(folder, resumes, victim):
    run = computing(3, folder)
    os.kill(ranks(run)[victim], signal.SIGKILL)
    status, told = ended(run, folder, within=30)
    assert status == 128 + signal.SIGKILL  # the launcher's own
    assert told.count("ended without a message") == 1 and f"rank {victim} on" in told and "at step" in told
    assert "newest call first" in told and "run.checkpoint." in told and "--resume" in told
    resumes(folder)


IMPATIENT = """
from hpcstencil.runtime import watchdog

IMPATIENT = "; import hpcstencil.runtime.monitor_node as node; node.PATIENCE = 8.0; main()"
watchdog.MONITOR = watchdog.MONITOR.replace("; main()", IMPATIENT)
"""


def customized(folder, code):
    """The environment of a run that begins with some code of ours."""
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_stopped_rank_ends_the_others(folder, victim):
    run = computing(2, folder, **customized(folder, IMPATIENT))
    os.kill(ranks(run)[victim], signal.SIGSTOP)
    status, told = ended(run, folder, within=40)
    assert status == 4 and f"rank {victim} on" in told and "has been stopped for 8 s, at step" in told
    assert "newest call first" in told and "--resume" in told


def limit(run, rank, what, value):
    """From now on one rank may have no more of something."""
    resource.prlimit(ranks(run)[rank], what, (value, value))


RAISING = """
import ctypes, os, threading, time
from pathlib import Path

def later(main):
    while not list(Path().glob("run.checkpoint.*.h5")):
        time.sleep(0.01)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object({exception}))

if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
    threading.Thread(target=later, args=[threading.get_ident()], daemon=True).start()
"""


@pytest.mark.parametrize(
    "exception, expected, words",
    [
        ("ZeroDivisionError", 1, "please report this"),
        pytest.param("MemoryError", 4, "out of memory", marks=pytest.mark.long),
    ],
)
def test_an_exception_that_one_rank_alone_raises(folder, resumes, exception, expected, words):
    """It comes from outside, at whatever line the main thread of rank 1 is."""
    code = customized(folder, RAISING.format(exception=exception))
    run = started(2, "run", "input.toml", *LONG, folder=folder, **code)
    status, told = ended(run, folder, within=120)
    assert status == expected, told
    assert told.count("hpcstencil: ") == 1 and "hpcstencil: rank 1 of 2 on" in told and words in told
    assert "at step" in told or "before the first step" in told
    resumes(folder)


TOGETHER = """
import sys, time
from hpcstencil.cli.prepare import processes
from hpcstencil.validation.errors import EnvironmentProblem

class Gone(EnvironmentProblem):
    shared = False

late = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with processes() as communicator:
    communicator.barrier()
    if str(communicator.rank) in late:
        time.sleep(float(late[str(communicator.rank)]))
        raise Gone("the disk is gone")
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "late, speaks",
    [((0.7, 0.3, 0), 0), ((8, 0.2, 0), 1), ((None, None, 0), 2)],
)
def test_ranks_that_fail_at_about_the_same_time_tell_it_once(late, speaks):
    """The lowest of those that fail at about the same time speaks, in whatever order they do."""
    when = [word for rank, seconds in enumerate(late) if seconds is not None for word in (str(rank), str(seconds))]
    command = [*line(3)[:3], sys.executable, "-c", TOGETHER, *when]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 4 and result.stderr.count("hpcstencil: ") == 1, result.stderr
    assert f"hpcstencil: rank {speaks} of 3" in result.stderr and "the disk is gone" in result.stderr


def test_devices_that_fail_on_one_rank(folder):
    broken = 'if [[ $OMPI_COMM_WORLD_RANK == 1 ]]; then export JAX_PLATFORMS=cpu,nonsense; fi; exec "$@"'
    command = [*line(2)[:3], "bash", "-c", broken, "bash", *line(0, "run", "input.toml")]
    result = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 4 and result.stderr.count("hpcstencil: ") == 1, result.stderr
    assert "rank 1: jax cannot start its devices" in result.stderr and not (folder / "run.h5").exists()


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_full_disk_keeps_what_was_written(folder, resumes, processes):
    run = computing(processes, folder)
    limit(run, 0, resource.RLIMIT_FSIZE, (folder / "run.h5").stat().st_size + 10)
    status, told = ended(run, folder, within=60)
    assert status == 4 and told.count("hpcstencil: ") == 1, told
    assert "File too large" in told and "Traceback" not in told
    info = here("info", folder / "run.h5")
    assert "all finite" in info and "sound          yes" in info
    resumes(folder)


def test_a_folder_that_vanishes(folder):
    place = folder / "place"
    run = computing_in(folder, place)
    away = folder / "away"
    place.rename(away)
    status, told = ended(run, folder, within=60)
    assert status == 4 and told.count("hpcstencil: ") == 1 and "No such file" in told and "Traceback" not in told
    away.rename(place)
    assert "all finite" in here("info", place / "run.h5")


def computing_in(folder, place):
    run = started(2, "run", "input.toml", *LONG, "--output", "place/run.h5", folder=folder)
    wait_until(lambda: list(place.glob("run.checkpoint.*.h5")), run)
    return run


def test_a_second_interrupt_ends_at_once(folder, resumes):
    run = computing(0, folder)
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGINT)
    status, told = ended(run, folder, within=20)
    assert status in (130, 75), told  # 75 where the first had been served before the second came
    left_behind = set(folder.glob("run.checkpoint.*.h5"))
    run = started(2, "run", "input.toml", "--resume", *LONG, folder=folder)
    wait_until(lambda: set(folder.glob("run.checkpoint.*.h5")) - left_behind, run)
    first, second = ranks(run)
    os.kill(second, signal.SIGSTOP)  # so that the first interrupt cannot be served
    time.sleep(1)
    os.kill(first, signal.SIGINT)
    time.sleep(0.2)
    os.kill(first, signal.SIGINT)
    status, told = ended(run, folder, within=60)
    assert status == 130 and told.count("interrupted twice") == 1, told
    resumes(folder)


def test_the_walltime_ends_with_75_and_resume_goes_on_bitwise(folder, resumes):
    result = hpcstencil(
        2, "run", "input.toml", *LONG, "--set", "checkpoint.walltime=00:00:11", folder=folder, status=75
    )
    assert "stopped by the walltime at step" in result.stderr
    resumes(folder)


def test_versions_of_the_input_that_differ_are_found_out(folder):
    differing = 'exec "$@" --set time.end=$((12 + OMPI_COMM_WORLD_RANK))'
    command = [*line(2)[:3], "bash", "-c", differing, "bash", *line(0, "run", "input.toml")]
    result = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 4 and "rank 1: the input: another version on" in result.stderr, result.stderr
    assert not (folder / "run.h5").exists()


def test_a_rank_with_another_copy_of_the_program_is_found_out(folder):
    """A copy with other weights of rk4, which would give other numbers."""
    copy = folder / "copy" / "hpcstencil"
    shutil.copytree(Path(package.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / "numerics" / "integrators.py").read_text()
    (copy / "numerics" / "integrators.py").write_text(
        text.replace("(1 / 6, 1 / 3, 1 / 3, 1 / 6)", "(1 / 8, 3 / 8, 3 / 8, 1 / 8)", 1)
    )
    assert (copy / "numerics" / "integrators.py").read_text() != text
    one = line(0, "run", "input.toml")
    command = [*line(1)[:3], *one, ":", "-n", "1", "env", f"PYTHONPATH={copy.parent}", *one]
    result = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 4 and "rank 1: the files of hpcstencil: another version on" in result.stderr, (
        result.stderr
    )
    assert result.stderr.count("another version") == 1 and not (folder / "run.h5").exists()


def test_a_damaged_checkpoint_is_passed_over(folder, reference):
    # No run with a later end comes by there.
    hpcstencil(0, "run", "input.toml", "--set", "time.end=8.95", folder=folder)
    older, newer = sorted(folder.glob("run.checkpoint.*.h5"))
    content = bytearray(newer.read_bytes())
    content[len(content) // 2] ^= 16
    newer.write_bytes(content)
    info = hpcstencil(0, "info", newer.name, folder=folder, status=2)
    assert "damaged" in info.stderr
    assert "verified" in here("info", older)
    result = hpcstencil(2, "run", "input.toml", "--resume", folder=folder)
    assert result.stderr.count("it is skipped") == 1 and newer.name in result.stderr
    assert_same(folder / "run.h5", reference / "run.h5")


def test_checkpoints_of_an_output_that_is_gone_are_not_forgotten(folder, reference):
    shutil.copytree(reference, folder, dirs_exist_ok=True)
    (folder / "run.h5").unlink()
    result = hpcstencil(2, "run", "input.toml", "--resume", folder=folder, status=2)
    assert "--restart" in result.stderr and len(list(folder.glob("*.checkpoint.*"))) == 2


MPI_FAILS = """
    import ctypes
    import sys
    from mpi4py import MPI
    from hpcstencil.backends.native import edge_exchange, edge_messages
    from hpcstencil.cli import main

    start_all, test_all = edge_messages._functions()
    made, messages_of = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p), edge_messages.messages_of
    calls, sent = [], set()

    @made
    def failing(count, requests):
        calls.append(requests)
        return 15 if len(calls) > 40 and requests in sent else made(start_all)(count, requests)

    def of_first_device(layout, own, mirrors, blocks, device, communicator):
        messages = messages_of(layout, own, mirrors, blocks, device, communicator)
        if device == 0 and communicator.rank == 1:
            messages.start_all = ctypes.cast(failing, ctypes.c_void_p).value
            sent.update(messages.send[buffer][0][side] for buffer in (0, 1) for side in (0, 1))
        return messages

    edge_exchange.messages_of = of_first_device
    sys.argv = ["hpcstencil", "run", "input.toml", "--devices", "2", "--set", "decomposition.exchange=mpi",
                "--set", "decomposition.processes=[2, 1]", "--set", "decomposition.devices=[1, 2]",
                "--set", "time.end=1e5"]
    main()
"""


def test_messages_of_one_device_that_fail_end_the_run(folder):
    """The other device of its process would wait for ever for what its neighbours no longer send."""
    result = python(folder, MPI_FAILS, processes=2, status=4)
    assert "the MPI library failed with error code 15 while edges were exchanged" in result.stderr
    assert "--resume" in result.stderr and "Traceback" not in result.stderr
