"""nanoGPT and its many forks, lit-llama, which prints the same lines, and llama2.c, which has the same loop.

    step 250: train loss 1.9639, val loss 2.0676
    saving checkpoint to out-shakespeare-char
    iter 250: loss 2.0307, time 26177.52ms, mfu 1.52%
    250 | loss 2.0307 | lr 5.000000e-04 | 26177.52ms | mfu 1.52%

The time of an iteration is from the line before in the loop, so it holds the evaluation and the save of its
own number. The evaluation is of the weights after that many updates; the loss is of the last micro-batch.
"""

from __future__ import annotations

import math
import re

from glassgpt.insight.history import A100_PEAK, Format
from glassgpt.insight.logs.numbers import NUMBER, number
from glassgpt.insight.logs.recording import Recording

FORMAT = Format(
    "nanogpt",
    "nanoGPT",
    times_hold_eval=True,
    mfu_peak=A100_PEAK,
    mfu_is_average=True,
)

_USUAL = re.compile(rf"(?:\b|_)iter (\d+): loss {NUMBER}, time {NUMBER}ms(?:, mfu {NUMBER}%)?[\s*`\"\\n,]*$")
# minGPT's lines, whose time and epochs are other things; the reader of any trainer takes them.
_MINGPT = re.compile(r"^\W*(?:iter_dt [\d.]{1,20}ms; |epoch \d{1,9} )iter \d")
_HEAD = re.compile(r"(?:\b|_)iter\s+(\d+)\s*:(?!.{0,80}\b(?:val|validation) loss)(.{0,400})")
_LLAMA2_C = re.compile(rf"^\W*(\d+) \| loss {NUMBER} \| lr {NUMBER} \| {NUMBER}ms(?: \| mfu {NUMBER}%)?")
_LOSS = re.compile(rf"\bloss\b\s*[:=]?\s*{NUMBER}")
_TIME = re.compile(rf"\btime\b\s*[:=]?\s*{NUMBER}\s*(ms|s)\b")
_MFU = re.compile(rf"\bmfu\b\s*[:=]?\s*{NUMBER}\s*%")
_LR = re.compile(rf"\b(?:lr|learning rate)\b\s*[:=]?\s*{NUMBER}")
_NORM = re.compile(rf"\b(?:grad[ _]?)?norm\b\s*[:=]?\s*{NUMBER}")
_SPEED = re.compile(
    rf"\b(?:tok/s(?:ec)?|tk/s|tokens?/s(?:ec)?)\s*[:=]?\s*{NUMBER}|{NUMBER}\s*(?:tok|tk|tokens)/s"
)
_EVAL = re.compile(
    rf"\bstep\s+(\d+)[^:|]{{0,40}}:\s*(?:.{{0,40}}?train loss\s*:?\s*(?:{NUMBER}|\.\.\.|…))?"
    rf".{{0,40}}?\bval(?:idation)? loss\s*:?\s*(?:{NUMBER}|\.\.\.|…)"
)
_SAVE = re.compile(r"\bsaving (?:\w+ )?(?:checkpoint|snapshot)", re.IGNORECASE)


def read(line: str, into: Recording) -> bool:
    """Take what the line says; True if it is about an iteration."""
    if "iter" in line and (usual := _USUAL.search(line)):
        iteration, loss, ms, mfu = usual.groups()
        into.step(int(iteration), number(loss), ms=number(ms), mfu=_told(mfu))
        return True
    if "iter" in line and (head := _HEAD.search(line)) and not _MINGPT.match(line):
        return _read_unusual(int(head[1]), head[2], into)
    if "ms" in line and (told := _LLAMA2_C.match(line)):
        iteration, loss, lr, ms, mfu = told.groups()
        into.step(int(iteration), number(loss), ms=number(ms), mfu=_told(mfu), lr=number(lr))
        return True
    if "val" in line and (told := _EVAL.search(line)):
        iteration, train_loss, val_loss = told.groups()
        into.evaluated(int(iteration), _maybe(val_loss), _maybe(train_loss))
        return True
    if "aving" in line and _SAVE.search(line):
        into.saved()
    return False


def _read_unusual(iteration: int, rest: str, into: Recording) -> bool:
    """Other fields, another order, or a piece of a line only."""
    loss, time = _LOSS.search(rest), _TIME.search(rest)
    said = {name for name, found in (("loss", loss), ("ms", time)) if found}
    if not said or (not into.quoted and not into.last_had <= said):
        into.begun = iteration
        return False  # nothing, or torn: its numbers may be cut too
    mfu, lr, norm, speed = (pattern.search(rest) for pattern in (_MFU, _LR, _NORM, _SPEED))
    into.step(
        iteration,
        number(loss[1]) if loss else None,
        ms=math.nan if not time else number(time[1]) * (1000 if time[2] == "s" else 1),
        mfu=_told(mfu[1] if mfu else None),
        lr=number(lr[1]) if lr else math.nan,
        grad_norm=number(norm[1]) if norm else math.nan,
        tokens_per_s=number(speed[1] or speed[2]) if speed else math.nan,
    )
    return True


def _told(mfu: str | None) -> float:
    """-100 stands for "not known yet"."""
    value = math.nan if mfu is None else number(mfu)
    return value if value >= 0 else math.nan


def _maybe(text: str | None) -> float | None:
    return None if text is None else number(text)
