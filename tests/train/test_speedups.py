"""What makes a run fast, and that each choice is worth its price."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import pytest
import torch

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.model import float8
from glassgpt.train.batching import BatchPlan
from glassgpt.train.speedups import (
    check_float8,
    choose_attention,
    choose_compile,
    choose_data_place,
    choose_graph,
    choose_kernels,
    choose_speedups,
)

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


# --- compile ---


def compiling(device: torch.device = CPU, step_s: float | None = 1.0, **settings: Any) -> tuple[Any, str]:
    choice = choose_compile(TrainConfig(**settings), device, step_s, kernels=False)
    assert choice.name == "compile"
    return choice.value, choice.reason


def test_what_is_asked_for_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compiling(compile="on") == ("on", "asked for")
    assert compiling(compile="off") == ("off", "asked for")


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compiling() == ("off", "no C++ compiler was found")
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "my-compiler" else None)
    assert compiling(n_layer=2)[0] == "on"
    card(6, 1)
    assert compiling(CUDA) == ("off", "the card is too old for triton")
    card(8, 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert compiling(CUDA) == ("off", "triton is not installed")
    assert compiling(MPS)[0] == "off"


def test_compiling_has_to_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    verdict, reason = compiling(n_layer=2, max_iters=1_000_000, step_s=0.1)
    assert verdict == "on"
    assert "at about 100 ms: breaks even near update" in reason
    break_even = int(reason.rpartition("update ")[2].replace(",", ""))
    # The figure in the sentence is the very point where the verdict turns.
    assert compiling(n_layer=2, max_iters=break_even - 1, step_s=0.1)[0] == "off"
    assert compiling(n_layer=2, max_iters=break_even + 1, step_s=0.1)[0] == "on"
    assert compiling(step_s=None)[0] == "off"
    assert "no estimate" in compiling(step_s=None)[1]
    assert compiling(eval_only=True) == ("off", "one evaluation does not pay for it")


# --- the rest ---


def test_attention_is_fused_unless_asked_or_slow() -> None:
    def chosen(dtype: str = "float32", **settings: Any) -> Any:
        return choose_attention(TrainConfig(**settings), CPU, dtype, 1e6).value

    with pytest.raises(
        UserError, match=r"--attention=cudnn cannot do heads of 64 channels in float32 on cpu"
    ):
        chosen(attention="cudnn")
    assert chosen() == "sdpa"
    assert chosen(attention="manual") == "manual"
    assert chosen("bfloat16", block_size=256) == "manual"
    assert chosen("bfloat16", block_size=257) == "sdpa"


def test_our_kernels_are_for_cuda() -> None:
    assert choose_kernels(TrainConfig(), CPU).value == "plain"
    with pytest.raises(UserError, match="--kernels=triton is not possible here: our own are for CUDA cards"):
        choose_kernels(TrainConfig(kernels="triton"), CPU)


def test_our_kernels_must_be_worth_building_and_can_be_built(
    monkeypatch: pytest.MonkeyPatch, card: Any
) -> None:
    card(9, 0)

    def chosen(updates: int, **settings: Any) -> Any:
        return choose_kernels(TrainConfig(n_layer=6, max_iters=updates, **settings), CUDA).value

    assert chosen(400) == "plain"
    assert chosen(600) == chosen(1, kernels="triton") == "triton"
    assert chosen(600, kernels="plain") == chosen(600, compile="on") == chosen(600, eval_only=True) == "plain"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert chosen(600) == "plain"  # Triton needs a C compiler


def test_kernels_of_our_own_make_compiling_needless() -> None:
    assert choose_compile(TrainConfig(), CUDA, 1.0, kernels=True).value == "off"
    assert choose_compile(TrainConfig(compile="on"), CUDA, 1.0, kernels=True).value == "on"


def test_a_graph_where_asking_takes_longer_than_computing() -> None:
    def chosen(arithmetic_s: float, dtype: str = "bfloat16", compiled: bool = False, **settings: Any) -> Any:
        return choose_graph(TrainConfig(**settings), CUDA, dtype, compiled, arithmetic_s, 0.014).value

    assert chosen(0.004) == "on"
    assert chosen(0.2) == "off"
    assert chosen(0.004, activation_checkpointing=True) == "on"
    assert chosen(0.004, activation_checkpointing=True, dropout=0.1) == "off"
    assert chosen(0.2, graph="on") == "on"
    assert chosen(0.004, graph="off") == chosen(0.004, "float16") == chosen(0.004, compiled=True) == "off"
    assert choose_graph(TrainConfig(), CPU, "float32", False, 0.004, 0.014).value == "off"
    with pytest.raises(UserError, match="--graph=on is for CUDA cards"):
        choose_graph(TrainConfig(graph="on"), CPU, "float32", False, 0.004, 0.014)


def test_8_bit_floats_need_a_card_a_dtype_and_round_sizes(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    def problems(device: torch.device, dtype: str, **settings: Any) -> str:
        config = TrainConfig(fp8=True, **settings)
        own = device.type == "cuda" and choose_kernels(config, device).value == "triton"
        with pytest.raises(UserError) as raised:
            check_float8(config, device, dtype, own, BatchPlan(4, 1, 4, 4 * config.block_size))
        return str(raised.value)

    on_cpu = problems(CPU, "float32", n_embd=24, n_head=2)
    assert "needs a card with 8-bit floats" in on_cpu
    assert "goes with --dtype=bfloat16, not float32" in on_cpu
    assert "multiples of 16" in on_cpu
    card(8, 6)
    assert "needs a card with 8-bit floats" in problems(CUDA, "bfloat16")
    card(9, 0)
    assert "needs our own kernels" in problems(CUDA, "bfloat16", compile="on")
    monkeypatch.setattr(float8, "is_sound", lambda device: False)
    assert "its kernel computes wrongly" in problems(CUDA, "bfloat16", max_iters=1)


def test_small_data_lies_on_the_card() -> None:
    assert choose_data_place("auto", 2_000_000, CUDA, 8 * 2**30).value == "on the card"
    assert choose_data_place("auto", 18_000_000_000, CUDA, 8 * 2**30).value == "in memory"
    assert choose_data_place("auto", 2_000_000, CPU, None).value == "in memory"


def test_where_data_lies_can_be_said() -> None:
    assert choose_data_place("memory", 2_000_000, CUDA, 8 * 2**30).value == "in memory"
    assert choose_data_place("card", 4_000_000_000, CUDA, 8 * 2**30).value == "on the card"
    assert choose_data_place("memory", 2_000_000, CPU, None).value == "in memory"
    with pytest.raises(UserError, match=r"18.0 GB do not fit into the 8.6 GB that are free"):
        choose_data_place("card", 18_000_000_000, CUDA, 8 * 2**30)
    with pytest.raises(UserError, match="--data_place=card is for CUDA cards"):
        choose_data_place("card", 2_000_000, CPU, None)


def test_on_a_cpu_only_what_there_is_to_choose_is_told() -> None:
    placement, choices = choose_speedups(
        TrainConfig(max_iters=10), CPU, "float32", BatchPlan(4, 1, 4, 4096), 10**6, 1e11, 10**6, None
    )
    assert [choice.name for choice in choices] == ["compile", "attention"]
    decided = (placement.kernels, placement.graph, placement.data_on_card, placement.compile)
    assert decided == (False, False, False, False)
