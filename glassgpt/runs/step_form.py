"""The usual form of a log's step lines, by which a block of them is read at once.

    form = StepForm.learn("step 7/90 loss 2.31", {"iteration": (5, 6), "loss": (15, 19)}, fixed=[(7, 9)])
    for item in form.split(lines): ...      # columns of many steps, or a line of another form

A trainer's file declares it (`Trainer.plain_step`). Of a trainer without a file it is learned from a line
that its reader has read: numbers that were read become groups, other numbers may be any, and all other text
has to be the same. Every other line is left to the reader.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from glassgpt.runs.prefixes import PLAIN_TIME

Columns = Mapping[str, Sequence[str]]

_ANY = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_NUMBER_OR_BLANKS = re.compile(rf"(?<![\w.])({_ANY})(?!\w*\d)|([ \t]+)")


@lru_cache
def _block_pattern(plain_step: str) -> re.Pattern[str]:
    """Matches every line: the groups of `plain_step`, or else the line as the last group."""
    return re.compile(rf"^(?:(?:{PLAIN_TIME})?{plain_step}|(.*))$", re.MULTILINE | re.ASCII)


class StepForm(NamedTuple):
    # Groups, all numbers: add_step's parameters, the iteration first; `s`, `it_per_s` or `elapsed_s` instead
    # of `ms`; planned_count, of the whole run's.
    pattern: str
    offset: int = 0  # added to the iteration as printed

    @classmethod
    def learn(
        cls,
        line: str,
        spans: Mapping[str, tuple[int, int]],
        fixed: Sequence[tuple[int, int]],
        offset: int = 0,
    ) -> StepForm:
        """`spans`: where in the line each value is. `fixed`: numbers that have to stay the same."""
        pieces = sorted((span, name) for name, span in spans.items())
        pieces += [(span, "") for span in fixed]
        pattern, at = [r"[ \t]*"], 0
        for (begin, end), name in sorted(pieces):
            if begin < at:
                continue  # the epoch of two patterns
            pattern.append(_generalised(line[at:begin]))
            value = r"\d{1,15}" if name == "iteration" else _ANY
            pattern.append(f"(?P<{name}>{value})" if name else re.escape(line[begin:end]))
            at = end
        return cls("".join((*pattern, _generalised(line[at:]), r"[ \t]*")), offset)

    def split(self, lines: Sequence[str]) -> Iterator[Columns | str]:
        """Steps that follow one another, as columns; any other line as it is."""
        pattern = _block_pattern(self.pattern)
        rows = pattern.findall("\n".join(lines))
        others = [index for index, groups in enumerate(rows) if not groups[0]]
        for previous, other in itertools.pairwise([-1, *others, len(rows)]):
            if steps := rows[previous + 1 : other]:
                yield dict(zip(pattern.groupindex, zip(*steps, strict=True), strict=False))
            yield from lines[other : other + 1]

    def numbers(self, name: str, texts: Sequence[str]) -> tuple[str, list[float]]:
        """A column's name and values, as `add_step` has them."""
        if name == "iteration":
            return name, [int(text) + self.offset for text in texts] if self.offset else list(map(int, texts))
        values = list(map(float, texts))
        if name == "s":
            return "ms", [value * 1000 for value in values]
        if name == "it_per_s":
            return "ms", [1000 / value if value > 0 else math.nan for value in values]
        return name, values


def _generalised(text: str) -> str:
    """A pattern for this text with any numbers in it, and any number of blanks."""
    pattern, at = [], 0
    for match in _NUMBER_OR_BLANKS.finditer(text):
        pattern += [re.escape(text[at : match.start()]), _ANY if match[1] else r"[ \t]+"]
        at = match.end()
    return "".join((*pattern, re.escape(text[at:])))
