"""Lines quoted in notes, issues and chats: in bold, in pieces, out of order, more than once."""

from __future__ import annotations

import math

import pytest
from log_checks import parse_facts, parse_log, parse_logs


def test_lines_in_bold_and_in_code_blocks() -> None:
    run_log = parse_log(
        "What do these mean?\n\n```\niter 0: loss 10.8, time 12543.00ms, mfu -100.00%\n"
        "iter 10: loss 8.1, time 168.00ms, mfu 11.00%\n```\n\n"
        "**step 500: train loss 5.1000, val loss 5.2000**\n\n"
        "- **iter 500: loss 5.1, time 5985.00ms, mfu 10.00%**\n"
    )
    assert run_log.steps.iteration.tolist() == [0, 10, 500]
    assert run_log.steps.ms.tolist() == [12543, 168, 5985]
    assert [done.iteration for done in run_log.evals] == [0, 500] or [
        done.iteration for done in run_log.evals
    ] == [500]


def test_a_line_without_a_loss() -> None:
    run_log = parse_log(
        "```\niter 1210: time 168.00ms\niter 1220: time 5985.00ms\niter 1230: time 169.00ms\n```\n"
    )
    assert run_log.steps.iteration.tolist() == [1210, 1220, 1230]
    assert run_log.steps.ms.tolist() == [168, 5985, 169]
    assert not run_log.steps.has_loss.any()
    facts = parse_facts("```\niter 1210: time 168.00ms\niter 1220: time 169.00ms\n```\n")
    assert (facts.loss_first, facts.loss_last, facts.nan_step) == (None, None, None)


def test_quotes_out_of_order_are_one_run() -> None:
    text = (
        "```\niter 20: loss 3.0, time 33.00ms, mfu 11.09%\niter 30: loss 2.9, time 33.00ms, mfu 11.09%\n```\n"
        "It began so:\n```\niter 0: loss 4.2, time 12543.00ms, mfu -100.00%\niter 10: loss "
        "3.5, time 33.00ms, mfu 11.00%\n```\n"
    )
    facts = parse_facts(text)
    assert (facts.segments, facts.first_iteration, facts.last_iteration) == (1, 0, 30)
    assert (facts.loss_first, facts.loss_last) == (4.2, 2.9)


def test_a_line_quoted_again_is_the_same_line() -> None:
    line = "iter 20: loss 3.0, time 33.00ms, mfu 11.09%\n"
    text = f"```\niter 10: loss 3.5, time 33.00ms, mfu 11.00%\n{line}```\nLook at this one:\n```\n{line}```\n"
    facts = parse_facts(text)
    assert (facts.iterations_logged, facts.segments) == (2, 1)


def test_a_piece_of_a_line_adds_nothing_wrong() -> None:
    text = (
        "```\niter 10: loss 3.5, time 33.00ms, mfu 11.00%\niter 20: loss 3.0, time "
        "35.00ms, mfu 11.09%\n```\nWhy `iter 10: time 33.00ms`?\n"
    )
    facts = parse_facts(text)
    assert (facts.iterations_logged, facts.steady_ms, facts.loss_first) == (2, 34, 3.5)


def test_quotes_that_contradict_each_other_are_several_runs() -> None:
    text = (
        "On the CPU:\n```\niter 0: loss 4.2, time 100.00ms\niter 10: loss 4.0, time 101.00ms\n```\n"
        "On the GPU:\n```\niter 0: loss 4.2, time 10.00ms\niter 10: loss 3.0, time 11.00ms\n```\n"
    )
    assert [run_log.steps.loss.tolist() for run_log in parse_logs(text)] == [[4.2, 4.0], [4.2, 3.0]]


def test_elided_middles(subtests: pytest.Subtests) -> None:
    for middle in ("...", "…", "[...]", "(many more lines)", ":"):
        with subtests.test(middle):
            text = (
                "step 0: train loss 4.2, val loss 4.3\niter 0: loss 4.2667, time 900.00ms\niter 1: "
                "loss 4.1, time 10.00ms\n"
                f"{middle}\niter 499: loss 2.1, time 12.00ms\nstep 500: train loss 2.0, val loss "
                f"2.1\niter 500: loss 2.0, time 300.00ms\n"
            )
            facts = parse_facts(text)
            assert (facts.iterations_logged, facts.segments, facts.last_iteration) == (4, 1, 500)
            assert facts.log_interval == 1
            assert facts.steady_ms == 11
            assert facts.estimated_total_s == pytest.approx((900 + 10 + 12 + 300 + 497 * 11) / 1000)


def test_values_left_out_are_not_made_up() -> None:
    run_log = parse_log(
        "```\nstep 250: train loss ..., val loss ...\niter 250: loss ..., time 26177.52ms\n```\n"
    )
    assert run_log.steps.ms.tolist() == [26177.52]
    assert not run_log.steps.has_loss.any()
    assert all(done.val_loss is None for done in run_log.evals)
    facts = parse_facts(
        "```\nstep 250: train loss ..., val loss ...\niter 250: loss ..., time 26177.52ms\n```\n"
    )
    assert facts.val_metric is None
    assert facts.best_val_loss is None


def test_prose_around_a_quote_is_not_about_the_run() -> None:
    log = "".join(f"iter {at}: loss 3.0, time 33.00ms\n" for at in range(5))
    text = (
        f"# Training\n```\n{log}```\n\n## Issue: CUDA out of memory\n\nIf you see "
        f"`RuntimeError: CUDA out of memory`, "
        "or KeyboardInterrupt, or a Traceback, lower the batch size.\n\n```\nRuntimeError: "
        "CUDA out of memory. Tried to allocate 2 GiB\n```\n"
    )
    assert parse_facts(text).ended == "cut"
    assert not math.isnan(parse_facts(text).steady_ms or math.nan)


def test_an_accident_inside_the_quote_is() -> None:
    log = "".join(f"iter {at}: loss 3.0, time 33.00ms\n" for at in range(5))
    text = (
        f"Help:\n```\n{log}Traceback (most recent call last):\ntorch.OutOfMemoryError: "
        f"CUDA out of memory. Tried to allocate 2 GiB\n```\n"
    )
    assert parse_facts(text).ended == "oom"


def test_what_a_model_writes_does_not_make_a_log_a_quote() -> None:
    lines = [f"iter {at}: loss 3.0, time 33.00ms, mfu 5.00%" for at in range(0, 60, 10)]
    sample = ["```python", "print('iter 0')", "```", "**iter** 3"]
    text = "\n".join([*lines[:3], *sample, *lines[3:], "KeyboardInterrupt"]) + "\n"
    run_log = parse_log(text)
    assert not run_log.is_excerpt
    assert parse_facts(text).ended == "interrupted"
