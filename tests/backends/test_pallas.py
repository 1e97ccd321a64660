"""Kernels for GPUs: the numbers of `shift`, interpreted on processors; that they lower for CUDA; and who gets them."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompositions import MIXED, PROBLEMS, tables
from support import problem_of, simulation_of, stepped

from hpcstencil.backends.pallas import cells, launch, step, tiles
from hpcstencil.backends.pallas.cost_model import Work
from hpcstencil.backends.pallas.passes import passes
from hpcstencil.backends.pallas.strips import Exchanging, Outgoing
from hpcstencil.backends.xla.array_code import rules_of
from hpcstencil.backends.xla.stencil_kernels import KERNELS
from hpcstencil.backends.xla.time_loop import repeated
from hpcstencil.benchmark import timing
from hpcstencil.distributed.device_blocks import DEVICE_AXIS
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.simulation import backend_choice
from hpcstencil.simulation.compose import compose
from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with
from hpcstencil.symbolic.expressions import Derivative, Field
from hpcstencil.validation.errors import InputError

CPU = jax.local_devices()[0]
ROUNDINGS = 4  # of the largest value: how far the kernels may be from shift, whose sums they form in the same order
WALLS = {
    "x": {"lower": {"dirichlet": "0.3*cos(t + y)"}, "upper": {"neumann": "0.1*y*sin(t)"}},
    "y": {
        "lower": {"robin": {"a": 1.0, "b": "0.2 + x*x", "value": "0.1*t"}},
        "upper": {"sponge": {"width": 0.7, "strength": 3.0}},
    },
}  # fmt: skip
SPECIAL = (
    "minimum(u, 0.5)/(2 + x) + where(u > 0.5, -u, tanh(u)) + sqrt(1 + u*u)*exp(-x) + sign(u - 0.5)*abs(sin(u))**1.5"
)


def custom(rhs, shape, order, precision, integrator, **others):
    """An equation on small cells."""
    return {
        "grid": {"shape": list(shape), "upper": [0.1 * n for n in shape]},
        "equation": {"name": "custom", "rhs": rhs},
        "numerics": {"order": order, "precision": precision, "integrator": integrator, **others.pop("numerics", {})},
        **others,
    }


CASES = {
    "1d, wrapping more than once": custom({"u": "dxx(u) - u*dx(u)"}, (3,), 8, "float64", "rk4"),
    "1d, an estimate of the error that nobody asks for": custom({"u": "dxx(u)"}, (19,), 2, "float64", "bs3"),
    "2d, corners and walls": custom(MIXED, (19, 13), 4, "float64", "euler", boundary=WALLS),
    "2d, functions": custom({"u": SPECIAL}, (19, 13), 2, "float32", "ab2"),
    "2d, few arrays": custom({"u": "0.3*laplacian(u)"}, (19, 13), 2, "float32", "lsrk4"),
    "2d, inner results": custom(
        {"u": "-0.001*laplacian(laplacian(u))"}, (17, 13), 2, "float64", "rkl2", numerics={"stages": 5},
        boundary={"x": {"dirichlet": 0.5}, "operators": {"laplacian(u)": {"x": {"robin": {"a": 1.0, "b": 2.0, "value": 0.1}}}}},
    ),
    "2d, open ends": custom(
        {}, (13, 11), 2, "float64", "leapfrog", boundary={"x": "open", "y": {"lower": "open", "upper": {"neumann": 0.1}}},
        equation={"name": "wave", "c": "1 + 0.2*sin(y)"},
    ),
    "2d, solid cells": custom(
        {"u": "0.3*laplacian(u) - 0.2*dx(u) + 0.1*div_grad(1 + 0.5*sin(x), u)"}, (19, 13), 2, "float32", "euler",
        mask={"solid": "(x - 1)**2 + (y - 0.6)**2 < 0.1", "surface": {"value": "0.3*sin(x + t)"}},
    ),
    "2d, layers and damping": {
        **custom({}, (15, 13), 2, "float64", "leapfrog", equation={"name": "acoustic", "c": "1 + 0.2*sin(y)"}),
        "boundary": {"x": {"cpml": {"width": 0.5}}, "y": {"lower": {"dirichlet": 0.0}, "upper": {"cpml": {"width": 0.4}}},
                     "q": {"y": {"sponge": {"width": 0.5, "strength": 9.0}}}},
    },
    "3d, two fields": {
        **tables("wave-3d", 6, "float32", "leapfrog"), "grid": {"shape": [13, 11, 9], "upper": [1.3, 1.1, 0.9]},
        "boundary": {"x": "periodic", "y": {"neumann": 0.2}},
    },
    "3d, faces": {
        **tables("maxwell-3d", 2, "float64", "euler"), "grid": {"shape": [9, 8, 11], "upper": [1.8, 1.6, 2.2]},
    },
}  # fmt: skip


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that some lie inside, some at the edge and some over it."""
    monkeypatch.setattr(launch, "TILES", dict.fromkeys((4, 8), {1: (8,), 2: (4, 4), 3: (4, 4, 2)}))
    monkeypatch.setattr(launch, "SECTOR", 1)
    monkeypatch.setattr(tiles, "ROW", 16)


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_shift(name, small_tiles):
    problem = problem_of(**CASES[name])
    found, expected = (stepped(problem, simulation_of(problem, kernel=k), 3, 1e-6) for k in ("pallas", "shift"))
    for field, values in expected.items():
        assert np.isfinite(values).all()
        largest = max(np.abs(values).max(), 1e-6)
        assert np.abs(found[field] - values).max() <= ROUNDINGS * np.finfo(values.dtype).eps * largest, field


OWN = {  # those with a periodic axis that is at least as wide as a stencil reaches; the value: also in CI
    "1d, an estimate of the error that nobody asks for": True, "2d, functions": True, "2d, few arrays": False,
    "2d, inner results": False, "2d, solid cells": True, "3d, two fields": True, "3d, faces": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if often else pytest.mark.long) for name, often in OWN.items()]
)
def test_strips_of_its_own_give_the_same_bits(name, small_tiles):
    """A periodic block that exchanges strips with itself reads the same values as without strips. One GPU can test this."""
    problem = problem_of(**CASES[name])
    prepared = prepared_with(Decomposed.of(problem, 1, 1), Choice("pallas"), OneProcess(), 0)
    wrapping = replace(prepared, lowered=replace(prepared.lowered, halo_wraps=True))
    alone, exchanging = (compose(one, OneProcess(), jax.local_devices()[:1]) for one in (prepared, wrapping))
    assert exchanging.device_grid.sides != alone.device_grid.sides
    found, expected = (stepped(problem, simulation, 3, 1e-6) for simulation in (exchanging, alone))
    for field, values in expected.items():
        np.testing.assert_array_equal(found[field], values, err_msg=field)


def on_devices(problem, devices, every):
    """The problem on blocks of a process's devices, with ``every`` steps between two exchanges."""
    decomposed = Decomposed.of(problem, 1, math.prod(devices))
    prepared = prepared_with(decomposed, Choice("pallas"), OneProcess(), every)
    return compose(prepared, OneProcess(), jax.local_devices()[: math.prod(devices)])


# Steps between two exchanges, on blocks with room for them; 0 is an exchange per stage. An odd number of cells makes one block
# smaller than the other. Corners of blocks cut along two axes are those of `tests/mpi/test_invariance.py`, on 4 processes.
CUT = [
    ("1d, an estimate of the error that nobody asks for", (2,), (0, 2)),
    ("2d, corners and walls", (1, 2), (0, 1)),
    ("2d, functions", (2, 1), (0, 2)),
    ("2d, few arrays", (2, 1), (0, 1)),
    ("2d, inner results", (1, 2), (0,)),
    ("2d, open ends", (2, 1), (0, 2)),
    ("2d, solid cells", (2, 1), (2,)),
    ("3d, two fields", (1, 2, 1), (0,)),
    ("3d, faces", (1, 1, 2), (1, 2)),
]


SLOW = "2d, corners and walls", "2d, open ends", "2d, solid cells", "3d, faces"


@pytest.mark.parametrize("name, devices, counts", [
    pytest.param(*row, id=row[0], marks=pytest.mark.long if row[0] in SLOW else ()) for row in CUT
])  # fmt: skip
def test_strips_give_the_same_bits(name, devices, counts, small_tiles):
    """Blocks read each other's cells from strips, and nothing depends on where they are cut."""
    problem = problem_of(**CASES[name])
    expected = stepped(problem, simulation_of(problem, kernel="pallas"), 3, 1e-6)
    cut = problem_of(**{**CASES[name], "decomposition": {"devices": list(devices)}})
    for every in counts:
        found = stepped(cut, on_devices(cut, devices, every), 3, 1e-6)
        for field, values in expected.items():
            np.testing.assert_array_equal(found[field], values, err_msg=f"{field}, {every} steps per exchange")


def test_inner_results_of_different_reach_beside_an_edge():
    """The halo is as wide as one chain of derivatives needs: the square of v is needed further out than dx(u) can be known."""
    problem = problem_of(**custom({"u": "dx(v*v)", "v": "dy(dx(u) + v)"}, (13, 12), 8, "float64", "euler"))
    on_two, alone = simulation_of(problem, devices=2, kernel="pallas"), simulation_of(problem)
    found, expected = (stepped(problem, simulation, steps=2, dt=1e-3) for simulation in (on_two, alone))
    for name, block in found.items():
        assert np.abs(block - expected[name]).max() <= ROUNDINGS * np.finfo(float).eps * np.abs(expected[name]).max()


# ---- as a GPU would get them ----


def lowered(problem):
    """What compiled code is made of for CUDA, from the steps of a problem: a text in which each kernel is a call, once however
    often a step is taken."""
    alone = simulation_of(problem, kernel="pallas")
    kernels = step.kernels(problem, rules_of(problem, KERNELS["shift"]), interpret=False)

    def steps(fields, places, parameters, dt, n):
        frame = alone.device_grid.frame(places)
        stepping = kernels.on(parameters, frame, Exchanging(alone.device_grid, frame, False))
        return repeated(n, lambda i, u: stepping.after_exchange(u, [i * dt], dt), fields, 8)

    fields = {name: jax.ShapeDtypeStruct(problem.config.grid.shape, alone.dtype) for name in problem.fields}
    traced = jax.jit(steps).trace(fields, alone.device_grid.places, problem.parameters, 1e-3, 100)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def calls(text):
    return text.count("custom_call @__gpu$xla.gpu.triton")


# In CI each equation once, where test_each_stage_is_one_kernel does not lower it, and all that is beside an equation: walls,
# layers, solid cells, conditions of inner results.
LOWERED = (
    "advection-1d", "acoustic-2d", "burgers-2d", "mixed-2d", "mask-2d", "beam-2d", "schroedinger-2d", "porous-2d", "euler-1d",
    "gas-2d", "maxwell-3d",
)  # fmt: skip


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in LOWERED else pytest.mark.long)
    for name in PROBLEMS if not name.startswith(("ensemble", "stencils"))
])  # fmt: skip
def test_every_equation_lowers_for_cuda(name):
    """Triton's dialect is in jaxlib, so no GPU is needed to find out what it does not know."""
    order, precision = (2, "float64") if name.startswith(("mask", "euler", "gas", "maxwell")) else (4, "float32")
    assert calls(lowered(problem_of(**tables(name, order, precision, "euler")))) >= 1


@pytest.mark.parametrize(
    "name, integrator, kernels",
    [
        ("gray-scott-2d", "euler", 1),  # one per stage
        ("heat-3d", "rk4", 4),
        ("wave-2d", "leapfrog", 3),
        ("shallow-2d", "ab2", 2),  # the damping part apart
        ("cahn-hilliard-2d", "ssprk2", 4),  # and one for what the outer Laplacian is taken of
    ],
)
def test_each_stage_is_one_kernel(name, integrator, kernels):
    assert calls(lowered(problem_of(**tables(name, 2, "float32", integrator)))) == kernels


def traced(problem, devices, every, body):
    """The traced ``body(stepping, fields, dt)`` on one of several devices."""
    simulation = on_devices(problem, devices, every)
    grid, shape = simulation.device_grid, simulation.plan.topology.capacity()
    kernels = step.kernels(problem, rules_of(problem, KERNELS["shift"]), interpret=False)
    places = jax.tree.map(lambda a: a[0], grid.places)

    def on_a_device(fields, dt):
        frame = grid.frame(places)
        return body(kernels.on(problem.parameters, frame, Exchanging(grid, frame, False)), fields, dt)

    fields = {name: jax.ShapeDtypeStruct(shape, simulation.dtype) for name in problem.fields}
    return jax.make_jaxpr(on_a_device, axis_env=[(DEVICE_AXIS, math.prod(devices))])(fields, 1e-3)


def of_a_step(problem, devices, every):
    """The operations of one step on one of several devices, without those inside kernels: (name, those it depends on)."""

    def one(stepping, fields, dt):
        if every:
            return stepping.after_exchange(fields, [0.0] * every, dt)
        return stepping.exchanging.device_grid.cropped(stepping.exchanging_in_stages(stepping.begun(fields), 0.0, dt))

    found = []

    def walk(jaxpr, known):
        for equation in jaxpr.eqns:
            needs = set().union(*(known.get(v, set()) for v in equation.invars if not hasattr(v, "val")))
            inner = equation.params.get("jaxpr")
            if inner is not None and equation.primitive.name != "pallas_call":
                inside = inner.jaxpr if hasattr(inner, "jaxpr") else inner
                walk(inside, below := dict.fromkeys((*inside.invars, *inside.constvars), needs))
                needs = set().union(needs, *(below.get(v, set()) for v in inside.outvars if not hasattr(v, "val")))
            else:
                found.append((equation.primitive.name, needs, [v.aval.shape for v in equation.outvars]))
                needs = needs | {len(found) - 1}
            known |= dict.fromkeys(equation.outvars, needs)

    walk(traced(problem, devices, every, one).jaxpr, {})
    return found


def named(found, name):
    return [n for n, (other, *_) in enumerate(found) if other == name]


@pytest.mark.parametrize(
    "rhs, integrator, every, stages, in_turn",
    [
        ("laplacian(u)", "euler", 1, 1, False),  # all messages at the same time
        ("laplacian(u) + dxy(u)", "euler", 1, 1, True),  # corners: the strips of y wait for those of x
        ("laplacian(u)", "rk4", 0, 4, False),
    ],
)
def test_an_exchange_and_the_interior_do_not_wait_for_each_other(rhs, integrator, every, stages, in_turn):
    """So XLA may compute the cells that read no strip while messages travel; and it has nothing to copy but strips."""
    found = of_a_step(problem_of(**custom({"u": rhs}, (96, 96), 2, "float32", integrator),
                                 decomposition={"devices": [2, 2]}), (2, 2), every)  # fmt: skip
    kernels, messages = named(found, "pallas_call"), named(found, "ppermute")
    first = int(not in_turn)  # one kernel cuts the strips of the first stage, the edges' kernels store the others
    assert len(kernels) == first + 2 * stages and len(messages) == 4 * stages
    for stage in range(stages):
        interior, edges = kernels[first + 2 * stage : first + 2 * stage + 2]
        under_way = set(messages[4 * stage : 4 * stage + 4])
        assert not under_way & found[interior][1]
        # strips are made, and messages started, before it
        assert in_turn or kernels[first + 2 * stage - 1] in found[interior][1]
        assert under_way | {interior} <= found[edges][1]
        assert all(interior not in found[message][1] for message in under_way)
        assert any(found[message][1] & under_way for message in under_way) == in_turn
    copied = [
        name for name, _, shapes in found if name != "pallas_call" and any(math.prod(s) >= 48 * 48 for s in shapes)
    ]
    assert not copied


@pytest.mark.parametrize(
    "equation, integrator, stores",
    [
        ("heat", "rk4", True),
        ("wave", "euler", True),
        ("wave", "leapfrog", False),  # the stage that moves u reads no neighbours
        ("maxwell", "leapfrog", True),
        ("cahn_hilliard", "euler", False),  # corners
    ],
)
def test_edges_store_the_strips_that_are_sent_next(equation, integrator, stores):
    """The loop begins with strips that one kernel cuts, and each step returns the next ones, as the cost model says."""
    problem = problem_of(grid={"shape": [24] * 3}, equation={"name": equation}, numerics={"integrator": integrator},
                         decomposition={"devices": [2, 1, 1]})  # fmt: skip
    stored = []

    def begun(stepping, fields, dt):
        values = stepping.begun(fields)
        stored.extend(name for value in values.values() if isinstance(value, Outgoing) for name in value.names)
        return stepping.exchanging.device_grid.cropped(values)

    traced(problem, (2, 1, 1), 0, begun)
    assert bool(stored) == stores == Work.of(problem, None).stores
    assert len(stored) == len(set(stored))


def test_several_steps_per_exchange_copy_no_block():
    """The first kernel reads the strips and fills an array that reaches beyond the block, the last one an array of its size."""
    found = of_a_step(problem_of(**custom({"u": "laplacian(u)"}, (96, 96), 2, "float32", "euler"),
                                 decomposition={"devices": [2, 2]}), (2, 2), 3)  # fmt: skip
    shapes = [found[n][2] for n in named(found, "pallas_call")]
    assert shapes == [[(52, 52)], [(52, 52)], [(50, 50)], [(48, 48)]]
    assert not [
        name for name, _, shapes in found if name != "pallas_call" and any(math.prod(s) >= 48 * 48 for s in shapes)
    ]


def heat(**given):
    return problem_of(**{"grid": {"shape": [20, 20]}, "equation": {"name": "heat"}, **given})


def test_what_triton_does_not_know_is_found_out(monkeypatch):
    monkeypatch.setattr(launch, "TILES", dict.fromkeys((4, 8), {2: (3, 64)}))
    with pytest.raises(Exception, match="power of 2"):
        lowered(heat())
    monkeypatch.undo()
    monkeypatch.setattr(cells.Cells, "stencil", lambda self, stencil, operand, at: jnp.flip(self(operand, at)))
    with pytest.raises(Exception, match="Unimplemented primitive in Pallas Triton lowering: rev"):
        lowered(heat())


# ---- parts ----


def test_what_derivatives_are_taken_of_is_made_before():
    def second(a):
        return Derivative(a, (2,))

    u = Field("u")
    inner = second(u) + u
    plan = passes({"u": second(second(inner) * u) + second(inner), "v": second(u)})
    first, then = plan.inner
    (a,), (b,) = first, then
    assert first[a] == inner and then[b] == second(Field(a)) * u
    assert plan.trees == {"u": second(Field(b)) + second(Field(a)), "v": second(u)}
    assert plan.operands == {a: inner, b: second(inner) * u}


@pytest.mark.parametrize("together", (1, 2, 8, 32))
def test_steps_in_a_row_are_as_many_as_asked_for(together):
    taken = jax.jit(lambda n: repeated(n, lambda i, u: u.at[i].add(i + 1), jnp.zeros(80, int), together))
    for n in (0, 1, 7, 8, 19, 31, 33, 79):
        np.testing.assert_array_equal(taken(n), [i + 1 if i < n else 0 for i in range(80)])


def test_nan_is_not_lost():
    a, b = jnp.array([1.0, np.nan, 2.0, np.nan]), jnp.array([np.nan, 1.0, 1.0, np.nan])
    for ours, theirs in ((cells.minimum, np.minimum), (cells.maximum, np.maximum)):
        np.testing.assert_array_equal(ours(a, b), theirs(a, b))


def test_the_benchmark_is_ready(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in {"COPY_CELLS": 64, "SECONDS_PER_TIMING": 0.0, "REPEATS": 1, "FEW": 1}.items():
        monkeypatch.setattr(timing, name, value)
    import gpu

    by_shift, by_pallas, by_conv = gpu.rows(gpu.GRAY_SCOTT, (6, 5), "float64", CPU, bandwidth=1e9)
    assert "of copy       0.0 roundings" in by_shift and "of copy" in by_pallas and "of copy" in by_conv
    assert gpu.strips(6, "x", "float64", CPU).endswith("same bits")
    monkeypatch.setattr(gpu, "PROBLEMS", {"heat, rk4": gpu.PROBLEMS["heat, rk4"]})
    assert [row.split()[:3] for row in gpu.others({2: 8, 3: 6}, CPU)] == [["heat,", "rk4", "6x6x6"]]
    inputs = Path(__file__).parents[2] / "inputs"
    assert gpu.shipped(inputs / "kuramoto_sivashinsky.toml", steps=1).endswith("same bits")
    assert "expected a kernel that supports this run" in gpu.shipped(inputs / "brusselator.toml")


@pytest.fixture
def gpu_code(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import gpu_code

    return gpu_code


@pytest.mark.parametrize("cut, most", [((), 1.0), ((0,), 1.02), ((1,), 1.02), ((2,), 1.06), ((0, 1, 2), 1.08)])
def test_a_step_moves_little_more_than_its_fields(cut, most, gpu_code):
    moved, ideal = gpu_code.bytes_of_step((512,) * 3, cut)
    assert 1.0 <= moved / ideal <= most and (moved > ideal) == bool(cut)


def test_the_loop_of_two_gpus_lowers_for_cuda(gpu_code):
    """What `benchmarks/gpu_code.py` compiles where the CUDA plugin is installed: kernels and messages, and no array but the
    fields and their strips."""
    problem = gpu_code.problem_of("heat", (64, 32, 32), "euler", "float32", (2, 1, 1))
    text = gpu_code.traced(problem, jax.local_devices()[:2]).lower(lowering_platforms=("cuda",)).as_text()
    messages = text.count('"stablehlo.collective_permute"')
    assert messages and calls(text) == 1 + messages  # one cuts the first strips
    assert not re.search(
        r"stablehlo\.(pad|concatenate|slice|dynamic_update_slice) .*-> tensor<6[456]x3[234]x3[234]xf32>", text
    )


def test_the_order_of_a_schedule_is_read(gpu_code):
    text = """
%body (p: (s32[])) -> (s32[]) {
  %a = f32[8]{0} custom-call(%p), custom_call_target="x"
  %s = (f32[8]{0}, f32[8]{0}) collective-permute-start(%a)
  %t = s32[] add(%p, %p)
  %b = f32[8]{0} custom-call(%a)
  %d = f32[8]{0} collective-permute-done(%s)
  ROOT %c = (f32[8]{0}) custom-call(%b, %d)
}
ENTRY %main () -> s32[] {
  %w = (s32[]) while(%x), condition=%condition, body=%body
}"""
    kernel, start, done = "custom-call", "collective-permute-start", "collective-permute-done"
    assert gpu_code.schedule_of(text) == [kernel, start, kernel, done, kernel]


# ---- who gets them ----

GPU = SimpleNamespace(platform="gpu", device_kind="some card")


def choice(problem, device, before="", processes=1, devices=1):
    decomposed = Decomposed.of(problem, processes, devices)
    return backend_choice.chosen(decomposed, [device], OneProcess(), before)


@pytest.fixture
def speeds(monkeypatch, tmp_path):
    """Seconds per step by kernel, in the place of measurements."""
    seconds = {"shift": 2.0, "conv": 3.0, "pallas": 1.0}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(backend_choice, "probe", lambda problem, device, kernel: lambda: seconds[kernel])
    return seconds


def test_auto_measures_them_on_gpus_alone(speeds):
    problem = heat(numerics={"integrator": "euler"})
    assert choice(problem, GPU).kernel == "pallas"
    thin = heat(numerics={"integrator": "rk4"})  # blocks of 2 x 2 cells
    assert choice(thin, GPU, processes=100).kernel == "pallas"
    assert choice(thin, GPU, processes=50, devices=2).kernel == "shift"
    speeds["pallas"] = 1.9
    assert choice(heat(numerics={"order": 4}), GPU).kernel == "shift"
    assert choice(problem, GPU).kernel == "pallas"  # which it remembers
    assert choice(heat(), GPU, before="pallas").kernel == "pallas"
    assert choice(problem, CPU).kernel == "native"
    with pytest.raises(
        InputError, match=r'expected "pallas", with which the run was computed .* \(there is no GPU\); continue'
    ):
        choice(problem, CPU, before="pallas")


def test_asked_for_on_a_processor_they_are_interpreted():
    found = choice(heat(numerics={"kernel": "pallas"}), CPU)
    assert found.kernel == "pallas" and "interpreted" in found.why


@pytest.mark.parametrize(
    "given, words",
    [
        ({"ensemble": {"equation.D": [0.1, 0.2]}}, "ensembles"),
        ({"time": {"end": 1.0, "tolerance": 1e-3}, "numerics": {"integrator": "bs3"}}, "tolerance"),
    ],
)
def test_what_they_do_not_fit_is_refused(given, words):
    problem = heat(**{**given, "numerics": {**given.get("numerics", {}), "kernel": "pallas"}})
    with pytest.raises(
        InputError, match=f'numerics.kernel: expected a kernel that supports this run, but "pallas" does not: .*{words}'
    ):
        choice(problem, GPU)
