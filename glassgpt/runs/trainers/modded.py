"""modded-nanogpt.

    step:124/1645 train_time:11439ms step_avg:92.25ms
    step:125/1645 val_loss:4.9213 train_time:11531ms step_avg:92.25ms

The time is the sum so far, its clock stopped while evaluating; so an iteration's time is a difference. Older
ones start the sum again after ten steps. A log begins with the whole source code, whose patterns hold no
numbers.
"""

from __future__ import annotations

import math
import re

from glassgpt.i18n import say
from glassgpt.runs.builder import MAX_ITERATION, RunBuilder
from glassgpt.runs.facts import Facts
from glassgpt.runs.glossary import GlossaryEntry, LastLine, last_evaluation
from glassgpt.runs.numbers import NUMBER, parse_number
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import Trainer

_LINE = re.compile(
    rf"\bstep:(\d+)/(\d+)\s+(?:(train|val)_loss:{NUMBER}\s+)?(?:[a-z_]+:\S+\s+){{0,8}}?train_time:{NUMBER}(ms|s)\b"
)
_BARRED = re.compile(
    rf"\bstep\s+(\d+)/(\d+) \| time: {NUMBER}ms \| step avg:[^|]{{0,40}}(?:\| val loss: {NUMBER})?"
)
_END = re.compile(r"^peak memory (?:allocated|consumption)")


class ModdedReader:
    """Remembers the last sum."""

    def __init__(self) -> None:
        self._iteration: int | None = None
        self._total_ms = 0.0

    def __call__(self, line: str, into: RunBuilder) -> bool:
        if "step" in line and (told := _LINE.search(line)):
            iteration, planned, kind, loss, total, unit = told.groups()
            total_ms = parse_number(total) * (1000 if unit == "s" else 1)
            self._take(int(iteration), int(planned), kind, loss, total_ms, into)
            return True
        if "step avg" in line and (told := _BARRED.search(line)):
            iteration, planned, total, loss = told.groups()
            self._take(int(iteration), int(planned), "val" if loss else None, loss, parse_number(total), into)
            return True
        if _END.match(line):
            into.add_event("finish", line)
        return False

    def _take(
        self, iteration: int, planned: int, kind: str | None, loss: str | None, total: float, into: RunBuilder
    ) -> None:
        if max(iteration, planned) > MAX_ITERATION:
            return
        into.setup.values["planned_iterations"] = planned
        if kind == "val":
            if iteration == 0 or self._iteration is None:
                self._iteration, self._total_ms = iteration, total
            into.add_eval(iteration, parse_number(loss) if loss else None)
            return
        if self._iteration is not None and iteration <= self._iteration:
            self._iteration = None  # another run
        ms = self._since_last(iteration, total)
        self._iteration, self._total_ms = iteration, total
        into.add_step(iteration, parse_number(loss) if loss else None, ms=ms)

    def _since_last(self, iteration: int, total: float) -> float:
        """A mean over the iterations since the last line."""
        if self._iteration is None:
            return total if iteration == 1 else math.nan  # a piece of a log
        updates, spent = iteration - self._iteration, total - self._total_ms
        if spent < 0:  # the sum began again
            return total if updates == 1 else math.nan
        return spent / updates


def _glossary(last: LastLine, history: RunLog, facts: Facts) -> list[GlossaryEntry]:
    return [
        GlossaryEntry(last.shown("iteration", "step:{}"), say("Updates done so far.")),
        GlossaryEntry(
            last_evaluation(history, "val_loss:{val}"),
            say("The loss on the fixed validation tokens. The clock stands still meanwhile."),
        ),
        GlossaryEntry(
            "train_time:…ms",
            say("The sum of all update times so far; the difference of two lines is one update."),
        ),
        GlossaryEntry(
            "step_avg:…ms",
            say("That sum divided by the updates: a mean over the whole run, not this step's time."),
        ),
    ]


TRAINER = Trainer(
    "modded-nanogpt",
    "modded-nanogpt",
    reader=ModdedReader,
    glossary=_glossary,
    first_iteration=1,
    step_work_grows=True,
    trains_on_plain_text=True,
)
