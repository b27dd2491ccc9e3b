"""How processes shared their updates: who worked, who exchanged, and who waited."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankTimes:
    """Seconds of each rank at its own work, and exchanging results.

    Exchanging includes waiting for whoever is late. The last to come waits for nobody: what it spends is what
    exchanging takes by itself.
    """

    compute_s: tuple[float, ...]
    communication_s: tuple[float, ...]

    @property
    def slowest_rank(self) -> int:
        """The rank that the others wait for."""
        return max(range(len(self.compute_s)), key=lambda rank: self.compute_s[rank])

    @property
    def _total(self) -> float:
        return max(1e-12, max(w + e for w, e in zip(self.compute_s, self.communication_s, strict=True)))

    @property
    def communication_share(self) -> float:
        """Share of the time that exchanging takes."""
        return min(self.communication_s) / self._total

    @property
    def waiting_share(self) -> float:
        """Share of the time that processes wait for the slowest, on average."""
        return (
            sum(self.communication_s) / len(self.communication_s) - min(self.communication_s)
        ) / self._total

    @property
    def scaling_efficiency(self) -> float:
        """Share of the time that processes are at their own work, as they would be if nobody had to agree."""
        return sum(self.compute_s) / len(self.compute_s) / self._total

    def __add__(self, other: RankTimes) -> RankTimes:
        return RankTimes(
            tuple(a + b for a, b in zip(self.compute_s, other.compute_s, strict=True)),
            tuple(a + b for a, b in zip(self.communication_s, other.communication_s, strict=True)),
        )
