"""Runs for the rules about losses, crashes and resumes: healthy, nanoGPT's README runs, any at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from run_logs import NANOGPT, make_run_log, make_steps

from glassgpt.config import ConfigValue
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.log_numbers import MAX_LOSS, clamped
from glassgpt.runs.run_log import (
    LogEvent,
    LoggedCheckpoint,
    LoggedEvaluation,
    LoggedProcess,
    LoggedSetup,
    RunLog,
    Steps,
)
from glassgpt.runs.trainers import BY_ID

GLASSGPT = BY_ID["glassgpt"]
HF = BY_ID["hf-trainer"]

# nanoGPT's README runs: what they printed at each evaluation, every 250 iterations.
GPU_TRAIN = (
    4.2874, 1.9846, 1.5199, 1.3577, 1.2702, 1.2030, 1.1505, 1.1002, 1.0524, 1.0066, 0.9580, 0.9098, 0.8630,
    0.8189, 0.7755, 0.7362, 0.7022, 0.6717, 0.6461, 0.6281, 0.6127,
)  # fmt: skip
GPU_VAL = (
    4.2823, 2.0796, 1.7192, 1.5811, 1.5193, 1.4913, 1.4712, 1.4576, 1.4763, 1.4889, 1.5000, 1.5096, 1.5249,
    1.5572, 1.5755, 1.6021, 1.6260, 1.6519, 1.6710, 1.6888, 1.7096,
)  # fmt: skip
CPU_TRAIN = (4.1676, 2.4293, 2.2732, 2.1338, 1.9714, 1.8756, 1.8557, 1.7790, 1.7648)
CPU_VAL = (4.1649, 2.4447, 2.3141, 2.1905, 2.0528, 2.0089, 1.9225, 1.8921, 1.8857)


def analyse(run_log: RunLog) -> Analysis:
    return Analysis(run_log)


def require_finding(finding: Finding | None) -> Finding:
    assert finding is not None
    assert finding.title
    assert not finding.title.endswith(".")
    assert finding.evidence
    return finding


def finding_text(finding: Finding | None) -> str:
    one = require_finding(finding)
    return f"{one.title}. {one.evidence} {one.explanation} {one.advice}"


def add_noise(values: Sequence[float], spread: float, seed: int = 0) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, spread, len(values))
    return [float(value) for value in np.asarray(values) + noise]


def falling_losses(count: int, first: float = 4.2, floor: float = 1.3, spread: float = 0.02) -> list[float]:
    """A training loss as it should be."""
    rows = np.arange(count)
    return add_noise((floor + (first - floor) * (1 + rows / 8) ** -0.7).tolist(), spread)


def readme_run(
    train: Sequence[float], val: Sequence[float], spread: float, **settings: ConfigValue
) -> RunLog:
    """Every 10th iteration logged, evaluated every 250; the losses lie between the evaluations'."""
    end = 250 * (len(val) - 1)
    at = range(0, end + 1, 10)
    evals = [(250 * i, train[i], val[i]) for i in range(len(val))]
    loss = np.interp(at, [at for at, _, _ in evals], train)
    ms = [2200.0 if i % 250 == 0 else 13.0 for i in at]
    known = {
        "max_iters": end,
        "lr_decay_iters": end,
        "learning_rate": 1e-3,
        "min_lr": 1e-4,
        "warmup_iters": 100,
    }
    best = np.minimum.accumulate(val)
    saves = [250 * i for i in range(1, len(val)) if val[i] == best[i]]
    steps = make_steps(list(at), ms, add_noise(loss.tolist(), spread))
    return make_run_log(steps, evals, saves, {"vocab_size": 65, **known, **settings})


def gpu_run(**settings: ConfigValue) -> RunLog:
    return readme_run(GPU_TRAIN, GPU_VAL, 0.014, eval_iters=200, always_save_checkpoint=False, **settings)


def cpu_run(**settings: ConfigValue) -> RunLog:
    return readme_run(CPU_TRAIN, CPU_VAL, 0.06, eval_iters=20, always_save_checkpoint=False, **settings)


def healthy_run() -> RunLog:
    """It learnt, and it stopped when there was little more to learn."""
    val = [4.17 if not at else 1.45 + 2.0 * math.exp(-at / 400) for at in range(0, 3001, 250)]
    train = [4.17 if not at else 1.40 + 2.0 * math.exp(-at / 400) for at in range(0, 3001, 250)]
    train[-5:] = [value - 0.004 * i for i, value in enumerate(train[-5:])]
    return readme_run(train, val, 0.01, eval_iters=200)


def split_run(
    run_log: RunLog, resumed_at: int, logged_until: int, **columns: Callable[[Steps], np.ndarray]
) -> RunLog:
    """The same run, killed at `logged_until` and resumed from the checkpoint of `resumed_at`."""
    steps = run_log.steps
    first, second = steps.iteration <= logged_until, steps.iteration >= resumed_at
    rows = np.concatenate([np.flatnonzero(first), np.flatnonzero(second)])
    segment = np.concatenate(
        [np.zeros(int(first.sum()), dtype=np.int64), np.ones(int(second.sum()), dtype=np.int64)]
    )
    names = ("iteration", "line", "loss", "has_loss", "ms", "mfu", "lr", "grad_norm", "tokens_per_s")
    joined = Steps(segment=segment, **{name: getattr(steps, name)[rows] for name in names})
    joined = replace(joined, **{name: make(joined) for name, make in columns.items()})
    early = [done for done in run_log.evals if (done.iteration or 0) <= logged_until]
    late = [replace(done, segment=1) for done in run_log.evals if (done.iteration or 0) >= resumed_at]
    processes = (LoggedProcess(True, False, 0), LoggedProcess(True, True, resumed_at))
    saves = tuple(
        replace(save, segment=int((save.iteration or 0) > resumed_at)) for save in run_log.checkpoints
    )
    return replace(run_log, steps=joined, evals=(*early, *late), segments=processes, checkpoints=saves)


# --- any run at all ---

# What RunBuilder lets through: no finite loss above MAX_LOSS, no time above 1e15 ms.
odd = st.sampled_from([0.0, -1.0, 1e-300, MAX_LOSS, -MAX_LOSS, math.nan, math.inf, -math.inf])
losses = st.one_of(st.floats(0.01, 12.0), st.floats(0.01, 12.0), odd)
SETTINGS = (
    "vocab_size", "eval_iters", "batch_size", "block_size", "n_layer", "n_embd", "learning_rate", "min_lr",
    "warmup_iters", "lr_decay_iters", "max_iters", "eval_interval", "gradient_accumulation_steps",
)  # fmt: skip
values: st.SearchStrategy[ConfigValue] = st.one_of(
    st.integers(-3, 10_000), st.floats(), st.just(1e308), st.none(), st.booleans(), st.just("auto")
)
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.79 GiB of which 1.00 "
    "GiB is free."
)
events = st.builds(
    LogEvent,
    st.sampled_from(
        ["traceback", "oom", "interrupt", "kill", "abort", "finish", "scaler-overflow", "warning"]
    ),
    st.sampled_from(
        [OOM, "KeyboardInterrupt", "out of memory", "", "tried to allocate 1.2.3 GiB", "… GiB free"]
    ),
    st.integers(1, 1000),
    st.one_of(st.none(), st.integers(-5, 5000)),
)


@st.composite
def any_run_log(draw: st.DrawFn) -> RunLog:
    count = draw(st.integers(0, 120))
    seed = draw(st.integers(0, 1000))
    chance = np.random.default_rng(seed)
    segments = draw(st.integers(1, 4))
    segment = np.sort(chance.integers(0, segments, count))
    gap = draw(st.sampled_from([1, 10]))
    iteration = np.arange(count) * gap - draw(st.sampled_from([0, 0, 5])) * segment * gap
    start = draw(st.sampled_from([0.0, 3.0, 10.0]))
    spread = draw(st.sampled_from([0.0, 0.01, 1.0]))
    loss = start * np.exp(-np.arange(count) / 30) + chance.normal(2, spread, count)
    for where, value in draw(st.lists(st.tuples(st.integers(0, 119), losses), max_size=8)):
        loss[where : where + 1] = value
    columns = {name: draw(st.lists(losses, min_size=count, max_size=count)) for name in ("lr", "grad_norm")}
    ms = draw(st.sampled_from([0.0, 100.0, 1e15, math.nan]))
    steps = make_steps(iteration.tolist(), ms, loss.tolist(), segment.tolist(), **columns)
    at = st.one_of(st.none(), st.integers(-1, 1300))
    evals = draw(
        st.lists(st.builds(LoggedEvaluation, at, st.integers(0, segments - 1), st.one_of(st.none(), losses),
                           st.one_of(st.none(), losses), stderr=st.one_of(st.none(), losses)), max_size=15)
    )  # fmt: skip
    saves = draw(st.lists(st.builds(LoggedCheckpoint, at, st.integers(0, segments - 1)), max_size=4))
    processes = [LoggedProcess(draw(st.booleans()), draw(st.booleans()), draw(at)) for _ in range(segments)]
    stated: Mapping[str, ConfigValue] = draw(st.dictionaries(st.sampled_from(SETTINGS), values, max_size=8))
    counts = st.one_of(st.none(), st.integers(1, 10**10))
    setup = LoggedSetup(
        stated,
        parameters=draw(counts),
        trained_parameters=draw(counts),
        tokens_per_iteration=draw(counts),
        planned_iterations=draw(counts),
    )
    run_log = replace(
        make_run_log(steps, events=draw(st.lists(events, max_size=3))),
        trainer=draw(st.sampled_from([NANOGPT, GLASSGPT, HF])),
        evals=tuple(evals),
        checkpoints=tuple(saves),
        segments=tuple(processes),
        setup=setup,
        live=draw(st.booleans()),
        has_iteration_numbers=draw(st.booleans()),
        event_counts=draw(st.sampled_from([{}, {"scaler-overflow": 3}, {"scaler-overflow": 10**6}])),
    )
    return clamped(run_log)
