"""A GlassGPT journal as a RunLog. Its step times exclude evaluations, and its ledger has every second.

    run_log = read_run_journal(Path("runs/shakespeare"))

A journal is a file like any other: a value of the wrong type counts as missing, and the numbers are clamped
like those of any log (see builder.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from glassgpt.errors import mentions_out_of_memory
from glassgpt.record import journal
from glassgpt.record.journal import Record, is_valid_profile
from glassgpt.runs.numbers import MAX_COUNT, MAX_LOSS, clamped
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
    return run_log_from_records(journal.read(file), str(path), live=is_running(file.parent))


def run_log_from_records(records: Iterable[Record], name: str, live: bool = False) -> RunLog:
    all_records = [_clean_record(record) for record in records if abs(record["iter"]) <= MAX_COUNT]
    effective = journal.effective_records(all_records)  # without what a resume repeated
    last = all_records[-1] if all_records else {}
    run = next((record for record in reversed(all_records) if record["kind"] == "run"), {})
    by_process: dict[int, list[Record]] = {}
    for record in all_records:
        by_process.setdefault(record["process"], []).append(record)
    processes = sorted(by_process)
    segments = {process: index for index, process in enumerate(processes)}
    steps = [record for record in effective if record["kind"] == "step"]
    first_updates = (_float_or_none(record, "first_update_ms") for record in steps)
    ended, error = _exit_status(last), str(last.get("error", ""))
    events: tuple[LogEvent, ...] = ()
    if not live and error and ended in ("oom", "crashed"):
        events = (LogEvent("oom" if ended == "oom" else "traceback", error, len(all_records), last["iter"]),)
    nonfinite_update = None
    bad_iteration, norms = _int_or_none(last, "bad_iter"), last.get("recent_grad_norms")
    if last.get("reason") == "not finite" and bad_iteration is not None:
        norms = norms if isinstance(norms, list) else []
        nonfinite_update = (
            bad_iteration,
            tuple(float(norm) for norm in norms if isinstance(norm, int | float)),
        )
    imported_from = BY_ID.get(str(run.get("imported")))
    run_log = RunLog(
        # An imported run has our conventions, under the name of the trainer that made it.
        trainer=TRAINER if imported_from is None else replace(TRAINER, name=imported_from.name),
        name=name,
        steps=_build_steps(steps, segments),
        evals=tuple(_build_evals(effective, segments)),
        checkpoints=tuple(
            LoggedCheckpoint(
                record["iter"],
                segments[record["process"]],
                _float_or_none(record, "blocking_ms"),
                record["best"] if isinstance(record.get("best"), bool) else None,
            )
            for record in effective
            if record["kind"] == "checkpoint"
        ),
        segments=tuple(_build_segment(by_process[process]) for process in processes)
        or (Segment(has_startup=False),),
        setup=_build_setup(run),
        ledger=_sum_ledgers([by_process[process] for process in processes]),
        first_update_ms=next((ms for ms in first_updates if ms), None),
        journal_findings=tuple(record for record in effective if record["kind"] == "finding"),
        profiles=tuple(
            record for record in effective if record["kind"] == "profile" and is_valid_profile(record)
        ),
        nonfinite_update=nonfinite_update,
        live=live,
        events=events,
        ended=None if live else ended,
    )
    return clamped(run_log)


def _clean_record(record: Record) -> Record:
    """With a process, and without anything in its texts that could harm a terminal."""
    process, start = record.get("process"), record.get("from_iter")
    cleaned: Record = sanitize_record(record) if record["kind"] in _KINDS_WITH_TEXT else dict(record)
    cleaned["process"] = process if isinstance(process, int) else 0
    if not isinstance(start, int):
        cleaned.pop("from_iter", None)
    return cleaned


# --- values of the right type, or None ---


def _float_or_none(record: Record, name: str) -> float | None:
    """None also where it is not finite."""
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_LOSS:
        return None
    return float(value)


def _loss_or_none(record: Record) -> float | None:
    """May be NaN or infinite."""
    value = record.get("loss")
    return float(value) if isinstance(value, float) else _float_or_none(record, "loss")


def _int_or_none(record: Record, name: str) -> int | None:
    value = _float_or_none(record, name)
    return None if value is None or abs(value) > MAX_COUNT else int(value)


def _dict_or_empty(record: Record, name: str) -> Record:
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _seconds_by_phase(values: Record, unit: float = 1.0) -> dict[str, float]:
    return {
        str(name): seconds * unit for name in values if (seconds := _float_or_none(values, name)) is not None
    }


# --- the parts of a RunLog ---


def _build_steps(records: Sequence[Record], segments: dict[int, int]) -> Steps:
    def column(name: str) -> Floats:
        values = [record.get(name) for record in records]
        for index, value in enumerate(values):
            # Rare: a call for every value would be slow.
            if type(value) is not float or not -MAX_LOSS < value < MAX_LOSS:
                record = records[index]
                values[index] = _loss_or_none(record) if name == "loss" else _float_or_none(record, name)
        return np.array(values, dtype=float)  # None becomes NaN

    memory_bytes = []
    for record in records:
        memory = _dict_or_empty(record, "memory")
        peak, rss = _float_or_none(memory, "allocated_peak"), _float_or_none(memory, "rss")
        memory_bytes.append(peak or rss or math.nan)
    return Steps(
        iteration=np.array([record["iter"] for record in records], dtype=np.int64),
        segment=np.array([segments[record["process"]] for record in records], dtype=np.int64),
        has_loss=np.array([_loss_or_none(record) is not None for record in records], dtype=bool),
        memory_bytes=np.array(memory_bytes, dtype=float),
        tokens=column("tokens"),
        **{name: column(key) for name, key in _JOURNAL_COLUMNS.items()},
    )


def _build_evals(records: Sequence[Record], segments: dict[int, int]) -> Iterable[LoggedEvaluation]:
    """The records of training and validation split become one. The closing evaluation is of other tokens, so
    it is not a point of the curve."""
    train_evals: dict[tuple[int, int], Record] = {}
    for record in records:
        if record["kind"] != "eval" or record.get("closing"):
            continue
        key = (record["process"], record["iter"])
        if record.get("split") == "train":
            train_evals[key] = record
        elif record.get("split") == "val":
            train = train_evals.get(key, {})
            times = [ms for one in (record, train) if (ms := _float_or_none(one, "ms")) is not None]
            yield LoggedEvaluation(
                record["iter"],
                segments[record["process"]],
                _loss_or_none(record),
                _loss_or_none(train),
                sum(times) if times else None,
                _float_or_none(record, "stderr"),
                _int_or_none(record, "tokens"),
            )


def _build_segment(records: Sequence[Record]) -> Segment:
    """Of one process's records."""
    run = next((record for record in records if record["kind"] == "run"), {})
    end = next((record for record in records if record["kind"] == "end"), {})
    seconds = _seconds_by_phase(_dict_or_empty(end, "ledger"))
    return Segment(
        has_startup=False,
        resumed=any(record["kind"] == "resume" and record.get("from_iter", -1) >= 0 for record in records),
        first_iteration=records[0]["iter"],
        tokens_per_iteration=_int_or_none(_dict_or_empty(run, "batch"), "tokens"),
        startup_s=seconds.get("startup", 0.0) + seconds.get("compile", 0.0) if seconds else None,
    )


def _build_setup(run: Record) -> LoggedSetup:
    config, model, batch, data = (_dict_or_empty(run, name) for name in ("config", "model", "batch", "data"))
    machine, peak = _dict_or_empty(run, "machine"), _dict_or_empty(run, "peak")
    device, choices = _dict_or_empty(machine, "device"), run.get("choices")
    settings = {**config, **{name: model[name] for name in _SHAPE_SETTINGS if name in model}}
    device_name = device.get("name")
    return LoggedSetup(
        settings={key: value for key, value in settings.items() if isinstance(value, int | float | str)},
        parameters=_int_or_none(model, "parameters_without_positions"),
        trained_parameters=_int_or_none(model, "parameters"),
        tokens_per_iteration=_int_or_none(batch, "tokens"),
        flops_per_token=_float_or_none(model, "flops_per_token"),
        device_name=device_name if isinstance(device_name, str) else None,
        peak_flops=_float_or_none(peak, "value"),
        world_size=_int_or_none(_dict_or_empty(run, "team"), "size"),
        planned_iterations=_int_or_none(config, "max_iters"),
        memory_bytes=_int_or_none(device, "memory"),
        bytes_per_token=_float_or_none(_dict_or_empty(data, "bytes_per_token"), "val"),
        data=data,
        machine={**machine, "choices": choices if isinstance(choices, list) else []},
    )


def _sum_ledgers(processes: Sequence[Sequence[Record]]) -> dict[str, float] | None:
    """Seconds per phase over all processes. Of one that is running, or was killed, up to its last step."""
    total: dict[str, float] = {}
    for records in processes:
        ends = [record for record in records if record["kind"] == "end"]
        parts = [_seconds_by_phase(_dict_or_empty(record, "ledger")) for record in ends]
        if any(parts):
            parts = parts[-1:]
        else:
            parts = [_seconds_by_phase(_dict_or_empty(record, "phases"), unit=1e-3) for record in records]
        for part in parts:
            for name, seconds in part.items():
                total[name] = total.get(name, 0.0) + max(0.0, seconds)
    return total or None


def _exit_status(last: Record) -> ExitStatus:
    """From the last record of the journal."""
    if last.get("kind") != "end":
        return "cut"
    if mentions_out_of_memory(str(last.get("error", ""))):
        return "oom"
    return _EXIT_STATUSES.get(str(last.get("reason")), "cut")
