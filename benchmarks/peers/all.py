"""Speed against all peers, interleaved: writes the section of docs/performance.md that stands between two comments.

  .venv/bin/python benchmarks/peers/all.py [--print] [ROUNDS] [PEER or PROBLEM ...]

Every round measures the copy bandwidth, and each problem once on either side; the rows are medians of the rounds so far and
are written after each. With peers or problems named, only their rows are replaced. Peers are installed on demand, each into
an environment of its own.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys

import devito_speed
import mpi4jax_speed
import numba_speed
import py_pde_speed
from environment import NotInstalled
from peer import START, TOLERANCE, Measured, Peer, common, ours
from section import OtherMachine, Rows, replaced, row

PEERS = (devito_speed.PEER, numba_speed.PEER, py_pde_speed.PEER, mpi4jax_speed.PEER)
PAGE = common.ROOT / "docs" / "performance.md"


def chosen(names: list[str]) -> list[tuple[Peer, str]]:
    """The problems with these names, and those of peers with these names; all without names."""
    known = {name for peer in PEERS for name in (peer.package, *peer.problems)}
    for name in names:
        if name not in known:
            sys.exit(f"'{name}' is no peer and no problem; there are {', '.join(sorted(known))}")
    return [
        (peer, problem)
        for peer in PEERS
        for problem in peer.problems
        if not names or peer.package in names or problem in names
    ]


def page_with(rows: Rows) -> str:
    """docs/performance.md with these rows. Ends the benchmark where others would be kept that were measured elsewhere."""
    try:
        return replaced(PAGE.read_text(), f"{common.machine()}; {common.software()}", PEERS, rows)
    except OtherMachine as error:
        sys.exit(f"{error}; name no problems, to measure all of them again, or --print")


def measured(peer: Peer, name: str) -> tuple[Measured, Measured]:
    """Both sides of a problem, once. Ends the benchmark where they computed different things."""
    mine, theirs = ours(peer.problems[name]), peer.theirs(name)
    speeds = " and ".join(f"{side.cells_per_second / 1e6:.1f} Mcell/s ({side.by})" for side in (mine, theirs))
    print(f"{peer.name}, {name}: {speeds}", file=sys.stderr, flush=True)
    if theirs.value is not None and not abs(mine.value - theirs.value) <= TOLERANCE * abs(mine.value - START):
        sys.exit(f"{name}: u ends as {mine.value} in the central cell, but as {theirs.value} with {peer.name}")
    return mine, theirs


def line(peer: Peer, name: str, rounds: list[tuple[Measured, Measured]], bandwidth: float) -> str:
    """The row of a problem: medians of its rounds."""
    mine, theirs = zip(*rounds, strict=True)
    speeds = [statistics.median(side.cells_per_second for side in sides) for sides in (mine, theirs)]
    share = statistics.median(side.t_eff for side in mine) / bandwidth
    when = f"{datetime.date.today()}, median of {len(rounds)}, {bandwidth / 1e9:.1f} GB/s"
    return row(name, peer.problems[name].method(), mine[0].by, *speeds, share, f"{peer.package} {theirs[0].by}, {when}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed against all peers; NAME is a peer's or a problem's.")
    parser.add_argument("words", nargs="*", metavar="ROUNDS NAME")
    parser.add_argument("--print", action="store_true", help="leave docs/performance.md as it is")
    options = parser.parse_args()
    count = int(options.words.pop(0)) if options.words and options.words[0].isdigit() else 5
    wanted = chosen(options.words)
    if not options.print:
        page_with({(peer.name, name): "" for peer, name in wanted})
    rows = {}
    for peer in dict.fromkeys(peer for peer, _ in wanted):
        try:
            peer.install()
        except NotInstalled as error:
            rows[peer.name, ""] = f"Not measured: {error}."
    wanted = [(peer, name) for peer, name in wanted if (peer.name, "") not in rows]
    bandwidths = []
    rounds: dict[tuple[str, str], list[tuple[Measured, Measured]]] = {}
    for _ in range(count):
        bandwidths.append(common.copy_bandwidth())
        for peer, name in wanted:
            rounds.setdefault((peer.name, name), []).append(measured(peer, name))
        for peer, name in wanted:
            rows[peer.name, name] = line(peer, name, rounds[peer.name, name], statistics.median(bandwidths))
        if not options.print:
            PAGE.write_text(page_with(rows))
    print("\n".join(rows.values()))


if __name__ == "__main__":
    main()
