"""A replayed CUDA graph computes what was captured, on new inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glassgpt.model.cuda_graph import CudaGraphRunner

pytestmark = pytest.mark.gpu


def test_every_call_counts_before_and_after_the_capture() -> None:
    total = torch.zeros(3, device="cuda")
    calls = []

    def add(x: Tensor, y: Tensor) -> tuple[Tensor]:
        calls.append(x)
        total.add_(x * y)
        return (total * 2,)

    runner = CudaGraphRunner(add, warm_up=2)
    for call in range(1, 8):
        (doubled,) = runner(torch.full((3,), float(call), device="cuda"), torch.ones(3, device="cuda"))
        assert doubled.tolist() == [call * (call + 1.0)] * 3
    assert len(calls) == 3, "two warm-up calls, one capture, then only replays"


def test_random_numbers_are_those_of_the_seed() -> None:
    def draw(x: Tensor) -> tuple[Tensor]:
        return (torch.nn.functional.dropout(x, 0.5),)

    runner, x = CudaGraphRunner(draw, warm_up=1), torch.ones(64, device="cuda")
    masks = []
    for seed in (1, 2, 3, 2, 1):
        torch.manual_seed(seed)
        masks.append(runner(x)[0].clone())
    torch.manual_seed(1)
    as_usual = draw(x)[0]
    assert torch.equal(masks[0], as_usual)
    assert torch.equal(masks[4], as_usual)
    assert torch.equal(masks[1], masks[3])
    assert not torch.equal(masks[1], masks[2])


def test_what_cannot_be_recorded_is_done_as_usual() -> None:
    def peeks(x: Tensor) -> tuple[Tensor]:
        return (x * float(x.sum()),)  # synchronises with the host, which cannot be captured

    runner = CudaGraphRunner(peeks, warm_up=1)
    for call in range(1, 5):
        assert runner(torch.full((2,), float(call), device="cuda"))[0].tolist() == [2.0 * call * call] * 2
        torch.cuda.synchronize()
    assert runner.capture_error is not None


def test_random_numbers_go_on_after_a_recording_that_failed() -> None:
    def draws_and_peeks(x: Tensor) -> tuple[Tensor]:
        return (x * float(torch.rand((), device="cuda")),)

    torch.manual_seed(5)
    wanted = [float(torch.rand((), device="cuda")) for _ in range(4)]
    torch.manual_seed(5)
    runner = CudaGraphRunner(draws_and_peeks, warm_up=1)
    found = [float(runner(torch.ones((), device="cuda"))[0]) for _ in range(4)]
    assert runner.capture_error is not None
    assert found == wanted
