"""Imports run one way: a package knows those before it in PACKAGES, and no two of its own modules know each other.

Imports inside functions count too: they save time at start, and are arrows all the same.
"""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "hpcstencil"
PACKAGES = (
    "validation", "numerics", "runtime", "symbolic", "equations", "distributed", "io", "checkpoint", "config", "problem",
    "adjoint", "backends.backend", "backends.xla", "backends.native", "backends.pallas",
    "backends.registry", "sweep", "simulation", "gradient", "fit", "python", "verify", "benchmark", "doctor", "cli",
)  # fmt: skip
# Names that files of equations import, and the entry of the command.
TOP = {"__init__", "__main__", "derivatives", "expressions", "functions"}
HEAVY = {"jax", "mpi4jax", "mpi4py", "h5py", "matplotlib"}
# What `hpcstencil check` loads: imports neither JAX nor MPI at module level.
LIGHT = (
    "validation",
    "numerics",
    "runtime",
    "symbolic",
    "equations",
    "config",
    "problem",
    "adjoint",
    "sweep",
    "doctor",
    "cli",
)
LIGHT_MODULES = {
    "io.dataset_names", "io.rollback_journal", "io.transports", "io.transports.registry", "backends.backend",
    "backends.registry", "backends.native.backend", "backends.pallas.backend", "backends.xla.backend",
    "simulation.backend_choice", "simulation.checkpoint_time", "simulation.dry_run", "simulation.measurement_cache",
    "simulation.memory_estimate", "simulation.prepared", "simulation.consistency_check", "simulation.step_speed",
    "simulation.summary",
}  # fmt: skip
WITH_HDF5 = {"sweep.table", "doctor.mpi"}  # loaded where they are needed
COLLECTIVES = ("distributed", "doctor")
WITH_MPI4PY = {"runtime.communicator", "backends.native.edge_messages", "doctor.mpi"}
DESIGN = ROOT.parent / "docs/design"
# Pages whose tables list the modules of a package.
TABLES = {"backends.native": "native.md", "backends.pallas": "gpu.md"}


def name_of(path: Path) -> str:
    """Dotted name below the package; that of a package is its folder's."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def package_of(module: str) -> str | None:
    """The package of PACKAGES that a module is in; None at the top and for the folder of the backends."""
    return next((package for package in PACKAGES if f"{module}.".startswith(f"{package}.")), None)


def imports(path: Path, everywhere: bool):
    """Dotted names of what a file imports, at module level or anywhere in it; of `from a import b` both a and a.b."""
    tree = ast.parse(path.read_text())
    for part in ast.walk(tree) if everywhere else tree.body:
        if isinstance(part, ast.ImportFrom) and part.module:
            yield part.module
            yield from (f"{part.module}.{name.name}" for name in part.names)
        elif isinstance(part, ast.Import):
            yield from (name.name for name in part.names)


def own_imports(path: Path, everywhere: bool = True) -> set[str]:
    """Modules of this package among the imports."""
    named = (name.removeprefix("hpcstencil.") for name in imports(path, everywhere) if name.startswith("hpcstencil."))
    return {name for name in named if name in MODULES}


def test_few_modules_lie_at_the_top():
    assert {name for name in MODULES if "." not in name and MODULES[name].name != "__init__.py"} | {"__init__"} == TOP


@pytest.mark.parametrize("module", [name for name in MODULES if name not in TOP])
def test_packages_import_only_those_before_them(module):
    package = package_of(module)
    assert package or module == "backends", f"{module} is in no package of PACKAGES"
    if package:
        before = PACKAGES[: PACKAGES.index(package) + 1]
        late = {name for name in own_imports(MODULES[module]) if package_of(name) and package_of(name) not in before}
        assert not late, f"{module} imports {late}, which come later in PACKAGES"


def test_no_circle():
    arrows = {module: own_imports(path) - {module} for module, path in MODULES.items()}
    assert len(list(TopologicalSorter(arrows).static_order())) == len(
        MODULES
    )  # a circle raises CycleError and is named


@pytest.mark.parametrize("module", MODULES)
def test_light_modules_import_nothing_heavy(module):
    if (package_of(module) in LIGHT or module in LIGHT_MODULES | TOP) and module not in WITH_HDF5:
        assert not {name.split(".")[0] for name in imports(MODULES[module], everywhere=False)} & HEAVY


@pytest.mark.parametrize(
    "module", [name for name in MODULES if package_of(name) and package_of(name) not in COLLECTIVES]
)
def test_collectives_stay_in_few_packages(module):
    text = MODULES[module].read_text()
    assert "mpi4jax." not in text and "lax.p" not in text.replace("lax.pad", "")


def test_few_modules_import_mpi4py():
    assert {module for module, path in MODULES.items() if "mpi4py" in imports(path, everywhere=True)} == WITH_MPI4PY


def names_by_folder() -> dict[str, str]:
    """What layout.md says about each folder: the text from its name in bold type to the next such name."""
    section = (DESIGN / "layout.md").read_text().split("\n## The folders\n")[1].split("\n## ")[0]
    _, *pairs = re.split(r"\*\*([\w/]+)\*\*", section)
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


@pytest.mark.parametrize("module", [name for name, path in MODULES.items() if "." in name and path.stem != "__init__"])
def test_pages_of_the_design_name_every_module(module):
    package = package_of(module)
    if package in TABLES:
        rows = re.findall(r"^\| (.*?) \|", (DESIGN / TABLES[package]).read_text(), re.MULTILINE)
        assert any(f"`{MODULES[module].name}`" in row for row in rows)
    else:
        folders, folder = names_by_folder(), module.rpartition(".")[0].replace(".", "/")
        text = folders.get(folder) or folders[folder.split("/")[0]]
        assert f"`{MODULES[module].stem}`" in text
