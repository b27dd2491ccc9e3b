"""Communication between cards that train together: bytes sent and exposed time. No torch.

    cluster = Cluster(cards_per_machine=8, machines=16, link=link_of_card(card), network_gb_s=50.0)
    exposed_communication_s(work, cluster, micro_s=0.12)      # per update, not overlapped with computing

Collectives use a ring of all cards, so its slowest link sets the speed. In an all-reduce each card sends
2 (n - 1) / n of the tensor, in an all-gather or a reduce-scatter (n - 1) / n.

Without sharding (DDP) every card has the whole model. Gradients are all-reduced once per update, in float32,
while the backward pass of the last micro-batch computes others. Exposed are those of the first block and of
the embeddings, which are complete last, and whatever takes longer than computing. A CUDA graph and compiled
code complete all gradients at once, so nothing overlaps.

Sharded (FSDP2) every card has a part. A block's weights are all-gathered for the forward and again for the
backward pass of every micro-batch, while the block before is computed. The first block is exposed, and so are
embeddings and head, gathered once. Gradients are reduce-scattered in the last micro-batch. Muon all-gathers
the blocks' matrices once more per update.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from glassgpt.estimate import overheads
from glassgpt.estimate.cards import Card
from glassgpt.estimate.speed import ThroughputEstimate
from glassgpt.estimate.training_workload import (
    WEIGHT_BYTES,
    TrainingWorkload,
    block_matrix_parameters,
    head_parameters,
    parameters_per_block,
    total_parameters,
)

DEFAULT_NETWORK_GB_S = 12.5  # per machine: one port of 100 Gbit/s
_NETWORK_EFFICIENCY = 0.8  # of that; an assumption
_DEFAULT_LINK = "PCIe 3.0 x16"  # of an unknown card: the slowest usual one
_FORWARD_SHARE_WITH_RECOMPUTE = 1 / 4  # of a micro-batch's FLOPs, with activation checkpointing


@dataclass(frozen=True)
class Link:
    """One entry of `links.toml`."""

    name: str
    gb_s: float
    reached: float
    source: str

    @property
    def bytes_per_s(self) -> float:
        return self.gb_s * 1e9 * self.reached


@cache
def links() -> dict[str, Link]:
    text = (resources.files("glassgpt.estimate") / "links.toml").read_text(encoding="utf-8")
    return {entry["name"]: Link(**entry) for entry in tomllib.loads(text)["link"]}


def link_of_card(card: Card | None) -> Link:
    """The link to the other cards of its machine."""
    return links()[(card.link if card is not None else None) or _DEFAULT_LINK]


@dataclass(frozen=True)
class Cluster:
    """Equal machines with equal cards; by default one card."""

    cards_per_machine: int = 1
    machines: int = 1
    link: Link | None = None  # between the cards of a machine
    network_gb_s: float = DEFAULT_NETWORK_GB_S  # per machine and direction

    @property
    def ranks(self) -> int:
        return self.cards_per_machine * self.machines

    @property
    def ring_bytes_per_s(self) -> float:
        """The bandwidth of the slowest link in a ring of all cards."""
        speeds = []
        if self.cards_per_machine > 1 and self.link is not None:
            speeds.append(self.link.bytes_per_s)
        if self.machines > 1:
            speeds.append(self.network_gb_s * 1e9 * _NETWORK_EFFICIENCY)
        return min(speeds, default=float("inf"))

    def all_reduce_s(self, size: float) -> float:
        return 2 * self.all_gather_s(size)

    def all_gather_s(self, size: float) -> float:
        """For a tensor of `size` bytes in all; a reduce-scatter takes as long."""
        return (self.ranks - 1) / self.ranks * size / self.ring_bytes_per_s

    def describe(self) -> list[str]:
        """The assumptions, in words."""
        sentences = []
        if self.cards_per_machine > 1 and self.link is not None:
            sentences.append(
                f"within a machine {self.link.name}: {self.link.gb_s:g} GB/s per card and direction, "
                f"of which {self.link.reached:.0%} is reached"
            )
        if self.machines > 1:
            sentences.append(
                f"between machines {self.network_gb_s:g} GB/s per machine and direction (--network), "
                f"of which {_NETWORK_EFFICIENCY:.0%} is reached"
            )
        return sentences


ONE_CARD = Cluster()


# --- communication per update ---


def _block_and_other_bytes(work: TrainingWorkload) -> tuple[int, int]:
    """Bytes of the blocks' weights, and of the others."""
    everything = WEIGHT_BYTES * total_parameters(work)
    blocks = WEIGHT_BYTES * parameters_per_block(work) * work.config.n_layer
    return blocks, everything - blocks


def sent_bytes_per_card(work: TrainingWorkload) -> float:
    """Bytes that each card sends in an update."""
    blocks, others = _block_and_other_bytes(work)
    share = (work.ranks - 1) / work.ranks
    if not work.is_sharded:
        return share * 2 * (blocks + others)
    gathered = work.micro_steps * (2 * blocks + others)
    return share * (gathered + blocks + others + _muon_gather_bytes(work))


def _muon_gather_bytes(work: TrainingWorkload) -> int:
    uses_muon = work.config.optimizer == "muon"
    return WEIGHT_BYTES * block_matrix_parameters(work) if uses_muon else 0


def exposed_communication_s(work: TrainingWorkload, cluster: Cluster, micro_s: float) -> float:
    """Seconds per update that do not overlap with compute. `micro_s`: compute time of a micro-batch."""
    blocks, others = _block_and_other_bytes(work)
    forward_s = micro_s * (
        _FORWARD_SHARE_WITH_RECOMPUTE if work.config.activation_checkpointing else overheads.FORWARD_SHARE
    )
    backward_s = micro_s - forward_s
    layers = work.config.n_layer
    if not work.is_sharded:
        if work.graph or work.compiled:
            return cluster.all_reduce_s(blocks + others)
        head = 0 if work.config.tie_embeddings else WEIGHT_BYTES * head_parameters(work)
        overlapping_s = cluster.all_reduce_s(blocks + head)
        return _exposed_s(overlapping_s, backward_s, layers) + cluster.all_reduce_s(others - head)
    gather_s, others_s = cluster.all_gather_s(blocks), cluster.all_gather_s(others)
    forward = others_s + _exposed_s(gather_s, forward_s, layers)
    backward = _exposed_s(gather_s, backward_s, layers)
    # The last backward pass reduce-scatters gradients too; those of the last block and of non-blocks are
    # exposed.
    last = _exposed_s(2 * gather_s, backward_s, layers) + others_s
    muon = cluster.all_gather_s(_muon_gather_bytes(work))
    return work.micro_steps * forward + (work.micro_steps - 1) * backward + last + muon


def _exposed_s(communication_s: float, computing_s: float, layers: int) -> float:
    """Of one block (the first gathered, or the last reduced), and what takes longer than computing."""
    return communication_s / layers + (layers - 1) / layers * max(0.0, communication_s - computing_s)


def cluster_throughput(
    card: ThroughputEstimate, work: TrainingWorkload, cluster: Cluster
) -> ThroughputEstimate:
    """Throughput of all cards together. `card`: one card without communication."""
    if cluster.ranks == 1:
        return card
    tokens = work.micro_batch_tokens * work.micro_steps
    rates, shares = [], []
    for rate in (card.low, card.mid, card.high):
        computing_s = tokens / rate
        exposed_s = exposed_communication_s(work, cluster, computing_s / work.micro_steps)
        share = computing_s / (computing_s + exposed_s)
        rates.append(cluster.ranks * rate * share)
        shares.append(share)
    low, mid, high = (mfu * share for mfu, share in zip(card.mfu, shares, strict=True))
    return ThroughputEstimate(rates[0], rates[1], rates[2], (low, mid, high), card.why)
