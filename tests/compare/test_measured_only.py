"""Compare says what was measured: losses at common points, causes that are causes, what tails imply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compared_runs import SHAPE, claim_ids, compare_run_logs, find_claim, keys, make_run
from run_logs import make_run_log, make_steps

from glassgpt.compare.compared_run import least_work_ratio
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.recognise import read_log
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainers import BY_ID

CPU_TAIL = """\
iter 1980: loss 1.7613, time 116.20ms, mfu 0.01%
iter 1990: loss 1.7025, time 115.80ms, mfu 0.01%
step 2000: train loss 1.7640, val loss 1.8925
iter 2000: loss 1.6980, time 1505.10ms, mfu 0.01%
"""
GPU_TAIL = """\
iter 4980: loss 0.8010, time 33.20ms, mfu 11.07%
iter 4990: loss 0.8212, time 33.20ms, mfu 11.09%
step 5000: train loss 0.6200, val loss 1.7050
iter 5000: loss 0.8236, time 4446.00ms, mfu 9.99%
"""


def tail(text: str) -> RunLog:
    return read_log(text.splitlines(), "tail.log")


# --- losses at equal points ---


def test_no_loss_between_two_evaluations() -> None:
    """21 times the batch: after as many tokens B has had 94 iterations, and its next evaluation is at 250."""
    comparison = compare_run_logs(read_run_log("demo:cpu"), read_run_log("demo:gpu"))
    tokens = comparison.aligned["tokens"]
    assert tokens.kind == "training"
    steps = comparison.runs[1].log.steps
    b_loss = tokens.points[-1].losses[1]
    assert b_loss is not None
    assert b_loss.loss == float(steps.loss[steps.iteration == 90][0])
    assert b_loss.at == 90 * 16_384
    a_steps = comparison.runs[0].log.steps
    a_loss = tokens.points[-1].losses[0]
    assert a_loss is not None
    assert a_loss.loss == pytest.approx(a_steps.loss[a_steps.iteration > 1800].mean())


def test_every_loss_shown_is_in_the_logs() -> None:
    comparison = compare_run_logs(read_run_log("demo:cpu"), read_run_log("demo:gpu"))
    for alignment in comparison.aligned.values():
        if alignment.kind == "validation":
            for point in alignment.points:
                for run, measured in zip(comparison.runs, point.losses, strict=True):
                    assert measured is not None
                    assert measured.loss in run.curve.losses.tolist()


def test_a_common_point_that_was_never_measured_is_named_missing() -> None:
    first = make_run([(0, 4.2), (700, 2.0)], last=700)
    other = make_run([(0, 4.2), (1000, 1.6)])
    no_batches = [replace(one, steps=make_steps([0], 50.0, loss=[4.2])) for one in (first, other)]
    claim = find_claim(compare_run_logs(*no_batches), "equal-points")
    assert keys(claim) == ["compare.equal-points.none"]


def test_reached_first_is_known_from_evaluations_only() -> None:
    """B had reached 1.6 at its evaluation after 25 s; A had not at its own after 25 s."""
    fast = make_run([(0, 4.2), (500, 1.5), (1000, 1.4)])
    claim = find_claim(compare_run_logs(make_run(), fast), "reached-first")
    assert claim.labels == ("B", "A")
    assert claim.values["early_time"] == pytest.approx(25.05, rel=0.01)
    assert claim.values["late_time"] == pytest.approx(50.05, rel=0.01)
    rare = make_run([(0, 4.2), (990, 1.6)])  # it may have been there long before
    assert "reached-first" not in claim_ids(compare_run_logs(make_run(), rare))


def test_a_small_difference_without_known_noise_is_no_judgement() -> None:
    other = make_run([(0, 4.2), (500, 2.0), (1000, 1.59)], eval_iters=None)
    comparison = compare_run_logs(make_run(eval_iters=None), other)
    assert keys(find_claim(comparison, "equally-good")) == ["compare.equally-good.noise_unknown"]
    clear = make_run([(0, 4.2), (500, 2.0), (1000, 1.58)], eval_iters=None)
    assert find_claim(compare_run_logs(make_run(eval_iters=None), clear), "better").labels == ("B", "A")


def test_only_the_seed_differs() -> None:
    comparison = compare_run_logs(make_run(seed=1), make_run([(0, 4.2), (500, 1.9), (1000, 1.5)], seed=2))
    assert keys(find_claim(comparison, "better-unexplained")) == ["compare.better-unexplained.seed"]


def test_learning_rates_that_only_the_lines_show() -> None:
    runs = []
    for lr, end in ((1e-3, 1.6), (1e-4, 1.4)):
        steps = make_steps(range(0, 1010, 10), 50.0)
        steps = replace(steps, lr=np.full(len(steps), lr))
        runs.append(replace(make_run([(0, 4.2), (1000, end)]), steps=steps))
    values = find_claim(compare_run_logs(*runs), "better-because").values
    assert (values["better_lr"], values["worse_lr"]) == ("0.0001", "0.001")


def test_the_length_of_training_is_judged_at_the_worse_runs_best() -> None:
    """A overfits after 500. Where both had 500 iterations, B was not ahead."""
    overfitted = make_run([(0, 4.2), (500, 1.6), (1000, 2.5)])
    longer = make_run([(0, 4.2), (500, 1.7), (1000, 1.4)])
    values = find_claim(compare_run_logs(overfitted, longer), "iterations-cause").values
    assert values["at"] == 500
    assert values["ahead"] == pytest.approx(-0.1)


def test_a_point_at_the_end_of_one_schedule_is_marked() -> None:
    small = make_run([(0, 4.2), (500, 2.0), (1000, 1.6)], max_iters=1000)
    large = make_run([(0, 4.2), (500, 1.7), (1000, 1.4)], max_iters=1000, batch_size=128)
    claim = find_claim(compare_run_logs(small, large), "tokens-cause")
    assert claim.values["at"] == 1000 * 64 * 256
    assert (claim.values["better_share"], claim.values["worse_share"]) == (50, 100)


# --- speed ---


def test_the_cause_of_a_speed_is_no_restatement() -> None:
    claim = find_claim(compare_run_logs(make_run(), make_run(ms=25.0)), "faster-by-rate")
    assert keys(claim)[0] == "compare.faster-by-rate.unknown"
    threads = [
        replace(one, setup=replace(one.setup, machine={"cpu": {"torch_threads": count}}))
        for one, count in ((make_run(), 1), (make_run(ms=25.0), 2))
    ]
    claim = find_claim(compare_run_logs(*threads), "faster-by-rate")
    assert claim.values["settings"] == "cpu.torch_threads (1 / 2)"


def test_settings_of_evaluations_do_not_make_updates_faster() -> None:
    claim = find_claim(
        compare_run_logs(make_run(eval_interval=500), make_run(ms=25.0, eval_interval=250)), "faster-by-rate"
    )
    assert keys(claim)[0] == "compare.faster-by-rate.unknown"


def test_load_is_named() -> None:
    runs = [
        replace(one, setup=replace(one.setup, machine={"busy_cores": load}))
        for one, load in ((make_run(), 1.6), (make_run(ms=25.0), 0.1))
    ]
    claim = find_claim(compare_run_logs(*runs), "faster-by-rate")
    assert keys(claim)[:2] == ["compare.faster-by-rate.no_setting", "compare.faster-by-rate.reason.load"]
    assert (claim.values["slow_load"], claim.values["fast_load"]) == ("1.6", "0.1")


def test_another_measured_peak_of_one_device_is_named() -> None:
    glassgpt = BY_ID["glassgpt"]
    runs = [
        replace(one, trainer=glassgpt, setup=replace(one.setup, peak_flops=peak, device_name="CPU"))
        for one, peak in ((make_run(), 96e9), (make_run(ms=25.0), 227e9))
    ]
    claim = find_claim(compare_run_logs(*runs), "faster-by-rate")
    assert (claim.values["slow_peak"], claim.values["fast_peak"]) == (96e9, 227e9)


def test_a_run_that_was_slowed_at_times() -> None:
    ms = [25.0] * 30 + [50.0] * 71
    slowed = replace(make_run(), steps=make_steps(range(0, 1010, 10), ms))
    claim = find_claim(compare_run_logs(slowed, make_run(ms=25.0)), "faster-by-rate")
    assert (claim.values["fastest_ms"], claim.values["median_ms"]) == (25.0, 50.0)


def test_mfus_of_different_peaks_are_not_compared() -> None:
    runs = [
        replace(one, setup=replace(one.setup, peak_flops=peak))
        for one, peak in ((make_run(), 96e9), (make_run(ms=25.0), 227e9))
    ]
    comparison = compare_run_logs(*runs)
    values = find_claim(comparison, "mfu-not-comparable").values
    assert (values["a_peak"], values["b_peak"]) == (96e9, 227e9)
    assert "mfu-is-not-speed" not in claim_ids(comparison)
    same = [replace(one, setup=replace(one.setup, peak_flops=96e9)) for one in runs]
    assert "mfu-not-comparable" not in claim_ids(compare_run_logs(*same))


def test_devices_that_a_log_does_not_state() -> None:
    """Its MFU is 32% of one device, its tokens per second are worth 4 times that."""
    ms = 71e6 * 16_384 / (4 * 0.32 * 312e12) * 1000
    steps = make_steps(range(0, 1010, 10), ms)
    steps = replace(steps, mfu=np.full(len(steps), 32.0))
    setup = replace(make_run().setup, flops_per_token=71e6)
    run = compare_run_logs(replace(make_run(), steps=steps, setup=setup), make_run()).runs[0]
    assert run.devices == 4
    assert run.mfu == pytest.approx(32.0, rel=0.01)


def test_a_printed_parameter_count_is_never_corrected() -> None:
    steps = make_steps(range(0, 1010, 10), 50.0)
    steps = replace(steps, mfu=np.full(len(steps), 9.03))
    run_log = make_run_log(steps, settings=SHAPE)
    printed = replace(run_log, setup=replace(run_log.setup, parameters=10_650_000))
    size = compare_run_logs(printed, make_run()).runs[0].analysis.size
    assert (size.parameters, size.is_contradicted) == (10_646_784, False)
    claimed = replace(printed, setup=replace(printed.setup, parameters_are_claimed=True))
    assert "parameters-contradicted" in claim_ids(compare_run_logs(claimed, make_run()))


# --- tails ---


def test_two_tails_that_cannot_be_the_same_model() -> None:
    comparison = compare_run_logs(tail(CPU_TAIL), tail(GPU_TAIL))
    values = find_claim(comparison, "different-work").values
    gpu, cpu = 0.1108 * 312e12 * 0.0332, 0.0001 * 312e12 * 0.116
    assert values["large_flops"] == pytest.approx(gpu, rel=0.001)
    assert values["small_flops"] == pytest.approx(cpu, rel=0.001)
    least = 0.11075 * 312e12 * 0.0332 / (0.00015 * 312e12 * 0.116)  # both rounded against it
    assert values["least"] == pytest.approx(least, rel=0.001)


def test_equal_tails_are_the_same_work() -> None:
    comparison = compare_run_logs(tail(GPU_TAIL), tail(GPU_TAIL))
    assert least_work_ratio(*comparison.runs) is None
    assert "different-work" not in claim_ids(comparison)


def test_the_best_of_a_tail_is_not_known() -> None:
    comparison = compare_run_logs(tail(CPU_TAIL), tail(GPU_TAIL))
    better = find_claim(comparison, "better")
    assert keys(better)[0] == "compare.better.of_those_shown"
    assert better.values["runs"] == "A, B"
    assert not any(run.is_whole for run in comparison.runs)


def test_the_gap_between_both_losses_shows_that_a_tail_overfits() -> None:
    comparison = compare_run_logs(tail(CPU_TAIL), tail(GPU_TAIL))
    claim = find_claim(comparison, "past-best")
    assert claim.labels == ("B",)
    assert claim.values["gap"] == pytest.approx(1.705 - 0.62)


def test_the_readme_runs_are_recognised_by_their_losses() -> None:
    claim = find_claim(compare_run_logs(tail(CPU_TAIL), tail(GPU_TAIL)), "known-runs")
    assert claim.labels == ("A", "B")
    measured = [message.values for message in claim.detail_messages if "tokens" in message.values]
    assert [values["parameters"] for values in measured] == ["0.80M", "10.65M"]
    assert [values["context"] for values in measured] == [64, 256]
    assert [values["batch"] for values in measured] == [12 * 64, 64 * 256]
    assert (claim.values["best"], claim.values["at"]) == (1.4576, 1750)


def test_other_losses_are_no_known_run() -> None:
    other = GPU_TAIL.replace("val loss 1.7050", "val loss 1.7550")
    assert "known-runs" not in claim_ids(compare_run_logs(tail(other), tail(other)))


def test_stages_on_other_data_are_not_comparable() -> None:
    comparison = compare_run_logs(replace(make_run(), stage="base"), replace(make_run(), stage="mid"))
    values = find_claim(comparison, "not-comparable").values
    assert (values["a_stage"], values["b_stage"]) == ("base", "mid")


def test_two_trainers_that_do_not_name_their_data_are_not_compared() -> None:
    other = replace(make_run(dataset=None), trainer=BY_ID["litgpt"])
    assert "assumed-comparable" in claim_ids(compare_run_logs(make_run(), other))  # both begin at 4.2
    late = [replace(one, evals=one.evals[1:], steps=make_steps(range(500, 1010, 10), 50.0))
            for one in (make_run(), other)]  # fmt: skip
    claim = find_claim(compare_run_logs(*late), "not-comparable")
    assert keys(claim)[1:] == ["compare.comparable.data_unknown"]
    named = replace(late[1], setup=replace(late[1].setup, settings=late[0].setup.settings))
    assert "not-comparable" not in claim_ids(compare_run_logs(late[0], named))
