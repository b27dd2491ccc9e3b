"""Hugging Face's Trainer: dicts without a number, with or without a progress bar."""

from __future__ import annotations

import math

import pytest
from log_checks import check_facts, parse_facts, parse_log, parse_logs
from printed import SyntheticRun
from printed_more import trainer

from glassgpt.explain.explanation import explain

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
