"""The doctor's parts: guarded children that hang or crash, facts of this machine, verdicts on facts."""

import copy
import os
import sys
import time
from pathlib import Path

import pytest

from hpcstencil.doctor import checks, local, places
from hpcstencil.doctor.guard import last_words, own_environment, run_guarded
from hpcstencil.runtime.filesystem import file_system

# ---- children -----------------------------------------------------------------------------------------------------------

CHILDREN = [
    ("print('fine')", None, "fine"),
    ("import time; print('waits', flush=True); time.sleep(600)", "did not answer within 1 s", "waits"),
    ("import os; os.close(1), os.close(2); import time; time.sleep(600)", "did not answer within 1 s", ""),
    ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV", ""),
    ("import os; os.abort()", "was ended by SIGABRT", ""),
    ("raise SystemExit('no such thing')", "ended with status 1", "no such thing"),
    ("print('x' * 10**6)", None, "x"),
]


@pytest.mark.parametrize("code, failure, said", CHILDREN, ids=[str(failure) for _, failure, _ in CHILDREN])
def test_child_that_may_fail(code, failure, said):
    lines, ended = run_guarded([sys.executable, "-c", code], os.environ, 1.0 if "600" in code else 60.0)
    assert lines == [] and ended.failure == failure and said in ended.output


def test_what_a_child_starts_ends_with_it():
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    _, ended = run_guarded([sys.executable, "-c", code], os.environ, 1.0)
    pid = int(ended.output)
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"process {pid} is still there")


def test_a_program_that_is_not_there():
    assert (
        run_guarded(["no-such-program"], os.environ, 5.0)[1].failure == "cannot be started: No such file or directory"
    )


def test_what_is_told_before_a_crash_is_kept():
    code = (
        "import os; pipe = int(os.environ['HPCSTENCIL_DOCTOR_PIPE']);"
        """os.write(pipe, b'{"begin": "a"}\\n{"facts": 1}\\n{"cut'); os.abort()"""
    )
    lines, ended = run_guarded([sys.executable, "-c", code], os.environ, 60.0)
    assert lines == [{"begin": "a"}, {"facts": 1}] and ended.failure == "was ended by SIGABRT"


def test_environment_of_a_child_outside_the_launch(monkeypatch):
    for name in ("OMPI_MCA_ess", "PMIX_NAMESPACE", "PMI_FD", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "1")
    known = own_environment()
    assert not {"OMPI_MCA_ess", "PMIX_NAMESPACE", "PMI_FD"} & set(known)
    assert known["OMPI_COMM_WORLD_LOCAL_RANK"] == known["SLURM_JOB_ID"] == "1"


def test_last_words():
    rule = "-" * 74
    assert last_words(f"{rule}\nIt looks like MPI_INIT failed\nfor some reason.\n\nMore.\n{rule}\n*** end") == (
        "It looks like MPI_INIT failed for some reason"
    )
    assert last_words("Traceback:\n  File x\nImportError: no libmpi\n*** and so on\n[n1:7] [ 2] trace") == (
        "ImportError: no libmpi"
    )
    assert last_words("") == ""


# ---- facts of this machine ----------------------------------------------------------------------------------------------


def test_folders_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "yet"))
    found = local.probe_facts("folders", 60.0, str(tmp_path))
    assert set(found) == {"temporary", "cache", "shared memory", "output"}
    assert found["cache"] == {"path": str(tmp_path)} and found["output"]["kind"]
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_others_can_write_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "hpcstencil").mkdir()
    (tmp_path / "hpcstencil").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = local.probe_facts("folders", 60.0, str(tmp_path))
    assert "can be written by others (mode 0777)" in found["cache"]["error"]
    checks = {check.name: check for check in places.small_folders([{**FACTS, "folders": found}])}
    assert checks["cache folder"].status == "warning" and "every run compiles" in checks["cache folder"].remedy


BAD_FOLDERS = [("/no/such/folder", "No such file"), ("/proc", ""), (sys.executable, "Not a directory")]


@pytest.mark.parametrize("path, words", BAD_FOLDERS)
def test_folders_that_cannot_be_written(path, words, monkeypatch):
    monkeypatch.setenv("TMPDIR", path)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    found = local.probe_facts("folders", 60.0, path)
    assert words in found["output"]["error"] and words in found["temporary"]["error"] and found["cache"]["error"]
    facts = [{**FACTS, "folder": path, "folders": found}]
    assert places.output_folder(facts).status == "failed"
    assert [check.status for check in places.small_folders(facts)] == ["warning", "warning"]


def test_a_small_file_system():
    """/proc has no blocks, /sys too: their free space is unknown, not little."""
    assert local.space(Path("/proc"))["free"] is None
    assert file_system(Path("/proc")) == "proc"


def program(folder, name, script):
    """A program of that name in a folder."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_driver_that_hangs(tmp_path, monkeypatch):
    program(tmp_path, "nvidia-smi", "sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    found = local.device_facts(1.0)
    (check,) = checks.devices([{**FACTS, **found}])
    assert check.status == "failed" and "nvidia-smi did not answer within 1 s" in check.found


def test_slurm_without_pmix_and_time(tmp_path, monkeypatch):
    program(tmp_path, "srun", "printf 'MPI plugin types are...\\n\\tnone\\n\\tpmi2\\n'")
    program(tmp_path, "squeue", "echo 4:59")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    found = list(places.slurm({**FACTS, "slurm": local.slurm_facts(60.0)}, "Open MPI v4.1.4"))
    assert [(check.status, check.name) for check in found] == [("warning", "Slurm"), ("warning", "time left")]
    assert "only none, pmi2" in found[0].found and "4:59" in found[1].found


def test_slurm_that_does_not_answer(tmp_path, monkeypatch):
    program(tmp_path, "srun", "echo 'Unable to contact slurm controller' >&2; exit 1")
    program(tmp_path, "squeue", "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    (check,) = places.slurm({**FACTS, "slurm": local.slurm_facts(1.0)}, "Open MPI v4.1.4")
    assert check.status == "warning" and "Unable to contact" in check.found


# ---- verdicts -----------------------------------------------------------------------------------------------------------

FACTS = {
    "rank": 0, "expected": 1, "host": "n1", "launcher": "", "source": "abc", "required": ["numpy>=2.0"], "tasks": 1,
    "versions": {"Python": "3.11.7", "hpcstencil": "0.1.0", "numpy": "2.4.6"},
    "compiler": "/usr/bin/c++", "cores": [0, 1], "launcher_cores": None, "infiniband": False, "folder": "/work",
    "limits": {"open files": 4096, "locked memory": -1, "file size": -1, "address space": -1, "core file": 0},
    "gpus": {"listed": 0}, "devices": {"platform": "cpu", "kind": "cpu", "count": 1, "gpus": []},
    "folders": {
        "output": {"path": "/work", "kind": "lustre", "free": 10**12}, "cache": {"path": "/home/u/.cache"},
        "temporary": {"path": "/tmp"}, "shared memory": {"path": "/dev/shm", "kind": "tmpfs", "free": 10**10},
    },
    "slurm": {},
}  # fmt: skip
MPI = {"rank": 0, "size": 1, "library": "Open MPI v4.1.4", "files": ["/usr/lib/libmpi.so.40"]}


def everybody(*hosts, **changes):
    """Facts of one rank on each host; ``changes`` by key, with dotted keys for nested ones, as lists one per rank."""
    every = [{**copy.deepcopy(FACTS), "rank": r, "expected": len(hosts), "host": h} for r, h in enumerate(hosts)]
    for name, values in changes.items():
        *tables, key = name.split("__")
        for facts, value in zip(every, values, strict=True):
            for table in tables:
                facts = facts[table.replace("_", " ") if table == "shared_memory" else table]
            facts[key.replace("_", " ") if tables == ["limits"] else key] = value
    return every


def alone(**changes):
    return everybody("n1", **{name: [value] for name, value in changes.items()})


def two(**changes):
    return everybody("n1", "n1", **changes)


GPU = {"platform": "gpu", "kind": "H100", "count": 1, "gpus": ["GPU-1"]}
OTHER_VERSIONS = {"Python": "3.11.7", "hpcstencil": "0.2.0", "numpy": "2.4.6"}
VERDICTS = [
    (checks.installation, (alone(),), "ok", "numpy 2.4.6"),
    (checks.installation, (two(),), "ok", "same on 2 processes"),
    (checks.installation, (two(versions=[FACTS["versions"], OTHER_VERSIONS]),), "failed", "0.2.0 on rank 1 (n1)"),
    (checks.installation, (everybody("n1", "n2", source=["a", "b"]),), "failed", "code on rank 1 (n2) differs"),
    (checks.installation, (alone(required=["numpy>=2.10"]),), "failed", "numpy is 2.4.6, expected 2.10"),
    (checks.launch, (alone(), MPI), "ok", "one process"),
    (checks.launch, (alone(), {"error": "no mpi4py"}), "ok", "without MPI"),
    (checks.launch, (alone(tasks=8), MPI), "warning", "job of 8 tasks"),
    (checks.launch, (two(launcher=["mpirun"] * 2), {**MPI, "size": 2}), "ok", "2 processes on n1, by mpirun"),
    (checks.launch, (everybody("n1", "n2", "n2"), {**MPI, "size": 3}), "ok", "3 processes on 2 hosts (1 to 2 each)"),
    (checks.launch, (alone(expected=4, launcher="srun"), MPI), "failed", "4 copies that cannot see each other"),
    (checks.launch, (alone(expected=4, launcher="srun"), {"error": "no mpi4py"}), "failed", "need mpi4py"),
    (checks.launch, (two(expected=[1, 1]), {**MPI, "size": 2}), "failed", "MPI sees 2 processes"),
    (checks.mpi_library, (alone(), MPI), "ok", "Open MPI v4.1.4"),
    (checks.mpi_library, (alone(), {"error": "no libmpi"}), "warning", "no libmpi"),
    (checks.mpi_library, (alone(expected=2), {"error": "no libmpi"}), "failed", "no libmpi"),
    (checks.cores, (two(),), "ok", "2 for each process"),
    (checks.cores, (everybody("n1", "n2", cores=[[0], [0]]),), "ok", "1 for each"),
    (checks.cores, (two(cores=[[0], [0]]),), "warning", "ranks 0, 1 of n1 share 1 core;"),
    (checks.cores, (everybody(*["n1"] * 3),), "warning", "ranks 0, 1, 2 of n1 share 2 cores"),
    (checks.cores, (two(cores=[[0], [1]], launcher_cores=[64, 64]),), "warning", "2 of 64 cores"),
    (checks.cores, (two(cores=[[0], [1]], launcher_cores=[64, 64], devices=[GPU, GPU]),), "ok", ""),
    (checks.compiler, (two(),), "ok", "/usr/bin/c++"),
    (checks.compiler, (everybody("n1", "n2", compiler=["/usr/bin/c++", ""]),), "warning", "no C++ compiler on rank 1 (n2)"),
    (checks.compiler, (alone(compiler="", devices=GPU),), "ok", "not needed"),
    (checks.limits, (alone(),), "ok", "4096"),
    (checks.limits, (alone(limits__open_files=-1),), "ok", "unlimited"),
    (checks.limits, (alone(limits__open_files=200),), "warning", "at most 200"),
    (checks.limits, (alone(limits__file_size=10**6),), "warning", "1 MB"),
    (checks.limits, (alone(limits__address_space=2 * 10**10),), "warning", "20 GB"),
    (checks.limits, (alone(limits__locked_memory=65536),), "ok", ""),
    (checks.limits, (alone(limits__locked_memory=65536, infiniband=True),), "warning", "InfiniBand"),
    (checks.devices, (alone(),), "ok", "1 cpu"),
    (checks.devices, (everybody("n1", "n2", devices=[GPU, GPU]),), "ok", "1 gpu (H100) for each"),
    (checks.devices, (two(devices=[GPU, GPU]),), "warning", "ranks 0, 1 share GPU GPU-1 of n1"),
    (checks.devices, (alone(gpus={"listed": 4}),), "warning", "but jax has the CPU only"),
    (checks.devices, (two(gpus=[{"listed": 1}, {"error": "nvidia-smi hangs"}]),), "failed", "hangs on rank 1"),
    (checks.devices, (alone(devices={"error": "no CUDA"}),), "failed", "no CUDA"),
    (places.shared_memory, (two(folders__shared_memory__free=[2**26] * 2),), None, ""),
    (places.shared_memory, (two(folders__shared_memory__free=[2**25] * 2),), "warning", "/dev/shm of n1"),
    (places.output_folder, (alone(),), "ok", "/work (lustre, 1 TB free)"),
    (places.output_folder, (alone(folders__output__free=None),), "ok", "/work (lustre)"),
    (places.output_folder, (alone(folders__output__free=10**8),), "warning", "100 MB free) has little space"),
    (places.output_folder, (alone(folders__output__kind="nfs4"),), "warning", "nfs4"),
    (places.output_folder, (alone(folders__output__kind="tmpfs"),), "warning", "lost"),
    (places.output_folder, (two(folders__output=[{}, {"error": "Stale file handle"}]),), "failed", "rank 1 (n1): Stale"),
    (places.output_folder, (alone(folders={"temporary": {"error": "hangs"}}),), "failed", "not tried"),
    (places.small_folders, (alone(folders__cache={"error": "Disk quota exceeded"}),), "warning", "quota"),
    (places.same_folder, (two(), [{"seen": True}] * 2), "ok", "all 2 processes"),
    (places.same_folder, (everybody("n1", "n2"), [{"seen": True}, {"seen": False}]), "failed", "not seen on rank 1 (n2)"),
    (places.jax_messages, (two(), [{"warning": "", "platform": "cpu"}] * 2, True), "ok", "between 2 processes"),
    (places.jax_messages, (two(), [{"warning": "The latest supported JAX is 1", "platform": "cpu"}] * 2, True), "warning",
     "latest supported"),
    (places.jax_messages, (two(), [{"warning": ""}, {"error": "no bridge"}], True), "failed", "rank 1 (n1): no bridge"),
    (places.jax_messages, (alone(), [{"error": "no bridge"}], False), "warning", "no bridge"),
    (places.write, (two(), [{"error": "Lock"}, {"way": "mpio", "seconds": 0.1}]), "failed", "rank 0 (n1) Lock"),
    (places.write, (two(), [{"way": "serial", "seconds": 0.1}] * 2), "ok", "by one process"),
]  # fmt: skip


@pytest.mark.parametrize("verdict, facts, status, words", VERDICTS, ids=lambda v: getattr(v, "__name__", str(v))[:40])
def test_verdicts(verdict, facts, status, words):
    given = verdict(*facts)
    found = [given] if isinstance(given, checks.Check) else list(given or [])
    found = [check for check in found if check.status == status] if status else found
    assert len(found) >= (1 if status else 0) and (status or not found)
    assert words in " ".join(map(str, found))
    for check in found:
        assert "\n" not in str(check) and bool(check.remedy) == (check.status != "ok")


@pytest.mark.parametrize("variables, tasks", [({}, 1), ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "12"}, 12),
                                              ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "many"}, 1),
                                              ({"SLURM_NTASKS": "12"}, 1)])  # fmt: skip
def test_tasks_of_a_job(monkeypatch, variables, tasks):
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert local.facts()["tasks"] == tasks
