"""Frameworks, as their sources print: torchtitan and Megatron-LM of August 2026, GPT-NeoX, NeMo 2, OLMo of
September 2025, mlx-lm before and after June 2026, Keras 3.12, Lightning 2, autoresearch of March 2026."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import accumulate

from log_checks import ExpectedLine, ExpectedLog, ExpectedStep
from printed import SyntheticRun


def _(*texts: str) -> list[ExpectedLine]:
    return [ExpectedLine(text) for text in texts]


def _unfinished(*texts: str) -> list[ExpectedLine]:
    return [ExpectedLine(text, is_unfinished=True) for text in texts]


def torchtitan(course: SyntheticRun) -> ExpectedLog:
    now = datetime(2026, 1, 11, 23, 59, 58, 125_000)  # it runs past midnight

    def stamped(text: str) -> str:
        return f"[rank0]:[titan] {now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d} - root - INFO - {text}"

    parts = _(
        stamped("CUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB memory"),
        stamped("Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=1, ep=1"),
        stamped("Model llama3 debugmodel size: 6,139,136 total parameters"),
        stamped("Peak FLOPS used for computing MFU: 9.890e+14"),
        stamped(
            "Trainer is initialized with local batch size 8, global batch size 64, gradient accumulation "
            f"steps 1, sequence length 2048, total steps {course.updates} (warmup 2)"
        ),
        stamped("Training starts at step 1"),
    )
    for at in range(1, course.updates + 1):
        ms = round(course.ms(at, starts=at == 1))
        now += timedelta(milliseconds=ms)
        speed = 16384 * 1000 // ms
        tflops = 1.93e9 * speed / 1e12
        loss, mfu = f"{course.loss(at):.5f}", f"{100 * tflops / 989:.2f}"
        text = (
            f"step: {at:2}  loss: {float(loss):8.5f}  grad_norm:  1.2500  memory: 45.30GiB(57.26%)  "
            f"tps: {speed:,}  tflops: {tflops:,.2f}  mfu: {mfu}%"
        )
        step = ExpectedStep(at, float(loss), float(ms), float(mfu))
        parts.append(ExpectedLine(stamped(text), step))
        if course.evaluates(at):
            now += timedelta(milliseconds=2500)
            val = f"{course.val(at):.4f}"
            text = f"validate step: {at:2}  loss: {float(val):7.4f}  memory: 45.30GiB(57.26%)  tps: 90,000"
            parts.append(ExpectedLine(stamped(text), eval=(at, None, float(val))))
    parts += _(stamped("Training completed"))
    return ExpectedLog(
        tuple(parts),
        "torchtitan",
        times_are_means=True,
        tokens=64 * 2048,
        parameters=6_139_136,
        mfu_peak=9.89e14,
    )


def megatron(course: SyntheticRun, kin: str = "") -> ExpectedLog:
    """`kin`: neox, nemo or deepspeed print variants of its line."""
    sequence = 2048
    parts = _(
        "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1",
        f"  seq_length ...................................... {sequence}",
        "  num_layers ...................................... 12",
        "  world_size ...................................... 8",
        "done with setup ...",
        "training ...",
    )
    for at in range(1, course.updates + 1):
        ms = f"{course.ms(at, starts=at == 1):.1f}"
        loss = f"{course.loss(at):.6E}"
        step = ExpectedStep(at, float(loss), float(ms))
        common = f"elapsed time per iteration (ms): {ms} | learning rate: 1.500000E-04 |"
        counts = "number of skipped iterations:   0 | number of nan iterations:   0 |"
        progress = f"iteration {at:8d}/{course.updates:8d} |"
        if kin == "neox":
            text = (
                f" samples/sec: 12.345 | {progress} {common} approx flops per GPU: 50.1TFLOPS | lm_loss: "
                f"{loss} | loss scale: 32768.0 | {counts}"
            )
        elif kin == "deepspeed":
            text = (
                f" {progress} consumed samples: {at * 64:12d} | consumed tokens: {at * 64 * sequence:12d} | "
                f"{common} global batch size:    64 | lm loss: {loss} | loss scale: 1.0 | grad norm: 0.512 | "
                f"actual seqlen: {sequence:5d} | {counts} samples per second: 4.5 | TFLOPs: 33.2 |"
            )
        elif kin == "nemo":
            seconds = f"{float(ms) / 1000:.4f}"
            loss = f"{course.loss(at):.4f}"
            text = (
                f"Training epoch 0, iteration {at - 1}/{course.updates - 1} | lr: 1.5e-06 | "
                f"global_batch_size: 64 | global_step: {at - 1} | reduced_train_loss: {loss} | "
                f"train_step_timing in s: {seconds}"
            )
            step = ExpectedStep(at - 1, float(loss), float(seconds) * 1000)
        else:
            text = (
                f" [2026-05-11 10:00:01.123456] {progress} consumed samples: {at * 64:12d} | {common} "
                f"global batch size:    64 | lm loss: {loss} | loss scale: 1.0 | grad norm: 0.512 | {counts}"
            )
        parts.append(ExpectedLine(text, step))
        if kin != "nemo" and course.evaluates(at):
            val = f"{course.val(at):.6E}"
            text = f" validation loss at iteration {at} on validation set | lm loss value: {val} | "
            if kin == "neox":
                text = f" validation results at iteration {at} | lm_loss value: {val} | "
            parts += _("-" * len(text))
            parts.append(ExpectedLine(text, eval=(at, None, float(val))))
            text = f"  successfully saved checkpoint from iteration {at:7d} to checkpoints [ t 1/1, p 1/1 ]"
            parts.append(ExpectedLine(text, save=at))
    parts += _("[after training is done] datetime: 2026-05-11 10:00:01")
    tokens = None if kin == "neox" else 64 * sequence
    is_nemo = kin == "nemo"
    return ExpectedLog(
        tuple(parts), "megatron", times_are_means=not is_nemo, tokens=tokens, logs_saves=not is_nemo
    )


def mlx_lm(course: SyntheticRun, table: bool = False) -> ExpectedLog:
    """`table`: since June 2026. It has no times, and nothing says that it is over."""
    every = 5
    total = course.updates // every * every
    parts = _("Loading pretrained model", "Training", "Trainable parameters: 0.045% (1.491M/3315.716M)")
    parts += _(
        "  iter   train_loss     tok/s     tokens" if table else f"Starting training..., iters: {total}"
    )
    for at in range(1, total + 1):
        if at == 1 or course.evaluates(at):
            val = f"{course.val(at):.3f}"
            text = (
                f"  {at:>4}    val {val:>5}    3.84s"
                if table
                else f"Iter {at}: Val loss {val}, Val took 3.842s"
            )
            parts.append(ExpectedLine(text, eval=(at, None, float(val))))
        if at % every:
            continue
        loss, rate = f"{course.loss(at):.3f}", f"{1000 / course.ms(at):.3f}"
        if table:
            text = f"  {at:>4}    {loss:>5} ▼      599    {at * 0.19:>5.1f}k"
            parts.append(ExpectedLine(text, ExpectedStep(at, float(loss))))
        else:
            text = (
                f"Iter {at}: Train loss {loss}, Learning Rate 2.000e-05, It/sec {rate}, Tokens/sec 598.913, "
                f"Trained Tokens {at * 190}, Peak mem 8.225 GB"
            )
            parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), 1000 / float(rate))))
        if course.evaluates(at):
            name = f"{at:07d}_adapters.safetensors"
            text = f"Iter {at}: Saved adapter weights to adapters/adapters.safetensors and adapters/{name}."
            parts.append(ExpectedLine(f"  save  {name}" if table else text, save=at))
    if not table:
        parts += _("Saved final weights to adapters/adapters.safetensors.")
    return ExpectedLog(
        tuple(parts),
        "mlx-lm",
        times_are_means=True,
        parameters=3_315_716_000,
        ended="cut" if table else "finished",
        segments_with_startup=frozenset() if table else frozenset({0}),
    )


def olmo(course: SyntheticRun, core: bool = False) -> ExpectedLog:
    """`core`: OLMo-core's names."""
    names = (
        ("train/CE loss", "throughput/device/TPS", "throughput/device/BPS", "optim/total grad norm")
        if core
        else (
            "train/CrossEntropyLoss",
            "throughput/device/tokens_per_second",
            "throughput/device/batches_per_second",
            "optim/total_grad_norm",
        )
    )
    parts: list[ExpectedLine] = []
    for at in range(1, course.updates + 1):
        loss, rate = f"{course.loss(at):.4g}", f"{1000 / course.ms(at):.4f}"
        step = ExpectedStep(at, float(loss), 1000 / float(rate))
        stamp = "[2026-04-17 09:42:26] INFO     [olmo.train:816, rank=0]"
        end = ",epoch=1,eta=1h,2m" if core else ",epoch=0"
        begin = f"{stamp} [step={at}/{course.updates}{end}]"
        parts.append(ExpectedLine(begin, step, is_unfinished=True))
        parts += _unfinished(
            f"    {names[0]}={loss}", "    train/Perplexity=76,631", f"    {names[3]}=1.2500",
            f"    throughput/{'total tokens' if core else 'total_tokens'}={at * 65536:,}",
            f"    {names[1]}=45,538", f"    {names[2]}={rate}",
        )  # fmt: skip
        parts += _("    System/Peak GPU Memory (MB)=43,309")
        if course.evaluates(at):
            val = f"{course.val(at):.3f}"
            done = "Finished lm evals in 12.3 seconds. Metrics:" if core else "all-small-ppl-validation"
            name = "c4_en-validation/CE loss" if core else "eval/c4_en-validation/CrossEntropyLoss"
            parts += _(f"{stamp} {done}")
            parts.append(ExpectedLine(f"    {name}={val}", eval=(at, None, float(val))))
            parts += _(f"    {name.replace('c4_en', 'pile')}=9.999")
    parts += _("[2026-04-17 09:42:26] INFO     [train:377, rank=0] Training complete")
    return ExpectedLog(tuple(parts), "olmo", times_are_means=True, tokens=65536)


def composer(course: SyntheticRun) -> ExpectedLog:
    parts = _("n_params: 124439808")
    for at in range(1, course.updates + 1):
        loss, rate = f"{course.loss(at):.4f}", f"{1000 / course.ms(at):.4f}"
        step = ExpectedStep(at, float(loss), 1000 / float(rate))
        parts.append(ExpectedLine(f"[batch={at}/{course.updates}]:", step, is_unfinished=True))
        parts += _unfinished(
            f"\t Train time/batch: {at - 1}", f"\t Train time/token: {(at - 1) * 65536}",
            f"\t Train loss/train/total: {loss}", "\t Train metrics/train/LanguagePerplexity: 76631.5000",
            "\t Train l2_norm/grad/global: 1.2500", f"\t Train throughput/batches_per_sec: {rate}",
        )  # fmt: skip
        parts += _("\t Train lr-DecoupledAdamW/group0: 0.0006")
        if course.evaluates(at):
            val = f"{course.val(at):.4f}"
            parts += _("[Eval batch=1/40] Eval on eval data", "[Eval batch=40/40] Eval on eval data:")
            name = "\t Eval metrics/eval/LanguageCrossEntropy"
            parts.append(ExpectedLine(f"{name}: {val}", eval=(at, None, float(val)), is_unfinished=True))
            parts += _("\t Eval metrics/eval/LanguagePerplexity: 9.9000")
            parts += _("[Eval batch=2/2] Eval on lambada/0-shot data:")
            parts += _("\t Eval metrics/lambada/0-shot/InContextLearningLMAccuracy: 0.2500")
    return ExpectedLog(tuple(parts), "composer", times_are_means=True, tokens=65536, parameters=124_439_808)


def keras(course: SyntheticRun, style: str = "3", per_epoch: int = 4) -> ExpectedLog:
    """`style`: of the third or second version, or one line per epoch. An epoch is evaluated at its end."""
    epochs = course.updates // per_epoch
    parts = _("2110848/2110848 ━━━━━━━━━━━━━━━━━━━━ 1s 0us/step")
    for epoch in range(1, epochs + 1):
        parts += _(f"Epoch {epoch}/{epochs}")
        at = epoch * per_epoch
        loss, val, ms = f"{course.loss(at):.4f}", f"{course.val(at):.4f}", round(course.ms(at))
        bar = {
            "3": "━━━━━━━━━━━━━━━━━━━━ 5s",
            "2": "[==============================] - 5s",
            "line": "- 5s -",
        }[style]
        if style != "line":
            early = (
                "━━━━━━━━━━━━━━━━━━━━ 2s" if style == "3" else "[=======>......................] - ETA: 2s"
            )
            parts += _unfinished(f"1/{per_epoch} {early} 9s/step - accuracy: 0.2500 - loss: 9.9000")
        text = f"{per_epoch}/{per_epoch} {bar} {ms}ms/step - accuracy: 0.3746 - loss: {loss}"
        if style == "3":
            parts += _unfinished(
                f"{per_epoch}/{per_epoch} ━━━━━━━━━━ 0s {ms - 5}ms/step - accuracy: 0.3746 - loss: {loss}"
            )
        parts.append(
            ExpectedLine(
                f"{text} - val_accuracy: 0.4826 - val_loss: {val}",
                ExpectedStep(at, float(loss), float(ms)),
                eval=(at, None, float(val)),
            )
        )
    parts += _(f"71/71 {bar} 2ms/step - accuracy: 0.5611 - loss: 1.9418", "Test loss: 1.986780047416687")
    return ExpectedLog(tuple(parts), "keras", times_are_means=True)


def lightning(course: SyntheticRun, rich: bool = False, per_epoch: int = 10) -> ExpectedLog:
    """A bar is drawn when a batch is done, and again with its loss.

    Its clock disagrees with its rate, so that each rate is the time of its own step.
    """
    epochs = course.updates // per_epoch
    parts: list[ExpectedLine] = []
    loss, val = "10.000", ""
    for at in range(1, epochs * per_epoch + 1):
        epoch, batch = (at - 1) // per_epoch, (at - 1) % per_epoch + 1
        rate = f"{1000 / course.ms(at):.2f}"

        def bar(loss: str, val: str, epoch: int = epoch, batch: int = batch, rate: str = rate) -> str:
            if rich:
                shown = f" val_loss: {val}" if val else ""
                return (
                    f"Epoch {epoch}/{epochs - 1} ━━━━━━━━╸ {batch}/{per_epoch} 9:59:10 • 0:00:12 {rate}it/s "
                    f"v_num: 0.000 train_loss: {loss}{shown}"
                )
            shown = f", val_loss={val}" if val else ""
            return (
                f"Epoch {epoch}: {100 * batch // per_epoch:3d}%|████▌     | {batch}/{per_epoch} "
                f"[9:59:10<00:12, {rate}it/s, v_num=0, train_loss={loss}{shown}]"
            )

        parts += _unfinished(bar(loss, val))
        loss = f"{course.loss(at):.3f}"
        step = ExpectedStep(at, float(loss), 1000 / float(rate))
        if batch < per_epoch:
            parts.append(ExpectedLine(bar(loss, val), step))
            continue
        parts += _unfinished(bar(loss, val))
        parts += _unfinished("Validation DataLoader 0: 100%|██████████| 5/5 [00:00<00:00, 50.00it/s]")
        val = f"{course.val(at):.3f}"
        parts.append(ExpectedLine(bar(loss, val), step, eval=(at, None, float(val))))
    parts += _(f"`Trainer.fit` stopped: `max_epochs={epochs}` reached.")
    return ExpectedLog(tuple(parts), "lightning", times_are_means=True)


def autoresearch(course: SyntheticRun, budget_s: int = 300) -> ExpectedLog:
    times = [round(course.ms(at, starts=at == 0)) for at in range(course.updates)]
    spent = [0, *accumulate(time if at > 10 else 0 for at, time in enumerate(times))]
    scale = budget_s * 1000 / max(1, spent[-1])  # so that it ends when the budget is used up
    parts = _(
        "Vocab size: 50,304", "Parameter counts:", "  total                   : 50,332,176",
        "Estimated FLOPs per token: 2.5e+08", f"Time budget: {budget_s}s", "Gradient accumulation steps: 2",
    )  # fmt: skip
    for at, ms in enumerate(times):
        loss, mfu = f"{course.loss(at):.6f}", f"{course.mfu(at):.1f}"
        done, left = spent[at] * scale / 1000, budget_s - spent[at + 1] * scale / 1000
        text = (
            f"step {at:05d} ({100 * done / budget_s:.1f}%) | loss: {loss} | lrm: 1.00 | dt: {ms}ms | "
            f"tok/sec: 402,404 | mfu: {mfu}% | epoch: 1 | remaining: {left:.0f}s    "
        )
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms), float(mfu))))
    val = f"{course.val(course.updates) / 3:.6f}"
    parts += _("---")
    parts.append(ExpectedLine(f"val_bpb:          {val}", eval=(course.updates, None, float(val))))
    parts += _(
        f"training_seconds: {budget_s}.1", "total_seconds:    325.9", "peak_vram_mb:     45060.2",
        "mfu_percent:      39.80", "total_tokens_M:   499.6", f"num_steps:        {course.updates}",
        "num_params_M:     50.3", "depth:            8",
    )  # fmt: skip
    return ExpectedLog(
        tuple(parts),
        "autoresearch",
        parameters=50_332_176,
        flops_per_token=2.5e8,
        mfu_peak=989.5e12,
        metric="bits_per_byte",
    )
