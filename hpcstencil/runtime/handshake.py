"""The authenticated handshake between the monitors of a run. It uses only the standard library.

Both sides prove that they know the run's token, which never crosses the monitors' connections. The parent, which listens, sends
random bytes. The child answers with the HMAC of these bytes under the token, and with random bytes of its own. The parent
answers with the HMAC of the latter. All three messages have fixed lengths, and nothing else from a connection is interpreted
before they are complete. A parent listens only while its children join, and only at the addresses that they need.
"""

from __future__ import annotations

import fcntl
import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

LOOPBACK = "127.0.0.1"
RANDOM, PROOF = 32, 32  # bytes
SILENT = 5.0  # seconds within which a connection must give its proof
STRANGERS = 64  # unproven connections allowed in addition to one per child; beyond that, the oldest is closed
RATE = 1000  # connections accepted between two ticks, in addition to one per child
TRIES = 10  # attempts of a monitor whose connection is dropped, e.g. because the parent has too many connections
CONNECTING = 3.0  # seconds for which a monitor waits for a connection


def proof(token: str, role: bytes, challenge: bytes) -> bytes:
    """Return the proof of knowing the token: 32 bytes, the HMAC of the role and the other side's challenge.

    The ``role`` prevents one side from sending the other side's proof back as its own.
    """
    return hmac.digest(token.encode(), role + challenge, "sha256")


class Stranger:
    """A connection to a parent that has not given its proof yet, with the challenge sent and the bytes received."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.challenge = secrets.token_bytes(RANDOM)
        self.said = b""
        self.since = time.monotonic()


class Door:
    """The listening sockets of a parent of ``count`` children, and the unproven connections that came through them.

    ``welcome`` is called with each connection that has given its proof. ``selector`` serves the sockets.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: str,
        count: int,
        selector: selectors.BaseSelector,
        welcome: Callable[[socket.socket], None],
    ) -> None:
        self.token, self.count, self.selector, self.welcome = token, count, selector, welcome
        self.strangers: list[Stranger] = []  # the oldest first
        self.listening: list[socket.socket] = []
        for address in addresses:
            with suppress(OSError):
                self.listening.append(socket.create_server((address, 0), backlog=count + STRANGERS))
        for one in self.listening:
            one.setblocking(False)
        self.waiting = list(self.listening)  # sockets that pause until the next tick
        self.tick()

    def places(self) -> list[list[Any]]:
        """Return the [address, port] pairs at which the parent listens, for `joined`."""
        return [list(one.getsockname()) for one in self.listening]

    def tick(self) -> None:
        """Drop strangers that have been silent for too long, and accept connections again. Called about every second."""
        now = time.monotonic()
        for stranger in [one for one in self.strangers if now - one.since > SILENT]:
            self._drop(stranger)
        for one in self.waiting:
            self.selector.register(one, selectors.EVENT_READ, partial(self._accept, one))
        self.waiting, self.accepted = [], 0

    def close(self) -> None:
        """Close the listening sockets and the connections without a proof."""
        for one in self.listening:
            if one not in self.waiting:
                self.selector.unregister(one)
            one.close()
        self.listening, self.waiting = [], []
        for stranger in list(self.strangers):
            self._drop(stranger)

    def _accept(self, listening: socket.socket) -> None:
        """Accept a connection. If there are too many unproven connections, close the oldest."""
        if listening not in self.listening:  # closed since the selector reported a connection
            return
        self.accepted += 1
        try:
            connection, _ = listening.accept()
        except OSError:  # it went again, or there are too many open files
            self.accepted += RATE
        else:
            if len(self.strangers) >= self.count + STRANGERS:
                self._drop(self.strangers[0])
            self._challenge(Stranger(connection))
        if self.accepted >= self.count + RATE:
            self.selector.unregister(listening)
            self.waiting.append(listening)

    def _challenge(self, stranger: Stranger) -> None:
        """Send random bytes to a stranger and wait for its answer."""
        connection = stranger.connection
        connection.setblocking(False)
        self.strangers.append(stranger)
        self.selector.register(connection, selectors.EVENT_READ, partial(self._hear, stranger))
        try:
            connection.sendall(stranger.challenge)
        except OSError:
            self._drop(stranger)

    def _hear(self, stranger: Stranger) -> None:
        """Read more of a stranger's answer, and judge it when it is complete."""
        if stranger not in self.strangers:  # dropped since the selector saw it
            return
        try:
            data = stranger.connection.recv(PROOF + RANDOM - len(stranger.said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        stranger.said += data
        if not data:
            self._drop(stranger)
        elif len(stranger.said) == PROOF + RANDOM:
            self._judge(stranger)

    def _judge(self, stranger: Stranger) -> None:
        """Admit a stranger that knows the token, and prove that we know it too."""
        shown, challenge = stranger.said[:PROOF], stranger.said[PROOF:]
        if not hmac.compare_digest(shown, proof(self.token, b"child", stranger.challenge)):
            self._drop(stranger)
            return
        self.selector.unregister(stranger.connection)
        self.strangers.remove(stranger)
        with suppress(OSError):
            stranger.connection.sendall(proof(self.token, b"parent", challenge))
            self.welcome(stranger.connection)

    def _drop(self, stranger: Stranger) -> None:
        """Close a stranger's connection."""
        self.selector.unregister(stranger.connection)
        self.strangers.remove(stranger)
        stranger.connection.close()


def joined(places: Sequence[Sequence[Any]], token: str) -> socket.socket | None:
    """Connect to the parent at the first of the ``places`` ([address, port] each) that works; return None if none does.

    Both sides of the returned connection have proved that they know the ``token``. An address of the parent's host may
    belong to a different machine in this host's network. Such a machine learns nothing about the token and is skipped.
    """
    for attempt in range(TRIES):
        dropped = []
        for place in places:
            try:
                connection = socket.create_connection((place[0], place[1]), timeout=CONNECTING)
            except OSError:
                continue
            try:
                if _is_parent(connection, token):
                    return connection
            except TimeoutError:
                pass
            except OSError:
                dropped.append(place)
            connection.close()
        places = dropped
        time.sleep(0.02 * attempt if places else 0.0)
    return None


def _is_parent(connection: socket.socket, token: str) -> bool:
    """Prove to the other side that this is a child, and return whether it proves to be the parent.

    Raises OSError if the connection is dropped.
    """
    challenge, until = secrets.token_bytes(RANDOM), time.monotonic() + SILENT
    asked = _exactly(connection, RANDOM, until)
    connection.sendall(proof(token, b"child", asked) + challenge)
    return hmac.compare_digest(_exactly(connection, PROOF, until), proof(token, b"parent", challenge))


def _exactly(connection: socket.socket, count: int, until: float) -> bytes:
    """Read ``count`` bytes. Raises OSError if they do not arrive by the time ``until``."""
    data = b""
    while len(data) < count:
        connection.settimeout(max(0.01, until - time.monotonic()))
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError
        data += more
    return data


def own_addresses() -> list[str]:
    """Return this host's IPv4 addresses as strings, without those of the loopback interface."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]


def where_to_listen(own: Sequence[str], others: Iterable[str]) -> list[str]:
    """Return the addresses at which other hosts can reach this one: those from which packets to them are sent.

    ``own`` are this host's addresses and ``others`` those of the other hosts. Without other hosts, the result is only the
    loopback address.
    """
    others = set(others)
    if not others:
        return [LOOPBACK]
    found = set()
    for address in others - set(own):  # containers' bridges have one address on all hosts
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            found.add(str(probe.getsockname()[0]))
    return sorted(found - {LOOPBACK}) or list(own)
