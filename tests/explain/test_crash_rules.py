"""What went wrong in a run."""

from __future__ import annotations

import math
from dataclasses import replace

import journals
import numpy as np
import pytest
from learning_logs import (
    GLASSGPT,
    HF,
    add_noise,
    analyse,
    falling_losses,
    finding_text,
    gpu_run,
    require_finding,
)
from log_checks import parse_log
from run_logs import NANOGPT, make_run_log, make_steps

from glassgpt.config import ConfigValue
from glassgpt.estimate.memory import largest_fitting_batch
from glassgpt.explain.rules.gpu_memory import oom, parse_oom_message, stated_workload
from glassgpt.explain.rules.instability import divergence, loss_explosion, loss_jump, loss_spike
from glassgpt.explain.rules.lost_work import (
    best_overwritten,
    crashed,
    crashed_after_end,
    ended_early,
    interrupted,
    never_checkpointed,
)
from glassgpt.explain.rules.nonfinite import loss_nan, loss_zero, norms_never_finite, skipped_steps
from glassgpt.i18n import Message, say
from glassgpt.runs.from_journal import run_log_from_records
from glassgpt.runs.lines import LogLine
from glassgpt.runs.loss_rise import find_loss_jump
from glassgpt.runs.metric_columns import metric_of
from glassgpt.runs.metric_series import MetricSeries
from glassgpt.runs.recognise import read_log
from glassgpt.runs.run_log import (
    EventKind,
    LogEvent,
    LoggedCheckpoint,
    LoggedEvaluation,
    LoggedProcess,
    LoggedSetup,
    RunLog,
)
from glassgpt.runs.trainer import Trainer
from glassgpt.runs.trainers import BY_ID

NAN = math.nan
LLMC = BY_ID["llm.c"]
LITGPT = BY_ID["litgpt"]
BUILD = BY_ID["build-nanogpt"]


def test_torchruns_summary_is_not_the_error_that_is_quoted() -> None:
    head = "Traceback (most recent call last) "
    events = [
        LogEvent("traceback", head + "NameError: name 'csv' is not defined", 40, None),
        LogEvent(
            "traceback", head + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", 50, None
        ),
    ]
    done = make_run_log(
        make_steps(range(10, 310, 10)),
        events=events,
        last_step_line=30,
        setup=LoggedSetup(planned_iterations=300),
    )
    finding = require_finding(crashed_after_end(analyse(done)))
    assert finding.values["quoted"] == "NameError: name 'csv' is not defined"


def test_a_crash_after_the_last_planned_iteration() -> None:
    events = [LogEvent("traceback", "Traceback (most recent call last): TypeError: x", 40, None)]
    done = make_run_log(
        make_steps(range(10, 310, 10)),
        events=events,
        last_step_line=30,
        setup=LoggedSetup(planned_iterations=300),
    )
    assert crashed(analyse(done)) is None
    assert require_finding(crashed_after_end(analyse(done))).lines == (40,)
    on_the_way = replace(done, setup=LoggedSetup(planned_iterations=301))
    assert crashed_after_end(analyse(on_the_way)) is None
    assert require_finding(crashed(analyse(on_the_way))).at == 300
    out_of_memory = replace(done, events=(replace(events[0], kind="oom"),))
    assert oom(analyse(out_of_memory)) is None
    assert oom(analyse(replace(out_of_memory, setup=LoggedSetup()))) is not None


def test_a_log_that_begins_in_the_middle_may_have_saved_before() -> None:
    events = [LogEvent("traceback", "Traceback (most recent call last): TypeError: x", 40, None)]
    steps = make_steps(range(5000, 5300, 10))
    tail = make_run_log(steps, events=events, last_step_line=30, segments=[LoggedProcess(has_startup=False)])
    text = require_finding(crashed(analyse(tail))).text["evidence"]
    assert say("crashed.evidence.no_checkpoint_lines") in text
    assert say("crashed.evidence.all_lost") not in text


# --- not a number ---


def test_a_loss_that_breaks_on_a_phone() -> None:
    """Calm losses, then nan at 425, with log_interval 5 and checkpoints every 100."""
    losses = [*add_noise([3.35] * 85, 0.05), *[NAN] * 6]
    steps = make_steps(range(0, 455, 5), 1444.0, losses)
    one = require_finding(loss_nan(analyse(make_run_log(steps, checkpoints=[100, 200, 300, 400]))))
    assert one.severity == "problem"
    assert one.text["title"] == (say("loss-nan.title.lasting_from", nonfinite_iteration=425),)
    assert (one.at, one.claims) == (425, {"training loss at the end": "not finite"})
    assert one.values["last_finite_iteration"] == 420
    assert one.values["last_losses"] == pytest.approx(losses[80:85])
    assert one.values["nonfinite_losses"] == 6
    assert one.text["explanation"] == (say("loss-nan.explanation.no_warning"),)
    assert say("loss-nan.advice.resume_checkpoint", saved_iteration=400) in one.text["advice"]
    assert one.values["wasted_s"] == pytest.approx(25 * 1.444)


def test_norms_of_zero_losses_are_those_of_the_same_lines() -> None:
    """A line without a loss, between the zeros, may have a norm."""
    losses, norms = [3.0] * 30 + [0.0, NAN] * 20, [1.0] * 30 + [NAN, 1.0] * 20
    one = require_finding(
        loss_zero(analyse(make_run_log(make_steps(range(70), 9.0, losses, grad_norm=norms))))
    )
    assert (one.values["zero_losses"], one.at) == (20, 30)
    assert say("loss-nan.evidence.zeros_norms_nan") in one.text["evidence"]


def test_a_loss_that_was_never_a_number() -> None:
    steps = make_steps(range(1, 100), 3600.0, [NAN] * 99, lr=[8.57e-7 * i for i in range(1, 100)])
    one = require_finding(loss_nan(analyse(make_run_log(steps, trainer=LLMC))))
    assert say("loss-nan.evidence.first_iteration", nonfinite_iteration=1) in one.text["evidence"]
    assert one.values["lr"] == 8.57e-7
    assert one.text["explanation"] == (say("loss-nan.explanation.no_update"),)
    assert one.values["wasted_share"] == pytest.approx(98 / 99)


@pytest.mark.parametrize(
    ("trainer", "first", "cause"),
    [
        (LLMC, 10, say("loss-nan.explanation.unknown")),
        (HF, 1, say("loss-nan.explanation.masked")),
        (HF, 100, say("loss-nan.explanation.unknown")),
    ],
)
def test_a_log_whose_first_loss_is_nan_may_have_had_updates(
    trainer: Trainer, first: int, cause: Message
) -> None:
    """An excerpt, or the mean over the first interval."""
    run_log = make_run_log(make_steps(range(first, first + 50), loss=[NAN] * 50), trainer=trainer)
    one = require_finding(loss_nan(analyse(run_log)))
    assert one.text["explanation"] == (cause,)
    overflowing = require_finding(loss_nan(analyse(replace(run_log, event_counts={"scaler-overflow": 7}))))
    assert overflowing.text["explanation"] == (say("loss-nan.explanation.overflow", overflows=7),)


def test_few_losses_are_not_called_stable() -> None:
    climbing = make_steps(range(4), loss=[1.8748, 2.5812, 2.7844, NAN])
    unknown = say("loss-nan.explanation.unknown")
    assert require_finding(loss_nan(analyse(make_run_log(climbing)))).text["explanation"] == (unknown,)
    few = require_finding(loss_nan(analyse(make_run_log(make_steps(range(3), loss=[2.8, 2.7, NAN])))))
    assert few.text["explanation"] == (unknown,)


def test_a_fault_without_warning_signs_is_not_answered_by_the_rate() -> None:
    steps = make_steps(range(60), loss=[*add_noise([3.0] * 50, 0.01), *[NAN] * 10])
    one = require_finding(loss_nan(analyse(make_run_log(steps, settings={"learning_rate": 6e-3}))))
    assert one.text["explanation"] == (say("loss-nan.explanation.no_warning"),)
    assert one.text["advice"] == (say("loss-nan.advice.repeat_iterations"),)


@pytest.mark.parametrize(
    ("losses", "norms", "stated", "cause"),
    [
        ([3.0] * 40 + [3.1, 4.0, 6.0, 9.0, NAN], None, {}, "loss_rise"),
        ([3.0] * 44 + [NAN], [1.0] * 40 + [3.0, 9.0, 30.0, 90.0, NAN], {}, "norm_rise"),
        ([3.0] * 44 + [NAN], None, {"dtype": "float16"}, "float16"),
    ],
)
def test_causes_by_what_came_before(
    losses: list[float], norms: list[float] | None, stated: dict[str, ConfigValue], cause: str
) -> None:
    steps = make_steps(range(45), loss=add_noise(losses, 0.01), grad_norm=norms or [NAN] * 45)
    one = require_finding(loss_nan(analyse(make_run_log(steps, settings={"learning_rate": 6e-3, **stated}))))
    assert [message.key for message in one.text["explanation"]] == [f"loss-nan.explanation.{cause}"]
    assert one.values.get("grad_norms") == (norms and norms[39:44])
    if cause == "float16":
        assert one.text["advice"] == (say("loss-nan.advice.overflow"),)
    else:
        assert (one.values["new_peak_lr"], one.values["peak_lr"]) == (pytest.approx(2e-3), 6e-3)


def test_one_bad_loss_is_a_warning_and_a_bad_evaluation_a_problem() -> None:
    steps = make_steps(range(30), loss=[3.0] * 10 + [math.inf] + [3.0] * 19)
    recovered = require_finding(loss_nan(analyse(make_run_log(steps))))
    assert (recovered.severity, recovered.at, recovered.claims) == ("warning", 10, {})
    run_log = make_run_log(make_steps(range(30), loss=[3.0] * 30), evals=[(0, 3.0, 3.0), (20, 3.0, NAN)])
    bad = require_finding(loss_nan(analyse(run_log)))
    assert (bad.severity, bad.at) == ("problem", 20)
    assert bad.values == {"nonfinite_evaluations": 1, "evaluations": 2, "nonfinite_iteration": 20}


def test_a_missing_loss_is_not_nan() -> None:
    assert loss_nan(analyse(make_run_log(make_steps(range(30))))) is None


# --- spikes and divergence ---


def test_spikes_are_found_and_the_largest_shown() -> None:
    losses = falling_losses(600)
    for row, height in ((200, 1.0), (300, 2.0), (301, 1.5), (400, 0.6), (500, 0.8)):
        losses[row] += height
    one = require_finding(loss_spike(analyse(make_run_log(make_steps(range(0, 6000, 10), loss=losses)))))
    values = one.values
    assert (values["count"], one.at) == (4, 3000)
    assert (values["iteration"], values["recovered_iteration"]) == (3000, 3020)
    assert (one.severity, one.advice) == ("info", "")  # odd batches: the next losses are as before


def test_a_slow_recovery_is_an_instability() -> None:
    """Six logged losses and more; three are no single odd batches, either."""
    for length, key in ((2, "odd_batches"), (3, "clusters"), (5, "clusters"), (10, "slow_recovery")):
        losses = falling_losses(600)
        losses[300 : 300 + length] = [loss + 0.7 for loss in losses[300 : 300 + length]]
        steps = make_steps(range(0, 6000, 10), loss=losses)
        one = require_finding(loss_spike(analyse(make_run_log(steps))))
        assert one.text["explanation"] == (say(f"loss-spike.explanation.{key}"),)
        assert one.values["recovered_iteration"] == 3000 + 10 * length
    assert (one.values["lost_iterations"], one.values["lost_share"]) == (100, 100 / 5990)
    assert one.text["advice"] == (say("loss-spike.advice"),)  # nanoGPT clips
    unclipped = make_run_log(steps, settings={"grad_clip": 0.0})
    assert say("divergence.advice.clip") in require_finding(loss_spike(analyse(unclipped))).text["advice"]


def test_a_spike_has_the_iteration_of_its_peak() -> None:
    losses = falling_losses(600)
    losses[300:305] = [losses[300] + rise for rise in (0.9, 0.5, 1.2, 0.6, 0.8)]
    one = require_finding(loss_spike(analyse(make_run_log(make_steps(range(0, 6000, 10), loss=losses)))))
    assert (one.at, one.values["iteration"]) == (3020, 3020)
    assert one.values["peak_loss"] == pytest.approx(losses[302])
    assert one.values["recovered_iteration"] == 3050


def test_a_loss_that_left_its_lowest() -> None:
    losses = [2.13, 2.19, 2.28, 2.41, 2.44, 2.49, math.nan, math.nan]
    at = range(5350, 5750, 50)
    one = require_finding(loss_nan(analyse(make_run_log(make_steps(at, loss=losses)))))
    assert one.text["explanation"] == (say("loss-nan.explanation.loss_rise"),)
    losses[:6] = [2.13, 2.19, 2.11, 2.16, 2.13, 2.14]
    steady = make_run_log(make_steps(at, loss=losses))
    assert require_finding(loss_nan(analyse(steady))).text["advice"] == (
        say("loss-nan.advice.repeat_iterations"),
    )


def test_a_log_that_begins_after_the_first_nan_asks_for_the_lines_before() -> None:
    one = require_finding(loss_nan(analyse(make_run_log(make_steps(range(10, 21), loss=[math.nan] * 11)))))
    assert one.text["advice"] == (say("loss-nan.advice.lines_before"),)


def test_a_hard_micro_batch_is_no_spike() -> None:
    losses = falling_losses(600)
    losses[300] += 2.0
    run_log = make_run_log(make_steps(range(600), loss=losses))
    assert loss_spike(analyse(run_log)) is not None
    assert loss_spike(analyse(replace(run_log, trainer=LITGPT))) is None


def test_noise_with_long_tails_is_no_spike() -> None:
    losses = np.random.default_rng(0).lognormal(0, 0.8, 2000).tolist()
    assert loss_spike(analyse(make_run_log(make_steps(range(2000), loss=losses)))) is None


def test_of_a_loss_with_a_long_tail_no_value_is_an_event() -> None:
    rng = np.random.default_rng(5)
    losses = 0.37 + 0.05 * rng.standard_normal(5000)
    losses[2000:2010] += 0.5
    assert loss_spike(analyse(make_run_log(make_steps(range(5000), loss=losses.tolist())))) is not None
    tail = rng.choice(5000, 150, replace=False)
    losses[tail] += rng.exponential(0.4, 150) + 0.2
    assert loss_spike(analyse(make_run_log(make_steps(range(5000), loss=losses.tolist())))) is None


def test_a_loss_that_rises_and_stays_has_diverged() -> None:
    """As with learning_rate 5e-3 on chess: down to 4.93 near 120, then 6.1 for good."""
    at = np.arange(0, 3400, 10)
    curve = np.interp(at, [0, 30, 120, 300, 500, 3400], [8.8, 5.8, 4.93, 5.95, 6.1, 6.1])
    steps = make_steps(at.tolist(), 196.0, add_noise(curve.tolist(), 0.01))
    run_log = make_run_log(steps, settings={"learning_rate": 5e-3, "warmup_iters": 100})
    one = require_finding(divergence(analyse(run_log)))
    values = one.values
    assert (one.severity, one.at, one.claims["learning at the end"]) == ("problem", 110, "diverged")
    assert values["lowest_iteration"] == 110
    assert values["lowest_loss"] == pytest.approx(5.0271, abs=5e-5)
    assert values["end_loss"] == pytest.approx(6.0998, abs=5e-5)
    assert values["lost_s"] == pytest.approx(3270 * 0.196, rel=0.02)
    assert (values["peak_lr"], values["new_peak_lr"]) == (0.005, 0.001)
    assert (values["warmup_iters"], values["new_warmup_iters"]) == (100, 500)
    assert loss_spike(analyse(run_log)) is None


def test_a_loss_that_never_comes_back_to_its_first_line_has_diverged() -> None:
    later = [240.0, *np.linspace(150.0, 60.0, 20), *np.linspace(60.0, 160.0, 27)]
    one = require_finding(divergence(analyse(make_run_log(make_steps(range(0, 245, 5), loss=[7.1, *later])))))
    assert (one.values["lowest_loss"], one.values["lowest_iteration"]) == (7.1, 0)
    assert one.values["end_loss"] == pytest.approx(float(np.median(later[-9:])))
    coming_back = [0.7, *np.linspace(9.0, 4.0, 48)]  # a first line that is the mean of fewer iterations
    assert divergence(analyse(make_run_log(make_steps(range(0, 245, 5), loss=coming_back)))) is None


def test_few_lines_show_a_collapse_to_a_guess() -> None:
    losses = [6.9, 8.5, 7.4, 6.9, 6.3, 2.4, 2.3, 2.2, 2.05, 6.1, 5.4, 6.9315, 6.9315, 6.9315]
    one = require_finding(divergence(analyse(make_run_log(make_steps(range(14), loss=losses)))))
    assert (one.severity, one.at, one.values["lowest_loss"], one.values["end_loss"]) == (
        "problem", 8, 2.05, 6.9315,
    )  # fmt: skip
    assert (one.values["lines"], one.values["choices"]) == (3, 1024)
    assert divergence(analyse(make_run_log(make_steps(range(9), loss=losses[:9])))) is None


def test_a_rise_is_no_divergence_where_the_validation_loss_falls() -> None:
    """The training loss has a term that grows."""
    steps = make_steps(range(400), loss=[0.01 + at / 1000 for at in range(400)])
    for end, is_found in ((0.1, False), (0.6, True)):
        evals = [(at, None, 0.5 + (end - 0.5) * at / 400) for at in range(50, 400, 50)]
        assert (divergence(analyse(make_run_log(steps, evals))) is not None) == is_found


def test_a_spike_is_no_divergence() -> None:
    losses = falling_losses(400)
    losses[200:230] = [5.0] * 30
    assert divergence(analyse(make_run_log(make_steps(range(400), loss=losses)))) is None


# --- explosions ---


def exploding(until: int | None, **settings: ConfigValue) -> RunLog:
    """2.5, then up to 20 within 30 iterations from 960 on, and down again within 60 until `until`."""
    curve = [2.5] * 1200
    for at in range(960, until or 1200):
        curve[at] = 2.5 + min(17.5, 0.6 * (at - 960))
        if until:
            curve[at] = min(curve[at], 2.5 + 0.3 * (until - at))
    steps = make_steps(range(1200), 1000.0, add_noise(curve, 0.05))
    evals = [(at, 2.6, 2.6) for at in range(200, 1000, 200)] + [(1000, 15.0, 15.0)]
    return make_run_log(steps, evals, checkpoints=[800], settings=settings)


def test_an_explosion_that_came_back() -> None:
    one = require_finding(loss_explosion(analyse(exploding(1050))))
    values = one.values
    assert one.claims == {"training loss at the end": "recovered"}
    assert one.severity == "problem"  # 7% of the run
    # Above 1.25 x 2.5 from 962 on; below it again where 0.3 (1050 - at) < 0.625.
    assert one.at == values["explosion_iteration"] == pytest.approx(962, abs=1)
    assert values["recovered_iteration"] == pytest.approx(1048, abs=2)
    assert values["lost_iterations"] == pytest.approx(1048 - 962, abs=3)
    assert values["lost_s"] == pytest.approx(values["lost_iterations"])
    assert values["peak_loss"] == pytest.approx(20.0, abs=0.2)
    assert values["eval_iteration"] == 1000
    assert divergence(analyse(exploding(1050))) is None


def test_an_explosion_that_did_not_come_back() -> None:
    one = require_finding(loss_explosion(analyse(exploding(None, learning_rate=6e-3))))
    assert (one.severity, one.claims) == ("problem", {"training loss at the end": "exploded"})
    assert one.values["end_loss"] == pytest.approx(20.0, abs=0.2)
    assert (one.values["peak_lr"], one.values["new_peak_lr"]) == (6e-3, pytest.approx(1.2e-3))
    assert "clip" not in one.advice.lower()
    assert "Clip" in require_finding(loss_explosion(analyse(exploding(None, grad_clip=0)))).advice


def test_all_losses_alike_above_the_first_evaluation() -> None:
    """Every logged loss is the last one: none differs from it."""
    steps = make_steps(range(1, 21), loss=[5.5555] * 20)
    one = require_finding(loss_explosion(analyse(make_run_log(steps, [(0, 1.0, 1.0)]))))
    constant = next(part for part in one.text["evidence"] if part.key == "divergence.evidence.constant_end")
    assert constant.values == {"lines": 20, "loss": 5.5555}


def test_an_explosion_among_few_lines() -> None:
    """From 125 to 149 losses, too few to show that they come again."""
    for count in (124, 125, 140, 149, 150):
        losses = falling_losses(count, spread=0.005)
        losses[60:80] = [20.0] * 20
        one = require_finding(loss_explosion(analyse(make_run_log(make_steps(range(count), loss=losses)))))
        assert (one.values["explosion_iteration"], one.values["recovered_iteration"]) == (60, 80), count


def test_nineteen_lines_are_enough() -> None:
    losses = [
        10.9,
        9.9,
        9.0,
        7.8,
        6.6,
        6.1,
        5.9,
        5.7,
        5.3,
        5.1,
        4.8,
        270.4,
        182.7,
        121.9,
        96.7,
        68.6,
        78.4,
        40,
        31,
    ]
    one = require_finding(loss_explosion(analyse(make_run_log(make_steps(range(0, 190, 10), loss=losses)))))
    assert (one.at, one.values["loss_before"], one.values["iteration_before"]) == (110, 4.8, 100)
    assert (one.values["peak_loss"], one.values["peak_iteration"], one.values["end_loss"]) == (270.4, 110, 31)


def test_odd_batches_and_noise_are_no_explosion() -> None:
    for length, height, found in ((1, 20.0, 0), (5, 20.0, 0), (6, 20.0, 1), (30, 1.2, 0), (30, 3.0, 1)):
        losses = falling_losses(400)
        losses[200 : 200 + length] = [1.5 + height] * length
        explosions = analyse(make_run_log(make_steps(range(400), loss=losses))).explosions
        assert len(explosions) == found, (length, height)
    tails = np.random.default_rng(0).lognormal(0, 0.6, 20_000).tolist()
    assert analyse(make_run_log(make_steps(range(20_000), loss=tails))).explosions == []


def test_one_finding_about_a_loss_that_ends_as_nan() -> None:
    run_log = exploding(None)
    loss = run_log.steps.loss.copy()
    loss[1100:] = NAN
    broken = analyse(replace(run_log, steps=replace(run_log.steps, loss=loss)))
    assert loss_explosion(broken) is None
    assert require_finding(loss_nan(broken)).claims == {"training loss at the end": "not finite"}


def test_ruined_weights_are_not_resumed_from() -> None:
    event = LogEvent("interrupt", "KeyboardInterrupt", 9999, 1199)
    for saves, advice in (
        ([800], say("interrupted.advice.resume", saved_iteration=800, command=NANOGPT.resume_command)),
        ([800, 1000], say("interrupted.advice.ruined_weights")),  # one file: the good one is overwritten
    ):
        run_log = replace(
            exploding(None), events=(event,), checkpoints=tuple(LoggedCheckpoint(at, 0) for at in saves)
        )
        one = require_finding(interrupted(analyse(run_log)))
        assert (one.severity, one.text["advice"]) == ("info", (advice,))


# --- skipped steps ---


def test_skipped_updates_are_counted() -> None:
    """All of them, also those that were too many to keep."""
    steps = make_steps(range(1000), loss=falling_losses(1000))
    one = require_finding(skipped_steps(analyse(make_run_log(steps, event_counts={"scaler-overflow": 300}))))
    assert one.severity == "warning"
    assert one.values == {"skipped_updates": 300, "logged_iterations": 1000, "skipped_share": 0.3}
    assert [message.key for message in one.text["advice"]] == ["skipped-steps.advice"]
    few = require_finding(skipped_steps(analyse(make_run_log(steps, event_counts={"scaler-overflow": 3}))))
    assert (few.severity, few.advice) == ("info", "")


def test_skipped_updates_are_a_share_of_the_updates() -> None:
    """One line is 100 updates; of lines without numbers nobody knows how many updates they are."""
    steps = make_steps(range(100, 20_001, 100), loss=falling_losses(200))
    run_log = make_run_log(steps, event_counts={"scaler-overflow": 30})
    one = require_finding(skipped_steps(analyse(run_log)))
    assert (one.severity, one.values["skipped_share"]) == ("info", 30 / 20_000)
    one = require_finding(skipped_steps(analyse(replace(run_log, has_iteration_numbers=False))))
    assert (one.severity, one.values) == ("info", {"skipped_updates": 30})


def test_of_updates_after_the_last_line_nobody_knows_how_many_they_are() -> None:
    steps = make_steps(range(100, 701, 100), loss=falling_losses(7))
    for line, is_known in ((int(steps.line[3]), True), (int(steps.line[-1]) + 3, False)):
        event = LogEvent("scaler-overflow", "overflow detected, scale to: 0.5", line, 700)
        one = skipped_steps(analyse(make_run_log(steps, events=[event], event_counts={"scaler-overflow": 1})))
        assert ("skipped_share" in require_finding(one).values) == is_known


def test_a_few_lines_none_of_whose_norms_is_finite() -> None:
    for count, severity in ((1, None), (2, "info"), (4, "info"), (5, "warning")):
        steps = make_steps(range(count), loss=[1.7] * count, grad_norm=[math.inf] * count)
        one = norms_never_finite(analyse(make_run_log(steps)))
        assert (one and one.severity) == severity, count


def test_a_validation_loss_that_is_nan_beside_what_speaks_against_an_empty_split() -> None:
    """A training loss that rises, or another metric of the same evaluation."""
    rises, level = [1.2, 1.6, 1.8, 2.4], [1.2, 1.3, 1.2, 1.2]
    metric = metric_of("eval_wer")
    assert metric is not None
    wer = MetricSeries("eval_wer", metric, np.array([3]), np.array([9]), np.array([100.0]))
    for losses, metrics, key in (
        (rises, (wer,), "validation_diverged"),
        (level, (wer,), "validation_measured"),
        (level, (), "validation"),
    ):
        run_log = make_run_log(make_steps(range(4), loss=losses))
        evals = (LoggedEvaluation(3, 0, NAN, line=9),)
        one = require_finding(loss_nan(analyse(replace(run_log, evals=evals, metrics=metrics))))
        assert one.text["explanation"] == (say(f"loss-nan.explanation.{key}"),)


def test_a_log_that_begins_at_its_first_interval_has_no_lines_before() -> None:
    for first, key in ((40, "lower_unknown_lr"), (400, "lines_before")):
        steps = make_steps(range(first, first + 160, 40), loss=[6.99, NAN, NAN, NAN])
        run_log = make_run_log(steps, trainer=HF)
        run_log = replace(run_log, segments=(replace(run_log.segments[0], has_startup=False),))
        one = require_finding(loss_nan(analyse(run_log)))
        assert one.text["advice"][-1].key == f"loss-nan.advice.{key}"


def test_zeros_beside_a_validation_loss_that_is_nan_are_nan() -> None:
    """The evaluation is not at fault alone: transformers logs a NaN loss as 0."""
    run_log = make_run_log(make_steps(range(400, 481, 20), loss=[0.0] * 5), evals=[(400, None, math.nan)])
    assert loss_nan(analyse(run_log)) is None
    one = require_finding(loss_zero(analyse(run_log)))
    assert one.text["title"] == (say("loss-nan.title.all_zero"),)
    assert one.text["evidence"] == (say("loss-nan.evidence.all_zero_val_nan", zero_losses=5),)
    learning = make_run_log(make_steps(range(400, 481, 20), loss=[2.0] * 5), evals=[(400, None, math.nan)])
    assert require_finding(loss_nan(analyse(learning))).text["title"] == (say("loss-nan.title.validation"),)


def test_batches_that_the_loop_itself_left_out() -> None:
    skips = [LogEvent("nonfinite-skip", "NaN loss: skipping", 70 + at, at) for at in range(12)]
    steps = make_steps(range(1, 801), loss=falling_losses(800))
    run_log = make_run_log(steps, events=skips, event_counts={"nonfinite-skip": 12})
    one = require_finding(skipped_steps(analyse(run_log)))
    assert (one.severity, one.values["skipped_updates"], one.lines[0]) == ("warning", 12, 70)
    assert one.values["skipped_share"] == 12 / 800


def test_norms_that_are_never_finite() -> None:
    norms = [math.inf] * 40
    analysis = analyse(make_run_log(make_steps(range(0, 400, 10), loss=falling_losses(40), grad_norm=norms)))
    one = require_finding(norms_never_finite(analysis))
    assert (one.severity, one.at) == ("warning", 0)
    assert one.values == {"infinite_norms": 40, "logged_iterations": 40}
    assert skipped_steps(analysis) is None, "one finding about them is enough"
    for norms in ([*[math.inf] * 39, 1.5], [math.nan] * 40, [math.inf] * 4 + [math.nan] * 36):
        steps = make_steps(range(0, 400, 10), loss=falling_losses(40), grad_norm=norms)
        assert norms_never_finite(analyse(make_run_log(steps))) is None


def test_norms_that_are_never_finite_beside_no_loss() -> None:
    steps = make_steps(range(5426, 5430), loss=None, grad_norm=[math.inf] * 4)
    one = require_finding(norms_never_finite(analyse(make_run_log(steps))))
    assert one.values == {"infinite_norms": 4}


def test_norms_that_are_not_finite_are_skipped_updates() -> None:
    norms = [1.0] * 3 + [math.inf] * 6 + [NAN] + [1.0] * 90  # NaN: a line without a norm
    steps = make_steps(range(100), loss=falling_losses(100), grad_norm=norms)
    for dtype, cause in ((None, "dtype_unknown"), ("float16", "scaler"), ("bfloat16", "no_scaler")):
        settings = {"dtype": dtype} if dtype else {}
        one = require_finding(skipped_steps(analyse(make_run_log(steps, settings=settings))))
        assert (one.severity, one.values["skipped_updates"]) == ("warning", 6)
        assert (one.values["first_iteration"], one.values["last_iteration"]) == (3, 8)
        assert say("skipped-steps.evidence.went_on") in one.text["evidence"]
        assert [message.key for message in one.text["explanation"]] == [f"skipped-steps.explanation.{cause}"]
    at_the_end = replace(steps, grad_norm=np.array([*norms[9:], *norms[:9]]))
    last = require_finding(skipped_steps(analyse(make_run_log(at_the_end))))
    assert say("skipped-steps.evidence.last_line") in last.text["evidence"]


def test_a_norm_that_is_printed_as_nan_is_one() -> None:
    text = "".join(
        f"{{'loss': 3.0, 'grad_norm': {'nan' if at in (4, 7) else 1.5}, 'epoch': {at / 10}}}\n"
        for at in range(1, 21)
    )
    norms = read_log([LogLine(line) for line in text.splitlines()], "run.log").steps.grad_norm
    assert np.flatnonzero(np.isinf(norms)).tolist() == [3, 6]
    without = text.replace(", 'grad_norm': nan", "")
    norms = read_log([LogLine(line) for line in without.splitlines()], "run.log").steps.grad_norm
    assert np.flatnonzero(np.isnan(norms)).tolist() == [3, 6]


# --- memory ---

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of "
    "39.38 GiB of which 18.12 MiB is free. Including non-PyTorch memory, this process has 39.35 GiB memory "
    "in use. Of the allocated memory 38.76 GiB is allocated by PyTorch, and 89.20 MiB is reserved by PyTorch "
    "but unallocated."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 4.10 GiB "
    "already allocated; 17.06 MiB free; 6.14 GiB reserved in total by PyTorch)"
)
MPS = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.0 GB, max "
    "allowed: 9.07 GB). Tried to allocate 256.00 MB on private pool."
)
GIB = 2**30


def test_messages_are_read() -> None:
    new, old, mps = parse_oom_message(NEW), parse_oom_message(OLD), parse_oom_message(MPS)
    assert (new.requested_bytes, new.capacity_bytes, new.allocated_bytes) == (
        64 * 2**20,
        39.38 * GIB,
        38.76 * GIB,
    )
    assert (new.free_bytes, new.process_bytes) == (18.12 * 2**20, 39.35 * GIB)
    assert (old.requested_bytes, old.capacity_bytes, old.allocated_bytes) == (
        20 * 2**20,
        7.79 * GIB,
        4.10 * GIB,
    )
    assert old.reserved_unallocated_bytes == pytest.approx(2.04 * GIB)
    assert (mps.capacity_bytes, mps.allocated_bytes, mps.requested_bytes) == (
        9.07 * GIB,
        8 * GIB,
        256 * 2**20,
    )
    assert parse_oom_message(NEW.replace("capacity", "capacty")).capacity_bytes == 39.38 * GIB
    assert parse_oom_message("you tried to allocate 4294967296 bytes").requested_bytes == 4 * GIB
    assert parse_oom_message("out of memory").requested_bytes is None


def out_of_memory(message: str, parameters: int | None = None, **stated: ConfigValue) -> RunLog:
    events = [LogEvent("oom", message, 80, 0)]
    run_log = make_run_log(make_steps([0], loss=[4.6]), settings=stated, events=events)
    return replace(run_log, setup=replace(run_log.setup, trained_parameters=parameters))


def test_a_model_that_fits_at_no_batch_size() -> None:
    shape = {
        "n_layer": 48,
        "n_head": 32,
        "n_embd": 2048,
        "block_size": 256,
        "batch_size": 16,
        "vocab_size": 65,
    }
    one = require_finding(oom(analyse(out_of_memory(NEW, 2_416_775_168, **shape))))
    # Weights, gradients, two moments; the matrices of the blocks in bfloat16; the head's gradient, twice.
    parameters, head = 2_416_775_168 - 256 * 2048, 65 * 2048
    values, model_bytes = one.values, 16 * parameters + 2 * 48 * 12 * 2048**2 + (2 + 4) * head
    assert (one.severity, one.at, one.claims) == ("problem", 0, {"how the run ended": "oom"})
    assert (values["parameters"], values["model_bytes"]) == (parameters, model_bytes)
    assert values["share_of_card"] == pytest.approx(model_bytes / (39.38 * GIB))
    assert one.text["explanation"][0].key == "oom.explanation.model_too_large"
    assert (values["n_layer"], values["new_n_layer"]) == (48, 42)
    assert one.commands == [{"settings": {"n_layer": 42, "batch_size": 1}}]
    assert (values["cards"], values["bytes_per_card"]) == (2, model_bytes / 2)


def test_a_batch_that_would_have_fitted() -> None:
    message = NEW.replace("39.38", "11.60").replace("39.35", "11.50").replace("38.76", "11.20")
    shape = {"n_layer": 12, "n_embd": 768, "block_size": 1024, "batch_size": 32, "vocab_size": 50304}
    one = require_finding(
        oom(analyse(out_of_memory(message, 124_373_760, **shape, gradient_accumulation_steps=5)))
    )
    # 1024 x (32.8 x 12 x 768 + 10 x 50304) bytes = 0.77 GiB each: 10 in the 8.0 GiB beside model and context
    values = one.values
    parameters, head = 124_373_760 - 1024 * 768, 50304 * 768
    # Beside the sum over micro-batches, a tied embedding's two gradients and their sum.
    assert values["model_bytes"] == 16 * parameters + 3 * 4 * head
    assert values["bytes_per_sequence"] == pytest.approx(786 * 2**20, rel=0.01)
    assert (values["batch_size"], values["new_batch_size"]) == (32, 8)
    assert (values["accumulation_steps"], values["new_accumulation_steps"]) == (5, 20)
    assert one.commands == [{"settings": {"batch_size": 8, "gradient_accumulation_steps": 20}}]


def test_what_fits_is_what_plan_would_fit() -> None:
    """One model of memory: the proposed batch is within the share of a card that automatic choices fill."""
    shape = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50304}
    message = "CUDA out of memory. GPU 0 has a total capacity of 11.60 GiB"
    run_log = out_of_memory(message, 124_373_760, **shape, batch_size=60)
    fits = largest_fitting_batch(stated_workload(run_log, 123_587_328), int(0.94 * 11.6 * GIB))
    new_batch_size = require_finding(oom(analyse(run_log))).values["new_batch_size"]
    assert fits is not None
    assert new_batch_size == max(size for size in range(1, fits + 1) if 60 % size == 0)


def test_a_size_without_a_shape() -> None:
    """Weights, gradients and two moments, and nearly all of the weights in bfloat16."""
    one = require_finding(oom(analyse(out_of_memory("CUDA error: out of memory", 10_700_000, n_embd=384))))
    assert (one.values["model_bytes"], one.values["bytes_per_parameter"]) == (18 * 10_700_000, 18)
    assert "bytes_per_sequence" not in one.values


def test_absurd_sizes_are_survived(subtests: pytest.Subtests) -> None:
    for name in ("n_layer", "n_embd", "block_size", "vocab_size", "batch_size"):
        with subtests.test(name):
            shape = {"n_layer": 48, "n_embd": 2048, "block_size": 256, "batch_size": 16, "vocab_size": 65}
            for value in (1e308, 10**30, -1, math.inf):
                run_log = out_of_memory(NEW, 2_416_775_168, **{**shape, name: value})
                parameters = require_finding(oom(analyse(run_log))).values["parameters"]
                assert parameters == pytest.approx(2_416_775_168, rel=0.001)  # with positions, or without


def test_what_else_a_message_tells() -> None:
    old = require_finding(oom(analyse(out_of_memory(OLD))))
    assert old.text["advice"][0].key == "oom.advice.fragmented"
    assert old.values["fragmented_bytes"] == pytest.approx(2.04 * GIB)
    cases = ((4.48, 7.08, True), (2.0, 7.08, True), (0.1, 7.08, False), (7, 0.2, False))
    for free, unallocated, is_fragmented in cases:
        text = (
            "CUDA out of memory. Tried to allocate 7.71 GiB. GPU 0 has a total capacity of 23.68 GiB of "
            f"which {free} GiB is free. {unallocated} GiB is reserved by PyTorch but unallocated."
        )
        advice = require_finding(oom(analyse(out_of_memory(text)))).text["advice"]
        assert ("oom.advice.fragmented" in [one.key for one in advice]) == is_fragmented, (free, unallocated)
    shared = NEW.replace("39.35 GiB memory in use", "20.00 GiB memory in use")
    others = require_finding(oom(analyse(out_of_memory(shared))))
    assert others.values["other_bytes"] == pytest.approx(19.38 * GIB - 18.12 * 2**20)
    bare = require_finding(oom(analyse(out_of_memory("CUDA error: out of memory"))))
    assert [message.key for message in bare.text["evidence"]] == ["oom.evidence.sizes_unknown"]


HOST = "slurmstepd: error: Detected 3 oom-kill event(s) in StepId=7.batch. Some were killed by the cgroup."


def test_memory_of_the_host_has_nothing_to_do_with_the_batch() -> None:
    loading = make_run_log(
        make_steps([]), settings={"batch_size": 16}, events=[LogEvent("oom", HOST, 80, None)]
    )
    one = require_finding(oom(analyse(loading)))
    assert (one.severity, one.claims) == ("problem", {"how the run ended": "oom"})
    assert one.text["title"] == (say("oom.title.host_before_training"),)
    assert say("oom.evidence.never_trained") in one.text["evidence"]
    assert one.text["advice"] == (say("oom.advice.host_loading"),)
    trained = require_finding(oom(analyse(out_of_memory(HOST))))
    assert trained.text["title"] == (say("oom.title.host"),)
    both = replace(loading, events=(*loading.events, LogEvent("oom", NEW, 81, None)))
    assert "requested_bytes" in require_finding(oom(analyse(both))).values  # the card's message says why


# --- interrupted ---


def stopped(
    kind: EventKind, words: str, last: int, saves: list[int], trainer: Trainer | None = None
) -> RunLog:
    steps = make_steps(range(0, last + 1, 10), 2000.0, falling_losses(last // 10 + 1))
    evals = [(0, 4.2, 4.2)]
    run_log = make_run_log(steps, evals, checkpoints=saves, events=[LogEvent(kind, words, 99, last)])
    return replace(run_log, trainer=trainer or run_log.trainer, setup=LoggedSetup(planned_iterations=5000))


def test_what_an_interrupt_cost() -> None:
    one = require_finding(
        interrupted(analyse(stopped("interrupt", "KeyboardInterrupt", 990, [250, 500, 750])))
    )
    assert one.text["title"] == (say("interrupted.title.by_hand"),)
    assert (one.severity, one.at) == ("warning", 990)
    assert one.claims == {"how the run ended": "interrupted", "checkpoint to resume from": 750}
    assert (one.values["last_iteration"], one.values["planned_iterations"]) == (990, 5000)
    assert one.values["done_share"] == pytest.approx(990 / 5000)
    assert (one.values["saved_iteration"], one.values["lost_iterations"]) == (750, 240)
    assert one.values["lost_s"] == pytest.approx(240 * 2)
    assert "--init_from=resume" in str(one.values["command"])


def test_a_resume_command_names_the_folder_of_the_run() -> None:
    records = [journals.run() | {"out_dir": "runs/a b"}, journals.first_step()]
    ours = run_log_from_records(records, "run")
    assert ours.resume_command == "glass train --init_from=resume --out_dir='runs/a b'"
    assert replace(ours, setup=LoggedSetup()).resume_command.endswith("--out_dir=RUN")


def test_who_ended_it() -> None:
    limit = "slurmstepd: error: *** JOB 1 ON g002 CANCELLED AT 2024-10-10T18:59:58 DUE TO TIME LIMIT ***"
    one = require_finding(interrupted(analyse(stopped("kill", limit, 500, [500]))))
    assert one.text["title"] == (say("interrupted.title.time_limit"),)
    term = "Signal 15 (SIGTERM) received by PID 1454088"
    one = require_finding(interrupted(analyse(stopped("interrupt", term, 500, [500]))))
    assert one.text["title"] == (say("interrupted.title.killed"),)
    assert one.severity == "info"


@pytest.mark.parametrize(
    ("kind", "text"), [("oom", "CUDA out of memory"), ("traceback", "RuntimeError: no such file")]
)
def test_a_kill_that_followed_another_cause(kind: EventKind, text: str) -> None:
    run_log = stopped("kill", "failed (exitcode: -9) local_rank: 2", 500, [500])
    assert interrupted(analyse(run_log)) is not None
    fault = LogEvent(kind, text, 98, 500)
    assert interrupted(analyse(replace(run_log, events=(fault, *run_log.events)))) is None


def test_all_is_lost_where_saves_would_show() -> None:
    one = require_finding(interrupted(analyse(stopped("interrupt", "KeyboardInterrupt", 990, []))))
    assert one.severity == "problem"
    assert say("crashed.evidence.all_lost") in one.text["evidence"]
    no_eval_lines = replace(stopped("interrupt", "KeyboardInterrupt", 990, []), evals=())
    unknown = require_finding(interrupted(analyse(no_eval_lines)))
    assert say("crashed.evidence.no_checkpoint_lines") in unknown.text["evidence"]
    silent = require_finding(interrupted(analyse(stopped("interrupt", "KeyboardInterrupt", 990, [], BUILD))))
    assert silent.severity == "warning"
    assert say("crashed.evidence.no_checkpoint_lines") in silent.text["evidence"]
    assert silent.text["advice"] == (say("build-nanogpt.cannot_resume_advice"),)


def test_a_trial_of_a_few_minutes_needs_no_checkpoint() -> None:
    trial = stopped("interrupt", "KeyboardInterrupt", 60, [])
    later = LogEvent("interrupt", "KeyboardInterrupt", 168, 60)
    one = require_finding(interrupted(analyse(replace(trial, events=(*trial.events, later)))))
    assert (one.severity, one.text["advice"], one.text["explanation"]) == ("info", (), ())
    assert one.lines == (99,), "the first process to say so"
    long = replace(trial, steps=make_steps(range(0, 61, 10), 60_000.0, falling_losses(7)))
    one = require_finding(interrupted(analyse(long)))
    assert one.text["advice"] == (say("interrupted.advice.save_more_often"),)
    assert one.text["explanation"] == (), "the evidence says that all is lost"


def test_an_interrupt_of_an_earlier_attempt_is_not_this_runs() -> None:
    run_log = stopped("interrupt", "KeyboardInterrupt", 990, [500])
    assert interrupted(analyse(replace(run_log, last_step_line=4586))) is None


def test_a_checkpoint_of_nan_is_not_resumed() -> None:
    run_log = stopped("interrupt", "SIGTERM received", 990, [500], LLMC)
    run_log = replace(run_log, steps=replace(run_log.steps, loss=np.full(100, NAN)))
    one = require_finding(interrupted(analyse(run_log)))
    assert one.severity == "info"
    assert say("crashed.evidence.nothing_worth_keeping", nonfinite_since=0) in one.text["evidence"]
    assert one.text["advice"] == (say("interrupted.advice.nonfinite_weights"),)


def test_llm_c_shows_its_checkpoints() -> None:
    one = require_finding(interrupted(analyse(stopped("interrupt", "DUE TO TIME LIMIT", 750, [], LLMC))))
    assert one.severity == "problem"
    assert say("crashed.evidence.all_lost") in one.text["evidence"]
    no_eval_lines = replace(stopped("interrupt", "KeyboardInterrupt", 990, []), evals=())
    unknown = require_finding(interrupted(analyse(no_eval_lines)))
    assert say("crashed.evidence.no_checkpoint_lines") in unknown.text["evidence"]


def test_lines_are_not_called_iterations() -> None:
    run_log = stopped("interrupt", "KeyboardInterrupt", 990, [500], HF)
    one = require_finding(interrupted(analyse(replace(run_log, has_iteration_numbers=False))))
    assert one.values["logged_iterations"] == 100
    assert one.at is None
    assert "planned_iterations" not in one.values


def test_a_crash_says_what_and_what_it_cost() -> None:
    one = require_finding(crashed(analyse(stopped("traceback", "TypeError: string indices", 990, [750]))))
    assert (one.at, one.claims) == (990, {"how the run ended": "crashed", "checkpoint to resume from": 750})
    assert (one.values["last_iteration"], one.values["planned_iterations"]) == (990, 5000)
    quoted = say("crashed.evidence.quoted_line", line=99, quoted="TypeError: string indices")
    assert quoted in one.text["evidence"]
    assert one.values["lost_iterations"] == 240
    assert one.text["advice"][0].values["saved_iteration"] == 750
    opening = stopped("traceback", "Traceback (most recent call last):", 990, [750])
    opened = require_finding(crashed(analyse(opening)))
    assert say("crashed.evidence.traceback_line", line=99) in opened.text["evidence"]


def test_a_segmentation_fault_is_no_kill() -> None:
    run_log = replace(stopped("abort", "Segmentation fault (core dumped)", 990, [750]), ended="crashed")
    one = require_finding(crashed(analyse(run_log)))
    assert one.text["title"] == (say("crashed.title.segmentation_fault"),)
    assert interrupted(analyse(run_log)) is None


def test_an_interruption_that_was_resumed_is_history() -> None:
    run_log = stopped("interrupt", "KeyboardInterrupt", 990, [500])
    early = (LogEvent("interrupt", "KeyboardInterrupt", 40, 300),)
    assert interrupted(analyse(replace(run_log, events=early, ended="finished"))) is None


def test_a_loss_that_is_back_at_its_beginning_may_be_of_new_weights() -> None:
    course = (3.0 + 7.0 * np.exp(-np.arange(0, 4000, 20) / 500)).tolist()
    for peak, key in ((10.0, "begins_anew"), (8.0, "recovered")):
        later = [min(loss, peak) for loss in course]
        run_log = make_run_log(make_steps(range(0, 8000, 20), loss=add_noise([*course, *later], 0.05)))
        one = require_finding(loss_explosion(analyse(run_log)))
        assert (one.at, one.text["explanation"][0].key) == (4000, f"loss-explosion.explanation.{key}")


# --- checkpoints ---


def unsaved(last: int, ms: float, **stated: ConfigValue) -> RunLog:
    steps = make_steps(range(0, last + 1, 10), ms, falling_losses(last // 10 + 1))
    return make_run_log(steps, evals=[(0, 10.9, 10.9)], settings=stated)


def test_a_run_that_never_saved() -> None:
    one = require_finding(never_checkpointed(analyse(unsaved(1000, 1500.0, eval_interval=2000))))
    assert (one.values["iterations"], one.values["unsaved_s"]) == (1000, pytest.approx(1500))
    assert one.values["eval_interval"] == 2000
    assert (one.values["new_eval_interval"], one.values["at_risk_s"]) == (200, pytest.approx(300))
    assert [message.key for message in one.text["advice"]] == ["never-checkpointed.advice"]
    slow_start = make_steps(range(0, 1001, 10), [91_500.0] + [1500.0] * 100, falling_losses(101))
    dear = never_checkpointed(analyse(make_run_log(slow_start, evals=[(0, 10.9, 10.9)])))
    assert require_finding(dear).values["eval_s"] == pytest.approx(90)
    assert never_checkpointed(analyse(unsaved(100, 1500.0))) is None  # two minutes and a half
    assert never_checkpointed(analyse(replace(unsaved(1000, 1500.0), trainer=HF))) is None
    assert never_checkpointed(analyse(replace(unsaved(1000, 1500.0), evals=()))) is None  # lines left out


def test_a_log_with_gaps_or_silent_spikes_does_not_tell() -> None:
    spiky = make_steps(range(0, 1001, 10), [1500.0] * 50 + [125_000.0] + [1500.0] * 50, falling_losses(101))
    gappy = make_steps([0, 10, 20, 30, 990, 1000], 1500.0, falling_losses(6))
    for steps in (spiky, gappy):
        assert never_checkpointed(analyse(make_run_log(steps, evals=[(0, 10.9, 10.9)]))) is None


def test_a_run_that_only_got_worse_had_nothing_to_save() -> None:
    run_log = unsaved(1000, 1500.0, always_save_checkpoint=False)
    evals = (*run_log.evals, replace(run_log.evals[0], iteration=500, val_loss=11.5))
    assert never_checkpointed(analyse(replace(run_log, evals=evals))) is None


def test_a_best_by_luck_is_not_better_than_what_overwrote_it() -> None:
    """Flat within noise from pretrained weights: the lowest of 44 evaluations is two deviations low."""
    val = add_noise([3.0] * 45, 0.011, seed=3)
    evals = [(1000 * at, loss - 0.01, loss) for at, loss in enumerate(val)]
    steps = make_steps(range(0, 44_001, 10), loss=add_noise([3.0] * 4401, 0.11))
    saves = [1000 * at for at in range(1, 45)]
    known: dict[str, ConfigValue] = {"init_from": "gpt2", "eval_iters": 200, "max_iters": 600_000}
    analysis = analyse(make_run_log(steps, evals, saves, known))
    assert max(val) - min(val) > 0.03
    assert best_overwritten(analysis) is None
    assert analysis.past_best is None
    worse = analyse(make_run_log(steps, [*evals[:-3], *[(at, 2.9, 3.1) for at in saves[-3:]]], saves, known))
    assert require_finding(best_overwritten(worse)).values["saved_loss"] == 3.1


# --- the end ---


def test_a_log_that_stops_far_from_its_plan() -> None:
    steps = make_steps(range(0, 1001, 10), loss=falling_losses(101))
    for planned, severity in ((1100, None), (2000, "info"), (600_000, "info")):
        one = ended_early(analyse(make_run_log(steps, checkpoints=[900], settings={"max_iters": planned})))
        assert (one and one.severity) == severity
    assert one is not None
    assert one.values["done_share"] == 1000 / 600_000
    assert one.claims == {"how the run ended": "cut", "checkpoint to resume from": 900}
    assert ended_early(analyse(make_run_log(steps))) is None
    excerpt = make_run_log(steps, settings={"max_iters": 600_000}, is_excerpt=True)
    assert ended_early(analyse(excerpt)) is None


def test_a_crash_after_the_end_is_not_the_runs() -> None:
    fault = LogEvent("traceback", "Traceback (most recent call last): OSError: quota", 120, 990)
    done = LogEvent("finish", "real 1m2s", 110, 990)
    run_log = stopped("finish", "real 1m2s", 990, [750])
    after = analyse(replace(run_log, events=(done, fault)))
    one = require_finding(crashed_after_end(after))
    assert (one.severity, one.claims) == ("warning", {"how the run ended": "finished"})
    assert one.values["quoted"] == "OSError: quota"
    assert crashed(after) is None
    memory = analyse(replace(run_log, events=(done, LogEvent("oom", NEW, 120, 990))))
    assert oom(memory) is None  # of a later script
    assert crashed_after_end(memory) is not None
    before = analyse(replace(run_log, events=(replace(fault, line=105), done)))
    assert crashed_after_end(before) is None


def test_the_best_is_overwritten() -> None:
    run_log = gpu_run()
    run_log = replace(run_log, checkpoints=tuple(LoggedCheckpoint(250 * i, 0) for i in range(1, 21)))
    one = require_finding(best_overwritten(analyse(run_log)))
    assert one.severity == "problem"
    assert one.at == one.claims["best iteration"] == one.values["best_iteration"] == 1750
    assert (one.values["best_loss"], one.values["saved_loss"]) == (1.4576, 1.7096)
    assert one.values["saved_iteration"] == 5000
    assert one.values["loss_rise"] == pytest.approx(1.7096 - 1.4576)
    assert best_overwritten(analyse(replace(run_log, trainer=GLASSGPT))) is None


def test_zeros_with_norms_that_are_nan_are_a_loss_that_is_nan() -> None:
    analysis = analyse(make_run_log(make_steps(range(8), loss=[0.0] * 8, grad_norm=[math.inf] * 8)))
    one = require_finding(loss_zero(analysis))
    assert (one.severity, one.values["zero_losses"]) == ("problem", 8)
    assert norms_never_finite(analysis) is None
    finite = make_steps(range(8), loss=[0.0] * 8, grad_norm=[1.0] * 8)
    assert loss_zero(analyse(make_run_log(finite))) is None


def noisy(levels: list[float], lines: int, seed: int) -> RunLog:
    """`lines` losses at each level, with a standard deviation of 0.08."""
    losses = np.repeat(levels, lines) + 0.08 * np.random.default_rng(seed).standard_normal(
        lines * len(levels)
    )
    return make_run_log(make_steps(range(len(losses)), loss=losses.tolist()))


def test_a_loss_that_jumps_and_stays() -> None:
    analysis = analyse(noisy([2.5] * 19 + [2.8], 60, seed=1))
    one = require_finding(loss_jump(analysis))
    assert one.at == pytest.approx(19 * 60, abs=2)
    assert one.values["loss_before"] == pytest.approx(2.5, abs=0.06)
    assert one.values["loss_after"] == pytest.approx(2.8, abs=0.04)
    back = analyse(noisy([2.5] * 17 + [2.8, 2.5, 2.5], 60, seed=1))
    assert loss_jump(back) is None
    fell_before = analyse(noisy([5.0] * 12 + [2.5] * 5 + [2.8] * 5, 60, seed=1))
    jump = find_loss_jump(*fell_before.trajectory.finite_losses(), np.array([0]))
    assert jump is not None
    assert jump.iteration == pytest.approx(17 * 60, abs=2)


def test_noise_is_neither_a_rise_nor_a_jump() -> None:
    """Of many blocks the lowest is low by luck, and the first batch may be an easy one."""
    for seed in range(40):
        analysis = analyse(noisy([2.83] * 10, 50, seed))
        assert (analysis.loss_rise, analysis.loss_jump) == (None, None)


def test_an_explosion_among_few_lines_begins_where_it_left_the_level() -> None:
    losses = [1.37, 1.33, 1.7, 5.0, 7.8, 10.1, 10.9, 11.0, 11.2, 11.3, 9.9, 9.2]
    (explosion,) = analyse(make_run_log(make_steps(range(50, 62), loss=losses))).explosions
    assert (explosion.iteration, explosion.iteration_before, explosion.loss_before) == (52, 51, 1.33)
    assert explosion.peak_loss == 11.3


def test_a_learning_rate_in_its_warm_up_does_not_cause_a_nan() -> None:
    losses, lr = [1.87, 2.58, 2.78, NAN, NAN], [0.01, 0.01, 0.01, 0.02, 0.02]
    for peak, cause in (
        ("nanochat", "loss-nan.explanation.masked"),
        ("nanogpt", "loss-nan.explanation.unknown"),
    ):
        trainer = BY_ID[peak]
        setup = LoggedSetup(settings={"learning_rate": 0.03})  # of nanoGPT: two thirds of the peak
        steps = make_steps(range(1, 6), 84.0, losses, lr=lr)
        one = require_finding(loss_nan(analyse(make_run_log(steps, trainer=trainer, setup=setup))))
        assert one.text["explanation"][0].key == cause
    assert one.text["advice"][-1].key == "loss-nan.advice.lower_known_lr"


def test_a_share_of_a_tail_is_of_its_lines() -> None:
    steps = make_steps(range(3000, 3200), 1000.0, [*[3.0] * 100, *[NAN] * 100])
    tail = (LoggedProcess(has_startup=False, first_iteration=3000),)
    for run_log, key in (
        (make_run_log(steps, segments=tail), "loss-nan.advice.stop_at_once_of_lines"),
        (make_run_log(replace(steps, iteration=steps.iteration - 3000)), "loss-nan.advice.stop_at_once"),
    ):
        assert key in [
            message.key for message in require_finding(loss_nan(analyse(run_log))).text["evidence"]
        ]


def test_a_nan_in_the_first_updates_of_fine_tuning() -> None:
    losses = [1.87, 2.58, 2.78, NAN, NAN]
    for start, key in ((1, "loss-nan.explanation.masked"), (500, "loss-nan.explanation.unknown")):
        steps = make_steps(range(start, start + 5), 84.0, losses)
        one = require_finding(loss_nan(analyse(make_run_log(steps, trainer=HF))))
        assert one.text["explanation"][0].key == key


def test_spikes_at_the_same_batches_of_each_epoch_are_of_the_data() -> None:
    batches = np.random.default_rng(2).normal(0, 0.1, 300)
    batches[100:110] += 1.5
    noise = np.random.default_rng(3).normal(0, 0.02, 1500)
    losses = 2.5 + np.tile(batches, 5) + noise
    one = require_finding(loss_spike(analyse(make_run_log(make_steps(range(1500), loss=losses.tolist())))))
    assert (one.severity, one.values["period"]) == ("info", 300)
    assert [advice.key for advice in one.text["advice"]] == ["loss-spike.advice.recurring"]
    shuffled = np.concatenate([np.roll(batches, 37 * epoch**2) for epoch in range(5)])
    analysis = analyse(make_run_log(make_steps(range(1500), loss=(2.5 + shuffled + noise).tolist())))
    assert analysis.loss_recurs is None


def launch(
    *functions: str, error: str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
) -> str:
    frames = [f'  File "/env/lib/{name}.py", line {at}, in {name}' for at, name in enumerate(functions, 7)]
    return "\n".join(["Traceback (most recent call last):", *frames, error, ""])


LOADS = launch("main", "from_pretrained", "_load_pretrained_model", "to")
COMPUTES = launch("main", "train", "training_step", "_call_impl", "forward")
BANNER = "[INFO|trainer.py:2128] ***** Running training *****\n"
SYNTAX = '  File "train.py", line 3\n    lr=\n      ^\nSyntaxError: invalid syntax\n'
REPORT = launch(
    "run", "launch_agent", error="torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
)


def test_a_model_that_does_not_fit_is_no_matter_of_the_micro_batch() -> None:
    for text, is_loading in (
        (LOADS, True),
        (COMPUTES, False),
        (launch("main"), False),
        (LOADS + COMPUTES, False),
    ):
        one = require_finding(oom(analyse(parse_log(BANNER + text))))
        keys = [message.key for message in one.text["advice"]]
        assert (keys == ["oom.advice.loading"]) == is_loading, text


def test_memory_that_ran_out_in_the_optimizer_is_not_of_the_activations() -> None:
    for functions, is_stepping in (
        (("main", "wrapper", "_use_grad", "step", "_init_group"), True),
        (("main", "step", "_step_muon", "muon_step_fused", "forward"), True),  # compiled
        (("main", "optimizer_step", "step", "adamw", "closure", "training_step", "forward"), False),
        (("main", "train", "step", "forward"), False),
    ):
        one = require_finding(oom(analyse(parse_log(BANNER + launch(*functions)))))
        keys = [message.key for message in one.text["advice"]]
        assert (keys == ["oom.advice.optimizer_step"]) == is_stepping, functions
        assert one.severity == "problem"


def test_the_last_launch_decides_how_a_log_without_training_ended() -> None:
    value = launch("main", error="ValueError: no such model")
    rank = launch("main", error="torch.distributed.DistBackendError: NCCL error")
    cases = (
        (LOADS, "oom"),
        (LOADS + SYNTAX, "crashed"),
        (LOADS + REPORT + value, "crashed"),
        (LOADS + value, "oom"),  # of the same launch, as far as is known
        (LOADS + REPORT + rank, "oom"),
        (SYNTAX + LOADS, "oom"),
        (value + REPORT + LOADS, "oom"),
    )
    for text, ended in cases:
        analysis = analyse(parse_log(BANNER + text))
        assert analysis.facts.ended == ended, text
        one = require_finding(oom(analysis))
        assert (one.severity == "advice") == (ended == "crashed")
    one = require_finding(crashed(analyse(parse_log(BANNER + SYNTAX + LOADS + SYNTAX))))
    assert one.lines[0] > 10


def test_the_last_of_very_many_errors_is_kept() -> None:
    value = launch("main", error="ValueError: no such model")
    last = launch("main", error="KeyError: 'loss'")
    one = require_finding(crashed(analyse(parse_log(BANNER + 900 * value + last))))
    assert "KeyError" in finding_text(one)


def test_a_loss_scale_that_collapsed_is_no_usual_skip() -> None:
    def overflowed(*texts: str) -> RunLog:
        events = [LogEvent("scaler-overflow", text, 9, 300) for text in texts]
        counts: dict[EventKind, int] = {"scaler-overflow": len(texts)}
        run_log = make_run_log(make_steps([300], loss=[5.0]), events=events)
        return replace(run_log, event_counts=counts)

    for text, scale in (
        ("WARNING: overflow detected, setting loss scale to: 0.0001220703125", 0.0001220703125),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.25", 0.25),
        ("[deepspeed] OVERFLOW! Skipping step. Attempted loss scale: 1.0, reducing to 0.5", 0.5),
        ("OVERFLOW! Skipping step. Attempted loss scale: 65536, reducing to 32768", None),
    ):
        one = require_finding(skipped_steps(analyse(overflowed(*["overflow detected"] * 11, text))))
        assert one.values.get("loss_scale") == scale
        assert "skipped_share" not in one.values or one.values["logged_iterations"] != 1
        assert scale is None or one.severity == "warning"


def test_advice_about_the_number_format_fits_the_run() -> None:
    losses = [5.0, 4.8, 4.7, 4.6, 4.5, 4.4, 4.3, NAN, NAN]
    for trainer, dtype, key in (
        (BY_ID["unknown"], None, "repeat_iterations"),
        (BY_ID["keras"], None, "find_batch"),
        (BY_ID["keras"], "float16", "overflow"),
        (BY_ID["unknown"], "float32", "find_batch"),
    ):
        settings: dict[str, ConfigValue] = {} if dtype is None else {"dtype": dtype}
        run_log = make_run_log(make_steps(range(1000, 1090, 10), loss=losses), trainer=trainer)
        run_log = replace(run_log, setup=LoggedSetup(settings=settings))
        one = require_finding(loss_nan(analyse(run_log)))
        assert one.text["advice"][-1].key == f"loss-nan.advice.{key}"


def test_a_loss_scale_in_megatrons_lines_tells_float16() -> None:
    line = " iteration {at}/ 100 | elapsed time per iteration (ms): 800.0 | lm loss: 5.{at}E+00"
    line += " | loss scale: {scale} |"
    for scale, dtype in ((64.0, "float16"), (1.0, None)):
        run_log = parse_log("\n".join(line.format(at=at, scale=scale) for at in range(10, 60, 10)))
        assert run_log.trainer.id == "megatron"
        assert run_log.setup.settings.get("dtype") == dtype


def test_a_file_that_is_written_with_a_checkpoint_did_not_end_early() -> None:
    run_log = make_run_log(
        make_steps(range(10, 510, 10)), trainer=HF, setup=LoggedSetup(planned_iterations=5000), ended="cut"
    )
    assert ended_early(analyse(run_log)) is not None
    columns = {"iteration": "step", "loss": "loss"}
    assert ended_early(analyse(replace(run_log, columns=columns, iterations_done=500))) is None
