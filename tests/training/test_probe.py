"""The probe against a clock we control; peaks, and what is achieved of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from glassgpt.estimate.peak import (
    PeakFlops,
    RepeatOperation,
    measure_best_rate,
    measure_rate,
    mfu_note,
    mfu_percent,
)
from glassgpt.record import machine
from glassgpt.record.machine import CpuTimes
from glassgpt.training import probe
from glassgpt.training.probe import find_peak, measure_peak

# --- the probe


class Machine:
    """A device with a known speed and a clock that only its work moves."""

    def __init__(
        self, speed: Callable[[int], float], wait_s: float = 0.0, jitter: tuple[float, ...] = (1.0,)
    ) -> None:
        self.now, self.speed, self.wait_s, self.jitter = 100.0, speed, wait_s, jitter
        self.sizes: list[int] = []
        self.calls = 0

    def clock(self) -> float:
        return self.now

    def prepare(self, size: int) -> RepeatOperation:
        self.sizes.append(size)

        def run(count: int) -> None:
            slowdown = self.jitter[self.calls % len(self.jitter)]
            self.calls += 1
            self.now += count * 2 * size**3 / self.speed(size) * slowdown + self.wait_s

        return run


def test_the_rate_is_flops_over_time() -> None:
    machine = Machine(lambda size: 5e12)
    assert measure_rate(machine.prepare(1024), 2 * 1024**3, 0.5, machine.clock) == pytest.approx(5e12)
    assert machine.now - 100 <= 0.51


def test_one_slow_batch_does_not_change_the_rate() -> None:
    machine = Machine(lambda size: 5e12, jitter=(1, 1, 1, 9, 1, 1, 1))
    assert measure_rate(machine.prepare(1024), 2 * 1024**3, 0.5, machine.clock) == pytest.approx(5e12)


def test_waiting_for_the_device_is_shared_by_many_matmuls() -> None:
    machine = Machine(lambda size: 500e12, wait_s=20e-6)
    one_by_one = 2 * 2048**3 / (2 * 2048**3 / 500e12 + 20e-6)
    measured = measure_rate(machine.prepare(2048), 2 * 2048**3, 0.3, machine.clock)
    assert one_by_one < 0.7 * 500e12 < 0.99 * 500e12 < measured <= 500e12


def test_the_best_size_wins_and_growing_stops_past_it() -> None:
    speeds = {256: 1e11, 512: 4e11, 1024: 2e11, 2048: 1e11}
    machine = Machine(speeds.__getitem__)
    assert measure_best_rate(machine.prepare, list(speeds), 1.0, machine.clock) == pytest.approx(4e11)
    assert 2048 not in machine.sizes


def test_a_fast_device_is_measured_at_every_size_within_the_time() -> None:
    machine = Machine(lambda size: 1e14 * size / 2048)
    measured = measure_peak("cuda", "bfloat16", 1.0, machine.clock, machine.prepare)
    assert measured == pytest.approx(4e14)
    assert machine.now - 100 < 1.1


@pytest.mark.parametrize("flops_per_s", [2e8, 1e9, 5e9, 1e11])
def test_a_slow_cpu_still_ends_in_twice_the_time(flops_per_s: float) -> None:
    machine = Machine(lambda size: flops_per_s)
    assert measure_peak("cpu", "float32", 1.0, machine.clock, machine.prepare) == pytest.approx(flops_per_s)
    assert machine.now - 100 < 2.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_real_probe_on_this_cpu(dtype: str) -> None:
    import torch

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    assert 1e8 < measure_peak("cpu", dtype, 0.2) < 1e14
    assert torch.equal(torch.rand(3), expected)  # training draws the same numbers with and without a probe


@pytest.mark.gpu
def test_the_real_probe_on_a_gpu() -> None:
    import torch

    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    peak = find_peak("cuda", name, "bfloat16", memory, 1.0)
    assert peak.measured is not None
    assert peak.table is None or 0.5 < peak.measured / peak.table < 1.2
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated()


# --- peaks and MFU


def test_a_known_card_has_both_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "measure_peak", lambda device, dtype, seconds: 70e12)
    peak = find_peak("cuda", "NVIDIA GeForce RTX 4070 Ti", "bfloat16", 12 * 2**30, 1.0)
    assert peak.table == pytest.approx(80.2e12)
    assert peak.measured == 70e12
    assert peak.value == peak.table
    assert "whitepaper" in peak.source


def test_an_unknown_card_and_a_cpu_have_the_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "measure_peak", lambda device, dtype, seconds: 70e12)
    for device_type, name in [("cuda", "NVIDIA GeForce RTX 6090"), ("cpu", "AMD EPYC"), ("cpu", None)]:
        peak = find_peak(device_type, name, "bfloat16")
        assert (peak.table, peak.value) == (None, 70e12)
        assert peak.source.startswith("measured: bfloat16 matmuls for 1 s")


class Others:
    """Other programs that use these many of two cores, one reading per second."""

    def __init__(self, busy_cores: float) -> None:
        self.busy_cores, self.now = busy_cores, 0.0

    def read(self) -> CpuTimes:
        self.now += 1.0
        return CpuTimes(self.now, self.busy_cores * self.now + 0.5 * self.now, 0.5 * self.now, cores=2)


@pytest.mark.parametrize(
    ("busy_cores", "threads", "rates", "is_disturbed"),
    [
        (0.05, 2, [200e9, 227e9, 210e9], False),
        (1.5, 2, [96e9, 86e9, 90e9], True),  # other programs were there all the time
        (1.0, 1, [96e9, 95e9, 97e9], False),  # on the other core
        (0.1, 2, [34e9, 227e9, 220e9], True),  # for a while
    ],
)
def test_a_cpus_peak_comes_with_its_load(
    monkeypatch: pytest.MonkeyPatch, busy_cores: float, threads: int, rates: list[float], is_disturbed: bool
) -> None:
    left, durations = list(rates), []

    def measure(device: str, dtype: str, seconds: float) -> float:
        durations.append(seconds)
        return left.pop(0)

    monkeypatch.setattr(probe, "measure_peak", measure)
    monkeypatch.setattr(probe, "read_cpu_times", Others(busy_cores).read)
    for module in (machine, probe):
        monkeypatch.setattr(module, "usable_cores", lambda: 2.0)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    monkeypatch.setattr(probe, "load_average", lambda: 3.0)
    peak = find_peak("cpu", None, "float32", probe_seconds=1.0)
    assert sum(durations) == pytest.approx(1.0)
    assert peak.value == max(rates)  # what the CPU can do: the best of the repeats
    assert peak.busy_cores == pytest.approx(busy_cores)
    assert peak.spread == pytest.approx(max(rates) / min(rates) - 1)
    assert (peak.load_average, peak.is_disturbed) == (3.0, is_disturbed)
    assert ("too high" in peak.source) == is_disturbed
    assert not replace(peak, table=1e12).is_disturbed  # then the MFU does not depend on it


def test_no_table_entry_for_a_dtype_the_card_lacks() -> None:
    peak = find_peak("cuda", "Tesla T4", "bfloat16", probe_seconds=0)
    assert peak == PeakFlops()
    assert peak.value is None
    assert peak.source.startswith("unknown")


def test_a_probe_that_fails_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: str, dtype: str, seconds: float) -> float:
        raise RuntimeError("no kernel for this dtype")

    monkeypatch.setattr(probe, "measure_peak", fail)
    peak = find_peak("mps", None, "bfloat16")
    assert peak.value is None
    assert "no kernel for this dtype" in peak.source


@pytest.mark.parametrize(("setting", "tflops"), [("highest", 19.5), ("high", 156.0)])
def test_float32_follows_torchs_matmul_precision(setting: str, tflops: float) -> None:
    import torch

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        peak = find_peak("cuda", "NVIDIA A100-SXM4-80GB", "float32", probe_seconds=0)
        assert peak.table == pytest.approx(tflops * 1e12, rel=1e-3)
    finally:
        torch.set_float32_matmul_precision(before)


def test_mfu_is_achieved_over_peak() -> None:
    assert mfu_percent(48e12, PeakFlops(table=80.2e12)) == pytest.approx(59.85, abs=0.01)
    assert mfu_percent(35e12, PeakFlops(measured=70e12)) == pytest.approx(50)


@pytest.mark.parametrize("flops_per_s", [0.0, -1.0, math.inf, math.nan])
def test_mfu_is_never_zero_infinite_or_negative(flops_per_s: float) -> None:
    assert mfu_percent(flops_per_s, PeakFlops(table=1e12)) is None
    assert mfu_percent(1e12, PeakFlops()) is None


def test_mfu_above_100_is_explained() -> None:
    table, measured = PeakFlops(table=1e12), PeakFlops(measured=1e12)
    assert mfu_note(None) is None
    assert mfu_note(100.0, table) is None
    assert "boost clock" in str(mfu_note(107.0, table))
    assert "suspect the timing" in str(mfu_note(337.0, table))
    assert "probe" in str(mfu_note(107.0, measured))
