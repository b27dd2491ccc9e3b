"""A trainer that we do not know, whose lines say an iteration and a loss.

    Step 100/5000, Loss: 2.3456, LR: 3e-4, Time: 0.21s
    epoch 1 iteration 200 train_loss=3.21
    {"step": 200, "loss": 3.21}
    Training:  20%|##        | 200/1000 [00:10<00:40, 19.8it/s, loss=3.21]

Only what is plainly there is taken: no time without its unit, nothing about when evaluations were made.
"""

from __future__ import annotations

import math
import re

from glassgpt.runs.builder import MAX_ITERATION, RunBuilder
from glassgpt.runs.numbers import NUMBER, parse_number
from glassgpt.runs.trainer import Trainer

_AT = r"\b(?:iter|iteration|step|global_step|update)"
_STEP = re.compile(
    rf"{_AT}s?\b[\s:=#\"']{{0,12}}(\d+)\b(?:\s*/\s*(\d+))?(?=[\s,:;|\])%(-])"
    rf".{{0,400}}?(?<!val )(?<!val_)(?<!validation )(?<!eval_)(?<!test )"
    rf"\b(?:(?:train|training)[ _])?loss\b[\s:=\"']{{0,8}}{NUMBER}",
    re.IGNORECASE,
)
_BAR = re.compile(
    rf"%\|[^|]{{0,300}}\|\s*(\d+)/(\d+) \[[\d:]{{1,12}}<[^\]]{{0,200}}?"
    rf"\b(?:(?:train|training)_)?loss=\s*{NUMBER}"
)
_VAL = re.compile(
    rf"{_AT}\b[\s:=#\"']{{0,12}}(\d+)\b.{{0,400}}?"
    rf"\b(?:val|valid|validation|eval|test)[ _]loss\b[\s:=\"']{{0,8}}{NUMBER}",
    re.IGNORECASE,
)
_VAL_IN_BAR = re.compile(rf"\bval(?:id|idation)?_loss=\s*{NUMBER}")
# Megatron's, which says the iteration last, and may go on with the test set.
_VAL_AT = re.compile(
    rf"\bvalidation loss at iteration (\d+)(?: on validation set)? \| lm loss value: {NUMBER}"
)
_SAVED = re.compile(r"\bsuccessfully saved checkpoint (?:from|at) iteration\s+(\d+)\b")
_EPOCH = re.compile(r"\bepochs?\b[\s:=#\"'\[]{0,4}(\d+)(?![\d.])(?:\s*/\s*(\d+))?", re.IGNORECASE)
_TIME = re.compile(
    rf"\b(?:time|dt|iter_dt|step_time|elapsed|took)\b\W{{0,4}}{NUMBER}\s*(ms|s)\b", re.IGNORECASE
)
# Megatron's, and names that end in their unit, as fields of JSON do.
_TIME_IN_MS = re.compile(
    rf"\b(?:time per iteration \(ms\)|(?:time|dt|(?:step|iter|iteration)_(?:time|dt))_ms)\W{{1,4}}{NUMBER}"
)
_BARE_TIME = re.compile(rf"(?<![\w.]){NUMBER}\s*ms\b")
_LR = re.compile(rf"\b(?:lr|learning[ _]rate)\b\W{{0,4}}{NUMBER}", re.IGNORECASE)
_NORM = re.compile(rf"\b(?:grad[ _]?)?norm\b\W{{0,4}}{NUMBER}", re.IGNORECASE)
_BATCH = re.compile(r"\bglobal[ _]batch[ _]size\b\W{1,8}(\d{1,9})\b", re.IGNORECASE)
_SPEED = re.compile(rf"\btok(?:ens)?(?:/|_per_)s(?:ec(?:ond)?)?\b\W{{0,4}}{NUMBER}", re.IGNORECASE)
_END = re.compile(
    r"^\W*training (?:is )?(?:completed?|finished|done)\b"
    r"|^\W*Trainer\.fit\W{1,3}stopped: \W?max_(?:epochs|steps|time)\b",  # Lightning's
    re.IGNORECASE,
)


class GenericReader:
    """Remembers the epoch: where lines count its iterations only, those of the epochs before are added."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._epochs: int | None = None  # to be
        self._before = 0  # iterations of the epochs that are over
        self._last = 0  # as the latest line counts

    def __call__(self, line: str, into: RunBuilder) -> bool:
        if "loss" not in line and "Loss" not in line and "LOSS" not in line:
            if _END.match(line):
                into.add_event("finish", line)
            elif "saved" in line and (saved := _SAVED.search(line)):
                into.add_save(int(saved[1][: len(str(MAX_ITERATION)) + 1]))
            return False
        step = _STEP.search(line) or _BAR.search(line)
        val = _VAL.search(line) or _VAL_AT.search(line)
        if step and max(len(step[1]), len(step[2] or "")) <= len(str(MAX_ITERATION)):
            self._take(step, line, into)
        if val:
            into.add_eval(self._before + int(val[1]), parse_number(val[2]))
        elif step and "%|" in line and (told := _VAL_IN_BAR.search(line)):
            self._take_shown(parse_number(told[1]), into)
        return bool(step or val)

    def _take(self, step: re.Match[str], line: str, into: RunBuilder) -> None:
        said, total = int(step[1]), int(step[2]) if step[2] else None
        self._follow_epoch(said, line, into)
        self._last = said
        lr, norm, speed = (pattern.search(line) for pattern in (_LR, _NORM, _SPEED))
        into.add_step(
            self._before + said,
            parse_number(step[3]),
            ms=_milliseconds(line),
            lr=parse_number(lr[1]) if lr else math.nan,
            grad_norm=parse_number(norm[1]) if norm else math.nan,
            tokens_per_s=parse_number(speed[1]) if speed else math.nan,
        )
        if "lobal" in line and (batch := _BATCH.search(line)):
            into.add_batch_size(self._before + said, int(batch[1]))
        if total:  # after the step: what the first line says would count for more than what comes out later
            into.setup.values["planned_iterations"] = self._planned(total)

    def _take_shown(self, val_loss: float, into: RunBuilder) -> None:
        """A bar shows the latest validation loss until there is another."""
        if val_loss != into.last_val_loss and into.last_iteration is not None:
            into.add_eval(into.last_iteration, val_loss)

    def _planned(self, total: int) -> int | None:
        """A total may be that of an epoch. Which, shows when the second one begins."""
        if self._epochs in (None, 1):
            return None if self._before else total
        return self._epochs * total if self._before and self._epochs else None

    def _follow_epoch(self, said: int, line: str, into: RunBuilder) -> None:
        """The next epoch's count goes back to its beginning; a count that goes on is of the whole run."""
        told = _EPOCH.search(line)
        if told is None:
            return
        epoch = int(told[1][:9])
        self._epochs = int(told[2][:9]) if told[2] else None
        if self._epoch is None or epoch < self._epoch or into.last_iteration is None:
            self._before = 0
        elif epoch == self._epoch + 1 and said <= self._last:
            # Equal where of each epoch only the last line is left; one that counts from 0 has one more.
            self._before += self._last + (said == 0)
        self._epoch = epoch


def _milliseconds(line: str) -> float:
    """Of a field that says so by its name, or by its unit alone."""
    if time := _TIME.search(line):
        return parse_number(time[1]) * (1000 if time[2].lower() == "s" else 1)
    bare = _TIME_IN_MS.search(line) or _BARE_TIME.search(line)
    return parse_number(bare[1]) if bare else math.nan


TRAINER = Trainer("unknown", "unknown trainer", reader=GenericReader, reads_any_log=True)
