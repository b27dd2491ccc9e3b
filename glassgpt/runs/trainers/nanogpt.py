"""nanoGPT and its many forks, lit-llama, which prints the same lines, and llama2.c, which has the same loop.

    step 250: train loss 1.9639, val loss 2.0676
    saving checkpoint to out-shakespeare-char
    iter 250: loss 2.0307, time 26177.52ms, mfu 1.52%
    250 | loss 2.0307 | lr 5.000000e-04 | 26177.52ms | mfu 1.52%

An iteration's time is measured from the end of the previous one, so it includes the evaluation and the save
of the same number. The evaluation is of the weights after that many updates; the loss is of the last
micro-batch. An MFU of -100 % means that it is not known yet.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from glassgpt.config import TrainConfig
from glassgpt.i18n import say
from glassgpt.recipe import NANOGPT_DEFAULTS
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, NUMBER, parse_ms, parse_number, search_norm, search_number
from glassgpt.runs.trainer import A100_PEAK, Trainer

# What nanoGPT itself prints: `read` finds the same in it, one line at a time.
_PLAIN = (
    r"iter (?P<iteration>\d{1,15}): loss (?P<loss>\d{1,9}\.\d{1,9}|nan), "
    r"time (?P<ms>\d{1,12}\.\d{1,9})ms, mfu (?P<mfu>\d{1,9}\.\d{1,9})%"
)
# minGPT's lines, whose time and epochs mean something else; generic.py reads them.
_MINGPT = re.compile(r"^\W*(?:iter_dt [\d.]{1,20}ms; |epoch \d{1,9} )iter \d")
_ITERATION = re.compile(r"(?:\b|_)iter\s+(\d+)\s*:(?!.{0,80}\b(?:val|validation) loss)(.{0,400})")
_LLAMA2_C = re.compile(rf"^\W*(\d+) \| loss {NUMBER} \| lr {NUMBER} \| {NUMBER}ms(?: \| mfu {NUMBER}%)?")
_LOSS = re.compile(rf"\bloss\b\s*[:=]?\s*{NUMBER}")
_BITS = re.compile(r"\s{0,4}(?:BPC|bpc|bits)\b")
_TIME = re.compile(rf"\btime\b\s*[:=]?\s*{NUMBER}\s*(ms|s)\b")
_TIME_PER_ITER = re.compile(rf"(?<![\w.]){NUMBER}\s?(ms|s)/iter\b")
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
_FORK_EVAL = re.compile(
    rf"^\W*(?:eval\W{{1,3}})?(?:step|iter):?\s{{1,8}}(\d{{1,15}})\s?[|,:]\s?"
    rf"train(?: loss)?:?\s{{1,4}}{NUMBER}\s?[|,]?\s?val(?: loss)?:?\s{{1,4}}{NUMBER}",
    re.IGNORECASE,
)
_SAVE = re.compile(
    r"\bsaving (?:\w+ )?(?:checkpoint|snapshot)(?:.{0,100}?(?: to|->) (\S{1,300}))?", re.IGNORECASE
)
_SAVED_AT = re.compile(r"\bckpt[_-](?:iter_?)?(\d{1,9})\.pt\b")  # a fork that keeps them all


def read(line: str, builder: RunBuilder) -> bool:
    match = _FORK_EVAL.match(line) if "al" in line else None
    if match and (builder.has_steps or not _EVAL.search(line)):
        builder.add_eval(int(match[1]), parse_number(match[3]), parse_number(match[2]))
        return builder.has_steps  # other loops print it too: only steps show that a log is of this form
    if "iter" in line and (match := _ITERATION.search(line)) and not _MINGPT.match(line):
        return _read_step(int(match[1]), match[2], builder)
    if "ms" in line and (match := _LLAMA2_C.match(line)):
        iteration, loss, lr, ms, mfu = match.groups()
        builder.trainer = _LLAMA2_C_TRAINER
        builder.add_step(
            int(iteration),
            parse_number(loss),
            ms=parse_number(ms),
            mfu=parse_number(mfu or "nan"),
            lr=parse_number(lr),
        )
        return True
    if "val" in line and (match := _EVAL.search(line)):
        iteration, train_loss, val_loss = match.groups()
        unit = math.log(2) if _BITS.search(line, match.start()) else 1.0
        builder.add_eval(
            int(iteration),
            parse_number(val_loss) * unit if val_loss else None,
            parse_number(train_loss) * unit if train_loss else None,
        )
        return True
    if "aving" in line and (match := _SAVE.search(line)):
        number = _SAVED_AT.search(line)
        is_ahead = number is not None and (builder.last_iteration or 0) <= int(number[1])
        builder.add_checkpoint(int(number[1]) if number and is_ahead else None, name=match[1] or "")
    return False


def _read_step(iteration: int, rest: str, builder: RunBuilder) -> bool:
    """Forks have other fields, or another order."""
    loss, time = _LOSS.search(rest), _TIME.search(rest) or _TIME_PER_ITER.search(rest)
    columns = {name for name, match in (("loss", loss), ("ms", time)) if match}
    if not columns or (not builder.has_quoted_lines and not builder.last_step_columns <= columns):
        builder.partial_iteration = iteration
        return False  # cut off: its last number may be cut too
    unit = math.log(2) if loss and _BITS.match(rest, loss.end()) else 1.0
    if time and time.re is _TIME_PER_ITER and iteration > (last := builder.last_iteration or 0) + 1 and last:
        builder.trainer = replace(
            builder.trainer,
            step_time_is_interval_mean=True,
            step_time_includes_eval=False,  # a share of it
            clock_reads_before_sync=False,
        )
    mfu = search_number(_MFU, rest)
    if mfu < 0 <= builder.last_mfu and not builder.has_quoted_lines:
        # Only the first lines of a process do not know it yet.
        builder.start_process(resumed=iteration > 0, has_header=False)
    builder.add_step(
        iteration,
        parse_number(loss[1]) * unit if loss else None,
        ms=parse_ms(*time.groups()) if time else math.nan,
        mfu=mfu,
        lr=search_number(_LR, rest),
        grad_norm=search_norm(_NORM, rest),
        tokens_per_s=search_number(_SPEED, rest),
    )
    return True


_HEADER = (
    ("tokens per iteration", r"tokens per iteration will be", ""),
    ("number of parameters", r"^\W*number of parameters: ", ""),
    ("Initializing", r"Initializing (?:a new model from scratch|from OpenAI GPT-2 weights)", ""),
    ("Overriding config", r"Overriding config with ", ""),
    ("Resuming", r"Resuming (?:training|optimization) from", "resumed"),
    ("compiling", r"compiling the model", "compile"),
    ("tokens per iteration", rf"tokens per iteration will be:\s*{COUNT}\s*$", "tokens_per_iteration"),
    ("parameters", rf"num decayed parameter tensors: [\d,]+, with {COUNT} parameters", "decayed_parameters"),
    (
        "parameters",
        rf"num non-decayed parameter tensors: [\d,]+, with {COUNT} parameters",
        "undecayed_parameters",
    ),
    ("vocab", rf"found vocab_size = {COUNT}", "vocab_size"),
    ("vocab", rf"defaulting to vocab_size of GPT-2 to {COUNT}", "vocab_size"),
)
# The numbers among the defaults of its train.py; its learning rate is also GlassGPT's.
_DEFAULTS = {"learning_rate": TrainConfig.learning_rate} | {
    name: value for name, value in NANOGPT_DEFAULTS.items() if isinstance(value, int | float)
}

TRAINER = Trainer(
    "nanogpt",
    "nanoGPT",
    reader=read,
    plain_step=_PLAIN,
    identifying_line=re.compile(r"^tokens per iteration will be:\s*\d"),
    header=_HEADER,
    glossary=(
        ("eval", "step {step}: train loss {train}, val loss {val}", say("nanogpt.glossary.evaluation")),
        ("checkpoint", "saving checkpoint to …", say("nanogpt.glossary.checkpoint")),
        ("iteration", "iter {}", say("glossary.update_from_zero")),
        ("loss", "loss {:.4f}", say("glossary.batch_loss")),
        ("ms", "time {:.2f}ms", say("nanogpt.glossary.time")),
        ("mfu", "mfu {:.2f}%", say("nanogpt.glossary.mfu")),
        ("lr", "lr {:.3g}", say("glossary.learning_rate")),
    ),
    first_iteration=0,
    loop_includes_max_iters=True,
    step_time_includes_eval=True,  # one clock around evaluation, save and update
    clock_reads_before_sync=True,  # only `loss.item()`, at logged iterations, waits for the GPU
    compile_off_flag="--compile=False",
    mfu_peak=A100_PEAK,  # whatever the card
    mfu_peak_card="A100",
    mfu_is_running_average=True,
    mfu_counts_replica=True,  # its batch is that of one process
    mfu_counts_palm_flops=True,
    is_gpt2_shaped=True,
    keeps_float32_masters=True,
    evaluates_next_token_loss=True,
    trains_on_plain_text=True,
    evaluates_before_first_step=True,
    evaluates_random_batches=True,
    eval_splits=2,
    eval_line_is_common=True,
    ends_on_regular_eval=True,
    takes_known_settings=True,
    defaults=_DEFAULTS,
    logs_checkpoints=True,
    saves_only_after_eval=True,
    overwrites_checkpoint=True,
    has_saves_around_it=True,
    resume_command="python train.py … --init_from=resume",
    restarts_data_on_resume=True,
    data_restart_cause=say("nanogpt.data_restart_cause"),
    data_restart_advice=say("nanogpt.data_restart_advice"),
    clips_gradients=True,
    eval_line="step N: train loss …, val loss …",
)
_LLAMA2_C_TRAINER = replace(TRAINER, name="llama2.c")
