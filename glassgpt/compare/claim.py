"""One sentence of the verdict, and the numbers it rests on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    id: str
    labels: tuple[str, ...]  # the labels of those it is about
    sentence: str
    details: tuple[str, ...] = ()  # each a sentence of its own

    def as_dict(self) -> dict[str, object]:
        return {
            "id": self.id,
            "runs": list(self.labels),
            "claim": self.sentence,
            "details": list(self.details),
        }
