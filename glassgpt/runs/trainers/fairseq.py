"""fairseq: a line every `log_interval` updates, one per validation set, and the means of each epoch.

    {"epoch": 1, "update": 0.158, "loss": "7.2", "nll_loss": "5.9", "num_updates": "200", "lr": "1e-06", …}
    {"epoch": 1, "valid_loss": "6.3", "valid_ppl": "42.1", "valid_num_updates": "350"}
    epoch 001:    200 / 356 loss=7.2, nll_loss=5.9, ppl=59.71, num_updates=200, lr=1e-06, wall=460
    epoch 001 | valid on 'valid' subset | loss 6.3 | ppl 42.1 | num_updates 350
    epoch 001 | loss 6.8 | nll_loss 5.5 | num_updates 350 | wall 2400

The first two are `log_format=json`, the others `simple` and `tqdm`. Its criteria divide losses by ln(2): they
are in bits, and a perplexity is 2 to the power of the cross-entropy. That is `nll_loss` where it is printed:
`loss` then has more in it (label smoothing), or is a mean over something else than tokens (CTC: sentences).
The means of an epoch are steps only where no other lines are. Of several validation sets the first
counts, by which fairseq chooses its best checkpoint. Where a log begins in the middle, the best loss that its
first evaluation states is of an earlier one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_norm, parse_number
from glassgpt.runs.step_clock import StepClock, clock_us
from glassgpt.runs.trainer import Trainer

_PAIR = re.compile(rf"(?:[|,{{]\s?|\d )\"?([\w.-]{{1,80}})(?:\": ?\"?|=| ){NUMBER}")
_SUBSET = re.compile(r"\bvalid on '([^']{1,80})' subset \| ")
_BEGIN = re.compile(r"'common': \{'_name'|\bNamespace\(.{0,20000}\bmax_update=")
_SECONDS = r"(\d{1,12}(?:\.\d{1,30})?) seconds"
_SAVED = re.compile(
    rf"\b[Ss]aved checkpoint .{{1,1000}}? @ (\d{{1,15}}) updates.{{0,80}}?\(writing took {_SECONDS}"
)
_RESUMED = re.compile(r"\b[Ll]oaded checkpoint .{1,1000}? @ [1-9]\d{0,14} updates\)")
_ROUNDING_OF_PPL = 0.01  # share: the loss has three decimals, the perplexity two
_MAX_BITS = 50.0  # a perplexity of more is printed as infinite
_END = re.compile(rf"\bdone training in {_SECONDS}")


class FairseqReader:
    def __init__(self) -> None:
        self._clock: StepClock | None = None  # of `wall`
        self._subset: str | None = None
        self._eval_start: int | None = None  # µs, by the line's prefix
        self._has_inner_lines = False
        self._epoch_lines: list[int] = []  # of this process, as long as there are no others

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if "num_updates" in line and "epoch" in line:
            return self._read_values(line, builder)
        if "begin validation on" in line:
            self._eval_start = clock_us(builder.clock)
        elif "aved checkpoint" in line and (match := _SAVED.search(line)):
            seconds = parse_number(match[2])
            builder.add_checkpoint(int(match[1]), ms=seconds * 1000)
            if self._clock is not None:
                self._clock.add_eval(seconds)
        elif "max_update" in line and _BEGIN.search(line):
            self._start(builder)
        elif "oaded checkpoint" in line and _RESUMED.search(line):
            self._start(builder, resumed=True)
        elif "early stop since valid performance" in line:
            builder.add_event("finish", line)
        elif "done training in" in line and (match := _END.search(line)):
            builder.setup.values["wall_s"] = parse_number(match[1])
        return False

    def _start(self, builder: RunBuilder, resumed: bool = False) -> None:
        builder.start_process(resumed=resumed)
        self._clock, self._eval_start = None, None
        self._has_inner_lines, self._epoch_lines = False, []

    def _read_values(self, line: str, builder: RunBuilder) -> bool:
        values = dict(_PAIR.findall(line))
        # In JSON, every name of a validation set's line begins with the set's, of an epoch's with `train`.
        counted = next((name for name in values if name.endswith("num_updates")), None)
        if counted is None or not values[counted].isdecimal() or len(values[counted]) > len(str(MAX_COUNT)):
            return False
        subset, at = counted.removesuffix("num_updates").rstrip("_"), int(values[counted])
        if match := _SUBSET.search(line):
            subset = match[1]
        values = {name.removeprefix(f"{subset}_"): value for name, value in values.items()}
        if "loss" not in values:
            return False
        loss = parse_number(values["loss"])
        base = 2.0 if _is_cross_entropy(values, loss) else None
        if builder.trainer.loss_base != base:
            builder.trainer = replace(builder.trainer, loss_base=base)
        if subset not in ("", "train"):
            self._read_validation(subset, at, loss, values, builder)
            return True
        is_epoch = subset == "train" or ("%|" not in line and " | loss " in line)
        if is_epoch and self._has_inner_lines:
            return True
        if is_epoch:
            self._epoch_lines.append(builder.line)
        elif not self._has_inner_lines:  # these are the steps
            builder.summary_lines += self._epoch_lines
            self._has_inner_lines, self._epoch_lines = True, []
        is_first = self._clock is None
        ms = wall_s = parse_number(values.get("wall", "nan"))
        if math.isfinite(wall_s):
            self._clock = self._clock or StepClock.of_values([values["wall"]])
            ms = self._clock.step_ms(at, wall_s)
        if is_first and "wpb" in values:  # words a batch, and a second
            ms = 1000 * parse_number(values["wpb"]) / (parse_number(values.get("wps", "nan")) or math.nan)
        builder.add_step(
            at,
            loss,
            ms=ms,
            lr=parse_number(values.get("lr", "nan")),
            grad_norm=parse_norm(values.get("gnorm")),
            tokens_per_s=parse_number(values.get("wps", "nan")),
        )
        if base is None and "ppl" in values:
            builder.add_metrics({"ppl": parse_number(values["ppl"])})
        return True

    def _read_validation(
        self, subset: str, at: int, loss: float, values: Mapping[str, str], builder: RunBuilder
    ) -> None:
        end, start, self._eval_start = clock_us(builder.clock), self._eval_start, None
        seconds = (end - start) / 1e6 if end is not None and start is not None and end >= start else None
        if self._clock is not None:
            self._clock.add_eval(seconds)
        best = parse_number(values.get("best_loss", values.get("best", "nan")))
        if self._subset is None and best < loss:
            builder.add_eval(None, best)
        self._subset = self._subset or subset
        if subset == self._subset:
            builder.add_eval(at, loss, ms=None if seconds is None else seconds * 1000)


def _is_cross_entropy(values: Mapping[str, str], loss: float) -> bool:
    """Whether the perplexity is of this loss. Else the loss has more in it, as that of a gate to experts."""
    if "ppl" not in values or values.get("nll_loss", values["loss"]) != values["loss"]:
        return False
    perplexity = parse_number(values["ppl"])
    is_same = not 0 < loss < _MAX_BITS or abs(perplexity / 2**loss - 1) <= _ROUNDING_OF_PPL + 0.005 / 2**loss
    return is_same or not math.isfinite(perplexity)


TRAINER = Trainer(
    "fairseq",
    "fairseq",
    reader=FairseqReader,
    identifying_line=re.compile(r"\bfairseq(?:_cli)?[./]"),
    header=(
        ("max_update", r"\bmax_update(?:': |=)([1-9]\d{0,14})\b", "planned_iterations"),
        ("model params", r"\bnum\. (?:shared )?model params: ([\d,]+)", "parameters"),
        # A mixture of experts: of both together.
        ("expert model params", r"\bnum\. non-expert model params: ([\d,]+)", "frozen_parameters"),
        ("expert model params", r"\bnum\. expert model params: ([\d,]+)", "trainable_parameters"),
    ),
    glossary=(
        ("iteration", "num_updates={}", say("glossary.updates_done")),
        ("loss", "loss={:.4g}", say("fairseq.glossary.loss")),
        ("grad_norm", "gnorm={:.4g}", say("glossary.gradient_norm")),
        ("lr", "lr={:.3g}", say("glossary.learning_rate")),
        ("ms", "wall (one takes {:.0f} ms)", say("glossary.interval_time")),
        ("eval", "valid_loss={val}", say("fairseq.glossary.valid_loss")),
    ),
    step_time_is_interval_mean=True,
    loss_is_interval_mean=True,
    loss_base=2.0,
    evaluates_same_tokens=True,
    eval_splits=1,
    logs_checkpoints=True,
    resume_command="--restore-file",
)
