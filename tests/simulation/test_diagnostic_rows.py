"""Rows of diagnostics that native code records while a call takes many steps."""

import numpy as np
import pytest
from probed import (
    ROWS,
    STEPS,
    counted_calls,
    diagnostics,
    file_of,
    samples,
    with_diagnostics,
    with_expressions,
    with_nested,
    with_probes,
    with_stencils,
)

from hpcstencil.backends.native.field_sums import ByNative
from hpcstencil.validation.errors import NumericsError


@pytest.fixture
def calls(monkeypatch):
    """The numbers of steps of the calls of a run."""
    return counted_calls(monkeypatch)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, column in one.items():
        assert column.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("threads", (1, 3))
@pytest.mark.parametrize("row", [row for row in ROWS if row[0] != "gas-2d"], ids=lambda row: row[0])
def test_recorded_rows_are_those_of_calls_that_end_there(tmp_path, monkeypatch, calls, row, threads):
    monkeypatch.setattr("hpcstencil.backends.native.step_functions.threads_for", lambda _: threads)
    given = with_diagnostics(row)
    given["numerics"]["kernel"] = "native"
    recorded = diagnostics(file_of(tmp_path / "recorded.h5", given))
    assert max(calls) > 3 and recorded["step"].tolist() == [*range(0, STEPS, 3), STEPS]
    calls.clear()
    monkeypatch.setattr(ByNative, "recorder", lambda *given: None)
    assert_same(recorded, diagnostics(file_of(tmp_path / "ended.h5", given)))
    assert max(calls) <= 3


@pytest.mark.parametrize("having", (with_expressions, with_stencils))
@pytest.mark.parametrize("threads", (1, 3))
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_recorded_expressions_are_those_of_calls_that_end_there(tmp_path, monkeypatch, calls, row, threads, having):
    for module in ("step_functions", "stencil_values"):
        monkeypatch.setattr(f"hpcstencil.backends.native.{module}.threads_for", lambda _: threads)
    given = having(row)
    given["numerics"]["kernel"] = "native"
    recorded = diagnostics(file_of(tmp_path / "recorded.h5", given))
    assert all(map(np.all, map(np.isfinite, recorded.values())))
    assert max(calls) > 3 and recorded["step"].tolist() == [*range(0, STEPS, 3), STEPS]
    calls.clear()
    monkeypatch.setattr(ByNative, "recorder", lambda *given: None)
    assert_same(recorded, diagnostics(file_of(tmp_path / "ended.h5", given)))
    assert max(calls) <= 3


@pytest.mark.parametrize("row", [ROWS[n] for n in (1, 2, 3, 4, 6, 7, 8)], ids=lambda row: row[0])
def test_derivatives_of_products_along_periodic_axes_are_recorded(tmp_path, monkeypatch, calls, row):
    given = with_nested(row)
    given["numerics"]["kernel"] = "native"
    recorded = diagnostics(file_of(tmp_path / "recorded.h5", given))
    assert max(calls) > 3
    calls.clear()
    monkeypatch.setattr(ByNative, "recorder", lambda *given: None)
    assert_same(recorded, diagnostics(file_of(tmp_path / "ended.h5", given)))
    assert max(calls) <= 3
    given["numerics"]["kernel"] = "shift"
    for name, column in diagnostics(file_of(tmp_path / "shift.h5", given)).items():
        assert recorded[name] == pytest.approx(column, rel=1e-4 if "32" in row[2] else 1e-11), name


@pytest.mark.parametrize("threads", (1, 2, 3))
@pytest.mark.parametrize("having", (with_diagnostics, with_expressions, with_stencils))
@pytest.mark.parametrize("row", [ROWS[0], ROWS[2], ROWS[8]], ids=lambda row: row[0])
def test_members_have_the_rows_that_they_have_alone(tmp_path, monkeypatch, calls, row, threads, having):
    for module in ("step_functions", "stencil_values"):
        monkeypatch.setattr(f"hpcstencil.backends.native.{module}.threads_for", lambda _: threads)
    given = having(row)
    given["numerics"]["kernel"] = "native"
    initial = [given["initial"], {name: f"1.5*({text})" for name, text in given["initial"].items()}]
    field = next(iter(given["initial"]))
    rows = diagnostics(
        file_of(tmp_path / "all.h5", {**given, "ensemble": {f"initial.{field}": [each[field] for each in initial]}})
    )
    assert max(calls) > 3
    for member, each in enumerate(initial):
        alone = diagnostics(
            file_of(tmp_path / f"{member}.h5", {**given, "initial": {**given["initial"], field: each[field]}})
        )
        assert_same({name: rows[name][..., member, :] if rows[name].ndim > 1 else rows[name] for name in rows}, alone)
    monkeypatch.setattr(ByNative, "recorder", lambda *given: None)
    calls.clear()
    ended = {**given, "ensemble": {f"initial.{field}": [each[field] for each in initial]}}
    assert_same(rows, diagnostics(file_of(tmp_path / "ended.h5", ended)))
    assert max(calls) <= 3


@pytest.mark.parametrize("having", (with_expressions, with_stencils))
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_expressions_are_those_of_other_kernels(tmp_path, row, having):
    given = having(row)
    rows = []
    for kernel in ("native", "shift"):
        given["numerics"]["kernel"] = kernel
        rows.append(diagnostics(file_of(tmp_path / f"{kernel}.h5", given)))
    for name, column in rows[0].items():
        assert column == pytest.approx(rows[1][name], rel=1e-4 if "32" in row[2] else 1e-11), name


@pytest.mark.parametrize("expression", ("max(dx(u*u))", "integral(u) + max(dx(x*y*u))"))
def test_calls_end_where_they_cannot_record_an_expression(tmp_path, calls, expression):
    given = with_diagnostics(ROWS[0], diagnostics={"every_steps": 3, "plain": "max(u)", "other": expression})
    given["numerics"]["kernel"] = "native"
    rows = diagnostics(file_of(tmp_path / "run.h5", given))
    assert max(calls) <= 3 and rows["step"].tolist() == [*range(0, STEPS, 3), STEPS]


WIDE = [[0.1, -0.3, 0.2, 0.3, -0.4], [0.0, 0.1, 0.0, 0.2, 0.1], [0.2, -0.1, -0.3, 0.1, 0.2]]


@pytest.mark.parametrize("every", (3, 26))
@pytest.mark.parametrize("periodic", (True, False))
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_expressions_that_read_further_than_steps_are_recorded_if_rows_are_frequent(
    tmp_path, monkeypatch, calls, every, periodic
):
    given = {
        "grid": {"shape": [400, 300]},
        "equation": {"name": "custom", "rhs": {"u": "0.1*laplacian(u)"}, "stencils": {"wide": WIDE}},
        "initial": {"u": "noise(3)"},
        "boundary": {"x": "periodic"} if periodic else {"x": {"dirichlet": "t"}},
        "time": {"dt": 0.01, "end": 0.6},
        "numerics": {"kernel": "native", "integrator": "euler"},
        "diagnostics": {"every_steps": every, "a": "integral(wide(u)**2)", "b": "max(wide(u)*dx(u))"},
    }
    rows = diagnostics(file_of(tmp_path / "recorded.h5", given))
    assert (max(calls) > every) == (every == 3)
    monkeypatch.setattr(ByNative, "recorder", lambda *given: None)
    assert_same(rows, diagnostics(file_of(tmp_path / "ended.h5", given)))


@pytest.mark.parametrize(
    "expression",
    (
        "max(dx(x*x))",
        "max(dx(1.0 + 0*x))",
        "integral(s*x)",
        "max(dx(u)) + max(dx(x*x))",
        "max(div_grad(u, s))",
        "max(dx(u))",
    ),
)
def test_expressions_without_fields_are_evaluated(tmp_path, expression):
    np.save(tmp_path / "samples.npy", np.arange(50.0))
    series = {"series": str(tmp_path / "samples.npy"), "dt": 0.01}
    values = []
    for kernel in ("native", "shift"):
        equation = {"name": "custom", "s": series, "rhs": {"u": "0.3*laplacian(u) + 0.01*s"}}
        given = heat(diagnostics={"every_steps": 3, "a": expression}, equation=equation)
        given["numerics"] = {"kernel": kernel}
        values.append(diagnostics(file_of(tmp_path / f"{kernel}.h5", given))["a"])
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def heat(**changes):
    given = {"grid": {"shape": [37]}, "equation": {"name": "heat"}, "initial": {"u": "sin(0.5*x)"}, **changes}
    return {**given, "numerics": {"kernel": "native"}, "time": {"dt": 0.01, "end": 0.4}}


def test_an_expression_without_a_value_costs_no_other_row(tmp_path, calls):
    expressions = {"ends": "integral(sqrt(0.2 - t)*u*u)", "never": "max(log(-u*u - 1))", "plain": "integral(u*u)"}
    rows = diagnostics(file_of(tmp_path / "run.h5", heat(diagnostics={"every_steps": 3, **expressions})))
    assert max(calls) == 40 and rows["step"].tolist() == [*range(0, 40, 3), 40]
    assert np.isnan(rows["ends"]).tolist() == [time > 0.2 for time in rows["time"]]
    assert np.isnan(rows["never"]).all() and np.isfinite(rows["plain"]).all()


def test_values_near_the_least_number_are_those_of_calls_that_end_there(tmp_path, monkeypatch):
    given = heat(initial={"u": "2e-38*sin(0.5*x)"}, diagnostics={"every_steps": 3, "a": "integral(abs(0.3*u))"})
    recorded = diagnostics(file_of(tmp_path / "recorded.h5", given))
    monkeypatch.setattr(ByNative, "recorder", lambda *given: None)
    assert_same(recorded, diagnostics(file_of(tmp_path / "ended.h5", given)))


def test_a_continued_run_has_the_rows_of_one_run(tmp_path):
    given = with_diagnostics(ROWS[2])
    given["numerics"]["kernel"] = "native"
    whole = diagnostics(file_of(tmp_path / "whole.h5", given))
    half = {**given, "time": {**given["time"], "end": 20 * given["time"]["dt"]}}
    path = file_of(tmp_path / "run.h5", half)
    longer = diagnostics(file_of(path, given, resume=True, overrides=("time.end=",)))
    kept = np.isin(longer["step"], whole["step"])  # the first part has a row at its end, too
    assert longer["step"][~kept].tolist() in ([], [20])
    assert_same({name: column[kept] for name, column in longer.items()}, whole)


def unstable(given):
    """The input with steps too long for its equation."""
    dt = 60 * given["time"]["dt"]
    return {**given, "numerics": {**given["numerics"], "kernel": "native"}, "time": {"dt": dt, "end": 900 * dt}}


def test_rows_before_the_solution_blows_up_are_kept(tmp_path, calls):
    given = unstable(with_diagnostics(ROWS[1], diagnostics={"every_steps": 2, "largest": "max(u)"}))
    del given["probes"]
    path = tmp_path / "run.h5"
    with pytest.raises(NumericsError, match="not finite") as raised:
        file_of(path, given)
    rows = diagnostics(path)
    assert max(calls) > 10 and len(rows["step"]) > 10
    assert rows["step"].tolist() == [*range(0, 2 * len(rows["step"]), 2)]
    assert np.isfinite(rows["largest"]).all() and rows["largest"][-1] > 1e100
    assert f"record that is not finite is that of step {2 * len(rows['step'])}" in str(raised.value)


def test_rows_of_derivatives_before_the_solution_blows_up_are_kept(tmp_path, calls):
    given = unstable(with_diagnostics(ROWS[1], diagnostics={"every_steps": 2, "steepest": "max(abs(dx(u)))"}))
    del given["probes"]
    path = tmp_path / "run.h5"
    with pytest.raises(NumericsError, match="not finite"):
        file_of(path, given)
    rows = diagnostics(path)
    assert max(calls) > 10 and rows["step"].tolist() == [*range(0, 2 * len(rows["step"]), 2)]
    assert np.isfinite(rows["steepest"]).all() and rows["steepest"][-1] > 1e100


def test_probes_before_the_solution_blows_up_are_kept(tmp_path):
    path = tmp_path / "run.h5"
    with pytest.raises(NumericsError, match="the first record that is not finite") as raised:
        file_of(path, unstable(with_probes(ROWS[1])))
    steps, _, values = samples(path)["a"]
    assert steps.tolist() == [*range(len(steps))] and np.isfinite(values).all() and abs(values[-1]).max() > 1e100
    assert f"that of step {len(steps)}" in str(raised.value)
