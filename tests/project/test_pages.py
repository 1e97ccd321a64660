"""The pages for users: the reference of the input names everything that there is, and examples are inputs that work."""

import re
import textwrap
import tomllib
from pathlib import Path

import pytest

from hpcstencil.config.boundary_conditions import KINDS, PLAIN
from hpcstencil.config.names import RESERVED
from hpcstencil.config.paths import array_files, series_files
from hpcstencil.config.reader import from_mapping
from hpcstencil.config.settings import TABLES
from hpcstencil.equations.user import load
from hpcstencil.io.array_file import ArrayContents
from hpcstencil.numerics.integrators import INTEGRATORS
from hpcstencil.problem.build import build
from hpcstencil.sweep.members import member_inputs, read_sweep
from hpcstencil.symbolic.expressions import FUNCTIONS
from hpcstencil.symbolic.functions import __dict__ as functions
from hpcstencil.symbolic.operators import Space
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS
from hpcstencil.validation.messages import shown
from hpcstencil.validation.schema import REQUIRED, entries_of, keys_of

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/input.md").read_text()
OWN = (ROOT / "docs/own_equation.md").read_text()
EXAMPLES = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", REFERENCE, re.DOTALL)]


def section(table):
    return re.search(rf"^## `?\[?{table}\]?`?\n(.*?)(?=^## |\Z)", REFERENCE, re.DOTALL | re.MULTILINE)[1]


def row(table, key):
    """The columns value, default and meaning of a key."""
    return re.search(rf"^\| `{key}` \| (.*?) \| (.*?) \| (.*?) \|$", section(table), re.MULTILINE).groups()


@pytest.mark.parametrize("table", TABLES)
def test_every_key_stands_in_the_section_of_its_table_as_it_is_declared(table):
    for key, spec in keys_of(TABLES[table]).items():
        value, default, meaning = row(table, key)
        assert all(f"`{shown(name)}`" in value for name in spec.kind.names) or value == "a name, see below"
        assert spec.default in (None, ()) or default.startswith(
            "required" if spec.default is REQUIRED else (shown(spec.default), f"`{shown(spec.default)}`")
        )
        assert meaning.startswith(spec.meaning), f"{table}.{key}"
    for key, spec in entries_of(TABLES[table]).items():
        assert not spec.table or row(table, key)[2].startswith(spec.meaning), f"{table}.{key}"


@pytest.mark.parametrize("name", [*Space(3).operators(), *FUNCTIONS, *REDUCTIONS, "noise", "at"])
def test_every_operator_and_function_is_named(name):
    assert f"`{name}(" in REFERENCE


def test_boundaries_integrators_and_reserved_words_are_named():
    assert [kind for kind in KINDS if f"{{ {kind} = " not in section("boundary")] == []
    assert [kind for kind in PLAIN if f'`"{kind}"`' not in section("boundary")] == []
    assert [name for name in INTEGRATORS if f"`{name}`" not in section("numerics")] == []
    assert [word for word in RESERVED if not re.search(rf"\b{word}\b", REFERENCE)] == []


@pytest.mark.parametrize("tables", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_of_the_reference_are_inputs(tables):
    config = from_mapping({**EXAMPLES[0], **tables}, Path("/somewhere"))
    keys = (*array_files(config), *series_files(config))
    build(config, dict.fromkeys(keys, ArrayContents("", 1.0, 1.0, (1.0, 1.0))))  # the files are not here


def test_classes_of_the_page_are_equations(tmp_path):
    files = re.findall(r"`(\w+\.\w+)`[^\n]*:\n\n```\w+\n(.*?)```", OWN, re.DOTALL)
    assert {Path(name).suffix for name, _ in files} == {".py", ".toml"}
    for name, text in files:
        (tmp_path / name).write_text(text)
    for name, text in files:
        if name.endswith(".toml"):
            build(from_mapping(tomllib.loads(text), tmp_path))
    public = [
        name for name in functions if getattr(functions[name], "__module__", "") == "hpcstencil.symbolic.functions"
    ]
    assert all(re.search(rf"\b{name}\b", OWN) for name in public if not name.startswith("_"))


def test_the_class_of_contributing_is_an_equation(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (tmp_path / "fisher.py").write_text(textwrap.dedent(re.search(r"```python\n(   .*?)```", text, re.DOTALL)[1]))
    equation, _ = load(tmp_path / "fisher.py", "Fisher")
    assert equation.fields(2) == ("u",)
    build(
        from_mapping({"grid": {"shape": [8]}, "equation": {"name": "fisher.py:Fisher"}, "time": {"end": 1.0}}, tmp_path)
    )


@pytest.mark.parametrize("page", ["README.md", "docs/running.md"])
def test_inputs_of_the_guides_work(page):
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    inputs = [text for text in blocks if "base = " not in text]
    assert len(inputs) == 1
    build(from_mapping(tomllib.loads(inputs[0]), ROOT))


def test_the_sweep_of_the_guide_works(tmp_path):
    (block,) = re.findall(r"```toml\n(base = .*?)```", (ROOT / "docs/running.md").read_text(), re.DOTALL)
    (fisher,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "fisher.toml").write_text(fisher)
    (tmp_path / "sweep.toml").write_text(block)
    configs, _ = member_inputs(read_sweep(tmp_path / "sweep.toml"))
    assert len(configs) == 6


def anchors(page):
    """The names by which links reach the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PAGES = [
    *("README.md", "CONTRIBUTING.md", "jobs/README.md", "benchmarks/README.md"),
    "hpcstencil/backends/native/cpp/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", (ROOT / page).read_text()):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        assert not heading or heading in anchors(path), f"{target}#{heading}"


def test_the_tests_that_pages_name_exist():
    files = list((ROOT / "tests").rglob("test_*.py"))
    known = {path.stem for path in files}.union(
        *(re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE) for path in files)
    )
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", (ROOT / page).read_text())}
    assert "test_every_equation_has_a_row" in named
    assert named - known == set()


def test_the_page_of_the_native_headers_names_what_they_have():
    """Its table of invariants says which function relies on which."""
    folder = ROOT / "hpcstencil/backends/native/cpp"
    headers = [path.read_text() for path in folder.glob("*.hpp")]
    named = re.findall(r"`(\w+)::(\w+)`", (folder / "README.md").read_text())
    assert len(named) > 30
    for owner, member in named:
        own = [text for text in headers if re.search(rf"^struct {owner} (: \w+ )?{{", text, re.MULTILINE)]
        assert len(own) == 1 and re.search(rf"\b{member}\b", own[0]), f"{owner}::{member}"
