"""The inputs in inputs/gradients find what their data were made with."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from support import hpcstencil

INPUTS = Path(__file__).parents[2] / "inputs" / "gradients"


@pytest.fixture
def found(tmp_path, monkeypatch, capsys):
    """The file of a fit of an input, open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already

    def run(name, *options):
        status, _, err = hpcstencil(monkeypatch, capsys, "fit", INPUTS / f"{name}.toml", *options)
        assert status == 0, err
        return h5py.File(f"{name}.fit.h5")

    return run


def test_the_sources_of_heat(found):
    with found("heat_source") as file:
        s, x, y = file["initial.s"][:], file["x"][:][:, None], file["y"][:]
        assert file.attrs["end"].startswith("converged")
    exact = np.exp(-10 * ((x - 1.2) ** 2 + (y - 1.9) ** 2)) + 0.7 * np.exp(-10 * ((x - 2.7) ** 2 + (y - 1.1) ** 2))
    assert s.min() == 0.0 and s.sum() == pytest.approx(exact.sum(), rel=0.03)
    assert np.abs(s - exact).max() < 0.2  # the peaks are flatter
    for half, place in ((slice(0, 20), (1.2, 1.9)), (slice(20, 40), (2.7, 1.1))):
        weight = s[half] / s[half].sum()
        assert float((weight * x[half]).sum()) == pytest.approx(place[0], abs=0.05)
        assert float((weight * y).sum()) == pytest.approx(place[1], abs=0.05)


@pytest.mark.long
def test_the_time_course_of_a_heater(found):
    with found("heater") as file:
        s, t = file["equation.s"][:], file["equation.s.time"][:]
        assert file.attrs["end"].startswith("converged") and [*file["equation.s"].dims[0].keys()] == ["equation.s.time"]
    assert s.min() >= 0.0
    assert np.abs(s - (np.exp(-8 * (t - 1) ** 2) + 0.6 * np.exp(-20 * (t - 2.6) ** 4))).max() < 0.08


@pytest.mark.long
def test_the_layers_of_the_ground(found):
    with found("layered_model", "--set", "fit.steps=8") as file, h5py.File(INPUTS / "layered_model.hdf5") as data:
        c, x, y = file["equation.c"][:], file["x"][:][:, None], file["y"][:]
        model, guess = data["model"][:], data["guess"][:]
        assert file.attrs["objective"] < 0.06 * file["history/objective"][0]
    lit = (x > 0.2) & (x < 1.0) & (y > 0.1) & (y < 0.6)
    assert np.abs(c - model)[lit].mean() < 0.5 * np.abs(guess - model)[lit].mean()


@pytest.mark.long
def test_the_rates_of_gray_scott(found):
    with found("spots") as file:
        assert file["equation.F"][()] == pytest.approx(0.037, abs=5e-5)
        assert file["equation.k"][()] == pytest.approx(0.060, abs=1e-5)
        assert file.attrs["objective"] == pytest.approx(0.02**2, rel=0.05)  # nothing but the noise is left
