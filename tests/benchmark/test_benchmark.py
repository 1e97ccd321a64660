"""What `hpcstencil bench` makes of its timings: rows, shares, the table and the picture."""

import jax
import numpy as np
import pytest
from support import problem_of

from hpcstencil.benchmark import rows, timing
from hpcstencil.benchmark.report import result, table
from hpcstencil.benchmark.rows import Case, counts, grown, measure, scaling_cases
from hpcstencil.benchmark.shares import Shares, shares, waiting
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.validation.errors import InputError
from postprocess.roofline import roofline_figure, save_roofline

HEAT = {"grid": {"shape": [24, 20], "upper": [2.4, 1.0]}, "equation": {"name": "heat"}}


def row(processes, speed, scaling=None, **others):
    return {
        "equation": "/some/where/own.py:Heat", "order": 2, "precision": "float32", "grid": [24, 20],
        "processes": [processes, 1], "devices": [1, 1], "kernel": "native", "steps_per_exchange": 4, "stages": 4,
        "cells_per_second": speed, "t_eff": 8 * speed, "ratio": speed / 1e9, "ratio_stages": 4 * speed / 1e9,
        "exchange_fraction": 0.1, "waiting_fraction": [0.0] * processes, "compile_seconds": 0.5,
        "scaling": scaling, "efficiency": speed / processes / 1e9 if scaling else None, "roof": 4e9 * processes, **others,
    }  # fmt: skip


@pytest.mark.parametrize(
    "processes, expected", [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (9, [1, 2, 4, 8, 9])]
)
def test_rows_for_powers_of_two_and_all_processes(processes, expected):
    assert counts(processes) == expected


def test_a_grown_grid_has_the_same_cells_and_more_of_them():
    config = problem_of(**HEAT).config
    larger = grown(config, 3).grid
    assert larger.shape == (72, 20) and larger.lower == config.grid.lower
    assert larger.spacing == pytest.approx(config.grid.spacing)


def test_the_blocks_that_the_input_asks_for_are_those_of_all_processes():
    problem = problem_of(**HEAT, decomposition={"processes": [1, 4]})
    cases = scaling_cases(problem, 4, 1)
    assert [(case.scaling, case.processes) for case in cases] == [
        (scaling, count) for scaling in ("strong", "weak") for count in (1, 2, 4)
    ]
    assert [case.decomposed.topology.processes for case in cases if case.processes == 4] == [(1, 4)] * 2
    assert [case.problem.config.grid.shape[0] for case in cases] == [24, 24, 24, 24, 48, 96]
    with pytest.raises(InputError, match="there are 3 processes"):
        scaling_cases(problem, 3, 1)


def test_a_grid_that_is_read_from_a_file_does_not_grow(capsys):
    cases = scaling_cases(problem_of(**HEAT, initial={"file": "start.h5"}), 2, 1)
    assert [case.scaling for case in cases] == ["strong"] * 2
    assert "no rows of weak scaling" in capsys.readouterr().err


def test_waiting_is_what_neither_computing_nor_messages_explain():
    own, own_exchange = np.array([0.6, 0.3, 0.9]), np.array([0.1, 0.1, 0.3])
    assert waiting(1.0, 0.2, own_exchange, own) == pytest.approx([0.3, 0.6, 0.1])
    assert waiting(0.5, 0.2, own_exchange, own) == pytest.approx([0.0, 0.2, 0.0])


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(timing, "SECONDS_PER_TIMING", 0.0)
    monkeypatch.setattr(timing, "COPY_CELLS", 2**10)
    monkeypatch.setattr(rows, "remember_step_speed", lambda *_: None)


@pytest.mark.parametrize("devices", (1, 2))
def test_a_row_in_hardware_terms(short, devices):
    problem = problem_of(**HEAT, numerics={"kernel": "shift", "integrator": "ssprk2"})
    local = jax.local_devices()[:devices]
    bandwidth, (found,) = measure([Case(Decomposed.of(problem, 1, devices))], OneProcess(), local)
    assert found["t_eff"] == pytest.approx(8 * found["cells_per_second"])
    assert found["ratio_stages"] == pytest.approx(2 * found["t_eff"] / bandwidth)
    assert found["waiting_fraction"] == [0.0] and found["scaling"] is found["efficiency"] is None
    assert (found["exchange_fraction"] > 0) == (devices > 1)


def test_members_with_steps_of_their_own_are_all_counted(short, monkeypatch):
    problem = problem_of(
        **HEAT, time={"end": 1.0, "cfl": 0.5}, ensemble={"equation.D": [0.1, 0.2, 0.3]}, numerics={"kernel": "shift"}
    )

    def in_two_seconds(*arguments):
        assert shares(*arguments).step > 0
        return Shares(2.0, 0.0, [0.0])

    monkeypatch.setattr(rows, "shares", in_two_seconds)
    _, (found,) = measure([Case(Decomposed.of(problem, 1, 1))], OneProcess(), jax.local_devices()[:1])
    assert found["cells_per_second"] == 3 * 24 * 20 / 2.0


def test_the_table_names_the_process_that_waits_most_and_leaves_empty_columns_out():
    alone = table(result(4e9, [row(1, 1e9)]))
    assert "own.py:Heat, order 2, float32" in alone and "4.0 GB/s" in alone
    assert not any(title in alone for title in ("scaling", "efficiency", "waiting"))
    told = table(result(8e9, [row(1, 1e9, "strong"), row(2, 1.5e9, "strong", waiting_fraction=[0.125, 0.25])]))
    *_, head, first, second = told.splitlines()
    assert [line.split()[0] for line in (head, first, second)] == ["scaling", "strong", "strong"]
    assert "efficiency" in head and "0.75" in second and "25.0% by rank 1" in second and "by rank" not in first


def test_the_picture_has_rows_at_their_intensity_under_the_roofs(tmp_path):
    scaling = [row(n, n * speed, kind) for kind, speed in (("strong", 0.5e9), ("weak", 0.8e9)) for n in (1, 2, 4)]
    told = {**result(16e9, scaling), "machine": {"processor": "A $5 chip", "cores": 4, "device": "cpu"}}
    figure = roofline_figure(told)
    roofline, processes = figure.axes
    per_step, per_stage, strong, weak = roofline.lines
    assert np.divide(per_step.get_ydata(), per_step.get_xdata()) == pytest.approx(16.0)
    assert np.divide(per_stage.get_ydata(), per_stage.get_xdata()) == pytest.approx(4.0)
    assert (strong.get_xdata(), strong.get_ydata()) == (pytest.approx([1 / 8]), pytest.approx([2.0]))
    assert weak.get_ydata() == pytest.approx([3.2])
    roof, ideal, *both = processes.lines
    assert list(roof.get_xdata()) == [1, 2, 4] and roof.get_ydata() == pytest.approx([0.5, 1.0, 2.0])
    assert ideal.get_ydata() == pytest.approx([0.5, 1.0, 2.0])
    assert [list(line.get_ydata()) for line in both] == [pytest.approx([0.5, 1.0, 2.0]), pytest.approx([0.8, 1.6, 3.2])]
    assert "chip, 4 cores" in figure.get_suptitle()
    assert len(roofline_figure({**told, "rows": [row(1, 1e9)]}).axes) == 1
    save_roofline(told, tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
