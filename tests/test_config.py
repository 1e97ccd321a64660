"""Input files: what is refused and in which words, what `--set` does, and that an input survives being written out."""

import keyword
import pickle
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcstencil import config
from hpcstencil.conditions import Dirichlet, Neumann, Periodic
from hpcstencil.config import check_fields, from_mapping, load
from hpcstencil.equations import EQUATIONS
from hpcstencil.errors import InputError
from hpcstencil.expressions import FUNCTIONS, REDUCTIONS
from hpcstencil.provenance import allowed, differences, sha256, to_toml
from hpcstencil.toml_text import dump_value, is_set, override, parse_override

INPUTS = sorted((Path(__file__).parent.parent / "inputs").glob("*.toml"))
BASE = {"grid": {"shape": [8, 6]}, "equation": {"name": "heat"}, "time": {"end": 1.0}}
CUSTOM = {
    "grid": {"shape": [8, 6]},
    "equation": {"name": "custom", "D": 0.5, "rhs": {"u": "D*laplacian(u)"}},
    "time": {"end": 1.0, "dt": 0.1},
}


def made(*overrides, tables=BASE):
    return from_mapping(tables, Path("/somewhere"), overrides)


# ---- malformed inputs ------------------------------------------------------------------------------------------------

# (what --set makes of a good input, fragments of the sentence that must name the key, the expected and the given)
MALFORMED = [
    ("titel=x", 'titel: unknown table or key "titel"', 'did you mean "title"'),
    ("title=5", "title: expected a text", "got 5"),
    ('title="a\\u0000b"', "title: expected a text", "NUL"),
    ("gird.shape=[8]", "gird: unknown", '"grid"'),
    ("order=2", "order: unknown", '"numerics.order"'),
    ("nonsense.a=1", "nonsense: unknown", "use title, grid"),
    ("grid=5", "grid: expected a table", "got 5"),
    ("grid={}", "grid.shape: expected a list of positive integers", "missing", "shape = [512, 512]"),
    ("grid={shap=[8]}", "grid.shap: unknown key", '"shape"'),
    ("grid.spacing=1", "grid.spacing: unknown key", "use shape, lower or upper"),
    ("grid.shape=8", "grid.shape: expected a list", "got 8"),
    ("grid.shape=[]", "grid.shape: expected a list", "got []"),
    ("grid.shape=[0, 6]", "grid.shape", "positive integers", "[0, 6]"),
    ("grid.shape=[-8, 6]", "grid.shape", "positive integers", "[-8, 6]"),
    ("grid.shape=[8.0, 6]", "grid.shape", "[8.0, 6]"),
    ("grid.shape=[true, 6]", "grid.shape", "[true, 6]"),
    ("grid.shape=[1, 2, 3, 4]", "grid.shape", "[1, 2, 3, 4]"),
    ("grid.shape=[9000000000, 9000000000]", "grid.shape: expected fewer than 2**63 cells", "coarser"),
    ("grid.lower=[0.0]", "grid.lower: expected 2 numbers", "[0.0]"),
    ("grid.upper=[1.0, 1.0, 1.0]", "grid.upper: expected 2 numbers", "[1.0, 1.0, 1.0]"),
    ("grid.upper=[-1, 1]", "grid.upper: expected more than grid.lower = 0 along x", "-1"),
    ("grid.lower=[0, nan]", "grid.lower", "nan"),
    ("grid.upper=[1, inf]", "grid.upper", "inf"),
    ("grid={shape=[8], lower=[-1e308], upper=[1e308]}", "grid.upper: expected cells that float64 tells apart", "inf"),
    ("grid={shape=[99], lower=[1e17], upper=[1.0000000000000002e17]}", "grid.upper", "tells apart"),
    ("equation=heat", "equation: expected a table", '"heat"'),
    ("equation={}", "equation.name: expected a text", "missing", 'name = "heat"'),
    ('equation={nmae="heat"}', "equation.name", "missing", 'is "nmae" meant for it'),
    ("equation.name=5", "equation.name", "got 5"),
    ("equation.name=haet", "equation.name: unknown equation", '"heat"'),
    ("equation.name=xyz", "equation.name: unknown equation", "use heat,"),
    ("equation.D=[1]", "equation.D: expected a number or an expression", "[1]"),
    ("equation.D=true", "equation.D: expected a number or an expression", "true"),
    ('equation.D=""', "equation.D: expected a number or an expression", '""'),
    ("equation.D=inf", "equation.D: expected a number or an expression", "inf"),
    ("equation.D=2024-01-01", "equation.D: expected a number or an expression", "2024-01-01"),
    ("equation.rhs.u=1", "equation.rhs", "only a custom equation"),
    ("initial=5", "initial: expected a table", "got 5"),
    ('initial.u=""', "initial.u: expected a number or an expression", '""'),
    ("initial.u=nan", "initial.u: expected a number or an expression", "nan"),
    ("initial.u={a=1}", "initial.u: expected a number or an expression", "{ a = 1 }"),
    ("initial.file=5", "initial.file: expected a text", "got 5"),
    ("boundary=periodic", "boundary: expected a table", '"periodic"'),
    ("boundary.z=periodic", "boundary.z: unknown axis", "use x or y"),
    ("boundary.X=periodic", "boundary.X: unknown axis", '"x"'),
    ("boundary.x=5", "boundary.x: expected", "periodic", "got 5"),
    ("boundary.x=neumann", "boundary.x: expected", "neumann"),
    ("boundary.x={}", "boundary.x: expected", "got {}"),
    ("boundary.x={dirichlet=true}", "boundary.x.dirichlet: expected a number or an expression", "true"),
    ('boundary.x={neumann=""}', "boundary.x.neumann: expected a number or an expression", '""'),
    ("boundary.x={dirichlet=0, neumann=0}", "boundary.x: expected", "one kind"),
    ("boundary.x={dirichelt=0}", "boundary.x.dirichelt: unknown", '"dirichlet"'),
    ("boundary.x={lower={dirichlet=0}}", "boundary.x.upper", "missing"),
    ("boundary.x={lower={dirichlet=0}, uper={dirichlet=0}}", "boundary.x.uper: unknown side", '"upper"'),
    ('boundary.x={lower={dirichlet=0}, upper="periodic"}', "boundary.x", "periodic at one side only"),
    ("boundary.u.x={dirichlet=0}", "boundary.u.x", "periodic for all fields or for none"),
    ("boundary.u.q={dirichlet=0}", "boundary.u.q: unknown axis", "use x or y"),
    ("numerics=[1]", "numerics: expected a table", "[1]"),
    ("numerics.order=3", "numerics.order: expected 2, 4, 6 or 8", "got 3"),
    ("numerics.order=2.0", "numerics.order: expected 2, 4, 6 or 8", "got 2.0"),
    ("numerics.order=true", "numerics.order: expected 2, 4, 6 or 8", "got true"),
    ("numerics.integrator=rk5", "numerics.integrator: expected", '"rk4"?'),
    ("numerics.precision=float16", "numerics.precision: expected", '"float64"'),
    ("numerics.kernel=covn", "numerics.kernel: expected", 'mean "conv"'),
    ("numerics.ordre=2", "numerics.ordre: unknown key", '"order"'),
    ("time={dt=0.1}", "time.end: expected a positive, finite number", "missing"),
    ("time.end=0", "time.end: expected a positive, finite number", "got 0"),
    ("time.end=-1.5", "time.end: expected a positive, finite number", "got -1.5"),
    ("time.end=nan", "time.end: expected a positive, finite number", "nan"),
    ("time.end=true", "time.end: expected a positive, finite number", "true"),
    ('time.end="1"', "time.end: expected a positive, finite number", '"1"'),
    ("time.end=1" + 400 * "0", "time.end: expected a positive, finite number", "..."),
    ("time.dt=0", "time.dt: expected a positive, finite number", "got 0"),
    ("time.dt=1e-320", "time.dt: expected at most 2**53 steps", "longer"),
    ("time.cfl=-0.5", "time.cfl: expected a positive, finite number", "-0.5"),
    ("time={end=1, dt=0.1, cfl=0.5}", "time.dt: expected only one of time.dt or time.cfl", "got 2"),
    ("time.dt_every=0", "time.dt_every: expected a positive integer", "got 0"),
    ("time.order=4", "time.order: unknown key", '"numerics.order"'),
    ("decomposition.processes=2", "decomposition.processes: expected", "got 2"),
    ("decomposition.processes=[2]", "decomposition.processes: expected 2 counts", "[2]"),
    ("decomposition.processes=[0, 2]", "decomposition.processes: expected", "[0, 2]"),
    ("decomposition.processes=atuo", "decomposition.processes: expected", '"auto"?'),
    ("decomposition.devices=0", "decomposition.devices: expected", "got 0"),
    ("decomposition.tiles=[1, 2, 3]", "decomposition.tiles: expected 2 counts", "[1, 2, 3]"),
    ("decomposition.steps_per_exchange=0", "decomposition.steps_per_exchange: expected", "got 0"),
    ("output.path=5", "output.path: expected a text", "got 5"),
    ('output.path=""', "output.path: expected a text that is not empty", '""'),
    ("output.every=0", "output.every: expected a positive, finite number", "got 0"),
    ("output.every_steps=1.5", "output.every_steps: expected a positive integer", "1.5"),
    ("output={every=1, every_steps=2}", "output.every: expected only one of", "output.every_steps"),
    ("output.every_minutes=3", "output.every_minutes: unknown key", '"checkpoint.every_minutes"'),
    ("output.fields=[]", "output.fields: expected a list of field names", "[]"),
    ('output.fields="u"', "output.fields: expected a list of field names", '"u"'),
    ('output.fields=["u", "u"]', "output.fields: expected each field once", '["u", "u"]'),
    ("output.compression=lzf", "output.compression: expected", '"gzip"'),
    ("output.method=mpi", "output.method: expected", '"mpio"?'),
    ("output.units=5", "output.units: expected a table", "got 5"),
    ("output.units.u=5", "output.units.u: expected a text", "got 5"),
    ("diagnostics.every=5", "diagnostics.every: unknown key", '"every_steps"'),
    ("diagnostics.every_step=5", "diagnostics.every_step: unknown key", '"every_steps"'),
    ("diagnostics.every_steps=0", "diagnostics.every_steps: expected a positive integer", "got 0"),
    ("diagnostics.mass=5", "diagnostics.mass: expected a text", 'mass = "integral(u)"'),
    ('diagnostics.mean="mean(u)"', "diagnostics.mean", "rename"),
    ('diagnostics.x="mean(u)"', "diagnostics.x", "rename"),
    ('diagnostics.file="mean(u)"', "diagnostics.file", "rename"),
    ('diagnostics.lambda="mean(u)"', "diagnostics.lambda", "rename"),
    ('diagnostics."a b"="mean(u)"', "diagnostics.a b: expected a name of letters, digits", "rename"),
    ("checkpoint={every_steps=1, every_minutes=2}", "checkpoint.every_steps: expected only one of", "every_minutes"),
    ("checkpoint.every_minutes=0", "checkpoint.every_minutes: expected a positive", "got 0"),
    ("checkpoint.keep=0", "checkpoint.keep: expected a positive integer", "got 0"),
    ("checkpoint.every_hours=1", "checkpoint.every_hours: unknown key", "every_minutes"),
]
MALFORMED_CUSTOM = [
    ('equation={name="custom"}', "equation.rhs: expected one entry per field", "there is none"),
    ('equation={name="custom", rhs=5}', "equation.rhs: expected a table", "got 5"),
    ('equation.rhs.u=""', "equation.rhs.u: expected a number or an expression", '""'),
    ("equation.rhs.x=1", "equation.rhs.x", "rename"),
    ("equation.rhs.laplacian=1", "equation.rhs.laplacian", "rename"),
    ('equation.rhs."ü"=1', "equation.rhs.ü: expected a name", "rename"),
    ("equation.rhs.every_steps=1", "equation.rhs.every_steps", "rename"),
    ("equation.u=1", "equation.u", "a field already"),
    ("equation.t=1", "equation.t", "rename"),
    ("equation.lambda=1", "equation.lambda", "rename"),
    ('equation."a-b"=1', "equation.a-b: expected a name", "rename"),
    ("time={end=1}", "time.dt", "does not know its stable step"),
    ("time.cfl=0.5", "time.dt", "does not know its stable step"),
]
NOT_YET = [
    ("numerics.integrator=ssprk2", "numerics.integrator", '"ssprk3"'),
    ("numerics.integrator=bs3", "numerics.integrator", '"rk4"'),
    ("numerics.integrator=dopri5", "numerics.integrator", '"euler"'),
    ("numerics.kernel=native", "numerics.kernel", '"conv"'),
    ("time.tolerance=1e-6", "time.tolerance", "time.dt"),
    ("boundary.x=open", "boundary.x", "neumann"),
    ("boundary.x={robin={a=1, b=1, value=0}}", "boundary.x", "robin"),
    ("boundary.x={lower={cpml={width=8}}, upper={dirichlet=0}}", "boundary.x", "cpml"),
    ("boundary.x={sponge={width=8, strength=1}}", "boundary.x", "sponge"),
    ('boundary.operators={"laplacian(u)"={dirichlet=0}}', "boundary.operators", "available:"),
    ('mask.solid="x < 1"', "mask", "boundary"),
    ('ensemble={"equation.D"=[1, 2]}', "ensemble", "equation"),
    ("equation.seed=1", "equation.seed", "noise"),
    ("equation.name=my_equation.py:MyEquation", "equation.name", "custom"),
    *((f"equation.name={name}", "equation.name", name) for name in config.LATER_EQUATIONS),
]


def sentence(setting, tables):
    with pytest.raises(InputError) as caught:
        made(setting, tables=tables)
    text = str(caught.value)
    assert "\n" not in text and caught.value.status == 2
    return text


def shortened(value):
    return value[:60] if isinstance(value, str) else ""


@pytest.mark.parametrize("row", MALFORMED, ids=lambda row: shortened(row[0]))
def test_malformed_input_is_refused_in_one_sentence(row):
    setting, *fragments = row
    text = sentence(setting, BASE)
    for fragment in fragments:
        assert fragment in text, text


@pytest.mark.parametrize("row", MALFORMED_CUSTOM, ids=lambda row: shortened(row[0]))
def test_malformed_custom_equation_is_refused(row):
    setting, *fragments = row
    text = sentence(setting, CUSTOM)
    for fragment in fragments:
        assert fragment in text, text


@pytest.mark.parametrize("row", NOT_YET, ids=lambda row: shortened(row[0]))
def test_later_parts_of_the_contract_say_so(row):
    setting, key, fragment = row
    text = sentence(setting, BASE)
    assert text.startswith(key) and "not available yet" in text and fragment in text, text


FIELD_NAMES = [
    ("initial.w=1", "initial.w", "u"),
    ("initial.fil=start.h5", "initial.fil", "u"),
    ("boundary.w={}", "boundary.w", "u"),
    ('output.fields=["uu"]', "output.fields", '"u"'),
    ("output.units.w=K", "output.units.w", "u"),
    ("output.long_name.w=K", "output.long_name.w", "u"),
]


@pytest.mark.parametrize("row", FIELD_NAMES, ids=lambda row: row[0])
def test_unknown_fields_are_refused_once_the_equation_is_known(row):
    setting, key, fragment = row
    with pytest.raises(InputError) as caught:
        check_fields(made(setting), ("u",))
    assert str(caught.value).startswith(key) and fragment in str(caught.value)


def test_every_word_of_the_language_is_reserved():
    assert {*FUNCTIONS, *REDUCTIONS, "laplacian", "dxy", "upwind", "noise", "x", "y", "z", "t", "pi"} <= config.RESERVED
    assert {"time", "step", "member", "file", "every", "every_steps"} <= config.RESERVED


def test_built_in_names_are_those_of_the_equations():
    assert set(config.BUILT_IN) == set(EQUATIONS)


# ---- files -----------------------------------------------------------------------------------------------------------

GOOD = '[grid]\nshape = [8, 6]\n[equation]\nname = "heat"\n[time]\nend = 1.0\n'
FILES = [
    (GOOD.replace("end = 1.0", "end = "), "line 6"),
    (GOOD.replace("[equation]", "[equation"), "line 3"),
    (GOOD + "[grid]\n", "line 7"),
    (GOOD + "end = 2.0\n", "line 7"),
    (GOOD.replace("1.0", "1" + 5000 * "0"), "digits"),
    (GOOD.replace("1.0", 3000 * "["), "nested too deeply"),
    (GOOD.encode() + b'title = "\xff"\n', "not UTF-8"),
    (b"\x89HDF\r\n\x1a\n", "not UTF-8"),
]


@pytest.mark.parametrize("content, fragment", FILES, ids=[fragment for _, fragment in FILES])
def test_unreadable_files_are_refused(tmp_path, content, fragment):
    path = tmp_path / "input.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(str(path)) and fragment in str(caught.value)


def test_missing_file_and_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="there is none"):
        load(tmp_path / "no.toml")
    with pytest.raises(InputError, match="directory"):
        load(tmp_path)


def test_load_takes_output_name_from_input_and_ignores_byte_order_mark(tmp_path):
    path = tmp_path / "plate.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert load(path).output.path == Path("plate.h5")


def test_initial_file_is_relative_to_the_input_and_must_exist(tmp_path):
    path = tmp_path / "plate.toml"
    path.write_text(GOOD + '[initial]\nfile = "start.h5"\n')
    with pytest.raises(InputError, match=r"initial\.file.*start\.h5"):
        load(path)
    (tmp_path / "start.h5").touch()
    checked = load(path)
    assert checked.initial.file == tmp_path / "start.h5"
    assert from_mapping(tomllib.loads(to_toml(checked)), Path("/elsewhere")).initial.file == checked.initial.file


def test_output_may_not_be_a_file_that_is_read(tmp_path):
    path = tmp_path / "plate.toml"
    path.write_text(GOOD + '[initial]\nfile = "start.h5"\n')
    (tmp_path / "start.h5").touch()
    for name in ("plate.toml", "start.h5"):
        with pytest.raises(InputError, match=r"output\.path: expected a file of its own"):
            load(path, [f'output.path="{tmp_path / name}"'])


# ---- defaults and forms ----------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_contract():
    c = made()
    assert c.grid.lower == (0.0, 0.0) and c.grid.upper == (8.0, 6.0)
    assert (c.numerics.order, c.numerics.integrator, c.numerics.precision, c.numerics.kernel) == (
        2, "rk4", "float32", "auto",
    )  # fmt: skip
    assert (c.time.dt, c.time.cfl, c.time.dt_every) == (None, 0.5, 1)
    assert c.boundary.periodic == (True, True) and c.initial.expressions == {}
    assert (c.output.every, c.output.every_steps, c.output.fields, c.output.compression) == (None, None, None, "none")
    assert (c.checkpoint.every_steps, c.checkpoint.every_minutes, c.checkpoint.keep) == (None, None, 2)
    assert made("grid.lower=[-1, 2.5]").grid.upper == (7.0, 8.5)


def test_boundary_forms():
    c = made(
        "boundary.x={lower={dirichlet=1}, upper={neumann='sin(t)'}}", "boundary.y={neumann=0}",
        "boundary.u.y={dirichlet='x'}",
    )  # fmt: skip
    assert c.boundary.periodic == (False, False)
    assert [c.boundary.condition("v", 0, side) for side in (0, 1)] == [Dirichlet(1.0), Neumann("sin(t)")]
    assert c.boundary.condition("v", 1, 0) == Neumann(0.0)
    assert c.boundary.condition("u", 1, 1) == Dirichlet("x")
    assert c.boundary.condition("u", 0, 0) == Dirichlet(1.0)
    assert made("boundary.x='periodic'").boundary.condition("u", 0, 1) == Periodic()


def test_expressions_stay_texts_and_numbers_become_floats():
    c = made("equation.D=1 + 0.5*sin(x)", "initial.u=3", "equation.k=2")
    assert c.equation.parameters == {"D": "1 + 0.5*sin(x)", "k": 2.0} and type(c.equation.parameters["k"]) is float
    assert c.initial.expressions == {"u": "3.0"}


# ---- --set -----------------------------------------------------------------------------------------------------------

SETTINGS = [
    ("time.end=2.0", ("time", "end"), 2.0),
    (" time.end = 2 ", ("time", "end"), 2),
    ("a=true", ("a",), True),
    ("a=[1, 2]", ("a",), [1, 2]),
    ("a={b=1}", ("a",), {"b": 1}),
    ("a='x = 1'", ("a",), "x = 1"),
    ("a=x == 1", ("a",), "x == 1"),
    ("a=D*laplacian(u)", ("a",), "D*laplacian(u)"),
    ("a=", ("a",), ""),
    ("a=1\nb = 2", ("a",), "1\nb = 2"),
    ("a=[1", ("a",), "[1"),
    ('boundary.operators."laplacian(u)"=1', ("boundary", "operators", "laplacian(u)"), 1),
    ('"a=b".c=1', ("a=b", "c"), 1),
    ('"time"."end"=1', ("time", "end"), 1),
]


@pytest.mark.parametrize("text, path, value", SETTINGS, ids=[repr(text) for text, *_ in SETTINGS])
def test_override_is_a_dotted_key_and_a_toml_value_or_a_string(text, path, value):
    assert parse_override(text) == (path, value)


BAD_SETTINGS = ["time.end", "=1", "time.=1", ".end=1", "time end=1", "", "\n=1", "a\udcff=1", "a=\udcff"]


@pytest.mark.parametrize("text", BAD_SETTINGS, ids=ascii)
def test_malformed_override_is_refused(text):
    with pytest.raises(InputError, match="--set"):
        parse_override(text)


def test_table_replaces_table_and_overrides_apply_in_turn():
    raw = {"boundary": {"x": {"lower": 1, "upper": 2}}, "time": {"end": 1}}
    assert override(raw, ["boundary.x={dirichlet=0}"])["boundary"] == {"x": {"dirichlet": 0}}
    assert override(raw, ["time={end=2}", "time.dt=1", "time.end=3"])["time"] == {"end": 3, "dt": 1}
    assert override(raw, ["new.table.key=1"])["new"] == {"table": {"key": 1}}
    assert raw == {"boundary": {"x": {"lower": 1, "upper": 2}}, "time": {"end": 1}}


@pytest.mark.parametrize(
    "table, old, new",
    [("time", "dt", "cfl"), ("time", "cfl", "dt"), ("time", "dt", "tolerance"), ("output", "every", "every_steps"),
     ("output", "every_steps", "every"), ("checkpoint", "every_steps", "every_minutes")],
)  # fmt: skip
def test_setting_one_of_several_alternatives_displaces_the_others(table, old, new):
    assert override({table: {old: 1, "end": 5}}, [f"{table}.{new}=2"]) == {table: {"end": 5, new: 2}}


def test_a_value_is_not_taken_for_a_table():
    with pytest.raises(InputError, match=r"expected time\.end to be a table.*set time\.end as a whole"):
        made("time.end.deep=1")


def test_is_set_knows_tables_parts_and_displaced_keys():
    assert is_set("time.end", ["time.end=1"]) and is_set("time.end", ["time={end=1}"])
    assert is_set("time.dt", ["time.cfl=1"]) and is_set("equation.rhs", ["equation.rhs.u=1"])
    assert not is_set("time.end", ["time.dt=1"]) and not is_set("output.every", ["checkpoint.every_steps=1"])


# ---- written out and read back ---------------------------------------------------------------------------------------


def survives(checked):
    """Assert that an input written out and read back is the same input, from any folder."""
    text = to_toml(checked)
    again = from_mapping(tomllib.loads(text), Path("/elsewhere"))
    assert to_toml(again) == text and sha256(again) == sha256(checked) and differences(checked, again) == []
    for part in ("title", "grid", "equation", "initial", "boundary", "numerics", "time", "decomposition", "diagnostics",
                 "checkpoint"):  # fmt: skip
        assert getattr(again, part) == getattr(checked, part)
    assert pickle.loads(pickle.dumps(checked)) == checked


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.stem)
def test_examples_survive_being_written_out(path):
    survives(load(path))


def test_every_equation_has_an_example():
    names = {load(path).equation.name for path in INPUTS}
    assert names >= {*EQUATIONS, "custom"}


numbers = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)
positives = st.floats(1e-3, 1e6) | st.integers(1, 1000)
extents = st.floats(1, 1e3)
counts = st.integers(1, 50)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
expressions = numbers | texts.filter(str.strip)
conditions = st.builds(lambda kind, value: {kind: value}, st.sampled_from(["dirichlet", "neumann"]), expressions)
axis_conditions = conditions | st.fixed_dictionaries({"lower": conditions, "upper": conditions})
names = st.from_regex(r"[a-w][A-Za-z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: name not in config.RESERVED and not keyword.iskeyword(name)
)


def auto_or(values):
    return st.just("auto") | values


@st.composite
def inputs(draw):
    ndim = draw(st.integers(1, 3))

    def per_axis(values):
        return st.lists(values, min_size=ndim, max_size=ndim)

    fields = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    others = st.dictionaries(names.filter(lambda name: name not in fields), expressions, max_size=3)
    lower = draw(per_axis(st.floats(-1e3, 1e3)))
    boundary = draw(st.fixed_dictionaries({}, optional=dict.fromkeys("xyz"[:ndim], axis_conditions)))
    own = {axis: draw(axis_conditions) for axis in boundary if draw(st.booleans())}
    return {
        "title": draw(texts),
        "grid": {"shape": draw(per_axis(counts)), "lower": lower, "upper": [a + draw(extents) for a in lower]},
        "equation": {"name": "custom", **draw(others), "rhs": {field: draw(expressions) for field in fields}},
        "initial": draw(st.dictionaries(st.sampled_from(fields), expressions)),
        "boundary": {**boundary, **({fields[0]: own} if own else {})},
        "numerics": {
            "order": draw(st.sampled_from([2, 4, 6, 8])),
            "integrator": draw(st.sampled_from(["euler", "ssprk3", "rk4"])),
            "precision": draw(st.sampled_from(["float32", "float64"])),
        },
        "time": {"end": draw(positives), "dt": draw(positives), "dt_every": draw(counts)},
        "decomposition": {
            "processes": draw(auto_or(per_axis(counts))),
            "devices": draw(auto_or(counts | per_axis(counts))),
            "tiles": draw(auto_or(per_axis(counts))),
            "steps_per_exchange": draw(auto_or(counts)),
        },
        "output": {
            draw(st.sampled_from(["every", "every_steps"])): draw(counts),
            "fields": draw(st.lists(st.sampled_from(fields), min_size=1, unique=True)),
            "units": draw(st.dictionaries(st.sampled_from(fields), texts)),
            "long_name": draw(st.dictionaries(st.sampled_from(fields), texts)),
        },
        "diagnostics": draw(st.dictionaries(names, texts.filter(str.strip), max_size=2)),
        "checkpoint": {draw(st.sampled_from(["every_minutes", "every_steps"])): draw(counts), "keep": draw(counts)},
    }


@settings(deadline=None)
@given(inputs())
def test_any_input_survives_being_written_out(raw):
    survives(from_mapping(raw, Path("/somewhere")))


@given(st.recursive(numbers | texts | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner)))
def test_any_value_survives_being_written_as_toml(value):
    assert tomllib.loads(f"value = {dump_value(value)}")["value"] == value


def test_differences_names_keys_and_allowed_knows_which_may_differ():
    old = made("time.dt=0.1", "equation.D=1", "output.every=1")
    new = made("time.dt=0.2", "time.end=9", "equation.D=2", "output.every_steps=5", "numerics.kernel=shift")
    found = differences(old, new)
    assert set(found) == {
        "time.dt", "time.end", "equation.D", "output.every", "output.every_steps", "numerics.kernel"
    }  # fmt: skip
    assert {key for key in found if not allowed(key)} == {"time.dt", "equation.D"}
    assert allowed("decomposition.processes") and allowed("checkpoint.keep") and not allowed("grid.shape")
    assert differences(made("boundary.x={dirichlet=0}"), made("boundary.x={dirichlet=0.0}")) == []
