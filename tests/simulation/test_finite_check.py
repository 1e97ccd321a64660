"""The extremes of measured quantities, which calls of native code find while they step."""

from dataclasses import replace

import numpy as np
import pytest
from measured import FOLLOWING, computed_anew, measured, stepping_of

from hpcstencil.validation.errors import NumericsError


@pytest.mark.parametrize("case", FOLLOWING)
def test_calls_record_the_extremes(case, monkeypatch):
    """They are those of the state, and steps have the sizes that they have without."""
    stepping, without = stepping_of(FOLLOWING[case]), stepping_of(FOLLOWING[case])
    found = measured(stepping, 6)
    assert stepping.finite.recorder is not None
    assert found[-1][1:] == computed_anew(stepping.simulation, stepping.state)
    without.finite.recorder = None
    assert found == measured(without, 6)

    def fails(*_):
        raise AssertionError("extremes were computed after a call that has recorded them")

    monkeypatch.setattr(type(stepping.simulation.extremes), "extremes", fails)
    measured(stepping, 3)


def test_other_fields_of_the_same_step_are_measured_again():
    stepping = stepping_of(FOLLOWING["euler"])
    (_, before, _), *_ = measured(stepping, 1)
    fields = {name: 2 * array for name, array in stepping.state.fields.items()}
    stepping.state = replace(stepping.state, fields=fields)
    after, _ = stepping.finite.extremes(stepping.state)
    assert after[0] == 2 * before[0]


@pytest.mark.parametrize("dt_every", [1, 3])
@pytest.mark.parametrize("kernel", ["native", "shift"])
def test_extremes_are_computed_once_per_state(kernel, dt_every, monkeypatch):
    """By the check and for the size of the next step; not at all after calls that record them."""
    tables = FOLLOWING["euler"]
    stepping = stepping_of({**tables, "time": {**tables["time"], "dt_every": dt_every}}, kernel)
    reductions, states = type(stepping.simulation.extremes), []
    extremes = reductions.extremes

    def noted(self, fields, parameters, time):
        states.append(time)
        return extremes(self, fields, parameters, time)

    monkeypatch.setattr(reductions, "extremes", noted)
    for _ in range(5):
        stepping.advance(lambda *_: None)
        stepping.finite.after_steps(stepping.state)
    assert len(states) == (1 if kernel == "native" else 6)
    assert len(set(states)) == len(states)


def test_cells_that_are_not_finite_are_counted():
    """Where the pressure is negative, there is no speed of sound. The message is the same, recorded or not."""
    shock = {"rho": "1.0", "E": "0.25 + 10*(x < 0.5)"}
    tables, told = {**FOLLOWING["euler"], "initial": shock, "time": {"end": 1.0, "dt": 0.02}}, []
    for recorded in (True, False):
        stepping = stepping_of(tables)
        stepping.finite.recorder = stepping.finite.recorder if recorded else None
        with pytest.raises(NumericsError) as error:
            for _ in range(9):
                stepping.advance(lambda *_: None, limit=1)
                stepping.finite.after_steps(stepping.state)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "not finite in" in told[0]


@pytest.mark.parametrize("case", FOLLOWING)
def test_short_calls_use_two_arrays_in_turn(case):
    """The steps are the same; the state before the last call lies in the memory for the next one."""
    tables = {**FOLLOWING[case], "time": {**FOLLOWING[case]["time"], "dt_every": 1}}
    in_turn, in_place = stepping_of(tables), stepping_of(tables)
    assert in_turn.into is not None
    in_place.into = None
    before = dict(in_turn.state.fields)
    assert measured(in_turn, 5) == measured(in_place, 5)
    for name, field in in_place.state.fields.items():
        assert np.array_equal(field, in_turn.state.fields[name]), name
    for name in in_turn.simulation.problem.changing:
        assert before[name].is_deleted()
        assert not in_turn.room[name].is_deleted()


def test_calls_use_two_arrays_in_turn_until_one_is_long():
    """Then the second array is freed."""
    tables = {**FOLLOWING["euler"], "time": {"end": 1.0, "dt": 1e-3}}
    short, long = stepping_of(tables), stepping_of(tables)
    long.compile()
    assert long.into is None and not long.room
    short.compile(limit=2)
    for stepping, limits in ((short, (1, 2, 2)), (long, (5,)), (short, (3, 1)), (long, (4,))):
        for limit in limits:
            assert stepping.advance(lambda *_: None, limit) == limit
    assert short.into is None and not short.room
    for name, field in long.state.fields.items():
        assert np.array_equal(field, short.state.fields[name]), name
