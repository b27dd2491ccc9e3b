"""A GlassGPT journal as a RunLog. Its step times exclude evaluations, and its ledger has every second.

    run_log = read_run_journal(Path("runs/shakespeare"))

A journal is a file like any other: a value of the wrong type counts as missing, and the numbers are clamped
like those of any log (see builder.py).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from glassgpt.errors import mentions_out_of_memory
from glassgpt.estimate.peak import PeakFlops
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.runs import journal_index
from glassgpt.runs.checkpoint_looks import read_looks
from glassgpt.runs.journal_index import JournalIndex
from glassgpt.runs.log_numbers import MAX_COUNT, MAX_LOSS, clamped
from glassgpt.runs.run_list import is_running
from glassgpt.runs.run_log import (
    ExitStatus,
    LeftOut,
    LogEvent,
    LoggedCheckpoint,
    LoggedEvaluation,
    LoggedForecast,
    LoggedProcess,
    LoggedSetup,
    RunLog,
)
from glassgpt.runs.step_rows import JOURNAL_COLUMNS, LOG_COLUMNS, StepRows
from glassgpt.runs.trainers import BY_ID
from glassgpt.runs.trainers.glassgpt import TRAINER
from glassgpt.sanitize import sanitize_record

_STEP_KEYS = tuple("step_ms" if column == "ms" else column for column in LOG_COLUMNS)
# Of a JournalReader: what an index has as it is.
_PLAIN_STATE = ("_count", "_last", "_run", "_start", "_first_updates", "_train_eval", "_notes")
_PART_KEYS = ("by_kind", "by_frequency", "by_script", "by_position", "passage_losses")
_SHAPE_SETTINGS = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
_KINDS_WITH_TEXT = ("run", "finding", "profile", "sample", "end")
_NOTE_KINDS = ("finding", "forecast", "sample")
MAX_SAMPLES = 100  # the latest
_EXIT_STATUSES: dict[str, ExitStatus] = {
    "finished": "finished",
    "stopped early": "finished",  # by --patience
    "evaluated": "finished",  # --eval_only
    "interrupted": "interrupted",
    "crashed": "crashed",
    "not finite": "crashed",
}


def read_run_journal(path: Path) -> RunLog:
    """`path`: a run's folder, or its journal."""
    file = path / journal.FILE_NAME if path.is_dir() else path
    live = is_running(file.parent)
    reader, begin = JournalReader(), 0
    index = journal_index.load(file)
    if index is not None:
        with contextlib.suppress(TypeError, ValueError, LookupError, AttributeError):  # else it is damaged
            reader, begin = JournalReader.from_index(index), index.end
    end = journal.whole_lines_end(file)
    for record in journal.read_part(file, begin, end):
        reader.feed(record)
    if end - begin >= journal_index.MIN_BYTES:
        journal_index.save(file, reader.index(end))
    for record in journal.read_part(file, end):
        reader.feed(record)
    return with_looks(reader.build(str(path), live), file.parent)


def run_log_from_records(records: Iterable[Record], name: str, live: bool = False) -> RunLog:
    reader = JournalReader()
    for record in records:
        reader.feed(record)
    return reader.build(name, live)


def with_looks(run_log: RunLog, run_dir: Path) -> RunLog:
    """With what was seen in its checkpoints, but not in those that a resume has superseded."""
    saved = {(one.iteration, one.start) for one in run_log.checkpoints}
    looks = tuple(one for one in read_looks(run_dir) if (one.iteration, one.start) in saved)
    return replace(run_log, looks=looks) if looks else run_log


@dataclass
class _Process:
    """What the records of one process say about it as a whole."""

    first_iteration: int
    run: Record = field(default_factory=dict)  # its first `run` and `end`
    end: Record = field(default_factory=dict)
    resumed: bool = False
    ledger: dict[str, float] = field(default_factory=dict)  # seconds by phase, of its last `end`
    has_ledger: bool = False  # in any `end`
    phases_ms: dict[str, float] = field(default_factory=dict)  # summed over its steps


class JournalReader:
    """Takes records one by one; holds only what a RunLog has of them. `build` may be called at any time."""

    def __init__(self) -> None:
        self._count = 0
        self._last: Record = {}
        self._run: Record = {}  # the last `run`
        self._start: object = None  # of the process whose records are valid
        self._processes: dict[int, _Process] = {}
        self._rows = StepRows(JOURNAL_COLUMNS)
        self._first_updates: list[tuple[int, float]] = []  # iteration, ms
        self._first_update_process: int | None = None
        self._train_eval: Record = {}  # the latest of the training split
        # Their `segment` is the process, until `build`.
        self._evals: list[LoggedEvaluation] = []
        self._closing_eval: LoggedEvaluation | None = None
        self._checkpoints: list[LoggedCheckpoint] = []
        self._notes: list[Record] = []  # findings, profiles, samples, the revised forecast

    @property
    def has_records(self) -> bool:
        return self._count > 0

    def index(self, end: int) -> JournalIndex:
        """What was read of a journal up to the offset `end`."""
        rows, arrays = self._rows.state()
        state = {name: getattr(self, name) for name in _PLAIN_STATE} | {
            "processes": [(number, asdict(process)) for number, process in self._processes.items()],
            "evals": [astuple(evaluation) for evaluation in self._evals],
            "closing_eval": self._closing_eval and astuple(self._closing_eval),
            "checkpoints": [astuple(save) for save in self._checkpoints],
            "rows": rows,
        }
        return JournalIndex(end, state, arrays)

    @classmethod
    def from_index(cls, index: JournalIndex) -> JournalReader:
        """The reader as it was. Raises TypeError, ValueError or LookupError where the index is damaged."""
        reader, state = cls(), index.state
        for name in _PLAIN_STATE:
            setattr(reader, name, state[name])
        reader._processes = {number: _Process(**values) for number, values in state["processes"]}
        reader._evals = [LoggedEvaluation(*values) for values in state["evals"]]
        if state["closing_eval"] is not None:
            reader._closing_eval = LoggedEvaluation(*state["closing_eval"])
        reader._checkpoints = [LoggedCheckpoint(*values) for values in state["checkpoints"]]
        reader._rows.restore(state["rows"], index.arrays)
        return reader

    def feed(self, record: Record) -> None:
        kind, iteration = record["kind"], record["iter"]
        if abs(iteration) > MAX_COUNT:
            return
        if kind in _KINDS_WITH_TEXT:  # without anything that could harm a terminal
            record = sanitize_record(record)
        self._count += 1
        self._last = record
        number = record.get("process")
        if type(number) is not int or abs(number) > MAX_COUNT:  # rare, as below
            number = journal.int_or_none(record, "process") or 0
        process = self._processes.get(number)
        if process is None:
            process = self._processes[number] = _Process(iteration)
        phases = process.phases_ms
        for phase, ms in journal.dict_or_empty(record, "phases").items():
            if type(ms) is not float or not 0 <= ms < MAX_LOSS:  # rare
                value = journal.float_or_none({phase: ms}, phase)
                if value is None:
                    continue
                ms = max(0.0, value)
            phases[phase] = phases.get(phase, 0.0) + ms
        if kind in ("run", "resume"):
            self._start = record.get("start")
        if kind == "run":
            self._run = record
            process.run = process.run or record
        elif kind == "resume":
            from_iter = record.get("from_iter")
            process.resumed = process.resumed or (isinstance(from_iter, int) and from_iter >= 0)
            self._drop_after(journal.resume_iteration(record))
        elif kind == "end":
            process.end = process.end or record
            process.ledger = _seconds_by_phase(journal.dict_or_empty(record, "ledger"))
            process.has_ledger = process.has_ledger or bool(process.ledger)
        if not journal.is_of_start(record, self._start):
            return  # written after a later start of the run: see journal.effective_records
        if kind == "step":
            self._add_step(record, number)
        elif kind == "eval" and record.get("closing"):
            self._closing_eval = _read_eval(record, number)
        elif kind == "eval":
            self._add_eval(record, number)
        elif kind == "checkpoint":
            best = record["best"] if isinstance(record.get("best"), bool) else None
            blocking_ms = journal.float_or_none(record, "blocking_ms")
            start = str(record.get("start", ""))
            self._checkpoints.append(LoggedCheckpoint(iteration, number, blocking_ms, best, start=start))
        elif kind in _NOTE_KINDS or (kind == "profile" and journal.is_valid_profile(record)):
            self._notes.append(record)

    def _drop_after(self, iteration: int) -> None:
        """A resume from there repeats what comes later."""
        self._rows.drop_after(iteration)
        self._first_updates = [first for first in self._first_updates if first[0] <= iteration]
        self._evals = [evaluation for evaluation in self._evals if (evaluation.iteration or 0) <= iteration]
        self._checkpoints = [save for save in self._checkpoints if (save.iteration or 0) <= iteration]
        self._notes = [note for note in self._notes if note["iter"] <= iteration]
        if self._train_eval.get("iter", 0) > iteration:
            self._train_eval = {}
        if self._closing_eval is not None and (self._closing_eval.iteration or 0) > iteration:
            self._closing_eval = None

    def _add_step(self, record: Record, process: int) -> None:
        values = []
        for name in _STEP_KEYS:
            value = record.get(name)
            if type(value) is not float or not -MAX_LOSS < value < MAX_LOSS:  # rare
                is_loss = name == "loss"
                value = journal.loss_or_none(record) if is_loss else journal.float_or_none(record, name)
            values.append(math.nan if value is None else value)
        memory = journal.dict_or_empty(record, "memory")
        peak = journal.float_or_none(memory, "allocated_peak") or journal.float_or_none(memory, "rss")
        tokens = journal.float_or_none(record, "tokens")
        values += [peak or math.nan, math.nan if tokens is None else tokens]
        has_loss = type(record.get("loss")) is float or journal.loss_or_none(record) is not None
        self._rows.append(record["iter"], process, has_loss, values)
        if self._rows.is_full:
            self._rows.thin({})
        first_ms = journal.float_or_none(record, "first_update_ms") if "first_update_ms" in record else None
        if first_ms and process != self._first_update_process:  # once per process, whatever a journal says
            self._first_update_process = process
            self._first_updates.append((record["iter"], first_ms))

    def _add_eval(self, record: Record, process: int) -> None:
        """The records of training and validation split become one. The closing evaluation is of other tokens,
        so it is not a point of the curve."""
        if record.get("split") == "train":
            self._train_eval = record
        elif record.get("split") == "val":
            train = self._train_eval
            if (train.get("process"), train.get("iter")) != (record.get("process"), record["iter"]):
                train = {}
            times = [ms for one in (record, train) if (ms := journal.float_or_none(one, "ms")) is not None]
            evaluation = _read_eval(record, process)
            train_loss, ms = journal.loss_or_none(train), sum(times) if times else None
            self._evals.append(replace(evaluation, train_loss=train_loss, ms=ms))

    def build(self, name: str, live: bool = False) -> RunLog:
        last, numbers = self._last, sorted(self._processes)
        segments = {number: index for index, number in enumerate(numbers)}
        steps, left_out = self._rows.build({})
        if numbers != list(range(len(numbers))):
            steps = replace(steps, segment=np.searchsorted(numbers, steps.segment).astype(np.int64))
        ended, error = _exit_status(last), str(last.get("error", ""))
        events: tuple[LogEvent, ...] = ()
        if not live and error and ended in ("oom", "crashed"):
            events = (LogEvent("oom" if ended == "oom" else "traceback", error, self._count, last["iter"]),)
        nonfinite_update = None
        bad_iteration, norms = journal.int_or_none(last, "bad_iter"), last.get("recent_grad_norms")
        if last.get("reason") == "not finite" and bad_iteration is not None:
            norms = norms if isinstance(norms, list) else []
            nonfinite_update = (
                bad_iteration,
                tuple(float(norm) for norm in norms if isinstance(norm, int | float)),
            )
        imported_from = BY_ID.get(str(self._run.get("imported")))
        return clamped(
            RunLog(
                # An imported run has our conventions, under the name of the trainer that made it.
                trainer=TRAINER if imported_from is None else replace(TRAINER, name=imported_from.name),
                name=name,
                steps=steps,
                evals=tuple(_with_segment(evaluation, segments) for evaluation in self._evals),
                checkpoints=tuple(_with_segment(save, segments) for save in self._checkpoints),
                segments=tuple(
                    _build_segment(self._processes[number], left_out.get(number, LeftOut()))
                    for number in numbers
                )
                or (LoggedProcess(has_startup=False),),
                setup=_build_setup(self._run),
                ledger=_sum_ledgers([self._processes[number] for number in numbers]),
                first_update_ms=self._first_updates[0][1] if self._first_updates else None,
                journal_findings=tuple(note for note in self._notes if note["kind"] == "finding"),
                profiles=tuple(note for note in self._notes if note["kind"] == "profile"),
                samples=tuple(
                    (note["iter"], note["text"])
                    for note in self._notes
                    if note["kind"] == "sample" and isinstance(note.get("text"), str)
                )[-MAX_SAMPLES:],
                forecast=_build_forecast(
                    [self._processes[number].run for number in numbers],
                    [note for note in self._notes if note["kind"] == "forecast"],
                ),
                closing_eval=self._closing_eval and _with_segment(self._closing_eval, segments),
                nonfinite_update=nonfinite_update,
                live=live,
                events=events,
                ended=None if live else ended,
            )
        )


def _read_eval(record: Record, process: int) -> LoggedEvaluation:
    return LoggedEvaluation(
        record["iter"],
        process,
        journal.loss_or_none(record),
        ms=journal.float_or_none(record, "ms"),
        stderr=journal.float_or_none(record, "stderr"),
        tokens=journal.int_or_none(record, "tokens"),
        parts={name: record[name] for name in _PART_KEYS if name in record},
    )


_Item = TypeVar("_Item", LoggedEvaluation, LoggedCheckpoint)


def _with_segment(item: _Item, segments: dict[int, int]) -> _Item:
    segment = segments[item.segment]
    return item if segment == item.segment else replace(item, segment=segment)


def _seconds_by_phase(values: Record) -> dict[str, float]:
    return {
        str(name): seconds for name in values if (seconds := journal.float_or_none(values, name)) is not None
    }


def _build_segment(process: _Process, left_out: LeftOut) -> LoggedProcess:
    seconds = _seconds_by_phase(journal.dict_or_empty(process.end, "ledger"))
    return LoggedProcess(
        has_startup=False,
        resumed=process.resumed,
        first_iteration=process.first_iteration,
        tokens_per_iteration=journal.int_or_none(journal.dict_or_empty(process.run, "batch"), "tokens"),
        startup_s=seconds.get("startup", 0.0) + seconds.get("compile", 0.0) if seconds else None,
        left_out=left_out,
    )


def _build_setup(run: Record) -> LoggedSetup:
    config, model, batch, data = (
        journal.dict_or_empty(run, name) for name in ("config", "model", "batch", "data")
    )
    machine, peak = journal.dict_or_empty(run, "machine"), journal.dict_or_empty(run, "peak")
    device, choices = journal.dict_or_empty(machine, "device"), run.get("choices")
    settings = {**config, **{name: model[name] for name in _SHAPE_SETTINGS if name in model}}
    device_name = device.get("name")
    machine_facts = journal.dict_or_empty(journal.dict_or_empty(run, "facts"), "machine")
    busy_cores = journal.float_or_none(machine_facts, "busy_cores")  # by other processes, at the start
    return LoggedSetup(
        settings={key: value for key, value in settings.items() if isinstance(value, int | float | str)},
        run_dir=out_dir if isinstance(out_dir := run.get("out_dir"), str) else None,
        parameters=journal.int_or_none(model, "parameters_without_positions"),
        trained_parameters=journal.int_or_none(model, "parameters"),
        tokens_per_iteration=journal.int_or_none(batch, "tokens"),
        flops_per_token=journal.float_or_none(model, "flops_per_token"),
        device_name=device_name if isinstance(device_name, str) else None,
        peak_flops=journal.float_or_none(peak, "value"),
        peak_is_disturbed=PeakFlops(
            table=journal.float_or_none(peak, "table"),
            threads=journal.int_or_none(peak, "threads"),
            cores=journal.float_or_none(peak, "cores"),
            busy_cores=journal.float_or_none(peak, "busy_cores"),
            spread=journal.float_or_none(peak, "spread"),
        ).is_disturbed,
        world_size=journal.int_or_none(journal.dict_or_empty(run, "team"), "size"),
        planned_iterations=journal.int_or_none(config, "max_iters"),
        memory_bytes=journal.int_or_none(device, "memory"),
        bytes_per_token=journal.float_or_none(journal.dict_or_empty(data, "bytes_per_token"), "val"),
        data=data,
        machine={
            **machine,
            "busy_cores": busy_cores,
            "choices": choices if isinstance(choices, list) else [],
        },
    )


def _build_forecast(runs: Sequence[Record], revisions: Sequence[Record]) -> LoggedForecast:
    """Speeds as the last process expected them; the loss as the first one did, which started from scratch."""

    def low_and_high(record: Record, name: str) -> tuple[float, float] | None:
        values = record.get(name)
        if not isinstance(values, list) or len(values) != 3:
            return None
        low, high = (journal.float_or_none({"": value}, "") for value in (values[0], values[2]))
        return (low, high) if low is not None and high is not None and 0 <= low <= high else None

    def band(rows: object) -> tuple[tuple[float, float, float], ...]:
        read = []
        for row in rows if isinstance(rows, list) else ():
            numbers = [journal.float_or_none({"": one}, "") for one in row] if isinstance(row, list) else []
            values = [number for number in numbers if number is not None]
            if len(values) == len(numbers) == 4:
                read.append((values[0], values[1], values[3]))
        return tuple(sorted(read))

    forecasts = [journal.dict_or_empty(run, "forecast") for run in runs if run] or [{}]
    revised = low_and_high(revisions[-1], "tokens_per_s") if revisions else None
    return LoggedForecast(
        loss=next((rows for one in forecasts if (rows := band(one.get("loss_curve")))), ()),
        total_s=low_and_high(forecasts[-1], "total_s"),
        tokens_per_s=low_and_high(forecasts[-1], "tokens_per_s"),
        mfu=low_and_high(forecasts[-1], "mfu"),
        revised_tokens_per_s=None if revised is None else (revisions[-1]["iter"], *revised),
    )


def _sum_ledgers(processes: Sequence[_Process]) -> dict[str, float] | None:
    """Seconds per phase over all processes. Of one that is running, or was killed, up to its last step."""
    total: dict[str, float] = {}
    for process in processes:
        phases = {name: ms / 1e3 for name, ms in process.phases_ms.items()}
        for name, seconds in (process.ledger if process.has_ledger else phases).items():
            total[name] = total.get(name, 0.0) + max(0.0, seconds)
    return total or None


def _exit_status(last: Record) -> ExitStatus:
    """From the last record of the journal."""
    if last.get("kind") != "end":
        return "cut"
    if mentions_out_of_memory(str(last.get("error", ""))):
        return "oom"
    return _EXIT_STATUSES.get(str(last.get("reason")), "cut")
