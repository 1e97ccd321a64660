"""A parent in the tree of monitors among strangers: they neither come in nor end anything, and its children still join."""

import json
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from hpcstencil.runtime import handshake
from hpcstencil.runtime.handshake import LOOPBACK, STRANGERS, joined, where_to_listen
from hpcstencil.runtime.monitor_peers import message_of
from hpcstencil.runtime.watchdog import MONITOR

TOKEN = "0123456789abcdef" * 4


class Parent:
    """The monitor of rank 0 of two; this test takes the parts of that rank and of the other's monitor."""

    def __init__(self, within):
        rank = subprocess.Popen(["sleep", "100"])
        within.callback(rank.wait)
        within.callback(rank.kill)
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-P", "-c", MONITOR, "0", str(rank.pid), "0", "62"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        within.callback(self.process.kill)
        self.tell(token=TOKEN)
        self.tell(listen=[LOOPBACK], children=[1])
        (self.place,) = json.loads(self.process.stdout.readline())["doors"]

    def tell(self, **message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()


@pytest.fixture
def within():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def parent(within):
    return Parent(within)


def stranger(parent, within):
    return within.enter_context(socket.create_connection(parent.place, timeout=20))


def is_dropped(connection):
    """Whether the parent ends the connection, after the bytes that it sends to everybody."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


ATTACKS = {
    "a JSON number": b"5\n",
    "brackets": b"[" * 200_000,
    "a line without end": b"x" * 2_000_000,
    "a message": b'{"rank": 1, "host": "n", "token": "", "failed": "no", "status": 3}\n',
    "half a proof": b"?" * 40,
    "a wrong proof": b"?" * 64,
}


@pytest.mark.parametrize("said", ATTACKS.values(), ids=ATTACKS)
def test_a_stranger_is_dropped_and_the_run_goes_on(parent, within, said):
    connection = stranger(parent, within)
    try:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # dropped amid it
    assert is_dropped(connection)
    goes_on(parent, within)


def goes_on(parent, within):
    """The other rank joins and hears the parent's pulse; then rank 0 is done, and nothing was said."""
    rank = within.enter_context(joined([parent.place], TOKEN))
    rank.sendall(b'{"rank": 1, "host": "n"}\n')
    with rank.makefile() as lines:
        assert "pulse" in lines.readline()
        parent.tell(bye=1)
        rank.sendall(b'{"bye": 1}\n')
        assert all("pulse" in line for line in lines)
    assert parent.process.wait(20) == 0 and parent.process.stderr.read() == b""


def test_many_silent_strangers_neither_stay_nor_keep_ranks_out(parent, within):
    crowd = [stranger(parent, within) for _ in range(3 * STRANGERS)]
    assert is_dropped(crowd[0])  # who makes room for the last ones
    assert is_dropped(crowd[-1])  # after SILENT seconds
    crowd += [stranger(parent, within) for _ in range(2 * STRANGERS)]
    goes_on(parent, within)


def test_the_door_is_closed_when_all_have_joined(parent, within):
    assert parent.place[0] == LOOPBACK
    rank = within.enter_context(joined([parent.place], TOKEN))
    rank.sendall(b'{"rank": 1, "host": "n"}\n')
    waiting = stranger(parent, within)
    parent.tell(joined=1)
    assert is_dropped(waiting)
    with pytest.raises(ConnectionRefusedError):
        stranger(parent, within)
    with rank.makefile() as lines:
        assert "pulse" in lines.readline()


def test_a_false_centre_is_noticed_and_learns_nothing(within):
    server = within.enter_context(socket.create_server((LOOPBACK, 0)))
    heard = []

    def answer():
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"0" * 32)
            heard.append(connection.recv(1000))
            connection.sendall(heard[-1][:32])  # the proof sent back

    thread = threading.Thread(target=answer)
    thread.start()
    assert joined([server.getsockname()], TOKEN) is None
    thread.join(20)
    assert heard and not any(TOKEN.encode() in said for said in heard)


NO_MESSAGES = [
    b"5", b"[]", b"null", b'"step"', b"", b"\xff", b'{"step": "7"}', b'{"step": true}', b'{"step": 7.0}', b'{"failed": 1}',
    b'{"whatever": 1}', b'{"step": {}}', b"[" * 200_000, b'{"step":' * 200_000, b'{"step": ' + b"9" * 10_000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("line", NO_MESSAGES, ids=lambda line: repr(line[:20]))
def test_what_is_no_message(line):
    assert message_of(line) is None


def test_where_the_centre_listens():
    assert where_to_listen(["10.99.0.1", "172.17.0.1"], []) == [LOOPBACK]  # all ranks are on this host
    here = handshake.own_addresses()
    assert set(where_to_listen(here, ["192.0.2.1"])) <= set(here)
    assert where_to_listen(["10.99.0.1"], ["10.99.0.1"]) == ["10.99.0.1"]  # nothing leads to the others: all there is
