"""The compute plan: what only the device can answer. The rules are in estimate/decide.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import MakeConfig, choices, records, resume

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate.batching import BatchPlan
from glassgpt.estimate.decide import choose_compile, choose_kernels
from glassgpt.model import float8
from glassgpt.training.compute_plan import (
    SpeedupInputs,
    check_float8,
    choose_or_measure_attention,
    choose_speedups,
    mark_kernels_built,
)
from glassgpt.training.device import ExecutionConfig, device_traits
from glassgpt.training.session import train

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
        return choose_or_measure_attention(TrainConfig(**settings), CPU, dtype, 1e6).value

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
    left = {kernel: list(times) for kernel, times in rounds.items()}

    def timed(qkv: torch.Tensor, dropout: float, kernel: str) -> float:
        if kernel not in left:
            raise RuntimeError("no kernel for this shape")
        return left[kernel].pop(0) / 1000

    card(9, 0)
    monkeypatch.setattr("glassgpt.training.compute_plan._attention_time", timed)
    monkeypatch.setattr(torch, "randn", lambda shape, **settings: torch.empty(0))
    choice = choose_or_measure_attention(TrainConfig(), CUDA, "bfloat16", 1e6)
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
    assert "needs the Triton kernels" in problems(CUDA, compile="on")
    monkeypatch.setattr(float8, "is_float8_kernel_correct", lambda device: False)
    assert "its kernel computes wrongly" in problems(CUDA, max_iters=1)


def test_a_head_that_does_not_fit_8_bits_is_told(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    """GPT-2's own vocabulary is no multiple of 16, which finetuning it in 8 bits must live with."""
    card(9, 0)
    monkeypatch.setattr(float8, "is_float8_kernel_correct", lambda device: True)

    def reason(vocab_size: int) -> str:
        inputs = SpeedupInputs(BatchPlan(4, 1, 4, 4096), vocab_size, flops_per_token=10**6, data_bytes=10**6)
        config = TrainConfig(fp8=True, max_iters=10)
        _, decisions = choose_speedups(config, CUDA, "bfloat16", inputs)
        return next(choice.reason for choice in decisions if choice.name == "fp8")

    assert reason(50304) == "asked for; evaluation stays exact"
    assert reason(50257).endswith("the head in bfloat16, since its 50257 tokens are not a multiple of 16")


def test_on_a_cpu_only_what_there_is_to_choose_is_told() -> None:
    inputs = SpeedupInputs(
        BatchPlan(4, 1, 4, 4096), 65, flops_per_token=10**6, data_bytes=10**6, peak_flops_per_s=1e11
    )
    execution, decisions = choose_speedups(TrainConfig(max_iters=10), CPU, "float32", inputs)
    assert [choice.name for choice in decisions] == ["compile", "attention"]
    decided = (execution.kernels, execution.graph, execution.data_on_card, execution.compile)
    assert decided == (False, False, False, False)


def test_kernels_that_were_built_before_are_taken_for_shorter_runs(
    card: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    card(9, 0)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    config, plan = TrainConfig(max_iters=50, graph="off"), BatchPlan(12, 1, 12, 12 * 1024)
    inputs = SpeedupInputs(plan, 50304, flops_per_token=10**9, data_bytes=10**6)
    assert not choose_speedups(config, CUDA, "bfloat16", inputs)[0].kernels
    compute = SimpleNamespace(
        execution=ExecutionConfig(CUDA, "bfloat16", kernels=True),
        batch_plan=plan,
        model_config=SimpleNamespace(vocab_size=50304),
    )
    mark_kernels_built(config, compute, {"kernels": "no compiler"})  # type: ignore[arg-type]
    assert not choose_speedups(config, CUDA, "bfloat16", inputs)[0].kernels  # building them failed
    mark_kernels_built(config, compute, {})  # type: ignore[arg-type]
    assert choose_speedups(config, CUDA, "bfloat16", inputs)[0].kernels
    assert not choose_speedups(config, CUDA, "float16", inputs)[0].kernels


# --- threads ---


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As PyTorch decides by itself on two cores."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_a_busy_core_takes_a_thread_and_a_resume_keeps_the_count(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    def threads_of(name: str) -> int:
        return int(records(tiny(name).out_dir, "run")[-1]["machine"]["cpu"]["torch_threads"])

    for name, busy, threads in (("quiet", 0.2, 2), ("busy", 1.2, 1), ("full", 20.0, 1)):
        monkeypatch.setattr("glassgpt.training.compute_plan.measure_busy_cores", lambda busy=busy: busy)
        train(tiny(name, max_iters=1))
        assert threads_of(name) == threads
        assert ("threads" in choices(tiny(name).out_dir)) == (threads == 1)
        assert torch.get_num_threads() == 2  # it was for that run

    resume(tiny("quiet", max_iters=2))  # while 20 cores' worth of work is waiting
    assert threads_of("quiet") == 2
    value, reason = choices(tiny("quiet").out_dir)["threads"]
    assert value == 2
    assert "--threads=1" in reason
    resume(tiny("quiet", max_iters=3, threads=1))
    assert threads_of("quiet") == 1

    monkeypatch.setattr("glassgpt.training.compute_plan.measure_busy_cores", lambda: 0.0)
    resume(tiny("busy", max_iters=2))
    assert threads_of("busy") == 1
