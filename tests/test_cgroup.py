"""What a container allows, from files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassgpt import cgroup
from glassgpt.cgroup import cpu_quota, memory_limit_and_free_bytes, memory_limit_bytes, usable_cores
from glassgpt.data.encoder import usable_core_count

GIB = 2**30


def groups(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_quota_version_2_is_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    groups(tmp_path, {"pod/job/cpu.max": "max 100000"})
    groups(tmp_path, {"pod/cpu.max": "250000 100000"})
    assert cpu_quota("0::/pod/job\n", tmp_path) == 2.5
    groups(tmp_path, {"pod/job/cpu.max": "50000 100000"})
    assert cpu_quota("0::/pod/job\n", tmp_path) == 0.5


def test_quota_version_2_inside_a_container(tmp_path: Path) -> None:
    groups(tmp_path, {"cpu.max": "150000 100000"})
    assert cpu_quota("0::/../outside\n", tmp_path) == 1.5


def test_quota_version_1(tmp_path: Path) -> None:
    own = "4:memory:/job\n3:cpu,cpuacct:/job\n"
    groups(tmp_path, {"cpu/job/cpu.cfs_quota_us": "-1"})
    groups(tmp_path, {"cpu/job/cpu.cfs_period_us": "100000"})
    assert cpu_quota(own, tmp_path) is None
    groups(tmp_path, {"cpu/job/cpu.cfs_quota_us": "400000"})
    assert cpu_quota(own, tmp_path) == 4.0


def test_no_quota_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota("", tmp_path) is None
    assert cpu_quota("0::/\n", tmp_path) is None


def test_memory_is_limited_by_the_tightest_group(tmp_path: Path) -> None:
    assert memory_limit_bytes("0::/pod/job\n", tmp_path) is None
    for group, limit, used in (("pod/job", "max", "5"), ("pod", str(8 * GIB), "7"), (".", str(4 * GIB), "1")):
        groups(tmp_path / group, {"memory.max": limit, "memory.current": used})
    assert memory_limit_bytes("0::/pod/job\n", tmp_path) == 4 * GIB
    groups(tmp_path, {"memory/job/memory.limit_in_bytes": f"{3 * GIB}"})
    groups(tmp_path, {"memory/job/memory.usage_in_bytes": "1"})
    groups(tmp_path, {"memory/memory.limit_in_bytes": "9223372036854771712"})  # version 1's way to say none
    groups(tmp_path, {"memory/memory.usage_in_bytes": "1"})
    assert memory_limit_bytes("4:memory:/job\n", tmp_path) == 3 * GIB
    assert memory_limit_bytes("4:memory:/\n", tmp_path) is None


def test_a_containers_limit_version_2(tmp_path: Path) -> None:
    files = {
        "memory.max": "max",
        "memory.current": str(20 * GIB),
        "job/memory.max": str(8 * GIB),
        "job/memory.current": str(5 * GIB),
        "job/memory.stat": f"anon 12\ninactive_file {2 * GIB}\nactive_file 7",
        "job/step/memory.max": str(16 * GIB),
        "job/step/memory.current": str(GIB),
    }
    root = groups(tmp_path, files)
    # Of the 5 GiB in use, 2 are files that were read: they make room. The parent is tighter than the child.
    assert memory_limit_and_free_bytes("0::/job/step\n", root) == (8 * GIB, 5 * GIB)
    assert memory_limit_and_free_bytes("0::/\n", root) is None
    assert memory_limit_and_free_bytes("", root) is None


def test_a_containers_limit_version_1(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "1",
        "memory/docker/abc/memory.limit_in_bytes": str(4 * GIB),
        "memory/docker/abc/memory.usage_in_bytes": str(6 * GIB),
    }
    root = groups(tmp_path, files)
    assert memory_limit_and_free_bytes("4:memory:/docker/abc\n1:cpu:/\n", root) == (4 * GIB, 0)
    assert memory_limit_and_free_bytes("4:memory:/\n", root) is None
    # In a container the path may exist only outside: then the root counts.
    (root / "memory/memory.limit_in_bytes").write_text(str(2 * GIB))
    assert memory_limit_and_free_bytes("4:memory:/docker/xyz\n", root) == (2 * GIB, 2 * GIB - 1)


def test_usable_cores_respects_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(cgroup, "cpu_quota", lambda own, root: None)
    assert usable_cores() == 4
    monkeypatch.setattr(cgroup, "cpu_quota", lambda own, root: 1.5)
    assert usable_cores() == 1.5
    monkeypatch.setattr(cgroup, "cpu_quota", lambda own, root: 64.0)
    assert usable_cores() == 4


def test_a_container_of_two_cores_gets_two_workers_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    for quota, workers in ((2.5, 2), (0.5, 1), (None, 64)):
        monkeypatch.setattr(cgroup, "cpu_quota", lambda own, root, quota=quota: quota)
        assert usable_core_count() == workers
