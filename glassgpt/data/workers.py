"""Parcels of documents to token ids, on all cores.

Results are handed out in the order of the parcels, so the number of workers changes how long it takes and
nothing else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Collection, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from glassgpt.cgroup import usable_cores
from glassgpt.data.document_batches import DocumentBatch
from glassgpt.data.encoder import EncodedBatch, Encoder
from glassgpt.errors import UserError, is_thread_start_failure

_QUEUED_BATCHES_PER_WORKER = 3  # parcels per worker that are read already: enough that none is ever idle


def encode_batches(
    parcels: Iterator[tuple[int, DocumentBatch]], encoder: Encoder, workers: int
) -> Generator[tuple[int, DocumentBatch, EncodedBatch]]:
    """Every numbered parcel with its ids, in order."""
    if workers == 1:
        for number, parcel in parcels:
            yield number, parcel, encoder(parcel)
        return
    # Not forked: a copy of a process with threads, such as a progress bar's, may hang.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with _explain_start_failure():
        pool = ProcessPoolExecutor(workers, context, _begin, (encoder,))
    waiting: deque[tuple[int, DocumentBatch, Future[EncodedBatch]]] = deque()
    try:
        for number, parcel in parcels:
            with _explain_start_failure(), _block_sigint():  # a worker may be started here
                waiting.append((number, parcel, pool.submit(_encode, parcel)))
            if len(waiting) >= workers * _QUEUED_BATCHES_PER_WORKER:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, as a rule because memory ran out: try fewer, --workers "
            f"{max(1, workers // 2)}; what is done is kept, and the same command goes on from there"
        ) from error
    finally:
        _end(pool, others)


@contextlib.contextmanager
def _explain_start_failure() -> Iterator[None]:
    """Some containers have no shared memory, and some machines no room for more processes."""
    try:
        yield
    except (OSError, ImportError, RuntimeError) as error:
        # Of RuntimeErrors only these: others are faults, or of workers that had been started.
        if isinstance(error, RuntimeError) and not (
            isinstance(error, NotImplementedError) or is_thread_start_failure(error)
        ):
            raise
        raise UserError(
            f"worker processes could not be started ({error}): use --workers 1, for the same result"
        ) from error


def _end(pool: ProcessPoolExecutor, others: Collection[BaseProcess]) -> None:
    """`others`: processes that are not the pool's."""
    try:
        pool.shutdown(wait=True, cancel_futures=True)
    except RuntimeError as error:
        if "before it is started" not in str(error):
            raise
        # The thread that would end the workers could not be started, and is waited for; they would stay.
        for process in multiprocessing.active_children():
            if process not in others:
                process.kill()


@contextlib.contextmanager
def _block_sigint() -> Iterator[None]:
    """Ctrl-C comes after this, here; and never to a process that is started within, which would complain."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows goes without
        yield
        return
    resource_tracker.ensure_running()  # else it is started within, and lets Ctrl-C through again
    with _defer_sigint():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes inherit that
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _defer_sigint() -> Iterator[None]:
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


def _first(
    waiting: deque[tuple[int, DocumentBatch, Future[EncodedBatch]]],
) -> tuple[int, DocumentBatch, EncodedBatch]:
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


def _encode(parcel: DocumentBatch) -> EncodedBatch:
    return _encoder(parcel)


def usable_core_count() -> int:
    """That this process may keep busy."""
    return max(1, int(usable_cores()))
