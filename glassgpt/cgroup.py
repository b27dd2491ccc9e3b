"""Limits of a container: CPU quota and memory limit of this process's control groups (Linux)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from glassgpt.files import read_text_or_empty

CGROUP_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60  # bytes


def read_own_cgroups() -> str:
    """The control groups of this process, as the kernel lists them."""
    return read_text_or_empty(Path("/proc/self/cgroup"))


def usable_cores() -> float:
    """Cores this process may use: those in its scheduler affinity, up to the container's CPU quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(read_own_cgroups(), CGROUP_ROOT)
    return allowed if quota is None else min(allowed, quota)


def cpu_quota(own_cgroups: str, root: Path) -> float | None:
    """The tightest CPU quota, in cores, over this process's control groups and their parents."""
    quotas = []
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one file, "max 100000" or "150000 100000"
            groups, files = _group_and_parents(root, path), ["cpu.max"]
        elif "cpu" in controllers.split(","):  # version 1: two files, quota -1 for none
            groups, files = _group_and_parents(root / "cpu", path), ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        for group in groups:
            numbers = " ".join(read_text_or_empty(group / name) for name in files).split()
            if len(numbers) == 2 and numbers[0].isdigit():
                quotas.append(int(numbers[0]) / int(numbers[1]))
    return min(quotas, default=None)


def memory_limit_and_free_bytes(own_cgroups: str, root: Path) -> tuple[int, int] | None:
    """The limit with the fewest free bytes, and those free bytes; None where there is no limit."""
    limits = _memory_limits_and_free_bytes(own_cgroups, root)
    return min(limits, key=lambda limit_and_free: limit_and_free[1], default=None)


def _memory_limits_and_free_bytes(own_cgroups: str, root: Path) -> Iterator[tuple[int, int]]:
    """Limit and free bytes of each of this process's control groups and their parents."""
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: "max" for no limit
            groups, names = _group_and_parents(root, path), ("memory.max", "memory.current")
            cache_key = "inactive_file"
        elif "memory" in controllers.split(","):  # version 1: a huge number for no limit
            groups = _group_and_parents(root / "memory", path)
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            cache_key = "total_inactive_file"
        else:
            continue
        for group in groups:
            limit, used = (read_text_or_empty(group / name).strip() for name in names)
            if limit.isdigit() and int(limit) < _NO_LIMIT and used.isdigit():
                # The page cache counts as used, but is dropped when a process needs the memory.
                statistics = read_text_or_empty(group / "memory.stat")
                match = re.search(rf"^{cache_key} (\d+)$", statistics, re.MULTILINE)
                free = int(limit) - int(used) + (int(match[1]) if match else 0)
                yield int(limit), min(int(limit), max(0, free))


def memory_limit_bytes(own_cgroups: str, root: Path) -> int | None:
    """The lowest memory limit; None where there is no limit."""
    return min((limit for limit, _ in _memory_limits_and_free_bytes(own_cgroups, root)), default=None)


def _group_and_parents(root: Path, path: str) -> Iterator[Path]:
    """The group and its parents. In a container the path may exist only outside; then the root is read."""
    group = root / path.lstrip("/")
    while group != root and root in group.parents:
        yield group
        group = group.parent
    yield root
