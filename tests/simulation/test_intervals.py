"""The multiples of a time at which streams and callbacks act."""

import pytest

from hpcstencil.numerics.schedule import Clock, Schedule
from hpcstencil.simulation.streams.intervals import Multiples


@pytest.mark.parametrize("every", [0.7, 0.25, 0.1, 0.05, 0.033, 1e-3])
def test_steps_are_those_nearest_to_the_multiples(every):
    schedule = Schedule(end=4.0, fixed_dt=0.1)
    multiples, step, found = Multiples(every), 0, []
    while step < 35:
        multiples.go_past(schedule, Clock(step=step, time=0.1 * step))
        step += multiples.steps_to_next(schedule, Clock(step=step, time=0.1 * step))
        found.append(step)
    nearest = sorted({round(n * every / 0.1) for n in range(1, int(4.5 / every))} - {0})
    assert found == nearest[: len(found)]


def test_a_time_far_below_a_step_is_not_counted_up_to_it(monkeypatch):
    asked = []
    step_near = Schedule.step_near
    monkeypatch.setattr(Schedule, "step_near", lambda self, time: asked.append(time) or step_near(self, time))
    schedule, multiples = Schedule(end=2.0, fixed_dt=1.0), Multiples(1e-5)
    multiples.go_past(schedule, Clock(step=1, time=1.0))
    assert multiples.steps_to_next(schedule, Clock(step=1, time=1.0)) == 1
    assert len(asked) < 10
