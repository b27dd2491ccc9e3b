"""litgpt and the older lit-gpt: pretraining and fine-tuning.

    Epoch 1 | iter 16 step 4 | loss train: 10.939, val: n/a | iter time: 300.07 ms (step) remaining time: …
    iter 0 step 0: loss 1.6460, iter time: 820.31ms (optimizer.step)
    iter 100: val loss 3.1234, val time: 1234.56 ms

An iteration is one micro-batch; some of them end in an optimizer step. Times exclude validation.
"""

from __future__ import annotations

import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import NUMBER, parse_ms, parse_number
from glassgpt.runs.trainer import Trainer

_STEP = re.compile(
    rf"\biter\s+(\d+)\s*\|?\s*st[eE]p\s+(\d+)\s*[:|]\s*loss(?: train)?(?: \(curr\))?:?\s*{NUMBER}"
    rf"(?:, val: (?:{NUMBER}|n/a))?.{{0,120}}?\b(?:iter|train) time:\s*{NUMBER}\s*(ms|s)\b"
)
_VAL = re.compile(rf"\b(?:iter|step) (\d+): val loss {NUMBER}(?:, val time: {NUMBER}\s*(ms|s)\b)?")
_FORK_VAL = re.compile(rf"\biter\s+(\d+)\s*\|\s*val_loss: {NUMBER} \| val_time: {NUMBER}\s*s\b")
_FINAL = re.compile(rf"\bFinal evaluation \| val loss: {NUMBER}")
# Where it is saved: of an iteration, or in the folder `final`, or by the name of the whole run's.
_SAVE = re.compile(r"\bSaving (checkpoint|[\w ]{0,30}weights) to\b(.{0,1000})")
_NUMBERED, _FINAL_PATH = re.compile(r"\b(?:iter|step|epoch)-\d"), re.compile(r"[/\\]final[/\\]|_finetuned\b")
_END = re.compile(
    r"^\W*(?:Training time:|Training Time\b|- Training Time"
    r"|Number of epochs \d+ reached, stopping|Max time \([\d.]+m\) reached, stopping)",
    re.IGNORECASE,
)


def read(line: str, builder: RunBuilder) -> bool:
    if "time:" in line and (match := _STEP.search(line)):
        iteration, _, loss, val_loss, time, unit = match.groups()
        if val_loss and builder.last_val_loss is None:
            # The latest one is repeated on every line; nothing says when it was made.
            builder.add_eval(None, parse_number(val_loss))
        builder.add_step(int(iteration), parse_number(loss), ms=parse_ms(time, unit))
        return True
    if "val_loss" in line and (match := _FORK_VAL.search(line)):
        builder.add_eval(int(match[1]), parse_number(match[2]), ms=parse_number(match[3]) * 1000)
        return True
    if "val loss" in line:
        if match := _VAL.search(line):
            ms = parse_ms(match[3], match[4]) if match[3] else None
            builder.add_eval(int(match[1]), parse_number(match[2]), ms=ms)
            return match[3] is not None
        if match := _FINAL.search(line):
            builder.add_eval(builder.last_iteration, parse_number(match[1]))
            builder.add_event("finish", line)
            return True
    if "Saving" in line and (match := _SAVE.search(line)):
        is_final = _FINAL_PATH.search(match[2]) is not None
        if _NUMBERED.search(match[2]) or is_final or match[1] == "checkpoint":
            builder.add_checkpoint(builder.last_iteration, name="final" if is_final else "")
        if is_final or (match[1] != "checkpoint" and not _NUMBERED.search(match[2])):
            builder.add_event("finish", line)
    elif _END.match(line):
        builder.add_event("finish", line)
    return False


TRAINER = Trainer(
    "litgpt",
    "litgpt",
    reader=read,
    identifying_line=re.compile(r'^File "[^"]{1,300}\blitgpt[/\\](?:pretrain|finetune)'),
    command="litgpt",
    setting_names={
        "micro_batch_size": "batch_size",
        "lr_warmup_steps": "warmup_iters",
        "max_seq_length": "block_size",
    },
    glossary=(
        ("iteration", "iter {}", say("litgpt.glossary.iter")),
        ("", "step …", say("litgpt.glossary.step")),
        ("loss", "loss train: {:.3f}", say("litgpt.glossary.train_loss")),
        ("", "val: …", say("litgpt.glossary.val_loss")),
        ("ms", "iter time: {:.2f} ms", say("litgpt.glossary.iter_time")),
    ),
    first_iteration=1,
    steps_are_micro_batches=True,
    often_finetunes=True,
    resume_command="--resume=auto",
)
