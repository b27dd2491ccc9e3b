"""One of the runs compared: its log, what follows from it (size, FLOPs, speed), and its label "A", "B" …

runs, loss_kind = make_compared_runs([(log_a, facts_a), (log_b, facts_b)], card=None)
runs[0].metrics.tokens_per_s
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from glassgpt.compare.loss_curve import LossCurve, finite_positive, training_curve, validation_curve
from glassgpt.estimate import flops
from glassgpt.estimate.cards import Card
from glassgpt.runs.facts import Facts, compute_facts, parameters_without_positions
from glassgpt.runs.inference import (
    MAX_FLOPS_ERROR,
    InferredFlops,
    attention_flops,
    device_count,
    infer_flops_per_token,
    mismatching_parameters,
    parameters_from_flops,
    stated_peak_flops,
)
from glassgpt.runs.noise import (
    EvalNoise,
    estimate_eval_noise,
    noise_from_scatter,
    tokens_per_eval,
)
from glassgpt.runs.numbers import MAX_COUNT
from glassgpt.runs.run_log import RunLog, Steps
from glassgpt.runs.trajectory import (
    Trajectory,
    continues_previous,
    positive_int_setting,
    settings_product,
    trajectory_of,
)

LossKind = Literal["validation", "training"]
SizeSource = Literal["stated", "shape", "inferred"]
PeakSource = Literal["card", "common", "own"]

# Relative: two figures of FLOPs per token this close agree, and the more exact one is taken.
_FLOPS_TOLERANCE = 0.07


@dataclass(frozen=True)
class Claim:
    """One sentence of the verdict, and the numbers it rests on."""

    id: str
    labels: tuple[str, ...]  # of the runs it is about
    sentence: str
    details: tuple[str, ...] = ()  # one sentence each

    def as_dict(self) -> dict[str, object]:
        return {
            "id": self.id,
            "runs": list(self.labels),
            "claim": self.sentence,
            "details": list(self.details),
        }


@dataclass(frozen=True)
class ModelSize:
    parameters: int | None = None
    parameters_source: SizeSource | None = None
    parameters_stated: int | None = None
    flops_per_token: float | None = None
    flops_source: SizeSource | None = None
    is_contradicted: bool = False  # the log's own MFU and step times imply another size than the stated one


@dataclass(frozen=True)
class MfuPeak:
    """The FLOP/s that count as 100% MFU of one device."""

    flops: float
    source: PeakSource
    name: str = ""  # of the card


@dataclass(frozen=True)
class DerivedMetrics:
    """What follows from a run's settings and step times. None: unknown."""

    size: ModelSize
    tokens_per_iteration: int | None
    iterations: int | None
    tokens_seen: int | None
    tokens_of_this_run: float | None  # without those of a run that it was initialised from
    total_flops: float | None
    steady_ms: float | None
    tokens_per_s: float | None
    achieved_tflops: float | None  # of all devices together
    peak: MfuPeak | None
    mfu: float | None  # percent of `peak`
    overhead_share: float | None
    time_s: float | None


@dataclass(frozen=True)
class ComparedRun:
    label: str  # "A", as in the flag --a.n_layer=12
    log: RunLog  # of the last run in the log
    facts: Facts
    trajectory: Trajectory
    metrics: DerivedMetrics
    curve: LossCurve
    noise: EvalNoise | None
    has_shared_eval_tokens: bool = False  # all compared runs evaluate the same tokens
    runs_in_log: int = 1

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


def make_compared_runs(
    runs: Sequence[tuple[RunLog, Facts]], card: Card | None
) -> tuple[list[ComparedRun], LossKind]:
    """All with the same kind of loss: validation losses if every run has them, else training losses if every
    run has those."""
    last_runs = [select_last_run(run_log, facts) for run_log, facts in runs]
    logs = [run_log for run_log, _ in last_runs]
    trajectories = [trajectory_of(run_log) for run_log in logs]
    metrics = [
        derive_metrics(run_log, facts, peak)
        for (run_log, facts), peak in zip(last_runs, mfu_peaks(logs, card), strict=True)
    ]
    inputs = [
        (run_log, trajectory, facts, derived.tokens_per_iteration, derived.size.flops_per_token)
        for (run_log, facts), trajectory, derived in zip(last_runs, trajectories, metrics, strict=True)
    ]
    loss_kind: LossKind = "validation"
    curves = [validation_curve(*values) for values in inputs]
    if not all(len(curve) for curve in curves):
        training_curves = [training_curve(*values) for values in inputs]
        if all(len(curve) for curve in training_curves):
            loss_kind, curves = "training", training_curves
    has_shared_eval_tokens = loss_kind == "validation" and _share_eval_tokens(logs)
    compared = []
    for index, (run_log, facts) in enumerate(last_runs):
        curve, trajectory = curves[index], trajectories[index]
        if has_shared_eval_tokens:
            noise = noise_from_scatter(curve.losses)
        elif loss_kind == "training":
            noise = None if curve.point_std is None else EvalNoise(curve.point_std, "scatter")
        else:
            noise = estimate_eval_noise(run_log, trajectory.evals, trajectory.finite_losses()[1])
        compared.append(
            ComparedRun(
                run_label(index), run_log, facts, trajectory, metrics[index], curve, noise,
                has_shared_eval_tokens, count_runs(runs[index][0]),
            )
        )  # fmt: skip
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


# --- the last run of a log ---


def count_runs(run_log: RunLog) -> int:
    """Runs in the log, those of other trainers before it in the same file included."""
    return len(_run_start_segments(run_log)) + sum(count_runs(earlier) for earlier in run_log.earlier_runs)


def select_last_run(run_log: RunLog, facts: Facts) -> tuple[RunLog, Facts]:
    """The last run in the log, and its facts. Settings in a log describe the run that follows, so those that
    are known are the last run's."""
    start = _run_start_segments(run_log)[-1]
    if not start:
        return run_log, facts
    columns = {field.name: getattr(run_log.steps, field.name) for field in fields(Steps)}
    rows = run_log.steps.segment >= start
    columns = {name: None if column is None else column[rows] for name, column in columns.items()}
    last_run = replace(
        run_log,
        steps=Steps(**columns | {"segment": columns["segment"] - start}),
        evals=tuple(
            replace(evaluation, segment=evaluation.segment - start)
            for evaluation in run_log.evals
            if evaluation.segment >= start
        ),
        checkpoints=tuple(
            replace(save, segment=save.segment - start)
            for save in run_log.checkpoints
            if save.segment >= start
        ),
        segments=run_log.segments[start:],
        first_update_ms=None,  # of the first process
    )
    return last_run, compute_facts(last_run)


def _run_start_segments(run_log: RunLog) -> list[int]:
    """The first segment of each run. A segment that logged nothing starts none; a journal has one run."""
    if run_log.trainer.one_run_per_log:
        return [0]
    logged = {int(segment) for segment in np.unique(run_log.steps.segment)}
    logged |= {evaluation.segment for evaluation in run_log.evals}
    starts = [
        segment
        for segment in range(1, len(run_log.segments))
        if segment in logged and not continues_previous(run_log, segment)
    ]
    has_earlier_run = any(segment in logged for segment in range(starts[0])) if starts else True
    return [0, *starts] if has_earlier_run else starts


# --- speed and FLOPs ---


def derive_metrics(run_log: RunLog, facts: Facts, peak: MfuPeak | None) -> DerivedMetrics:
    tokens_per_iteration = find_tokens_per_iteration(run_log, facts)
    size = estimate_model_size(run_log, facts, tokens_per_iteration)
    iterations, tokens_seen = facts.last_iteration, None
    if iterations is not None and iterations >= 0:
        seen_at = run_log.tokens_seen_at(np.array([iterations]), tokens_per_iteration)
        tokens_seen = None if seen_at is None else round(float(seen_at[0]))
    tokens_of_this_run = run_log.tokens_of_this_run()
    steady_ms = finite_positive(facts.steady_ms)
    tokens_per_s = finite_positive(facts.tokens_per_s)
    if tokens_per_s is None and tokens_per_iteration and steady_ms:
        tokens_per_s = finite_positive(tokens_per_iteration / steady_ms * 1000)

    devices = device_count(run_log)
    stated_peak, stated_mfu = stated_peak_flops(run_log), finite_positive(facts.mfu_reported_steady)
    if size.flops_per_token and tokens_per_s:
        achieved_tflops = finite_positive(size.flops_per_token * tokens_per_s / 1e12)
    elif stated_mfu and stated_peak:
        achieved_tflops = finite_positive(stated_mfu / 100 * stated_peak * devices / 1e12)
    else:
        achieved_tflops = finite_positive(facts.achieved_tflops)
    overhead = facts.overhead_share
    return DerivedMetrics(
        size=size,
        tokens_per_iteration=tokens_per_iteration,
        iterations=iterations,
        tokens_seen=tokens_seen,
        tokens_of_this_run=tokens_seen if tokens_of_this_run is None else tokens_of_this_run,
        total_flops=(
            tokens_seen * size.flops_per_token if tokens_seen is not None and size.flops_per_token else None
        ),
        steady_ms=steady_ms,
        tokens_per_s=tokens_per_s,
        achieved_tflops=achieved_tflops,
        peak=peak,
        mfu=100 * achieved_tflops * 1e12 / (peak.flops * devices) if achieved_tflops and peak else None,
        overhead_share=overhead if overhead is not None and 0 <= overhead <= 1 else None,
        time_s=finite_positive(facts.estimated_total_s),
    )


def find_tokens_per_iteration(run_log: RunLog, facts: Facts) -> int | None:
    """From the facts, else from the settings if the trainer's iterations are whole batches."""
    if facts.tokens_per_iteration:
        return facts.tokens_per_iteration if 0 < facts.tokens_per_iteration < MAX_COUNT else None
    if run_log.trainer.steps_are_micro_batches:
        return None
    batch_tokens = positive_int_setting(run_log, "batch_tokens")
    return batch_tokens or settings_product(
        run_log, "batch_size", "gradient_accumulation_steps", "block_size"
    )


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


# --- model size ---


def estimate_model_size(run_log: RunLog, facts: Facts, tokens_per_iteration: int | None) -> ModelSize:
    """Parameters and FLOPs per token. Where the log's MFU and step times contradict the stated size, the size
    that they imply is taken."""
    stated = parameters_without_positions(run_log) or facts.parameters
    stated = stated if stated and 0 < stated < MAX_COUNT else None
    from_shape = _parameters_of_shape(run_log)
    claimed = from_shape or stated
    inferred = infer_flops_per_token(run_log, tokens_per_iteration)
    if inferred is not None and not inferred.relative_error <= MAX_FLOPS_ERROR:
        inferred = None
    real = mismatching_parameters(run_log, claimed, inferred) if inferred else None
    if inferred and real:
        return ModelSize(
            real, "inferred", claimed, inferred.flops_per_token, "inferred", is_contradicted=True
        )
    flops_per_token, source = _choose_flops_per_token(
        run_log, facts, claimed, from_shape is not None, inferred
    )
    if stated or from_shape:
        parameters_source: SizeSource = "stated" if stated else "shape"
        return ModelSize(stated or from_shape, parameters_source, stated, flops_per_token, source)
    implied = parameters_from_flops(inferred.flops_per_token, run_log) if inferred else None
    return ModelSize(implied, "inferred" if implied else None, None, flops_per_token, source)


def _choose_flops_per_token(
    run_log: RunLog, facts: Facts, parameters: int | None, is_exact: bool, inferred: InferredFlops | None
) -> tuple[float | None, SizeSource | None]:
    """The most exact figure that the log supports. `is_exact`: `parameters` were counted from the shape."""
    stated = finite_positive(run_log.setup.flops_per_token)
    if stated:
        return stated, "stated"
    attention = attention_flops(run_log)
    from_parameters = 6.0 * parameters + attention if parameters and attention else None
    if from_parameters and is_exact:
        return from_parameters, "shape"
    from_mfu = finite_positive(inferred.flops_per_token) if inferred else None
    if from_mfu and from_parameters is None:
        return from_mfu, "inferred"
    if from_mfu and from_parameters:
        # Only figures by one formula can agree.
        is_close = abs(from_parameters / from_mfu - 1) <= _FLOPS_TOLERANCE
        if run_log.trainer.mfu_counts_palm_flops and is_close:
            return from_mfu, "inferred"
    if from_parameters:
        return from_parameters, "stated"
    from_facts = finite_positive(facts.flops_per_token)
    return from_facts, "stated" if from_facts else None


def _parameters_of_shape(run_log: RunLog) -> int | None:
    """Without positions, counted from the settings of a GPT-2-shaped model."""
    settings = run_log.setup.settings
    vocab_size = positive_int_setting(run_log, "vocab_size") or run_log.setup.data.get("vocab_size")
    block_size, n_layer, n_embd = (
        positive_int_setting(run_log, name) for name in ("block_size", "n_layer", "n_embd")
    )
    if not run_log.trainer.is_gpt2_shaped or not isinstance(vocab_size, int):
        return None
    if not (block_size and n_layer and n_embd and 0 < vocab_size < MAX_COUNT):
        return None
    return flops.count_parameters(
        vocab_size=vocab_size,
        block_size=block_size,
        n_layer=n_layer,
        n_embd=n_embd,
        arch=str(settings.get("arch") or "gpt2"),
        bias=settings.get("bias") is True,
        positions=False,
        tied=settings.get("tie_embeddings") is not False,
    )
