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

from glassgpt.errors import first_line

_TICK_S = 0.5
_LOOK_S = 10.0  # between looks at the others while nobody is missed
_MISSED_S = 1.0  # of waiting, and somebody is
_MANY = 32  # processes: more of them say and look less often, or the store had much to do
_GRACE_S = 6.0  # for the main thread to end by itself once somebody is known to be lost
_ALL_WAIT_S = 15.0  # longer than for one that hangs: everybody may wait for a moment
LOST_EXIT_CODE = 1
NOBODY = -1  # is lost, but it does not go on
_VERDICT = "verdict"  # its key in the store


class Board(Protocol):
    """Where everybody can put up words: torch's TCPStore."""

    def set(self, key: str, value: str) -> None: ...
    def check(self, keys: list[str]) -> bool: ...
    def get(self, key: str) -> bytes: ...
    def compare_set(self, key: str, expected: str, value: str) -> bytes: ...


@dataclass(frozen=True)
class Beat:
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
    def read(cls, text: bytes) -> Beat:
        return cls(**json.loads(text))

    @property
    def where(self) -> str:
        last = f"phase `{self.phase}` after {self.iter:,} updates"
        return f"pid {self.pid} on {self.machine}, last heard of in {last}"


@dataclass
class Seen:
    """The last beat of another, and since when it is the same."""

    beat: Beat
    since: float


def judge(
    others: dict[int, Seen], own: Beat, waiting_s: float, now: float, timeout_s: float, is_alive: Alive
) -> tuple[int, str] | None:
    """Which process is lost, and how to say it; None if all is well, as far as can be seen."""
    for rank, seen in sorted(others.items()):
        if seen.beat.goodbye:
            return rank, f"rank {rank} has ended: {seen.beat.goodbye} ({seen.beat.where})"
    for rank, seen in sorted(others.items()):
        beat = seen.beat
        is_here = (beat.machine, beat.numbering) == (own.machine, own.numbering)
        if beat.goodbye is None and is_here and not is_alive(beat.pid):
            return rank, f"rank {rank} has died ({beat.where})"
    if waiting_s < timeout_s:
        return None
    waited = f"the others have waited {waiting_s:.0f} s for it"
    if own.phase != "startup":  # whose patience is not the user's to set
        waited += f" (--rank_timeout={timeout_s:g})"
    for rank, seen in sorted(others.items()):
        if seen.beat.goodbye is None and now - seen.since >= timeout_s:
            return rank, f"rank {rank} says nothing any more ({seen.beat.where}); {waited}"
    for rank, seen in sorted(others.items()):
        if not seen.beat.waits:
            return rank, f"rank {rank} is stuck ({seen.beat.where}); {waited}"
    if waiting_s < timeout_s + _ALL_WAIT_S:
        return None
    return NOBODY, (
        f"the ranks have waited {waiting_s:.0f} s for each other, in phase `{own.phase}` after {own.iter:,} "
        "updates: what they send does not arrive; look at the network between them"
    )


Alive = Callable[[int], bool]


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


def numbering() -> str:
    """Names the list that our pid is in: containers on one machine have a list each, and maybe one name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no such file system: the machine's name must do
        return ""


class Watch:
    """A thread that says where this process is and sees where the others are."""

    def __init__(self, board: Board, rank: int, size: int, timeout_s: float) -> None:
        self._board, self._rank, self._size = board, rank, size
        self.timeout_s = timeout_s
        self._where: Callable[[], tuple[str, int]] = lambda: ("startup", 0)
        self._record_loss: Callable[[str], None] = lambda text: None
        self._waits_since: float | None = None
        self._number = 0  # of the beat said last
        self._others: dict[int, Seen] = {}
        self._goodbye: str | None = None
        self._numbering = numbering()
        self.lost: str | None = None  # in words
        self._found = threading.Event()
        self._closed = threading.Event()
        self._told = self._speaker = self._is_urgent = self._is_known = False
        self._looked_at = -math.inf
        self._tick_s = _TICK_S * max(1.0, size / _MANY)
        self._thread = threading.Thread(target=self._keep, name="watch", daemon=True)
        self._thread.start()

    def follow(self, where: Callable[[], tuple[str, int]], record_loss: Callable[[str], None]) -> None:
        self._where, self._record_loss = where, record_loss

    def meet(self) -> Watch:
        """`with watch.meet():` around whatever waits for the others."""
        return self

    def __enter__(self) -> None:
        self._waits_since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._waits_since = None

    def wait_for_loss(self, seconds: float) -> str | None:
        """Who is lost, if that turns out soon."""
        self._is_urgent = True
        self._found.wait(seconds)
        return self.lost

    def close(self, goodbye: str) -> None:
        """`goodbye`: why, or empty if all is in order."""
        self._goodbye = goodbye
        self._closed.set()
        self._thread.join(_TICK_S + 5)

    # --- the thread ---

    def _keep(self) -> None:
        found_at = None
        try:
            while not self._closed.wait(self._tick_s if self._number else 0):
                self._say()
                if found_at is None and self._is_time_to_look() and (verdict := self._look()):
                    found_at = time.monotonic()
                    speaker, self.lost = verdict
                    self._speaker = speaker == self._rank
                    self._found.set()
                # One that waits for somebody stuck is not told, and would wait on.
                if found_at is not None and (self._waits_in_vain or time.monotonic() - found_at > _GRACE_S):
                    self._end_process(self._say_goodbye)
            self._say_goodbye()
        except RuntimeError as error:  # torch's for a store that is gone, and with it whoever holds it
            if self._closed.is_set():
                return
            self._speaker = True
            self.lost = f"the launcher is gone: its store does not answer ({first_line(error)})"
            self._found.set()
            if not self._closed.wait(_GRACE_S):
                self._end_process()

    def _is_time_to_look(self) -> bool:
        now, since = time.monotonic(), self._waits_since
        missed = since is not None and now - since > _MISSED_S
        return self._is_urgent or missed or now - self._looked_at > _LOOK_S

    @property
    def _waits_in_vain(self) -> bool:
        since = self._waits_since
        return since is not None and time.monotonic() - since >= self.timeout_s

    def _say(self) -> None:
        self._number += 1
        self._board.set(f"beat/{self._rank}", json.dumps(asdict(self._own())))

    def _own(self) -> Beat:
        phase, done = self._where()
        waits = self._waits_since is not None
        machine, pid = platform.node(), os.getpid()
        return Beat(self._number, phase, done, waits, machine, pid, self._goodbye, self._numbering)

    def _say_goodbye(self) -> None:
        self._goodbye = self._goodbye or ""
        self._say()
        if self.lost and self._rank == 0:  # it may hold the store, where the others still read the verdict
            time.sleep(2 * self._tick_s)

    def _look(self) -> tuple[int, str] | None:
        """The verdict: which rank reports it, and the text."""
        self._looked_at = now = time.monotonic()
        if self._board.check([_VERDICT]):
            return self._agreed(self._board.get(_VERDICT))
        for rank in range(self._size):
            key = f"beat/{rank}"
            if rank == self._rank or not self._board.check([key]):
                continue
            beat = Beat.read(self._board.get(key))
            seen = self._others.get(rank)
            if seen is None or beat.number != seen.beat.number:
                self._others[rank] = Seen(beat, now)
        since = self._waits_since
        waiting_s = 0.0 if since is None else now - since
        found = judge(self._others, self._own(), waiting_s, now, self.timeout_s, is_alive)
        if found is None:
            return None
        lost, text = found
        heard = (
            rank
            for rank, seen in self._others.items()
            if rank != lost and seen.beat.goodbye is None and now - seen.since < 4 * self._tick_s
        )
        verdict = json.dumps([min([self._rank, *heard]), text])
        return self._agreed(self._board.compare_set(_VERDICT, "", verdict))

    @staticmethod
    def _agreed(verdict: bytes) -> tuple[int, str]:
        speaker, text = json.loads(verdict)
        return speaker, text

    def say_lost(self) -> bool:
        """True once, on the one process that shall say it. Whoever asks ends the process."""
        self._is_known = True
        speaks, self._told = self._speaker and not self._told, True
        return speaks

    def _end_process(self, say_goodbye: Callable[[], None] = lambda: None) -> None:
        """Unless it ends already: the main thread waits in a place that no exception reaches."""
        if self._is_known:
            return
        try:
            self._record_loss(str(self.lost))
            if self.say_lost():
                print(f"error: {self.lost}", file=sys.stderr, flush=True)
            say_goodbye()
        finally:
            os._exit(LOST_EXIT_CODE)
