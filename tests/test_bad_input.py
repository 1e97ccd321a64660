"""Bad input: one sentence that names the key, status 2, nothing written. A table of inputs and of command lines."""

import sys
from pathlib import Path

import pytest

from hpcstencil.cli import main

GOOD = """
title = "good"
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
"""
CUSTOM = GOOD.replace('name = "heat"\nD = 0.1', 'name = "custom"\nD = 0.1\nrhs = { u = "D*laplacian(u)" }')


def hpcstencil(monkeypatch, capsys, *arguments):
    """(status, standard output, standard error) of the command line, run in this process."""
    monkeypatch.setattr(sys, "argv", ["hpcstencil", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# (key=value set on the good input, words that the sentence must have)
SET = [
    ("grd.shape=[3]", ["grd", "did you mean \"grid\""]),
    ("grid.shpe=[3]", ["grid.shpe", "did you mean \"shape\""]),
    ("grid.shape=[]", ["grid.shape", "list of positive integers"]),
    ("grid.shape=[4, 4, 4, 4]", ["grid.shape"]),
    ("grid.shape=[16.0, 12]", ["grid.shape", "integer"]),
    ("grid.shape=[-16, 12]", ["grid.shape", "positive"]),
    ("grid.shape=[0, 12]", ["grid.shape", "positive"]),
    ("grid.shape=[true, 12]", ["grid.shape"]),
    ("grid.shape=16", ["grid.shape", "list"]),
    ("grid.lower=[0.0]", ["grid.lower", "2 numbers"]),
    ("grid.upper=[1.0, 2.0, 3.0]", ["grid.upper", "2 numbers"]),
    ("grid.upper=[0.0, 1.0]", ["grid.upper", "more than grid.lower"]),
    ("grid.upper=[inf, 1.0]", ["grid.upper"]),
    ("grid.upper=[nan, 1.0]", ["grid.upper"]),
    ("equation.name=haet", ["equation.name", "did you mean \"heat\""]),
    ("equation.name=7", ["equation.name"]),
    ("equation.name=maxwell", ["maxwell", "not available yet"]),
    ("equation.name=mine.py:Mine", ["not available yet"]),
    ("equation.seed=3", ["equation.seed", "not available yet"]),
    ("equation.d=0.1", ["equation.d", "no such parameter", "D"]),
    ("equation.D=true", ["equation.D"]),
    ("equation.D=nan", ["equation.D"]),
    ("equation.D=1 +", ["equation.D", "cannot be read"]),
    ("equation.D=u", ["equation.D", "unknown name 'u'"]),
    ("equation.D=sin(t)", ["equation.D", "unknown name 't'"]),
    ("equation.rhs.u=laplacian(u)", ["equation.rhs", "custom"]),
    ("initial.w=1", ["initial.w", "field"]),
    ("initial.u=sin(", ["initial.u", "cannot be read"]),
    ("initial.u=cosine(x)", ["initial.u", "unknown function 'cosine'"]),
    ("initial.u=z", ["initial.u", "unknown name 'z'"]),
    ("initial.u=laplacian(x)", ["initial.u", "laplacian"]),
    ("initial.u=noise(-1)", ["initial.u", "whole numbers"]),
    ("initial.u=noise(0.5)", ["initial.u", "whole numbers"]),
    ("initial.u=[1]", ["initial.u"]),
    ("initial.file=missing.h5", ["initial.file", "missing.h5", "there is no"]),
    ("boundary.w='periodic'", ["boundary.w"]),
    ("boundary.z='periodic'", ["boundary.z"]),
    ("boundary.x='dirichlet'", ["boundary.x", "periodic"]),
    ("boundary.x='open'", ["boundary.x", "not available yet"]),
    ("boundary.x={robin={a=1,b=1,value=0}}", ["boundary.x.robin", "not available yet"]),
    ("boundary.x={sponge={width=2}}", ["sponge", "not available yet"]),
    ("boundary.x={dirchlet=0.0}", ["boundary.x.dirchlet", "did you mean \"dirichlet\""]),
    ("boundary.x={dirichlet=0.0,neumann=0.0}", ["boundary.x", "one kind"]),
    ("boundary.x={lower={dirichlet=0.0}}", ["boundary.x.upper", "missing"]),
    ("boundary.x={lower={dirichlet=0.0},upper='periodic'}", ["boundary.x", "one side only"]),
    ("boundary.x={lower={dirichlet=0.0},uper={neumann=0.0}}", ["boundary.x.uper", "upper"]),
    ("boundary.x={dirichlet='u'}", ["boundary.x", "unknown name 'u'"]),
    ("boundary.u={x={dirichlet=0.0}}", ["boundary.u.x", "periodic"]),
    ("boundary.operators={}", ["not available yet"]),
    ("numerics.order=3", ["numerics.order", "2, 4, 6 or 8"]),
    ("numerics.order='2'", ["numerics.order"]),
    ("numerics.integrator=rk5", ["numerics.integrator", "rk4"]),
    ("numerics.integrator=dopri5", ["dopri5", "not available yet"]),
    ("numerics.precision=double", ["numerics.precision", "float64"]),
    ("numerics.kernel=native", ["native", "not available yet"]),
    ("time.end=0", ["time.end", "positive"]),
    ("time.end=-1.0", ["time.end", "positive"]),
    ("time.end=soon", ["time.end", "number"]),
    ("time.end=inf", ["time.end", "finite"]),
    ("time.dt=0.0", ["time.dt", "positive"]),
    ("time.cfl=0", ["time.cfl", "positive"]),
    ("time.tolerance=1e-6", ["time.tolerance", "not available yet"]),
    ("time.dt_every=0", ["time.dt_every"]),
    ("time={dt=0.1}", ["time.end", "missing"]),
    ("time={end=1.0,dt=0.1,cfl=0.5}", ["time.dt", "time.cfl"]),
    ("decomposition.processes=[1]", ["decomposition.processes", "2 counts"]),
    ("decomposition.processes=[2, 0]", ["decomposition.processes"]),
    ("decomposition.devices=0", ["decomposition.devices"]),
    ("decomposition.tiles=[0, 1]", ["decomposition.tiles"]),
    ("decomposition.steps_per_exchange=-2", ["decomposition.steps_per_exchange"]),
    ("output.every=0.0", ["output.every"]),
    ("output={every=1.0,every_steps=3}", ["output.every", "output.every_steps"]),
    ("output.fields=['w']", ["output.fields", "use u"]),
    ("output.compression=zip", ["output.compression", "gzip"]),
    ("output.units={w='K'}", ["output.units.w"]),
    ("diagnostics.m=u", ["diagnostics.m", "not one number", "integral()"]),
    ("diagnostics.m=integral(mean(u))", ["diagnostics.m", "nests"]),
    ("diagnostics.u=mean(u)", ["diagnostics.u", "already"]),
    ("diagnostics.min=mean(u)", ["diagnostics.min", "rename"]),
    ("diagnostics.every_steps=0.5", ["diagnostics.every_steps"]),
    ("checkpoint.keep=0", ["checkpoint.keep"]),
    ("checkpoint.walltime=3600", ["checkpoint.walltime", '"HH:MM:SS"', "got 3600"]),
    ("checkpoint.walltime=1:99:00", ["checkpoint.walltime", '"HH:MM:SS"', "got"]),
    ("mask.solid=x<1", ["mask", "not available yet"]),
    ("ensemble.a=[1,2]", ["ensemble", "not available yet"]),
    ("title=7", ["title"]),
    ("grid.shape.x=3", ["--set", "grid.shape"]),
    ("nonsense", ["--set", "KEY=VALUE"]),
    ("grid.shape=[3, 12]\nnumerics.order=8", ["grid.shape"]),
]  # fmt: skip

CUSTOM_SET = [
    ("time={end=1.0}", ["time.dt", "custom"]),
    ("time={end=1.0,cfl=0.5}", ["time.dt", "custom"]),
    ("equation.extra=1.0", ["equation.extra", "no expression uses it"]),
    ("equation.laplacian=1.0", ["equation.laplacian", "rename"]),
    ("equation.rhs={}", ["equation.rhs"]),
    ("equation.rhs={u='D*laplacin(u)'}", ["equation.rhs.u", "did you mean 'laplacian'"]),
    ("equation.rhs={u='D*laplacian(u)', x='u'}", ["equation.rhs.x", "rename"]),
    ("equation.rhs={u='D*laplacian(u)', D='u'}", ["equation.D", "field already"]),
    ("equation.rhs={u='D*__import__(\"os\")'}", ["equation.rhs.u", "__import__"]),
    ("equation.rhs={'a b'='D'}", ["equation.rhs", "letters"]),
]


@pytest.mark.parametrize(
    "base, setting, words", [*((GOOD, *row) for row in SET), *((CUSTOM, *row) for row in CUSTOM_SET)]
)
def test_one_sentence_and_nothing_written(folder, monkeypatch, capsys, base, setting, words):
    path = folder / "input.toml"
    path.write_text(base)
    for command in ("check", "run"):
        status, out, err = hpcstencil(monkeypatch, capsys, command, path, "--set", setting)
        assert status == 2, err
        assert out == ""
        assert err.startswith("hpcstencil: ") and "Traceback" not in err
        for word in words:
            assert word in err, err
        assert list(folder.iterdir()) == [path]


LINES = [
    (["run"], "Missing argument"),
    (["frobnicate"], "No such command"),
    (["run", "missing.toml"], "missing.toml"),
    (["run", "."], "input file"),
    (["check", "binary.toml"], "UTF-8"),
    (["check", "syntax.toml"], "line 2"),
    (["run", "good.toml", "--devices", "0"], "--devices"),
    (["run", "good.toml", "--devices", "two"], "two"),
    (["run", "good.toml", "--resume", "--overwrite"], "--resume"),
    (["run", "good.toml", "--resume", "--restart", "a.h5"], "--resume"),
    (["check", "good.toml", "--processes", "500"], "counts that work"),
    (["verify", "good.toml"], "not available yet"),
    (["doctor", "--timeout", "0"], "--timeout"),
    (["sweep", "plan", "a.toml"], "expected a sweep file"),
    (["info", "missing.h5"], "missing.h5"),
    (["info", "good.toml"], "HDF5"),
    (["plot", "missing.h5"], "missing.h5"),
]


@pytest.mark.parametrize("line, words", LINES, ids=lambda v: str(v))
def test_command_lines(folder, monkeypatch, capsys, line, words):
    (folder / "good.toml").write_text(GOOD)
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "syntax.toml").write_text("[grid]\nshape = = 3\n")
    before = sorted(folder.iterdir())
    status, out, err = hpcstencil(monkeypatch, capsys, *line)
    assert status in (2, 4) and words in err and "Traceback" not in err, err
    assert sorted(folder.iterdir()) == before


def test_more_blocks_than_processes(folder, monkeypatch, capsys):
    """`check` weighs such an input as for a launch with as many processes."""
    Path("input.toml").write_text(GOOD)
    line = ("input.toml", "--set", "decomposition.processes=[2, 2]")
    status, out, _ = hpcstencil(monkeypatch, capsys, "check", *line)
    assert status == 0 and "processes             2 x 2" in out


def test_the_good_inputs_are_good(folder, monkeypatch, capsys):
    for text in (GOOD, CUSTOM):
        Path("input.toml").write_text(text)
        status, out, err = hpcstencil(monkeypatch, capsys, "check", "input.toml")
        assert status == 0 and "predicted time" in out, err


def test_a_step_beyond_stability_warns_with_the_limit(folder, monkeypatch, capsys):
    Path("input.toml").write_text(GOOD)
    line = ("check", "input.toml", "--set", "numerics.integrator=euler", "--set", "time.dt=3.0")
    status, _, err = hpcstencil(monkeypatch, capsys, *line)
    # Forward Euler: dt <= dx² / (2 ndim D) = 1 / (4 * 0.1)
    assert status == 0 and "warning: time.dt = 3 is beyond the stable step of euler" in err and " 2.5:" in err
