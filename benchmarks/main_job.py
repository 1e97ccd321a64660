"""Measure the main job on 1, 2 and 4 processes with 1 and 2 devices: cells/s, and the shares of exchange, output and compiling.

The share of the exchange comes from `hpcstencil bench`: the time of separate exchanges divided by the time of the steps that
need them. The other shares come from the run's closing summary.

    .venv/bin/python benchmarks/main_job.py [end of the run] [kernel]
"""

from __future__ import annotations

import json
import re
import sys
import tempfile

from common import ROOT, command, machine, output_of

INPUT = str(ROOT / "inputs" / "gray_scott.toml")


def main(end: str = "2000.0", kernel: str = "auto") -> None:
    print(f"{machine()}; inputs/gray_scott.toml up to t = {end}, kernel {kernel}")
    chosen = ["--set", f"numerics.kernel={kernel}", "--devices"]
    columns = {
        "processes": 9,
        "devices": 9,
        "Mcell/s": 9,
        "T_eff GB/s": 12,
        "exchange": 10,
        "output": 8,
        "compiling": 11,
    }
    print("".join(f"{name:>{width}}" for name, width in columns.items()) + f"{'wall s':>8}")
    for processes in (1, 2, 4):
        for devices in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                arguments = [
                    "run",
                    INPUT,
                    "--set",
                    f"time.end={end}",
                    "--output",
                    f"{folder}/o.h5",
                    *chosen,
                    str(devices),
                ]
                text = output_of(command(processes, *arguments))
            names = ("wall time", "starting up", "setting up", "compiling", "output", "waiting for the disk")
            wall, starting, setting, compiling, output, waiting = (
                float(found.group(1)) if (found := re.search(rf"{name} +([0-9.]+) s", text)) else 0.0 for name in names
            )
            wall, compiling, output = wall - starting, compiling + setting, output + waiting
            speed = re.search(r"speed +([0-9.]+) Mcell/s, T_eff ([0-9.]+)", text)
            assert speed
            row = json.loads(output_of(command(processes, "bench", INPUT, *chosen, str(devices), "--json")))["rows"][0]
            print(
                f"{processes:>9}{devices:>9}{speed.group(1):>9}{speed.group(2):>12}{row['exchange_fraction']:>10.1%}"
                f"{output / wall:>8.1%}{compiling / wall:>11.1%}{wall:>8.1f}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
