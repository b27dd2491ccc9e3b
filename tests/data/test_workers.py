"""Worker processes start undisturbed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from glassgpt.data import parcels, workers
from glassgpt.data.workers import encode_all


class TellsMask:
    """In place of an encoder: whether its process could be interrupted."""

    def __call__(self, parcel: parcels.Parcel) -> bool:
        return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_no_worker_is_interrupted_while_it_starts() -> None:
    numbered = [(i, parcels.Parcel(Path("a"), i, "text", [], 0)) for i in range(4)]
    encoder: Any = TellsMask()
    assert encoder(numbered[0][1])
    told: list[Any] = [interruptible for _, _, interruptible in encode_all(iter(numbered), encoder, 2)]
    assert told == [False] * 4
    assert encoder(numbered[0][1])  # and here all is as before


def test_starting_a_worker_is_finished_before_ctrl_c_counts() -> None:
    """Also if another thread gets the signal, one that does not block it."""

    def interrupt() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    done: list[str] = []

    def start_worker() -> None:
        with workers._uninterrupted():
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
