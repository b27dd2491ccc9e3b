"""The memory model against what the model's own code allocates, on shapes drawn at random."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_memory import MEASURED_IN_A_GRAPH, workload_in_a_graph
from traced_memory import trace_memory

from bench.plan import draw_card_workload, random_shapes
from glassgpt.config import TrainConfig
from glassgpt.estimate.batching import eval_batch_rows
from glassgpt.estimate.memory import GIB, estimate_memory
from glassgpt.estimate.training_workload import TrainingWorkload

# cuBLAS's, which a card has besides and no trace can see.
_WORKSPACE_BYTES = 68 * 2**20


def test_random_shapes_need_what_their_code_allocates(subtests: pytest.Subtests) -> None:
    errors = {}
    for seed in range(16):
        work = draw_card_workload(seed)
        peaks = trace_memory(work)
        peaks["evaluation"] -= _WORKSPACE_BYTES // 2 if work.graph else 0
        traced = max(peaks.values()) + _WORKSPACE_BYTES
        errors[seed] = estimate_memory(work).allocated_bytes / traced - 1
        with subtests.test(seed=seed):
            assert abs(errors[seed]) < 0.08, work
    within = sum(abs(error) < 0.05 for error in errors.values())
    assert within >= 15, sorted(errors.items(), key=lambda one: -abs(one[1]))[:8]


def test_random_shapes_on_a_cpu_need_what_their_code_allocates() -> None:
    """Tensors only: what else is resident is measured by `python -m bench.plan shapes`."""
    for shape in random_shapes(seed=5, count=12):
        config = TrainConfig(**shape)
        work = TrainingWorkload(
            config=config,
            vocab_size=64,
            batch_size=shape["batch_size"],
            micro_steps=shape["gradient_accumulation_steps"],
            device_type="cpu",
            dtype="float32" if shape["dtype"] == "float32" else "bfloat16",
            kernels=False,
            eval_batch_tokens=eval_batch_rows(config, "cpu") * config.block_size,
        )
        parts = dict(estimate_memory(work).parts)
        del parts["heap fragmentation"]
        traced = max(trace_memory(work).values())
        assert sum(parts.values()) == pytest.approx(traced, rel=0.05, abs=2**20), work


def test_attention_without_a_fused_kernel_needs_what_its_code_allocates(subtests: pytest.Subtests) -> None:
    for seed in (800002, 800006, 800011, 800023, 800031, 800044):
        work = replace(draw_card_workload(seed), attention="manual")
        peaks = trace_memory(work)
        peaks["evaluation"] -= _WORKSPACE_BYTES // 2 if work.graph else 0
        traced = max(peaks.values()) + _WORKSPACE_BYTES
        with subtests.test(seed=seed):
            assert estimate_memory(work).allocated_bytes == pytest.approx(traced, rel=0.05), work


def test_the_trace_is_what_a_card_measured() -> None:
    """So that the trace can be believed: peaks in updates, on an H200."""
    manual = replace(draw_card_workload(201146), data_bytes=2_000_000)
    total = trace_memory(manual)["micro_steps"] + _WORKSPACE_BYTES + manual.data_bytes
    assert total / GIB == pytest.approx(67.006, rel=0.001)
    assert estimate_memory(manual).allocated_bytes == pytest.approx(total, rel=0.02)
    for row in MEASURED_IN_A_GRAPH[:16]:  # the larger ones take seconds each
        work = workload_in_a_graph(*row[:6])
        traced = trace_memory(work)
        total = max(traced["micro_steps"], traced["step"]) + _WORKSPACE_BYTES + work.data_bytes
        assert total / GIB == pytest.approx(row[6], rel=0.015), row
