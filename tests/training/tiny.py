"""Reading what tiny runs left behind, and ways to end them early."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glassgpt.config import TrainConfig, dataset_folder
from glassgpt.data.dataset import open_dataset
from glassgpt.estimate.batching import BatchPlan, plan_batch
from glassgpt.model.gpt import GPT, make_gpt_config
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.ledger import Ledger
from glassgpt.training.checkpoint.checkpoints import TensorsByFile, load_latest_intact
from glassgpt.training.device import ExecutionConfig
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.learner import Learner
from glassgpt.training.loader import BatchLoader
from glassgpt.training.run_request import RunRequest
from glassgpt.training.session import Run, start_run, train

MakeConfig = Callable[..., TrainConfig]

# What a run on a CPU decides, besides its dtype; its config.toml says so.
CPU_CHOICES: dict[str, Any] = {"attention": "sdpa", "kernels": "plain", "graph": "off"}


def records(run_dir: Path | str, kind: str | None = None) -> list[Record]:
    """The records that still count, of one kind."""
    all_records = journal.effective_records(journal.read(Path(run_dir) / journal.FILE_NAME))
    return [record for record in all_records if kind in (None, record["kind"])]


def run_losses(run_dir: Path | str) -> dict[int, float]:
    """Training loss by iteration, as far as it was logged."""
    return {record["iter"]: record["loss"] for record in records(run_dir, "step")}


def run_evals(run_dir: Path | str) -> dict[tuple[int, str], float]:
    """Loss by iteration and split."""
    return {(record["iter"], record["split"]): record["loss"] for record in records(run_dir, "eval")}


def choices(run_dir: Path | str) -> dict[str, tuple[Any, str]]:
    """What the last process decided: value and reason by name."""
    decided = records(run_dir, "run")[-1]["choices"]
    return {choice["name"]: (choice["value"], choice["reason"]) for choice in decided}


def last_tensors(run_dir: Path | str) -> TensorsByFile:
    """Everything in the last checkpoint, which has to be whole."""
    _, tensors, damaged, _ = load_latest_intact(Path(run_dir))
    assert damaged == []
    # A copy: what load_last returns is mapped from the file, and some tests damage the file afterwards.
    return {file: {name: tensor.clone() for name, tensor in part.items()} for file, part in tensors.items()}


def tensor_bytes(tensor: Tensor) -> bytes:
    """What equality to the last bit compares: unlike ==, it tells 0 from -0, and NaN equals itself."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes()


def assert_same_tensors(one: TensorsByFile, other: TensorsByFile) -> None:
    assert one.keys() == other.keys()
    for file in one:
        assert one[file].keys() == other[file].keys()
        different = [
            name for name in one[file] if tensor_bytes(one[file][name]) != tensor_bytes(other[file][name])
        ]
        assert different == [], f"these differ in {file}"


def assert_close_tensors(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        difference = (tensor - other[name]).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"


def run_task(request: RunRequest, process_age_s: float = 0.0) -> Run:
    with StopSignals() as signals:
        return start_run(request, [], signals, process_age_s)


def resume(config: TrainConfig, **changes: Any) -> Run:
    return train(dataclasses.replace(config, init_from="resume", **changes))


class Crash(Exception):
    """What ends a run in these tests as a bug or a power cut would: no end record of the usual kind."""


def crash_before(patch: pytest.MonkeyPatch, number: int) -> None:
    """The next runs fail when they come to update `number`, after waiting for checkpoints to be written."""
    original = Learner.update

    def update(learner: Learner, at: int, first_sequence: int) -> None:
        if at == number:
            raise Crash
        original(learner, at, first_sequence)

    patch.setattr(Learner, "update", update)


def run_until_crash(config: TrainConfig, number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        crash_before(patch, number)
        with pytest.raises(Crash):
            train(config)


def capture_learners(patch: pytest.MonkeyPatch) -> list[Learner]:
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


def make_learner(config: TrainConfig, dtype: str = "float32") -> Learner:
    """A learner on the CPU without a run around it."""
    dataset = open_dataset(dataset_folder(config))
    plan, _ = plan_batch(config, "cpu", None)
    execution = ExecutionConfig(torch.device("cpu"), dtype, compile=False, attention="sdpa")
    loader = BatchLoader(dataset.tokens("train"), config.block_size, plan, config.seed, execution.device)
    return Learner(make_model(config), config, execution, plan, loader, Ledger())


def whole_batch(config: TrainConfig, update: int) -> tuple[Tensor, Tensor]:
    """All sequences of an update at once, however the config would cut them."""
    plan, _ = plan_batch(config, "cpu", None)
    uncut = BatchPlan(plan.sequences, 1, plan.sequences, plan.tokens)
    tokens = open_dataset(dataset_folder(config)).tokens("train")
    loader = BatchLoader(tokens, config.block_size, uncut, config.seed, torch.device("cpu"))
    return loader.micro_batch(update * plan.sequences, (update + 1) * plan.sequences)


def make_model(config: TrainConfig) -> GPT:
    """The model a run begins with."""
    torch.manual_seed(config.seed)
    return GPT(make_gpt_config(config, open_dataset(dataset_folder(config)).manifest.vocab_size))


def inject_non_finite(patch: pytest.MonkeyPatch, number: int, what: str) -> dict[str, Tensor]:
    """Update `number` of the next run gets a loss of NaN, or a gradient that is infinite.

    Returns a dictionary that will hold the weights from right before.
    """
    original = Learner.update
    before: dict[str, Tensor] = {}

    def update(learner: Learner, at: int, first_sequence: int) -> None:
        if at != number:
            return original(learner, at, first_sequence)
        before.update(weights(learner))
        parameter = next(learner.model.parameters())
        if learner.execution.graph:  # which calls no hooks; the gradients are still there, at zero
            assert what == "gradient"
            assert parameter.grad is not None
            parameter.grad.fill_(math.inf)
            return original(learner, at, first_sequence)
        if what == "loss":
            hook = learner.model.register_forward_hook(lambda module, inputs, loss: loss * float("nan"))
        else:
            hook = parameter.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[no-untyped-call]
        original(learner, at, first_sequence)
        hook.remove()
        return None

    patch.setattr(Learner, "update", update)
    return before


def file_contents(folder: str) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files_under(Path(folder))}


def learner_before_first_update(config: TrainConfig) -> Learner:
    """The learner of a new run, right before its first update."""
    with pytest.MonkeyPatch.context() as patch:
        learners = capture_learners(patch)
        patch.setattr(Learner, "update", lambda learner, at, first: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            train(config)
    return learners[0]
