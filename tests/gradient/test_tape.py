"""Reverse sweeps with a tape give the same bits as with states, in any number of groups and after interruptions; their plan."""

import re
from contextlib import nullcontext
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from gradients import attempt, bytes_of, in_memory, members_from, without_tapes
from support import hpcstencil, problem_of, simulation_of

from hpcstencil.adjoint import plan as plan_module
from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.plan import first_on_tape
from hpcstencil.adjoint.tape import with_tape
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.reader import from_mapping
from hpcstencil.gradient.forward_steps import ForwardSteps
from hpcstencil.validation.errors import InputError

WAVE = {
    "grid": {"shape": [41, 30], "upper": [4.1, 3.0]},
    "equation": {"name": "wave", "c": 1.0},
    "initial": {"u": "exp(-4*(x - 1)**2 - 4*(y - 2)**2)"},
    "boundary": {"y": {"dirichlet": 0.0}},
    "numerics": {"integrator": "leapfrog", "order": 4},
    "time": {"dt": 0.01, "end": 0.404},  # the last step is shorter
    "objective": {"J": "integral(u**3)"},
    "gradient": {"of": ["equation.c", "initial.u"]},
}
SHOT = {"name": "acoustic", "c": 1.3, "source": 2.0, "xs": 0.6, "ys": 0.4, "f0": 20.0, "t0": 0.03}
CABLE = {"cable": {"field": "p", "x": [0.3, 2.0], "y": [0.4, 1.0], "every_steps": 3}}
GRAY_SCOTT = {
    **WAVE,
    "grid": {"shape": [40, 33]},
    "equation": {"name": "gray_scott"},
    "boundary": {},
    "initial": {"u": "1 - 0.3*sin(x)", "v": "0.2 + 0.1*cos(y)"},
    "numerics": {"integrator": "euler"},
    "time": {"dt": 0.5, "end": 20.0},
    "gradient": {"of": ["initial.v", "equation.F", "equation.k"]},
}
RECEIVERS = {
    **WAVE,
    "equation": SHOT,
    "initial": {"p": "0.2*sin(x)"},
    "probes": CABLE,
    "objective": {"J": "sum(cable**3 + t*cable)"},
    "gradient": {"of": ["equation.c"]},
}
SERIES = {
    **WAVE,
    "equation": {
        **{key: value for key, value in SHOT.items() if key not in ("f0", "t0")},
        "source": {"series": "samples.npy", "dt": 0.03},
    },
    "initial": {"p": "0.2*sin(x)"},
    "objective": {"J": "integral(p**3)"},
    "gradient": {"of": ["equation.c", "equation.source"]},
}
PROBLEMS = {
    "waves": WAVE,
    "operators in the objective": {
        **WAVE,
        "objective": {"J": "integral(gradient_squared(u)) + mean(u**3*laplacian(u)) + max(dx(u) - 0.1*u)"},
    },
    "open ends, operators in the objective": {
        **WAVE,
        "grid": {"shape": [50]},
        "boundary": {"x": "open"},
        "numerics": {"integrator": "leapfrog"},
        "initial": {"u": "exp(-(x - 25)**2)"},
        "objective": {"J": "integral(dx(u)**2) + max(laplacian(u))"},
        "time": {"dt": 0.1, "end": 4.0},
        "gradient": {"of": ["equation.c"]},
    },
    "waves on a line, periodic": {
        **WAVE,
        "grid": {"shape": [300]},
        "boundary": {},
        "initial": {"u": "sin(x/9)"},
        "numerics": {"integrator": "leapfrog", "precision": "float64"},
    },
    "receivers beside a sponge": {
        **RECEIVERS,
        "boundary": {"x": {"sponge": {"width": 0.9, "strength": 9.0}}, "y": {"dirichlet": 0.0}},
    },
    "time series": SERIES,
    "members": {
        **WAVE,
        "equation": {key: value for key, value in SHOT.items() if key != "xs"},
        "initial": {"p": "0.2*sin(x)"},
        "ensemble": {"equation.xs": [0.6, 1.7, 2.5]},
        "objective": {"J": "integral(p**3)"},
        "gradient": {"of": ["equation.c"]},
    },
    "Gray-Scott": GRAY_SCOTT,
    "Gray-Scott, 3-D": {
        **GRAY_SCOTT,
        "grid": {"shape": [24, 17, 20]},
        "numerics": {"integrator": "euler", "precision": "float64"},
        "time": {"dt": 0.5, "end": 6.0},
    },
    "values in operands": {
        **WAVE,
        "grid": {"shape": [32, 20, 17], "upper": [3.2, 2.0, 1.7]},
        "equation": {"name": "custom", "a": 0.3, "rhs": {"u": "v", "v": "(1 + a*u)*laplacian(u)"}},
        "time": {"dt": 0.01, "end": 0.1},
        "gradient": {"of": ["initial.u"]},
    },
    "receivers in a CPML": {
        **RECEIVERS,
        "boundary": {axis: {"cpml": {"width": 0.9, "speed": 1.3}} for axis in "xy"},
        "gradient": {"of": ["equation.c", "initial.p"]},
    },
    "stages, receivers in a CPML": {
        **RECEIVERS,
        "boundary": {"x": {"cpml": {"width": 0.9, "speed": 1.3}}, "y": {"dirichlet": 0.0}},
        "numerics": {"integrator": "rk4", "order": 4},
    },
    "stages, time series": {**SERIES, "numerics": {"integrator": "ssprk3", "precision": "float64"}},
    "steps of a fraction of the stable one": {**WAVE, "time": {"cfl": 0.3, "end": 0.404}},
    "stages, steps of a fraction of the stable one": {
        **WAVE,
        "equation": {"name": "heat", "D": 0.2},
        "numerics": {"integrator": "rk4"},
        "time": {"cfl": 0.3, "end": 0.1},
        "gradient": {"of": ["equation.D"]},
    },
    "stages, values in operands": {
        **WAVE,
        "equation": {"name": "custom", "a": 0.3, "rhs": {"u": "laplacian(u + a*u**2)"}},
        "boundary": {"x": {"dirichlet": 0.1}, "y": {"robin": {"a": 1.0, "b": 0.5, "value": 0.2}}},
        "numerics": {"integrator": "rk4"},
        "time": {"dt": 0.001, "end": 0.03},
        "gradient": {"of": ["initial.u"]},
    },
    "super time stepping in 3-D": {
        **WAVE,
        "grid": {"shape": [24, 17, 20]},
        "equation": {"name": "heat", "D": 0.2},
        "boundary": {"z": {"dirichlet": 1.0}},
        "numerics": {"integrator": "rkl2", "stages": 5},
        "time": {"dt": 0.5, "end": 6.0},
        "gradient": {"of": ["equation.D"]},
    },
    "beside solid cells, receivers": {
        **RECEIVERS,
        "mask": {"solid": "(x - 2)**2 + y**2 < 0.3"},
        "numerics": {"integrator": "leapfrog"},
    },
    "values in an operand with an operator": {
        **WAVE,
        "equation": {"name": "custom", "a": 0.3, "rhs": {"u": "v", "v": "laplacian(u + a*u*laplacian(u))"}},
        "time": {"dt": 0.001, "end": 0.04},
        "gradient": {"of": ["initial.u"]},
    },
    "the whole right-hand side would be a value": {
        **WAVE,
        "equation": {"name": "custom", "rhs": {"u": "exp(-u)"}},
        "numerics": {"integrator": "euler"},
        "gradient": {"of": ["initial.u"]},
    },
}


def swept(tables, with_tape=True):
    """The members of an input, with or without a tape."""
    with nullcontext() if with_tape else without_tapes():
        members = members_from(tables, kernel="native")
    assert {sweep.adjoint.tape is not None for sweep in members.sweeps} == {with_tape}
    return members


def in_groups(members, size):
    """The same members with room for the values of a few steps."""
    return replace(members, sweeps=tuple(replace(sweep, at_once=size) for sweep in members.sweeps))


@pytest.fixture(autouse=True)
def samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("samples.npy", np.cos(np.arange(20.0)))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_sweep_with_a_tape_has_the_bits_of_one_with_states(name):
    taped = swept(PROBLEMS[name])
    expected = bytes_of(in_memory(swept(PROBLEMS[name], with_tape=False)))
    assert any(np.frombuffer(each, np.uint8).any() for each in expected[1].values())
    for members in (taped, in_groups(taped, 7), in_groups(taped, 1), taped):
        assert bytes_of(in_memory(members)) == expected


def in_half(tables):
    """The input with a tape in half precision."""
    return {**tables, "gradient": {**tables["gradient"], "tape_precision": "half"}}


HALF = ("waves", "receivers in a CPML", "stages, time series", "Gray-Scott, 3-D", "members")


@pytest.mark.parametrize("name", HALF)
def test_a_tape_in_half_precision_holds_the_rounded_values(name):
    full, half = swept(PROBLEMS[name]), swept(in_half(PROBLEMS[name]))
    exact, found = in_memory(full), in_memory(half)
    kept, rounded = (members.sweeps[0].compiled.tape.arrays for members in (full, half))
    assert kept.any() and 2 * rounded.nbytes == kept.nbytes
    narrow = jnp.bfloat16 if kept.dtype == np.float32 else np.float32
    if narrow == np.float32:
        assert np.array_equal(kept.astype(narrow), rounded)
    else:  # the first 16 bits, rounded
        assert np.array_equal(kept.view(np.uint32) + 0x8000 >> 16, rounded)
        errors = np.abs(rounded.view(narrow).astype(np.float32) - kept)
        assert (errors <= 2.0**-8 * np.abs(kept) + np.finfo(np.float32).tiny).all()
    assert found.value == exact.value
    for key, array in {**exact.blocks, **exact.series, **exact.numbers}.items():
        change = np.subtract({**found.blocks, **found.series, **found.numbers}[key], array)
        assert np.linalg.norm(change) <= jnp.finfo(narrow).eps * np.linalg.norm(array), key
    assert bytes_of(found) != bytes_of(exact)


@pytest.mark.parametrize("name", HALF)
def test_groups_of_a_tape_in_half_precision_give_the_same_bits(name):
    members = swept(in_half(PROBLEMS[name]))
    expected = bytes_of(in_memory(members))
    for size in (7, 1):
        assert bytes_of(in_memory(in_groups(members, size))) == expected


@pytest.mark.parametrize("changed, why", [
    ({"gradient": {"of": ["initial.u"]}}, "its reverse steps read nothing of the run"),
    ({"gradient": {"of": ["equation.c"], "storage": "disk"}}, "its states are on disk"),
    ({"gradient": {"of": ["equation.c"], "checkpoints": 3}}, "there is too little memory for one"),
    ({"equation": {"name": "burgers"}, "time": {"cfl": 0.3, "end": 0.4}, "numerics": {}, "gradient": {"of": ["initial.u"]}},
     "its time steps follow the solution"),
])  # fmt: skip
def test_half_precision_without_a_tape_is_refused(changed, why):
    with pytest.raises(InputError, match='gradient.tape_precision: expected "full".*' + why):
        members_from(in_half({**WAVE, **changed}), kernel="native")


def test_half_precision_without_native_code_is_refused():
    with pytest.raises(InputError, match="gradient.tape_precision: .* its kernel is shift"):
        members_from(in_half(WAVE), kernel="shift")


def test_a_tape_in_half_precision_has_room_for_twice_the_steps():
    given = {**WAVE, "gradient": {"of": ["equation.c"], "memory": "150kB"}}
    plans = [members_from(tables, kernel="native").planned(lambda _: {})[1][0] for tables in (given, in_half(given))]
    cells = 41 * 30 * 4
    assert [plan.tape_bytes for plan in plans] == [0, 41 * cells // 2] and plans[1].taken == 41


def test_interrupted_sweeps_with_a_tape_have_the_same_bits(tmp_path):
    members = in_groups(swept(PROBLEMS["receivers beside a sponge"]), 17)
    expected, result, attempts = bytes_of(in_memory(members)), None, 0
    while result is None:  # the run forwards takes 21 calls
        result, attempts = attempt(members, tmp_path / "g.h5", 36), attempts + 1
    assert attempts > 2 and bytes_of(result) == expected


@pytest.mark.parametrize("changed", [
    {  # four stages need two values each
        "equation": {"name": "gray_scott"},
        "initial": {"u": 1.0, "v": "sin(x)"},
        "boundary": {},
        "numerics": {"integrator": "rk4"},
        "gradient": {"of": ["initial.v"]},
    },
    {  # slopes of the step before
        "equation": {"name": "heat", "D": 0.1},
        "numerics": {"integrator": "ab2"},
        "gradient": {"of": ["equation.D"]},
        "time": {"dt": 0.001, "end": 0.02},
    },
    {  # reverse steps depend on the time
        "equation": {"name": "custom", "rhs": {"u": "sin(t)*laplacian(u**2)"}},
        "numerics": {"integrator": "euler"},
        "gradient": {"of": ["initial.u"]},
    },
    {"objective": {"J": {"sum": "integral(u**2)", "every_steps": 4}}},  # what is added between steps needs states
    {  # no memory for what takes as long
        "grid": {"shape": [20, 16, 18]},
        "mask": {"solid": "(x - 9)**2 + y**2 + z**2 < 30"},
        "numerics": {"integrator": "leapfrog"},
    },
    {  # operators would read values of the tape in other cells
        "equation": {"name": "custom", "a": 0.3, "rhs": {"u": "v", "v": "div_grad(1 + a*u, u)"}},
        "mask": {"solid": "(x - 2)**2 + y**2 < 0.3"},
        "numerics": {"integrator": "leapfrog"},
        "gradient": {"of": ["initial.u"]},
    },
    {"gradient": {"of": ["initial.u"]}},  # needs no states
    {"gradient": {"of": ["equation.c"], "storage": "disk"}},
    {"gradient": {"of": ["equation.c"], "memory": "40kB"}},  # four states
    {"gradient": {"of": ["equation.c"], "checkpoints": 3}},
])  # fmt: skip
def test_some_sweeps_have_no_tape(changed):
    assert members_from({**WAVE, **changed}, kernel="native").sweeps[0].adjoint.tape is None


def test_a_tape_has_few_values():
    equation = {"name": "custom", "rhs": {"u": "laplacian(u) + u*v*w", "v": "u**3*w", "w": "v*u"}}
    adjoint = adjoint_of(problem_of(**{**GRAY_SCOTT, "equation": equation, "gradient": {"of": ["initial.v"]}}), ())
    assert adjoint.needs_states and with_tape(adjoint) is None


@pytest.mark.parametrize("memory, states, steps, taken", [
    ("1MB", 1, 40, 40),
    ("150kB", 2, 20, 60),  # two groups: the first 20 steps are taken again, for the tape
    ("100kB", 3, 14, 68),
])  # fmt: skip
def test_states_and_tape_share_the_memory_of_the_input(memory, states, steps, taken, monkeypatch):
    monkeypatch.setattr(plan_module, "FEWEST", 12)
    given = {**WAVE, "time": {"dt": 0.01, "end": 0.4}, "gradient": {"of": ["equation.c"], "memory": memory}}
    members = members_from(given, kernel="native")
    members, (plan,) = members.planned(lambda number: members.sweeps[number].forward.initial_fields())
    sweep, counts = members.sweeps[0], []
    cells = 41 * 30 * 4
    assert (plan.states, plan.tape_bytes, plan.bytes_per_state) == (states, steps * cells, 2 * cells)
    called = ForwardSteps.called

    def counted(self, call, first, last, beside):
        fields, after = called(self, call, first, last, beside)
        counts.append(after - first)
        return fields, after

    monkeypatch.setattr(ForwardSteps, "called", counted)
    sweep(sweep.forward.initial_fields(), plan.states)
    assert (sum(counts), plan.taken) == (taken, taken)


def test_the_tape_of_the_last_groups_is_recorded_first():
    assert first_on_tape([0, 40, 41], 41) == 0
    assert first_on_tape([0, 40, 41], 40) == 40
    assert first_on_tape([0, 14, 28, 40, 41], 14) == 28


def test_check_and_gradient_tell_the_tape(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    monkeypatch.setattr(plan_module, "FEWEST", 20)
    given = {**WAVE, "gradient": {"of": ["equation.c"], "memory": "150kB"}}
    (tmp_path / "wave.toml").write_text(to_toml(from_mapping(given, tmp_path)))
    status, out, _ = hpcstencil(monkeypatch, capsys, "check", "wave.toml")
    assert status == 0 and "3 stored states of 9.84 KB, a tape of 103 KB, about " in out
    assert "62 steps taken to reverse 41" in out
    status, _, err = hpcstencil(monkeypatch, capsys, "gradient", "wave.toml")
    assert status == 0 and re.search("41 steps, 3 stored states, a tape of 103 KB per process, 62 steps taken", err), (
        err
    )


def test_gradients_with_a_tape_are_verified(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hpcstencil.cli.prepare.bind_devices", lambda wanted: (1, []))  # jax is there already
    for name in ("waves", "values in operands"):
        (tmp_path / "taped.toml").write_text(to_toml(from_mapping(PROBLEMS[name], tmp_path)))
        status, out, err = hpcstencil(monkeypatch, capsys, "gradient", "taped.toml", "--verify")
        assert status == 0 and "a tape of" in err and "dot product" in out, out + err
        assert "without a tape        the same bits: ok" in out
    (tmp_path / "half.toml").write_text(to_toml(from_mapping(in_half(PROBLEMS["waves"]), tmp_path)))
    status, out, err = hpcstencil(monkeypatch, capsys, "gradient", "half.toml", "--verify")
    assert status == 0 and "without a tape        the same bits: ok" in out, out + err
    changes = re.search(r"half precision .* changes equation.c by (\S+) and initial.u by (\S+) \(relative", out)
    assert changes and 0.0 < float(changes[1]) < 2**-7 and float(changes[2]) == 0.0  # no state has an effect on it


def test_recording_does_not_change_the_run():
    """Also if the whole right-hand side is something that the reverse reads."""
    for tables in PROBLEMS.values():
        sweep = swept(tables).sweeps[0]
        run, start = sweep.run, sweep.adjoint.forward
        plain = simulation_of(start, kernel="native")
        fields = plain.initial_fields()
        expected = plain.advance(fields, next(run.between(0, 9)))
        found = sweep.forward.advance(sweep.forward.initial_fields(), next(run.between(0, 9)))
        for name, array in expected.items():
            assert np.array_equal(array, found[name]), name
