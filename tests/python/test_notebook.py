"""docs/notebook.ipynb in a kernel of Jupyter, which is restarted."""

import os
from pathlib import Path

import nbformat
import pytest
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"
TOO_EARLY = "import jax.numpy as jnp\njnp.ones(3).sum()"


def outputs(cell):
    """What a cell shows, by kind of data."""
    shown = {}
    for output in cell.outputs:
        shown |= output.get("data", {"text/plain": output.get("text", "")})
    return shown


def execute(client):
    """Execute all cells in the running kernel."""
    for number, cell in enumerate(client.nb.cells):
        client.execute_cell(cell, number)


@pytest.mark.e2e
def test_the_notebook_runs_before_and_after_a_restart_of_its_kernel(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # of this test run
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    early = nbformat.v4.new_code_cell(TOO_EARLY)
    notebook.cells.insert(0, early)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}})
    with client.setup_kernel(env={**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}):
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
