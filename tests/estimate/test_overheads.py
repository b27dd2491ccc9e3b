"""What things cost besides the arithmetic."""

from __future__ import annotations

import pytest

from glassgpt.estimate import overheads


def test_a_step_is_arithmetic_or_launches() -> None:
    def step(kind: str, micro_steps: int, peak: float) -> float:
        return overheads.eager_step_s(kind, 800, micro_steps, 10**6, 12, peak)

    assert step("cpu", 2, 1e9) > 800 * 1e6 / 1e9  # nobody reaches the peak
    # On a CPU one comes after the other.
    asking = 2 * overheads.launch_s("cpu", 12)
    assert step("cpu", 2, 1e9) - asking == pytest.approx(2 * (step("cpu", 2, 2e9) - asking))
    assert step("cpu", 2, 1e18) == pytest.approx(asking)
    # A card that computes in no time still has to be told what to compute, micro-batch by micro-batch.
    assert step("cuda", 4, 1e18) == pytest.approx(2 * step("cuda", 2, 1e18))


def test_what_pays() -> None:
    assert overheads.graph_pays(0.004, 0.014)
    assert not overheads.graph_pays(0.2, 0.014)
    saved = overheads.compile_saving_s("cuda", 0.1)
    assert overheads.compile_cost_s("cuda", 12) / saved == pytest.approx(31 / 0.03)  # breaks even there


def test_what_our_kernels_save_is_what_an_h200_saved() -> None:
    """Milliseconds of an update: plain less Triton, as measured."""
    for arch, layers, width, sequences, measured in (
        ("gpt2", 12, 768, 64, 65.0),
        ("gpt2", 24, 1024, 16, 24.0),
        ("modern", 24, 1024, 20, 92.0),
    ):
        saved = overheads.kernel_saving_s(arch, layers, width, 50304, sequences * 1024, 4.8e12)
        assert 1000 * saved == pytest.approx(measured, rel=0.1)
    # A small model is held up by launching.
    assert (
        overheads.kernel_saving_s("gpt2", 6, 64, 65, 1024, 4.8e12) == 6 * overheads.KERNEL_SAVING_S_PER_LAYER
    )
