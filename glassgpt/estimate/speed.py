"""How fast a run should be on a machine: MFU from measured reference runs, and tokens per second. No torch.

    mfu = expected_mfu_range(card, 989.4e12, work, flops_per_token=854_000_000)
    mfu.low, mfu.mid, mfu.high, mfu.reason        # percent, and "10 reference runs on this card …"

`references.toml` has the runs, one per row, and their sources. The rule: take the rows on the same card with
a similar model; if there are not two, also those on its family of cards, then on its kind of cards, then on
any. update_time.py says how long each row and this run should take; the rows' measured times correct it. The
range is what the rows lead to, wider for fewer and less similar rows, and wider again for a card without
rows: an 80% band, as `python -m bench.plan coverage` shows by leaving rows out. A small model on a fast card
is limited by kernel-launch overhead instead, which no row corrects: docs/what-to-expect.md. A CPU's
own matmuls and cores are measured, so it needs no row: cpu_update_time.py.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from statistics import fmean
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.estimate import flops
from glassgpt.estimate.cards import Card, find_card
from glassgpt.estimate.cpu_update_time import REFERENCE_CORE, CoreSpeed, cpu_update_time
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.estimate.update_time import UpdateTime, is_misaligned, update_time

# --- reference rows ---


@dataclass(frozen=True, kw_only=True)
class SpeedReference:
    """One row of `references.toml`. The comment at its top explains the fields."""

    name: str
    card: str
    trainer: str
    shape: Mapping[str, Any]  # settings of the model, and its vocab_size
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
    def work(self) -> TrainingWorkload:
        """What this run did, on one card."""
        shape = dict(self.shape)
        vocab_size = shape.pop("vocab_size")
        config = TrainConfig(
            **shape,
            batch_size=self.micro_batch,
            optimizer="muon" if self.muon else "adamw",
            fp8=self.fp8,
        )
        return TrainingWorkload(
            config=config,
            vocab_size=vocab_size,
            batch_size=self.micro_batch,
            micro_steps=self.accumulation,
            device_type="cuda" if self.card else "cpu",
            dtype=self.dtype,
            kernels=self.kernels in ("triton", "llm.c"),
            compiled=self.kernels == "compiled",
            graph=self.graph or self.kernels == "llm.c",
        )

    @cached_property
    def flops_per_token(self) -> int:
        return flops.model_flops_per_token(self.work.config, self.work.vocab_size)

    @property
    def total_tokens_per_s(self) -> float:
        """Tokens per second of all cards."""
        if self.tokens_per_s is not None:
            return self.tokens_per_s
        assert self.step_ms is not None, self.name
        tokens = self.count * self.accumulation * self.work.micro_batch_tokens
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
        return self.work.micro_batch_tokens * self.count / self.total_tokens_per_s

    @cached_property
    def expected(self) -> UpdateTime:
        card = find_card(self.card)
        assert card is not None
        assert self.peak_flops_per_s is not None
        return update_time(self.work, self.peak_flops_per_s, card.bandwidth_gb_s * 1e9)

    @cached_property
    def is_launch_bound(self) -> bool:
        """Whether kernel launches limited it. Then its speed says nothing about a compute-bound run."""
        return bool(self.card) and self.expected.is_launch_bound

    @cached_property
    def correction(self) -> float:
        """The measured time of an update relative to the expected one; not of a launch-bound run."""
        return self.micro_batch_s * self.accumulation / self.expected.seconds


@cache
def reference_rows() -> tuple[SpeedReference, ...]:
    """The whole table, in file order."""
    text = (resources.files("glassgpt.estimate") / "references.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return tuple(SpeedReference(**{**row, "shape": table["shapes"][row["shape"]]}) for row in table["row"])


# --- expected MFU ---

SIMILAR_FLOPS_FACTOR = 5.0  # similar models: FLOPs per token within this factor …
SIMILAR_TOKENS_FACTOR = 4.0  # … and tokens per micro-batch within this one
_CARD_KINDS = ("GeForce", "data centre", "professional", "Apple", "AMD")  # words in names of families

# How far the band reaches beyond the rows' predictions, in logarithms. 80% of what is left out lies in it:
# rows, models and cards. Of cards, conformally: each weighs the same, and the card to come counts as one
# more. bench/plan.py computes it, tests/estimate/test_references.py compares.
_MARGIN = 0.16
# The least for a model that is far from any row on its card. 69 shapes drawn at random, groups of three left
# out of the fit of update_time.py, were off by 0.22 (rms): compute-bound ones by 0.10, launch-bound ones and
# those with slow kernels by 0.24, those with many tiny kernels in a CUDA graph by 0.33.
_ODD_SHAPE_MARGIN, _SLOW_KERNELS_MARGIN, _TINY_KERNELS_MARGIN = 0.24, 0.40, 0.60
_ODD_SIZE_FACTOR = 3.0  # in layers, width, context or tokens: up to this a row is near, its square is far
_SINGLE_ROW_FACTOR = 2.0  # times the margin, if there is one row only
_LAUNCH_MARGIN = 0.45  # of launch overhead: other machines' CPUs relative to the one where it was measured
_MAX_MFU = 95.0  # percent

# On a CPU: 90% of 197 random shapes on the machine that cpu_update_time.py was fitted to lie within 0.22, and
# 20 of 22 runs on another one within this.
_CPU_MARGIN = 0.40


@dataclass(frozen=True)
class MfuRange:
    """The MFU to expect, in percent of the card's peak."""

    low: float
    mid: float
    high: float
    reason: str
    rows: tuple[str, ...]  # names of the rows it comes from; none if it was computed


def expected_mfu_range(
    card: Card | None,
    peak: float,
    work: TrainingWorkload,
    flops_per_token: float,
    without: Sequence[str] = (),
    core: CoreSpeed = REFERENCE_CORE,
) -> MfuRange:
    """`card` None: a CPU, `peak` its measured one, in FLOP/s, and `core` the speed of its cores. `without`:
    names of rows to ignore."""
    if card is None:
        return _cpu_mfu_range(peak, work, flops_per_token, core)
    expected = update_time(work, peak, card.bandwidth_gb_s * 1e9)
    update_flops = flops_per_token * work.micro_batch_tokens * work.micro_steps

    def mfu_at(seconds: float) -> float:
        return min(_MAX_MFU, 100 * update_flops / (seconds * peak))

    rows = [
        (tier, _distance(row, work, flops_per_token), row)
        for row in reference_rows()
        if row.counts and row.name not in without and (tier := _card_tier(card, row)) is not None
        if not row.is_launch_bound
    ]
    # A single row is not reliable: then rows on the next most similar cards count too.
    tiers = sorted(tier for tier, *_ in rows)
    near = [entry for entry in rows if entry[0] <= tiers[min(1, len(tiers) - 1)]]
    similar = [entry for entry in near if entry[1] <= 1]
    near = similar or near
    logs = [math.log(row.correction) for *_, row in near] or [0.0]
    weights = [1 / (0.25 + tier**2 + distance**2) for tier, distance, _ in near] or [1.0]
    correction = fmean(logs, weights)
    margin = _MARGIN * (_SINGLE_ROW_FACTOR if len(near) <= 1 else 1)
    # The odder the shape, the more depends on update_time.py, and the less on the rows.
    odd = _shape_margin(work, expected) * min((_oddness(row, work) for *_, row in near), default=1.0)
    fast = min(min(logs) - margin, correction - odd)
    slow = max(max(logs) + margin, correction + odd)
    # Launches overlap with computing; no row corrects them.
    seconds = [
        replace(
            expected, card_s=expected.card_s * math.exp(log), host_s=expected.host_s * math.exp(host)
        ).seconds
        for log, host in ((slow, _LAUNCH_MARGIN), (correction, 0.0), (fast, -_LAUNCH_MARGIN))
    ]
    low, mid, high = (mfu_at(value) for value in seconds)
    card_s = expected.card_s * math.exp(correction)
    names = tuple(row.name for *_, row in near)
    if expected.host_s > card_s:
        reason = (
            f"small model, launch-bound: kernel launches take about {expected.host_s * 1000:.3g} ms per "
            f"update, compute {card_s * 1000:.2g} ms"
        )
        return MfuRange(low, mid, high, reason, ())
    if not near:
        return MfuRange(low, mid, high, "no reference run on any such machine: a guess", ())
    stated = [row.mfu for *_, row in near if row.mfu is not None]  # as measured, not adjusted to this model
    reason = _describe_rows(card, [tier for tier, *_ in near], bool(similar), min(stated), max(stated))
    if odd > margin:
        reason += "; none of them is much like this run, so the band is wide"
    return MfuRange(low, mid, high, reason, names)


def _distance(row: SpeedReference, work: TrainingWorkload, flops_per_token: float) -> float:
    """At most 1: a similar model."""
    tokens_ratio = work.micro_batch_tokens / row.work.micro_batch_tokens
    return max(
        abs(math.log(flops_per_token / row.flops_per_token)) / math.log(SIMILAR_FLOPS_FACTOR),
        abs(math.log(tokens_ratio)) / math.log(SIMILAR_TOKENS_FACTOR),
    )


def _shape_margin(work: TrainingWorkload, expected: UpdateTime) -> float:
    """Of update_time.py alone, in logarithms."""
    has_slow_kernels = is_misaligned(work) or work.attention == "manual"
    tiny_kernels = min(1.0, 2 * expected.kernel_s / expected.card_s) * _TINY_KERNELS_MARGIN
    return max(_SLOW_KERNELS_MARGIN if has_slow_kernels else _ODD_SHAPE_MARGIN, tiny_kernels)


def _oddness(row: SpeedReference, work: TrainingWorkload) -> float:
    """From 0 to 1: how much more of the prediction is update_time.py's than the row's."""
    one, other = work.config, row.work.config
    sizes = (
        (work.micro_batch_tokens, row.work.micro_batch_tokens),
        *((getattr(one, name), getattr(other, name)) for name in ("n_layer", "n_embd", "block_size")),
    )
    steps = math.hypot(*(math.log(mine / its) for mine, its in sizes)) / math.log(_ODD_SIZE_FACTOR)
    unlike = (
        is_misaligned(work)
        or work.attention == "manual"
        or one.activation_checkpointing
        or work.dtype != row.work.dtype
    )
    return 1.0 if unlike else min(1.0, max(0.0, steps - 1))


def _cpu_mfu_range(peak: float, work: TrainingWorkload, flops_per_token: float, core: CoreSpeed) -> MfuRange:
    expected = cpu_update_time(work, peak, core)
    update_flops = flops_per_token * work.micro_batch_tokens * work.micro_steps
    mid = min(_MAX_MFU, 100 * update_flops / (expected.seconds * peak))
    matmul_ms, number_ms, operation_ms = (
        f"{1000 * seconds:.2g} ms" for seconds in (expected.matmul_s, expected.number_s, expected.operation_s)
    )
    reason = (
        f"per update {matmul_ms} of matmuls, {number_ms} of other work, {operation_ms} of launch overhead"
    )
    low, high = mid * math.exp(-_CPU_MARGIN), min(100.0, mid * math.exp(_CPU_MARGIN))
    return MfuRange(low, mid, high, reason, ())


def _card_kind(family: str) -> str:
    return next((kind for kind in _CARD_KINDS if kind in family), family)


def _card_tier(card: Card, row: SpeedReference) -> int | None:
    """0: the same card, 1: its family, 2: its kind, 3: another; None: the row is of no known card."""
    other = find_card(row.card) if row.card else None
    if other is None:
        return None
    if other.name == card.name:
        return 0
    if other.family == card.family:
        return 1
    return 2 if _card_kind(other.family) == _card_kind(card.family) else 3


def _describe_rows(card: Card, tiers: Sequence[int], similar: bool, low: float, high: float) -> str:
    """In words, which rows the range comes from."""
    spread = f"{low:.0f}%" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}%"
    model = "a similar model" if similar else "other models"
    rows = "one reference run" if len(tiers) == 1 else f"{len(tiers)} reference runs"
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
    work: TrainingWorkload,
    flops_per_token: int,
    peak: float,
    card: Card | None,
    core: CoreSpeed = REFERENCE_CORE,
) -> ThroughputEstimate:
    """`peak`: FLOP/s of the card in the run's dtype; without a card, the CPU's measured one, and `core` the
    speed of its cores."""
    mfu = expected_mfu_range(card, peak, work, flops_per_token, core=core)
    low, mid, high = (percent * peak / 100 / flops_per_token for percent in (mfu.low, mfu.mid, mfu.high))
    mentioned = _slow_settings(work, flops_per_token, peak, card, core)
    why = f"{mfu.reason}; lowered for {', '.join(mentioned)}" if mentioned else mfu.reason
    return ThroughputEstimate(low, mid, high, (mfu.low, mfu.mid, mfu.high), why)


def _slow_settings(
    work: TrainingWorkload, flops_per_token: int, peak: float, card: Card | None, core: CoreSpeed
) -> list[str]:
    """In words, without which settings an update would take notably less time."""
    changes: dict[str, dict[str, Any]] = {
        "activation recomputation": {"activation_checkpointing": False},
        "the modern architecture's many small kernels": {"arch": "gpt2"},
        "Muon's own FLOPs": {"optimizer": "adamw"},
    }
    faster = {name: replace(work, config=replace(work.config, **change)) for name, change in changes.items()}
    faster["attention without a fused kernel"] = replace(work, attention="sdpa")

    def mfu_of(other: TrainingWorkload) -> float:
        return expected_mfu_range(card, peak, other, flops_per_token, core=core).mid

    mid = mfu_of(work)
    slow = [
        name
        for name, other in faster.items()
        if other != work and mid < _MENTION_SLOWDOWN_BELOW * mfu_of(other)
    ]
    if card is not None and is_misaligned(work):
        slow.append("a width or head size that is not a multiple of 8")
    return slow
