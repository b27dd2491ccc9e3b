"""A trainer that nobody knows: what is plainly there, and nothing more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from log_checks import check_facts, parse_facts, parse_log, parse_logs
from printed import SyntheticRun, nanogpt
from printed_more import unknown

from glassgpt.errors import UserError
from glassgpt.explain.explanation import explain
from glassgpt.runs.analysis import Analysis


def test_a_whole_log() -> None:
    expected = unknown(SyntheticRun(updates=33))
    check_facts(expected.text, expected)


@pytest.mark.parametrize(
    ("line", "loss", "ms"),
    [
        ("Step {at}/500, Loss: 2.3456, LR: 3e-4, Time: 0.21s", 2.3456, 210),
        ("epoch 1 iteration {at} train_loss=3.21", 3.21, math.nan),
        ("[{at}] global_step {at} | training loss 3.21 | elapsed 12.5 ms", 3.21, 12.5),
        ("iteration: {at} loss: 3.21 time: 5", 3.21, math.nan),  # of what unit?
        (
            "completed step: {at}, seconds: 1.25, TFLOP/s/device: 257.9, Tokens/s/device: 36653, loss: 3.21",
            3.21,
            1250,
        ),
        ("loss=3.21 step={at} 250ms/step", 3.21, 250),
        (
            "iteration: {at} / 500 | elapsed_time_per_iteration_ms: 250 | lm_loss: 3.21",
            3.21,
            250,
        ),
        ("it: {at} | train/loss: 3.21 | val/acc: 0.5 | 4.00it/s", 3.21, 250),
        ("Epoch 1 Step {at} avg_loss 3.21 step_time 0.25s lr 1e-4", 3.21, 250),
        ("{{'global_step': {at}, 'train_loss': 3.21, 'step_time_s': 0.25}}", 3.21, 250),
        ("update={at} loss/train: 3.21 gnorm: 1.5 sec_per_step: 0.25", 3.21, 250),
    ],
)
def test_forms(line: str, loss: float, ms: float) -> None:
    run_log = parse_log("".join(line.format(at=at) + "\n" for at in range(1, 6)))
    assert run_log.trainer.id == "unknown"
    assert run_log.steps.iteration.tolist() == [1, 2, 3, 4, 5]
    assert run_log.steps.loss.tolist() == [loss] * 5
    assert run_log.steps.ms[0] == pytest.approx(ms, nan_ok=True)


def test_two_such_lines_are_not_yet_a_log() -> None:
    line = "Step {at}/500, Loss: 2.3456\n"
    with pytest.raises(UserError):
        parse_log(line.format(at=1) + line.format(at=2))


def test_nothing_is_said_about_evaluation_times() -> None:
    facts = parse_facts(unknown(SyntheticRun(updates=33)).text)
    assert facts.eval_overhead_ms is None
    assert facts.overhead_share is None


def test_an_empty_file_is_called_so() -> None:
    with pytest.raises(UserError, match="it is empty"):
        parse_log("")


def test_progress_bars_that_say_the_loss() -> None:
    bar = "Training:  {at}%|##    | {at}0/1000 [00:10<00:40, 19.8it/s, loss={loss:.3f}, lr=3.00e-04]"
    run_log = parse_log("\n".join(bar.format(at=at, loss=4 - at / 50) for at in range(101)) + "\n")
    assert run_log.trainer.id == "unknown"
    assert run_log.steps.iteration.tolist() == list(range(0, 1001, 10))
    assert run_log.steps.loss[[0, -1]].tolist() == [4, 2]
    assert parse_facts(bar.format(at=1, loss=3.0) + "\n" + bar.format(at=2, loss=3.0) + "\n" * 2
                    + bar.format(at=100, loss=2.0) + "\n").ended == "finished"  # fmt: skip


def test_records_in_json_are_no_trainers_dicts() -> None:
    run_log = parse_log(
        "".join(f'{{"step": {at}, "loss": {3 - at / 10}, "lr": 0.0003}}\n' for at in range(9))
    )
    assert run_log.trainer.id == "unknown"
    assert run_log.steps.iteration.tolist() == list(range(9))
    assert run_log.steps.loss[-1] == pytest.approx(2.2)
    assert run_log.steps.lr[-1] == pytest.approx(3e-4)


def epochs(line: str, count: int = 3) -> str:
    lines = [line.format(epoch=epoch, at=at) for epoch in range(1, count + 1) for at in range(10, 101, 10)]
    return "\n".join(lines) + "\n"


def test_steps_that_every_epoch_counts_anew_are_one_process() -> None:
    text = epochs("Epoch {epoch}/3 | Step {at}/100 | Loss: 2.5")
    facts = parse_facts(text)
    assert (facts.segments, facts.first_iteration, facts.last_iteration) == (1, 10, 300)
    assert facts.ended == "finished"
    shorter = "".join(text.splitlines(keepends=True)[:-3])
    assert parse_facts(shorter).ended == "cut"
    assert parse_facts(epochs("Epoch {epoch} | Step {at}/100 | Loss: 2.5")).last_iteration == 300


def test_steps_that_count_through_all_epochs_stay_as_they_are() -> None:
    lines = [f"epoch {1 + at // 100} step {at}/300 loss: 2.5\n" for at in range(10, 301, 10)]
    facts = parse_facts("".join(lines))
    assert (facts.segments, facts.last_iteration, facts.ended) == (1, 300, "finished")
    assert [len(run_log.steps) for run_log in parse_logs("".join(lines * 2))] == [30, 30]  # begun anew


def test_ranks_without_a_blank_after_their_name_that_come_out_of_order() -> None:
    line = "[rank{rank}]:2025-02-01 10:00:00,123 - root - INFO - step: {at:2d}  loss: {loss:7.4f}\n"
    order = [(0, 1), (0, 2), (1, 1), (0, 3), (1, 2), (1, 3), (0, 4), (1, 4)]
    text = "".join(line.format(rank=rank, at=at, loss=5 - at) for rank, at in order)
    text += "[rank0]:2025-02-01 10:00:09,123 - root - INFO - Training completed\n"
    facts = parse_facts(text)
    assert (facts.segments, facts.iterations_logged, facts.ended) == (1, 4, "finished")


@pytest.mark.parametrize("name", ["step_time_ms", "iter_time_ms", "time_ms", "dt_ms"])
def test_a_name_that_ends_in_its_unit(name: str) -> None:
    line = '{{"step": {at}, "loss": 3.25, "{name}": 123.5}}\n'
    run_log = parse_log("".join(line.format(at=at, name=name) for at in range(1, 6)))
    assert run_log.steps.ms.tolist() == [123.5] * 5


def test_mingpt_is_not_nanogpt() -> None:
    """Its time is a name and its unit before the iteration; its older one counts every epoch from 0."""
    line = "iter_dt {ms:.2f}ms; iter {at}: train loss 2.50000\n"
    lines = [line.format(at=at, ms=40 + at // 100 % 3) for at in range(0, 1000, 100)]
    now = parse_log("number of parameters: 2.67M\n" + "".join(lines))
    assert now.trainer.id == "unknown"
    assert Analysis(now).facts.steady_ms == 41.0
    bar = "epoch {epoch} iter {at}: train loss 2.50000. lr 6.000000e-04:  33%|###| {at}/300 [00:10<00:20]"
    old = parse_facts("".join(bar.format(epoch=epoch, at=at) + "\n" for epoch in (1, 2) for at in range(300)))
    assert (old.segments, old.iterations_logged, old.last_iteration) == (1, 600, 599)


def test_the_unit_of_a_time_follows_from_the_rate_of_a_bar() -> None:
    def steady_ms(time: str, rate: str) -> float | None:
        line = f" 50%|#####     | {{at}}/100 [00:10<00:10, {rate}] step={{at}} loss=2.5 dt={time} mfu=4.5\n"
        return parse_facts("".join(line.format(at=at) for at in range(10, 101, 10))).steady_ms

    assert steady_ms("95.5", "10.00it/s") == 95.5
    assert steady_ms("0.0955", "10.00it/s") == pytest.approx(95.5)
    assert steady_ms("95.5", "100.00s/it") == 100_000  # the rate has a unit
    assert steady_ms("9550", "10.00it/s") is None


def test_a_validation_loss_that_lines_repeat_was_made_once() -> None:
    """It is shown with the training loss of the same evaluation, which is not the one of the line's batch."""
    values = ["4.2905"] * 4 + ["3.1000"] * 4
    text = "".join(
        f"step={5 * at} loss={4 - at / 10:.4f} dt=95.5ms mfu=-100.0 train_loss=4.1000 val_loss={value}\n"
        for at, value in enumerate(values, 1)
    )
    run_log = parse_log(text)
    assert [(one.iteration, one.val_loss, one.train_loss) for one in run_log.evals] == [
        (5, 4.2905, 4.1),
        (25, 3.1, 4.1),
    ]
    assert run_log.steps.loss.tolist() == pytest.approx([4 - at / 10 for at in range(1, 9)])
    assert np.isnan(run_log.steps.mfu).all()


@pytest.mark.parametrize("name", ["val_loss", "val/loss", "Validation Loss", "eval_loss", "valid loss"])
def test_a_validation_loss_is_not_the_training_loss(name: str) -> None:
    text = "".join(f"step={at} {name}=9.5\nstep={at} loss=2.5\n" for at in range(1, 6))
    run_log = parse_log(text)
    assert run_log.steps.loss.tolist() == [2.5] * 5
    assert {one.val_loss for one in run_log.evals} == {9.5}


def test_mfu_speed_and_norm_as_they_are_printed() -> None:
    line = "step {at} loss 2.5 mfu {mfu} | 98.5k tok/s | grad_norm: {norm}\n"
    steps = parse_log("".join(line.format(at=at, mfu="41.5%", norm="nan") for at in range(1, 5))).steps
    assert steps.mfu.tolist() == [41.5] * 4
    assert steps.tokens_per_s.tolist() == [98_500] * 4
    assert np.isinf(steps.grad_norm).all()
    share = parse_log("".join(line.format(at=at, mfu="0.415", norm="1.5") for at in range(1, 5))).steps
    assert np.isnan(share.mfu).all()  # 0.415 % or 41.5 %?


def test_elapsed_time_is_a_total() -> None:
    line = "step {at} loss 2.5 elapsed: {s:.1f}s\n"
    steps = parse_log("".join(line.format(at=at, s=30 + at * 0.25) for at in range(10, 60, 10))).steps
    assert steps.ms[1:].tolist() == pytest.approx([250] * 4)
    assert math.isnan(steps.ms[0])


def test_samples_of_an_epoch_are_no_iterations() -> None:
    line = "Train Epoch: {epoch} [{at}/60000 ({share:.0f}%)]\tLoss: {loss:.6f}\n"
    text = "".join(
        line.format(epoch=epoch, at=at * 640, share=at, loss=2.5 - at / 100)
        for epoch in (1, 2)
        for at in range(9)
    )
    facts = parse_facts(text)
    assert (facts.iterations_logged, facts.last_iteration, facts.segments) == (18, None, 1)
    assert (facts.loss_first, facts.loss_last) == (2.5, 2.42)


def test_epochs_are_the_iterations_where_nothing_else_is_counted() -> None:
    line = "Epoch {at}/5 | Train Loss: {loss:.4f} | Val Loss: {val:.4f} | took 81.5s\n"
    text = "".join(line.format(at=at, loss=3 - at / 10, val=3.1 - at / 10) for at in range(1, 6))
    facts = parse_facts(text)
    assert (facts.iterations_logged, facts.last_iteration, facts.ended) == (5, 5, "finished")
    assert (facts.loss_last, facts.best_val_loss, facts.best_val_step) == (2.5, 2.6, 5)
    assert facts.steady_ms == 81_500


def test_a_line_about_the_epoch_after_its_steps_is_an_evaluation() -> None:
    text = "".join(
        "".join(f"epoch {epoch} step {at}: loss={3 - epoch / 10:.4f}\n" for at in range(0, 50, 10))
        + f"Epoch {epoch} done. Train loss: {3 - epoch / 10:.4f}, Val loss: {3.1 - epoch / 10:.4f}\n"
        for epoch in range(1, 4)
    )
    run_log = parse_log(text)
    assert len(run_log.steps) == 15
    assert [one.val_loss for one in run_log.evals] == pytest.approx([3.0, 2.9, 2.8])


@pytest.mark.parametrize(
    ("line", "first", "last"),
    [
        ("Epoch: {epoch:03d}/003 | Batch {zero:04d}/0040 | Loss: 2.5", 20, 119),
        ("[Epoch {epoch}] Batch {at}/40 | Loss: 2.5", 21, 120),
        ("Epoch:  {epoch} | Batch:  {at}/ 40 | LR: 3e-4 |Loss: 2.5 | Time: {at}.5s", 21, 120),
        ("| epoch {epoch:03d}  {at} / 40 loss=2.5 (2.4), wps=900, lr=0.001, clip=100%", 21, 120),
        ("Epoch: [{epoch}][{at}/40] Loss 2.5 (2.6)", 21, 120),
        ("[Epoch {epoch}][Step {at}/40] global_step={through} train_loss=2.5 steps=40", 21, 120),
    ],
)
def test_batches_are_counted_through_the_epochs(line: str, first: int, last: int) -> None:
    """From the middle of the first epoch on, as a terminal keeps it: the epoch's number is not the
    iteration's."""
    counts = [(1 + at // 40, at % 40) for at in range(20, 120)]
    lines = [
        line.format(epoch=epoch, zero=batch, at=batch + 1, through=(epoch - 1) * 40 + batch + 1)
        for epoch, batch in counts
    ]
    run_log = parse_log("\n".join(lines) + "\n")
    assert run_log.steps.iteration.tolist() == list(range(first, last + 1))
    assert np.isnan(run_log.steps.ms).all()  # the time of an epoch so far is not a step's
    assert len(run_log.segments) == 1


def test_batches_that_do_not_say_how_many() -> None:
    text = epochs("ep: {epoch}, batch: {at}, time: 9.17, ntokens: 485.20/513, loss: 2.5", 2)
    assert parse_log(text).steps.iteration.tolist() == list(range(10, 201, 10))


def test_an_evaluation_that_counts_in_the_epoch_beside_steps_that_count_through_all() -> None:
    lines = [
        f"[Epoch {epoch}][Step {at}/30] global_step={30 * epoch + at} train_loss=2.5\n"
        + (f"[MiniVal][Epoch {epoch}][Step 20] val_loss={2 + epoch / 10}\n" if at == 20 else "")
        for epoch in range(3)
        for at in (10, 20, 30)
    ]
    run_log = parse_log("".join(lines))
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(20, 2.0), (50, 2.1), (80, 2.2)]


def test_an_epoch_in_several_lines() -> None:
    block = "Epoch: {at}/30\nTime Taken: 30.5s - LR: 1e-4\nTrain Loss: {at}.25 - Train Perplexity: 9\n"
    text = "".join(
        block.format(at=at) + f"Valid Loss: {at}.5 - Valid Perplexity: 9\n---\n" for at in (1, 2, 3)
    )
    run_log = parse_log("Model Parameter Count: 66829394\n" + text)
    assert run_log.steps.iteration.tolist() == [1, 2, 3]
    assert run_log.steps.loss.tolist() == [1.25, 2.25, 3.25]
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(1, 1.5), (2, 2.5), (3, 3.5)]
    assert (run_log.setup.planned_iterations, run_log.setup.parameters) == (30, 66829394)


def test_opennmt() -> None:
    line = "[2025-01-01 10:00:00,000 INFO] "
    text = "".join(
        f"{line}Step {at}/ 200; acc:  20.18; ppl: 90.02; xent: 4.50; lr: 0.00020; 4466/6179 tok/s;  32 sec\n"
        for at in (50, 100, 150)
    )
    text += f"{line}Validation perplexity: {math.exp(3):.6f}\n{line}Saving checkpoint model/m_step_150.pt\n"
    run_log = parse_log(text)
    assert run_log.steps.loss.tolist() == [4.5] * 3
    assert run_log.evals[0].val_loss == pytest.approx(3, abs=1e-6)
    assert [save.iteration for save in run_log.checkpoints] == [150]
    assert run_log.setup.planned_iterations == 200


def test_a_home_made_loop_is_not_build_nanogpt() -> None:
    """The mean loss of an epoch before the first logged step is a summary, not a step."""
    at = "2026-02-03 13:24:3{second}.939 | INFO     | __main__:train:172 - "
    lines = [
        "Epoch 1 completed. Average loss: 4.69",
        "Checkpoint saved: out/epoch1.pt",
        "Step 50, Loss: 4.8445",
        "Evaluation Results:",
        "   Loss: 4.71",
        "Step 100, Loss: 4.0545",
        "Checkpoint saved: out/epoch2.pt",
        "Training completed!",
    ]
    run_log = parse_log("".join(at.format(second=second) + line + "\n" for second, line in enumerate(lines)))
    assert run_log.trainer.id == "unknown"
    assert run_log.steps.iteration.tolist() == [50, 100]
    assert run_log.evals[0].val_loss == 4.71
    assert run_log.checkpoints[-1].iteration == 100
    assert Analysis(run_log).facts.ended == "finished"


def test_a_word_after_a_count_is_no_unit() -> None:
    text = "DDP setup world_size=6 master=10.0.0.1\n" + "".join(f"step {at} loss: 2.5\n" for at in range(5))
    assert parse_log(text).setup.world_size == 6


def test_a_count_that_begins_again_is_another_epoch_only_where_a_line_says_so() -> None:
    def epoch(number: int, summary: str) -> str:
        steps = [f"    step {at:4d}/328  loss {3 - number / 10:.4f}\n" for at in range(20, 328, 20)]
        return "".join(steps) + summary.format(number=number, val=2.9 - number / 100)

    said = (
        "[Unfrozen] Epoch {number}/500 -- train: 0.5243  val: {val:.4f}  ppl: 1.84  (70s)\n  New best saved\n"
    )
    facts = parse_facts("".join(epoch(number, said) for number in range(1, 6)))
    assert (facts.segments, facts.last_iteration, facts.iterations_logged) == (1, 4 * 328 + 320, 80)
    assert facts.eval_steps == facts.checkpoint_steps == [at * 328 + 320 for at in range(5)]
    assert (facts.best_val_loss, facts.best_val_step, facts.ended) == (2.85, 4 * 328 + 320, "cut")
    for summary in ("", "Epoch 1/1 done\n"):  # the same run again, or one that nobody numbered
        runs = parse_logs(summary + epoch(1, summary) + epoch(2, summary))
        assert [len(run.steps) for run in runs] == [16, 16]


@pytest.mark.parametrize(
    ("line", "count", "ms"),
    [
        ("  step  {at:,} | loss 2.7045 | gnorm 0.246 | {s:.0f}s elapsed", 1000, 1000),
        ("step{at}, loss: 2.7045", 1, None),
        ("Step {at}/ 90000; acc: 24.85; ppl: 9.8; xent: 2.28; 4828/6680 tok/s; {s:6.0f} sec;", 50, 1000),
        ("| epoch 1 | {at}/90000 batches | lr 5.00 | ms/batch 250.00 | loss 2.28 | ppl 9.8", 200, 250),
        ("epoch 001: {at} / 9000 loss=2.28, ups=1, num_updates={at}, train_wall=9, wall={s:.0f}",
         100, 1000),
        ("2025-02-01 10:{minute:02d}:00,500 - root - INFO - step: {at} loss: 2.28", 60, 1000),
        ("[{s:.1f}s] step: {at} - loss: 2.28 - grad_norm=0.5 tok-sec: 3000.5", 10, None),
    ],
)  # fmt: skip
def test_counts_and_clocks_as_people_write_them(line: str, count: int, ms: float | None) -> None:
    at = range(count, 21 * count, count)
    facts = parse_facts("".join(line.format(at=one, s=one, minute=one // 60) + "\n" for one in at))
    assert (facts.first_iteration, facts.last_iteration, facts.segments) == (count, 20 * count, 1)
    assert facts.steady_ms == (None if ms is None else pytest.approx(ms))


@pytest.mark.parametrize("form", ["time: {s:.1f}s", "| {s:.1f}s", "took {s:.1f} sec", "({s:.2f}s)"])
def test_a_time_that_grows_with_every_line_is_since_the_start(form: str) -> None:
    line = "step {at} | loss 2.5 " + form + "\n"
    text = "".join(line.format(at=at, s=0.25 * at + 3) for at in range(10, 210, 10))
    facts = parse_facts(text)
    assert facts.steady_ms == pytest.approx(250)
    steady = "".join(line.format(at=at, s=0.2 + at % 3 / 10) for at in range(10, 210, 10))
    assert parse_facts(steady).steady_ms == 300


def test_whole_seconds_that_hardly_differ_are_no_time() -> None:
    facts = parse_facts("".join(f"step {at} loss 2.5 time {at}s\n" for at in range(1, 31)))
    assert facts.steady_ms is None


def test_a_speed_after_another_number() -> None:
    facts = parse_facts("".join(f"step {at} loss 2.5 norm 0.5 tok/s: 3000\n" for at in range(9)))
    assert facts.tokens_per_s == 3000
    facts = parse_facts("".join(f"step {at} loss 2.5 | 3.5k tok/s | 4\n" for at in range(9)))
    assert facts.tokens_per_s == 3500


def test_a_saved_model_is_no_step_whatever_loss_it_has() -> None:
    text = ""
    for at in range(20):
        text += f"Epoch: {at // 10}, Batch: {at % 10}, Loss: {4 - at / 10:.3f}\n"
        if at % 5 == 4:
            text += f"Saving model at iteration {3 * at} with loss 3.21 and accuracy 0.026\n"
    facts = parse_facts(text)
    assert (facts.iterations_logged, facts.segments, facts.last_iteration) == (20, 1, 19)
    assert facts.checkpoint_steps == [4, 9, 14, 19]


def test_losses_of_an_evaluation_on_lines_of_their_own() -> None:
    text = "".join(
        f"iter_dt {at:.2f}ms; iter {at}: train loss 6.4\ntrain loss: 6.46\ntest loss: {7 - at / 100}\n"
        for at in range(0, 400, 100)
    )
    facts = parse_facts(text + "final val_loss 2.5\nFinished baseline in 1252.14s. Saved to models/\n")
    assert (facts.eval_steps, facts.best_val_loss, facts.final_val_loss) == ([0, 100, 200, 300], 2.5, 2.5)
    assert (facts.first_iteration_ms, facts.ended) == (None, "finished")


def test_what_a_trainer_may_print_in_words_nobody_listed_is_not_0() -> None:
    facts = parse_facts("".join(f"step {at} loss 2.5\n" for at in range(9)))
    assert (facts.eval_steps, facts.checkpoint_steps) == (None, None)
    assert parse_facts(nanogpt(SyntheticRun(updates=9, eval_every=10)).text).checkpoint_steps == []


def test_a_validation_that_calls_its_loss_just_so() -> None:
    step = "joeynmt.training - Epoch 1, Step: {at:8d}, Batch Loss: {loss:.4f}, Lr: 0.001\n"
    result = "Validation result (greedy) at epoch 1, step {at}: loss: {sum:.2f}, ppl: 3.0, bleu: 9.\n"
    text = "".join(
        step.format(at=at, loss=4 - at / 1000) + (result.format(at=at, sum=18124.0) if at % 500 == 0 else "")
        for at in range(100, 2001, 100)
    )
    text += "".join(f"Steps: {at}\tLoss: 13479.5\tPPL: 3.0\tbleu: 58.3\tLR: 0.001\t*\n" for at in (500, 1000))
    facts = parse_facts(text)
    assert (facts.iterations_logged, facts.last_iteration, facts.segments) == (20, 2000, 1)
    assert facts.eval_steps == [500, 1000, 1500, 2000]
    assert facts.final_val_loss == pytest.approx(math.log(3))


def test_batches_that_only_their_epoch_is_said_of() -> None:
    text = "".join(
        f"Epoch {epoch} - Batch loss: {5 - epoch - at / 50:.4f}\n" * (at < 40)
        + f"Epoch {epoch} - Average Train Loss: 0.5\n" * (at == 40)
        for epoch in (1, 2, 3)
        for at in range(41)
    )
    facts = parse_facts(text)
    assert (facts.iterations_logged, facts.last_iteration, facts.loss_first) == (120, None, 4)


def test_a_number_of_epochs_is_a_setting() -> None:
    with pytest.raises(UserError):
        parse_log('TRAINED | Text: "Hello" | Chunks: 1 | Epochs: 30 | Avg Loss: 6.0184\n' * 9)


def test_the_count_between_the_loss_and_its_number() -> None:
    steps = [f"2017-08-18 02:43:{at:02d},000:\tLoss at step {at}: {9 - at / 10:.4f}" for at in range(1, 30)]
    run_log = parse_log("\n".join(steps) + "\n")
    assert run_log.steps.iteration.tolist() == list(range(1, 30))
    assert run_log.steps.loss[9] == 8.0
    epochs = [f"Loss after {at} epochs: {1 / at:.3f}" for at in range(1, 9)]
    run_log = parse_log("\n".join(epochs) + "\n")
    assert run_log.trainer.iterations_are_epochs
    assert run_log.steps.iteration.tolist() == list(range(1, 9))
    assert run_log.steps.loss[3] == 0.25


def test_batches_of_an_epoch_by_any_name() -> None:
    for form in ("batch {} of epoch 1, loss {:.3f}, lr [0.0]", "epoch: 1, iteratation {}, loss: {:.3f}"):
        run_log = parse_log("".join(form.format(at, 5 - at / 100) + "\n" for at in range(1, 60)))
        assert run_log.steps.iteration.tolist() == list(range(1, 60)), form
        assert run_log.steps.loss[-1] == 4.41


def test_lines_of_one_epoch_without_a_count_are_counted() -> None:
    run_log = parse_log("".join(f"Epoch {at // 20}: loss {5 - at / 100:.3f}\n" for at in range(60)))
    assert len(run_log.steps) == 60
    assert not run_log.has_iteration_numbers
    assert not run_log.trainer.iterations_are_epochs


def test_a_step_in_several_lines() -> None:
    blocks = "".join(f"Step {at}/5000\nLoss: {9 - at / 1000:.4f}\nLR: 0.0003\n" for at in range(0, 5000, 100))
    run_log = parse_log(blocks)
    assert run_log.steps.iteration.tolist() == list(range(0, 5000, 100))
    assert run_log.steps.loss[10] == 8.0
    assert run_log.setup.planned_iterations == 5000


def test_a_checkpoint_is_at_the_step_that_its_line_names() -> None:
    lines = []
    for at in range(500, 6001, 500):
        lines.append(f"Step {at:,}/50,000 | Loss: {9 - at / 1000:.4f}")
        if at % 2000 == 0:
            lines.append(f"** 17:22:53** - CHECKPOINT: Saved at step {at:,}, loss 5.2628")
    run_log = parse_log("\n".join(lines) + "\n")
    assert [save.iteration for save in run_log.checkpoints] == [2000, 4000, 6000]
    assert len(run_log.steps) == 12


def test_the_end_of_the_last_epoch_is_the_end() -> None:
    lines = []
    for epoch in range(1, 4):
        lines.append(f"=== Epoch {epoch}/3 ===")
        lines += [f"[step {(epoch - 1) * 5 + at}] avg_loss={3 - at / 10:.4f}" for at in range(5)]
        lines.append(f"==end-of-epoch {epoch}==")
    assert parse_facts("\n".join(lines) + "\n").ended == "finished"
    assert parse_facts("\n".join(lines[:-7]) + "\n").ended == "cut"


def test_lines_of_a_count_its_total_and_a_loss_that_name_nothing() -> None:
    steps = "".join(f"{at:7d}/ 200000: {3.3 - at / 2e5:.4f}\n" for at in range(0, 200_000, 10_000))
    run_log = parse_log(f"{steps}train 2.0674\nval 2.1056\n")
    assert run_log.steps.iteration.tolist() == list(range(0, 200_000, 10_000))
    assert run_log.steps.loss[[0, -1]].tolist() == [3.3, 2.35]
    assert run_log.setup.planned_iterations == 200_000
    assert [(one.iteration, one.val_loss, one.train_loss) for one in run_log.evals] == [
        (190_000, 2.1056, 2.0674)
    ]
    assert [len(one.steps) for one in parse_logs(steps * 2)] == [20, 20]


def test_bare_lines_beside_named_losses_are_no_steps() -> None:
    text = "".join(f"step {at} loss 2.5{at}\n  {at}/ 9: 0.5{at}\ntrain 0.98\nval 0.97\n" for at in range(9))
    run_log = parse_log(text)
    assert run_log.steps.loss.tolist() == [float(f"2.5{at}") for at in range(9)]
    assert not run_log.evals


def test_evaluations_that_do_not_call_their_losses_so() -> None:
    lines = []
    for at in range(0, 1001, 50):
        lines.append(f"Step {at} | loss {4 - at / 1000:.4f} | lr 3.00e-04")
        if at % 250 == 0:
            lines.append(f"Step {at} | eval | train 4.16{at // 250} | val 4.12{at // 250}")
    evals = parse_log("\n".join(lines) + "\n").evals
    assert [(one.iteration, one.train_loss, one.val_loss) for one in evals] == [
        (250 * at, float(f"4.16{at}"), float(f"4.12{at}")) for at in range(5)
    ]
    accuracies = [line.replace("eval |", "acc |") for line in lines]
    assert not parse_log("\n".join(accuracies) + "\n").evals


def test_an_evaluation_before_training_is_at_0() -> None:
    text = "Start of training: Train Loss: 4.37, Val Loss: 4.36\n"
    text += "".join(f"Epoch {at}: Train Loss: {3 - at / 10:.2f}, Val Loss: 3.{at}\n" for at in range(1, 6))
    evals = parse_log(text).evals
    assert [(one.iteration, one.val_loss) for one in evals] == [
        (0, 4.36),
        *((at, 3 + at / 10) for at in range(1, 6)),
    ]
    assert evals[0].train_loss == 4.37


@pytest.mark.parametrize(("seconds", "ms"), [(5, 490), (49, 4900)])
def test_a_time_that_equals_the_gap_of_the_stamps_is_of_the_interval(seconds: int, ms: int) -> None:
    lines = []
    for row in range(30):
        at = 86_300 + seconds * row
        clock = f"{at // 3600 % 24:02d}:{at // 60 % 60:02d}:{at % 60:02d}"
        lines.append(f"{clock} | INFO | Step {10 * row} | loss 2.{row + 10} | lr 3e-05 | time 4.9s")
    assert parse_log("\n".join(lines) + "\n").steps.ms[5:].tolist() == pytest.approx([ms] * 25)


def test_of_losses_none_of_which_is_called_just_so_the_first_is_taken_and_named() -> None:
    line = "epoch: 0|step: {at}|ppo_ep: 1|act_loss: {loss}|cri_loss: 0.011|unsuper_loss: 0.0\n"
    line += "average reward score: {at}.5\n"
    run_log = parse_log("".join(line.format(at=at, loss="inf" if at > 7 else f"0.5{at}") for at in range(9)))
    assert run_log.steps.iteration.tolist() == list(range(9))
    assert run_log.steps.loss.tolist() == [*(float(f"0.5{at}") for at in range(8)), math.inf]
    (note,) = run_log.notes
    assert (note.values["name"], note.values["others"]) == ("act_loss", "cri_loss, unsuper_loss")
    assert not run_log.loss_measures_learning
    lines = "".join(f"[iter {at}] d_adv_loss: {3 - at / 10:.2f}  f_slf_loss: 6.2\n" for at in range(5, 30, 5))
    assert parse_log(lines).steps.loss.tolist() == [2.5, 2.0, 1.5, 1.0, 0.5]
    plain = "".join(f"step {at} loss: 2.5\nstep {at} d_adv_loss: 9.5\n" for at in range(1, 9))
    assert parse_log(plain).steps.loss.tolist() == [2.5] * 8


def test_counts_that_are_rounded_to_thousands() -> None:
    def counted(at: int) -> str:
        return str(at) if at < 1000 else f"{at / 1000:.0f}K"

    lines = [
        f"step:{counted(at)} smpl:{counted(32 * at)} loss:{3 - at / 9000:.3f} lr:1.0e-05"
        for at in range(200, 9001, 200)
    ]
    run_log = parse_log("\n".join(lines) + "\n")
    assert run_log.steps.iteration.tolist() == list(range(200, 9001, 200))
    assert run_log.steps.loss[[0, -1]].tolist() == [2.978, 2.0]
    gone = parse_log("\n".join([*lines[:10], *lines[-3:]]) + "\n")  # a part of the log is missing
    assert gone.steps.iteration[-3:].tolist() == [9000, 9200, 9400]


def test_saves_with_their_time() -> None:
    text = "".join(
        f"step {at} loss: 2.5\n"
        + (f"Saved checkpoint to ckpt_{at}.pt in 2.5 seconds\n" if at % 5 == 0 else "")
        for at in range(1, 11)
    )
    run_log = parse_log(f"{text}save checkpoint for epoch 9\n")
    assert [(save.iteration, save.blocking_ms) for save in run_log.checkpoints] == [(5, 2500), (10, 2500)]
    assert [
        save.iteration
        for save in parse_log(text.replace("Saved checkpoint to", "save checkpoint at step")).checkpoints
    ] == [5, 10]


def test_perplexities_of_epochs_are_evaluations() -> None:
    """DeepSpeed-Chat's, which prints no loss."""
    text = "".join(
        f"***** Evaluating perplexity, Epoch {at}/4 *****\nppl: {math.exp(3 - at / 2)}\n" for at in range(5)
    )
    evals = parse_log(text).evals
    assert [one.iteration for one in evals] == [0, 1, 2, 3, 4]
    assert [one.val_loss for one in evals] == pytest.approx([3, 2.5, 2, 1.5, 1])
    stepped = "".join(f"step {at} loss: 2.5\n" for at in range(1, 9)) + text
    assert {one.iteration for one in parse_log(stepped).evals} == {8}


def test_an_evaluation_among_other_words_is_one_of_the_step_before() -> None:
    lines = [f"step {at} loss {6 - at / 1000:.3f} lr 3.0e-03 20k tok/s" for at in range(200, 1200, 200)]
    run_log = parse_log(
        "\n".join(
            [
                *lines[:2],
                "  == val loss 5.535 (held-out stream) ==",
                "best val loss so far: 5.535",
                "resumed with val loss 5.9",
                *lines[2:],
                "== val loss 5.198 (held-out stream) ==",
                "done in 20.4 min; trained 32.8M tokens",
            ]
        )
    )
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(400, 5.535), (1000, 5.198)]
    assert parse_facts("\n".join([*lines, "done in 20.4 min"])).ended == "finished"


@pytest.mark.parametrize("first", [0, 1])
def test_an_evaluation_at_the_end_of_an_epoch_is_after_its_last_batch(first: int) -> None:
    """As PyTorch's word_language_model and transformer tutorial print."""
    lines = []
    for epoch in (1, 2):
        lines += [
            f"| epoch   {epoch} | {at:5d}/  950 batches | lr 5.00 | ms/batch 30.0 | loss 6.{epoch}{at // 100}"
            for at in range(first * 200, 951, 200)
        ]
        lines += [
            "-" * 89,
            f"| end of epoch   {epoch} | time: 28.50s | valid loss  5.{epoch} | valid ppl 172.9",
            "-" * 89,
        ]
    run_log = parse_log("\n".join([*lines, "| End of training | test loss  4.80 | test ppl   121.01"]))
    ends = [950, 1900] if first else [949, 1899]
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(ends[0], 5.1), (ends[1], 5.2)]
    assert run_log.iterations_done == ends[1]


def test_a_validation_loss_that_repeats_by_chance_is_another_evaluation() -> None:
    losses = [3.05, 2.76, 2.68, 2.69, 2.64, 2.62, 2.62, 2.63, 2.60, 2.60]
    lines = [f"step: {at} train loss: 2.{90 - at} test loss: {loss:.2f}" for at, loss in enumerate(losses, 1)]
    run_log = parse_log("\n".join([*lines, ""]))
    assert [one.val_loss for one in run_log.evals] == losses
    stale = [f"step: {at} train loss: 2.{90 - at} val loss: {3 - at // 5 * 0.1:.2f}" for at in range(1, 21)]
    assert [one.iteration for one in parse_log("\n".join([*stale, ""])).evals] == [1, 5, 10, 15, 20]


def test_two_runs_whose_losses_fall_at_once_are_two() -> None:
    """In cells of a notebook: the second begins as high as the first, and is below it at its third line."""
    first = [4.64 - 0.04 * at for at in range(25)]
    second = [4.57, 3.90, 3.45, 3.20, 3.04, *(2.9 - 0.01 * at for at in range(20))]
    lines = [
        f"Step: {40 * at}, loss: {loss:.4f}" for losses in (first, second) for at, loss in enumerate(losses)
    ]
    run_logs = parse_logs("\n".join(lines))
    assert [(one.runs_in_file, one.parts, len(one.steps)) for one in run_logs] == [(2, 1, 25), (2, 1, 25)]


@pytest.mark.parametrize(
    "line",
    [
        "SFT done in 11.7 min -> sft.pt",
        "Target loss 0.1 reached at step 60, loss=0.094433",
        "done in 3 seconds",
    ],
)
def test_other_words_for_the_end(line: str) -> None:
    steps = "".join(f"step {at} | loss 2.{at} | best 2.5 | 5.0s\n" for at in range(10, 60, 10))
    assert parse_facts(steps + line + "\n").ended == "finished"
    assert parse_facts(steps).ended == "cut"


def test_lines_with_a_loss_that_are_not_read_are_counted() -> None:
    steps = [f"step {at} loss {3 - at / 100:.2f}" for at in range(1, 21)]
    others = [f"[worker] loss=2.{at:02} at stage B" for at in range(30, 38)]
    remarks = ["best loss so far 2.8", "Final loss: 2.8", "loss_scale 1.5", "val loss is not measured"]
    run = parse_log("\n".join([*steps, *others, *remarks]))
    assert (len(run.steps), run.unread_loss_lines) == (20, len(others))
    assert [note.key for note in run.notes] == ["log.unread_losses"]
    few = parse_log("\n".join([*steps, *others[:2]]))  # a program's remarks, not a part of the run
    assert (few.unread_loss_lines, few.notes) == (2, ())


def test_epochs_that_are_over_are_counted() -> None:
    """From the first that the log shows; one that has begun is not over, and one alone is no repetition."""
    for first, last, epochs in ((1, 4, 3.0), (5, 8, 3.0), (1, 2, None), (1, 1, None)):
        lines = [
            f"epoch = {epoch}, iter = {at}, loss = {5 - 0.01 * (100 * epoch + at) / 4:.2f}"
            for epoch in range(first, last + 1)
            for at in range(32, 97, 32)
        ]
        assert parse_log("\n".join([*lines, ""])).setup.epochs == epochs


def test_the_whole_time_is_of_the_iterations_up_to_the_end() -> None:
    steps = "".join(f"step {at}/239 | loss {3 - at / 200} | lr 1e-3\n" for at in (1, *range(10, 240, 10)))
    explained = explain(parse_log(steps + "done in 239 seconds\n"))
    assert "1000 ms" in " ".join(explained.verdict)


@pytest.mark.parametrize(
    ("line", "tokens_per_s", "ms"),
    [
        ("step {at} loss 4.97 tok/s 99750", 99750, math.nan),
        ("step {at} loss 4.97 lr 3e-4 tokens/s 99750 it/s 4", 99750, 250),
        ("step {at} loss 4.97 99750 tok/s 250 ms", 99750, 250),
        ("step {at} loss 4.97 | 250 ms | 60.0% bf16 MFU | 99750 tok/s", 99750, 250),
        ("step {at} loss 4.97 | tok/s 99750 | dt=00:00:02", 99750, 2000),
    ],
)
def test_a_unit_before_its_number_is_a_name(line: str, tokens_per_s: float, ms: float) -> None:
    steps = parse_log("".join(f"{line.format(at=at)}\n" for at in range(1, 7))).steps
    assert steps.loss.tolist() == [4.97] * 6
    assert steps.tokens_per_s.tolist() == [tokens_per_s] * 6
    assert steps.ms[0] == pytest.approx(ms, nan_ok=True)
    assert set(steps.mfu.tolist()) == {60.0} or "MFU" not in line


def test_values_before_their_names() -> None:
    lines = [f"{at:4d} 4.3 s run, {3 - at / 10:.4f} loss, 0.0003 LR, 1.5 GB used" for at in range(1, 8)]
    steps = parse_log("\n".join(lines)).steps
    assert steps.loss[-1] == pytest.approx(2.3)
    assert steps.lr.tolist() == [0.0003] * 7


@pytest.mark.parametrize("form", ["[{time}] step: {at}, loss: {loss}", "{time} INFO step {at} loss {loss}"])
def test_stamps_in_whole_seconds_are_a_clock(form: str) -> None:
    text, seconds = [], 0
    for at in range(0, 4000, 20):
        seconds += 20 if at < 2000 else 60
        seconds += 14 * 3600 * (at == 1000)
        time = f"2026-03-{1 + seconds // 86400:02} {seconds // 3600 % 24:02}:{seconds // 60 % 60:02}"
        text.append(form.format(time=f"{time}:{seconds % 60:02}", at=at, loss=f"{3 - at / 9000:.4f}"))
    run_log = parse_log("\n".join(text))
    assert run_log.trainer.id == "unknown"
    assert run_log.steps.ms[10] == 1000
    assert run_log.steps.ms[50] == pytest.approx((14 * 3600 + 20) * 50)
    assert run_log.steps.ms[-1] == 3000


def test_a_step_that_two_processes_print_has_the_first_ones_time() -> None:
    lines = [
        f"2026-03-01 10:{at:02}:{second} step {at} loss {3 - at / 90}"
        for at in range(20)
        for second in ("00", "25")
    ]
    assert np.nanmedian(parse_log("\n".join(lines)).steps.ms) == 60_000


def test_losses_of_several_validation_sets() -> None:
    lines = [f"step {at} loss 3.{9 - at}\nval_loss_en 3.5{at} val_loss_de 3.7{at}\n" for at in range(5)]
    run_log = parse_log("".join(lines))
    assert [one.val_loss for one in run_log.evals] == [3.5, 3.51, 3.52, 3.53, 3.54]
    assert [note.key for note in run_log.notes] == ["log.val_loss_taken"]
    assert run_log.notes[0].values["others"] == "val_loss_de"
    (other,) = [parse_log("\n".join(f"step {at} loss 3.{9 - at} val_loss_std 0.5" for at in range(5)))]
    assert not other.evals


def test_bits_instead_of_a_loss() -> None:
    run_log = parse_log("".join(f"step {at} train bpc {3 - at / 10}\n" for at in range(9)))
    assert run_log.steps.loss[0] == pytest.approx(3 * math.log(2))
    assert [note.key for note in run_log.notes] == ["log.loss_of_bits"]
    run_log = parse_log("".join(f"step {at} val_bpb {3 - at / 10}\n" for at in range(9)))
    assert [(one.val_loss, one.metric) for one in run_log.evals[:2]] == [
        (3.0, "bits_per_byte"),
        (2.9, "bits_per_byte"),
    ]


@pytest.mark.parametrize("header", ["epoch  train_loss  valid_loss", "#epoch train_loss valid_loss"])
def test_a_table_between_blanks(header: str) -> None:
    rows = [f"{at}      {3 - at / 10:.6f}    {3.1 - at / 10:.6f}  " for at in range(6)]
    run_log = parse_log("\n".join(("Starting", header, *rows)))
    assert run_log.steps.loss.tolist() == [3.0, 2.9, 2.8, 2.7, 2.6, 2.5]
    assert [one.val_loss for one in run_log.evals] == [3.1, 3.0, 2.9, 2.8, 2.7, 2.6]


def test_the_total_that_lines_print_is_an_epochs_length() -> None:
    lines = []
    for epoch in range(1, 5):
        lines += [f"Epoch: {epoch}, Iter: {at}/188, loss: {3 - epoch / 9}" for at in (50, 100, 150)]
        lines.append(f"valid loss: 2.{epoch}")
    run_log = parse_log("\n".join((*lines, "")))
    assert run_log.steps.iteration[-3:].tolist() == [614, 664, 714]
    assert [one.iteration for one in run_log.evals] == [150, 376, 564, 752]


def test_a_time_beside_that_of_loading_data_is_of_an_iteration() -> None:
    lines = [f"Iter(train) [{at}/900] lr: 1e-4 time: 2.5 data_time: 0.02 loss: 0.6" for at in range(1, 6)]
    assert parse_log("\n".join(lines)).steps.ms.tolist() == [2500] * 5
    assert np.isnan(parse_log("\n".join(one.replace("data_", "x") for one in lines)).steps.ms).all()


def test_caffes_stamps() -> None:
    lines = [
        f"I0508 12:{at:02}:15.421900  2763 solver.cpp:65] Iteration {40 * at}, loss = {3 - at / 10:.4f}"
        for at in range(6)
    ]
    steps = parse_log("\n".join(lines)).steps
    assert steps.iteration.tolist() == [0, 40, 80, 120, 160, 200]
    assert steps.ms[1:].tolist() == [1500.0] * 5


def test_a_clock_of_hours_since_the_start() -> None:
    lines = [f"step {at}0 loss {3 - at / 10} (elapsed 0:{at:02}:30)\n" for at in range(9)]
    assert parse_log("".join(lines)).steps.ms[1:].tolist() == [6000.0] * 8
