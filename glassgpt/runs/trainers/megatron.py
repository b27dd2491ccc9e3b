"""Megatron-LM, and its kin: Megatron-DeepSpeed, GPT-NeoX, NeMo.

    iteration       10/     100 | consumed samples: 640 | elapsed time per iteration (ms): 812.3 | lm loss: …
    validation loss at iteration 50 on validation set | lm loss value: 2.500000E+00 | lm loss PPL: 1.2E+01 |
    validation loss at iteration 50 | LM loss: 2.500000E+00 | LM PPL: 1.218249E+01                (older)
    samples/sec: 371.8 | iteration      100/     800 | elapsed time per iteration (ms): 688.5 | …  (GPT-NeoX)
    Training epoch 0, iteration 9/99 | lr: 3e-06 | reduced_train_loss: 10.31 | train_step_timing in s: 4.5

Loss and time are means since the previous line; the time excludes evaluations. An iteration whose loss is NaN
is skipped, and counted at the end of the line. A line with a loss scale and no loss is of iterations whose
losses were not finite, or that were all skipped. Without a scaler (loss scale 1.0) none is skipped.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, MAX_COUNT, NUMBER, parse_number
from glassgpt.runs.step_line import StepLine, add_values
from glassgpt.runs.trainer import Trainer

_ITERATION = re.compile(r"(?:^|\| |\] )\s*iteration\s{1,12}(\d{1,15})/\s{0,12}(\d{1,15}) \|")
_STEP = StepLine(
    _ITERATION.pattern,
    {
        r"elapsed time per iteration \(ms\)": "ms",
        r"elapsed time per iteration \(s\)": "s", "learning rate": "lr", "lm[ _]loss": "loss",
        r"(?<=\| )loss": "loss", "grad norm": "grad_norm", "global batch size": "batch",
        "consumed tokens": "tokens", "actual seqlen": "sequence", "MFU": "mfu",
        r"tokens per gpu per second \(tgs\)": "device_tokens_per_s", "number of nan iterations": "nan",
        r"tokens per GPU \(tokens/s/GPU\)": "device_tokens_per_s",
        "number of skipped iterations": "skipped", "loss scale": "scale",
    },
)  # fmt: skip
_NEMO = StepLine(
    r"^Training epoch \d{1,9}, iteration (\d{1,15})/(\d{1,15}) \|",
    {
        "reduced_train_loss": "loss", "lr": "lr", "train_step_timing in s": "s", "grad_norm": "grad_norm",
        "global_batch_size": "batch", "val_loss": "val_loss",
    },
)  # fmt: skip
_VALIDATION = re.compile(
    r"\bvalidation (?:loss|results) at (?:the end of training for val data|iteration (\d{1,15})\b)"
    rf"(?! on test)[^|]{{0,40}}\| (?:(?:lm|LM)[ _])?loss(?: value)?: {NUMBER}"
)
_SAVED = re.compile(r"\bsuccessfully saved checkpoint (?:from|at) iteration\s{1,12}(\d{1,15})\b")
# DeepSpeed's, which GPT-NeoX saves with.
_SAVED_BY_DEEPSPEED = re.compile(r"\bCheckpoint global_step(\d{1,15}) is ready now")
_STOPPED = re.compile(r"^exiting program (?:after|at iteration)\b")
_DONE = re.compile(r"^\[(?:after training is done|exiting program at the end of training)\]")
_MAX_SKIPPED = 1000  # between two lines: what a usual log interval has


class MegatronReader:
    """Remembers the latest iteration, and NeMo's latest validation loss."""

    def __init__(self) -> None:
        self._iteration: int | None = None
        self._logs_every_iteration = False
        self._val_loss: float | None = None
        self._names: set[str] = set()  # of the latest line's values

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if "iteration" in line and "|" in line:
            if line.startswith("Training epoch") and (step := _NEMO.parse(line, builder)):
                builder.trainer = _NEMO_TRAINER
                builder.setup.values["planned_iterations"] = step.planned
                val_loss = step.values.get("val_loss")
                # Each line repeats the latest one: at the beginning of an excerpt, it was made before.
                is_new = val_loss not in (None, builder.last_val_loss, self._val_loss)
                is_known = builder.has_steps or step.iteration == 0
                self._add(step.iteration, step.values, builder)
                if is_new:
                    builder.add_eval(step.iteration if is_known else None, val_loss)
                self._val_loss = val_loss
                return True
            if match := _ITERATION.search(line):
                if builder.trainer is TRAINER and line.startswith("samples/sec:"):
                    builder.trainer = _NEOX_TRAINER
                return self._read_step(int(match[1]), int(match[2]), line, builder)
            if match := _VALIDATION.search(line):
                at = int(match[1]) if match[1] else builder.last_iteration
                builder.add_eval(at, parse_number(match[2]))
                return True
        if "validation results on" in line and builder.last_iteration is not None and "|" in line:
            if self._logs_every_iteration:
                builder.trainer = _WITH_TASKS
            builder.add_eval(builder.last_iteration)  # as an accuracy
        if "successfully" in line:
            if match := _SAVED.search(line):
                builder.add_checkpoint(int(match[1]))
            elif "successfully loaded checkpoint" in line:
                builder.start_process(resumed=True)
        elif "is ready now" in line and (match := _SAVED_BY_DEEPSPEED.search(line)):
            builder.add_checkpoint(int(match[1]))
        elif _DONE.match(line):
            builder.add_event("finish", line)
        elif line.startswith("exiting program") and _STOPPED.match(line):
            builder.add_event("interrupt", line)
        return False

    def _read_step(self, iteration: int, planned: int, line: str, builder: RunBuilder) -> bool:
        values = _STEP.values(line)
        # A loss that is no number is left out of the line. Of one that is cut off, what is whole says so.
        whole = values if line.endswith("|") else _STEP.values(line[: line.rfind("|")])
        has_no_loss = "loss" in self._names and "loss" not in values and "scale" in whole
        if values.keys().isdisjoint(("ms", "s")) or not ("loss" in values or "nan" in values or has_no_loss):
            return False  # cut off
        if has_no_loss:
            values = whole
        elif not line.endswith("|") and values.keys() < self._names:
            builder.partial_iteration = iteration
            return False  # cut off: its last number may be cut too
        self._names = {*values, *self._names & {"loss"}}
        is_uncounted = has_no_loss and values["scale"] == 1 and "skipped" not in values
        if "loss" not in values and values.get("nan", is_uncounted) > 0:
            values["loss"] = math.nan
        builder.setup.values["planned_iterations"] = planned
        if values.get("scale", 1.0) != 1.0:  # other number formats need none
            builder.setup.settings.setdefault("dtype", "float16")
        self._add(iteration, values, builder)
        if 0 < values.get("skipped", 0) <= _MAX_SKIPPED:
            for _ in range(int(values["skipped"])):
                builder.add_event("scaler-overflow", "number of skipped iterations")
        return True

    def _add(self, iteration: int, values: dict[str, float], builder: RunBuilder) -> None:
        self._logs_every_iteration = self._iteration is not None and iteration == self._iteration + 1
        self._iteration = iteration
        sequence = values.get("sequence") or builder.setup.settings.get("block_size")
        batch = values.get("batch")
        if "tokens" in values:
            builder.setup.count_tokens(iteration, values["tokens"])
        elif batch and isinstance(sequence, int | float) and 0 < batch * sequence < MAX_COUNT:
            builder.setup.values["tokens_per_iteration"] = round(batch * sequence)
        add_values(builder, iteration, values)
        if batch and 0 < batch < MAX_COUNT:
            builder.add_batch_size(iteration, round(batch))


# `name ........ value`, as it prints its arguments; what each is here.
_ARGUMENTS = {
    "world_size": "world_size", "seq_length": "block_size", "num_layers": "n_layer",
    "hidden_size": "n_embd", "num_attention_heads": "n_head", "lr": "learning_rate", "min_lr": "min_lr",
    "train_iters": "max_iters", "lr_warmup_iters": "warmup_iters", "lr_decay_iters": "lr_decay_iters",
    "eval_interval": "eval_interval", "eval_iters": "eval_iters", "clip_grad": "grad_clip",
    "padded_vocab_size": "vocab_size", "weight_decay": "weight_decay", "log_interval": "log_interval",
    "tensor_model_parallel_size": "tensor_parallel", "pipeline_model_parallel_size": "pipeline_parallel",
    "model_parallel_size": "tensor_parallel", "pipe_parallel_size": "pipeline_parallel",
}  # fmt: skip

TRAINER = Trainer(
    "megatron",
    "Megatron-LM",
    reader=MegatronReader,
    identifying_line=re.compile(r"^(?:using world size: \d|> initialized tensor model parallel with size)"),
    header=(
        ("done with setup", r"^done with setup \.\.\.", ""),
        *(
            # GPT-NeoX says where a value is from: `log_interval .......... 100....................default`
            (f"{name} ..", rf"^{name} \.{{2,80}} (\S{{1,40}}?)(?:\.{{3,80}}(?:default|updated))?$", field)
            for name, field in _ARGUMENTS.items()
        ),
        (
            "model parallel rank",
            rf"number of parameters on (?:\(tensor, pipeline\) )?model parallel rank (?:0|\(0, 0\)): {COUNT}",
            "parameters_of_rank",
        ),
    ),
    glossary=(
        ("iteration", "iteration {}", say("glossary.updates_done")),
        ("ms", "elapsed time per iteration (ms): {:.1f}", say("glossary.interval_time")),
        ("lr", "learning rate: {:.6E}", say("glossary.learning_rate")),
        ("", "global batch size: …", say("megatron.glossary.batch")),
        ("loss", "lm loss: {:.6E}", say("hf-trainer.glossary.loss")),
        ("grad_norm", "grad norm: {:.3f}", say("glossary.gradient_norm")),
        ("", "number of skipped iterations: …", say("megatron.glossary.skipped")),
        (
            "eval",
            "validation loss at iteration {step} | lm loss value: {val}",
            say("hf-trainer.glossary.eval_loss"),
        ),
    ),
    step_time_is_interval_mean=True,
    loss_is_interval_mean=True,
    evaluates_next_token_loss=True,
    trains_on_plain_text=True,
    eval_splits=1,
    clips_gradients=True,
    logs_checkpoints=True,
    resume_command="--load CHECKPOINTS",
)
_NEOX_TRAINER = replace(TRAINER, name="GPT-NeoX")
_NEMO_TRAINER = replace(
    TRAINER,
    name="NeMo",
    first_iteration=0,
    step_time_is_interval_mean=False,
    loss_is_interval_mean=False,
    logs_checkpoints=False,
)
# An evaluation of a task is called in the loop: the timer of the next iteration includes it.
_WITH_TASKS = replace(
    TRAINER, step_time_includes_eval=True, step_time_is_interval_mean=False, eval_timed_in_later_step=1
)
