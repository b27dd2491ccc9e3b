"""What the lines between steps count: phases, rounds, layers, where the count of steps begins again in each.

    counter.note_line(12, "--- Data collection phase 2/133 ---")
    counter.next_count(last_step_line=11)      # OuterCount(2, 133, is_of_rounds=True), if it was 1 before

A count is a number that is one higher than in the line of the same shape before the steps began the last
time, while all other numbers of that line are as they were.
"""

from __future__ import annotations

import re
from collections import deque

from glassgpt.runs.run_log import OuterCount

_MAX_RECENT_LINES, _MAX_LINE_CHARS = 64, 200
_DIGITS = re.compile(r"\d+")
_OF = re.compile(r"\s?(?:/|of)\s?")
# Before a number: what it counts. Each run begins anew; a round goes on with the weights of the one before.
_RUN_COUNT = re.compile(
    r"\b(?:run|seed|trial|fold|experiment|config|job|attempt|branch|model|variant)s?\W{0,4}$", re.IGNORECASE
)
_ROUND_COUNT = re.compile(
    r"\b(?:epoch|phase|round|cycle|pass|iteration|iter|step|loop|generation)\W{0,4}$", re.IGNORECASE
)


class OuterCounter:
    """Remembers the latest lines that are no steps, and the numbers of those before the current steps."""

    def __init__(self) -> None:
        self._recent_lines: deque[tuple[int, str]] = deque(maxlen=_MAX_RECENT_LINES)
        self._numbers_by_shape: dict[str, list[int]] = {}

    def note_line(self, line: int, text: str) -> None:
        if len(text) <= _MAX_LINE_CHARS:
            self._recent_lines.append((line, text))

    def next_count(self, last_step_line: int) -> OuterCount | None:
        """Steps begin again: the count in the lines since the last step that has risen by one. A count of
        runs, seeds or trials is none: each of these trains another model."""
        before, lines = (
            self._numbers_by_shape,
            [text for at, text in self._recent_lines if at > last_step_line],
        )
        self._numbers_by_shape = {
            _DIGITS.sub("0", text): [int(digits) for digits in _DIGITS.findall(text)] for text in lines
        }
        for shape, numbers in self._numbers_by_shape.items():
            changes = [new - old for new, old in zip(numbers, before.get(shape, ()), strict=False)]
            if sum(map(bool, changes)) != 1 or max(changes) != 1:
                continue
            at, around = changes.index(1), shape.split("0")
            if not _RUN_COUNT.search(around[at]):
                has_total = at + 1 < len(numbers) and _OF.fullmatch(around[at + 1])
                total = numbers[at + 1] if has_total else None
                return OuterCount(numbers[at], total, _ROUND_COUNT.search(around[at]) is not None)
        return None
