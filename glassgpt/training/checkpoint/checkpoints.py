"""Checkpoints: safetensors and JSON, committed by a rename. saver.py writes them.

    checkpoints/00000500/model.safetensors       parameters under GPT-2's names
                         optimizer.safetensors   PARAMETER:exp_avg, …
                         evaluation.safetensors  what early stopping compares with, if it is on
                         state.json              iteration, losses, settings, digests of the others

With --shard every process writes its rows, as model-00001-of-00004.safetensors and so on; the `index` in
state.json says which file has which rows of what. Whoever reads gets whole tensors.

A checkpoint is written beside its place, flushed to disk, and renamed: a folder with a plain number is whole,
whatever happened. Its identity is the `iter` in its state.json: a folder with another number, such as a dated
copy, does not count. Which one is `last` and which is `best` is not stored anywhere, it follows from what is
there: the highest iteration, and the lowest validation loss. Nothing is pickled; loading executes nothing.
"""

from __future__ import annotations

import errno
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from safetensors import SafetensorError

from glassgpt.data.digests import file_sha256, sha256_in_pieces
from glassgpt.errors import UserError
from glassgpt.files import read_small_file
from glassgpt.record import journal
from glassgpt.record.machine import available_memory_bytes
from glassgpt.record.run_dir import CHECKPOINTS_DIR, COMMITTED_NAME_PATTERN

if TYPE_CHECKING:  # torch is imported by whoever loads tensors: `glass verify` does without
    from torch import Tensor

CHECKPOINTS_FOLDER = CHECKPOINTS_DIR
CHECKPOINT_VERSION = 2
_TENSOR_FILE_PATTERN = re.compile(r"[a-z]+(-\d+-of-\d+)?\.safetensors")
# How files are hashed, by version: the first took the SHA-256 of a file as a whole.
FILE_DIGEST_BY_VERSION: Mapping[int, Callable[[Path, Callable[[int], object]], str]] = {
    1: file_sha256,
    2: sha256_in_pieces,
}

# Of a file that is gone or that the disk has lost. Any other error (no rights, no descriptors, a network
# drive that is away) says nothing against the checkpoint: it is raised, and nothing is set aside.
_FILE_LOST_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOTSUP, errno.EIO)

# What is in state.json, by name: of what kind, and what is in it.
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

# By file ("model", "optimizer", "evaluation"), then by name.
TensorsByFile: TypeAlias = "dict[str, dict[str, Tensor]]"
RowRanges = dict[str, dict[str, tuple[int, int, int]]]  # by file and name: from, to, of how many in all


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


def committed_paths(run_dir: Path) -> list[Path]:
    """Folders of committed checkpoints, oldest first; also damaged ones, not misnamed ones."""
    others = {point.path for point in misnamed_checkpoints(run_dir)}
    return [path for path in _numbered_folders(run_dir) if path not in others]


def misnamed_checkpoints(run_dir: Path) -> list[Checkpoint]:
    """Checkpoints whose name is not their iteration: copies that somebody made. They are never loaded and
    never removed."""
    return [point for point in _readable_with_any_name(run_dir) if not _name_matches_iter(point)]


def _readable_with_any_name(run_dir: Path) -> Iterator[Checkpoint]:
    """Without those that cannot be read, whether damaged or not; whoever loads one reports that."""
    for path in _numbered_folders(run_dir):
        with suppress(UserError, OSError):
            yield read_checkpoint(path)


def _name_matches_iter(point: Checkpoint) -> bool:
    return point.path.name.partition(".")[0] == f"{point.iter:08d}"


def misnamed_warnings(run_dir: Path) -> list[str]:
    return [
        f"{point.path} is not used: it holds iteration {point.iter}; "
        f"rename it to {point.iter:08d} to use it, or move it away"
        for point in misnamed_checkpoints(run_dir)
    ]


def _numbered_folders(run_dir: Path) -> list[Path]:
    found = [
        (match, path)
        for path in list_folder(run_dir / CHECKPOINTS_FOLDER)
        if (match := COMMITTED_NAME_PATTERN.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 0)))]


def list_folder(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint's state without its tensors."""
    try:
        document = journal.loads(read_small_file(path / "state.json"))
        state = document["state"]
        if _digest(state) != document["digest"]:
            raise UserError(f"{path} is damaged: its state.json is not as it was written")
        if state["version"] not in FILE_DIGEST_BY_VERSION:
            raise UserError(
                f"{path} is of version {state['version']}; this program reads up to {CHECKPOINT_VERSION}"
            )
        if wrong := [
            *({"iter", "val_loss", "sha256"} - state.keys()),
            *_wrongly_typed_names(state, _STATE_TYPES),
        ]:
            raise UserError(f"{path} is damaged: its state.json is wrong in {', '.join(wrong)}")
        if strange := [name for name in state["sha256"] if not _TENSOR_FILE_PATTERN.fullmatch(name)]:
            raise UserError(
                f"{path} is refused: its state.json names {strange[0]!r}, no file of a checkpoint"
            )
        return Checkpoint(path, state)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        _reraise_unless_damage(error, path / "state.json")
        raise UserError(f"{path} is damaged: {error!r}") from None


def best_checkpoint(run_dir: Path) -> Checkpoint | None:
    """The committed checkpoint with the lowest validation loss, measured as it is now."""
    return next(reversed(best_checkpoints(readable_checkpoints(run_dir))), None)


def best_checkpoints(points: Iterable[Checkpoint]) -> list[Checkpoint]:
    """The lowest validation loss, the earliest of equals, for each way of measuring it; the latest way last.

    A run resumed with other evaluation tokens or other data measures something else: losses before and
    after do not compare.
    """
    found: dict[str, Checkpoint] = {}
    for point in points:
        if point.val_loss is not None and math.isfinite(point.val_loss):
            way = str(point.state.get("measured_on"))
            lowest = found.pop(way, point)  # and put back, so that the latest way comes last
            found[way] = point if point.val_loss < (lowest.val_loss or 0.0) else lowest
    return list(found.values())


def readable_checkpoints(run_dir: Path) -> Iterator[Checkpoint]:
    """Committed checkpoints that can be read, oldest first."""
    return filter(_name_matches_iter, _readable_with_any_name(run_dir))


def latest_checkpoint(run_dir: Path) -> Checkpoint | None:
    """The last of those that can be read."""
    return next(reversed(list(readable_checkpoints(run_dir))), None)


def load_tensors(point: Checkpoint) -> TensorsByFile:
    """Everything, on the CPU, each file checked against its digest."""
    from safetensors.torch import load

    from glassgpt.training.checkpoint.tensor_file import content_digest

    tensors = {}
    whole_file = point.state["version"] == 1
    digest_of = (lambda content: hashlib.sha256(content).hexdigest()) if whole_file else content_digest
    for name, recorded in point.state["sha256"].items():
        path = point.path / name
        try:
            # Not mapped: what was checked is what is used, whatever happens to the file meanwhile.
            content = read_small_file(path, available_memory_bytes())
            if digest_of(content) != recorded:
                raise UserError(f"{path} is damaged: its SHA-256 is not the recorded one")
            tensors[path.stem] = load(content)
        except (OSError, SafetensorError) as error:
            _reraise_unless_damage(error, path)
            raise UserError(f"{path} is damaged: {error!r}") from None
    try:
        return _merge_row_shards(tensors, point.state["index"]) if "index" in point.state else tensors
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(f"{point.path} is damaged: its index does not fit its files: {error!r}") from None


def verify_checkpoint(path: Path) -> None:
    """Reads every file of a checkpoint back from the disk and compares it with its digest."""
    state = read_checkpoint(path).state
    digest_of = FILE_DIGEST_BY_VERSION[state["version"]]
    for name, recorded in state["sha256"].items():
        try:
            if digest_of(path / name, lambda size: None) != recorded:
                raise UserError(f"{path / name} is damaged: its SHA-256 is not the recorded one")
        except OSError as error:
            _reraise_unless_damage(error, path / name)
            raise UserError(f"{path / name} is damaged: {error!r}") from None


def _merge_row_shards(files: TensorsByFile, index: Mapping[str, Any]) -> TensorsByFile:
    """Whole tensors from the rows that are spread over files."""
    whole: TensorsByFile = {file: part for file, part in files.items() if file not in index}
    for file, rows in index.items():
        for name, (start, end, count) in rows.items():
            part = files[file][name]
            place = whole.setdefault(file.partition("-")[0], {})
            if name not in place:
                place[name] = part.new_empty((count, *part.shape[1:]))
            place[name][start:end] = part
    return whole


def _wrongly_typed_names(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> list[str]:
    """Names of values that are not what is written under these names."""
    wrong = []
    for name in kinds.keys() & values.keys():
        kind, value = kinds[name], values[name]
        if isinstance(kind, dict) and isinstance(value, dict):
            wrong += [f"{name}.{inner}" for inner in _wrongly_typed_names(value, kind)]
            continue
        numbers = value if isinstance(value, list) else [value] if isinstance(value, int) else []
        if (
            isinstance(kind, dict)
            or not isinstance(value, kind)
            or any(not isinstance(one, int | float) or isinstance(one, bool) for one in numbers)
            or (isinstance(value, int) and value < 0)
        ):
            wrong.append(name)
    return sorted(wrong)


def _reraise_unless_damage(error: Exception, path: Path) -> None:
    """Raises an error that is not the checkpoint's, with the file's name, which errors of reading lack."""
    if isinstance(error, OSError) and error.errno not in _FILE_LOST_ERRNOS:
        raise OSError(error.errno, f"{error.strerror or error}", str(path)) from None


def load_latest_intact(run_dir: Path) -> tuple[Checkpoint, TensorsByFile, list[Path], list[str]]:
    """The newest checkpoint that is whole; newer ones that are damaged, and what is wrong with them."""
    damaged: list[Path] = []
    complaints = misnamed_warnings(run_dir)
    for path in reversed(committed_paths(run_dir)):
        try:
            point = read_checkpoint(path)
            return point, load_tensors(point), damaged, complaints
        except UserError as error:
            damaged.append(path)
            complaints += error.problems
    raise UserError(
        [*complaints, f"{run_dir} has no checkpoint to resume from; start anew in another --out_dir"]
    )


def quarantine_damaged(damaged: list[Path]) -> None:
    """Renames damaged checkpoints, so that they count neither as last nor as best; deletes nothing."""
    for path in damaged:
        path.rename(next_free_path(path.parent, f"damaged-{path.name}"))


# --- what writing needs ---


def next_free_path(folder: Path, name: str) -> Path:
    """NAME, or NAME.1, NAME.2, …: one more than there is, so that the newest sorts last."""
    pattern = re.compile(re.escape(name) + r"(?:\.(\d+))?")
    taken = [int(match[1] or 0) for entry in list_folder(folder) if (match := pattern.fullmatch(entry.name))]
    return folder / (f"{name}.{max(taken) + 1}" if taken else name)


def encode_state(state: Mapping[str, Any]) -> str:
    """What `describe` reads."""
    return journal.dumps({"digest": _digest(state), "state": state}) + "\n"


def _digest(state: Mapping[str, Any]) -> str:
    """SHA-256 of the state as JSON, so that damage to a number does not pass for another number."""
    return hashlib.sha256(journal.dumps(state).encode()).hexdigest()
