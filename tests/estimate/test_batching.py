"""An update's tokens cut into micro-batches: nothing lost, nothing invented, contradictions named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate.batching import BatchPlan, plan_batch
from glassgpt.validate import find_config_problems

few = settings(max_examples=200, deadline=None)
sizes = st.none() | st.integers(1, 64)


@few
@given(
    sizes,
    sizes,
    st.none() | st.integers(1, 400),
    st.integers(1, 128),
    st.none() | st.integers(1, 100),
    st.sampled_from(["cpu", "cuda", "mps"]),
    st.integers(1, 4),
)
def test_sizes_multiply_to_the_tokens(
    size: int | None,
    steps: int | None,
    sequences: int | None,
    T: int,
    fits: int | None,
    device: str,
    ranks: int,
) -> None:
    config = TrainConfig(
        block_size=T,
        batch_size=size,
        gradient_accumulation_steps=steps,
        batch_tokens=sequences and sequences * T,
    )
    if find_config_problems(config):
        return
    try:
        plan, choices = plan_batch(config, device, fits, ranks)
    except UserError:
        # Only one thing can be wrong with settings that made sense: that the processes cannot share them.
        assert (sequences or (size or 12) * (steps or ranks)) % ranks
        return
    assert plan.batch_size >= 1
    assert plan.micro_steps >= 1
    assert plan.sequences == plan.batch_size * plan.micro_steps * ranks
    assert plan.tokens == plan.sequences * T
    assert plan.tokens == config.batch_tokens or config.batch_tokens is None
    assert plan.tokens_per_rank * ranks == plan.tokens
    asked = steps or (sequences // size if sequences and size else 0)
    if asked % ranks == 0:
        assert size in (None, plan.batch_size)
        assert steps in (None, plan.micro_steps * ranks)
    assert choices[-1].value == plan.tokens
    if size is None and steps is None and sequences:
        assert plan.batch_size <= (fits or plan.batch_size)


def plan(device: str = "cpu", fits: int | None = None, ranks: int = 1, **settings: int) -> BatchPlan:
    return plan_batch(TrainConfig(**settings), device, fits, ranks)[0]  # type: ignore[arg-type]


def test_without_settings_it_is_nanogpts_micro_batch_once() -> None:
    assert plan(block_size=64) == BatchPlan(12, 1, 12, 768)
    assert plan(block_size=64, ranks=4) == BatchPlan(12, 1, 48, 3072)


def test_one_sequence_is_singular() -> None:
    _, choices = plan_batch(TrainConfig(batch_size=1, block_size=32), "cpu", None)
    assert choices[-1].reason == "1 sequence x 32 tokens per update"


def test_each_pair_of_settings_gives_the_third() -> None:
    expected = BatchPlan(6, 4, 24, 24 * 32)
    assert plan(block_size=32, batch_size=6, gradient_accumulation_steps=4) == expected
    assert plan(block_size=32, batch_size=6, batch_tokens=768) == expected
    assert plan(block_size=32, gradient_accumulation_steps=4, batch_tokens=768) == expected


@pytest.mark.parametrize(
    ("device", "fits", "size", "why"),
    [
        ("cpu", None, 16, "more than 4,096 tokens per micro-batch are not faster on cpu"),
        ("cuda", None, 240, "more than 65,536 tokens per micro-batch are not faster on cuda"),
        ("cuda", 13, 12, "memory is estimated to hold 13 sequences at once"),
        ("cuda", 1000, 240, "more than 65,536 tokens"),
    ],
)
def test_the_micro_batch_is_chosen_with_a_reason(device: str, fits: int | None, size: int, why: str) -> None:
    config = TrainConfig(block_size=256, batch_tokens=480 * 256)
    found, choices = plan_batch(config, device, fits)
    assert found == BatchPlan(size, 480 // size, 480, 480 * 256)
    assert choices[0].value == size
    assert why in choices[0].reason
    assert "divides the update's 480 sequences" in choices[0].reason


def test_a_small_update_goes_in_one_pass() -> None:
    found, choices = plan_batch(TrainConfig(block_size=64, batch_tokens=640), "cpu", None)
    assert found == BatchPlan(10, 1, 10, 640)
    assert "the whole update fits in one pass" in choices[0].reason


def test_a_context_longer_than_what_pays_still_goes_one_at_a_time() -> None:
    assert plan(block_size=8192, batch_tokens=3 * 8192) == BatchPlan(1, 3, 3, 3 * 8192)


def test_processes_share_an_update_in_smaller_micro_batches_if_need_be() -> None:
    config = TrainConfig(block_size=8, batch_size=4, gradient_accumulation_steps=6)
    assert plan_batch(config, "cpu", None, ranks=3)[0] == BatchPlan(4, 2, 24, 192)
    plan, choices = plan_batch(config, "cpu", None, ranks=4)
    assert plan == BatchPlan(3, 2, 24, 192)  # the same update
    assert (choices[0].name, choices[0].value) == ("batch_size", 3)
    assert choices[0].reason == "not 4: so that 4 processes can share the update's 24 sequences"
    with pytest.raises(
        UserError, match=r"an update of 24 sequences .* by 5 cards or processes; --batch_tokens="
    ):
        plan_batch(config, "cpu", None, ranks=5)


def test_contradictions_are_named(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, int], str]] = [
        ({"batch_tokens": 100}, "not a multiple of --block_size=8; try --batch_tokens=96"),
        ({"batch_tokens": 3}, "try --batch_tokens=8"),
        (
            {"batch_tokens": 96, "batch_size": 4, "gradient_accumulation_steps": 4},
            "is 128 tokens, not --batch_tokens=96; leave one of them out",
        ),
        ({"batch_tokens": 96, "batch_size": 5}, "--batch_size=5 does not divide"),
        ({"batch_tokens": 96, "gradient_accumulation_steps": 5}, "steps=5 does not divide"),
    ]
    for settings_, message in cases:
        with subtests.test(repr(settings_)):
            problems = find_config_problems(TrainConfig(block_size=8, **settings_))  # type: ignore[arg-type]
            assert len(problems) == 1
            assert message in problems[0]
