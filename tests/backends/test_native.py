"""Native code: the numbers of `shift` whatever the equation, and a word where there is none."""

import ctypes
import errno
import hashlib
import itertools
import math
import signal
import subprocess
import sys
from concurrent.futures import Future

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import problem_of, random_block, simulation_of, stepped, steps_in_place

from hpcstencil.backends.backend import Unsupported
from hpcstencil.backends.native import compiler, ffi_call
from hpcstencil.backends.native.backend import NativeBackend
from hpcstencil.backends.native.cost_model import cells_beside
from hpcstencil.backends.native.expression_writer import whole_numbers
from hpcstencil.backends.native.ffi_call import Native
from hpcstencil.backends.native.program import program
from hpcstencil.backends.native.speed_probe import Call
from hpcstencil.backends.native.step import step_of
from hpcstencil.io.snapshot_buffers import pieces_of
from hpcstencil.numerics.finite_differences import central
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.decomposition import decompose, steps_between_exchanges
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.simulation import backend_choice
from hpcstencil.simulation.dry_run import report
from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with
from hpcstencil.validation.errors import EnvironmentProblem, InputError

# Each changes u, which is random, by a few per unit of time on cells of 0.1: in DT by far more than by what is rounded.
TERMS = [
    "0.003*laplacian(u)", "-u*dx(u)", "0.001*laplacian(u**3 - u)", "upwind(u{velocity})", "0.002*div_grad(1 + u*u, u)",
    "where(u > 0.5, -u, tanh(u))", "-0.00002*dxx(dxx(u))", "sqrt(1 + u*u)*exp(-x)", "maximum(u, 0.5)/(2 + x)", "a*cos(3*t)",
]  # fmt: skip
EXAMPLES = 4  # each is compiled
DT = 0.01
SIDES = ["periodic", {"dirichlet": "0.1*t"}, {"neumann": 0.2}, {"robin": {"a": 1.0, "b": 2.0, "value": 0.1}}]
VELOCITY = (", 0.3", ", sin(t)", ", x")
ROUNDINGS = 64


@st.composite
def problems(draw):
    """Custom equations of some terms on small grids of awkward sizes."""
    ndim = draw(st.integers(1, 3))
    shape = [draw(st.integers(11, {1: 90, 2: 40, 3: 19}[ndim])) for _ in range(ndim)]
    terms = draw(st.lists(st.sampled_from(TERMS), min_size=1, max_size=3, unique=True))
    rhs = " + ".join(["0*a", *terms])
    sides = [draw(st.sampled_from(SIDES)) for _ in range(ndim)]
    return {
        "grid": {"shape": shape, "upper": [0.1 * n for n in shape]},
        "equation": {
            "name": "custom",
            "a": 0.5,
            "rhs": {"u": rhs.format(velocity="".join(VELOCITY[:ndim]))},
        },
        "boundary": dict(zip("xyz", sides, strict=False)),
        "numerics": {
            "order": draw(st.sampled_from([2, 4, 8])),
            "precision": draw(st.sampled_from(["float32", "float64"])),
            "integrator": draw(st.sampled_from(["euler", "rk4", "lsrk4"])),
        },
    }


@given(tables=problems(), steps=st.integers(1, 17))
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_any_equation_gives_the_numbers_of_shift(tables, steps):
    problem = problem_of(**tables)
    native, shift = (stepped(problem, simulation_of(problem, kernel=k), steps, DT)["u"] for k in ("native", "shift"))
    rounding = ROUNDINGS * np.finfo(tables["numerics"]["precision"]).eps * np.abs(shift).max()
    assert np.isfinite(shift).all()
    start = random_block(problem, simulation_of(problem))["u"]
    assert np.abs(shift - start).max() > 100 * rounding  # so a term that is lost cannot pass
    assert np.abs(native - shift).max() <= rounding


FUNCTIONS = (
    "exp(u)", "log(abs(u))", "sin(u)", "cos(u)", "tan(u)", "tanh(u)", "sqrt(abs(u))", "abs(u)", "abs(u)**1.5", "abs(u)**-0.5",
    "abs(u)**7.5", "abs(u)**0.3", "u**5", "u**-2", "sign(u)",
)  # fmt: skip


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_functions_of_a_field_are_accurate(precision):
    """Vectors of cells and the last, shorter one, against numpy in double precision."""
    names = [f"f{n}" for n in range(len(FUNCTIONS))]
    problem = problem_of(
        grid={"shape": [403]},
        equation={"name": "custom", "rhs": {"u": "0*u", **dict(zip(names, FUNCTIONS, strict=True))}},
        initial={"u": "6*noise(1)"},
        numerics={"integrator": "euler", "precision": precision},
        time={"dt": 1.0, "end": 1.0},
    )
    found = stepped(problem, simulation_of(problem, kernel="native"), 1, 1.0)
    u = found["u"].astype(float)
    of_numpy = {
        "u": u,
        **{name: getattr(np, name) for name in ("exp", "log", "sin", "cos", "tan", "tanh", "sqrt", "abs", "sign")},
    }
    for name, text in zip(names, FUNCTIONS, strict=True):
        expected = eval(text, of_numpy)
        errors = np.abs(found[name] - expected) / np.maximum(np.abs(expected), np.finfo(precision).tiny)
        assert errors.max() <= 8 * np.finfo(precision).eps, text


# The ghost cells of open ends are made anew for each stage, from what the stage has: once for each way to keep stages.
OPEN = (("acoustic", "rk4"), ("wave", "lsrk4"), ("acoustic", "ab2"), ("wave", "leapfrog"))


@pytest.mark.parametrize("name, integrator", [
    pytest.param(*row, marks=() if row in OPEN else pytest.mark.long)
    for row in itertools.product(("wave", "acoustic"), ("euler", "ssprk3", "rk4", "lsrk4", "ab2", "leapfrog"))
])  # fmt: skip
def test_open_ends_give_the_numbers_of_shift(name, integrator):
    """Ghost cells of one field follow there from another one, at every stage from its values at that stage."""
    problem = problem_of(
        grid={"shape": [23, 17, 30]},
        equation={"name": name},
        boundary={"x": "open", "y": {"dirichlet": 0.0}, "z": "open"},
        numerics={"integrator": integrator, "order": 4, "precision": "float64"},
    )
    native, shift = (stepped(problem, simulation_of(problem, kernel=k), 7, 0.02) for k in ("native", "shift"))
    for field, values in shift.items():
        assert np.abs(native[field] - values).max() <= ROUNDINGS * np.finfo(float).eps * np.abs(values).max()


STEPPED = {
    "gray_scott": {"grid": {"shape": [70, 50]}, "boundary": {"x": "periodic"}},
    "wave": {
        "grid": {"shape": [19, 14, 23]},
        "boundary": {"x": {"dirichlet": 0.0}},
        "numerics": {"integrator": "leapfrog"},
    },
    "maxwell": {
        "grid": {"shape": [40, 30]},
        "boundary": {"y": {"dirichlet": 0.0}},
        "numerics": {"integrator": "leapfrog"},
    },
    "acoustic": {
        "grid": {"shape": [40, 30]},
        "equation": {"source": 1.0, "xs": 5.0, "ys": 7.0},
        "boundary": {"y": {"neumann": 0.0}},
        "numerics": {"integrator": "leapfrog", "order": 4},
    },
    "layers": {
        "grid": {"shape": [40, 30]},
        "equation": {"name": "acoustic", "source": 1.0, "xs": 5.0, "ys": 7.0},
        "boundary": {"x": {"cpml": {"width": 9.0}}, "y": {"sponge": {"width": 9.0, "strength": 3.0}}},
        "numerics": {"integrator": "leapfrog", "order": 4},
    },
}


@pytest.mark.parametrize("name", STEPPED)
def test_so_many_steps_are_so_many_times_one(name):
    """Passes of several steps, and one call after the other, give the same bits; so they do where the end of a step and the
    beginning of the next one are computed together."""
    tables = STEPPED[name]
    problem = problem_of(**{**tables, "equation": {"name": name, **tables.get("equation", {})}})
    simulation = simulation_of(problem, kernel="native")
    one_by_one = simulation.put(stepped(problem, simulation, 0, 1e-3))
    for steps in range(1, 34):
        one_by_one = simulation.advance(one_by_one, StepRange(0.0, steps - 1, 1e-3, 1))
        if steps in (1, 2, 3, 7, 33):
            at_once = stepped(problem, simulation, steps, 1e-3)
            for field, block in simulation.get(one_by_one, problem.fields).items():
                assert np.array_equal(block, at_once[field]), (steps, field)


@pytest.mark.parametrize("name", STEPPED)
def test_the_outline_of_a_program_tells_what_the_program_itself_does(name):
    """What it says of memory and work, on which no less than the decomposition depends, though it is compiled otherwise."""
    tables = STEPPED[name]
    made = program(problem_of(**{**tables, "equation": {"name": name, **tables.get("equation", {})}}))
    told = []
    for library in (
        compiler.library(made.text, made.driver),
        compiler.library(made.outline, made.driver, quickly=True),
    ):
        library.work_per_step.restype, library.cells_beside_fields.restype = ctypes.c_double, ctypes.c_int64
        told.append([])
        for shape in ((1, 1, 10**6), (192, 1, 128), (8192, 1, 100), (256, 256, 256), (90, 70, 1000)):
            for wraps in ((1, 1, 1), (0, 0, 0), (0, 1, 1)):
                block = [(ctypes.c_int64 * 3)(*numbers) for numbers in (shape, wraps, [1 - wrap for wrap in wraps])]
                for steps in (1, 5, 16):
                    asked = (*block, *map(ctypes.c_int64, (2**20, 1, 0, steps)))
                    told[-1] += [library.work_per_step(*asked), library.cells_beside_fields(*asked, ctypes.c_int64(2))]
    assert told[0] == told[1] and len(set(told[0])) > 20


@pytest.mark.parametrize(
    "name, integrator, expected",
    [
        ("wave", "leapfrog", 2 * 5),
        ("heat", "euler", 2 * 5),
        ("heat", "rk4", 2 * 4 * 5),
        ("shallow_water", "ssprk2", 4 * 2 * 5),
    ],
)
def test_blocks_exchange_only_the_cells_that_steps_load(name, integrator, expected):
    """Five steps of order 4. Only one of the two fields of a wave has a stencil, so leapfrog reads a third of 2 x 3 x 5."""
    numerics = {"order": 4, "integrator": integrator, "kernel": "native"}
    problem = problem_of(grid={"shape": [320, 32]}, equation={"name": name}, numerics=numerics,
                         decomposition={"steps_per_exchange": 5})  # fmt: skip
    prepared = prepared_with(Decomposed.of(problem, 2, 1), Choice("native"), OneProcess())
    assert prepared.plan.halo == (expected, 0)


IN_A_ROW = (1, 5, 33)  # steps: a short pass, a whole one, and several with a rest
MIXED = {"x": {"dirichlet": "0.1*t"}, "y": "periodic", "z": {"neumann": 0.2}}
IN_PLACE = {
    "periodic": {"equation": {"name": "heat"}},
    "bounded": {"equation": {"name": "heat"}, "boundary": {**MIXED, "y": {"dirichlet": 0.0}}},
    "two fields": {"equation": {"name": "gray_scott"}, "boundary": {**MIXED, "x": "periodic", "y": {"neumann": 0.1}}},
    "leapfrog": {
        "equation": {"name": "wave"},
        "boundary": MIXED,
        "numerics": {"integrator": "leapfrog", "order": 4, "precision": "float64"},
    },
    "two axes": {
        "grid": {"shape": [1501, 870]},
        "equation": {"name": "gray_scott"},
        "boundary": {"x": {"dirichlet": "0.1*t"}, "y": {"neumann": 0.2}},
    },
    "two axes, leapfrog": {
        "grid": {"shape": [1501, 870]},
        "equation": {"name": "wave"},
        "numerics": {"integrator": "leapfrog", "order": 4},
    },
    "functions of coordinates": {
        "equation": {"name": "heat", "D": "0.1 + 0.001*sin(x*y*z + 1) + 0.01*cos(x)"},
        "boundary": MIXED,
    },
    "rows of whole pages": {
        "grid": {"shape": [301, 1000]},
        "equation": {"name": "heat"},
        "boundary": {"x": "periodic"},
    },
    "long rows": {
        "grid": {"shape": [103, 61, 571]},
        "equation": {"name": "wave"},
        "boundary": MIXED,
        "numerics": {"integrator": "leapfrog", "order": 8, "precision": "float64"},
    },
    "long rows, looked at along": {
        "grid": {"shape": [103, 61, 571]},
        "equation": {"name": "custom", "rhs": {"u": "0.1*dz(u)"}},
        "boundary": {"z": {"dirichlet": "0.1*t"}},
        "numerics": {"integrator": "euler", "precision": "float64"},
    },
    "custom": {
        "equation": {"name": "custom", "rhs": {"u": "u*(1 - u) + 0.1*laplacian(u) + upwind(u, 0.3, -0.2, 0.001*x)"}},
        "boundary": MIXED,
    },
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_steps_in_place_have_the_bits_of_tiles(name, monkeypatch):
    """One device steps in place, on any number of threads; two, which receive their neighbour's cells, do so in tiles."""
    usual = {"grid": {"shape": [203, 131, 61]}, "numerics": {"integrator": "euler"}}
    problem = problem_of(decomposition={"steps_per_exchange": 1}, **{**usual, **IN_PLACE[name]})
    results = []
    for devices, threads in ((2, 1), (1, 1), (1, 2), (1, 3)):
        monkeypatch.setattr("hpcstencil.backends.native.step_functions.threads_for", lambda _, threads=threads: threads)
        simulation = simulation_of(problem, devices=devices, kernel="native")
        assert devices == 2 or steps_in_place(simulation, threads)
        results.append([stepped(problem, simulation, steps, 1e-3) for steps in IN_A_ROW])
    for result in results[1:]:
        for steps, expected, found in zip(IN_A_ROW, results[0], result, strict=True):
            for field, block in found.items():
                assert np.isfinite(block).all()
                assert np.array_equal(block, expected[field]), (steps, field, np.abs(block - expected[field]).max())


@pytest.mark.parametrize("shape, rate", (((64, 95), "dxx(u)"), ((17, 95), "u*(1 - u) + dxx(u)"), ((33,), "-u*u")))
@pytest.mark.parametrize("integrator", ("euler", "rk4"))
def test_uneven_blocks_that_need_no_neighbours_take_any_number_of_steps(shape, rate, integrator):
    """Along an axis that the equation does not couple, blocks receive no ghost cells, so one call takes all steps."""
    problem = problem_of(
        grid={"shape": list(shape)},
        equation={"name": "custom", "rhs": {"u": rate}},
        numerics={"integrator": integrator},
    )
    alone, shared = (simulation_of(problem, devices=devices, kernel="native") for devices in (1, 2))
    assert any(count % 2 for count in shared.plan.topology.shape) and not any(shared.plan.halo)
    for steps in (*IN_A_ROW, 17):  # sweeps take at most 16
        expected, found = (stepped(problem, simulation, steps, 1e-2)["u"] for simulation in (alone, shared))
        assert np.isfinite(expected).all()
        assert np.array_equal(found, expected), steps


def test_passes_know_which_arrays_they_look_at_across_corners():
    """These are not stepped in place. In shallow water the depth is looked at straight, the flow, which turns, not."""
    told = {}
    for name in ("heat", "shallow_water"):
        for p in step_of(problem_of(grid={"shape": [30, 20]}, equation={"name": name})).passes:
            for _, reach, straight in p.inputs:
                assert straight or sum(map(bool, reach)) > 1
                told.setdefault(name, set()).add(straight)
    assert told == {"heat": {True}, "shallow_water": {True, False}}


@pytest.mark.parametrize("equation", ("heat", "gray_scott"))
@pytest.mark.parametrize("devices", (1, 2))
@pytest.mark.parametrize("shape", ([3001], [130, 53], [203, 131, 61]), ids=str)
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_a_value_that_is_not_finite_is_seen_when_it_is_stored(shape, devices, equation, monkeypatch):
    """Wherever it is, at the ends of rows too; two devices step in tiles, one steps large grids in place."""
    monkeypatch.setattr("hpcstencil.backends.native.step_functions.threads_for", lambda _: 2)
    problem = problem_of(
        grid={"shape": shape},
        equation={"name": equation},
        numerics={"kernel": "native", "integrator": "euler"},
        boundary={axis: {"neumann": 0.0} for axis in "xyz"[: len(shape)]},
    )
    simulation = simulation_of(problem, devices=devices, kernel="native")
    assert devices == 2 or len(shape) < 3 or steps_in_place(simulation, 2)
    rng = np.random.default_rng(1)

    def stayed_finite(spoilt):
        blocks = {name: 0.1 * rng.random(shape) for name in problem.fields}
        if spoilt is not None:
            field, cell, value = spoilt
            blocks[field][cell] = value
        fields = simulation.put({name: block.astype(simulation.dtype) for name, block in blocks.items()})
        jax.block_until_ready(simulation.advance(fields, StepRange(0.0, 0, 1e-6, 3)))
        return simulation.steps.stayed_finite()

    corners = [tuple(0 for _ in shape), tuple(n - 1 for n in shape)]
    cells = corners + [tuple(int(rng.integers(n)) for n in shape) for _ in range(6)]
    assert stayed_finite(None)
    for n, cell in enumerate(cells):
        field = list(problem.fields)[n % len(problem.fields)]
        assert not stayed_finite((field, cell, (np.nan, np.inf, -np.inf)[n % 3])), (field, cell)
        assert stayed_finite(None)


@pytest.mark.parametrize("chunk", [(203, 131, 61), (40, 131, 61), (17, 13, 16)], ids=str)
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_copies_are_made_as_steps_are_taken(chunk, monkeypatch):
    """However the file is cut; none before they are wanted, or while those before are still read."""
    monkeypatch.setattr("hpcstencil.backends.native.step_functions.threads_for", lambda _: 2)
    monkeypatch.setattr("hpcstencil.io.snapshot_buffers.chunk_shape", lambda shape, itemsize: chunk)
    shape = (203, 131, 61)
    problem = problem_of(
        grid={"shape": shape}, equation={"name": "gray_scott"}, numerics={"kernel": "native", "integrator": "euler"}
    )
    simulation = simulation_of(problem, kernel="native")
    assert steps_in_place(simulation, 2)
    pieces = pieces_of(problem.layout, ["v"], simulation.ranges, simulation.dtype, compressed=False)
    copies = simulation.steps.snapshot_buffers(pieces)
    fields = simulation.initial_fields()

    def copied(wanted, steps=3):
        """Whether copies were there after the steps; they are, when they are asked for."""
        nonlocal fields
        pieces["v"].take(np.full(shape, -1.0))
        copies.expect(wanted)
        fields = jax.block_until_ready(simulation.advance(fields, StepRange(0.0, 0, 0.1, steps)))
        there = pieces["v"].joined()[0].copy()
        assert np.array_equal(copies.copied("v", simulation.block(fields["v"])).joined()[0], fields["v"])
        assert np.array_equal(there, fields["v"]) or np.all(there == -1)
        return there[0, 0, 0] != -1

    assert copied(True) and not copied(False) and copied(True, 20) and not copied(True, 0)
    thread = Future()
    copies.lend(thread)
    assert not copied(True)
    thread.set_result(None)
    assert copied(True)


@pytest.mark.parametrize(
    "integrator", ("ssprk2", *(pytest.param(m, marks=pytest.mark.long) for m in ("ssprk3", "rk4")))
)
def test_stages_share_the_functions_of_their_inner_results(integrator):
    """What differs is how a stage ends."""
    step = step_of(
        problem_of(grid={"shape": [30, 20]}, equation={"name": "euler"}, numerics={"integrator": integrator})
    )
    stages = len(step.plan.problem.method.stages)
    each = [
        [p.whole.function for p in step.passes[n :: len(step.passes) // stages]]
        for n in range(len(step.passes) // stages)
    ]
    assert len(step.passes) > stages
    assert [len(set(functions)) for functions in each[:-1]] == [1] * (len(each) - 1)


@pytest.mark.parametrize("shape", ([1000, 1000], [1024, 1024], [2048, 1008], [70, 90, 1000]), ids=str)
@pytest.mark.parametrize("precision", ("float32", "float64"))
def test_rows_that_fit_the_pages_of_a_cache_cost_no_more_memory(shape, precision):
    """Distances of whole pages are avoided: no more is kept than for rows that are longer by a quarter of a page."""

    def kept(shape):
        problem = problem_of(
            grid={"shape": shape},
            equation={"name": "wave"},
            numerics={"integrator": "leapfrog", "precision": precision},
        )
        return cells_beside(program(problem), decompose(problem, 1, 1), 0, 1)

    cells = 2 * math.prod(shape)
    assert cells <= kept(shape) < 2.5 * cells
    assert kept(shape) <= kept([*shape[:-1], shape[-1] + 1024 // np.dtype(precision).itemsize])


def test_problems_that_share_a_program_have_numbers_of_their_own():
    """Their expressions differ in constants alone; functions of several coordinates are kept from call to call."""
    texts, results = set(), []
    for constant in (0.7, 0.9):
        problem = problem_of(
            grid={"shape": [30, 20]},
            equation={"name": "heat", "D": f"1 + {constant}*sin(x*y)"},
            numerics={"precision": "float64"},
        )
        texts.add(program(problem).text)
        native, shift = (stepped(problem, simulation_of(problem, kernel=k), 5, 1e-3)["u"] for k in ("native", "shift"))
        np.testing.assert_allclose(native, shift, rtol=1e-13)
        results.append(native)
    assert len(texts) == 1 and not np.allclose(*results)


@pytest.mark.parametrize("order", (2, 4, 8))
def test_what_is_uniform_stays_exactly_so(order):
    problem = problem_of(
        grid={"shape": [40, 30], "upper": [1.0, 0.7]},
        equation={"name": "heat"},
        initial={"u": "0.1"},
        numerics={"order": order, "precision": "float32"},
    )
    u = stepped(problem, simulation_of(problem, kernel="native"), 1000, 1e-6)["u"]
    assert (u == u.flat[0]).all() and u.flat[0] == np.float32(0.1)


@pytest.mark.parametrize("derivative", (1, 2, 3, 4))
@pytest.mark.parametrize("order", (2, 4, 6, 8))
def test_weights_are_whole_numbers_times_a_factor(derivative, order):
    stencil = central(derivative, order, 0, (0.37,))
    found = whole_numbers(stencil.weights)
    assert found is not None
    factor, numbers = found
    np.testing.assert_allclose([factor * n for n in numbers], stencil.weights, rtol=1e-12)
    assert sum(numbers) == 0
    assert whole_numbers((1.0, np.pi)) is None


def heat(**numerics):
    return problem_of(grid={"shape": [20]}, equation={"name": "heat"}, numerics=numerics)


def choice(problem, before="", communicator=None):
    return backend_choice.chosen(
        Decomposed.of(problem, 1, 1), jax.local_devices()[:1], communicator or OneProcess(), before
    )


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler.compile_in_background.cache_clear()
    return tmp_path / "hpcstencil" / "native"


def test_auto_takes_native_code_where_there_is_some(empty_cache):
    assert choice(heat()).kernel == choice(heat(), before="native").kernel == "native"
    assert choice(heat(), before="shift").kernel == "shift"


def test_an_exchange_for_each_stage_that_xla_would_rather_have_is_no_lack_of_room():
    problem = problem_of(
        grid={"shape": [256, 256, 256]}, equation={"name": "heat"}, numerics={"integrator": "rk4"}
    )  # fmt: skip
    decomposed = Decomposed.of(problem, 2, 1)
    assert steps_between_exchanges(problem, decomposed.topology) == 0 and not decomposed.thin
    assert "kernel                native" in report(backend_choice.foreseen(decomposed))


def test_an_ensemble_is_measured_by_one_of_its_members(empty_cache):
    members = problem_of(grid={"shape": [20]}, equation={"name": "heat"}, ensemble={"equation.D": [0.1, 0.2, 0.3]})
    assert choice(members).kernel == "native"
    assert backend_choice.fastest_kernel(Decomposed.of(members, 1, 1), jax.local_devices()[0]) in ("shift", "conv")


@pytest.mark.parametrize("count, threads", [(3, 1), (3, 2), (4, 2), (9, 2)])
def test_members_have_the_bits_of_single_runs_whichever_threads_step_them(count, threads, monkeypatch):
    """With 4 or 9 members each of two threads takes whole members; 3 members are stepped one after the other."""
    monkeypatch.setattr("hpcstencil.backends.native.step_functions.threads_for", lambda _: threads)
    given = {
        "grid": {"shape": [40, 24]},
        "equation": {"name": "gray_scott"},
        "initial": {"u": "0.5*sin(x*y)", "v": "0.3*sin(3*x + y)"},
    }
    rates = [0.03 + 0.002 * n for n in range(count)]
    several = problem_of(**given, ensemble={"equation.F": rates})
    sizes, counts = np.linspace(1e-3, 2e-3, count), np.arange(count) + 200  # each member takes steps of its own
    simulation = simulation_of(several, kernel="native")
    fields = simulation.advance(
        simulation.initial_fields(), StepRange(np.zeros(count), np.zeros(count, int), sizes, counts)
    )
    together = simulation.get(fields, several.fields)
    for n, rate in enumerate(rates):
        alone = problem_of(**{**given, "equation": {"name": "gray_scott", "F": rate}})
        expected = stepped(alone, simulation_of(alone, kernel="native"), int(counts[n]), float(sizes[n]))
        for field, block in expected.items():
            assert np.isfinite(block).all()
            assert np.array_equal(together[field][..., n], block), (n, field)


def test_a_compiler_that_could_not_be_started_for_a_bad_address_is_started_again(monkeypatch):
    failures, run = [OSError(errno.EFAULT, "Bad address")] * 2, subprocess.run

    def failing(*arguments, **options):
        if failures:
            raise failures.pop()
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", failing)
    assert compiler._output_of(["echo", "here"]) == (0, "here\n", "") and not failures
    failures += [OSError(errno.EFAULT, "Bad address")] * 3
    with pytest.raises(Unsupported, match="echo cannot be run: Bad address"):
        compiler._output_of(["echo", "here"])


def test_without_a_compiler_xla_takes_over_and_says_so(empty_cache, monkeypatch):
    def none() -> str:
        raise Unsupported("no C++ compiler was found; install one (on Debian: apt-get install g++) or set CXX")

    monkeypatch.setattr(compiler, "compiler", none)
    monkeypatch.setattr("hpcstencil.backends.native.backend.compiler", none)
    monkeypatch.setattr(compiler, "identity", lambda: none())
    found = choice(problem_of(grid={"shape": [21]}, equation={"name": "heat", "D": 0.123}))
    assert found.kernel in ("shift", "conv") and "no C++ compiler" in found.why and found.cannot_be
    with pytest.raises(InputError, match=r"numerics\.kernel: .* no C\+\+ compiler"):
        choice(heat(kernel="native"))


def test_check_says_that_the_compiler_fails(empty_cache, monkeypatch):
    def failing(*_):
        raise Unsupported("c++ does not compile the program (status 1)")

    monkeypatch.setattr(compiler, "_compile", failing)
    decomposed = Decomposed.of(problem_of(grid={"shape": [21]}, equation={"name": "heat", "D": 0.321}), 1, 1)
    assert "(no native code: c++ does not compile the program (status 1))" in report(
        backend_choice.foreseen(decomposed)
    )


def test_a_run_goes_on_with_its_kernel_or_not_at_all(empty_cache, monkeypatch):
    def none(*_):
        raise Unsupported("no C++ compiler was found")

    monkeypatch.setattr(NativeBackend, "lower", none)
    with pytest.raises(
        InputError, match=r'expected "native", with which the run was .* \(no C\+\+ compiler was found\)'
    ):
        choice(heat(), before="native")
    assert choice(heat(kernel="shift"), before="native").kernel == "shift"


class OneOfTwo(OneProcess):
    """Rank 0 beside a rank 1 that says something else."""

    size = 2

    def __init__(self, other):
        super().__init__()
        self.other = other

    def gather(self, value):
        return [value, self.other]

    def any(self, here):
        return True


def test_a_rank_that_lacks_native_code_takes_it_from_all(empty_cache):
    both = OneOfTwo("no C++ compiler was found")
    found = choice(heat(), communicator=both)
    assert (
        found.kernel in ("shift", "conv") and found.why == "no native code: rank 1 lacks it: no C++ compiler was found"
    )
    with pytest.raises(EnvironmentProblem, match='expected "native" on all ranks, but rank 1 lacks it: no C'):
        choice(heat(kernel="native"), communicator=both)


def test_what_does_not_compile_is_a_sentence(empty_cache):
    with pytest.raises(Unsupported, match="does not compile the program"):
        compiler.library("this is no C++ " + hashlib.sha256().hexdigest())
    assert not empty_cache.exists()


def test_a_program_that_is_not_loaded_is_told(monkeypatch):
    monkeypatch.setattr(ffi_call, "Native", lambda made, library, number, *rest: Native(made, library, 1, *rest))
    problem = problem_of(grid={"shape": [21]}, equation={"name": "heat"})
    with pytest.raises(jax.errors.JaxRuntimeError, match="this native program is not loaded"):
        stepped(problem, simulation_of(problem, kernel="native"), 1, 0.1)


def test_a_program_is_compiled_once(empty_cache, monkeypatch):
    text = 'extern "C" int answer() { return 42; }'
    assert compiler.library(text).answer() == 42
    monkeypatch.setattr(subprocess, "run", None)
    assert compiler.library(text).answer() == 42
    (kept,) = empty_cache.iterdir()
    assert sorted(path.name for path in kept.iterdir()) == [compiler.CHECKSUM, compiler.LIBRARY]


@pytest.fixture
def counting(empty_cache, tmp_path, monkeypatch):
    """A log with a line for each text that a compiler of its own compiles."""
    wrapper, log = tmp_path / "counting", tmp_path / "log"
    wrapper.write_text(
        f"""#!/bin/sh
case "$*" in *driver.cpp*) echo driver >>{log};; *program.cpp*) echo program >>{log}; sleep 0.5;; esac
exec c++ "$@"
"""
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    return log


def test_of_processes_that_want_a_library_at_once_one_makes_it(empty_cache, counting):
    told = "assert library('extern \"C\" int f() { return 5; }').f() == 5"
    script = f"from hpcstencil.backends.native.compiler import library; {told}"
    runs = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [run.wait() for run in runs] == [0, 0, 0]
    assert counting.read_text() == "program\n" and len(list(empty_cache.iterdir())) == 1


@pytest.mark.parametrize("cache", (True, False))
def test_programs_share_a_driver(counting, monkeypatch, cache):
    """One process compiles it, and later ones find it in the cache. Without a cache, each process compiles it once."""
    script = """
import ctypes, sys
from hpcstencil.backends.native.compiler import DriverPart, library
ends = "extern const int GIVEN, FIELDS; const int GIVEN = {0}, FIELDS = {0};"
driver = "extern const int FIELDS; extern \\"C\\" int fields() {{ return FIELDS; }}"
for count in map(int, sys.argv[1:]):
    assert library(ends.format(count), (DriverPart(driver.format()),)).fields() == count
"""
    if not cache:
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    for counts in (("3", "4"), ("5",)):
        subprocess.run([sys.executable, "-c", script, *counts], check=True)
    assert sorted(counting.read_text().split()) == ["driver"] * (1 if cache else 2) + ["program"] * 3


def test_a_damaged_library_is_made_again(empty_cache):
    text = 'extern "C" int answer() { return 43; }'
    compiler.library(text)
    (kept,) = empty_cache.iterdir()
    for damage in (b"", (kept / compiler.LIBRARY).read_bytes()[:4096]):
        (kept / compiler.LIBRARY).unlink()  # which is mapped into this process
        (kept / compiler.LIBRARY).write_bytes(damage)
        assert compiler.library(text).answer() == 43
        assert len((kept / compiler.LIBRARY).read_bytes()) > 5000
    assert list(empty_cache.iterdir()) == [kept]


@pytest.mark.parametrize(
    "command, words",
    [
        ("/no/such/c++", "not a program"),
        ("/bin/false", "status 1.*it printed no error"),
        ("/bin/true", "status 0"),
        ("{}/other", "cannot be run"),
    ],
)
def test_a_compiler_that_is_none(empty_cache, monkeypatch, tmp_path, command, words):
    (tmp_path / "other").write_bytes(b"made for another machine")
    (tmp_path / "other").chmod(0o755)
    monkeypatch.setenv("CXX", command.format(tmp_path))
    compiler.compiler.cache_clear(), compiler.identity.cache_clear()
    try:
        with pytest.raises(Unsupported, match=words):
            compiler.library('extern "C" int nothing() { return 0; }')
    finally:
        compiler.compiler.cache_clear(), compiler.identity.cache_clear()


def test_a_compiler_with_options_and_a_cache_that_cannot_be_written(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    monkeypatch.setenv("CXX", "c++ -DANSWER=44")
    compiler.compiler.cache_clear(), compiler.identity.cache_clear()
    try:
        assert compiler.library('extern "C" int answer() { return ANSWER; }').answer() == 44
    finally:
        compiler.compiler.cache_clear(), compiler.identity.cache_clear()


def test_a_pass_may_look_at_many_planes():
    """Products of fields at order 6, whose derivatives are looked at where they are wanted."""
    problem = problem_of(
        grid={"shape": [41, 37]},
        equation={"name": "shallow_water", "g": 1.0, "nu": 0.05},
        initial={"h": "1 + 0.1*noise(1)", "u": "noise(2)", "v": "noise(3)"},
        numerics={"order": 6, "precision": "float64"},
    )
    expected, found = (
        stepped(problem, simulation_of(problem, kernel=kernel), 3, 1e-3) for kernel in ("shift", "native")
    )
    for name, values in expected.items():
        assert np.abs(found[name] - values).max() <= 32 * np.finfo(float).eps * np.abs(values).max()


def test_steps_of_given_sizes_by_a_program_that_estimates_errors():
    """A benchmark takes such steps, and so does a reverse sweep."""
    problem = problem_of(
        grid={"shape": [13, 11]}, equation={"name": "gray_scott"}, numerics={"integrator": "bs3", "precision": "float64"},
        time={"end": 1.0, "tolerance": 1e-3},
    )  # fmt: skip
    found, expected = (
        stepped(problem, simulation_of(problem, kernel=kernel), 5, 1e-2) for kernel in ("native", "shift")
    )
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-14 * np.abs(values).max())


def test_programs_in_one_process_share_no_variables():
    """The loader gives all libraries one copy of a variable with a unique symbol, of one program's precision and layout."""
    simulation = simulation_of(problem_of(grid={"shape": [20, 20]}, equation={"name": "heat"}), kernel="native")
    library = simulation.diagnosed.reducer.library
    symbols = subprocess.run(["nm", library._name], capture_output=True, text=True, check=True).stdout
    kinds = {line.split()[-1]: line.split()[-2] for line in symbols.splitlines()}
    assert kinds["advance"] == "T" and "u" not in kinds.values()


def test_the_arguments_of_a_call_are_those_of_the_header():
    """Python and C++ agree on the size of the struct and on the place of its last member."""
    text = """
#include <cstddef>
#include "call.hpp"
extern "C" long size() { return sizeof(Call); }
extern "C" long last() { return offsetof(Call, members); }
"""
    made = compiler.library(text, quickly=True)
    assert (made.size(), made.last()) == (ctypes.sizeof(Call), Call.members.offset)


def test_a_process_without_memory_says_so():
    problem = problem_of(equation={"name": "heat"}, initial={"u": "1"}, grid={"shape": [8]})
    text = (
        program(problem).text
        + """
#include "threads.hpp"
extern "C" void grow() { Buffer().reserve(size_t(1) << 60); }
"""
    )
    code = f"from hpcstencil.backends.native.compiler import library; library({text!r}, quickly=True).grow()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGABRT
    assert ended.stderr.startswith(
        "hpcstencil: native code needs 1152921504606846976 bytes more, but there is no more memory"
    )
