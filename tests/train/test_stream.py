"""Batches cut on the device are those cut on the host."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from glassgpt.train.stream import Resident


@pytest.mark.parametrize(("dtype", "top"), [(np.uint8, 255), (np.uint16, 65_535), (np.uint32, 2**32 - 1)])
def test_a_resident_text_gives_the_same_rows(dtype: type, top: int) -> None:
    drawn = np.random.default_rng(0).integers(0, top, 500, endpoint=True, dtype=np.uint64)
    tokens: np.ndarray = drawn.astype(dtype)
    tokens[7] = top  # the largest of all, whose sign bit is set
    tokens.setflags(write=False)  # as a dataset's are
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resident = Resident(tokens, 16, torch.device("cpu"))
    starts = torch.tensor([0, 7, 483])
    x, y = resident.rows(starts)
    for row, start in enumerate(starts.tolist()):
        assert x[row].tolist() == tokens[start : start + 16].tolist()
        assert y[row].tolist() == tokens[start + 1 : start + 17].tolist()
    assert x.dtype == y.dtype == torch.int64
