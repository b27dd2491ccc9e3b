"""Metrics besides the loss: accuracies, rewards, KL, margins; and which losses measure learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
from log_checks import parse_log, parse_logs

from glassgpt.explain.explanation import explain
from glassgpt.explain.rules.metrics import decided_pairs, nothing_right, policy_drift
from glassgpt.i18n import translate
from glassgpt.runs import metric_series
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.fields import read_metric_values
from glassgpt.runs.metric_columns import metric_of
from glassgpt.runs.metric_series import MetricRecorder, courses, read_metric_line
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainers import BY_ID


def test_names_of_metrics() -> None:
    cases = {
        "acc": "accuracy", "eval_accuracy": "accuracy", "mean_token_accuracy": "accuracy",
        "preference_accuracy": "accuracy", "rewards/accuracies": "accuracy", "correct_rate": "accuracy",
        "HellaSwag accuracy": "accuracy", "reward": "reward", "critic/rewards/mean": "reward",
        "val-core/math/reward/mean@1": "reward", "reward_std": None, "kl": "kl", "train/reverse_kl": "kl",
        "kl_coef": None, "rewards/margins": "margin", "eval_wer": "error_rate", "ppl": "perplexity",
        "val_per": "error_rate", "val_wacc": "accuracy", "CORE metric": "score", "Validation BLEU-4": "score",
        "loss": None, "lr": None, "critic/rewards/max": None, "rewards/chosen": None,
    }  # fmt: skip
    found = {name: metric.kind if (metric := metric_of(name)) else None for name in cases}
    assert found == cases


def test_lines_of_nothing_but_a_metric() -> None:
    cases = {
        "HellaSwag accuracy: 3185/10042=0.3172": {"HellaSwag accuracy": 0.3172},
        "Accuracy (BCA): 0.0000 (0/160)": {"Accuracy": 0.0},
        "Accuracy: 12.50%": {"Accuracy": 0.125},
        "round 3 done, eval_acc: 0.706": {"eval_acc": 0.706},
        "Perplexity: 7.098966": {"Perplexity": 7.098966},
        "Approximate test accuracy 0.730": {"Approximate test accuracy": 0.73},
        "Step 21400 | CORE metric: 0.2086": {"CORE metric": 0.2086},
        "Epoch 2 - Validation BLEU: BLEU-1 71.65, BLEU-2 65.76": {
            "Validation BLEU-1": 71.65, "Validation BLEU-2": 65.76,
        },
        "Test BLEU: BLEU-1 71.65 in 3 of 4": {},
        "accuracy 12": {},
        "The accuracy: it was 0.5 in 3 of 7 cases": {},
        "accuracy matters": {},
    }  # fmt: skip
    assert {line: read_metric_line(line) for line in cases} == cases


def test_values_of_a_steps_line() -> None:
    line = "epoch 1/1 step 11/1000 loss 0.71 preference_accuracy 0.375 chosen_reward 0 margin -0.0457 lr 1e-7"
    assert read_metric_values(line) == {"preference_accuracy": 0.375, "margin": -0.0457}
    assert read_metric_values("[step 30] avg_loss=0.0031 acc=0.9200") == {"acc": 0.92}
    assert read_metric_values("step 5 | loss 2.1 | lr 1e-4") == {}


def test_metrics_that_an_epochs_line_names_twice() -> None:
    line = "Epoch {at} | Train Loss: 9.{at} | Token Acc: 0.1{at} | Seq Acc: 0.0"
    line += " | Val Loss: 8.{at} | Token Acc: 0.2{at}"
    run_log = parse_log("".join(line.format(at=at) + "\n" for at in range(1, 6)))
    values = {one.name: one.value.tolist() for one in run_log.metrics}
    assert values["Token Acc"] == [0.11, 0.12, 0.13, 0.14, 0.15]
    assert values["val Token Acc"] == [0.21, 0.22, 0.23, 0.24, 0.25]
    assert values["Seq Acc"] == [0.0] * 5
    assert run_log.metrics[0].iteration.tolist() == [1, 2, 3, 4, 5]


def test_a_course_and_its_extremes() -> None:
    recorder = MetricRecorder()
    values = [0.80, 0.88, 0.92, 0.70, 0.34, 0.60, 0.90, 0.70]
    for at, value in enumerate(values, 1):
        assert recorder.add({"acc": value, "lr": 0.1}, 10 * at, at)
    assert not recorder.add({"lr": 0.1}, 90, 9)
    (course,) = courses(recorder.series())
    assert (course.first, course.last, course.values, course.mean_of) == (0.80, 0.70, 8, 1)
    assert (course.best, course.best_iteration) == (0.92, 30)
    assert (course.lowest, course.lowest_iteration) == (0.34, 50)


def test_a_course_is_told_only_where_it_is_more_than_noise() -> None:
    random, at = np.random.default_rng(1), np.linspace(0, 1, 200)
    noise = random.normal(0, 0.1, len(at))
    curves = {
        "level": (0.5 + noise, True),
        "coin flips": ((random.random(len(at)) < 0.6).astype(float), True),
        "few": (np.array([1, 0, 0, 0.5, 0, 0.25, 0.5, 0.25, 0, 0.25]), True),
        "rises": (0.5 + 0.2 * at + noise, False),
        "rises at once": (0.5 - 0.4 * np.exp(-40 * at) + noise / 4, False),
        "falls early": (np.append([0.6, 0.3, 0.5, 0.4, 0.35, 0.3], random.normal(0, 0.15, 14)), False),
        "rises and falls": (0.5 + 0.5 * np.sin(np.pi * at) + noise, False),
        "constant": (np.full(10, 0.4), False),
        "two": (np.array([0.3, 0.4]), False),
    }
    for name, (values, is_noise) in curves.items():
        recorder = MetricRecorder()
        for step, value in enumerate(values.tolist()):
            recorder.add({"reward": value}, step, step)
        [course] = courses(recorder.series())
        assert course.is_noise == is_noise, name
        assert course.mean == pytest.approx(values.mean())


def test_a_long_series_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_series, "_MAX_VALUES", 100)
    recorder = MetricRecorder()
    for at in range(250):
        recorder.add({"acc": at / 250}, at, at)
    (series,) = recorder.series()
    assert 50 <= len(series.value) <= 100
    assert series.value[-1] == pytest.approx(1.0, abs=0.02)


def build(lines: list[tuple[int, float, dict[str, float]]], trainer: str = "unknown") -> RunLog:
    builder = RunBuilder(BY_ID[trainer])
    for iteration, loss, metrics in lines:
        builder.line += 1
        builder.add_step(iteration, loss)
        builder.add_metrics(metrics)
    builder.finish()
    return builder.build("x", ends_mid_line=False)


def test_which_losses_measure_learning() -> None:
    plain = [(at, 3 - at / 50, {"acc": at / 100}) for at in range(40)]
    surrogate = [(at, 0.01 * (-1) ** at, {"acc": 0.5}) for at in range(40)]
    rewarded = [(at, 0.02, {"reward": at / 100}) for at in range(40)]
    selected = [(at, 2.1 - at / 200 + 0.05 * (-1) ** at, {"reward": 0.01}) for at in range(40)]
    dpo = [(at, math.log(2) - at / 200, {"margin": at / 100, "preference_accuracy": 0.6}) for at in range(40)]
    assert [build(lines).loss_measures_learning for lines in (plain, surrogate, rewarded, selected, dpo)] == [
        True, False, False, True, True,
    ]  # fmt: skip
    for lines in (surrogate, rewarded):
        assert {finding.id for finding in explain(build(lines)).findings} <= {"ended-early"}


def test_a_perplexity_of_the_logged_loss_is_no_news() -> None:
    same = build([(at, 3.0, {"ppl": math.exp(3.0)}) for at in range(40)])
    other = build([(at, 3.0, {"ppl": 190.0}) for at in range(40)])
    assert [len(run_log.metric_courses) for run_log in (same, other)] == [0, 1]


def test_metrics_are_of_the_run_whose_lines_they_are_in() -> None:
    step = "step {at:5d} | loss: {loss:.6f} | lr 1.0000e-04 | norm: 0.3 | dt: 100.00ms | tok/sec: 5000.00\n"
    run = "total desired batch size: 1024\n" + "".join(
        step.format(at=at, loss=5 - at / 10) + ("HellaSwag accuracy: {}\n" if at % 5 == 4 else "")
        for at in range(10)
    )
    first, second = parse_logs(run.replace("{}", "250/1000=0.2500") + run.replace("{}", "310/1000=0.3100"))
    assert [one.metric_courses[0].last for one in (first, second)] == [0.25, 0.31]


def test_a_policy_that_drifts_for_nothing() -> None:
    def grpo(kl_end: float, gain: float) -> RunLog:
        rows = (
            (at, 0.01, {"reward": 0.66 + gain * at / 60, "kl": 0.01 + kl_end * at / 60}) for at in range(60)
        )
        return build(list(rows))

    finding = policy_drift(Analysis(grpo(2.5, 0.03)))
    assert finding is not None
    assert finding.values["kl_last"] == pytest.approx(2.4, abs=0.1)
    assert finding.values["reward_last"] == pytest.approx(0.69, abs=0.01)
    assert policy_drift(Analysis(grpo(2.5, 0.3))) is None, "it learnt"
    assert policy_drift(Analysis(grpo(0.2, 0.03))) is None, "it stayed near"


def test_nothing_right() -> None:
    rows: list[tuple[int, float, dict[str, float]]] = [(at, 3 - at / 50, {}) for at in range(40)]
    zero = build([*rows, (40, 2.0, {"Accuracy": 0.0}), (41, 2.0, {"Accuracy": 0.0})])
    some = build([*rows, (40, 2.0, {"Accuracy": 0.0}), (41, 2.0, {"Accuracy": 0.1})])
    finding = nothing_right(Analysis(zero))
    assert finding is not None
    assert finding.values["count"] == 2
    assert nothing_right(Analysis(some)) is None


def test_a_trainers_evaluation_and_its_closing_dict() -> None:
    text = "".join(
        f"{{'loss': 0.0{at}, 'reward': {at / 10}, 'kl': 0.1, 'epoch': {at / 10}}}\n" for at in range(1, 10)
    )
    text += "{'eval_loss': 1.0, 'eval_accuracy': 0.4, 'epoch': 0.9}\n"
    text += "{'train_runtime': 90.0, 'train_steps_per_second': 0.1, 'reward': 0.45, 'epoch': 0.9}\n"
    run_log = parse_log(text)
    reward = next(course for course in run_log.metric_courses if course.kind == "reward")
    assert (reward.values, reward.last) == (9, 0.9)
    accuracy = next(course for course in run_log.metric_courses if course.kind == "accuracy")
    assert accuracy.last == 0.4


@pytest.mark.parametrize(
    ("loss", "margin", "is_found"), [(0.0, 15.0, True), (0.3, 15.0, False), (0.0, 2.0, False)]
)
def test_preferences_that_are_all_decided(loss: float, margin: float, is_found: bool) -> None:
    line = "{{'loss': {loss}, 'rewards/accuracies': 1.0, 'rewards/margins': {margin}, 'epoch': {epoch}}}\n"
    text = "".join(line.format(loss=loss, margin=margin + at, epoch=at / 10) for at in range(1, 5))
    finding = decided_pairs(Analysis(parse_log(text)))
    assert (finding is not None) == is_found
    if finding:
        assert finding.values == {"loss": 0.0, "margin": 19.0, "count": 3}


def test_downstream_accuracies_of_lines_with_a_count() -> None:
    """As build-nanogpt's log.txt, its forks' and llm.c's main.log have them."""
    lines = []
    for at in range(0, 3100, 100):
        lines.append(f"{at} val {11 - at / 400:.4f}")
        lines.append(f"{at} goldenswag {0.26 if at == 0 else 0.13:.4f}")
        lines += [f"{step} train {11 - step / 400:.6f}" for step in range(at, at + 100)]
    run_log = parse_log("\n".join(lines))
    [course] = run_log.metric_courses
    assert (course.name, course.kind, course.first, course.last) == ("goldenswag", "accuracy", 0.26, 0.13)
    explanation = explain(run_log)
    assert translate("verdict.nothing_wrong") not in explanation.verdict
    main = [f"s:{at} trl:{9 - at / 100:.4f} lr:0.000600 norm:0.30" for at in range(60)]
    main[30:30] = ["s:30 tel:8.7", "s:30 eval:0.2627"]
    [course] = parse_log("\n".join(main)).metric_courses
    assert (course.name, course.last) == ("HellaSwag", 0.2627)


def test_bits_per_byte_beside_the_loss() -> None:
    lines = [
        f"step:{at}/9 val_loss:{3 - at / 5:.4f} val_bpb:{2 - at / 10:.4f} train_time:{at}00ms step_avg:9ms"
        for at in range(10)
    ]
    run_log = parse_log("\n".join([*lines, "stopping_early: wallclock_cap train_time:900ms step:9/9"]))
    [course] = run_log.metric_courses
    assert (course.kind, course.first, course.last, course.higher_is_better) == (
        "bits_per_byte",
        2.0,
        1.1,
        False,
    )


def test_the_result_of_a_compressed_model_is_quoted_as_it_is() -> None:
    lines = [f"step:{at}/90 val_loss:{3 - at / 30:.4f} train_time:{at}00ms step_avg:9ms" for at in range(30)]
    closing = "final_int8_zlib_roundtrip val_loss:2.5000 val_bpb:1.3000 eval_time:9ms"
    lines += [
        "stopping_early: wallclock_cap train_time:9ms step:29/90",
        "peak memory allocated: 9 MiB",
        closing,
    ]
    run_log = parse_log("\n".join([*lines, ""]))
    assert run_log.evals[-1].val_loss == 2.0333
    assert translate("verdict.closing_result", quoted=closing) in explain(run_log).verdict
    assert translate("verdict.stop_reason", quoted=lines[-3]) in explain(run_log).verdict


def test_a_last_loss_that_was_as_low_before_is_not_the_best_at_the_end() -> None:
    rows = [(3.5, 0), (3.2, 20), (3.1, 40), (3.1, 60), (3.1, 80)]
    lines = [line for loss, at in rows for line in (f"{at} val {loss:.4f}", f"{at} train {loss:.6f}")]
    lines += [f"{at} train 3.0{at}0000" for at in range(81, 99)]
    verdict = explain(parse_log("\n".join([*lines, ""]))).verdict
    assert translate("verdict.best_loss_at", best="3.1000", step=40, final=3.1) in verdict


def test_a_perplexity_of_unknown_data_is_not_told_beside_evaluations() -> None:
    def told(name: str, on_the_line: bool, evaluated: bool = True) -> list[str]:
        builder = RunBuilder(BY_ID["unknown"])
        for at in range(1, 31):
            builder.line += 2
            builder.add_step(at, 3.0 - at / 50)
            if evaluated:
                builder.add_eval(at, val_loss=3.2 - at / 50)
            builder.line += 0 if on_the_line else 1
            builder.add_metrics({name: 99.0 - at}, at)
        builder.finish()
        return [course.name for course in builder.build("x", ends_mid_line=False).metric_courses]

    assert told("ppl", on_the_line=False) == []
    assert told("train_ppl", on_the_line=False) == ["train_ppl"]
    assert told("ppl", on_the_line=True) == ["ppl"]
    assert told("ppl", on_the_line=False, evaluated=False) == ["ppl"]


def test_values_of_several_datasets_are_several_series() -> None:
    text = ""
    for epoch in range(1, 20):
        for at in (0, 1):
            text += f"[all] Epoch {epoch:03d} | Dataset {at:02d} | ACC {at / 2 + epoch / 100:.3f}\n"
        text += f"Epoch {epoch:03d} | Avg Loss {9 - epoch / 10:.4f} | Mean ACC {0.25 + epoch / 100:.4f}\n"
    run_log = parse_log(text)
    ends = {one.name: (one.value[0], one.value[-1], len(one.value)) for one in run_log.metrics}
    assert ends == {
        "Dataset 00 ACC": (0.01, 0.19, 19), "Dataset 01 ACC": (0.51, 0.69, 19), "Mean ACC": (0.26, 0.44, 19),
    }  # fmt: skip
    assert [one.name for one in run_log.metric_courses] == ["Mean ACC"]


def test_values_of_models_of_other_runs_are_not_of_this_one() -> None:
    """Printed after the run before, and with others in a table at the end."""
    runs = ""
    for accuracy in (66, 63):
        rows = "".join(f"{at}\t{3 - at / accuracy:.4f}\n" for at in (10, 20, 30))
        runs += f"[30/30 03:21, Epoch 1/1]\nStep\tTraining Loss\n{rows}\n  Accuracy: {accuracy}%\n"
    for one, share in zip(parse_logs(f"{runs}  - Accuracy: 67%\n"), (0.66, 0.63), strict=True):
        assert [metric.value.tolist() for metric in one.own_metrics] == [[share]]
