"""Verdicts on synthetic runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from compared_runs import SHAPE, claim_ids, compare_run_logs, find_claim, keys, make_run
from run_logs import make_run_log, make_steps

from glassgpt.compare.compared_run import run_label
from glassgpt.errors import UserError
from glassgpt.runs.metric_columns import metric_of
from glassgpt.runs.metric_series import MetricSeries
from glassgpt.runs.noise import estimate_eval_noise
from glassgpt.runs.run_log import LoggedEvaluation, LoggedProcess, RunLog, longest_run
from glassgpt.runs.split_runs import split_runs
from glassgpt.runs.trainers import BY_ID
from glassgpt.runs.trajectory import trajectory_of

# --- verdicts ---


def test_one_run_is_not_enough() -> None:
    with pytest.raises(UserError, match="at least two"):
        compare_run_logs(make_run())


def test_a_run_equals_itself() -> None:
    comparison = compare_run_logs(make_run(), make_run())
    assert "equally-fast" in claim_ids(comparison)
    assert "equally-good" in claim_ids(comparison)
    assert not comparison.differences
    assert "hardware-not-cause" not in claim_ids(comparison)


def test_the_same_settings_on_faster_hardware() -> None:
    comparison = compare_run_logs(make_run(device="cpu", ms=500.0), make_run(device="cuda"))
    assert find_claim(comparison, "faster").labels == ("B", "A")
    assert find_claim(comparison, "faster").values["factor"] == pytest.approx(10)
    assert find_claim(comparison, "faster-by-rate").values["settings"] == "device (cpu / cuda)"
    assert "equally-good" in claim_ids(comparison)


def test_same_settings_other_loss_is_left_unexplained() -> None:
    comparison = compare_run_logs(
        make_run(device="cpu"), make_run([(0, 4.2), (500, 1.9), (1000, 1.5)], device="cuda")
    )
    assert "better-unexplained" in claim_ids(comparison)
    assert "hardware-not-cause" not in claim_ids(comparison)


def test_a_difference_within_the_noise_is_not_significant() -> None:
    comparison = compare_run_logs(
        make_run(eval_iters=1), make_run([(0, 4.2), (500, 2.0), (1000, 1.59)], eval_iters=1)
    )
    claim = find_claim(comparison, "equally-good")
    assert keys(claim) == ["compare.equally-good.within_noise"]
    assert claim.values["gap"] == pytest.approx(0.01)
    assert "better" not in claim_ids(comparison)


def test_noise_as_the_log_says_it() -> None:
    run_log = make_run()
    evals = tuple(replace(evaluation, stderr=0.05) for evaluation in run_log.evals)
    comparison = compare_run_logs(replace(run_log, evals=evals), replace(run_log, evals=evals))
    noise = find_claim(comparison, "noise")
    assert keys(noise)[1:3] == ["compare.noise.reason.run_stderr"] * 2
    assert noise.values["noise"] == 0.05


def test_the_learning_rate_is_named_as_a_cause() -> None:
    comparison = compare_run_logs(
        make_run(learning_rate=1e-3), make_run([(0, 4.2), (500, 1.9), (1000, 1.5)], learning_rate=3e-4)
    )
    values = find_claim(comparison, "better-because").values
    assert (values["setting"], values["values"]) == ("learning_rate", "0.001 / 0.0003")


def test_more_iterations_are_named_as_a_cause() -> None:
    longer = make_run([(0, 4.2), (500, 2.0), (1000, 1.6), (2000, 1.4)], last=2000, max_iters=2000)
    comparison = compare_run_logs(make_run(max_iters=1000), longer)
    assert find_claim(comparison, "better").labels == ("B", "A")
    values = find_claim(comparison, "iterations-cause").values
    assert (values["at"], values["worse"], values["ahead"]) == (1000, "A", 0.0)


def test_a_run_that_was_cut_short_is_not_called_worse() -> None:
    longer = make_run([(0, 4.2), (500, 2.0), (1000, 1.6), (2000, 1.4)], last=2000, max_iters=2000)
    cut = make_run([(0, 4.2), (500, 2.0), (1000, 1.6)], last=1200, max_iters=2000)
    comparison = compare_run_logs(cut, longer)
    values = find_claim(comparison, "better-open").values
    assert (values["worse"], values["at"]) == ("A", 1000)
    assert "better" not in claim_ids(comparison)


def test_fewer_iterations_with_larger_batches_are_as_many_tokens() -> None:
    wide = make_run([(0, 4.2), (250, 2.2), (500, 1.8)], last=600, batch_size=128)
    comparison = compare_run_logs(wide, make_run())
    assert find_claim(comparison, "better").labels == ("B", "A")


def test_three_runs_are_judged_against_the_first() -> None:
    comparison = compare_run_logs(make_run(), make_run(ms=100.0), make_run(ms=25.0))
    speeds = [claim.labels for claim in comparison.verdict if claim.id == "faster"]
    assert speeds == [("A", "B"), ("C", "A")]
    assert [run.label for run in comparison.runs] == ["A", "B", "C"]


def test_overhead_that_differs() -> None:
    slow = make_run()
    ms = slow.steps.ms.copy()
    ms[[0, 50, 100]] = 20_000
    comparison = compare_run_logs(make_run(), replace(slow, steps=replace(slow.steps, ms=ms)))
    assert find_claim(comparison, "overhead").values["high"] == "B"


# --- losses that do not compare ---


def test_other_data_is_refused() -> None:
    comparison = compare_run_logs(make_run(), make_run(dataset="openwebtext"))
    values = find_claim(comparison, "not-comparable").values
    assert (values["a_data"], values["b_data"]) == ("shakespeare_char", "openwebtext")
    assert not comparison.aligned["iterations"].points


def test_other_vocabularies_are_refused_without_bytes() -> None:
    comparison = compare_run_logs(make_run(), make_run(vocab_size=50257))
    values = find_claim(comparison, "not-comparable").values
    assert (values["a_size"], values["b_size"]) == (65, 50257)


def test_other_vocabularies_compare_per_byte() -> None:
    char, bpe = make_run(), make_run([(0, 10.8), (1000, 4.0)], vocab_size=50257)
    char = replace(char, setup=replace(char.setup, bytes_per_token=1.0))
    bpe = replace(bpe, setup=replace(bpe.setup, bytes_per_token=3.3))
    comparison = compare_run_logs(char, bpe)
    bits = find_claim(comparison, "better-per-byte").values["b_bits"]
    assert bits == pytest.approx(4.0 / math.log(2) / 3.3)


def test_padded_vocabularies_are_the_same() -> None:
    comparison = compare_run_logs(make_run(vocab_size=50304), make_run(vocab_size=50257))
    assert "not-comparable" not in claim_ids(comparison)


def test_initial_losses_far_apart_are_refused_without_a_vocabulary() -> None:
    comparison = compare_run_logs(
        make_run(vocab_size=None), make_run([(0, 5.55), (1000, 4.0)], vocab_size=None)
    )
    assert any("--b.vocab_size" in detail for detail in find_claim(comparison, "not-comparable").details)


def test_reinforcement_learning_has_no_losses_that_could_break() -> None:
    metric, at = metric_of("reward"), np.arange(0, 1001, 10)
    assert metric is not None
    run = replace(make_run(()), metrics=(MetricSeries("reward", metric, at, at + 1, at / 1000),))
    assert "not-finite" not in claim_ids(compare_run_logs(run, run))


def test_an_unknown_dataset_is_assumed_to_be_the_same() -> None:
    comparison = compare_run_logs(make_run(dataset=None), make_run(dataset=None))
    assert "compare.comparable.dataset_assumed" in keys(find_claim(comparison, "assumed-comparable"))


def test_bits_per_byte_and_losses() -> None:
    bits = replace(make_run(), val_metric="bits_per_byte")
    assert "not-comparable" in claim_ids(compare_run_logs(make_run(), bits))


# --- logs with little in them ---


def test_without_evaluations_training_losses_compare() -> None:
    steps = make_steps(range(1000), 50.0, loss=list(np.linspace(4, 2, 1000)))
    lower = make_steps(range(1000), 50.0, loss=list(np.linspace(4, 1, 1000)))
    comparison = compare_run_logs(make_run_log(steps, settings=SHAPE), make_run_log(lower, settings=SHAPE))
    assert comparison.loss_kind == "training"
    assert "training-losses" in claim_ids(comparison)
    assert find_claim(comparison, "better").labels == ("B", "A")


def test_neither_losses_nor_times() -> None:
    steps = make_steps([0, 1, 2], [math.nan] * 3)
    comparison = compare_run_logs(make_run_log(steps), make_run_log(steps))
    assert claim_ids(comparison) == ["speed-unknown", "no-losses"]


def test_nan_losses_are_left_out() -> None:
    comparison = compare_run_logs(make_run([(0, 4.2), (500, 2.0), (1000, math.nan)]), make_run())
    assert comparison.runs[0].best == (2.0, 500)


def test_empty_logs() -> None:
    empty = make_run_log(make_steps([]))
    assert "no-losses" in claim_ids(compare_run_logs(empty, make_run(), empty))


def test_evaluations_that_a_resume_discarded_are_left_out() -> None:
    run_log = make_run()
    evals = (
        *(LoggedEvaluation(at, 0, val) for at, val in ((0, 4.2), (500, 2.0), (1000, 1.0))),
        *(LoggedEvaluation(at, 1, val) for at, val in ((500, 2.1), (1000, 1.7))),
    )
    segments = (LoggedProcess(has_startup=True), LoggedProcess(has_startup=True, resumed=True))
    again = replace(run_log, evals=evals, segments=segments)
    assert compare_run_logs(again, make_run()).runs[0].best == (1.7, 1000)


def test_labels_after_z() -> None:
    assert [run_label(i) for i in (0, 25, 26, 27)] == ["A", "Z", "AA", "AB"]


# --- GlassGPT journals ---


def glassgpt_run(losses: Sequence[tuple[int, float]], device: str = "auto") -> RunLog:
    run_log = make_run(losses, device=device)
    setup = replace(run_log.setup, data={"name": "x", "hash": "1", "tokenizer": "char"}, machine=_MACHINE)
    evals = tuple(replace(evaluation, stderr=0.05, tokens=16_384) for evaluation in run_log.evals)
    glass = BY_ID["glassgpt"]
    return replace(run_log, trainer=glass, setup=setup, evals=evals)


_MACHINE = {
    "device": {"type": "cpu"},
    "torch": "2.13.0",
    "choices": [{"name": "device"}],
    "cpu": {"model": "x"},
}


def test_shared_eval_tokens_cancel_their_noise() -> None:
    comparison = compare_run_logs(
        glassgpt_run([(0, 4.2), (1000, 1.7)]), glassgpt_run([(0, 4.2), (1000, 1.6)])
    )
    assert "better" in claim_ids(comparison)
    assert keys(find_claim(comparison, "noise"))[0] == "compare.noise.same_tokens"


def test_device_auto_is_the_device_in_use() -> None:
    comparison = compare_run_logs(
        glassgpt_run([(0, 4.2), (1000, 1.7)], device="auto"), make_run(device="cpu")
    )
    names = [difference.name for difference in comparison.differences]
    assert "device" not in names
    assert "choices" not in names


def test_versions_that_differ_are_listed() -> None:
    left = glassgpt_run([(0, 4.2), (1000, 1.7)])
    right = replace(left, setup=replace(left.setup, machine={**_MACHINE, "torch": "2.11.0"}))
    (difference,) = compare_run_logs(left, right).differences
    assert (difference.group, difference.name, difference.values) == (
        "versions",
        "torch",
        ("2.13.0", "2.11.0"),
    )


# --- NaN losses ---


def run_with_nan(*places: int) -> RunLog:
    losses = [math.nan if at in places else 4.0 - at / 100 for at in range(101)]
    return replace(make_run(), steps=make_steps(range(0, 1010, 10), 50.0, loss=losses))


def test_a_loss_that_stays_nan() -> None:
    claim = find_claim(compare_run_logs(run_with_nan(15, *range(60, 101)), make_run()), "not-finite")
    assert keys(claim) == ["compare.not-finite.to_the_end"]
    assert claim.values == {"run": "A", "at": 600}


def test_a_nan_loss_that_recovered() -> None:
    comparison = compare_run_logs(run_with_nan(15), make_run())
    assert claim_ids(comparison)[0] == "not-finite"
    claim = find_claim(comparison, "not-finite")
    assert keys(claim) == ["compare.not-finite.recovered"]
    assert claim.values == {"run": "A", "at": 150}


def test_a_nan_that_a_resume_discarded() -> None:
    losses = [*np.linspace(4, 3, 50), *[math.nan] * 10, *np.linspace(3, 2, 50)]
    iterations = [*range(60), *range(50, 100)]
    steps = make_steps(iterations, 50.0, loss=losses, segment=[0] * 60 + [1] * 50)
    segments = (
        LoggedProcess(has_startup=True, first_iteration=0),
        LoggedProcess(True, resumed=True, first_iteration=50),
    )
    assert "not-finite" not in claim_ids(compare_run_logs(make_run_log(steps, segments=segments), make_run()))


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
    segments = (LoggedProcess(True, first_iteration=0), LoggedProcess(True, resumed, first_iteration=begin))
    return replace(make_run_log(steps, settings=SHAPE), segments=segments, evals=evals)


def test_the_longest_of_several_runs_is_compared() -> None:
    comparison = compare_run_logs(longest_run(split_runs(two_runs())), make_run())
    assert find_claim(comparison, "several-runs").values == {"run": "A", "runs": 2}
    run = comparison.runs[0]
    assert run.best == (1.2, 1000)
    assert run.analysis.facts.best_val_loss == 1.2
    assert run.analysis.steady_ms == 500.0
    assert run.analysis.total_s == pytest.approx(1001 * 0.5)


def test_a_resume_is_not_a_new_run() -> None:
    comparison = compare_run_logs(two_runs(resumed=True), make_run())
    assert "several-runs" not in claim_ids(comparison)
    assert comparison.runs[0].best == (1.8, 800)  # the resume discarded the 1.2


# --- evaluation noise ---


def with_batches(scatter: float, eval_iters: int) -> RunLog:
    rng = np.random.default_rng(1)
    losses = list(2.0 + scatter * rng.standard_normal(101))
    return replace(make_run(eval_iters=eval_iters), steps=make_steps(range(0, 1010, 10), 50.0, loss=losses))


def test_noise_from_the_scatter_of_single_batches() -> None:
    run_log = with_batches(0.2, 25)
    noise = compare_run_logs(run_log, run_log).runs[0].noise
    assert noise is not None
    assert noise.source == "batches"
    assert noise.std == pytest.approx(0.04, rel=0.3)
    claim = find_claim(compare_run_logs(run_log, make_run()), "noise")
    assert "compare.noise.reason.run_batches" in keys(claim)
    assert claim.values["batches"] == 25


def test_smoothed_losses_are_not_taken_for_single_batches() -> None:
    run_log = with_batches(1e-6, 20)
    noise = compare_run_logs(run_log, run_log).runs[0].noise
    assert noise is not None
    assert (noise.source, noise.eval_tokens) == ("tokens", 20 * 64 * 256)


def test_a_logged_stderr_takes_precedence() -> None:
    run_log = with_batches(0.2, 25)
    run_log = replace(run_log, evals=tuple(replace(evaluation, stderr=0.05) for evaluation in run_log.evals))
    noise = compare_run_logs(run_log, run_log).runs[0].noise
    assert noise is not None
    assert (noise.source, noise.std) == ("stderr", 0.05)


def test_within_one_run_fixed_eval_tokens_leave_only_the_scatter() -> None:
    run_log = glassgpt_run([(100 * at, 3.0 + (-1) ** at * 0.01) for at in range(20)])
    trajectory = trajectory_of(run_log)
    for within_run, source in ((True, "scatter"), (False, "stderr")):
        noise = estimate_eval_noise(run_log, trajectory.evals, trajectory.finite_losses()[1], within_run)
        assert noise is not None
        assert noise.source == source


def test_equal_losses_are_the_same() -> None:
    for run_log in (make_run(), glassgpt_run([(100 * at, 3.0) for at in range(20)])):
        claim = find_claim(compare_run_logs(run_log, run_log), "equally-good")
        assert keys(claim) == ["compare.equally-good.same_loss"]


def test_a_median_over_regimes_is_named() -> None:
    steps = make_run().steps
    slow = replace(steps, ms=np.where(np.arange(len(steps)) < len(steps) // 3, 2.0, 5.0) * steps.ms)
    claim = find_claim(compare_run_logs(make_run(), replace(make_run(), steps=slow)), "faster")
    assert "compare.faster.reason.over_regimes" in keys(claim)
    assert "compare.faster.reason.over_regimes" not in keys(
        find_claim(
            compare_run_logs(make_run(), replace(make_run(), steps=replace(steps, ms=2 * steps.ms))), "faster"
        )
    )
