"""Training with --documents=apart: the textbook's mean over targets, however an update is cut."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import MakeConfig, choices, make_model, records, resume, run_losses

from glassgpt.config import TrainConfig, dataset_folder
from glassgpt.data.batches import IGNORED_TARGET, DocumentWindows, document_window_batch
from glassgpt.data.dataset import open_dataset
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.data.tokenizers import end_of_text_id
from glassgpt.errors import UserError
from glassgpt.estimate.batching import BatchPlan
from glassgpt.training.loader import BatchLoader, ResidentTokens
from glassgpt.training.session import train


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of very different lengths, in shards of 500 tokens."""
    folder = tmp_path_factory.mktemp("documents")
    draw = random.Random(1)
    lines = []
    for _ in range(150):
        words = draw.choices(["glass", "house", "room", "door", "light"], k=draw.choice([1, 2, 5, 40]))
        lines.append('{"text": "' + " ".join(words) + '"}')
    (folder / "a.jsonl").write_text("\n".join(lines))
    options = PrepareOptions(
        str(folder / "a.jsonl"),
        tokenizer="bpe:280",
        val_fraction=0.1,
        shard_tokens=500,
        out_dir=str(folder / "out"),
    )
    prepare(options, lambda line: None, progress=False)
    return folder / "out"


def settings(shards: Path, **changes: Any) -> dict[str, Any]:
    return {"data_dir": str(shards), "documents": "apart", "max_iters": 4, "eval_interval": 4, **changes}


def windows_of(folder: Path) -> DocumentWindows:
    dataset = open_dataset(folder)
    separator = end_of_text_id(dataset)
    assert separator is not None
    return DocumentWindows(dataset.tokens("train"), separator, 8)


def mean_loss(config: TrainConfig) -> float:
    """Of the first update before any learning: of all its targets alike, computed in one go."""
    tokens = np.asarray(open_dataset(dataset_folder(config)).tokens("train"))
    starts, counts = windows_of(dataset_folder(config)).draw(config.seed, 0, 12)
    x, y = (
        torch.from_numpy(part) for part in document_window_batch(tokens, starts, counts, config.block_size)
    )
    with torch.no_grad():
        logits = make_model(config)(x)
    real = y != IGNORED_TARGET
    return float(torch.nn.functional.cross_entropy(logits[real], y[real]))


def test_however_an_update_is_cut_every_target_counts_alike(tiny: MakeConfig, shards: Path) -> None:
    runs = []
    for size, steps in ((12, 1), (4, 3), (1, 12)):
        config = tiny(
            f"{size}x{steps}", **settings(shards, batch_size=size, gradient_accumulation_steps=steps)
        )
        train(config)
        runs.append(run_losses(config.out_dir))
        assert runs[-1][1] == pytest.approx(mean_loss(config), abs=1e-5)
    assert runs[1] == pytest.approx(runs[0], abs=1e-5)
    assert runs[2] == pytest.approx(runs[0], abs=1e-5)


def test_it_says_how_full_its_sequences_are(tiny: MakeConfig, shards: Path) -> None:
    config = tiny(**settings(shards))
    train(config)
    value, reason = choices(config.out_dir)["documents"]
    assert value == "apart"
    windows = windows_of(shards)
    assert reason == f"{len(windows):,} sequences of one document each, {windows.filled_fraction:.0%} full"
    joined = tiny("joined", **settings(shards, documents="joined"))
    train(joined)
    # Evaluation is the same for both: before the first update they are one model.
    assert records(joined.out_dir, "eval")[0]["loss"] == records(config.out_dir, "eval")[0]["loss"]


def test_a_resumed_run_reads_on(tiny: MakeConfig, shards: Path) -> None:
    whole = tiny("whole", **settings(shards, max_iters=8))
    train(whole)
    half = tiny("half", **settings(shards, max_iters=4, lr_decay_iters=8, min_lr=1e-3))
    train(half)
    resume(half, max_iters=8)
    assert run_losses(half.out_dir)[8] == pytest.approx(run_losses(whole.out_dir)[8], abs=1e-6)


def test_characters_do_not_tell_where_documents_end(tiny: MakeConfig) -> None:
    with pytest.raises(
        UserError, match=r"--documents=apart must see where documents end, and char has no token"
    ):
        train(tiny(documents="apart"))


@pytest.mark.parametrize("apart", [False, True])
def test_a_text_in_shards_on_the_card_gives_the_same_rows(shards: Path, apart: bool) -> None:
    tokens = open_dataset(shards).tokens("train")
    windows = windows_of(shards) if apart else None
    device = torch.device("cpu")
    loader = BatchLoader(tokens, 8, BatchPlan(64, 1, 64, 512), 5, device, document_windows=windows)
    resident = ResidentTokens(tokens, 8, device)
    for first in (0, 64, 6400):
        on_host = loader.micro_batch(first, first + 1)
        on_card = loader._resident_batch(resident, first)
        for one, other in zip(on_host, on_card, strict=True):
            assert torch.equal(one, other)
    assert (on_host[1] == IGNORED_TARGET).any().item() == apart


def test_shards_and_one_file_train_alike(tiny: MakeConfig, shards: Path, tmp_path: Path) -> None:
    options = PrepareOptions(
        str(shards.parent / "a.jsonl"), tokenizer="bpe:280", val_fraction=0.1, out_dir=str(tmp_path / "one")
    )
    prepare(options, lambda line: None, progress=False)
    assert len(open_dataset(shards).manifest.split_files("train")) > 2
    assert len(open_dataset(tmp_path / "one").manifest.split_files("train")) == 1
    losses = []
    for name, folder in (("many", shards), ("single", tmp_path / "one")):
        config = tiny(name, **settings(folder, documents="joined"))
        train(config)
        losses.append((run_losses(config.out_dir), [r["loss"] for r in records(config.out_dir, "eval")]))
    assert losses[0] == losses[1]
