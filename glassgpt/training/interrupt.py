"""Being asked to stop: a signal sets a flag that the loop looks at between pieces of work.

    Ctrl-C, SIGTERM   the update ends, a checkpoint is written, the run says how to go on; a second one quits
                      at once, and the last committed checkpoint is whole in any case
    SIGHUP            the terminal is gone: the run goes on without it, after saving a checkpoint; under nohup
                      nothing happens at all
    SIGUSR1           the run goes on, after saving a checkpoint; schedulers send it before they end a job

Until the run has a folder there is nothing to save, and the first Ctrl-C quits at once too.
In a team of processes what one of them hears is acted on by all, at the same update (see Team.heed).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Which Windows does not have.
_HANGUP_SIGNAL = getattr(signal, "SIGHUP", None)
_SAVE_SIGNAL = getattr(signal, "SIGUSR1", None)

_STOPPING_MESSAGE = b"\nstopping after this piece of work and a checkpoint; once more quits at once\n"


class ImmediateStop(KeyboardInterrupt):
    """Asked to quit at once."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def default_stop_signals() -> Iterator[None]:
    """Signals end the process: in a library's long wait Python would not get to hear of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM is as Ctrl-C: whoever has begun something gets to take it away again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise ImmediateStop(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StopSignals:
    """`with Stop() as stop:` … `if stop.requested: …`"""

    def __init__(self) -> None:
        self.signal: int | None = None  # to be acted on
        self.is_graceful = False  # set when there is something to save: until then a signal quits at once
        self.quit_at_once = False  # a signal has quit the run at once: whatever is optional is left out
        self.hung_up = False  # the terminal is gone; whoever has acted on it sets this back
        self.save_requested = False  # likewise
        self.run_dir_lost = False  # the run's folder was moved or removed
        self.is_distributed = False  # what is heard is only acted on when all have agreed
        self.is_quiet = False  # another process of the team says what is to be said
        self._received_signal: int | None = None
        self._received_hangup = False
        self._received_save = False
        self._received_run_dir_lost = False
        self._previous_handlers: dict[int, Any] = {}
        self._previous_mask: Any = None  # signals that were blocked before

    @property
    def requested(self) -> bool:
        return self.signal is not None or self.run_dir_lost

    @property
    def exit_code(self) -> int:
        """As a shell reports it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or 0)

    def report_run_dir_lost(self) -> None:
        self._received_run_dir_lost = True
        if not self.is_distributed:
            self.run_dir_lost = True

    def take_local_requests(self) -> tuple[int, int, int, int]:
        """What this process was told: a signal's number or 0, whether the terminal is gone, whether to save,
        and whether the run's folder is gone."""
        told = (
            self._received_signal or 0,
            int(self._received_hangup),
            int(self._received_save),
            int(self._received_run_dir_lost),
        )
        self._received_hangup = self._received_save = False
        return told

    def apply_requests(self, number: int, hung_up: int, save: int, lost_folder: int) -> None:
        """What any process of the team was told."""
        self.signal = number or self.signal
        self.hung_up = self.hung_up or bool(hung_up)
        self.save_requested = self.save_requested or bool(save)
        self.run_dir_lost = self.run_dir_lost or bool(lost_folder)

    def __enter__(self) -> StopSignals:
        # Python delivers signals to the main thread only; in a notebook's worker thread we go without.
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers = {
                number: signal.signal(number, self._on_stop) for number in _STOP_SIGNALS
            }
            # nohup has it ignored, and so it stays.
            if _HANGUP_SIGNAL is not None and signal.getsignal(_HANGUP_SIGNAL) != signal.SIG_IGN:
                self._previous_handlers[_HANGUP_SIGNAL] = signal.signal(_HANGUP_SIGNAL, self._on_hangup)
            if _SAVE_SIGNAL is not None and _HANGUP_SIGNAL is not None:
                self._previous_handlers[_SAVE_SIGNAL] = signal.signal(_SAVE_SIGNAL, self._on_save)
                # What was held back while the program was loading arrives now; see __main__.py, launch.py.
                self._previous_mask = signal.pthread_sigmask(
                    signal.SIG_UNBLOCK, {_SAVE_SIGNAL, _HANGUP_SIGNAL}
                )
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous_mask is not None:  # first: a signal in the last moments must not end a finished run
            signal.pthread_sigmask(signal.SIG_SETMASK, self._previous_mask)
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        if self._received_signal is not None or self.signal is not None or not self.is_graceful:
            self.quit_at_once = True
            raise ImmediateStop(number)
        self._received_signal = number
        if not self.is_distributed:
            self.signal = number
        if not self.is_quiet:
            _say(_STOPPING_MESSAGE)

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self._received_hangup = True
        if not self.is_distributed:
            self.hung_up = True

    def _on_save(self, number: int, frame: FrameType | None) -> None:
        self._received_save = True
        if not self.is_distributed:
            self.save_requested = True


def _say(line: bytes) -> None:
    """Straight to the descriptor: a signal may arrive while Python itself is writing."""
    try:
        os.write(2, line)
    except OSError:  # nobody there to read it
        return
