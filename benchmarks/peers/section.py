"""The section of docs/performance.md about peers: one table per peer, of which rows can be replaced one by one.

Rows are lines of text under (peer, problem); the "row" (peer, "") is a sentence that stands there instead of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peer import Peer

BEGIN, END = "<!-- peers: begin, written by benchmarks/peers/all.py -->", "<!-- peers: end -->"
Rows = Mapping[tuple[str, str], str]


class OtherMachine(Exception):
    """The rows that would be kept are of another machine or other software."""


def row(problem: str, method: str, kernel: str, ours: float, theirs: float, share: float, measured: str) -> str:
    """A line of a table: speeds in cells per second, ``share`` of the copy bandwidth, and with what and when."""
    speeds = " | ".join(f"{speed / 1e6:.{0 if speed >= 1e8 else 1}f}" for speed in (ours, theirs))
    return f"| {problem} | {method} | {kernel} | {speeds} | {ours / theirs:.2f} | {share:.2f} | {measured} |"


def rows_of(page: str, peers: Sequence[Peer]) -> Rows:
    """What a page holds of the peers' problems."""
    rows = {}
    for peer in peers:
        _, _, part = _inside(page).partition(f"### {peer.name}\n")
        for line in part.partition("\n### ")[0].splitlines():
            if line.startswith("Not measured"):
                rows[peer.name, ""] = line
            elif line.startswith("| ") and (problem := line.split(" | ")[0][2:]) in peer.problems:
                rows[peer.name, problem] = line
    return rows


def replaced(page: str, machine: str, peers: Sequence[Peer], new: Rows) -> str:
    """The page with these rows, in the place of those of the same problems; rows of other problems are kept.

    Raises OtherMachine where rows are kept but the page does not name ``machine``.
    """
    renewed = {peer for peer, _ in new}
    unfit = {peer for peer, problem in new if not problem}
    kept = {
        (peer, problem): line
        for (peer, problem), line in rows_of(page, peers).items()
        if (peer, problem) not in new and peer not in (unfit if problem else renewed)
    }
    if kept and f"\n{machine}\n" not in _inside(page):
        raise OtherMachine(f"docs/performance.md holds rows of other machines or software than {machine}")
    rows = {**kept, **new}
    parts = [BEGIN, machine]
    for peer in peers:
        table = [rows[peer.name, problem] for problem in peer.problems if (peer.name, problem) in rows]
        head = (
            "| problem | grid and method | kernel | hpcstencil, Mcell/s "
            f"| {peer.name}, Mcell/s | ratio | T_eff / copy bandwidth | measured |\n{'|---' * 8}|"
        )
        if table:
            parts += [f"### {peer.name}", peer.about, "\n".join([head, *table])]
        elif (peer.name, "") in rows:
            parts += [f"### {peer.name}", rows[peer.name, ""]]
    return page.split(BEGIN)[0] + "\n\n".join([*parts, END]) + page.split(END)[1]


def _inside(page: str) -> str:
    return page.split(BEGIN)[1].split(END)[0]
