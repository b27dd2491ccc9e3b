"""Little checkpoints for tests, written by a saver of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glassgpt.files import read_small_file
from glassgpt.record.journal import Record
from glassgpt.training.checkpoint import checkpoints
from glassgpt.training.checkpoint.checkpoints import TensorsByFile
from glassgpt.training.checkpoint.saver import Saver


def make_tensors(number: float) -> TensorsByFile:
    return {
        "model": {"weight": torch.full((5, 3), float(number))},
        "optimizer": {"weight:step": torch.tensor(float(number))},
        "evaluation": {},
    }


def save_and_wait(saver: Saver, iteration: int, val_loss: float | None = None) -> Record:
    saver.save(make_tensors(iteration), {"iter": iteration, "val_loss": val_loss, "note": "hello"})
    record = saver.poll(wait=True)
    assert record is not None
    return record


def count_state_reads(patch: pytest.MonkeyPatch) -> list[Path]:
    """Every state.json that is read from now on, as often as it is read."""
    reads: list[Path] = []

    def read(path: Path, *limit: int) -> bytes:
        if path.name == "state.json":
            reads.append(path)
        return read_small_file(path, *limit)

    patch.setattr(checkpoints, "read_small_file", read)
    return reads


def write_checkpoints(folder: Path) -> Path:
    """10, 20 and 30, each better than the one before."""
    saver = Saver(folder, keep=3)
    for iteration in (10, 20, 30):
        save_and_wait(saver, iteration, val_loss=5.0 - iteration / 10)
    saver.close()
    return folder
