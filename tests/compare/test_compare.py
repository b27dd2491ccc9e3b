"""Runs side by side, made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from compared_runs import SHAPE, claim_ids, claim_text, compare_histories, make_run
from run_logs import make_run_log, make_steps

from glassgpt.compare.compared_run import run_label
from glassgpt.errors import UserError
from glassgpt.runs.noise import estimate_eval_noise
from glassgpt.runs.run_log import LoggedEvaluation, RunLog, Segment
from glassgpt.runs.trainers import BY_ID
from glassgpt.runs.trajectory import trajectory_of

# --- verdicts ---


def test_one_run_is_not_enough() -> None:
    with pytest.raises(UserError, match="at least two"):
        compare_histories(make_run())


def test_a_run_equals_itself() -> None:
    comparison = compare_histories(make_run(), make_run())
    assert "equally-fast" in claim_ids(comparison)
    assert "equally-good" in claim_ids(comparison)
    assert not comparison.differences
    assert "hardware-not-cause" not in claim_ids(comparison)


def test_the_same_settings_on_faster_hardware() -> None:
    comparison = compare_histories(make_run(device="cpu", ms=500.0), make_run(device="cuda"))
    assert "B is faster than A" in claim_text(comparison, "faster")
    assert "device (cpu / cuda)" in claim_text(comparison, "faster-by-rate")
    assert "equally-good" in claim_ids(comparison)


def test_same_settings_other_loss_is_left_unexplained() -> None:
    comparison = compare_histories(
        make_run(device="cpu"), make_run([(0, 4.2), (500, 1.9), (1000, 1.5)], device="cuda")
    )
    assert "better-unexplained" in claim_ids(comparison)
    assert "hardware-not-cause" not in claim_ids(comparison)


def test_a_difference_within_the_noise_is_none() -> None:
    comparison = compare_histories(
        make_run(eval_iters=1), make_run([(0, 4.2), (500, 2.0), (1000, 1.59)], eval_iters=1)
    )
    assert "cannot be distinguished" in claim_text(comparison, "equally-good")
    assert "better" not in claim_ids(comparison)


def test_noise_as_the_log_says_it() -> None:
    history = make_run()
    evals = tuple(replace(done, stderr=0.05) for done in history.evals)
    comparison = compare_histories(replace(history, evals=evals), replace(history, evals=evals))
    assert "±0.05, as its log says" in claim_text(comparison, "noise")


def test_the_learning_rate_is_named_as_a_cause() -> None:
    comparison = compare_histories(
        make_run(learning_rate=1e-3), make_run([(0, 4.2), (500, 1.9), (1000, 1.5)], learning_rate=3e-4)
    )
    assert "learning_rate: 0.001 / 0.0003." in claim_text(comparison, "better-because")


def test_more_iterations_are_named_as_a_cause() -> None:
    longer = make_run([(0, 4.2), (500, 2.0), (1000, 1.6), (2000, 1.4)], last=2000, max_iters=2000)
    comparison = compare_histories(make_run(max_iters=1000), longer)
    assert claim_text(comparison, "better").startswith("B is better")
    assert "after 1,000 each, A is not behind" in claim_text(comparison, "iterations-cause")


def test_a_run_that_was_cut_short_is_not_called_worse() -> None:
    longer = make_run([(0, 4.2), (500, 2.0), (1000, 1.6), (2000, 1.4)], last=2000, max_iters=2000)
    cut = make_run([(0, 4.2), (500, 2.0), (1000, 1.6)], last=1200, max_iters=2000)
    comparison = compare_histories(cut, longer)
    assert "the evaluations of A end at iteration 1,000" in claim_text(comparison, "better-open")
    assert "better" not in claim_ids(comparison)


def test_fewer_but_larger_iterations_are_as_much() -> None:
    wide = make_run([(0, 4.2), (250, 2.2), (500, 1.8)], last=600, batch_size=128)
    comparison = compare_histories(wide, make_run())
    assert claim_text(comparison, "better").startswith("B is better")


def test_three_runs_are_judged_against_the_first() -> None:
    comparison = compare_histories(make_run(), make_run(ms=100.0), make_run(ms=25.0))
    speeds = [one.labels for one in comparison.verdict if one.id == "faster"]
    assert speeds == [("A", "B"), ("C", "A")]
    assert [side.label for side in comparison.runs] == ["A", "B", "C"]


def test_overhead_that_differs() -> None:
    slow = make_run()
    ms = slow.steps.ms.copy()
    ms[[0, 50, 100]] = 20_000
    comparison = compare_histories(make_run(), replace(slow, steps=replace(slow.steps, ms=ms)))
    assert "B spends" in claim_text(comparison, "overhead")


# --- what does not compare ---


def test_other_data_is_refused() -> None:
    comparison = compare_histories(make_run(), make_run(dataset="openwebtext"))
    assert "A is evaluated on shakespeare_char, B on openwebtext" in claim_text(comparison, "not-comparable")
    assert not comparison.aligned["iterations"].points


def test_other_vocabularies_are_refused_without_bytes() -> None:
    comparison = compare_histories(make_run(), make_run(vocab_size=50257))
    assert "A has 65 tokens, B has 50,257" in claim_text(comparison, "not-comparable")


def test_other_vocabularies_compare_per_byte() -> None:
    char, bpe = make_run(), make_run([(0, 10.8), (1000, 4.0)], vocab_size=50257)
    char = replace(char, setup=replace(char.setup, bytes_per_token=1.0))
    bpe = replace(bpe, setup=replace(bpe.setup, bytes_per_token=3.3))
    comparison = compare_histories(char, bpe)
    assert f"B {4.0 / math.log(2) / 3.3:.4f}" in claim_text(comparison, "better-per-byte")


def test_padded_vocabularies_are_the_same() -> None:
    comparison = compare_histories(make_run(vocab_size=50304), make_run(vocab_size=50257))
    assert "not-comparable" not in claim_ids(comparison)


def test_starts_far_apart_are_refused_where_no_vocabulary_is_said() -> None:
    comparison = compare_histories(
        make_run(vocab_size=None), make_run([(0, 10.9), (1000, 4.0)], vocab_size=None)
    )
    assert "--b.vocab_size" in claim_text(comparison, "not-comparable")


def test_what_no_log_says_is_assumed() -> None:
    comparison = compare_histories(make_run(dataset=None), make_run(dataset=None))
    assert "assumed to be the same" in claim_text(comparison, "assumed-comparable")


def test_bits_per_byte_and_losses() -> None:
    bits = replace(make_run(), val_metric="bits_per_byte")
    assert "not-comparable" in claim_ids(compare_histories(make_run(), bits))


# --- little to go by ---


def test_without_evaluations_training_losses_compare() -> None:
    steps = make_steps(range(1000), 50.0, loss=list(np.linspace(4, 2, 1000)))
    lower = make_steps(range(1000), 50.0, loss=list(np.linspace(4, 1, 1000)))
    comparison = compare_histories(make_run_log(steps, settings=SHAPE), make_run_log(lower, settings=SHAPE))
    assert comparison.loss_kind == "training"
    assert "training-losses" in claim_ids(comparison)
    assert claim_text(comparison, "better").startswith("B is better")


def test_neither_losses_nor_times() -> None:
    steps = make_steps([0, 1, 2], [math.nan] * 3)
    comparison = compare_histories(make_run_log(steps), make_run_log(steps))
    assert claim_ids(comparison) == ["speed-unknown", "no-losses"]


def test_nan_losses_are_left_out() -> None:
    comparison = compare_histories(make_run([(0, 4.2), (500, 2.0), (1000, math.nan)]), make_run())
    assert comparison.runs[0].best == (2.0, 500)


def test_empty_histories() -> None:
    empty = make_run_log(make_steps([]))
    assert "no-losses" in claim_ids(compare_histories(empty, make_run(), empty))


def test_what_a_restart_made_void_is_left_out() -> None:
    history = make_run()
    evals = (
        *(LoggedEvaluation(at, 0, val) for at, val in ((0, 4.2), (500, 2.0), (1000, 1.0))),
        *(LoggedEvaluation(at, 1, val) for at, val in ((500, 2.1), (1000, 1.7))),
    )
    segments = (Segment(has_startup=True), Segment(has_startup=True, resumed=True))
    again = replace(history, evals=evals, segments=segments)
    assert compare_histories(again, make_run()).runs[0].best == (1.7, 1000)


def test_letters_go_on() -> None:
    assert [run_label(i) for i in (0, 25, 26, 27)] == ["A", "Z", "AA", "AB"]


# --- GlassGPT's own ---


def own(losses: Sequence[tuple[int, float]], device: str = "auto") -> RunLog:
    history = make_run(losses, device=device)
    setup = replace(history.setup, data={"name": "x", "hash": "1", "tokenizer": "char"}, machine=_MACHINE)
    evals = tuple(replace(done, stderr=0.05, tokens=16_384) for done in history.evals)
    glass = BY_ID["glassgpt"]
    return replace(history, trainer=glass, setup=setup, evals=evals)


_MACHINE = {
    "device": {"type": "cpu"},
    "torch": "2.13.0",
    "choices": [{"name": "device"}],
    "cpu": {"model": "x"},
}


def test_losses_on_the_same_tokens_are_not_drowned_in_their_common_noise() -> None:
    comparison = compare_histories(own([(0, 4.2), (1000, 1.7)]), own([(0, 4.2), (1000, 1.6)]))
    assert "better" in claim_ids(comparison)
    assert "Both evaluate the same tokens" in claim_text(comparison, "noise")


def test_the_device_that_was_found_counts() -> None:
    comparison = compare_histories(own([(0, 4.2), (1000, 1.7)], device="auto"), make_run(device="cpu"))
    names = [one.name for one in comparison.differences]
    assert "device" not in names
    assert "choices" not in names


def test_versions_that_differ_are_listed() -> None:
    left = own([(0, 4.2), (1000, 1.7)])
    right = replace(left, setup=replace(left.setup, machine={**_MACHINE, "torch": "2.11.0"}))
    (found,) = compare_histories(left, right).differences
    assert (found.group, found.name, found.values) == ("versions", "torch", ("2.13.0", "2.11.0"))


# --- losses that are no numbers ---


def broken(*places: int) -> RunLog:
    losses = [math.nan if at in places else 4.0 - at / 100 for at in range(101)]
    return replace(make_run(), steps=make_steps(range(0, 1010, 10), 50.0, loss=losses))


def test_a_loss_that_stays_nan_is_said_to() -> None:
    told = claim_text(compare_histories(broken(15, *range(60, 101)), make_run()), "not-finite")
    assert told == "The loss of A is not a number from iteration 600 on; only what came before counts."


def test_a_loss_that_recovered_is_not_said_to_be_lost() -> None:
    comparison = compare_histories(broken(15), make_run())
    assert claim_ids(comparison)[0] == "not-finite"
    told = claim_text(comparison, "not-finite")
    assert told == "The loss of A was not a number at iteration 150; it recovered, and finite losses count."


def test_a_nan_that_a_resume_took_back_is_none() -> None:
    losses = [*np.linspace(4, 3, 50), *[math.nan] * 10, *np.linspace(3, 2, 50)]
    iterations = [*range(60), *range(50, 100)]
    steps = make_steps(iterations, 50.0, loss=losses, segment=[0] * 60 + [1] * 50)
    segments = (Segment(has_startup=True, first_iteration=0), Segment(True, resumed=True, first_iteration=50))
    assert "not-finite" not in claim_ids(
        compare_histories(make_run_log(steps, segments=segments), make_run())
    )


# --- several runs in one log ---


def two_runs(resumed: bool = False) -> RunLog:
    """A slow run that ends at 1.2, then a fast one of another kind that gets to 1.8."""
    begin = 500 if resumed else 0
    iterations = [*range(0, 1001, 10), *range(begin, 801, 10)]
    later = len(iterations) - 101
    steps = make_steps(iterations, [500.0] * 101 + [50.0] * later, segment=[0] * 101 + [1] * later)
    evals = (
        *(LoggedEvaluation(at, 0, val) for at, val in ((0, 4.2), (500, 2.0), (1000, 1.2))),
        *(LoggedEvaluation(at, 1, val) for at, val in ((begin, 4.2), (800, 1.8))),
    )
    segments = (Segment(True, first_iteration=0), Segment(True, resumed, first_iteration=begin))
    return replace(make_run_log(steps, settings=SHAPE), segments=segments, evals=evals)


def test_of_several_runs_the_last_is_compared_and_said_to_be() -> None:
    comparison = compare_histories(two_runs(), make_run())
    assert claim_text(comparison, "several-runs") == "The log of A holds 2 runs; A is the last of them."
    side = comparison.runs[0]
    assert side.best == (1.8, 800)
    assert side.facts.best_val_loss == 1.8
    assert side.metrics.steady_ms == 50.0
    assert side.metrics.time_s == pytest.approx(801 * 0.05)
    assert "equally-fast" in claim_ids(comparison)


def test_runs_of_other_trainers_before_it_are_said_too() -> None:
    comparison = compare_histories(make_run(), replace(make_run(), earlier=(two_runs(),)))
    assert claim_text(comparison, "several-runs") == "The log of B holds 3 runs; B is the last of them."


def test_a_resume_is_no_run_of_its_own() -> None:
    comparison = compare_histories(two_runs(resumed=True), make_run())
    assert "several-runs" not in claim_ids(comparison)
    assert comparison.runs[0].best == (1.8, 800)  # the 1.2 was done over again


# --- how sure a loss is ---


def with_batches(scatter: float, eval_iters: int) -> RunLog:
    rng = np.random.default_rng(1)
    losses = list(2.0 + scatter * rng.standard_normal(101))
    return replace(make_run(eval_iters=eval_iters), steps=make_steps(range(0, 1010, 10), 50.0, loss=losses))


def test_fresh_batches_say_how_sure_their_mean_is() -> None:
    history = with_batches(0.2, 25)
    noise = compare_histories(history, history).runs[0].noise
    assert noise is not None
    assert noise.source == "batches"
    assert noise.std == pytest.approx(0.04, rel=0.3)
    assert "single batches scatter by" in claim_text(compare_histories(history, make_run()), "noise")


def test_losses_too_smooth_for_single_batches_are_not_taken_for_them() -> None:
    history = with_batches(1e-6, 20)
    noise = compare_histories(history, history).runs[0].noise
    assert noise is not None
    assert (noise.source, noise.eval_tokens) == ("tokens", 20 * 64 * 256)


def test_what_the_log_says_comes_before_what_batches_say() -> None:
    history = with_batches(0.2, 25)
    history = replace(history, evals=tuple(replace(done, stderr=0.05) for done in history.evals))
    noise = compare_histories(history, history).runs[0].noise
    assert noise is not None
    assert (noise.source, noise.std) == ("stderr", 0.05)


def test_of_one_course_the_same_tokens_leave_only_the_scatter() -> None:
    history = own([(100 * at, 3.0 + (-1) ** at * 0.01) for at in range(20)])
    course = trajectory_of(history)
    for of_one_course, source in ((True, "scatter"), (False, "stderr")):
        noise = estimate_eval_noise(history, course.evals, course.finite_losses()[1], of_one_course)
        assert noise is not None
        assert noise.source == source


def test_equal_losses_are_the_same_and_not_within_noise() -> None:
    for history in (make_run(), own([(100 * at, 3.0) for at in range(20)])):
        claim = claim_text(compare_histories(history, history), "equally-good")
        assert claim == "A and B have the same best loss."
