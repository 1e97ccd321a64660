"""The report of `hpcstencil bench`, as a JSON object and as a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from hpcstencil import __version__
from hpcstencil.benchmark.rows import Row
from hpcstencil.runtime.versions import versions


def result(bandwidth: float, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the object that `bench --json` prints.

    It has the machine, the versions, the copy bandwidth in bytes per second, and the rows of `rows.measure`.
    """
    return {"machine": _machine(), "versions": _versions(), "copy_bandwidth": bandwidth, "rows": list(rows)}


def _machine() -> dict[str, Any]:
    """Return the processor, the number of cores and the kind of device of this host."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), model)
    device = jax.local_devices()[0]
    kind = " ".join(dict.fromkeys((device.platform, device.device_kind)))  # a processor's kind is its platform
    return {"processor": model, "cores": os.cpu_count(), "device": kind}


def _versions() -> dict[str, str]:
    """Return the versions of the libraries on which the speed depends, by name."""
    return {"hpcstencil": __version__, **versions()}


def _product(counts: Sequence[int]) -> str:
    """Format the counts of all axes, such as "2x1"."""
    return "x".join(map(str, counts))


def _longest(waiting: Sequence[float]) -> str:
    """Format the share of time for which the longest-waiting process waits, with its rank; "" for one process."""
    if len(waiting) == 1:
        return ""
    most = max(waiting)
    return f"{most:.1%} by rank {waiting.index(most)}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "scaling": lambda row: row["scaling"] or "",
    "grid": lambda row: _product(row["grid"]),
    "processes": lambda row: _product(row["processes"]),
    "devices": lambda row: _product(row["devices"]),
    "kernel": lambda row: row["kernel"],
    "Mcell/s": lambda row: f"{row['cells_per_second'] / 1e6:.1f}",
    "T_eff GB/s": lambda row: f"{row['t_eff'] / 1e9:.2f}",
    "ratio": lambda row: f"{row['ratio']:.2f}",
    "x stages": lambda row: f"{row['ratio_stages']:.2f}",
    "efficiency": lambda row: f"{row['efficiency']:.2f}" if row["scaling"] else "",
    "exchange": lambda row: f"{row['exchange_fraction']:.1%}",
    "waiting, most": lambda row: _longest(row["waiting_fraction"]),
    "compile": lambda row: f"{row['compile_seconds']:.2f} s",
}


def table(results: Mapping[str, Any]) -> str:
    """Format the object of `result` as a table, without empty columns."""
    machine, rows = results["machine"], results["rows"]
    first = rows[0]
    lines = [
        f"machine         {machine['processor']}, {machine['cores']} cores, {machine['device']}",
        f"copy bandwidth  {results['copy_bandwidth'] / 1e9:.1f} GB/s (read + written, measured in this run)",
        f"problem         {Path(first['equation']).name}, order {first['order']}, {first['precision']}",
        "",
    ]
    columns = [[title, *map(entry, rows)] for title, entry in COLUMNS.items()]
    columns = [column for column in columns if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for entries in zip(*columns, strict=True):
        lines.append("  ".join(text.rjust(width) for text, width in zip(entries, widths, strict=True)).rstrip())
    return "\n".join(lines)
