"""nanochat: pretraining, mid-training and fine-tuning.

    Step 00000 | Validation bpb: 3.162127
    step 00012/00100 (12.00%) | loss: 10.397162 | lrm: 0.01 | dt: 1677.49ms | tok/sec: 4,883 | bf16_mfu: …

The evaluation is of the weights after that many updates, outside of step times. The loss is a running
average. `lrm` is a factor of the learning rates, not a learning rate.
"""

from __future__ import annotations

import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, NUMBER, parse_number
from glassgpt.runs.run_log import ValMetric
from glassgpt.runs.step_line import StepLine, add_values
from glassgpt.runs.trainer import Trainer

_STEP = re.compile(
    rf"\bstep\s+(\d+)(?:/(\d+))?(?:\s+\([\d.]+%\))?\s*\|\s*(?:training )?loss:\s*{NUMBER}(.{{0,400}})",
    re.IGNORECASE,
)
# What it prints itself: `read` finds the same in it, one line at a time.
_PLAIN = (
    r"step (?P<iteration>\d{1,15})/(?P<planned_count>\d{1,15}) \(\d{1,3}\.\d\d%\) "
    r"\| loss: (?P<loss>\d{1,9}\.\d{1,9}|nan) \| lrm: (?P<lr>\d{1,3}\.\d\d) "
    r"\| dt: (?P<ms>\d{1,12}\.\d{1,9})ms "
    r"\| tok/sec: (?P<tokens_per_s>\d{1,3}(?:,\d{3}){0,4}) \| (?:bf16_)?mfu: (?P<mfu>\d{1,9}\.\d{1,9})"
    r"(?: \| (?:epoch|total time|eta): [\w.]{1,20}(?: pq: \d{1,9} rg: \d{1,9})?){0,3}"
)
_ONLY_NANOCHAT = re.compile(r"\blrm\b|\bmfu: |total time:|num_tokens:|\([\d.]+%\)")
_VALUES = StepLine(
    "$^",
    {
        "dt": "ms", "(?:bf16_)?mfu": "mfu", "lrm": "lr", "grad[ _]norm": "grad_norm",
        "tok/s(?:ec)?": "tokens_per_s",
    },
)  # fmt: skip
_VAL = re.compile(rf"\bStep\s+(\d+)\s*\|\s*Validation (bpb|loss):\s*{NUMBER}", re.IGNORECASE)
_SAVE = re.compile(r"\bSaved model\b(?:.{0,300}_(\d{4,})\.pt)?")
# Where a stage of its recipe saves. Each learns from other data, so their losses cannot be compared.
_STAGE_FOLDER = re.compile(r"\b(base|mid|chat_?sft|chat_?rl)_checkpoints\b")
_END = re.compile(r"^(?:Minimum validation (?:bpb|loss)|Total training time|Peak memory usage):")


def read(line: str, builder: RunBuilder) -> bool:
    if "loss:" in line and "| remaining: " not in line and (match := _STEP.search(line)):
        iteration, planned, loss, rest = match.groups()
        values = _VALUES.values(rest)
        has_time = "ms" in values or "num_tokens:" in rest  # fine-tuning prints no times
        if not _ONLY_NANOCHAT.search(line) or (not has_time and "ms" in builder.last_step_columns):
            return False  # another trainer's, or cut off
        if planned:
            # The last step that is trained is one less; the last evaluation has the number itself.
            builder.setup.values["planned_iterations"] = int(planned) - 1
        add_values(builder, int(iteration), {"loss": parse_number(loss)} | values)
        return True
    if "Validation" in line and (match := _VAL.search(line)):
        metric: ValMetric = "bits_per_byte" if match[2].lower() == "bpb" else "loss"
        builder.add_eval(int(match[1]), parse_number(match[3]), metric=metric)
        return True
    if "Saved model" in line and (match := _SAVE.search(line)):
        builder.add_checkpoint(int(match[1]) if match[1] else None)
        if folder := _STAGE_FOLDER.search(line):
            builder.set_stage(folder[1].removeprefix("chat").removeprefix("_"))
    elif _END.match(line):
        builder.add_event("finish", line)
    return False


_HEADER = (
    ("istributed world size", r"Distributed world size: \d", ""),
    ("Autodetected", r"^Autodetected device type: ", ""),
    ("otal", rf"Total batch size {COUNT}", "tokens_per_iteration"),
    ("otal", rf"^\W*total\s*:\s*{COUNT}\s*$", "parameters"),
    ("accumulation steps", rf"gradient accumulation steps:\s*{COUNT}", "gradient_accumulation_steps"),
    ("ocab size", rf"Vocab size: {COUNT}", "vocab_size"),
    ("FLOPs per token", r"FLOPs per token(?: \(total\))?:\s*([\d.]+e[+-]?\d+)", "flops_per_token"),
    ("GPU", r"^\W*GPU:\s*(NVIDIA [\w -]+|AMD [\w -]+)", "device_name"),
    ("eak", r"Peak FLOPS \(BF16\):\s*([\d.]+e[+-]?\d+)", "peak_flops"),
)

TRAINER = Trainer(
    "nanochat",
    "nanochat",
    reader=read,
    plain_step=_PLAIN,
    identifying_line=re.compile(r"^Autodetected device type: |^Tokens / micro-batch / rank: "),
    header=_HEADER,
    setting_names={"sequence_len": "block_size"},
    glossary=(
        ("eval", "Step {step} | Validation bpb: {val}", say("nanochat.glossary.val_bpb")),
        ("iteration", "step {}", say("glossary.update_from_zero")),
        ("loss", "loss: {:.6f}", say("nanochat.glossary.loss")),
        ("", "lrm: …", say("nanochat.glossary.lrm")),
        ("ms", "dt: {:.2f}ms", say("nanochat.glossary.dt")),
        ("tokens_per_s", "tok/sec: {:,.0f}", say("glossary.tokens_per_second")),
        ("mfu", "mfu: {:.2f}", say("nanochat.glossary.mfu")),
        ("", "total time: …", say("nanochat.glossary.total_time")),
    ),
    first_iteration=0,
    lines_name_plan=True,
    lr_is_share_of_peak=True,
    evaluates_next_token_loss=True,
    resume_command="--resume-from-step=STEP",
    defaults={"wsd_decay_fraction": 0.2},  # the share of the run in which the learning rate falls to 0
)
