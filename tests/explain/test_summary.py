"""A run in a few sentences."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from learning_logs import any_run_log
from run_logs import make_run_log, make_steps
from written_findings import written_finding

from glassgpt.explain.explanation import explain, explain_runs
from glassgpt.explain.summary import compose_verdict
from glassgpt.format import format_loss
from glassgpt.i18n import translate
from glassgpt.record.finding import Finding, Severity
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.facts import Facts
from glassgpt.runs.metric_columns import metric_of
from glassgpt.runs.metric_series import MetricSeries
from glassgpt.runs.past_best import chance_of_best
from glassgpt.runs.run_log import ExitStatus, LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog
from glassgpt.runs.split_runs import split_runs
from glassgpt.runs.table_files import read_tables

NOTHING = translate("verdict.nothing_wrong")


def run(end: float = 2.0) -> RunLog:
    losses = np.linspace(3.0, end, 100).tolist()
    return make_run_log(
        make_steps(range(0, 1000, 10), 100.0, losses), [(0, 4.0, 4.1), (500, 2.1, 2.25), (900, 1.9, 2.4)]
    )


def facts(**changes: object) -> Facts:
    return replace(Analysis(run()).facts, **changes)  # type: ignore[arg-type]


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


def finding(severity: Severity, title: str = "It is bad") -> Finding:
    return written_finding("bad", severity, title, "5 of 10", "because", "")


def verdict(*findings: Finding, **changes: object) -> list[str]:
    return compose_verdict(run(), facts(**changes), findings)


def test_how_far_it_came() -> None:
    keys: dict[ExitStatus | None, str] = {
        "finished": "verdict.finished",
        "interrupted": "verdict.interrupted",
        "crashed": "verdict.crashed",
        "oom": "verdict.out_of_memory",
        "cut": "verdict.log_stops",
        None: "verdict.running",
    }
    said = {ended: verdict(ended=ended)[0] for ended in keys}
    assert said == {ended: translate(key, trainer="nanoGPT", at="990") for ended, key in keys.items()}
    assert all("nanoGPT" in sentence and "990" in sentence for sentence in said.values())
    assert len(set(said.values())) == len(keys)


def test_how_good_it_is() -> None:
    assert translate("verdict.best_loss_at", best="2.2500", step=500, final=2.4) in verdict()
    assert numbers(verdict()[1]) == ["2.2500", "500", "2.4000"]
    assert numbers(verdict(best_val_loss=2.4, best_val_step=900)[1]) == ["2.4000"]
    assert numbers(verdict(best_val_step=None)[1]) == ["2.2500", "2.4000"]
    assert translate("verdict.best_bits_per_byte", best="2.2500") in verdict(val_metric="bits_per_byte")
    without = {"best_val_loss": None, "best_val_step": None, "final_val_loss": None, "steady_ms": None}
    ends = {"first": 4.1, "last": 2.1, "lines": 10}
    told = verdict(**without, loss_first=4.2, loss_last=2.0, loss_ends=ends)
    assert translate("verdict.training_loss", first="4.1000", last="2.1000", lines=10) in told
    told = verdict(**without, loss_first=4.2, loss_last=math.inf, loss_ends=ends)
    assert translate("verdict.training_loss_finite", first="4.1000", last="2.1000", lines=10) in told
    for first, last in ((4.2, math.nan), (None, None)):  # nothing to say about the loss
        assert verdict(**without, loss_first=first, loss_last=last) == [told[0], *told[2:]]


def test_a_best_evaluation_that_may_be_chance() -> None:
    smooth = 3.0 + (np.arange(20) - 12.0) ** 2 / 200
    around = np.array([3.15, 3.05, 3.12, 3.02, 3.1, 3.12, 3.04, 3.14, 3.06])
    assert chance_of_best(smooth) is None
    assert chance_of_best(np.insert(around[:5], 0, 4.6)) is None  # from a first one that is far above
    chance = chance_of_best(np.insert(around, 5, 3.0))
    assert chance is not None
    assert (chance.below, chance.std, chance.count) == pytest.approx((0.1, np.std(around, ddof=1), 9))


def test_a_training_loss_that_ends_higher() -> None:
    without = {"best_val_loss": None, "best_val_step": None, "final_val_loss": None}
    higher = translate("verdict.training_loss_not_fallen")
    for last, is_said in ((1.4, True), (1.1, False)):
        ends = {"first": 1.2, "last": last, "lines": 10}
        values = facts(**without, ended="finished", loss_first=1.9, loss_last=last, loss_ends=ends)
        told = compose_verdict(run(4.0 if is_said else 2.0), values, ())
        assert (higher in told) == is_said
        assert (translate("verdict.nothing_wrong_unevaluated") in told) != is_said
    assert higher not in verdict(loss_ends={"first": 1.2, "last": 1.4, "lines": 10})


def test_a_single_evaluation_is_not_called_the_best() -> None:
    steps = make_steps(range(0, 1000, 10), 100.0, [2.0] * 100)
    tail = (LoggedProcess(has_startup=False, first_iteration=0),)
    falling, rising = [(500, 2.0, 2.2), (900, 1.9, 2.1)], [(500, 2.0, 2.1), (900, 1.9, 2.2)]
    for evals, segments, sentence in (
        ([(0, 4.0, 4.1)], None, translate("verdict.evaluated_before_training", loss=4.1)),
        ([(0, 4.0, 4.1), rising[1]], None, translate("verdict.only_val_loss_at", loss=2.2, step=900)),
        (rising[1:], tail, translate("verdict.only_val_loss_here", loss=2.2, step=900)),
        (falling, tail, translate("verdict.last_loss_is_lowest_here", best="2.1000")),
        (rising, tail, translate("verdict.lowest_loss_here", best="2.1000", step=500, final=2.2)),
        (falling, None, translate("verdict.last_loss_is_best", best="2.1000")),
    ):
        run_log = make_run_log(steps, evals)
        run_log = replace(run_log, segments=segments or run_log.segments)
        assert sentence in compose_verdict(run_log, Analysis(run_log).facts, [])


def test_too_few_lines_do_not_show_that_nothing_is_wrong() -> None:
    for count, found in ((19, False), (20, True)):
        evals = [(0, 2.0, 2.0), (count - 1, 2.0, 2.0)]
        run_log = make_run_log(make_steps(range(count), 100.0, [2.0] * count), evals, ended="finished")
        said = compose_verdict(run_log, Analysis(run_log).facts, [])
        assert (NOTHING in said) == found
    excerpt = replace(run_log, is_excerpt=True)
    assert NOTHING not in compose_verdict(excerpt, Analysis(excerpt).facts, [])


def test_how_fast_it_was() -> None:
    phases = {"startup": 4.0, "train": 80.6, "pauses": 15.4}
    assert numbers(verdict(steady_ms=168.3, seconds_by_phase=phases)[2]) == ["168.3", "19"]
    assert translate("verdict.step_time", ms=168.3) in verdict(steady_ms=168.3)
    assert numbers(verdict(steady_ms=168.3)[2]) == ["168.3"]
    stalled = {"train": 10.0, "pauses": 8.0, "stall": 82.0}
    said = verdict(steady_ms=168.3, seconds_by_phase=stalled)
    assert (numbers(said[2]), numbers(said[3])) == (["168.3", "8.0"], ["82"])
    assert len(verdict(steady_ms=None)) == len(verdict()) - 1


def test_the_most_important() -> None:
    sentences = verdict(finding("problem", "The loss is NaN"), finding("warning", "It overfits"))
    assert sentences[-1] == translate("verdict.most_important", title="The loss is NaN")
    assert not any("overfits" in sentence or sentence == NOTHING for sentence in sentences)


def test_a_healthy_run_has_one_sentence_about_it() -> None:
    assert verdict(ended="finished")[-1] == NOTHING
    assert verdict(finding("info"), ended="finished")[-1] == NOTHING
    assert NOTHING not in verdict(finding("advice"), ended="finished")


def test_what_did_not_end_well_is_not_praised() -> None:
    bad: tuple[ExitStatus, ...] = ("crashed", "oom", "cut", "interrupted")
    assert [ended for ended in bad if NOTHING in verdict(ended=ended)] == []


def test_a_run_without_an_iteration() -> None:
    empty = make_run_log(make_steps([]), settings={"max_iters": 100})
    for run_log in (empty, replace(empty, live=True)):
        key = "verdict.no_iteration_yet" if run_log.live else "verdict.no_iteration"
        assert explain(run_log).verdict == [translate(key, trainer="nanoGPT")]


def test_a_single_line_went_nowhere() -> None:
    told = explain(make_run_log(make_steps([11], loss=[4.0948]))).verdict
    assert translate("verdict.only_training_loss", last="4.0948") in told


def test_losses_of_any_size_stay_short() -> None:
    told = explain(make_run_log(make_steps([0, 10], loss=[1e30, 2.5]))).verdict
    assert translate("verdict.training_loss_of_lines", first="1e+30", last="2.5000") in told


def test_the_loss_is_told_by_means_of_lines() -> None:
    """One odd line at either end is no course, and a flat loss with them has no trend."""
    losses = [9.0, *[3.0] * 98, 1.0]
    ends = explain(make_run_log(make_steps(range(100), loss=losses))).facts.loss_ends
    assert ends == {"first": pytest.approx(3.6), "last": pytest.approx(2.8), "lines": 10}
    told = explain(make_run_log(make_steps(range(100), loss=losses))).verdict
    assert translate("verdict.training_loss_level", first="3.6000", last="2.8000", lines=10) in told
    # A slow fall of noisy lines, of which ten at each end show nothing.
    noisy = 1.2 - 2e-4 * np.arange(1000) + np.random.default_rng(0).normal(0, 0.4, 1000)
    slow = explain(make_run_log(make_steps(range(1000), loss=noisy.tolist()), ended="finished"))
    assert slow.facts.loss_ends is not None
    assert slow.facts.loss_ends["lines"] == 100
    values = {"first": f"{noisy[:100].mean():.4f}", "last": f"{noisy[-100:].mean():.4f}", "lines": 100}
    assert translate("verdict.training_loss", **values) in slow.verdict


def test_a_step_time_that_wanders_is_called_that() -> None:
    at = np.arange(960)
    noise = np.random.default_rng(0).normal(1, 0.02, len(at))
    wandering = 100 * (1 + 0.3 * np.sin(2 * np.pi * at / 320)) * noise
    facts = explain(make_run_log(make_steps(at.tolist(), wandering.tolist()))).facts
    assert len(facts.regimes) == 1
    assert facts.wander_ms == pytest.approx([71.4, 128.5], rel=0.03)
    for even in (100 * noise, 100 * np.exp(np.random.default_rng(1).normal(0, 0.3, len(at)))):
        assert explain(make_run_log(make_steps(at.tolist(), even.tolist()))).facts.wander_ms is None


def test_lines_without_numbers() -> None:
    told = explain(replace(run(), has_iteration_numbers=False)).verdict
    assert translate("verdict.no_iteration_numbers", trainer="nanoGPT", lines=100) in told


@settings(max_examples=40, deadline=None)
@given(any_run_log())
def test_any_history_has_sentences(run_log: RunLog) -> None:
    sentences = compose_verdict(run_log, Analysis(run_log).facts, [])
    assert sentences
    assert all(sentence.endswith(".") and "None" not in sentence for sentence in sentences)


def test_several_runs_in_one_log_are_counted() -> None:
    steps = make_steps([0, 10, 20, 0, 10], segment=[0, 0, 0, 1, 1])
    restarted = (
        LoggedProcess(has_startup=True, first_iteration=0),
        LoggedProcess(has_startup=True, first_iteration=0),
    )
    runs = split_runs(make_run_log(steps, segments=restarted))
    assert explain_runs(runs).verdict[0] == translate("verdict.several_runs", runs=2, lines="")
    assert explain_runs(runs).facts.last_iteration == 20
    resumed = (restarted[0], LoggedProcess(has_startup=True, resumed=True, first_iteration=0))
    assert len(split_runs(make_run_log(steps, segments=resumed))) == 1


def test_a_table_of_results_names_the_best_and_no_longest_run() -> None:
    def intro(*rows: str) -> list[str]:
        runs, _ = read_tables(iter(["run_name,step,loss,val_loss\n", *rows]), "x.csv")
        return numbers(explain_runs(runs).verdict[0])

    rows = ["a,9,1.5,2.25\n", "b,9,1.25,1.75\n", "c,9,1,2\n"]
    values = {"runs": 3, "name": "c", "best": "b", "loss": 1.75}
    assert intro(*rows) == numbers(translate("verdict.results_with_best", **values))
    assert intro(*(row.rpartition(",")[0] + ",\n" for row in rows)) == numbers(
        translate("verdict.results", runs=3, name="c")
    )
    assert "1.75" not in intro("a,8,2,2\n", *rows)  # the course of one run is known


def test_a_speed_that_only_swapping_explains() -> None:
    """128 tokens in 64 s, and in 64 ms."""
    for ms, is_told in ((64_000.0, True), (64.0, False)):
        steps = make_steps(range(30), ms, loss=[3.0] * 30)
        explanation = explain(make_run_log(steps, setup=LoggedSetup(tokens_per_iteration=128)))
        assert (translate("verdict.very_slow", tokens_per_s=2.0) in explanation.verdict) == is_told


def test_few_lines_say_what_would_settle_it() -> None:
    assert few_lines([2.0, 2.1])[-1] == translate("verdict.too_few_lines", lines=2)
    assert translate("verdict.too_few_lines", lines=1) not in few_lines([2.0])


def test_a_run_that_finished_early_by_its_own_counter() -> None:
    stopped = replace(run(), setup=replace(run().setup, planned_iterations=19_073))
    facts = replace(Analysis(stopped).facts, ended="finished")
    told = compose_verdict(stopped, facts, [])
    share = (facts.last_iteration or 0) / 19_073
    assert any(numbers(one)[:1] == numbers(f"{share:.1%}") for one in told), told


def test_only_evaluations_are_logged() -> None:
    only = make_run_log(make_steps([]), [(0, 4.0, 4.1), (100, 2.0, 2.1)])
    assert explain(only).verdict[0] == translate("verdict.only_evaluations", trainer="nanoGPT")


# --- what keeps a run from being called sound ---


def test_nothing_is_wrong_is_not_said_of_a_doubtful_run() -> None:
    assert NOTHING in verdict(ended="finished")
    short = replace(run(), setup=LoggedSetup(planned_iterations=2000))
    again = replace(run(), steps=make_steps([*range(500), *range(400, 1000)], 100.0, [2.0] * 1100))
    ends = {"first": 4.0, "last": 0.004, "lines": 10.0}
    said = [
        compose_verdict(short, facts(ended="finished"), ()),
        compose_verdict(again, facts(ended="finished"), ()),
        verdict(ended="finished", loss_ends=ends),
    ]
    assert all(NOTHING not in sentences for sentences in said)


def few_lines(losses: list[float], ms: float = math.nan, **changes: object) -> list[str]:
    at = [100 * (i + 1) for i in range(len(losses))]
    run_log = make_run_log(make_steps(at, ms, losses), **changes)  # type: ignore[arg-type]
    return compose_verdict(run_log, replace(Analysis(run_log).facts, ended="finished"), ())


def test_few_lines_say_what_they_show() -> None:
    falls = translate("verdict.few_lines_fall", lines=6)
    assert falls in few_lines([1.47, 0.80, 0.73, 0.66, 0.63, 0.62])
    flat_later = few_lines([11.3, 8.7, 6.3, 6.0, 6.4, 6.3])
    assert falls in flat_later
    few = {"lines": 6}
    rising = [4.13, 4.15, 4.17, 4.18, 4.19, 4.20]
    assert translate("verdict.few_lines_rise", **few) in few_lines(rising)
    noisy = [2.0, 2.1, 1.9, 2.05, 2.1, 1.95]
    assert translate("verdict.too_few_lines", **few) in few_lines(noisy)
    evals = [(300, None, 2.2)]
    assert translate("verdict.too_few_lines", **few) in few_lines(noisy, 100.0, evals=evals)
    falling = [(at, None, 3.8 - at / 200) for at in range(100, 601, 100)]
    assert translate("verdict.few_evaluations_fall", evaluations=6) in few_lines(noisy, evals=falling)


def test_a_single_result_in_bits_per_byte_is_not_called_the_best() -> None:
    for evals, key in (
        ([(0, None, 1.06)], "verdict.bits_per_byte_before_training"),
        ([(500, None, 1.06)], "verdict.only_bits_per_byte"),
    ):
        run_log = make_run_log(make_steps(range(0, 1000, 10), 100.0, [2.0] * 100), evals)
        run_log = replace(run_log, val_metric="bits_per_byte")
        assert translate(key, bits="1.0600") in compose_verdict(run_log, Analysis(run_log).facts, ())


def test_a_loss_that_turned_is_told_with_its_lowest() -> None:
    losses = [10.47, 10.67, 10.09, 10.18, 9.18, 8.24, 7.73, 7.82, 8.00, 9.69, 9.95]
    said = explain(make_run_log(make_steps(range(12_900, 13_450, 50), loss=losses))).verdict
    turned = {"lowest_loss": 7.73, "lowest_iteration": 13_200, "end_loss": 9.95}
    assert translate("verdict.training_loss_turned", first="10.4700", **turned) in said


def test_a_loss_that_is_the_same_and_below_0_is_not_computed() -> None:
    run_log = make_run_log(make_steps(range(1, 6), loss=[-1.0] * 5))
    assert (run_log.placeholder_loss, run_log.loss_measures_learning) == (-1.0, True)
    assert translate("verdict.placeholder_loss", loss="-1.0000") in explain(run_log).verdict
    varying = make_run_log(make_steps(range(1, 6), loss=[-1.0, -1.2, -0.8, -1.1, -0.9]))
    assert (varying.placeholder_loss, varying.loss_measures_learning) == (None, False)
    assert translate("verdict.loss_below_zero") in explain(varying).verdict


def test_only_repeated_data_ask_for_an_evaluation() -> None:
    """In a first epoch each batch is new when its loss is taken; of unknown data nothing is said."""
    no_eval = translate("verdict.no_evaluation")
    for epochs, is_said in ((3.0, True), (1.0, False), (0.4, False), (None, False)):
        setup = LoggedSetup(epochs=epochs)
        for losses in ([1.47, 0.80, 0.73, 0.66, 0.63, 0.62], [2.0, 2.1, 1.9, 2.05, 2.1, 1.95]):
            assert (no_eval in few_lines(losses, setup=setup)) == is_said
    evaluated = few_lines([2.0, 1.9, 1.8], setup=LoggedSetup(epochs=3.0), evals=[(300, None, 2.2)])
    assert no_eval not in evaluated


def test_a_late_part_without_evaluations_is_told() -> None:
    """The last of these evaluations is the best, and says nothing of what came after it."""
    evals = [(at, None, 4.0 - at / 500) for at in range(50, 251, 50)]
    for last, is_said in ((260, False), (1000, True)):
        losses = np.linspace(4.0, 3.0, last // 10).tolist()
        run_log = make_run_log(make_steps(range(10, last + 1, 10), loss=losses), evals)
        said = compose_verdict(run_log, Analysis(run_log).facts, ())
        assert (translate("verdict.not_evaluated_since", evaluated=250, last=last) in said) == is_said
        assert (translate("verdict.last_loss_is_best", best="3.5000") in said) != is_said


def test_nothing_is_wrong_is_not_said_of_evaluations_with_spikes() -> None:
    for spike, is_told in ((2.5, True), (7.0, False)):
        values = [3.0, 2.6, 2.5, spike, 2.4, 2.35, 2.3]
        evals = [(100 * at, value - 0.05, value) for at, value in enumerate(values, 1)]
        run_log = make_run_log(make_steps(range(10, 701, 10), 100.0, np.linspace(3, 2.3, 70).tolist()), evals)
        said = compose_verdict(run_log, replace(Analysis(run_log).facts, ended="finished"), ())
        assert (NOTHING in said) == is_told


def test_a_step_time_that_goes_one_way_does_not_wander() -> None:
    """As of reinforcement learning, whose answers become longer: the rule about drift leaves it out."""
    noise = np.random.default_rng(1).normal(1, 0.02, 200)
    for course, key in (
        (np.linspace(100, 400, 200), "verdict.step_time_quarters"),
        (250 - 150 * np.cos(np.linspace(0, 4 * np.pi, 200)), "verdict.step_time_wanders"),
    ):
        steps = make_steps(range(200), (course * noise).tolist(), np.linspace(3, 2, 200).tolist())
        run_log = make_run_log(steps)
        known = Analysis(run_log).facts
        assert known.wander_ms is not None
        (low, high), ms = known.wander_ms, run_log.steps.ms[run_log.is_steady()]
        first, last = (float(np.median(part)) for part in np.array_split(ms, 4)[::3])
        ends = {"first": first, "last": last} if key.endswith("quarters") else {"low": low, "high": high}
        assert translate(key, ms=known.steady_ms, **ends) in compose_verdict(run_log, known, ())


def test_a_finished_run_did_the_iterations_after_its_last_line() -> None:
    setup = LoggedSetup(planned_iterations=1040, wall_s=104.0)
    steps = make_steps(range(100, 1001, 100), math.nan, np.linspace(4.0, 3.0, 10).tolist())
    run_log = make_run_log(steps, setup=setup)
    known = Analysis(run_log).facts
    for facts_of_end, ms in ((replace(known, ended="finished"), 100.0), (replace(known, ended="cut"), 104.0)):
        said = compose_verdict(run_log, facts_of_end, ())
        assert translate("verdict.mean_step_time", run_s=104.0, ms=ms) in said


def test_a_metric_of_one_early_evaluation_is_told_with_its_iteration() -> None:
    metric = metric_of("eval_acc")
    assert metric is not None
    for at, key in ((0, "verdict.metric_once_at"), (900, "verdict.metric_once")):
        series = MetricSeries("eval_acc", metric, np.array([at]), np.array([at + 1]), np.array([0.25]))
        run_log = make_run_log(make_steps(range(0, 901, 10), 100.0, [2.0] * 91), metrics=(series,))
        values = {"at": at} if key == "verdict.metric_once_at" else {}
        said = compose_verdict(run_log, Analysis(run_log).facts, ())
        assert translate(key, name="eval_acc", first=0.25, last=0.25, **values) in said


def test_alike_problems_of_other_runs_are_told_together() -> None:
    flat, rising = np.linspace(3.0, 2.0, 100), np.append(np.linspace(4.0, 2.0, 50), np.linspace(2.0, 3.5, 50))
    runs = [make_run_log(make_steps(range(100), loss=losses.tolist())) for losses in (flat, rising, rising)]
    verdict = explain_runs(runs, main=runs[0]).verdict
    title = explain(runs[1]).findings[0].title
    assert translate("verdict.alike_problems", runs=2, name=runs[1].label, title=title) in verdict


def test_a_run_that_was_not_finished_is_not_at_100_percent() -> None:
    steps = make_steps(range(15, 2805, 15), loss=np.linspace(2.0, 1.0, 186).tolist())
    setup = LoggedSetup(planned_iterations=2808)
    said = explain(make_run_log(steps, setup=setup, iterations_done=2800, ended="cut")).verdict
    share = next(one for one in said if "2,808" in one or "2,809" in one)
    assert numbers(share)[0] == "99"


def test_a_metric_of_held_out_data_is_an_evaluation() -> None:
    plain = make_run_log(
        make_steps(range(0, 400, 10), loss=np.linspace(4.0, 2.0, 40).tolist()), ended="finished"
    )
    unevaluated = translate("verdict.nothing_wrong_unevaluated")
    assert unevaluated in explain(plain).verdict
    for name, is_told in (("val_bleu", False), ("train_acc", True)):
        metric, at = metric_of(name), np.array([100, 200])
        assert metric is not None
        series = MetricSeries(name, metric, at, at, np.array([0.2, 0.3]))
        assert (unevaluated in explain(replace(plain, metrics=(series,))).verdict) == is_told


def with_values(name: str, values: list[float]) -> RunLog:
    metric, at = metric_of(name), np.arange(10, 10 * len(values) + 1, 10)
    assert metric is not None
    return replace(run_without_evals(), metrics=(MetricSeries(name, metric, at, at, np.array(values)),))


def run_without_evals(end: float = 2.0, epochs: float | None = None) -> RunLog:
    noise = np.random.default_rng(0).normal(0, 0.02, 40)
    losses = (np.linspace(3.0, end, 40) + noise).tolist()
    return make_run_log(make_steps(range(0, 400, 10), loss=losses), setup=LoggedSetup(epochs=epochs))


def test_a_metric_that_got_worse_is_told_as_such() -> None:
    up, down = [0.4, 0.5, 0.55, 0.6, 0.62], [0.62, 0.6, 0.55, 0.5, 0.4]
    for name, values, is_worse in (
        ("val_acc", up, False),
        ("val_acc", down, True),
        ("wer", up, True),
        ("wer", down, False),
        ("val_acc", [0.62, 0.7, 0.71, 0.7, 0.618], False),
    ):
        (course,) = with_values(name, values).metric_courses
        assert course.got_worse == is_worse, (name, values)
        worse = translate("verdict.metric_worse", name=name, first=values[0], last=values[-1])
        assert any(one.startswith(worse) for one in explain(with_values(name, values)).verdict) == is_worse


def test_a_metric_that_stands_still_and_the_best_of_one() -> None:
    stands = with_values("val_acc", [0.9, 0.7, 0.65, *[0.6] * 7])
    assert stands.metric_courses[0].last_alike == 7
    alike = translate("verdict.metric_alike", count=7)
    best = translate("verdict.metric_highest_at", value=0.7, at=20)
    assert any(alike in one for one in explain(stands).verdict)
    moving = with_values("val_acc", [0.6, 0.7, 0.65, 0.66, 0.68, 0.62, 0.64])
    assert not any(alike in one for one in explain(moving).verdict)
    assert any(best in one for one in explain(moving).verdict)


def test_a_level_loss_of_many_epochs_needs_no_evaluation_first() -> None:
    for end, key in ((3.0, "verdict.level_over_epochs"), (2.0, "verdict.no_evaluation")):
        said = explain(run_without_evals(end, epochs=20.0)).verdict
        told = [one for one in ("verdict.level_over_epochs", "verdict.no_evaluation")
                if translate(one, epochs=20.0) in said]  # fmt: skip
        assert told == [key]


def test_a_score_on_lines_of_its_own_may_be_of_an_evaluation() -> None:
    run_log = run_without_evals(epochs=20.0)
    lines = run_log.steps.line
    for name, offset, is_told in (("ACC", 10_000, False), ("ACC", 0, True), ("train ACC", 10_000, True)):
        metric = metric_of(name)
        assert metric is not None
        series = MetricSeries(
            name, metric, run_log.steps.iteration, lines + offset, np.linspace(0.2, 0.6, 40)
        )
        said = explain(replace(run_log, metrics=(series,))).verdict
        assert (translate("verdict.no_evaluation") in said) == is_told


def test_the_last_line_counts_though_it_is_cut_off() -> None:
    last = replace(run(), last_partial_iteration=1000)
    ended = facts(ended="cut")
    stops = translate("verdict.log_stops", trainer="nanoGPT", at="1,000")
    assert compose_verdict(last, ended, [])[0] == stops
    assert compose_verdict(replace(last, last_partial_iteration=5000), ended, [])[0] != stops


def test_a_training_loss_that_ends_in_a_spike() -> None:
    losses = np.linspace(3.0, 1.0, 300)
    for last, is_said in ((2.5, True), (1.05, False)):
        losses[-10:] = last
        run_log = make_run_log(make_steps(range(300), 100.0, losses.tolist()))
        told = " ".join(compose_verdict(run_log, Analysis(run_log).facts, ()))
        before = format_loss(float(np.median(losses[-30:-10])))
        assert (translate("verdict.ends_in_spike", lines=20, before=before) in told) == is_said


def test_the_better_run_of_a_file() -> None:
    worse, better = (replace(run(), evals=(LoggedEvaluation(900, 0, loss),)) for loss in (2.4, 2.2))
    logs = [replace(worse, first_line=200, last_line=300), replace(better, first_line=1, last_line=199)]
    name = f"{better.label} (lines 1 to 199)"
    sentence = translate("verdict.better_run", name=name, best=2.2, own=2.4)
    assert sentence in explain_runs(logs, main=logs[0]).verdict
    assert not [one for one in explain_runs(logs, main=logs[1]).verdict if "2.4000" in one]
