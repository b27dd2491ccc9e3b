"""The forecast of a run, and how it compares with the run."""

from __future__ import annotations

import itertools
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import MakeConfig, records

from glassgpt.estimate.forecast import RunForecast, TimeForecast
from glassgpt.estimate.local_history import read_rows
from glassgpt.estimate.loss_law import LossLawInputs, predict_loss_curve
from glassgpt.estimate.memory import MemoryEstimate
from glassgpt.estimate.speed import ThroughputEstimate
from glassgpt.i18n import translate, use_language
from glassgpt.record.finding import read_finding
from glassgpt.record.machine import CpuTimes
from glassgpt.show.terminal.run_lines import forecast_vs_actual_line
from glassgpt.training import probe
from glassgpt.training.forecast_check import (
    CpuContention,
    ForecastCheck,
    forecast_miss_finding,
    loss_curve_finding,
    take_cpu_contention_finding,
    take_pace_finding,
)
from glassgpt.training.session import train

GIB = 2**30
MEMORY = {"rss": GIB, "allocated_peak": 10 * GIB}


def make_check(tokens_per_s: float, seconds: float = 60.0, waited_s: float = 0.0) -> ForecastCheck:
    pace = ThroughputEstimate(800.0, 1000.0, 1200.0, (40.0, 50.0, 60.0), "two rows")
    times = TimeForecast(
        throughput=pace,
        updates_s=(50.0, 60.0, 75.0),
        evaluation_s=6.0,
        evaluations=3,
        saving_s=1.0,
        start_s=5.0,
    )
    forecast = RunForecast(MemoryEstimate("loss", {"all": 10 * GIB}, 0), True, times)
    check = ForecastCheck(forecast)
    check.add(int(tokens_per_s * seconds), seconds, waited_s, MEMORY)
    return check


def test_what_the_process_held_before_is_not_the_runs() -> None:
    check = make_check(900.0)
    check.memory_before_bytes = 4 * GIB
    check.peak_memory_bytes = 0
    check.add(1, 1.0, 0.0, MEMORY)
    assert check.as_dict(60.0, True)["memory_bytes"]["measured"] == 6 * GIB


def test_the_copy_for_the_last_checkpoint_counts_on_a_cpu(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the last log line, and is in the forecast."""
    rss = itertools.count(1)
    monkeypatch.setattr(probe, "memory_now", lambda device: {"rss": next(rss)})
    monkeypatch.setattr("glassgpt.record.machine.peak_resident_bytes", lambda: 0)
    config = tiny(max_iters=2, eval_interval=2)
    train(config)
    logged = max(record["memory"]["rss"] for record in records(config.out_dir, "step"))
    (end,) = records(config.out_dir, "end")
    assert end["forecast"]["memory_bytes"]["measured"] == logged + 1
    (run,) = records(config.out_dir, "run")
    assert "copy to be saved" in run["forecast"]["memory_parts"]


def test_a_little_of_a_card_is_no_miss() -> None:
    check = make_check(900.0)
    for most, is_told in ((11.2 * GIB, True), (10.9 * GIB, False)):
        check.peak_memory_bytes = int(most)
        assert (forecast_miss_finding(check, 9, 60.0, finished=False) is not None) == is_told
    check.forecast = replace(check.forecast, memory=MemoryEstimate("loss", {"all": GIB // 8}, 0))
    for most, is_told in ((GIB // 2, True), (GIB // 4, False)):
        check.peak_memory_bytes = most
        assert (forecast_miss_finding(check, 9, 60.0, finished=False) is not None) == is_told


def test_on_a_cpu_the_peak_inside_an_update_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    check = make_check(900.0)
    check.forecast = replace(check.forecast, on_card=False)
    check.process_peak_before_bytes = 3 * GIB
    check.peak_memory_bytes = 0
    monkeypatch.setattr("glassgpt.record.machine.peak_resident_bytes", lambda: 4 * GIB)
    assert check.measured_memory_bytes == 0  # nothing was logged: an Apple GPU
    check.add_memory({"rss": GIB})
    assert check.measured_memory_bytes == 4 * GIB
    monkeypatch.setattr("glassgpt.record.machine.peak_resident_bytes", lambda: 3 * GIB)
    assert check.measured_memory_bytes == GIB  # the peak is of an earlier run in this process


# --- the revised forecast ---


def test_the_first_updates_revise_the_forecast_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check = make_check(900.0, seconds=2.0)
    assert check.measured_band("cuda") is None  # one interval
    check.add(1800, 2.0, 0.0, MEMORY)
    check.add(1800, 0.9, 0.0, MEMORY)
    assert check.measured_band("cuda") is None  # 4.9 s
    check.add(180, 0.2, 0.0, MEMORY)
    band = check.measured_band("cuda")
    assert band is not None
    assert band[1] == pytest.approx(900)
    assert band[0] < 900 < 2000 * 0.9 < band[2] + 900
    check.revised_total_s = (1.0, 2.0, 3.0)
    assert check.measured_band("cuda") is None
    assert check.as_dict(60.0, True)["total_s"]["revised"] == [1.0, 2.0, 3.0]


def test_a_run_records_its_revised_forecast(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.training.forecast_check._MIN_PACE_SECONDS", 0.0)
    config = tiny(max_iters=40, eval_interval=20, log_interval=5)
    train(config)
    (revised,) = records(config.out_dir, "forecast")
    steps = records(config.out_dir, "step")
    counted = [step for step in steps if step["iter"] <= revised["iter"]]
    assert len(counted) == 3  # log intervals
    assert revised["updates"] == revised["iter"] - 1  # the first one warms up
    assert revised["tokens_per_s"] == sorted(revised["tokens_per_s"])
    mid = revised["tokens_per_s"][1]
    assert (
        min(step["tokens_per_s"] for step in counted) <= mid <= max(step["tokens_per_s"] for step in counted)
    )
    per_update = 4 * 8
    assert revised["remaining_s"] == sorted(revised["remaining_s"])
    assert revised["remaining_s"][1] >= (40 - revised["iter"]) * per_update / mid
    elapsed = [total - left for total, left in zip(revised["total_s"], revised["remaining_s"], strict=True)]
    assert elapsed == pytest.approx([elapsed[0]] * 3)
    (end,) = records(config.out_dir, "end")
    assert end["forecast"]["total_s"]["revised"] == revised["total_s"]
    assert 0 < elapsed[0] < end["wall_s"]


# --- the local history ---


def test_a_finished_run_is_kept_in_the_history(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLASSGPT_CACHE_DIR", str(tmp_path / "cache"))
    train(tiny("short"))
    assert read_rows() == ()  # too short to say anything
    monkeypatch.setattr("glassgpt.training.session.MIN_HISTORY_SECONDS", 0.0)
    train(tiny("off", history="off"))
    assert read_rows() == ()
    config = tiny("kept", max_iters=30)
    train(config)
    (row,) = read_rows()
    (end,) = records(config.out_dir, "end")
    assert row.tokens_per_s == end["forecast"]["tokens_per_s"]["measured"]
    assert row.peak_bytes == end["forecast"]["memory_bytes"]["measured"]
    assert (row.updates, row.ranks, row.threads) == (29, 1, 1)
    assert (row.work["n_embd"], row.work["batch_size"], row.work["dtype"]) == (16, 4, "float32")
    assert row.start_s == pytest.approx(end["ledger"]["startup"] + end["ledger"]["compile"])
    text = (tmp_path / "cache" / "history.jsonl").read_text()
    assert "tiny" not in text
    assert str(tmp_path) not in text


def test_the_next_run_knows_the_last(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLASSGPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("glassgpt.training.session.MIN_HISTORY_SECONDS", 0.0)
    monkeypatch.setattr("glassgpt.estimate.local_history.MIN_HISTORY_SECONDS", 0.0)
    monkeypatch.setattr("glassgpt.estimate.local_history._MAX_BUSY_SHARE", 99.0)
    sources = {}
    for name, history in (("first", "on"), ("second", "on"), ("third", "off")):
        config = tiny(name, history=history, probe_seconds=0.01)
        train(config)
        (run,) = records(config.out_dir, "run")
        sources[name] = run["forecast"]["source"]
    assert sources == {"first": "reference runs", "second": "history", "third": "reference runs"}


def finding(check: ForecastCheck) -> Any:
    record = take_pace_finding(check, 7)
    assert record is not None
    return record


def test_a_normal_speed_is_called_normal_once() -> None:
    check = make_check(900.0)
    record = finding(check)
    assert record["severity"] == "info"
    assert record["messages"]["title"] == ["pace.title.normal"]
    assert record["values"] == {
        "tokens_per_s": 900.0, "iteration": 7, "why": "two rows",
        "expected_low": 800.0, "expected_high": 1200.0,
    }  # fmt: skip
    assert take_pace_finding(check, 8) is None
    fast = finding(make_check(1300.0))
    assert (fast["messages"]["title"], fast["values"]["tokens_per_s"]) == (["pace.title.fast"], 1300.0)


def test_it_takes_a_while_to_tell() -> None:
    assert take_pace_finding(make_check(900.0, seconds=4.9), 7) is None
    unknown = ForecastCheck(RunForecast(MemoryEstimate("loss", {}, 0), True))
    unknown.add(100, 10.0, 0.0, MEMORY)
    assert take_pace_finding(unknown, 7) is None


def test_a_slow_run_hears_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.record.machine.load_average", lambda: 0.0)
    assert finding(make_check(100.0))["severity"] == "advice"
    assert "glass doctor" in finding(make_check(100.0))["advice"]
    waiting = finding(make_check(100.0, waited_s=30.0))
    assert waiting["messages"]["explanation"][0] == "pace.explanation.data_wait"
    assert waiting["values"]["data_wait_share"] == 0.5
    monkeypatch.setattr("glassgpt.record.machine.load_average", lambda: 99.0)
    monkeypatch.setattr("glassgpt.training.forecast_check.usable_cores", lambda: 2)
    busy = finding(make_check(100.0))
    assert busy["messages"]["explanation"][0] == "pace.explanation.busy"
    assert (busy["values"]["load"], busy["values"]["cores"]) == (99.0, 2)


def test_what_a_slow_run_is_advised_is_understood_without_the_explanation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The console prints title, evidence and advice."""
    monkeypatch.setattr("glassgpt.record.machine.load_average", lambda: 99.0)
    monkeypatch.setattr("glassgpt.training.forecast_check.usable_cores", lambda: 2)
    assert finding(make_check(100.0))["messages"]["advice"] == ["pace.advice.busy"]
    with_command = take_pace_finding(make_check(100.0), 7, "glass train --threads=1")
    assert with_command is not None
    assert "`glass train --threads=1`" in with_command["advice"]
    waiting = finding(make_check(100.0, waited_s=30.0))
    assert waiting["messages"]["advice"] == ["pace.advice.data_wait"]


def test_cores_that_are_taken_during_a_run_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 tokens/s on two cores, then two other programs come."""
    monkeypatch.setattr("glassgpt.training.forecast_check.usable_cores", lambda: 2)

    def at(clock: float, others: float, own: float) -> CpuTimes:
        return CpuTimes(clock, others + own, own)

    def look(now: CpuTimes, threads: int = 2) -> Any:
        return take_cpu_contention_finding(check, 9, threads, "glass train --threads=1", now)

    check = ForecastCheck(make_check(1000.0).forecast, cpu_contention=CpuContention(at(0.0, 0.0, 0.0)))
    check.add(1000, 1.0, 0.0, MEMORY)
    assert look(at(1.0, 0.0, 2.0)) is None  # too early to tell
    check.add(9000, 9.0, 0.0, MEMORY)
    assert look(at(10.0, 0.0, 20.0)) is None
    check.add(5000, 10.0, 0.0, MEMORY)
    quiet = replace(check, cpu_contention=replace(check.cpu_contention))
    assert (
        take_cpu_contention_finding(quiet, 9, 2, "glass", at(20.0, 0.1, 39.9)) is None
    )  # slower, but not by others
    record = look(at(20.0, 10.0, 30.0))
    assert record["id"] == "cores-taken"
    values = {"tokens_per_s": 500.0, "best_tokens_per_s": 1000.0}
    values |= {"other_cores": 1.0, "cores": 2, "threads": 2, "own_cores": 1.0}
    assert record["values"] == {**values, "command": "glass train --threads=1"}
    assert "`glass train --threads=1`" in record["advice"]
    check.add(5000, 10.0, 0.0, MEMORY)
    assert look(at(30.0, 20.0, 40.0)) is None
    # Taken from the start, there is no speed to compare with, but the process hardly runs.
    check = ForecastCheck(check.forecast, cpu_contention=CpuContention(at(0.0, 0.0, 0.0)))
    check.add(1000, 10.0, 0.0, MEMORY)
    assert look(at(10.0, 17.0, 3.0)) is not None


LATE = translate("forecast-missed.phrase.time", run_s=106.0, low_s=57.8, high_s=95.5)
LARGE = translate("forecast-missed.phrase.memory", peak_bytes=11.5 * GIB, expected_bytes=10 * GIB)


def test_a_miss_of_more_than_a_tenth_is_told() -> None:
    check = make_check(1000.0)  # in all 58 to 96 s were forecast
    assert check.forecast.total_s == pytest.approx((57.8, 72.0, 95.5))
    assert forecast_miss_finding(check, 9, 105.0, finished=True) is None
    late = forecast_miss_finding(check, 9, 106.0, finished=True)
    assert late is not None
    assert late["values"]["misses"] == [LATE]
    assert forecast_miss_finding(check, 9, 106.0, finished=False) is None  # stopped runs are shorter
    check.peak_memory_bytes = int(11.5 * GIB)
    large = forecast_miss_finding(check, 9, 72.0, finished=True)
    assert large is not None
    assert large["values"]["misses"] == [LARGE]


def test_a_short_or_stopped_run_that_took_more_of_a_card_is_told_too() -> None:
    check = make_check(1000.0)
    check.peak_memory_bytes = int(11.5 * GIB)
    for wall_s, finished in ((20.0, True), (200.0, False)):
        record = forecast_miss_finding(check, 9, wall_s, finished)
        assert record is not None
        assert record["values"]["misses"] == [LARGE]
    check.peak_memory_bytes = int(8 * GIB)  # it may have been stopped before it needed all
    assert forecast_miss_finding(check, 9, 200.0, finished=False) is None


def test_tuning_is_no_part_of_what_was_forecast() -> None:
    check = make_check(1000.0)
    check.tuning_s = 90.0
    assert forecast_miss_finding(check, 9, 105.0 + 90.0, finished=True) is None
    late = forecast_miss_finding(check, 9, 106.0 + 90.0, finished=True)
    assert late is not None
    assert late["values"]["misses"] == [LATE, translate("forecast-missed.phrase.tuning", tuning_s=90.0)]
    assert "1m 30s of --tune" in late["evidence"]
    assert forecast_miss_finding(check, 9, 50.0 + 90.0, finished=True) is None  # a short run
    total = check.as_dict(72.0 + 90.0, finished=True)["total_s"]
    assert (total["measured"], total["tuning_s"]) == (72.0, 90.0)
    assert forecast_vs_actual_line(check.as_dict(72.0 + 90.0, finished=True)).endswith(
        "1m 12s (58 s to 1m 36s), without the 1m 30s of --tune"
    )
    assert "--tune" not in forecast_vs_actual_line(make_check(1000.0).as_dict(72.0, finished=True))


def test_a_loss_is_held_against_its_course() -> None:
    setup = LossLawInputs(
        parameters=10_646_784, vocab_size=65, batch_tokens=16_384, max_iters=5000, train_tokens=1_003_854,
        tokenizer="char", bytes_per_token=1.0, dataset="shakespeare_char", dropout=0.2, learning_rate=1e-3,
        warmup_iters=100,
    )  # fmt: skip
    check = make_check(1000.0)
    assert loss_curve_finding(check, 1750, 1.47) is None  # nothing is expected of it
    check.expectation = predict_loss_curve(setup)
    usual = loss_curve_finding(check, 1750, 1.47)
    assert usual is not None
    assert usual["severity"] == "info"
    high = loss_curve_finding(check, 1750, 2.9)
    assert high is not None
    assert high["severity"] == "advice"
    assert (high["messages"]["title"], high["values"]["val_loss"]) == (["loss-course.title.above"], 2.9)
    for language, script in (("hi", "DEVANAGARI"), ("ar", "ARABIC")):
        with use_language(language):
            read = read_finding(high)
            for part in (read.title, read.evidence, read.explanation, read.advice):
                assert script in {unicodedata.name(character, "").split()[0] for character in part}, part
    assert loss_curve_finding(check, 150, 2.9) is None
    assert loss_curve_finding(check, 1750, None) is None


def test_the_end_has_both_figures() -> None:
    fields = make_check(1000.0).as_dict(72.0, finished=True)
    assert fields["memory_bytes"] == {"expected": 10 * GIB, "measured": 10 * GIB}
    assert fields["tokens_per_s"] == {"expected": [800.0, 1000.0, 1200.0], "measured": 1000.0}
    assert fields["total_s"]["measured"] == 72.0
    assert make_check(1000.0).as_dict(72.0, finished=False)["total_s"]["measured"] is None
