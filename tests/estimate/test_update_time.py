"""The time of an update, compared with what an H200 took."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, median, quantiles
from typing import Any

import pytest

from bench.plan import draw_card_workload
from glassgpt.config import TrainConfig
from glassgpt.estimate.cards import find_card
from glassgpt.estimate.decide import choose_attention, model_vocab_size
from glassgpt.estimate.flops import model_flops_per_token
from glassgpt.estimate.machine_facts import DeviceTraits
from glassgpt.estimate.overheads import MIN_FLOAT8_TOKENS
from glassgpt.estimate.speed import expected_mfu_range
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.estimate.update_time import is_misaligned, update_time

PEAK, BANDWIDTH = 989.4e12, 4.8e12


def work(layers: int, heads: int, width: int, sequences: int, **changes: Any) -> TrainingWorkload:
    settings = {"n_layer": layers, "n_head": heads, "n_embd": width, "dropout": 0.0, "bias": False} | changes
    config = TrainConfig(batch_size=sequences, **settings)
    return TrainingWorkload(config=config, vocab_size=50304, batch_size=sequences, graph=True)


# Triton kernels, CUDA graph: milliseconds of an update in bfloat16 and in FP8.
MEASURED: list[tuple[TrainingWorkload, float, float]] = [
    (work(12, 12, 768, 1), 5.49, 5.91),
    (work(12, 12, 768, 8), 16.68, 14.39),
    (work(12, 12, 768, 64), 110.6, 87.4),
    (work(24, 16, 1024, 16), 78.5, 62.3),
    (work(36, 20, 1280, 8), 90.5, 69.8),
    (work(48, 25, 1600, 4), 102.8, 80.4),
    (work(6, 6, 384, 64, block_size=256), 8.71, 8.09),
]


@pytest.mark.parametrize(("one", "ms", "fp8_ms"), MEASURED)
def test_it_is_what_an_h200_took(one: TrainingWorkload, ms: float, fp8_ms: float) -> None:
    assert 1000 * update_time(one, PEAK, BANDWIDTH).seconds == pytest.approx(ms, rel=0.08)
    in_fp8 = replace(one, config=replace(one.config, fp8=True))
    speedup = update_time(one, PEAK, BANDWIDTH).seconds / update_time(in_fp8, PEAK, BANDWIDTH).seconds
    assert speedup == pytest.approx(ms / fp8_ms, rel=0.08)
    assert (speedup > 1) == (fp8_ms < ms)


def test_without_a_graph_the_host_may_be_slower() -> None:
    small = update_time(replace(work(12, 12, 768, 1), graph=False), PEAK, BANDWIDTH)
    large = update_time(replace(work(12, 12, 768, 64), graph=False), PEAK, BANDWIDTH)
    assert small.is_launch_bound
    assert small.seconds == small.host_s == large.host_s
    assert large.seconds == large.card_s
    float16 = update_time(replace(work(12, 12, 768, 1), graph=False, dtype="float16"), PEAK, BANDWIDTH)
    assert float16.host_s < float16.seconds < float16.card_s + float16.host_s


@pytest.mark.parametrize(
    ("change", "slower"),
    [
        ({"n_embd": 756}, 1.5),  # heads of 63 channels
        ({"activation_checkpointing": True}, 1.15),
        ({"optimizer": "muon"}, 1.01),
        ({"dropout": 0.1}, 1.01),
        ({"n_layer": 24}, 1.5),
    ],
)
def test_what_takes_more_time(change: dict[str, Any], slower: float) -> None:
    usual = work(12, 12, 768, 64)
    other = replace(usual, config=replace(usual.config, **change))
    assert is_misaligned(other) == ("n_embd" in change)
    seconds = [update_time(one, PEAK, BANDWIDTH).seconds for one in (usual, other)]
    assert seconds[1] > slower * seconds[0]


ODD: list[tuple[TrainingWorkload, float]] = [  # drawn at random: milliseconds of an update
    (
        replace(
            work(6, 20, 480, 48, block_size=512, arch="modern", dropout=0.1), dtype="float16", graph=False
        ),
        33.4,
    ),
    (
        replace(work(2, 3, 288, 32, block_size=4096), kernels=False, graph=False),
        129.2,
    ),
    (
        replace(
            work(24, 7, 350, 96, block_size=1000, dropout=0.2, activation_checkpointing=True,
                 tie_embeddings=False),
            kernels=False, graph=False, vocab_size=16_000,
        ),
        446.7,
    ),
    (
        replace(
            work(24, 2, 256, 48, block_size=256, arch="modern", dropout=0.2, optimizer="muon"),
            graph=False, vocab_size=64,
        ),
        67.1,
    ),
]  # fmt: skip


# By seed of bench/plan.py, vocabulary up to 65,536: five processes side by side, one timed at a time.
DRAWN_MS = {
    191119: 147.9, 191120: 52.9, 191121: 18.7, 191122: 30.1, 191123: 72.0, 191124: 31.8, 191125: 944.6,
    191126: 35.8, 191127: 82.1, 191128: 24.9, 191129: 5.1, 191130: 28.2, 191131: 2.5, 191132: 7.0,
    191133: 115.1, 191134: 26.0, 191135: 136.7, 191136: 19.3, 191137: 53.4, 191138: 27.7, 191139: 40.4,
    191140: 44.0, 191141: 128.2, 191142: 65.1, 271119: 83.2, 271121: 98.7, 271122: 2619.7, 271123: 13.8,
    271124: 98.5, 271125: 3.8, 271126: 76.0, 271127: 664.5, 271128: 188.4, 271129: 11.1, 271130: 165.7,
    271131: 37.8, 271132: 39.7, 201126: 50.0, 201127: 12.3, 201128: 29.0, 201129: 19.7, 201130: 27.2,
    201131: 669.9, 201132: 236.1, 201133: 315.7, 201134: 23.0, 201135: 208.9, 201136: 4.1, 201137: 37.7,
    201138: 28.4, 201139: 19.4, 201140: 284.4, 201141: 178.3, 201142: 115.7, 201143: 8.2, 201144: 4.1,
    201145: 133.5, 201146: 224.8, 201147: 8.9, 201148: 327.3, 201149: 125.6, 201150: 135.2, 201151: 336.8,
    201152: 26.9, 201153: 137.1,
}  # fmt: skip


def drawn_workload(seed: int) -> TrainingWorkload:
    """As it ran: padded, without a graph of what cannot be captured, with cuDNN's attention on Hopper."""
    one = draw_card_workload(seed)
    config = one.config
    attention = choose_attention(config, DeviceTraits("cuda", (9, 0)), one.dtype, 0.0)
    assert attention is not None
    return replace(
        one,
        vocab_size=model_vocab_size(min(one.vocab_size, 2**16), None),
        graph=one.graph and not (config.activation_checkpointing and config.dropout > 0),
        config=replace(config, fp8=config.fp8 and one.micro_batch_tokens >= MIN_FLOAT8_TOKENS),
        attention=one.attention if one.attention == "manual" else str(attention.value),
    )


def drawn_peak(one: TrainingWorkload) -> float:
    return PEAK / 2 if one.dtype == "float32" else PEAK  # TF32


@pytest.mark.parametrize(("one", "ms"), ODD)
def test_odd_shapes_are_about_right(one: TrainingWorkload, ms: float) -> None:
    assert 1000 * update_time(one, PEAK, BANDWIDTH).seconds == pytest.approx(ms, rel=0.15)


def test_drawn_shapes_are_about_right() -> None:
    errors = {}
    for seed, ms in DRAWN_MS.items():
        one = drawn_workload(seed)
        errors[seed] = math.log(1000 * update_time(one, drawn_peak(one), BANDWIDTH).seconds / ms)
    assert len(errors) == 65
    assert math.sqrt(fmean(error**2 for error in errors.values())) < 0.19
    assert sum(abs(error) < 0.2 for error in errors.values()) >= 53
    assert max(abs(error) for error in errors.values()) < 0.6


def test_the_band_holds_drawn_shapes() -> None:
    """62 of 69 when groups of three are left out of the fit; here none is."""
    inside, widths = [], []
    for seed, ms in DRAWN_MS.items():
        one = drawn_workload(seed)
        flops_per_token = model_flops_per_token(one.config, one.vocab_size)
        expected = expected_mfu_range(find_card("H200"), drawn_peak(one), one, flops_per_token)
        update_flops = flops_per_token * one.micro_batch_tokens * one.micro_steps
        inside.append(expected.low <= 100 * update_flops / (ms / 1000 * drawn_peak(one)) <= expected.high)
        widths.append(math.log(expected.high / expected.low) / 2)
    assert 0.85 * 65 <= sum(inside) < 65
    assert median(widths) < 0.46
    assert quantiles(widths)[0] < 0.3
