"""A trainer that nobody knows: what is plainly there, and nothing more."""

from __future__ import annotations

import math

import pytest
from log_checks import check_facts, parse_facts, parse_log, parse_logs
from printed import SyntheticRun
from printed_more import unknown

from glassgpt.errors import UserError
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


def test_megatrons_lines() -> None:
    line = (
        " [2024-05-11 10:00:01] iteration {at:8d}/  500000 | consumed samples: 640 | elapsed time per "
        "iteration (ms): 2345.1 | learning rate: 1.500000E-04 | global "
        "batch size:    64 | lm loss: 3.250000E+00 | loss scale: 1.0 | grad norm: 0.512 | number of "
        "skipped iterations: 0 |"
    )
    run_log = parse_log("".join(line.format(at=at) + "\n" for at in (10, 20, 30)))
    assert run_log.steps.iteration.tolist() == [10, 20, 30]
    assert run_log.steps.loss.tolist() == [3.25] * 3
    assert run_log.steps.ms.tolist() == [2345.1] * 3
    assert run_log.steps.grad_norm.tolist() == [0.512] * 3


def test_ranks_without_a_blank_after_their_name_that_come_out_of_order() -> None:
    line = "[rank{rank}]:2025-02-01 10:00:00,123 - root - INFO - step: {at:2d}  loss: {loss:7.4f}\n"
    order = [(0, 1), (0, 2), (1, 1), (0, 3), (1, 2), (1, 3), (0, 4), (1, 4)]
    text = "".join(line.format(rank=rank, at=at, loss=5 - at) for rank, at in order)
    text += "[rank0]:2025-02-01 10:00:09,123 - root - INFO - Training completed\n"
    facts = parse_facts(text)
    assert (facts.segments, facts.iterations_logged, facts.ended) == (1, 4, "finished")


@pytest.mark.parametrize("where", ["", " on validation set"])
def test_megatrons_evaluations_and_checkpoints(where: str) -> None:
    text = ""
    for at in range(10, 101, 10):
        text += (
            f" [2024-05-01 10:00:{at % 60:02d}] iteration {at:8d}/     100 | consumed samples: {at * 256} | "
        )
        text += "elapsed time per iteration (ms): 812.3 | lm loss: 2.500000E+00 | loss scale: 1.0 |\n"
        if at % 50 == 0:
            text += f" validation loss at iteration {at}{where} | lm loss value: {3 - at / 100:.6E} | "
            text += "lm loss PPL: 1.218249E+01 | \n"
            text += f"  successfully saved checkpoint from iteration {at:7d} to checkpoints\n"
    text += " validation loss at iteration 100 on test set | lm loss value: 9.000000E+00 |\n"
    facts = parse_facts(text)
    assert (facts.eval_steps, facts.checkpoint_steps) == ([50, 100], [50, 100])
    assert (facts.best_val_loss, facts.best_val_step, facts.final_val_loss) == (2.0, 100, 2.0)
    assert facts.steady_ms == 812.3


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


def test_torchtitan() -> None:
    stamp = "[rank0]:[titan] 2024-10-01 10:10:10,123 - root - INFO - "
    lines = [
        "Model llama3 8B size: 8,030,261,248 total parameters",
        *(f"step: {at:2}  loss: {9 - at / 100:7.4f}  memory: 48.34GiB(50.87%)" for at in range(1, 9)),
        "Training completed",
    ]
    run_facts = parse_facts("".join(f"{stamp}{line}\n" for line in lines))
    assert (run_facts.iterations_logged, run_facts.parameters, run_facts.ended) == (
        8,
        8_030_261_248,
        "finished",
    )
