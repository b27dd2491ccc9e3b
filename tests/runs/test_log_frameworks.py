"""Frameworks: torchtitan, torchtune, Megatron-LM and kin, OLMo, mlx-lm, Keras, Lightning, autoresearch."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from log_checks import check_facts, parse_facts, parse_log
from printed import SyntheticRun
from printed_frameworks import autoresearch, megatron
from printed_more import every_trainer

from glassgpt.errors import UserError
from glassgpt.explain.explanation import explain
from glassgpt.runs.analysis import Analysis

COURSE = SyntheticRun(updates=40)
FRAMEWORKS = {
    "torchtitan", "megatron", "mlx-lm", "olmo", "keras", "lightning", "autoresearch",
    "composer",
}  # fmt: skip


def test_whole_logs(subtests: pytest.Subtests) -> None:
    logs = {name: log for name, log in every_trainer(COURSE).items() if log.format in FRAMEWORKS}
    assert {log.format for log in logs.values()} == FRAMEWORKS
    for name, expected in logs.items():
        with subtests.test(name):
            check_facts(expected.text, expected)


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


def test_gpt_neox_saves_with_deepspeed_and_crashes_after_the_planned_end() -> None:
    text = "".join(
        f" samples/sec: 32.1 | iteration {at:8d}/   43000 | elapsed time per iteration (ms): 124.3 | "
        "learning rate: 1.000E-04 | lm_loss: 9.9E-01 | loss scale: 131072.0 |\n"
        for at in range(42_900, 43_001, 10)
    )
    stamp = "[2024-10-29 08:37:38,891] [INFO]"
    saved = f"{stamp} [logging.py:96:log_dist] [Rank 0] Saving model checkpoint: out/global_step43000/a.pt\n"
    saved += f"{stamp} [engine.py:33:commit] [Torch] Checkpoint global_step43000 is ready now!\n"
    crash = "Traceback (most recent call last):\nTypeError: iteration over a 0-d tensor\n"
    facts = parse_facts(text + saved + crash)
    assert (facts.ended, facts.checkpoint_steps) == ("finished", [43_000])
    assert parse_facts(text.replace("/   43000", "/   50000") + crash).ended == "crashed"


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


# --- torchtitan ---


def test_torchtitan_says_what_its_header_would() -> None:
    """Its ratios give the FLOPs per token, the peak and the memory of the card."""
    stamp = "[rank0]:[titan] 2026-01-11 21:22:{:06.3f} - root - INFO - "
    line = (
        "step: {at:2}  loss: 12.2097  grad_norm:  0.4884  memory: 45.30GiB(32.41%)  tps: 135,808  "
        "tflops: 262.02  mfu: 26.49%"
    )
    text = "".join(
        stamp.format(12 + at * 0.122).replace(".", ",") + line.format(at=at) + "\n" for at in range(1, 11)
    )
    run_log = parse_log(text)
    facts = parse_facts(text)
    assert run_log.trainer.id == "torchtitan"
    assert facts.steady_ms == pytest.approx(122)
    assert facts.flops_per_token == pytest.approx(262.02e12 / 135_808)
    assert run_log.setup.peak_flops == pytest.approx(989e12, rel=0.001)
    assert run_log.setup.memory_bytes == pytest.approx(45.30 / 0.3241 * 2**30)
    assert (facts.tokens_per_s, facts.mfu_reported_steady) == (135_808, 26.49)


def test_torchtitans_speed_is_of_one_device() -> None:
    mesh = "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1\n"
    line = "step: {at:2}  loss: 12.2097  memory: 45.30GiB(32.41%)  tps: 1,000  tflops: 262.02  mfu: 26.49%\n"
    run_log = parse_log(mesh + "".join(line.format(at=at) for at in range(1, 5)))
    assert run_log.setup.world_size == 8
    assert run_log.steps.tokens_per_s.tolist() == [8000] * 4


# --- Megatron-LM ---


def test_a_nan_loss_is_left_out_of_megatrons_line() -> None:
    line = (
        "iteration {at:8d}/ 100 | elapsed time per iteration (ms): 812.3 | {loss}loss scale: 1.0 | "
        "number of skipped iterations: 0 | number of nan iterations: {nan} |\n"
    )
    text = "".join(line.format(at=at, loss="lm loss: 2.5E+00 | ", nan=0) for at in range(10, 50, 10))
    facts = parse_facts(text + line.format(at=50, loss="", nan=3))
    assert (facts.nan_step, facts.iterations_logged) == (50, 5)


def test_megatrons_exit_by_the_clock_is_no_end_of_the_run() -> None:
    text = megatron(COURSE).truncated(20).text
    assert parse_facts(text + "exiting program after 230 minutes\n").ended == "interrupted"


def test_megatrons_time_in_seconds_and_skipped_iterations() -> None:
    line = (
        "[default3]: iteration {at:8d}/ 100 | elapsed time per iteration (s): 35.8651 | {loss}loss scale: "
        "1.0 | number of skipped iterations: {skipped} | number of nan iterations: 0 |\n"
    )
    text = line.format(at=10, loss="", skipped=10)
    text += "".join(line.format(at=at, loss="lm loss: 2.5E+00 | ", skipped=0) for at in range(20, 60, 10))
    run_log = parse_log(text)
    assert run_log.steps.has_loss.tolist() == [False, True, True, True, True]
    assert run_log.steps.ms.tolist() == pytest.approx([35_865.1] * 5)
    assert run_log.event_counts == {"scaler-overflow": 10}


# --- Lightning ---


def test_lightnings_bar_of_a_dataset_without_a_length() -> None:
    bar = "Epoch {epoch}: |          | {at}/? [00:20<00:00,  0.50it/s, v_num=0, train_loss=14.60]\n"
    text = "11.2 M    Total params\n"
    text += "".join(bar.format(epoch=epoch, at=at) for epoch in range(3) for at in range(1, 11))
    text += "Epoch 2, global step 30: 'val_loss' reached 0.77609 (best 0.77609), saving model to 'a.ckpt'\n"
    run_log = parse_log(text)
    assert run_log.steps.iteration.tolist() == list(range(1, 31))
    assert run_log.steps.ms[0] == 2000
    assert [one.iteration for one in run_log.checkpoints] == [30]
    assert run_log.setup.parameters == 11_200_000


def test_a_bar_of_an_epoch_1_that_begins_is_not_lightnings() -> None:
    bar = "Epoch {epoch}: {at}0%|## | {at}/10 [00:{at:02}<00:20,  1.00it/s, loss={loss:.3f}]\n"
    text = "".join(
        bar.format(epoch=epoch, at=at, loss=4 - epoch - at / 20) for epoch in (1, 2) for at in range(10)
    )
    run_log = parse_log(text)
    assert run_log.trainer.id == "unknown"
    assert run_log.steps.iteration[-1] == 19
    assert (
        parse_log(text.replace("Epoch 2", "Epoch 1").replace("Epoch 1", "Epoch 0")).trainer.id == "lightning"
    )


# --- Keras ---


def test_kerass_time_is_of_a_step_not_of_an_epoch() -> None:
    line = "Epoch {at}/5\n128/128 - 5s - loss: 2.5 - accuracy: 0.1463 - 5s/epoch - 43ms/step\n"
    assert parse_facts("".join(line.format(at=at) for at in range(1, 6))).steady_ms == 43


def test_kerass_evaluate_is_no_epoch_and_early_stopping_is_an_end() -> None:
    epoch = "Epoch {at}/50\n100/100 - 2s - 20ms/step - loss: 2.5 - val_loss: {val}\n"
    text = "".join(epoch.format(at=at, val=2 + at / 10) for at in (1, 2, 3))
    text += "Epoch 1: val_loss improved from inf to 2.10000, saving model to best.keras\n"
    assert parse_facts(text).ended == "cut"
    facts = parse_facts(text + "Epoch 3: early stopping\n71/71 - 0s - 2ms/step - loss: 9.9\n")
    assert (facts.ended, facts.last_iteration, facts.loss_last) == ("finished", 300, 2.5)
    assert (facts.checkpoint_steps, facts.eval_steps) == ([100], [100, 200, 300])


def test_kerass_callbacks_speak_before_the_last_state_of_the_bar(subtests: pytest.Subtests) -> None:
    epoch = (
        "Epoch {at}/9\n127/127 ━━━━━━━━━━ 0s 1s/step - loss: 2.6\n{said}\n"
        "127/127 ━━━━━━━━━━ {s}s 1s/step - loss: 2.5 - val_loss: {val}\n"
    )
    saving = "Epoch {at}: val_loss improved from 2.5 to 2.4, saving model to best.keras"
    text = (
        "".join(
            epoch.format(
                at=at, said=saving.format(at=at) if at < 3 else "", s=127 + 63.5 * (at - 1), val=2 + at / 10
            )
            for at in (1, 3)
        )
        .replace(".5s 1s", "s 1s")
        .replace(".0s 1s", "s 1s")
    )
    ends = ["Epoch 3: early stopping\n", "Restoring model weights from the end of the best epoch: 1.\n"]
    for name, end in (("Keras 3", "".join(ends)), ("Keras 2", "".join(reversed(ends)))):
        run_log = parse_log(text + end)
        with subtests.test(name):
            assert [(one.iteration, one.val_loss, one.line) for one in run_log.evals] == [
                (127, 2.1, 4),
                (381, 2.3, 8),
            ]
            assert [(one.iteration, one.line) for one in run_log.checkpoints] == [(127, 3)]
            assert run_log.steps.ms.tolist() == [1000, 2000], (
                "of the epoch: whole seconds per step are rounded"
            )
            assert run_log.steps.loss.tolist() == [2.5, 2.5]
            explanation = explain(run_log)
            assert explanation.facts.ended == "finished"
            quoted = [sentence for sentence in explanation.verdict if "early stopping" in sentence]
            assert len(quoted) == 1
            assert "best epoch: 1" in quoted[0]


# --- torchtune ---

TORCHTUNE_BAR = (
    "1|{at}|Loss: {loss}:   1%|▏         | {bar}/40 [{minutes:02d}:{seconds:02d}<01:30,  {rate}s/it]\n"
)


def _torchtune() -> str:
    """The first update takes 60 s, later ones 10 s each; the rate is tqdm's moving average."""
    lines, average = ["INFO:torchtune.utils._logging:Running R with resolved config:\n", "epochs: 2\n"], 60.0
    for at in range(1, 41):
        elapsed, average = 50 + 10 * at, average if at == 1 else 0.3 * 10 + 0.7 * average
        values = {"minutes": elapsed // 60, "seconds": elapsed % 60, "bar": at, "rate": f"{average:.2f}"}
        if at > 1:
            lines.append(TORCHTUNE_BAR.format(at=at - 1, loss=3 - (at - 1) / 20, **values))
        lines.append(TORCHTUNE_BAR.format(at=at, loss=3 - at / 20, **values))
    lines.append(
        "INFO:torchtune.utils._logging:Model checkpoint of size 2.30 GiB saved to /out/model.safetensors\n"
    )
    lines.append("INFO:torchtune.utils._logging:Checkpoint saved in 150.25 seconds.\n")
    return "".join(lines)


def test_lines_of_torchtunes_loggers() -> None:
    line = "Step {at} | loss:{loss} lr:2e-05 tokens_per_second_per_gpu:{rate} \n"
    text = "".join(line.format(at=at, loss=2 - at / 10, rate=400.5 + at) for at in range(1, 9))
    run_log = parse_log(text)
    assert run_log.trainer.id == "torchtune"
    assert run_log.steps.loss.tolist() == pytest.approx([2 - at / 10 for at in range(1, 9)])
    assert run_log.steps.tokens_per_s[-1] == 408.5
    assert run_log.steps.lr[0] == 2e-5


@pytest.mark.parametrize(
    ("world", "parallel", "parameters"), [(1, 1, 1_000_000), (8, 2, 2_000_000), (8, None, None)]
)
def test_gpt_neox(world: int, parallel: int | None, parameters: int | None) -> None:
    """Its arguments say where they are from. One line is the mean of all iterations so far."""
    arguments = f"  model_parallel_size ............. {parallel}...........................default\n"
    text = (
        f"using world size: {world} and model-parallel size\n" + arguments * (parallel is not None)
        + "  log_interval .................... 100...........................default\n"
        " > number of parameters on model parallel rank 0: 1000000\n"
        " samples/sec: 371.8 | iteration      100/     800 | elapsed time per iteration (ms): 600.5 | "
        "learning rate: 8.838E-04 | lm_loss: 2.869912E+00 | loss scale: 4096.0 | "
        "number of skipped iterations: 0 | number of nan iterations: 0 |\n"
    )  # fmt: skip
    run_log = parse_log(text)
    facts = Analysis(run_log).facts
    assert (run_log.trainer.id, run_log.trainer.name, facts.total_s) == ("megatron", "GPT-NeoX", 60.05)
    assert run_log.setup.parameters == parameters


@pytest.mark.parametrize(("first", "total_s"), [(10, 3 * 10.0), (1, 21.0), (60, 21.0)])
def test_the_first_line_of_a_mean_covers_its_interval(first: int, total_s: float) -> None:
    """Of an excerpt, it is not known which iterations it covers."""
    text = "".join(
        f"Iter {at}: Train loss {3 - at / 100:.3f}, It/sec 1.000, Tokens/sec 99.0\n"
        for at in (first, first + 10, first + 20)
    )
    assert Analysis(parse_log(text)).facts.total_s == pytest.approx(total_s)


def test_an_excerpt_of_torchtunes_behind_torchruns_prefix() -> None:
    """Its first line is one that is drawn again: the clock is of the next update."""
    lines = [
        f"[trainer0|0]:1|{at - again}|Loss: {2 - at / 100}:  5%|▍     | {at + 1}/200 "
        f"[{at // 4:02}:{at % 4 * 15:02}<11:17, 14.73s/it]"
        for at in range(60, 80) for again in (1, 0)
    ]  # fmt: skip
    run_log = parse_log("\n".join(lines))
    assert (run_log.trainer.id, run_log.steps.iteration.tolist()) == ("torchtune", list(range(59, 80)))
    assert Analysis(run_log).steady_ms == pytest.approx(15_000)


def test_torchtunes_clock_tells_the_time_not_its_average() -> None:
    run_log = parse_log(_torchtune())
    assert (run_log.trainer.id, run_log.setup.planned_iterations) == ("torchtune", 80)
    assert run_log.steps.iteration.tolist() == list(range(1, 41))
    assert run_log.steps.loss[[0, -1]].tolist() == [2.95, 1.0]
    assert run_log.steps.ms[0] == 60_000
    assert [(one.iteration, one.blocking_ms) for one in run_log.checkpoints] == [(40, 150_250)]
    analysis = Analysis(run_log)
    assert analysis.steady_ms == 10_000
    assert analysis.total_s == pytest.approx(450 + 150.25)
    finding = next(one for one in explain(run_log).findings if one.id == "save-cost")
    assert finding.values["save_share"] == pytest.approx(150.25 / 600.25)
    assert finding.values["longest_s"] == 150.25


# --- autoresearch ---


def test_the_time_budget(subtests: pytest.Subtests) -> None:
    expected = autoresearch(COURSE)
    whole = parse_log(expected.text)
    assert (whole.setup.budget_s, whole.setup.remaining_s, whole.setup.wall_s) == (300, 0, 325.9)
    lines = [line for line in expected.truncated(31).lines if not line.startswith("Time budget")]
    excerpt = parse_log("\n".join(lines) + "\n")
    with subtests.test("percent and remaining seconds give it, too"):
        assert excerpt.setup.budget_s == pytest.approx(300, rel=0.05)
        assert excerpt.setup.remaining_s == float(lines[-1].split("remaining: ")[1].split("s")[0])


def test_a_loss_that_explodes_stops_autoresearch() -> None:
    assert parse_facts(autoresearch(COURSE).truncated(20).text + "FAIL\n").ended == "crashed"


MEGATRON_LINE = (
    " iteration {at:8d}/  250000 | elapsed time per iteration (ms): 812.5 | learning rate: 9.150E-06 | "
    "lm loss: {loss} | grad norm: 0.231 | number of skipped iterations:   0 | number of nan iterations: 0 |\n"
)


def test_a_number_that_the_end_cuts_is_not_read() -> None:
    lines = [MEGATRON_LINE.format(at=at, loss="2.504220E+00") for at in range(122, 127)]
    for end in ("", "\n"):
        run_log = parse_log("".join(lines[:4]) + lines[4].split(".504")[0] + end)
        assert run_log.steps.loss.tolist() == [2.50422] * 4
        assert run_log.steps.iteration[-1] == 125


def test_a_nan_in_capitals() -> None:
    lines = [
        MEGATRON_LINE.format(at=at, loss="NAN" if at > 5 else "2.504220E+00").rstrip(" |\n") + "\n"
        for at in range(9)
    ]
    run_log = parse_log("".join(lines))
    assert [math.isnan(loss) for loss in run_log.steps.loss] == [False] * 6 + [True] * 3
    assert run_log.steps.has_loss.all()


def test_a_task_is_an_evaluation_without_a_loss() -> None:
    lines = [MEGATRON_LINE.format(at=at, loss="2.504220E+00") for at in range(1, 6)]
    lines.insert(3, " validation results on LAMBADA | number correct: 3.5E+03 | avg accuracy: 6.9E-01\n")
    evals = parse_log("".join(lines)).evals
    assert [(one.iteration, one.val_loss) for one in evals] == [(3, None)]


def test_nemo_repeats_its_validation_loss() -> None:
    """In an excerpt, the evaluation of the first lines was made before them."""
    lines = [
        f"Training epoch 0, iteration {at}/149 | lr: 3e-05 | global_step: {at} | reduced_train_loss: 1.25 | "
        f"train_step_timing in s: 0.03146 | val_loss: {'4.106' if at < 125 else '4.05'}\n"
        for at in range(120, 130)
    ]
    run_log = parse_log("".join(lines))
    assert run_log.trainer.name == "NeMo"
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(None, 4.106), (125, 4.05)]


def test_keras_bars_that_count_samples() -> None:
    """How many updates an epoch has is not known."""
    bar = "432/432 [==============================] - 6s 13ms/sample - loss: 3.0{epoch} - acc: 0.1898\n"
    run_log = parse_log("".join(f"Epoch {at}/10\n" + bar.format(epoch=at) for at in (1, 2, 3)))
    assert run_log.steps.iteration.tolist() == [1, 2, 3]
    assert np.isnan(run_log.steps.ms).all()
    assert run_log.setup.planned_iterations == 10


def test_bits_per_character_are_not_nats() -> None:
    lines = [f"iter {at}: loss 2.0000 BPC, time 50.00ms, mfu 7.50%\n" for at in range(0, 50, 10)]
    run_log = parse_log("".join(lines))
    assert run_log.trainer.id == "nanogpt"
    assert run_log.steps.loss.tolist() == pytest.approx([2 * math.log(2)] * 5)


def test_llama2_c_has_its_own_name() -> None:
    lines = [f"{at} | loss 5.7543 | lr 5.000000e-04 | 8060.78ms | mfu 1.52%\n" for at in range(5)]
    assert parse_log("".join(lines)).trainer.name == "llama2.c"


def test_a_forks_evaluation_in_log_txt() -> None:
    lines = [f"{at} train 2.673457\n" for at in range(38, 45)]
    lines.insert(3, "41 valbin_ppl 19.621956 valbin_loss 2.976649\n")
    assert [(one.iteration, one.val_loss) for one in parse_log("".join(lines)).evals] == [(41, 2.976649)]


def test_a_checkpoint_of_modded_nanogpt() -> None:
    lines = [
        f"step:{at}/20 train_loss:3.515657 train_time:{at * 400}ms step_avg:400.00ms\n" for at in range(1, 9)
    ]
    lines.insert(4, "Saved checkpoint to runs/state_step4.pt\n")
    assert [save.iteration for save in parse_log("".join(lines)).checkpoints] == [4]


def test_olmos_checkpoints_and_schedule() -> None:
    text = (
        "TrainConfig(run_name='x', scheduler=SchedulerConfig(name='cosine_with_warmup', units='steps', "
        "t_warmup=250, t_max=None), max_duration=400, seed=1)\n"
        "Total number of parameters: 1,279,787,008\nNumber of non-embedding parameters: 1,176,764,416\n"
        "Checkpoint saved to /out/run/step0-unsharded\n"
    )
    for at in range(1, 8):
        text += f"[step={at}/400,epoch=0]\n    train/CrossEntropyLoss={11 - at / 10}\n"
        if at % 3 == 0:
            text += "Saving unsharded checkpoint...\n"
            text += f"Unsharded checkpoint saved to /out/run/step{at}-unsharded\n"
    run_log = parse_log(text)
    assert [save.iteration for save in run_log.checkpoints] == [0, 3, 6]
    assert run_log.setup.settings["warmup_iters"] == 250
    assert run_log.setup.settings["max_iters"] == 400
    assert run_log.setup.parameters == 1_279_787_008


def test_composer_in_epochs() -> None:
    """The batch of its first line is that of the epoch. Of two validation sets, the first one counts."""
    text = ""
    for at in range(10, 101, 10):
        text += (
            f"[epoch={(at - 1) // 50 + 1}][batch={(at - 1) % 50 + 1}/50]:\n\t Train time/batch: {at - 1}\n"
        )
        text += f"\t Train metrics/train/LanguageCrossEntropy: {5 - at / 50:.4f}\n"
        if at == 50:
            for name, loss in (("c4", 4.25), ("code", 3.5)):
                text += f"[Eval batch=8/8] Eval on {name} data:\n"
                text += f"\t Eval metrics/{name}/LanguageCrossEntropy: {loss}\n"
                text += f"\t Eval metrics/{name}/LanguageAccuracy: 0.5\n"
    run_log = parse_log(text)
    assert run_log.trainer.id == "composer"
    assert run_log.steps.iteration.tolist() == list(range(10, 101, 10))
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(50, 4.25)]
    assert [one.name for one in run_log.metrics] == ["c4/LanguageAccuracy", "code/LanguageAccuracy"]
    assert run_log.setup.planned_iterations is None


def test_a_single_block_of_composer() -> None:
    text = "[batch=366/48000]:\n\t Train time/batch: 365\n\t Train time/token: 382730240\n"
    run_log = parse_log(
        text + "\t Train loss/train/total: 10.3750\n\t Train metrics/train/Perplexity: 32048.3\n"
    )
    assert (run_log.steps.iteration.tolist(), run_log.steps.loss.tolist()) == ([366], [10.375])
    assert (run_log.setup.planned_iterations, run_log.setup.tokens_per_iteration) == (48_000, 1_048_576)


def test_lightnings_rate_is_a_mean_whose_clock_gives_the_time_of_a_step() -> None:
    lines, elapsed = [], 5.0
    for done in range(1, 19):
        elapsed += 3.0
        clock = f"00:{int(elapsed):02d}" if elapsed < 60 else "01:00"
        for loss in (11 - done / 10, 10.9 - done / 10):  # drawn before and after the loss changes
            bar = f"{done}/18 [{clock}<01:02,  {elapsed / done:.2f}s/it, loss={loss:.3f}, v_num=1]"
            lines.append(f"Epoch 0:  22%|##       | {bar}")
    steps = parse_log("\n".join(lines) + "\n").steps
    assert steps.ms[0] == pytest.approx(8000)
    assert np.nanmedian(steps.ms[1:]) == pytest.approx(3000, rel=0.05)


def test_kerass_accuracy_is_a_metric() -> None:
    line = (
        "Epoch {at}/5\n60/60 [====] - 50s 835ms/step - loss: 2.{at} - accuracy: 0.{at}1 - val_loss: 3.{at}"
        " - val_accuracy: 0.{at}\n"
    )
    run_log = parse_log("".join(line.format(at=at) for at in range(1, 6)))
    courses = {one.name: (one.first, one.last) for one in run_log.metric_courses}
    assert courses == {"val_accuracy": (0.1, 0.5), "accuracy": (0.11, 0.51)}


def test_a_forks_speed_under_nanochats_other_name() -> None:
    line = "E00 step {:06d}/900 (0.0%) | loss: 2.{} | ppl: 9.0 | lr: 4.00e-04 | dt: 500ms | tok/s: 262,{}"
    run_log = parse_log("\n".join(line.format(at, at, at) for at in range(100, 200, 10)))
    assert run_log.trainer.id == "nanochat"
    assert run_log.steps.tokens_per_s[:2].tolist() == [262_100, 262_110]


def test_the_speed_of_a_gpu() -> None:
    line = "step: {}  train loss: 3.11  test loss: 3.0{}  tokens/gpu/sec: 9378.40  MFU: 63.91%"
    run_log = parse_log("\n".join(line.format(at, at) for at in range(1, 7)))
    assert run_log.steps.tokens_per_s.tolist() == [9378.4] * 6


@pytest.mark.parametrize(
    "error",
    ["base_train.py: error: unrecognized arguments: --models base", "ValueError: dataset is empty"],
)
def test_a_program_that_failed_before_a_step_is_quoted(error: str) -> None:
    with pytest.raises(UserError, match=re.escape(error)):
        parse_log(f"usage: base_train.py [-h] [--depth {{1,12}}]\n{error}\n")


@pytest.mark.parametrize("ranks", [("", ""), ("[rank0]:", "[rank3]:")], ids=["bare", "named"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_placeholder_loses_against_the_loss_of_the_last_stage(
    ranks: tuple[str, str], is_first: bool
) -> None:
    line = "{}step: {:2d}  loss: {:8.4f}  grad_norm:  0.5  memory:  3.46GiB(7.28%)  tps: 1,615  mfu: 3.7%\n"
    course = range(1, 60, 2)
    pairs = [(line.format(ranks[0], at, -4.0), line.format(ranks[1], at, 12 - at / 10)) for at in course]
    run_log = parse_log("".join("".join(reversed(pair) if is_first else pair) for pair in pairs))
    assert run_log.steps.iteration.tolist() == list(course)
    assert run_log.steps.loss.tolist() == pytest.approx([12 - at / 10 for at in course])
    evaluations = [
        f"{ranks[0]}validate step: 59  loss: -1.0000\n",
        f"{ranks[1]}validate step: 59  loss:  6.1\n",
    ]
    text = "".join("".join(pair) for pair in pairs)
    for order in (evaluations, evaluations[::-1]):
        assert [one.val_loss for one in parse_log(text + "".join(order)).evals] == [6.1]
    alone = parse_log("".join(pair[0] for pair in pairs))
    assert (alone.placeholder_loss, len(Analysis(alone).trajectory.finite_losses()[0])) == (-4.0, 0)
    assert explain(alone).findings == []


def test_torchtitan_saves_a_model_only() -> None:
    line = "step: {:2d}  loss: {:8.4f}  grad_norm:  0.5  memory:  3.46GiB(7.28%)  tps: 1,615  mfu: 3.7%\n"
    text = "".join(line.format(at, 9 - at / 10) for at in range(1, 6))
    text += "Saving a model only checkpoint in torch.bfloat16 at last step, step 5.\n" * 2
    assert [one.iteration for one in parse_log(text).checkpoints] == [5]


def test_keras_that_shows_only_epochs_says_so() -> None:
    line = "Epoch {}/3\n500/500 [==============================] - 1s 2ms/sample - loss: {:.4f}\n"
    run_log = parse_log("".join(line.format(at, 4 - at) for at in (1, 2, 3)))
    assert ([note.key for note in run_log.notes], run_log.trainer.iterations_are_epochs) == (
        ["table.epochs"],
        True,
    )


@pytest.mark.parametrize(
    ("header", "time", "epochs_only"),
    [
        ("", "1s", True),  # before Keras 2.0.9
        ("", "1s 90us/step", True),
        ("Train on 8000 samples, validate on 800 samples\n", "200s 25ms/step", True),
        ("Train on 9000 samples\n", "200s 25ms/step", False),
        ("", "2s 469us/step", False),
        ("", "0s 0s/step", False),
    ],
)
def test_keras_bars_without_the_time_of_a_batch_count_samples(
    header: str, time: str, epochs_only: bool
) -> None:
    bar = "8000/8000 [==============================] - {} - loss: 3.0{}\n"
    run_log = parse_log(header + "".join(f"Epoch {at}/10\n" + bar.format(time, at) for at in (1, 2, 3)))
    assert run_log.trainer.iterations_are_epochs == epochs_only
    assert run_log.setup.planned_iterations == (10 if epochs_only else 80_000)


def test_a_keras_bar_whose_epoch_is_missing_plans_nothing() -> None:
    bar = "{:5d}/31250 [=>............................] - ETA: 4:06:03 - loss: {}\n"
    text = "".join(bar.format(at, loss) for at, loss in ((4, 3.4), (9, 3.25), (15_550, 3.28)))
    run_log = parse_log(text)
    assert (run_log.trainer.name, run_log.setup.planned_iterations) == ("Keras", None)
    assert (run_log.steps.iteration.tolist(), run_log.steps.loss.tolist()) == ([15_550], [3.28])
    epoch = "Epoch 3/4\n31250/31250 [==============================] - 9999s 320ms/step - loss: 3.1\n"
    run_log = parse_log(text + epoch)
    assert (run_log.steps.iteration.tolist(), run_log.setup.planned_iterations) == ([46_800, 93_750], 125_000)
    assert parse_log(text + epoch.replace("3/4", "1/4")).steps.iteration.tolist() == [31_250]


def test_a_megatron_line_without_a_loss_is_an_iteration() -> None:
    """Cut off: what is before its last bar is whole. A scaler may have skipped all iterations of a line."""
    line = (
        "iteration {at:8d}/ 100 | elapsed time per iteration (ms): 812.3 | {loss}loss scale: {scale} | "
        "grad norm: 0.752 | number of skipped iterations:   {skipped} | number of nan iterations:   0 |\n"
    )
    text = "".join(
        line.format(at=at, loss="lm loss: 2.5E+00 | ", scale=1.0, skipped=0) for at in (10, 20, 30)
    )
    last = line.format(at=40, loss="", scale="{scale}", skipped=0).split("grad norm")[0] + "gr\n"
    steps = parse_log(text + last.format(scale=1.0)).steps
    assert (steps.iteration.tolist(), steps.has_loss.tolist()) == ([10, 20, 30, 40], [True] * 4)
    assert math.isnan(steps.loss[-1])
    steps = parse_log(text + last.format(scale=512.0)).steps
    assert (steps.iteration.tolist(), steps.has_loss.tolist()) == ([10, 20, 30, 40], [True] * 3 + [False])
    run_log = parse_log(text + line.format(at=40, loss="", scale=1.0, skipped=10))
    assert run_log.steps.has_loss.tolist() == [True] * 3 + [False]


def test_megatrons_older_evaluation() -> None:
    line = (
        " iteration {at:8d}/ 3000 | elapsed time per iteration (ms): 12879.0 | lm loss 6.7E+00 | "
        "loss scale 64.0 |\n"
    )
    text = "".join(line.format(at=at) for at in (100, 200, 300))
    text += " validation loss at iteration 300 | LM loss: 4.5E+00 | LM PPL: 9.0E+01\n"
    assert [(one.iteration, one.val_loss) for one in parse_log(text).evals] == [(300, 4.5)]


MARIAN_LINE = (
    "[2025-03-01 10:{0:02d}:00] Ep. 1 : Up. {1} : Sen. 9,000 : Cost 5.{0} : Time 60.00s : 3000.50 words/s\n"
)


def test_marians_lines() -> None:
    lines = [MARIAN_LINE.format(at, 100 * at) for at in range(1, 9)]
    lines.insert(2, "Saving model weights and runtime parameters to model/model.iter200.npz\n")
    lines.insert(2, "Saving model weights and runtime parameters to model/model.npz.orig.npz\n")
    run_log = parse_log("".join(lines))
    assert (run_log.trainer.name, len(run_log.steps)) == ("Marian", 8)
    assert run_log.steps.ms[1:].tolist() == [600] * 7
    assert math.isnan(run_log.steps.ms[0]), "of how many updates is not known"
    assert run_log.steps.tokens_per_s.tolist() == [3000.5] * 8
    assert [one.iteration for one in run_log.checkpoints] == [200]
    started = "[2025-03-01 10:00:00] Training started\n"
    assert parse_log(started + "".join(lines)).steps.ms.tolist() == [600] * 8
    loaded = "[2025-03-01 10:00:00] Loading model from model/model.npz\n"
    assert math.isnan(parse_log(loaded + started + "".join(lines)).steps.ms[0])


@pytest.mark.parametrize("names", [("cross-entropy", "perplexity"), ("perplexity", "cross-entropy")])
def test_marians_loss_of_a_word(names: tuple[str, str], subtests: pytest.Subtests) -> None:
    values = {"cross-entropy": "130.97", "perplexity": "187.458", "translation": "2.35"}
    form = "[valid] Ep. 1 : Up. {} : {} : {} : new best\n"

    def log(*logged: str) -> str:
        evals = (form.format(400, name, values[name]) for name in logged)
        lines = [MARIAN_LINE.format(at, 100 * at) for at in range(1, 6)]
        return "".join([*lines[:4], *evals, *lines[4:]])

    run_log = parse_log(log(*names, "translation"))
    (one,) = run_log.evals
    assert one.iteration == 400
    assert one.val_loss == pytest.approx(math.log(187.458))
    assert "ppl-vs-loss" not in {finding.id for finding in explain(run_log).findings}
    run_log = parse_log(log("cross-entropy"))
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(400, 130.97)]
    assert "ppl-vs-loss" not in {finding.id for finding in explain(run_log).findings}


def test_megatrons_older_evaluations_and_losses_that_are_left_out() -> None:
    step = (
        " iteration {at:8d}/    9000 | elapsed time per iteration (ms): 110.5 | learning rate: 6.3E-06 | "
        "global batch size:    64 |{loss} loss scale: 1.0 | grad norm: 0.752 |\n"
    )
    text = "".join(step.format(at=at, loss=f" lm loss: {7 - at / 500:.6E} |") for at in range(100, 1001, 100))
    text += " validation loss at iteration 1000 | LM loss: 4.503653E+00 | LM PPL: 9.034661E+01\n"
    text += step.format(at=1100, loss="")
    run_log = parse_log(text)
    assert run_log.steps.iteration.tolist() == list(range(100, 1101, 100))
    assert math.isnan(run_log.steps.loss[-1])
    assert [(one.iteration, one.val_loss) for one in run_log.evals] == [(1000, 4.503653)]
    cut = text[: text.rindex("ad norm")]
    assert math.isnan(parse_log(cut).steps.loss[-1])
    assert len(parse_log(text[: text.rindex("global batch")]).steps) == 10


def test_a_budget_that_the_remaining_time_is_not_of_is_none() -> None:
    line = (
        "step {at:05d} ({done:.1f}%) | loss: 3.5 | lrm: 1.00 | dt: 300ms | tok/sec: 9 | remaining: {left}s\n"
    )
    for left, budget_s in ((240, 300), (6000, None)):
        text = "Time budget: 300s\n" + "".join(line.format(at=at, done=20, left=left) for at in range(9))
        assert parse_log(text).setup.budget_s == budget_s
