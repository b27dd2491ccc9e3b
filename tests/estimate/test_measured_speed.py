"""A measured speed: the band of repeats, and a probe that is used for its own work only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glassgpt.config import TrainConfig
from glassgpt.estimate import measured_speed
from glassgpt.estimate.forecast import Hardware, TokenCounts, forecast_workload
from glassgpt.estimate.measured_speed import (
    DRIFT,
    MeasuredSpeed,
    ProbeResult,
    band_from_repeats,
    group_means,
    idle_speedup,
    work_key,
)
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.record.machine import CpuTimes

CONFIG = TrainConfig(n_layer=2, n_head=2, n_embd=32, block_size=50, max_iters=100, eval_interval=50)
WORK = TrainingWorkload(
    config=CONFIG,
    vocab_size=64,
    batch_size=4,
    micro_steps=2,
    device_type="cpu",
    dtype="float32",
    kernels=False,
)


def test_repeats_are_means_of_consecutive_updates() -> None:
    assert group_means([1.0, 3.0]) == [1.0, 3.0]
    assert group_means([float(number) for number in range(10)]) == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert group_means([1.0] * 9 + [8.0]) == [1.0, 1.0, 1.0, 1.0, 4.5]
    assert len(group_means([1.0] * 7)) == 5


def test_equal_repeats_leave_the_drift() -> None:
    slower, faster = DRIFT["cpu"]
    low, mid, high = band_from_repeats([100.0, 100.0, 100.0], "cpu")
    assert mid == 100
    assert low == pytest.approx(100 / (1 + slower))
    assert high == pytest.approx(100 * (1 + faster))


def test_repeats_that_differ_widen_the_band() -> None:
    calm, restless = (
        band_from_repeats(rates, "cuda") for rates in ([99.0, 100.0, 101.0], [70.0, 100.0, 130.0])
    )
    assert restless[0] < calm[0] < 100 < calm[2] < restless[2]
    assert restless[2] == pytest.approx(100 * (1 + (0.3**2 + DRIFT["cuda"][1] ** 2) ** 0.5))


def test_beside_other_programs_a_cpu_may_be_as_fast_as_all_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_speed, "usable_cores", lambda: 4.0)
    monkeypatch.setattr("glassgpt.record.machine.usable_cores", lambda: 4.0)
    before, calm = CpuTimes(0.0, 0.0, 0.0, 4), CpuTimes(10.0, 38.0, 37.0, 4)
    assert idle_speedup(before, calm) == 1.0
    crowded = CpuTimes(10.0, 40.0, 16.0, 4)  # it got 1.6 of 4 cores
    assert idle_speedup(before, crowded) == pytest.approx(2.5)


def ran(**changes: Any) -> ProbeResult:
    fields: dict[str, Any] = {
        "update_s": (0.4, 0.4, 0.4), "micro_steps": 2, "timed_s": 1.2, "eval_tokens_per_s": 3000.0,
        "start_s": 4.0, "peak_bytes": 300 * 2**20, "work": work_key(WORK),
    }  # fmt: skip
    return ProbeResult("ran", **fields | changes)


def test_a_probe_is_the_speed_of_its_own_work_only() -> None:
    speed = ran().speed_of(WORK)
    assert speed is not None
    assert speed.tokens_per_s[1] == pytest.approx(4 * 2 * 50 / 0.4)
    assert (speed.source, speed.peak_bytes) == ("probe", 300 * 2**20)
    assert ran().micro_batches == 6
    assert ran().speed_of(replace(WORK, batch_size=8)) is None
    assert ran().speed_of(replace(WORK, dtype="bfloat16")) is None
    assert ran().speed_of(replace(WORK, config=replace(CONFIG, max_iters=7, dataset="another"))) is not None
    assert ProbeResult("out of memory", "ran out").speed_of(WORK) is None


def test_the_band_of_a_probe_is_that_of_a_run_beside_the_same_load() -> None:
    """Not from a crowded machine to an idle one: that says little."""
    alone, beside = ran().speed_of(WORK), ran(idle_speedup=4.0).speed_of(WORK)
    assert alone is not None
    assert alone == beside
    low, mid, high = alone.tokens_per_s
    assert (low, high) == pytest.approx((mid / (1 + DRIFT["cpu"][0]), mid * (1 + DRIFT["cpu"][1])))


def test_the_forecast_is_what_was_measured() -> None:
    measured = MeasuredSpeed((800.0, 1000.0, 1250.0), "measured here", "probe", 4000.0, 7.0)
    tokens = TokenCounts(per_update=400, per_evaluation=2000, val_split=2000)
    forecast = forecast_workload(WORK, 10**6, Hardware(1e11, None, measured=measured), tokens)
    assert forecast.throughput is not None
    assert (forecast.throughput.low, forecast.throughput.high) == (800, 1250)
    assert forecast.throughput.mfu[1] == pytest.approx(1.0)
    assert forecast.times is not None
    assert forecast.times.updates_s == (32.0, 40.0, 50.0)  # 100 updates of 400 tokens
    assert forecast.times.evaluation_s == pytest.approx(3 * 2 * 2000 / 4000)
    assert forecast.times.start_s == 7.0
    assert forecast.as_dict()["source"] == "probe"
    # A card that is in no table has no reference rows; measured, its speed is known.
    card = replace(WORK, device_type="cuda")
    assert forecast_workload(card, 10**6, Hardware(1e11, None), tokens).total_s is None
    assert forecast_workload(card, 10**6, Hardware(1e11, None, measured=measured), tokens).total_s is not None
