"""A loss that is no number any more: since when, what came before it, and what was wasted after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.explain.rule import Case, Finding
from glassgpt.explain.rules.waste import time_after
from glassgpt.format import duration, loss, percent, rate, whole
from glassgpt.i18n import say
from glassgpt.runs.curve import mad
from glassgpt.runs.run_log import Floats, History, Ints
from glassgpt.runs.trajectory import setting

BEFORE = 5  # losses shown from before it
CALM = 1.1  # times the median before: less is no sign of trouble
FAR = 6.0  # median absolute deviations
UNSTEADY = 1.15  # the highest of the last few over the lowest, where no more tell what is usual

# never: no update had been made; unseen: the log does not show what came before; norms, rise: they grew;
# unsteady: too few came before to say so, but they are not calm; overflow: the log tells of overflows;
# outside: all was calm.
Cause = Literal["never", "unseen", "norms", "rise", "unsteady", "overflow", "float16", "outside"]


@dataclass(frozen=True)
class Break:
    """Where the loss stopped being a number."""

    iteration: int
    row: int
    before: Floats  # the last finite losses of that process
    before_at: Ints
    norms: Floats  # and their gradient norms
    lost_rows: int  # rows without a finite loss from there on, in that process
    recovered: bool  # finite losses came again


def break_of(history: History) -> Break | None:
    steps = history.steps
    broken = steps.has_loss & ~np.isfinite(steps.loss)
    if not broken.any():
        return None
    row = int(np.argmax(broken))
    mine = steps.segment == steps.segment[row]
    good = np.flatnonzero(mine[:row] & steps.has_loss[:row])
    after = mine & (np.arange(len(steps)) >= row)
    last = int(np.flatnonzero(after)[-1])
    return Break(
        iteration=int(steps.iteration[row]),
        row=row,
        before=steps.loss[good],
        before_at=steps.iteration[good],
        norms=steps.grad_norm[good],
        lost_rows=int((broken & after).sum()),
        recovered=not bool(broken[last]),
    )


def loss_nan(case: Case) -> Finding | None:
    history = case.history
    found = break_of(history)
    if found is None:
        return _only_gradient(history) or _only_evals(history)
    cause = _cause(history, found)
    return Finding(
        "loss-nan",
        "warning" if found.recovered else "problem",
        _title(history, found),
        _evidence(history, found),
        _explanation(history, found, cause),
        _advice(case, found, cause),
    )


def _only_gradient(history: History) -> Finding | None:
    """A loss that is still a number, however large, and a gradient that is none any more."""
    if history.not_finite is None:
        return None
    at, norms = history.not_finite
    nothing = np.array([])
    found = Break(at, 0, nothing, nothing.astype(int), np.array(norms), lost_rows=0, recovered=False)
    cause: Cause = "norms" if _grew(found.norms) else "unseen"
    return Finding(
        "loss-nan",
        "problem",
        say("The gradient was not finite at iteration {at}", at=whole(at)),
        _norms_before(found.norms) if norms else "",
        _explanation(history, found, cause),
        " ".join(filter(None, (_checkpoint_advice(history, found), _cause_advice(history, cause)))),
    )


def _only_evals(history: History) -> Finding | None:
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
            at="?" if bad[0].iteration is None or not history.numbered else whole(bad[0].iteration),
        ),
        say("The validation data or the evaluation is at fault: an empty batch, or an overflow in float16."),
        say("Check that the validation split is not empty, and evaluate once in float32."),
    )


# --- what is seen ---


def _title(history: History, found: Break) -> str:
    if not history.numbered:
        return say("The loss was not a number") if found.recovered else say("The loss stopped being a number")
    if found.recovered:
        return say("The loss was not a number at iteration {at}", at=whole(found.iteration))
    return say("The loss is not a number from iteration {at} on", at=whole(found.iteration))


def _evidence(history: History, found: Break) -> str:
    said = [_losses_before(history, found)]
    norms = found.norms[np.isfinite(found.norms)]
    if len(norms):
        said.append(_norms_before(norms))
    there = history.steps.lr[found.row]
    if np.isfinite(there):
        said.append(say("Learning rate there: {rate}.", rate=rate(float(there))))
    said.append(
        say("Logged iterations without a finite loss since: {rows}.", rows=whole(found.lost_rows))
        if not found.recovered
        else say("Logged iterations until finite losses came again: {rows}.", rows=whole(found.lost_rows))
    )
    return " ".join(said)


def _norms_before(norms: Floats) -> str:
    return say(
        "Gradient norms before it: {norms}.", norms=", ".join(f"{norm:.3g}" for norm in norms[-BEFORE:])
    )


def _losses_before(history: History, found: Break) -> str:
    if not history.numbered:
        return say("It was so in line {count} of those about iterations.", count=whole(found.row + 1))
    if not len(found.before):
        return say("It was so in the first logged iteration, {at}.", at=whole(found.iteration))
    return say(
        "Last finite losses: {losses} (iteration {at}).",
        losses=", ".join(loss(value) for value in found.before[-BEFORE:]),
        at=whole(found.before_at[-1]),
    )


# --- why ---


def _cause(history: History, found: Break) -> Cause:
    """The likeliest, by what this log shows."""
    if not len(found.before) and _before_any_update(history, found):
        return "never"
    if _grew(found.norms):
        return "norms"
    if _grew(found.before):
        return "rise"
    if history.counts.get("scaler-overflow", 0):
        return "overflow"
    if history.setup.settings.get("dtype") == "float16":
        return "float16"
    if len(found.before) < 2 * BEFORE and _is_unsteady(found.before[-BEFORE:]):
        return "unsteady"
    return "outside" if len(found.before) >= BEFORE else "unseen"


def _before_any_update(history: History, found: Break) -> bool:
    """Whether this is the loss of weights that nothing has changed yet: the run's first iteration, by itself
    and not as a mean over several."""
    here = history.segments[int(history.steps.segment[found.row])]
    is_first = found.iteration <= history.trainer.first_iteration
    return is_first and history.numbered and here.starts and not here.resumed and _says_each(history)


def _says_each(history: History) -> bool:
    """A mean over an interval of iterations holds updates; a running mean at the first one does not."""
    return not history.trainer.loss_is_interval_mean


def _explanation(history: History, found: Break, cause: Cause) -> str:
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
            low=loss(found.before[-BEFORE:].min(initial=np.inf)),
            high=loss(found.before[-BEFORE:].max(initial=-np.inf)),
        ),
        "overflow": say(
            "float16's numbers end at 65504. Gradients that overflowed, by this log: {count}.",
            count=whole(history.counts.get("scaler-overflow", 0)),
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
    if len(finite) < 2 * BEFORE:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        usual = finite[-10 * BEFORE : -3]
        return bool(
            np.median(finite[-3:]) > max(CALM * np.median(usual), np.median(usual) + FAR * mad(usual))
        )


def _is_unsteady(few: Floats) -> bool:
    return len(few) >= 3 and bool(few.max() > UNSTEADY * few.min() and few[-1] > few.min())


# --- what to do ---


def _advice(case: Case, found: Break, cause: Cause) -> str:
    said = [_checkpoint_advice(case.history, found), _cause_advice(case.history, cause)]
    wasted = _wasted(case, found)
    if wasted and wasted[0] > 10 and not found.recovered:
        said.append(
            say(
                "Stopping at once would have saved {time}, {share} of the run.",
                time=duration(wasted[0]),
                share=percent(wasted[1]),
            )
        )
    return " ".join(sentence for sentence in said if sentence)


def _checkpoint_advice(history: History, found: Break) -> str:
    saved = [save.iteration for save in history.saves if save.iteration is not None]
    usable = [iteration for iteration in saved if iteration <= found.iteration]
    if not usable or found.recovered:
        return ""
    return say(
        "The last checkpoint from before it is that of iteration {at}: go on from there.",
        at=whole(max(usable)),
    )


def _cause_advice(history: History, cause: Cause) -> str:
    if cause == "never":
        return say(
            "Run ten iterations in float32 on another device: if the loss is finite there, it is the device."
        )
    if cause == "outside":
        return say(
            "Run the same iterations again: a fault of the device mostly does not come back at the same one, "
            "a broken batch does. dtype=float32 shows whether it was the precision."
        )
    peak = setting(history, "learning_rate")
    if not peak:
        return say(
            "Try a third of the learning rate, or float32 for a few hundred iterations to tell the two "
            "causes apart."
        )
    return say(
        "Try learning_rate={new} instead of {old}, or dtype=float32 for a few hundred iterations to tell the "
        "two causes apart.",
        new=rate(peak / 3),
        old=rate(peak),
    )


def _wasted(case: Case, found: Break) -> tuple[float, float] | None:
    """Seconds after the break, and their share of the run."""
    steps = case.history.steps
    mine = np.flatnonzero(steps.segment == steps.segment[found.row])
    return time_after(case, found.iteration, int(steps.iteration[mine[-1]]), mine)
