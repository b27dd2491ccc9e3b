"""The watchdog of a process group: which rank died or hangs, and what it was doing.

Every rank sends a heartbeat twice a second, to the launcher's store: its phase, its updates, and whether it
waits for other ranks. A rank that waits for long looks for one that does not wait. A rank that is gone is
noticed at once on its own machine (its pid is gone), elsewhere by its last heartbeat, if that says that it
ends, or by missing heartbeats.

The first rank to find a lost one writes the verdict to the store, and all others adopt it. They end one after
the other, so a second verdict would name a survivor.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Protocol

from glassgpt.errors import error_type_and_message

_HEARTBEAT_S = 0.5
_CHECK_INTERVAL_S = 10.0  # between checks of the other ranks while this one does not wait
_WAIT_BEFORE_CHECK_S = 1.0  # a rank that waits longer than this checks the others at every heartbeat
_MAX_FULL_RATE_RANKS = 32  # more ranks send and check less often, to spare the store
_EXIT_GRACE_S = 6.0  # for the main thread to end by itself once a rank is known to be lost
_DEADLOCK_EXTRA_S = 15.0  # beyond the timeout, before a wait of all ranks counts as a deadlock
RANK_LOST_EXIT_CODE = 1
NO_RANK = -1  # the verdict names no rank: all wait for each other
_VERDICT_KEY = "verdict"


class KeyValueStore(Protocol):
    """The methods of torch's TCPStore that the watchdog uses."""

    def set(self, key: str, value: str) -> None: ...
    def check(self, keys: list[str]) -> bool: ...
    def get(self, key: str) -> bytes: ...
    def compare_set(self, key: str, expected: str, value: str) -> bytes: ...


@dataclass(frozen=True)
class Heartbeat:
    """What a rank reports about itself."""

    number: int
    phase: str
    iter: int
    is_waiting: bool  # for other ranks
    machine: str
    pid: int
    exit_error: str | None = None  # it ended with this error; empty: without one; None: it still runs
    pid_namespace: str = ""

    @classmethod
    def read(cls, text: bytes) -> Heartbeat:
        return cls(**json.loads(text))

    @property
    def description(self) -> str:
        return (
            f"pid {self.pid} on {self.machine}, last heard of in phase `{self.phase}` after "
            f"{self.iter:,} updates"
        )


@dataclass
class LastHeartbeat:
    """The last heartbeat of another rank, and when it was first seen."""

    heartbeat: Heartbeat
    since: float


def find_lost_rank(
    others: dict[int, LastHeartbeat],
    own: Heartbeat,
    waiting_s: float,
    now: float,
    timeout_s: float,
    is_alive: IsAlive,
) -> tuple[int, str] | None:
    """Which rank is lost, and the message about it; None if no rank is known to be."""
    last_heartbeats = sorted(others.items())
    for rank, last in last_heartbeats:
        if last.heartbeat.exit_error:
            return rank, f"rank {rank} has ended: {last.heartbeat.exit_error} ({last.heartbeat.description})"
    for rank, last in last_heartbeats:
        beat = last.heartbeat
        pid_is_local = (beat.machine, beat.pid_namespace) == (own.machine, own.pid_namespace)
        if beat.exit_error is None and pid_is_local and not is_alive(beat.pid):
            return rank, f"rank {rank} has died ({beat.description})"
    if waiting_s < timeout_s:
        return None
    waited = f"the others have waited {waiting_s:.0f} s for it"
    if own.phase != "startup":  # the timeout of the start-up is not --rank_timeout
        waited += f" (--rank_timeout={timeout_s:g})"
    for rank, last in last_heartbeats:
        if last.heartbeat.exit_error is None and now - last.since >= timeout_s:
            return rank, f"rank {rank} sends no heartbeat any more ({last.heartbeat.description}); {waited}"
    for rank, last in last_heartbeats:
        if not last.heartbeat.is_waiting:
            return rank, f"rank {rank} is stuck ({last.heartbeat.description}); {waited}"
    if waiting_s < timeout_s + _DEADLOCK_EXTRA_S:
        return None
    return NO_RANK, (
        f"the ranks have waited {waiting_s:.0f} s for each other, in phase `{own.phase}` after {own.iter:,} "
        "updates: what they send does not arrive; check the network between them"
    )


IsAlive = Callable[[int], bool]


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # no /proc, or the process ended just now: the next check decides
        return True


def pid_namespace() -> str:
    """Identifies the pid namespace: containers on one machine may share its name, but not their pids."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no /proc: the machine's name must do
        return ""


class RankWatchdog:
    """A thread that sends this rank's heartbeat and checks those of the others."""

    def __init__(self, store: KeyValueStore, rank: int, world_size: int, timeout_s: float) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self.timeout_s = timeout_s
        self._get_position: Callable[[], tuple[str, int]] = lambda: ("startup", 0)
        self._record_loss: Callable[[str], None] = lambda message: None
        self._waiting_since: float | None = None
        self._number = 0  # of the last heartbeat
        self._others: dict[int, LastHeartbeat] = {}
        self._exit_error: str | None = None
        self._pid_namespace = pid_namespace()
        self.lost_message: str | None = None
        self._loss_found = threading.Event()
        self._closed = threading.Event()
        self._is_reported = self._is_reporter = self._is_urgent = self._main_thread_knows = False
        self._checked_at = -math.inf
        self._heartbeat_s = _HEARTBEAT_S * max(1.0, world_size / _MAX_FULL_RATE_RANKS)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def set_callbacks(
        self, get_position: Callable[[], tuple[str, int]], record_loss: Callable[[str], None]
    ) -> None:
        self._get_position, self._record_loss = get_position, record_loss

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around code that waits for other ranks."""
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = None

    def wait_for_loss(self, seconds: float) -> str | None:
        """The message about a lost rank, if one is found in this time."""
        self._is_urgent = True
        self._loss_found.wait(seconds)
        return self.lost_message

    def claim_report(self) -> bool:
        """True once, on the one rank that reports the loss. The caller ends the process."""
        self._main_thread_knows = True
        reports, self._is_reported = self._is_reporter and not self._is_reported, True
        return reports

    def close(self, exit_error: str) -> None:
        """`exit_error`: the error this rank ends with; empty if it has none."""
        self._exit_error = exit_error
        self._closed.set()
        self._thread.join(_HEARTBEAT_S + 5)

    # --- the thread ---

    def _run(self) -> None:
        lost_at = None
        try:
            while not self._closed.wait(self._heartbeat_s if self._number else 0):
                self._send_heartbeat()
                is_check_due = (
                    self._is_urgent
                    or self._waiting_s() > _WAIT_BEFORE_CHECK_S
                    or time.monotonic() - self._checked_at > _CHECK_INTERVAL_S
                )
                if lost_at is None and is_check_due and (verdict := self._check_ranks()):
                    lost_at = time.monotonic()
                    reporter, self.lost_message = verdict
                    self._is_reporter = reporter == self._rank
                    self._loss_found.set()
                # A main thread that waits in a collective for a stuck rank gets no exception.
                if lost_at is not None and (
                    self._waiting_s() >= self.timeout_s or time.monotonic() - lost_at > _EXIT_GRACE_S
                ):
                    self._end_process(self._send_last_heartbeat)
            self._send_last_heartbeat()
        except RuntimeError as error:  # torch's, if the store is gone, and with it the launcher
            if self._closed.is_set():
                return
            self._is_reporter = True
            self.lost_message = (
                f"the launcher is gone: its store does not answer ({error_type_and_message(error)})"
            )
            self._loss_found.set()
            if not self._closed.wait(_EXIT_GRACE_S):
                self._end_process()

    def _waiting_s(self) -> float:
        """How long the main thread has been waiting for other ranks; 0 while it does not wait."""
        since = self._waiting_since
        return 0.0 if since is None else time.monotonic() - since

    def _send_heartbeat(self) -> None:
        self._number += 1
        self._store.set(f"beat/{self._rank}", json.dumps(asdict(self._own_heartbeat())))

    def _own_heartbeat(self) -> Heartbeat:
        phase, done = self._get_position()
        is_waiting = self._waiting_since is not None
        machine, pid = platform.node(), os.getpid()
        return Heartbeat(
            self._number, phase, done, is_waiting, machine, pid, self._exit_error, self._pid_namespace
        )

    def _send_last_heartbeat(self) -> None:
        """The last heartbeat. Rank 0 may host the store, where the others still have to read the verdict."""
        self._exit_error = self._exit_error or ""
        self._send_heartbeat()
        if self.lost_message and self._rank == 0:
            time.sleep(2 * self._heartbeat_s)

    def _check_ranks(self) -> tuple[int, str] | None:
        """The verdict: which rank reports it, and the message."""
        self._checked_at = now = time.monotonic()
        if self._store.check([_VERDICT_KEY]):
            return self._parse_verdict(self._store.get(_VERDICT_KEY))
        for rank in range(self._world_size):
            key = f"beat/{rank}"
            if rank == self._rank or not self._store.check([key]):
                continue
            beat = Heartbeat.read(self._store.get(key))
            last = self._others.get(rank)
            if last is None or beat.number != last.heartbeat.number:
                self._others[rank] = LastHeartbeat(beat, now)
        lost = find_lost_rank(
            self._others, self._own_heartbeat(), self._waiting_s(), now, self.timeout_s, is_alive
        )
        if lost is None:
            return None
        lost_rank, message = lost
        survivors = (
            rank
            for rank, last in self._others.items()
            if rank != lost_rank
            and last.heartbeat.exit_error is None
            and now - last.since < 4 * self._heartbeat_s
        )
        verdict = json.dumps([min([self._rank, *survivors]), message])
        return self._parse_verdict(self._store.compare_set(_VERDICT_KEY, "", verdict))

    @staticmethod
    def _parse_verdict(verdict: bytes) -> tuple[int, str]:
        reporter, message = json.loads(verdict)
        return reporter, message

    def _end_process(self, before_exit: Callable[[], None] = lambda: None) -> None:
        """Ends the process, unless the main thread does so: it waits where no exception reaches it."""
        if self._main_thread_knows:
            return
        try:
            self._record_loss(str(self.lost_message))
            if self.claim_report():
                print(f"error: {self.lost_message}", file=sys.stderr, flush=True)
            before_exit()
        finally:
            os._exit(RANK_LOST_EXIT_CODE)
