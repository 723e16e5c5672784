"""Settings of JAX that must be made before it starts: one XLA device a core, and a cache of compiled programs.

A device's local training is a long chain of small operations, which threads inside an operation slow down; two cores
are used far better by two lanes. XLA is therefore asked for none, too; JAX 0.10.2 heeds that only in part: a large
product alone on the machine still uses both cores. All this must happen before JAX's first computation, so it is done
when `fedbc` is imported; if JAX has started by then, runs use the devices that it has. `FEDBC_LANES` sets the number of
CPU lanes; `FEDBC_LANES=0` leaves JAX's settings alone.

Compiled programs are kept in the user's cache folder (or in JAX_COMPILATION_CACHE_DIR, if that is set), so that a
second run of the same kind starts at once; JAX_ENABLE_COMPILATION_CACHE=0 switches this off.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import jax
import platformdirs

from fedbc.errors import InputError


def configure() -> None:
    """Prepare JAX for lanes, if it has not started and runs on a CPU."""
    wanted = os.environ.get("FEDBC_LANES")
    if wanted is not None and not wanted.isdecimal():
        raise InputError(f"FEDBC_LANES={wanted!r} is not accepted: give a whole number, 0 to leave JAX as it is")
    lanes = int(wanted) if wanted is not None else usable_cores()
    if lanes < 1 or _started():
        return
    _keep_compiled_programs()
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    if "xla_force_host_platform_device_count" not in flags:
        jax.config.update("jax_num_cpu_devices", lanes)


def default_lanes() -> int:
    """One lane an XLA device on a CPU; a few lanes a device on an accelerator, which likes wide work."""
    devices = jax.devices()
    return len(devices) if devices[0].platform == "cpu" else 8 * len(devices)


def _keep_compiled_programs() -> None:
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        # Machine code is for one kind of processor; a home folder may be shared by several.
        kind = hashlib.sha256(_processor().encode()).hexdigest()[:12]
        folder = platformdirs.user_cache_path("fedbc", appauthor=False) / "compiled" / kind
        jax.config.update("jax_compilation_cache_dir", str(folder))
    # A round's programs take a second or less each to compile, but there are several.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


def _processor() -> str:
    """A description of the processor that differs where its instructions do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _started() -> bool:
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())
