"""The report of `hpcstencil check`: all settings, the decomposition, memory and time, without JAX."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.limits import plan_of_fit
from hpcstencil.adjoint.members import data_of_member, differing, per_member, single_runs
from hpcstencil.adjoint.plan import injects, plan_of, steps_at_once, with_tape_if_faster
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.run_steps import steps_of
from hpcstencil.adjoint.unknowns import NumberParameter, SeriesParameter, Unknown
from hpcstencil.config.paths import stream_paths
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.settings import Config
from hpcstencil.config.streams import StreamConfig
from hpcstencil.equations import SupportsCfl
from hpcstencil.numerics.finite_differences import Weights
from hpcstencil.numerics.schedule import ROUND
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.model import given_parameters
from hpcstencil.problem.parameter_files import key_of
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.receivers import LEAST_FLUID, among_solids
from hpcstencil.problem.solid_mask import ALL_SOLID, solid_in_file
from hpcstencil.problem.stability import cfl_step, stable_dt
from hpcstencil.runtime.walltime import within
from hpcstencil.simulation.checkpoint_time import seconds_to_checkpoint
from hpcstencil.simulation.memory_estimate import memory
from hpcstencil.simulation.prepared import Prepared
from hpcstencil.simulation.step_speed import step_speed
from hpcstencil.symbolic.numpy_evaluate import SAMPLED, at_start
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import bytes_text, listing

BY_METHOD = {"direct": "", "fft": ", applied by Fourier transforms: the last digits depend on the decomposition"}
SHOWN = 49  # largest number of weights of a stencil, or receivers of a table, that are printed in full
WIDTH = 64  # width of a drawing in characters, which are twice as high as wide
PROGRAM = "0.3 GB"  # memory of Python, JAX, MPI, HDF5 and leftovers of the compilers, on a CPU


def report(prepared: Prepared) -> str:
    """Return the text of `hpcstencil check`: the settings, the decomposition, and what the run will need.

    It assumes CPUs, because native code is not available on GPUs. Raises InputError if a mask covers the whole grid, if
    an initial expression is not finite, or if a receiver lies among solid cells.
    """
    problem, plan, config = prepared.problem, prepared.plan, prepared.problem.config
    itemsize = np.dtype(config.numerics.precision).itemsize
    fields, topology = len(problem.fields) * problem.copies, plan.topology
    block = " x ".join(str(stop - start) for start, stop in topology.block(0))
    _refuse_start(problem)
    _refuse_receivers_among_solids(problem)
    needed, seconds = memory(prepared), within(seconds_to_checkpoint(problem))
    lines = [
        to_toml(_without_long_lists(_with_all_parameters(problem))).rstrip(),
        "",
        *_stencils(config),
        *_geometry(config),
        *_parameters(problem),
        f"fields                {', '.join(problem.shown)}{_memory(problem)}",
        *([f"members               {len(problem.members)}, side by side"] if problem.members else []),
        f"stencil radius        {' x '.join(map(str, plan.radius))} cells, {_stages(plan.stages)} per step",
        f"processes             {' x '.join(map(str, topology.processes))}, largest block {block} cells",
        f"devices per process   {' x '.join(map(str, topology.devices))}, tiles {' x '.join(map(str, topology.tiles))}",
        f"steps per exchange    {plan.steps_per_exchange or 'one stage'}, halo {' x '.join(map(str, plan.halo))} cells"
        f"{_may_be_changed(config, topology)}",
        f"memory per process    {bytes_text(needed)} of field arrays, beside the program's own {PROGRAM}{_too_much(needed)}",
        f"halo per step         {bytes_text(plan.halo_bytes_per_step(fields, itemsize))} sent and received by a process",
        f"kernel                {prepared.choice.why}",
        f"time step             {_time_step(problem)}",
        f"steps                 {_steps(problem)}",
        *_gradient(problem, topology, prepared.choice.kernel),
        f"predicted time        {_predicted(problem, prepared.kernel, topology)}",
        f"output                {_output(problem, itemsize)}",
        *_streams(problem, itemsize),
        *_probes(problem, itemsize),
        f"stopping early        within {seconds:.0f} s of a signal, with a checkpoint; a run with a walltime begins to "
        f"stop {seconds:.0f} s before it",
    ]
    return "\n".join(lines)


def _with_all_parameters(problem: Problem) -> Config:
    """Return the input with the default values of parameters of a built-in equation or a class too."""
    config = problem.config
    return replace(config, equation=replace(config.equation, parameters=given_parameters(problem.equation, config)))


def _may_be_changed(config: Config, topology: Topology) -> str:
    """Return a remark if a run may choose other steps per exchange, by what it measures; else ""."""
    free = config.decomposition.steps_per_exchange == "auto" and topology.size > 1
    return "; a run measures, and may choose others" if free else ""


def _stages(count: int) -> str:
    return "1 stage" if count == 1 else f"{count} stages"


def _is_shown(weights: Weights) -> bool:
    """Return whether all weights of a stencil are printed."""
    return bool(np.size(weights) <= SHOWN)


def _without_long_lists(config: Config) -> Config:
    """Return the input without large stencils and tables of many receivers, which the report sums up in a line each."""
    kept = {name: stencil for name, stencil in config.equation.stencils.items() if _is_shown(stencil.weights)}
    probes = {name: probe for name, probe in config.probes.items() if len(probe.x) <= SHOWN}
    return replace(config, equation=replace(config.equation, stencils=kept), probes=probes)


def _in_words(one: Unknown, problem: Problem) -> str:
    """An entry of gradient.of, and how many values it has."""
    match one:
        case NumberParameter():
            return f"{one.key} (a number)"
        case SeriesParameter():
            return f"{one.key} ({problem.sampled[one.name]} samples)"
    return f"{one.key} ({' x '.join(map(str, problem.config.grid.shape))} values)"


def _gradient(problem: Problem, topology: Topology, kernel: str) -> list[str]:
    """Return lines with what to differentiate by and the plan of the reverse sweep, if the input asks for a gradient, and one
    with the plan of a fit.

    Raises InputError for what has no gradient yet, and for limits of the fit that do not make sense.
    """
    if not problem.config.gradient.of:
        return []
    runs = single_runs(problem)
    adjoint = adjoint_of(runs[0], runs[0].initial)
    if problem.step_follows_solution:
        return [
            "gradient              the steps follow the solution: a run records them, then the reverse sweep is planned",
            *_fit(problem, adjoint, topology),
        ]
    for member, one in enumerate(runs):
        data = data_of_member(problem, {}, member)
        one.observed(data, steps_of(one).times)  # refuses data that do not fit
        one.data_on_grid([(0, 1)] * one.config.grid.ndim, data)
    adjoint = with_tape_if_faster(adjoint, topology, kernel)
    injected = injects(adjoint, topology, kernel)
    at_once = steps_at_once(adjoint, topology, kernel, injected)
    plans = [plan_of(adjoint, topology, at_once, injected, steps_of(one)) for one in runs]
    plan = max(plans, key=lambda one: one.bytes)
    stored = plan.stored + (f" of {bytes_text(plan.bytes_per_state)}" if plan.states else "")
    stored += f", a tape of {bytes_text(plan.tape_bytes)}" if plan.tape_bytes else ""
    memory = f"{stored}{' on disk' * plan.on_disk}, about {bytes_text(plan.bytes)} in all per process"
    of = f"{len(runs)} members one after the other, " if problem.members else ""
    taken, steps = sum(one.taken for one in plans), sum(one.steps for one in plans)
    lines = [
        f"unknowns              {listing([_in_words(one, problem) for one in adjoint.unknowns])}",
        f"gradient              {of}{memory}, {taken} steps taken to reverse {steps}",
    ]
    if size := max(one.bytes_on_disk for one in plans):
        lines.append(f"states on disk        {bytes_text(size)} in all{_room(Path.cwd(), size)}")
    return [*lines, *_fit(problem, adjoint, topology)]


def _fit(problem: Problem, adjoint: Adjoint, topology: Topology) -> list[str]:
    """Return a line with the plan of a fit, if the input asks for one."""
    if problem.config.fit is None:
        return []
    unknowns = per_member(problem, adjoint.unknowns, differing(problem, adjoint.unknowns, {}))
    words, size = plan_of_fit(problem, unknowns, problem.config.fit, topology)
    held = f"; its vectors take {bytes_text(size)} per process" if size else ""
    return [f"fit                   {words}{held}"]


def _stencils(config: Config) -> list[str]:
    """Return a line for each stencil in [equation.stencils]."""
    return [
        f"{'stencil ' + name:<21} {' x '.join(map(str, np.shape(stencil.weights)))} weights, whose sum is "
        f"{np.sum(stencil.weights):.6g}{BY_METHOD[stencil.method]}"
        for name, stencil in config.equation.stencils.items()
    ]


def _probes(problem: Problem, itemsize: int) -> list[str]:
    """Return a line for each table of [probes]."""
    lines, steps = [], step_count(problem)
    for name, each in problem.receivers.items():
        often = "after every step" if each.every == 1 else f"every {each.every} steps"
        size = (
            ""
            if steps is None
            else f", {bytes_text((steps // each.every + 1) * len(each.places) * problem.copies * itemsize)} in all"
        )
        asked = problem.config.probes[name]
        what, count = asked.field or asked.expression, len(each.places)
        lines.append(f"{'probes ' + name:<21} {what} at {count} receiver{'s' * (count > 1)}, {often}{size}")
    return lines


def _refuse_start(problem: Problem) -> None:
    """Raise InputError if an initial expression is not finite, or if the expression of a mask covers the whole grid.

    On a grid of more than `SAMPLED` cells, initial expressions are evaluated in some of them, and masks are not checked.
    """
    for run in problem.members or (problem,):
        value, mask = at_start(run.config.grid, run.parameters), run.mask
        for name, tree in run.initial.items():
            if not tree.field_names and not np.isfinite(value(tree)).all():  # fields would be arrays
                raise InputError(f"initial.{name}: the initial state is not finite in some cells; correct it")
        if mask is not None and not mask.is_read and problem.cells <= SAMPLED and np.all(value(mask.solid)):
            raise InputError(ALL_SOLID)


def _refuse_receivers_among_solids(problem: Problem) -> None:
    """Raise InputError if a receiver lies among the solid cells of the mask."""
    mask, shape = problem.mask, problem.config.grid.shape
    if mask is None or not problem.receivers:
        return
    from hpcstencil.simulation.initial_state import solid_in_expression  # imports h5py, which takes time

    for name, each in problem.receivers.items():
        for number in range(len(each.places)):
            cells, weights = each.cells[:, number], each.weights[:, number]
            first = cells.min(axis=0)
            ranges = [*zip(first.tolist(), (cells.max(axis=0) + 1).tolist(), strict=True)]
            masks = solid_in_expression(problem, ranges)
            if mask.array is not None:
                masks = [solid_in_file(mask.array, ranges, shape)]
            if any(abs(weights[~solid[tuple((cells - first).T)]].sum()) < LEAST_FLUID for solid in masks):
                raise among_solids(name, each, number)


def _geometry(config: Config) -> list[str]:
    """Draw the solid cells of a mask from a file, with y upwards; in three dimensions, those of the middle plane."""
    file = None if config.mask is None else config.mask.array
    if file is None:
        return []
    grid = config.grid
    plane = [(0, n) if axis < 2 else (n // 2, n // 2 + 1) for axis, n in enumerate(grid.shape)]
    cells = solid_in_file(file, plane, grid.shape)
    if cells.all() and grid.ndim < 3:
        raise InputError(ALL_SOLID)
    cells = cells.reshape(grid.shape[0], -1)
    columns = min(cells.shape[0], WIDTH)
    height = columns / 2 * (grid.spacing[1] * grid.shape[1] / grid.spacing[0] / grid.shape[0] if grid.ndim > 1 else 0.0)
    rows = min(cells.shape[1], max(1, round(height)))
    places = (((np.arange(k) + 0.5) * n / k).astype(int) for k, n in zip((columns, rows), cells.shape, strict=True))
    lines = ["".join("#" if cell else "." for cell in row) for row in cells[np.ix_(*places)].T[::-1]]
    where = " in the middle plane along z" if grid.ndim == 3 else ""
    share = f"{100 * np.count_nonzero(cells) / cells.size:.3g} %{where}"
    of = f"one character for {cells.shape[0] / columns:.3g} x {cells.shape[1] / rows:.3g} cells"
    return [f"solid cells           {share}, drawn as # with x to the right and y upwards, {of}", *lines]


def _parameters(problem: Problem) -> list[str]:
    """Return a line for each parameter, and each initial field, with a file of its own."""
    shape, config = " x ".join(map(str, problem.config.grid.shape)), problem.config
    files = [("parameter " + name, key_of(name), file) for name, file in config.equation.arrays.items()]
    files += [("initial " + name, f"initial.{name}", file) for name, file in config.initial.arrays.items()]
    return [
        f"{what:<21} {shape} values of {file}, from {found.lowest:.6g} to {found.largest:.6g}"
        for what, key, file in files
        for found in [problem.contents[key]]
    ]


def _memory(problem: Problem) -> str:
    count = len(problem.memory)
    return f", and {count} array{'s' * (count > 1)} for layers, the integrator, a mask or parameters" if count else ""


def _time_step(problem: Problem) -> str:
    time = problem.config.time
    if time.dt is not None:
        return f"{time.dt:g}, fixed{_share_of_stable(problem, time.dt)}"
    if time.tolerance is not None:
        return f"such that the estimated error stays below tolerance = {time.tolerance:g}"
    if problem.step_follows_solution:
        return f"cfl = {time.cfl:g} of the stable step, which depends on the solution"
    return f"{cfl_step(problem, {}):.6g} (cfl = {time.cfl:g})"


def _share_of_stable(problem: Problem, dt: float) -> str:
    """Return how much of the stable step ``dt`` is, if that is known before the run and limited; else ""."""
    if not isinstance(problem.equation, SupportsCfl) or problem.rates_follow_solution:
        return ""
    stable = stable_dt(problem, {})
    return f": {100 * dt / stable:.3g} % of the stable step {stable:.6g}" if 0 < stable < math.inf else ""


def step_count(problem: Problem) -> int | None:
    """Return the number of steps of the run, approximate unless dt is fixed; None if it depends on the solution."""
    total = problem.schedule().total_steps
    if total is not None or problem.step_follows_solution:
        return total
    return problem.schedule().steps_of(cfl_step(problem, {}))


def _too_much(needed: int) -> str:
    """Return a remark if a process needs more memory than this machine has; else ""."""
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"; this machine has {bytes_text(here)} in all" if needed > here else ""


def _output(problem: Problem, itemsize: int) -> str:
    """Return the size of the output file as text, with a remark if the disk has no room for it."""
    output, count = problem.config.output, problem.schedule().snapshots(step_count(problem))
    size = len(output.fields or problem.shown) * problem.cells * itemsize
    packed = " before compression" if output.compression != "none" else ""
    if count is None:
        return f"{bytes_text(size)} a snapshot{packed}"
    folder = next((there for there in Path(output.path).absolute().parents if there.is_dir()), Path("/"))
    room = "" if packed else _room(folder, count * size)
    return f"{count} snapshots of {bytes_text(size)}, {bytes_text(count * size)} in all{packed}{room}"


def _room(folder: Path, size: int) -> str:
    """Return a remark if the file system of a folder has no room for ``size`` bytes; else ""."""
    free = shutil.disk_usage(folder).free
    return f"; {bytes_text(free)} are free in {folder}" if size > free else ""


def _streams(problem: Problem, itemsize: int) -> list[str]:
    """Return a line for each stream with its file, its cells and its size."""
    config, lines = problem.config, []
    for name, path in stream_paths(config, config.output.path).items():
        stream = config.output.streams[name]
        cells = stream.cells(config.grid)
        size = len(stream.names(problem.shown)) * cells.cells * problem.copies * itemsize
        count = _records(problem, stream)
        what = f"{'means of ' if stream.average else ''}{' x '.join(map(str, cells.shape))} cells"
        sizes = f"{bytes_text(size)} a record" + (
            "" if count is None else f", {count} records, {bytes_text(count * size)} in all"
        )
        lines.append(f"{'stream ' + name:<21} {what} in {path}, {sizes}")
    return lines


def _records(problem: Problem, stream: StreamConfig) -> int | None:
    """Return the approximate number of records of a stream; None if it depends on the solution."""
    steps, first = step_count(problem), not stream.average
    if stream.every is None:
        return None if steps is None or stream.every_steps is None else first + steps // stream.every_steps
    schedule = problem.schedule()
    if schedule.total_steps is not None:
        return first + schedule.records(stream.every, schedule.total_steps)
    count = math.floor(problem.config.time.end / stream.every + ROUND)
    return first + (count if steps is None else min(count, steps))


def _steps(problem: Problem) -> str:
    steps = step_count(problem)
    return "depends on the solution" if steps is None else f"{steps}" if problem.config.time.dt else f"about {steps}"


def _predicted(problem: Problem, kernel: str, topology: Topology) -> str:
    """Return the predicted wall time as text, from the stored speed of this machine."""
    speed, steps = step_speed(problem, kernel, topology), step_count(problem)
    if speed is None:
        several = topology.size > 1
        launch, here = (f"mpirun -n {topology.size} ", f" on {topology.size} processes") if several else ("", "")
        return f"unknown{here}; run `{launch}hpcstencil bench INPUT.toml` once"
    if steps is None:
        return f"{speed / 1e6:.4g} Mcell/s measured; the number of steps depends on the solution"
    what = "for a forward run" if problem.config.gradient.of else "of computing"
    return f"{problem.cells * steps / speed:.3g} s {what}, at {speed / 1e6:.4g} Mcell/s measured here"
