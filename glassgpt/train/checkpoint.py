"""Checkpoints: safetensors and JSON, committed by a rename, written in the background.

    checkpoints/00000500/model.safetensors       parameters under GPT-2's names
                         optimizer.safetensors   PARAMETER:exp_avg, …
                         evaluation.safetensors  what early stopping compares with, if it is on
                         state.json              iteration, losses, settings, digests of the others

With --shard every process writes its rows, as model-00001-of-00004.safetensors and so on; the `index` in
state.json says which file has which rows of what. Whoever reads gets whole tensors.

A checkpoint is written beside its place, flushed to disk, and renamed: a folder with a plain number is whole,
whatever happened. Which one is `last` and which is `best` is not stored anywhere, it follows from what is
there: the highest iteration, and the lowest validation loss. Nothing is pickled; loading executes nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from glassgpt.account import journal
from glassgpt.account.journal import Record
from glassgpt.data.staging import sync_to_disk
from glassgpt.errors import UserError
from glassgpt.train.rundir import CHECKPOINTS, COMMITTED
from glassgpt.train.team import Team
from glassgpt.train.tensorfile import Packed, Staging, digest, pack, write_packed

FOLDER = CHECKPOINTS
VERSION = 2
# How files are hashed, by version: the first took the SHA-256 of a file as a whole.
_DIGESTS: Mapping[int, Callable[[bytes], str]] = {
    1: lambda content: hashlib.sha256(content).hexdigest(),
    2: digest,
}

Tensors = dict[str, dict[str, Tensor]]  # by file ("model", "optimizer", "evaluation"), then by name
Snapshot = dict[str, Packed]  # by file
Rows = dict[str, dict[str, tuple[int, int, int]]]  # by file and name: from, to, of how many in all


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint; its tensors are still on disk."""

    path: Path
    state: Mapping[str, Any]

    @property
    def iter(self) -> int:
        return int(self.state["iter"])

    @property
    def val_loss(self) -> float | None:
        return None if self.state["val_loss"] is None else float(self.state["val_loss"])


# --- reading ---


def committed(run_dir: Path) -> list[Path]:
    """Folders of committed checkpoints, oldest first."""
    folder = run_dir / FOLDER
    found = [(match, path) for path in _entries(folder) if (match := COMMITTED.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 0)))]


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def describe(path: Path) -> Checkpoint:
    """The checkpoint's state without its tensors."""
    try:
        document = journal.loads((path / "state.json").read_bytes())
        state = document["state"]
        if _digest(state) != document["digest"]:
            raise UserError(f"{path} is damaged: its state.json is not as it was written")
        if state["version"] not in _DIGESTS:
            raise UserError(f"{path} is of version {state['version']}; this program reads up to {VERSION}")
        return Checkpoint(path, state)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error!r}") from None


def best(run_dir: Path) -> Checkpoint | None:
    """The committed checkpoint with the lowest validation loss, measured as it is now."""
    return next(reversed(_bests(run_dir)), None)


def _bests(run_dir: Path) -> list[Checkpoint]:
    """The lowest validation loss, the earliest of equals, for each way of measuring it; the latest way last.

    A run resumed with other evaluation tokens or other data measures something else: losses before and
    after do not compare.
    """
    found: dict[str, Checkpoint] = {}
    for point in readable(run_dir):
        if point.val_loss is not None and math.isfinite(point.val_loss):
            way = str(point.state.get("measured_on"))
            lowest = found.pop(way, point)  # and put back, so that the latest way comes last
            found[way] = point if point.val_loss < (lowest.val_loss or 0.0) else lowest
    return list(found.values())


def readable(run_dir: Path) -> Iterator[Checkpoint]:
    """Damaged ones are nobody's best; whoever resumes is told of them."""
    for path in committed(run_dir):
        with suppress(UserError):
            yield describe(path)


def load_tensors(point: Checkpoint) -> Tensors:
    """Everything, on the CPU, each file checked against its digest."""
    tensors = {}
    digest_of = _DIGESTS[point.state["version"]]
    for name, recorded in point.state["sha256"].items():
        path = point.path / name
        try:
            # Not mapped: what was checked is what is used, whatever happens to the file meanwhile.
            content = path.read_bytes()
            if digest_of(content) != recorded:
                raise UserError(f"{path} is damaged: its SHA-256 is not the recorded one")
            tensors[path.stem] = load(content)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} is damaged: {error!r}") from None
    return _put_together(tensors, point.state["index"]) if "index" in point.state else tensors


def _put_together(files: Tensors, index: Mapping[str, Any]) -> Tensors:
    """Whole tensors from the rows that are spread over files."""
    whole: Tensors = {file: part for file, part in files.items() if file not in index}
    for file, rows in index.items():
        for name, (start, end, count) in rows.items():
            part = files[file][name]
            place = whole.setdefault(file.partition("-")[0], {})
            if name not in place:
                place[name] = part.new_empty((count, *part.shape[1:]))
            place[name][start:end] = part
    return whole


def load_last(run_dir: Path) -> tuple[Checkpoint, Tensors, list[Path], list[str]]:
    """The newest checkpoint that is whole; newer ones that are damaged, and what is wrong with them."""
    damaged: list[Path] = []
    complaints: list[str] = []
    for path in reversed(committed(run_dir)):
        try:
            point = describe(path)
            return point, load_tensors(point), damaged, complaints
        except UserError as error:
            damaged.append(path)
            complaints += error.problems
    raise UserError(
        [*complaints, f"{run_dir} has no checkpoint to resume from; start anew in another --out_dir"]
    )


def set_aside(damaged: list[Path]) -> None:
    """Renames damaged checkpoints, so that they count neither as last nor as best; deletes nothing."""
    for path in damaged:
        path.rename(_free_place(path.parent, f"damaged-{path.name}"))


# --- writing ---


class Saver:
    """Writes checkpoints in a thread, one at a time. The loop waits only for the copy of the tensors."""

    def __init__(self, run_dir: Path, keep: int, team: Team | None = None) -> None:
        """With a `team`: every process of it saves its part, each with a saver of its own."""
        self._run_dir, self._keep, self._team = run_dir, keep, team or Team()
        self._saves = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Record] | None = None
        self._patient = True
        self._staging: dict[str, Staging] = {}  # by file: all are written at once
        for leftover in _entries(run_dir / FOLDER) if self._team.is_first else ():
            if leftover.name.startswith(".tmp-"):  # of a process that died while saving
                shutil.rmtree(leftover)

    def save(
        self,
        tensors: Tensors,
        state: Mapping[str, Any],
        started: float | None = None,
        rows: Rows | None = None,
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
        write = self._write if self._team.is_first else self._contribute
        self._pending = self._thread.submit(write, snapshot, state, record)

    def poll(self, wait: bool = False) -> Record | None:
        """The record of a save that has ended since last asked. A save that failed raises here."""
        if self._pending is None or not (wait or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        try:
            return pending.result()
        except OSError as error:
            before = committed(self._run_dir)
            rest = f"the last whole one is {before[-1]}" if before else "there is none before it"
            raise UserError(f"the checkpoint could not be written ({error}); {rest}") from error

    def abandon(self) -> None:
        """Closing shall wait for nothing: what is being written will be whole, or not be there."""
        self._patient = False

    def close(self) -> None:
        self._thread.shutdown(wait=self._patient, cancel_futures=not self._patient)

    def _snapshot(self, tensors: Tensors) -> Snapshot:
        """A copy that training does not touch: on the card, where that takes a moment, if there is room
        beside what an update needs; else in main memory."""
        everything = [tensor for part in tensors.values() for tensor in part.values()]
        if not everything:  # a process of many, for which no rows are left
            return {}
        device = everything[0].device
        if device.type != "cuda" or not _fits_beside(everything, device):
            device = torch.device("cpu")
        snapshot = {file: pack(part, device) for file, part in tensors.items() if part}
        if device.type == "cuda":
            for file in snapshot:
                if file not in self._staging:
                    self._staging[file] = Staging(device)
                self._staging[file].mark()
        elif everything[0].device.type == "cuda":
            torch.cuda.synchronize(everything[0].device)
        return snapshot

    def _write(self, snapshot: Snapshot, state: dict[str, Any], record: Record) -> Record:
        started = time.perf_counter()
        folder = self._run_dir / FOLDER
        if not folder.is_dir():
            folder.mkdir(parents=True)
            sync_to_disk(self._run_dir)  # or a power cut could take the folder with all that is synced in it
        temporary = folder / f".tmp-{state['iter']:08d}-{os.getpid()}"
        try:
            temporary.mkdir()
            self._team.post(f"save/{self._saves}", temporary.name)
            state["version"], state["sha256"] = VERSION, self._write_files(temporary, snapshot)
            self._add_contributions(state)
            document = {"digest": _digest(state), "state": state}
            (temporary / "state.json").write_text(journal.dumps(document) + "\n")
            sync_to_disk(temporary / "state.json")
            sync_to_disk(temporary)
            place = _free_place(folder, f"{state['iter']:08d}")
            temporary.rename(place)  # the commit
            sync_to_disk(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        record["bytes"] = sum(file.stat().st_size for file in place.iterdir())
        bests = [point.path for point in _bests(self._run_dir)]
        record["best"] = bests[-1:] == [place]
        try:
            self._prune(bests)
        except OSError as error:  # this checkpoint is committed; that an old one stays is no reason to end
            record["not_removed"] = str(error)
        record["background_ms"] = (time.perf_counter() - started) * 1000
        return record

    def _write_files(self, folder: Path, snapshot: Snapshot) -> dict[str, str]:
        """Digests by file."""
        if not snapshot:
            return {}
        paths = [folder / f"{file}.safetensors" for file in snapshot]
        stagings = [self._staging.get(file) for file in snapshot]
        with ThreadPoolExecutor(len(snapshot), "checkpoint-file") as pool:
            digests = list(pool.map(write_packed, paths, snapshot.values(), stagings))
        return {path.name: digest for path, digest in zip(paths, digests, strict=True)}

    def _add_contributions(self, state: dict[str, Any]) -> None:
        """What the other processes wrote. All of it, or there is no checkpoint."""
        for rank in range(1, self._team.size):
            theirs = self._team.collect(f"save/{self._saves}/{rank}")
            if "error" in theirs:
                raise OSError(f"rank {rank}: {theirs['error']}")
            state["sha256"] |= theirs["sha256"]
            state["index"] |= theirs["index"]

    def _contribute(self, snapshot: Snapshot, state: dict[str, Any], record: Record) -> Record:
        """Writes this process's part, for the first one to commit."""
        folder = self._run_dir / FOLDER / self._team.collect(f"save/{self._saves}")
        name = f"save/{self._saves}/{self._team.rank}"
        try:
            digests = self._write_files(folder, snapshot)
        except OSError as error:
            self._team.post(name, {"error": str(error)})
            if not folder.is_dir():
                raise OSError("rank 0 could not write its part") from error  # and removed what there was
            raise
        self._team.post(name, {"sha256": digests, "index": state["index"]})
        return record

    def _prune(self, bests: list[Path]) -> None:
        """Removes what is neither a best nor among the last ones."""
        for path in committed(self._run_dir)[: -self._keep]:
            if path not in bests:
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


def _fits_beside(tensors: list[Tensor], device: torch.device) -> bool:
    """Whether the card has room for a copy of them while updates go on, with a tenth to spare."""
    free, _ = torch.cuda.mem_get_info(device)
    held, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    update_needs = torch.cuda.max_memory_allocated(device) - used
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return free + held - used - update_needs > 1.1 * size


def _free_place(folder: Path, name: str) -> Path:
    """NAME, or NAME.1, NAME.2, …: one more than there is, so that the newest sorts last."""
    pattern = re.compile(re.escape(name) + r"(?:\.(\d+))?")
    taken = [int(match[1] or 0) for entry in _entries(folder) if (match := pattern.fullmatch(entry.name))]
    return folder / (f"{name}.{max(taken) + 1}" if taken else name)


def _digest(state: Mapping[str, Any]) -> str:
    """SHA-256 of the state as JSON, so that damage to a number does not pass for another number."""
    return hashlib.sha256(journal.dumps(state).encode()).hexdigest()
