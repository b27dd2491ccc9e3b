"""The self-tests pass where training is right, and fail where it is not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassgpt.doctor import selftests
from glassgpt.doctor.check import Line, Visit
from glassgpt.doctor.isolate import look_apart
from glassgpt.doctor.selftests import (
    Outcome,
    accumulation,
    devices,
    fast_paths,
    furthest,
    furthest_tensor,
    look_at_devices,
    outcome,
    resume,
    worst,
)
from glassgpt.model import gpt
from glassgpt.training import optimizers, train_state
from glassgpt.training.learner import Learner


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, whatever else is there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_accumulation_is_a_larger_batch_here(tmp_path: Path) -> None:
    (line,) = accumulation(tmp_path)
    assert line.verdict == "ok"
    assert 0 <= float(line.numbers["difference"] or 0) <= 1e-5
    # What was compared were 20 updates that learned something.
    whole = outcome(tmp_path / "batch")
    assert len(whole.losses) == len(whole.norms) == 20
    assert whole.losses[-1] < whole.losses[0] - 0.3
    assert set(whole.tensors) == {"model", "optimizer"}
    assert whole.setbacks == []


def test_micro_batches_that_add_up_instead_of_averaging_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Learner._micro_step

    def wrong(learner: Learner, *batch: Tensor) -> tuple[Tensor]:
        found = original(learner, *batch)
        for parameter in learner.model.parameters():
            if learner._plan.micro_steps > 1 and parameter.grad is not None:
                parameter.grad *= 1.01
        return found

    monkeypatch.setattr(Learner, "_micro_step", wrong)
    (line,) = accumulation(tmp_path)
    assert (line.verdict, "do not trust" in line.fix) == ("problem", True)
    assert float(line.numbers["difference"] or 0) > 1e-5


def test_resuming_is_exact_here(tmp_path: Path) -> None:
    (line,) = resume(tmp_path)
    assert (line.verdict, line.numbers) == ("ok", {"differing_tensors": 0})
    assert line.says.startswith("40 updates in one go, and stopped and resumed after 20: weights and opt")
    assert len(outcome(tmp_path / "stopped").losses) == 40


def test_a_resume_that_forgets_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = optimizers.load_optimizers

    def forgetful(model: Any, given: Any, tensors: dict[str, Tensor]) -> list[str]:
        return original(model, given, {name: t * 1.0001 if t.ndim == 2 else t for name, t in tensors.items()})

    monkeypatch.setattr(train_state, "load_optimizers", forgetful)
    (line,) = resume(tmp_path)
    assert line.verdict == "problem"
    assert int(line.numbers["differing_tensors"] or 0) > 5


def test_the_fast_paths_are_the_plain_ones_here(tmp_path: Path) -> None:
    lines = fast_paths(tmp_path)
    assert [line.says.partition(":")[0] for line in lines] == ["fused attention", "bfloat16"]
    assert [line.verdict for line in lines] == ["ok", "ok"]
    assert 0 < float(lines[1].numbers["difference"] or 0) < 0.02  # really another dtype


def test_attention_that_is_a_little_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = gpt.attend

    def wrong(q: Tensor, k: Tensor, v: Tensor, dropout: float, how: str) -> Tensor:
        return original(q * (1.02 if how == "sdpa" else 1.0), k, v, dropout, how)

    monkeypatch.setattr(gpt, "attend", wrong)
    fused, low = fast_paths(tmp_path)
    assert (fused.verdict, low.verdict) == ("problem", "ok")


def test_without_a_gpu_nothing_is_claimed(tmp_path: Path) -> None:
    (line,) = look_at_devices(Visit(tmp_path, tmp_path))
    assert line.verdict == "note"
    assert "not tested on this machine" in line.says


def test_a_gpu_that_computes_otherwise_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is not there is played by one whose losses are a little higher."""
    factors = {"cpu": 1.0, "cuda:0": 1.0, "cuda:0 bfloat16": 1.0}

    def run(config: Any, name: str, device: str = "", dtype: str = "") -> Outcome:
        factor = factors[f"{device} {dtype}".strip()]
        return Outcome([factor * loss for loss in (2.7, 2.5, 2.2)], [1.0] * 3, {}, [])

    monkeypatch.setattr(selftests, "run", run)
    monkeypatch.setattr(selftests, "main_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")

    def verdicts(gpu: float, low: float) -> list[str]:
        factors.update({"cuda:0": gpu, "cuda:0 bfloat16": low})
        return [line.verdict for line in devices(tmp_path)]

    assert verdicts(1.00009, 1.019) == ["ok", "ok"]
    assert verdicts(1.00011, 1.019) == ["problem", "ok"]
    assert verdicts(1.0, 0.979) == ["ok", "problem"]
    assert verdicts(math.nan, 1.0) == ["problem", "ok"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert verdicts(1.0, 1.0) == ["ok"]


def test_a_fast_path_that_was_not_taken_does_not_count_as_right() -> None:
    plain = Outcome([2.0, 1.9], [], {}, [])
    fast = Outcome(
        [2.0, 1.9], [], {}, ["building kernels failed; the run goes on without it (no C compiler)"]
    )
    line = selftests._path("our kernels", plain, fast, 1e-3)
    assert (line.verdict, "no C compiler" in line.says) == ("problem", True)


# --- comparing ---


def test_the_largest_difference() -> None:
    assert furthest([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert furthest([1.0, 2.0], [1.0, 2.5], relative=True) == 0.25
    assert furthest([1.0], [1.0, 2.0]) == math.inf
    assert furthest([], []) == math.inf  # nothing compared is no agreement
    assert math.isnan(furthest([1.0, 2.0], [math.nan, 2.0]))
    assert math.isnan(worst(1.0, math.nan, 2.0))


def test_the_largest_difference_of_tensors() -> None:
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0])}
    assert furthest_tensor(one, one) == 0
    assert furthest_tensor(one, {**one, "b": torch.tensor([-3.0])}) == 3
    assert furthest_tensor(one, {"a": one["a"]}) == math.inf
    assert math.isnan(furthest_tensor(one, {**one, "a": torch.tensor([1.0, math.nan])}))


@pytest.mark.gpu
def test_cpu_and_gpu_agree_here(tmp_path: Path) -> None:
    lines: list[Line] = look_apart(devices, tmp_path, 240) + look_apart(fast_paths, tmp_path, 240)
    assert [line.verdict for line in lines] == ["ok"] * len(lines)
    assert len(lines) >= 3
