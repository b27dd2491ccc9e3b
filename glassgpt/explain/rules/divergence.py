"""A training loss that rose and stayed up, and what to do about it."""

from __future__ import annotations

from glassgpt.explain.loss_rise import Rise
from glassgpt.explain.rule import Case, Finding
from glassgpt.format import difference, duration, loss, rate, whole
from glassgpt.i18n import say
from glassgpt.runs.run_log import History
from glassgpt.runs.trajectory import seconds_between, setting, takes_known_settings


def divergence(case: Case) -> Finding | None:
    rise = case.rise
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
        _divergence_advice(case.history, rise),
    )


def _evidence(case: Case, rise: Rise) -> str:
    values = {"first": loss(rise.first), "lowest": loss(rise.lowest), "end": loss(rise.end)}
    if not case.history.numbered:
        return say(
            "The training loss (smoothed) began at {first}, was down to {lowest}, and ended at {end}.",
            **values,
        )
    said = say(
        "The training loss (smoothed) began at {first}, was down to {lowest} near iteration {at}, and ended "
        "at {end}.",
        at=whole(rise.lowest_at),
        **values,
    )
    wasted = seconds_between(case.course, rise.lowest_at, rise.end_at, case.facts.steady_ms)
    if not wasted:
        return said
    return f"{said} " + say(
        "The {count} iterations since then took {time}.",
        count=whole(rise.end_at - rise.lowest_at),
        time=duration(wasted),
    )


def _divergence_advice(history: History, rise: Rise) -> str:
    peak, warmup = setting(history, "learning_rate"), setting(history, "warmup_iters")
    gain = difference(rise.end - rise.lowest)
    if peak and takes_known_settings(history):
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
