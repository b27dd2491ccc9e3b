"""A run's folder: new, numbered, never overwritten, one writer at a time."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tiny import CPU_CHOICES, MakeConfig, records, resume, run_task

from glassgpt.errors import UserError
from glassgpt.recipe import Recipe, build_config, read_recipe
from glassgpt.record import journal
from glassgpt.record.journal import FILE_NAME, Journal
from glassgpt.record.run_dir import LockedRunDir, existing_run_dir, lock_run_dir, make_run_dir, resume_command
from glassgpt.runs.run_list import is_running
from glassgpt.training.checkpoint.checkpoints import load_latest_intact
from glassgpt.training.run_request import resolve_request
from glassgpt.training.session import train


def test_runs_are_numbered(here: Path, tiny: MakeConfig) -> None:
    config = tiny(out_dir="", max_iters=1)
    assert [train(config, "quick").out_dir for _ in range(3)] == [
        Path("runs/quick"),
        Path("runs/quick-2"),
        Path("runs/quick-3"),
    ]
    assert train(config, "other").out_dir == Path("runs/other")
    assert existing_run_dir("", "quick") == Path("runs/quick-3")


def test_the_tenth_run_comes_after_the_second(here: Path) -> None:
    for name in ("quick-2", "quick-10", "quick-extra-11", "quick"):
        (here / "runs" / name).mkdir(parents=True)
        (here / "runs" / name / FILE_NAME).touch()
    (here / "runs" / "quick-12").mkdir()  # not a run: nothing to resume there
    assert existing_run_dir("", "quick") == Path("runs/quick-10")
    assert make_run_dir("", "quick") == Path("runs/quick-3")


def test_an_existing_run_is_never_overwritten(tiny: MakeConfig) -> None:
    config = tiny(max_iters=2)
    train(config)
    folder = Path(config.out_dir)
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    with pytest.raises(UserError, match=r"holds a run already.*--init_from=resume, or choose another"):
        train(config)
    assert {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()} == before


def test_a_folder_that_holds_no_run_may_be_used(tiny: MakeConfig) -> None:
    config = tiny(max_iters=1)
    Path(config.out_dir).mkdir()
    (Path(config.out_dir) / "notes.txt").write_text("mine")
    train(config)
    assert (Path(config.out_dir) / "notes.txt").read_text() == "mine"


def test_what_cannot_be_a_folder_is_an_error(tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        with pytest.raises(
            UserError, match=r"--out_dir=.* cannot be made: .*/file is a file; choose another"
        ):
            train(tiny(name))


def test_a_mistake_leaves_no_folder_behind(tiny: MakeConfig, tmp_path: Path) -> None:
    for changes in ({"block_size": 10**6}, {"data_dir": str(tmp_path / "nowhere")}, {"device": "cuda:99"}):
        with pytest.raises(UserError):
            train(tiny(**changes))
    assert not (tmp_path / "run").exists()


def test_only_one_process_at_a_time(tiny: MakeConfig) -> None:
    config = tiny(max_iters=2)
    train(config)
    journal_before = (Path(config.out_dir) / FILE_NAME).read_bytes()
    first = LockedRunDir(Path(config.out_dir))
    with pytest.raises(UserError, match=r"another process is training in .* right now"):
        resume(config, max_iters=3)
    assert (Path(config.out_dir) / FILE_NAME).read_bytes() == journal_before
    first.close()
    assert resume(config, max_iters=3).iter == 3


def test_the_lock_cannot_be_deleted(tiny: MakeConfig) -> None:
    config = tiny(max_iters=2)
    run_dir = train(config).out_dir
    assert not is_running(run_dir)
    first = LockedRunDir(run_dir)
    (run_dir / "lock").unlink()
    assert is_running(run_dir)
    with pytest.raises(UserError, match="another process is training"):
        resume(config, max_iters=3)
    first.close()
    assert not is_running(run_dir)
    assert resume(config, max_iters=3).iter == 3


@pytest.mark.skipif(sys.platform == "win32", reason="its runs have no lock")
def test_a_polling_viewer_never_refuses_a_trainer(tmp_path: Path) -> None:
    LockedRunDir(tmp_path).close()  # makes the lock file
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            is_running(tmp_path)

    viewer = threading.Thread(target=poll)
    viewer.start()
    try:
        for _ in range(300):
            LockedRunDir(tmp_path).close()
    finally:
        stop.set()
        viewer.join()


@pytest.mark.skipif(sys.platform == "win32", reason="its runs have no lock")
def test_viewers_do_not_take_each_other_for_a_trainer(tmp_path: Path) -> None:
    LockedRunDir(tmp_path).close()
    other_viewer = lock_run_dir(tmp_path, shared=True)
    assert other_viewer is not None
    with other_viewer:
        assert not is_running(tmp_path)


def test_a_start_that_fails_unlocks_the_folder(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise UserError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr("glassgpt.training.setup.Saver", fail)
        with pytest.raises(UserError, match="on purpose"):
            train(tiny(max_iters=1))
    assert train(tiny(max_iters=1)).iter == 1


def test_every_start_has_a_name(tiny: MakeConfig) -> None:
    config = tiny(max_iters=2)
    run_dir = train(config).out_dir
    resume(config, max_iters=4)
    starts = [record["start"] for record in records(run_dir, "run")]
    assert len(set(starts)) == 2
    assert all(re.fullmatch("[0-9a-f]{8}", start) for start in starts)
    assert all(record["start"] == starts[record["process"]] for record in records(run_dir))
    assert load_latest_intact(run_dir)[0].state["start"] == starts[1]


def test_nothing_to_resume_is_an_error(here: Path, tiny: MakeConfig) -> None:
    with pytest.raises(UserError, match="holds no run to resume"):
        resume(tiny("nowhere"))
    with pytest.raises(UserError, match="there is no run runs/run; "):
        resume(tiny(out_dir=""))


def test_the_folder_holds_what_the_design_says(tiny: MakeConfig) -> None:
    config = tiny(max_iters=2, batch_size=None, dtype="auto")
    train(config)
    folder = Path(config.out_dir)
    assert {path.name for path in folder.iterdir()} == {
        "config.toml",
        "journal.jsonl",
        "checkpoints",
        "tokenizer",
        "lock",
    }
    written = tomllib.loads((folder / "config.toml").read_text())
    assert written["dtype"] == "float32"  # decided, no longer auto
    assert written["batch_size"] == 12
    # Where it was is left out: asking for the same again must not mean the same folder.
    assert build_config(read_recipe(folder / "config.toml"), {}) == dataclasses.replace(
        config, out_dir="", batch_size=12, dtype="float32", **CPU_CHOICES
    )


def test_a_resumed_run_keeps_its_settings(tiny: MakeConfig) -> None:
    config = tiny(max_iters=2, learning_rate=0.0123)
    train(config)
    flags = {"init_from": "resume", "out_dir": config.out_dir, "max_iters": "5"}
    resumed = resolve_request(Recipe("quickstart", "", {"n_layer": 7}), flags)
    assert resumed.config == dataclasses.replace(config, out_dir="", max_iters=5, **CPU_CHOICES)
    assert [(note.name, note.value) for note in resumed.choices] == [("n_layer", 2)], "the file has another"
    assert run_task(resumed).iter == 5
    assert [record["process"] for record in records(config.out_dir, "run")] == [0, 1]


def test_evaluating_a_run_does_not_change_its_settings(tiny: MakeConfig) -> None:
    """`--eval_only` is about one start of the program, not about the run."""
    config = tiny(max_iters=2)
    train(config)
    flags = {"init_from": "resume", "out_dir": config.out_dir}
    run_task(resolve_request(Recipe("quickstart", "", {}), {**flags, "eval_only": "True"}))
    later = resolve_request(Recipe("quickstart", "", {}), {**flags, "max_iters": "4"})
    assert not later.config.eval_only
    assert run_task(later).iter == 4


def test_a_journal_that_is_no_file(here: Path, tiny: MakeConfig) -> None:
    run = train(tiny("run", max_iters=1))
    (run.out_dir / FILE_NAME).unlink()
    (run.out_dir / FILE_NAME).mkdir()
    for _ in range(2):  # and the folder is unlocked again
        with pytest.raises(UserError, match=r"journal\.jsonl is not a regular file"):
            LockedRunDir(run.out_dir)


def test_a_run_writes_through_no_link_and_waits_for_no_pipe(here: Path) -> None:
    (here / "mine.txt").write_text("mine")
    for name in ("lock", FILE_NAME):
        (here / name).symlink_to("mine.txt")
        for _ in range(2):  # and the folder is unlocked again
            with pytest.raises(UserError, match=name):
                LockedRunDir(here)
        with pytest.raises(OSError, match="symbolic link"):
            Journal(here / name)
        (here / name).unlink()
    assert (here / "mine.txt").read_text() == "mine"
    (here / "lock").unlink()
    os.mkfifo(here / "lock")
    with pytest.raises(UserError, match="pipe"):
        LockedRunDir(here)


def test_checkpoints_that_are_no_folder(tiny: MakeConfig, tmp_path: Path) -> None:
    """Reported at the start: else the first save would end the run, and its training would be lost."""
    for name in ("file", "link"):
        (tmp_path / name).mkdir()
        place = tmp_path / name / "checkpoints"
        place.touch() if name == "file" else place.symlink_to("nowhere")
        for _ in range(2):  # and the folder is unlocked again
            with pytest.raises(UserError, match=r"checkpoints is not a folder: move it away"):
                train(tiny(name, max_iters=1))
        assert not (tmp_path / name / "config.toml").exists()


def test_a_resume_reads_the_end_of_the_journal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / FILE_NAME
    old = journal.encode_line({"kind": "step", "time": 1.0, "process": 3, "iter": 7, "text": "x" * 400})
    end = {"kind": "end", "time": 2.0, "process": 4, "iter": 9, "reason": "finished"}
    path.write_bytes(old * 10_000 + journal.encode_line(end))
    parsed = []
    loads = journal.loads

    def count(text: bytes) -> Any:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr(journal, "loads", count)
    place = LockedRunDir(tmp_path)
    assert (place.process_number, place.was_finished) == (5, True)
    assert len(parsed) < 10
    place.close()


def test_starts_are_counted_whatever_the_journal_ends_with(tmp_path: Path) -> None:
    def line(kind: str, **more: Any) -> bytes:
        return journal.encode_line({"kind": kind, "time": 1.0, "iter": 0} | more)

    torn = line("end", process=9, reason="finished")[:-3]
    for content, starts, finished in (
        (b"", 0, False),
        (b"\0" * 3_000_000, 0, False),  # a hole that a power cut left
        (torn, 0, False),
        (line("run", process=0) + torn, 1, False),
        (line("end", process=2, reason="stopped early") + b"\0" * 3_000_000, 3, True),
        (line("end", process=2, reason="interrupted"), 3, False),
        (line("run") + line("step") + line("run") + line("end", reason="finished"), 2, True),  # no numbers
        (line("run", process=4) + line("run") + line("end"), 6, False),
    ):
        (tmp_path / FILE_NAME).write_bytes(content)
        place = LockedRunDir(tmp_path)
        assert (place.process_number, place.was_finished) == (starts, finished), content[:200]
        place.close()


def test_the_resume_command_can_be_pasted() -> None:
    assert resume_command(Path("runs/a")) == "glass train --init_from=resume --out_dir=runs/a"
    assert resume_command(Path("my run"), "--threads=1").endswith(" --out_dir='my run' --threads=1")
