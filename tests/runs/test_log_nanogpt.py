"""nanoGPT's lines, those of its forks, and of trainers with the same loop."""

from __future__ import annotations

import math

import pytest
from log_checks import check_facts, parse_facts, parse_log, parse_logs
from printed import SyntheticRun, nanogpt

from glassgpt.runs.trajectory import trajectory_of

HEAD = "step 0: train loss 4.2874, val loss 4.2823\niter 0: loss 4.2667, time 32459.23ms, mfu -100.00%\n"


def test_readme_lines() -> None:
    run_log = parse_log(
        HEAD
        + "iter 10: loss 3.2355, time 12.90ms, mfu 28.95%\n"
        + "step 250: train loss 1.9639, val loss 2.0676\nsaving checkpoint to out-shakespeare-char\n"
        + "iter 250: loss 2.0307, time 2268.47ms, mfu 26.05%\n"
    )
    assert run_log.steps.iteration.tolist() == [0, 10, 250]
    assert run_log.steps.loss.tolist() == [4.2667, 3.2355, 2.0307]
    assert run_log.steps.ms.tolist() == [32459.23, 12.9, 2268.47]
    assert math.isnan(run_log.steps.mfu[0])
    assert run_log.steps.mfu[1:].tolist() == [28.95, 26.05]
    assert [(done.iteration, done.train_loss, done.val_loss) for done in run_log.evals] == [
        (0, 4.2874, 4.2823),
        (250, 1.9639, 2.0676),
    ]
    assert [done.iteration for done in run_log.checkpoints] == [250]
    assert run_log.is_first_of_process().tolist() == [True, False, False]
    assert run_log.includes_eval().tolist() == [True, False, True]


def test_a_fork_that_keeps_all_checkpoints_names_their_iterations() -> None:
    save = "saving checkpoint -> out/ckpt_{:06d}.pt\n"
    run_log = parse_log(
        "step 0: train loss 4.2874, val loss 4.2823\n"
        + save.format(0)
        + "iter 0: loss 4.2667, time 32459.23ms, mfu -100.00%\n"
        + "".join(save.format(at) for at in (1, 2, 4, 8))
        + "iter 10: loss 3.2355, time 12.90ms, mfu 28.95%\n"
        + save.format(5)  # of another count
    )
    assert [done.iteration for done in run_log.checkpoints] == [0, 1, 2, 4, 8, 11]


def test_forks_print_more_fields_or_fewer(subtests: pytest.Subtests) -> None:
    cases: list[str] = [
        "iter 10: loss 3.2355, time 12.90ms",  # before February 2023
        "iter 10: loss 3.2355, time 12.90ms, mfu 28.95%, lr 0.0003",
        "iter 10: loss 3.2355, lr 0.0003, time 12.90ms, mfu 28.95%",
        "iter 10: loss 3.2355, time 12.90 ms, mfu 28.95%",
        "iter 10: loss 3.2355, time 0.01290s, mfu 28.95%",
        "iter 10: loss 3.2355, time 12.90ms, mfu 28.95%, tk/s 1270139.53",
        "iter 10: loss 3.2355, bpc: 4.6678, time 12.90ms, mfu 28.95%",
        "iter 10: loss 3.2355, ppl 25.42, time 12.90ms, mfu 28.95%",
        "iter 10: loss 3.2355, time 12.90ms, mfu 28.95%, update=1",
        "iter 10: loss 3.2355, time 12.90ms, mfu 28.95%, grad_norm 0.5, norm 1.5",
        "iter    10: loss 3.2355, time 12.90ms, mfu 28.95%",
        "iter 10: loss=3.2355 time=12.90ms mfu=28.95%",
        "[1234] iter 10: loss 3.2355, time 12.90ms, mfu 28.95%",
        "local_iter 10: loss 3.2355, time 12.90ms, mfu 28.95%",
        "iter 10: loss: 3.2355, time: 12.90ms",  # lit-llama
    ]
    for line in cases:
        with subtests.test(line):
            run_log = parse_log(HEAD + line + "\n")
            assert run_log.trainer.id == "nanogpt"
            assert run_log.steps.iteration.tolist() == [0, 10]
            assert run_log.steps.loss[1] == 3.2355
            assert run_log.steps.ms[1] == pytest.approx(12.9)


def test_extra_fields_are_taken_where_they_are_known() -> None:
    line = "iter 10: loss 3.2, time 10.00ms, mfu 28.95%, lr 0.0003, grad_norm 0.75, tok/s 12,345\n"
    steps = parse_log(HEAD + line).steps
    assert (steps.lr[1], steps.grad_norm[1], steps.tokens_per_s[1]) == (0.0003, 0.75, 12345)


def test_evaluations(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, float | None, float]] = [
        ("step 20: train loss 2.5000, val loss 2.7500", 2.5, 2.75),
        ("step 20: train loss 2.5000, val loss 2.7500, test loss 2.9", 2.5, 2.75),
        ("step 20: train loss 2.5000, val loss 2.7500, train ppl 12.18, val ppl 15.64", 2.5, 2.75),
        ("step 20, tokens 327,680: train loss 2.5000, val loss 2.7500", 2.5, 2.75),
        ("step 20: train loss 2.5000, val loss 2.7500, lr 0.0003", 2.5, 2.75),
        ("step 20: val loss 2.7500", None, 2.75),
        ("step 20: train loss nan, val loss nan", math.nan, math.nan),
        ("step 20: train loss 2.5000, val loss inf", 2.5, math.inf),
        ("step 20: train loss 2.5000, val loss 12,345.5", 2.5, 12345.5),
    ]
    for line, train, val in cases:
        with subtests.test(line):
            run_log = parse_log(HEAD + "iter 10: loss 3.2, time 12.90ms\n" + line + "\n")
            done = run_log.evals[-1]
            assert done.iteration == 20
            assert done.val_loss == pytest.approx(val, nan_ok=True)
            assert done.train_loss == (train if train is None else pytest.approx(train, nan_ok=True))


def test_a_perplexity_is_no_loss() -> None:
    run_log = parse_log(HEAD + "step 20: train ppl 12.18, val ppl 15.64\niter 20: loss 2.5, time 1.00ms\n")
    assert [done.iteration for done in run_log.evals] == [0]


@pytest.mark.parametrize(
    "line", ["saving checkpoint to out", "saving best checkpoint to out", "saving snapshot to out/x.pt"]
)
def test_a_save_belongs_to_the_evaluation_before_it(line: str) -> None:
    text = HEAD + f"step 20: train loss 2.5, val loss 2.75\n{line}\niter 20: loss 2.6, time 1.00ms\n"
    assert parse_facts(text).checkpoint_steps == [20]


def test_not_known_yet_is_no_mfu() -> None:
    assert parse_facts(HEAD + "iter 10: loss 3.2, time 12.90ms, mfu -100.00%\n").mfu_reported_steady is None


def test_nan_and_infinite_losses() -> None:
    facts = parse_facts(HEAD + "iter 10: loss inf, time 1.00ms\niter 20: loss nan, time 1.00ms\n")
    assert facts.nan_step == 20
    assert facts.loss_last is not None
    assert math.isnan(facts.loss_last)


def test_llama2_c_has_the_same_loop() -> None:
    run_log = parse_log(
        "490 | loss 5.7543 | lr 4.900000e-05 | 8060.78ms | mfu 0.21%\n"
        "step 500: train loss 5.7373, val loss 5.9544\nsaving checkpoint to out\nwrote out/model.bin\n"
        "500 | loss 6.0091 | lr 5.000000e-05 | 870067.53ms | mfu 0.19%\n"
        "510 | loss 5.2391 | lr 4.999939e-05 | 8175.64ms | mfu 0.19%\n"
    )
    assert run_log.trainer.id == "nanogpt"
    assert run_log.steps.iteration.tolist() == [490, 500, 510]
    assert run_log.steps.lr.tolist() == [4.9e-5, 5e-5, 4.999939e-5]
    assert run_log.includes_eval().tolist() == [False, True, False]


def test_an_eval_line_alone_is_a_log() -> None:
    facts = parse_facts("step 0: train loss 4.1872, val loss 4.0326\n")
    assert (facts.eval_steps, facts.best_val_loss, facts.iterations_logged) == ([0], 4.0326, 0)


def test_lines_seldom_printed_are_counted_at_the_steady_time() -> None:
    expected = nanogpt(SyntheticRun(updates=200, log_every=20, eval_every=50))
    check_facts(expected.text, expected)


def test_a_log_that_begins_in_the_middle_has_no_start_up() -> None:
    text = "".join(f"iter {at}: loss 4.0, time {500 + at % 3}.00ms\n" for at in range(1631, 1650))
    facts = parse_facts(text)
    assert (facts.first_iteration, facts.startup_ms, facts.steady_ms) == (1631, None, 501)


def test_a_spike_without_an_eval_line_is_not_called_an_evaluation() -> None:
    text = HEAD + "".join(
        f"iter {at}: loss 3.0, time {99999 if at == 50 else 100}.00ms\n" for at in range(10, 100, 10)
    )
    facts = parse_facts(text)
    assert facts.eval_steps == [0]
    assert facts.eval_overhead_ms is None
    assert facts.steady_ms == 100


@pytest.mark.parametrize("mark", [",", "."])
def test_decimal_commas(mark: str) -> None:
    lines = ["step 0: train loss 4.287, val loss 4.282", "iter 0: loss 4.2671, time 1234.56ms, mfu 11.02%"]
    lines += [f"iter {at}: loss 3.1415, time 30.05ms, mfu 11.02%" for at in range(1, 4)]
    text = "".join(line.replace(".", mark) + "\n" for line in lines)
    steps = parse_log(text).steps
    assert steps.loss.tolist() == [4.2671, 3.1415, 3.1415, 3.1415]
    assert steps.ms.tolist() == [1234.56, 30.05, 30.05, 30.05]
    assert steps.mfu[-1] == 11.02


def test_a_run_whose_next_line_has_begun_did_not_end_there() -> None:
    text = "".join(
        f"step {at}: train loss 2.5000, val loss 2.6000\niter {at}: loss 2.5000, time 30.00ms, mfu 11.00%\n"
        for at in (0, 10, 20)
    )
    assert parse_facts(text).ended == "finished"
    assert parse_facts(text + "iter 21: loss 2.5").ended == "cut"
    assert parse_facts(text + "iter 21: lo").ended == "cut"


def test_bits_per_character_are_read_as_nats() -> None:
    text = "step 0: train loss 6.0 BPC, val loss 6.2 BPC\niter 0: loss 6.1 BPC, time 100.00ms, mfu -100.00%\n"
    facts = parse_facts(text)
    in_nats = (facts.final_train_loss, facts.final_val_loss, facts.loss_first)
    assert in_nats == pytest.approx([bits * math.log(2) for bits in (6.0, 6.2, 6.1)])


def test_a_fork_that_evaluates_in_other_letters() -> None:
    text = "".join(
        (
            f"Step {at} | Train Loss: 1.5 | Val Loss: {2 - at / 100:.4f} | LR: 1.0e-04\n"
            if at % 20 == 0
            else ""
        )
        + f"iter {at}: loss 1.5000, time 20.00ms\n"
        for at in range(0, 101, 10)
    )
    facts = parse_facts(text)
    assert (facts.eval_steps, facts.final_val_loss) == ([0, 20, 40, 60, 80, 100], 1.0)


def test_a_fork_with_tags() -> None:
    text = "".join(
        f"[eval] iter {at}: train 2.61 val {3 - at / 1000:.4f} lr 3.00e-05\n" * (at % 200 == 0)
        + f"[train] iter {at}: loss 2.7499 2942 ms/iter\n"
        for at in range(0, 1001, 100)
    )
    facts = parse_facts(text)
    assert (facts.eval_steps, facts.final_val_loss) == ([0, 200, 400, 600, 800, 1000], 2.0)
    assert facts.steady_ms == 2942


def test_an_unknown_mfu_again_is_a_new_process() -> None:
    def process(first: int, last: int) -> str:
        return "".join(
            f"iter {at}: loss {3 - at / 1000:.4f}, time 50.00ms, mfu {9.0 if at > first + 4 else -100:.2f}%\n"
            for at in range(first, last)
        )

    run_log = parse_log(process(0, 201) + process(200, 300) + process(300, 400))
    assert [one.first_iteration for one in run_log.segments] == [0, 200, 300]
    assert [one.resumed for one in run_log.segments] == [False, True, True]
    assert trajectory_of(run_log).iteration.tolist() == list(range(400))
    again = parse_logs(process(0, 100) + process(0, 100))
    assert [len(one.steps) for one in again] == [100, 100]


def test_two_saves_of_one_iteration_under_two_names_are_two() -> None:
    text = "".join(f"iter {at}: loss 3.0000, time 33.00ms, mfu 5.00%\n" for at in range(0, 500, 100))
    text += "step 500: train loss 2.0000, val loss 2.1000\nsaving checkpoint to out\n"
    text += "saving checkpoint -> out/ckpt_000500.pt\nsaving checkpoint to out\n"
    assert parse_facts(text).checkpoint_steps == [500, 500]
