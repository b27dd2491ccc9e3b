"""llm.c in all its forms."""

from __future__ import annotations

import math

import pytest
from log_checks import check_facts, expected_facts, parse_facts, parse_log, parse_logs
from printed import LLMC_LINES, SyntheticRun, llmc, llmc_c, llmc_file, llmc_python

from glassgpt.runs.analysis import Analysis

COURSE = SyntheticRun(updates=33, eval_every=10)


@pytest.mark.parametrize("form", LLMC_LINES)
def test_every_form_of_the_cuda_trainer(form: str) -> None:
    expected = llmc(COURSE, form)
    assert parse_log(expected.text).trainer.id == "llm.c"
    check_facts(expected.text, expected)


@pytest.mark.parametrize("told", [llmc_c(COURSE), llmc_python(COURSE), llmc_file(COURSE)])
def test_its_other_programs(told: object) -> None:
    check_facts(told.text, told)  # type: ignore[attr-defined, arg-type]


def test_its_programs_number_their_first_iteration_differently() -> None:
    """And not only in the lines: what a loss at the start means depends on it."""
    firsts = {}
    for write in (llmc, llmc_c, llmc_python, llmc_file):
        run_log = parse_log(write(COURSE).text)
        assert run_log.trainer.first_iteration == run_log.steps.iteration[0], write.__name__
        firsts[write.__name__] = run_log.trainer.first_iteration
    assert firsts["llmc_c"] == 0
    assert firsts["llmc"] == 1


def test_a_resumed_run() -> None:
    expected = llmc(COURSE, resumes_at=20)
    run_log = parse_log(expected.text)
    assert run_log.segments[0].resumed
    check_facts(expected.text, expected)


def test_an_evaluation_belongs_to_the_step_before_it() -> None:
    run_log = parse_log(
        "val loss 11.0\nstep    1/2 | loss 11.0 (+nanz)| norm 22.1 (+nanz)| lr 8.57e-07 | 3091.12 ms | "
        "-100.0% bf16 MFU | 169611 tok/s\nstep    2/2 | loss     nan (+nanz)| norm     nan "
        "(-nanz)| lr 8.57e-07 | "
        "2600.00 ms | -100.0% bf16 MFU | 169611 tok/s\nval loss 10.5\ntotal average iteration time: 2 ms\n"
    )
    assert [(done.iteration, done.val_loss) for done in run_log.evals] == [(0, 11.0), (2, 10.5)]
    assert math.isnan(run_log.steps.loss[1])
    assert run_log.steps.has_loss.all()
    assert math.isnan(run_log.steps.mfu[0])  # -100 stands for a card that it does not know


def test_progress_that_is_glued_to_the_next_line() -> None:
    expected = llmc(COURSE)
    text = expected.text.replace(
        "Writing checkpoint", "evaluating HellaSwag: 1/837\revaluating HellaSwag: 8/837\rWriting checkpoint"
    )
    check_facts(text.replace("\r", "\n"), expected)


def test_the_batch_is_also_told_in_a_sentence() -> None:
    text = (
        "num_parameters: 1557686400 => bytes: 3115372800\n"
        "batch_size B=16 * seq_len T=1024 * num_processes=8 and total_batch_size=1048576\n"
        "=> setting grad_accum_steps=8\nval loss 11.129390\n"
        "step    1/32000 | loss 11.13 (+nanz)| norm 52.9 (+nanz)| lr 8.57e-07 | 3056.36 ms | "
        "42.6% bf16 MFU | 343080 tok/s\n"
        "step    2/32000 | loss 10.53 (+nanz)| norm 43.5 (+nanz)| lr 1.71e-06 | 2747.19 ms | "
        "47.4% bf16 MFU | 381690 tok/s\n"
    )
    facts = parse_facts(text)
    assert (facts.tokens_per_iteration, facts.parameters) == (1048576, 1557686400)
    assert facts.tokens_per_s == pytest.approx(1048576 / 2.74719)


CPU = (
    "val loss 5.252026\nstep 0: train loss 5.356189 (took 1452.121000 ms)\n"
    "step 1: train loss 4.301069 (took 1288.673000 ms)\n...\nstep 39: train loss 3.970751 (took 1323.7 ms)\n"
    "val loss 4.107781\n"
)
CUDA = (
    "step 1/74: train loss 4.367631 (80.639749 ms)\nstep 2/74: train loss 4.031242 (77.378867 ms)\n...\n"
    "step 74/74: train loss 3.467508 (78.009975 ms)\nval loss 3.516490\n"
)
OLD_CUDA = (
    "val loss 4.517436\nstep 0: train loss 4.368065 (took 52.865066 ms)\nstep 1: "
    "train loss 4.406586 (took 53.2 ms)\n"
)


def test_two_programs_in_one_text() -> None:
    """The CPU one, elided, then the CUDA one: each with its own way to number evaluations."""
    runs = [Analysis(one).facts for one in parse_logs(f"First:\n```\n{CPU}```\nThen:\n```\n{CUDA}```\n")]
    assert [facts.eval_steps for facts in runs] == [[0, 40], [74]]
    assert (runs[1].best_val_loss, runs[1].best_val_step) == (3.51649, 74)


def test_an_evaluation_belongs_to_the_block_it_stands_in() -> None:
    runs = parse_logs(f"First:\n```\n{CPU}```\nThen:\n```\n{OLD_CUDA}```\n")
    assert [[(done.iteration, done.val_loss) for done in run_log.evals] for run_log in runs] == [
        [(0, 5.252026), (40, 4.107781)],
        [(0, 4.517436)],
    ]


def test_skipped_updates_are_noted() -> None:
    expected = llmc(COURSE)
    text = expected.text.replace("step    5/33", "skipping update due to loss z-score of 4.5\nstep    5/33")
    run_log = parse_log(text)
    assert [event.text for event in run_log.events if event.kind == "warning"] == [
        "skipping update due to loss z-score of 4.5"
    ]
    check_facts(text, expected)


def test_main_log_of_a_whole_run_ends_off_the_grid() -> None:
    expected = llmc_file(COURSE)
    closing = expected.text + "s:33 tel:2.5000\n"
    facts = parse_facts(closing)
    assert (facts.ended, facts.final_val_loss, facts.eval_steps) == ("finished", 2.5, [0, 10, 20, 30, 33])


def test_its_end_line_makes_it_finished_and_nothing_else() -> None:
    expected = llmc(COURSE)
    assert expected_facts(expected)["ended"] == parse_facts(expected.text).ended == "finished"
    middle = [line for line in expected.lines if line.startswith("step")][:20]
    assert parse_facts("\n".join(middle) + "\n").ended == "cut"
