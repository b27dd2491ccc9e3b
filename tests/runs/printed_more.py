"""More trainers: nanochat, modded-nanogpt, litgpt, Hugging Face's Trainer, MiniMind, and one nobody knows."""

from __future__ import annotations

from dataclasses import replace

from log_checks import ExpectedLine, ExpectedLog, ExpectedStep
from printed import (
    SyntheticRun,
    build_nanogpt,
    build_nanogpt_file,
    llmc,
    llmc_c,
    llmc_file,
    llmc_python,
    nanogpt,
)
from printed_frameworks import autoresearch, composer, keras, lightning, megatron, mlx_lm, olmo, torchtitan


def _(*texts: str) -> list[ExpectedLine]:
    return [ExpectedLine(text) for text in texts]


# --- nanochat ---


def nanochat(course: SyntheticRun) -> ExpectedLog:
    total = course.updates
    parts = _(
        "Autodetected device type: cuda",
        "GPU: NVIDIA H100 80GB HBM3 | Peak FLOPS (BF16): 9.89e+14",
        "Vocab size: 32,768",
        "Parameter counts:",
        "wte                     : 50,331,648",
        "total                   : 560,988,160",
        "Estimated FLOPs per token: 3.491758e+09",
        "Calculated number of iterations from target data:param ratio: 21,400",
        "Total number of training tokens: 11,219,763,200",
        "Tokens / micro-batch / rank: 32 x 2048 = 65,536",
        "Total batch size 524,288 => gradient accumulation steps: 1",
    )
    for at in range(total + 1):
        last = at == total
        if course.evaluates(at) or last:
            val = f"{course.val(at) / 3:.6f}"
            parts.append(ExpectedLine(f"Step {at:05d} | Validation bpb: {val}", eval=(at, None, float(val))))
        if last:
            parts += _(f"Step {at:05d} | CORE metric: 0.2196")
            parts += _("<|bos|>The capital of France is Paris. It is the step 5 of the loss: 12")
            where = f"base_checkpoints/d20/model_{at:06d}.pt"
            parts.append(
                ExpectedLine(
                    f"2026-02-02 00:09:58,013 - nanochat - INFO - Saved model parameters to: {where}", save=at
                )
            )
            break
        loss, ms = f"{course.loss(at):.6f}", f"{course.ms(at, starts=at == 0):.2f}"
        mfu, speed = f"{course.mfu(at):.2f}", int(524288 / float(ms) * 1000)
        eta = " | eta: 12.3m" if at > 10 else ""
        text = (
            f"step {at:05d}/{total:05d} ({100 * at / total:.2f}%) | loss: {loss} | lrm: 1.00 | dt: {ms}ms | "
            f"tok/sec: {speed:,} | bf16_mfu: {mfu} | epoch: 1 pq: 0 rg: 1 | total time: 0.05m{eta}"
        )
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms), float(mfu))))
    parts += _(
        "Peak memory usage: 62389.67MiB", "Total training time: 179.44m", "Minimum validation bpb: 0.753336"
    )
    return ExpectedLog(
        tuple(parts),
        "nanochat",
        tokens=524288,
        parameters=560_988_160,
        flops_per_token=3.491758e9,
        metric="bits_per_byte",
        mfu_peak=9.89e14,
    )


def nanochat_sft(course: SyntheticRun) -> ExpectedLog:
    """The newer fine-tuning: from 1, no total."""
    parts: list[ExpectedLine] = []
    for done in range(course.updates + 1):
        if course.evaluates(done):
            val = f"{course.val(done) / 3:.4f}"
            parts.append(
                ExpectedLine(f"Step {done:05d} | Validation bpb: {val}", eval=(done, None, float(val)))
            )
        if done == course.updates:
            break
        at = done + 1
        loss, ms, mfu = (
            f"{course.loss(at):.6f}",
            f"{course.ms(at, starts=at == 1):.2f}",
            f"{course.mfu(at):.2f}",
        )
        text = (
            f"step {at:05d} ({at / course.updates:.2f}%) | loss: {loss} | lrm: 1.00 | dt: {ms}ms | "
            f"tok/sec: 12,525 | mfu: {mfu} | epoch: 1 | total time: 0.00m"
        )
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms), float(mfu))))
    parts += _("Peak memory usage: 1389.67MiB", "Minimum validation bpb: 0.7533")
    return ExpectedLog(tuple(parts), "nanochat", metric="bits_per_byte")


def nanochat_sft_old(course: SyntheticRun) -> ExpectedLog:
    """No time, a validation loss, and no blank before a bar."""
    parts: list[ExpectedLine] = []
    for at in range(course.updates):
        last = at == course.updates - 1
        if course.evaluates(at) or last:
            val = f"{course.val(at):.6f}"
            parts.append(ExpectedLine(f"Step {at:05d} | Validation loss: {val}", eval=(at, None, float(val))))
            parts += _(f"Step {at:05d} | mmlu_acc: 0.312500, arc_easy_acc: 0.386719")
        if last:
            break
        loss = f"{course.loss(at):.6f}"
        text = (
            f"Step {at:05d}/{course.updates:05d} | Training loss: {loss}| lrm: 1.000000| num_tokens: 12,345"
        )
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss))))
    return ExpectedLog(tuple(parts), "nanochat")


# --- modded-nanogpt ---


def modded(course: SyntheticRun, with_loss: bool = False) -> ExpectedLog:
    """Since February 2025, or, with the training loss, a form between the two."""
    total = course.updates
    parts = _(
        "import os",
        "import sys",
        'print0(f"step:{step}/{train_steps} val_loss:{val_loss:.4f} train_time:{training_time_ms:.0f}ms")',
        "=" * 100,
        "Running Python 3.12.7 (main, Oct  3 2024, 15:15:22) [GCC 14.2.0]",
        "=" * 100,
    )
    spent = 0
    for done in range(total + 1):
        if course.evaluates(done) or done == total:
            val = f"{course.val(done):.4f}"
            text = (
                f"step:{done}/{total} val_loss:{val} train_time:{spent}ms "
                f"step_avg:{spent / max(done, 1):.2f}ms"
            )
            parts.append(ExpectedLine(text, eval=(done, None, float(val))))
        if done == total:
            break
        at = done + 1
        ms = round(course.ms(at, starts=at == 1))
        spent += ms
        loss = f"{course.loss(at):.4f}" if with_loss else None
        train_loss = f" train_loss:{loss}" if loss else ""
        text = f"step:{at}/{total}{train_loss} train_time:{spent}ms step_avg:{spent / at:.2f}ms"
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss) if loss else None, float(ms))))
    parts += _("peak memory allocated: 31361 MiB reserved: 36734 MiB")
    return ExpectedLog(tuple(parts), "modded-nanogpt")


# --- litgpt ---


def litgpt(course: SyntheticRun, accumulate: int = 4) -> ExpectedLog:
    """Pretraining today. `updates` of the course are micro-batches here, since its lines count those."""
    parts = _(
        "Seed set to 42", "Time to instantiate model: 0.08 seconds.", "Total parameters: 1,100,048,384",
        "Verifying settings ...", "Measured TFLOPs: 45.31",
    )  # fmt: skip
    val = "n/a"
    for at in range(1, course.updates + 1):
        step = at // accumulate
        loss, ms = f"{course.loss(at):.3f}", f"{course.ms(at, starts=at == 1):.2f}"
        mark = " (step)" if at % accumulate == 0 else ""
        text = (
            f"Epoch 1 | iter {at} step {step} | loss train: {loss}, val: {val} | iter time: {ms} ms{mark} "
            "remaining time: 1 day, 2:03:04"
        )
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms))))
        if course.evaluates(at):
            parts += _("Validating ...")
            val_loss = f"{course.val(at):.4f}"
            val = f"{course.val(at):.3f}"
            text = f"iter {at}: val loss {val_loss}, val time: 1234.56 ms"
            parts.append(ExpectedLine(text, eval=(at, None, float(val_loss))))
            where = f"out/step-{step:08d}/lit_model.pth"
            parts.append(ExpectedLine(f"Saving checkpoint to '{where}'", save=at))
    final = f"{course.val(course.updates) - 0.001:.3f}"
    parts += _("Validating ...")
    parts.append(
        ExpectedLine(
            f"Final evaluation | val loss: {final} | val ppl: 12.345",
            eval=(course.updates, None, float(final)),
        )
    )
    parts.append(ExpectedLine("Saving checkpoint to 'out/final/lit_model.pth'", save=course.updates))
    return ExpectedLog(tuple(parts), "litgpt", parameters=1_100_048_384)


def lit_gpt(course: SyntheticRun, accumulate: int = 4) -> ExpectedLog:
    """2023's: an evaluation is named `step` though its number is an iteration's."""
    parts = _(
        "Number of trainable parameters: 1,126,400", "Number of non-trainable parameters: 2,779,683,840"
    )
    for at in range(1, course.updates + 1):
        loss, ms = f"{course.loss(at):.4f}", f"{course.ms(at, starts=at == 1):.2f}"
        mark = " (optimizer.step)" if at % accumulate == 0 else ""
        text = f"iter {at} step {at // accumulate}: loss {loss}, iter time: {ms}ms{mark}"
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms))))
        if course.evaluates(at):
            val = f"{course.val(at):.4f}"
            parts += _(
                "Validating ...", "Recommend a movie for me to watch", "### Response:", "iter, loss, time"
            )
            text = f"step {at}: val loss {val}, val time: 1234.56ms"
            parts.append(ExpectedLine(text, eval=(at, None, float(val))))
    parts += _("Training time: 123.45s", "Memory used: 13.45 GB")
    return ExpectedLog(tuple(parts), "litgpt", parameters=2_780_810_240)


# --- Hugging Face's Trainer ---


def trainer(course: SyntheticRun, quoted: bool = False, bars: bool = False, every: int = 5) -> ExpectedLog:
    """A dict each `every` steps; with `bars`, the progress bar in front of and behind each. An iteration
    takes about 4 s, and at least 3: the bar shows whole seconds, and of few its rate is read."""
    parts: list[ExpectedLine] = []
    total = course.updates // every * every
    if bars:
        parts += _(f"  0%|          | 0/{total} [00:00<?, ?it/s]")
    spent_s, shown_s, eval_s = 0.0, 0, 0.0
    for count, at in enumerate(range(every, total + 1, every), 1):
        number = at if bars else count
        spent_s += every * max(course.ms(at) / 25, 3.0) + eval_s
        ms = (int(spent_s) - shown_s - eval_s) / every * 1000 if bars else None
        shown_s, eval_s = int(spent_s), 0.0
        elapsed = f"{shown_s // 60:02d}:{shown_s % 60:02d}"
        bar = f"{100 * at // total:3d}%|████      | {at}/{total} [{elapsed}<06:21,  4.19s/it]"
        if bars:
            parts += _(bar)
        loss = f"{course.loss(at):.4f}"
        values = {"loss": loss, "grad_norm": "1.25", "learning_rate": "4.9e-05", "epoch": f"{at / total:.2f}"}
        parts.append(ExpectedLine(_dict(values, quoted), ExpectedStep(number, float(loss), ms)))
        if bars:
            parts += _(bar)
        if course.evaluates(at):
            val, eval_s = f"{course.val(at):.4f}", 3.2
            if bars:
                parts += _(
                    "  0%|          | 0/13 [00:00<?, ?it/s]", "100%|██████████| 13/13 [00:01<00:00,  9.1it/s]"
                )
            values = {
                "eval_loss": val,
                "eval_runtime": "3.2",
                "eval_samples_per_second": "5.5",
                "epoch": "0.5",
            }
            parts.append(ExpectedLine(_dict(values, quoted), eval=(number, None, float(val))))
    end = {"train_runtime": "22.5", "train_samples_per_second": "2.0", "train_loss": "1.09", "epoch": "1.0"}
    parts += _(_dict(end, quoted))
    return ExpectedLog(tuple(parts), "hf-trainer", times_are_means=True, numbered=bars)


def _dict(values: dict[str, str], quoted: bool) -> str:
    mark = "'" if quoted else ""
    return "{" + ", ".join(f"'{name}': {mark}{value}{mark}" for name, value in values.items()) + "}"


# --- one that nobody knows ---


def unknown(course: SyntheticRun) -> ExpectedLog:
    parts: list[ExpectedLine] = []
    for at in range(1, course.updates + 1):
        loss, ms = f"{course.loss(at):.4f}", f"{course.ms(at, starts=at == 1):.1f}"
        text = f"[train] Step {at}/{course.updates}, Loss: {loss}, LR: 3e-4, Time: {ms}ms"
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms))))
        if course.evaluates(at):
            val = f"{course.val(at):.4f}"
            parts.append(ExpectedLine(f"[valid] Step {at}, val_loss = {val}", eval=(at, None, float(val))))
    return ExpectedLog(tuple(parts), "unknown")


# --- MiniMind ---


def minimind(course: SyntheticRun, per_epoch: int = 20, old: bool = False) -> ExpectedLog:
    """`old`: all is counted from 0. New ones count from 1, and print the last micro-batch of an epoch."""
    epochs = -(-course.updates // per_epoch)
    parts = _("LLM可训练总参数量：25.830 百万") if old else _("Trainable Params: 25.830M")
    for epoch in range(epochs):
        for step in range(per_epoch) if old else range(1, per_epoch + 1):
            at = epoch * per_epoch + step
            loss, lr, left = course.loss(at), 5e-4 * (1 - at / (epochs * per_epoch + 1)), per_epoch - step
            if step % course.log_every and (old or step != per_epoch):
                continue
            text = (
                f"Epoch:[{epoch}/{epochs}]({step}/{per_epoch}) loss:{loss:.3f} lr:{lr:.7f} "
                f"epoch_Time:{left}.0min:"
                if old
                else f"Epoch:[{epoch + 1}/{epochs}]({step}/{per_epoch}), loss: {loss:.4f}, logits_loss: "
                f"{loss - 0.01:.4f}, aux_loss: 0.0100, lr: {lr:.8f}, epoch_time: {left}.0min"
            )
            parts.append(ExpectedLine(text, ExpectedStep(at, float(f"{loss:.3f}" if old else f"{loss:.4f}"))))
    starting = frozenset({0}) if old else frozenset()
    return ExpectedLog(tuple(parts), "minimind", parameters=25_830_000, segments_with_startup=starting)


def every_trainer(course: SyntheticRun) -> dict[str, ExpectedLog]:
    """The course as each of them would print it."""
    return {
        "nanogpt": nanogpt(course),
        "nanogpt, seldom": nanogpt(replace(course, log_every=5)),
        "build-nanogpt": build_nanogpt(course),
        "build-nanogpt's log.txt": build_nanogpt_file(course),
        "llm.c": llmc(course),
        "llm.c of april": llmc(course, "april 21"),
        "llm.c in C": llmc_c(course),
        "llm.c in Python": llmc_python(course),
        "llm.c's main.log": llmc_file(course),
        "nanochat": nanochat(course),
        "nanochat sft": nanochat_sft(course),
        "nanochat sft, old": nanochat_sft_old(course),
        "modded-nanogpt": modded(course),
        "modded-nanogpt with losses": modded(course, with_loss=True),
        "litgpt": litgpt(course),
        "lit-gpt": lit_gpt(course),
        "trainer": trainer(course),
        "trainer 5": trainer(course, quoted=True),
        "trainer with bars": trainer(course, bars=True),
        "minimind": minimind(course),
        "minimind, old": minimind(course, old=True),
        "torchtitan": torchtitan(course),
        "megatron": megatron(course),
        "gpt-neox": megatron(course, "neox"),
        "megatron-deepspeed": megatron(course, "deepspeed"),
        "nemo": megatron(course, "nemo"),
        "mlx-lm": mlx_lm(course),
        "mlx-lm's table": mlx_lm(course, table=True),
        "olmo": olmo(course),
        "composer": composer(course),
        "olmo-core": olmo(course, core=True),
        "keras": keras(course),
        "keras 2": keras(course, "2"),
        "keras, a line per epoch": keras(course, "line"),
        "lightning": lightning(course),
        "lightning, rich": lightning(course, rich=True),
        "autoresearch": autoresearch(course),
        "unknown": unknown(course),
    }
