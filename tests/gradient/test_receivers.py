"""Objectives that sum over receivers and their samples: closed forms, Taylor remainders, data, and what is refused."""

import tomllib
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from gradients import members_from, objective, several_at_once, sweep_of, taylor_slopes, without_tapes

import hpcstencil as hs
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.run_steps import steps_of
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.reader import from_mapping
from hpcstencil.problem.build import build

EXAMPLE = Path(__file__).parents[2] / "inputs" / "gradients" / "layered_model.toml"
PLACES = {"x": [0.25, 0.5, 0.52, 1.31], "y": [0.25, 0.4, 0.44, 1.05]}
CELLS = (14, 11)


def tables(objective, **others):
    return {
        "grid": {"shape": list(CELLS), "upper": [0.1 * n for n in CELLS]},
        "equation": {"name": "custom", "D": 0.02, "A": 0.5, "rhs": {"u": "D*laplacian(u) - A*u*v", "v": "0.1*dx(u) - v**2"}},
        "initial": {"u": "1 + 0.2*sin(5*x)", "v": "0.3*cos(4*y)"},
        "boundary": {"x": {"neumann": 0.1}},
        "numerics": {"precision": "float64"},
        "time": {"end": 0.1, "dt": 0.01},
        "probes": {"cable": {"field": "u", **PLACES, "every_steps": 2}},
        "objective": objective,
        "gradient": {"of": ["initial.u", "initial.v", "equation.D", "equation.A"]},
        **others,
    }  # fmt: skip


def start_of(sweep):
    return {name: np.array(sweep.forward.block(array)) for name, array in sweep.forward.initial_fields().items()}


def result_of(given, states=3):
    sweep = sweep_of(given)
    return sweep(sweep.forward.initial_fields(), states)


def test_the_derivatives_of_a_single_sample_are_the_weights_of_the_interpolation():
    given = tables({"J": "3*sum(cable)"}, probes={"cable": {"field": "u", **PLACES, "every_steps": 100}})
    sweep = sweep_of(given)
    found = sweep(sweep.forward.initial_fields(), 3)
    receivers, expected = sweep.forward.problem.receivers["cable"], np.zeros(CELLS)
    np.add.at(expected, tuple(receivers.cells.reshape(-1, 2).T), 3 * receivers.weights.ravel())
    assert np.allclose(found.arrays["initial.u"], expected, rtol=0, atol=1e-15) and expected.sum() == pytest.approx(12)
    assert found.value == pytest.approx((expected * start_of(sweep)["u"]).sum(), rel=1e-14)
    assert not np.asarray(found.arrays["initial.v"]).any() and set(found.numbers.values()) == {0.0}


def test_the_response_at_the_receiver_to_a_source_is_that_at_the_source_to_the_receiver():
    """Reciprocity: with a symmetric operator the gradient at every place is the field that begins as 1 at the receiver."""
    place, cell = {"x": 0.45, "y": 0.75}, (4, 7)
    given = tables(
        {"J": "sum(where(t > 0.099, cable, 0))"},
        equation={"name": "heat", "D": 0.1},
        initial={"u": "x*y"},
        boundary={"x": {"dirichlet": 0.0}, "y": {"neumann": 0.0}},
        probes={"cable": {"field": "u", **place}},
        gradient={"of": ["initial.u"]},
    )
    sweep = sweep_of(given)
    u = np.zeros(CELLS)
    u[cell] = 1.0
    field = sweep.forward.block(sweep.forward_steps.taken(sweep.forward.put({"u": u}), 0, 10)["u"])
    found = np.asarray(sweep(sweep.forward.initial_fields(), 3).arrays["initial.u"])
    assert np.abs(found - field).max() < 1e-14 and np.abs(field[0, 0]) > 1e-8


@pytest.mark.long
def test_receivers_give_what_at_gives_at_the_same_places():
    points = [f"(at(u*v, {x}, {y}) - 0.2)**2" for x, y in zip(PLACES["x"], PLACES["y"], strict=True)]
    given = tables({"J": {"sum": " + ".join(points), "every_steps": 3}}, probes={})
    expected = result_of(given)
    probes = {"cable": {"expression": "u*v", **PLACES, "every_steps": 3}}
    for text in ("sum((cable - 0.2)**2)", "sum(cable**2)/2 - (0.4*sum(cable) - sum(0.04 + cable**2/2))"):
        found = result_of(tables({"J": text}, probes=probes))
        assert found.value == pytest.approx(expected.value, rel=1e-13)
        assert found.numbers == pytest.approx(expected.numbers, rel=1e-11)
        for name, array in expected.arrays.items():
            assert np.allclose(found.arrays[name], array, rtol=0, atol=1e-13 * np.abs(array).max())


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_an_expression_that_is_a_field_is_the_field(kernel):
    given = tables({"J": "sum(cable**2)"})
    expected = members_from(given, kernel=kernel).sweeps[0]
    given["probes"]["cable"] = {"expression": "u", **PLACES, "every_steps": 2}
    found = members_from(given, kernel=kernel).sweeps[0]
    same_bits(*(sweep(sweep.forward.initial_fields(), 3) for sweep in (found, expected)))


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_an_expression_that_is_a_parameter_is_not_added_to_a_field(kernel):
    given = tables({"J": "sum(cable**2)"}, probes={"cable": {"expression": "A", **PLACES, "every_steps": 2}})
    sweep = members_from(given, kernel=kernel).sweeps[0]
    found = sweep(sweep.forward.initial_fields(), 3)
    samples = 6 * len(PLACES["x"])
    assert found.value == pytest.approx(samples * 0.5**2)
    assert found.numbers["equation.A"] == pytest.approx(samples * 2 * 0.5)
    assert not np.asarray(found.arrays["initial.u"]).any()


def test_terms_beside_the_receivers_are_taken_at_the_end():
    both, receivers, end = (
        result_of(tables({"J": text}))
        for text in ("sum(cable**2) + D*integral(u**2)", "sum(cable**2)", "D*integral(u**2)")
    )
    number = result_of(tables({"J": "sum(cable**2) + 3*D**2"}))
    assert number.value == pytest.approx(receivers.value + 3 * 0.02**2, rel=1e-14)
    assert number.numbers["equation.D"] == pytest.approx(receivers.numbers["equation.D"] + 0.12, rel=1e-12)
    assert both.value == pytest.approx(receivers.value + end.value, rel=1e-14)
    for name, number in both.numbers.items():
        assert number == pytest.approx(receivers.numbers[name] + end.numbers[name], rel=1e-12)
    assert np.allclose(both.arrays["initial.u"], receivers.arrays["initial.u"] + end.arrays["initial.u"], rtol=1e-12)


CASES = {
    "expression": {"probes": {"cable": {"expression": "u*v + dx(A*u)", **PLACES, "every_steps": 2}}},
    "solid": {
        "mask": {"solid": "(x - 0.7)**2 + (y - 0.5)**2 < 0.04"},
        "boundary": {},
        "probes": {"cable": {"field": "u", **PLACES, "every_steps": 3}},
    },
    "staggered": {
        "equation": {"name": "shallow_water", "g": 1.0, "f": 0.2, "nu": 0.05},
        "initial": {"h": "1 + 0.2*sin(4*x)", "u": "0.1*cos(5*y)", "v": "0.1*x"},
        "boundary": {},
        "probes": {"cable": {"field": "v", **PLACES, "every_steps": 2}},
        "gradient": {"of": ["initial.h", "initial.u", "equation.g"]},
    },
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.long if case == "staggered" else ()) for case in CASES]
)
def test_remainders_are_of_second_order(case, tmp_path):
    observed = np.random.default_rng(2).standard_normal((4 if case == "solid" else 6, 4))
    np.save(tmp_path / "observed.npy", observed)
    data = {"observed": str(tmp_path / "observed.npy")}
    sweep = sweep_of(tables({"J": "0.5*sum((cable - observed)**2*(1 + t) + cable**3)", "data": data}, **CASES[case]))
    start = start_of(sweep)
    slopes = taylor_slopes(sweep, start)
    assert all(abs(slope - 2) < 0.05 for slope in slopes), slopes
    value = sweep(sweep.forward.put(start), 2).value
    assert objective(sweep, start, {}) == value  # as the run alone has it


TABLES = {
    "cable": {"field": "u", **PLACES, "every_steps": 2},
    "spots": {"field": "v", "x": [0.6, 1.2], "y": 0.7, "every_steps": 3},
    "beside": {"field": "v", **PLACES, "every_steps": 2},
    "flux": {"expression": "u*v + dx(A*u)", "x": 0.8, "y": 0.3, "every_steps": 4},
}


@pytest.mark.parametrize("text", [
    "0.5*sum((cable - observed)**2)/sum(observed**2)",
    "-sum(cable*observed)/sqrt(sum(cable**2)*sum(observed**2))",
    "D*log(1 + sum(cable**2)*sum((spots - seen)**2*(1 + t)))*mean(u**2) + A*sum(flux)",
    "sum(sqrt((cable - observed)**2 + (beside + 2)**2*t)) - sum(beside)/sum(observed)",
    "A*sum((exp(A)*cable - D*observed)**2)/sqrt(sum(D**2 + spots**2*seen**2))",
])  # fmt: skip
def test_functions_of_sums_over_receivers_of_several_tables(text):
    random = np.random.default_rng(3)
    data = {"observed": random.standard_normal((6, 4)), "seen": random.standard_normal((4, 2))}
    given = tables({"J": text, "data": {name: each for name, each in data.items() if name in text}}, probes=TABLES)
    along = np.cos(np.arange(14 * 11)).reshape(CELLS)
    with hs.Simulation(given) as sim:
        value, gradient = sim.value_and_gradient()

        def moved(h):
            equation = {**given["equation"], "D": 0.02 + h, "A": 0.5 - h}
            with hs.Simulation({**given, "equation": equation}) as other:
                other["u"] = sim["u"].values + h * along
                return other.value_and_gradient()[0]

        slope = (gradient["initial.u"] * along).sum() + gradient["equation.D"] - gradient["equation.A"]
        sizes = 1e-3 * 0.5 ** np.arange(5)
        left = [abs(moved(h) - value - h * slope) for h in sizes]
    orders = np.log2(np.array(left[:-1]) / left[1:])
    assert np.allclose(orders, 2.0, atol=0.05), orders


def test_the_derivative_of_a_quotient_of_sums_is_that_of_the_quotient_rule():
    """And that of a sum over two tables is the sum of both, whatever the kernel and the number of stored states."""
    a, b = (result_of(tables({"J": text}, probes=TABLES)) for text in ("sum(cable**2)", "sum(sin(spots))"))
    for kernel in ("shift", "native"):
        for text, of_a, of_b, value in (
            ("sum(cable**2)/sum(sin(spots))", 1 / b.value, -a.value / b.value**2, a.value / b.value),
            ("sum(cable**2) - 2*sum(sin(spots))", 1.0, -2.0, a.value - 2 * b.value),
        ):
            sweep = members_from(tables({"J": text}, probes=TABLES), kernel=kernel).sweeps[0]
            found, again = (sweep(sweep.forward.initial_fields(), states) for states in (2, 11))
            same_bits(found, again)
            assert found.value == pytest.approx(value, rel=1e-13)
            for name, number in found.numbers.items():
                assert number == pytest.approx(of_a * a.numbers[name] + of_b * b.numbers[name], rel=1e-11)
            for name, array in found.arrays.items():
                expected = of_a * np.asarray(a.arrays[name]) + of_b * np.asarray(b.arrays[name])
                assert np.abs(np.asarray(array) - expected).max() < 1e-12 * np.abs(expected).max()


def test_native_code_reverses_several_steps_between_two_samples_with_the_same_bits():
    given = tables({"J": "sum(cable**3) + mean(v)"}, numerics={"integrator": "euler"})
    given["probes"]["cable"] = {"expression": "u*v", **PLACES, "every_steps": 3}
    sweep = sweep_of(given, kernel="native")
    start = start_of(sweep)
    expected = sweep(sweep.forward.put(start), 11)
    several = several_at_once(sweep, 2)
    assert [group.count for group in several.groups] == [2, 1, 2, 1, 2, 1, 1]
    same_bits(several(several.forward.put(start), 2), expected)


def same_bits(found, expected):
    assert (found.value, found.numbers) == (expected.value, expected.numbers)
    for name, array in expected.arrays.items():
        assert np.asarray(found.arrays[name]).tobytes() == np.asarray(array).tobytes(), name


OPEN = {"cpml": {"width": 0.3, "speed": 1.3}}
SHOT = {"name": "acoustic", "c": 1.3, "source": 2.0, "xs": 0.6, "ys": 0.4, "f0": 20.0, "t0": 0.03}
# name: (tables, steps that are reversed together)
TOGETHER = {
    "walls": ({"equation": SHOT, "boundary": {"x": {"dirichlet": 0.0}}, "gradient": {"of": ["equation.c"]}}, 10),
    "layers": ({"equation": SHOT, "boundary": {"x": OPEN, "y": OPEN}, "gradient": {"of": ["equation.c"]}}, 5),
    "sponge": (
        {
            "equation": SHOT,
            "boundary": {"y": {"sponge": {"width": 0.4, "strength": 9.0}}},
            "gradient": {"of": ["equation.c"]},
        },
        10,
    ),
    "staggered": (
        # the other group of fields reads neighbours of the recorded one after this has moved
        {
            "equation": {"name": "maxwell", "c": 1.0},
            "grid": {"shape": [9, 8, 7], "upper": [0.9, 0.8, 0.7]},
            "probes": {"cable": {"field": "Ez", "x": [0.3, 0.8], "y": [0.4, 0.1], "z": [0.3, 0.6]}},
            "boundary": {},
            "gradient": {"of": ["initial.Ez", "equation.c"]},
        },
        4,
    ),
    "stages": ({"numerics": {"integrator": "rk4", "precision": "float32"}}, 4),
    "two-step": ({"numerics": {"integrator": "ab2"}}, 1),
    "line": (
        {
            "equation": {"name": "wave", "c": 1.0},
            "grid": {"shape": [30], "upper": [3.0]},
            "boundary": {"x": "periodic"},
            "probes": {"cable": {"field": "u", "x": [0.02, 1.0, 2.99], "every_steps": 3}},
            "gradient": {"of": ["equation.c"]},
        },
        10,
    ),
    "boundary": ({"boundary": {"x": {"dirichlet": "0.1*t"}}}, 1),
    "solid": ({"mask": {"solid": "(x - 0.7)**2 + (y - 0.5)**2 < 0.04"}}, 1),
}


def native_sweep(given):
    """The sweep of an input without a tape."""
    with without_tapes():
        return members_from(given, kernel="native").sweeps[0]


def native_tables(others):
    given = tables({"J": "sum(cable**3 + t*cable) + 0.5*sum(cable)"}, time={"end": 0.2, "dt": 0.01}, **others)
    name = given["probes"]["cable"]["field"]
    if given["equation"]["name"] != "custom":
        x, y = ("x", "y") if len(given["grid"]["shape"]) > 1 else ("x", "x")
        given |= {"initial": {name: f"0.2*sin(5*{x}) + cos(4*{y})"}, "numerics": {"integrator": "leapfrog"}}
        if given["equation"]["name"] == "acoustic":
            given["probes"] = {"cable": {"field": "p", **PLACES}}
            given["initial"] = {"p": "0.2*sin(5*x)"}
    return given


@pytest.mark.parametrize("case", TOGETHER)
def test_native_code_adds_the_derivatives_of_samples_while_it_reverses_steps(case):
    others, at_once = TOGETHER[case]
    sweep = native_sweep(native_tables(others))
    assert sweep.injected and sweep.at_once == at_once
    start = start_of(sweep)
    found, again = (sweep(sweep.forward.put(start), states) for states in (20, 2))
    between = replace(sweep, injected=False, several=None, at_once=1)
    assert {group.count for group in between.groups} == {1}
    expected = between(between.forward.put(start), 20)
    assert all(np.asarray(array).any() for array in expected.arrays.values())
    same_bits(found, expected)
    same_bits(again, expected)


@pytest.mark.parametrize("name", ["walls", "staggered", "stages"])
def test_native_code_adds_the_derivatives_of_several_tables(name):
    """Of one field, some at the same steps and in the same cells, and of another one."""
    others, at_once = TOGETHER[name]
    given = native_tables(others)
    cable = {**given["probes"]["cable"], "every_steps": 2}
    beside = {"p": "q", "Ez": "By", "u": "v"}[cable["field"]]
    given["probes"] = {"cable": cable, "again": {**cable, "every_steps": 3}, "other": {**cable, "field": beside}}
    given["objective"] = {"J": "sum(cable**3 + t*cable)/(1 + sum(again**2)) + sum(sin(9*other)) + sum(t*again)"}
    sweep = native_sweep(given)
    assert sweep.injected and sweep.at_once == at_once and len(sweep.adjoint.injected) == 2
    start = start_of(sweep)
    found, again = (sweep(sweep.forward.put(start), states) for states in (20, 2))
    between = replace(sweep, injected=False, several=None, at_once=1)
    expected = between(between.forward.put(start), 20)
    same_bits(found, expected)
    same_bits(again, expected)
    by_shift = members_from(given, kernel="shift").sweeps[0]
    for key, array in by_shift(by_shift.forward.put(start), 20).arrays.items():  # in single precision
        assert np.abs(np.asarray(array) - found.arrays[key]).max() < 1e-4 * np.abs(array).max()


# name: (case of TOGETHER, what the receivers record, whether it is linear with constant weights)
LINEAR = {
    "slope": ("walls", "dx(p)", True),
    "several fields": ("layers", "0.3*p + laplacian(q) - 2*dy(p)", True),
    "coordinates": ("sponge", "x*dx(p) + y*p", True),
    "parameter": ("walls", "t0*dxy(p)", True),
    "moving boundary": ("boundary", "dx(u) + 3", True),
    "nested": ("stages", "dx(dx(u)*(1 + x))", True),
    "staggered": ("staggered", "dx(Ez)", True),
    "line": ("line", "dx(u)", True),
    "solid": ("solid", "dx(u) + u", True),
    "time": ("stages", "t*dx(u)", False),
    "unknown": ("line", "c*dx(u)", False),
    "product": ("walls", "p*dx(p)", False),
}


@pytest.mark.parametrize("name", LINEAR)
def test_derivatives_of_linear_expressions_are_added_with_constant_weights(monkeypatch, name):
    case, text, linear = LINEAR[name]
    others, at_once = TOGETHER[case]
    given = native_tables(others)
    cable = given["probes"]["cable"]
    at = {name: value for name, value in cable.items() if name != "field"}
    shape, upper = given["grid"]["shape"], given["grid"]["upper"]
    rng, axes = np.random.default_rng(5), "xyz"[: len(shape)]
    places = rng.random((40, len(shape))) * upper  # also next to each other, in one cell, and in the corners
    places[:3], places[3:6], places[6], places[7] = places[0], places[0] + 0.01, 0.0, upper
    places = np.clip(places, 0.0, upper)
    if case == "solid":
        places = places[np.hypot(places[:, 0] - 0.7, places[:, 1] - 0.5) > 0.35]
    given["probes"] = {
        "cable": {
            "every_steps": cable.get("every_steps", 1),
            "expression": text,
            **dict(zip(axes, places.T.tolist(), strict=True)),
        },
        "plain": cable,
        "same": {**at, "expression": cable["field"]},
        "unused": {**at, "expression": f"{cable['field']}**2"},
    }
    given["objective"] = {"J": "sum(cable**3 + t*cable) + sum(plain**2) + 0.1*sum(same)"}
    given["numerics"]["precision"] = "float64"
    sweep = members_from(given, kernel="native").sweeps[0]
    assert bool(sweep.adjoint.injected) == linear and sweep.injected == linear
    start = start_of(sweep)
    found, again = (sweep(sweep.forward.put(start), states) for states in (20, 2))
    same_bits(again, found)
    if linear:
        assert sweep.at_once == (at_once if sweep.adjoint.tape is None else sweep.steps)
        same_bits(found, replace(sweep, injected=False, several=None, at_once=1)(sweep.forward.put(start), 20))
    monkeypatch.setattr(Adjoint, "injected", {})
    for kernel in ("native", "shift"):
        general = members_from(given, kernel=kernel).sweeps[0]
        expected = general(general.forward.put(start), 20)
        assert found.value == pytest.approx(expected.value, rel=1e-12)
        for key, value in expected.numbers.items():
            assert found.numbers[key] == pytest.approx(value, rel=1e-11), key
        for key, array in expected.arrays.items():
            error = np.abs(np.asarray(array) - found.arrays[key]).max() / np.abs(array).max()
            assert error < 1e-12, key


@pytest.mark.parametrize("recorded", [{"expression": "where(x > w, dx(u), u)"}, {"expression": "w*dx(u)"}], ids=str)
def test_members_may_read_other_cells(recorded):
    """Each has its own cells when it is evaluated again."""
    place = {"x": [0.2, 0.7, 1.3], "y": [0.2, 0.7, 0.7]}
    equation = {"name": "custom", "w": 1.0, "D": 0.02, "rhs": {"u": "D*laplacian(u)"}}
    given = tables(
        {"J": "sum(cable**2)"}, equation=equation, initial={"u": "1 + 0.2*sin(5*x)"}, probes={"cable": {**recorded, **place}},
        ensemble={"equation.w": [0.5, 1.0, 1.5]}, gradient={"of": ["initial.u"]},
    )  # fmt: skip
    given["numerics"] = {"precision": "float64", "kernel": "native"}
    with hs.Simulation(given) as sim:
        value, gradient = sim.value_and_gradient()
        again, same = sim.value_and_gradient()
    given["numerics"]["kernel"] = "shift"
    with hs.Simulation(given) as sim:
        expected, other = sim.value_and_gradient()
    assert value == again and np.array_equal(gradient["initial.u"], same["initial.u"])
    assert value == pytest.approx(expected, rel=1e-12)
    assert np.allclose(gradient["initial.u"], other["initial.u"], rtol=1e-10, atol=1e-12)


def test_a_coefficient_may_be_undefined_away_from_the_receivers():
    given = tables(
        {"J": "sum(cable**2)"}, probes={"cable": {"expression": "sqrt(x - 0.55)*dx(u)", "x": [1.0, 1.1], "y": 0.5}}
    )
    found = result_of(given)
    assert np.isfinite(found.value) and all(np.isfinite(np.asarray(array)).all() for array in found.arrays.values())
    assert np.asarray(found.arrays["initial.u"]).any()


def test_objectives_with_receivers_of_other_fields_share_no_program():
    """In one process: native code adds derivatives to the recorded field, while it reverses several steps."""
    probes = {name: {"field": name[0], **PLACES} for name in ("u_cable", "v_cable")}

    def found(text):
        with hs.Simulation(tables({"J": text}, probes=probes, numerics={"kernel": "native"})) as sim:
            return sim.value_and_gradient()[1]

    texts = ("sum(u_cable**2)", "sum(v_cable**2)", "sum(u_cable**2) + sum(v_cable**2)", "mean(u)")
    first, second, both, _, again = (found(text) for text in (*texts, texts[0]))
    for name in first:
        assert np.array_equal(first[name], again[name])
        assert np.allclose(first[name] + second[name], both[name], rtol=1e-5, atol=1e-5)


SOUND = """
class Sound:
    parameters = {"K": 1.3}
    def fields(self, ndim): return ("p", "v")
    def positions(self, ndim): return {"v": (1,)}
    def rhs(self, f, p, space): return {"p": -p.K*space.difference(f.v, 0), "v": -space.difference(f.p, 0)}
"""


def test_samples_are_added_to_a_field_whose_group_moves_before_the_end_of_a_step(tmp_path):
    (tmp_path / "sound.py").write_text(SOUND)
    given = {
        "grid": {"shape": [101], "upper": [13.0]},
        "equation": {"name": f"{tmp_path / 'sound.py'}:Sound"},
        "initial": {"p": "0.2*sin(5*x) + cos(4*x)"},
        "numerics": {"integrator": "leapfrog", "precision": "float64"},
        "time": {"dt": 0.001, "end": 0.033},
        "probes": {"cable": {"field": "p", "x": [6.03], "every_steps": 3}},
        "objective": {"J": "sum(cable**2)"},
        "gradient": {"of": ["equation.K", "initial.p"]},
    }
    sweep, expected = native_sweep(given), result_of(given)
    assert sweep.injected and sweep.at_once == 11
    found = sweep(sweep.forward.initial_fields(), 3)
    assert found.numbers["equation.K"] == pytest.approx(expected.numbers["equation.K"], rel=1e-12)
    assert np.allclose(found.arrays["initial.p"], expected.arrays["initial.p"], rtol=0, atol=1e-13)


@pytest.mark.parametrize("states", (20, 4))
@pytest.mark.parametrize("case", TOGETHER)
def test_one_call_takes_steps_and_stores_states_between_them(case, states):
    """There is memory for them from the second sweep on."""
    sweep = native_sweep(native_tables(TOGETHER[case][0]))
    start, counts = start_of(sweep), []
    within = sweep.forward.steps.storing

    def counted(rooms):
        counts.append(len(rooms))
        return within(rooms)

    storing, ending = (
        replace(sweep, forward=replace(sweep.forward, steps=replace(sweep.forward.steps, storing=each)))
        for each in (counted, None)
    )
    expected = ending(ending.forward.put(start), states)
    same_bits(storing(storing.forward.put(start), states), expected)
    counts.clear()
    same_bits(storing(storing.forward.put(start), states), expected)
    assert counts[0] >= min(states, len(sweep.groups)) // 2


def test_no_states_are_needed_where_the_equation_is_linear_and_the_samples_are_known():
    given = tables({"J": "sum(cable**3)"}, equation={"name": "heat", "D": 0.1}, initial={"u": "x*y"})
    given |= {"boundary": {}, "gradient": {"of": ["initial.u"]}}
    sweep = members_from(given, kernel="native").sweeps[0]
    assert not sweep.adjoint.needs_states and [group.count for group in sweep.groups] == [10]
    start = start_of(sweep)
    found = sweep(sweep.forward.put(start), 1)
    by_jax = replace(sweep, injected=False)
    assert [group.count for group in by_jax.groups] == [2] * 5
    same_bits(found, by_jax(by_jax.forward.put(start), 1))


def test_the_recorded_input_has_the_objective():
    for given, every in (({"J": {"sum": "integral(u**2)", "every_steps": 4}}, 4), ({"J": "0.5*sum(cable**2)"}, 2)):
        config = from_mapping(tables(given), Path("."))
        again = from_mapping(tomllib.loads(to_toml(config)), Path("/"))
        assert again.objective == config.objective
        assert build(again).adds_every == every


def test_data_come_from_an_output_file_or_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = tables({}, gradient={})
    with hs.Simulation(given) as sim:
        sim.run(output="run.h5")
    values = hs.probes("run.h5", "cable")["values"]
    assert values.shape == (6, 4)
    misfit = {"J": "0.5*sum((cable - observed)**2)"}
    found = []
    for observed in ("run.h5:probes/cable/values", values, values.values + 0.5):
        with hs.Simulation(tables({**misfit, "data": {"observed": observed}})) as sim:
            found.append(sim.value_and_gradient())
    assert found[0][0] == found[1][0] == 0.0 and not found[0][1]["initial.u"].any()
    assert found[2][0] == pytest.approx(0.5 * 0.25 * 24)
    sim = hs.Simulation(tables({**misfit, "data": {"observed": values.values.T}}))
    with pytest.raises(hs.InputError, match=r"objective.data.observed: expected 6 samples of the 4 receivers"):
        sim.value_and_gradient()
    sim.close()
    values[2, 1] = np.nan
    with pytest.raises(hs.InputError, match=r"objective.data.observed: expected finite numbers, but got nan"):
        hs.Simulation(tables({**misfit, "data": {"observed": values}}))


def test_data_recorded_at_other_times_or_places_are_refused(tmp_path, monkeypatch):
    """Their shape alone would fit."""
    monkeypatch.chdir(tmp_path)
    with hs.Simulation(tables({})) as sim:
        sim.run(output="observed.h5")
    misfit = {"J": "sum((cable - observed)**2)", "data": {"observed": "observed.h5:probes/cable/values"}}

    def checked(**others):
        problem = build(from_mapping(tables(misfit, **others), tmp_path))
        problem.observed({}, steps_of(problem).times)

    checked()
    checked(time={"end": 0.1, "dt": 0.02}, probes={"cable": {"field": "u", **PLACES}})  # the same times
    key = "objective.data.observed: expected"
    with pytest.raises(
        hs.InputError, match=rf"{key} samples at the times of probes.cable, but sample 1 .* t = 0.02, not 0.04"
    ):
        checked(time={"end": 0.2, "dt": 0.02})
    moved = {**PLACES, "x": [0.25, 0.5, 0.55, 1.31]}
    with pytest.raises(hs.InputError, match=rf"{key} the receivers of probes.cable .* number 2 .* x = 0.52, not 0.55"):
        checked(probes={"cable": {"field": "u", **moved, "every_steps": 2}})


PAIR = {name: {"field": "u", "x": 0.5, "y": y} for name, y in (("a", 0.5), ("b", 0.6))}


@pytest.mark.parametrize(("objective", "others", "message"), [
    ({"J": "cable**2"}, {}, r"has the samples of probes.cable outside of sum\(\)"),
    ({"J": "sum(cable) + cable"}, {}, r"has the samples of probes.cable outside of sum\(\)"),
    ({"J": "sum(cable*u)"}, {}, r"expected samples of a table of \[probes\], data, t and numbers inside sum\(\)"),
    ({"J": "sum(x*cable)"}, {}, r"expected samples of a table of \[probes\], data, t and numbers inside sum\(\)"),
    ({"J": "sum(dx(cable))"}, {}, r"expected samples of a table of \[probes\], data, t and numbers inside sum\(\)"),
    ({"J": "sum(t)"}, {}, r"expected samples of a table of \[probes\]"),
    ({"J": "sum(integral(u)*cable)"}, {}, r"expected samples of a table of \[probes\]"),
    ({"J": "integral(u*cable)"}, {}, r"has the samples of probes.cable outside of sum\(\)"),
    ({"J": "integral(u*sum(cable))"}, {}, r"contains sum\(\) inside another reduction"),
    ({"J": "sum(cable*sum(cable))"}, {}, r"expected samples of a table of \[probes\]"),
    ({"J": {"sum": "sum(cable)", "every_steps": 2}}, {}, r"J.every_steps: expected an expression alone"),
    ({"J": "sum(u)"}, {"probes": {"u": {"field": "u", "x": 0.5, "y": 0.5}}}, "rename probes.u, which is a field too"),
    ({"J": "sum(D)"}, {"probes": {"D": {"field": "u", "x": 0.5, "y": 0.5}}}, "rename probes.D, which is a parameter too"),
    ({"J": "sum(a - b)"}, {"probes": PAIR}, "tables with the same receivers and every_steps .* but got a and b; write a sum"),
    ({"J": "sum(a - d) + sum(b*d)", "data": {"d": "d.npy"}}, {"probes": PAIR}, "d: used with samples of a and of b"),
    ({"J": "sum(a)*sum(b) + sum(d)", "data": {"d": "d.npy"}}, {"probes": PAIR}, "which may belong to a and b"),
    ({"J": "sum(d)", "data": {"d": "d.npy"}}, {}, r"expected samples of a table of \[probes\]"),
    ({"J": "sum(cable - d) + integral(u*d)", "data": {"d": "d.npy"}}, {}, r"d: used both inside and outside of sum\(\)"),
    ({"J": "sum(cable)", "data": {"cable": "d.npy"}}, {}, r"'cable' is a table of \[probes\] already"),
])  # fmt: skip
def test_what_is_refused(objective, others, message):
    with pytest.raises(hs.InputError, match=message):
        build(from_mapping(tables(objective, **others), Path(".")))


@pytest.mark.long
def test_a_step_against_the_gradient_of_the_example_lowers_the_misfit_as_predicted():
    with h5py.File(EXAMPLE.with_suffix(".hdf5")) as file:
        model, guess, observed = (file[name][:] for name in ("model", "guess", "observed"))

    shots = {"equation.xs": [0.2], "equation.ys": [0.05]}  # the first one

    def misfit(c, **others):
        with hs.Simulation.from_toml(EXAMPLE, **{"equation.c": c, "time.end": 0.4, "ensemble": shots, **others}) as sim:
            value, gradient = sim.value_and_gradient()
            return value, gradient["equation.c"]

    data = {"objective.data.observed": observed[:1, :41]}
    assert misfit(model, **data)[0] < 1e-9  # the data are those of the model
    double = {**data, "numerics.precision": "float64"}
    value, gradient = misfit(guess.astype("f8"), **double)
    assert value > 1e-3
    slope, h = (gradient**2).sum(), 0.01 * value / (gradient**2).sum()
    left = [value - misfit(guess - size * gradient, **double)[0] - size * slope for size in (h, h / 2)]
    assert abs(left[0]) < 0.1 * h * slope and left[0] / left[1] == pytest.approx(4, rel=0.05)


def test_receivers_record_at_the_steps_of_a_cfl_number(tmp_path):
    """Of a linear equation, the last one shorter than the others. The data are those of a run with the same steps."""
    given = {
        "grid": {"shape": [20, 16], "upper": [1.2, 1.0]},
        "equation": {"name": "wave", "c": 0.9},
        "initial": {"u": "exp(-20*((x - 0.5)**2 + (y - 0.5)**2))"},
        "numerics": {"precision": "float64"},
        "time": {"end": 0.5, "cfl": 0.5},
        "probes": {"q": {"field": "u", "x": [0.3, 0.8], "y": [0.4, 0.6], "every_steps": 3}},
    }
    with hs.Simulation(given) as sim:
        sim.run(output=tmp_path / "observed.h5")
    data = {"o": f"{tmp_path}/observed.h5:probes/q/values"}
    given |= {"objective": {"J": "sum((q - o)**2)", "data": data}, "gradient": {"of": ["initial.u"]}}
    along = np.cos(np.arange(20 * 16)).reshape(20, 16)
    with hs.Simulation(given) as sim:
        start = sim["u"].values
        assert sim.value_and_gradient()[0] == 0

    def moved(h):
        with hs.Simulation(given) as sim:
            sim["u"] = 1.1 * start + h * along
            value, gradient = sim.value_and_gradient()
            return value, (gradient["initial.u"] * along).sum()

    (above, _), (_, slope), (below, _) = map(moved, (1e-4, 0.0, -1e-4))
    assert slope == pytest.approx((above - below) / 2e-4, rel=1e-9) != 0
    other, sentence = {**given, "time": {"end": 0.5, "cfl": 0.49}}, "objective.data.o: expected samples at the times of"
    with hs.Simulation(other) as sim, pytest.raises(hs.InputError, match=sentence):
        sim.value_and_gradient()


def test_steps_that_follow_the_solution_are_refused():
    given = {"grid": {"shape": [16]}, "equation": {"name": "burgers"}, "time": {"end": 1.0, "cfl": 0.5}}
    given |= {
        "probes": {"q": {"field": "u", "x": 3.0}},
        "objective": {"J": "sum(q**2)"},
        "gradient": {"of": ["initial.u"]},
    }
    with (
        hs.Simulation(given) as sim,
        pytest.raises(hs.InputError, match="receivers are not available yet with steps that"),
    ):
        sim.value_and_gradient()


@pytest.mark.parametrize(
    "text", ["sum(cable*sqrt(D - 0.02))", "sum(cable**2*sqrt(D - 0.02))", "sqrt(D - 0.02)*mean(u)"]
)
def test_an_infinite_derivative_with_respect_to_a_number_is_an_error(text):
    """Of a finite value. Samples of both signs would have infinite derivatives of both signs."""
    given = tables({"J": text}, equation={**tables({})["equation"], "D": 0.02})
    sentence = "expected a finite derivative of the objective with respect to equation.D"
    with hs.Simulation(given) as sim, pytest.raises(hs.NumericsError, match=sentence):
        sim.value_and_gradient()
