"""autoresearch: nanochat's pretraining in one file, with a time budget instead of a number of updates.

    step 00352 (6.2%) | loss: 3.567769 | lrm: 1.00 | dt: 338ms | tok/sec: 387,878 | … | remaining: 1688s
    ---
    val_bpb:          0.997900
    training_seconds: 300.1

It evaluates once, after training. The loss is a running average; the time is of this update alone.
"""

from __future__ import annotations

import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import NUMBER, parse_number
from glassgpt.runs.step_line import StepLine, add_values
from glassgpt.runs.trainer import Trainer

_STEP = StepLine(
    r"^step (\d{1,15}) \(\d{1,3}\.\d%\) \| loss: .{1,300}\| remaining: -?\d{1,12}s",
    {
        "loss": "loss", "dt": "ms", "tok/sec": "tokens_per_s", "mfu": "mfu", "remaining": "remaining_s",
    },
)  # fmt: skip
_SUMMARY = re.compile(rf"^(val_bpb|training_seconds|total_seconds|num_params_M):\s{{1,20}}{NUMBER}$")
_MAX_ERROR = 0.05  # between the percent and the remaining seconds, as shares of the budget
_BUDGET = re.compile(r"^Time budget: (\d{1,12})s$")


def read(line: str, builder: RunBuilder) -> bool:
    if "| remaining: " in line and (step := _STEP.parse(line, builder)):
        setup, remaining_s = builder.setup.values, step.values["remaining_s"]
        done = float(line.partition("(")[2].partition("%")[0]) / 100
        if "budget_s" not in setup:  # percent and remaining seconds give it
            setup["budget_s"] = remaining_s / (1 - done) if done < 0.5 else None
        budget_s, step_s = setup["budget_s"], step.values.get("ms", 0.0) / 1000  # one may be of before it
        if isinstance(budget_s, float) and (
            abs((1 - done) * budget_s - remaining_s) > _MAX_ERROR * budget_s + step_s
        ):
            setup["budget_s"] = None  # of a fork, which counts steps: what remains is an estimate
        add_values(builder, step.iteration, step.values)
        setup["remaining_s"] = remaining_s
        return True
    if ":" in line and (match := _SUMMARY.match(line)):
        name, value = match[1], parse_number(match[2])
        if name == "val_bpb":
            last = builder.last_iteration
            builder.add_eval(None if last is None else last + 1, value, metric="bits_per_byte")
            builder.add_event("finish", line)
        elif name == "total_seconds":
            builder.setup.values["wall_s"] = value
        elif name == "num_params_M" and 0 <= value < 1e9:
            builder.setup.values["parameters"] = round(value * 1e6)
        return name == "val_bpb"
    if line.startswith("Time budget: ") and (match := _BUDGET.match(line)):
        builder.setup.values["budget_s"] = float(match[1])
    elif line == "FAIL":  # the loss is NaN or above 100
        builder.add_event("abort", line)
    return False


TRAINER = Trainer(
    "autoresearch",
    "autoresearch",
    reader=read,
    header=(("Time budget", r"^Time budget: \d", ""),),
    article="An",
    glossary=(
        ("iteration", "step {}", say("glossary.update_from_zero")),
        ("", "(…%), remaining: …s", say("autoresearch.glossary.remaining")),
        ("loss", "loss: {:.6f}", say("nanochat.glossary.loss")),
        ("", "lrm: …", say("nanochat.glossary.lrm")),
        ("ms", "dt: {:.0f}ms", say("nanochat.glossary.dt")),
        ("tokens_per_s", "tok/sec: {:,.0f}", say("glossary.tokens_per_second")),
        ("mfu", "mfu: {:.1f}%", say("autoresearch.glossary.mfu")),
        ("eval", "val_bpb: {val}", say("nanochat.glossary.val_bpb")),
    ),
    first_iteration=0,
    evaluates_next_token_loss=True,
    trains_on_plain_text=True,
    eval_splits=1,
    mfu_peak=989.5e12,  # whatever the card
    mfu_peak_card="H100",
)
