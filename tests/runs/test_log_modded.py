"""modded-nanogpt: sums of times, restarts of the sum, and its derivatives."""

from __future__ import annotations

import pytest
from log_checks import check_facts, parse_facts, parse_log, parse_logs
from printed import SyntheticRun
from printed_more import modded

from glassgpt.runs.analysis import Analysis

COURSE = SyntheticRun(updates=33, eval_every=10)


@pytest.mark.parametrize("with_loss", [False, True])
def test_a_whole_log(with_loss: bool) -> None:
    expected = modded(COURSE, with_loss)
    check_facts(expected.text, expected)


def test_an_iteration_takes_the_difference_of_two_sums() -> None:
    run_log = parse_log(
        "step:0/3 val_loss:10.8 train_time:5ms step_avg:nanms\nstep:1/3 train_time:139ms step_avg:139.00ms\n"
        "step:2/3 train_time:231ms step_avg:115.5ms\nstep:2/3 val_loss:5.0 train_time:240ms step_avg:120ms\n"
        "step:3/3 train_time:331ms step_avg:110ms\n"
    )
    assert run_log.steps.ms.tolist() == [134, 92, 100]
    assert [done.iteration for done in run_log.evals] == [0, 2]
    assert not run_log.steps.has_loss.any()


def test_the_sum_that_starts_again_after_ten_steps() -> None:
    sums = [42703, *(53000 + 100 * at for at in range(9)), 150, 250, 350]
    text = "".join(
        f"step:{at}/5100 train_loss:9.5 train_time:{sum_}ms step_avg:nanms\n"
        for at, sum_ in enumerate(sums, 1)
    )
    steps = parse_log(text).steps
    assert steps.ms[10:].tolist() == [150, 100, 100]  # the new sum holds one step
    assert parse_facts(text).steady_ms == 100


def test_seconds_and_evaluations_only() -> None:
    run = "".join(
        f"step:{at}/250 val_loss:{5 - at / 250:.5f} train_time:{at * 0.147:.3f}s step_avg:147.00ms\n"
        for at in (0, 125, 250)
    )
    facts, *others = [Analysis(one).facts for one in parse_logs(run * 3)]
    assert others == [facts, facts]
    assert (facts.segments, facts.ended, facts.iterations_logged) == (1, "finished", 2)
    assert (facts.best_val_loss, facts.eval_steps) == (4.0, [0, 125, 250])
    assert facts.steady_ms == pytest.approx(147)  # a mean between two evaluations


def test_two_days_in_january_2026() -> None:
    text = "".join(
        f"step {at:4d}/1840 | time: {at * 61 + 1000:,}ms | step avg: 61.23ms | val loss: 3.{at:04d}\n"
        if at == 3
        else f"step {at:4d}/1840 | time: {at * 61 + 1000:,}ms | step avg: 61.23ms\n"
        for at in range(1, 6)
    )
    run_log = parse_log(text)
    assert run_log.trainer.id == "modded-nanogpt"
    assert run_log.steps.iteration.tolist() == [1, 2, 3, 4, 5]
    assert [(done.iteration, done.val_loss) for done in run_log.evals] == [(3, 3.0003)]
    assert run_log.steps.ms[1:].tolist() == [61, 61, 61, 61]


def test_a_derivative_with_more_fields() -> None:
    run_log = parse_log(
        "step:0/20000 val_loss:6.9357 val_bpb:4.1077 train_time:0ms step_avg:0.02ms\n"
        "step:1/20000 train_loss:6.9370 train_time:27ms step_avg:27.23ms\n"
        "step:201/20000 train_loss:2.9370 lr:0.0003 train_time:10027ms step_avg:27.23ms tok_s:12\n"
    )
    assert run_log.steps.iteration.tolist() == [1, 201]
    assert run_log.steps.ms[1] == 50
    assert run_log.evals[0].val_loss == 6.9357


def test_losses_in_scientific_notation() -> None:
    run_log = parse_log("step:1/9 train_loss:1.082584e+01 train_time:6029ms step_avg:6028.64ms\n")
    assert run_log.steps.loss[0] == pytest.approx(10.82584)


def test_its_own_source_says_nothing() -> None:
    expected = modded(COURSE)
    source = (
        "train_time = 0\nbatch_size : int = 8*64*1024 # batch size, in tokens\n"
        'print0(f"step:{step+1}/{train_steps} train_time:{approx:.0f}ms step_avg:{approx/(step+1):.2f}ms")\n'
        "raise RuntimeError('out of memory')\nexcept KeyboardInterrupt:\n    pass\n"
        'print0(f"peak memory allocated: {torch.cuda.max_memory_allocated() // 1024 // 1024} MiB")\n'
    )
    check_facts(source + expected.text, expected)
    check_facts(source + expected.truncated(25).text, expected.truncated(25))


def test_a_run_that_was_evaluated_at_0_includes_what_came_before_its_first_line() -> None:
    """As of the optimization track: a line is an evaluation, and the first comes before the first update."""
    lines = [
        f"step:{at}/1000 val_loss:3.{at} train_time:{at * 10}ms step_avg:10ms" for at in range(0, 1001, 125)
    ]
    assert parse_facts("\n".join([*lines, ""])).total_s == pytest.approx(10.0)
    assert parse_facts("\n".join([*lines[1:], ""])).total_s == pytest.approx(7.51)


def test_a_total_in_tenths_of_seconds_has_a_mean_that_is_finer() -> None:
    (run_log,) = parse_logs(
        "step:0/40 val_loss:10.8 train_time:0ms step_avg:0.03ms\n"
        + "".join(
            f"step:{at}/40, train_time:{at * 0.25:.1f} secs, step_avg:250.00ms, "
            f"train loss:{9 - at / 10:.2f},  lr:1.0\n"
            for at in range(1, 41)
        )
        + "step:40/40 val_loss:4.2 train_time:10000ms step_avg:250.00ms\n"
    )
    assert run_log.steps.ms.tolist() == [250.0] * 40
    assert run_log.steps.loss[[0, -1]].tolist() == [8.9, 5.0]
    assert [one.iteration for one in run_log.evals] == [0, 40]


def test_a_share_of_the_peak_of_the_learning_rate() -> None:
    line = "step:{}/200 train_loss:3.2 lr_scale:{} muon_mom:0.95 train_time:{}ms step_avg:100.00ms\n"
    run_log = parse_log(
        "".join(line.format(at, min(1.0, (200 - at) / 80), 100 * at) for at in range(10, 201, 10))
    )
    assert run_log.trainer.lr_is_share_of_peak
    assert run_log.steps.lr[[0, -3]].tolist() == [1.0, 0.25]
