"""Evaluation: the exact loss of the same tokens every time, with an honest error, and no side effects."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MakeConfig, make_learner

from glassgpt.config import TrainConfig
from glassgpt.data.dataset import open_dataset
from glassgpt.estimate.batching import DEFAULT_EVAL_TOKENS, BatchPlan, eval_batch_rows, tokens_to_evaluate
from glassgpt.record.ledger import Ledger
from glassgpt.training.evaluate import EvalResult, EvalWindows, evaluate, is_gain
from glassgpt.training.learner import Learner

few = settings(max_examples=60, deadline=None)


@pytest.fixture
def learner(tiny: MakeConfig) -> Learner:
    learner = make_learner(tiny(dropout=0.3))
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(3)  # far from uniform, so that windows differ
    return learner


@pytest.fixture
def val(tiny_data: Path) -> np.ndarray:
    return open_dataset(tiny_data).tokens("val")


def windows_of(learner: Learner, tokens: np.ndarray, eval_tokens: int | None, rows: int) -> EvalWindows:
    return EvalWindows(tokens, learner.config.block_size, eval_tokens, rows, torch.device("cpu"))


def score(learner: Learner, tokens: np.ndarray, eval_tokens: int | None = None, rows: int = 5) -> EvalResult:
    result = evaluate(learner, windows_of(learner, tokens, eval_tokens, rows), Ledger())
    assert result is not None
    return result


@torch.no_grad()
def by_hand(learner: Learner, tokens: np.ndarray, starts: list[int]) -> tuple[list[float], list[int]]:
    """Summed loss and targets of each window, one window at a time, in float64."""
    model = learner.model.eval().double()
    sums, counts = [], []
    for start in starts:
        window = torch.tensor(tokens[start : start + learner.config.block_size + 1].astype(np.int64))
        logits = model(window[None, :-1])[0]
        sums.append(torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item())
        counts.append(len(window) - 1)
    model.float()
    return sums, counts


def test_the_whole_split_is_the_whole_split(learner: Learner, val: np.ndarray) -> None:
    result = score(learner, val)
    assert (len(val) - 1) % 8  # so that the last window is a short one
    sums, counts = by_hand(learner, val, list(range(0, len(val) - 1, 8)))
    assert result.tokens == sum(counts) == len(val) - 1
    assert result.loss == pytest.approx(sum(sums) / sum(counts), abs=1e-6)
    assert result.window_tokens.tolist() == counts
    assert result.window_losses == pytest.approx(np.array(sums) / counts, abs=1e-5)


def test_a_sample_is_evenly_spaced_and_always_the_same(learner: Learner, val: np.ndarray) -> None:
    result = score(learner, val, eval_tokens=85)  # ten windows of eight
    starts = [i * (len(val) - 1) // 10 for i in range(10)]
    sums, counts = by_hand(learner, val, starts)
    assert result.tokens == sum(counts) == 80
    assert result.loss == pytest.approx(sum(sums) / 80, abs=1e-6)
    again = score(learner, val, eval_tokens=85)
    assert again.window_losses.tolist() == result.window_losses.tolist()


@pytest.mark.parametrize("eval_tokens", [None, 100])
def test_the_batch_size_does_not_matter(learner: Learner, val: np.ndarray, eval_tokens: int | None) -> None:
    one = score(learner, val, eval_tokens, rows=1)
    for rows in (2, 7, 64, 1000):
        other = score(learner, val, eval_tokens, rows=rows)
        assert other.tokens == one.tokens
        assert other.loss == pytest.approx(one.loss, abs=1e-6)
        assert other.stderr == pytest.approx(one.stderr, abs=1e-6)


def test_nothing_is_drawn_and_nothing_is_learned(learner: Learner, val: np.ndarray) -> None:
    state = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()
    before = [parameter.clone() for parameter in learner.model.parameters()]
    score(learner, val)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (repr(np.random.get_state()), random.getstate()) == state[1:]
    for parameter, old in zip(learner.model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None
    assert not learner.optimizers[0].state


def test_windows_are_made_once_unless_they_are_many(
    learner: Learner, val: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = windows_of(learner, val, None, 3)
    first, second = list(windows), list(windows)
    assert all(one[0] is other[0] for one, other in zip(first, second, strict=True))
    monkeypatch.setattr("glassgpt.training.evaluate._MAX_CACHED_TOKENS", 10)
    many = windows_of(learner, val, None, 3)
    third, fourth = list(many), list(many)
    assert all(one[0] is not other[0] for one, other in zip(third, fourth, strict=True))
    for one, other in zip(first, third, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_asked_to_stop_it_stops(learner: Learner, val: np.ndarray) -> None:
    answers = iter([False, False, True])
    assert (
        evaluate(learner, windows_of(learner, val, None, 2), Ledger(), should_stop=lambda: next(answers))
        is None
    )


def test_time_goes_to_eval_and_the_first_call_to_compile(
    learner: Learner, val: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    original, ledger = learner.token_losses, Ledger(lambda: now)

    def slow_at_first(*batch: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += 20.0 if learner.is_first_call("token_losses") else 2.0
        return original(*batch)

    monkeypatch.setattr(learner, "token_losses", slow_at_first)
    windows = windows_of(learner, val, None, 2)
    batches = -(-len(windows) // 2)
    evaluate(learner, windows, ledger)
    first = ledger.seconds()
    assert first["compile"] == pytest.approx(20.0 - 2.0)
    assert first["eval"] == pytest.approx(2.0 * batches)
    evaluate(learner, windows_of(learner, val, None, 2), ledger)
    assert ledger.seconds()["compile"] == first["compile"]


# --- the error of the mean ---


def evaluation(losses: list[float], counts: list[int] | None = None) -> EvalResult:
    weights = np.array(counts or [8] * len(losses))
    values = np.array(losses)
    return EvalResult(float((values * weights).sum() / weights.sum()), int(weights.sum()), values, weights)


def test_standard_error_of_equal_windows_is_the_textbooks() -> None:
    # Mean 2, deviations -1, 0, 1, sample variance 1: 1 / sqrt(3).
    assert evaluation([1.0, 2.0, 3.0]).stderr == pytest.approx(1 / math.sqrt(3))
    values = np.random.default_rng(0).normal(size=50)
    assert evaluation(values.tolist()).stderr == pytest.approx(values.std(ddof=1) / math.sqrt(50))


def test_standard_error_weighs_a_short_window_less() -> None:
    # Shares 0.4, 0.4, 0.2; mean 2.4; deviations -1.4, 0.6, 1.6.
    by_hand = math.sqrt((0.16 * 1.96 + 0.16 * 0.36 + 0.04 * 2.56) * 3 / 2)
    assert evaluation([1.0, 3.0, 4.0], [8, 8, 4]).stderr == pytest.approx(by_hand)


def test_the_error_of_one_window_is_unknown() -> None:
    assert math.isnan(evaluation([2.0]).stderr)


def test_perplexity_and_bits_per_byte() -> None:
    result = evaluation([math.log(16.0)] * 2)
    assert result.perplexity == pytest.approx(16)
    assert result.bits_per_byte(2.0) == pytest.approx(2)  # four bits a token, two bytes a token
    assert evaluation([800.0] * 2).perplexity == math.inf


# --- what counts as a gain ---

losses = st.lists(st.floats(0.0, 10.0), min_size=2, max_size=20)


@few
@given(losses, st.floats(0.001, 5.0))
def test_better_everywhere_by_the_same_is_a_gain(values: list[float], step: float) -> None:
    worse, better = evaluation([value + step for value in values]), evaluation(values)
    assert is_gain(worse, better)
    assert not is_gain(better, worse)
    assert not is_gain(better, better)


def test_a_difference_within_its_noise_is_no_gain() -> None:
    reference = evaluation([2.0, 2.0, 2.0, 2.0])
    lucky = evaluation([1.0, 2.9, 2.0, 2.0])  # 0.025 better on average, and noise of 0.39
    assert lucky.loss < reference.loss
    assert not is_gain(reference, lucky)


def test_noise_is_that_of_the_difference() -> None:
    """Windows of very different difficulty: each one's own error is huge, the gain is certain."""
    hard = [0.1, 5.0, 9.0, 1.0]
    reference, now = evaluation(hard), evaluation([value - 0.01 for value in hard])
    assert reference.stderr > 1
    assert is_gain(reference, now)


def test_what_does_not_compare_starts_anew() -> None:
    assert is_gain(None, evaluation([9.0, 9.0]))
    assert is_gain(evaluation([1.0, 1.0]), evaluation([9.0, 9.0, 9.0]))
    assert is_gain(evaluation([2.0]), evaluation([1.9]))  # one window: no noise is known
    assert not is_gain(evaluation([2.0]), evaluation([2.1]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_no_gain(bad: float) -> None:
    assert not is_gain(evaluation([2.0, 2.0]), evaluation([1.0, bad]))


# --- how much is evaluated ---


def test_how_many_tokens() -> None:
    plan = BatchPlan(batch_size=4, micro_steps=3, sequences=12, tokens=96)
    assert tokens_to_evaluate(TrainConfig(block_size=8), plan, 5000) == 5000
    assert tokens_to_evaluate(TrainConfig(block_size=8), plan, 10**9) == DEFAULT_EVAL_TOKENS
    assert tokens_to_evaluate(TrainConfig(block_size=8, eval_tokens=77), plan, 5000) == 77
    chosen = TrainConfig(block_size=8, eval_iters=10, batch_tokens=96)
    assert tokens_to_evaluate(chosen, plan, 5000) == 10 * 4 * 8
    # Processes that share a micro-batch of 12 evaluate as much as one process would.
    for config in (
        TrainConfig(block_size=8, eval_iters=10, batch_size=12),
        TrainConfig(block_size=8, eval_iters=10),
    ):
        assert tokens_to_evaluate(config, plan, 5000) == 10 * 12 * 8


@few
@given(st.integers(1, 10**5), st.sampled_from(["cpu", "cuda", "mps"]), st.integers(1, 10**4))
def test_an_evaluation_batch_is_never_empty_and_fits(T: int, device: str, width: int) -> None:
    rows = eval_batch_rows(TrainConfig(block_size=T, n_embd=width), device)
    assert rows >= 1
    assert rows == 1 or rows * T * width * 30 <= 2**29
