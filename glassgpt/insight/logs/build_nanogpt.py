"""build-nanogpt (the video's repository) and its log.txt.

    validation loss: 10.9462
    step     0 | loss: 10.952601 | lr 8.3916e-07 | norm: 14.8389 | dt: 40877.42ms | tok/sec: 801.62

An evaluation has no number: it is made at the top of the step whose line comes next, inside its time. log.txt
says `0 val 10.9462`, `0 train 10.952601`, `0 hella 0.2463`.
"""

from __future__ import annotations

import math
import re

from glassgpt.insight.history import Format
from glassgpt.insight.logs.numbers import NUMBER, number
from glassgpt.insight.logs.recording import Recording

FORMAT = Format("build-nanogpt", "build-nanogpt", times_hold_eval=True)

_STEP = re.compile(rf"\bstep:?\s+(\d+)\s*[|,]\s*loss:\s*{NUMBER}(?![\d.])(.{{0,400}})", re.IGNORECASE)
_TIME = re.compile(rf"\b(?:dt|time):\s*{NUMBER}\s*(ms|s)\b")
_LR = re.compile(rf"\blr:?\s*{NUMBER}(?=\s|,|$)")
_NORM = re.compile(rf"\bnorm:\s*{NUMBER}")
_SPEED = re.compile(rf"\btok(?:ens)?/sec:\s*{NUMBER}")
_VAL = re.compile(rf"^\W*(?:validation|val) loss:\s*{NUMBER}\s*\W*$")
_FILE = re.compile(rf"^\s*(\d+) (train|val|hella) {NUMBER}\s*$")
_SAVE = re.compile(r"\b(?:saving|writing|saved) (?:model )?checkpoint", re.IGNORECASE)


def read(line: str, into: Recording) -> bool:
    if "oss:" in line and (told := _STEP.search(line)):
        return _read_step(told, into)
    if "loss:" in line and (told := _VAL.search(line)):
        into.evaluated_before_next(number(told[1]))
        return False  # too plain to tell one trainer from another
    if line[:1].isdigit() and (told := _FILE.match(line)):
        return _read_file(told, into)
    if "heckpoint" in line and _SAVE.search(line):
        into.saved()
    return False


def _read_step(told: re.Match[str], into: Recording) -> bool:
    rest = told[3]
    time, lr, norm, speed = (pattern.search(rest) for pattern in (_TIME, _LR, _NORM, _SPEED))
    if not time and "ms" in into.last_had:
        return False  # torn
    into.step(
        int(told[1]),
        number(told[2]),
        ms=math.nan if not time else number(time[1]) * (1000 if time[2] == "s" else 1),
        lr=number(lr[1]) if lr else math.nan,
        grad_norm=number(norm[1]) if norm else math.nan,
        tokens_per_s=number(speed[1]) if speed else math.nan,
    )
    return True


def _read_file(told: re.Match[str], into: Recording) -> bool:
    iteration, kind, value = int(told[1]), told[2], number(told[3])
    if kind == "train":
        into.step(iteration, value)
    elif kind == "val":
        into.evaluated(iteration, value)
    return True
