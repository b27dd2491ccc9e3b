"""build-nanogpt: console, log.txt, the older forms of the video, samples of all ranks in between."""

from __future__ import annotations

import pytest
from log_checks import check_facts, parse_facts, parse_log
from printed import SyntheticRun, build_nanogpt, build_nanogpt_file

from glassgpt.runs.exit_status import infer_exit_status

TODAY = (
    "step {at:5d} | loss: {loss:.6f} | lr 6.0000e-04 | norm: 0.5000 | dt: {ms:.2f}ms | tok/sec: {speed:.2f}"
)


def line(at: int, ms: float = 100.0) -> str:
    return TODAY.format(at=at, loss=9 - at / 10, ms=ms, speed=32768 / ms * 1000)


def test_an_evaluation_belongs_to_the_line_that_follows() -> None:
    run_log = parse_log(
        f"validation loss: 10.9462\nHellaSwag accuracy: 2534/10042=0.2523\n{line(0, 40877.42)}\n{line(1)}\n"
        f"validation loss: 9.5\n{line(2, 900)}\n{line(3)}\n"
    )
    assert [(done.iteration, done.val_loss) for done in run_log.evals] == [(0, 10.9462), (2, 9.5)]
    assert run_log.includes_eval().tolist() == [True, False, True, False]
    assert run_log.steps.grad_norm.tolist() == [0.5] * 4


def test_an_evaluation_at_the_very_end_belongs_to_the_line_that_never_came() -> None:
    assert parse_facts(f"{line(0)}\n{line(1)}\nvalidation loss: 9.5\n").eval_steps == [2]


def test_tokens_per_iteration_follow_from_the_speed() -> None:
    assert parse_facts("\n".join(line(at) for at in range(6)) + "\n").tokens_per_iteration == 32768


def test_older_forms(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, float]] = [
        ("step {at}, loss: 9.1234, dt: 100.25ms, tok/sec: 1234.56", 100.25),
        ("step {at:4d} | loss: 9.123400 | dt: 100.25ms | tok/sec: 1234.56", 100.25),
        ("step {at:4d} | loss: 9.123400 | norm: 1.2345 | dt: 100.25ms | tok/sec: 1234.56", 100.25),
        ("step {at} | loss: 9.1234 | dt: 100.25ms | tok/sec: 1234.56 | norm: 6.74 | lr: 0.000010", 100.25),
        (
            "step {at:04d}, loss: 9.123400, norm: 0.69, lr: 9.0000e-03, time: 100.25ms, tokens/sec: 1234.5",
            100.25,
        ),
        ("step {at}, loss: 9.123400, time: 100.25 ms, tokens/sec: 1234.5", 100.25),
    ]
    for text, ms in cases:
        with subtests.test(text):
            run_log = parse_log("".join(text.format(at=at) + "\n" for at in range(4)))
            assert run_log.trainer.id == "build-nanogpt"
            assert run_log.steps.iteration.tolist() == [0, 1, 2, 3]
            assert run_log.steps.loss[0] == pytest.approx(9.1234, abs=1e-4)
            assert run_log.steps.ms[2] == pytest.approx(ms, nan_ok=True)


def test_samples_of_all_ranks_between_the_lines() -> None:
    expected = build_nanogpt(SyntheticRun(updates=33))
    text = expected.text.replace(
        "HellaSwag accuracy",
        "rank 5 sample 2: Hello, I'm a language model,\n\nstep by step, with a loss: none | and | bars\n"
        "rank 1 sample 0: Hello, validation loss: what is it?\nHellaSwag accuracy",
    )
    check_facts(text, expected)


def test_its_file() -> None:
    expected = build_nanogpt_file(SyntheticRun(updates=33))
    check_facts(expected.text, expected)


def test_a_resumed_file() -> None:
    text = "".join(
        f"# resumed at 2026-05-25T18:17:51 from step "
        f"40\n{''.join(f'{at} train 2.5{at}' + chr(10) for at in range(40, end))}"
        for end in (50, 45, 60)
    )
    facts = parse_facts(text)
    assert (facts.segments, facts.iterations_logged, facts.last_iteration) == (3, 35, 59)


def test_the_last_evaluation_is_off_the_grid_where_a_run_finished() -> None:
    expected = build_nanogpt(SyntheticRun(updates=33))
    assert parse_facts(expected.text).ended == "finished"
    on_grid = expected.truncated(
        next(i for i, part in enumerate(expected.parts) if part.row and part.row.iteration == 20) + 1
    )
    assert parse_facts(on_grid.text).ended == "cut"


def test_saves_of_forks_and_a_last_loss() -> None:
    lines = [line(at) for at in range(8)]
    lines.insert(5, "Model Saved to out\\model_1.pt\nCheckpoint at step 4")
    run_log = parse_log("\n".join([*lines, "Model Saved to out\\model_2.pt", "Final Loss: 8.3", ""]))
    assert [save.iteration for save in run_log.checkpoints] == [4, 7]
    assert infer_exit_status(run_log) == "finished"
