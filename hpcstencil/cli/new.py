"""`hpcstencil new`: an example input to start from."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import click

from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import EnvironmentProblem, InputError
from hpcstencil.validation.messages import unknown
from hpcstencil.validation.printable import echo

FOLDER = "share/hpcstencil/inputs"  # of the installed files, see setup.cfg


@click.command()
@click.argument("name", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write (default: NAME.toml here).")
def new(name: str | None, output: Path | None) -> None:
    """Write the example input NAME, to start from. Without NAME, list the examples."""
    if environment_rank() != 0:
        return
    files = example_files()
    titles = {file.stem: _title(file) for file in files if file.suffix == ".toml"}
    if name is None:
        width = max(map(len, titles))
        echo("\n".join(f"{example:{width}}  {title}" for example, title in titles.items()))
        return
    name = name.removesuffix(".toml")
    if name not in titles:
        raise unknown("new", "example", name, tuple(titles))
    target = output or Path(f"{name}.toml")
    copies = {
        target if file.suffix == ".toml" else target.parent / file.name: file for file in files if file.stem == name
    }
    for copy in copies:
        if copy.exists():
            raise InputError(f"new: {copy} exists already; give another name with -o, or remove it")
    for copy, file in copies.items():
        _write(copy, file.read_bytes())
        echo(f"wrote  {copy}")
    echo(f"next   hpcstencil run {target}")


def example_files() -> list[Path]:
    """The paths of the example inputs and their data files: in the source tree if there is one, else as installed."""
    tree = Path(__file__).parents[2]
    if (tree / "setup.cfg").is_file():
        return sorted(path for path in (tree / "inputs").iterdir() if path.is_file())
    installed = importlib.metadata.files("hpcstencil") or []
    return sorted(Path(str(file.locate())).resolve() for file in installed if FOLDER in file.as_posix())


def _title(file: Path) -> str:
    """The title of an example input."""
    return str(tomllib.loads(file.read_text(encoding="utf-8"))["title"])


def _write(path: Path, content: bytes) -> None:
    """Write a new file. Raises EnvironmentProblem if it exists or cannot be written."""
    try:
        with path.open("xb") as file:
            file.write(content)
    except OSError as error:
        raise EnvironmentProblem(f"{path}: cannot be written: {error.strerror}") from None
