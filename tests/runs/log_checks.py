"""What a synthetic log tells, and the facts that follow from it, worked out apart from the "
"code under test."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

from glassgpt.runs.analysis import Analysis
from glassgpt.runs.facts import Facts
from glassgpt.runs.lines import LogLine
from glassgpt.runs.recognise import read_log, read_logs
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainers import BY_ID

A100 = 312e12


@dataclass(frozen=True)
class ExpectedStep:
    iteration: int
    loss: float | None
    ms: float | None = None
    mfu: float | None = None
    segment: int = 0


@dataclass(frozen=True)
class ExpectedLine:
    """A line, and what it says."""

    text: str
    row: ExpectedStep | None = None
    eval: tuple[int, float | None, float] | None = None  # iteration, training loss, validation loss
    save: int | None = None
    segment: int = 0
    is_unfinished: bool = False  # later lines complete or redraw what this one says


@dataclass(frozen=True)
class ExpectedLog:
    parts: tuple[ExpectedLine, ...]
    format: str
    times_hold_eval: bool = False
    eval_time_offset: int = (
        0  # the iteration whose time holds an evaluation comes so much later than its number
    )
    times_are_means: bool = False  # of the updates since the previous line, without evaluations
    tokens: int | None = None
    parameters: int | None = None
    flops_per_token: float | None = None
    mfu_peak: float | None = None
    metric: str = "loss"
    numbered: bool = True
    ended: str = "finished"
    logs_saves: bool | None = None  # where that is not as of its trainer
    segments: int = 1
    segments_with_startup: frozenset[int] = field(
        default=frozenset({0})
    )  # segments whose first row is a process's first

    @property
    def lines(self) -> list[str]:
        return [part.text for part in self.parts]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def rows(self) -> list[ExpectedStep]:
        return [part.row for part in self.parts if part.row is not None]

    @property
    def evals(self) -> list[tuple[int, float | None, float]]:
        return [part.eval for part in self.parts if part.eval is not None]

    @property
    def saves(self) -> list[int]:
        return [part.save for part in self.parts if part.save is not None]

    def truncated(self, count: int) -> ExpectedLog:
        """The log as it is when only so many lines are left of it, or fewer: no step is unfinished."""
        count = min(count, len(self.parts))
        while count and self.parts[count - 1].is_unfinished:
            count -= 1
        return replace(self, parts=self.parts[:count], ended="cut")


def expected_facts(expected: ExpectedLog) -> dict[str, Any]:
    """Every fact, by its definition in the issue."""
    rows, evals, saves = expected.rows, expected.evals, expected.saves
    first = [
        row.segment in expected.segments_with_startup
        and (index == 0 or rows[index - 1].segment != row.segment)
        for index, row in enumerate(rows)
    ]
    marks = {
        (part.segment, at + expected.eval_time_offset)
        for part in expected.parts
        for at in (part.eval[0] if part.eval else None, part.save)
        if at is not None and not expected.times_are_means
    }
    marked = [(row.segment, row.iteration) in marks for row in rows]
    holds = [mark and expected.times_hold_eval for mark in marked]
    calm = [row for row, a, b in zip(rows, first, marked, strict=True) if not a and not b]
    if not any(row.ms is not None for row in calm) and not expected.times_hold_eval:
        calm = [row for row, a in zip(rows, first, strict=True) if not a]
    steady = _median([row.ms for row in calm])
    evaluating = _median([row.ms for row, a, b in zip(rows, first, holds, strict=True) if b and not a])
    overhead = None if evaluating is None or steady is None else evaluating - steady
    mfu = _median([row.mfu for row in rows])
    gaps = [b.iteration - a.iteration for a, b in pairwise(rows) if a.segment == b.segment]
    timed = steady is not None and all(row.ms is not None for row in rows)
    total_ms = sum(row.ms or 0 for row in rows) + sum(gap - 1 for gap in gaps) * (steady or 0)
    beyond = [(row.ms or 0) - (steady or 0) for row, a, b in zip(rows, first, holds, strict=True) if a or b]
    speed = expected.tokens / steady * 1000 if expected.tokens and steady else None
    best = min((done for done in evals if not math.isnan(done[2])), key=lambda done: done[2], default=None)
    losses = [row.loss for row in rows if row.loss is not None]
    bad = next((row.iteration for row in rows if row.loss is not None and math.isnan(row.loss)), None)
    numbered, trainer = expected.numbered, BY_ID[expected.format]
    # A mean over several iterations is no time of the first one, and no percentile can be told from it.
    of_several = trainer.step_time_is_interval_mean and numbered and (_commonest(gaps) or 1) > 1
    return {
        "iterations_logged": len(rows),
        "first_iteration": rows[0].iteration if rows and numbered else None,
        "last_iteration": rows[-1].iteration if rows and numbered else None,
        "log_interval": _commonest(gaps) if numbered else None,
        "tokens_per_iteration": expected.tokens,
        "parameters": expected.parameters,
        "steady_ms": steady,
        "steady_p95_ms": None if of_several else _p95([row.ms for row in calm if row.ms is not None]),
        "first_iteration_ms": rows[0].ms if rows and not of_several else None,
        "startup_ms": None if of_several else _startup(rows, first, holds, steady, overhead),
        "eval_steps": list(dict.fromkeys(at for at, _, _ in evals))
        if numbered and (evals or not trainer.reads_any_log)
        else None,
        "eval_overhead_ms": overhead,
        "checkpoint_steps": list(dict.fromkeys(saves))
        if numbered
        and (saves or (trainer.logs_checkpoints if expected.logs_saves is None else expected.logs_saves))
        else None,
        "estimated_total_s": total_ms / 1000 if timed else None,
        "overhead_share": sum(max(0.0, part) for part in beyond) / total_ms
        if timed and expected.times_hold_eval
        else None,
        **({} if speed is None else {"tokens_per_s": speed}),  # else what is printed counts: test_facts.py
        "mfu_reported_steady": mfu,
        **_work(expected, mfu, speed),
        "val_metric": expected.metric if evals else None,
        "best_val_loss": best[2] if best else None,
        "best_val_step": best[0] if best and numbered else None,
        "final_val_loss": evals[-1][2] if evals else None,
        "final_train_loss": evals[-1][1] if evals else None,
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "nan_step": bad if numbered else None,
        "segments": expected.segments,
        "ended": expected.ended,
    }


def _work(expected: ExpectedLog, mfu: float | None, speed: float | None) -> dict[str, float | None]:
    """Nothing where it follows from the MFU: tests/compare/test_compare_sizes.py has such logs."""
    if expected.flops_per_token and speed:
        tflops = expected.flops_per_token * speed / 1e12
        return {"flops_per_token": expected.flops_per_token, "achieved_tflops": tflops}
    has_mfu = mfu is not None and expected.mfu_peak is not None
    return {} if has_mfu else {"flops_per_token": expected.flops_per_token, "achieved_tflops": None}


def _startup(
    rows: Sequence[ExpectedStep],
    first: Sequence[bool],
    holds: Sequence[bool],
    steady: float | None,
    overhead: float | None,
) -> float | None:
    if not rows or steady is None or rows[0].ms is None or not first[0]:
        return None
    if not holds[0]:
        return max(0.0, rows[0].ms - steady)
    return None if overhead is None else max(0.0, rows[0].ms - steady - overhead)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _p95(values: Sequence[float]) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    at = 0.95 * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _commonest(gaps: Sequence[int]) -> int | None:
    counts = Counter(gaps)
    return min(counts, key=lambda gap: (-counts[gap], gap)) if counts else None


# --- reading, and comparing with what was expected ---


def lines_of(text: str) -> list[LogLine]:
    """As the file would give them: what follows the last line end is torn."""
    *whole, rest = text.split("\n")
    return [LogLine(line) for line in whole] + ([LogLine(rest, is_incomplete=True)] if rest else [])


def parse_logs(text: str) -> tuple[RunLog, ...]:
    """Every run."""
    return read_logs(lines_of(text), "run.log")


def parse_log(text: str) -> RunLog:
    """The longest."""
    return read_log(lines_of(text), "run.log")


def parse_facts(text: str) -> Facts:
    return Analysis(parse_log(text)).facts


def check_facts(text: str, want: ExpectedLog | dict[str, Any], ignoring: Sequence[str] = ()) -> None:
    """All facts at once, so that a failure shows what goes wrong together."""
    got = parse_facts(text).as_dict()
    wanted = expected_facts(want) if isinstance(want, ExpectedLog) else want
    wrong = {
        name: (got[name], value)
        for name, value in wanted.items()
        if name not in ignoring and not nearly_equal(got[name], value)
    }
    assert wrong == {}, f"got, wanted: {wrong}"


def nearly_equal(one: object, other: object) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other
