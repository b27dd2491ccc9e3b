"""A loss that is no number any more: since when, what came before it, and what was wasted after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.explain.rules.waste import seconds_and_share_after
from glassgpt.format import format_duration, format_integer, format_loss, format_lr, format_percent
from glassgpt.i18n import say
from glassgpt.runs.curve import mad
from glassgpt.runs.run_log import Floats, Ints, RunLog
from glassgpt.runs.trajectory import numeric_setting

CONTEXT_LOSSES = 5  # losses shown from before it
MIN_GROWTH_RATIO = 1.1  # times the median before: less is no sign of trouble
MIN_GROWTH_MADS = 6.0  # median absolute deviations
MIN_UNSTEADY_RATIO = 1.15  # the highest of the last few over the lowest, where no more tell what is usual

# never: no update had been made; unseen: the log does not show what came before; norms, rise: they grew;
# unsteady: too few came before to say so, but they are not calm; overflow: the log tells of overflows;
# outside: all was calm.
NonFiniteCause = Literal["never", "unseen", "norms", "rise", "unsteady", "overflow", "float16", "outside"]


@dataclass(frozen=True)
class NonFiniteLoss:
    """Where the loss stopped being a number."""

    iteration: int
    row: int
    losses_before: Floats  # the last finite losses of that process
    iterations_before: Ints
    grad_norms_before: Floats  # and their gradient norms
    nonfinite_rows: int  # rows without a finite loss from there on, in that process
    has_recovered: bool  # finite losses came again


def find_nonfinite_loss(history: RunLog) -> NonFiniteLoss | None:
    steps = history.steps
    broken = steps.has_loss & ~np.isfinite(steps.loss)
    if not broken.any():
        return None
    row = int(np.argmax(broken))
    mine = steps.segment == steps.segment[row]
    good = np.flatnonzero(mine[:row] & steps.has_loss[:row])
    after = mine & (np.arange(len(steps)) >= row)
    last = int(np.flatnonzero(after)[-1])
    return NonFiniteLoss(
        iteration=int(steps.iteration[row]),
        row=row,
        losses_before=steps.loss[good],
        iterations_before=steps.iteration[good],
        grad_norms_before=steps.grad_norm[good],
        nonfinite_rows=int((broken & after).sum()),
        has_recovered=not bool(broken[last]),
    )


def loss_nan(case: RunAnalysis) -> Finding | None:
    history = case.log
    found = find_nonfinite_loss(history)
    if found is None:
        return _nonfinite_gradient_only(history) or _nonfinite_evals_only(history)
    cause = _likely_cause(history, found)
    return Finding(
        "loss-nan",
        "warning" if found.has_recovered else "problem",
        _title(history, found),
        _evidence(history, found),
        _explanation(history, found, cause),
        _advice(case, found, cause),
    )


def _nonfinite_gradient_only(history: RunLog) -> Finding | None:
    """A loss that is still a number, however large, and a gradient that is none any more."""
    if history.nonfinite_update is None:
        return None
    at, norms = history.nonfinite_update
    nothing = np.array([])
    found = NonFiniteLoss(
        at, 0, nothing, nothing.astype(int), np.array(norms), nonfinite_rows=0, has_recovered=False
    )
    cause: NonFiniteCause = "norms" if _grew(found.grad_norms_before) else "unseen"
    return Finding(
        "loss-nan",
        "problem",
        say("The gradient was not finite at iteration {at}", at=format_integer(at)),
        _norms_before(found.grad_norms_before) if norms else "",
        _explanation(history, found, cause),
        " ".join(filter(None, (_checkpoint_advice(history, found), _cause_advice(history, cause)))),
    )


def _nonfinite_evals_only(history: RunLog) -> Finding | None:
    bad = [done for done in history.evals if done.val_loss is not None and not np.isfinite(done.val_loss)]
    if not bad:
        return None
    return Finding(
        "loss-nan",
        "problem",
        say("The validation loss is not a number"),
        say(
            "{bad} of {all} evaluations, the first after iteration {at}. The logged training losses are "
            "finite.",
            bad=len(bad),
            all=len(history.evals),
            at="?" if bad[0].iteration is None or not history.numbered else format_integer(bad[0].iteration),
        ),
        say("The validation data or the evaluation is at fault: an empty batch, or an overflow in float16."),
        say("Check that the validation split is not empty, and evaluate once in float32."),
    )


# --- what is seen ---


def _title(history: RunLog, found: NonFiniteLoss) -> str:
    if not history.numbered:
        return (
            say("The loss was not a number")
            if found.has_recovered
            else say("The loss stopped being a number")
        )
    if found.has_recovered:
        return say("The loss was not a number at iteration {at}", at=format_integer(found.iteration))
    return say("The loss is not a number from iteration {at} on", at=format_integer(found.iteration))


def _evidence(history: RunLog, found: NonFiniteLoss) -> str:
    said = [_losses_before(history, found)]
    norms = found.grad_norms_before[np.isfinite(found.grad_norms_before)]
    if len(norms):
        said.append(_norms_before(norms))
    there = history.steps.lr[found.row]
    if np.isfinite(there):
        said.append(say("Learning rate there: {rate}.", rate=format_lr(float(there))))
    said.append(
        say(
            "Logged iterations without a finite loss since: {rows}.",
            rows=format_integer(found.nonfinite_rows),
        )
        if not found.has_recovered
        else say(
            "Logged iterations until finite losses came again: {rows}.",
            rows=format_integer(found.nonfinite_rows),
        )
    )
    return " ".join(said)


def _norms_before(norms: Floats) -> str:
    return say(
        "Gradient norms before it: {norms}.",
        norms=", ".join(f"{norm:.3g}" for norm in norms[-CONTEXT_LOSSES:]),
    )


def _losses_before(history: RunLog, found: NonFiniteLoss) -> str:
    if not history.numbered:
        return say(
            "It was so in line {count} of those about iterations.", count=format_integer(found.row + 1)
        )
    if not len(found.losses_before):
        return say("It was so in the first logged iteration, {at}.", at=format_integer(found.iteration))
    return say(
        "Last finite losses: {losses} (iteration {at}).",
        losses=", ".join(format_loss(value) for value in found.losses_before[-CONTEXT_LOSSES:]),
        at=format_integer(found.iterations_before[-1]),
    )


# --- why ---


def _likely_cause(history: RunLog, found: NonFiniteLoss) -> NonFiniteCause:
    """The likeliest, by what this log shows."""
    if not len(found.losses_before) and _before_any_update(history, found):
        return "never"
    if _grew(found.grad_norms_before):
        return "norms"
    if _grew(found.losses_before):
        return "rise"
    if history.event_counts.get("scaler-overflow", 0):
        return "overflow"
    if history.setup.settings.get("dtype") == "float16":
        return "float16"
    if len(found.losses_before) < 2 * CONTEXT_LOSSES and _is_unsteady(found.losses_before[-CONTEXT_LOSSES:]):
        return "unsteady"
    return "outside" if len(found.losses_before) >= CONTEXT_LOSSES else "unseen"


def _before_any_update(history: RunLog, found: NonFiniteLoss) -> bool:
    """Whether this is the loss of weights that nothing has changed yet: the run's first iteration, by itself
    and not as a mean over several."""
    here = history.segments[int(history.steps.segment[found.row])]
    is_first = found.iteration <= history.trainer.first_iteration
    return is_first and history.numbered and here.has_startup and not here.resumed and _says_each(history)


def _says_each(history: RunLog) -> bool:
    """A mean over an interval of iterations holds updates; a running mean at the first one does not."""
    return not history.trainer.loss_is_interval_mean


def _explanation(history: RunLog, found: NonFiniteLoss, cause: NonFiniteCause) -> str:
    return {
        "never": say(
            "No update came before it, so the learning rate is not the cause. Look at the weights that were "
            "loaded, at token ids outside the vocabulary, and at the driver and kernels (a float32 run "
            "tells)."
        ),
        "unseen": say("This log shows too little of what came before it to tell the cause."),
        "norms": say("The gradient norms grew before it: the updates were too large for this learning rate."),
        "rise": say(
            "The loss rose before it: the run diverged, as it does when the learning rate is too high."
        ),
        "unsteady": say(
            "The few losses before it are not calm, {low} to {high}: the learning rate is too high, or "
            "single batches are broken.",
            low=format_loss(found.losses_before[-CONTEXT_LOSSES:].min(initial=np.inf)),
            high=format_loss(found.losses_before[-CONTEXT_LOSSES:].max(initial=-np.inf)),
        ),
        "overflow": say(
            "float16's numbers end at 65504. Gradients that overflowed, by this log: {count}.",
            count=format_integer(history.event_counts.get("scaler-overflow", 0)),
        ),
        "float16": say(
            "Nothing announced it, and the run uses float16, whose numbers end at 65504: an overflow is "
            "likely."
        ),
        "outside": say(
            "Nothing announced it: the losses before it are calm. That speaks for a fault outside the "
            "learning: a kernel or device that miscomputes, a broken batch, or a precision that overflows."
        ),
    }[cause]


def _grew(values: Floats) -> bool:
    """Whether the last few stand above the ones before."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2 * CONTEXT_LOSSES:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        usual = finite[-10 * CONTEXT_LOSSES : -3]
        return bool(
            np.median(finite[-3:])
            > max(MIN_GROWTH_RATIO * np.median(usual), np.median(usual) + MIN_GROWTH_MADS * mad(usual))
        )


def _is_unsteady(few: Floats) -> bool:
    return len(few) >= 3 and bool(few.max() > MIN_UNSTEADY_RATIO * few.min() and few[-1] > few.min())


# --- what to do ---


def _advice(case: RunAnalysis, found: NonFiniteLoss, cause: NonFiniteCause) -> str:
    said = [_checkpoint_advice(case.log, found), _cause_advice(case.log, cause)]
    wasted = _wasted(case, found)
    if wasted and wasted[0] > 10 and not found.has_recovered:
        said.append(
            say(
                "Stopping at once would have saved {time}, {share} of the run.",
                time=format_duration(wasted[0]),
                share=format_percent(wasted[1]),
            )
        )
    return " ".join(sentence for sentence in said if sentence)


def _checkpoint_advice(history: RunLog, found: NonFiniteLoss) -> str:
    saved = [save.iteration for save in history.saves if save.iteration is not None]
    usable = [iteration for iteration in saved if iteration <= found.iteration]
    if not usable or found.has_recovered:
        return ""
    return say(
        "The last checkpoint from before it is that of iteration {at}: go on from there.",
        at=format_integer(max(usable)),
    )


def _cause_advice(history: RunLog, cause: NonFiniteCause) -> str:
    if cause == "never":
        return say(
            "Run ten iterations in float32 on another device: if the loss is finite there, it is the device."
        )
    if cause == "outside":
        return say(
            "Run the same iterations again: a fault of the device mostly does not come back at the same one, "
            "a broken batch does. dtype=float32 shows whether it was the precision."
        )
    peak = numeric_setting(history, "learning_rate")
    if not peak:
        return say(
            "Try a third of the learning rate, or float32 for a few hundred iterations to tell the two "
            "causes apart."
        )
    return say(
        "Try learning_rate={new} instead of {old}, or dtype=float32 for a few hundred iterations to tell the "
        "two causes apart.",
        new=format_lr(peak / 3),
        old=format_lr(peak),
    )


def _wasted(case: RunAnalysis, found: NonFiniteLoss) -> tuple[float, float] | None:
    """Seconds after the break, and their share of the run."""
    steps = case.log.steps
    mine = np.flatnonzero(steps.segment == steps.segment[found.row])
    return seconds_and_share_after(case, found.iteration, int(steps.iteration[mine[-1]]), mine)
