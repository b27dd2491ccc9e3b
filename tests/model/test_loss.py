"""The loss in pieces is the loss, and so are its gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.model import loss, loss_chunks


def some(rows: int, width: int, vocabulary: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, generator=draw, requires_grad=True)
    weight = torch.randn(vocabulary, width, generator=draw, requires_grad=True)
    return hidden, weight, torch.randint(0, vocabulary, (rows,), generator=draw)


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(hidden @ weight.t(), targets, ignore_index=IGNORED_TARGET)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(2, 30), st.integers(0, 99), st.data())
def test_in_pieces_it_is_the_same(
    rows: int, width: int, vocabulary: int, seed: int, data: st.DataObject
) -> None:
    hidden, weight, targets = some(rows, width, vocabulary, seed)
    ignored = data.draw(st.sets(st.integers(0, rows - 1), max_size=rows - 1))
    targets[list(ignored)] = IGNORED_TARGET
    limit = 8 * vocabulary * data.draw(st.integers(1, rows + 1))  # in bytes: so many rows at a time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_chunks, "MAX_UNCHUNKED_LOGIT_BYTES", 0)
        patch.setitem(loss_chunks.MAX_LOGIT_CHUNK_BYTES, "cpu", limit)
        found = loss.cross_entropy(hidden, weight, targets)
    wanted = plain(hidden, weight, targets)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    scale = torch.tensor(3.0)
    for mine, other in zip(
        torch.autograd.grad(found * scale, (hidden, weight)),
        torch.autograd.grad(wanted * scale, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.bfloat16, 1.0), (torch.float16, 65_536.0)])
def test_in_16_bits_it_is_as_near_to_the_truth(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, scale: float
) -> None:
    """float16 with a loss scaler, as always: what is small must not be lost before it is scaled."""
    hidden, weight, targets = some(4096, 64, 300, 0)
    truth = torch.autograd.grad(plain(hidden, weight, targets), (hidden, weight))

    def error() -> float:
        with torch.autocast("cpu", dtype):
            found = loss.cross_entropy(hidden, weight, targets)
        grads = [grad / scale for grad in torch.autograd.grad(found * scale, (hidden, weight))]
        return sum(float((mine - true).norm() / true.norm()) for mine, true in zip(grads, truth, strict=True))

    at_once = error()
    monkeypatch.setattr(loss_chunks, "MAX_UNCHUNKED_LOGIT_BYTES", 0)
    monkeypatch.setitem(loss_chunks.MAX_LOGIT_CHUNK_BYTES, "cpu", 100 * 8 * 300)
    assert error() <= at_once * 1.02


@given(st.integers(1, 10**6), st.integers(1, 10**5))
def test_pieces_are_even_and_small(tokens: int, vocabulary: int) -> None:
    rows = loss_chunks.rows_per_chunk(tokens, vocabulary, "cuda", kernel=True)
    assert 1 <= rows <= tokens
    assert rows <= 64 or (rows - 63) * vocabulary * 2 <= 2**30
    count = -(-tokens // rows)
    assert tokens - (count - 1) * rows > 0
    assert count == 1 or rows * vocabulary * 2 > 2**28, "no more pieces than it takes"


def test_losses_one_by_one_average_to_it() -> None:
    hidden, weight, targets = some(20, 8, 11, 3)
    targets[4] = IGNORED_TARGET
    each = loss.token_losses(hidden, weight, targets)
    assert each[4] == 0
    assert each.sum().item() / 19 == pytest.approx(plain(hidden, weight, targets).item())


def test_losses_do_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = some(200, 8, 11, 3)
    targets[70] = IGNORED_TARGET
    at_once = loss.token_losses(hidden, weight, targets)
    monkeypatch.setitem(loss_chunks._MAX_EVAL_LOGIT_CHUNK_BYTES, "cpu", 8 * 11 * 64)
    assert loss_chunks.eval_rows_per_chunk(200, 11, "cpu") == 64
    torch.testing.assert_close(loss.token_losses(hidden, weight, targets), at_once, rtol=0, atol=1e-6)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_what_is_scored_at_a_time_fits(tokens: int, vocabulary: int) -> None:
    rows = loss_chunks.eval_rows_per_chunk(tokens, vocabulary, "cuda")
    assert 1 <= rows <= tokens
    assert rows <= 64 or 8 * rows * vocabulary <= 2**29
