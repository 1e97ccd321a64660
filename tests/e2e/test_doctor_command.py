"""`hpcstencil doctor` as a user starts it, in environments that are really broken."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import h5py
import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**commands.ENVIRONMENT, "JAX_PLATFORMS": "cpu"}
DOCTOR = [sys.executable, "-m", "hpcstencil", "doctor"]
MPIRUN = [os.environ.get("MPIEXEC", "mpirun"), "-n", "2"]


def examined(command, folder, status, **environment):
    """Run a command; its standard error, and its verdicts ``{name: [(status, text), ...]}``. Nothing may be left behind."""
    before = sorted(folder.iterdir())
    result = subprocess.run(
        command, cwd=folder, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == status, result.stdout + result.stderr
    assert sorted(folder.iterdir()) == before
    assert "Traceback" not in result.stderr
    verdicts: dict[str, list[tuple[str, str]]] = {}
    for line in result.stdout.splitlines():
        match = re.fullmatch(r"(ok|warning|failed) +(\w+(?: \w+)*) {1,}(.+)", line)
        assert match, line
        name = line[9:25].strip()
        verdicts.setdefault(name, []).append((match[1], line[26:]))
    return result.stderr, verdicts


def package(folder, name, code):
    """A package that comes before the installed one; the PYTHONPATH that makes it so."""
    place = folder / "packages" / name
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(code)
    return os.pathsep.join([str(folder / "packages"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def program(folder, name, script):
    """A program that comes before that of the machine; the PATH that makes it so."""
    place = folder / "programs"
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / name).chmod(0o755)
    return f"{place}{os.pathsep}{os.environ['PATH']}"


EVERYWHERE = {
    "installation",
    "launch",
    "MPI",
    "cores",
    "compiler",
    "limits",
    "devices",
    "folder",
    "h5py",
    "write",
    "mpi4jax",
}


def test_one_process(tmp_path):
    _, verdicts = examined(DOCTOR, tmp_path, 0)
    assert set(verdicts) >= EVERYWHERE
    assert verdicts["launch"] == [("ok", "one process")]
    for name in ("installation", "MPI", "devices", "h5py", "write", "mpi4jax"):
        assert [status for status, _ in verdicts[name]] == ["ok"], verdicts[name]


def test_two_processes(tmp_path):
    _, verdicts = examined([*MPIRUN, *DOCTOR], tmp_path, 0)
    assert set(verdicts) >= EVERYWHERE | {"same folder"}
    assert all(len(verdicts[name]) == 1 for name in ("launch", "h5py", "write")), "rank 0 alone prints"
    assert verdicts["launch"][0][1].startswith("2 processes on ")
    assert verdicts["mpi4jax"][0] == ("ok", "a message between 2 processes and a sum arrived, on cpu")
    if h5py.get_config().mpi:
        assert verdicts["h5py"][0][0] == "ok" and "MPI-IO" in verdicts["write"][0][1]


@pytest.mark.parametrize("rank", [0, pytest.param(3, marks=pytest.mark.long)])
def test_copies_that_cannot_see_each_other(tmp_path, rank):
    error, verdicts = examined(DOCTOR, tmp_path, 4, SLURM_PROCID=str(rank), SLURM_STEP_NUM_TASKS="4")
    if rank != 0:
        assert verdicts == {} and error == ""
        return
    (status, text), *_ = verdicts["launch"]
    assert status == "failed" and "4 copies that cannot see each other" in text and "srun --mpi=pmix" in text
    assert "1 of " in error


def test_srun_without_its_mpi(tmp_path):
    """What a step's first process sees where srun was not told of pmix: MPI aborts, or finds itself alone."""
    names = {"JOBID": "1", "JOB_ID": "1", "STEPID": "0", "STEP_ID": "0", "NODELIST": "n1", "NTASKS": "4"}
    step = {f"SLURM_{name}": value for name, value in {**names, "PROCID": "0", "STEP_NUM_TASKS": "4"}.items()}
    path = program(tmp_path, "srun", "echo 'MPI plugin types are...'; echo pmix")
    program(tmp_path, "squeue", "echo UNLIMITED")
    _, verdicts = examined(DOCTOR, tmp_path, 4, PATH=path, **step)
    assert verdicts["Slurm"] == [("ok", "srun --mpi=pmix is available")] and "time left" not in verdicts
    failed = [text for found in verdicts.values() for status, text in found if status == "failed"]
    assert len(failed) == 1 and "srun --mpi=pmix" in failed[0]


def test_hosts_that_differ(tmp_path):
    """Rank 1 has a file system of its own at the folder's place, and a changed copy of the code."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
        pytest.skip("not run: this machine lets nobody mount in a namespace")
    shutil.copytree(ROOT / "hpcstencil", tmp_path / "copy" / "hpcstencil", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "copy" / "hpcstencil" / "distributed" / "halo.py").open("a") as file:
        file.write("# changed\n")
    folder = tmp_path / "output"
    folder.mkdir()
    command = [*DOCTOR, "--folder", str(folder)]
    elsewhere = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh"]
    other_code = ["env", f"PYTHONPATH={tmp_path / 'copy'}", "PYTHONDONTWRITEBYTECODE=1"]
    launcher = [MPIRUN[0], "-n", "1", *command, ":", "-n", "1", *elsewhere, *other_code, *command]
    _, verdicts = examined(launcher, tmp_path, 4)
    assert verdicts["same folder"][0][0] == "failed" and "not seen on rank 1" in verdicts["same folder"][0][1]
    assert "write" not in verdicts
    assert verdicts["installation"][0][0] == "failed" and "code on rank 1" in verdicts["installation"][0][1]


def test_doctor_reports_many_failures(tmp_path):
    """Two ranks on one core, a serial h5py, one GPU that jax cannot use, a launcher that is not known, low limits."""
    serial = (
        "import sys; sys.path.remove(__file__.rsplit('/', 2)[0]); del sys.modules['h5py']\n"
        "import h5py, types; h5py.get_config = lambda: types.SimpleNamespace(mpi=False)\n"
    )
    path = program(tmp_path, "nvidia-smi", 'echo "GPU 0: NVIDIA H100 (UUID: GPU-1234)"')
    program(tmp_path, "srun", "echo 'MPI plugin types are...'; echo none; echo pmi2")
    program(tmp_path, "squeue", "echo 1:30")
    limited = ["bash", "-c", 'ulimit -n 200; exec "$@"', "bash"]
    core = str(min(os.sched_getaffinity(0)))
    unknown = ["env", "-u", "OMPI_COMM_WORLD_RANK", "-u", "OMPI_COMM_WORLD_SIZE", "SLURM_JOB_ID=1"]
    _, verdicts = examined(
        [*MPIRUN, *unknown, *limited, "taskset", "-c", core, *DOCTOR],
        tmp_path,
        4,
        PYTHONPATH=package(tmp_path, "h5py", serial),
        PATH=path,
        XDG_CACHE_HOME="/proc",
        JAX_PLATFORMS="",
    )
    expected = {
        "launch": ["failed", "MPI sees 2 processes, but the launcher's variables say 1"],
        "cores": ["warning", "ranks 0, 1 of ", "share 1 core"],
        "limits": ["warning", "open files: at most 200"],
        "cache folder": ["warning", "cannot be written"],
        "Slurm": ["warning", "only none, pmi2"],
        "time left": ["warning", "1:30"],
        "h5py": ["warning", "serial"],
        "write": ["ok", "written by one process"],
        "mpi4jax": ["ok", "between 2 processes"],
    }
    for name, (status, *words) in expected.items():
        assert [s for s, _ in verdicts[name]] == [status], verdicts[name]
        assert all(word in verdicts[name][0][1] for word in words), verdicts[name]
    assert all(status != "ok" and "GPU" in text for status, text in verdicts["devices"])


def test_driver_and_folder_that_fail(tmp_path):
    """The driver hangs, the folder is missing, h5py belongs to another MPI; the rest is examined all the same."""
    maps = subprocess.run(
        [sys.executable, "-c", "from mpi4py import MPI; print(open('/proc/self/maps').read())"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    ).stdout
    library = next(line.split()[-1] for line in maps.splitlines() if re.search(r"/libmpi(ch)?\.so", line))
    other = tmp_path / "other" / Path(library).name
    other.parent.mkdir()
    shutil.copy(library, other)
    foreign = (
        f"import ctypes, sys; ctypes.CDLL({str(other)!r})\n"
        "sys.path.remove(__file__.rsplit('/', 2)[0]); del sys.modules['h5py']\nimport h5py\n"
    )
    _, verdicts = examined(
        [*DOCTOR, "--timeout", "4", "--folder", "missing"],
        tmp_path,
        4,
        PATH=program(tmp_path, "nvidia-smi", "exec sleep 600"),
        PYTHONPATH=package(tmp_path, "h5py", foreign),
        JAX_PLATFORMS="",
    )
    failed = {name: text for name, [(status, text), *_] in verdicts.items() if status == "failed"}
    assert set(failed) == {"devices", "folder", "h5py"}
    assert "nvidia-smi did not answer within 4 s" in failed["devices"]
    assert "No such file or directory" in failed["folder"]
    assert str(other) in failed["h5py"]


FAULTS = [
    ("os.kill(os.getpid(), 11)", "rank 1 .*: mpi4jax: was ended by SIGSEGV", "mpi4jax"),
    ("time.sleep(600)", None, "mpi4jax"),
    pytest.param(
        "MPI.COMM_WORLD.Abort(4)", "rank 1 .*: mpi4jax: ended with status 4", "mpi4jax", marks=pytest.mark.long
    ),
]


@pytest.mark.parametrize("fault, told, name", FAULTS, ids=["crash", "hang", "abort"])
def test_one_rank_fails_alone(tmp_path, fault, told, name):
    """mpi4jax crashes, hangs or aborts on rank 1 as it is imported: rank 0 tells what it can, and no rank hangs."""
    code = (
        "import os, time\nfrom mpi4py import MPI\n"
        f"if MPI.COMM_WORLD.rank == 1:\n    {fault}\nraise ImportError('no bridge')\n"
    )
    command = [*MPIRUN, *DOCTOR, "--timeout", "6"]
    error, verdicts = examined(command, tmp_path, 4, PYTHONPATH=package(tmp_path, "mpi4jax", code))
    assert verdicts["write"][0][0] == "ok"
    assert [status for status, _ in verdicts[name]] == ["failed"]
    if told:
        assert re.search(told, error)
    else:
        assert "did not answer within 6 s, rank 1 did not finish" in verdicts[name][0][1]
