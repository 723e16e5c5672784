"""Settings of JAX that must be made before it starts: one XLA device a core, no threads inside an operation.

A device's local training is a long chain of small operations, which threads inside an operation slow down; two cores
are used far better by two lanes. This must happen before JAX's first computation, so it is done when `fedbc` is
imported; if JAX has started by then, runs use the devices that it has. `FEDBC_LANES` sets the number of CPU lanes;
`FEDBC_LANES=0` leaves JAX's settings alone.
"""

from __future__ import annotations

import os

import jax

from fedbc.errors import InputError


def configure() -> None:
    """Prepare JAX for lanes, if it has not started and runs on a CPU."""
    wanted = os.environ.get("FEDBC_LANES")
    if wanted is not None and not wanted.isdecimal():
        raise InputError(f"FEDBC_LANES={wanted!r} is not accepted: give a whole number, 0 to leave JAX as it is")
    lanes = int(wanted) if wanted is not None else _usable_cores()
    if lanes < 1 or _started():
        return
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    if "xla_force_host_platform_device_count" not in flags:
        jax.config.update("jax_num_cpu_devices", lanes)


def default_lanes() -> int:
    """One lane an XLA device on a CPU; a few lanes a device on an accelerator, which likes wide work."""
    devices = jax.devices()
    return len(devices) if devices[0].platform == "cpu" else 8 * len(devices)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _started() -> bool:
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())
