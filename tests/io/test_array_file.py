"""Arrays of the grid's shape in NumPy files and images; datasets are tested with the mask that they serve."""

import numpy as np
import pytest
from PIL import Image
from support import hpcstencil, problem_of, simulation_of

from hpcstencil.io.array_file import ArrayFile
from hpcstencil.problem.warnings import warnings_of
from hpcstencil.validation.errors import InputError

SHAPE = (7, 5)
SOLID = np.zeros(SHAPE, bool)
SOLID[1, 0] = SOLID[2, 3] = SOLID[6, 4] = True  # without symmetry


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The solid cells in several files of the working directory."""
    monkeypatch.chdir(tmp_path)
    np.save("solid.npy", SOLID)
    rows = np.where(SOLID, 0, 255).astype(np.uint8).T[::-1]  # an image's rows run downwards
    Image.fromarray(rows).save("grey.png")
    transparent = np.zeros((*rows.shape, 4), np.uint8)
    transparent[..., 3] = 255 - rows
    Image.fromarray(transparent).save("transparent.png")
    return tmp_path


@pytest.mark.parametrize("name", ["solid.npy", "grey.png", "transparent.png"])
def test_a_file_gives_the_cells_that_it_shows(folder, name):
    file = ArrayFile.of(name)
    assert np.array_equal(file.read([(0, 7), (0, 5)], SHAPE), SOLID)
    assert np.array_equal(file.read([(2, 7), (3, 4)], SHAPE), SOLID[2:7, 3:4])


@pytest.mark.parametrize("name", ["solid.npy", "grey.png"])
def test_a_mask_takes_it(folder, name):
    problem = problem_of(
        grid={"shape": list(SHAPE)}, equation={"name": "heat"}, initial={"u": "1"}, mask={"solid": name}
    )
    simulation = simulation_of(problem)
    u = simulation.get(simulation.initial_fields(), problem.fields)["u"]
    assert np.array_equal(u == 0, SOLID)


def test_a_mask_without_solid_cells_is_warned_of(folder):
    np.save("none.npy", np.zeros(SHAPE))
    tables = {"grid": {"shape": list(SHAPE)}, "equation": {"name": "heat"}, "initial": {"u": "1"}}
    (warning,) = warnings_of(problem_of(**tables, mask={"solid": "none.npy"}))
    assert warning.startswith("mask.solid: no cell is solid")
    assert warnings_of(problem_of(**tables, mask={"solid": "solid.npy"})) == []
    (warning,) = warnings_of(problem_of(**tables, mask={"solid": "x > 100"}))
    assert warning.startswith("mask.solid: no cell is solid, since all its values are 0")
    assert warnings_of(problem_of(**tables, mask={"solid": "x < 2"})) == []


@pytest.mark.parametrize("name, words", [
    ("input.npy", "expected a file of numpy.save.*another kind of file"), ("input.png", "expected a PNG image"),
    ("other.npy", r"shape \(5, 7\), expected \(7, 5\): it must be on the same grid$"),
    ("series.npy", r"shape \(9,\), expected \(7, 5\).*, or write { series = ..., dt = ... } for samples in time$"),
    ("other.png", r"shape \(5, 7\), expected \(7, 5\)"),
    ("objects.npy", "real numbers"), ("photo.png", "expected a PNG image"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(folder, name, words):
    for text in ("input.npy", "input.png"):
        (folder / text).write_text("no array")
    np.save("other.npy", SOLID.T)
    np.save("series.npy", np.zeros(9))
    Image.fromarray(np.zeros((7, 5), np.uint8)).save("other.png")
    np.save("objects.npy", np.array([[None]]))
    Image.fromarray(np.zeros((5, 7), np.uint8)).save("photo.png", format="JPEG")
    with pytest.raises(InputError, match=words):
        ArrayFile.of(name).read([(0, 7), (0, 5)], SHAPE)


def test_other_texts_name_no_file():
    assert ArrayFile.of("x < 0.5") is None and ArrayFile.of("a.h5") is None
    assert str(ArrayFile.of("a/b.h5:c")) == "a/b.h5:c" and str(ArrayFile.of("b.npy")) == "b.npy"


def test_check_draws_the_solid_cells(folder, monkeypatch, capsys):
    text = 'grid = { shape = [7, 5], upper = [7.0, 10.0] }\nequation.name = "heat"\ntime.end = 1\nmask.solid = "grey.png"\n'
    (folder / "input.toml").write_text(text)
    status, out, _ = hpcstencil(monkeypatch, capsys, "check", "input.toml")
    assert status == 0 and "solid cells           8.57 %, drawn" in out
    assert "\n......#\n..#....\n.......\n.......\n.#.....\n" in out
    (folder / "grey.png").write_text("no image")
    status, _, err = hpcstencil(monkeypatch, capsys, "check", "input.toml")
    assert status == 2 and "mask.solid: " in err and "expected a PNG image" in err
