"""Splits what was read of a file into its runs.

    split_runs(whole, builder.failed_launches)

A process that resumes, or whose iterations count on from the one before, continues a run. One that begins
again at the first iteration is another run, and so is another stage of a recipe (nanochat: base, mid, sft,
rl), which learns from other data. Where the count begins again, but nothing says that a process does:

- if another count rises by one (phase 2/133, round 3), it is one run, whose steps are counted on;
- if the loss goes back to where it began, it is another run;
- else, or if both, it is one of several parts of a process: see `RunLog.parts`.

Where each line says how many iterations are planned, two commands that write one file at once are two runs.

A command that failed before its first iteration is a run without steps,
unless it tried to resume: then it is an event of the run that it did not continue.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from glassgpt.i18n import say
from glassgpt.runs.builder import FAILURE_KINDS
from glassgpt.runs.curve_statistics import detrended_std
from glassgpt.runs.log_numbers import clamped_setup
from glassgpt.runs.metric_series import of_lines, tokens_of_sums
from glassgpt.runs.run_log import (
    Ints,
    LogEvent,
    LoggedCheckpoint,
    LoggedEvaluation,
    LoggedProcess,
    RunLog,
    Steps,
    ValMetric,
)
from glassgpt.runs.setup_builder import FailedLaunch
from glassgpt.runs.trajectory import continues_previous

MAX_RUNS = 200  # of one file: of more, the longest
_MIN_JUDGED_LINES = 8
_COMPARED_LINES = 5  # at most, at each end of a process
_MIN_SAME_SHARE = 0.9  # of lines that have the losses of a bar
_MIN_SAME_LENGTHS = 3  # of runs beside each other that are no parts
MIN_FALL_NOISES = 3.0  # standard errors: a loss that fell by less may not go back

_Item = TypeVar("_Item", LoggedEvaluation, LoggedCheckpoint)


def split_runs(whole: RunLog, failed_launches: Sequence[FailedLaunch] = ()) -> tuple[RunLog, ...]:
    """In the order of the file. `whole`: all that the builder read, as if it were one run."""
    whole = _joined(_untangled(_printed_once(whole)))
    count = len(whole.segments)
    starts = [0]
    for segment in range(1, count):
        if _begins_run(whole, starts[-1], segment):
            starts.append(segment)
    parts = _part_counts(whole, starts)
    failed = [] if whole.is_excerpt else [launch for launch in failed_launches if not launch.resumed]
    if not len(whole.steps) and not whole.evals:
        failed = []  # nothing but launches that failed: the whole log is one
    if len(starts) == 1 and not failed:
        segments = tuple(replace(segment, setup=None) for segment in whole.segments)
        return (_completed(replace(whole, segments=segments, stage=_stage_of(segments))),)

    ends = [*starts[1:], count]
    selected = _longest(whole, list(zip(starts, ends, strict=True)))
    # Where each run or launch begins: it has the lines up to the next one.
    first_lines = sorted(
        [whole.segments[start].first_line for start in starts] + [launch.first_line for launch in failed]
    )
    first_lines[0] = whole.first_line
    pieces = [
        replace(_run_of_segments(whole, start, end, first_lines), parts=parts[start])
        for start, end in selected
    ]
    pieces = _with_ends_of_parts(pieces)
    pieces += [_run_of_launch(whole, launch, first_lines) for launch in failed[-MAX_RUNS:]]
    pieces.sort(key=lambda run_log: run_log.first_line)
    total = len(failed) + round(sum(1 / parts[start] for start in starts))
    last = max(pieces, key=lambda run_log: run_log.last_line)
    last_trained = max(pieces, key=lambda run_log: (len(run_log.steps) > 0, run_log.last_line))
    return tuple(
        replace(
            piece,
            runs_in_file=total,
            ends_mid_line=whole.ends_mid_line and piece is last,
            last_partial_iteration=whole.last_partial_iteration if piece is last else None,
            iterations_done=whole.iterations_done if piece is last_trained else None,
        )
        for piece in pieces
    )


def _begins_run(whole: RunLog, run_start: int, segment: int) -> bool:
    """Whether this segment is another run than the one that began with segment `run_start`."""
    process = whole.segments[segment]
    if process.begins_run:
        return True
    known_stages = {process.stage, _stage_of(whole.segments[run_start:segment])} - {None}
    if len(known_stages) > 1 or not continues_previous(whole, segment):
        return True
    if process.resumed or process.first_iteration is None:
        return False
    # It begins where that run began, or where its own header stands: one log interval after the start.
    begin = _first_iterations(whole, run_start)
    own = _first_iterations(whole, segment) if process.is_announced and whole.trainer.reads_any_log else []
    return (len(begin) == 2 and process.first_iteration <= begin[0] <= begin[1] - begin[0]) or (
        len(own) == 2 and own[0] <= own[1] - own[0]
    )


def _first_iterations(whole: RunLog, segment: int) -> list[int]:
    row, end = np.searchsorted(whole.steps.segment, (segment, segment + 1)).tolist()
    iterations: list[int] = whole.steps.iteration[row : min(end, row + 2)].tolist()
    return iterations


def _untangled(whole: RunLog) -> RunLog:
    """With the segments of one plan after one another, where two commands write a file at once."""
    segments = whole.segments
    plans = [(one.setup or whole.setup).planned_iterations for one in segments]
    if not whole.trainer.lines_name_plan or len(set(plans)) < 2:
        return whole
    rows = np.searchsorted(whole.steps.segment, range(len(segments) + 1)).tolist()
    groups: list[list[int]] = []
    latest: dict[int | None, list[int]] = {}  # by plan
    continued: set[int] = set()  # segments of a process that has an earlier one
    for segment, (process, plan) in enumerate(zip(segments, plans, strict=True)):
        first = process.first_iteration or 0
        group = latest.get(plans[segment - 1]) if segment else None
        if group is None:
            groups.append(group := [])
        elif plan != plans[segment - 1]:
            before = whole.steps.iteration[rows[segment - 1] : rows[segment]]
            is_start = first <= whole.trainer.first_iteration
            if plan in latest and not is_start:
                group = latest[plan]
                continued |= set() if process.is_announced else {segment}
            elif is_start or (not process.resumed and first <= max(before, default=0)):
                groups.append(group := [])
        group.append(segment)
        latest[plan] = group
    order = [segment for group in groups for segment in group]
    index: dict[int, int] = {}
    ordered: list[LoggedProcess] = []
    for segment in order:
        process = segments[segment]
        if segment in continued:
            ordered[-1] = replace(
                ordered[-1],
                left_out=ordered[-1].left_out + process.left_out,
                last_step_line=process.last_step_line,
                batch_size_changes=(*ordered[-1].batch_size_changes, *process.batch_size_changes),
            )
        else:
            begins = any(segment == group[0] for group in groups[1:])
            ordered.append(replace(process, begins_run=begins))
        index[segment] = len(ordered) - 1
    taken = np.concatenate([np.arange(rows[segment], rows[segment + 1]) for segment in order])
    columns = {name: column[taken] for name, column in whole.steps.columns().items()}
    columns["segment"] = np.array([index[one] for one in columns["segment"].tolist()], dtype=np.int64)

    def moved(items: Sequence[_Item]) -> tuple[_Item, ...]:
        placed = (replace(item, segment=index[item.segment]) for item in items)
        return tuple(sorted(placed, key=lambda item: item.segment))

    return replace(
        whole,
        steps=Steps(**columns),
        evals=moved(whole.evals),
        checkpoints=moved(whole.checkpoints),
        segments=tuple(ordered),
    )


def _printed_once(whole: RunLog) -> RunLog:
    """Without the bar of a process whose buffered lines, with the same iterations and losses, come after it.
    The lines have no times, and get those of the bar."""
    count, steps = len(whole.segments), whole.steps
    rows = np.searchsorted(steps.segment, range(count + 1)).tolist()
    dropped = np.zeros(len(steps.segment), dtype=bool)
    ms, is_kept = steps.ms.copy(), [True] * count
    for segment in range(1, count):
        bar, lines = slice(rows[segment - 1], rows[segment]), slice(rows[segment], rows[segment + 1])
        matching = _matching_rows(steps, bar, lines) if not whole.segments[segment].is_announced else None
        if matching is not None:
            ms[lines], dropped[bar], is_kept[segment - 1] = steps.ms[matching], True, False
    if all(is_kept):
        return whole
    index = np.cumsum([0, *is_kept[:-1]])
    segments: list[LoggedProcess] = []
    begin: LoggedProcess | None = None  # of the process, where its bar began it
    for process, stays in zip(whole.segments, is_kept, strict=True):
        begin = begin or process
        if stays:
            segments.append(
                replace(
                    process,
                    has_startup=begin.has_startup,
                    resumed=begin.resumed,
                    first_line=begin.first_line,
                    is_announced=begin.is_announced,
                )
            )
            begin = None
    columns = {name: column[~dropped] for name, column in replace(steps, ms=ms).columns().items()}
    columns["segment"] = index[columns["segment"]]
    return replace(
        whole,
        steps=Steps(**columns),
        evals=tuple(replace(one, segment=int(index[one.segment])) for one in whole.evals),
        checkpoints=tuple(replace(one, segment=int(index[one.segment])) for one in whole.checkpoints),
        segments=tuple(segments),
    )


def _matching_rows(steps: Steps, bar: slice, lines: slice) -> Ints | None:
    """For each line, the bar's row with its loss; None where the two are not of the same iterations."""
    at, loss, line_loss = steps.iteration[bar], steps.loss[bar], steps.loss[lines]
    if len(line_loss) < _MIN_JUDGED_LINES or np.isfinite(steps.ms[lines]).any():
        return None
    if not np.isfinite(steps.ms[bar]).any():
        return None  # both are lines
    digits = next((one for one in range(3, 7) if np.allclose(loss, loss.round(one), 0, 1e-9)), 0)
    if not digits or len(np.unique(line_loss)) < len(line_loss) / 2:
        return None
    # The bar may move before or after the line is printed.
    after = np.searchsorted(at, steps.iteration[lines] - 1)
    near = np.clip(after + np.arange(3)[:, None], 0, len(at) - 1)
    is_same = (np.abs(at[near] - steps.iteration[lines]) <= 1) & (
        np.abs(loss[near] - line_loss) <= 0.51 * 10.0**-digits
    )
    if is_same.any(axis=0).mean() < _MIN_SAME_SHARE:
        return None
    row: Ints = bar.start + near[is_same.argmax(axis=0), np.arange(len(line_loss))]
    return row


# --- a count of steps that begins again, in one process ---


def _begins_again(whole: RunLog, segment: int) -> bool:
    """Whether only the count of steps says that this is another process. Trainers that are known count on in
    one process."""
    if not whole.trainer.reads_any_log or whole.is_excerpt or not whole.has_iteration_numbers:
        return False
    return not whole.segments[segment].is_announced and _begins_run(whole, segment - 1, segment)


def _loss_goes_back(whole: RunLog, segment: int) -> bool:
    """Whether the loss begins anew, as that of new weights does, or cannot be compared."""
    begin, middle, end = np.searchsorted(whole.steps.segment, (segment - 1, segment, segment + 1)).tolist()
    before, after = whole.steps.loss[begin:middle], whole.steps.loss[middle:end]
    before, after = before[np.isfinite(before)], after[np.isfinite(after)]
    if not len(before) or not len(after):
        return True
    lines = max(1, min(_COMPARED_LINES, len(before) // 4))
    first, last, new = (float(np.median(part)) for part in (before[:lines], before[-lines:], after[:lines]))
    noise = detrended_std(before[len(before) // 2 :]) or 0.0
    # The loss of new weights may fall within these lines: then the first one shows it.
    rise, fall = float(after[0]) - last, float(before[0]) - last
    if rise > max(fall / 2, MIN_FALL_NOISES * noise):
        return True
    return first - last > MIN_FALL_NOISES * noise / math.sqrt(lines) and new - last > (first - last) / 2


def _joined(whole: RunLog) -> RunLog:
    """With the segments of one run as one, where another count rises as that of the steps begins again."""
    count = len(whole.segments)
    rows = np.searchsorted(whole.steps.segment, range(count + 1)).tolist()
    joins = [False] * count
    for segment in range(1, count):
        outer = whole.segments[segment].outer_count
        joins[segment] = outer is not None and outer.is_of_rounds and _begins_again(whole, segment)
    # Of a few lines it cannot be said where the loss goes.
    long = [one for one in range(1, count) if joins[one] and rows[one] - rows[one - 1] >= _MIN_JUDGED_LINES]
    if 2 * sum(_loss_goes_back(whole, segment) for segment in long) > len(long):
        return whole
    if not any(joins):
        return whole
    interval = whole.log_interval() or 1
    offsets = [0] * count
    for segment in range(1, count):
        if joins[segment] and rows[segment - 1] < rows[segment] < rows[segment + 1]:
            first = int(whole.steps.iteration[rows[segment]])
            last = int(whole.steps.iteration[rows[segment] - 1])
            planned = (whole.segments[segment - 1].setup or whole.setup).planned_iterations
            # Lines are an interval apart; a total, as of 4/1000, tells how many came after the last one.
            is_near = planned is not None and 0 <= planned - last < interval
            length = planned if is_near and planned is not None else last + max(interval - first, 0)
            offsets[segment] = offsets[segment - 1] + length
        else:
            joins[segment] = False
    index = np.cumsum([not joined for joined in joins]) - 1
    segments: list[LoggedProcess] = []
    for segment, process in enumerate(whole.segments):
        changes = tuple((at + offsets[segment], size) for at, size in process.batch_size_changes)
        if not joins[segment]:
            segments.append(replace(process, batch_size_changes=changes))
            continue
        setup = process.setup or whole.setup
        total = process.outer_count.total if process.outer_count else None
        planned = setup.planned_iterations * total if setup.planned_iterations and total else None
        segments[-1] = replace(
            segments[-1],
            left_out=segments[-1].left_out + process.left_out,
            last_step_line=process.last_step_line,
            rounds=segments[-1].rounds + 1,
            batch_size_changes=(*segments[-1].batch_size_changes, *changes),
            setup=replace(setup, planned_iterations=planned),
        )
    first_lines = [process.first_line for process in whole.segments]

    def moved(item: _Item) -> _Item:
        at = None if item.iteration is None else item.iteration + offsets[item.segment]
        return replace(item, iteration=at, segment=int(index[item.segment]))

    def moved_event(event: LogEvent) -> LogEvent:
        if event.iteration is None:
            return event
        segment = max(0, bisect_right(first_lines, event.line) - 1)
        return replace(event, iteration=event.iteration + offsets[segment])

    return replace(
        whole,
        steps=replace(
            whole.steps,
            iteration=whole.steps.iteration + np.array(offsets)[whole.steps.segment],
            segment=index[whole.steps.segment],
        ),
        evals=tuple(map(moved, whole.evals)),
        checkpoints=tuple(map(moved, whole.checkpoints)),
        events=tuple(map(moved_event, whole.events)),
        segments=tuple(segments),
        setup=(segments[-1].setup or whole.setup) if joins[-1] else whole.setup,
    )


def _part_counts(whole: RunLog, starts: list[int]) -> dict[int, int]:
    """By the first segment of each run, of how many parts of one process it is one."""
    rows = np.searchsorted(whole.steps.segment, range(len(whole.segments) + 1)).tolist()
    groups: list[list[int]] = []
    for start in starts:
        process = whole.segments[start]
        is_part = (
            start > 0
            and _begins_again(whole, start)
            and (
                process.outer_count is not None
                or (rows[start] - rows[start - 1] >= _MIN_JUDGED_LINES and not _loss_goes_back(whole, start))
            )
        )
        if is_part:
            groups[-1].append(start)
        else:
            groups.append([start])
    return {start: len(group) for group in groups for start in group}


def _with_ends_of_parts(pieces: list[RunLog]) -> list[RunLog]:
    """A part is over where the next one of its process begins, if something counts the parts. Else runs came
    to their end where several stopped at the same iteration: parts beside each other, or any others."""
    lasts = [int(piece.steps.iteration[-1]) if len(piece.steps) else None for piece in pieces]
    counts = Counter(lasts)
    ended, first = list(pieces), 0  # of the group of parts
    for at, (piece, last) in enumerate(zip(pieces, lasts, strict=True)):
        first = at if at >= first + pieces[first].parts else first
        group = range(first, min(first + pieces[first].parts, len(pieces)))
        is_counted = at < group[-1] and pieces[at + 1].segments[0].outer_count is not None
        is_as_long = any(lasts[other] == last for other in (at - 1, at + 1) if other in group)
        is_usual = piece.trainer.reads_any_log and counts[last] >= _MIN_SAME_LENGTHS
        failed = {event.kind for event in piece.events_after_last_step()} & FAILURE_KINDS
        is_long = piece.segments[0].outer_count is not None or len(piece.steps) >= _MIN_JUDGED_LINES
        is_same = (is_as_long or is_usual) and is_long
        if last is not None and not failed and (is_counted or is_same):
            ended[at] = replace(piece, ended="finished")
    return ended


# --- the runs ---


def _stage_of(segments: Sequence[LoggedProcess]) -> str | None:
    return next((segment.stage for segment in segments if segment.stage is not None), None)


def _longest(whole: RunLog, runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The MAX_RUNS runs with the most iterations, in their order."""
    if len(runs) <= MAX_RUNS:
        return runs
    at = whole.steps.iteration.tolist()
    rows = np.searchsorted(whole.steps.segment, range(len(whole.segments) + 1)).tolist()
    lengths = [at[end - 1] - at[begin] + 1 if begin < end else 0 for begin, end in pairwise(rows)]
    longest = np.argsort([-sum(lengths[start:end]) for start, end in runs], kind="stable")[:MAX_RUNS]
    return [runs[index] for index in sorted(longest.tolist())]


def _run_of_segments(whole: RunLog, start: int, end: int, first_lines: list[int]) -> RunLog:
    begin_row, end_row = np.searchsorted(whole.steps.segment, (start, end))
    rows = whole.steps.rows(int(begin_row), int(end_row)).columns()
    columns = {name: column.copy() for name, column in rows.items()}  # else each run keeps all rows in memory
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
        run_name=whole.run_name or (whole.setup if setup is None else setup).run_name,
        last_step_line=max(segment.last_step_line for segment in segments),
    )
    return _completed(_with_lines(run_log, segments[0].first_line, first_lines))


def _run_of_launch(whole: RunLog, launch: FailedLaunch, first_lines: list[int]) -> RunLog:
    run_log = replace(
        whole,
        steps=whole.steps.rows(0, 0),
        evals=(),
        checkpoints=(),
        segments=(LoggedProcess(has_startup=True),),
        setup=clamped_setup(launch.setup),
        last_step_line=0,
    )
    return _with_lines(run_log, launch.first_line, first_lines)


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
    last_line = max(last_line, run_log.last_step_line)  # another command may write the same file
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


def _completed(run_log: RunLog) -> RunLog:
    """A run may print two metrics: the one of most evaluations counts. A sum over tokens becomes a mean."""
    metrics = Counter(evaluation.metric for evaluation in run_log.evals).most_common(1)
    metric: ValMetric = metrics[0][0] if metrics else "loss"
    evals = tuple(one if one.metric == metric else replace(one, val_loss=None) for one in run_log.evals)
    rounds = max((segment.rounds for segment in run_log.segments), default=1)
    notes = (*run_log.notes, say("rounds.joined", rounds=rounds)) if rounds > 1 else run_log.notes
    known = [(one.iteration, one.val_loss) for one in evals if one.iteration is not None and one.val_loss]
    at = np.array([iteration for iteration, _ in known], dtype=np.int64)
    losses = np.array([loss for _, loss in known], dtype=float)
    own = of_lines(run_log.metrics, run_log.first_line, run_log.last_line) if known else []
    if tokens := next(filter(None, (tokens_of_sums(one, at, losses) for one in own)), None):
        evals = tuple(
            one if one.val_loss is None else replace(one, val_loss=one.val_loss / tokens) for one in evals
        )
        notes = (*notes, say("log.summed_losses", tokens=tokens))
    return replace(run_log, evals=evals, val_metric=metric, notes=notes)
