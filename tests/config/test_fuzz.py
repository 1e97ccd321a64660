"""Random inputs: whatever comes, `check` either understands it or refuses it in one short line, and writes nothing.

Documents are the shipped inputs with things dropped, doubled, renamed, replaced and spliced in; expressions come from the
grammar of the language, whole and damaged. CI takes the same few hundred cases each time; the long suite takes 36 000 new
ones (`pytest -m long tests/config/test_fuzz.py`). A part of what `check` accepts is also compiled and stepped.
"""

import ast
import datetime
import math
import os
import resource
import signal
import tomllib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import simulation_of

from hpcstencil.config.provenance import to_toml
from hpcstencil.config.reader import from_mapping, load
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.build import build
from hpcstencil.problem.problem import Problem
from hpcstencil.simulation.backend_choice import foreseen
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.dry_run import report
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Parameter
from hpcstencil.symbolic.parser import Scope, parse
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.toml_text import dump_key, dump_value

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("error")  # of Python and numpy: they would stand on standard error too
RICH = """
title = "every table"
[grid]
shape = [12, 10]
lower = [-1.0, 0.0]
upper = [1.0, 2.5]
[equation]
name = "custom"
D = 0.1
k = "1 + 0.5*sin(x)"
[equation.rhs]
u = "div_grad(D*k, u) - u**3 + v"
v = "laplacian(u - v) - upwind(v, 1, k)"
[initial]
u = "0.1*noise(3, 1)"
[boundary]
x = { lower = { dirichlet = "sin(t)" }, upper = { neumann = 0.0 } }
[boundary.v]
x = { dirichlet = "y*t" }
[numerics]
order = 4
integrator = "ssprk3"
precision = "float64"
kernel = "shift"
[time]
end = 1.0
dt = 1e-3
dt_every = 2
[decomposition]
processes = "auto"
devices = 1
tiles = [2, 1]
steps_per_exchange = "auto"
[output]
path = "rich.h5"
every_steps = 10
fields = ["v"]
compression = "gzip"
method = "serial"
units = { u = "K" }
[output.long_name]
v = "the second"
[diagnostics]
every_steps = 5
mass = "integral(u + v)/mean(1)"
[checkpoint]
every_minutes = 5
keep = 3
walltime = "auto"
"""
SEEDS = [*(path.read_text() for path in sorted((ROOT / "inputs").glob("*.toml"))), RICH]
LONGEST_SENTENCE = 500  # characters: one sentence, with at most one list of names in it
PATIENCE = 20  # seconds after which a case counts as hanging: it takes some milliseconds
GROWTH = 2**29  # bytes that all cases of a test together may leave behind


# ---- the property ----------------------------------------------------------------------------------------------------


@contextmanager
def within(seconds: int):
    """Fail where the block hangs."""

    def fail(*_):
        raise AssertionError(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def understood(make) -> Problem | None:
    """The problem that ``make`` returns, which can also be reported and written out; None where it is refused, which must
    be said in one short line."""
    with within(PATIENCE):
        try:
            problem = make()
            decomposed = Decomposed.of(problem, 1, 1)
        except InputError as error:
            sentence = str(error)
            assert sentence.strip() and len(sentence.splitlines()) == 1, sentence
            assert len(sentence) <= LONGEST_SENTENCE, (len(sentence), sentence)
            return None
        assert "predicted time" in report(foreseen(decomposed))
        assert to_toml(from_mapping(tomllib.loads(to_toml(problem.config)), Path("/"))) == to_toml(problem.config)
        assert all(math.isfinite(bound) for bound in problem.bounds.values())
        return problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder to be in. What the cases of a test leave in memory is bounded as well."""
    path, before = tmp_path_factory.mktemp("fuzz"), Path.cwd()
    os.chdir(path)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield path
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)
    os.chdir(before)
    assert grown < GROWTH


def cases(number: int):
    """So many cases, always the same."""
    return settings(max_examples=number, derandomize=True, database=None, suppress_health_check=SLOW)


def new_cases(number: int, shrink: bool = True):
    """So many cases, others each time; hypothesis prints the one that fails, made small where that is quick."""
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    return settings(max_examples=number, database=None, suppress_health_check=SLOW, phases=phases)


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


# ---- documents -------------------------------------------------------------------------------------------------------

FRAGMENTS = [
    "[grid]", "[[grid]]", "[equation.rhs]", "shape", "= ", "=", "[", "]", "{", "}", '"', '"""', "'''", "\\", "#", ",", ".",
    "inf", "-nan", "1e999", "0x_1", "1_0", "9" * 400, "2024-02-30", "07:32:00", "1979-05-27T07:32:00-08:00", "true", "\0",
    "\t", "\r\n", "\r", "\x0c", "\ufeff", "\u2028", "é", "Ω", "\U0001f600", "auto", "a.b.c", '"a b"', "[1, 2]", "{ a = 1 }",
    "periodic", '"laplacian(u)"', "x = 1\n", "__import__('os')", "dt = 1e-300\n", "[ensemble]\n", "[mask]\n",
]  # fmt: skip
ODD = [
    0, -1, 1, 2, 3, 7, 2**31, 2**53, 2**63 - 1, 2**63, -(2**64), 10**400, 0.0, -0.0, 0.5, 1.5, 1e-300, 5e-324, 1e300,
    1.7976931348623157e308, math.inf, -math.inf, math.nan, True, False, "", " ", "auto", "u", "x", "t", "1", "x*y", "1/x",
    "log(x)", "sin(x", "noise(1)", "u.v", "heat", "custom", "euler", "float64", "periodic", "none", "..", "/", "a/b.h5",
    "line\nbreak", "tab\t", "quote\"'", "back\\slash", "ü", "x" * 300, [], {}, [[]], [1], [1, 2], [1.0, 2.0],
    [4, 4, 4], ["u"], ["u", "v"], {"dirichlet": 0}, {"neumann": "sin(t)"}, {"lower": {"dirichlet": 1}},
    {"value": 1}, datetime.date(2026, 11, 20), datetime.time(1, 2, 3), datetime.datetime(2026, 11, 20, 1, 2, 3),
]  # fmt: skip
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
leaves = st.sampled_from(ODD) | st.integers() | st.floats() | texts | st.booleans()
values = leaves | st.lists(leaves, max_size=4) | st.dictionaries(texts, leaves, max_size=3)
words = st.sampled_from(
    ["title", "grid", "shape", "lower", "upper", "equation", "name", "D", "k", "rhs", "u", "v", "initial", "file", "boundary",
     "x", "y", "z", "time", "end", "dt", "cfl", "tolerance", "dt_every", "decomposition", "processes", "devices", "tiles",
     "output", "path", "every", "every_steps", "fields", "units", "diagnostics", "checkpoint", "keep", "walltime", "mask",
     "ensemble", "seed", "operators", "dirichlet", "neumann", "robin", "periodic", "numerics", "order", "integrator"]
)  # fmt: skip
names = words | texts


def written(tables) -> str:
    """The tables as TOML, each an inline table: any nesting can be written so."""
    return "".join(f"{dump_key(key)} = {dump_value(value)}\n" for key, value in tables.items())


def places(value, path=()):
    """The path of every entry of nested tables."""
    for key, entry in value.items() if isinstance(value, dict) else ():
        yield (*path, key)
        yield from places(entry, (*path, key))


@st.composite
def changed_tables(draw):
    """A shipped input with some entries dropped, renamed, moved or given another value."""
    tables = tomllib.loads(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 3))):
        found = sorted(places(tables))
        if not found:
            break
        *path, last = draw(st.sampled_from(found))
        table = tables
        for name in path:
            table = table[name]
        match draw(st.sampled_from(["drop", "rename", "replace", "add", "move", "mangle"])):
            case "drop":
                del table[last]
            case "rename":
                table[draw(names)] = table.pop(last)
            case "replace":
                table[last] = draw(values)
            case "add":
                table[draw(names)] = draw(values)
            case "move":
                tables[last] = table[last]
            case "mangle":
                table[last] = damaged(draw, str(table[last]))
    return written(tables)


def damaged(draw, text: str) -> str:
    """The text with a piece cut out, doubled, or something else put in."""
    start = draw(st.integers(0, len(text)))
    stop = min(len(text), start + draw(st.integers(0, 12)))
    middle = draw(st.sampled_from(["", text[start:stop] * 2]) | st.sampled_from(FRAGMENTS) | texts)
    return text[:start] + middle + text[stop:]


@st.composite
def changed_text(draw):
    """A shipped input with its lines cut, doubled, swapped or mixed with another's, or with characters put in."""
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        lines = text.split("\n")
        here = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["drop", "double", "splice", "edit", "edit"])):
            case "drop":
                del lines[here]
            case "double":
                lines.insert(draw(st.integers(0, len(lines))), lines[here])
            case "splice":
                lines[here:here] = draw(st.sampled_from(SEEDS)).split("\n")[: draw(st.integers(1, 8))]
            case "edit":
                lines[here] = damaged(draw, lines[here])
        text = "\n".join(lines)
    return text


encodings = st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1", "cp037"])
documents = st.builds(
    lambda text, encoding: text.encode(encoding, "replace"), changed_tables() | changed_text(), encodings
) | st.binary(max_size=60)


@st.composite
def bytes_put_in(draw):
    """A shipped input with random bytes over some of its own."""
    content = bytearray(draw(st.sampled_from(SEEDS)).encode())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        content[start : start + draw(st.integers(0, 6))] = draw(st.binary(max_size=6))
    return bytes(content)


def document_is_understood_or_refused(folder, content, overrides=()):
    path = folder / "input.toml"
    path.write_bytes(content)
    understood(lambda: build(load(path, overrides)))
    assert list(folder.iterdir()) == [path]
    assert path.read_bytes() == content


@cases(150)
@given(content=documents | bytes_put_in())
def test_documents(folder, content):
    document_is_understood_or_refused(folder, content)


@pytest.mark.long
@pytest.mark.timeout(3600)
@new_cases(20_000)
@given(content=documents | bytes_put_in())
def test_many_documents(folder, content):
    document_is_understood_or_refused(folder, content)


# ---- --set -----------------------------------------------------------------------------------------------------------

keys = st.lists(names, min_size=1, max_size=4).map(lambda parts: ".".join(map(dump_key, parts))) | texts
settings_ = st.builds(lambda key, value: f"{key}={dump_value(value)}", keys, values)
settings_ |= st.builds(lambda key, value: f"{key} = {value}", keys, texts | st.sampled_from(FRAGMENTS))
settings_ |= texts | st.lists(st.sampled_from([*FRAGMENTS, "grid", "=", ".", "time"]), max_size=6).map("".join)


@cases(80)
@given(seed=st.sampled_from(SEEDS), overrides=st.lists(settings_, min_size=1, max_size=3))
def test_overrides(folder, seed, overrides):
    document_is_understood_or_refused(folder, seed.encode(), overrides)


@pytest.mark.long
@pytest.mark.timeout(3600)
@new_cases(6_000)
@given(seed=st.sampled_from(SEEDS), overrides=st.lists(settings_, min_size=1, max_size=3))
def test_many_overrides(folder, seed, overrides):
    document_is_understood_or_refused(folder, seed.encode(), overrides)


# ---- expressions -----------------------------------------------------------------------------------------------------


class Real:
    """A float64 with Python's operators, comparisons giving 1 and 0: an expression's other reading."""

    def __init__(self, value):
        self.value = np.float64(value)

    def __neg__(self):
        return Real(-self.value)

    def __pos__(self):
        return self


for _name, _function in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "pow": np.power, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}.items():  # fmt: skip
    setattr(Real, f"__{_name}__", lambda a, b, function=_function: Real(function(a.value, b.value)))


def on_reals(function):
    return lambda *arguments: Real(function(*(argument.value for argument in arguments)))


POINT = {"x": 0.7, "y": -1.3, "D": 0.25}
MEANING = {name: Real(value) for name, value in {**POINT, "pi": np.pi}.items()}
MEANING |= {name: on_reals(getattr(np, name)) for name in ("abs", "sqrt", "exp", "log", "sin", "cos", "tan", "tanh")}
MEANING |= {name: on_reals(getattr(np, name)) for name in ("sign", "minimum", "maximum")}
MEANING["where"] = on_reals(lambda c, a, b: a if c != 0 else b)


class Wrapped(ast.NodeTransformer):
    """Numbers as `Real`."""

    def visit_Constant(self, node):
        return ast.Call(ast.Name("Real", ast.Load()), [node], [])


def python_reads(text: str) -> float:
    """The value of a pointwise expression as Python itself reads it."""
    tree = ast.fix_missing_locations(Wrapped().visit(ast.parse(" ".join(text.split()), mode="eval")))
    return eval(compile(tree, "", "eval"), {"__builtins__": {}, "Real": Real, **MEANING}).value


BOUNDS = ("written out", "nested more than", "cannot be read", "characters")
numbers = (
    st.integers(0, 99).map(str) | st.floats(0, 1e6).map(repr) | st.sampled_from(["1e-3", ".5", "3.", "1_000", "0x1f"])
)


def grown(draw, leaf, functions, depth=4):
    """An expression over ``leaf``; ``functions`` holds names by their number of arguments."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(leaf)
    match draw(st.sampled_from(["operator", "operator", "sum", "sign", 1, 1, 2, 3])):
        case "operator":
            space = draw(st.sampled_from(["", " ", "  ", "\t"]))
            operator = draw(st.sampled_from(["+", "-", "*", "/", "**", "<", "<=", ">", ">=", "==", "!="]))
            left, right = (grown(draw, leaf, functions, depth - 1) for _ in range(2))
            return f"({left}{space}{operator}{space}{right})"
        case "sum":
            terms = [grown(draw, leaf, functions, max(0, depth - 2)) for _ in range(draw(st.integers(2, 5)))]
            return " ".join(f"{term} {draw(st.sampled_from('+-*/'))}" for term in terms)[:-2]
        case "sign":
            return f"({draw(st.sampled_from('+-'))}{grown(draw, leaf, functions, depth - 1)})"
        case count:
            arguments = [grown(draw, leaf, functions, depth - 1) for _ in range(count)]
            return f"{draw(st.sampled_from(functions[count]))}({', '.join(arguments)})"


POINTWISE = {
    1: ["abs", "sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "sign"], 2: ["minimum", "maximum"], 3: ["where"],
}  # fmt: skip
OPERATORS = {
    1: [*POINTWISE[1], "laplacian", "dx", "dy", "dxy", "dxx", "gradient_squared"],
    2: ["minimum", "div_grad", "divergence"],
    3: ["where", "upwind"],
}


@st.composite
def pointwise(draw):
    return grown(draw, st.sampled_from(["x", "y", "D", "pi"]) | numbers, POINTWISE)


@st.composite
def operators(draw):
    return grown(draw, st.sampled_from(["u", "v", "x", "y", "t", "D", "pi"]) | numbers, OPERATORS)


PYTHON = [
    "__import__('os')", "u.__class__", "lambda: u", "[u for u in v]", "f'{u}'", "(u:=1)", "sin(*u)", "sin(**u)", "sin(a=1)",
    "u if v else x", "u[0]", "{u}", "`u`", "u @ v", "u // v", "~u", "u ^ 2", "u, v", "...", "1j", "None", "yield", "await u",
    "b'u'", "'u'", "not u", "u and v", "u is v", "u in v", "x < y < 1", "print(u)", "eval(u)", "u;v", "u\nv", "u # v", "#",
    "9**9**9**9", "1e999", "9" * 500, "ｕ", "𝑢", "u\u200b", "−u", "²", "µ", "\x00", "\x0c", "\\", "0x", "1e", "1__0", "(", ")",
]  # fmt: skip


@st.composite
def broken(draw):
    """An expression with pieces cut, doubled and put in."""
    text = draw(operators())
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 6)))
        text = text[:start] + draw(st.sampled_from(PYTHON) | texts | st.just(text)) + text[stop:]
    return text


def same_as_python(text):
    """A pointwise expression means what Python's own reading of it gives, at one point."""
    scope = Scope(2, {"D": Parameter("D")}, time=False)
    try:
        tree = parse(text, scope, "key")
    except InputError as error:
        assert any(bound in str(error) for bound in BOUNDS), (text, error)
        return
    with np.errstate(all="ignore"):
        expected = python_reads(text)
        ours = numpy_evaluate.evaluate(
            tree, [np.float64(POINT["x"]), np.float64(POINT["y"])], {Parameter("D"): POINT["D"]}
        )
    assert float(ours) == pytest.approx(float(expected), rel=1e-9, nan_ok=True), text


def expression_is_understood_or_refused(folder, text):
    tables = {
        "grid": {"shape": [8, 8]},
        "equation": {"name": "custom", "D": 0.5, "rhs": {"u": text, "v": "D*laplacian(v)"}},
        "initial": {"u": text},
        "boundary": {"x": {"dirichlet": text}},
        "time": {"end": 1.0, "dt": 0.1},
        "diagnostics": {"m": text, "n": f"integral({text})"},
    }
    for table in (None, "initial", "boundary", "diagnostics"):
        asked = {name: content for name, content in tables.items() if name in ("grid", "time", "equation", table)}
        if table is not None:
            asked["equation"] = {"name": "custom", "D": 0.5, "rhs": {"u": "D*u", "v": "u"}}
        understood(lambda asked=asked: build(from_mapping(asked, folder)))
    assert list(folder.iterdir()) in ([], [folder / "input.toml"])


@cases(80)
@given(text=operators() | broken())
def test_expressions(folder, text):
    expression_is_understood_or_refused(folder, text)


@cases(100)
@given(text=pointwise())
def test_expressions_mean_what_they_say(text):
    same_as_python(text)


@pytest.mark.long
@pytest.mark.timeout(3600)
@new_cases(8_000)
@given(text=operators() | broken())
def test_many_expressions(folder, text):
    expression_is_understood_or_refused(folder, text)


@pytest.mark.long
@pytest.mark.timeout(3600)
@new_cases(2_000)
@given(text=pointwise())
def test_many_expressions_mean_what_they_say(text):
    same_as_python(text)


# ---- what is accepted also runs --------------------------------------------------------------------------------------

MOST_CELLS = 2**14


def steps(problem: Problem) -> bool:
    """Whether the problem could be compiled and stepped once; the values may be anything."""
    if problem.config.grid.cells > MOST_CELLS or problem.config.initial.file is not None:
        return False
    simulation = simulation_of(problem)
    fields = simulation.initial_fields()
    fields = simulation.advance(fields, StepRange(0.0, 0, 1e-3, 1))
    simulation.extremes.extremes(fields, problem.parameters, 1e-3)
    Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters).take(fields, 1, 1e-3)
    return set(simulation.get(fields, problem.fields)) == set(problem.fields)


def accepted_expression_steps(text):
    tables = {
        "grid": {"shape": [8, 6]},
        "equation": {"name": "custom", "D": 0.5, "rhs": {"u": text, "v": "D*u"}},
        "time": {"end": 1.0, "dt": 0.1},
        "diagnostics": {"m": f"integral({text})"},
    }
    problem = understood(lambda: build(from_mapping(tables, Path("/"))))
    assert problem is None or steps(problem)


# Once accepted by `check` and ended in a traceback by `run`.
ONCE_FAILED = [
    "u" + "+u" * 1000,
    "-" * 99 + "u",
    "div_grad(u, x)",
    "dxx(dxx(x))",
    "dxx(upwind(x, x, 0))",
    "dy(dxy(x*y))",
]


@pytest.mark.parametrize("text", ONCE_FAILED, ids=lambda text: text[:25])
def test_expressions_that_once_failed_step(text):
    accepted_expression_steps(text)


@cases(4)
@given(text=operators())
def test_accepted_expressions_step(text):
    accepted_expression_steps(text)


@pytest.mark.long
@pytest.mark.timeout(3600)
@new_cases(200, shrink=False)
@given(text=operators() | broken())
def test_many_accepted_expressions_step(text):
    accepted_expression_steps(text)


@pytest.mark.long
@pytest.mark.timeout(3600)
@new_cases(400, shrink=False)
@given(content=changed_tables())
def test_many_accepted_documents_step(folder, content):
    path = folder / "input.toml"
    path.write_text(content)
    problem = understood(lambda: build(load(path, ["grid.shape=[12, 9]"])))
    assert problem is None or steps(problem) or problem.config.initial.file is not None
