"""The ladder of a dataset: measured once, read again, bound to its data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from small_runs import prepare_dataset

from glassgpt.data import ladder as ladder_module
from glassgpt.data.dataset import open_dataset
from glassgpt.data.ladder import load_ladder, read_ladder
from glassgpt.data.manifest import LADDER_FILE
from glassgpt.data.ngram_baselines import ngram_losses


def test_it_is_measured_once_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(prepare_dataset(tmp_path, "text", "byte"))
    orders: list[int] = []
    ladder = load_ladder(dataset, orders.append)
    assert orders == [6, 5, 4, 3, 2, 1]
    expected = ngram_losses(dataset.tokens("train"), dataset.tokens("val"), 256)
    assert {rung.order: rung.loss for rung in ladder.rungs} == {0: math.log(256)} | expected
    # A byte is a token.
    assert ladder.rungs[0].bits_per_byte == pytest.approx(8.0)
    monkeypatch.setattr(ladder_module, "ngram_losses", None)
    assert load_ladder(dataset) == ladder


def test_a_folder_of_nanogpts_is_not_written_to(tmp_path: Path) -> None:
    dataset = open_dataset(prepare_dataset(tmp_path, "text", "byte"))
    (dataset.directory / "manifest.json").unlink()
    assert load_ladder(dataset).rungs
    assert not (dataset.directory / LADDER_FILE).exists()


def test_prepare_replaces_a_dataset_with_its_ladder(tmp_path: Path) -> None:
    dataset = open_dataset(prepare_dataset(tmp_path, "text", "byte"))
    load_ladder(dataset)
    prepare_dataset(tmp_path, "text", "byte", text="another text\n" * 90, overwrite=True)
    assert not (dataset.directory / LADDER_FILE).exists()


def test_which_rung_a_loss_has_passed(tmp_path: Path) -> None:
    ladder = load_ladder(open_dataset(prepare_dataset(tmp_path, "text", "byte")))
    losses = [rung.loss for rung in ladder.rungs]
    assert ladder.best.loss == min(losses)
    assert ladder.highest_passed(losses[0] + 1) is None
    assert ladder.highest_passed(losses[0] - 1e-9) == ladder.rungs[0]
    assert ladder.highest_passed(0.0) == ladder.best


def test_a_damaged_file_or_one_of_other_data_is_none(tmp_path: Path) -> None:
    dataset = open_dataset(prepare_dataset(tmp_path, "text"))
    load_ladder(dataset)
    path = dataset.directory / LADDER_FILE
    content = json.loads(path.read_text())
    assert read_ladder(path, dataset.hash) is not None
    assert read_ladder(path, "0" * 64) is None
    for damage in (
        "", "[]", "{", "[" * 5000, json.dumps(content | {"rungs": []}),
        json.dumps(content | {"rungs": [{"order": 1, "loss": -1.0, "bits_per_byte": None}]}),
        json.dumps(content | {"rungs": [{"order": 1, "loss": float("nan"), "bits_per_byte": None}]}),
    ):  # fmt: skip
        path.write_text(damage)
        assert read_ladder(path, dataset.hash) is None, damage[:40]
    assert load_ladder(dataset).rungs
    assert read_ladder(path, dataset.hash) is not None
