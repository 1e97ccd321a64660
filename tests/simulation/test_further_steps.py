"""Steps whose size follows the solution, many of them in a compiled call."""

import signal

import numpy as np
import pytest
from measured import FOLLOWING, TOLERANT, stepping_of

from hpcstencil.equations import shallow_water
from hpcstencil.simulation.adaptive_step import Control
from hpcstencil.validation.errors import NumericsError


def input_of(case, **time):
    tables = FOLLOWING[case]
    return {**tables, "time": {**tables["time"], "dt_every": 1, **time}}


def one_by_one(tables, steps, kernel="native"):
    """The (clock, fields) after each of some steps, which are calls of their own."""
    stepping = stepping_of(tables, kernel)
    for _ in range(steps):
        stepping.advance(lambda *_: None, limit=1)
        yield stepping.clock, {name: np.asarray(array) for name, array in stepping.state.fields.items()}


def together(tables, limit, until=None, is_quiet=lambda leap: True):
    """The (stepping, number of its steps) after a call that may take ``limit`` steps."""
    stepping = stepping_of(tables)
    return stepping, stepping.advance(lambda *_: None, limit, until, is_quiet)


def assert_same(stepping, expected):
    clock, fields = expected
    assert stepping.clock == clock
    for name, array in fields.items():
        np.testing.assert_array_equal(np.asarray(stepping.state.fields[name]), array, strict=True)


@pytest.mark.parametrize("dt_every", [1, 2])
@pytest.mark.parametrize("case", FOLLOWING)
def test_a_call_takes_many_steps(case, dt_every):
    """They are those that calls of one step take. An odd and an even number end in different arrays."""
    tables = input_of(case, dt_every=dt_every)
    expected = list(one_by_one(tables, 8))
    for steps in (7, 8):
        stepping, taken = together(tables, steps)
        assert taken == steps
        assert_same(stepping, expected[steps - 1])
    assert stepping.advance(lambda *_: None, 5) == dt_every  # announced steps only


def test_a_call_ends_where_somebody_acts_and_at_a_time():
    tables = input_of("burgers")
    expected = list(one_by_one(tables, 9))
    stepping, taken = together(tables, 20, is_quiet=lambda leap: leap.after.step != 6)
    assert taken == 5
    assert_same(stepping, expected[4])
    stepping, taken = together(tables, 20, is_quiet=lambda leap: False)
    assert taken == 1
    middle = 0.5 * (expected[6][0].time + expected[7][0].time)
    stepping, taken = together(tables, 20, until=middle)
    assert taken == 8
    assert_same(stepping, expected[7])


def test_a_call_ends_with_the_run():
    end = list(one_by_one(input_of("burgers"), 6))[-1][0].time - 1e-4
    tables = input_of("burgers", end=end)
    stepping, taken = together(tables, 100)
    assert stepping.finished
    assert (taken, stepping.clock.time) == (6, end)


def test_a_call_ends_with_a_state_that_is_not_finite():
    """It is the state of the first such step, and the message names the step before."""
    shock = {"rho": "1.0", "E": "0.25 + 10*(x < 0.5)"}
    tables, messages = {**input_of("euler", cfl=3.0), "initial": shock}, []
    for is_quiet in (None, lambda leap: True):
        stepping, calls = stepping_of(tables), 0
        with pytest.raises(NumericsError) as error:
            while True:
                calls += 1
                stepping.advance(lambda *_: None, 50, None, is_quiet)
                stepping.finite.after_steps(stepping.state)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert calls == 1


def test_an_error_while_steps_are_chosen_leaves_the_state_before(monkeypatch):
    """It reaches the caller although it happens inside of compiled code."""
    tables, rates, calls = input_of("shallow_water"), shallow_water.ShallowWater.rates, []

    def fails(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise ZeroDivisionError("in user code")
        return rates(*arguments)

    expected, stepping = list(one_by_one(tables, 4)), stepping_of(tables)
    monkeypatch.setattr(shallow_water.ShallowWater, "rates", fails)
    with pytest.raises(ZeroDivisionError, match="in user code"):
        stepping.advance(lambda *_: None, 20, None, lambda leap: True)
    assert_same(stepping, expected[3])
    assert stepping.advance(lambda *_: None, 1, None, lambda leap: True) == 1


@pytest.mark.parametrize("case", TOLERANT)
def test_a_call_attempts_many_steps(case, monkeypatch):
    """They are those that calls of one step accept, and so are the steps that are tried."""
    tables = TOLERANT[case]
    expected = list(one_by_one(tables, 40))
    assert (case == "sudden") == bool(expected[-1][0].rejected)
    calls, attempt = [], Control.steps
    monkeypatch.setattr(Control, "steps", lambda *arguments: calls.append(1) or attempt(*arguments))
    for steps in (39, 40):
        calls.clear()
        stepping, taken = together(tables, steps)
        while taken < steps:
            taken += stepping.advance(lambda *_: None, steps - taken, None, lambda leap: True)
        assert_same(stepping, expected[steps - 1])
        outputs = sum(stepping.schedule.is_output(clock) for clock, _ in expected[:steps])
        assert len(calls) <= 1 + outputs


def collapsing(rhs, end):
    """An equation without a solution beyond some time before the ``end``."""
    problem = {**TOLERANT["sudden"], "time": {"end": end, "tolerance": 1e-6}, "output": {}}
    return {**problem, "equation": {"name": "custom", "rhs": {"u": rhs}}}


def test_a_step_that_collapses_within_a_call_leaves_the_state_before():
    """u' = u² from u = 1 is infinite at t = 1."""
    tables = collapsing("u**2", 1.5)
    found = []
    for is_quiet in (None, lambda leap: True):
        stepping = stepping_of(tables)
        with pytest.raises(NumericsError, match="the step collapsed to") as error:
            while True:
                stepping.advance(lambda *_: None, 100, None, is_quiet)
        found.append((str(error.value), stepping.clock.time, np.asarray(stepping.state.fields["u"]).tolist()))
    assert found[0] == found[1]


def test_a_state_that_is_written_before_a_collapse_is_reached_once():
    """The call that attempts only steps that are rejected ends with the error, not with the state that was there."""
    tables = {**collapsing("sqrt(0.5 - t)", 1.0), "output": {"every": 0.5}}
    stepping = stepping_of(tables)
    with pytest.raises(NumericsError, match="the step collapsed to"):
        while True:
            assert stepping.advance(lambda *_: None, 100, None, lambda leap: True) > 0


class TooLate(Exception):
    pass


LONG = {
    "cfl": input_of("burgers", end=1e3),
    "tolerance": {**TOLERANT["gray_scott"], "time": {"end": 1e6, "tolerance": 1e-6}},
}


@pytest.mark.parametrize("case", LONG)
def test_an_exception_of_a_signal_handler_is_not_lost(case):
    """The state is that after some steps, from which others follow as if nothing had happened."""

    def raise_too_late(*_):
        raise TooLate

    tables = LONG[case]
    stepping, before = stepping_of(tables), signal.signal(signal.SIGALRM, raise_too_late)
    for _ in range(2):  # JAX does not bear exceptions while it compiles
        stepping.advance(lambda *_: None, 40, None, lambda leap: True)
    try:
        for n in range(12):
            with pytest.raises(TooLate):
                signal.setitimer(signal.ITIMER_REAL, 0.02 + 0.007 * n)
                while True:
                    stepping.advance(lambda *_: None, 40, None, lambda leap: True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    whole, _ = together(tables, stepping.clock.step)
    while whole.clock.step < stepping.clock.step:
        whole.advance(lambda *_: None, stepping.clock.step - whole.clock.step, None, lambda leap: True)
    for name, array in whole.state.fields.items():
        np.testing.assert_array_equal(np.asarray(stepping.state.fields[name]), np.asarray(array), strict=True)
    for each in (stepping, whole):  # the exception may have come after the size of this step was measured, or before
        each.advance(lambda *_: None, 1)
    assert_same(stepping, (whole.clock, {name: np.asarray(array) for name, array in whole.state.fields.items()}))
