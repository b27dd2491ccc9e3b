"""A preparation that takes hours, and may be stopped at any moment and go on later.

The dataset is written in a hidden folder beside its place. Each time a shard is full, everything is brought
to the disk, and then a mark: which document comes next, and how long each file was. Who goes on cuts the
files back to the mark and reads from there; the result is the same to the byte.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from glassgpt.data.dataset import open_dataset
from glassgpt.errors import UserError
from glassgpt.files import atomic_write, fsync_path

PREPARE_STATE_FILE = "unfinished.json"
DEDUP_KEYS_FILE = "seen.bin"


def _none_yet() -> dict[str, int]:
    return {"train": 0, "val": 0}


@dataclass
class PrepareState:
    """How far it has come. Counts are of what is in the files."""

    # What was asked for, as one digest: who asks for something else begins anew.
    request: str
    # The document that comes next: of which piece of the corpus, and its number there.
    piece: int = 0
    document: int = 0
    documents: dict[str, int] = field(default_factory=_none_yet)
    text_bytes: dict[str, int] = field(default_factory=_none_yet)
    empty: int = 0
    repaired: int = 0
    converted: int = 0
    duplicates: int = 0
    tokens: dict[str, int] = field(default_factory=_none_yet)
    # SHA-256 of the shards that are full.
    closed: dict[str, dict[str, str]] = field(default_factory=lambda: {"train": {}, "val": {}})
    # Bytes of each file that it goes on with.
    lengths: dict[str, int] = field(default_factory=dict)
    # Keys of documents, in a file of their own, if copies are to be left out.
    keys: int = 0
    notes: list[str] = field(default_factory=list)
    # Nothing is left to do but the renaming.
    complete: bool = False

    def full_shard_count(self) -> int:
        return sum(len(names) for names in self.closed.values())


@contextlib.contextmanager
def resumable_folder(
    out: Path, request: str, overwrite: bool, say: Callable[[str], None]
) -> Iterator[tuple[Path, PrepareState | None]]:
    """The folder to work in, and the mark of an earlier attempt at the same, if there is one.

    The caller holds the lock on `out`. When something goes wrong, it is left as it is if a shard is done.
    """
    work = out.parent / f".{out.name}.unfinished"
    if work.exists() and not (work.is_dir() and all(path.is_file() for path in work.iterdir())):
        # No preparation looks like that; what somebody else put there is not removed.
        raise UserError(f"{work} is in the way: remove it, or choose another --out_dir")
    work.mkdir(parents=True, exist_ok=True)
    mark = _read_prepare_state(work)
    if mark is None and (work / PREPARE_STATE_FILE).exists():
        say(f"{work} lost a part of what it held since it was stopped: beginning anew")
    if mark is not None and mark.request != request:
        if mark.full_shard_count() and not overwrite:
            raise UserError(
                f"{work} holds a preparation that was stopped, of other files or with other settings: "
                "finish it with its own command, or add --overwrite to drop it"
            )
        mark = None
    if mark is None:
        for path in work.iterdir():
            path.unlink()
    try:
        yield work, mark
    except OSError as error:
        raise UserError(
            f"{out} could not be written ({error}): make room, or choose another --out_dir"
        ) from error
    except KeyboardInterrupt as error:
        if (mark := _read_prepare_state(work)) and mark.full_shard_count():
            error.add_note("the same command goes on after the last full shard")
        raise
    finally:
        if work.exists() and not ((mark := _read_prepare_state(work)) and mark.full_shard_count()):
            shutil.rmtree(work)


def write_prepare_state(work: Path, mark: PrepareState) -> None:
    """Only after what it speaks of is on the disk."""
    atomic_write(work / PREPARE_STATE_FILE, json.dumps(dataclasses.asdict(mark), indent=1).encode())
    fsync_path(work)


def mark_prepare_complete(work: Path, mark: PrepareState) -> None:
    """All is written: what remains is the dataset, and the mark until the folder has its name."""
    mark.complete = True
    write_prepare_state(work, mark)
    for path in work.iterdir():
        # A mark that was being written when the process was killed has a hidden name; before the lock lay
        # beside the folder, it lay in it.
        if path.name in (DEDUP_KEYS_FILE, "lock") or path.name.startswith("."):
            path.unlink()


def remove_prepare_state(out: Path) -> None:
    """Only after the folder has its name: who is killed before has nothing to do but to rename it."""
    (out / PREPARE_STATE_FILE).unlink()
    fsync_path(out)


def _read_prepare_state(work: Path) -> PrepareState | None:
    """None if there is none, or if something it speaks of is gone or cut off: then it must begin anew."""
    try:
        mark = PrepareState(**json.loads((work / PREPARE_STATE_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    if mark.complete:
        return mark if _is_dataset(work) else None
    found = {path.name: path.stat().st_size for path in work.iterdir()}
    return mark if all(found.get(name, -1) >= length for name, length in mark.lengths.items()) else None


def _is_dataset(work: Path) -> bool:
    try:
        open_dataset(work)
    except UserError:
        return False
    return True
