"""modded-nanogpt.

    step:124/1645 train_time:11439ms step_avg:92.25ms
    step:125/1645 val_loss:4.9213 train_time:11531ms step_avg:92.25ms

train_time is the total so far, with the clock stopped while evaluating; so an iteration's time is a
difference. Older versions reset it after ten steps. Where only evaluations have a line, as in the
optimization track, it is a mean over the iterations between two. A log begins with the whole source code,
whose f-strings do not match.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, MAX_COUNT, NUMBER, parse_ms, parse_number, search_number
from glassgpt.runs.trainer import Trainer

_LINE = re.compile(
    rf"\bstep:(\d+)/(\d+),?\s+(?:(train|val)_loss:{NUMBER}\s+)?(?:[a-z_]+:\S+\s+){{0,8}}?"
    rf"train_time:{NUMBER}\s?(ms|s)(?:ecs?)?\b(?:, step_avg:{NUMBER}ms)?(?:.{{0,80}}?\btrain loss:{NUMBER})?"
)
_BARRED = re.compile(
    rf"\bstep\s+(\d+)/(\d+) \| time: {NUMBER}ms \| step avg:[^|]{{0,40}}(?:\| val loss: {NUMBER})?"
)
# The latter two are parameter-golf's; `final_int8_zlib_roundtrip val_loss:…` is of the compressed model.
_END = re.compile(
    r"^peak memory (?:allocated|consumption)|^stopping_early: |^(?:final|legal)_\w+ .{0,80}\bval_bpb:"
)
_LR_SCALE = re.compile(rf"\blr_(?:scale|mul):{NUMBER}")  # the share of the peak
_BITS = re.compile(rf"\bval_bpb:{NUMBER}")


class ModdedReader:
    """Remembers the previous line's iteration and total time."""

    def __init__(self) -> None:
        self._iteration: int | None = None
        self._total_ms = 0.0

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if "step" in line and (match := _LINE.search(line)):
            iteration, planned, kind, loss, total, unit, mean_ms, loss_after = match.groups()
            loss = loss or loss_after
            # Of a total in tenths of seconds, the mean says more.
            total_ms = parse_number(mean_ms) * int(iteration) if mean_ms else parse_ms(total, unit)
        elif "step avg" in line and (match := _BARRED.search(line)):
            iteration, planned, total, loss = match.groups()
            kind, total_ms = "val" if loss else None, parse_number(total)
        else:
            if _END.match(line):
                builder.add_event("finish", line)
            elif line.startswith("Saved checkpoint to "):
                builder.add_checkpoint(builder.last_iteration)
            return False
        at = int(iteration)
        if max(at, int(planned)) > MAX_COUNT:
            return True
        builder.setup.values["planned_iterations"] = int(planned)
        if kind == "val":
            if at == 0 or self._iteration is None:
                self._iteration, self._total_ms = at, total_ms
            elif at > self._iteration and total_ms >= self._total_ms:  # no line of its own for this step
                builder.add_step(at, ms=(total_ms - self._total_ms) / (at - self._iteration))
                self._iteration, self._total_ms = at, total_ms
            builder.add_eval(at, parse_number(loss) if loss else None)
            if bits := _BITS.search(line):
                builder.add_metrics({"val_bpb": parse_number(bits[1])}, at)
            return True
        if self._iteration is not None and at <= self._iteration:
            self._iteration = None  # another run
        if self._iteration is None:
            ms = total_ms if at == 1 else math.nan  # nan: the log begins in the middle
        elif total_ms < self._total_ms:  # the sum was reset
            ms = total_ms if at == self._iteration + 1 else math.nan
        else:  # a mean over the iterations since the previous line
            ms = (total_ms - self._total_ms) / (at - self._iteration)
            if at > self._iteration + 1 and not builder.trainer.step_time_is_interval_mean:
                builder.trainer = replace(builder.trainer, step_time_is_interval_mean=True)
        self._iteration, self._total_ms = at, total_ms
        scale = search_number(_LR_SCALE, line) if "lr_" in line else math.nan
        if scale >= 0 and not builder.trainer.lr_is_share_of_peak:
            builder.trainer = replace(builder.trainer, lr_is_share_of_peak=True)
        builder.add_step(at, parse_number(loss) if loss else None, ms=ms, lr=scale)
        return True


TRAINER = Trainer(
    "modded-nanogpt",
    "modded-nanogpt",
    reader=ModdedReader,
    header=(
        ("train_batch_tokens", rf"\btrain_batch_tokens:\s*{COUNT}", "tokens_per_iteration"),
        # Of its source: how long the learning rate falls to 0, linearly, at the end.
        ("cooldown_frac", rf"^\s*cooldown_frac\s*(?::\s*\w+\s*)?=\s*{NUMBER}", "wsd_decay_fraction"),
        ("down_iters", rf"^\s*(?:cool|warm)down_iters\s*(?::\s*\w+\s*)?=\s*{COUNT}", "wsd_decay_iters"),
    ),
    glossary=(
        ("iteration", "step:{}", say("glossary.updates_done")),
        ("eval", "val_loss:{val}", say("modded-nanogpt.glossary.val_loss")),
        ("", "train_time:…ms", say("modded-nanogpt.glossary.train_time")),
        ("", "step_avg:…ms", say("modded-nanogpt.glossary.step_avg")),
    ),
    first_iteration=1,
    lines_name_plan=True,
    step_work_grows=True,
    trains_on_plain_text=True,
    defaults={"wsd_decay_fraction": 0.45},  # the share of the run in which the learning rate falls to 0
)
