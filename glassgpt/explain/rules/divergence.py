"""A training loss that rose and stayed up, and what to do about it."""

from __future__ import annotations

from glassgpt.explain.loss_rise import LossRise
from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_duration, format_integer, format_loss, format_loss_difference, format_lr
from glassgpt.i18n import say
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import numeric_setting, seconds_between, takes_known_settings


def divergence(case: RunAnalysis) -> Finding | None:
    rise = case.loss_rise
    if rise is None:
        return None
    return Finding(
        "divergence",
        "problem",
        say("The training loss rose and stayed up"),
        _evidence(case, rise),
        say(
            "This is not overfitting, where the training loss falls: the updates have driven the weights "
            "away, nearly always because the learning rate is too high for this model, and it does not come "
            "back by itself."
        ),
        _divergence_advice(case.log, rise),
    )


def _evidence(case: RunAnalysis, rise: LossRise) -> str:
    values = {
        "first": format_loss(rise.first_loss),
        "lowest": format_loss(rise.lowest_loss),
        "end": format_loss(rise.end_loss),
    }
    if not case.log.numbered:
        return say(
            "The training loss (smoothed) began at {first}, was down to {lowest}, and ended at {end}.",
            **values,
        )
    said = say(
        "The training loss (smoothed) began at {first}, was down to {lowest} near iteration {at}, and ended "
        "at {end}.",
        at=format_integer(rise.lowest_iteration),
        **values,
    )
    wasted = seconds_between(case.trajectory, rise.lowest_iteration, rise.end_iteration, case.facts.steady_ms)
    if not wasted:
        return said
    return f"{said} " + say(
        "The {count} iterations since then took {time}.",
        count=format_integer(rise.end_iteration - rise.lowest_iteration),
        time=format_duration(wasted),
    )


def _divergence_advice(history: RunLog, rise: LossRise) -> str:
    peak, warmup = numeric_setting(history, "learning_rate"), numeric_setting(history, "warmup_iters")
    gain = format_loss_difference(rise.end_loss - rise.lowest_loss)
    if peak and takes_known_settings(history):
        said = [
            say(
                "learning_rate={old} -> {new}, and stop the run when the loss turns: at its lowest it was "
                "{gain} better than at the end.",
                old=format_lr(peak),
                new=format_lr(peak / 5),
                gain=gain,
            )
        ]
        if warmup is not None and rise.lowest_iteration < 5 * max(warmup, 20):
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
