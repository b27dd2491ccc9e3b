"""A tracker has each iteration of a run once, whatever happened to it."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
import tracemalloc
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
    with_delay,
)
from tiny import MakeConfig, records

from glassgpt.api import train
from glassgpt.record import journal, sink
from glassgpt.record.journal import Record
from glassgpt.track import trackers
from glassgpt.track.tracker_feed import LoggedIters, TrackedRun, TrackerFeed, metrics_of


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    return replace_wandb(monkeypatch)


def test_a_tracker_logs_every_step_and_evaluation_in_order(tiny: MakeConfig, fake_wandb: FakeTracker) -> None:
    run = train(tiny(max_iters=20, log_interval=3, track="wandb"))
    assert fake_wandb.losses() == journal_losses(run.out_dir)
    assert len(fake_wandb.losses()) == 7 + 3 * 2
    assert [record["reason"] for record in fake_wandb.ended] == ["finished"]
    (opened,) = fake_wandb.opened
    assert (opened.name, opened.project, opened.directory) == ("run", "glassgpt", run.out_dir)
    assert opened.settings["learning_rate"] == 1e-2
    assert opened.settings["model.parameters"] > 1000


def test_metrics_have_the_names_that_the_page_gives_them() -> None:
    step = {"kind": "step", "iter": 3, "loss": 2.5, "mfu": None, "memory": {"rss": 7}, "clipped": 0.5}
    assert metrics_of(step) == {"train/loss": 2.5, "clipped": 0.5, "memory/rss": 7}
    evaluation = {"kind": "eval", "iter": 3, "split": "val", "loss": 2.0, "bits_per_byte": None}
    assert metrics_of(evaluation) == {"val/loss": 2.0}
    assert metrics_of(evaluation | {"split": "train"}) == {"train_split/loss": 2.0}
    assert metrics_of(evaluation | {"closing": True}) == {"val_whole/loss": 2.0}
    assert metrics_of({"kind": "checkpoint", "iter": 3, "bytes": 9}) == {}
    bad = metrics_of({"kind": "step", "iter": 3, "loss": math.nan, "lr": "high", "tokens": True})
    assert list(bad) == ["train/loss"]
    assert math.isnan(bad["train/loss"])


@pytest.mark.parametrize("forgets", [False, True])
def test_after_a_crash_nothing_is_logged_twice(
    tiny: MakeConfig, fake_wandb: FakeTracker, forgets: bool
) -> None:
    fake_wandb.can_rewind = forgets
    config = tiny(max_iters=20, eval_interval=4, track="wandb")
    run_until_crash(config, 11)  # the last checkpoint is of update 8
    before = fake_wandb.losses()
    assert max(at for at, *_ in before) == 11
    resume(config)
    received = [(at, split) for at, split, _ in fake_wandb.losses()]
    assert len(received) == len(set(received))
    assert sorted(fake_wandb.losses()) == sorted(journal_losses(config.out_dir))  # a resume is exact
    assert len({opened.id for opened in fake_wandb.opened}) == 1
    assert [opened.from_iter for opened in fake_wandb.opened] == [-1, 8]


def test_a_tracker_that_joins_at_a_resume_gets_the_earlier_records(
    tiny: MakeConfig, fake_wandb: FakeTracker
) -> None:
    config = tiny(max_iters=8, eval_interval=4)
    train(config)
    assert fake_wandb.opened == []
    resume(config, max_iters=12, track="wandb")
    assert fake_wandb.losses() == journal_losses(config.out_dir)
    resume(config, max_iters=16, track="")  # and one that pauses gets what it missed
    resume(config, max_iters=20, track="wandb")
    assert fake_wandb.losses() == journal_losses(config.out_dir)


def test_a_resumed_run_keeps_its_trackers(tiny: MakeConfig, fake_wandb: FakeTracker) -> None:
    from glassgpt.api import resume as resume_run

    config = tiny(max_iters=4, track="wandb")
    train(config)
    resume_run(config.out_dir, max_iters=6)
    assert max(at for at, *_ in fake_wandb.losses()) == 6


def test_nanogpts_settings_mean_the_same(tiny: MakeConfig, fake_wandb: FakeTracker) -> None:
    train(tiny(max_iters=2, wandb_log=True, wandb_project="owt", wandb_run_name="gpt2"))
    (opened,) = fake_wandb.opened
    assert (opened.project, opened.name) == ("owt", "gpt2")


def test_two_runs_have_two_ids(tiny: MakeConfig, fake_wandb: FakeTracker) -> None:
    for name in ("one", "two"):
        train(tiny(name, max_iters=1, track="wandb"))
    assert len({opened.id for opened in fake_wandb.opened}) == 2


def test_a_tracker_that_failed_gets_the_rest_from_the_next_process(
    tiny: MakeConfig, fake_wandb: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FakeTracker.log

    def fragile(self: FakeTracker, record: Record) -> None:
        if record["iter"] == 3:
            raise ConnectionError("gone")
        original(self, record)

    config = tiny(max_iters=8, eval_interval=4, track="wandb")
    with monkeypatch.context() as patch:
        patch.setattr(FakeTracker, "log", fragile)
        patch.setattr(sink.Sink, "__call__", with_delay(sink.Sink.__call__))
        train(config)
    assert max(at for at, *_ in fake_wandb.losses()) == 2
    resume(config, max_iters=10)
    after = [at for at, split, _ in fake_wandb.losses() if not split]
    assert after == list(range(1, 11))


def test_one_that_fails_late_gets_later_what_it_lacks(
    tiny: MakeConfig, fake_wandb: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracker gets a record when the run is far ahead: the journal has more than it logged."""
    run_is_ahead = threading.Event()

    def call(self: sink.Sink, record: Record) -> None:
        if record["kind"] == "step" and record["iter"] == 7:
            run_is_ahead.set()
            for mailbox in self._tracker_threads:
                mailbox.wait(time.monotonic() + 20)
        original(self, record)

    original = sink.Sink.__call__
    config = tiny(max_iters=8, eval_interval=4, track="wandb")
    with monkeypatch.context() as patch:
        patch.setattr(FakeTracker, "log", fail_at_third_step(run_is_ahead))
        patch.setattr(sink.Sink, "__call__", call)
        run = train(config)
    finding = findings(run.out_dir)["wandb-failed"]
    assert finding["told"] == [
        {"kind": "eval", "split": "train", "closing": False, "iter": 0},
        {"kind": "eval", "split": "val", "closing": False, "iter": 0},
        {"kind": "step", "split": "", "closing": False, "iter": 2},
    ]
    count = TrackerFeed("wandb", lambda: fake_wandb, run.out_dir).replay()
    assert fake_wandb.losses() == journal_losses(run.out_dir)
    assert count == len(fake_wandb.records) - 4


def test_one_that_could_not_be_opened_gets_everything_later(
    tiny: MakeConfig, fake_wandb: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(run: TrackedRun) -> LoggedIters:
        raise ConnectionError("gone")

    config = tiny(max_iters=8, eval_interval=4, track="wandb")
    with monkeypatch.context() as patch:
        patch.setattr(fake_wandb, "begin", closed)
        patch.setattr(sink.Sink, "__call__", with_delay(sink.Sink.__call__))
        run = train(config)
    assert findings(run.out_dir)["wandb-failed"]["told"] == []
    TrackerFeed("wandb", lambda: fake_wandb, run.out_dir).replay()
    assert fake_wandb.losses() == journal_losses(run.out_dir)


def test_one_that_a_later_process_cannot_open_still_has_what_it_logged(
    tiny: MakeConfig, fake_wandb: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(run: TrackedRun) -> LoggedIters:
        raise ConnectionError("gone")

    config = tiny(max_iters=4, eval_interval=4, track="wandb")
    train(config)
    with monkeypatch.context() as patch:
        patch.setattr(fake_wandb, "begin", closed)
        patch.setattr(sink.Sink, "__call__", with_delay(sink.Sink.__call__))
        resume(config, max_iters=8)
    assert {last["iter"] for last in findings(config.out_dir)["wandb-failed"]["told"]} == {4}
    resume(config, max_iters=10)
    assert fake_wandb.losses() == journal_losses(config.out_dir)


def test_what_was_superseded_is_not_logged_if_another_tracker_fails_at_once(
    tiny: MakeConfig, fake_wandb: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finding then comes before the record that says from where the run goes on."""
    config = tiny(max_iters=20, eval_interval=4)
    run_until_crash(config, 11)
    make_feed = trackers.make_feed

    def impatient(name: str, run_dir: Path) -> Any:
        return make_feed(name, run_dir) if name == "wandb" else FailsAtTheFirst()

    monkeypatch.setattr(trackers, "make_feed", impatient)
    monkeypatch.setattr(sink.Sink, "__call__", with_delay(sink.Sink.__call__))
    resume(config, track="csv,wandb")
    kinds = [record["kind"] for record in records(config.out_dir) if record["process"] == 1]
    assert kinds[:3] == ["run", "finding", "resume"]
    assert fake_wandb.losses() == journal_losses(config.out_dir)
    assert [opened.from_iter for opened in fake_wandb.opened] == [8]


class FailsAtTheFirst:
    """A listener for a tracker."""

    def __call__(self, record: Record) -> None:
        raise ConnectionError("gone")

    def last_logged_records(self) -> list[Record]:
        return []


# --- telling afterwards ---


def test_a_finished_run_can_be_sent_again(tiny: MakeConfig, fake_wandb: FakeTracker) -> None:
    config = tiny(max_iters=20, eval_interval=4)
    run_until_crash(config, 11)
    resume(config)
    count = TrackerFeed("wandb", lambda: fake_wandb, Path(config.out_dir)).replay()
    assert fake_wandb.losses() == journal_losses(config.out_dir)
    assert count == len(fake_wandb.records)
    assert [record["kind"] for record in fake_wandb.ended] == ["end"]
    assert (
        TrackerFeed("wandb", lambda: fake_wandb, Path(config.out_dir)).replay() == 0
    )  # it has all of it now


def test_what_was_logged_during_the_run_is_not_logged_again(
    tiny: MakeConfig, fake_wandb: FakeTracker
) -> None:
    run = train(tiny(max_iters=4, track="wandb"))
    assert TrackerFeed("wandb", lambda: fake_wandb, run.out_dir).replay() == 0


def test_a_torn_journal_can_be_sent(tiny: MakeConfig, fake_wandb: FakeTracker) -> None:
    run = train(tiny(max_iters=4))
    path = run.out_dir / journal.FILE_NAME
    path.write_bytes(path.read_bytes()[:-40])  # in the middle of the end
    TrackerFeed("wandb", lambda: fake_wandb, run.out_dir).replay()
    assert fake_wandb.losses() == journal_losses(run.out_dir)
    assert dataclasses.asdict(fake_wandb.opened[0])["name"] == "run"


def test_what_a_tracker_has_already_is_not_kept_in_memory(tmp_path: Path) -> None:
    class HasAll(FakeTracker):
        def begin(self, run: TrackedRun) -> LoggedIters:
            return {("step", "", False): 10**9}

    def step(process: int, iteration: int) -> Record:
        return {"kind": "step", "time": 1.0, "process": process, "iter": iteration, "text": "x" * 2000}

    run = {"kind": "run", "time": 1.0, "process": 0, "iter": 0, "config": {}}
    (tmp_path / journal.FILE_NAME).write_bytes(
        journal.encode_line(run) + b"".join(journal.encode_line(step(0, number)) for number in range(3000))
    )
    feed = TrackerFeed("wandb", HasAll, tmp_path)
    tracemalloc.start()
    feed(run | {"process": 1})
    feed({"kind": "resume", "time": 2.0, "process": 1, "iter": 2000, "from_iter": 2000})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
