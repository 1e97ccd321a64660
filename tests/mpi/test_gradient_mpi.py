"""The gradient has the same bits for every decomposition, kernel by kernel, and for every number of stored states."""

from dataclasses import replace

import numpy as np
import pytest
from gradients import members_from, several_at_once, sweep_of
from support import on, problem_of

from hpcstencil.backends.native.step_functions import require_same_code
from hpcstencil.gradient import verify
from hpcstencil.gradient.verify import measured
from hpcstencil.runtime.communicator import connect, from_rank_0
from hpcstencil.validation.errors import EnvironmentProblem

pytestmark = [pytest.mark.mpi, pytest.mark.optimized]

NEAR = [[0.1, 0.2, -0.3], [0.4, -1.2, 0.35], [0.25, 0.1, -0.1]]
RHS = {
    "u": "0.02*div_grad(k, u) + dxy(u*v) - upwind(u, v, D) + laplacian(u**3 - D*laplacian(u)) + where(u > v, sin(u), A*u)",
    "v": "near(u*v) + 0.1*dy(u) - A*dx(x*v)",
    "k": "0.1*u",
}
PROBLEMS = {
    "walls": (
        {"name": "custom", "D": 1e-3, "A": 0.7, "rhs": RHS, "stencils": {"near": NEAR}},
        (23, 19),
        {"x": {"lower": {"dirichlet": "A*(0.1 + t)"}, "upper": {"neumann": "0.1*A*y"}}, "y": {"neumann": 0.0}},
    ),
    "staggered": ({"name": "shallow_water", "g": 1.0, "f": 0.2, "nu": 0.05}, (21, 17), {}),
    "basin": (
        {"name": "shallow_water", "g": 1.0, "f": 0.2, "nu": 0.05},
        (21, 17),
        {
            "x": {"neumann": 0.0},
            "y": {"neumann": 0.0},
            "u": {"x": {"dirichlet": 0.1}},
            "v": {"y": {"dirichlet": "0.1*t"}},
        },
    ),
    "layers": (
        {"name": "acoustic", "c": 1.3, "source": 2.0, "xs": 1.1, "ys": 0.7, "f0": 2e4, "t0": 1e-5},
        (22, 19),
        {
            "x": {"cpml": {"width": 0.6, "speed": 1.3}},
            "y": {
                "lower": "open",
                "upper": {"cpml": {"width": 0.5, "speed": 1.3}},
            },
        },
    ),
    "transfer": (
        {"name": "custom", "h": 0.8, "D": 0.02, "rhs": {"u": "D*laplacian(u)", "v": "div_grad(1 + u, v)"}},
        (22, 17),
        {
            "x": {"robin": {"a": "h", "b": "D", "value": "h*y"}},
            "y": {"lower": {"robin": {"a": "k", "b": "0.2 + h*x", "value": "0.1*k"}}, "upper": {"dirichlet": "k"}},
        },
    ),
    "volume": ({"name": "gray_scott", "D_u": 0.2, "D_v": 0.1}, (11, 9, 8), {"y": {"dirichlet": 0.3}}),
    "tank": (  # its source depends on the time
        {"name": "acoustic", "c": 1.3, "source": 2.0, "xs": 1.1, "ys": 0.7, "f0": 2e4, "t0": 1e-5},
        (47, 50),
        {"x": {"dirichlet": 0.0}},
    ),
    "cavity": ({"name": "maxwell"}, (46, 51), {"x": {"dirichlet": 0.0}}),
    # blocks so thin that a reverse step exchanges arrays between its passes
    "strip": ({"name": "shallow_water", "g": 1.0, "f": 0.2, "nu": 0.05}, (7, 12), {}),
}
FIELDS = {
    "staggered": ("h", "u", "v"),
    "strip": ("h", "u", "v"),
    "basin": ("h", "u", "v"),
    "transfer": ("u", "v"),
    "volume": ("u", "v"),
    "layers": ("p", "q"),
    "tank": ("p", "q"),
    "cavity": ("Ez", "Bx"),
}
NUMBERS = {
    "staggered": ("g", "nu"),
    "strip": ("g", "nu"),
    "basin": ("g", "nu"),
    "transfer": ("h", "k"),
    "volume": ("F", "D_u"),
    "layers": ("c", "source"),
    "tank": ("c", "source"),
    "cavity": ("c",),
}
# Receivers beside each other, in the same cells and at the boundary: each process has some, and cells of others.
RECEIVERS = {
    "walls": {"expression": "u*v + dx(u)", "x": [1.1, 0.1, 1.13, 2.3, 1.1, 0.6], "y": [0.9, 0.2, 0.94, 1.9, 0.9, 1.5]},
    "staggered": {"field": "u", "x": [1.0, 0.02, 1.04, 2.0, 1.0], "y": [0.8, 0.3, 0.81, 1.69, 0.8]},
    "strip": {"field": "u", "x": [0.4, 0.02, 0.44, 0.65, 0.4], "y": [0.8, 0.3, 0.81, 1.15, 0.8]},
    "basin": {"field": "v", "x": [1.0, 0.02, 1.04, 2.0, 1.0], "y": [0.8, 0.03, 0.81, 1.69, 0.8]},
    "layers": {"field": "p", "x": [1.1, 0.1, 1.13, 2.1, 1.1], "y": [0.9, 0.2, 0.94, 1.8, 0.9]},
    "transfer": {"expression": "u*v", "x": [1.1, 0.1, 1.13, 2.1, 1.1], "y": [0.9, 0.02, 0.94, 1.69, 0.9]},
    "volume": {
        "expression": "dz(v) - 0.1*laplacian(u)",
        "x": [0.5, 0.52, 1.0],
        "y": [0.45, 0.46, 0.1],
        "z": [0.4, 0.4, 0.7],
    },
    "tank": {"expression": "p + 0.1*dy(p)", "x": [1.1, 0.1, 1.36, 2.6, 1.1], "y": [0.01, 0.2, 1.52, 2.99, 0.9]},
    "cavity": {"field": "Ez", "x": [1.1, 0.1, 1.32, 2.5, 1.1], "y": [0.01, 0.2, 1.56, 3.09, 0.9]},
}
# (problem, precision, integrator, number of processes on which CI runs it)
ROWS = [
    ("walls", "float64", "ssprk2", 2),
    ("staggered", "float32", "euler", 3),
    ("layers", "float32", "leapfrog", 2),
    ("basin", "float64", "ab2", 3),
    ("strip", "float64", "ab2", 3),
    ("volume", "float32", "euler", 4),
    ("transfer", "float32", "euler", 4),
]


# These take long to compile, and other rows cover them.
ELSEWHERE = [(name, "of_receivers") for name in ("transfer", "strip", "volume")]


@pytest.fixture(scope="module")
def communicator():
    return connect()


def tables(name, precision, integrator):
    equation, shape, boundary = PROBLEMS[name]
    fields = FIELDS.get(name, ("u", "v", "k"))
    squares = " + ".join(f"integral({field}**2*(2 + sin(3*y)))" for field in fields)
    numbers = NUMBERS.get(name, ("D", "A"))
    return {
        "grid": {"shape": list(shape), "upper": [0.1 * n for n in shape]},
        "equation": equation,
        "initial": {field: f"1 + 0.2*sin(7*x + {n})*cos(5*y)" for n, field in enumerate(fields)},
        "boundary": boundary,
        "numerics": {"precision": precision, "integrator": integrator},
        "time": {"end": 5e-5, "dt": 1e-5},
        "objective": {"J": {"sum": squares, "every_steps": 2} if name == "volume" else squares},
        "gradient": {"of": [f"initial.{fields[0]}", f"initial.{fields[1]}", *(f"equation.{name}" for name in numbers)]},
    }


def of_receivers(name, precision, integrator):
    """The input of `tables` with a misfit at receivers as objective, and a term at the end."""
    given = tables(name, precision, integrator)
    (text,) = given["objective"].values()
    text = text["sum"] if isinstance(text, dict) else text
    objective = {"J": f"0.5*sum((receivers - 0.3)**2*(1 + 1e3*t) - sin(receivers)) + 0.01*({text})"}
    return {**given, "probes": {"receivers": {**RECEIVERS[name], "every_steps": 2}}, "objective": objective}


def written(name, folder):
    """The equation of a problem, with the file of the array k that the boundary values of "transfer" depend on."""
    equation, shape, _ = PROBLEMS[name]
    if name != "transfer":
        return equation
    np.save(folder / "k.npy", 1.0 + np.random.default_rng(1).random(shape))
    return {**equation, "k": str(folder / "k.npy")}


def found(sweep, states):
    """(objective, derivatives with respect to numbers, blocks of this process)."""
    result = sweep(sweep.forward.initial_fields(), states)
    return result.value, result.numbers, {key: sweep.forward.block(array) for key, array in result.arrays.items()}


@pytest.mark.parametrize("kernel", [pytest.param("shift", marks=pytest.mark.long), "native"])
@pytest.mark.parametrize("row, objective", [
    pytest.param(
        row[:3], objective, id="-".join([objective.__name__, *row[:3]]),
        marks=pytest.mark.long if (row[0], objective.__name__) in ELSEWHERE else on(row[3]),
    )
    for objective in (tables, of_receivers) for row in ROWS
])  # fmt: skip
def test_every_decomposition_gives_the_same_gradient(communicator, row, objective, kernel, tmp_path):
    given = objective(*row)
    given["equation"] = from_rank_0(communicator, lambda: written(row[0], tmp_path))
    value, numbers, whole = from_rank_0(communicator, lambda: found(sweep_of(given, kernel=kernel), 5))
    assert np.isfinite(value) and all(np.abs(array).max() > 0 for array in whole.values())
    for devices, states in ((1, 5), (2, 2)):
        sweep = sweep_of(given, communicator, devices, kernel)
        others = found(sweep, states)
        assert others[:2] == (value, numbers)
        index = tuple(slice(*r) for r in sweep.forward.ranges)
        for key, block in others[2].items():
            assert block.tobytes() == np.ascontiguousarray(whole[key][index]).tobytes(), (key, devices)


@on(2)
def test_processes_with_different_programs_are_refused(communicator):
    require_same_code(7, communicator)
    if communicator.size > 1:
        with pytest.raises(EnvironmentProblem, match="expected the same native code on all processes"):
            require_same_code(7 + communicator.rank, communicator)


@on(2)
def test_receivers_of_one_process_beside_solid_cells(communicator):
    given = {
        "grid": {"shape": [16]},
        "equation": {"name": "heat", "D": 0.2},
        "initial": {"u": "1 + 0.1*x"},
        "mask": {"solid": "abs(x - 8) < 1"},
        "probes": {"receivers": {"field": "u", "x": [2.0]}},
        "time": {"end": 0.3, "dt": 0.1},
        "objective": {"J": "sum(receivers**2)"},
        "gradient": {"of": ["equation.D"]},
    }
    alone = from_rank_0(communicator, lambda: found(sweep_of(given), 2)[:2])
    assert found(sweep_of(given, communicator), 2)[:2] == alone


@pytest.mark.parametrize("kernel, recorded, processes", [
    pytest.param(*row, marks=on(row[2]))
    for row in (("shift", {"expression": "u*v"}, 2), ("native", {"field": "v"}, 3))
])  # fmt: skip
def test_functions_of_sums_over_several_tables_of_receivers(communicator, kernel, recorded, processes):
    given = {
        "grid": {"shape": [36, 20], "upper": [16.0, 9.0]},
        "equation": {"name": "custom", "D": 0.2, "rhs": {"u": "D*laplacian(u) - u*v", "v": "0.1*dx(u) - v**2"}},
        "initial": {"u": "1 + 0.1*x", "v": "cos(y)"},
        "mask": {"solid": "abs(x - 8) < 1"},
        "probes": {
            "left": {"field": "u", "x": [2.0, 6.2], "y": 3.0, "every_steps": 2},
            "right": {**recorded, "x": [9.6, 12.0, 14.3], "y": [1.0, 4.4, 8.8], "every_steps": 3},
        },
        "time": {"end": 0.8, "dt": 0.1},
        "objective": {"J": "sum(left**2)/sqrt(sum(right**2*(1 + t))) + min(v - u)*max(u*v)*sum(right)"},
        "gradient": {"of": ["equation.D", "initial.u"]},
    }
    value, numbers, whole = from_rank_0(communicator, lambda: found(sweep_of(given, kernel=kernel), 9))
    sweep = sweep_of(given, communicator, kernel=kernel)
    assert sweep.injected == (kernel == "native")
    others = found(sweep, 3)
    assert others[:2] == (value, numbers)
    index = tuple(slice(*r) for r in sweep.forward.ranges)
    assert others[2]["initial.u"].tobytes() == np.ascontiguousarray(whole["initial.u"][index]).tobytes()


TOGETHER = [
    *((row, tables) for row in ROWS if row[0] in ("staggered", "volume")),
    (ROWS[1], of_receivers),
    (("tank", "float32", "leapfrog", 2), of_receivers),
    (("cavity", "float64", "leapfrog", 4), of_receivers),
]


@pytest.mark.parametrize("row, objective", [
    pytest.param(
        row, objective, id=f"{objective.__name__}-{row[0]}", marks=on(row[3])
    )
    for row, objective in TOGETHER
])  # fmt: skip
def test_steps_that_are_reversed_together_give_the_same_gradient(communicator, row, objective):
    given = objective(*row[:3])
    value, numbers, whole = from_rank_0(communicator, lambda: found(sweep_of(given, kernel="native"), 5))
    for devices in (1, 2):
        sweep = several_at_once(sweep_of(given, communicator, devices, "native"), 2, communicator, devices)
        if row[0] in ("tank", "cavity") and communicator.size == row[3]:
            assert sweep.injected == (devices == 1)
        others = found(sweep, 1)
        assert others[:2] == (value, numbers)
        index = tuple(slice(*r) for r in sweep.forward.ranges)
        for key, block in others[2].items():
            assert block.tobytes() == np.ascontiguousarray(whole[key][index]).tobytes(), (key, devices)


@pytest.mark.parametrize("devices", [
    pytest.param(devices, marks=on(2)) for devices in (1, 2)
])  # fmt: skip
def test_verification_compares_decompositions(communicator, devices, monkeypatch):
    given = tables("transfer", "float64", "euler") | {"gradient": {"of": ["initial.u", "equation.D"]}}
    given = given | {"equation": {**given["equation"], "h": 0.7}, "boundary": {"x": {"dirichlet": "h*y"}}}
    given = given | {"decomposition": {"processes": [1, communicator.size]}}  # not the default
    members = members_from(given, communicator, devices, "native", verified=True)
    members, plans = members.planned(lambda number: members.sweeps[number].forward.initial_fields())
    stored = ["one stored state"] if any(plan.states > 1 for plan in plans) else []
    others = ["one process", "an exchange per step"] if communicator.size * devices > 1 else []
    others += ["one device"] if devices > 1 and communicator.size > 1 else []
    found = measured(members, plans, problem_of(**given))
    assert [way.name for way in found.ways] == stored + others and all(way.met for way in found.ways), found.ways
    computed = verify._others
    monkeypatch.setattr(verify, "_others", lambda *given: changed(computed(*given)))
    found = measured(members, plans, problem_of(**given))
    assert [way.name for way in found.ways if "differs by" in way.words and not way.met] == others


def changed(total):
    """The same gradient with another last bit in one entry."""
    array = total.blocks["initial.u"].copy()
    array.flat[0] = np.nextafter(array.flat[0], 9.0)
    return replace(total, blocks={**total.blocks, "initial.u": array})


SERIES = [("plate", "float32", "euler", 2), ("layers", "float32", "leapfrog", 0), ("plate", "float64", "rk4", 0)]


@pytest.mark.parametrize("row", [
    pytest.param(row[:3], id="-".join(row[:3]), marks=on(row[3]))
    for row in SERIES
])  # fmt: skip
def test_every_decomposition_gives_the_same_gradient_of_a_series(communicator, row, tmp_path_factory):
    folder = communicator.broadcast(tmp_path_factory.mktemp("series") if communicator.rank == 0 else None)
    from_rank_0(communicator, lambda: np.save(folder / "samples.npy", np.cos(np.arange(7.0))))
    series = {"series": str(folder / "samples.npy"), "dt": 0.8e-5}
    if row[0] == "layers":
        given = of_receivers(*row)
        given |= {
            "equation": {**given["equation"], "source": series},
            "gradient": {"of": ["equation.source", "equation.c"]},
        }
        del given["equation"]["f0"], given["equation"]["t0"]
    else:
        given = tables("walls", *row[1:])
        rhs = {"u": "1e4*laplacian(u) + 9*A*s*u", "v": "u - s**2*x", "k": "0.1*u"}
        given |= {"equation": {"name": "custom", "A": 0.7, "s": series, "rhs": rhs}}
        given |= {"boundary": {"x": {"dirichlet": "s*y" if row[2] == "euler" else "y"}}}
        given |= {"gradient": {"of": ["equation.s", "initial.u"]}}
    key = given["gradient"]["of"][0]

    def samples(sweep, states):
        return sweep(sweep.forward.initial_fields(), states).series[key].tobytes()

    expected = from_rank_0(communicator, lambda: samples(sweep_of(given, kernel="native"), 5))
    assert np.count_nonzero(np.frombuffer(expected)) >= 5
    for devices, states in ((1, 5), (2, 2)):
        assert samples(sweep_of(given, communicator, devices, "native"), states) == expected
