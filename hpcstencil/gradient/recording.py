"""The steps of a run whose sizes follow the solution, recorded by taking it once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hpcstencil.adjoint.run_steps import RunSteps
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.schedule import Clock, Leap, StepRange
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.simulation.adaptive_step import Control
from hpcstencil.simulation.finite_check import FiniteCheck
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.state import State
from hpcstencil.simulation.stepping import Stepping
from hpcstencil.validation.errors import StoppedEarly


def record_steps(simulation: ComposedSimulation, fields: Fields, check: Callable[[], None]) -> RunSteps:
    """Take a run from ``fields`` at t = 0, which are overwritten, and return its steps. Collective.

    ``check`` is called after each call of compiled code, and may raise StoppedEarly on all processes. Raises NumericsError, on
    all processes, if the run is unstable or its steps collapse.
    """
    schedule = simulation.problem.schedule()
    if simulation.control is not None:
        return RunSteps(tuple(_accepted(replace(simulation.control, schedule=schedule), fields, check)), schedule.end)
    ranges: list[StepRange] = []

    def announce(state: State, leap: Leap) -> None:
        """Add the steps of a call; how many a call takes depends on the machine, so they continue the range before."""
        last, steps = ranges[-1] if ranges else None, leap.steps
        if last and (last.base_time, last.first + last.count, last.dt) == steps[:3]:
            ranges[-1] = last._replace(count=last.count + steps.count)
        else:
            ranges.append(steps)

    finite = FiniteCheck(simulation, None, 0)
    stepping = Stepping(simulation, schedule, State(Clock(), fields), finite, Stopwatch())
    while not stepping.finished:
        stepping.advance(announce)
        check()
    finite.after_steps(stepping.state)
    return RunSteps(tuple(ranges), schedule.end)


def stopped_while_recording(reason: str) -> StoppedEarly:
    """Make the error for a run whose steps are being recorded when something, ``reason``, stops it."""
    return StoppedEarly(
        f"stopped by {reason} while the steps of the run were recorded: nothing was written",
        "run the same command again",
    )


def _accepted(control: Control, fields: Fields, check: Callable[[], None]) -> list[StepRange]:
    """The steps that the control accepts, one by one."""
    clocks, rejected, found = control.begun(fields, (Clock(),)), [False], []
    while not control.schedule.finished(clocks[0]):
        tried = control.tried(clocks[0], clocks[0].measured_dt).steps
        fields, clocks, rejected = control.attempted(fields, clocks, rejected, [True])
        if not rejected[0]:
            found.append(tried)
        check()
    return found
