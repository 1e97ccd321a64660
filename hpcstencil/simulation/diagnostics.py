"""Diagnostics: numbers from reductions over the whole grid, collected until the next snapshot is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcstencil.backends.backend import Reduced, Reductions
from hpcstencil.distributed.halo import Fields
from hpcstencil.io.dataset_names import DIAGNOSTICS
from hpcstencil.io.time_series import RowsOf
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Node, Reduction, Time, walk
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS


@dataclass
class Diagnostics:
    """The diagnostics of a run, and their values that are not in the file yet.

    ``trees`` are the expressions by name, and ``reductions`` reduces their operands. ``steps``, ``times`` and ``rows`` (a
    list of values by name) wait to be written; they are equal on all processes.
    """

    trees: Mapping[str, Node]
    reductions: Reductions
    parameters: Mapping[str, Any]
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    rows: dict[str, list[Any]] = field(default_factory=dict)

    def take(self, fields: Fields, step: int, time: float) -> None:
        """Evaluate all diagnostics for this state, and keep the values as a row. Collective."""
        if not self.trees:
            return
        self.add(self.evaluate(fields, time), step, time)

    def add(self, values: Mapping[str, Any], step: int, time: float) -> None:
        """Keep the ``values`` of all diagnostics at a step as a row."""
        self.steps.append(step)
        self.times.append(time)
        for name, value in values.items():
            self.rows.setdefault(name, []).append(value)

    def evaluate(self, fields: Fields, time: float) -> dict[str, Any]:
        """Return the value of each diagnostic by name, equal on all processes. Collective.

        A value is a float, or in an ensemble a float64 array of shape (members,). It is NaN if a reduction in it meets a
        non-finite cell.
        """
        low, high, broken = self.reductions.extremes(fields, self.parameters, time)
        largest = np.where(broken > 0, np.nan, np.maximum(np.abs(low), np.abs(high)))
        sums = self.reductions.sums(fields, self.parameters, time, largest)
        return self.values(Reduced(low, high, broken, sums), time)

    def values(self, reduced: Reduced, time: float) -> dict[str, Any]:
        """Return the same values as `evaluate`, from the reductions of a state at ``time``."""
        reductions, cells = self.reductions, self.reductions.cells
        broken, sums = reduced.broken, reduced.sums
        low, high = (np.where(broken, np.nan, extreme) for extreme in (reduced.low, reduced.high))
        volume = reductions.device_grid.grid.cell_volume
        known = {**numpy_evaluate.by_node(self.parameters), Time(): time}
        by_operand = {tree: i for i, tree in enumerate(reductions.trees)}
        for tree in self.trees.values():
            for part in walk(tree):
                if isinstance(part, Reduction):
                    i = by_operand[part.operand]
                    known[part] = REDUCTIONS[part.kind].value(sums[i], low[i], high[i], cells, volume)
        found = {
            name: np.asarray(numpy_evaluate.evaluate(tree, values=known), np.float64)
            for name, tree in self.trees.items()
        }
        return {name: float(value) if value.ndim == 0 else value for name, value in found.items()}

    @property
    def held(self) -> int:
        """The size in bytes of the rows kept since the last `drain`."""
        return 8 * len(self.steps) * (2 + len(self.trees))

    def drain(self) -> RowsOf:
        """Return the rows kept since the last call, and drop them here."""
        rows = self.steps, self.times, self.rows
        self.steps, self.times, self.rows = [], [], {}
        return {DIAGNOSTICS: rows}
