"""The memory model against what PyTorch's allocator counted, and its own sense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.account.memory import GIB, Work, activation_bytes, largest_batch, needed
from glassgpt.config import TrainConfig

FAST = {"arch": "modern", "optimizer": "muon", "tie_embeddings": False, "n_head": 6}

# Peaks of torch.cuda.max_memory_allocated in runs on an H200 with torch 2.11, in GiB.
MEASURED: list[tuple[dict[str, Any], dict[str, Any], float]] = [
    ({}, {"batch_size": 64, "data_bytes": 28_000_000}, 21.08),
    ({"fp8": True}, {"batch_size": 64}, 19.3),
    (FAST, {"batch_size": 32, "data_bytes": 28_000_000}, 13.1),
    (FAST, {"batch_size": 64, "data_bytes": 28_000_000}, 23.6),
]


def work(settings: dict[str, Any] | None = None, **more: Any) -> Work:
    return Work(**{"config": TrainConfig(**(settings or {})), "vocab_size": 50304, "batch_size": 8, **more})


@pytest.mark.parametrize(("settings", "more", "gib"), MEASURED)
def test_it_is_what_was_measured(settings: dict[str, Any], more: dict[str, Any], gib: float) -> None:
    found = needed(work(settings, **more)).allocated / GIB
    assert found == pytest.approx(gib, rel=0.05)
    assert found > 0.97 * gib


def test_the_parts_at_the_peak_add_up() -> None:
    memory = needed(work())
    assert memory.allocated == sum(memory.parts.values())
    assert memory.total == memory.allocated + memory.context
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
    base = needed(one).allocated
    # Logits come in even pieces, which may be smaller where there are more: all else grows with the batch.
    assert activation_bytes(one) > activation_bytes(replace(one, batch_size=size - 1)) or size == 1
    assert base <= needed(replace(one, micro_steps=2)).allocated
    deeper = replace(one.config, n_layer=settings["n_layer"] + 1)
    assert base < needed(replace(one, config=deeper)).allocated
    assert base <= needed(replace(one, eval_batch_tokens=65_536)).allocated


@given(shapes, st.floats(0.5, 80))
def test_the_largest_batch_fits_and_the_next_does_not(settings: dict[str, Any], gib: float) -> None:
    one, room = work(settings), int(gib * GIB)
    largest = largest_batch(one, room)
    if largest is None:
        assert needed(replace(one, batch_size=1)).total > room
        return
    assert needed(replace(one, batch_size=largest)).total <= room
    assert needed(replace(one, batch_size=largest + 1)).total > room


def test_recomputing_saves_most_of_the_activations() -> None:
    usual, again = work(batch_size=32), work({"activation_checkpointing": True}, batch_size=32)
    saved = needed(usual).allocated - needed(again).allocated
    assert saved > 0.6 * needed(usual).parts["activations"]


def test_who_only_evaluates_needs_no_optimizer() -> None:
    memory = needed(work({"eval_only": True}, eval_batch_tokens=1024))
    assert memory.moment == "evaluation"
    assert "optimizer" not in memory.parts
    assert memory.allocated < 12 * 124_373_760
