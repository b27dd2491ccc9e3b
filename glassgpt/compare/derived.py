"""What follows from a run's settings and times: its size, its arithmetic, its speed. None: cannot be told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.estimate import flops
from glassgpt.estimate.cards import Card
from glassgpt.runs.facts import Facts, parameters_without_positions
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
from glassgpt.runs.run_log import RunLog

SizeSource = Literal["stated", "shape", "inferred"]
PeakSource = Literal["card", "common", "own"]

_FLOPS_TOLERANCE = (
    0.07  # of the FLOPs per token: near enough that the more exact of two figures may stand for both
)
_MAX_SETTING = 10**15  # a setting beyond is no size of anything, and its products are no floats


@dataclass(frozen=True)
class ModelSize:
    parameters: int | None = None
    parameters_source: SizeSource | None = None
    parameters_stated: int | None = None
    flops_per_token: float | None = None
    flops_source: SizeSource | None = None
    is_contradicted: bool = False  # the log's own MFU and times say that the stated size is wrong


@dataclass(frozen=True)
class MfuPeak:
    """What counts as 100 % for one device."""

    flops: float
    source: PeakSource
    name: str = ""  # of the card


@dataclass(frozen=True)
class DerivedMetrics:
    size: ModelSize
    tokens_per_iteration: int | None
    iterations: int | None
    tokens_seen: int | None
    tokens_of_this_run: float | None  # of them by this run itself, and not by one that it took over
    total_flops: float | None
    steady_ms: float | None
    tokens_per_s: float | None
    achieved_tflops: float | None  # of all devices together
    peak: MfuPeak | None
    mfu: float | None  # percent of that peak
    overhead_share: float | None
    time_s: float | None


def derive_metrics(history: RunLog, facts: Facts, peak: MfuPeak | None) -> DerivedMetrics:
    tokens = find_tokens_per_iteration(history, facts)
    size = estimate_model_size(history, facts, tokens)
    iterations = facts.last_iteration
    seen = _tokens_seen(history, tokens, iterations) if iterations is not None and iterations >= 0 else None
    here = history.tokens_of_this_run()
    steady_ms = finite_positive(facts.steady_ms)
    rate = finite_positive(facts.tokens_per_s) or (
        finite_positive(tokens / steady_ms * 1000) if tokens and steady_ms else None
    )
    achieved = _achieved(history, facts, size, rate)
    return DerivedMetrics(
        size=size,
        tokens_per_iteration=tokens,
        iterations=iterations,
        tokens_seen=seen,
        tokens_of_this_run=seen if here is None else here,
        total_flops=seen * size.flops_per_token if seen is not None and size.flops_per_token else None,
        steady_ms=steady_ms,
        tokens_per_s=rate,
        achieved_tflops=achieved,
        peak=peak,
        mfu=100 * achieved * 1e12 / (peak.flops * device_count(history)) if achieved and peak else None,
        overhead_share=_share(facts.overhead_share),
        time_s=finite_positive(facts.estimated_total_s),
    )


def _tokens_seen(history: RunLog, tokens_per_iteration: int | None, iterations: int) -> int | None:
    seen = history.tokens_seen_at(np.array([iterations]), tokens_per_iteration)
    return None if seen is None else round(float(seen[0]))


def finite_positive(value: float | None) -> float | None:
    """A quantity that can be divided by and written down: neither 0 nor negative, neither NaN nor endless."""
    return value if value is not None and 1e-300 < value < 1e30 else None


def _share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 1 else None


def _achieved(history: RunLog, facts: Facts, size: ModelSize, rate: float | None) -> float | None:
    if size.flops_per_token and rate:
        return finite_positive(size.flops_per_token * rate / 1e12)
    peak, mfu = stated_peak_flops(history), finite_positive(facts.mfu_reported_steady)
    if mfu and peak:
        return finite_positive(mfu / 100 * peak * device_count(history) / 1e12)
    return finite_positive(facts.achieved_tflops)


def find_tokens_per_iteration(history: RunLog, facts: Facts) -> int | None:
    """As facts has it; else of any trainer whose iterations are whole batches, by its settings."""
    if facts.tokens_per_iteration:
        return facts.tokens_per_iteration if 0 < facts.tokens_per_iteration < _MAX_SETTING else None
    if history.trainer.steps_are_micro_batches:
        return None
    total = bounded_int_setting(history, "batch_tokens")
    if total:
        return total
    sides = [
        bounded_int_setting(history, name)
        for name in ("batch_size", "gradient_accumulation_steps", "block_size")
    ]
    known = [side for side in sides if side]
    return math.prod(known) if len(known) == 3 else None


def bounded_int_setting(history: RunLog, name: str) -> int | None:
    """A setting that is a count."""
    value = history.setup.settings.get(name)
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_SETTING else None
    )


# --- how large the model is ---


def estimate_model_size(history: RunLog, facts: Facts, tokens: int | None) -> ModelSize:
    """Parameters and FLOPs per token. What the log's MFU and times imply decides where a stated size is
    rounded or wrong; what the log says about FLOPs itself comes first."""
    stated, shaped = _stated_parameters(history, facts), _parameters_of_shape(history)
    claimed = shaped or stated
    found = infer_flops_per_token(history, tokens)
    if found is not None and not found.relative_error <= MAX_FLOPS_ERROR:
        found = None
    hidden = mismatching_parameters(history, claimed, found) if found else None
    if found and hidden:
        return ModelSize(hidden, "inferred", claimed, found.flops_per_token, "inferred", is_contradicted=True)
    value, source = _choose_flops_per_token(history, facts, claimed, shaped is not None, found)
    if stated or shaped:
        return ModelSize(stated or shaped, "stated" if stated else "shape", stated, value, source)
    implied = parameters_from_flops(found.flops_per_token, history) if found else None
    return ModelSize(implied, "inferred" if implied else None, None, value, source)


def _stated_parameters(history: RunLog, facts: Facts) -> int | None:
    """Without positions, where the log tells them apart."""
    counted = parameters_without_positions(history) or facts.parameters
    return counted if counted and 0 < counted < _MAX_SETTING else None


def _choose_flops_per_token(
    history: RunLog, facts: Facts, claimed: int | None, exact: bool, found: InferredFlops | None
) -> tuple[float | None, SizeSource | None]:
    said = finite_positive(history.setup.flops_per_token)
    if said:
        return said, "stated"
    attention = attention_flops(history)
    by_claim = 6.0 * claimed + attention if claimed and attention else None
    if by_claim and exact:
        return by_claim, "shape"
    inferred = finite_positive(found.flops_per_token) if found else None
    if inferred and (by_claim is None or _agree(history, by_claim, inferred)):
        return inferred, "inferred"
    if by_claim:
        return by_claim, "stated"
    other = finite_positive(facts.flops_per_token)
    return other, "stated" if other else None


def _agree(history: RunLog, claimed: float, inferred: float) -> bool:
    """Only figures by one formula do."""
    return history.trainer.mfu_counts_palm_flops and abs(claimed / inferred - 1) <= _FLOPS_TOLERANCE


def _parameters_of_shape(history: RunLog) -> int | None:
    names = ("vocab_size", "block_size", "n_layer", "n_embd")
    sides = {name: bounded_int_setting(history, name) for name in names}
    vocabulary = sides["vocab_size"] or history.setup.data.get("vocab_size")
    if not history.trainer.is_gpt2_shaped or not isinstance(vocabulary, int):
        return None
    block_size, n_layer, n_embd = sides["block_size"], sides["n_layer"], sides["n_embd"]
    if not (block_size and n_layer and n_embd and 0 < vocabulary < _MAX_SETTING):
        return None
    settings = history.setup.settings
    return flops.count_parameters(
        vocab_size=vocabulary,
        block_size=block_size,
        n_layer=n_layer,
        n_embd=n_embd,
        arch=str(settings.get("arch") or "gpt2"),
        bias=settings.get("bias") is True,
        positions=False,
        tied=settings.get("tie_embeddings") is not False,
    )


# --- what 100 % is ---


def mfu_peaks(histories: Sequence[RunLog], card: Card | None) -> list[MfuPeak | None]:
    """One for all where there is one: the card asked for, or what every log assumes; else each its own."""
    if card is not None:
        value = next(
            (card.peaks[dtype] for dtype in ("bfloat16", "float16", "float32") if dtype in card.peaks), 0
        )
        return [MfuPeak(value, "card", card.name) if value else None] * len(histories)
    stated = [stated_peak_flops(history) for history in histories]
    source: PeakSource = "common" if len(set(stated)) == 1 else "own"
    return [MfuPeak(value, source) if value else None for value in stated]
