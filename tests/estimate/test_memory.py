"""The memory model against what PyTorch's allocator counted, and its own sense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.plan import SHAPES
from glassgpt.config import TrainConfig
from glassgpt.estimate import memory
from glassgpt.estimate.activations import activation_bytes
from glassgpt.estimate.batching import eval_batch_rows
from glassgpt.estimate.memory import GIB, estimate_memory, largest_fitting_batch
from glassgpt.estimate.training_workload import TrainingWorkload

# Peaks of torch.cuda.max_memory_allocated on an H200 with torch 2.11, in GiB, without a CUDA graph:
# `python -m bench.plan memory`.
MEASURED = [
    ("124M, 16, float32", 12.453),
    ("124M, 16, compiled", 7.594),
    ("124M, 64, compiled", 21.601),
    ("124M, 32, again", 3.853),
    ("modern, 16, compiled", 8.805),
]
# Of updates with Triton kernels in a CUDA graph: layers, heads, channels, context, sequences, FP8, GiB.
MEASURED_IN_A_GRAPH: list[tuple[int, int, int, int, int, bool, float]] = [
    (6, 6, 384, 256, 8, True, 1.105),
    (6, 6, 384, 256, 64, False, 2.468),
    (6, 6, 384, 256, 64, True, 3.13),
    (12, 12, 768, 256, 64, False, 7.185),
    (12, 12, 768, 256, 64, True, 7.328),
    (12, 12, 768, 1024, 1, False, 2.216),
    (12, 12, 768, 1024, 1, True, 2.335),
    (12, 12, 768, 1024, 4, False, 3.367),
    (12, 12, 768, 1024, 4, True, 3.642),
    (12, 12, 768, 1024, 16, False, 7.191),
    (12, 12, 768, 1024, 16, True, 7.334),
    (12, 12, 768, 1024, 64, False, 21.045),
    (12, 12, 768, 1024, 64, True, 19.261),
    (12, 12, 768, 4096, 4, False, 7.218),
    (12, 12, 768, 4096, 4, True, 7.361),
    (24, 16, 1024, 1024, 1, False, 5.737),
    (24, 16, 1024, 1024, 1, True, 5.629),
    (24, 16, 1024, 1024, 4, False, 8.303),
    (24, 16, 1024, 1024, 4, True, 8.131),
    (24, 16, 1024, 1024, 16, False, 17.783),
    (24, 16, 1024, 1024, 16, True, 16.603),
    (24, 16, 1024, 4096, 2, False, 11.759),
    (24, 16, 1024, 4096, 2, True, 11.502),
    (36, 20, 1280, 1024, 1, False, 11.928),
    (36, 20, 1280, 1024, 1, True, 11.843),
    (36, 20, 1280, 1024, 8, False, 22.51),
    (36, 20, 1280, 1024, 8, True, 21.103),
    (48, 25, 1600, 1024, 1, False, 23.573),
    (48, 25, 1600, 1024, 1, True, 23.575),
    (48, 25, 1600, 1024, 4, False, 30.49),
    (48, 25, 1600, 1024, 4, True, 28.338),
]


def work(settings: dict[str, Any] | None = None, **more: Any) -> TrainingWorkload:
    return TrainingWorkload(
        **{"config": TrainConfig(**(settings or {})), "vocab_size": 50304, "batch_size": 8, **more}
    )


def measured_workload(name: str) -> TrainingWorkload:
    config = TrainConfig(**SHAPES[name])
    assert config.batch_size is not None
    compiled = config.compile == "on"
    return TrainingWorkload(
        config=config,
        vocab_size=50304,
        batch_size=config.batch_size,
        micro_steps=config.gradient_accumulation_steps or 1,
        dtype="float32" if config.dtype == "float32" else "bfloat16",
        kernels=not compiled and config.kernels != "plain",
        compiled=compiled,
        data_bytes=28_286_178,
        eval_batch_tokens=eval_batch_rows(config, "cuda") * config.block_size,
    )


def workload_in_a_graph(
    layers: int, heads: int, channels: int, context: int, sequences: int, fp8: bool
) -> TrainingWorkload:
    config = TrainConfig(n_layer=layers, n_head=heads, n_embd=channels, block_size=context, fp8=fp8)
    return TrainingWorkload(
        config=config, vocab_size=50304, batch_size=sequences, graph=True, data_bytes=6_000_000
    )


def test_it_is_what_was_measured() -> None:
    off = {
        name: estimate_memory(measured_workload(name)).allocated_bytes / GIB / gib - 1
        for name, gib in MEASURED
    }
    off |= {
        str(row): estimate_memory(workload_in_a_graph(*row[:6])).allocated_bytes / GIB / row[6] - 1
        for row in MEASURED_IN_A_GRAPH
    }
    assert max(abs(one) for one in off.values()) < 0.025, off
    assert sum(abs(one) < 0.01 for one in off.values()) >= 25, off


def test_a_cuda_graph_keeps_its_memory() -> None:
    """Evaluation may not use the graph's: both add up."""
    at_once = work(batch_size=16, eval_batch_tokens=22 * 1024)
    graphed = replace(at_once, graph=True)
    assert estimate_memory(at_once).graph_bytes == 0
    assert estimate_memory(graphed).allocated_bytes == estimate_memory(at_once).allocated_bytes
    evaluating = estimate_memory(replace(at_once, config=replace(at_once.config, eval_only=True)))
    beyond_weights = evaluating.allocated_bytes - 4 * 124_373_760 - evaluating.parts["working space"]
    assert estimate_memory(graphed).graph_bytes == pytest.approx(beyond_weights, rel=0.15)


def test_the_parts_at_the_peak_add_up() -> None:
    memory = estimate_memory(work())
    assert memory.allocated_bytes == sum(memory.parts.values())
    assert memory.total_bytes == memory.allocated_bytes + memory.context_bytes
    assert memory.graph_bytes == 0
    assert memory.parts["weights"] == 4 * 124_373_760  # GPT-2 with a vocabulary of 50,304 and positions
    assert memory.parts["optimizer"] == 8 * 124_373_760


shapes = st.fixed_dictionaries(
    {
        "n_layer": st.integers(1, 48),
        "n_head": st.just(4),
        "n_embd": st.sampled_from([64, 384, 768, 1600]),
        "block_size": st.sampled_from([64, 256, 1024]),
        "arch": st.sampled_from(["gpt2", "modern"]),
        "optimizer": st.sampled_from(["adamw", "muon"]),
        "activation_checkpointing": st.booleans(),
        "dropout": st.sampled_from([0.0, 0.2]),
    }
)


@given(shapes, st.integers(1, 64), st.sampled_from([65, 50304]), st.booleans())
def test_more_of_anything_needs_no_less(settings: dict[str, Any], size: int, V: int, kernels: bool) -> None:
    one = work(settings, batch_size=size, vocab_size=V, kernels=kernels)
    base = estimate_memory(one).allocated_bytes
    # Logits come in even pieces, which may be smaller where there are more: all else grows with the batch.
    assert activation_bytes(one) > activation_bytes(replace(one, batch_size=size - 1)) or size == 1
    assert base <= estimate_memory(replace(one, micro_steps=2)).allocated_bytes
    deeper = replace(one.config, n_layer=settings["n_layer"] + 1)
    assert base < estimate_memory(replace(one, config=deeper)).allocated_bytes
    assert base <= estimate_memory(replace(one, eval_batch_tokens=65_536)).allocated_bytes


@given(shapes, st.floats(0.5, 80))
def test_the_largest_batch_fits_and_the_next_does_not(settings: dict[str, Any], gib: float) -> None:
    one, room = work(settings), int(gib * GIB)
    largest = largest_fitting_batch(one, room)
    if largest is None:
        assert estimate_memory(replace(one, batch_size=1)).total_bytes > room
        return
    assert estimate_memory(replace(one, batch_size=largest)).total_bytes <= room
    assert estimate_memory(replace(one, batch_size=largest + 1)).total_bytes > room


def test_the_largest_batch_is_found_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of cards ask for it thousands of times."""
    counted: list[int] = []

    def counting(one: TrainingWorkload) -> memory.MemoryEstimate:
        counted.append(one.batch_size)
        return estimate_memory(one)

    monkeypatch.setattr(memory, "estimate_memory", counting)
    for gib in (6, 24, 80, 141):
        counted.clear()
        largest_fitting_batch(work(), gib * GIB)
        assert len(counted) <= 10, (gib, counted)


def test_activation_checkpointing_saves_most_activations() -> None:
    usual, again = work(batch_size=32), work({"activation_checkpointing": True}, batch_size=32)
    saved = estimate_memory(usual).allocated_bytes - estimate_memory(again).allocated_bytes
    assert saved > 0.6 * estimate_memory(usual).parts["activations"]


def test_eval_only_needs_no_optimizer() -> None:
    memory = estimate_memory(work({"eval_only": True}, eval_batch_tokens=1024))
    assert memory.peak_phase == "evaluation"
    assert "optimizer" not in memory.parts
    assert memory.allocated_bytes < 12 * 124_373_760
