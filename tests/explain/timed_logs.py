"""Runs for the rules about time and speed: a healthy one, and any at all."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from run_logs import NANOGPT, make_run_log, make_steps

from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.log_numbers import clamped
from glassgpt.runs.run_log import LoggedCheckpoint, LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog
from glassgpt.runs.trainers import BY_ID

LITGPT = BY_ID["litgpt"]
GLASSGPT = BY_ID["glassgpt"]


def analyse(run_log: RunLog) -> Analysis:
    return Analysis(run_log)


def require_finding(finding: Finding | None) -> Finding:
    assert finding is not None
    return finding


def even_run(count: int = 200, interval: int = 10, ms: float = 100.0, noise: float = 0.01) -> RunLog:
    """A healthy run without evaluations: a slow first iteration, then only small noise."""
    times = ms * (1 + noise * np.random.default_rng(0).standard_normal(count))
    times[0] = 2 * ms
    return make_run_log(make_steps(range(0, count * interval, interval), times.tolist()))


# What RunBuilder lets through: no negative time, none above 1e15 ms.
times = st.one_of(st.floats(1.0, 1e4), st.sampled_from([0.0, 1e-3, 1e15, math.nan, 100.0, 100.0]))
# Wall times and ledgers come from records, whose numbers may be anything.
any_seconds = st.one_of(times, st.sampled_from([1e-300, 1e308, -5.0, math.inf]))


@st.composite
def any_timed_run(draw: st.DrawFn) -> RunLog:
    count = draw(st.integers(0, 60))
    segments = draw(st.integers(1, 3))
    iterations = draw(st.lists(st.integers(0, 500), min_size=count, max_size=count))
    column = st.lists(times, min_size=count, max_size=count)
    steps = make_steps(
        sorted(iterations) if draw(st.booleans()) else iterations,
        draw(column),
        segment=sorted(draw(st.lists(st.integers(0, segments - 1), min_size=count, max_size=count))),
        mfu=draw(column),
    )
    places = st.tuples(st.sampled_from([None, *iterations]), st.integers(0, segments - 1))
    whole = st.one_of(st.none(), st.integers(-1, 10**6), st.booleans(), st.just("text"))
    names = (
        "eval_interval",
        "eval_iters",
        "max_iters",
        "n_layer",
        "n_embd",
        "block_size",
        "batch_size",
        "vocab_size",
    )
    settings = {name: value for name in names if (value := draw(whole)) is not None}
    amount = st.one_of(st.none(), st.integers(1, 10**9))
    phases = st.dictionaries(st.sampled_from(["startup", "compile", "train", "eval"]), any_seconds)
    run_log = RunLog(
        trainer=draw(
            st.sampled_from([NANOGPT, LITGPT, GLASSGPT, replace(NANOGPT, step_time_includes_eval=False)])
        ),
        name="run.log",
        steps=steps,
        evals=tuple(LoggedEvaluation(at, part, 1.0) for at, part in draw(st.lists(places, max_size=8))),
        checkpoints=tuple(LoggedCheckpoint(at, part) for at, part in draw(st.lists(places, max_size=4))),
        segments=tuple(LoggedProcess(has_startup=draw(st.booleans())) for _ in range(segments)),
        setup=LoggedSetup(
            settings=settings,
            parameters=draw(amount),
            tokens_per_iteration=draw(amount),
            world_size=draw(st.one_of(st.none(), st.integers(1, 8))),
            wall_s=draw(st.one_of(st.none(), any_seconds)),
            device_name=draw(st.sampled_from([None, "RTX 4090", "toaster"])),
        ),
        ledger=draw(st.one_of(st.none(), phases)),
        has_iteration_numbers=draw(st.booleans()),
    )
    return clamped(run_log)
