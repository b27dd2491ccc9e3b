"""The logs of the corpus, by name. The only place that imports the tests' own log generators.

They are found by file name, wherever in tests/ they are.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).parents[1]
DEMO = TESTS.parent / "glassgpt/demo"


def _generator(name: str) -> ModuleType:
    (path,) = TESTS.rglob(f"{name}.py")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    return importlib.import_module(name)


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower().replace("'", "")).strip("-")


def every_log() -> dict[str, str]:
    """Name -> text: the demo logs, every trainer's format, the planted faults, the notes."""
    return {
        **{
            path.stem: path.read_text(encoding="utf-8")
            for path in sorted(TESTS.parent.glob("glassgpt/demo/*.log"))
        },
        **_printed(),
        **_planted(),
        **_notes(),
    }


def _printed() -> dict[str, str]:
    printed, more = _generator("printed"), _generator("printed_more")
    course = printed.SyntheticRun()
    logs = {f"printed-{_file_name(title)}": log.text for title, log in more.every_trainer(course).items()}
    logs["printed-nanogpt-resumed"] = (
        printed.nanogpt(course).truncated(60).text + printed.nanogpt(course, resumes_at=20, segment=1).text
    )
    diverged = replace(course, nan_from=25)
    for title in ("nanogpt", "llm.c", "nanochat", "litgpt", "trainer", "unknown"):
        log = more.every_trainer(diverged)[title]
        logs[f"printed-{_file_name(title)}-nan"] = log.text
        logs[f"printed-{_file_name(title)}-cut"] = more.every_trainer(course)[title].truncated(45).text
    return logs


def _planted() -> dict[str, str]:
    """The faults of test_planted_faults.py, made by its generators."""
    made: Any = _generator("test_planted_faults")
    nanogpt: Callable[..., str] = made.nanogpt
    llmc: Callable[..., str] = made.llmc
    trainer: Callable[..., str] = made.trainer
    healthy: Callable[[float], float] = made.healthy

    def leaked(at: int) -> float:
        return 0.003 + 4.17 * math.exp(-at / 60)

    def overfitted(at: int) -> float:
        return healthy(at) + max(0, at - 800) / 2000

    def spiking(at: int) -> float:
        return healthy(at) + (0.6 if 1200 <= at < 1270 else 0.0)

    def exploding(at: int) -> float:
        return healthy(at) + (30.0 * math.exp((1000 - at) / 60) if at >= 1000 else 0.0)

    def lost(at: int) -> float:
        return math.nan if at >= 900 else healthy(at)

    oom = nanogpt().splitlines(keepends=True)
    message = "WARNING: CUDA out of memory. Tried to allocate 512.00 MiB; retrying\n"
    first = nanogpt(updates=1000).replace("max_iters = 1000", "max_iters = 2000")
    worse = nanogpt(loss=lambda at: healthy(at) + 0.5 * math.exp(5 - at / 200)).splitlines(keepends=True)
    header: str = made.HEADER.format(every=250, log_every=10, updates=2000)
    header = header.replace("Initializing a new model from scratch", "Resuming training from out")
    begin = next(number for number, line in enumerate(worse) if line.startswith("step 1000:"))
    bars = "".join(
        f"Epoch 0: {at}%|###  | {at}/100 [00:05<00:05, 9.8it/s, v_num=3, train_loss={healthy(at):.3f}]\n"
        for at in range(1, 101)
    )
    epochs = "".join(
        f"Epoch {epoch}: 100%|####| 100/100 [00:10<00:00, 9.85it/s, v_num=3, "
        f"train_loss={3 * math.exp(-epoch / 3):.3f}, val_loss={1.8 + 0.05 * abs(epoch - 6):.3f}]\n"
        for epoch in range(20)
    )
    logs = {
        "healthy-nanogpt": nanogpt(),
        "healthy-llmc": llmc(),
        "healthy-trainer": trainer([healthy(20 * at) for at in range(60)], [1.0] * 60),
        "eval-every-iteration": nanogpt(updates=300, every=1, log_every=1),
        "eval-every-iteration-no-settings": nanogpt(updates=300, every=1, log_every=1, header=False),
        "eval-every-logged": nanogpt(updates=1000, every=10),
        "eval-rare": nanogpt(updates=50_000, every=5000, log_every=5000),
        "eval-every-llmc": llmc(every=1),
        "slow-saves": nanogpt(updates=1000, save_ms=20_000.0),
        "leaked-data": nanogpt(loss=leaked, val=leaked),
        "loss-zero": trainer([2.5] * 5 + [0.0] * 45, [1.0] * 5 + [math.nan] * 45),
        "learning-rate-low": nanogpt(loss=lambda at: 4.17 - 0.1 * at / 2000),
        "clock-set-back": nanogpt(ms=lambda at: -3_600_000.0 if at == 1230 else 33.0),
        "slower-from-1000": nanogpt(ms=lambda at: 33.0 if at < 1000 else 66.0),
        "silent-spike": nanogpt(ms=lambda at: 4000.0 if at in (330, 1110) else 33.0),
        "overfitted": nanogpt(val=overfitted),
        "loss-spike": nanogpt(loss=spiking),
        "loss-explosion": nanogpt(loss=exploding),
        "overfitted-tail": "".join(nanogpt(loss=lambda at: 0.62, val=lambda at: 1.7).splitlines(True)[-3:]),
        "loss-nan": nanogpt(loss=lost, val=lost),
        "mfu-impossible": llmc(mfu=128.0),
        "oom-survived": "".join([*oom[:100], message, *oom[100:]]),
        "oom-at-the-end": "".join([*oom[:100], message]),
        "resume-jump": first + header + "".join(worse[begin:]),
        "lightning-finished": bars + "`Trainer.fit` stopped: `max_epochs=1` reached.\n",
        "lightning-epochs": epochs,
        "megatron-batch-grows": _megatron(healthy, changes=True),
        "megatron-slower": _megatron(healthy, changes=False),
        "trainer-overfitted": _trainer_overfitted(),
    }
    return {f"planted-{name}": text for name, text in logs.items()}


def _megatron(healthy: Callable[[float], float], changes: bool) -> str:
    return "".join(
        f" [2025-03-01 10:00:00] iteration {at:8d}/     300 | elapsed time per iteration (ms): "
        f"{1500.0 if at < 200 else 3000.0} | learning rate: 3.0E-04 | global batch size: "
        f"{512 if changes and at >= 200 else 256:5d} | lm loss: {healthy(at):.6E} | grad norm: 1.000 |\n"
        for at in range(1, 301)
    )


def _trainer_overfitted() -> str:
    lines = []
    for at in range(10, 601, 10):
        bar = f" {at // 6:2d}%|#   | {at}/600 [00:10<05:00,  1.2it/s]\n"
        loss = 3 * math.exp(-at / 150)
        lines += [f"{{'loss': {loss:.4f}, 'grad_norm': 1.0, 'epoch': {at / 200:.2f}}}\n", bar]
        if at % 60 == 0:
            val = 1.8 + 0.5 * math.exp(-at / 80) + max(0, at - 180) / 800
            lines += [f"{{'eval_loss': {val:.4f}, 'epoch': {at / 200:.2f}}}\n", bar]
    return "".join(lines)


def _notes() -> dict[str, str]:
    note_000, note_003, note_004 = (_generator(f"note_{number}") for number in ("000", "003", "004"))
    note_001: Any = _generator("test_note_001")
    return {
        "note-000": note_000.console_log(),
        "note-000-quoted": note_000.quoted(),
        "note-001": note_001.LOG,
        "note-001-bold": note_001.IN_BOLD,
        "note-003-cpu": note_003.cpu_log(),
        "note-003-gpu": note_003.gpu_log(),
        "note-004-small": note_004.small_log(),
        "note-004-large": note_004.large_log(),
    }


def note_004_flags() -> list[str]:
    """What the two logs of note 004 do not say: flags of `glass compare`."""
    note: Any = _generator("note_004")
    return [*note.SMALL_FLAGS, *note.LARGE_FLAGS]
