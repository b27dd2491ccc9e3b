"""Forecasts of memory, speed and time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glassgpt.config import TrainConfig
from glassgpt.estimate.cards import resolve_card_name
from glassgpt.estimate.flops import model_flops_per_token
from glassgpt.estimate.forecast import Hardware, RunForecast, TimeForecast, TokenCounts, forecast_workload
from glassgpt.estimate.speed import ThroughputEstimate, estimate_throughput
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.recipe import build_config, find_recipe

H200 = resolve_card_name("h200").card
GPT2_FLOPS = 854_800_000
TOKENS = TokenCounts(per_update=65_536, per_evaluation=100_000, val_split=1_000_000)


def work(device_type: str = "cuda", **settings: Any) -> TrainingWorkload:
    config = TrainConfig(**{"max_iters": 500, "eval_interval": 250, "probe_seconds": 1.0} | settings)
    kernels = device_type == "cuda"
    return TrainingWorkload(
        config=config, vocab_size=50304, batch_size=64, device_type=device_type, kernels=kernels
    )


def in_range(estimate: ThroughputEstimate, tokens_per_s: float) -> bool:
    return estimate.low <= tokens_per_s <= estimate.high


def test_gpt2_on_an_h200_is_as_fast_as_measured() -> None:
    """Measured: 117.8 ms for 65,536 tokens, which is also a row of the table; 97.9 ms with 8-bit floats."""
    throughput = estimate_throughput(work(), GPT2_FLOPS, 989e12, H200)
    assert in_range(throughput, 65_536 / 0.1178)
    assert throughput.low < throughput.mid < throughput.high
    assert throughput.mid * GPT2_FLOPS / 989e12 * 100 == pytest.approx(throughput.mfu[1])
    assert in_range(estimate_throughput(work(fp8=True), GPT2_FLOPS, 989e12, H200), 65_536 / 0.0979)
    slower = estimate_throughput(work(activation_checkpointing=True), GPT2_FLOPS, 989e12, H200)
    assert 0.74 * throughput.mid < slower.mid < 0.82 * throughput.mid  # a second forward pass


def test_a_tiny_model_on_a_cpu_is_launch_bound(subtests: pytest.Subtests) -> None:
    """Measured on 2 cores whose matmuls make 190 GFLOP/s: updates of 8 tokens."""
    cases: list[tuple[int, int, float]] = [
        (1, 16, 1.32),
        (2, 16, 1.77),
        (4, 16, 3.18),
        (8, 16, 5.39),
        (4, 64, 5.49),
    ]
    for n_layer, n_embd, ms in cases:
        with subtests.test(repr(n_layer)):
            shape: dict[str, Any] = {"n_layer": n_layer, "n_embd": n_embd, "n_head": 1, "block_size": 8}
            tiny = replace(work("cpu", **shape), vocab_size=97, batch_size=1)
            throughput = estimate_throughput(tiny, model_flops_per_token(tiny.config, 97), 190e9, None)
            assert in_range(throughput, 8 / ms * 1000)
            assert "ms of launch overhead" in throughput.why


def test_evaluation_on_a_cpu_needs_no_large_updates() -> None:
    """Its batches are its own, whatever an update's are, and it has no optimizer."""
    shape: dict[str, Any] = {"n_layer": 2, "n_embd": 32, "n_head": 1, "block_size": 16, "sample_tokens": 0}

    def evaluation_s(batch_size: int, optimizer: str = "adamw") -> float:
        one = replace(work("cpu", **shape, optimizer=optimizer), vocab_size=97, batch_size=batch_size)
        per_token = model_flops_per_token(one.config, 97)
        tokens = TokenCounts(per_update=16 * batch_size, per_evaluation=16_384, val_split=100_000)
        return times_of(forecast_workload(one, per_token, Hardware(190e9, None), tokens)).evaluation_s

    assert evaluation_s(1) == evaluation_s(64) == evaluation_s(4096)
    assert evaluation_s(1, "muon") == pytest.approx(evaluation_s(1), rel=1e-3)


def test_muon_costs_time_if_an_update_has_few_tokens() -> None:
    """124M on an H200, 32 x 1024 tokens: 63.2 and 64.1 ms; 16 x 1024: 36.6 ms."""
    muon: dict[str, Any] = {"arch": "modern", "optimizer": "muon", "tie_embeddings": False, "n_head": 6}
    for sequences, ms in ((32, 63.2), (32, 64.1), (16, 36.6)):
        one = replace(work(**muon), batch_size=sequences)
        assert in_range(estimate_throughput(one, GPT2_FLOPS, 989e12, H200), sequences * 1024 / ms * 1000)
    usual, few = (replace(work(**muon), batch_size=size) for size in (64, 1))
    adamw = estimate_throughput(replace(work(arch="modern"), batch_size=64), GPT2_FLOPS, 989e12, H200)
    assert 0.88 * adamw.mid < estimate_throughput(usual, GPT2_FLOPS, 989e12, H200).mid < adamw.mid
    one, alone = (
        replace(few, graph=True, config=replace(few.config, optimizer=optimizer))
        for optimizer in ("muon", "adamw")
    )
    assert (
        estimate_throughput(one, GPT2_FLOPS, 989e12, H200).mid
        < 0.7 * estimate_throughput(alone, GPT2_FLOPS, 989e12, H200).mid
    )


def test_the_modern_architecture_is_slow_without_fused_kernels() -> None:
    """shakespeare_char_fast on an H200 as a CUDA graph: 1.034 to 1.037 million tokens/s with PyTorch's
    kernels, 1.86 with ours."""
    fast = build_config(find_recipe("shakespeare_char_fast"), {})
    plain = TrainingWorkload(
        config=fast, vocab_size=128, batch_size=32, device_type="cuda", kernels=False, graph=True
    )
    flops_per_token = model_flops_per_token(fast, 128)
    throughput = estimate_throughput(plain, flops_per_token, 989e12, H200)
    assert all(in_range(throughput, measured) for measured in (1.034e6, 1.036e6, 1.037e6))
    assert throughput.why.endswith(
        "; lowered for the modern architecture's many small kernels, Muon's own FLOPs"
    )
    fused = estimate_throughput(replace(plain, kernels=True), flops_per_token, 989e12, H200)
    assert in_range(fused, 1.86e6)


def test_all_that_takes_time_is_in_the_total() -> None:
    forecast = times_of(forecast_workload(work(), GPT2_FLOPS, Hardware(989e12, H200), TOKENS))
    assert forecast.updates_s[1] == pytest.approx(500 * 65_536 / forecast.throughput.mid)
    assert forecast.evaluations == 3  # at 0, 250 and 500
    # Two splits each time, the whole validation split at the end; a forward pass is a third of an update.
    assert forecast.evaluation_s == pytest.approx((6 * 100_000 + 1_000_000) / 3 / forecast.throughput.mid)
    assert forecast.saving_s == pytest.approx(12 * 124_373_760 / 6e8)
    parts = forecast.updates_s[1] + forecast.evaluation_s + forecast.saving_s + forecast.start_s
    assert forecast.total_s[1] == pytest.approx(parts)
    # Start-up is uncertain too, and is most of a short run: half to twice as long, unless it was measured.
    assert _spread_of_start(forecast) == pytest.approx((0.5, 2.0))
    measured = replace(forecast, start_s=8.0, is_start_measured=True)
    assert _spread_of_start(measured) == pytest.approx((0.8, 1.3))


def times_of(forecast: RunForecast) -> TimeForecast:
    assert forecast.times is not None
    return forecast.times


def _spread_of_start(forecast: TimeForecast) -> tuple[float, float]:
    """How much of its start-up is in the low and in the high total."""
    started, instant = forecast.total_s, replace(forecast, start_s=0.0).total_s
    return (started[0] - instant[0]) / forecast.start_s, (started[2] - instant[2]) / forecast.start_s
    assert forecast.total_s[0] < forecast.total_s[1] < forecast.total_s[2]


def test_the_sample_at_the_end_takes_time_too() -> None:
    works = (work(), work(sample_tokens=400), work(sample_tokens=400, eval_only=True))
    without, with_it, only_looking = (
        times_of(forecast_workload(one, GPT2_FLOPS, Hardware(989e12, H200), TOKENS)).evaluation_s
        for one in works
    )
    assert with_it - without == pytest.approx(400 * 12 * 4e-4)
    assert only_looking < without


def test_without_a_known_speed_there_is_memory_only() -> None:
    forecast = forecast_workload(work(), GPT2_FLOPS, Hardware(None, None), TOKENS)
    assert forecast.total_s is None
    document = forecast.as_dict()
    assert document["tokens_per_s"] is None
    assert document["memory_bytes"] == forecast.memory.allocated_bytes
    on_cpu = forecast_workload(work("cpu"), GPT2_FLOPS, Hardware(None, None), TOKENS)
    assert on_cpu.as_dict()["memory_bytes"] == on_cpu.memory.total_bytes  # of the whole process
