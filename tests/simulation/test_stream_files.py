"""Streams of an input, held against snapshots of every step of the same run."""

import os
import re
import resource

import h5py
import jax
import numpy as np
import pytest
from probed import ON_THREADS, counted_calls, file_of, with_probes
from support import problem_of

import hpcstencil as hs
from hpcstencil.checkpoint.paths import list_checkpoints
from hpcstencil.config.reader import from_mapping
from hpcstencil.numerics.grid import Grid, chosen_cells
from hpcstencil.problem.build import build
from hpcstencil.problem.warnings import warnings_of
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.signals import Request
from hpcstencil.simulation import run
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.restart import Options
from hpcstencil.simulation.streams import output_streams
from hpcstencil.simulation.streams.output_streams import FurtherOutput
from hpcstencil.simulation.streams.stream import Stream
from hpcstencil.validation.errors import EnvironmentProblem, InputError, NumericsError, StoppedEarly
from postprocess.figures import field_figure
from postprocess.plot import plot_field
from postprocess.selection import select
from postprocess.summary import read_view, summarize

SPOT = "exp(-2*(x - 1)**2 - 3*(y - 0.7)**2)"
TABLES = {
    "grid": {"shape": [21, 14], "upper": [2.1, 1.4]},
    "equation": {"name": "gray_scott", "D_u": 0.02, "D_v": 0.01},
    "initial": {"u": f"1 - 0.5*{SPOT}", "v": f"0.25*{SPOT} + 0.01*noise(3)"},
    "boundary": {"y": {"dirichlet": "0.1*t"}}, "numerics": {"kernel": "shift"}, "time": {"end": 1.0, "dt": 0.03},
}  # fmt: skip
STREAMS = {
    "part": {"every": 0.1, "fields": ["v"], "region": {"x": [0.3, 1.2]}},
    "line": {"every_steps": 7, "region": {"y": 0.5}},
    "coarse": {"every_steps": 4, "stride": [3, 2], "region": {"x": [0.2, 2.0]}},
    "derived": {"every_steps": 5, "expressions": {"w": "u*v", "slope": "dx(u) + x + t"}, "stride": 2},
    "mean": {"every": 0.25, "average": True, "stride": 2},
    "mean_of": {"every_steps": 9, "average": True, "expressions": {"w": "u*v"}},
}


@pytest.fixture
def started(tmp_path):
    """Run the input in this process, by default with a snapshot of every step."""

    def started(name, streams=STREAMS, request=None, devices=1, options=None, **changes):
        tables = {**TABLES, "output": {"every_steps": 1, "streams": streams}, **changes}
        decomposed = Decomposed.of(build(from_mapping(tables, tmp_path)), 1, devices)
        options = Options(tmp_path / name, quiet=True, **(options or {}))
        run.run(decomposed, options, OneProcess(), jax.local_devices()[:devices], request or Request())
        return tmp_path / name

    started.folder = tmp_path
    return started


def of(path, stream):
    return path.with_name(f"{path.stem}.{stream}.h5")


def contents(path):
    with h5py.File(path) as file:
        assert file.attrs["complete"] == 1
        return {name: item[()] for name, item in file.items() if isinstance(item, h5py.Dataset)}


def assert_same(one, other):
    a, b = contents(one), contents(other)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes(), name


def bits(array):
    return array.dtype, array.shape, array.tobytes()


# ---- cells -----------------------------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("region, stride, indices", [
    ({}, 1, range(10)),
    ({}, 3, range(0, 10, 3)),
    ({"x": (0.05, 0.35)}, 1, range(4)),  # both ends are centres
    ({"x": (0.06, 0.34)}, 1, range(1, 3)),
    ({"x": (0.06, 0.95)}, 4, (4, 8)),
    ({"x": (0.06, 0.08)}, 1, ()),
    ({"x": 0.0}, 1, (0,)),
    ({"x": 1.0}, 1, (9,)),
    ({"x": 0.3}, 1, (2,)),  # the lower of two that are as near
    ({"x": 0.31}, 5, (3,)),  # a plane is a plane whatever the stride
])  # fmt: skip
def test_chosen_cells(region, stride, indices):
    grid = Grid((10,), (0.0,), (1.0,))
    chosen = chosen_cells(grid, region, stride)
    expected = grid.centres(0)[list(indices)]
    assert bits(chosen.centres(0)) == bits(expected)
    for cuts in ((0, 10), (0, 1, 4, 10), (0, 3, 6, 9, 10)):
        found, follow = [], 0
        for start, stop in zip(cuts, cuts[1:], strict=False):
            ((own,), ((first, last),)) = chosen.part([(start, stop)])
            assert last == first or first == follow
            follow = max(follow, last)
            found += grid.centres(0)[start:stop][own].tolist()
            assert last - first == len(grid.centres(0)[start:stop][own])
        assert found == expected.tolist()


# ---- records ---------------------------------------------------------------------------------------------------------

CELLS = {
    "part": np.s_[:, 3:12, :],
    "line": np.s_[:, :, 4:5],
    "coarse": np.s_[:, 3:20:3, ::2],
    "derived": np.s_[:, ::2, ::2],
    "mean": np.s_[:, ::2, ::2],
    "mean_of": np.s_[:, :, :],
}


def means(whole, values, steps, fixed=0.03):
    """The means of float32 values after each step, from one of the steps to the next."""
    result, first = [], 0
    for last in steps:
        total, duration = np.zeros(values.shape[1:]), 0.0
        for n in range(first + 1, last + 1):
            dt = whole["time"][n] - whole["time"][n - 1]
            dt = fixed if abs(dt - fixed) < 1e-9 * fixed else dt
            total += np.multiply(values[n], dt, dtype=np.float64)
            duration += dt
        result.append(total / duration)
        first = last
    return np.array(result).astype(values.dtype)


@pytest.mark.parametrize("devices, kernel", [(1, "shift"), (2, "shift"), (1, "native")])
def test_streams_hold_what_snapshots_of_every_step_do(started, devices, kernel):
    path = started("run.h5", devices=devices, numerics={"kernel": kernel})
    whole = contents(path)
    whole["w"] = whole["u"] * whole["v"]
    for stream, cells in CELLS.items():
        found = contents(of(path, stream))
        steps = found["step"]
        assert bits(found["time"]) == bits(whole["time"][steps])
        assert bits(found["x"]) == bits(whole["x"][cells[1]])
        fields = {name for name in ("u", "v", "w", "slope") if name in found}
        assert fields == set(STREAMS[stream].get("fields", STREAMS[stream].get("expressions", ("u", "v"))))
        for name in fields - {"slope"}:
            expected = whole[name][cells]
            expected = means(whole, expected, steps) if stream.startswith("mean") else expected[steps]
            assert bits(found[name]) == bits(expected), (stream, name)
    derived = contents(of(path, "derived"))
    u, x = whole["u"][derived["step"]].astype(float), whole["x"]
    slope = (np.roll(u, -1, 1) - np.roll(u, 1, 1)) / (2 * (x[1] - x[0])) + x[:, None] + derived["time"][:, None, None]
    assert derived["slope"] == pytest.approx(slope[CELLS["derived"]], abs=1e-5)
    assert derived["step"].tolist() == list(range(0, 35, 5))
    assert contents(of(path, "part"))["step"].tolist() == [round(m * 0.1 / 0.03) for m in range(10)] + [33]
    assert contents(of(path, "mean"))["step"].tolist() == [8, 17, 25, 33]
    assert contents(of(path, "mean_of"))["step"].tolist() == [9, 18, 27]


def test_streams_change_no_steps(started):
    """Steps that follow the solution, or that land on the outputs; streams take the first step at or past their time."""
    tables = {
        "equation": {"name": "burgers", "nu": 0.05}, "initial": {"u": "1 + 0.5*sin(2*pi*x/2.1)", "v": "0.3*cos(pi*y)"},
        "time": {"end": 0.5, "cfl": 0.4}, "boundary": {},
    }  # fmt: skip
    streams = {"now": {"every": 0.07}, "mean": {"every": 0.1, "average": True}}
    path = started("run.h5", streams, **tables)
    for name, output in (("plain.h5", {"every_steps": 1}), ("rare.h5", {})):
        other = started(name, output=output | ({"streams": streams} if name == "rare.h5" else {}), **tables)
        assert bits(contents(other)["u"][-1]) == bits(contents(path)["u"][-1])
    whole, now, mean = (contents(each) for each in (path, of(path, "now"), of(path, "mean")))
    first = [int(np.argmax(whole["time"] >= m * 0.07 - 1e-9)) for m in range(8)]
    assert now["step"].tolist() == first and bits(now["u"]) == bits(whole["u"][first])
    assert mean["step"].tolist() == [int(np.argmax(whole["time"] >= m * 0.1 - 1e-9)) for m in range(1, 6)]
    assert bits(mean["u"]) == bits(means(whole, whole["u"], mean["step"], fixed=0.0))
    assert_same(of(path, "mean"), of(path.with_name("rare.h5"), "mean"))


@pytest.mark.parametrize("average", [True, False], ids=["mean", "copy"])
@pytest.mark.parametrize(("row", "threads"), ON_THREADS)
def test_what_calls_record_is_what_calls_that_end_there_have(tmp_path, monkeypatch, row, threads, average):
    """Native code copies fields and expressions after some steps of a call, and adds them up after each step for averages."""
    for module in ("step_functions", "stencil_values"):
        monkeypatch.setattr(f"hpcstencil.backends.native.{module}.threads_for", lambda _: threads)
    given = with_probes(row, probes={})
    given["numerics"]["kernel"] = "native"
    fields = [name for name in problem_of(**given).changing if name.isidentifier()]
    half, last = given["grid"]["upper"][-1] / 2, "xyz"[len(given["grid"]["shape"]) - 1]
    streams = {
        "all": {"every_steps": 7, "fields": fields},
        "part": {
            "every_steps": 9,
            "fields": fields[-1:],
            "stride": 2,
            "region": {"x": [0.2, given["grid"]["upper"][0]]},
        },
        "squares": {"every_steps": 6, "expressions": {f"{name}_2": f"{name}**2" for name in fields}, "stride": 3},
        "again": {
            "every_steps": 5,
            "expressions": {f"{name}_2": f"{name}**2" for name in fields},
            "region": {last: half},
        },
        "slope": {
            "every_steps": 8,
            "expressions": {"w": f"(x + t)*d{last}({fields[0]})"},
            "region": {last: [0.1, half]},
        },
    }
    streams["plane"] = {"every": 4 * given["time"]["dt"], "fields": fields[:1], "region": {last: half}}
    streams = {name: {**each, "average": average} for name, each in streams.items()}
    given["output"] = {"streams": streams}
    calls = counted_calls(monkeypatch, FurtherOutput)
    found = file_of(tmp_path / "within.h5", given)
    if_they_end = 1 if average else 4  # steps of a call
    assert max(calls) > if_they_end
    calls.clear()
    monkeypatch.setattr("hpcstencil.backends.native.step_functions.region_records_of", lambda *given: None)
    single = file_of(tmp_path / "single.h5", given)
    assert max(calls) == if_they_end
    for name in streams:
        assert_same(of(found, name), of(single, name))
        assert len(contents(of(found, name))["step"]) > 3


@pytest.mark.parametrize("devices, kernel", [(1, "native"), (2, "shift")])
def test_members_have_the_streams_of_single_runs(started, monkeypatch, devices, kernel):
    rates, numerics = [0.03, 0.045, 0.06], {"kernel": kernel}
    members = {"ensemble": {"equation.F": rates}, "numerics": numerics, "output": {"streams": STREAMS}}
    calls = counted_calls(monkeypatch, FurtherOutput)
    path = started("members.h5", devices=devices, **members)
    assert max(calls) > 1 or kernel == "shift"
    for n, rate in enumerate(rates):
        single = started(f"{n}.h5", equation={**TABLES["equation"], "F": rate}, numerics=numerics)
        for stream in STREAMS:
            found, expected = contents(of(path, stream)), contents(of(single, stream))
            assert found["F"].tolist() == rates
            for name, values in expected.items():
                own = found[name][n] if values.ndim > 2 else found[name]
                assert bits(own) == bits(values), (stream, name)
    with hs.open(of(path, "derived")) as view:
        assert view["slope"].dims == ("member", "time", "x", "y") and view["F"].dims == ("member",)


def test_fields_on_faces_have_the_lower_faces_of_the_cells(started):
    tables = {
        "equation": {"name": "shallow_water", "g": 1.0}, "initial": {"h": f"1 + 0.1*{SPOT}"}, "time": {"end": 0.3, "dt": 0.03},
        "boundary": {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": 0.0}}},
    }  # fmt: skip
    streams = {
        "part": {"every_steps": 2, "region": {"x": [0.5, 1.0], "y": 0.3}, "stride": 2},
        "derived": {
            "every_steps": 2,
            "expressions": {"ke": "u**2", "at_centre": "mean_x(u)"},
            "region": {"x": [0.5, 1.0]},
        },
    }
    path = started("run.h5", streams, **tables)
    whole, found, derived = (contents(each) for each in (path, of(path, "part"), of(path, "derived")))
    assert whole["u"].shape[1] == 22
    for name in ("h", "u", "v"):
        assert bits(found[name]) == bits(whole[name][::2, 6:10:2, 2:3])
    assert bits(found["x_face"]) == bits(whole["x_face"][6:10:2])
    assert bits(derived["ke"]) == bits(whole["u"][::2, 5:10] ** 2)
    centre = np.float32(0.5) * (whole["u"][::2, 5:10] + whole["u"][::2, 6:11])
    assert derived["at_centre"] == pytest.approx(centre, abs=1e-7)
    with h5py.File(of(path, "derived")) as file:
        assert [file[name].dims[1][0].name for name in ("ke", "at_centre")] == ["/x_face", "/x"]


def test_expressions_are_0_in_solid_cells(started):
    mask = {"solid": "(x - 1)**2 + (y - 0.7)**2 < 0.1"}
    path = started("run.h5", {"one": {"every_steps": 10, "expressions": {"w": "1/u"}}}, mask=mask)
    w, solid = contents(of(path, "one"))["w"], contents(path)["solid"]
    assert solid.any() and np.isfinite(w).all() and (w[:, solid != 0] == 0).all() and (w[:, solid == 0] != 0).all()


@pytest.mark.parametrize("devices", [1, 2])
def test_a_stream_marks_the_solid_cells_in_its_region(devices, started):
    mask = {"solid": "(x - 1)**2 + (y - 0.7)**2 < 0.1"}
    streams = {
        "part": {"every": 0.3, "region": {"x": [0.3, 1.2]}, "stride": [2, 1]},
        "line": {"every": 0.3, "region": {"y": 0.7}},
    }
    path = started("run.h5", streams, mask=mask, devices=devices)
    solid = contents(path)["solid"]
    assert np.array_equal(contents(of(path, "part"))["solid"], solid[4:12:2]) and solid[4:12:2].any()
    assert np.array_equal(contents(of(path, "line"))["solid"], solid[:, 6:7])
    assert select(read_view(of(path, "line"))).solid().any()


def test_means_that_are_never_due_are_warned_of(started, capsys):
    """As after a restart, from which the first mean counts."""
    path = started("run.h5", {"m": {"every": 0.9, "average": True}}, time={"end": 0.9, "dt": 0.03})
    assert "warning" not in capsys.readouterr().err
    first = list_checkpoints(path)[-1]
    started(
        "more.h5", {"m": {"every": 0.9, "average": True}}, options={"restart": first}, time={"end": 1.5, "dt": 0.03}
    )
    assert "warning: output.streams.m: no mean was due in this run" in capsys.readouterr().err


def test_records_before_the_solution_is_lost_are_kept(started):
    """Those of expressions too, some of whose values are never finite."""
    tables = {
        "equation": {"name": "custom", "rhs": {"u": "u**2 + 0*laplacian(u)"}}, "boundary": {}, "numerics": {"kernel": "native"},
        "initial": {"u": "1.0*(x > 1) + 0.1*(x < 0.5)"}, "time": {"end": 3.0, "dt": 0.01},
    }  # fmt: skip
    streams = {"u": {"every_steps": 3}, "inverse": {"every_steps": 3, "expressions": {"w": "1/u"}}}
    with pytest.raises(NumericsError, match="the first record that is not finite is that of step"):
        started("run.h5", output={"streams": streams}, **tables)
    for stream in streams:
        with h5py.File(of(started.folder / "run.h5", stream)) as file:
            steps = file["step"][()]
            assert 90 < steps[-1] < 130 and steps.tolist() == list(range(0, steps[-1] + 1, 3))


# ---- interruptions ---------------------------------------------------------------------------------------------------


class StopAt(Stream):
    """Asks the run to stop at one step."""

    step = 20
    every_steps = 1

    def __init__(self, output, schedule):
        pass

    def write(self, state):
        if state.clock.step == StopAt.step:
            StopAt.asked.number = 10  # SIGUSR1


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"time": {"end": 1.0, "cfl": 0.15}},
        {"time": {"end": 1.0, "tolerance": 1e-7}, "numerics": {"kernel": "shift", "precision": "float64"}},
        {"ensemble": {"equation.F": [0.03, 0.05]}},
    ],
    ids=["dt", "cfl", "tolerance", "members"],
)
def test_a_stopped_run_goes_on_with_its_streams(started, monkeypatch, tables):
    """Means too, in the middle of which it stopped; on other devices."""
    whole = started("whole.h5", **tables)
    with monkeypatch.context() as changed:
        changed.setattr(run, "WRITTEN", (*run.WRITTEN, StopAt))
        StopAt.asked = Request()
        with pytest.raises(StoppedEarly):
            started("run.h5", request=StopAt.asked, **tables)
    path = started("run.h5", options={"resume": True}, devices=2, **tables)
    for stream in STREAMS:
        assert_same(of(path, stream), of(whole, stream))


@pytest.mark.parametrize(("held", "last"), [(0, 28), (output_streams.HELD, 24)])
def test_a_killed_run_repeats_its_streams(started, monkeypatch, tmp_path, held, last):
    """Records later than the checkpoint are kept if the run repeats them, else cut. The kill loses those that were held."""
    monkeypatch.setattr(output_streams, "HELD", held)
    whole, checkpoint = started("whole.h5"), {"every_steps": 11, "keep": 9}

    class Killed(StopAt):
        def write(self, state):
            if state.clock.step == StopAt.step:
                raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        before = run.WRITTEN
        changed.setattr(run, "WRITTEN", (*before, Killed))
        changed.setattr(StopAt, "step", 30)
        with pytest.raises(KeyboardInterrupt):
            started("run.h5", checkpoint=checkpoint)
        StopAt.asked = Request()
        changed.setattr(run, "WRITTEN", (*before, StopAt))
        changed.setattr(StopAt, "step", 24)
        with pytest.raises(StoppedEarly):
            started("run.h5", options={"resume": True}, request=StopAt.asked, checkpoint=checkpoint)
        with h5py.File(tmp_path / "run.coarse.h5") as file:
            assert file["step"][()].tolist() == list(range(0, last + 1, 4))
    path = started("run.h5", options={"resume": True}, checkpoint=checkpoint)
    for stream in STREAMS:
        assert_same(of(path, stream), of(whole, stream))


@pytest.mark.parametrize("end", [1.0, 0.9])
def test_a_run_with_a_later_end_has_the_streams_of_a_whole_one(started, end):
    """Its last step, which was shortened, is a record that is written again; 30 steps make a time that is not 0.9."""
    assert 30 * 0.03 != 0.9
    streams = {**STREAMS, "each": {"every_steps": 1, "region": {"y": 0.1}}}
    whole = started("whole.h5", streams, time={"end": 1.6, "dt": 0.03})
    started("run.h5", streams, time={"end": end, "dt": 0.03})
    path = started("run.h5", streams, options={"resume": True}, time={"end": 1.6, "dt": 0.03})
    for stream in streams:
        assert_same(of(path, stream), of(whole, stream))


def test_a_stream_that_a_continued_run_adds_begins_there(started):
    whole = started("whole.h5", time={"end": 1.5, "dt": 0.03})
    started("run.h5", {})
    path = started("run.h5", options={"resume": True}, time={"end": 1.5, "dt": 0.03})
    found, expected = contents(of(path, "line")), contents(of(whole, "line"))
    assert found["step"].tolist() == [33, 35, 42, 49] and expected["step"].tolist() == [0, 7, 14, 21, 28, 35, 42, 49]
    assert bits(found["u"][1:]) == bits(expected["u"][-3:])


def test_the_file_of_another_run_is_not_continued(started):
    of(started("other.h5", initial={**TABLES["initial"], "u": "2 + x"}), "line").rename(of(started("run.h5"), "line"))
    with pytest.raises(InputError, match=r"initial.u: .*run\.line\.h5 was made with another value"):
        started("run.h5", options={"resume": True}, time={"end": 1.5, "dt": 0.03})


def test_a_restarted_run_writes_new_files(started):
    whole = started("whole.h5", checkpoint={"every_steps": 20})
    path = started("branch.h5", options={"restart": whole.with_name("whole.checkpoint.000000000020.h5")})
    found, expected = contents(of(path, "line")), contents(of(whole, "line"))
    assert found["step"].tolist() == [20, 21, 28] and bits(found["u"][1:]) == bits(expected["u"][3:])
    assert contents(of(path, "mean_of"))["step"].tolist() == [27]


@pytest.mark.parametrize("changed, words", [
    ({"region": {"y": 0.6}}, "output.streams.line: .* was begun with another region or stride"),
    ({"fields": ["u"]}, "output.streams.line: .* was begun with other fields, expressions or average"),
    ({"average": True}, "output.streams.line: .* was begun with other fields, expressions or average"),
])  # fmt: skip
def test_a_continued_stream_is_of_the_same_cells(started, changed, words):
    path = started("run.h5")
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    streams = {**STREAMS, "line": {**STREAMS["line"], **changed}}
    with pytest.raises(InputError, match=words):
        started("run.h5", streams, options={"resume": True}, time={"end": 1.5, "dt": 0.03})
    assert before == {file.name: file.read_bytes() for file in path.parent.iterdir()}


def test_files_that_are_there_are_refused(started, tmp_path):
    path = started("run.h5")
    path.unlink()
    for checkpoint in list_checkpoints(path):
        checkpoint.unlink()
    with pytest.raises(
        InputError, match=r"run.part.h5: exists already; use --overwrite .* another output.streams.part.path"
    ):
        started("run.h5")
    with pytest.raises(
        InputError, match=r"output.streams.part: .*run.part.h5 does not belong to this run; choose another path"
    ):
        started("run.h5", options={"resume": True})
    assert not path.exists()
    assert_same(of(started("run.h5", options={"overwrite": True}), "part"), of(started("other.h5"), "part"))
    (tmp_path / "plane.h5").write_text("something else")
    with pytest.raises(InputError, match=r"plane.h5: exists already, and is not an HDF5 file; remove it"):
        started("new.h5", {"a": {"every": 0.1, "path": str(tmp_path / "plane.h5")}})
    assert not (tmp_path / "new.h5").exists()


# ---- what reads them -------------------------------------------------------------------------------------------------


def test_pictures_and_summaries_of_streams(started, tmp_path):
    path = started("run.h5", {**STREAMS, "row": {"every_steps": 7, "region": {"x": 1.0}}})
    assert select(read_view(of(path, "row"))).dims == ("y",) and select(read_view(of(path, "line"))).dims == ("x",)
    assert select(read_view(of(path, "coarse"))).dims == ("x", "y")
    assert plot_field(of(path, "row")).exists()
    (bar,) = field_figure(select(read_view(of(path, "derived")), "slope")).axes[0].child_axes
    assert bar.get_ylabel() == "slope"  # not its expression
    said = summarize(of(path, "line"))
    assert re.search(r"grid +21 x 1 cells: x 0 to 2.1, dx 0.1; y 0.45\n", said) and "complete       yes" in said
    assert "mean over time of u" in summarize(of(path, "mean")) and "output (stream mean, means)" in summarize(
        of(path, "mean")
    )


def test_more_streams_than_files_may_be_open_are_told(started):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    streams = {f"s{n}": {"every_steps": 10, "region": {"x": 0.3}} for n in range(200)}
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 250, hard))
    try:
        with pytest.raises(
            EnvironmentProblem, match=r"Too many open files; raise the limit .*ulimit -n.* fewer streams"
        ):
            started("run.h5", streams)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_mean_that_is_due_after_the_end_is_warned_of():
    streams = {
        "late": {"every": 1.5, "average": True},
        "later": {"every_steps": 40, "average": True},
        "last": {"every": 1.0, "average": True},
        "copies": {"every": 2.0},
    }
    late, later = warnings_of(problem_of(**TABLES, output={"streams": streams}))
    assert late.startswith("output.streams.late: its first mean is due at t = 1.5, after time.end = 1: expect a file")
    assert "output.streams.later: its first mean is due at t = 1.2," in later
