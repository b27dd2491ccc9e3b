"""Figures of a GlassGPT run that several processes did, with unlike batches: recomputed by hand.

The first process does 100 updates of 2,000 tokens at 20 ms each, the second 100 of 1,000 tokens at 10 ms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from journals import checkpoint, end, evaluation, record, resume, run, step, whole_run

from glassgpt.compare import Comparison, compare
from glassgpt.compare.compared_run import ComparedRun, make_compared_runs
from glassgpt.record.journal import Record, effective_records
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.from_journal import run_log_from_records
from glassgpt.runs.run_log import RunLog

LEDGER = {"startup": 3.0, "compile": 1.0, "train": 2.0, "eval": 0.5, "log": 0.0}


def began(process: int, iteration: int, tokens: int, **more: Any) -> Record:
    return run(200, process) | {"iter": iteration, "batch": {"tokens": tokens}} | more


def steps(process: int, first: int, last: int, tokens: int, seen: int, ms: float) -> list[Record]:
    return [
        step(at, process, step_ms=ms, tokens=seen + (at - first) * tokens, tokens_per_s=1000 * tokens / ms)
        for at in range(first + 10, last + 1, 10)
    ]


def two_processes() -> RunLog:
    return run_log_from_records(
        [
            began(0, 0, 2000),
            evaluation(0, "val", 4.0, ms=250.0),
            *steps(0, 0, 100, 2000, seen=0, ms=20.0),
            evaluation(100, "val", 2.0, ms=250.0),
            end(100, "interrupted", 0, ledger=LEDGER),
            began(1, 100, 1000),
            resume(100, 1),
            *steps(1, 100, 200, 1000, seen=200_000, ms=10.0),
            evaluation(200, "val", 1.0, 1, ms=250.0),
            end(200, process=1, ledger=LEDGER | {"train": 1.0, "eval": 0.25}),
        ],
        "two",
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("sssscr"), st.integers(0, 3)), max_size=30))
def test_superseded_records_are_those_of_the_journal(story: list[tuple[int, str, int]]) -> None:
    """The reader drops them when a resume comes; the journal's streams know the resumes beforehand."""
    kinds = {"s": "step", "c": "checkpoint", "r": "resume"}
    records: list[Record] = [
        {"kind": kinds[letter], "iter": at, "time": 0.0, "start": f"{start}", "loss": 1.0}
        for at, letter, start in story
    ]
    effective = effective_records(records)
    read = run_log_from_records(records, "story")
    saves = [one["iter"] for one in effective if one["kind"] == "checkpoint"]
    assert [save.iteration for save in read.checkpoints] == saves
    assert [*read.steps.iteration] == [one["iter"] for one in effective if one["kind"] == "step"]


def taken_over() -> RunLog:
    """Begins where another run, of smaller batches, had come: at 100 updates and 50,000 tokens."""
    return run_log_from_records(
        [
            began(0, 100, 1000),
            resume(100, 0),
            *steps(0, 100, 200, 1000, seen=50_000, ms=10.0),
            evaluation(200, "val", 1.0, ms=250.0),
            end(200, ledger=LEDGER | {"train": 1.0, "eval": 0.25}),
        ],
        "taken over",
    )


def compared(*histories: RunLog) -> Comparison:
    return compare(histories)


def side(run_log: RunLog) -> ComparedRun:
    sides, _ = make_compared_runs([run_log], None)
    return sides[0]


def test_times_and_rates_are_of_one_batch_size() -> None:
    """The last one's, which is what the settings say: 20 ms went with another number of tokens."""
    run_facts = Analysis(two_processes()).facts
    assert (run_facts.steady_ms, run_facts.tokens_per_iteration, run_facts.tokens_per_s) == (
        10.0,
        1000,
        100_000.0,
    )


def test_tokens_are_those_that_were_seen() -> None:
    run = side(two_processes())
    assert run.analysis.tokens_seen == 300_000
    assert run.tokens_at_best == 300_000
    assert run.curve.positions["tokens"].tolist() == [0, 200_000, 300_000]
    assert run.analysis.total_flops == pytest.approx(300_000 * 70_958_592)


def test_a_later_process_starts_up_later() -> None:
    """4 s of start-up, 0.25 s of evaluation, 2 s of updates, 0.25 s; then the same again, with 1 s."""
    seconds = side(two_processes()).curve.positions["time"]
    assert seconds.tolist() == pytest.approx([4.25, 6.5, 11.75])


def test_a_run_that_took_over_another_did_only_its_own_updates() -> None:
    run_log = taken_over()
    run = side(run_log)
    assert run_log.iteration_count() == 100
    assert run.analysis.tokens_seen == 150_000
    assert run.analysis.tokens_of_this_run == 100_000  # in 5.25 s


def test_tokens_over_the_whole_run_are_the_runs_own() -> None:
    slow = run_log_from_records(
        [*whole_run()[:-1], end(100, ledger={"startup": 0.1, "train": 100.0})], "mostly training"
    )
    (found,) = [one for one in compared(slow, taken_over()).verdict if one.id == "overhead"]
    assert (found.values["high"], found.values["low"]) == ("B", "A")
    assert found.values["high_rate"] == pytest.approx(100_000 / 5.25)
    assert found.values["low_rate"] == pytest.approx(16_400, rel=0.005)


def test_the_mfu_of_a_team_is_of_all_its_peaks() -> None:
    """1,000 tokens in 10 ms are 100,000/s, x 70.96 MFLOP 7.096 TFLOP/s; two devices of 10 can do 20."""
    team = {"team": {"size": 2}, "peak": {"value": 10e12}}
    lines = [one | {"mfu": 35.48} for one in steps(0, 0, 200, 1000, seen=0, ms=10.0)]
    run = side(run_log_from_records([began(0, 0, 1000, **team), *lines, end(200)], "team"))
    assert run.mfu == pytest.approx(35.48, rel=1e-3)


def test_a_modern_model_has_no_positions_to_take_off() -> None:
    records = whole_run()
    shape = {"arch": "modern", "block_size": 32, "n_embd": 32, "n_layer": 2, "vocab_size": 43}
    counted = {"parameters": 27_488, "parameters_without_positions": 27_488}
    records[0] = records[0] | {"model": shape | counted}
    assert side(run_log_from_records(records, "modern")).analysis.size.parameters == 27_488


@pytest.mark.parametrize("reason", ["stopped early", "evaluated"])
def test_a_run_that_did_what_was_asked_is_finished(reason: str) -> None:
    assert Analysis(run_log_from_records([*whole_run()[:-1], end(60, reason)], "x")).facts.ended == "finished"


def test_tokens_that_make_no_sense_are_not_counted_with() -> None:
    records = [began(0, 0, 1000), *steps(0, 0, 50, 1000, 0, 10.0), record("step", 60, loss=1.0, tokens=7)]
    assert run_log_from_records(records, "x").logged_tokens_at(np.array([60])) is None


def test_what_an_earlier_start_writes_after_a_later_one_does_not_count() -> None:
    old, new = {"start": "0000aaaa"}, {"start": "0000bbbb"}
    late = [step(30, loss=9.0), evaluation(30, "val", 9.0), checkpoint(30)]
    run_log = run_log_from_records(
        [
            *(one | old for one in (run(), step(10), step(20))),
            *(one | new for one in (run(100, 1), resume(20, 1), step(30, 1))),
            *(one | old for one in late),
            step(40, 1) | new,
        ],
        "two writers",
    )
    assert run_log.steps.iteration.tolist() == [10, 20, 30, 40]
    assert run_log.steps.loss.tolist() == pytest.approx([3.8, 3.6, 3.4, 3.2])
    assert (run_log.evals, run_log.checkpoints) == ((), ())


def test_a_record_of_an_absurd_iteration_is_skipped() -> None:
    records = [run(), step(10), step(10**19), step(-(10**19)), step(20)]
    assert run_log_from_records(records, "x").steps.iteration.tolist() == [10, 20]


def test_the_noise_of_a_difference_is_that_of_both_runs() -> None:
    """Standard errors of 0.01 and 0.04 make one of 0.041, and a difference of three times that is noise."""

    def with_loss(loss: float, stderr: float) -> RunLog:
        losses = [evaluation(0, "val", 4.0, stderr=stderr), evaluation(100, "val", loss, stderr=stderr)]
        return run_log_from_records([run(), *(step(at) for at in range(10, 110, 10)), *losses, end(100)], "x")

    def verdict(*runs: RunLog) -> set[str]:
        return {claim.id for claim in compared(*runs).verdict} & {"better", "equally-good"}

    exact, noisy = with_loss(2.0, 0.01), with_loss(2.06, 0.04)
    assert verdict(exact, noisy) == verdict(noisy, exact) == {"equally-good"}
    assert verdict(exact, with_loss(2.06, 0.01)) == {"better"}
    assert verdict(exact, with_loss(2.13, 0.04)) == {"better"}
