"""nanochat: pretraining, mid-training, fine-tuning, then and now."""

from __future__ import annotations

import pytest
from log_checks import check_facts, parse_facts, parse_log, parse_logs
from printed import SyntheticRun
from printed_more import nanochat, nanochat_sft, nanochat_sft_old

from glassgpt.explain.explanation import explain_runs
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import longest_run

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


def stage_lines(stage: str, bpb: tuple[float, ...], batch: str, total: bool) -> str:
    """One script of the recipe: evaluations 100 updates apart, and the weights at its end."""
    updates = 100 * (len(bpb) - 1)
    text = "2026-02-02 00:09:58,013 - nanochat - INFO - Distributed world size: 8\n"
    text += f"Total batch size {batch} => gradient accumulation steps: 1\n"
    for at in range(0, updates, 50):
        if at % 100 == 0:
            text += f"Step {at:05d} | Validation bpb: {bpb[at // 100]:.4f}\n"
        planned = f"/{updates:05d}" if total else ""
        text += (
            f"step {at:05d}{planned} ({100 * at / updates:.2f}%) | loss: 3.123456 | lrm: 1.00 | "
            "dt: 476.16ms | tok/sec: 1,101,075 | mfu: 48.59 | total time: 0.00m\n"
        )
    text += f"Step {updates:05d} | Validation bpb: {bpb[-1]:.4f}\n"
    return (
        text
        + f"Saved model file to: /x/{stage}_checkpoints/d20/model_{updates:06d}.pt\nTotal training time: 1m\n"
    )


def test_stages_of_the_recipe_are_runs_of_their_own() -> None:
    """The loss of mid-training is lower, on other data: it is no better."""
    text = (
        stage_lines("base", (3.3, 1.2, 0.9, 0.81), "524,288", total=True)
        + "Final: 912/2376 (38.38%)\n"
        + stage_lines("mid", (0.69, 0.39), "262,144", total=False)
        + stage_lines("chatsft", (0.41, 0.40), "65,536", total=True)
    )
    runs = parse_logs(text)
    assert [run_log.stage for run_log in runs] == ["base", "mid", "sft"]
    facts = [Analysis(run_log).facts for run_log in runs]
    assert [one.best_val_loss for one in facts] == [0.81, 0.39, 0.40]
    assert [one.tokens_per_iteration for one in facts] == [524_288, 262_144, 65_536]
    assert [(one.ended, one.device_count) for one in facts] == [("finished", 8)] * 3
    assert [run_log.first_line for run_log in runs] == [
        number for number, line in enumerate(text.splitlines(), 1) if "world size" in line or number == 1
    ]
    explanation = explain_runs(runs)
    assert explanation.facts.best_val_loss == 0.81
    assert "base, mid, sft" in explanation.verdict[0]


def test_a_stage_that_resumes_is_one_run() -> None:
    """Only its last process saves, and so says which stage it is."""
    whole = stage_lines("base", (3.3, 1.2, 0.9, 0.81), "524,288", total=True)
    lines = whole.splitlines(keepends=True)
    (run_log,) = parse_logs("".join(lines[:8] + lines[:2] + lines[6:]))
    assert (run_log.stage, len(run_log.segments)) == ("base", 2)


def test_two_commands_that_write_one_file_are_two_runs() -> None:
    """Each line has the number of planned iterations, which tells them apart."""
    line = (
        "step {:05d}/{:05d} (1.00%) | loss: {:.6f} | lrm: 1.00 | dt: {:.2f}ms | tok/sec: 4,883 | mfu: 47.50\n"
    )
    large = [line.format(at, 9000, 9 - at / 1000, 900.0) for at in range(0, 1000, 20)]
    small = [line.format(at, 1600, 8 - at / 1000, 400.0) for at in range(0, 1600, 20)]
    turns = [large[:3], small[:3], large[3:4], small[3:12], large[4:16], small[12:], large[16:]]
    run_logs = parse_logs("".join(line for turn in turns for line in turn))
    assert [(len(one.steps), len(one.segments)) for one in run_logs] == [(50, 1), (80, 1)]
    for run_log, ms, step in zip(run_logs, (900.0, 400.0), (980, 1580), strict=True):
        assert run_log.steps.iteration.tolist() == list(range(0, step + 1, 20))
        assert set(run_log.steps.ms) == {ms}


def test_the_longest_run_has_the_most_iterations() -> None:
    line = (
        "step {:05d}/{:05d} (1.00%) | loss: {:.6f} | lrm: 1.00 | dt: 9.00ms | tok/sec: 4,883 | mfu: 47.50\n"
    )
    rare = "".join(line.format(at, 20000, 9 - at / 10000, 900.0) for at in range(0, 20000, 500))
    often = "".join(line.format(at, 1000, 9 - at / 10000, 900.0) for at in range(0, 1000, 5))
    run_logs = parse_logs(rare + often)
    assert [len(one.steps) for one in run_logs] == [40, 200]
    assert longest_run(run_logs) is run_logs[0]
