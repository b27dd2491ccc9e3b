"""What went wrong in a run: losses that rise and stay, and updates that were skipped. The other accidents
have modules of their own, and are listed here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.figures import difference, duration, loss, percent, rate, whole
from glassgpt.insight.course import course_of, seconds_between, setting, takes_nanogpt_settings
from glassgpt.insight.curve import blocks
from glassgpt.insight.findings.finding import Case, Finder, Finding
from glassgpt.insight.findings.memory import oom
from glassgpt.insight.findings.nonfinite import loss_nan
from glassgpt.insight.findings.saving import best_overwritten, interrupted, never_checkpointed
from glassgpt.insight.findings.spikes import loss_spike
from glassgpt.insight.history import History
from glassgpt.words import say

FEWEST_ROWS = 25
USUAL_SKIPS = (
    1 / 500
)  # of the updates: the scaler tries a larger scale every 2000, and fails a few times at first


# --- divergence ---


@dataclass(frozen=True)
class Rise:
    """A training loss that ended far above its lowest."""

    first: float
    lowest: float
    lowest_at: int
    end: float
    end_at: int


def rise_of(history: History) -> Rise | None:
    """Of the smoothed training loss; None unless it stayed up and lost a part of what had been learnt."""
    at, losses = course_of(history).losses()
    if len(losses) < FEWEST_ROWS:
        return None
    smooth = blocks(at, losses, min(120, len(losses) // 3))
    low = int(np.argmin(smooth.value))
    lowest = float(smooth.value[low])
    tail = smooth.value[-max(2, len(smooth) // 5) :]
    end = float(np.median(tail))
    first = float(losses[0])
    noise = float(np.median(smooth.error))
    enough = max(0.04 * (first - lowest), 0.05 * abs(lowest), 6 * noise)
    stays = float(tail.min()) - lowest > 0.5 * enough and low < len(smooth) - len(tail)
    if not stays or not end - lowest > enough:
        return None
    return Rise(first, lowest, round(float(smooth.at[low])), end, int(at[-1]))


def divergence(case: Case) -> Finding | None:
    rise = rise_of(case.history)
    if rise is None:
        return None
    course = course_of(case.history)
    wasted = seconds_between(course, rise.lowest_at, rise.end_at, case.facts.steady_ms)
    evidence = [
        say(
            "The training loss (smoothed) began at {first}, was down to {lowest} near iteration {at}, and "
            "ended at {end}.",
            first=loss(rise.first),
            lowest=loss(rise.lowest),
            at=whole(rise.lowest_at),
            end=loss(rise.end),
        )
    ]
    if wasted:
        evidence.append(
            say(
                "The {count} iterations since then took {time}.",
                count=whole(rise.end_at - rise.lowest_at),
                time=duration(wasted),
            )
        )
    return Finding(
        "divergence",
        "problem",
        say("The training loss rose and stayed up"),
        " ".join(evidence),
        say(
            "This is not overfitting, where the training loss falls: the updates have driven the weights "
            "away, nearly always because the learning rate is too high for this model, and it does not come "
            "back by itself."
        ),
        _divergence_advice(case.history, rise),
    )


def _divergence_advice(history: History, rise: Rise) -> str:
    peak, warmup = setting(history, "learning_rate"), setting(history, "warmup_iters")
    gain = difference(rise.end - rise.lowest)
    if peak and takes_nanogpt_settings(history):
        said = [
            say(
                "learning_rate={old} -> {new}, and stop the run when the loss turns: at its lowest it was "
                "{gain} better than at the end.",
                old=rate(peak),
                new=rate(peak / 5),
                gain=gain,
            )
        ]
        if warmup is not None and rise.lowest_at < 5 * max(warmup, 20):
            said.append(
                say(
                    "It turned near the end of the warm-up (warmup_iters={old}), when the rate was at its "
                    "highest: {new} would be gentler.",
                    old=int(warmup),
                    new=int(max(5 * warmup, 100)),
                )
            )
        return " ".join(said)
    return say(
        "A fifth of the learning rate, a longer warm-up, and gradients clipped at 1. Stop the run when the "
        "loss turns: at its lowest it was {gain} better than at the end.",
        gain=gain,
    )


# --- skipped steps ---


def skipped_steps(case: Case) -> Finding | None:
    """Updates that float16's loss scaler left out, because a gradient overflowed."""
    history = case.history
    told = sum(event.kind == "scaler-overflow" for event in history.events)
    unbounded = _unbounded_norms(history)
    skipped = max(told, unbounded)
    if not skipped:
        return None
    logged = max(1, len(history.steps))
    share = skipped / max(logged, skipped)
    evidence = say(
        "{skipped} skipped updates among {logged} logged iterations ({share}).",
        skipped=whole(skipped),
        logged=whole(logged),
        share=percent(share),
    )
    usual = skipped <= 5 or share <= USUAL_SKIPS
    return Finding(
        "skipped-steps",
        "info" if usual else "warning",
        say("Updates were skipped because gradients overflowed"),
        evidence,
        say(
            "float16 ends at 65504, so the loss is scaled down until the gradients fit; each attempt that "
            "fails is an iteration that taught nothing. A few at the start are normal."
        ),
        ""
        if usual
        else say(
            "dtype=bfloat16 (on cards from 2020 on) needs no scaler and gives {share} of the iterations "
            "back; else a lower learning rate or gradients clipped at 1.",
            share=percent(share),
        ),
    )


def _unbounded_norms(history: History) -> int:
    """Iterations with a finite loss and a gradient norm that is not. NaN also means that a line did not say
    it, so it counts only where nearly every line does."""
    steps = history.steps
    if not len(steps):
        return 0
    healthy = steps.has_loss & np.isfinite(steps.loss)
    said = np.isfinite(steps.grad_norm)
    infinite = int((np.isinf(steps.grad_norm) & healthy).sum())
    missing = int((np.isnan(steps.grad_norm) & healthy).sum())
    float16 = history.setup.settings.get("dtype") == "float16"
    return infinite + (missing if float16 and said.mean() > 0.9 else 0)


FINDERS: tuple[Finder, ...] = (
    loss_nan,
    divergence,
    loss_spike,
    skipped_steps,
    oom,
    interrupted,
    never_checkpointed,
    best_overwritten,
)
