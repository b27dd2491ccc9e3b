"""Cards: those that torch cannot use, those that others use, clocks under load, dtypes."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glassgpt.doctor import gpu_checks
from glassgpt.doctor.diagnosis import CheckContext
from glassgpt.doctor.gpu_checks import (
    TorchCard,
    card_line,
    check_clocks,
    check_dtypes,
    check_gpus,
    clocks_line,
    dtype_line,
    dtypes_to_measure,
    has_code_for,
    query_under_load,
    without_gpu_line,
)
from glassgpt.record.gpu_state import NO_DRIVER, GpuReading, GpuState

GIB = 2**30
CUDA = torch.device("cuda", 0)

# --- the card itself ---

CARD = TorchCard("NVIDIA H100 80GB HBM3", (9, 0), 79 * GIB, 80 * GIB, "570.86", "12.8", ("sm_80", "sm_90"))
IDLE = GpuState("x", CARD.name, busy=0.0)


def test_a_card_with_all_that_is_known_of_it() -> None:
    line = card_line("gpu", CARD, IDLE)
    assert (line.verdict, line.name) == ("ok", "gpu")
    assert line.message == (
        "NVIDIA H100 80GB HBM3: 79.0 GiB of 80.0 GiB free, compute capability 9.0, driver 570.86, CUDA 12.8"
    )
    assert line.values["in_card_table"] is True
    line = card_line("gpu", replace(CARD, name="Voodoo 2", driver=None, cuda=None), None)
    assert line.message.endswith("compute capability 9.0")
    assert line.values["in_card_table"] is False


def test_a_card_that_others_use() -> None:
    line = card_line("gpu", replace(CARD, free_bytes=50 * GIB), IDLE)
    assert (line.verdict, line.message.endswith("30.0 GiB")) == ("note", True)
    assert "nvidia-smi" in line.fix
    line = card_line("gpu", CARD, replace(IDLE, busy=43.0))
    assert (line.verdict, "busy 43%" in line.message) == ("note", True)


def test_a_card_that_torch_has_no_code_for() -> None:
    line = card_line("gpu", replace(CARD, capability=(12, 0)), IDLE)
    assert (line.verdict, "install a newer torch" in line.fix) == ("problem", True)


def test_which_code_runs_where() -> None:
    cases: list[tuple[list[str], tuple[int, int], bool]] = [
        (["sm_80", "sm_86"], (8, 6), True),
        (["sm_80", "sm_86"], (8, 9), True),
        (["sm_86"], (8, 0), False),
        (["sm_80", "sm_90a"], (9, 0), True),
        (["sm_80", "sm_90"], (12, 0), False),
        (["sm_80", "sm_90", "compute_90"], (12, 0), True),
        (["sm_75", "sm_80"], (6, 1), False),
        (["compute_90"], (8, 6), False),
        (["sm_120"], (12, 0), True),
        (["gfx942"], (9, 4), False),
    ]
    wrong = [
        (architectures, capability, has)
        for architectures, capability, has in cases
        if has_code_for(architectures, capability) is not has
    ]
    assert wrong == []


# --- no card that works ---


def test_why_there_is_no_card(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[GpuState], str, str, dict[str, str], str, str]] = [
        ([], NO_DRIVER, "", {}, "note", "none found"),
        ([IDLE], "", "", {}, "problem", "this torch was built without CUDA"),
        ([IDLE], "", "the driver is too old (version 11040)", {}, "problem", "too old (version 11040)"),
        ([IDLE], "", "no card", {"CUDA_VISIBLE_DEVICES": ""}, "note", "hidden by CUDA_VISIBLE_DEVICES"),
        ([], "RM has detected an NVML/RM version mismatch.", "x", {}, "problem", "mismatch"),
        ([], "GPU is lost", "x", {}, "problem", "GPU is lost"),
        ([], "Driver Not Loaded", "x", {}, "note", "Not Loaded"),
        ([], "the driver lists no card", "", {}, "note", "no card"),
    ]  # fmt: skip
    for states, problem, why, environment, verdict, said in cases:
        with subtests.test(said):
            line = without_gpu_line(GpuReading(tuple(states), problem=problem), why, environment)
            assert (line.verdict, said in line.message) == (verdict, True)
            assert line.fix or verdict == "note"


def test_torchs_reason_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu_checks.why_no_cuda() == ""
    monkeypatch.setattr(torch.version, "cuda", "12.8")

    def fail() -> None:
        raise RuntimeError("driver too old\nPlease update")

    monkeypatch.setattr(torch.cuda, "init", fail)
    assert gpu_checks.why_no_cuda() == "driver too old"
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert "no card" in gpu_checks.why_no_cuda()


def test_several_cards_have_a_line_each_and_are_known_by_identity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: Any
) -> None:
    """CUDA counts the faster card first, NVML goes by the slot."""
    card(9, 0, count=2)
    ids = {0: "6f0c3a4e-1111-2222-3333-444455556666", 1: "aaaa0000-1111-2222-3333-444455556666"}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=ids[device.index])
    )
    states = tuple(GpuState(f"GPU-{ids[index]}", "card", busy=97.0 + 2 * index) for index in (1, 0))
    monkeypatch.setattr(gpu_checks, "read_gpus", lambda: GpuReading(states))
    monkeypatch.setattr(gpu_checks, "_describe", lambda device: replace(CARD, name=f"card {device.index}"))
    lines = check_gpus(CheckContext(tmp_path, tmp_path))
    assert [line.name for line in lines] == ["cuda:0", "cuda:1"]
    assert [line.values["busy_percent"] for line in lines] == [97.0, 99.0]
    assert not any(number in str(lines) for number in ids.values())


def test_here_is_what_torch_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(gpu_checks, "read_gpus", lambda: GpuReading(problem=NO_DRIVER))
    (line,) = check_gpus(CheckContext(tmp_path, tmp_path))
    assert (line.name, line.verdict) == ("gpu", "note")
    assert check_clocks(CheckContext(tmp_path, tmp_path)) == []


def test_apples_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 12 * GIB)
    monkeypatch.setattr(gpu_checks, "apple_gpu_name", lambda: "Apple M2 Pro 19-core GPU")
    monkeypatch.setattr(gpu_checks, "read_gpus", lambda: GpuReading(problem=NO_DRIVER))
    (line,) = check_gpus(CheckContext(tmp_path, tmp_path))
    assert (line.verdict, line.values) == ("ok", {"name": "Apple M2 Pro 19-core GPU", "usable": 12 * GIB})
    assert "12.0 GiB" in line.message


# --- under load ---


def test_what_holds_a_card_back(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "ok", "1755 of 1980 MHz, 64 °C, 600 of 700 W under load"),
        ({"reasons": 0x4}, "ok", "at its power limit, as usual under full load"),
        ({"reasons": 0x1}, "ok", "under load"),
        ({"reasons": 0x20}, "problem", "thermal throttling"),
        ({"reasons": 0x48}, "problem", "thermal throttling"),
        ({"reasons": 0x88}, "problem", "throttled by its power supply"),
        ({"reasons": 0x8}, "problem", "throttled by the hardware"),
        ({"reasons": 0x2}, "note", "application clock"),
        ({"power_limit": 500.0}, "note", "power limit 500 W, the default is 700 W"),
        ({"power_limit": None, "power": None, "clock_max": None}, "ok", "1755 MHz, 64 °C under load"),
        ({"clock": None, "temperature": None, "power": None}, "ok", "nothing is reported under load"),
    ]
    for changes, verdict, said in cases:
        with subtests.test(repr(changes)):
            state = GpuState("x", "H100", 0, 64.0, 1755.0, 1980.0, 600.0, 700.0, 700.0, 99.0)
            line = clocks_line("clocks gpu", replace(state, **changes), under_load=True)
            assert (line.verdict, said in line.message) == (verdict, True)
            assert (line.verdict == "ok") == (line.fix == "")


def test_a_card_nvml_does_not_know() -> None:
    assert clocks_line("clocks gpu", None, under_load=True).verdict == "note"


def test_the_question_is_asked_while_the_card_works() -> None:
    rounds = 0

    def load() -> None:
        nonlocal rounds
        rounds += 1
        time.sleep(0.001)

    def question() -> int:
        begun = rounds
        while rounds < begun + 3:
            time.sleep(0.001)
        return begun

    assert query_under_load(question, load) >= 1
    assert rounds >= 4


def test_no_load_goes_on_for_ever() -> None:
    ticks = iter([0.0, 5.0, 20.0])
    rounds: list[int] = []

    def question() -> str:
        time.sleep(0.2)
        return "late"

    assert query_under_load(question, lambda: rounds.append(1), lambda: next(ticks)) == "late"
    assert len(rounds) == 2


def test_an_error_of_the_question_is_not_lost() -> None:
    def question() -> None:
        raise RuntimeError("NVML broke")

    with pytest.raises(RuntimeError, match="NVML broke"):
        query_under_load(question, lambda: None)


# --- dtypes ---


def test_dtypes_with_their_reasons(card: Any) -> None:
    card(9, 0)
    assert dtype_line("dtype gpu", CUDA).message.startswith("bfloat16: compute capability 9.0: ")
    assert dtype_line("dtype gpu", CUDA).values["dtype"] == "bfloat16"
    card(7, 5)  # a T4
    line = dtype_line("dtype gpu", CUDA)
    assert re.match("float16: compute capability 7.5 .*bfloat16: .*emulates", line.message)
    assert line.values["dtype"] == "float16"
    assert dtypes_to_measure(CUDA) == ["float16", "float32"]


def test_every_device_has_a_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    card(8, 6, count=2)
    lines = check_dtypes(CheckContext(tmp_path, tmp_path))
    assert [line.name for line in lines] == ["dtype cuda:0", "dtype cuda:1", "dtype cpu"]
    assert lines[2].values["dtype"] == "bfloat16"
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert dtypes_to_measure(torch.device("cpu")) == ["float32"]


@pytest.mark.gpu
def test_this_card(tmp_path: Path) -> None:
    visit = CheckContext(tmp_path, tmp_path)
    gpus = check_gpus(visit)
    assert [line.name for line in gpus] == [
        gpu_checks.device_label(device) for device in gpu_checks.find_gpus()
    ]
    assert gpus[0].values["name"] == torch.cuda.get_device_name(0)
    assert 0 < int(gpus[0].values["free"] or 0) <= int(gpus[0].values["total"] or 0)
    clocks = check_clocks(visit)
    assert len(clocks) == len(gpus)
    assert clocks[0].values["mhz"]
