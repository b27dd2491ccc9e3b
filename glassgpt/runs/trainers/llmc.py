"""llm.c, in CUDA, in C and its PyTorch reference, and its main.log.

    val loss 4.517179
    step    1/74 | loss 4.36 (+nanz)| norm 15.3 (+nanz)| lr 1.00e-04 | 80.64 ms | 33.8% bf16 MFU | 50819 tok/s
    step 1/74: train loss 4.367631 (80.639749 ms, 50819 tok/s)
    step 0: train loss 5.356082 (took 19942.187000 ms)
    s:0 tel:10.9843

An evaluation has no iteration. The CUDA version makes it after the step whose line came last, outside its
time; the C version before the step whose line comes next. An MFU of -100 % means a card without a known peak.
"""

from __future__ import annotations

import re
from dataclasses import replace

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, NUMBER, parse_norm, parse_number, search_norm, search_number
from glassgpt.runs.trainer import Trainer

_STEP = re.compile(
    rf"(?<!\d )(?<!\| )\bstep\s+(\d+)(?:/(\d+))?\s*[|:]\s*(?:train )?loss\s+{NUMBER}(.{{0,400}})"
)
# The same, of the CUDA version today: `read` finds the same in it, one line at a time.
_PLAIN = (
    r"step +(?P<iteration>\d{1,15})/(?P<planned_count>\d{1,15}) \| loss +(?P<loss>\d{1,9}\.\d{1,9})"
    r"(?: \([^)\n]{0,20}\))?\s?\| norm +(?P<grad_norm>\d{1,9}\.\d{1,9})(?: \([^)\n]{0,20}\))?\s?"
    r"\| lr (?P<lr>\d{1,3}\.\d{1,9}(?:e-\d{1,3})?) \| (?P<ms>\d{1,12}\.\d{1,9}) ms "
    r"\| (?P<mfu>\d{1,9}\.\d{1,9})% [\w ]{0,20}MFU \| (?P<tokens_per_s>\d{1,15}) tok/s"
)
_TIME = re.compile(rf"{NUMBER}\s*ms\b")
_MFU = re.compile(rf"{NUMBER}%[ \w]{{0,40}}\bMFU")
_LR = re.compile(rf"\blr {NUMBER}")
_NORM = re.compile(rf"\bnorm\s+{NUMBER}")
_SPEED = re.compile(rf"{NUMBER}\s*tok/s")
_VAL = re.compile(rf"^\W*val loss\s+{NUMBER}\s*$")
_MAIN_LOG = re.compile(rf"^s:(\d+) (trl|tel|eval):{NUMBER}(?: lr:{NUMBER})?(?: norm:{NUMBER})?(?=\s|$)")
_SAVE = re.compile(r"\bWriting checkpoint at step (\d+)")
_RESUME = re.compile(r"^\|\s*resume\s*\|\s*1\s*\||weight init method\s*\|\s*intermediate checkpoint")
_SKIPPED = re.compile(r"\bskipping update due to (?:loss|grad) z-score")


def read(line: str, builder: RunBuilder) -> bool:
    if "loss " in line and (match := _STEP.search(line)):
        return _read_step(match, builder)
    if "val loss" in line and (match := _VAL.search(line)):
        loss = parse_number(match[1])
        if builder.trainer is _IN_C:
            builder.add_eval_before_next_step(loss)
        elif builder.is_resuming:
            builder.add_eval_before_next_step(loss, offset=-1)
        else:
            builder.add_eval(builder.last_iteration or 0, loss)
        return False
    if line.startswith("s:") and (match := _MAIN_LOG.match(line)):
        # main.log counts the updates done before: its s:0 is the console's step 1.
        builder.trainer = _IN_C
        iteration, kind, value, lr, norm = match.groups()
        if kind == "trl":
            builder.add_step(
                int(iteration),
                parse_number(value),
                lr=parse_number(lr or "nan"),
                grad_norm=parse_norm(norm),
            )
        elif kind == "tel":
            builder.add_eval(int(iteration), parse_number(value))
        else:
            builder.add_metrics({"HellaSwag": parse_number(value)}, int(iteration))
        return True
    if "Writing" in line and (match := _SAVE.search(line)):
        builder.add_checkpoint(int(match[1]))
    elif "total average iteration time" in line or line.startswith("peak memory consumption"):
        builder.add_event("finish", line)
    elif "skipping" in line and _SKIPPED.search(line):
        builder.add_event("warning", line)
    elif line.startswith("|") and _RESUME.search(line):
        builder.start_process(resumed=True)
    return False


def _read_step(match: re.Match[str], builder: RunBuilder) -> bool:
    """The versions in C and in PyTorch have lines of their own."""
    iteration, planned, loss, rest = match.groups()
    time = _TIME.search(rest)
    if not time or not (planned or "(took" in rest):
        return False  # cut off, or another trainer's
    if "(took" in rest:
        builder.trainer = _IN_C
    elif "| (" in rest:
        builder.trainer = _IN_PYTHON
    elif planned:
        builder.trainer = TRAINER
    if planned:
        builder.setup.values["planned_iterations"] = int(planned)
    builder.add_step(
        int(iteration),
        parse_number(loss),
        ms=parse_number(time[1]),
        mfu=search_number(_MFU, rest),
        lr=search_number(_LR, rest),
        grad_norm=search_norm(_NORM, rest),
        tokens_per_s=search_number(_SPEED, rest),
    )
    return True


# fmt: off
_SETTING_NAMES = {
    "micro batch size B": "batch_size", "sequence length T": "block_size",
    "learning rate (LR)": "learning_rate", "warmup iterations": "warmup_iters",
    "weight decay": "weight_decay", "val_loss_every": "eval_interval",
    "val_max_steps": "eval_iters", "vocab_size V": "vocab_size", "num_layers L": "n_layer",
    "num_heads NH": "n_head", "channels C": "n_embd", "train_num_batches": "max_iters",
}
# fmt: on
_HEADER = (
    ("train data", r"^\|\s*train data pattern\s*\|", ""),
    ("otal", r"^\|\s*total batch size\s*\|", ""),
    ("otal", rf"^\|\s*total batch size\s*\|\s*{COUNT}", "tokens_per_iteration"),
    ("otal", rf"\band total_batch_size=\s*{COUNT}", "tokens_per_iteration"),
    ("grad_accum_steps", rf"setting grad_accum_steps={COUNT}", "gradient_accumulation_steps"),
    ("parameters", rf"num_parameters\s*[:|]\s*{COUNT}", "parameters"),
    ("num_processes", rf"num_processes\s*[|=]\s*{COUNT}", "world_size"),
    ("device", r"^\|\s*device\s*\|\s*([^|]+?)\s*\|", "device_name"),
    ("eak", r"^\|\s*peak TFlops\s*\|\s*([\d.]+)", "peak_flops"),
)

TRAINER = Trainer(
    "llm.c",
    "llm.c",
    reader=read,
    plain_step=_PLAIN,
    identifying_line=re.compile(r"^\|\s*train data pattern\s*\|"),
    header=_HEADER,
    article="An",  # its first letter is read as a word, "el"
    setting_names=_SETTING_NAMES,
    glossary=(
        ("eval", "val loss {val}", say("llm.c.glossary.val_loss")),
        ("iteration", "step {}", say("llm.c.glossary.step")),
        ("loss", "loss {:.6f} (+z)", say("llm.c.glossary.loss")),
        ("grad_norm", "norm {:.4f} (+z)", say("glossary.gradient_norm")),
        ("lr", "lr {:.2e}", say("glossary.learning_rate")),
        ("ms", "{:.2f} ms", say("llm.c.glossary.step_time")),
        ("mfu", "{:.1f}% MFU", say("llm.c.glossary.mfu")),
        ("tokens_per_s", "{:.0f} tok/s", say("llm.c.glossary.tokens_per_second")),
    ),
    first_iteration=1,
    uses_torch=False,
    evaluates_next_token_loss=True,
    trains_on_plain_text=True,
    often_finetunes=True,
    eval_splits=1,
    final_eval_offsets=(0, 1),  # after the last update, which main.log counts as one more
    logs_checkpoints=True,
    resume_command="-y 1",
    clips_gradients=True,
)
_IN_C = replace(TRAINER, plain_step="", first_iteration=0)
_IN_PYTHON = replace(TRAINER, plain_step="", step_time_includes_eval=True, eval_timed_in_later_step=1)
