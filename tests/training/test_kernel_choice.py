"""What only the device can answer about what makes a run fast; the rules are in estimate/decide.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate.batching import BatchPlan
from glassgpt.estimate.decide import choose_compile, choose_kernels
from glassgpt.model import float8
from glassgpt.training.device import ExecutionConfig, device_traits
from glassgpt.training.kernel_choice import SpeedupInputs, check_float8, choose_attention, choose_speedups
from glassgpt.training.loop import mark_kernels_built

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_a_card_is_asked_what_it_can_build(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    def compiling() -> str:
        return choose_compile(TrainConfig(), device_traits(CUDA), 1e3, kernels=False).reason

    card(6, 1)
    assert compiling() == "the card is too old for triton"
    card(9, 0)
    assert choose_kernels(TrainConfig(), device_traits(CUDA)).value == "triton"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compiling() == "no C compiler was found"
    assert choose_kernels(TrainConfig(), device_traits(CUDA)).value == "plain"


def test_attention_is_tried_where_it_is_asked_for() -> None:
    def chosen(dtype: str = "float32", **settings: Any) -> Any:
        return choose_attention(TrainConfig(**settings), CPU, dtype, 1e6).value

    with pytest.raises(
        UserError, match=r"--attention=cudnn cannot do heads of 64 channels in float32 on cpu"
    ):
        chosen(attention="cudnn")
    with pytest.raises(
        UserError, match=r"--attention=cudnn cannot do heads of 64 channels in bfloat16 on cpu"
    ):
        chosen("bfloat16", attention="cudnn")
    assert chosen() == "sdpa"
    assert chosen(attention="manual") == "manual"


def test_one_slow_round_does_not_decide_about_attention(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    """In ms. `efficient` is out of the question here."""
    rounds = {"flash": [2.0, 2.0, 2.0], "cudnn": [3.0, 1.5, 1.5]}
    left = {how: list(times) for how, times in rounds.items()}

    def timed(qkv: torch.Tensor, dropout: float, how: str) -> float:
        if how not in left:
            raise RuntimeError("no kernel for this shape")
        return left[how].pop(0) / 1000

    card(9, 0)
    monkeypatch.setattr("glassgpt.training.kernel_choice._attention_time", timed)
    monkeypatch.setattr(torch, "randn", lambda shape, **settings: torch.empty(0))
    choice = choose_attention(TrainConfig(), CUDA, "bfloat16", 1e6)
    assert choice.value == "cudnn"
    assert choice.reason == "measured forward and backward: flash 2.00 ms, cudnn 1.50 ms"
    assert not any(left.values())


def test_8_bit_floats_are_refused_where_they_cannot_be(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    def problems(device: torch.device, **settings: Any) -> str:
        config = TrainConfig(fp8=True, **settings)
        own = choose_kernels(config, device_traits(device)).value == "triton"
        with pytest.raises(UserError) as raised:
            check_float8(config, device, "bfloat16", own, BatchPlan(4, 1, 4, 4 * config.block_size))
        return str(raised.value)

    assert "needs a card with 8-bit floats" in problems(CPU)
    card(9, 0)
    assert "needs our own kernels" in problems(CUDA, compile="on")
    monkeypatch.setattr(float8, "is_float8_kernel_correct", lambda device: False)
    assert "its kernel computes wrongly" in problems(CUDA, max_iters=1)


def test_a_head_that_does_not_fit_8_bits_is_told(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    """GPT-2's own vocabulary is no multiple of 16, which finetuning it in 8 bits must live with."""
    card(9, 0)
    monkeypatch.setattr(float8, "is_float8_kernel_correct", lambda device: True)

    def reason(vocab_size: int) -> str:
        load = SpeedupInputs(BatchPlan(4, 1, 4, 4096), vocab_size, flops_per_token=10**6, data_bytes=10**6)
        config = TrainConfig(fp8=True, max_iters=10)
        _, choices = choose_speedups(config, CUDA, "bfloat16", load)
        return next(choice.reason for choice in choices if choice.name == "fp8")

    assert reason(50304) == "asked for; evaluation stays exact"
    assert reason(50257).endswith("the head in bfloat16, since its 50257 tokens are no multiple of 16")


def test_on_a_cpu_only_what_there_is_to_choose_is_told() -> None:
    load = SpeedupInputs(
        BatchPlan(4, 1, 4, 4096), 65, flops_per_token=10**6, data_bytes=10**6, peak_flops_per_s=1e11
    )
    placement, choices = choose_speedups(TrainConfig(max_iters=10), CPU, "float32", load)
    assert [choice.name for choice in choices] == ["compile", "attention"]
    decided = (placement.kernels, placement.graph, placement.data_on_card, placement.compile)
    assert decided == (False, False, False, False)


def test_kernels_that_were_built_before_are_taken_for_shorter_runs(
    card: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card(9, 0)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    config, plan = TrainConfig(max_iters=50, graph="off"), BatchPlan(12, 1, 12, 12 * 1024)
    load = SpeedupInputs(plan, 50304, flops_per_token=10**9, data_bytes=10**6)
    assert not choose_speedups(config, CUDA, "bfloat16", load)[0].kernels
    job = SimpleNamespace(
        config=config,
        placement=ExecutionConfig(CUDA, "bfloat16", kernels=True),
        plan=plan,
        learner=SimpleNamespace(setbacks={"kernels": "no compiler"}),
        equipment=SimpleNamespace(shape=SimpleNamespace(vocab_size=50304)),
    )
    mark_kernels_built(job)  # type: ignore[arg-type]
    assert not choose_speedups(config, CUDA, "bfloat16", load)[0].kernels  # building them failed
    job.learner.setbacks.clear()
    mark_kernels_built(job)  # type: ignore[arg-type]
    assert choose_speedups(config, CUDA, "bfloat16", load)[0].kernels
    assert not choose_speedups(config, CUDA, "float16", load)[0].kernels
