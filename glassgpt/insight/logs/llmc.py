"""llm.c, in CUDA, in C and its PyTorch reference, and its main.log.

    val loss 4.517179
    step    1/74 | loss 4.36 (+nanz)| norm 15.3 (+nanz)| lr 1.00e-04 | 80.64 ms | 33.8% bf16 MFU | 50819 tok/s
    step 1/74: train loss 4.367631 (80.639749 ms, 50819 tok/s)
    step 0: train loss 5.356082 (took 19942.187000 ms)
    s:0 tel:10.9843

An evaluation has no number. The CUDA trainer makes it after the step whose line came last, outside its time;
the C one before the step whose line comes next.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from glassgpt.insight.history import Format
from glassgpt.insight.logs.numbers import NUMBER, number
from glassgpt.insight.logs.recording import Recording

FORMAT = Format("llm.c", "llm.c", times_hold_eval=False, first_iteration=1)
_IN_C = replace(FORMAT, first_iteration=0)
_IN_PYTHON = replace(FORMAT, times_hold_eval=True, eval_held_after=1)

_STEP = re.compile(
    rf"(?<!\d )(?<!\| )\bstep\s+(\d+)(?:/(\d+))?\s*[|:]\s*(?:train )?loss\s+{NUMBER}(.{{0,400}})"
)
_USUAL = re.compile(
    rf"\bstep\s+(\d+)/(\d+) \| (?:train )?loss\s+{NUMBER}(?: \([^)]{{0,20}}\))?\s*\| norm\s+{NUMBER}"
    rf"(?: \([^)]{{0,20}}\))?\s*\| lr {NUMBER} \| {NUMBER} ms \| {NUMBER}% [\w ]{{0,20}}MFU \| {NUMBER} tok/s"
)
_TIME = re.compile(rf"{NUMBER}\s*ms\b")
_MFU = re.compile(rf"{NUMBER}%[ \w]{{0,40}}\bMFU")
_LR = re.compile(rf"\blr {NUMBER}")
_NORM = re.compile(rf"\bnorm\s+{NUMBER}")
_SPEED = re.compile(rf"{NUMBER}\s*tok/s")
_VAL = re.compile(rf"^\W*val loss\s+{NUMBER}\s*$")
_FILE = re.compile(rf"^s:(\d+) (trl|tel|eval):{NUMBER}(?: lr:{NUMBER})?(?: norm:{NUMBER})?(?=\s|$)")
_SAVE = re.compile(r"\bWriting checkpoint at step (\d+)")
_RESUME = re.compile(r"^\|\s*resume\s*\|\s*1\s*\||weight init method\s*\|\s*intermediate checkpoint")
_SKIPPED = re.compile(r"\bskipping update due to (?:loss|grad) z-score")


def read(line: str, into: Recording) -> bool:
    if "MFU" in line and (told := _USUAL.search(line)):
        iteration, planned, loss, norm, lr, ms, mfu, speed = told.groups()
        into.format = FORMAT
        into.notes.said["planned_iterations"] = int(planned)
        into.step(
            int(iteration),
            number(loss),
            ms=number(ms),
            mfu=_told(mfu),
            lr=number(lr),
            grad_norm=number(norm),
            tokens_per_s=number(speed),
        )
        return True
    if "loss " in line and (told := _STEP.search(line)):
        return _read_step(told, into)
    if "val loss" in line and (told := _VAL.search(line)):
        _read_eval(number(told[1]), into)
        return False
    if line.startswith("s:") and (told := _FILE.match(line)):
        return _read_file(told, into)
    if "Writing" in line and (told := _SAVE.search(line)):
        into.saved(int(told[1]))
    elif "total average iteration time" in line or line.startswith("peak memory consumption"):
        into.event("finish", line)
    elif "skipping" in line and _SKIPPED.search(line):
        into.event("warning", line)
    elif line.startswith("|") and _RESUME.search(line):
        into.begins(resumed=True)
    return False


def _read_step(told: re.Match[str], into: Recording) -> bool:
    iteration, planned, loss, rest = told.groups()
    time, mfu, lr, norm, speed = (pattern.search(rest) for pattern in (_TIME, _MFU, _LR, _NORM, _SPEED))
    if not time:
        return False  # torn, or another trainer's
    if "(took" in rest:
        into.format = _IN_C
    elif "| (" in rest:
        into.format = _IN_PYTHON
    elif planned:
        into.format = FORMAT
    if planned:
        into.notes.said["planned_iterations"] = int(planned)
    into.step(
        int(iteration),
        number(loss),
        ms=number(time[1]),
        mfu=_told(mfu[1]) if mfu else math.nan,
        lr=number(lr[1]) if lr else math.nan,
        grad_norm=number(norm[1]) if norm else math.nan,
        tokens_per_s=number(speed[1]) if speed else math.nan,
    )
    return True


def _told(mfu: str) -> float:
    """-100 stands for a card that it does not know."""
    value = number(mfu)
    return value if value >= 0 else math.nan


def _read_eval(loss: float, into: Recording) -> None:
    if into.format is _IN_C:
        into.evaluated_before_next(loss)
    elif into.resuming:
        into.evaluated_before_next(loss, offset=-1)
    elif into.last is None:
        into.evaluated(0, loss)
    else:
        into.evaluated(into.last, loss)


def _read_file(told: re.Match[str], into: Recording) -> bool:
    """main.log counts the updates done before: its s:0 is the console's step 1."""
    into.format = _IN_C
    iteration, kind, value, lr, norm = told.groups()
    if kind == "trl":
        into.step(
            int(iteration),
            number(value),
            lr=number(lr) if lr else math.nan,
            grad_norm=number(norm) if norm else math.nan,
        )
    elif kind == "tel":
        into.evaluated(int(iteration), number(value))
    return True
