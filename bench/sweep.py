"""How cost grows: tokens/s and peak memory against model size, context and micro-batch.

Each point is a few real updates of the trainer's own learner, on random tokens, in this process. What does
not fit the card's memory is recorded as that. By default nothing is compiled: compiling each point would take
ten times as long as the sweep.
"""

from __future__ import annotations

import dataclasses
import gc
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.context import BenchContext
from bench.results import Result
from glassgpt.config import TrainConfig
from glassgpt.record.ledger import Ledger
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.run_request import request_from_config
from glassgpt.training.setup import set_up
from glassgpt.training.train_state import TrainSetup

VOCABULARY = 50304
SIZES = ((6, 3, 192), (6, 6, 384), (12, 12, 768), (24, 16, 1024), (36, 20, 1280), (48, 25, 1600))
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
TINY_SIZES = ((1, 1, 32), (2, 2, 64))
_WARM_UP_UPDATES = (
    5  # three eager, one that captures a CUDA graph where kernel launches dominate, one that replays it
)


@dataclass(frozen=True)
class SweepPoint:
    """None: it did not fit."""

    axis: str  # "size", "context" or "batch"
    parameters: int
    context: int
    batch: int
    tokens_per_s: float | None
    peak_bytes: int | None


def sweep_points(tiny: bool) -> Iterator[tuple[str, tuple[int, int, int], int, int]]:
    """Axis, (layers, heads, channels), context, micro-batch: one of them grows at a time."""
    middle = TINY_SIZES[1] if tiny else SIZES[2]
    for size in TINY_SIZES if tiny else SIZES:
        yield "size", size, 32 if tiny else 1024, 4
    for context in (16, 32) if tiny else CONTEXTS:
        yield "context", middle, context, 4
    for batch in (1, 2) if tiny else BATCHES:
        yield "batch", middle, 32 if tiny else 1024, batch


def random_data(folder: Path) -> Path:
    """In nanoGPT's layout, which needs no preparing; every id is below GPT-2's 50257."""
    draw = np.random.default_rng(0)
    for split, tokens in (("train", 600_000), ("val", 20_000)):
        draw.integers(0, 50257, tokens, dtype=np.uint16).tofile(folder / f"{split}.bin")
    return folder


def sweep(ctx: BenchContext) -> list[Result]:
    """Tokens/s and peak memory against model size, context and micro-batch."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        data = random_data(Path(scratch))
        for axis, (layers, heads, width), context, batch in sweep_points(ctx.options.tiny):
            config = TrainConfig(
                data_dir=str(data), n_layer=layers, n_head=heads, n_embd=width, block_size=context,
                batch_size=batch, gradient_accumulation_steps=1, max_iters=1000, eval_tokens=context,
                device=ctx.options.device, compile=ctx.options.compile, probe_seconds=0,  # type: ignore[arg-type]
            )  # fmt: skip
            point = measure_point(axis, config, ctx.fresh_dir("sweep"), ctx.options.updates or 5)
            rate = "does not fit" if point.tokens_per_s is None else f"{point.tokens_per_s:,.0f} tokens/s"
            ctx.log(f"{axis:<8}{point.parameters / 1e6:8,.0f}M  {context:5} x {batch:<3} {rate}")
            found.append(point)
    rates = [point.tokens_per_s for point in found if point.tokens_per_s is not None]
    details = {"points": [dataclasses.asdict(point) for point in found], "compile": ctx.options.compile}
    return [
        ctx.make_result("sweep", "tokens/s", nanogpt=[], glassgpt=rates, values=[max(rates)], details=details)
    ]


def measure_point(axis: str, config: TrainConfig, folder: Path, updates: int) -> SweepPoint:
    rate = peak = None
    parameters = 0
    _free_memory(config.device)
    try:
        with StopSignals() as stop, ExitStack() as at_the_end:
            run, _ = set_up(
                request_from_config(dataclasses.replace(config, out_dir=str(folder))), (), Ledger(), stop
            )
            for part in (run.run_dir_handle, run.sink, run.saver):
                at_the_end.callback(part.close)
            parameters = run.learner.model.parameter_count()
            rate, peak = timed_updates(run, updates)
    except torch.OutOfMemoryError:
        pass
    return SweepPoint(axis, parameters, config.block_size, config.batch_size or 0, rate, peak)


def timed_updates(run: TrainSetup, updates: int) -> tuple[float, int | None]:
    """Tokens/s when all is warm, and the most memory that was in use."""
    started = 0.0
    for number in range(_WARM_UP_UPDATES + updates):
        if number == _WARM_UP_UPDATES:
            run.learner.take_losses_and_norms()  # waits for the device
            started = time.perf_counter()
        run.learner.update(number, number * run.batch_plan.sequences)
    run.learner.take_losses_and_norms()
    seconds = time.perf_counter() - started
    cuda = run.execution.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(run.execution.device) if cuda else None
    return updates * run.batch_plan.tokens / seconds, peak


def _free_memory(device: str) -> None:
    """Free what the previous point left on the device."""
    gc.collect()
    if device.startswith("cuda"):
        torch.compiler.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def points_from_result(result: Result) -> list[SweepPoint]:
    documents: list[dict[str, Any]] = result.details["points"]
    return [SweepPoint(**document) for document in documents]
