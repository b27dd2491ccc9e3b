"""What a run does besides training: its share of the time, and whether it shows in the updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import glass
from bench.context import BenchContext
from bench.results import Result, read_latest
from bench.speed import gpt2_settings
from glassgpt.config import TrainConfig
from glassgpt.recipe import find_recipe

# Presets by device. The long ones take days, so their share is projected from the cost of each part.
MEASURED_PRESETS = {
    "cuda": ("shakespeare_char", "shakespeare_char_fast", "gpt2_124m_fast"),
    "cpu": ("shakespeare_char_cpu_fast",),
}
PROJECTED_PRESETS = {"cuda": ("gpt2_124m", "fineweb_edu_12gb"), "cpu": ()}


def dataset_for(ctx: BenchContext, preset: str) -> Path:
    """mdn replaces datasets that are not available: the cost of a token does not depend on the text."""
    dataset = str(find_recipe(preset).settings.get("dataset", ""))
    return ctx.shakespeare if dataset == "shakespeare_char" else ctx.mdn


def recorded_shares(ctx: BenchContext) -> dict[str, float]:
    """From whole runs that this or other rows measured already; the latest counts."""
    shares: dict[str, float] = {}
    for result in read_latest(ctx.options.out):
        if result.device == ctx.device_type:
            shares |= result.details.get("measured" if result.row == "overhead" else "overhead", {})
    return shares


def measure_share(ctx: BenchContext, preset: str) -> float:
    run = ctx.run_glass(preset, dataset_for(ctx, preset), ctx.fresh_dir("caches"), {})
    ctx.log(", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in run.ledger.items()))
    return glass.overhead_share(run)


def project_share(ctx: BenchContext, preset: str) -> float:
    updates = ctx.options.updates or 12
    short = {"max_iters": updates, "eval_interval": updates // 3, "log_interval": 1, "warmup_iters": 1}
    caches = ctx.fresh_dir("caches")
    run = ctx.run_glass(
        preset, dataset_for(ctx, preset), caches, short | {"checkpoint_interval": updates // 3}
    )
    settings, usual = find_recipe(preset).settings, TrainConfig()
    names = ("eval_interval", "checkpoint_interval", "log_interval")
    return glass.project_overhead_share(
        run, {name: settings.get(name, getattr(usual, name)) for name in names}
    )


def overhead(ctx: BenchContext) -> list[Result]:
    """Evaluating, saving and logging: their share of the run, of every preset; the worst one counts."""
    asked = (ctx.options.preset,) if ctx.options.preset else MEASURED_PRESETS[ctx.device_type]
    known = {} if ctx.options.preset or ctx.options.tiny else recorded_shares(ctx)
    shares = {preset: known[preset] if preset in known else measure_share(ctx, preset) for preset in asked}
    projected = (
        {}
        if ctx.options.preset
        else {name: project_share(ctx, name) for name in PROJECTED_PRESETS[ctx.device_type]}
    )
    every = shares | projected
    for preset, share in every.items():
        ctx.log(f"{share:7.2%}  {preset}")
    details: dict[str, Any] = {"measured": shares, "projected": projected}
    return [
        ctx.make_result("overhead", "of the run", nanogpt=[], glassgpt=list(every.values()),
                      values=[max(every.values())], details=details)
    ]  # fmt: skip


def steadiness(ctx: BenchContext) -> list[Result]:
    """GPT-2 124M with evaluations and saves on, every update timed: the 99th percentile over the median."""
    updates = ctx.options.updates or 250
    often = {"log_interval": 1, "eval_interval": updates // 5, "eval_tokens": 65_536, "probe_seconds": 0}
    settings = gpt2_settings(ctx, updates) | often
    run = ctx.run_glass("gpt2_124m", ctx.mdn, ctx.fresh_dir("caches"), settings)
    ms = glass.update_times_ms(run, warm_up=min(20, updates // 4))
    p50, p99 = glass.percentile(ms, 50), glass.percentile(ms, 99)
    ctx.log(f"p50 {p50:.2f} ms, p99 {p99:.2f} ms of {len(ms)} updates")
    details = {"p50_ms": p50, "p99_ms": p99, "slowest_ms": max(ms), "updates": len(ms)}
    details |= {"evaluations": len(run.records_of("eval")), "saves": len(run.records_of("checkpoint"))}
    return [
        ctx.make_result(
            "steadiness", "ms", nanogpt=[], glassgpt=[p50, p99], values=[p99 / p50], details=details
        )
    ]
