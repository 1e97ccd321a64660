"""The tree of the monitors as arithmetic: which monitor is connected to which. It imports nothing of the project.

The lowest rank of each host is its leader. The leaders form a tree with rank 0 at the root, and the ranks of a host form a
tree under their leader. In both trees a monitor has at most ``FAN_OUT`` children, as in a heap: the children of member i are
the members ``FAN_OUT`` i + 1 to ``FAN_OUT`` i + ``FAN_OUT``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FAN_OUT = 8  # no monitor holds more than 17 connections; 10 000 ranks on 80 hosts are at most 6 from rank 0


@dataclass(frozen=True)
class Place:
    """The place of a rank in the tree.

    ``parent`` is a rank, None for rank 0. ``turn`` is its number among the children of the parent, from 0. ``children`` are
    ranks, and ``addresses`` those of the children's hosts, as far as these are different from the own one.
    """

    parent: int | None
    turn: int
    children: tuple[int, ...]
    addresses: tuple[str, ...]


def places(ranks: Sequence[tuple[str, Sequence[str]]], fan_out: int = FAN_OUT) -> list[Place]:
    """Return the place of every rank. ``ranks`` are (host, its addresses) of each rank, in order."""
    hosts: dict[str, list[int]] = {}
    for rank, (host, _) in enumerate(ranks):
        hosts.setdefault(host, []).append(rank)
    parents: list[int | None] = [None] * len(ranks)
    for members in (*hosts.values(), [own[0] for own in hosts.values()]):
        for n, rank in enumerate(members[1:]):
            parents[rank] = members[n // fan_out]
    children: list[list[int]] = [[] for _ in ranks]
    turns = [0] * len(ranks)
    for rank, parent in enumerate(parents):
        if parent is not None:
            turns[rank] = len(children[parent])
            children[parent].append(rank)
    return [
        Place(
            parents[rank],
            turns[rank],
            tuple(children[rank]),
            tuple(sorted({one for c in children[rank] if ranks[c][0] != host for one in ranks[c][1]})),
        )
        for rank, (host, _) in enumerate(ranks)
    ]
