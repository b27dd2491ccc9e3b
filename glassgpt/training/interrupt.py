"""Signals to a run. A handler only sets a flag; the loop reads it between two pieces of work.

    Ctrl-C, SIGTERM   the run finishes the update, saves a checkpoint and ends; a second one quits at once,
                      and the last committed checkpoint is whole in any case
    SIGHUP            the terminal is gone: the run saves a checkpoint and continues; ignored under nohup
    SIGUSR1           the run saves a checkpoint and continues; schedulers send it before they end a job

A file in the run's folder can ask for the same (record/run_requests.py): the page's buttons write one.

Until the run has a folder there is nothing to save, and the first Ctrl-C quits at once too.
With several ranks a signal to one of them is acted on by all, at the same update
(`ProcessGroup.sync_stop_signals`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from glassgpt.record.run_requests import Action

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Windows has neither.
_HANGUP_SIGNAL = getattr(signal, "SIGHUP", None)
_SAVE_SIGNAL = getattr(signal, "SIGUSR1", None)

_STOPPING_MESSAGE = b"\nstopping after this update and a checkpoint; Ctrl-C again quits at once\n"

# The order of `take_local_requests` and `apply_requests`: every rank has to use the same.
_REQUESTS = ("signal", "sighup_received", "save_requested", "run_dir_lost")


class ImmediateStop(KeyboardInterrupt):
    """A signal that quits at once."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def _signal_handlers(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    """Python has handlers in the main thread only; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def default_stop_signals() -> contextlib.AbstractContextManager[None]:
    """Stop signals end the process: Python's handlers do not run during a long wait inside a library."""
    return _signal_handlers(dict.fromkeys(_STOP_SIGNALS, signal.SIG_DFL))


def sigterm_as_interrupt() -> contextlib.AbstractContextManager[None]:
    """SIGTERM raises as Ctrl-C does, so that `finally` blocks can clean up."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise ImmediateStop(number)

    return _signal_handlers({signal.SIGTERM: stop})


class StopSignals:
    """`with StopSignals() as signals:` ... `if signals.stop_requested: ...`"""

    def __init__(self) -> None:
        # What to act on. With several ranks: what all have agreed on.
        self.signal = 0  # number of the stop signal; 0: none
        self.sighup_received = False  # the terminal is gone; reset once acted on
        self.save_requested = False  # reset once acted on
        self.save_requested_by = ""  # who asked in the run's folder; empty: a signal
        self.run_dir_lost = False  # the run's folder was moved or removed

        self.is_graceful = False  # set once there is something to save: before, a stop signal quits at once
        self.quit_at_once = False  # a signal has quit the run at once: optional work is skipped
        self.is_distributed = False  # requests are acted on only when all ranks have agreed
        self.is_quiet = False  # another rank prints the message
        self._received = dict.fromkeys(_REQUESTS, 0)  # by this process
        self._restore = contextlib.ExitStack()  # of the handlers and of the mask of blocked signals

    @property
    def stop_requested(self) -> bool:
        """Whether the run has to stop."""
        return bool(self.signal) or self.run_dir_lost

    @property
    def exit_code(self) -> int:
        """The code that a shell reports: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signal

    def receive_request(self, action: Action, by: str) -> None:
        """As if a signal had come: Ctrl-C for `stop`, SIGUSR1 for `save`."""
        if action == "save":
            self.save_requested_by = by
            self._receive("save_requested")
        elif not (self._received["signal"] or self.signal):
            self._receive("signal", signal.SIGINT)

    def report_run_dir_lost(self) -> None:
        self._receive("run_dir_lost")

    def take_local_requests(self) -> tuple[int, ...]:
        """What this process has received: a signal's number or 0, then 1 or 0 for each other request."""
        received = tuple(map(int, self._received.values()))
        self._received["sighup_received"] = self._received["save_requested"] = 0
        return received

    def apply_requests(self, *requests: int) -> None:
        """What any rank has received, in the order of `take_local_requests`."""
        for name, value in zip(_REQUESTS, requests, strict=True):
            if value:
                setattr(self, name, value if name == "signal" else True)

    def _receive(self, name: str, value: int = True) -> None:
        self._received[name] = value
        if not self.is_distributed:
            setattr(self, name, value)

    def __enter__(self) -> StopSignals:
        handlers: dict[signal.Signals, Any] = dict.fromkeys(_STOP_SIGNALS, self._on_stop)
        # nohup ignores SIGHUP, and that stays.
        if _HANGUP_SIGNAL is not None and signal.getsignal(_HANGUP_SIGNAL) != signal.SIG_IGN:
            handlers[_HANGUP_SIGNAL] = self._on_request
        if _SAVE_SIGNAL is not None:
            handlers[_SAVE_SIGNAL] = self._on_request
        self._restore.enter_context(_signal_handlers(handlers))
        if threading.current_thread() is threading.main_thread() and _SAVE_SIGNAL and _HANGUP_SIGNAL:
            # Signals blocked while the program was loading arrive now; see __main__.py, launch.py. They are
            # blocked again before the handlers go: one in the last moments must not end a finished run.
            mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {_SAVE_SIGNAL, _HANGUP_SIGNAL})
            self._restore.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore.close()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        if self._received["signal"] or self.signal or not self.is_graceful:
            self.quit_at_once = True
            raise ImmediateStop(number)
        self._receive("signal", number)
        if not self.is_quiet:
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, _STOPPING_MESSAGE)  # not print: Python itself may be writing right now

    def _on_request(self, number: int, frame: FrameType | None) -> None:
        self._receive("sighup_received" if number == _HANGUP_SIGNAL else "save_requested")
