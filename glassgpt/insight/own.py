"""A GlassGPT journal as a History. Its step times are without evaluations, its ledger has every second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.account import journal
from glassgpt.account.journal import Record
from glassgpt.insight.history import Evaluation, Floats, Format, History, Save, Segment, Setup, Steps
from glassgpt.insight.runs import is_running

FORMAT = Format("glassgpt", "GlassGPT", times_hold_eval=False, first_iteration=1)

_COLUMNS = {
    "loss": "loss",
    "ms": "step_ms",
    "mfu": "mfu",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "tokens_per_s": "tokens_per_s",
}
_ENDINGS = {
    "finished": "finished",
    "interrupted": "interrupted",
    "crashed": "crashed",
    "not finite": "crashed",
}


def read_run(path: Path) -> History:
    """`path`: a run's folder, or its journal."""
    file = path / journal.NAME if path.is_dir() else path
    return history_of(journal.read(file), str(path), live=is_running(file.parent))


def history_of(records: Iterable[Record], name: str, live: bool = False) -> History:
    every = [record for record in records if isinstance(record.get("process", 0), int)]
    kept = journal.current(every)
    run = next((record for record in reversed(every) if record["kind"] == "run"), {})
    processes = sorted({record.get("process", 0) for record in every})
    number = {process: index for index, process in enumerate(processes)}
    steps = [record for record in kept if record["kind"] == "step"]
    first = next((record["first_update_ms"] for record in steps if record.get("first_update_ms")), None)
    return History(
        format=FORMAT,
        name=name,
        steps=_steps(steps, number),
        evals=tuple(_evals(kept, number)),
        saves=tuple(_saves(kept, number)),
        segments=tuple(_segment(every, process) for process in processes) or (Segment(starts=False),),
        setup=_setup(run),
        ledger=_ledger(every, processes),
        first_update_ms=first,
        recorded=tuple(record for record in kept if record["kind"] == "finding"),
        live=live,
        ended=_ended(every),
    )


def _steps(records: Sequence[Record], number: dict[int, int]) -> Steps:
    def column(name: str) -> Floats:
        values = [record.get(name) for record in records]
        return np.array(
            [value if isinstance(value, int | float) else np.nan for value in values], dtype=float
        )

    return Steps(
        iteration=np.array([record["iter"] for record in records], dtype=np.int64),
        segment=np.array([number[record.get("process", 0)] for record in records], dtype=np.int64),
        has_loss=np.array(["loss" in record for record in records], dtype=bool),
        **{ours: column(theirs) for ours, theirs in _COLUMNS.items()},
    )


def _evals(records: Sequence[Record], number: dict[int, int]) -> Iterable[Evaluation]:
    """Training and validation split together. The closing pass is over other tokens, so it is no point of the
    curve."""
    train: dict[tuple[int, int], Record] = {}
    for record in records:
        if record["kind"] != "eval" or record.get("closing"):
            continue
        moment = (record.get("process", 0), record["iter"])
        if record.get("split") == "train":
            train[moment] = record
        elif record.get("split") == "val":
            other = train.get(moment, {})
            yield Evaluation(
                record["iter"],
                number[moment[0]],
                record.get("loss"),
                other.get("loss"),
                (record.get("ms") or 0.0) + (other.get("ms") or 0.0),
                record.get("stderr"),
                record.get("tokens"),
            )


def _saves(records: Sequence[Record], number: dict[int, int]) -> Iterable[Save]:
    for record in records:
        if record["kind"] == "checkpoint":
            process = number[record.get("process", 0)]
            yield Save(record["iter"], process, record.get("blocking_ms"), record.get("best"))


def _segment(records: Sequence[Record], process: int) -> Segment:
    mine = [record for record in records if record.get("process", 0) == process]
    resumed = any(record["kind"] == "resume" and record.get("from_iter", -1) >= 0 for record in mine)
    return Segment(starts=False, resumed=resumed, first_iteration=mine[0]["iter"])


def _setup(run: Record) -> Setup:
    config, model, batch, data = (run.get(name) or {} for name in ("config", "model", "batch", "data"))
    machine, peak = run.get("machine") or {}, run.get("peak") or {}
    shape = {
        name: model[name]
        for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
        if name in model
    }
    device: dict[str, Any] = machine.get("device") or {}
    return Setup(
        settings={name: value for name, value in {**config, **shape}.items() if value is not None},
        parameters=model.get("parameters_without_positions"),
        trained_parameters=model.get("parameters"),
        tokens_per_iteration=batch.get("tokens"),
        flops_per_token=model.get("flops_per_token"),
        device_name=device.get("name"),
        peak_flops=peak.get("value"),
        planned_iterations=config.get("max_iters"),
        memory_bytes=device.get("memory"),
        bytes_per_token=(data.get("bytes_per_token") or {}).get("val"),
        data=data,
        machine={**machine, "choices": run.get("choices", [])},
    )


def _ledger(records: Sequence[Record], processes: Sequence[int]) -> dict[str, float] | None:
    """Seconds per phase over all processes. One that has not ended, or was killed, counts as far as its steps
    tell."""
    total: dict[str, float] = {}
    for process in processes:
        mine = [record for record in records if record.get("process", 0) == process]
        end = next((record for record in reversed(mine) if record["kind"] == "end"), None)
        parts = [end["ledger"]] if end and end.get("ledger") else [_phases(record) for record in mine]
        for part in parts:
            for name, seconds in part.items():
                total[name] = total.get(name, 0.0) + seconds
    return total or None


def _phases(record: Record) -> dict[str, float]:
    return {name: ms / 1000 for name, ms in (record.get("phases") or {}).items()}


def _ended(records: Sequence[Record]) -> str | None:
    last = records[-1] if records else {}
    if last.get("kind") != "end":
        return "cut"
    error = str(last.get("error", ""))
    return "oom" if "out of memory" in error.lower() else _ENDINGS.get(str(last.get("reason")), "cut")
