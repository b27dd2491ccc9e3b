"""A look into some updates: what it finds, that it does not count, and that it cannot end a run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Crash, MakeConfig, crash_before, inject_non_finite, records, resume, run_losses

from glassgpt.config import MAX_PROFILE_UPDATES, TrainConfig, profile_window
from glassgpt.estimate.step_timing import LogInterval
from glassgpt.record.ledger import Ledger
from glassgpt.training.profiler import ProfileRow, build_table, covered_time
from glassgpt.training.session import train
from glassgpt.validate import find_config_problems

MATMULS = 2 * 4 + 1  # of a model of two blocks, forward: four each, and the head


def trace_of(run_dir: Path, record: dict[str, Any]) -> list[dict[str, Any]]:
    with gzip.open(run_dir / record["trace"], "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def test_the_record_tells_what_took_the_time(tiny: MakeConfig) -> None:
    run = train(tiny(max_iters=12, eval_interval=100, profile="4:9"))
    (record,) = records(run.out_dir, "profile")
    assert (record["from_iter"], record["iter"], record["updates"]) == (4, 9, 5)
    assert record["of"] == "operators"
    assert record["trace"] == "profile/trace-4-9.json.gz"
    assert record["bytes"] == (run.out_dir / record["trace"]).stat().st_size
    assert 0 < record["busy"] <= 1
    pieces = {piece["name"]: piece for piece in record["top"]}
    # Each is multiplied forward, and backward for its input and its weights.
    assert pieces["aten::mm"]["calls"] == 5 * 3 * MATMULS
    shares = [piece["share"] for piece in record["top"]]
    assert shares == sorted(shares, reverse=True)
    assert 0.5 < sum(shares) <= 1
    whole_ms = record["top"][0]["ms"] / shares[0]
    assert whole_ms <= record["wall_ms"]


def test_the_trace_is_one_that_perfetto_reads(tiny: MakeConfig) -> None:
    run = train(tiny(max_iters=6, profile="2:5"))
    (record,) = records(run.out_dir, "profile")
    events = trace_of(run.out_dir, record)
    assert sum(event.get("name") == "glass: update" and event["ph"] == "X" for event in events) == 3
    assert sum(event.get("name") == "aten::mm" for event in events) == 3 * 3 * MATMULS


def test_an_evaluation_in_between_is_not_in_the_table(tiny: MakeConfig) -> None:
    run = train(tiny(max_iters=8, eval_interval=3, profile="2:5"))
    (record,) = records(run.out_dir, "profile")
    pieces = {piece["name"]: piece for piece in record["top"]}
    assert record["updates"] == 3
    assert pieces["aten::mm"]["calls"] == 3 * 3 * MATMULS


def test_being_watched_changes_no_number(tiny: MakeConfig) -> None:
    plain = train(tiny("plain", max_iters=8, dropout=0.1))
    watched = train(tiny("watched", max_iters=8, dropout=0.1, profile="2:6"))
    assert run_losses(plain.out_dir) == run_losses(watched.out_dir)


def test_watched_updates_are_no_part_of_the_step_time(tiny: MakeConfig) -> None:
    run = train(tiny(max_iters=9, log_interval=3, eval_interval=100, profile="3:8"))
    first, watched, mixed = records(run.out_dir, "step")
    assert first["step_ms"] is not None
    assert (watched["step_ms"], watched["tokens_per_s"], watched["mfu"]) == (None, None, None)
    assert watched["phases"]["log"] > 0
    assert watched["updates"] == 3  # whose losses are logged all the same
    # Only the ninth update counts, so the step time is all of what train and data have.
    assert mixed["step_ms"] == pytest.approx(mixed["phases"]["train"] + mixed["phases"]["data"], rel=0.02)
    (end,) = records(run.out_dir, "end")
    assert end["wall_s"] == pytest.approx(sum(end["ledger"].values()))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_out_goes_to_log_by_the_clock() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    interval = LogInterval(ledger)

    def update(train_s: float, data_s: float) -> None:
        with ledger.phase("train"):
            clock.now += train_s
            with ledger.phase("data"):
                clock.now += data_s
        interval.count_update()

    update(1.0, 0.5)
    before = ledger.seconds()
    with ledger.phase("log"):
        clock.now += 4.0  # the profiler begins
        update(7.0, 2.0)
    interval.exclude_last_update(before)
    update(2.0, 0.5)
    interval.correct_data_wait(1.5)  # by the card's account it waited half a second more
    assert interval.updates == 2
    seconds, phases = interval.close()
    assert seconds == pytest.approx(1.0 + 0.5 + 2.0 + 0.5)
    assert phases["log"] == pytest.approx(4.0 + 7.0 + 2.0)
    assert phases["data"] == pytest.approx(0.5 + 1.5)
    assert sum(phases.values()) == pytest.approx(clock.now)


def test_a_window_that_makes_no_sense(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("abc", "is not of the form 10:20"),
        ("10", "is not of the form 10:20"),
        ("10:", "is not of the form 10:20"),
        ("-1:5", "is not of the form 10:20"),
        ("10:20:30", "is not of the form 10:20"),
        ("20:10", "ends before it begins; try --profile=10:20"),
        ("5:5", "has no update in it; try --profile=5:6"),
        ("0:5", "has the first update in it"),
        ("90:101", "goes past --max_iters=100"),
    ]
    for window, problem in cases:
        with subtests.test(window):
            (message,) = find_config_problems(TrainConfig(max_iters=100, profile=window))
            assert message.startswith(f"--profile={window} {problem}")


@pytest.mark.parametrize("window", ["0:1", "0:40", "20:10", "5:5"])
def test_what_is_proposed_instead_makes_sense(window: str) -> None:
    (problem,) = find_config_problems(TrainConfig(max_iters=40, profile=window))
    assert (
        find_config_problems(TrainConfig(max_iters=40, profile=problem.partition("try --profile=")[2])) == []
    )


def test_windows_that_do() -> None:
    assert profile_window(TrainConfig(profile=" 10:20 ")) == (10, 20)
    assert profile_window(TrainConfig()) is None
    assert find_config_problems(TrainConfig(profile=f"1:{MAX_PROFILE_UPDATES + 1}")) == []
    (problem,) = find_config_problems(TrainConfig(profile=f"1:{MAX_PROFILE_UPDATES + 2}"))
    assert "is too large" in problem


# --- runs that end, resume or fail ---


def test_a_run_that_ends_early_shows_what_it_saw(tiny: MakeConfig) -> None:
    run = train(tiny(max_iters=40, eval_interval=2, patience=3, learning_rate=1e-12, profile="3:30"))
    assert run.reason == "stopped early"
    (record,) = records(run.out_dir, "profile")
    assert record["iter"] == run.iter < 30
    assert record["updates"] == run.iter - 3


def test_a_resumed_run_looks_into_what_is_left_but_not_into_its_first(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=12, eval_interval=4, profile="2:9")
    with monkeypatch.context() as patch:
        crash_before(patch, 6)
        with pytest.raises(Crash):
            train(config)
    assert records(config.out_dir, "profile") == []
    resume(config)
    (record,) = records(config.out_dir, "profile")
    assert (record["from_iter"], record["iter"]) == (5, 9)
    resume(config, max_iters=14)  # past it there is nothing to do
    assert len(records(config.out_dir, "profile")) == 1


def test_a_bad_loss_under_the_profiler_ends_the_run_as_ever(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject_non_finite(monkeypatch, 4, "loss")
    run = train(tiny(max_iters=9, profile="2:7"))
    assert (run.reason, run.exit_code) == ("not finite", 3)
    monkeypatch.undo()
    again = train(tiny("again", max_iters=5, profile="2:4"))  # the profiler was put away
    assert len(records(again.out_dir, "profile")) == 1


@pytest.mark.parametrize("what", ["start", "stop", "export_chrome_trace"])
def test_a_profiler_that_fails_is_a_finding(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("no CUPTI\nand more")

    original = getattr(torch.profiler.profile, what)
    monkeypatch.setattr(torch.profiler.profile, what, fail)
    run = train(tiny(max_iters=8, profile="2:5"))
    assert run.reason == "finished"
    (finding,) = [record for record in records(run.out_dir, "finding") if record["id"] == "profile-failed"]
    assert finding["evidence"] == "RuntimeError: no CUPTI"
    assert records(run.out_dir, "profile") == []
    monkeypatch.setattr(torch.profiler.profile, what, original)
    if what == "stop":  # which is still running now
        torch.autograd.profiler._disable_profiler()  # type: ignore[attr-defined]


# --- the arithmetic ---


def test_the_table() -> None:
    assert build_table([("a", 1000.0), ("b", 5000.0), ("a", 2000.0)]) == [
        ProfileRow("b", 5.0, 5 / 8, 1),
        ProfileRow("a", 3.0, 3 / 8, 2),
    ]
    assert build_table([]) == []
    assert len(build_table([("x" * 9999, 1.0)])[0].name) == 300


def test_time_that_is_covered_counts_once() -> None:
    assert covered_time([]) == 0
    assert covered_time([(5.0, 9.0), (0.0, 2.0), (1.0, 3.0), (6.0, 7.0)]) == 3 + 4
