"""Writing checkpoints in a background thread: training waits only for a copy of its tensors.

saver = Saver(run_dir, keep=2)
saver.save(tensors, state)            # copies the tensors, then writes in the background
record = saver.poll(wait=True)        # the journal's `checkpoint` record; raises if the save failed
"""

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
from glassgpt.record.run_dir import CHECKPOINTS_DIR
from glassgpt.training.checkpoint import checkpoints
from glassgpt.training.checkpoint.checkpoints import (
    RowRanges,
    TensorsByFile,
    best_checkpoints,
    encode_state,
    list_checkpoints,
    list_folder,
    next_free_path,
)
from glassgpt.training.checkpoint.tensor_file import PackedTensors, PinnedBuffer, pack_tensors, write_packed
from glassgpt.training.distributed.process_group import ALONE, ProcessGroup

Snapshot = dict[str, PackedTensors]  # by file


class Saver:
    """Writes checkpoints, one at a time. Keeps the last `keep` and the best."""

    def __init__(self, run_dir: Path, keep: int, group: ProcessGroup = ALONE) -> None:
        """`group`: for sharded weights, of which every rank saves its shard with its own saver."""
        self._run_dir, self._keep, self._group = run_dir, keep, group
        self._saves = 0  # numbers the keys in the group's store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Record] | None = None
        self._is_abandoned = False
        self._pinned_buffers: dict[str, PinnedBuffer] = {}  # by file: all are written at once
        for leftover in list_folder(run_dir / CHECKPOINTS_DIR) if self._group.is_rank_zero else ():
            if leftover.name.startswith(".tmp-"):  # of a process that died while saving
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink()

    def save(
        self,
        tensors: TensorsByFile,
        state: Mapping[str, Any],
        started: float | None = None,
        rows: RowRanges | None = None,
    ) -> None:
        """Copies the tensors and starts writing. The previous save must have been polled. `started`: when the
        wait for it began, by time.perf_counter, because that blocks as well. `rows`: which rows of sharded
        tensors these are."""
        assert self._pending is None
        started = time.perf_counter() if started is None else started
        snapshot = self._snapshot(tensors)
        blocking_ms = (time.perf_counter() - started) * 1000
        record = {"kind": "checkpoint", "iter": state["iter"], "blocking_ms": blocking_ms}
        self._saves += 1
        state = dict(state) | ({} if rows is None else {"index": rows})
        write = self._write if self._group.is_rank_zero else self._write_own_shard
        self._pending = self._thread.submit(write, snapshot, state, record)

    def poll(self, wait: bool = False) -> Record | None:
        """The record of a save that has ended since the last call, or None. Raises if the save failed."""
        if self._pending is None or not (wait or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        try:
            return pending.result()
        except OSError as error:
            earlier = None
            with suppress(OSError):  # the disk may fail again
                earlier = list_checkpoints(self._run_dir).latest
            fallback = f"the last whole one is {earlier.path}" if earlier else "there is none before it"
            raise UserError(
                f"the checkpoint could not be written ({describe_os_error(error)}); {fallback}"
            ) from error

    def abandon(self) -> None:
        """`close` will not wait for a checkpoint in progress. Checkpoints are committed by rename, so an
        abandoned one leaves nothing. Old ones are no longer pruned."""
        self._is_abandoned = True

    def set_run_dir(self, run_dir: Path) -> None:
        """Where the next save goes. The previous one must have been polled."""
        self._run_dir = run_dir

    def close(self) -> None:
        self._thread.shutdown(wait=not self._is_abandoned, cancel_futures=self._is_abandoned)

    def _snapshot(self, tensors: TensorsByFile) -> Snapshot:
        """A copy that training does not change: on the card, which takes a moment, if it has room beside what
        an update needs; else in main memory."""
        all_tensors = [tensor for part in tensors.values() for tensor in part.values()]
        if not all_tensors:  # a rank that has no rows
            return {}
        device = all_tensors[0].device
        if device.type != "cuda" or not _fits_beside(all_tensors, device):
            device = torch.device("cpu")
        snapshot = {file: pack_tensors(part, device) for file, part in tensors.items() if part}
        if device.type == "cuda":
            for file in snapshot:
                if file not in self._pinned_buffers:
                    self._pinned_buffers[file] = PinnedBuffer(device)
                self._pinned_buffers[file].record_copy_event()
        elif all_tensors[0].device.type == "cuda":
            torch.cuda.synchronize(all_tensors[0].device)
        return snapshot

    # --- the thread ---

    def _write(self, snapshot: Snapshot, state: dict[str, Any], record: Record) -> Record:
        """Commits a checkpoint, reads it back, and only then removes old ones."""
        started = time.perf_counter()
        path, record["bytes"] = self._commit(snapshot, state)
        record["best"] = None  # not known
        try:
            checkpoints.verify_checkpoint(path)
            self._prune(path, record)
        except UserError as error:  # the disk does not return what was written
            checkpoints.quarantine_damaged([path])
            raise OSError(str(error)) from error
        except OSError as error:  # this checkpoint is committed: an old one that stays does not end the run
            if not path.is_dir():
                raise
            record["not_removed"] = str(error)
        record["background_ms"] = (time.perf_counter() - started) * 1000
        return record

    def _commit(self, snapshot: Snapshot, state: dict[str, Any]) -> tuple[Path, int]:
        """Writes a checkpoint to a temporary folder and renames it, or leaves nothing. Its path and bytes."""
        folder = self._run_dir / CHECKPOINTS_DIR
        temporary = folder / f".tmp-{state['iter']:08d}-{os.getpid()}"
        shared_path = ""  # the other ranks write nothing if there is no folder
        try:
            if not folder.is_dir():
                folder.mkdir()  # without parents: a run's folder that is gone is not made again
                fsync_path(self._run_dir)  # or a power cut could lose the folder with all checkpoints in it
            temporary.mkdir()
            shared_path = str(temporary)
        finally:
            self._group.store_set(f"save/{self._saves}", shared_path)
        try:
            state["version"] = checkpoints.CHECKPOINT_VERSION
            state["sha256"] = self._write_files(temporary, snapshot)
            for rank in range(1, self._group.world_size):
                shard = self._group.store_get(f"save/{self._saves}/{rank}")
                if "error" in shard:
                    raise OSError(f"rank {rank}: {shard['error']}")
                state["sha256"] |= shard["sha256"]
                state["index"] |= shard["index"]
            (temporary / "state.json").write_text(encode_state(state))
            fsync_path(temporary / "state.json")
            fsync_path(temporary)
            size_bytes = sum(file.stat().st_size for file in temporary.iterdir())
            path = next_free_path(folder, f"{state['iter']:08d}")
            temporary.rename(path)  # the commit
            fsync_path(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return path, size_bytes

    def _write_files(self, folder: Path, snapshot: Snapshot) -> dict[str, str]:
        """Digests by file name."""
        if not snapshot:
            return {}
        paths = [folder / f"{file}.safetensors" for file in snapshot]
        pinned_buffers = [self._pinned_buffers.get(file) for file in snapshot]
        with ThreadPoolExecutor(len(snapshot), "checkpoint-file") as pool:
            digests = list(pool.map(write_packed, paths, snapshot.values(), pinned_buffers))
        return {path.name: digest for path, digest in zip(paths, digests, strict=True)}

    def _write_own_shard(self, snapshot: Snapshot, state: dict[str, Any], record: Record) -> Record:
        """Writes the files of this rank, for rank 0 to commit. If that fails, rank 0 ends the run for all
        ranks, or rescues it."""
        folder = self._group.store_get(f"save/{self._saves}")
        shard: dict[str, Any] = {"error": "there is no folder"}
        if folder:
            try:
                shard = {"sha256": self._write_files(Path(folder), snapshot), "index": state["index"]}
            except OSError as error:
                shard = {"error": str(error)}
        self._group.store_set(f"save/{self._saves}/{self._group.rank}", shard)
        return record

    def _prune(self, new_path: Path, record: Record) -> None:
        """Removes checkpoints up to `new_path` that are neither a best one nor among the last. One that
        cannot be read stays: it may be the best."""
        listing = list_checkpoints(self._run_dir)
        readable = listing.readable
        paths = [checkpoint.path for checkpoint in readable]
        if new_path not in paths:
            raise FileNotFoundError(f"{new_path} is gone")
        # This process wrote nothing newer: newer ones belong to somebody else. They stay and do not count.
        end = paths.index(new_path) + 1
        if ignored := [checkpoint.path for checkpoint in listing.misnamed] + paths[end:]:
            record["ignored"] = [path.name for path in ignored]
        best_paths = [checkpoint.path for checkpoint in best_checkpoints(readable[:end])]
        record["best"] = best_paths[-1:] == [new_path]
        for path in () if self._is_abandoned else paths[:end][: -self._keep]:
            if path not in best_paths:
                # Renamed first: a kill halfway through must not leave half a checkpoint that looks whole.
                shutil.rmtree(path.rename(path.with_name(f".tmp-removed-{path.name}")))


class NoSaver:
    """The saver of a rank whose weights rank 0 saves."""

    def save(self, *_: object, **__: object) -> None:
        pass

    def poll(self, wait: bool = False) -> Record | None:
        return None

    def abandon(self) -> None:
        pass

    def set_run_dir(self, run_dir: Path) -> None:
        pass

    def close(self) -> None:
        pass


def _fits_beside(tensors: list[Tensor], device: torch.device) -> bool:
    """Whether the card has room for a copy of the tensors while it trains, with 10 % to spare."""
    free, _ = torch.cuda.mem_get_info(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    update_bytes = torch.cuda.max_memory_allocated(device) - allocated
    copy_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return free + reserved - allocated - update_bytes > 1.1 * copy_bytes
