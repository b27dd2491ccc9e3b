"""Checkpoints: the last and the best of them, damage noticed, nothing executed."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import count_state_reads, make_tensors, save_and_wait, write_checkpoints
from tiny import (
    Crash,
    MakeConfig,
    assert_same_tensors,
    files_under,
    last_tensors,
    records,
    resume,
    run_until_crash,
)

from glassgpt.errors import UserError
from glassgpt.files import read_small_file
from glassgpt.record import journal
from glassgpt.record.run_dir import CHECKPOINTS_DIR
from glassgpt.training.checkpoint import checkpoints
from glassgpt.training.checkpoint.checkpoints import (
    committed_paths,
    encode_state,
    list_checkpoints,
    load_latest_intact,
    load_tensors,
    read_checkpoint,
)
from glassgpt.training.checkpoint.saver import Saver
from glassgpt.training.learner import Learner
from glassgpt.training.session import train
from glassgpt.training.weight_source import from_checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with checkpoints 10, 20 and 30."""
    return write_checkpoints(tmp_path)


# --- which is which ---


def test_a_checkpoint_comes_back_as_it_was(saved: Path) -> None:
    checkpoint, tensors, damaged, warnings = load_latest_intact(saved)
    assert checkpoint.iter == 30
    assert checkpoint.val_loss == 2.0
    assert checkpoint.state["note"] == "hello"
    assert (damaged, warnings) == ([], [])
    assert_same_tensors(tensors, {name: part for name, part in make_tensors(30).items() if part})
    assert {path.name for path in checkpoint.path.iterdir()} == {
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    }


def test_a_loss_that_is_nan_is_nobodys_best(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1)
    for iteration, val_loss in ((1, math.nan), (2, 2.0), (3, 3.0), (4, math.nan), (5, 3.0)):
        save_and_wait(saver, iteration, val_loss)
    saver.close()
    top = list_checkpoints(tmp_path).best
    assert top is not None
    assert (top.iter, top.val_loss) == (2, 2.0)


def test_numbers_sort_as_numbers(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=99)
    for iteration in (5, 99_999_999, 100_000_000, 100_000_000):
        save_and_wait(saver, iteration)
    assert [path.name for path in committed_paths(tmp_path)] == [
        "00000005",
        "99999999",
        "100000000",
        "100000000.1",
    ]


# --- made by somebody else ---


def test_a_checkpoint_names_files_in_its_folder_and_no_others(saved: Path) -> None:
    path = committed_paths(saved)[-1]
    state = dict(read_checkpoint(path).state)
    (path.parent / "up.safetensors").write_bytes(b"")
    for name in (
        "/dev/zero",
        "../up.safetensors",
        "model.safetensors/../../up.safetensors",
        "state.json",
        "",
    ):
        (path / "state.json").write_text(checkpoints.encode_state(state | {"sha256": {name: ""}}))
        with pytest.raises(UserError, match=re.escape(repr(name))):
            read_checkpoint(path)
        assert load_latest_intact(saved)[0].iter == 20


def test_a_file_of_a_checkpoint_that_is_a_pipe_or_too_large_is_not_read(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, middle, first = reversed(committed_paths(saved))
    for path in (last / "state.json", middle / "model.safetensors"):
        path.unlink()
        os.mkfifo(path)
        with pytest.raises((UserError, OSError), match="pipe"):
            load_tensors(read_checkpoint(path.parent))
    monkeypatch.setattr(checkpoints, "available_memory_bytes", lambda: 100)
    with pytest.raises((UserError, OSError), match="at most 100"):
        load_tensors(read_checkpoint(first))


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
    damage(saved / CHECKPOINTS_DIR / "00000030" / file)
    checkpoint, tensors, damaged, warnings = load_latest_intact(saved)
    assert checkpoint.iter == 20
    assert damaged == [saved / CHECKPOINTS_DIR / "00000030"]
    assert set(tensors["model"]["weight"].flatten().tolist()) == {20.0}
    assert len(warnings) == 1
    assert "00000030" in warnings[0]
    assert "damaged" in warnings[0]
    damage(saved / CHECKPOINTS_DIR / "00000020" / "model.safetensors")
    assert load_latest_intact(saved)[0].iter == 10


def test_any_flipped_bit_of_the_state_is_noticed(saved: Path) -> None:
    path = saved / CHECKPOINTS_DIR / "00000030" / "state.json"
    whole = path.read_bytes()
    state = json.loads(whole)["state"]
    unnoticed = []
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        checkpoint, _, _, warnings = load_latest_intact(saved)
        if not warnings and checkpoint.state != state:
            unnoticed.append(whole[max(0, at - 12) : at + 12])
    assert unnoticed == []


def test_without_a_whole_checkpoint_all_warnings_are_in_the_error(saved: Path) -> None:
    for path in files_under(saved / CHECKPOINTS_DIR):
        if path.name == "model.safetensors":
            empty(path)
    with pytest.raises(UserError) as caught:
        load_latest_intact(saved)
    assert len(caught.value.problems) == 4
    assert "has no checkpoint to resume from" in caught.value.problems[-1]


def test_a_newer_format_is_refused_by_name(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.training.checkpoint.checkpoints.CHECKPOINT_VERSION", 99)
    monkeypatch.setitem(checkpoints.DIGEST_BY_VERSION, 99, checkpoints.DIGEST_BY_VERSION[2])
    saver = Saver(saved, 9)
    save_and_wait(saver, 40, 1.0)
    saver.close()
    monkeypatch.undo()
    assert "version 99" in load_latest_intact(saved)[3][0]


def test_the_older_format_is_read(saved: Path) -> None:
    newest = committed_paths(saved)[-1]
    state = dict(read_checkpoint(newest).state) | {"version": 1}
    files = {name: hashlib.sha256((newest / name).read_bytes()).hexdigest() for name in state["sha256"]}
    state["sha256"] = files
    document = {"digest": hashlib.sha256(journal.dumps(state).encode()).hexdigest(), "state": state}
    (newest / "state.json").write_text(journal.dumps(document))
    checkpoint, tensors, damaged, _ = load_latest_intact(saved)
    assert (checkpoint.path, damaged) == (newest, [])
    assert tensors.keys() == {"model", "optimizer"}


def test_a_run_goes_on_from_before_the_damage_and_says_so(tiny: MakeConfig) -> None:
    config = tiny(max_iters=30, keep_checkpoints=3, dropout=0.1)
    train(config)
    whole = last_tensors(config.out_dir)
    truncate(Path(config.out_dir) / CHECKPOINTS_DIR / "00000030" / "optimizer.safetensors")
    run = resume(config)
    assert run.iter == 30
    record = records(config.out_dir, "resume")[-1]
    assert record["from_iter"] == 20
    assert "optimizer.safetensors is damaged" in record["complaints"][0]
    # Nothing is deleted: somebody may want to look at it.
    assert (Path(config.out_dir) / CHECKPOINTS_DIR / "damaged-00000030" / "optimizer.safetensors").exists()
    # The repeated part comes out the same.
    assert_same_tensors(load_latest_intact(Path(config.out_dir))[1], whole)


def test_resuming_reads_every_state_twice(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the settings, and again once the folder is locked."""
    train(tiny(max_iters=5, checkpoint_interval=1, keep_checkpoints=9))
    reads, reads_before_update = count_state_reads(monkeypatch), []

    def update(learner: Learner, number: int, first_sequence: int) -> None:
        reads_before_update.extend(reads)
        raise Crash

    monkeypatch.setattr(Learner, "update", update)
    with pytest.raises(Crash):
        resume(tiny(max_iters=5), max_iters=6)
    assert sorted(int(path.parent.name) for path in reads_before_update) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_new_checkpoints_survive_a_damaged_one_with_a_higher_number(tiny: MakeConfig) -> None:
    config = tiny(max_iters=30, keep_checkpoints=2, always_save_checkpoint=True)
    train(config)
    truncate(Path(config.out_dir) / CHECKPOINTS_DIR / "00000030" / "model.safetensors")
    again = {"init_from": "resume", "checkpoint_interval": 5, "keep_checkpoints": 1}
    run_until_crash(tiny(max_iters=30, **again), 28)
    assert load_latest_intact(Path(config.out_dir))[0].iter == 25


def test_a_damaged_checkpoint_is_not_kept_as_the_best(tiny: MakeConfig) -> None:
    config = tiny(max_iters=20, keep_checkpoints=2)
    train(config)
    folder = Path(config.out_dir) / CHECKPOINTS_DIR
    path = folder / "00000020" / "state.json"
    assert list_checkpoints(Path(config.out_dir)).best == read_checkpoint(folder / "00000020")
    truncate(path.with_name("model.safetensors"))
    resume(config, max_iters=40, learning_rate=0.5, min_lr=0.5, warmup_iters=0)  # ruins it from there on
    top = list_checkpoints(Path(config.out_dir)).best
    assert top is not None
    checkpoints.load_tensors(top)


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
    folder = Path(config.out_dir) / CHECKPOINTS_DIR
    for name in ("model.pt", "ckpt.pt", "optimizer.pkl", "state.pickle"):
        for place in (folder / "00000020", folder, folder.parent):
            (place / name).write_bytes(bomb)
    (folder / "00000020" / "model.safetensors").write_bytes(bomb)
    resume(config)
    assert records(config.out_dir, "resume")[-1]["from_iter"] == 10
    assert not mark.exists()
    pickle.loads(bomb)  # noqa: S301 - the bomb is live, so the lines above mean something
    assert mark.exists()


def test_a_folder_with_nothing_but_checkpoints_is_a_run(tiny: MakeConfig) -> None:
    config = tiny(max_iters=4, eval_interval=2)
    run_dir = train(config).out_dir
    (run_dir / "config.toml").unlink()
    (run_dir / "journal.jsonl").unlink()
    with pytest.raises(UserError, match="holds a run already"):
        train(config)
    assert resume(config, max_iters=6).iter == 6


# --- what is wrong in it, and what only seems to be ---


def test_a_state_with_values_of_another_kind_is_damaged(saved: Path) -> None:
    newest = committed_paths(saved)[-1]
    state = dict(read_checkpoint(newest).state) | {
        "progress": {"iter": 30},
        "scaler": {},
        "model": {},
        "config": {},
    }
    tables = ("progress", "scaler", "model", "config", "sha256")
    counts = ("iter", "sequences", "best_iter")
    wrongs: list[Any] = [[], None, "x"]
    changes: list[dict[str, Any]] = [
        *({name: wrong} for name in tables for wrong in wrongs),
        *({name: wrong} for name in ("iter", "val_loss") for wrong in (*wrongs[::2], {}, True)),
        *({"progress": {name: wrong}} for name in counts for wrong in ("x", -1, 1.5)),
        *({"progress": {name: wrong}} for name in ("losses", "norms") for wrong in ("x", [None], [[1]])),
        {"iter": None},
        {"iter": 10**400},
        {"measured_on": 7},
        {"index": {"model": {"weight": [0, 1]}}},
    ]
    unnoticed = []
    for change in changes:
        (newest / "state.json").write_text(encode_state(state | change))
        checkpoint, _, damaged, _ = load_latest_intact(saved)
        if (checkpoint.iter, damaged) != (20, [newest]):
            unnoticed.append(change)
    assert unnoticed == []
    (newest / "state.json").write_text(encode_state(state))
    assert load_latest_intact(saved)[0].iter == 30
    with pytest.raises(UserError, match="data_hash"):
        from_checkpoint(read_checkpoint(newest), load_latest_intact(saved)[1])


def test_what_cannot_be_opened_now_is_not_called_damaged(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = read_small_file
    for file in ("state.json", "model.safetensors"):
        for number in (errno.EMFILE, errno.EACCES, errno.ESTALE, errno.ENOMEM, errno.EIO):

            def read(path: Path, *most: int, file: str = file, number: int = number) -> bytes:
                if path == saved / CHECKPOINTS_DIR / "00000030" / file:
                    raise OSError(number, os.strerror(number))
                return original(path, *most)

            monkeypatch.setattr(checkpoints, "read_small_file", read)
            if number == errno.EIO:  # a sector that is gone
                assert load_latest_intact(saved)[0].iter == 20
                continue
            with pytest.raises(OSError, match=file) as caught:
                load_latest_intact(saved)
            assert caught.value.errno == number
