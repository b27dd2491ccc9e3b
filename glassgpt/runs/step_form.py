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
from operator import itemgetter
from typing import NamedTuple

from glassgpt.runs.prefixes import PLAIN_TIME
from glassgpt.runs.step_clock import stamp_seconds

Columns = Mapping[str, Sequence[str]]

_ANY = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_FIXED = "fixed"
_STAMP = f"(?P<stamp>{PLAIN_TIME})"
_NUMBER_OR_BLANKS = re.compile(rf"(?<![\w.])({_ANY})(?!\w*\d)|([ \t]+)")


@lru_cache
def _block_pattern(plain_step: str) -> re.Pattern[str]:
    """Matches every line: the groups of `plain_step`, or else the line as the last group."""
    time = "" if plain_step.startswith(_STAMP) else f"(?:{PLAIN_TIME})?"
    return re.compile(rf"^(?:{time}{plain_step}|(.*))$", re.MULTILINE | re.ASCII)


class StepLines(NamedTuple):
    """Lines of a form, after one another."""

    fixed: tuple[str, ...]  # the parts that are the same in all of them, as StepForm's
    columns: Columns

    @property
    def line_count(self) -> int:
        return len(self.columns["iteration"])


class StepForm(NamedTuple):
    # Groups, all numbers: add_step's parameters, the iteration first; `s`, `it_per_s` or `elapsed_s` instead
    # of `ms`; planned_count, of the whole run's; val_loss; stamp, the time before the line.
    pattern: str
    offset: int = 0  # added to the iteration as printed
    fixed: tuple[str, ...] = ()  # what its groups fixed0, fixed1, … have to be: an epoch, say

    @classmethod
    def learn(
        cls,
        line: str,
        spans: Mapping[str, tuple[int, int]],
        fixed: Sequence[tuple[int, int]],
        offset: int = 0,
        is_stamped: bool = False,
    ) -> StepForm:
        """`spans`: where in the line each value is. `fixed`: parts that have to stay the same. They are
        compared apart from the pattern, so that lines of all epochs have one: compiling it is slow.
        `is_stamped`: the step times come from the times before the lines."""
        pieces = [(span, name) for name, span in spans.items()] + [(span, "") for span in fixed]
        pattern, at, fixed_texts = [_STAMP * is_stamped + r"[ \t]*"], 0, list[str]()
        for (begin, end), name in sorted(pieces):
            if begin < at:
                continue  # the epoch of two patterns
            pattern.append(_generalised(line[at:begin]))
            value = r"\d{1,15}" if name == "iteration" else _ANY if name else _generalised(line[begin:end])
            pattern.append(f"(?P<{name or f'{_FIXED}{len(fixed_texts)}'}>{value})")
            fixed_texts += [] if name else [line[begin:end]]
            at = end
        return cls("".join((*pattern, _generalised(line[at:]), r"[ \t]*")), offset, tuple(fixed_texts))

    def split(self, lines: Sequence[str]) -> Iterator[StepLines | str]:
        """Steps that follow one another, with the same fixed parts; any other line as it is."""
        pattern = _block_pattern(self.pattern)
        rows, names = pattern.findall("\n".join(lines)), list(pattern.groupindex)
        fixed_at = [at for at, name in enumerate(names) if name.startswith(_FIXED)]
        begin, first_groups = 0, map(itemgetter(0), rows)  # empty in a line of another form, as all are
        keys: Iterator[object] = map(itemgetter(*fixed_at), rows) if fixed_at else map(bool, first_groups)
        for _, group in itertools.groupby(keys):
            end = begin + len(list(group))
            if rows[begin][0]:
                columns = zip(names, zip(*rows[begin:end], strict=True), strict=False)
                values = {name: texts for name, texts in columns if not name.startswith(_FIXED)}
                yield StepLines(tuple(rows[begin][at] for at in fixed_at), values)
            else:
                yield from lines[begin:end]
            begin = end

    def numbers(self, name: str, texts: Sequence[str]) -> tuple[str, list[float]]:
        """A column's name and values, as `add_step` has them."""
        if name == "iteration":
            return name, [int(text) + self.offset for text in texts] if self.offset else list(map(int, texts))
        if name == "stamp":
            return "elapsed_s", [math.nan if (s := stamp_seconds(text)) is None else s for text in texts]
        values = list(map(float, texts))
        if name == "s":
            return "ms", [value * 1000 for value in values]
        if name == "it_per_s":
            return "ms", [1000 / value if value > 0 else math.nan for value in values]
        return name, values


@lru_cache
def declared_form(plain_step: str) -> StepForm:
    """Of a trainer's `plain_step`."""
    return StepForm(plain_step)


def _generalised(text: str) -> str:
    """A pattern for this text with any numbers in it, and any number of blanks."""
    pattern, at = [], 0
    for match in _NUMBER_OR_BLANKS.finditer(text):
        pattern += [re.escape(text[at : match.start()]), _ANY if match[1] else r"[ \t]+"]
        at = match.end()
    return "".join((*pattern, re.escape(text[at:])))
