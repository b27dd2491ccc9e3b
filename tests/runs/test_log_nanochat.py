"""nanochat: pretraining, mid-training, fine-tuning, then and now."""

from __future__ import annotations

import pytest
from log_checks import check_facts, parse_facts, parse_log
from printed import SyntheticRun
from printed_more import nanochat, nanochat_sft, nanochat_sft_old

COURSE = SyntheticRun(updates=33, eval_every=10)


@pytest.mark.parametrize("told", [nanochat(COURSE), nanochat_sft(COURSE), nanochat_sft_old(COURSE)])
def test_every_script(told: object) -> None:
    check_facts(told.text, told)  # type: ignore[attr-defined, arg-type]


@pytest.mark.parametrize(
    "line",
    [
        "step {at:05d}/00050 (4.00%) | loss: 9.123456 | lrm: 0.01 | dt: 100.25ms | tok/sec: "
        "4,883 | mfu: 47.50 | total time: 0.05m",
        "step {at:05d}/00050 (4.00%) | loss: 9.123456 | grad_norm: 0.12345 | lrm: 0.01 | dt: "
        "100.25ms | tok/sec: 4,883 | mfu: 47.50 | total time: 0.05m",
        "step {at:05d}/00050 (4.00%) | loss: 9.123456 | lrm: 0.01 | dt: 100.25ms | tok/sec: "
        "4,883 | bf16_mfu: 47.50 | epoch: 1 pq: 0 rg: 10 | total time: 1.44m | eta: 165.3m",
        "step {at:05d} (4.00%) | loss: 9.123456 | lrm: 0.01 | dt: 100.25ms | tok/sec: 4,883 "
        "| mfu: 47.50 | epoch: 1 | total time: 0.05m",
    ],
)
def test_forms_of_its_line(line: str) -> None:
    run_log = parse_log("".join(line.format(at=at) + "\n" for at in range(3)))
    assert run_log.trainer.id == "nanochat"
    steps = run_log.steps
    assert steps.iteration.tolist() == [0, 1, 2]
    assert (steps.loss[1], steps.ms[1], steps.mfu[1], steps.tokens_per_s[1]) == (9.123456, 100.25, 47.5, 4883)
    assert steps.lr.tolist() == [0.01] * 3  # lrm: a factor, which only forecasts read
    assert run_log.trainer.lr_is_share_of_peak


def test_bits_per_byte_are_no_loss() -> None:
    facts = parse_facts(nanochat(COURSE).text)
    assert facts.val_metric == "bits_per_byte"
    assert parse_facts(nanochat_sft_old(COURSE).text).val_metric == "loss"


def test_the_last_evaluation_has_no_step() -> None:
    facts = parse_facts(nanochat(COURSE).text)
    assert (facts.last_iteration, facts.eval_steps) == (32, [0, 10, 20, 30, 33])


def test_its_metric_of_answers_is_no_validation() -> None:
    expected = nanochat(COURSE)
    text = expected.text.replace(
        "Peak memory",
        "Evaluating: hellaswag (10-shot, type: multiple_choice)... accuracy: 0.25\nStep "
        "00033 | ChatCORE: 0.2\nPeak memory",
    )
    check_facts(text, expected)


def test_nan() -> None:
    facts = parse_facts(nanochat_sft(SyntheticRun(updates=20, nan_from=4)).text)
    assert facts.nan_step == 4


def test_a_resumed_run() -> None:
    first, second = nanochat(COURSE), nanochat(COURSE)
    lines = [line for line in second.lines if "Step 00000" not in line]
    text = first.truncated(len(first.parts) - 20).text + "Resuming optimization from step 10\n"
    text += "\n".join(line for line in lines if not line.startswith("step 0000")) + "\n"
    run_log = parse_log(text)
    assert [segment.resumed for segment in run_log.segments] == [False, True]
    assert parse_facts(text).ended == "finished"


def test_source_code_in_front_of_the_log_is_no_log() -> None:
    expected = nanochat(COURSE)
    source = (
        'print0(f"Step {step:05d} | Validation bpb: {val_bpb:.6f}")\n'
        'print0(f"Total batch size {total_batch_size:,} => gradient accumulation steps: '
        '{grad_accum_steps}")\n'
        'print0(f"Peak memory usage: {get_max_memory() / 1024 / 1024:.2f}MiB")\n'
        'print0(f"Minimum validation bpb: {min_val_bpb:.6f}")\n'
        "total_tokens = args.total_batch_size * num_iterations\n"
        'parser.add_argument("--learning_rate", type=float, default=0.02)\n'
    )
    check_facts(source * 5 + expected.text, expected)
