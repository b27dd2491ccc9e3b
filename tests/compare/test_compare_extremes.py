"""Absurd values in logs (infinite times, losses of 1e308, negative sizes) neither fail nor warn."""

from __future__ import annotations

import io
import json
import math
import warnings
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from run_logs import NANOGPT, make_run_log, make_steps

from glassgpt.compare import Comparison, compare
from glassgpt.config import ConfigValue
from glassgpt.record import journal
from glassgpt.runs.log_numbers import clamped
from glassgpt.runs.run_log import LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog
from glassgpt.runs.trainers import BY_ID
from glassgpt.show.terminal.compare_view import print_comparison

_EXTREMES = st.sampled_from(
    [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-308, 0.0, -1.0, 1.0, 50.0, 4.2, 1e18]
)
_SIZES = st.sampled_from([-5, 0, 1, 2, 12, 768, 10**9, 10**18, 10**30, None, "x", True, 0.5, 1e308])
_LLMC = replace(BY_ID["llm.c"], mfu_peak=312e12)
_GLASSGPT = BY_ID["glassgpt"]
_NAMES = ("n_layer", "n_embd", "block_size", "batch_size", "gradient_accumulation_steps", "vocab_size",
          "eval_iters", "eval_tokens", "batch_tokens", "max_iters", "learning_rate")  # fmt: skip


@st.composite
def run_logs(draw: st.DrawFn) -> RunLog:
    count = draw(st.integers(0, 30))
    columns = {
        name: draw(st.lists(_EXTREMES, min_size=count, max_size=count))
        for name in ("ms", "loss", "mfu", "tokens_per_s")
    }
    second = draw(st.integers(0, count))  # row where a second process starts, resumed or not
    begin = draw(st.sampled_from([0, 1, 2, 10**15]))
    iterations = [*range(0, 10 * second, 10), *(begin + 10 * i for i in range(count - second))]
    segment = [0] * second + [1] * (count - second)
    steps = make_steps(iterations, segment=segment, **columns)
    evals = tuple(
        LoggedEvaluation(
            draw(st.sampled_from([0, 10, 50, 200, 10**15, None])),
            draw(st.integers(0, 1)),
            draw(st.one_of(st.none(), _EXTREMES)),
            draw(st.one_of(st.none(), _EXTREMES)),
            draw(st.one_of(st.none(), _EXTREMES)),
            draw(st.one_of(st.none(), _EXTREMES)),
            draw(st.sampled_from([None, 0, -1, 10**6])),
        )
        for _ in range(draw(st.integers(0, 12)))
    )
    chosen: dict[str, ConfigValue] = {name: draw(_SIZES) for name in _NAMES}
    chosen |= {
        name: draw(st.one_of(_SIZES, st.just(10**400))) for name in ("vocab_size", "eval_iters", "seed")
    }
    setup = LoggedSetup(
        settings=chosen,
        parameters=draw(st.sampled_from([None, 0, -1, 10**7, 10**25])),
        trained_parameters=draw(st.sampled_from([None, 10**7, 10**25])),
        tokens_per_iteration=draw(st.sampled_from([None, -1, 16_384, 10**20])),
        flops_per_token=draw(st.one_of(st.none(), _EXTREMES)),
        peak_flops=draw(st.one_of(st.none(), _EXTREMES)),
        world_size=draw(st.sampled_from([None, -1, 0, 8, 10**20])),
        bytes_per_token=draw(st.one_of(st.none(), _EXTREMES)),
    )
    run_log = make_run_log(
        steps,
        segments=(LoggedProcess(True, False, 0), LoggedProcess(True, draw(st.booleans()), begin)),
        setup=setup,
    )
    trainer = draw(st.sampled_from([NANOGPT, _LLMC, _GLASSGPT]))
    return clamped(replace(run_log, evals=evals, trainer=trainer, has_iteration_numbers=draw(st.booleans())))


def compare_and_print(*runs: RunLog) -> Comparison:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        comparison = compare(runs)
        json.dumps(journal.nonfinite_to_words(comparison.as_dict()), allow_nan=False)
        print_comparison(comparison, Console(file=io.StringIO(), width=100))
    return comparison


@settings(max_examples=80, deadline=None)
@given(run_logs(), run_logs())
def test_any_values_compare_without_a_warning(first: RunLog, other: RunLog) -> None:
    compare_and_print(first, other)
