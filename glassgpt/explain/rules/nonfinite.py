"""Losses and gradients that are NaN or infinite: since when, the likely cause, and the time wasted after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.format import format_duration, format_integer, format_loss, format_lr, format_percent
from glassgpt.i18n import say
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve import mad
from glassgpt.runs.run_log import Floats, Ints, RunLog
from glassgpt.runs.trajectory import numeric_setting

CONTEXT_LOSSES = 5  # last finite losses shown
# Growth: the median of the last 3 values, compared with the median of those before.
MIN_GROWTH_RATIO = 1.1
MIN_GROWTH_MADS = 6.0  # median absolute deviations above it
MIN_UNSTABLE_RATIO = 1.15  # highest over lowest of the last losses, where too few are logged for the above
MIN_WASTED_S = 10  # seconds after the break; less is not mentioned

MIN_ZERO_LOSSES = 3  # losses of exactly 0 at the end of the run
MIN_LOSS_BEFORE_ZERO = 1.0  # last loss before the zeros: above what a model can learn from text

# Skipped updates: the scaler tries a larger scale every 2000, and fails a few times at first.
MAX_USUAL_SKIP_SHARE = 1 / 500  # of the updates
MAX_USUAL_SKIPS = 5  # however short the run
MIN_LOGGED_NORM_SHARE = 0.9  # of the log lines with a finite norm: then a missing one counts as NaN

# no-update: broken before the first update; norm-rise, loss-rise: they grew before it; overflow: the log
# reports overflows; float16: it may overflow; unstable: few losses, and they vary; no-warning: the losses
# before are stable; unknown: the log shows too few of them.
NonFiniteCause = Literal[
    "no-update", "norm-rise", "loss-rise", "overflow", "float16", "unstable", "no-warning", "unknown"
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
        return _nonfinite_gradient(run_log) or _nonfinite_evaluations(run_log)
    at = format_integer(broken.iteration)
    if run_log.has_iteration_numbers and broken.has_recovered:
        title = say("The loss was NaN or infinite at iteration {at}", at=at)
    elif run_log.has_iteration_numbers:
        title = say("The loss is NaN or infinite from iteration {at} on", at=at)
    elif broken.has_recovered:
        title = say("The loss was NaN or infinite, then recovered")
    else:
        title = say("The loss became NaN or infinite")
    cause = _likely_cause(run_log, broken)
    advice = [_checkpoint_advice(run_log, broken), _cause_advice(run_log, cause)]
    steps = run_log.steps
    process_rows = np.flatnonzero(steps.segment == steps.segment[broken.row])
    wasted = analysis.seconds_and_share_after(
        broken.iteration, int(steps.iteration[process_rows[-1]]), process_rows
    )
    if wasted and wasted[0] > MIN_WASTED_S and not broken.has_recovered:
        advice.append(
            say(
                "Stopping at once would have saved {time}, {share} of the run.",
                time=format_duration(wasted[0]),
                share=format_percent(wasted[1]),
            )
        )
    return Finding(
        "loss-nan",
        "warning" if broken.has_recovered else "problem",
        title,
        _evidence(run_log, broken),
        _cause_explanation(run_log, broken, cause),
        " ".join(sentence for sentence in advice if sentence),
    )


def _evidence(run_log: RunLog, broken: NonFiniteLoss) -> str:
    if not run_log.has_iteration_numbers:
        evidence = [
            say(
                "It first happened in line {count} of the logged iterations.",
                count=format_integer(broken.row + 1),
            )
        ]
    elif not len(broken.losses_before):
        evidence = [
            say("It happened in the first logged iteration, {at}.", at=format_integer(broken.iteration))
        ]
    else:
        evidence = [
            say(
                "Last finite losses: {losses} (iteration {at}).",
                losses=", ".join(format_loss(value) for value in broken.losses_before[-CONTEXT_LOSSES:]),
                at=format_integer(broken.iterations_before[-1]),
            )
        ]
    norms = broken.grad_norms_before[np.isfinite(broken.grad_norms_before)]
    if len(norms):
        evidence.append(_norms_sentence(norms))
    lr = run_log.steps.lr[broken.row]
    if np.isfinite(lr):
        evidence.append(say("Learning rate at that iteration: {rate}.", rate=format_lr(float(lr))))
    rows = format_integer(broken.nonfinite_rows)
    evidence.append(
        say("Logged iterations until the loss was finite again: {rows}.", rows=rows)
        if broken.has_recovered
        else say("Logged iterations without a finite loss since: {rows}.", rows=rows)
    )
    return " ".join(evidence)


def _norms_sentence(norms: Floats) -> str:
    return say(
        "Gradient norms before it: {norms}.",
        norms=", ".join(f"{norm:.3g}" for norm in norms[-CONTEXT_LOSSES:]),
    )


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
    return Finding(
        "loss-nan",
        "problem",
        say("The gradient was not finite at iteration {at}", at=format_integer(at)),
        _norms_sentence(broken.grad_norms_before) if norms else "",
        _cause_explanation(run_log, broken, cause),
        " ".join(filter(None, (_checkpoint_advice(run_log, broken), _cause_advice(run_log, cause)))),
    )


def _nonfinite_evaluations(run_log: RunLog) -> Finding | None:
    """Only validation losses are NaN or infinite."""
    bad = [done for done in run_log.evals if done.val_loss is not None and not np.isfinite(done.val_loss)]
    if not bad:
        return None
    return Finding(
        "loss-nan",
        "problem",
        say("The validation loss is NaN or infinite"),
        say(
            "{bad} of {all} evaluations, the first after iteration {at}. The logged training losses are "
            "finite.",
            bad=len(bad),
            all=len(run_log.evals),
            at="?"
            if bad[0].iteration is None or not run_log.has_iteration_numbers
            else format_integer(bad[0].iteration),
        ),
        say("The validation data or the evaluation is at fault: an empty batch, or an overflow in float16."),
        say("Check that the validation split is not empty, and evaluate once in float32."),
    )


# --- the cause ---


def _likely_cause(run_log: RunLog, broken: NonFiniteLoss) -> NonFiniteCause:
    losses = broken.losses_before
    process = run_log.segments[int(run_log.steps.segment[broken.row])]
    is_before_first_update = (
        run_log.has_iteration_numbers
        and broken.iteration <= run_log.trainer.first_iteration
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
    last = losses[-CONTEXT_LOSSES:]
    if (
        3 <= len(losses) < 2 * CONTEXT_LOSSES
        and last.max() > MIN_UNSTABLE_RATIO * last.min()
        and last[-1] > last.min()
    ):
        return "unstable"
    return "no-warning" if len(losses) >= CONTEXT_LOSSES else "unknown"


def _grew(values: Floats) -> bool:
    """Whether the last three values are well above the ones before."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2 * CONTEXT_LOSSES:
        return False
    before = finite[-10 * CONTEXT_LOSSES : -3]
    usual = np.median(before)
    return bool(np.median(finite[-3:]) > max(MIN_GROWTH_RATIO * usual, usual + MIN_GROWTH_MADS * mad(before)))


def _cause_explanation(run_log: RunLog, broken: NonFiniteLoss, cause: NonFiniteCause) -> str:
    last = broken.losses_before[-CONTEXT_LOSSES:]
    return {
        "no-update": say(
            "It happened before the first update, so the learning rate is not the cause. Check the loaded "
            "weights, token ids outside the vocabulary, and the driver and kernels (with a float32 run)."
        ),
        "unknown": say("This log shows too few iterations before it to tell the cause."),
        "norm-rise": say(
            "The gradient norms grew before it: the updates were too large for this learning rate."
        ),
        "loss-rise": say(
            "The loss rose before it: the run diverged, as it does when the learning rate is too high."
        ),
        "unstable": say(
            "The few losses before it are unstable, {low} to {high}: the learning rate is too high, or "
            "single batches are corrupt.",
            low=format_loss(last.min(initial=np.inf)),
            high=format_loss(last.max(initial=-np.inf)),
        ),
        "overflow": say(
            "The largest float16 number is 65504. Gradient overflows in this log: {count}.",
            count=format_integer(run_log.event_counts.get("scaler-overflow", 0)),
        ),
        "float16": say(
            "There are no warning signs before it, and the run uses float16, whose largest number is 65504: "
            "an overflow is likely."
        ),
        "no-warning": say(
            "There are no warning signs before it: the losses are stable. Suspect the hardware or the data: "
            "a kernel or device that miscomputes, a corrupt batch, or a precision that overflows."
        ),
    }[cause]


def _checkpoint_advice(run_log: RunLog, broken: NonFiniteLoss) -> str:
    saved = [save.iteration for save in run_log.checkpoints if save.iteration is not None]
    usable = [iteration for iteration in saved if iteration <= broken.iteration]
    if not usable or broken.has_recovered:
        return ""
    return say(
        "The last checkpoint before it is from iteration {at}: resume from there.",
        at=format_integer(max(usable)),
    )


def _cause_advice(run_log: RunLog, cause: NonFiniteCause) -> str:
    if cause == "no-update":
        return say(
            "Run ten iterations in float32 on another device: if the loss is finite there, the first device "
            "is at fault."
        )
    if cause == "no-warning":
        return say(
            "Run the same iterations again: a device fault usually does not recur at the same iteration, a "
            "corrupt batch does. dtype=float32 shows whether it was the precision."
        )
    peak_lr = numeric_setting(run_log, "learning_rate")
    if not peak_lr:
        return say(
            "Try a third of the learning rate, or float32 for a few hundred iterations to distinguish the "
            "two causes."
        )
    return say(
        "Try learning_rate={new} instead of {old}, or dtype=float32 for a few hundred iterations to "
        "distinguish the two causes.",
        new=format_lr(peak_lr / 3),
        old=format_lr(peak_lr),
    )


# --- a loss of exactly 0, and skipped updates ---


def trailing_zero_losses(analysis: Analysis) -> int:
    """How many losses at the end are exactly 0, if the last one before them is a usual loss; else 0."""
    _, losses = analysis.trajectory.finite_losses()
    nonzero = np.flatnonzero(losses != 0)
    count = len(losses) - 1 - int(nonzero[-1]) if len(nonzero) else 0
    return count if count >= MIN_ZERO_LOSSES and losses[nonzero[-1]] > MIN_LOSS_BEFORE_ZERO else 0


def loss_zero(analysis: Analysis) -> Finding | None:
    """The loss is exactly 0 until the end: it is not computed, or a trainer writes NaN as 0."""
    count = trailing_zero_losses(analysis)
    if not count:
        return None
    _, losses = analysis.trajectory.finite_losses()
    evidence = say(
        "The last {count} of {all} logged losses are exactly 0; the one before is {before}.",
        count=f"{count:,}",
        all=f"{len(losses):,}",
        before=format_loss(float(losses[-count - 1])),
    )
    norms = analysis.log.steps.grad_norm[analysis.trajectory.rows]
    if np.all(np.isnan(norms[-count:])) and np.any(np.isfinite(norms[:-count])):
        evidence += " " + say("Their gradient norms are NaN.")
    explanation = say(
        "No model reaches a loss of 0. The loss is NaN or infinite and is logged as 0, or every label "
        "is ignored."
    )
    if analysis.log.trainer.zero_loss_cause:
        explanation += " " + analysis.log.trainer.zero_loss_cause()
    return Finding(
        "loss-nan",
        "problem",
        say("The loss is exactly 0 at the end"),
        evidence,
        explanation,
        say(
            "Train in bfloat16 or float32 instead of float16, with a lower learning rate, and count the "
            "labels of a batch that are not -100. Resume from a checkpoint before the zeros."
        ),
    )


def skipped_steps(analysis: Analysis) -> Finding | None:
    """Updates that float16's loss scaler skipped, because a gradient overflowed."""
    run_log, steps = analysis.log, analysis.log.steps
    skipped = run_log.event_counts.get("scaler-overflow", 0)
    if len(steps):
        # A finite loss with a norm that is not. NaN also stands for a line without a norm, so it counts
        # only where nearly every line has one.
        finite_loss = steps.has_loss & np.isfinite(steps.loss)
        nonfinite_norms = int((np.isinf(steps.grad_norm) & finite_loss).sum())
        logs_norms = np.isfinite(steps.grad_norm).mean() > MIN_LOGGED_NORM_SHARE
        if logs_norms and run_log.setup.settings.get("dtype") == "float16":
            nonfinite_norms += int((np.isnan(steps.grad_norm) & finite_loss).sum())
        skipped = max(skipped, nonfinite_norms)
    if not skipped:
        return None
    logged = max(1, len(steps))
    share = skipped / max(logged, skipped)
    is_usual = skipped <= MAX_USUAL_SKIPS or share <= MAX_USUAL_SKIP_SHARE
    return Finding(
        "skipped-steps",
        "info" if is_usual else "warning",
        say("Updates were skipped because gradients overflowed"),
        say(
            "{skipped} skipped updates among {logged} logged iterations ({share}).",
            skipped=format_integer(skipped),
            logged=format_integer(logged),
            share=format_percent(share),
        ),
        say(
            "The largest float16 number is 65504. The loss is multiplied by a scale so that small gradients "
            "do not underflow; when one overflows, the update is skipped and the scale halved. A few skips "
            "at the start are normal."
        ),
        ""
        if is_usual
        else say(
            "dtype=bfloat16 (on cards from 2020 on) needs no loss scaler and wastes none of these "
            "iterations ({share}); otherwise use a lower learning rate or clip gradients at 1.",
            share=format_percent(share),
        ),
    )
