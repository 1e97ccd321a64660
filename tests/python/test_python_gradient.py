"""sim.value_and_gradient(), and the program of docs/gradients.md."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import hpcstencil as hs

ROOT = Path(__file__).parents[2]
TABLES = {
    "grid": {"shape": [12], "upper": [1.2]},
    "equation": {"name": "custom", "D": np.linspace(0.01, 0.02, 12), "A": 0.5, "rhs": {"u": "div_grad(D, u) + A*u"}},
    "initial": {"u": "A*sin(2*pi*x/1.2)"},
    "numerics": {"kernel": "shift", "precision": "float64", "integrator": "ssprk2"},
    "time": {"end": 0.1, "dt": 0.01},
    "objective": {"misfit": "integral((u - target)**2)", "data": {"target": np.linspace(0, 1, 12)}},
    "gradient": {"of": ["initial.u", "equation.D", "equation.A"], "checkpoints": 3},
}  # fmt: skip


def value(**changed):
    tables = {**TABLES, "equation": {**TABLES["equation"], **changed}}
    with hs.Simulation(tables) as sim:
        return sim.value_and_gradient()[0]


def test_the_gradient_is_that_of_finite_differences():
    with hs.Simulation(TABLES) as sim:
        found, gradient = sim.value_and_gradient()
        assert list(gradient) == TABLES["gradient"]["of"] and sim.steps == 0
        h, cell = 1e-6, np.eye(12)[4]
        over_d = (value(D=TABLES["equation"]["D"] + h * cell) - value(D=TABLES["equation"]["D"] - h * cell)) / (2 * h)
        assert gradient["equation.D"][4] == pytest.approx(over_d, rel=1e-6)
        over_a = (value(A=0.5 + h) - value(A=0.5 - h)) / (2 * h)  # as the growth rate, and in the initial values
        assert gradient["equation.A"] == pytest.approx(over_a, rel=1e-6)
        again, same = sim.value_and_gradient()
        assert again == found and np.array_equal(same["initial.u"], gradient["initial.u"])
        start = np.array(sim["u"])
        sim["u"] = start + h * cell
        above, of_values = sim.value_and_gradient()
        sim["u"] = start - h * cell
        below, _ = sim.value_and_gradient()
        assert gradient["initial.u"][4] == pytest.approx((above - below) / (2 * h), rel=1e-6)
        # The initial values no longer depend on A.
        from_initial = float((gradient["initial.u"] * start / 0.5).sum())
        assert of_values["equation.A"] == pytest.approx(gradient["equation.A"] - from_initial, rel=1e-4)
        sim.step(1)
        with pytest.raises(hs.InputError, match="it has taken 1 steps"):
            sim.value_and_gradient()


def test_states_on_disk_give_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    on_disk = {**TABLES, "gradient": {**TABLES["gradient"], "storage": "disk"}, "output": {"path": "run.h5"}}
    direction = {"initial.u": 1.0, "equation.A": 0.5}
    with hs.Simulation(TABLES) as sim, hs.Simulation(on_disk) as other:
        expected, found = sim.value_and_gradient(), other.value_and_gradient()
        assert found[0] == expected[0] and all(np.array_equal(found[1][key], expected[1][key]) for key in expected[1])
        expected, found = sim.hessian_product(direction), other.hessian_product(direction)
        assert all(np.array_equal(found[key], expected[key]) for key in expected)
        assert os.listdir() == []
        Path("run.gradient.state.checkpoint.000000000002.h5").touch()
        with pytest.raises(hs.InputError, match="exists already, .* remove run.gradient.state.checkpoint"):
            other.value_and_gradient()


def test_the_steps_after_a_gradient_are_those_without_one():
    with hs.Simulation(TABLES) as sim, hs.Simulation(TABLES) as other:
        sim.value_and_gradient()
        sim.run()
        other.run()
        assert np.array_equal(sim["u"], other["u"])


def test_data_of_another_shape_are_refused():
    objective = {"misfit": "integral((u - target)**2)", "data": {"target": np.zeros(11)}}
    with (
        pytest.raises(hs.InputError, match=r"objective.data.target: .*shape"),
        hs.Simulation({**TABLES, "objective": objective}) as sim,
    ):
        sim.value_and_gradient()


def test_the_program_of_the_page_finds_the_initial_state(monkeypatch):
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "gradients.md").read_text(), re.DOTALL)
    monkeypatch.chdir(ROOT)
    names = {}
    for program in programs:
        exec(program, names)
    x = (np.arange(32) + 0.5) / 32
    exact = np.sin(np.pi * x)[:, None] * np.sin(np.pi * x)
    assert np.abs(np.array(names["sim"]["u"]) - exact).max() < 0.005
    # J is quadratic in u, and its minimum is 0 there: H u = -dJ/du at u = 0.
    names["sim"]["u"] = 0.0
    _, gradient = names["sim"].value_and_gradient()
    assert np.allclose(
        names["product"]["initial.u"], -gradient["initial.u"], rtol=0, atol=1e-6 * np.abs(gradient["initial.u"]).max()
    )
    assert not os.path.exists("initial_state.gradient.h5")
