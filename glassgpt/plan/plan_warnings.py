"""What is wrong with a plan, each with its fix. A plan without problems says so by having none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassgpt.config import decay_iters, warmup_iters
from glassgpt.estimate import decide, memory
from glassgpt.estimate.memory import GIB, Memory
from glassgpt.format import count, duration
from glassgpt.paths import nearest_folder
from glassgpt.plan.dataset_size import Text
from glassgpt.plan.ddp_or_fsdp import Way, Ways
from glassgpt.plan.fitting import enough, flags, in_pieces, remedies
from glassgpt.plan.loss_forecast import Prospect, expectation
from glassgpt.plan.run_spec import Decided
from glassgpt.plan.target import Target
from glassgpt.plan.time_and_cost import Times, forecast_of


@dataclass(frozen=True)
class Problem:
    """`kind`: "error" if the run cannot be as it is, "warning" if it will disappoint, else "hint"."""

    kind: str
    what: str
    fix: str


_SHARE_FELT = 0.05  # of a run, spent evaluating …
_SECONDS_FELT = 5.0  # … and as long as that
_LATE_S = 1800  # for a first checkpoint
_FEW_TOKENS = 5  # per parameter
_FEW_AT_A_TIME = 8192  # tokens of a micro-batch


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
        *_of_memory(decided, target, text, needs),
        *_of_place(decided, target),
        *refused_there(decided, target),
        *_of_cluster(decided, target, ways),
    ]
    if not decided.config.eval_only:
        found += _of_disk(target, prospect, Path(decided.config.out_dir or "runs"))
        found += [*_of_schedule(decided), *_of_data(decided, target, text, prospect)]
        if times is not None:
            found += _of_time(decided, target, text, times, prospect)
    order = ("error", "warning", "hint")
    return sorted(found, key=lambda problem: order.index(problem.kind))


def _of_memory(decided: Decided, target: Target, text: Text, needs: Memory) -> Iterator[Problem]:
    if decided.config.eval_only:
        yield from _of_evaluating(target, needs)
    elif needs.total > target.limit:
        yield _too_much(decided, target, needs)
    elif needs.total > target.room:
        yield _too_tight(decided, target, text, needs)
    elif target.device_type == "cuda" and decided.work.tokens < _FEW_AT_A_TIME:
        yield from _of_small_batches(decided, target, text)


def _too_much(decided: Decided, target: Target, needs: Memory) -> Problem:
    size, pieces = decided.batch.batch_size, in_pieces(decided, target)
    assert pieces is not None, "who plans has refused what fits in no pieces"
    return Problem(
        "error",
        f"{size} sequences at a time need {needs.total / GIB:.1f} GiB, and a run may take "
        f"{target.limit / GIB:.1f} of {target.name}'s {target.memory / GIB:.1f}",
        f"{flags(pieces)} is the same run in less memory",
    )


def _too_tight(decided: Decided, target: Target, text: Text, needs: Memory) -> Problem:
    pieces = in_pieces(decided, target)  # None: only the whole update at once fits
    less = enough(decided, pieces, target, text, target.room) if pieces else ""
    less = less or ", or ".join(remedies(decided, target, text, target.room)) or "a smaller model"
    return Problem(
        "warning",
        f"{needs.total / GIB:.1f} of {target.memory / GIB:.1f} GiB: it fits while nothing else uses "
        "the card, not even a desktop",
        f"{less} leaves room",
    )


def _of_small_batches(decided: Decided, target: Target, text: Text) -> Iterator[Problem]:
    """A hint if larger ones fit, and make a difference."""
    pieces = in_pieces(decided, target)
    if pieces is None or pieces["batch_size"] < 2 * decided.batch.batch_size:
        return
    if roomy := enough(decided, pieces, target, text, target.room):
        yield Problem(
            "hint",
            f"micro-batches of {decided.work.tokens:,} tokens keep no GPU busy; there is room",
            f"{roomy} is the same run, faster; `glass tune` measures it",
        )


def _of_evaluating(target: Target, needs: Memory) -> Iterator[Problem]:
    """How many sequences an update would take has no say in it."""
    if needs.total > target.limit:
        yield Problem(
            "error",
            f"the model and its evaluation need {needs.total / GIB:.1f} GiB, and a run may take "
            f"{target.limit / GIB:.1f} of {target.name}'s {target.memory / GIB:.1f}",
            "a smaller model, or more memory" + ("" if target.device_type == "cpu" else "; or --device=cpu"),
        )


def _of_place(decided: Decided, target: Target) -> Iterator[Problem]:
    device = decided.config.device
    if device != "auto" and device.partition(":")[0] != target.device_type:
        what = f"--device={device} is not {target.name}: the run will not be as planned here"
        yield Problem("warning", what, "--device=auto")
    if target.busy:
        yield busy_machine(target)


def busy_machine(target: Target) -> Problem:
    what = f"other programs keep {target.busy:.1f} cores busy: speed and time are measured beside them"
    return Problem("warning", what, "plan again when the machine is quiet")


def refused_there(decided: Decided, target: Target) -> Iterator[Problem]:
    """What the trainer would refuse on that machine."""
    config, work, on = decided.config, decided.work, target.traits
    if config.fp8 and not decide.has_float8(on):
        yield Problem("error", f"{target.name} has no 8-bit floats", "leave --fp8 out")
    elif config.fp8:
        for problem in decide.float8_problems(config, on, work.dtype, work.kernels, work.tokens):
            yield Problem("error", problem, "leave --fp8 out")
    if work.is_sharded and work.dtype == "float16":
        what = f"--shard=True does not go with float16 and its loss scaler, and {target.name} has no bfloat16"
        yield Problem("error", what, "--dtype=float32, or leave --shard out")
    for name, why in decide.refused(config, on).items():
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
            f"--warmup_iters={config.max_iters // 20}",
        )
    elif warmup > config.max_iters / 3:
        yield Problem(
            "hint",
            f"the warm-up takes {warmup / config.max_iters:.0%} of the run",
            f"--warmup_iters={config.max_iters // 20}",
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


def _of_data(decided: Decided, target: Target, text: Text, prospect: Prospect) -> Iterator[Problem]:
    config = decided.config
    if text.train_tokens <= config.block_size:
        yield Problem(
            "error",
            f"the text has {text.train_tokens:,} tokens, no more than --block_size={config.block_size}",
            "prepare more text, or lower --block_size",
        )
    if prospect.overfits_at is not None and prospect.overfits_at < 0.9 * config.max_iters:
        shorter = _stopped_before(decided, text, prospect.overfits_at)
        # Our kernels may not pay then, and PyTorch's take more memory.
        ways = (shorter, shorter | {"kernels": "triton"})
        tried = (enough(decided, changes, target, text, target.limit) for changes in ways)
        fitting = next((f"{way}, " for way in tried if way), "")
        yield Problem(
            "warning",
            f"it will probably begin to overfit near update {prospect.overfits_at:,}, after "
            f"{prospect.overfits_at * decided.batch.tokens / text.train_tokens:.1f} times through the text",
            f"{fitting}more --dropout, or --patience=3; the best one is kept",
        )
    from_nothing = config.init_from == "scratch" and text.tokenizer not in ("char", "byte")
    if prospect.tokens_per_parameter < _FEW_TOKENS and from_nothing:
        yield Problem(
            "hint",
            f"{count(decided.total_tokens)} tokens are {prospect.tokens_per_parameter:.1f} per parameter; "
            "with fewer than about 20, a smaller model is better for the same arithmetic",
            "a smaller model, or more updates",
        )


def _stopped_before(decided: Decided, text: Text, overfits_at: int) -> dict[str, Any]:
    """So many updates that it does not overfit, with the schedule that goes with them."""
    config, at = decided.config, overfits_at
    while True:
        changes: dict[str, Any] = {"max_iters": at}
        shorter = replace(config, max_iters=at)
        if config.decay_lr and decay_iters(shorter) > at:
            changes["lr_decay_iters"] = at
        if config.decay_lr and warmup_iters(shorter) > at / 3:
            changes["warmup_iters"] = at // 20
        shorter = replace(config, **changes)
        ahead = expectation(shorter, decided.work.vocab_size, decided.batch.tokens, text).overfits_at
        if ahead is None or ahead >= at:
            return changes
        at = ahead


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


def _of_disk(target: Target, prospect: Prospect, place: Path) -> Iterator[Problem]:
    """A card that was named may be in another machine, with another disk."""
    free = shutil.disk_usage(nearest_folder(place)).free
    if prospect.disk_bytes > free:
        disk = "the disk" if target.is_here else "this machine's disk"
        yield Problem(
            "error" if target.is_here else "hint",
            f"checkpoints take up to {prospect.disk_bytes / GIB:.1f} GiB, and {disk} has {free / GIB:.1f}",
            "--out_dir on another disk, or fewer --keep_checkpoints",
        )


def _of_time(
    decided: Decided, target: Target, text: Text, times: Times, prospect: Prospect
) -> Iterator[Problem]:
    config = decided.config
    if times.evaluation_share > _SHARE_FELT and times.evaluation_s > _SECONDS_FELT:
        yield Problem(
            "warning",
            f"evaluating takes {times.evaluation_share:.0%} of the run",
            _evaluating_less(decided, target, text),
        )
    first_s = prospect.first_checkpoint * times.updates_s[1] / config.max_iters
    every = max(1, round(_LATE_S / 3 * config.max_iters / times.updates_s[1]))
    if first_s > _LATE_S and every < prospect.first_checkpoint:
        yield Problem(
            "hint",
            f"the first checkpoint comes after {duration(first_s)}",
            f"--checkpoint_interval={every} saves every "
            f"{duration(every * first_s / prospect.first_checkpoint)}",
        )


def _evaluating_less(decided: Decided, target: Target, text: Text) -> str:
    """Less often, if that is enough, or on less text; else it is what is done once, at the end."""

    def is_felt(**changes: int | None) -> bool:
        config = replace(decided.config, **changes)  # type: ignore[arg-type]
        less = replace(decided, config=config, work=replace(decided.work, config=config))
        ahead = forecast_of(less, target, text)
        return (ahead.evaluation_s or 0) > _SHARE_FELT * (ahead.total_s or (0, 0, 0))[1]

    interval, last = decided.config.eval_interval, decided.config.max_iters
    while interval < last:
        interval = min(2 * interval, last)
        if not is_felt(eval_interval=interval):
            return f"--eval_interval={interval}, or fewer --eval_tokens"
    if is_felt(eval_interval=last, eval_iters=None, eval_tokens=1, closing_eval=False):
        return "fewer --sample_tokens"
    if is_felt(eval_interval=last, eval_iters=None, eval_tokens=1):
        return "fewer --eval_tokens, with --closing_eval=False"
    return "fewer --eval_tokens"
