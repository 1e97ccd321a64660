"""Probes: what they record is what `at` gives, and what the snapshots of every step give, bit for bit."""

import gc
import itertools

import h5py
import jax
import numpy as np
import pytest
from probed import ON_THREADS, ROWS, STEPS, counted_calls, file_of, probing_expressions, samples, with_probes
from support import problem_of, simulation_of, with_table

import hpcstencil as hs
from hpcstencil.backends.native import cell_samples
from hpcstencil.backends.native.program import program
from hpcstencil.backends.native.stencil_values import StencilValues
from hpcstencil.config.reader import from_mapping
from hpcstencil.distributed.cell_samples import CellSamples
from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.distributed.receiver_cells import receiver_cells
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.build import build
from hpcstencil.simulation import receiver_recorder
from hpcstencil.simulation.backend_choice import foreseen
from hpcstencil.simulation.dry_run import report
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.receiver_recorder import part_of
from hpcstencil.simulation.streams.probes import Probes
from hpcstencil.validation.errors import InputError, NumericsError


def expected(path, given, steps):
    """The samples that the snapshots of every step give."""
    problem = build(from_mapping(given, path.parent))
    topology = Decomposed.of(problem, 1, 1).topology
    found = {}
    with h5py.File(path) as file:
        for name, each in problem.receivers.items():
            part = receiver_cells([each], min(problem.config.numerics.order, topology.shape[-1]), topology)
            fields = file[each.field][()]
            records = np.zeros((len(fields), part.size), fields.dtype)
            cells = part.cells[each.field]
            records[:, cells.slot] = fields[(slice(None), *cells.index.T)]
            (weights,) = part.own_weights()
            if problem.mask is not None:
                fluid = weights * (
                    1.0 - file["solid"][()][tuple(cells.index[np.argsort(cells.slot)].T)].reshape(weights.shape)
                )
                weights = weights / fluid.sum(axis=(1, 2))[:, None, None]
            values = CellSamples({}, records, part.width, Devices(topology, tuple(jax.local_devices()[:1]))).weighted(
                0, len(records), weights, part.places[0]
            )
            found[name] = values[:: each.every]
    return found


@pytest.mark.parametrize(("row", "kernel"), [
    pytest.param(row, kernel, id=f"{kernel}-{row[0]}", marks=() if kernel == "native" or row in ROWS[::5] else pytest.mark.long)
    for row in ROWS for kernel in ("native", "shift")
])  # fmt: skip
def test_probes_are_what_the_snapshots_of_every_step_give(tmp_path, row, kernel):
    """Native code records within one call of many steps; a run with snapshots takes single steps."""
    given = with_probes(row)
    given["numerics"]["kernel"] = kernel
    found = samples(file_of(tmp_path / "run.h5", given))
    every = file_of(tmp_path / "every.h5", {**given, "output": {"every_steps": 1}})
    for name, values in expected(every, given, STEPS).items():
        steps, times, recorded = found[name]
        period = given["probes"][name].get("every_steps", 1)
        assert steps.tolist() == list(range(0, STEPS + 1, period))
        assert np.allclose(times, steps * given["time"]["dt"], rtol=1e-12)
        if row[0] == "gas-2d":  # the sum over the fluid is rounded otherwise here
            assert np.allclose(recorded, values, rtol=1e-6)
        else:
            assert np.isfinite(values).all() and recorded.tobytes() == np.ascontiguousarray(values).tobytes(), name
    with h5py.File(tmp_path / "run.h5") as one, h5py.File(every) as other:  # what is recorded changes nothing
        for field in one["probes/a/values"].attrs["long_name"], one["probes/b/values"].attrs["long_name"]:
            assert one[field][-1].tobytes() == other[field][-1].tobytes()


@pytest.mark.parametrize("row", [
    ("heat-2d-walls", 4, "float64", "rk4"), ("shallow-2d", 2, "float64", "ab2"), ("gas-2d", 2, "float64", "ssprk2"),
    ("wave-1d", 8, "float64", "rk4"),
], ids=lambda row: row[0])  # fmt: skip
def test_probes_are_what_at_gives(tmp_path, row):
    given = with_probes(row)
    probe = given["probes"].pop("a")
    del given["probes"]["b"]
    given["probes"]["a"] = probe
    places = [probe[axis] for axis in "xyz" if axis in probe]
    names = [f"r{number}" for number in range(len(places[0]))]
    texts = {
        name: f"at({probe['field']}, {', '.join(map(repr, place))})"
        for name, place in zip(names, zip(*places, strict=True), strict=True)
    }
    path = file_of(tmp_path / "run.h5", {**given, "diagnostics": {"every_steps": 1, **texts}})
    recorded = samples(path)["a"][2]
    with h5py.File(path) as file:
        by_at = np.stack([file["diagnostics"][name][()] for name in names], axis=1)
    assert np.abs(recorded - by_at).max() <= 1e-13 * np.abs(by_at).max()


@pytest.mark.parametrize("row", [("heat-2d-walls", 4, "float64", "rk4"), ("shallow-2d", 2, "float64", "ab2"),
                                 ("gas-2d", 2, "float64", "ssprk2")], ids=lambda row: row[0])  # fmt: skip
def test_derived_quantities_are_what_at_gives(tmp_path, row):
    given = with_probes(row)
    field = given["probes"]["a"].pop("field")
    text = f"dx({field}) + 0.5*{field}" if row[0] != "shallow-2d" else "mean_x(u)*h"
    given["probes"]["a"]["expression"] = text
    places = zip(*(given["probes"]["a"][axis] for axis in "xy"), strict=True)
    ats = {f"r{n}": f"at({text}, {x!r}, {y!r})" for n, (x, y) in enumerate(places)}
    path = file_of(tmp_path / "run.h5", {**given, "diagnostics": {"every_steps": 1, **ats}})
    recorded = samples(path)
    with h5py.File(path) as file:
        by_at = np.stack([file["diagnostics"][name][()] for name in ats], axis=1)
        assert file["probes/a/values"].attrs["long_name"] == text
    assert np.abs(recorded["a"][2] - by_at).max() <= 1e-13 * np.abs(by_at).max()
    assert len(recorded["b"][0]) == 1 + STEPS // 5


@pytest.mark.parametrize(("row", "threads"), ON_THREADS)
def test_recorded_expressions_are_those_of_calls_that_end_there(tmp_path, monkeypatch, row, threads):
    for module in ("step_functions", "stencil_values"):
        monkeypatch.setattr(f"hpcstencil.backends.native.{module}.threads_for", lambda _: threads)
    calls = counted_calls(monkeypatch, Probes)
    given = probing_expressions(row)
    given["numerics"]["kernel"] = "native"
    recorded = samples(file_of(tmp_path / "recorded.h5", given))
    assert max(calls) > 3 and all(np.isfinite(values).all() for _, _, values in recorded.values())
    calls.clear()
    monkeypatch.setattr(StencilValues, "recorded", lambda *given: False)
    ended = samples(file_of(tmp_path / "ended.h5", given))
    assert max(calls) <= 2
    for name, parts in recorded.items():
        assert all(a.tobytes() == b.tobytes() for a, b in zip(parts, ended[name], strict=True)), name
    given["numerics"]["kernel"] = "shift"
    for name, (steps, _, values) in samples(file_of(tmp_path / "shift.h5", given)).items():
        assert (steps == recorded[name][0]).all()
        assert recorded[name][2] == pytest.approx(values, rel=1e-4, abs=1e-4 * float(np.abs(values).max())), name


@pytest.mark.parametrize("expression", (None, "dx(u)"))
@pytest.mark.parametrize("growth", ([1.0], [0.1, 0.15, 1.0], [1.0, 0.1, 0.15, 0.05]), ids=len)
def test_samples_before_a_member_blows_up_are_kept(tmp_path, growth, expression):
    steps = {}
    for kernel in ("native", "shift"):
        given = {
            "grid": {"shape": [64], "upper": [6.4]},
            "equation": {"name": "custom", "A": 1.0, "rhs": {"u": "A*u**2 + 0.001*laplacian(u)"}},
            "initial": {"u": "1 + 0.1*x"},
            "numerics": {"kernel": kernel, "precision": "float64", "integrator": "euler"},
            "time": {"dt": 0.05, "end": 5.0},
            "output": {"every": 5.0},
            "probes": {"p": {"expression" if expression else "field": expression or "u", "x": [0.5, 1.7, 3.0]}},
            "ensemble": {"equation.A": growth},
        }
        with pytest.raises(NumericsError, match="is not finite"):
            file_of(tmp_path / f"{kernel}.h5", given)
        steps[kernel], _, values = samples(tmp_path / f"{kernel}.h5")["p"]
        assert np.isfinite(values).all() and 20 < len(steps[kernel]) < 30
    assert len(steps["native"]) >= len(steps["shift"])  # whose calls end after a few steps


def test_samples_of_expressions_are_those_before_a_callback_changes_the_fields(tmp_path):
    place = {"x": [0.5, 1.7, 3.0], "y": [0.5, 1.7, 2.0]}
    probes = {"plain": {"field": "u", **place}, "slope": {"expression": "2*u + dx(u)", **place}}
    found = {}
    for kernel in ("native", "shift"):
        numerics = {"kernel": kernel, "precision": "float64"}
        given = {
            "equation": {"name": "heat", "D": 0.1},
            "initial": {"u": "sin(3*x) + y"},
            "time": {"dt": 1e-3, "end": 0.02},
        }
        grid = {"shape": [32, 24], "upper": [3.2, 2.4]}
        with hs.Simulation(
            {**given, "grid": grid, "numerics": numerics, "output": {"every": 0.02}, "probes": probes}
        ) as sim:

            @sim.on(every_steps=7)
            def doubled(sim):
                sim["u"] = 2 * np.asarray(sim["u"])

            sim.run(tmp_path / f"{kernel}.h5")
        found[kernel] = samples(tmp_path / f"{kernel}.h5")
    for name in probes:
        assert np.allclose(found["native"][name][2], found["shift"][name][2], rtol=1e-12, atol=1e-12), name


def test_steps_that_follow_a_tolerance_or_the_solution_are_recorded(tmp_path):
    for time in ({"tolerance": 1e-5, "end": 0.02}, {"cfl": 0.4, "end": 0.02, "dt_every": 3}):
        row = ("burgers-2d", 2, "float64", "bs3") if "tolerance" in time else ("burgers-2d", 2, "float64", "rk4")
        given = with_probes(row, time=time, output={"every": 0.007})
        steps, times, values = samples(file_of(tmp_path / "run.h5", given, overwrite=True))["a"]
        with h5py.File(tmp_path / "run.h5") as file:
            assert steps.tolist() == list(range(file["step"][-1] + 1)) and times[-1] == file["time"][-1]
            assert set(file["time"][()]) <= set(times) and (np.diff(times) > 0).all()
            assert np.isfinite(values).all()


def test_a_last_step_that_is_shortened_is_recorded(tmp_path):
    """Before it, a checkpoint makes the streams write the rows that they hold."""
    given = with_probes(("heat-2d-walls", 4, "float32", "rk4"))
    given["numerics"]["kernel"] = "native"
    given["time"]["end"] = (STEPS - 0.5) * given["time"]["dt"]
    for name, values in expected(
        file_of(tmp_path / "every.h5", {**given, "output": {"every_steps": 1}}), given, STEPS
    ).items():
        recorded = samples(file_of(tmp_path / "run.h5", given, overwrite=True))[name][2]
        assert recorded.tobytes() == np.ascontiguousarray(values).tobytes()


def test_a_buffer_that_is_often_full_changes_nothing(tmp_path, monkeypatch):
    given = with_probes(("heat-2d-walls", 4, "float32", "rk4"))
    given["numerics"]["kernel"] = "native"
    whole = samples(file_of(tmp_path / "whole.h5", given))
    monkeypatch.setattr(receiver_recorder, "BUFFER", 9000)
    small = samples(file_of(tmp_path / "small.h5", given))
    for name, parts in whole.items():
        assert all(a.tobytes() == b.tobytes() for a, b in zip(parts, small[name], strict=True))


def test_a_recorder_that_is_collected_leaves_that_of_another_run(tmp_path):
    given = with_probes(("heat-2d-walls", 4, "float32", "rk4"))
    problem = problem_of(**{name: table for name, table in given.items() if name != "time"})
    simulation = simulation_of(problem, kernel="native")
    part = part_of(simulation, simulation.problem.receivers)

    def recorder():
        values = np.zeros((2, part.size), np.float32)
        return simulation.steps.cell_samples(part.cells, values, part.width, simulation.device_grid.devices)

    earlier, later = recorder(), recorder()
    later.expect(every=1, first=1, origin=0, times={})
    del earlier
    gc.collect()
    simulation.advance(simulation.initial_fields(), StepRange(0.0, 0, 1e-4, 2))
    later.expect_nothing()
    assert later.while_stepping and (later.values != 0).any(axis=1).all()


def test_steps_inside_of_other_code_record_nothing():
    """That code may run while a simulation steps, and its own steps have the same numbers."""
    simulation = simulation_of(problem_of(**with_probes(("heat-2d-walls", 4, "float32", "rk4"))), kernel="native")
    part = part_of(simulation, simulation.problem.receivers)
    values = np.zeros((2, part.size), np.float32)
    recorder = simulation.steps.cell_samples(part.cells, values, part.width, simulation.device_grid.devices)
    inside, steps = jax.jit(simulation.steps.inside()), StepRange(0.0, 0, 1e-4, 2)
    parameters, fields = simulation.problem.parameters, simulation.initial_fields()
    recorder.expect(every=1, first=1, origin=0, times={})
    jax.block_until_ready(inside(dict(fields), parameters, steps))
    assert recorder.while_stepping and not values.any()
    jax.block_until_ready(simulation.advance(fields, steps))
    assert (values != 0).any(axis=1).all()
    recorder.expect_nothing()


@pytest.mark.parametrize(("order", "shape"), [(2, [9, 1]), (4, [12, 3]), (6, [20, 20]), (6, [9, 5]), (8, [8, 7])])
def test_native_code_records_rows_of_any_length_within_its_calls(tmp_path, order, shape):
    given = {
        **TABLES, "grid": {"shape": shape}, "boundary": {"x": "periodic", "y": "periodic"},
        "numerics": {"order": order, "kernel": "native"}, "time": {"dt": 0.01, "end": 0.05},
        "probes": {"p": {"field": "u", "x": [2.0, 7.6], "y": [0.3, 0.9]}},
    }  # fmt: skip
    simulation = simulation_of(problem_of(**given), kernel="native")
    part = part_of(simulation, simulation.problem.receivers)
    values = np.zeros((1, part.size), np.float32)
    recorder = simulation.steps.cell_samples(part.cells, values, part.width, simulation.device_grid.devices)
    assert recorder.while_stepping
    recorded = samples(file_of(tmp_path / "run.h5", given))["p"][2]
    every = file_of(tmp_path / "every.h5", {**given, "output": {"every_steps": 1}})
    assert recorded.tobytes() == np.ascontiguousarray(expected(every, given, 5)["p"]).tobytes()


@pytest.mark.parametrize("row", [row for row in ROWS if row[3] == "leapfrog"], ids=lambda row: row[0])
def test_values_that_are_computed_again_are_those_that_would_be_stored(tmp_path, monkeypatch, row):
    """A pass that joins two steps does not store all fields. Few cells of these are computed again; for many, steps are not
    joined."""
    found = {}
    for sparse in (0, 10**9):
        monkeypatch.setattr(cell_samples, "SPARSE", sparse)
        given = with_probes(row)
        given["numerics"]["kernel"] = "native"
        found[sparse] = samples(file_of(tmp_path / f"{sparse}.h5", given))
    assert "JOINS_STEPS = true" in program(problem_of(**{**given, "time": {"end": 1.0}})).text
    for name, parts in found[0].items():
        assert all(a.tobytes() == b.tobytes() for a, b in zip(parts, found[10**9][name], strict=True))


def test_probes_share_the_program_of_a_run_without():
    given = {**TABLES, "time": {"end": 1.0, "dt": 0.1}}
    plain, probed = (
        program(problem_of(**given, **more)).text
        for more in ({}, {"probes": {"p": {"field": "u", "x": 2.0, "y": 3.0}}})
    )
    assert plain == probed


def test_a_parameter_may_be_used_by_a_probe_alone(tmp_path):
    equation = {"name": "custom", "rhs": {"u": "laplacian(u)"}, "gain": 3.0}
    place = {"x": 2.0, "y": 3.0}
    probes = {"scaled": {"expression": "gain*u", **place}, "plain": {"field": "u", **place}}
    found = samples(file_of(tmp_path / "run.h5", {**TABLES, "equation": equation, "probes": probes}))
    assert np.allclose(found["scaled"][2], 3.0 * found["plain"][2], rtol=1e-6)


@pytest.mark.parametrize("lower", [0.0, 0.1, -0.873, 1 / 3])
@pytest.mark.parametrize("order", [2, 4, 6, 8])
def test_a_receiver_in_a_cell_of_a_small_periodic_grid_records_this_cell(order, lower):
    """Rounding leaves tiny weights in other cells, more of them than a receiver has cells."""
    for cells, width in itertools.product((order + 1, order + 2), (0.1, 0.37, 1.7)):
        places = [lower + (n + 0.5) * width for n in range(cells)]
        problem = problem_of(
            grid={"shape": [cells], "lower": [lower], "upper": [lower + cells * width]},
            equation={"name": "heat"},
            numerics={"order": order},
            probes={"r": {"field": "u", "x": places}},
        )
        found = problem.receivers["r"]
        weights = np.zeros((cells, cells))
        np.add.at(weights, (np.arange(cells)[None, :], found.cells[..., 0]), found.weights)
        assert weights == pytest.approx(np.eye(cells), abs=1e-12)


@pytest.mark.parametrize("probes", [
    {"p": {"field": "u", "x": [1.0, 2.5], "y": [2.0, 3.0]}},
    {"p": {"expression": "2*u", "x": [1.0, 2.0], "y": [2.0, 3.0]}},
    {"q": {"field": "u", "x": [1.0, 2.0], "y": [2.0, 3.0]}},
    {},
])  # fmt: skip
def test_a_continued_run_has_the_same_receivers(tmp_path, probes):
    given = {**TABLES, "probes": {"p": {"field": "u", "x": [1.0, 2.0], "y": [2.0, 3.0]}}}
    path = file_of(tmp_path / "run.h5", given)
    before = path.read_bytes()
    changed = {**given, "probes": probes, "time": {"end": 1.5, "dt": 0.1}}
    with pytest.raises(InputError, match=r"probes\.p: .*run\.h5 was begun with other receivers, or another quantity"):
        file_of(path, changed, resume=True, overrides=("probes.p={}", "probes.q={}", "probes={}"))
    assert path.read_bytes() == before
    rarely = {**changed, "probes": {"p": {**given["probes"]["p"], "every_steps": 2}}}
    file_of(path, rarely, resume=True, overrides=("probes.p.every_steps=2",))
    assert samples(path)["p"][0].tolist() == [*range(11), 12, 14]


def test_a_continued_run_has_the_same_diagnostics(tmp_path):
    given = {**TABLES, "diagnostics": {"total": "integral(u)"}}
    path = file_of(tmp_path / "run.h5", given)
    before = path.read_bytes()
    changed = {**given, "diagnostics": {"total": "integral(u**2)"}, "time": {"end": 1.5, "dt": 0.1}}
    with pytest.raises(
        InputError, match=r'diagnostics\.total: .*run\.h5 was begun with "integral\(u\)" and cannot continue'
    ):
        file_of(path, changed, resume=True, overrides=("diagnostics.total=integral(u**2)",))
    assert path.read_bytes() == before


STATIONS = "name, x, y\nA, 1.0, 2.0\nB,3.0,0.25\n"
TABLES = {
    "grid": {"shape": [16, 12]}, "equation": {"name": "heat", "D": 0.1}, "initial": {"u": "1 + x"},
    "time": {"end": 1.0, "dt": 0.1},
}  # fmt: skip


def test_places_come_from_a_file(tmp_path):
    (tmp_path / "stations.csv").write_text(STATIONS)
    config = from_mapping({**TABLES, "probes": {"p": {"field": "u", "file": "stations.csv"}}}, tmp_path)
    assert config.probes["p"].x == (1.0, 3.0) and config.probes["p"].y == (2.0, 0.25)


def test_places_come_from_a_file_of_savetxt(tmp_path):
    np.savetxt(tmp_path / "stations.csv", [[1.0, 2.0], [3.0, 0.25]], delimiter=",", header="x,y")
    config = from_mapping({**TABLES, "probes": {"p": {"field": "u", "file": "stations.csv"}}}, tmp_path)
    assert config.probes["p"].places(2) == ((1.0, 3.0), (2.0, 0.25))


@pytest.mark.parametrize(("x", "y", "expected"), [
    ([1.0, 2.0], 0.5, ((1.0, 2.0), (0.5, 0.5))),
    (np.float64(1.0), np.array([0.5, 2.0]), ((1.0, 1.0), (0.5, 2.0))),
])  # fmt: skip
def test_a_single_coordinate_holds_for_all_receivers(tmp_path, x, y, expected):
    config = from_mapping({**TABLES, "probes": {"p": {"field": "u", "x": x, "y": y}}}, tmp_path)
    assert config.probes["p"].places(2) == expected


@pytest.mark.parametrize(("probe", "told"), [
    ({"field": "u", "x": 1.0}, r"probes\.p\.y: expected a coordinate along y for every receiver"),
    ({"field": "u", "x": [1.0, 2.0], "y": [1.0, 2.0, 3.0]}, r"probes\.p\.y: expected .* for each of the 2 in x, but got 3"),
    ({"field": "u", "x": 1.0, "y": 1.0, "z": 1.0}, r"probes\.p\.z: no such axis"),
    (
        {"field": "u", "x": 16.5, "y": 1.0},
        r"probes\.p\.x: expected positions in the grid, 0 to 16, but got 16\.5 for receiver 0",
    ),
    ({"field": "w", "x": 1.0, "y": 1.0}, r"probes\.p\.field: unknown field"),
    ({"x": 1.0, "y": 1.0}, r"probes\.p\.field: expected a field or an expression to record, but both are missing"),
    ({"field": "u", "expression": "u", "x": 1.0, "y": 1.0}, r"probes\.p\.field: expected only one of"),
    ({"expression": "u +", "x": 1.0, "y": 1.0}, r"probes\.p\.expression: "),
    ({"expression": "mean(u)", "x": 1.0, "y": 1.0}, r"probes\.p\.expression: "),
    ({"field": "u", "x": "a", "y": 1.0}, r"probes\.p\.x: expected a number or a list of numbers"),
    ({"field": "u", "x": [], "y": []}, r"probes\.p\.x: expected a number or a list"),
    ({"field": "u", "x": 1.0, "y": float("nan")}, r"probes\.p\.y: expected"),
    ({"field": "u", "every": 2, "x": 1.0, "y": 1.0}, r"probes\.p\.every: unknown key .* did you mean .every_steps.\?"),
    ({"field": "u", "every_steps": 0, "x": 1.0, "y": 1.0}, r"probes\.p\.every_steps: expected a positive integer"),
    ({"field": "u", "file": "none.csv"}, r"probes\.p\.file: .*none\.csv"),
    ({"field": "u", "file": "stations.csv", "x": 1.0}, r"probes\.p\.x: the file gives the coordinates"),
    ({"field": "u", "file": "words.csv"}, r"probes\.p\.file: expected a number for y in line 3"),
    ({"field": "u", "file": "flat.csv"}, r"probes\.p\.file: .* columns x, y, .* begins with \"x\";"),
    ({"field": "u", "file": "empty.csv"}, r"probes\.p\.file: expected a line per receiver"),
    ({"field": "u", "file": "binary.csv"}, r"probes\.p\.file: expected comma-separated text"),
    ({"field": "u", "file": "twice.csv"}, r"probes\.p\.file: expected one column x, but .*twice\.csv has several"),
    ({"field": "u", "file": "commas.csv"}, r"probes\.p\.file: expected an entry per column, but line 2 of .* has more"),
    ({"field": "u", "file": "cut.csv"}, r"probes\.p\.file: expected a number for y in line 3 of .*, but got nothing"),
    ({"field": "u", "file": "many.csv"}, r"probes\.p\.file: expected at most 3 receivers, but .*many\.csv has more"),
    ({"field": "u", "file": 300 * "n"}, r"probes\.p\.file: .*nnn"),
    (3, r"probes\.p: expected a table"),
])  # fmt: skip
def test_bad_tables_are_told(tmp_path, monkeypatch, probe, told):
    monkeypatch.setattr("hpcstencil.config.probes.MOST_RECEIVERS", 3)
    (tmp_path / "stations.csv").write_text(STATIONS)
    (tmp_path / "words.csv").write_text("x,y\n1,2\n3,here\n")
    (tmp_path / "flat.csv").write_text("x\n1\n")
    (tmp_path / "empty.csv").write_text("x,y\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00x\n")
    (tmp_path / "twice.csv").write_text("x,y,x\n1,2,3\n")
    (tmp_path / "commas.csv").write_text("x,y\n0,5,0,5\n")
    (tmp_path / "cut.csv").write_text("x,y\n1,2\n3")
    (tmp_path / "many.csv").write_text("x,y\n1,2\n3,4\n5,6\n7,8\n")
    with pytest.raises(InputError, match=told):
        build(from_mapping({**TABLES, "probes": {"p": probe}}, tmp_path))


@pytest.mark.parametrize("part, values", [
    ("time", None), ("values", None), ("values", np.zeros(11)), ("values", np.float64(1.0)), ("time", np.zeros(3)),
    ("x", np.zeros(7)), ("values", np.zeros((11, 2), "S3")), ("step", np.zeros((11, 1), int)),
])  # fmt: skip
def test_probes_of_a_damaged_file_are_one_sentence(tmp_path, part, values):
    path = file_of(tmp_path / "run.h5", {**TABLES, "probes": {"p": {"field": "u", "x": [1.0, 2.0], "y": [2.0, 3.0]}}})
    assert hs.probes(path, "p")["values"].shape == (11, 2)
    with h5py.File(path, "r+") as file:
        del file["probes/p"][part]
        if values is not None:
            file["probes/p"][part] = values
    with pytest.raises(InputError, match=r"run\.h5: .*probes/p"):
        hs.probes(path, "p")


@pytest.mark.parametrize("changes, words", [
    ({"initial": {"u": "1/(x - x)"}}, "initial.u: the initial state is not finite in some cells"),
    ({"mask": {"solid": "x > -5"}}, "mask.solid: expected some cells that are not solid"),
])  # fmt: skip
def test_check_refuses_a_start_that_a_run_refuses(changes, words):
    with pytest.raises(InputError, match=words):
        report(foreseen(Decomposed.of(problem_of(**{**TABLES, **changes}), 1, 1)))


def test_receivers_among_solid_cells_and_members_with_steps_of_their_own_are_refused(tmp_path):
    probes = {"p": {"field": "u", "x": [2.0, 8.0], "y": [2.0, 6.0]}}
    masked = {**TABLES, "probes": probes, "mask": {"solid": "(x - 8)**2 + (y - 6)**2 < 9"}}
    refused = pytest.raises(InputError, match=r"probes\.p: .* number 1 at 8, 6 is among solid cells")
    with refused:
        file_of(tmp_path / "run.h5", masked)
    assert not (tmp_path / "run.h5").exists()
    with refused:  # `check`
        report(foreseen(Decomposed.of(problem_of(**masked), 1, 1)))
    ensemble = {**with_table(TABLES, "equation", D=0.1), "probes": probes, "ensemble": {"equation.D": [0.1, 0.2]}}
    with pytest.raises(InputError, match=r"probes: not available yet in an \[ensemble\] with time.cfl"):
        build(from_mapping({**ensemble, "time": {"end": 1.0, "cfl": 0.5}}, tmp_path))


@pytest.mark.parametrize("expression", (None, "D*u**2", "D*x*dx(u) + t"))
def test_members_record_what_they_record_alone(tmp_path, monkeypatch, expression):
    given = with_probes(("heat-3d", 2, "float32", "euler"))
    if expression:
        given["probes"]["c"] = {**given["probes"]["b"], "expression": expression}
        del given["probes"]["c"]["field"]
    given["numerics"]["kernel"] = "native"
    rates, calls = [0.7, 1.0, 0.8], counted_calls(monkeypatch, Probes)
    found = samples(file_of(tmp_path / "all.h5", {**given, "ensemble": {"equation.D": rates}}))
    assert max(calls) > 5
    for member, rate in enumerate(rates):
        alone = with_table(given, "equation", D=rate)
        for name, parts in samples(file_of(tmp_path / f"{member}.h5", alone)).items():
            steps, times, values = found[name]
            assert (steps == parts[0]).all() and (times == parts[1]).all(), name
            assert values[member].tobytes() == parts[2].tobytes() and np.ptp(values[:, -1]) > 0, name
    whole = hs.probes(tmp_path / "all.h5", "a")["values"]
    assert whole.dims == ("member", "time", "receiver") and whole.shape == (3, STEPS + 1, 9)
    assert whole["member"].values.tolist() == [0, 1, 2] and whole["D"].values.tolist() == rates
