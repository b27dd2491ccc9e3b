"""The self-tests pass where training is right, and fail where it is not."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassgpt.doctor import selftests
from glassgpt.doctor.diagnosis import CheckContext, DiagnosticLine
from glassgpt.doctor.isolated_check import run_isolated
from glassgpt.doctor.selftests import (
    SelfTestRun,
    check_devices,
    max_difference,
    max_or_nan,
    max_tensor_difference,
    read_self_test_run,
    selftest_accumulation,
    selftest_devices,
    selftest_fast_paths,
    selftest_resume,
)
from glassgpt.model import gpt
from glassgpt.training import optimizers, save_and_restore
from glassgpt.training.learner import Learner


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, whatever else is there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_accumulation_is_a_larger_batch_here(tmp_path: Path) -> None:
    (line,) = selftest_accumulation(tmp_path)
    assert line.verdict == "ok"
    assert 0 <= float(line.values["difference"] or 0) <= 1e-5
    # What was compared were 20 updates that learned something.
    whole = read_self_test_run(tmp_path / "batch")
    assert len(whole.losses) == len(whole.grad_norms) == 20
    assert whole.losses[-1] < whole.losses[0] - 0.3
    assert set(whole.tensors) == {"model", "optimizer"}
    assert whole.fallbacks == []


def test_micro_batches_that_add_up_instead_of_averaging_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Learner._micro_step

    def wrong(learner: Learner, *batch: Tensor) -> tuple[Tensor]:
        found = original(learner, *batch)
        for parameter in learner.model.parameters():
            if learner._batch_plan.micro_steps > 1 and parameter.grad is not None:
                parameter.grad *= 1.01
        return found

    monkeypatch.setattr(Learner, "_micro_step", wrong)
    (line,) = selftest_accumulation(tmp_path)
    assert (line.verdict, line.fix) == ("problem", selftests.REPORT_FIX)
    assert float(line.values["difference"] or 0) > 1e-5


def test_resuming_is_exact_here(tmp_path: Path) -> None:
    (line,) = selftest_resume(tmp_path)
    assert (line.verdict, line.values) == ("ok", {"differing_tensors": 0})
    assert re.findall(r"\d+", line.message) == ["40", "20"]
    assert len(read_self_test_run(tmp_path / "stopped").losses) == 40


def test_a_resume_that_forgets_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = optimizers.load_optimizer_state

    def forgetful(model: Any, given: Any, tensors: dict[str, Tensor]) -> list[str]:
        return original(model, given, {name: t * 1.0001 if t.ndim == 2 else t for name, t in tensors.items()})

    monkeypatch.setattr(save_and_restore, "load_optimizer_state", forgetful)
    (line,) = selftest_resume(tmp_path)
    assert line.verdict == "problem"
    assert int(line.values["differing_tensors"] or 0) > 5


def test_the_fast_paths_are_the_plain_ones_here(tmp_path: Path) -> None:
    lines = selftest_fast_paths(tmp_path)
    assert [line.message.partition(":")[0] for line in lines] == ["fused attention", "bfloat16"]
    assert [line.verdict for line in lines] == ["ok", "ok"]
    assert 0 < float(lines[1].values["difference"] or 0) < 0.02  # really another dtype


def test_attention_that_is_a_little_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = gpt.attend

    def wrong(q: Tensor, k: Tensor, v: Tensor, dropout: float, how: str) -> Tensor:
        return original(q * (1.02 if how == "sdpa" else 1.0), k, v, dropout, how)

    monkeypatch.setattr(gpt, "attend", wrong)
    fused, low = selftest_fast_paths(tmp_path)
    assert (fused.verdict, low.verdict) == ("problem", "ok")


def test_without_a_gpu_nothing_is_claimed(tmp_path: Path) -> None:
    (line,) = check_devices(CheckContext(tmp_path, tmp_path))
    assert line.verdict == "note"
    assert "not tested" in line.message


def test_a_gpu_that_computes_otherwise_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is not there is played by one whose losses are a little higher."""
    factors = {"cpu": 1.0, "cuda:0": 1.0, "cuda:0 bfloat16": 1.0}

    def run(config: Any, name: str, device: str = "", dtype: str = "") -> SelfTestRun:
        factor = factors[f"{device} {dtype}".strip()]
        return SelfTestRun([factor * loss for loss in (2.7, 2.5, 2.2)], [1.0] * 3, {}, [])

    monkeypatch.setattr(selftests, "train_tiny", run)
    monkeypatch.setattr(selftests, "default_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")

    def verdicts(gpu: float, low: float) -> list[str]:
        factors.update({"cuda:0": gpu, "cuda:0 bfloat16": low})
        return [line.verdict for line in selftest_devices(tmp_path)]

    assert verdicts(1.00009, 1.019) == ["ok", "ok"]
    assert verdicts(1.00011, 1.019) == ["problem", "ok"]
    assert verdicts(1.0, 0.979) == ["ok", "problem"]
    assert verdicts(math.nan, 1.0) == ["problem", "ok"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert verdicts(1.0, 1.0) == ["ok"]


def test_a_fast_path_that_was_not_taken_does_not_count_as_right() -> None:
    plain = SelfTestRun([2.0, 1.9], [], {}, [])
    fast = SelfTestRun(
        [2.0, 1.9], [], {}, ["building kernels failed; the run goes on without it (no C compiler)"]
    )
    line = selftests._fast_path_line("our kernels", plain, fast, 1e-3)
    assert (line.verdict, "no C compiler" in line.message) == ("problem", True)


# --- comparing ---


def test_the_largest_difference() -> None:
    assert max_difference([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert max_difference([1.0, 2.0], [1.0, 2.5], relative=True) == 0.25
    assert max_difference([1.0], [1.0, 2.0]) == math.inf
    assert max_difference([], []) == math.inf  # nothing compared is no agreement
    assert math.isnan(max_difference([1.0, 2.0], [math.nan, 2.0]))
    assert math.isnan(max_or_nan(1.0, math.nan, 2.0))


def test_the_largest_difference_of_tensors() -> None:
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0])}
    assert max_tensor_difference(one, one) == 0
    assert max_tensor_difference(one, {**one, "b": torch.tensor([-3.0])}) == 3
    assert max_tensor_difference(one, {"a": one["a"]}) == math.inf
    assert math.isnan(max_tensor_difference(one, {**one, "a": torch.tensor([1.0, math.nan])}))


@pytest.mark.gpu
def test_cpu_and_gpu_agree_here(tmp_path: Path) -> None:
    lines: list[DiagnosticLine] = run_isolated(selftest_devices, tmp_path, 240) + run_isolated(
        selftest_fast_paths, tmp_path, 240
    )
    assert [line.verdict for line in lines] == ["ok"] * len(lines)
    assert len(lines) >= 3
