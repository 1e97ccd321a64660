"""The command as a user starts it: mpirun included, files opened by the libraries that readers use."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from commands import ENVIRONMENT, INPUT, assert_same, contents, ended, here, hpcstencil, ranks, started, wait_until

from hpcstencil.checkpoint.checkpoint import SCALARS, newest_checkpoint
from hpcstencil.checkpoint.paths import list_checkpoints, step_of
from hpcstencil.io.hdf5_validation import SIGNATURE
from hpcstencil.runtime.communicator import OneProcess

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    return tmp_path


def test_the_reference_is_what_was_asked_for(reference):
    series, complete = contents(reference / "run.h5")
    assert complete == 1
    np.testing.assert_array_equal(series["time"], np.arange(7) * 2.0)
    np.testing.assert_array_equal(series["step"], np.arange(7) * 20)
    assert list(series["diagnostics/step"]) == [*range(0, 120, 7), 120]
    assert series["u"].shape == (7, 61, 47) and series["u"].dtype == np.float32
    assert np.isfinite(series["u"]).all() and np.ptp(series["v"][-1]) > 0.01


@pytest.mark.parametrize(
    "processes, devices, more",
    [
        (1, 2, ("--set", "output.compression=gzip")),
        (2, 1, ("--set", "decomposition.steps_per_exchange=1", "--set", "output.compression=gzip")),
        # The runs that are resumed have these, and the tests on 1 to 4 processes of the same names.
        pytest.param(2, 2, ("--set", "output.method=serial"), marks=pytest.mark.long),
        pytest.param(4, 1, ("--set", "output.compression=gzip"), marks=pytest.mark.long),
    ],
)
def test_every_decomposition_writes_the_same_file(reference, folder, processes, devices, more):
    hpcstencil(processes, "run", "input.toml", "--devices", devices, *more, folder=folder)
    assert_same(reference / "run.h5", folder / "run.h5")


def test_a_file_written_on_three_processes_is_the_same_and_opens_everywhere(reference, folder):
    hpcstencil(3, "run", "input.toml", "--set", "decomposition.tiles=[2, 2]", folder=folder)
    assert_same(reference / "run.h5", folder / "run.h5")
    with xarray.open_dataset(folder / "run.h5", engine="h5netcdf") as data:
        assert dict(data.sizes) == {"time": 7, "x": 61, "y": 47}
        assert data.u.dims == ("time", "x", "y") and data.u.attrs["units"] == "mol"
        assert float(data.u.sel(time=4.0).mean()) > 0
        np.testing.assert_allclose(data.x, (np.arange(61) + 0.5) * 0.1)
    with h5py.File(folder / "run.h5") as file:
        assert [d.keys()[0] for d in file["u"].dims] == ["time", "x", "y"]
        assert sorted(json.loads(file.attrs["decomposition"])["processes"]) == [1, 3]
        assert "Gray" not in file.attrs["title"] and "[equation]" in file.attrs["input"]
        root = ElementTree.parse(folder / "run.xdmf").getroot()
        items = [item for item in root.iter("DataItem") if item.text and ":" in item.text]
        assert items
        for item in items:
            name, _, path = item.text.strip().partition(":")
            assert name == "run.h5" and path.strip() in file
        assert len(list(root.iter("Time"))) == 7


@pytest.mark.parametrize("processes, devices, more", [
    pytest.param(4, 1, (), marks=pytest.mark.long),  # test_kernel_of_a_run.py continues a run on thin blocks in this way
    (2, 2, ("--set", "output.method=serial")),
])  # fmt: skip
def test_resume_on_another_decomposition_continues_bitwise(reference, begun, folder, processes, devices, more):
    shutil.copytree(begun, folder, dirs_exist_ok=True)
    hpcstencil(processes, "run", "input.toml", "--resume", "--devices", devices, *more,
               "--set", "decomposition.steps_per_exchange=1", folder=folder)  # fmt: skip
    assert_same(reference / "run.h5", folder / "run.h5")
    again = hpcstencil(processes // 2, "run", "input.toml", "--resume", folder=folder)
    assert "nothing to do" in again.stdout


def test_what_a_run_cannot_go_on_with_is_refused_before_anything_is_written(reference, begun, folder):
    shutil.copytree(begun, folder, dirs_exist_ok=True)
    before = (folder / "run.h5").read_bytes()
    for more, told in (
        (
            ("numerics.precision=float64",),
            r"numerics\.precision: \S+ was begun with float32 and cannot continue with float64",
        ),
        (
            ("diagnostics.more=integral(u)",),
            r"diagnostics: \S+ was begun with mass and cannot continue with mass, more",
        ),
        (("time.end=9.0", "equation.k=0.06"), r"equation\.k: \S+ is complete, and nothing would be computed"),
    ):
        settings = [part for text in more for part in ("--set", text)]
        result = hpcstencil(0, "run", "input.toml", "--resume", *settings, folder=folder, status=2)
        assert re.search(told, result.stderr) and (folder / "run.h5").read_bytes() == before
    hpcstencil(0, "run", "input.toml", "--resume", folder=folder)
    assert_same(reference / "run.h5", folder / "run.h5")


def test_resume_refuses_a_mask_that_changed(folder):
    cells = np.zeros((20, 16), bool)
    cells[5:9, 4:8] = True
    np.save(folder / "solid.npy", cells)
    tables = 'grid.shape = [20, 16]\nequation.name = "heat"\ntime.dt = 0.1\nmask.solid = "solid.npy"\ninitial.u = "x"\n'
    (folder / "input.toml").write_text(tables + "time.end = 1.0\n")
    hpcstencil(0, "run", "input.toml", "--output", "run.h5", folder=folder)
    (folder / "input.toml").write_text(tables + "time.end = 2.0\n")
    np.save(folder / "solid.npy", cells[::-1])
    result = hpcstencil(2, "run", "input.toml", "--output", "run.h5", "--resume", folder=folder, status=2)
    assert "mask.solid: " in result.stderr and "was made with other values than those in the file now" in result.stderr
    np.save(folder / "solid.npy", cells)
    hpcstencil(2, "run", "input.toml", "--output", "run.h5", "--resume", folder=folder)


def test_a_parameter_from_a_file_goes_on_with_the_same_values_only(folder):
    speed = 1 + 0.3 * np.random.default_rng(5).random((20, 16))
    np.save(folder / "c.npy", speed)
    (folder / "input.toml").write_text(
        'grid.shape = [20, 16]\nequation = { name = "acoustic", c = "c.npy" }\ninitial.p = "sin(x)*cos(y)"\n'
        'numerics.integrator = "leapfrog"\ntime = { end = 4.0, dt = 0.1 }\noutput.every = 1.0\n'
        'checkpoint.every_steps = 10\ndiagnostics.energy = "integral(p**2/c**2)"\n'
    )
    hpcstencil(0, "run", "input.toml", "--output", "whole.h5", folder=folder)
    hpcstencil(2, "run", "input.toml", "--output", "cut.h5", "--set", "time.end=2.0", folder=folder)
    arguments = ("run", "input.toml", "--output", "cut.h5", "--resume")
    with h5py.File(list_checkpoints(folder / "cut.h5")[0]) as file:
        assert {"p", "q"} < set(file) and "parameter.c" not in file  # what never changes is not stored
    np.save(folder / "c.npy", 2 * speed)
    result = hpcstencil(2, *arguments, folder=folder, status=2)
    assert "equation.c: " in result.stderr and "was made with other values than those in the file now" in result.stderr
    np.save(folder / "c.npy", speed)
    hpcstencil(3, *arguments, folder=folder)
    whole, found = (contents(folder / name)[0] for name in ("whole.h5", "cut.h5"))
    assert whole.keys() == found.keys() and all(whole[name].tobytes() == found[name].tobytes() for name in whole)
    np.save(folder / "c.npy", speed / 2)
    hpcstencil(2, *arguments, "--set", "time.end=5.0", "--set", "equation.c=c.npy", folder=folder)
    with h5py.File(folder / "cut.h5") as file:
        assert json.loads(file.attrs["history"])[-1]["changed"].keys() >= {"equation.c"}


ADAPTIVE = """
[grid]
shape = [37, 29]
upper = [18.5, 14.5]
[equation]
name = "mine.py:Brusselator"
[initial]
u = "1 + 0.5*noise(1)"
v = "3 + 0.5*sin(x)"
[boundary]
y = { lower = { robin = { a = 1.0, b = 2.0, value = "1 + 0.1*sin(t)" } }, upper = { neumann = 0.0 } }
[numerics]
integrator = "bs3"
kernel = "shift"
[time]
end = 3.0
tolerance = 1e-4
[output]
every = 0.5
[diagnostics]
every_steps = 7
mass = "integral(u + v)"
[checkpoint]
every_steps = 20
"""


def test_an_adaptive_run_of_an_equation_in_a_file_resumes_bitwise(tmp_path):
    (tmp_path / "input.toml").write_text(ADAPTIVE)
    source = (ROOT / "inputs" / "brusselator.py").read_text()
    (tmp_path / "mine.py").write_text(source)
    hpcstencil(0, "run", "input.toml", "--output", "whole.h5", folder=tmp_path)
    hpcstencil(0, "run", "input.toml", "--set", "time.end=1.7", "--devices", 2, folder=tmp_path)
    hpcstencil(2, "run", "input.toml", "--resume", folder=tmp_path)
    assert_same(tmp_path / "input.h5", tmp_path / "whole.h5")
    with h5py.File(tmp_path / "input.h5") as file:
        assert file.attrs["equation_source"] == source
        assert np.allclose(file["time"], np.arange(7) * 0.5, rtol=0, atol=1e-12)
    (tmp_path / "mine.py").write_text(source.replace("(p.B + 1)", "(p.B + 2)"))
    result = hpcstencil(0, "run", "input.toml", "--resume", "--set", "time.end=4.0", folder=tmp_path, status=2)
    assert "equation.name" in result.stderr and "another text" in result.stderr


def test_auto_goes_on_with_the_kernel_that_the_run_began_with(folder):
    conv = ("--set", "numerics.kernel=conv")
    hpcstencil(0, "run", "input.toml", *conv, "--set", "time.end=5.0", folder=folder)
    hpcstencil(2, "run", "input.toml", "--resume", folder=folder)
    hpcstencil(0, "run", "input.toml", *conv, "--output", "whole.h5", folder=folder)
    assert_same(folder / "run.h5", folder / "whole.h5")


def test_restart_begins_a_new_output_at_the_checkpoint(reference, begun, folder):
    shutil.copytree(begun, folder, dirs_exist_ok=True)
    hpcstencil(
        2, "run", "input.toml", "--restart", "run.checkpoint.000000000080.h5", "--output", "new.h5", folder=folder
    )
    (new, _), (old, _) = contents(folder / "new.h5"), contents(reference / "run.h5")
    np.testing.assert_array_equal(new["step"], [80, 100, 120])
    assert np.array_equal(new["u"], old["u"][4:])
    result = hpcstencil(0, "run", "input.toml", "--restart", "run.checkpoint.000000000080.h5", "--output", "other.h5",
                        "--set", "grid.shape=[61, 48]", folder=folder, status=2)  # fmt: skip
    assert "grid" in result.stderr and not (folder / "other.h5").exists()


def test_an_existing_output_is_kept(folder):
    for precious, words, options in (
        (SIGNATURE + b"precious", "exists already; use --overwrite", ()),
        (b"my thesis", "exists already, and is not an HDF5 file; remove it", ("--overwrite",)),
    ):
        (folder / "run.h5").write_bytes(precious)
        result = hpcstencil(2, "run", "input.toml", *options, folder=folder, status=2)
        assert words in result.stderr and (folder / "run.h5").read_bytes() == precious


def test_other_physics_are_not_resumed(begun, folder):
    shutil.copytree(begun, folder, dirs_exist_ok=True)
    text = INPUT.replace("D_u = 0.02", "D_u = 0.03")
    (folder / "input.toml").write_text(text)
    result = hpcstencil(0, "run", "input.toml", "--resume", folder=folder, status=2)
    assert "equation.D_u: " in result.stderr and "another value, 0.02 instead of 0.03; if that" in result.stderr
    result = hpcstencil(0, "run", "input.toml", "--resume", "--set", "equation.D_u=0.03", folder=folder)
    continuing = "hpcstencil: continuing from run.h5 (step 90, t = 9) with another "
    assert any(line.startswith(continuing) and "equation.D_u" in line for line in result.stderr.splitlines())
    with h5py.File(folder / "run.h5") as file:
        assert "D_u = 0.03" in file.attrs["input"]
        (entry,) = json.loads(file.attrs["history"])
    del entry["changed"]["output.path"]  # it was copied here
    assert entry["step"] == 90 and entry["changed"] == {"equation.D_u": [0.02, 0.03], "time.end": [9.0, 12.0]}
    told = hpcstencil(0, "info", "run.h5", folder=folder).stdout
    assert "continued      from step 90, t = 9, with equation.D_u = 0.03 (before: 0.02), " in told


def test_overwriting_forgets_the_old_checkpoints(reference, folder):
    shutil.copytree(reference, folder, dirs_exist_ok=True)
    hpcstencil(0, "run", "input.toml", "--overwrite", "--set", "time.end=5.0", folder=folder)
    assert [p.name for p in folder.glob("*.checkpoint.*")] == ["run.checkpoint.000000000040.h5"]


def test_an_unwritable_place_is_told_in_one_sentence(folder):
    (folder / "file").write_text("")
    result = hpcstencil(2, "run", "input.toml", "--output", "file/run.h5", folder=folder, status=4)
    assert result.stderr.count("hpcstencil:") == 1 and "file" in result.stderr and "Traceback" not in result.stderr


def test_an_unstable_run_ends_with_3_and_keeps_what_was_good(folder):
    result = hpcstencil(
        2, "run", "input.toml", "--set", "equation.D_u=1.0", "--set", "time.end=200.0", folder=folder, status=3
    )
    assert result.stderr.count("hpcstencil: field 'u' is not finite") == 1 and "at step" in result.stderr
    assert "the first at cell [" in result.stderr and "x = " in result.stderr
    with h5py.File(folder / "run.h5") as file:
        assert (
            file.attrs["failure"]
            and file.attrs["complete"] == 0
            and np.isfinite(file["u"][()]).all()
            and len(file["time"]) >= 1
        )


BURGERS = """
[grid]
shape = [37, 29]
upper = [6.283185307179586, 6.283185307179586]
[equation]
name = "burgers"
nu = 0.1
seed = 3
[initial]
u = "sin(x)*cos(y) + 0.5*cos(2*x + y)"
v = "-cos(x)*sin(y) + 0.05*noise(seed)"
[numerics]
order = 4
integrator = "ssprk3"
kernel = "shift"
[time]
end = 1.0
cfl = 0.4
dt_every = 3
[output]
path = "run.h5"
every = 0.33
[diagnostics]
mass = "integral(u**2 + v**2)"
"""


def test_a_step_that_follows_the_solution_is_the_same_however_the_run_is_cut(folder):
    """Cadences, the length of compiled calls, decomposition and restart must not move the measurements of the step."""
    (folder / "input.toml").write_text(BURGERS + "every_steps = 7\n")
    hpcstencil(0, "run", "input.toml", "--output", "whole.h5", folder=folder)
    hpcstencil(2, "run", "input.toml", "--set", "checkpoint.every_steps=10", folder=folder)
    assert_same(folder / "whole.h5", folder / "run.h5")
    # The newest one is that of the end, before a step that was shortened to land there.
    newest = [path for path in list_checkpoints(folder / "run.h5") if step_of(path) % 10 == 0][0]
    assert step_of(newest) % 3, "the checkpoint should lie between two measurements"
    hpcstencil(0, "run", "input.toml", "--devices", 2, "--restart", newest.name, "--output", "rest.h5", folder=folder)
    (rest, _), (whole, _) = contents(folder / "rest.h5"), contents(folder / "whole.h5")
    assert np.array_equal(rest["u"][-1], whole["u"][-1]) and rest["time"][-1] == whole["time"][-1] == 1.0
    assert np.array_equal(rest["step"][-1], whole["step"][-1])


LARGE = """
output = { path = "run.h5", every_steps = 7 }
grid.shape = [200, 190, 101]
equation.name = "heat"
initial.u = "sin(x/9)*cos(y/7) + noise(1)"
time = { dt = 0.1, end = 3.0 }
numerics = { kernel = "native", integrator = "euler" }
"""


def test_what_is_written_behind_is_what_was_computed(folder):
    """Native code steps so many cells in place, and stores them twice."""
    (folder / "input.toml").write_text(LARGE)
    hpcstencil(0, "run", "input.toml", "--output", "first.h5", "--set", "output.write_behind=false", folder=folder)
    for processes in (0, 2):
        hpcstencil(processes, "run", "input.toml", "--overwrite", folder=folder)
        with h5py.File(folder / "first.h5") as first, h5py.File(folder / "run.h5") as other:
            assert first["u"].shape == (6, 200, 190, 101) and np.array_equal(first["u"], other["u"])


def test_an_initial_state_that_is_not_finite_is_bad_input(folder):
    result = hpcstencil(2, "run", "input.toml", "--set", "initial.u=sqrt(x - 100)", folder=folder, status=2)
    assert "initial.u" in result.stderr and "not finite" in result.stderr and not (folder / "run.h5").exists()


def test_copies_that_cannot_see_each_other_are_refused(folder):
    """As under srun without a working MPI plugin: the environment says 4 tasks, MPI says 1."""
    result = hpcstencil(0, "run", "input.toml", folder=folder, status=4, SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="4")
    assert "4 processes" in result.stderr and "srun --mpi=pmix" in result.stderr
    assert not (folder / "run.h5").exists()


def test_too_many_processes_are_told_which_counts_work(folder):
    result = hpcstencil(4, "run", "input.toml", "--set", "grid={shape=[3]}", "--set", "numerics.order=8", "--set",
                        "initial={}", "--set", "boundary={}", "--set", "probes={}", folder=folder, status=2)  # fmt: skip
    assert "counts that work: 1" in result.stderr and result.stderr.count("hpcstencil:") == 1


def test_more_blocks_than_processes_are_refused(folder):
    result = hpcstencil(2, "run", "input.toml", "--set", "decomposition.processes=[2, 2]", folder=folder, status=2)
    assert "makes 4 blocks" in result.stderr and not (folder / "run.h5").exists()


def test_help_and_check_answer_at_once(folder):
    for arguments in (("--help",), ("check", "input.toml")):
        result = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "hpcstencil", *arguments],
            cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert result.returncode == 0
        loaded = {row.rsplit("|", 1)[-1].strip() for row in result.stderr.splitlines()}
        assert not loaded & {"jax", "mpi4py", "h5py", "matplotlib"}


ONE_AFTER_THE_OTHER = """
import sys, traceback
from pathlib import Path
from hpcstencil.backends.native import compiler
from hpcstencil.cli import cli, prepare

compiler.FLAGS = tuple("-O1" if flag == "-O2" else flag for flag in compiler.FLAGS)  # compiles in two thirds of the time
bound = prepare.bind_devices(1)
prepare.bind_devices = lambda wanted: bound  # jax is imported once
for path, end in zip(sys.argv[1::2], sys.argv[2::2]):
    output = Path(path).stem + ".h5"
    try:
        cli(["run", path, "--set", f"time.end={end}", "--set", "numerics.kernel=native", "--output", output],
            standalone_mode=False)
    except Exception:  # one that fails must not keep the others from running; its own test fails by this file
        Path(output).with_suffix(".error").write_text(traceback.format_exc())
"""
SHIPPED = sorted((ROOT / "inputs").glob("*.toml"))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The folder in which a hundredth of each example's time was run, by one process; no kernel is measured."""
    folder = tmp_path_factory.mktemp("shipped")
    ends = [tomllib.loads(path.read_text())["time"]["end"] / 100 for path in SHIPPED]
    arguments = [str(part) for pair in zip(SHIPPED, ends, strict=True) for part in pair]
    command = [sys.executable, "-c", ONE_AFTER_THE_OTHER, *arguments]
    environment = {**ENVIRONMENT, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.timeout(900)  # the first waits for all the runs
@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_every_shipped_input_checks_and_begins(path, shipped):
    """It stays finite and can be looked at."""
    here("check", path)
    output = shipped / f"{path.stem}.h5"
    error = output.with_suffix(".error")
    assert output.exists() and not error.exists(), error.exists() and error.read_text()
    assert "complete       yes" in here("info", output)
    here("plot", output, "-o", output.with_suffix(".png"))
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long  # the rows on 3 processes: tests/mpi/test_benchmark_mpi.py
def test_bench_measures_in_hardware_terms(folder):
    options = ("--scaling", "--json", "--plot", "pictures/bench.png")
    found = json.loads(hpcstencil(2, "bench", "input.toml", *options, folder=folder).stdout)
    assert found["copy_bandwidth"] > 1e8
    assert (folder / "pictures/bench.png").read_bytes().startswith(b"\x89PNG")
    assert [row["scaling"] for row in found["rows"]] == ["strong", "strong", "weak", "weak"]
    row = found["rows"][1]
    assert sorted(row["processes"]) == [1, 2] and row["equation"] == "gray_scott" and row["stages"] == 4
    assert len(row["waiting_fraction"]) == 2
    assert row["t_eff"] == pytest.approx(row["cells_per_second"] * 16)
    assert row["ratio"] == pytest.approx(row["t_eff"] / found["copy_bandwidth"])
    assert row["ratio_stages"] == pytest.approx(4 * row["ratio"])
    assert 0 < row["exchange_fraction"] <= 1 and row["compile_seconds"] > 0


def test_check_knows_what_bench_has_measured(folder):
    hpcstencil(0, "bench", "input.toml", folder=folder)
    told = hpcstencil(0, "check", "input.toml", folder=folder).stdout
    assert "Mcell/s measured here" in told


ENSEMBLE = (
    BURGERS
    + """
[checkpoint]
every_minutes = 0.00001
[ensemble]
"equation.nu" = [0.1, 0.3]
"equation.seed" = [4, 5]
"""
)


ADAPTIVE_ENSEMBLE = (
    ADAPTIVE.replace("mine.py:Brusselator", "brusselator.py:Brusselator")
    .replace("every_steps = 7\n", "")
    .replace("every_steps = 20", "every_minutes = 0.00001")
    + """
[ensemble]
"equation.B" = [2.0, 3.0]
"""
)


def test_an_ensemble_with_a_tolerance_is_killed_and_resumed_bitwise(tmp_path):
    """Killed between two outputs, where its members are at other times, and gone on with on another decomposition."""
    (tmp_path / "input.toml").write_text(ADAPTIVE_ENSEMBLE)
    shutil.copy(ROOT / "inputs" / "brusselator.py", tmp_path)
    run = started(2, "run", "input.toml", "--set", "time.end=1000.0", folder=tmp_path)
    wait_until(lambda: len(list_checkpoints(tmp_path / "input.h5")) > 1, run)
    os.kill(ranks(run)[1], signal.SIGKILL)
    assert ended(run, tmp_path, within=30)[0] != 0
    with h5py.File(newest_checkpoint(tmp_path / "input.h5", OneProcess())) as file:
        times = [file[SCALARS].attrs[f"members/{n}/time"] for n in (0, 1)]
    assert times[0] != times[1]
    end = f"time.end={np.ceil(max(times)) + 1}"
    hpcstencil(0, "run", "input.toml", "--resume", "--devices", 2, "--set", end, folder=tmp_path)
    hpcstencil(0, "run", "input.toml", "--output", "whole.h5", "--set", end, folder=tmp_path)
    assert_same(tmp_path / "input.h5", tmp_path / "whole.h5")


def test_an_ensemble_is_one_file_and_resumes_bitwise(folder, monkeypatch):
    """Stopped at an output, gone on with on other processes, and compared with a run of the last member's own."""
    (folder / "input.toml").write_text(ENSEMBLE)
    hpcstencil(0, "run", "input.toml", "--devices", 2, "--set", "time.end=0.66", folder=folder)
    hpcstencil(2, "run", "input.toml", "--resume", folder=folder)
    alone = ("--set", "ensemble={}", "--set", "equation.nu=0.3", "--set", "equation.seed=5")
    hpcstencil(0, "run", "input.toml", *alone, "--output", "alone.h5", folder=folder)
    with h5py.File(folder / "run.h5") as file, h5py.File(folder / "alone.h5") as own:
        assert file["u"].shape == (2, 5, 37, 29) and np.array_equal(file["time"][()], own["time"][()])
        for name in ("u", "v", "diagnostics/mass"):
            assert np.array_equal(file[name][1], own[name][()]), name
            assert not np.array_equal(file[name][0], own[name][()]), name
    with xarray.open_dataset(folder / "run.h5", engine="h5netcdf") as data:
        assert data.u.dims == ("member", "time", "x", "y") and data.u.coords["nu"].values.tolist() == [0.1, 0.3]
    monkeypatch.chdir(folder)
    told = here("info", "run.h5")
    assert "mass (5 values each)" in told and re.search("complete +yes", told)
    here("plot", "run.h5", "--slice", "member=1", "-o", "one.png")
    here("plot", "run.h5", "--diagnostics", "-o", "all.png")
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in ("one.png", "all.png"))
