"""Where and how to compute, and that every choice says why."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import pytest
import torch

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.train.batching import BatchPlan
from glassgpt.train.device import (
    Placement,
    choose_attention,
    choose_compile,
    choose_device,
    choose_dtype,
    choose_graph,
    choose_kernels,
    estimate_step_s,
    sequences_that_fit,
)

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that there are `count` cards of a compute capability."""

    def pretend(major: int, minor: int, count: int = 1) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Card {major}.{minor}")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")

    return pretend


# --- device ---


def test_auto_takes_what_is_there(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    device, choice = choose_device("auto")
    assert device == CPU
    assert choice.reason.startswith("no GPU was found: ")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto")[0] == MPS
    card(8, 0)
    device, choice = choose_device("auto")
    assert device == CUDA
    assert choice.reason == "a CUDA card is there: Card 8.0"


def test_what_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for asked in ("cuda", "cuda:1", "mps"):
        with pytest.raises(UserError, match=f"--device={asked} is not available here; try --device=auto"):
            choose_device(asked)
    card(8, 0, count=2)
    assert choose_device("cuda:1")[0] == torch.device("cuda:1")
    with pytest.raises(UserError, match="--device=cuda:2 does not exist: cuda has 2 here"):
        choose_device("cuda:2")
    for asked in ("cuda:-1", "cuda:x", "cpu:1"):
        with pytest.raises(UserError, match=f"--device={asked}"):
            choose_device(asked)


# --- dtype ---


@pytest.mark.parametrize(
    ("capability", "dtype", "why"),
    [
        ((6, 1), "float16", "6.1 has no bfloat16: with loss scaling"),
        ((7, 5), "float16", "compute capability 7.5 has no bfloat16: with loss scaling"),
        ((8, 0), "bfloat16", "compute capability 8.0: no loss scaling needed"),
        ((8, 9), "bfloat16", "8.9"),
        ((12, 0), "bfloat16", "12.0"),
    ],
)
def test_the_card_decides_the_dtype(card: Any, capability: tuple[int, int], dtype: str, why: str) -> None:
    card(*capability)
    choice = choose_dtype("auto", CUDA)
    assert choice.value == dtype
    assert why in choice.reason


def test_asking_for_emulated_bfloat16_is_allowed_and_warned_of(card: Any) -> None:
    card(7, 5)
    choice = choose_dtype("bfloat16", CUDA)
    assert choice.value == "bfloat16"
    assert "only emulates it" in choice.reason
    card(9, 0)
    assert choose_dtype("bfloat16", CUDA).reason == "asked for"


@pytest.mark.parametrize(
    ("asked", "dtype"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "bfloat16")],
)
def test_dtypes_on_a_cpu(asked: str, dtype: str) -> None:
    choice = choose_dtype(asked, CPU)
    assert choice.value == dtype
    if asked == "float16":
        assert "float16 was asked for, but CPUs have no fast float16" in choice.reason


@pytest.mark.parametrize(("fast", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_a_cpu_computes_in_bfloat16_where_that_is_fast(
    monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: fast)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert choose_dtype("auto", CPU).value == dtype


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


def test_the_step_estimate_is_arithmetic_or_launches() -> None:
    def estimate(device: torch.device, micro_steps: int, peak: float | None) -> float | None:
        return estimate_step_s(device, BatchPlan(4, micro_steps, 8, 800), 10**6, 12, peak)

    slow, fast = estimate(CPU, 2, 1e9), estimate(CPU, 2, 2e9)
    assert slow is not None
    assert slow == pytest.approx(2 * (fast or 0))
    assert slow > 800 * 1e6 / 1e9  # nobody reaches the peak
    # A card that computes in no time still has to be told what to compute, micro-batch by micro-batch.
    assert estimate(CUDA, 4, 1e18) == pytest.approx(2 * (estimate(CUDA, 2, 1e18) or 0))
    assert estimate(CPU, 2, None) is None


# --- the rest ---


def test_attention_is_fused_unless_asked_or_slow() -> None:
    def chosen(dtype: str = "float32", **settings: Any) -> Any:
        return choose_attention(TrainConfig(**settings), CPU, dtype, 1e6).value

    assert chosen() == "sdpa"
    assert chosen(attention="manual") == "manual"
    assert chosen("bfloat16", block_size=256) == "manual"
    assert chosen("bfloat16", block_size=257) == "sdpa"


def test_our_kernels_are_for_cuda() -> None:
    assert choose_kernels(TrainConfig(), CPU).value == "plain"
    with pytest.raises(UserError, match="--kernels=triton needs a CUDA card"):
        choose_kernels(TrainConfig(kernels="triton"), CPU)


def test_our_kernels_must_be_worth_building(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.model.fused.kernels_work", lambda device: True)

    def chosen(updates: int, **settings: Any) -> Any:
        return choose_kernels(TrainConfig(n_layer=6, max_iters=updates, **settings), CUDA).value

    assert chosen(400) == "plain"
    assert chosen(600) == chosen(1, kernels="triton") == "triton"
    assert chosen(600, kernels="plain") == chosen(600, compile="on") == chosen(600, eval_only=True) == "plain"


def test_kernels_of_our_own_make_compiling_needless() -> None:
    assert choose_compile(TrainConfig(), CUDA, 1.0, kernels=True).value == "off"
    assert choose_compile(TrainConfig(compile="on"), CUDA, 1.0, kernels=True).value == "on"


def test_a_graph_where_asking_takes_longer_than_computing() -> None:
    def chosen(
        arithmetic_s: float | None, dtype: str = "bfloat16", compiled: bool = False, **settings: Any
    ) -> Any:
        return choose_graph(TrainConfig(**settings), CUDA, dtype, compiled, arithmetic_s, 0.014).value

    assert chosen(0.004) == "on"
    assert chosen(0.2) == chosen(None) == "off"
    assert chosen(0.2, graph="on") == "on"
    assert chosen(0.004, graph="off") == chosen(0.004, "float16") == chosen(0.004, compiled=True) == "off"
    assert choose_graph(TrainConfig(), CPU, "float32", False, 0.004, 0.014).value == "off"
    with pytest.raises(UserError, match="--graph=on is for CUDA cards"):
        choose_graph(TrainConfig(graph="on"), CPU, "float32", False, 0.004, 0.014)


def test_memory_bounds_the_micro_batch() -> None:
    config = TrainConfig(n_layer=12, n_embd=768, block_size=1024)
    parameters = 124_000_000
    assert sequences_that_fit(config, 50304, parameters, None) is None

    def fit(gib: float, **changes: Any) -> int | None:
        changed = TrainConfig(n_layer=12, n_embd=768, block_size=1024, **changes)
        return sequences_that_fit(changed, 50304, parameters, int(gib * 2**30))

    assert fit(0.1) == 1  # never none at all: the run will say it better
    few, many = fit(12), fit(80)
    assert few is not None
    assert many is not None
    assert 4 <= few < many <= 128
    assert (fit(12, dtype="float32") or 0) < few < (fit(12, activation_checkpointing=True) or 0)


def test_autocast_only_where_there_is_something_to_cast() -> None:
    a = torch.ones(2, 2)
    with Placement(CPU, "float32", False, "sdpa").autocast():
        assert (a @ a).dtype == torch.float32
    with Placement(CPU, "bfloat16", False, "sdpa").autocast():
        assert (a @ a).dtype == torch.bfloat16
