"""torchtitan, and the loops that print its line.

    step:  2  loss: 12.2097  grad_norm:  0.4884  memory: 45.30GiB(32.41%)  tps: 51,050  tflops: 98.49  mfu: …
    validate step: 10  loss:  9.8765  memory: 45.30GiB(32.41%)  tps: 90,000

tps, tflops and mfu are of one device, means since the previous line. The step time is the difference of two
lines' timestamps; a validation restarts that clock.
"""

from __future__ import annotations

import math
import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, MAX_COUNT, NUMBER, parse_number
from glassgpt.runs.step_clock import clock_us
from glassgpt.runs.step_line import ParsedStep, StepLine, add_values
from glassgpt.runs.trainer import Trainer

_STEP = StepLine(
    r"^step:\s{1,12}(\d{1,15})\s{1,8}loss:",
    {
        "loss": "loss", "grad_norm": "grad_norm", "tps": "device_tokens_per_s", "mfu": "mfu",
        "lr": "lr", "tflops": "tflops", "memory": "memory_gib",
    },
)  # fmt: skip
_MEMORY_SHARE = re.compile(r"GiB\(([\d.]{1,8})%\)")
_VALIDATION = re.compile(rf"^validate step:\s{{1,12}}(\d{{1,15}})\s{{1,8}}loss:\s{{1,12}}{NUMBER}")
_MESH = re.compile(r"device mesh with parallelism: (.{1,300})")
_MESH_SIZE = re.compile(r"\b(?:pp|dp_replicate|dp_shard|cp|tp)=(\d{1,6})\b")
_BATCH = re.compile(
    r"global batch size (\d{1,9}),.{0,60}? sequence length (\d{1,9}), total steps (\d{1,15})\b"
)
_START = re.compile(r"\bTraining starts at step (\d{1,15})\b")
_MIN_EXACT_MFU = 5.0  # percent: below, its two decimals say too little about the peak


class TorchtitanReader:
    """Remembers when the previous line was printed."""

    def __init__(self) -> None:
        self._clock_us: int | None = None
        self._iteration = 0

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if "loss:" in line:
            if step := _STEP.parse(line, builder):
                self._read_step(step, line, builder)
                return True
            if match := _VALIDATION.match(line):
                builder.add_eval(int(match[1]), parse_number(match[2]))
                self._clock_us, self._iteration = clock_us(builder.clock), int(match[1])
                return True
        elif "parallelism:" in line and (match := _MESH.search(line)):
            size = math.prod(int(degree) for degree in _MESH_SIZE.findall(match[1]))
            builder.setup.values["world_size"] = min(size, MAX_COUNT)
        elif "raining starts" in line and (match := _START.search(line)):
            builder.start_process(resumed=int(match[1]) > 1)
            self._clock_us, self._iteration = clock_us(builder.clock), int(match[1]) - 1
        elif line.startswith(
            (
                "Finished saving the checkpoint",
                "Saving a full checkpoint at last step",
                "Saving a model only checkpoint",
            )
        ):
            builder.add_checkpoint(builder.last_iteration)
        elif line.startswith("Training completed"):
            builder.add_event("finish", line)
        if "sequence length" in line and (match := _BATCH.search(line)):
            sequences, tokens, planned = map(int, match.groups())
            builder.setup.values |= {
                "tokens_per_iteration": sequences * tokens,
                "planned_iterations": planned,
            }
            builder.setup.settings["block_size"] = tokens
        return False

    def _read_step(self, step: ParsedStep, line: str, builder: RunBuilder) -> None:
        values, setup = step.values, builder.setup.values
        clock, previous = clock_us(builder.clock), self._clock_us
        updates = step.iteration - self._iteration
        if clock is not None and previous is not None and updates > 0 and clock > previous:
            values["ms"] = (clock - previous) / updates / 1000
        self._clock_us, self._iteration = clock, step.iteration
        # What its own ratios say about the model and the card, where the header is missing.
        speed, tflops, mfu = (values.get(name, 0.0) for name in ("device_tokens_per_s", "tflops", "mfu"))
        if mfu >= _MIN_EXACT_MFU and speed > 0 and 0 < tflops < math.inf:
            setup.setdefault("flops_per_token", tflops * 1e12 / speed)
            setup.setdefault("peak_flops", tflops * 1e14 / mfu)
        if (share := _MEMORY_SHARE.search(line)) and "memory_gib" in values and "memory_bytes" not in setup:
            total = values["memory_gib"] * 2**30 / (float(share[1].rstrip(".") or 0) / 100 or math.inf)
            setup["memory_bytes"] = round(total) if 0 < total < MAX_COUNT else None
        add_values(builder, step.iteration, values)


TRAINER = Trainer(
    "torchtitan",
    "torchtitan",
    reader=TorchtitanReader,
    identifying_line=re.compile(r"Starting job: |^Trainer is initialized with local batch size "),
    header=(
        ("total parameters", rf"\bsize: {COUNT} total parameters", "parameters"),
        ("eak", r"Peak FLOPS used for computing MFU: ([\d.]+e[+-]?\d+)", "peak_flops"),
        ("CUDA capacity", r"CUDA capacity: (.{1,80}?) with [\d.]+GiB", "device_name"),
    ),
    glossary=(
        ("iteration", "step: {}", say("glossary.updates_done")),
        ("loss", "loss: {:.5f}", say("glossary.all_ranks_loss")),
        ("grad_norm", "grad_norm: {:.4f}", say("glossary.gradient_norm")),
        ("", "memory: …GiB", say("torchtitan.glossary.memory")),
        ("tokens_per_s", "tps: {:,.0f}", say("glossary.device_tokens_per_second")),
        ("mfu", "mfu: {:.2f}%", say("glossary.device_mfu")),
        ("eval", "validate step: {step}  loss: {val}", say("hf-trainer.glossary.eval_loss")),
    ),
    table_columns=(frozenset({"loss_metrics/global_avg_loss"}),),
    step_time_is_interval_mean=True,
    evaluates_next_token_loss=True,
    eval_splits=1,
    clips_gradients=True,
)
