"""Equations from a Python file of the user's."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import problem_of, simulation_of, stepped

from hpcstencil.config.reader import from_mapping
from hpcstencil.problem.build import build
from hpcstencil.problem.stability import stable_dt
from hpcstencil.problem.warnings import warnings_of
from hpcstencil.validation.errors import InputError

HEAT = """
from hpcstencil.equations import Rates
class MyHeat:
    parameters = {"D": 1.0}
    def fields(self, ndim):
        return ("u",)
    def rhs(self, f, p, space):
        return {"u": p.D * space.laplacian(f.u)}
    def rates(self, p, largest, ndim):
        return Rates(diffusion=p.D)
"""


def problem(folder: Path, text: str, name: str = "MyHeat", **tables):
    (folder / "mine.py").write_text(text)
    given = {
        "grid": {"shape": [12, 10]},
        "equation": {"name": f"mine.py:{name}", **tables.pop("parameters", {})},
        "time": {"end": 1.0, "dt": 0.01},
        **tables,
    }
    return build(from_mapping(given, folder))


def test_it_equals_the_built_in(tmp_path):
    mine = problem(tmp_path, HEAT, parameters={"D": 0.7})
    built_in = problem_of(grid={"shape": [12, 10]}, equation={"name": "heat", "D": 0.7})
    results = [stepped(p, simulation_of(p), 10, 0.01)["u"] for p in (mine, built_in)]
    assert np.array_equal(*results)
    assert mine.source == HEAT and stable_dt(mine, {}) == stable_dt(built_in, {})


def test_its_text_is_utf_8_in_any_locale(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("# ∂u/∂t = D ∇²u" + HEAT, encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from hpcstencil.equations.user import load;"
        "print(ascii(load(Path(sys.argv[1]), 'MyHeat')[1]))"
    )
    given = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", program, path], env=given, capture_output=True, text=True)
    assert done.stdout.strip() == ascii(path.read_text(encoding="utf-8")), done.stderr


def test_functions_and_comparisons_make_expressions(tmp_path):
    text = """
from hpcstencil.symbolic.functions import absolute, exp, maximum, t, where
class Mine:
    parameters = {"a": 2.0}
    def fields(self, ndim):
        return ["u", "w"]
    def rhs(self, f, p, space):
        return {"w": 0, "u": where(f.u > p.a, exp(-f.u), maximum(f.u, 0.5)) + absolute(f.w)*t + (f.u <= 0.5) - space.dx(f.u)}
"""
    mine = problem(tmp_path, text.replace("space.dx(f.u)", "space.gradient(f.u)[0]"), "Mine")
    custom = problem_of(
        grid={"shape": [12, 10]},
        equation={
            "name": "custom", "a": 2.0,
            "rhs": {"u": "where(u > a, exp(-u), maximum(u, 0.5)) + abs(w)*t + (u <= 0.5) - dx(u)", "w": "0"},
        },
    )  # fmt: skip
    assert mine.fields == ("u", "w")
    assert mine.trees == custom.trees


PLACES = "    def positions(self, ndim):\n        return {}\n"
FAULTS = [
    ("class Other:\n    pass\n", "expected a class \"MyHeat\" in .*mine.py, but there is none; it has Other"),
    ("class MyHaet:\n    pass\n", "did you mean 'MyHaet'"),
    ("def MyHeat(:\n", r"mine.py, line 1: SyntaxError"),
    ("import nothing_like_it\n", r"mine.py, line 1: ModuleNotFoundError: No module named 'nothing_like_it'"),
    ("class MyHeat:\n    pass\n", r"expected the methods fields.* but fields and rhs is missing"),
    (HEAT.replace("p.D *", "p.E *"), r"mine.py, line 8: AttributeError: .*'E'"),
    (HEAT.replace('return {"u"', 'return {"v"'), r"a time derivative for each of u, but got v \(Pointwise\)"),
    (HEAT.replace("p.D * space.laplacian(f.u)", "'u'"), r"for each of u, but got u \(str\)"),
    (HEAT.replace('("u",)', '("u", "u")'), "each field to have a name of its own"),
    (HEAT.replace('("u",)', "()"), "expected MyHeat.fields in .* to return at least one name"),
    (HEAT.replace('("u",)', '("x",)'), "'x' is a word of expressions"),
    (HEAT.replace('{"D": 1.0}', '["D"]'), "to map names to defaults"),
    (HEAT + PLACES.format("{'u': (1,)}"), r"expected positions\(\) to give some of u .* got \"u\": \(1,\)"),
    (HEAT + PLACES.format("{'w': (1, 0)}"), r"expected positions\(\) to give some of u"),
    (HEAT.replace('("u",)', '"prey"'), r"return a tuple of names, such as \(\"u\",\), but got 'prey'; correct it"),
    (HEAT.replace('return ("u",)', "pass"), "a tuple of names, .* but got nothing"),
    (HEAT.replace('return {"u"', 'd = {"u"'), r"but it returned nothing; write .* return {\"u\""),
    *((HEAT.replace("space.laplacian(f.u)", f"__import__('{m}').sin(f.u)"), "line 8: TypeError.* import sin, where")
      for m in ("numpy", "math")),
    (HEAT.replace("(self, p, largest, ndim)", "(self, p)"), r"mine.py: TypeError: MyHeat.rates\(\) takes 2"),
    (HEAT.replace("diffusion=p.D)", "diffusion=lost)"), "line 10: NameError: name 'lost'"),
    (HEAT.replace("diffusion=p.D)", "speed=p.D)"), "line 10: TypeError: .*'speed'"),
    (HEAT.replace("diffusion=p.D", "diffusion=largest['w']"), 'line 10: LookupError: largest has no "w"; measured are u'),
    (HEAT.replace("diffusion=p.D", "diffusion=largest['u']").replace("1.0}", "1.0}; solution_dependent = False"),
     'line 10: LookupError: largest has no "u"; nothing is measured, as solution_dependent = False'),
    (HEAT + "    def damping(self, f, p, space):\n        return {'w': -f.u}\n", r"MyHeat.damping .* fields, u, but got \"w\""),
    (HEAT + "    def damping(self, f, p, space):\n        pass\n", r"MyHeat.damping .* but got nothing"),
    (HEAT + "    def signals(self, f, p, ndim):\n        return {'c': f.q}\n", r"mine.py, line \d+: AttributeError"),
    (HEAT.replace("return Rates", "Rates"), r"expected MyHeat.rates\(.* to return Rates\(...\) .* but got nothing"),
    *((HEAT.replace("p.D)", f"{value})"), f"Rates with a finite number, not negative, but got diffusion = {shown}")
      for value, shown in (("-1.0", "-1.0"), ("1e999 - 1e999", "nan"), ("1e999", "inf"), ("None", "None"))),
    (HEAT.replace("diffusion=p.D)", "velocity=1.0)"), "at most 2 finite numbers, one per axis, but got velocity = 1.0"),
    (HEAT.replace("diffusion=p.D)", "upwind=[1, 2, 3])"), r"one per axis, not negative, but got upwind = \[1, 2, 3\]"),
    (HEAT.replace("space.laplacian(f.u)", "(1 if f.u > 0 else 2)"), "line 8: TypeError: an expression has no truth value"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [
    (HEAT.replace("p.D *", "p.DD *"), "there is no 'DD' here; did you mean 'D'"),
    (HEAT.replace("f.u)", "f.temperature)"), "there is no 'temperature' here; the known names are: u"),
    (HEAT.replace("space.laplacian", "space.laplace"), "space has no operator 'laplace'; did you mean 'laplacian'"),
    (HEAT.replace("space.laplacian", "space.dxx"), "space has no operator 'dxx'; did you mean 'derivative'"),
    (HEAT.replace("space.laplacian", "space.zero"), "space has no operator 'zero'; there are derivative, laplacian,"),
])  # fmt: skip
def test_unknown_names_are_told_with_the_known_ones(tmp_path, text, words):
    with pytest.raises(InputError, match=f"^equation.name.*mine.py, line 8: AttributeError: {words}"):
        problem(tmp_path, text)


@pytest.mark.parametrize("time", [{"dt": 1.0}, {"cfl": 0.5}])
def test_rates_that_are_too_small_are_warned_of(tmp_path, time):
    given = problem(tmp_path, HEAT.replace("diffusion=p.D", "diffusion=p.D/100"), time={"end": 10.0, **time})
    (warning,) = [each for each in warnings_of(given) if "time.dt" not in each]
    assert (
        "with the rates of MyHeat, steps up to 10 are stable, but the right-hand sides allow only about 0.3" in warning
    )
    assert warnings_of(problem(tmp_path, HEAT, time={"end": 1.0, "cfl": 0.5})) == []


@pytest.mark.parametrize(("text", "words"), FAULTS)
def test_faults_are_told_in_a_sentence(tmp_path, text, words):
    with pytest.raises(InputError, match=rf"^equation\.name.*{words}"):
        problem(tmp_path, text)


def test_a_class_without_rates_needs_a_step(tmp_path):
    text = HEAT[: HEAT.index("    def rates")]
    problem(tmp_path, text)
    problem(tmp_path, text, time={"end": 1.0, "tolerance": 1e-3})
    with pytest.raises(InputError, match=r"time\.cfl: the stable step of this equation is not known"):
        problem(tmp_path, text, time={"end": 1.0})


def test_unknown_parameters_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"equation\.d: .*has no such parameter; did you mean 'D'"):
        problem(tmp_path, HEAT, parameters={"d": 1.0})


def test_a_parameter_may_be_used_only_beside_the_equation(tmp_path):
    text = HEAT.replace('{"D": 1.0}', '{"D": 1.0, "g": 0.5}')
    made = problem(tmp_path, text, parameters={"g": 2.0}, initial={"u": "x*g"}, boundary={"x": {"dirichlet": "g*t"}})
    assert made.parameters["g"] == 2.0
    with pytest.raises(InputError, match="equation.g: it has no effect on a grid with 2 axes"):
        problem(tmp_path, text, parameters={"g": 2.0})
