"""How fast a run should be on a machine: MFU from measured reference runs, and tokens per second. No torch.

    mfu = expected_mfu_range(card, 989.4e12, SpeedQuery(854_000_000, 65_536, n_layer=12, kernels="triton"))
    mfu.low, mfu.mid, mfu.high, mfu.reason        # percent, and "10 reference runs on this card …"

`references.toml` has the runs, one per row, and their sources. The rule: take the rows on the same card with
a similar model; if there are not two, also those on its family of cards, then on its kind of cards, then on
any. The range is what they reached, wider for fewer and less similar rows, and wider again for a card without
rows: an 80% band, as `python -m bench.plan coverage` shows by leaving rows out. A small model on a fast card
is limited by kernel-launch overhead instead, which is computed, not looked up: docs/what-to-expect.md.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources

from glassgpt.estimate import flops, overheads
from glassgpt.estimate.cards import Card, find_card
from glassgpt.estimate.training_workload import TrainingWorkload

# --- reference rows ---


@dataclass(frozen=True, kw_only=True)
class ReferenceModel:
    """The model of a row, as far as its FLOPs depend on it."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    arch: str
    tied: bool = True

    @cached_property
    def flops_per_token(self) -> int:
        matmul_parameters = flops.count_parameters(
            vocab_size=self.vocab_size, block_size=self.block_size, n_layer=self.n_layer, n_embd=self.n_embd,
            arch=self.arch, bias=False, tied=self.tied, matmul_only=True,
        )  # fmt: skip
        return flops.flops_per_token(matmul_parameters, self.n_layer, self.n_embd, self.block_size)


@dataclass(frozen=True, kw_only=True)
class SpeedReference:
    """One row of `references.toml`. The comment at its top explains the fields."""

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
        """The query that would have been made for this run."""
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
            modern=shape.arch == "modern",
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
        """The peak of one card; None if the source does not name it."""
        if self.peak_tflops is not None:
            return self.peak_tflops * 1e12
        card = find_card(self.card) if self.card else None
        return card.peaks[self.dtype] if card else None

    @cached_property
    def micro_batch_s(self) -> float:
        return self.query.tokens_per_micro_batch * self.count / self.total_tokens_per_s

    @cached_property
    def is_launch_bound(self) -> bool:
        """Whether kernel launches limited it. Then its MFU says nothing about a compute-bound run."""
        return bool(self.card) and self.micro_batch_s < _LAUNCH_BOUND_FACTOR * expected_launch_s(self.query)


@dataclass(frozen=True)
class SpeedQuery:
    """A run whose speed is to be estimated."""

    flops_per_token: int
    tokens_per_micro_batch: int  # on one card
    n_layer: int = 12
    kernels: str = "triton"  # "plain", "compiled", "triton" (ours) or "llm.c"
    graph: bool = False
    fp8: bool = False
    muon_flops: float = 0.0  # per micro-batch
    modern: bool = False  # RoPE and many norms

    @property
    def flops_per_micro_batch(self) -> float:
        return float(self.flops_per_token) * self.tokens_per_micro_batch

    def model_time_share(self, on_a_card: bool) -> float:
        """The model's share of the time. The rest is Muon's, which shows if an update has few tokens."""
        return self.flops_per_micro_batch / (
            self.flops_per_micro_batch + (_MUON_SLOWDOWN if on_a_card else 1.0) * self.muon_flops
        )


@cache
def reference_rows() -> tuple[SpeedReference, ...]:
    """The whole table, in file order."""
    text = (resources.files("glassgpt.estimate") / "references.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    shapes = {name: ReferenceModel(**fields) for name, fields in table["shapes"].items()}
    return tuple(SpeedReference(**{**row, "shape": shapes[row["shape"]]}) for row in table["row"])


# --- expected MFU ---

_SIMILAR_FLOPS_FACTOR = 5.0  # similar models: FLOPs per token within this factor …
_SIMILAR_TOKENS_FACTOR = 4.0  # … and tokens per micro-batch within this one
_CARD_KINDS = ("GeForce", "data centre", "professional", "Apple", "AMD")  # words in names of families

# Speed relative to torch.compile, if compute-bound: GPT-2 124M on an H200 took 48.8 ms plain and 32.8 ms
# compiled; with our kernels 115 to 118 ms where nanoGPT compiled took 125 to 129.
_KERNEL_SPEED = {"plain": 0.68, "compiled": 1.0, "triton": 1.08, "llm.c": 1.0}
_FP8_SPEED = 1.26  # 115.1 and 91.2 ms
# Muon's matmuls are small, and it passes over all matrices several times: an H200 did 163 TFLOP/s of it, and
# 526 of the model's (GPT-2 124M's size: 36.6 ms with 16 sequences, 63.2 with 32, so 10.0 ms without).
_MUON_SLOWDOWN = 3.2
# RoPE and norms are many small operations, which cost time on a CPU and where they are not fused: quickstart
# on 2 cores reaches 14 to 16.5 thousand tokens/s where rows of GPT-2's architecture say 24 for its
# arithmetic, shakespeare_char_fast with PyTorch's kernels on an H200 1.04 million for 1.35.
_MODERN_UNFUSED_SPEED, _MODERN_CPU_SPEED = 0.77, 0.65
# A wider model computes more per byte it moves. From 71 to 855 MFLOP per token the MFU of an RTX 4070 Ti went
# from 44 to 60%, from 855 to 3492 that of an RTX 4090 from 55 to 80%: exponents of 0.13 and 0.27.
_MFU_SIZE_EXPONENT = 0.2
_MAX_SIZE_CORRECTION = 1.5  # times: no row has more

# How far the range reaches beyond its rows, per tier. With these, leaving out all rows of a card and a model,
# 80% of such groups are predicted from the card's other rows.
_MARGIN_BY_TIER = (0.10, 0.15, 0.25, 0.35)
_CPU_MARGIN = 0.35  # CPUs share caches and clocks with whatever else runs
# A card without rows of its own: the logarithm of the range is so many times as wide. It is the conformal
# quantile: leaving out all rows of a card, 80% of the cards are inside, each card weighing the same, and the
# card to come counted as one more. bench/plan.py computes it, tests/estimate/test_references.py compares.
_OTHER_CARD_WIDENING = 1.65
_SINGLE_ROW_FACTOR = 2.0  # times the margin, if there is one row only
_DISSIMILAR_MODEL_FACTOR = 1.5  # times the margin, if no row has a similar model

# Launch overhead on other machines, relative to the one where it was measured.
_LAUNCH_SPREAD = (0.7, 1.35)
_CPU_LAUNCH_SPREAD = (0.7, 2.0)  # a CPU may have to wake its threads for each operation
_LAUNCH_BOUND_FACTOR = _LAUNCH_SPREAD[1]  # a row that took less than this times the launches is launch-bound
_LAUNCH_BOUND_SPEED_SHARE = 0.7  # mention the overhead if less of the speed is left
_MAX_MFU = 95.0  # percent


@dataclass(frozen=True)
class MfuRange:
    """The MFU to expect, in percent of the card's peak."""

    low: float
    mid: float
    high: float
    reason: str
    rows: tuple[str, ...]  # names of the rows it comes from; none if it was computed


def expected_launch_s(query: SpeedQuery) -> float:
    """Kernel-launch overhead of a micro-batch; 0 with a CUDA graph.

    From the constants that the trainer itself decides with (overheads.py): 2.3 ms per layer for PyTorch's own
    kernels, of which compiling saves 30% and our kernels half a millisecond per layer.
    """
    if query.graph or query.kernels == "llm.c":
        return 0.0
    plain = overheads.launch_s("cuda", query.n_layer)
    if query.kernels == "compiled":
        return plain - overheads.compile_saving_s("cuda", plain)
    return plain - (overheads.KERNEL_SAVING_S_PER_LAYER * query.n_layer if query.kernels == "triton" else 0.0)


def expected_mfu_range(
    card: Card | None, peak: float, query: SpeedQuery, without: Sequence[str] = ()
) -> MfuRange:
    """`card` None: a CPU, and `peak` its measured one, in FLOP/s. `without`: names of rows to ignore."""
    mfu = _compute_bound_mfu_range(card, query, without)
    ideal_s = query.flops_per_micro_batch / peak
    if card is None:  # a CPU computes and launches in turn
        launch_s = overheads.launch_s("cpu", query.n_layer)
        fast, slow = _CPU_LAUNCH_SPREAD
        low, mid, high = (
            100 * ideal_s / (100 * ideal_s / percent + launch_s * factor)
            for percent, factor in ((mfu.low, slow), (mfu.mid, 1.0), (mfu.high, fast))
        )
        reason = mfu.reason
        if mid < _LAUNCH_BOUND_SPEED_SHARE * mfu.mid:
            reason += f"; plus about {launch_s * 1000:.2g} ms of launch overhead per micro-batch"
        mfu = MfuRange(low, mid, high, reason, mfu.rows)
    elif launch_s := expected_launch_s(query):
        slowest = 100 * ideal_s / (launch_s * _LAUNCH_SPREAD[1])
        if ideal_s / launch_s * 100 > mfu.mid:  # compute-bound; on a slow machine launches might limit it
            mfu = replace(mfu, low=min(mfu.low, slowest))
        else:
            reason = (
                f"small model, launch-bound: kernel launches take about {launch_s * 1000:.3g} ms per "
                f"micro-batch, compute {ideal_s / mfu.mid * 1e5:.2g} ms"
            )
            fastest = 100 * ideal_s / (launch_s * _LAUNCH_SPREAD[0])
            mid = 100 * ideal_s / launch_s
            mfu = MfuRange(min(mfu.low, slowest), mid, min(mfu.high, fastest), reason, ())
    on_this_card = {row.name for row in reference_rows() if card is not None and row.card == card.name}
    if card is not None and on_this_card.isdisjoint(mfu.rows):
        low, high = (mfu.mid * (end / mfu.mid) ** _OTHER_CARD_WIDENING for end in (mfu.low, mfu.high))
        mfu = replace(mfu, low=low, high=max(mfu.mid, min(_MAX_MFU, high)))
    share = query.model_time_share(card is not None)
    return replace(mfu, low=share * mfu.low, mid=share * mfu.mid, high=share * mfu.high)


def _compute_bound_mfu_range(card: Card | None, query: SpeedQuery, without: Sequence[str]) -> MfuRange:
    """The MFU without launch overhead and without the optimizer's own FLOPs."""
    usable = []
    for row in reference_rows():
        if not row.counts or row.name in without or row.mfu is None or row.is_launch_bound:
            continue
        tier = _card_tier(card, row)
        if tier is None:
            continue
        flops_ratio = query.flops_per_token / row.query.flops_per_token
        tokens_ratio = query.tokens_per_micro_batch / row.query.tokens_per_micro_batch
        distances = (  # at most 1 each for a similar model
            abs(math.log(flops_ratio)) / math.log(_SIMILAR_FLOPS_FACTOR),
            abs(math.log(tokens_ratio)) / math.log(_SIMILAR_TOKENS_FACTOR),
        )
        usable.append((tier, distances, row))
    similar = [entry for entry in usable if max(entry[1]) <= 1]
    candidates = similar or usable
    if not candidates:
        return MfuRange(20.0, 35.0, 60.0, "no reference run on any such machine: a guess", ())
    # A single row is not reliable: then rows on the next most similar cards count too.
    tiers = sorted(tier for tier, *_ in candidates)
    farthest = tiers[min(1, len(tiers) - 1)]
    near = [entry for entry in candidates if entry[0] <= farthest]
    rows = [row for *_, row in near]
    adjusted = [_adjusted_mfu(row, query) for row in rows]
    margin = (
        (_CPU_MARGIN if card is None else _MARGIN_BY_TIER[farthest])
        * (_SINGLE_ROW_FACTOR if len(rows) == 1 else 1)
        * (1 if similar else _DISSIMILAR_MODEL_FACTOR)
    )
    low, high = min(adjusted) * (1 - margin), min(_MAX_MFU, max(adjusted) * (1 + margin))
    weights = [1 / (0.25 + tier**2 + math.hypot(*distances) ** 2) for tier, distances, _ in near]
    log_sum = sum(weight * math.log(value) for weight, value in zip(weights, adjusted, strict=True))
    mid = math.exp(log_sum / sum(weights))
    stated = [row.mfu for row in rows if row.mfu is not None]  # as measured, not adjusted to this model
    reason = _describe_rows(card, [tier for tier, *_ in near], bool(similar), min(stated), max(stated))
    return MfuRange(
        min(low, 0.9 * high), min(mid, 0.95 * high), high, reason, tuple(row.name for row in rows)
    )


def _card_kind(family: str) -> str:
    return next((kind for kind in _CARD_KINDS if kind in family), family)


def _card_tier(card: Card | None, row: SpeedReference) -> int | None:
    """0: the same card, 1: its family, 2: its kind, 3: another; None: one is a CPU and the other is not."""
    other = find_card(row.card) if row.card else None
    if card is None or other is None:
        return 0 if card is None and row.peak_tflops is not None else None
    if other.name == card.name:
        return 0
    if other.family == card.family:
        return 1
    return 2 if _card_kind(other.family) == _card_kind(card.family) else 3


def _adjusted_mfu(row: SpeedReference, query: SpeedQuery) -> float:
    """The row's MFU if it had the query's kernels and model size."""
    assert row.mfu is not None
    speed = _KERNEL_SPEED[query.kernels] / _KERNEL_SPEED[row.kernels] * _FP8_SPEED ** (query.fp8 - row.fp8)
    size_ratio = query.flops_per_token / row.query.flops_per_token
    size = min(_MAX_SIZE_CORRECTION, math.pow(size_ratio, _MFU_SIZE_EXPONENT))
    on_cpu = not row.card
    speed *= _architecture_speed(query, on_cpu) / _architecture_speed(row.query, on_cpu)
    launch_share = 0.0 if row.card else overheads.launch_s("cpu", row.shape.n_layer) / row.micro_batch_s
    model_share = row.query.model_time_share(bool(row.card))
    return min(_MAX_MFU, row.mfu / model_share / (1 - launch_share) * speed * size)


def _architecture_speed(query: SpeedQuery, on_cpu: bool) -> float:
    if query.modern and (on_cpu or query.kernels == "plain"):
        return _MODERN_CPU_SPEED if on_cpu else _MODERN_UNFUSED_SPEED
    return 1.0


def _describe_rows(card: Card | None, tiers: Sequence[int], similar: bool, low: float, high: float) -> str:
    """In words, which rows the range comes from."""
    spread = f"{low:.0f}%" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}%"
    model = "a similar model" if similar else "other models"
    rows = "one reference run" if len(tiers) == 1 else f"{len(tiers)} reference runs"
    if card is None:
        return f"{rows} on CPUs with {model}: {spread} of the matmul peak"
    farthest = max(tiers)
    if farthest == 0:
        return f"{rows} on this card with {model}: {spread}"
    cards = "other cards"
    if farthest == 1:
        cards = f"cards of its family ({card.family})"
    elif farthest == 2:
        cards = f"cards of its kind ({_card_kind(card.family)})"
    if 0 in tiers:
        return f"only one reference run on this card, so {cards} count too: {spread} with {model} ({rows})"
    return f"no reference run on this card with such a model: {cards} reached {spread} with {model} ({rows})"


# --- tokens per second ---

_RECOMPUTE_SPEED = 3 / 4  # of the speed is left with activation checkpointing: two forward passes
_MENTION_SLOWDOWN_BELOW = 0.95  # of the speed is left


@dataclass(frozen=True)
class ThroughputEstimate:
    """Tokens per second: low, mid and high; `mfu` the same in percent of the peak."""

    low: float
    mid: float
    high: float
    mfu: tuple[float, float, float]
    why: str


def estimate_throughput(
    work: TrainingWorkload, flops_per_token: int, peak: float, card: Card | None
) -> ThroughputEstimate:
    """`peak`: FLOP/s of the card in the run's dtype; without a card, the CPU's measured one."""
    config, muon_flops = work.config, 0
    if config.optimizer == "muon":
        muon_flops = flops.muon_flops_per_update(config.n_layer, config.n_embd, config.muon_steps)
    query = SpeedQuery(
        flops_per_token,
        work.micro_batch_tokens,
        n_layer=config.n_layer,
        kernels="triton" if work.kernels else "compiled" if work.compiled else "plain",
        graph=work.graph,
        fp8=config.fp8,
        muon_flops=muon_flops / work.micro_steps,
        modern=config.arch == "modern",
    )
    mfu = expected_mfu_range(card, peak, query)
    # The rows do not include these: the estimate may be far below them.
    speed_left = {}
    if config.activation_checkpointing:
        speed_left["activation recomputation"] = _RECOMPUTE_SPEED
    slowdown = math.prod(speed_left.values())
    low, mid, high = (slowdown * percent for percent in (mfu.low, mfu.mid, mfu.high))
    tokens_per_percent = peak / 100 / flops_per_token
    # These are in `mfu` already.
    speed_left["the modern architecture's many small kernels"] = _architecture_speed(query, card is None)
    speed_left["Muon's own FLOPs"] = query.model_time_share(card is not None)
    mentioned = [name for name, share in speed_left.items() if share < _MENTION_SLOWDOWN_BELOW]
    why = f"{mfu.reason}; lowered for {' and '.join(mentioned)}" if mentioned else mfu.reason
    return ThroughputEstimate(
        low * tokens_per_percent, mid * tokens_per_percent, high * tokens_per_percent, (low, mid, high), why
    )
