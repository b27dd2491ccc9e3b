"""Splits what was read of a file into its runs.

    split_runs(whole, builder.failed_launches)

A process that resumes, or whose iterations count on from the one before, continues a run. One that begins
again at the first iteration is another run, and so is another stage of a recipe (nanochat: base, mid, sft,
rl), which learns from other data. A command that failed before its first iteration is a run without steps,
unless it tried to resume: then it is an event of the run that it did not continue.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from glassgpt.runs.log_numbers import clamped_setup
from glassgpt.runs.run_log import LoggedCheckpoint, LoggedEvaluation, LoggedProcess, RunLog, Steps, ValMetric
from glassgpt.runs.setup_builder import FailedLaunch
from glassgpt.runs.trajectory import continues_previous

MAX_RUNS = 200  # of one file: of more, the longest


def split_runs(whole: RunLog, failed_launches: Sequence[FailedLaunch] = ()) -> tuple[RunLog, ...]:
    """In the order of the file. `whole`: all that the builder read, as if it were one run."""
    count = len(whole.segments)
    starts = [0]
    for segment in range(1, count):
        if _begins_run(whole, starts[-1], segment):
            starts.append(segment)
    failed = [] if whole.is_excerpt else [launch for launch in failed_launches if not launch.resumed]
    if not len(whole.steps) and not whole.evals:
        failed = []  # nothing but launches that failed: the whole log is one
    if len(starts) == 1 and not failed:
        segments = tuple(replace(segment, setup=None) for segment in whole.segments)
        return (_with_one_metric(replace(whole, segments=segments, stage=_stage_of(segments))),)

    ends = [*starts[1:], count]
    selected = _longest(whole, list(zip(starts, ends, strict=True)))
    # Where each run or launch begins: it has the lines up to the next one.
    first_lines = sorted(
        [whole.segments[start].first_line for start in starts] + [launch.first_line for launch in failed]
    )
    first_lines[0] = whole.first_line
    pieces = [_run_of_segments(whole, start, end, first_lines) for start, end in selected]
    pieces += [_run_of_launch(whole, launch, first_lines) for launch in failed[-MAX_RUNS:]]
    pieces.sort(key=lambda run_log: run_log.first_line)
    total = len(starts) + len(failed)
    last = max(pieces, key=lambda run_log: run_log.last_line)
    return tuple(
        replace(
            piece,
            runs_in_file=total,
            ends_mid_line=whole.ends_mid_line and piece is last,
            last_partial_iteration=whole.last_partial_iteration if piece is last else None,
            iterations_done=whole.iterations_done if piece is last else None,
        )
        for piece in pieces
    )


def _begins_run(whole: RunLog, run_start: int, segment: int) -> bool:
    """Whether this segment is another run than the one that began with segment `run_start`."""
    process = whole.segments[segment]
    known_stages = {process.stage, _stage_of(whole.segments[run_start:segment])} - {None}
    if len(known_stages) > 1 or not continues_previous(whole, segment):
        return True
    if process.resumed or process.first_iteration is None:
        return False
    # It begins where that run began: at its first line, one log interval after the start.
    row, end = np.searchsorted(whole.steps.segment, (run_start, run_start + 1)).tolist()
    first = whole.steps.iteration[row : min(end, row + 2)].tolist()
    return len(first) == 2 and process.first_iteration <= first[0] <= first[1] - first[0]


def _stage_of(segments: Sequence[LoggedProcess]) -> str | None:
    return next((segment.stage for segment in segments if segment.stage is not None), None)


def _longest(whole: RunLog, runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The MAX_RUNS runs with the most rows, in their order."""
    if len(runs) <= MAX_RUNS:
        return runs
    rows = np.searchsorted(whole.steps.segment, [run[0] for run in runs] + [len(whole.segments)])
    longest = np.argsort(-np.diff(rows), kind="stable")[:MAX_RUNS]
    return [runs[index] for index in sorted(longest.tolist())]


def _run_of_segments(whole: RunLog, start: int, end: int, first_lines: list[int]) -> RunLog:
    begin_row, end_row = np.searchsorted(whole.steps.segment, (start, end))
    columns = {field.name: getattr(whole.steps, field.name) for field in fields(Steps)}
    columns = {
        name: None if column is None else column[begin_row:end_row].copy() for name, column in columns.items()
    }
    columns["segment"] -= start
    segments = whole.segments[start:end]
    setup = segments[-1].setup
    run_log = replace(
        whole,
        steps=Steps(**columns),
        evals=_items_of(whole.evals, start, end),
        checkpoints=_items_of(whole.checkpoints, start, end),
        segments=tuple(replace(segment, setup=None) for segment in segments),
        setup=whole.setup if setup is None else clamped_setup(setup),
        stage=_stage_of(segments),
        last_step_line=max(segment.last_step_line for segment in segments),
    )
    return _with_one_metric(_with_lines(run_log, segments[0].first_line, first_lines))


def _run_of_launch(whole: RunLog, launch: FailedLaunch, first_lines: list[int]) -> RunLog:
    columns = {field.name: getattr(whole.steps, field.name) for field in fields(Steps)}
    columns = {name: None if column is None else column[:0] for name, column in columns.items()}
    run_log = replace(
        whole,
        steps=Steps(**columns),
        evals=(),
        checkpoints=(),
        segments=(LoggedProcess(has_startup=True),),
        setup=clamped_setup(launch.setup),
        last_step_line=0,
    )
    return _with_lines(run_log, launch.first_line, first_lines)


_Item = TypeVar("_Item", LoggedEvaluation, LoggedCheckpoint)


def _items_of(items: tuple[_Item, ...], start: int, end: int) -> tuple[_Item, ...]:
    """Those of these segments. They are in the order of their segments."""
    begin = bisect_left(items, start, key=lambda item: item.segment)
    selected = items[begin : bisect_left(items, end, key=lambda item: item.segment)]
    return tuple(replace(item, segment=item.segment - start) for item in selected)


def _with_lines(run_log: RunLog, begins: int, first_lines: list[int]) -> RunLog:
    """With the events of its lines: from its first one to that of the next run."""
    index = max(0, bisect_right(first_lines, begins) - 1)
    first_line = first_lines[index]
    last_line = first_lines[index + 1] - 1 if index + 1 < len(first_lines) else run_log.last_line
    events = tuple(event for event in run_log.events if first_line <= event.line <= last_line)
    counts = Counter(event.kind for event in events)
    for kind, count in run_log.event_counts.items():
        stored = [event for event in run_log.events if event.kind == kind]
        if len(stored) < count and stored[-1] in events:  # the others were not stored
            counts[kind] += count - len(stored)
    starts = [line for line in run_log.process_start_lines if first_line <= line <= last_line]
    later_starts = [line for line in starts if line > run_log.last_step_line]
    failed_start = run_log.failed_start_line
    if not len(run_log.steps):
        failed_start = None
    elif failed_start is None or not run_log.last_step_line < failed_start <= last_line:
        failed_start = later_starts[0] if later_starts else None
    return replace(
        run_log,
        events=events,
        event_counts=dict(counts),
        process_start_lines=tuple(starts),
        failed_start_line=failed_start,
        first_line=first_line,
        last_line=last_line,
    )


def _with_one_metric(run_log: RunLog) -> RunLog:
    """A run may print two metrics. The one of most evaluations counts."""
    metrics = Counter(evaluation.metric for evaluation in run_log.evals).most_common(1)
    metric: ValMetric = metrics[0][0] if metrics else "loss"
    evals = tuple(one if one.metric == metric else replace(one, val_loss=None) for one in run_log.evals)
    return replace(run_log, evals=evals, val_metric=metric)
