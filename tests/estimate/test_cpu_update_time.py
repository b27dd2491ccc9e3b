"""The time of an update on a CPU, from the speed of its cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glassgpt.config import TrainConfig
from glassgpt.estimate.cpu_update_time import CoreSpeed, CpuUpdateTime, cpu_update_time, measure_core_speed
from glassgpt.estimate.training_workload import TrainingWorkload

TWO_CORES = CoreSpeed(threads=2)
PEAK = 248e9  # of numpy's float32 matmuls on two cores of an EPYC 9005


def a_workload(
    dtype: str = "float32", micro_steps: int = 1, batch_size: int = 12, **settings: Any
) -> TrainingWorkload:
    config = TrainConfig(n_layer=3, n_head=1, n_embd=64, block_size=32)
    return TrainingWorkload(
        config=replace(config, **settings),
        vocab_size=2048,
        batch_size=batch_size,
        micro_steps=micro_steps,
        device_type="cpu",
        dtype=dtype,
        kernels=False,
    )


def time_of(work: TrainingWorkload, core: CoreSpeed = TWO_CORES) -> CpuUpdateTime:
    return cpu_update_time(work, PEAK * (3.5 if work.dtype == "bfloat16" else 1), core)


def test_updates_of_a_quiet_machine_are_within_the_band() -> None:
    """Milliseconds of whole runs on two idle cores, whose updates had no part in the fit (seed 3119)."""
    muon: dict[str, Any] = {"optimizer": "muon"}
    modern: dict[str, Any] = {"arch": "modern"}
    runs = [
        (93.4, a_workload("bfloat16", 1, 8, n_layer=2, n_head=8, n_embd=384, block_size=64, dropout=0.1,
                          tie_embeddings=False, **muon)),
        (221.9, a_workload("bfloat16", 1, 16, n_layer=2, n_head=3, n_embd=192, block_size=256,
                           activation_checkpointing=True, **modern)),
        (23.7, a_workload(micro_steps=2, tie_embeddings=False, **modern)),
        (45.4, a_workload("bfloat16", 4, 4, n_layer=5, n_head=2, block_size=100)),
        (132.9, a_workload("float32", 4, 16, n_layer=4, n_head=4, n_embd=128, **modern, **muon)),
        (47.7, a_workload("float32", 1, 8, n_layer=6, n_head=3, n_embd=48, block_size=128, dropout=0.1)),
        (153.8, a_workload("float32", 1, 12, n_layer=4, n_head=4, n_embd=128, block_size=100, dropout=0.1,
                           activation_checkpointing=True, **modern, **muon)),
    ]  # fmt: skip
    off = [(ms, 1000 * time_of(work).seconds / ms - 1) for ms, work in runs]
    assert [case for case in off if abs(case[1]) > 0.15] == []


def test_each_part_follows_what_was_measured_of_the_machine() -> None:
    work = a_workload("float32", 1, 64, n_embd=256, n_head=4, optimizer="muon")
    usual = time_of(work)
    slow_overhead = time_of(work, replace(TWO_CORES, operation_s=3 * TWO_CORES.operation_s))
    assert slow_overhead == CpuUpdateTime(usual.matmul_s, usual.number_s, slow_overhead.operation_s)
    assert slow_overhead.operation_s == pytest.approx(3 * usual.operation_s)
    fast = cpu_update_time(work, 2 * PEAK, TWO_CORES)
    assert fast.matmul_s == pytest.approx(usual.matmul_s / 2)
    assert fast.operation_s == usual.operation_s
    alone = cpu_update_time(work, PEAK / 2, CoreSpeed(threads=1))
    assert time_of(replace(work, config=replace(work.config, threads=1))).seconds == pytest.approx(
        alone.seconds
    )
    assert 1.3 < alone.seconds / usual.seconds < 2
    assert time_of(replace(work, micro_steps=4)).seconds < 4 * usual.seconds  # one step of the optimizer


def test_logits_that_do_not_fit_into_the_heap_cost_more_than_their_share() -> None:
    few, many = (time_of(a_workload("float32", 1, size)).seconds for size in (120, 144))  # 30 and 36 MiB
    assert many > 1.25 * few


def test_the_speed_of_a_core_is_measured() -> None:
    core = measure_core_speed(threads=3)
    assert core.threads == 3
    assert 1e-11 < core.number_s < 1e-8
    assert 1e-8 < core.operation_s < 1e-5
