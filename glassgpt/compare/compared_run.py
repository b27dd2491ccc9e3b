"""One of the runs compared: what follows from its log, its loss curve, and its label "A", "B" …

runs, loss_kind = make_compared_runs([log_a, log_b], card=None)
runs[0].analysis.tokens_per_s
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassgpt.compare.loss_curve import LossCurve, LossKind, batch_curve, training_curve, validation_curve
from glassgpt.estimate.cards import Card
from glassgpt.i18n import Message, Text, message_values
from glassgpt.runs.analysis import MIN_MFU, Analysis
from glassgpt.runs.model_size import device_count, iteration_flops_bounds, nearest_multiple, stated_peak_flops
from glassgpt.runs.noise import EvalNoise, noise_from_scatter, tokens_per_eval
from glassgpt.runs.run_log import RunLog

_SAME_PEAK_TOLERANCE = 0.01  # relative, of two peaks
_MIN_WORK_RATIO = 1.5  # of the FLOPs of an iteration, beyond rounding: then it is other work

PeakSource = Literal["card", "common", "own"]

# Claims about why one run is faster or better, or what is not the reason.
# fmt: off
_CAUSE_CLAIMS = frozenset((
    "faster-by-rate", "faster-by-size", "different-work", "better-because", "better-in-spite", "better-open",
    "better-unexplained", "iterations-cause", "iterations-not-cause", "tokens-cause", "tokens-not-cause",
    "hardware-not-cause", "micro-batch-not-cause", "mfu-is-not-speed",
))
# fmt: on


@dataclass(frozen=True)
class Claim:
    """One sentence of the verdict, and the numbers it rests on."""

    id: str
    labels: tuple[str, ...]  # of the runs it is about
    message: Message
    detail_messages: Text = ()

    @property
    def is_about_causes(self) -> bool:
        return self.id in _CAUSE_CLAIMS

    @property
    def sentence(self) -> str:
        return str(self.message)

    @property
    def details(self) -> tuple[str, ...]:
        return tuple(map(str, self.detail_messages))

    @property
    def values(self) -> dict[str, object]:
        return message_values((self.message, *self.detail_messages))

    def as_dict(self) -> dict[str, object]:
        return {
            "id": self.id,
            "runs": list(self.labels),
            "claim": self.sentence,
            "details": list(self.details),
            "values": self.values,
        }


@dataclass(frozen=True)
class MfuPeak:
    """The FLOP/s that count as 100% MFU of one device."""

    flops: float
    source: PeakSource
    name: str = ""  # of the card


@dataclass(frozen=True)
class ComparedRun:
    label: str  # "A", as in the flag --a.n_layer=12
    analysis: Analysis  # of the last run in the log
    peak: MfuPeak | None
    curve: LossCurve
    batches: LossCurve  # all logged training losses
    noise: EvalNoise | None
    has_shared_eval_tokens: bool = False  # all compared runs evaluate the same tokens
    runs_in_log: int = 1

    @property
    def log(self) -> RunLog:
        return self.analysis.log

    @property
    def mfu(self) -> float | None:
        """Percent of `peak`."""
        tflops = self.analysis.achieved_tflops
        if not tflops or not self.peak:
            return None
        return 100 * tflops * 1e12 / (self.peak.flops * self.devices)

    @property
    def device_mfu(self) -> float | None:
        """As the log prints it, of one device; without the evaluations in a running average."""
        throughput = self.analysis.throughput
        return throughput.mfu_percent if throughput else self.analysis.reported_mfu

    @property
    def devices(self) -> int:
        """As the log says; or as many as the FLOP/s of all tokens are of those that its MFU is of."""
        stated, tflops = device_count(self.log), self.analysis.achieved_tflops
        mfu, peak = self.device_mfu, stated_peak_flops(self.log)
        if stated > 1 or not tflops or not mfu or mfu < MIN_MFU or not peak:
            return stated
        return nearest_multiple(tflops * 1e12 / (mfu / 100 * peak)) or 1

    def shares_peak_with(self, other: ComparedRun) -> bool:
        """Whether the MFUs of both have one denominator."""
        ratio = safe_ratio(self.peak.flops if self.peak else None, other.peak.flops if other.peak else None)
        return ratio is not None and abs(ratio - 1) < _SAME_PEAK_TOLERANCE

    @property
    def is_whole(self) -> bool:
        """Whether its log begins at the first iteration. Of an excerpt or a tail, the totals and the best
        loss are not known."""
        log, first = self.log, self.analysis.facts.first_iteration
        if log.is_excerpt:
            return False
        if first is None or log.trainer.lines_count_updates:
            return True
        has_first_eval = len(self.curve) > 0 and int(self.curve.iterations[0]) <= log.trainer.first_iteration
        return has_first_eval or first <= log.trainer.first_iteration + (log.log_interval() or 1)

    @property
    def best(self) -> tuple[float, int] | None:
        """The lowest loss and its iteration."""
        if not len(self.curve):
            return None
        index = int(self.curve.losses.argmin())
        return float(self.curve.losses[index]), int(self.curve.iterations[index])

    @property
    def tokens_at_best(self) -> float | None:
        """Tokens seen up to the lowest loss; None: unknown."""
        tokens = self.curve.positions.get("tokens")
        return float(tokens[self.curve.losses.argmin()]) if tokens is not None and len(tokens) else None

    @property
    def last(self) -> tuple[float, int] | None:
        """The last loss and its iteration."""
        if not len(self.curve):
            return None
        return float(self.curve.losses[-1]), int(self.curve.iterations[-1])


def run_label(index: int) -> str:
    """A … Z, then AA, AB …"""
    head, tail = divmod(index, 26)
    return (run_label(head - 1) if head else "") + chr(ord("A") + tail)


def make_compared_runs(run_logs: Sequence[RunLog], card: Card | None) -> tuple[list[ComparedRun], LossKind]:
    """All with the same kind of loss: validation losses if every run has them, else training losses if every
    run has those."""
    logs = run_logs
    analyses = [Analysis(run_log) for run_log in logs]
    loss_kind: LossKind = "validation"
    curves = [validation_curve(analysis) for analysis in analyses]
    if not all(len(curve) for curve in curves):
        training_curves = [training_curve(analysis) for analysis in analyses]
        if all(len(curve) for curve in training_curves):
            loss_kind, curves = "training", training_curves
    has_shared_eval_tokens = loss_kind == "validation" and _share_eval_tokens(logs)
    compared = []
    for index, (analysis, curve, peak) in enumerate(
        zip(analyses, curves, mfu_peaks(logs, card), strict=True)
    ):
        if has_shared_eval_tokens:
            noise = noise_from_scatter(curve.losses)
        elif loss_kind == "training":
            noise = None if curve.point_std is None else EvalNoise(curve.point_std, "scatter")
        else:
            noise = analysis.eval_noise_across_runs
        runs_in_log = run_logs[index].runs_in_file
        compared.append(
            ComparedRun(
                run_label(index),
                analysis,
                peak,
                curve,
                batch_curve(analysis),
                noise,
                has_shared_eval_tokens,
                runs_in_log,
            )
        )
    return compared, loss_kind


def _share_eval_tokens(logs: Sequence[RunLog]) -> bool:
    """Whether all runs evaluate the same fixed tokens, as GlassGPT does. Then the noise of these tokens is in
    all of the losses, and their difference is more certain than each loss."""
    hashes = {str(run_log.setup.data.get("hash") or "") for run_log in logs}
    eval_tokens = {tokens_per_eval(run_log) for run_log in logs}
    is_fixed = all(run_log.trainer.evaluates_same_tokens for run_log in logs)
    return (
        is_fixed
        and len(hashes) == 1
        and "" not in hashes
        and len(eval_tokens) == 1
        and None not in eval_tokens
    )


def safe_ratio(numerator: float | None, denominator: float | None) -> float | None:
    """None where either is unknown or the ratio is not a positive number."""
    if numerator is None or not denominator:
        return None
    ratio = numerator / denominator
    return ratio if math.isfinite(ratio) and ratio > 0 else None


def work_bounds(run: ComparedRun) -> tuple[float, float] | None:
    """The least and the most FLOPs of one iteration: as the log states model and batch, or by its MFU."""
    flops, tokens = run.analysis.size.flops_per_token, run.analysis.tokens_per_iteration
    if flops and tokens:
        return flops * tokens, flops * tokens
    if work := run.analysis.iteration_flops:
        return work.flops * (1 - work.relative_error), work.flops * (1 + work.relative_error)
    return iteration_flops_bounds(run.log)


def least_work_ratio(first: ComparedRun, other: ComparedRun) -> float | None:
    """How many times the FLOPs an iteration of one run takes at least of one of the other, whatever the
    rounding of their MFU; None where it may be the same work."""
    bounds = [work_bounds(run) for run in (first, other)]
    if bounds[0] is None or bounds[1] is None:
        return None
    small, large = sorted((bounds[0], bounds[1]))
    ratio = safe_ratio(large[0], small[1])
    return ratio if ratio is not None and ratio >= _MIN_WORK_RATIO else None


# --- the peak ---


def mfu_peaks(logs: Sequence[RunLog], card: Card | None) -> list[MfuPeak | None]:
    """One per run. The same for all with --gpu, or if all logs assume the same; else each log's own."""
    if card is not None:
        peak = next(
            (card.peaks[dtype] for dtype in ("bfloat16", "float16", "float32") if dtype in card.peaks), 0
        )
        return [MfuPeak(peak, "card", card.name) if peak else None] * len(logs)
    stated = [stated_peak_flops(run_log) for run_log in logs]
    source: PeakSource = "common" if len(set(stated)) == 1 else "own"
    return [MfuPeak(value, source) if value else None for value in stated]
