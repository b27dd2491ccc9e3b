"""What lines besides the usual step say: first evaluations, means, saves in other words, ends."""

from __future__ import annotations

import pytest
from log_checks import parse_facts, parse_log

from glassgpt.runs.analysis import Analysis

# --- times ---


def test_a_time_per_iteration_is_a_mean_over_the_interval() -> None:
    """The first line has the compilation in it, and the line of an evaluation a tenth of what that takes."""
    text = "".join(
        f"[eval] iter {at}: train 2.6 val 2.7 lr 3.00e-05\n" * (at % 100 == 0)
        + f"[train] iter {at}: loss 2.7 {9000 if at == 10 else 1500 if at % 100 == 0 else 1000} ms/iter\n"
        * (at > 0)
        for at in range(0, 501, 10)
    )
    run_log = parse_log(text)
    trainer, facts = run_log.trainer, Analysis(run_log).facts
    assert trainer.step_time_is_interval_mean
    assert not trainer.clock_reads_before_sync
    assert facts.eval_steps == [0, 100, 200, 300, 400, 500]
    assert (facts.first_iteration_ms, facts.startup_ms, facts.eval_overhead_ms) == (None, None, None)
    assert facts.total_s == pytest.approx((9000 + 5 * 1500 + 44 * 1000) * 10 / 1000)


def test_a_time_per_iteration_of_every_line_is_its_own() -> None:
    text = "".join(f"iter {at}: loss 2.7 {1000 + at} ms/iter\n" for at in range(20))
    assert not parse_log(text).trainer.step_time_is_interval_mean


def test_totals_so_far_are_means_over_the_lines_between() -> None:
    """modded-nanogpt's: ten lines of a step each, then one for 500 steps, slower from the middle on."""
    total, lines = 0, []
    for at in [*range(1, 11), *range(500, 4001, 500)]:
        total += 100 if at <= 10 else 500 * (100 if at <= 2000 else 140)
        lines.append(f"step:{at}/4000 train_loss:3.0 train_time:{total}ms step_avg:{total / at:.2f}ms\n")
    facts = parse_facts("".join(lines))
    assert facts.total_s == pytest.approx(total / 1000, rel=0.01)
    assert facts.steady_p95_ms is None


def test_a_time_is_not_that_of_one_line() -> None:
    """nanochat evaluates as often as it prints; its times leave evaluations out."""
    times = [400.0, 170.0, 174.0, 171.0, 175.0, 173.0, 190.0]
    text = "".join(
        f"Step {at:05d} | Validation bpb: 1.0\n" * (at < 1200)
        + f"step {at:05d}/01201 (1.00%) | loss: 3.0 | lrm: 1.00 | dt: {ms:.2f}ms | tok/sec: 10 | mfu: 30.00\n"
        for at, ms in zip(range(0, 1201, 200), times, strict=True)
    )
    assert parse_facts(text).steady_ms == pytest.approx(173.5)


def test_the_stamps_of_hugging_faces_libraries_are_read() -> None:
    text = "".join(
        f"[INFO|trainer.py:{at}] 2025-04-01 08:{at:02d}:00,020 >> a\n{{'loss': 2.5, 'epoch': 0.{at:02d}}}\n"
        for at in range(10, 60)
    )
    assert Analysis(parse_log(text)).facts.stamped_s == pytest.approx(49 * 60)


# --- sizes ---


@pytest.mark.parametrize("what", ["", " (total)"])
def test_flops_per_token_are_those_that_the_log_states(what: str) -> None:
    text = f"Estimated FLOPs per token{what}:  2.5e+08\nEstimated FLOPs per token (active): 1.5e+08\n"
    step = "step {at:05d}/00100 (1.00%) | loss: 3.0 | lrm: 1.00 | dt: 100.00ms | tok/sec: 10 | mfu: 30.00\n"
    facts = parse_facts(text + "".join(step.format(at=at) for at in range(20)))
    assert facts.flops_per_token == 2.5e8


# --- evaluations and saves ---


def test_a_metric_after_the_first_epoch_is_of_that_epoch() -> None:
    text = "".join(
        f"Epoch {at}, loss {1 / at:.4f}\nValidation accuracy: {40 + at}.00%\n" for at in range(1, 11)
    )
    facts = parse_facts(text)
    assert facts.eval_steps == list(range(1, 11))
    (course,) = facts.metrics
    assert (course["first"], course["last"], course["values"]) == (0.41, 0.50, 10)


def test_a_metric_after_a_summary_is_of_no_step() -> None:
    """The first line of an epoch is a summary where steps follow."""
    text = "Epoch 1, loss 9.0\nValidation accuracy: 40.00%\n" + "".join(
        f"step {at}, loss {3 - at / 20:.4f}\n" for at in range(1, 11)
    )
    assert parse_facts(text).metrics == []


@pytest.mark.parametrize(
    "line",
    [
        "saved out/net.pt (68224 weights, 5 layers)",
        "Sauvegarde du modèle SFT: /home/a/sft_model.pt",
        "Modell gespeichert: out/modell.safetensors",
        "模型已保存到 out/model.pth",
        "Model saved to out",
        "[Checkpoint] epoch 18 saved (latest + best)",
        "SFT done in 11.7 min -> sft.pt",
    ],
)
def test_a_save_in_other_words(line: str) -> None:
    text = "".join(f"step {at}, loss {3 - at / 20:.4f}\n" for at in range(1, 11)) + f"{line}\n"
    assert parse_facts(text).checkpoint_steps == [10]


@pytest.mark.parametrize(
    "line",
    [
        "saved out/samples.txt", "saving energy", "Savings: 3.pt", "best.pt is loaded",
        "No saved model found. Starting from scratch.", "Loading the saved model from out/model.pt",
        "saved checkpoint not found: out/best.pt",
    ],
)  # fmt: skip
def test_what_is_no_save(line: str) -> None:
    text = "".join(f"step {at}, loss {3 - at / 20:.4f}\n" for at in range(1, 11)) + f"{line}\n"
    assert parse_facts(text).checkpoint_steps is None


# --- ends ---


@pytest.mark.parametrize(
    ("line", "done"),
    [
        ("Target loss 0.1 reached at step 18, loss=0.094", 18),
        ("Total time exceeded 1 minute, ending training", None),
        ("early stop: no better for 4 evaluations", None),
        ("Done! Best val loss 1.234 at 10", None),
    ],
)
def test_a_run_that_ends_by_a_limit_of_its_own(line: str, done: int | None) -> None:
    text = "".join(f"step {at}, loss {3 - at / 20:.4f}\n" for at in range(5, 16, 5)) + f"{line}\n"
    run_log = parse_log(text)
    assert (Analysis(run_log).facts.ended, run_log.iterations_done) == ("finished", done)


THREAD = """Exception in thread Thread-2 (_reader):
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
UnicodeDecodeError: 'gbk' codec can't decode byte 0x80
"""


@pytest.mark.parametrize(("error", "ended"), [(THREAD, "cut"), (THREAD.partition("\n")[2], "crashed")])
def test_an_exception_in_a_thread_is_not_the_end_of_the_program(error: str, ended: str) -> None:
    text = "".join(f"step {at}, loss {3 - at / 20:.4f}\n" for at in range(1, 11)) + error
    assert parse_facts(text).ended == ended
    assert parse_facts(text + "Traceback (most recent call last):\nValueError: no\n").ended == "crashed"


def test_tokens_of_batches_of_different_length_are_a_mean() -> None:
    bar = "{at:3d}%|#         | {at}/100 [{at:02d}:00<10:00, 60.00s/it]"
    tokens, text = 0, ""
    for at in range(1, 21):
        tokens += 1000 if at == 1 else 500
        text += bar.format(at=at) + f"{{'loss': 2.0, 'num_tokens': {tokens}.0, 'epoch': {at / 100}}}\n"
    assert parse_facts(text).tokens_per_iteration == 500
