"""What a resume changed, and whether the schedule fits the run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from learning_logs import GLASSGPT, analyse, finding_text, gpu_run, require_finding, split_run
from run_logs import make_run_log, make_steps

from glassgpt.config import ConfigValue
from glassgpt.explain.rules.lr_schedule import horizon_changed, lr_schedule_mismatch
from glassgpt.explain.rules.resumes import resume_jump, resume_replays_data
from glassgpt.runs.run_log import RunLog, Segment, Steps
from glassgpt.runs.trainers import BY_ID
from glassgpt.runs.trajectory import seconds_between, trajectory_of

# --- the trajectory ---


def test_a_course_leaves_out_what_was_done_over() -> None:
    whole, parted = trajectory_of(gpu_run()), trajectory_of(split_run(gpu_run(), 1000, 1240))
    assert parted.iteration.tolist() == whole.iteration.tolist()
    assert [done.iteration for done in parted.evals] == [done.iteration for done in whole.evals]
    assert parted.segments == (0, 1)


def test_of_several_runs_the_longest_counts() -> None:
    steps = make_steps([0, 10, 20, 0, 10, 20, 30, 0], segment=[0, 0, 0, 1, 1, 1, 1, 2], loss=[1.0] * 8)
    segments = tuple(Segment(True, False, 0) for _ in range(3))
    trajectory = trajectory_of(make_run_log(steps, segments=segments))
    assert trajectory.iteration.tolist() == [0, 10, 20, 30]
    assert trajectory.segments == (1,)


def test_unlogged_iterations_take_steady_time() -> None:
    trajectory = trajectory_of(make_run_log(make_steps([0, 10, 20], [1000.0, 200.0, 100.0])))
    assert seconds_between(trajectory, 0, 20, 100.0) == pytest.approx((200 + 100 + 18 * 100) / 1000)
    assert seconds_between(trajectory, 0, 20, None) is None


# --- data drawn again ---


def test_nanogpt_draws_the_same_batches_again() -> None:
    run_log = split_run(gpu_run(), 1000, 1240)
    run_log = replace(run_log, setup=replace(run_log.setup, tokens_per_iteration=16_384))
    one = require_finding(resume_replays_data(analyse(run_log)))
    assert one.severity == "warning"
    assert "1,000 + 4,001 iterations" in one.evidence
    assert "1,000 iterations (20%)" in one.evidence
    assert "16.4M tokens" in one.evidence
    assert resume_replays_data(analyse(replace(run_log, trainer=GLASSGPT))) is None


def test_a_log_of_the_resumed_process_alone() -> None:
    steps = make_steps(range(2000, 5001, 10), loss=[1.5] * 301)
    run_log = make_run_log(steps, segments=(Segment(True, True, 2000),))
    assert "2,000 iterations (40%)" in finding_text(resume_replays_data(analyse(run_log)))


# --- the loss after it ---


def shifted(by: float) -> RunLog:
    return split_run(gpu_run(), 1000, 1240, loss=lambda steps: steps.loss + by * (steps.segment == 1))


def test_a_loss_that_jumps_at_a_resume() -> None:
    up = require_finding(resume_jump(analyse(shifted(0.2))))
    assert "jumped up by 0.1" in up.title or "jumped up by 0.2" in up.title
    assert "iteration 1,000" in up.evidence
    assert "optimizer" in up.explanation
    down = require_finding(resume_jump(analyse(shifted(-0.3))))
    assert "dropped" in down.title
    assert resume_jump(analyse(shifted(0.0))) is None
    assert resume_jump(analyse(shifted(0.01))) is None


@pytest.mark.parametrize("lines", [12, 40])
@pytest.mark.parametrize("pace", [8.0, 20.0, 60.0])
def test_a_loss_that_falls_fast_on_both_sides_did_not_drop(lines: int, pace: float) -> None:
    """Ten lines before and ten after a resume lie far apart then, the two beside it do not."""
    at = np.arange(2 * lines)
    noise = np.random.default_rng(0).standard_normal(2 * lines)

    def resumed(drop: float) -> RunLog:
        losses = 1.5 + 0.7 * np.exp((lines - at) / pace) + 0.01 * noise - drop * (at >= lines)
        steps = make_steps(
            (at * 10).tolist(), segment=(at >= lines).astype(int).tolist(), loss=losses.tolist()
        )
        return make_run_log(steps, segments=(Segment(True, False, 0), Segment(True, True, 10 * lines)))

    assert resume_jump(analyse(resumed(0.0))) is None
    assert "dropped" in require_finding(resume_jump(analyse(resumed(1.0)))).title


# --- the schedule ---


def with_rates(after: float) -> RunLog:
    """A cosine to 5000; after the resume it is `after` times as high."""

    def rates(steps: Steps) -> np.ndarray:
        cosine = 1e-4 + 4.5e-4 * (1 + np.cos(np.pi * steps.iteration / 5000))
        return np.asarray(cosine * np.where(steps.segment == 1, after, 1.0))

    return split_run(gpu_run(), 3000, 3240, lr=rates)


def test_a_rate_that_goes_back_up() -> None:
    one = require_finding(horizon_changed(analyse(with_rates(1.8))))
    assert "went back up" in one.title
    assert "1.8 times as high" in one.evidence
    assert horizon_changed(analyse(with_rates(1.0))) is None


def test_lines_without_numbers_are_no_resume() -> None:
    run_log = with_rates(1.8)
    parts = (run_log.segments[0], replace(run_log.segments[1], resumed=False))
    assert horizon_changed(analyse(replace(run_log, segments=parts))) is not None
    assert horizon_changed(analyse(replace(run_log, segments=parts, has_iteration_numbers=False))) is None
    others = replace(run_log, trainer=BY_ID["litgpt"])
    assert "lr_decay_iters" not in require_finding(horizon_changed(analyse(others))).advice


def test_a_warm_up_that_runs_twice() -> None:
    def rates(steps: Steps) -> np.ndarray:
        done = steps.iteration - np.where(steps.segment == 1, 3000, 0)
        return np.asarray(1e-3 * np.minimum(1, (done + 1) / 101))

    one = require_finding(horizon_changed(analyse(split_run(gpu_run(), 3000, 3240, lr=rates))))
    assert "restarted" in one.title
    assert "0.001 before iteration 3,000" in one.evidence


def planned(**stated: ConfigValue) -> RunLog:
    return make_run_log(make_steps(range(0, 2001, 10), loss=[2.0] * 201), settings=stated)


def test_a_decay_that_does_not_come_down() -> None:
    run_log = planned(max_iters=2000, learning_rate=1e-3, min_lr=1e-4, warmup_iters=100)
    one = require_finding(lr_schedule_mismatch(analyse(run_log)))
    assert "lr_decay_iters=600000" in one.evidence
    assert "taken as the default: lr_decay_iters" in one.evidence
    assert "100% of its peak" in one.evidence
    assert "lr_decay_iters=2000" in one.advice
    half = planned(max_iters=2000, learning_rate=1e-3, min_lr=1e-4, warmup_iters=0, lr_decay_iters=4000)
    assert "0.00055, 55% of its peak" in finding_text(lr_schedule_mismatch(analyse(half)))


def test_a_decay_that_ends_early_and_a_warm_up_that_does_not_end() -> None:
    rates: dict[str, ConfigValue] = {"learning_rate": 1e-3, "min_lr": 1e-4}
    early = planned(max_iters=2000, lr_decay_iters=1000, warmup_iters=100, **rates)
    assert "1,000 iterations (50%) run at 0.0001" in finding_text(lr_schedule_mismatch(analyse(early)))
    warm = require_finding(
        lr_schedule_mismatch(
            analyse(planned(max_iters=2000, lr_decay_iters=2000, warmup_iters=4000, **rates))
        )
    )
    assert warm.severity == "warning"
    assert "reaches 0.0005" in warm.evidence
    same = planned(max_iters=100, lr_decay_iters=100, warmup_iters=100, **rates)
    assert "reaches 0.00099 at the end" in finding_text(lr_schedule_mismatch(analyse(same)))  # and not min_lr


def test_schedules_that_fit_or_are_not_known() -> None:
    rates: dict[str, ConfigValue] = {"learning_rate": 1e-3, "min_lr": 1e-4}
    fits = planned(max_iters=2000, lr_decay_iters=2000, warmup_iters=100, **rates)
    constant = planned(max_iters=2000, decay_lr=False, **rates)
    for run_log in (fits, constant, planned(max_iters=2000), planned(**rates), planned()):
        assert lr_schedule_mismatch(analyse(run_log)) is None
    glass = replace(planned(max_iters=2000, learning_rate=1e-3, lr_decay_iters=None), trainer=GLASSGPT)
    assert lr_schedule_mismatch(analyse(glass)) is None


def test_a_loop_that_only_evaluates_has_no_schedule_of_train_py() -> None:
    run_log = planned(max_iters=2000, learning_rate=1e-3, min_lr=1e-4, warmup_iters=100)
    silent = replace(run_log, steps=make_steps([]), evals=gpu_run().evals)
    assert lr_schedule_mismatch(analyse(silent)) is None
    spoken = replace(silent, setup=replace(silent.setup, tokens_per_iteration=16_384))
    assert lr_schedule_mismatch(analyse(spoken)) is not None


def test_a_rate_column_tells_too() -> None:
    at = np.arange(1, 1001)
    lr = (6e-4 * 0.5 * (1 + np.cos(math.pi * at / 2000))).tolist()
    steps = make_steps(at.tolist(), loss=[3.0] * 1000, lr=lr)
    run_log = make_run_log(steps, trainer=BY_ID["llm.c"])
    done = replace(run_log, setup=replace(run_log.setup, planned_iterations=1000))
    assert "50% of its peak" in finding_text(lr_schedule_mismatch(analyse(done)))
    unfinished = replace(run_log, setup=replace(run_log.setup, planned_iterations=2000))
    assert lr_schedule_mismatch(analyse(unfinished)) is None
