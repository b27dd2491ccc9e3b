"""A trainer that we do not know, whose lines say an iteration and a loss.

    Step 100/5000, Loss: 2.3456, LR: 3e-4, Time: 0.21s
    epoch 1 iteration 200 train_loss=3.21

Only what is plainly there is taken: no time without its unit, nothing about when evaluations were made.
"""

from __future__ import annotations

import math
import re

from glassgpt.insight.history import Format
from glassgpt.insight.logs.numbers import NUMBER, number
from glassgpt.insight.logs.recording import Recording

FORMAT = Format("unknown", "unknown trainer", times_hold_eval=False, first_iteration=1)

_STEP = re.compile(
    rf"\b(?:iter|iteration|step|global_step|update)s?\b[\s:=#]{{0,12}}(\d+)\b(?:\s*/\s*(\d+))?(?=[\s,:;|\])%(-])"
    rf".{{0,120}}?(?<!val )(?<!val_)(?<!validation )(?<!eval_)(?<!test )"
    rf"\b(?:(?:train|training)[ _])?loss\b[\s:=]{{0,8}}{NUMBER}",
    re.IGNORECASE,
)
_VAL = re.compile(
    rf"\b(?:iter|iteration|step|global_step|update)\b[\s:=#]{{0,12}}(\d+)\b.{{0,120}}?"
    rf"\b(?:val|valid|validation|eval|test)[ _]loss\b[\s:=]{{0,8}}{NUMBER}",
    re.IGNORECASE,
)
_TIME = re.compile(
    rf"\b(?:time|dt|iter_dt|step_time|elapsed|took)\b\W{{0,4}}{NUMBER}\s*(ms|s)\b", re.IGNORECASE
)
_BARE_TIME = re.compile(rf"(?<![\w.]){NUMBER}\s*ms\b")
_LR = re.compile(rf"\b(?:lr|learning[ _]rate)\b\W{{0,4}}{NUMBER}", re.IGNORECASE)
_NORM = re.compile(rf"\b(?:grad[ _]?)?norm\b\W{{0,4}}{NUMBER}", re.IGNORECASE)


def read(line: str, into: Recording) -> bool:
    if "loss" not in line and "Loss" not in line and "LOSS" not in line:
        return False
    val = _VAL.search(line)
    if step := _STEP.search(line):
        lr, norm = (pattern.search(line) for pattern in (_LR, _NORM))
        if step[2]:
            into.notes.said["planned_iterations"] = int(step[2])
        into.step(
            int(step[1]),
            number(step[3]),
            ms=_milliseconds(line),
            lr=number(lr[1]) if lr else math.nan,
            grad_norm=number(norm[1]) if norm else math.nan,
        )
    if val:
        into.evaluated(int(val[1]), number(val[2]))
    return bool(step or val)


def _milliseconds(line: str) -> float:
    """Of a field that says so by its name, or by its unit alone."""
    if time := _TIME.search(line):
        return number(time[1]) * (1000 if time[2].lower() == "s" else 1)
    bare = _BARE_TIME.search(line)
    return number(bare[1]) if bare else math.nan
