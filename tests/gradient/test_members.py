"""Gradients of ensembles: each member gives the same bits as a single run; data per member; refusals."""

import math
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest
from gradients import members_from, sweep_of
from support import hpcstencil

import hpcstencil as hs
from hpcstencil.config.reader import from_mapping
from hpcstencil.gradient.verify import measured

RATES = [0.5, 0.8, 0.6]
CABLE = {"field": "u", "x": [0.25, 0.52, 1.31], "every_steps": 2}


def tables(**others):
    """Members differ in A, and so in the initial values of u; those of v and D are shared."""
    return {
        "grid": {"shape": [14], "upper": [1.4]},
        "equation": {"name": "custom", "D": 0.02, "A": 0.5, "rhs": {"u": "D*laplacian(u) - A*u*v", "v": "0.1*dx(u) - v**2"}},
        "initial": {"u": "1 + A*sin(5*x)", "v": "0.3*cos(4*x)"},
        "numerics": {"precision": "float64", "integrator": "ssprk2", "kernel": "shift"},
        "time": {"end": 0.05, "dt": 0.01},
        "probes": {"cable": CABLE},
        "objective": {"J": "0.5*sum((cable - 0.3)**2) + integral(u*v**2)"},
        "gradient": {"of": ["equation.D", "initial.u", "equation.A", "initial.v"]},
        "ensemble": {"equation.A": RATES},
        **others,
    }  # fmt: skip


def alone(given, member):
    given = {**given, "equation": {**given["equation"], "A": RATES[member]}}
    del given["ensemble"]
    return given


@pytest.mark.parametrize("cfl", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_gradient_is_the_sum_of_those_of_the_members(cfl):
    given = tables()
    if cfl:  # each member takes steps of its own
        given |= {"equation": {"name": "heat", "D": 0.1}, "ensemble": {"equation.D": RATES}, "probes": {}}
        given |= {"initial": {"u": "sin(5*x)"}, "gradient": {"of": ["initial.u", "equation.D"]}}
        given |= {"time": {"end": 0.05, "cfl": 0.4}, "objective": {"J": "integral(u**3)"}}
    members, plans = members_from(given).planned(lambda _: {})
    assert len({plan.steps for plan in plans}) == (3 if cfl else 1)
    total = members.total(lambda n, sweep: sweep(sweep.forward.initial_fields(), plans[n].states))
    values, numbers, arrays = [], {}, {}
    for member in range(3):
        one = (
            alone(given, member)
            if not cfl
            else {**given, "equation": {"name": "heat", "D": RATES[member]}, "ensemble": {}}
        )
        sweep = sweep_of(one)
        found = sweep(sweep.forward.initial_fields(), sweep.steps)
        values.append(found.value)
        for key, number in found.numbers.items():
            numbers.setdefault(key, []).append(number)
        for key, array in found.arrays.items():
            arrays.setdefault(key, []).append(np.asarray(array))
    assert total.value == math.fsum(values)
    own = {"equation.D"} if cfl else {"equation.A", "initial.u"}
    assert members.own == own
    for key, each in numbers.items():
        expected = each if key in own else math.fsum(each)
        assert np.array_equal(total.numbers[key], expected) and np.ptp(each) > 0, key
    for key, each in arrays.items():
        expected = np.stack(each) if key in own else (each[0] + each[1]) + each[2]
        assert total.blocks[key].tobytes() == expected.tobytes() and np.abs(expected).max() > 0, key


def test_from_python_and_by_the_command_it_is_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    with hs.Simulation(tables()) as sim:
        value, gradient = sim.value_and_gradient()
        Path("input.toml").write_text(sim.to_toml())
        u, v = sim.state["u"].values, sim.state["v"].values
        sim["u"], sim["v"] = u, v[0]  # per member, and shared: v is no expression any more, nor is u
        assert np.array_equal(sim.value_and_gradient()[1]["initial.u"], gradient["initial.u"])
        assert np.array_equal(sim.value_and_gradient()[1]["initial.v"], gradient["initial.v"])
        assert not np.array_equal(sim.value_and_gradient()[1]["equation.A"], gradient["equation.A"])
        sim["v"] = v
        per_member = sim.value_and_gradient()[1]["initial.v"]
        assert np.allclose(per_member.sum(0), gradient["initial.v"], rtol=1e-13) and per_member.shape == (3, 14)
    assert {key: np.shape(array) for key, array in gradient.items()} == {
        "equation.D": (), "equation.A": (3,), "initial.u": (3, 14), "initial.v": (14,),
    }  # fmt: skip
    status, out, err = hpcstencil(monkeypatch, capsys, "gradient", "input.toml")
    assert status == 0 and "3 members one after the other: 15 steps, 5 stored states" in err, err
    numbers = ", ".join(f"{number:.10g}" for number in gradient["equation.A"])
    assert f"equation.A            {numbers}" in out
    with h5py.File("input.gradient.h5") as file:
        assert file.attrs["objective"] == value
        assert from_mapping(tomllib.loads(file.attrs["input"]), Path("/")).ensemble == {"equation.A": tuple(RATES)}
        for key, array in gradient.items():
            assert np.array_equal(file[key][()], array), key


def test_remainders_are_of_second_order():
    members, plans = members_from(tables(), verified=True).planned(lambda _: {})
    found = measured(members, plans)
    assert found.transposed and max(found.remainders) > 1e-9
    assert all(abs(slope - 2) < 0.05 for slope in found.slopes), found.slopes


@pytest.mark.long
def test_initial_expressions_that_differ_have_derivatives_of_their_own():
    listed = {"initial.u": ["1 + A*sin(5*x)", "1 + A*cos(5*x)", "2 - A*x"]}
    given = tables(ensemble=listed, gradient={"of": ["equation.A", "initial.u"]})
    members, plans = members_from(given).planned(lambda _: {})
    total = members.total(lambda n, sweep: sweep(sweep.forward.initial_fields(), plans[n].states))
    found = []
    for text in listed["initial.u"]:
        one = {**given, "initial": {**given["initial"], "u": text}, "ensemble": {}}
        found.append((sweep := sweep_of(one))(sweep.forward.initial_fields(), 5).numbers["equation.A"])
    assert members.own == {"initial.u"} and total.numbers["equation.A"] == math.fsum(found)


def test_data_are_those_of_each_member(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = tables(objective={}, gradient={})
    with hs.Simulation(given) as sim:
        sim.run(output="run.h5")
    values = hs.probes("run.h5", "cable")["values"]
    assert values.shape == (3, 3, 3)
    misfit, target = {"J": "0.5*sum((cable - observed)**2)"}, {"J": "integral((u - target)**2)"}
    field = hs.open("run.h5")["u"].values[:, -1]
    shared = 0.5 * ((values.values - values.values[0]) ** 2).sum()
    for objective, expected in (
        ({**misfit, "data": {"observed": "run.h5:probes/cable/values"}}, 0.0),
        ({**misfit, "data": {"observed": values}}, 0.0),
        ({**misfit, "data": {"observed": values.values[0]}}, shared),
        ({**target, "data": {"target": "run.h5:u"}}, 0.0),
        ({**target, "data": {"target": field}}, 0.0),
        ({**target, "data": {"target": field[0]}}, 0.1 * ((field - field[0]) ** 2).sum()),
    ):
        probes = {"cable": CABLE} if "observed" in objective["data"] else {}
        with hs.Simulation(tables(objective=objective, probes=probes)) as sim:
            assert sim.value_and_gradient()[0] == pytest.approx(expected, rel=1e-12, abs=1e-300), objective
    two = tables(objective={**target, "data": {"target": "run.h5:u"}}, ensemble={"equation.A": [0.5, 0.6]}, probes={})
    for given, message in (
        (
            tables(objective={**misfit, "data": {"observed": values.values[:2]}}),
            "expected 3 samples of the 3 receivers",
        ),
        (two, r"'u' has 3 members, expected 2"),
    ):
        with hs.Simulation(given) as sim, pytest.raises(hs.InputError, match=f"objective.data.*: .*{message}"):
            sim.value_and_gradient()
    with pytest.raises(hs.InputError, match=r"objective.data.target: expected an array of the grid's shape"):
        hs.Simulation(tables(objective={**target, "data": {"target": field[:2]}}, probes={}))


def test_a_member_that_is_not_finite_is_named():
    sim = hs.Simulation(tables(probes={}, objective={"J": "log(integral(u) - 9)"}))
    with sim, pytest.raises(hs.NumericsError, match="member 0: objective: expected a finite value"):
        sim.value_and_gradient()
