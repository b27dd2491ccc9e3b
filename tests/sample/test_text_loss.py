"""Losses by sliding windows, bootstrap intervals, and pieces of text at which two tokenizations meet."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from glassgpt.model.gpt import GPT, GPTConfig
from glassgpt.sample.text_loss import (
    RESAMPLES,
    TokenizedDocuments,
    bootstrap_sums,
    common_spans,
    compare_losses,
    estimate_ratio,
    sliding_windows,
    summarize,
    token_losses,
)
from glassgpt.training.device import ExecutionConfig

CPU = ExecutionConfig(torch.device("cpu"), "float32")


def documents(
    lengths: list[int], byte_counts: list[int] | None = None, vocab_size: int = 11
) -> TokenizedDocuments:
    count = sum(lengths)
    ids = np.random.default_rng(3).integers(0, vocab_size, count)
    sizes = np.ones(count, dtype=np.int64) if byte_counts is None else np.array(byte_counts)
    return TokenizedDocuments(ids, np.array(lengths), sizes)


@pytest.fixture(scope="module")
def model() -> GPT:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = GPT(GPTConfig(11, block_size=8, n_layer=2, n_head=2, n_embd=16)).eval()
        for parameter in model.parameters():
            parameter.data.normal_(std=0.5)
    return model


@pytest.mark.parametrize(("context", "stride"), [(8, 8), (8, 3), (8, 1), (5, 4), (1, 1)])
def test_every_token_is_predicted_once_with_the_context_that_the_stride_leaves(
    model: GPT, context: int, stride: int
) -> None:
    texts = documents([30, 1, 2, 8, 9, 10])
    counted: list[int] = []
    for first, end, target in sliding_windows(texts.lengths, context, stride):
        assert end - first <= context
        counted += range(target, end + 1)
    assert counted == np.flatnonzero(texts.is_predicted).tolist()
    losses = token_losses(model, CPU, texts, context, stride)
    assert np.isnan(losses[~texts.is_predicted]).all()
    # One forward pass for each token, with the inputs of the window that counts it.
    for first, end, target in sliding_windows(texts.lengths, context, stride):
        for position in range(target, end + 1):
            inputs = torch.from_numpy(texts.ids[first:position])[None]
            logits = model(inputs)[0, -1].detach().double()
            expected = float(torch.logsumexp(logits, 0) - logits[texts.ids[position]])
            assert losses[position] == pytest.approx(expected, abs=1e-5)


def test_losses_do_not_depend_on_the_batches(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = documents([50, 3, 17])
    together = token_losses(model, CPU, texts, 8, 4)
    advanced: list[int] = []
    monkeypatch.setattr("glassgpt.sample.text_loss._BATCH_TOKENS", 8)
    apart = token_losses(model, CPU, texts, 8, 4, advanced.append)
    assert together == pytest.approx(apart, abs=1e-6, nan_ok=True)
    assert sum(advanced) == 49 + 2 + 16
    assert len(advanced) > 10


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(2.0, 0.3, 4000)
    estimate = estimate_ratio(values, np.ones(4000))
    stderr = values.std() / math.sqrt(4000)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(values.mean() - 1.96 * stderr, abs=0.2 * stderr)
    assert estimate.high == pytest.approx(values.mean() + 1.96 * stderr, abs=0.2 * stderr)
    assert estimate == estimate_ratio(values, np.ones(4000)), "the same draws every time"


def test_resampled_sums_draw_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.stack([np.arange(20.0), 3 * np.arange(20.0)], axis=1)
    monkeypatch.setattr("glassgpt.sample.text_loss._MAX_DRAWS", 700)  # several steps, the last one shorter
    sums = bootstrap_sums(columns)
    assert sums.shape == (RESAMPLES, 2)
    assert np.array_equal(3 * sums[:, 0], sums[:, 1])
    assert sums[:, 0].mean() == pytest.approx(190, rel=0.02)


def test_bits_per_byte_and_blocks_by_hand() -> None:
    # Two documents: 3 + 2 predicted tokens, of 1, 2, 4 and 3, 1 bytes.
    texts = documents([4, 3], [1, 1, 2, 4, 9, 3, 1])
    losses = np.array([np.nan, 1.0, 2.0, 3.0, np.nan, 0.5, 1.5])
    result = summarize("x", texts, losses, block_tokens=2)
    assert (result.tokens, result.bytes, result.blocks) == (5, 11, 3)
    assert result.loss.value == pytest.approx(8 / 5)
    assert result.perplexity.value == pytest.approx(math.exp(8 / 5))
    assert result.bits_per_byte is not None
    assert result.bits_per_byte.value == pytest.approx(8 / 11 / math.log(2))
    assert (result.loss.low, result.perplexity.high, result.bits_per_byte.low) == (None, None, None)


def test_many_blocks_are_merged_and_the_sums_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = documents([4001])
    losses = np.concatenate([[np.nan], np.random.default_rng(1).random(4000)])
    whole = summarize("x", texts, losses, block_tokens=4)
    monkeypatch.setattr("glassgpt.sample.text_loss._MAX_BLOCKS", 100)
    merged = summarize("x", texts, losses, block_tokens=4)
    assert (whole.blocks, merged.blocks) == (1000, 100)
    assert merged.loss.value == pytest.approx(whole.loss.value, rel=1e-12)
    assert merged.loss.low is not None
    assert merged.loss.low == pytest.approx(whole.loss.low, abs=0.01)


def test_pieces_end_where_both_tokenizations_do_and_skip_first_tokens() -> None:
    # Token ends: 1 2 3 ... 8 | 9 10, and 2 4 5 8 | 10: common 2 4 5 8 | 10.
    by_one = documents([8, 2])
    by_two = documents([4, 1], [2, 2, 1, 3, 2])
    starts, ends = common_spans(by_one, by_two, span_bytes=1)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(2, 4), (4, 5), (5, 8)]
    starts, ends = common_spans(by_one, by_two, span_bytes=3)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(2, 5), (5, 8)]
    starts, ends = common_spans(by_one, by_two, span_bytes=5)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(2, 8)]
    losses = np.array([np.nan, 7, 1, 2, 3, 4, 5, 6, np.nan, 8])
    others = np.array([np.nan, 10, 20, 30, np.nan])
    comparison = compare_losses((by_one, losses), (by_two, others), span_bytes=1)
    assert comparison is not None
    assert (comparison.bytes, comparison.blocks) == (6, 3)
    assert comparison.bits_per_byte == pytest.approx((21 / 6 / math.log(2), 60 / 6 / math.log(2)))
    assert comparison.difference.value == pytest.approx(-39 / 6 / math.log(2))
    assert comparison.better is None, "three pieces are too few"


def test_a_small_difference_is_found_where_pieces_are_paired() -> None:
    """The losses of both vary by 1.0 from token to token, their difference by 0.01."""
    rng, texts = np.random.default_rng(2), documents([2001])
    base = rng.normal(3.0, 1.0, 2001)
    worse = base + rng.normal(0.002, 0.01, 2001)
    comparison = compare_losses((texts, worse), (texts, base), span_bytes=20)
    assert comparison is not None
    assert comparison.better == 1
    assert comparison.difference.low is not None
    assert comparison.difference.high is not None
    low, high = comparison.difference.low, comparison.difference.high
    assert 0 < low < 0.002 / math.log(2) < high < 0.004 / math.log(2)
    same = compare_losses((texts, base), (texts, base), span_bytes=20)
    assert same is not None
    assert (same.difference.value, same.difference.low, same.difference.high) == (0.0, 0.0, 0.0)
    assert same.better is None
