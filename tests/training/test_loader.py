"""Batches cut on the device are those cut on the host."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from glassgpt.data.batches import DocumentWindows, document_window_batch
from glassgpt.training.loader import BatchPrefetcher, ResidentTokens


@pytest.mark.parametrize(("dtype", "top"), [(np.uint8, 255), (np.uint16, 65_535), (np.uint32, 2**32 - 1)])
def test_a_resident_text_gives_the_same_rows(dtype: type, top: int) -> None:
    drawn = np.random.default_rng(0).integers(0, top, 500, endpoint=True, dtype=np.uint64)
    tokens: np.ndarray = drawn.astype(dtype)
    tokens[7] = top  # the largest of all, whose sign bit is set
    tokens.setflags(write=False)  # as a dataset's are
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resident = ResidentTokens(tokens, 16, torch.device("cpu"))
    starts = torch.tensor([0, 7, 483])
    x, y = resident.rows(starts)
    for row, start in enumerate(starts.tolist()):
        assert x[row].tolist() == tokens[start : start + 16].tolist()
        assert y[row].tolist() == tokens[start + 1 : start + 17].tolist()
    assert x.dtype == y.dtype == torch.int64


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_resident_text_gives_the_same_document_windows(dtype: type) -> None:
    """Of one token, of a whole window, and of the text's end, which a window reaches beyond."""
    tokens: np.ndarray = np.random.default_rng(0).integers(0, 250, 300).astype(dtype)
    tokens[[0, 5, 6, 40, 290, 299]] = 255
    windows = DocumentWindows(tokens, 255, 16)
    starts, counts = windows.draw(3, 0, 2 * len(windows))
    assert set(counts.tolist()) >= {1, 9, 16}
    batch = ResidentTokens(tokens, 16, torch.device("cpu")).document_windows(
        *map(torch.from_numpy, (starts, counts))
    )
    for resident, host in zip(batch, document_window_batch(tokens, starts, counts, 16), strict=True):
        assert resident.tolist() == host.tolist()


def made(first: int, calls: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    calls.append(first)
    if first == 9:
        raise OSError("the disk is gone")
    return torch.tensor(first), torch.tensor(first + 1)


def test_what_is_made_ahead_is_what_is_asked_for() -> None:
    """Whoever asks for another than the expected one gets it all the same: a resumed run, an evaluation."""
    calls: list[int] = []
    ahead = BatchPrefetcher(lambda first: made(first, calls))
    for first in (0, 3, 6, 30, 33):
        assert ahead.take(first, next_first=first + 3)[0] == first
    assert sorted(calls)[:5] == [0, 3, 6, 9, 30]
    assert calls.count(3) == calls.count(6) == calls.count(33) == 1


def test_what_goes_wrong_ahead_is_told_when_it_is_asked_for() -> None:
    ahead = BatchPrefetcher(lambda first: made(first, []))
    ahead.take(6, next_first=9)
    with pytest.raises(OSError, match="the disk is gone"):
        ahead.take(9, next_first=12)
