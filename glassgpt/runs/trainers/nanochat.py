"""nanochat: pretraining, mid-training and fine-tuning.

    Step 00000 | Validation bpb: 3.162127
    step 00012/00100 (12.00%) | loss: 10.397162 | lrm: 0.01 | dt: 1677.49ms | tok/sec: 4,883 | bf16_mfu: …

The evaluation is of the weights after that many updates; step times are without it. The loss is a running
average. `lrm` multiplies the learning rates and is none itself.
"""

from __future__ import annotations

import math
import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.facts import Facts
from glassgpt.runs.glossary import GlossaryEntry, LastLine, last_evaluation, tokens_per_second
from glassgpt.runs.numbers import NUMBER, parse_number
from glassgpt.runs.run_log import RunLog, ValMetric
from glassgpt.runs.trainer import Trainer

_STEP = re.compile(
    rf"\bstep\s+(\d+)(?:/(\d+))?(?:\s+\([\d.]+%\))?\s*\|\s*(?:training )?loss:\s*{NUMBER}(.{{0,400}})",
    re.IGNORECASE,
)
_OWN = re.compile(r"\blrm\b|\bmfu: |total time:|num_tokens:|\([\d.]+%\)")
_TIME = re.compile(rf"\bdt:\s*{NUMBER}\s*ms\b")
_MFU = re.compile(rf"\b(?:bf16_)?mfu:\s*{NUMBER}")
_NORM = re.compile(rf"\bgrad[ _]norm:\s*{NUMBER}")
_SPEED = re.compile(rf"\btok/sec:\s*{NUMBER}")
_VAL = re.compile(rf"\bStep\s+(\d+)\s*\|\s*Validation (bpb|loss):\s*{NUMBER}", re.IGNORECASE)
_SAVE = re.compile(r"\bSaved model\b(?:.{0,300}_(\d{4,})\.pt)?")
_END = re.compile(r"^(?:Minimum validation (?:bpb|loss)|Total training time|Peak memory usage):")


def read(line: str, into: RunBuilder) -> bool:
    if "loss:" in line and (told := _STEP.search(line)):
        return _read_step(told, line, into)
    if "Validation" in line and (told := _VAL.search(line)):
        metric: ValMetric = "bits_per_byte" if told[2].lower() == "bpb" else "loss"
        into.add_eval(int(told[1]), parse_number(told[3]), metric=metric)
        return True
    if "Saved model" in line and (told := _SAVE.search(line)):
        into.add_save(int(told[1]) if told[1] else None)
    elif _END.match(line):
        into.add_event("finish", line)
    return False


def _read_step(told: re.Match[str], line: str, into: RunBuilder) -> bool:
    iteration, planned, loss, rest = told.groups()
    time, mfu, norm, speed = (pattern.search(rest) for pattern in (_TIME, _MFU, _NORM, _SPEED))
    is_whole = time or "num_tokens:" in rest  # fine-tuning prints no times
    if not _OWN.search(line) or (not is_whole and "ms" in into.last_step_columns):
        return False  # another trainer's, or torn
    if planned:
        # The last step that is trained is one less; the last evaluation has the number itself.
        into.setup.values["planned_iterations"] = int(planned) - 1
    into.add_step(
        int(iteration),
        parse_number(loss),
        ms=parse_number(time[1]) if time else math.nan,
        mfu=parse_number(mfu[1]) if mfu else math.nan,
        grad_norm=parse_number(norm[1]) if norm else math.nan,
        tokens_per_s=parse_number(speed[1]) if speed else math.nan,
    )
    return True


def _glossary(last: LastLine, history: RunLog, facts: Facts) -> list[GlossaryEntry]:
    return [
        GlossaryEntry(
            last_evaluation(history, "Step {step} | Validation bpb: {val}"),
            say(
                "Bits per byte of validation text: a loss that does not depend on the tokenizer. Lower is "
                "better."
            ),
        ),
        GlossaryEntry(last.shown("iteration", "step {}"), say("The number of this update, from 0.")),
        GlossaryEntry(
            last.shown("loss", "loss: {:.6f}"),
            say("A running average of the training loss: 0.9 of the last value, 0.1 of this batch."),
        ),
        GlossaryEntry(
            "lrm: …", say("What all learning rates are multiplied by now; not a learning rate itself.")
        ),
        GlossaryEntry(
            last.shown("ms", "dt: {:.2f}ms"),
            say("This update alone; evaluation and checkpoints are outside."),
        ),
        GlossaryEntry(last.shown("tokens_per_s", "tok/sec: {:,.0f}"), tokens_per_second()),
        GlossaryEntry(
            last.shown("mfu", "mfu: {:.2f}"),
            say("Model FLOPs utilization in percent of the bf16 peak of the cards."),
        ),
        GlossaryEntry(
            "total time: …",
            say("The time of the updates so far, without the first ten and without evaluations."),
        ),
    ]


TRAINER = Trainer(
    "nanochat",
    "nanochat",
    reader=lambda: read,
    introduction=re.compile(r"^Autodetected device type: |^Tokens / micro-batch / rank: "),
    setting_names={"sequence_len": "block_size"},
    glossary=_glossary,
    first_iteration=0,
    evaluates_next_token_loss=True,
    resume_command="--resume-from-step=STEP",
)
