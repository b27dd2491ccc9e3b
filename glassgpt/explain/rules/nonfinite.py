"""Losses and gradients that are NaN or infinite: since when, the likely cause, and the time wasted after."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import mad
from glassgpt.runs.run_log import Floats, Ints, LoggedEvaluation, RunLog
from glassgpt.runs.trajectory import (
    numeric_setting,
    shows_run_start,
    starts_from_scratch,
    takes_known_settings,
)

CONTEXT_LOSSES = 5  # last finite losses shown
# Growth: the median of the last 3 values, compared with the median of those before.
MIN_GROWTH_RATIO = 1.1
MIN_GROWTH_MADS = 6.0  # median absolute deviations above it
MIN_LEFT_LOWEST_RATIO = 1.05  # the last losses over the lowest, where too few are logged for the above
MAX_HARMLESS_LR_SHARE = 0.05  # learning rate over its peak: too low for an update to break the weights
MAX_FIRST_UPDATES = 10  # of fine-tuning: in so few, masked targets or bad data are likelier than a high rate
MIN_WASTED_S = 10  # seconds after the break; less is not mentioned

MIN_ZERO_LOSSES = 3  # losses of exactly 0 at the end of the run
MIN_ONLY_ZEROS = 10  # where no other is logged
MIN_LOSS_BEFORE_ZERO = 1.0  # last loss before the zeros: above what a model can learn from text

# Skipped updates: the scaler tries a larger scale every 2000, or every few hundred with many processes
# (fairseq), and fails a few times at first.
MAX_USUAL_SKIP_SHARE = 1 / 100  # of the updates
MAX_USUAL_SKIPS, MAX_USUAL_SKIP_SHARE_SHORT = 5, 0.2  # of a short run
MIN_LOSS_SCALE = 1.0  # below it every update overflows, not the rare large one
_LOSS_SCALE = re.compile(
    r"(?:reducing|scale) (?:loss scale )?to:? {0,3}(\d{1,12}(?:\.\d{1,20})?(?:e-?\d{1,3})?)\b"
)
MIN_INFINITE_NORMS = 5  # and none that is finite, for "never finite"
MIN_FEW_INFINITE_NORMS = 2  # of fewer lines it is said, too: a scaler skips the first updates while it adapts
MIN_RISEN_RATIO = 1.5  # last over first training loss, where evaluations are NaN: the weights are bad, too

# no-update: broken before the first update; norm-rise: the gradient norms grew before it; loss-rise: the loss
# did; overflow: the log reports overflows; float16: it may overflow; masked: fine-tuning had just begun, or
# the learning rate was too low to be the cause; no-warning: the losses before are stable; unknown: the log
# shows too few of them.
NonFiniteCause = Literal[
    "no-update", "norm-rise", "loss-rise", "overflow", "float16", "masked", "no-warning", "unknown"
]


@dataclass(frozen=True)
class NonFiniteLoss:
    """Where the loss stopped being finite."""

    iteration: int
    row: int
    losses_before: Floats  # all finite losses of that process
    iterations_before: Ints
    grad_norms_before: Floats
    nonfinite_rows: int  # rows without a finite loss from there on, in that process
    has_recovered: bool  # the last loss of that process is finite


def find_nonfinite_loss(run_log: RunLog) -> NonFiniteLoss | None:
    steps = run_log.steps
    broken = steps.has_loss & ~np.isfinite(steps.loss)
    if not broken.any():
        return None
    row = int(np.argmax(broken))
    same_process = steps.segment == steps.segment[row]
    rows_before = np.flatnonzero(same_process[:row] & steps.has_loss[:row])
    after = same_process & (np.arange(len(steps)) >= row)
    last_row = int(np.flatnonzero(after)[-1])
    return NonFiniteLoss(
        iteration=int(steps.iteration[row]),
        row=row,
        losses_before=steps.loss[rows_before],
        iterations_before=steps.iteration[rows_before],
        grad_norms_before=steps.grad_norm[rows_before],
        nonfinite_rows=int((broken & after).sum()),
        has_recovered=not bool(broken[last_row]),
    )


def loss_nan(analysis: Analysis) -> Finding | None:
    """The training loss, the gradient or the validation loss became NaN or infinite."""
    run_log = analysis.log
    broken = find_nonfinite_loss(run_log)
    if broken is None:
        is_zero = bool(trailing_zero_losses(analysis))  # then loss_zero says more
        return _nonfinite_gradient(run_log) or (None if is_zero else _nonfinite_evaluations(run_log))
    at = broken.iteration if run_log.has_iteration_numbers else None
    if at is not None and broken.has_recovered:
        title = say("loss-nan.title.recovered_at", nonfinite_iteration=at)
    elif at is not None:
        title = say("loss-nan.title.lasting_from", nonfinite_iteration=at)
    elif broken.has_recovered:
        title = say("loss-nan.title.recovered_unnumbered")
    else:
        title = say("loss-nan.title.lasting_unnumbered")
    cause = _likely_cause(run_log, broken)
    lr = np.nan if run_log.trainer.lr_is_share_of_peak else float(run_log.steps.lr[broken.row])
    evidence, steps = _evidence(run_log, broken), run_log.steps
    process_rows = np.flatnonzero(steps.segment == steps.segment[broken.row])
    wasted = analysis.seconds_and_share_after(
        broken.iteration, int(steps.iteration[process_rows[-1]]), process_rows
    )
    if wasted and wasted[0] > MIN_WASTED_S and not broken.has_recovered:
        values = {"wasted_s": wasted[0], "wasted_share": wasted[1]}
        is_whole = shows_run_start(run_log)
        evidence.append(
            say("loss-nan.advice.stop_at_once", **values)
            if is_whole
            else say("loss-nan.advice.stop_at_once_of_lines", **values)
        )
    return make_finding(
        "loss-nan",
        "warning" if broken.has_recovered else "problem",
        title=title,
        evidence=evidence,
        explanation=_cause_explanation(run_log, cause),
        advice=[_checkpoint_advice(run_log, broken), _cause_advice(run_log, broken, cause)],
        more=say("loss-nan.more.learning_rate", lr=lr) if np.isfinite(lr) else None,
        at=at,
        lines=(int(steps.line[broken.row]),),
        claims={} if broken.has_recovered else {"training loss at the end": "not finite"},
    )


def _evidence(run_log: RunLog, broken: NonFiniteLoss) -> list[Message | None]:
    if not run_log.has_iteration_numbers:
        losses = say("loss-nan.evidence.log_line", nonfinite_line=broken.row + 1)
    elif not len(broken.losses_before):
        losses = say("loss-nan.evidence.first_iteration", nonfinite_iteration=broken.iteration)
    else:
        losses = say(
            "loss-nan.evidence.last_finite_losses",
            last_losses=broken.losses_before[-CONTEXT_LOSSES:].tolist(),
            last_finite_iteration=int(broken.iterations_before[-1]),
        )
    norms = broken.grad_norms_before[np.isfinite(broken.grad_norms_before)]
    return [
        losses,
        _norms_message(norms),
        say("loss-nan.evidence.until_recovered", nonfinite_losses=broken.nonfinite_rows)
        if broken.has_recovered
        else say("loss-nan.evidence.not_finite_since", nonfinite_losses=broken.nonfinite_rows),
    ]


def _norms_message(norms: Floats) -> Message | None:
    last = norms[-CONTEXT_LOSSES:].tolist()
    return say("loss-nan.evidence.gradient_norms", grad_norms=last) if last else None


def _nonfinite_gradient(run_log: RunLog) -> Finding | None:
    """The loss is still finite, however large; the gradient is not. GlassGPT stops there."""
    if run_log.nonfinite_update is None:
        return None
    at, norms = run_log.nonfinite_update
    empty = np.array([])
    broken = NonFiniteLoss(
        at, 0, empty, empty.astype(int), np.array(norms), nonfinite_rows=0, has_recovered=False
    )
    cause: NonFiniteCause = "norm-rise" if _grew(broken.grad_norms_before) else "unknown"
    return make_finding(
        "loss-nan",
        "problem",
        title=say("loss-nan.title.gradient", nonfinite_iteration=at),
        evidence=_norms_message(broken.grad_norms_before),
        explanation=_cause_explanation(run_log, cause),
        advice=[_checkpoint_advice(run_log, broken), _cause_advice(run_log, broken, cause)],
        at=at,
    )


def _nonfinite_evaluations(run_log: RunLog) -> Finding | None:
    """Only validation losses are NaN or infinite."""
    bad = _broken_evaluations(run_log)
    if not bad:
        return None
    at = bad[0].iteration if run_log.has_iteration_numbers else None
    counts = {"nonfinite_evaluations": len(bad), "evaluations": len(run_log.evals)}
    losses = run_log.steps.loss[run_log.steps.has_loss]
    has_risen = len(losses) > 1 and losses[-1] > MIN_RISEN_RATIO * losses[0] > 0
    # A split that another metric was computed of is not empty.
    bad_lines = [one.line for one in bad]
    metrics = [one for one in run_log.own_metrics if one.metric.is_eval]
    was_measured = any(bool(np.isin(one.line, bad_lines).any()) for one in metrics)
    return make_finding(
        "loss-nan",
        "problem",
        title=say("loss-nan.title.validation"),
        evidence=[
            say("loss-nan.evidence.validation_unnumbered", **counts)
            if at is None
            else say("loss-nan.evidence.validation", nonfinite_iteration=at, **counts),
            say("loss-nan.evidence.loss_rose", first_loss=float(losses[0]), last_loss=float(losses[-1]))
            if has_risen
            else None,
        ],
        explanation=say("loss-nan.explanation.validation_diverged")
        if has_risen
        else say("loss-nan.explanation.validation_measured")
        if was_measured
        else say("loss-nan.explanation.validation"),
        advice=say("divergence.advice.lower_lr")
        if has_risen
        else say("loss-nan.advice.check_labels")
        if was_measured
        else say("loss-nan.advice.check_validation"),
        at=at,
        lines=(one.line for one in bad),
    )


def _broken_evaluations(run_log: RunLog) -> list[LoggedEvaluation]:
    return [one for one in run_log.evals if one.val_loss is not None and not np.isfinite(one.val_loss)]


# --- the cause ---


def _likely_cause(run_log: RunLog, broken: NonFiniteLoss) -> NonFiniteCause:
    losses, first = broken.losses_before, run_log.trainer.first_iteration
    # Targets are masked in chats and instructions, not in plain text.
    is_tuned = run_log.stage == "sft" or (
        not starts_from_scratch(run_log) and not run_log.trainer.trains_on_plain_text
    )
    process = run_log.segments[int(run_log.steps.segment[broken.row])]
    is_before_first_update = (
        run_log.has_iteration_numbers
        and broken.iteration <= first
        and process.has_startup
        and not process.resumed
        and not run_log.trainer.loss_is_interval_mean  # such a mean already includes updates
    )
    if not len(losses) and is_before_first_update:
        return "no-update"
    if _grew(broken.grad_norms_before):
        return "norm-rise"
    if _grew(losses):
        return "loss-rise"
    if run_log.event_counts.get("scaler-overflow", 0):
        return "overflow"
    if run_log.setup.settings.get("dtype") == "float16":
        return "float16"
    is_first_update = run_log.has_iteration_numbers and broken.iteration <= first + MAX_FIRST_UPDATES
    if _has_low_lr(run_log, broken) or (is_tuned and is_first_update):
        return "masked"
    if _left_lowest(losses[-10 * CONTEXT_LOSSES :]):
        return "loss-rise"
    return "no-warning" if len(losses) >= CONTEXT_LOSSES else "unknown"


def _left_lowest(losses: Floats) -> bool:
    """Whether the last losses are above the lowest, beyond their noise."""
    if len(losses) < CONTEXT_LOSSES:
        return False
    lowest, end = float(losses.min()), float(np.median(losses[-3:]))
    noise = float(np.median(np.abs(np.diff(losses))))
    return end > MIN_LEFT_LOWEST_RATIO * lowest and end - lowest > 3 * noise


def _has_low_lr(run_log: RunLog, broken: NonFiniteLoss) -> bool:
    """Whether the learning rate was still far below its peak, in the warm-up."""
    lr = float(run_log.steps.lr[broken.row])
    peak = 1.0 if run_log.trainer.lr_is_share_of_peak else numeric_setting(run_log, "learning_rate")
    return bool(peak) and lr <= MAX_HARMLESS_LR_SHARE * (peak or 0.0)


def _grew(values: Floats) -> bool:
    """Whether the last three values are well above the ones before."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2 * CONTEXT_LOSSES:
        return False
    before = finite[-10 * CONTEXT_LOSSES : -3]
    usual = np.median(before)
    return bool(np.median(finite[-3:]) > max(MIN_GROWTH_RATIO * usual, usual + MIN_GROWTH_MADS * mad(before)))


def _cause_explanation(run_log: RunLog, cause: NonFiniteCause) -> Message:
    overflows = run_log.event_counts.get("scaler-overflow", 0)
    return {
        "no-update": say("loss-nan.explanation.no_update"),
        "norm-rise": say("loss-nan.explanation.norm_rise"),
        "loss-rise": say("loss-nan.explanation.loss_rise"),
        "overflow": say("loss-nan.explanation.overflow", overflows=overflows),
        "float16": say("loss-nan.explanation.float16"),
        "masked": say("loss-nan.explanation.masked"),
        "no-warning": say("loss-nan.explanation.no_warning"),
        "unknown": say("loss-nan.explanation.unknown"),
    }[cause]


def _checkpoint_advice(run_log: RunLog, broken: NonFiniteLoss) -> Message | None:
    saved = [save.iteration for save in run_log.checkpoints if save.iteration is not None]
    usable = [iteration for iteration in saved if iteration <= broken.iteration]
    if not usable or broken.has_recovered:
        return None
    if run_log.trainer.overwrites_checkpoint and max(saved) > broken.iteration:
        return None  # a later one replaced it
    return say("loss-nan.advice.resume_checkpoint", saved_iteration=max(usable))


def _cause_advice(run_log: RunLog, broken: NonFiniteLoss, cause: NonFiniteCause) -> Message:
    if cause == "no-update":
        return say("loss-nan.advice.try_another_device")
    if cause in ("overflow", "float16"):
        return say("loss-nan.advice.overflow")
    is_float32 = (run_log.setup.settings.get("dtype") or run_log.trainer.default_dtype) == "float32"
    if cause == "no-warning":
        return say("loss-nan.advice.find_batch") if is_float32 else say("loss-nan.advice.repeat_iterations")
    if cause == "masked":
        return say("loss-nan.advice.count_targets")
    first, interval = broken.iterations_before[:1], run_log.log_interval() or 1
    is_from_start = shows_run_start(run_log) or (len(first) > 0 and first[0] <= interval)
    if cause == "unknown" and not is_from_start:
        return say("loss-nan.advice.lines_before")
    if is_float32:
        return say("loss-nan.advice.lower_lr_float32")
    peak_lr = numeric_setting(run_log, "learning_rate")
    if not peak_lr or not takes_known_settings(run_log):
        return say("loss-nan.advice.lower_unknown_lr")
    return say("loss-nan.advice.lower_known_lr", new_peak_lr=peak_lr / 3, peak_lr=peak_lr)


# --- a loss of exactly 0, and skipped updates ---


def trailing_zero_losses(analysis: Analysis) -> int:
    """How many losses at the end are exactly 0, if the last one before them is a usual loss, or all are 0
    and no gradient norm or validation loss is finite; else 0."""
    _, losses = analysis.trajectory.finite_losses()
    norms = analysis.log.steps.grad_norm
    if len(losses) and not losses.any():
        evaluated = [one for one in analysis.log.evals if one.val_loss is not None]
        are_nan = (bool(np.isinf(norms).any()) and not np.isfinite(norms).any()) or (
            bool(evaluated) and len(evaluated) == len(_broken_evaluations(analysis.log))
        )
        # In a tail, or of a classifier that is always right, it may be a loss that is rounded.
        is_none = shows_run_start(analysis.log) and not analysis.log.own_metrics
        least = MIN_ZERO_LOSSES if are_nan else MIN_ONLY_ZEROS
        return len(losses) if len(losses) >= least and (are_nan or is_none) else 0
    nonzero = np.flatnonzero(losses != 0)
    count = len(losses) - 1 - int(nonzero[-1]) if len(nonzero) else 0
    return count if count >= MIN_ZERO_LOSSES and losses[nonzero[-1]] > MIN_LOSS_BEFORE_ZERO else 0


def loss_zero(analysis: Analysis) -> Finding | None:
    """The loss is exactly 0 until the end: it is not computed, or a trainer writes NaN as 0."""
    count, run_log = trailing_zero_losses(analysis), analysis.log
    if not count:
        return None
    iterations, losses = analysis.trajectory.finite_losses()
    norms_are_nan = count == len(losses) and bool(np.isinf(run_log.steps.grad_norm).any())
    are_nan = norms_are_nan or (count == len(losses) and bool(_broken_evaluations(run_log)))
    if count == len(losses):
        evidence = [
            say("loss-nan.evidence.all_zero_norms_nan", zero_losses=count)
            if norms_are_nan
            else say("loss-nan.evidence.all_zero_val_nan", zero_losses=count)
            if are_nan
            else say("loss-nan.evidence.all_zero", zero_losses=count)
        ]
    else:
        evidence = [
            say(
                "loss-nan.evidence.zero_losses",
                zero_losses=count,
                logged_losses=len(losses),
                last_nonzero_loss=float(losses[-count - 1]),
            )
        ]
    norms = run_log.steps.grad_norm[analysis.trajectory.rows][np.isfinite(analysis.trajectory.loss)]
    if not np.any(np.isfinite(norms[-count:])) and np.any(np.isfinite(norms[:-count])):
        evidence.append(say("loss-nan.evidence.zeros_norms_nan"))
    return make_finding(
        "loss-nan",
        "problem",
        title=say("loss-nan.title.all_zero")
        if are_nan
        else say("loss-nan.title.no_loss")
        if count == len(losses)
        else say("loss-nan.title.zero_loss"),
        evidence=evidence,
        explanation=[say("loss-nan.explanation.zero_loss"), run_log.trainer.zero_loss_cause],
        advice=[
            say("loss-nan.advice.zero_loss"),
            None if count == len(losses) else say("loss-nan.advice.zero_loss_resume"),
        ],
        at=int(iterations[-count]) if run_log.has_iteration_numbers else None,
        lines=analysis.lines_at([int(iterations[-count])]),
    )


def skipped_steps(analysis: Analysis) -> Finding | None:
    """Updates that were skipped: the log says so, or the norm beside a finite loss is not finite."""
    run_log, steps = analysis.log, analysis.log.steps
    if left_out := run_log.event_counts.get("nonfinite-skip", 0):
        return _skipped_batches(run_log, left_out)
    overflows, dtype = run_log.event_counts.get("scaler-overflow", 0), run_log.setup.settings.get("dtype")
    is_broken = np.isinf(steps.grad_norm) & steps.has_loss & np.isfinite(steps.loss)
    norms = int(is_broken.sum()) if np.isfinite(steps.grad_norm).any() else 0  # else see norms_never_finite
    skipped, logged = max(overflows, norms), max(1, len(steps))
    # A scaler speaks of every update, logged or not: without numbers of updates, nobody knows of how many.
    counts_updates = run_log.has_iteration_numbers and not run_log.trainer.iterations_are_epochs
    is_share_known = overflows <= norms or (counts_updates and len(steps) > 0)
    if overflows > norms:
        is_whole = shows_run_start(run_log) and len(run_log.segments) == 1 and len(steps) > 0
        logged = max(logged, run_log.iteration_count(), int(steps.iteration[-1]) if is_whole else 0)
        # Else a line stands for many updates; and of those outside the logged iterations, nobody knows.
        is_share_known = is_share_known and skipped <= logged and _has_overflow_between_lines(run_log)
    if not skipped or (not overflows and trailing_zero_losses(analysis)):  # loss_zero says so
        return None
    share = skipped / max(logged, skipped)
    is_usual = (
        not is_share_known
        or share <= MAX_USUAL_SKIP_SHARE
        or (skipped <= MAX_USUAL_SKIPS and share <= MAX_USUAL_SKIP_SHARE_SHORT)
    )
    values = {"skipped_updates": skipped, "logged_iterations": logged, "skipped_share": share}
    evidence = []
    scale = _last_loss_scale(run_log)
    is_collapsed = scale is not None and scale < MIN_LOSS_SCALE
    if overflows:
        title = say("skipped-steps.title")
        explanation = (
            say("skipped-steps.explanation.collapsed", loss_scale=scale)
            if is_collapsed
            else say("skipped-steps.explanation.scaler")
        )
        evidence.append(
            say("skipped-steps.evidence", **values)
            if is_share_known
            else say("skipped-steps.evidence.unnumbered", skipped_updates=skipped)
        )
    else:
        title = say("skipped-steps.title.norms", nonfinite_norms=norms)
        evidence.append(say("skipped-steps.evidence.norms", **values))
        rows = np.flatnonzero(is_broken)
        if run_log.has_iteration_numbers:
            first, last = int(steps.iteration[rows[0]]), int(steps.iteration[rows[-1]])
            evidence.append(say("skipped-steps.evidence.from_to", first_iteration=first, last_iteration=last))
        went_on = rows[-1] < len(steps) - 1 and bool(np.isfinite(steps.loss[rows[-1] + 1 :]).any())
        evidence.append(
            say("skipped-steps.evidence.went_on") if went_on else say("skipped-steps.evidence.last_line")
        )
        if dtype == "float16":
            explanation = say("skipped-steps.explanation.scaler")
        elif dtype is None:
            explanation = say("skipped-steps.explanation.dtype_unknown")
        else:
            explanation = say("skipped-steps.explanation.no_scaler", dtype=str(dtype))
    return make_finding(
        "skipped-steps",
        "info" if is_usual and not is_collapsed else "warning",
        title=title,
        evidence=evidence,
        explanation=explanation,
        advice=say("skipped-steps.advice.collapsed")
        if is_collapsed
        else None
        if is_usual
        else say("skipped-steps.advice"),
        lines=[] if overflows else [int(line) for line in steps.line[is_broken]],
    )


def _has_overflow_between_lines(run_log: RunLog) -> bool:
    lines = run_log.steps.line
    overflows = [event.line for event in run_log.events if event.kind == "scaler-overflow"]
    is_unknown = not overflows or not run_log.has_line_numbers
    return is_unknown or any(lines[0] <= line <= lines[-1] for line in overflows)


def _last_loss_scale(run_log: RunLog) -> float | None:
    """What the scaler was set to at the last overflow, as Apex, DeepSpeed and fairseq print it."""
    events = [event.text for event in run_log.events if event.kind == "scaler-overflow"]
    match = _LOSS_SCALE.search(events[-1]) if events else None
    return float(match[1]) if match else None


def _skipped_batches(run_log: RunLog, count: int) -> Finding:
    """A loop that says of single batches that it leaves them out."""
    iterations = max(count, run_log.iteration_count())
    is_counted = run_log.has_iteration_numbers and not run_log.trainer.iterations_are_epochs
    is_rare = is_counted and count <= MAX_USUAL_SKIP_SHARE * iterations
    return make_finding(
        "skipped-steps",
        "info" if is_rare else "warning",
        title=say("skipped-steps.title.batches", skipped_updates=count),
        evidence=say(
            "skipped-steps.evidence",
            skipped_updates=count,
            logged_iterations=iterations,
            skipped_share=count / iterations,
        )
        if is_counted
        else say("skipped-steps.evidence.unnumbered", skipped_updates=count),
        explanation=say("skipped-steps.explanation.batches"),
        advice=None if is_rare else say("skipped-steps.advice.batches"),
        lines=[event.line for event in run_log.events if event.kind == "nonfinite-skip"]
        if run_log.has_line_numbers
        else [],
    )


def norms_never_finite(analysis: Analysis) -> Finding | None:
    """Every logged gradient norm is infinite or NaN, while the losses are finite, or none is logged."""
    steps = analysis.log.steps
    has_losses = bool(steps.has_loss.any())
    infinite = np.isinf(steps.grad_norm) & ((steps.has_loss & np.isfinite(steps.loss)) | (not has_losses))
    count = int(infinite.sum())
    least = MIN_FEW_INFINITE_NORMS if has_losses else MIN_ZERO_LOSSES
    if count < least or np.isfinite(steps.grad_norm).any():
        return None
    if trailing_zero_losses(analysis):  # the losses are not finite either: loss_zero says so
        return None
    is_few = has_losses and count < MIN_INFINITE_NORMS
    if is_few and count < len(steps):
        return None  # the other lines have none
    return make_finding(
        "norms-never-finite",
        "info" if is_few else "warning",
        title=say("norms-never-finite.title"),
        evidence=say("norms-never-finite.evidence", infinite_norms=count, logged_iterations=len(steps))
        if has_losses
        else say("norms-never-finite.evidence.no_losses", infinite_norms=count),
        explanation=say("norms-never-finite.explanation.few")
        if is_few
        else say("norms-never-finite.explanation")
        if has_losses
        else say("norms-never-finite.explanation.no_losses"),
        advice=None
        if is_few
        else say("norms-never-finite.advice")
        if has_losses
        else say("norms-never-finite.advice.no_losses"),
        at=int(steps.iteration[infinite][0]) if analysis.log.has_iteration_numbers else None,
        lines=(int(line) for line in steps.line[infinite][:1]),
    )
