"""mlx-lm: fine-tuning on Apple's chips.

    Iter 200: Val loss 1.899, Val took 3.842s
    Iter 200: Train loss 1.866, Learning Rate 2.000e-05, It/sec 3.162, Tokens/sec 598.913, …

Since June 2026 a table:

    iter   train_loss     tok/s     tokens
     200    val 1.899    3.84s
     200    1.866 ▼      599     38.1k

Loss and rates are means since the previous line, without evaluations. It evaluates before the update that has
the same number.
"""

from __future__ import annotations

import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, NUMBER, parse_number
from glassgpt.runs.step_line import StepLine
from glassgpt.runs.trainer import Trainer

_STEP = StepLine(
    r"^Iter (\d{1,15}): Train loss ",
    {
        "Train loss": "loss", "Learning Rate": "lr", "It/sec": "it_per_s", "Tokens/sec": "tokens_per_s",
    },
)  # fmt: skip
_VALIDATION = re.compile(rf"^Iter (\d{{1,15}}): Val loss {NUMBER}, Val took {NUMBER}s")
_SAVED = re.compile(r"^Iter (\d{1,15}): Saved adapter weights to ")
_TABLE = re.compile(r"^iter\s+train_loss\s+tok/s\s+tokens$")
_TABLE_STEP = re.compile(rf"^(\d{{1,15}})\s{{1,12}}{NUMBER} [▼▲]\s{{1,12}}{NUMBER}\s{{1,12}}[\d.,]{{1,20}}k$")
_TABLE_VALIDATION = re.compile(rf"^(\d{{1,15}})\s{{1,12}}val\s{{1,8}}{NUMBER}\s{{1,12}}{NUMBER}s$")
_TABLE_SAVED = re.compile(r"^save\s{1,8}(\d{7})_adapters\.safetensors$")


def read(line: str, builder: RunBuilder) -> bool:
    if line.startswith("Iter "):
        if _STEP.read(line, builder):
            return True
        if match := _VALIDATION.match(line):
            builder.add_eval(int(match[1]), parse_number(match[2]), ms=parse_number(match[3]) * 1000)
            return True
        if match := _SAVED.match(line):
            builder.add_checkpoint(int(match[1]))
    elif line[:1].isdigit() and (match := _TABLE_STEP.match(line)):
        builder.add_step(int(match[1]), parse_number(match[2]), tokens_per_s=parse_number(match[3]))
        return True
    elif line[:1].isdigit() and (match := _TABLE_VALIDATION.match(line)):
        builder.add_eval(int(match[1]), parse_number(match[2]), ms=parse_number(match[3]) * 1000)
        return True
    elif line.startswith("save ") and (match := _TABLE_SAVED.match(line)):
        builder.add_checkpoint(int(match[1]))
    elif line.startswith("Saved final weights to "):
        builder.add_event("finish", line)
    return False


TRAINER = Trainer(
    "mlx-lm",
    "mlx-lm",
    reader=read,
    identifying_line=re.compile(r"^Starting training\.\.\., iters: \d|" + _TABLE.pattern),
    header=(
        ("iters:", r"^Starting training\.\.\., iters: \d", ""),
        ("iters:", rf"^Starting training\.\.\., iters: {COUNT}", "planned_iterations"),
        ("rainable", r"^Trainable parameters: [\d.]+% \([\d.]+M/([\d.]+M)\)", "parameters"),
    ),
    article="An",
    command="mlx_lm.lora",
    glossary=(
        ("iteration", "Iter {}", say("glossary.updates_done")),
        ("loss", "Train loss {:.3f}", say("hf-trainer.glossary.loss")),
        ("lr", "Learning Rate {:.3e}", say("glossary.learning_rate")),
        ("ms", "It/sec (one takes {:.0f} ms)", say("glossary.interval_time")),
        ("tokens_per_s", "Tokens/sec {:.3f}", say("glossary.tokens_per_second")),
        ("eval", "Iter {step}: Val loss {val}", say("mlx-lm.glossary.val_loss")),
    ),
    step_time_is_interval_mean=True,
    uses_torch=False,
    loss_is_interval_mean=True,
    often_finetunes=True,
    eval_splits=1,
    logs_checkpoints=True,
    resume_command="--resume-adapter-file adapters/adapters.safetensors",
)
