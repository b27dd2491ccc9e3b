"""The same model, faster: step times of both trainers, and of whole commands.

A step time is the wall-clock time from one log line to the next, on both sides, without intervals that have
an evaluation; both sides have the same log_interval.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench import glass, peers
from bench.context import TINY_UPDATE_TOKENS, BenchContext
from bench.glass import GlassRun
from bench.peers import Flags, PeerRun
from bench.results import LossByContext, Result, median_loss
from bench.watch import CommandFailed

H200_PEAK = 989e12  # FLOP/s, dense bf16, of the data sheet
GPT2_FLOPS_PER_TOKEN = 854.8e6  # at 1024 tokens of context, as nanoGPT counts; the same for both sides

# nanoGPT compiles unless told not to; GlassGPT decides by itself what is fastest.
GPT2_SETTINGS = {
    "n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "dropout": 0.0, "bias": False,
    "gradient_accumulation_steps": 1, "learning_rate": 6e-4, "min_lr": 6e-5, "weight_decay": 0.1,
    "beta2": 0.95,
}  # fmt: skip
README_CPU_SETTINGS = {
    "compile": False, "eval_iters": 20, "log_interval": 1, "block_size": 64, "batch_size": 12, "n_layer": 4,
    "n_head": 4, "n_embd": 128, "lr_decay_iters": 2000, "dropout": 0.0,
}  # fmt: skip
SHAKESPEARE_CONFIG = "config/train_shakespeare_char.py"


@dataclass(frozen=True)
class TimedSide:
    """One side of one round."""

    ms: float  # median of an update
    peak_bytes: int | None
    losses: LossByContext
    choices: dict[str, str] = field(default_factory=dict)  # what GlassGPT decided


# --- GPT-2 124M ---


def gpt2_settings(ctx: BenchContext, updates: int) -> dict[str, Any]:
    """Settings of both sides. The last evaluation comes with a checkpoint, which the evaluator reads."""
    return GPT2_SETTINGS | {
        "batch_size": ctx.options.batch,
        "max_iters": updates,
        "lr_decay_iters": updates,
        "warmup_iters": updates // 10,
        "eval_interval": updates,
        "log_interval": 5,
    }


def time_nanogpt_gpt2(ctx: BenchContext, caches: Path, updates: int, seed: int) -> TimedSide:
    data = ctx.mdn
    settings = gpt2_settings(ctx, updates) | {"dataset": "mdn", "eval_iters": 1}
    run = ctx.run_nanogpt(caches, settings, seed=seed, memory=True)
    lines = run.output.lines
    ms = median(peers.interval_ms(lines, updates // 4))
    return TimedSide(ms, peers.peak_bytes(lines), ctx.score_nanogpt(run, data))


def time_glass_gpt2(ctx: BenchContext, caches: Path, updates: int, seed: int, **more: object) -> TimedSide:
    tokens = {"eval_tokens": 65_536}  # nanoGPT's one batch
    settings = gpt2_settings(ctx, updates) | tokens | {"seed": seed, "probe_seconds": 0} | more
    run = ctx.run_glass("gpt2_124m", ctx.mdn, caches, settings)
    losses = ctx.score_glass(run, ctx.mdn, 1024, "last")
    ms = median(glass.interval_ms(run, updates // 4))
    return TimedSide(ms, glass.peak_bytes(run), losses, glass.read_choices(run))


def gpt2_update_tokens(ctx: BenchContext) -> int:
    """Of an update."""
    return TINY_UPDATE_TOKENS if ctx.options.tiny else ctx.options.batch * 1024


def gpt2_speed(ctx: BenchContext) -> list[Result]:
    """GPT-2 124M: tokens/s and peak memory; with --fp8, ours in 8-bit floats too."""
    updates = ctx.options.updates or 100
    # Compiling is not what is timed here: each side compiles in its first round only.
    their_caches, our_caches = ctx.fresh_dir("caches"), ctx.fresh_dir("caches")
    theirs = []
    ours: dict[str, list[TimedSide]] = {"": [], **({"-fp8": []} if ctx.options.fp8 else {})}
    for number in range(ctx.options.rounds):
        theirs.append(time_nanogpt_gpt2(ctx, their_caches, updates, 1337 + number))
        for kind, timed in ours.items():
            timed.append(time_glass_gpt2(ctx, our_caches, updates, 1337 + number, fp8=kind == "-fp8"))
    details: dict[str, Any] = {"updates": updates, "batch": ctx.options.batch}
    if ctx.options.nanochat is not None:
        details["nanochat"] = nanochat_speed(ctx, updates)
    rows = []
    for kind, timed in ours.items():
        # A hundred updates into training, seeds differ by some hundredths; fp8-loss is stricter.
        tokens = gpt2_update_tokens(ctx)
        rows.append(compare_speed(ctx, f"gpt2-speed{kind}", theirs, timed, tokens, 0.05, details))
        rows += compare_memory(ctx, f"gpt2-memory{kind}", theirs, timed)
    return rows


def compare_speed(
    ctx: BenchContext,
    row: str,
    theirs: list[TimedSide],
    ours: list[TimedSide],
    tokens: int,
    slack: float,
    details: dict[str, Any],
) -> Result:
    """Tokens/s of both, `tokens` an update; `slack`: how much of a loss is noise between seeds."""
    if ours[0].choices:
        details = details | {"choices": ours[0].choices}
    nanogpt, glassgpt = ([tokens / one.ms * 1000 for one in side] for side in (theirs, ours))
    their_losses, our_losses = [one.losses for one in theirs], [one.losses for one in ours]
    if ctx.device_type == "cuda":
        rates = {"nanogpt": nanogpt, "glassgpt": glassgpt}
        factor = GPT2_FLOPS_PER_TOKEN / H200_PEAK
        details = details | {"mfu_of_989": {side: factor * median(rate) for side, rate in rates.items()}}
    return ctx.make_result(
        row,
        "tokens/s",
        nanogpt=nanogpt,
        glassgpt=glassgpt,
        values=[our / their for their, our in zip(nanogpt, glassgpt, strict=True)],
        nanogpt_losses=their_losses,
        glassgpt_losses=our_losses,
        objection=loss_objection(median_loss(our_losses), median_loss(their_losses), slack),
        details=details,
    )


def compare_memory(
    ctx: BenchContext, row: str, theirs: list[TimedSide], ours: list[TimedSide]
) -> list[Result]:
    """Peak memory, where there is a card that counts it."""
    gib = [[one.peak_bytes / 2**30 for one in side if one.peak_bytes is not None] for side in (theirs, ours)]
    if not gib[0] or not gib[1]:
        return []
    ratios = [our / their for their, our in zip(*gib, strict=True)]
    return [ctx.make_result(row, "GiB", nanogpt=gib[0], glassgpt=gib[1], values=ratios)]


def loss_objection(ours: float, theirs: float, slack: float) -> str:
    """Why a speed does not count: the loss is worse. Empty if it counts."""
    if ours <= theirs + slack:
        return ""
    return f"loss {ours:.4f} is worse than {theirs:.4f} by more than {slack:g}"


def nanochat_speed(ctx: BenchContext, updates: int) -> dict[str, Any]:
    """Steps of nanochat's d12, model and optimizer alone; another model, so a figure and no ratio."""
    assert ctx.options.nanochat is not None
    depth, T, B, vocabulary = (2, 32, 4, 512) if ctx.options.tiny else (12, 1024, ctx.options.batch, 32768)
    caches = ctx.fresh_dir("caches")
    caches.mkdir()
    try:
        times = peers.time_nanochat(
            ctx.options.nanochat, caches, ctx.options.device, updates, depth, T, B, vocabulary
        )
    except CommandFailed as error:  # the row is about nanoGPT, and stands without it
        ctx.log(f"nanochat  {error}")
        return {"failed": str(error)}
    per_s = B * T / median(times.seconds[updates // 4 :])
    ctx.log(f"nanochat  {per_s:,.0f} tokens/s")
    return {
        "tokens_per_s": per_s,
        "peak_gib": None if times.peak_bytes is None else times.peak_bytes / 2**30,
        "parameters": times.parameters,
        "what": f"d{depth}, {B} x {T} tokens, vocabulary {vocabulary}, Muon and AdamW, "
        f"{'Flash Attention 3' if times.flash_attention_3 else 'SDPA'}, random tokens on the device",
    }


def fp8_loss(ctx: BenchContext) -> list[Result]:
    """FP8: speed and loss over 500 updates; nanoGPT, ours in bf16 and ours in FP8, in turns, seed by seed."""
    updates = ctx.options.updates or 500
    their_caches, our_caches = ctx.fresh_dir("caches"), ctx.fresh_dir("caches")
    theirs, plain, fp8 = [], [], []
    for seed in ctx.options.seeds:
        theirs.append(time_nanogpt_gpt2(ctx, their_caches, updates, seed))
        plain.append(time_glass_gpt2(ctx, our_caches, updates, seed))
        fp8.append(time_glass_gpt2(ctx, our_caches, updates, seed, fp8=True))
    tokens, details = gpt2_update_tokens(ctx), {"updates": updates, "seeds": list(ctx.options.seeds)}
    rows = [
        compare_speed(ctx, name, theirs, ours, tokens, 0.01, details)
        for name, ours in (("fp8", fp8), ("gpt2-500", plain))
    ]
    # Within 0.01 of nanoGPT's is the bar; of our own in bf16, on the same batches, is what FP8 itself costs.
    in_8_bits, in_16 = (median_loss([one.losses for one in side]) for side in (fp8, plain))
    objection = rows[0].objection or loss_objection(in_8_bits, in_16, 0.01)
    memory = compare_memory(ctx, "gpt2-memory", theirs, plain)
    return [replace(rows[0], objection=objection), rows[1], *memory]


# --- shakespeare_char, the whole command ---


def shakespeare_settings(ctx: BenchContext) -> Flags:
    """None: nanoGPT's config has all of them; with --tiny a short run."""
    return {"max_iters": 40, "eval_interval": 20, "eval_iters": 2} if ctx.options.tiny else {}


def shakespeare_whole(ctx: BenchContext) -> list[Result]:
    """The whole command of shakespeare_char, 5000 updates: caches cold, then both again with them warm."""
    data = ctx.shakespeare
    their_caches, our_caches = ctx.fresh_dir("caches"), ctx.fresh_dir("caches")
    rows = []
    for row in ("shakespeare-whole", *(["shakespeare-whole-warm"] if ctx.options.warm else [])):
        ours = ctx.run_glass("shakespeare_char", data, our_caches, shakespeare_settings(ctx))
        theirs = ctx.run_nanogpt(their_caches, shakespeare_settings(ctx), SHAKESPEARE_CONFIG)
        rows.append(compare_whole_commands(ctx, row, theirs, ours, data))
    return rows


def compare_whole_commands(
    ctx: BenchContext, row: str, theirs: PeerRun, ours: GlassRun, data: Path
) -> Result:
    """Both commands from start to end."""
    their_losses = ctx.score_nanogpt(theirs, data)
    our_losses = ctx.score_glass(ours, data, 256)
    ctx.log(f"loss: nanoGPT {their_losses}, GlassGPT {our_losses}")
    return ctx.make_result(
        row,
        "s",
        nanogpt=[theirs.output.wall_s],
        glassgpt=[ours.wall_s],
        values=[theirs.output.wall_s / ours.wall_s],
        nanogpt_losses=[their_losses],
        glassgpt_losses=[our_losses],
        objection=loss_objection(median_loss([our_losses]), median_loss([their_losses]), 0.02),
        details={
            "nanogpt_best_at_s": theirs.best_at_s,
            "choices": glass.read_choices(ours),
            "overhead": {"shakespeare_char": glass.overhead_share(ours)},
            "ledger": ours.ledger,
            "forecast": ours.forecast,
        },
    )


# --- the CPU command of nanoGPT's README ---


def cpu_speed(ctx: BenchContext) -> list[Result]:
    """nanoGPT's README run for a CPU: tokens/s."""
    updates = ctx.options.updates or 250
    data, warm_up = ctx.shakespeare, 20 if updates > 40 else updates // 4
    often = {
        "max_iters": updates,
        "eval_interval": updates,
        "always_save_checkpoint": True,
        "log_interval": 1,
    }
    settings = README_CPU_SETTINGS | often
    caches = ctx.fresh_dir("caches")
    theirs, ours = [], []
    for number in range(ctx.options.rounds):
        seed = 1337 + number
        peer = ctx.run_nanogpt(caches, settings, SHAKESPEARE_CONFIG, seed=seed)
        their_ms = median(peers.interval_ms(peer.output.lines, warm_up))
        theirs.append(TimedSide(their_ms, None, ctx.score_nanogpt(peer, data)))
        run = ctx.run_glass("shakespeare_char_cpu", data, caches, often | {"seed": seed})
        our_ms = median(glass.interval_ms(run, warm_up))
        ours.append(TimedSide(our_ms, None, ctx.score_glass(run, data, 64, "last")))
        ctx.log(f"{their_ms:.2f} and {our_ms:.2f} ms per update")
    tokens = TINY_UPDATE_TOKENS if ctx.options.tiny else 12 * 64
    # The README run's seeds differ by 0.03.
    return [compare_speed(ctx, "cpu-speed", theirs, ours, tokens, 0.03, {"updates": updates})]
