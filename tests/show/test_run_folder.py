"""The list of runs that a page shows, and how little it reads for that."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from commands import finished_run, record, run_record, step_record, write_run

from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import LockedRunDir
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_list import summarize
from glassgpt.show.page import run_folder
from glassgpt.show.page.run_folder import RunFolder


def rows(folder: RunFolder) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in folder.listing()["runs"]}


def evaluated_run() -> list[Record]:
    """With the best evaluations marked, as training does."""
    return [
        one | ({"best": one["split"] == "val"} if one["kind"] == "eval" else {}) for one in finished_run()
    ]


def test_the_row_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a", evaluated_run())
    row = rows(RunFolder([str(tmp_path)]))["a"]
    assert row["spark"] == [4.0 - at / 50 for at in range(10, 101, 10)]
    assert row["bytes"] == (tmp_path / "a" / journal.FILE_NAME).stat().st_size
    expected = {
        "state": "finished", "state_label": "finished", "live": False, "updates": 100, "planned": 100,
        "best_val": 2.1, "last_loss": 2.0, "dataset": run_record()["data"]["name"],
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_the_row_of_a_foreign_log(tmp_path: Path) -> None:
    rows_found = rows(RunFolder(["demo:gpu"]))
    row = rows_found["demo:gpu"]
    expected = {
        "state": "finished",
        "live": False,
        "updates": 5000,
        "planned": 5000,
        "best_val": 1.4576,
        "last_loss": 0.8176,
        "model": "nanoGPT",
    }
    assert {name: row[name] for name in expected} == expected
    # Its lines have no speed: it is what the page says about the run.
    assert row["tokens_per_s"] == pytest.approx(Analysis(read_run_log("demo:gpu")).tokens_per_s)
    assert len(row["spark"]) == 40
    assert row["spark"][0] == 4.2667


def test_a_log_that_still_grows_is_running(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"iter {at}: loss {4 - at / 100:.4f}, time 10.00ms\n" for at in range(50)))
    states = []
    for age_s in (0, 3600):
        os.utime(log, (time.time() - age_s,) * 2)
        row = rows(RunFolder([str(log)]))["train.log"]
        states.append((row["state"], row["live"]))
    assert states == [("running", True), ("cut", False)]


def test_which_runs_are_listed_and_selected(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, finished_run())
    (tmp_path / "runs/watch-1").mkdir()
    (tmp_path / "runs/watch-1/output.log").write_text("iter 0: loss 4.2, time 10.00ms, mfu -100.00%\n")
    (tmp_path / "runs/notes.txt").write_text("not a log")
    (tmp_path / "runs/train.log").write_text("iter 0: loss 4.2, time 10.00ms, mfu -100.00%\n")
    (tmp_path / "runs/empty").mkdir()
    everything = {"a", "b", "watch-1", "train.log"}
    folder = RunFolder([str(tmp_path / "runs")])
    assert (set(rows(folder)), folder.selected) == (everything, None)
    for source in ("a", "a/journal.jsonl"):
        folder = RunFolder([str(tmp_path / "runs" / source)])
        assert set(rows(folder)) == everything
        assert folder.selected == rows(folder)["a"]["id"]
    folder = RunFolder([str(tmp_path / "runs/train.log")])
    assert set(rows(folder)) == {"train.log"}, "the files beside somebody's log are not our business"
    watched = RunFolder([str(tmp_path / "runs/watch-1")])
    assert rows(watched)["watch-1"]["id"] == watched.selected
    assert RunFolder([str(tmp_path / "runs/empty")]).listing()["runs"] == []
    (tmp_path / "begins/first").mkdir(parents=True)
    (tmp_path / "begins/first/lock").touch()  # the journal comes later
    assert RunFolder([str(tmp_path / "begins")]).selected is None
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/metrics.csv").write_text("step,loss\n1,4.0\n2,3.5\n3,3.0\n")
    theirs = RunFolder([str(tmp_path / "theirs")])
    assert (rows(theirs)["theirs"]["id"], rows(theirs)["theirs"]["last_loss"]) == (theirs.selected, 3.0)
    several = RunFolder([str(tmp_path / "runs/train.log"), "demo:cpu"])
    assert set(rows(several)) == {"train.log", "demo:cpu"}


def test_an_id_is_that_of_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a link to a run is still one after a restart, whatever the way its path was written."""
    write_run(tmp_path / "runs/a", finished_run())
    monkeypatch.chdir(tmp_path)
    found = {
        rows(RunFolder(sources))["a"]["id"]
        for sources in ([], ["runs"], ["runs/a"], [str(tmp_path / "runs")])
    }
    assert len(found) == 1
    folder = RunFolder(["runs"])
    entry = folder.find(found.pop())
    assert entry is not None
    assert entry.run_dir == Path("runs/a")
    write_run(tmp_path / "runs/later", finished_run())  # after the list was made
    later = rows(RunFolder(["runs"]))["later"]["id"]
    assert folder.find(later) is not None
    for id in ("", "a", "../a", "x" * 16, str(tmp_path), "\0"):
        assert folder.find(id) is None, id


def test_a_run_that_starts_ends_or_dies(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", finished_run()[:6])
    folder = RunFolder([str(tmp_path)])
    assert (rows(folder)["run"]["state"], rows(folder)["run"]["live"]) == ("died", False)
    lock = LockedRunDir(run_dir)
    assert (rows(folder)["run"]["state"], rows(folder)["run"]["live"]) == ("running", True)
    write_run(run_dir, finished_run()[:8])
    assert rows(folder)["run"]["updates"] == 50
    lock.close()
    assert (rows(folder)["run"]["state"], rows(folder)["run"]["live"]) == ("died", False)
    write_run(run_dir, finished_run())
    assert rows(folder)["run"]["state"] == "finished"


def test_a_run_is_read_again_only_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, finished_run())
    folder = RunFolder([str(tmp_path)])
    before = folder.listing()
    read: list[str] = []

    def noted(run_dir: Path, notes: Any) -> Any:
        read.append(run_dir.name)
        return summarize(run_dir, notes)

    monkeypatch.setattr(run_folder, "summarize", noted)
    assert folder.listing() == before
    assert read == []
    write_run(tmp_path / "b", finished_run()[:-4])
    folder.listing()
    assert read == ["b"]


def test_a_long_journal_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once there is what its ends say; the best loss, which may stand anywhere, follows."""
    records = evaluated_run()
    middle = [step_record(at, 3.0) for at in range(101, 4000)]
    run_dir = write_run(
        tmp_path / "long", [*records[:-1], *middle, record("checkpoint", 4000, bytes=1, best=None)]
    )
    monkeypatch.setattr(run_folder, "_MAX_JOURNAL_BYTES", 10_000)
    folder = RunFolder([str(tmp_path)])
    row = rows(folder)["long"]
    assert (row["updates"], row["last_loss"], row["planned"], row["best_val"]) == (3999, 3.0, 100, None)
    assert 30 <= len(row["spark"]) <= 40
    assert folder._long is not None
    folder._long.join(60)
    assert rows(folder)["long"]["best_val"] == 2.1
    with (run_dir / journal.FILE_NAME).open("ab") as file:  # from now on only what is appended is read
        file.write(journal.encode_line(step_record(4000, 2.9)))
    row = rows(folder)["long"]
    assert (row["updates"], row["last_loss"], row["best_val"]) == (4000, 2.9, 2.1)


def test_a_damaged_run_hides_no_other(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", finished_run())
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / journal.FILE_NAME).symlink_to(tmp_path / "whole" / journal.FILE_NAME)
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / journal.FILE_NAME).write_bytes(os.urandom(10_000))
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / journal.FILE_NAME)
    found = rows(RunFolder([str(tmp_path)]))
    assert set(found) == {"whole", "linked", "noise"}
    assert found["linked"]["state"].startswith("refused")
    assert found["noise"]["state"] == "died"


def test_texts_are_clean(tmp_path: Path) -> None:
    records = finished_run()
    records[0] = run_record(data={"name": "x\x1b[2J<b>\u202e"}, model={"arch": 5, "n_layer": "x"})
    write_run(tmp_path / "a\x1b[2J\nb", records)
    [row] = RunFolder([str(tmp_path)]).listing()["runs"]
    assert (row["name"], row["dataset"], row["model"]) == ("a\ufffd[2J b", "x\ufffd[2J<b>\ufffd", "")


def test_two_hundred_runs(tmp_path: Path) -> None:
    """In the time of a request; again, as nothing has changed, in less. By processor time."""
    for number in range(200):
        write_run(tmp_path / f"run-{number}", finished_run())
    folder = RunFolder([str(tmp_path)])
    started = time.thread_time()
    assert len(folder.listing()["runs"]) == 200
    first_s, started = time.thread_time() - started, time.thread_time()
    folder.listing()
    assert first_s < 2
    assert time.thread_time() - started < max(first_s / 2, 0.1)
