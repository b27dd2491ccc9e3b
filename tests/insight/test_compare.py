"""Runs side by side, made by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from histories import made_history, made_steps
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.config import Value
from glassgpt.errors import UserError
from glassgpt.insight.compare import Comparison, compare
from glassgpt.insight.compare.alignment import align, reached, read_at
from glassgpt.insight.compare.progress import Progress
from glassgpt.insight.compare.side import label_of
from glassgpt.insight.facts import facts_of
from glassgpt.insight.history import Evaluation, Format, History, Segment
from glassgpt.insight.inference import inferred_flops_per_token, inferred_parameters

_SHAPE: dict[str, Value] = {
    "n_layer": 6, "n_embd": 384, "block_size": 256, "batch_size": 64, "gradient_accumulation_steps": 1,
    "dataset": "shakespeare_char", "vocab_size": 65, "eval_iters": 200,
}  # fmt: skip


def run(
    losses: Sequence[tuple[int, float]] = ((0, 4.2), (500, 2.0), (1000, 1.6)),
    ms: float = 50.0,
    last: int = 1000,
    **settings: str | int | float | bool | None,
) -> History:
    steps = made_steps(range(0, last + 1, 10), ms)
    return made_history(steps, [(at, None, val) for at, val in losses], settings={**_SHAPE, **settings})


def compared(*histories: History) -> Comparison:
    comparison = compare([(history, facts_of(history)) for history in histories])
    json.dumps(comparison.as_dict(), allow_nan=False)
    return comparison


def ids(comparison: Comparison) -> list[str]:
    return [one.id for one in comparison.verdict]


def said(comparison: Comparison, id: str) -> str:
    (found,) = [one for one in comparison.verdict if one.id == id]
    return " ".join((found.claim, *found.details))


def curve(points: Sequence[tuple[float, float]]) -> Progress:
    at = np.array([x for x, _ in points])
    return Progress(np.array([y for _, y in points]), at.astype(np.int64), {"iterations": at})


# --- reading curves ---


def test_between_two_evaluations_the_line_is_taken() -> None:
    reading = read_at(curve([(0, 4.0), (100, 2.0)]), "iterations", 25)
    assert reading is not None
    assert (reading.loss, reading.low, reading.high, reading.exact) == (3.5, 2.0, 4.0, False)


def test_never_beyond_the_evaluations() -> None:
    line = curve([(10, 4.0), (100, 2.0)])
    assert read_at(line, "iterations", 9) is None
    assert read_at(line, "iterations", 101) is None


@given(st.lists(st.floats(0.1, 12), min_size=2, max_size=20), st.floats(0, 1))
def test_a_reading_lies_between_its_neighbours(losses: list[float], share: float) -> None:
    line = curve([(10.0 * i, value) for i, value in enumerate(losses)])
    reading = read_at(line, "iterations", share * 10 * (len(losses) - 1))
    assert reading is not None
    assert min(losses) - 1e-9 <= reading.low <= reading.high <= max(losses) + 1e-9
    assert reading.low - 1e-9 <= reading.loss <= reading.high + 1e-9


def test_the_largest_common_point_is_where_the_shorter_ends() -> None:
    alignment = align("iterations", [curve([(0, 4.0), (100, 2.0)]), curve([(0, 4.0), (1000, 1.0)])])
    assert alignment.points[-1].at == 100


def test_no_common_stretch_no_points() -> None:
    alignment = align("iterations", [curve([(0, 4.0), (100, 2.0)]), curve([(200, 4.0), (300, 1.0)])])
    assert not alignment.points
    assert alignment.reason


def test_when_a_loss_was_reached() -> None:
    found = reached([curve([(0, 4.0), (100, 2.0)]), curve([(0, 4.0), (100, 1.0)])])
    assert found is not None
    assert found.loss == 2.0
    first, other = found.at["iterations"]
    assert first == 100
    assert other == pytest.approx(66.67, abs=0.01)


# --- verdicts ---


def test_one_run_is_not_enough() -> None:
    with pytest.raises(UserError, match="at least two"):
        compared(run())


def test_a_run_equals_itself() -> None:
    comparison = compared(run(), run())
    assert "equally-fast" in ids(comparison)
    assert "equally-good" in ids(comparison)
    assert not comparison.differences
    assert "hardware-not-cause" not in ids(comparison)


def test_the_same_settings_on_faster_hardware() -> None:
    comparison = compared(run(device="cpu", ms=500.0), run(device="cuda"))
    assert "B is faster than A" in said(comparison, "faster")
    assert "device (cpu / cuda)" in said(comparison, "faster-by-rate")
    assert "equally-good" in ids(comparison)


def test_same_settings_other_loss_is_left_unexplained() -> None:
    comparison = compared(run(device="cpu"), run([(0, 4.2), (500, 1.9), (1000, 1.5)], device="cuda"))
    assert "better-unexplained" in ids(comparison)
    assert "hardware-not-cause" not in ids(comparison)


def test_a_difference_within_the_noise_is_none() -> None:
    comparison = compared(run(eval_iters=1), run([(0, 4.2), (500, 2.0), (1000, 1.59)], eval_iters=1))
    assert "cannot be told apart" in said(comparison, "equally-good")
    assert "better" not in ids(comparison)


def test_noise_as_the_log_says_it() -> None:
    history = run()
    evals = tuple(replace(done, stderr=0.05) for done in history.evals)
    comparison = compared(replace(history, evals=evals), replace(history, evals=evals))
    assert "±0.05, as its log says" in said(comparison, "noise")


def test_the_learning_rate_is_named_as_a_cause() -> None:
    comparison = compared(
        run(learning_rate=1e-3), run([(0, 4.2), (500, 1.9), (1000, 1.5)], learning_rate=3e-4)
    )
    assert "learning_rate: 0.001 / 0.0003." in said(comparison, "better-because")


def test_more_iterations_are_named_as_a_cause() -> None:
    longer = run([(0, 4.2), (500, 2.0), (1000, 1.6), (2000, 1.4)], last=2000, max_iters=2000)
    comparison = compared(run(max_iters=1000), longer)
    assert said(comparison, "better").startswith("B is better")
    assert "after 1,000 each, A is not behind" in said(comparison, "iterations-cause")


def test_a_run_that_was_cut_short_is_not_called_worse() -> None:
    longer = run([(0, 4.2), (500, 2.0), (1000, 1.6), (2000, 1.4)], last=2000, max_iters=2000)
    cut = run([(0, 4.2), (500, 2.0), (1000, 1.6)], last=1200, max_iters=2000)
    comparison = compared(cut, longer)
    assert "the evaluations of A end at iteration 1,000" in said(comparison, "better-open")
    assert "better" not in ids(comparison)


def test_fewer_but_larger_iterations_are_as_much() -> None:
    wide = run([(0, 4.2), (250, 2.2), (500, 1.8)], last=600, batch_size=128)
    comparison = compared(wide, run())
    assert said(comparison, "better").startswith("B is better")


def test_three_runs_are_judged_against_the_first() -> None:
    comparison = compared(run(), run(ms=100.0), run(ms=25.0))
    speeds = [one.runs for one in comparison.verdict if one.id == "faster"]
    assert speeds == [("A", "B"), ("C", "A")]
    assert [side.label for side in comparison.sides] == ["A", "B", "C"]


def test_overhead_that_differs() -> None:
    slow = run()
    ms = slow.steps.ms.copy()
    ms[[0, 50, 100]] = 20_000
    comparison = compared(run(), replace(slow, steps=replace(slow.steps, ms=ms)))
    assert "B spends" in said(comparison, "overhead")


# --- what does not compare ---


def test_other_data_is_refused() -> None:
    comparison = compared(run(), run(dataset="openwebtext"))
    assert "A is evaluated on shakespeare_char, B on openwebtext" in said(comparison, "not-comparable")
    assert not comparison.aligned["iterations"].points


def test_other_vocabularies_are_refused_without_bytes() -> None:
    comparison = compared(run(), run(vocab_size=50257))
    assert "A has 65 tokens, B has 50,257" in said(comparison, "not-comparable")


def test_other_vocabularies_compare_per_byte() -> None:
    char, bpe = run(), run([(0, 10.8), (1000, 4.0)], vocab_size=50257)
    char = replace(char, setup=replace(char.setup, bytes_per_token=1.0))
    bpe = replace(bpe, setup=replace(bpe.setup, bytes_per_token=3.3))
    comparison = compared(char, bpe)
    assert f"B {4.0 / math.log(2) / 3.3:.4f}" in said(comparison, "better-per-byte")


def test_padded_vocabularies_are_the_same() -> None:
    comparison = compared(run(vocab_size=50304), run(vocab_size=50257))
    assert "not-comparable" not in ids(comparison)


def test_starts_far_apart_are_refused_where_no_vocabulary_is_said() -> None:
    comparison = compared(run(vocab_size=None), run([(0, 10.9), (1000, 4.0)], vocab_size=None))
    assert "--b.vocab_size" in said(comparison, "not-comparable")


def test_what_no_log_says_is_assumed() -> None:
    comparison = compared(run(dataset=None), run(dataset=None))
    assert "assumed to be the same" in said(comparison, "assumed-comparable")


def test_bits_per_byte_and_losses() -> None:
    bits = replace(run(), val_metric="bits_per_byte")
    assert "not-comparable" in ids(compared(run(), bits))


# --- little to go by ---


def test_without_evaluations_training_losses_compare() -> None:
    steps = made_steps(range(1000), 50.0, loss=list(np.linspace(4, 2, 1000)))
    lower = made_steps(range(1000), 50.0, loss=list(np.linspace(4, 1, 1000)))
    comparison = compared(made_history(steps, settings=_SHAPE), made_history(lower, settings=_SHAPE))
    assert comparison.measure == "training"
    assert "training-losses" in ids(comparison)
    assert said(comparison, "better").startswith("B is better")


def test_neither_losses_nor_times() -> None:
    steps = made_steps([0, 1, 2], [math.nan] * 3)
    comparison = compared(made_history(steps), made_history(steps))
    assert ids(comparison) == ["speed-unknown", "no-losses"]


def test_nan_losses_are_left_out() -> None:
    comparison = compared(run([(0, 4.2), (500, 2.0), (1000, math.nan)]), run())
    assert comparison.sides[0].best == (2.0, 500)


def test_empty_histories() -> None:
    empty = made_history(made_steps([]))
    assert "no-losses" in ids(compared(empty, run(), empty))


def test_what_a_restart_made_void_is_left_out() -> None:
    history = run()
    evals = (
        *(Evaluation(at, 0, val) for at, val in ((0, 4.2), (500, 2.0), (1000, 1.0))),
        *(Evaluation(at, 1, val) for at, val in ((500, 2.1), (1000, 1.7))),
    )
    segments = (Segment(starts=True), Segment(starts=True, resumed=True))
    again = replace(history, evals=evals, segments=segments)
    assert compared(again, run()).sides[0].best == (1.7, 1000)


# --- sizes ---


def nano_mfu(flops_per_token: float, ms: Sequence[float], tokens: int = 16_384) -> list[float]:
    """As nanoGPT prints it: a running average, rounded."""
    average = math.nan
    printed = []
    for time in ms:
        now = 100 * flops_per_token * tokens / (time / 1000) / 312e12
        average = now if math.isnan(average) else 0.9 * average + 0.1 * now
        printed.append(round(average, 2))
    return printed


def with_mfu(flops_per_token: float, **settings: int | None) -> History:
    ms = [12.0 + (i * 7 % 5) for i in range(200)]
    steps = made_steps(range(0, 2000, 10), ms, mfu=nano_mfu(flops_per_token, ms))
    return made_history(steps, settings={**_SHAPE, **settings})


def test_the_size_is_read_back_through_the_running_average() -> None:
    true = 6 * 10_646_784 + 12 * 6 * 384 * 256
    history = with_mfu(true)
    facts = facts_of(history)
    assert inferred_flops_per_token(history, facts) == pytest.approx(true, rel=0.002)
    assert inferred_parameters(history, facts) == pytest.approx(10_646_784, rel=0.002)


def test_a_coarse_mfu_infers_nothing() -> None:
    history = with_mfu(1e5)
    assert inferred_flops_per_token(history, facts_of(history)) is None


def test_other_formulas_infer_no_parameters() -> None:
    llmc = Format("llm.c", "llm.c", times_hold_eval=False, mfu_peak=312e12)
    history = replace(with_mfu(71e6), format=llmc)
    assert inferred_parameters(history, facts_of(history)) is None


def test_several_devices_are_not_a_smaller_model() -> None:
    """MFU is of one of four, tokens per iteration are of all."""
    true = 6 * 10_646_784 + 12 * 6 * 384 * 256
    history = with_mfu(true / 4)
    comparison = compared(history, history)
    assert "parameters-contradicted" not in ids(comparison)
    assert comparison.sides[0].derived.size.flops_per_token == pytest.approx(true, rel=0.001)


def test_letters_go_on() -> None:
    assert [label_of(i) for i in (0, 25, 26, 27)] == ["A", "Z", "AA", "AB"]


# --- GlassGPT's own ---


def own(losses: Sequence[tuple[int, float]], device: str = "auto") -> History:
    history = run(losses, device=device)
    setup = replace(history.setup, data={"name": "x", "hash": "1", "tokenizer": "char"}, machine=_MACHINE)
    evals = tuple(replace(done, stderr=0.05, tokens=16_384) for done in history.evals)
    glass = Format("glassgpt", "GlassGPT", times_hold_eval=False)
    return replace(history, format=glass, setup=setup, evals=evals)


_MACHINE = {
    "device": {"type": "cpu"},
    "torch": "2.13.0",
    "choices": [{"name": "device"}],
    "cpu": {"model": "x"},
}


def test_losses_on_the_same_tokens_are_not_drowned_in_their_common_noise() -> None:
    comparison = compared(own([(0, 4.2), (1000, 1.7)]), own([(0, 4.2), (1000, 1.6)]))
    assert "better" in ids(comparison)
    assert "Both evaluate the same tokens" in said(comparison, "noise")


def test_the_device_that_was_found_counts() -> None:
    comparison = compared(own([(0, 4.2), (1000, 1.7)], device="auto"), run(device="cpu"))
    names = [one.name for one in comparison.differences]
    assert "device" not in names
    assert "choices" not in names


def test_versions_that_differ_are_listed() -> None:
    left = own([(0, 4.2), (1000, 1.7)])
    right = replace(left, setup=replace(left.setup, machine={**_MACHINE, "torch": "2.11.0"}))
    (found,) = compared(left, right).differences
    assert (found.group, found.name, found.values) == ("versions", "torch", ("2.13.0", "2.11.0"))
