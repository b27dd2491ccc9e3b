"""What the losses say about the learning."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from learning_logs import (
    GLASSGPT,
    HF,
    add_noise,
    analyse,
    cpu_run,
    falling_losses,
    finding_text,
    gpu_run,
    readme_run,
    require_finding,
    split_run,
)
from run_logs import make_run_log, make_steps

from glassgpt.config import ConfigValue
from glassgpt.estimate.loss_forecast import LAW
from glassgpt.explain.registry import LEARNING_RULES
from glassgpt.explain.rules.learning import still_improving
from glassgpt.explain.rules.loss_plausibility import (
    collapsed_loss,
    constant_loss,
    epoch_steps,
    init_loss,
    leaked_data,
    loss_at_floor,
    memorised_data,
    ppl_vs_loss,
)
from glassgpt.explain.rules.lost_work import best_overwritten
from glassgpt.explain.rules.overfitting import overfitting
from glassgpt.explain.rules.plateau import hardly_learnt, plateau, underfit_capacity
from glassgpt.explain.rules.val_curve import eval_noise, gap_growth, stuck_eval, val_rise, worse_than_first
from glassgpt.i18n import say
from glassgpt.runs.metric_columns import metric_of
from glassgpt.runs.metric_series import MetricSeries
from glassgpt.runs.noise import EvalNoise, falls_clearly
from glassgpt.runs.run_log import LoggedCheckpoint, LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog
from glassgpt.runs.trainers import BY_ID

# --- overfitting ---


def test_what_overfitting_cost_includes_its_evaluations() -> None:
    """100 ms an iteration, and as much time again for evaluations that the log does not time."""
    at = range(0, 1001, 10)
    steps = make_steps(at, 100.0, np.linspace(3.0, 1.0, 101).tolist())
    evals = [(100 * i, None, 2.0 + abs(i - 3) / 5) for i in range(1, 11)]
    run_log = make_run_log(steps, evals, trainer=BY_ID["unknown"], setup=LoggedSetup(wall_s=200.0))
    assert require_finding(overfitting(analyse(run_log))).values["saving"] == pytest.approx(0.7, abs=0.01)


def test_a_learning_rate_that_has_hardly_fallen_is_not_at_its_highest() -> None:
    for last, key in (
        (1e-3, "lr_not_lowered"),
        (0.95e-3, "lr_hardly_lowered"),
        (0.34e-3, "lr_hardly_lowered"),
        (0.2e-3, "schedule_caveat"),
    ):
        rates = np.interp(range(cpu_run().iterations_logged), (0, 50, 10**4), (1e-3, 1e-3, 1e-3)).tolist()
        rates[-60:] = np.linspace(1e-3, last, 60).tolist()
        run_log = replace(cpu_run(), steps=replace(cpu_run().steps, lr=np.array(rates)))
        one = require_finding(still_improving(analyse(run_log)))
        assert one.text["explanation"][-1].key == f"still-improving.explanation.{key}"


def test_a_metric_that_still_improves_softens_overfitting() -> None:
    """The same curve, with an accuracy of held-out data that rises on, or falls with the loss."""
    at = np.arange(0, 5001, 250)
    metric = metric_of("val_acc")
    assert metric is not None
    rising, falling = 0.3 + at / 10_000, 0.8 - at / 10_000
    found = [
        require_finding(
            overfitting(
                analyse(replace(gpu_run(), metrics=(MetricSeries("val_acc", metric, at, at + 1, acc),)))
            )
        )
        for acc in (rising, falling)
    ]
    assert [one.severity for one in found] == ["info", "warning"]
    assert found[0].values["metric_before"] == pytest.approx(rising[5:10].mean())  # around 1750
    assert found[0].values["metric_after"] == pytest.approx(rising[-5:].mean())
    assert (found[0].advice, found[0].claims) == ("", {})


def test_the_readme_run_on_a_gpu_overfits() -> None:
    one = require_finding(overfitting(analyse(gpu_run())))
    assert one.severity == "warning"
    assert one.at == one.values["best_iteration"] == 1750
    assert one.claims == {"learning at the end": "overfitting", "best iteration": 1750}
    assert (one.values["best_loss"], one.values["end_loss"]) == (1.4576, 1.7096)
    assert one.values["last_iteration"] == 5000
    assert (one.values["train_loss_at_best"], one.values["train_loss_at_end"]) == (1.1002, 0.6127)
    stop, more_text = one.text["advice"]  # always_save_checkpoint was False already
    assert (stop.key, stop.values["best_iteration"]) == ("overfitting.advice.set_max_iters", 1750)
    assert stop.values["rise"] == pytest.approx(1.7096 - 1.4576)
    assert more_text == say("overfitting.advice.more_text", best_loss=1.4576)


def test_a_run_in_progress_is_not_advised_to_have_stopped() -> None:
    one = require_finding(overfitting(analyse(replace(gpu_run(), live=True))))
    assert one.text["advice"][0].key == "overfitting.advice.stop_now"
    assert one.text["advice"][0].values["best_iteration"] == 1750


def test_its_share_of_the_time_is_measured() -> None:
    """13 evaluations and 3237 plain iterations came after the best, of 20 and 4980, and the start."""
    after = 13 * 2200 + 3237 * 13
    share = after / (21 * 2200 + 4980 * 13)
    values = require_finding(overfitting(analyse(gpu_run()))).values
    assert values["saving"] == pytest.approx(share, abs=0.005)


def test_a_run_that_saved_over_its_best_is_advised_the_setting() -> None:
    run_log = gpu_run()
    run_log = replace(
        run_log, checkpoints=(*run_log.checkpoints, replace(run_log.checkpoints[-1], iteration=5000))
    )
    one = require_finding(overfitting(analyse(run_log)))
    assert say("overfitting.advice.keep_best_weights") in one.text["advice"]


def test_a_validation_loss_that_rises_with_the_training_loss_is_not_overfitting() -> None:
    run_log = gpu_run()
    evals = tuple(replace(done, train_loss=done.val_loss) for done in run_log.evals)
    assert overfitting(analyse(replace(run_log, evals=evals))) is None


def test_noise_is_not_overfitting() -> None:
    val = add_noise([1.5] * 20, 0.01)
    evals = [(250 * i, 1.4 - 0.001 * i, val[i]) for i in range(20)]
    assert overfitting(analyse(make_run_log(make_steps(range(0, 5000, 10)), evals))) is None


def tail(*evals: tuple[int, float, float], **changes: object) -> RunLog:
    """The end of a log: a few iterations around its last evaluations."""
    last = evals[-1][0]
    steps = make_steps(range(last - 20, last + 1, 10), loss=[0.83, 0.82, 0.81])
    processes = (LoggedProcess(has_startup=False, first_iteration=last - 20),)
    return replace(make_run_log(steps, evals, segments=processes), **changes)  # type: ignore[arg-type]


def test_one_evaluation_shows_overfitting_by_its_gap() -> None:
    one = require_finding(overfitting(analyse(tail((5000, 0.6224, 1.7044)))))
    assert (one.severity, one.at, one.claims) == ("warning", 5000, {"learning at the end": "overfitting"})
    assert one.values["gap"] == pytest.approx(1.082)
    assert (one.values["train_loss"], one.values["val_loss"]) == (0.6224, 1.7044)
    assert say("overfitting.evidence.best_unknown") in one.text["evidence"]
    assert one.values["eval_line"] == "step N: train loss …, val loss …"
    other = require_finding(overfitting(analyse(tail((5000, 0.6224, 1.7044), trainer=HF))))
    assert other.text["advice"][0] == say("overfitting.advice.earlier_evaluations")


def test_a_gap_that_is_usual_at_the_best_evaluation_is_none() -> None:
    for evals, found in (
        ([(1750, 1.1002, 1.4576)], False),  # a third of the training loss
        ([(1750, 1.1002, 1.66)], True),  # just above a half
        ([(1750, 1.1002, 1.64)], False),
        ([(1750, 0.2, 0.55)], False),  # less than 0.4 nats
        ([(0, 0.62, 1.70)], False),  # before the first update: the texts differ
        ([(0, 2.0, 3.0), (5000, 0.8, 1.9)], False),  # 0.1 more than before the first update
        ([(0, 2.0, 2.0), (5000, 0.8, 1.9)], True),
        ([(4750, 0.7, 1.80), (5000, 0.62, 1.70)], False),  # still better on unseen text
        ([(4750, 0.7, 1.69), (5000, 0.62, 1.70)], True),
    ):
        assert (overfitting(analyse(tail(*evals))) is not None) == found, evals


def test_the_best_of_a_tail_may_have_come_before_it() -> None:
    rising = [(4500, 1.60, 1.67), (4750, 1.55, 1.71), (5000, 1.50, 1.75), (5250, 1.45, 1.79)]
    run_log = tail(*rising)
    one = require_finding(overfitting(analyse(run_log)))
    assert one.text["title"] == (say("overfitting.title.rising", metric="val loss"),)
    assert (one.at, one.claims) == (5250, {"learning at the end": "overfitting"})
    assert (one.values["earlier_loss"], one.values["end_loss"]) == (1.67, 1.79)
    assert say("overfitting.evidence.best_unknown") in one.text["evidence"]
    assert not {"best_iteration", "saving"} & set(one.values)
    whole = require_finding(overfitting(analyse(tail((4250, 1.65, 1.72), *rising))))
    assert whole.values["best_iteration"] == 4500  # one before it is worse
    saves = tuple(LoggedCheckpoint(at, 0) for at, *_ in rising)
    assert best_overwritten(analyse(replace(run_log, checkpoints=saves))) is None


def test_a_gap_within_the_noise_is_none() -> None:
    run_log = tail((5000, 0.6, 1.5))
    for stderr, found in ((0.06, True), (0.07, False)):  # ten standard errors of a difference
        evals = tuple(replace(one, stderr=stderr) for one in run_log.evals)
        assert (overfitting(analyse(replace(run_log, evals=evals))) is not None) == found


def test_other_trainers_are_not_advised_nanogpts_settings() -> None:
    one = require_finding(overfitting(analyse(replace(gpu_run(), trainer=HF))))
    assert "max_iters" not in one.advice
    assert one.text["advice"][0].key == "overfitting.advice.stop_at_iteration"
    assert one.text["advice"][0].values["best_iteration"] == 1750


# --- still improving ---


def test_the_readme_run_on_a_cpu_was_still_improving() -> None:
    one = require_finding(still_improving(analyse(cpu_run())))
    assert (one.severity, one.at, one.claims) == ("advice", 2000, {"learning at the end": "improving"})
    values = one.values
    assert (values["end_loss"], values["end_iteration"]) == (1.8857, 2000)
    assert [message.key for message in one.text["advice"]] == ["still-improving.advice.raise_max_iters"]
    assert "expected_loss" not in values  # no run was tested beyond its planned end
    assert one.text["explanation"][-1].key == "still-improving.explanation.schedule_caveat"
    assert still_improving(analyse(gpu_run())) is None


def test_a_loss_that_ended_as_nan_is_not_still_improving() -> None:
    """The training losses alone, with NaN from iteration 1,600 on, and the same with a last loss again."""
    run_log = replace(cpu_run(), evals=())
    broken = run_log.steps.loss.copy()
    broken[160:] = np.nan
    lasting, recovered = (replace(run_log.steps, loss=loss) for loss in (broken, broken.copy()))
    recovered.loss[170:] = run_log.steps.loss[170:]
    assert still_improving(analyse(replace(run_log, steps=lasting))) is None
    assert still_improving(analyse(replace(run_log, steps=recovered))) is not None


def test_a_run_that_stopped_early_is_forecast_to_its_planned_end() -> None:
    """The README run, cut at 1,600 of 2,000: its val loss was 1.8857 at the end."""
    run_log = cpu_run()
    steps = run_log.steps
    kept = {name: column[:161] for name, column in vars(steps).items() if column is not None}
    cut = replace(run_log, steps=replace(steps, **kept), evals=run_log.evals[:7], ended=None)
    one = require_finding(still_improving(analyse(cut)))
    values = one.values
    assert (one.severity, values["planned_iterations"], values["metric"]) == ("info", 2000, "val loss")
    low, expected, high, end = (
        float(str(values[name])) for name in ("low_loss", "expected_loss", "high_loss", "end_loss")
    )
    assert low < 1.8857 < high
    assert low < expected < end
    assert values["runs"] == LAW.runs >= 60
    far = require_finding(still_improving(analyse(cpu_run(max_iters=50_000))))
    assert "expected_loss" not in far.values  # 4% of the plan say nothing of its end


def test_a_curve_whose_best_is_earlier_or_whose_last_quarter_is_flat_is_not_still_falling() -> None:
    at = np.arange(100, 4001, 100)
    falling = 2.0 + 3.0 * (1 + at / 100) ** -0.6
    best_before_last, flat_quarter = falling.copy(), falling.copy()
    best_before_last[-1] = best_before_last[-2] + 1e-4
    wobble = 0.004 * np.where(np.arange(10) % 2, -1, 1)
    flat_quarter[-10:] = flat_quarter[-10] + wobble
    found = []
    for val in (falling, best_before_last, flat_quarter):
        evals = [(int(i), None, float(value)) for i, value in zip(at, val, strict=True)]
        run_log = make_run_log(make_steps(range(0, 4001, 10)), evals, trainer=HF)
        found.append(still_improving(analyse(run_log)) is not None)
    assert found == [True, False, False]


def test_a_curve_that_no_law_fits_gets_no_advice() -> None:
    """A rate that comes down late bends the curve: what a power law says of later is worth nothing."""
    at = np.arange(0, 2001, 50)
    val = np.interp(at, [0, 200, 600, 1400, 2000], [6.0, 4.8, 4.0, 3.8, 3.3])
    evals = [(int(i), None, float(value)) for i, value in zip(at, val, strict=True)]
    one = require_finding(
        still_improving(analyse(make_run_log(make_steps(range(0, 2001, 10)), evals, trainer=HF)))
    )
    assert (one.severity, one.advice) == ("info", "")
    assert "explanation" not in one.text or not one.text["explanation"]  # its plan is not known


def flat_end(lr: list[float] | None = None) -> RunLog:
    """10,000 iterations: the val loss falls by a power law up to 9,400, and then stays."""
    evals = [(at, None, 2.0 + 8.0 * min(max(at, 10), 9400) ** -0.2) for at in range(0, 10_001, 100)]
    steps = make_steps(range(0, 10_001, 100), lr=lr or [math.nan] * 101)
    return make_run_log(steps, evals, trainer=HF, setup=LoggedSetup(planned_iterations=10_000))


def test_a_curve_that_is_flat_at_its_end_is_not_falling() -> None:
    """Where the learning rate has run out, that is why, and a longer schedule helps."""
    rates = [1e-3 * (1 - row / 100) for row in range(101)]
    assert still_improving(analyse(flat_end())) is None
    assert still_improving(analyse(flat_end([1e-3] * 101))) is None
    one = require_finding(still_improving(analyse(flat_end(rates))))
    assert one.text["title"][0].key == "still-improving.title.until_lr_ran_out"
    assert one.values["end_loss"] == pytest.approx(2.0 + 8.0 * 9400**-0.2)


def test_a_fall_below_the_noise_is_none() -> None:
    """A slope of many evaluations is visible where that of two is not."""
    val = [2.5, 2.3, 2.2, 2.13, 2.08, 2.045, 2.02, 2.0, 1.985]
    for stderr, found in ((0.005, True), (0.05, False)):
        evals = tuple(LoggedEvaluation(250 * i, 0, loss, stderr=stderr) for i, loss in enumerate(val))
        run_log = replace(make_run_log(make_steps(range(0, 2001, 10)), trainer=HF), evals=evals)
        assert (still_improving(analyse(run_log)) is not None) == found
        at, values = analyse(run_log).trajectory.val_curve()
        assert falls_clearly(at, values, EvalNoise(stderr, "stderr")) == found


def test_the_noise_of_a_slope() -> None:
    """Of four evaluations 100 iterations apart: sigma / sqrt(5) per step, so three of these are 0.0134."""
    at, noise = np.arange(0.0, 400.0, 100.0), EvalNoise(0.01, "stderr")
    for step, found in ((0.0133, False), (0.0136, True), (-0.02, False)):
        assert falls_clearly(at, 2.0 - step * np.arange(4.0), noise) == found
    assert not falls_clearly(at[:3], np.array([3.0, 2.0, 1.0]), noise)  # three points are too few


def test_lines_without_numbers_are_not_iterations() -> None:
    unnumbered = replace(gpu_run(), has_iteration_numbers=False)
    one = require_finding(overfitting(analyse(unnumbered)))
    assert one.text["title"][0].values["share_after_best"] == pytest.approx(0.65)
    assert one.text["advice"][0].key == "overfitting.advice.stop_at_best"
    assert one.at is None
    assert "best_iteration" not in one.values
    assert "best iteration" not in one.claims
    for rule in LEARNING_RULES:
        finding = rule(analyse(unnumbered))
        assert finding is None or "1,750" not in finding_text(finding)


def test_too_few_evaluations_leave_the_training_loss() -> None:
    rows = np.arange(1, 3001)
    losses = add_noise((2 + 9 * rows**-0.3).tolist(), 0.03)
    run_log = make_run_log(make_steps(rows.tolist(), loss=losses), trainer=HF, ended="finished")
    assert require_finding(still_improving(analyse(run_log))).values["metric"] == "train loss"
    # Of a log that only stops, nothing follows from a loss that falls.
    assert still_improving(analyse(replace(run_log, ended="cut"))) is None
    assert still_improving(analyse(replace(run_log, live=True))) is None
    short = make_run_log(make_steps(rows[:80].tolist(), loss=losses[:80]), trainer=HF)
    assert still_improving(analyse(short)) is None


def test_what_a_resume_did_again_counts_once() -> None:
    whole, parted = (
        still_improving(analyse(cpu_run())),
        still_improving(analyse(split_run(cpu_run(), 1000, 1240))),
    )
    assert whole == parted


# --- plateau ---


def test_nothing_learnt_is_a_problem() -> None:
    losses = add_noise([math.log(32768)] * 100, 1e-4)
    run_log = make_run_log(make_steps(range(100), loss=losses), settings={"vocab_size": 32768})
    one = require_finding(plateau(analyse(run_log)))
    assert (one.severity, one.claims) == ("problem", {"learning at the end": "plateau"})
    assert (one.values["vocab_size"], one.values["chance_loss"]) == (32768, math.log(32768))
    warming = make_run_log(make_steps(range(100), loss=losses), settings={"warmup_iters": 2000})
    assert plateau(analyse(warming)) is None


def test_a_last_third_that_brought_nothing() -> None:
    losses = add_noise([1.5 + 2.7 * math.exp(-i / 20) for i in range(500)], 0.02)
    run_log = make_run_log(make_steps(range(0, 5000, 10), loss=losses))
    one = require_finding(plateau(analyse(run_log)))
    assert (one.severity, one.claims) == ("info", {"learning at the end": "plateau"})
    late = [loss for at, loss in enumerate(losses) if 10 * at > 4990 * 2 / 3]
    assert one.values["late_train_loss"] == pytest.approx(float(np.median(late)))
    since, share = one.values["flat_iteration"], one.values["share"]
    assert share == pytest.approx((4990 - int(str(since))) / 4990, abs=0.001)
    assert one.at == 4990 * 2 // 3
    assert not one.text["advice"], "a training loss alone does not tell when to stop"
    flat = [(at, 1.5, 1.6) for at in range(0, 5000, 250)]
    one = require_finding(plateau(analyse(make_run_log(make_steps(range(0, 5000, 10), loss=losses), flat))))
    assert one.severity == "advice"
    assert one.at == one.values["stop_iteration"] == 4990 * 2 // 3
    assert one.values["saving"] == pytest.approx(1 / 3, abs=0.005)
    assert plateau(analyse(make_run_log(make_steps(range(0, 5000, 10), loss=falling_losses(500))))) is None
    assert plateau(analyse(gpu_run())) is None


def test_a_loss_of_exactly_0_is_no_level_to_lower() -> None:
    losses = [*np.linspace(0.5, 0.01, 60).tolist(), *([0.0] * 9 + [0.003]) * 30]
    one = require_finding(plateau(analyse(make_run_log(make_steps(range(0, 3600, 10), loss=losses)))))
    assert one.text["explanation"] == (say("plateau.explanation.nothing_left"),)
    assert (one.values["zero_losses"], one.values["logged_losses"], one.at) == (270, 360, 600)


def test_a_loss_at_a_floor_is_not_memorised() -> None:
    """The very same loss on the last lines, a thousand times lower than before; not one that falls on, nor
    one whose few digits hide a change."""
    falling = [3.0, 2.0, 1.2, 0.8, 0.44]
    for late, is_floor in (
        ([1.1921e-07] * 5, True),
        ([1.1921e-07] * 2, False),
        ([3e-7, 2e-7, 1.5e-7, 1.2e-7, 1.1e-7], False),
        ([0.0001] * 5, False),
        ([0.02134] * 5, False),
    ):
        losses = [*falling, *late]
        run_log = make_run_log(make_steps(range(0, 100 * len(losses), 100), loss=losses), trainer=HF)
        run_log = replace(run_log, setup=LoggedSetup(epochs=10.0))
        one = loss_at_floor(analyse(run_log))
        assert (one is not None) == is_floor, late
        if one is not None:
            assert (one.values["before_iteration"], one.values["after_iteration"]) == (400, 500)
            assert memorised_data(analyse(run_log)) is None


def test_a_flat_curve_before_the_end_of_the_schedule_proves_nothing() -> None:
    losses = add_noise([1.5 + 2.7 * math.exp(-i / 20) for i in range(500)], 0.02)
    steps = make_steps(range(0, 5000, 10), loss=losses)
    one = require_finding(plateau(analyse(make_run_log(steps, settings={"max_iters": 60_000}))))
    assert (one.severity, one.advice) == ("info", "")
    assert one.text["title"] == (say("plateau.title.flat_so_far"),)
    assert plateau(analyse(make_run_log(steps, settings={"max_iters": 5000, "warmup_iters": 2000}))) is None
    noisy = add_noise([1.5] * 500, 0.4)
    assert plateau(analyse(make_run_log(make_steps(range(50, 5050, 10), loss=noisy)))) is None


# --- capacity ---


def small_model(train: float, val: float, parameters: int) -> RunLog:
    evals = [(at, train + math.exp(-at / 500), val + math.exp(-at / 500)) for at in range(0, 20_001, 1000)]
    run_log = make_run_log(make_steps(range(0, 20_001, 100), loss=falling_losses(201, floor=train)), evals)
    return replace(run_log, setup=LoggedSetup(parameters=parameters, tokens_per_iteration=65_536))


def test_a_small_model_on_much_text() -> None:
    one = require_finding(underfit_capacity(analyse(small_model(3.50, 3.52, 5_000_000))))
    tokens = 20_000 * 65_536
    assert one.claims == {"learning at the end": "plateau", "parameters": 5_000_000}
    assert (one.values["parameters"], one.values["tokens"]) == (5_000_000, tokens)
    assert one.values["tokens_per_parameter"] == pytest.approx(tokens / 5e6)
    assert one.severity == "info"
    assert underfit_capacity(analyse(small_model(3.50, 3.52, 500_000_000))) is None
    assert underfit_capacity(analyse(small_model(3.50, 3.90, 5_000_000))) is None
    run_log = small_model(3.50, 3.52, 5_000_000)
    tuned = replace(run_log.setup, settings={"init_from": "gpt2"})
    assert underfit_capacity(analyse(replace(run_log, setup=tuned))) is None
    cut = replace(run_log.setup, settings={"max_iters": 600_000})
    assert underfit_capacity(analyse(replace(run_log, setup=cut))) is None


def test_the_tokens_of_a_run_that_changed_its_batch_are_those_it_counted() -> None:
    run_log = small_model(3.50, 3.52, 5_000_000)
    seen = (
        np.minimum(run_log.steps.iteration, 10_000) * 131_072.0
        + np.maximum(0, run_log.steps.iteration - 10_000) * 65_536.0
    )
    parts = tuple(replace(part, tokens_per_iteration=131_072, first_iteration=0) for part in run_log.segments)
    counted = replace(run_log, steps=replace(run_log.steps, tokens=seen), segments=parts)
    one = require_finding(underfit_capacity(analyse(counted)))
    assert one.values["tokens"] == 10_000 * 131_072 + 10_000 * 65_536


# --- the first loss ---


def starting_at(first: float, vocabulary: int = 65, **more: object) -> RunLog:
    losses = [first, *falling_losses(50, first=min(first, 4))]
    run_log = make_run_log(make_steps(range(51), loss=losses), settings={"vocab_size": vocabulary})
    return replace(run_log, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "vocabulary"), [(4.2874, 65), (4.59, 65), (10.99, 50304), (10.82, 50257)])
def test_fresh_models_start_near_chance(first: float, vocabulary: int) -> None:
    assert init_loss(analyse(starting_at(first, vocabulary))) is None


def test_a_start_far_from_chance() -> None:
    above = require_finding(init_loss(analyse(starting_at(7.5, 18))))
    assert (above.severity, above.at) == ("warning", 0)
    assert (above.values["vocab_size"], above.values["chance_loss"]) == (18, math.log(18))
    assert above.values["excess_loss"] == pytest.approx(7.5 - math.log(18))
    below = require_finding(init_loss(analyse(starting_at(3.3, 50304))))
    assert below.severity == "info"
    assert below.values["deficit_share"] == pytest.approx(1 - 3.3 / math.log(50304))


def test_a_start_above_any_chance() -> None:
    run_log = replace(starting_at(130.6, 65), setup=LoggedSetup())
    one = require_finding(init_loss(analyse(run_log)))
    assert one.severity == "warning"
    assert (one.values["first_loss"], one.values["chance_loss"]) == (130.6, math.log(1_000_000))
    assert init_loss(analyse(replace(run_log, trainer=HF))) is None  # its loss may be of anything


def test_a_finetune_or_a_resume_may_start_low() -> None:
    low = starting_at(3.3, 50304)
    assert init_loss(analyse(replace(low, trainer=HF))) is None
    tuned = replace(low.setup, settings={"vocab_size": 50304, "init_from": "gpt2"})
    assert init_loss(analyse(replace(low, setup=tuned))) is None
    assert init_loss(analyse(replace(low, segments=(replace(low.segments[0], resumed=True),)))) is None
    assert init_loss(analyse(replace(low, setup=LoggedSetup()))) is None


def test_the_mean_of_an_epoch_is_no_first_loss() -> None:
    low = starting_at(3.3, 50304)
    assert init_loss(analyse(low)) is not None
    assert init_loss(analyse(replace(low, trainer=replace(low.trainer, iterations_are_epochs=True)))) is None
    assert init_loss(analyse(replace(low, trainer=replace(low.trainer, loss_base=2.0)))) is None


def test_an_evaluation_after_the_first_epoch_is_no_first_loss() -> None:
    low = replace(starting_at(3.3, 50304), evals=(LoggedEvaluation(0, 0, 1.8),))
    assert require_finding(init_loss(analyse(low))).values["first_loss"] == 1.8
    assert init_loss(analyse(replace(low, trainer=replace(low.trainer, iterations_are_epochs=True)))) is None


# --- noise ---


def test_twenty_batches_cannot_tell_the_last_evaluations_apart() -> None:
    one = require_finding(eval_noise(analyse(cpu_run())))
    assert one.values["eval_iters"] == 20
    # Twice the standard error of a difference, for the median step of 0.0304: 8 (0.06 / 0.0304)^2
    assert one.values["enough_eval_iters"] == pytest.approx(8 * (0.06 / 0.0304) ** 2, rel=0.5)
    assert eval_noise(analyse(gpu_run())) is None


def test_a_clear_rise_is_no_noise() -> None:
    rising = [2.6, 2.4, 2.3, 2.25, 2.2, 2.22, 2.24, 2.26, 2.28, 2.3, 2.32, 2.34]
    for val, is_noise in ((rising[4:], False), (rising[:3:-1], True)):
        evals = tuple(LoggedEvaluation(100 * i, 0, loss, stderr=0.014) for i, loss in enumerate([2.6, *val]))
        run_log = replace(make_run_log(make_steps(range(1200)), trainer=HF), evals=evals)
        assert (eval_noise(analyse(run_log)) is not None) == is_noise


def test_trainers_that_evaluate_the_same_tokens_have_no_such_noise() -> None:
    assert eval_noise(analyse(replace(cpu_run(), trainer=GLASSGPT))) is None


def test_a_standard_error_in_the_log_is_used() -> None:
    val = [3.0, 2.99, 2.98, 2.97, 2.96, 2.95]
    evals = tuple(LoggedEvaluation(100 * i, 0, loss, stderr=0.02) for i, loss in enumerate(val))
    run_log = replace(make_run_log(make_steps(range(600)), trainer=HF), evals=evals)
    one = require_finding(eval_noise(analyse(run_log)))
    assert one.values["token_factor"] == 32  # (2 sqrt(2) 0.02 / 0.01)^2


def test_a_plateau_of_most_of_the_run_is_told_with_its_beginning() -> None:
    """Each loss stands on ten lines, so that lines are more alike than measurements are."""
    at = np.arange(0, 20_000, 10)
    curve = 3.4 + 3.5 * np.exp(-at / 1000) + np.random.default_rng(0).normal(0, 0.3, len(at))
    losses = np.repeat(curve, 10)
    run_log = make_run_log(make_steps(range(len(losses)), loss=losses.tolist()), trainer=BY_ID["unknown"])
    one = require_finding(plateau(analyse(run_log)))
    assert 2000 < float(str(one.values["flat_iteration"])) < 5000
    assert one.values["share"] == pytest.approx(0.85, abs=0.06)


def test_an_accuracy_past_its_best_where_no_validation_loss_is_logged() -> None:
    """Noisy, up to iteration 60 of 250 and down again; and the same, level from there on."""
    at, random = np.arange(1, 251), np.random.default_rng(4)
    metric = metric_of("val accuracy")
    assert metric is not None
    steps = make_steps(at.tolist(), loss=(0.5 + 0.15 * np.exp(-at / 60)).tolist())
    for fall, is_found in ((0.12, True), (0.0, False)):
        curve = 0.68 - 0.2 * np.exp(-at / 12) - fall * np.clip((at - 60) / 190, 0, 1)
        series = MetricSeries("val accuracy", metric, at, at, curve + random.normal(0, 0.03, len(at)))
        one = overfitting(analyse(make_run_log(steps, trainer=BY_ID["unknown"], metrics=(series,))))
        assert (one is not None) == is_found
        if one is not None:
            assert one.values["best_iteration"] == pytest.approx(60, abs=25)
            assert one.values["count"] == 25
            assert one.values["best"] == pytest.approx(0.67, abs=0.02)


# --- memorised ---


def test_a_training_loss_that_no_text_has() -> None:
    losses = np.geomspace(10.97, 0.0052, 250).tolist()
    run_log = make_run_log(make_steps(range(250), loss=losses))
    values = require_finding(memorised_data(analyse(run_log))).values
    assert values["first_loss"] == pytest.approx(10.97)
    assert values["end_loss"] == pytest.approx(losses[-13])  # the median of the last 25
    tuned = make_run_log(make_steps(range(250), loss=np.geomspace(1.7, 0.08, 250).tolist()), trainer=HF)
    assert memorised_data(analyse(tuned)) is None
    assert memorised_data(analyse(replace(run_log, evals=gpu_run().evals))) is None
    assert memorised_data(analyse(make_run_log(make_steps(range(250), loss=falling_losses(250))))) is None


@pytest.mark.parametrize(
    ("epochs", "first", "end", "severity", "explanation"),
    [
        (100.0, 0.47, 0.008, "advice", "memorised-data.explanation.repeated"),
        (None, 10.9, 0.008, "warning", "memorised-data.explanation"),
        (0.9, 10.9, 0.008, "warning", "memorised-data.explanation.new"),
        (0.9, 1.7, 0.008, "advice", "memorised-data.explanation.new"),
        (None, 0.47, 0.008, None, None),  # of a classifier, maybe
        (100.0, 0.02, 0.008, None, None),  # it did not fall
        (100.0, 1.7, 0.08, "advice", "memorised-data.explanation.repeated"),
        (5.0, 1.7, 0.08, None, None),
        (100.0, 1.7, 0.15, "advice", "memorised-data.explanation.unevaluated"),
        (100.0, 1.7, 0.4, None, None),  # it did not fall far
    ],
)
def test_a_low_loss_is_memorised_or_leaks(
    epochs: float | None, first: float, end: float, severity: str | None, explanation: str | None
) -> None:
    """Six lines of Hugging Face's Trainer, each the mean of 500 iterations."""
    steps = make_steps(range(500, 3001, 500), loss=[first, *[end] * 5])
    run_log = make_run_log(steps, trainer=HF, setup=LoggedSetup(epochs=epochs))
    one = memorised_data(analyse(run_log))
    assert (one and one.severity) == severity
    assert (one and one.text["explanation"][0].key) == explanation
    if one is not None and severity == "advice" and epochs == 100 and end < 0.1:
        assert (one.values["epochs"], one.values["end_loss"]) == (100, end)
    assert memorised_data(analyse(replace(run_log, evals=gpu_run().evals))) is None


def test_a_perplexity_of_1_is_told_though_the_loss_has_another_term() -> None:
    metric = metric_of("ppl")
    assert metric is not None
    at = np.arange(0, 6000, 100)
    steps = make_steps(at.tolist(), loss=np.geomspace(15.0, 0.6, 60).tolist())
    for end, is_found in ((1.0, True), (20.0, False)):
        series = MetricSeries("ppl", metric, at, at, np.append(np.geomspace(1188, end, 40), np.full(20, end)))
        one = memorised_data(analyse(replace(make_run_log(steps, trainer=HF), metrics=(series,))))
        assert (one is not None) == is_found
        if one is not None:
            assert (one.severity, one.values["perplexity"]) == ("warning", 1.0)


def test_a_loop_that_is_not_known_trains_a_language_model_if_it_begins_like_one() -> None:
    for first, found in ((11.3, True), (0.7, False)):
        losses = np.geomspace(first, 0.001, 60).tolist()
        run_log = make_run_log(make_steps(range(0, 6000, 100), loss=losses), trainer=BY_ID["unknown"])
        assert (memorised_data(analyse(run_log)) is not None) == found


# --- evaluations of validation text alone ---


def gap_run(val: list[float], train: list[float], epochs: float | None = None) -> RunLog:
    """Hugging Face's Trainer: a line every 100 iterations, its mean; evaluated at the same."""
    at = [100 * (i + 1) for i in range(len(train))]
    first = len(train) - len(val)
    evals = [(at[first + i], None, loss) for i, loss in enumerate(val)]
    return make_run_log(make_steps(at, loss=train), evals, trainer=HF, setup=LoggedSetup(epochs=epochs))


def test_one_evaluation_does_not_tell_overfitting_from_another_text() -> None:
    train = [1.47, 0.80, 0.73, 0.66, 0.63]
    assert overfitting(analyse(gap_run([1.04], train, epochs=1.6))) is None
    assert not analyse(gap_run([1.04], train)).has_overfitted


def test_a_gap_that_grew_is_overfitting_and_one_from_the_start_is_not() -> None:
    train = [1.5, 1.2, 0.9, 0.6, 0.4, 0.27]
    flat = [1.45, 1.20, 0.92, 0.81, 0.80, 0.80]
    one = require_finding(overfitting(analyse(gap_run(flat, train))))
    assert (one.severity, one.values["train_loss"], one.values["val_loss"]) == ("warning", 0.27, 0.80)
    assert overfitting(analyse(gap_run([loss + 0.6 for loss in train], train))) is None
    falling = [1.45, 1.3, 1.2, 1.1, 1.0, 0.9]
    assert overfitting(analyse(gap_run(falling, train))) is None  # it still improves


def test_a_validation_loss_that_never_changes() -> None:
    losses = add_noise(np.linspace(3.0, 2.0, 100).tolist(), 0.02)
    steps = make_steps(range(0, 1000, 10), loss=losses)
    same = [(at, None, 2.5173) for at in (200, 400, 600, 800)]
    one = require_finding(stuck_eval(analyse(make_run_log(steps, same))))
    assert (one.at, one.values["val_loss"], one.values["evaluations"]) == (200, 2.5173, 4)
    moving = [(at, None, 2.5173 - at / 1e6) for at in (200, 400, 600, 800)]
    rounded = [(at, None, 2.5) for at in (200, 400, 600, 800)]
    for evals in (moving, rounded, same[:2]):
        assert stuck_eval(analyse(make_run_log(steps, evals))) is None
    still = make_steps(range(0, 1000, 10), loss=add_noise([2.0] * 100, 0.02))  # no learning rate is left
    assert stuck_eval(analyse(make_run_log(still, same))) is None


def test_a_training_loss_that_no_web_text_has() -> None:
    """A vocabulary of 32,768, by the first loss; the log does not name the trainer."""
    for floor, found in ((0.37, True), (0.55, False)):
        losses = [floor + (10.4 - floor) * math.exp(-at / 20) for at in range(400)]
        run_log = make_run_log(make_steps(range(400), loss=losses), trainer=BY_ID["unknown"])
        assert (memorised_data(analyse(run_log)) is not None) == found
    small = make_run_log(make_steps(range(400), loss=[0.37 + 4 * math.exp(-at / 20) for at in range(400)]))
    assert memorised_data(analyse(small)) is None  # characters


def test_a_slow_but_steady_fall_is_no_plateau() -> None:
    falling = [7.0352 + 0.9 * math.exp(-row / 6) - 5e-5 * row for row in range(200)]
    noisy = add_noise([7.03 + 0.9 * math.exp(-row / 6) for row in range(200)], 0.001)
    found = [
        plateau(analyse(make_run_log(make_steps(range(200), loss=losses), trainer=HF)))
        for losses in (falling, noisy)
    ]
    assert (found[0], found[1] is None) == (None, False)
    assert require_finding(found[1]).text["explanation"] == (say("plateau.explanation.train_within_noise"),)
    late = make_run_log(make_steps(range(42_000, 44_000, 10), loss=noisy, lr=[1e-4] * 200), trainer=HF)
    one = require_finding(plateau(analyse(late)))
    assert one.text["title"] == (say("plateau.title.no_late_improvement_here"),)
    assert one.text["explanation"][-1] == say("plateau.explanation.decay")


def test_losses_that_repeat_with_the_epoch_are_of_weights_that_do_not_change() -> None:
    epoch = [27.2307, 27.2309, 27.2276, 27.2295, 27.2383, 27.2544]
    one = require_finding(
        constant_loss(analyse(make_run_log(make_steps(range(100, 6001, 100), loss=epoch * 10))))
    )
    assert (one.severity, one.values["period"], one.values["logged_losses"]) == ("problem", 6, 60)
    changed = [*epoch * 9, *epoch[:-1], 27.2543]
    assert constant_loss(analyse(make_run_log(make_steps(range(100, 6001, 100), loss=changed)))) is None


def test_gradient_norms_of_a_constant_loss_are_told() -> None:
    norms = [math.inf, *[0.0] * 14]
    steps = make_steps(range(1, 16), loss=[10.4011] * 15, grad_norm=norms)
    one = require_finding(constant_loss(analyse(make_run_log(steps))))
    assert (one.values["zero"], one.values["nonfinite"], one.values["norms"]) == (14, 1, 15)
    assert one.text["advice"] == (say("plateau.advice.dead_norms"),)
    plain = require_finding(constant_loss(analyse(make_run_log(replace(steps, grad_norm=np.ones(15))))))
    assert plain.text["advice"] == (say("plateau.advice.constant"),)


@pytest.mark.parametrize(
    ("val", "settings", "severity"),
    [
        (0.74, {"vocab_size": 50304, "dataset": "openwebtext"}, "problem"),
        (1.35, {"vocab_size": 50304, "dataset": "openwebtext"}, None),
        (0.74, {"vocab_size": 50304}, "info"),
        (1.05, {"vocab_size": 50304}, None),
        (0.76, {"vocab_size": 32000, "dataset": "tinystories"}, None),
        (0.28, {"vocab_size": 32, "dataset": "chess"}, None),
        (1.1, {"vocab_size": 65, "dataset": "shakespeare_char"}, "problem"),
        (1.3, {"vocab_size": 65, "dataset": "shakespeare_char"}, None),
        (0.05, {"vocab_size": 65}, "problem"),
        (0.05, {"vocab_size": 50257, "init_from": "gpt2"}, None),  # narrow text
        (9e-7, {"vocab_size": 50257, "init_from": "gpt2"}, "warning"),
    ],
)
def test_validation_losses_that_no_text_has(
    val: float, settings: dict[str, ConfigValue], severity: str | None
) -> None:
    evals = [(0, 10.9, 10.9), (1000, 2 * val, 2 * val), (2000, val, val)]
    steps = make_steps(range(0, 2001, 10), loss=falling_losses(201, first=10.9, floor=val, spread=0.0))
    one = leaked_data(analyse(make_run_log(steps, evals, settings=settings)))
    assert (one and one.severity) == severity
    if one:
        assert (one.at, one.values["val_loss"]) == (2000, val)


# --- perplexity ---


def with_val(val: list[float], train: float | None = 3.1) -> RunLog:
    evals = tuple(LoggedEvaluation(1000 * (i + 1), 0, value, train) for i, value in enumerate(val))
    return replace(make_run_log(make_steps(range(0, 5000, 10), loss=[3.1] * 500)), evals=evals)


def test_a_perplexity_is_no_loss() -> None:
    one = require_finding(ppl_vs_loss(analyse(with_val([30.0, 25.0, 22.4]))))
    assert (one.at, one.values["val_loss"]) == (3000, 22.4)
    assert one.values["log_val_loss"] == pytest.approx(math.log(22.4))
    assert [message.key for message in one.text["advice"]] == ["ppl-vs-loss.advice"]
    assert ppl_vs_loss(analyse(with_val([30.0, 25.0, 22.4], train=None))) is not None
    assert ppl_vs_loss(analyse(with_val([3.4, 3.3, 3.2]))) is None
    assert ppl_vs_loss(analyse(with_val([3.4, 9.0, 22.0]))) is None  # it was a loss, and it diverged
    assert ppl_vs_loss(analyse(with_val([222.0, 218.0], train=220.0))) is None
    assert (
        ppl_vs_loss(analyse(with_val([149740.0, 98558.0], train=3.1))) is None
    )  # its logarithm fits nothing
    assert ppl_vs_loss(analyse(with_val([149740.0, 98558.0], train=None))) is None


def test_a_sum_of_losses_is_no_perplexity() -> None:
    """The perplexity is logged beside it; or its logarithm never was near the training loss."""
    metric = metric_of("val_ppl")
    assert metric is not None
    loss, at = [3.6, 3.2, 3.1], np.array([1000, 2000, 3000])
    ppl = MetricSeries("val_ppl", metric, at, at, np.exp(loss))
    summed = replace(with_val([25.1 * one for one in loss]), metrics=(ppl,))
    assert ppl_vs_loss(analyse(summed)) is None
    assert ppl_vs_loss(analyse(with_val([140_000.0, 100_000.0, 110_000.0]))) is None


def test_a_bend_of_the_curve_is_no_noise() -> None:
    """Each evaluation is clearly below the one before; what is left over is the curve's own shape."""
    val = [4.2026, 2.9493, 2.2715, 1.9137, 1.7294, 1.6123, 1.5680, 1.5359, 1.5171]
    run_log = readme_run([value - 0.1 for value in val], val, 0.0, eval_iters=0)
    assert case_noise(run_log) == "scatter"
    assert eval_noise(analyse(run_log)) is None


def case_noise(run_log: RunLog) -> str | None:
    noise = analyse(run_log).eval_noise
    return None if noise is None else noise.source


def test_a_loss_that_is_the_same_on_every_line() -> None:
    """ln(4096) = 8.3178; of three digits a change would not be seen, and of nine lines none is said."""
    one = require_finding(constant_loss(analyse(make_run_log(make_steps(range(12), loss=[8.3178] * 12)))))
    assert (one.severity, one.values["loss"], one.values["logged_losses"]) == ("problem", 8.3178, 12)
    assert one.values["choices"] == pytest.approx(4096, abs=1)
    for losses in ([8.3178] * 9, [8.31] * 12, [0.149] * 12, [8.3178] * 11 + [8.3177]):
        run_log = make_run_log(make_steps(range(len(losses)), loss=losses))
        assert constant_loss(analyse(run_log)) is None


def test_a_loss_that_falls_to_nothing_at_once() -> None:
    one = require_finding(
        collapsed_loss(analyse(make_run_log(make_steps(range(4), loss=[11.0, 10.9, 1e-6, 0.0]))))
    )
    assert (one.at, one.values["loss_before"], one.values["loss_after"]) == (2, 10.9, 1e-6)
    for losses in ([11.0, 10.9, 1e-6, 2.0], [2.0, 1e-6, 0.0], [11.0, 10.9, 1.0]):
        run_log = make_run_log(make_steps(range(len(losses)), loss=losses))
        assert collapsed_loss(analyse(run_log)) is None
    slow = make_run_log(make_steps([0, 1000, 2000], loss=[11.0, 1e-6, 0.0]))
    assert collapsed_loss(analyse(slow)) is None


# --- the end of a schedule, and repeated data ---


def test_a_curve_that_a_schedule_bends_is_no_reason_to_train_longer() -> None:
    """It falls steadily, and levels off as the rate reaches 0. Advice names settings that the trainer has."""
    at = np.arange(0, 5601, 100)
    cases = (("nanogpt", False, "advice"), ("nanogpt", True, "info"), ("modded-nanogpt", False, "info"))
    for name, levels_off, severity in cases:
        fall = np.where(at > 5300, 5300 + (at - 5300) * 0.45, at) if levels_off else at
        val = 2.6 + 3.0 / (1 + fall / 300) ** 0.6
        evals = [(int(one), None, float(loss)) for one, loss in zip(at, val, strict=True)]
        run_log = make_run_log(
            make_steps(at.tolist()), evals, [5600], {"max_iters": 5600}, trainer=BY_ID[name]
        )
        run_log = replace(run_log, ended="finished")
        one = require_finding(still_improving(analyse(run_log)))
        assert (one.severity, bool(one.text["advice"])) == (severity, severity == "advice")


def test_a_training_loss_of_repeated_data_is_no_improvement() -> None:
    losses = falling_losses(400, floor=1.0, spread=0.01)
    steps = make_steps(range(0, 4000, 10), loss=losses)
    new, again = (make_run_log(steps, setup=LoggedSetup(epochs=epochs)) for epochs in (0.9, 7.0))
    one = require_finding(still_improving(analyse(new)))
    assert one.text["evidence"][0].key == "still-improving.evidence.medians"
    assert len(one.lines) == 2
    assert still_improving(analyse(again)) is None


@pytest.mark.parametrize(
    ("later", "train", "is_found"), [(3.1, 1.8, True), (2.6, 1.8, False), (3.1, 0.9, False)]
)
def test_evaluations_that_never_came_near_the_first(later: float, train: float, is_found: bool) -> None:
    """Where the training loss fell, it is overfitting."""
    steps = make_steps(range(500, 2501, 500), loss=[1.2, 1.3, 1.3, 1.25, train])
    evals = [(at, None, 2.55 if at == 132 else later + at / 9000) for at in range(132, 2641, 132)]
    analysis = analyse(make_run_log(steps, evals, trainer=HF))
    one = worse_than_first(analysis)
    assert (one is not None) == is_found
    assert (overfitting(analysis) is not None) == (train < 1)
    if one:
        assert (one.severity, one.values["first_iteration"], one.values["later"]) == ("warning", 132, 19)


def stepped(drop: float, epochs: int = 3, per_epoch: int = 500, fall: float = 0.02) -> RunLog:
    """A line every 50 iterations; the loss drops at each epoch, falls little within one, and is noisy."""
    at = np.arange(50, epochs * per_epoch + 1, 50)
    noise = np.random.default_rng(3).normal(0, 0.02, len(at))
    losses = 2 - drop * ((at - 1) // per_epoch) - fall * ((at - 1) % per_epoch) / per_epoch + noise
    steps = make_steps(at.tolist(), loss=losses.tolist())
    return make_run_log(steps, trainer=HF, setup=LoggedSetup(epochs=float(epochs)))


def test_a_loss_that_falls_where_an_epoch_begins() -> None:
    one = epoch_steps(analyse(stepped(0.4)))
    assert one is not None
    assert (one.severity, one.values["count"]) == ("advice", 2)
    assert [one.values[name] for name in ("least", "most")] == pytest.approx([0.4, 0.4], abs=0.04)
    assert abs(float(str(one.values.get("fall", one.values.get("rise"))))) < 0.05
    rising = require_finding(epoch_steps(analyse(stepped(0.8, fall=-0.3))))
    assert rising.values["rise"] == pytest.approx(0.18, abs=0.03)  # between the middles of its outer parts
    assert epoch_steps(analyse(stepped(0.0))) is None
    assert epoch_steps(analyse(replace(stepped(0.4), setup=LoggedSetup()))) is None
    at = np.arange(50, 1501, 50)  # falls all the way
    steady = make_steps(at.tolist(), loss=(3 - at / 1000).tolist())
    assert epoch_steps(analyse(make_run_log(steady, trainer=HF, setup=LoggedSetup(epochs=3.0)))) is None


def test_a_steep_first_epoch_is_no_step() -> None:
    """A loss that falls fast, then slowly, as all do; and one step of a noisy loss."""
    at = np.arange(10, 1201, 10)
    noise = np.random.default_rng(1).normal(0, 0.013, len(at))
    decay = 1.05 + 0.6 * np.exp(-at / 180)
    for step, found in ((0.0, False), (0.1, True)):
        losses = decay - step * (at > 400) + noise
        run_log = make_run_log(
            make_steps(at.tolist(), loss=losses.tolist()), trainer=HF, setup=LoggedSetup(epochs=3.0)
        )
        one = epoch_steps(analyse(run_log))
        assert (one is not None) == found
        if one is not None:
            assert one.text["evidence"][0] == say(
                "epoch-steps.evidence.once", drop=one.values["drop"], epoch=2, count=1
            )
            assert one.values["drop"] == pytest.approx(0.12, abs=0.03)


def test_a_gap_behind_which_the_last_evaluation_is_the_best_is_no_overfitting() -> None:
    train = [3.5, 2.0, 1.4, 1.1, 0.9, 0.8]
    slowly = [3.0, 1.8, 1.43, 1.25, 1.215, 1.214]
    assert overfitting(analyse(gap_run(slowly, train))) is None
    assert overfitting(analyse(gap_run([*slowly[:-1], 1.222], train))) is not None


def test_a_schedule_that_the_trainer_declares_is_known() -> None:
    """modded-nanogpt prints no learning rate: it falls to 0 at the end. A run that finished long before its
    planned iterations had another plan."""
    evals = [(at, None, 2.0 + 8.0 * max(at, 10) ** -0.2) for at in range(0, 2001, 50)]
    for planned, schedule in ((2000, "caveat"), (None, "unknown"), (9000, "unknown")):
        run_log = make_run_log(
            make_steps(range(1, 2001)), evals, trainer=BY_ID["modded-nanogpt"], ended="finished",
            setup=LoggedSetup(planned_iterations=planned),
        )  # fmt: skip
        one = require_finding(still_improving(analyse(run_log)))
        assert one.text["explanation"][0].key == f"still-improving.explanation.schedule_{schedule}"


def test_the_loss_of_a_policy_has_no_best_evaluation() -> None:
    evals = [(at, None, loss) for at, loss in ((20, 1.8), (40, 3.0), (60, 3.3), (80, 4.1), (100, 5.0))]
    run_log = make_run_log(make_steps([]), evals)
    reward = metric_of("reward")
    assert reward is not None
    at = np.arange(100)
    series = MetricSeries("reward", reward, at, at, np.linspace(-0.5, -0.2, 100))
    policy = replace(run_log, metrics=(series,))
    assert (run_log.loss_measures_learning, policy.loss_measures_learning) == (True, False)
    assert val_rise(analyse(run_log)) is not None
    assert val_rise(analyse(policy)) is None


def test_a_run_without_a_checkpoint_is_resumed_only_if_one_was_saved() -> None:
    losses = (2.0 + 8.0 * np.maximum(np.arange(0, 2000, 4), 10) ** -0.2).tolist()
    run_log = make_run_log(make_steps(range(0, 2000, 4), loss=losses), trainer=HF)
    run_log = replace(run_log, setup=LoggedSetup(planned_iterations=10**9))
    saved = replace(run_log, checkpoints=(LoggedCheckpoint(1000, 0),))
    for one, key in ((run_log, "continue_if_saved"), (saved, "continue")):
        advice = require_finding(still_improving(analyse(one))).text["advice"]
        assert [message.key for message in advice] == [f"still-improving.advice.{key}"]


def test_a_gap_that_grows_while_the_validation_loss_falls() -> None:
    train = [2.6, 2.5, 2.4, 2.3, 2.2, 2.1, 2.0, 1.95]
    val = [2.66, 2.58, 2.51, 2.44, 2.38, 2.34, 2.30, 2.28]
    growth = require_finding(gap_growth(analyse(gap_run(val, train))))
    assert growth.severity == "info"
    assert growth.values["first_gap"] == pytest.approx(0.07)
    assert growth.values["last_gap"] == pytest.approx(0.315)
    assert gap_growth(analyse(gap_run([loss + 0.3 for loss in train], train))) is None
    assert gap_growth(analyse(gap_run(add_noise(train, 0.1), train))) is None
    # The lines before the first evaluations are of earlier weights, whose loss was higher.
    early = [2.4, 2.3, 2.3, 2.2, 2.18, 2.13, 2.06, 2.02]
    assert gap_growth(analyse(gap_run(early, [2.6, 2.5, *train[2:]]))) is None


def test_a_gap_on_a_plateau_is_overfitting_where_it_still_grows() -> None:
    """Both fall to levels far apart, as of two kinds of text; or the training loss falls on. Nothing where an
    accuracy of held-out data rises on."""
    at = np.arange(500, 15_001, 500)
    val = add_noise((3.4 + 5.0 * np.exp(-at / 1500)).tolist(), 0.005)
    for fall, is_found in ((0.0, False), (1.0, True)):
        train = 2.2 + 6.0 * np.exp(-at / 1500) - fall * at / 15_000
        evals = list(zip(at.tolist(), train.tolist(), val, strict=True))
        run_log = make_run_log(make_steps(range(15_001)), evals)
        assert (overfitting(analyse(run_log)) is not None) == is_found
    metric = metric_of("val_bleu")
    assert metric is not None
    series = MetricSeries("val_bleu", metric, at, at, 30 - 20 * np.exp(-at / 8000))
    bleu = analyse(replace(run_log, metrics=(series,)))
    assert overfitting(bleu) is None
    assert gap_growth(bleu) is not None


def test_a_validation_loss_far_above_its_best_is_told_without_a_training_loss() -> None:
    fallen = [10.9, 5.1, 4.3, 4.0, 3.8, 3.7]
    for end, is_found in (([9.6, 8.9, 8.6, 8.5], True), ([3.9, 4.0, 3.9], False), ([9.6, 3.6, 3.6], False)):
        evals = [(500 * row, None, loss) for row, loss in enumerate([*fallen, *end])]
        one = val_rise(analyse(make_run_log(make_steps([]), evals)))
        assert (one is not None) == is_found
    assert val_rise(analyse(cpu_run())) is None
    assert val_rise(analyse(gpu_run())) is None
    few = require_finding(
        val_rise(analyse(make_run_log(make_steps([]), [(500, None, 4.46), (900, None, 8.3)])))
    )
    assert (few.at, few.values["best_loss"], few.values["end_loss"]) == (500, 4.46, 8.3)
    # Worse than before the first update, and not by chance.
    start = [2.10, 2.14, 2.18, 2.21, 2.23, 2.24]
    worse = [(100 * row, 2.6 - 0.05 * row, loss) for row, loss in enumerate(start)]
    one = require_finding(val_rise(analyse(make_run_log(make_steps([]), worse))))
    assert (one.at, one.text["title"][0].key) == (0, "val-rise.title.start")
    noisy = add_noise([1.2] * 40, 0.12)
    evals = [(100 * row, None, loss) for row, loss in enumerate([5.0, 3.0, 2.0, *noisy, 1.35], 1)]
    assert val_rise(analyse(make_run_log(make_steps([]), evals))) is None


def test_a_loss_that_stays_at_that_of_a_guess_is_told_of_few_lines() -> None:
    for end, is_found in ((9.62, True), (6.0, False)):
        losses = np.linspace(9.68, end, 21).tolist()
        run_log = make_run_log(make_steps(range(500, 10_501, 500), loss=losses), trainer=BY_ID["unknown"])
        assert (hardly_learnt(analyse(run_log)) is not None) == is_found
    # Of a loss of any other kind, an excerpt, or few iterations nothing is known.
    for scale, first, step in ((0.1, 500, 500), (1.0, 50_500, 500), (1.0, 10, 10)):
        losses = (scale * np.linspace(9.68, 9.62, 21)).tolist()
        at = range(first, first + 21 * step, step)
        run_log = make_run_log(make_steps(at, loss=losses), trainer=BY_ID["unknown"])
        assert hardly_learnt(analyse(run_log)) is None


def test_overfitting_of_what_was_learnt_before_the_run_is_none() -> None:
    train = [0.004 * math.exp(-row / 3) for row in range(12)]
    val = [0.0031, 0.0025, 0.0021, 0.0019, *[0.002 + 0.0002 * row for row in range(8)]]
    assert analyse(gap_run(val, train)).past_best is not None
    assert overfitting(analyse(gap_run(val, train))) is None
    scale = 200.0
    large = gap_run([scale * loss for loss in val], [scale * loss for loss in train])
    assert overfitting(analyse(large)) is not None


def test_numbers_of_evaluations_that_are_not_read_soften_overfitting() -> None:
    for columns, severity in (("val_dice, mem_gb", "advice"), ("mem_gb, eval_seconds", "warning")):
        run_log = replace(gpu_run(), notes=(say("table.columns_left_out", columns=columns),))
        assert require_finding(overfitting(analyse(run_log))).severity == severity


def test_a_loss_that_was_next_to_nothing_in_the_first_epoch_is_no_memory() -> None:
    """But one that is a small part of its first epoch's at the end is, however low that was."""
    later = [2.0] * 250 + [0.0001] * 50
    by_epoch = [2.5] * 5 + [0.04] * 45 + [0.004] * 250
    cases = (([2.5, 0.5] + [0.0001] * 298, "new"), (later, "repeated"), (by_epoch, "repeated"))
    for losses, key in cases:
        run_log = make_run_log(make_steps(range(300), loss=losses), trainer=HF, setup=LoggedSetup(epochs=6.0))
        one = require_finding(memorised_data(analyse(run_log)))
        assert one.text["explanation"][0].key == f"memorised-data.explanation.{key}"
        assert (one.text["advice"][0].key == "memorised-data.advice.new") == (key == "new")
