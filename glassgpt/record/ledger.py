"""Where time goes: by phase of one process (Ledger), and by rank of a process group (RankTimes).

    with ledger.phase("eval"):
        ...

Phases may nest. A second belongs to the innermost phase only, so the phases sum to the wall time by
construction. Time outside of every phase is `other`, which is shown and never hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

PHASES = ("startup", "compile", "data", "train", "eval", "checkpoint", "log", "other")


class Ledger:
    """Wall time of the main thread, by phase."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, age_s: float = 0.0) -> None:
        """`age_s`: how old the process is already. That was start-up: interpreter and imports."""
        self._clock = clock
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._seconds["startup"] = age_s
        self._stack = [_Phase(self, "other", "")]
        self._since = clock()

    def phase(self, name: str, activity: str = "") -> _Phase:
        """`activity`: what is done there, if the name of the phase does not say it."""
        return _Phase(self, name, activity)

    @property
    def current(self) -> str:
        """The innermost phase."""
        return self._stack[-1].name

    @property
    def activity(self) -> str:
        """What is done now. Other threads may ask."""
        phase = self._stack[-1]
        return phase.activity or phase.name

    def reassign(self, source: str, target: str, seconds: float) -> None:
        """Moves time whose phase is known only afterwards. The sum stays the same."""
        seconds = max(0.0, min(seconds, self._seconds[source]))
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def seconds(self) -> dict[str, float]:
        """Seconds per phase up to now. They sum to the wall time."""
        self._charge()
        return dict(self._seconds)

    def _charge(self) -> None:
        now = self._clock()
        self._seconds[self._stack[-1].name] += now - self._since
        self._since = now


class _Phase:
    """A class instead of @contextmanager, which is slower; a phase is entered several times per update."""

    __slots__ = ("_ledger", "activity", "name", "seconds")

    def __init__(self, ledger: Ledger, name: str, activity: str) -> None:
        if name not in PHASES:
            raise ValueError(f"{name} is not a phase of the ledger")
        self._ledger, self.name, self.activity = ledger, name, activity
        self.seconds = 0.0  # duration of the phase, nested ones included; valid after its end

    def __enter__(self) -> _Phase:
        self._ledger._charge()
        self._ledger._stack.append(self)
        self.seconds = -self._ledger._since
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger._charge()
        self._ledger._stack.pop()
        self.seconds += self._ledger._since


def phase_seconds_between(earlier: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """Seconds per phase between two readings of a ledger."""
    return {name: now[name] - earlier[name] for name in now}


@dataclass(frozen=True)
class RankTimes:
    """Seconds of each rank in compute and in communication.

    Communication is what does not overlap with compute, and includes waiting for slower ranks. The slowest
    rank waits for nobody, so its communication time is that of the all-reduce itself.
    """

    compute_s: tuple[float, ...]
    communication_s: tuple[float, ...]

    @property
    def slowest_rank(self) -> int:
        """The rank that the others wait for."""
        return max(range(len(self.compute_s)), key=lambda rank: self.compute_s[rank])

    @property
    def _longest_rank_s(self) -> float:
        totals = (
            compute + communication
            for compute, communication in zip(self.compute_s, self.communication_s, strict=True)
        )
        return max(1e-12, max(totals))

    @property
    def communication_share(self) -> float:
        """Share of the time in exposed all-reduce, without waiting."""
        return min(self.communication_s) / self._longest_rank_s

    @property
    def waiting_share(self) -> float:
        """Share of the time that a rank waits for the slowest one, on average."""
        mean_s = sum(self.communication_s) / len(self.communication_s)
        return (mean_s - min(self.communication_s)) / self._longest_rank_s

    @property
    def scaling_efficiency(self) -> float:
        """Share of the time that a rank computes, on average."""
        return sum(self.compute_s) / len(self.compute_s) / self._longest_rank_s

    def __add__(self, other: RankTimes) -> RankTimes:
        return RankTimes(
            tuple(a + b for a, b in zip(self.compute_s, other.compute_s, strict=True)),
            tuple(a + b for a, b in zip(self.communication_s, other.communication_s, strict=True)),
        )
