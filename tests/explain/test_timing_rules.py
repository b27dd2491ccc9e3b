"""Findings about time, on histories with figures that people really had."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from run_logs import NANOGPT, make_run_log, make_steps
from timed_logs import GLASSGPT, LITGPT, analyse, any_timed_run, even_run, require_finding

from glassgpt.explain.registry import TIME_RULES
from glassgpt.explain.rules.eval_cost import eval_spikes
from glassgpt.explain.rules.step_time import jitter, silent_spike, throughput_drift
from glassgpt.explain.rules.wall_time import clock_before_sync, startup_compile
from glassgpt.runs.run_log import LoggedEvaluation, LoggedSetup, RunLog, Segment
from glassgpt.runs.trainers import BY_ID

MODDED = BY_ID["modded-nanogpt"]
LLMC = BY_ID["llm.c"]


def spiky(**settings: int | bool) -> RunLog:
    """A line every 100 iterations; 0, 500 and 1000 evaluate, the last two save: notes 000 and 002."""
    usual = [168.0, 170.0, 168.0, 169.0]
    ms = [12543.0, *usual, 5985.0, *usual, 5726.0]
    evals = [(0, 10.9, 10.9), (500, 5.5, 5.5), (1000, 4.4, 4.4)]
    return make_run_log(
        make_steps(range(0, 1001, 100), ms), evals, checkpoints=[500, 1000], settings=settings
    )


def with_times(run_log: RunLog, ms: np.ndarray) -> RunLog:
    return replace(run_log, steps=replace(run_log.steps, ms=ms))


# --- eval-spikes ---


def test_spikes_are_evaluations_and_priced() -> None:
    finding = require_finding(eval_spikes(analyse(spiky(eval_interval=500, eval_iters=200))))
    assert finding.severity == "advice"
    assert "35 times" in finding.title
    assert "5856 ms" in finding.evidence
    assert "168.5 ms" in finding.evidence
    # 3 x 5687 ms of 12543 + 5985 + 5726 + 8 x about 169 + 990 x 168.5 ms
    assert "3 evaluations cost 17 s of 3m 12s: 8.9% of the run" in finding.evidence
    assert "checkpoint" in finding.explanation


def test_the_advice_is_to_raise_the_interval_and_lower_the_batches() -> None:
    advice = require_finding(
        eval_spikes(analyse(spiky(eval_interval=500, eval_iters=200, max_iters=5000)))
    ).advice
    assert "Raise eval_interval: 500 -> 2000 saves 4.7% of a run longer than this log" in advice
    assert "Lower eval_iters: 200 -> 50 saves up to 6.6%" in advice  # 3/4 of 8.9 %, the saves in it


def test_the_interval_is_read_from_the_evaluations_where_no_setting_says_it() -> None:
    assert "500 -> 2000" in require_finding(eval_spikes(analyse(spiky()))).advice


def test_an_excerpt_saves_what_a_long_run_would() -> None:
    """Lines 490 to 610, evaluations at 500 and 600: no multiple of 400 among them, yet some would stay."""
    at = range(490, 611, 10)
    ms = [868_000.0 if i % 100 == 0 else 8_176.0 for i in at]
    run_log = make_run_log(
        make_steps(at, ms), [(500, 2.0, 2.0), (600, 2.0, 2.0)], segments=(Segment(False, False, 490),)
    )
    assert "100 -> 400 saves 38% of a run longer" in require_finding(eval_spikes(analyse(run_log))).advice


def test_an_interval_is_not_read_from_a_gap() -> None:
    steps = make_steps([0, 10, 20, 5000], [30_000.0, 13.0, 13.0, 2_200.0])
    run_log = make_run_log(steps, [(0, 4.0, 4.0), (5000, 1.0, 1.5)], is_excerpt=True)
    assert "20000" not in require_finding(eval_spikes(analyse(run_log))).advice


def test_build_nanogpt_evaluates_more_than_the_loss() -> None:
    ms = [20_000.0 if i % 250 == 0 else 340.0 for i in range(1001)]
    evals = [(i, None, 4.0) for i in range(0, 1001, 250)]
    trainer = BY_ID["build-nanogpt"]
    finding = require_finding(
        eval_spikes(analyse(make_run_log(make_steps(range(1001), ms), evals, trainer=trainer)))
    )
    assert "HellaSwag" in finding.explanation
    assert "eval_iters" not in finding.advice
    assert "every 1000 iterations instead of 250 saves up to 14%" in finding.advice  # 0.75 x 19.66 / 104.66


def test_a_wider_interval_that_saves_nothing_is_not_advised() -> None:
    run_log = replace(
        ledger_run(eval=50.0, train=50.0), evals=tuple(LoggedEvaluation(at, 0, 2.0) for at in (0, 1000))
    )
    settings = {"eval_interval": 250, "max_iters": 1000}
    run_log = replace(run_log, setup=LoggedSetup(settings=settings))
    assert "eval_interval" not in require_finding(eval_spikes(analyse(run_log))).advice


def test_a_run_known_to_end_soon_keeps_an_evaluation() -> None:
    assert (
        "500 -> 1000 saves 3.0% of the run"
        in require_finding(eval_spikes(analyse(spiky(max_iters=1000)))).advice
    )
    assert (
        "Raise" not in require_finding(eval_spikes(analyse(spiky(eval_interval=500, max_iters=900)))).advice
    )


def test_few_batches_are_not_made_fewer() -> None:
    assert "eval_iters" not in require_finding(eval_spikes(analyse(spiky(eval_iters=20)))).advice


def saving_sometimes(with_save: list[float], without: list[float]) -> RunLog:
    ms = [100.0] * 101
    at = list(range(10, 10 * (len(with_save) + len(without)) + 1, 10))
    for place, spent in zip(at, with_save + without, strict=True):
        ms[place] = spent
    return make_run_log(
        make_steps(range(101), ms), [(place, 1.0, 1.0) for place in at], checkpoints=at[: len(with_save)]
    )


def test_a_save_is_priced_separately_where_only_some_evaluations_save() -> None:
    run_log = saving_sometimes([12996, 13832, 13813, 13795], [8046, 8044, 8041, 8043])  # as on 4 real GPUs
    evidence = require_finding(eval_spikes(analyse(run_log))).evidence
    assert "An evaluation takes about 7944 ms, a checkpoint 5760 ms more (4 were saved)" in evidence


def test_a_save_that_drowns_in_the_scatter_is_not_priced() -> None:
    run_log = saving_sometimes([2337, 2206, 2483, 2491], [2239, 2139, 1816, 2368])  # as on a real H200
    assert "a checkpoint" not in require_finding(eval_spikes(analyse(run_log))).evidence


def test_evaluations_between_the_lines_are_counted() -> None:
    logged = make_run_log(
        make_steps(range(0, 1001, 100), [100.0] * 5 + [2100.0] + [100.0] * 5),
        [(at, 1.0, 1.0) for at in (250, 500, 750)],
    )
    # The first iteration too, which nanoGPT evaluates: 4 x 2 s of 102.1 s logged and 4 s hidden.
    assert (
        "4 evaluations cost 8.0 s of 1m 46s: 7.5%" in require_finding(eval_spikes(analyse(logged))).evidence
    )


def test_one_evaluation_alone_says_nothing_about_a_run() -> None:
    run_log = make_run_log(make_steps([4980, 4990, 5000], [33.22, 33.23, 4446.83]), [(5000, 0.62, 1.70)])
    run_log = replace(run_log, segments=(Segment(has_startup=False, first_iteration=4980),))
    finding = require_finding(eval_spikes(analyse(run_log)))
    assert finding.severity == "info"
    assert "134 times" in finding.title
    assert "of the run" not in finding.evidence + finding.advice


@pytest.mark.parametrize(
    "run_log",
    [
        even_run(),
        make_run_log(make_steps(range(20), [9000.0] + [100.0] * 19), [(0, 4.2, 4.2)]),  # only in the first
        make_run_log(make_steps(range(20), 100.0), [(10, 4.2, 4.2)]),  # costs nothing
        replace(spiky(), trainer=replace(NANOGPT, step_time_includes_eval=False)),
    ],
)
def test_no_spikes_no_finding(run_log: RunLog) -> None:
    assert eval_spikes(analyse(run_log)) is None


def ledger_run(**ledger: float) -> RunLog:
    run_log = make_run_log(
        make_steps(range(100, 1001, 100)),
        [(at, 2.0, 2.0) for at in range(0, 1001, 100)],
        settings={"eval_interval": 100, "max_iters": 1000},
    )
    return replace(run_log, trainer=GLASSGPT, ledger=ledger)


def test_a_ledger_says_what_evaluation_took() -> None:
    finding = require_finding(eval_spikes(analyse(ledger_run(train=60.0, eval=40.0))))
    assert finding.title == "Evaluation took 40% of the run"
    assert "11 evaluations took 40 s of 1m 40s" in finding.evidence
    # at 0, 400, 800 and, being the last, 1000: 7 of 11 saved
    assert "Raise eval_interval: 100 -> 400 saves 25% of the run" in finding.advice
    assert eval_spikes(analyse(ledger_run(train=90.0, eval=10.0))) is None
    assert eval_spikes(analyse(ledger_run())) is None


# --- silent-spike ---


def test_a_spike_like_the_first_iteration_may_be_an_evaluation_without_a_line() -> None:
    ms = [156011.05, *[1510.0] * 9, 125041.71, *[1535.0] * 11]
    run_log = make_run_log(make_steps(range(0, 211 + 1, 10), ms), [(0, 10.98, 10.99)])
    finding = require_finding(silent_spike(analyse(run_log)))
    assert "100: 125042 ms" in finding.evidence
    assert "21% of the run" in finding.evidence
    assert "looks like an evaluation" in finding.explanation
    assert "156011 ms" in finding.explanation
    assert "But iteration 200 took 1535 ms" in finding.explanation


def test_spikes_at_equal_distance_look_like_evaluations() -> None:
    times = even_run().steps.ms.copy()
    times[[50, 100, 150]] = 5000.0
    finding = require_finding(silent_spike(analyse(with_times(even_run(), times))))
    assert finding.severity == "advice"
    assert "every 500 iterations" in finding.explanation
    assert "less often" in finding.advice


def test_a_second_compilation_is_start_up() -> None:
    ms = [42_000.0, 10_763.0, *[150.0] * 100]
    assert silent_spike(analyse(make_run_log(make_steps(range(1, 103), ms)))) is None
    late = [42_000.0, *[150.0] * 20, 10_763.0, *[150.0] * 80]
    assert silent_spike(analyse(make_run_log(make_steps(range(1, 103), late)))) is not None


def test_irregular_spikes_are_stalls() -> None:
    times = even_run().steps.ms.copy()
    times[[50, 63, 171]] = 9000.0
    finding = require_finding(silent_spike(analyse(with_times(even_run(), times))))
    assert finding.severity == "warning"
    assert "stalled" in finding.explanation
    assert "27 s" in finding.advice


def test_a_spike_as_long_as_known_evaluations_is_one_more() -> None:
    run_log = spiky()
    ms = run_log.steps.ms.copy()
    ms[7] = 5900.0
    finding = require_finding(silent_spike(analyse(with_times(run_log, ms))))
    assert "as long as iterations that evaluate (5856 ms)" in finding.explanation


def test_spikes_with_lines_are_not_silent() -> None:
    assert silent_spike(analyse(spiky())) is None
    assert silent_spike(analyse(even_run())) is None


# --- startup-compile ---


def test_startup_is_what_the_first_iteration_holds_beyond_its_evaluation() -> None:
    finding = require_finding(startup_compile(analyse(spiky())))
    assert finding.severity == "info"
    assert finding.advice == ""
    assert finding.title == "Start-up took 6.7 s, 3.5% of the run"
    assert "6688 ms more than a steady one (168.5 ms) and its evaluation" in finding.evidence
    assert "if it is on" in finding.explanation
    assert "was off" in require_finding(startup_compile(analyse(spiky(compile=False)))).explanation


def compiled_run(compiles: bool) -> RunLog:
    """5001 iterations of 12.88 ms and 30 s before them: nanoGPT's README run on an H200, unevaluated."""
    ms = [30212.88, *[12.88] * 500]
    return make_run_log(make_steps(range(0, 5001, 10), ms), settings={"compile": compiles})


def test_a_large_startup_comes_with_its_break_even() -> None:
    finding = require_finding(startup_compile(analyse(replace(compiled_run(True), ended="finished"))))
    assert finding.severity == "advice"
    assert "32%" in finding.title
    assert "at least 6.04 ms faster; a steady one takes 12.9 ms" in finding.explanation  # 30.2 s / 5001
    assert "--compile=False saves up to 30 s" in finding.advice
    assert "In a run of 44,550 iterations" in finding.advice  # 30.2 s x 19 / 12.88 ms
    assert "--compile" not in require_finding(startup_compile(analyse(compiled_run(False)))).advice


def test_each_process_starts_up() -> None:
    ms = [30100.0, *[100.0] * 49, 20100.0, *[100.0] * 49]
    steps = make_steps([*range(50), *range(40, 90)], ms, segment=[0] * 50 + [1] * 50)
    segments = (Segment(has_startup=True), Segment(has_startup=True, resumed=True))
    finding = require_finding(
        startup_compile(analyse(make_run_log(steps, segments=segments, ended="finished")))
    )
    assert "All 2 processes in this log together: 50 s" in finding.evidence
    assert "1 of the start-ups are restarts" in finding.advice


def test_a_log_that_stops_is_not_the_run() -> None:
    """14 lines of a run of 21,400: its start-up is most of the log, and nothing of the run."""
    steps = make_steps(range(14), [23_000.0, *[500.0] * 13])
    finding = require_finding(startup_compile(analyse(make_run_log(steps, settings={"max_iters": 21_400}))))
    assert (finding.severity, finding.advice) == ("info", "")
    assert "0.2% of the run" in finding.title
    unplanned = require_finding(startup_compile(analyse(make_run_log(steps))))
    assert (unplanned.severity, unplanned.advice) == ("info", "")
    assert "of the time that this log shows" in unplanned.title


def test_only_known_flags_are_advised() -> None:
    steps = make_steps(range(1, 15), [23_000.0, *[500.0] * 13])
    for trainer in (MODDED, LLMC):
        finding = require_finding(
            startup_compile(analyse(make_run_log(steps, trainer=trainer, ended="finished")))
        )
        assert finding.severity == "advice"
        assert "--compile" not in finding.advice
    assert "torch.compile" not in finding.explanation


def test_a_ledger_says_what_startup_took() -> None:
    finding = require_finding(startup_compile(analyse(ledger_run(startup=5.0, compile=25.0, train=70.0))))
    assert "Start-up took 5.0 s and compiling 25 s, of 1m 40s" in finding.evidence
    assert "uncompiled iterations are less than 25.0 ms slower" in finding.advice  # 25 s over 1,000 updates
    assert "saves up to 25 s" in finding.advice
    assert startup_compile(analyse(ledger_run(startup=5.0, train=95.0))) is None


def test_a_small_startup_is_no_finding() -> None:
    assert startup_compile(analyse(even_run())) is None


# --- clock-before-sync ---


def timed(wall_s: float | None) -> RunLog:
    run_log = even_run(501, 10, 12.88, noise=0.0)  # 64.4 s
    return replace(run_log, setup=replace(run_log.setup, wall_s=wall_s))


def test_logged_times_are_samples() -> None:
    finding = require_finding(clock_before_sync(analyse(timed(None))))
    assert finding.severity == "info"
    assert finding.advice == ""
    assert "501 of 5,001 iterations are timed, one in 10" in finding.evidence


@pytest.mark.parametrize(
    ("wall_s", "severity", "evidence", "explanation"),
    [
        (80.5, "info", "a difference of 16 s (20%)", "before the first iteration"),
        (64.5, "info", "a difference of 74 ms", "both clocks agree"),
        (
            50.0,
            "warning",
            "a difference of 14 s (29%)",
            "no more than 9.67 ms each on average",
        ),  # 12.88 - 14.43 s / 4500
        (1.0, "warning", "a difference of 1m 03s", "faster than they suggest"),
    ],
)
def test_the_wall_clock_tells_what_the_samples_miss(
    wall_s: float, severity: str, evidence: str, explanation: str
) -> None:
    finding = require_finding(clock_before_sync(analyse(timed(wall_s))))
    assert finding.severity == severity
    assert evidence in finding.evidence
    assert explanation in finding.explanation


def test_clocks_that_wait_are_not_blamed() -> None:
    assert clock_before_sync(analyse(even_run(100, 1))) is None
    assert clock_before_sync(analyse(replace(even_run(), trainer=LITGPT))) is None
    assert (
        clock_before_sync(analyse(replace(even_run(), setup=LoggedSetup(settings={"device": "cpu"})))) is None
    )


# --- throughput-drift and jitter ---


def test_drift_is_reported_with_its_price() -> None:
    ms = np.linspace(220.0, 276.0, 480)
    finding = require_finding(
        throughput_drift(analyse(make_run_log(make_steps(range(0, 4800, 10), ms.tolist()))))
    )
    assert finding.severity == "advice"
    assert "became 19% slower" in finding.title
    assert "227.0 ms (iterations 10 to 1190)" in finding.evidence
    assert "8.5% less time" in finding.advice  # against the mean, 248.1 ms
    assert jitter(analyse(make_run_log(make_steps(range(480), ms.tolist())))) is None


def test_growing_faster_is_no_complaint() -> None:
    ms = np.linspace(276.0, 220.0, 480).tolist()
    finding = require_finding(throughput_drift(analyse(make_run_log(make_steps(range(480), ms)))))
    assert finding.severity == "info"
    assert "faster" in finding.title
    assert finding.advice == ""


def test_a_step_is_no_heat() -> None:
    """Another program that begins, or a batch that grows; modded-nanogpt's does by schedule."""
    run_log = make_run_log(make_steps(range(480), [200.0] * 240 + [260.0] * 240))
    finding = require_finding(throughput_drift(analyse(run_log)))
    assert "30% slower" in finding.title
    assert "sudden, near iteration 2" in finding.explanation
    assert "heat" not in finding.explanation
    assert throughput_drift(analyse(replace(run_log, trainer=MODDED))) is None


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.2])
def test_noise_is_no_drift(noise: float) -> None:
    assert throughput_drift(analyse(even_run(400, noise=noise))) is None


def test_jitter_is_reported_with_its_cost() -> None:
    ms = np.where(np.random.default_rng(1).random(400) < 0.2, 200.0, 100.0)
    run_log = make_run_log(make_steps(range(400), ms.tolist()))
    run_log = replace(run_log, setup=LoggedSetup(tokens_per_iteration=1000))
    finding = require_finding(jitter(analyse(run_log)))
    assert "one in twenty over 200.0 ms" in finding.evidence
    assert "10k in the fastest tenth" in finding.evidence
    lost = 1 - 100 / ms[1:].mean()
    assert f"{100 * lost:.0f}% less time" in finding.advice


def test_a_regular_pattern_is_no_jitter() -> None:
    """litgpt's iterations are micro-batches: every fourth also updates."""
    ms = [600.0 if at % 4 == 0 else 300.0 for at in range(1, 401)]
    assert jitter(analyse(replace(make_run_log(make_steps(range(1, 401), ms)), trainer=LITGPT))) is None


def test_a_regular_wait_is_no_work() -> None:
    """A loader that runs dry every seventh line: an update does not cost thirty micro-batches."""
    ms = [930.0 if at % 7 == 0 else 30.0 for at in range(1, 401)]
    finding = require_finding(jitter(analyse(make_run_log(make_steps(range(10, 4010, 10), ms)))))
    assert "930.0 ms" in finding.evidence
    assert "data loading" in finding.explanation


def test_a_first_iteration_of_no_time_at_all() -> None:
    """Of two processes the second one started slowly."""
    ms = [0.0, *[1.0] * 9, 2001.0, *[1.0] * 9]
    steps = make_steps([*range(10), *range(10)], ms, segment=[0] * 10 + [1] * 10)
    two = replace(make_run_log(steps), segments=(Segment(has_startup=True), Segment(has_startup=True)))
    assert "The first iteration took 0.00 ms" in require_finding(startup_compile(analyse(two))).evidence


def test_small_noise_is_no_jitter() -> None:
    assert jitter(analyse(even_run(400, noise=0.1))) is None


# --- all of them ---


@given(any_timed_run())
def test_nothing_makes_a_rule_fail(run_log: RunLog) -> None:
    analysis = analyse(run_log)
    for rule in TIME_RULES:
        finding = rule(analysis)
        if finding is not None:
            text = f"{finding.title} {finding.evidence} {finding.explanation} {finding.advice}"
            assert finding.title
            assert finding.evidence
            assert finding.explanation
            assert "nan" not in text.split()
            assert "{" not in text
