"""Reinforcement learning: its loss is not judged, and the mean reward is a metric of its own."""

from __future__ import annotations

import io
import json

import pytest
from log_checks import parse_log

from glassgpt.explain.explanation import explain
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.metric_columns import role_of
from glassgpt.runs.reading import read_stream
from glassgpt.runs.run_log import RunLog, longest_run

STEPS = 40


def policy_loss(at: int) -> float:
    """Near 0, and higher at the end than at the start: of a language model it would be a failure."""
    return -0.1 + at / 200 if at < STEPS // 2 else 0.001 * (at % 3)


def verl(at: int) -> str:
    return (
        f"(TaskRunner pid=12) step:{at} - global_seqlen/min:6543 - actor/pg_loss:{policy_loss(at):.6f} - "
        f"actor/grad_norm:0.31 - actor/lr:1e-06 - critic/rewards/mean:np.float64({at / 100}) - "
        "critic/rewards/max:1.0 - perf/throughput:1500.5 - timing_s/step:61.5"
    )


def grpo(at: int) -> str:
    values = {"loss": policy_loss(at), "grad_norm": 0.31, "learning_rate": 1e-6, "reward": at / 100}
    return str(values | {"rewards/format_reward/mean": 0.5, "kl": 0.01, "epoch": at / 50})


def home_made(at: int) -> str:
    return f"step {at} | loss {policy_loss(at):.6f} | reward_mean {at / 100} | reward_std 0.3 | lr 1e-06"


def record(at: int) -> str:
    values = {"step": at, "train/loss": policy_loss(at), "train/reward": at / 100, "train/reward_std": 0.3}
    return json.dumps(values | {"train/learning_rate": 1e-6})


def read(text: str) -> RunLog:
    return longest_run(read_stream(io.BytesIO(text.encode()), "x"))


@pytest.mark.parametrize("form", [verl, grpo, home_made, record])
def test_rewards_are_told_and_the_loss_is_not_judged(form: object) -> None:
    assert callable(form)
    run_log = read("".join(f"{form(at)}\n" for at in range(1, STEPS + 1)))
    assert run_log.steps.loss.tolist() == pytest.approx([policy_loss(at) for at in range(1, STEPS + 1)])
    assert not run_log.loss_measures_learning
    course = run_log.metric_courses[0]
    assert (course.kind, course.values, course.mean_of) == ("reward", STEPS, 4)
    assert (course.first, course.last, course.highest) == pytest.approx((0.025, 0.385, 0.385))
    explanation = explain(run_log)
    assert {finding.id for finding in explanation.findings} <= {"ended-early"}
    assert explanation.facts.eval_steps is None  # they are by rewards


def test_verl_s_columns() -> None:
    run_log = parse_log("Total training steps: 60\n" + "".join(f"{verl(at)}\n" for at in range(1, 9)))
    facts = Analysis(run_log).facts
    assert (run_log.trainer.id, run_log.setup.planned_iterations) == ("verl", 60)
    assert (facts.last_iteration, facts.steady_ms, facts.tokens_per_s) == (8, 61500, 1500.5)
    assert (run_log.steps.lr[0], run_log.steps.grad_norm[0]) == (1e-6, 0.31)


def test_dpo_s_loss_is_a_cross_entropy() -> None:
    line = "{{'loss': {loss:.4f}, 'rewards/chosen': 0.1, 'rewards/margins': 0.2, 'epoch': {epoch:.2f}}}\n"
    run_log = parse_log("".join(line.format(loss=0.69 - at / 100, epoch=at / 10) for at in range(9)))
    assert run_log.loss_measures_learning
    assert [(course.kind, course.last) for course in run_log.metric_courses] == [("margin", 0.2)]


def test_names_of_rewards() -> None:
    cases = {
        "reward": True, "rewards/mean": True, "train/reward": True, "rewards/accuracy_reward/mean": False,
        "rewards/format_reward/mean": True, "reward_std": False, "rewards/margins": False,
        "frac_reward_zero_std": False, "critic/rewards/mean": True, "critic/rewards/max": False,
    }  # fmt: skip
    assert {name: role_of(name) == "reward" for name in cases} == cases


def test_verl_s_validations_and_saves() -> None:
    """A validation's numbers may make the line too long, so that its end is missing."""

    def step(at: int) -> str:
        others = f" - critic/score/mean:{-at / 100} - response_length/mean:{900 - at}"
        text = verl(at).replace(" - perf/", f"{others} - perf/total_num_tokens:123000 - perf/")
        if at % 10 == 0:
            head, tail = text.split(" - critic/rewards/max")
            val = f" - val-aux/gsm8k/reward/mean@1:np.float64({at / 100}) - val-aux/gsm8k/reward/std@1:0."
            return head + val if at == 10 else head + val + " - critic/rewards/max" + tail
        return text

    lines = ["step:0 - val-aux/gsm8k/reward/mean@1:np.float64(0.005) - val-aux/gsm8k/reward/std@1:0.3"]
    lines += [step(at) for at in range(1, 25)]
    lines.append("local_global_step_folder: out/verl/global_step_20")
    lines += [step(at) for at in range(25, 31)]
    run_log = parse_log("".join(f"{line}\n" for line in lines))
    assert run_log.steps.iteration.tolist() == list(range(1, 31))
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [
        (0, None),
        (10, None),
        (20, None),
        (30, None),
    ]
    assert [one.iteration for one in run_log.checkpoints] == [20]
    assert run_log.steps.tokens_per_s[0] == 2000
    courses = {course.name: course for course in run_log.metric_courses}
    assert list(courses) == ["val-aux/gsm8k/reward/mean@1", "critic/score/mean", "response_length/mean"]
    assert courses["val-aux/gsm8k/reward/mean@1"].values == 4
    assert "throughput-drift" not in {finding.id for finding in explain(run_log).findings}
