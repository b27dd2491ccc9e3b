"""Where the time of a run went, over its iterations. How much of it is what: runs/time_split.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from glassgpt.format import format_duration, format_loss, format_percent
from glassgpt.i18n import translate
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import Floats, Ints, RunLog
from glassgpt.show.facts_table import phase_labels
from glassgpt.show.page.series import rounded

# The variables of style.css.
PHASE_COLOURS = {
    "startup": "startup", "startup_and_eval": "startup", "compile": "compile", "data": "data",
    "train": "train", "eval": "val", "pauses": "val", "checkpoint": "best", "stall": "norm", "log": "log",
    "other": "other",
}  # fmt: skip
MAX_MOMENTS = 300
MIN_UNDRAWN_SHARE = 0.01  # of the run: time that no bin holds
TARGET_BINS = 40
_STARTS = ("compile", "resume")  # what comes after the line of its iteration, not before
MIN_BINS, MAX_BINS = 10, 60


@dataclass(frozen=True)
class Timeline:
    """Seconds by kind, in bins of equally many iterations."""

    bin_start: Ints  # the first iteration of each bin
    iterations_per_bin: int
    offset: (
        int  # 1: a line every ten iterations stands for the nine before it too, so a bin ends with its line
    )
    train_s: Floats
    eval_and_save_s: Floats  # evaluations and checkpoints
    save_s: Floats  # of these, checkpoints, where the log times them
    stall_s: Floats  # that no line explains
    startup_s: Floats
    is_complete: bool  # False: the log has evaluations or saves without their time

    def bin_of(self, iteration: int) -> int:
        """The one with the time of what happened at this iteration."""
        bins = _bins_of(np.array([iteration]), self.bin_start, self.iterations_per_bin, self.offset)
        return int(bins[0])

    @property
    def total_s(self) -> float:
        return float((self.train_s + self.eval_and_save_s + self.stall_s + self.startup_s).sum())


def build_timeline(run: Analysis) -> Timeline | None:
    """None if the log does not say how long its iterations took."""
    run_log, facts = run.log, run.facts
    steps, split = run_log.steps, run.time_split
    if len(steps) < 2 or split is None or not math.isfinite(split.total_s):
        return None
    first_iteration, width, count = _choose_bins(run_log, facts)
    offset = 0 if facts.log_interval == 1 else 1
    bin_start = first_iteration + width * np.arange(count)

    def seconds_by_bin(values_ms: Floats, iterations: Ints = steps.iteration) -> Floats:
        index = _bins_of(iterations, bin_start, width, offset)
        return np.bincount(index, weights=values_ms, minlength=count).astype(float) / 1000

    saves = [
        (one.iteration, one.blocking_ms)
        for one in run_log.checkpoints
        if one.iteration is not None and one.blocking_ms and not run_log.trainer.step_time_includes_eval
    ]
    saved_at = np.array([at for at, _ in saves], dtype=np.int64)
    save_ms = np.array([ms for _, ms in saves], dtype=float)
    starts, startup_ms = process_startups(run_log)
    return Timeline(
        bin_start=bin_start,
        iterations_per_bin=width,
        offset=offset,
        train_s=seconds_by_bin(split.train_ms),
        eval_and_save_s=seconds_by_bin(split.pause_ms)
        + seconds_by_bin(split.apart_ms, split.apart_iteration),
        save_s=seconds_by_bin(save_ms, saved_at),
        stall_s=seconds_by_bin(split.stall_ms),
        startup_s=seconds_by_bin(split.startup_ms) + seconds_by_bin(startup_ms, starts + offset),
        is_complete=split.is_complete,
    )


def _bins_of(iterations: Ints, bin_start: Ints, width: int, offset: int) -> Ints:
    bins: Ints = np.clip((iterations - bin_start[0] - offset) // width, 0, len(bin_start) - 1)
    return bins


def process_startups(run_log: RunLog) -> tuple[Ints, Floats]:
    """Where each process began, and ms of its start-up, before its first iteration, as the ledger has it.
    Without a ledger it is in the time of the rows."""
    if not run_log.ledger:
        return np.empty(0, dtype=np.int64), np.empty(0)
    seconds = [part.startup_s or 0.0 for part in run_log.segments]
    if len(seconds) == 1:
        seconds = [run_log.ledger.get("startup", 0.0) + run_log.ledger.get("compile", 0.0)]
    return run_log.process_start_iterations(), 1000 * np.array(seconds)


def _choose_bins(run_log: RunLog, facts: Facts) -> tuple[int, int, int]:
    """First iteration, width, and number of bins.

    A bin holds a whole number of evaluations where these come at equal intervals and often enough, else of
    log lines. Otherwise bars would differ only because some of them hold one evaluation more.
    """
    iterations = run_log.steps.iteration
    first = int(iterations.min())
    if run_log.trainer.lines_count_updates:
        first = min(first, int(run_log.process_start_iterations().min()))
    span = int(iterations.max()) - first
    eval_iterations = sorted(set(facts.eval_steps or ()))
    eval_intervals = {later - earlier for earlier, later in pairwise(eval_iterations)}
    if len(eval_intervals) == 1 and span >= MIN_BINS * min(eval_intervals):
        unit = min(eval_intervals)
    else:
        log_interval = max(facts.log_interval or 1, 1)
        unit = max(log_interval, math.ceil(span / TARGET_BINS / log_interval) * log_interval)
    width = unit if span <= MAX_BINS * unit else math.ceil(span / TARGET_BINS / unit) * unit
    logs_every_iteration = facts.log_interval == 1
    return first, width, max(1, math.ceil((span + logs_every_iteration) / width))


def time_strip(run: Analysis) -> dict[str, Any]:
    """The ledger of the page: totals by phase, seconds by phase in bins of iterations, and moments."""
    seconds, labels = run.seconds_by_phase or {}, phase_labels()
    total_s = sum(seconds.values())
    timeline = build_timeline(run)
    bins: dict[str, Any] = {"edges": [], "seconds": {}}
    if timeline is not None:
        edges = [*timeline.bin_start.tolist(), int(timeline.bin_start[-1]) + timeline.iterations_per_bin]
        kinds = {
            "train": timeline.train_s,
            # Where the log times both, as its ledger does.
            "eval" if "eval" in seconds else "pauses": timeline.eval_and_save_s
            - (timeline.save_s if "eval" in seconds else 0.0),
            "checkpoint": timeline.save_s if "eval" in seconds else np.zeros(0),
            "stall": timeline.stall_s,
            "startup": timeline.startup_s,
        }
        by_phase = {
            name: [rounded(one) for one in spent.tolist()] for name, spent in kinds.items() if spent.any()
        }
        phases = [{"id": name, "label": labels[name], "colour": PHASE_COLOURS[name]} for name in by_phase]
        bins = {"edges": edges, "seconds": by_phase, "phases": phases}
    return {
        "total_s": total_s or None,
        "total": format_duration(total_s),
        "caption": translate("report.time.missing")
        if timeline is None
        else _caption(run.log, run.facts, timeline),
        "phases": [
            {
                "id": name,
                "label": labels[name],
                "time": format_duration(spent),
                "percent": format_percent(spent / total_s),
                "colour": PHASE_COLOURS[name],
                "seconds": rounded(spent),
                "share": rounded(spent / total_s),
            }
            for name, spent in seconds.items()
        ],
        "bins": bins,
        "moments": _moments(run, timeline),
    }


def _caption(run_log: RunLog, facts: Facts, timeline: Timeline) -> str:
    total_s, sentences = facts.total_s or timeline.total_s, list[str]()
    # Logging, sampling, and updates under the profiler are in a journal's total, and belong to no iteration.
    if (rest_s := total_s - timeline.total_s) > MIN_UNDRAWN_SHARE * total_s:
        sentences.append(translate("report.time.not_drawn", rest=rest_s))
    if not timeline.is_complete:
        sentences.append(translate("report.time.evaluations_unknown"))
    elif facts.pause_share is not None:
        sentences.append(translate("report.time.overhead_share", share=facts.pause_share))
    if run_log.ledger and len(run_log.segments) > 1 and not timeline.startup_s.any():
        sentences.append(translate("report.time.startup_in_total_only"))
    return " ".join(sentences)


def _moments(run: Analysis, timeline: Timeline | None) -> list[dict[str, Any]]:
    """What happened where: evaluations, saves, stalls, resumes and explosions of the loss, with their time
    and its bin; of very many, the longest of each kind."""
    log, split = run.log, run.time_split
    times_eval_apart = not log.trainer.step_time_includes_eval
    pauses = {} if split is None else dict(_rows_above(log, split.pause_ms))
    by_kind: dict[str, list[tuple[int, float | None, str]]] = {}

    def add(kind: str, at: int | None, ms: float | None, text: str) -> None:
        if at is not None:
            by_kind.setdefault(kind, []).append((at, ms, text))

    for one in log.evals:
        ms = one.ms
        if not times_eval_apart:
            ms = pauses.get((one.iteration or 0) + log.trainer.eval_timed_in_later_step)
        text = translate("moment.eval")
        if one.val_loss is not None:
            text = translate("moment.eval_loss", loss=format_loss(one.val_loss))
        add("eval", one.iteration, ms, text)
    for save in log.checkpoints:
        text = translate("moment.best_save") if save.is_best else translate("moment.save")
        add("save", save.iteration, save.blocking_ms, text)
    for number, part in enumerate(log.segments):
        ms = None if part.startup_s is None else 1000 * part.startup_s
        if number:
            add("resume", part.first_iteration, ms, translate("moment.resume"))
        elif startup_ms := ms or run.startup_ms:
            at = run.facts.first_iteration if part.first_iteration is None else part.first_iteration
            add("compile", at, startup_ms, translate("moment.first_update"))
    if split is not None:
        for at, ms in _rows_above(log, split.stall_ms):
            add("stall", at, ms, translate("moment.stall"))
        if split.spike_period:
            text = translate("moment.periodic", interval=split.spike_period)
            for at in log.steps.iteration[split.is_spike].tolist():
                add("stall", at, pauses.get(at), text)
    for explosion in run.explosions:
        add("spike", explosion.peak_iteration, None, translate("moment.explosion"))
    room = MAX_MOMENTS // max(1, len(by_kind))
    moments = [
        {
            "at": at,
            "bin": -1 if timeline is None else timeline.bin_of(at + (kind in _STARTS) * timeline.offset),
            "kind": kind,
            "ms": None if ms is None else rounded(ms),
            "text": text,
        }
        for kind, of_kind in by_kind.items()
        for at, ms, text in sorted(of_kind, key=lambda moment: -(moment[1] or 0.0))[:room]
    ]
    return sorted(moments, key=lambda moment: moment["at"])


def _rows_above(run_log: RunLog, ms: Floats) -> list[tuple[int, float]]:
    """Iteration and time of the rows that have any."""
    rows = np.flatnonzero(ms > 0)
    return list(zip(run_log.steps.iteration[rows].tolist(), ms[rows].tolist(), strict=True))
