"""Losses of another scale, metrics that collapse, preferences that stay; spikes that evaluations saw, too."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from learning_logs import HF, add_noise, analyse, falling_losses, require_finding
from run_logs import make_run_log, make_steps

from glassgpt.explain.rules.eval_cost import eval_spikes
from glassgpt.explain.rules.instability import find_loss_spikes, loss_spike
from glassgpt.explain.rules.loss_plausibility import memorised_data
from glassgpt.explain.rules.loss_scale import loss_above_chance, loss_scale, zeros_between
from glassgpt.explain.rules.lost_work import interrupted
from glassgpt.explain.rules.lr_schedule import lr_schedule_mismatch
from glassgpt.explain.rules.metrics import dead_reward, metric_collapse, undecided_pairs
from glassgpt.explain.rules.nonfinite import loss_zero
from glassgpt.explain.rules.plateau import plateau
from glassgpt.explain.rules.step_time import throughput_drift
from glassgpt.runs.metric_columns import metric_of
from glassgpt.runs.metric_series import MetricSeries
from glassgpt.runs.run_log import LogEvent, RunLog
from glassgpt.runs.trainers import BY_ID

UNKNOWN = BY_ID["unknown"]


def with_metric(run_log: RunLog, name: str, values: list[float], every: int) -> RunLog:
    metric, at = metric_of(name), every * np.arange(1, len(values) + 1)
    assert metric is not None
    return replace(run_log, metrics=(MetricSeries(name, metric, at, at, np.array(values)),))


# --- scale ---


def summed_run(factor: float, last: float = 1.0) -> RunLog:
    """A training loss of `factor` times the evaluations, of which the last is `last` times as high."""
    at = list(range(100, 701, 100))
    losses = [3.0, 1.2, 0.8, 0.6, 0.5, 0.45, 0.4]
    values = [*losses[:-1], losses[-1] * last]
    evals = [(one, None, value) for one, value in zip(at, values, strict=True)]
    return make_run_log(make_steps(at, loss=[factor * one for one in losses]), evals, trainer=HF)


def test_a_training_loss_that_is_summed_is_no_match_for_the_evaluations() -> None:
    one = require_finding(loss_scale(analyse(summed_run(16.0))))
    assert (one.at, one.values["count"]) == (700, 7)
    assert one.values["ratio"] == 16.0
    for factor in (1.0, 1.4, 0.5):  # as with dropout, or overfitted
        assert loss_scale(analyse(summed_run(factor))) is None


def test_a_last_evaluation_that_is_too_good_is_doubted() -> None:
    one = require_finding(loss_scale(analyse(summed_run(1.0, last=0.5))))
    assert (one.at, one.values["val_loss"], one.values["earlier_val_loss"]) == (700, 0.2, 0.45)
    assert loss_scale(analyse(summed_run(1.0, last=0.9))) is None


def test_a_loss_above_that_of_any_guess() -> None:
    for level, is_found in ((24.0, True), (10.0, False)):
        losses = add_noise([level] * 60, 0.3)
        run_log = make_run_log(make_steps(range(25, 1525, 25), loss=losses), trainer=HF)
        finding = loss_above_chance(analyse(run_log))
        assert (finding is not None) == is_found
    regression = make_run_log(
        make_steps(range(60), loss=[24.0 + i / 100 for i in range(60)]), trainer=UNKNOWN
    )
    assert loss_above_chance(analyse(regression)) is None


def test_a_loss_that_is_nothing_is_told_of_any_loop_but_not_as_a_fault() -> None:
    losses = [6.05 * math.exp(-at / 8) + 5e-5 for at in range(200)]
    steps = make_steps(range(200), loss=losses)
    one = require_finding(memorised_data(analyse(make_run_log(steps, trainer=UNKNOWN))))
    assert one.severity == "info"
    usual = make_steps(range(200), loss=[6.05 * math.exp(-at / 8) + 0.02 for at in range(200)])
    assert memorised_data(analyse(make_run_log(usual, trainer=UNKNOWN))) is None


def test_losses_of_exactly_0_between_usual_ones() -> None:
    one = require_finding(
        zeros_between(analyse(make_run_log(make_steps(range(4), loss=[5.74, 0.0, 5.16, 0.0]))))
    )
    assert (one.severity, one.at, one.values["zero_losses"]) == ("problem", 1, 2)
    learnt = make_run_log(make_steps(range(4), loss=[0.74, 0.0, 0.16, 0.0]))
    assert zeros_between(analyse(learnt)) is None
    # One pair a step, in few digits: some losses are nearly 0 anyway.
    pairs = make_run_log(make_steps(range(6), loss=[1.03, 0.0, 0.0312, 1.25, 0.0, 0.5]))
    assert zeros_between(analyse(pairs)) is None
    nothing = require_finding(loss_zero(analyse(make_run_log(make_steps(range(30), loss=[0.0] * 30)))))
    assert nothing.values["zero_losses"] == 30
    right = with_metric(make_run_log(make_steps(range(30), loss=[0.0] * 30)), "acc", [1.0] * 6, 5)
    assert loss_zero(analyse(right)) is None


# --- metrics ---


def test_an_accuracy_that_collapses_is_told_with_the_checkpoint_before_it() -> None:
    steps = make_steps(range(10, 451, 10), loss=[0.1] * 45)
    run_log = make_run_log(steps, checkpoints=[160, 300, 400], trainer=UNKNOWN)
    good = [0.90, 0.95, 0.92, 0.97, 0.90, 0.96, 0.94, 0.98]
    fallen = with_metric(run_log, "acc", [*good, 0.40, 0.0], 45)
    one = require_finding(metric_collapse(analyse(fallen)))
    assert (one.at, one.values["saved_iteration"], one.values["last"]) == (360, 300, 0.0)
    noisy = [0.6, 0.2, 0.8, 0.3, 0.7, 0.5, 0.2, 0.6, 0.4, 0.5]
    for values in ([*good, 0.90, 0.94], noisy, [*good, 0.0, 0.93], [0.02, 0.01, 0.02, 0.0, 0.0, 0.0]):
        assert metric_collapse(analyse(with_metric(run_log, "acc", values, 45))) is None
    # The first value is the best, and the others scatter little.
    one = require_finding(metric_collapse(analyse(with_metric(run_log, "acc", [0.98, 0.7, *[0.6] * 10], 45))))
    assert (one.severity, one.at, one.values["high"], one.values["highest"]) == ("warning", 45, 0.98, 0.6)
    percent = [97.0, *[95.0, 95.2] * 6]
    for values in ([0.98, *[0.85] * 11], [0.98, *[0.4, 0.8] * 6], [0.95, *[0.7] * 11], percent):
        assert metric_collapse(analyse(with_metric(run_log, "acc", values, 45))) is None


def test_rewards_that_are_all_the_lowest() -> None:
    run_log = make_run_log(make_steps(range(100), loss=[0.0] * 100), trainer=UNKNOWN)
    good = [-0.95, -0.9, -0.7, -0.96] * 5
    one = require_finding(dead_reward(analyse(with_metric(run_log, "reward", [*good, *[-1.0] * 20], 1))))
    assert (one.at, one.values["count"], one.values["reward_highest"]) == (20, 20, -0.7)
    for values in ([*good, *[-1.0] * 5], [*good, *[-0.5] * 20], [-1.0] * 40):
        assert dead_reward(analyse(with_metric(run_log, "reward", values, 1))) is None


def test_preferences_that_stay_at_ln2() -> None:
    for end, accuracy, is_found in ((0.675, 0.6, True), (0.35, 0.6, False), (0.675, 0.84, False)):
        losses = add_noise(np.linspace(0.694, end, 40).tolist(), 0.003)
        run_log = make_run_log(make_steps(range(5, 205, 5), loss=losses), ended="finished", trainer=HF)
        run_log = with_metric(run_log, "accuracy", add_noise([accuracy] * 20, 0.02), 10)
        finding = undecided_pairs(analyse(run_log))
        assert (finding is not None) == is_found
        if finding:
            assert finding.severity == "warning"


# --- spikes and levels ---


def spiked(high: dict[int, float], evals: dict[int, float] | None = None, interval: int = 10) -> RunLog:
    losses = falling_losses(100)
    for row, loss in high.items():
        losses[row] = loss
    at = [interval * row for row in range(100)]
    shown = [(interval * row, None, 0.1 + (evals or {}).get(row, 1.5)) for row in range(5, 100, 5)]
    return make_run_log(make_steps(at, loss=losses), shown if evals is not None else ())


def test_a_spike_that_an_evaluation_saw_is_of_the_weights() -> None:
    one = require_finding(loss_spike(analyse(spiked({60: 4.5}, {60: 4.4}))))
    assert (one.values["val_loss"], one.values["eval_iteration"]) == (4.5, 600)
    assert one.text["explanation"][0].key == "loss-spike.explanation.evaluated"
    alone = require_finding(loss_spike(analyse(spiked({60: 4.5}, {}))))
    assert (alone.severity, alone.text["explanation"][0].key) == (
        "info",
        "loss-spike.explanation.odd_batches",
    )
    rare = require_finding(loss_spike(analyse(spiked({60: 4.5}, interval=200))))
    assert rare.values["interval"] == 200


def test_the_largest_spike_is_the_largest_of_all_lines() -> None:
    one = require_finding(loss_spike(analyse(spiked({18: 7.0, 60: 4.5}))))
    assert (one.at, one.values["peak_loss"]) == (180, 7.0)


def test_a_spike_among_its_like_is_none() -> None:
    """One of many high losses just passes the threshold."""
    rng = np.random.default_rng(0)
    losses = 2.0 + rng.normal(0, 0.03, 4000)
    losses[200::500] += np.linspace(0.17, 0.22, 8)
    assert find_loss_spikes(analyse(make_run_log(make_steps(range(4000), loss=losses.tolist())))) == []
    losses[3000] += 2.0
    alone = find_loss_spikes(analyse(make_run_log(make_steps(range(4000), loss=losses.tolist()))))
    assert 3000 in [one.iteration for one in alone]


def test_a_change_of_level_is_no_plateau() -> None:
    level = [*[0.37] * 40, *[0.30] * 15, *[0.44] * 15, *[0.37] * 30]
    losses = add_noise([loss for loss in level for _ in range(10)], 0.005)
    assert plateau(analyse(make_run_log(make_steps(range(1000), loss=losses), trainer=HF))) is None


# --- time, schedule, end ---


def two_speeds(first: float, later: float) -> RunLog:
    rng = np.random.default_rng(0)
    ms = np.append(np.full(100, first), np.full(300, later)) * rng.normal(1, 0.01, 400)
    ms[[25, 50, 75]] += 20_000.0
    evals = [(250, 3.0, 3.0), (500, 2.5, 2.5), (750, 2.4, 2.4)]
    return make_run_log(make_steps(range(0, 4000, 10), ms.tolist(), falling_losses(400)), evals)


def test_a_change_of_speed_that_no_heat_makes() -> None:
    for later, key in ((650.0, "other_device"), (6500.0, "regimes")):
        one = require_finding(throughput_drift(analyse(two_speeds(9750.0, later))))
        assert one.text["explanation"][0].key == f"throughput-drift.explanation.{key}"


def test_evaluations_are_compared_with_the_iterations_around_them() -> None:
    values = require_finding(eval_spikes(analyse(two_speeds(9750.0, 650.0)))).values
    assert round(float(str(values["ratio"]))) == 3
    assert round(float(str(values["steady_ms"])) / 1000) == 10


def test_the_stretch_that_cost_most_is_named() -> None:
    rng = np.random.default_rng(0)
    ms = np.concatenate([np.full(220, 7500.0), np.full(30, 20_900.0), np.full(120, 6700.0)])
    ms *= rng.normal(1, 0.005, len(ms))
    steps = make_steps(range(370), ms.tolist(), falling_losses(370))
    one = require_finding(throughput_drift(analyse(make_run_log(steps))))
    assert round(float(str(one.values["slow_ms"])), -3) == 21_000
    assert one.at == 220


def test_a_log_that_is_all_warm_up() -> None:
    rates = (1e-6 * np.arange(1, 201)).tolist()
    steps = make_steps(range(200), loss=falling_losses(200), lr=rates)
    one = require_finding(lr_schedule_mismatch(analyse(make_run_log(steps, trainer=UNKNOWN, ended="cut"))))
    assert (one.severity, one.values["last_lr"]) == ("info", rates[-1])
    peak = make_steps(range(200), loss=falling_losses(200), lr=[*rates[:150], *rates[149:99:-1]])
    assert lr_schedule_mismatch(analyse(make_run_log(peak, trainer=UNKNOWN, ended="cut"))) is None


def test_a_sigterm_is_no_hand() -> None:
    steps = make_steps(range(0, 1000, 10), loss=falling_losses(100))
    for text, key in (
        ("Received 15 death signal, shutting down workers", "killed"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: got signal: 15", "killed"),
        ("Received 2 death signal, shutting down workers", "by_hand"),
        ("KeyboardInterrupt", "by_hand"),
    ):
        events = [LogEvent("interrupt", text, 200, 990)]
        run_log = make_run_log(steps, events=events, last_step_line=100, ended="interrupted")
        assert (
            require_finding(interrupted(analyse(run_log))).text["title"][0].key == f"interrupted.title.{key}"
        )


def test_a_ratio_that_changes_is_told_with_its_range() -> None:
    evals = [(at, None, 3.0) for at in range(100, 1001, 100)]
    losses = [45.0 if at < 500 else 24.0 for at in range(1001)]
    one = require_finding(loss_scale(analyse(make_run_log(make_steps(range(1001), loss=losses), evals))))
    assert [one.values[name] for name in ("ratio", "least", "most", "lines")] == [8.0, 8.0, 15.0, 5]


def test_tokens_per_second_where_no_time_is_logged() -> None:
    nan = [math.nan] * 200
    slower = make_steps(range(200), nan, tokens_per_s=add_noise([9000.0] * 60 + [1600.0] * 140, 100))
    one = require_finding(throughput_drift(analyse(make_run_log(slower))))
    assert [one.values[name] for name in ("first_rate", "last_rate")] == pytest.approx([9000, 1600], rel=0.02)
    even = make_steps(range(200), nan, tokens_per_s=add_noise([9000.0] * 200, 2000))
    assert throughput_drift(analyse(make_run_log(even))) is None
    # Few lines, the first of which has the start-up; and as few that scatter.
    few = [26e3, 81e3, 82e3, 81e3, 81e3, 80e3, 77e3, 70e3, 64e3, 59e3, 57e3, 57e3, 57e3, 56e3]
    steps = make_steps(range(0, 1400, 100), nan[:14], tokens_per_s=few)
    one = require_finding(throughput_drift(analyse(make_run_log(steps))))
    assert [one.values[name] for name in ("first_rate", "last_rate")] == [81e3, 57e3]
    few[1:4], few[-3:] = [90e3, 70e3, 80e3], [55e3, 60e3, 68e3]
    steps = make_steps(range(0, 1400, 100), nan[:14], tokens_per_s=few)
    assert throughput_drift(analyse(make_run_log(steps))) is None
