"""Runs to report on, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from written_findings import written_finding

from glassgpt import i18n
from glassgpt.config import ConfigValue
from glassgpt.runs.run_log import Floats, LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog, Steps
from glassgpt.runs.trainers import BY_ID

NANOGPT = BY_ID["nanogpt"]
GLASSGPT = BY_ID["glassgpt"]

FINDINGS = (
    written_finding(
        "overfitting",
        "warning",
        "The run went on for 3,250 iterations past its best",
        "best validation loss 1.4576 at iteration 1,750; 1.7096 at the end",
        "The model learned the training text by heart.",
        "max_iters 5000 -> 1750 saves 65% of the run",
    ),
    written_finding(
        "startup-compile", "info", "The first iteration took 32.5 s", "32459 ms", "It compiles.", ""
    ),
)


def make_columns(iterations: Sequence[int], **columns: Floats | Sequence[float]) -> Steps:
    """Columns that are not given are NaN."""
    count = len(iterations)
    names = ("loss", "ms", "mfu", "lr", "grad_norm", "tokens_per_s")
    values = {name: np.asarray(columns.get(name, np.full(count, np.nan)), dtype=float) for name in names}
    segment = np.asarray(columns.get("segment", np.zeros(count)), dtype=np.int64)
    at = np.asarray(iterations, dtype=np.int64)
    line, has_loss = np.zeros(count, dtype=np.int64), np.full(count, "loss" in columns)
    steps = Steps(iteration=at, segment=segment, line=line, has_loss=has_loss, **values)
    memory = columns.get("memory_bytes")
    return steps if memory is None else replace(steps, memory_bytes=np.asarray(memory, dtype=float))


def bare_run(steps: Steps, *evals: LoggedEvaluation, **changes: object) -> RunLog:
    whole = RunLog(
        NANOGPT, "run.log", steps, evals, checkpoints=(), segments=(LoggedProcess(has_startup=True),)
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def nanogpt_run(last: int = 3000) -> RunLog:
    """A line every 10 iterations, an evaluation every 250, a compiling start, an overfitted end."""
    at = np.arange(0, last + 1, 10)
    noise = np.random.default_rng(1).standard_normal(len(at))
    ms = np.where(at % 250 == 0, 1800.0, 12.0 + 0.5 * noise)
    ms[0] = 32_000.0
    fall = np.exp(-at / 150)
    evals = [
        LoggedEvaluation(k, 0, val_loss=1.3 + 3 * float(np.exp(-k / 150)) + k / 5000, train_loss=1.0)
        for k in range(0, last + 1, 250)
    ]
    mfu = np.where(at == 0, np.nan, 30 + 0.3 * noise)
    settings: dict[str, ConfigValue] = {
        "eval_interval": 250,
        "log_interval": 10,
        "out_dir": "out",
        "max_iters": last,
    }
    steps = make_columns(at.tolist(), ms=ms, loss=1.0 + 3.3 * fall + 0.03 * noise, mfu=mfu)
    return bare_run(steps, *evals, setup=LoggedSetup(settings=settings))


def glassgpt_run() -> RunLog:
    """With everything that a journal has: a ledger, a resume, standard errors, choices with reasons."""
    at = np.arange(10, 3001, 10)
    noise = np.random.default_rng(2).standard_normal(len(at))
    steps = make_columns(
        at.tolist(),
        segment=(at > 1500).astype(float),
        ms=45 + noise,
        loss=3 + 7 * np.exp(-at / 200) + 0.05 * noise,
        mfu=41 + 0.4 * noise,
        lr=6e-4 * np.minimum(at / 200, 1),
        grad_norm=np.exp(0.3 * noise),
        tokens_per_s=5e5 + 1e3 * noise,
        memory_bytes=(9 + 0.1 * noise) * 2**30,
    )
    evals = [
        LoggedEvaluation(k, int(k > 1500), 3.05 + 7 * float(np.exp(-k / 200)), 3.0, ms=900.0, stderr=0.02)
        for k in range(0, 3001, 250)
    ]
    choices = [{"name": "dtype", "value": "bfloat16", "reason": "compute capability 9.0"}]
    setup = LoggedSetup(
        settings={"dtype": "auto", "grad_clip": 1.0},
        device_name="NVIDIA H200",
        machine={"choices": choices, "versions": {"torch": "2.13.0"}},
    )
    return bare_run(
        steps,
        *evals,
        name="runs/gpt2_124m",
        trainer=GLASSGPT,
        setup=setup,
        segments=(LoggedProcess(True), LoggedProcess(True, resumed=True, first_iteration=1500)),
        ledger={"startup": 9.0, "compile": 30.0, "data": 0.5, "train": 135.0, "eval": 12.0, "other": 0.7},
    )


def disable_translations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layout and direction of a language, whatever state its translation is in."""
    english = i18n._catalogue("en")
    monkeypatch.setattr(i18n, "_catalogue", lambda language: english)
