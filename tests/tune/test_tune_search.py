"""What `glass tune` tries and what it chooses, on machines that are made up: no clock, no noise but ours."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tune_machines import GIB, SMALL, FakeMachine, cpu_machine, gpu_machine, saturating_speed

from glassgpt.errors import UserError
from glassgpt.tune import speed_settings as candidates
from glassgpt.tune.ranking import SettingResult, TuneResult, choose_setting, summarize_trials
from glassgpt.tune.results import Trial, TrialResults
from glassgpt.tune.speed_settings import SpeedSettings

NO_TIME = "not tried: no time left"


def sizes_tried(machine: FakeMachine) -> list[int]:
    return [setting.micro_batch for setting in machine.measured_settings]


def rows(results: TrialResults) -> dict[str, SettingResult]:
    """By what is special about each setting."""
    context = results.context
    found = {}
    for row in summarize_trials(results).rows:
        changed = list(row.setting.differences(context.automatic_setting_at(row.setting.micro_batch)))
        values = [f"{name}={getattr(row.setting, name)}" for name in changed]
        found[" ".join([str(row.setting.micro_batch), *values])] = row
    return found


# --- the ladder ---


def test_steps_are_about_twofold_and_powers_of_two_first() -> None:
    sizes = candidates_of(480)
    assert [candidates.next_larger_size(sizes, n) for n in (1, 12, 32, 60, 240, 480)] == [
        2,
        32,
        60,
        120,
        480,
        None,
    ]
    assert [candidates.next_smaller_size(sizes, n) for n in (480, 60, 12, 2, 1)] == [240, 32, 8, 1, None]
    assert candidates.next_larger_size((1, 7), 1) == 7
    assert candidates.size_between(sizes, 16, 32) == 24
    assert candidates.size_between(sizes, 1, 2) is None


def candidates_of(sequences: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, sequences + 1) if sequences % n == 0)


def test_it_climbs_until_more_gains_nothing() -> None:
    machine = FakeMachine(
        gpu_machine(), saturating_speed(half=2.0), peak=lambda setting: setting.micro_batch * GIB // 4
    )
    results = machine.run_search()
    assert sizes_tried(machine)[:4] == [12, 32, 60, 120]
    assert choose_setting(results).micro_batch in (60, 120)
    assert results.is_as_fast(choose_setting(results), results.best_setting())


def test_smaller_ones_are_tried_too() -> None:
    machine = FakeMachine(cpu_machine(), lambda setting: 1e4 / setting.micro_batch**0.3)
    results = machine.run_search(SMALL)
    assert choose_setting(results).micro_batch == 1


def test_where_memory_is_short_one_in_between_is_tried() -> None:
    context = gpu_machine(free_bytes=12 * GIB, automatic_batch=8)
    machine = FakeMachine(
        context,
        saturating_speed(half=20.0),
        peak=lambda setting: setting.micro_batch * GIB if setting.micro_batch <= 12 else None,
    )
    results = machine.run_search()
    assert choose_setting(results).micro_batch == 10  # 12 takes all that was free
    assert rows(results)["16"].outcome in ("not tried", "out of memory")


# --- within 3 % of everything ---


@settings(max_examples=80, deadline=None)
@given(
    half=st.floats(0.5, 60.0),
    cudnn=st.floats(0.8, 1.2),
    efficient=st.floats(0.6, 1.1),
    plain=st.floats(0.6, 1.1),
    graph=st.floats(0.9, 1.5),
    noise=st.sampled_from([0.0, 0.005, 0.02]),
    start=st.sampled_from([1, 8, 12, 60, 240]),
)
def test_the_choice_is_within_3_percent_of_an_exhaustive_sweep(
    half: float, cudnn: float, efficient: float, plain: float, graph: float, noise: float, start: int
) -> None:
    speed = saturating_speed(half, cudnn=cudnn, efficient=efficient, plain=plain, graph=graph)
    machine = FakeMachine(
        gpu_machine(automatic_batch=start),
        speed,
        peak=lambda setting: int(0.4 * setting.micro_batch * GIB) if setting.micro_batch <= 240 else None,
        noise=noise,
    )
    chosen = choose_setting(machine.run_search())
    assert machine.now <= 90
    best = machine.best_speed_of_all(("attention", "kernels", "graph"))
    # What is within the noise cannot be told apart; ties go to the simpler setting.
    assert speed(chosen) > (0.97 - 2 * noise) * best


# --- the budget ---


def test_the_budget_is_kept() -> None:
    for budget_s in (4.0, 10.0, 20.0, 40.0, 60.0, 200.0):
        machine = FakeMachine(gpu_machine(), saturating_speed(), noise=0.01)
        results = machine.run_search(budget_s=budget_s)
        assert machine.now <= budget_s
        assert machine.measured_settings[0] == machine.context.automatic_setting
        assert any(setting.compile for setting in machine.measured_settings) == (budget_s == 200)
        assert (NO_TIME in [row.verdict for row in rows(results).values()]) == (budget_s < 200)


def test_compiled_settings_are_tried_last() -> None:
    machine = FakeMachine(cpu_machine(), lambda setting: 1.5e4 if setting.compile else 1e4, trial_s=2.0)
    results = machine.run_search(replace(SMALL, max_iters=10**6))
    first = machine.measured_settings.index(choose_setting(results))
    assert {setting.micro_batch for setting in machine.measured_settings[:first]} > {12}
    # In turns with what it has to beat, as far as time allows.
    assert [setting.compile for setting in machine.measured_settings[first:]] == [True, False, True]


@pytest.mark.parametrize(("kept_s", "chosen"), [(4.0, True), (25.0, False)])
def test_compiled_code_is_cached_for_the_run(kept_s: float, chosen: bool) -> None:
    """2,000 updates of 77 ms: 18% faster saves 23 s, less than compiling takes, more than fetching it."""
    machine = FakeMachine(
        cpu_machine(),
        lambda setting: 1.18e4 if setting.compile else 1e4,
        trial_s=2.0,
        compile_s=25.0,
        kept_s=kept_s,
    )
    assert choose_setting(machine.run_search(SMALL)).compile == chosen


def test_compiled_code_that_is_no_faster_is_not_remeasured() -> None:
    machine = FakeMachine(cpu_machine(), lambda setting: 1e4, trial_s=2.0)
    machine.run_search(replace(SMALL, max_iters=10**6))
    assert [setting.compile for setting in machine.measured_settings].count(True) == 1


def test_a_budget_too_short_for_one_trial() -> None:
    with pytest.raises(
        UserError, match="--budget=2s is too short to compare anything here: try --budget=90s"
    ):
        FakeMachine(gpu_machine(), saturating_speed()).run_search(budget_s=2.0)


def test_a_slow_machine_begins_with_less() -> None:
    """GPT-2 at 150 tokens/s: the automatic 12 sequences would take five minutes for one trial."""
    sizes = tuple(SpeedSettings(micro_batch=n) for n in candidates_of(480))
    context = cpu_machine(sequences=480, block_size=1024, n_layer=12, flops_per_token=854_800_000, peak=100e9,
                 automatic_settings=sizes, automatic_batch=12, parameters=124_000_000,
                 vocab_size=50304)  # fmt: skip
    machine = FakeMachine(context, lambda setting: 150.0 + setting.micro_batch, trial_s=2.0, updates_done=3)
    results = machine.run_search(budget_s=300)
    assert machine.measured_settings[0].micro_batch < 12
    assert machine.now <= 300
    assert len(results.trials) >= 2
    assert rows(results)["12"].verdict == NO_TIME
    with pytest.raises(UserError, match="too short"):
        FakeMachine(context, lambda setting: 1.0, updates_done=3).run_search(budget_s=30)
    with pytest.raises(
        UserError, match="--budget=60s is too short to compare anything here: try --budget=240s"
    ):
        FakeMachine(context, lambda setting: 150.0, trial_s=2.0, updates_done=3).run_search(budget_s=60)


def test_a_trial_cut_off_by_the_budget_does_not_rule_out_its_setting() -> None:
    """Twice as slow at the end, so that the second round of the winners is not finished."""
    machine = FakeMachine(cpu_machine(), lambda setting: 1e4, trial_s=2.0, noise=0.05)
    usual = machine.measure

    def measure(setting: SpeedSettings, limit_s: float) -> Any:
        if len(machine.measured_settings) > 6:
            machine.trial_s = 60.0
        return usual(setting, limit_s)

    machine.measure = measure  # type: ignore[method-assign]
    results = machine.run_search(SMALL, budget_s=40.0)
    assert machine.now <= 40
    assert results.tokens_per_s(choose_setting(results)) > 0


# --- what fails ---


def test_the_automatic_choice_runs_out_of_memory() -> None:
    machine = FakeMachine(
        gpu_machine(free_bytes=24 * GIB, automatic_batch=60),
        saturating_speed(),
        peak=lambda setting: int(0.8 * setting.micro_batch * GIB) if setting.micro_batch < 30 else None,
    )
    results = machine.run_search()
    assert 16 <= choose_setting(results).micro_batch <= 24
    assert rows(results)["60"].outcome in ("out of memory", "not tried")
    assert rows(results)["60"].verdict != NO_TIME


def test_nothing_fits() -> None:
    context = gpu_machine(free_bytes=4 * GIB)
    machine = FakeMachine(context, saturating_speed(), peak=lambda setting: None)
    with pytest.raises(UserError, match="not even a micro-batch of 1 fits"):
        machine.run_search()
    assert machine.measured_settings[-1].checkpointing


def test_no_headroom_is_not_chosen() -> None:
    context = gpu_machine(free_bytes=100 * GIB)
    machine = FakeMachine(
        context, saturating_speed(half=30.0), peak=lambda setting: setting.micro_batch * 95 * GIB // 60
    )
    results = machine.run_search()
    assert choose_setting(results).micro_batch < 60
    assert (rows(results)["60"].outcome, rows(results)["60"].is_chosen) == ("ran", False)
    assert "100 GiB" in rows(results)["60"].verdict


def test_activation_checkpointing_is_tried_only_if_memory_is_short() -> None:
    roomy = FakeMachine(gpu_machine(), saturating_speed(half=30.0))
    roomy.run_search()
    assert not any(setting.checkpointing for setting in roomy.measured_settings)

    def peak(setting: SpeedSettings) -> int | None:
        need = setting.micro_batch * (1 if setting.checkpointing else 8)
        return need * GIB if need <= 100 else None

    tight = FakeMachine(
        gpu_machine(free_bytes=100 * GIB), saturating_speed(half=300.0, checkpointing=0.9), peak=peak
    )
    results = tight.run_search()
    assert any(setting.checkpointing for setting in tight.measured_settings)
    assert choose_setting(results).checkpointing


def test_one_that_crashes_or_hangs_does_not_stop_the_others() -> None:
    ends = {"flash": "crashed", "efficient": "hung"}
    machine = FakeMachine(
        gpu_machine(), saturating_speed(), ends=lambda setting: ends.get(setting.attention, "ran")
    )
    results = machine.run_search(budget_s=150)
    found = rows(results)
    assert found["480 attention=flash"].outcome == "crashed"
    assert found["480 attention=flash"].verdict.endswith("that is why")
    assert found["480 attention=efficient"].outcome == "hung"
    assert choose_setting(results).attention == "cudnn"


def test_the_automatic_choice_crashes() -> None:
    machine = FakeMachine(
        gpu_machine(), saturating_speed(), ends=lambda setting: "crashed" if setting.kernels else "ran"
    )
    assert not choose_setting(machine.run_search()).kernels


def test_nothing_runs() -> None:
    machine = FakeMachine(gpu_machine(), saturating_speed(), ends=lambda setting: "crashed")
    with pytest.raises(UserError, match="no trial succeeded: crashed: that is why"):
        machine.run_search()


# --- noise ---


def test_a_tie_goes_to_the_automatic_choice() -> None:
    machine = FakeMachine(gpu_machine(), lambda setting: 500e3, noise=0.003)
    assert choose_setting(machine.run_search()) == machine.context.automatic_setting


def test_of_those_that_are_as_fast_the_one_with_less_memory() -> None:
    flat = saturating_speed(half=6.0)

    def speed(setting: SpeedSettings) -> float:
        return flat(replace(setting, micro_batch=min(60, setting.micro_batch)))

    machine = FakeMachine(
        gpu_machine(), speed, peak=lambda setting: setting.micro_batch * GIB // 4, noise=0.002
    )
    assert choose_setting(machine.run_search()).micro_batch == 60


def test_remeasuring_corrects_a_lucky_trial() -> None:
    """The first trial of flash is 3 % too fast: a moment when nobody else used the machine."""
    machine = FakeMachine(gpu_machine(automatic_batch=60), saturating_speed(half=0.001))
    usual = machine.measure

    def measure(setting: SpeedSettings, limit_s: float) -> Any:
        lucky = setting.attention == "flash" and setting not in machine.measured_settings
        trial = usual(setting, limit_s)
        return replace(trial, update_s=tuple(0.97 * one for one in trial.update_s)) if lucky else trial

    machine.measure = measure  # type: ignore[method-assign]
    assert choose_setting(machine.run_search()) == machine.context.automatic_setting


def test_a_machine_that_gets_slower_meanwhile() -> None:
    """What is tried late is not slower for it: the winners meet again, in turns."""
    machine = FakeMachine(cpu_machine(), lambda setting: 1.06e4 if setting.threads == 1 else 1e4, trial_s=2.0,
                      drift=lambda now: 1.0 if now < 8 else 1.05)  # fmt: skip
    results = machine.run_search(SMALL)
    assert len(results.trials[machine.context.automatic_setting]) > 1


# --- compiling ---


def test_compiling_has_to_pay_within_the_run() -> None:
    def search(updates: int) -> TrialResults:
        machine = FakeMachine(
            cpu_machine(updates=updates), lambda setting: 1.15e4 if setting.compile else 1e4
        )
        return machine.run_search(SMALL, budget_s=150)

    assert choose_setting(search(200_000)).compile
    short = search(2000)
    assert not choose_setting(short).compile
    verdict = rows(short)["12 compile=True"].verdict
    assert re.findall(r"\d[\d,]*(?:%| s|)", verdict) == ["15%", "2,000", "25 s"]


def test_an_automatic_choice_that_compiles() -> None:
    """Trials that compile come last all the same; what had no time is not chosen."""
    automatic_settings = tuple(replace(one, compile=True) for one in cpu_machine().automatic_settings)
    context = cpu_machine(updates=10**6, automatic_settings=automatic_settings)
    machine = FakeMachine(context, lambda setting: 1.15e4 if setting.compile else 1e4, trial_s=2.0)
    results = machine.run_search(SMALL)
    first = machine.measured_settings.index(context.automatic_setting)
    assert not any(one.compile for one in machine.measured_settings[:first])
    assert first > 2
    assert choose_setting(results) == context.automatic_setting
    short = FakeMachine(context, lambda setting: 1e4, trial_s=2.0)
    results = short.run_search(SMALL, budget_s=15.0)
    assert not choose_setting(results).compile
    assert rows(results)["12"].verdict == NO_TIME
    assert summarize_trials(results).summary.startswith("Micro-batch 12, not compiled, ")


def test_compile_time_counts_against_compiled_code() -> None:
    machine = FakeMachine(cpu_machine(), lambda setting: 1e4, trial_s=2.0)
    results = machine.run_search(SMALL)
    # 2,000 updates of 76.8 ms are 153.6 s, and 24.9 s are lost by compiling for 25 s.
    assert rows(results)["12 compile=True"].verdict.startswith("14% slower ")


def test_a_short_run_is_not_compiled() -> None:
    """500 updates of 77 ms are 38 s: not even half of them would pay for 22 s."""
    machine = FakeMachine(cpu_machine(updates=500), lambda setting: 1e4)
    results = machine.run_search(SMALL, budget_s=150)
    assert not any(one.compile for one in machine.measured_settings)
    skipped = rows(results)["12 compile=True"]
    assert (skipped.outcome, "too short" in skipped.verdict) == ("not tried", True)


# --- settings given by the user ---


def test_settings_given_by_the_user_are_not_changed() -> None:
    machine = FakeMachine(gpu_machine(), saturating_speed())
    machine.run_search(fixed=("batch_size", "attention", "kernels", "compile"))
    assert {
        (one.micro_batch, one.attention, one.kernels, one.compile) for one in machine.measured_settings
    } == {(12, "cudnn", True, False)}
    machine = FakeMachine(cpu_machine(), lambda setting: 1e4)
    machine.run_search(SMALL, fixed=("gradient_accumulation_steps", "threads"))
    assert {(one.micro_batch, one.threads) for one in machine.measured_settings} == {(12, None)}


# --- threads ---


def test_oversubscribed_threads_are_reduced_first() -> None:
    context = cpu_machine(threads=64, usable_cores=2.0)
    machine = FakeMachine(context, lambda setting: 1e4 if (setting.threads or 64) <= 2 else 500.0)
    results = machine.run_search(SMALL)
    assert machine.measured_settings[1].threads == 2
    assert choose_setting(results).threads == 2
    assert all(setting.threads for setting in machine.measured_settings[1:])


def test_which_numbers_of_threads() -> None:
    assert candidates.thread_counts(2.0, 2) == [1]
    assert candidates.thread_counts(16.0, 16) == [8, 4, 2, 1]
    assert candidates.thread_counts(1.5, 64) == [2, 1]
    assert candidates.thread_counts(16.0, 8) == [16, 4, 2, 1]
    assert candidates.thread_counts(1.0, 1) == []


# --- words ---


def tune_result(machine: FakeMachine, **options: Any) -> TuneResult:
    return summarize_trials(machine.run_search(**options))


def test_the_sentence_and_the_verdicts() -> None:
    speeds = {4: 300e3, 12: 442e3, 32: 505e3, 60: 508e3}
    machine = FakeMachine(
        gpu_machine(),
        lambda setting: speeds[setting.micro_batch] * (0.9 if setting.attention != "cudnn" else 1.0),
        peak=lambda setting: setting.micro_batch * GIB // 2,
    )
    outcome = tune_result(machine)
    assert outcome.chosen.setting.micro_batch == 32
    assert outcome.summary == "Micro-batch 32 is 14% faster than the automatic 12."
    verdicts = {one.setting: one.verdict for one in outcome.rows}
    chosen = outcome.chosen.setting
    assert verdicts[replace(chosen, micro_batch=60)] == "as fast, takes 14.0 GiB more"
    assert verdicts[replace(chosen, attention="flash")] == "10% slower"


def test_the_sentence_counts_times_where_percents_are_hard_to_read() -> None:
    outcome = tune_result(
        FakeMachine(cpu_machine(), lambda setting: 1e3 * (75 if setting.threads == 1 else 1)), config=SMALL
    )
    assert "1 thread, is 75 times as fast" in outcome.summary


def test_the_sentence_where_the_automatic_choice_wins() -> None:
    machine = FakeMachine(cpu_machine(), lambda setting: 1e3 * setting.micro_batch * (setting.threads or 2))
    outcome = tune_result(machine, config=SMALL)
    assert outcome.chosen.is_automatic
    assert sum(row.stats is not None for row in outcome.rows) == 5
    assert outcome.summary == "The automatic choice is the best of the 5 that ran."


def test_the_sentence_where_nothing_was_compared() -> None:
    found = tune_result(FakeMachine(cpu_machine(), lambda setting: 1e3), config=SMALL, budget_s=4)
    assert sum(row.stats is not None for row in found.rows) == 1
    assert found.chosen.is_automatic
    assert not re.search(r"\d", found.summary)


def test_figures_of_a_row() -> None:
    """Independent of the code: 491,520 tokens in 0.8 s are 614,400 a second."""
    machine = FakeMachine(gpu_machine(), lambda setting: 614_400.0)
    row = tune_result(machine).chosen
    assert row.stats is not None
    assert row.stats.update_s == pytest.approx(0.8)
    assert row.tokens_per_s == pytest.approx(614_400)
    assert row.mfu == pytest.approx(100 * 614_400 * 854.8e6 / 989e12)
    assert row.micro_steps == 40


def test_a_machine_that_drifts_slows_both_down() -> None:
    """A card that gets warm: every round is slower than the last, and the ratio of the two stays."""
    results = TrialResults(gpu_machine())
    small, large = (results.context.automatic_setting_at(size) for size in (60, 120))
    for drift in (1.0, 1.03, 1.06, 1.09):
        results.add(small, Trial(outcome="ran", update_s=(drift * 1.03,) * 3, micro_steps=4))
        results.add(large, Trial(outcome="ran", update_s=(drift,) * 3, micro_steps=4))
    apart = [results.stats(one) for one in (small, large)]
    assert all(stats is not None and stats.error > 0.02 for stats in apart)
    assert results.comparison_error(small, large) < 1e-6
    assert not results.is_as_fast(small, large)
    assert choose_setting(results) == large
