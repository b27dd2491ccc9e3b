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
from glassgpt.explain.rules.stalls import find_pause_interval, silent_spike
from glassgpt.explain.rules.step_time import jitter, throughput_drift
from glassgpt.explain.rules.wall_time import clock_before_sync, startup_compile
from glassgpt.i18n import say
from glassgpt.runs.run_log import LoggedCheckpoint, LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog
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
    values = finding.values
    assert finding.severity == "advice"
    assert finding.claims == {"cause of slow iterations": "evaluation", "steady ms": 168.5}
    assert (values["spike_ms"], values["steady_ms"]) == (5855.5, 168.5)
    assert values["ratio"] == pytest.approx(5855.5 / 168.5)
    assert values["evaluations"] == 3
    assert values["eval_s"] == pytest.approx(3 * 5.687)
    assert values["run_s"] == pytest.approx((12543 + 5985 + 5726 + 2 * 675 + 990 * 168.5) / 1000)
    assert values["eval_share"] == pytest.approx(0.0887, abs=5e-5)
    assert finding.text["explanation"][0].key == "eval-spikes.explanation.clock_includes_save"


def test_the_advice_is_to_raise_the_interval_and_lower_the_batches() -> None:
    run_log = spiky(eval_interval=500, eval_iters=200, max_iters=5000)
    finding = require_finding(eval_spikes(analyse(run_log)))
    values, (interval, batches) = finding.values, finding.text["advice"]
    assert interval.key == "eval-spikes.advice.raise_long_run"
    assert values["interval_setting"] == "eval_interval"
    assert (values["old_interval"], values["new_interval"]) == (500, 2000)
    assert values["interval_saving"] == pytest.approx(0.75 * 5687 / (500 * 168.5 + 5687))
    assert batches.key == "eval-spikes.advice.lower_batches"  # at most 3/4 of 8.9 %: the saves are in it
    assert values["batches_setting"] == "eval_iters"
    assert (values["old_batches"], values["new_batches"]) == (200, 50)
    assert values["batches_saving"] == pytest.approx(0.75 * 0.0887, abs=5e-5)


def test_the_interval_is_read_from_the_evaluations_where_no_setting_says_it() -> None:
    values = require_finding(eval_spikes(analyse(spiky()))).values
    assert (values["old_interval"], values["new_interval"]) == (500, 2000)


def test_an_excerpt_saves_what_a_long_run_would() -> None:
    """Lines 490 to 610, evaluations at 500 and 600: no multiple of 400 among them, yet some would stay."""
    at = range(490, 611, 10)
    ms = [868_000.0 if i % 100 == 0 else 8_176.0 for i in at]
    run_log = make_run_log(
        make_steps(at, ms), [(500, 2.0, 2.0), (600, 2.0, 2.0)], segments=(LoggedProcess(False, False, 490),)
    )
    finding = require_finding(eval_spikes(analyse(run_log)))
    assert finding.text["advice"][0].key == "eval-spikes.advice.raise_long_run"
    assert (finding.values["old_interval"], finding.values["new_interval"]) == (100, 400)
    eval_ms = 868_000 - 8_176
    assert finding.values["interval_saving"] == pytest.approx(0.75 * eval_ms / (100 * 8_176 + eval_ms))


def test_an_interval_is_not_read_from_a_gap() -> None:
    steps = make_steps([0, 10, 20, 5000], [30_000.0, 13.0, 13.0, 2_200.0])
    run_log = make_run_log(steps, [(0, 4.0, 4.0), (5000, 1.0, 1.5)], is_excerpt=True)
    assert "new_interval" not in require_finding(eval_spikes(analyse(run_log))).values


def test_build_nanogpt_evaluates_more_than_the_loss() -> None:
    ms = [20_000.0 if i % 250 == 0 else 340.0 for i in range(1001)]
    evals = [(i, None, 4.0) for i in range(0, 1001, 250)]
    trainer = BY_ID["build-nanogpt"]
    finding = require_finding(
        eval_spikes(analyse(make_run_log(make_steps(range(1001), ms), evals, trainer=trainer)))
    )
    assert finding.text["explanation"][0].key == "build-nanogpt.eval_time_cause"
    (advice,) = finding.text["advice"]
    assert advice.key == "build-nanogpt.rarer_eval_advice"
    assert (finding.values["old_interval"], finding.values["new_interval"]) == (250, 1000)
    assert finding.values["interval_saving"] == pytest.approx(0.75 * 19.66 / 104.66)


def test_fewer_eval_tokens_do_not_shorten_the_closing_evaluation() -> None:
    """Evaluations on the way take 1.1 s of 20 s: the rest is one pass over the whole split at the end."""
    closing = require_finding(eval_spikes(analyse(ledger_run(eval_ms=100.0, train=80.0, eval=20.0)))).values
    assert closing["eval_share"] == 0.2
    assert closing["eval_tokens_saving"] == pytest.approx(0.75 * 1.1 / 100)
    # None closes a run that evaluates the whole split each time; with fewer tokens, half a one would.
    whole = require_finding(
        eval_spikes(analyse(ledger_run(eval_ms=20_000 / 11, train=80.0, eval=20.0)))
    ).values
    assert whole["eval_tokens_saving"] == pytest.approx((0.75 * 20 - 20 / 11 / 2) / 100)


def test_a_wider_interval_that_saves_nothing_is_not_advised() -> None:
    run_log = replace(
        ledger_run(eval=50.0, train=50.0), evals=tuple(LoggedEvaluation(at, 0, 2.0) for at in (0, 1000))
    )
    settings = {"eval_interval": 250, "max_iters": 1000}
    run_log = replace(run_log, setup=LoggedSetup(settings=settings))
    assert "new_interval" not in require_finding(eval_spikes(analyse(run_log))).values


def test_a_run_known_to_end_soon_keeps_an_evaluation() -> None:
    finding = require_finding(eval_spikes(analyse(spiky(max_iters=1000))))
    assert finding.text["advice"][0].key == "eval-spikes.advice.raise_interval"
    assert (finding.values["old_interval"], finding.values["new_interval"]) == (500, 1000)
    assert finding.values["interval_saving"] == pytest.approx(0.0887 / 3, abs=5e-5)  # 1 of 3 evaluations
    sooner = require_finding(eval_spikes(analyse(spiky(eval_interval=500, max_iters=900))))
    assert "new_interval" not in sooner.values


def test_few_batches_are_not_made_fewer() -> None:
    finding = require_finding(eval_spikes(analyse(spiky(eval_iters=20))))
    assert [message.key for message in finding.text["advice"]] == ["eval-spikes.advice.raise_long_run"]


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
    values = require_finding(eval_spikes(analyse(run_log))).values
    assert (values["eval_ms"], values["save_ms"], values["saves"]) == (8043.5 - 100, 13804 - 8043.5, 4)


def test_saves_between_evaluations_are_not_the_price_of_an_evaluation() -> None:
    run_log = saving_sometimes([12103.0] * 8, [11173.0])
    saves = (*run_log.checkpoints, *(LoggedCheckpoint(at, 0) for at in (3, 5, 17, 33)))  # in no time
    values = require_finding(eval_spikes(analyse(replace(run_log, checkpoints=saves)))).values
    assert "save_ms" not in values
    assert values["eval_s"] == pytest.approx((8 * 12103 + 11173) / 1000, rel=0.02)


def test_a_save_that_drowns_in_the_scatter_is_not_priced() -> None:
    run_log = saving_sometimes([2337, 2206, 2483, 2491], [2239, 2139, 1816, 2368])  # as on a real H200
    assert "save_ms" not in require_finding(eval_spikes(analyse(run_log))).values


def test_evaluations_between_the_lines_are_counted() -> None:
    logged = make_run_log(
        make_steps(range(0, 1001, 100), [100.0] * 5 + [2100.0] + [100.0] * 5),
        [(at, 1.0, 1.0) for at in (250, 500, 750)],
    )
    values = require_finding(eval_spikes(analyse(logged))).values
    # 102.1 s logged, 2 s of them in the iteration that evaluates, and 4 s hidden. nanoGPT evaluates in its
    # first iteration too, but that one took no time here.
    assert (values["evaluations"], values["eval_s"]) == (4, pytest.approx(6.0))
    assert values["run_s"] == pytest.approx(106.1)
    assert values["eval_share"] == pytest.approx(6.0 / 106.1)


def test_one_evaluation_alone_says_nothing_about_a_run() -> None:
    run_log = make_run_log(make_steps([4980, 4990, 5000], [33.22, 33.23, 4446.83]), [(5000, 0.62, 1.70)])
    run_log = replace(run_log, segments=(LoggedProcess(has_startup=False, first_iteration=4980),))
    finding = require_finding(eval_spikes(analyse(run_log)))
    assert finding.severity == "info"
    assert finding.values["ratio"] == pytest.approx(4446.83 / 33.225)
    assert not {"eval_share", "interval_saving", "batches_saving"} & set(finding.values)


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


def ledger_run(eval_ms: float = 2000.0, **ledger: float) -> RunLog:
    """11 evaluations on the way."""
    run_log = make_run_log(
        make_steps(range(100, 1001, 100)), settings={"eval_interval": 100, "max_iters": 1000, "compile": "on"}
    )
    evals = tuple(LoggedEvaluation(at, 0, 2.0, 2.0, ms=eval_ms) for at in range(0, 1001, 100))
    return replace(run_log, trainer=GLASSGPT, ledger=ledger, evals=evals)


def test_a_ledger_says_what_evaluation_took() -> None:
    finding = require_finding(eval_spikes(analyse(ledger_run(train=60.0, eval=40.0))))
    values = finding.values
    assert finding.text["title"][0].key == "eval-spikes.title.share_of_run"
    assert values["eval_share"] == 0.4
    assert (values["evaluations"], values["eval_s"], values["run_s"]) == (11, 40.0, 100.0)
    assert finding.text["advice"][0].key == "eval-spikes.advice.raise_interval"
    assert values["interval_setting"] == "eval_interval"
    assert (values["old_interval"], values["new_interval"]) == (100, 400)
    # at 0, 400, 800 and, being the last, 1000: 7 of 11 saved; the closing evaluation stays
    assert values["interval_saving"] == pytest.approx(7 * 2.0 / 100)
    assert values["eval_tokens_saving"] == pytest.approx(0.75 * 11 * 2.0 / 100)
    assert eval_spikes(analyse(ledger_run(train=90.0, eval=10.0))) is None
    assert eval_spikes(analyse(ledger_run())) is None


# --- silent-spike ---


def test_what_a_spike_is_without_a_line_is_not_known() -> None:
    ms = [156011.05, *[1510.0] * 9, 125041.71, *[1535.0] * 11]
    run_log = make_run_log(make_steps(range(0, 211 + 1, 10), ms), [(0, 10.98, 10.99)])
    finding = require_finding(silent_spike(analyse(run_log)))
    assert finding.severity == "advice"
    assert finding.text["explanation"] == (say("silent-spike.explanation.stalled"),)
    assert (finding.at, finding.values["slowest"]) == (100, ["100: 2m 05s"])
    assert finding.values["lost_share"] == pytest.approx(0.21, abs=0.005)


def test_spikes_at_equal_distance_look_like_evaluations() -> None:
    times = even_run().steps.ms.copy()
    times[[50, 100, 150]] = 5000.0
    finding = require_finding(silent_spike(analyse(with_times(even_run(), times))))
    assert finding.severity == "advice"
    assert finding.text["explanation"] == (say("silent-spike.explanation.periodic", period=500),)
    assert finding.text["advice"][0].key == "silent-spike.advice.evaluate_less"


def test_a_second_compilation_is_start_up() -> None:
    ms = [42_000.0, 10_763.0, *[150.0] * 100]
    assert silent_spike(analyse(make_run_log(make_steps(range(1, 103), ms)))) is None
    late = [42_000.0, *[150.0] * 20, 10_763.0, *[150.0] * 80]
    assert silent_spike(analyse(make_run_log(make_steps(range(1, 103), late)))) is not None


def test_irregular_spikes_are_stalls() -> None:
    times = even_run().steps.ms.copy()
    times[[50, 63, 171]] = 9000.0
    finding = require_finding(silent_spike(analyse(with_times(even_run(), times))))
    assert finding.severity == "advice"
    assert finding.text["explanation"] == (say("silent-spike.explanation.stalled"),)
    assert finding.text["advice"][0].values["lost_s"] == pytest.approx(3 * (9.0 - 0.1), rel=0.01)


def test_stalls_at_no_regular_distance_are_not_called_the_programs_own_work() -> None:
    times = even_run().steps.ms.copy()
    times[[26, 54, 76, 107]] = [3970.0, 3930.0, 4014.0, 4126.0]
    finding = require_finding(silent_spike(analyse(with_times(even_run(), times))))
    assert [one.key for one in finding.text["explanation"]] == ["silent-spike.explanation.stalled"]


def test_a_spike_as_long_as_known_evaluations_is_one_more() -> None:
    run_log = spiky()
    ms = run_log.steps.ms.copy()
    ms[7] = 5900.0
    finding = require_finding(silent_spike(analyse(with_times(run_log, ms))))
    assert finding.values["eval_step_ms"] == pytest.approx((5985 + 5726) / 2)


def test_spikes_with_lines_are_not_silent() -> None:
    assert silent_spike(analyse(spiky())) is None
    assert silent_spike(analyse(even_run())) is None


def test_slow_iterations_at_a_regular_interval_are_the_trainers_own_work() -> None:
    """Of a trainer whose step times include nothing else: pauses, and no stalls."""
    ms = np.full(1200, 100.0)
    ms[[201, 401, 601, 801, 1001]] = 4100.0
    analysis = analyse(make_run_log(make_steps(range(1200), ms.tolist()), trainer=BY_ID["megatron"]))
    finding = require_finding(silent_spike(analysis))
    assert finding.text["title"][0].key == "silent-spike.title.periodic"
    assert (finding.values["period"], finding.values["spikes"]) == (200, 5)
    assert finding.values["lost_s"] == pytest.approx(5 * 4.0)
    assert analysis.facts.stall_share == 0
    assert analysis.facts.pause_share == pytest.approx(20 / 140)
    ms[[450, 777]] = 4100.0
    irregular = analyse(make_run_log(make_steps(range(1200), ms.tolist()), trainer=BY_ID["megatron"]))
    assert require_finding(silent_spike(irregular)).text["title"][0].key == "silent-spike.title"
    assert irregular.facts.stall_share == pytest.approx(28 / 148)


def test_a_stall_of_a_moment_is_none() -> None:
    """0.9 s, and 10 s of 2,000 s."""
    short, long = np.full(300, 30.0), np.full(2000, 1000.0)
    short[150], long[700] = 930.0, 11_000.0
    for ms in (short, long):
        assert silent_spike(analyse(make_run_log(make_steps(range(len(ms)), ms.tolist())))) is None


def test_a_hump_is_no_drift() -> None:
    """Slower in the middle, and at its end not far from its start."""
    wave = np.random.default_rng(0).normal(0, 15, 800)
    hump = 500 + 150 * np.sin(np.linspace(0.3, np.pi, 800)) + wave
    assert throughput_drift(analyse(make_run_log(make_steps(range(800), hump.tolist())))) is None


# --- startup-compile ---


def test_startup_is_what_the_first_iteration_holds_beyond_its_evaluation() -> None:
    finding = require_finding(startup_compile(analyse(spiky())))
    assert finding.severity == "info"
    assert finding.advice == ""
    assert finding.text["title"][0].key == "startup-compile.title.whole_run"
    assert finding.text["evidence"][0].key == "startup-compile.evidence.first_with_eval"
    assert finding.values["steady_ms"] == finding.claims["steady ms"] == 168.5
    assert finding.values["extra_ms"] == pytest.approx(12543 - (5985 + 5726) / 2)
    assert finding.values["startup_s"] == pytest.approx(6.6875)
    assert finding.values["startup_share"] == pytest.approx(0.035, abs=5e-4)
    assert say("startup-compile.explanation.compile_unknown") in finding.text["explanation"]
    eager = require_finding(startup_compile(analyse(spiky(compile=False))))
    assert eager.text["explanation"] == (say("startup-compile.explanation.compile_off"),)


def compiled_run(compiles: bool) -> RunLog:
    """5001 iterations of 12.88 ms and 30 s before them: nanoGPT's README run on an H200, unevaluated."""
    ms = [30212.88, *[12.88] * 500]
    trainer = replace(NANOGPT, evaluates_before_first_step=False)
    steps = make_steps(range(0, 5001, 10), ms)
    return make_run_log(steps, settings={"compile": compiles}, trainer=trainer)


def test_a_large_startup_comes_with_its_break_even() -> None:
    finding = require_finding(startup_compile(analyse(replace(compiled_run(True), ended="finished"))))
    assert finding.severity == "advice"
    assert finding.values["startup_share"] == pytest.approx(30.2 / (30.2 + 5001 * 0.01288))
    compile_off = finding.text["advice"][0].values
    assert compile_off["break_even_ms"] == pytest.approx(30_200 / 5001)
    assert compile_off["flag"] == "--compile=False"
    assert compile_off["max_saving_s"] == pytest.approx(30.2)
    eager = require_finding(startup_compile(analyse(replace(compiled_run(False), ended="finished"))))
    assert (eager.severity, eager.advice) == ("info", "")


def test_each_process_starts_up() -> None:
    ms = [30100.0, *[100.0] * 49, 20100.0, *[100.0] * 49]
    steps = make_steps([*range(50), *range(40, 90)], ms, segment=[0] * 50 + [1] * 50)
    segments = (LoggedProcess(has_startup=True), LoggedProcess(has_startup=True, resumed=True))
    trainer = replace(NANOGPT, evaluates_before_first_step=False)
    run_log = make_run_log(steps, segments=segments, ended="finished", trainer=trainer)
    finding = require_finding(startup_compile(analyse(run_log)))
    assert finding.values["processes"] == 2
    assert finding.values["startup_s"] == pytest.approx(50)


def test_a_log_that_stops_is_not_the_run() -> None:
    """14 lines of a run of 21,400: its start-up is most of the log, and nothing of the run."""
    steps = make_steps(range(14), [23_000.0, *[500.0] * 13])
    trainer = replace(NANOGPT, evaluates_before_first_step=False)
    finding = require_finding(startup_compile(analyse(make_run_log(steps, trainer=trainer))))
    assert (finding.severity, finding.advice) == ("info", "")
    assert finding.text["title"][0].key == "startup-compile.title.partial_log"
    assert finding.values["startup_share"] == pytest.approx(22.5 / (23 + 13 * 0.5))


def test_a_first_iteration_that_may_evaluate_is_not_all_start_up() -> None:
    """nanoGPT's does; without another evaluation nothing says how long that took."""
    run_log = replace(compiled_run(True), trainer=NANOGPT, ended="finished")
    finding = require_finding(startup_compile(analyse(run_log)))
    assert finding.text["title"][0].key == "startup-compile.title.with_eval"
    assert "max_saving_s" not in finding.values
    assert analyse(run_log).seconds_by_phase == pytest.approx(
        {"startup_and_eval": 30.2, "train": 5001 * 0.01288}
    )


def test_only_known_flags_are_advised() -> None:
    steps = make_steps(range(1, 15), [23_000.0, *[500.0] * 13])
    for trainer in (MODDED, LLMC):
        finding = require_finding(
            startup_compile(analyse(make_run_log(steps, trainer=trainer, ended="finished")))
        )
        assert (finding.severity, finding.advice) == ("info", "")
    assert finding.text["explanation"] == (say("startup-compile.explanation.without_torch"),)


def test_a_ledger_says_what_startup_took() -> None:
    finding = require_finding(startup_compile(analyse(ledger_run(startup=5.0, compile=25.0, train=70.0))))
    assert finding.text["evidence"][0].values == {"setup_s": 5.0, "compile_s": 25.0, "run_s": 100.0}
    assert finding.values["startup_share"] == pytest.approx(0.3)
    assert finding.values["break_even_ms"] == 25.0  # 25 s over 1,000 updates
    assert finding.values["max_saving_s"] == 25.0
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
    assert (finding.values["logged_iterations"], finding.values["iterations"]) == (501, 5001)
    assert finding.values["steady_ms"] == 12.88


@pytest.mark.parametrize(
    ("wall_s", "severity", "explanation", "max_unlogged_ms"),
    [
        (80.5, "info", "no_waiting", 16.45),  # 12.88 ms + 16.07 s / 4500
        (64.5, "info", "clocks_agree", None),
        (50.0, "warning", "includes_waiting", 9.67),  # 12.88 ms - 14.43 s / 4500
        (1.0, "warning", "several_iterations", None),
    ],
)
def test_the_wall_clock_tells_what_the_samples_miss(
    wall_s: float, severity: str, explanation: str, max_unlogged_ms: float | None
) -> None:
    finding = require_finding(clock_before_sync(analyse(timed(wall_s))))
    assert finding.severity == severity
    difference_s = abs(wall_s - (0.02576 + 5000 * 0.01288))
    assert finding.values["difference_s"] == pytest.approx(difference_s)
    assert finding.values["difference_share"] == pytest.approx(difference_s / wall_s)
    assert finding.text["explanation"][-1].key == f"clock-before-sync.explanation.{explanation}"
    assert finding.values.get("max_unlogged_ms") == pytest.approx(max_unlogged_ms, abs=0.005)


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
    assert finding.text["title"][0].key == "throughput-drift.title.slower"
    assert finding.values["first_quarter_ms"] == pytest.approx(ms[60])
    assert finding.values["last_quarter_ms"] == pytest.approx(ms[420])
    assert (finding.values["first_quarter_from"], finding.values["first_quarter_to"]) == (10, 1190)
    assert finding.values["change"] == pytest.approx(ms[420] / ms[60] - 1)  # 19 %
    assert finding.values["saving"] == pytest.approx(1 - ms[60] / ms[1:].mean())  # 8.5 %
    assert jitter(analyse(make_run_log(make_steps(range(480), ms.tolist())))) is None


def test_growing_faster_is_no_complaint() -> None:
    ms = np.linspace(276.0, 220.0, 480).tolist()
    assert throughput_drift(analyse(make_run_log(make_steps(range(480), ms)))) is None


def test_a_step_is_no_heat() -> None:
    """Another program that begins, or a batch that grows; modded-nanogpt's does by schedule."""
    run_log = make_run_log(make_steps(range(480), [200.0] * 240 + [260.0] * 240))
    finding = require_finding(throughput_drift(analyse(run_log)))
    assert finding.at == 240
    assert (finding.values["slow_ms"], finding.values["fast_ms"]) == (260.0, 200.0)
    assert finding.values["lost_s"] == pytest.approx(240 * 0.06)
    assert finding.values["saving"] == pytest.approx(240 * 0.06 / (240 * 0.2 + 240 * 0.26))
    assert analyse(run_log).regimes[1].separation == 1.0
    assert throughput_drift(analyse(replace(run_log, trainer=MODDED))) is None


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.2])
def test_noise_is_no_drift(noise: float) -> None:
    assert throughput_drift(analyse(even_run(400, noise=noise))) is None


def test_jitter_is_reported_without_a_cause() -> None:
    ms = np.where(np.random.default_rng(1).random(400) < 0.2, 200.0, 100.0)
    run_log = make_run_log(make_steps(range(400), ms.tolist()))
    finding = require_finding(jitter(analyse(run_log)))
    assert (finding.severity, finding.advice) == ("info", "")
    assert (finding.values["median_ms"], finding.values["p95_ms"]) == (100.0, 200.0)


def test_a_regular_pattern_is_no_jitter() -> None:
    """litgpt's iterations are micro-batches: every fourth also updates."""
    ms = [600.0 if at % 4 == 0 else 300.0 for at in range(1, 401)]
    assert jitter(analyse(replace(make_run_log(make_steps(range(1, 401), ms)), trainer=LITGPT))) is None


def test_a_regular_wait_is_no_work() -> None:
    """A loader that runs dry every seventh line: an update does not cost thirty micro-batches."""
    ms = [930.0 if at % 7 == 0 else 30.0 for at in range(1, 401)]
    finding = require_finding(jitter(analyse(make_run_log(make_steps(range(10, 4010, 10), ms)))))
    epochs = replace(NANOGPT, iterations_are_epochs=True)
    run_log = make_run_log(make_steps(range(10, 4010, 10), ms))
    assert jitter(analyse(replace(run_log, trainer=epochs))) is None, "epochs hold all lengths"
    assert finding.values["p95_ms"] == 930.0


def test_pauses_at_equal_distances_are_found_between_the_lines() -> None:
    """Every 500 iterations, of which every 32nd has a line; a few other lines are slow, too."""
    at, random = np.arange(31, 30_000, 32), np.random.default_rng(0)
    is_slow = at // 500 > (at - 32) // 500
    for others in ([], [77, 501]):
        is_slow[others] = True
        pauses = find_pause_interval(at, is_slow)
        assert pauses is not None
        assert pauses.period == 500
        assert not np.isin(others, pauses.rows).any()
    for count in (2, 60, 400):
        by_chance = np.isin(np.arange(len(at)), random.choice(len(at), count, replace=False))
        assert find_pause_interval(at, by_chance) is None
    ms = np.where(is_slow, 900.0, 500.0) + random.normal(0, 5, len(at))
    finding = require_finding(jitter(analyse(make_run_log(make_steps(at.tolist(), ms.tolist())))))
    assert finding.values["period"] == 500


def test_a_few_stalls_among_regular_pauses_are_told_apart() -> None:
    ms = np.random.default_rng(0).normal(150.0, 3.0, 3000)
    ms[100::100] += 8000.0
    ms[[777, 1501, 2222]] = 30_000.0
    finding = require_finding(silent_spike(analyse(make_run_log(make_steps(range(3000), ms.tolist())))))
    assert finding.text["title"][0].key == "silent-spike.title.periodic"
    assert finding.text["title"][0].values["spikes"] == 29
    assert finding.text["title"][0].values["period"] == 100
    assert finding.values["lost_s"] == pytest.approx(29 * 8, rel=0.01)
    assert finding.text["evidence"][1].values["spikes"] == 3


def test_a_first_iteration_of_no_time_at_all() -> None:
    """Of two processes the second one started slowly."""
    ms = [0.0, *[1.0] * 9, 2001.0, *[1.0] * 9]
    steps = make_steps([*range(10), *range(10)], ms, segment=[0] * 10 + [1] * 10)
    two = replace(
        make_run_log(steps), segments=(LoggedProcess(has_startup=True), LoggedProcess(has_startup=True))
    )
    assert require_finding(startup_compile(analyse(two))).values["first_ms"] == 0.0


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


# --- throughput by tokens per second, and batches of unequal length ---


def speed_run(tokens_per_s: list[float]) -> RunLog:
    count = len(tokens_per_s)
    steps = make_steps(range(1, 50 * count, 50), float("nan"), [3.0] * count, tokens_per_s=tokens_per_s)
    return make_run_log(steps, trainer=BY_ID["unknown"])


def test_throughput_that_varies_without_a_trend() -> None:
    rng = np.random.default_rng(1)
    for count in (10, 30, 280):
        steady = rng.normal(500, 75, count).tolist()
        assert throughput_drift(analyse(speed_run(steady))) is None
    assert throughput_drift(analyse(speed_run(np.linspace(500, 450, 100).tolist()))) is None
    assert throughput_drift(analyse(speed_run(np.linspace(500, 350, 11).tolist()))) is None  # too few lines
    assert throughput_drift(analyse(speed_run(np.linspace(300, 500, 100).tolist()))) is None  # it warms up


def test_batches_of_unequal_length_are_no_stalls() -> None:
    """Times spread widely, and long batches have a lower loss, as where padding is counted."""
    rng = np.random.default_rng(2)
    log_ms = rng.normal(8.7, 0.6, 200)
    log_ms[100] = 8.7 + np.log(7.3)
    losses = (7.0 - 1.0 * (log_ms - 8.7) + rng.normal(0, 0.2, 200)).tolist()
    run_log = make_run_log(make_steps(range(200), np.exp(log_ms).tolist(), losses))
    assert silent_spike(analyse(run_log)) is None
    one = require_finding(jitter(analyse(run_log)))
    assert (one.severity, one.text["title"]) == ("info", (say("jitter.title"),))
    tight = np.exp(8.7 + 0.02 * (log_ms - 8.7))
    tight[100] *= 7.3
    stalled = make_run_log(make_steps(range(200), tight.tolist(), losses))
    assert require_finding(silent_spike(analyse(stalled))).at == 100
