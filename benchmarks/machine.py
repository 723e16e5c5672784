"""What the figures were measured on, and whether the machine was quiet."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """The machine, by what matters for speed."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def now() -> str:
    """Date and time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _field(file: str, name: str) -> str | None:
    if not Path(file).exists():
        return None
    lines = Path(file).read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)


def busy_seconds() -> float | None:
    """CPU seconds that the whole machine has been busy since it started; None where that is not known (not Linux)."""
    if not Path("/proc/stat").exists():
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = (
        int(n) for n in Path("/proc/stat").read_text().split(None, 9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def tree_seconds(root: int) -> float:
    """CPU seconds of a process and all its descendants so far (0 where that is not known)."""
    seconds: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of the program, in parentheses, may contain spaces.
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(entry.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        seconds[pid] = sum(int(n) for n in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    total, todo = 0.0, [root]
    while todo:
        pid = todo.pop()
        total += seconds.get(pid, 0.0)
        todo += children.get(pid, [])
    return total
