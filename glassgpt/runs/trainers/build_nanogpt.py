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
from glassgpt.runs.facts import Facts
from glassgpt.runs.glossary import (
    GlossaryEntry,
    LastLine,
    gradient_norm_meaning,
    last_evaluation,
    learning_rate_meaning,
    tokens_per_second_meaning,
)
from glassgpt.runs.numbers import COUNT, NUMBER, parse_ms, parse_number, search_number
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import HeaderPattern, Trainer

_STEP = re.compile(rf"\bstep:?\s+(\d+)\s*[|,]\s*loss:\s*{NUMBER}(?![\d.])(.{{0,400}})", re.IGNORECASE)
_TIME = re.compile(rf"\b(?:dt|time):\s*{NUMBER}\s*(ms|s)\b")
_LR = re.compile(rf"\blr:?\s*{NUMBER}(?=\s|,|$)")
_NORM = re.compile(rf"\bnorm:\s*{NUMBER}")
_SPEED = re.compile(rf"\btok(?:ens)?/sec:\s*{NUMBER}")
_VAL = re.compile(rf"^\W*(?:validation|val) loss:\s*{NUMBER}\s*\W*$")
_LOG_TXT = re.compile(rf"^\s*(\d+) (train|val|hella) {NUMBER}\s*$")
_SAVE = re.compile(r"\b(?:saving|writing|saved) (?:model )?checkpoint", re.IGNORECASE)


def read(line: str, builder: RunBuilder) -> bool:
    if "oss:" in line and (match := _STEP.search(line)):
        rest = match[3]
        time = _TIME.search(rest)
        if not time and "ms" in builder.last_step_columns:
            return False  # cut off
        builder.add_step(
            int(match[1]),
            parse_number(match[2]),
            ms=parse_ms(*time.groups()) if time else math.nan,
            lr=search_number(_LR, rest),
            grad_norm=search_number(_NORM, rest),
            tokens_per_s=search_number(_SPEED, rest),
        )
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
        return True
    if "heckpoint" in line and _SAVE.search(line):
        builder.add_checkpoint()
    return False


def _glossary(last: LastLine, run_log: RunLog, facts: Facts) -> list[GlossaryEntry]:
    return [
        GlossaryEntry(
            last_evaluation(run_log, "validation loss: {val}"),
            say(
                "The mean loss over 20 validation batches, evaluated before the step of the next line and "
                "included in its time."
            ),
        ),
        GlossaryEntry(last.shown("iteration", "step {}"), say("The number of this update, from 0.")),
        GlossaryEntry(
            last.shown("loss", "loss: {:.6f}"),
            say("The mean loss over all micro-batches and ranks of this update."),
        ),
        GlossaryEntry(last.shown("lr", "lr {:.4e}"), learning_rate_meaning()),
        GlossaryEntry(last.shown("grad_norm", "norm: {:.4f}"), gradient_norm_meaning()),
        GlossaryEntry(
            last.shown("ms", "dt: {:.2f}ms"),
            say(
                "The whole iteration, including evaluation, HellaSwag, samples and checkpoint where they "
                "are made."
            ),
        ),
        GlossaryEntry(last.shown("tokens_per_s", "tok/sec: {:.2f}"), tokens_per_second_meaning()),
    ]


def _eval_time_cause() -> str:
    return say(
        "{trainer} evaluates with its clock running: these times include the validation and, where the "
        "script has them, HellaSwag's 10,042 questions, the samples and the checkpoint.",
        trainer=TRAINER.name,
    )


def _rarer_eval_advice(old: int, new: int, share: str) -> str:
    """Its intervals are in the code, and most of the time is HellaSwag's."""
    return say(
        "Run HellaSwag and the samples less often: every {new} iterations instead of {old} saves up to "
        "{share}.",
        old=old,
        new=new,
        share=share,
    )


def _cannot_resume_advice() -> str:
    return say("build-nanogpt saves every 5000 iterations and cannot resume: add both before a long run.")


def _data_restart_cause() -> str:
    return say("Its data loader starts at the first shard in every process.")


def _data_restart_advice(share: str) -> str:
    return say(
        "Save the loader's shard and position with the checkpoint: {share} of the iterations then see new "
        "text.",
        share=share,
    )


TRAINER = Trainer(
    "build-nanogpt",
    "build-nanogpt",
    reader=read,
    identifying_line=re.compile(r"^total desired batch size:\s*\d"),
    header=(
        HeaderPattern("otal desired", re.compile(r"^total desired batch size:\s*\d")),
        HeaderPattern("otal", re.compile(rf"total desired batch size:\s*{COUNT}"), "tokens_per_iteration"),
    ),
    glossary=_glossary,
    first_iteration=0,
    step_time_includes_eval=True,
    tokens_per_s_is_of_step=True,
    is_gpt2_shaped=True,
    keeps_float32_masters=True,
    evaluates_next_token_loss=True,
    trains_on_plain_text=True,
    final_eval_offsets=(0,),
    eval_time_cause=_eval_time_cause,
    rarer_eval_advice=_rarer_eval_advice,
    cannot_resume_advice=_cannot_resume_advice,
    restarts_data_on_resume=True,
    data_restart_cause=_data_restart_cause,
    data_restart_advice=_data_restart_advice,
)
