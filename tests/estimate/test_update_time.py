"""The time of an update, compared with what an H200 took."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glassgpt.config import TrainConfig
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
    assert float16.seconds == float16.card_s + float16.host_s


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


@pytest.mark.parametrize(("one", "ms"), ODD)
def test_odd_shapes_are_about_right(one: TrainingWorkload, ms: float) -> None:
    assert 1000 * update_time(one, PEAK, BANDWIDTH).seconds == pytest.approx(ms, rel=0.3)
