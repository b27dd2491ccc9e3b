"""A loss that is no number any more: since when, what came before it, and what was wasted after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.figures import duration, loss, percent, rate, whole
from glassgpt.insight.course import setting
from glassgpt.insight.findings.finding import Case, Finding
from glassgpt.insight.history import Floats, History, Ints
from glassgpt.words import say

BEFORE = 5  # losses shown from before it
CALM = 1.1  # times the median before: less is no sign of trouble


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
        return _only_evals(history)
    return Finding(
        "loss-nan",
        "warning" if found.recovered else "problem",
        say("The loss is not a number from iteration {at} on", at=whole(found.iteration))
        if not found.recovered
        else say("The loss was not a number at iteration {at}", at=whole(found.iteration)),
        _evidence(history, found),
        _cause(history, found),
        _advice(case, found),
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
            at="?" if bad[0].iteration is None else whole(bad[0].iteration),
        ),
        say("The validation data or the evaluation is at fault: an empty batch, or an overflow in float16."),
        say("Check that the validation split is not empty, and evaluate once in float32."),
    )


def _evidence(history: History, found: Break) -> str:
    if not len(found.before):
        said = [say("It was so in the first logged iteration, {at}.", at=whole(found.iteration))]
    else:
        said = [
            say(
                "Last finite losses: {losses} (iteration {at}).",
                losses=", ".join(loss(value) for value in found.before[-BEFORE:]),
                at=whole(found.before_at[-1]),
            )
        ]
    norms = found.norms[np.isfinite(found.norms)][-BEFORE:]
    if len(norms):
        said.append(
            say("Gradient norms before it: {norms}.", norms=", ".join(f"{norm:.3g}" for norm in norms))
        )
    rates = history.steps.lr[found.row]
    if np.isfinite(rates):
        said.append(say("Learning rate there: {rate}.", rate=rate(float(rates))))
    said.append(
        say("Logged iterations without a finite loss since: {rows}.", rows=whole(found.lost_rows))
        if not found.recovered
        else say("Finite losses came again after {rows} logged iterations.", rows=whole(found.lost_rows))
    )
    return " ".join(said)


def _cause(history: History, found: Break) -> str:
    """The likely causes, by what this log shows."""
    if not len(found.before):
        return say(
            "No update came before it, so the learning rate is not the cause. Look at the weights that were "
            "loaded, at token ids outside the vocabulary, and at the driver and kernels (a float32 run "
            "tells)."
        )
    if _grew(found.norms):
        return say("The gradient norms grew before it: the updates were too large for this learning rate.")
    if _grew(found.before):
        return say(
            "The loss rose before it: the run diverged, as it does when the learning rate is too high."
        )
    if history.setup.settings.get("dtype") == "float16":
        return say(
            "Nothing announced it, and the run uses float16, whose numbers end at 65504: an overflow is "
            "likely."
        )
    return say(
        "Nothing announced it: the losses before it are calm. That speaks for a fault outside the learning: "
        "a kernel or device that miscomputes, a broken batch, or a precision that overflows."
    )


def _grew(values: Floats) -> bool:
    """Whether the last few stand above the ones before."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2 * BEFORE:
        return False
    usual = finite[-10 * BEFORE : -3]
    spread = float(np.median(np.abs(usual - np.median(usual))))
    return bool(np.median(finite[-3:]) > max(CALM * np.median(usual), np.median(usual) + 6 * spread))


def _advice(case: Case, found: Break) -> str:
    history = case.history
    said = []
    saved = [save.iteration for save in history.saves if save.iteration is not None]
    usable = [iteration for iteration in saved if iteration <= found.iteration]
    if usable:
        said.append(
            say(
                "The last checkpoint from before it is that of iteration {at}: go on from there.",
                at=whole(max(usable)),
            )
        )
    peak = setting(history, "learning_rate")
    if len(found.before) and peak:
        said.append(
            say(
                "Try learning_rate={new} instead of {old}, or dtype=float32 for a few hundred iterations to "
                "tell the two causes apart.",
                new=rate(peak / 3),
                old=rate(peak),
            )
        )
    elif len(found.before):
        said.append(
            say(
                "Try a third of the learning rate, or float32 for a few hundred iterations to tell the two "
                "causes apart."
            )
        )
    else:
        said.append(
            say(
                "Run ten iterations in float32 on another device: if the loss is finite there, it is the "
                "device."
            )
        )
    wasted = _wasted(case, found)
    if wasted and wasted[0] > 10 and not found.recovered:
        said.append(
            say(
                "Stopping at once would have saved {time}, {share} of the run.",
                time=duration(wasted[0]),
                share=percent(wasted[1]),
            )
        )
    return " ".join(said)


def _wasted(case: Case, found: Break) -> tuple[float, float] | None:
    """Seconds after the break, and their share of the run."""
    steps, steady, total = case.history.steps, case.facts.steady_ms, case.facts.estimated_total_s
    mine = steps.segment == steps.segment[found.row]
    last = int(steps.iteration[mine][-1])
    after = mine & (steps.iteration > found.iteration)
    if not steady or not total or last <= found.iteration:
        return None
    logged = steps.ms[after][np.isfinite(steps.ms[after])]
    seconds = (float(logged.sum()) + max(0, last - found.iteration - len(logged)) * steady) / 1000
    return (seconds, seconds / total) if 0 < seconds <= total else None
