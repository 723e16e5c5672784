"""A limit of memory for the server's processes: what outgrows it fails by itself, instead of having others killed."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

SHARE = 0.75
CGROUP = Path("/sys/fs/cgroup/memory.max")

__all__ = ["cap_memory"]


def cap_memory(share: float = SHARE) -> int:
    """Let this process have at most this share of the machine's memory; gives the bytes, 0 where there is no way.

    Beyond it, an allocation is a MemoryError, which is contained like any other error of the answer or the request that
    asked for so much.
    """
    if sys.platform != "linux":
        return 0
    import resource

    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # a container may have less; "max" is no number
        whole = min(whole, int(CGROUP.read_text()))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(share * whole)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit
