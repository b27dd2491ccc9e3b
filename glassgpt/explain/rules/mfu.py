"""What the logged MFU means: its dips at evaluations, the peak it is divided by, and values above 100 %."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.estimate.cards import Card, find_card, guess_card
from glassgpt.format import format_flops_per_s, format_percent_value
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, Severity, make_finding
from glassgpt.runs.analysis import MIN_MFU, Analysis
from glassgpt.runs.model_size import MFU_EMA_DECAY, device_count, replica_count
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
    ("T4", "T4"),
    ("RTX 3090", "RTX 3090"),
    ("RTX 4070 Ti", "RTX 4070 Ti"),
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
    iteration = int(steps.iteration[row])
    before, printed = float(lines.previous_mfu[worst]), float(lines.printed_mfu[worst])
    evidence = [
        say(
            "mfu-dip-is-eval.evidence.recomputed",
            iteration=iteration,
            mfu_before=before,
            mfu_printed=printed,
            iteration_ms=float(steps.ms[row]),
            iteration_mfu=float(lines.step_mfu[worst]),
            mfu_recomputed=float(lines.average_mfu[worst]),
        )
    ]
    if evaluations > 1:
        evidence.append(
            say(
                "mfu-dip-is-eval.evidence.agreeing_evals",
                explained_evaluations=explained,
                evaluations=evaluations,
            )
        )
    return make_finding(
        "mfu-dip-is-eval",
        "info",
        title=say("mfu-dip-is-eval.title", mfu_before=before, mfu_printed=printed),
        evidence=evidence,
        # Its 22 log lines: 0.9**22 = 0.1
        explanation=say("mfu-dip-is-eval.explanation", trainer=trainer.name),
        at=iteration,
        claims={"cause of slow iterations": "evaluation"},
        lines=analysis.lines_at([iteration]),
    )


def looks_like_cpu(analysis: Analysis) -> bool:
    """Whether its MFU, by the peak of a fixed GPU, is too low for one that works."""
    mfu = analysis.facts.mfu_reported_steady
    return analysis.log.trainer.mfu_peak is not None and mfu is not None and mfu < MAX_CPU_MFU_PERCENT


def mfu_wrong_peak(analysis: Analysis) -> Finding | None:
    """The trainer divides by the peak of a fixed card, whatever the card."""
    run_log, peak = analysis.log, analysis.log.trainer.mfu_peak
    mfu = analysis.throughput.mfu_percent if analysis.throughput else analysis.facts.mfu_reported_steady
    if peak is None or mfu is None or not (math.isfinite(mfu) and mfu > 0):
        return None
    if np.all(run_log.is_at_eval_or_save()[np.isfinite(run_log.steps.mfu)]):
        return None  # its times, or the last of its running average, are those of evaluations, not the card's
    card, name = analysis.card, run_log.setup.device_name
    if card is None and name:
        card = guess_card(name, run_log.setup.memory_bytes)
    if card is not None:
        is_exact = analysis.card is not None or find_card(name or "", run_log.setup.memory_bytes) is card
        return _mfu_on_card(run_log, mfu, peak, card, card.name if is_exact else name or card.name)
    device, trainer = run_log.setup.settings.get("device"), run_log.trainer.name
    reference = _reference(run_log.trainer)
    if isinstance(device, str) and device.partition(":")[0] in ("cpu", "mps"):
        title = say("mfu-wrong-peak.title.no_gpu", device=device)
        explanation = say("mfu-wrong-peak.explanation.no_gpu", trainer=trainer, reference=reference)
    elif looks_like_cpu(analysis):
        title = say("mfu-wrong-peak.title.very_slow", mfu_percent=mfu, reference=reference)
        explanation = say("mfu-wrong-peak.explanation.very_slow", trainer=trainer, reference=reference)
    else:
        return _mfu_on_common_cards(run_log, mfu, peak)
    # Printed with two decimals, a tiny MFU is rounded too much to compute with.
    rounded = analysis.throughput is None and mfu < MIN_MFU
    evidence = say("mfu-impossible.evidence.median", mfu_percent=mfu) if rounded else None
    return _wrong_peak(run_log, "info", mfu, peak, title, [explanation], evidence=evidence)


def _mfu_on_card(run_log: RunLog, mfu: float, peak: float, card: Card, name: str) -> Finding | None:
    """The MFU of a known card, by its own peak; None where the trainer's peak is right. `name`: as the log
    has it, where several cards are called so."""
    card_peak = _card_peak(card, run_log)
    if card_peak is None or abs(card_peak[1] / peak - 1) < MAX_PEAK_DEVIATION:
        return None
    dtype, own_peak = card_peak
    own_mfu = mfu * peak * replica_count(run_log) / device_count(run_log) / own_peak
    title = say("mfu-wrong-peak.title.known_card", card_mfu_percent=own_mfu, mfu_percent=mfu)
    explanation = [
        say(
            "mfu-wrong-peak.explanation.known_card",
            trainer=run_log.trainer.name,
            reference=_reference(run_log.trainer),
            card=name,
            card_peak_flops_per_s=own_peak,
            dtype=dtype,
            card_mfu_percent=own_mfu,
        )
    ]
    if own_mfu > 100:
        explanation.append(say("mfu-wrong-peak.explanation.above_own_peak"))
    return _wrong_peak(run_log, "warning" if own_mfu > 100 else "info", mfu, peak, title, explanation)


def _mfu_on_common_cards(run_log: RunLog, mfu: float, peak: float) -> Finding | None:
    """The card is not known: what the MFU would be on common ones, and which of them are too slow."""
    flops_per_s = mfu / 100 * peak * replica_count(run_log) / device_count(run_log)  # of one card
    fitting, names = [], []
    for name, short_name in REFERENCE_CARDS:
        card = find_card(name)
        card_peak = _card_peak(card, run_log) if card else None
        if card_peak and card_peak[1] >= flops_per_s:
            names.append(name)
            fitting.append(f"{short_name} {format_percent_value(100 * flops_per_s / card_peak[1])}")
    if not fitting:
        return None
    reference = _reference(run_log.trainer)
    title = say("mfu-wrong-peak.title.unknown_card", mfu_percent=mfu, reference=reference)
    explanation = [
        say(
            "mfu-wrong-peak.explanation.common_cards",
            trainer=run_log.trainer.name,
            reference=reference,
            card_mfus=fitting,
        )
    ]
    advice = say("mfu-wrong-peak.advice.name_card", example=f'"{names[len(names) // 2]}"')
    return _wrong_peak(run_log, "info", mfu, peak, title, explanation, advice)


def _wrong_peak(
    run_log: RunLog,
    severity: Severity,
    mfu: float,
    peak: float,
    title: Message,
    explanation: list[Message],
    advice: Message | None = None,
    evidence: Message | None = None,
) -> Finding:
    return make_finding(
        "mfu-wrong-peak",
        severity,
        title=title,
        evidence=evidence or [_rate_message(mfu, peak), _together(run_log, mfu / 100 * peak)],
        explanation=explanation,
        advice=advice,
        claims={"peak of the MFU": peak},
    )


def mfu_impossible(analysis: Analysis) -> Finding | None:
    """An MFU above 100 % of a peak that the trainer itself chose for the card."""
    run_log, mfu = analysis.log, analysis.facts.mfu_reported_steady
    if run_log.trainer.mfu_peak is not None or mfu is None or not 100 < mfu < math.inf:
        return None
    peak = run_log.setup.peak_flops
    median = say("mfu-impossible.evidence.median", mfu_percent=mfu)
    return make_finding(
        "mfu-impossible",
        "warning",
        title=say("mfu-impossible.title", mfu_percent=mfu),
        evidence=[median, _rate_message(mfu, peak) if peak else None],
        explanation=say("mfu-impossible.explanation.disturbed")
        if run_log.setup.peak_is_disturbed
        else say("mfu-impossible.explanation"),
        advice=say("mfu-impossible.advice"),
        claims={"peak of the MFU": peak} if peak else None,
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


def _together(run_log: RunLog, flops_per_s: float) -> Message | None:
    """What all devices do together, and each of them; None for one device. An MFU counts the FLOPs of one
    copy of the model over the peak of one device."""
    devices, replicas = device_count(run_log), replica_count(run_log)
    if devices < 2:
        return None
    total = flops_per_s * replicas
    return say(
        "mfu-wrong-peak.evidence.together",
        devices=devices,
        total_flops_per_s=total,
        device_flops_per_s=total / devices,
    )


def _rate_message(mfu: float, peak: float) -> Message:
    return say(
        "mfu-wrong-peak.evidence.rate",
        mfu_percent=mfu,
        peak_flops_per_s=peak,
        flops_per_s=mfu / 100 * peak,
    )
