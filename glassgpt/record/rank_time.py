"""How processes shared their updates: who worked, who exchanged, and who waited."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sharing:
    """Seconds of each rank at its own work, and exchanging results.

    Exchanging includes waiting for whoever is late. The last to come waits for nobody: what it spends is what
    exchanging takes by itself.
    """

    work_s: tuple[float, ...]
    exchange_s: tuple[float, ...]

    @property
    def slowest(self) -> int:
        """The rank that the others wait for."""
        return max(range(len(self.work_s)), key=lambda rank: self.work_s[rank])

    @property
    def _total(self) -> float:
        return max(1e-12, max(w + e for w, e in zip(self.work_s, self.exchange_s, strict=True)))

    @property
    def exchanging(self) -> float:
        """Share of the time that exchanging takes."""
        return min(self.exchange_s) / self._total

    @property
    def waiting(self) -> float:
        """Share of the time that processes wait for the slowest, on average."""
        return (sum(self.exchange_s) / len(self.exchange_s) - min(self.exchange_s)) / self._total

    @property
    def efficiency(self) -> float:
        """Share of the time that processes are at their own work, as they would be if nobody had to agree."""
        return sum(self.work_s) / len(self.work_s) / self._total

    def __add__(self, other: Sharing) -> Sharing:
        return Sharing(
            tuple(a + b for a, b in zip(self.work_s, other.work_s, strict=True)),
            tuple(a + b for a, b in zip(self.exchange_s, other.exchange_s, strict=True)),
        )
