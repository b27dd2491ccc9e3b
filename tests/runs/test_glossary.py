"""What the pieces of a line mean, with the log's own values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from learning_logs import any_run_log
from run_logs import make_run_log, make_steps

from glassgpt.i18n import LANGUAGES, use_language
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.glossary import glossary
from glassgpt.runs.run_log import LoggedEvaluation, RunLog
from glassgpt.runs.trainers import BY_ID

TRAINERS = tuple(BY_ID)


def whole(trainer: str = "nanogpt") -> RunLog:
    """A log that says everything."""
    count = 5
    steps = make_steps(
        range(0, 10 * count, 10),
        166.5,
        [4.0, 3.5, 3.0, 2.75, 2.125],
        mfu=[12.5] * count,
        lr=[6e-4] * count,
        grad_norm=[0.75] * count,
        tokens_per_s=[98_304.0] * count,
    )
    run_log = make_run_log(steps, [(0, 4.0, 4.1), (40, 2.1, 2.25)], [40])
    return replace(run_log, trainer=BY_ID[trainer])


def pieces(run_log: RunLog) -> list[str]:
    return [entry.log_text for entry in glossary(run_log, Analysis(run_log).facts)]


def test_a_line_of_nanogpt_piece_by_piece() -> None:
    assert pieces(whole()) == [
        "step 40: train loss 2.1000, val loss 2.2500",
        "saving checkpoint to …",
        "iter 40",
        "loss 2.1250",
        "time 166.50ms",
        "mfu 12.50%",
        "lr 0.0006",
    ]


def test_it_says_what_is_true_of_nanogpt() -> None:
    entries = {entry.log_text: entry.meaning for entry in glossary(whole(), Analysis(whole()).facts)}
    assert "A100" in entries["mfu 12.50%"]
    assert "312 TFLOP/s" in entries["mfu 12.50%"]
    assert "running average" in entries["mfu 12.50%"]
    assert "166.5 ms" in entries["time 166.50ms"].replace("166.50", "166.5")  # a steady one


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_has_its_own(trainer: str) -> None:
    entries = glossary(whole(trainer), Analysis(whole(trainer)).facts)
    assert len(entries) >= 2
    assert len({entry.log_text for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.meaning.endswith(".")
        assert "None" not in entry.log_text
        assert "nan" not in entry.log_text.replace("nanogpt", "")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_only_what_the_log_has(trainer: str) -> None:
    bare = make_run_log(make_steps([]))
    run_log = replace(bare, trainer=BY_ID[trainer])
    assert not [piece for piece in pieces(run_log) if any(sign.isdigit() for sign in piece)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_pieces_are_the_same_in_every_language(language: str, subtests: pytest.Subtests) -> None:
    for trainer in TRAINERS:
        run_log = whole(trainer)
        in_english = pieces(run_log)
        english = {entry.meaning for entry in glossary(run_log, Analysis(run_log).facts)}
        with subtests.test(trainer):
            with use_language(language):
                assert pieces(run_log) == in_english
                meanings = {entry.meaning for entry in glossary(run_log, Analysis(run_log).facts)}
            assert (meanings == english) == (language == "en")  # a new sentence may still be in English


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_evaluation_that_says_little(trainer: str) -> None:
    odd = (LoggedEvaluation(None, 0, 2.5), LoggedEvaluation(None, 0, None, 1.0))
    run_log = replace(whole(trainer), evals=odd, has_iteration_numbers=False)
    assert not [piece for piece in pieces(run_log) if "None" in piece]


def test_a_loss_that_is_no_number_is_shown_as_it_is() -> None:
    run_log = whole()
    steps = replace(run_log.steps, loss=np.array([4.0, 3.0, np.nan, np.nan, np.nan]))
    assert "loss nan" in pieces(replace(run_log, steps=steps))


@settings(max_examples=50, deadline=None)
@given(any_run_log())
def test_any_history_at_all(run_log: RunLog) -> None:
    for entry in glossary(run_log, Analysis(run_log).facts):
        assert entry.log_text
        assert entry.meaning
