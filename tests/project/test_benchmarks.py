"""The benchmarks against other programs, without those: our side of each problem, and the page that they write."""

import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from hpcstencil.config.reader import from_mapping, load
from hpcstencil.problem.build import build

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "peers"))
from all import PAGE, PEERS
from devito_seismic import COMPARED, INPUT, LAYERS, OURS, RK4, SAMPLE, SHOT, STEPS, changes, end, lines, model
from inversion_gradient import CASES, F0, FAST, SPACING, T0
from section import BEGIN, END, OtherMachine, replaced, row, rows_of

DEVITO, NUMBA = PEERS[:2]
ROWS = {
    (peer.name, problem): row(problem, "method", "native", 2e9, 5e7, 0.5, "once")
    for peer in (DEVITO, NUMBA)
    for problem in peer.problems
}
PAGE_BEFORE = f"# Title\n\n{BEGIN}\n{END}\n\n## Next\n"


@pytest.fixture
def page():
    return replaced(PAGE_BEFORE, "A machine", PEERS, ROWS)


@pytest.mark.parametrize("peer, problem", [(peer, name) for peer in PEERS for name in peer.problems])
def test_our_side_of_every_problem_is_an_input(peer, problem):
    problem = peer.problems[problem]
    built = build(from_mapping(tomllib.loads(problem.input()), Path(".")))
    assert built.config.grid.shape == problem.shape
    assert built.config.time.end == pytest.approx(problem.steps * built.config.time.dt)


@pytest.mark.parametrize("refine", [1, 2])
def test_the_seismic_shot_is_the_shipped_input_with_a_step_of_its_own(tmp_path, refine):
    path = model(refine, tmp_path)
    for per_sample in {*COMPARED, *STEPS[RK4], *STEPS[OURS]}:
        config = load(INPUT, changes(per_sample * refine, "float64", path, end()))
        built = build(config)
        assert config.grid.shape == (240 * refine, 160 * refine)
        assert config.time.dt * config.probes["hydrophones"].every_steps == pytest.approx(SAMPLE)
        assert len(config.probes["hydrophones"].x) == 500
        assert built.config.equation.name == "acoustic"


@pytest.mark.parametrize("name", LAYERS)
def test_the_seismic_shot_may_have_other_layers(tmp_path, name):
    build(load(INPUT, [*changes(COMPARED[0], "float32", model(1, tmp_path), 0.1), *LAYERS[name]]))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_inversions_are_inputs_and_their_waves_do_not_come_back_from_walls(case):
    built = build(from_mapping(case.tables(FAST), Path(".")))
    assert built.config.time.end == pytest.approx(case.steps * case.dt)
    (source,), receivers = case.places()
    assert len(built.config.probes["receivers"].x) == len(receivers)
    true, guess = case.models()
    assert true.shape == guess.shape == (case.cells,) * case.ndim and (true != guess).any()
    arrives = np.linalg.norm(receivers - source, axis=1).min() / FAST + T0
    assert arrives + 1 / F0 < case.steps * case.dt
    to_walls = np.minimum(source, case.cells * SPACING - source).min()
    back = np.minimum(receivers, case.cells * SPACING - receivers).min(axis=1)
    assert case.layer or (to_walls + back).min() / FAST + T0 - 1 / F0 > case.steps * case.dt


def test_lines_of_a_program_leave_out_comments_and_docstrings(tmp_path):
    (tmp_path / "a.py").write_text(
        '"""One.\n\nTwo."""\n\n# comment\nx = 1\n\n\ndef f():\n    """Three."""\n    return x\n'
    )
    (tmp_path / "a.toml").write_text("# comment\n\n[grid]\nshape = [1]\n")
    assert (lines(tmp_path / "a.py"), lines(tmp_path / "a.toml")) == (3, 2)
    assert lines(SHOT) > lines(INPUT)


def test_rows_stand_between_the_two_comments(page):
    before, _, rest = page.partition(BEGIN)
    section, _, after = rest.partition(END)
    assert (before, after) == ("# Title\n\n", "\n\n## Next\n")
    assert all(line in section for line in ROWS.values())
    assert "| method | native | 2000 | 50.0 | 40.00 | 0.50 | once |" in section
    assert rows_of(page, PEERS) == ROWS


def test_rows_of_other_problems_are_kept(page):
    problem = next(iter(DEVITO.problems))
    new = {(DEVITO.name, problem): row(problem, "method", "shift", 1e9, 1e9, 0.1, "again")}
    assert rows_of(replaced(page, "A machine", PEERS, new), PEERS) == {**ROWS, **new}


def test_a_peer_that_cannot_be_installed_is_named_with_the_reason(page):
    reason = {(NUMBA.name, ""): "Not measured: no network."}
    without = replaced(page, "A machine", PEERS, reason)
    assert rows_of(without, PEERS) == {**{key: line for key, line in ROWS.items() if key[0] == DEVITO.name}, **reason}
    assert replaced(without, "A machine", PEERS, ROWS) == page


def test_rows_of_two_machines_are_not_mixed(page):
    new = {key: line for key, line in ROWS.items() if key[0] == NUMBA.name}
    with pytest.raises(OtherMachine, match="Another machine"):
        replaced(page, "Another machine", PEERS, new)
    assert "A machine" not in replaced(page, "Another machine", PEERS, ROWS)


def test_the_page_has_a_section_for_them():
    assert rows_of(PAGE.read_text(), PEERS)
