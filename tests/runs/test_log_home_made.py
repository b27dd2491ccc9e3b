"""Lines as home-made training loops print them: steps, evaluations, epochs, and what is none."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import numpy as np
import pytest
from log_checks import parse_facts, parse_log, parse_logs

from glassgpt.errors import UserError
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.fields import read_line

# {e}: the epoch, {t} and {v}: its losses, {a}: an accuracy. Some have several lines.
EPOCHS_WITH_EVALS = (
    "Epoch {e}/5 | train_loss: {t} | val_loss: {v} | val_acc: {a} | time: 12.3s",
    "Epoch {e}/5 - train_acc: {a}, val_acc: {a} - train_loss: {t}, val_loss: {v}",
    "Epoch {e}/5 [12.5s] - train_loss: {t}, val_loss: {v}",
    "[train] Epoch {e} — train_loss: {t}  val_loss: {v}  lr: 1.00e-04",
    "  [Fold 2] Epoch {e:3d} | train_loss: {t} | val_loss: {v} | val_r2: +0.40 | lr: 1e-04 | 3.1s *best*",
    "Epoch:{e}, Train loss: {t}, Test loss: {v}",
    "Epoch {e}: Train Loss: {t}, \tValidation Loss: {v}, \tTest Loss: 9.5",
    "Epoch {e:4d}/5  train={t}  val={v}  lr=1.00e-04",
    "[Train] Epoch {e}: Loss={t}, Accuracy={a}\n[Val]   Epoch {e}: Loss={v}, Accuracy={a}\n------",
    "Epoch {e} Train Loss: {t}\nEpoch {e} Validation Loss: {v}",
    "Epoch {e}/5 | 1.2min | GPU 3.2GB | LR 1e-4\n  Train Loss: {t}  PPL: 9.1\n  Val   Loss: {v}  PPL: 9.2",
    "Epoch {e} Results:\n  Train Loss: {t}\n  Val Loss: {v}\n  Val PPL: 24.1\n  New best! Val loss: {v}",
    "Epoch {e}/5\nTrain Loss: {t}\nVal Loss: {v} (Best: 1.2345)",
    "Epoch {e}/5\n  Train:\n    loss: {t}\n    acc: {a}\n  Val:\n    loss: {v}\n    acc: {a}",
    "Epoch {e} | train: loss {t} acc {a} | val: loss {v} acc {a}",
    '{{"epoch": {e}, "train": {{"loss": {t}, "acc": {a}}}, "val": {{"loss": {v}, "acc": {a}}}}}',
    "{{'epoch': {e}, 'train_loss': {t}, 'val_loss': {v}, 'best_val_loss': 1.2}}",
    "第{e}轮 训练损失:{t} 验证损失:{v} 准确率:{a}%",
    "After {e} epochs: training loss = {t}, validation loss = {v}",
    "Epoch {e} finished. Average train loss: {t}. Average val loss: {v}. Time: 3m 12s",
    "Epoch {e}/5, avg_train_loss={t}, avg_val_loss={v}, best_val_loss=1.2345",
    "Epoch {e} | train nll {t} | val nll {v} | best val nll 1.2345",
    "epoch={e} loss/train={t} loss/val={v}",
    "Epoch {e}: loss (train) {t}, loss (val) {v}",
    "Epoch {e}, losses: train {t}, val {v}",
    "Epoch {e} tr_loss {t} va_loss {v} tr_acc {a} va_acc {a}",
    "Epoch {e}: train/val loss {t}/{v}",
    "Epoch {e}: val_loss improved from 9.12 to {v}, saving model to b.pt\nEpoch {e} loss: {t} val_loss: {v}",
    "Epoch {e} | Loss: {t} (cls: 1.1111, seg: 0.2222) | Val Loss: {v} (cls: 1.3, seg: 0.4)",
    "Epoch {e:5d} | Train Loss: {t} (PPL: 20.00) | Val Loss: {v} (PPL: 22.00)",
    "📊 Epoch {e}/5 — 📉 Train loss: {t} · 🔍 Val loss: {v} · ⏱ 12.1s",
    "Epoch {e}\nval loss {v}\ntrain loss {t}",
    "Epoch: {e} | Loss: {t}\nTest set: Average loss: {v}, Accuracy: 9000/10000 (90%)",
    "Training Epoch {e}: 50%|##  | 50/100 [00:10<00:10, 9.8it/s]\nEpoch {e}, Loss: {t}\nValidation Loss: {v}",
)
EPOCHS_ALONE = (
    "Epoch [{e}/5], Loss: {t}, Train Acc: {a}, Val Acc: {a}",
    "Epoch {e}/5: train loss {t}, train acc {a}%, val acc {a}%",
    "Epoch{e} / 5 Train Loss : {t} | Train Precision : {a} | Train Recall : {a}",
    "轮次 {e}/5, 损失: {t}, 学习率: 0.0003",
    "Epoch {e}/5  total_loss: {t}  recon_loss: 1.1111  kl_loss: 0.2222",
    "Epoch {e} | loss {t} | best val loss 1.2345",
)
# {s}: the step, {t}: its loss; then the lines of an evaluation, with the loss {v}.
STEPS = (
    ("step {s}/1000 | loss {t} | lr 3.0e-04 | 12.5k tok/s", "[eval] step={s}  val_loss={v}  ppl={p}"),
    ("step {s} loss {t}", "\n  [eval] step={s}  ppl={p}"),
    ("step {s} loss {t}", "  [val] step {s} | loss {v} | ppl {p} | 2.5s"),
    ("Opt step {s} | Loss {t}", "📉 [VAL] Opt step {s} | Loss {v} | PPL {p}"),
    ("Step {s}, Training loss: {t}", "Running validation...\nValidation loss: {v}, Perplexity: {p}"),
    ("step {s} loss {t}", "Evaluating at step {s}...\n  val loss: {v}\n  val ppl: {p}"),
    ("iter {s}, loss {t}, 12.1ms", "Iter {s} evaluation: train 9.1, val {v}"),
    ("step {s} | loss {t} | best 1.2345", "step {s} | val_loss {v} | best 1\nnew best val loss {v} -> saved"),
    ("[{s}/1000] loss: {t} (avg 9.9999) lr: 0.001", "held-out loss at step {s}: {v}"),
    ("Iter: [{s}/1000]  Time 0.25 (0.26)  Loss {t} (9.99)  Acc@1 10.00 (11.00)", "Iter: [{s}]  Val loss {v}"),
    ('{{"step": {s}, "train": {{"loss": {t}}}}}', '{{"step": {s}, "val": {{"loss": {v}, "ppl": {p}}}}}'),
    ("[train] step={s} loss={t} lr=1e-3 gnorm=0.50", "[val] step={s} loss={v}"),
    ("epoch 0.25 step {s} loss {t} time 0.25s", "eval acc 0.5123 loss {v}"),
    ("Training loss at step {s}: {t}", "Validation loss at step {s}: {v}"),
    ("步数 {s}/1000 损失 {t} 学习率 0.0003", "步数 {s} 验证损失 {v}"),
    ("after {s} updates: loss {t}", "after {s} updates: dev loss {v}"),
    ("it {s} | lm loss {t} | aux loss 0.0123 | z loss 0.0001", "it {s} | lm val loss {v}"),
    ("{s:>6} | loss {t} | grad 0.50 | lr 1e-3", "val loss {v} | best 1.2345 | patience 1/5"),
    ("step={s} loss={t} mem=12.3GB tokens=1.2M dt=250ms", "  val_loss = {v} (no improvement for 3 evals)"),
    ("12.3s | step {s} | loss {t} | lr 1.0e-03", "  val batch 1/2 loss 9.1\nval_loss: {v}"),
    ("step {s} loss {t}", "step {s} val loss {v}\nTest loss: 9.5, test acc 0.5"),
)  # fmt: skip
# {e}: the epoch, {b} of 40: the batch; and the line at its end.
BATCHES = (
    ("Epoch {e}/3, Batch {b}/40, Loss: {t}", "Epoch {e} done. Train Loss: 2.5 Val Loss: {v}"),
    ("Epoch [{e}/3], Step [{b}/40], Loss: {t}", "Epoch [{e}/3] Val Loss: {v}"),
    ("[{e}, {b:5d}] loss: {t}", "validation loss {v}"),
    ("epoch {e} | batch {b}/40 | loss {t} | ppl 12.3", "| end of epoch {e} | time: 12.1s | valid loss {v} |"),
    ("Epoch {e}: iteration {b} of 40, loss={t}", "Epoch {e}: validation loss={v}"),
    ("[TRAIN] epoch {e} batch {b}/40 loss {t} acc 0.5", "[VALID] epoch {e} loss {v} acc 0.5"),
)


def read(text: str) -> tuple[list[int], list[float], list[tuple[int | None, float | None]], bool]:
    """Iterations, losses, evaluations, and whether an iteration is an epoch."""
    run_log = parse_log(text)
    evals = [
        (one.iteration, None if one.val_loss is None else round(one.val_loss, 4)) for one in run_log.evals
    ]
    epochs = run_log.trainer.iterations_are_epochs
    return run_log.steps.iteration.tolist(), run_log.steps.loss.tolist(), evals, epochs


def losses(count: int, first: float) -> list[float]:
    return [round(first - 0.0123 * at, 4) for at in range(1, count + 1)]


@pytest.mark.parametrize("has_evals", [True, False])
def test_lines_of_epochs(has_evals: bool) -> None:
    train, val = losses(5, 3.0), losses(5, 3.2)
    wrong = []
    for form in EPOCHS_WITH_EVALS if has_evals else EPOCHS_ALONE:
        lines = [form.format(e=at + 1, t=train[at], v=val[at], a=f"0.{at + 1}") for at in range(5)]
        found = read("\n".join(lines) + "\nEarly stopping: val loss did not improve for 3 epochs\n")
        evals = list(enumerate(val, 1)) if has_evals else []
        if found != ([1, 2, 3, 4, 5], train, evals, True):
            wrong.append((form, found))
    assert wrong == []


def test_steps_and_their_evaluations() -> None:
    train, val = losses(10, 3.0), losses(10, 3.2)
    wrong = []
    for step, evaluation in STEPS:
        lines = ["Resuming from checkpoint at step 50 (loss 9.1234)"]
        for at, (loss, val_loss) in enumerate(zip(train, val, strict=True), 1):
            lines.append(step.format(s=100 * at, t=loss))
            if at % 5 == 0:
                lines.append(evaluation.format(s=100 * at, v=val_loss, p=f"{math.exp(val_loss):.6f}"))
        found = read("\n".join([*lines, "Training finished, best val loss: 1.2345", ""]))
        if found != (list(range(100, 1001, 100)), train, [(500, val[4]), (1000, val[9])], False):
            wrong.append((step, evaluation, found))
    assert wrong == []


def test_batches_of_epochs_and_the_evaluation_at_their_end() -> None:
    train, val = losses(12, 3.0), losses(3, 3.2)
    wrong = []
    for batch, end in BATCHES:
        lines = []
        for epoch in (1, 2, 3):
            for at in range(4):
                lines.append(batch.format(e=epoch, b=10 * at + 10, t=train[4 * epoch - 4 + at]))
            lines.append(end.format(e=epoch, v=val[epoch - 1]))
        found = read("\n".join([*lines, ""]))
        if found != (list(range(10, 121, 10)), train, [(40 * at, val[at - 1]) for at in (1, 2, 3)], False):
            wrong.append((batch, found))
    assert wrong == []


def test_lines_with_both_losses_of_a_step_are_steps_and_evaluations() -> None:
    for form in (
        "Iteration {}: train loss {}, val loss {}",
        "step {}: train {}, val {}",
        "{} | train loss {} | test loss {}",
    ):
        lines = [form.format(at, 3 - at / 1000, 3.2 - at / 1000) for at in range(100, 600, 100)]
        steps, loss, evals, are_epochs = read("\n".join([*lines, ""]))
        assert (steps, loss[0], evals[-1], are_epochs) == (
            list(range(100, 600, 100)),
            2.9,
            (500, 2.7),
            False,
        ), form


def test_a_loss_by_another_name_is_named() -> None:
    lines = [f"[Epoch {at}/5] [D loss: 0.{at}] [G loss: 7.1111]" for at in range(1, 6)]
    run_log = parse_log("\n".join([*lines, ""]))
    assert run_log.steps.loss.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert [note.values["name"] for note in run_log.notes if note.key == "log.loss_taken"] == ["D loss"]


def test_models_after_one_another_are_runs_of_their_own() -> None:
    model = "".join(
        f"Epoch {at}/5 train_loss {3 - at / 10:.4f} val_loss {3.2 - at / 10:.4f}\n" for at in range(1, 6)
    )
    assert [len(run_log.steps) for run_log in parse_logs(f"Fold 1\n{model}Fold 2\n{model}")] == [5, 5]


def test_remarks_that_look_like_another_trainers_line() -> None:
    lines = [f"step {at} loss 2.{at}" for at in range(100, 1001, 100)]
    run_log = parse_log(
        "\n".join([*lines, "Early stopping at step 1000: best val loss 1.2345 at step 300", ""])
    )
    assert (run_log.trainer.id, len(run_log.steps), run_log.evals) == ("unknown", 10, ())


def test_an_evaluation_of_steps_that_look_like_a_known_trainers() -> None:
    lines = []
    for at in range(100, 1001, 100):
        lines.append(f"iter {at}: loss {3 - at / 1000:.4f}, time 250.00ms, mfu 1.50%")
        lines += [f"Validation loss after step {at}: 2.{at}"] if at % 500 == 0 else []
    run_log = parse_log("\n".join([*lines, ""]))
    assert run_log.trainer.id == "nanogpt"
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(500, 2.5), (1000, 2.1)]


def test_a_line_is_taken_apart() -> None:
    line = read_line("train: loss 2.1 acc 30% | val: loss (avg) 2.4, 12.5ktok/s, 3/40 batches, eta 00:12:31")
    assert [(one.name, one.role, one.split, one.text, one.total, one.unit) for one in line.fields] == [
        ("loss", "loss", "train", "2.1", "", ""),
        ("acc", None, "train", "30", "", "%"),
        ("loss", "val_loss", "val", "2.4", "", ""),
        ("", None, "val", "12.5", "", "ktok/s"),
        ("batches", "batch", "val", "3", "40", ""),
        ("eta", None, "val", "00:12:31", "", ""),
    ]
    assert line.metrics == {"acc": 0.3}


# Lines of three steps; the iterations and losses of all.
OTHER_STEPS = {
    "a counter with an ending": (
        "{0} | INFO | __main__:train:58 - [0.{1}%] batch_index={2} loss=3.{1}",
        [(64, 3.1), (128, 3.2), (192, 3.3)],
    ),
    "a day before the month, and a logger's name": (
        "08/02/2020 04:48:3{1} - INFO - __main__ -   TRAIN Batch {2:04d}/1314, Loss    3.{1}",
        [(64, 3.1), (128, 3.2), (192, 3.3)],
    ),
    "two lines": (
        "epoch: 1, {2}/300 0.5%, 2.92s per iter, lr: 0.0001\n    recon loss: 3.{1}  ppl:913.85\n",
        [(64, 3.1), (128, 3.2), (192, 3.3)],
    ),
    "epoch over batch": (
        "DEBUG TRAIN Batch 0/{2} loss 3.{1} loss_att 2.1 loss_ctc 7.2 lr 0.00001905 rank 0",
        [(64, 3.1), (128, 3.2), (192, 3.3)],
    ),
    "a short name in a bar": (
        "CE:  12%|#1        | {2}/300 [07:48<58:37, 24.91it/s, L=3.{1}, U=47.3%]",
        [(64, 3.1), (128, 3.2), (192, 3.3)],
    ),
}


@pytest.mark.parametrize("name", OTHER_STEPS)
def test_steps_of_other_forms(name: str) -> None:
    form, expected = OTHER_STEPS[name]
    lines = [form.format(f"2024-10-26 01:01:4{at}.115", at, 64 * at) for at in (1, 2, 3)]
    steps = parse_log("\n".join([*lines, ""])).steps
    assert list(zip(steps.iteration.tolist(), steps.loss.tolist(), strict=True)) == expected


def test_results_of_a_split_are_no_title() -> None:
    lines = []
    for epoch in range(12):
        lines += [f"Epoch: {epoch}, Train Loss: {4 - epoch / 10:.4f}"]
        lines += [f"Epoch: {epoch},Valid ACC: 0.{40 + epoch},Valid Bleu 0.{20 + epoch}"]
    run_log = parse_log("\n".join([*lines, "loss 0.002, 121030.6 tokens/sec on cuda:0", ""]))
    assert (len(run_log.steps), run_log.evals) == (12, ())
    accuracy, bleu = sorted(run_log.metrics, key=lambda one: one.name)
    assert (accuracy.value[-1], bleu.value[-1]) == (0.51, 0.31)


def test_a_list_of_rewards_counts_as_its_mean() -> None:
    assert read_line("step 3: loss=0.1 rewards=[0.0, 0.0, 0.5, 1.0]").metrics == {"rewards": 0.375}


def test_a_postfix_that_a_bar_repeats_is_one_value() -> None:
    bars = [
        f"Train:  1%|1  | {at}/1000 [00:10<01:00, 9.1it/s, loss={3 - at // 10 / 8:.4f}]" for at in range(90)
    ]
    run_log = parse_log("\n".join([*bars, ""]))
    assert run_log.steps.iteration.tolist() == list(range(0, 90, 10))
    constant = [f"Train:  1%|1  | {at}/1000 [00:10<01:00, 9.1it/s, loss=0.6931]" for at in range(90)]
    assert len(parse_log("\n".join([*constant, ""])).steps) == 90


def test_a_summary_repeats_the_last_evaluation() -> None:
    lines = [f"step {at} | loss 2.{at}" for at in range(10, 50, 10)]
    text = "\n".join([*lines[:3], "Validation loss: 2.1", lines[3], "Final validation loss: 2.1", ""])
    assert [(one.iteration, one.val_loss) for one in parse_log(text).evals] == [(30, 2.1)]


def test_a_place_in_an_epoch_beside_a_time_called_batch() -> None:
    form = "INFO:main-logger:Epoch: [{0}/3][{1}/40] Data 0.0 (0.0) Batch 0.9 (0.9) Loss 1.0{1}."
    lines = [form.format(epoch, batch) for epoch in (1, 2) for batch in (10, 20)]
    run_log = parse_log("\n".join([*lines, ""]))
    assert run_log.steps.iteration.tolist() == [10, 20, 50, 60]


def test_the_seconds_of_computing_a_reward_are_no_reward() -> None:
    assert read_line("step 3 - loss:0.1 - timing_s/reward:0.002 - critic/rewards/mean:0.3").metrics == {
        "critic/rewards/mean": 0.3
    }


def test_a_perplexity_instead_of_a_loss() -> None:
    line = "Epoch {:2d}, {:5d}/  700; acc:  40.00; ppl: {:6.2f}; 5306 src tok/s; {:6d} s elapsed\n"
    text = "".join(line.format(1, at, 40 - at / 50, at) for at in range(100, 701, 100))
    text += "Train perplexity: 30.5\nValidation perplexity: 20\n"
    text += "".join(line.format(2, at, 20 - at / 50, at) for at in range(100, 301, 100))
    run_log = parse_log(text)
    assert run_log.steps.iteration.tolist() == list(range(100, 1001, 100))
    assert run_log.steps.loss[0] == pytest.approx(math.log(38))
    (one,) = run_log.evals
    assert one.iteration == 700
    assert one.val_loss == pytest.approx(math.log(20))
    assert "log.loss_of_perplexity" in {note.key for note in run_log.notes}


def test_a_perplexity_beside_losses_is_no_step() -> None:
    text = "".join(f"step {at} | loss 3.{at}\nstep {at} | ppl 25.0\n" for at in range(10, 50, 10))
    run_log = parse_log(text)
    assert run_log.steps.iteration.tolist() == [10, 20, 30, 40]
    assert "log.loss_of_perplexity" not in {note.key for note in run_log.notes}


def test_batches_from_to_of_an_epoch() -> None:
    line = "(trainer:636) INFO: {0}epoch:train:{1}-{2}batch: iter_time=0.4, loss=3.{2}, optim0_lr0=2.5e-05\n"
    run_log = parse_log("".join(line.format(1, at + 1, at + 100) for at in (0, 100, 200, 300)))
    assert run_log.steps.iteration.tolist() == [100, 200, 300, 400]
    assert (run_log.steps.lr == 2.5e-5).all()
    assert np.isnan(run_log.steps.ms).all()


def _bar_and_lines(lines_at: range, bar_at: range, shift: int = 1) -> str:
    """A bar whose loss was set by the step before, and what was printed meanwhile, after it."""

    def loss(at: int) -> float:
        return 2 + 5 / (1 + at / 50) + (at * 7919 % 101) / 1000

    bar = "Epoch [1/1]:  9%|#   | {}/900 [00:{:02d}<09:19, 1.00it/s, loss={:.4f}]"
    moves = (bar.format(at - shift, at // 20, loss(at)) for at in bar_at)
    lines = (f"step {at}/900 | loss: {loss(at):.6f} | lr 0.001\n" for at in lines_at)
    return "".join(f"{move}\n" for move in moves) + "".join(lines)


def test_a_bar_and_the_lines_that_were_buffered_meanwhile_are_one_process() -> None:
    run_log = parse_log(_bar_and_lines(range(20, 901, 20), range(20, 901, 20)))
    assert run_log.steps.iteration.tolist() == list(range(20, 901, 20))
    assert len(run_log.segments) == 1
    assert np.isfinite(run_log.steps.ms).any(), "by the bar"


def test_other_losses_after_a_bar_are_another_process() -> None:
    text = _bar_and_lines(range(20, 901, 20), range(20, 901, 20)).replace("| loss: ", "| loss: 1")
    assert sum(len(one.steps) for one in parse_logs(text)) == 90


def test_a_date_and_time_as_a_field() -> None:
    line = "step: {0}  |  time: 2025-08-20 13:{1:02d}:{2:02d}.250000  |  loss: 6.{0}\n"
    run_log = parse_log("".join(line.format(at, at // 60, at % 60) for at in range(10, 200, 10)))
    assert run_log.steps.ms[1:].tolist() == pytest.approx([1000] * 18)
    assert Analysis(run_log).stamped_s == 180
    text = "".join(f"step {at} | loss 2.{at}\n" for at in range(10, 90, 10))
    assert not parse_log(text.replace("| loss", "| run 2025-08-20 13:00:00 | loss")).stamps


def test_the_time_of_a_run_and_the_source_of_a_message() -> None:
    lines = [f"step {at} | loss 2.{at}\n" for at in range(10, 90, 10)]
    run_log = parse_log("".join([*lines, "done in 20.4 min; trained 32.8M tokens (~3.1 epochs)\n"]))
    assert run_log.setup.wall_s == pytest.approx(1224)
    source = '    self.msg(f"Saved checkpoint to {save_path}")\n'
    assert not parse_log("".join([*lines[:4], source, *lines[4:]])).checkpoints
    saved = source.replace("{save_path}", "out/state.pt")
    assert len(parse_log("".join([*lines[:4], saved, *lines[4:]])).checkpoints) == 1


@pytest.mark.parametrize(("name", "is_told"), [("", True), ("Training Progress: ", True), ("Map: ", False)])
def test_how_far_a_training_without_losses_went(name: str, is_told: bool) -> None:
    bars = "".join(f"{name} {at}%|▎   | {at}/28 [00:{31 * at}<14:22, 31.96s/it]\n" for at in (0, 1))
    with pytest.raises(UserError) as raised:
        parse_log(f"***** Running training *****\n  Num examples = 900\n{bars}")
    assert ("bar goes to 1 of 28, after 00:31" in str(raised.value)) == is_told


def test_an_exception_of_any_name() -> None:
    error = "torch._inductor.exc.TritonMissing: no triton\n"
    with pytest.raises(UserError) as raised:
        parse_log(f'Parameters: 2M\nTraceback (most recent call last):\n  File "t.py", line 3\n{error}')
    assert 'failed before it had trained: "torch._inductor.exc.TritonMissing' in str(raised.value)


@pytest.mark.parametrize(("last", "count"), [("0.64", 500), ("0.6", 499), ("0.", 499)])
def test_a_last_line_without_a_line_feed_may_be_whole(last: str, count: int) -> None:
    text = "".join(f"time = 2.{at % 90 + 10}, iter = {at}, loss = 0.{at % 90 + 10}\n" for at in range(1, 500))
    assert parse_log(f"{text}time = 3.04, iter = 500, loss = {last}").iterations_logged == count


@pytest.mark.parametrize("val", ["Val~20% {v}", "Val (20%): {v}", "Val {v}"])
def test_a_share_of_the_validation_data_is_no_loss(val: str) -> None:
    line = f"[Step {{s}}/900] Train {{t}} | {val}\n"
    text = "".join(line.format(s=at, t=2.5 - at / 1000, v=2.6 - at / 1000) for at in range(100, 501, 100))
    assert read(text)[2] == [(at, round(2.6 - at / 1000, 4)) for at in range(100, 501, 100)]


def test_bars_tell_the_time_of_an_epoch() -> None:
    """Each is drawn twice at its end; training and validation have one each."""
    bar = "Epoch {e}/9 {s}: 100%|████| 68/68 [01:{t}<00:00,  1.10s/batch]\n"
    text = "".join(
        2 * bar.format(e=at, s="train", t=14) + bar.format(e=at, s="val", t="06")
        + f"Epoch [{at}/9], Loss: {2 - at / 20:.4f}\n" for at in range(1, 9)
    )  # fmt: skip
    assert parse_log(text).steps.ms.tolist() == [140_000.0] * 8


def test_a_program_whose_bar_moved_may_have_trained() -> None:
    error = "RuntimeError: got signal: 1\n"
    for text, claims in ((error, True), (f" 1%|  | 68/5520 [00:21<28:19, 3.21it/s]\n{error}", False)):
        with pytest.raises(UserError) as raised:
            parse_log(f"Model Params: 108M\n{text}")
        assert 'failed before it had trained: "RuntimeError' in str(raised.value) or not claims
        assert 'a program failed: "RuntimeError' in str(raised.value) or claims


def test_swanlab_says_that_its_experiment_is_over() -> None:
    text = "".join(f"step {at} | loss 2.{at}\n" for at in range(10, 90, 10))
    assert parse_facts(text + "swanlab: Experiment base-lr-0.001 has completed\n").ended == "finished"


@pytest.mark.parametrize("extra", ["", " f1: 0.{s}3", " accuracy: 0.{s}8 f1: 0.{s}3"])
def test_a_classifiers_steps_may_have_an_f1(extra: str) -> None:
    step = "iter: {s} loss: {loss}" + extra
    text = "".join(f"{step.format(s=at, loss=round(0.9 - at / 100, 2))}\n" for at in range(1, 10))
    assert read(text)[:3] == (list(range(1, 10)), [round(0.9 - at / 100, 2) for at in range(1, 10)], [])


@pytest.mark.parametrize("score", ["f1: 0.5{s}", "bleu: 2{s}.1", "wer: 0.3{s}"])
def test_a_line_with_a_score_that_the_steps_do_not_have_is_an_evaluation(score: str) -> None:
    text = "".join(
        f"iter: {at} loss: {2 - at / 10:.4f}\n"
        + (f"iter: {at} loss: {2.1 - at / 10:.4f} {score.format(s=at)}\n" if at % 3 == 0 else "")
        for at in range(1, 10)
    )
    assert read(text)[2] == [(3, 1.8), (6, 1.5), (9, 1.2)]


def lines_of_batches(first: int, every: int, is_each: bool) -> tuple[str, list[float]]:
    """Of two epochs of 30 batches: few with a count, and each, or each third, without one."""
    text, seen = "", []
    for epoch, batch in ((epoch, batch) for epoch in (1, 2) for batch in range(first, 30 + first)):
        loss = round(5 - epoch - batch / 50, 4)
        if (batch - first) % every == 0:
            text += f"Epoch {epoch} Batch {batch} Loss {loss}\n"
        if is_each or batch % 3 == 0:
            text += f"Epoch {epoch} Loss {loss}\nTime taken for 1 epoch: {batch + 0.5} secs\n"
            text += f"Saving checkpoint for epoch {epoch} at ./train/ckpt-{30 * epoch + batch}\n"
        seen.append(loss)
    return text, seen


@pytest.mark.parametrize("first", [0, 1])
def test_lines_without_a_count_may_be_all_batches(first: int) -> None:
    text, expected = lines_of_batches(first, every=20, is_each=True)
    assert read(text)[:2] == (list(range(first, 60 + first)), expected)
    assert len(parse_log(text).checkpoints) == 60


def test_lines_without_a_count_that_are_not_all_batches_are_left() -> None:
    text, _ = lines_of_batches(0, every=10, is_each=False)
    assert read(text)[0] == [0, 10, 20, 21, 31, 41]  # an epoch may be longer than its last line says


def test_saves_in_other_words() -> None:
    lines = {
        "12:00:05  New best (by auc) at epoch 3  →  best_model.pkl": 1,
        "New best at epoch 3": 0,
        "Finished in 3.1s. Saved to models/ and output/": 1,
        "save weights to out/last/": 1,
        "Saved to output/": 0,
        "Training history saved to checkpoints/history.pkl": 0,
        "    torch.save(state, 'last.pt')": 0,
    }
    steps = "".join(f"step {at} loss {3 - at / 10:.4f}\n" for at in range(1, 10))
    wrong = {
        line: found for line, count in lines.items()
        if (found := len(parse_log(f"{steps}{line}\n").checkpoints)) != count
    }  # fmt: skip
    assert wrong == {}


def bar(at: int, seconds: float, loss: float | None, total: int = 60) -> str:
    clock = f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
    postfix = "" if loss is None else f", loss {loss:.4f}"
    return f"SFT:  {100 * at // total:2d}%|██        | {at}/{total} [{clock}<01:00,  9.99s/it{postfix}]"


def test_a_bar_that_is_drawn_anew_has_a_new_loss_and_the_time() -> None:
    """Its rate is a moving average: here 9.99 s, where steps take 3 s, and 6 s from the 40th on."""
    values = [3.0, 2.0, 1.0, 1.0, 0.5, 0.5]  # one of them may come twice
    parts, seconds = [bar(0, 0, None)], 0.0
    for at in range(1, 61):
        seconds += 6 if at > 40 else 3
        parts.append(bar(at, seconds, values[at // 10 - 1] if at > 9 and at % 10 else None if at < 11 else
                         values[at // 10 - 2]))  # fmt: skip
        if at % 10 == 0:
            parts.append(bar(at, seconds, values[at // 10 - 1], 60 + (at == 60)))
    run_log = parse_log("\n".join(parts) + "\n")
    assert run_log.steps.iteration.tolist() == [10, 20, 30, 40, 50, 60]
    assert run_log.steps.loss.tolist() == values
    assert run_log.steps.ms[1:].tolist() == [3000.0] * 3 + [6000.0] * 2
    assert run_log.setup.wall_s == seconds == 240


def test_a_bar_of_each_epoch_has_no_total_time() -> None:
    text = "".join(
        bar(at, 3 * at, 5 - epoch - at / 100).replace("SFT:", f"[Epoch {epoch}/2] train") + "\n"
        for epoch in (1, 2)
        for at in range(1, 61)
    )
    run_log = parse_log(text)
    assert (len(run_log.steps), run_log.steps.iteration[-1], run_log.setup.wall_s) == (120, 120, None)


@pytest.mark.parametrize(
    ("line", "is_eval"),
    [
        (">> validation: {v} | best 2.9 | saved to ckpt_{s}.pt", True),
        ("  validation {v}", True),
        ("validation: 0.{s}", False),  # an accuracy
        ("validation: 4{s}.5", False),
        ("validation: {v}%", False),
        ("val size: {v}", False),
        ("val batches {v}", False),
    ],
)
def test_a_number_of_a_split_near_the_loss_is_a_loss(line: str, is_eval: bool) -> None:
    text = "".join(f"step {at} | loss {3.4 - at / 100}\n{line.format(v=3.5 - at / 100, s=at)}\n"
                   for at in range(10, 60, 10))  # fmt: skip
    evals = [(at, round(3.5 - at / 100, 4)) for at in range(10, 60, 10)] if is_eval else []
    assert read(text)[2] == evals
    assert len(parse_log(text).checkpoints) == 5 * ("saved" in line)


@pytest.mark.parametrize(
    "line", ["  eval {s}: train {t:.4f} | val {v:.4f} | 1.9 bpc", "[eval {s}] val loss {v:.4f}"]
)
def test_the_number_of_an_evaluation_is_a_step(line: str) -> None:
    """Between the lines of steps, too; and its save is of that step."""
    text = "step 0 | loss 3.4\n" + "".join(
        f"{line.format(s=at, t=3 - at / 500, v=3.5 - at / 500)}\nsaved out/best.pt\n"
        + f"step {at + 10} | loss {3.4 - at / 500}\n" * (at % 50 == 40)
        for at in range(20, 201, 20)
    )
    evals = [(at, round(3.5 - at / 500, 4)) for at in range(20, 201, 20)]
    assert read(text)[2] == evals
    assert [save.iteration for save in parse_log(text).checkpoints] == [at for at, _ in evals]


def test_the_number_of_an_evaluation_may_count_evaluations() -> None:
    text = "".join(f"step {at} | loss {3.4 - at / 500}\neval {at // 50}: val loss {3.5 - at / 500}\n"
                   for at in range(50, 301, 50))  # fmt: skip
    assert read(text)[2] == [(at, round(3.5 - at / 500, 4)) for at in range(50, 301, 50)]


@pytest.mark.parametrize(
    ("times", "ms"), [((0, 5, 9, 13), None), ((0, 50, 100, 149), 1000), ((4, 5, 4, 5), 5000)]
)
def test_a_bare_time_that_begins_at_nothing_and_grows_is_a_clock(
    times: tuple[int, ...], ms: float | None
) -> None:
    text = "".join(f"iter {50 * at} | loss {3 - at / 10:.4f} | {time}s\n" for at, time in enumerate(times))
    found = parse_log(text).steps.ms[-1]
    assert math.isnan(found) if ms is None else found == pytest.approx(ms, rel=0.03)


@pytest.mark.parametrize(
    ("time", "ms"),
    [(" - time: 61.{e}s", 61_000), (" - time: 61{e}00ms", 61_000), ("", None), (" - 12ms/it", None)],
)
def test_the_time_of_an_epoch(time: str, ms: float | None) -> None:
    line = "Epoch {e:02d}/30 - train loss: 2.{e} - valid loss: 3.{e}" + time
    steps = parse_log("".join(f"{line.format(e=at)}\n" for at in range(1, 8))).steps
    assert math.isnan(steps.ms[1]) if ms is None else 0 <= steps.ms[1] - ms < 1000


def test_the_time_of_an_epoch_that_is_the_time_so_far() -> None:
    text = "".join(f"Epoch {at} | loss 2.{90 - at} | time: {10.5 * at:.1f}s\n" for at in range(1, 20))
    assert parse_log(text).steps.ms[1:].tolist() == pytest.approx([10_500.0] * 18)


def test_times_of_the_day_without_a_date_are_a_clock() -> None:
    """Over midnight, too."""
    begin = datetime(2026, 1, 1, 23, 58)
    stamps = [f"{begin + timedelta(seconds=11 * at):%H:%M:%S}" for at in range(1, 20)]
    lines = [f"{stamp}  Epoch {at:03d} | loss {3 - at / 50:.4f}\n" for at, stamp in enumerate(stamps, 1)]
    assert Analysis(parse_log("".join(lines))).facts.stamped_s == 11 * 18


def test_scores_of_deeplearning4j() -> None:
    lines = [
        f"06:{at}:16.402 [main] INFO o.d.L - Score at iteration {at}00 is {2 - at / 90}\n"
        for at in range(10, 20)
    ]
    assert parse_log("".join(lines)).steps.iteration.tolist() == list(range(1000, 2000, 100))


def test_amounts_on_a_line_below_its_step() -> None:
    lines = [
        f"--- Step {at} ---\nTrained 64 batches (32 epochs) in 9s | Loss: {3 - at / 10}\n" for at in range(5)
    ]
    assert parse_log("".join(lines)).steps.iteration.tolist() == [0, 1, 2, 3, 4]


def test_metrics_of_two_held_out_sets_are_two() -> None:
    line = read_line("Epoch 2 - Dev BLEU: BLEU-1 63.88, BLEU-2 59.46")
    assert line.metrics == {"dev BLEU-1": 63.88, "dev BLEU-2": 59.46}
    assert set(read_line("Epoch 2 - Validation BLEU: BLEU-1 71.65").metrics) == {"val BLEU-1"}
