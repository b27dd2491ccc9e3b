"""What `glass runs` knows of a run: its state and figures, from the journal alone."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glassgpt.record.journal import FILE_NAME, Record, encode_line
from glassgpt.runs.run_list import find_runs, summarize


def of(kind: str, iteration: int, time: float = 100.0, **more: Any) -> Record:
    return {"kind": kind, "time": time, "process": 0, "iter": iteration} | more


def val(iteration: int, loss: float, best: bool = False) -> Record:
    return of("eval", iteration, split="val", loss=loss, best=best)


RUN = of("run", 0, config={"max_iters": 20})
STORY = [
    RUN,
    val(0, 4.0, best=True),
    of("step", 5, loss=3.5, tokens_per_s=900.0),
    of("eval", 10, split="train", loss=1.0, best=False),
    val(10, 3.0, best=True),
    of("step", 15, loss=2.5, tokens_per_s=1000.0),
    val(20, 3.25),
    of("step", 20, loss=2.25, tokens_per_s=1100.0),
    of("end", 20, reason="finished"),
]


def write(folder: Path, records: list[Record]) -> Path:
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_bytes(b"".join(map(encode_line, records)))
    return folder


def test_a_finished_run(tmp_path: Path) -> None:
    run_dir = write(tmp_path / "a", STORY)
    summary = summarize(run_dir)
    assert summary.path == run_dir
    assert (summary.state, summary.iter, summary.max_iters) == ("finished", 20, 20)
    assert (summary.loss, summary.best_val_loss, summary.best_iter) == (2.25, 3.0, 10)
    assert (summary.tokens_per_s, summary.started) == (1000.0, 100.0)


def test_the_speed_is_that_of_the_latest_lines_not_of_one(tmp_path: Path) -> None:
    """As on the run's page: one line that other programs slowed down does not count."""
    speeds = [500.0] * 300 + [1000.0] * 100 + [40.0]
    steps = [of("step", at, loss=2.0, tokens_per_s=speed) for at, speed in enumerate(speeds)]
    assert summarize(write(tmp_path / "a", [RUN, *steps])).tokens_per_s == 1000.0


@pytest.mark.parametrize("reason", ["finished", "interrupted", "not finite", "crashed", "stopped early"])
def test_a_run_is_in_the_state_it_ended_in(tmp_path: Path, reason: str) -> None:
    assert summarize(write(tmp_path / "a", [RUN, of("end", 3, reason=reason)])).state == reason


def test_a_run_that_said_nothing_at_its_end_died(tmp_path: Path) -> None:
    run_dir = write(tmp_path / "a", STORY[:-1])
    assert summarize(run_dir).state == "died"
    (run_dir / "lock").touch()  # a lock that nobody holds
    assert summarize(run_dir).state == "died"


def test_a_resumed_run_that_died_is_not_what_it_was_before(tmp_path: Path) -> None:
    again = [
        of("run", 20, config={"max_iters": 40}),
        of("resume", 20, from_iter=20),
        of("step", 21, loss=2.0),
    ]
    summary = summarize(write(tmp_path / "a", [*STORY, *again]))
    assert (summary.state, summary.iter, summary.max_iters, summary.loss) == ("died", 21, 40, 2.0)
    assert summary.best_val_loss == 3.0


@contextmanager
def held_by_another_process(path: Path) -> Iterator[None]:
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'a')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield


@pytest.mark.skipif(sys.platform == "win32", reason="its runs go without a lock")
def test_a_run_whose_lock_is_held_is_running(tmp_path: Path) -> None:
    run_dir = write(tmp_path / "a", STORY)  # even if an earlier process said it had finished
    with held_by_another_process(run_dir / "lock"):
        assert summarize(run_dir).state == "running"
        assert summarize(run_dir).state == "running"  # looking does not take it away
    assert summarize(run_dir).state == "finished"


def test_pipes_and_links_in_a_run_do_not_hide_the_others(tmp_path: Path) -> None:
    write(tmp_path / "whole", STORY)
    os.mkfifo(write(tmp_path / "pipe", STORY) / "lock")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / FILE_NAME).symlink_to(tmp_path / "whole" / FILE_NAME)
    states = {run.path.name: run.state for run in find_runs(tmp_path)}
    assert states == {
        "whole": "finished",
        "pipe": "finished",
        "link": "refused: its journal cannot be read, or is a link",
    }


def test_losses_that_are_not_finite_are_no_best(tmp_path: Path) -> None:
    records = [
        RUN,
        val(0, 4.0, best=True),
        val(5, math.nan),
        val(10, math.inf),
        of("step", 10, loss=math.nan),
    ]
    summary = summarize(write(tmp_path / "a", records))
    assert (summary.best_val_loss, summary.best_iter) == (4.0, 0)
    assert summary.loss is not None
    assert math.isnan(summary.loss)


def test_what_a_resume_took_back_does_not_count(tmp_path: Path) -> None:
    lost = [of("step", 8, loss=0.5, tokens_per_s=1.0), val(8, 0.25, best=True)]
    records = [
        RUN,
        val(0, 4.0, best=True),
        val(5, 3.0, best=True),
        *lost,
        of("run", 5),
        of("resume", 5, from_iter=5),
    ]
    summary = summarize(write(tmp_path / "a", [*records, of("step", 6, loss=2.0, tokens_per_s=7.0)]))
    assert (summary.best_val_loss, summary.best_iter) == (3.0, 5)
    assert (summary.loss, summary.tokens_per_s, summary.iter) == (2.0, 7.0, 6)


def test_the_closing_pass_is_not_the_best(tmp_path: Path) -> None:
    closing = of("eval", 20, split="val", loss=2.9, closing=True, best=False)
    summary = summarize(write(tmp_path / "a", [*STORY[:-1], closing, STORY[-1]]))
    assert (summary.best_val_loss, summary.best_iter) == (3.0, 10)


def test_after_going_back_iter_is_where_the_run_is(tmp_path: Path) -> None:
    end = of("end", 50, reason="interrupted")
    records = [RUN, of("step", 50), end, of("run", 40), of("resume", 40, from_iter=40), of("step", 42)]
    assert summarize(write(tmp_path / "a", records)).iter == 42


def test_a_journal_torn_anywhere_can_be_summarized(tmp_path: Path) -> None:
    run_dir = write(tmp_path / "a", STORY)
    raw = (run_dir / FILE_NAME).read_bytes()
    before = 0
    for cut in range(0, len(raw) + 1, 7):
        (run_dir / FILE_NAME).write_bytes(raw[:cut])
        summary = summarize(run_dir)
        assert summary.iter >= before
        assert summary.state in ("died", "finished")
        before = summary.iter


def test_an_empty_journal(tmp_path: Path) -> None:
    summary = summarize(write(tmp_path / "a", []))
    assert (summary.state, summary.iter, summary.bytes) == ("died", 0, 0)
    for unknown in (
        summary.max_iters,
        summary.loss,
        summary.best_val_loss,
        summary.tokens_per_s,
        summary.started,
    ):
        assert unknown is None


def test_the_size_is_that_of_every_file(tmp_path: Path) -> None:
    run_dir = write(tmp_path / "a", [RUN])
    journal_bytes = (run_dir / FILE_NAME).stat().st_size
    (run_dir / "checkpoints" / "00000001").mkdir(parents=True)
    (run_dir / "checkpoints" / "00000001" / "model.safetensors").write_bytes(b"x" * 1000)
    assert summarize(run_dir).bytes == journal_bytes + 1000


def test_runs_are_found_the_latest_last(tmp_path: Path) -> None:
    for name, time in (("b", 2.0), ("a", 3.0), ("c", 1.0)):
        write(tmp_path / name, [of("run", 0, time)])
    (tmp_path / "no_run").mkdir()
    (tmp_path / "file").write_text("x")
    assert [run.path.name for run in find_runs(tmp_path)] == ["c", "b", "a"]


def test_where_there_are_none_there_are_none(tmp_path: Path) -> None:
    assert find_runs(tmp_path) == []
    assert find_runs(tmp_path / "not there") == []


def test_foreign_text_in_a_journal_is_no_crash(tmp_path: Path) -> None:
    run_dir = write(tmp_path / "a", STORY)
    raw = (run_dir / FILE_NAME).read_bytes()
    (run_dir / FILE_NAME).write_bytes(
        b"step 1: loss 3.2\n\xff\xfe\n" + raw + b"Traceback (most recent call last)\n"
    )
    assert summarize(run_dir).state == "finished"


def test_a_journal_that_is_no_file_is_no_run(tmp_path: Path) -> None:
    write(tmp_path / "a", STORY)
    (tmp_path / "b" / FILE_NAME).mkdir(parents=True)
    assert [run.path.name for run in find_runs(tmp_path)] == ["a"]


def test_a_run_that_did_no_better_than_the_one_it_took_over_has_that_ones_best(tmp_path: Path) -> None:
    end = of("end", 20, reason="finished", best_val_loss=2.5, best_iter=8)
    summary = summarize(write(tmp_path / "a", [RUN, val(20, 3.0), end]))
    assert (summary.best_val_loss, summary.best_iter) == (2.5, 8)
    none = summarize(write(tmp_path / "b", [RUN, of("end", 3, best_val_loss=math.inf, best_iter=None)]))
    assert (none.best_val_loss, none.best_iter) == (None, None)
