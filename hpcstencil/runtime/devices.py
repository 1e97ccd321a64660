"""Selection of a process's devices and of XLA's options, before JAX starts.

JAX starts when it initializes a backend, which the first array or the first query of devices triggers. It reads XLA's
options then, not when it is imported.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from hpcstencil.runtime.hosts import host
from hpcstencil.runtime.launcher import local_place
from hpcstencil.validation.errors import EnvironmentProblem, InputError

VISIBLE = "CUDA_VISIBLE_DEVICES"
HOST_DEVICES = "--xla_force_host_platform_device_count"
# A fused multiply-add rounds once where the formula rounds twice. XLA's use of it depends on how it fuses loops, and so on
# the shape of the blocks. Without it, results are bitwise equal for every decomposition (docs/design/reproducible.md).
NO_CONTRACTION = "--xla_cpu_max_isa=AVX"
# Bytes of address space that JAX needs to start. With less it aborts or hangs instead of raising an error, because it
# reserves the stacks of its threads and more. On two cores 1.9 GB are enough and 1.7 GB are not.
LEAST_ADDRESS_SPACE = 1_900_000_000


def gpus() -> list[str]:
    """Return the ids of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES; empty without GPUs.

    Does not import JAX. Raises EnvironmentProblem if nvidia-smi does not answer.
    """
    if os.environ.get("JAX_PLATFORMS", "").lower() == "cpu":
        return []
    if VISIBLE in os.environ:
        return [part for part in os.environ[VISIBLE].split(",") if part.strip() and part.strip() != "-1"]
    if shutil.which("nvidia-smi") is None:
        return []
    return [str(i) for i in range(len(_unique_ids()))]


def _unique_ids() -> list[str]:
    """Return the UUIDs of the visible GPUs in order, from `nvidia-smi -L`. A job step may see only some of the host's GPUs."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(
            "nvidia-smi does not answer within 60 s, so the GPU's driver hangs: restart it or take another machine, or "
            "set JAX_PLATFORMS=cpu to compute without GPUs"
        ) from None
    return [line.split("UUID: ")[-1].rstrip(")") for line in listing.stdout.splitlines() if line.startswith("GPU ")]


def identities(ids: Sequence[str]) -> list[str]:
    """Return names of the GPUs that are equal on all processes of a host.

    These are their UUIDs if `nvidia-smi` reports them, else the given ``ids``.
    """
    if not ids or shutil.which("nvidia-smi") is None:
        return list(ids)
    known = _unique_ids()
    return [known[int(i)] if i.isdigit() and int(i) < len(known) else i for i in ids]


def share(ids: list[str], place: int, processes: int) -> list[str]:
    """Return the devices of the host that belong to local process number ``place`` of ``processes``.

    Devices are divided evenly, in order. If there are fewer devices than processes, each process gets one, in turn.
    """
    if len(ids) < processes:
        return [ids[place % len(ids)]]
    each = len(ids) // processes
    return ids[place * each : (place + 1) * each]


def bind_devices(wanted: int | None) -> tuple[int, list[str]]:
    """Choose this process's devices and set the environment variables that JAX reads. Call it before JAX starts.

    ``wanted`` is the requested number of devices. With None, the process takes all GPUs that belong to it, or one device on
    CPUs. Returns the number of devices and the ids of the GPUs (empty on CPUs). Raises InputError if there are fewer GPUs
    than requested.
    """
    assert not jax_has_started(), "devices must be settled before jax starts"
    owned = gpus()
    place, processes = local_place()
    if owned and processes > 1 and (VISIBLE not in os.environ or len(owned) > 1):
        # The launcher did not bind devices to this process alone: divide them among the processes of the host.
        owned = share(owned, place, processes)
    if owned:
        if wanted is not None and wanted > len(owned):
            raise InputError(f"--devices: {wanted} devices requested, but this process has {len(owned)} GPU(s)")
        owned = owned[:wanted]
        os.environ[VISIBLE] = ",".join(owned)
        return len(owned), owned
    count = wanted or 1
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if not f.startswith(HOST_DEVICES)]
    if not any(f.startswith("--xla_cpu_max_isa") for f in flags) and os.uname().machine in ("x86_64", "AMD64"):
        flags.append(NO_CONTRACTION)
    flags.append(f"{HOST_DEVICES}={count}")
    os.environ["XLA_FLAGS"] = " ".join(flags)
    return count, []


def jax_has_started() -> bool:
    """Return whether JAX has initialized a backend in this process. Does not import JAX."""
    bridge = sys.modules.get("jax._src.xla_bridge")  # JAX has no public function for this
    return bridge is not None and bool(bridge.backends_are_initialized())


def check_started_jax(count: int, remedy: str) -> tuple[Any, ...]:
    """Return all devices of JAX, at least ``count``, after other code has started it.

    Raises EnvironmentProblem if there are fewer devices, or if JAX was started with settings that would change the rounding
    of results. The message ends with the ``remedy``.
    """
    import jax

    devices = tuple(jax.local_devices())
    if not jax.config.read("jax_enable_x64"):
        lack = "without 64-bit types"
    elif len(devices) < count:
        lack = f"with {len(devices)} device{'s' * (len(devices) > 1)}, where {count} are needed"
    elif devices[0].platform == "cpu" and _contracts():
        lack = f"without {NO_CONTRACTION} in XLA_FLAGS, so that it rounds differently"
    else:
        return devices
    raise EnvironmentProblem(f"jax was started before hpcstencil, {lack}; {remedy}")


def _contracts() -> bool:
    """Return whether code that JAX compiles in this process uses fused multiply-add."""
    import jax
    import numpy as np

    a = np.sqrt(np.arange(2, 258, dtype=np.float32))
    fused = jax.jit(lambda a, b, c: a * b - c)
    return bool(np.any(np.asarray(fused(a, a, a * a))))  # the rounding errors of a * a, which are 0 otherwise


def start_jax(count: int) -> tuple[Any, ...]:
    """Start JAX with 64-bit types enabled, and return this process's first ``count`` devices.

    Raises EnvironmentProblem if JAX cannot start, if it sees fewer devices, or if a limit of the shell leaves it too little
    address space.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY and most < LEAST_ADDRESS_SPACE:
        raise EnvironmentProblem(
            f"the address space of a process is limited to {most / 1e9:.1f} GB on {host()}, of which jax alone reserves "
            f"{LEAST_ADDRESS_SPACE / 1e9:.1f} GB at its start; lift the limit: ulimit -v unlimited"
        )
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        devices = tuple(jax.local_devices())
    except (RuntimeError, AssertionError) as error:  # the latter if no platform in JAX_PLATFORMS can start
        said = " ".join(str(error).split())[:200] or f"JAX_PLATFORMS = {os.environ.get('JAX_PLATFORMS', '')}"
        raise EnvironmentProblem(
            f"jax cannot start its devices on {host()} ({said}): check JAX_PLATFORMS and the "
            "driver; hpcstencil doctor says more"
        ) from error
    if len(devices) < count:
        raise EnvironmentProblem(
            f"{count} devices were requested, but jax sees {len(devices)} ({devices[0].platform}); check XLA_FLAGS, "
            f"JAX_PLATFORMS and the driver"
        )
    return devices[:count]
