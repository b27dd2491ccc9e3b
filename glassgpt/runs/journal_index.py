"""An index beside a long journal: what was read of it, so that the next command reads only what came later.

    runs/long/journal.jsonl
    runs/long/journal.index     derived from it; may be deleted at any time

The journal stays the only truth. An index is used if this version wrote it, its own checksum is right, and
the journal begins with the bytes that it was made from: the journal is as long or longer, samples of these
bytes are the same, and so is the time of its last change unless it has grown. Else the journal is read from
its beginning. Where no file can be written, there is no index. Loading one executes nothing: it is two
lines of JSON and arrays of numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.files import regular_file_opener_nofollow
from glassgpt.version import VERSION

MIN_BYTES = 64 << 20  # of a journal that were read since its last index: a few seconds of reading
_FORMAT = f"4 {VERSION}"
_DTYPES = {"int64": np.int64, "float64": np.float64, "bool": np.bool_}
_MAX_LINE_BYTES = 256 << 20
_END_SAMPLE_BYTES = 1 << 16  # at the beginning and the end
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 10  # between them


@dataclass(frozen=True)
class JournalIndex:
    end: int  # bytes of the journal that it is made from: whole lines
    state: Mapping[str, Any]  # JSON
    arrays: Mapping[str, NDArray[Any]]


def index_path(journal: Path) -> Path:
    return journal.with_suffix(".index")


def load(journal: Path) -> JournalIndex | None:
    """None where there is none that fits the journal."""
    try:
        with open(index_path(journal), "rb", opener=regular_file_opener_nofollow) as file:
            head = json.loads(file.readline(_MAX_LINE_BYTES))
            status, end = journal.stat(), int(head["end"])
            is_unchanged = status.st_size > head["size"] or status.st_mtime_ns == head["mtime_ns"]
            if head["format"] != _FORMAT or not is_unchanged or not 0 < end <= status.st_size:
                return None
            state = file.readline(_MAX_LINE_BYTES)
            arrays: dict[str, NDArray[Any]] = {
                name: np.frombuffer(file.read(size), dtype=_DTYPES[code])
                for name, (code, size) in head["arrays"].items()
            }
        if (_checksum(state, arrays), _sampled(journal, end)) != (head["checksum"], head["journal"]):
            return None
        return JournalIndex(end, json.loads(state), arrays)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        return None  # damaged, or not readable


def save(journal: Path, index: JournalIndex) -> None:
    """Does nothing where it cannot be written. Unlike atomic_write, it does not join the arrays in memory,
    nor sync what can be derived again."""
    path = index_path(journal)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    state = json.dumps(index.state).encode() + b"\n"
    with contextlib.suppress(OSError):
        status = journal.stat()
        head = {
            "format": _FORMAT,
            "end": index.end,
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "journal": _sampled(journal, index.end),
            "checksum": _checksum(state, index.arrays),
            "arrays": {name: (one.dtype.name, one.nbytes) for name, one in index.arrays.items()},
        }
        try:
            with temporary.open("xb") as file:
                file.write(json.dumps(head).encode() + b"\n" + state)
                for numbers in index.arrays.values():
                    file.write(np.ascontiguousarray(numbers).data)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _checksum(state: bytes, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(state)
    for numbers in arrays.values():
        digest.update(np.ascontiguousarray(numbers).data)
    return digest.hexdigest()


def _sampled(journal: Path, end: int) -> str:
    """A digest of the first and the last of these bytes, and of samples between them."""
    digest = hashlib.blake2b(str(end).encode())
    with open(journal, "rb", opener=regular_file_opener_nofollow) as file:
        for sample in range(_SAMPLES + 1):
            size = _END_SAMPLE_BYTES if sample in (0, _SAMPLES) else _SAMPLE_BYTES
            file.seek(max(0, end * sample // _SAMPLES - (size if sample == _SAMPLES else 0)))
            digest.update(file.read(min(size, end - file.tell())))
    return digest.hexdigest()
