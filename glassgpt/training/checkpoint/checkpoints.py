"""Checkpoints: safetensors and JSON, committed by a rename. saver.py writes them.

    checkpoints/00000500/model.safetensors       parameters under GPT-2's names
                         optimizer.safetensors   PARAMETER:exp_avg, …
                         evaluation.safetensors  the reference of early stopping, if it is on
                         state.json              iteration, losses, settings, digests of the other files

With --shard every rank writes its rows, as model-00001-of-00004.safetensors and so on; the `index` in
state.json says which file has which rows of which tensor. Reading merges them into whole tensors.

A checkpoint is written to a temporary folder, flushed to disk, and renamed: a folder with a plain number is
complete. Its identity is the `iter` in its state.json: a folder named after another number, such as a dated
copy, does not count. Which one is `last` and which is `best` is not stored: it is the highest iteration, and
the lowest validation loss. Nothing is pickled; loading executes nothing.

    checkpoint, tensors, damaged, warnings = load_latest_intact(Path("runs/quickstart"))
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from safetensors import SafetensorError

from glassgpt.data.digests import Progress, find_damage, sha256_in_pieces, whole_sha256
from glassgpt.errors import UserError
from glassgpt.files import read_small_file, regular_file_opener
from glassgpt.record import journal
from glassgpt.record.machine import available_memory_bytes
from glassgpt.record.run_dir import CHECKPOINTS_DIR, COMMITTED_NAME_PATTERN

if TYPE_CHECKING:  # torch is imported only to load tensors: `glass verify` works without it
    from torch import Tensor

    from glassgpt.config import ConfigValue
    from glassgpt.model.gpt import GPTConfig

CHECKPOINT_VERSION = 2
_TENSOR_FILE_PATTERN = re.compile(r"[a-z]+(-\d+-of-\d+)?\.safetensors")
# How files are hashed, by version.
DIGEST_BY_VERSION: Mapping[int, Callable[..., str]] = {1: whole_sha256, 2: sha256_in_pieces}

# A file that is gone, or that the disk has lost: the checkpoint is damaged. Any other error (permissions, too
# many open files, a network drive that is away) says nothing about the checkpoint: it is raised.
_FILE_LOST_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOTSUP, errno.EIO)

# The types of the values in state.json. A dict: an object with these values.
_NUMBER = int | float
_STATE_TYPES: dict[str, Any] = {
    "iter": int,
    "val_loss": _NUMBER | None,
    "progress": {
        "iter": int,
        "sequences": int,
        "val_loss": _NUMBER | None,
        "best_val_loss": _NUMBER,
        "best_iter": int | None,
        "evaluations_without_gain": int,
        "losses": list,
        "norms": list,
    },
    "scaler": {},
    "model": {},
    "config": {},
    "data_hash": str,
    "measured_on": str,
    "threads": int,
    "sha256": {},
}
# What a run needs in state.json to resume from it, besides `iter` and `val_loss`.
REQUIRED_TO_RESUME = ("model", "config", "progress", "scaler", "data_hash", "measured_on", "tokenizer")

# By file ("model", "optimizer", "evaluation"), then by name.
TensorsByFile: TypeAlias = "dict[str, dict[str, Tensor]]"
RowRanges = dict[str, dict[str, tuple[int, int, int]]]  # by file and name: first row, end, rows in all


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint, without its tensors."""

    path: Path
    state: Mapping[str, Any]

    @property
    def iter(self) -> int:
        return int(self.state["iter"])

    @property
    def val_loss(self) -> float | None:
        return None if self.state["val_loss"] is None else float(self.state["val_loss"])

    def file_digest(self, path: Path, advance: Progress = lambda size: None) -> str:
        """The digest of a file as the disk has it."""
        with open(path, "rb", opener=regular_file_opener) as file:
            if hasattr(os, "posix_fadvise"):  # a hint: read from the disk, not from the system's cache
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return DIGEST_BY_VERSION[self.state["version"]](file, advance)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Weights, and everything that is known about them."""

    description: str  # its path, or GPT-2's name
    model_config: GPTConfig
    weights: dict[str, Tensor]  # empty: not read yet
    folder: Path  # of the run, the ckpt.pt, or the pretrained weights
    optimizer: dict[str, Tensor] = field(default_factory=dict)  # empty: not in the checkpoint
    evaluation: dict[str, Tensor] = field(default_factory=dict)
    iter: int | None = None  # None: not from a run
    val_loss: float | None = None
    state: Mapping[str, Any] = field(default_factory=dict)  # state.json of our checkpoints
    settings: Mapping[str, ConfigValue] = field(default_factory=dict)  # that it was trained with
    kind: str = "run"  # "run", "nanogpt" or "huggingface"
    warnings: tuple[str, ...] = ()  # about newer checkpoints that are damaged


# --- state.json ---


def encode_state(state: Mapping[str, Any]) -> str:
    """The content of state.json, as `read_checkpoint` reads it."""
    return journal.dumps({"digest": _digest(state), "state": state}) + "\n"


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads and checks state.json."""
    try:
        document = journal.loads(read_small_file(path / "state.json"))
        state = document["state"]
        if _digest(state) != document["digest"]:
            raise UserError(f"{path} is damaged: its state.json is not as it was written")
        if state["version"] not in DIGEST_BY_VERSION:
            raise UserError(
                f"{path} is of version {state['version']}; this program reads up to {CHECKPOINT_VERSION}"
            )
        if wrong := [
            *({"iter", "val_loss", "sha256"} - state.keys()),
            *_wrongly_typed_names(state, _STATE_TYPES),
        ]:
            raise UserError(f"{path} is damaged: state.json has missing or wrong values: {', '.join(wrong)}")
        if strange := [name for name in state["sha256"] if not _TENSOR_FILE_PATTERN.fullmatch(name)]:
            raise UserError(
                f"{path} is refused: its state.json names {strange[0]!r}, which is not a file of a checkpoint"
            )
        return Checkpoint(path, state)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        _raise_if_not_damage(error, path / "state.json")
        raise UserError(f"{path} is damaged: {error!r}") from None


def _digest(state: Mapping[str, Any]) -> str:
    """SHA-256 of the state as JSON, so that a damaged digit is noticed."""
    return hashlib.sha256(journal.dumps(state).encode()).hexdigest()


def _wrongly_typed_names(values: Mapping[str, Any], types: Mapping[str, Any]) -> list[str]:
    """Names of values that do not have their type in `types`, or are negative."""
    wrong = []
    for name in types.keys() & values.keys():
        expected, value = types[name], values[name]
        if isinstance(expected, dict) and isinstance(value, dict):
            wrong += [f"{name}.{inner}" for inner in _wrongly_typed_names(value, expected)]
            continue
        numbers = value if isinstance(value, list) else [value] if isinstance(value, int) else []
        if (
            isinstance(expected, dict)
            or not isinstance(value, expected)
            or any(not isinstance(number, int | float) or isinstance(number, bool) for number in numbers)
            or (isinstance(value, int) and value < 0)
        ):
            wrong.append(name)
    return sorted(wrong)


def _raise_if_not_damage(error: Exception, path: Path) -> None:
    """Raises an error that does not mean damage; with the file's name, which read errors lack."""
    if isinstance(error, OSError) and error.errno not in _FILE_LOST_ERRNOS:
        raise OSError(error.errno, f"{error.strerror or error}", str(path)) from None


# --- the checkpoints of a run ---


@dataclass(frozen=True)
class CheckpointListing:
    """The checkpoints of a run at one moment, oldest first. Every state.json was read once."""

    committed: Mapping[Path, Checkpoint | UserError | OSError]  # or why its state.json cannot be read
    misnamed: list[Checkpoint]  # in a folder named after another iteration: never loaded, never removed

    @property
    def readable(self) -> list[Checkpoint]:
        return [entry for entry in self.committed.values() if isinstance(entry, Checkpoint)]

    @property
    def latest(self) -> Checkpoint | None:
        return next(reversed(self.readable), None)

    @property
    def best(self) -> Checkpoint | None:
        """The one with the lowest validation loss, on the evaluation data of the latest ones."""
        return next(reversed(best_checkpoints(self.readable)), None)

    @property
    def misnamed_warnings(self) -> list[str]:
        return [
            f"{checkpoint.path} is not used: it holds iteration {checkpoint.iter}; "
            f"rename it to {checkpoint.iter:08d} to use it, or move it away"
            for checkpoint in self.misnamed
        ]


def list_checkpoints(run_dir: Path) -> CheckpointListing:
    numbered = [
        (int(match[1]), int(match[2] or 0), path)
        for path in list_folder(run_dir / CHECKPOINTS_DIR)
        if (match := COMMITTED_NAME_PATTERN.fullmatch(path.name))
    ]
    committed: dict[Path, Checkpoint | UserError | OSError] = {}
    misnamed = []
    for _, _, path in sorted(numbered):
        try:
            checkpoint = read_checkpoint(path)
        except (UserError, OSError) as error:
            committed[path] = error
        else:
            if path.name.partition(".")[0] == f"{checkpoint.iter:08d}":
                committed[path] = checkpoint
            else:
                misnamed.append(checkpoint)
    return CheckpointListing(committed, misnamed)


def committed_paths(run_dir: Path) -> list[Path]:
    """Folders of committed checkpoints, oldest first; damaged ones too, misnamed ones not."""
    return list(list_checkpoints(run_dir).committed)


def best_checkpoints(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """The lowest validation loss for each evaluation data, the earliest of equals; the latest data last.

    A run resumed with other evaluation tokens or another dataset measures another loss. Losses before and
    after do not compare.
    """
    best_by_data: dict[str, Checkpoint] = {}
    for checkpoint in checkpoints:
        if checkpoint.val_loss is not None and math.isfinite(checkpoint.val_loss):
            eval_data = str(checkpoint.state.get("measured_on"))
            best = best_by_data.pop(eval_data, checkpoint)  # and put back, so that the latest comes last
            is_better = checkpoint.val_loss < (best.val_loss or 0.0)
            best_by_data[eval_data] = checkpoint if is_better else best
    return list(best_by_data.values())


def next_free_path(folder: Path, name: str) -> Path:
    """NAME, or NAME.1, NAME.2, …: one above the highest that exists, so that the newest sorts last."""
    pattern = re.compile(re.escape(name) + r"(?:\.(\d+))?")
    numbers = [
        int(match[1] or 0) for entry in list_folder(folder) if (match := pattern.fullmatch(entry.name))
    ]
    return folder / (f"{name}.{max(numbers) + 1}" if numbers else name)


def list_folder(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


# --- tensors ---


def load_tensors(checkpoint: Checkpoint) -> TensorsByFile:
    """All tensors, on the CPU. Each file is checked against its digest."""
    from safetensors.torch import load

    tensors = {}
    digest_of = DIGEST_BY_VERSION[checkpoint.state["version"]]
    for name, recorded_digest in checkpoint.state["sha256"].items():
        path = checkpoint.path / name
        try:
            # Read, not memory-mapped: the bytes that were checked are the bytes that are used.
            content = read_small_file(path, available_memory_bytes())
            if digest_of(content) != recorded_digest:
                raise UserError(f"{path} is damaged: its SHA-256 is not the recorded one")
            tensors[path.stem] = load(content)
        except (OSError, SafetensorError) as error:
            _raise_if_not_damage(error, path)
            raise UserError(f"{path} is damaged: {error!r}") from None
    if "index" not in checkpoint.state:
        return tensors
    try:
        return _merge_row_shards(tensors, checkpoint.state["index"])
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"{checkpoint.path} is damaged: its index does not fit its files: {error!r}"
        ) from None


def _merge_row_shards(files: TensorsByFile, index: Mapping[str, Any]) -> TensorsByFile:
    """Whole tensors, from the files in which each rank wrote its rows."""
    merged: TensorsByFile = {file: tensors for file, tensors in files.items() if file not in index}
    for file, row_ranges in index.items():
        for name, (start, end, row_count) in row_ranges.items():
            rows = files[file][name]
            tensors = merged.setdefault(file.partition("-")[0], {})
            if name not in tensors:
                tensors[name] = rows.new_empty((row_count, *rows.shape[1:]))
            tensors[name][start:end] = rows
    return merged


def verify_checkpoint(path: Path) -> None:
    """Reads every file back from the disk and compares it with its digest."""
    checkpoint = read_checkpoint(path)
    for name, recorded_digest in checkpoint.state["sha256"].items():
        try:
            problem = find_damage(path / name, recorded_digest, checkpoint.file_digest)
        except OSError as error:
            _raise_if_not_damage(error, path / name)
            problem = repr(error)
        if problem:
            raise UserError(f"{path / name} is damaged: {problem}")


# --- damage ---


def load_latest_intact(
    run_dir: Path, listing: CheckpointListing | None = None
) -> tuple[Checkpoint, TensorsByFile, list[Path], list[str]]:
    """The newest intact checkpoint, the damaged ones that are newer, and what is wrong with them."""
    listing = listing or list_checkpoints(run_dir)
    damaged: list[Path] = []
    warnings = listing.misnamed_warnings
    for path, entry in reversed([*listing.committed.items()]):
        try:
            if not isinstance(entry, Checkpoint):
                raise entry
            return entry, load_tensors(entry), damaged, warnings
        except UserError as error:
            damaged.append(path)
            warnings += error.problems
    raise UserError(
        [*warnings, f"{run_dir} has no checkpoint to resume from; start again in another --out_dir"]
    )


def quarantine_damaged(damaged: list[Path]) -> None:
    """Renames damaged checkpoints, so that they are neither last nor best. Deletes nothing."""
    for path in damaged:
        path.rename(next_free_path(path.parent, f"damaged-{path.name}"))
