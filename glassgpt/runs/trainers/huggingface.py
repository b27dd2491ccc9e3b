"""Hugging Face's Trainer, and those built on it: TRL, axolotl, Unsloth. One dict per logging interval.

    {'loss': 2.9543, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.03}
    {'eval_loss': 2.8, 'eval_runtime': 3.2, …}
      3%|▎         | 10/330 [00:12<06:21,  1.19s/it]

The dicts have no step number. Where the progress bar was captured too, it gives the step and the time. Where
Python wrote the dicts in blocks, far from their bars, or no bar is there, their epochs and the closing dict
give the step:

    {'train_runtime': 21989.9, 'train_steps_per_second': 0.069, 'train_loss': 2.16, 'epoch': 3.0}

Since version 5 the numbers are quoted. A callback may print a dict again, with its epoch rounded, or before
it a part of it, rounded (LLaMA-Factory). Where no bar was captured, the plan of steps and epochs numbers the
dicts, too, or the checkpoints that were saved between them. In a notebook there is a table, whose steps have
numbers:

    Step    Training Loss    Validation Loss
    10      2.9543           2.8001

A model card has such a table, too, with `Training Loss | Epoch | Step` in front.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import COUNT, MAX_COUNT, MAX_FLOPS, NUMBER, parse_norm, parse_number
from glassgpt.runs.metric_columns import is_reinforcement
from glassgpt.runs.progress_bar import MIN_BAR_S, bar_seconds, bar_step_ms
from glassgpt.runs.trainer import Trainer

_DICT = re.compile(r"\{['\"][^{}]{1,8000}\}")
_PAIR = re.compile(rf"['\"]([\w/]+)['\"]:\s*(?:tensor\()?['\"]?{NUMBER}['\"]?")
# Bars of other things (reading files, loading weights) have a name in front, or another unit.
_BAR = re.compile(
    r"(?:^|\})\s*\d{1,3}%(?:\|[^|]{0,300}\|)?\s*(\d{1,15})/(\d{1,15}) "
    r"\[([\d:]{1,12})<[^\]]{0,30}?([\d.]{1,12}|\?)(it/s|s/it)"
)
# Of the model, its tokenizer, …
_SAVE = re.compile(r"(?<!to )\b[Ss]av(?:ing|ed|e)\b.{0,400}?\bcheckpoint-(\d{1,15})\b")
_EVAL_METRIC = re.compile(rf"\s{{0,8}}eval_loss\s{{1,80}}=\s{{1,20}}{NUMBER}\s*$")  # below `eval metrics`
_BEST = re.compile(r"checkpoint-(\d{1,15})\W{0,3}$")
# The second is a warning about arguments that differ from those of the checkpoint.
_RESUME = re.compile(
    r"\b(?:Resuming|Continuing) training from (?:checkpoint|global step|epoch)|\bAttempting to resume from "
    r"|do not match the ones in the `trainer_state\.json` within the checkpoint"
)
_PARAMETERS = re.compile(
    r"\ball params:\s*([\d,]+)|Trainable parameters = [\d,]{1,20}(?:/| of )([\d,]{1,20}) "
)
_BEGIN = "***** Running training *****"
_STEP_OF_TOTAL = re.compile(r"['\"]global_step/max_steps['\"]:\s*['\"](\d{1,15})/(\d{1,15})['\"]")
# A notebook's table, and the progress above it.
_TABLE = re.compile(r"^\W*(?:(?:Step|Epoch)\W+Training Loss|Training Loss\W+Epoch\W+Step)\b")
_CELLS = re.compile(r"\t|\s*\|\s*|\s{2,}")
_PROGRESS = re.compile(
    r"\[\s{0,12}(\d{1,12})/(\d{1,12}) ([\d:]{1,12})(?: < [\d:]{1,12})?.{0,40}Epoch ([\d.]{1,12})/(\d{1,9})\]"
)
_MAX_SAVES = 10_000
_SHOWN_AGAIN = say("hf-trainer.shown_again")
_ROUNDING_OF_RATE = 0.0005  # the Trainer prints three decimals
_ROUNDING_OF_METRIC = 0.0001  # of the same one, in a dict before
_MIN_EPOCHS = 3  # dicts, to number them
_MIN_COMMON = 3  # values of two dicts that tell that they are one


class TrainerReader:
    """Counts the dicts, and remembers where the progress bar was at each.

    A dict waits for the bar that is redrawn after it: the bar before it may lag behind. The training's bar is
    the one drawn last before the first loss; a bar with another total belongs to an evaluation.
    """

    def __init__(self) -> None:
        self._bar: int | None = None
        self._bar_total: int | None = None
        self._bar_moved = False  # since the previous loss
        self._is_in_blocks = False  # dicts are far from their bars
        self._bar_s, self._bar_step_ms = math.nan, math.nan  # elapsed, and of one iteration, as the bar says
        self._eval_s = 0.0  # of evaluations since the previous loss
        self._latest: dict[str, str] = {}  # dict with a loss or an evaluation
        self._waiting: dict[str, str] = {}
        self._waiting_line = 0
        self._eval_line = 0  # where an evaluation began that has no result yet
        self._epoch = 0.0
        self._epochs: list[str] = []  # of the dicts with a loss of this run, as printed
        self._eval_epochs: list[tuple[int, float]] = []  # line and epoch of this run's that no loss is beside
        self._saves: list[tuple[int, int]] = []  # of this run: iteration, and how many of its dicts before it
        self._logs_first_step = self._is_resumed = False
        self._planned_epochs: float | None = None
        self._count = 0  # of dicts with a loss
        self._count_at_end = -1  # of a process: its closing dict
        self._iteration_by_count: dict[int, int] = {0: 0}
        # Of the previous dict with a loss: iteration, seconds, and the bar's seconds so far.
        self._previous: tuple[int | None, float, float] = (None, 0.0, 0.0)
        # Of the first and the latest dict of this process that counts tokens: its number, tokens so far.
        self._tokens: tuple[tuple[int, float], tuple[int, float]] | None = None
        self._table: list[str] = []  # columns of the notebook's table that is being read
        self._is_new_table, self._table_row = False, 0  # no row of it yet; step or epoch of the latest row
        self._epochs_cut = False  # its epochs are rounded down
        self._rows: dict[int, str] = {}  # of this run's tables, by their step or epoch
        self._is_redrawn = False
        self._updates_per_epoch: float | None = None
        # What the run took, by the progress above the table; whether it came to its end.
        self._progress_s: float | None = None
        self._is_complete = False

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if "%|" in line or "% " in line:
            if "%|" in line and "{" in line:  # the bar on a dict's own line belongs to that dict
                self._read_waiting(builder)
            self._follow_bar(line, builder)
        elif self._waiting and self._bar_total is None and line and "{" not in line:
            self._read_waiting(builder)  # there are no bars: the line may begin another process
        may_be_table = self._table or "Training Loss" in line or "Epoch " in line
        if may_be_table and self._read_table(line, builder):
            return True
        if ": " in line and (match := _DICT.search(line)):
            values = dict(_PAIR.findall(match[0]))
            if progress := _STEP_OF_TOTAL.search(match[0]):  # ms-swift's
                values["step"], values["total_steps"] = progress.groups()
            if _is_repeated(self._latest, values):
                if self._waiting is self._latest and len(values) > len(self._latest):
                    self._waiting = self._latest = values  # the whole of it
                return True
            if "loss" in values or _eval_loss(values) is not None:
                self._latest = values
            if is_reinforcement(values):  # its loss may well be 0
                builder.trainer = _REINFORCEMENT
            self._read_waiting(builder)
            self._waiting, self._waiting_line = values, builder.line
            is_end = "train_runtime" in values and "loss" not in values
            if is_end or "%|" in line:  # no bar to wait for
                self._read_waiting(builder)
            is_loss = "loss" in values and "epoch" in values  # without an epoch it is another trainer's
            return "train_runtime" in values or is_loss or _eval_loss(values) is not None
        if "checkpoint-" in line and (match := _SAVE.search(line)):
            builder.add_checkpoint(int(match[1]))
            if not builder.is_process_announced:
                self._saves.append((int(match[1]), len(self._epochs) + ("loss" in self._waiting)))
        elif ("resum" in line or "training from" in line or "`trainer_state" in line) and _RESUME.search(
            line
        ):
            builder.start_process(resumed=True)
        elif _BEGIN in line:
            builder.start_process()
        elif "logging_first_step=" in line:
            self._logs_first_step = "=True" in line
        elif "eval_loss" in line and (match := _EVAL_METRIC.match(line)):
            self._read_waiting(builder)
            before = builder.last_val_loss
            if before is None or abs(parse_number(match[1]) - before) > _ROUNDING_OF_METRIC:
                builder.add_eval(self._count, parse_number(match[1]))
        elif "***** Running Evaluation *****" in line:
            self._eval_line = builder.line
        elif "arams: " in line or "arameters = " in line:
            if match := _PARAMETERS.search(line):
                builder.setup.values["parameters"] = round(parse_number(match[1] or match[2]))
        elif "Training completed. Do not forget" in line or line.lstrip().startswith("{'train_runtime'"):
            self._read_waiting(builder)
            self._add_eval_without_result(builder)
            builder.add_event("finish", line)
        return False

    def close(self, builder: RunBuilder) -> None:
        """Read the dict that waits; number those of a run whose end has no closing dict."""
        self._read_waiting(builder)
        planned, epochs = builder.setup.values.get("planned_iterations"), self._planned_epochs
        is_one_run = len(self._epochs) == self._count > 0
        is_unnumbered = self._bar_total is None and "loss" in self._latest and "step" not in self._latest
        if is_one_run and is_unnumbered and isinstance(planned, int) and epochs:
            error = parse_number(self._epochs[-1])  # an epoch may have part of an update more than planned
            self._number_by_epochs(epochs, planned, error, builder)
        self._number_by_saves(builder)
        self._number_lines(builder)

    def _read_waiting(self, builder: RunBuilder) -> None:
        self._end_table(builder)
        values, self._waiting = self._waiting, {}
        evaluated = _eval_loss(values)
        if values and self._eval_line < self._waiting_line:
            if "loss" in values:
                self._add_eval_without_result(builder)
            self._eval_line = 0
        if "loss" in values and "epoch" in values:
            self._read_loss(values, builder)
        elif evaluated is not None:
            name, loss = evaluated
            seconds = parse_number(values.get(f"{name}_runtime", "nan"))
            wall_s = builder.setup.values.get("wall_s")
            if isinstance(wall_s, float) and seconds > 0:
                builder.setup.values["wall_s"] = wall_s + seconds  # after training, whose time is known
            self._eval_s += seconds
            ms = None if math.isnan(seconds) else seconds * 1000
            if "total_steps" in values:
                builder.iterations_done = int(values["step"])
                builder.setup.values["planned_iterations"] = int(values["total_steps"])
            # Without a loss before it, its epoch says whether there were updates.
            is_later = not self._count and parse_number(values.get("epoch", "0")) > 0
            builder.add_eval(None if is_later else self._count, loss, ms=ms, line=self._waiting_line)
            if self._epochs[-1:] != [values.get("epoch")]:
                self._eval_epochs.append((self._waiting_line, parse_number(values.get("epoch", "nan"))))
            self._add_metrics(values, builder)
        elif "train_runtime" in values:
            builder.add_event("finish", f"train_runtime {values['train_runtime']} s")
            if self._count > self._count_at_end:  # else it is of a process without a loss line
                builder.setup.values["wall_s"] = parse_number(values["train_runtime"])
                self._number_by_closing(values, builder)
            self._count_at_end = self._count
            self._epoch, self._epochs = math.inf, []  # a loss after this is another run's
        elif any(name.startswith("eval_") for name in values):
            self._add_metrics(values, builder)
        self._number_lines(builder)

    def _add_metrics(self, values: Mapping[str, str], builder: RunBuilder) -> None:
        numbers = {name: parse_number(text) for name, text in values.items()}
        builder.add_metrics(numbers, self._count)

    def _number_by_closing(self, closing: Mapping[str, str], builder: RunBuilder) -> None:
        """Number the dicts of this run by their epochs and the closing dict, where bars do not."""
        last_epoch = parse_number(closing.get("epoch", "nan"))
        runtime, rate = (
            parse_number(closing.get(name, "nan")) for name in ("train_runtime", "train_steps_per_second")
        )
        total, error = runtime * rate, _ROUNDING_OF_RATE * runtime
        if self._bar_total and not abs(self._bar_total - total) > error + 1:
            total, error = float(self._bar_total), 0.0
        if self._number_by_epochs(last_epoch, total, error, builder) and not error:
            builder.setup.values["planned_iterations"] = round(total)

    def _number_by_epochs(self, last_epoch: float, total: float, error: float, builder: RunBuilder) -> bool:
        """Number the dicts of this run. Whether their epochs do that, and had to."""
        first = self._count - len(self._epochs) + 1
        counts = range(first, self._count + 1)
        steps = steps_of_epochs(self._epochs, last_epoch, total, error)
        if all(count in self._iteration_by_count for count in counts) and not self._is_in_blocks:
            by_bar = [self._iteration_by_count[count] for count in counts]
            far = sum(abs(one - other) > 1 for one, other in zip(by_bar, steps or by_bar, strict=True))
            self._is_in_blocks = 2 * far > len(by_bar)  # few bars were captured: the next one is far ahead
            if not self._is_in_blocks:
                return False
        for count in counts:
            self._iteration_by_count.pop(count, None)
        self._iteration_by_count |= dict(zip(counts, steps or (), strict=False))
        if steps and (last_loss_epoch := parse_number(self._epochs[-1])) > 0:
            for line, epoch in self._eval_epochs:
                if 0 < epoch <= last_epoch:
                    builder.iteration_by_eval_line[line] = round(epoch * steps[-1] / last_loss_epoch)
        return steps is not None

    def _number_by_saves(self, builder: RunBuilder) -> None:
        """Number the dicts of this run from its start, where bars and epochs do not: the settings may say the
        interval between two, or the checkpoints do, and both agree."""
        counts = range(self._count - len(self._epochs) + 1, self._count + 1)
        if self._bar_total is None and not self._logs_first_step and not self._is_resumed:
            interval = interval_of_saves(self._saves, builder.setup.settings.get("log_interval"))
            if interval and not any(count in self._iteration_by_count for count in counts):
                self._iteration_by_count |= {
                    count: number * interval for number, count in enumerate(counts, 1)
                }

    def _count_tokens(self, builder: RunBuilder) -> None:
        """Batches differ in length: the mean over the run. Of a single dict, what it counts so far."""
        if self._tokens is None:
            return
        ends = [(self._iteration_by_count.get(count), tokens) for count, tokens in self._tokens]
        (first, before), (last, after) = ends
        if self._tokens[0] == self._tokens[1]:
            first, before = 0, 0.0
        if first is not None and last is not None and first < last:
            builder.setup.values["tokens_per_iteration"] = round((after - before) / (last - first))

    def _number_lines(self, builder: RunBuilder) -> None:
        self._count_tokens(builder)
        if self._is_in_blocks:
            builder.has_step_times = False
            if self._count > self._count_at_end:
                builder.setup.values["wall_s"] = self._bar_s  # until the closing dict says it
        is_complete = len(self._iteration_by_count) == self._count + 1
        builder.iteration_by_count = self._iteration_by_count if is_complete else {}

    def _follow_bar(self, line: str, builder: RunBuilder) -> None:
        for match in _BAR.finditer(line):
            at, total = int(match[1]), int(match[2])
            # A shorter one, while this one is under way, is of an evaluation in it.
            is_inner = 0 < (self._bar or 0) < (self._bar_total or 0) > total
            if self._count == 0 and "loss" not in self._waiting and not is_inner:
                self._bar = self._bar if total == self._bar_total else None
                self._bar_total = total
            if total == self._bar_total:
                if self._bar is None and self._count == 0:  # above 1, the log begins in the middle
                    begins_in_middle = (at, math.nan, bar_seconds(match[3]))
                    self._previous = begins_in_middle if at > 1 else (None, 0.0, 0.0)
                if self._count and at < (self._bar or 0):
                    builder.start_process(has_header=False)
                self._bar_moved = self._bar_moved or at != self._bar
                self._bar = builder.iterations_done = at
                self._bar_s = bar_seconds(match[3])
                self._bar_step_ms = bar_step_ms(match[4], match[5])
        if self._waiting and "{" not in line:
            self._read_waiting(builder)

    def _add_eval_without_result(self, builder: RunBuilder) -> None:
        """One that began, and the next dict is a later loss."""
        if 0 < self._eval_line < builder.line and self._count:
            builder.add_eval(self._count, line=self._eval_line)
        self._eval_line = 0

    def _read_loss(self, values: dict[str, str], builder: RunBuilder) -> None:
        # Two dicts without a bar between them, though there is one: they were written later.
        if self._epochs and self._bar_total and not self._bar_moved and "step" not in values:
            self._is_in_blocks = True
        iteration = self._bar if self._bar_moved else None  # a bar that stands still was not captured
        if "step" in values:
            iteration = int(min(parse_number(values["step"]), MAX_COUNT))
        if iteration is not None:
            self._iteration_by_count[self._count + 1] = iteration
        if self._bar_moved and self._bar_total is not None:
            builder.setup.values["planned_iterations"] = self._bar_total
        epoch = parse_number(values["epoch"])
        is_launched = (
            self._count > 0 and builder.is_process_announced and not builder.is_resuming
        )  # its epoch may be rounded to 0, too
        if epoch < self._epoch or is_launched:
            self._number_by_saves(builder)
            builder.start_process(has_header=False)
            self._previous, self._tokens = (None, 0.0, math.nan), None
            self._epochs, builder.iterations_done = [], self._bar if self._bar_moved else None
            self._eval_epochs, self._saves = [], []
            self._is_resumed = False
        self._count += 1
        self._is_resumed = self._is_resumed or builder.is_resuming
        self._epoch = epoch
        self._epochs.append(values["epoch"])
        planned_epochs = builder.setup.values.get("epochs")
        if self._planned_epochs is None and isinstance(planned_epochs, float):
            self._planned_epochs = planned_epochs  # as the header says
        builder.setup.values["epochs"] = epoch

        # Time and tokens per iteration, where every dict has the totals so far; else by the bar.
        tokens = parse_number(values.get("num_input_tokens_seen", values.get("num_tokens", "nan")))
        seconds = parse_number(values.get("train_runtime", "nan"))
        previous_iteration, previous_seconds, previous_bar_s = self._previous
        self._previous = (iteration, seconds, self._bar_s)
        if math.isfinite(tokens):
            first = self._tokens[0] if self._tokens and self._tokens[1][1] < tokens else (self._count, tokens)
            self._tokens = (first, (self._count, tokens))
        updates = iteration - (previous_iteration or 0) if iteration is not None else 0
        ms = math.nan
        if updates > 0 and (previous_iteration is not None or self._count == 1):
            bar_s = self._bar_s - previous_bar_s - self._eval_s
            if seconds >= previous_seconds:
                ms = (seconds - previous_seconds) / updates * 1000
            elif self._bar_moved:
                ms = bar_s / updates * 1000 if bar_s >= MIN_BAR_S else self._bar_step_ms
        self._bar_moved, self._eval_s = False, 0.0
        devices = builder.setup.values.get("world_size")
        speed = parse_number(values.get("tokens_per_second_per_gpu", "nan"))
        builder.add_step(
            self._count,
            parse_number(values["loss"]),
            ms=ms,
            lr=parse_number(values.get("learning_rate", "nan")),
            grad_norm=parse_norm(values.get("grad_norm")),
            tokens_per_s=speed * (devices if isinstance(devices, int) else 1),
            line=self._waiting_line,
        )
        self._add_metrics(values, builder)

    def _read_table(self, line: str, builder: RunBuilder) -> bool:
        """A notebook's table. Rows of epochs have iterations where the progress says how many updates there
        are in all."""
        if "/" in line and (match := _PROGRESS.search(line)):
            self._end_table(builder)
            builder.iterations_done, total, epochs = int(match[1]), int(match[2]), int(match[5])
            self._progress_s, self._is_complete = bar_seconds(match[3]), match[1] == match[2]
            builder.setup.values["planned_iterations"] = total
            self._updates_per_epoch = total / epochs if epochs else None
        if _TABLE.match(line):
            self._table = [cell.strip() for cell in _CELLS.split(line.strip(" |"))]
            self._is_new_table = True
            if "reward" in self._table:
                builder.trainer = _REINFORCEMENT
            return False
        cells = [cell.strip() for cell in _CELLS.split(line.strip(" |"))] if self._table else []
        row = dict(zip(self._table, cells, strict=False))
        counted = row.get("Step", cells[0] if cells else "")
        if len(cells) < 2 or not counted.isdecimal() or len(counted) > len(str(MAX_COUNT)):
            is_between_rows = not line.strip("|-: ")  # blank, or the rule of a Markdown table
            if not is_between_rows:
                self._end_table(builder)
            return False
        iteration: float | None = int(counted)
        if "Step" not in self._table:
            if not self._rows:  # an epoch may have part of an update less: the Trainer cuts 0.99 to 0
                self._epochs_cut = int(counted) == 0
            iteration = self._updates_per_epoch and (
                (int(counted) + self._epochs_cut) * self._updates_per_epoch
            )
        loss, val_loss = (_number(row.get(f"{name} Loss", "")) for name in ("Training", "Validation"))
        if loss is None and val_loss is None:
            return False
        row_number, row_text = int(counted), line.strip()
        if self._count and row_number <= self._table_row and (self._is_new_table or self._is_redrawn):
            self._is_redrawn = self._rows.get(row_number) == row_text
            self._is_new_table = False
            if self._is_redrawn:  # the same table, shown again or later
                if _SHOWN_AGAIN not in builder.notes:
                    builder.notes.append(_SHOWN_AGAIN)
                return True
            builder.start_process(has_header=False)  # `train` was called again
            builder.setup.values.pop("wall_s", None)
            self._rows = {}
        self._is_new_table, self._table_row = False, row_number
        self._rows[row_number] = row_text
        self._count += 1
        if iteration is not None:
            self._iteration_by_count[self._count] = round(iteration)
        builder.add_step(self._count, loss)
        builder.add_metrics({name: number for name in row if (number := _number(row[name])) is not None})
        if val_loss is not None:
            builder.add_eval(self._count, val_loss)
        self._number_lines(builder)
        return True

    def _end_table(self, builder: RunBuilder) -> None:
        if self._table and self._progress_s is not None:
            if self._is_complete:
                builder.add_event("finish", "the progress above the table is complete")
            builder.setup.values["wall_s"], self._progress_s = self._progress_s, None
        self._table = []


def _is_repeated(latest: dict[str, str], values: dict[str, str]) -> bool:
    """Whether a callback prints the latest dict again, with its epoch rounded to two decimals; or has printed
    a part of it before, rounded."""
    if "epoch" not in values or "epoch" not in latest:
        return False
    if latest.keys() != values.keys():
        common = latest.keys() & values.keys()
        return len(common) == min(len(latest), len(values)) >= _MIN_COMMON and all(
            _is_rounded(latest[name], values[name]) for name in common
        )
    if latest["epoch"] == values["epoch"]:
        return False
    rounded = f"{parse_number(latest['epoch']):.2f}"
    return float(rounded) == parse_number(values["epoch"]) and all(
        latest[name] == values[name] for name in values if name != "epoch"
    )


def _is_rounded(first: str, second: str) -> bool:
    """Whether one of these numbers is the other, rounded."""
    if first == second:
        return True
    difference = abs(parse_number(first) - parse_number(second))
    return difference <= 0.501 * max(_last_digit(first), _last_digit(second))


def _last_digit(number: str) -> float:
    """What the last digit of a number counts: 0.01 in 4.29, 1e-9 in 4.999e-06."""
    digits, _, exponent = number.lower().partition("e")
    return float(f"1e{int(exponent or 0) - len(digits.partition('.')[2])}")  # inf, where a power would raise


def steps_of_epochs(epochs: Sequence[str], last_epoch: float, total: float, error: float) -> list[int] | None:
    """The step of each dict, by its share of all epochs: a multiple of the interval between two dicts.

    `total`: steps in all, give or take `error`. None where the epochs do not fit one interval."""
    shares = np.array([parse_number(text) for text in epochs]) / last_epoch
    if len(shares) < _MIN_EPOCHS or not (0 < total < MAX_COUNT and np.isfinite(shares).all()):
        return None
    digits = max(len(text.partition(".")[2]) for text in epochs)
    tolerance = 1 + total / last_epoch * 10.0**-digits + error
    steps = shares * total
    interval = round(float(steps[-1] - steps[0]) / (len(steps) - 1))
    if interval < 1 or tolerance >= total:
        return None
    numbers = interval * np.round(steps / interval)
    fits = np.abs(numbers - steps) <= tolerance
    if not fits.all() or numbers[0] < 1 or (np.diff(numbers) <= 0).any():
        # The interval is less than the epochs' rounding: count from the first one on.
        if steps[0] < interval / 2:
            interval = max(1, round(float(steps[-1]) / len(steps)))
        numbers = interval * (max(1, np.round(steps[0] / interval)) + np.arange(len(steps)))
        if (np.abs(numbers - steps) > tolerance).any():
            return None
    return [int(number) for number in numbers]


def interval_of_saves(saves: Sequence[tuple[int, int]], setting: object = None) -> int | None:
    """The number of steps between two dicts, from the step of each save and the number of dicts before it.
    `setting`: as a setting says it; None where the saves do not fit it, or do not show one number alone."""
    lowest = max((step // (count + 1) + 1 for step, count in saves), default=1)
    highest = min((step // count if count else MAX_COUNT for step, count in saves), default=MAX_COUNT)
    if isinstance(setting, int) and not isinstance(setting, bool):
        return setting if lowest <= setting <= highest else None
    return lowest if lowest == highest else None


def _number(cell: str) -> float | None:
    return parse_number(cell) if re.fullmatch(NUMBER, cell) else None


def _eval_loss(values: dict[str, str]) -> tuple[str, float] | None:
    """Its prefix and the loss: `eval_loss`, or with a name in front."""
    name = next((name for name in values if name.endswith("eval_loss")), None)
    return None if name is None else (name.removesuffix("_loss"), parse_number(values[name]))


def read_state(state: Mapping[str, object], builder: RunBuilder) -> None:
    """trainer_state.json, apart from its rows. It is saved with every checkpoint, and when training ends."""

    def positive(key: str) -> float:
        value = state.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and 0 < value <= MAX_FLOPS else 0.0  # type: ignore[operator, arg-type]

    done, planned, tokens = positive("global_step"), positive("max_steps"), positive("num_input_tokens_seen")
    values = builder.setup.values
    if planned:
        values["planned_iterations"] = builder.setup.settings["max_iters"] = int(planned)
    if batch_size := int(positive("train_batch_size")):
        builder.setup.settings["batch_size"] = batch_size
    if done and tokens:
        values["tokens_per_iteration"] = round(tokens / done)
        values["flops_per_token"] = positive("total_flos") / tokens or None
    is_finished = done >= planned > 0
    best = _BEST.search(str(state.get("best_model_checkpoint"))[-60:])
    saved = {int(best[1])} if best else set()
    if done and not is_finished:
        saved.add(int(done))
    # It says save_steps also where it saves by epochs, or never: so only if a save that is known fits.
    every = int(positive("save_steps"))
    if every and done < _MAX_SAVES * every and any(at % every == 0 for at in saved):
        saved |= set(range(every, int(done) + 1, every))
    for at in sorted(saved):
        builder.add_checkpoint(at)
    builder.line += 1
    if 0 < done <= MAX_COUNT:
        builder.iterations_done = int(done)
    if is_finished:
        builder.add_event("finish", f"global_step {done:.0f} of max_steps {planned:.0f}")


# TrainingArguments, by the names of TrainConfig where it has one.
_ARGUMENTS = {
    "max_steps": "max_iters", "warmup_steps": "warmup_iters", "learning_rate": "learning_rate",
    "per_device_train_batch_size": "batch_size", "gradient_accumulation_steps": "gradient_accumulation_steps",
    "num_train_epochs": "num_train_epochs",
}  # fmt: skip


def read_arguments(arguments: Mapping[str, object], builder: RunBuilder) -> None:
    """As its callback for TensorBoard writes them. Of max_steps, -1 says that num_train_epochs counts."""
    settings, schedule = builder.setup.settings, arguments.get("lr_scheduler_type")
    for name, setting in _ARGUMENTS.items():
        value = arguments.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT:
            settings[setting] = value
    if isinstance(schedule, str) and re.fullmatch(r"\w{1,40}", schedule):
        settings["lr_scheduler_type"] = schedule
    if isinstance(planned := settings.get("max_iters"), int) and planned > 0:
        builder.setup.values["planned_iterations"] = planned


TRAINER = Trainer(
    "hf-trainer",
    "Hugging Face Trainer",
    reader=TrainerReader,
    identifying_line=re.compile(
        r'\*{5} Running training \*{5}|^File "[^"]{1,300}\btransformers[/\\]trainer\.py"'
    ),
    header=(
        ("otal", rf"Total optimization steps = {COUNT}", "planned_iterations"),
        ("nsloth", r"Unsloth - 2x faster free finetuning", ""),
        ("otal steps", rf"\| Total steps = {COUNT}", "planned_iterations"),
        ("GPUs", rf"Data Parallel GPUs = {COUNT}", "world_size"),
        ("per device", rf"Batch size per device = {COUNT}", "batch_size"),
        ("ccumulation steps", rf"\| Gradient [Aa]ccumulation steps = {COUNT}", "gradient_accumulation_steps"),
    ),
    setting_names={
        "max_steps": "max_iters",
        "logging_steps": "log_interval",
        "Instantaneous batch size per device": "batch_size",
        "Gradient Accumulation steps": "gradient_accumulation_steps",
    },
    glossary=(
        ("loss", "'loss': {:.4f}", say("hf-trainer.glossary.loss")),
        ("grad_norm", "'grad_norm': {:.4g}", say("glossary.gradient_norm")),
        ("lr", "'learning_rate': {:.3g}", say("glossary.learning_rate")),
        ("ms", "it/s (one takes {:.0f} ms)", say("glossary.interval_time")),
        ("", "'epoch': …", say("hf-trainer.glossary.epoch")),
        ("eval", "'eval_loss': {val}", say("hf-trainer.glossary.eval_loss")),
    ),
    rows_key="log_history",
    document_reader=read_state,
    event_texts={"args/text_summary": read_arguments},
    # In a tracker's export. The Trainer gives trackers these names.
    table_columns=(
        frozenset({"train/loss", "train/learning_rate", "train/epoch"}),
        frozenset({"train/loss", "train/learning_rate", "train/global_step"}),
    ),
    first_iteration=1,
    step_time_is_interval_mean=True,
    loss_is_interval_mean=True,
    zero_loss_cause=say("hf-trainer.zero_loss_cause"),
    often_finetunes=True,
    has_saves_around_it=True,
    resume_command="--resume_from_checkpoint",
    resumed_log_note=say("hf-trainer.resumed_log_note"),
    clips_gradients=True,
)
_REINFORCEMENT = replace(TRAINER, zero_loss_cause=None, loss_measures_learning=False)
