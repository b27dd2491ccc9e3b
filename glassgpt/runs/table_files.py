"""Files that hold tables of metrics, as RunLogs: CSV and TSV, lines of JSON, JSON documents.

    runs, rest = read_tables(read_texts(file), "metrics.csv")      # no runs: `rest` is to be read as a log

Recognised by their content: a header with a step and a loss, or objects with them. Read as they come, in
bounded memory; only a JSON document has to be read whole. Of special kinds:

    Hugging Face's trainer_state.json       a document with `log_history`
    wandb's CSV                             "Step","run-1 - train/loss","run-1 - train/loss__MIN", …
    TensorBoard's CSV                       Wall time,Step,Value; the file's name has the metric's
    Keras's history                         {"loss": [4.1, 3.9], "val_loss": [4.2, 4.0]}
    MLflow's CSV                            Run,metric,step,value: a row for each value

metric_columns.py has the names of columns, table_time.py which of them are clocks, metric_table.py what
happens to rows.
"""

from __future__ import annotations

import csv
import heapq
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from glassgpt.errors import UserError
from glassgpt.i18n import say
from glassgpt.runs.lines import whole_lines
from glassgpt.runs.log_numbers import parse_cell
from glassgpt.runs.metric_columns import bare_losses, metric_of, normalise, role_of
from glassgpt.runs.metric_table import MetricTable
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.table_time import Row
from glassgpt.runs.trainers import TRAINERS
from glassgpt.sanitize import sanitize_line

HEAD_CHARS = 1 << 16  # what decides about the kind of a file
MAX_DOCUMENT_CHARS = 256 << 20  # its text is held in memory, but only one row of it at a time
_MAX_OBJECT_CHARS = 64 << 20  # of a document that has to be decoded as a whole
MAX_RUNS = 100  # of one table
_MAX_DEPTH = 4  # of objects in objects
_MAX_KEYS = 10_000  # of one row
_MAX_RUN_NAME_CHARS = 200
_MAX_VALUE_ROWS = 1_000_000  # of a table with a row for each value
_DELIMITERS = (",", "\t", ";")
_LOSSES = ("loss", "val_loss", "val_bpb")
_SEEDS = {"seed", "random_seed", "config_seed"}
_COUNTS = ("iteration", "epoch")
# Of results of experiments, one row each, as autoresearch keeps them; and of those that have none.
_EXPERIMENT = {"commit", "status"}
_FAILED = {"crash", "crashed", "fail", "failed", "failure", "error", "timeout", "oom"}
_TENSORBOARD_HEADER = ["wall time", "step", "value"]
_METRIC_COLUMNS = {"metric", "metric_name", "name", "tag", "key"}  # of a table with a row for each value
_ENVELOPES = {"data", "payload", "values", "record"}  # of a row's values
_COPY_NUMBER = re.compile(r"\s*\(\d{1,4}\)$")  # of a file that was downloaded twice
_DOCUMENT = re.compile(r'\s*(?:\{\s*(?:["}]|$)|\[\s*(?:[{\]]|$))')
_SPACE = re.compile(r"\s*")


def read_tables(texts: Iterator[str], name: str) -> tuple[tuple[RunLog, ...], Iterator[str]]:
    """The runs of a table, and the texts that are left; without runs, these are all of the file.

    UserError for a table without any loss in it."""
    head = ""
    for text in texts:
        head += text
        if len(head) >= HEAD_CHARS:
            break
    head = head.removeprefix("\ufeff")
    texts = itertools.chain((head,), texts)
    runs: tuple[RunLog, ...] | None = None
    if table := growing_table(head, name):
        for line in _lines(texts):
            table.feed(line)
        runs = table.build(name)
    elif _DOCUMENT.match(head):  # not `[12:00:00] step 1`: a long log must not be joined into one text
        document = "".join(_up_to(texts, MAX_DOCUMENT_CHARS))
        return _read_document(document, name), itertools.chain((document,), texts)
    else:
        lines = _first_lines(head)
        delimiter = next((one for one in _DELIMITERS if _is_csv_of_values(lines, one)), None)
        runs = None if delimiter is None else _read_values(texts, delimiter, name)
    if runs == ():
        raise UserError(f"{name} is a table of metrics, but no row of it has a step and a loss")
    return runs or (), texts


def _up_to(texts: Iterable[str], limit: int) -> Iterator[str]:
    for text in texts:
        yield text
        limit -= len(text)
        if limit <= 0:
            return


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Of a row of JSON that is too long to be read, such as a trainer's whole state, what comes before its
    first array."""
    is_too_long = False
    for block in whole_lines(texts):
        if isinstance(block, str):
            is_too_long = False
            yield from block.split("\n")
        elif not (is_too_long and block.continues_line):
            is_object = block.text.startswith("{") and not block.is_incomplete
            is_too_long = is_object and _decode(block.text) is None
            yield _before_array(block.text) if is_too_long else block.text


def _before_array(text: str) -> str:
    """Of an object whose array is too long, the same with an empty one; a blank line where there is none."""
    before, opening, _ = text.partition(": [")
    head = f"{before}{opening}]}}"
    return head if opening and isinstance(_decode(head), dict) else ""


# --- rows that are lines ---


class LineTable:
    """CSV or lines of JSON, which a trainer may still be writing: builds the runs at any time."""

    def __init__(self, delimiter: str | None, name: str = "") -> None:
        """`delimiter`: of a CSV; None: JSON. `name`: of the file, which names TensorBoard's metric."""
        self._delimiter, self._name = delimiter, name
        self._tables = _RunTables(tells_seeds=delimiter is not None)
        self._line = 0
        self._names: list[str] = []  # of a CSV's columns
        self._counts: set[str] = set()  # of those that count steps or epochs
        self._columns: dict[str, list[tuple[int, str]]] = {}

    def feed(self, line: str) -> None:
        self._line += 1
        if not line.strip():
            return
        if self._delimiter is not None:
            self._feed_csv(line, self._delimiter)
            return
        row = _decode(line)
        if not isinstance(row, dict):
            self._tables.damaged += 1
        elif row:
            self._tables.feed(_flat(row), self._line)

    def _feed_csv(self, line: str, delimiter: str) -> None:
        cells = _cells(line, delimiter)
        if cells is None:
            self._tables.damaged += 1
        if not cells or not any(cells):
            return
        if not self._names:
            self._names = [column.strip() for column in cells]
            if _is_of_tensorboard(self._names):
                self._names = ["Wall time", "Step", _tensorboard_metric(self._name)]
            self._counts = {column for column in self._names if role_of(column) in _COUNTS}
            self._columns = _columns_by_run(self._names)
            return
        for run, columns in self._columns.items():
            row = {column: cells[at] for at, column in columns if at < len(cells) and cells[at]}
            if not self._counts.issuperset(row):  # else there is nothing of this run, or of a damaged line
                self._tables.feed(row, self._line, run)

    def build(self, name: str, final: bool = True) -> tuple[RunLog, ...]:
        return self._tables.build(name, final)


def _first_lines(head: str) -> list[str]:
    lines = [line for line in head.removeprefix("\ufeff").splitlines()[:64] if line.strip()]
    # The last line goes on.
    return lines[:-1] if len(head) >= HEAD_CHARS and len(lines) > 1 else lines


def growing_table(head: str, name: str = "") -> LineTable | None:
    """For a file that begins so; None where that is not a table, or a table of another form."""
    lines = _first_lines(head)
    if lines and _are_json_rows(lines):
        return LineTable(None)
    if not lines or _DOCUMENT.match(head):
        return None
    for delimiter in _DELIMITERS:
        names, _ = _header(lines, delimiter)
        if _is_csv_with_losses(lines, delimiter) and _metric_column(names) is None:
            return LineTable(delimiter, name) if name or not _is_of_tensorboard(names) else None
    return None


# --- CSV ---


def _cells(line: str, delimiter: str) -> list[str] | None:
    """None where they are damaged, such as a field of more than 128 KiB; empty for a comment."""
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True)) if line[:1] != "#" else []
    except csv.Error:
        return None


def _is_of_tensorboard(names: Sequence[str]) -> bool:
    return [name.lower() for name in names] == _TENSORBOARD_HEADER


def _header(lines: Sequence[str], delimiter: str) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the rows after it."""
    rows = [line for line in lines if not line.startswith("#")]
    try:
        names, *cells = csv.reader(rows, delimiter=delimiter, skipinitialspace=True)
    except (csv.Error, ValueError):
        return [], []
    return [column.strip() for column in names], cells


def _metric(column: str) -> str:
    """wandb's `run-1 - train/loss` without the run."""
    return column.rpartition(" - ")[2]


def _is_csv_with_losses(lines: Sequence[str], delimiter: str) -> bool:
    names, rows = _header(lines, delimiter)
    if _is_of_tensorboard(names):
        return True
    roles = {role_of(_metric(name)) for name in names} | bare_losses(names).keys()
    if len(names) < 2 or not roles.intersection(_LOSSES):
        return False
    cells = [cell for row in rows[:20] for cell in row if cell.strip()]
    if set(map(normalise, names)) >= _EXPERIMENT:
        return True
    if not roles.intersection((*_COUNTS, "timestamp", "elapsed_s")):  # then nothing but numbers
        return bool(cells) and all(parse_cell(cell.strip()) is not None for cell in cells)
    whole = sum(len(row) >= 2 for row in rows[:20])
    return 2 * whole >= sum(map(bool, rows[:20])) and (
        not rows or any(parse_cell(cell) is not None for cell in cells)
    )


def _is_csv_of_values(lines: Sequence[str], delimiter: str) -> bool:
    """A row for each value."""
    names, rows = _header(lines, delimiter)
    at = _metric_column(names)
    return at is not None and any(role_of(row[at]) in _LOSSES for row in rows if at < len(row))


def _metric_column(names: Sequence[str]) -> int | None:
    """Of a table whose rows are a metric's name, a step and a value each."""
    plain = [normalise(name) for name in names]
    if "value" not in plain or not any(role_of(name) in _COUNTS for name in names):
        return None
    return next((at for at, name in enumerate(plain) if name in _METRIC_COLUMNS), None)


def _read_values(texts: Iterable[str], delimiter: str, name: str) -> tuple[RunLog, ...]:
    """The values of one step and run are one row."""
    numbered = enumerate((_cells(line, delimiter) for line in _lines(texts)), 1)
    names = [column.strip() for column in next(cells for _, cells in numbered if cells)]
    plain, roles = [normalise(column) for column in names], [role_of(column) for column in names]
    value_at, metric_at = plain.index("value"), _metric_column(names)
    step_at = next(at for at, role in enumerate(roles) if role in _COUNTS)
    run_at = roles.index("run") if "run" in roles else None
    tables = _RunTables()
    rows: dict[tuple[str, float], tuple[int, dict[str, object]]] = {}
    for line, cells in numbered:
        step = parse_cell(cells[step_at]) if cells and len(cells) == len(names) else None
        if cells is None or step is None or not math.isfinite(step) or len(rows) >= _MAX_VALUE_ROWS:
            tables.damaged += cells != []
            continue
        run = "" if run_at is None else cells[run_at]
        others = {names[at]: cells[at] for at in range(len(names)) if at not in (metric_at, value_at)}
        rows.setdefault((run, step), (line, dict(others)))[1][cells[metric_at or 0]] = cells[value_at]
    for _, (line, row) in sorted(rows.items(), key=lambda one: one[0][1]):
        tables.feed(row, line)
    return tables.build(name)


class _RunTables:
    """A table for each run of a file. Rows name their run in a column, or stand beside those of others."""

    def __init__(self, tells_seeds: bool = False) -> None:
        """`tells_seeds`: every row has all columns, so that runs of one name differ by their seeds."""
        self._tells_seeds = tells_seeds
        self._seed_column = ""
        self.damaged = self._failed = 0  # rows
        self._tables: dict[str, MetricTable] = {}
        self._left_out: set[str] = set()
        self._run_column: str | None = None  # "": there is none
        self._status_column = ""  # of an experiment

    def feed(self, row: Row, line: int, run: str = "") -> None:
        if self._run_column is None:
            self._run_column = next((column for column in row if role_of(column) == "run"), "")
            if self._tells_seeds:
                names = {normalise(column): column for column in row}
                if not self._run_column and names.keys() >= _EXPERIMENT:
                    self._run_column, self._status_column = names["commit"], names["status"]
                seeds = (column for column in row if normalise(column) in _SEEDS)
                self._seed_column = next(seeds, "")
        if self._status_column and normalise(str(row.get(self._status_column))) in _FAILED:
            self._failed += 1
            return
        if self._run_column:
            run = str(row.get(self._run_column, ""))[:_MAX_RUN_NAME_CHARS]
            if self._seed_column in row:
                run = f"{run}, seed {str(row[self._seed_column])[:20]}"
        table = self._tables.get(run)
        if table is None:
            if len(self._tables) >= MAX_RUNS:
                if len(self._left_out) < _MAX_KEYS:
                    self._left_out.add(run)
                return
            table = self._tables[run] = MetricTable()
        table.feed(row, line)

    def build(self, name: str, final: bool = True) -> tuple[RunLog, ...]:
        is_one = len(self._tables) == 1
        runs = [
            one
            for run, table in self._tables.items()
            for one in table.build(name, None if is_one else sanitize_line(run), final=final)
        ]
        notes = [say("table.runs_left_out", count=len(self._left_out))] if self._left_out else []
        notes += [say("table.damaged_rows", count=self.damaged)] if self.damaged else []
        notes += [say("table.failed_rows", count=self._failed)] if self._failed else []
        return tuple(
            replace(run, runs_in_file=max(len(runs), run.runs_in_file), notes=(*run.notes, *notes))
            for run in runs
        )


def _columns_by_run(names: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    """Places and names of the columns. wandb exports several runs beside each other: of each those that mean
    something; the other columns are of all of them. One run: its name is empty."""
    metrics = [_metric(column) for column in names]
    known = [(at, names[at]) for at, one in enumerate(metrics) if role_of(one) or metric_of(one)]
    if all(" - " not in column for _, column in known):
        return {"": [(at, column) for at, column in enumerate(names) if column]}
    shared = [(at, column) for at, column in known if " - " not in column]
    runs: dict[str, list[tuple[int, str]]] = {}
    for at, column in known:
        run, dash, metric = column.rpartition(" - ")
        if dash:
            runs.setdefault(run, list(shared)).append((at, metric))
    return runs


def _tensorboard_metric(name: str) -> str:
    """TensorBoard calls its downloads `run-NAME-tag-train_loss.csv`."""
    stem = PurePath(name).stem.removesuffix(".csv").rpartition("-tag-")[2]
    metric = _COPY_NUMBER.sub("", stem)
    if role_of(metric) not in _LOSSES:
        raise UserError(
            f"{name} is a CSV of TensorBoard's, which does not say what its values are, and neither does the "
            "file's name: rename it to train_loss.csv or val_loss.csv if that is what it holds, or give the "
            "folder of the event files"
        )
    return metric


# --- JSON, one object per line ---


def _decode(text: str) -> object:
    """None where it is not JSON, or too deep, or has a number of thousands of digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _flat(row: Mapping[str, object], prefix: str = "", depth: int = 0) -> dict[str, object]:
    """`{"train": {"loss": 3.2}}` as `{"train/loss": 3.2}`, and `{"event": "train", "data": {"loss": 3.2}}`
    without the envelope."""
    flat: dict[str, object] = {}
    for name, value in itertools.islice(row.items(), _MAX_KEYS):
        if isinstance(value, dict):
            if depth == 0 and name in _ENVELOPES:
                flat = _flat(value, depth=1) | flat
            elif depth < _MAX_DEPTH:
                flat |= _flat(value, f"{prefix}{name}/", depth + 1)
        else:
            flat[prefix + name] = value
    return flat


def _are_json_rows(lines: Sequence[str]) -> bool:
    """Objects, one per line, of which some have a loss and a count of steps."""
    rows = [_decode(line) for line in lines]
    objects = [_flat(row) for row in rows if isinstance(row, dict)]
    numbers = {name for row in objects for name, value in row.items() if parse_cell(value) is not None}
    roles = {role_of(name) for name in numbers} | bare_losses(numbers).keys()
    return (
        10 * len(objects) >= 9 * len(rows)
        and bool(roles.intersection(_LOSSES) and roles.intersection(_COUNTS))
        and (len(rows) > 1 or not any(isinstance(value, list) for value in objects[0].values()))
        # Nor wandb-summary.json, nor the results that Hugging Face's scripts leave.
        and (len(rows) > 1 or objects[0].keys().isdisjoint(("_step", "train_runtime")))
    )


# --- JSON documents ---


def _read_document(text: str, name: str) -> tuple[RunLog, ...]:
    """No runs: it holds no table."""
    if text.lstrip().startswith("["):
        table = MetricTable()
        _feed_array(text, text.index("["), table)
        return table.build(name)
    for trainer in TRAINERS:
        if not trainer.rows_key or f'"{trainer.rows_key}"' not in text:
            continue
        if match := re.search(rf'"{trainer.rows_key}"\s{{0,99}}:\s{{0,99}}(?=\[)', text):
            table = MetricTable(trainer)
            end = _feed_array(text, match.end(), table)
            if not table.finish():
                return ()
            rest = _decode(f"{text[: match.end()]}[]{text[end:]}")  # without its rows
            if trainer.document_reader is not None and isinstance(rest, dict):
                trainer.document_reader(rest, table.builder)
            return table.build(name)
    if len(text) > _MAX_OBJECT_CHARS:
        return ()
    document = _decode(text)
    if not isinstance(document, dict):
        return ()
    flat = _flat(document)
    lists = {path: value for path, value in flat.items() if isinstance(value, list) and value}
    # {"loss": [[1, 3.2], …]}, and {"history": [{"step": 1, "loss": 3.2}, …]}
    tables = [_rows_of_pairs(lists)]
    tables += [[_flat(row) for row in value if isinstance(row, dict)] for value in lists.values()]
    built: list[tuple[RunLog, ...]] = []
    for rows in tables:
        table = MetricTable()
        for row in rows:
            table.feed(row, 1)
        built.append(table.build(name, has_lines=False))
    if any(built):
        return max(built, key=lambda runs: (len(runs) > 0, sum(len(one.steps) for one in runs)))
    columns = {path: value for path, value in lists.items() if role_of(path) or _is_count(path)}
    if columns:
        return _read_columns(columns, name)
    table = MetricTable()
    table.feed({path: value for path, value in flat.items() if parse_cell(value) is not None}, 1)
    return tuple(
        replace(
            run_log,
            # The duration of the last evaluation says nothing about those before it.
            evals=tuple(replace(evaluation, ms=None) for evaluation in run_log.evals),
            is_excerpt=True,
            notes=(*run_log.notes, say("table.summary")),
        )
        for run_log in table.build(name, has_lines=False)
    )


def _rows_of_pairs(lists: Mapping[str, list[object]]) -> list[Row]:
    """Series of a step and a value, joined on the step."""
    rows: dict[float, dict[str, object]] = {}
    for path, series in lists.items():
        pairs = [pair for pair in series if isinstance(pair, list) and len(pair) == 2]
        for step, value in pairs if len(pairs) == len(series) else ():
            if (at := parse_cell(step)) is not None:
                rows.setdefault(at, {"step": step})[path] = value
    return [rows[at] for at in sorted(rows)]


def _feed_array(text: str, at: int, table: MetricTable) -> int:
    """Every object of the array that begins at `at`; returns where it ends. Of a truncated file, what there
    is."""
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    at += 1
    while True:
        at = _skip_space(text, at)
        if at < len(text) and text[at] == ",":
            at = _skip_space(text, at + 1)
        if at >= len(text) or text[at] == "]":
            return min(at + 1, len(text))
        try:
            item, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return len(text)
        line += text.count("\n", counted, at)
        counted = at
        if isinstance(item, dict):
            table.feed(_flat(item), line)
        at = end


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _is_count(path: str) -> bool:
    """`val/step` counts as well, where it is a list beside `val/loss`."""
    return role_of(path.rpartition("/")[2]) in _COUNTS


def _read_columns(columns: Mapping[str, list[object]], name: str) -> tuple[RunLog, ...]:
    """Lists of numbers beside each other. Those of one length are one table; a shorter list of validation
    losses has its own list of steps, or its steps are not known."""
    table = MetricTable()
    losses = [path for path in columns if role_of(path) in _LOSSES]
    if not losses:
        return ()
    parts: list[list[dict[str, object]]] = []
    unnumbered: list[object] = []
    for length in dict.fromkeys(len(columns[path]) for path in losses):
        same = {path: values for path, values in columns.items() if len(values) == length}
        has_count = any(_is_count(path) for path in same)
        if not parts or has_count:
            parts.append([dict(zip(same, row, strict=True)) for row in zip(*same.values(), strict=True)])
        else:
            unnumbered += [value for path in same if role_of(path) == "val_loss" for value in same[path]]
    counts = [path for path in columns if _is_count(path)]

    def count(row: Row) -> float:
        return next((value for path in counts if (value := parse_cell(row.get(path))) is not None), 0.0)

    for row in heapq.merge(*parts, key=count) if len(parts) > 1 else parts[0]:
        if len(parts) > 1:  # their columns of steps have different names
            row = {path: value for path, value in row.items() if path not in counts} | {"step": count(row)}
        table.feed(row, 1)
    if not table.finish():
        return ()
    for value in unnumbered:
        if (loss := parse_cell(value)) is not None:
            table.builder.add_eval(None, loss)
    return table.build(name, has_lines=False)
