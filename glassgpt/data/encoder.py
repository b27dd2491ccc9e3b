"""Documents to token ids, on all cores.

    encoder = Encoder(tokenizer, column="text")
    for number, batch, encoded in encode_batches(corpus.read_batches(), encoder, workers=8): ...

The ids of a document depend neither on its batch nor on the process that encodes it, and results come in the
order of the batches: the number of workers changes the time and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Collection, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.cgroup import usable_cores
from glassgpt.data.bpe import ByteLevelBpe
from glassgpt.data.document_readers import DocumentBatch
from glassgpt.data.manifest import TOKEN_DTYPES, dtype_for
from glassgpt.data.split import document_key
from glassgpt.data.text_files import compression_suffix, normalize_to_utf8
from glassgpt.data.tokenizers import ByteTokenizer
from glassgpt.errors import UserError, is_thread_start_failure, join_first

_QUEUED_BATCHES_PER_WORKER = 3  # read in advance: enough that no worker is idle


# --- one batch ---


@dataclass(frozen=True)
class EncodedBatch:
    """The documents of a batch as ids, each followed by the end-of-text token or a newline."""

    ids: NDArray[Any]
    # Per document: number of ids, bytes of text (with its newline, if it gets one), and its key.
    lengths: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    keys: NDArray[np.uint64]
    # Documents without a text, which are left out; and documents with half a character, which is replaced.
    empty: int
    repaired: int
    # Files that were not UTF-8 with plain line ends, and were converted.
    converted: int


@dataclass(frozen=True)
class Encoder:
    """Encodes a batch; every worker process has a copy."""

    tokenizer: ByteLevelBpe | ByteTokenizer
    column: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return TOKEN_DTYPES[dtype_for(self.tokenizer.vocab_size)]

    def __call__(self, batch: DocumentBatch) -> EncodedBatch:
        documents, repaired, converted = extract_texts(
            batch, self.column, decode=self.tokenizer.name != "byte"
        )
        texts = [text for text in documents if text]
        ids: NDArray[Any]
        if isinstance(self.tokenizer, ByteTokenizer):
            ids = np.frombuffer(b"".join(text + b"\n" for text in texts), dtype=np.uint8)
            lengths = text_bytes = np.array([len(text) + 1 for text in texts], dtype=np.int64)
        else:
            ids, lengths = self.tokenizer.encode_documents([text.decode() for text in texts])
            newline_bytes = int(self.tokenizer.eot is None)
            text_bytes = np.array([len(text) + newline_bytes for text in texts], dtype=np.int64)
        return EncodedBatch(
            ids.astype(self.dtype),
            lengths,
            text_bytes,
            np.array([document_key(text) for text in texts], dtype=np.uint64),
            len(documents) - len(texts),
            repaired,
            converted,
        )


def extract_texts(batch: DocumentBatch, column: str, decode: bool = True) -> tuple[list[bytes], int, int]:
    """The documents as UTF-8, how many were repaired, and how many converted.

    Blank lines between JSON are not documents. Text in JSON or parquet keeps its line ends.
    """
    texts: list[bytes] = []
    repaired = converted = 0
    if batch.kind == "json":
        for item, line in enumerate(batch.items):
            if not line.strip():
                continue
            text = _parse_json_text(line, batch.describe_location(item), column)
            try:
                texts.append(text.encode())
            except UnicodeEncodeError:  # JSON can escape half of a surrogate pair, which UTF-8 cannot hold
                texts.append(text.encode(errors="replace"))
                repaired += 1
        return texts, repaired, 0
    if not decode:
        return batch.items, 0, 0
    for item, content in enumerate(batch.items):
        try:
            raw = normalize_to_utf8(content) if batch.files else content
            raw.decode()
        except UnicodeDecodeError as error:
            raise UserError(_not_utf8(batch.describe_location(item), error)) from error
        texts.append(raw)
        converted += raw != content
    return texts, 0, converted


def _parse_json_text(line: bytes, where: str, column: str) -> str:
    try:
        fields = json.loads(line.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        raise UserError(_not_utf8(where, error)) from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not JSON ({error}): write one object per line, with the text in it"
        ) from error
    if not isinstance(fields, dict):
        raise UserError(f"{where} is not a JSON object: write one object per line, with the text in it")
    if column not in fields:
        has = f"has the fields {join_first(fields)}" if fields else "has no fields"
        raise UserError(f"{where} {has} and no {column!r}: name the one with the text by --text_column")
    text = fields[column]
    if text is not None and not isinstance(text, str):
        raise UserError(
            f"{where}: its {column!r} is {type(text).__name__}, not text: name another --text_column"
        )
    return text or ""


def _not_utf8(where: str, error: UnicodeDecodeError) -> str:
    if suffix := compression_suffix(error.object):
        return f"{where} is not text but compressed: add {suffix} to the file's name"
    return (
        f"{where} is not {error.encoding.upper()} at its byte {error.start:,}: convert the file, for example "
        "with iconv, and run the command again"
    )


# --- worker processes ---


def usable_core_count() -> int:
    """Cores that this process may use, at least 1."""
    return max(1, int(usable_cores()))


def encode_batches(
    batches: Iterator[tuple[int, DocumentBatch]], encoder: Encoder, workers: int
) -> Generator[tuple[int, DocumentBatch, EncodedBatch]]:
    """Every numbered batch with its ids, in order."""
    if workers == 1:
        for number, batch in batches:
            yield number, batch, encoder(batch)
        return
    # Not forked: a copy of a process with threads, such as a progress bar's, may hang.
    context = multiprocessing.get_context("spawn")
    other_processes = set(multiprocessing.active_children())
    with _explain_start_failure():
        pool = ProcessPoolExecutor(workers, context, _start_worker, (encoder,))
    queue: deque[tuple[int, DocumentBatch, Future[EncodedBatch]]] = deque()
    try:
        for number, batch in batches:
            with _explain_start_failure(), _block_sigint():  # a worker may be started here
                queue.append((number, batch, pool.submit(_encode_in_worker, batch)))
            if len(queue) >= workers * _QUEUED_BATCHES_PER_WORKER:
                number, batch, future = queue.popleft()
                yield number, batch, future.result()
        while queue:
            number, batch, future = queue.popleft()
            yield number, batch, future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, as a rule because memory ran out: try fewer, --workers "
            f"{max(1, workers // 2)}; what is done is kept, and the same command resumes from there"
        ) from error
    finally:
        _shut_down(pool, other_processes)


@contextlib.contextmanager
def _explain_start_failure() -> Iterator[None]:
    """Some containers have no shared memory, and some machines allow no more processes."""
    try:
        yield
    except (OSError, ImportError, RuntimeError) as error:
        # Other RuntimeErrors are bugs, or come from workers that did start.
        if isinstance(error, RuntimeError) and not (
            isinstance(error, NotImplementedError) or is_thread_start_failure(error)
        ):
            raise
        raise UserError(
            f"worker processes could not be started ({error}): use --workers 1, for the same result"
        ) from error


def _shut_down(pool: ProcessPoolExecutor, other_processes: Collection[BaseProcess]) -> None:
    """`other_processes`: children that are not the pool's."""
    try:
        pool.shutdown(wait=True, cancel_futures=True)
    except RuntimeError as error:
        if "before it is started" not in str(error):
            raise
        # The pool's manager thread could not be started, so it will not end the workers.
        for process in multiprocessing.active_children():
            if process not in other_processes:
                process.kill()


@contextlib.contextmanager
def _block_sigint() -> Iterator[None]:
    """Ctrl-C is handled after the block, and never reaches a process started inside, which would complain."""
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    resource_tracker.ensure_running()  # started inside, it would unblock SIGINT again
    # A library's thread does not block SIGINT, so the handler only takes a note. (Python runs handlers in the
    # main thread only, and only there they can be set.)
    is_main_thread = threading.current_thread() is threading.main_thread()
    received: list[int] = []
    if is_main_thread:
        old_handler = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # child processes inherit it
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    finally:
        if is_main_thread:
            signal.signal(signal.SIGINT, old_handler or signal.SIG_DFL)
        if received:
            signal.raise_signal(signal.SIGINT)


_worker_encoder: Encoder  # set in worker processes only


def _start_worker(encoder: Encoder) -> None:
    global _worker_encoder
    _worker_encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent process
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:  # a parent that was killed cannot end its workers
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def _encode_in_worker(batch: DocumentBatch) -> EncodedBatch:
    return _worker_encoder(batch)
