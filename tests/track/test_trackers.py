"""A tracker has each iteration of a run once, whatever happened to it; and no tracker can harm a run."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from glassgpt.account import journal, sink
from glassgpt.account.journal import Record
from glassgpt.config import TRACKERS, TrainConfig, find_problems, trackers_asked
from glassgpt.errors import UserError
from glassgpt.track import trackers
from glassgpt.track.follower import Follower
from glassgpt.track.metrics import metrics_of
from glassgpt.track.to_csv import COLUMNS
from glassgpt.track.tracker import Told, TrackedRun
from glassgpt.track.trackers import MAKERS, check_installed
from glassgpt.train.learner import Learner
from glassgpt.train.session import train

MakeConfig = Callable[..., TrainConfig]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only this machine may be spoken to: wandb has a process of its own here."""
    connect = socket.socket.connect

    def only_here(self: socket.socket, address: Any) -> None:
        away = isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost")
        assert not away, f"a tracker wants to reach {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_here)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


def records(run_dir: Path | str, kind: str | None = None) -> list[Record]:
    """What holds."""
    found = journal.current(journal.read(Path(run_dir) / journal.NAME))
    return [record for record in found if kind in (None, record["kind"])]


def resume(config: TrainConfig, **changes: Any) -> None:
    train(dataclasses.replace(config, init_from="resume", **changes))


def run_until_crash(config: TrainConfig, number: int) -> None:
    """It fails when it comes to update `number`, from 0."""
    original = Learner.update

    def update(learner: Learner, at: int, first_sequence: int) -> None:
        if at == number:
            raise OSError("on purpose")
        original(learner, at, first_sequence)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", update)
        with pytest.raises(OSError, match="on purpose"):
            train(config)


class Notebook:
    """A tracker that keeps what it is told; `forgets`: it can take back what was superseded."""

    def __init__(self, forgets: bool = False) -> None:
        self.forgets = forgets
        self.opened: list[TrackedRun] = []
        self.taken: list[Record] = []
        self.ended: list[Record] = []

    def begin(self, run: TrackedRun) -> Told:
        self.opened.append(run)
        if not self.forgets:
            return run.told
        self.taken = [record for record in self.taken if record["iter"] <= run.from_iter]
        return {series: min(last, run.from_iter) for series, last in run.told.items()}

    def take(self, record: Record) -> None:
        self.taken.append(record)

    def end(self, record: Record) -> None:
        self.ended.append(record)

    def losses(self) -> list[tuple[int, str, float]]:
        return [(record["iter"], record.get("split", ""), record["loss"]) for record in self.taken]


def told(run_dir: Path | str) -> list[tuple[int, str, float]]:
    """What the journal says that holds."""
    found = [record for record in records(run_dir) if record["kind"] in ("step", "eval")]
    return [(record["iter"], record.get("split", ""), record["loss"]) for record in found]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """Takes the place of wandb, which here needs not be installed."""
    made = Notebook()
    monkeypatch.setattr(trackers, "MAKERS", {"csv": MAKERS["csv"], "wandb": lambda: made})
    monkeypatch.setattr(trackers, "find_spec", lambda name: object())
    return made


def failing_once(event: threading.Event) -> Callable[[Notebook, Record], None]:
    """A notebook's `take` that fails at the third update, and not before the event."""

    def take(self: Notebook, record: Record) -> None:
        if record["kind"] == "step" and record["iter"] == 3:
            event.wait(20)
            raise ConnectionError("gone")
        self.taken.append(record)

    return take


# --- what is told ---


def test_a_tracker_is_told_every_step_and_evaluation_in_order(tiny: MakeConfig, notebook: Notebook) -> None:
    run = train(tiny(max_iters=20, log_interval=3, track="wandb"))
    assert notebook.losses() == told(run.out_dir)
    assert len(notebook.losses()) == 7 + 3 * 2
    assert [record["reason"] for record in notebook.ended] == ["finished"]
    (opened,) = notebook.opened
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
def test_after_a_crash_nothing_is_told_twice(tiny: MakeConfig, notebook: Notebook, forgets: bool) -> None:
    notebook.forgets = forgets
    config = tiny(max_iters=20, eval_interval=4, track="wandb")
    run_until_crash(config, 11)  # the last checkpoint is of update 8
    before = notebook.losses()
    assert max(at for at, *_ in before) == 11
    resume(config)
    heard = [(at, split) for at, split, _ in notebook.losses()]
    assert len(heard) == len(set(heard))
    assert sorted(notebook.losses()) == sorted(told(config.out_dir))  # a resume is exact
    assert len({opened.id for opened in notebook.opened}) == 1
    assert [opened.from_iter for opened in notebook.opened] == [-1, 8]


def test_a_tracker_that_joins_at_a_resume_is_told_what_was_before(
    tiny: MakeConfig, notebook: Notebook
) -> None:
    config = tiny(max_iters=8, eval_interval=4)
    train(config)
    assert notebook.opened == []
    resume(config, max_iters=12, track="wandb")
    assert notebook.losses() == told(config.out_dir)
    resume(config, max_iters=16, track="")  # and one that pauses is told what it missed
    resume(config, max_iters=20, track="wandb")
    assert notebook.losses() == told(config.out_dir)


def test_a_run_goes_on_telling_whom_it_told(tiny: MakeConfig, notebook: Notebook) -> None:
    from glassgpt.train.session import resume as go_on

    config = tiny(max_iters=4, track="wandb")
    train(config)
    go_on(config.out_dir, max_iters=6)
    assert max(at for at, *_ in notebook.losses()) == 6


def test_nanogpts_settings_mean_the_same(tiny: MakeConfig, notebook: Notebook) -> None:
    train(tiny(max_iters=2, wandb_log=True, wandb_project="owt", wandb_run_name="gpt2"))
    (opened,) = notebook.opened
    assert (opened.project, opened.name) == ("owt", "gpt2")


def test_two_runs_have_two_ids(tiny: MakeConfig, notebook: Notebook) -> None:
    for name in ("one", "two"):
        train(tiny(name, max_iters=1, track="wandb"))
    assert len({opened.id for opened in notebook.opened}) == 2


def test_a_tracker_that_failed_is_told_the_rest_by_the_next_process(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Notebook.take

    def fragile(self: Notebook, record: Record) -> None:
        if record["iter"] == 3:
            raise ConnectionError("gone")
        original(self, record)

    config = tiny(max_iters=8, eval_interval=4, track="wandb")
    with monkeypatch.context() as patch:
        patch.setattr(Notebook, "take", fragile)
        patch.setattr(sink.Sink, "__call__", _patiently(sink.Sink.__call__))
        train(config)
    assert max(at for at, *_ in notebook.losses()) == 2
    resume(config, max_iters=10)
    after = [at for at, split, _ in notebook.losses() if not split]
    assert after == list(range(1, 11))


def test_one_that_fails_late_is_told_later_what_it_never_had(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracker hears of a record when the run is far ahead: what the journal has is not what it was told."""
    run_is_ahead = threading.Event()

    def call(self: sink.Sink, record: Record) -> None:
        if record["kind"] == "step" and record["iter"] == 7:
            run_is_ahead.set()
            for mailbox in self._tracking:
                mailbox.wait(time.monotonic() + 20)
        original(self, record)

    original = sink.Sink.__call__
    config = tiny(max_iters=8, eval_interval=4, track="wandb")
    with monkeypatch.context() as patch:
        patch.setattr(Notebook, "take", failing_once(run_is_ahead))
        patch.setattr(sink.Sink, "__call__", call)
        run = train(config)
    finding = findings(run.out_dir)["wandb-failed"]
    assert finding["told"] == [
        {"kind": "eval", "split": "train", "closing": False, "iter": 0},
        {"kind": "eval", "split": "val", "closing": False, "iter": 0},
        {"kind": "step", "split": "", "closing": False, "iter": 2},
    ]
    count = Follower("wandb", lambda: notebook, run.out_dir).replay()
    assert notebook.losses() == told(run.out_dir)
    assert count == len(notebook.taken) - 4


def test_one_that_could_not_be_opened_is_told_everything_later(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(run: TrackedRun) -> Told:
        raise ConnectionError("gone")

    config = tiny(max_iters=8, eval_interval=4, track="wandb")
    with monkeypatch.context() as patch:
        patch.setattr(notebook, "begin", closed)
        patch.setattr(sink.Sink, "__call__", _patiently(sink.Sink.__call__))
        run = train(config)
    assert findings(run.out_dir)["wandb-failed"]["told"] == []
    Follower("wandb", lambda: notebook, run.out_dir).replay()
    assert notebook.losses() == told(run.out_dir)


def test_one_that_a_later_process_cannot_open_still_has_what_it_was_told(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(run: TrackedRun) -> Told:
        raise ConnectionError("gone")

    config = tiny(max_iters=4, eval_interval=4, track="wandb")
    train(config)
    with monkeypatch.context() as patch:
        patch.setattr(notebook, "begin", closed)
        patch.setattr(sink.Sink, "__call__", _patiently(sink.Sink.__call__))
        resume(config, max_iters=8)
    assert {last["iter"] for last in findings(config.out_dir)["wandb-failed"]["told"]} == {4}
    resume(config, max_iters=10)
    assert notebook.losses() == told(config.out_dir)


def test_what_was_superseded_is_not_told_if_another_tracker_fails_at_once(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finding then comes before the record that says from where the run goes on."""
    config = tiny(max_iters=20, eval_interval=4)
    run_until_crash(config, 11)
    follower = trackers.follower

    def impatient(name: str, run_dir: Path) -> Any:
        return follower(name, run_dir) if name == "wandb" else FailsAtTheFirst()

    monkeypatch.setattr(trackers, "follower", impatient)
    monkeypatch.setattr(sink.Sink, "__call__", _patiently(sink.Sink.__call__))
    resume(config, track="csv,wandb")
    kinds = [record["kind"] for record in records(config.out_dir) if record["process"] == 1]
    assert kinds[:3] == ["run", "finding", "resume"]
    assert notebook.losses() == told(config.out_dir)
    assert [opened.from_iter for opened in notebook.opened] == [8]


class FailsAtTheFirst:
    """A listener for a tracker."""

    def __call__(self, record: Record) -> None:
        raise ConnectionError("gone")

    def reached(self) -> list[Record]:
        return []


def _patiently(call: Callable[..., None]) -> Callable[..., None]:
    """So that a listener has heard one record before the next comes: in a test a run is over in no time."""

    def patient(self: sink.Sink, record: Record) -> None:
        call(self, record)
        time.sleep(0.02)

    return patient


# --- what a tracker cannot do to a run ---


def findings(run_dir: Path | str) -> dict[str, Record]:
    return {record["id"]: record for record in records(run_dir, "finding")}


def test_one_that_raises_is_named_once_and_the_run_goes_on(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(record: Record) -> None:
        raise ConnectionError("no route to anywhere\nsecond line")

    heard: list[Record] = []
    monkeypatch.setattr(notebook, "take", fail)
    monkeypatch.setattr(sink.Sink, "__call__", _patiently(sink.Sink.__call__))
    run = train(tiny(max_iters=5, track="csv,wandb"), listeners=[heard.append])
    assert (run.reason, run.iter) == ("finished", 5)
    finding = findings(run.out_dir)["wandb-failed"]
    assert finding["evidence"] == "ConnectionError: no route to anywhere"
    assert [record["id"] for record in heard if record["kind"] == "finding"].count("wandb-failed") == 1
    assert records(run.out_dir)[-1]["kind"] == "end"
    assert len(table(run.out_dir / "steps.csv")) == 5  # the other one has everything
    assert "Traceback" not in capsys.readouterr().err


def test_one_that_raises_at_the_very_end_is_named_too(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(record: Record) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(notebook, "end", fail)
    run = train(tiny(max_iters=2, track="wandb"))
    assert records(run.out_dir)[-1]["kind"] == "end"
    assert "warning: wandb failed at the end: ConnectionError: gone" in capsys.readouterr().err


def test_one_that_hangs_misses_records_and_the_run_says_how_many(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    released = threading.Event()
    monkeypatch.setattr(sink, "WAITING", 6)
    monkeypatch.setattr(sink, "TRACKERS_PATIENCE_S", 0.2)
    monkeypatch.setattr(notebook, "begin", lambda run: released.wait(60))
    heard: list[Record] = []

    def listen(record: Record) -> None:
        heard.append(record)

    run = train(tiny(max_iters=30, track="wandb"), listeners=[listen])
    assert run.reason == "finished"
    assert sink.still_tracking()
    recorded = records(run.out_dir)
    finding = findings(run.out_dir)["wandb-behind"]
    # It was at the record `run`; six waited; finding and end came after the count.
    missed = len(recorded) - 1 - 6 - 2
    assert finding["title"] == f"wandb was too slow for the run and missed {missed} records"
    assert recorded[-1]["kind"] == "end"
    said = capsys.readouterr().err
    assert "warning: wandb did not finish in 0 s; 8 records left" in said
    assert f"`glass track {run.out_dir} --to=wandb` tells it the rest" in said
    released.set()


def test_what_a_slow_one_missed_is_told_later_all_of_it(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs for a while and misses records, then comes to itself: nothing in the middle may be lacking."""
    released = threading.Event()
    take = notebook.take

    def slow(record: Record) -> None:
        released.wait(60)
        take(record)

    def call(self: sink.Sink, record: Record) -> None:
        if record["kind"] == "step" and record["iter"] == 20:
            released.set()
            while self._tracking[0]._records.qsize():
                time.sleep(0.01)
        original(self, record)

    original = sink.Sink.__call__
    with monkeypatch.context() as patch:
        patch.setattr(sink, "WAITING", 6)
        patch.setattr(notebook, "take", slow)
        patch.setattr(sink.Sink, "__call__", call)
        run = train(tiny(max_iters=30, eval_interval=30, track="wandb"))
    assert "glass track" in findings(run.out_dir)["wandb-behind"]["advice"]
    live = len(notebook.taken)
    assert 0 < live < len(told(run.out_dir))
    assert Follower("wandb", lambda: notebook, run.out_dir).replay() == len(told(run.out_dir)) - live
    assert notebook.losses() == told(run.out_dir)


def test_one_that_fails_after_the_last_record_is_told_the_rest_later(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By then the journal is closed: it has every record, and cannot say which of them were told."""
    run_has_ended = threading.Event()

    def close(self: sink.Sink) -> None:
        run_has_ended.set()
        original(self)

    original = sink.Sink.close
    with monkeypatch.context() as patch:
        patch.setattr(Notebook, "take", failing_once(run_has_ended))
        patch.setattr(sink.Sink, "close", close)
        run = train(tiny(max_iters=8, eval_interval=4, track="wandb"))
    assert "wandb-failed" not in findings(run.out_dir)
    said = f"ConnectionError: gone; `glass track {run.out_dir} --to=wandb` tells it the rest"
    assert said in capsys.readouterr().err
    assert Follower("wandb", lambda: notebook, run.out_dir).replay() == len(told(run.out_dir)) - 4
    assert notebook.losses() == told(run.out_dir)


def test_what_waited_for_a_tracker_when_the_run_was_killed_is_told_when_it_goes_on(
    tiny: MakeConfig, notebook: Notebook
) -> None:
    config = tiny(max_iters=20, eval_interval=4, track="wandb")
    run_until_crash(config, 11)
    notes = Path(config.out_dir, "told", "wandb.json")
    told_until = [{**last, "iter": min(last["iter"], 6)} for last in json.loads(notes.read_text())]
    notes.write_text(json.dumps(told_until))  # as if the process had ended here, with the rest in the queue
    notebook.taken = [record for record in notebook.taken if record["iter"] <= 6]
    resume(config)
    assert [at for at, split, _ in notebook.losses() if not split] == list(range(1, 21))


def test_without_notes_the_journal_says_what_was_told(tiny: MakeConfig, notebook: Notebook) -> None:
    run = train(tiny(max_iters=4, track="wandb"))
    for content in ("", "[1]", '[{"kind": "step"}]'):  # cut off by a power failure, or of another make
        (run.out_dir / "told" / "wandb.json").write_text(content)
        assert Follower("wandb", lambda: notebook, run.out_dir).replay() == 0
    shutil.rmtree(run.out_dir / "told")
    assert Follower("wandb", lambda: notebook, run.out_dir).replay() == 0


def test_a_tracker_that_hangs_does_not_slow_the_run(
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take a minute if any of 60 steps waited for it as long as one record hangs."""
    released = threading.Event()
    monkeypatch.setattr(sink, "TRACKERS_PATIENCE_S", 0.2)
    monkeypatch.setattr(notebook, "take", lambda record: released.wait(60))
    begin = time.monotonic()
    run = train(tiny(max_iters=60, track="wandb"))
    assert time.monotonic() - begin < 30
    assert run.iter == 60
    released.set()


@pytest.mark.parametrize(
    ("settings", "missing"),
    [({"track": "csv,trackio,wandb"}, ["trackio", "wandb"]), ({"wandb_log": True}, ["wandb"])],
)
def test_one_that_is_missing_is_said_before_anything_is_written(
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
    tiny: MakeConfig, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Any:
        import_module("glassgpt.no_such_module")

    monkeypatch.setattr(trackers, "MAKERS", {"wandb": make})
    monkeypatch.setattr(sink.Sink, "__call__", _patiently(sink.Sink.__call__))
    run = train(tiny(max_iters=3, track="wandb"))
    assert run.reason == "finished"
    assert "ModuleNotFoundError" in findings(run.out_dir)["wandb-failed"]["evidence"]


# --- which trackers ---


def test_names_of_trackers() -> None:
    assert trackers_asked(TrainConfig(track=" csv, wandb,csv,")) == ("csv", "wandb")
    assert trackers_asked(TrainConfig(track="csv", wandb_log=True)) == ("csv", "wandb")
    assert trackers_asked(TrainConfig(wandb_project="x")) == ()
    assert set(MAKERS) == set(TRACKERS)
    (problem,) = find_problems(TrainConfig(track="csv,mlflow"))
    assert problem == "--track=mlflow is not one of csv, tensorboard, trackio, wandb"
    check_installed(["csv"])  # which is always there


# --- csv ---


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_files_are_tables_of_what_holds(tiny: MakeConfig) -> None:
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
    for kind, columns in COLUMNS.items():
        assert set(columns) <= set(records(run.out_dir, kind)[0])


# --- the real ones ---


@needs("tensorboard")
def test_tensorboard_shows_each_iteration_once(tiny: MakeConfig) -> None:
    config = tiny(max_iters=20, eval_interval=4, track="tensorboard")
    run_until_crash(config, 11)
    resume(config)
    events = import_module("tensorboard.backend.event_processing.event_accumulator")
    folder = Path(config.out_dir) / "tensorboard"
    assert len(list(folder.iterdir())) == 2
    seen = events.EventAccumulator(str(folder)).Reload()
    expected = {record["iter"]: record["loss"] for record in records(config.out_dir, "step")}
    shown = [(event.step, event.value) for event in seen.Scalars("train/loss")]
    assert [at for at, _ in shown] == list(expected) == list(range(1, 21))
    assert [value for _, value in shown] == pytest.approx(list(expected.values()), rel=1e-6)
    assert [event.step for event in seen.Scalars("val/loss")] == [0, 4, 8, 12, 16, 20]


@needs("tensorboard")
def test_replaying_into_tensorboard_twice_shows_it_once(tiny: MakeConfig) -> None:
    run = train(tiny(max_iters=5))
    for _ in range(2):
        assert Follower("tensorboard", MAKERS["tensorboard"], run.out_dir).replay() == 5 + 4
    events = import_module("tensorboard.backend.event_processing.event_accumulator")
    seen = events.EventAccumulator(str(run.out_dir / "tensorboard")).Reload()
    assert [event.step for event in seen.Scalars("train/loss")] == [1, 2, 3, 4, 5]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """What a file of wandb's holds: a header of 7 bytes, then LevelDB's log of blocks of 32 KiB."""
    at, whole = 7, b""
    while at < len(data):
        if (left := -at % 32768) and left < 7:  # too little for a header: the rest of the block is empty
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""


def wandb_rows(run_dir: Path) -> list[dict[str, float]]:
    """What wandb would send when it is online again."""
    protocol = import_module("wandb.proto.wandb_internal_pb2")
    rows = []
    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime):
        for data in wandb_records(path.read_bytes()):
            record = protocol.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                named = {"/".join(item.nested_key) or item.key: item.value_json for item in items}
                rows.append({name: json.loads(value) for name, value in named.items()})
    return rows


@needs("wandb")
def test_wandb_has_each_iteration_once(tiny: MakeConfig, capfd: pytest.CaptureFixture[str]) -> None:
    config = tiny(max_iters=8, eval_interval=4, wandb_log=True, wandb_project="owt")
    run_until_crash(config, 7)
    assert findings(config.out_dir).keys() & {"wandb-failed", "wandb-behind"} == set()
    resume(config)
    rows = wandb_rows(Path(config.out_dir))
    losses = [(row["_step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(record["iter"], record["loss"]) for record in records(config.out_dir, "step")]
    assert [row["_step"] for row in rows if "val/loss" in row] == [0, 4, 8]
    files = list(Path(config.out_dir).glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1  # which is the run's id
    assert "wandb" not in capfd.readouterr().out


@needs("wandb")
def test_wandb_without_a_key_asks_nobody(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where a key might be
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    run = TrackedRun(tmp_path, "a", "b", "c", {})
    with pytest.raises(UserError, match="wandb has no key here: `wandb login`"):
        MAKERS["wandb"]().begin(run)


@needs("trackio")
def test_trackio_has_each_iteration_once(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    storage = import_module("trackio.sqlite_storage")
    for module in ("trackio.utils", "trackio.sqlite_storage"):  # which read the environment when imported
        monkeypatch.setattr(import_module(module), "TRACKIO_DIR", tmp_path / "trackio")
    config = tiny(max_iters=8, eval_interval=4, track="trackio", wandb_project="of-tests")
    run_until_crash(config, 7)
    resume(config)
    assert findings(config.out_dir).keys() & {"trackio-failed", "trackio-behind"} == set()
    rows = storage.SQLiteStorage.get_logs("of-tests", "run")
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(record["iter"], record["loss"]) for record in records(config.out_dir, "step")]
    assert "rackio" not in capfd.readouterr().out


@needs("trackio")
@pytest.mark.parametrize("said_told", [False, True])
def test_trackio_that_could_not_be_opened_can_be_told_later(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said_told: bool
) -> None:
    """Also if the journal says that it was told: its folder may be gone."""
    trackio, storage = import_module("trackio"), import_module("trackio.sqlite_storage")
    for module in ("trackio.utils", "trackio.sqlite_storage"):
        monkeypatch.setattr(import_module(module), "TRACKIO_DIR", tmp_path / "trackio")

    def closed(**settings: Any) -> Any:
        raise ConnectionError("gone")

    config = tiny(max_iters=3, eval_interval=4, track="trackio", wandb_project="of-tests")
    with monkeypatch.context() as patch:
        patch.setattr(trackio, "init", closed)
        if not said_told:
            patch.setattr(sink.Sink, "__call__", _patiently(sink.Sink.__call__))
        else:
            patch.setattr(trackers, "MAKERS", {"trackio": Notebook})
        run = train(config)
    assert ("trackio-failed" in findings(run.out_dir)) != said_told
    count = Follower("trackio", MAKERS["trackio"], run.out_dir).replay()
    rows = storage.SQLiteStorage.get_logs("of-tests", "run")
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    expected = [(record["iter"], record["loss"]) for record in records(run.out_dir, "step")]
    assert losses == ([] if said_told else expected)
    assert count == (0 if said_told else len(told(run.out_dir)))


# --- telling afterwards ---


def test_a_finished_run_can_be_told_again(tiny: MakeConfig, notebook: Notebook) -> None:
    config = tiny(max_iters=20, eval_interval=4)
    run_until_crash(config, 11)
    resume(config)
    count = Follower("wandb", lambda: notebook, Path(config.out_dir)).replay()
    assert notebook.losses() == told(config.out_dir)
    assert count == len(notebook.taken)
    assert [record["kind"] for record in notebook.ended] == ["end"]
    assert Follower("wandb", lambda: notebook, Path(config.out_dir)).replay() == 0  # it has all of it now


def test_what_was_told_during_the_run_is_not_told_again(tiny: MakeConfig, notebook: Notebook) -> None:
    run = train(tiny(max_iters=4, track="wandb"))
    assert Follower("wandb", lambda: notebook, run.out_dir).replay() == 0


def test_a_torn_journal_can_be_told(tiny: MakeConfig, notebook: Notebook) -> None:
    run = train(tiny(max_iters=4))
    path = run.out_dir / journal.NAME
    path.write_bytes(path.read_bytes()[:-40])  # in the middle of the end
    Follower("wandb", lambda: notebook, run.out_dir).replay()
    assert notebook.losses() == told(run.out_dir)
    assert dataclasses.asdict(notebook.opened[0])["name"] == "run"
