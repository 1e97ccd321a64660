"""The mask in the output file, and how solid cells are drawn and told."""

import h5py
import numpy as np
import pytest
from malformed import GOOD
from support import hpcstencil

from postprocess.figures import SOLID, field_figure, value_limits
from postprocess.reader import read_view
from postprocess.selection import select

DISC = "(x - 3)**2 + (y - 3)**2 < 4*D/0.1"
INPUT = (
    GOOD
    + f'[numerics]\nkernel = "shift"\n[output]\nevery = 0.5\n[mask]\nsolid = "{DISC}"\n[checkpoint]\nevery_steps = 5\n'
)


def disc(scale=1.0):
    x, y = np.arange(8) + 0.5, np.arange(6) + 0.5
    return ((x[:, None] - 3) ** 2 + (y - 3) ** 2 < 4 * scale).astype(np.int8)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    (tmp_path / "input.toml").write_text(INPUT)

    def call(*arguments):
        status, out, err = hpcstencil(monkeypatch, capsys, *arguments)
        assert status == 0, err
        return out

    return call


def test_the_mask_is_stored_once_and_stays_through_a_resumed_run(run, tmp_path):
    run("run", "input.toml", "--quiet")
    for _ in range(2):
        with h5py.File(tmp_path / "input.h5") as file:
            solid = file["solid"]
            assert solid.dtype == np.int8 and [solid.dims[a][0].name for a in (0, 1)] == ["/x", "/y"]
            np.testing.assert_array_equal(solid[()], disc())
            assert solid.attrs["long_name"]
        assert list(read_view("input.h5").fields) == ["u"]
        run("run", "input.toml", "--resume", "--set", "time.end=1.5", "--quiet")
    assert len(read_view("input.h5").times) == 4
    assert f"mask           {disc().sum()} of 48 cells are solid" in run("info", "input.h5")
    assert (tmp_path / "input.xdmf").read_text().count("input.h5:/solid") == 4


def test_a_mask_from_a_file_is_stored_too(run, tmp_path):
    with h5py.File(tmp_path / "mask.h5", "w") as file:
        file["m"] = disc() * 3.5
    run("run", "input.toml", "--set", "mask.solid='mask.h5:m'", "--quiet")
    with h5py.File(tmp_path / "input.h5") as file:
        np.testing.assert_array_equal(file["solid"][()], disc())


@pytest.mark.parametrize("solid, expected", [(DISC, [disc(), disc(2.0)]), ("x < 2", None)])
def test_members_have_masks_of_their_own_where_they_differ(run, tmp_path, solid, expected):
    run("run", "input.toml", "--set", "ensemble={'equation.D'=[0.1, 0.2]}", "--set", f"mask.solid='{solid}'", "--quiet")
    with h5py.File(tmp_path / "input.h5") as file:
        assert file["solid"].shape == ((2, 8, 6) if expected else (8, 6))
        if expected:
            np.testing.assert_array_equal(file["solid"][()], expected)
    assert "cells are solid" in run("info", "input.h5")
    run("plot", "input.h5", "--slice", "member=1")


def test_solid_cells_are_drawn_grey_and_do_not_count_for_the_colours(run):
    run("run", "input.toml", "--quiet", "--set", "initial.u='2 + 0.1*sin(x)'")
    chosen = select(read_view("input.h5"))
    field, solid = field_figure(chosen).axes[0].images
    np.testing.assert_array_equal(np.isfinite(np.ma.filled(solid.get_array(), np.nan)), disc().T == 1)
    assert solid.get_cmap().colors == [SOLID]
    values = chosen.values()
    assert field.get_clim() == value_limits(values[disc() == 0]) and field.get_clim()[0] > 1.5 and values.min() == 0
    cut = select(read_view("input.h5"), slices={"y": 3.0})
    (line,) = field_figure(cut).axes[0].get_lines()
    np.testing.assert_array_equal(np.isnan(line.get_ydata()), disc()[:, 3] == 1)


@pytest.mark.parametrize("rhs", ["rhs={u='D*laplacian(u)', solid='u'}", "solid=1, rhs={u='D*solid*u'}"])
def test_with_a_mask_the_name_is_taken(run, monkeypatch, capsys, rhs):
    line = ("check", "input.toml", "--set", f"equation={{name='custom', D=0.1, {rhs}}}")
    status, _, err = hpcstencil(monkeypatch, capsys, *line)
    assert status == 2 and err.startswith("hpcstencil: mask: the output has the solid cells under the name 'solid'"), (
        err
    )
