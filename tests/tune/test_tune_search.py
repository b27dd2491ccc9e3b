"""What `glass tune` tries and what it chooses, on machines that are made up: no clock, no noise but ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tune_machines import GIB, SMALL, Machine, card, cpu, saturating

from glassgpt.errors import UserError
from glassgpt.tune import candidates
from glassgpt.tune.ranking import Outcome, choose, outcome_of
from glassgpt.tune.results import Evidence
from glassgpt.tune.setting import Setting
from glassgpt.tune.trial import Trial


def sizes_tried(machine: Machine) -> list[int]:
    return [setting.micro_batch for setting in machine.asked]


def verdicts(evidence: Evidence) -> dict[str, str]:
    """By what is special about each setting."""
    ground = evidence.ground
    found = {}
    for row in outcome_of(evidence).rows:
        changed = list(row.setting.differences(ground.automatic_at(row.setting.micro_batch)))
        values = [f"{name}={getattr(row.setting, name)}" for name in changed]
        found[" ".join([str(row.setting.micro_batch), *values])] = row.verdict
    return found


# --- the ladder ---


def test_steps_are_about_twofold_and_powers_of_two_first() -> None:
    sizes = candidates_of(480)
    assert [candidates.step_up(sizes, n) for n in (1, 12, 32, 60, 240, 480)] == [2, 32, 60, 120, 480, None]
    assert [candidates.step_down(sizes, n) for n in (480, 60, 12, 2, 1)] == [240, 32, 8, 1, None]
    assert candidates.step_up((1, 7), 1) == 7
    assert candidates.between(sizes, 16, 32) == 24
    assert candidates.between(sizes, 1, 2) is None


def candidates_of(sequences: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, sequences + 1) if sequences % n == 0)


def test_it_climbs_until_more_gains_nothing() -> None:
    machine = Machine(card(), saturating(half=2.0), peak=lambda setting: setting.micro_batch * GIB // 4)
    evidence = machine.searched()
    assert sizes_tried(machine)[:4] == [12, 32, 60, 120]
    assert choose(evidence).micro_batch in (60, 120)
    assert evidence.is_as_fast(choose(evidence), evidence.best())


def test_smaller_ones_are_tried_too() -> None:
    machine = Machine(cpu(), lambda setting: 1e4 / setting.micro_batch**0.3)
    evidence = machine.searched(SMALL)
    assert choose(evidence).micro_batch == 1


def test_where_memory_is_short_one_in_between_is_tried() -> None:
    ground = card(free_bytes=12 * GIB, automatic_batch=8)
    machine = Machine(
        ground,
        saturating(half=20.0),
        peak=lambda setting: setting.micro_batch * GIB if setting.micro_batch <= 12 else None,
    )
    evidence = machine.searched()
    assert choose(evidence).micro_batch == 10  # 12 takes all that was free
    found = verdicts(evidence)
    assert "not tried" in found["16"] or found["16"] == "out of memory"


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
    speed = saturating(half, cudnn=cudnn, efficient=efficient, plain=plain, graph=graph)
    machine = Machine(
        card(automatic_batch=start),
        speed,
        peak=lambda setting: int(0.4 * setting.micro_batch * GIB) if setting.micro_batch <= 240 else None,
        noise=noise,
    )
    chosen = choose(machine.searched())
    assert machine.now <= 90
    best = machine.everything(("attention", "kernels", "graph"))
    # What is within the noise cannot be told apart; ties go to the simpler setting.
    assert speed(chosen) > (0.97 - 2 * noise) * best


# --- the budget ---


@pytest.mark.parametrize("budget_s", [4.0, 10.0, 20.0, 40.0, 60.0, 200.0])
def test_the_budget_is_kept(budget_s: float) -> None:
    machine = Machine(card(), saturating(), noise=0.01)
    evidence = machine.searched(budget_s=budget_s)
    assert machine.now <= budget_s
    assert machine.asked[0] == machine.ground.automatic
    assert any(setting.compile for setting in machine.asked) == (budget_s == 200)
    assert ("not tried: no time left" in verdicts(evidence).values()) == (budget_s < 200)


def test_what_compiles_comes_last() -> None:
    machine = Machine(cpu(), lambda setting: 1.5e4 if setting.compile else 1e4, trial_s=2.0)
    evidence = machine.searched(replace(SMALL, max_iters=10**6))
    first = machine.asked.index(choose(evidence))
    assert {setting.micro_batch for setting in machine.asked[:first]} > {12}
    # In turns with what it has to beat, as far as time allows.
    assert [setting.compile for setting in machine.asked[first:]] == [True, False, True]


@pytest.mark.parametrize(("kept_s", "chosen"), [(4.0, True), (25.0, False)])
def test_what_is_compiled_is_kept_for_the_run(kept_s: float, chosen: bool) -> None:
    """2,000 updates of 77 ms: 18% faster saves 23 s, less than compiling takes, more than fetching it."""
    machine = Machine(
        cpu(), lambda setting: 1.18e4 if setting.compile else 1e4, trial_s=2.0, compile_s=25.0, kept_s=kept_s
    )
    assert choose(machine.searched(SMALL)).compile == chosen


def test_what_is_no_quicker_compiled_is_not_compiled_twice() -> None:
    machine = Machine(cpu(), lambda setting: 1e4, trial_s=2.0)
    machine.searched(replace(SMALL, max_iters=10**6))
    assert [setting.compile for setting in machine.asked].count(True) == 1


def test_a_budget_too_short_for_one_trial() -> None:
    with pytest.raises(
        UserError, match="--budget=2s is too short to compare anything here: try --budget=90s"
    ):
        Machine(card(), saturating()).searched(budget_s=2.0)


def test_a_slow_machine_begins_with_less() -> None:
    """GPT-2 at 150 tokens/s: the automatic 12 sequences would take five minutes for one trial."""
    sizes = tuple(Setting(micro_batch=n) for n in candidates_of(480))
    ground = cpu(sequences=480, block_size=1024, n_layer=12, flops_per_token=854_800_000, peak=100e9,
                 automatics=sizes, automatic_batch=12, parameters=124_000_000, vocab_size=50304)  # fmt: skip
    machine = Machine(ground, lambda setting: 150.0 + setting.micro_batch, trial_s=2.0, updates_done=3)
    evidence = machine.searched(budget_s=300)
    assert machine.asked[0].micro_batch < 12
    assert machine.now <= 300
    assert len(evidence.found) >= 2
    assert verdicts(evidence)["12"] == "not tried: no time left"
    with pytest.raises(UserError, match="too short"):
        Machine(ground, lambda setting: 1.0, updates_done=3).searched(budget_s=30)
    with pytest.raises(
        UserError, match="--budget=60s is too short to compare anything here: try --budget=240s"
    ):
        Machine(ground, lambda setting: 150.0, trial_s=2.0, updates_done=3).searched(budget_s=60)


def test_a_trial_that_time_cut_off_says_nothing_against_its_setting() -> None:
    """Twice as slow at the end, so that the second round of the winners is not finished."""
    machine = Machine(cpu(), lambda setting: 1e4, trial_s=2.0, noise=0.05)
    usual = machine.measure

    def measure(setting: Setting, limit_s: float) -> Any:
        if len(machine.asked) > 6:
            machine.trial_s = 60.0
        return usual(setting, limit_s)

    machine.measure = measure  # type: ignore[method-assign]
    evidence = machine.searched(SMALL, budget_s=40.0)
    assert machine.now <= 40
    assert evidence.speed(choose(evidence)) > 0


# --- what fails ---


def test_the_automatic_choice_runs_out_of_memory() -> None:
    machine = Machine(
        card(free_bytes=24 * GIB, automatic_batch=60),
        saturating(),
        peak=lambda setting: int(0.8 * setting.micro_batch * GIB) if setting.micro_batch < 30 else None,
    )
    evidence = machine.searched()
    assert 16 <= choose(evidence).micro_batch <= 24
    found = verdicts(evidence)
    assert found["60"].startswith(("out of memory", "not tried: it would take about"))


def test_nothing_fits() -> None:
    ground = card(free_bytes=4 * GIB)
    machine = Machine(ground, saturating(), peak=lambda setting: None)
    with pytest.raises(UserError, match="not even a micro-batch of 1 fits"):
        machine.searched()
    assert machine.asked[-1].checkpointing


def test_no_headroom_is_not_chosen() -> None:
    ground = card(free_bytes=100 * GIB)
    machine = Machine(
        ground, saturating(half=30.0), peak=lambda setting: setting.micro_batch * 95 * GIB // 60
    )
    evidence = machine.searched()
    assert choose(evidence).micro_batch < 60
    assert verdicts(evidence)["60"] == "no headroom: 100 GiB were free"


def test_it_recomputes_only_where_memory_is_in_the_way() -> None:
    roomy = Machine(card(), saturating(half=30.0))
    roomy.searched()
    assert not any(setting.checkpointing for setting in roomy.asked)

    def peak(setting: Setting) -> int | None:
        need = setting.micro_batch * (1 if setting.checkpointing else 8)
        return need * GIB if need <= 100 else None

    tight = Machine(card(free_bytes=100 * GIB), saturating(half=300.0, checkpointing=0.9), peak=peak)
    evidence = tight.searched()
    assert any(setting.checkpointing for setting in tight.asked)
    assert choose(evidence).checkpointing


def test_one_that_crashes_or_hangs_does_not_stop_the_others() -> None:
    ends = {"flash": "crashed", "efficient": "hung"}
    machine = Machine(card(), saturating(), ends=lambda setting: ends.get(setting.attention, "ran"))
    evidence = machine.searched(budget_s=150)
    found = verdicts(evidence)
    assert found["480 attention=flash"] == "crashed: that is why"
    assert found["480 attention=efficient"].startswith("no end after")
    assert choose(evidence).attention == "cudnn"


def test_the_automatic_choice_crashes() -> None:
    machine = Machine(card(), saturating(), ends=lambda setting: "crashed" if setting.kernels else "ran")
    assert not choose(machine.searched()).kernels


def test_nothing_runs() -> None:
    machine = Machine(card(), saturating(), ends=lambda setting: "crashed")
    with pytest.raises(UserError, match="no trial succeeded: crashed: that is why"):
        machine.searched()


# --- noise ---


def test_a_tie_goes_to_the_automatic_choice() -> None:
    machine = Machine(card(), lambda setting: 500e3, noise=0.003)
    assert choose(machine.searched()) == machine.ground.automatic


def test_of_those_that_are_as_fast_the_one_with_less_memory() -> None:
    flat = saturating(half=6.0)

    def speed(setting: Setting) -> float:
        return flat(replace(setting, micro_batch=min(60, setting.micro_batch)))

    machine = Machine(card(), speed, peak=lambda setting: setting.micro_batch * GIB // 4, noise=0.002)
    assert choose(machine.searched()).micro_batch == 60


def test_luck_is_found_out_by_measuring_again() -> None:
    """The first trial of flash is 3 % too fast: a moment when nobody else used the machine."""
    machine = Machine(card(automatic_batch=60), saturating(half=0.001))
    usual = machine.measure

    def measure(setting: Setting, limit_s: float) -> Any:
        lucky = setting.attention == "flash" and setting not in machine.asked
        trial = usual(setting, limit_s)
        return replace(trial, update_s=tuple(0.97 * one for one in trial.update_s)) if lucky else trial

    machine.measure = measure  # type: ignore[method-assign]
    assert choose(machine.searched()) == machine.ground.automatic


def test_a_machine_that_gets_slower_meanwhile() -> None:
    """What is tried late is not slower for it: the winners meet again, in turns."""
    machine = Machine(cpu(), lambda setting: 1.06e4 if setting.threads == 1 else 1e4, trial_s=2.0,
                      drift=lambda now: 1.0 if now < 8 else 1.05)  # fmt: skip
    evidence = machine.searched(SMALL)
    assert len(evidence.found[machine.ground.automatic]) > 1


# --- compiling ---


@pytest.mark.parametrize(("updates", "chosen"), [(2000, False), (200_000, True)])
def test_compiling_has_to_pay_within_the_run(updates: int, chosen: bool) -> None:
    speed = 1e4
    machine = Machine(cpu(updates=updates), lambda setting: 1.15 * speed if setting.compile else speed)
    evidence = machine.searched(SMALL, budget_s=150)
    assert choose(evidence).compile == chosen
    if not chosen:
        assert verdicts(evidence)["12 compile=True"] == (
            "15% faster, but 2,000 updates do not save its 25 s of compiling"
        )


def test_an_automatic_choice_that_compiles() -> None:
    """Trials that compile come last all the same; what had no time is not chosen."""
    automatics = tuple(replace(one, compile=True) for one in cpu().automatics)
    ground = cpu(updates=10**6, automatics=automatics)
    machine = Machine(ground, lambda setting: 1.15e4 if setting.compile else 1e4, trial_s=2.0)
    evidence = machine.searched(SMALL)
    first = machine.asked.index(ground.automatic)
    assert not any(one.compile for one in machine.asked[:first])
    assert first > 2
    assert choose(evidence) == ground.automatic
    short = Machine(ground, lambda setting: 1e4, trial_s=2.0)
    evidence = short.searched(SMALL, budget_s=15.0)
    assert not choose(evidence).compile
    assert verdicts(evidence)["12"] == "not tried: no time left"
    assert outcome_of(evidence).sentence.startswith("Micro-batch 12, not compiled, is the fastest of the")


def test_compiled_code_that_is_no_faster_has_its_compiling_to_answer_for() -> None:
    machine = Machine(cpu(), lambda setting: 1e4, trial_s=2.0)
    evidence = machine.searched(SMALL)
    # 2,000 updates of 76.8 ms are 153.6 s, and 24.9 s are lost by compiling for 25 s.
    assert verdicts(evidence)["12 compile=True"] == "14% slower over the run, compiling included"


def test_a_run_of_seconds_is_not_compiled_at_all() -> None:
    """500 updates of 77 ms are 38 s: not even half of them would pay for 22 s."""
    machine = Machine(cpu(updates=500), lambda setting: 1e4)
    evidence = machine.searched(SMALL, budget_s=150)
    assert not any(one.compile for one in machine.asked)
    said = "not tried: the run is too short to save what it takes"
    assert verdicts(evidence)["12 compile=True"] == said


# --- what is said stays ---


def test_what_the_user_has_said_is_not_tried_otherwise() -> None:
    machine = Machine(card(), saturating())
    machine.searched(fixed=("batch_size", "attention", "kernels", "compile"))
    assert {(one.micro_batch, one.attention, one.kernels, one.compile) for one in machine.asked} == {
        (12, "cudnn", True, False)
    }
    machine = Machine(cpu(), lambda setting: 1e4)
    machine.searched(SMALL, fixed=("gradient_accumulation_steps", "threads"))
    assert {(one.micro_batch, one.threads) for one in machine.asked} == {(12, None)}


# --- threads ---


def test_threads_beyond_a_containers_share_are_given_up_first() -> None:
    ground = cpu(threads=64, usable_cores=2.0)
    machine = Machine(ground, lambda setting: 1e4 if (setting.threads or 64) <= 2 else 500.0)
    evidence = machine.searched(SMALL)
    assert machine.asked[1].threads == 2
    assert choose(evidence).threads == 2
    assert all(setting.threads for setting in machine.asked[1:])


def test_which_numbers_of_threads() -> None:
    assert candidates.thread_counts(2.0, 2) == [1]
    assert candidates.thread_counts(16.0, 16) == [8, 4, 2, 1]
    assert candidates.thread_counts(1.5, 64) == [2, 1]
    assert candidates.thread_counts(16.0, 8) == [16, 4, 2, 1]
    assert candidates.thread_counts(1.0, 1) == []


# --- words ---


def told(machine: Machine, **options: Any) -> Outcome:
    return outcome_of(machine.searched(**options))


def test_the_sentence_says_what_the_neighbours_lose() -> None:
    speeds = {4: 300e3, 12: 442e3, 32: 505e3, 60: 508e3}
    machine = Machine(
        card(),
        lambda setting: speeds[setting.micro_batch] * (0.9 if setting.attention != "cudnn" else 1.0),
        peak=lambda setting: setting.micro_batch * GIB // 2,
    )
    outcome = told(machine)
    assert outcome.chosen.setting.micro_batch == 32
    assert outcome.sentence == (
        "Micro-batch 32 is 14% faster than the automatic 12: 60 gains nothing and takes 14.0 GiB more, "
        "attention flash is 10% slower."
    )


def test_the_sentence_counts_times_where_percents_are_hard_to_read() -> None:
    outcome = told(Machine(cpu(), lambda setting: 1e3 * (75 if setting.threads == 1 else 1)), config=SMALL)
    assert "1 thread, is 75 times as fast as the automatic choice" in outcome.sentence


def test_the_sentence_where_the_automatic_choice_wins() -> None:
    machine = Machine(cpu(), lambda setting: 1e3 * setting.micro_batch * (setting.threads or 2))
    outcome = told(machine, config=SMALL)
    assert outcome.sentence == (
        "The automatic choice is the best of the 5 that ran: 4 loses 67%, and 12 is the whole update, "
        "1 thread is 50% slower."
    )


def test_the_sentence_where_nothing_was_compared() -> None:
    found = told(Machine(cpu(), lambda setting: 1e3), config=SMALL, budget_s=4)
    assert sum(row.figures is not None for row in found.rows) == 1
    assert found.sentence == "Only the automatic choice ran, so there is nothing to compare it with."


def test_figures_of_a_row() -> None:
    """Independent of the code: 491,520 tokens in 0.8 s are 614,400 a second."""
    machine = Machine(card(), lambda setting: 614_400.0)
    row = told(machine).chosen
    assert row.figures is not None
    assert row.figures.update_s == pytest.approx(0.8)
    assert row.tokens_per_s == pytest.approx(614_400)
    assert row.mfu == pytest.approx(100 * 614_400 * 854.8e6 / 989e12)
    assert row.micro_steps == 40


def test_a_machine_that_drifts_slows_both_down() -> None:
    """A card that gets warm: every round is slower than the last, and the ratio of the two stays."""
    evidence = Evidence(card())
    small, large = (evidence.ground.automatic_at(size) for size in (60, 120))
    for drift in (1.0, 1.03, 1.06, 1.09):
        evidence.add(small, Trial(outcome="ran", update_s=(drift * 1.03,) * 3, micro_steps=4))
        evidence.add(large, Trial(outcome="ran", update_s=(drift,) * 3, micro_steps=4))
    apart = [evidence.figures(one) for one in (small, large)]
    assert all(figures is not None and figures.error > 0.02 for figures in apart)
    assert evidence.noise(small, large) < 1e-6
    assert not evidence.is_as_fast(small, large)
    assert choose(evidence) == large
