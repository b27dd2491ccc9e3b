"""What is wrong with a plan, each with its fix. A plan without problems says so by having none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from glassgpt.account import choices, memory
from glassgpt.account.machine import nearest_folder
from glassgpt.account.memory import GIB, Memory
from glassgpt.config import decay_iters, warmup_iters
from glassgpt.figures import count, duration
from glassgpt.insight.plan.decided import Decided
from glassgpt.insight.plan.prospect import Prospect
from glassgpt.insight.plan.target import Target
from glassgpt.insight.plan.text import Text
from glassgpt.insight.plan.times import Times
from glassgpt.insight.plan.ways import Way, Ways


@dataclass(frozen=True)
class Problem:
    """`kind`: "error" if the run cannot be as it is, "warning" if it will disappoint, else "hint"."""

    kind: str
    what: str
    fix: str


_SHARE_FELT = 0.05  # of a run, spent evaluating
_LATE_S = 1800  # for a first checkpoint
_FEW_TOKENS = 5  # per parameter


def find_problems(
    decided: Decided,
    target: Target,
    text: Text,
    needs: Memory,
    times: Times | None,
    prospect: Prospect,
    ways: Ways | None = None,
) -> list[Problem]:
    found = [
        *_of_memory(decided, target, needs),
        *_of_machine(decided, target),
        *_of_cluster(decided, target, ways),
        *_of_disk(decided, prospect, Path(decided.config.out_dir or "runs")),
    ]
    if not decided.config.eval_only:
        found += [*_of_schedule(decided), *_of_data(decided, text, prospect)]
        if times is not None:
            found += _of_time(decided, times, prospect)
    order = ("error", "warning", "hint")
    return sorted(found, key=lambda problem: order.index(problem.kind))


def _of_memory(decided: Decided, target: Target, needs: Memory) -> Iterator[Problem]:
    if decided.config.eval_only:
        yield from _of_evaluating(target, needs)
        return
    size, sequences = decided.batch.batch_size, decided.batch.sequences
    own = sequences // decided.work.ranks  # each card takes as many
    # In pieces, gradients have to add up.
    in_pieces = replace(decided.work, micro_steps=2, saves_beside=decided.work.device_type == "cpu")
    largest = memory.largest_batch(in_pieces, target.room) or 1
    best = max(n for n in range(1, min(largest, own) + 1) if own % n == 0)
    steps = f" --gradient_accumulation_steps={sequences // best}"
    if needs.total > target.limit:
        yield Problem(
            "error",
            f"{size} sequences at a time need {needs.total / GIB:.1f} GiB, and a run may take "
            f"{target.limit / GIB:.1f} of {target.name}'s {target.memory / GIB:.1f}",
            f"--batch_size={best}{steps} is the same run in less memory",
        )
    elif needs.total > target.room:
        yield Problem(
            "warning",
            f"{needs.total / GIB:.1f} of {target.memory / GIB:.1f} GiB: it fits while nothing else uses "
            "the card, not even a desktop",
            f"--batch_size={best}{steps} leaves room",
        )
    elif target.device_type == "cuda" and size * decided.config.block_size < 8192 and best >= 2 * size:
        yield Problem(
            "hint",
            f"micro-batches of {size * decided.config.block_size:,} tokens keep no GPU busy; there is room",
            f"--batch_size={best}{steps} is the same run, faster; `glass tune` measures it",
        )


def _of_evaluating(target: Target, needs: Memory) -> Iterator[Problem]:
    """How many sequences an update would take has no say in it."""
    if needs.total > target.limit:
        yield Problem(
            "error",
            f"the model and its evaluation need {needs.total / GIB:.1f} GiB, and a run may take "
            f"{target.limit / GIB:.1f} of {target.name}'s {target.memory / GIB:.1f}",
            "a smaller model, a card with more memory, or --device=cpu",
        )


def _of_machine(decided: Decided, target: Target) -> Iterator[Problem]:
    """What the trainer would refuse there."""
    config, work, on = decided.config, decided.work, target.traits
    if target.busy:
        what = f"other programs keep {target.busy:.1f} cores busy: speed and time are measured beside them"
        yield Problem("warning", what, "plan again when the machine is quiet")
    if config.fp8 and not choices.has_float8(on):
        yield Problem("error", f"{target.name} has no 8-bit floats", "leave --fp8 out")
    elif config.fp8:
        for problem in choices.float8_problems(config, on, work.dtype, work.kernels, work.tokens):
            yield Problem("error", problem, "leave --fp8 out")
    if work.is_sharded and work.dtype == "float16":
        what = f"--shard=True does not go with float16 and its loss scaler, and {target.name} has no bfloat16"
        yield Problem("error", what, "--dtype=float32, or leave --shard out")
    for name, why in choices.refused(config, on).items():
        asked = f"--{name}={getattr(config, name)}"
        what = f"{asked} is for CUDA cards" if on.kind != "cuda" else f"{asked} is not possible there: {why}"
        yield Problem("error", what, f"--{name}=auto")


def _of_schedule(decided: Decided) -> Iterator[Problem]:
    config = decided.config
    warmup, end = warmup_iters(config), decay_iters(config)
    if not config.decay_lr:
        return
    if warmup >= config.max_iters:
        yield Problem(
            "warning",
            f"the warm-up of {warmup:,} updates does not end within --max_iters={config.max_iters:,}",
            f"--warmup_iters={max(1, config.max_iters // 20)}",
        )
    elif warmup > config.max_iters / 3:
        yield Problem(
            "hint",
            f"the warm-up takes {warmup / config.max_iters:.0%} of the run",
            f"--warmup_iters={max(1, config.max_iters // 20)}",
        )
    if end > 1.1 * config.max_iters:
        yield Problem(
            "warning",
            f"the learning rate falls until update {end:,}, and the run ends at {config.max_iters:,}",
            f"--lr_decay_iters={config.max_iters}: the last part of the fall is where the loss falls too",
        )
    elif end < 0.7 * config.max_iters:
        yield Problem(
            "warning",
            f"the learning rate is at its lowest from update {end:,} on, of {config.max_iters:,}",
            f"--lr_decay_iters={config.max_iters}",
        )


def _of_data(decided: Decided, text: Text, prospect: Prospect) -> Iterator[Problem]:
    config = decided.config
    if text.train_tokens <= config.block_size:
        yield Problem(
            "error",
            f"the text has {text.train_tokens:,} tokens, no more than --block_size={config.block_size}",
            "prepare more text, or lower --block_size",
        )
    if prospect.overfits_at is not None and prospect.overfits_at < 0.9 * config.max_iters:
        yield Problem(
            "warning",
            f"it will probably begin to overfit near update {prospect.overfits_at:,}, after "
            f"{prospect.overfits_at * decided.batch.tokens / text.train_tokens:.1f} times through the text",
            f"--max_iters={prospect.overfits_at}, more --dropout, or --patience=3; the best one is kept",
        )
    from_nothing = config.init_from == "scratch" and text.tokenizer not in ("char", "byte")
    if prospect.tokens_per_parameter < _FEW_TOKENS and from_nothing:
        yield Problem(
            "hint",
            f"{count(decided.total_tokens)} tokens are {prospect.tokens_per_parameter:.1f} per parameter; "
            "with fewer than about 20, a smaller model is better for the same arithmetic",
            "a smaller model, or more updates",
        )


_WAITING_FELT = 0.25  # of an update


def _of_cluster(decided: Decided, target: Target, ways: Ways | None) -> Iterator[Problem]:
    """Of cards that train together, or should."""
    shard = decided.config.shard
    if ways is None:
        if shard:
            what = "--shard=True spreads a model over several cards, and there is one"
            yield Problem("hint", what, "--gpus says how many; or leave --shard out")
        return
    own, other = (ways.sharded, ways.whole) if shard else (ways.whole, ways.sharded)
    if ways.advised is other:
        yield Problem("hint", f"{other.name}: {ways.reason}", other.setting)
    if shard and own.micro_steps > 1 and _one_pass_fits(decided, target):
        size = own.batch_size * own.micro_steps
        yield Problem(
            "hint",
            f"all {size} sequences of a card fit in one pass, which gathers the weights once, not "
            f"{own.micro_steps} times",
            f"--batch_size={size} --gradient_accumulation_steps={decided.work.ranks}",
        )
    if own.computing_s is not None and own.waiting_s is not None:
        share = own.waiting_s / (own.waiting_s + own.computing_s)
        if share > _WAITING_FELT:
            what = f"cards wait {share:.0%} of an update for each other"
            yield Problem("warning", what, _less_waiting(own))


def _one_pass_fits(decided: Decided, target: Target) -> bool:
    """Whether a card can do its part of an update at once; then sharded gradients need not add up whole."""
    work = decided.work
    at_once = replace(work, batch_size=work.batch_size * work.micro_steps, micro_steps=1, saves_beside=False)
    return memory.needed(at_once).total <= target.room


def _less_waiting(way: Way) -> str:
    if way.shard and way.micro_steps > 1:
        return (
            "each micro-batch gathers all weights anew: fewer and larger ones, for which "
            "--activation_checkpointing=True makes room"
        )
    return (
        "more --batch_tokens, so that they exchange less often; or fewer cards, or a faster way between them"
    )


def _of_disk(decided: Decided, prospect: Prospect, place: Path) -> Iterator[Problem]:
    free = shutil.disk_usage(nearest_folder(place)).free
    if prospect.disk_bytes > free:
        yield Problem(
            "error",
            f"checkpoints take up to {prospect.disk_bytes / GIB:.1f} GiB, and the disk has {free / GIB:.1f}",
            "--out_dir on another disk, or fewer --keep_checkpoints",
        )


def _of_time(decided: Decided, times: Times, prospect: Prospect) -> Iterator[Problem]:
    config = decided.config
    if times.evaluation_share > _SHARE_FELT:
        rarer = min(round(config.eval_interval * times.evaluation_share / 0.02), config.max_iters)
        instead = f"--eval_interval={rarer}, or " if config.eval_interval < config.max_iters else ""
        yield Problem(
            "warning",
            f"evaluating takes {times.evaluation_share:.0%} of the run",
            f"{instead}fewer --eval_tokens",
        )
    first_s = prospect.first_checkpoint * times.updates_s[1] / config.max_iters
    if first_s > _LATE_S:
        every = max(1, round(_LATE_S / 3 * config.max_iters / times.updates_s[1]))
        yield Problem(
            "hint",
            f"the first checkpoint comes after {duration(first_s)}",
            f"--checkpoint_interval={every} saves every "
            f"{duration(every * first_s / prospect.first_checkpoint)}",
        )
