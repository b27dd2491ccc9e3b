"""Findings about speed: what the printed MFU means, and what it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.estimate.cards import Card, find_card
from glassgpt.explain.rule import Finding, Rule, RunAnalysis
from glassgpt.explain.rules.workload import hidden_accumulation, parameters_inferred
from glassgpt.format import format_flops_per_s, format_percent_value
from glassgpt.i18n import say
from glassgpt.runs.run_log import Bools, Floats, RunLog

MFU_EMA_DECAY = 0.9  # of the last value, in a running average
MFU_ROUNDING_POINTS = 0.005  # of a printed MFU, in points
MAX_CPU_MFU_PERCENT = 0.1  # percent of an A100: about a hundredth of a small card
MIN_DIP_POINTS = 0.05  # points: well above the rounding

# What people train on, slow to fast, as the card table calls it, and as people do.
COMMON_CARDS = (
    ("RTX 3060", "RTX 3060"),
    ("RTX 4070", "RTX 4070"),
    ("T4", "T4"),
    ("RTX 3090", "RTX 3090"),
    ("RTX 4070 Ti", "RTX 4070 Ti"),
    ("RTX 4080", "RTX 4080"),
    ("RTX 4090", "RTX 4090"),
    ("A100 SXM4 40GB", "A100"),
    ("H100 SXM5", "H100"),
)


@dataclass(frozen=True)
class RecomputedMfu:
    """The running average at lines that follow another: printed, and by its formula from the line before."""

    rows: np.ndarray
    previous_mfu: Floats  # printed
    step_mfu: Floats  # the MFU of this iteration by itself, percent
    printed_mfu: Floats
    tolerance: Floats  # what rounding can do

    @property
    def average_mfu(self) -> Floats:
        return MFU_EMA_DECAY * self.previous_mfu + (1 - MFU_EMA_DECAY) * self.step_mfu

    @property
    def is_consistent(self) -> Bools:
        return np.abs(self.average_mfu - self.printed_mfu) <= self.tolerance


def recompute_mfu(history: RunLog, log_interval: int | None, product: float, error: float) -> RecomputedMfu:
    """`product`: percent x ms, the same for every iteration, known within the relative `error`."""
    steps = history.steps
    follows = (
        (steps.segment[1:] == steps.segment[:-1]) & np.isfinite(steps.mfu[1:]) & np.isfinite(steps.mfu[:-1])
    )
    follows &= np.nan_to_num(steps.ms[1:], nan=0.0, posinf=0.0) > 0
    if log_interval:
        follows &= np.diff(steps.iteration) == log_interval
    row = np.flatnonzero(follows) + 1
    with np.errstate(over="ignore", invalid="ignore"):  # a time may be next to nothing
        taken_in = product / steps.ms[row]
        # The line before is rounded, this line is, and the time is.
        tolerance = (
            (1 + MFU_EMA_DECAY) * MFU_ROUNDING_POINTS
            + (1 - MFU_EMA_DECAY) * taken_in * (error + 0.005 / steps.ms[row])
            + 1e-9
        )
    return RecomputedMfu(row, steps.mfu[row - 1], taken_in, steps.mfu[row], tolerance)


def mfu_dip_is_eval(case: RunAnalysis) -> Finding | None:
    """An evaluation in an iteration's time pulls a running average down, though nothing became slower."""
    history, steady_ms = case.log, case.facts.steady_ms
    if (
        not (history.trainer.mfu_is_running_average and history.trainer.step_time_includes_eval and steady_ms)
        or len(history.steps) < 2
    ):
        return None
    usual = _usual_mfu(case)
    if usual is None:
        return None
    mfu, error = usual
    with np.errstate(over="ignore", invalid="ignore"):  # an MFU of 1e308 has been seen
        return _find_largest_dip(case, steady_ms, mfu, error)


def _find_largest_dip(case: RunAnalysis, steady_ms: float, mfu: float, error: float) -> Finding | None:
    history = case.log
    all_lines = recompute_mfu(history, case.facts.log_interval, mfu * steady_ms, error)
    evaluates = history.includes_eval()[all_lines.rows] & (history.steps.ms[all_lines.rows] > 1.5 * steady_ms)
    dips = np.where(evaluates, all_lines.previous_mfu - all_lines.printed_mfu, 0.0)
    if not np.any(evaluates):
        return None
    agreeing = evaluates & all_lines.is_consistent
    exact = agreeing & (
        np.round(all_lines.average_mfu, 2) == np.round(all_lines.printed_mfu, 2)
    )  # nicer to read
    worst = int(np.argmax(np.where(exact if np.any(exact) else agreeing, dips, -math.inf)))
    is_proven = np.count_nonzero(agreeing) >= 0.9 * np.count_nonzero(evaluates)
    if not is_proven or dips[worst] < MIN_DIP_POINTS:
        return None
    return _dip_finding(
        case, all_lines, worst, (int(np.count_nonzero(agreeing)), int(np.count_nonzero(evaluates))), mfu
    )


def _usual_mfu(case: RunAnalysis) -> tuple[float, float] | None:
    """Of a steady iteration by itself, in percent, and its relative error."""
    work = case.throughput
    if work is not None:
        return work.mfu_percent, work.relative_error
    reported = case.facts.mfu_reported_steady
    return (reported, 0.1) if reported else None  # an average may lag behind by an evaluation's tenth


def _dip_finding(
    case: RunAnalysis, lines: RecomputedMfu, worst: int, agreeing: tuple[int, int], mfu: float
) -> Finding:
    row = int(lines.rows[worst])
    steps = case.log.steps
    before, taken_in, printed = (
        float(part[worst]) for part in (lines.previous_mfu, lines.step_mfu, lines.printed_mfu)
    )
    evidence = say(
        "Iteration {iteration}: mfu {before} -> {printed}, with an evaluation in its {ms}. Recomputed: "
        "0.9 x {before} + 0.1 x {taken_in} = {average}.",
        iteration=int(steps.iteration[row]),
        before=f"{before:.2f}%",
        printed=f"{printed:.2f}%",
        ms=f"{steps.ms[row]:.2f} ms",
        taken_in=f"{taken_in:.2f}%",
        average=f"{float(lines.average_mfu[worst]):.2f}%",
    )
    if agreeing[1] > 1:
        evidence += " " + say(
            "The same sum gives the printed value at {agreeing} of {count} evaluations.",
            agreeing=agreeing[0],
            count=agreeing[1],
        )
    return Finding(
        "mfu-dip-is-eval",
        "info",
        say(
            "The MFU's fall from {before} to {printed} is the evaluation, not a slower GPU",
            before=f"{before:.2f}%",
            printed=f"{printed:.2f}%",
        ),
        evidence,
        say(
            "{trainer} prints a running average and puts the evaluation's time into it as if it were "
            "training. It takes 22 log lines until nine tenths of such a dip are gone. A steady iteration "
            "by itself reaches {mfu}.",
            trainer=case.log.trainer.name,
            mfu=format_percent_value(mfu),
        ),
        "",
    )


def mfu_wrong_peak(case: RunAnalysis) -> Finding | None:
    """MFU against a fixed card, whatever the card."""
    history, peak = case.log, case.log.trainer.mfu_peak
    work = case.throughput
    mfu = work.mfu_percent if work else case.facts.mfu_reported_steady
    if peak is None or mfu is None or not (math.isfinite(mfu) and mfu > 0):
        return None
    if np.all(history.includes_eval()[np.isfinite(history.steps.mfu)]):
        return None  # it is the evaluations' time that it divides by, and says nothing about the card
    device = history.setup.settings.get("device")
    known = case.card or _named_card(history)
    if known is None and isinstance(device, str) and device.partition(":")[0] in ("cpu", "mps"):
        return _no_gpu_finding(history, mfu, peak, device)
    if known is None and mfu < MAX_CPU_MFU_PERCENT:
        return _too_slow_finding(history, mfu, peak)
    return (
        _known_card_finding(history, mfu, peak, known)
        if known
        else _possible_cards_finding(history, mfu, peak)
    )


def mfu_impossible(case: RunAnalysis) -> Finding | None:
    """More than 100% of a peak that the trainer itself chose for the card."""
    history, mfu = case.log, case.facts.mfu_reported_steady
    if history.trainer.mfu_peak is not None or mfu is None or not 100 < mfu < math.inf:
        return None
    peak = history.setup.peak_flops
    evidence = say("The median of the MFU that it reports is {mfu}.", mfu=format_percent_value(mfu))
    if peak:
        evidence += " " + _mfu_evidence(mfu, peak)
    return Finding(
        "mfu-impossible",
        "warning",
        say("An MFU of {mfu} is more than any card can do", mfu=format_percent_value(mfu)),
        evidence,
        say(
            "The trainer takes the card for a slower one, counts more work than is done, "
            "or its clock stops before the GPU has finished."
        ),
        say("Judge the speed by tokens/s over the wall clock."),
    )


def _named_card(history: RunLog) -> Card | None:
    name = history.setup.device_name
    return find_card(name, history.setup.memory_bytes) if name else None


def _card_peak(card: Card, history: RunLog) -> tuple[str, float] | None:
    """The number format that the run most likely computed in on this card, and the card's peak for it."""
    told = history.setup.settings.get("dtype")
    # Trainers allow TF32 where float32 is asked for.
    wanted = {"float32": ("tf32", "float32"), "float16": ("float16",)}.get(str(told), ("bfloat16", "float16"))
    return next(((dtype, card.peaks[dtype]) for dtype in wanted if dtype in card.peaks), None)


def _peak_label(peak: float) -> str:
    return f"A100 ({format_flops_per_s(peak)})"


def _mfu_evidence(mfu: float, peak: float) -> str:
    return say(
        "mfu {mfu} x {peak} = {rate}.",
        mfu=format_percent_value(mfu),
        peak=format_flops_per_s(peak),
        rate=format_flops_per_s(mfu / 100 * peak),
    )


def _no_gpu_finding(history: RunLog, mfu: float, peak: float, device: str) -> Finding:
    return Finding(
        "mfu-wrong-peak",
        "info",
        say("The MFU means nothing on {device}", device=device),
        _mfu_evidence(mfu, peak),
        say(
            "{trainer} divides by the peak of an {reference} whatever it runs on, so the percentage says "
            "nothing about this machine. Iteration time and tokens/s do.",
            trainer=history.trainer.name,
            reference=_peak_label(peak),
        ),
        "",
    )


def _too_slow_finding(history: RunLog, mfu: float, peak: float) -> Finding:
    return Finding(
        "mfu-wrong-peak",
        "info",
        say(
            "An MFU of {mfu} says only that this is no {reference}",
            mfu=format_percent_value(mfu),
            reference=_peak_label(peak),
        ),
        _mfu_evidence(mfu, peak),
        say(
            "{trainer} divides by the peak of an {reference} whatever it runs on. At this speed it is a "
            "CPU, or a GPU that waits nearly all the time. Iteration time and tokens/s tell more.",
            trainer=history.trainer.name,
            reference=_peak_label(peak),
        ),
        "",
    )


def _known_card_finding(history: RunLog, mfu: float, peak: float, card: Card) -> Finding | None:
    found = _card_peak(card, history)
    if found is None or abs(found[1] / peak - 1) < 0.01:
        return None
    dtype, own = found
    real = mfu * peak / own
    explanation = say(
        "{trainer} divides by the peak of an {reference}. {card} does {own} in {dtype}, so the MFU is "
        "{real}.",
        trainer=history.trainer.name,
        reference=_peak_label(peak),
        card=card.name,
        own=format_flops_per_s(own),
        dtype=dtype,
        real=format_percent_value(real),
    )
    if real > 100:
        explanation += " " + say("More than the card can do: it is another card, or the MFU counts too much.")
    return Finding(
        "mfu-wrong-peak",
        "warning" if real > 100 else "info",
        say(
            "The MFU is {real} on this card, not {mfu}",
            real=format_percent_value(real),
            mfu=format_percent_value(mfu),
        ),
        _mfu_evidence(mfu, peak),
        explanation,
        "",
    )


def _possible_cards_finding(history: RunLog, mfu: float, peak: float) -> Finding | None:
    rate = mfu / 100 * peak
    fitting, too_slow = [], []
    for name, short in COMMON_CARDS:
        card = find_card(name)
        found = _card_peak(card, history) if card else None
        if found and found[1] >= rate:
            fitting.append(f"{short} {format_percent_value(100 * rate / found[1])}")
        elif found:
            too_slow.append(short)
    if not fitting:
        return None
    explanation = say(
        "{trainer} divides by the peak of an {reference}, whatever the card. Of the "
        "card's own peak it would be: {cards}.",
        trainer=history.trainer.name,
        reference=_peak_label(peak),
        cards=", ".join(fitting),
    )
    if too_slow:
        explanation += " " + say("These are slower than that: {cards}.", cards=", ".join(too_slow))
    return Finding(
        "mfu-wrong-peak",
        "info",
        say(
            "The MFU of {mfu} is true on an {reference} only",
            mfu=format_percent_value(mfu),
            reference=_peak_label(peak),
        ),
        _mfu_evidence(mfu, peak),
        explanation,
        say("Name the card for its own figure: --gpu={example}.", example='"RTX 4070 Ti"'),
    )


RULES: tuple[Rule, ...] = (
    mfu_dip_is_eval,
    mfu_wrong_peak,
    mfu_impossible,
    hidden_accumulation,
    parameters_inferred,
)
