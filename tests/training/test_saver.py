"""Saving: complete or not at all, in the background, and the best checkpoint is never removed."""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import count_state_reads, make_tensors, save_and_wait, write_checkpoints
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MakeConfig, files_under, records, resume

from glassgpt.errors import UserError
from glassgpt.files import read_small_file
from glassgpt.record.run_dir import CHECKPOINTS_DIR
from glassgpt.training.checkpoint import checkpoints
from glassgpt.training.checkpoint import saver as saving
from glassgpt.training.checkpoint.checkpoints import (
    committed_paths,
    list_checkpoints,
    load_latest_intact,
    read_checkpoint,
)
from glassgpt.training.checkpoint.saver import Saver
from glassgpt.training.checkpoint.tensor_file import write_packed
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.session import train


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with checkpoints 10, 20 and 30."""
    return write_checkpoints(tmp_path)


# --- what is saved and what stays ---


def test_the_record_says_what_it_cost(tmp_path: Path) -> None:
    record = save_and_wait(Saver(tmp_path, keep=1), 7, 1.5)
    assert record["kind"] == "checkpoint"
    assert record["iter"] == 7
    assert record["best"] is True
    assert record["bytes"] == sum(path.stat().st_size for path in files_under(tmp_path / CHECKPOINTS_DIR))
    assert record["blocking_ms"] > 0
    assert record["background_ms"] > 0


def test_a_save_reads_every_state_once_and_its_own_once_more(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = count_state_reads(monkeypatch)
    saver = Saver(saved, keep=4)
    save_and_wait(saver, 40)
    saver.close()
    assert sorted(path.parent.name for path in reads) == [
        "00000010", "00000020", "00000030", "00000040", "00000040",
    ]  # fmt: skip


def test_later_changes_of_the_weights_do_not_reach_the_file(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1)
    weight = torch.zeros(1000, 100)
    saver.save({"model": {"weight": weight}}, {"iter": 1, "val_loss": None})
    weight += 1  # the next update, while the file is being written
    saver.poll(wait=True)
    assert not load_latest_intact(tmp_path)[1]["model"]["weight"].any()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.none() | st.sampled_from([1.0, 1.5, 2.0, 2.5, math.inf]) | st.floats(0, 9)
        ),
        min_size=1,
        max_size=7,
    ),
    st.integers(1, 3),
)
def test_the_best_and_the_last_are_kept_whatever_comes(
    saves: list[tuple[int, float | None]], keep: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saver = Saver(folder, keep)
        iteration, done = 0, []
        for step, val_loss in saves:
            iteration += step
            record = save_and_wait(saver, iteration, val_loss)
            done.append((iteration, val_loss))
            evaluated = [pair for pair in done if pair[1] is not None and math.isfinite(pair[1])]
            top = min(evaluated, key=lambda pair: pair[1] or 0.0, default=None)
            committed = [read_checkpoint(path) for path in committed_paths(folder)]
            remaining = [(checkpoint.iter, checkpoint.val_loss) for checkpoint in committed]
            assert remaining[-keep:] == done[-keep:]
            assert top is None or top in remaining
            assert len(remaining) <= keep + 1
            assert record["best"] == (done[-1] is top)
            assert load_latest_intact(folder)[0].iter == iteration
            winner = list_checkpoints(folder).best
            assert (winner and (winner.iter, winner.val_loss)) == top
        saver.close()


@pytest.mark.parametrize("times", [2, 3, 4])
def test_saved_again_at_the_same_iteration_the_newest_is_the_last(tmp_path: Path, times: int) -> None:
    # A pruned one's name is not taken again: it would sort before newer ones.
    saver = Saver(tmp_path, keep=1)
    for number in range(times):
        save_and_wait(saver, 10, None if number == 0 else 5.0 + number)
    last = load_latest_intact(tmp_path)[0]
    assert (last.iter, last.val_loss) == (10, 4.0 + times)


# --- failing writes ---


def test_a_failing_write_is_an_error_that_leaves_the_others_whole(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saver = Saver(saved, keep=1)
    monkeypatch.setattr(saving, "write_packed", fail)
    saver.save(make_tensors(40), {"iter": 40, "val_loss": None})
    with pytest.raises(UserError, match=r"could not be written \(.*\); the last whole one is .*/00000030$"):
        saver.poll(wait=True)
    assert saver.poll(wait=True) is None
    checkpoint, _, damaged, _ = load_latest_intact(saved)
    assert (checkpoint.iter, damaged) == (30, [])
    assert [path.name for path in sorted((saved / CHECKPOINTS_DIR).iterdir())] == [
        "00000010",
        "00000020",
        "00000030",
    ]
    monkeypatch.undo()
    save_and_wait(saver, 50)  # there is room again
    assert load_latest_intact(saved)[0].iter == 50


def test_a_full_disk_ends_a_run_with_what_was_saved(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=30, keep_checkpoints=5)
    calls = []

    def fill_up(path: Path, *content: Any) -> str:
        calls.append(path)
        if len(calls) > 3:  # two files of tensors make a checkpoint
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_packed(path, *content)

    monkeypatch.setattr(saving, "write_packed", fill_up)
    with pytest.raises(UserError, match="No space left on device"):
        train(config)
    assert records(config.out_dir)[-1]["kind"] == "end"
    assert load_latest_intact(Path(config.out_dir))[0].iter == 10
    assert [path.name for path in committed_paths(Path(config.out_dir))] == ["00000010"]
    monkeypatch.undo()
    assert resume(config).iter == 30


def die_at(count: int) -> None:
    """In a forked process: do one more save, and die at the count-th call that touches the disk."""
    calls = [0]

    def dying(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == count:
                os._exit(9)
            return original(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for where, name in (
            (saving, "write_packed"),
            (saving, "fsync_path"),
            (os, "fsync"),
            (Path, "mkdir"),
            (Path, "rename"),
            (Path, "write_text"),
            (os, "unlink"),
            (os, "rmdir"),
        ):
            patch.setattr(where, name, dying(getattr(where, name)))
        folder = Path.cwd()
        saver = Saver(folder, keep=1)
        save_and_wait(saver, 40, 1.0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_crash_at_any_instant_leaves_a_whole_checkpoint(
    saved: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for count in range(1, 60):
        folder = tmp_path_factory.mktemp("crash")
        shutil.copytree(saved / CHECKPOINTS_DIR, folder / CHECKPOINTS_DIR)
        monkeypatch.chdir(folder)
        child = os.fork()
        if child == 0:
            try:
                die_at(count)
            finally:
                os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        checkpoint, tensors, damaged, _ = load_latest_intact(folder)
        seen.add(checkpoint.iter)
        assert damaged == []
        assert set(tensors["model"]["weight"].flatten().tolist()) == {float(checkpoint.iter)}
        save_and_wait(
            Saver(folder, keep=1), 50, 9.0
        )  # and the next process continues as if nothing had happened
        assert load_latest_intact(folder)[0].iter == 50
        assert sorted((folder / CHECKPOINTS_DIR).iterdir()) == sorted(
            committed_paths(folder)
        )  # nothing half-done is left
        if status == 0:
            break
    assert status == 0, "the save was never reached to its end"
    assert count > 10
    assert seen == {30, 40}


def test_an_old_checkpoint_that_cannot_be_removed_ends_nothing(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    saver = Saver(saved, keep=1)
    monkeypatch.setattr(shutil, "rmtree", busy)
    record = save_and_wait(saver, 40)
    assert "busy" in record["not_removed"]
    assert load_latest_intact(saved)[0].iter == 40


class OneOfTwo(ProcessGroup):
    """A group of two. `folder`: the one that rank 0 made, empty if it could not."""

    world_size = 2

    def __init__(self, rank: int, folder: str = "") -> None:
        self.rank, self.folder, self.stored = rank, folder, dict[str, Any]()

    def store_set(self, key: str, value: Any) -> None:
        self.stored[key] = value

    def store_get(self, key: str) -> Any:
        return self.folder


def test_a_rank_that_cannot_save_leaves_it_to_rank_0_to_end_the_run(tmp_path: Path) -> None:
    """If it ended by itself, rank 0 could not rescue a run whose folder is gone."""
    for folder in ("", str(tmp_path / ".tmp-gone")):
        group = OneOfTwo(1, folder)
        saver = Saver(tmp_path, 2, group)
        saver.save(make_tensors(1), {"iter": 1}, rows={})
        assert saver.poll(wait=True) is not None
        saver.close()
        assert "error" in group.stored["save/1/1"]


def test_rank_0_without_a_folder_lets_no_rank_wait(tmp_path: Path) -> None:
    group = OneOfTwo(0)
    saver = Saver(tmp_path / "gone", 2, group)
    saver.save(make_tensors(1), {"iter": 1, "val_loss": None}, rows={})
    with pytest.raises(UserError):
        saver.poll(wait=True)
    saver.close()
    assert group.stored == {"save/1": ""}


# --- leftovers ---


def test_leftovers_of_a_killed_process_are_removed(saved: Path) -> None:
    leftover = saved / CHECKPOINTS_DIR / ".tmp-00000040-12345"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half a file")
    foreign = saved / CHECKPOINTS_DIR / "notes"
    foreign.mkdir()
    assert load_latest_intact(saved)[0].iter == 30
    Saver(saved, keep=3)
    assert not leftover.exists()
    assert foreign.exists()


def test_names_that_are_not_ours_do_no_harm(saved: Path) -> None:
    for name in ("00000040.bak", "00000040.old", "damaged-00000030.old", "notes"):
        (saved / CHECKPOINTS_DIR / name).mkdir()
    assert save_and_wait(Saver(saved, keep=1), 40)["iter"] == 40
    checkpoint, _, damaged, _ = load_latest_intact(saved)
    assert (checkpoint.path.name, damaged) == ("00000040", [])


# --- folders that somebody else put there ---


def test_a_dated_copy_is_neither_counted_nor_removed(tmp_path: Path) -> None:
    """By its name it would be the newest for ever, and everything after it would be pruned."""
    saver = Saver(tmp_path, keep=1)
    save_and_wait(saver, 16, 2.0)
    shutil.copytree(tmp_path / CHECKPOINTS_DIR / "00000016", tmp_path / CHECKPOINTS_DIR / "20261116")
    shutil.copytree(tmp_path / CHECKPOINTS_DIR / "00000016", tmp_path / CHECKPOINTS_DIR / "0000000016")
    for iteration in (20, 24, 28):
        record = save_and_wait(saver, iteration, 3.0)
        assert record["ignored"] == ["0000000016", "20261116"]
        assert [path.name for path in committed_paths(tmp_path)] == ["00000016", f"{iteration:08d}"]
        checkpoint, _, damaged, warnings = load_latest_intact(tmp_path)
        assert (checkpoint.iter, damaged, len(warnings)) == (iteration, [], 2)
    assert (tmp_path / CHECKPOINTS_DIR / "20261116" / "state.json").exists()


def test_what_cannot_be_identified_does_not_remove_others(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1)
    for name in ("99999999", "00000001"):  # a folder of somebody's own, without a state.json
        (tmp_path / CHECKPOINTS_DIR / name).mkdir(parents=True)
    (tmp_path / "other").mkdir()
    write_checkpoints(tmp_path / "other")
    (tmp_path / "other" / CHECKPOINTS_DIR / "00000030").rename(tmp_path / CHECKPOINTS_DIR / "00000030")
    for iteration in (4, 8):
        assert save_and_wait(saver, iteration, 9.0)["ignored"] == ["00000030"], (
            "it was not this run that got there"
        )
    names = sorted(path.name for path in (tmp_path / CHECKPOINTS_DIR).iterdir())
    assert names == ["00000001", "00000004", "00000008", "00000030", "99999999"], "4 is this run's best"


def test_nothing_is_removed_before_the_new_one_was_read_back(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(path: Path, *content: Any) -> str:
        digest = write_packed(path, *content)
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")  # what the disk made of it
        return digest

    saver = Saver(saved, keep=1)
    monkeypatch.setattr(saving, "write_packed", damage)
    saver.save(make_tensors(40), {"iter": 40, "val_loss": 1.0})
    with pytest.raises(UserError, match=r"SHA-256.*the last whole one is .*/00000030$"):
        saver.poll(wait=True)
    assert [path.name for path in committed_paths(saved)] == ["00000010", "00000020", "00000030"]
    assert (saved / CHECKPOINTS_DIR / "damaged-00000040").is_dir()
    monkeypatch.undo()
    save_and_wait(saver, 50, 1.0)
    assert [path.name for path in committed_paths(saved)] == ["00000050"]


def test_what_cannot_be_read_is_not_removed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the best: here it is."""
    original = read_small_file
    for number in (errno.EIO, errno.EMFILE):

        def read(path: Path, *most: int, number: int = number) -> bytes:
            if path == saved / CHECKPOINTS_DIR / "00000030" / "state.json":
                raise OSError(number, os.strerror(number))
            return original(path, *most)

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "read_small_file", read)
            saver = Saver(saved, keep=1)
            save_and_wait(saver, 40 + number, 9.0)
            saver.close()
        top = list_checkpoints(saved).best
        assert top is not None
        assert top.iter == 30


def test_a_link_or_file_named_as_a_leftover_is_removed_and_what_it_leads_to_is_not(saved: Path) -> None:
    target = saved / "target"
    target.mkdir()
    (target / "file").touch()
    (saved / CHECKPOINTS_DIR / ".tmp-link").symlink_to(target)
    (saved / CHECKPOINTS_DIR / ".tmp-nowhere").symlink_to(saved / "nothing")
    (saved / CHECKPOINTS_DIR / ".tmp-file").touch()
    (saved / CHECKPOINTS_DIR / ".tmp-folder").mkdir()
    Saver(saved, keep=3).close()
    assert sorted((saved / CHECKPOINTS_DIR).iterdir()) == sorted(committed_paths(saved))
    assert (target / "file").exists()
