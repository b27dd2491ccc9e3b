"""A machine that loses power: only what was flushed to the disk is there afterwards.

The disk is simulated to the letter of what fsync promises. A file's content is on it once the file was
synced; a name (of a file, a folder, after a rename, or removed) once its folder was synced. All else is gone.
The power is then cut at every single one of these operations, and the run has to go on from what is left.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from glassgpt.config import TrainConfig
from glassgpt.training.checkpoint.checkpoints import committed_paths, load_tensors, read_checkpoint
from glassgpt.training.session import resume, train

MakeConfig = Callable[..., TrainConfig]


class Disk:
    """What would be left of `watched` after a power cut, as it was after each sync."""

    def __init__(self, watched: Path, snapshots: Path) -> None:
        self._watched, self._snapshots = watched, snapshots
        self._contents: dict[int, bytes] = {}  # of synced files, by inode
        self._names: dict[int, dict[str, int]] = {}  # of synced folders, by inode: name to inode
        self._held: list[int] = []  # kept open, so that no inode is given to another file
        self.cuts: list[Path] = []

    def synced(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not path.is_relative_to(self._watched.parent):
            return
        self._held.append(os.dup(descriptor))
        if path.is_dir():
            self._names[path.stat().st_ino] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
        else:
            self._contents[path.stat().st_ino] = path.read_bytes()
        self.cuts.append(self._snapshots / f"{len(self.cuts):04d}")
        root = self._names.get(self._watched.parent.stat().st_ino, {}).get(self._watched.name)
        if root is not None:
            self._restore(root, self.cuts[-1])

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)

    def _restore(self, inode: int, place: Path) -> None:
        """A name whose content never reached the disk is an empty file: the worst that can happen."""
        place.mkdir(parents=True)
        for name, child in self._names.get(inode, {}).items():
            if child in self._names:
                self._restore(child, place / name)
            elif name in ("checkpoints", "tokenizer") or name.isdecimal() or name.startswith(".tmp"):
                (place / name).mkdir()  # a folder that was never synced: nothing in it
            else:
                (place / name).write_bytes(self._contents.get(child, b""))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to see what is synced")
def test_the_power_may_go_at_any_moment(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("home/run", max_iters=12, eval_interval=4, checkpoint_interval=3, keep_checkpoints=2)
    (tmp_path / "home").mkdir()
    disk = Disk(Path(config.out_dir), tmp_path / "cuts")
    sync, lock = os.fsync, threading.Lock()

    def watched_sync(descriptor: int) -> None:
        with lock:  # the journal and a checkpoint are synced by two threads
            sync(descriptor)
            disk.synced(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", watched_sync)
        train(config)
    disk.close()
    assert len(disk.cuts) > 30
    seen: list[int] = []
    for cut in disk.cuts:
        points = committed_paths(cut)
        for path in points:
            load_tensors(read_checkpoint(path))  # whatever bears a checkpoint's name is one
        last = read_checkpoint(points[-1]).iter if points else 0
        assert last >= max(seen, default=0), "a checkpoint that was on the disk is lost"
        seen.append(last)
    assert seen[-1] == 12
    # And the run goes on from each state that holds something new.
    for last in sorted(set(seen) - {12}):
        cut = disk.cuts[len(seen) - 1 - seen[::-1].index(last)]
        if not (cut / "config.toml").exists():
            assert last == 0
            continue
        copy = tmp_path / f"copy-{last}"
        shutil.copytree(cut, copy)
        assert resume(str(copy)).reason == "finished"
