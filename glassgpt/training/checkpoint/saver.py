"""Writing checkpoints in the background: the run waits only for a copy of its tensors."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassgpt.errors import UserError, describe_os_error
from glassgpt.files import fsync_path
from glassgpt.record.journal import Record
from glassgpt.training.checkpoint import checkpoints
from glassgpt.training.checkpoint.checkpoints import (
    CHECKPOINTS_FOLDER,
    RowRanges,
    TensorsByFile,
    best_checkpoints,
    encode_state,
    list_folder,
    next_free_path,
    readable_checkpoints,
)
from glassgpt.training.checkpoint.tensor_file import PackedTensors, PinnedBuffer, pack_tensors, write_packed
from glassgpt.training.distributed.process_group import ProcessGroup

Snapshot = dict[str, PackedTensors]  # by file


class Saver:
    """Writes checkpoints in a thread, one at a time. The loop waits only for the copy of the tensors."""

    def __init__(self, run_dir: Path, keep: int, team: ProcessGroup | None = None) -> None:
        """With a `team`: every process of it saves its part, each with a saver of its own."""
        self._run_dir, self._keep, self._process_group = run_dir, keep, team or ProcessGroup()
        self._saves = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Record] | None = None
        self._waits_on_close = True
        self._pinned_buffers: dict[str, PinnedBuffer] = {}  # by file: all are written at once
        for leftover in list_folder(run_dir / CHECKPOINTS_FOLDER) if self._process_group.is_rank_zero else ():
            if leftover.name.startswith(".tmp-"):  # of a process that died while saving
                # rmtree refuses a link; what that leads to is not ours.
                shutil.rmtree(leftover) if _is_real_folder(leftover) else leftover.unlink()

    def save(
        self,
        tensors: TensorsByFile,
        state: Mapping[str, Any],
        started: float | None = None,
        rows: RowRanges | None = None,
    ) -> None:
        """Copies the tensors and starts writing. The save before must have been waited for; `started`:
        when that waiting began, by time.perf_counter, because it blocks as well. `rows`: of tensors of which
        this process has a part only."""
        assert self._pending is None
        started = time.perf_counter() if started is None else started
        snapshot = self._snapshot(tensors)
        blocking_ms = (time.perf_counter() - started) * 1000
        record = {"kind": "checkpoint", "iter": state["iter"], "blocking_ms": blocking_ms}
        self._saves += 1
        state = dict(state) | ({} if rows is None else {"index": rows})
        write = self._write if self._process_group.is_rank_zero else self._write_own_shard
        self._pending = self._thread.submit(write, snapshot, state, record)

    def poll(self, wait: bool = False) -> Record | None:
        """The record of a save that has ended since last asked. A save that failed raises here."""
        if self._pending is None or not (wait or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        try:
            return pending.result()
        except OSError as error:
            before = []
            with suppress(OSError):  # of a disk that fails more than once
                before = list(readable_checkpoints(self._run_dir))
            rest = f"the last whole one is {before[-1].path}" if before else "there is none before it"
            raise UserError(
                f"the checkpoint could not be written ({describe_os_error(error)}); {rest}"
            ) from error

    def abandon(self) -> None:
        """Do not wait for a checkpoint in progress. Checkpoints are committed by rename, so an abandoned one
        leaves nothing. Old ones are no longer pruned."""
        self._waits_on_close = False

    def set_run_dir(self, run_dir: Path) -> None:
        """Where the next save goes; one that still runs must have been waited for."""
        self._run_dir = run_dir

    def close(self) -> None:
        self._thread.shutdown(wait=self._waits_on_close, cancel_futures=not self._waits_on_close)

    def _snapshot(self, tensors: TensorsByFile) -> Snapshot:
        """A copy that training does not touch: on the card, where that takes a moment, if there is room
        beside what an update needs; else in main memory."""
        everything = [tensor for part in tensors.values() for tensor in part.values()]
        if not everything:  # a process of many, for which no rows are left
            return {}
        device = everything[0].device
        if device.type != "cuda" or not _fits_beside(everything, device):
            device = torch.device("cpu")
        snapshot = {file: pack_tensors(part, device) for file, part in tensors.items() if part}
        if device.type == "cuda":
            for file in snapshot:
                if file not in self._pinned_buffers:
                    self._pinned_buffers[file] = PinnedBuffer(device)
                self._pinned_buffers[file].record_pack_event()
        elif everything[0].device.type == "cuda":
            torch.cuda.synchronize(everything[0].device)
        return snapshot

    def _write(self, snapshot: Snapshot, state: dict[str, Any], record: Record) -> Record:
        started = time.perf_counter()
        place, record["bytes"] = self._commit(snapshot, state)
        record["best"] = None  # not known
        try:
            checkpoints.verify_checkpoint(place)
            self._prune(place, record)
        except UserError as error:  # what the disk has is not what was written
            checkpoints.quarantine_damaged([place])
            raise OSError(str(error)) from error
        except OSError as error:  # this checkpoint is committed; that an old one stays is no reason to end
            if not place.is_dir():
                raise
            record["not_removed"] = str(error)
        record["background_ms"] = (time.perf_counter() - started) * 1000
        return record

    def _commit(self, snapshot: Snapshot, state: dict[str, Any]) -> tuple[Path, int]:
        """Writes a checkpoint aside and renames it to its place, or leaves nothing. Its place and bytes."""
        folder = self._run_dir / CHECKPOINTS_FOLDER
        temporary = folder / f".tmp-{state['iter']:08d}-{os.getpid()}"
        where = ""  # the others write nothing if there is no folder
        try:
            if not folder.is_dir():
                folder.mkdir()  # not its parents: a run's folder that is gone is not made again
                fsync_path(self._run_dir)  # or a power cut could take the folder with all that is in it
            temporary.mkdir()
            where = str(temporary)
        finally:
            self._process_group.store_set(f"save/{self._saves}", where)
        try:
            state["version"], state["sha256"] = (
                checkpoints.CHECKPOINT_VERSION,
                self._write_files(temporary, snapshot),
            )
            self._add_contributions(state)
            (temporary / "state.json").write_text(encode_state(state))
            fsync_path(temporary / "state.json")
            fsync_path(temporary)
            size = sum(file.stat().st_size for file in temporary.iterdir())
            place = next_free_path(folder, f"{state['iter']:08d}")
            temporary.rename(place)  # the commit
            fsync_path(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return place, size

    def _write_files(self, folder: Path, snapshot: Snapshot) -> dict[str, str]:
        """Digests by file."""
        if not snapshot:
            return {}
        paths = [folder / f"{file}.safetensors" for file in snapshot]
        stagings = [self._pinned_buffers.get(file) for file in snapshot]
        with ThreadPoolExecutor(len(snapshot), "checkpoint-file") as pool:
            digests = list(pool.map(write_packed, paths, snapshot.values(), stagings))
        return {path.name: digest for path, digest in zip(paths, digests, strict=True)}

    def _add_contributions(self, state: dict[str, Any]) -> None:
        """What the other processes wrote. All of it, or there is no checkpoint."""
        for rank in range(1, self._process_group.world_size):
            theirs = self._process_group.store_get(f"save/{self._saves}/{rank}")
            if "error" in theirs:
                raise OSError(f"rank {rank}: {theirs['error']}")
            state["sha256"] |= theirs["sha256"]
            state["index"] |= theirs["index"]

    def _write_own_shard(self, snapshot: Snapshot, state: dict[str, Any], record: Record) -> Record:
        """Writes this process's part, for the first one to commit. If that fails, the first one ends the run
        for all, or rescues it."""
        folder = self._process_group.store_get(f"save/{self._saves}")
        part: dict[str, Any] = {"error": "there is no folder"}
        if folder:
            try:
                part = {"sha256": self._write_files(Path(folder), snapshot), "index": state["index"]}
            except OSError as error:
                part = {"error": str(error)}
        self._process_group.store_set(f"save/{self._saves}/{self._process_group.rank}", part)
        return record

    def _prune(self, place: Path, record: Record) -> None:
        """Removes what is neither a best nor among the last ones up to `place`, which was written just now.
        What cannot be read stays: it may be the best."""
        points = list(readable_checkpoints(self._run_dir))
        paths = [point.path for point in points]
        if place not in paths:
            raise FileNotFoundError(f"{place} is gone")
        # This process wrote nothing newer: newer ones are not its own to count or to remove.
        end = paths.index(place) + 1
        ignored = [point.path for point in checkpoints.misnamed_checkpoints(self._run_dir)] + paths[end:]
        if ignored:
            record["ignored"] = [path.name for path in ignored]
        best_ones = [point.path for point in best_checkpoints(points[:end])]
        record["best"] = best_ones[-1:] == [place]
        for path in paths[:end][: -self._keep] if self._waits_on_close else ():
            if path not in best_ones:
                # Renamed first: a kill halfway through must not leave half a checkpoint that looks whole.
                shutil.rmtree(path.rename(path.with_name(f".tmp-removed-{path.name}")))


class NoSaver(Saver):
    """Of a process whose weights another one of the team saves."""

    def __init__(self) -> None:
        pass

    def save(self, *_: object, **__: object) -> None:
        pass

    def poll(self, wait: bool = False) -> Record | None:
        return None

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


def _is_real_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _fits_beside(tensors: list[Tensor], device: torch.device) -> bool:
    """Whether the card has room for a copy of them while updates go on, with a tenth to spare."""
    free, _ = torch.cuda.mem_get_info(device)
    held, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    update_needs = torch.cuda.max_memory_allocated(device) - used
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return free + held - used - update_needs > 1.1 * size
