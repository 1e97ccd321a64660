"""Steps, outputs and their times: the same whatever the length of the compiled calls."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstencil.numerics.schedule import Clock, Schedule


def trace(schedule, dt=None, most=10**9, clock=None):
    """(steps, outputs, diagnostics, checkpoints) of a whole run: lists of (step, time)."""
    clock, every = clock or Clock(), schedule.diagnostic_steps
    steps, outputs, rows, saved = [], [], [], []
    while True:
        if schedule.is_output(clock):
            outputs.append((clock.step, clock.time))
        row = clock.step, clock.time
        if schedule.is_diagnostic(clock) and row not in rows:
            rows.append(row)
        if schedule.is_checkpoint(clock):
            saved.append(clock)
        if schedule.finished(clock):
            return steps, outputs, rows, saved
        leap = schedule.leap(clock, dt or schedule.fixed_dt, most)
        base_time, first, each, count = leap.steps
        assert 1 <= count <= most
        steps += [(base_time + (first + i) * each, each) for i in range(count)]
        clock = leap.after
        rows += [(step, leap.time_of(step)) for step in (leap.multiples(every) if every else ())]
        assert len(steps) < 100_000


def test_a_fixed_step_is_shortened_at_the_end():
    steps, outputs, _, _ = trace(Schedule(end=1.0, fixed_dt=0.3))
    assert len(steps) == 4 and outputs == [(0, 0.0), (4, 1.0)]
    assert steps[-1][1] == pytest.approx(0.1)


def test_a_round_quotient_makes_no_extra_step():
    assert Schedule(end=1.0, fixed_dt=0.1).total_steps == 10
    assert trace(Schedule(end=1.0, fixed_dt=0.1))[1][-1] == (10, 1.0)


@pytest.mark.parametrize("end, dt", [(2.0, 0.05), (1.0, 0.1), (3.0, 0.75)])
def test_a_last_step_that_rounding_alone_makes_different_is_taken_with_the_others(end, dt):
    leap = Schedule(end=end, fixed_dt=dt).leap(Clock(), dt, 1000)
    assert (leap.steps.count, leap.steps.dt, leap.after.time) == (round(end / dt), dt, end)


def test_output_falls_on_the_nearest_step():
    _, outputs, _, _ = trace(Schedule(end=1.0, fixed_dt=0.1, output_time=0.25))
    assert [step for step, _ in outputs] == [0, 2, 5, 8, 10]


def test_output_more_often_than_steps_is_not_doubled():
    _, outputs, _, _ = trace(Schedule(end=1.0, fixed_dt=0.5, output_time=0.1))
    assert outputs == [(0, 0.0), (1, 0.5), (2, 1.0)]


@pytest.mark.parametrize("end, dt", [(0.067301, 0.003), (0.1419, 0.0047), (1.0, 0.3), (1.0, 0.1)])
@pytest.mark.parametrize("every", [0.02292, 0.02382, 0.1, 0.25, 0.7, 1e-3])
def test_the_snapshots_of_fixed_steps_are_known_beforehand(end, dt, every):
    schedule = Schedule(end=end, fixed_dt=dt, output_time=every)
    assert schedule.snapshots(schedule.total_steps) == len(trace(schedule)[1])


def test_a_controlled_step_lands_on_outputs_but_not_on_diagnostics():
    schedule = Schedule(end=1.0, fixed_dt=None, output_time=0.25, diagnostic_steps=2)
    steps, outputs, rows, _ = trace(schedule, dt=0.1)
    assert [time for _, time in outputs] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert len(steps) == 12
    assert [step for step, _ in rows] == [0, 2, 4, 6, 8, 10, 12]
    assert math.fsum(dt for _, dt in steps) == pytest.approx(1.0)


@given(
    st.floats(0.01, 0.3),
    st.one_of(st.none(), st.floats(0.05, 1.0)),
    st.one_of(st.none(), st.integers(1, 7)),
    st.integers(1, 9),
    st.booleans(),
)
def test_the_length_of_a_call_changes_nothing(dt, output_time, diagnostic_steps, most, fixed):
    schedule = Schedule(2.0, dt if fixed else None, output_time, None, diagnostic_steps, 5)
    whole, parts = trace(schedule, dt), trace(schedule, dt, most)
    assert whole == parts
    assert whole[1][-1][1] == 2.0
    for clock in whole[3]:
        rest = trace(schedule, dt, most, clock)
        assert rest[0] == whole[0][clock.step :]
        assert rest[1] == [o for o in whole[1] if o[0] >= clock.step]


def test_outputs_closer_than_steps_are_found_at_once():
    """Each step is an output then; counting the outputs in between would not come to an end."""
    schedule = Schedule(end=1.0, fixed_dt=0.1, output_time=1e-300)
    assert [schedule.steps_to_event(Clock(step=n)) for n in range(3)] == [1, 1, 1]
    assert all(schedule.is_output(Clock(step=n)) for n in range(11))


def test_the_next_output_is_later_whatever_the_rounding():
    schedule = Schedule(end=1e9, fixed_dt=None, output_time=0.1)
    for number in range(10**8, 10**8 + 2000):
        assert schedule.next_output_time(number * 0.1) > number * 0.1
