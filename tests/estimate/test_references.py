"""The rows compared with arithmetic and the card table; the MFU range compared with each row left out."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.plan import (
    LEFT_OUT,
    LeftOutPrediction,
    conformal_quantile,
    coverage_by_card,
    predict_left_out,
)
from glassgpt.config import TrainConfig
from glassgpt.estimate.cards import Card, cards, find_card
from glassgpt.estimate.flops import model_flops_per_token
from glassgpt.estimate.speed import (
    MfuRange,
    SpeedReference,
    expected_mfu_range,
    reference_rows,
)
from glassgpt.estimate.training_workload import TrainingWorkload

GPT2 = TrainingWorkload(
    config=TrainConfig(batch_size=64, dropout=0.0, bias=False), vocab_size=50304, batch_size=64
)


def mfu_of(found: Card | None, peak: float, work: TrainingWorkload) -> MfuRange:
    return expected_mfu_range(found, peak, work, model_flops_per_token(work.config, work.vocab_size))


def row(name: str) -> SpeedReference:
    (found,) = (one for one in reference_rows() if one.name == name)
    return found


def card(name: str) -> Card:
    found = find_card(name)
    assert found is not None, name
    return found


def card_of(one: SpeedReference) -> Card | None:
    return card(one.card) if one.card else None


# --- the rows ---


def test_names_are_unique_and_fields_are_known() -> None:
    text = (resources.files("glassgpt.estimate") / "references.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    assert len({one.name for one in reference_rows()}) == len(reference_rows()) == len(table["row"])
    assert {key for one in table["row"] for key in one} <= {field.name for field in fields(SpeedReference)}
    assert set(table["shapes"]) == {one["shape"] for one in table["row"]}


def test_every_row_says_where_it_is_from_and_how_fast_it_was(subtests: pytest.Subtests) -> None:
    for one in reference_rows():
        with subtests.test(one.name):
            assert one.source
            assert (one.step_ms is None) != (one.tokens_per_s is None)
            assert one.kernels in ("plain", "compiled", "triton", "llm.c")
            assert one.card or one.machine
            assert not one.card or find_card(one.card) is not None
            assert one.counts or one.caution, "why it does not count"
            assert not one.counts or one.mfu is not None


def test_what_is_derived_is_computed_again(subtests: pytest.Subtests) -> None:
    for one in reference_rows():
        with subtests.test(one.name):
            check_derived(one)


def check_derived(one: SpeedReference) -> None:
    shape = one.work.config
    matrices = 12 * shape.n_layer * shape.n_embd**2 + one.work.vocab_size * shape.n_embd
    gains = (2 * shape.n_layer + 1) * shape.n_embd
    per_token = 6 * (matrices + gains) + 12 * shape.n_layer * shape.n_embd * shape.block_size
    per_update = one.count * one.accumulation * one.micro_batch * shape.block_size
    tokens_per_s = one.tokens_per_s or per_update / (one.step_ms or 0) * 1000
    flops_per_s = tokens_per_s / one.count * per_token
    assert one.flops_per_token == per_token
    assert one.tflops == pytest.approx(flops_per_s / 1e12, rel=1e-3)
    found = card_of(one)
    if found is not None:
        assert one.mfu == pytest.approx(100 * flops_per_s / found.peaks[one.dtype], abs=0.06)
    elif one.peak_tflops is not None:
        assert one.mfu == pytest.approx(100 * one.tflops / one.peak_tflops, abs=0.06)
    else:
        assert one.mfu is None


def test_it_is_the_mfu_that_was_posted_on_the_right_scale() -> None:
    cases: list[tuple[str, float]] = [
        ("V100, nanoGPT 124M", 100 * 15.34e-2 * 312 / 125),  # printed against an A100
        ("RTX 4090, nanoGPT 124M", 54.8),
        ("H100, nanoGPT 124M", 32.8),
        ("A100 x 8, nanochat d20", 74.13),
        ("RTX 4090, nanochat d20", 13.44 * 989 / 165.2),  # printed against an H100
        ("H100 x 8, nanochat d20", 49.43),
        ("H200, nanoGPT 124M, 4 sequences", 24.0),
        ("H200, nanoGPT 124M, 64 sequences", 45.3),
        ("H200, nanochat d12 at 1024 tokens", 43.7),
        ("RTX 4070 Ti, nanoGPT 124M", 60.0),
    ]
    wrong = [
        (name, posted, got)
        for name, posted in cases
        if (got := row(name).mfu) != pytest.approx(posted, rel=0.01)
    ]
    assert wrong == []


def test_our_own_rows_are_there() -> None:
    assert row("H200, GlassGPT 124M").total_tokens_per_s == pytest.approx(569_300, rel=0.001)
    assert row("H200, GlassGPT 124M").peak_gib == 21.1
    ours = {one.name for one in reference_rows() if one.trainer == "GlassGPT"}
    assert len(ours) == 15


# --- the MFU range ---


@cache
def left_out(what: str) -> list[LeftOutPrediction]:
    return predict_left_out(what)


def test_what_is_left_out_is_not_used(subtests: pytest.Subtests) -> None:
    for what, key in LEFT_OUT.items():
        with subtests.test(what):
            for one in left_out(what):
                same = {other.name for other in reference_rows() if key(other) == key(one.row)}
                assert one.row.name in same
                assert same.isdisjoint(one.expected.rows)


def test_the_band_holds_about_what_it_says_whatever_is_left_out() -> None:
    """80%: of rows and of cards. Far more would be a band that says too little."""
    for what in LEFT_OUT:
        predictions = left_out(what)
        assert len(predictions) >= 40
        inside = sum(one.is_inside for one in predictions) / len(predictions)
        assert 0.8 <= inside <= 0.97, what
        assert 0.8 <= coverage_by_card(predictions) <= 0.97, what


def test_the_band_of_other_cards_is_wide_enough_conformally() -> None:
    """The score that 80% of the cards stay below: at most 1, and not far below."""
    elsewhere = [one for one in left_out("all rows of its card") if not one.uses_its_card]
    assert len({one.row.card for one in elsewhere}) == 13
    assert 0.8 <= conformal_quantile(elsewhere) <= 1


def test_the_conformal_quantile_weighs_cards_not_rows() -> None:
    scores = {"RTX 4090": [0.5, 0.5, 0.5, 0.5], "H200": [2.0], "A100": [1.5], "V100": [1.0]}
    made = [Scored(card, score) for card, found in scores.items() for score in found]
    assert conformal_quantile(made, 0.4) == 1.0  # type: ignore[arg-type]  # two of five
    assert conformal_quantile(made, 0.8) == 2.0  # type: ignore[arg-type]  # four of five
    assert conformal_quantile(made, 0.9) == math.inf  # type: ignore[arg-type]  # too few cards to say


@dataclass(frozen=True)
class Scored:
    name: str
    score: float

    @property
    def row(self) -> SimpleNamespace:
        return SimpleNamespace(card=self.name)


def test_with_all_rows_nearly_all_are_inside() -> None:
    counting = [one for one in reference_rows() if one.counts]
    inside = [
        one.name
        for one in counting
        if (mfu_range := mfu_of(card_of(one), one.peak_flops_per_s or 0, one.work)).low
        <= (one.mfu or 0)
        <= mfu_range.high
    ]
    assert len(inside) >= 0.95 * len(counting)


def test_rows_on_the_card_are_taken_first() -> None:
    mfu_range = mfu_of(card("H200"), 989.4e12, GPT2)
    assert "reference runs on this card with a similar model: " in mfu_range.reason
    assert all(name.startswith("H200") for name in mfu_range.rows)
    assert mfu_range.low < 48.1 < mfu_range.high
    assert mfu_range.mid == pytest.approx(50, rel=0.05)


def test_then_its_family_then_its_kind_then_any() -> None:
    def reason(name: str) -> str:
        return mfu_of(card(name), 100e12, GPT2).reason

    assert "cards of its family (GeForce RTX 40 (Ada)) reached" in reason("RTX 4060")
    assert "cards of its kind (GeForce) reached" in reason("RTX 2080 Ti")
    assert "other cards reached" in reason("Instinct MI300X")


def test_fewer_and_less_similar_rows_widen_the_range() -> None:
    def width(name: str) -> float:
        mfu_range = mfu_of(card(name), 1e15, GPT2)
        return mfu_range.high / mfu_range.low

    assert width("H200") < width("H100 PCIe") < width("Instinct MI300X")


def test_kernels_and_8_bits_matter() -> None:
    def mid(**changes: object) -> float:
        return mfu_of(card("H200"), 989.4e12, replace(GPT2, **changes)).mid  # type: ignore[arg-type]

    fp8 = replace(GPT2.config, fp8=True)
    assert mid(kernels=False) < mid(kernels=False, compiled=True) < mid() < mid(config=fp8)


# --- small models ---


@pytest.mark.parametrize(
    "name",
    [
        "H200, nanoGPT 124M, 4 sequences",
        "H200, nanoGPT shakespeare_char",
        "H200, GlassGPT shakespeare_char, plain",
        "H200, GlassGPT shakespeare_char, compiled",
    ],
)
def test_a_small_model_is_launch_bound(name: str) -> None:
    one = row(name)
    assert one.is_launch_bound
    assert one.peak_flops_per_s is not None
    assert one.mfu is not None
    mfu_range = expected_mfu_range(
        card_of(one),
        one.peak_flops_per_s,
        one.work,
        one.flops_per_token,
        without=[other.name for other in reference_rows()],
    )
    assert mfu_range.reason.startswith("small model, launch-bound: ")
    assert mfu_range.rows == ()
    assert mfu_range.low <= one.mfu <= mfu_range.high


def test_with_a_cuda_graph_it_is_not_launch_bound() -> None:
    mfu_range = mfu_of(card("H200"), 989.4e12, row("H200, GlassGPT shakespeare_char").work)
    assert "on this card" in mfu_range.reason
    assert mfu_range.low < 22.6 < mfu_range.high


def test_a_slow_card_is_not_launch_bound() -> None:
    one = row("RTX 4070 Ti, nanoGPT shakespeare_char")
    assert not one.is_launch_bound
    assert one.peak_flops_per_s is not None
    assert "launches" not in mfu_of(card_of(one), one.peak_flops_per_s, one.work).reason


# --- anywhere ---


@given(
    st.one_of(st.none(), st.sampled_from(cards())),
    st.floats(1e9, 1e16),
    st.builds(
        TrainingWorkload,
        config=st.builds(
            TrainConfig,
            n_layer=st.integers(1, 200),
            n_head=st.just(3),
            n_embd=st.integers(1, 3000).map(lambda third: 3 * third),
            block_size=st.integers(1, 10**5),
            arch=st.sampled_from(["gpt2", "modern"]),
            optimizer=st.sampled_from(["adamw", "muon"]),
            dropout=st.sampled_from([0.0, 0.1]),
            activation_checkpointing=st.booleans(),
            fp8=st.booleans(),
        ),
        vocab_size=st.integers(1, 10**6),
        batch_size=st.integers(1, 10**4),
        micro_steps=st.integers(1, 100),
        dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
        kernels=st.booleans(),
        graph=st.booleans(),
        attention=st.sampled_from(["sdpa", "manual"]),
    ),
)
def test_a_range_is_always_ordered(found: Card | None, peak: float, work: TrainingWorkload) -> None:
    mfu_range = mfu_of(found, peak, work)
    assert 0 < mfu_range.low <= mfu_range.mid <= mfu_range.high <= 95
    assert mfu_range.reason


# --- what docs/what-to-expect.md says ---


def test_the_page_has_the_coverage_and_the_missed_rows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "what-to-expect.md").read_text(encoding="utf-8")
    for what in LEFT_OUT:
        predictions = left_out(what)
        inside = sum(one.is_inside for one in predictions)
        line = f"| {what} | {inside} of {len(predictions)} | {coverage_by_card(predictions):.0%} |"
        assert line in page
    missed = [one.row.name for one in left_out("all rows of its card and model") if not one.is_inside]
    listed = re.findall(r"^\| ([^|]+) \| ([\d.]+)% \|", page, re.M)
    assert [name for name, _ in listed] == missed
    assert all(row(name).mfu == float(mfu) for name, mfu in listed)


def test_one_row_alone_does_not_decide() -> None:
    mfu_range = mfu_of(card("RTX 4070"), 58.3e12, replace(GPT2, batch_size=8))
    assert mfu_range.reason.startswith("only one reference run on this card, so cards of its family")
    assert mfu_range.low < 60 < 84.7 < mfu_range.high
