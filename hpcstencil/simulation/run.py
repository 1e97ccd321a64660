"""A run from the input to the finished file: its start, its loop, and its regular or early end."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcstencil.checkpoint.paths import checkpoint_pattern, remove_locks, remove_stale
from hpcstencil.config.paths import stream_paths
from hpcstencil.io.output_lock import Claim, claimed
from hpcstencil.io.snapshot_buffers import Copies, pieces_of
from hpcstencil.numerics.schedule import Schedule
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime import signals
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.filesystem import prepare_folder
from hpcstencil.runtime.progress import StepProgress, say
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import Walltime
from hpcstencil.runtime.watchdog import end_all
from hpcstencil.simulation.event_loop import Run, StopRequests
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.restart import Options, Source, source_of
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.start import at_start, compile_steps, composed
from hpcstencil.simulation.step_speed import remember_speed_of
from hpcstencil.simulation.stepping import Stepping
from hpcstencil.simulation.streams.checkpoints import Checkpoints, CheckpointWriter
from hpcstencil.simulation.streams.output import Output, provenance
from hpcstencil.simulation.streams.output_streams import check_files, further_outputs
from hpcstencil.simulation.streams.probes import probes_of
from hpcstencil.simulation.streams.snapshots import DiagnosticRows, LateRows, Snapshots
from hpcstencil.simulation.streams.stream import CallbackFailed, Stream
from hpcstencil.simulation.summary import Summary
from hpcstencil.validation.errors import InputError, NumericsError, StoppedEarly
from hpcstencil.validation.messages import listing

# The streams that write to the output file, in this order. All of them are flushed before a checkpoint. To add a stream, add
# it here.
WRITTEN: tuple[Callable[[Output, Schedule], Stream], ...] = (
    DiagnosticRows,
    Snapshots,
)


def run(
    decomposed: Decomposed,
    options: Options,
    communicator: Communicator,
    devices: Sequence[Any],
    request: signals.Request,
) -> Summary:
    """Run a checked problem to its end, or until a signal is recorded in ``request``. Collective.

    ``devices`` are those of this process. Raises InputError (nothing is written), NumericsError, StoppedEarly or
    EnvironmentProblem, on all processes alike.
    """

    def at_once() -> None:
        sentence = "hpcstencil: interrupted twice and ended; the last checkpoint is valid"
        end_all(communicator, sentence, 128 + signal.SIGINT, at_once=True)

    request.at_once = at_once
    stopwatch = Stopwatch(options.started)
    stopwatch.lap("starting up")
    problem = decomposed.problem
    with claimed(outputs_of(problem, options), communicator) as claims, stopwatch.during("setting up"):
        source = source_of(problem.config, problem.contents, options, communicator)
        if source.complete:
            return Summary(options.output, complete_before=source.complete)
        check_files(problem, options, source.append, communicator)
        if source.history and not options.quiet:
            last = source.history[-1]
            changes = f" with another {listing(last['changed'])}" if last["changed"] else ""
            say(f"continuing from {last['from']} (step {last['step']}, t = {last['time']:g}){changes}")
        elif options.resume and options.output.exists() and not options.quiet:
            say(f"{options.output} has no checkpoint to continue from: beginning at the start")
        communicator.watch.checkpoints(checkpoint_pattern(options.output))
        if source.of_other_layers and problem.begin_at_zero:
            decomposed = Decomposed(replace(problem, begin_at_zero=()), decomposed.topology)
        with stopwatch.during("compiling"):
            simulation = composed(decomposed, devices, communicator, source.kernel)
        stepping = at_start(simulation, source, options.output, stopwatch)
        with ThreadPoolExecutor(1) as beside, stopwatch.during("compiling"):
            buffers = beside.submit(snapshot_buffers, simulation)
            compile_steps(stepping)
        communicator.barrier()
        signals.check_not_stopped(request, communicator)
        with stopwatch.during("other"):
            return to_file(Ready(stepping, source, buffers.result()), options, claims, request, stopwatch)


@dataclass(frozen=True)
class Ready:
    """A run that has its first state, new or from a checkpoint, and has written nothing yet.

    ``source`` says where its state comes from, and ``buffers`` are the snapshot buffers.
    """

    stepping: Stepping
    source: Source
    buffers: Copies


def snapshot_buffers(simulation: ComposedSimulation) -> Copies:
    """Return this process's buffers for asynchronous output.

    There are none if output is synchronous. There are also none if blocks are assembled from the arrays of several devices
    or members, because this already makes a copy.
    """
    problem, output = simulation.problem, simulation.problem.config.output
    together = simulation.device_grid.devices.several or problem.members
    if together or not output.is_written_behind(simulation.communicator.size):
        return Copies({})
    compressed, fields = output.compression != "none", output.fields or problem.shown
    pieces = pieces_of(problem.layout, fields, simulation.ranges, simulation.dtype, compressed)
    if simulation.control is not None:
        return Copies(pieces)  # not filled while stepping, because an attempted step may be rejected
    return simulation.steps.snapshot_buffers(pieces)


def release() -> None:
    """Return memory that the compilers have freed, about 20 MB, to the system; glibc would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def outputs_of(problem: Problem, options: Options) -> list[Path]:
    """Return the files that a run writes: its output, and those of its streams."""
    return [options.output, *stream_paths(problem.config, options.output).values()]


def streams_of(output: Output, checkpoints: CheckpointWriter, schedule: Schedule) -> list[Stream]:
    """Return the streams of a run that writes files, in the order in which they act after a step."""
    standing = [make(output, schedule) for make in WRITTEN]
    written = [*probes_of(output), *standing, *further_outputs(output, schedule)]
    return [*written, Checkpoints(checkpoints, output, schedule, written), LateRows(output)]


def to_file(
    ready: Ready,
    options: Options,
    claims: Sequence[Claim],
    request: signals.Request,
    stopwatch: Stopwatch,
    further: Sequence[Stream] = (),
) -> Summary:
    """Take a run to its end, write its files, and return the summary. Collective. Raises the same errors as `run`.

    ``further`` are additional streams, which act after all others.
    """
    stepping, source, simulation = ready.stepping, ready.source, ready.stepping.simulation
    problem, communicator = simulation.problem, simulation.communicator
    for claim in claims:
        prepare_folder(claim.output, communicator)
        claim.take()
        remove_locks(claim.output, communicator)
    attributes = provenance(simulation, source)
    checkpoints = CheckpointWriter(options.output, simulation, attributes, stopwatch)
    if source.clock is not None:
        checkpoints.write(stepping.state)  # saves the state, because the output that holds it is about to change
    with stopwatch.during("output"):
        output = Output(options.output, simulation, source, attributes, ready.buffers, stopwatch, stepping.state)
    first = stepping.clock.step
    remove_stale(options.output, communicator, after=first if source.append else -1)
    shown = communicator.rank == 0 and not options.quiet
    progress = StepProgress(stepping.clock.time, problem.config.time.end, problem.cells_per_step, shown)
    walltime = Walltime(problem.config.checkpoint.walltime, communicator, options.started)
    stops = StopRequests(request, walltime, lambda: checkpoints.seconds, communicator)
    streams = [*streams_of(output, checkpoints, stepping.schedule), *further]
    this = Run(stepping, streams, progress, stopwatch)
    try:
        with progress:
            this.begin()
            release()
            this.to_the_end(stops)
    except (InputError, NumericsError, StoppedEarly, CallbackFailed) as error:
        if isinstance(error, CallbackFailed):
            this.stop()
        this.flush()
        this.close(complete=False)
        output.close(complete=False, **({} if isinstance(error, StoppedEarly) else {"failure": str(error)}))
        raise
    this.finish()
    this.close(complete=True)
    output.close(complete=True, **output.ended(stepping.state, stepping.schedule))
    stopwatch.lap()
    steps = stepping.clock.step - first
    choice = simulation.prepared.choice
    summary = Summary(
        options.output,
        steps,
        stepping.clock,
        stopwatch.seconds,
        problem.cells_per_step,
        bytes_per_cell=2 * len(problem.fields) * simulation.dtype.itemsize,
        kernel=f"{choice.kernel} ({choice.why})",
        exchange=simulation.exchange,
        steps_per_exchange=simulation.plan.steps_per_exchange,
        predicted=simulation.plan.seconds,
    )
    if communicator.rank == 0:
        remember_speed_of(summary, problem, simulation.kernel, simulation.plan.topology)
    return summary
