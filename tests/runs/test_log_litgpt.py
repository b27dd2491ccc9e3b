"""litgpt, lit-gpt and forks: an iteration is a micro-batch."""

from __future__ import annotations

import pytest
from log_checks import check_facts, parse_facts, parse_log
from printed import SyntheticRun
from printed_more import lit_gpt, litgpt

from glassgpt.explain.explanation import explain

COURSE = SyntheticRun(updates=33, eval_every=10)


@pytest.mark.parametrize("told", [litgpt(COURSE), lit_gpt(COURSE)])
def test_a_whole_log(told: object) -> None:
    check_facts(told.text, told)  # type: ignore[attr-defined, arg-type]


def test_forms_of_its_line(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, float, float]] = [
        ("Epoch 1 | iter 16 step 4 | loss train: 9.939, val: n/a | iter time: 30.07 ms (step)", 9.939, 30.07),
        ("Epoch 2 | iter 16 step 4 | loss train: 1.939, val: 3.123 | iter time: 300.07 ms", 1.939, 300.07),
        ("iter 16 step 4: loss 1.6460, iter time: 820.31ms (optimizer.step)", 1.646, 820.31),
        ("iter 16 step 4: loss 1.6460, train time: 820.31ms", 1.646, 820.31),
        ("iter 16 | step 4: loss 1.6460, iter time: 820.31 ms (optimizer.step), remaining "
         "time: 0:00:09", 1.646, 820.31),
        ("Epoch 0 | iter  16 step  4 | loss train: 21.625, val_loss valid: 13.879 | iter "
         "time: 35.675 s (step)", 21.625, 35675),
        ("Ep 1 | iter 16 | step 4: loss train (curr): 1.657, val (prev val iter): None | "
         "iter time: 298.27 ms", 1.657, 298.27),
        ("iter 16 step 4: loss nan, iter time: 94.35ms (optimizer.step) remaining time: 6.24 "
         "hours.  or 0.26 days. ", float("nan"), 94.35),
    ]  # fmt: skip
    for line, loss, ms in cases:
        with subtests.test(line):
            run_log = parse_log(line + "\n")
            assert run_log.trainer.id == "litgpt"
            assert run_log.steps.iteration.tolist() == [16]
            assert run_log.steps.loss[0] == pytest.approx(loss, nan_ok=True)
            assert run_log.steps.ms[0] == ms


@pytest.mark.parametrize(
    ("line", "ms"),
    [
        ("iter 16: val loss 3.1234, val time: 1234.56 ms", 1234.56),
        ("step 16: val loss 3.1234, val time: 1234.56ms", 1234.56),
        ("iter 16: val loss 3.1234, val time: 1.50 s", 1500),
        ("step 16: val loss 3.1234", None),
    ],
)
def test_forms_of_its_evaluation(line: str, ms: float | None) -> None:
    expected = litgpt(SyntheticRun(updates=16, eval_every=100))
    body = "\n".join(text for text in expected.lines if text.startswith("Epoch"))
    (done,) = parse_log(f"{body}\n{line}\n").evals
    assert (done.iteration, done.val_loss, done.ms) == (16, 3.1234, ms)


@pytest.mark.parametrize("word", ["non-trainable", "non trainable"])
def test_frozen_parameters_count(word: str) -> None:
    expected = lit_gpt(COURSE)
    assert parse_facts(expected.text.replace("non-trainable", word)).parameters == 2_780_810_240


def test_a_stale_validation_loss_is_no_evaluation() -> None:
    expected = litgpt(COURSE)
    assert parse_facts(expected.text).eval_steps == [10, 20, 30, 33]


def test_a_resumed_run() -> None:
    expected = litgpt(COURSE)
    again = [line for line in expected.lines if "iter 2" in line or "iter 3" in line]
    run_log = parse_log(
        expected.truncated(30).text + "Resuming training from out/step-00000005\n" + "\n".join(again) + "\n"
    )
    assert [segment.resumed for segment in run_log.segments] == [False, True]


def test_what_evaluations_took_is_part_of_the_run() -> None:
    """100 iterations of 50 ms, and two evaluations that say 2.5 s each: half of 10 s."""
    lines = [
        f"Epoch 1 | iter {at} step {at // 4} | loss train: 3.5, val: n/a | iter time: 50.00 ms"
        + (f"\niter {at}: val loss 3.6, val time: 2500.00 ms" if at % 50 == 0 else "")
        for at in range(1, 101)
    ]
    explanation = explain(parse_log("\n".join(lines) + "\n"))
    assert explanation.facts.estimated_total_s == pytest.approx(5.0), "of the iterations, by its definition"
    assert explanation.facts.eval_overhead_ms is None, "no iteration holds one"
    (finding,) = [finding for finding in explanation.findings if finding.id == "eval-spikes"]
    assert finding.severity == "advice"
    names = ("evaluations", "eval_s", "run_s", "eval_share")
    assert tuple(finding.values[name] for name in names) == pytest.approx((2, 5.0, 10.0, 0.5))


@pytest.mark.parametrize("ms", ["1e300", "-5.0", "nan", "inf"])
def test_evaluations_that_took_longer_than_anybody_waits(ms: str) -> None:
    expected = litgpt(SyntheticRun(updates=16, eval_every=100))
    body = "\n".join(text for text in expected.lines if text.startswith("Epoch"))
    (done,) = parse_log(f"{body}\niter 16: val loss 3.1234, val time: {ms} ms\n").evals
    assert done.ms is None


@pytest.mark.parametrize(
    ("path", "ended"),
    [
        ("lora/iter-000031-ckpt.pth", "cut"),
        ("lora/step-000100/lit_model.pth.lora", "cut"),
        ("lora/final/lit_model.pth.lora", "finished"),
        ("lora/lit_model_lora_finetuned.pth", "finished"),
    ],
)
def test_where_weights_are_saved_says_whether_it_is_the_end(path: str, ended: str) -> None:
    text = "".join(f"iter {at} step {at}: loss 2.{90 - at}, iter time: 820.31ms\n" for at in range(1, 32))
    facts = parse_facts(f"{text}Saving LoRA weights to 'out/{path}'\n")
    assert (facts.ended, facts.checkpoint_steps) == (ended, [31])
    facts = parse_facts(f"{text}Saving checkpoint to 'out/{path}'\n")
    assert (facts.ended, facts.checkpoint_steps) == (ended, [31])
