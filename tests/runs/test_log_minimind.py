"""MiniMind: epochs and the micro-batches in them, as one count."""

from __future__ import annotations

import pytest
from log_checks import check_facts, parse_facts, parse_log
from printed import SyntheticRun
from printed_more import minimind

from glassgpt.explain.explanation import explain


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("log_every", [1, 5])
def test_a_whole_log(old: bool, log_every: int) -> None:
    expected = minimind(SyntheticRun(updates=60, log_every=log_every), old=old)
    check_facts(expected.text, expected)


def test_forms_of_its_line(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int, float, float]] = [
        ("Epoch:[0/19](100/24681) loss:5.251 lr:0.0002 epoch_Time:98.0min:", 100, 5.251, 0.0002),
        ("Epoch:[1/19](100/24681) loss:5.251 lr:0.000200000000 epoch_Time:98.0min;", 100, 5.251, 0.0002),
        ("Epoch:[2/6](100/1400), loss: 6.4, lr: 0.0005, epoch_time: 12.3min", 1500, 6.4, 0.0005),
        ("Epoch:[1/1](7/9), loss: 2.5, logits_loss: 2.4, aux_loss: 0.1, lr: 1e-05, eta: 0min", 7, 2.5, 1e-5),
        ("Epoch: [1/2] (3/9), loss: nan, lr: 0.1, epoch_time: 1.0min", 3, float("nan"), 0.1),
        ("[2026-01-05 10:00:00] Epoch:[1/2](3/9) loss:1.5 lr:0.1 epoch_Time:1min", 3, 1.5, 0.1),
    ]  # fmt: skip
    for line, iteration, loss, lr in cases:
        with subtests.test(line):
            run_log = parse_log(line + "\n")
            assert run_log.trainer.id == "minimind"
            assert run_log.steps.iteration.tolist() == [iteration]
            assert run_log.steps.loss[0] == pytest.approx(loss, nan_ok=True)
            assert run_log.steps.lr[0] == lr


def test_the_epoch_goes_into_the_iteration_whatever_it_is_counted_from() -> None:
    new = "".join(f"Epoch:[{at}/3](20/50), loss: 3.0, lr: 0.1, epoch_time: 1.0min\n" for at in (1, 2, 3))
    old = "".join(f"Epoch:[{at}/3](20/50) loss:3.0 lr:0.1 epoch_Time:1.0min:\n" for at in (0, 1, 2))
    assert parse_log(new).steps.iteration.tolist() == [20, 70, 120]
    assert parse_log(old).steps.iteration.tolist() == [20, 70, 120]


def test_a_log_that_stops_in_its_last_epoch_is_cut() -> None:
    expected = minimind(SyntheticRun(updates=60, log_every=5))
    assert parse_facts(expected.text).ended == "finished"
    assert parse_facts(expected.truncated(len(expected.parts) - 1).text).ended == "cut"


def test_a_torn_line_says_nothing() -> None:
    expected = minimind(SyntheticRun(updates=20))
    *whole, last = expected.lines
    run_log = parse_log("\n".join([*whole, last[: last.index("lr:")]]))
    assert len(run_log.steps) == len(expected.rows) - 1


def test_a_resume_within_an_epoch() -> None:
    before, after = minimind(SyntheticRun(updates=20)), minimind(SyntheticRun(updates=40))
    skipped = "Epoch [1/2]: 跳过前10个step，从step 11开始"
    text = "\n".join([*before.lines, skipped, *after.lines[11:]]) + "\n"
    run_log = parse_log(text)
    assert [segment.resumed for segment in run_log.segments] == [False, True]
    assert run_log.segments[1].first_iteration == 11


def test_what_is_true_of_micro_batches_is_said_of_it() -> None:
    explanation = explain(parse_log(minimind(SyntheticRun(updates=400), per_epoch=100).text)).findings
    assert "loss-spike" not in {finding.id for finding in explanation}


def test_reinforcement_learning_has_the_reward_first() -> None:
    line = (
        "Epoch:[1/1]({at}/1000), Reward: 1.5000, KL_ref: 0.0100, Critic Loss: 9.0000, Adv Std: 1.0000, "
        "Actor Loss: {loss:.4f}, Avg Response Len: 99.50, Learning Rate: 0.00000030\n"
    )
    text = "Model Params: 63.91M\n" + "".join(line.format(at=at, loss=at / 1000) for at in range(1, 9))
    run_log = parse_log(text)
    assert run_log.trainer.id == "minimind"
    assert run_log.steps.loss.tolist() == pytest.approx([at / 1000 for at in range(1, 9)])
    assert run_log.steps.lr.tolist() == [3e-7] * 8
    assert run_log.setup.parameters == 63_910_000
    assert not run_log.trainer.loss_measures_learning
