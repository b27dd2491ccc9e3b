"""Runs as the trainers print them, line by line as their sources do (nanoGPT 3adf61e, build-nanogpt 6104ab1,
llm.c f1e2ace, nanochat 92d63d4, modded-nanogpt f411b3d, litgpt 2685705, transformers 4 and 5), with what each
line says. Numbers are those on the paper: rounded as printed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from log_checks import A100, ExpectedLine, ExpectedLog, ExpectedStep


@dataclass(frozen=True)
class SyntheticRun:
    """How a run goes, whoever trains it."""

    updates: int = 40
    log_every: int = 1
    eval_every: int = 10
    seed: int = 0
    nan_from: int | None = None  # the losses of this iteration and later ones are not numbers
    base_ms: float = 100.0

    def loss(self, iteration: int) -> float:
        if self.nan_from is not None and iteration >= self.nan_from:
            return math.nan
        return 1.5 + 9.4 * math.exp(-iteration / 15) + self._noise(iteration, 1) * 0.1

    def val(self, iteration: int) -> float:
        return 1.6 + 9.3 * math.exp(-iteration / 15) + self._noise(iteration, 2) * 0.05

    def ms(self, iteration: int, evaluates: bool = False, starts: bool = False) -> float:
        whole = self.base_ms * (1 + 0.1 * self._noise(iteration, 3))
        return whole + 2500 * evaluates * (1 + 0.1 * self._noise(iteration, 4)) + 31000 * starts

    def mfu(self, iteration: int) -> float:
        return 27.5 + self._noise(iteration, 5)

    def evaluates(self, iteration: int) -> bool:
        return iteration % self.eval_every == 0

    def _noise(self, iteration: int, kind: int) -> float:
        return random.Random(f"{self.seed} {iteration} {kind}").random()


def _(*texts: str) -> list[ExpectedLine]:
    return [ExpectedLine(text) for text in texts]


# --- nanoGPT ---


def nanogpt(
    course: SyntheticRun, extra: str = "", resumes_at: int | None = None, segment: int = 0
) -> ExpectedLog:
    """`resumes_at`: the checkpoint's iteration, which is evaluated again."""
    parts = _(
        "Overriding config with config/train_shakespeare_char.py:",
        "# train a miniature character-level shakespeare model",
        "out_dir = 'out-shakespeare-char'",
        f"eval_interval = {course.eval_every} # keep frequent because we'll overfit",
        f"log_interval = {course.log_every} # don't print too too often",
        f"max_iters = {(resumes_at or 0) + course.updates}",
        "tokens per iteration will be: 16,384",
        "found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)",
        "Initializing a new model from scratch"
        if resumes_at is None
        else "Resuming training from out-shakespeare-char",
        "number of parameters: 10.65M",
        "num decayed parameter tensors: 26, with 10,740,096 parameters",
        "num non-decayed parameter tensors: 13, with 4,992 parameters",
        "using fused AdamW: True",
        "compiling the model... (takes a ~minute)",
    )
    start = resumes_at or 0
    best = math.inf
    for at in range(start, start + course.updates + 1):
        evaluates = course.evaluates(at)
        if evaluates:
            train, val = f"{course.val(at) - 0.1:.4f}", f"{course.val(at):.4f}"
            parts.append(
                ExpectedLine(
                    f"step {at}: train loss {train}, val loss {val}", eval=(at, float(train), float(val))
                )
            )
            if at > start and float(val) < best:
                parts.append(ExpectedLine("saving checkpoint to out-shakespeare-char", save=at))
            best = min(best, float(val))
        if at % course.log_every == 0:
            loss, ms = f"{course.loss(at):.4f}", f"{course.ms(at, evaluates, at == start):.2f}"
            mfu = f"{course.mfu(at):.2f}" if at - start >= 5 else "-100.00"
            mfu_value = None if mfu.startswith("-") else float(mfu)
            text = f"iter {at}: loss {loss}, time {ms}ms, mfu {mfu}%{extra}"
            parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms), mfu_value, segment)))
    return ExpectedLog(
        tuple(parts), "nanogpt", times_hold_eval=True, tokens=16384, parameters=10_650_000, mfu_peak=A100
    )


# --- build-nanogpt ---


def build_nanogpt(course: SyntheticRun) -> ExpectedLog:
    parts = _(
        "using device: cuda",
        "total desired batch size: 524288",
        "=> calculated gradient accumulation steps: 32",
        "found 99 shards for split train",
        "found 1 shards for split val",
        "num decayed parameter tensors: 50, with 124,354,560 parameters",
        "num non-decayed parameter tensors: 98, with 121,344 parameters",
        "using fused AdamW: True",
    )
    for at in range(course.updates):
        last = at == course.updates - 1
        evaluates = course.evaluates(at) or last
        if evaluates:
            val = f"{course.val(at):.4f}"
            parts.append(ExpectedLine(f"validation loss: {val}", eval=(at, None, float(val))))
            parts += _("HellaSwag accuracy: 2497/10042=0.2487")
            parts += _(f"rank 0 sample 0: Hello, I'm a language model, step {at} of many, and a loss.")
        loss, ms = f"{course.loss(at):.6f}", f"{course.ms(at, evaluates, at == 0):.2f}"
        speed = 524288 / float(ms) * 1000
        text = (
            f"step {at:5d} | loss: {loss} | lr {6e-4:.4e} | norm: 0.5000 | dt: {ms}ms | tok/sec: {speed:.2f}"
        )
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms))))
    return ExpectedLog(
        tuple(parts), "build-nanogpt", times_hold_eval=True, tokens=524288, parameters=124_475_904
    )


def build_nanogpt_file(course: SyntheticRun) -> ExpectedLog:
    """Its log.txt."""
    parts = []
    for at in range(course.updates):
        if course.evaluates(at) or at == course.updates - 1:
            val = f"{course.val(at):.4f}"
            parts.append(ExpectedLine(f"{at} val {val}", eval=(at, None, float(val))))
            parts.append(ExpectedLine(f"{at} hella 0.2487"))
        loss = f"{course.loss(at):.6f}"
        parts.append(ExpectedLine(f"{at} train {loss}", ExpectedStep(at, float(loss))))
    return ExpectedLog(tuple(parts), "build-nanogpt", times_hold_eval=True)


# --- llm.c ---

LlmcLine = Callable[[int, int, str, str, float], str]


def _llmc_today(at: int, of: int, loss: str, ms: str, mfu: float) -> str:
    speed = 524288 / float(ms) * 1000
    return (
        f"step {at:4d}/{of} | loss {loss} (+nanz)| norm 0.5000 (+0.12z)| lr 6.00e-04 | {ms} ms | "
        f"{mfu:.1f}% bf16 MFU | {speed:.0f} tok/s"
    )


LLMC_LINES: dict[str, LlmcLine] = {
    "today": _llmc_today,
    "april 18": lambda at, of, loss, ms, mfu: f"step {at}/{of}: train loss {loss} ({ms} ms)",
    "april 21": lambda at, of, loss, ms, mfu: f"step {at:4d}/{of}: train loss {loss} ({ms} ms, 50819 tok/s)",
    "april 22": lambda at, of, loss, ms, mfu: (
        f"step {at:4d}/{of}: train loss {loss} (acc 4.512345) ({ms} ms, 50819 tok/s)"
    ),
    "may 5": lambda at, of, loss, ms, mfu: (
        f"step {at:4d}/{of}: train loss {loss} (acc 4.512345) ({ms} ms, 50819.015625 tok/s)"
    ),
    "may 19": lambda at, of, loss, ms, mfu: (
        f"step {at:4d}/{of}: train loss {loss} norm 0.5000 ({ms} ms, 50819 tok/s)"
    ),
    "may 23": lambda at, of, loss, ms, mfu: (
        f"step {at:4d}/{of}: train loss {loss} norm 0.5000 lr 6.00e-04 ({ms} ms, 50819 tok/s)"
    ),
    "may 25": lambda at, of, loss, ms, mfu: (
        f"step {at:4d}/{of} | train loss {loss} | norm 0.5000 | lr 6.00e-04 | {ms} ms | "
        f"{mfu:.1f}% A100 fp16 MFU | 50819 tok/s"
    ),
    "june 25": lambda at, of, loss, ms, mfu: (
        f"step {at:4d}/{of} | loss {loss} (z +0.12)| norm 0.5000 (z -0.12)| lr 6.00e-04 | {ms} ms | "
        f"{mfu:.1f}% bf16 MFU | 50819 tok/s"
    ),
}

_TABLE_LINE = "+-----------------------+----------------------------------------------------+"


def _table(*rows: tuple[str, object]) -> list[ExpectedLine]:
    return _(_TABLE_LINE, *(f"| {name:<21} | {value!s:<50} |" for name, value in rows), _TABLE_LINE)


def llmc(course: SyntheticRun, line: str = "today", resumes_at: int | None = None) -> ExpectedLog:
    start = resumes_at or 0
    end = start + course.updates
    parts = _table(
        ("Parameter", "Value"),
        ("train data pattern", "dev/data/fineweb10B/fineweb_train_*.bin"),
        ("resume", int(resumes_at is not None)),
        ("micro batch size B", 64),
        ("sequence length T", 1024),
        ("total batch size", 524288),
        ("val_loss_every", course.eval_every),
    )
    parts += _table(("num_parameters", 124_475_904), ("num_processes", 1))
    parts += _("num_parameters: 124475904 => bytes: 248951808", "allocated 237 MiB for model parameters")
    for done in range(start, end + 1):
        last = done == end
        if course.evaluates(done) or last:
            val = f"{course.val(done):.6f}"
            parts.append(ExpectedLine(f"val loss {val}", eval=(done, None, float(val))))
        if done > start and (done % (2 * course.eval_every) == 0 or last):
            parts.append(ExpectedLine(f"Writing checkpoint at step {done}", save=done))
            parts += _(f"Writing model to log/model_{done:08d}.bin")
        if last:
            break
        at = done + 1
        loss, ms = f"{course.loss(at):.6f}", f"{course.ms(at, starts=done == start):.2f}"
        text = LLMC_LINES[line](at, end, loss, ms, course.mfu(at))
        mfu = float(f"{course.mfu(at):.1f}") if "MFU" in text else None
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms), mfu)))
    parts += _("total average iteration time: 123.456789 ms")
    return ExpectedLog(tuple(parts), "llm.c", tokens=524288, parameters=124_475_904)


def llmc_c(course: SyntheticRun) -> ExpectedLog:
    """train_gpt2.c: iterations from 0, an evaluation belongs to the line that follows."""
    parts = _(
        "[GPT-2]", "max_seq_len: 1024", "vocab_size: 50257", "num_parameters: 124439808",
        "train dataset num_batches: 1192", "val dataset num_batches: 128",
    )  # fmt: skip
    for at in range(course.updates):
        if course.evaluates(at):
            val = f"{course.val(at):.6f}"
            parts.append(ExpectedLine(f"val loss {val}", eval=(at, None, float(val))))
        if course.evaluates(at) and at:
            parts += _("generating:", "---", "I was so frightened with your face: to come", "---")
        loss, ms = f"{course.loss(at):.6f}", f"{course.ms(at, starts=at == 0):.6f}"
        parts.append(
            ExpectedLine(
                f"step {at}: train loss {loss} (took {ms} ms)", ExpectedStep(at, float(loss), float(ms))
            )
        )
    return ExpectedLog(tuple(parts), "llm.c", parameters=124_439_808, ended="cut")


def llmc_python(course: SyntheticRun) -> ExpectedLog:
    """train_gpt2.py: the clock runs while it evaluates, at the top of the loop."""
    parts = _("using device: cuda", "total desired batch size: 524288")
    for done in range(course.updates + 1):
        last = done == course.updates
        if course.evaluates(done) or last:
            val = f"{course.val(done):.6f}"
            parts.append(ExpectedLine(f"val loss {val}", eval=(done, None, float(val))))
        if last:
            break
        at = done + 1
        ms = f"{course.ms(at, course.evaluates(done), done == 0):.2f}"
        loss = f"{course.loss(at):.6f}"
        text = (
            f"step {at:4d}/{course.updates} | train loss {loss} | norm 0.5000 | lr 6.00e-04 | "
            f"({ms} ms | 50819 tok/s)"
        )
        parts.append(ExpectedLine(text, ExpectedStep(at, float(loss), float(ms))))
    parts += _("final 20 iters avg: 123.456ms", "peak memory consumption: 32445 MiB")
    return ExpectedLog(tuple(parts), "llm.c", times_hold_eval=True, eval_time_offset=1, tokens=524288)


def llmc_file(course: SyntheticRun) -> ExpectedLog:
    """main.log, which counts updates done before."""
    parts = []
    for at in range(course.updates):
        if course.evaluates(at):
            val = f"{course.val(at):.4f}"
            parts.append(ExpectedLine(f"s:{at} tel:{val}", eval=(at, None, float(val))))
            parts.append(ExpectedLine(f"s:{at} eval:0.2463"))
        loss = f"{course.loss(at):.4f}"
        parts.append(ExpectedLine(f"s:{at} trl:{loss} lr:0.000600 norm:0.50", ExpectedStep(at, float(loss))))
    return ExpectedLog(tuple(parts), "llm.c", ended="cut")
