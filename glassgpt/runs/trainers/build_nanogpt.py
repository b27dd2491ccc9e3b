"""build-nanogpt (the video's repository) and its log.txt.

    validation loss: 10.9462
    step     0 | loss: 10.952601 | lr 8.3916e-07 | norm: 14.8389 | dt: 40877.42ms | tok/sec: 801.62

An evaluation has no iteration: it is made at the top of the step whose line comes next, inside its time.
log.txt says `0 val 10.9462`, `0 train 10.952601`, `0 hella 0.2463`.
"""

from __future__ import annotations

import math
import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, NUMBER, parse_ms, parse_number
from glassgpt.runs.step_line import StepLine, add_values
from glassgpt.runs.trainer import Trainer

_STEP = re.compile(rf"\bstep:?\s+(\d+)\s*[|,]\s*loss:\s*{NUMBER}(?![\d.])(.{{0,400}})", re.IGNORECASE)
_OWN_COLUMN = re.compile(r"\b(?:lr|norm|dt|time|tok(?:ens)?/sec)\b")
_TIME = re.compile(rf"\b(?:dt|time):\s*{NUMBER}\s*(ms|s)\b")
_VALUES = StepLine("$^", {"lr": "lr", "norm": "grad_norm", "tok(?:ens)?/sec": "tokens_per_s"})
_VAL = re.compile(rf"^\W*(?:validation|val) loss:\s*{NUMBER}\s*\W*$")
_LOG_TXT = re.compile(rf"^\s*(\d+) (train|val|\w{{2,10}}swag|hella) {NUMBER}\s*$")
_FORK_VAL = re.compile(
    rf"^(\d{{1,15}}) (?:[a-z_]{{1,30}} [\d.e+-]{{1,20}} ){{0,6}}val\w{{0,20}}_loss {NUMBER}\b"
)
_SAVE = re.compile(
    r"\b(?:saving|writing|saved) (?:model )?checkpoint|\bcheckpoint at step (\d{1,15})\b"
    r"|\bmodel saved to (\S)",
    re.IGNORECASE,
)


def read(line: str, builder: RunBuilder) -> bool:
    if "oss:" in line and (match := _STEP.search(line)):
        rest = match[3]
        if "poch" in line[: match.start()] or not _OWN_COLUMN.search(rest):
            return False  # `Step 5, Loss: 2.31`, and no more, or with an epoch: many loops print that
        time = _TIME.search(rest)
        if not time and "ms" in builder.last_step_columns:
            return False  # cut off
        ms = parse_ms(*time.groups()) if time else math.nan
        values = {"loss": parse_number(match[2]), "ms": ms} | _VALUES.values(rest)
        add_values(builder, int(match[1]), values)
        return True
    if "loss:" in line and (match := _VAL.search(line)):
        builder.add_eval_before_next_step(parse_number(match[1]))
        return False  # other trainers print this line too
    if line[:1].isdigit() and (match := _LOG_TXT.match(line)):
        iteration, kind, value = int(match[1]), match[2], parse_number(match[3])
        if kind == "train":
            builder.add_step(iteration, value)
        elif kind == "val":
            builder.add_eval(iteration, value)
        else:
            builder.add_metrics({kind: value}, iteration)
        return True
    if line[:1].isdigit() and "_loss " in line and (match := _FORK_VAL.match(line)):
        builder.add_eval(int(match[1]), parse_number(match[2]))
        return False
    if ("heckpoint" in line or "aved" in line) and (match := _SAVE.search(line)):
        at = builder.last_iteration or 0 if match[2] else None
        builder.add_checkpoint(int(match[1]) if match[1] else at)
    return False


TRAINER = Trainer(
    "build-nanogpt",
    "build-nanogpt",
    reader=read,
    identifying_line=re.compile(r"^total desired batch size:\s*\d"),
    header=(
        ("otal desired", r"^total desired batch size:\s*\d", ""),
        ("otal", rf"total desired batch size:\s*{COUNT}", "tokens_per_iteration"),
    ),
    glossary=(
        ("eval", "validation loss: {val}", say("build-nanogpt.glossary.val_loss")),
        ("iteration", "step {}", say("glossary.update_from_zero")),
        ("loss", "loss: {:.6f}", say("build-nanogpt.glossary.loss")),
        ("lr", "lr {:.4e}", say("glossary.learning_rate")),
        ("grad_norm", "norm: {:.4f}", say("glossary.gradient_norm")),
        ("ms", "dt: {:.2f}ms", say("build-nanogpt.glossary.dt")),
        ("tokens_per_s", "tok/sec: {:.2f}", say("glossary.tokens_per_second")),
    ),
    first_iteration=0,
    step_time_includes_eval=True,
    tokens_per_s_is_of_step=True,
    is_gpt2_shaped=True,
    keeps_float32_masters=True,
    evaluates_next_token_loss=True,
    trains_on_plain_text=True,
    final_eval_offsets=(0,),
    eval_time_cause=say("build-nanogpt.eval_time_cause", trainer="build-nanogpt"),
    rarer_eval_advice=say("build-nanogpt.rarer_eval_advice"),
    cannot_resume_advice=say("build-nanogpt.cannot_resume_advice"),
    restarts_data_on_resume=True,
    data_restart_cause=say("build-nanogpt.data_restart_cause"),
    data_restart_advice=say("build-nanogpt.data_restart_advice"),
    clips_gradients=True,
)
