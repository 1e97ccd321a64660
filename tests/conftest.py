"""Tests on several processes fail together, and never hang.

A test that fails on one rank leaves the others waiting in a collective, or ahead of it. After each `mpi` test the ranks
therefore meet; if some do not come, the rank that waits says so and ends them all.
"""

import gc
import os
import signal
import sys
import time
from pathlib import Path

import hypothesis
import pytest

from hpcstencil.runtime.devices import bind_devices, gpus
from hpcstencil.runtime.launcher import environment_size

# Before any test imports jax: two devices of the processor, and XLA as `hpcstencil run` sets it up. With JAX_PLATFORMS=cuda the
# tests run on a GPU instead (docs/design/gpu.md).
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Less work in all than in parallel, and tests use all cores already. Where one process computes, XLA writes plain loops, which
# it compiles faster. Several processes compile as a run does.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_parallel_codegen_split_count=1"
    + (" --xla_cpu_use_fusion_emitters=false" if environment_size() == 1 else ""),
)
bind_devices(1 if gpus() else 2)

# Shells start what runs in the background with interrupts ignored, and some tests send one.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("any machine", deadline=None)  # no test depends on the clock
hypothesis.settings.load_profile("any machine")

PATIENCE = 120.0  # seconds that a rank waits for the others after its test; XLA may compile on one rank only
QUICK = (  # files whose tests `pytest -m quick` takes, all but the long ones
    "test_layers.py", "test_parser.py", "test_config.py", "test_bad_input.py", "test_schedule.py", "test_topology.py",
    "test_stencil.py", "test_quick.py", "test_checkpoint.py", "test_von_neumann.py", "test_user_equation.py",
)  # fmt: skip
LONG_ROWS = Path(__file__).parent / "long_rows.txt"
NOT_RUN = 77  # pytest's status where this machine could run none of the tests that were asked for (CMakeLists.txt)


def _communicator(config: pytest.Config):
    """A communicator of the tests' own if pytest runs on several MPI processes, else None."""
    if not config.getoption("--with-mpi", default=False):
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup() if MPI.COMM_WORLD.size > 1 else None


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_COMMUNICATOR] = _communicator(config)


_COMMUNICATOR: pytest.StashKey = pytest.StashKey()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    left_out = {line for line in LONG_ROWS.read_text().splitlines() if not line.startswith("#")}
    for item in items:
        if item.nodeid in left_out:
            item.add_marker("long")
        if item.path.name in QUICK and item.get_closest_marker("long") is None:
            item.add_marker("quick")


def pytest_collection_finish() -> None:
    """Python looks for garbage less often: what was imported and collected stays, and JAX makes many short-lived objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Most of the time of the tests is LLVM's and g++'s. Only bits on several devices and processes depend on how well LLVM
    optimizes: the tests that compare them are marked `optimized`. `long` ones have steps enough to be worth it. g++ gives the
    same bits at every level, and is faster at lower ones: programs of tests on several processes and of native code itself
    have `-O1`, and others `-O0`. The driver of all is compiled as in a run.
    """
    compiled_as_in_a_run = any(item.get_closest_marker(name) for name in ("long", "optimized"))
    if (jax := sys.modules.get("jax")) is not None:
        jax.config.update("jax_disable_most_optimizations", not compiled_as_in_a_run)
    if (compiler := sys.modules.get("hpcstencil.backends.native.compiler")) is not None:
        of_native_code = item.get_closest_marker("mpi") or item.path.name.startswith("test_native")
        level = "-O2" if compiled_as_in_a_run else "-O1" if of_native_code else "-O0"
        if level != compiler.LEVEL:
            compiler.LEVEL = level
            compiler.compile_in_background.cache_clear()  # what was compiled otherwise is not taken


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    comm = item.config.stash[_COMMUNICATOR]
    if comm is None or item.get_closest_marker("mpi") is None or call.when != "call":
        return report
    meeting, start = comm.Ibarrier(), time.monotonic()
    while not meeting.Test():
        if time.monotonic() - start > PATIENCE:
            print(
                f"rank {comm.rank}: {item.nodeid} {report.outcome} here, but other ranks are still in it.\n"
                f"{report.longreprtext}",
                file=sys.__stderr__,
                flush=True,
            )
            comm.Abort(1)
            os._exit(1)
        time.sleep(0.001)
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Tests that were all skipped have not passed: the status says so, and CTest shows it."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        exitstatus == pytest.ExitCode.OK
        and reporter
        and reporter.stats.get("skipped")
        and not reporter.stats.get("passed")
    ):
        session.exitstatus = NOT_RUN


@pytest.fixture
def cache_of_a_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code chooses between tiles and steps in place as with a second-level cache of this size, whatever is here."""
    for module in ("ffi_call", "cost_model"):
        monkeypatch.setattr(f"hpcstencil.backends.native.{module}.cache_bytes", lambda: 2**20)
        monkeypatch.setattr(f"hpcstencil.backends.native.{module}.cache_is_far", lambda: False)
        monkeypatch.setattr(f"hpcstencil.backends.native.{module}.cache_share", lambda: 0)
