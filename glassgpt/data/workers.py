"""Parcels of documents to token ids, on all cores, in the order of the parcels.

What a document becomes does not depend on its parcel or on who encodes it, and results are handed out in
order: the number of workers changes how long it takes and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.manifest import DTYPES, dtype_for
from glassgpt.data.parcels import Parcel
from glassgpt.data.split import document_key
from glassgpt.data.tokenizers import BytePairTokenizer, ByteTokenizer
from glassgpt.errors import UserError

_WAITING = 3  # parcels per worker that are read already: enough that none is ever idle


@dataclass(frozen=True)
class Encoded:
    """The documents of a parcel as ids, each followed by what separates documents."""

    ids: NDArray[Any]
    # Of each document: its ids, its bytes of text (a newline that separates counts), 64 bits of its digest.
    lengths: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    keys: NDArray[np.uint64]
    # Documents without a text, which are left out; and those with half a character, which was replaced.
    empty: int
    repaired: int


@dataclass(frozen=True)
class Encoder:
    """What every worker has."""

    tokenizer: BytePairTokenizer | ByteTokenizer
    column: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[dtype_for(self.tokenizer.vocab_size)]

    def __call__(self, parcel: Parcel) -> Encoded:
        documents, repaired = texts_of(parcel, self.column, decode=self.tokenizer.name != "byte")
        kept = [text for text in documents if text]
        ids: NDArray[Any]
        if isinstance(self.tokenizer, ByteTokenizer):
            ids = np.frombuffer(b"".join(text + b"\n" for text in kept), dtype=np.uint8)
            lengths = text_bytes = np.array([len(text) + 1 for text in kept], dtype=np.int64)
        else:
            ids = self.tokenizer.encode_documents([text.decode() for text in kept])
            lengths = np.diff(np.flatnonzero(ids == self.tokenizer.eot), prepend=-1)
            text_bytes = np.array([len(text) for text in kept], dtype=np.int64)
        return Encoded(
            ids.astype(self.dtype),
            lengths,
            text_bytes,
            np.array([document_key(text) for text in kept], dtype=np.uint64),
            len(documents) - len(kept),
            repaired,
        )


# --- texts ---


def texts_of(parcel: Parcel, column: str, decode: bool = True) -> tuple[list[bytes], int]:
    """The documents as UTF-8, and how many had to be repaired. Blank lines between JSON are no documents."""
    if parcel.kind == "json":
        lines = [(item, line) for item, line in enumerate(parcel.items) if line.strip()]
        pairs = [_utf8(_text_in(line, parcel.where(item), column)) for item, line in lines]
        return [text for text, _ in pairs], sum(repaired for _, repaired in pairs)
    if decode:
        for item, text in enumerate(parcel.items):
            try:
                text.decode()
            except UnicodeDecodeError as error:
                raise UserError(_not_utf8(parcel.where(item), error)) from error
    return parcel.items, 0


def _text_in(line: bytes, where: str, column: str) -> str:
    try:
        fields = json.loads(line.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        raise UserError(_not_utf8(where, error)) from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not JSON ({error}): write one object a line, with the text in it"
        ) from error
    if not isinstance(fields, dict) or column not in fields:
        has = f"has the fields {', '.join(list(fields)[:10])}" if isinstance(fields, dict) else "is no object"
        raise UserError(f"{where} {has} and no {column!r}: name the one with the text by --text_column")
    text = fields[column]
    if text is not None and not isinstance(text, str):
        raise UserError(
            f"{where}: its {column!r} is {type(text).__name__}, not text: name another --text_column"
        )
    return text or ""


def _not_utf8(where: str, error: UnicodeDecodeError) -> str:
    return (
        f"{where} is not UTF-8 at its byte {error.start:,}: convert the file, for example with iconv, "
        "and run the command again"
    )


def _utf8(text: str) -> tuple[bytes, bool]:
    """And whether it had to be repaired: JSON can spell half of a character, which UTF-8 cannot hold."""
    try:
        return text.encode(), False
    except UnicodeEncodeError:
        return text.encode(errors="replace"), True


# --- processes ---


def encode_all(
    parcels: Iterator[tuple[int, Parcel]], encoder: Encoder, workers: int
) -> Generator[tuple[int, Parcel, Encoded]]:
    """Every numbered parcel with its ids, in order."""
    if workers == 1:
        for number, parcel in parcels:
            yield number, parcel, encoder(parcel)
        return
    # Not forked: a copy of a process with threads, such as a progress bar's, may hang.
    context = multiprocessing.get_context("spawn")
    with _started():
        pool = ProcessPoolExecutor(workers, context, _begin, (encoder,))
    waiting: deque[tuple[int, Parcel, Future[Encoded]]] = deque()
    try:
        for number, parcel in parcels:
            with _started(), _uninterrupted():  # a worker may be started here
                waiting.append((number, parcel, pool.submit(_encode, parcel)))
            if len(waiting) >= workers * _WAITING:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, as a rule because memory ran out: try fewer, --workers "
            f"{max(1, workers // 2)}; what is done is kept, and the same command goes on from there"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _started() -> Iterator[None]:
    """Some containers have no shared memory, and some machines no room for more processes."""
    try:
        yield
    except (OSError, ImportError, NotImplementedError) as error:
        raise UserError(
            f"worker processes could not be started ({error}): use --workers 1, for the same result"
        ) from error


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C comes after this, here; and never to a process that is started within, which would complain."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows goes without
        yield
        return
    resource_tracker.ensure_running()  # else it is started within, and lets Ctrl-C through again
    with _deferred():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes inherit that
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _deferred() -> Iterator[None]:
    """Ctrl-C comes after this, whichever thread it is handed to: a library's own does not block it."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread is interrupted
        yield
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
        if came:
            signal.raise_signal(signal.SIGINT)


def _first(waiting: deque[tuple[int, Parcel, Future[Encoded]]]) -> tuple[int, Parcel, Encoded]:
    number, parcel, future = waiting.popleft()
    return number, parcel, future.result()


_encoder: Encoder  # of a worker process


def _begin(encoder: Encoder) -> None:
    global _encoder
    _encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot tell its workers to end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encode(parcel: Parcel) -> Encoded:
    return _encoder(parcel)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
