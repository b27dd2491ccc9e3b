"""Sampling: runs sampling.py, and turns its JSON line into rows."""

from __future__ import annotations

import json
import sys
from typing import Any

from bench.context import BenchContext
from bench.glass import ROOT
from bench.results import Result
from bench.watch import cache_environment, run_timed


def sampling(ctx: BenchContext) -> list[Result]:
    """Sampling 500 tokens with GPT-2 124M, one sample and eight at a time."""
    flags = {
        "nanogpt": ctx.nanogpt.root,
        "device": ctx.device_type,
        "rounds": ctx.options.rounds,
        "tokens": ctx.options.updates or 500,
    }
    command = [sys.executable, str(ROOT / "bench" / "sampling.py")]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    watched = run_timed(command, ROOT, cache_environment(ctx.fresh_dir("caches")))
    return sampling_results(ctx, json.loads(watched.lines[-1].text))


def sampling_results(ctx: BenchContext, document: dict[str, Any]) -> list[Result]:
    return [
        ctx.make_result(
            f"sampling-{batch}",
            "tokens/s",
            nanogpt=found["rounds"]["nanogpt"],
            glassgpt=found["rounds"]["glassgpt"],
            values=found["ratios"],
            details={
                "tokens": document["tokens"],
                "dtype": document["dtype"],
                "later_texts": found["later_texts"],
                "later_ratios": found["later_ratios"],
            },
        )
        for batch, found in document["batches"].items()
    ]
