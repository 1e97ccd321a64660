"""The devices of a process, chosen before jax starts: how many, which ones, and the options of XLA.

jax starts when it initializes a backend, at the first array or the first look at a device. It reads the options of XLA
then, not when it is imported.
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
# Fused multiply-add rounds once where the formula rounds twice, and XLA's use of it depends on how it happens to fuse
# loops, so on the shape of the blocks. Without it every decomposition gives the same bits (docs/design/reproducible.md).
NO_CONTRACTION = "--xla_cpu_max_isa=AVX"
# Bytes of address space without which jax aborts or hangs as it starts, instead of raising an error: it reserves the
# stacks of its threads and more. On two cores 1.9 GB are enough and 1.7 GB are not.
LEAST_ADDRESS_SPACE = 1_900_000_000


def gpus() -> list[str]:
    """Ids of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES, found without importing jax. Empty on a
    machine without GPUs. Raises EnvironmentProblem if nvidia-smi does not answer."""
    if os.environ.get("JAX_PLATFORMS", "").lower() == "cpu":
        return []
    if VISIBLE in os.environ:
        return [part for part in os.environ[VISIBLE].split(",") if part.strip() and part.strip() != "-1"]
    if shutil.which("nvidia-smi") is None:
        return []
    return [str(i) for i in range(len(_unique_ids()))]


def _unique_ids() -> list[str]:
    """The unique ids of the visible GPUs in order, from `nvidia-smi -L`; a job step may see only some of the host's."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(
            "nvidia-smi does not answer within 60 s, so the GPU's driver hangs: restart it or take another machine, or "
            "set JAX_PLATFORMS=cpu to compute without GPUs"
        ) from None
    return [line.split("UUID: ")[-1].rstrip(")") for line in listing.stdout.splitlines() if line.startswith("GPU ")]


def identities(ids: Sequence[str]) -> list[str]:
    """Names of the GPUs that are the same for all processes of a host: their unique ids if `nvidia-smi` gives them,
    else the given ``ids``."""
    if not ids or shutil.which("nvidia-smi") is None:
        return list(ids)
    known = _unique_ids()
    return [known[int(i)] if i.isdigit() and int(i) < len(known) else i for i in ids]


def share(ids: list[str], place: int, processes: int) -> list[str]:
    """The part of the host's devices that belongs to local process ``place`` of ``processes``: an equal share in order,
    or one device each, in turn, if there are fewer devices than processes."""
    if len(ids) < processes:
        return [ids[place % len(ids)]]
    each = len(ids) // processes
    return ids[place * each : (place + 1) * each]


def bind_devices(wanted: int | None) -> tuple[int, list[str]]:
    """Choose this process's devices and set the environment variables for jax; returns their number, and the ids of its
    GPUs (empty on CPUs). Call it before jax starts.

    ``wanted`` is the requested number (None: all that belong to the process; 1 on CPUs). Raises InputError if there are
    fewer GPUs.
    """
    assert not jax_has_started(), "devices must be settled before jax starts"
    owned = gpus()
    place, processes = local_place()
    if owned and processes > 1 and (VISIBLE not in os.environ or len(owned) > 1):
        # The launcher did not bind devices to this process alone: divide them among the processes of the host.
        owned = share(owned, place, processes)
    if owned:
        if wanted is not None and wanted > len(owned):
            raise InputError(f"--devices: {wanted} devices asked for, but this process has {len(owned)} GPU(s)")
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
    """Whether jax has initialized a backend in this process. This does not import jax."""
    bridge = sys.modules.get("jax._src.xla_bridge")  # the public modules do not say it
    return bridge is not None and bool(bridge.backends_are_initialized())


def check_started_jax(count: int, remedy: str) -> tuple[Any, ...]:
    """All devices of a jax that other code has started, at least ``count``. Raises EnvironmentProblem, whose message
    ends with the ``remedy``, if there are fewer, or if jax was started with settings with which results would have
    other bits."""
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
    """Whether compiled code on this process's processor fuses multiplications and additions."""
    import jax
    import numpy as np

    a = np.sqrt(np.arange(2, 258, dtype=np.float32))
    fused = jax.jit(lambda a, b, c: a * b - c)
    return bool(np.any(np.asarray(fused(a, a, a * a))))  # the rounding errors of a * a, which are 0 otherwise


def start_jax(count: int) -> tuple[Any, ...]:
    """Import jax with 64-bit types enabled and start it; returns this process's first ``count`` devices.

    Raises EnvironmentProblem if jax cannot start or sees fewer devices, or if a limit of the shell leaves it too little
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
    except RuntimeError as error:
        raise EnvironmentProblem(
            f"jax cannot start its devices on {host()} ({' '.join(str(error).split())[:200]}): check JAX_PLATFORMS and the "
            "driver; hpcstencil doctor says more"
        ) from error
    if len(devices) < count:
        raise EnvironmentProblem(
            f"{count} devices were asked for, but jax sees {len(devices)} ({devices[0].platform}); check XLA_FLAGS, "
            f"JAX_PLATFORMS and the driver"
        )
    return devices[:count]
