"""The other way round: so many hours on that machine, which run makes the best of them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any

from glassgpt.config import TrainConfig, padded_vocab_size
from glassgpt.errors import UserError
from glassgpt.estimate import flops, memory
from glassgpt.estimate.decide import choose_dtype
from glassgpt.estimate.forecast import LowMidHigh
from glassgpt.estimate.loss_law import ExpectedLossCurve, LossRange
from glassgpt.estimate.memory import DTYPE_BYTES
from glassgpt.estimate.speed import ThroughputEstimate
from glassgpt.format import format_duration, format_parameters
from glassgpt.plan.dataset_size import DatasetInfo
from glassgpt.plan.loss_forecast import expected_loss_curve
from glassgpt.plan.plan_warnings import refused_setting_problems
from glassgpt.plan.run_spec import can_shard, decide
from glassgpt.plan.target import PlanTarget
from glassgpt.plan.time_and_cost import forecast_spec
from glassgpt.recipe import to_toml

_WIDTHS = (64, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1600, 2048)
_CLUSTER_WIDTHS = (2560, 3200, 4096)  # where many cards work
_HEAD_DIM = 64  # channels
_MAX_CHARACTER_CONTEXT = 256  # of context
# What is proposed, whatever the settings say.
PROPOSED_SETTINGS = (
    "arch", "optimizer", "tie_embeddings", "bias", "n_embd", "n_head", "n_layer", "batch_size",
    "batch_tokens", "gradient_accumulation_steps", "max_iters", "dropout", "learning_rate", "embedding_lr",
    "matrix_lr", "beta1", "beta2", "muon_momentum", "weight_decay", "schedule", "wsd_decay_fraction",
    "min_lr", "warmup_iters", "lr_decay_iters", "eval_interval", "eval_iters", "log_interval", "profile",
)  # fmt: skip
_USED_TIME_SHARE = 0.97  # of the hours, for what nobody foresees
_NEARLY_ALL_TIME_SHARE = 0.85  # of the hours
# A batch of 0.3 times what the text is diverse enough for: as in the presets that were tuned.
_BATCH_PER_SQRT_TOKENS = {"char": 1.5, "other": 5.7}  # times the square root of all tokens


@dataclass(frozen=True)
class ProposedRun:
    """A run that takes the time."""

    config: TrainConfig
    n_layer: int
    n_embd: int
    parameters: int
    tokens: int
    epochs: float
    tokens_per_s: float
    seconds: float
    loss: tuple[float, float, float]
    overfits_later: bool  # in all the time there is


@dataclass(frozen=True)
class Proposal:
    best: ProposedRun
    considered: tuple[ProposedRun, ...]  # smallest model first
    target: PlanTarget
    hours: float
    price: float | None = None  # of an hour of one machine

    @property
    def cost(self) -> float | None:
        machines = self.target.cluster.machines
        return None if self.price is None else self.price * machines * self.best.seconds / 3600

    @property
    def summary(self) -> str:
        best = self.best
        cost = "" if self.cost is None else f", cost {self.cost:,.2f}"
        return (
            f"{format_duration(self.hours * 3600)} on {self.target.title}: "
            f"{format_parameters(best.parameters)} parameters, {best.config.max_iters:,} updates of "
            f"{best.config.batch_tokens:,} tokens, about {format_duration(best.seconds)}, "
            f"expected loss {best.loss[1]:.2f}{cost}"
        )

    @property
    def unused_time_reason(self) -> str:
        """Why it does not take the time there is; empty if it does."""
        if not self.best.overfits_later or self.best.seconds > _NEARLY_ALL_TIME_SHARE * self.hours * 3600:
            return ""
        return "with more updates it would probably learn this text by heart; more text could use more time"

    def as_toml(self) -> str:
        return to_toml(self.best.config, f"glass plan proposed this: {self.summary}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.title,
            "hours": self.hours,
            "cost": self.cost,
            "spare_time": self.unused_time_reason,
            "best": dataclasses.asdict(self.best),
            "considered": [dataclasses.asdict(option) for option in self.considered],
        }


def propose(
    config: TrainConfig,
    target: PlanTarget,
    text: DatasetInfo,
    hours: float,
    price: float | None = None,
    keeps_context: bool = False,
) -> Proposal:
    """`config` says the data, the context and the machine's settings; the rest is searched for. `price`: of
    an hour of one machine. `keeps_context`: of characters too, which gain little from a long one."""
    if not keeps_context and text.tokenizer in ("char", "byte"):
        config = replace(config, block_size=min(config.block_size, _MAX_CHARACTER_CONTEXT))
    if config.device.partition(":")[0] != target.device_type:
        config = replace(config, device="cpu" if target.device_type == "cpu" else "auto")
    options = [
        option
        for width in (_WIDTHS if target.cluster.ranks == 1 else _WIDTHS + _CLUSTER_WIDTHS)
        if (option := _propose_width(config, width, target, text, hours * 3600 * _USED_TIME_SHARE))
        is not None
    ]
    if not options:
        raise UserError(_why_none(config, target, hours))
    best = min(options, key=lambda option: option.loss[1])
    refused = [
        f"{one.what}: {one.fix}"
        for one in refused_setting_problems(decide(best.config, target, text), target)
    ]
    if refused:
        raise UserError(refused)
    return Proposal(best, tuple(options), target, hours, price)


def _why_none(config: TrainConfig, target: PlanTarget, hours: float) -> str:
    dtype = str(choose_dtype(config.dtype, target.traits, _WIDTHS[-1]).value)
    if not target.peaks:
        return f"--hours: nobody knows how fast {target.title} is; name a card of the table by --gpu"
    if target.peak_flops_per_s(dtype) is None:
        others = " or ".join(
            f"--dtype={name}" for name in DTYPE_BYTES if target.peak_flops_per_s(name) is not None
        )
        return f"--hours: nobody knows how fast {target.title} is in {dtype}; it is known with {others}"
    return (
        f"--hours={hours:g} on {target.title}: no model gets anywhere in that time; more --hours, or "
        "another --gpu"
    )


def _propose_width(
    config: TrainConfig, width: int, target: PlanTarget, text: DatasetInfo, seconds: float
) -> ProposedRun | None:
    """A model of that width for all the time there is, or less, where it would overfit; None: impossible."""
    shaped = _fitting(_with_width(config, width, text), target, text)
    tokens = None if shaped is None else _affordable_tokens(shaped, target, text, seconds)
    if shaped is None or tokens is None or tokens < _MIN_SEQUENCES * shaped.block_size:
        return None
    overfits_later, lengths = _rank_lengths(shaped, target, text, tokens)
    for made, expected in lengths:
        made, ahead = _evaluating_seldom(made, target, text)
        if ahead is not None and ahead.total_s[1] <= seconds and _fits(made, target, text):
            return _make_proposed_run(made, ahead, expected.final, text, overfits_later)
    return None


def _make_proposed_run(
    made: TrainConfig, ahead: _SpeedForecast, final: LossRange, text: DatasetInfo, overfits_later: bool
) -> ProposedRun:
    tokens = made.max_iters * (made.batch_tokens or 1)
    return ProposedRun(
        config=made,
        n_layer=made.n_layer,
        n_embd=made.n_embd,
        parameters=flops.model_parameters(made, padded_vocab_size(text.vocab_size)),
        tokens=tokens,
        epochs=tokens / text.train_tokens,
        tokens_per_s=ahead.throughput.mid,
        seconds=ahead.total_s[1],
        loss=(final.low, final.mid, final.high),
        overfits_later=overfits_later,
    )


_AFFORDABLE_ITERATIONS = 4
_MIN_SEQUENCES = 100  # in all, of a run that is worth the name


def _affordable_tokens(
    shaped: TrainConfig, target: PlanTarget, text: DatasetInfo, seconds: float
) -> float | None:
    """Tokens that can be learnt from in that time. The pace hangs on the batch, kernels and waiting, and
    those on how much there is to do."""
    some = shaped.block_size * 64 * target.cluster.ranks
    made = replace(shaped, batch_tokens=some, max_iters=10_000)
    for _ in range(_AFFORDABLE_ITERATIONS):
        ahead = _forecast_if_known(made, target, text)
        if ahead is None:
            return None
        evaluating_s = (_affordable_evaluations(ahead, seconds) + 1) * ahead.each_evaluation_s
        tokens = ahead.throughput.mid * (seconds - ahead.fixed_s - evaluating_s)
        if tokens < shaped.block_size:
            return tokens
        made = _with_length(shaped, target, text, tokens)
    return tokens


def _rank_lengths(
    shaped: TrainConfig, target: PlanTarget, text: DatasetInfo, tokens: float
) -> tuple[bool, list[tuple[TrainConfig, ExpectedLossCurve]]]:
    """Whether less than all the time there is brings more, as the text is then learnt by heart; and what to
    try, the best first. Some are a little too long: batch and dropout follow the length, and the pace them.

    The lengths are the same ones whatever the time, so that with more of it nothing worse is proposed.
    """
    shortest = _MIN_SEQUENCES * shaped.block_size
    count = 1 + math.floor(math.log(tokens / shortest, _LENGTH_STEP))
    few = text.train_tokens / 20  # nothing is seen again, whatever makes learning faster: longer is better
    seen_again = tokens >= 2 * few
    first = (
        math.floor(math.log(few / shortest, _LENGTH_STEP)) if seen_again else count - _SHORTER_LENGTHS_TRIED
    )
    first = max(0, first)
    tried = [
        _expected(shaped, target, text, shortest * _LENGTH_STEP**number)
        for number in range(first, count + _LONGER_LENGTHS_TRIED)
    ]
    whole = tried[count - 1 - first][1].final.mid
    tried.sort(key=lambda one: one[1].final.mid)
    return seen_again and tried[0][1].final.mid < whole, tried


_LENGTH_STEP = 1.03  # times
_SHORTER_LENGTHS_TRIED, _LONGER_LENGTHS_TRIED = 12, 4  # lengths


def _expected(
    shaped: TrainConfig, target: PlanTarget, text: DatasetInfo, tokens: float
) -> tuple[TrainConfig, ExpectedLossCurve]:
    made = _with_length(shaped, target, text, tokens)
    return made, expected_loss_curve(made, padded_vocab_size(text.vocab_size), made.batch_tokens or 1, text)


def _fitting(shaped: TrainConfig, target: PlanTarget, text: DatasetInfo) -> TrainConfig | None:
    """As it is, or else sharded over the cards, if there are several; None: it does not fit at all."""
    ranks = target.cluster.ranks
    for shard in (False, True) if ranks > 1 and not shaped.shard else (shaped.shard,):
        tried = replace(shaped, shard=shard, batch_tokens=shaped.block_size * 16 * ranks)
        work = decide(tried, target, text).workload
        possible = can_shard(work) or not shard or shaped.shard
        if possible and memory.largest_fitting_batch(work, target.comfortable_bytes) is not None:
            return replace(shaped, shard=shard)
    return None


def _fits(config: TrainConfig, target: PlanTarget, text: DatasetInfo) -> bool:
    return (
        memory.estimate_memory(decide(config, target, text).workload).total_bytes <= target.comfortable_bytes
    )


@dataclass(frozen=True)
class _SpeedForecast:
    """Of a run on a machine whose speed is known."""

    throughput: ThroughputEstimate
    total_s: LowMidHigh
    each_evaluation_s: float  # each
    fixed_s: float  # the start and the last checkpoint


def _forecast_if_known(config: TrainConfig, target: PlanTarget, text: DatasetInfo) -> _SpeedForecast | None:
    ahead = forecast_spec(decide(config, target, text), target, text)
    if ahead.throughput is None or ahead.total_s is None or ahead.evaluation_s is None:
        return None
    each_s = ahead.evaluation_s / ahead.evaluations
    return _SpeedForecast(ahead.throughput, ahead.total_s, each_s, ahead.start_s + ahead.saving_s)


_MAX_EVALUATIONS = 20
_EVALUATION_SHARE = 0.03  # of a run


def _affordable_evaluations(ahead: _SpeedForecast, seconds: float) -> int:
    """As many as take little of so short a run, after the one before the first update."""
    return max(1, min(_MAX_EVALUATIONS, int(_EVALUATION_SHARE * seconds / ahead.each_evaluation_s) - 1))


def _evaluating_seldom(
    made: TrainConfig, target: PlanTarget, text: DatasetInfo
) -> tuple[TrainConfig, _SpeedForecast | None]:
    ahead = _forecast_if_known(made, target, text)
    if ahead is None:
        return made, None
    times = _affordable_evaluations(ahead, ahead.total_s[1])
    seldom = replace(made, eval_interval=max(1, -(-made.max_iters // times)))
    return seldom, _forecast_if_known(seldom, target, text)


def _with_width(config: TrainConfig, width: int, text: DatasetInfo) -> TrainConfig:
    """Deeper as it gets wider; what presets that were tuned have in common."""
    of_characters = text.tokenizer in ("char", "byte")
    return replace(
        config,
        arch="modern",
        optimizer="muon",
        tie_embeddings=False,
        bias=False,
        n_embd=width,
        n_head=max(1, width // _HEAD_DIM),
        n_layer=max(3, round(width / _HEAD_DIM)),
        batch_size=None,
        gradient_accumulation_steps=None,
        batch_tokens=None,
        dropout=0.0,
        learning_rate=4e-3,
        embedding_lr=0.02 if of_characters else 0.1,
        matrix_lr=0.02,
        beta1=0.8,
        beta2=0.95,
        schedule="wsd",
        wsd_decay_fraction=0.5,
        min_lr=0.0,
        warmup_iters=None,
        lr_decay_iters=None,
        eval_iters=None,
        profile="",
    )


def _with_length(shaped: TrainConfig, target: PlanTarget, text: DatasetInfo, tokens: float) -> TrainConfig:
    T, ranks = shaped.block_size, target.cluster.ranks
    kind = "char" if text.tokenizer in ("char", "byte") else "other"
    wanted = _BATCH_PER_SQRT_TOKENS[kind] * math.sqrt(tokens)
    sequences = 2 ** max(3, round(math.log2(max(1.0, wanted / T))))
    most = 2**20 // T // ranks * ranks or ranks
    batch_tokens = min(-(-sequences // ranks) * ranks, most) * T  # every card takes as many sequences
    updates = max(10, int(tokens / batch_tokens))
    epochs = updates * batch_tokens / text.train_tokens
    made = replace(
        shaped,
        batch_tokens=batch_tokens,
        max_iters=updates,
        muon_momentum=0.95 if updates > 2000 else 0.9,
        dropout=0.15 if epochs > 3 else 0.0,
        weight_decay=0.05 if epochs > 1 else 0.0,
        eval_interval=max(1, -(-updates // _MAX_EVALUATIONS)),
        log_interval=max(1, min(100, updates // 200)),
    )
    if made.shard:  # in one pass, weights are gathered once and gradients stay spread: if it fits
        at_once = replace(made, batch_size=batch_tokens // T // ranks)
        return at_once if _fits(at_once, target, text) else made
    return made
