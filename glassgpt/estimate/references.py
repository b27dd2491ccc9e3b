"""How fast others were: measured rows, and from them what to expect of a card and a model. No torch.

    band = mfu_band(card, 989.4e12, Query(854_000_000, 65_536, n_layer=12, kernels="own"))
    band.low, band.mid, band.high, band.reason        # percent, and "10 rows on this card …"

`references.toml` has the rows and their sources. The rule: take the rows on the same card with a similar
model; if there are not two, those on its family of cards too, then on its kind of cards, then on any. The
band is what they reached, the farther and fewer the wider. A small model on a fast card is held up by the
launching of kernels instead: that is counted, not looked up. docs/expected.md tells it in words.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any

from glassgpt.estimate import flops, overheads
from glassgpt.estimate.cards import Card, find_card


@dataclass(frozen=True, kw_only=True)
class ReferenceModel:
    """A model, as far as its arithmetic goes."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    arch: str
    tied: bool = True

    @cached_property
    def flops_per_token(self) -> int:
        multiplied = flops.count_parameters(
            vocab_size=self.vocab_size, block_size=self.block_size, n_layer=self.n_layer, n_embd=self.n_embd,
            arch=self.arch, bias=False, positions=False, tied=self.tied, lookups=False,
        )  # fmt: skip
        return flops.flops_per_token(multiplied, self.n_layer, self.n_embd, self.block_size)


@dataclass(frozen=True, kw_only=True)
class SpeedReference:
    """One row of `references.toml`, whose head says what the fields mean."""

    name: str
    card: str
    trainer: str
    shape: ReferenceModel
    micro_batch: int
    accumulation: int
    dtype: str
    kernels: str
    source: str
    machine: str = ""
    count: int = 1
    graph: bool = False
    fp8: bool = False
    muon: bool = False
    step_ms: float | None = None
    tokens_per_s: float | None = None
    peak_gib: float | None = None
    peak_tflops: float | None = None
    tflops: float
    mfu: float | None = None
    counts: bool = True
    caution: str = ""

    @cached_property
    def query(self) -> SpeedQuery:
        """What one would have asked before that run."""
        shape = self.shape
        muon_flops = flops.muon_flops_per_update(shape.n_layer, shape.n_embd) if self.muon else 0
        return SpeedQuery(
            shape.flops_per_token,
            self.micro_batch * shape.block_size,
            n_layer=shape.n_layer,
            kernels=self.kernels,
            graph=self.graph,
            fp8=self.fp8,
            muon_flops=muon_flops / self.accumulation,
        )

    @property
    def total_tokens_per_s(self) -> float:
        """Tokens per second of all cards."""
        if self.tokens_per_s is not None:
            return self.tokens_per_s
        assert self.step_ms is not None, self.name
        tokens = self.count * self.accumulation * self.query.tokens_per_micro_batch
        return tokens / self.step_ms * 1000

    @property
    def peak_flops_per_s(self) -> float | None:
        """FLOP/s of one card; None: the source does not name it."""
        if self.peak_tflops is not None:
            return self.peak_tflops * 1e12
        found = find_card(self.card) if self.card else None
        return found.peaks[self.dtype] if found else None

    @cached_property
    def micro_batch_s(self) -> float:
        return self.query.tokens_per_micro_batch * self.count / self.total_tokens_per_s

    @cached_property
    def is_launch_bound(self) -> bool:
        """Whether the launching of kernels, not their arithmetic, set the pace: then it says nothing of the
        card's arithmetic."""
        return bool(self.card) and self.micro_batch_s < _LAUNCH_BOUND_FACTOR * expected_launch_s(self.query)


@dataclass(frozen=True)
class SpeedQuery:
    """A run of which the speed is asked."""

    flops_per_token: int
    tokens_per_micro_batch: int  # on one card
    n_layer: int = 12
    kernels: str = "own"  # "plain", "compiled", "own" or, of llm.c, "cuda"
    graph: bool = False
    fp8: bool = False
    muon_flops: float = 0.0  # per micro-batch

    @property
    def flops_per_micro_batch(self) -> float:
        """Of a micro-batch's tokens."""
        return float(self.flops_per_token) * self.tokens_per_micro_batch

    def model_time_share(self, on_a_card: bool) -> float:
        """Of the time; the rest is Muon's, felt where an update has few tokens."""
        return self.flops_per_micro_batch / (
            self.flops_per_micro_batch + (_MUON_SLOWDOWN if on_a_card else 1.0) * self.muon_flops
        )


@dataclass(frozen=True)
class MfuRange:
    """The MFU to expect, in percent of the card's peak."""

    low: float
    mid: float
    high: float
    reason: str
    rows: tuple[str, ...]  # names of the rows it comes from; none: it was counted


@cache
def reference_rows() -> tuple[SpeedReference, ...]:
    """The whole table, in file order."""
    text = (resources.files("glassgpt.estimate") / "references.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    shapes = {name: ReferenceModel(**fields) for name, fields in table["shapes"].items()}
    return tuple(_row(fields, shapes) for fields in table["row"])


def _row(fields: Mapping[str, Any], shapes: Mapping[str, ReferenceModel]) -> SpeedReference:
    return SpeedReference(**{**fields, "shape": shapes[fields["shape"]]})


# --- likeness ---

_SIMILAR_FLOPS_FACTOR = 5.0  # similar models: FLOPs per token within this factor …
_SIMILAR_TOKENS_FACTOR = 4.0  # … and tokens per micro-batch within this one
_CARD_KINDS = ("GeForce", "data centre", "professional", "Apple", "AMD")  # words in names of families


def _card_kind(family: str) -> str:
    return next((kind for kind in _CARD_KINDS if kind in family), family)


def _tier(card: Card | None, row: SpeedReference) -> int | None:
    """0: the same card, 1: its family, 2: its kind, 3: another; None: a CPU is no card, nor a card a CPU."""
    other = find_card(row.card) if row.card else None
    if card is None or other is None:
        return 0 if card is None and row.peak_tflops is not None else None
    if other.name == card.name:
        return 0
    return (
        1 if other.family == card.family else 2 if _card_kind(other.family) == _card_kind(card.family) else 3
    )


def _log_distance(one: float, other: float, factor: float) -> float:
    """1 where they differ by that factor."""
    return abs(math.log(one / other)) / math.log(factor)


def _model_distance(query: SpeedQuery, row: SpeedReference) -> float:
    other = row.query
    return math.hypot(
        _log_distance(query.flops_per_token, other.flops_per_token, _SIMILAR_FLOPS_FACTOR),
        _log_distance(query.tokens_per_micro_batch, other.tokens_per_micro_batch, _SIMILAR_TOKENS_FACTOR),
    )


def _is_similar(query: SpeedQuery, row: SpeedReference) -> bool:
    other = row.query
    return (
        _log_distance(query.flops_per_token, other.flops_per_token, _SIMILAR_FLOPS_FACTOR) <= 1
        and _log_distance(query.tokens_per_micro_batch, other.tokens_per_micro_batch, _SIMILAR_TOKENS_FACTOR)
        <= 1
    )


# --- what to expect ---

# Speed against torch.compile's, where arithmetic sets the pace: GPT-2 124M on an H200 took 48.8 ms plain and
# 32.8 ms compiled; with our kernels 115 to 118 ms where nanoGPT compiled took 125 to 129.
_KERNEL_SPEED = {"plain": 0.68, "compiled": 1.0, "own": 1.08, "cuda": 1.0}
_FP8_SPEED = 1.26  # 115.1 and 91.2 ms
# Muon's products are small, and it passes over all matrices several times: an H200 did 163 TFLOP/s of it,
# and 526 of the model's (GPT-2 124M's size: 36.6 ms with 16 sequences, 63.2 with 32, so 10.0 ms without).
_MUON_SLOWDOWN = 3.2
# A wider model computes more per byte it moves. From 71 to 855 MFLOP per token the MFU of an RTX 4070 Ti went
# from 44 to 60%, from 855 to 3492 that of an RTX 4090 from 55 to 80%: exponents of 0.13 and 0.27.
_MFU_SIZE_EXPONENT = 0.2
_MAX_SIZE_CORRECTION = 1.5  # times: nobody measured more

# How far beyond its rows a band reaches, per tier. Chosen so that leaving each row out in turn and predicting
# it from the others succeeds for at least 80% of them: tests/account/test_references.py.
_MARGIN_BY_TIER = (0.10, 0.15, 0.25, 0.35)
_CPU_MARGIN = 0.35  # CPUs share caches and clocks with whatever else runs
_SINGLE_ROW_FACTOR = 2.0  # times that, where there is one row only
_DISSIMILAR_MODEL_FACTOR = 1.5  # times that, where no row has a similar model

# Python and the driver are faster or slower than those of the machine where launching was measured.
_LAUNCH_SPREAD = (0.7, 1.35)
_LAUNCH_BOUND_FACTOR = _LAUNCH_SPREAD[1]  # times the launching: who took no longer was held up by it
_MAX_MFU = 95.0  # percent
_CPU_LAUNCH_SPREAD = (0.7, 2.0)  # of a CPU, which may have its threads to wake for each operation
_LAUNCH_BOUND_SPEED_SHARE = 0.7  # of the speed is left by it


def expected_launch_s(query: SpeedQuery) -> float:
    """How long it takes to ask for a micro-batch's kernels, one by one; nothing where they are recorded.

    The constants are those the trainer itself decides with (costs.py): 2.3 ms per layer for PyTorch's own,
    of which compiling saves 30% and our kernels half a millisecond per layer.
    """
    if query.graph or query.kernels == "cuda":
        return 0.0
    plain = overheads.launch_s("cuda", query.n_layer)
    if query.kernels == "compiled":
        return plain - overheads.compile_saving_s("cuda", plain)
    return plain - (overheads.KERNEL_SAVING_S_PER_LAYER * query.n_layer if query.kernels == "own" else 0.0)


def expected_mfu_range(
    card: Card | None, peak: float, query: SpeedQuery, without: Sequence[str] = ()
) -> MfuRange:
    """`card` None: a CPU, and `peak` its measured one, in FLOP/s. `without`: names of rows not to look at."""
    band = _mfu_range_without_optimizer(card, peak, query, without)
    share = query.model_time_share(card is not None)
    return replace(band, low=share * band.low, mid=share * band.mid, high=share * band.high)


def _mfu_range_without_optimizer(
    card: Card | None, peak: float, query: SpeedQuery, without: Sequence[str]
) -> MfuRange:
    """As if an optimizer cost nothing."""
    band = _compute_bound_mfu_range(card, query, without)
    ideal = query.flops_per_micro_batch / peak
    if card is None:
        return _with_asking(band, ideal, overheads.launch_s("cpu", query.n_layer))
    floor = expected_launch_s(query)
    if not floor or ideal / floor * 100 > band.mid:
        return _slowed(band, ideal, floor)
    return MfuRange(
        min(band.low, 100 * ideal / (floor * _LAUNCH_SPREAD[1])),
        100 * ideal / floor,
        min(band.high, 100 * ideal / (floor * _LAUNCH_SPREAD[0])),
        f"small model: launches, not arithmetic, set the pace; asking for the kernels takes about "
        f"{floor * 1000:.3g} ms a micro-batch, computing {ideal / band.mid * 1e5:.2g} ms",
        (),
    )


def _with_asking(band: MfuRange, ideal: float, asking: float) -> MfuRange:
    """A CPU computes, and then asks itself for the next operation."""
    fast, slow = _CPU_LAUNCH_SPREAD
    low, mid, high = (
        100 * ideal / (100 * ideal / mfu + asking * times)
        for mfu, times in ((band.low, slow), (band.mid, 1.0), (band.high, fast))
    )
    reason = band.reason
    if mid < _LAUNCH_BOUND_SPEED_SHARE * band.mid:
        reason += f"; asking for its operations takes about {asking * 1000:.2g} ms a micro-batch besides"
    return MfuRange(low, mid, high, reason, band.rows)


def _slowed(band: MfuRange, ideal: float, floor: float) -> MfuRange:
    """Arithmetic sets the pace; on a slow machine launching might."""
    if not floor:
        return band
    slow = 100 * ideal / (floor * _LAUNCH_SPREAD[1])
    return MfuRange(min(band.low, slow), band.mid, band.high, band.reason, band.rows)


def _compute_bound_mfu_range(card: Card | None, query: SpeedQuery, without: Sequence[str]) -> MfuRange:
    usable = [
        (tier, row)
        for row in reference_rows()
        if row.counts and row.name not in without and row.mfu is not None and not row.is_launch_bound
        if (tier := _tier(card, row)) is not None
    ]
    similar = [(tier, row) for tier, row in usable if _is_similar(query, row)]
    among = similar or usable
    if not among:
        return MfuRange(20.0, 35.0, 60.0, "no row on any such machine: a guess", ())
    # One row may be anything: then the next nearest cards have a say too.
    tiers = sorted(tier for tier, _ in among)
    farthest = tiers[min(1, len(tiers) - 1)]
    near = [(tier, row) for tier, row in among if tier <= farthest]
    chosen = [row for _, row in near]
    reached = [_adjusted(row, query) for row in chosen]
    reach = (
        (_CPU_MARGIN if card is None else _MARGIN_BY_TIER[farthest])
        * (_SINGLE_ROW_FACTOR if len(chosen) == 1 else 1)
        * (1 if similar else _DISSIMILAR_MODEL_FACTOR)
    )
    low, high = min(reached) * (1 - reach), max(reached) * (1 + reach)
    weights = [1 / (0.25 + tier**2 + _model_distance(query, row) ** 2) for tier, row in near]
    mid = math.exp(sum(w * math.log(value) for w, value in zip(weights, reached, strict=True)) / sum(weights))
    told = [row.mfu for row in chosen if row.mfu is not None]  # as it was; the band is scaled to this model
    reason = _describe_rows(card, [tier for tier, _ in near], bool(similar), min(told), max(told))
    high = min(_MAX_MFU, high)
    return MfuRange(
        min(low, 0.9 * high), min(mid, 0.95 * high), high, reason, tuple(row.name for row in chosen)
    )


def _adjusted(row: SpeedReference, query: SpeedQuery) -> float:
    """What the row would have reached with the kernels and the size of model asked for."""
    assert row.mfu is not None
    speed = _KERNEL_SPEED[query.kernels] / _KERNEL_SPEED[row.kernels] * _FP8_SPEED ** (query.fp8 - row.fp8)
    wider = min(
        _MAX_SIZE_CORRECTION, math.pow(query.flops_per_token / row.query.flops_per_token, _MFU_SIZE_EXPONENT)
    )
    asking = 0.0 if row.card else overheads.launch_s("cpu", row.shape.n_layer) / row.micro_batch_s
    share = row.query.model_time_share(bool(row.card))
    return min(_MAX_MFU, row.mfu / share / (1 - asking) * speed * wider)


def _describe_rows(card: Card | None, tiers: Sequence[int], similar: bool, low: float, high: float) -> str:
    spread = f"{low:.0f}%" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}%"
    model = "a similar model" if similar else "other models"
    found, on_card, farthest = _rows(len(tiers)), tiers.count(0), max(tiers)
    if card is None:
        return f"{found} on CPUs with {model}: {spread} of the matmul peak"
    if farthest == 0:
        return f"{found} on this card with {model}: {spread}"
    of = {1: f"cards of its family ({card.family})", 2: f"cards of its kind ({_card_kind(card.family)})"}
    where = of.get(farthest, "other cards")
    if on_card:
        return f"only one row on this card, so {where} count too: {spread} with {model} ({found})"
    return f"no row on this card with such a model: {where} reached {spread} with {model} ({found})"


def _rows(count: int) -> str:
    return "one row" if count == 1 else f"{count} rows"
