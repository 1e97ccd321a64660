"""The class `Simulation`: a simulation in a Python program, with results bitwise equal to those of `hpcstencil run`."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hpcstencil.checkpoint.paths import checkpoint_pattern
from hpcstencil.config.paths import check_output_path
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.reader import check_sources, from_mapping, load
from hpcstencil.config.settings import TABLES, Config
from hpcstencil.equations import HasPositiveFields
from hpcstencil.io.array_file import ArrayContents
from hpcstencil.io.output_lock import claimed
from hpcstencil.io.output_preparation import refuse_existing
from hpcstencil.numerics.integrators import MEMORY
from hpcstencil.numerics.schedule import ROUND
from hpcstencil.problem.build import build, initial_expression
from hpcstencil.problem.parameter_files import contents_of
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.warnings import warnings_of
from hpcstencil.python.assignment import InitialValue, block_of, local_block
from hpcstencil.python.callbacks import AtSteps, AtTimes, called
from hpcstencil.python.process_state import THIS_PROCESS
from hpcstencil.python.shared_programs import PROGRAMS
from hpcstencil.python.tables import Tables, refuse_differing
from hpcstencil.runtime import signals
from hpcstencil.runtime.communicator import agree, from_rank_0
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.runtime.progress import StepProgress
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.simulation.consistency_check import require_consistency
from hpcstencil.simulation.event_loop import Run
from hpcstencil.simulation.file_blocks import output_blocks
from hpcstencil.simulation.finite_check import refuse_not_positive
from hpcstencil.simulation.initial_state import at_walls
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.restart import Options, Source, source_of
from hpcstencil.simulation.run import Ready, outputs_of, snapshot_buffers, to_file
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.solid_cells import solid_block
from hpcstencil.simulation.start import at_start, compile_steps
from hpcstencil.simulation.stepping import Stepping
from hpcstencil.simulation.streams.stream import CallbackFailed, Stream
from hpcstencil.validation.errors import RESUME, InputError, StoppedEarly
from hpcstencil.validation.messages import at, unknown
from hpcstencil.validation.schema import keys_of
from hpcstencil.validation.toml_text import dump_value

if TYPE_CHECKING:
    import xarray as xr

    from hpcstencil.python.datasets import Block
    from hpcstencil.python.pure_function import Function
    from hpcstencil.python.tangent import TangentLinear

Callback = Callable[["Simulation"], Any]


class Simulation:
    """A simulation in memory, at t = 0, created from a dict with the tables and keys of an input file.

    >>> sim = Simulation({"grid": {"shape": [64]}, "equation": {"name": "heat"}, "time": {"end": 1.0}})  # doctest: +SKIP

    Under mpirun or srun every process creates the simulation, and all processes call its methods together. Fields are
    indexed [x, y, z], have the dtype of numerics.precision (by default float32), and live on the devices of each
    process. The first simulation starts JAX on the devices of this process (see `configure`).

    Raises InputError if the input is wrong, and EnvironmentProblem if the machine or the launch fails, on all processes.
    """

    def __init__(self, tables: Mapping[str, Any]) -> None:
        def read() -> tuple[Config, Tables]:
            if not isinstance(tables, Mapping):
                raise InputError(
                    f"Simulation: expected a dict with the tables of an input, but got {type(tables).__name__}; for a file use "
                    "Simulation.from_toml(path), for a text tomllib.loads(text)"
                )
            for key in tables:
                table, dot, rest = str(key).partition(".")
                if dot:
                    raise InputError(
                        f'"{key}": expected tables in tables, but got a key with a dot; write {{"{table}": {{"{rest}": ...}}}}'
                    )
            given = Tables.of(tables)
            config = from_mapping(given.plain, Path.cwd())
            check_sources(config)
            check_output_path(config, None, config.output.path, "output.path")
            return config, given

        self._make(read)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], /, **overrides: Any) -> Simulation:
        """Create the simulation of an input file.

        ``overrides`` maps dotted keys to values, as with --set: ``from_toml("input.toml", **{"time.end": 80.0})``.
        Raises the errors of the class.
        """
        self = cls.__new__(cls)

        def read() -> tuple[Config, Tables]:
            if not isinstance(path, str | os.PathLike):
                raise InputError(
                    f"Simulation.from_toml: expected the path of an input file, but got {type(path).__name__}; for a dict use "
                    "Simulation(tables)"
                )
            given = Tables.of(overrides)
            texts = [f"{key}={dump_value(value)}" for key, value in given.plain.items()]
            return load(Path(path), texts), given

        self._make(read)
        return self

    def _make(self, read: Callable[[], tuple[Config, Tables]]) -> None:
        """Compose the simulation of the input that ``read`` returns, and build its initial state."""
        self._program: Any = None  # None after `close`
        self._busy = False  # while steps are taken
        self._compiled = False
        self._slopes: Any = None
        self._gradient: Any = None  # the reverse sweep, with what it depends on
        self._tangent: Any = None  # the tangent, likewise
        self._interrupts = signals.HeldInterrupts()
        self._stopwatch = Stopwatch()
        here = THIS_PROCESS
        self._communicator = communicator = here.communicator

        config, given = agree(communicator, read)
        contents = from_rank_0(communicator, lambda: contents_of(config, given.arrays))
        refuse_differing(communicator, config, given, contents)
        problem: Problem = agree(communicator, lambda: _built(config, contents, given))
        devices = agree(communicator, lambda: here.devices_for(problem.config))
        require_consistency(communicator, len(devices), problem)
        decomposed = Decomposed.of(problem, communicator.size, len(devices))
        program, simulation = PROGRAMS.take(decomposed, devices, communicator)
        initial = {f"initial.{name}": InitialValue(simulation, name, value) for name, value in given.initial.items()}
        begun = replace(problem, held={**problem.held, **given.arrays, **initial})
        if environment_rank() == 0:
            for warning in warnings_of(begun):
                warnings.warn(warning, stacklevel=3)
        try:
            with PROGRAMS.turn:
                self._stepping = at_start(simulation.with_problem(begun), Source(), None, self._stopwatch)
        except BaseException:
            PROGRAMS.give_back(program)
            raise
        self._program = program
        self._take(simulation)  # the arrays of the program are not kept
        self._replaced = True  # whether fields may have values that are not positive, where they must be
        self._assigned = dict.fromkeys(given.initial, "as values")
        self._per_member = set[str]()
        for name, value in given.initial.items():
            self._note_members(name, value)
        self._arrays = tuple(given.arrays)
        self._data = {key: array for key, array in given.arrays.items() if key.startswith("objective.")}
        self._callbacks: list[Stream] = []
        self._run = Run(self._stepping, self._callbacks, self._progress(shown=False), self._stopwatch)

    # ---- current state -----------------------------------------------------------------------------------------------

    @property
    def time(self) -> float:
        """The current time, in the time unit of the input.

        In an ensemble whose members have individual step sizes, it is the time of the slowest member.
        """
        return self._stepping.clock.time

    @property
    def steps(self) -> int:
        """The number of steps since t = 0.

        In an ensemble whose members have individual step sizes, it is the sum over the members.
        """
        return self._stepping.clock.step

    @property
    def kernel(self) -> str:
        """The name of the backend that computes the steps, with the reason for its choice in parentheses."""
        choice = self._open.prepared.choice
        return f"{choice.kernel} ({choice.why})"

    @property
    def state(self) -> xr.Dataset | None:
        """A copy of the fields on the global grid on rank 0, and None on other processes.

        It is an xarray.Dataset with the layout of a snapshot in the output file. All processes call this together.
        """
        from hpcstencil.python.datasets import grid_dataset

        with THIS_PROCESS.together("sim.state"):
            return grid_dataset(self._open, self._stepping.state, self._open.problem.shown)

    @property
    def local(self) -> Block:
        """A copy of this process's block of the fields, without ghost cells: an xarray.Dataset with local coordinates.

        ``sim.local["u"] = array`` sets this process's block of u; all processes must do so together. It raises InputError for
        an unknown field, another shape, and values that are not finite.
        """
        from hpcstencil.python.datasets import block_dataset

        return block_dataset(self._open, self._stepping.state, self._set_local)

    def __getitem__(self, name: str) -> xr.DataArray | None:
        """A copy of a field on the global grid on rank 0, and None on other processes.

        All processes call this together. Raises InputError for an unknown field.
        """
        from hpcstencil.python.datasets import grid_dataset

        with THIS_PROCESS.together(f"sim[{name!r}]"):
            agree(self._communicator, lambda: self._field(name))
            whole = grid_dataset(self._open, self._stepping.state, (name,))
        return None if whole is None else whole[name]

    def to_toml(self) -> str:
        """The input of this simulation as TOML text, with all defaults, from which `hpcstencil run` gives the same results.

        Raises InputError if a parameter or the solid cells are an array from Python, or if a field was assigned in a way
        that an input cannot express: as an array, as a function, or after the first step.
        """
        for key in self._arrays:
            raise InputError(
                f"to_toml: {key} is an array, which TOML cannot hold; save it with numpy.save and make the simulation with the "
                'name of that file, as in "c.npy"'
            )
        for name, how in self._assigned.items():
            raise InputError(
                f"to_toml: {name} was assigned {how}, which no input can say; write the state with sim.run(output=...), and "
                "name that file as initial.file"
            )
        return to_toml(self._open.problem.config)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def step(self, steps: int = 1) -> None:
        """Take ``steps`` steps and run the callbacks that are due. All processes call this together.

        Raises InputError if the steps would pass time.end, if the members of an ensemble have individual step sizes,
        or if it is called in a callback. If the number of steps up to time.end is not known before, the simulation is at
        time.end after this error. Raises NumericsError if the solution is no longer finite.
        """
        stepping, done = self._ready("step"), 0

        def check() -> None:
            if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
                raise InputError(f"step: expected a number of steps, but got {steps!r}; give 0 or a positive integer")
            if stepping.state.members:
                raise InputError(
                    "step: not available yet for an ensemble whose members take their own steps; give time.dt, or use "
                    "run_until()"
                )
            total = stepping.schedule.total_steps
            if total is not None and stepping.clock.step + steps > total:
                raise self._beyond_the_end(f"at most {total - stepping.clock.step} steps", steps)

        with self._stepping_on("step", steps, check=check, limit=steps):
            while done < steps:
                if stepping.finished:
                    raise self._beyond_the_end(f"at most the {done} steps", steps)
                done += self._advance(self._run, int(steps) - done)

    def run_until(self, time: float) -> None:
        """Advance to a ``time``, in the time unit of the input. All processes call this together.

        The last step is shortened to end exactly there, unless a step ends there anyway. After a shortened step, later
        steps are counted from this time. Raises InputError if the time is in the past or after time.end, NumericsError
        if the solution is no longer finite.
        """
        stepping = self._ready("run_until")
        end, now = self._open.problem.config.time.end, stepping.clock.time
        near = ROUND * (stepping.schedule.fixed_dt or abs(end) * 1e-6)

        def check() -> None:
            if not _is_number(time) or not now - near <= time <= end + near:
                raise InputError(
                    f"run_until: expected a time from {now:g}, that of the simulation, to time.end = {end:g}, but got "
                    f"{time!r}; give one between, or make the simulation with a later time.end"
                )

        with self._stepping_on("run_until", time, check=check):
            if time <= now + near:
                return
            early = time < end - near
            if early:
                stepping.end_at(float(time))
            try:
                while not stepping.finished:
                    self._advance(self._run)
            finally:
                if early:
                    stepping.end_at(end)

    def run(
        self, output: str | os.PathLike[str] | None = None, *, overwrite: bool = False, progress: bool = False
    ) -> None:
        """Advance to time.end. All processes call this together.

        With ``output``, a path, the run also writes the file that `hpcstencil run` would write, beginning with the
        current state. ``overwrite`` replaces an existing file. ``progress`` shows the progress on standard error, as
        `hpcstencil run` does. With an output, a signal stops the run with a checkpoint, from which
        `hpcstencil run --resume` continues.

        Raises InputError before anything is written, NumericsError if the solution is no longer finite, StoppedEarly
        after a signal or at the walltime, and EnvironmentProblem if the file cannot be written.
        """
        stepping = self._ready("run")
        if output is not None:
            if not isinstance(output, str | os.PathLike):
                raise InputError(
                    f"run: expected the path of a file for output, but got {output!r}; to continue to a time use run_until()"
                )
            self._run_to_file(Path(output).absolute(), overwrite, progress)
            return
        with self._stepping_on("run"), self._progress(progress) as shown:
            run = replace(self._run, progress=shown)
            while not stepping.finished:
                self._advance(run)

    def every(self, interval: float) -> Iterator[Simulation]:
        """Iterate over the multiples of the time ``interval``, in the time unit of the input, up to time.end:
        ``for sim in sim.every(1.0): ...``.

        The loop advances the simulation. Its body runs after the first step that reaches a multiple, or with a fixed dt
        after the step nearest to it; no step is shortened for it. All processes loop together. Raises InputError unless
        the interval is a positive number, and in the loop NumericsError and StoppedEarly as `run`.
        """
        stepping, reached = self._ready("every"), [False]
        with THIS_PROCESS.together("sim.every"):
            THIS_PROCESS.refuse_different_calls("every", interval, check=lambda: _interval("every", interval))
        pause = AtTimes(float(interval), partial(reached.__setitem__, 0, True), stepping)

        def pauses() -> Iterator[Simulation]:
            while not self._ready("every").finished:
                reached[0] = False
                with self._stepping_on("every", interval):
                    while not (reached[0] or stepping.finished):
                        self._advance(replace(self._run, streams=[*self._callbacks, pause]))
                if reached[0]:
                    yield self

        return pauses()

    def on(self, *, every_steps: int | None = None, every: float | None = None) -> Callable[[Callback], Callback]:
        """Register a callback by a decorator: ``@sim.on(every_steps=10)``.

        The function is called with the simulation at multiples of a number of steps, or of a time in the unit of the input (as
        in `every`),
        whichever method takes the steps. It may read the state and assign to fields, but must not take steps. All
        processes call it together. If it raises an exception on all processes, stepping ends and the caller gets the
        exception; if it raises on some processes only, all processes are aborted.

        Raises InputError unless exactly one of ``every_steps`` and ``every`` is given and positive.
        """
        stepping = self._ready("on")

        def check() -> None:
            if (every_steps is None) == (every is None):
                raise InputError("on: expected either every_steps or every; write for example @sim.on(every_steps=10)")
            if every is not None:
                _interval("on", every)
            elif isinstance(every_steps, bool) or not isinstance(every_steps, int | np.integer) or every_steps < 1:
                raise InputError(f"on: expected a positive integer for every_steps, but got {every_steps!r}; change it")

        with THIS_PROCESS.together("sim.on"):
            given = f"{every_steps} {every}".encode()
            THIS_PROCESS.refuse_different_calls("on", arguments=given, check=check)

        def register(function: Callback) -> Callback:
            if not callable(function):
                raise InputError(f"on: expected a function, but got {type(function).__name__}; give one that takes sim")
            name = f"the callback {getattr(function, '__name__', repr(function))}"

            def act() -> None:
                with PROGRAMS.turn_of_others(), self._interrupts.lifted():
                    called(lambda: function(self), name)

            if every_steps is not None:
                self._callbacks.append(AtSteps(int(every_steps), act))
            else:
                assert every is not None
                self._callbacks.append(AtTimes(float(every), act, stepping))
            return function

        return register

    def function(self, steps: int) -> Function:
        """Return ``steps`` steps as a pure JAX function ``f(state, parameters=None) -> state``, for jax.jit, vmap and grad.

        A state is a pytree with everything that a step needs. ``state["u"]`` is a JAX array of this process's block (on
        one process: the global grid), without ghost cells, in the dtype of the run, with the members of an ensemble
        first. ``f(f(s))`` takes twice as many steps. A plain dict of such arrays is a state at t = 0; in it, an array
        without member axis applies to all members.

        ``parameters`` is a dict of parameters of the equation: numbers, arrays of shape (members,) where members differ,
        and blocks of this process for parameters with one value per cell. Others keep the values of the simulation.

        The simulation itself does not change, and time.end is ignored. ``f.kernel`` is the backend. If members have
        individual step sizes, each takes ``steps`` steps, and the clock has one entry per member. All processes call this
        together, and then f. Raises InputError for unknown names and wrong shapes, for a step size that depends on the
        solution, and for several devices on each of several processes.
        """
        from hpcstencil.python.pure_function import function_of

        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
            raise InputError(f"function: expected a number of steps, but got {steps!r}; give a positive integer")
        simulation = self._open
        constant = simulation.get(dict(self._stepping.state.fields), simulation.problem.constant)
        return function_of(simulation, int(steps), constant)

    def value_and_gradient(self) -> tuple[float, dict[str, Any]]:
        """Return the objective at time.end and its gradient: ``value, gradient = sim.value_and_gradient()``.

        The run begins with the current fields, which must be those at t = 0; the simulation itself does not change. The
        gradient has an entry for each name in gradient.of. It is a float for a number, and a float64 array with a value per
        sample for a time series, equal on all processes. For initial values and parameters with one value per cell it is an
        array on the global grid on rank 0, in the dtype of the run, with the derivative with respect to each cell's value, and
        None on other processes. In an ensemble, the objective is the sum over the members, and entries in which the members
        differ have the members as first axis: those listed in [ensemble], and initial values that were given per member.

        All processes call this together. Raises InputError for what has no gradient yet, and NumericsError if the objective
        or the gradient is not finite.
        """
        from hpcstencil.python.gradient import Gradient

        wanted = self._derived_at_start("value_and_gradient")
        with self._stepping_on("value_and_gradient"):
            if self._gradient is None or self._gradient[0] != wanted:
                made = Gradient(self._open, wanted[0], self._data)
                if self._gradient is not None:
                    self._gradient[1].close()
                self._gradient = wanted, made
            return self._gradient[1].at(self._stepping.state)

    def tangent(self, direction: Mapping[str, Any]) -> dict[str, Any]:
        """Return the derivative of the fields at time.end along a direction: ``sim.tangent({"equation.D": 1.0})["u"]``.

        ``direction`` maps names as in gradient.of, such as "initial.u" or "equation.D", to numbers, for fields also to arrays
        on the global grid, functions of the coordinates or expressions, as ``sim[...] = ...`` takes them, and for time series
        to arrays of shape (samples,). The run begins with the current fields, which must be those at t = 0; the simulation
        itself does not change. The result has an array on the global grid for each field, in the dtype of the run, on rank 0,
        and None on other processes. If the input has an objective, its derivative is there too, by its name, a float, equal on
        all processes.

        In an ensemble, directions of what the members differ in may have a value per member, with the members as first axis of
        an array. The fields of the result have the members as first axis, and the derivative of the objective is the sum.

        All processes call this together. Raises InputError for unknown names, and for what has no derivative yet, and
        NumericsError if a derivative is not finite.
        """
        with self._tangent_along("tangent", direction) as tangent:
            return tangent.at(self._stepping.state, direction)

    def hessian_product(self, direction: Mapping[str, Any]) -> dict[str, Any]:
        """Return the product of the Hessian of the objective and a direction, by the names in ``direction``.

        The Hessian has the second derivatives of the objective with respect to the names in ``direction``, which is as in
        `tangent`. The result is as that of `value_and_gradient`, whose derivative along the direction it is, with the
        stored states of [gradient]. All processes call this together. Raises InputError as `tangent`, and without an
        objective, and NumericsError if a derivative is not finite.
        """
        with self._tangent_along("hessian_product", direction) as tangent:
            return tangent.hessian_product(self._stepping.state, direction)

    @contextmanager
    def _tangent_along(self, method: str, direction: Mapping[str, Any]) -> Iterator[TangentLinear]:
        """Context manager with the tangent along directions with these keys, which is composed once.

        ``method`` is the name of the caller. Raises InputError unless all processes give the same direction.
        """
        from hpcstencil.python.tangent import TangentLinear

        if not isinstance(direction, Mapping) or not direction:
            raise InputError(
                f"{method}: expected a dict of directions, but got {direction!r}; write for example "
                f'sim.{method}({{"equation.D": 1.0}})'
            )
        wanted = self._derived_at_start(method)
        key = (*wanted, tuple(direction))
        alone = self._communicator.size == 1
        with self._stepping_on(method, arguments=b"" if alone else _fingerprint(direction)):
            if self._tangent is None or self._tangent[0] != key:
                made = TangentLinear(self._open, wanted[0], self._data, tuple(direction))
                if self._tangent is not None:
                    self._tangent[1].close()
                self._tangent = key, made
            yield self._tangent[1]

    def _derived_at_start(self, method: str) -> tuple[dict[str, bool], dict[str, Any]]:
        """Return all on which the trees of a derivative depend: the fields that were assigned, with whether each member of an
        ensemble has its own values, and the initial trees.

        Raises InputError unless the simulation is open and at t = 0.
        """
        if taken := self._ready(method).clock.step:
            raise InputError(
                f"{method}: expected a simulation at t = 0, but it has taken {taken} steps; make another one"
            )
        return {name: name in self._per_member for name in self._assigned}, dict(self._open.problem.initial)

    # ---- assignment --------------------------------------------------------------------------------------------------

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a field on the global grid. All processes call this together, with the same value.

        ``value`` is one of these:

        - an array indexed [x, y, z], from NumPy, JAX, xarray or DLPack; in an ensemble it may have the members first
        - a number
        - a function of the coordinates, called with float64 arrays that broadcast to the shape of this process's block
        - an expression as in [initial]

        It is copied and cast to the dtype of the run. Solid cells stay 0, and a multistep method restarts. Raises
        InputError for an unknown field, a wrong shape, or values that are not finite.
        """
        simulation, stepping = self._open, self._stepping
        given = repr((name, value if isinstance(value, str) or _is_number(value) else None)).encode()
        with THIS_PROCESS.together(f"sim[{name!r}] = ..."):
            THIS_PROCESS.refuse_different_calls("sim[field]", arguments=given, check=lambda: self._field(name))
        key = self._field(name)
        block = agree(self._communicator, lambda: block_of(simulation, name, value, key))
        at_first = stepping.clock.step == 0 and stepping.clock.time == 0.0
        if isinstance(value, str) and at_first:
            self._assigned.pop(name, None)
            self._say_initial(name, value, key)
        else:
            self._assigned[name] = "as an expression after t = 0" if isinstance(value, str) else "as values"
            self._note_members(name, value)
        self._replace(name, block)

    def _note_members(self, name: str, value: Any) -> None:
        """Note whether the initial values of a field that a program gives have the members of an ensemble as first axis."""
        more = getattr(value, "ndim", 0) > self._open.problem.config.grid.ndim
        (self._per_member.add if more else self._per_member.discard)(name)

    def _say_initial(self, name: str, text: str, key: str) -> None:
        """Record an expression that was assigned to a field at t = 0 in the input, for `to_toml`."""
        problem = self._stepping.simulation.problem
        initial = problem.config.initial
        texts = {**initial.expressions, name: text}
        initial = replace(initial, expressions=texts, file=None if texts.keys() >= {*problem.shown} else initial.file)
        tree = initial_expression(problem, name, text, key)
        config = replace(problem.config, initial=initial)
        members = tuple(replace(each, initial={**each.initial, name: tree}) for each in problem.members)
        held = {other: array for other, array in problem.held.items() if other != f"initial.{name}"}
        problem = replace(problem, config=config, initial={**problem.initial, name: tree}, held=held, members=members)
        self._take(self._stepping.simulation.with_problem(problem))

    def _take(self, simulation: ComposedSimulation) -> None:
        """Take the next steps with another composed simulation, which has the same program and fits the same state."""
        self._stepping.simulation = self._stepping.finite.simulation = simulation

    def _set_local(self, name: str, value: Any) -> np.ndarray:
        """Set this process's block of a field, and return the new block as in `local`."""
        simulation = self._open
        block = agree(self._communicator, lambda: local_block(simulation, name, value, self._field(name, ".local")))
        self._assigned[name] = "as values"
        self._note_members(name, value)
        self._replace(name, block)
        state = self._stepping.state
        return np.array(output_blocks(simulation, dict(state.fields), (name,), state.clock.time)[name])

    def _replace(self, name: str, block: np.ndarray) -> None:
        """Replace this process's block of a field in the state.

        ``block`` has the dtype of the run and the member axis last. Solid cells in it are set to 0, and values on lower
        boundaries to those that the boundary conditions give. The stored slopes of a multistep method are computed anew, and
        so is a step size that follows the solution.
        """
        simulation, stepping = self._open, self._stepping
        self._replaced = True
        problem, fields = simulation.problem, dict(stepping.state.fields)
        if name in problem.positions:
            clocks = stepping.state.members or (stepping.clock,) * problem.copies
            block = at_walls(problem, name, block, simulation.ranges, [clock.time for clock in clocks])
        if problem.mask is not None:
            solid = solid_block(simulation, fields)
            if problem.members:
                solid = np.moveaxis(np.broadcast_to(solid, (len(problem.members), *block.shape[:-1])), 0, -1)
            block[solid != 0] = 0
        fields |= simulation.put({name: block})
        if problem.method.multistep:
            self._slopes = self._slopes or simulation.steps.slopes()
            kept = {n: array for n, array in fields.items() if not n.endswith(MEMORY)}
            made = self._slopes(kept, problem.parameters, simulation.per_member(stepping.clock.time))
            fields |= {n + MEMORY: slope for n, slope in made.items()}
        state = replace(stepping.state, fields=fields)
        if problem.step_follows_solution:
            anew = [stepping.schedule.going_on(clock, anew=True)[1] for clock in (state.clock, *state.members)]
            state = replace(state, clock=anew[0], members=tuple(anew[1:]))
        stepping.state = state

    def _field(self, name: Any, where: str = "") -> str:
        """The name of a field in messages, such as sim["u"]. Raises InputError for an unknown field."""
        shown = self._open.problem.shown
        if name not in shown:
            raise unknown(f"sim{where}[{name!r}]", "field", str(name), shown)
        return f'sim{where}["{name}"]'

    # ---- closing, and protocols of Python ----------------------------------------------------------------------------

    def close(self) -> None:
        """Free the fields and release the compiled program. A second call does nothing.

        All processes call this together. Raises InputError inside a callback.
        """
        if self._program is None:
            return
        self._refuse_busy("close")
        PROGRAMS.give_back(self._program)
        for derived in (self._gradient, self._tangent):
            if derived is not None:
                derived[1].close()
        self._program = self._gradient = self._tangent = None
        self._callbacks.clear()
        self._stepping.state, self._stepping.room = replace(self._stepping.state, fields={}), {}

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *error: Any) -> None:
        self._busy = False
        self.close()

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise InputError for ``sim.u = ...``, ``sim.D = ...`` and ``sim.dt = ...``, which would change nothing in the run."""
        if not name.startswith("_") and self._program is not None:
            problem = self._stepping.simulation.problem
            if name in problem.shown:
                raise InputError(f'sim.{name}: a field is not set as an attribute; write sim["{name}"] = ...')
            if name in problem.config.equation.parameters:
                raise InputError(f"sim.{name}: a simulation keeps its parameters; make another one with the new value")
            if any(name in keys_of(table) for table in TABLES.values()):
                raise InputError(f"sim.{name}: a simulation keeps its input; make another one with the new value")
            if hasattr(type(self), name):
                raise InputError(f"sim.{name}: this cannot be replaced; to change a field write sim[NAME] = ...")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError, which lists what a simulation has. Python calls this only for unknown names."""
        if name.startswith("_") or hasattr(type(self), name):
            object.__getattribute__(self, name)  # raises its own error
        if self._program is not None and name in self._stepping.simulation.problem.shown:
            raise AttributeError(f'sim.{name}: a field is not an attribute; write sim["{name}"]')
        public = (known for known in dir(type(self)) if not known.startswith("_"))
        raise AttributeError(
            f"a Simulation has no attribute '{name}'; it has {', '.join(public)}, and a field is sim[NAME], which hs.plot draws"
        )

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the fields."""
        return iter(self._open.problem.shown)

    def __contains__(self, name: object) -> bool:
        return name in self._open.problem.shown

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise InputError for copy and pickle, after which two simulations would own one program."""
        raise InputError("a simulation cannot be copied or pickled; make another one and assign the fields to it")

    def __repr__(self) -> str:
        if self._program is None:
            return "<hpcstencil.Simulation, closed>"
        config = self._open.problem.config
        cells, name = " x ".join(map(str, config.grid.shape)), config.equation.name
        return f"<hpcstencil.Simulation of {name}, {cells} cells, {self.steps} steps, t = {self.time:g} of {config.time.end:g}>"

    # ---- internals ---------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> ComposedSimulation:
        """The composed simulation. Raises InputError if this simulation is closed."""
        if self._program is None:
            raise InputError("the simulation is closed; make a new one")
        return self._stepping.simulation

    def _refuse_busy(self, method: str) -> None:
        """Raise InputError if ``method`` is called while steps are taken, in a callback or by another thread."""
        if self._busy:
            raise InputError(
                f"{method}: cannot be called while steps are taken, in a callback or by another thread; call it after them"
            )

    def _ready(self, method: str) -> Stepping:
        """The `Stepping` of this simulation. Raises InputError if the simulation is closed or is taking steps; ``method``
        is the name of the caller."""
        _ = self._open  # refuses a closed one
        self._refuse_busy(method)
        return self._stepping

    @contextmanager
    def _stepping_on(
        self,
        method: str,
        value: float = 0.0,
        arguments: bytes = b"",
        check: Callable[[], None] = lambda: None,
        limit: int | None = None,
    ) -> Iterator[None]:
        """Context manager around taking at most ``limit`` steps, one thread at a time. It compiles them on first use, and
        marks the simulation as busy. The other arguments are those of `ThisProcess.refuse_different_calls`."""
        with PROGRAMS.turn:
            self._communicator.watch.outside(False)
            try:
                THIS_PROCESS.refuse_different_calls(method, value, arguments, check)
                if not self._compiled:
                    compile_steps(self._stepping, limit)
                    self._compiled = True
                if self._replaced and isinstance(self._open.problem.equation, HasPositiveFields):
                    refuse_not_positive(self._open.problem, self._stepping.finite.extremes(self._stepping.state)[0])
                self._replaced = False
                self._busy = True
                yield
            finally:
                self._communicator.watch.outside(True)
                self._busy = False

    def _progress(self, shown: bool) -> StepProgress:
        """The progress display from the current time to time.end. Only rank 0 shows it, and only if ``shown``."""
        problem = self._stepping.simulation.problem
        shown = shown and self._communicator.rank == 0
        return StepProgress(self._stepping.clock.time, problem.config.time.end, problem.cells_per_step, shown)

    def _advance(self, run: Run, limit: int | None = None) -> int:
        """Take steps to the next event, at most ``limit``, and return their number. An interrupt waits until the state is
        consistent."""
        with self._interrupts:
            try:
                return run.advance(limit)
            except CallbackFailed as failed:
                raised = failed.error
            raise raised  # as the callback has raised it

    def _beyond_the_end(self, expected: str, steps: int) -> InputError:
        """Make the error for steps that would pass time.end, where ``expected`` says how many are possible."""
        end = self._open.problem.config.time.end
        return InputError(
            f"step: expected {expected} up to time.end = {end:g}, but got {steps}; make the simulation with a later "
            "time.end"
        )

    def _run_to_file(self, path: Path, overwrite: bool, progress: bool) -> None:
        """Advance to time.end and write the output file ``path``; see `run`."""
        stepping, communicator = self._stepping, self._communicator
        simulation = self._open
        config = simulation.problem.config
        agree(communicator, lambda: check_output_path(config, None, path, "output"))
        if stepping.finished:
            raise InputError(
                f"run: expected steps to take for {path}, but the simulation is at time.end = {config.time.end:g}; make a new "
                "one"
            )
        options = Options(path, overwrite, quiet=not progress)
        outputs = outputs_of(simulation.problem, options)
        if not overwrite:

            def check() -> None:
                for made in outputs:
                    refuse_existing(made, "output", "overwrite=True to replace it")

            agree(communicator, check)
        asked = os.fsencode(path) + bytes([bool(overwrite)])
        with self._stepping_on("run", arguments=asked), _watched() as request, claimed(outputs, communicator) as claims:
            source_of(config, self._open.problem.contents, options, communicator)  # refuses an existing file
            communicator.watch.checkpoints(checkpoint_pattern(path))
            ready = Ready(stepping, self._source(), snapshot_buffers(simulation))
            stepping.finite.path, raised = path, None
            try:
                to_file(ready, options, claims, request, self._stopwatch, self._callbacks)
            except StoppedEarly as error:
                command = f"continue with hpcstencil run INPUT.toml --output {path} --resume"
                raise StoppedEarly(error.what, command if error.then == RESUME else error.then) from None
            except CallbackFailed as failed:
                raised = failed.error
            finally:
                stepping.finite.path = None
            if raised is not None:
                raise raised

    def _source(self) -> Source:
        """The origin of the current state, which an output file records: the input, or a Python program."""
        clock = self._stepping.clock
        if clock.step == 0 and not self._assigned:
            return Source()
        entry = {
            "step": clock.step,
            "time": clock.time,
            "from": "a Python program",
            "kernel": self._open.kernel,
            "changed": [],
        }
        return Source(history=(entry,), from_memory=True)


@contextmanager
def _watched() -> Iterator[signals.Request]:
    """Context manager that records signals that ask a run to stop.

    Outside the main thread, where Python allows no signal handlers, it does nothing.
    """
    if threading.current_thread() is threading.main_thread():
        with signals.watched() as request:
            yield request
    else:
        yield signals.Request()


def _interval(method: str, value: float) -> float:
    """Check a time between two events. Raises InputError, with the name of the ``method``, unless it is positive and
    finite."""
    if not _is_number(value) or not 0 < value < float("inf"):
        raise InputError(f"{method}: expected a positive, finite time as the interval, but got {value!r}; change it")
    return float(value)


def _fingerprint(direction: Mapping[str, Any]) -> bytes:
    """Bytes that differ if directions differ. A function counts by its name, and what is no array does not count."""
    found = list[bytes]()
    for key, value in direction.items():
        try:
            array = np.asarray(getattr(value, "__qualname__", value))
        except ValueError:  # refused later
            array = np.empty(0)
        found += [f"{key!r} {array.shape}".encode(), b"" if array.dtype.hasobject else array.tobytes()]
    return b"".join(found)


def _is_number(value: Any) -> bool:
    """Whether a value is an integer or a real number of Python or NumPy; booleans are not."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _built(config: Config, contents: Mapping[str, ArrayContents], given: Tables) -> Problem:
    """Build the problem of an input. Raises the errors of `build`, and InputError for initial values of unknown fields."""
    problem = build(config, contents)
    for name in given.initial:
        if name not in problem.shown:
            raise unknown(at("initial", name), "field", name, problem.shown)
    return problem
