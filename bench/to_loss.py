"""The same loss in less time: from the start of the process, caches cold.

nanoGPT's time is when it began to write its best checkpoint, ours that of the whole command. The loss of both
is the evaluator's. All seeds must arrive; the median counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import glass, peers
from bench.context import BenchContext
from bench.glass import GlassRun
from bench.peers import Flags, PeerRun
from bench.results import LossByContext, Result, full_context_loss, latest
from bench.speed import (
    GPT2_SETTINGS,
    README_CPU_SETTINGS,
    SHAKESPEARE_CONFIG,
    shakespeare_settings,
)

SHAKESPEARE_TARGET_LOSS = 1.4697  # nanoGPT's best checkpoint of shakespeare_char
CPU_TARGET_LOSS = 1.8982  # nanoGPT's README run for a CPU
LEARNING_RATES = (6e-4, 1.2e-3, 2.4e-3)
NANOGPT_STEP_MS = 125.0  # GPT-2 124M on an H200, if nothing was measured yet


@dataclass(frozen=True)
class NanoGptBest:
    """What nanoGPT got to, and when."""

    losses: LossByContext
    at_s: float
    details: dict[str, Any]


def find_nanogpt_best(ctx: BenchContext, run: PeerRun, data: Path, **details: Any) -> NanoGptBest:
    evaluated = [(one.number, one.val_loss) for one in peers.evaluations(run.output.lines)]
    loss = ctx.score_nanogpt(run, data)
    ctx.log(f"nanoGPT was at {loss} after {run.best_at_s:.1f} s")
    return NanoGptBest(loss, run.best_at_s, details | {"nanogpt_evaluations": evaluated})


def time_to_loss_result(
    ctx: BenchContext,
    row: str,
    theirs: NanoGptBest,
    runs: list[GlassRun],
    data: Path,
    preset: str,
    context: int,
    target: float | None,
) -> Result:
    """`target`: a loss known from before; nanoGPT's own in this very command counts if it is lower."""
    known = [full_context_loss(theirs.losses), *([] if target is None else [target])]
    goal = min(known) if ctx.options.target is None else ctx.options.target
    losses = [ctx.score_glass(run, data, context) for run in runs]
    ctx.log(f"target {goal:.4f}; GlassGPT {losses}")
    late = [
        full_context_loss(loss) for loss in losses if not full_context_loss(loss) <= goal
    ]  # nor is NaN an arrival
    walls = [run.wall_s for run in runs]
    at_baseline = [loss.get(context, full_context_loss(loss)) for loss in losses]
    return ctx.make_result(
        row,
        "s",
        nanogpt=[theirs.at_s],
        glassgpt=walls,
        values=[theirs.at_s / wall for wall in walls],
        nanogpt_losses=[theirs.losses],
        glassgpt_losses=losses,
        objection=f"{len(late)} of {len(runs)} seeds did not reach {goal:.4f}: {late}" if late else "",
        details=theirs.details
        | {
            "target": goal,
            "preset": preset,
            "seeds": list(ctx.options.seeds),
            "at_the_baseline's_context": {"context": context, "losses": at_baseline},
            "all_arrived_there_too": all(loss <= goal for loss in at_baseline),
            "overhead": {preset: max(glass.overhead_share(run) for run in runs)},
            "ledgers": [run.ledger for run in runs],
            "forecasts": [run.forecast for run in runs],
        },
    )


def run_preset(ctx: BenchContext, preset: str, data: Path, seed: int) -> GlassRun:
    """Caches cold, nothing told but the seed: the preset is fixed."""
    return ctx.run_glass(preset, data, ctx.fresh_dir("caches"), {"seed": seed})


def shakespeare_to_loss(ctx: BenchContext) -> list[Result]:
    """shakespeare_char on a GPU: wall clock to nanoGPT's best loss."""
    data, preset = ctx.shakespeare, ctx.options.preset or "shakespeare_char_fast"
    return [
        race_to_loss(
            ctx,
            "shakespeare-to-loss",
            data,
            preset,
            256,
            SHAKESPEARE_TARGET_LOSS,
            shakespeare_settings(ctx),
        )
    ]


def cpu_to_loss(ctx: BenchContext) -> list[Result]:
    """The CPU command of nanoGPT's README: wall clock to the loss it ends at."""
    data, preset = ctx.shakespeare, ctx.options.preset or "shakespeare_char_cpu_fast"
    settings = {**README_CPU_SETTINGS, "max_iters": 2000, **shakespeare_settings(ctx)}
    return [race_to_loss(ctx, "cpu-to-loss", data, preset, 64, CPU_TARGET_LOSS, settings)]


def race_to_loss(
    ctx: BenchContext, row: str, data: Path, preset: str, context: int, target: float, settings: Flags
) -> Result:
    """One of ours, nanoGPT, then the other seeds: a machine that drifts does so for both."""
    first, *others = ctx.options.seeds
    runs = [run_preset(ctx, preset, data, first)]
    # Its schedule does not depend on where it is stopped; past its best there is nothing to wait for.
    enough = partial(peers.is_past_best, patience=ctx.options.patience)
    peer = ctx.run_nanogpt(ctx.fresh_dir("caches"), settings, SHAKESPEARE_CONFIG, enough=enough)
    runs += [run_preset(ctx, preset, data, seed) for seed in others]
    theirs = find_nanogpt_best(ctx, peer, data)
    return time_to_loss_result(
        ctx, row, theirs, runs, data, preset, context, None if ctx.options.tiny else target
    )


# --- GPT-2 124M on mdn ---


def mdn_rates(ctx: BenchContext) -> list[Result]:
    """Which of three learning rates is nanoGPT's best on mdn, in so many seconds of updates."""
    tried = [nanogpt_on_mdn(ctx, rate) for rate in ctx.options.rates or LEARNING_RATES]
    losses = [one.losses for one in tried]
    details = {"rates": list(ctx.options.rates or LEARNING_RATES), "runs": [one.details for one in tried]}
    seconds = [one.at_s for one in tried]
    return [
        ctx.make_result("mdn-rates", "s", nanogpt=seconds, glassgpt=[],
                      values=[min(map(full_context_loss, losses))],
                      nanogpt_losses=losses, details=details)
    ]  # fmt: skip


def best_learning_rates(ctx: BenchContext) -> Sequence[float]:
    """The best that `mdn-rates` found; or all of them, if nobody looked."""
    found = latest(ctx.options.out, "mdn-rates", ctx.device_type)
    if ctx.options.rates or found is None:
        return ctx.options.rates or LEARNING_RATES
    pairs = zip(found.nanogpt_losses, found.details["rates"], strict=True)
    return (min((full_context_loss(losses), rate) for losses, rate in pairs)[1],)


def updates_that_fit(ctx: BenchContext) -> int:
    """In the seconds that nanoGPT is given, at its own speed as measured, evaluations not counted."""
    step_ms = ctx.options.step_ms
    if step_ms is None:
        found = latest(ctx.options.out, "gpt2-speed", ctx.device_type)
        tokens = ctx.options.batch * 1024
        step_ms = 1000 * tokens / max(found.nanogpt) if found else NANOGPT_STEP_MS
    return max(8, int(1000 * ctx.options.seconds / step_ms))


def nanogpt_on_mdn(ctx: BenchContext, rate: float) -> NanoGptBest:
    """Warm-up and decay fitted to the time it has. It looks at its loss four times, and keeps the best."""
    updates = updates_that_fit(ctx)
    data = ctx.mdn
    settings = GPT2_SETTINGS | {
        "dataset": "mdn",
        "batch_size": ctx.options.batch,
        "learning_rate": rate,
        "min_lr": rate / 10,
        "max_iters": updates,
        "lr_decay_iters": updates,
        "warmup_iters": max(1, updates // 10),
        "eval_interval": max(1, updates // 4),
        "eval_iters": 10,
        "always_save_checkpoint": False,
        "log_interval": 1 if ctx.options.tiny else 10,
    }
    # It evaluates at multiples of the interval: the last one must be the end.
    settings["max_iters"] = 4 * settings["eval_interval"]
    run = ctx.run_nanogpt(ctx.fresh_dir("caches"), settings)
    steps_s = peers.iterations_s(run.output.lines)
    return find_nanogpt_best(ctx, run, data, rate=rate, updates=settings["max_iters"], steps_s=steps_s)


def mdn_to_loss(ctx: BenchContext) -> list[Result]:
    """GPT-2 124M on mdn: wall clock to the lowest loss that nanoGPT reaches in 90 s of updates."""
    data, preset = ctx.mdn, ctx.options.preset or "gpt2_124m_fast"
    first, *others = ctx.options.seeds
    runs = [run_preset(ctx, preset, data, first)]
    tried = [nanogpt_on_mdn(ctx, rate) for rate in best_learning_rates(ctx)]
    theirs = min(tried, key=lambda one: full_context_loss(one.losses))
    runs += [run_preset(ctx, preset, data, seed) for seed in others]
    return [time_to_loss_result(ctx, "mdn-to-loss", theirs, runs, data, preset, 1024, None)]
