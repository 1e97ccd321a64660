"""A fit has the same bits on every number of processes and devices, and continues on others."""

import time

import numpy as np
import pytest
from gradients import members_from
from support import on, simulation_of

from hpcstencil.adjoint.limits import limits_of
from hpcstencil.checkpoint.checkpoint import newest_checkpoint
from hpcstencil.fit.run import Duration, FitRun
from hpcstencil.python.gradient import gathered_blocks
from hpcstencil.runtime.communicator import OneProcess, connect, from_rank_0
from hpcstencil.runtime.signals import Request
from hpcstencil.runtime.walltime import Walltime
from hpcstencil.simulation.event_loop import StopRequests

pytestmark = [pytest.mark.mpi, on(2)]

GIVEN = {
    "grid": {"shape": [18, 15], "upper": [1.8, 1.5]},
    "equation": {"name": "custom", "A": 0.5, "rhs": {"u": "0.05*laplacian(u) + A*u*(1 - u) + dx(v)", "v": "0.1*u - v"}},
    "initial": {"u": "exp(-4*((x - 1)**2 + (y - 1)**2))", "v": "A*x"},
    "boundary": {"x": {"dirichlet": 0.1}},
    "numerics": {"integrator": "ssprk2"},
    "time": {"end": 0.1, "dt": 0.02},
    "objective": {"misfit": "integral((u - 0.3*(1 + x*y/4))**2)"},
    "gradient": {"of": ["initial.u", "equation.A"]},
}
HEATED = {"u": GIVEN["equation"]["rhs"]["u"] + " + s", "v": "0.1*u - v"}  # by the time series s
FIT = {
    "lower": {"initial.u": 0.0, "equation.s": -0.2},
    "upper": {"equation.A": 0.6},
    "smoothing": {"initial.u": 0.15, "equation.s": 0.03},
    "frozen": {"initial.u": "x < 0.3"},
}


@pytest.fixture(scope="module")
def communicator():
    return connect()


def found(path, communicator, steps, devices=1, resume=False):
    """(rows, unknowns on the whole grid on rank 0) of a fit."""
    series = {"s": {"series": str(path.parent / "samples.npy"), "dt": 0.03}, "rhs": HEATED}
    of = [*GIVEN["gradient"]["of"], "equation.s"]
    given = {
        **GIVEN,
        "equation": {**GIVEN["equation"], **series},
        "gradient": {"of": of},
        "fit": {**FIT, "steps": steps},
    }
    members, plans = members_from(given, communicator, devices, "native", found=["u"]).planned(lambda _: {})
    problem = members.forward.problem
    result = FitRun(
        members,
        plans,
        limits_of(problem, members.unknowns, problem.config.fit),
        path,
        lambda blocks: simulation_of(blocks.problem, communicator, devices, "native"),
        StopRequests(Request(), Walltime("99:00:00", communicator, time.monotonic()), lambda: 0.0, communicator),
        Duration(),
        quiet=True,
    ).run(newest_checkpoint(path, communicator) if resume else None)
    blocks = gathered_blocks(members.forward, result.state.point.unknowns, ["equation.s"])
    return result.state.rows, {key: None if value is None else value.tobytes() for key, value in blocks.items()}


def test_every_decomposition_finds_the_same(communicator, tmp_path_factory):
    folder = communicator.broadcast(tmp_path_factory.mktemp("fit") if communicator.rank == 0 else None)
    from_rank_0(communicator, lambda: np.save(folder / "samples.npy", np.zeros(5)))
    expected = from_rank_0(communicator, lambda: found(folder / "alone.h5", OneProcess(), 6))
    assert len(expected[0]) == 7 and expected[0][-1].objective < 0.5 * expected[0][0].objective
    # The first half on two devices per process, the second on one.
    found(folder / "all.h5", communicator, 3, devices=2)
    rows, unknowns = found(folder / "all.h5", communicator, 6, resume=True)
    assert rows == expected[0]
    if communicator.rank == 0:
        assert unknowns == expected[1]
