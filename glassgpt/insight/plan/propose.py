"""The other way round: so many hours on that machine, which run makes the best of them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any

from glassgpt.account import memory
from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.figures import duration, parameters
from glassgpt.insight.plan.decided import decide
from glassgpt.insight.plan.prospect import expectation
from glassgpt.insight.plan.target import Target
from glassgpt.insight.plan.text import Text
from glassgpt.insight.plan.times import forecast_of
from glassgpt.recipe import to_toml

_WIDTHS = (64, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1600, 2048)
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

    @property
    def sentence(self) -> str:
        best = self.best
        return (
            f"{duration(self.hours * 3600)} on {self.target.name}: {parameters(best.parameters)} parameters, "
            f"{best.config.max_iters:,} updates of {best.config.batch_tokens:,} tokens, "
            f"about {duration(best.seconds)}, expected loss {best.loss[1]:.2f}"
        )

    def as_toml(self) -> str:
        return to_toml(self.best.config, f"glass plan proposed this: {self.sentence}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.name,
            "hours": self.hours,
            "best": dataclasses.asdict(self.best),
            "considered": [dataclasses.asdict(option) for option in self.considered],
        }


def propose(config: TrainConfig, target: Target, text: Text, hours: float) -> Proposal:
    """`config` says the data, the context and the machine's settings; the rest is searched for."""
    options = [
        option
        for width in _WIDTHS
        if (option := _option(config, width, target, text, hours * 3600 * _SPARE)) is not None
    ]
    if not options:
        raise UserError(
            f"--hours={hours:g} on {target.name}: no model gets anywhere in that time, or nobody knows how "
            "fast the machine is; more --hours, or another --gpu"
        )
    best = min(options, key=lambda option: option.loss[1])
    return Proposal(best, tuple(options), target, hours)


def _option(config: TrainConfig, width: int, target: Target, text: Text, seconds: float) -> Option | None:
    """A model of that width for all the time there is, or less, where it would overfit; None: impossible."""
    shaped = _shaped(config, width, text)
    decided = decide(replace(shaped, batch_tokens=shaped.block_size * 16), target, text)
    if memory.largest_batch(decided.work, target.room) is None:
        return None
    ahead = _forecast(shaped, target, text)
    if ahead is None:
        return None
    pace, fixed_s = ahead
    tokens = pace * (seconds - fixed_s)
    if tokens < 100 * shaped.block_size:
        return None
    made = _with_length(shaped, text, tokens)
    expected = expectation(made, decided.work.vocab_size, made.batch_tokens or 1, text)
    if expected.overfits_at is not None:
        made = _with_length(shaped, text, expected.best.iteration * (made.batch_tokens or 1))
        expected = expectation(made, decided.work.vocab_size, made.batch_tokens or 1, text)
    total = made.max_iters * (made.batch_tokens or 1)
    final = expected.final
    return Option(
        made, made.n_layer, made.n_embd, memory.parameters(decided.work), total, total / text.train_tokens,
        pace, total / pace + fixed_s, (final.low, final.mid, final.high),
    )  # fmt: skip


def _forecast(shaped: TrainConfig, target: Target, text: Text) -> tuple[float, float] | None:
    """Tokens per second, and seconds that are not updates."""
    # As many tokens at a time as pay, so that the speed is that of the run to be.
    decided = decide(replace(shaped, batch_tokens=shaped.block_size * 64, max_iters=10_000), target, text)
    ahead = forecast_of(decided, target, text)
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


def _with_length(shaped: TrainConfig, text: Text, tokens: float) -> TrainConfig:
    T = shaped.block_size
    kind = "char" if text.tokenizer in ("char", "byte") else "other"
    wanted = _BATCH[kind] * math.sqrt(tokens)
    sequences = 2 ** max(3, round(math.log2(max(1.0, wanted / T))))
    batch_tokens = min(sequences * T, 2**20 // T * T or T)
    updates = max(10, int(tokens / batch_tokens))
    epochs = updates * batch_tokens / text.train_tokens
    return replace(
        shaped,
        batch_tokens=batch_tokens,
        max_iters=updates,
        muon_momentum=0.95 if updates > 2000 else 0.9,
        dropout=0.15 if epochs > 3 else 0.0,
        weight_decay=0.05 if epochs > 1 else 0.0,
        eval_interval=max(1, updates // _EVALUATIONS),
        log_interval=max(1, min(100, updates // 200)),
    )
