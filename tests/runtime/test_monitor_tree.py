"""The tree of monitors: its arithmetic, and monitors of many ranks with less patience than in earnest, without MPI."""

import json
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from hpcstencil.runtime.handshake import LOOPBACK
from hpcstencil.runtime.monitor_report import DISTINCT, NAMED, Stacks, named
from hpcstencil.runtime.monitor_tree import FAN_OUT, places

# ---- the arithmetic ----------------------------------------------------------------------------------------------------

LAYOUTS = {
    "one rank": ["a"],
    "one host": ["a"] * 300,
    "a rank on each": [f"h{n}" for n in range(300)],
    "blocks": [f"h{n // 4}" for n in range(10_000)],
    "round robin": [f"h{n % 80}" for n in range(10_000)],
    "uneven": [f"h{n}" for n in range(40) for _ in range(1 + n % 7)],
}


@pytest.mark.parametrize("hosts", LAYOUTS.values(), ids=LAYOUTS)
def test_every_rank_has_one_way_to_rank_0(hosts):
    tree = places([(host, [f"address of {host}"]) for host in hosts])
    assert tree[0].parent is None
    depths = [0] * len(tree)
    for rank, place in enumerate(tree):
        assert len(place.children) <= 2 * FAN_OUT
        assert all(tree[child].parent == rank for child in place.children)
        assert [tree[child].turn for child in place.children] == list(range(len(place.children)))
        if place.parent is not None:
            assert place.parent < rank and rank in tree[place.parent].children
            depths[rank] = depths[place.parent] + 1
    if len(set(hosts)) == 80 and len(hosts) == 10_000:
        assert max(depths) == 6
    assert max(depths) <= 2 * math.ceil(math.log(len(hosts) + 1, FAN_OUT))


@pytest.mark.parametrize("hosts", LAYOUTS.values(), ids=LAYOUTS)
def test_a_host_is_a_subtree_under_its_lowest_rank(hosts):
    """So one connection leads to each host, and only its lowest rank listens beyond the loopback."""
    tree = places([(host, [f"address of {host}"]) for host in hosts])
    for rank, place in enumerate(tree):
        parents_host = hosts[place.parent] if place.parent is not None else ""
        assert (parents_host == hosts[rank]) == (hosts.index(hosts[rank]) != rank)
        others = {f"address of {hosts[child]}" for child in place.children if hosts[child] != hosts[rank]}
        assert set(place.addresses) == others


def test_stacks_of_many_ranks_are_few_lines():
    whole = Stacks()
    for part in range(10):
        stacks = Stacks()
        for rank in range(1000 * part, 1000 * part + 1000):
            stacks.add("in step\nin run" if rank % 100 else f"in part {rank}", [rank])
        whole.merge(json.loads(json.dumps(stacks.message())))
    rows = whole.rows()
    assert sum("newest call first" in row for row in rows) == DISTINCT and len(rows) < 4 * DISTINCT
    assert rows[-1].endswith(": other stacks") and all(len(row) < 300 for row in rows)
    assert sorted(rank for ranks in whole.ranks.values() for rank in ranks) == list(range(10_000))
    assert named(whole.ranks["in step\nin run"]).endswith(f"and {9900 - 99 * NAMED} more")


@pytest.mark.parametrize("ranks, words", [([3], "rank 3"), ([1, 0], "ranks 0-1"), ([7, 0, 1, 2], "ranks 0-2, 7")])
def test_ranks_in_words(ranks, words):
    assert named(ranks) == words


# ---- monitors ----------------------------------------------------------------------------------------------------------

# A rank: it passes messages from the test to its monitor and back, and obeys its order to end.
RANK = """
import faulthandler, os, subprocess, sys, threading, time
reading, writing = os.pipe()
faulthandler.register(62, file=writing, all_threads=False)
patience, stalled, number = sys.argv[1:]
code = (f"from hpcstencil.runtime import monitor, monitor_node as node, monitored_rank as rank;"
        f"node.PATIENCE, node.STALLED, rank.MERCY, node.MERCY = {patience}, {stalled}, 1.0, 1.0;"
        f"node.ABANDONED = 4.5, 7.0; monitor.main()")
code = f"import sys; sys.path.insert(0, {os.getcwd()!r}); {code}"
monitor = subprocess.Popen([sys.executable, "-S", "-P", "-c", code, number, str(os.getpid()), str(reading), "62"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(reading,), start_new_session=True)
print(monitor.pid, flush=True)

def pass_on():
    for line in sys.stdin.buffer:
        monitor.stdin.write(line)
        monitor.stdin.flush()

threading.Thread(target=pass_on, daemon=True).start()

def listen():
    import json
    for line in monitor.stdout:
        if b"end" in line:
            os._exit(json.loads(line)["end"])
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

threading.Thread(target=listen, daemon=True).start()

def waiting_here():
    time.sleep(60)

waiting_here()
"""
FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("OMPI_")}


class Ranks:
    """Ranks, each with its monitor, connected as a tree in which each has at most two children."""

    def __init__(self, count, within, connected=True, patience=3.0, stalled=300.0):
        self.told = os.memfd_create("told")  # a file, since a pipe would have to be read while the ranks run
        within.callback(os.close, self.told)
        command = [sys.executable, "-c", RANK, str(patience), str(stalled)]
        self.tree = places([("here", [])] * count, fan_out=2)
        self.processes = [
            subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.told,
                             cwd=FOLDER, env=ENVIRONMENT, start_new_session=True)
            for rank in range(count)
        ]  # fmt: skip
        within.callback(self.end)
        self.monitors = [int(process.stdout.readline()) for process in self.processes]
        if connected:
            self.connect()

    def connect(self):
        token, doors = secrets.token_hex(32), {}
        for rank, place in enumerate(self.tree):
            self.tell(rank, token=token)
            if place.parent is not None:
                self.tell(rank, parent=place.parent, turn=place.turn, doors=doors[place.parent])
                assert self.hear(rank)["connected"]
            if place.children:
                self.tell(rank, listen=[LOOPBACK], children=place.children)
                doors[rank] = self.hear(rank)["doors"]
        for rank, place in enumerate(self.tree):
            if place.children:
                self.tell(rank, joined=1)

    def tell(self, rank, **message):
        self.processes[rank].stdin.write(json.dumps(message).encode() + b"\n")
        self.processes[rank].stdin.flush()

    def hear(self, rank):
        return json.loads(self.processes[rank].stdout.readline())

    def statuses(self, within):
        """The exit status of every rank; all ranks must end within the given seconds."""
        deadline = time.monotonic() + within
        found = [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        while any(map(alive, self.monitors)):
            assert time.monotonic() < deadline, "a monitor is left"
            time.sleep(0.02)
        return found

    def said(self):
        return os.pread(self.told, 2**20, 0).decode()

    def end(self):
        for process in self.processes:
            process.kill()
            process.communicate()
        for monitor in filter(alive, self.monitors):
            os.kill(monitor, signal.SIGKILL)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def within():
    with ExitStack() as stack:
        yield stack


def reports(told):
    return re.findall(r"hpcstencil: rank (\d+) on \S+ (?:host )?(.*?), (?:at step (\d+)|before)", told)


ROOT, INNER, LEAF = 0, 1, 6  # of the tree 0 - (1, 2), 1 - (3, 4), 2 - (5, 6)


@pytest.mark.parametrize("victim", [ROOT, INNER, LEAF])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_all_with_one_report(within, victim, number):
    ranks = Ranks(7, within)
    for rank in range(7):
        ranks.tell(rank, step=40 + (rank == victim))
    time.sleep(0.2)
    os.kill(ranks.processes[victim].pid, number)
    statuses = ranks.statuses(20)
    assert [status for rank, status in enumerate(statuses) if rank != victim] == [4] * 6, ranks.said()
    ((rank, why, step),) = reports(ranks.said())
    assert (
        int(rank) == victim and int(step) == 41 and ("stopped for 3 s" if number == signal.SIGSTOP else "ended") in why
    )
    others = ", ".join(map(str, sorted({*range(7)} - {victim})))
    assert (
        named(map(int, others.split(", "))) + ", newest call first" in ranks.said() and "waiting_here" in ranks.said()
    )


@pytest.mark.parametrize("victim", [ROOT, pytest.param(INNER, marks=pytest.mark.long), LEAF])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_monitor_is_noticed_above_and_below(within, victim, number):
    """As that of a host that is lost (SIGKILL: the host says so; SIGSTOP: it is silent)."""
    ranks = Ranks(7, within)
    os.kill(ranks.monitors[victim], number)
    others = [rank for rank in range(7) if rank != victim]
    deadline = time.monotonic() + 20
    for rank in others:
        assert ranks.processes[rank].wait(max(0.1, deadline - time.monotonic())) == 4, ranks.said()
    found = reports(ranks.said())
    # Without a launcher nothing but the report of its own root ends a part of the tree; each part has one.
    parts = {ROOT: 2, INNER: 3, LEAF: 1}[victim]
    assert len(found) == parts and {int(rank) for rank, _, _ in found} == {victim}, ranks.said()
    assert all(("heard from for 3 s" if number == signal.SIGSTOP else "ended without") in why for _, why, _ in found)
    os.kill(ranks.monitors[victim], signal.SIGCONT) if number == signal.SIGSTOP else None


def test_two_ranks_that_are_lost_at_once_are_one_report(within):
    ranks = Ranks(7, within)
    for victim in (INNER, LEAF):
        os.kill(ranks.processes[victim].pid, signal.SIGKILL)
    statuses = ranks.statuses(20)
    assert sorted(statuses) == [-9, -9, 4, 4, 4, 4, 4]
    ((rank, _, _),) = reports(ranks.said())
    assert int(rank) in (INNER, LEAF)


@pytest.mark.parametrize("failing", [[6, 3], [2], [5, 6, 4, 3, 2, 1, 0]], ids=str)
def test_the_sentence_of_the_lowest_failed_rank_is_said(within, failing):
    ranks = Ranks(7, within)
    for rank in failing:
        ranks.tell(rank, failed=f"rank {rank} has failed", status=10 + rank)
    assert ranks.statuses(20) == [10 + min(failing)] * 7
    assert ranks.said() == f"rank {min(failing)} has failed\n"


def test_a_failure_that_cannot_wait_is_said_at_once(within):
    ranks = Ranks(7, within)
    ranks.tell(3, failed="twice", status=130, at_once=True)
    ranks.statuses(20)
    assert ranks.said() == "twice\n"


@pytest.mark.parametrize("what", ["step", "outside"])
def test_a_run_is_stalled_when_no_rank_of_the_tree_takes_a_step(within, what):
    ranks = Ranks(7, within, stalled=3.0)
    for step in range(16):
        ranks.tell(LEAF, **({"step": step} if what == "step" else {"outside": True}))
        time.sleep(0.3)
    assert ranks.said() == ""
    ranks.tell(LEAF, outside=False)
    deadline = time.monotonic() + 20
    while "ranks 0-6, newest call first" not in ranks.said():
        assert time.monotonic() < deadline, ranks.said()
        time.sleep(0.1)
    assert "hpcstencil: no step for" in ranks.said() and all(process.poll() is None for process in ranks.processes)


@pytest.mark.parametrize("gone", [ROOT, INNER, LEAF])
def test_a_run_without_steps_is_ended_soon_if_a_rank_has_left(within, gone):
    ranks = Ranks(7, within)
    ranks.tell(3, outside=True)
    ranks.tell(gone, bye=1)
    time.sleep(5.5)  # rank 3 may compute something else as long as it likes
    assert ranks.said() == "" and all(process.poll() is None for process in ranks.processes)
    ranks.tell(3, outside=False)
    statuses = [process.wait(30) for rank, process in enumerate(ranks.processes) if rank != gone]
    assert set(statuses) == {4}
    said = f", and the program has ended on rank {gone}; others may be waiting for it; "
    assert f"{said}after 7 s the run will be ended" in ranks.said() and f"{said}the run is ended" in ranks.said()


def test_ranks_leave_in_any_order(within):
    """A monitor leaves when the ranks below have; until then a loss there is still noticed."""
    ranks = Ranks(7, within)
    for rank in (ROOT, INNER, LEAF):
        ranks.tell(rank, bye=1)
    time.sleep(4.0)  # longer than the patience
    assert alive(ranks.monitors[ROOT]) and alive(ranks.monitors[INNER]) and not alive(ranks.monitors[LEAF])
    for rank in (5, 2, 3, 4):
        ranks.tell(rank, bye=1)
    deadline = time.monotonic() + 10
    while any(map(alive, ranks.monitors)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert ranks.said() == "" and all(process.poll() is None for process in ranks.processes)


def test_a_loss_after_others_have_left_ends_all(within):
    ranks = Ranks(7, within)
    for rank in (ROOT, INNER):
        ranks.tell(rank, bye=1)
    time.sleep(0.2)
    ranks.processes[3].kill()
    assert ranks.statuses(20) == [4, 4, 4, -9, 4, 4, 4]
    assert len(reports(ranks.said())) == 1


def test_a_rank_lost_before_the_monitors_are_connected_is_reported(within):
    ranks = Ranks(2, within, connected=False)
    ranks.processes[1].kill()
    deadline = time.monotonic() + 10
    while alive(ranks.monitors[1]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [(rank, step) for rank, _, step in reports(ranks.said())] == [("1", "")]


def test_a_job_that_is_suspended_goes_on(within):
    """Everything is stopped for longer than the patience, the monitors last and first."""
    ranks = Ranks(7, within)
    everyone = [*(process.pid for process in ranks.processes), *ranks.monitors]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(6.0)
    for pid in reversed(everyone):
        os.kill(pid, signal.SIGCONT)
    time.sleep(4.0)
    assert all(process.poll() is None for process in ranks.processes) and ranks.said() == ""
