"""Note 004: "the larger model has the higher MFU, is it faster". It is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from note_004 import LARGE_FLAGS, SMALL_FLAGS, large_log, small_log

from glassgpt.compare import Comparison, compare
from glassgpt.estimate.cards import find_card
from glassgpt.runs.overrides import apply_overrides, parse_overrides
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import RunLog


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunLog]:
    folder: Path = tmp_path_factory.mktemp("note_004")
    given = parse_overrides([*SMALL_FLAGS, *LARGE_FLAGS], 2)
    runs = []
    for name, text, about in (("small.log", small_log(), given[0]), ("large.log", large_log(), given[1])):
        (folder / name).write_text(text)
        run_log = apply_overrides(read_run_log(str(folder / name)), about)
        runs.append(run_log)
    return runs


@pytest.fixture(scope="module")
def comparison(runs: list[RunLog]) -> Comparison:
    return compare(runs)


def claim(comparison: Comparison, id: str) -> str:
    (finding,) = [one for one in comparison.verdict if one.id == id]
    return " ".join((finding.sentence, *finding.details))


def test_the_large_model_is_not_faster(comparison: Comparison) -> None:
    text = claim(comparison, "faster")
    assert "A is faster than B: 134k against 56.1k tokens per second" in text
    assert "524,288" in text
    assert not any("B is faster" in one.sentence for one in comparison.verdict)


def test_more_arithmetic_per_second_but_more_per_token(comparison: Comparison) -> None:
    text = claim(comparison, "faster-by-size")
    assert "A 40.2 TFLOP/s, B 48.0 TFLOP/s" in text
    small, large = (side.analysis for side in comparison.runs)
    cost = (large.size.flops_per_token or 0) / (small.size.flops_per_token or 1)
    assert cost == pytest.approx(2.85, abs=0.02)
    assert "does not make it faster" in claim(comparison, "mfu-is-not-speed")


def test_the_small_model_is_not_that_small(comparison: Comparison) -> None:
    assert claim(comparison, "parameters-contradicted").startswith("A has 40.5M parameters, not 33M.")
    large = comparison.runs[1].analysis.size
    assert large.parameters == 125_000_000
    assert not large.is_contradicted


def test_the_micro_batch_is_not_why(comparison: Comparison) -> None:
    text = claim(comparison, "micro-batch-not-cause")
    assert "batch_size 16 -> 8" in text
    assert "n_embd 384 -> 768" in text


def test_the_losses_at_iteration_500(comparison: Comparison) -> None:
    (point,) = comparison.aligned["iterations"].points
    assert point.at == 500
    assert [reading.loss for reading in point.losses if reading] == [5.5328, 5.5194]
    assert "At iteration 500: B 5.5194, A 5.5328." in claim(comparison, "better-open")
    assert "assumed to be the same" in claim(comparison, "assumed-comparable")
    assert "is unknown" in claim(comparison, "noise")


def test_mfu_on_the_card_that_it_was(runs: list[RunLog]) -> None:
    card = find_card("NVIDIA GeForce RTX 4070 Ti")
    assert card is not None
    small, large = compare(runs, card).runs
    assert small.mfu == pytest.approx(50, abs=1)
    assert large.mfu == pytest.approx(60, abs=1)
