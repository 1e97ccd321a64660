"""Reading, plotting and summarizing files that follow the contract; the pictures are checked by their data."""

import dataclasses
import errno
import subprocess
import sys
from pathlib import Path

import click
import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from output_files import AXES, TIMES, centres, truth, write_output
from PIL import Image

from hpcstencil.cli.info import info
from hpcstencil.cli.plot import plot
from hpcstencil.validation.errors import EnvironmentProblem, InputError
from postprocess import reader
from postprocess.convergence import save
from postprocess.figures import colour_scale, diagnostics_figure, field_figure, probes_figure
from postprocess.plot import (
    WriteProblem,
    movie_limits,
    parse_slices,
    plot_diagnostics,
    plot_field,
    plot_movie,
    plot_probes,
)
from postprocess.reader import FileProblem, Probes, RequestProblem, read_view
from postprocess.results import Result, result_figure
from postprocess.selection import cell_bounds, select
from postprocess.summary import last_range, summarize

SHAPES = {1: (7,), 2: (6, 4), 3: (6, 4, 5)}  # all different, so that a transposed array cannot pass


def write_checkpoint(path: Path, shape) -> Path:
    with h5py.File(path, "w") as file:
        file.attrs.update(kind="checkpoint", step=1000, time=12.5, complete=1, title="A test")
        file["v"] = truth(shape, 12.5)
        for i, length in enumerate(shape):
            file[AXES[i]] = centres(length)
    return path


@pytest.fixture(params=SHAPES, ids=lambda d: f"{d}d")
def output(request, tmp_path):
    return write_output(tmp_path / "run.h5", SHAPES[request.param])


@pytest.fixture
def plane(tmp_path):
    return write_output(tmp_path / "run.h5", SHAPES[2])


@pytest.fixture
def block(tmp_path):
    return write_output(tmp_path / "run.h5", SHAPES[3])


# --- reading -----------------------------------------------------------------------------------------------------


def test_view_holds_what_was_written(output):
    view = read_view(output)
    shape = view.fields["v"].shape
    assert (view.kind, view.title, view.complete, view.problems) == ("output", "A test", True, ())
    assert list(view.times) == list(TIMES) and list(view.steps) == [0, 10, 20]
    assert shape == SHAPES[len(shape)] and view.fields["v"].dims == tuple(AXES[: len(shape)])
    assert (view.fields["v"].units, view.fields["v"].long_name) == ("K", "temperature")
    for k, time in enumerate(TIMES):
        np.testing.assert_array_equal(view.read("v", k), truth(shape, time).astype(np.float32))


def test_fields_stand_in_the_order_of_the_equation(plane):
    with h5py.File(plane, "a") as file:
        file.copy("v", "a")
        file.attrs["fields"] = '["w", "v", "a"]'
    view = read_view(plane)
    assert list(view.fields) == ["v", "a"] and view.field().name == "v"


def test_an_ensemble_tells_its_members(tmp_path):
    path = tmp_path / "run.h5"
    with h5py.File(path, "w") as file:
        file.attrs.update(
            kind="output",
            input='[equation]\nname = "heat"\nD = 0.5\nk = 3\n[ensemble]\n"equation.D" = [4.0, 5.5, 6.0]\n'
            '[ensemble.initial]\nu = ["x", "y", "1"]\n',
        )
        file.update({"time": [0.0], "step": [0], "x": centres(7), "member": np.arange(3), "u": np.zeros((3, 1, 7))})
    text = summarize(path)
    assert "equation       heat (k = 3)" in text
    assert "members        3: equation.D = 4, 5.5, 6; initial.u = x, y, 1" in text
    assert select(read_view(path), slices={"member": 1}).place() == "member = 1 (D = 5.5)"
    for place in (9, 1.5, -1):
        with pytest.raises(RequestProblem, match=f"member={place:g} names none of the members 0 to 2"):
            select(read_view(path), slices={"member": place})


def test_diagnostics_are_cut_to_their_common_length(plane):
    diagnostics = read_view(plane).diagnostics
    assert {name: len(series) for name, series in diagnostics.items()} == {"time": 3, "step": 3, "mass": 3}


def test_checkpoint_has_one_snapshot(tmp_path):
    view = read_view(write_checkpoint(tmp_path / "run.checkpoint.000000001000.h5", SHAPES[3]))
    assert (view.kind, list(view.times), list(view.steps), view.complete) == ("checkpoint", [12.5], [1000], True)
    np.testing.assert_array_equal(view.read("v"), truth(SHAPES[3], 12.5))


def test_uncommitted_snapshot_is_ignored(tmp_path):
    path = write_output(tmp_path / "run.h5", SHAPES[2], extra=1, complete=0)
    view = read_view(path)
    assert len(view.times) == 3 and not view.complete and view.problems == ()
    np.testing.assert_array_equal(view.read("v"), truth(SHAPES[2], TIMES[-1]).astype(np.float32))
    with pytest.raises(IndexError):
        view.read("v", 3)


def test_field_shorter_than_time_is_told(plane):
    with h5py.File(plane, "r+") as file:
        file["v"].resize(2, 0)
    view = read_view(plane)
    assert len(view.times) == 2 and view.problems == ("/v has 2 snapshots where /time has 3.",)
    assert "sound          no: /v has 2" in summarize(plane)


def test_file_open_for_writing_is_read(plane):
    """A run holds its file open: reading neither fails nor disturbs it."""
    script = (
        "import h5py, sys\nwith h5py.File(sys.argv[1], 'r+') as file:\n file.flush()\n print('open', flush=True)\n"
        " sys.stdin.readline()\n file['v'].resize(4, 0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, plane], stdin=-1, stdout=-1, text=True) as writer:
        assert writer.stdout.readline() == "open\n"
        assert len(read_view(plane).times) == 3
        writer.communicate("\n", timeout=60)
        assert writer.returncode == 0


def test_between_two_cells_the_lower_one_is_taken(tmp_path):
    path = write_output(tmp_path / "run.h5", (6, 4))
    with h5py.File(path, "r+") as file:
        file["x"][:] = (np.arange(6) + 0.5) * (3 / 72)  # 0.0833 is between two of them, up to rounding
        middle = 2 * (3 / 72)
    assert select(read_view(path), slices={"x": middle}).fixed == {"x": 1}


def test_only_the_slice_is_read(block, monkeypatch):
    """The selection given to HDF5 fixes z, so that the whole array never leaves the disk."""
    asked = []
    original = h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda self, key: asked.append(key) or original(self, key))
    selection = select(read_view(block))
    asked.clear()
    assert selection.values().shape == (6, 4)
    assert asked == [(2, slice(None), slice(None), 2)]


DAMAGED = [  # content of a file, what its one sentence says
    (b"", "is empty"),
    (b"title = 'x'\n", "is not an HDF5 file"),
    (reader.SIGNATURE + b"\0" * 64, "cannot be opened as HDF5"),
]


@pytest.mark.parametrize("content, words", DAMAGED, ids=["empty", "text", "header"])
@pytest.mark.parametrize("function", [read_view, summarize, plot_field])
def test_what_is_no_hdf5_file_gives_one_sentence(tmp_path, content, words, function):
    path = tmp_path / "broken.h5"
    path.write_bytes(content)
    with pytest.raises(FileProblem) as caught:
        function(path)
    text = str(caught.value)
    assert words in text and str(path) in text and "\n" not in text and text.endswith(".")


def test_torn_file_points_to_the_newest_checkpoint(plane):
    for step in (1000, 2000):
        write_checkpoint(plane.with_name(f"run.checkpoint.{step:012d}.h5"), SHAPES[2])
    plane.write_bytes(plane.read_bytes()[: plane.stat().st_size // 2])
    with pytest.raises(FileProblem, match=r"is torn: .*run\.checkpoint\.000000002000\.h5"):
        read_view(plane)


def test_missing_file_directory_and_foreign_hdf5(tmp_path):
    with pytest.raises(FileProblem, match="does not exist"):
        read_view(tmp_path / "none.h5")
    with pytest.raises(FileProblem, match="is a directory"):
        read_view(tmp_path)
    (tmp_path / "plan.json").touch()
    with pytest.raises(FileProblem, match="for a sweep, use hpcstencil sweep collect"):
        read_view(tmp_path)
    with h5py.File(tmp_path / "table.h5", "w") as file:
        file.attrs["kind"] = "sweep"
    with pytest.raises(FileProblem, match=r"a table of `hpcstencil sweep collect`.*open table.csv"):
        read_view(tmp_path / "table.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = 1.0
    with pytest.raises(FileProblem, match="not one that hpcstencil wrote"):
        read_view(tmp_path / "other.h5")


def test_no_snapshot_yet(tmp_path):
    path = write_output(tmp_path / "run.h5", SHAPES[2], times=(), extra=1, complete=0)
    with pytest.raises(FileProblem, match="no finished snapshot: wait"):
        plot_field(path)
    assert "none finished" in summarize(path)
    write_output(path, SHAPES[2], times=(), extra=1)
    with pytest.raises(FileProblem, match="no finished snapshot: shorten its interval"):
        plot_field(path)


# --- choosing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "time, snapshot", [(None, 2), (0.0, 0), (0.2, 0), (0.3, 1), (0.87, 1), (0.88, 2), (1.6, 2), (-0.2, 0)]
)
def test_nearest_time(plane, time, snapshot):
    assert select(read_view(plane), time=time).snapshot == snapshot


def test_the_time_drawn_is_told_where_it_is_another(plane, capsys):
    figure = field_figure(select(read_view(plane), time=0.45))
    assert any("t = 0.5" in text.get_text() for text in figure.axes[0].texts)
    plot_field(plane, time=0.45)
    assert capsys.readouterr().err == "hpcstencil: t = 0.5 is drawn, the snapshot nearest to 0.45\n"
    plot_field(plane, time=0.5)
    assert capsys.readouterr().err == ""


def test_a_file_of_one_snapshot_has_one_time(tmp_path):
    view = read_view(write_output(tmp_path / "run.h5", SHAPES[2], times=(0.1 + 0.2,)))
    assert select(view, time=0.3).snapshot == 0
    with pytest.raises(RequestProblem, match="t = 0.3 alone"):
        select(view, time=0.2)


@pytest.mark.parametrize(
    "slices, dims, fixed",
    [
        ({}, ("x", "y"), {"z": 2}),  # the middle of z
        ({"z": 0.3}, ("x", "y"), {"z": 1}),
        ({"y": 0.99}, ("x", "z"), {"y": 3}),
        ({"x": 0.0, "z": 1.25}, ("y",), {"x": 0, "z": 4}),  # both ends of the domain
    ],
)
def test_slices(block, slices, dims, fixed):
    selection = select(read_view(block), slices=slices)
    assert (selection.dims, selection.fixed) == (dims, fixed)
    index = tuple(fixed.get(axis, slice(None)) for axis in AXES)
    np.testing.assert_array_equal(selection.values(), truth(SHAPES[3], 1.25).astype(np.float32)[index])


@pytest.mark.parametrize(
    "request_, words",
    [
        ({"field": "w"}, "has no field 'w', only v"),
        ({"field": "vv"}, "Did you mean 'v'?"),
        ({"field": "mass"}, "--diagnostics"),
        ({"time": float("nan")}, "finite number"),
        ({"time": 1.7}, "outside of what"),
        ({"time": -0.3}, "t = 0 to 1.25"),
        ({"slices": {"q": 0.5}}, "no axis 'q' to slice, only x, y, z"),
        ({"slices": {"z": 2.0}}, "outside of the domain, 0 to 1.25"),
        ({"slices": {"x": 0.5, "y": 0.5, "z": 0.5}}, "single point"),
    ],
)
def test_wrong_requests(block, request_, words):
    with pytest.raises(RequestProblem) as caught:
        select(read_view(block), **request_)
    assert words in str(caught.value)


def test_parse_slices():
    assert parse_slices(["z=0.5", "x = -1e-3"]) == {"z": 0.5, "x": -1e-3}
    for texts, words in ((["z"], "such as z=0.5"), (["z=a"], "not 'z=a'"), (["z=1", "z=2"], "twice")):
        with pytest.raises(RequestProblem, match=words):
            parse_slices(texts)


def test_cell_bounds():
    assert cell_bounds(centres(40, 0.0, 0.015)) == (0.0, pytest.approx(0.6))
    assert cell_bounds(np.array([2.0])) == (1.5, 2.5)


# --- pictures ----------------------------------------------------------------------------------------------------


def test_image_shows_x_along_the_horizontal(plane):
    axes = field_figure(select(read_view(plane))).axes[0]
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array(), truth(SHAPES[2], 1.25).T)  # rows of an image are y
    assert image.origin == "lower" and list(image.get_extent()) == [0.0, 1.5, 0.0, 1.0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")
    # A cell drawn where its coordinates say: value at x = 1.375, y = 0.125 is that of cell (5, 0).
    i, j = axes.transData.transform((1.375, 0.125))
    assert image.get_cursor_data(type("Event", (), {"x": i, "y": j})()) == 501.25


def test_image_has_equal_aspect_label_and_time(plane):
    figure = field_figure(select(read_view(plane), time=0.5))
    axes = figure.axes[0]
    box = axes.get_window_extent()
    assert box.width / box.height == pytest.approx(1.5)
    assert "temperature [K]" in {child.get_ylabel() for child in axes.child_axes}
    assert [text.get_text() for text in axes.texts] == ["A test", "t = 0.5"]


def test_slice_is_named(block):
    figure = field_figure(select(read_view(block), slices={"z": 0.3}))
    assert figure.axes[0].texts[1].get_text() == "t = 1.25,  z = 0.375"


def test_line(tmp_path):
    axes = field_figure(select(read_view(write_output(tmp_path / "run.h5", SHAPES[1])), time=0.5)).axes[0]
    x, y = axes.lines[0].get_data()
    np.testing.assert_array_equal(x, centres(7))
    np.testing.assert_array_equal(y, truth(SHAPES[1], 0.5))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "temperature [K]") and axes.get_xlim() == (0.0, 1.75)


@pytest.mark.parametrize(
    "limits, expected",
    [
        ((0.0, 2.0), ("viridis", 0.0, 2.0)),
        ((-1.0, 2.0), ("RdBu_r", -2.0, 2.0)),
        ((-0.1, 2.0), ("viridis", -0.1, 2.0)),  # a small undershoot is no wave
        ((2.0, 2.0 + 1e-7), ("viridis", 1.99, 2.01)),  # constant to rounding
        ((0.0, 0.0), ("viridis", -0.5, 0.5)),
        ((np.nan, np.nan), ("viridis", 0.0, 1.0)),
    ],
)
def test_colour_scale(limits, expected):
    name, low, high = colour_scale(limits, np.dtype(np.float32))
    assert name == expected[0] and (low, high) == pytest.approx(expected[1:], rel=1e-6)


def test_values_that_are_not_finite_are_counted_and_do_not_spoil_the_colours(tmp_path):
    def spoiled(shape, time):
        values = truth(shape, time)
        values[0, 0], values[1, 1] = np.nan, np.inf
        return values

    path = write_output(tmp_path / "run.h5", SHAPES[2], values=spoiled)
    axes = field_figure(select(read_view(path))).axes[0]
    assert axes.images[0].get_clim() == (11.25, 531.25)
    assert "2 values not finite" in axes.texts[1].get_text()
    assert last_range(read_view(path), "v") == (11.25, 531.25, 2)


def test_diagnostics_panels(plane):
    figure = diagnostics_figure(read_view(plane))
    (axes,) = figure.axes
    np.testing.assert_array_equal(axes.lines[0].get_data(), ([0.0, 1.0, 2.0], [1.0, 2.0, 4.0]))
    assert axes.get_title(loc="left") == "mass" and axes.get_xlabel() == "t"


@pytest.mark.parametrize("change, title, height", [(1e-17, "mass", 0.0003), (1e-9, "mass − 0.03", 1.1e-9)])
def test_a_diagnostic_that_changes_by_rounding_alone_is_drawn_as_constant(plane, change, title, height):
    series = {"time": np.array([0.0, 1.0]), "mass": np.array([0.03, 0.03 + change])}
    (axes,) = diagnostics_figure(dataclasses.replace(read_view(plane), diagnostics=series)).axes
    assert axes.get_title(loc="left") == title and np.diff(axes.get_ylim()) == pytest.approx(height, rel=0.01)


def test_an_error_that_begins_at_rounding_does_not_stretch_the_axis(plane):
    errors = np.array([1e-17, 2e-4, 5e-1])
    series = {"time": np.arange(3.0), "step": np.arange(3), "error": errors}
    (axes,) = diagnostics_figure(dataclasses.replace(read_view(plane), diagnostics=series)).axes
    assert axes.get_yscale() == "log" and 1e-5 < axes.get_ylim()[0] < 2e-4 and axes.get_ylim()[1] > 5e-1
    series["error"] = np.array([1e-17, 1e-15, 1e-1])  # grows all the time
    (axes,) = diagnostics_figure(dataclasses.replace(read_view(plane), diagnostics=series)).axes
    assert axes.get_ylim()[0] < 1e-17


def test_a_picture_that_fails_leaves_the_old_one(plane, monkeypatch):
    picture = plot_field(plane)
    before = picture.read_bytes()

    def fill_the_disk(figure, path, **options):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fill_the_disk)
    with pytest.raises(WriteProblem, match=r"\.png could not be written: No space left on device\.$"):
        plot_field(plane)
    assert picture.read_bytes() == before
    assert {path.name for path in plane.parent.iterdir()} == {plane.name, picture.name}


@pytest.mark.parametrize("count", [3, 8, 9])
def test_the_legend_names_the_members_as_a_picture_of_one_does(tmp_path, count):
    path = tmp_path / "run.h5"
    with h5py.File(path, "w") as file:
        file.attrs.update(kind="output", input=f'[equation]\nD = 1\n[ensemble]\n"equation.D" = {[0.5] * count}\n')
        file.update({"time": [0.0], "step": [0], "x": centres(7), "member": range(count), "u": np.zeros((count, 1, 7))})
        file.update({"diagnostics/time": [0.0], "diagnostics/step": [0], "diagnostics/mass": np.zeros((count, 1))})
    figure = diagnostics_figure(read_view(path))
    (axes,) = figure.axes
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert names == [f"member = {member} (D = 0.5)" for member in range(count) if count <= 8]
    assert axes.get_title(loc="left") == "mass"


@pytest.mark.parametrize("places, ends", [({"x": centres(10)}, (0.0, 2.5)), ({"x": centres(10)[::-1]}, (-0.5, 9.5))])
def test_all_columns_of_probes_are_equally_wide(plane, places, ends):
    probes = Probes("u", "1", places, np.array([0.0, 0.2, 0.4]))
    view = dataclasses.replace(read_view(plane), probes={"line": probes})
    (image,) = probes_figure(view, "line", np.ones((3, 10))).axes[0].images
    assert image.get_extent() == pytest.approx([*ends, 0.5, -0.1])


def test_equal_samples_of_probes_are_drawn_with_different_dashes(plane):
    probes = Probes("u", "1", {"x": centres(5)}, np.array([0.0, 0.2, 0.4]))
    view = dataclasses.replace(read_view(plane), probes={"line": probes})
    axes = probes_figure(view, "line", np.ones((3, 5)), member=2).axes[0]
    assert axes.get_title(loc="left") == "member = 2"
    assert len({str(line._dash_pattern) for line in axes.lines}) == 5
    assert not axes.spines["right"].get_visible()


def test_the_legend_of_probes_stands_beside_the_axes_with_positions_in_full(plane):
    places = {"x": np.array([80000.0, 123456.0, 4649776.0]), "y": np.array([70000.0, 0.25, -1.5])}
    view = dataclasses.replace(read_view(plane), probes={"gauges": Probes("u", "1", places, np.array([0.0, 0.2]))})
    figure = probes_figure(view, "gauges", np.ones((2, 3)))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["(80000, 70000)", "(123456, 0.25)", "(4649776, -1.5)"]
    assert legend.get_title().get_text() == "x, y"
    assert legend.get_window_extent().x0 > figure.axes[0].get_window_extent().x1


@pytest.mark.parametrize("errors", [(9e-5, 4e-5, 2e-5), (2.9e-5, 2.4e-5, 2.2e-5), (1e-3, 1e-9, 1e-14)])
def test_errors_have_labels_in_any_range(tmp_path, monkeypatch, errors):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    study = {"title": "space", "label": "cells", "sizes": (32, 48, 64), "errors": errors, "observed": 2, "promised": 2}
    save(tmp_path / "a.png", "costs $5", [study, study])
    drawn[0].draw_without_rendering()
    axes = drawn[0].axes[0]
    low, high = axes.get_ylim()
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    assert sum(bool(tick.label1.get_text()) for tick in ticks if low <= tick.get_loc() <= high) >= 2


def test_the_colour_bar_of_a_result_is_as_high_as_the_picture():
    places = {"x": centres(8), "y": centres(6)}
    figure = result_figure(Result("a", None, "misfit", {}, {"u": np.eye(8, 6)}, places, {}))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    picture, bar = axes.get_window_extent(), axes.child_axes[0].get_window_extent()
    assert (bar.y0, bar.y1) == pytest.approx((picture.y0, picture.y1)) and 0 < bar.x0 - picture.x1 < 0.1 * picture.width
    assert figure._suptitle.get_window_extent().x0 == pytest.approx(picture.x0, abs=2)


def test_a_short_name_stands_above_the_colour_bar(tmp_path):
    path = write_output(tmp_path / "run.h5", SHAPES[2])
    with h5py.File(path, "r+") as file:
        file["v"].attrs.update(long_name="v", units="1")
    (bar,) = field_figure(select(read_view(path))).axes[0].child_axes
    bar.figure.draw_without_rendering()
    name, box = bar.yaxis.label.get_window_extent(), bar.get_window_extent()
    assert bar.get_ylabel() == "v" and name.y0 >= box.y1 and box.x0 - 2 <= name.x0 <= box.x1


def test_what_a_file_without_diagnostics_or_probes_advises(tmp_path):
    path = write_output(tmp_path / "run.h5", SHAPES[1], diagnostics=False)
    with pytest.raises(RequestProblem, match=r"holds no diagnostics: add a table \[diagnostics\] to the input"):
        plot_diagnostics(path)
    with pytest.raises(RequestProblem, match=r"has no probes 'a': add a table \[probes.NAME\] to the input"):
        plot_probes(path, "a")
    with h5py.File(path, "r+") as file:
        file.attrs["stream"] = "{}"
    for request in (plot_diagnostics, lambda path: plot_probes(path, "a")):
        with pytest.raises(RequestProblem, match="it is the file of a stream, so plot the run's own output instead"):
            request(path)
    with pytest.raises(RequestProblem, match="it is a checkpoint, so plot the run's own output instead"):
        plot_diagnostics(write_checkpoint(tmp_path / "run.checkpoint.000000001000.h5", SHAPES[1]))


def test_files_written(output, tmp_path):
    assert plot_field(output) == tmp_path / "run.v.png"
    assert plot_diagnostics(output) == tmp_path / "run.diagnostics.png"
    assert plot_field(output, output=tmp_path / "new" / "a") == tmp_path / "new" / "a.png"
    for path in (tmp_path / "run.v.png", tmp_path / "new" / "a.png"):
        assert Image.open(path).size > (200, 200)
    with pytest.raises(RequestProblem, match=r"use one of .*\.png"):
        plot_field(output, output=output)


def test_pictures_of_other_times_and_places_have_other_default_names(block, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    expected = {
        (): "run.v.png",
        ("--time", "0.5"): "run.v.t0.5.png",
        ("--slice", "x=1.4"): "run.v.x1.4.png",
        ("--time", "1", "--slice", "z=0.2", "--slice", "y=1e-1"): "run.v.t1.z0.2.y0.1.png",
        ("--movie", "--slice", "z=0.2"): "run.v.z0.2.gif",
    }
    for arguments, name in expected.items():
        assert run(plot, block, *arguments).stdout == f"{tmp_path / name}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"run.h5", *expected.values()}


def test_movie_has_a_frame_per_snapshot_and_fixed_colours(output, tmp_path):
    view = read_view(output)
    low, high = movie_limits(select(view))
    everything = np.stack([select(view).values(k) for k in range(3)])
    assert (low, high) == (everything.min(), everything.max())
    assert plot_movie(output, output=tmp_path / "a.gif") == tmp_path / "a.gif"
    movie = Image.open(tmp_path / "a.gif")
    frames = []
    for k in range(movie.n_frames):
        movie.seek(k)
        frames.append(np.asarray(movie.convert("RGB")))
    assert len(frames) == 3 and tuple(frames[0][0, 0]) == (255, 255, 255)
    assert not np.array_equal(frames[0], frames[2])  # the time at least


def test_movie_requests(plane, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert plot_movie(plane) == tmp_path / "run.v.gif"
    with pytest.raises(RequestProblem, match=".mp4 or .gif"):
        plot_movie(plane, output=tmp_path / "a.png")
    result = run(plot, plane, "--movie", "-o", tmp_path / "a.mp4")
    assert isinstance(result.exception, EnvironmentProblem) and "needs the program ffmpeg" in str(result.exception)


def test_mathematics_that_is_none_is_shown_as_it_stands(plane):
    with h5py.File(plane, "r+") as file:
        file.attrs["title"] = r"costs $5 and $\frac$"
        file["v"].attrs["long_name"] = r"$\theta$"
    assert plot_field(plane).exists()


# --- summary and commands ----------------------------------------------------------------------------------------


def test_summary(plane):
    rows = dict(line.split(maxsplit=1) for line in summarize(plane).splitlines())
    assert rows["kind"] == "output" and rows["title"] == "A test" and rows["equation"] == "heat (D = 0.5)"
    assert rows["grid"] == "6 x 4 cells: x 0 to 1.5, dx 0.25; y 0 to 1, dy 0.25"
    assert rows["field"] == "v (temperature) [K]  float32  last: 1.25 to 531.25, all finite"
    assert rows["snapshots"] == "3: t = 0 (step 0) to t = 1.25 (step 20)"
    assert rows["diagnostics"] == "mass (3 values each)"
    assert rows["decomposition"] == "processes 2 x 1, devices 3"
    assert rows["versions"] == "format 1, hpcstencil 0.1.0"
    assert (rows["complete"], rows["sound"]) == ("yes", "yes")


def test_summary_of_an_unfinished_run_says_what_to_do(tmp_path):
    path = write_output(tmp_path / "other.h5", SHAPES[2], complete=0)
    text = summarize(path)
    assert "complete       no: the run has not reached its end" in text
    assert f"continue it with `hpcstencil run INPUT.toml --output {path} --resume`" in text
    with h5py.File(path, "r+") as file:
        file.attrs["stream"] = "{}"
    text = summarize(path)
    assert "complete       no" in text and "--resume" not in text and "info` of the run's own output" in text


def test_summary_reads_in_pieces(block, monkeypatch):
    whole = summarize(block)
    monkeypatch.setattr("postprocess.summary.CHUNK", 1)
    assert summarize(block) == whole


def run(command: click.Command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_commands(block, tmp_path):
    result = run(plot, block, "--field", "v", "--time", 0.6, "--slice", "y=0.5", "-o", tmp_path / "a.png")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'a.png'}\n") and (tmp_path / "a.png").exists()
    assert run(plot, block, "--diagnostics").stdout == f"{tmp_path / 'run.diagnostics.png'}\n"
    assert run(info, block).stdout == summarize(block) + "\n"


@pytest.mark.parametrize(
    "arguments",
    [["--field", "w"], ["--slice", "z"], ["--slice", "z=9"], ["--movie", "--time", "1"], ["--diagnostics", "--movie"]],
)
def test_bad_usage_is_an_input_error_and_writes_nothing(block, arguments):
    result = run(plot, block, *arguments)
    assert isinstance(result.exception, InputError) and "\n" not in str(result.exception)
    assert list(block.parent.iterdir()) == [block]


def test_unreadable_file_is_an_input_error(tmp_path):
    for command in (plot, info):
        assert isinstance(run(command, tmp_path / "none.h5").exception, InputError)


def test_unwritable_folder_is_an_environment_problem(plane):
    result = run(plot, plane, "-o", plane / "a.png")  # a file stands where the folder should be
    assert isinstance(result.exception, EnvironmentProblem)


@pytest.mark.parametrize("command", [plot, info], ids=["plot", "info"])
def test_only_rank_0_speaks_and_writes(command, plane, monkeypatch):
    monkeypatch.setattr(f"hpcstencil.cli.{command.name}.environment_rank", lambda: 1)
    result = run(command, plane)
    assert (result.exit_code, result.output, list(plane.parent.iterdir())) == (0, "", [plane])


def test_scripts(plane, tmp_path):
    def script(*arguments):
        return subprocess.run([sys.executable, "-m", *map(str, arguments)], capture_output=True, text=True, timeout=120)

    done = script("postprocess.plot", plane, "-o", tmp_path / "a.png")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'a.png'}\n")
    assert script("postprocess.summary", plane).stdout == summarize(plane) + "\n"
    failed = script("postprocess.summary", tmp_path / "none.h5")
    assert failed.returncode == 2 and failed.stderr.count("\n") == 1


def test_postprocess_knows_neither_jax_nor_mpi_nor_the_solver():
    """Of the package it knows how its files are read safely, and how texts are printed, and nothing of the solver.

    A journal says which process wrote it, so reading one needs to know this host.
    """
    known = ["", ".io", ".io.dataset_names", ".io.file_names", ".io.hdf5_validation", ".io.rollback_journal", ".runtime",
             ".runtime.hosts", ".validation", ".validation.errors", ".validation.printable",
             ".validation.toml_text"]  # fmt: skip
    code = (
        "import sys, postprocess.plot, postprocess.summary\n"
        "print([m for m in ('jax', 'mpi4jax', 'mpi4py.MPI', 'matplotlib.pyplot') if m in sys.modules],\n"
        "      sorted(m for m in sys.modules if m.startswith('hpcstencil')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"[] {['hpcstencil' + name for name in known]}\n", done.stderr


def test_help_loads_nothing_heavy():
    code = (
        "import sys, hpcstencil.cli.plot, hpcstencil.cli.info\n"
        "print([m for m in ('h5py', 'matplotlib', 'jax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
