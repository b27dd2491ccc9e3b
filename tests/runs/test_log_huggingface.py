"""Hugging Face's Trainer: dicts without a number, with or without a progress bar."""

from __future__ import annotations

import math

import numpy as np
import pytest
from log_checks import check_facts, parse_facts, parse_log, parse_logs
from printed import SyntheticRun
from printed_more import trainer

from glassgpt.explain.explanation import explain
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.exit_status import infer_exit_status
from glassgpt.runs.trainers.huggingface import interval_of_saves, steps_of_epochs
from glassgpt.runs.trajectory import last_iteration_done, mean_iteration_time

COURSE = SyntheticRun(updates=40, eval_every=10)
LOSS = "{'loss': 2.9543, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.03}\n"


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("bars", [False, True])
def test_a_whole_log(quoted: bool, bars: bool) -> None:
    expected = trainer(COURSE, quoted, bars)
    check_facts(expected.text, expected)


def test_forms_of_its_dict(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "{'loss': 2.9543, 'learning_rate': 4.9e-05, 'epoch': 0.03}",
        "{'loss': '2.9543', 'grad_norm': '1.2', 'learning_rate': '4.9e-05', 'epoch': '0.03'}",
        "{'loss': 2.9543, 'grad_norm': tensor(1.2, device='cuda:0'), 'learning_rate': "
        "4.9e-05, 'epoch': 0.03}",
        "{'loss': 2.9543, 'grad_norm': nan, 'learning_rate': 4.9e-05, 'epoch': 0.03, "
        "'num_input_tokens_seen': 24576}",
        "  3%|▎         | 10/330 [00:12<06:21,  1.19s/it]{'loss': 2.9543, 'learning_rate': "
        "4.9e-05, 'epoch': 0.03}",
        "{'loss': 2.9543, 'learning_rate': 4.9e-05, 'entropy': 4.01, 'mean_token_accuracy': "
        "0.08, 'epoch': 0.03}",
        "[INFO|trainer.py:2414] 2025-05-06 >> {'loss': 2.9543, 'learning_rate': 4.9e-05, 'epoch': 0.03}",
        "{'epoch': 0.03, 'learning_rate': 4.9e-05, 'loss': 2.9543}",
    ]
    for line in cases:
        with subtests.test(line):
            run_log = parse_log(line + "\n")
            assert run_log.trainer.id == "hf-trainer"
            assert run_log.steps.loss.tolist() == [2.9543]
            assert run_log.steps.lr.tolist() == [4.9e-5]


def test_without_a_bar_iterations_are_not_known() -> None:
    facts = parse_facts(LOSS * 3 + "{'eval_loss': 2.5, 'eval_runtime': 3.2, 'epoch': 0.1}\n")
    assert (facts.iterations_logged, facts.first_iteration, facts.eval_steps) == (3, None, None)
    assert (facts.best_val_loss, facts.best_val_step, facts.log_interval) == (2.5, None, None)


def test_the_third_version_said_the_step() -> None:
    text = "".join(
        f"{{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.{at}, 'step': {at}00}}\n" for at in range(1, 5)
    )
    facts = parse_facts(text)
    assert (facts.first_iteration, facts.last_iteration, facts.log_interval) == (100, 400, 100)


def test_the_time_of_an_evaluation() -> None:
    run_log = parse_log(LOSS + "{'eval_loss': 2.5, 'eval_runtime': 3.25, 'epoch': 0.1}\n")
    assert run_log.evals[0].ms == 3250


def test_nan_is_told_though_not_where() -> None:
    facts = parse_facts(LOSS.replace("2.9543", "nan") * 2)
    assert facts.loss_first is not None
    assert math.isnan(facts.loss_first)


def test_how_it_ended() -> None:
    cases: list[tuple[str, str]] = [
        ("Traceback (most recent call last):\n  File x\nKeyboardInterrupt\n", "interrupted"),
        ("Traceback (most recent call last):\nValueError: x\n", "crashed"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", "oom"),
        ("{'train_runtime': 22.5, 'train_loss': 1.09, 'epoch': 1.0}\n", "finished"),
        ("{'train_runtime': '211', 'train_samples_per_second': '0.948',\n 'train_loss': "
         "'2.425',\n 'epoch': '8'}\n", "finished"),
        ("\nTraining completed. Do not forget to share your model on huggingface.co/models =)\n", "finished"),
        ("", "cut"),
        ("some more text\n", "cut"),
    ]  # fmt: skip
    wrong = [
        (after, ended, got) for after, ended in cases if (got := parse_facts(LOSS * 3 + after).ended) != ended
    ]
    assert wrong == []


def test_several_runs_in_one_file() -> None:
    expected = trainer(COURSE)
    assert len(parse_logs(expected.text * 3)) == 3
    assert len(parse_logs(f"```\n{expected.text}```\nAgain:\n```\n{expected.text}```\n")) == 2


def test_newer_ones_say_the_runtime_in_every_dict() -> None:
    """Seconds since the start, and tokens so far: the differences say what an iteration takes."""
    lines = [
        f"{{'loss': 2.5, 'epoch': 0.0{at}, 'num_input_tokens_seen': {196_608 * at}, "
        f"'train_runtime': {27 + 3.5 * at}}}\n"
        f" {at}%|#| {at}/100 [00:27<44:53, 27.20s/it]\n"
        for at in range(1, 6)
    ]
    run_log = parse_log(" 0%|          | 0/100 [00:00<?, ?it/s]\n" + "".join(lines))
    assert run_log.steps.iteration.tolist() == [1, 2, 3, 4, 5]
    assert run_log.steps.ms.tolist() == pytest.approx([30_500, 3500, 3500, 3500, 3500])
    assert run_log.setup.tokens_per_iteration == 196_608
    assert run_log.setup.planned_iterations == 100


def test_a_bar_that_ended_before_training_is_not_the_trainings() -> None:
    expected = trainer(COURSE, bars=True)
    check_facts("100%|##########| 1/1 [00:00<00:00, 27.86it/s]\n" + expected.text, expected)


def test_the_header_at_verbosity_info() -> None:
    text = (
        "***** Running training *****\n  Num examples = 1,500\n  Num Epochs = 30\n"
        "  Instantaneous batch size per device = 4\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 16\n"
        "  Gradient Accumulation steps = 4\n  Total optimization steps = 40\n"
        "  Number of trainable parameters = 1,235,814,400\n"
    )
    run_log = parse_log(text + trainer(COURSE).text)
    assert run_log.setup.parameters == 1_235_814_400
    assert run_log.setup.planned_iterations == 40
    assert run_log.setup.settings["gradient_accumulation_steps"] == 4


def test_saves_have_a_number() -> None:
    expected = trainer(COURSE, bars=True)
    run_log = parse_log(expected.text + "Saving model checkpoint to out/checkpoint-40\n")
    assert [done.iteration for done in run_log.checkpoints] == [40]


def test_bars_of_other_things_do_not_count() -> None:
    expected = trainer(COURSE, bars=True)
    text = "Loading weights: 100%|█████| 713/713 [00:08<00:00, 81.39it/s]\n" + expected.text
    text = text.replace(
        "{'eval_loss'", "Map:  50%|█████     | 1500/3000 [00:11<00:11, 126.32 examples/s]\n{'eval_loss'"
    )
    check_facts(text, expected)


def test_a_resumed_run_goes_back_on_its_bar() -> None:
    def bar(at: int) -> str:
        return f"{at:3d}%|████      | {at}/100 [00:12<06:21,  1.19s/it]\n"

    def process(first: int, last: int) -> str:
        losses = {at: LOSS.replace("0.03", str(at / 100)) + bar(at) for at in range(10, 101, 10)}
        return bar(first) + "".join(bar(at) + losses.get(at, "") for at in range(first + 1, last + 1))

    text = process(0, 35) + process(20, 100)
    assert parse_log(text).steps.iteration.tolist() == [10, 20, 30, *range(30, 101, 10)]
    assert parse_facts(text).segments == 2


@pytest.mark.parametrize("after", ["", "{'eval_loss': 2.4, 'eval_runtime': 25.0, 'epoch': 0.1}\n"])
def test_what_evaluations_took_of_the_whole(after: str) -> None:
    """Of train_runtime, which holds those made on the way and not one made afterwards."""
    done = "{'eval_loss': 2.5, 'eval_runtime': 12.5, 'epoch': 0.1}\n"
    text = LOSS * 3 + done + LOSS * 3 + done + "{'train_runtime': 75.0, 'train_loss': 2.9, 'epoch': 0.1}\n"
    explanation = explain(parse_log(text + after))
    (finding,) = [finding for finding in explanation.findings if finding.id == "eval-spikes"]
    names = ("evaluations", "eval_s", "run_s", "eval_share")
    whole = (3, 50.0, 100.0, 0.5) if after else (2, 25.0, 75.0, 1 / 3)
    assert tuple(finding.values[name] for name in names) == pytest.approx(whole)


def test_a_dict_that_a_callback_prints_again_with_a_rounded_epoch() -> None:
    """Also evaluations. The rounded epoch may be lower than the one before: that is no new run."""
    text = ""
    for at in range(1, 9):
        for epoch in (f"{at / 800:.17f}", f"{at / 800:.2f}"):
            text += (
                f"{{'loss': {3 - at / 10:.4f}, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': {epoch}}}\n"
            )
        for epoch in (f"{at / 800:.17f}", f"{at / 800:.2f}"):
            text += f"{{'eval_loss': {2.5 - at / 10}, 'eval_runtime': 1.5, 'epoch': {epoch}}}\n"
    run_logs = parse_logs(text + "some callback failed: 'loss'\n" + text)
    assert [(len(one.steps), len(one.evals)) for one in run_logs] == [(8, 8), (8, 8)]
    for run_log in run_logs:
        assert run_log.steps.loss.tolist() == pytest.approx([3 - at / 10 for at in range(1, 9)])
        assert np.isinf(run_log.steps.grad_norm).all()  # printed, and not a number


def callback_log(steps: int, planned: int, epochs: int) -> str:
    """LLaMA-Factory's console where no bar is captured: a rounded part of each dict, then the dict. An epoch
    has 17.05 updates, and the plan counts 17."""
    lines = [
        "[INFO|trainer.py:2313] 2024-11-26 22:07:15,100 >> ***** Running training *****",
        f"[INFO|trainer.py:2315] 2024-11-26 22:07:15,100 >>   Num Epochs = {epochs:,}",
        f"[INFO|trainer.py:2321] 2024-11-26 22:07:15,101 >>   Total optimization steps = {planned:,}",
        "[INFO|trainer.py:2322] 2024-11-26 22:07:15,102 >>   Number of trainable parameters = 18,739,200",
    ]
    for at in range(5, steps + 1, 5):
        epoch, loss, lr = at / 17.05, 2.5 / (1 + at / 10), 5e-5 - at * 1e-9
        head = "11/26/2024 22:09:01 - INFO - llmtuner.extras.callbacks - "
        lines.append(f"{head}{{'loss': {loss:.4f}, 'learning_rate': {lr:.4e}, 'epoch': {epoch:.2f}}}")
        lines.append(
            f"{{'loss': {loss:.4f}, 'grad_norm': 0.5, 'learning_rate': {lr:.17f}, 'epoch': {epoch:.2f}}}"
        )
    return "\n".join([*lines, "Training completed. Do not forget to share your model on huggingface.co", ""])


def test_a_dict_whose_rounded_part_a_callback_printed_before() -> None:
    run_log = parse_log(callback_log(100, 17_000, 1000))
    assert len(run_log.steps) == 20
    assert run_log.steps.grad_norm.tolist() == [0.5] * 20


def test_numbers_that_are_too_large_are_compared_too() -> None:
    lines = [
        "{'loss': 1e400, 'learning_rate': 1e-400, 'epoch': 0.1}",
        "{'loss': 1e999, 'grad_norm': nan, 'learning_rate': 1e-400, 'epoch': 0.1}",
        "{'loss': 2.0, 'learning_rate': 0.1, 'epoch': 0.2}",
    ]
    assert parse_log("\n".join([*lines, ""])).steps.loss[-1] == 2.0


def test_dicts_without_a_bar_or_a_closing_dict_are_numbered_by_the_plan() -> None:
    run_log = parse_log(callback_log(2105, 17_000, 1000))
    assert run_log.steps.iteration.tolist() == list(range(5, 2106, 5))
    assert run_log.setup.planned_iterations == 17_000
    assert run_log.setup.epochs == pytest.approx(123.46)  # done, not planned
    assert infer_exit_status(run_log) == "finished"


def test_trainable_parameters_may_be_an_adapters() -> None:
    assert parse_log(callback_log(100, 17_000, 1000)).setup.parameters is None


def test_the_mean_time_of_an_iteration() -> None:
    run_log = parse_log(blocks())
    assert math.isnan(run_log.steps.ms[0])
    mean = mean_iteration_time(run_log, last_iteration_done(run_log))
    assert mean is not None
    assert mean[1] == pytest.approx(1000 * mean[0] / 380)
    assert mean[2] is None


@pytest.mark.parametrize("joint", ["\t", " | ", "     "])
def test_a_notebooks_table(joint: str) -> None:
    """The progress above it has the total, and its rows have their steps."""
    rows = [("Step", "Training Loss", "Validation Loss")]
    rows += [(f"{at}", "No log" if at == 10 else f"{3 - at / 100:.6f}", f"{3.1 - at / 100:.6f}") for at in
             range(10, 61, 10)]  # fmt: skip
    edge = "| " if "|" in joint else ""
    table = "".join(edge + joint.join(row) + "\n" for row in rows)
    if edge:
        table = table.replace("\n", "\n| --- | --- | --- |\n", 1)
    run_log = parse_log("[60/60 03:21, Epoch 1/1]\n" + table + "TrainOutput(global_step=60)\n")
    assert run_log.trainer.id == "hf-trainer"
    assert run_log.steps.iteration.tolist() == [10, 20, 30, 40, 50, 60]
    assert run_log.steps.has_loss.tolist() == [False] + [True] * 5
    assert run_log.steps.loss[1:].tolist() == pytest.approx([2.8, 2.7, 2.6, 2.5, 2.4])
    assert run_log.evals[-1].iteration == 60
    assert run_log.evals[-1].val_loss == pytest.approx(2.5)
    assert parse_facts("[60/60 03:21, Epoch 1/1]\n" + table).ended == "finished"


def test_a_table_of_epochs() -> None:
    table = "Epoch\tTraining Loss\tValidation Loss\n1\t2.5\t2.4\n2\t2.3\t2.2\n3\t2.1\t2.1\n"
    with_progress = parse_log("[300/300 12:01, Epoch 3/3]\n" + table)
    assert with_progress.steps.iteration.tolist() == [100, 200, 300]
    facts = parse_facts(table)
    assert (facts.iterations_logged, facts.last_iteration, facts.best_val_loss) == (3, None, 2.1)
    cut = "Epoch\tTraining Loss\tValidation Loss\n0\t2.5\t2.4\n1\t2.3\t2.2\n2\t2.1\t2.1\n"  # 0.99 is 0
    assert parse_log("[300/300 12:01, Epoch 2/3]\n" + cut).steps.iteration[0] > 0


@pytest.mark.parametrize("joint", ["/", " of "])
def test_unsloths_banner(joint: str) -> None:
    text = (
        "==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 2\n"
        "   \\\\   /|    Num examples = 9,999 | Num Epochs = 2 | Total steps = 5,000\n"
        "O^O/ \\_/ \\    Batch size per device = 4 | Gradient accumulation steps = 3\n"
        "\\        /    Data Parallel GPUs = 2 | Total batch size (4 x 3 x 2) = 24\n"
        f' "-____-"     Trainable parameters = 57,016,320{joint}6,852,203,520 (0.83% trained)\n'
    )
    run_log = parse_log(text + LOSS * 3)
    assert (run_log.setup.planned_iterations, run_log.setup.parameters) == (5000, 6_852_203_520)
    assert run_log.setup.world_size == 2
    assert run_log.setup.settings == {"batch_size": 4, "gradient_accumulation_steps": 3}


def test_the_loss_of_reinforcement_learning_may_be_zero_and_rise() -> None:
    """Group-relative rewards begin with a loss of exactly 0, and the loss grows with the divergence."""
    line = "{{'loss': {loss}, 'grad_norm': 0.5, 'learning_rate': 1e-06, {reward}'epoch': {epoch}}}\n"
    reward = "'rewards/format': 0.5, 'reward': 0.75, 'kl': 0.001, "
    for keys in ("", reward):
        text = "".join(
            line.format(loss=max(0, at - 5) / 1000, reward=keys, epoch=at / 100) for at in range(1, 99)
        )
        explanation = explain(parse_log(text))
        assert explanation.log.trainer.loss_measures_learning == (not keys)
        assert bool(explanation.findings) == (not keys)
    table = "Step\tTraining Loss\treward\tkl\n" + "".join(f"{at}\t0.00{at}\t0.5\t0.1\n" for at in range(9))
    assert not parse_log(table).trainer.loss_measures_learning


def test_axolotls_speed_is_of_one_gpu() -> None:
    line = (
        "{'loss': 1.5, 'memory/max_active (GiB)': 12.5, 'tokens_per_second_per_gpu': 1500.5, 'epoch': 0.1}\n"
    )
    assert parse_log(line * 3).steps.tokens_per_s[0] == 1500.5


def test_the_first_loss_of_an_excerpt_is_timed_from_its_first_bar() -> None:
    """Not from the start of the run, which the bar's time counts from; nor from another bar."""
    lines = [
        " 67%|######    | 2/3 [00:01<00:00,  1.42it/s]",
        " 32%|###       | 280/873 [25:00<52:46,  5.35s/it]",
        " 32%|###       | 284/873 [25:20<52:46,  5.35s/it]",
        "{'loss': 0.8635, 'learning_rate': 0.0001, 'epoch': 0.97}",
        " 32%|###       | 284/873 [25:20<52:46,  5.35s/it]",
        " 33%|###       | 288/873 [25:40<52:46,  5.35s/it]",
        "{'loss': 0.8535, 'learning_rate': 0.0001, 'epoch': 0.99}",
        "",
    ]
    run_log = parse_log("\n".join(lines))
    assert run_log.steps.iteration.tolist() == [284, 288]
    assert run_log.steps.ms.tolist() == [5000, 5000]


def test_an_evaluation_without_a_loss_before_it_is_not_always_the_first() -> None:
    evaluation = "{{'eval_loss': 1.3272, 'eval_runtime': 9.5, 'epoch': {epoch}}}\n"
    runtime = "{'train_runtime': 100.0, 'train_loss': 1.5, 'epoch': 3.0}\n"
    assert [parse_facts(runtime + evaluation.format(epoch=epoch)).eval_steps for epoch in (0, 3.0)] == [
        [0],
        None,
    ]


def test_the_total_time_is_of_the_process_with_the_losses() -> None:
    line = "{{'loss': {loss:.4f}, 'learning_rate': 1e-05, 'epoch': {epoch:.2f}}}\n"
    losses = "".join(line.format(loss=3 - at / 10, epoch=at / 10) for at in range(1, 11))
    later = "resuming training...\n{'train_runtime': 322.2, 'epoch': 1.0}\n"
    run_log = parse_log(losses + "{'train_runtime': 20461.8, 'train_loss': 3.9, 'epoch': 1.0}\n" + later)
    assert run_log.setup.wall_s == 20461.8


def blocks(bars: bool = True, closing: bool = True) -> str:
    """As Python writes to a file: bars at once, dicts in blocks."""
    steps, every, epochs, per_block = 380, 10, 3, 9
    lines: list[str] = []
    waiting: list[str] = []
    for at in range(1, steps + 1):
        if bars:
            lines.append(
                f"{100 * at // steps:3d}%|##   | {at}/{steps} [{at // 60:02d}:{at % 60:02d}<00:10,  1.00s/it]"
            )
        if at % every == 0:
            epoch = round(at / steps * epochs, 2)
            waiting.append(f"{{'loss': {3 - at / steps:.4f}, 'learning_rate': 1e-05, 'epoch': {epoch}}}")
        if len(waiting) == per_block or at == steps:
            lines, waiting = lines + waiting, []
    if closing:
        rate = f"'train_steps_per_second': {steps / 400.5:.3f}"
        lines.append(f"{{'train_runtime': 400.5, {rate}, 'train_loss': 2.5, 'epoch': {float(epochs)}}}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("bars", [False, True])
def test_dicts_in_blocks_are_numbered_by_their_epochs(bars: bool) -> None:
    run_log = parse_log(blocks(bars=bars))
    assert run_log.steps.iteration.tolist() == list(range(10, 381, 10))
    facts = Analysis(run_log).facts
    assert (facts.steady_ms, facts.steady_p95_ms, facts.first_iteration_ms) == (None, None, None)
    assert (facts.estimated_total_s, facts.total_s, facts.wall_s) == (None, 400.5, 400.5)
    assert run_log.setup.planned_iterations == (380 if bars else None)


def test_dicts_in_blocks_without_a_closing_dict_have_the_bars_time_only() -> None:
    run_log = parse_log(blocks(closing=False))
    assert not run_log.has_iteration_numbers
    assert Analysis(run_log).facts.total_s == 380


def test_epochs_that_do_not_fit_one_interval_number_nothing() -> None:
    assert steps_of_epochs(["0.1", "0.2", "0.9"], 1.0, 1000.0, 0.0) is None
    assert steps_of_epochs(["0.25", "0.5", "0.75"], 1.0, 100.0, 0.0) == [25, 50, 75]


def test_a_bar_says_how_far_a_run_came_after_its_last_line() -> None:
    text = "  0%|  | 0/{total} [00:00<?, ?it/s]\n" + "".join(
        f"{{{{'loss': {3 - at / 100:.4f}, 'learning_rate': 0.001, 'epoch': {at / 50:.2f}}}}}\n"
        f" {at}%|##| {at}/{{total}} [00:{at // 2:02d}<00:09,  2.00it/s]\n"
        for at in range(10, 60, 10)
    )
    bar = " 99%|##| 53/{total} [00:27<00:00,  2.00it/s]\n"
    crash = "Traceback (most recent call last):\nValueError: too many\n"
    for total, ended in ((53, "finished"), (90, "crashed")):
        run_log = parse_log((text + bar).format(total=total) + crash)
        assert run_log.steps.iteration.tolist() == [10, 20, 30, 40, 50]
        assert (last_iteration_done(run_log), run_log.setup.planned_iterations) == (53, total)
        assert infer_exit_status(run_log) == ended


def test_the_progress_above_a_table_says_how_far_it_came() -> None:
    progress = "      [   57/300 09:44 < 32:25, 0.12 it/s, Epoch 0.47/2]\n"
    rows = "".join(f"      {at}\t{3 - at / 100:.4f}\n" for at in range(10, 60, 10))
    run_log = parse_log(progress + "      Step\tTraining Loss\n" + rows)
    assert (last_iteration_done(run_log), run_log.setup.planned_iterations) == (57, 300)


def test_an_evaluation_that_counts_the_steps_of_the_plan() -> None:
    rows = "".join(
        f"{{'loss': 1.{at}, 'epoch': 1.0, 'global_step/max_steps': '{at}/43'}}\n" for at in (20, 30, 40)
    )
    end = "{'eval_loss': 1.6, 'eval_runtime': 7.5, 'epoch': 1.0, 'global_step/max_steps': '43/43'}\n"
    run_log = parse_log(rows + end)
    assert (last_iteration_done(run_log), infer_exit_status(run_log)) == (43, "finished")


def test_the_first_of_dicts_whose_epochs_are_rounded_away_ends_an_interval() -> None:
    epochs = [f"{at * 25 / 20000:.2f}" for at in range(1, 61)]
    assert steps_of_epochs(epochs, 0.07, 1495.0, 7.1) == list(range(25, 1501, 25))


def few_bars() -> str:
    """A notebook's: bars without a bar, an evaluation's among them, and few of either."""
    text = ""
    for epoch in range(1, 7):
        at = epoch * 132
        if at // 250 > (at - 132) // 250:
            loss_at = at // 250 * 250
            text += f"{{'loss': {3 - epoch / 10}, 'learning_rate': 1e-05, 'epoch': {loss_at / 132:.2f}}}\n"
        text += f" {16 * epoch}% {at}/792 [0{epoch}:00<01:00,  1.77s/it]\n 50% 20/40 [00:10<00:10, 2.0it/s]\n"
        text += f"{{'eval_loss': {3.5 - epoch / 10}, 'eval_runtime': 20.0, 'epoch': {epoch}.0}}\n"
    return (
        text + "{'train_runtime': 400.0, 'train_steps_per_second': 1.98, 'train_loss': 2.5, 'epoch': 6.0}\n"
    )


def test_evaluations_between_dicts_are_at_their_own_epochs() -> None:
    run_log = parse_log(few_bars())
    assert run_log.steps.iteration.tolist() == [250, 500, 750]
    assert [one.iteration for one in run_log.evals] == [132, 264, 396, 528, 660, 792]
    assert last_iteration_done(run_log) == 792


def test_an_evaluation_without_a_result_and_saves_in_other_words() -> None:
    begin = "***** Running Evaluation *****\n  Num examples = 20\n"
    text = "".join(
        f"{{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': {at}.0}}\n"
        f"  {at}%|#| {10 * at}/50 [00:{10 * at}<00:10, 1.0it/s]\n"
        + (begin + f"Value head model saved at: saves/checkpoint-{10 * at}\n" if at % 2 == 0 else "")
        for at in range(1, 6)
    )
    text = f"***** Running training *****\n  0%|#| 0/50 [00:00<?, ?it/s]\n{text}"
    run_log = parse_log(text)
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(20, None), (40, None)]
    assert [one.iteration for one in run_log.checkpoints] == [20, 40]
    told = parse_log(text.replace(begin, begin + "{'eval_loss': 2.0, 'epoch': 2.0}\n"))
    assert [one.val_loss for one in told.evals] == [2.0, 2.0]


def test_the_table_of_a_model_card() -> None:
    rows = "".join(
        f"| {'No log' if at < 2 else 4 - at / 10} | {at}.0 | {at * 500} | {4.2 - at / 10} |\n"
        for at in range(1, 6)
    )
    run_log = parse_log(
        "| Training Loss | Epoch | Step | Validation Loss |\n|:---:|:---:|:---:|:---:|\n" + rows
    )
    assert [one.iteration for one in run_log.evals] == [500, 1000, 1500, 2000, 2500]
    assert run_log.steps.loss[1:].tolist() == [3.8, 3.7, 3.6, 3.5]


def test_saves_in_other_words() -> None:
    """Of a callback, with a number; of the script, after the end. A tokenizer is no model."""
    bar = " 10%|# | {at}/90 [00:10<01:00,  1.00it/s]\n"
    text = bar.format(at=0) + "".join(
        f"{{'loss': 2.5, 'epoch': {at / 10}}}\n{bar.format(at=at)}" for at in range(1, 90)
    )
    after = "Tokenizer saved to ./out/tokenizer\nDone. Model saved to ./out\n"
    facts = parse_facts(text + after)
    assert facts.checkpoint_steps == [89]
    saved = bar.format(at=30)
    facts = parse_facts(text.replace(saved, f"{saved}save models to out/checkpoint-30 \n"))
    assert facts.checkpoint_steps == [30]
    assert parse_facts(text).checkpoint_steps is None


def test_the_progress_above_a_table_says_the_time_of_a_run_that_was_stopped() -> None:
    table = "Step\tTraining Loss\n" + "".join(f"{at}\t{3 - at / 100:.6f}\n" for at in range(10, 71, 10))
    text = f"[ 75/318 09:44 < 32:25, 0.12 it/s, Epoch 0.47/2]\n{table}\nKeyboardInterrupt\n"
    facts = parse_facts(text)
    assert (facts.total_s, facts.ended) == (9 * 60 + 44, "interrupted")


@pytest.mark.parametrize("has_dict", [True, False])
def test_the_closing_table_of_an_evaluation(has_dict: bool) -> None:
    text = "".join(f"{{'loss': {3 - at / 100:.4f}, 'epoch': {at / 60:.2f}}}\n" for at in range(1, 61))
    text += "{'eval_loss': 1.593149, 'eval_runtime': 2.1, 'epoch': 1.0}\n" * has_dict
    text += "***** eval metrics *****\n  epoch = 1.0\n  eval_loss        =     1.5931\n  perplexity = 4.9\n"
    (evaluation,) = parse_log(text).evals
    assert evaluation.val_loss == pytest.approx(1.5931, abs=1e-4)


def shown_table(last: int, change: float = 0.0) -> str:
    rows = "".join(f"{at}\t{3 - at / 100 + change:.6f}\n" for at in range(10, last + 1, 10))
    return f"[{last}/60 03:21, Epoch 1/1]\nStep\tTraining Loss\n{rows}\n"


def test_a_table_that_is_shown_again_is_of_one_run() -> None:
    """Pasted while it ran, and at the end; or the other way round."""
    for lasts in ((30, 60), (60, 30), (60, 60)):
        (run_log,) = parse_logs("".join(map(shown_table, lasts)))
        assert run_log.steps.iteration.tolist() == [10, 20, 30, 40, 50, 60]
        assert [note.key for note in run_log.notes] == ["hf-trainer.shown_again"]
    assert [len(one.steps) for one in parse_logs(shown_table(60) + shown_table(60, 0.1))] == [6, 6]


DEEPSPEED = (
    "[2025-03-01 {hour}:00:00,100] [INFO] [runner.py:568:main] cmd = python -u -m deepspeed.launcher.launch\n"
    "[2025-03-01 {hour}:00:01,100] [INFO] [launch.py:145:main] WORLD INFO DICT: {{'localhost': [0]}}\n"
)
TORCHRUN = (
    "W0301 {hour}:00:00.1 47 torch/distributed/run.py:757] Setting OMP_NUM_THREADS environment variable "
    "for each process to be 1 in default, to avoid your system being overloaded\n"
)


def launch(banner: str, hour: int, lines: int, save_at: int = 0, settings: str = "") -> str:
    text = banner.format(hour=hour) + settings
    for number in range(1, lines + 1):
        text += f"{{'loss': {9 - number / 10:.4f}, 'learning_rate': {number / 1e6}, 'epoch': 0.0}}\n"
        text += f"Saving model checkpoint to out/checkpoint-{save_at}\n" * (5 * number == save_at)
    return text


@pytest.mark.parametrize("banner", [DEEPSPEED, TORCHRUN, "***** Running training *****\n"])
def test_launches_whose_epochs_are_rounded_to_zero(banner: str) -> None:
    text = launch(banner, 10, 20) + launch(banner, 12, 30) + launch(banner, 14, 3)
    runs = parse_logs(text)
    assert [len(one.steps) for one in runs] == [20, 30, 3]
    assert [one.has_iteration_numbers for one in runs] == [False] * 3
    resumed = launch(banner, 10, 20) + launch(
        f"{banner}Attempting to resume from out/checkpoint-100\n", 12, 30
    )
    (run_log,) = parse_logs(resumed)
    assert [one.resumed for one in run_log.segments] == [False, True]


def test_saves_and_settings_number_dicts() -> None:
    settings = "logging_first_step=False,\nlogging_steps=5,\n"
    text = launch(DEEPSPEED, 10, 24, 100, settings) + launch(DEEPSPEED, 12, 3, 0, settings)
    first, second = parse_logs(text)
    assert first.steps.iteration.tolist() == list(range(5, 121, 5))
    assert (second.steps.iteration.tolist(), first.checkpoints[0].iteration) == ([5, 10, 15], 100)
    # Not where both differ, or the first step has a dict, too.
    for other in (settings.replace("=5", "=7"), settings.replace("False", "True")):
        run_log = parse_logs(launch(DEEPSPEED, 10, 24, 100, other))[0]
        assert not run_log.has_iteration_numbers


@pytest.mark.parametrize(
    ("saves", "setting", "interval"),
    [
        ([(100, 20)], None, 5),
        ([(100, 20), (1000, 200)], None, 5),
        ([(50, 7), (100, 14)], None, 7),
        ([(100, 20), (200, 35)], None, None),
        ([(100, 3)], None, None),
        ([(100, 3)], 30, 30),
        ([(100, 3)], 50, None),
        ([(2, 0)], 5, 5),
        ([], 10, 10),
        ([], None, None),
        ([], 0.5, None),
    ],
)
def test_interval_of_saves(saves: list[tuple[int, int]], setting: object, interval: int | None) -> None:
    assert interval_of_saves(saves, setting) == interval
