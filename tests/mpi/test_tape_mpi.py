"""Reverse sweeps with a tape on several processes give the same bits as a sweep that stores states on one process."""

import numpy as np
import pytest
from gradients import bytes_of, in_memory, members_from, without_tapes
from support import dealt

from hpcstencil.runtime.communicator import connect, from_rank_0

pytestmark = pytest.mark.mpi

WAVE = {
    "grid": {"shape": [44, 37], "upper": [4.4, 3.7]},
    "equation": {"name": "acoustic", "c": 1.3, "source": 2.0, "xs": 0.6, "ys": 0.4, "f0": 20.0, "t0": 0.03},
    "initial": {"p": "exp(-4*(x - 1)**2 - 4*(y - 2)**2)"},
    "boundary": {"y": {"dirichlet": 0.0}},
    "numerics": {"integrator": "leapfrog", "order": 4},
    "time": {"dt": 0.01, "end": 0.234},
    "probes": {"cable": {"field": "p", "x": [0.3, 2.18, 4.4], "y": [0.4, 1.85, 3.0], "every_steps": 3}},
    "objective": {"J": "sum(cable**3 + t*cable)"},
    "gradient": {"of": ["equation.c", "initial.p"]},
}
PROBLEMS = {
    "receivers": WAVE,
    "receivers in a CPML": {**WAVE, "boundary": {axis: {"cpml": {"width": 0.9, "speed": 1.3}} for axis in "xy"}},
    "stages": {
        **WAVE,
        "boundary": {"x": {"cpml": {"width": 0.9, "speed": 1.3}}, "y": {"dirichlet": 0.0}},
        "numerics": {"integrator": "rk4", "order": 4},
    },
    "beside solid cells": {
        **WAVE,
        "mask": {"solid": "(x - 2)**2 + (y - 1)**2 < 0.3"},
        "numerics": {"integrator": "leapfrog"},
    },
    "periodic": {
        **WAVE,
        "grid": {"shape": [25, 18, 20]},
        "equation": {"name": "gray_scott"},
        "initial": {"u": "1 - 0.3*sin(x)", "v": "0.2 + 0.1*cos(y + z)"},
        "boundary": {},
        "numerics": {"integrator": "euler", "precision": "float64"},
        "probes": {},
        "objective": {"J": "integral(u**2*v)"},
        "gradient": {"of": ["initial.v", "equation.F", "equation.k"]},
        "time": {"dt": 0.5, "end": 10.0},
    },
    "values in operands": {
        **WAVE,
        "grid": {"shape": [24, 26, 17], "upper": [2.4, 2.6, 1.7]},
        "equation": {"name": "custom", "a": 0.3, "rhs": {"u": "v", "v": "(1 + a*u)*laplacian(u)"}},
        "initial": {"u": "sin(2*x)*cos(3*y + z)"},
        "boundary": {"y": "periodic", "z": {"dirichlet": 0.1}},
        "probes": {},
        "objective": {"J": "mean(u**3*laplacian(u)) + max(dx(u) - 0.1*u)"},
        "gradient": {"of": ["initial.u"]},
        "time": {"dt": 0.01, "end": 0.12},
    },
}


@pytest.fixture(scope="module")
def communicator():
    return connect()


@pytest.mark.parametrize("name, every", dealt(PROBLEMS, ("auto", 1)))
def test_every_decomposition_gives_the_bits_of_a_sweep_with_states(communicator, name, every):
    given = PROBLEMS[name]

    def expected():
        with without_tapes():
            members = members_from(given, kernel="native")
        assert members.sweeps[0].adjoint.tape is None
        return in_memory(members)

    alone = from_rank_0(communicator, expected)
    members = members_from({**given, "decomposition": {"steps_per_exchange": every}}, communicator, kernel="native")
    (sweep,) = members.sweeps
    assert sweep.adjoint.tape is not None
    for _ in range(2):
        value, found = bytes_of(in_memory(members))
        assert value == alone.value
        index = tuple(slice(*r) for r in sweep.forward.ranges)
        for key, array in alone.blocks.items():
            assert found[key] == np.ascontiguousarray(array[index]).tobytes(), key
        assert {key: found[key] for key in alone.numbers} == {
            key: np.asarray(number).tobytes() for key, number in alone.numbers.items()
        }


@pytest.mark.parametrize("name", dealt(["receivers in a CPML", "stages", "periodic"]))
def test_every_decomposition_gives_the_bits_of_one_process_with_a_tape_in_half_precision(communicator, name):
    given = PROBLEMS[name]
    given = {**given, "gradient": {**given["gradient"], "tape_precision": "half"}}
    alone = from_rank_0(communicator, lambda: in_memory(members_from(given, kernel="native")))
    members = members_from(given, communicator, kernel="native")
    index = tuple(slice(*r) for r in members.sweeps[0].forward.ranges)
    value, found = bytes_of(in_memory(members))
    assert value == alone.value
    for key, array in alone.blocks.items():
        assert found[key] == np.ascontiguousarray(array[index]).tobytes(), key
