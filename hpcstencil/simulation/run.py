"""One run from input to finished file: its start, its loop, and what an early end leaves behind."""

from __future__ import annotations

import ctypes
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpcstencil.checkpoint.checkpoint import read_checkpoint
from hpcstencil.checkpoint.paths import remove_locks, remove_stale
from hpcstencil.checkpoint.restart import Options, Source, source_of
from hpcstencil.checkpoint.state import State, join
from hpcstencil.config.settings import Config
from hpcstencil.io.output_lock import Claim, claimed
from hpcstencil.io.snapshot_buffers import Copies, pieces_of
from hpcstencil.numerics.schedule import Clock
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime import signals
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.filesystem import prepare_folder
from hpcstencil.runtime.progress import Progress, say
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import Walltime
from hpcstencil.runtime.watchdog import end_all
from hpcstencil.simulation.compose import simulate
from hpcstencil.simulation.decomposition import Plan, for_kernel
from hpcstencil.simulation.event_loop import Run
from hpcstencil.simulation.kernel_choice import kernel_for, seconds_to_checkpoint
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.summary import Summary
from hpcstencil.validation.errors import InputError, NumericsError, StoppedEarly


def run(
    config: Config,
    problem: Problem,
    plan: Plan,
    options: Options,
    communicator: Communicator,
    devices: Any,
    request: signals.Request,
) -> Summary:
    """Run a checked problem to its end, or until a signal is noted in ``request``. All processes call this together.

    Raises InputError (nothing written), NumericsError, StoppedEarly or EnvironmentProblem, on all processes alike.
    """

    def at_once() -> None:
        sentence = "hpcstencil: interrupted twice and ended; the last checkpoint stands"
        end_all(communicator, sentence, 128 + signal.SIGINT, at_once=True)

    request.at_once = at_once
    stopwatch = Stopwatch(options.started)
    stopwatch.lap("starting up")
    with claimed(options.output, communicator) as claim, stopwatch.during("setting up"):
        source = source_of(config, options, communicator)
        if source.complete:
            return Summary(options.output, complete_before=source.complete)
        if source.history and not options.quiet:
            last = source.history[-1]
            say(f"going on from {last['from']} (step {last['step']}, t = {last['time']:g})")
        elif options.resume and options.output.exists() and not options.quiet:
            say(f"{options.output} has no checkpoint to go on from: beginning at the start")
        communicator.watch.output(options.output)
        this = _ready(problem, plan, options, communicator, devices, source, stopwatch)
        signals.check_not_stopped(request, communicator)
        with stopwatch.during("other"):
            return _run(this, claim, request)


def _ready(
    problem: Problem,
    plan: Plan,
    options: Options,
    communicator: Communicator,
    devices: Any,
    source: Source,
    stopwatch: Stopwatch,
) -> Run:
    """The compiled run at its ``source``. Nothing is written yet."""
    walltime = Walltime(problem.config.checkpoint.walltime, communicator, options.started)
    with stopwatch.during("compiling"):
        choice = kernel_for(problem, devices, communicator, plan.lowered, source.kernel)
        if choice.cannot_be:
            say(f"warning: {choice.why}; kernel {choice.kernel} is taken, which is slower and rounds differently")
        elif source.kernel not in ("", choice.kernel):
            say(
                f"warning: kernel {choice.kernel}, {choice.why}, rounds differently than {source.kernel}, the one so far"
            )
        plan = for_kernel(plan, problem, choice.kernel, communicator)
        simulation = simulate(problem, plan, communicator, devices, choice.kernel)
    state = _state(simulation, source, options.output)
    simulation.check_mask(dict(state.fields))
    this = Run(simulation, options, source, walltime, seconds_to_checkpoint(problem), state, choice, stopwatch)
    with stopwatch.during("checks"):
        this.check_finite()
    if simulation.control is None:
        this.step_sizes()  # refuses bad steps before anything is written
    with ThreadPoolExecutor(1) as beside, stopwatch.during("compiling"):
        made = beside.submit(_copies, simulation)
        this.fields = simulation.compile(this.fields)
    this.copies = made.result()
    if simulation.control is not None:
        this.clock = simulation.control.begun(this.fields, this.clock)
    communicator.barrier()
    return this


def _copies(simulation: Simulation) -> Copies:
    """The snapshot buffers for asynchronous output. None are needed for blocks that are assembled from several arrays:
    the assembled copy is written."""
    problem, output = simulation.problem, simulation.problem.config.output
    together = simulation.machine.devices.several or problem.members
    if together or not output.is_written_behind(simulation.communicator.size):
        return Copies({})
    compressed, fields = output.compression != "none", output.fields or problem.shown
    return simulation.copies(pieces_of(problem.layout, fields, simulation.ranges, simulation.dtype, compressed))


def release() -> None:
    """Return the memory that the compilers have used, some 20 MB, which glibc would keep."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _run(this: Run, claim: Claim, request: signals.Request) -> Summary:
    """The run to its end."""
    problem, options, communicator = this.simulation.problem, this.options, this.communicator
    prepare_folder(options.output, communicator)
    claim.take()
    remove_locks(options.output, communicator)
    if this.source.clock is not None:
        this.write_checkpoint()  # the output, which holds the state, is about to change
    with this.stopwatch.during("output"):
        this.open_output()
    first = this.clock.step
    remove_stale(options.output, communicator, after=first if this.source.append else -1)
    shown = communicator.rank == 0 and not options.quiet
    progress = Progress(this.clock.time, this.config.time.end, problem.cells_per_step, shown)
    try:
        this.write_first()
        release()
        this.loop(progress, request)
    except (InputError, NumericsError, StoppedEarly) as error:
        this.write_rows()
        this.writer.close(complete=False, **({} if isinstance(error, StoppedEarly) else {"failure": str(error)}))
        raise
    finally:
        progress.close()
    this.complete()
    this.stopwatch.lap()
    steps = this.clock.step - first
    itemsize = 2 * len(problem.fields) * this.simulation.dtype.itemsize
    return Summary(
        options.output,
        steps,
        this.clock,
        this.stopwatch.seconds,
        problem.cells_per_step,
        itemsize,
        kernel=f"{this.choice.kernel} ({this.choice.why})",
        exchange=this.simulation.exchange,
    )


def _state(simulation: Simulation, source: Source, output: Path) -> State:
    """The state with which the run begins."""
    clocks = (Clock(),) * (simulation.problem.copies if simulation.problem.own_steps else 0)
    if not source.history:
        return State(Clock(), simulation.initial_fields(), clocks)
    template = State(Clock(), dict.fromkeys(simulation.problem.fields, 0), clocks)
    communicator = simulation.communicator
    if source.checkpoint is None:
        assert source.clock is not None
        return join(template, simulation.put(agree(communicator, lambda: simulation.snapshot(output))), source.clock)
    arrays, scalars, _ = read_checkpoint(source.checkpoint, simulation.ranges, communicator, simulation.problem.fields)
    blocks = {name: simulation.restored(block) for name, block in arrays.items()}
    return join(template, simulation.put(blocks), scalars)
