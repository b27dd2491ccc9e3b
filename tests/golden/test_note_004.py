"""Note 004: "the larger model has the higher MFU, is it faster". It is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from compared_runs import find_claim
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


def test_the_large_model_is_not_faster(comparison: Comparison) -> None:
    faster = find_claim(comparison, "faster")  # the only one
    assert faster.labels == ("A", "B")
    assert faster.values["fast_rate"] == pytest.approx(134_433, abs=1)
    assert faster.values["slow_rate"] == pytest.approx(56_134, abs=1)
    assert faster.values["tokens"] == 524_288


def test_more_arithmetic_per_second_but_more_per_token(comparison: Comparison) -> None:
    values = find_claim(comparison, "faster-by-size").values
    assert (values["fast"], values["fast_rate"]) == ("A", pytest.approx(40.2e12, abs=5e10))
    assert (values["slow"], values["slow_rate"]) == ("B", pytest.approx(48.0e12, abs=5e10))
    small, large = (side.analysis for side in comparison.runs)
    cost = (large.size.flops_per_token or 0) / (small.size.flops_per_token or 1)
    assert cost == pytest.approx(2.85, abs=0.02)
    assert find_claim(comparison, "mfu-is-not-speed").values["slow"] == "B"


def test_the_small_model_is_not_that_small(comparison: Comparison) -> None:
    values = find_claim(comparison, "parameters-contradicted").values
    assert (values["run"], values["real"], values["stated"]) == ("A", "40.5M", "33M")
    large = comparison.runs[1].analysis.size
    assert large.parameters == 125_000_000
    assert not large.is_contradicted


def test_the_micro_batch_is_not_why(comparison: Comparison) -> None:
    values = find_claim(comparison, "micro-batch-not-cause").values
    assert (values["low_batch"], values["high_batch"]) == (16, 8)
    assert (values["low_width"], values["high_width"]) == (384, 768)


def test_the_losses_at_iteration_500(comparison: Comparison) -> None:
    (point,) = comparison.aligned["iterations"].points
    assert point.at == 500
    assert [reading.loss for reading in point.losses if reading] == [5.5328, 5.5194]
    last_common = find_claim(comparison, "better-open").detail_messages[0].values
    assert last_common == {"at": 500, "worse": "B", "own": "5.5194", "better": "A", "its": "5.5328"}
    assumed = find_claim(comparison, "assumed-comparable")
    assert assumed.detail_messages[0].key == "compare.comparable.dataset_assumed"
    assert find_claim(comparison, "noise").message.key == "compare.noise.unknown"


def test_mfu_on_the_card_that_it_was(runs: list[RunLog]) -> None:
    card = find_card("NVIDIA GeForce RTX 4070 Ti")
    assert card is not None
    small, large = compare(runs, card).runs
    assert small.mfu == pytest.approx(50, abs=1)
    assert large.mfu == pytest.approx(60, abs=1)
