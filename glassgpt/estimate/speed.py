"""How fast a run should be on a machine: tokens per second as a range, and where it comes from. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgpt.estimate import flops
from glassgpt.estimate.cards import Card
from glassgpt.estimate.memory import TrainingWorkload
from glassgpt.estimate.references import SpeedQuery, expected_mfu_range

_RECOMPUTE_SPEED = 3 / 4  # of the speed is left where the forward pass is done twice
# Rotation and norms are many small operations, which show where nothing joins them, and on a CPU. The rows
# are all of GPT-2's architecture: quickstart on 2 cores reaches 14 to 16.5 thousand tokens/s where they say
# 24 for its arithmetic, shakespeare_char_fast with PyTorch's kernels on an H200 1.04 million for 1.35.
_MODERN_UNFUSED_SPEED, _MODERN_CPU_SPEED = 0.77, 0.65
_MENTION_SLOWDOWN_BELOW = 0.95  # of the speed is left


@dataclass(frozen=True)
class ThroughputEstimate:
    """Tokens per second: low, mid and high; `mfu` the same in percent of the peak."""

    low: float
    mid: float
    high: float
    mfu: tuple[float, float, float]
    why: str

    def contains(self, tokens_per_s: float) -> bool:
        return self.low <= tokens_per_s <= self.high


def _reference_query(work: TrainingWorkload, flops_per_token: int) -> SpeedQuery:
    config, muon_flops = work.config, 0
    if config.optimizer == "muon":
        muon_flops = flops.muon_flops_per_update(config.n_layer, config.n_embd, config.muon_steps)
    return SpeedQuery(
        flops_per_token,
        work.micro_batch_tokens,
        n_layer=config.n_layer,
        kernels="own" if work.kernels else "compiled" if work.compiled else "plain",
        graph=work.graph,
        fp8=config.fp8,
        muon_flops=muon_flops / work.micro_steps,
    )


def estimate_throughput(
    work: TrainingWorkload, flops_per_token: int, peak: float, card: Card | None
) -> ThroughputEstimate:
    """`peak`: FLOP/s of the card in the run's dtype, or, without a card, as measured."""
    query = _reference_query(work, flops_per_token)
    band = expected_mfu_range(card, peak, query)
    left = {}
    if work.config.activation_checkpointing:
        left["computing activations again"] = _RECOMPUTE_SPEED
    on_a_cpu = work.device_type == "cpu"
    if work.config.arch == "modern" and (on_a_cpu or query.kernels == "plain"):
        left["the modern architecture's many small steps"] = (
            _MODERN_CPU_SPEED if on_a_cpu else _MODERN_UNFUSED_SPEED
        )
    slower = math.prod(left.values())
    low, mid, high = (slower * mfu for mfu in (band.low, band.mid, band.high))
    per_percent = peak / 100 / flops_per_token
    # The rows know nothing of these: what is expected may lie far below them.
    left["Muon's own arithmetic"] = query.model_time_share(card is not None)  # which the band has in it
    felt = [what for what, share in left.items() if share < _MENTION_SLOWDOWN_BELOW]
    why = f"{band.reason}; less for {' and '.join(felt)}" if felt else band.reason
    return ThroughputEstimate(low * per_percent, mid * per_percent, high * per_percent, (low, mid, high), why)
