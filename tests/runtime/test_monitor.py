"""The monitor beside a rank, with less patience than in earnest."""

import signal
import subprocess
import sys

from hpcstencil.checkpoint.paths import checkpoint_path, checkpoint_pattern
from hpcstencil.runtime.monitor_report import Stacks, lost_report

# A rank that is stuck: it tells its monitor one step, and no more.
STUCK = """
import json, os, subprocess, sys, time
reading, writing = os.pipe()
code = ("from hpcstencil.runtime import monitor, monitor_node as node, monitored_rank as rank;"
        "node.STALLED, node.GIVE_UP, rank.MERCY = 1, 3, 1; monitor.main()")
numbers = ("0", str(os.getpid()), str(reading), "62")
child = subprocess.Popen([sys.executable, "-c", code, *numbers], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         pass_fds=(reading,), start_new_session=True)
import faulthandler
faulthandler.register(62, file=writing, all_threads=False)
for message in ({"token": "t"}, {"checkpoints": "/nowhere/run.checkpoint.*.h5"}, {"step": 7}, *json.loads(sys.argv[1])):
    child.stdin.write(json.dumps(message).encode() + b"\\n")
    child.stdin.flush()

def stuck_here():
    time.sleep(30)

stuck_here()
"""


def run(messages):
    return subprocess.run([sys.executable, "-c", STUCK, messages], capture_output=True, text=True, timeout=60)


def test_a_run_that_waits_for_itself_is_shown_and_ended():
    result = run("[]")
    assert result.returncode == -signal.SIGKILL
    assert result.stderr.count("hpcstencil: no step for") >= 2 and "the run is ended" in result.stderr
    assert "in stuck_here" in result.stderr and "rank 0, newest call first" in result.stderr


def test_a_program_that_does_something_else_takes_no_steps():
    result = subprocess.run(
        [sys.executable, "-c", STUCK.replace("sleep(30)", "sleep(6)\n    os._exit(0)"), '[{"outside": true}]'],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0 and "no step" not in result.stderr


def test_a_rank_that_has_said_goodbye_is_left_alone():
    result = subprocess.run(
        [sys.executable, "-c", STUCK.replace("sleep(30)", "sleep(6)\n    os._exit(0)"), '[{"bye": 1}]'],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0 and result.stderr == ""


def test_a_lost_rank_report_names_the_newest_checkpoint(tmp_path, capfd):
    output = tmp_path / "grid[1].2.h5"  # with characters of a pattern
    lost_report("rank 1 is lost", 7, Stacks(), checkpoint_pattern(output))
    assert "There is no checkpoint yet" in capfd.readouterr().err
    for step in (9, 10):
        checkpoint_path(output, step).touch()
    lost_report("rank 1 is lost", 12, Stacks(), checkpoint_pattern(output))
    assert f"The last good state is {checkpoint_path(output, 10)}:" in capfd.readouterr().err
