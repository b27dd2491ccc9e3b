"""One run's table of metrics, row by row, as a RunLog: whatever file the rows come from.

    table = MetricTable()
    table.feed({"step": 10, "train/loss": 3.2, "_runtime": 12.5}, line=2)
    (run_log,) = table.build("metrics.csv")

The first rows are held back: which columns are taken, and the unit of a time without one, follow from them.
Three things in tables are not what they seem:

- Several processes may write one table, each at its own pace: a row that repeats a recent one is left out.
- A table may repeat the latest validation loss in every row: only another value is another evaluation.
- A clock counts whole seconds, or runs on during evaluations: see `StepClock`.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from glassgpt.i18n import Message, say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import MAX_CELL_CHARS, MAX_COUNT, parse_cell
from glassgpt.runs.metric_columns import (
    KIND_KEYS,
    VAL_WORDS,
    Role,
    are_losses,
    bare_losses,
    choose_columns,
    is_of_eval,
    is_reinforcement,
    metric_of,
    normalise,
    role_of,
    split_of_kind,
)
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.split_runs import split_runs
from glassgpt.runs.step_clock import parse_timestamp
from glassgpt.runs.table_events import (
    PLAN_KEYS,
    SETTINGS,
    is_event_key,
    read_event_row,
    read_event_text,
)
from glassgpt.runs.table_time import (
    MIN_GROWING_SHARE,
    STEP_TIME_UNITS,
    ColumnClock,
    Row,
    choose_table_time,
    parse_iteration,
)
from glassgpt.runs.trainer import Trainer
from glassgpt.runs.trainers import BY_ID, TRAINERS
from glassgpt.sanitize import sanitize_line

SAMPLE_ROWS = 2048  # held back; of a sparse table, the first evaluation may come late
_RECENT_ROWS = 256  # a process that lags farther behind another one counts as a restart
_MAX_SAME_LOSS_DIFFERENCE = 0.005  # of two processes' losses of one step, as a share of the loss
_CLOCK_LAG_S = 10.0  # between two processes that write one table
_MAX_REPEATED_SHARE = 0.1  # of the rows; more are those of several processes
_MIN_GROWING_ROWS = 8  # of a column that counts something since the start
_MIN_LAGGING_SHARE = 0.5  # of such a count, per iteration: one that lags behind has about as much
# Of the column `phase`, `mode` or `split`: no stage.
_NO_STAGE_WORDS = VAL_WORDS | {
    "train", "training", "warmup", "warm", "stable", "decay", "cooldown", "constant",
    "main", "final", "full", "all",
}  # fmt: skip
_MAX_NOTES = 5
_MAX_KINDS = 1000
_MIN_PARAMETERS = 1000  # fewer are in millions
_PLANNED_EPOCHS = frozenset(("total_epochs", "num_epochs", "n_epochs", "max_epochs", "epochs_total"))
_PREDICTION_TIMES = frozenset(("predict_runtime", "test_runtime"))  # of Hugging Face's Trainer
_SKIPPED = frozenset(("skipped", "is_skipped", "skip", "skipped_update", "update_skipped"))
# Columns that a reader looks for first, of those that are left out.
_SCORES = re.compile("(?<![a-z])(?:acc|ppl|perplexity|f1|bleu|rouge|wer|score|correct|reward|margin|kl)")
_MAX_LEFT_OUT = 5
_PROGRESS = ("percentage", "percent", "progress", "training_progress", "train_progress")
_MAX_FINAL_LR = 0.1  # of the highest: with such a learning rate, a progress of 1 is not 1%

_COLUMN_ROLES: tuple[Role, ...] = ("lr", "grad_norm", "tokens_per_s", "mfu")


class MetricTable:
    """`feed` the rows in their order, then `build`."""

    def __init__(self, trainer: Trainer | None = None) -> None:
        """`trainer`: that wrote the file; None: the columns tell, or nothing does."""
        self.builder = RunBuilder(trainer or BY_ID["unknown"])
        self.notes: list[Message] = []
        self._trainer = trainer
        self._sample: list[tuple[Row, int]] | None = []  # None: the columns are chosen
        self._names: set[str] = set()  # seen so far
        self._metrics: list[str] = []  # columns with metrics besides the loss
        self._eval_columns: list[str] = []  # that show an evaluation, whether or not it has a loss
        self._rewards: list[str] = []  # columns that make a row a step, where it has no loss
        self._kind_column = ""  # what a row is about
        self._kinds: dict[object, str | None] = {}  # by its text: the split; "": of training; None: no loss
        self._skip_column = ""  # whether an update was left out
        self._skipped: list[int] = []  # lines where it was
        self._progress_columns: list[str] = []
        self._prediction_columns: list[str] = []
        self._text_columns: list[str] = []  # of what happened
        self._columns: dict[Role, str] = {}
        self._step_columns: list[tuple[Role, str]] = []  # of these, what a step has besides loss and time
        self._units: dict[Role, str] = {}  # of times
        self._clock: ColumnClock | None = None  # that step times come from
        self._total_clock: ColumnClock | None = None  # since the start, whatever step times come from
        self._total_s: float | None = None
        self._stamp_column = ""
        self._totals: dict[str, float] = {}  # columns that only grow, and their latest values
        self._recent: dict[tuple[str, int], float] = {}  # "loss" or "val_loss", and iteration -> value
        self._counts_epochs = False  # there is no other count
        self._repeats_counts = False  # a few: a resume does an epoch or a step again
        self._processes = 1
        self._rows = self._first_line = self._last_line = 0
        self._first_iteration: int | None = None
        self._first_of_process = self._process_steps = 0
        self._last_iteration: int | None = None
        self._last_epoch: float | None = None
        self._earlier_iterations, self._interval = 0, 1  # of epochs before, where steps are counted in each
        self._rounds = 1  # so many epochs
        self._stage: str | None = None
        self._planned_count: int | None = None  # as a row of settings says
        self._left_out: list[str] = []  # columns of numbers
        self._without_unit: set[str] = set()  # such columns, of which a note says so
        self._last_val_loss: float | None = None  # of the row before
        self._repeats_val_loss = True  # the latest one, until there is another
        self._tokens: tuple[tuple[int, float], tuple[int, float]] | None = None  # first and last row's
        self._closing: tuple[int, int] | None = None  # line and iteration of the closing row
        self._run_s: float | None = None  # as the closing row says
        self._prediction_s = 0.0  # before that row
        self._texts: tuple[dict[str, str], dict[str, str]] = {}, {}  # of the latest step, and of that before
        self._progress: tuple[str, float] | None = None  # of the latest step: column and value
        self._lr: tuple[float, float] | None = None  # the highest and the latest learning rate

    def feed(self, row: Row, line: int) -> None:
        if self._sample is not None:
            self._sample.append((row, line))
            if len(self._sample) >= SAMPLE_ROWS:
                self._flush_sample()
        else:
            self._read(row, line)

    def expect_restart(self) -> None:
        """A process has started: the next row may repeat an iteration."""
        self._flush_sample()
        self._restart()

    def expect_trainer(self, trainer: Trainer) -> None:
        """The rows are this trainer's, if nothing said so before."""
        self._trainer = self._trainer or trainer

    def leave_out(self, names: Iterable[str]) -> None:
        """Columns of numbers that are in no row."""
        self._left_out += names

    def finish(self) -> bool:
        """There are no more rows. Whether any of them has a loss."""
        self._flush_sample()
        builder = self.builder
        if not builder.has_steps and not builder.has_evals and not builder.has_saves:
            return False
        if self._closing is not None:
            planned = builder.setup.values.get("planned_iterations")
            # It is written when the loop is left, by an abort, too.
            if not isinstance(planned, int) or self._closing[1] + self._interval > planned:
                builder.line, builder.iterations_done = self._closing
                builder.add_event("finish", "the closing row, without a loss")
            self._closing = None
        if self._is_complete():
            builder.line += 1
            builder.add_event("finish", "the progress is complete")
        elif texts := self._texts[0].items() - self._texts[1].items():
            builder.line += 1
            for name, text in sorted(texts):
                read_event_text(name, text, self._last_iteration, builder)
        if self._tokens is not None and "tokens_per_iteration" not in builder.setup.values:
            (first, before), (last, after) = self._tokens
            if last > first and before < after:
                builder.setup.values["tokens_per_iteration"] = round((after - before) / (last - first))
        if self._total_clock is not None and self._processes == 1:
            builder.setup.values["wall_s"] = self._total_s
        if self._run_s is not None:
            builder.setup.values |= {"wall_s": self._run_s, "prediction_s": self._prediction_s or None}
        if self._planned_count is not None and self._rounds == 1:
            is_reached = (self._last_iteration or 0) >= self._planned_count  # else counted from 0, maybe
            last = self._planned_count - (self._first_iteration == 0 and not is_reached)
            builder.setup.values.setdefault("planned_iterations", last)
        builder.finish()
        return True

    def build(
        self, name: str, run_name: str | None = None, has_lines: bool = True, final: bool = True
    ) -> tuple[RunLog, ...]:
        """Its runs: none where no row has a loss. `has_lines`: rows are lines of a text. `final`: there are
        no more; else rows may follow."""
        self._flush_sample()
        if not (self.finish() if final else self.builder.has_steps):
            return ()
        built = self.builder.build(name, ends_mid_line=False)
        if self._clock is not None and self._processes == 1 and "iteration" in self._columns:
            eval_ms = self._clock.clock.eval_ms(built.steps.ms)
            evals = (replace(one, ms=eval_ms.get(one.line, one.ms)) for one in built.evals)
            built = replace(built, evals=tuple(evals))
        notes = [*built.notes, *self.notes, *([say("table.epochs")] if self._counts_epochs else [])]
        left_out = sorted(self._left_out, key=_rank_left_out)
        shown, more = ", ".join(map(sanitize_line, left_out[:_MAX_LEFT_OUT])), len(left_out) - _MAX_LEFT_OUT
        if more > 0:
            notes.append(say("table.columns_left_out_more", columns=shown, more=more))
        elif left_out:
            notes.append(say("table.columns_left_out", columns=shown))
        if isinstance(spent_s := built.setup.prediction_s, float) and 0 < spent_s < math.inf:
            notes.append(say("table.predictions", prediction_s=spent_s))
        if self._rounds > 1:
            notes.append(say("rounds.joined", rounds=self._rounds))
        whole = replace(
            built,
            run_name=run_name,
            has_line_numbers=has_lines,
            first_line=self._first_line,
            last_line=self.builder.line,
            columns=self._described_columns(),
            notes=tuple(notes),
        )
        # What is known at the end counts as a line after the last one.
        runs = (replace(one, last_line=min(one.last_line, self._last_line)) for one in split_runs(whole))
        return tuple(self._with_skipped(one) for one in runs)

    def _with_skipped(self, run_log: RunLog) -> RunLog:
        first, end = (
            bisect_left(self._skipped, run_log.first_line),
            bisect_right(self._skipped, run_log.last_line),
        )
        if first == end:
            return run_log
        note = say(
            "table.skipped",
            column=sanitize_line(self._skip_column),
            skipped=end - first,
            rows=run_log.iterations_logged,
        )
        return replace(run_log, notes=(*run_log.notes, note))

    def _is_complete(self) -> bool:
        """Whether the progress of the latest row is that of the end: 100, or 1 where it is no percentage."""
        if self._progress is None or self._progress[1] not in (1, 100):
            return False
        column, progress = self._progress
        lr_is_low = self._lr is not None and self._lr[1] <= _MAX_FINAL_LR * self._lr[0]
        return progress == 100 or ("perc" not in column and lr_is_low)

    # --- which columns ---

    def _flush_sample(self) -> None:
        """Choose the columns from the rows held back, and read these."""
        if not self._sample:
            return
        sample, self._sample = self._sample, None
        counts = Counter(name for row, _ in sample for name, value in row.items() if _is_filled(value))
        self._names, self._metrics = set(counts), [name for name in counts if metric_of(name)]
        self._eval_columns = [name for name in counts if is_of_eval(name)]
        self._progress_columns = [name for name in counts if normalise(name) in _PROGRESS]
        self._text_columns = [name for name in counts if is_event_key(name)]
        self._prediction_columns = [name for name in counts if name in _PREDICTION_TIMES]
        if self._trainer is None:
            names = frozenset(counts)
            matching = (one for one in TRAINERS if any(columns <= names for columns in one.table_columns))
            self._trainer = next(matching, None)
        self._columns = choose_columns(counts)
        for name, role in self._trainer.column_roles.items() if self._trainer else ():
            if name in counts:
                self._columns[role] = name  # type: ignore[index]
        rows = [row for row, _ in sample]
        self._kind_column = self._columns.get("split") or self._choose_kind_column(rows)
        bare = bare_losses(counts)
        if all(
            are_losses([at for row in rows if (at := parse_cell(row.get(name))) is not None])
            for name in bare.values()
        ):
            self._columns |= bare
        epoch = self._columns.get("epoch")
        self._counts_epochs = (
            "iteration" not in self._columns
            and epoch is not None
            and all(parse_iteration(row[epoch]) is not None for row in rows if _is_filled(row.get(epoch)))
        )
        counter, loss = self._columns.get("iteration", epoch), self._columns.get("loss")
        numbered = [row for row in rows if counter in row]
        losses = [row for row in numbered if loss in row and self._split_of(row) == ""]
        rewards = [
            name
            for name in self._metrics
            if (known := metric_of(name)) and known.kind == "reward" and not known.is_eval
        ]
        others = [row for row in numbered if loss not in row and not row.keys().isdisjoint(rewards)]
        with_loss = {parse_iteration(row[counter]) for row in losses if counter is not None}
        # Else the loss and the rewards of one step are rows of their own.
        both = sum(parse_iteration(row[counter]) in with_loss for row in others if counter is not None)
        if losses and both <= _MAX_REPEATED_SHARE * len(others):
            self._rewards, losses = rewards, [row for row in numbered if self._is_step(row)]
        self._skip_column = next((name for name in counts if normalise(name) in _SKIPPED), "")
        numbers = [parse_iteration(row[counter]) for row in losses if counter is not None]
        # Not the last one: it may be a row of means.
        repeats = sum(one == other for one, other in pairwise(numbers[:-1]))
        self._repeats_counts = 0 < repeats <= _MAX_REPEATED_SHARE * len(numbers)
        val_losses = [
            value for row in losses if (value := row.get(self._columns.get("val_loss", ""))) is not None
        ]
        same = sum(one == other for one, other in pairwise(val_losses))
        self._repeats_val_loss = same > _MAX_REPEATED_SHARE * len(val_losses)  # else two are equal by chance
        usual = [name for name in counts if name != counter and 2 * counts[name] >= len(losses)]
        self._totals = {name: -math.inf for name in usual if _is_total(name, losses)}
        time = choose_table_time(self._columns, rows, losses, counter, self._counts_epochs)
        self._clock, self._total_clock, self._stamp_column = time.clock, time.total_clock, time.stamp_column
        self._units = time.units
        if time.without_unit:
            self._leave_out("step_time", time.without_unit)
        mfu = self._columns.get("mfu")
        is_percent = mfu is not None and ("%" in mfu or "percent" in mfu)
        if (
            mfu
            and not is_percent
            and max((parse_cell(row.get(mfu)) or 0.0 for row in rows), default=0.0) <= 1
        ):
            self._leave_out("mfu", mfu)  # 0.4 is 40%, or a slow 0.4%
        trainer = self._trainer or BY_ID["unknown"]
        self.builder.trainer = replace(
            trainer,
            step_time_is_interval_mean=trainer.step_time_is_interval_mean or self._clock is not None,
            iterations_are_epochs=self._counts_epochs or "epoch" in self._columns.get("loss", ""),
        )
        if is_reinforcement(counts):
            self.builder.trainer = replace(
                self.builder.trainer, zero_loss_cause=None, loss_measures_learning=False
            )
        if "iteration" not in self._columns and not self._counts_epochs:
            self.builder.iteration_by_count = {}
        for name in sorted(
            counts, key=lambda name: counts[name] == 1
        ):  # a single one is a setting, or a total
            self._note_left_out(name, [row[name] for row in rows if _is_filled(row.get(name))])
        self._note_step_columns()
        for row, line in sample:
            self._read(row, line)

    def _note_step_columns(self) -> None:
        columns = self._columns
        self._step_columns = [(role, columns[role]) for role in _COLUMN_ROLES if role in columns]

    def _note_left_out(self, name: str, values: Sequence[object]) -> None:
        key = normalise(name)
        is_read = name in self._columns.values() or name in self._metrics or key in _PROGRESS
        is_read = (
            is_read or key in _PLANNED_EPOCHS | PLAN_KEYS | _PREDICTION_TIMES or name in self._without_unit
        )
        is_setting = normalise(name.rpartition("/")[0]) in SETTINGS
        if not is_read and not is_setting and all(parse_cell(value) is not None for value in values):
            self._left_out.append(name)

    def _choose_kind_column(self, rows: Sequence[Row]) -> str:
        """The one whose texts say of some rows that they are of held-out data, and of others that they are
        not. Empty: there is none."""
        for name in self._names:
            if normalise(name.rpartition("/")[2]) in KIND_KEYS:
                texts = {text for row in rows if isinstance(text := row.get(name), str)}
                splits = {split_of_kind(text) for text in texts}
                if "" in splits and splits - {"", None}:
                    return name
        return ""

    def _split_of(self, row: Row) -> str | None:
        """As `split_of_kind`, of what the row says that it is about."""
        kind = row.get(self._kind_column)
        if not isinstance(kind, str):
            return ""
        if kind not in self._kinds:
            split = split_of_kind(kind)
            if len(self._kinds) >= _MAX_KINDS:
                return split
            # The phase `final` is one of training.
            self._kinds[kind] = (split or "") if self._kind_column == self._columns.get("split") else split
        return self._kinds[kind]

    def _is_evaluated(self, row: Row) -> bool:
        return any(parse_cell(row.get(name)) is not None for name in self._eval_columns)

    def _is_step(self, row: Row) -> bool:
        return _is_filled(row.get(self._columns.get("loss", ""))) or any(
            _is_filled(row.get(name)) for name in self._rewards
        )

    def _leave_out(self, role: Role, column: str) -> None:
        del self._columns[role]
        self._without_unit.add(column)
        self.notes.append(say("table.no_unit", column=sanitize_line(column)))

    def _adopt_new_columns(self, row: Row) -> None:
        """A column that begins late: an evaluation's, for example."""
        for name in row.keys() - self._names:
            self._names.add(name)
            if metric_of(name):
                self._metrics.append(name)
            if is_of_eval(name):
                self._eval_columns.append(name)
            if is_event_key(name):
                self._text_columns.append(name)
            if name in _PREDICTION_TIMES:
                self._prediction_columns.append(name)
            role = role_of(name)
            if role in ("loss", "val_loss", "val_bpb", "eval_s", "run_s", *_COLUMN_ROLES):
                self._columns.setdefault(role, name)
                self._note_step_columns()
            self._note_left_out(name, [row[name]])

    def _described_columns(self) -> dict[str, str]:
        """For people: what is read from which column, and the unit of times."""
        used: list[Role] = ["iteration", "loss", "val_loss", "val_bpb", *_COLUMN_ROLES, "tokens"]
        used += ["planned_iterations", "eval_s", "split", "parameters"]
        columns: dict[Role, str] = {"iteration": self._columns["epoch"]} if self._counts_epochs else {}
        columns |= self._columns
        described: dict[str, str] = {role: columns[role] for role in used if role in columns}
        for role, unit in self._units.items():
            described["time"] = f"{self._columns[role]} ({unit})"
        return {role: sanitize_line(column) for role, column in described.items()}

    # --- its rows ---

    def _read(self, row: Row, line: int) -> None:
        if not row.keys() <= self._names:
            self._adopt_new_columns(row)
        columns, builder = self._columns, self.builder
        builder.line = self._last_line = line
        self._first_line = self._first_line or line
        self._rows += 1

        def cell(role: Role) -> float | None:
            column = columns.get(role)
            return None if column is None else parse_cell(row.get(column))

        for name in self._prediction_columns if self._run_s is None else ():
            self._prediction_s += max(0.0, parse_cell(row.get(name)) or 0.0)
        loss, val_loss, val_bpb = cell("loss"), cell("val_loss"), cell("val_bpb")
        split = self._split_of(row) if self._kind_column else ""
        if split:
            loss, val_loss = None, loss if val_loss is None else val_loss
        elif split is None:
            loss = None
        if "iteration" in columns:
            iteration = parse_iteration(row.get(columns["iteration"]))
        else:
            iteration = parse_iteration(row.get(columns["epoch"])) if self._counts_epochs else self._rows
        if loss is not None and val_loss is not None and math.isnan(loss) != math.isnan(val_loss):
            # Where one is a number, NaN is how tables say that the other was not measured.
            loss, val_loss = (None, val_loss) if math.isnan(loss) else (loss, None)
        if iteration is None or loss is None:
            event = read_event_row(row, self._last_iteration if iteration is None else iteration, builder)
            self._planned_count = event.planned_count or self._planned_count
            self._run_s = self._run_s if event.run_s is None else event.run_s
        trainer = self._trainer
        if trainer is not None and trainer.document_reader is not None and trainer.rows_key in row:
            trainer.document_reader(row, builder)  # it holds all rows again: it is of the whole run
            return
        if iteration is None:
            if split and val_loss is not None and self._last_iteration is not None:
                self._add_eval(self._last_iteration, val_loss, None, cell("eval_s"))
            return
        epoch = cell("epoch") if "iteration" in columns else None
        planned = self._planned(row)
        counts_batches = (
            loss is None and planned is not None and self._counts_batches(iteration, planned, epoch, val_loss)
        )
        if counts_batches and self._last_iteration is not None:
            iteration, planned = self._closing[1] if self._closing else self._last_iteration, None
        else:
            iteration = self._counted_on(iteration, epoch)
        seconds = None if self._clock is None else self._clock.seconds(row)
        if self._total_clock is not None and (total_s := self._total_clock.seconds(row)) is not None:
            self._total_s = total_s
        if self._stamp_column:
            builder.stamps.add_seconds(line, parse_timestamp(row.get(self._stamp_column)))
        mark = loss
        if loss is None and self._rewards:
            rewards = (parse_cell(row.get(name)) for name in self._rewards)
            mark = next((value for value in rewards if value is not None), None)
        goes_back = self._last_iteration is not None and iteration <= self._last_iteration
        if self._first_iteration is None:
            self._first_iteration = iteration
        if goes_back and self._is_restart(row, iteration, mark, seconds):
            is_repeated = iteration == self._last_iteration and self._counts_epochs
            if is_repeated and len(self.notes) < _MAX_NOTES:
                self.notes.append(say("table.epoch_again", epoch=iteration))
            self._restart()
            if iteration <= self._first_iteration:  # a new run, whose first line has the same number
                first = max(iteration, builder.trainer.first_iteration)
                builder.trainer = replace(builder.trainer, first_iteration=first)
        if planned is not None and self._counts_epochs and "planned_iterations" not in columns:
            planned -= self._first_iteration == 0
        if self._earlier_iterations:  # it may be of an epoch
            builder.setup.values.pop("planned_iterations", None)
        elif planned is not None and 0 < planned <= MAX_COUNT:
            builder.setup.values["planned_iterations"] = int(planned)
        if (parameters := cell("parameters")) is not None and _MIN_PARAMETERS <= parameters <= MAX_COUNT:
            builder.setup.values["parameters"] = int(parameters)
        if (epoch := cell("epoch")) is not None and 0 <= epoch <= MAX_COUNT:
            builder.setup.values["epochs"] = epoch
        if not counts_batches:
            self._closing = None
        if val_loss is not None or val_bpb is not None:
            # Before the step: an evaluation in the same row comes before the time in it.
            self._add_eval(iteration, val_loss, val_bpb, cell("eval_s"))
        elif self._eval_columns and not {"val_loss", "val_bpb"} & columns.keys() and self._is_evaluated(row):
            self._add_eval(iteration, None, None, cell("eval_s"))
        elif mark is not None:
            self._last_val_loss = None
        elif builder.trainer.closing_row_has_no_loss and not counts_batches:
            self._closing = line, iteration
        if (
            mark is not None
            and (loss is not None or val_loss is None)
            and self._is_new("loss", iteration, mark)
        ):
            if self._skip_column and str(row.get(self._skip_column)).lower() == "true":
                self._skipped.append(line)
            self._interval = max(iteration - (self._last_iteration or 0), 1)
            if "split" in columns:
                self._note_stage(str(row.get(columns["split"]) or ""))
            self._add_step(iteration, loss, seconds, row)
            self._last_epoch = epoch
            if self._stage is not None:
                builder.set_stage(self._stage)
            if "run_s" in columns and columns["run_s"] in row:
                builder.line += 1  # it is the mean of all, and comes after the last step
        if (run_s := cell("run_s")) is not None and 0 <= run_s < math.inf:
            self._run_s, builder.iterations_done = run_s, iteration
            builder.add_event("finish", f"the whole run took {run_s:.1f} s")
        if not self._metrics:
            return
        metrics = {
            f"{split}/{name}" if split and not is_of_eval(name) else name: parse_cell(row.get(name))
            for name in self._metrics
        }
        builder.add_metrics({name: value for name, value in metrics.items() if value is not None}, iteration)

    def _planned(self, row: Row) -> float | None:
        """How many iterations, or epochs where these are counted, as the row says."""
        columns, count = self._columns, row.get(self._columns.get("iteration", ""))
        column = columns.get("planned_iterations")
        if column is not None and (planned := parse_cell(row.get(column))) is not None:
            return planned
        if self._counts_epochs:
            return parse_cell(next((row[name] for name in row if normalise(name) in _PLANNED_EPOCHS), None))
        return parse_cell(count.partition("/")[2]) if isinstance(count, str) and "/" in count else None

    def _counts_batches(
        self, iteration: int, planned: float, epoch: float | None, val_loss: float | None
    ) -> bool:
        """Whether a row without a training loss is of an evaluation that counts its own batches, to another
        total than that of the steps, while the epoch does not go back."""
        plan = self.builder.setup.values.get("planned_iterations")
        if not isinstance(plan, int) or self._earlier_iterations or planned == plan:
            return False
        is_complete_or_empty = iteration == planned or val_loss is None
        return is_complete_or_empty and (
            epoch is None or self._last_epoch is None or epoch >= self._last_epoch
        )

    def _note_stage(self, name: str) -> None:
        """A `phase` that is no split of the data and none of the learning rate is of other data."""
        if not name or not _NO_STAGE_WORDS.isdisjoint(normalise(name).split("_")):
            return
        if self._stage is not None and name != self._stage:
            self.builder.start_process(has_header=False)
        self._stage = name[:MAX_CELL_CHARS]

    def _counted_on(self, iteration: int, epoch: float | None) -> int:
        """With the iterations of earlier epochs, where the count begins again in the next epoch."""
        last, last_epoch = self._last_iteration, self._last_epoch
        if last is None or epoch is None or last_epoch is None:
            return iteration + self._earlier_iterations
        begins_again = iteration + self._earlier_iterations < last
        if begins_again and last_epoch < epoch <= last_epoch + 1:
            # A count from 0 has one line more.
            self._earlier_iterations = last + (self._interval if iteration == 0 else 0)
            self._rounds += 1
            self._recent.clear()
        elif begins_again and epoch < last_epoch:  # another run
            self._earlier_iterations = 0
        return iteration + self._earlier_iterations

    def _restart(self) -> None:
        if self._last_iteration is None:
            return
        self.builder.start_process(has_header=False)
        self._processes += 1
        self._recent.clear()
        self._process_steps = 0
        self._totals = dict.fromkeys(self._totals, -math.inf)
        self._last_iteration = self._last_val_loss = self._last_epoch = self._stage = None

    def _is_restart(self, row: Row, iteration: int, loss: float | None, seconds: float | None) -> bool:
        """Where the iterations go back: a process that lags behind repeats a loss, and what is counted since
        its start falls by no more than the iterations do."""
        last = self._last_iteration
        if last is None:
            return False
        for name, total in self._totals.items():
            value = parse_cell(row.get(name))
            expected = total * min(1, (iteration + 1) / (last + 1))
            if value is not None and value < _MIN_LAGGING_SHARE * expected:
                return True
        if iteration == last:
            is_repeated = self._repeats_counts and loss is not None
            return is_repeated and self._recent.get(("loss", iteration)) not in (None, loss)
        if iteration <= self._first_of_process and self._process_steps >= _MIN_GROWING_ROWS:
            return loss is not None and loss != self._recent.get(("loss", iteration))
        if seconds is not None and self._clock is not None and "timestamp" not in self._units:
            return seconds < self._clock.clock.last_s - _CLOCK_LAG_S
        if loss is None:
            return ("val_loss", iteration) not in self._recent and ("loss", iteration) not in self._recent
        known = self._recent.get(("loss", iteration))
        if known is None:
            return True
        is_same = abs(known - loss) <= _MAX_SAME_LOSS_DIFFERENCE * abs(known)
        return not (is_same or (math.isnan(loss) and math.isnan(known)))

    def _is_new(self, kind: str, iteration: int, value: float) -> bool:
        """False where another process wrote it already."""
        if (kind, iteration) in self._recent:
            return False
        self._recent[kind, iteration] = value
        if len(self._recent) > _RECENT_ROWS:
            del self._recent[next(iter(self._recent))]
        return True

    def _add_step(self, iteration: int, loss: float | None, seconds: float | None, row: Row) -> None:
        columns = self._columns
        values = {role: _known(parse_cell(row.get(column))) for role, column in self._step_columns}
        if "grad_norm" in values and row.get(columns["grad_norm"]) not in (None, "", "null"):
            norm = values["grad_norm"]
            values["grad_norm"] = math.inf if math.isnan(norm) else norm  # as parse_norm: it is printed
        ms = math.nan
        if self._clock is not None and seconds is not None:
            ms = self._clock.clock.step_ms(iteration, seconds)
        else:
            for role, unit in self._units.items():
                ms = _known(parse_cell(row.get(columns[role]))) * STEP_TIME_UNITS[unit]
        self.builder.add_step(iteration, loss, ms=ms, line=self.builder.line, **values)
        self._first_of_process = self._first_of_process if self._process_steps else iteration
        self._process_steps += 1
        self._last_iteration = iteration
        for name in self._totals:
            self._totals[name] = _known(parse_cell(row.get(name)))
        self._run_s = self.builder.iterations_done = None
        if self._text_columns:
            said = {one: text for one in self._text_columns if isinstance(text := row.get(one), str) and text}
            self._texts = said, self._texts[0]
        if self._progress_columns:
            shown = (
                (normalise(name), parse_cell(row[name])) for name in self._progress_columns if name in row
            )
            self._progress = next(((name, value) for name, value in shown if value is not None), None)
        if math.isfinite(lr := values.get("lr", math.nan)):
            self._lr = (max(lr, self._lr[0] if self._lr else lr), lr)
        tokens = parse_cell(row.get(columns["tokens"])) if "tokens" in columns else None
        if tokens is not None and math.isfinite(tokens):
            first = self._tokens[0] if self._tokens and tokens >= self._tokens[1][1] else (iteration, tokens)
            self._tokens = (first, (iteration, tokens))

    def _add_eval(
        self, iteration: int, val_loss: float | None, val_bpb: float | None, seconds: float | None
    ) -> None:
        value = val_bpb if val_loss is None else val_loss
        is_stale = self._repeats_val_loss and value is not None and value == self._last_val_loss
        self._last_val_loss = value
        if is_stale or not self._is_new("val_loss", iteration, _known(value)):
            return
        if self._clock is not None:
            self._clock.clock.add_eval(seconds, self.builder.line)
        if self._run_s is not None and seconds is not None and 0 <= seconds < math.inf:
            self._run_s += seconds  # after training, whose time is known
        self.builder.add_eval(
            iteration,
            value,
            ms=None if seconds is None else seconds * 1000,
            metric="loss" if val_bpb is None or val_loss is not None else "bits_per_byte",
            is_late=self._last_iteration is not None and iteration < self._last_iteration,
        )


def _rank_left_out(name: str) -> tuple[bool, bool]:
    """Scores and numbers of held-out data first."""
    return _SCORES.search(name.lower()) is None, VAL_WORDS.isdisjoint(normalise(name).split("_"))


def _is_total(name: str, rows: Sequence[Row]) -> bool:
    """Whether a column grows from row to row, but for a few restarts: a clock, tokens, costs."""
    values = [value for row in rows if (value := parse_cell(row.get(name))) is not None]
    grows = sum(later > value for value, later in pairwise(values))
    return len(values) >= _MIN_GROWING_ROWS and grows >= MIN_GROWING_SHARE * (len(values) - 1)


def _is_filled(value: object) -> bool:
    return value is not None and value != ""


def _known(value: float | None) -> float:
    return math.nan if value is None else value
