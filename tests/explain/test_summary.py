"""A run in a few sentences."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from learning_logs import any_run_log
from run_logs import make_run_log, make_steps
from written_findings import written_finding

from glassgpt.explain.explanation import explain
from glassgpt.explain.summary import compose_verdict
from glassgpt.record.finding import Finding, Severity
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import ExitStatus, LoggedProcess, RunLog

NOTHING = "Nothing is wrong with this run, as far as its log shows."


def run() -> RunLog:
    return make_run_log(
        make_steps(range(0, 1000, 10), 100.0, [2.0] * 100), [(0, 4.0, 4.1), (500, 2.1, 2.25), (900, 1.9, 2.4)]
    )


def facts(**changes: object) -> Facts:
    return replace(Analysis(run()).facts, **changes)  # type: ignore[arg-type]


def finding(severity: Severity, title: str = "It is bad") -> Finding:
    return written_finding("bad", severity, title, "5 of 10", "because", "")


def verdict_text(*findings: Finding, **changes: object) -> str:
    return " ".join(compose_verdict(run(), facts(**changes), findings))


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ("finished", "that finished at iteration 990"),
        ("interrupted", "that was stopped at iteration 990"),
        ("crashed", "that crashed after iteration 990"),
        ("oom", "that ran out of memory after iteration 990"),
        ("cut", "whose log stops at iteration 990 without saying why"),
        (None, "that is at iteration 990 now"),
    ],
)
def test_how_far_it_came(ended: ExitStatus | None, words: str) -> None:
    assert f"A nanoGPT run {words}" in verdict_text(ended=ended)


def test_how_good_it_is() -> None:
    assert "best validation loss was 2.2500 at iteration 500; the last is 2.4000." in verdict_text()
    assert "2.4000" in verdict_text(best_val_loss=2.4, best_val_step=900)
    assert "2.2500" in verdict_text(best_val_step=None)
    assert "2.4000" in verdict_text(best_val_step=None)
    assert "bits per byte" in verdict_text(val_metric="bits_per_byte")
    assert "validation" not in verdict_text(best_val_loss=None, best_val_step=None, final_val_loss=None)
    without = {"best_val_loss": None, "best_val_step": None, "final_val_loss": None}
    assert "training loss went from 4.2000 to 2.0000" in verdict_text(
        **without, loss_first=4.2, loss_last=2.0
    )
    assert "training loss" not in verdict_text(**without, loss_first=4.2, loss_last=math.nan)
    assert "training loss" not in verdict_text(**without, loss_first=None, loss_last=None)


def test_how_fast_it_was() -> None:
    assert "An iteration takes 168.3 ms; 19% of the time" in verdict_text(
        steady_ms=168.3, overhead_share=0.194
    )
    assert "An iteration takes 168.3 ms." in verdict_text(steady_ms=168.3, overhead_share=None)
    assert "takes" not in verdict_text(steady_ms=None)


def test_the_most_important() -> None:
    text = verdict_text(finding("problem", "The loss is NaN"), finding("warning", "It overfits"))
    assert text.endswith("Most important: The loss is NaN.")
    assert "overfits" not in text
    assert "Nothing is wrong" not in text


def test_a_healthy_run_has_one_sentence_about_it() -> None:
    assert verdict_text(ended="finished").endswith(NOTHING)
    assert verdict_text(finding("info"), ended="finished").endswith(NOTHING)
    assert NOTHING not in verdict_text(finding("advice"), ended="finished")


@pytest.mark.parametrize("ended", ["crashed", "oom", "cut", "interrupted"])
def test_what_did_not_end_well_is_not_praised(ended: ExitStatus) -> None:
    assert NOTHING not in verdict_text(ended=ended)


def test_a_run_without_an_iteration() -> None:
    empty = make_run_log(make_steps([]), settings={"max_iters": 100})
    for run_log in (empty, replace(empty, live=True)):
        text = " ".join(explain(run_log).verdict)
        assert NOTHING not in text
        assert "0 lines" not in text
        assert "iteration" in text


def test_a_single_line_went_nowhere() -> None:
    text = " ".join(explain(make_run_log(make_steps([11], loss=[4.0948]))).verdict)
    assert "The only training loss in this log is 4.0948." in text


def test_losses_of_any_size_stay_short() -> None:
    text = " ".join(explain(make_run_log(make_steps([0, 10], loss=[1e30, 2.5]))).verdict)
    assert "went from 1e+30 to 2.5000" in text


def test_lines_without_numbers() -> None:
    run_log = replace(run(), has_iteration_numbers=False)
    assert "100 logged iterations, without iteration numbers" in " ".join(explain(run_log).verdict)


@settings(max_examples=40, deadline=None)
@given(any_run_log())
def test_any_history_has_sentences(run_log: RunLog) -> None:
    sentences = compose_verdict(run_log, Analysis(run_log).facts, [])
    assert sentences
    assert all(sentence.endswith(".") and "None" not in sentence for sentence in sentences)


def test_several_runs_in_one_log_are_counted() -> None:
    steps = make_steps([0, 10, 20, 0, 10], segment=[0, 0, 0, 1, 1])
    restarted = (
        LoggedProcess(has_startup=True, first_iteration=0),
        LoggedProcess(has_startup=True, first_iteration=0),
    )
    run_log = make_run_log(steps, segments=restarted)
    assert compose_verdict(run_log, Analysis(run_log).facts, [])[0].startswith("This log holds 2 runs.")
    resumed = (restarted[0], LoggedProcess(has_startup=True, resumed=True, first_iteration=0))
    run_log = make_run_log(steps, segments=resumed)
    assert not compose_verdict(run_log, Analysis(run_log).facts, [])[0].startswith("This log holds")
