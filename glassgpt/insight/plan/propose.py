"""The other way round: so many hours on that machine, which run makes the best of them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any

from glassgpt.account import flops, memory
from glassgpt.config import TrainConfig, padded_vocabulary
from glassgpt.errors import UserError
from glassgpt.figures import duration, parameters
from glassgpt.insight.plan.decided import decide
from glassgpt.insight.plan.prospect import expectation
from glassgpt.insight.plan.target import Target
from glassgpt.insight.plan.text import Text
from glassgpt.insight.plan.times import forecast_of
from glassgpt.recipe import to_toml

_WIDTHS = (64, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1600, 2048)
_WIDER = (2560, 3200, 4096)  # where many cards work
_HEAD = 64  # channels
_SPARE = 0.97  # of the hours, for what nobody foresees
# A batch of 0.3 times what the text is diverse enough for: as in the presets that were tuned.
_BATCH = {"char": 1.5, "other": 5.7}  # times the square root of all tokens


@dataclass(frozen=True)
class Option:
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


@dataclass(frozen=True)
class Proposal:
    best: Option
    considered: tuple[Option, ...]  # smallest model first
    target: Target
    hours: float
    price: float | None = None  # of an hour of one machine

    @property
    def cost(self) -> float | None:
        machines = self.target.cluster.machines
        return None if self.price is None else self.price * machines * self.best.seconds / 3600

    @property
    def sentence(self) -> str:
        best = self.best
        cost = "" if self.cost is None else f", cost {self.cost:,.2f}"
        return (
            f"{duration(self.hours * 3600)} on {self.target.title}: "
            f"{parameters(best.parameters)} parameters, {best.config.max_iters:,} updates of "
            f"{best.config.batch_tokens:,} tokens, about {duration(best.seconds)}, "
            f"expected loss {best.loss[1]:.2f}{cost}"
        )

    def as_toml(self) -> str:
        return to_toml(self.best.config, f"glass plan proposed this: {self.sentence}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.title,
            "hours": self.hours,
            "cost": self.cost,
            "best": dataclasses.asdict(self.best),
            "considered": [dataclasses.asdict(option) for option in self.considered],
        }


def propose(
    config: TrainConfig, target: Target, text: Text, hours: float, price: float | None = None
) -> Proposal:
    """`config` says the data, the context and the machine's settings; the rest is searched for. `price`: of
    an hour of one machine."""
    options = [
        option
        for width in (_WIDTHS if target.cluster.ranks == 1 else _WIDTHS + _WIDER)
        if (option := _option(config, width, target, text, hours * 3600 * _SPARE)) is not None
    ]
    if not options:
        raise UserError(
            f"--hours={hours:g} on {target.title}: no model gets anywhere in that time, or nobody knows how "
            "fast the machine is; more --hours, or another --gpu"
        )
    best = min(options, key=lambda option: option.loss[1])
    return Proposal(best, tuple(options), target, hours, price)


def _option(config: TrainConfig, width: int, target: Target, text: Text, seconds: float) -> Option | None:
    """A model of that width for all the time there is, or less, where it would overfit; None: impossible."""
    shaped = _fitting(_shaped(config, width, text), target, text)
    if shaped is None:
        return None
    ranks = target.cluster.ranks
    ahead = _forecast(replace(shaped, batch_tokens=shaped.block_size * 64 * ranks), target, text)
    if ahead is None:
        return None
    pace, fixed_s = ahead
    if ranks > 1:  # how long they wait hangs on the batch, and the batch on how much they can do
        for _ in range(_ROUNDS):
            made = _with_length(shaped, target, text, pace * max(1.0, seconds - fixed_s))
            pace, fixed_s = _forecast(made, target, text) or (pace, fixed_s)
    tokens = pace * (seconds - fixed_s)
    if tokens < 100 * shaped.block_size:
        return None
    vocab_size = padded_vocabulary(text.vocab_size)
    made = _with_length(shaped, target, text, tokens)
    expected = expectation(made, vocab_size, made.batch_tokens or 1, text)
    if expected.overfits_at is not None:
        made = _with_length(shaped, target, text, expected.best.iteration * (made.batch_tokens or 1))
        expected = expectation(made, vocab_size, made.batch_tokens or 1, text)
    if not _fits(made, target, text):
        return None
    total = made.max_iters * (made.batch_tokens or 1)
    final = expected.final
    return Option(
        made, made.n_layer, made.n_embd, flops.parameters_of(made, vocab_size), total,
        total / text.train_tokens, pace, total / pace + fixed_s, (final.low, final.mid, final.high),
    )  # fmt: skip


_ROUNDS = 3


def _fitting(shaped: TrainConfig, target: Target, text: Text) -> TrainConfig | None:
    """As it is, or else sharded over the cards, if there are several; None: it does not fit at all."""
    ranks = target.cluster.ranks
    for shard in (False, True) if ranks > 1 and not shaped.shard else (shaped.shard,):
        tried = replace(shaped, shard=shard, batch_tokens=shaped.block_size * 16 * ranks)
        if memory.largest_batch(decide(tried, target, text).work, target.room) is not None:
            return replace(shaped, shard=shard)
    return None


def _fits(config: TrainConfig, target: Target, text: Text) -> bool:
    return memory.needed(decide(config, target, text).work).total <= target.room


def _forecast(config: TrainConfig, target: Target, text: Text) -> tuple[float, float] | None:
    """Tokens per second, and seconds that are not updates."""
    ahead = forecast_of(decide(replace(config, max_iters=10_000), target, text), target, text)
    if ahead.pace is None or ahead.evaluation_s is None:
        return None
    per_evaluation = ahead.evaluation_s / ahead.evaluations
    return ahead.pace.mid, ahead.start_s + ahead.saving_s + (_EVALUATIONS + 1) * per_evaluation


_EVALUATIONS = 20


def _shaped(config: TrainConfig, width: int, text: Text) -> TrainConfig:
    """Deeper as it gets wider; what presets that were tuned have in common."""
    of_characters = text.tokenizer in ("char", "byte")
    return replace(
        config,
        arch="modern",
        optimizer="muon",
        tie_embeddings=False,
        bias=False,
        n_embd=width,
        n_head=max(1, width // _HEAD),
        n_layer=max(3, round(width / _HEAD)),
        block_size=min(config.block_size, 256) if of_characters else config.block_size,
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
    )


def _with_length(shaped: TrainConfig, target: Target, text: Text, tokens: float) -> TrainConfig:
    T, ranks = shaped.block_size, target.cluster.ranks
    kind = "char" if text.tokenizer in ("char", "byte") else "other"
    wanted = _BATCH[kind] * math.sqrt(tokens)
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
        eval_interval=max(1, updates // _EVALUATIONS),
        log_interval=max(1, min(100, updates // 200)),
    )
    if made.shard:  # in one pass, weights are gathered once and gradients stay spread: if it fits
        at_once = replace(made, batch_size=batch_tokens // T // ranks)
        return at_once if _fits(at_once, target, text) else made
    return made
