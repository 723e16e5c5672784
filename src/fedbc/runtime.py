"""Settings of JAX that must be made before it starts: threads, small loops, and a cache of compiled programs.

A device's local training is a long chain of small operations. XLA's CPU client hands independent ones to a pool of
threads. The pool must have one thread per lane: with fewer, lanes wait for each other (on the MLP two lanes on a pool
of one are as slow as one lane); with more, idle threads spin and take time from the lanes. The pool's size is
PJRT_NPROC, or the number of XLA devices if that is larger. There are as many XLA devices as lanes, for the lanes of
tiny models, which meet within compiled code (see `fedbc.simulation.lanes`); all other lanes share the first. Lanes
compute in their own threads only if JAX's asynchronous dispatch is off. All this must happen before JAX's first
computation, so it is done when `fedbc` is imported; if JAX has started by then, runs are right, and slower.
`FEDBC_LANES` sets the number of lanes on a CPU; `FEDBC_LANES=0` leaves JAX's settings alone.

The operations of a tiny model's step take a fraction of a microsecond each, less than XLA takes to start them. XLA can
compile a whole loop into one function instead, if the loop has no call into a library (such as that of its matrix
products) and is small by a measure that counts all the data it reads. So the limit of that measure is lifted for all
loops, and calls are avoided in the programs of tiny models only (`Model.tiny`): a step of logistic regression takes
less than half the time, and no longer depends on how fast threads wake up. Larger models keep their calls.

Compiled programs are kept in the user's cache folder (or in JAX_COMPILATION_CACHE_DIR, if that is set), so that a
second run of the same kind starts at once; JAX_ENABLE_COMPILATION_CACHE=0 switches this off.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import jax
import platformdirs

from fedbc.errors import InputError

_OURS = "FEDBC_SET_PJRT_NPROC"
_SMALL_LOOPS = "xla_cpu_small_while_loop_byte_threshold"
LANES_ON_ACCELERATOR = 8
"""Lanes that one accelerator takes at once: it likes wide work."""


def configure() -> None:
    """Prepare JAX for lanes, if it has not started."""
    if _wanted_lanes() == 0 or has_started():
        return
    # A process started by another one that imported fedbc inherits its setting, but may have other lanes.
    if os.environ.get("PJRT_NPROC") == os.environ.get(_OURS):
        os.environ["PJRT_NPROC"] = os.environ[_OURS] = str(_wanted_lanes() or usable_cores())
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_backend_extra_options" not in flags:  # a second such flag would replace the user's
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={_SMALL_LOOPS}={2**60}".strip()
    if jax.config.jax_num_cpu_devices < 0 and "xla_force_host_platform_device_count" not in flags:  # type: ignore[attr-defined]
        jax.config.update("jax_num_cpu_devices", _wanted_lanes() or usable_cores())
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    _keep_compiled_programs()


def on_cpu() -> bool:
    """Whether JAX computes on the CPU; else on accelerators."""
    return jax.default_backend() == "cpu"


def default_lanes() -> int:
    """One lane per core on a CPU, or as FEDBC_LANES says; a few lanes per device on an accelerator."""
    devices = jax.local_devices()
    if on_cpu():
        return _wanted_lanes() or usable_cores()
    return LANES_ON_ACCELERATOR * len(devices)


def lane_devices(lanes: int) -> list[jax.Device]:
    """The XLA devices that lanes run on, one for each thread: on a CPU a thread per lane, all on the same device; else
    a thread per accelerator, as many as divide the lanes evenly."""
    devices = jax.local_devices()
    if on_cpu():
        return devices[:1] * lanes
    return devices[: max(d for d in range(1, min(lanes, len(devices)) + 1) if lanes % d == 0)]


def meeting_devices(lanes: int) -> list[jax.Device] | None:
    """An XLA device of the CPU for each lane, for lanes that meet within compiled code; None if there are too few."""
    devices = jax.local_devices()
    return devices[:lanes] if on_cpu() and lanes <= len(devices) else None


@functools.cache
def without_calls() -> dict[str, str]:
    """The options of the compiler that make it avoid calls into libraries, as far as this version has them."""
    options = {"xla_cpu_experimental_ynn_fusion_type": ""}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return options


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiled_folder() -> Path:
    """Where compiled programs are kept: where JAX was told to, if that is on this machine, or in the user's cache."""
    told = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if told is not None and "://" not in told:
        return Path(told)
    return own_compiled_folder()


def own_compiled_folder() -> Path:
    """Where they are kept unless JAX was told otherwise: in the user's cache."""
    # Machine code is for one kind of processor; a home folder may be shared by several.
    kind = hashlib.sha256(processor().encode()).hexdigest()[:12]
    return platformdirs.user_cache_path("fedbc", appauthor=False) / "compiled" / kind


def _wanted_lanes() -> int | None:
    wanted = os.environ.get("FEDBC_LANES")
    if wanted is not None and not wanted.isdecimal():
        raise InputError(f"FEDBC_LANES={wanted!r} is not accepted: give a whole number, 0 to leave JAX as it is")
    return int(wanted) if wanted is not None else None


def _keep_compiled_programs() -> None:
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(compiled_folder()))
    # A round's programs take a second or less each to compile, but there are several.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


def processor() -> str:
    """A description of the processor that differs where its instructions do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


def has_started() -> bool:
    """Whether JAX has computed, so that its settings are made."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def versions() -> dict[str, str]:
    """The software that a run depends on."""
    names = ["fedbc", "jax", "jaxlib", "numpy", "pandas"]
    found = {name: metadata.version(name) for name in names}
    return {**found, "python": platform.python_version(), "platform": jax.local_devices()[0].platform}
