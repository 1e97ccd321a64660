"""Sweeps without running anything: expansion, plans, claims, what the table and its figure hold."""

import json
import math
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import hpcstencil

from hpcstencil.runtime.signals import Request
from hpcstencil.sweep import local
from hpcstencil.sweep.attempts import (
    SILENT,
    SILENT_AND_OVER,
    Attempt,
    attempts,
    claim,
    process,
    recording_outcome,
    running,
)
from hpcstencil.sweep.folder import read_plan
from hpcstencil.sweep.members import MOST_MEMBERS, member_inputs, read_sweep
from hpcstencil.sweep.plan import write_plan
from hpcstencil.sweep.report import array_list
from hpcstencil.sweep.state import merged, standing, start
from hpcstencil.sweep.table import as_csv, tabulate
from hpcstencil.validation.errors import EnvironmentProblem, InputError, NumericsError, StoppedEarly

BASE = """
title = "base"
[grid]
shape = [16, 12]
[equation]
name = "heat"
D = 0.1
[initial]
u = "sin(x)*noise(1)"
[time]
end = 1.0
dt = 0.1
[output]
path = "somewhere/else.h5"
[diagnostics]
status = "integral(u)"
peak = "max(u)"
"""
GRID = """
base = "input.toml"
[parameters]
"equation.D" = [0.1, 0.2, 0.3]
time.dt = [0.05, 0.1]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.toml").write_text(BASE)
    (tmp_path / "sweep.toml").write_text(GRID)
    return tmp_path


def sweep_of(folder, text):
    (folder / "sweep.toml").write_text(text)
    return read_sweep(folder / "sweep.toml")


def planned(folder, text=GRID, overwrite=False):
    """The sweep laid out in runs/, without the command line."""
    sweep = sweep_of(folder, text)
    configs, _ = member_inputs(sweep)
    return write_plan(sweep, configs, folder / "runs", overwrite, lambda member: False)


def tree(folder):
    """Names and contents of all files."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- expansion -------------------------------------------------------------------------------------------------------


def test_a_grid_is_a_product_whose_last_key_is_fastest(folder):
    sweep = read_sweep(folder / "sweep.toml")
    assert sweep.parameters == ("equation.D", "time.dt")
    assert [tuple(m.values()) for m in sweep.members] == [
        (0.1, 0.05), (0.1, 0.1), (0.2, 0.05), (0.2, 0.1), (0.3, 0.05), (0.3, 0.1),
    ]  # fmt: skip


def test_a_list_goes_line_by_line_and_values_may_be_anything(folder):
    sweep = sweep_of(folder, GRID.replace("[parameters]", 'mode = "list"\n[parameters]').replace(", 0.3", "") +
                     'grid.shape = [[8], [9, 9]]\n"initial.u" = ["sin(x)", 1.0]')  # fmt: skip
    assert [m["grid.shape"] for m in sweep.members] == [[8], [9, 9]]
    assert sweep.members[1] == {"equation.D": 0.2, "time.dt": 0.1, "grid.shape": [9, 9], "initial.u": 1.0}


RANDOM = """
base = "input.toml"
mode = "random"
samples = {samples}
seed = {seed}
[parameters]
"equation.D" = {{ min = 0.001, max = 0.2, log = true }}
time.end = {{ min = 1, max = 2 }}
"output.every_steps" = {{ min = 2, max = 4, integer = true }}
"numerics.order" = [2, 4]
"""


def random_members(folder, samples=200, seed=1, more=""):
    return sweep_of(folder, RANDOM.format(samples=samples, seed=seed) + more).members


def test_random_members_are_the_same_on_any_machine(folder):
    """Raw bits of numpy's PCG64, which every version of numpy gives alike."""
    assert random_members(folder, samples=2) == (
        {"equation.D": 0.0821202641038, "time.end": 1.24105331628, "output.every_steps": 3, "numerics.order": 2},
        {"equation.D": 0.138179822465, "time.end": 1.21498136627, "output.every_steps": 4, "numerics.order": 4},
    )


def test_random_members_fill_their_ranges(folder):
    members = random_members(folder, 2000)
    logs = np.log([m["equation.D"] for m in members])
    assert logs.min() >= math.log(0.001) and logs.max() <= math.log(0.2)
    assert logs.mean() == pytest.approx((math.log(0.001) + math.log(0.2)) / 2, abs=0.15)
    assert np.mean([m["time.end"] for m in members]) == pytest.approx(1.5, abs=0.03)
    counts = np.bincount([m["output.every_steps"] for m in members])
    assert list(counts[:2]) == [0, 0] and len(counts) == 5 and counts[2:].min() > 500
    assert {m["numerics.order"] for m in members} == {2, 4}
    assert random_members(folder, seed=2)[0] != members[0]


def test_more_samples_and_other_parameters_leave_a_random_member_as_it_is(folder):
    few = random_members(folder, 5)
    assert random_members(folder, 9)[:5] == few
    more = random_members(folder, 5, more='"equation.extra" = { min = 0, max = 1 }\n')
    assert [{k: v for k, v in m.items() if k != "equation.extra"} for m in more] == list(few)


@pytest.mark.parametrize(
    "indices, text",
    [([3], "3"), ([0, 1, 2], "0-2"), ([2, 5, 6, 7], "2,5-7"), ([1, 2], "1,2"), ([0, 1, 4, 9, 10, 11], "0,1,4,9-11")],
)
def test_array_lists(indices, text):
    assert array_list(indices) == text


SHIPPED = sorted((Path(__file__).parents[2] / "inputs" / "sweeps").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_sweeps_are_sound(path):
    sweep = read_sweep(path)
    configs, warnings = member_inputs(sweep)
    assert len(configs) == len(sweep.members) > 1 and not warnings
    comment = path.read_text()
    assert f"--array=0-{len(configs) - 1} " in comment


# ---- bad input -------------------------------------------------------------------------------------------------------

HEAD = 'base = "input.toml"\n'
WRONG = [
    ("", ["base", "missing"]),
    ('base = "input.toml', ["sweep.toml: expected TOML"]),
    ('base = "nothing.toml"\n[parameters]\ntime.dt = [1.0]', ["nothing.toml", "there is none"]),
    (HEAD, ["[parameters]"]),
    (HEAD + "[parameters]", ["[parameters]"]),
    (HEAD + 'mod = "grid"\n[parameters]\ntime.dt = [0.1]', ["mod", 'did you mean "mode"']),
    (HEAD + 'mode = "gird"\n[parameters]\ntime.dt = [0.1]', ["mode", 'did you mean "grid"']),
    (HEAD + "seed = 3\n[parameters]\ntime.dt = [0.1]", ["seed", "random"]),
    (HEAD + "[parameters]\ntime.dt = 0.1", ["parameters.time.dt", "list of values", "0.1"]),
    (HEAD + "[parameters]\ntime.dt = []", ["parameters.time.dt", "list of values"]),
    (HEAD + "[parameters]\ntime.dt = { min = 0.1, max = 0.2 }", ["time.dt", 'mode = "random"']),
    (HEAD + "[parameters]\ntime.dt = [0.1]\ntime.cfl = [0.5]", ["time.dt", "time.cfl", "displace"]),
    (HEAD + '[parameters]\ntime.dt = [0.1]\n"time.dt" = [0.2]', ["time.dt", "only one"]),
    (HEAD + '[parameters]\ngrid = [{ shape = [4] }]\n"grid.shape" = [[4]]', ["grid", "grid.shape", "displace"]),
    (HEAD + '[parameters]\n"output.path" = ["a.h5", "b.h5"]', ["output.path", "own folder"]),
    (HEAD + "[parameters]\nD = [0.1]", ["parameters.D", 'did you mean "equation.D"']),
    (HEAD + '[parameters]\n"equation.d" = [0.1]', ["member 0", "equation.d = 0.1", "no such parameter"]),
    (HEAD + '[parameters]\n"equatoin.D" = [0.1]', ["equatoin", 'did you mean "equation"']),
    (HEAD + '[parameters]\n"equation.D" = [0.1, 0.2, "1 +"]', ["member 2", '"1 +"', "equation.D", "cannot be read"]),
    (HEAD + '[parameters]\n"grid.shape" = [[16, 12], [16]]\n"initial.u" = ["y"]', ["member 1", "[16]", "initial.u"]),
    (HEAD + 'mode = "list"\n[parameters]\ntime.dt = [0.1]\ntime.end = [1.0, 2.0]', ["time.end has 2", "one length"]),
    (HEAD + f"[parameters]\ntime.dt = {[0.1] * 101}\ntime.end = {[1.0] * 100}", [str(MOST_MEMBERS), "10100"]),
    (HEAD + 'mode = "random"\n[parameters]\ntime.dt = [0.1]', ["samples", "missing"]),
    (HEAD + 'mode = "random"\nsamples = 0\n[parameters]\ntime.dt = [0.1]', ["samples", "positive"]),
    (HEAD + 'mode = "random"\nsamples = 999999999\n[parameters]\ntime.dt = [0.1]', [str(MOST_MEMBERS)]),
    *(
        (HEAD + f'mode = "random"\nsamples = 4\n[parameters]\n"equation.D" = {given}', ["parameters.equation.D", *words])
        for given, words in [
            ("0.1", ["range or a list"]),
            ("{ min = 0.1 }", ["max", "missing"]),
            ("{ min = 0.1, mx = 0.2 }", ["mx", 'did you mean "max"']),
            ("{ min = 0.3, max = 0.2 }", ["min = 0.3", "0.2"]),
            ("{ min = 0.0, max = 0.2, log = true }", ["positive"]),
            ("{ min = 0.5, max = 2.0, integer = true }", ["whole numbers"]),
            ("{ min = 1, max = 2, integer = true, log = true }", ["only one"]),
            ('{ min = "a", max = 0.2 }', ["finite number"]),
            ("{ min = 0, max = inf }", ["finite number"]),
            ("{ min = 0, max = 1, log = 1 }", ["true or false"]),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize("text, words", WRONG)
def test_one_sentence_and_nothing_written(folder, monkeypatch, capsys, text, words):
    (folder / "sweep.toml").write_text(text)
    before = tree(folder)
    status, out, err = hpcstencil(monkeypatch, capsys, "sweep", "plan", "sweep.toml")
    assert status == 2 and out == "" and err.startswith("hpcstencil: ") and "Traceback" not in err
    assert err.count("hpcstencil:") == 1
    for word in words:
        assert word in err, err
    assert tree(folder) == before and sorted(p.name for p in folder.iterdir()) == ["input.toml", "sweep.toml"]


LINES = [
    (["sweep"], "Usage"),
    (["sweep", "plan"], "Missing argument"),
    (["sweep", "plan", "none.toml"], "expected a sweep file"),
    (["sweep", "plan", "sweep.toml", "--dir", "sweep.toml"], "it is a file"),
    (["sweep", "plan", "sweep.toml", "--dir", "."], "other files"),
    (["sweep", "run", "none", "--index", "0"], "plan.json"),
    (["sweep", "run", "sweep.toml", "--index", "0"], "plan.json"),
    (["sweep", "run", "runs"], "SLURM_ARRAY_TASK_ID"),
    (["sweep", "run", "runs", "--index", "6"], "0 to 5"),
    (["sweep", "run", "runs", "--index", "-1"], "0 to 5"),
    (["sweep", "run", "runs", "--index", "1", "--set", "equation.d=3"], "member 1: equation.d"),
    (["sweep", "run", "runs", "--index", "1", "--set", "nonsense"], "KEY=VALUE"),
    (["sweep", "run", "runs", "--index", "1", "--set", "output.path=a.h5"], "output.path"),
    (["sweep", "status", "none"], "plan.json"),
    (["sweep", "status", "runs", "--json", "--failed"], "--json"),
    (["sweep", "collect", "none"], "plan.json"),
]


@pytest.mark.parametrize("line, words", LINES, ids=str)
def test_command_lines(folder, monkeypatch, capsys, line, words):
    planned(folder)
    before = tree(folder)
    status, _, err = hpcstencil(monkeypatch, capsys, *line)
    assert status == 2 and words in err and "Traceback" not in err, err
    assert tree(folder) == before


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_is_complete_and_frozen(folder, monkeypatch, capsys):
    status, out, _ = hpcstencil(monkeypatch, capsys, "sweep", "plan", "sweep.toml", "--dir", "deep/runs")
    assert status == 0 and "--array=0-5 " in out
    there = read_plan(folder / "deep" / "runs")
    assert [m.settings["equation.D"] for m in there.members] == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    (folder / "input.toml").write_text("changed")
    for member in there.members:
        assert sorted(p.name for p in member.folder.iterdir()) == ["input.toml"]
        status, out, _ = hpcstencil(monkeypatch, capsys, "check", member.input)
        assert status == 0
    assert 'path = "' + str(folder / "deep" / "runs" / "0005" / "else.h5") in there.members[5].input.read_text()
    assert json.loads((folder / "deep" / "runs" / "plan.json").read_text())["base"]["text"] == BASE


def test_planning_again_changes_nothing(folder, monkeypatch, capsys):
    planned(folder)
    before = tree(folder)
    status, out, _ = hpcstencil(monkeypatch, capsys, "sweep", "plan", "sweep.toml", "--dir", "runs")
    assert status == 0 and "nothing has changed" in out and tree(folder) == before


def test_more_members_are_added_and_the_others_stay(folder):
    planned(folder, GRID.replace(", 0.3", ""))
    before = tree(folder / "runs")
    there, change = planned(folder)
    assert (change.changed, change.added, change.dropped) == ((), (4, 5), ())
    after = tree(folder / "runs")
    assert all(after[path] == text for path, text in before.items() if path.name == "input.toml")
    assert len(there.members) == 6


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("0.3]", "0.4]", ["member 4", "equation.D = 0.3", "become equation.D = 0.4", "1 other"]),
        (", 0.3]", "]", ["member 4", "be dropped"]),
        ("[0.05, 0.1]", "[0.1, 0.05]", ["member 0", "5 other"]),
    ],
)
def test_another_plan_needs_overwrite(folder, monkeypatch, capsys, old, new, words):
    planned(folder)
    (folder / "sweep.toml").write_text(GRID.replace(old, new))
    before = tree(folder)
    line = ("sweep", "plan", "sweep.toml", "--dir", "runs")
    status, out, err = hpcstencil(monkeypatch, capsys, *line)
    assert status == 2 and all(word in err for word in [*words, "--overwrite"]) and tree(folder) == before, err
    status, out, _ = hpcstencil(monkeypatch, capsys, *line, "--overwrite")
    assert status == 0
    assert [m.settings for m in read_plan(folder / "runs").members] == list(read_sweep(folder / "sweep.toml").members)


def test_a_changed_base_is_another_plan_but_a_comment_is_not(folder, monkeypatch, capsys):
    planned(folder)
    (folder / "input.toml").write_text("# a comment\n" + BASE)
    line = ("sweep", "plan", "sweep.toml", "--dir", "runs")
    assert hpcstencil(monkeypatch, capsys, *line)[0] == 0
    (folder / "input.toml").write_text(BASE.replace("end = 1.0", "end = 2.0"))
    status, _, err = hpcstencil(monkeypatch, capsys, *line)
    assert status == 2 and "as the base did" in err


def test_a_running_member_is_not_changed(folder, monkeypatch, capsys):
    there, _ = planned(folder)
    claim(there.members[4].folder, 0)
    (folder / "sweep.toml").write_text(GRID.replace("0.3]", "0.4]"))
    line = ("sweep", "plan", "sweep.toml", "--dir", "runs", "--overwrite")
    status, _, err = hpcstencil(monkeypatch, capsys, *line)
    assert status == 2 and "member 4 is running" in err


def test_an_input_changed_by_hand_is_refused_and_restored(folder, monkeypatch, capsys):
    there, _ = planned(folder)
    path = there.members[3].input
    text = path.read_text()
    path.write_text(text.replace("end = 1.0", "end = 2.0"))
    for line in (["run", "runs", "--index", "3"], ["status", "runs"]):
        status, _, err = hpcstencil(monkeypatch, capsys, "sweep", *line)
        assert status == 2 and str(Path("runs/0003/input.toml")) in err and "--set" in err
    assert hpcstencil(monkeypatch, capsys, "sweep", "plan", "sweep.toml", "--dir", "runs")[0] == 0
    assert path.read_text() == text


def test_a_moved_sweep_is_the_same_sweep(folder, monkeypatch, capsys):
    planned(folder)
    (folder / "runs").rename(folder / "moved")
    status, out, _ = hpcstencil(monkeypatch, capsys, "sweep", "plan", "sweep.toml", "--dir", "moved")
    assert status == 0 and "nothing has changed" in out
    there = read_plan(Path("moved"))
    assert standing(there, there.members[2]).state == "planned"


def test_warnings_name_the_members(folder, monkeypatch, capsys):
    (folder / "input.toml").write_text(BASE.replace("[output]", '[numerics]\nintegrator = "euler"\n[output]'))
    (folder / "sweep.toml").write_text(GRID.replace("[0.05, 0.1]", "[0.05, 1.0]"))
    status, _, err = hpcstencil(monkeypatch, capsys, "sweep", "plan", "sweep.toml")
    assert status == 0 and "member 5: time.dt = 1 is beyond the stable step" in err and err.count("warning") == 1


# ---- many processes at once ------------------------------------------------------------------------------------------


def at_once(code, count, folder):
    """Run ``code`` in so many processes that begin together; what each printed."""
    gate = folder / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.001)\n"
    started = [
        subprocess.Popen([sys.executable, "-c", f"{code.split('---')[0]}\n{wait}\n{code.split('---')[1]}"], cwd=folder,
                         stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]  # fmt: skip
    time.sleep(1.0)
    gate.touch()
    told = [process.communicate(timeout=60)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0] * count
    return told


PLAN = """
import sys
from hpcstencil.cli import main
import hpcstencil.sweep.folder, hpcstencil.sweep.state, hpcstencil.cli.sweep, hpcstencil.sweep.report
---
sys.argv = ["hpcstencil", "sweep", "plan", "sweep.toml", "--dir", "runs"]
main()
"""


def test_many_plans_at_once_are_one(folder):
    told = at_once(PLAN, 6, folder)
    assert sum("(planned)" in text for text in told) == 1
    assert sum("nothing has changed" in text for text in told) == 5
    assert sorted(p.name for p in folder.iterdir()) == ["gate", "input.toml", "runs", "sweep.toml"]
    assert sorted(p.name for p in (folder / "runs").iterdir()) == [*(f"000{i}" for i in range(6)), "plan.json"]


CLAIM = """
from pathlib import Path
from hpcstencil.sweep.attempts import attempts, claim, running
---
found = attempts(Path("."))
if found and running(found[-1]):
    print("refused")
else:
    mine = claim(Path("."), found[-1].number if found else 0)
    print("lost" if mine is None else mine.number)
time.sleep(1.0)
"""


@pytest.mark.parametrize("before", [0, 1], ids=["new", "after a dead one"])
def test_one_of_many_claims_succeeds(tmp_path, before):
    for _ in range(before):
        code = "from hpcstencil.sweep.attempts import claim; from pathlib import Path; claim(Path('.'), 0)"
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    told = at_once(CLAIM, 8, tmp_path)
    assert told.count(str(before + 1)) == 1 and set(told) <= {str(before + 1), "lost", "refused"}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *(f"attempt-{n + 1:03d}.json" for n in range(before + 1)),
        "gate",
    ]


# ---- attempts --------------------------------------------------------------------------------------------------------


def end(attempt, error=None):
    """Let an attempt end, with an error or well."""
    with suppress(type(error or ValueError())), recording_outcome(attempt):
        if error:
            raise error


def test_an_attempt_records_how_it_ended(tmp_path):
    for number, (error, status) in enumerate(
        [(None, "done"), (NumericsError("not finite"), "failed"), (StoppedEarly("stopped"), "stopped")]
    ):
        attempt = claim(tmp_path, number, overrides=("a=1",), identity="i", processes=3)
        assert running(attempts(tmp_path)[-1])
        end(attempt, error)
        ended = attempts(tmp_path)[-1]
        assert (ended.status, ended.reason, ended.overrides) == (status, str(error or ""), ("a=1",))
        assert ended.exit_status == (error.status if error else 0) and not running(ended)
        assert 0 <= ended.seconds < 60 and ended.owner["pid"] == os.getpid()


def elsewhere(tmp_path, age, monkeypatch, **owner):
    """An attempt by a process of another machine, that gave its last sign of life ``age`` seconds ago."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    attempt = claim(tmp_path, 0)
    record = json.loads(attempt.path.read_text())
    record["owner"].update({"boot": "another", "job": "", "restarts": 0, **owner})
    attempt.path.write_text(json.dumps(record))
    os.utime(attempt.path, (time.time() - age,) * 2)
    return attempts(tmp_path)[-1]


@pytest.mark.parametrize(
    "age, owner, alive",
    [
        (5, {}, True),
        (SILENT - 60, {}, True),
        (SILENT + 60, {}, False),
        (0, {"job": "77"}, False),  # our own job, before it was requeued
        (0, {"job": "77", "restarts": 1}, True),  # another step of our own job
        (5, {"job": "76"}, True),
    ],
)
def test_an_attempt_on_another_machine_is_judged_by_its_signs_of_life(tmp_path, monkeypatch, age, owner, alive):
    assert running(elsewhere(tmp_path, age, monkeypatch, **owner)) == alive


@pytest.mark.parametrize(
    "known, age, alive", [(True, 120, True), (False, 5, True), (False, SILENT_AND_OVER + 20, False)]
)
def test_slurm_is_asked_about_the_job_of_a_silent_attempt(tmp_path, monkeypatch, known, age, alive):
    """A script stands for squeue: what counts here is how its answers are taken."""
    answer = "echo RUNNING" if known else "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\n{answer}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(squeue.parent), prepend=os.pathsep)
    (tmp_path / "member").mkdir()
    assert running(elsewhere(tmp_path / "member", age, monkeypatch, job="76")) == alive


def test_a_process_of_this_machine_is_known_for_certain(tmp_path):
    attempt = claim(tmp_path, 0)
    os.utime(attempt.path, (0, 0))
    assert running(attempts(tmp_path)[-1])  # silent for ever, but here it is
    assert not running(replace(attempt, owner={**process(), "born": 1}))  # its number has been given to another


def test_an_unreadable_record_is_judged_by_its_age(tmp_path):
    (tmp_path / "attempt-001.json").write_text("")
    (attempt,) = attempts(tmp_path)
    assert running(attempt) and attempt == Attempt(1, tmp_path / "attempt-001.json")
    os.utime(attempt.path, (0, 0))
    assert not running(attempt)


# ---- states ----------------------------------------------------------------------------------------------------------


def ended(member, error=None, **what):
    """An attempt at a member that ended at once."""
    end(claim(member.folder, len(attempts(member.folder)), identity=member.identity, **what), error)


def dead(member, **what):
    """An attempt at a member whose process is gone."""
    attempt = claim(member.folder, len(attempts(member.folder)), identity=member.identity, **what)
    attempt.path.write_text(json.dumps({**json.loads(attempt.path.read_text()), "owner": {**process(), "born": 1}}))


def test_states_without_output(folder, monkeypatch, capsys):
    there, _ = planned(folder)
    claim(there.members[0].folder, 0, identity=there.members[0].identity)
    dead(there.members[1])
    ended(there.members[2], NumericsError("not finite"))
    ended(there.members[3], StoppedEarly("walltime"))
    ended(there.members[4])
    found = [standing(there, member) for member in there.members]
    states = [here.state for here in found]
    assert states == ["running", "interrupted", "failed", "stopped", "planned", "planned"]
    assert "not finite" in found[2].reason and "is gone" in found[4].reason
    _, out, _ = hpcstencil(monkeypatch, capsys, "sweep", "status", "runs")
    assert "6: 1 running, 2 planned, 1 stopped, 1 interrupted, 1 failed" in out and "not finite" in out
    for options, listed in [(["--failed"], "2"), (["--unfinished"], "1,3-5"), (["--failed", "--unfinished"], "1-5")]:
        status, out, _ = hpcstencil(monkeypatch, capsys, "sweep", "status", "runs", *options)
        assert (status, out) == (0, listed + "\n")
    told = json.loads(hpcstencil(monkeypatch, capsys, "sweep", "status", "runs", "--json")[1])
    assert [m["state"] for m in told["members"]] == states and told["counts"]["failed"] == 1
    assert told["members"][2]["attempts"][0]["exit_status"] == 3


def test_nobody_failed_is_an_empty_list(folder, monkeypatch, capsys):
    planned(folder)
    status, out, err = hpcstencil(monkeypatch, capsys, "sweep", "status", "runs", "--failed")
    assert (status, out) == (0, "") and "no member" in err


def test_a_member_that_is_running_is_refused(folder, monkeypatch, capsys):
    there, _ = planned(folder)
    claim(there.members[1].folder, 0, identity=there.members[1].identity)
    status, _, err = hpcstencil(monkeypatch, capsys, "sweep", "run", "runs", "--index", "1")
    assert status == 4 and "member 1: is being run already" in err and len(err.splitlines()) == 1


def test_settings_given_once_stay_with_the_member_until_it_is_planned_anew(folder):
    there, _ = planned(folder)
    member = there.members[5]
    ended(member, NumericsError("not finite"), overrides=("time.dt=0.01",))
    begin = start(there, member, ["equation.D=0.25"], False, 1, print)
    assert begin.overrides == ("time.dt=0.01", "equation.D=0.25") and begin.attempt.number == 2
    here = standing(there, member)
    assert here.settings == {"equation.D": 0.25, "time.dt": 0.01} and here.config.time.dt == 0.01
    dead(member, overrides=begin.overrides)
    (folder / "input.toml").write_text(BASE.replace("end = 1.0", "end = 2.0"))
    there, _ = planned(folder, overwrite=True)
    here = standing(there, there.members[5])
    assert here.state == "planned" and here.settings == {"equation.D": 0.3, "time.dt": 0.1}


def test_the_last_setting_counts_and_displaces_its_alternatives(folder):
    assert merged(["time.dt=0.1", "equation.D=2"], ["equation.D=3"]) == ("time.dt=0.1", "equation.D=3")
    assert merged(["time.dt=0.1"], ["time.cfl=0.4"]) == ("time.cfl=0.4",)
    there, _ = planned(folder)
    begin = start(there, there.members[0], ["time.cfl=0.4"], False, 1, print)
    here = standing(there, there.members[0])
    assert here.settings == {"equation.D": 0.1, "time.dt": None, "time.cfl": 0.4} and here.config.time.cfl == 0.4
    assert begin.attempt is not None


# ---- table and figure ------------------------------------------------------------------------------------------------


def test_a_table_has_a_row_per_member_and_a_column_per_repaired_key(folder, monkeypatch, capsys):
    there, _ = planned(folder)
    ended(there.members[1], NumericsError('it said: "no", twice'), overrides=("numerics.order=4",))
    table = tabulate(there, [standing(there, member) for member in there.members])
    assert table.parameters == ("equation.D", "time.dt", "numerics.order")
    assert table.diagnostics == ("diagnostics.status", "peak")  # `status` is a column of the table's own
    assert table.columns["numerics.order"] == [2, 4, 2, 2, 2, 2] and table.columns["peak"] == [None] * 6
    rows = as_csv(table).splitlines()
    assert rows[0].startswith("member,status,equation.D,time.dt,numerics.order,diagnostics.status,peak,time,")
    assert rows[2].startswith("1,failed,0.1,0.1,4,nan,nan,nan,nan,") and rows[2].endswith('"it said: ""no"", twice"')
    status, out, err = hpcstencil(monkeypatch, capsys, "sweep", "collect", "runs", "-o", "out/all.csv")
    assert status == 0 and "warning: 6 of 6" in err and "0-5" in err
    assert out.split() == [str(Path("out/all.csv")), str(Path("out/all.h5"))]  # nothing to plot yet


def figure_of(*parameters, count=12, step=1e-5):
    from postprocess.sweep import Parameter, SweepTable, sweep_figure

    done = np.arange(count) % 5 != 4
    values = np.where(done, 3.0 + step * np.arange(count), np.nan)
    table = SweepTable("title", tuple(Parameter(*p) for p in parameters), {"a": values, "b": values**9}, done)
    figure = sweep_figure(table)
    figure.canvas.draw()
    return figure


STEPS = np.arange(12.0)


@pytest.mark.parametrize(
    "parameters, panels",
    [
        ([("p", STEPS)], 2),
        ([("p", 10.0 ** (STEPS / 2))], 2),
        ([("p", STEPS // 4), ("q", STEPS % 4)], 4),  # a map and its colour bar for each diagnostic
        ([("p", STEPS), ("q", STEPS**2)], 4),
        ([("p", STEPS), ("q", STEPS % 3, ("sin(x)", "a much longer text than that", "$"))], 4),
        ([("p", STEPS), ("q", STEPS**2), ("r", -STEPS)], 6),
    ],
    ids=["line", "logarithmic", "map", "plane", "texts", "panels"],
)
def test_figures(parameters, panels):
    figure = figure_of(*parameters)
    assert len(figure.axes) == panels
    assert figure.axes[0].get_xscale() == ("log" if parameters[0][1].max() > 100 and len(parameters) == 1 else "linear")
    texts = [text for axes in figure.axes for text in (axes.get_title(loc="left"), axes.get_ylabel())]
    assert any(text.startswith("a − 3") for text in texts)  # its distance from a round number


@pytest.mark.parametrize("parameters", [[("p", STEPS // 4), ("q", STEPS % 4)], [("p", STEPS)]], ids=["map", "line"])
def test_rounding_errors_of_a_table_are_not_visible(parameters):
    axes, *others = figure_of(*parameters, step=2e-16).axes
    assert axes.get_title(loc="left") == "a"  # the value itself, not its distance from a round number
    ends = axes.collections[0].get_clim() if others[1:] else axes.get_ylim()
    assert ends == pytest.approx((2.985, 3.015))


def test_colour_bars_are_below_each_other_with_and_without_a_power_of_ten():
    _, _, first, second = figure_of(("p", STEPS // 4), ("q", STEPS % 4), step=1e-8).axes
    assert first.yaxis.get_offset_text().get_text() and not second.yaxis.get_offset_text().get_text()
    assert first.get_window_extent().x0 == pytest.approx(second.get_window_extent().x0, abs=1)


def test_what_is_no_table_is_refused(tmp_path):
    import h5py

    from postprocess.reader import FileProblem
    from postprocess.sweep import read_table

    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    with pytest.raises(FileProblem, match="not the table of a sweep"):
        read_table(tmp_path / "a.h5")
    with pytest.raises(InputError, match="plan.json"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    "line, words",
    [
        (["--all", "--index", "0"], "--index: cannot be combined with --all"),
        (["--jobs", "2"], "--jobs: expected together with --all"),
        (["--all", "--jobs", "0"], "--jobs: expected a positive number"),
    ],
)
def test_options_that_exclude_each_other(folder, monkeypatch, capsys, line, words):
    planned(folder)
    status, out, err = hpcstencil(monkeypatch, capsys, "sweep", "run", "runs", *line)
    assert status == 2 and words in err and len(err.strip().splitlines()) == 1


def test_all_is_refused_on_several_processes(folder, monkeypatch, capsys):
    planned(folder)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    status, _, err = hpcstencil(monkeypatch, capsys, "sweep", "run", "runs", "--all")
    assert status == 2 and "without mpirun" in err


@pytest.mark.parametrize("name", ["../../victim.h5", "/tmp/victim.h5", "..", "", "plan.json", "input.toml", "a\0b", 5])
def test_a_plan_cannot_name_an_output_outside_of_its_members(folder, monkeypatch, capsys, name):
    planned(folder)
    record = json.loads((folder / "runs/plan.json").read_text())
    (folder / "runs/plan.json").write_text(json.dumps({**record, "output": name}))
    for command in (("run", "runs", "--index", "0"), ("status", "runs"), ("collect", "runs")):
        status, out, err = hpcstencil(monkeypatch, capsys, "sweep", *command)
        assert (status, out) == (2, "") and "plan the sweep anew" in err and len(err.splitlines()) == 1, err


def test_a_member_is_not_run_through_a_link(folder, monkeypatch, capsys):
    planned(folder)
    (folder / "runs/0000").rename(folder / "elsewhere")
    (folder / "runs/0000").symlink_to(folder / "elsewhere")
    before = tree(folder / "elsewhere")
    for command in (("run", "runs", "--index", "0"), ("plan", "sweep.toml", "--dir", "runs", "--overwrite")):
        status, _, err = hpcstencil(monkeypatch, capsys, "sweep", *command)
        assert command[0] == "plan" and status == 0 or status == 2 and "is a link" in err, err
    assert tree(folder / "elsewhere") == before


def test_a_record_of_brackets_is_refused(folder, monkeypatch, capsys):
    planned(folder)
    (folder / "runs/plan.json").write_text("[" * 10**6)
    status, _, err = hpcstencil(monkeypatch, capsys, "sweep", "status", "runs")
    assert status == 2 and "it is damaged" in err


STOPS = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print(1, flush=True); signal.pause()"
)


@pytest.mark.parametrize("fault", ["a member cannot be started", "a record cannot be read"])
def test_an_error_stops_the_members_that_run(folder, monkeypatch, fault):
    sweep = planned(folder)[0]
    programs = iter([STOPS] if fault == "a member cannot be started" else [STOPS, "raise SystemExit(3)"])
    children = []

    def begun(planned, member, options, slot, jobs):
        program = next(programs, None)
        if program is None:
            raise EnvironmentProblem(fault)
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        children.append(process)
        if program == STOPS:
            assert process.stdout.readline()  # it has its handler now
        return local.Child(member, slot, process, 0.0)

    def unreadable(folder):
        raise EnvironmentProblem(fault)

    monkeypatch.setattr(local, "_begun", begun)
    monkeypatch.setattr(local, "attempts", unreadable)
    try:
        with pytest.raises(EnvironmentProblem, match=fault):
            local.run_all(sweep, [], True, 2, Request(), lambda line: None)
        assert children[0].returncode == 75
    finally:
        for child in children:
            child.kill()
            child.communicate()
