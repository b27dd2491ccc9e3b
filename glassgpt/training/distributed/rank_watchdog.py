"""The watch over a team: which process died or hangs, and what it was doing.

Every process says twice a second, in the launcher's store, in which phase it is, after how many updates, and
whether it waits for the others. Whoever waits for long looks who does not. A process that is gone is noticed
at once on its own machine; by its goodbye, if it could still say one; else by its silence.

The first process to find one lost writes the verdict to the store, and all others adopt it. They end one
after the other, so a second verdict would name a survivor.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

from glassgpt.errors import error_type_and_message

_HEARTBEAT_S = 0.5
_CHECK_INTERVAL_S = 10.0  # between looks at the others while nobody is missed
_MISSING_AFTER_S = 1.0  # of waiting, and somebody is
_MAX_FULL_RATE_RANKS = 32  # processes: more of them say and look less often, or the store had much to do
_EXIT_GRACE_S = 6.0  # for the main thread to end by itself once somebody is known to be lost
_DEADLOCK_EXTRA_S = 15.0  # longer than for one that hangs: everybody may wait for a moment
RANK_LOST_EXIT_CODE = 1
NO_RANK = -1  # is lost, but it does not go on
_VERDICT_KEY = "verdict"  # its key in the store


class KeyValueStore(Protocol):
    """Where everybody can put up words: torch's TCPStore."""

    def set(self, key: str, value: str) -> None: ...
    def check(self, keys: list[str]) -> bool: ...
    def get(self, key: str) -> bytes: ...
    def compare_set(self, key: str, expected: str, value: str) -> bytes: ...


@dataclass(frozen=True)
class Heartbeat:
    """What a process says of itself."""

    number: int
    phase: str
    iter: int
    waits: bool  # for the others
    machine: str
    pid: int
    goodbye: str | None = None  # empty: it left in order
    numbering: str = ""  # where its pid means this process

    @classmethod
    def read(cls, text: bytes) -> Heartbeat:
        return cls(**json.loads(text))

    @property
    def description(self) -> str:
        last = f"phase `{self.phase}` after {self.iter:,} updates"
        return f"pid {self.pid} on {self.machine}, last heard of in {last}"


@dataclass
class LastHeartbeat:
    """The last beat of another, and since when it is the same."""

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
    """Which process is lost, and how to say it; None if all is well, as far as can be seen."""
    for rank, seen in sorted(others.items()):
        if seen.heartbeat.goodbye:
            return rank, f"rank {rank} has ended: {seen.heartbeat.goodbye} ({seen.heartbeat.description})"
    for rank, seen in sorted(others.items()):
        beat = seen.heartbeat
        is_here = (beat.machine, beat.numbering) == (own.machine, own.numbering)
        if beat.goodbye is None and is_here and not is_alive(beat.pid):
            return rank, f"rank {rank} has died ({beat.description})"
    if waiting_s < timeout_s:
        return None
    waited = f"the others have waited {waiting_s:.0f} s for it"
    if own.phase != "startup":  # whose patience is not the user's to set
        waited += f" (--rank_timeout={timeout_s:g})"
    for rank, seen in sorted(others.items()):
        if seen.heartbeat.goodbye is None and now - seen.since >= timeout_s:
            return rank, f"rank {rank} says nothing any more ({seen.heartbeat.description}); {waited}"
    for rank, seen in sorted(others.items()):
        if not seen.heartbeat.waits:
            return rank, f"rank {rank} is stuck ({seen.heartbeat.description}); {waited}"
    if waiting_s < timeout_s + _DEADLOCK_EXTRA_S:
        return None
    return NO_RANK, (
        f"the ranks have waited {waiting_s:.0f} s for each other, in phase `{own.phase}` after {own.iter:,} "
        "updates: what they send does not arrive; look at the network between them"
    )


IsAlive = Callable[[int], bool]


def is_alive(pid: int) -> bool:
    """Whether the process is there, and more than a name that nobody has asked about yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # no such file system, or gone this very moment: the next look will tell
        return True


def pid_namespace() -> str:
    """Names the list that our pid is in: containers on one machine have a list each, and maybe one name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no such file system: the machine's name must do
        return ""


class RankWatchdog:
    """A thread that says where this process is and sees where the others are."""

    def __init__(self, board: KeyValueStore, rank: int, size: int, timeout_s: float) -> None:
        self._store, self._rank, self._size = board, rank, size
        self.timeout_s = timeout_s
        self._get_position: Callable[[], tuple[str, int]] = lambda: ("startup", 0)
        self._record_loss: Callable[[str], None] = lambda text: None
        self._waits_since: float | None = None
        self._number = 0  # of the beat said last
        self._others: dict[int, LastHeartbeat] = {}
        self._goodbye: str | None = None
        self._pid_namespace = pid_namespace()
        self.lost_message: str | None = None  # in words
        self._loss_found = threading.Event()
        self._closed = threading.Event()
        self._is_reported = self._is_reporter = self._is_urgent = self._main_thread_knows = False
        self._checked_at = -math.inf
        self._heartbeat_s = _HEARTBEAT_S * max(1.0, size / _MAX_FULL_RATE_RANKS)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def set_callbacks(self, where: Callable[[], tuple[str, int]], record_loss: Callable[[str], None]) -> None:
        self._get_position, self._record_loss = where, record_loss

    def waiting(self) -> RankWatchdog:
        """`with watch.meet():` around whatever waits for the others."""
        return self

    def __enter__(self) -> None:
        self._waits_since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._waits_since = None

    def wait_for_loss(self, seconds: float) -> str | None:
        """Who is lost, if that turns out soon."""
        self._is_urgent = True
        self._loss_found.wait(seconds)
        return self.lost_message

    def close(self, goodbye: str) -> None:
        """`goodbye`: why, or empty if all is in order."""
        self._goodbye = goodbye
        self._closed.set()
        self._thread.join(_HEARTBEAT_S + 5)

    # --- the thread ---

    def _run(self) -> None:
        found_at = None
        try:
            while not self._closed.wait(self._heartbeat_s if self._number else 0):
                self._send_heartbeat()
                if found_at is None and self._is_check_due() and (verdict := self._check_ranks()):
                    found_at = time.monotonic()
                    speaker, self.lost_message = verdict
                    self._is_reporter = speaker == self._rank
                    self._loss_found.set()
                # One that waits for somebody stuck is not told, and would wait on.
                if found_at is not None and (
                    self._waits_in_vain or time.monotonic() - found_at > _EXIT_GRACE_S
                ):
                    self._end_process(self._say_goodbye)
            self._say_goodbye()
        except RuntimeError as error:  # torch's for a store that is gone, and with it whoever holds it
            if self._closed.is_set():
                return
            self._is_reporter = True
            self.lost_message = (
                f"the launcher is gone: its store does not answer ({error_type_and_message(error)})"
            )
            self._loss_found.set()
            if not self._closed.wait(_EXIT_GRACE_S):
                self._end_process()

    def _is_check_due(self) -> bool:
        now, since = time.monotonic(), self._waits_since
        missed = since is not None and now - since > _MISSING_AFTER_S
        return self._is_urgent or missed or now - self._checked_at > _CHECK_INTERVAL_S

    @property
    def _waits_in_vain(self) -> bool:
        since = self._waits_since
        return since is not None and time.monotonic() - since >= self.timeout_s

    def _send_heartbeat(self) -> None:
        self._number += 1
        self._store.set(f"beat/{self._rank}", json.dumps(asdict(self._own_heartbeat())))

    def _own_heartbeat(self) -> Heartbeat:
        phase, done = self._get_position()
        waits = self._waits_since is not None
        machine, pid = platform.node(), os.getpid()
        return Heartbeat(self._number, phase, done, waits, machine, pid, self._goodbye, self._pid_namespace)

    def _say_goodbye(self) -> None:
        self._goodbye = self._goodbye or ""
        self._send_heartbeat()
        if (
            self.lost_message and self._rank == 0
        ):  # it may hold the store, where the others still read the verdict
            time.sleep(2 * self._heartbeat_s)

    def _check_ranks(self) -> tuple[int, str] | None:
        """The verdict: which rank reports it, and the text."""
        self._checked_at = now = time.monotonic()
        if self._store.check([_VERDICT_KEY]):
            return self._parse_verdict(self._store.get(_VERDICT_KEY))
        for rank in range(self._size):
            key = f"beat/{rank}"
            if rank == self._rank or not self._store.check([key]):
                continue
            beat = Heartbeat.read(self._store.get(key))
            seen = self._others.get(rank)
            if seen is None or beat.number != seen.heartbeat.number:
                self._others[rank] = LastHeartbeat(beat, now)
        since = self._waits_since
        waiting_s = 0.0 if since is None else now - since
        found = find_lost_rank(self._others, self._own_heartbeat(), waiting_s, now, self.timeout_s, is_alive)
        if found is None:
            return None
        lost, text = found
        heard = (
            rank
            for rank, seen in self._others.items()
            if rank != lost and seen.heartbeat.goodbye is None and now - seen.since < 4 * self._heartbeat_s
        )
        verdict = json.dumps([min([self._rank, *heard]), text])
        return self._parse_verdict(self._store.compare_set(_VERDICT_KEY, "", verdict))

    @staticmethod
    def _parse_verdict(verdict: bytes) -> tuple[int, str]:
        speaker, text = json.loads(verdict)
        return speaker, text

    def claim_report(self) -> bool:
        """True once, on the one process that shall say it. Whoever asks ends the process."""
        self._main_thread_knows = True
        speaks, self._is_reported = self._is_reporter and not self._is_reported, True
        return speaks

    def _end_process(self, say_goodbye: Callable[[], None] = lambda: None) -> None:
        """Unless it ends already: the main thread waits in a place that no exception reaches."""
        if self._main_thread_knows:
            return
        try:
            self._record_loss(str(self.lost_message))
            if self.claim_report():
                print(f"error: {self.lost_message}", file=sys.stderr, flush=True)
            say_goodbye()
        finally:
            os._exit(RANK_LOST_EXIT_CODE)
