"""The same loss in less time: from the start of the process, caches cold.

nanoGPT's time is when it began to write its best checkpoint, ours that of the whole command. The loss of both
is the evaluator's. All seeds must arrive; the median counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import glass
from bench import peers
from bench.glass import GlassRun
from bench.ground import BenchContext
from bench.peers import Flags
from bench.peers import PeerRun
from bench.results import LossByContext
from bench.results import Result
from bench.results import full_context_loss
from bench.results import latest
from bench.speed import GPT2_SETTINGS
from bench.speed import README_CPU_SETTINGS
from bench.speed import SHAKESPEARE_CONFIG
from bench.speed import compare_whole_commands
from bench.speed import shakespeare_settings

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


def find_nanogpt_best(ground: BenchContext, run: PeerRun, data: Path, **details: Any) -> NanoGptBest:
    evaluated = [(one.number, one.val_loss) for one in peers.evaluations(run.output.lines)]
    loss = ground.score_nanogpt(run, data)
    ground.log(f"nanoGPT was at {loss} after {run.best_at_s:.1f} s")
    return NanoGptBest(loss, run.best_at_s, details | {"nanogpt_evaluations": evaluated})


def time_to_loss_result(
    ground: BenchContext,
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
    goal = min(known) if ground.options.target is None else ground.options.target
    losses = [ground.score_glass(run, data, context) for run in runs]
    ground.log(f"target {goal:.4f}; GlassGPT {losses}")
    late = [
        full_context_loss(loss) for loss in losses if not full_context_loss(loss) <= goal
    ]  # nor is NaN an arrival
    walls = [run.wall_s for run in runs]
    at_baseline = [loss.get(context, full_context_loss(loss)) for loss in losses]
    return ground.make_result(
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
            "seeds": list(ground.options.seeds),
            "at_the_baseline's_context": {"context": context, "losses": at_baseline},
            "all_arrived_there_too": all(loss <= goal for loss in at_baseline),
            "overhead": {preset: max(glass.overhead_share(run) for run in runs)},
            "ledgers": [run.ledger for run in runs],
            "forecasts": [run.forecast for run in runs],
        },
    )


def run_preset(ground: BenchContext, preset: str, data: Path, seed: int) -> GlassRun:
    """Caches cold, nothing told but the seed: the preset is fixed."""
    return ground.run_glass(preset, data, ground.fresh_dir("caches"), {"seed": seed})


def shakespeare_to_loss(ground: BenchContext) -> list[Result]:
    """shakespeare_char on a GPU: wall clock to nanoGPT's best loss."""
    data, preset = ground.shakespeare, ground.options.preset or "shakespeare_char_fast"
    return [
        race_to_loss(
            ground,
            "shakespeare-to-loss",
            data,
            preset,
            256,
            SHAKESPEARE_TARGET_LOSS,
            shakespeare_settings(ground),
        )
    ]


def shakespeare(ground: BenchContext) -> list[Result]:
    """Both at once, with one run of nanoGPT's: the whole command, and the wall clock to its best loss."""
    data, preset = ground.shakespeare, ground.options.preset or "shakespeare_char_fast"
    first, *others = ground.options.seeds
    settings = shakespeare_settings(ground)
    runs = [run_preset(ground, preset, data, first)]
    ours = ground.run_glass("shakespeare_char", data, ground.fresh_dir("caches"), settings)
    theirs = ground.run_nanogpt(ground.fresh_dir("caches"), settings, SHAKESPEARE_CONFIG)
    runs += [run_preset(ground, preset, data, seed) for seed in others]
    target = None if ground.options.tiny else SHAKESPEARE_TARGET_LOSS
    best = find_nanogpt_best(ground, theirs, data)
    return [
        compare_whole_commands(ground, "shakespeare-whole", theirs, ours, data),
        time_to_loss_result(ground, "shakespeare-to-loss", best, runs, data, preset, 256, target),
    ]


def cpu_to_loss(ground: BenchContext) -> list[Result]:
    """The CPU command of nanoGPT's README: wall clock to the loss it ends at."""
    data, preset = ground.shakespeare, ground.options.preset or "shakespeare_char_cpu_fast"
    settings = {**README_CPU_SETTINGS, "max_iters": 2000, **shakespeare_settings(ground)}
    return [race_to_loss(ground, "cpu-to-loss", data, preset, 64, CPU_TARGET_LOSS, settings)]


def race_to_loss(
    ground: BenchContext, row: str, data: Path, preset: str, context: int, target: float, settings: Flags
) -> Result:
    """One of ours, nanoGPT, then the other seeds: a machine that drifts does so for both."""
    first, *others = ground.options.seeds
    runs = [run_preset(ground, preset, data, first)]
    # Its schedule does not depend on where it is stopped; past its best there is nothing to wait for.
    enough = partial(peers.is_past_best, patience=ground.options.patience)
    peer = ground.run_nanogpt(ground.fresh_dir("caches"), settings, SHAKESPEARE_CONFIG, enough=enough)
    runs += [run_preset(ground, preset, data, seed) for seed in others]
    theirs = find_nanogpt_best(ground, peer, data)
    return time_to_loss_result(
        ground, row, theirs, runs, data, preset, context, None if ground.options.tiny else target
    )


# --- GPT-2 124M on mdn ---


def mdn_rates(ground: BenchContext) -> list[Result]:
    """Which of three learning rates is nanoGPT's best on mdn, in so many seconds of updates."""
    tried = [nanogpt_on_mdn(ground, rate) for rate in ground.options.rates or LEARNING_RATES]
    losses = [one.losses for one in tried]
    details = {"rates": list(ground.options.rates or LEARNING_RATES), "runs": [one.details for one in tried]}
    seconds = [one.at_s for one in tried]
    return [
        ground.make_result("mdn-rates", "s", nanogpt=seconds, glassgpt=[], values=[min(map(full_context_loss, losses))],
                      nanogpt_losses=losses, details=details)
    ]  # fmt: skip


def best_learning_rates(ground: BenchContext) -> tuple[float, ...]:
    """The best that `mdn-rates` found; or all of them, if nobody looked."""
    found = latest(ground.options.out, "mdn-rates", ground.device_type)
    if ground.options.rates or found is None:
        return ground.options.rates or LEARNING_RATES
    pairs = zip(found.nanogpt_losses, found.details["rates"], strict=True)
    return (min((full_context_loss(losses), rate) for losses, rate in pairs)[1],)


def updates_that_fit(ground: BenchContext) -> int:
    """In the seconds that nanoGPT is given, at its own speed as measured, evaluations not counted."""
    step_ms = ground.options.step_ms
    if step_ms is None:
        found = latest(ground.options.out, "gpt2-speed", ground.device_type)
        tokens = ground.options.batch * 1024
        step_ms = 1000 * tokens / max(found.nanogpt) if found else NANOGPT_STEP_MS
    return max(8, int(1000 * ground.options.seconds / step_ms))


def nanogpt_on_mdn(ground: BenchContext, rate: float) -> NanoGptBest:
    """Warm-up and decay fitted to the time it has. It looks at its loss four times, and keeps the best."""
    updates = updates_that_fit(ground)
    data = ground.mdn
    settings = GPT2_SETTINGS | {
        "dataset": "mdn",
        "batch_size": ground.options.batch,
        "learning_rate": rate,
        "min_lr": rate / 10,
        "max_iters": updates,
        "lr_decay_iters": updates,
        "warmup_iters": max(1, updates // 10),
        "eval_interval": max(1, updates // 4),
        "eval_iters": 10,
        "always_save_checkpoint": False,
        "log_interval": 1 if ground.options.tiny else 10,
    }
    # It evaluates at multiples of the interval: the last one must be the end.
    settings["max_iters"] = 4 * settings["eval_interval"]
    run = ground.run_nanogpt(ground.fresh_dir("caches"), settings)
    steps_s = peers.iterations_s(run.output.lines)
    return find_nanogpt_best(ground, run, data, rate=rate, updates=settings["max_iters"], steps_s=steps_s)


def mdn_to_loss(ground: BenchContext) -> list[Result]:
    """GPT-2 124M on mdn: wall clock to the lowest loss that nanoGPT reaches in 90 s of updates."""
    data, preset = ground.mdn, ground.options.preset or "gpt2_124m_fast"
    first, *others = ground.options.seeds
    runs = [run_preset(ground, preset, data, first)]
    tried = [nanogpt_on_mdn(ground, rate) for rate in best_learning_rates(ground)]
    theirs = min(tried, key=lambda one: full_context_loss(one.losses))
    runs += [run_preset(ground, preset, data, seed) for seed in others]
    return [time_to_loss_result(ground, "mdn-to-loss", theirs, runs, data, preset, 1024, None)]
