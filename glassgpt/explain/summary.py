"""A run in a few sentences: how far it came, how good it is, how fast it was, and what matters most.

Of a file with several runs: which these are, and what is wrong with the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from glassgpt.estimate.loss_law import MIN_UPDATES_FOR_LOSS, position_in_range
from glassgpt.explain.rules.loss_plausibility import MIN_LOSS_TUNED
from glassgpt.explain.rules.lost_work import FAULT_KINDS, MAX_QUOTED_CHARS, error_text
from glassgpt.format import format_loss
from glassgpt.i18n import translate
from glassgpt.record.finding import SERIOUS, Finding
from glassgpt.runs.curve_statistics import is_level, trend, turning_row
from glassgpt.runs.facts import Facts
from glassgpt.runs.metric_series import MetricCourse
from glassgpt.runs.past_best import chance_of_best
from glassgpt.runs.progress import Progress
from glassgpt.runs.run_log import Floats, LogEvent, RunLog
from glassgpt.runs.trajectory import (
    epochs_done,
    last_iteration_done,
    mean_iteration_time,
    planned_end_iteration,
    planned_iteration_count,
    shows_run_start,
)

MAX_PLAN_SHARE = 0.95  # of the planned iterations: a run that got further has nearly done all
MAX_SHOWN_SHARE = 0.99  # of a plan that was not reached: more is shown as 100%
MIN_EXTREME_SHARE = 0.3  # of the range: how far an extreme that is not the best is beyond both ends
MIN_OVERHEAD_SHARE = 0.01  # of the time: less is not worth a sentence
MAX_OTHER_PROBLEMS = 3  # sentences about other runs
MIN_STALL_SHARE = 0.05  # of the time
MIN_EVALS_FOR_SHARE = 3  # of a log that begins in the middle of a run
MAX_SWAPPING_TOKENS_PER_S = 20.0  # slower than any machine trains a model that its memory holds
MIN_WANDER_RATIO = 1.25  # of the step time, between its high and its low: less is no news
MIN_DRIFT_TO_WANDER = 0.5  # first to last quarter, over that range: it went one way
MIN_END_LINES = 5  # of each end: the mean of fewer may be higher by chance
MIN_EQUAL_LAST_VALUES = 5  # of a metric, and at least half of all: then it stands still
EVALUATION_FINDINGS = ("memorised-data", "epoch-steps", "loss-nan")  # they advise one, or another matters
RISE_FINDINGS = ("divergence", "loss-explosion", "loss-nan")
# No evaluation for so much of the run at its end, and for so many of the usual intervals.
MIN_UNEVALUATED_SHARE, MIN_UNEVALUATED_INTERVALS, MIN_EVALUATED_SHARE = 0.25, 2.5, 0.01
# The last lines are in a spike: so many times the median of the tenth before them, above nearly all of it,
# and of a small part of the run.
MIN_SPIKE_LINES, END_SHARE, MIN_SPIKE_RATIO, SPIKE_PERCENTILE, MAX_SPIKE_SHARE = 20, 10, 1.3, 95, 0.05
MIN_WORSE_VALUES = 4  # of a metric: of fewer it is not said that it got worse
MIN_JUDGED_ITERATIONS = 20  # logged; of fewer it cannot be said that nothing is wrong


def introduce_runs(main: RunLog, run_logs: Sequence[RunLog]) -> str:
    """How many runs the file holds, and which one the following is about."""
    runs, lines = main.runs_in_file, lines_of(main)
    trainers = list(dict.fromkeys(one.trainer.name for one in run_logs))
    if main.run_name is not None:
        return translate("verdict.named_runs", runs=runs, name=main.run_name)
    if len(trainers) > 1:
        names = {"trainers": ", ".join(trainers), "trainer": main.trainer.name}
        return translate("verdict.several_trainers", runs=runs, lines=lines, **names)
    stages = list(dict.fromkeys(one.stage for one in run_logs if one.stage is not None))
    if main.stage is not None and len(stages) > 1:
        names = {"stages": ", ".join(stages), "stage": main.stage}
        return translate("verdict.several_stages", lines=lines, **names)
    return translate("verdict.several_runs", runs=runs, lines=lines)


def lines_of(run_log: RunLog) -> str:
    """Where a run is in its file, to be put behind its name: " (lines 3 to 90)"; empty where unknown."""
    if not run_log.has_line_numbers or not run_log.first_line:
        return ""
    return " " + translate("verdict.lines", first=run_log.first_line, last=run_log.last_line)


def other_problems(others: Sequence[tuple[RunLog, Facts, Sequence[Finding]]]) -> list[str]:
    """What is wrong with the other runs of a file: commands that failed at their start together, then the
    first few runs with a problem of their own."""
    sentences: list[str] = []
    failed = [log for log, facts, _ in others if not len(log.steps) and facts.ended in ("crashed", "oom")]
    if failed:
        errors = [_first_error(log) for log in failed]
        at = ", ".join(
            f"{error.line if error else log.first_line:,}"
            for log, error in zip(failed[:MAX_OTHER_PROBLEMS], errors, strict=False)
        )
        more = ", …" if len(failed) > MAX_OTHER_PROBLEMS else ""
        sentences.append(translate("verdict.failed_launches", launches=len(failed), lines=at + more))
        if errors[0] and (quoted := error_text(errors[0].text)):
            sentences.append(translate("verdict.first_failure", quoted=quoted[:MAX_QUOTED_CHARS]))
    problems: dict[str, list[tuple[RunLog, Finding]]] = {}  # alike ones together
    for log, _, findings in others:
        if len(log.steps) and findings and findings[0].severity in SERIOUS:
            problems.setdefault(findings[0].id, []).append((log, findings[0]))
    ranked = sorted(problems.values(), key=lambda alike: -max(one.severity_level for _, one in alike))
    for alike in ranked[:MAX_OTHER_PROBLEMS]:
        log, finding = max(alike, key=lambda one: one[1].severity_level)
        values = {"name": log.label + lines_of(log), "title": finding.title}
        sentences.append(
            translate("verdict.other_run_problem", **values)
            if len(alike) == 1
            else translate("verdict.alike_problems", runs=len(alike), **values)
        )
    if left_out := sum(map(len, ranked[MAX_OTHER_PROBLEMS:])):
        sentences.append(translate("verdict.more_problems", runs=left_out))
    return sentences


def _first_error(run_log: RunLog) -> LogEvent | None:
    """The first one that says why; those after it often follow from it."""
    faults = [event for event in run_log.events if event.kind in FAULT_KINDS]
    return next((event for event in faults if error_text(event.text)), faults[0] if faults else None)


def compose_verdict(run_log: RunLog, facts: Facts, findings: Sequence[Finding]) -> list[str]:
    """The sentences, in order. The last one names the most serious finding, or says that there is none."""
    sentences = [_progress_sentence(run_log, facts)]
    planned, last = planned_end_iteration(run_log), _last_iteration_done(run_log, facts)
    if facts.ended == "finished":  # a setting may be of another run; a counter `i/N` is of this one
        planned = run_log.setup.planned_iterations
    is_short = bool(
        planned
        and last is not None
        and facts.ended is not None
        and (last < planned if run_log.iterations_done else last < MAX_PLAN_SHARE * planned)
        and not (facts.ended == "finished" and last >= MAX_SHOWN_SHARE * planned)  # it counts from 0
    )
    if is_short and planned and last is not None:
        sentences.append(
            translate(
                "verdict.share_of_plan",
                share=min(last / planned, MAX_SHOWN_SHARE),
                planned=planned_iteration_count(run_log, planned),
            )
        )
        stops = [event.text for event in run_log.events_after_last_step() if event.kind == "finish"]
        stops = [text for text in stops if "stop" in text.lower()]
        if stops and facts.ended == "finished":
            quoted = stops[-1][:MAX_QUOTED_CHARS].rstrip(".")
            sentences.append(translate("verdict.stop_reason", quoted=quoted))
    has_risen = any(one.id in RISE_FINDINGS for one in findings)
    is_flat = run_log.loss_measures_learning and not has_risen and _has_risen_slightly(facts)
    # A result of what was made of the weights after the training: no loss of the run's own evaluations.
    closing = [
        one.text
        for one in run_log.events_after_last_step()
        if one.kind == "finish" and "val_" in one.text and all(own.line != one.line for own in run_log.evals)
    ]
    if closing:
        sentences.append(translate("verdict.closing_result", quoted=closing[-1][:MAX_QUOTED_CHARS]))
    has_val_loss = facts.best_val_loss is not None
    metrics = [_metric_sentence(course, not has_val_loss, last) for course in run_log.metric_courses]
    loss_sentence = _loss_sentence(run_log, facts, findings)
    sentences += [loss_sentence, *metrics] if run_log.loss_measures_learning else [*metrics, loss_sentence]
    if (evaluated := _unevaluated_since(run_log, facts)) is not None:
        sentences.append(translate("verdict.not_evaluated_since", evaluated=evaluated, last=last))
    trained_evals = [one for one in run_log.evals if one.val_loss is not None and one.iteration != 0]
    # One evaluation, or one before training, does not tell how far the run came; nor do those of validation
    # text alone.
    has_both = len(trained_evals) > 1 and all(one.train_loss is not None for one in trained_evals)
    if facts.best_val_loss is not None and (run_log.columns or not has_both):
        sentences.append(_training_sentence(run_log, facts, findings))
    if is_flat and not _training_loss_is_level(run_log, facts):
        sentences.append(translate("verdict.training_loss_not_fallen"))
    sentences += _time_sentences(run_log, facts, findings)
    if left_out := run_log.left_out.lines:
        sentences.append(
            translate(
                "verdict.thinned_log", lines=facts.iterations_logged, rows=facts.iterations_logged - left_out
            )
        )
    if run_log.columns:
        columns = ", ".join(f"{meaning}={column}" for meaning, column in run_log.columns.items())
        sentences.append(translate("verdict.columns", columns=columns))
    sentences += [str(note) for note in run_log.notes]
    has_eval = facts.best_val_loss is not None or run_log.evaluates_metrics
    epochs, place = epochs_done(run_log), len(sentences)
    serious = [finding for finding in findings if finding.severity in SERIOUS]
    has_advice = any(finding.severity == "advice" for finding in findings)
    if serious:
        sentences.append(translate("verdict.most_important", title=serious[0].title))
    elif (
        facts.ended in ("finished", None)
        and facts.iterations_logged >= MIN_JUDGED_ITERATIONS
        and not run_log.is_excerpt
        and not has_advice
        and not is_flat
        and not (facts.best_val_loss is None and _training_loss_is_level(run_log, facts))
        and not is_short
        and not _repeats_iterations(run_log)
        and not _val_loss_spikes(run_log)
        and not any(one.id == "gap-growth" for one in findings)
        and not (facts.loss_ends is not None and 0 < facts.loss_ends["last"] < MIN_LOSS_TUNED)
        and not any(course.got_worse for course in run_log.metric_courses)
        and run_log.loss_measures_learning
    ):
        sentences.append(
            translate("verdict.nothing_wrong")
            if has_eval or (epochs is not None and epochs <= 1)
            else translate("verdict.nothing_wrong_unevaluated")
        )
    elif (
        0 < facts.iterations_logged < MIN_JUDGED_ITERATIONS
        and facts.ended is not None
        and run_log.loss_measures_learning
    ):
        sentences += _few_lines_sentences(run_log, facts)
    # In a first epoch every batch is new when its loss is taken: that is an evaluation, too.
    is_repeated = epochs is not None and epochs > 1 and facts.loss_last is not None
    is_told = any(one.id in EVALUATION_FINDINGS for one in findings) or (
        sentences[-1] == translate("verdict.nothing_wrong_unevaluated")
    )
    if (
        is_repeated
        and not (has_eval or run_log.evals or _may_be_evaluated(run_log))
        and not is_told
        and run_log.loss_measures_learning
        and not run_log.live
    ):
        # Where its own batches are not learned either, that comes first.
        is_level = _training_loss_is_level(run_log, facts)
        sentence = (
            translate("verdict.level_over_epochs", epochs=epochs)
            if is_level
            else translate("verdict.no_evaluation")
        )
        sentences.insert(place, sentence)
    return [sentence for sentence in sentences if sentence]


def _may_be_evaluated(run_log: RunLog) -> bool:
    """Whether an accuracy or a score stands on lines of its own, without a training loss, and none of them
    says that it is of the training data."""
    return run_log.has_line_numbers and any(
        one.metric.kind in ("accuracy", "score", "error_rate")
        and "train" not in one.name.lower()
        and not np.isin(one.line, run_log.steps.line).any()
        for one in run_log.own_metrics
    )


def _unevaluated_since(run_log: RunLog, facts: Facts) -> int | None:
    """The iteration of the last evaluation, where a large part of the run came after it."""
    at = sorted({one.iteration for one in run_log.evals if one.iteration is not None})
    last = facts.last_iteration
    if not at or last is None or run_log.is_excerpt or run_log.live or not run_log.has_iteration_numbers:
        return None
    usual = float(np.median(np.diff(at))) if len(at) > 1 else 0.0
    least = max(MIN_UNEVALUATED_SHARE * last, MIN_UNEVALUATED_INTERVALS * usual)
    # The first ones of a run alone may be numbered by another count, such as epochs.
    return at[-1] if at[-1] > MIN_EVALUATED_SHARE * last and last - at[-1] > least else None


def _metric_sentence(course: MetricCourse, selects: bool, last: int | None) -> str:
    """From where to where a metric went, and its best value in between. `selects`: nothing else says which
    evaluation is the best. `last`: the run's last iteration."""
    values: dict[str, object] = {"name": course.name, "first": course.first, "last": course.last}
    if course.values == 1:
        at = course.highest_iteration
        is_early = at is not None and last is not None and at < last
        return (
            translate("verdict.metric_once_at", **values, at=at)
            if is_early
            else translate("verdict.metric_once", **values)
        )
    if course.highest == course.lowest:
        return translate("verdict.metric_constant", **values, count=course.values)
    if course.is_noise:
        return translate("verdict.metric_noise", name=course.name, mean=course.mean, count=course.values)
    of_means = {**values, "count": course.mean_of}
    if course.got_worse and course.values >= MIN_WORSE_VALUES:
        went = (
            translate("verdict.metric_worse", **values)
            if course.mean_of == 1
            else translate("verdict.metric_worse_of_means", **of_means)
        )
    else:
        went = (
            translate("verdict.metric_course", **values)
            if course.mean_of == 1
            else translate("verdict.metric_course_of_means", **of_means)
        )
    ends = (course.first, course.last)
    extremes = [
        (course.highest, course.highest_iteration, max(ends) < course.highest),
        (course.lowest, course.lowest_iteration, min(ends) > course.lowest),
    ]
    range_ = course.highest - course.lowest
    phrases = []
    for is_highest, (value, at, is_beyond) in zip((True, False), extremes, strict=True):
        is_best = course.higher_is_better is not None and is_highest == course.higher_is_better
        beyond = abs(value - (max(ends) if is_highest else min(ends)))
        least = 0.0 if is_best and selects and course.is_eval and course.mean_of == 1 else course.noise
        if not is_beyond or beyond < least or (not is_best and beyond < MIN_EXTREME_SHARE * range_):
            continue
        if at is None:
            phrases.append(
                translate("verdict.metric_highest", value=value)
                if is_highest
                else translate("verdict.metric_lowest", value=value)
            )
        else:
            phrases.append(
                translate("verdict.metric_highest_at", value=value, at=at)
                if is_highest
                else translate("verdict.metric_lowest_at", value=value, at=at)
            )
    if MIN_EQUAL_LAST_VALUES <= course.last_alike < course.values <= 2 * course.last_alike:
        phrases.append(translate("verdict.metric_alike", count=course.last_alike))
    return (
        translate("verdict.metric_with_extremes", went=went, extremes="; ".join(phrases))
        if phrases
        else went + "."
    )


def _training_loss_is_level(run_log: RunLog, facts: Facts) -> bool:
    """Whether all its lines together show neither a fall nor a rise."""
    losses = _finite_losses(run_log)
    return facts.loss_ends is not None and len(losses) >= MIN_JUDGED_ITERATIONS and is_level(losses)


def _has_risen_slightly(facts: Facts) -> bool:
    """Whether the training loss of the last lines is above that of the first, and nothing else tells."""
    ends = facts.loss_ends
    if ends is None or facts.best_val_loss is not None or not training_loss_sentence(facts):
        return False
    return ends["lines"] >= MIN_END_LINES and ends["last"] > ends["first"]


def _repeats_iterations(run_log: RunLog) -> bool:
    """Whether a restart did iterations again."""
    return run_log.has_iteration_numbers and bool(np.any(np.diff(run_log.steps.iteration) <= 0))


def _val_loss_spikes(run_log: RunLog) -> bool:
    """Whether an evaluation is far above both of its neighbours."""
    values = np.array([one.val_loss for one in run_log.evals if one.val_loss is not None], dtype=float)
    beside = np.maximum(values[:-2], values[2:])
    return bool(np.any(values[1:-1] > MIN_SPIKE_RATIO * np.abs(beside)))


def _few_lines_sentences(run_log: RunLog, facts: Facts) -> list[str]:
    """What few lines show of the loss, and whether an evaluation is missing."""
    losses = _finite_losses(run_log)
    if run_log.placeholder_loss is not None or not len(losses) or turning_row(losses) is not None:
        return []  # another sentence says what they show
    if (course := trend(losses)) == "falls":
        return [translate("verdict.few_lines_fall", lines=facts.iterations_logged)]
    values = np.array([one.val_loss for one in run_log.evals if one.val_loss is not None], dtype=float)
    if trend(values) == "falls":
        return [translate("verdict.few_evaluations_fall", evaluations=len(values))]
    if course == "rises":
        return [translate("verdict.few_lines_rise", lines=facts.iterations_logged)]
    return [translate("verdict.too_few_lines", lines=facts.iterations_logged)] if len(losses) > 1 else []


def _finite_losses(run_log: RunLog) -> Floats:
    return run_log.steps.loss[run_log.steps.has_loss & np.isfinite(run_log.steps.loss)]


def compose_status(progress: Progress, run_log: RunLog, facts: Facts, findings: Sequence[Finding]) -> str:
    """One or two short sentences, always current: what the run is doing, how far it is, when it will be done,
    and whether that is normal. For the page and `glass watch`."""
    if progress.is_over:
        sentences = [_progress_sentence(run_log, facts), _loss_sentence(run_log, facts, findings)]
        return " ".join(sentence for sentence in sentences if sentence)
    if progress.state == "starting":
        expected_s = run_log.forecast.total_s
        if expected_s is None:
            return translate("status.starting")
        return translate("status.starting_with_forecast", low=expected_s[0], high=expected_s[1])
    if progress.done is None:
        place = translate("status.lines", lines=run_log.iterations_logged)
    elif progress.planned:
        place = translate(
            "status.of_planned", done=progress.done, planned=progress.planned, share=progress.share
        )
    else:
        place = translate("status.done", done=progress.done)
    if progress.loss is not None and not math.isnan(progress.loss):
        place = translate("status.with_loss", place=place, loss=progress.loss)
    if progress.state == "stalled":
        gap_s = progress.usual_gap_s or 0.0
        return translate("status.stalled", place=place, quiet=progress.quiet_s, gap=gap_s)
    is_evaluating = progress.state == "evaluating"
    doing = (
        translate("status.evaluating", place=place)
        if is_evaluating
        else translate("status.training", place=place)
    )
    if progress.eta_s is None:
        head = translate("status.without_end", status=doing)
    elif progress.counts_evaluations:
        head = translate("status.left_with_evaluations", status=doing, left=progress.eta_s)
    else:
        head = translate("status.left", status=doing, left=progress.eta_s)
    return f"{head} {_normality(run_log, facts, findings)}".strip()


def _normality(run_log: RunLog, facts: Facts, findings: Sequence[Finding]) -> str:
    """Whether a run in progress is as it should be; "" where that cannot be said yet."""
    serious = [finding for finding in findings if finding.severity in SERIOUS]
    if serious:
        return translate("status.serious", title=serious[0].title)
    positions = forecast_positions(run_log, facts)
    training = positions.get("training_loss")
    if positions.get("loss") == "above":
        if training == "above":
            return translate("status.both_losses_above")
        return translate("status.loss_above") if training is None else translate("status.only_val_loss_above")
    if positions.get("loss") == "below":
        both = training == "below"
        return translate("status.both_losses_below") if both else translate("status.loss_below")
    if positions.get("speed") == "below":
        return translate("status.slower")
    if positions.keys() >= {"loss", "speed"}:
        return translate("status.as_expected")
    if "loss" in positions:
        return translate("status.loss_as_expected")
    if "speed" in positions:
        return translate("status.speed_as_expected")
    if facts.iterations_logged >= MIN_JUDGED_ITERATIONS:
        return translate("status.nothing_unusual")
    return ""


def forecast_positions(run_log: RunLog, facts: Facts) -> dict[str, str]:
    """The latest evaluated losses and the steady speed, compared with the forecast before the run: "on",
    "above" or "below"; without those that cannot be compared."""
    positions, forecast = {}, run_log.forecast
    for one in run_log.evals[-1:] if forecast.loss and run_log.val_metric == "loss" else []:
        at, bands = one.iteration, np.array(forecast.loss)
        if at is None or one.val_loss is None or at < MIN_UPDATES_FOR_LOSS:
            continue
        low, high = (float(np.interp(at, bands[:, 0], bands[:, edge])) for edge in (1, 2))
        positions["loss"] = position_in_range(one.val_loss, low, high)
        if one.train_loss is not None:
            positions["training_loss"] = position_in_range(one.train_loss, low, high)
    if forecast.tokens_per_s is not None and facts.tokens_per_s is not None:
        positions["speed"] = position_in_range(facts.tokens_per_s, *forecast.tokens_per_s)
    return positions


def _progress_sentence(run_log: RunLog, facts: Facts) -> str:
    trainer = translate("verdict.any_trainer") if run_log.trainer.reads_any_log else run_log.trainer.name
    if not facts.iterations_logged and run_log.live:
        sentence = translate("verdict.no_iteration_yet", trainer=trainer)
    elif not facts.iterations_logged and facts.best_val_loss is not None:
        sentence = translate("verdict.only_evaluations", trainer=trainer)
    elif not facts.iterations_logged:
        sentence = translate("verdict.no_iteration", trainer=trainer)
    elif facts.last_iteration is None:
        sentence = translate("verdict.no_iteration_numbers", trainer=trainer, lines=facts.iterations_logged)
    else:
        done = _last_iteration_done(run_log, facts) or 0
        partial = run_log.last_partial_iteration or 0  # of a line that is cut off its iteration is known
        is_next = facts.ended == "cut" and done < partial <= done + (facts.log_interval or 1)
        at = f"{partial if is_next else done:,}"
        sentence = {
            "finished": translate("verdict.finished", trainer=trainer, at=at),
            "interrupted": translate("verdict.interrupted", trainer=trainer, at=at),
            "crashed": translate("verdict.crashed", trainer=trainer, at=at),
            "oom": translate("verdict.out_of_memory", trainer=trainer, at=at),
            "cut": _cut_sentence(run_log, trainer, at),
            None: translate("verdict.running", trainer=trainer, at=at),
        }[facts.ended]
        budget_s, remaining_s = run_log.setup.budget_s, run_log.setup.remaining_s
        if facts.ended != "finished" and budget_s and remaining_s:
            share = min(1.0, max(0.0, 1 - remaining_s / budget_s))
            sentence += " " + translate("verdict.time_budget", budget=budget_s, share=share, left=remaining_s)
    # English only: "An HF Trainer run". A translated sentence does not begin with "A".
    if sentence.startswith(f"A {run_log.trainer.name} "):
        return sentence.replace("A", run_log.trainer.article, 1)
    return sentence


def _cut_sentence(run_log: RunLog, trainer: str, at: str) -> str:
    """About a log that does not say how the run ended."""
    if run_log.is_saved_state:
        return translate("verdict.saved_state", trainer=trainer, at=at)
    if run_log.columns:
        return translate("verdict.table_ends", trainer=trainer, at=at)
    return translate("verdict.log_stops", trainer=trainer, at=at)


def _last_iteration_done(run_log: RunLog, facts: Facts) -> int | None:
    """A finished run's last iteration need not have a line: those are `log_interval` apart."""
    logged, planned = last_iteration_done(run_log), run_log.setup.planned_iterations
    if logged is None or run_log.iterations_done is not None:
        return logged
    if planned is not None and facts.ended == "finished" and planned < logged + (facts.log_interval or 1):
        return max(logged, planned)
    return logged


def _time_sentences(run_log: RunLog, facts: Facts, findings: Sequence[Finding]) -> list[str]:
    if facts.steady_ms is None:
        return _mean_time_sentence(run_log, facts)
    times = [float(str(regime["steady_ms"])) for regime in facts.regimes]
    # Of a few lines around an evaluation, its share says nothing about the run.
    is_typical = shows_run_start(run_log) or len(run_log.evals) >= MIN_EVALS_FOR_SHARE
    share = facts.pause_share if is_typical and (facts.pause_share or 0.0) >= MIN_OVERHEAD_SHARE else None
    if any(one.id == "silent-spike" and "period" in one.values for one in findings):
        share = None  # what these iterations do is not known
    overhead = translate("verdict.overhead", share=share) if share else ""
    if len(times) > 1:
        sentences = [translate("verdict.step_time_regimes", low=min(times), high=max(times)), overhead]
    elif facts.wander_ms and facts.wander_ms[1] >= MIN_WANDER_RATIO * facts.wander_ms[0]:
        low, high = facts.wander_ms
        steady = run_log.steps.ms[run_log.is_steady()]
        first, last = (
            (float(np.median(part)) for part in np.array_split(steady, 4)[::3])
            if len(steady) >= MIN_JUDGED_ITERATIONS
            else (high, high)
        )
        sentences = [
            translate("verdict.step_time_quarters", ms=facts.steady_ms, first=first, last=last)
            if abs(last - first) > MIN_DRIFT_TO_WANDER * (high - low)
            else translate("verdict.step_time_wanders", ms=facts.steady_ms, low=low, high=high),
            overhead,
        ]
    elif share:
        sentences = [translate("verdict.step_time_and_overhead", ms=facts.steady_ms, share=share)]
    else:
        sentences = [translate("verdict.step_time", ms=facts.steady_ms)]
    if facts.tokens_per_s and facts.tokens_per_s < MAX_SWAPPING_TOKENS_PER_S:
        sentences.append(translate("verdict.very_slow", tokens_per_s=facts.tokens_per_s))
    if facts.stall_share >= MIN_STALL_SHARE:
        sentences.append(translate("verdict.stalls", share=facts.stall_share))
    return sentences


def _mean_time_sentence(run_log: RunLog, facts: Facts) -> list[str]:
    """What an iteration took on average, where only the whole time is known."""
    mean = mean_iteration_time(run_log, _last_iteration_done(run_log, facts))
    if mean is None:
        return []
    values = {"run_s": mean[0], "ms": mean[1]}
    if mean[2] is None:
        return [translate("verdict.mean_step_time", **values)]
    if mean[2]:
        return [translate("verdict.mean_step_time_with_evals", **values)]
    return [translate("verdict.mean_step_time_without_evals", **values)]


def training_loss_sentence(facts: Facts) -> str:
    """Where the training loss began and where it ended; empty where the log does not tell."""
    if facts.loss_first == facts.loss_last == 0:
        return ""  # no loss is: a finding says why
    if facts.loss_last is None or facts.loss_first is None or math.isnan(facts.loss_last):
        return ""
    if facts.iterations_logged == 1:
        return translate("verdict.only_training_loss", last=format_loss(facts.loss_last))
    ends = facts.loss_ends
    if ends is None:
        return ""
    first, last, lines = format_loss(ends["first"]), format_loss(ends["last"]), int(ends["lines"])
    if math.isinf(facts.loss_last):
        return translate("verdict.training_loss_finite", first=first, last=last, lines=lines)
    if lines == 1:
        return translate("verdict.training_loss_of_lines", first=first, last=last)
    return translate("verdict.training_loss", first=first, last=last, lines=lines)


def _level_before_end(run_log: RunLog, facts: Facts) -> str:
    """The usual training loss before the last lines, where these are in a spike."""
    losses, ends = _finite_losses(run_log), facts.loss_ends
    before = (
        losses[-max(MIN_SPIKE_LINES, len(losses) // END_SHARE) : -int(ends["lines"])] if ends else losses[:0]
    )
    if ends is None or len(before) < MIN_SPIKE_LINES // 2 or not (median := float(np.median(before))) > 0:
        return ""
    at = run_log.steps.iteration
    if at[-1] - at[-int(ends["lines"])] > MAX_SPIKE_SHARE * (at[-1] - at[0]):
        return ""
    if ends["last"] < max(MIN_SPIKE_RATIO * median, float(np.percentile(before, SPIKE_PERCENTILE))):
        return ""
    return " " + translate("verdict.ends_in_spike", lines=len(before), before=format_loss(median))


def _training_sentence(run_log: RunLog, facts: Facts, findings: Sequence[Finding]) -> str:
    """The training loss from its first lines to its last; of one that fell and rose again, its lowest."""
    if run_log.placeholder_loss:
        return translate("verdict.placeholder_loss", loss=format_loss(run_log.placeholder_loss))
    turned: dict[str, object] = {}
    for rise in findings:
        if rise.id == "divergence" and "lowest_iteration" in rise.values:
            turned = {name: rise.values[name] for name in ("lowest_loss", "lowest_iteration", "end_loss")}
    losses = run_log.steps.loss
    is_short = len(losses) < MIN_JUDGED_ITERATIONS and bool(np.isfinite(losses).all())
    if not turned and is_short and (row := turning_row(losses)) is not None:
        at = int(run_log.steps.iteration[row])
        turned = {"lowest_loss": losses[row], "lowest_iteration": at, "end_loss": losses[-1]}
    if not turned or not run_log.has_iteration_numbers:
        ends = facts.loss_ends
        has_risen = any(one.id in RISE_FINDINGS for one in findings)
        is_told = bool(training_loss_sentence(facts)) and not has_risen
        if ends is not None and is_told and _training_loss_is_level(run_log, facts):
            shown = {"first": format_loss(ends["first"]), "last": format_loss(ends["last"])}
            return translate("verdict.training_loss_level", lines=int(ends["lines"]), **shown)
        told = training_loss_sentence(facts)
        return told + _level_before_end(run_log, facts) if told else told
    first = facts.loss_first
    if first is None or first <= float(str(turned["lowest_loss"])):
        return translate("verdict.training_loss_rose", **turned)
    return translate("verdict.training_loss_turned", first=format_loss(first), **turned)


def _loss_sentence(run_log: RunLog, facts: Facts, findings: Sequence[Finding]) -> str:
    best, step, final = facts.best_val_loss, facts.best_val_step, facts.final_val_loss
    if best is None or final is None:
        if not run_log.loss_measures_learning:
            has_measure = any(one.metric.kind in ("reward", "accuracy") for one in run_log.own_metrics)
            if has_measure:
                return translate("verdict.loss_measures_nothing")
            losses = _finite_losses(run_log)
            return (
                translate("verdict.loss_below_zero")
                if len(losses) and np.median(losses) < 0
                else translate("verdict.loss_measures_nothing_alone")
            )
        return _training_sentence(run_log, facts, findings)
    shown = format_loss(best)
    evaluated = [one for one in run_log.evals if one.val_loss is not None]
    trained = [one for one in evaluated if one.iteration != 0]
    if facts.val_metric == "bits_per_byte":
        if not trained:
            return translate("verdict.bits_per_byte_before_training", bits=shown)
        if len(evaluated) == 1:
            return translate("verdict.only_bits_per_byte", bits=shown)
        return translate("verdict.best_bits_per_byte", best=shown)
    if not trained:
        return translate("verdict.evaluated_before_training", loss=final)
    if len(trained) == 1:
        at = trained[0].iteration
        if at is None or not run_log.has_iteration_numbers:
            return translate("verdict.only_val_loss", loss=final)
        if not shows_run_start(run_log):
            return translate("verdict.only_val_loss_here", loss=final, step=at)
        return translate("verdict.only_val_loss_at", loss=final, step=at)
    if not shows_run_start(run_log):
        if best == final:
            return translate("verdict.last_loss_is_lowest_here", best=shown)
        if step is not None:
            return translate("verdict.lowest_loss_here", best=shown, step=step, final=final)
    if best == final and step in (None, trained[-1].iteration):  # else it was as good before
        if _unevaluated_since(run_log, facts) is not None:  # those after it may be better
            return translate("verdict.last_loss_is_lowest_here", best=shown)
        return translate("verdict.last_loss_is_best", best=shown)
    if step is None:
        return translate("verdict.best_and_last_loss", best=shown, final=final)
    sentence = translate("verdict.best_loss_at", best=shown, step=step, final=final)
    chance = chance_of_best(np.array([one.val_loss for one in trained], dtype=float))
    return (
        sentence + " " + translate("verdict.best_by_chance", **dataclasses.asdict(chance))
        if chance
        else sentence
    )
