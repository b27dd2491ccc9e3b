"""A run whose folder is moved, removed or replaced while it trains, and two that share one without locks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tiny import MakeConfig, assert_same_tensors, file_contents, last_tensors, records, resume, run_losses

from glassgpt.api import train
from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.record.journal import RunSuperseded
from glassgpt.training.checkpoint.checkpoints import committed_paths
from glassgpt.training.checkpoint.saver import Saver
from glassgpt.training.learner import Learner


def before_update_13(patch: pytest.MonkeyPatch, run_dir: str, act: Callable[[], object]) -> None:
    """Of the next run only: `act` may train too. The checkpoint of update 10 is there by then."""
    original = Learner.update

    def update(learner: Learner, at: int, first_sequence: int) -> None:
        if at == 13:
            patch.setattr(Learner, "update", original)
            while not committed_paths(Path(run_dir)):
                time.sleep(0.01)
            time.sleep(0.02)  # while it is read back
            act()
        original(learner, at, first_sequence)

    patch.setattr(Learner, "update", update)


SETTINGS: dict[str, Any] = {"max_iters": 20, "eval_interval": 10, "log_interval": 4, "dropout": 0.1}


def test_a_folder_that_is_lost_is_noticed_and_the_run_rescued(tiny: MakeConfig, tmp_path: Path) -> None:
    untouched = train(tiny("untouched", **SETTINGS)).out_dir
    losses, tensors = run_losses(untouched), last_tensors(untouched)
    for name, change in (
        ("moved", lambda run: run.rename(tmp_path / "elsewhere")),
        ("removed", shutil.rmtree),
        ("without_journal", lambda run: (run / journal.FILE_NAME).unlink()),
        ("emptied", lambda run: (run / journal.FILE_NAME).write_bytes(b"")),
    ):
        config = tiny(name, **SETTINGS)
        with pytest.MonkeyPatch.context() as patch:
            before_update_13(patch, config.out_dir, lambda: change(Path(config.out_dir)))  # noqa: B023
            run = train(config)
        assert (run.exit_code, run.reason, run.iter) == (2, "crashed", 16), name
        assert run.out_dir == tmp_path / f"{name}-rescued"
        end = records(run.out_dir)[-1]
        assert (end["kind"], end["out_dir"], end["exit_code"]) == ("end", str(run.out_dir), 2)
        assert "folder-lost" in [record["id"] for record in records(run.out_dir, "finding")]
        assert [path.name for path in committed_paths(run.out_dir)] == ["00000016"]
        if name not in ("removed", "emptied"):
            continue
        done = resume(tiny(f"{name}-rescued", **SETTINGS))
        assert (done.exit_code, done.iter) == (0, 20)
        assert_same_tensors(last_tensors(run.out_dir), tensors)
        logged = run_losses(run.out_dir)
        assert logged == {at: losses[at] for at in logged}
        assert name == "emptied" or logged == losses, name
    assert [path.name for path in committed_paths(tmp_path / "elsewhere")] == ["00000010"]
    assert sorted(path.name for path in (tmp_path / "without_journal").iterdir()) == [
        "checkpoints", "config.toml", "lock", "tokenizer",
    ]  # fmt: skip


def test_another_run_in_its_place_is_left_alone(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(**SETTINGS)
    seen: list[Any] = []

    def replace() -> None:
        Path(config.out_dir).rename(tmp_path / "moved")
        train(tiny(max_iters=3, track="csv"))
        seen.append(file_contents(config.out_dir))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "glassgpt.training.session._one_run_at_a_time", nullcontext
        )  # the other run is another process's
        before_update_13(patch, config.out_dir, replace)
        run = train(tiny(**SETTINGS, track="csv"))
    assert (run.exit_code, run.out_dir) == (2, tmp_path / "run-rescued")
    assert file_contents(config.out_dir) == seen[0]
    assert [path.name for path in committed_paths(run.out_dir)] == ["00000016"]


def test_lost_while_saving_and_at_the_end(tiny: MakeConfig, tmp_path: Path) -> None:
    commit = Saver._commit
    for name, at, iteration in (("saving", 10, range(11, 20)), ("end", 20, [20])):
        config = tiny(name, **SETTINGS)
        with pytest.MonkeyPatch.context() as patch:

            def move(saver: Saver, snapshot: Any, state: Any) -> tuple[Path, int]:
                if state["iter"] == at and not (tmp_path / f"{name}-rescued").exists():  # noqa: B023
                    if at == 20:  # noqa: B023 - after it was committed
                        place = commit(saver, snapshot, state)
                        shutil.rmtree(config.out_dir)  # noqa: B023
                        return place
                    Path(config.out_dir).rename(tmp_path / "was_saving")  # noqa: B023
                return commit(saver, snapshot, state)

            patch.setattr(Saver, "_commit", move)
            run = train(config)
        assert (run.exit_code, run.out_dir) == (2, tmp_path / f"{name}-rescued")
        assert run.iter in iteration
        assert [int(path.name) for path in committed_paths(run.out_dir)] == [run.iter]
        assert not (tmp_path / name).exists()


def test_without_locks_the_first_of_two_ends(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.record.run_dir.try_lock", lambda descriptor, shared: True)
    config = tiny(**SETTINGS)
    seen: list[Any] = []

    def second() -> None:
        assert resume(config).iter == 20
        seen.append(file_contents(config.out_dir))

    monkeypatch.setattr(
        "glassgpt.training.session._one_run_at_a_time", nullcontext
    )  # the second is another process
    before_update_13(monkeypatch, config.out_dir, second)
    with pytest.raises(RunSuperseded):
        train(config)
    assert file_contents(config.out_dir) == seen[0]
    assert run_losses(config.out_dir).keys() == {4, 8, 12, 16, 20}


def test_a_look_at_a_run_rescues_nothing(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(max_iters=2)
    train(config)
    with pytest.MonkeyPatch.context() as patch:
        commit = journal.Journal.check

        def remove(self: journal.Journal) -> None:
            shutil.rmtree(config.out_dir, ignore_errors=True)
            commit(self)

        patch.setattr(journal.Journal, "check", remove)
        with pytest.raises(UserError, match="moved, removed or replaced"):
            resume(config, eval_only=True)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("run")] == []
