"""The notebooks in docs/ in a kernel of Jupyter, which is restarted."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK, GRADIENTS = DOCS / "notebook.ipynb", DOCS / "gradients.ipynb"
TOO_EARLY = "import jax.numpy as jnp\njnp.ones(3).sum()"


def outputs(cell):
    """The outputs of a cell by kind of data; text of several outputs is joined."""
    shown = {}
    for output in cell.outputs:
        data = output.get("data", {"text/plain": output.get("text", "")})
        shown |= {kind: shown.get(kind, "") + value if kind == "text/plain" else value for kind, value in data.items()}
    return shown


def execute(client):
    """Execute all cells in the running kernel."""
    for number, cell in enumerate(client.nb.cells):
        client.execute_cell(cell, number)


def started(notebook, folder):
    """A client for a notebook in a folder, with a running kernel that draws as Jupyter does."""
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}})
    return client, client.setup_kernel(env={**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"})


@pytest.mark.e2e
def test_the_notebook_runs_before_and_after_a_restart_of_its_kernel(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # of this test run
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    early = nbformat.v4.new_code_cell(TOO_EARLY)
    notebook.cells.insert(0, early)
    client, kernel = started(notebook, tmp_path)
    with kernel:
        with pytest.raises(CellExecutionError) as told:
            execute(client)
        assert told.value.ename == "EnvironmentProblem" and "restart the kernel first" in told.value.evalue
        run_sync(client.km.restart_kernel)(now=True)
        run_sync(client.kc.wait_for_ready)(timeout=60)
        del notebook.cells[0]
        execute(client)
    shown = [outputs(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "<hpcstencil.Simulation of acoustic, 120 x 80 cells, 0 steps" in shown[1]["text/plain"]
    assert len(shown[2]["image/png"]) > 10_000
    assert 0.0 < float(shown[3]["text/plain"]) < 1.0
    assert shown[4]["text/plain"].startswith("{'time': 2")


@pytest.mark.e2e
@pytest.mark.long
def test_the_notebook_on_gradients_finds_the_sources(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # of this test run
    notebook = nbformat.read(GRADIENTS, as_version=4)
    client, kernel = started(notebook, tmp_path)
    with kernel:
        execute(client)
    shown = [outputs(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert all(len(shown[number]["image/png"]) > 10_000 for number in (1, 2, 4))
    numbers = [[float(n) for n in re.findall(r"-?\d+\.\d*", line)] for line in shown[3]["text/plain"].splitlines()]
    assert [step for step, _, _ in numbers] == [1.0, 0.1]
    assert all(difference == pytest.approx(slope, rel=1e-8) for _, difference, slope in numbers)
    _, found = shown[5]["text/plain"].split(":\n")
    spots = [float(n) for n in re.findall(r"\d+\.\d*", found)]
    assert spots == pytest.approx([1.0, 8.0, 1.1, 2.0, 0.7, 8.0, 3.1, 1.3], rel=0.05)


@pytest.mark.parametrize("path", [NOTEBOOK, GRADIENTS], ids=lambda path: path.name)
def test_notebooks_are_kept_without_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.outputs or cell.execution_count for cell in cells if cell.cell_type == "code")
