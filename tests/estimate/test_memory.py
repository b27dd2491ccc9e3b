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

# Peaks of torch.cuda.max_memory_allocated on an H200 with torch 2.11, in GiB, and whether updates were
# recorded: `python -m bench.plan memory`.
MEASURED = [
    ("small, 8", 1.234, True),
    ("small, 64", 2.632, True),
    ("small, 64, dropout", 2.708, True),
    ("124M, 1", 2.811, True),
    ("124M, 4", 3.882, True),
    ("124M, 16", 7.706, True),
    ("124M, 64", 21.065, False),
    ("124M, 16, accumulating", 7.706, True),
    ("124M, 64 x 256", 7.698, True),
    ("124M, 8 x 2048", 7.718, True),
    ("124M, 16, float32", 12.452, False),
    ("124M, 16, plain", 8.672, True),
    ("124M, 16, compiled", 7.592, False),
    ("124M, 64, compiled", 21.599, False),
    ("124M, 32, again", 3.852, False),
    ("124M, 16, FP8", 7.850, True),
    ("modern, 16, Muon", 8.591, True),
    ("modern, 16, plain", 11.747, True),
    ("modern, 16, compiled", 8.803, False),
    ("350M, 8", 13.097, True),
    ("350M, 8, Muon, again", 6.741, True),
    ("774M, 4", 19.385, True),
    ("1.5B, 1", 29.023, True),
    ("1.5B, 8, again", 29.700, True),
]


def work(settings: dict[str, Any] | None = None, **more: Any) -> TrainingWorkload:
    return TrainingWorkload(
        **{"config": TrainConfig(**(settings or {})), "vocab_size": 50304, "batch_size": 8, **more}
    )


def measured_workload(name: str, graph: bool) -> TrainingWorkload:
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
        graph=graph,
        data_bytes=28_286_178,
        eval_batch_tokens=eval_batch_rows(config, "cuda") * config.block_size,
    )


@pytest.mark.parametrize(("name", "gib", "graph"), MEASURED)
def test_it_is_what_was_measured(name: str, gib: float, graph: bool) -> None:
    found = estimate_memory(measured_workload(name, graph)).allocated_bytes
    assert found / GIB == pytest.approx(gib, rel=0.025)


def test_a_cuda_graph_keeps_its_memory() -> None:
    """124M, 16 of the table above: PyTorch held 9.22 GiB, since evaluation may not use the recording's."""
    at_once = work(batch_size=16, eval_batch_tokens=22 * 1024, data_bytes=28_286_178)
    recorded = replace(at_once, graph=True)
    assert estimate_memory(at_once).graph_bytes == 0
    held = estimate_memory(recorded).total_bytes - estimate_memory(recorded).context_bytes
    assert held / GIB == pytest.approx(9.22, rel=0.08)
    assert estimate_memory(recorded).allocated_bytes == pytest.approx(7.706 * GIB, rel=0.02)


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
