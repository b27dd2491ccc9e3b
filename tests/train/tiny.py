"""Reading what tiny runs left behind, and ways to end them before their time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from glassgpt.account import journal
from glassgpt.account.journal import Record
from glassgpt.config import TrainConfig
from glassgpt.train.checkpoint import Tensors, load_last
from glassgpt.train.learner import Learner
from glassgpt.train.session import Run, train


def records(run_dir: Path | str, kind: str | None = None) -> list[Record]:
    """The records that still count, of one kind."""
    found = journal.current(journal.read(Path(run_dir) / journal.NAME))
    return [record for record in found if kind in (None, record["kind"])]


def run_losses(run_dir: Path | str) -> dict[int, float]:
    """Training loss by iteration, as far as it was logged."""
    return {record["iter"]: record["loss"] for record in records(run_dir, "step")}


def run_evals(run_dir: Path | str) -> dict[tuple[int, str], float]:
    """Loss by iteration and split."""
    return {(record["iter"], record["split"]): record["loss"] for record in records(run_dir, "eval")}


def choices(run_dir: Path | str) -> dict[str, tuple[Any, str]]:
    """What the last process decided: value and reason by name."""
    found = records(run_dir, "run")[-1]["choices"]
    return {choice["name"]: (choice["value"], choice["reason"]) for choice in found}


def last_tensors(run_dir: Path | str) -> Tensors:
    """Everything in the last checkpoint, which has to be whole."""
    _, tensors, complaints = load_last(Path(run_dir))
    assert complaints == []
    return tensors


def bits(tensor: Tensor) -> bytes:
    """What equality to the last bit compares: unlike ==, it tells 0 from -0, and NaN equals itself."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes()


def assert_same_tensors(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    for file in one:
        assert one[file].keys() == other[file].keys()
        different = [name for name in one[file] if bits(one[file][name]) != bits(other[file][name])]
        assert different == [], f"these differ in {file}"


def assert_close_tensors(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        difference = (tensor - other[name]).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"


def resume(config: TrainConfig, **changes: Any) -> Run:
    return train(dataclasses.replace(config, init_from="resume", **changes))


class Crash(Exception):
    """What ends a run in these tests as a bug or a power cut would: no end record of the usual kind."""


def crash_before(patch: pytest.MonkeyPatch, number: int) -> None:
    """The next runs fail when they come to update `number`, after waiting for checkpoints to be written."""
    original = Learner.update

    def update(learner: Learner, at: int) -> None:
        if at == number:
            raise Crash
        original(learner, at)

    patch.setattr(Learner, "update", update)


def run_until_crash(config: TrainConfig, number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        crash_before(patch, number)
        with pytest.raises(Crash):
            train(config)


def catch_learners(patch: pytest.MonkeyPatch) -> list[Learner]:
    """The learners that the next runs make, to look at their weights."""
    caught: list[Learner] = []
    original = Learner.__init__

    def init(learner: Learner, *arguments: Any, **named: Any) -> None:
        original(learner, *arguments, **named)
        caught.append(learner)

    patch.setattr(Learner, "__init__", init)
    return caught


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: parameter.detach().cpu().clone() for name, parameter in learner.model.named_parameters()}


def files_under(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file())
