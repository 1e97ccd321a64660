"""Checkpoints of a reverse sweep: the place that it has reached, from which it continues with the same bits.

They are files like the checkpoints of a run (`checkpoint.checkpoint`), with the number of reversed steps for the step. They
hold the derivatives so far by field of the adjoint problem, the terms of the objective, the sizes of the steps if these follow
the solution, and the results of the members of an ensemble that come before. Stored states have files of their own
(`stored_states`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil.adjoint.run_steps import RunSteps
from hpcstencil.adjoint.unknowns import CellValues, NumberParameter
from hpcstencil.checkpoint.checkpoint import read_checkpoint, write_checkpoint
from hpcstencil.config.probes import probe_key
from hpcstencil.gradient import checkpoint_identity, tables
from hpcstencil.gradient.members import Members, Results
from hpcstencil.gradient.sweep_hooks import SweepPosition
from hpcstencil.gradient.tables import TABLES, part_of, shapes_of
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.simulation.file_blocks import checkpoint_block, from_checkpoint
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import listing

WHAT = "gradient"
SAMPLES = "samples of "  # and a table of [probes]: the table of the derivatives with respect to its samples
SO_FAR = "so far of "  # and the key of a time series: the table of the derivatives with respect to its samples
FREE = (*checkpoint_identity.FREE, "fit.")  # keys in which a gradient that continues may differ from the one before


@dataclass(frozen=True)
class GradientPosition:
    """The position of a gradient: the ``number`` of the member that is being swept (0 for a single run), the position of its
    ``sweep``, and the ``results`` of the members before it."""

    number: int
    sweep: SweepPosition
    results: Results = field(default_factory=Results)

    def reversed(self, members: Members) -> int:
        """The number of steps in reverse so far, of all members."""
        return sum(sweep.steps for sweep in members.sweeps[: self.number + 1]) - self.sweep.step


def write(output: Path, members: Members, position: GradientPosition, digests: Mapping[str, str]) -> Path:
    """Write the checkpoint of a gradient that writes ``output``, and return its path. Collective. See `write_checkpoint`."""
    simulation, config = members.forward, members.config
    sweep, results, reached = members.sweeps[position.number], position.results, position.sweep
    direct = list(sweep.adjoint.direct)
    given: dict[str, Any] = {
        "terms": [[value, *(slopes.get(name, 0.0) for name in direct)] for value, slopes in reached.parts],
        "values": results.values,
        "numbers": [results.numbers[key] for key in _numbers(members)] if results.values else [],
        **{f"{SO_FAR}{key}": [values] for key, values in reached.series.items()},
        **{f"{SAMPLES}{table}": each for table, each in (reached.slopes or {}).items()},
        **{f"series before of {key}": each for key, each in results.series.items()},
    }
    if simulation.problem.step_follows_solution:
        given |= {f"steps{n}": [tuple(part) for part in one.run.ranges] for n, one in enumerate(members.sweeps)}
    found = {name: np.array(table, np.float64) for name, table in given.items() if len(table)}
    fields = {**reached.cotangents, **{f"sums/{key}": array for key, array in results.sums.items()}}
    blocks = {f"member{n}/{key}": block for key, each in results.blocks.items() for n, block in enumerate(each)}
    return write_checkpoint(
        output,
        simulation.communicator,
        config.grid,
        step=position.reversed(members),
        time=sweep.run.time_of(reached.step),
        arrays={**{name: checkpoint_block(simulation, array) for name, array in fields.items()}, **blocks},
        ranges=simulation.ranges,
        scalars={"member": position.number, "step": reached.step, **shapes_of(found)},
        attributes=checkpoint_identity.attributes_of(WHAT, members, digests),
        keep=config.checkpoint.keep,
        method=config.output.method,
        partial_arrays={
            TABLES + name: part_of(table, simulation.communicator, config.grid.ndim) for name, table in found.items()
        },
    )


def _numbers(members: Members) -> list[str]:
    """The keys of the unknowns that are numbers."""
    return [one.key for one in members.unknowns if isinstance(one, NumberParameter)]


def read(path: Path, members: Members, digests: Mapping[str, str]) -> tuple[GradientPosition, Members]:
    """Read the place of a gradient, and the sweeps with the steps of their runs, from a checkpoint. Collective.

    Raises InputError, on all processes, if the input or its data have changed.
    """
    simulation = members.forward
    communicator = simulation.communicator
    scalars = checkpoint_identity.read_scalars(path, members, digests, FREE)

    def rows(name: str) -> list[Any]:
        """A table as nested lists; empty if there is none."""
        values = tables.read_shaped(path, name, scalars, communicator, len(simulation.ranges))
        found: list[Any] = [] if values is None else values.tolist()
        return found

    sweeps = []
    for n, one in enumerate(members.sweeps):
        ranges = [StepRange(time, int(first), dt, int(count)) for time, first, dt, count in rows(f"steps{n}")]
        sweeps.append(replace(one, run=RunSteps(tuple(ranges), one.run.end)) if ranges else one)
    members = replace(members, sweeps=tuple(sweeps))
    number, step = int(scalars.get("member", -1)), int(scalars.get("step", -1))
    if not 0 <= number < len(sweeps) or not 0 <= step <= sweeps[number].steps:
        raise InputError(
            f"{path}: expected a place among the steps of this gradient, but got {step}; take another checkpoint"
        )
    direct, values = list(sweeps[number].adjoint.direct), rows("values")
    parts = [(row[0], dict(zip(direct, row[1:], strict=True))) for row in rows("terms")]
    fields = list(sweeps[number].adjoint.reverse_rhs) if step < sweeps[number].steps else []
    summed = simulation.problem.summed_receivers
    slopes = tables.read_each(path, SAMPLES, summed, scalars, communicator, len(simulation.ranges))
    arrays = [one.key for one in members.unknowns if isinstance(one, CellValues)]
    series = list(members.series)
    so_far = {key: np.array(row) for key in series for row in rows(f"{SO_FAR}{key}")}
    missing = [key for key in series if key not in so_far]
    missing += [f"the samples of {probe_key(table)}" for table in summed if table not in slopes]
    if fields and missing:
        raise InputError(
            f"{path}: expected the derivatives with respect to {listing(missing)} so far, but there are none, because another "
            "version of hpcstencil wrote it; begin again with --overwrite"
        )
    sums = [f"sums/{key}" for key in arrays if key not in members.own and values]
    own = {key: [f"member{n}/{key}" for n in range(len(values))] for key in arrays if key in members.own and values}
    names = [*fields, *sums, *(name for each in own.values() for name in each)]
    blocks, _, _ = read_checkpoint(path, simulation.ranges, communicator, names)
    found = simulation.put({name: from_checkpoint(simulation, blocks[name]) for name in (*fields, *sums)})
    results = Results(
        values,
        dict(zip(_numbers(members), rows("numbers"), strict=bool(values))),
        {key: [from_checkpoint(simulation, blocks[name]) for name in each] for key, each in own.items()},
        {name.removeprefix("sums/"): found[name] for name in sums},
        {key: [np.array(row) for row in rows(f"series before of {key}")] for key in series if values},
    )
    return GradientPosition(
        number, SweepPosition(step, {name: found[name] for name in fields}, parts, so_far, slopes or None), results
    ), members
