"""What a resume changed, and whether the schedule fits the run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from learning_logs import GLASSGPT, analyse, gpu_run, require_finding, split_run
from log_checks import parse_log
from run_logs import make_run_log, make_steps

from glassgpt.config import ConfigValue
from glassgpt.explain.rules.lr_schedule import horizon_changed, lr_schedule_mismatch
from glassgpt.explain.rules.resumes import (
    redone_iterations,
    resume_jump,
    resume_lost_state,
    resume_replays_data,
)
from glassgpt.i18n import say
from glassgpt.runs.run_log import LoggedProcess, LoggedSetup, RunLog, Steps
from glassgpt.runs.trainers import BY_ID
from glassgpt.runs.trajectory import seconds_between, trajectory_of

# --- the trajectory ---


def test_a_course_leaves_out_what_was_done_over() -> None:
    whole, parted = trajectory_of(gpu_run()), trajectory_of(split_run(gpu_run(), 1000, 1240))
    assert parted.iteration.tolist() == whole.iteration.tolist()
    assert [done.iteration for done in parted.evals] == [done.iteration for done in whole.evals]
    assert parted.segments == (0, 1)


def test_what_a_restart_repeats_does_not_count() -> None:
    steps = make_steps([0, 10, 20, 0, 10, 20, 30, 20], segment=[0, 0, 0, 1, 1, 1, 1, 2], loss=[1.0] * 8)
    segments = tuple(LoggedProcess(True, True, first) for first in (0, 0, 20))
    trajectory = trajectory_of(make_run_log(steps, segments=segments))
    assert trajectory.rows.tolist() == [3, 4, 7]


def test_unlogged_iterations_take_steady_time() -> None:
    trajectory = trajectory_of(make_run_log(make_steps([0, 10, 20], [1000.0, 200.0, 100.0])))
    assert seconds_between(trajectory, 0, 20, 100.0) == pytest.approx((200 + 100 + 18 * 100) / 1000)
    assert seconds_between(trajectory, 0, 20, None) is None


# --- data drawn again ---


def test_nanogpt_draws_the_same_batches_again() -> None:
    run_log = shifted(0.02)
    run_log = replace(run_log, setup=replace(run_log.setup, tokens_per_iteration=16_384))
    one = require_finding(resume_replays_data(analyse(run_log)))
    assert one.severity == "info", "as the script comes; the log does not show it"
    assert (one.values["processes"], one.values["iterations_by_process"]) == (2, "1,000 + 4,001")
    assert one.values["repeated_iterations"] == 1000
    assert one.values["repeated_share"] == pytest.approx(1000 / 5001)
    assert one.values["repeated_tokens"] == 1000 * 16_384
    assert resume_replays_data(analyse(replace(run_log, trainer=GLASSGPT))) is None


def test_an_exact_resume_repeats_the_losses_of_the_process_before() -> None:
    """Of the iterations that both logged; the losses before may lie where they will."""

    def resumed(by: float) -> RunLog:
        jump = 0.3 * (gpu_run().steps.iteration >= 1000)
        whole = replace(gpu_run(), steps=replace(gpu_run().steps, loss=gpu_run().steps.loss + jump))
        return split_run(whole, 1000, 1240, loss=lambda steps: steps.loss + by * (steps.segment == 1))

    for by, is_exact in ((0.0, True), (2e-5, True), (0.01, False)):
        analysis = analyse(resumed(by))
        findings = (resume_jump(analysis), resume_replays_data(analysis))
        assert [finding is None for finding in findings] == [is_exact, is_exact], by


def test_a_log_of_the_resumed_process_alone() -> None:
    """How the process before it ran is not known."""
    steps = make_steps(range(2000, 5001, 10), loss=[1.5] * 301)
    run_log = make_run_log(steps, segments=(LoggedProcess(True, True, 2000),))
    assert resume_replays_data(analyse(run_log)) is None


# --- iterations done again ---


def test_iterations_done_twice() -> None:
    """nanoGPT's line N is update N; lines that count from 1 come an interval after the resume."""
    run_log = split_run(gpu_run(), 1000, 1240)
    one = require_finding(redone_iterations(analyse(run_log)))
    assert (one.severity, one.at, one.values["resumes"]) == ("advice", 999, 1)
    assert one.values["redone_iterations"] == 1240 - 999
    steady_ms = analyse(run_log).steady_ms
    assert steady_ms is not None
    assert one.values["redone_s"] == pytest.approx(241 * steady_ms / 1000)
    assert redone_iterations(analyse(gpu_run())) is None
    assert redone_iterations(analyse(split_run(gpu_run(), 1000, 990))) is None

    at = [*range(10, 101, 10), *range(60, 301, 10)]
    segments = (LoggedProcess(True, False, 10), LoggedProcess(True, False, 60))
    steps = make_steps(at, loss=[2.0] * len(at), segment=[0] * 10 + [1] * 25)
    counting = make_run_log(steps, segments=segments, trainer=BY_ID["llama-factory"])
    one = require_finding(redone_iterations(analyse(counting)))
    assert (one.values["redone_iterations"], one.values["resume_iteration"]) == (50, 50)
    assert one.values["last_iteration"] == 100
    assert one.severity == "warning", "a seventh of all"


@pytest.mark.parametrize(("ends", "redone"), [((100, 90, 120), 50), ((100, 60, 40), 10), ((100, 51), None)])
def test_an_iteration_is_done_again_where_a_later_process_came_to_it(
    ends: tuple[int, ...], redone: int | None
) -> None:
    """Each process but the first resumes from 50."""
    at = [*range(1, ends[0] + 1), *(step for end in ends[1:] for step in range(51, end + 1))]
    lengths = [ends[0], *(max(0, end - 50) for end in ends[1:])]
    segment = [index for index, length in enumerate(lengths) for _ in range(length)]
    segments = tuple(LoggedProcess(True, bool(index), 51 if index else 1) for index in range(len(ends)))
    run_log = make_run_log(make_steps(at, loss=[2.0] * len(at), segment=segment), segments=segments)
    found = redone_iterations(analyse(run_log))
    assert (found and found.values["redone_iterations"]) == redone


# --- the loss after it ---


def shifted(by: float) -> RunLog:
    return split_run(gpu_run(), 1000, 1240, loss=lambda steps: steps.loss + by * (steps.segment == 1))


def test_a_loss_that_jumps_at_a_resume() -> None:
    up = require_finding(resume_jump(analyse(shifted(0.2))))
    assert up.text["title"][0].key == "resume-jump.title.up"
    assert up.text["explanation"] == (say("resume-jump.explanation.up"),)
    assert up.values["jump"] == pytest.approx(0.2, abs=0.1)
    assert up.at == up.values["resume_iteration"] == 1000
    down = require_finding(resume_jump(analyse(shifted(-0.3))))
    assert down.text["title"][0].key == "resume-jump.title.down"
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
        return make_run_log(
            steps, segments=(LoggedProcess(True, False, 0), LoggedProcess(True, True, 10 * lines))
        )

    assert resume_jump(analyse(resumed(0.0))) is None
    dropped = require_finding(resume_jump(analyse(resumed(1.0))))
    assert dropped.text["title"][0].key == "resume-jump.title.down"
    assert dropped.at == 10 * lines


# --- the schedule ---


def with_rates(after: float) -> RunLog:
    """A cosine to 5000; after the resume it is `after` times as high."""

    def rates(steps: Steps) -> np.ndarray:
        cosine = 1e-4 + 4.5e-4 * (1 + np.cos(np.pi * steps.iteration / 5000))
        return np.asarray(cosine * np.where(steps.segment == 1, after, 1.0))

    return split_run(gpu_run(), 3000, 3240, lr=rates)


def test_a_rate_that_goes_back_up() -> None:
    one = require_finding(horizon_changed(analyse(with_rates(1.8))))
    assert one.text["title"] == (say("horizon-changed.title.lr_raised"),)
    assert one.values["lr_ratio"] == pytest.approx(1.8, abs=0.05)
    assert one.at == one.values["resumed_at"] == 3000
    assert horizon_changed(analyse(with_rates(1.0))) is None


def test_lines_without_numbers_are_no_resume() -> None:
    run_log = with_rates(1.8)
    parts = (run_log.segments[0], replace(run_log.segments[1], resumed=False))
    assert horizon_changed(analyse(replace(run_log, segments=parts))) is not None
    assert horizon_changed(analyse(replace(run_log, segments=parts, has_iteration_numbers=False))) is None
    others = replace(run_log, trainer=BY_ID["litgpt"])
    advice = require_finding(horizon_changed(analyse(others))).text["advice"]
    assert [message.key for message in advice] == ["horizon-changed.advice.set_schedule_end"]


def test_a_warm_up_that_runs_twice() -> None:
    def rates(steps: Steps) -> np.ndarray:
        done = steps.iteration - np.where(steps.segment == 1, 3000, 0)
        return np.asarray(1e-3 * np.minimum(1, (done + 1) / 101))

    one = require_finding(horizon_changed(analyse(split_run(gpu_run(), 3000, 3240, lr=rates))))
    assert one.text["title"] == (say("horizon-changed.title.schedule_restarted"),)
    assert one.values["lr_before"] == pytest.approx(1e-3)
    assert one.at == one.values["resumed_at"] == 3000


def planned(**stated: ConfigValue) -> RunLog:
    return make_run_log(make_steps(range(0, 2001, 10), loss=[2.0] * 201), settings=stated)


def test_a_decay_that_does_not_come_down() -> None:
    run_log = planned(max_iters=2000, learning_rate=1e-3, min_lr=1e-4, warmup_iters=100)
    one = require_finding(lr_schedule_mismatch(analyse(run_log)))
    assert "lr_decay_iters=600000" in str(one.values["settings"])
    assert one.values["names"] == ["lr_decay_iters"]
    assert one.values["share_of_peak"] == pytest.approx(1, abs=0.005)
    assert one.at == one.values["end_iteration"] == 2000
    half = planned(max_iters=2000, learning_rate=1e-3, min_lr=1e-4, warmup_iters=0, lr_decay_iters=4000)
    one = require_finding(lr_schedule_mismatch(analyse(half)))
    assert one.values["final_lr"] == pytest.approx(5.5e-4)
    assert one.values["share_of_peak"] == pytest.approx(0.55)


def test_a_decay_that_ends_early_and_a_warm_up_that_does_not_end() -> None:
    rates: dict[str, ConfigValue] = {"learning_rate": 1e-3, "min_lr": 1e-4}
    early = planned(max_iters=2000, lr_decay_iters=1000, warmup_iters=100, **rates)
    one = require_finding(lr_schedule_mismatch(analyse(early)))
    assert (one.at, one.values["iterations_at_minimum"], one.values["share_at_minimum"]) == (1000, 1000, 0.5)
    assert one.values["min_lr"] == 1e-4
    warm = require_finding(
        lr_schedule_mismatch(
            analyse(planned(max_iters=2000, lr_decay_iters=2000, warmup_iters=4000, **rates))
        )
    )
    assert warm.severity == "warning"
    assert warm.values["final_lr"] == pytest.approx(5e-4, rel=1e-3)
    same = planned(max_iters=100, lr_decay_iters=100, warmup_iters=100, **rates)
    one = require_finding(lr_schedule_mismatch(analyse(same)))
    assert one.values["final_lr"] == pytest.approx(9.9e-4, rel=1e-3)  # and not min_lr


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
    one = require_finding(lr_schedule_mismatch(analyse(done)))
    assert (one.at, one.values["share_of_peak"]) == (1000, pytest.approx(0.5, abs=0.005))
    unfinished = replace(run_log, setup=replace(run_log.setup, planned_iterations=2000))
    assert lr_schedule_mismatch(analyse(unfinished)) is None


def test_a_decay_without_an_end_has_nothing_to_reach() -> None:
    at = np.arange(1, 101) / 100
    warm = np.minimum(1.0, at / 0.1)
    cases = {
        "inverse square root": (warm * np.minimum(1.0, (0.1 / at) ** 0.5), False),
        "exponential": (np.exp(-at), False),
        "steps": (0.5 ** np.floor(at / 0.34), False),
        "half of a line": (warm * (1 - at / 2), True),
        "half of a cosine": (warm * cosine(at / 2), True),
    }
    found = {
        name: lr_schedule_mismatch(analyse(logged_lr(shares))) is not None
        for name, (shares, _) in cases.items()
    }
    assert found == {name: is_cut for name, (_, is_cut) in cases.items()}


def test_a_learning_rate_that_only_rises() -> None:
    """A share of the peak from 0 to 1; one that reached its peak early is a warm-up."""
    rising = [row / 100 for row in range(101)]
    planned = LoggedSetup(planned_iterations=100)
    run_log = make_run_log(make_steps(range(101), lr=rising), trainer=BY_ID["nanochat"], setup=planned)
    one = require_finding(lr_schedule_mismatch(analyse(run_log)))
    assert (one.values["first_share"], one.values["last_share"]) == (0.0, 1.0)
    assert one.lines == (1, 101)
    range_test = np.geomspace(1e-7, 1.0, 101).tolist()
    for rates in ([min(1.0, rate * 4) for rate in rising], rising[::-1], [*rising[:100], 0.5], range_test):
        other = replace(run_log, steps=make_steps(range(101), lr=rates))
        assert lr_schedule_mismatch(analyse(other)) is None


# --- a learning rate that runs out ---


def logged_lr(shares: np.ndarray, planned: int = 50_000, digits: int | None = None) -> RunLog:
    """A line every 500 iterations of a loop that is not known."""
    lr = 2e-5 * shares if digits is None else np.round(2e-5 * shares, digits)
    steps = make_steps(range(500, 500 * len(lr) + 1, 500), loss=[3.0] * len(lr), lr=lr.tolist())
    return make_run_log(steps, trainer=BY_ID["unknown"], setup=LoggedSetup(planned_iterations=planned))


def cosine(progress: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.cos(np.pi * progress))


def test_a_schedule_that_every_process_steps() -> None:
    """Four processes: the cosine ends at a quarter of the run, and goes up again."""
    at = np.arange(1, 61) / 100
    one = require_finding(lr_schedule_mismatch(analyse(logged_lr(cosine(4 * at)))))
    assert (one.severity, one.at) == ("warning", 12_500)
    assert one.text["explanation"] == (say("lr-schedule-mismatch.explanation.whole_ratio", ratio=4),)
    assert one.values["later_iteration"] == 25_000
    ends = cosine(np.minimum(1.0, 4 * at))  # it is clamped
    one = require_finding(lr_schedule_mismatch(analyse(logged_lr(ends))))
    assert one.values["zero_iteration"] == 12_500
    assert one.text["explanation"][0].values["ratio"] == 4
    uneven = require_finding(lr_schedule_mismatch(analyse(logged_lr(cosine(np.minimum(1.0, 2.5 * at))))))
    assert uneven.text["explanation"] == (say("lr-schedule-mismatch.explanation.ran_out"),)


def test_schedules_that_end_where_they_should() -> None:
    at = np.arange(1, 101) / 100
    restarts = cosine(4 * at % 1)  # warm restarts jump
    cycles = np.minimum(1.0, (4 * at % 1) / 0.1) * cosine(4 * at % 1)  # with a warm-up each
    rounded = logged_lr(1 - at, digits=5)  # 2e-05, 1e-05, 0
    for run_log in (
        *(logged_lr(shares) for shares in (cosine(at), 1 - at, restarts, cycles, 0.1 + 0.9 * cosine(at))),
        logged_lr(np.exp(-6 * at)),
        logged_lr(cosine(np.minimum(1.0, at / 0.95))),
        rounded,
    ):
        assert lr_schedule_mismatch(analyse(run_log)) is None


# --- what a checkpoint says of itself ---


def resumed_from_checkpoint(first_val: float, last_val: float) -> RunLog:
    losses = [3.0, *(3.0 + 0.9 * 0.9**at for at in range(299))]
    norms = [0.3, 8.5, *([0.4] * 298)]
    steps = make_steps(range(1000, 1300), 100.0, losses, grad_norm=norms)
    evals = [(1050 + 50 * at, None, first_val + (last_val - first_val) * at / 4) for at in range(5)]
    return make_run_log(steps, evals=evals, setup=LoggedSetup(resumed_val_loss=3.0), first_line=1)


def test_a_resume_that_lost_state() -> None:
    finding = require_finding(resume_lost_state(analyse(resumed_from_checkpoint(3.2, 2.96))))
    assert (finding.at, finding.values["before"], finding.values["after"]) == (1050, 3.0, 3.2)
    assert (finding.values["back"], finding.values["iterations"]) == (1250, 250)
    assert (finding.values["first_norm"], finding.values["max_norm"]) == (0.3, 8.5)
    assert finding.values["max_loss"] == pytest.approx(3.9)
    never = require_finding(resume_lost_state(analyse(resumed_from_checkpoint(3.2, 3.1))))
    assert "back" not in never.values
    assert resume_lost_state(analyse(resumed_from_checkpoint(3.01, 2.9))) is None


def test_the_loss_of_a_loaded_checkpoint_is_read() -> None:
    line = "Loaded checkpoint from log/model_1000.pt, epoch 1, step 1000, val_loss 3.0717\n"
    steps = "".join(
        f"step {at} | loss: 3.{at} | lr 3.4e-04 | norm: 0.3 | dt: 100.00ms | tok/sec: 5000.00\n"
        for at in range(1000, 1010)
    )
    assert parse_log(line + steps).setup.resumed_val_loss == 3.0717
    assert parse_log(steps + line).setup.resumed_val_loss is None, "loaded after training"
