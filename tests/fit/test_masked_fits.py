"""Fits beside solid cells, whose values have no effect and so no bounds."""

import numpy as np
import pytest
from support import hpcstencil

import hpcstencil as hs

INPUT = """
[grid]
shape = [12]
[equation]
name = "heat"
D = {D}
[initial]
u = "1 + 0.1*x"
[mask]
solid = {solid}
surface = {{ value = 0.5 }}
[numerics]
integrator = "euler"
precision = "float64"
[time]
end = 0.5
dt = 0.1
[objective]
J = "integral((u - 1.2)**2)"
[gradient]
of = ["{of}"]
[fit]
steps = 3
lower = {{ "{of}" = {bound} }}
"""
FITS = {
    "a number": ("0.2", '"abs(x - 4) < 1"', "equation.D", "0.05"),
    "an array": ('"D.npy"', '"abs(x - 4) < 1"', "equation.D", "0.1"),
    "an array of solid cells": ("0.2", '"solid.npy"', "initial.u", '"0.5 + 0.01*x"'),
}


@pytest.mark.parametrize("D, solid, of, bound", FITS.values(), ids=FITS)
def test_bounds_hold_in_the_fluid(tmp_path, monkeypatch, capsys, D, solid, of, bound):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    x = np.arange(12) + 0.5
    np.save("solid.npy", abs(x - 4) < 1)
    np.save("D.npy", np.full(12, 0.2))
    (tmp_path / "input.toml").write_text(INPUT.format(D=D, solid=solid, of=of, bound=bound))
    status, _, err = hpcstencil(monkeypatch, capsys, "fit", "input.toml")
    assert status == 0, err
    with hs.open("input.fit.h5") as found:
        assert found["objective"][-1] < found["objective"][0]
        least = 0.5 + 0.01 * x if of == "initial.u" else float(bound)
        values = np.broadcast_to(found[of].values, 12)
        assert (values >= least)[abs(x - 4) > 1].all()
        if of == "initial.u":
            assert not values[abs(x - 4) < 1].any()
