"""Worker processes start undisturbed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from glassgpt.data import document_readers
from glassgpt.data import encoder as encoder_module
from glassgpt.data.encoder import encode_batches
from glassgpt.errors import UserError


class TellsMask:
    """In place of an encoder: whether its process could be interrupted."""

    def __call__(self, batch: document_readers.DocumentBatch) -> bool:
        return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_no_worker_is_interrupted_while_it_starts() -> None:
    numbered = [(i, document_readers.DocumentBatch(Path("a"), i, "text", [], 0)) for i in range(4)]
    encoder: Any = TellsMask()
    assert encoder(numbered[0][1])
    interruptible_flags: list[Any] = [
        interruptible for _, _, interruptible in encode_batches(iter(numbered), encoder, 2)
    ]
    assert interruptible_flags == [False] * 4
    assert encoder(numbered[0][1])  # and here all is as before


def test_starting_a_worker_is_finished_before_ctrl_c_counts() -> None:
    """Also if another thread gets the signal, one that does not block it."""

    def interrupt() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    done: list[str] = []

    def start_worker() -> None:
        with encoder_module._block_sigint():
            thread = threading.Thread(target=interrupt)
            thread.start()
            thread.join()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append("started")

    with pytest.raises(KeyboardInterrupt):
        start_worker()
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_no_room_for_a_thread_is_said_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A low limit of processes counts threads too. A worker left behind would be waited for at the exit."""
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if "ExecutorManager" in type(thread).__name__:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    encoder: Any = TellsMask()
    numbered = [(0, document_readers.DocumentBatch(Path("a"), 0, "text", [], 0))]
    with pytest.raises(UserError, match=r"can't start new thread.*--workers 1"):
        list(encode_batches(iter(numbered), encoder, 2))
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    left = multiprocessing.active_children()
    for process in left:  # or this test would never end
        process.kill()
    assert left == []
