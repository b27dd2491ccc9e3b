"""Processes that fail before their first iteration: alone in a log, and after a run."""

from __future__ import annotations

import pytest
from log_checks import parse_facts, parse_log, parse_logs

from glassgpt.errors import UserError
from glassgpt.explain.explanation import Explanation, explain_runs
from glassgpt.i18n import translate
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.trainers import BY_ID

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


ABOUT = ("oom", "crashed", "interrupted", "failed-start")  # how processes ended
RESUME = BEGIN.replace("Initializing a new model from scratch", "Resuming training from out")


def explain_text(text: str) -> Explanation:
    return explain_runs(parse_logs(text))


def named(text: str) -> dict[str, str]:
    """Findings about how the longest run ended, and their evidence."""
    return {one.id: one.evidence for one in explain_text(text).findings if one.id in ABOUT}


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
    assert evidence == 'Line 6: "ValueError: no such thing". ' + translate("oom.evidence.never_trained")


@pytest.mark.parametrize("text", [BEGIN, FAULT, 'print(f"tokens per iteration will be: {n:,}")\n' + FAULT])
def test_without_a_trainer_or_a_fault_it_is_no_log(text: str) -> None:
    with pytest.raises(UserError, match="not a training log"):
        parse_log(text)


@pytest.mark.parametrize(
    "start",
    [
        BEGIN,
        "$ python train.py config/train_gpt2.py\n",
        "(base) me@box:~/nanoGPT$ CUDA_VISIBLE_DEVICES=0 torchrun train.py\n",
        "+ python3 -u train.py\n",
    ],
)
@pytest.mark.parametrize("fault", [FAULT, OOM, "Killed\n", "Segmentation fault (core dumped)\n"])
def test_the_fault_of_a_later_command_is_not_the_runs(start: str, fault: str) -> None:
    explanation = explain_text(RUN + start + fault)
    assert explanation.facts.ended == "finished"
    assert explanation.verdict[1] == translate("verdict.finished", trainer="nanoGPT", at="400")
    assert named(RUN + start + fault) == {}
    run, failed = explanation.runs
    assert (run.log.first_line, run.log.last_line, failed.log.first_line) == (1, 46, 47)
    assert failed.log.last_line == len((RUN + start + fault).splitlines())
    assert failed.facts.iterations_logged == 0
    assert failed.facts.ended == ("oom" if fault is OOM else "crashed")
    assert {one.id for one in failed.findings} & {"oom", "crashed", "interrupted"}


def test_the_failed_command_says_what_failed() -> None:
    _, failed = explain_text(RUN + BEGIN + FAULT).runs
    (evidence,) = [one.evidence for one in failed.findings]
    assert evidence.startswith('Line 52: "ValueError: no such thing".')


def test_failed_launches_before_and_after_a_finished_run() -> None:
    """Three that failed, the run, one more: each has its lines and its settings."""
    small = BEGIN.replace("10.65M", "0.80M")
    text = (
        (BEGIN + FAULT) * 2 + BEGIN + OOM + small + LINES.replace("iter 400", END + "iter 400") + BEGIN + OOM
    )
    runs = explain_text(text).runs
    assert [(one.facts.iterations_logged, one.facts.ended) for one in runs] == [
        (0, "crashed"), (0, "crashed"), (0, "oom"), (41, "finished"), (0, "oom"),
    ]  # fmt: skip
    assert [(one.log.first_line, one.log.last_line) for one in runs] == [
        (1, 6), (7, 12), (13, 18), (19, 64), (65, 70),
    ]  # fmt: skip
    told = translate("verdict.failed_launches", launches=4, lines="4, 10, 16, …")  # of their tracebacks
    first = translate("verdict.first_failure", quoted="ValueError: no such thing")
    assert explain_text(text).verdict[-2:] == [told, first]
    sizes = [10_650_000] * 3 + [800_000, 10_650_000]
    assert [one.log.setup.parameters for one in runs] == sizes


def test_a_run_that_crashed_beside_a_longer_one_is_named() -> None:
    explanation = explain_text(RUN + BEGIN + LINES[: LINES.index("iter 300")] + FAULT)
    _, crashed = explanation.runs
    name = f"nanoGPT {translate('verdict.lines', first=47, last=82)}"
    told = translate("verdict.other_run_problem", name=name, title=crashed.findings[0].title)
    assert explanation.verdict[-1] == told
    assert crashed.findings[0].id == "crashed"


def test_a_resume_that_failed_belongs_to_the_run() -> None:
    assert named(RUN + RESUME + FAULT) == {
        "failed-start": 'It began at line 47. Line 52: "ValueError: no such thing".'
    }
    assert len(explain_text(RUN + RESUME + FAULT + RESUME + LINES.replace("iter ", "iter 1")).runs) == 0


def test_other_ranks_print_their_headers_after_a_failure() -> None:
    """A header that the failed command did not print first is no new command."""
    late = "number of parameters: 10.65M\n"
    runs = explain_text(RUN + BEGIN + FAULT + late + FAULT).runs
    assert [one.facts.iterations_logged for one in runs] == [41, 0]


def test_both_failed() -> None:
    evidence = named(RUN + "Killed\n" + RESUME + FAULT)
    assert set(evidence) == {"interrupted", "failed-start"}
    assert explain_text(RUN + "Killed\n" + RESUME + FAULT).facts.ended == "crashed"


def test_a_later_command_that_trains_has_faults_of_its_own() -> None:
    runs = explain_text(RUN + BEGIN + LINES + FAULT).runs
    assert [{one.id for one in run.findings} & set(ABOUT) for run in runs] == [set(), {"crashed"}]


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
    assert not any(one.id == "oom" for one in explanation.findings)
    assert [one.facts.ended for one in explanation.runs] == ["oom", "interrupted" if after else "cut"]


def launch(clock: str, rest: str, width: int = 20) -> str:
    return f"Sat Nov  1 {clock} 2025\n+{'-' * width}+\n| NVIDIA-SMI 535 |\n{rest}"


STEPS = "".join(f"Step {at}: grad_norm=0.5, loss={3 - at / 1000:.4f}\n" for at in range(0, 1000, 100))
ERROR = "Traceback (most recent call last):\nValueError: 4 devices\n"


def test_a_file_whose_first_lines_come_again_holds_several_launches() -> None:
    text = launch("01:22:06", ERROR) + launch("01:25:07", STEPS, 24) + launch("02:09:33", ERROR)
    text += launch("02:34:19", STEPS)
    runs = explain_text(text).runs
    assert [(one.log.first_line, len(one.log.steps), one.facts.ended) for one in runs] == [
        (1, 0, "crashed"),
        (6, 10, "cut"),
        (19, 0, "crashed"),
        (24, 10, "cut"),
    ]


def test_a_date_at_the_end_is_no_launch() -> None:
    text = launch("01:25:07", STEPS + "Sat Nov  1 03:00:00 2025\n" + ERROR)
    assert (explain_text(text).runs, explain_text(text).facts.ended) == ((), "crashed")


def test_a_command_that_nohup_started_again() -> None:
    first, again = "nohup: ignoring input\n" + ERROR, "nohup: ignoring input\n" + STEPS
    runs = explain_text(first + again).runs
    assert [(one.log.first_line, one.facts.ended) for one in runs] == [(1, "crashed"), (4, "cut")]


def test_a_failure_that_the_text_before_a_quotation_speaks_of_is_no_launch() -> None:
    builder = RunBuilder(BY_ID["nanogpt"])
    builder.add_event("oom", "CUDA out of memory")
    assert len(builder.failed_launches) == 1
    builder.forget_events()
    assert builder.failed_launches == []
