"""The ledger: every second of a process's wall time, in exactly one phase.

    with ledger.phase("eval"):
        ...

Phases may nest; a second belongs to the innermost one only, so they sum to wall time by construction. What no
phase claimed is `other`: the remainder, shown and never hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

PHASES = ("startup", "compile", "data", "train", "eval", "checkpoint", "log", "other")


class Ledger:
    """Seconds of the main thread by phase."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, age_s: float = 0.0) -> None:
        """`age_s`: how long the process had lived when this was made; that was start-up (imports)."""
        self._clock = clock
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._seconds["startup"] = age_s
        self._stack = ["other"]
        self._since = clock()

    def phase(self, name: str) -> _Phase:
        return _Phase(self, name)

    @property
    def current(self) -> str:
        """The phase it is in."""
        return self._stack[-1]

    def reassign(self, source: str, target: str, seconds: float) -> None:
        """Reassigns time whose true phase is known only afterwards; the sum stays what it was."""
        seconds = max(0.0, min(seconds, self._seconds[source]))
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def seconds(self) -> dict[str, float]:
        """Seconds per phase up to now; their sum is the wall time up to now."""
        self._charge()
        return dict(self._seconds)

    def _charge(self) -> None:
        now = self._clock()
        self._seconds[self._stack[-1]] += now - self._since
        self._since = now

    def _enter(self, name: str) -> None:
        self._charge()
        self._stack.append(name)

    def _leave(self) -> None:
        self._charge()
        self._stack.pop()


class _Phase:
    """A plain object instead of @contextmanager: it costs a third, and it runs several times per update."""

    __slots__ = ("_ledger", "_name", "seconds")

    def __init__(self, ledger: Ledger, name: str) -> None:
        if name not in PHASES:
            raise ValueError(f"{name} is no phase of the ledger")
        self._ledger, self._name = ledger, name
        self.seconds = 0.0  # how long the phase took, nested ones included; valid after it ended

    def __enter__(self) -> _Phase:
        self._ledger._enter(self._name)
        self.seconds = -self._ledger._since
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger._leave()
        self.seconds += self._ledger._since


def phase_seconds_between(earlier: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """Seconds per phase between two readings of a ledger."""
    return {name: now[name] - earlier[name] for name in now}
