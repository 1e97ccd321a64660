"""Edges that native code exchanges inside its passes, through memory or by messages: the same bits as on one process."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support import dealt, on, problem_of, random_block, simulation_of, stepped, steps_in_place

from hpcstencil.backends.native import edge_exchange, shared_memory
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.runtime.communicator import connect, from_rank_0

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def communicator():
    return connect()


def problem(**decomposition):
    return problem_of(
        grid={"shape": [45, 38]},
        equation={"name": "gray_scott"},
        boundary={"x": {"dirichlet": "0.1*t"}, "y": "periodic"},
        numerics={"integrator": "ssprk2", "order": 4},
        decomposition=decomposition,
    )


def calls(simulation, count):
    """Random fields after calls of different lengths, one after the other on the same memory."""
    fields, first = simulation.put(random_block(simulation.problem, simulation)), 0
    for steps in (1, 2, 7, 0, 5)[:count]:
        fields = simulation.advance(fields, StepRange(0.0, first, 1e-3, steps))
        first += steps
    return simulation.get(fields, ("u", "v"))


@on(2, 4)
def test_blocks_that_could_step_in_place_do_as_thinner_ones(communicator):
    """Sweeps in place begin steps for each other, and exchange what lies in the middle of a step; those in tiles do not."""

    def thin(**decomposition):  # the first block has six planes, the others five; in place takes six
        return problem_of(
            grid={"shape": [5 * communicator.size + 1, 21, 12]},
            equation={"name": "maxwell"},
            numerics={"integrator": "leapfrog", "precision": "float64"},
            decomposition=decomposition,
        )

    def after(simulation):
        return stepped(simulation.problem, simulation, 16, 1e-2)

    expected = from_rank_0(communicator, lambda: after(simulation_of(thin(), kernel="native")))
    simulation = simulation_of(thin(processes=[communicator.size, 1, 1]), communicator, kernel="native")
    index = tuple(slice(*r) for r in simulation.ranges)
    for name, block in after(simulation).items():
        assert np.array_equal(block, expected[name][index]), name


def layered(**decomposition):
    """Waves between absorbing layers of different widths, which end inside blocks, and a wall."""
    return problem_of(
        grid={"shape": [97, 118]},
        equation={"name": "wave"},
        boundary={
            "x": {"cpml": {"width": 9.0}},
            "y": {"lower": {"neumann": 0.0}, "upper": {"cpml": {"width": 31.0}}},
        },
        numerics={"integrator": "ssprk3", "order": 4},
        decomposition=decomposition,
    )


def layered_calls(simulation):
    """All fields, those of layers included, after calls of different lengths."""
    fields, first = simulation.put(random_block(simulation.problem, simulation)), 0
    for steps in (1, 7, 5):
        fields, first = simulation.advance(fields, StepRange(0.0, first, 0.1, steps)), first + steps
    return simulation.get(fields, simulation.problem.fields)


@pytest.mark.parametrize(
    "decomposition",
    ({}, {"exchange": "mpi", "steps_per_exchange": 2}, {"exchange": "mpi4jax"}),
    ids=("memory", "messages", "mpi4jax"),
)
def test_layers_on_some_blocks_give_the_bits_of_one_process(communicator, decomposition):
    expected = from_rank_0(communicator, lambda: layered_calls(simulation_of(layered(), kernel="native")))
    simulation = simulation_of(layered(**decomposition), communicator, kernel="native")
    index = tuple(slice(*r) for r in simulation.ranges)
    assert expected["u.psi_x"].any() and expected["u.zeta_y"].any()
    for name, block in layered_calls(simulation).items():
        assert block.tobytes() == np.ascontiguousarray(expected[name][index]).tobytes(), name


@pytest.mark.parametrize("every", (1, 2, "auto"))
def test_shared_memory_and_messages_give_the_bits_of_one_process(communicator, every):
    expected = from_rank_0(communicator, lambda: calls(simulation_of(problem(), kernel="native"), 5))
    by_memory = simulation_of(problem(steps_per_exchange=every), communicator, kernel="native")
    by_messages = simulation_of(problem(steps_per_exchange=every, exchange="mpi4jax"), communicator, kernel="native")
    in_passes = simulation_of(problem(steps_per_exchange=every, exchange="mpi"), communicator, kernel="native")
    several = communicator.size > 1
    assert by_memory.exchange == ("shared memory" if several else "")
    assert by_messages.exchange == ("mpi4jax" if several else "")
    assert in_passes.exchange == ("MPI messages" if several else "")
    index = tuple(slice(*r) for r in by_memory.ranges)
    assert not np.array_equal(calls(by_memory, 1)["u"], expected["u"][index])
    for blocks in (calls(by_memory, 5), calls(in_passes, 5), calls(by_messages, 5)):
        for name, block in blocks.items():
            assert np.isfinite(block).all()
            assert np.array_equal(block, expected[name][index])


IN_PLACE = {
    "three axes": {
        "grid": {"shape": [150, 131, 61]},
        "equation": {"name": "heat"},
        "boundary": {"x": {"dirichlet": "0.1*t"}, "y": "periodic", "z": {"neumann": 0.2}},
        "numerics": {"integrator": "euler"},
    },
    "two axes": {
        "grid": {"shape": [870, 1201]},
        "equation": {"name": "wave"},
        "boundary": {"x": "periodic", "y": {"dirichlet": 0.0}},
        "numerics": {"integrator": "leapfrog", "order": 4},
    },
}


def compare(problem, alone, together, calls, before_call=lambda: None):
    """The block of this rank, after calls of these steps, has the values that the whole grid has there."""
    results = []
    for simulation in (alone, together):
        fields, first = simulation.put(random_block(problem, simulation)), 0
        for steps in calls:
            before_call()
            fields = simulation.advance(fields, StepRange(0.0, first, 1e-3, steps))
            first += steps
        results.append(simulation.get(fields, problem.fields))
    index = tuple(slice(*r) for r in together.ranges)
    for field, block in results[1].items():
        assert np.isfinite(block).all() and np.ptp(block) > 0
        assert np.array_equal(block, results[0][field][index])


@pytest.mark.parametrize("name, processes, every", dealt(IN_PLACE, ("auto", "first axis"), (1, 4)))
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_blocks_stepped_in_place_have_the_bits_of_the_whole_grid(communicator, name, processes, every, monkeypatch):
    """Two threads of each process have a seam between them, besides the edges of the block."""
    monkeypatch.setattr("hpcstencil.backends.native.step_functions.threads_for", lambda _: 2)
    given = {"steps_per_exchange": every}
    if processes == "first axis":
        given["processes"] = [communicator.size, *(1 for _ in IN_PLACE[name]["grid"]["shape"][1:])]
    problem = problem_of(decomposition=given, **IN_PLACE[name])
    alone = simulation_of(problem_of(**IN_PLACE[name]), kernel="native")
    together = simulation_of(problem, communicator, kernel="native")
    if processes == "first axis":
        assert steps_in_place(together, 2)
    compare(problem, alone, together, (1, 2, 17, 3, 5))


@pytest.mark.parametrize("order", (4, 8))
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_ghost_cells_of_a_wall_across_the_cut_follow_from_rows_that_have_arrived(communicator, order):
    """A sweep downwards ends at the planes that the ghost cells of the lower wall mirror, of which it loads several at once."""
    size = communicator.size
    given = {
        "grid": {"shape": [131, 75 * size, 75]},
        "equation": {"name": "heat"},
        "boundary": {"x": {"dirichlet": 0.0}, "y": {"neumann": 0.1}, "z": {"dirichlet": 0.0}},
        "numerics": {"integrator": "euler", "order": order},
    }
    problem = problem_of(decomposition={"steps_per_exchange": 3, "processes": [1, size, 1]}, **given)
    expected = from_rank_0(
        communicator, lambda: stepped(problem_of(**given), simulation_of(problem_of(**given), kernel="native"), 6, 1e-3)
    )
    together = simulation_of(problem, communicator, kernel="native")
    assert steps_in_place(together)
    index = tuple(slice(*r) for r in together.ranges)
    assert np.array_equal(stepped(problem, together, 6, 1e-3)["u"], expected["u"][index])


@pytest.mark.parametrize("devices", [1, 2])
def test_messages_and_their_communicator_are_freed(communicator, devices):
    """And another simulation has the same bits afterwards, with messages that the first one had posted ahead."""
    from mpi4py import MPI

    given = problem(exchange="mpi")
    expected = from_rank_0(communicator, lambda: stepped(problem(), simulation_of(problem(), kernel="native"), 5, 1e-3))
    for _ in range(3):
        simulation = simulation_of(given, communicator, devices, "native")
        index = tuple(slice(*r) for r in simulation.ranges)
        assert np.array_equal(stepped(given, simulation, 5, 1e-3)["u"], expected["u"][index])
        exchange = simulation.device_grid.exchange
        several = communicator.size > 1
        assert not several or exchange.communicator != MPI.COMM_NULL
        simulation.free()
        if several:
            assert exchange.communicator == MPI.COMM_NULL and simulation.exchange_mpi == MPI.COMM_NULL
            assert not any(block.sending.sent or block.sending.received for block in exchange.blocks if block.sending)


EQUATIONS = {
    "heat": ("euler", "rk4"),
    "wave": ("leapfrog", "rk4"),
    "gray_scott": ("euler", "ssprk3"),
    "acoustic": ("leapfrog", "ab2"),
    "cahn_hilliard": ("euler",),
    "burgers": ("ssprk3",),
}


@pytest.mark.parametrize(
    "seed", [*dealt(range(6)), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 200))]
)
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_any_blocks_have_the_bits_of_the_whole_grid(communicator, seed):
    """Whatever the equation, the grid, its ends, the order, the steps between exchanges and those of a call."""
    draw = random.Random(seed).choice
    name = draw(list(EQUATIONS))
    ends = ["periodic", {"dirichlet": 0.0}, {"neumann": 0.1}, *(["open"] if name in ("wave", "acoustic") else [])]
    shape = draw([[draw((75, 131, 150)) for _ in range(3)], [draw((201, 333, 400)) for _ in range(2)]])
    given = {
        "grid": {"shape": shape, "upper": [float(n) for n in shape]},
        "equation": {"name": name},
        "boundary": {axis: draw(ends) for axis in "xyz"[: len(shape)]},
        "numerics": {"integrator": draw(EQUATIONS[name]), "order": draw((2, 4, 8)), "precision": draw(("float32", "float64"))},
    }  # fmt: skip
    every = draw((1, 2, 3)) if given["numerics"]["integrator"] in ("euler", "leapfrog", "ab2") else 1
    problem = problem_of(decomposition={"steps_per_exchange": every}, **given)
    calls = [draw((1, 2, 3, 4, 5, 7, 9)) for _ in range(3)]
    together = simulation_of(problem, communicator, kernel="native")
    compare(problem, simulation_of(problem_of(**given), kernel="native"), together, calls)


@pytest.mark.parametrize("devices", (1, 2))
@pytest.mark.parametrize("name, exchange", dealt(IN_PLACE, ("auto", "mpi")))
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_blocks_that_are_not_in_step_have_the_bits_of_the_whole_grid(communicator, name, exchange, devices):
    """Many calls of a few sweeps, before which each rank sleeps for a time of its own."""
    given = {**IN_PLACE[name], "grid": {"shape": [n // 3 for n in IN_PLACE[name]["grid"]["shape"]]}}
    problem = problem_of(decomposition={"steps_per_exchange": 2, "exchange": exchange}, **given)
    alone = simulation_of(problem_of(**given), kernel="native")
    together = simulation_of(problem, communicator, devices, kernel="native")
    calls, nap = random.Random(1).choices((1, 2, 3, 8), k=150), random.Random(communicator.rank)
    compare(problem, alone, together, calls, lambda: time.sleep(nap.choice((0.0, 0.0, 2e-4, 1e-3))))


def refused(*_):
    raise OSError


def elsewhere(descriptor):
    return -1, time.monotonic_ns()  # nobody finds the same memory twice


@pytest.mark.parametrize(
    "where, name, instead", [(os, "posix_fallocate", refused), (shared_memory, "_identity", elsewhere)]
)
def test_without_memory_that_processes_share_there_are_messages(communicator, monkeypatch, where, name, instead):
    monkeypatch.setattr(where, name, instead)
    simulation = simulation_of(problem(), communicator, kernel="native")
    assert simulation.exchange == ("MPI messages" if communicator.size > 1 else "")
    stepped(simulation.problem, simulation, 3, 1e-3)


def test_without_threads_in_mpi_there_is_mpi4jax(communicator, monkeypatch):
    monkeypatch.setattr(edge_exchange, "lack_of_messages", lambda: "no threads")
    simulation = simulation_of(problem(exchange="mpi"), communicator, kernel="native")
    assert simulation.exchange == ("mpi4jax" if communicator.size > 1 else "")
    stepped(simulation.problem, simulation, 3, 1e-3)


KILLED = """
import os, signal
from hpcstencil.backends.native.shared_memory import shared_memory

class First:
    rank = 0
    def broadcast(self, value):
        assert value is not None
        os.kill(os.getpid(), signal.SIGKILL)

shared_memory(10_000, First())
"""


def test_a_process_that_is_killed_before_the_others_see_the_memory_leaves_nothing(communicator):
    if communicator.rank == 0:
        before = set(os.listdir("/dev/shm"))
        killed = subprocess.run([sys.executable, "-c", KILLED], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert not {name for name in set(os.listdir("/dev/shm")) - before if "hpcstencil" in name}
