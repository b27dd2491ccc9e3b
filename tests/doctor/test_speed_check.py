"""Speeds against fake clocks, fake disks and the card table: the number shown is the number that was."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from glassgpt.doctor import disk_check, gpu_checks, speed_check
from glassgpt.doctor.diagnosis import CheckContext
from glassgpt.doctor.disk_check import (
    check_disk,
    checkpoint_line,
    free_space_line,
    measure_write_speed,
    random_payload,
)
from glassgpt.doctor.speed_check import (
    bandwidth_line,
    check_bandwidth,
    check_matmuls,
    copy_size_bytes,
    matmul_line,
    measure_bandwidth,
)
from glassgpt.estimate.cards import find_card
from glassgpt.estimate.peak import PeakFlops
from glassgpt.training.checkpoint.tensor_file import PackedTensors, write_packed

MIB, GIB = 2**20, 2**30


class FakeClock:
    """Goes on only when something takes its time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


# --- products ---


def test_a_peak_beside_the_table(subtests: pytest.Subtests) -> None:
    cases: list[tuple[float, str, str]] = [
        (790e12, "ok", "790 TFLOP/s, 80% of the table's 989 TFLOP/s"),
        (600e12, "ok", "600 TFLOP/s, 61% of the table's 989 TFLOP/s"),
        (500e12, "note", "500 TFLOP/s, 51% of the table's 989 TFLOP/s"),
        (200e12, "problem", "200 TFLOP/s, 20% of the table's 989 TFLOP/s"),
        (1040e12, "ok", "1.04 PFLOP/s, 105% of the table's 989 TFLOP/s. MFU 105%: this card runs above"),
    ]
    for measured, verdict, said in cases:
        with subtests.test(repr(measured)):
            line = matmul_line(
                "matmul gpu", "cuda", "bfloat16", PeakFlops(989e12, "NVIDIA", measured, "measured")
            )
            assert (line.verdict, said in line.message) == (verdict, True)
            assert line.message.startswith("bfloat16: ")
            assert bool(line.fix) == (verdict != "ok")
            assert line.values["measured_flops_per_s"] == measured


def test_what_the_table_does_not_have_is_measured_only() -> None:
    peak = PeakFlops(None, None, 131e9, "measured")
    assert matmul_line("matmul cpu", "cpu", "float32", peak).verdict == "ok"
    line = matmul_line("matmul gpu", "cuda", "float32", peak)
    assert (line.verdict, "card table" in line.message) == ("note", True)


def test_a_probe_that_failed_is_a_problem() -> None:
    peak = PeakFlops(989e12, "NVIDIA", None, "unknown: no memory")
    line = matmul_line("matmul gpu", "cuda", "bfloat16", peak)
    assert (line.verdict, "no memory" in line.message, bool(line.fix)) == ("problem", True, True)


def test_the_probes_are_of_the_dtypes_that_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def find_peak(*arguments: Any) -> PeakFlops:
        asked.append(arguments)
        return PeakFlops(None, None, 1e11, "measured")

    monkeypatch.setattr(speed_check, "find_peak", find_peak)
    monkeypatch.setattr(gpu_checks, "find_gpus", lambda: [])
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    lines = check_matmuls(CheckContext(tmp_path, tmp_path))
    assert [(found[0], found[2]) for found in asked] == [("cpu", "bfloat16"), ("cpu", "float32")]
    assert [line.name for line in lines] == ["matmul cpu", "matmul cpu"]
    assert all(line.message.endswith(": 100 GFLOP/s") for line in lines)


# --- moving memory ---


@pytest.mark.parametrize(("per_second", "size"), [(100e9, GIB), (3.35e12, GIB), (5e9, 64 * MIB)])
def test_bandwidth_is_bytes_read_and_written_over_time(per_second: float, size: int) -> None:
    clock = FakeClock()

    def copy(count: int) -> None:
        clock.spend(count * 2 * size / per_second)

    assert measure_bandwidth(copy, size, 0.5, clock) == pytest.approx(per_second, rel=1e-6)


@pytest.mark.parametrize(
    ("device_type", "free", "expected"),
    [("cuda", 80 * GIB, GIB), ("cuda", 4 * GIB, GIB // 2), ("cpu", 64 * GIB, 256 * MIB), ("cpu", 3, 4)],
)
def test_a_copy_leaves_room_for_others(device_type: str, free: int, expected: int) -> None:
    assert copy_size_bytes(device_type, free) == expected


def test_bandwidth_beside_the_table() -> None:
    card = find_card("NVIDIA GeForce RTX 4090")
    assert card is not None
    table = card.bandwidth_gb_s * 1e9
    for share, verdict in ((0.92, "ok"), (0.6, "note"), (0.2, "problem")):
        line = bandwidth_line("bandwidth gpu", "cuda", share * table, card)
        assert line.verdict == verdict
        assert re.search(rf"\b{100 * share:.0f}% .* {card.bandwidth_gb_s:,.0f} GB/s", line.message)
    assert bandwidth_line("bandwidth cpu", "cpu", 22.4e9, None).message.startswith("22.4 GB/s ")
    assert bandwidth_line("bandwidth gpu", "cuda", 4.2e12, None).message.startswith("4,200 GB/s ")


def test_this_memory_is_really_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "find_gpus", lambda: [])
    monkeypatch.setattr(speed_check, "_COPY_BYTES", {"cpu": 8 * MIB})
    (line,) = check_bandwidth(CheckContext(tmp_path, tmp_path))
    assert 1e7 < float(line.values["measured_bytes_per_s"] or 0) < 1e13
    copied = speed_check._make_copy(torch.device("cpu"), 400)
    copied(2)
    target = next(cell.cell_contents for cell in copied.__closure__ or () if _is_target(cell.cell_contents))
    assert target.sum() == 100  # a hundred ones have come over


def _is_target(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@pytest.mark.gpu
def test_this_card_is_measured(tmp_path: Path) -> None:
    lines = check_matmuls(CheckContext(tmp_path, tmp_path)) + check_bandwidth(
        CheckContext(tmp_path, tmp_path)
    )
    assert {line.values["device"] for line in lines} == {"cuda", "cpu"}
    for line in lines:
        assert line.values.get("measured_flops_per_s") or line.values.get("measured_bytes_per_s")


# --- the disk ---


def fake_disk(
    clock: FakeClock, per_second: float, latency: float = 0.0
) -> Callable[[Path, PackedTensors], None]:
    def write(path: Path, packed: PackedTensors) -> None:
        clock.spend(latency + len(packed.content) / per_second)

    return write


SIZES = (4 * MIB, 32 * MIB, 128 * MIB)


@pytest.mark.parametrize(
    ("per_second", "latency", "largest"),
    [
        (2e9, 0.001, 128 * MIB),
        (500e6, 0.01, 128 * MIB),
        # 4 MiB take 84 ms, 32 MiB take 671 ms, and 128 MiB would take 2.7 s, which is too long.
        (50e6, 0.0, 32 * MIB),
        (1e6, 0.0, 4 * MIB),  # one file of 4 s, and no other
    ],
)
def test_the_speed_is_that_of_the_largest_file_that_fits_the_time(
    tmp_path: Path, per_second: float, latency: float, largest: int
) -> None:
    clock = FakeClock()
    found = measure_write_speed(tmp_path, SIZES, 1.0, clock, fake_disk(clock, per_second, latency))
    assert found == pytest.approx(largest / (latency + largest / per_second), rel=1e-9)
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_on_the_disk_before_the_clock_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        original(descriptor)
        events.append("synced")

    monkeypatch.setattr(os, "fsync", fsync)

    def clock() -> float:
        events.append("clock")
        return float(len(events))

    assert measure_write_speed(tmp_path, (3 * MIB + 5,), 1.0, clock) > 0
    assert events == ["clock", "clock", "synced", "clock"]
    packed = random_payload(3 * MIB + 5)
    assert len(packed.content) == 3 * MIB + 5
    assert len(set(packed.content[:1000].tolist())) > 100  # not zeros
    write_packed(tmp_path / "file", packed)
    assert torch.equal(load_file(tmp_path / "file")["content"], packed.content)


def test_what_a_checkpoint_costs() -> None:
    # 124,373,760 parameters as the model has them, three numbers of four bytes each.
    size = 12 * (50_304 * 768 + 1024 * 768 + 12 * (12 * 768**2 + 2 * 768) + 768)
    for write, verdict in ((500 * MIB, "ok"), (30 * MIB, "note"), (4 * MIB, "problem")):
        line = checkpoint_line(write, 70 * GIB)
        assert line.verdict == verdict
        assert line.values["checkpoint_bytes"] == size
        assert line.values["checkpoint_s"] == pytest.approx(size / write)
        assert line.values["checkpoints_that_fit"] == 70 * GIB // size
        assert "1.4 GiB" in line.message
        assert bool(line.fix) == (verdict != "ok")


def test_a_checkpoint_in_words() -> None:
    message = checkpoint_line(500 * MIB, 70 * GIB).message
    figures = re.findall(r"[\d.]+ (?:MiB/s|GiB|s\b|would fit)", message)
    assert figures == ["500 MiB/s", "1.4 GiB", "2.8 s", "50 would fit"]
    assert "GPT-2 124M" in message


def test_room_for_checkpoints() -> None:
    for free, verdict in ((70 * GIB, "ok"), (3 * GIB, "note"), (GIB, "problem")):
        line = free_space_line("runs", free, exists=False)
        assert line.verdict == verdict
        assert "free at runs (" in line.message
        assert bool(line.fix) == ("3 checkpoints" in line.message) == (verdict != "ok")


def test_the_disk_is_looked_at_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_check, "_TEST_FILE_BYTES", (MIB,))
    lines = check_disk(CheckContext(tmp_path / "runs" / "new", tmp_path))
    assert [line.name for line in lines] == ["disk", "disk speed"]
    assert float(lines[1].values["write_bytes_per_s"] or 0) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EROFS, "it is read-only"),
        (errno.EACCES, "permission denied"),
        (errno.ENOSPC, "it is full"),
        (errno.EDQUOT, "your disk quota is full"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def write(path: Path, packed: PackedTensors) -> None:
        path.write_bytes(b"a part of it")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk_check, "write_packed", write)
    lines = check_disk(CheckContext(tmp_path, tmp_path))
    assert lines[-1].verdict == "problem"
    assert said in lines[-1].message
    assert "--out_dir" in lines[-1].fix
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=10 * MIB))
    monkeypatch.setattr(disk_check, "write_packed", lambda path, packed: pytest.fail("written"))
    (line,) = check_disk(CheckContext(tmp_path, tmp_path))
    assert (line.verdict, "--out_dir" in line.fix) == ("problem", True)
    written: list[int] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=20 * MIB))
    monkeypatch.setattr(disk_check, "write_packed", lambda path, packed: written.append(len(packed.content)))
    check_disk(CheckContext(tmp_path, tmp_path))
    assert written == [4 * MIB]  # a quarter of what is left, at most
