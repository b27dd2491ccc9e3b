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
    files = {
        1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"),  # quota -1 for none
        2: ("cpu.max",),  # "max 100000" or "150000 100000"
    }
    quotas = []
    for version, group in _groups_and_parents(own_cgroups, root, "cpu"):
        numbers = " ".join(read_text_or_empty(group / name) for name in files[version]).split()
        if len(numbers) == 2 and numbers[0].isdigit():
            quotas.append(int(numbers[0]) / int(numbers[1]))
    return min(quotas, default=None)


def memory_limit_and_free_bytes(own_cgroups: str, root: Path) -> tuple[int, int] | None:
    """The limit with the fewest free bytes, and those free bytes; None where there is no limit."""
    limits = _memory_limits_and_free_bytes(own_cgroups, root)
    return min(limits, key=lambda limit_and_free: limit_and_free[1], default=None)


def _memory_limits_and_free_bytes(own_cgroups: str, root: Path) -> Iterator[tuple[int, int]]:
    """Limit and free bytes of each of this process's control groups and their parents."""
    files = {
        # no limit: a huge number
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),  # no limit: "max"
    }
    for version, group in _groups_and_parents(own_cgroups, root, "memory"):
        *names, cache_key = files[version]
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


def _groups_and_parents(own_cgroups: str, root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """The groups of a controller with all parents, and the version of their files. In a container the path
    may exist only outside; then the root is read."""
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        version = 1 if controllers else 2
        if version == 1 and controller not in controllers.split(","):
            continue
        top = root / controller if version == 1 else root
        group = top / path.lstrip("/")
        while group != top and top in group.parents:
            yield version, group
            group = group.parent
        yield version, top
