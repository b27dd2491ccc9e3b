"""The journal gets everything first; a listener that fails or hangs cannot hurt a run."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from glassgpt.record import sink as sink_module
from glassgpt.record.journal import Record, read
from glassgpt.record.sink import Sink


def steps(count: int) -> list[Record]:
    return [{"kind": "step", "iter": number} for number in range(count)]


def iters(path: Path) -> list[int]:
    return [record["iter"] for record in read(path)]


def test_every_record_gets_its_time_and_process(tmp_path: Path) -> None:
    received: list[Record] = []
    sink = Sink(tmp_path / "j", process=3, listeners=[received.append])
    before = time.time()
    sink({"kind": "step", "iter": 7, "loss": 1.5})
    sink.close()
    (record,) = read(tmp_path / "j")
    assert record == received[0]
    assert list(record) == ["kind", "time", "process", "start", "iter", "loss"]
    assert record["process"] == 3
    assert before <= record["time"] <= time.time()


def test_nothing_is_written_before_the_first_record(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "j", 0)
    sink.close()
    assert not (tmp_path / "j").exists()


def test_the_callers_record_is_left_alone(tmp_path: Path) -> None:
    record: Record = {"kind": "step", "iter": 1}
    sink = Sink(tmp_path / "j", 0)
    sink(record)
    sink.close()
    assert record == {"kind": "step", "iter": 1}


def test_order_is_kept_for_the_journal_and_every_listener(tmp_path: Path) -> None:
    fast: list[int] = []
    slow: list[int] = []

    def dawdle(record: Record) -> None:
        if record["iter"] % 50 == 0:
            time.sleep(0.005)
        slow.append(record["iter"])

    sink = Sink(tmp_path / "j", 0, [lambda record: fast.append(record["iter"]), dawdle])
    for record in steps(200):
        sink(record)
    sink.close()
    assert iters(tmp_path / "j") == fast == slow == list(range(200))


def test_the_journal_has_a_record_before_a_listener_gets_it(tmp_path: Path) -> None:
    there: list[bool] = []
    path = tmp_path / "j"
    sink = Sink(path, 0, [lambda record: there.append(record["iter"] in iters(path))])
    for record in steps(20):
        sink(record)
    sink.close()
    assert there == [True] * 20


def test_a_listener_that_raises_is_dropped_and_named_and_the_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    received: list[int] = []
    tried: list[int] = []

    def fragile(record: Record) -> None:
        tried.append(record["iter"])
        if record["iter"] == 2:
            raise RuntimeError("the tracker is down")

    sink = Sink(tmp_path / "j", 0, [fragile, lambda record: received.append(record["iter"])])
    for record in steps(6):
        sink(record)
    sink.close()
    assert tried == [0, 1, 2]
    assert received == iters(tmp_path / "j") == list(range(6))
    stderr = capsys.readouterr().err
    assert "fragile failed and gets no more records" in stderr
    assert "RuntimeError: the tracker is down" in stderr
    assert stderr.count("gets no more records") == 1


class Tracker:
    def __call__(self, record: Record) -> None:
        raise ValueError("no")


def test_an_object_that_listens_is_named_by_its_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = Sink(tmp_path / "j", 0, [Tracker()])
    sink(steps(1)[0])
    sink.close()
    assert "warning: Tracker failed" in capsys.readouterr().err


def test_a_listener_that_hangs_blocks_neither_the_run_nor_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "LISTENER_TIMEOUT_S", 0.1)
    released, hung, received = threading.Event(), [], []

    def hang(record: Record) -> None:
        hung.append(record["iter"])
        released.wait(30)

    sink = Sink(tmp_path / "j", 0, [hang, lambda record: received.append(record["iter"])])
    for record in steps(100):
        sink(record)
    sink.close()  # both of these come back although `hang` does not
    assert not released.is_set()
    assert hung == [0]
    assert received == iters(tmp_path / "j") == list(range(100))
    released.set()


def test_the_timeout_is_shared_by_all_that_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "LISTENER_TIMEOUT_S", 0.3)
    released = threading.Event()

    def hang(record: Record) -> None:
        released.wait(30)

    sink = Sink(tmp_path / "j", 0, [hang] * 5)
    sink(steps(1)[0])
    begin = time.monotonic()
    sink.close()
    assert time.monotonic() - begin < 5 * 0.3
    released.set()


def test_the_end_waits_for_a_listener_that_is_only_slow(tmp_path: Path) -> None:
    received: list[int] = []

    def slow(record: Record) -> None:
        time.sleep(0.02)
        received.append(record["iter"])

    sink = Sink(tmp_path / "j", 0, [slow])
    for record in steps(10):
        sink(record)
    sink.close()
    assert received == list(range(10))


def test_a_second_process_appends(tmp_path: Path) -> None:
    for process in (0, 1):
        sink = Sink(tmp_path / "j", process)
        sink({"kind": "run", "iter": process})
        sink.close()
    assert [(record["process"], record["iter"]) for record in read(tmp_path / "j")] == [(0, 0), (1, 1)]


def test_the_home_folder_is_not_named_in_what_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    received: list[Record] = []
    sink = Sink(tmp_path / "j", 0, [received.append])
    config = {"data_dir": "/home/someone/data/mine", "max_iters": 5, "init_from": "/home/someone2/run"}
    sink(
        {
            "kind": "run",
            "iter": 0,
            "out_dir": "/home/someone/runs/a",
            "config": config,
            "notes": ["in /home/someone"],
        }
    )
    sink({"kind": "sample", "iter": 0, "text": "/home/someone/wrote"})
    sink.close()
    run, sample = read(tmp_path / "j")
    assert run["out_dir"] == "~/runs/a"
    assert run["config"] == {"data_dir": "~/data/mine", "max_iters": 5, "init_from": "/home/someone2/run"}
    assert run["notes"] == ["in ~"]
    assert sample["text"] == "/home/someone/wrote"  # what a model writes is nobody's path
    assert received[0]["out_dir"] == "/home/someone/runs/a"  # a listener may open it


def test_a_journal_that_cannot_be_flushed_at_the_end_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (errno.EIO, errno.EDQUOT, errno.ESTALE, errno.EFBIG, errno.EMFILE):
        sink = Sink(tmp_path / "j", 0)
        sink({"kind": "step", "iter": number})

        def fail(descriptor: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)
        sink.close()
        assert os.strerror(number) in capsys.readouterr().err
        assert iters(tmp_path / "j")[-1] == number


def test_between_records_a_listener_is_told_how_far_the_loop_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "TICK_S", 0.001)

    class Watcher:
        def __init__(self) -> None:
            self.records: list[int] = []
            self.seen: list[tuple[str, int]] = []
            self.has_ticked = threading.Event()

        def __call__(self, record: Record) -> None:
            self.records.append(record["iter"])

        def tick(self, activity: str, done: int) -> None:
            self.seen.append((activity, done))
            self.has_ticked.set()

    watcher, records_only = Watcher(), list[Record]()
    sink = Sink(tmp_path / "j", 0, [watcher, records_only.append])
    sink(steps(1)[0])
    sink.watch_loop(lambda: ("eval", 7))
    assert watcher.has_ticked.wait(30)
    sink(steps(2)[1])
    sink.close()
    assert set(watcher.seen) == {("eval", 7)}
    assert watcher.records == [0, 1] == [record["iter"] for record in records_only]
    assert iters(tmp_path / "j") == [0, 1]  # a tick is no record


def test_a_tick_that_fails_drops_the_listener_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sink_module, "TICK_S", 0.001)
    failed = threading.Event()

    class Broken:
        def __call__(self, record: Record) -> None: ...

        def tick(self, activity: str, done: int) -> None:
            failed.set()
            raise ValueError("no room")

    sink = Sink(tmp_path / "j", 0, [Broken()])
    sink.watch_loop(lambda: ("train", 1))
    assert failed.wait(30)
    for record in steps(3):
        sink(record)
    sink.close()
    assert iters(tmp_path / "j") == [0, 1, 2]
    assert "ValueError: no room" in capsys.readouterr().err
