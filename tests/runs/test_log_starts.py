"""Processes that fail before their first iteration: alone in a log, and after a run."""

from __future__ import annotations

import pytest
from log_checks import parse_facts, parse_log

from glassgpt.errors import UserError
from glassgpt.explain.explanation import Explanation, explain
from glassgpt.i18n import translate

BEGIN = (
    "tokens per iteration will be: 16,384\nInitializing a new model from scratch\n"
    "number of parameters: 10.65M\n"
)
LINES = "".join(f"iter {at}: loss {4 - at / 200:.4f}, time 33.00ms, mfu 5.00%\n" for at in range(0, 401, 10))
END = "step 400: train loss 2.0100, val loss 2.0200\nsaving checkpoint to out\n"
RUN = BEGIN + LINES.replace("iter 400", END + "iter 400")
FAULT = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: no such thing\n'
)
OOM = FAULT.replace(
    "ValueError: no such thing", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
)


def explain_text(text: str) -> Explanation:
    return explain(parse_log(text))


def named(text: str) -> dict[str, str]:
    """Findings about how processes ended, and their evidence."""
    about = ("oom", "crashed", "interrupted", "failed-start")
    return {one.id: one.evidence for one in explain_text(text).findings if one.id in about}


@pytest.mark.parametrize(
    ("introduction", "format"),
    [
        (BEGIN, "nanogpt"),
        ("Autodetected device type: cuda\nVocab size: 65,536\n", "nanochat"),
        (
            "total desired batch size: 524288\n=> calculated gradient accumulation steps: 32\n",
            "build-nanogpt",
        ),
        ("| train data pattern    | data/train_*.bin      |\n", "llm.c"),
        ("***** Running training *****\n  Num examples = 1,000\n", "hf-trainer"),
    ],
)
@pytest.mark.parametrize(("fault", "ended"), [(FAULT, "crashed"), (OOM, "oom"), ("Killed\n", "crashed")])
def test_a_run_that_never_came_to_an_iteration(
    introduction: str, format: str, fault: str, ended: str
) -> None:
    explanation = explain_text(introduction + fault)
    assert explanation.log.trainer.id == format
    assert (explanation.facts.ended, explanation.facts.iterations_logged) == (ended, 0)
    assert "without a logged iteration" in explanation.verdict[0]
    assert explanation.findings


@pytest.mark.parametrize(
    "line",
    [
        'File "/x/site-packages/transformers/trainer.py", line 9, in train',
        'File "/x/litgpt/pretrain.py", line 9',
    ],
)
def test_a_traceback_tells_whose_it_is(line: str) -> None:
    assert parse_facts(FAULT.replace('File "train.py", line 3, in <module>', line)).ended == "crashed"


def test_a_fault_of_a_run_that_learnt_nothing_says_no_more_than_it_is() -> None:
    (evidence,) = named(BEGIN + FAULT).values()
    assert evidence == 'Line 4: "ValueError: no such thing". ' + translate("oom.evidence.never_trained")


@pytest.mark.parametrize("text", [BEGIN, FAULT, 'print(f"tokens per iteration will be: {n:,}")\n' + FAULT])
def test_without_a_trainer_or_a_fault_it_is_no_log(text: str) -> None:
    with pytest.raises(UserError, match="not a training log"):
        parse_log(text)


@pytest.mark.parametrize(
    "start",
    [
        BEGIN,
        BEGIN.replace("Initializing a new model from scratch", "Resuming training from out"),
        "$ python train.py config/train_gpt2.py\n",
        "(base) me@box:~/nanoGPT$ CUDA_VISIBLE_DEVICES=0 torchrun train.py\n",
        "+ python3 -u train.py\n",
    ],
)
@pytest.mark.parametrize("fault", [FAULT, OOM, "Killed\n", "Segmentation fault (core dumped)\n"])
def test_the_fault_of_a_later_command_is_not_the_runs(start: str, fault: str) -> None:
    explanation = explain_text(RUN + start + fault)
    assert explanation.facts.ended == "finished"
    assert explanation.verdict[0] == translate("verdict.finished", trainer="nanoGPT", at="400")
    assert list(named(RUN + start + fault)) == ["failed-start"]


def test_the_later_command_says_what_failed() -> None:
    assert named(RUN + BEGIN + FAULT) == {
        "failed-start": 'It began at line 47. Line 50: "ValueError: no such thing".'
    }


def test_both_failed() -> None:
    resumed = BEGIN.replace("Initializing a new model from scratch", "Resuming training from out")
    evidence = named(RUN + "Killed\n" + resumed + FAULT)
    assert set(evidence) == {"interrupted", "failed-start"}
    assert explain_text(RUN + "Killed\n" + resumed + FAULT).facts.ended == "crashed"


def test_a_later_command_that_trains_has_faults_of_its_own() -> None:
    assert list(named(RUN + BEGIN + LINES + FAULT)) == ["crashed"]


def test_a_later_command_that_ends_well_is_not_worth_a_word() -> None:
    assert named(RUN + "$ python sample.py\nnumber of parameters: 10.65M\nROMEO: a later start\n") == {}


@pytest.mark.parametrize("printed_before", [0, 12])
def test_what_was_printed_late_is_no_sign_that_it_went_on(printed_before: int) -> None:
    """Without -u, a file gets the traceback at once, and what Python had still to print at its end."""
    lines = (BEGIN + LINES.replace("iter 400", "iter 399")).splitlines(keepends=True)
    explanation = explain_text("".join([*lines[:printed_before], OOM, *lines[printed_before:]]))
    memory = next(one for one in explanation.findings if one.id == "oom")
    assert memory.severity == "problem"
    assert memory.text["title"][0].key == "oom.title.ended"


@pytest.mark.parametrize("after", ["", "^C\n"])
def test_memory_that_ran_out_in_an_attempt_before_did_not_end_the_run(after: str) -> None:
    explanation = explain_text(BEGIN + OOM + BEGIN + LINES.replace("iter 400", "iter 399") + after)
    memory = next(one for one in explanation.findings if one.id == "oom")
    assert memory.severity == "warning"
    assert "training continued" in memory.title
