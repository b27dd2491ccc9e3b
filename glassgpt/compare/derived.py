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
    MAX_ERROR,
    Inference,
    attention_flops,
    contradicting_parameters,
    devices,
    infer_from,
    parameters_behind,
    stated_peak,
)
from glassgpt.runs.run_log import History

Source = Literal["stated", "shape", "inferred"]
PeakSource = Literal["card", "common", "own"]

_CLOSE = 0.07  # of the FLOPs per token: near enough that the more exact of two figures may stand for both
_LARGEST = 10**15  # a setting beyond is no size of anything, and its products are no floats


@dataclass(frozen=True)
class Size:
    parameters: int | None = None
    parameters_source: Source | None = None
    parameters_stated: int | None = None
    flops_per_token: float | None = None
    flops_source: Source | None = None
    contradicted: bool = False  # the log's own MFU and times say that the stated size is wrong


@dataclass(frozen=True)
class Peak:
    """What counts as 100 % for one device."""

    flops: float
    source: PeakSource
    name: str = ""  # of the card


@dataclass(frozen=True)
class Derived:
    size: Size
    tokens_per_iteration: int | None
    iterations: int | None
    tokens_seen: int | None
    tokens_here: float | None  # of them by this run itself, and not by one that it took over
    total_flops: float | None
    steady_ms: float | None
    tokens_per_s: float | None
    achieved_tflops: float | None  # of all devices together
    peak: Peak | None
    mfu: float | None  # percent of that peak
    overhead_share: float | None
    time_s: float | None


def derive(history: History, facts: Facts, peak: Peak | None) -> Derived:
    tokens = tokens_per_iteration(history, facts)
    size = model_size(history, facts, tokens)
    iterations = facts.last_iteration
    seen = _tokens_seen(history, tokens, iterations) if iterations is not None and iterations >= 0 else None
    here = history.own_tokens()
    steady_ms = usable(facts.steady_ms)
    rate = usable(facts.tokens_per_s) or (usable(tokens / steady_ms * 1000) if tokens and steady_ms else None)
    achieved = _achieved(history, facts, size, rate)
    return Derived(
        size=size,
        tokens_per_iteration=tokens,
        iterations=iterations,
        tokens_seen=seen,
        tokens_here=seen if here is None else here,
        total_flops=seen * size.flops_per_token if seen is not None and size.flops_per_token else None,
        steady_ms=steady_ms,
        tokens_per_s=rate,
        achieved_tflops=achieved,
        peak=peak,
        mfu=100 * achieved * 1e12 / (peak.flops * devices(history)) if achieved and peak else None,
        overhead_share=_share(facts.overhead_share),
        time_s=usable(facts.estimated_total_s),
    )


def _tokens_seen(history: History, tokens_per_iteration: int | None, iterations: int) -> int | None:
    seen = history.tokens_seen(np.array([iterations]), tokens_per_iteration)
    return None if seen is None else round(float(seen[0]))


def usable(value: float | None) -> float | None:
    """A quantity that can be divided by and written down: neither 0 nor negative, neither NaN nor endless."""
    return value if value is not None and 1e-300 < value < 1e30 else None


def _share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 1 else None


def _achieved(history: History, facts: Facts, size: Size, rate: float | None) -> float | None:
    if size.flops_per_token and rate:
        return usable(size.flops_per_token * rate / 1e12)
    peak, mfu = stated_peak(history), usable(facts.mfu_reported_steady)
    if mfu and peak:
        return usable(mfu / 100 * peak * devices(history) / 1e12)
    return usable(facts.achieved_tflops)


def tokens_per_iteration(history: History, facts: Facts) -> int | None:
    """As facts has it; else of any trainer whose iterations are whole batches, by its settings."""
    if facts.tokens_per_iteration:
        return facts.tokens_per_iteration if 0 < facts.tokens_per_iteration < _LARGEST else None
    if history.trainer.steps_are_micro_batches:
        return None
    total = positive(history, "batch_tokens")
    if total:
        return total
    sides = [positive(history, name) for name in ("batch_size", "gradient_accumulation_steps", "block_size")]
    known = [side for side in sides if side]
    return math.prod(known) if len(known) == 3 else None


def positive(history: History, name: str) -> int | None:
    """A setting that is a count."""
    value = history.setup.settings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST else None


# --- how large the model is ---


def model_size(history: History, facts: Facts, tokens: int | None) -> Size:
    """Parameters and FLOPs per token. What the log's MFU and times imply decides where a stated size is
    rounded or wrong; what the log says about FLOPs itself comes first."""
    stated, shaped = _stated_parameters(history, facts), _parameters_of_shape(history)
    claimed = shaped or stated
    found = infer_from(history, tokens)
    if found is not None and not found.error <= MAX_ERROR:
        found = None
    hidden = contradicting_parameters(history, claimed, found) if found else None
    if found and hidden:
        return Size(hidden, "inferred", claimed, found.flops_per_token, "inferred", contradicted=True)
    value, source = _flops(history, facts, claimed, shaped is not None, found)
    if stated or shaped:
        return Size(stated or shaped, "stated" if stated else "shape", stated, value, source)
    implied = parameters_behind(found.flops_per_token, history) if found else None
    return Size(implied, "inferred" if implied else None, None, value, source)


def _stated_parameters(history: History, facts: Facts) -> int | None:
    """Without positions, where the log tells them apart."""
    counted = parameters_without_positions(history) or facts.parameters
    return counted if counted and 0 < counted < _LARGEST else None


def _flops(
    history: History, facts: Facts, claimed: int | None, exact: bool, found: Inference | None
) -> tuple[float | None, Source | None]:
    said = usable(history.setup.flops_per_token)
    if said:
        return said, "stated"
    attention = attention_flops(history)
    by_claim = 6.0 * claimed + attention if claimed and attention else None
    if by_claim and exact:
        return by_claim, "shape"
    inferred = usable(found.flops_per_token) if found else None
    if inferred and (by_claim is None or _agree(history, by_claim, inferred)):
        return inferred, "inferred"
    if by_claim:
        return by_claim, "stated"
    other = usable(facts.flops_per_token)
    return other, "stated" if other else None


def _agree(history: History, claimed: float, inferred: float) -> bool:
    """Only figures by one formula do."""
    return history.trainer.mfu_counts_palm_flops and abs(claimed / inferred - 1) <= _CLOSE


def _parameters_of_shape(history: History) -> int | None:
    names = ("vocab_size", "block_size", "n_layer", "n_embd")
    sides = {name: positive(history, name) for name in names}
    vocabulary = sides["vocab_size"] or history.setup.data.get("vocab_size")
    if not history.trainer.is_gpt2_shaped or not isinstance(vocabulary, int):
        return None
    block_size, n_layer, n_embd = sides["block_size"], sides["n_layer"], sides["n_embd"]
    if not (block_size and n_layer and n_embd and 0 < vocabulary < _LARGEST):
        return None
    settings = history.setup.settings
    return flops.parameters(
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


def peaks(histories: Sequence[History], card: Card | None) -> list[Peak | None]:
    """One for all where there is one: the card asked for, or what every log assumes; else each its own."""
    if card is not None:
        value = next(
            (card.peaks[dtype] for dtype in ("bfloat16", "float16", "float32") if dtype in card.peaks), 0
        )
        return [Peak(value, "card", card.name) if value else None] * len(histories)
    stated = [stated_peak(history) for history in histories]
    source: PeakSource = "common" if len(set(stated)) == 1 else "own"
    return [Peak(value, source) if value else None for value in stated]
