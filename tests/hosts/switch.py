"""A network switch in user space: frames between two hosts arrive late, or not at all.

`python switch.py PID PID DEVICE MTU DELAY LOSS SEED` makes a TAP device in the network namespaces of two processes and carries
frames between them, each after DELAY seconds, and loses the fraction LOSS of them, chosen by a generator with a seed. (The
kernel's own `tc netem` does the same, but is missing from many kernels.) A line `cut` on standard input makes it lose
all frames from then on, silently, as a pulled cable behind a switch does; `mend` ends that. It leaves when its input ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
CLONE_NEWNET = 0x40000000  # linux/sched.h
PR_SET_TIMERSLACK = 29  # linux/prctl.h
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class Port:
    """The switch's end of one host's cable, and the frames on their way to that host with the time they are due."""

    tap: int
    underway: deque[tuple[float, bytes]] = field(default_factory=deque)


def enter(namespace: int) -> None:
    """Move this process into a network namespace, given as an open file."""
    if LIBC.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


def plug(pid: int, device: str, mtu: int) -> Port:
    """A new TAP device in the network namespace of a process."""
    ours, theirs = (os.open(f"/proc/{who}/ns/net", os.O_RDONLY) for who in ("self", pid))
    enter(theirs)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", device, "mtu", str(mtu)], check=True)
    enter(ours)
    os.close(ours)
    os.close(theirs)
    return Port(tap)


def receive(source: Port, target: Port, due: float, lost: random.Random, loss: float, mtu: int) -> None:
    """Take the frames that a host has sent and put those that are not lost on their way."""
    while True:
        try:
            frame = os.read(source.tap, mtu + 64)
        except (BlockingIOError, OSError):  # none left, or the device is down
            return
        if not loss or lost.random() >= loss:
            target.underway.append((due, frame))


def deliver(port: Port, now: float) -> None:
    """Hand a host the frames that are due."""
    while port.underway and port.underway[0][0] <= now:
        _, frame = port.underway.popleft()
        try:
            os.write(port.tap, frame)
        except OSError:  # the device is down: the frame is lost, as on a real network
            continue


def carry(ports: tuple[Port, Port], delay: float, loss: float, seed: int, mtu: int) -> None:
    """Carry frames until standard input ends."""
    lost, fraction = random.Random(seed), loss
    others = {ports[0].tap: ports, ports[1].tap: ports[::-1]}
    while True:
        dues = [port.underway[0][0] for port in ports if port.underway]
        wait = max(0.0, min(dues) - time.monotonic()) if dues else None
        ready, _, _ = select.select([0, *others], [], [], wait)
        if 0 in ready:
            order = os.read(0, 64).decode().strip()
            if not order:
                return
            fraction = 1.0 if order == "cut" else loss
            if order == "cut":
                for port in ports:
                    port.underway.clear()
            print(order, flush=True)
        due = time.monotonic() + delay
        for tap in ready:
            if tap in others:
                receive(*others[tap], due, lost, fraction, mtu)
        for port in ports:
            deliver(port, time.monotonic())


def main(first: str, second: str, device: str, mtu: str, delay: str, loss: str, seed: str) -> None:
    # A frame is delivered when it is due, as an interrupt would do it: MPI's ranks poll, and a waiting switch of ordinary
    # priority would get a core only at the next tick of the scheduler, 4 ms later.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    LIBC.prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)  # nanoseconds, instead of 50000
    ports = plug(int(first), device, int(mtu)), plug(int(second), device, int(mtu))
    print("ready", flush=True)
    carry(ports, float(delay), float(loss), int(seed), int(mtu))


if __name__ == "__main__":
    main(*sys.argv[1:])
