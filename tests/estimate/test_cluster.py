"""Cards together: every formula against a small simulation that counts what really happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.config import TrainConfig
from glassgpt.estimate.cards import cards, find_card
from glassgpt.estimate.cluster import (
    DEFAULT_NETWORK_GB_S,
    ONE_CARD,
    Cluster,
    cluster_throughput,
    exposed_communication_s,
    link_of_card,
    links,
    sent_bytes_per_card,
)
from glassgpt.estimate.forecast import Hardware, TokenCounts, forecast_workload
from glassgpt.estimate.memory import estimate_memory, largest_fitting_batch
from glassgpt.estimate.speed import ThroughputEstimate
from glassgpt.estimate.training_workload import TrainingWorkload, parameters_per_block, total_parameters
from glassgpt.model.gpt import GPT, make_gpt_config

NVLINK = links()["NVLink 4"]


def work(ranks: int = 8, micro_steps: int = 1, shard: bool = False, **settings: Any) -> TrainingWorkload:
    shape: dict[str, Any] = {"n_layer": 3, "n_head": 2, "n_embd": 32, "block_size": 16} | settings
    return TrainingWorkload(
        config=TrainConfig(shard=shard, **shape), vocab_size=100, batch_size=2, micro_steps=micro_steps,
        ranks=ranks,
    )  # fmt: skip


# --- the ring ---


def ring_all_reduce(values: list[list[float]]) -> tuple[list[list[float]], list[int]]:
    """Really adds the vectors up, one number being a piece; what each holds in the end, how many it sent."""
    n = len(values)
    held, sent = [list(row) for row in values], [0] * n
    for phase in range(2):
        for step in range(n - 1):
            moves = []
            for rank in range(n):
                piece = (rank - step + phase) % n
                moves.append(((rank + 1) % n, piece, held[rank][piece]))
                sent[rank] += 1
            for rank, piece, value in moves:
                held[rank][piece] = held[rank][piece] + value if phase == 0 else value
    return held, sent


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_an_all_reduce_takes_what_a_ring_sends(ranks: int) -> None:
    values = [[float(rank * ranks + piece) for piece in range(ranks)] for rank in range(ranks)]
    held, sent = ring_all_reduce(values)
    sums = [sum(row[piece] for row in values) for piece in range(ranks)]
    assert held == [sums] * ranks
    # `ranks` pieces make the tensor: of a million bytes each sent so many.
    cluster = Cluster(ranks, 1, NVLINK)
    seconds = sent[0] / ranks * 1e6 / NVLINK.bytes_per_s
    assert cluster.all_reduce_s(1e6) == pytest.approx(seconds)
    # A gather is the second half of it.
    assert cluster.all_gather_s(1e6) == pytest.approx((ranks - 1) / ranks * 1e6 / NVLINK.bytes_per_s)


def test_the_slowest_link_sets_the_speed() -> None:
    within, fast, slow = (
        Cluster(8, machines, NVLINK, network).ring_bytes_per_s
        for machines, network in ((1, 1.0), (2, 1e6), (2, 1.25))
    )
    assert within == fast == pytest.approx(369e9)  # 82% of 450
    assert slow == pytest.approx(1e9)  # 80% of 1.25
    assert Cluster(1, 4, None, 12.5).ring_bytes_per_s == pytest.approx(10e9)
    assert ONE_CARD.all_reduce_s(1e9) == ONE_CARD.all_gather_s(1e9) == 0.0


# --- what is sent ---


def real_sizes(some: TrainingWorkload) -> tuple[int, int]:
    """Bytes of blocks and others, counted on a real model."""
    model = GPT(make_gpt_config(some.config, some.vocab_size))
    blocks = sum(4 * p.numel() for block in model.transformer.h for p in block.parameters())
    return blocks, sum(4 * p.numel() for p in model.parameters()) - blocks


@pytest.mark.parametrize("settings", [{}, {"bias": True}, {"arch": "modern", "tie_embeddings": False}])
def test_what_is_sent_is_counted_on_the_model(settings: dict[str, Any]) -> None:
    whole = work(**settings)
    blocks, others = real_sizes(whole)
    assert blocks == 4 * 3 * parameters_per_block(whole)
    assert sent_bytes_per_card(whole) == pytest.approx(2 * 7 / 8 * (blocks + others))
    sharded = work(micro_steps=5, shard=True, **settings)
    # Five times blocks for both passes and the others for one; gradients once.
    assert sent_bytes_per_card(sharded) == pytest.approx(
        7 / 8 * (5 * (2 * blocks + others) + blocks + others)
    )
    muon = work(micro_steps=5, shard=True, optimizer="muon", **settings)
    assert sent_bytes_per_card(muon) - sent_bytes_per_card(sharded) == pytest.approx(
        7 / 8 * 4 * 3 * 12 * 32**2
    )
    assert sent_bytes_per_card(work(ranks=1, shard=True)) == 0


# --- what is waited for ---


def simulated_pass(layers: int, gather: float, compute: float, scatter: float) -> float:
    """Seconds of a pass, block by block: one wire, one processor, gathering at most one block ahead."""
    wire = computed = 0.0
    arrived = [0.0] * layers
    for block in range(layers):
        if block == 0:
            wire = arrived[0] = gather
        begun = max(computed, arrived[block])
        if block + 1 < layers:  # asked for when this one begins; what is to be scattered waits behind it
            wire = arrived[block + 1] = max(wire, begun) + gather
        computed = begun + compute
        if scatter and block + 1 < layers:
            wire = max(wire, computed) + scatter
    return max(wire, computed) + scatter


@given(
    st.integers(1, 40), st.floats(1e-4, 10), st.floats(1e-4, 10), st.integers(1, 4), st.booleans()
)  # fmt: skip
def test_exposed_fsdp_communication_is_a_simulated_pass(
    layers: int, per_block: float, compute: float, micro_steps: int, again: bool
) -> None:
    """Where exchange and computing take turns the formula is exact; else it is within a block of it."""
    some = work(micro_steps=micro_steps, shard=True, n_layer=layers, activation_checkpointing=again)
    blocks, others = (4 * n for n in (layers * parameters_per_block(some), _others(some)))
    # A wire on which one block takes `per_block` seconds.
    network = blocks / layers * 7 / 8 / per_block / 0.8e9
    cluster = Cluster(1, 8, None, network)
    micro_s = compute * layers
    share = 1 / 4 if again else 1 / 3
    forward, backward = micro_s * share / layers, micro_s * (1 - share) / layers
    rest = cluster.all_gather_s(others)
    simulated = micro_steps * (simulated_pass(layers, per_block, forward, 0) - micro_s * share + rest)
    simulated += (micro_steps - 1) * (simulated_pass(layers, per_block, backward, 0) - micro_s * (1 - share))
    last = simulated_pass(layers, per_block, backward, per_block) - micro_s * (1 - share) + rest
    found = exposed_communication_s(some, cluster, micro_s)
    assert found == pytest.approx(simulated + last, rel=0.02, abs=3 * (per_block + backward))
    without_last = found - waiting_last(cluster, blocks, backward * layers, layers) - rest
    assert without_last == pytest.approx(simulated, rel=1e-6, abs=1e-9)


def waiting_last(cluster: Cluster, blocks: int, backward_s: float, layers: int) -> float:
    both = 2 * cluster.all_gather_s(blocks)
    return both / layers + (layers - 1) / layers * max(0.0, both - backward_s)


def _others(some: TrainingWorkload) -> int:
    return total_parameters(some) - some.config.n_layer * parameters_per_block(some)


@given(
    st.integers(1, 40), st.floats(1e-4, 10), st.floats(1e-4, 10), st.integers(1, 4), st.booleans()
)  # fmt: skip
def test_exposed_ddp_communication_is_a_simulated_pass(
    layers: int, per_block: float, compute: float, micro_steps: int, tied: bool
) -> None:
    """Only the last backward pass communicates: gradients of a block once computed, of embeddings last."""
    some = work(micro_steps=micro_steps, n_layer=layers, arch="modern", tie_embeddings=tied)
    embedding = 4 * 100 * 32
    rest = 4 * total_parameters(some) - embedding
    cluster = Cluster(1, 8, None, 2 * rest / layers * 7 / 8 / per_block / 0.8e9)
    backward = compute * 2 / 3
    wire = 0.0
    for block in range(layers):
        wire = max(wire, backward * (block + 1)) + per_block
    simulated = wire + cluster.all_reduce_s(embedding) - backward * layers
    found = exposed_communication_s(some, cluster, compute * layers)
    # The last norm, of some hundred bytes, is counted with the embeddings.
    assert found == pytest.approx(simulated, rel=0.02)


def test_without_overlap_the_whole_all_reduce_is_exposed() -> None:
    cluster = Cluster(8, 2, NVLINK, 5.0)
    some = work(ranks=16, micro_steps=7)
    seconds = 2 * 15 / 16 * 4 * total_parameters(some) / 4e9
    for micro_s in (1e-6, 1.0):
        for whole in (replace(some, graph=True), replace(some, compiled=True)):
            assert exposed_communication_s(whole, cluster, micro_s) == pytest.approx(seconds)
    assert exposed_communication_s(some, cluster, 1e-9) == pytest.approx(seconds, rel=1e-3)
    assert exposed_communication_s(some, cluster, 1.0) < 0.8 * seconds


@given(st.integers(1, 64), st.integers(1, 64), st.booleans(), st.floats(0.01, 1000), st.integers(1, 8))
def test_more_cards_are_never_slower_than_waiting_allows(
    inside: int, machines: int, shard: bool, network: float, micro_steps: int
) -> None:
    cluster = Cluster(inside, machines, NVLINK, network)
    some = work(ranks=inside * machines, micro_steps=micro_steps, shard=shard)
    card = ThroughputEstimate(900.0, 1000.0, 1100.0, (9.0, 10.0, 11.0), "")
    throughput = cluster_throughput(card, some, cluster)
    assert 0 < throughput.low <= throughput.mid <= throughput.high <= 1100 * cluster.ranks
    # As many tokens in the time to compute them and to wait.
    own = some.micro_batch_tokens * micro_steps
    seconds = own / card.mid
    if cluster.ranks > 1:
        seconds += exposed_communication_s(some, cluster, own / card.mid / micro_steps)
    assert throughput.mid == pytest.approx(own * cluster.ranks / seconds)
    assert throughput.mfu[1] == pytest.approx(10 * throughput.mid / (1000 * cluster.ranks))


def test_a_forecast_is_of_all_cards() -> None:
    card = find_card("H100 80GB HBM3", 80 * 2**30)
    assert card is not None
    one = TrainingWorkload(config=TrainConfig(max_iters=1000), vocab_size=50304, batch_size=16, micro_steps=4)
    many, cluster = replace(one, ranks=8), Cluster(8, 1, NVLINK)
    tokens = 16 * 4 * 1024

    def ahead(some: TrainingWorkload, tokens_per_update: int, where: Cluster) -> Any:
        on, tokens = Hardware(989e12, card, where), TokenCounts(tokens_per_update, 10**6, 10**6)
        return forecast_workload(some, 854_000_000, on, tokens).times

    alone, together = ahead(one, tokens, ONE_CARD), ahead(many, 8 * tokens, cluster)
    update_s = alone.updates_s[1] / 1000
    waiting = exposed_communication_s(many, cluster, update_s / 4)
    assert together.updates_s[1] == pytest.approx(1000 * (update_s + waiting))
    assert together.evaluation_s == pytest.approx(alone.evaluation_s / 8)


# --- memory ---


def parts(some: TrainingWorkload) -> dict[str, int]:
    return dict(estimate_memory(some).parts)


def test_sharded_memory_is_counted_by_hand() -> None:
    settings: dict[str, Any] = {"n_layer": 24, "n_embd": 1024, "n_head": 16, "block_size": 1024}
    whole, sharded = (
        replace(work(shard=shard, **settings), vocab_size=50304, batch_size=8) for shard in (False, True)
    )
    model = GPT(make_gpt_config(replace(whole.config, n_layer=1), 50304))
    block = sum(p.numel() for p in model.transformer.h[0].parameters())
    others = sum(p.numel() for p in model.parameters()) - block
    total = 24 * block + others
    assert parts(whole)["weights"] == 4 * total
    assert parts(sharded)["weights"] == -(-4 * total // 8)
    assert parts(sharded)["optimizer"] == -(-8 * total // 8)
    assert parts(sharded)["gathered weights"] == 4 * (others + 2 * block)
    assert (
        estimate_memory(whole).context_bytes == estimate_memory(sharded).context_bytes == (600 + 400) * 2**20
    )
    assert estimate_memory(replace(whole, ranks=1)).context_bytes == 600 * 2**20
    assert estimate_memory(sharded).total_bytes < estimate_memory(whole).total_bytes
    # With several micro-batches gradients add up whole before they are scattered.
    assert parts(replace(sharded, micro_steps=2))["gradients"] == 4 * total
    assert "gradients" not in parts(sharded)


def test_one_card_has_nothing_to_shard() -> None:
    assert estimate_memory(work(ranks=1, shard=True)) == estimate_memory(work(ranks=1))


def test_unsharded_cards_hold_a_copy_of_what_they_average() -> None:
    large = replace(work(n_layer=2, n_embd=1024, n_head=8), vocab_size=50304, batch_size=1)
    at_step = [estimate_memory(replace(large, ranks=ranks)) for ranks in (1, 2)]
    assert at_step[0].peak_phase == at_step[1].peak_phase == "step"
    # Larger than a bucket: a tied embedding's two gradients beside their sum.
    assert at_step[1].parts["activations"] == 2 * 4 * 50304 * 1024
    small = replace(large, vocab_size=100)
    assert estimate_memory(replace(small, ranks=2)).parts["activations"] == 2**23
    # A CUDA graph needs them where they are, so the averages are copies.
    graph = replace(small, ranks=2, graph=True)
    assert estimate_memory(graph).parts["activations"] == 4 * total_parameters(graph)


def test_sharding_saves_memory() -> None:
    settings: dict[str, Any] = {"n_layer": 48, "n_embd": 1600, "n_head": 25, "block_size": 1024}
    room = 24 * 2**30
    whole, sharded = (replace(work(shard=shard, **settings), vocab_size=50304) for shard in (False, True))
    assert largest_fitting_batch(whole, room) is None
    assert (largest_fitting_batch(sharded, room) or 0) >= 1


# --- the table ---


def test_every_card_that_can_has_a_link() -> None:
    for card in cards():
        assert (card.link is None) == (card.vendor == "apple"), card.name
        assert card.link is None or card.link in links()


def test_links_are_those_of_the_datasheets() -> None:
    cases: list[tuple[str, str]] = [
        ("H100 SXM5", "NVLink 4"), ("H100 PCIe", "PCIe 5.0 x16"), ("A100 SXM4 80GB", "NVLink 3"),
        ("A100 PCIe 80GB", "PCIe 4.0 x16"), ("V100 SXM2 16GB", "NVLink 2"), ("B200", "NVLink 5"),
        ("RTX 4090", "PCIe 4.0 x16"), ("RTX 4060", "PCIe 4.0 x8"), ("T4", "PCIe 3.0 x16"),
        ("RTX 5090", "PCIe 5.0 x16"), ("Instinct MI300X", "Infinity Fabric 4"),
    ]  # fmt: skip
    wrong = [
        (name, link, got)
        for name, link in cases
        if (got := link_of_card(next(card for card in cards() if card.name == name)).name) != link
    ]
    assert wrong == []


def test_links_are_sourced_and_follow_from_their_lanes() -> None:
    for link in links().values():
        assert link.source
        assert 0 < link.reached <= 1
        if link.name.startswith("PCIe"):
            generation, lanes = int(link.name[5]), int(link.name.rpartition("x")[2])
            transfers = 8 * 2 ** (generation - 3)  # per second and lane, in billions
            assert link.gb_s == pytest.approx(transfers * lanes * 128 / 130 / 8, rel=1e-3)
    assert link_of_card(None).name == "PCIe 3.0 x16"
    assert DEFAULT_NETWORK_GB_S == 100 / 8  # one port of 100 Gbit/s
