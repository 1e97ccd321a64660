"""The multiples of a time at which streams and callbacks act."""

import pytest

from hpcstencil.config.streams import StreamConfig
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


def records_of(every, end, dt):
    """(steps at which a stream records, the count that `check` shows, the steps between two if that is constant)."""
    schedule, multiples, step, found = Schedule(end=end, fixed_dt=dt), Multiples(every), 0, []
    while True:
        multiples.go_past(schedule, Clock(step=step, time=dt * step))
        step += multiples.steps_to_next(schedule, Clock(step=step, time=dt * step))
        if step > schedule.total_steps:
            return (
                found,
                schedule.records(every, schedule.total_steps),
                StreamConfig(every=every).steps_between(dt, end),
            )
        found.append(step)


def test_a_shortened_last_step_is_not_recorded_for_a_time_after_the_end():
    found, count, _ = records_of(every=0.02292, end=0.067301, dt=0.003)
    assert (found, count) == ([8, 15], 2)  # 23 * 0.003 would be nearest to 3 * 0.02292
    found, count, between = records_of(every=0.03, end=0.0599, dt=0.01)
    assert (found, count, between) == ([3], 1, None)
    found, count, between = records_of(every=0.03, end=0.06, dt=0.01)
    assert (found, count, between) == ([3, 6], 2, 3)
    found, count, _ = records_of(every=0.02382, end=0.1419, dt=0.0047)
    assert (found, count) == ([5, 10, 15, 20, 25, 30], 6)  # step 30 has its full length
    found, count, between = records_of(every=0.02, end=0.0599, dt=0.01)
    assert (found, count, between) == ([2, 4], 2, None)


def test_a_multiple_at_the_end_is_that_of_a_shortened_last_step():
    schedule, multiples = Schedule(end=1.0, fixed_dt=0.3), Multiples(0.5, to_end=True)
    multiples.go_past(schedule, Clock())
    assert multiples.steps_to_next(schedule, Clock()) == 2
    multiples.go_past(schedule, Clock(step=2, time=0.6))
    assert not multiples.are_reached(schedule, Clock(step=3, time=0.9))
    assert multiples.are_reached(schedule, Clock(step=4, time=1.0))


@pytest.mark.parametrize("every", [1e-30, 1e-12, 0.013, 0.5])
def test_close_multiples_are_reached_at_every_step(every):
    schedule, multiples = Schedule(end=10.0, fixed_dt=1.0), Multiples(every)
    for step in range(10):
        multiples.go_past(schedule, Clock(step=step, time=float(step)))
        assert multiples.steps_to_next(schedule, Clock(step=step, time=float(step))) == 1


def test_a_time_far_below_a_step_is_not_counted_up_to_it(monkeypatch):
    asked = []
    step_near = Schedule.step_near
    monkeypatch.setattr(Schedule, "step_near", lambda self, time: asked.append(time) or step_near(self, time))
    schedule, multiples = Schedule(end=2.0, fixed_dt=1.0), Multiples(1e-5)
    multiples.go_past(schedule, Clock(step=1, time=1.0))
    assert multiples.steps_to_next(schedule, Clock(step=1, time=1.0)) == 1
    assert len(asked) < 10
