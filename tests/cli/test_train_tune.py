"""glass train --tune: what tuning finds is what is trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from glassgpt.cli import main
from glassgpt.config import TrainConfig
from glassgpt.recipe import read_recipe
from glassgpt.record import journal
from glassgpt.tune import tuning

SMALL = [
    "--max_iters=2", "--n_layer=1", "--n_head=2", "--n_embd=16", "--block_size=8", "--batch_tokens=64",
    "--eval_tokens=64", "--probe_seconds=0", "--sample_tokens=0", "--device=cpu",
]  # fmt: skip


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("a bright cold day in April\n" * 200)
    assert main(["prepare", "my.txt"]) == 0
    return tmp_path


def test_it_trains_with_what_was_found(
    text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed_names: list[Collection[str]] = []

    def tuned_config(
        config: TrainConfig, budget_s: float, say: Callable[[str], None], fixed: Collection[str] = ()
    ) -> TrainConfig:
        fixed_names.append(fixed)
        say("micro-batch 4 is the fastest")
        return replace(config, batch_size=4)

    monkeypatch.setattr(tuning, "tuned_config", tuned_config)
    assert main(["train", "--dataset=my", "--out_dir=run", "--tune", *SMALL]) == 0
    assert "tune          micro-batch 4 is the fastest" in capsys.readouterr().out
    assert read_recipe(text / "run/config.toml").settings["batch_size"] == 4
    assert "block_size" in fixed_names[0]
    assert "tune" not in fixed_names[0]


def test_tuning_time_is_recorded_separately(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(
        config: TrainConfig, budget_s: float, say: Callable[[str], None], fixed: Collection[str] = ()
    ) -> TrainConfig:
        time.sleep(0.3)
        return config

    monkeypatch.setattr(tuning, "tuned_config", slow)
    assert main(["train", "--dataset=my", "--out_dir=run", "--tune", *SMALL]) == 0
    end = list(journal.read(text / "run" / journal.FILE_NAME))[-1]
    total = end["forecast"]["total_s"]
    assert 0.3 <= total["tuning_s"] < end["ledger"]["startup"]
    assert total["measured"] == pytest.approx(end["wall_s"] - total["tuning_s"])


def test_without_it_nothing_is_tried(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "tuned_config", lambda *words, **more: pytest.fail("nobody asked"))
    assert main(["train", "--dataset=my", "--out_dir=run", "--tune=False", *SMALL]) == 0


def test_a_wrong_value_is_reported_with_the_others(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--tune=maybe", "--n_layers=3"]) == 2
    said = capsys.readouterr().err
    assert "--tune=maybe is neither True nor False" in said
    assert "--n_layer" in said
