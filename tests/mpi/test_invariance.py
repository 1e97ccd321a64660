"""The same bits for every decomposition: processes x devices x tiles x steps per exchange x kernels."""

import math
from functools import partial

import jax
import numpy as np
import pytest
from decompositions import EVERYTHING, PROBLEMS, SELECTED, step_for, tables
from support import dealt, on, problem_of, random_block, simulation_of, stepped

from hpcstencil.numerics.schedule import Clock, StepRange
from hpcstencil.problem.decomposition import decompose
from hpcstencil.runtime.communicator import connect, from_rank_0
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.simulation.compose import compose
from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with
from hpcstencil.simulation.restart import Source
from hpcstencil.simulation.start import at_start
from hpcstencil.validation.errors import InputError

pytestmark = [pytest.mark.mpi, pytest.mark.optimized]
STEPS = 5
# In CI what takes long to compile is left to the rows that cover it: `pallas` (interpreted) with walls on one device and two
# steps per exchange, and with a mask on two devices and one step; `conv` on tiles of two devices in one to three dimensions and
# with every operator; slices on such tiles in one and two dimensions, with walls, a mask, staggered fields and members. Every
# row has slices on one device, and native code on one and two.
WITH_PALLAS = {"heat-2d-walls": (1, 2), "mask-2d": (2, 1)}  # devices, steps per exchange
WITH_CONV = {"heat-1d", "heat-3d", "wave-2d", "mixed-2d"}
WITH_TILES = {"heat-1d", "wave-2d", "heat-2d-walls", "mask-2d", "shallow-2d", "ensemble-2d"}
MEANS = ("auto", "mpi", "mpi4jax")  # of exchange between processes, for native code
ROUNDINGS = {
    "native": 32,
    "pallas": 4,
}  # of the largest value: how far from shift; native code adds up in another order


@pytest.fixture(scope="module")
def communicator():
    return connect()


def ways(name, everything):
    """(devices, tiles, steps per exchange, kernel, exchange) to compare with the one-process run."""
    ndim = len(PROBLEMS[name][1])
    tilings = [[1] * ndim, [2] * ndim, [3] + [1] * (ndim - 1)]
    if everything:
        return [
            (d, t, k, kernel, exchange)
            for d in (1, 2)
            for t in tilings
            for k in ("auto", 1, 2, 4)
            for kernel, exchange in (("shift", "auto"), ("conv", "auto"), *(("native", means) for means in MEANS))
        ]
    chosen = [(1, "auto", "auto", "shift", "auto")]
    chosen += [(1, "auto", 2, "native", exchange) for exchange in MEANS]
    chosen += [(2, "auto", "auto", "native", "auto"), (2, "auto", 1, "native", "mpi")]
    if name in WITH_TILES:
        chosen += [(2, tilings[1], 2, "shift", "auto")]
    if name in WITH_CONV:
        chosen += [(2, tilings[2], 1, "conv", "auto")]
    if name in WITH_PALLAS:
        devices, every = WITH_PALLAS[name]
        chosen += [(devices, "auto", every, "pallas", "auto")]
    return chosen


def most_steps(problem, processes, devices):
    """How many steps fit between two exchanges: each needs a halo of stages x radius cells of the thinnest block."""
    topology, stages = decompose(problem, processes, devices), problem.method.evaluations
    widths = (n // (p * d) for n, p, d in zip(topology.shape, topology.processes, topology.devices, strict=True))
    fit = [
        width // (stages * radius)
        for axis, (width, radius) in enumerate(zip(widths, problem.radius, strict=True))
        if topology.is_split(axis) and radius
    ]
    return min(fit, default=math.inf)


def reference(communicator, row, kernel, dt):
    """The fields on one process alone; computed once, since the processes of a test share few cores."""
    alone = problem_of(**tables(*row))
    return from_rank_0(communicator, lambda: stepped(alone, simulation_of(alone, kernel=kernel), STEPS, dt))


def compare(communicator, row, everything=False):
    """Every decomposition agrees with one process bit for bit, and only those without room for their halo are refused."""
    dt, references = step_for(row[0]), {}
    for devices, tiles, wish, kernel, exchange in ways(row[0], everything):
        if kernel not in references:
            references[kernel] = reference(communicator, row, kernel, dt)
        every, problem_with = wish, partial(tables, *row, tiles=tiles, exchange=exchange)
        if wish != "auto":
            most = most_steps(problem_of(**problem_with()), communicator.size, devices)
            if wish > most:
                with pytest.raises(InputError, match=r"^decomposition\.steps_per_exchange: "):
                    simulation_of(problem_of(**problem_with(steps_per_exchange=wish)), communicator, devices, kernel)
                if everything:
                    continue
                every = most or "auto"
        problem = problem_of(**problem_with(steps_per_exchange=every))
        simulation = simulation_of(problem, communicator, devices, kernel)
        in_passes = kernel == "native" and simulation.plan.steps_per_exchange > 0
        means = {"auto": "shared memory", "mpi": "MPI messages"}.get(exchange) if in_passes else None
        assert simulation.exchange == ("" if communicator.size == 1 else means or "mpi4jax")
        result = stepped(problem, simulation, STEPS, dt)
        index = tuple(slice(*r) for r in simulation.ranges)
        for name, block in result.items():
            expected = references[kernel][name][index]
            assert np.isfinite(expected).all()
            different = np.count_nonzero(block.view(np.uint8) != np.ascontiguousarray(expected).view(np.uint8))
            assert different == 0, (
                f"{name}: {different} bytes differ, at most by {np.abs(block - expected).max()}; devices {devices}, "
                f"tiles {tiles}, steps per exchange {every}, {exchange} ({simulation.plan.describe()}), kernel {kernel}"
            )
    eps = np.finfo(row[2]).eps
    for kernel in references.keys() & ROUNDINGS.keys():
        for name, by_shift in references["shift"].items():
            difference = np.abs(references[kernel][name] - by_shift).max()
            assert difference <= ROUNDINGS[kernel] * eps * np.abs(by_shift).max(), (
                f"{name}: {kernel} differs from shift"
            )


ROWS = [
    pytest.param(row, marks=on(processes), id="-".join(map(str, row)))
    for processes, rows in SELECTED.items()
    for row in rows
]


@pytest.mark.parametrize("row", ROWS)
def test_every_decomposition_gives_the_same_bits(communicator, row):
    compare(communicator, row)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("row", EVERYTHING, ids=lambda row: "-".join(map(str, row)))
def test_the_whole_table(communicator, row):
    compare(communicator, row, everything=True)


CORNERS, STAR = "dxy(u) + 0.3*laplacian(u*u) - u*dx(u)", "0.3*laplacian(u) - u*dx(u)"
STRIPS = [(CORNERS, 0), (CORNERS, 1), (CORNERS, 2), (STAR, 0)]


@pytest.mark.parametrize(
    "rhs, every", [pytest.param(*row, marks=on(2) if row in STRIPS[1::2] else pytest.mark.long) for row in STRIPS]
)
def test_gpu_kernels_read_the_strips_of_other_processes(communicator, rhs, every):
    """Interpreted; with corners, and with operands of derivatives in arrays that reach beyond the block. 0: per stage, where
    kernels store the strips of a star."""
    given = {
        "grid": {"shape": [25, 22], "upper": [2.5, 2.2]},
        "equation": {"name": "custom", "rhs": {"u": rhs}},
        "numerics": {"order": 2, "precision": "float64", "integrator": "ssprk2", "kernel": "pallas"},
        "boundary": {"x": {"dirichlet": "0.3*cos(t + y)"}, "y": "periodic"},
    }
    problem = problem_of(**given)
    decomposed = Decomposed.of(problem, communicator.size, 1)
    simulation = compose(
        prepared_with(decomposed, Choice("pallas"), communicator, every), communicator, jax.local_devices()[:1]
    )
    found = stepped(problem, simulation, 3, 1e-4)
    alone = from_rank_0(communicator, lambda: stepped(problem, simulation_of(problem, kernel="pallas"), 3, 1e-4))
    index = tuple(slice(*r) for r in simulation.ranges)
    np.testing.assert_array_equal(found["u"], alone["u"][index])


ADAPTIVE = [
    pytest.param("mask-2d", "bs3", marks=on(2)),
    pytest.param("shallow-2d", "bs3", marks=pytest.mark.long),  # errors of several fields: the members below
    pytest.param("heat-2d-walls", "dopri5", marks=on(3)),
]


def tried(problem, simulation):
    """This process's blocks and the clock after some steps that follow a tolerance, from random fields."""
    fields, clock = simulation.put(random_block(problem, simulation)), Clock()
    for _ in range(STEPS):
        fields, clock = simulation.control.step(fields, clock)
    return simulation.get(fields, problem.fields), clock


@pytest.mark.parametrize("name, integrator", ADAPTIVE)
def test_steps_of_a_tolerance_are_the_same(communicator, name, integrator):
    problem = problem_of(**tables(name, 2, "float64", integrator), time={"end": 1.0, "tolerance": 1e-3})
    alone = {}
    for kernel in ("shift", "native"):
        one = simulation_of(problem, kernel=kernel)
        alone[kernel], expected = from_rank_0(communicator, partial(tried, problem, one))
        for devices in (1, 2) if kernel == "native" else (1,):
            simulation = simulation_of(problem, communicator, devices, kernel)
            result, clock = tried(problem, simulation)
            assert clock == expected and clock.step == STEPS
            index = tuple(slice(*r) for r in simulation.ranges)
            for field, block in result.items():
                assert np.array_equal(block, alone[kernel][field][index])
    for field, by_shift in alone["shift"].items():
        assert np.abs(alone["native"][field] - by_shift).max() <= 1e-11 * np.abs(by_shift).max()


THIN = [  # (shape, order, integrator, the most blocks that are as wide as the stencil's radius)
    ((13,), 8, "rk4", 3),
    ((9, 11), 2, "rkl2", 20),
]


@pytest.mark.parametrize("devices", (1, 2))
@pytest.mark.parametrize("thin, way", dealt(THIN, [(False, "shift"), (True, "shift"), (True, "native")]))
def test_thin_blocks_exchange_for_every_stage(communicator, thin, way, devices):
    (shape, order, integrator, most_blocks), (walls, kernel) = thin, way
    boundary = {"xyz"[a]: {"dirichlet": "0.1*t"} if walls else "periodic" for a in range(len(shape))}
    given = {
        "grid": {"shape": list(shape), "upper": [0.1 * n for n in shape]},
        "equation": {"name": "heat", "D": 0.7},
        "boundary": boundary,
        "numerics": {"order": order, "precision": "float64", "integrator": integrator},
    }
    if integrator == "rkl2":
        given["numerics"]["stages"] = 9
    problem = problem_of(**given)
    if communicator.size * devices > most_blocks:
        with pytest.raises(InputError, match="counts that work"):
            simulation_of(problem, communicator, devices, kernel)
        return
    expected = from_rank_0(
        communicator, lambda: stepped(problem, simulation_of(problem, kernel=kernel), STEPS, 5e-4)["u"]
    )
    simulation = simulation_of(problem, communicator, devices, kernel)
    if communicator.size * devices > 1:
        assert simulation.plan.steps_per_exchange == 0
    block = stepped(problem, simulation, STEPS, 5e-4)["u"]
    assert np.array_equal(block, expected[tuple(slice(*r) for r in simulation.ranges)])


@pytest.mark.parametrize("devices", [pytest.param(1, marks=on(3)), pytest.param(2, marks=on(2))])
def test_thin_blocks_take_steps_of_a_tolerance_by_native_code(communicator, devices):
    """Error estimates and stages of which all slopes are kept, with an exchange for each."""
    problem = problem_of(
        grid={"shape": [9, 11], "upper": [0.9, 1.1]},
        equation={"name": "custom", "D": 0.02, "rhs": {"u": "D*laplacian(u) - u*v", "v": "laplacian(v*v)/90"}},
        boundary={"x": {"dirichlet": "0.5 + 0.1*sin(40*t)"}, "y": {"neumann": 0.1}},
        numerics={"precision": "float64", "integrator": "dopri5"},
        time={"end": 1.0, "tolerance": 1e-5},
    )
    alone, expected = from_rank_0(communicator, partial(tried, problem, simulation_of(problem, kernel="native")))
    if communicator.size * devices > 4:
        pytest.skip("blocks would be thinner than the stencil")
    simulation = simulation_of(problem, communicator, devices, "native")
    assert simulation.plan.steps_per_exchange == (communicator.size * devices == 1)
    result, clock = tried(problem, simulation)
    assert clock == expected
    index = tuple(slice(*r) for r in simulation.ranges)
    for field, block in result.items():
        assert np.array_equal(block, alone[field][index])


@on(3)
def test_members_that_take_steps_of_their_own_on_thin_blocks(communicator):
    """Of an exchange for each section all members take part, also those that have no step left to take."""
    problem = problem_of(
        grid={"shape": [15]},
        equation={"name": "gray_scott", "D_u": 0.2, "D_v": 0.1},
        numerics={"order": 4, "precision": "float64"},
        ensemble={"equation.F": [0.03, 0.04, 0.05]},
        time={"end": 1.0, "cfl": 0.5},
    )
    assert problem.own_steps

    def advanced(simulation):
        fields, one = simulation.put(random_block(problem, simulation)), simulation.per_member
        dt, steps = np.array([0.1, 0.05, 0.2]), np.array([3, 5, 0])
        after = simulation.advance(fields, StepRange(one(0.0), one(0), dt, steps))
        return simulation.get(after, problem.fields)

    expected = from_rank_0(communicator, lambda: advanced(simulation_of(problem, kernel="native")))
    for devices in {1, min(2, 7 // communicator.size)}:  # blocks of two cells at the least
        simulation = simulation_of(problem, communicator, devices, "native")
        assert simulation.plan.steps_per_exchange == (communicator.size * devices == 1)
        for name, block in advanced(simulation).items():
            assert np.array_equal(block, expected[name][tuple(slice(*r) for r in simulation.ranges)])


@pytest.mark.parametrize("shape, devices, kernel", [
    pytest.param([23, 17], 1, "shift", marks=on(2)),
    pytest.param([23, 17], 2, "native", marks=on(2)),
    pytest.param([23, 17], 1, "native", marks=on(3)),
    pytest.param([9, 11], 1, "native", marks=on(3), id="thin blocks"),
])  # fmt: skip
def test_members_that_follow_a_tolerance_are_the_same(communicator, shape, devices, kernel):
    """Members that are rejected, or wait at an output, take part in the exchanges of the others."""
    problem = problem_of(
        grid={"shape": shape, "upper": [0.1 * n for n in shape]},
        equation={"name": "gray_scott", "D_u": 0.002, "D_v": 0.001},
        initial={"u": "1 - 0.5*noise(1)", "v": "0.3*noise(2)"},
        boundary={"x": {"dirichlet": "5*exp(-(60*(t - 0.7))**2)"}},
        numerics={"integrator": "dopri5", "precision": "float64"},
        time={"end": 1.0, "tolerance": 1e-4},
        output={"every": 0.6},
        ensemble={"equation.F": [0.03, 3.0, 0.05], "equation.D_v": [0.001, 0.001, 0.01]},
    )

    def ended(simulation):
        stepping = at_start(simulation, Source(), None, Stopwatch())
        while not stepping.finished:
            stepping.advance(lambda state, leap: None, 5)
        return simulation.get(dict(stepping.state.fields), problem.fields), stepping.state.members

    alone, clocks = from_rank_0(communicator, lambda: ended(simulation_of(problem, kernel=kernel)))
    assert len({clock.step for clock in clocks}) > 1 and any(clock.rejected for clock in clocks)
    simulation = simulation_of(problem, communicator, devices, kernel)
    if shape == [9, 11]:
        assert simulation.plan.steps_per_exchange == (communicator.size * devices == 1)
    found, reached = ended(simulation)
    assert reached == clocks
    for name, block in found.items():
        assert np.array_equal(block, alone[name][tuple(slice(*r) for r in simulation.ranges)]), name
