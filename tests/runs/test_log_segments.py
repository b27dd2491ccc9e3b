"""Several processes in one log: resumes that go back, several runs, headers printed by every rank."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import pytest
from log_checks import (
    ExpectedLog,
    check_facts,
    expected_facts,
    nearly_equal,
    parse_facts,
    parse_log,
    parse_logs,
)
from printed import SyntheticRun, llmc, nanogpt
from printed_more import every_trainer, trainer

from glassgpt.explain.explanation import explain, explain_runs
from glassgpt.explain.rules.resumes import resume_replays_data
from glassgpt.runs.analysis import Analysis

COURSE = SyntheticRun(updates=40, eval_every=10)


def joined(*logs: ExpectedLog) -> ExpectedLog:
    """One after another in a file, each a process of its own."""
    parts = []
    for index, log in enumerate(logs):
        for part in log.parts:
            row = replace(part.row, segment=index) if part.row else None
            parts.append(replace(part, row=row, segment=index))
    return replace(
        logs[-1],
        parts=tuple(parts),
        segments=len(logs),
        segments_with_startup=frozenset(range(len(logs))),
        ended=logs[-1].ended,
    )


def test_a_resume_goes_back_to_its_checkpoint() -> None:
    killed = nanogpt(COURSE).truncated(45)
    again = nanogpt(COURSE, resumes_at=20)
    run_log = parse_log(killed.text + again.text)
    assert [(segment.has_startup, segment.resumed) for segment in run_log.segments] == [
        (True, False),
        (True, True),
    ]
    assert run_log.segments[1].first_iteration == 20
    expected = joined(killed, again)
    check_facts(expected.text, expected)


def test_times_of_a_resumed_run() -> None:
    """What no process started with is the steady time; an evaluation of another process "
    "marks nothing here."""
    text = (
        "tokens per iteration will be: 1,000\nstep 0: train loss 4, val loss 4\niter 0: loss "
        "4, time 5000.00ms\n"
        + "".join(f"iter {at}: loss 3, time 100.00ms\n" for at in range(1, 10))
        + "step 10: train loss 3, val loss 3\niter 10: loss 3, time 1100.00ms\n"
        + "".join(f"iter {at}: loss 3, time 100.00ms\n" for at in range(11, 16))
        + "tokens per iteration will be: 1,000\nResuming training from out\n"
        + "step 10: train loss 3, val loss 3\niter 10: loss 3, time 9100.00ms\n"
        + "".join(f"iter {at}: loss 3, time 100.00ms\n" for at in range(11, 20))
        + "step 20: train loss 3, val loss 3\niter 20: loss 3, time 1100.00ms\n"
    )
    facts = parse_facts(text)
    assert (facts.segments, facts.steady_ms, facts.eval_overhead_ms) == (2, 100, 1000)
    assert facts.startup_ms == 5000 - 100 - 1000
    assert facts.eval_steps == [0, 10, 20]
    assert facts.iterations_logged == 27
    total = 5000 + 14 * 100 + 1100 + 9100 + 9 * 100 + 1100
    assert facts.estimated_total_s == pytest.approx(total / 1000)
    assert facts.overhead_share == pytest.approx((4900 + 1000 + 9000 + 1000) / total)


def test_a_resume_without_a_word_is_seen_by_the_numbers() -> None:
    expected = nanogpt(COURSE)
    lines = [line for line in expected.lines if line.startswith(("iter", "step"))]
    assert parse_facts("\n".join(lines[:30] + lines[20:]) + "\n").segments == 2


def test_a_resume_that_goes_on_where_it_stopped() -> None:
    expected = nanogpt(COURSE)
    lines = [line for line in expected.lines if line.startswith(("iter", "step"))]
    at = next(index for index, line in enumerate(lines) if line.startswith("step 20"))
    text = (
        "\n".join(
            [*lines[:at], "tokens per iteration will be: 16,384", "Resuming training from out", *lines[at:]]
        )
        + "\n"
    )
    run_log = parse_log(text)
    assert [segment.resumed for segment in run_log.segments] == [False, True]


def test_a_process_that_evaluates_before_it_says_that_it_resumes() -> None:
    text = "tokens per iteration will be: 1,000\nstep 20: train loss 3, val loss 3\n"
    text += "Resuming training from out\n"
    run_log = parse_log(text + "".join(f"iter {at}: loss 3, time 100.00ms\n" for at in range(20, 30)))
    (segment,) = run_log.segments
    assert (segment.has_startup, segment.resumed, segment.first_iteration) == (True, True, 20)


def test_three_runs_in_one_file() -> None:
    logs = [nanogpt(SyntheticRun(updates=40, eval_every=10, seed=seed)) for seed in range(3)]
    runs = parse_logs("".join(log.text for log in logs))
    for run_log, expected in zip(runs, logs, strict=True):
        got = Analysis(run_log).facts.as_dict()
        assert all(nearly_equal(got[name], value) for name, value in expected_facts(expected).items())


def test_headers_of_all_ranks_are_one_process() -> None:
    expected = nanogpt(COURSE)
    header, body = expected.lines[:14], expected.lines[14:]
    check_facts("\n".join(header * 8 + body) + "\n", expected)


def test_a_second_start_that_never_trained() -> None:
    """It has no iteration, so it adds no segment; nor does it change how the first one ended."""
    expected = nanogpt(COURSE).truncated(50)
    check_facts(expected.text + "\n".join(expected.lines[:10]) + "\n", expected)


def test_the_same_line_from_another_rank_counts_once() -> None:
    expected = nanogpt(COURSE)
    text = "".join(f"{line}\n" * (3 if line.startswith("iter") else 1) for line in expected.lines)
    check_facts(text, expected)


def test_ranks_that_print_under_their_names_with_other_times() -> None:
    """The lowest rank speaks for all."""
    expected = nanogpt(COURSE)
    text = "".join(f"[rank0]: {line}\n[rank1]: {line.replace('ms', '9ms')}\n" for line in expected.lines)
    check_facts(text, expected)


def test_numbers_in_front_of_lines_are_not_always_ranks() -> None:
    expected = nanogpt(COURSE)
    text = "".join(f"[{number}] {line}\n" for number, line in enumerate(expected.lines))
    check_facts(text, expected)


def test_another_run_does_not_inherit_settings() -> None:
    first = (
        "Overriding: dropout = 0.2\nnumber of parameters: 10.65M\niter 0: loss 4.0, time 9.00ms, mfu 5.00%\n"
    )
    second = "number of parameters: 0.80M\niter 0: loss 4.0, time 9.00ms, mfu 5.00%\n"
    one, other = (run_log.setup for run_log in parse_logs(first + second))
    assert (one.parameters, one.settings["dropout"]) == (10_650_000, 0.2)
    assert other.parameters == 800_000
    assert "dropout" not in other.settings


def test_a_resume_keeps_what_it_does_not_say_again() -> None:
    first = (
        "Overriding: dropout = 0.2\nnumber of parameters: 10.65M\niter 0: loss 4.0, time 9.00ms, mfu 5.00%\n"
    )
    second = "Resuming training from out\niter 0: loss 4.0, time 9.00ms, mfu 5.00%\n"
    setup = parse_log(first + second).setup
    assert (setup.parameters, setup.settings["dropout"]) == (10_650_000, 0.2)


def test_a_resume_with_larger_batches_has_its_own_speed() -> None:
    """16,384 tokens in 30 ms, then 65,536 in 120: no median over both is a speed that it had."""
    head = "tokens per iteration will be: {tokens}\n{how}\nnumber of parameters: 10.65M\n"
    text = head.format(tokens="16,384", how="Initializing a new model from scratch")
    text += "".join(f"iter {at}: loss 3.0000, time 30.00ms, mfu 5.00%\n" for at in range(0, 1001, 10))
    text += head.format(tokens="65,536", how="Resuming training from out")
    text += "".join(f"iter {at}: loss 3.0000, time 120.00ms, mfu 5.00%\n" for at in range(1000, 1501, 10))
    run_log = parse_log(text)
    facts = Analysis(run_log).facts
    assert (facts.segments, facts.tokens_per_iteration, facts.steady_ms) == (2, 65536, 120.0)
    assert facts.tokens_per_s == pytest.approx(65536 / 0.120)
    assert facts.estimated_total_s == pytest.approx((1001 * 30 + 501 * 120) / 1000)
    # Nor can iterations of the second process be counted that see the batches of the first.
    assert resume_replays_data(Analysis(run_log)) is None


# --- two trainers ---

SHORT = every_trainer(SyntheticRun(updates=14, eval_every=5))
LONG = every_trainer(SyntheticRun(updates=60, eval_every=10))


@pytest.mark.parametrize(
    "pairs",
    [[*permutations(SHORT.values(), 2)], [*pairwise([*LONG.values(), *LONG.values()][: len(LONG) + 1])]],
)
def test_every_trainer_after_every_other(pairs: list[tuple[ExpectedLog, ExpectedLog]]) -> None:
    """The last one's facts are its own, and so are those of the one before."""
    for first, second in pairs:
        if first.format == second.format or "unknown" in (first.format, second.format):
            continue
        runs = parse_logs(f"{first.text}$ second command\n{second.text}")
        assert [one.trainer.id for one in runs] == [first.format, second.format]
        for told, read in zip((first, second), runs, strict=True):
            got = Analysis(read).facts.as_dict()
            wrong = {
                name: value
                for name, value in expected_facts(told).items()
                if not nearly_equal(got[name], value)
            }
            assert wrong == {}, (first.format, second.format)


def test_a_trainer_that_nobody_knows_after_another() -> None:
    runs = parse_logs(LONG["nanogpt"].text + LONG["unknown"].text)
    assert [one.trainer.id for one in runs] == ["nanogpt", "unknown"]


def test_both_runs_are_explained_and_the_verdict_is_about_the_longest() -> None:
    explanation = explain_runs(parse_logs(nanogpt(COURSE).text + llmc(COURSE).text))
    assert "nanoGPT, llm.c" in explanation.verdict[0]
    assert explanation.verdict[1].startswith("A nanoGPT run ")
    assert [one.log.trainer.id for one in explanation.runs] == ["nanogpt", "llm.c"]
    runs: Any = explanation.as_dict()["runs"]
    assert [(one["trainer"], one["is_main"]) for one in runs] == [("nanogpt", True), ("llm.c", False)]
    lines = len(nanogpt(COURSE).lines)
    assert [(one["first_line"], one["last_line"]) for one in runs] == [
        (1, lines),
        (lines + 1, lines + len(llmc(COURSE).lines)),
    ]


def test_the_second_header_says_nothing_about_the_first_run() -> None:
    text = nanogpt(COURSE).text + "| device | NVIDIA GeForce RTX 4090 |\n" + llmc(COURSE).text
    first, second = parse_logs(text)
    assert first.setup.device_name is None
    assert second.setup.device_name is not None


def test_a_crash_and_a_stopwatch_belong_to_the_run_before() -> None:
    crash = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nreal\t1m40.5s\n"
    first, second = parse_logs(nanogpt(COURSE).text + crash + llmc(COURSE).text)
    assert Analysis(first).facts.ended == "oom"
    assert first.setup.wall_s == 100.5
    assert second.setup.wall_s is None
    assert not any(finding.id == "oom" for finding in explain(second).findings)


def test_a_few_lines_of_another_kind_are_no_second_run() -> None:
    lines = nanogpt(COURSE).lines
    strange = "step 3 | loss: 2.345678 | dt: 100.00ms"
    mixed = [text for line in lines for text in (line, strange)]
    assert len(parse_logs("\n".join(mixed) + "\n")) == 1
    assert len(parse_logs("\n".join([*lines, strange, strange]) + "\n")) == 1


def test_a_second_run_of_the_trainer_is_said_where_lines_have_no_numbers() -> None:
    log = trainer(COURSE).text
    assert [one.runs_in_file for one in parse_logs(log + log)] == [2, 2]


def test_a_run_that_starts_over_without_a_word() -> None:
    """Its first line is number 10, as that of the run before: nothing was resumed."""
    lines = [f"Step {at}/300, Loss: {3 - at / 300:.4f}" for at in range(10, 301, 10)]
    again = [line.replace("Loss: ", "Loss: 1") for line in lines]
    assert [len(run_log.steps) for run_log in parse_logs("\n".join(lines + again) + "\n")] == [30, 30]
    (resumed,) = parse_logs("\n".join(lines[:20] + again[10:]) + "\n")
    assert len(resumed.segments) == 2


def test_ranks_that_are_a_few_lines_behind_print_the_same() -> None:
    lines = [f"Step {at}/300, Loss: {3 - at / 300:.4f}" for at in range(10, 301, 10)]
    shuffled = [line for at in range(0, 30, 3) for line in lines[at : at + 3] * 2]
    (run_log,) = parse_logs("\n".join(shuffled) + "\n")
    assert run_log.steps.iteration.tolist() == list(range(10, 301, 10))
    assert len(run_log.segments) == 1


def test_everything_has_the_number_of_its_line() -> None:
    for log in every_trainer(SyntheticRun(updates=30, eval_every=10)).values():
        (run_log,) = parse_logs(log.text)
        lines = log.text.split("\n")
        rows = [number for number, part in enumerate(log.parts, 1) if part.row]
        evals = [number for number, part in enumerate(log.parts, 1) if part.eval]
        assert run_log.steps.line.tolist() == rows, log.format
        assert [done.line for done in run_log.evals] == evals, log.format
        assert all(0 < save.line <= len(lines) for save in run_log.checkpoints)
        assert (run_log.first_line, run_log.last_line) == (1, len(lines) - 1)


def test_lines_at() -> None:
    killed, again = nanogpt(COURSE).truncated(45), nanogpt(COURSE, resumes_at=20)
    text = killed.text + again.text
    analysis = Analysis(parse_log(text))
    lines = text.splitlines()
    assert [lines[number - 1][:8] for number in analysis.lines_at([5, 25])] == ["iter 5: ", "iter 25:"]
    assert analysis.lines_at([25])[0] > len(killed.lines)  # the resume repeated it
    assert [lines[number - 1][:8] for number in analysis.eval_lines_at([30, 10])] == ["step 10:", "step 30:"]
    assert analysis.lines_at([10**9]) == ()
    assert Analysis(replace(analysis.log, has_line_numbers=False)).lines_at([5]) == ()


def test_a_run_of_dicts_begins_at_its_first_one() -> None:
    """A dict waits for the line after it: the run begins where it stands, not where it is read."""
    dicts = [f"{{'loss': {5 - i / 10}, 'learning_rate': 1e-4, 'epoch': {i / 10}}}" for i in range(1, 9)]
    runs = parse_logs("\n".join([*dicts, "Tuning on: coqa", *dicts]))
    assert [(run.first_line, run.last_line) for run in runs] == [(1, 8), (9, 17)]
    assert [run.steps.line.tolist() for run in runs] == [list(range(1, 9)), list(range(10, 18))]


def test_another_run_is_found_behind_very_many_equal_lines() -> None:
    first = [f"iter {i}: loss {3 - i / 1000:.4f}, time 250.00ms, mfu 41.00%" for i in range(50)]
    bars = [f" {i % 100:2d}%|####| {i}/9000 [00:12<06:21,  1.19s/it]" for i in range(2000)]
    second = [f"step    {i}/74 | loss {4 - i / 100:.6f} (+nanz)| norm 15.3 (+nanz)| lr 1.00e-04 | 80.64 ms "
              f"| 33.8% MFU | 508 tok/s" for i in range(1, 20)]  # fmt: skip
    runs = parse_logs("\n".join([*first, *bars, *second]))
    assert [(run.trainer.id, len(run.steps)) for run in runs] == [("nanogpt", 50), ("llm.c", 19)]


def test_a_save_at_the_iteration_of_another_process_is_one_more() -> None:
    def process(last: int) -> str:
        lines = [
            f"iter {at}: loss {4 - at / 100:.4f}, time 100.00ms, mfu 10.00%\n" for at in range(0, last, 10)
        ]
        evaluation = "step 50: train loss 3.5, val loss 3.5\nsaving checkpoint to out\n"
        return "".join(("number of parameters: 10.65M\n", *lines[:5], evaluation, *lines[5:]))

    first, second = parse_logs(process(70) + process(100))
    assert [[save.iteration for save in one.checkpoints] for one in (first, second)] == [[50], [50]]


def test_launches_that_fail_before_a_step_are_runs() -> None:
    """The file's first line comes again with each of them."""
    header = "Reading configs/small.yaml\nUsing device: cuda\n"
    failure = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: {}\n'
    steps = "".join(f"step {at} | loss {3 - at / 1000:.4f}\n" for at in range(50, 1001, 50))
    failed = [header + failure.format(number) for number in range(3)]
    # The fourth one came to its first line, as far as the fifth.
    run_logs = parse_logs("".join(failed) + header + steps.splitlines()[0] + "\n" + header + steps)
    assert [(len(one.steps), Analysis(one).facts.ended) for one in run_logs] == [
        (0, "crashed"), (0, "crashed"), (0, "crashed"), (1, "cut"), (20, "cut")
    ]  # fmt: skip
    assert [one.first_line for one in run_logs] == [1, 6, 11, 16, 19]


def test_warnings_that_every_rank_prints_are_no_launch() -> None:
    text = "FutureWarning: old\nTraceback (most recent call last):\nValueError: no\nFutureWarning: old\n"
    steps = "".join(f"step {at} | loss {3 - at / 1000:.4f}\n" for at in range(50, 1001, 50))
    assert len(parse_logs(text + steps)) == 1


def test_a_log_that_begins_within_its_run_says_so() -> None:
    text = "".join(f"step {at}/500, loss: {3 - at / 300:.4f}\n" for at in range(200, 501, 10))
    assert [note.key for note in parse_log(text).notes] == ["log.begins_late"]
    assert parse_log(text.replace("step 2", "step ")).notes == ()
    bar = "  0%|  | 0/500 [00:00<?, ?it/s]\n"
    header = "Arguments do not match the ones in the `trainer_state.json` within the checkpoint x: \n"
    dicts = "".join(
        f"{{'loss': {3 - at / 300:.4f}, 'epoch': {at / 250}}}\n 50%|# | {at}/500 [00:30<00:20,  9.00it/s]\n"
        for at in range(260, 501, 10)
    )
    run_log = parse_log(header + bar + dicts)
    assert [note.key for note in run_log.notes] == ["log.begins_resumed", "hf-trainer.resumed_log_note"]
    assert run_log.segments[0].resumed


def test_runs_have_the_names_that_lines_before_them_say() -> None:
    text = "".join(
        f"{'=' * 20}\nStarting Run: {name}\n{'=' * 20}\nnumber of parameters: 10.65M\n"
        + "".join(
            f"iter {at}: loss {4 - at / 100:.4f}, time 10.00ms, mfu 1.00%\n" for at in range(0, 101, 10)
        )
        for name in ("baseline", "A1_rope", "no_norm")
    )
    run_logs = parse_logs(text)
    assert [run_log.run_name for run_log in run_logs] == ["baseline", "A1_rope", "no_norm"]
    assert [len(run_log.segments) for run_log in run_logs] == [1, 1, 1]
    assert parse_logs(text.split("A1_rope")[0])[0].run_name is None
