"""What a container allows: the CPU quota and the memory limit of this process's control groups (Linux)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60  # bytes


def read_own_cgroups() -> str:
    """The control groups of this process, as the kernel lists them."""
    return read_text_or_empty(Path("/proc/self/cgroup"))


def usable_cores() -> float:
    """Cores this process may use: what the scheduler allows, and no more than a container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(read_own_cgroups(), CGROUP_ROOT)
    return allowed if quota is None else min(allowed, quota)


def cpu_quota(own_cgroups: str, root: Path) -> float | None:
    """The tightest CPU quota, in cores, over this process's control groups and their parents."""
    quotas = []
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one file, "max 100000" or "150000 100000"
            groups, files = _upward(root, path), ["cpu.max"]
        elif "cpu" in controllers.split(","):  # version 1: two files, quota -1 for none
            groups, files = _upward(root / "cpu", path), ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        for group in groups:
            numbers = " ".join(read_text_or_empty(group / name) for name in files).split()
            if len(numbers) == 2 and numbers[0].isdigit():
                quotas.append(int(numbers[0]) / int(numbers[1]))
    return min(quotas, default=None)


def memory_limit_and_free_bytes(own_cgroups: str, root: Path) -> tuple[int, int] | None:
    """Bytes that a container may use, and how many of them are left: where there is a limit, the tightest."""
    return min(_memory_limits_and_free_bytes(own_cgroups, root), key=lambda room: room[1], default=None)


def _memory_limits_and_free_bytes(own_cgroups: str, root: Path) -> Iterator[tuple[int, int]]:
    """Limit and what is left of it, of this process's control groups and their parents."""
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: "max" for no limit
            groups, names, cached = _upward(root, path), ("memory.max", "memory.current"), "inactive_file"
        elif "memory" in controllers.split(","):  # version 1: a huge number for no limit
            groups, names = _upward(root / "memory", path), ("memory.limit_in_bytes", "memory.usage_in_bytes")
            cached = "total_inactive_file"
        else:
            continue
        for group in groups:
            limit, used = (read_text_or_empty(group / name).strip() for name in names)
            if limit.isdigit() and int(limit) < _NO_LIMIT and used.isdigit():
                # Files that were read lately count as used, but make room when it is asked for.
                kept = re.search(
                    rf"^{cached} (\d+)$", read_text_or_empty(group / "memory.stat"), re.MULTILINE
                )
                spare = int(limit) - int(used) + (int(kept[1]) if kept else 0)
                yield int(limit), min(int(limit), max(0, spare))


def memory_limit_bytes(own_cgroups: str, root: Path) -> int | None:
    """Bytes that a container may ever use; None where there is no limit."""
    return min((limit for limit, _ in _memory_limits_and_free_bytes(own_cgroups, root)), default=None)


def _upward(root: Path, path: str) -> Iterator[Path]:
    """The group and its parents. In a container the path may exist only outside; then the root counts."""
    group = root / path.lstrip("/")
    while group != root and root in group.parents:
        yield group
        group = group.parent
    yield root


def read_text_or_empty(path: Path) -> str:
    """The file's text, or nothing if this system has no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
