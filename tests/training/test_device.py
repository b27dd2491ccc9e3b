"""Where and how to compute, and that every choice says why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glassgpt.errors import UserError
from glassgpt.training import device as devices
from glassgpt.training.device import (
    ExecutionConfig,
    choose_device,
    choose_dtype,
    set_allocator,
)

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


# --- device ---


def test_auto_takes_what_is_there(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    device, choice = choose_device("auto")
    assert device == CPU
    assert choice.reason.startswith("no GPU found; ")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto")[0] == MPS
    card(8, 0)
    device, choice = choose_device("auto")
    assert device == CUDA
    assert choice.reason.endswith("Card 8.0")


def test_what_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for requested in ("cuda", "cuda:1", "mps"):
        with pytest.raises(UserError, match=f"--device={requested} is not available here; try --device=auto"):
            choose_device(requested)
    card(8, 0, count=2)
    assert choose_device("cuda:1")[0] == torch.device("cuda:1")
    with pytest.raises(UserError, match="--device=cuda:2 does not exist: cuda has 2 here"):
        choose_device("cuda:2")
    for requested in ("cuda:-1", "cuda:x", "cpu:1"):
        with pytest.raises(UserError, match=f"--device={requested}"):
            choose_device(requested)


# --- dtype ---


def test_the_card_decides_the_dtype(card: Any) -> None:
    for capability, dtype, why in (
        ((6, 1), "float32", "tensor cores"),
        ((7, 5), "float16", "7.5 has no bfloat16"),
        ((8, 0), "bfloat16", "8.0"),
        ((8, 9), "bfloat16", "8.9"),
        ((12, 0), "bfloat16", "12.0"),
    ):
        card(*capability)
        choice = choose_dtype("auto", CUDA)
        assert (choice.value, why in choice.reason) == (dtype, True), capability


def test_asking_for_emulated_bfloat16_is_allowed_and_warned_of(card: Any) -> None:
    card(7, 5)
    choice = choose_dtype("bfloat16", CUDA)
    assert choice.value == "bfloat16"
    assert "emulates" in choice.reason
    card(9, 0)
    assert choose_dtype("bfloat16", CUDA).reason == "asked for"


@pytest.mark.parametrize(
    ("requested", "dtype"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "bfloat16")],
)
def test_dtypes_on_a_cpu(requested: str, dtype: str) -> None:
    choice = choose_dtype(requested, CPU)
    assert choice.value == dtype
    if requested == "float16":
        assert choice.reason.startswith("float16 was asked")


@pytest.mark.parametrize(("fast", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_a_cpu_computes_in_bfloat16_where_that_is_fast(
    monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: fast)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert choose_dtype("auto", CPU, 64).value == dtype
    assert choose_dtype("auto", CPU, 63).value == choose_dtype("auto", CPU).value == "float32"


def test_autocast_only_where_there_is_something_to_cast() -> None:
    a = torch.ones(2, 2)
    with ExecutionConfig(CPU, "float32", False, "sdpa").autocast():
        assert (a @ a).dtype == torch.float32
    with ExecutionConfig(CPU, "bfloat16", False, "sdpa").autocast():
        assert (a @ a).dtype == torch.bfloat16


# --- how memory is given out ---


def test_what_the_user_says_about_the_allocator_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[str] = []
    monkeypatch.setattr(devices, "_apply_allocator_settings", applied.append)
    cuda = torch.device("cuda")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        (choice,) = set_allocator(cuda, {name: "max_split_size_mb:64"})
        assert (choice.value, choice.reason) == ("max_split_size_mb:64", f"as {name} says")
    monkeypatch.setattr("sys.platform", "win32")
    assert set_allocator(cuda, {})[0].value == "default"
    assert applied == []
    monkeypatch.setattr("sys.platform", "linux")
    assert set_allocator(cuda, {})[0].value == "expandable_segments:True"
    assert applied == ["expandable_segments:True"]


def test_on_a_cpu_the_heap_keeps_what_an_update_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    libc = SimpleNamespace(mallopt=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr("ctypes.CDLL", lambda name: libc)
    monkeypatch.setattr("sys.platform", "linux")
    assert set_allocator(CPU, {}) == []
    assert calls == [(-3, 2**25), (-1, 2**31 - 1)]
    assert set_allocator(CPU, {"MALLOC_TRIM_THRESHOLD_": "131072"}) == []  # the user's choice
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())  # musl
    assert set_allocator(CPU, {}) == []
    assert len(calls) == 2
