"""Any other trainer whose lines have an iteration and a loss.

    Step 100/5000, Loss: 2.3456, LR: 3e-4, Time: 0.21s
    epoch 1 iteration 200 train_loss=3.21
    {"step": 200, "loss": 3.21}
    Training:  20%|##        | 200/1000 [00:10<00:40, 19.8it/s, loss=3.21]

Nothing is assumed: a time counts only with its unit, an evaluation only with its iteration.
"""

from __future__ import annotations

import math
import re

from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_ms, parse_number, search_norm, search_number
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
# Megatron's, where the loss comes last, and maybe a test loss after it.
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
    """Keeps track of the epoch: where lines count within an epoch, earlier epochs' iterations are added."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._planned_epochs: int | None = None
        self._earlier_iterations = 0  # of the epochs that are over
        self._last_iteration = 0  # as the latest line counts

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if "loss" not in line and "Loss" not in line and "LOSS" not in line:
            if _END.match(line):
                builder.add_event("finish", line)
            elif "saved" in line and (match := _SAVED.search(line)):
                builder.add_checkpoint(int(match[1][: len(str(MAX_COUNT)) + 1]))
            return False
        step = _STEP.search(line) or _BAR.search(line)
        evaluation = _VAL.search(line) or _VAL_AT.search(line)
        if step and max(len(step[1]), len(step[2] or "")) <= len(str(MAX_COUNT)):
            self._read_step(step, line, builder)
        if evaluation:
            builder.add_eval(self._earlier_iterations + int(evaluation[1]), parse_number(evaluation[2]))
        elif step and "%|" in line and (match := _VAL_IN_BAR.search(line)):
            # A bar shows the latest validation loss until there is another.
            val_loss, at = parse_number(match[1]), builder.last_iteration
            if val_loss != builder.last_val_loss and at is not None:
                builder.add_eval(at, val_loss)
        return bool(step or evaluation)

    def _read_step(self, step: re.Match[str], line: str, builder: RunBuilder) -> None:
        printed, total = int(step[1]), int(step[2]) if step[2] else None
        if match := _EPOCH.search(line):
            epoch = int(match[1][:9])
            self._planned_epochs = int(match[2][:9]) if match[2] else None
            # Where the count goes back in the next epoch, it is of the epoch; else it is of the whole run.
            if self._epoch is None or epoch < self._epoch or builder.last_iteration is None:
                self._earlier_iterations = 0
            elif epoch == self._epoch + 1 and printed <= self._last_iteration:
                # Equal where of each epoch only the last line is left; one that counts from 0 has one more.
                self._earlier_iterations += self._last_iteration + (printed == 0)
            self._epoch = epoch
        self._last_iteration = printed
        iteration = self._earlier_iterations + printed
        if time := _TIME.search(line):
            ms = parse_ms(*time.groups())
        else:
            time = _TIME_IN_MS.search(line) or _BARE_TIME.search(line)
            ms = parse_number(time[1]) if time else math.nan
        builder.add_step(
            iteration,
            parse_number(step[3]),
            ms=ms,
            lr=search_number(_LR, line),
            grad_norm=search_norm(_NORM, line),
            tokens_per_s=search_number(_SPEED, line),
        )
        if "lobal" in line and (batch := _BATCH.search(line)):
            builder.add_batch_size(iteration, int(batch[1]))
        if total:
            # A total may be that of an epoch, which shows when the second one begins. Recorded after the
            # step, because the setup at the first step has priority over a later one.
            planned = total if not self._earlier_iterations else None
            if self._planned_epochs not in (None, 1):
                planned = (
                    self._planned_epochs * total
                    if self._earlier_iterations and self._planned_epochs
                    else None
                )
            builder.setup.values["planned_iterations"] = planned


TRAINER = Trainer("unknown", "unknown trainer", reader=GenericReader, reads_any_log=True)
