"""A GlassGPT journal as a History. Its step times are without evaluations, its ledger has every second.

A journal is a file like any other: a value that is not what it should be counts as not said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.errors import mentions_out_of_memory
from glassgpt.record import journal
from glassgpt.record.journal import Record, is_valid_profile
from glassgpt.runs.run_list import is_running
from glassgpt.runs.run_log import (
    ExitStatus,
    Floats,
    LogEvent,
    LoggedCheckpoint,
    LoggedEvaluation,
    LoggedSetup,
    RunLog,
    Segment,
    Steps,
)
from glassgpt.runs.trainer import Trainer
from glassgpt.runs.trainers import BY_ID
from glassgpt.runs.trainers.glassgpt import TRAINER
from glassgpt.sanitize import sanitize_record

_JOURNAL_COLUMNS = {
    "loss": "loss",
    "ms": "step_ms",
    "mfu": "mfu",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "tokens_per_s": "tokens_per_s",
}
_SHAPE_SETTINGS = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
_KINDS_WITH_TEXT = ("run", "finding", "profile", "end")
_MAX_ITERATION = 10**15  # no iteration has a larger number
_EXIT_STATUSES: dict[str, ExitStatus] = {
    "finished": "finished",
    "stopped early": "finished",  # as --patience asked
    "evaluated": "finished",  # which was all that --eval_only asked
    "interrupted": "interrupted",
    "crashed": "crashed",
    "not finite": "crashed",
}


def read_run_journal(path: Path) -> RunLog:
    """`path`: a run's folder, or its journal."""
    file = path / journal.FILE_NAME if path.is_dir() else path
    return run_log_from_records(journal.read(file), str(path), live=is_running(file.parent))


def run_log_from_records(records: Iterable[Record], name: str, live: bool = False) -> RunLog:
    every = [_sanitize_record(record) for record in records if abs(record["iter"]) <= _MAX_ITERATION]
    kept = journal.effective_records(every)
    run = next((record for record in reversed(every) if record["kind"] == "run"), {})
    by_process: dict[int, list[Record]] = {}
    for record in every:
        by_process.setdefault(record["process"], []).append(record)
    processes = [by_process[process] for process in sorted(by_process)]
    number = {mine[0]["process"]: index for index, mine in enumerate(processes)}
    steps = [record for record in kept if record["kind"] == "step"]
    return RunLog(
        trainer=_trainer(run),
        name=name,
        steps=_steps(steps, number),
        evals=tuple(_evals(kept, number)),
        saves=tuple(_saves(kept, number)),
        segments=tuple(_segment(mine) for mine in processes) or (Segment(has_startup=False),),
        setup=_setup(run),
        ledger=_ledger(processes),
        first_update_ms=next(
            (ms for ms in (_float_or_none(one, "first_update_ms") for one in steps) if ms), None
        ),
        journal_findings=tuple(record for record in kept if record["kind"] == "finding"),
        profiles=tuple(record for record in kept if record["kind"] == "profile" and is_valid_profile(record)),
        nonfinite_update=_not_finite(every),
        live=live,
        events=() if live else _events(every),
        ended=None if live else _ended(every),
    )


def _trainer(run: Record) -> Trainer:
    """An imported run is in our terms, but under the name of who trained it."""
    origin = BY_ID.get(str(run.get("imported")))
    return TRAINER if origin is None else replace(TRAINER, name=origin.name)


def _not_finite(records: list[Record]) -> tuple[int, tuple[float, ...]] | None:
    last = records[-1] if records else {}
    at, norms = _int_or_none(last, "bad_iter"), last.get("recent_grad_norms")
    if last.get("reason") != "not finite" or at is None:
        return None
    every = norms if isinstance(norms, list) else []
    return at, tuple(float(norm) for norm in every if isinstance(norm, int | float))


def _sanitize_record(record: Record) -> Record:
    """With a process, and with nothing in its texts that could harm a terminal."""
    process, start = record.get("process"), record.get("from_iter")
    cleaned: Record = sanitize_record(record) if record["kind"] in _KINDS_WITH_TEXT else dict(record)
    cleaned["process"] = process if isinstance(process, int) else 0
    if not isinstance(start, int):
        cleaned.pop("from_iter", None)
    return cleaned


# --- values of the right kind, or none ---


def _float_or_none(record: Record, name: str) -> float | None:
    """Finite, or None."""
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e100:
        return None
    return float(value)


def _loss_or_none(record: Record) -> float | None:
    """One may well be NaN."""
    value = record.get("loss")
    return float(value) if isinstance(value, float) else _float_or_none(record, "loss")


def _int_or_none(record: Record, name: str) -> int | None:
    value = _float_or_none(record, name)
    return None if value is None or abs(value) > 2**53 else int(value)


def _dict_or_empty(record: Record, name: str) -> Record:
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _seconds(values: Record, unit: float = 1.0) -> dict[str, float]:
    return {
        str(name): seconds * unit for name in values if (seconds := _float_or_none(values, name)) is not None
    }


# --- the parts of a history ---


def _steps(records: Sequence[Record], number: dict[int, int]) -> Steps:
    def column(name: str) -> Floats:
        convert = _loss_or_none if name == "loss" else partial(_float_or_none, name=name)
        values = [record.get(name) for record in records]
        for index, value in enumerate(values):
            if type(value) is not float or not -1e100 < value < 1e100:  # rare: a call for each takes long
                values[index] = convert(records[index])
        return np.array(values, dtype=float)  # None becomes NaN

    return Steps(
        iteration=np.array([record["iter"] for record in records], dtype=np.int64),
        segment=np.array([number[record["process"]] for record in records], dtype=np.int64),
        has_loss=np.array([_loss_or_none(record) is not None for record in records], dtype=bool),
        memory_bytes=np.array([_memory(record) for record in records], dtype=float),
        tokens=column("tokens"),
        **{ours: column(theirs) for ours, theirs in _JOURNAL_COLUMNS.items()},
    )


def _memory(record: Record) -> float:
    told = _dict_or_empty(record, "memory")
    return _float_or_none(told, "allocated_peak") or _float_or_none(told, "rss") or math.nan


def _evals(records: Sequence[Record], number: dict[int, int]) -> Iterable[LoggedEvaluation]:
    """Training and validation split together. The closing pass is over other tokens, so it is no point of the
    curve."""
    train: dict[tuple[int, int], Record] = {}
    for record in records:
        if record["kind"] != "eval" or record.get("closing"):
            continue
        moment = (record["process"], record["iter"])
        if record.get("split") == "train":
            train[moment] = record
        elif record.get("split") == "val":
            other = train.get(moment, {})
            yield LoggedEvaluation(
                record["iter"],
                number[record["process"]],
                _loss_or_none(record),
                _loss_or_none(other),
                _sum(_float_or_none(record, "ms"), _float_or_none(other, "ms")),
                _float_or_none(record, "stderr"),
                _int_or_none(record, "tokens"),
            )


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _saves(records: Sequence[Record], number: dict[int, int]) -> Iterable[LoggedCheckpoint]:
    for record in records:
        if record["kind"] == "checkpoint":
            waited, best = _float_or_none(record, "blocking_ms"), record.get("best")
            is_best = best if isinstance(best, bool) else None
            yield LoggedCheckpoint(record["iter"], number[record["process"]], waited, is_best)


def _segment(mine: Sequence[Record]) -> Segment:
    resumed = any(record["kind"] == "resume" and record.get("from_iter", -1) >= 0 for record in mine)
    run = next((record for record in mine if record["kind"] == "run"), {})
    spent = _seconds(
        _dict_or_empty(next((record for record in mine if record["kind"] == "end"), {}), "ledger")
    )
    return Segment(
        has_startup=False,
        resumed=resumed,
        first_iteration=mine[0]["iter"],
        tokens_per_iteration=_int_or_none(_dict_or_empty(run, "batch"), "tokens"),
        startup_s=spent.get("startup", 0.0) + spent.get("compile", 0.0) if spent else None,
    )


def _setup(run: Record) -> LoggedSetup:
    config, model, batch, data = (_dict_or_empty(run, name) for name in ("config", "model", "batch", "data"))
    machine, peak = _dict_or_empty(run, "machine"), _dict_or_empty(run, "peak")
    device, choices = _dict_or_empty(machine, "device"), run.get("choices")
    settings = {**config, **{name: model[name] for name in _SHAPE_SETTINGS if name in model}}
    name = device.get("name")
    return LoggedSetup(
        settings={key: value for key, value in settings.items() if isinstance(value, int | float | str)},
        parameters=_int_or_none(model, "parameters_without_positions"),
        trained_parameters=_int_or_none(model, "parameters"),
        tokens_per_iteration=_int_or_none(batch, "tokens"),
        flops_per_token=_float_or_none(model, "flops_per_token"),
        device_name=name if isinstance(name, str) else None,
        peak_flops=_float_or_none(peak, "value"),
        world_size=_int_or_none(_dict_or_empty(run, "team"), "size"),
        planned_iterations=_int_or_none(config, "max_iters"),
        memory_bytes=_int_or_none(device, "memory"),
        bytes_per_token=_float_or_none(_dict_or_empty(data, "bytes_per_token"), "val"),
        data=data,
        machine={**machine, "choices": choices if isinstance(choices, list) else []},
    )


def _ledger(processes: Sequence[Sequence[Record]]) -> dict[str, float] | None:
    """Seconds per phase over all processes. One that has not ended, or was killed, counts as far as its steps
    tell."""
    total: dict[str, float] = {}
    for mine in processes:
        ends: list[Any] = [
            _seconds(_dict_or_empty(record, "ledger")) for record in mine if record["kind"] == "end"
        ]
        parts = (
            ends[-1:] if any(ends) else [_seconds(_dict_or_empty(record, "phases"), 1e-3) for record in mine]
        )
        for part in parts:
            for name, seconds in part.items():
                total[name] = total.get(name, 0.0) + max(0.0, seconds)
    return total or None


def _events(records: Sequence[Record]) -> tuple[LogEvent, ...]:
    """The fault that ended the run, if one did."""
    last = records[-1] if records else {}
    ended, error = _ended(records), str(last.get("error", ""))
    if ended not in ("oom", "crashed") or not error:
        return ()
    return (LogEvent("oom" if ended == "oom" else "traceback", error, len(records), last["iter"]),)


def _ended(records: Sequence[Record]) -> ExitStatus:
    last = records[-1] if records else {}
    if last.get("kind") != "end":
        return "cut"
    is_memory = mentions_out_of_memory(str(last.get("error", "")))
    return "oom" if is_memory else _EXIT_STATUSES.get(str(last.get("reason")), "cut")
