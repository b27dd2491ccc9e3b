"""Every fact by its definition, on RunLogs made by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from log_checks import parse_facts
from run_logs import make_run_log, make_steps

from glassgpt.runs.analysis import Analysis
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import LoggedCheckpoint, LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog
from glassgpt.runs.trainer import Trainer
from glassgpt.runs.trainers import BY_ID

OUTSIDE = BY_ID["nanochat"]


def run(**changes: object) -> RunLog:
    """0, 10, … 100; evaluations at 0, 50 and 100."""
    iterations = list(range(0, 110, 10))
    ms = [5000.0, *[100.0] * 4, 1100.0, *[100.0] * 4, 1300.0]
    run_log = make_run_log(
        make_steps(iterations, ms, [4 - at / 50 for at in iterations], mfu=[math.nan, *[25.0] * 10]),
        evals=[(0, 4.2, 4.3), (50, 3.0, 3.1), (100, 2.0, 3.3)],
        checkpoints=[50],
    )
    return dataclasses.replace(run_log, **changes)  # type: ignore[arg-type]


def test_what_was_logged() -> None:
    facts = Analysis(run()).facts
    assert (facts.iterations_logged, facts.first_iteration, facts.last_iteration) == (11, 0, 100)
    assert (facts.log_interval, facts.segments) == (10, 1)
    assert (facts.loss_first, facts.loss_last, facts.nan_step) == (4.0, 2.0, None)


def test_times() -> None:
    facts = Analysis(run()).facts
    assert (facts.steady_ms, facts.steady_p95_ms, facts.first_iteration_ms) == (100, 100, 5000)
    assert facts.eval_overhead_ms == 1100  # the median of 1000 and 1200; the first iteration does not count
    assert facts.startup_ms == 5000 - 100 - 1100
    total = 5000 + 8 * 100 + 1100 + 1300 + 90 * 100
    assert facts.estimated_total_s == pytest.approx(total / 1000)
    assert facts.overhead_share == pytest.approx((4900 + 1000 + 1200) / total)


def test_the_95th_percentile_is_linear() -> None:
    steps = make_steps(range(22), [9999.0, *range(1, 22)])
    assert Analysis(make_run_log(steps)).facts.steady_p95_ms == pytest.approx(20.0)


def test_evaluations() -> None:
    facts = Analysis(run()).facts
    assert facts.eval_steps == [0, 50, 100]
    assert facts.checkpoint_steps == [50]
    assert (facts.best_val_loss, facts.best_val_step, facts.final_val_loss) == (3.1, 50, 3.3)
    assert (facts.final_train_loss, facts.val_metric) == (2.0, "loss")


def test_of_two_equal_bests_the_first_counts() -> None:
    run_log = make_run_log(make_steps([0, 1, 2]), evals=[(0, 1, 3.0), (1, 1, 2.5), (2, 1, 2.5)])
    assert Analysis(run_log).facts.best_val_step == 1


def test_an_evaluation_that_is_not_a_number_is_never_the_best() -> None:
    facts = Analysis(make_run_log(make_steps([0, 1]), evals=[(0, 1, 3.0), (1, 1, math.nan)])).facts
    assert (facts.best_val_loss, facts.best_val_step) == (3.0, 0)
    assert facts.final_val_loss is not None
    assert math.isnan(facts.final_val_loss)
    only = Analysis(make_run_log(make_steps([0]), evals=[(0, 1, math.nan)])).facts
    assert (only.best_val_loss, only.best_val_step) == (None, None)


def test_the_first_nan() -> None:
    run_log = make_run_log(make_steps(range(5), 100.0, [1, math.inf, math.nan, 1, math.nan]))
    assert Analysis(run_log).facts.nan_step == 2


def test_a_loss_that_was_not_said_is_no_nan() -> None:
    run_log = make_run_log(make_steps(range(5)))
    facts = Analysis(run_log).facts
    assert (facts.nan_step, facts.loss_first, facts.loss_last) == (None, None, None)


def test_speed_and_arithmetic_back_from_the_mfu() -> None:
    facts = Analysis(run(setup=LoggedSetup(tokens_per_iteration=16384))).facts
    assert facts.tokens_per_s == pytest.approx(163_840)
    assert facts.mfu_reported_steady == 25
    assert facts.achieved_tflops == pytest.approx(78)
    assert facts.flops_per_token == pytest.approx(78e12 / 163_840)


def test_devices_that_share_a_model_work_together() -> None:
    """nanoGPT's MFU of 25 % of 312 TFLOP/s is of one replica, however many devices it is spread over."""
    cases = {
        "world_size=4": (4, 4, 312.0),
        "ddp_world_size=4, dp_size=1, tp_size=4": (4, 1, 78.0),
        "world_size: 8\ntensor_model_parallel_size: 2\npipeline_model_parallel_size: 2": (8, 2, 156.0),
        "dp_size=2, tp_size=4": (8, 2, 156.0),
        "": (None, None, 78.0),
    }
    lines = "".join(f"iter {at}: loss 3.0000, time 100.00ms, mfu 25.00%\n" for at in range(20))
    for header, (devices, replicas, tflops) in cases.items():
        facts = parse_facts(f"tokens per iteration will be: 16,384\n{header}\n{lines}")
        assert (facts.device_count, facts.data_parallel_size) == (devices, replicas), header
        assert facts.achieved_tflops == pytest.approx(tflops), header
        per_device = None if devices is None else pytest.approx(tflops / devices)
        assert facts.achieved_tflops_per_device == per_device, header


def test_a_product_is_no_number_of_devices() -> None:
    text = "Examples per step is device_batch_size * ddp_world_size: 32\n"
    assert (
        parse_facts(text + "iter 0: loss 3.0, time 9.00ms\niter 1: loss 3.0, time 9.00ms\n").device_count
        is None
    )


def test_a_tiny_mfu_is_too_coarse_to_count_back_from() -> None:
    steps = make_steps(range(10), 100.0, mfu=[0.03] * 10)
    facts = Analysis(make_run_log(steps, setup=LoggedSetup(tokens_per_iteration=768))).facts
    assert facts.mfu_reported_steady == 0.03
    assert (facts.flops_per_token, facts.achieved_tflops) == (None, None)


def test_arithmetic_from_the_shape() -> None:
    settings = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256}
    setup = LoggedSetup(
        settings, parameters=10_650_000, trained_parameters=10_745_088, tokens_per_iteration=16384
    )
    run_log = make_run_log(make_steps(range(10), 100.0), setup=setup)
    assert Analysis(run_log).size.parameters == 10_745_088 - 256 * 384
    facts = Analysis(run_log).facts
    assert facts.flops_per_token == 6 * (10_745_088 - 256 * 384) + 12 * 6 * 384 * 256
    assert facts.parameters == 10_745_088 - 256 * 384


def test_tokens_per_iteration_from_the_settings() -> None:
    settings = {"batch_size": 12, "block_size": 64, "gradient_accumulation_steps": 2}
    assert Analysis(run(setup=LoggedSetup(settings))).tokens_per_iteration == 12 * 64 * 2
    partial = LoggedSetup({"batch_size": 12, "block_size": 64})
    assert Analysis(run(setup=partial)).tokens_per_iteration is None
    assert Analysis(run(setup=LoggedSetup(settings, tokens_per_iteration=5))).tokens_per_iteration == 5


def test_where_the_times_are_without_evaluations() -> None:
    facts = Analysis(run(trainer=OUTSIDE)).facts
    assert (facts.eval_overhead_ms, facts.overhead_share) == (None, None)
    assert facts.startup_ms == 4900
    assert facts.estimated_total_s is not None


def test_a_start_up_that_cannot_be_told_from_its_evaluation_is_not_given() -> None:
    run_log = make_run_log(make_steps(range(5), [5000, 100, 100, 100, 100]), evals=[(0, 4.0, 4.0)])
    facts = Analysis(run_log).facts
    assert (facts.startup_ms, facts.eval_overhead_ms, facts.first_iteration_ms) == (None, None, 5000)


def test_a_log_from_the_middle_has_no_start_up() -> None:
    segments = (LoggedProcess(has_startup=False, first_iteration=1000),)
    facts = Analysis(make_run_log(make_steps([1000, 1001, 1002], [300, 100, 100]), segments=segments)).facts
    assert (facts.startup_ms, facts.steady_ms) == (None, 100)


def test_a_start_up_is_never_negative() -> None:
    facts = Analysis(make_run_log(make_steps(range(4), [50, 100, 100, 100]))).facts
    assert facts.startup_ms is None or facts.startup_ms == 0


def test_segments_count_their_own_first_iteration_and_gaps() -> None:
    steps = make_steps([0, 10, 20, 10, 20, 30], [900, 100, 100, 900, 100, 100], segment=[0, 0, 0, 1, 1, 1])
    segments = (LoggedProcess(has_startup=True), LoggedProcess(has_startup=True, resumed=True))
    facts = Analysis(make_run_log(steps, segments=segments)).facts
    assert (facts.segments, facts.steady_ms, facts.log_interval) == (2, 100, 10)
    assert facts.estimated_total_s == pytest.approx((900 + 200 + 900 + 200 + 4 * 9 * 100) / 1000)
    assert facts.overhead_share == pytest.approx(1.6 / (facts.estimated_total_s or 1))


def test_an_evaluation_marks_only_the_iteration_of_its_own_process() -> None:
    steps = make_steps([0, 1, 2, 1, 2], [900, 500, 100, 900, 100], segment=[0, 0, 0, 1, 1])
    run_log = make_run_log(steps, segments=(LoggedProcess(has_startup=True), LoggedProcess(has_startup=True)))
    run_log = dataclasses.replace(
        run_log,
        evals=(LoggedEvaluation(1, 0, 3.0), LoggedEvaluation(2, 1, 3.0)),
        checkpoints=(LoggedCheckpoint(2, 1),),
    )
    assert run_log.includes_eval().tolist() == [False, True, False, False, True]
    assert Analysis(run_log).facts.eval_steps == [1, 2]


def test_lines_without_numbers_have_no_iterations() -> None:
    facts = Analysis(run(has_iteration_numbers=False)).facts
    unknown = (
        "first_iteration",
        "last_iteration",
        "log_interval",
        "eval_steps",
        "checkpoint_steps",
        "best_val_step",
    )
    assert all(getattr(facts, name) is None for name in unknown)
    assert facts.iterations_logged == 11


def test_a_line_without_a_time_counts_as_steady() -> None:
    steps = make_steps(range(5), [100, math.nan, 100, 100, 100])
    facts = Analysis(make_run_log(steps)).facts
    assert facts.estimated_total_s == 0.5
    assert facts.steady_ms == 100


def test_a_history_of_nothing() -> None:
    facts = Analysis(make_run_log(make_steps([]))).facts
    assert facts.iterations_logged == 0
    assert (facts.eval_steps, facts.checkpoint_steps) == ([], [])  # nanoGPT prints each
    empty = {"iterations_logged", "eval_steps", "checkpoint_steps", "segments", "ended", "regimes", "metrics"}
    assert all(value is None for name, value in facts.as_dict().items() if name not in empty)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_short_histories(count: int) -> None:
    facts = Analysis(make_run_log(make_steps(range(count), [900.0, 100.0, 100.0][:count]))).facts
    assert facts.steady_ms == (None if count == 1 else 100)
    assert facts.log_interval == (None if count == 1 else 1)


def test_all_numbers_are_plain_python_ones() -> None:
    """So that they can be written as JSON."""
    for run_log in (run(), run(setup=LoggedSetup(tokens_per_iteration=16384)), make_run_log(make_steps([]))):
        values = Analysis(run_log).facts.as_dict()
        json.dumps(values)
        assert not [name for name, value in values.items() if isinstance(value, np.generic)]


def test_the_issue_names_every_fact() -> None:
    names = [
        "iterations_logged", "first_iteration", "last_iteration", "log_interval",
        "tokens_per_iteration", "parameters", "steady_ms", "steady_p95_ms", "first_iteration_ms",
        "startup_ms", "eval_steps", "eval_overhead_ms", "checkpoint_steps", "estimated_total_s",
        "overhead_share", "tokens_per_s", "mfu_reported_steady", "flops_per_token",
        "achieved_tflops", "device_count", "data_parallel_size", "achieved_tflops_per_device",
        "val_metric", "best_val_loss", "best_val_step", "final_val_loss",
        "final_train_loss", "loss_first", "loss_last", "nan_step", "segments", "ended",
        "regimes", "regime_total_s", "eval_overhead_typical_ms", "seconds_by_phase",
        "wander_ms", "loss_ends", "wall_s", "stamped_s", "total_s", "metrics",
    ]  # fmt: skip
    assert [field.name for field in dataclasses.fields(Facts)] == names


def test_no_trait_is_needed_to_know_a_fact() -> None:
    """Of a trainer that nobody has described, next to all facts are known too."""
    other = Trainer("new", "New", step_time_includes_eval=True, first_iteration=0)
    mine, theirs = Analysis(run()).facts.as_dict(), Analysis(run(trainer=other)).facts.as_dict()
    different = {name for name in mine if mine[name] != theirs[name]}
    assert different <= {"flops_per_token", "achieved_tflops", "ended"}


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_times_that_add_up_to_more_than_a_number_holds() -> None:
    run_facts = Analysis(
        make_run_log(make_steps(range(10), 1e308, [1e308] * 10), [(0, 1e308, 1e308), (5, 2.0, 2.0)])
    ).facts
    assert run_facts.iterations_logged == 10
