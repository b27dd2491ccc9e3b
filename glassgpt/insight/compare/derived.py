"""What follows from a run's settings and times: its size, its arithmetic, its speed. None: cannot be told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassgpt.account import flops
from glassgpt.account.hardware import Card
from glassgpt.insight.facts import Facts
from glassgpt.insight.history import History
from glassgpt.insight.inference import (
    attention_flops,
    counts_as_nanogpt,
    inferred_flops_per_token,
    parameters_behind,
    stated_peak,
)

Source = Literal["stated", "shape", "inferred"]
PeakSource = Literal["card", "common", "own"]

_CONTRADICTION = 0.05  # further apart than rounding and conventions explain
_GPT2_SHAPED = (
    "nanogpt",
    "build-nanogpt",
    "glassgpt",
)  # whose parameters follow from width, depth, vocabulary


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
    size = model_size(history, facts)
    iterations = facts.last_iteration
    seen = iterations * tokens if iterations is not None and tokens else None
    rate = facts.tokens_per_s
    if rate is None and tokens and facts.steady_ms:
        rate = tokens / facts.steady_ms * 1000
    achieved = _achieved(history, facts, size, rate)
    devices = history.setup.world_size or 1
    return Derived(
        size=size,
        tokens_per_iteration=tokens,
        iterations=iterations,
        tokens_seen=seen,
        total_flops=_product(seen, size.flops_per_token),
        steady_ms=facts.steady_ms,
        tokens_per_s=rate,
        achieved_tflops=achieved,
        peak=peak,
        mfu=100 * achieved * 1e12 / (peak.flops * devices) if achieved and peak else None,
        overhead_share=facts.overhead_share,
        time_s=facts.estimated_total_s,
    )


def _product(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left * right


def _achieved(history: History, facts: Facts, size: Size, rate: float | None) -> float | None:
    if size.flops_per_token and rate:
        return size.flops_per_token * rate / 1e12
    peak = stated_peak(history)
    if facts.mfu_reported_steady and peak:
        return facts.mfu_reported_steady / 100 * peak * (history.setup.world_size or 1) / 1e12
    return facts.achieved_tflops


def tokens_per_iteration(history: History, facts: Facts) -> int | None:
    if facts.tokens_per_iteration:
        return facts.tokens_per_iteration
    if history.setup.tokens_per_iteration:
        return history.setup.tokens_per_iteration
    total = positive(history, "batch_tokens")
    if total:
        return total
    sides = [positive(history, name) for name in ("batch_size", "gradient_accumulation_steps", "block_size")]
    known = [side for side in sides if side]
    return math.prod(known) if len(known) == 3 else None


def positive(history: History, name: str) -> int | None:
    """A setting that is a count."""
    value = history.setup.settings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


# --- how large the model is ---


def model_size(history: History, facts: Facts) -> Size:
    """Parameters and FLOPs per token. What the log's MFU and times imply decides where a stated size is
    rounded or wrong; what the log says about FLOPs itself comes first."""
    stated = history.setup.parameters
    shaped = _parameters_of_shape(history)
    inferred = inferred_flops_per_token(history, facts)
    claimed = shaped or stated
    attention = attention_flops(history)
    by_claim = 6.0 * claimed + attention if claimed and attention else None
    if by_claim and not counts_as_nanogpt(history):
        inferred = None  # by another formula; only figures by one compare
    contradicted = by_claim is not None and inferred is not None and _contradict(history, by_claim, inferred)
    if contradicted and inferred is not None:
        hidden = parameters_behind(inferred, history)
        return Size(hidden, "inferred", claimed, inferred, "inferred", contradicted=True)
    value, source = _flops(history, facts, shaped, by_claim, inferred)
    parameters: int | None = stated or shaped or facts.parameters
    parameters_source: Source | None = "stated" if stated else "shape" if shaped else None
    if parameters is None and inferred is not None:
        parameters, parameters_source = parameters_behind(inferred, history), "inferred"
    if parameters is not None and parameters_source is None:
        parameters_source = "stated"
    return Size(parameters, parameters_source if parameters else None, stated, value, source)


def _flops(
    history: History, facts: Facts, shaped: int | None, by_claim: float | None, inferred: float | None
) -> tuple[float | None, Source | None]:
    if history.setup.flops_per_token:
        return history.setup.flops_per_token, "stated"
    if shaped and by_claim:
        return by_claim, "shape"
    if inferred is not None and not _is_multiple(history, by_claim, inferred):
        return inferred, "inferred"
    if by_claim:
        return by_claim, "stated"
    return (facts.flops_per_token, "stated") if facts.flops_per_token else (None, None)


def _contradict(history: History, claimed: float, inferred: float) -> bool:
    return abs(claimed / inferred - 1) > _CONTRADICTION and not _is_multiple(history, claimed, inferred)


def _is_multiple(history: History, claimed: float | None, inferred: float) -> bool:
    """Several devices that the log does not mention make the MFU of one look like a smaller model."""
    if claimed is None or history.setup.world_size is not None:
        return False
    ratio = claimed / inferred
    return round(ratio) >= 2 and abs(ratio / round(ratio) - 1) < 0.03


def _parameters_of_shape(history: History) -> int | None:
    names = ("vocab_size", "block_size", "n_layer", "n_embd")
    sides = {name: positive(history, name) for name in names}
    vocabulary = sides["vocab_size"] or history.setup.data.get("vocab_size")
    if history.format.name not in _GPT2_SHAPED or not isinstance(vocabulary, int):
        return None
    block_size, n_layer, n_embd = sides["block_size"], sides["n_layer"], sides["n_embd"]
    if not (block_size and n_layer and n_embd):
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
