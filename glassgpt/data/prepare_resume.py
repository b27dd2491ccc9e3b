"""The state of a preparation that can be stopped at any moment and resumed.

The dataset is written in a hidden folder beside its final name. Each time a shard is full, all files are
synced, and then the state is saved: the next document, and the length of each file. A resumed preparation
truncates the files to these lengths and reads on from that document; the result is the same to the byte.
`DedupKeys`, for `--dedup`, are a part of that state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.dataset import open_dataset
from glassgpt.errors import UserError
from glassgpt.files import atomic_write, fsync_path

PREPARE_STATE_FILE = "unfinished.json"
DEDUP_KEYS_FILE = "seen.bin"


@dataclass
class PrepareState:
    """How far a preparation has come. The counts are those of the files on disk."""

    # A digest of the request: another request starts from the beginning.
    request: str
    # The next document: the number of its reader in the corpus, and its number there.
    piece: int = 0
    document: int = 0
    documents: dict[str, int] = field(default_factory=lambda: {"train": 0, "val": 0})
    text_bytes: dict[str, int] = field(default_factory=lambda: {"train": 0, "val": 0})
    empty: int = 0
    repaired: int = 0
    converted: int = 0
    duplicates: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: {"train": 0, "val": 0})
    # SHA-256 of the shards that are full.
    closed: dict[str, dict[str, str]] = field(default_factory=lambda: {"train": {}, "val": {}})
    # Bytes of each file at this point.
    lengths: dict[str, int] = field(default_factory=dict)
    # Number of document keys in the dedup file, with --dedup.
    keys: int = 0
    notes: list[str] = field(default_factory=list)
    # All is written; only the rename is left.
    complete: bool = False

    def full_shard_count(self) -> int:
        return sum(len(names) for names in self.closed.values())


@contextlib.contextmanager
def resumable_folder(
    out: Path, request: str, overwrite: bool, print_line: Callable[[str], None]
) -> Iterator[tuple[Path, PrepareState | None]]:
    """The work folder, and the state of an earlier attempt at the same request, if there is one.

    The caller holds the lock on `out`. After an error the folder is kept if it has a full shard.
    """
    work = out.parent / f".{out.name}.unfinished"
    if work.exists() and not (work.is_dir() and all(path.is_file() for path in work.iterdir())):
        # Not a work folder of a preparation: files of others are not removed.
        raise UserError(f"{work} is in the way: remove it, or choose another --out_dir")
    work.mkdir(parents=True, exist_ok=True)
    state = _read_prepare_state(work)
    if state is None and (work / PREPARE_STATE_FILE).exists():
        print_line(f"{work} lost a part of its files since it was stopped: starting again")
    if state is not None and state.request != request:
        if state.full_shard_count() and not overwrite:
            raise UserError(
                f"{work} holds a preparation that was stopped, of other files or with other settings: "
                "finish it with its own command, or add --overwrite to drop it"
            )
        state = None
    if state is None:
        for path in work.iterdir():
            path.unlink()
    try:
        yield work, state
    except OSError as error:
        raise UserError(
            f"{out} could not be written ({error}): make room, or choose another --out_dir"
        ) from error
    except KeyboardInterrupt as error:
        if (state := _read_prepare_state(work)) and state.full_shard_count():
            error.add_note("the same command resumes after the last full shard")
        raise
    finally:
        if work.exists() and not ((state := _read_prepare_state(work)) and state.full_shard_count()):
            shutil.rmtree(work)


def write_prepare_state(work: Path, state: PrepareState) -> None:
    """The caller has synced all files that the state describes."""
    atomic_write(work / PREPARE_STATE_FILE, json.dumps(dataclasses.asdict(state), indent=1).encode())
    fsync_path(work)


def mark_prepare_complete(work: Path, state: PrepareState) -> None:
    """Removes all files that are not part of the dataset, except the state, which stays until the rename."""
    state.complete = True
    write_prepare_state(work, state)
    for path in work.iterdir():
        # A killed process may leave a half-written state under a hidden name. Older versions had the lock
        # file in this folder.
        if path.name in (DEDUP_KEYS_FILE, "lock") or path.name.startswith("."):
            path.unlink()


def remove_prepare_state(out: Path) -> None:
    """Called after the rename: a process killed before it only has to repeat the rename."""
    (out / PREPARE_STATE_FILE).unlink()
    fsync_path(out)


def _read_prepare_state(work: Path) -> PrepareState | None:
    """None if there is no state, or if one of its files is missing or too short: then it starts again."""
    try:
        state = PrepareState(**json.loads((work / PREPARE_STATE_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    if state.complete:
        try:
            open_dataset(work)
        except UserError:
            return None
        return state
    sizes = {path.name: path.stat().st_size for path in work.iterdir()}
    return state if all(sizes.get(name, -1) >= length for name, length in state.lengths.items()) else None


# --- dedup ---

BYTES_PER_KEY = 8
_MAX_RECENT_KEYS = 2**20  # in a set; then they are merged into the sorted array


class DedupKeys:
    """The keys of all documents so far, in memory and in a file, 8 bytes each: a known key is a duplicate.

    Keys are 64 bits of a SHA-256, so different documents practically never share one.
    """

    def __init__(self, path: Path, known: int = 0) -> None:
        """`known`: how many keys of the file are valid; the rest is cut off."""
        self._path = path
        path.touch()
        self._sorted_keys = np.sort(np.fromfile(path, dtype=np.uint64, count=known))
        with path.open("r+b") as file:
            file.truncate(self._sorted_keys.nbytes)
        self._recent_keys: set[int] = set()
        self._unsaved: list[NDArray[np.uint64]] = []
        self._saved_count = known

    def add_new(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Adds the keys, and returns which of them are new: neither known before nor earlier in `keys`."""
        is_new = np.ones(len(keys), dtype=np.bool_)
        if len(self._sorted_keys):
            places = np.searchsorted(self._sorted_keys, keys)
            is_new = self._sorted_keys[np.minimum(places, len(self._sorted_keys) - 1)] != keys
        for i in np.flatnonzero(is_new).tolist():
            key = int(keys[i])
            is_new[i] = key not in self._recent_keys
            self._recent_keys.add(key)
        if len(self._recent_keys) >= _MAX_RECENT_KEYS:
            recent = np.fromiter(self._recent_keys, dtype=np.uint64)
            self._sorted_keys = np.sort(np.concatenate([self._sorted_keys, recent]))
            self._recent_keys = set()
        self._unsaved.append(keys[is_new])
        return is_new

    def save(self) -> int:
        """Appends the new keys to the file; returns how many keys it holds."""
        with self._path.open("ab") as file:
            for keys in self._unsaved:
                file.write(keys.tobytes())
                self._saved_count += len(keys)
        fsync_path(self._path)
        self._unsaved = []
        return self._saved_count
