"""Input files: defaults and forms, what `--set` does, and that an input survives being written out.

What is refused, and in which words, stands in `malformed.py`.
"""

import keyword
import os
import pickle
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstencil.config import settings
from hpcstencil.config.boundary_conditions import PERIODIC, Condition
from hpcstencil.config.names import RESERVED
from hpcstencil.config.provenance import allowed, differences, sha256, to_toml
from hpcstencil.config.reader import from_mapping, load
from hpcstencil.equations import EQUATIONS
from hpcstencil.symbolic.expressions import FUNCTIONS
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.overrides import is_set, override, parse_override
from hpcstencil.validation.schema import REQUIRED, entries_of, keys_of, names_of, take
from hpcstencil.validation.toml_text import dump_value

INPUTS = sorted((Path(__file__).parents[2] / "inputs").glob("*.toml"))
BASE = {"grid": {"shape": [8, 6]}, "equation": {"name": "heat"}, "time": {"end": 1.0}}
CUSTOM = {
    "grid": {"shape": [8, 6]},
    "equation": {"name": "custom", "D": 0.5, "rhs": {"u": "D*laplacian(u)"}},
    "time": {"end": 1.0, "dt": 0.1},
}


def made(*overrides, tables=BASE):
    return from_mapping(tables, Path("/somewhere"), overrides)


# ---- names -------------------------------------------------------------------------------------------------------------


def test_every_word_of_the_language_is_reserved():
    assert {*FUNCTIONS, *REDUCTIONS, "laplacian", "dxy", "upwind", "noise", "x", "y", "z", "t", "pi"} <= RESERVED
    assert {"time", "step", "member", "file", "every", "every_steps"} <= RESERVED


def test_names_beside_the_users_own_are_reserved():
    """A parameter, a field or a diagnostic named like a key could not be told from it. An objective stands alone."""
    for table in set(settings.TABLES.values()) - {settings.ObjectiveConfig}:
        if any(not entries.table for entries in entries_of(table).values()):
            assert set(names_of(table)) <= RESERVED


# ---- declarations ----------------------------------------------------------------------------------------------------

NAMES = {  # that scripts outside the project rely on
    "grid": "shape lower upper",
    "equation": "name seed rhs",
    "initial": "file",
    "numerics": "order integrator precision kernel",
    "time": "end dt cfl tolerance dt_every",
    "decomposition": "processes devices tiles steps_per_exchange",
    "output": "path every every_steps fields compression method units long_name",
    "diagnostics": "every_steps",
    "checkpoint": "every_steps every_minutes keep walltime",
    "mask": "solid surface",
    "verify": "exact conserved",
}


def test_every_field_of_the_settings_declares_its_key():
    declaring = {cls for cls in vars(settings).values() if is_dataclass(cls) and cls.__module__ == settings.__name__}
    assert declaring == {*settings.TABLES.values(), settings.Config, settings.SumConfig}
    declared = {
        table: {*keys_of(table), *entries_of(table)} for table in (*settings.TABLES.values(), settings.SumConfig)
    }
    declared[settings.ObjectiveConfig].add("every_steps")  # which `SumConfig` declares
    for table, names in declared.items():
        assert names == {field.name for field in fields(table)}
    assert set(settings.TOP) == {"title", "boundary", "ensemble", "probes", *settings.TABLES}


def test_names_that_others_rely_on_are_declared():
    for table, names in NAMES.items():
        assert set(names.split()) <= set(names_of(settings.TABLES[table])), table


@pytest.mark.parametrize("table", settings.TABLES)
def test_examples_and_defaults_fit_their_keys(table):
    for name, spec in keys_of(settings.TABLES[table]).items():
        assert spec.meaning
        if table != "mask" or name != "surface":  # whose example is the value alone
            example = tomllib.loads(spec.example)
            assert list(example) == [name]
            take(name, spec, example[name])
        if spec.default is not REQUIRED and spec.default not in (None, ()):
            assert take(name, spec, spec.default) == spec.default
    for spec in entries_of(settings.TABLES[table]).values():
        text = spec.key("u").example
        (value,) = tomllib.loads(text if "=" in text else f"u = {text}").values()
        assert spec.meaning and take("u", spec.key("u"), value) is not None


# ---- files -----------------------------------------------------------------------------------------------------------

GOOD = '[grid]\nshape = [8, 6]\n[equation]\nname = "heat"\n[time]\nend = 1.0\n'


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


@pytest.mark.parametrize("line", [
    'mask = { solid = "pipe.npy" }',
    'equation = { name = "heat", D = "pipe.npy" }',
    'probes.p = { field = "u", file = "pipe.npy" }',
])  # fmt: skip
def test_a_data_file_is_no_pipe(tmp_path, line):
    os.mkfifo(tmp_path / "pipe.npy")
    text = f"{line}\ngrid.shape = [8, 6]\ntime.end = 1.0\n"
    (tmp_path / "input.toml").write_text(text if "equation" in line else text + 'equation.name = "heat"\n')
    with pytest.raises(InputError, match=r"expected .*, but .*/pipe\.npy is not a file; check the path"):
        load(tmp_path / "input.toml")


def test_output_may_not_be_a_file_that_is_read(tmp_path):
    path = tmp_path / "plate.toml"
    path.write_text(GOOD + '[initial]\nfile = "start.h5"\n')
    (tmp_path / "start.h5").touch()
    for name in ("plate.toml", "start.h5"):
        with pytest.raises(InputError, match=r"output\.path: expected a file that the run does not read"):
            load(path, [f'output.path="{tmp_path / name}"'])


def test_a_stream_may_not_be_a_link_to_the_output(tmp_path):
    path = tmp_path / "plate.toml"
    path.write_text(GOOD)
    (tmp_path / "link.h5").symlink_to(tmp_path / "run.h5")
    options = [
        f'output.path="{tmp_path / "run.h5"}"',
        f'output.streams.s={{every = 0.1, path = "{tmp_path / "link.h5"}"}}',
    ]
    with pytest.raises(InputError, match=r"output\.streams\.s\.path: expected a file of its own.*taken by the output"):
        load(path, options)


def test_output_may_not_be_a_file_that_is_read_with_the_input(tmp_path):
    custom = GOOD.replace('"heat"', '"custom"\nstencils = { blur = "k.npy" }\nrhs = { u = "blur(u)" }', 1)
    own = GOOD.replace('"heat"', '"own.py:Own"', 1)
    np.save(tmp_path / "k.npy", np.ones((3, 3)))
    (tmp_path / "stations.csv").write_text("x,y\n0.1,0.1\n")
    path = tmp_path / "plate.toml"
    for text, name, key in (
        (custom, "k.npy", r"equation\.stencils\.blur"),
        (own, "own.py", r"equation\.name"),
        (GOOD + '[probes.a]\nfield = "u"\nfile = "stations.csv"\n', "stations.csv", r"probes\.a\.file"),
    ):
        path.write_text(text)
        load(path, ["time.dt=0.01"])
        with pytest.raises(
            InputError,
            match=rf"output\.path: expected a file that the run does not read, but got .*, the file of {key};",
        ):
            load(path, ["time.dt=0.01", f'output.path="{tmp_path / name}"'])


def test_another_output_is_no_file_that_is_read(tmp_path):
    path = tmp_path / "plate.toml"
    path.write_text(GOOD + '[initial]\nfile = "plate.h5"\n')
    (tmp_path / "plate.h5").touch()
    load(path, output=tmp_path / "run.h5")
    with pytest.raises(
        InputError, match=r"--output: expected a file that the run does not read, .*, the file of initial\.file;"
    ):
        load(path, output=tmp_path / "plate.h5")


def test_an_output_is_a_plain_file(tmp_path):
    path = tmp_path / "plate.toml"
    path.write_text(GOOD)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, what in (("pipe", "a device or pipe"), ("folder", "a folder")):
        with pytest.raises(InputError, match=rf"output\.path: expected the name .*{name} is {what}"):
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
    assert [c.boundary.condition("v", 0, side) for side in (0, 1)] == [
        Condition("dirichlet", (1.0,)),
        Condition("neumann", ("sin(t)",)),
    ]
    assert c.boundary.condition("v", 1, 0) == Condition("neumann", (0.0,))
    assert c.boundary.condition("u", 1, 1) == Condition("dirichlet", ("x",))
    assert c.boundary.condition("u", 0, 0) == Condition("dirichlet", (1.0,))
    assert made("boundary.x='periodic'").boundary.condition("u", 0, 1) == PERIODIC


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


@pytest.mark.parametrize("given", [{"equation.c": 1.4}, {"equation": {"c": 1.4}}], ids=["quoted", "nested"])
@pytest.mark.parametrize("key", ["fit.lower.equation.c", 'fit.lower."equation.c"'])
def test_an_override_replaces_a_dotted_name_however_it_is_spelled(given, key):
    raw = {"fit": {"lower": {**given, "equation.rho": 1.0}}}
    (name, inner) = next(iter(given.items()))
    expected = {"c": 1.0} if isinstance(inner, dict) else 1.0
    assert override(raw, [f"{key}=1.0"])["fit"]["lower"] == {name: expected, "equation.rho": 1.0}


@pytest.mark.parametrize(
    "table, old, new",
    [("time", "dt", "cfl"), ("time", "cfl", "dt"), ("time", "dt", "tolerance"), ("output", "every", "every_steps"),
     ("output", "every_steps", "every"), ("checkpoint", "every_steps", "every_minutes")],
)  # fmt: skip
def test_setting_one_of_several_alternatives_displaces_the_others(table, old, new):
    assert override({table: {old: 1, "end": 5}}, [f"{table}.{new}=2"]) == {table: {"end": 5, new: 2}}


def test_alternatives_of_a_stream_displace_each_other():
    streams = {"a": {"every": 1}, "b": {"every": 1}}
    found = override({"output": {"every": 1, "streams": streams}}, ["output.streams.b.every_steps=2"])
    assert found["output"] == {"every": 1, "streams": {"a": {"every": 1}, "b": {"every_steps": 2}}}


def test_streams_survive():
    survives(made(
        "output.streams.a={every=1, fields=['u'], region={x=[0.5, 4], y=1}, stride=[1, 2], path='a.h5'}",
        "output.streams.b={every_steps=3, expressions={w='u*u', one=1}, average=true}",
    ))  # fmt: skip


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
    assert to_toml(again) == text and sha256(again) == sha256(checked) and differences(checked, again) == {}
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
expressions = numbers | texts.filter(lambda text: text.strip() and not Path(text).suffix[1:].isalpha())  # no file
conditions = st.builds(lambda kind, value: {kind: value}, st.sampled_from(["dirichlet", "neumann"]), expressions)
axis_conditions = conditions | st.fixed_dictionaries({"lower": conditions, "upper": conditions})
names = st.from_regex(r"[a-w][A-Za-z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: name not in RESERVED and not keyword.iskeyword(name)
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
    assert differences(made("boundary.x={dirichlet=0}"), made("boundary.x={dirichlet=0.0}")) == {}
