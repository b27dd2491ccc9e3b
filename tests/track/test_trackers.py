"""No tracker can harm a run, and which trackers there are."""

from __future__ import annotations

import json
import shutil
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fake_trackers import (
    FakeTracker,
    fail_at_third_step,
    findings,
    journal_losses,
    replace_wandb,
    resume,
    run_until_crash,
    table,
    with_delay,
)
from tiny import MakeConfig, records

from glassgpt.api import train
from glassgpt.config import TRACKERS, TrainConfig, requested_trackers
from glassgpt.errors import UserError
from glassgpt.record import sink
from glassgpt.record.journal import Record
from glassgpt.track import trackers
from glassgpt.track.tracker_feed import TrackerFeed
from glassgpt.track.trackers import CSV_COLUMNS, TRACKER_CLASSES, check_installed
from glassgpt.validate import find_config_problems


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    return replace_wandb(monkeypatch)


def test_one_that_raises_is_named_once_and_the_run_goes_on(
    tiny: MakeConfig,
    fake_wandb: FakeTracker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(record: Record) -> None:
        raise ConnectionError("no route to anywhere\nsecond line")

    received: list[Record] = []
    monkeypatch.setattr(fake_wandb, "log", fail)
    monkeypatch.setattr(sink.Sink, "__call__", with_delay(sink.Sink.__call__))
    run = train(tiny(max_iters=5, track="csv,wandb"), listeners=[received.append])
    assert (run.reason, run.iter) == ("finished", 5)
    finding = findings(run.out_dir)["wandb-failed"]
    assert finding["evidence"] == "ConnectionError: no route to anywhere"
    assert [record["id"] for record in received if record["kind"] == "finding"].count("wandb-failed") == 1
    assert records(run.out_dir)[-1]["kind"] == "end"
    assert len(table(run.out_dir / "steps.csv")) == 5  # the other one has everything
    assert "Traceback" not in capsys.readouterr().err


def test_one_that_raises_at_the_very_end_is_named_too(
    tiny: MakeConfig,
    fake_wandb: FakeTracker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(record: Record) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(fake_wandb, "end", fail)
    run = train(tiny(max_iters=2, track="wandb"))
    assert records(run.out_dir)[-1]["kind"] == "end"
    assert "warning: wandb failed at the end: ConnectionError: gone" in capsys.readouterr().err


def test_one_that_hangs_misses_records_and_the_run_says_how_many(
    tiny: MakeConfig,
    fake_wandb: FakeTracker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    released = threading.Event()
    monkeypatch.setattr(sink, "MAX_QUEUED_RECORDS", 6)
    monkeypatch.setattr(sink, "TRACKER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(fake_wandb, "begin", lambda run: released.wait(60))
    received: list[Record] = []

    def listen(record: Record) -> None:
        received.append(record)

    run = train(tiny(max_iters=30, track="wandb"), listeners=[listen])
    assert run.reason == "finished"
    assert sink.has_running_tracker()
    journal_records = records(run.out_dir)
    finding = findings(run.out_dir)["wandb-behind"]
    # It was at the record `run`; six waited; finding and end came after the count.
    missed = len(journal_records) - 1 - 6 - 2
    assert finding["values"]["missed_records"] == missed
    assert journal_records[-1]["kind"] == "end"
    stderr = capsys.readouterr().err
    assert "warning: wandb did not finish in 0 s; 8 records left" in stderr
    assert f"`glass track {run.out_dir} --to=wandb` sends it the rest" in stderr
    released.set()


def test_what_a_slow_one_missed_is_sent_later_all_of_it(
    tiny: MakeConfig, fake_wandb: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs for a while and misses records, then comes to itself: nothing in the middle may be lacking."""
    released = threading.Event()
    take = fake_wandb.log

    def slow(record: Record) -> None:
        released.wait(60)
        take(record)

    def call(self: sink.Sink, record: Record) -> None:
        if record["kind"] == "step" and record["iter"] == 20:
            released.set()
            while self._tracker_threads[0]._records.qsize():
                time.sleep(0.01)
        original(self, record)

    original = sink.Sink.__call__
    with monkeypatch.context() as patch:
        patch.setattr(sink, "MAX_QUEUED_RECORDS", 6)
        patch.setattr(fake_wandb, "log", slow)
        patch.setattr(sink.Sink, "__call__", call)
        run = train(tiny(max_iters=30, eval_interval=30, track="wandb"))
    assert "glass track" in findings(run.out_dir)["wandb-behind"]["advice"]
    live = len(fake_wandb.records)
    assert 0 < live < len(journal_losses(run.out_dir))
    assert (
        TrackerFeed("wandb", lambda: fake_wandb, run.out_dir).replay()
        == len(journal_losses(run.out_dir)) - live
    )
    assert fake_wandb.losses() == journal_losses(run.out_dir)


def test_one_that_fails_after_the_last_record_gets_the_rest_later(
    tiny: MakeConfig,
    fake_wandb: FakeTracker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By then the journal is closed: it has every record, and does not know which of them were logged."""
    run_has_ended = threading.Event()

    def close(self: sink.Sink) -> None:
        run_has_ended.set()
        original(self)

    original = sink.Sink.close
    with monkeypatch.context() as patch:
        patch.setattr(FakeTracker, "log", fail_at_third_step(run_has_ended))
        patch.setattr(sink.Sink, "close", close)
        run = train(tiny(max_iters=8, eval_interval=4, track="wandb"))
    assert "wandb-failed" not in findings(run.out_dir)
    expected = f"ConnectionError: gone; `glass track {run.out_dir} --to=wandb` sends it the rest"
    assert expected in capsys.readouterr().err
    assert (
        TrackerFeed("wandb", lambda: fake_wandb, run.out_dir).replay() == len(journal_losses(run.out_dir)) - 4
    )
    assert fake_wandb.losses() == journal_losses(run.out_dir)


def test_what_waited_for_a_tracker_when_the_run_was_killed_is_sent_at_the_resume(
    tiny: MakeConfig, fake_wandb: FakeTracker
) -> None:
    config = tiny(max_iters=20, eval_interval=4, track="wandb")
    run_until_crash(config, 11)
    progress_file = Path(config.out_dir, "told", "wandb.json")
    logged_until = [{**last, "iter": min(last["iter"], 6)} for last in json.loads(progress_file.read_text())]
    progress_file.write_text(
        json.dumps(logged_until)
    )  # as if the process had ended here, with the rest in the queue
    fake_wandb.records = [record for record in fake_wandb.records if record["iter"] <= 6]
    resume(config)
    assert [at for at, split, _ in fake_wandb.losses() if not split] == list(range(1, 21))


def test_without_a_progress_file_the_journal_says_what_was_logged(
    tiny: MakeConfig, fake_wandb: FakeTracker
) -> None:
    run = train(tiny(max_iters=4, track="wandb"))
    for content in ("", "[1]", '[{"kind": "step"}]'):  # cut off by a power failure, or of another make
        (run.out_dir / "told" / "wandb.json").write_text(content)
        assert TrackerFeed("wandb", lambda: fake_wandb, run.out_dir).replay() == 0
    shutil.rmtree(run.out_dir / "told")
    assert TrackerFeed("wandb", lambda: fake_wandb, run.out_dir).replay() == 0


def test_a_tracker_that_hangs_does_not_slow_the_run(
    tiny: MakeConfig, fake_wandb: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take a minute if any of 60 steps waited for it as long as one record hangs."""
    released = threading.Event()
    monkeypatch.setattr(sink, "TRACKER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(fake_wandb, "log", lambda record: released.wait(60))
    begin = time.monotonic()
    run = train(tiny(max_iters=60, track="wandb"))
    assert time.monotonic() - begin < 30
    assert run.iter == 60
    released.set()


@pytest.mark.parametrize(
    ("settings", "missing"),
    [({"track": "csv,trackio,wandb"}, ["trackio", "wandb"]), ({"wandb_log": True}, ["wandb"])],
)
def test_one_that_is_missing_is_reported_before_anything_is_written(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, missing: list[str]
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        train(tiny(**settings))
    assert caught.value.problems == [
        f'{name} is not installed: pip install "glassgpt[track]"' for name in missing
    ]
    assert not (tmp_path / "run").exists()


def test_a_broken_installation_is_a_finding_not_the_end(
    tiny: MakeConfig, fake_wandb: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Any:
        import_module("glassgpt.no_such_module")

    monkeypatch.setattr(trackers, "TRACKER_CLASSES", {"wandb": make})
    monkeypatch.setattr(sink.Sink, "__call__", with_delay(sink.Sink.__call__))
    run = train(tiny(max_iters=3, track="wandb"))
    assert run.reason == "finished"
    assert "ModuleNotFoundError" in findings(run.out_dir)["wandb-failed"]["evidence"]


def test_names_of_trackers() -> None:
    assert requested_trackers(TrainConfig(track=" csv, wandb,csv,")) == ("csv", "wandb")
    assert requested_trackers(TrainConfig(track="csv", wandb_log=True)) == ("csv", "wandb")
    assert requested_trackers(TrainConfig(wandb_project="x")) == ()
    assert set(TRACKER_CLASSES) == set(TRACKERS)
    (problem,) = find_config_problems(TrainConfig(track="csv,mlflow"))
    assert problem == "--track=mlflow is not one of csv, tensorboard, trackio, wandb"
    check_installed(["csv"])  # which is always there


# --- csv ---


def test_csv_files_are_tables_of_the_effective_records(tiny: MakeConfig) -> None:
    config = tiny(max_iters=20, eval_interval=4, track="csv")
    run_until_crash(config, 11)
    steps = Path(config.out_dir) / "steps.csv"
    assert [int(row["iter"]) for row in table(steps)] == list(range(1, 12))
    resume(config)
    step, evaluation = records(config.out_dir, "step"), records(config.out_dir, "eval")
    rows = table(steps)
    assert [int(row["iter"]) for row in rows] == list(range(1, 21))
    assert [float(row["loss"]) for row in rows] == [record["loss"] for record in step]
    assert [row["process"] for row in rows] == ["0"] * 8 + ["1"] * 12
    assert time.strptime(rows[0]["time"], "%Y-%m-%d %H:%M:%S")
    assert rows[0]["step_ms"] == ""  # not known
    rows = table(Path(config.out_dir) / "evals.csv")
    assert [(row["iter"], row["split"]) for row in rows] == [
        (str(record["iter"]), record["split"]) for record in evaluation
    ]


def test_csv_columns_are_fields_of_the_records(tiny: MakeConfig) -> None:
    run = train(tiny(max_iters=2))
    for kind, columns in CSV_COLUMNS.items():
        assert set(columns) <= set(records(run.out_dir, kind)[0])
