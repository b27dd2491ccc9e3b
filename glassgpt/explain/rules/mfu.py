"""What the logged MFU means: its dips at evaluations, the peak it is divided by, and values above 100 %."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.estimate.cards import Card, find_card
from glassgpt.format import format_flops_per_s, format_percent_value
from glassgpt.i18n import say
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.inference import MFU_EMA_DECAY
from glassgpt.runs.run_log import Bools, Floats, RunLog
from glassgpt.runs.trainer import Trainer

MFU_ROUNDING_POINTS = 0.005  # of a printed MFU, in percentage points
MS_ROUNDING = 0.005  # of a printed time
DEFAULT_MFU_ERROR = 0.1  # relative: an average may lag behind by an evaluation's tenth
MIN_EVAL_RATIO = 1.5  # times a steady iteration, for one whose evaluation explains a dip
MIN_DIP_POINTS = 0.05  # percentage points: well above the rounding
MIN_CONSISTENT_SHARE = 0.9  # of the evaluations at which the recomputed average is the printed one
MAX_CPU_MFU_PERCENT = 0.1  # of an A100's peak: about a hundredth of a small card
MAX_PEAK_DEVIATION = 0.01  # card's peak over the trainer's: then its MFU is right

# Cards that readers know, slow to fast: the name in the card table, and the short one.
REFERENCE_CARDS = (
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
    """The running average at lines that directly follow another: as printed, and by its formula."""

    rows: np.ndarray
    previous_mfu: Floats  # as printed
    step_mfu: Floats  # of this iteration alone, percent
    printed_mfu: Floats
    tolerance: Floats  # error by rounding

    @property
    def average_mfu(self) -> Floats:
        return MFU_EMA_DECAY * self.previous_mfu + (1 - MFU_EMA_DECAY) * self.step_mfu

    @property
    def is_consistent(self) -> Bools:
        return np.abs(self.average_mfu - self.printed_mfu) <= self.tolerance


def recompute_mfu(
    run_log: RunLog, log_interval: int | None, mfu_times_ms: float, error: float
) -> RecomputedMfu:
    """`mfu_times_ms`: in percent x ms, the same for every iteration, within the relative `error`."""
    steps = run_log.steps
    follows = (
        (steps.segment[1:] == steps.segment[:-1]) & np.isfinite(steps.mfu[1:]) & np.isfinite(steps.mfu[:-1])
    )
    follows &= np.nan_to_num(steps.ms[1:], nan=0.0, posinf=0.0) > 0
    if log_interval:
        follows &= np.diff(steps.iteration) == log_interval
    rows = np.flatnonzero(follows) + 1
    ms = steps.ms[rows]
    step_mfu = mfu_times_ms / ms
    # Rounded are the MFU of the line before, that of this line, and the time.
    tolerance = (
        (1 + MFU_EMA_DECAY) * MFU_ROUNDING_POINTS
        + (1 - MFU_EMA_DECAY) * step_mfu * (error + MS_ROUNDING / ms)
        + 1e-9
    )
    return RecomputedMfu(rows, steps.mfu[rows - 1], step_mfu, steps.mfu[rows], tolerance)


def mfu_dip_is_eval(analysis: Analysis) -> Finding | None:
    """An evaluation in a step time pulls the running average of the MFU down; the GPU is not slower."""
    run_log, facts, steps = analysis.log, analysis.facts, analysis.log.steps
    trainer, steady_ms = run_log.trainer, facts.steady_ms
    if not trainer.mfu_is_running_average or not trainer.step_time_includes_eval:
        return None
    if analysis.throughput is not None:
        steady_mfu, error = analysis.throughput.mfu_percent, analysis.throughput.relative_error
    else:
        steady_mfu, error = facts.mfu_reported_steady or 0.0, DEFAULT_MFU_ERROR
    if not steady_ms or not steady_mfu or len(steps) < 2:
        return None
    lines = recompute_mfu(run_log, facts.log_interval, steady_mfu * steady_ms, error)
    evaluates = run_log.includes_eval()[lines.rows] & (steps.ms[lines.rows] > MIN_EVAL_RATIO * steady_ms)
    consistent = evaluates & lines.is_consistent
    evaluations, explained = int(np.count_nonzero(evaluates)), int(np.count_nonzero(consistent))
    if not evaluations or explained < MIN_CONSISTENT_SHARE * evaluations:
        return None
    # Prefer a dip whose recomputed value is also equal as printed: nicer to read.
    exact = consistent & (np.round(lines.average_mfu, 2) == np.round(lines.printed_mfu, 2))
    dips = lines.previous_mfu - lines.printed_mfu
    worst = int(np.argmax(np.where(exact if np.any(exact) else consistent, dips, -math.inf)))
    if dips[worst] < MIN_DIP_POINTS:
        return None
    row = int(lines.rows[worst])
    before, printed = f"{lines.previous_mfu[worst]:.2f}%", f"{lines.printed_mfu[worst]:.2f}%"
    evidence = say(
        "Iteration {iteration}: mfu {before} -> {printed}, with an evaluation in its {ms}. Recomputed: "
        "0.9 x {before} + 0.1 x {taken_in} = {average}.",
        iteration=int(steps.iteration[row]),
        before=before,
        printed=printed,
        ms=f"{steps.ms[row]:.2f} ms",
        taken_in=f"{lines.step_mfu[worst]:.2f}%",
        average=f"{lines.average_mfu[worst]:.2f}%",
    )
    if evaluations > 1:
        evidence += " " + say(
            "The same formula gives the printed value at {agreeing} of {count} evaluations.",
            agreeing=explained,
            count=evaluations,
        )
    return Finding(
        "mfu-dip-is-eval",
        "info",
        say(
            "The drop of the MFU from {before} to {printed} is the evaluation, not a slower GPU",
            before=before,
            printed=printed,
        ),
        evidence,
        say(  # 0.9**22 = 0.1
            "{trainer} prints a running average, and counts the evaluation's time as training time. After "
            "22 log lines nine tenths of such a dip are gone. A steady iteration alone reaches {mfu}.",
            trainer=trainer.name,
            mfu=format_percent_value(steady_mfu),
        ),
        "",
    )


def mfu_wrong_peak(analysis: Analysis) -> Finding | None:
    """The trainer divides by the peak of a fixed card, whatever the card."""
    run_log, peak = analysis.log, analysis.log.trainer.mfu_peak
    mfu = analysis.throughput.mfu_percent if analysis.throughput else analysis.facts.mfu_reported_steady
    if peak is None or mfu is None or not (math.isfinite(mfu) and mfu > 0):
        return None
    if np.all(run_log.includes_eval()[np.isfinite(run_log.steps.mfu)]):
        return None  # its times are those of evaluations, and say nothing about the card
    card, name = analysis.card, run_log.setup.device_name
    if card is None and name:
        card = find_card(name, run_log.setup.memory_bytes)
    if card is not None:
        return _mfu_on_card(run_log, mfu, peak, card)
    device = run_log.setup.settings.get("device")
    reference = _reference(run_log.trainer)
    if isinstance(device, str) and device.partition(":")[0] in ("cpu", "mps"):
        return Finding(
            "mfu-wrong-peak",
            "info",
            say("The MFU means nothing on {device}", device=device),
            _rate_sentence(mfu, peak),
            say(
                "{trainer} divides by the peak of an {reference} on any device, so the percentage says "
                "nothing about this machine. Iteration time and tokens/s do.",
                trainer=run_log.trainer.name,
                reference=reference,
            ),
            "",
        )
    if mfu < MAX_CPU_MFU_PERCENT:
        return Finding(
            "mfu-wrong-peak",
            "info",
            say(
                "The MFU of {mfu} assumes an {reference}, which this is not",
                mfu=format_percent_value(mfu),
                reference=reference,
            ),
            _rate_sentence(mfu, peak),
            say(
                "{trainer} divides by the peak of an {reference} on any device. At this speed it is a CPU, "
                "or a GPU that is idle nearly all the time. Iteration time and tokens/s tell more.",
                trainer=run_log.trainer.name,
                reference=reference,
            ),
            "",
        )
    return _mfu_on_common_cards(run_log, mfu, peak)


def _mfu_on_card(run_log: RunLog, mfu: float, peak: float, card: Card) -> Finding | None:
    """The MFU of a known card, by its own peak; None where the trainer's peak is right."""
    card_peak = _card_peak(card, run_log)
    if card_peak is None or abs(card_peak[1] / peak - 1) < MAX_PEAK_DEVIATION:
        return None
    dtype, own_peak = card_peak
    own_mfu = mfu * peak / own_peak
    explanation = say(
        "{trainer} divides by the peak of an {reference}. {card} does {own} in {dtype}, so the MFU is "
        "{real}.",
        trainer=run_log.trainer.name,
        reference=_reference(run_log.trainer),
        card=card.name,
        own=format_flops_per_s(own_peak),
        dtype=dtype,
        real=format_percent_value(own_mfu),
    )
    if own_mfu > 100:
        explanation += " " + say(
            "That is more than the card can do: it is another card, or the MFU counts too many FLOPs."
        )
    return Finding(
        "mfu-wrong-peak",
        "warning" if own_mfu > 100 else "info",
        say(
            "The MFU is {real} on this card, not {mfu}",
            real=format_percent_value(own_mfu),
            mfu=format_percent_value(mfu),
        ),
        _rate_sentence(mfu, peak),
        explanation,
        "",
    )


def _mfu_on_common_cards(run_log: RunLog, mfu: float, peak: float) -> Finding | None:
    """The card is not known: what the MFU would be on common ones, and which of them are too slow."""
    flops_per_s = mfu / 100 * peak
    fitting, too_slow = [], []
    for name, short_name in REFERENCE_CARDS:
        card = find_card(name)
        card_peak = _card_peak(card, run_log) if card else None
        if card_peak and card_peak[1] >= flops_per_s:
            fitting.append(f"{short_name} {format_percent_value(100 * flops_per_s / card_peak[1])}")
        elif card_peak:
            too_slow.append(short_name)
    if not fitting:
        return None
    explanation = say(
        "{trainer} divides by the peak of an {reference} on any card. As a share of the card's own peak it "
        "would be: {cards}.",
        trainer=run_log.trainer.name,
        reference=_reference(run_log.trainer),
        cards=", ".join(fitting),
    )
    if too_slow:
        explanation += " " + say("These cards are too slow for that: {cards}.", cards=", ".join(too_slow))
    return Finding(
        "mfu-wrong-peak",
        "info",
        say(
            "The MFU of {mfu} assumes the peak of an {reference}",
            mfu=format_percent_value(mfu),
            reference=_reference(run_log.trainer),
        ),
        _rate_sentence(mfu, peak),
        explanation,
        say("Name the card to see the MFU of its own peak: --gpu={example}.", example='"RTX 4070 Ti"'),
    )


def mfu_impossible(analysis: Analysis) -> Finding | None:
    """An MFU above 100 % of a peak that the trainer itself chose for the card."""
    run_log, mfu = analysis.log, analysis.facts.mfu_reported_steady
    if run_log.trainer.mfu_peak is not None or mfu is None or not 100 < mfu < math.inf:
        return None
    peak = run_log.setup.peak_flops
    evidence = say("The median of the reported MFU is {mfu}.", mfu=format_percent_value(mfu))
    if peak:
        evidence += " " + _rate_sentence(mfu, peak)
    return Finding(
        "mfu-impossible",
        "warning",
        say("An MFU of {mfu} is more than any card can do", mfu=format_percent_value(mfu)),
        evidence,
        say(
            "The trainer assumes a slower card, counts more FLOPs than are computed, or its clock stops "
            "before the GPU has finished."
        ),
        say("Judge the speed by tokens per second of wall time."),
    )


def _card_peak(card: Card, run_log: RunLog) -> tuple[str, float] | None:
    """The dtype that the run most likely computed in on this card, and the card's peak for it."""
    dtype = str(run_log.setup.settings.get("dtype"))
    # Trainers allow TF32 where float32 is requested.
    dtypes = {"float32": ("tf32", "float32"), "float16": ("float16",)}.get(dtype, ("bfloat16", "float16"))
    return next(((one, card.peaks[one]) for one in dtypes if one in card.peaks), None)


def _reference(trainer: Trainer) -> str:
    """The card whose peak a trainer with a fixed peak divides by."""
    return f"{trainer.mfu_peak_card} ({format_flops_per_s(trainer.mfu_peak or math.nan)})"


def _rate_sentence(mfu: float, peak: float) -> str:
    return say(
        "mfu {mfu} x {peak} = {rate}.",
        mfu=format_percent_value(mfu),
        peak=format_flops_per_s(peak),
        rate=format_flops_per_s(mfu / 100 * peak),
    )
