"""Fields on faces and corners: where values are, what holds at walls, what is kept, and what is refused."""

import math
import operator
import random

import h5py
import numpy as np
import pytest
from support import integrate, observed_orders, problem_of, simulation_of, stepped

import hpcstencil as hs
from hpcstencil.backends.native import step
from hpcstencil.numerics.integrators import ab2, stability_limits
from hpcstencil.problem.decomposition import decompose
from hpcstencil.problem.stability import cfl_step
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.file_blocks import output_blocks
from hpcstencil.symbolic.expressions import Derivative, Field, Parameter, Pointwise, parameter_field, walk
from hpcstencil.symbolic.staggering import located
from hpcstencil.validation.errors import InputError

HALFWAY = {
    "a": "difference_x(difference_x(u))", "b": "mean_y(mean_y(u))",
    "c": "mean_x(difference_y(mean_y(mean_x(u)) * mean_x(mean_y(u))))",
    "d": "difference_x(cos(x)*difference_x(u))", "e": "mean_y(mean_x(difference_x(difference_y(u))))",
}  # fmt: skip
CLOSED = {
    "x": {"neumann": 0.0}, "y": {"neumann": 0.0}, "u": {"x": {"dirichlet": 0.0}}, "v": {"y": {"dirichlet": 0.0}},
}  # fmt: skip
BASIN = {
    "grid": {"shape": [20, 16], "upper": [20.0, 16.0]},
    "equation": {"name": "shallow_water", "g": 1.0, "f": "0.1 + 0.01*y", "nu": 0.05},
    "initial": {"h": "10 + 0.5*cos(pi*x/20)*cos(pi*y/16)"},
    "boundary": CLOSED,
    "numerics": {"precision": "float64"},
    "time": {"end": 2.0, "dt": 0.05},
}


@pytest.mark.parametrize("order", (2, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 6)), 8))
def test_observed_order_of_every_operator_between_positions(order):
    for name, observed in observed_orders(HALFWAY, order).items():
        assert observed == pytest.approx(order, abs=0.7), HALFWAY[name]


def test_second_difference_of_two_halves_is_the_whole():
    """difference(difference(u)) of order 2 is the Laplacian's stencil, walls included."""
    for boundary in ({"x": "periodic"}, {"x": {"dirichlet": "0.3*t"}}, {"x": {"neumann": 0.2}}):
        results = [
            integrate(problem_of(
                grid={"shape": [33], "upper": [3.3]}, equation={"name": "custom", "rhs": {"u": rhs}}, boundary=boundary,
                initial={"u": "sin(x)"}, numerics={"precision": "float64"}, time={"end": 0.1, "dt": 1e-3},
            ))["u"]
            for rhs in ("dxx(u)", "difference_x(difference_x(u))")
        ]  # fmt: skip
        np.testing.assert_allclose(*results, atol=1e-13)


def evaluated(problem, fields):
    simulation = simulation_of(problem)
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    return diagnostics.evaluate(simulation.put(fields), 0.0)


def test_a_closed_basin_keeps_its_mass_and_loses_energy_by_friction_alone():
    energy = "integral(0.5*h*h) + 0.5*integral(mean_x(h)*u*u) + 0.5*integral(mean_y(h)*v*v)"
    drifts = {}
    for nu in (0.0, 0.5):
        tables = {**BASIN, "equation": {**BASIN["equation"], "nu": nu}}
        problem = problem_of(**tables, diagnostics={"mass": "integral(h)", "energy": energy})
        simulation = simulation_of(problem)
        before = evaluated(problem, simulation.get(simulation.initial_fields(), problem.fields))
        after = evaluated(problem, integrate(problem, "native"))
        assert after["mass"] == pytest.approx(before["mass"], rel=1e-14)
        drifts[nu] = after["energy"] - before["energy"]
    assert abs(drifts[0.0]) < 1e-3 * abs(drifts[0.5]) and drifts[0.5] < 0


def test_the_magnetic_field_stays_without_sources():
    """The Yee grid keeps ∇·B to round-off."""
    boundary = {"x": "periodic", "y": {"neumann": 0.0}, "z": {"neumann": 0.0}}
    for name, letters in {"Ex": "yz", "Ey": "z", "Ez": "y", "By": "y", "Bz": "z"}.items():
        boundary[name] = {letter: {"dirichlet": 0.0} for letter in letters}
    problem = problem_of(
        grid={"shape": [12, 10, 8], "upper": [1.2, 1.0, 0.8]},
        equation={"name": "maxwell", "c": "1 + 0.3*cos(2*pi*x/1.2)", "source": 5.0, "t0": 0.1, "f0": 5.0, "xs": 0.6, "ys": 0.5,
                  "zs": 0.4},
        boundary=boundary,
        numerics={"precision": "float64", "integrator": "leapfrog"},
        diagnostics={"div": "max(abs(difference_x(Bx) + difference_y(By) + difference_z(Bz)))", "size": "max(abs(By))"},
        time={"end": 0.5, "dt": 0.02},
    )  # fmt: skip
    found = evaluated(problem, integrate(problem))
    assert found["size"] > 1.0 and found["div"] < 1e-12 * found["size"] / 0.1


def test_cpml_around_yees_grid_reflects_less_than_a_ten_thousandth_of_the_energy():
    pulse = "exp(-((x - 3)/0.15)**2)"
    problem = problem_of(
        grid={"shape": [300], "upper": [6.0]},
        equation={"name": "maxwell"},
        initial={"Ez": pulse, "By": f"-{pulse}"},
        boundary={"x": {"cpml": {"width": 0.4}}},
        numerics={"precision": "float64", "order": 4},
        diagnostics={"energy": "integral(where(x > 0.4, where(x < 5.6, 1, 0), 0)*Ez**2)"},
        time={"end": 6.0, "dt": 0.01},
    )
    simulation = simulation_of(problem)
    before = evaluated(problem, simulation.get(simulation.initial_fields(), problem.fields))["energy"]
    assert evaluated(problem, integrate(problem))["energy"] < 1e-4 * before


# ---- walls and files ---------------------------------------------------------------------------------------------------


def test_a_moving_wall_is_where_it_is_said_to_be():
    """u = 0.1 + 0.2 t at x = 0 and 0.3 sin(t) at the other end, set at once and followed."""
    boundary = {
        "x": {"neumann": 0.0},
        "u": {"x": {"lower": {"dirichlet": "0.1 + 0.2*t"}, "upper": {"dirichlet": "0.3*sin(t) + y"}}},
    }
    problem = problem_of(**{**BASIN, "boundary": boundary})
    simulation = simulation_of(problem)
    start = output_blocks(simulation, simulation.initial_fields(), ["u"], 0.0)["u"]
    assert start.shape == (21, 16) and (start[0] == 0.1).all()
    assert np.array_equal(start[-1], np.arange(16) + 0.5)
    end = output_blocks(simulation, simulation.put(integrate(problem)), ["u"], 2.0)["u"]
    np.testing.assert_allclose(end[0], 0.5, rtol=1e-12)
    np.testing.assert_allclose(end[-1], 0.3 * np.sin(2.0) + np.arange(16) + 0.5, rtol=1e-12)


def test_a_field_on_faces_begins_from_a_file_with_all_of_them(tmp_path):
    rng = np.random.default_rng(3)
    given = {"h": 10 + rng.random((20, 16)), "u": rng.random((21, 16)), "v": rng.random((20, 17))}
    with h5py.File(tmp_path / "start.h5", "w") as file:
        for name, values in given.items():
            file[name] = values
    tables = {**BASIN, "initial": {"file": str(tmp_path / "start.h5")}}
    simulation = simulation_of(problem_of(**tables))
    fields = simulation.get(simulation.initial_fields(), "huv")
    assert np.array_equal(fields["u"][1:], given["u"][1:-1]) and np.array_equal(fields["v"][:, 1:], given["v"][:, 1:-1])
    assert not fields["u"][0].any() and not fields["v"][:, 0].any()  # the walls are closed
    with h5py.File(tmp_path / "start.h5", "r+") as file:
        del file["u"]
        file["u"] = given["u"][:-1]
    with pytest.raises(InputError, match=r"'u' has shape \(20, 16\), expected \(21, 16\)"):
        simulation.initial_fields()


# ---- what is refused ---------------------------------------------------------------------------------------------------

REFUSED = {
    "a wall without a value": ({"boundary": {"x": {"neumann": 0.0}}}, "expected a value for 'u', which lives on the faces"),
    "a sum of strangers": ({"diagnostics": {"e": "integral(u*u + v*v)"}}, "'v' lives on y faces, .* with mean_x.* and mean_y"),
    "half a way in a sum": ({"diagnostics": {"e": "integral(mean_x(h) + h)"}}, "'h' lives at cell centres, but is used"),
    "half a way at the end": (
        {"equation": {"name": "custom", "rhs": {"u": "difference_x(u)", "v": "0", "h": "0"}}, "boundary": {}, "initial": {}},
        "equation.u: expected values at cell centres, but got values on x faces; bring it there with mean_x",
    ),
    "one axis": ({"grid": {"shape": [20], "upper": [1.0]}, "boundary": {}, "equation": {"name": "shallow_water"},
                  "initial": {}}, "needs a grid with two axes, but got 1"),
    "a mask": ({"mask": {"solid": "x > 5"}}, "mask: not available yet for equations with fields on a staggered grid"),
    "inner results": ({"boundary": {**CLOSED, "operators": {"laplacian(u)": {"x": {"dirichlet": 0.0}}}}},
                      "boundary.operators: fits equations at cell centres"),
    "no waves with ab2": ({"numerics": {"integrator": "ab2"}, "time": {"end": 1.0, "cfl": 0.5}}, "unstable .* at any step"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    tables, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence):
        problem = problem_of(**{**BASIN, **tables})
        cfl_step(problem, {"h": 10.0, "u": 0.1, "v": 0.1})


def test_a_grid_too_small_for_images_beyond_a_wall():
    problem = problem_of(**{**BASIN, "grid": {"shape": [2, 16], "upper": [2.0, 16.0]}})
    with pytest.raises(InputError, match="2 cells along x are fewer than the 3 that the stencil needs at a boundary"):
        decompose(problem, 1, 1)


# ---- Adams-Bashforth ---------------------------------------------------------------------------------------------------


def test_ab2_with_epsilon_is_of_first_order():
    errors, numerics = [], {"precision": "float64", "integrator": "ab2", "epsilon": 0.1}
    for steps in (40, 80):
        problem = problem_of(
            grid={"shape": [8], "upper": [1.0]}, equation={"name": "custom", "rhs": {"u": "-u*cos(t)"}},
            initial={"u": "1"}, numerics=numerics, time={"end": 2.0, "dt": 2.0 / steps},
        )  # fmt: skip
        errors.append(abs(integrate(problem)["u"][0] - np.exp(-np.sin(2.0))))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(1, abs=0.2)


def test_stability_of_ab2():
    """-1/(1 + ε) on the real axis, and something on the imaginary one, where without ε there is nothing."""
    real, imaginary = stability_limits(ab2(0.1))
    assert real == pytest.approx(1 / 1.1, abs=0.02) and 0.3 < imaginary < 0.8


def switches(**tables):
    """How many where() the parameters of an equation decide, and its right-hand side."""
    tree = problem_of(grid={"shape": [8]}, **tables).trees["u"]
    conditions = [part.arguments[0] for part in walk(tree) if isinstance(part, Pointwise) and part.function == "where"]
    return sum(any(isinstance(part, Parameter) for part in walk(condition)) for condition in conditions), tree


def test_what_parameters_switch_off_is_not_computed():
    """But where members of an ensemble differ in the switch."""
    off, on = ({"name": "custom", "s": s, "rhs": {"u": "where(s > 0, dxx(u), -u)"}} for s in (0.0, 1.0))
    (none, tree), (none_either, other) = switches(equation=off), switches(equation=on)
    assert none == none_either == 0 and tree != other
    assert switches(equation=off, ensemble={"equation.s": [0.0, 1.0]})[0] == 1
    chosen = problem_of(
        grid={"shape": [8]},
        equation={"name": "custom", "a": 2.0, "rhs": {"u": "where(a*a > 3, dxx(u), -u) + where(t > a, 1, u)"}},
    ).trees["u"]
    assert (
        chosen
        == problem_of(
            grid={"shape": [8]}, equation={"name": "custom", "a": 2.0, "rhs": {"u": "dxx(u) + where(t > a, 1, u)"}}
        ).trees["u"]
    )


def test_what_is_not_computed_may_be_named_and_may_be_infinite():
    """A key of [boundary.operators] names what is written, whichever branch is taken."""
    named = {"x": {"dirichlet": 0.0}, "operators": {"laplacian(u)": {"dirichlet": 0.0}}}
    for a, rhs, boundary in (
        (0.0, "where(a, laplacian(laplacian(u)), laplacian(u))", named),
        (0.0, "where(a**-1 > 5, laplacian(u), u)", {}),
        (1e300, "where(a**2 > 1e308, laplacian(u), u)", {}),
    ):
        equation = {"name": "custom", "a": a, "rhs": {"u": rhs}}
        given = {"grid": {"shape": [8]}, "numerics": {"precision": "float64"}}
        tree = problem_of(**given, equation=equation, boundary=boundary).trees["u"]
        assert isinstance(tree, Derivative) and tree.operand == Field("u"), rhs


def test_native_code_need_not_keep_inner_results(monkeypatch):
    results, kept = [], []
    for short in (0, step.SHORT):
        monkeypatch.setattr(step, "SHORT", short)
        problem = problem_of(**{**BASIN, "numerics": {"integrator": "ab2", "epsilon": 0.1, "precision": "float64"}})
        kept.append(any(field < 0 for field in step.step_of(problem).plan.field_of))
        results.append(stepped(problem, simulation_of(problem, kernel="native"), 20, 0.05))
    assert kept == [True, False]
    for name, block in results[0].items():
        scale = np.abs(block).max()
        np.testing.assert_allclose(results[1][name], block, atol=64 * np.finfo(float).eps * scale, rtol=0)


@pytest.mark.parametrize("position", [(1, 0), (0, 1), (1, 1)])
def test_parameters_with_a_value_per_cell_are_not_mixed_up_on_faces(position):
    rng, names = random.Random(1), [f"p{n}" for n in range(6)]

    def tree(depth):
        if not depth:
            return parameter_field(rng.choice(names)) if rng.random() < 0.8 else Field("u")
        return rng.choice((operator.add, operator.mul, operator.sub))(tree(depth - 1), tree(depth - 1))

    for _ in range(20):
        made = Field("u") + tree(4)
        found = located(made, position, {"u": position}, (1.0, 1.0), "rhs")
        assert [part.name for part in leaves(found)] == [part.name for part in leaves(made)]


def leaves(tree):
    """The fields of a tree, in the order and as often as they are used."""
    return [tree] if isinstance(tree, Field) else [leaf for child in tree.children for leaf in leaves(child)]


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_constant_arrays_of_a_user_equation_on_faces_have_the_results_of_numbers(kernel, tmp_path):
    (tmp_path / "drag.py").write_text(
        "class Drag:\n"
        "    parameters = {'a': 3.0, 'b': 1.0, 'c': 0.5}\n"
        "    def fields(self, ndim):\n        return ('u',)\n"
        "    def positions(self, ndim):\n        return {'u': (1, 0)}\n"
        "    def rhs(self, f, p, space):\n        return {'u': f.u/p.a - p.b/p.c}\n"
    )
    results = []
    for made in (float, lambda value: np.full((8, 6), value)):
        equation = {"name": f"{tmp_path}/drag.py:Drag", "a": made(3.0), "b": made(1.0), "c": made(0.5)}
        given = {"grid": {"shape": [8, 6]}, "equation": equation, "time": {"end": 0.5, "dt": 0.1}}
        with hs.Simulation({**given, "numerics": {"precision": "float64", "kernel": kernel}}) as sim:
            sim.run()
            results.append(sim["u"].values)
    assert np.allclose(*results, rtol=1e-14) and results[0].all()
