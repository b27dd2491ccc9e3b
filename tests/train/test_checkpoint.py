"""Checkpoints: whole or not there, the best kept for ever, damage noticed, nothing executed."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MakeConfig, assert_same_tensors, files_under, last_tensors, records, resume, run_until_crash

from glassgpt.account import journal
from glassgpt.account.journal import Record
from glassgpt.errors import UserError
from glassgpt.train import checkpoint
from glassgpt.train.checkpoint import FOLDER, Saver, Tensors, best, committed, describe, load_last
from glassgpt.train.session import train
from glassgpt.train.team import Team
from glassgpt.train.tensorfile import write_packed


def tensors(number: float) -> Tensors:
    return {
        "model": {"weight": torch.full((5, 3), float(number))},
        "optimizer": {"weight:step": torch.tensor(float(number))},
        "evaluation": {},
    }


def save(saver: Saver, iteration: int, val_loss: float | None = None) -> Record:
    saver.save(tensors(iteration), {"iter": iteration, "val_loss": val_loss, "note": "hello"})
    record = saver.poll(wait=True)
    assert record is not None
    return record


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with checkpoints 10, 20 and 30."""
    saver = Saver(tmp_path, keep=3)
    for iteration in (10, 20, 30):
        save(saver, iteration, val_loss=5.0 - iteration / 10)
    saver.close()
    return tmp_path


# --- what is kept ---


def test_a_checkpoint_comes_back_as_it_was(saved: Path) -> None:
    point, found, damaged, complaints = load_last(saved)
    assert point.iter == 30
    assert point.val_loss == 2.0
    assert point.state["note"] == "hello"
    assert (damaged, complaints) == ([], [])
    assert_same_tensors(found, {name: part for name, part in tensors(30).items() if part})
    assert {path.name for path in point.path.iterdir()} == {
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    }


def test_the_record_says_what_it_cost(tmp_path: Path) -> None:
    record = save(Saver(tmp_path, keep=1), 7, 1.5)
    assert record["kind"] == "checkpoint"
    assert record["iter"] == 7
    assert record["best"] is True
    assert record["bytes"] == sum(path.stat().st_size for path in files_under(tmp_path / FOLDER))
    assert record["blocking_ms"] > 0
    assert record["background_ms"] > 0


def test_later_changes_of_the_weights_do_not_reach_the_file(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1)
    weight = torch.zeros(1000, 100)
    saver.save({"model": {"weight": weight}}, {"iter": 1, "val_loss": None})
    weight += 1  # the next update, while the file is being written
    saver.poll(wait=True)
    assert not load_last(tmp_path)[1]["model"]["weight"].any()


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
            record = save(saver, iteration, val_loss)
            done.append((iteration, val_loss))
            evaluated = [pair for pair in done if pair[1] is not None and math.isfinite(pair[1])]
            top = min(evaluated, key=lambda pair: pair[1] or 0.0, default=None)
            found = [describe(path) for path in committed(folder)]
            kept = [(point.iter, point.val_loss) for point in found]
            assert kept[-keep:] == done[-keep:]
            assert top is None or top in kept
            assert len(kept) <= keep + 1
            assert record["best"] == (done[-1] is top)
            assert load_last(folder)[0].iter == iteration
            winner = best(folder)
            assert (winner and (winner.iter, winner.val_loss)) == top
        saver.close()


@pytest.mark.parametrize("times", [2, 3, 4])
def test_saved_again_at_the_same_iteration_the_newest_is_the_last(tmp_path: Path, times: int) -> None:
    # A pruned one's name is not taken again: it would sort before newer ones.
    saver = Saver(tmp_path, keep=1)
    for number in range(times):
        save(saver, 10, None if number == 0 else 5.0 + number)
    last = load_last(tmp_path)[0]
    assert (last.iter, last.val_loss) == (10, 4.0 + times)


def test_a_loss_that_is_nan_is_nobodys_best(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1)
    for iteration, val_loss in ((1, math.nan), (2, 2.0), (3, 3.0), (4, math.nan), (5, 3.0)):
        save(saver, iteration, val_loss)
    saver.close()
    top = best(tmp_path)
    assert top is not None
    assert (top.iter, top.val_loss) == (2, 2.0)


def test_numbers_sort_as_numbers(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=99)
    for iteration in (5, 99_999_999, 100_000_000, 100_000_000):
        save(saver, iteration)
    assert [path.name for path in committed(tmp_path)] == [
        "00000005",
        "99999999",
        "100000000",
        "100000000.1",
    ]


# --- damage ---


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x10
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncate, empty, flip, Path.unlink])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over_with_a_complaint(
    saved: Path, file: str, damage: Callable[[Path], Any]
) -> None:
    damage(saved / FOLDER / "00000030" / file)
    point, found, damaged, complaints = load_last(saved)
    assert point.iter == 20
    assert damaged == [saved / FOLDER / "00000030"]
    assert set(found["model"]["weight"].flatten().tolist()) == {20.0}
    assert len(complaints) == 1
    assert "00000030" in complaints[0]
    assert "damaged" in complaints[0]
    damage(saved / FOLDER / "00000020" / "model.safetensors")
    assert load_last(saved)[0].iter == 10


def test_any_flipped_bit_of_the_state_is_noticed(saved: Path) -> None:
    path = saved / FOLDER / "00000030" / "state.json"
    whole = path.read_bytes()
    state = json.loads(whole)["state"]
    unnoticed = []
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        point, _, _, complaints = load_last(saved)
        if not complaints and point.state != state:
            unnoticed.append(whole[max(0, at - 12) : at + 12])
    assert unnoticed == []


def test_without_a_whole_checkpoint_all_complaints_are_told(saved: Path) -> None:
    for path in files_under(saved / FOLDER):
        if path.name == "model.safetensors":
            empty(path)
    with pytest.raises(UserError) as caught:
        load_last(saved)
    assert len(caught.value.problems) == 4
    assert "has no checkpoint to resume from" in caught.value.problems[-1]


def test_a_newer_format_is_refused_by_name(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.train.checkpoint.VERSION", 99)
    saver = Saver(saved, 9)
    save(saver, 40, 1.0)
    saver.close()
    monkeypatch.undo()
    assert "version 99" in load_last(saved)[3][0]


def test_the_older_format_is_read(saved: Path) -> None:
    newest = committed(saved)[-1]
    state = dict(describe(newest).state) | {"version": 1}
    files = {name: hashlib.sha256((newest / name).read_bytes()).hexdigest() for name in state["sha256"]}
    state["sha256"] = files
    document = {"digest": hashlib.sha256(journal.dumps(state).encode()).hexdigest(), "state": state}
    (newest / "state.json").write_text(journal.dumps(document))
    point, tensors, damaged, _ = load_last(saved)
    assert (point.path, damaged) == (newest, [])
    assert tensors.keys() == {"model", "optimizer"}


def test_leftovers_of_a_killed_process_are_removed(saved: Path) -> None:
    leftover = saved / FOLDER / ".tmp-00000040-12345"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half a file")
    foreign = saved / FOLDER / "notes"
    foreign.mkdir()
    assert load_last(saved)[0].iter == 30
    Saver(saved, keep=3)
    assert not leftover.exists()
    assert foreign.exists()


def test_a_run_goes_on_from_before_the_damage_and_says_so(tiny: MakeConfig) -> None:
    config = tiny(max_iters=30, keep_checkpoints=3, dropout=0.1)
    train(config)
    whole = last_tensors(config.out_dir)
    truncate(Path(config.out_dir) / FOLDER / "00000030" / "optimizer.safetensors")
    run = resume(config)
    assert run.iter == 30
    record = records(config.out_dir, "resume")[-1]
    assert record["from_iter"] == 20
    assert "optimizer.safetensors is damaged" in record["complaints"][0]
    # Nothing is deleted: somebody may want to look at it.
    assert (Path(config.out_dir) / FOLDER / "damaged-00000030" / "optimizer.safetensors").exists()
    # The repeated part comes out the same.
    assert_same_tensors(load_last(Path(config.out_dir))[1], whole)


def test_new_checkpoints_survive_a_damaged_one_with_a_higher_number(tiny: MakeConfig) -> None:
    config = tiny(max_iters=30, keep_checkpoints=2, always_save_checkpoint=True)
    train(config)
    truncate(Path(config.out_dir) / FOLDER / "00000030" / "model.safetensors")
    again = {"init_from": "resume", "checkpoint_interval": 5, "keep_checkpoints": 1}
    run_until_crash(tiny(max_iters=30, **again), 28)
    assert load_last(Path(config.out_dir))[0].iter == 25


def test_a_damaged_checkpoint_is_not_kept_as_the_best(tiny: MakeConfig) -> None:
    config = tiny(max_iters=20, keep_checkpoints=2)
    train(config)
    folder = Path(config.out_dir) / FOLDER
    path = folder / "00000020" / "state.json"
    assert best(Path(config.out_dir)) == describe(folder / "00000020")
    truncate(path.with_name("model.safetensors"))
    resume(config, max_iters=40, learning_rate=0.5, min_lr=0.5, warmup_iters=0)  # ruins it from there on
    top = best(Path(config.out_dir))
    assert top is not None
    checkpoint.load_tensors(top)


# --- failing writes ---


def test_a_failing_write_is_an_error_that_leaves_the_others_whole(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saver = Saver(saved, keep=1)
    monkeypatch.setattr(checkpoint, "write_packed", fail)
    saver.save(tensors(40), {"iter": 40, "val_loss": None})
    with pytest.raises(UserError, match=r"could not be written \(.*\); the last whole one is .*/00000030$"):
        saver.poll(wait=True)
    assert saver.poll(wait=True) is None
    point, _, damaged, _ = load_last(saved)
    assert (point.iter, damaged) == (30, [])
    assert [path.name for path in sorted((saved / FOLDER).iterdir())] == ["00000010", "00000020", "00000030"]
    monkeypatch.undo()
    save(saver, 50)  # there is room again
    assert load_last(saved)[0].iter == 50


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

    monkeypatch.setattr(checkpoint, "write_packed", fill_up)
    with pytest.raises(UserError, match="No space left on device"):
        train(config)
    assert records(config.out_dir)[-1]["kind"] == "end"
    assert load_last(Path(config.out_dir))[0].iter == 10
    assert [path.name for path in committed(Path(config.out_dir))] == ["00000010"]
    monkeypatch.undo()
    assert resume(config).iter == 30


def die_at(count: int) -> None:
    """In a forked process: do one more save, and die for good at the count-th thing that touches the disk."""
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
            (checkpoint, "write_packed"),
            (checkpoint, "sync_to_disk"),
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
        save(saver, 40, 1.0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_crash_at_any_instant_leaves_a_whole_checkpoint(
    saved: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for count in range(1, 60):
        folder = tmp_path_factory.mktemp("crash")
        shutil.copytree(saved / FOLDER, folder / FOLDER)
        monkeypatch.chdir(folder)
        child = os.fork()
        if child == 0:
            try:
                die_at(count)
            finally:
                os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        point, found, damaged, _ = load_last(folder)
        seen.add(point.iter)
        assert damaged == []
        assert set(found["model"]["weight"].flatten().tolist()) == {float(point.iter)}
        save(Saver(folder, keep=1), 50, 9.0)  # and the next process goes on as if nothing was
        assert load_last(folder)[0].iter == 50
        assert sorted((folder / FOLDER).iterdir()) == sorted(committed(folder))  # nothing half-done is left
        if status == 0:
            break
    assert status == 0, "the save was never reached to its end"
    assert count > 10
    assert seen == {30, 40}


# --- nothing is executed ---


class _Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(self.path),))


def test_a_pickle_is_never_opened(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(max_iters=20, keep_checkpoints=2)
    train(config)
    mark = tmp_path / "exploded"
    bomb = pickle.dumps(_Bomb(str(mark)))
    folder = Path(config.out_dir) / FOLDER
    for name in ("model.pt", "ckpt.pt", "optimizer.pkl", "state.pickle"):
        for place in (folder / "00000020", folder, folder.parent):
            (place / name).write_bytes(bomb)
    (folder / "00000020" / "model.safetensors").write_bytes(bomb)
    resume(config)
    assert records(config.out_dir, "resume")[-1]["from_iter"] == 10
    assert not mark.exists()
    pickle.loads(bomb)  # noqa: S301 - the bomb is live, so the lines above mean something
    assert mark.exists()


# --- what a reviewer tried ---


def test_names_that_are_not_ours_do_no_harm(saved: Path) -> None:
    for name in ("00000040.bak", "00000040.old", "damaged-00000030.old", "notes"):
        (saved / FOLDER / name).mkdir()
    assert save(Saver(saved, keep=1), 40)["iter"] == 40
    point, _, damaged, _ = load_last(saved)
    assert (point.path.name, damaged) == ("00000040", [])


def test_an_old_checkpoint_that_cannot_be_removed_ends_nothing(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    saver = Saver(saved, keep=1)
    monkeypatch.setattr(shutil, "rmtree", busy)
    record = save(saver, 40)
    assert "busy" in record["not_removed"]
    assert load_last(saved)[0].iter == 40


def test_a_folder_with_nothing_but_checkpoints_is_a_run(tiny: MakeConfig) -> None:
    config = tiny(max_iters=4, eval_interval=2)
    run_dir = train(config).out_dir
    (run_dir / "config.toml").unlink()
    (run_dir / "journal.jsonl").unlink()
    with pytest.raises(UserError, match="holds a run already"):
        train(config)
    assert resume(config, max_iters=6).iter == 6


class SecondOfTwo(Team):
    """The process that writes a part, into a folder that the first one has given up meanwhile."""

    rank, size = 1, 2

    def collect(self, name: str) -> Any:
        return ".tmp-gone"


def test_a_save_that_the_first_process_gave_up_is_said_as_that(tmp_path: Path) -> None:
    """And not as a file that is not there, which would send somebody looking for it."""
    saver = Saver(tmp_path, 2, SecondOfTwo())
    saver.save(tensors(1), {"iter": 1}, rows={})
    with pytest.raises(UserError, match=r"could not be written \(rank 0 could not write its part\)"):
        saver.poll(wait=True)
    saver.close()
